/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_WATCH_H
#define AGENT_STORE_WATCH_H

/* The likely mistake when no worker connects to the round's store that this agent serves.
 *
 * A script that sets MASTER_PORT itself, or has an init_method of its own, makes PyTorch look for a store where no
 * process serves it. PyTorch retries for half an hour and prints nothing. So the agent looks at its workers' processes
 * after 10 s and then every 30 s, as long as the store is not used, and logs one sentence. Many commands need no store,
 * so only a process counts that has loaded PyTorch and waits as PyTorch does: it sleeps between two attempts.
 *
 * /proc is read in the pool, because a process that hangs in the kernel may block its reader. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>
#include "common/buf.h"

struct store_watch_options {
  uv_loop_t *loop;
  uint32_t count;                           /* local ranks */
  void (*get_pids)(void *ctx, pid_t *pids); /* by local rank; 0: it is dead */
  bool (*is_used)(void *ctx);               /* a worker has connected to the store */
  void *ctx;
};

struct store_watch_round {
  const char *addr; /* MASTER_ADDR and MASTER_PORT, as the agent gave them */
  uint16_t port;
  int64_t world_size, rank_base;
};

struct store_watch;
struct store_watch *store_watch_create(const struct store_watch_options *o);
/* The workers of a round are starting, and its store is served here. round->addr is copied. */
void store_watch_begin(struct store_watch *w, const struct store_watch_round *round);
void store_watch_end(struct store_watch *w);
void store_watch_destroy(struct store_watch *w); /* freed when the loop has closed the handles; NULL is fine */

/* For tests: what a look finds, and what it says. ------------------------------------------------------------------- */

struct store_waiter {
  int64_t rank; /* of the worker that it is or descends from */
  pid_t pid;
  char name[16];
};

/* One look at the workers with these pids and their descendants: how many of them have loaded PyTorch and sleep. *first:
 * the one of the lowest rank. It blocks. */
size_t store_watch_look(const pid_t *pids, uint32_t count, int64_t rank_base, struct store_waiter *first);
/* Appends the sentence, if there is a reason for one. A world of one needs no store, unless its processes are ranks. */
bool store_watch_put(const struct store_watch_round *r, const struct store_waiter *first, size_t n, uint64_t elapsed_ms,
                     struct buf *out);

#endif
