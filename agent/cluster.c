/* Schedulers, by what they leave in the environment.
 *
 * A job's name: all agents of one job step must find the same one, two steps of one allocation must not.
 * Slurm numbers steps; PBS, SGE and LSF do not, there the job's id (and the index of an array job) has to do.
 * Within one such job a second run is a new incarnation of the same name, so nothing is mixed up as long as
 * they do not overlap.
 *
 * JOB_ID is too common a name to mean SGE by itself; SGE always sets SGE_TASK_ID too ("undefined" outside of
 * arrays).
 *
 * Slurm's count is of agents, not machines: a step that starts two agents on each machine has twice as many
 * tasks as nodes, and it is tasks that join. The order key stays the machine's number; agents of one machine
 * are told apart by their ids. Outside of a step (in a batch script) only the number of nodes is known.
 *
 * Its list of hosts is passed on as it stands, compressed; a list is no use where it is not of the count's own step, cannot be read, or is so
 * long that HELLO would not hold it: the count is told in any case.
 *
 * PBS' and MPI's lists and numbers, topology labels: not yet. */

#include "agent/cluster.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "common/hostlist.h"
#include "common/opts.h"

const char *cluster_variable(char *const *env, const char *name) {
  size_t n = strlen(name);
  for (; env && *env; env++)
    if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') return (*env)[n + 1] ? *env + n + 1 : NULL;
  return NULL;
}

/* The variable as a number, or `otherwise` where it is not set or makes no sense. */
static int64_t number(char *const *env, const char *name, int64_t min, int64_t max, int64_t otherwise) {
  const char *text = cluster_variable(env, name);
  int64_t v;
  return text && parse_int(text, min, max, &v, NULL) == 0 ? v : otherwise;
}

/* "KIND-ID" or "KIND-ID.PART", if it fits and is a word. */
static bool name_job(struct cluster *c, const char *kind, const char *id, const char *part) {
  if (!id) return false;
  int n = snprintf(c->job, sizeof(c->job), "%s-%s%s%s", kind, id, part ? "." : "", part ? part : "");
  bool word = n > 0 && (size_t)n < sizeof(c->job);
  for (const char *p = c->job; word && *p; p++) word = *p > ' ' && *p < 0x7f;
  if (!word) c->job[0] = '\0';
  return word;
}

static void find_job(struct cluster *c, char *const *env) {
  const char *sge = cluster_variable(env, "SGE_TASK_ID"), *lsf = cluster_variable(env, "LSB_JOBINDEX");
  if (sge && strcmp(sge, "undefined") == 0) sge = NULL;
  if (lsf && strcmp(lsf, "0") == 0) lsf = NULL;
  if (name_job(c, "slurm", cluster_variable(env, "SLURM_JOB_ID"), cluster_variable(env, "SLURM_STEP_ID")))
    return;
  if (name_job(c, "pbs", cluster_variable(env, "PBS_JOBID"), NULL)) return;
  if (cluster_variable(env, "SGE_TASK_ID") && name_job(c, "sge", cluster_variable(env, "JOB_ID"), sge))
    return;
  name_job(c, "lsf", cluster_variable(env, "LSB_JOBID"), lsf);
}

bool cluster_lists(const char *hosts, const char *host) {
  struct buf names = BUF_INIT;
  size_t n, len = hostlist_short(host);
  bool found = false;
  if (hostlist_expand(hosts, &names, &n, NULL)) n = 0;
  const char *p = buf_text(&names);
  for (size_t i = 0; i < n && !found; i++, p += strlen(p) + 1)
    found = hostlist_short(p) == len && strncasecmp(p, host, len) == 0;
  buf_finish(&names);
  return found;
}

int64_t cluster_count(const char *hosts) {
  struct buf names = BUF_INIT;
  size_t n = 0;
  if (hostlist_expand(hosts, &names, &n, NULL)) n = 0;
  buf_finish(&names);
  return (int64_t)n;
}

/* Of the step, or of the job; no more hosts than agents. */
static void find_hosts(struct cluster *c, char *const *env, const char *variable) {
  const char *list = cluster_variable(env, variable);
  struct buf names = BUF_INIT;
  size_t n;
  if (list && strlen(list) <= HOSTS_MAX && hostlist_expand(list, &names, &n, NULL) == 0 &&
      n <= (size_t)c->expected_nodes)
    c->expected_hosts = list;
  buf_finish(&names);
}

void cluster_read(struct cluster *c, char *const *env) {
  static const char *const counts[][2] = {{"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"},
                                          {"SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST"},
                                          {"SLURM_NNODES", "SLURM_JOB_NODELIST"}};
  *c = (struct cluster){.order_key = -1, .expected_hosts = ""};
  find_job(c, env);
  c->order_key = number(env, "SLURM_NODEID", 0, NODES_MAX, -1);
  for (size_t i = 0; i < sizeof(counts) / sizeof(*counts) && c->expected_nodes == 0; i++) {
    c->expected_nodes = number(env, counts[i][0], 1, NODES_MAX, 0);
    if (c->expected_nodes) find_hosts(c, env, counts[i][1]);
  }
}
