/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OPTIONS_OPTIONS_H
#define AGENT_OPTIONS_OPTIONS_H

/* The options of rdzv-agent: its own and all of torchrun's, with the same names, variables (PET_*) and meaning. Pure:
 * argv and the environment are parameters. */

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
  OPTIONS_NPROC_CPU = 0,   /* --nproc cpu: one per CPU that this process may use */
  OPTIONS_NPROC_GPU = -1,  /* gpu: one per GPU; without GPUs an error */
  OPTIONS_NPROC_AUTO = -2, /* auto: as gpu if there are GPUs, else as cpu */
  OPTIONS_NPROC_XPU = -4,  /* xpu: one per GPU of Intel; without one an error */
  OPTIONS_NPROC_SEEN = -3, /* not given under a scheduler: as gpu if there are GPUs, else 1 */
};

/* Which process serves the round's store at MASTER_ADDR:MASTER_PORT. */
enum store_place { STORE_AGENT, STORE_WORKER };

/* --hang-stacks */
enum hang_stacks { HANG_STACKS_AUTO, HANG_STACKS_NEVER };

/* --health */
enum health_mode { HEALTH_OFF, HEALTH_WARN, HEALTH_STRICT };

/* --numa-binding, as torchrun names them. */
enum numa_binding { NUMA_NONE, NUMA_NODE, NUMA_SOCKET, NUMA_EXCLUSIVE, NUMA_CORE_COMPLEX };

/* --print-completion */
enum completion { COMPLETION_NONE, COMPLETION_BASH, COMPLETION_ZSH, COMPLETION_TCSH, COMPLETION_FISH };

/* --rdzv-conf is_host: whether this agent starts rdzvd if the endpoint is its own machine and nothing listens there. */
enum hosting { HOST_AUTO, HOST_NEVER, HOST_ALWAYS };

struct nnodes {
  int64_t min, max;
};

/* --hang-watch */
struct hang_option {
  enum hang_watch_kind kind;
  const char *file; /* HANG_FILE: as given, with ${rank} and ${local_rank} unreplaced; else NULL */
};

/* --rdzv-conf: the keys that have a meaning here; -1: not given. */
struct rdzv_conf {
  const char *text; /* as given; "" */
  int64_t join_ms, last_call_ms, timeout_ms, rank, keep_alive_ms, keep_alive_attempts;
  bool bad_timeout, bad_rank; /* its value cannot be read: an error with --rdzv-backend static only */
  enum hosting is_host;
};

/* The values of torchrun's flags as given. The rules derive the fields of agent_options from them. */
struct torch_options {
  const char *backend;  /* --rdzv-backend; NULL: not given, which means "static" there */
  const char *endpoint; /* --rdzv-endpoint; "" or NULL: none */
  struct rdzv_conf conf;
  const char *master_addr; /* NULL: none */
  int64_t master_port;     /* -1: none */
  double monitor_interval; /* seconds; 0: none given */
  int start_method;        /* no effect */
  const char *event_log_handler, *logs_specs;
  bool module, no_python, run_path;
  bool prefix_by_variable;       /* TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE took effect */
  bool use_env, pass_local_rank; /* of torch.distributed.launch; they exclude each other */
};

/* For each default that follows from the cluster: the variables it came from; NULL: it does not. Borrowed from the
 * cluster. */
struct options_sources {
  const char *nnodes, *nproc, *endpoint, *rdzv_id, *expect, *order_key, *local_rank, *end_time, *scheduler_restarts;
};

/* Facts for --explain beside the options. Text is printed as it is. */
struct options_told {
  const char *job;
  int64_t workers;            /* the result of --nproc */
  int64_t first, local_world; /* LOCAL_RANK of the first worker, LOCAL_WORLD_SIZE */
  const char *seen;           /* how GPUs were counted: "CUDA_VISIBLE_DEVICES=0,1"; NULL: they were not */
  const char *end_time;       /* in readable form; NULL: not known */
  const char *key;            /* the source of the key */
  const char *left_out;       /* which modules have no warm start, and why; "" or NULL: none that is known */
  /* "RDZV_AGENT_NNODES=PBS_NODEFILE=/f": the source of each variable that the launcher set; or NULL */
  char *const *launched;
  char *const *command; /* the command of the workers */
};

