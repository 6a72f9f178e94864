/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_NCCL_RAILS_H
#define AGENT_NCCL_RAILS_H

/* One end of an exchange between two nodes over NCCL, on all their GPUs at once: so each rail of the network is used.
 *
 * Each GPU has a thread, and a communicator of two ranks with the same GPU of the other node. What the two say to each
 * other is agent/pairs/exchange.h, in messages of NCCL. The one that connects has the times of each GPU, and reports the
 * slowest. Lines on `out`, for agent/pairs/pairs.c:
 *
 *   ids HEX                       the one that listens: the other end needs them
 *   lacks REASON                  this node cannot do it; nothing has been sent
 *   times GPU BYTES OUT IN TRIP   the one that connects, in bytes and microseconds
 *   failed REASON
 *
 * The process must be killed at the end of the limit: NCCL and CUDA may hang. Whatever it does on GPUs ends with it. */

#include <stdbool.h>
#include <stdint.h>

struct rails_options {
  bool listens;     /* it mints the ids; else they come as a line on stdin */
  int first, gpus;  /* the first of CUDA's devices, and how many at most */
  int64_t bytes;    /* of a message, at most */
  int64_t limit_ms; /* for all of it */
  int out;          /* a descriptor */
};

/* To the end; returns the exit code. The caller must not return from main(): threads may still run. */
int rails_run(const struct rails_options *o);

#endif
