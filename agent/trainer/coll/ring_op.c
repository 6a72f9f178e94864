/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the ring. Segments differ by one element at most. With fewer elements than ranks some are empty,
 * and a cursor skips them. */

#include "agent/trainer/coll/ring_op.h"

/* Bytes [*at, *at + result) of the array are segment i. */
static size_t segment_bytes(const struct ring_op *op, uint32_t i, size_t *at) {
  size_t each = op->n / op->world, more = op->n % op->world;
  *at = (i * each + (i < more ? i : more)) * op->elem_size;
  return (each + (i < more)) * op->elem_size;
}

static uint32_t in_segment(const struct ring_op *op, uint32_t step) {
  return (op->rank + 2 * op->world - step - 1) % op->world;
}

static uint32_t out_segment(const struct ring_op *op, uint32_t step) {
  return (op->rank + 2 * op->world - step) % op->world;
}

/* Moves the cursor past finished and empty segments. */
static void skip_empty_segments(const struct ring_op *op, struct ring_cursor *c,
                                uint32_t (*which)(const struct ring_op *, uint32_t)) {
  size_t at;
  while (c->step < op->steps && c->off == segment_bytes(op, which(op, c->step), &at))
    *c = (struct ring_cursor){c->step + 1, 0};
}

/* The first world-1 steps add. */
struct ring_op ring_all_reduce(void *base, size_t n, enum ring_elem elem, int rank, int world) {
  struct ring_op op = {
      .base = base,
      .n = n,
      .elem = elem,
      .elem_size = elem == RING_F64   ? 8
                   : elem == RING_F32 ? 4
                                      : 1,
      .name = "all-reduce",
      .rank = (uint32_t)rank,
      .world = (uint32_t)world,
      .steps = 2 * ((uint32_t)world - 1),
  };
  size_t at;
  op.lead = segment_bytes(&op, out_segment(&op, 0), &at);
  for (uint32_t k = 0; k < op.steps; k++) {
    op.total_in += segment_bytes(&op, in_segment(&op, k), &at);
    op.total_out += segment_bytes(&op, out_segment(&op, k), &at);
    if (k + 1 == op.world - 1) op.reduce_in = op.total_in;
  }
  skip_empty_segments(&op, &op.in_at, in_segment);
  skip_empty_segments(&op, &op.out_at, out_segment);
  return op;
}

struct ring_op ring_broadcast(void *base, size_t bytes, int root, int rank, int world) {
  struct ring_op op = {
      .base = base,
      .n = bytes,
      .elem = RING_BYTE,
      .elem_size = 1,
      .name = "broadcast",
      .world = 1,
      .steps = 1,
      .total_in = rank == root ? 0 : bytes,
      .total_out = (rank + 1) % world == root ? 0 : bytes,
      .lead = rank == root ? bytes : 0,
  };
  return op;
}

size_t ring_op_in(const struct ring_op *op, uint8_t **at) {
  size_t from, n;
  if (op->in == op->total_in) return 0;
  n = segment_bytes(op, in_segment(op, op->in_at.step), &from);
  *at = op->base + from + op->in_at.off;
  return n - op->in_at.off;
}

void ring_op_stored(struct ring_op *op, size_t n) {
  op->in += n;
  op->in_at.off += n;
  skip_empty_segments(op, &op->in_at, in_segment);
}

void ring_op_add(struct ring_op *op, const void *from, size_t n) {
  uint8_t *at = NULL;
  if (n == 0 || ring_op_in(op, &at) < n) return;
  if (op->elem == RING_F32) {
    float *restrict to = (float *)(void *)at;
    const float *restrict add = from;
    for (size_t i = 0; i < n / 4; i++) to[i] += add[i];
  } else {
    double *restrict to = (double *)(void *)at;
    const double *restrict add = from;
    for (size_t i = 0; i < n / 8; i++) to[i] += add[i];
  }
  ring_op_stored(op, n);
}

size_t ring_op_out(const struct ring_op *op, size_t min, size_t max, const uint8_t **at) {
  size_t from, left, ready = op->lead + op->in - op->out;
  if (op->out == op->total_out) return 0;
  left = segment_bytes(op, out_segment(op, op->out_at.step), &from) - op->out_at.off;
  *at = op->base + from + op->out_at.off;
  if (ready >= left && left <= max) return left;
  size_t n = ready < left ? ready : left;
  if (n > max) n = max;
  n -= n % op->elem_size;
  return n < min ? 0 : n;
}

void ring_op_sent(struct ring_op *op, size_t n) {
  op->out += n;
  op->out_at.off += n;
  skip_empty_segments(op, &op->out_at, out_segment);
}
