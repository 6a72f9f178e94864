/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_NCCL_ID_HELPERS_H
#define AGENT_NCCL_ID_HELPERS_H

/* Helpers that create ncclUniqueIds for a round (rdzv-nccl): starts them, reads them, ends them. Decides nothing. */

#include <stdint.h>
#include <uv.h>
#include "agent/supervisor/supervisor.h"

/* Zero but for the first three, which its owner sets. */
struct id_helpers {
  uv_loop_t *loop;
  void (*on_event)(void *ctx, struct supervisor_event *ev); /* SUP_MINTED, SUP_MINT_FAILED; now_ms is not filled */
  void *ctx;
  struct minting *first;
};

/* Starts a helper for `count` ids in this environment (NULL: it fails). The answer has round and number; a failure may
 * come inside the call. */
void id_helpers_start(struct id_helpers *m, uint32_t round, uint32_t number, uint32_t count, char *const *env);
void id_helpers_stop(struct id_helpers *m, uint32_t number); /* kills it; no event follows */
void id_helpers_stop_all(struct id_helpers *m);              /* memory is freed when the loop has closed the handles */

#endif
