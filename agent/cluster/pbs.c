/* SPDX-License-Identifier: Apache-2.0 */
/* PBS Professional, OpenPBS and Torque.
 *
 * PBS runs the batch script on the first host. A file lists the hosts, one line per process that `mpiprocs` (Torque:
 * ppn) asked for. The task manager starts programs elsewhere, for pbsdsh and MPIs; tasks are numbered, and the script
 * is 1:
 *
 *     script          PBS_TASKNUM=1  PBS_NODENUM=0   PBS_NODEFILE
 *     OpenPBS task    =40000001      =host's number, no PBS_NODEFILE; but each host has the file, below PBS_HOME
 *     Torque task     =2             =host's number, PBS_VNODENUM=line's number, PBS_NUM_NODES, PBS_NUM_PPN; no file
 *
 * pbsdsh starts one task per line, unless an option asks for fewer, which it does not report. Torque reports the
 * line of a task. OpenPBS counts the tasks of each host in the low bits of a hexadecimal number (the script is 1 on
 * the first host); the high bits, as many as the number of lines has, are the host's. Earlier tasks shift the numbers
 * of a host, so they are taken modulo the host's lines.
 *
 * A script reaches other hosts by ssh, not by pbs_tmrsh, which passes neither input nor output and does not end its
 * tasks.
 *
 * A job's id has its server after it, and its array index in brackets: "12[3].server". PBS reports neither restarts
 * nor the end. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/cluster/internal.h"
#include "common/ascii.h"
#include "common/hostlist.h"
#include "common/mem.h"

enum {
  CONF_MAX = 65536,
  INDEX_MAX = 100000000,
  TASK_DIGITS = 8, /* of OpenPBS' PBS_TASKNUM */
  TASK_BITS = 32,
};

#define CONF_FILE    "/etc/pbs.conf"
#define HOME_DEFAULT "/var/spool/pbs"

/* The host file, which PBS names to the script only; elsewhere it is below PBS_HOME, which the configuration has. */
static bool find_hosts(struct row *r, const char *id, struct row_hosts *h) {
  static const char key[] = "PBS_HOME=";
  if (row_variable(r, "PBS_NODEFILE")) return list_from_file(r, "PBS_NODEFILE", LIST_LINES, h);
  if (strchr(id, '/')) return false;
  char *conf = r->site->read_file ? r->site->read_file(r->site->ctx, CONF_FILE, CONF_MAX, NULL) : NULL;
  const char *home = HOME_DEFAULT;
  for (const char *p = conf; p && *p; p += strcspn(p, "\n"), p += *p == '\n')
    if (strncmp(p, key, sizeof(key) - 1) == 0 && p[sizeof(key) - 1] > ' ') home = p + sizeof(key) - 1;
  char *path = xasprintf("%.*s/aux/%s", (int)strcspn(home, " \t\r\n"), home, id);
  bool found = list_from_path(r, path, LIST_LINES, h);
  free(path);
  free(conf);
  return found;
}

/* PBS_GPUFILE, one line per GPU of each host. An agent that was launched on another host has the variable, but not the
 * file: its launcher passes the number. */
static void find_gpus(struct row *r, struct row_hosts *h) {
  static const char file[] = "PBS_GPUFILE";
  size_t len = hostlist_short(r->site->host);
  int64_t n = 0, lines = 0;
  char name[HOST_MAX + 1];
  char *text = row_file(r, file, row_variable(r, "RDZV_AGENT_LAUNCHER"));
  for (size_t i = 0; text && *text && i < h->n; i++) h->v[i].gpus = 0;
  for (const char *p = text; p && *p; p += strcspn(p, "\n"), p += *p == '\n') {
    lines += !strchr("\r\n", *p);
    /* "gpu1-gpu0": the host is before the last "-gpu". */
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(p, "\r\n"), p);
    char *gpu = strstr(name, "-gpu");
    for (char *next = gpu; next; next = strstr(next + 1, "-gpu")) gpu = next;
    if (!gpu) continue;
    *gpu = '\0';
    n += hostlist_short(name) == len && strncasecmp(name, r->site->host, len) == 0;
    int64_t at = row_hosts_find(h, name);
    if (at >= 0 && (size_t)at < h->n) h->v[at].gpus++;
  }
  if (lines) row_set_number(r, &r->c->gpus, n, file);
  free(text);
}

/* Which of its host's lines an OpenPBS task stands for. */
static bool read_count(const struct row *r, const struct row_hosts *h, int64_t node, int64_t slots, int64_t *local) {
  const char *text = row_variable(r, "PBS_TASKNUM");
  char *end = NULL;
  unsigned bits = 0;
  if (!text || strlen(text) != TASK_DIGITS) return false;
  uint64_t task = strtoull(text, &end, 16);
  for (int64_t lines = list_slots(h); lines; lines >>= 1) bits++;
  uint64_t first = node ? 1 : 2, count = task & ((UINT64_C(1) << (TASK_BITS - bits)) - 1);
  if (*end || (int64_t)(task >> (TASK_BITS - bits)) != node || count < first) return false;
  *local = (int64_t)(count - first) % slots;
  return true;
}

