/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_NCCL_MINTER_H
#define AGENT_NCCL_MINTER_H

/* Helpers that create ncclUniqueIds for a round (rdzv-nccl): starts them, reads them, ends them. Decides nothing. */

#include <stdint.h>
#include <uv.h>
#include "agent/supervisor/supervisor.h"

struct minter_options {
  uv_loop_t *loop;
  void (*on_event)(void *ctx, struct supervisor_event *ev); /* SUP_MINTED, SUP_MINT_FAILED; now_ms is not filled */
  void *ctx;
};

struct minter;
struct minter *minter_create(const struct minter_options *o);
/* Starts a helper for `count` ids in this environment (NULL: it fails). The answer has round and number; a failure may
 * come inside the call. */
void minter_start(struct minter *m, uint32_t round, uint32_t number, uint32_t count, char *const *env);
void minter_stop(struct minter *m, uint32_t number); /* kills it; no event follows */
void minter_destroy(struct minter *m); /* kills all; memory is freed when the loop has closed the handles */

#endif
