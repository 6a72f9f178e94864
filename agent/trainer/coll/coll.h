/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_COLL_COLL_H
#define AGENT_TRAINER_COLL_COLL_H

/* Collectives of the ranks: the second of the trainer's two seams (the first is compute.h). local.c is a world of one,
 * tcp.c a ring over TCP. NCCL on a stream of its own (gpu/) fits behind the same functions:
 *
 *  - all_reduce is split. `begin` queues it behind the operations queued in `compute`. `wait` lets operations queued
 *    later in compute see the result. Up to COLL_TICKETS_MAX may be in progress, and all ranks begin them in the same
 *    order. Do not touch the span in between. On a device neither call blocks the host.
 *  - `progress` may be called at any time and is cheap: it moves what can move, and reports an asynchronous error.
 *  - The others are small or rare, work on host memory, and return when they are done.
 *
 * Every wait has a deadline. If a rank does not respond, is gone, or gives up, the call returns -ECONNRESET, -ETIMEDOUT
 * or -ECONNABORTED, with a message that names the rank, and sets coll->lost. A failing rank first sends its neighbours
 * the rank it blames, so all ranks name the same one. An error of this rank's own device or memory is -EIO, -ENOMEM,
 * -EBUSY or -ENOTSUP, and lost stays -1. A rank whose agent wants it to leave fails with the code of coll_asked_fn. Every
 * later call returns the same.
 *
 * The same world gives the same bytes on every run, and every rank ends with identical bytes. */

#include <signal.h>
#include <stdint.h>
#include "agent/trainer/compute/compute.h"

enum {
  COLL_TICKETS_MAX = 32,
  COLL_WORLD_MAX = 65536,
  COLL_SUM_MAX = 256,
  COLL_ASK_MS = 10 /* a rank that waits asks its agent this often */
};

struct coll;

struct coll_ticket {
  uint64_t n;
};

struct coll_ops {
  const char *name;
  void (*destroy)(struct coll *l);
  int (*all_reduce_begin)(struct coll *l, struct compute *c, struct span s, struct coll_ticket *t, struct err *e);
  /* `times` all-reduces of one span, each behind the last, watched as one. NULL: begin and wait for each. */
  int (*all_reduce_row)(struct coll *l, struct compute *c, struct span s, uint64_t times, struct coll_ticket *t,
                        struct err *e);
  int (*wait)(struct coll *l, struct coll_ticket t, struct err *e);
  int (*progress)(struct coll *l, struct err *e);
  /* v[0..n) becomes the sum over ranks; n <= COLL_SUM_MAX. */
  int (*sum)(struct coll *l, double *v, size_t n, struct err *e);
  /* Every rank passes the same n. Afterwards data equals root's. */
  int (*broadcast)(struct coll *l, void *data, size_t n, int root, struct err *e);
  void (*abort)(struct coll *l, const char *why);
  void (*cut)(struct coll *l);                                   /* may be NULL */
  int (*twin)(struct coll *l, struct coll **out, struct err *e); /* may be NULL */
};

/* Implementations embed this as their first member. */
struct coll {
  const struct coll_ops *ops;
  int rank, world;
  int lost; /* the rank that the last failure names, or -1 */
};

/* Gathers a few bytes of each rank on all ranks, before there are connections: rdzv_exchange, or a test's own. `all`
 * has room for `size` bytes of each rank. */
typedef int (*coll_exchange_fn)(void *ctx, const char *key, const void *mine, size_t size, void *all, int timeout_ms,
                                struct err *e);

/* Whether the agent wants this rank to leave. 0: it may go on. -ECANCELED: the agent ends the round. -EPIPE: the agent
 * is gone. Every wait calls it every COLL_ASK_MS. The collective then fails with that code and tells the others, and
 * coll->lost stays -1. Never blocks. */
typedef int (*coll_asked_fn)(void *ctx, struct err *e);