/* The place of this task among all, if the file is here. */
static void read_line(struct row *r, const struct row_hosts *h) {
  static const char vars[] = "PBS_VNODENUM PBS_TASKNUM PBS_NODENUM";
  int64_t line, node, local, at = row_hosts_find(h, r->site->host);
  if (!row_number(r, "PBS_NODENUM", 0, NODES_MAX - 1, &node)) return;
  if (at < 0 && node < (int64_t)h->n) at = node;
  if (at < 0) return;
  int64_t slots = h->v[at].slots, before = list_slots_before(h, (size_t)at);
  row_set_number(r, &r->c->local_agents, slots, "PBS_NODEFILE PBS_JOBID");
  if (row_number(r, "PBS_VNODENUM", 0, NODES_MAX - 1, &line))
    local = line - before;
  else if (!read_count(r, h, node, slots, &local))
    return;
  if (local < 0 || local >= slots) return;
  row_set_number(r, &r->c->local_index, local, vars);
  row_set_number(r, &r->c->index, before + local, vars);
}

/* The same by Torque's counts, which are those of the request: correct if all hosts have equally many lines. */
static void read_counts(struct row *r) {
  static const char counts[] = "PBS_NUM_NODES PBS_NUM_PPN", vars[] = "PBS_VNODENUM PBS_NUM_PPN";
  int64_t nodes, each, line, node;
  if (!row_number(r, "PBS_NUM_NODES", 1, NODES_MAX, &nodes) ||
      !row_number(r, "PBS_NUM_PPN", 1, CLUSTER_SLOTS_MAX, &each) || nodes * each > NODES_MAX) {
    row_warn(
        r,
        "PBS started this agent (%s), but does not report how many there are (PBS_NODEFILE is not set): give --nnodes",
        r->c->start.source);
    return;
  }
  row_set_number(r, &r->c->agents, nodes * each, counts);
  row_set_number(r, &r->c->nodes, nodes, "PBS_NUM_NODES");
  row_set_number(r, &r->c->local_agents, each, "PBS_NUM_PPN");
  if (row_number(r, "PBS_VNODENUM", 0, NODES_MAX - 1, &line) && row_number(r, "PBS_NODENUM", 0, NODES_MAX - 1, &node) &&
      line / each == node)
    row_set_number(r, &r->c->local_index, line % each, vars);
}

void cluster_read_pbs(struct row *r) {
  const char *id = row_variable(r, "PBS_JOBID"), *task = row_variable(r, "PBS_TASKNUM"),
             *node = row_variable(r, "PBS_NODENUM");
  struct row_hosts h = {0};
  if (!id) return;
  char *end;
  row_set_text(r, &r->c->scheduler, "PBS", "PBS_JOBID");
  row_set_job(r, "pbs", id, NULL, "PBS_JOBID");
  if (ascii_is_digit(*id)) {
    int64_t job = strtoll(id, &end, 10), index = *end == '[' ? strtoll(end + 1, NULL, 10) : 0;
    if (job < INDEX_MAX && index >= 0 && index < INDEX_MAX) row_set_port(r, job, index, "PBS_JOBID");
  }
  bool known = find_hosts(r, id, &h), launched = r->c->start.is_set;
  bool script = (!task || strcmp(task, "1") == 0) && (!node || strcmp(node, "0") == 0);
  if (!script && !launched) { /* started by pbsdsh: one of as many as the file has lines */
    row_set_number(r, &r->c->start, CLUSTER_STARTED, "PBS_TASKNUM PBS_NODENUM");
    row_set_text(r, &r->c->launcher, "pbsdsh", "PBS_TASKNUM PBS_NODENUM");
    r->c->agents_at_most = true;
    if (known) {
      row_set_number(r, &r->c->agents, list_slots(&h), "PBS_NODEFILE PBS_JOBID");
      read_line(r, &h);
    } else {
      read_counts(r);
    }
    if (!row_take_number(r, &r->c->index, "PBS_VNODENUM", 0, NODES_MAX - 1))
      row_take_number(r, &r->c->index, "PBS_NODENUM", 0, NODES_MAX - 1);
  }
  if (script && row_variable(r, "PBS_ENVIRONMENT")) row_set_number(r, &r->c->start, CLUSTER_ALONE, "PBS_ENVIRONMENT");
  find_gpus(r, &h);
  row_set_hosts(r, &h, row_variable(r, "PBS_NODEFILE") ? "PBS_NODEFILE" : "PBS_JOBID");
}
