/* SPDX-License-Identifier: Apache-2.0 */
/* compute_loss. The gradient is stored in the precision; the loss is always a float. */

#include "tests/unit/agent/trainer/compute/seam.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define LOSS_REL 2e-5

struct bench {
  struct compute_loss_desc d;
  struct field y, t, dz, out;
};

static void bench_open(struct bench *b, enum compute_loss kind, size_t rows, size_t cols, float spread) {
  bool classes = kind == COMPUTE_CROSS_ENTROPY;
  *b = (struct bench){.d = {.kind = kind, .rows = rows, .cols = cols, .weight = 0.375, .rank_tag = 4}};
  field_make(&b->y, COMPUTE_ACT, rows * cols, 0);
  field_make(&b->t, COMPUTE_INPUT, classes ? rows : rows * cols, 0);
  field_make(&b->dz, COMPUTE_ACT, rows * cols, 0);
  field_make(&b->out, COMPUTE_GRAD, COMPUTE_LOSS_OUT, 9);
  field_random(&b->y, spread);
  for (size_t i = 0; i < b->t.s.n; i++) b->t.v[i] = classes ? (float)((i * 7 + 3) % cols) : random_unit();
  field_put(&b->t);
}

static void bench_close(struct bench *b) {
  field_drop(&b->y);
  field_drop(&b->t);
  field_drop(&b->dz);
  field_drop(&b->out);
}

/* The loss without its weight; g, where not NULL: its gradient. */
static double squared(const struct bench *b, double *g) {
  size_t n = b->d.rows * b->d.cols;
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += pow((double)b->y.v[i] - (double)b->t.v[i], 2);
  double mean = sum / (double)n, root = sqrt(mean);
  for (size_t i = 0; g && i < n; i++) {
    double d = (double)b->y.v[i] - (double)b->t.v[i];
    if (b->d.kind == COMPUTE_RMSE)
      g[i] = root > 0 ? d / ((double)n * root) : 0;
    else
      g[i] = 2 * d / (double)n;
  }
  return b->d.kind == COMPUTE_RMSE ? root : mean;
}

static double cross_entropy(const struct bench *b, double *g) {
  double loss = 0;
  for (size_t r = 0; r < b->d.rows; r++) {
    const float *y = b->y.v + r * b->d.cols;
    size_t class = (size_t)b->t.v[r];
    double top = (double)y[0], sum = 0;
    for (size_t j = 1; j < b->d.cols; j++) top = fmax(top, (double)y[j]);
    for (size_t j = 0; j < b->d.cols; j++) sum += exp((double)y[j] - top);
    loss += log(sum) + top - (double)y[class];
    for (size_t j = 0; g && j < b->d.cols; j++)
      g[r * b->d.cols + j] = (exp((double)y[j] - top) / sum - (j == class)) / (double)b->d.rows;
  }
  return loss / (double)b->d.rows;
}

static double reference(const struct bench *b, double *g) {
  if (b->d.rows == 0) return 0;
  return b->d.kind == COMPUTE_CROSS_ENTROPY ? cross_entropy(b, g) : squared(b, g);
}

static void check(struct bench *b) {
  struct err e = ERR_INIT;
  size_t n = b->d.rows * b->d.cols;
  double *g = test_calloc(n + 1, sizeof *g), largest = 0;
  field_fill_nan(&b->dz);
  good(compute_loss(seam.c, &b->d, b->y.s, b->t.s, b->dz.s, b->out.s, &e), &e);
  field_get(&b->out);
  expect_near((double)b->out.v[0], b->d.weight * reference(b, g), LOSS_REL, 1e-7, "loss", 0);
  assert_true(b->out.v[1] == 0 && b->out.v[2] == 0);
  field_get(&b->dz);
  for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(g[i]));
  for (size_t i = 0; i < n; i++) {
    double grad = g[i] * b->d.weight;
    expect_near((double)b->dz.v[i], grad, seam.out + LOSS_REL, LOSS_REL * largest * b->d.weight + 1e-37, "dz", i);
  }
  field_get(&b->y);
  field_get(&b->t);
  test_free(g);
}

UNIT_TEST(test_losses_of_many_shapes) {
  static const size_t shapes[][2] = {{1, 1}, {1, 2}, {3, 1}, {7, 5}, {50, 10}, {64, 64}, {33, 1001}, {257, 37}, {0, 4}};
  for (enum compute_loss kind = COMPUTE_MSE; kind <= COMPUTE_CROSS_ENTROPY; kind++)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
      struct bench b;
      bench_open(&b, kind, shapes[i][0], shapes[i][1], 2);
      check(&b);
      b.d.weight = 1;
      check(&b);
      bench_close(&b);
    }
}

/* Hundreds apart: exp of it does not fit a float, and the row's sum is one term. */
UNIT_TEST(test_far_logits) {
  struct bench b;
  bench_open(&b, COMPUTE_CROSS_ENTROPY, 20, 30, 500);
  check(&b);
  bench_close(&b);
}

UNIT_TEST(test_a_loss_of_zero) {
  for (enum compute_loss kind = COMPUTE_MSE; kind <= COMPUTE_RMSE; kind++) {
    struct bench b;
    bench_open(&b, kind, 9, 7, 1);
    memcpy(b.t.v, b.y.v, 63 * sizeof(float));
    field_put(&b.t);
    check(&b); /* the gradient of a root at 0 is 0 here, not NaN */
    assert_true(b.out.v[0] == 0.0f);
    bench_close(&b);
  }
}

UNIT_TEST(test_a_loss_that_is_no_number) {
  static const float bad[] = {NAN, INFINITY, -INFINITY};
  for (enum compute_loss kind = COMPUTE_MSE; kind <= COMPUTE_CROSS_ENTROPY; kind++)
    for (size_t i = 0; i < 3; i++) {
      struct err e = ERR_INIT;
      struct bench b;
      bench_open(&b, kind, 6, 5, 1);
      b.y.v[17] = bad[i];
      if (kind == COMPUTE_CROSS_ENTROPY) b.t.v[3] = bad[i] > 0 ? 0 : 2; /* not the class of +inf; that of -inf */
      field_put(&b.y);
      field_put(&b.t);
      good(compute_loss(seam.c, &b.d, b.y.s, b.t.s, b.dz.s, b.out.s, &e), &e);
      field_get(&b.out);
      if (isfinite(b.out.v[0])) fail_msg("loss %d of %g is %g", (int)kind, (double)bad[i], (double)b.out.v[0]);
      assert_true(b.out.v[1] == 1.0f);
      assert_true(b.out.v[2] == 4.0f);
      bench_close(&b);
    }
}

/* The other ranks learn from it that this rank's weights are old. */
UNIT_TEST(test_a_blocked_rank_says_so) {
  struct err e = ERR_INIT;
  if (seam.c->depth == 0) skip();
  for (enum compute_loss kind = COMPUTE_MSE; kind <= COMPUTE_CROSS_ENTROPY; kind++)
    for (size_t rows = 0; rows < 10; rows += 9) {
      struct bench b;
      bench_open(&b, kind, rows, 7, 1);
      compute_block_updates(seam.c, true);
      good(compute_loss(seam.c, &b.d, b.y.s, b.t.s, b.dz.s, b.out.s, &e), &e);
      field_get(&b.out);
      assert_true(isfinite(b.out.v[0]) && isinf(b.out.v[1]));
      compute_block_updates(seam.c, false);
      check(&b);
      bench_close(&b);
    }
}