/* What the ranks of a round agree on, and what a wait of theirs watches. */
struct coll_config {
  int rank, world;
  uint32_t round;
  const char *node_addr; /* TCP; numeric: the address at which others reach this node */
  uint64_t timeout_ms;   /* to form the connections, and then, how long a rank may do nothing while others wait */
  uint64_t stop_wait_ms; /* the same once *stop is set */
  const volatile sig_atomic_t *stop; /* or NULL */
  coll_exchange_fn exchange;         /* called once by all ranks, before there are connections */
  void *exchange_ctx;
  coll_asked_fn asked; /* or NULL */
  void *asked_ctx;
};

/* When a wait that began at since_ms is late. A request to stop leaves it less time. *stop_seen_ms: when it was first
 * seen; 0 before. */
static inline uint64_t coll_deadline(const struct coll_config *cfg, uint64_t since_ms, uint64_t now_ms,
                                     uint64_t *stop_seen_ms) {
  uint64_t at = since_ms + cfg->timeout_ms;
  if (!cfg->stop || !*cfg->stop) return at;
  if (!*stop_seen_ms) *stop_seen_ms = now_ms;
  uint64_t from = *stop_seen_ms > since_ms ? *stop_seen_ms : since_ms;
  return from + cfg->stop_wait_ms < at ? from + cfg->stop_wait_ms : at;
}
/* Asks the agent, if it was not asked in the last COLL_ASK_MS. */
static inline int coll_asked(const struct coll_config *cfg, uint64_t now_ms, uint64_t *asked_ms, struct err *why) {
  if (!cfg->asked || now_ms - *asked_ms < COLL_ASK_MS) return 0;
  *asked_ms = now_ms;
  return cfg->asked(cfg->asked_ctx, why);
}

struct coll *coll_local_create(void);
/* Connects the neighbours. The exchange and the connections each take timeout_ms at most. */
int coll_tcp_create(const struct coll_config *cfg, struct coll **out, struct err *e);

/* The operations, by their names in coll_ops. */
#define coll_all_reduce_begin(l, ...) (l)->ops->all_reduce_begin((l), __VA_ARGS__)
#define coll_wait(l, ...)             (l)->ops->wait((l), __VA_ARGS__)
#define coll_progress(l, ...)         (l)->ops->progress((l), __VA_ARGS__)
#define coll_sum(l, ...)              (l)->ops->sum((l), __VA_ARGS__)
#define coll_broadcast(l, ...)        (l)->ops->broadcast((l), __VA_ARGS__)

/* Says BYE and closes. After coll_abort or a failure on a device: see coll_cut. NULL is fine. */
static inline void coll_destroy(struct coll *l) {
  if (l) l->ops->destroy(l);
}
static inline int coll_barrier(struct coll *l, struct err *e) {
  double one = 1;
  return l->ops->sum(l, &one, 1, e);
}
/* Other collectives of the same ranks on the same device, on which calls can be tried. All ranks call it. A failure of
 * the twin blocks no updates and leaves `l` as it is. A rank that could not make its twin reports that to the others. The
 * caller queues no work meanwhile. It destroys the twin before `l`, when no rank uses it, and waits for no other rank.
 * *out is NULL where `l` itself can take the calls. */
static inline int coll_twin(struct coll *l, struct coll **out, struct err *e) {
  *out = NULL;
  return l->ops->twin ? l->ops->twin(l, out, e) : 0;
}
/* This rank gives up: sends the others the reason, as far as that is possible at once. On a device its updates are
 * blocked, and what is queued goes on: the others may be in the same collective. */
static inline void coll_abort(struct coll *l, const char *why) {
  if (l) l->ops->abort(l, why);
}
/* After coll_abort or a failure, when every other rank is dead, or has failed too and uses these collectives no more:
 * what is queued on the device ends, with any result. Then wait for the queue, destroy captured graphs, and call
 * coll_destroy. Without it coll_destroy leaves the device as it is, and the process should end by _exit. */
static inline void coll_cut(struct coll *l) {
  if (l && l->ops->cut) l->ops->cut(l);
}

#endif