enum {
  OPTIONS_NOTES_MAX = 4095,
  OPTIONS_FROM_MAX = 511,
  OPTIONS_DEVICE_TIMEOUT_MAX_MS = 25000, /* below JOB_START_TIMEOUT_MS, which the daemon allows from START to STARTED */
};

struct agent_options {
  struct nnodes nnodes;
  const char *expect;   /* compressed list of hosts, at most HOSTS_MAX; NULL: unknown */
  int64_t expect_nodes; /* expected nodes: the length of that list, or the number of started agents; 0: unknown */
  int64_t nproc;
  struct endpoint endpoints[DAEMONS_MAX]; /* where daemons are, in this order */
  size_t n_endpoints;                     /* 0: standalone, and the first host is "" */
  const char *claim;                      /* where daemons claim rounds (common/claim_place.h); NULL: nowhere */
  bool standalone;                        /* after parsing: one machine, with its own daemon */
  const char *rdzv_id;                    /* NULL: none given */
  int64_t node_rank;                      /* -1: none given */
  int64_t order_key;                      /* the scheduler's index of this agent; -1: none */
  /* agents on this host and the index of this one among them; 1 and 0 unless known */
  int64_t local_agents, local_index;
  /* several agents share this host and their indices are unknown: the source of that fact; else NULL */
  const char *crowded_by;
  int64_t end_time;            /* when the scheduler ends the job, in seconds since 1970; 0: not known */
  int64_t scheduler_restarts;  /* how often the scheduler restarted the job; -1: not known */
  int64_t leave_before_end_ms; /* all agents leave this long before the end time, as at SIGTERM; 0: never */
  struct options_sources from;
  struct opts_spec spec;     /* agent_options_spec with the site's defaults */
  struct opts_parsed parsed; /* the source of each option's value */
  char *const *argv, *const *env;
  char endpoint_from[OPTIONS_FROM_MAX + 1];
  /* where the host name came from: "in --endpoint", "of SLURM_STEP_NODELIST=gpu[1-2]" */
  char endpoint_where[OPTIONS_FROM_MAX + 1];
  /* a sentence: the scheduler's list shows that no agent of this job is at the endpoint. "": it does not */
  char endpoint_doubt[OPTIONS_FROM_MAX + 1];
  int64_t reach_ms;       /* how long a daemon there is waited for that has never answered; 0: join_timeout_ms */
  int64_t unknown_ms;     /* the same if its name does not exist; 0: join_timeout_ms */
  const char *local_addr; /* numeric address or host name; or NULL */
  int64_t max_restarts, join_timeout_ms, last_call_ms, stop_timeout_ms, lease_ms;
  int64_t orphan_grace_ms; /* INT64_MAX: forever */
  bool sole_agent;
  /* how long to wait for the GPU driver to answer and for memory to be freed; 0: do not ask */
  int64_t device_timeout_ms;
  enum health_mode health; /* off: also with device_timeout_ms 0 */
  const char *check;       /* NULL: none */
  int64_t check_timeout_ms;
  int64_t hang_timeout_ms, hang_start_ms; /* 0: never */
  struct hang_option hang_watch;
  enum hang_stacks hang_stacks;
  enum store_place store;
  enum scale_up scale_up;
  enum after_finish after_finish;
  enum nccl_ids nccl_ids;
  enum pair_check pair_check;
  const char *nccl_library; /* NULL: rdzv-nccl searches it */
  int64_t slow_ranks_ms;    /* 0: nothing is measured */
  struct slow_limit {
    int64_t percent, time_ms; /* percent 0: none */
  } slow_limit;
  int64_t exclude_after; /* charged failures on one host; 0: never */
  int64_t repeat_limit;  /* repeats of a failure until the job ends; 0: never */
  int64_t store_port;    /* MASTER_PORT; 0: a free port each round */
  enum hosting hosting;

