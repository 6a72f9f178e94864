/* SPDX-License-Identifier: Apache-2.0 */
/* IBM Spectrum LSF, OpenLava and Volclava.
 *
 * The script runs on the first host of the job. LSB_MCPU_HOSTS lists the hosts with their slots; two files and
 * LSB_HOSTS list a host once per slot (LSB_HOSTS is unset if it would be too long). `blaunch HOST COMMAND` is a remote
 * shell within the job; `blaunch COMMAND` starts a task per slot. LSF_PM_TASKID numbers tasks from 1, host by host.
 *
 * LSB_JOBINDEX is 0 outside of arrays. LSB_RESTART is Y if the job was started before; LSF reports neither how often
 * nor when the job ends. Granted GPUs are in CUDA_VISIBLE_DEVICES, which is read in any case. */

#include <string.h>
#include <strings.h>
#include "agent/cluster/lists.h"
#include "common/opts/opts.h"

enum { ID_MAX = 1000000000 };

static void set_job(struct row *r, const char *id) {
  const char *index = row_variable(r, "LSB_JOBINDEX");
  bool array = index && strcmp(index, "0") != 0;
  const char *from = array ? "LSB_JOBID LSB_JOBINDEX" : "LSB_JOBID";
  int64_t job, step = 0;
  row_set_text(r, &r->c->scheduler, "LSF", "LSB_JOBID");
  row_set_job(r, "lsf", id, array ? index : NULL, from);
  if (parse_int(id, 0, ID_MAX, &job, NULL) == 0 && (!array || parse_int(index, 0, ID_MAX, &step, NULL) == 0))
    row_set_port(r, job, step, from);
}

static bool find_hosts(struct row *r, struct row_hosts *h, const char **from) {
  return list_from_variable(r, *from = "LSB_MCPU_HOSTS", LIST_PAIRS, h) ||
         list_from_file(r, *from = "LSB_DJOB_HOSTFILE", LIST_LINES, h) ||
         list_from_file(r, *from = "LSB_DJOB_RANKFILE", LIST_LINES, h) ||
         list_from_variable(r, *from = "LSB_HOSTS", LIST_WORDS, h);
}

static void read_blaunch(struct row *r, const struct row_hosts *h, const char *from) {
  int64_t task, here = row_hosts_find(h, r->site->host);
  if (!row_number(r, "LSF_PM_TASKID", 1, NODES_MAX, &task)) return;
  row_set_number(r, &r->c->start, CLUSTER_STARTED, "LSF_PM_TASKID");
  row_set_text(r, &r->c->launcher, "blaunch", "LSF_PM_TASKID");
  if (h->n) row_set_number(r, &r->c->agents, list_slots(h), from);
  row_take_number(r, &r->c->agents, "LSB_DJOB_NUMPROC", 1, NODES_MAX);
  row_set_number(r, &r->c->index, task - 1, "LSF_PM_TASKID");
  if (here < 0) return;
  int64_t local = task - 1 - list_slots_before(h, (size_t)here);
  row_set_number(r, &r->c->local_agents, h->v[here].slots, from);
  if (local >= 0 && local < h->v[here].slots) row_set_number(r, &r->c->local_index, local, "LSF_PM_TASKID");
}

void cluster_read_lsf(struct row *r) {
  const char *id = row_variable(r, "LSB_JOBID"), *restarted = row_variable(r, "LSB_RESTART"), *from = "";
  struct row_hosts h = {0};
  if (!id) return;
  set_job(r, id);
  find_hosts(r, &h, &from);
  if (!r->c->start.is_set) read_blaunch(r, &h, from);
  row_set_number(r, &r->c->start, CLUSTER_ALONE, "LSB_JOBID");
  row_set_text(r, &r->c->remote_shell, "blaunch", "LSB_JOBID");
  if (restarted) row_set_number(r, &r->c->restarts, strcasecmp(restarted, "y") == 0, "LSB_RESTART");
  row_set_hosts(r, &h, from);
}
