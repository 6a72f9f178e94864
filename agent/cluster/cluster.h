#ifndef AGENT_CLUSTER_H
#define AGENT_CLUSTER_H

/* What the scheduler, or the launcher that started this agent, has left in the environment: where this agent is, who else is to come,
 * and for how long. Pure over an environment, this host's name and a function that reads files.
 *
 * Each fact is set at most once, by the first row of the table (cluster.c) that has it, and remembers what it was concluded from:
 * "SLURM_STEP_NUM_TASKS=2". What makes no sense counts as unset and leaves a sentence in `warnings`. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"
#include "proto/msg.h"

enum {
  CLUSTER_FILE_MAX = 4 * 1024 * 1024, /* of a scheduler's file of hosts */
  CLUSTER_SLOTS_MAX = 65536,          /* of one host */
  CLUSTER_PORT_FIRST = 16384,         /* derived ports are [FIRST, FIRST + COUNT): below those that kernels */
  CLUSTER_PORT_COUNT = 16384,         /* give to clients, above those that services have by name */
};

/* How this agent came to run, where a scheduler or a launcher is known. */
enum cluster_start {
  CLUSTER_ALONE,   /* by a batch script, or in an interactive shell of the job: nobody starts the others */
  CLUSTER_STARTED, /* as one of several, by srun, mpirun, pbsdsh...: the others are started too */
};

/* The whole file as a string of its own, of at most `max` bytes, newlines in place of NULs; or NULL and a sentence. */
typedef char *(*cluster_read_fn)(void *ctx, const char *path, size_t max, struct err *e);

/* What may be looked at. */
struct cluster_site {
  char *const *env;
  const char *host; /* this machine's name, as gethostname has it; "": unknown */
  cluster_read_fn read_file;
  void *ctx; /* of read_file */
};

struct cluster_fact {
  bool is_set;
  int64_t number; /* of those that are numbers */
  char *text;     /* of those that are words; else NULL */
  char *source;   /* "SLURM_JOB_ID=47, SLURM_STEP_ID=0"; NULL while it is unset */
};

/* One host of the job, and how many agents (or, where the job is CLUSTER_ALONE, slots) it has. */
struct cluster_host {
  char *name;
  int64_t slots;
  int64_t gpus; /* granted there; -1: not known */
};

struct cluster {
  /* Words. */
  struct cluster_fact scheduler; /* "Slurm", "PBS", "SGE", "LSF", "Kubernetes" */
  struct cluster_fact launcher;  /* "srun", "Open MPI", "Hydra": who started this agent as one of several */
  struct cluster_fact job; /* a name for --rdzv-id: "slurm-4711.0"; the same for all agents, no other's */
  struct cluster_fact
      run; /* what tells apart two starts by mpirun in one job; part of `job` where it is set */
  struct cluster_fact first_host;   /* on which an agent runs for certain, so that rdzvd can be there */
  struct cluster_fact remote_shell; /* by which CLUSTER_ALONE starts others: "qrsh -inherit"; unset: ssh */
  struct cluster_fact
      starter; /* by which a person starts agents on all hosts of a job that is CLUSTER_ALONE: "srun"; unset: this agent does */
  struct cluster_fact hosts; /* names of `host`, compressed, at most HOSTS_MAX; unset: unknown or longer */
  /* Numbers. */
  struct cluster_fact port;         /* for rdzvd, derived from the job's id */
  struct cluster_fact start;        /* enum cluster_start */
  struct cluster_fact agents;       /* started in all, [1, NODES_MAX]; where CLUSTER_ALONE: unset */
  struct cluster_fact index;        /* of this one among them, from 0: the order key */
  struct cluster_fact local_agents; /* on this host */
  struct cluster_fact local_index;  /* of this one among them */
  struct cluster_fact nodes;        /* hosts that the job has */
  struct cluster_fact gpus;         /* granted to this agent; 0: none, by the scheduler's own word */
  struct cluster_fact restarts;     /* how often the scheduler has started the job before */
  struct cluster_fact end_time;     /* seconds since 1970 */

  const char *own_host;      /* as the site has it; never NULL */
  struct cluster_host *host; /* in the scheduler's order, each once */
  size_t n_hosts;
  bool
      agents_at_most; /* a launcher that may have been told to start fewer than the job has places for: then --nnodes says how many */
  bool by_mpirun;     /* which may use a part of a job's hosts */
  bool
      first_host_is_uncertain; /* it is where mpirun, or srun, itself runs: as a rule the agent of index 0 is there, which is to look */
  struct buf warnings; /* a sentence a line; "" */
};

/* *c is to be finished in any case. */
void cluster_read(struct cluster *c, const struct cluster_site *site);
void cluster_finish(struct cluster *c);
/* The number, or `otherwise` where it is unset. */
int64_t cluster_number(const struct cluster_fact *f, int64_t otherwise);
/* Others are started too. / It is a job of one script that runs once. Where neither is known both are false. */
bool cluster_is_started(const struct cluster *c);
bool cluster_is_alone(const struct cluster *c);
/* Everything is on this host, for certain. */
bool cluster_is_one_host(const struct cluster *c);
/* Several agents run on one host, this one or another: they are one a device, not one a host. */
bool cluster_shares_hosts(const struct cluster *c);

/* Whether a list of hosts has this one, by its whole name or without the domain. */
bool cluster_lists(const char *hosts, const char *host);
int64_t
cluster_count(const char *hosts); /* how many a list has, those that stand there twice twice; 0: it is none */
/* Value of NAME in env, or NULL; "" counts as unset. */
const char *cluster_variable(char *const *env, const char *name);

#endif
