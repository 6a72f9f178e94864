#ifndef AGENT_MINTER_H
#define AGENT_MINTER_H

/* Helpers that mint ncclUniqueIds for a round (rdzv-nccl): started, heard, and ended. Decides nothing. */

#include <stdint.h>
#include <uv.h>
#include "agent/supervisor/supervisor.h"

struct minter_options {
  uv_loop_t *loop;
  void (*on_event)(void *ctx,
                   struct supervisor_event *ev); /* SUP_MINTED, SUP_MINT_FAILED; now_ms is not filled */
  void *ctx;
};

struct minter;
struct minter *minter_create(const struct minter_options *o);
/* A helper for `count` ids in this environment (NULL: there is none, it fails). The answer carries round and number; it may come inside
 * the call when it is a failure. */
void minter_start(struct minter *m, uint32_t round, uint32_t number, uint32_t count, char *const *env);
void minter_stop(struct minter *m, uint32_t number); /* it is killed, and nothing more is heard of it */
void minter_destroy(struct minter *m); /* kills all; memory is free when the loop has closed the handles */

#endif
