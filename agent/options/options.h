#ifndef AGENT_OPTIONS_H
#define AGENT_OPTIONS_H

/* What rdzv-agent can be told on its command line and in the environment: its own options, and all of
 * torchrun's, by the same names, variables (PET_*) and meaning. Pure: argv and the environment are parameters.
 *
 * An option of torchrun's that has no meaning here, or is overruled, is accepted, and a line in `notes` says
 * what happens instead. */

#include <stdbool.h>
#include <stdint.h>
#include "agent/cluster/cluster.h"
#include "agent/hang/hang.h"
#include "agent/output/output.h"
#include "common/buf.h"
#include "common/endpoint.h"
#include "common/err.h"
#include "common/opts/opts.h"
#include "proto/msg.h"

enum {
  OPTIONS_NPROC_CPU = 0,   /* --nproc cpu: as many as there are CPUs for us */
  OPTIONS_NPROC_GPU = -1,  /* gpu: as there are GPUs; none is an error */
  OPTIONS_NPROC_AUTO = -2, /* auto: as gpu where there are any, else as cpu */
  OPTIONS_NPROC_SEEN = -3, /* not given, and a scheduler is here: as gpu where there are any, else 1 */
};

/* Who serves the round's store, at MASTER_ADDR:MASTER_PORT. */
enum store_place { STORE_AGENT, STORE_WORKER };

/* --numa-binding, as torchrun names them. */
enum numa_binding { NUMA_NONE, NUMA_NODE, NUMA_SOCKET, NUMA_EXCLUSIVE, NUMA_CORE_COMPLEX };

/* --rdzv-conf is_host: whether this agent starts rdzvd where the endpoint is its own machine and nobody listens. */
enum hosting { HOST_AUTO, HOST_NEVER, HOST_ALWAYS };

struct nnodes {
  int64_t min, max;
};

/* --hang-watch */
struct hang_option {
  enum hang_watch_kind kind;
  const char *file; /* HANG_FILE: as it was given, ${rank} and ${local_rank} in it; else NULL */
};

/* --rdzv-conf: what it says of all that has a meaning here; -1: nothing. */
struct rdzv_conf {
  const char *text; /* as it stands; "" */
  int64_t join_ms, last_call_ms, timeout_ms, rank, keep_alive_ms, keep_alive_attempts;
  enum hosting is_host;
};

/* What torchrun's flags say, as it was said. What follows from it stands in the fields of agent_options. */
struct torch_options {
  const char *backend;  /* --rdzv-backend; NULL: none given, and "static" there */
  const char *endpoint; /* --rdzv-endpoint; "" or NULL: none */
  struct rdzv_conf conf;
  const char *master_addr; /* NULL: none */
  int64_t master_port;     /* -1: none */
  double monitor_interval; /* seconds; 0: none given */
  const char *start_method, *event_log_handler, *logs_specs;
  bool module, no_python, run_path;
};

/* What was not given, and follows from the cluster's facts: from which variables, for each; NULL: it does not. Borrowed from the cluster. */
struct options_sources {
  const char *nnodes, *nproc, *endpoint, *rdzv_id, *expect, *order_key, *local_rank, *end_time,
      *scheduler_restarts;
};

/* What --explain prints that no option tells. Text is as it is to be shown. */
struct options_told {
  const char *job;
  int64_t workers;            /* what --nproc came to */
  int64_t first, local_world; /* LOCAL_RANK of the first worker, LOCAL_WORLD_SIZE */
  const char *seen;           /* by what GPUs were counted: "CUDA_VISIBLE_DEVICES=0,1"; NULL: they were not */
  const char *end_time;       /* as people read it; NULL: not known */
  char *const *
      launched; /* "RDZV_AGENT_NNODES=PBS_NODEFILE=/f": from what a variable follows that we set ourselves; or NULL */
  char *const *command; /* what workers run */
};

enum {
  OPTIONS_NOTES_MAX = 4095,
  OPTIONS_FROM_MAX = 511,
  OPTIONS_DEVICE_TIMEOUT_MAX_MS = 25000, /* START to STARTED is CORE_START_TIMEOUT_MS for the daemon */
};

