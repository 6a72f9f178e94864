/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm.
 *
 * A Slurm job has four places, whose environments differ little:
 *
 *     a task of a step       SLURM_STEP_ID is a small number; SLURM_STEP_* describe the step, a part of the job
 *     the batch script       SLURM_PROCID=0 and SLURM_NODEID=0, as for the first task; no SLURM_STEP_ID, or since Slurm
 *                            26.05 SLURM_STEP_ID=-5
 *     the shell of salloc    on the login node, with neither; or on the first node, in a special step whose id is one
 *                            of the greatest 32-bit numbers
 *     a task of mpirun       on the script's node with the script's environment, on others with that of mpirun's step
 *                            of helpers: only variables of the job count
 *
 * In a step, tasks join, not machines: `srun -n 8 -N 2` starts eight agents. "4(x2)" lists the tasks per node.
 *
 * SLURM_STEP_NODELIST is sorted, and its first host certainly has a task. This need not be task 0: since 26.05 tasks
 * follow the network's topology, while the list, SLURM_NODEID and the tasks per node keep the order of the nodes. So
 * SLURM_PROCID alone orders the ranks. SLURM_LAUNCH_NODE_IPADDR is where srun runs: usually the batch script's node,
 * but the login node if srun was typed there. So it counts only without a list, and the first agent checks it.
 *
 * GPUs: those of the step on this node, if each agent has its node to itself. With several agents on any node, only
 * those that Slurm grants per task: SLURM_GPUS_PER_TASK, or a task's list that is shorter than the node's. "a100:2" is
 * the number 2.
 *
 * Parts of a heterogeneous job that run as one step share counts and a list in SLURM_STEP_*; outside of a step each
 * part has its own list. Slurm 23.02 and later set SLURM_JOB_END_TIME: a year after the start if there is no limit. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/cluster/internal.h"
#include "common/hostlist.h"
#include "common/opts/opts.h"

enum {
  JOB_MAX = 2000000000,
  PARTS_MAX = 128,          /* of a heterogeneous job: Slurm's own limit */
  SECONDS_MAX = 4102444800, /* 2100: Slurm uses later times for "never" */
  YEAR = 365 * 24 * 60 * 60,
};
static const int64_t SPECIAL_STEPS = 4294967040; /* ids from here on are batch scripts, shells and the like */

bool cluster_is_step(const char *id) {
  int64_t n;
  return id && parse_int(id, 0, SPECIAL_STEPS - 1, &n, NULL) == 0;
}

static const char *first_of(const struct row *r, const char *a, const char *b) {
  return row_variable(r, a) ? a : b;
}

/* A job that a task of another job's step requested still has the variables of that step. In a real step the job's old
 * variables also have the step's size, and its hosts are the job's. */
static bool is_stale(const struct row *r) {
  const char *own = row_variable(r, "SLURM_STEP_NUM_NODES"), *common = row_variable(r, "SLURM_NNODES");
  const char *hosts = row_variable(r, "SLURM_STEP_NODELIST"), *all = row_variable(r, "SLURM_JOB_NODELIST");
  struct buf names = BUF_INIT;
  size_t n;
  if (own && common && strcmp(own, common) != 0) return true;
  if (!hosts || !all || hostlist_expand(hosts, &names, &n, NULL)) return false;
  bool within = cluster_lists(all, buf_text(&names));
  buf_finish(&names);
  return !within && cluster_count(all) > 0;
}

static const char restart_count[] = "SLURM_RESTART_COUNT";

/* The job, or element of an array, as squeue names it, the step, and how often Slurm has started it again: Slurm has
 * killed the former life, which may have left claims. The port is derived from the numbers. */
