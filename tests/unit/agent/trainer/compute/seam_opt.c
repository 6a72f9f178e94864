/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer against its formula in double: weights, state and counters over several steps, with skipped steps, and updates that compute_block_updates() blocks. */

#include "tests/unit/agent/trainer/compute/seam.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct bench {
  struct compute_opt_desc d;
  struct compute_opt *opt;
  struct field param, grad, bad; /* bad: not 0 where the loss is not finite */
  struct compute_buf *stage;     /* the counters that the last update wrote, and one float that stays 0 */
  struct compute_opt_counters v;
  double *w, *state[COMPUTE_STATES]; /* as they ought to be */
};

static void bench_open(struct bench *b, const struct compute_opt_desc *d) {
  struct err e = ERR_INIT;
  *b = (struct bench){.d = *d};
  field_make(&b->param, COMPUTE_PARAM, d->n, 0);
  field_make(&b->grad, COMPUTE_GRAD, d->n, 0);
  field_make(&b->bad, COMPUTE_STATE, 1, 3);
  good(compute_alloc(seam.c, COMPUTE_STAGE, COMPUTE_COUNTERS + 2, &b->stage, &e), &e);
  field_random(&b->param, 1);
  b->w = test_calloc(d->n, sizeof *b->w);
  for (size_t i = 0; i < d->n; i++) b->w[i] = (double)b->param.v[i];
  for (int i = 0; i < COMPUTE_STATES; i++) b->state[i] = test_calloc(d->n, sizeof(double));
  good(compute_opt_create(seam.c, d, &b->opt, &e), &e);
}

static void bench_close(struct bench *b) {
  compute_opt_destroy(seam.c, b->opt);
  compute_free(seam.c, b->stage);
  field_drop(&b->param);
  field_drop(&b->grad);
  field_drop(&b->bad);
  test_free(b->w);
  for (int i = 0; i < COMPUTE_STATES; i++) test_free(b->state[i]);
}

static struct compute_opt_counters counters(struct bench *b) {
  struct err e = ERR_INIT;
  struct compute_buf *stage;
  struct compute_opt_counters v;
  good(compute_alloc(seam.c, COMPUTE_STAGE, COMPUTE_COUNTERS + 1, &stage, &e), &e);
  struct span s = {stage, 0, COMPUTE_COUNTERS};
  good(compute_opt_read(seam.c, b->opt, s, &e), &e);
  device_idle();
  memcpy(&v, compute_host(seam.c, s), sizeof v);
  assert_true(*compute_host(seam.c, (struct span){stage, COMPUTE_COUNTERS, 1}) == 0.0f);
  compute_free(seam.c, stage);
  return v;
}

/* The update writes its counters from an odd float on. */
static struct span stage_of(const struct bench *b) {
  return (struct span){b->stage, 1, COMPUTE_COUNTERS};
}

static int try_step(struct bench *b, struct span param, struct span grad, struct span counters, struct err *e) {
  struct compute_update u = {.param = param, .grad = grad, .bad = b->bad.s, .counters = counters};
  return compute_opt_step(seam.c, b->opt, &u, e);
}

static void queue_step(struct bench *b) {
  struct err e = ERR_INIT;
  field_put(&b->bad);
  good(try_step(b, b->param.s, b->grad.s, stage_of(b), &e), &e);
}

/* Behind an update, blocked or not. */
static void expect_written(struct bench *b, const struct compute_opt_counters *v) {
  assert_memory_equal(compute_host(seam.c, stage_of(b)), v, sizeof *v);
  assert_true(*compute_host(seam.c, (struct span){b->stage, 0, 1}) == 0.0f);
  assert_true(*compute_host(seam.c, (struct span){b->stage, COMPUTE_COUNTERS + 1, 1}) == 0.0f);
}

/* torch.optim's formula. */
static void expect_update(struct bench *b) {
  const struct compute_opt_desc *d = &b->d;
  double lr = (double)(float)d->lr;
  double c1 = 1 - pow(d->beta1, (double)b->v.updates), c2 = 1 - pow(d->beta2, (double)b->v.updates);
  for (size_t i = 0; i < d->n; i++) {
    double g = (double)b->grad.v[i], *m = &b->state[0][i], *v = &b->state[1][i];
    *m = d->beta1 * *m + (1 - d->beta1) * g;
    *v = d->beta2 * *v + (1 - d->beta2) * g * g;
    b->w[i] -= lr * (*m / c1) / (sqrt(*v / c2) + d->eps);
  }
}

