/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_WORKERS_ENV_H
#define AGENT_WORKERS_ENV_H

/* From a node's place in a round to the environment of one of its workers. Pure. */

#include <stdbool.h>
#include <stdint.h>
#include "agent/devices/devices.h"
#include "common/buf.h"
#include "proto/msg.h"

struct env_job {
  const char *run_id; /* RDZV_RUN_ID, TORCHELASTIC_RUN_ID */
  const char *socket; /* RDZV_AGENT_SOCKET: where librdzv finds this agent */
  int64_t workers;    /* of this agent */
  int64_t first; /* the LOCAL_RANK of the first of them; not 0 where several agents of this host see the same devices */
  int64_t local_world;        /* LOCAL_WORLD_SIZE: the workers of all those agents; 0: `workers` */
  bool shares_host;           /* other agents of the job run on it */
  int64_t max_restarts;       /* of the job */
  const char *role;           /* ROLE_NAME; NULL: "default". */
  const char *device_uuid;    /* of this worker's device; NULL: not known */
  const struct device *alone; /* the one device that this worker sees; NULL: all, as inherited */
  const char *error_file;     /* of this worker; NULL: none */
  const char *ras_addr;       /* NCCL_RAS_ADDR unless it is inherited; NULL: none */
  const char *profiler;       /* NCCL_PROFILER_PLUGIN unless it is inherited; NULL: none */
  bool worker_store;          /* rank 0 serves the store, not this agent */
  bool virtual_local_rank;    /* LOCAL_RANK is 0 for all */
  const char *nccl_library;   /* RDZV_NCCL_LIBRARY; NULL: as inherited */
  bool mpi_env;               /* OMPI_COMM_WORLD_* even where they are not inherited */
  uint64_t signals;           /* bit n: signal n is passed on to workers */
  int64_t end_time;           /* RDZV_END_TIME: when the scheduler ends the job, seconds since 1970; 0: not known */
  int64_t scheduler_restarts; /* RDZV_SCHEDULER_RESTARTS; -1: not known */
};

/* The variables of the list in env.c, then `base` (NULL-terminated "NAME=value") without them and without the agent's
 * own options. Each of our names occurs once. The caller frees the result with env_destroy; its strings do not
 * borrow from base. */
char **env_create(char *const *base, const struct start *start, const struct env_job *job, uint32_t local_rank);
/* What all workers have in all rounds: `base` without the variables of the list, and OMP_NUM_THREADS as env_create has it.
 * For the template. env_destroy frees it. */
char **env_create_common(char *const *base, int64_t workers);
void env_destroy(char **env);

/* The variables, for the manual: in the order of the list in env.c, ended by a name of NULL. `text` has options and
 * names between backquotes. */
struct env_text {
  const char *name, *text;
};
extern const struct env_text env_texts[];

/* Whether workers get OMP_NUM_THREADS=1: several of them, and none inherited. */
bool env_limits_threads(char *const *base, int64_t workers);

/* "SIGTERM,SIGINT": torchrun's four first, in its order. */
void env_signal_names(uint64_t signals, struct buf *out);

#endif
