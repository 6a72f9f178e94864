/* Slurm.
 *
 * There are four places in a Slurm job, and their environments differ by little:
 *
 *     a task of a step       SLURM_STEP_ID is a small number; SLURM_STEP_* are of the step, which may be smaller than the job
 *     the batch script       no SLURM_STEP_ID; SLURM_PROCID=0 and SLURM_NODEID=0, as if it were the first of several
 *     the shell of salloc    on the login node, with neither; or on the job's first node, in a step of a kind of its own, whose id is
 *                            one of the greatest 32-bit numbers
 *     a task of mpirun's     on the batch script's own node with the batch script's environment, on others with that of the step by which
 *                            mpirun started its helpers: of all that only what concerns the job counts
 *
 * In a step it is tasks that join, not machines: `srun -n 8 -N 2` starts eight agents. How many share this host stands in a list by
 * node, "4(x2)", at this node's place.
 *
 * SLURM_STEP_NODELIST is sorted, and its first host has a task for certain. SLURM_LAUNCH_NODE_IPADDR is where srun itself runs: the
 * batch script's node, mostly the same, but the login node when somebody types srun there. So it counts only where there is no list, and
 * the first agent looks whether it is there.
 *
 * GPUs: those of the step on this node, where one agent has the node to itself; with several only what Slurm says to give each task. A
 * number behind a type, "a100:2", is a number. The parts of a heterogeneous job that run as one step have counts and
 * a list each in SLURM_STEP_*, but common ones in SLURM_NTASKS and SLURM_NODELIST. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/cluster_internal.h"
#include "common/opts.h"

enum {
  JOB_MAX = 2000000000,
  SECONDS_MAX = 4102444800, /* 2100: what is later is Slurm's way to say "never" */
};
static const int64_t SPECIAL_STEPS = 4294967040; /* ids from here on are of batch scripts, shells and such */

static const char *first_of(const struct row *r, const char *a, const char *b) {
  return row_variable(r, a) ? a : b;
}

static bool is_heterogeneous(const struct row *r) {
  const char *size = row_variable(r, "SLURM_HET_SIZE");
  return size && strcmp(size, "1") != 0;
}

/* Of the step by that step's own variables; where its parts are several, by the common ones. */
static const char *of_step(const struct row *r, const char *step, const char *common) {
  return is_heterogeneous(r) ? common : first_of(r, step, common);
}

/* The job, or element of an array, as squeue names it, and the step. The port is derived from the numbers. */
static void name_job(struct row *r, const char *step) {
  static const char variables[] = "SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_JOB_ID";
  char element[64], from[120];
  const char *id = row_variable(r, "SLURM_JOB_ID");
  const char *array = row_variable(r, "SLURM_ARRAY_JOB_ID"), *task = row_variable(r, "SLURM_ARRAY_TASK_ID");
  int64_t job = -1, n = 0;
  row_number(r, "SLURM_JOB_ID", 1, JOB_MAX, &job);
  if (job < 0) return;
  if (array && task) snprintf(element, sizeof(element), "%s_%s", array, task);
  snprintf(from, sizeof(from), "%s%s", array && task ? variables : "SLURM_JOB_ID",
           step ? " SLURM_STEP_ID" : "");
  row_set_job(r, "slurm", array && task ? element : id, step, from);
  if (step) parse_int(step, 0, SPECIAL_STEPS, &n, NULL);
  row_set_port(r, job, n, step ? "SLURM_JOB_ID SLURM_STEP_ID" : "SLURM_JOB_ID");
}

/* Hosts, each with its tasks where the two lists fit to each other. */
static void find_hosts(struct row *r, const char *list, const char *per_node) {
  struct row_hosts h = {.v = NULL};
  struct err e = ERR_INIT;
  char variables[100];
  size_t n;
  if (!row_variable(r, list)) return;
  if (row_hosts_add_list(&h, row_variable(r, list), 1, &e)) {
    row_warn(r, "%s: %s: it is not used", list, e.text);
    row_hosts_drop(&h);
    return;
  }
  int64_t *counts = row_counts(r, per_node, &n);
  if (counts && n != h.n) row_warn_of(r, per_node, "does not fit to the number of hosts: it is not used");
  for (size_t i = 0; counts && n == h.n && i < n; i++) h.v[i].slots = counts[i];
  snprintf(variables, sizeof(variables), "%s%s%s", list, counts && n == h.n ? " " : "",
           counts && n == h.n ? per_node : "");
  free(counts);
  row_set_hosts(r, &h, variables);
}

/* How many of the step's tasks are on this node. */
static void find_neighbours(struct row *r, const char *per_node, const char *nodes) {
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
}

