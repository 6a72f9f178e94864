#ifndef AGENT_ENV_H
#define AGENT_ENV_H

/* From a node's place in a round to the environment of one of its workers. Pure. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"
#include "proto/msg.h"

struct env_job {
  const char *run_id; /* RDZV_RUN_ID, TORCHELASTIC_RUN_ID */
  const char *socket; /* RDZV_AGENT_SOCKET: where librdzv finds this agent */
  int64_t workers;    /* of this agent */
  int64_t
      first; /* of their numbers in LOCAL_RANK; not 0 where several agents of this host share what they see */
  int64_t local_world;     /* LOCAL_WORLD_SIZE: the workers of all of those; 0: `workers` */
  int64_t max_restarts;    /* of the job */
  const char *role;        /* ROLE_NAME; NULL: "default". */
  const char *device_uuid; /* of this worker's device; NULL: not known */
  const char *error_file;  /* of this worker: where it says what it failed of; NULL: nowhere */
  bool worker_store;       /* rank 0 serves the store, not this agent */
  bool virtual_local_rank; /* LOCAL_RANK 0 for all, each sees its own device alone */
  int devices; /* not 0: of so many, each sees its own alone, and LOCAL_RANK is as ever: rdzv-trainer */
  const char *nccl_library; /* RDZV_NCCL_LIBRARY; NULL: as inherited */
  bool mpi_env;             /* OMPI_COMM_WORLD_* even where they are not inherited */
  uint64_t signals;         /* bit n: signal n is passed on to workers */
  int64_t end_time; /* RDZV_END_TIME: when the scheduler ends the job, seconds since 1970; 0: not known */
  int64_t scheduler_restarts; /* RDZV_SCHEDULER_RESTARTS; -1: not known */
};

/* `base` (NULL-terminated "NAME=value"), without the agent's own options and without what is set here, then the
 * variables of the list in env.c. Every name of ours stands in it once. The result is the caller's to env_destroy;
 * its strings do not borrow from base. */
char **env_create(char *const *base, const struct start *start, const struct env_job *job,
                  uint32_t local_rank);
void env_destroy(char **env);

/* What a worker is told, for the manual: in the order of the list in env.c, ended by a name of NULL. `text` has options and
 * names between backquotes. */
struct env_text {
  const char *name, *text;
};
extern const struct env_text env_texts[];

/* Before the first round: -EINVAL and a sentence where workers cannot be given what was asked for
 * (virtual_local_rank, and CUDA_VISIBLE_DEVICES names fewer devices than there are workers). */
int env_check(char *const *base, const struct env_job *job, struct err *e);
/* Whether workers are given OMP_NUM_THREADS=1: several of them, and nothing inherited. */
bool env_limits_threads(char *const *base, int64_t workers);

/* "SIGTERM,SIGINT": torchrun's four first, in its order. */
void env_signal_names(uint64_t signals, struct buf *out);

#endif