static double norm_of(const struct bench *b) {
  double sum = 0;
  for (size_t i = 0; i < b->d.n; i++) sum += (double)b->grad.v[i] * (double)b->grad.v[i];
  return sqrt(sum);
}

static void compare(struct bench *b, double lr) {
  struct field f = {.use = COMPUTE_STATE};
  field_get(&b->param);
  for (size_t i = 0; i < b->d.n; i++) expect_near((double)b->param.v[i], b->w[i], 2e-6, 3e-5 * lr + 1e-7, "weight", i);
  f.v = test_calloc(b->d.n, sizeof(float));
  for (int k = 0; k < COMPUTE_STATES; k++) {
    struct err e = ERR_INIT;
    struct compute_buf *stage, *from = compute_opt_state(seam.c, b->opt, k);
    good(compute_alloc(seam.c, COMPUTE_STAGE, b->d.n, &stage, &e), &e);
    good(compute_copy(seam.c, (struct span){stage, 0, b->d.n}, (struct span){from, 0, b->d.n}, &e), &e);
    device_idle();
    const float *got = compute_host(seam.c, (struct span){stage, 0, b->d.n});
    for (size_t i = 0; i < b->d.n; i++)
      expect_near((double)got[i], b->state[k][i], 1e-5, k ? 1e-9 : 1e-6, k ? "mean square" : "mean", i);
    compute_free(seam.c, stage);
  }
  test_free(f.v);
}

static void expect_counters(struct bench *b, double norm) {
  struct compute_opt_counters got = counters(b);
  assert_int_equal(got.updates, b->v.updates);
  assert_int_equal(got.skipped, b->v.skipped);
  assert_int_equal(got.skipped_in_row, b->v.skipped_in_row);
  if (isfinite(norm))
    expect_near((double)got.grad_norm, norm, 1e-5, 1e-12, "norm", 0);
  else
    assert_true(!isfinite(got.grad_norm));
}

/* One step with random gradients; compares everything. */
static void step(struct bench *b, float size) {
  field_random(&b->grad, size);
  for (size_t i = 0; i < b->d.n; i += 5) b->grad.v[i] = 0;
  field_put(&b->grad);
  double norm = norm_of(b);
  queue_step(b);
  b->v.updates++;
  b->v.skipped_in_row = 0;
  expect_update(b);
  compare(b, b->d.lr);
  expect_counters(b, norm);
  struct compute_opt_counters got = counters(b);
  expect_written(b, &got);
}

static const struct compute_opt_desc kinds[] = {
    {.n = 1001, .lr = 0.05, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    {.n = 50, .lr = 0.1, .beta1 = 0, .beta2 = 0.99, .eps = 1e-8},
    {.n = 1, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6},
    {.n = 777, .lr = 0.003, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-5},
    {.n = 20003, .lr = 0.05, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8},
};

UNIT_TEST(test_steps) {
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    struct bench b;
    bench_open(&b, &kinds[k]);
    expect_counters(&b, counters(&b).grad_norm == 0 ? 0 : (double)NAN);
    for (size_t i = 0; i < 5; i++) step(&b, i == 2 ? 0.01f : 1.0f);
    bench_close(&b);
  }
}

/* A checkpoint in the middle: a new optimizer gets counters and state, and continues as the old one would. */
UNIT_TEST(test_counters_are_set) {
  struct err e = ERR_INIT;
  struct bench b;
  bench_open(&b, &kinds[3]);
  b.v = (struct compute_opt_counters){.updates = 5000000123, .skipped = 77, .skipped_in_row = 2, .grad_norm = 3};
  good(compute_opt_set(seam.c, b.opt, &b.v, &e), &e);
  struct compute_opt_counters got = counters(&b);
  assert_memory_equal(&got, &b.v, sizeof got);
  step(&b, 1);
  b.v.updates = 17;
  good(compute_opt_set(seam.c, b.opt, &b.v, &e), &e);
  step(&b, 1);
  bench_close(&b);
}

