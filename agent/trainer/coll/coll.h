#ifndef AGENT_TRAINER_COLL_H
#define AGENT_TRAINER_COLL_H

/* The second of the trainer's two seams: what ranks do together. coll_local.c is a world of one,
 * coll_tcp.c a ring over TCP; NCCL on a stream of its own fits behind the same functions:
 *
 *  - all_reduce is split. `begin` queues it behind what is queued in `compute` now; `wait` makes what is
 *    queued in compute later see the result. Several may be under way (COLL_TICKETS_MAX); all ranks begin
 *    them in the same order. The span must not be touched in between. On a device neither blocks the host.
 *  - `progress` may be called at any time, cheaply: it moves what can move, and tells of an asynchronous
 *    error.
 *  - The others are small or rare, work on host memory, and return when they are done.
 *
 * Every wait has a deadline. What is told when a rank does not answer, or is gone, or gives up:
 * -ECONNRESET, -ETIMEDOUT or -ECONNABORTED, a sentence that names the rank, and coll->lost. From then on
 * every call gives the same answer. The ring tells its neighbours whom it blames before it goes, so all
 * ranks name the same one. What is wrong with this rank itself, its device or its memory, is -EIO, -ENOMEM, -EBUSY or
 * -ENOTSUP instead, and lost stays -1.
 *
 * The same world gives the same bytes on every run, and every rank ends with identical bytes. */

#include <signal.h>
#include <stdint.h>
#include "agent/trainer/compute/compute.h"

enum { COLL_TICKETS_MAX = 32, COLL_WORLD_MAX = 65536, COLL_SUM_MAX = 256 };

struct coll;

struct coll_ticket {
  uint64_t n;
};

struct coll_ops {
  const char *name;
  void (*destroy)(struct coll *l);
  int (*all_reduce_begin)(struct coll *l, struct compute *c, struct span s, struct coll_ticket *t,
                          struct err *e);
  /* So many of one span, each behind the last, watched as one; NULL: begin and wait for each. */
  int (*all_reduce_row)(struct coll *l, struct compute *c, struct span s, uint64_t times,
                        struct coll_ticket *t, struct err *e);
  int (*wait)(struct coll *l, struct coll_ticket t, struct err *e);
  int (*progress)(struct coll *l, struct err *e);
  int (*sum)(struct coll *l, double *v, size_t n, struct err *e);
  int (*broadcast)(struct coll *l, void *data, size_t n, int root, struct err *e);
  void (*abort)(struct coll *l, const char *why);
  int (*register_buf)(struct coll *l, struct compute *c, struct compute_buf *b,
                      struct err *e); /* may be NULL */
};

/* Implementations embed this first. */
struct coll {
  const struct coll_ops *ops;
  int rank, world;
  int lost; /* the rank that the last failure names, or -1 */
};

/* All-gather of a few bytes before there are connections: rdzv_exchange, or a test's own. */
typedef int (*coll_exchange_fn)(void *ctx, const char *key, const void *mine, size_t size, void *all,
                                int timeout_ms, struct err *e);

struct coll_tcp_config {
  int rank, world;
  uint32_t round;
  const char *node_addr;             /* numeric: where others reach this node */
  uint64_t timeout_ms;               /* without any byte from a rank that is waited for */
  uint64_t stop_wait_ms;             /* the same once *stop is set */
  const volatile sig_atomic_t *stop; /* or NULL */
  coll_exchange_fn exchange;
  void *exchange_ctx;
};

struct coll *coll_local_create(void);
/* Meets the neighbours; at most timeout_ms for each of: the exchange, the connections. */
int coll_tcp_create(const struct coll_tcp_config *cfg, struct coll **out, struct err *e);

/* Says goodbye and closes. NULL is fine. */
static inline void coll_destroy(struct coll *l) {
  if (l) l->ops->destroy(l);
}
static inline int coll_all_reduce_begin(struct coll *l, struct compute *c, struct span s,
                                        struct coll_ticket *t, struct err *e) {
  return l->ops->all_reduce_begin(l, c, s, t, e);
}
static inline int coll_wait(struct coll *l, struct coll_ticket t, struct err *e) {
  return l->ops->wait(l, t, e);
}
static inline int coll_progress(struct coll *l, struct err *e) {
  return l->ops->progress(l, e);
}
/* v[0..n) becomes the sum over ranks; n <= COLL_SUM_MAX. */
static inline int coll_sum(struct coll *l, double *v, size_t n, struct err *e) {
  return l->ops->sum(l, v, n, e);
}
static inline int coll_barrier(struct coll *l, struct err *e) {
  double one = 1;
  return l->ops->sum(l, &one, 1, e);
}
/* Every rank gives the same n; data is root's afterwards. */
static inline int coll_broadcast(struct coll *l, void *data, size_t n, int root, struct err *e) {
  return l->ops->broadcast(l, data, n, root, e);
}
/* All of this buffer will be reduced again and again: collectives may prepare for it. Until coll_destroy. */
static inline int coll_register(struct coll *l, struct compute *c, struct compute_buf *b, struct err *e) {
  return l->ops->register_buf ? l->ops->register_buf(l, c, b, e) : 0;
}
/* This rank gives up: tells the others why, in words, as far as that is possible at once. */
static inline void coll_abort(struct coll *l, const char *why) {
  if (l) l->ops->abort(l, why);
}

#endif