static void name_job(struct row *r, const char *step) {
  static const char variables[] = "SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_JOB_ID";
  char element[80], part[48], again[16] = "", from[160];
  const char *id = row_variable(r, "SLURM_JOB_ID");
  const char *array = row_variable(r, "SLURM_ARRAY_JOB_ID"), *task = row_variable(r, "SLURM_ARRAY_TASK_ID");
  int64_t job = -1, n = 0, restarts = 0;
  row_number(r, "SLURM_JOB_ID", 1, JOB_MAX, &job);
  if (job < 0) return;
  row_number(r, restart_count, 0, INT32_MAX, &restarts);
  if (restarts) snprintf(again, sizeof(again), "-r%lld", (long long)restarts);
  snprintf(part, sizeof(part), "%s%s", step ? step : "", again);
  snprintf(element, sizeof(element), "%s%s%s%s", array && task ? array : id, array && task ? "_" : "",
           array && task ? task : "", step ? "" : again);
  snprintf(from, sizeof(from), "%s%s%s", array && task ? variables : "SLURM_JOB_ID", step ? " SLURM_STEP_ID" : "",
           restarts ? " SLURM_RESTART_COUNT" : "");
  row_set_job(r, "slurm", element, step ? part : NULL, from);
  if (step) parse_int(step, 0, SPECIAL_STEPS, &n, NULL);
  row_set_port(r, job, n, step ? "SLURM_JOB_ID SLURM_STEP_ID" : "SLURM_JOB_ID");
}

/* Hosts, each with its tasks if the two lists match. */
static void find_hosts(struct row *r, const char *list, const char *per_node) {
  struct row_hosts h = {.v = NULL};
  struct err e = ERR_INIT;
  char variables[100];
  size_t n;
  if (!row_variable(r, list)) return;
  if (row_hosts_add_list(&h, row_variable(r, list), 1, &e)) {
    row_warn(r, "%s: %s: it is ignored", list, e.text);
    row_hosts_drop(&h);
    return;
  }
  int64_t *counts = per_node ? row_counts(r, per_node, &n) : NULL;
  if (counts && n != h.n) row_warn_of(r, per_node, "does not match the number of hosts: it is ignored");
  for (size_t i = 0; counts && n == h.n && i < n; i++) h.v[i].slots = counts[i];
  snprintf(variables, sizeof(variables), "%s%s%s", list, counts && n == h.n ? " " : "",
           counts && n == h.n ? per_node : "");
  free(counts);
  row_set_hosts(r, &h, variables);
}

static void find_gpus(struct row *r) {
  int64_t n = -1, on_node, listed = row_list_length(r, "SLURM_STEP_GPUS");
  const char *per_task = row_variable(r, "SLURM_GPUS_PER_TASK");
  if (per_task) { /* "2", "a100:2", "gpu:a100:2" */
    const char *colon = strrchr(per_task, ':');
    if (parse_int(colon ? colon + 1 : per_task, 0, WORKERS_MAX, &n, NULL)) {
      n = -1;
      row_warn_of(r, "SLURM_GPUS_PER_TASK", "has no number of GPUs: it is ignored");
    }
  }
  if (!cluster_shares_hosts(r->c)) {
    if (listed)
      row_set_number(r, &r->c->gpus, listed, "SLURM_STEP_GPUS");
    else
      row_take_number(r, &r->c->gpus, "SLURM_GPUS_ON_NODE", 0, WORKERS_MAX);
  } else if (n >= 0) {
    row_set_number(r, &r->c->gpus, n, "SLURM_GPUS_PER_TASK");
  } else if (listed && row_number(r, "SLURM_GPUS_ON_NODE", 0, WORKERS_MAX, &on_node) && listed < on_node) {
    /* Each task got its own GPUs: the step's list is the task's, and shorter than the node's. */
    row_set_number(r, &r->c->gpus, listed, "SLURM_STEP_GPUS SLURM_GPUS_ON_NODE");
  }
}

static void read_step(struct row *r, const char *step) {
  static const char per_node[] = "SLURM_STEP_TASKS_PER_NODE", nodes[] = "SLURM_STEP_NUM_NODES";
  struct cluster *c = r->c;
  name_job(r, step);
  row_set_text(r, &c->launcher, "srun", "SLURM_STEP_ID");
  row_set_number(r, &c->start, CLUSTER_STARTED, "SLURM_STEP_ID");
  if (!row_take_number(r, &c->agents, first_of(r, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), 1, NODES_MAX))
    row_take_number(r, &c->agents, nodes, 1, NODES_MAX);
  row_take_number(r, &c->index, "SLURM_PROCID", 0, NODES_MAX - 1);
  /* The step's tasks on this node. */
  int64_t node, agents = cluster_number(&r->c->agents, 0), n_nodes;
  size_t n;
  row_take_number(r, &r->c->local_index, "SLURM_LOCALID", 0, CLUSTER_SLOTS_MAX);
  int64_t *counts = row_counts(r, per_node, &n);
  char variables[100];
  snprintf(variables, sizeof(variables), "%s SLURM_NODEID", per_node);
  if (counts && row_number(r, "SLURM_NODEID", 0, NODES_MAX - 1, &node) && (size_t)node < n)
    row_set_number(r, &r->c->local_agents, counts[node], variables);
  else if (!counts && row_number(r, nodes, 1, NODES_MAX, &n_nodes) && (n_nodes == agents || n_nodes == 1))
    row_set_number(r, &r->c->local_agents, n_nodes == 1 ? agents : 1, nodes);
  free(counts);
  find_hosts(r, "SLURM_STEP_NODELIST", per_node);
  const char *address = row_variable(r, "SLURM_LAUNCH_NODE_IPADDR");
  if (address && !r->c->first_host.is_set) {
    row_set_text(r, &r->c->first_host, address, "SLURM_LAUNCH_NODE_IPADDR");
    r->c->first_host_is_uncertain = true;
  }
  find_gpus(r);
}