/* "2", "a100:2", "gpu:a100:2": the number; -1: there is none. */
static int64_t read_gpus(const char *text) {
  const char *colon = strrchr(text, ':');
  int64_t n;
  return parse_int(colon ? colon + 1 : text, 0, WORKERS_MAX, &n, NULL) == 0 ? n : -1;
}

static void find_gpus(struct row *r) {
  bool shared = cluster_number(&r->c->local_agents, 1) > 1;
  const char *per_task = row_variable(r, "SLURM_GPUS_PER_TASK");
  int64_t n = per_task ? read_gpus(per_task) : -1, listed = row_list_length(r, "SLURM_STEP_GPUS");
  if (per_task && n < 0) row_warn_of(r, "SLURM_GPUS_PER_TASK", "has no number of GPUs: it is not used");
  if (shared) {
    if (n >= 0) row_set_number(r, &r->c->gpus, n, "SLURM_GPUS_PER_TASK");
    return;
  }
  if (listed)
    row_set_number(r, &r->c->gpus, listed, "SLURM_STEP_GPUS");
  else
    row_take_number(r, &r->c->gpus, "SLURM_GPUS_ON_NODE", 0, WORKERS_MAX);
}

static void find_srun(struct row *r) {
  const char *address = row_variable(r, "SLURM_LAUNCH_NODE_IPADDR");
  if (!address || r->c->first_host.is_set) return;
  row_set_text(r, &r->c->first_host, address, "SLURM_LAUNCH_NODE_IPADDR");
  r->c->first_host_is_launchers = true;
}

static void read_step(struct row *r, const char *step) {
  struct cluster *c = r->c;
  const char *tasks = of_step(r, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
             *nodes = of_step(r, "SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
             *per_node = of_step(r, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  name_job(r, step);
  row_set_text(r, &c->launcher, "srun", "SLURM_STEP_ID");
  row_set_number(r, &c->start, CLUSTER_STARTED, "SLURM_STEP_ID");
  if (!row_take_number(r, &c->agents, tasks, 1, NODES_MAX))
    row_take_number(r, &c->agents, nodes, 1, NODES_MAX);
  row_take_number(r, &c->index, "SLURM_PROCID", 0, NODES_MAX - 1);
  find_neighbours(r, per_node, nodes);
  find_hosts(r, of_step(r, "SLURM_STEP_NODELIST", "SLURM_NODELIST"), per_node);
  find_srun(r);
  find_gpus(r);
}

/* A batch script, or a shell. */
static void read_alone(struct row *r) {
  name_job(r, NULL);
  row_set_number(r, &r->c->start, CLUSTER_ALONE, "SLURM_JOB_ID");
  row_set_text(r, &r->c->starter, "srun", "SLURM_JOB_ID");
  find_hosts(r, first_of(r, "SLURM_JOB_NODELIST", "SLURM_NODELIST"), "SLURM_TASKS_PER_NODE");
  row_take_number(r, &r->c->nodes, first_of(r, "SLURM_JOB_NUM_NODES", "SLURM_NNODES"), 1, NODES_MAX);
  row_take_number(r, &r->c->gpus, "SLURM_GPUS_ON_NODE", 0, WORKERS_MAX);
}

/* mpirun's own agents. */
static void read_under_launcher(struct row *r) {
  name_job(r, NULL);
  find_hosts(r, first_of(r, "SLURM_JOB_NODELIST", "SLURM_NODELIST"), "SLURM_TASKS_PER_NODE");
  if (cluster_number(&r->c->local_agents, 1) == 1)
    row_take_number(r, &r->c->gpus, "SLURM_GPUS_ON_NODE", 0, WORKERS_MAX);
}

void cluster_read_slurm(struct row *r) {
  const char *step = row_variable(r, "SLURM_STEP_ID");
  int64_t n, end;
  if (!row_variable(r, "SLURM_JOB_ID")) return;
  row_set_text(r, &r->c->scheduler, "Slurm", "SLURM_JOB_ID");
  bool in_step = step && row_number(r, "SLURM_STEP_ID", 0, UINT32_MAX, &n) && n < SPECIAL_STEPS;
  if (r->c->by_mpirun)
    read_under_launcher(r);
  else if (in_step)
    read_step(r, step);
  else
    read_alone(r);
  row_take_number(r, &r->c->restarts, "SLURM_RESTART_COUNT", 0, INT32_MAX);
  const char *text = row_variable(r, "SLURM_JOB_END_TIME");
  if (text && parse_int(text, 1, INT64_MAX, &end, NULL) == 0 && end > SECONDS_MAX) return; /* no limit */
  row_take_number(r, &r->c->end_time, "SLURM_JOB_END_TIME", 1, SECONDS_MAX);
}