struct agent_options {
  struct nnodes nnodes;
  const char *expect;   /* a compressed list of hosts, at most HOSTS_MAX; NULL: unknown */
  int64_t expect_nodes; /* how many are to come: as many as that list has, or as were started; 0: unknown */
  int64_t nproc;
  struct endpoint endpoint; /* host "": none given */
  bool standalone;          /* settled: one machine, a daemon of its own */
  const char *rdzv_id;      /* NULL: none given */
  int64_t node_rank;        /* -1: none given */
  int64_t order_key;        /* the scheduler's number of this agent; -1: none */
  int64_t local_agents,
      local_index; /* agents on this host, and which of them this one is; 1 and 0 unless it is known */
  const char *
      crowded_by; /* NULL; or there are several, of which nothing tells which this one is: where that is known from */
  int64_t end_time;            /* when the scheduler ends the job, seconds since 1970; 0: not known */
  int64_t scheduler_restarts;  /* how often it has started the job again; -1: not known */
  int64_t leave_before_end_ms; /* so long before the end time all leave, as at SIGTERM; 0: nobody does */
  struct options_sources from;
  int argc; /* what was parsed, for opts_variable() */
  char *const *argv, *const *env;
  char endpoint_from[OPTIONS_FROM_MAX + 1];
  char
      endpoint_where[OPTIONS_FROM_MAX +
                     1]; /* the name of its host stands: "in --endpoint", "of SLURM_STEP_NODELIST=gpu[1-2]" */
  const char *local_addr; /* numeric or a name, or NULL */
  int64_t max_restarts, join_timeout_ms, last_call_ms, stop_timeout_ms, lease_ms;
  int64_t orphan_grace_ms;   /* INT64_MAX: for ever */
  int64_t device_timeout_ms; /* for the GPUs' driver to answer, and to give memory back; 0: it is not asked */
  int64_t hang_timeout_ms, hang_start_ms; /* 0: never */
  struct hang_option hang_watch;
  bool hang_stacks;
  enum store_place store;
  enum scale_up scale_up;
  enum after_finish after_finish;
  enum nccl_ids nccl_ids;
  const char *nccl_library; /* NULL: as rdzv-nccl finds it */
  int64_t exclude_after;    /* charged failures on one host; 0: never */
  int64_t store_port;       /* of the round's store: MASTER_PORT; 0: a free one each round */
  enum hosting hosting;

  const char *role;        /* ROLE_NAME; "default" */
  bool virtual_local_rank; /* LOCAL_RANK is 0 for all, each sees its own device alone */
  bool exclude_busy;       /* GPUs that are held by somebody, or fail, are left out */
  bool mpi_env;            /* OMPI_COMM_WORLD_* too, for scripts that read mpirun's variables */
  enum numa_binding numa;
  uint64_t signals; /* bit n: signal n makes the agent stop its workers by the same signal, and leave */

  const char *log_dir;           /* NULL: no files */
  struct std_map redirects, tee; /* files instead of the terminal; files as well */
  struct rank_set shown;         /* --local-ranks-filter: whose output reaches the terminal */
  struct opt_strings duplicate_stdout_filters, duplicate_stderr_filters;
  const char *log_line_prefix; /* TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, or NULL */
  const char *verdict_file;    /* NULL: none */

  const char *hosts, *hostfile; /* NULL: none given; read by agent/launch_prepare */
  const char *ssh;              /* what runs a command on another host; NULL: ssh with options of our own */
  const char *launch_agent;     /* rdzv-agent there; NULL: as here, else in PATH */
  int64_t fan_out;
  bool quiet, verbose, explain, help, version;

  struct torch_options torch;
  char notes[OPTIONS_NOTES_MAX + 1]; /* one sentence a line, for the start; "" */

  /* The words behind the options. `command` is false where they are the trainer's options (or there are
   * none). */
  char *const *words;
  bool command, dashes; /* dashes: "--" stood in front of them */
};

/* Fills o; strings point into argv, env, the cluster and o itself (so it is not to be copied). What is not said follows from the
 * cluster's facts, as far as they go; NULL: none are known. 0, or -EINVAL and a sentence. --help and --version are answered whatever else is wrong. */
int agent_options_parse(struct agent_options *o, int argc, char *const *argv, char *const *env,
                        const struct cluster *cluster, struct err *e);
void agent_options_help(int width, struct buf *out);
/* What --explain prints: every setting as it was settled, a line each, "name value", and behind those that nobody has typed, but
 * a variable or the cluster's facts have told, "  # VARIABLE=value". */
void agent_options_explain(const struct agent_options *o, const struct options_told *told, struct buf *out);
/* "NAME=value", cut and escaped for people. */
void agent_options_show_variable(const char *variable, struct buf *out);
void agent_options_settings(const struct agent_options *o, struct settings *s);

#endif
