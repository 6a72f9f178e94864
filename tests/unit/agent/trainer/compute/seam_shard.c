/* SPDX-License-Identifier: Apache-2.0 */
/* Updates in shares beside updates of the whole: the optimizers of several ranks, each with its parts of two buckets,
 * and one optimizer of all weights. The weights stay equal byte for byte, as long as clipping does not depend on the
 * last bit of the norm. The numbers behind the votes are summed, and one rank that votes to block stops all. */

#include "tests/unit/agent/trainer/compute/seam.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { RANKS_MAX = 3, UNIT = 32, STRIDE = 16, NUMBERS = 6, LR = 0, BAD = 1, SUMS = 2 };

struct ranks {
  int world;
  struct compute_opt_desc d; /* of the whole */
  size_t first;              /* the first bucket ends here */
  struct compute_opt *whole, *share[RANKS_MAX];
  struct field param, grad, own_param; /* own_param: of the optimizer of the whole */
  struct field rows, scalars;
  struct compute_buf *counters; /* stage: those of the rank that decided last */
};

static void ranks_open(struct ranks *r, const struct compute_opt_desc *d, int world) {
  struct err e = ERR_INIT;
  struct compute_opt_desc share = *d;
  *r = (struct ranks){.world = world, .d = *d, .first = (size_t)world * UNIT};
  r->d.n = r->first * 3;
  share.n = r->d.n / (size_t)world;
  field_make(&r->param, COMPUTE_PARAM, r->d.n, UNIT);
  field_make(&r->own_param, COMPUTE_PARAM, r->d.n, UNIT);
  field_make(&r->grad, COMPUTE_GRAD, r->d.n, UNIT);
  field_make(&r->rows, COMPUTE_GRAD, RANKS_MAX * STRIDE, UNIT);
  field_make(&r->scalars, COMPUTE_GRAD, SUMS + NUMBERS, 2);
  good(compute_alloc(seam.c, COMPUTE_STAGE, COMPUTE_COUNTERS, &r->counters, &e), &e);
  field_random(&r->param, 1);
  memcpy(r->own_param.v, r->param.v, r->d.n * sizeof(float));
  field_put(&r->own_param);
  good(compute_opt_create(seam.c, &r->d, &r->whole, &e), &e);
  for (int i = 0; i < world; i++) good(compute_opt_create(seam.c, &share, &r->share[i], &e), &e);
}

static void ranks_close(struct ranks *r) {
  compute_opt_destroy(seam.c, r->whole);
  for (int i = 0; i < r->world; i++) compute_opt_destroy(seam.c, r->share[i]);
  compute_free(seam.c, r->counters);
  struct field *all[] = {&r->param, &r->own_param, &r->grad, &r->rows, &r->scalars};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) field_drop(all[i]);
}

/* The parts of a rank, from the end to the front as they become ready. They are in a field, behind its guard. */
static void parts_of(const struct ranks *r, int rank, struct compute_share v[2]) {
  size_t each = UNIT, k = (size_t)rank;
  v[0] = (struct compute_share){r->param.s.at + r->first + 2 * each * k, 2 * each, each};
  v[1] = (struct compute_share){r->param.s.at + each * k, each, 0};
}

static void vote(struct ranks *r, int rank) {
  struct err e = ERR_INIT;
  struct compute_share v[2];
  struct span to = {r->rows.buf, r->rows.s.at + (size_t)rank * STRIDE, COMPUTE_VOTE};
  parts_of(r, rank, v);
  good(compute_opt_vote(seam.c, r->share[rank], r->grad.buf, v, 2, to, &e), &e);
}

static void decide_and_update(struct ranks *r, int rank) {
  struct err e = ERR_INIT;
  struct compute_share v[2];
  struct compute_poll p = {.rows = {r->rows.buf, r->rows.s.at, (size_t)r->world * STRIDE},
                           .stride = STRIDE,
                           .count = r->world,
                           .sums = {r->scalars.buf, r->scalars.s.at + SUMS, NUMBERS},
                           .lr = {r->scalars.buf, r->scalars.s.at + LR, 1},
                           .bad = {r->scalars.buf, r->scalars.s.at + SUMS + BAD, 1},
                           .counters = {r->counters, 0, COMPUTE_COUNTERS}};
  parts_of(r, rank, v);
  good(compute_opt_decide(seam.c, r->share[rank], &p, &e), &e);
  for (int i = 0; i < 2; i++)
    good(compute_opt_update(seam.c, r->share[rank], r->param.buf, r->grad.buf, &v[i], &e), &e);
}

