/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_PAIRS_PAIRS_H
#define AGENT_PAIRS_PAIRS_H

/* Answers PAIR: exchanges data with another node, and says how long it took. daemon/job/pairs.c has the order of the messages,
 * exchange.h what the two ends say to each other: over TCP in this process, over NCCL in a helper's (rdzv-nccl pair). Where
 * there is no NCCL, the agent says so: the one that listens goes on over TCP, the other one is asked again.
 *
 * A helper is killed at the end of its time limit, and the answer follows its death: then its GPUs are free.
 *
 * An agent has one exchange at a time. The next PAIR ends the one before, and so does its time limit. Nothing of it blocks. The
 * agent that listens makes the secret, at a port that is open for this exchange alone. A peer that does not show the secret is
 * dropped: at its first wrong byte, or with the exchange. */

#include <uv.h>
#include "proto/msg.h"

enum { PAIRS_PEERS_MAX = 256 /* connections at the port of one exchange that have not shown the secret */ };

struct pairs;

struct pairs_options {
  uv_loop_t *loop;
  char *const *env;         /* of workers, for NCCL; with the next two it must outlive all exchanges */
  const char *nccl_library; /* RDZV_NCCL_LIBRARY; NULL: as the environment has it */
  int64_t first_gpu;        /* of CUDA's devices */
  int (*count_gpus)(void *ctx, struct buf *why); /* that are free for an exchange; 0: none, and why */
  void (*send)(void *ctx, const struct msg *m);  /* PAIRED, to the daemon */
  void *ctx;
};

struct pairs *pairs_create(const struct pairs_options *o);
void pairs_ask(struct pairs *p, const struct pair_msg *ask);
void pairs_stop(struct pairs *p);       /* the connection to the daemon is gone */
void pairs_leave_gpus(struct pairs *p); /* workers are started now */
void pairs_destroy(struct pairs *p);    /* NULL is fine; memory is freed when the loop has closed its handles */

#endif
