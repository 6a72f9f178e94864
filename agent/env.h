#ifndef AGENT_ENV_H
#define AGENT_ENV_H

/* From a node's place in a round to the environment of one of its workers. Pure. */

#include <stdint.h>
#include "proto/msg.h"

struct env_job {
  const char *run_id; /* RDZV_RUN_ID */
  const char *socket; /* RDZV_AGENT_SOCKET: where librdzv finds this agent */
  int64_t workers;    /* on this node */
  const char
      *error_file; /* TORCHELASTIC_ERROR_FILE: where the worker may say why it fails; "" or NULL: nowhere */
};

/* `base` (NULL-terminated "NAME=value"), without the agent's own options and without what is set here, then:
 *
 *   RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE NODE_RANK      as under torchrun
 *   TORCHELASTIC_ERROR_FILE
 *   RDZV_ROUND RDZV_RESTART_COUNT RDZV_RUN_ID RDZV_HEAD_ADDR RDZV_AGENT_SOCKET              ours
 *
 * Every name of ours stands in it once. The result is the caller's to env_destroy; its strings do not borrow
 * from base. */
char **env_create(char *const *base, const struct start *start, const struct env_job *job,
                  uint32_t local_rank);
void env_destroy(char **env);

#endif
