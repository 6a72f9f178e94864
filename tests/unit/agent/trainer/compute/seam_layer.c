/* SPDX-License-Identifier: Apache-2.0 */
/* compute_forward and the two halves of a backward pass against sums in double of the same rounded operands. Shapes: no rows, one row,
 * widths of one and not a multiple of 4 or 8, and some large ones; weights in the middle of the flat buffers, at odd
 * offsets. */

#include "tests/unit/agent/trainer/compute/seam.h"

#include <math.h>
#include <string.h>

struct shape {
  size_t rows, in, out;
  bool first; /* the input is COMPUTE_INPUT, and no gradient of it is wanted */
  bool relu;
};

static const struct shape shapes[] = {
    {1, 1, 1, true, false},        {0, 5, 3, false, true},      {0, 8, 16, true, true},
    {1, 7, 13, false, true},       {7, 13, 5, false, false},    {5, 3, 1, false, false},
    {33, 1, 9, false, true},       {50, 30, 10, true, true},    {64, 64, 64, false, true},
    {128, 72, 40, false, false},   {50, 1000, 100, true, true}, {50, 100, 1000, false, false},
    {300, 37, 129, false, true},   {1, 784, 128, true, true},   {16, 1000, 100, true, true},
    {16, 100, 1000, false, false}, {33, 40, 24, true, false},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct bench {
  struct shape s;
  struct compute_layer_desc d;
  struct compute_layer *l;
  struct field params, grads, x, y, dz, dx;
};

static void bench_open(struct bench *b, const struct shape *s, size_t at, size_t max_rows) {
  struct err e = ERR_INIT;
  size_t w = s->in * s->out, n = at + w + s->out;
  *b = (struct bench){.s = *s};
  b->d = (struct compute_layer_desc){.in = (uint32_t)s->in,
                                     .out = (uint32_t)s->out,
                                     .first = s->first,
                                     .relu = s->relu,
                                     .weight = at,
                                     .bias = at + w,
                                     .max_rows = max_rows};
  field_make(&b->params, COMPUTE_PARAM, n, 0);
  field_make(&b->grads, COMPUTE_GRAD, n, 0);
  field_make(&b->x, s->first ? COMPUTE_INPUT : COMPUTE_ACT, s->rows * s->in, 0);
  field_make(&b->y, COMPUTE_ACT, s->rows * s->out, 0);
  field_make(&b->dz, COMPUTE_ACT, s->rows * s->out, 0);
  field_make(&b->dx, COMPUTE_ACT, s->rows * s->in, 0);
  field_random(&b->params, 0.5f);
  for (size_t i = 0; i < b->x.s.n; i++) {
    float v = random_unit();
    b->x.v[i] = s->first || v > 0 ? v : 0.0f;
  }
  field_put(&b->x);
  field_random(&b->dz, 1);
  good(compute_layer_create(seam.c, &b->d, &b->l, &e), &e);
}

static void bench_close(struct bench *b) {
  struct field *all[] = {&b->params, &b->grads, &b->x, &b->y, &b->dz, &b->dx};
  compute_layer_destroy(seam.c, b->l);
  for (size_t i = 0; i < 6; i++) field_drop(all[i]);
}

/* As a matrix product reads it. */
static double operand(float v) {
  return rounded((double)v);
}

static void check_forward(struct bench *b) {
  struct err e = ERR_INIT;
  good(compute_forward(seam.c, b->l, b->params.buf, b->x.s, b->y.s, b->s.rows, &e), &e);
  field_get(&b->y);
  for (size_t r = 0; r < b->s.rows; r++)
    for (size_t o = 0; o < b->s.out; o++) {
      const float *w = b->params.v + b->d.weight + o * b->s.in, *x = b->x.v + r * b->s.in;
      double bias = (double)b->params.v[b->d.bias + o], sum = bias, mass = fabs(bias);
      for (size_t i = 0; i < b->s.in; i++) {
        double term = operand(x[i]) * operand(w[i]);
        sum += term;
        mass += fabs(term);
      }
      /* The bias may be read in the precision as well. */
      if (seam.p >= COMPUTE_BF16) mass += fabs(bias - operand((float)bias)) / SEAM_SUM;
      double want = b->s.relu && sum < 0 ? 0.0 : sum;
      expect_sum((double)b->y.v[r * b->s.out + o], want, mass, true, "y", r * b->s.out + o);
    }
}

static void check_weight_grad(struct bench *b) {
  for (size_t o = 0; o < b->s.out; o++)
    for (size_t i = 0; i <= b->s.in; i++) { /* i == in: the bias */
      size_t at = i < b->s.in ? b->d.weight + o * b->s.in + i : b->d.bias + o;
      double sum = 0, mass = 0;
      for (size_t r = 0; r < b->s.rows; r++) {
        double term = operand(b->dz.v[r * b->s.out + o]);
        if (i < b->s.in) term *= operand(b->x.v[r * b->s.in + i]);
        sum += term;
        mass += fabs(term);
      }
      expect_sum((double)b->grads.v[at], sum, mass, false, i < b->s.in ? "dw" : "db", at);
    }
  for (size_t i = 0; i < b->d.weight; i++)
    assert_true(isnan(b->grads.v[i])); /* not written, because other layers own it */
}

static void check_input_grad(struct bench *b) {
  field_get(&b->dx);
  for (size_t r = 0; r < b->s.rows; r++)
    for (size_t i = 0; i < b->s.in; i++) {
      double sum = 0, mass = 0;
      for (size_t o = 0; o < b->s.out; o++) {
        double term = operand(b->dz.v[r * b->s.out + o]) * operand(b->params.v[b->d.weight + o * b->s.in + i]);
        sum += term;
        mass += fabs(term);
      }
      bool shut = !(b->x.v[r * b->s.in + i] > 0);
      expect_sum((double)b->dx.v[r * b->s.in + i], shut ? 0.0 : sum, shut ? 0.0 : mass, true, "dx", r * b->s.in + i);
    }
}

/* The gradient of the weights in so many parts, from the last outputs to the first. */
static void backward_weight_in(struct bench *b, size_t parts) {
  struct err e = ERR_INIT;
  size_t step = (b->s.out + parts - 1) / parts;
  for (size_t end = b->s.out, from; end > 0; end = from) {
    from = (end - 1) / step * step;
    struct compute_part part = {from, end - from};
    good(compute_backward_weight(seam.c, b->l, b->grads.buf, b->x.s, b->dz.s, part, b->s.rows, &e), &e);
  }
}

static void check_backward(struct bench *b, size_t parts) {
  struct err e = ERR_INIT;
  field_fill_nan(&b->grads);
  field_fill_nan(&b->dx);
  backward_weight_in(b, parts);
  if (!b->s.first)
    good(compute_backward_input(seam.c, b->l, b->params.buf, b->x.s, b->dz.s, b->dx.s, b->s.rows, &e), &e);
  field_get(&b->grads);
  check_weight_grad(b);
  if (!b->s.first) check_input_grad(b);
  field_get(&b->x); /* inputs stay */
}

UNIT_TEST(test_layers_of_many_shapes) {
  for (size_t i = 0; i < SHAPES; i++) {
    struct bench b;
    bench_open(&b, &shapes[i], i % 2 ? 2 * i + 1 : 0, shapes[i].rows + i % 3 + (shapes[i].rows == 0));
    check_forward(&b);
    check_backward(&b, 1 + i % 3);
    check_backward(&b, 1 + (i / 3 + 1) % 3);
    bench_close(&b);
  }
}

/* One layer, batches of changing size, as at the end of an epoch. */
UNIT_TEST(test_rows_change) {
  static const size_t rows[] = {17, 3, 0, 17, 1, 16};
  struct shape s = {17, 12, 11, false, true};
  struct bench one, b;
  bench_open(&one, &s, 3, 17);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    s.rows = rows[i];
    bench_open(&b, &s, 3, 17);
    struct compute_layer *own = b.l;
    b.l = one.l;
    check_forward(&b);
    check_backward(&b, 1 + i % 3);
    b.l = own;
    bench_close(&b);
  }
  bench_close(&one);
}

