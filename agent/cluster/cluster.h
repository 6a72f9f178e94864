/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_CLUSTER_CLUSTER_H
#define AGENT_CLUSTER_CLUSTER_H

/* The variables of schedulers and launchers: where this agent is, which other agents belong to the job, and for how
 * long. Pure: an environment, this host's name and a function that reads files are parameters.
 *
 *     environment, host files -> rows -> facts, each with its source -> agent/options: defaults, --explain
 *
 * There is one row for each scheduler, launcher or cloud (slurm.c, mpi.c, ...), in the order of the table in cluster.c. The
 * first row that knows a fact sets it, with the variables that it came from: "SLURM_STEP_NUM_TASKS=2". An invalid
 * value counts as unset and adds a sentence to `warnings`. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/opts/opts.h"
#include "proto/msg.h"

enum {
  CLUSTER_FILE_MAX = 4 * 1024 * 1024, /* of a scheduler's host file */
  CLUSTER_SLOTS_MAX = 65536,          /* of one host */
  CLUSTER_PORT_FIRST = 16384,         /* derived ports are [FIRST, FIRST + COUNT): below the ports that kernels */
  CLUSTER_PORT_COUNT = 16384,         /* give to clients, above those of well-known services */
};

/* How this agent was started, under a scheduler or a launcher. */
enum cluster_start {
  CLUSTER_ALONE,   /* by a batch script or an interactive shell: nothing starts other agents */
  CLUSTER_STARTED, /* as one of several, by srun, mpirun, pbsdsh...: the others are started too */
};

/* The whole file as a heap string of at most `max` bytes, with newlines in place of NULs; or NULL and a sentence. */
typedef char *(*cluster_read_fn)(void *ctx, const char *path, size_t max, struct err *e);

/* The input of the rows. */
struct cluster_site {
  char *const *env;
  const char *host;     /* this machine's name as from gethostname; "": unknown */
  const char *loopback; /* this machine's loopback address; NULL: 127.0.0.1 */
  cluster_read_fn read_file;
  void *ctx; /* of read_file */
};

struct cluster_fact {
  bool is_set;
  int64_t number; /* of numeric facts */
  char *text;     /* of text facts; else NULL */
  char *source;   /* "SLURM_JOB_ID=47, SLURM_STEP_ID=0"; NULL while unset */
};

/* One host of the job, with its agents (or its slots, if CLUSTER_ALONE). */
struct cluster_host {
  char *name;
  int64_t slots;
  int64_t gpus; /* granted there; -1: not known */
};

struct cluster {
  /* Words. */
  struct cluster_fact scheduler;  /* "Slurm", "PBS", "SGE", "LSF", "Flux", "Kubernetes", "SkyPilot" */
  struct cluster_fact launcher;   /* "srun", "Open MPI", "PALS": started this agent as one of several */
  struct cluster_fact job;        /* a name for --rdzv-id, the same for all agents of the job only: "slurm-4711.0" */
  struct cluster_fact run;        /* a name of this start, so that two starts differ: "mpi-4711"; if set, it is `job` */
  struct cluster_fact first_host; /* certainly runs an agent, so rdzvd can run there */
  struct cluster_fact remote_shell; /* starts others if CLUSTER_ALONE: "qrsh -inherit"; unset: ssh */
  /* the command by which a user starts agents on all hosts if CLUSTER_ALONE: "srun"; unset: this agent does */
  struct cluster_fact starter;
  struct cluster_fact hosts; /* names of `host`, compressed, at most HOSTS_MAX; unset: unknown or longer */
  /* Numbers. */
  struct cluster_fact port;         /* for rdzvd, derived from the job's id */
  struct cluster_fact start;        /* enum cluster_start */
  struct cluster_fact agents;       /* number of started agents, [1, NODES_MAX]; unset if CLUSTER_ALONE */
  struct cluster_fact index;        /* of this agent among them, from 0: the order key */
  struct cluster_fact local_agents; /* on this host */
  struct cluster_fact local_index;  /* of this agent among them */
  struct cluster_fact nodes;        /* number of hosts of the job */
  struct cluster_fact gpus;         /* granted to this agent; 0: the scheduler granted none */
  struct cluster_fact restarts;     /* how often the scheduler restarted the job */
  struct cluster_fact end_time;     /* seconds since 1970 */

  const char *own_host;      /* from the site; never NULL */
  const char *loopback;      /* from the site; NULL: 127.0.0.1 */
  struct cluster_host *host; /* in the scheduler's order, without duplicates */
  size_t n_hosts;
  bool agents_at_most; /* the launcher may start fewer agents than the job has places: then --nnodes gives the number */
  bool by_mpirun;      /* or a launcher like it, which may use a part of a job's hosts */
  bool first_host_is_uncertain; /* first_host is where mpirun or srun runs. Agent 0 usually runs there and checks it */
  struct buf warnings;          /* one sentence per line; "" */
  /* the site's defaults, agent.conf (site_conf_read), which cluster_read leaves to its caller; NULL: none.
   * Borrowed */
  const struct opts_file *conf;
};

/* *c must be finished in any case. */
void cluster_read(struct cluster *c, const struct cluster_site *site);
void cluster_finish(struct cluster *c);
/* The number, or `otherwise` if unset. */
int64_t cluster_number(const struct cluster_fact *f, int64_t otherwise);
/* Other agents are started too. / One script runs once. If neither is known, both are false. */
bool cluster_is_started(const struct cluster *c);
bool cluster_is_alone(const struct cluster *c);
/* This machine's loopback address. */
const char *cluster_loopback(const struct cluster *c);
/* All agents are certainly on this host. */
bool cluster_is_one_host(const struct cluster *c);
/* Several agents run on some host: one per device, not one per host. */
bool cluster_shares_hosts(const struct cluster *c);

/* Whether a list of hosts contains this one, with or without its domain. */
bool cluster_lists(const char *hosts, const char *host);
int64_t cluster_count(const char *hosts); /* the length of a list, with duplicates; 0: it is not a list */
/* Value of NAME in env, or NULL; "" counts as unset. */
const char *cluster_variable(char *const *env, const char *name);

#endif