static void skip_once(struct bench *b, float bad, size_t at) {
  field_random(&b->grad, 1);
  b->grad.v[at] = bad;
  field_put(&b->grad);
  queue_step(b);
  b->v.skipped++;
  b->v.skipped_in_row++;
  compare(b, 0); /* nothing moved */
  expect_counters(b, (double)NAN);
  struct compute_opt_counters got = counters(b);
  expect_written(b, &got);
}

UNIT_TEST(test_steps_are_skipped) {
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    struct bench b;
    bench_open(&b, &kinds[k]);
    step(&b, 1);
    float *before = test_calloc(b.d.n, sizeof(float));
    memcpy(before, b.param.v, b.d.n * sizeof(float));
    skip_once(&b, NAN, b.d.n - 1);
    skip_once(&b, INFINITY, 0);
    skip_once(&b, -INFINITY, b.d.n / 2);
    b.bad.v[0] = 2; /* ranks whose loss is not finite, though their gradients are */
    skip_once(&b, 0.5f, 0);
    b.bad.v[0] = 0;
    assert_memory_equal(before, b.param.v, b.d.n * sizeof(float));
    step(&b, 1);
    test_free(before);
    bench_close(&b);
  }
}

UNIT_TEST(test_wrong_sizes_are_refused) {
  struct err e = ERR_INIT;
  struct bench b;
  bench_open(&b, &kinds[1]);
  struct span less = {b.param.buf, 0, b.d.n - 1};
  assert_int_equal(try_step(&b, less, b.grad.s, stage_of(&b), &e), -EINVAL);
  assert_int_equal(try_step(&b, b.param.s, less, stage_of(&b), &e), -EINVAL);
  bench_close(&b);
}

/* While updates are blocked none is made: neither one that is queued then, nor one that was queued before and has not
 * started. A device may choose which of the two the first one is, but it must be whole or nothing. */
UNIT_TEST(test_blocked_updates_are_not_made) {
  if (seam.c->depth == 0) skip();
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    struct bench b;
    bench_open(&b, &kinds[k]);
    step(&b, 1);
    field_random(&b.grad, 1);
    queue_step(&b);
    compute_block_updates(seam.c, true);
    struct compute_opt_counters v = counters(&b);
    if (v.updates != b.v.updates) {
      b.v.updates++;
      expect_update(&b);
    }
    compare(&b, 0.2);
    queue_step(&b);
    compare(&b, 0.2);
    struct compute_opt_counters after = counters(&b);
    assert_memory_equal(&after, &v, sizeof v);
    expect_written(&b, &v);
    compute_block_updates(seam.c, false);
    step(&b, 1);
    bench_close(&b);
  }
}

/* The updates of another rank are blocked. */
UNIT_TEST(test_an_infinite_bad_blocks_an_update) {
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    struct bench b;
    bench_open(&b, &kinds[k]);
    step(&b, 1);
    struct compute_opt_counters v = counters(&b);
    field_random(&b.grad, 1);
    b.bad.v[0] = INFINITY;
    queue_step(&b);
    compare(&b, 0.2);
    struct compute_opt_counters after = counters(&b);
    assert_memory_equal(&after, &v, sizeof v);
    b.bad.v[0] = 0;
    step(&b, 1);
    bench_close(&b);
  }
}

/* The CPU's loop is the reference; a start at any float, and no float at all. */
UNIT_TEST(test_checksums) {
  static const size_t sizes[] = {0, 1, 5, 1000, 300001};
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    struct field f;
    struct err e = ERR_INIT;
    struct compute_buf *stage;
    uint64_t want = 0, got = 1;
    field_make(&f, COMPUTE_GRAD, sizes[k], k % 2);
    field_random(&f, 1);
    for (size_t i = 0; i < sizes[k]; i++) {
      uint32_t bits;
      memcpy(&bits, f.v + i, sizeof bits);
      want += compute_checksum_part(bits, (uint32_t)i);
    }
    good(compute_alloc(seam.c, COMPUTE_STAGE, 2 * COMPUTE_CHECKSUM, &stage, &e), &e);
    struct span out = {stage, COMPUTE_CHECKSUM, COMPUTE_CHECKSUM};
    good(compute_checksum(seam.c, f.s, out, &e), &e);
    device_idle();
    memcpy(&got, compute_host(seam.c, out), sizeof got);
    assert_true(got == want);
    compute_free(seam.c, stage);
    field_drop(&f);
  }
}
