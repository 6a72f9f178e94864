/* SPDX-License-Identifier: Apache-2.0 */
/* Grid Engine: Sun's, Son of Grid Engine, Univa's, Altair's, AIST's ABCI.
 *
 * The script runs on the first host. PE_HOSTFILE lists all hosts: a line "host slots queue processors" per queue. ABCI
 * also lists host names in SGE_JOB_HOSTLIST. Both files may lie on a disk of the first host. `qrsh -inherit HOST
 * COMMAND` starts a task elsewhere; with -V it takes the script's variables along. A task is recognised by its spool
 * folder inside the script's: ".../active_jobs/4711.1/1.gpu2".
 *
 * qrsh starts one agent per host. Son of Grid Engine sets NHOSTS=1 in each task, however many hosts the job has. So a
 * task knows their number from a list that it can read, or from a greater NHOSTS. We use qrsh without -nostdin, since an
 * agent must notice the end of its launcher. We use it without -V, since the launcher passes the environment itself,
 * except for grants of one host only.
 *
 * JOB_ID is too common to indicate Grid Engine, which always sets SGE_TASK_ID too ("undefined" outside of arrays).
 * RESTARTED is 1 or 2 (with a checkpoint) if the job was started before. GPUs granted by number are in SGE_HGR_NAME;
 * the administrator chooses NAME. The end of the job is not reported. */

#include <string.h>
#include "agent/cluster/internal.h"
#include "common/ascii.h"

enum { NAME_SHOWN_MAX = 60 };

static const char granted[] = "SGE_HGR_";

/* *from becomes the variable that has them. A file that a task cannot find lies on the script's host. */
static bool find_hosts(struct row *r, bool task, struct row_hosts *h, const char **from) {
  static const char *const names[] = {"PE_HOSTFILE", "SGE_JOB_HOSTLIST"};
  for (size_t i = 0; i < 2; i++) {
    const char *path = row_variable(r, *from = names[i]);
    bool another = i == 0 && row_variable(r, names[1]);
    if (path && (task || another ? list_from_path(r, path, LIST_LINES, h) : list_from_file(r, names[i], LIST_LINES, h)))
      return true;
  }
  return false;
}

/* "0 1 2 3", or "gpu0 gpu1": the number of words in the variable whose name contains gpu or cuda. */
static void find_gpus(struct row *r) {
  for (char *const *env = r->site->env; env && *env; env++) {
    char name[NAME_SHOWN_MAX + 1] = "", lower[NAME_SHOWN_MAX + 1] = "";
    size_t len = strcspn(*env, "=");
    if (strncmp(*env, granted, sizeof(granted) - 1) != 0 || len > NAME_SHOWN_MAX) continue;
    memcpy(name, *env, len);
    for (size_t i = 0; i < len; i++) lower[i] = ascii_lower(name[i]);
    int64_t n = row_list_length(r, name);
    if (n > 0 && (strstr(lower, "gpu") || strstr(lower, "cuda"))) row_set_number(r, &r->c->gpus, n, name);
  }
}

void cluster_read_sge(struct row *r) {
  const char *id = row_variable(r, "JOB_ID"), *number = row_variable(r, "SGE_TASK_ID"), *from = "";
  struct row_hosts h = {0};
  int64_t n, restarted;
  if (!id || !number) return;
  row_set_text(r, &r->c->scheduler, "SGE", "JOB_ID SGE_TASK_ID");
  row_set_array_job(r, "sge", id, strcmp(number, "undefined") != 0 ? number : NULL, "JOB_ID SGE_TASK_ID");
  /* "/spool/gpu2/active_jobs/4711.1/1.gpu2": the name of a task follows that of its job. */
  const char *spool = row_variable(r, "SGE_JOB_SPOOL_DIR"), *jobs = spool ? strstr(spool, "/active_jobs/") : NULL;
  const char *behind = jobs ? strchr(jobs + strlen("/active_jobs/"), '/') : NULL;
  bool task = behind && behind[1], launched = r->c->start.is_set, known = find_hosts(r, task, &h, &from);
  if (known && !task && row_number(r, "NHOSTS", 1, NODES_MAX, &n) && n != (int64_t)h.n)
    row_warn(r, "%s lists %zu hosts, but NHOSTS=%lld: the list is used", from, h.n, (long long)n);
  if (task && !launched) {
    row_set_number(r, &r->c->start, CLUSTER_STARTED, "SGE_JOB_SPOOL_DIR");
    row_set_text(r, &r->c->launcher, "qrsh", "SGE_JOB_SPOOL_DIR");
    if (h.n)
      row_set_number(r, &r->c->agents, (int64_t)h.n, from);
    else if (row_number(r, "NHOSTS", 1, NODES_MAX, &n) && n > 1)
      row_set_number(r, &r->c->agents, n, "NHOSTS");
    row_set_number(r, &r->c->local_agents, 1, "SGE_JOB_SPOOL_DIR");
    row_set_number(r, &r->c->local_index, 0, "SGE_JOB_SPOOL_DIR");
    int64_t here = row_hosts_find(&h, r->site->host);
    if (here >= 0) row_set_number(r, &r->c->index, here, from);
  }
  row_set_number(r, &r->c->start, CLUSTER_ALONE, "JOB_ID SGE_TASK_ID");
  row_set_text(r, &r->c->remote_shell, "qrsh -inherit", "JOB_ID SGE_TASK_ID");
  if (row_number(r, "RESTARTED", 0, 2, &restarted)) row_set_number(r, &r->c->restarts, restarted > 0, "RESTARTED");
  find_gpus(r);
  row_set_hosts(r, &h, from);
  if (!task) row_take_number(r, &r->c->nodes, "NHOSTS", 1, NODES_MAX);
}