UNIT_TEST(test_a_weight_that_is_written_is_read) {
  struct shape s = {4, 9, 6, true, false};
  struct bench b;
  bench_open(&b, &s, 0, 4);
  check_forward(&b);
  field_random(&b.params, 2); /* by copy: also updates the copy in the precision */
  check_forward(&b);
  bench_close(&b);
}

/* Only in its own row. A ReLU may turn it into 0, as the maximum of a NaN and 0 on a GPU; a layer without one may
 * not. */
UNIT_TEST(test_a_nan_stays_in_its_row) {
  for (int relu = 0; relu < 2; relu++) {
    struct err e = ERR_INIT;
    struct shape s = {3, 4, 5, false, relu};
    struct bench b;
    int nans = 0;
    bench_open(&b, &s, 0, 3);
    b.x.v[4] = NAN; /* row 1 */
    field_put(&b.x);
    good(compute_forward(seam.c, b.l, b.params.buf, b.x.s, b.y.s, 3, &e), &e);
    field_get(&b.y);
    for (size_t i = 0; i < 15; i++) {
      if (i / 5 != 1) assert_false(isnan(b.y.v[i]));
      nans += isnan(b.y.v[i]) != 0;
    }
    assert_true(nans == 5 || (relu && nans == 0));
    bench_close(&b);
  }
}
