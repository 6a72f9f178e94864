/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer on the CPU: updates and skipped steps against its formula. */

#include "agent/trainer/model/model.h"
#include "agent/trainer/rng.h"

#include <math.h>
#include <string.h>
#include "tests/rig/unit.h"

static void good(int rc, const struct err *e) {
  if (rc) fail_msg("%s", e->text);
}

static float value_at(uint64_t k) {
  return 2.0f * rng_unit(77, RNG_WEIGHTS, k) - 1.0f;
}

static void run_optimizer(const struct compute_opt_desc *d, int steps, float *w) {
  struct compute *c = compute_cpu_create(1, COMPUTE_FP32);
  struct err e = ERR_INIT;
  struct compute_buf *p, *g;
  struct compute_opt *o;
  struct compute_opt_counters counters;
  good(compute_alloc(c, COMPUTE_PARAM, 3, &p, &e), &e);
  good(compute_alloc(c, COMPUTE_GRAD, 20, &g, &e), &e);
  good(compute_opt_create(c, d, &o, &e), &e);
  memcpy(compute_host(c, span_of(p, 0, 3)), w, 3 * sizeof *w);
  for (int s = 0; s < steps; s++) {
    for (int i = 0; i < 3; i++) compute_host(c, span_of(g, 0, 3))[i] = value_at((uint64_t)(s * 3 + i));
    struct compute_update u = {.param = span_of(p, 0, 3), .grad = span_of(g, 0, 3)};
    good(compute_opt_step(c, o, &u, &e), &e);
  }
  good(compute_opt_read(c, o, span_of(g, 4, COMPUTE_COUNTERS), &e), &e);
  memcpy(&counters, compute_host(c, span_of(g, 4, COMPUTE_COUNTERS)), sizeof counters);
  assert_int_equal(counters.updates, steps);
  memcpy(w, compute_host(c, span_of(p, 0, 3)), 3 * sizeof *w);
  compute_opt_destroy(c, o);
  compute_free(c, p);
  compute_free(c, g);
  compute_destroy(c);
}

UNIT_TEST(test_updates_are_their_formula) {
  struct compute_opt_desc adam = {.n = 3, .lr = 0.1, .beta1 = 0.5, .beta2 = 0.99, .eps = 1e-8};
  float w[3] = {1, 2, 3};
  run_optimizer(&adam, 7, w);
  for (int i = 0; i < 3; i++) {
    double want = i + 1, m = 0, v = 0;
    for (int k = 1; k <= 7; k++) {
      double g = (double)value_at((uint64_t)((k - 1) * 3 + i));
      m = 0.5 * m + 0.5 * g;
      v = 0.99 * v + 0.01 * g * g;
      want -= 0.1 * m / (1 - pow(0.5, k)) / (sqrt(v / (1 - pow(0.99, k))) + 1e-8);
    }
    assert_true(fabs((double)w[i] - want) < 1e-5);
  }
}

/* One step with these gradients; returns the counters. */
static struct compute_opt_counters step_with(const struct compute_opt_desc *d, const float *grad, float *w) {
  struct compute *c = compute_cpu_create(1, COMPUTE_FP32);
  struct err e = ERR_INIT;
  struct compute_buf *b;
  struct compute_opt *o;
  struct compute_opt_counters counters;
  good(compute_alloc(c, COMPUTE_GRAD, 64, &b, &e), &e);
  good(compute_opt_create(c, d, &o, &e), &e);
  float *p = compute_host(c, span_of(b, 0, 64));
  memcpy(p, w, d->n * sizeof *w);
  memcpy(p + 16, grad, d->n * sizeof *w);
  struct compute_update u = {.param = span_of(b, 0, d->n), .grad = span_of(b, 16, d->n)};
  good(compute_opt_step(c, o, &u, &e), &e);
  good(compute_opt_read(c, o, span_of(b, 40, COMPUTE_COUNTERS), &e), &e);
  memcpy(&counters, p + 40, sizeof counters);
  memcpy(w, p, d->n * sizeof *w);
  compute_opt_destroy(c, o);
  compute_free(c, b);
  compute_destroy(c);
  return counters;
}

UNIT_TEST(test_norm_of_gradients) {
  float grad[11], w[11] = {0};
  for (int i = 0; i < 11; i++) grad[i] = (float)i;
  for (size_t n = 1; n <= 11; n++) {
    double want = 0;
    for (size_t i = 0; i < n; i++) want += (double)(i * i);
    struct compute_opt_desc d = {.n = n, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8};
    assert_true(fabs((double)step_with(&d, grad, w).grad_norm - sqrt(want)) < 1e-5);
  }
}

UNIT_TEST(test_a_step_that_is_not_finite_is_skipped) {
  float grad[2] = {INFINITY, 1}, w[2] = {7, 8};
  struct compute_opt_desc d = {.n = 2, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8};
  struct compute_opt_counters v = step_with(&d, grad, w);
  assert_true(w[0] == 7 && w[1] == 8);
  assert_true(v.updates == 0 && v.skipped == 1 && v.skipped_in_row == 1);
}
