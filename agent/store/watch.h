/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_WATCH_H
#define AGENT_STORE_WATCH_H

/* Looks at the workers' processes while no worker has connected to the round's store that this agent serves, and logs
 * the hint of agent/store/hint.h. /proc is read in the pool, because a process that hangs in the kernel may block its
 * reader. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>
#include "agent/store/hint.h"

struct store_watch_options {
  uv_loop_t *loop;
  uint32_t count;                           /* local ranks */
  void (*get_pids)(void *ctx, pid_t *pids); /* by local rank; 0: it is dead */
  bool (*is_used)(void *ctx);               /* a worker has connected to the store */
  void *ctx;
};

struct store_watch;
struct store_watch *store_watch_create(const struct store_watch_options *o);
/* The workers of a round are starting, and its store is served here. given->addr is copied. */
void store_watch_begin(struct store_watch *w, const struct store_hint_given *given, int64_t rank_base);
void store_watch_end(struct store_watch *w);
void store_watch_destroy(struct store_watch *w); /* freed when the loop has closed the handles; NULL is fine */

/* One look at the workers with these pids and their descendants. It blocks: for the pool, and for tests. The caller
 * frees out->v. */
void store_watch_look(const pid_t *pids, uint32_t count, int64_t rank_base, struct store_hint_look *out);

#endif