static struct compute_opt_counters counters_of(struct compute_opt *o) {
  struct err e = ERR_INIT;
  struct compute_buf *stage;
  struct compute_opt_counters v;
  good(compute_alloc(seam.c, COMPUTE_STAGE, COMPUTE_COUNTERS, &stage, &e), &e);
  struct span s = {stage, 0, COMPUTE_COUNTERS};
  good(compute_opt_read(seam.c, o, s, &e), &e);
  device_idle();
  memcpy(&v, compute_host(seam.c, s), sizeof v);
  compute_free(seam.c, stage);
  return v;
}

/* The numbers of each rank: its rank plus 1 in the first, `bad` in the second, and so on. */
static void put_numbers(struct ranks *r, float lr, float bad) {
  memset(r->rows.v, 0, r->rows.s.n * sizeof(float));
  for (int i = 0; i < r->world; i++)
    for (int k = 0; k < NUMBERS; k++)
      r->rows.v[i * STRIDE + COMPUTE_VOTE + k] = k == BAD ? (i == r->world - 1 ? bad : 0) : (float)((i + 1) * (k + 1));
  r->scalars.v[LR] = lr;
  for (int k = 0; k < NUMBERS; k++) r->scalars.v[SUMS + k] = 1000;
  field_put(&r->rows);
  field_put(&r->scalars);
}

/* `whole`: an optimizer of all weights makes the same step. */
static void ranks_step(struct ranks *r, float lr, float bad, bool whole) {
  struct err e = ERR_INIT;
  put_numbers(r, lr, bad);
  for (int i = 0; i < r->world; i++) vote(r, i);
  for (int i = 0; i < r->world; i++) decide_and_update(r, i);
  struct compute_update u = {.param = r->own_param.s,
                             .grad = r->grad.s,
                             .lr = {r->scalars.buf, r->scalars.s.at + LR, 1},
                             .bad = {r->scalars.buf, r->scalars.s.at + SUMS + BAD, 1}};
  if (whole) good(compute_opt_step(seam.c, r->whole, &u, &e), &e);
}

static void expect_equal(struct ranks *r) {
  struct compute_opt_counters want = counters_of(r->whole), told;
  memcpy(&told, compute_host(seam.c, (struct span){r->counters, 0, COMPUTE_COUNTERS}), sizeof told);
  assert_int_equal(told.updates, want.updates);
  assert_int_equal(told.skipped, want.skipped);
  field_get(&r->param);
  field_get(&r->own_param);
  for (int i = 0; i < r->world; i++) {
    struct compute_opt_counters got = counters_of(r->share[i]);
    assert_int_equal(got.updates, want.updates);
    assert_int_equal(got.skipped, want.skipped);
    assert_int_equal(got.skipped_in_row, want.skipped_in_row);
    assert_int_equal(got.good_in_row, want.good_in_row);
    assert_true(got.scale == want.scale);
    if (isfinite(want.grad_norm))
      expect_near((double)got.grad_norm, (double)want.grad_norm, 1e-6, 1e-12, "norm", (size_t)i);
    else
      assert_true(!isfinite(got.grad_norm));
  }
  for (size_t i = 0; i < r->d.n; i++)
    if (r->d.clip_norm > 0)
      expect_near((double)r->param.v[i], (double)r->own_param.v[i], 1e-6, 1e-7, "weight", i);
    else
      assert_true(r->param.v[i] == r->own_param.v[i]);
}

