/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_COLL_RING_OP_H
#define AGENT_TRAINER_COLL_RING_OP_H

/* One collective on a ring, as two streams of bytes: from the rank before, and to the rank behind. The progress of the
 * input decides what may be sent. Pure; tcp.c moves the bytes.
 *
 * All-reduce: the array is cut into `world` segments. In step k a rank receives segment rank-k-1 and sends segment
 * rank-k (modulo world), so it sends in step k+1 what it received in step k. After world-1 steps each segment has been
 * summed once around the ring, and after world-1 more every rank has every sum. Each rank sends 2 (world-1)/world of
 * the array, which is the least possible. Sums are made in the ring's order and then copied, so all ranks have the same
 * bytes.
 *
 * Broadcast: one step. Every rank but the last forwards what comes from the root. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ring_elem { RING_BYTE, RING_F32, RING_F64 };

struct ring_cursor {
  uint32_t step;
  size_t off; /* finished bytes of the step's segment */
};

struct ring_op {
  uint8_t *base;
  size_t n; /* elements */
  enum ring_elem elem;
  size_t elem_size;
  const char *name;            /* for messages */
  uint32_t rank, world, steps; /* broadcast: world is 1 here, so there is one segment */
  size_t total_in, total_out;  /* bytes */
  size_t reduce_in;            /* of total_in: these are added, the rest is copied */
  size_t lead;                 /* bytes that may be sent before any input */
  size_t in, out;              /* finished bytes */
  struct ring_cursor in_at, out_at;
};

struct ring_op ring_all_reduce(void *base, size_t n, enum ring_elem elem, int rank, int world);
struct ring_op ring_broadcast(void *base, size_t bytes, int root, int rank, int world);
static inline bool ring_op_done(const struct ring_op *op) {
  return op->in == op->total_in && op->out == op->total_out;
}
/* Where the next input goes, and how many bytes in a row; 0: all input is there. */
size_t ring_op_in(const struct ring_op *op, uint8_t **at);
static inline bool ring_op_reduces(const struct ring_op *op) {
  return op->in < op->reduce_in;
}
/* n <= ring_op_in bytes were stored there. With ring_op_reduces, `n` bytes at `from`, whole elements, are added
 * instead. */
void ring_op_stored(struct ring_op *op, size_t n);
void ring_op_add(struct ring_op *op, const void *from, size_t n);
/* The bytes that may be sent now: at most `max` bytes in a row, whole elements; 0: nothing. Pieces shorter than `min`
 * occur only at the end of a segment. */
size_t ring_op_out(const struct ring_op *op, size_t min, size_t max, const uint8_t **at);
void ring_op_sent(struct ring_op *op, size_t n);

#endif