/* All hosts of the job; the parts of a heterogeneous one have a list each. */
static void find_all_hosts(struct row *r, const char *per_node) {
  struct row_hosts h = {.v = NULL};
  struct err e = ERR_INIT;
  char name[48];
  int64_t parts = 1;
  if (row_variable(r, "SLURM_HET_SIZE")) row_number(r, "SLURM_HET_SIZE", 1, PARTS_MAX, &parts);
  for (int i = 0; parts > 1 && i < parts; i++) {
    snprintf(name, sizeof(name), "SLURM_JOB_NODELIST_HET_GROUP_%d", i);
    const char *list = row_variable(r, name);
    if (list && row_hosts_add_list(&h, list, 1, &e)) row_warn(r, "%s: %s: it is ignored", name, e.text);
  }
  row_set_hosts(r, &h, "SLURM_HET_SIZE SLURM_JOB_NODELIST_HET_GROUP_0 SLURM_JOB_NODELIST_HET_GROUP_1");
  find_hosts(r, first_of(r, "SLURM_JOB_NODELIST", "SLURM_NODELIST"), per_node);
}

void cluster_read_slurm(struct row *r) {
  const char *step = row_variable(r, "SLURM_STEP_ID");
  int64_t n, begin, end;
  if (!row_variable(r, "SLURM_JOB_ID")) return;
  row_set_text(r, &r->c->scheduler, "Slurm", "SLURM_JOB_ID");
  bool in_step = step && row_number(r, "SLURM_STEP_ID", INT32_MIN, UINT32_MAX, &n) && cluster_is_step(step);
  if (r->c->by_mpirun) {
    /* mpirun's own number distinguishes starts, if known: Open MPI runs its helpers in a step on all nodes but the
     * first. Else the step does: Hydra starts all helpers as one step. */
    name_job(r, in_step && !r->c->run.is_set ? step : NULL);
    find_all_hosts(r, NULL);
    if (cluster_number(&r->c->local_agents, 1) == 1)
      row_take_number(r, &r->c->gpus, "SLURM_GPUS_ON_NODE", 0, WORKERS_MAX);
  } else if (in_step && !is_stale(r)) {
    read_step(r, step);
  } else { /* a batch script, or a shell */
    name_job(r, NULL);
    row_set_number(r, &r->c->start, CLUSTER_ALONE, "SLURM_JOB_ID");
    row_set_text(r, &r->c->starter, "srun", "SLURM_JOB_ID");
    find_all_hosts(r, "SLURM_TASKS_PER_NODE");
    row_take_number(r, &r->c->nodes, first_of(r, "SLURM_JOB_NUM_NODES", "SLURM_NNODES"), 1, NODES_MAX);
    row_take_number(r, &r->c->gpus, "SLURM_GPUS_ON_NODE", 0, WORKERS_MAX);
  }
  row_take_number(r, &r->c->restarts, restart_count, 0, INT32_MAX);
  const char *text = row_variable(r, "SLURM_JOB_END_TIME"), *start = row_variable(r, "SLURM_JOB_START_TIME");
  bool known = text && parse_int(text, 1, INT64_MAX, &end, NULL) == 0;
  if (known && end > SECONDS_MAX) return; /* no limit, as below */
  if (known && start && parse_int(start, 1, SECONDS_MAX, &begin, NULL) == 0 && end - begin == YEAR) return;
  row_take_number(r, &r->c->end_time, "SLURM_JOB_END_TIME", 1, SECONDS_MAX);
}