static const struct compute_opt_desc kinds[] = {
    {.kind = COMPUTE_SGD, .momentum = 0.9, .weight_decay = 0.01},
    {.kind = COMPUTE_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1},
    {.kind = COMPUTE_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip_norm = 1},
    {.kind = COMPUTE_ADAMW, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-5, .scale_loss = true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void each_kind_and_world(void (*fn)(struct ranks *r)) {
  for (int i = 0; i < KINDS * RANKS_MAX; i++) {
    struct ranks r;
    ranks_open(&r, &kinds[i % KINDS], i / KINDS + 1);
    fn(&r);
    ranks_close(&r);
  }
}

static void fill_gradients(struct ranks *r) {
  field_random(&r->grad, counters_of(r->whole).scale);
}

static void make_some_steps(struct ranks *r) {
  for (int i = 0; i < 4; i++) {
    fill_gradients(r);
    ranks_step(r, 0.01f * (float)(i + 1), 0, true);
    expect_equal(r);
  }
}

static void shares_make_the_whole(void **state) {
  each_kind_and_world(make_some_steps);
}

static void skip_some_steps(struct ranks *r) {
  fill_gradients(r);
  ranks_step(r, 0.1f, 0, true);
  fill_gradients(r);
  ranks_step(r, 0.1f, 1, true); /* the last rank's loss is not finite */
  expect_equal(r);
  fill_gradients(r);
  r->grad.v[r->d.n - 1] = NAN; /* only the last rank sees it */
  field_put(&r->grad);
  ranks_step(r, 0.1f, 0, true);
  assert_int_equal(counters_of(r->share[0]).skipped, 2);
  expect_equal(r);
  fill_gradients(r);
  ranks_step(r, 0.1f, 0, true);
  expect_equal(r);
}

static void all_ranks_skip_together(void **state) {
  each_kind_and_world(skip_some_steps);
}

static void numbers_are_summed(void **state) {
  struct ranks r;
  ranks_open(&r, &kinds[0], 3);
  fill_gradients(&r);
  ranks_step(&r, 0.1f, 0, false);
  field_get(&r.scalars);
  for (int k = 0; k < NUMBERS; k++) assert_true(r.scalars.v[SUMS + k] == (float)(k == BAD ? 0 : 6 * (k + 1)));
  ranks_close(&r);
}

/* The vote decides, and not the moment of the update. */
static void block_one_of_them(struct ranks *r) {
  struct compute_opt_counters before, after;
  make_some_steps(r);
  before = counters_of(r->share[0]);
  put_numbers(r, 0.1f, 0);
  for (int i = 0; i < r->world; i++) {
    compute_block_updates(seam.c, i == r->world - 1);
    vote(r, i);
    device_idle();
  }
  compute_block_updates(seam.c, false);
  for (int i = 0; i < r->world; i++) decide_and_update(r, i);
  for (int i = 0; i < r->world; i++) {
    after = counters_of(r->share[i]);
    assert_memory_equal(&after, &before, sizeof after);
  }
  expect_equal(r);
  put_numbers(r, 0.1f, 0);
  for (int i = 0; i < r->world; i++) vote(r, i);
  device_idle();
  compute_block_updates(seam.c, true); /* too late: the others count on this rank's part */
  for (int i = 0; i < r->world; i++) decide_and_update(r, i);
  device_idle();
  compute_block_updates(seam.c, false);
  assert_int_equal(counters_of(r->share[0]).updates, before.updates + 1);
}

static void one_blocked_rank_stops_all(void **state) {
  if (seam.c->depth == 0) skip();
  each_kind_and_world(block_one_of_them);
}

static void parts_outside_the_share_are_refused(void **state) {
  struct err e = ERR_INIT;
  struct ranks r;
  ranks_open(&r, &kinds[1], 2);
  struct compute_share v = {r.param.s.at, UNIT, r.d.n / 2 - UNIT + 1};
  assert_int_equal(compute_opt_update(seam.c, r.share[0], r.param.buf, r.grad.buf, &v, &e), -EINVAL);
  ranks_close(&r);
}

const struct CMUnitTest seam_shard_tests[] = {
    cmocka_unit_test(shares_make_the_whole),
    cmocka_unit_test(all_ranks_skip_together),
    cmocka_unit_test(numbers_are_summed),
    cmocka_unit_test(one_blocked_rank_stops_all),
    cmocka_unit_test(parts_outside_the_share_are_refused),
};
const size_t n_seam_shard_tests = sizeof seam_shard_tests / sizeof *seam_shard_tests;