  const char *role;        /* ROLE_NAME; "default" */
  bool virtual_local_rank; /* LOCAL_RANK is 0 for all, and each worker sees only its own device */
  bool exclude_busy;       /* leave out GPUs that are in use or fail */
  bool mpi_env;            /* also set mpirun's variables, OMPI_COMM_WORLD_* */
  enum numa_binding numa;
  const char *warm;     /* off, auto, or the modules of the template, with commas between (agent/warm) */
  int64_t warm_keep_ms; /* the template stays so long after the job; 0: it does not */
  uint64_t signals;     /* bit n: at signal n the agent stops its workers with the same signal and exits */
  bool signals_named;   /* given by --signals-to-handle or its variables: they count even if ignored at the start */

  struct output_settings output;
  const char *verdict_file; /* NULL: none */
  const char *events;       /* NULL: none */
  const char *on_event;     /* NULL: none */
  const char *on_event_names;

  const char *key_file; /* NULL: not given; read by agent/key */
  int64_t key_fd;       /* -1: not given */
  bool insecure;
  const char *munge_user; /* NULL: not given */

  const char *hosts, *hostfile; /* NULL: not given; read by agent/launch/make_plan.c */
  const char *ssh;              /* runs a command on another host; NULL: ssh with default options */
  const char *launch_agent;     /* path of rdzv-agent there; NULL: as here, else in PATH */
  int64_t fan_out;
  bool quiet, verbose, explain, check_only, help, version;
  enum completion completion; /* print the shell's script and exit */

  struct torch_options torch;
  char notes[OPTIONS_NOTES_MAX + 1]; /* one sentence per line, printed at the start; "" */

  /* The words after the options. `command` is false if they are the trainer's options, or if there are none, which
   * worker_command.h refuses. */
  char *const *words;
  bool command, dashes; /* dashes: "--" preceded them */
  bool old_local_rank;  /* --pass-local-rank is spelled --local_rank, as before PyTorch 2.0 */
  bool python_file;     /* words[0] is a file or folder that Python runs: set by command_is_python_file() */
  char *own_python;     /* of the environment in which the agent is installed: command_own_python(); NULL: of none */
};

/* Fills o. Strings point into argv, env, the cluster and o itself, so o must not be copied. Settings that were not
 * given follow from the site's defaults and the cluster's facts; NULL: there are none. Returns 0, or -EINVAL and a
 * sentence. --help and --version are found even if other words are wrong, and --print-completion even if they do not go
 * together. */
int agent_options_parse(struct agent_options *o, int argc, char *const *argv, char *const *env,
                        const struct cluster *cluster, struct err *e);
extern const struct opts_spec agent_options_spec;
/* Whether --help, --version or --print-completion is among the words: then nothing runs. */
bool agent_options_asks(int argc, char *const *argv);
/* Fills the fields about the words behind the options, after opts_parse. */
void agent_options_take_words(struct agent_options *o, int argc, char *const *argv);
/* The output of --explain: one line "name value" per setting. "  # VARIABLE=value" follows if a variable, a line
 * of agent.conf or a fact of the cluster set it. */
void agent_options_explain(const struct agent_options *o, const struct options_told *told, struct buf *out);
/* For --explain: "  # SOURCE" behind each line whose setting was not typed. */
void options_put_sources(const struct agent_options *o, const struct options_told *told, const struct buf *lines,
                         struct buf *out);
/* "NAME=value" of that name in env, even if the value is empty; NULL: it is not there. */
char *agent_options_variable(char *const *env, const char *name);
/* "NAME=value", shortened and escaped. */
void agent_options_show_variable(const char *variable, struct buf *out);
/* "/etc/rdzv/agent.conf:3" */
void agent_options_show_setting(const struct opts_spec *spec, const struct opts_setting *s, struct buf *out);
void agent_options_settings(const struct agent_options *o, struct settings *s);

/* Reads agent.conf, a site's defaults for all jobs, one "option = value" on a line: the file that RDZV_AGENT_CONF names
 * (empty: none), else that of this installation, which may be missing. *f must be finished in any case. 0, or a negative
 * errno and a sentence that names the file, and the line if it is to blame. */
int site_conf_read(struct opts_file *f, char *const *env, struct err *e);

#endif
