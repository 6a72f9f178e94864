/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_RUN_SHARD_H
#define AGENT_TRAINER_RUN_SHARD_H

/* --shard-optimizer, for the steps and the state of a run (shard.c). Unless said otherwise, a call needs t->shard.on and
 * the ranks of the round, and all ranks make it at the same place. */

#include "agent/trainer/run/trainer.h"

/* The flat buffers of the model have a multiple of this many floats. Always. */
size_t trainer_flat_unit(const struct trainer *t);
/* The weights of this rank's optimizer; sets t->shard.on. The caller has made the model, and has not joined the ranks. */
size_t trainer_optimizer_size(struct trainer *t);
/* Nothing without shards. */
int trainer_shard_alloc(struct trainer *t, struct err *e);
void trainer_shard_free(struct trainer *t);

/* A step, in this order. `ready`: all gradients from `at` on are queued. */
void trainer_shard_begin(struct trainer *t);
int trainer_shard_ready(struct trainer *t, size_t at, struct err *e);
int trainer_shard_await_sums(struct trainer *t, struct err *e);
int trainer_shard_vote(struct trainer *t, struct err *e);
/* counters: stage, as in struct compute_update. */
int trainer_shard_update(struct trainer *t, struct span counters, struct err *e);
int trainer_shard_await_weights(struct trainer *t, struct err *e);

/* Queues the gathering of state i of all weights, and copies it to to[to_at ...]. to NULL: only takes part. */
int trainer_shard_gather(struct trainer *t, int state, struct compute_buf *to, size_t to_at, struct err *e);
/* Queues the copy of this rank's share of state i from a whole one. */
int trainer_shard_scatter(struct trainer *t, int state, struct span from, struct err *e);

#endif
