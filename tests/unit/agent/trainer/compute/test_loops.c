/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.h against sums in double, at sizes around those of its tiles; loops.h against the same loops compiled for every
 * CPU: bit for bit, since ranks on unlike nodes must stay equal. */

#include "agent/trainer/compute/gemm.h"
#include "agent/trainer/compute/loops.h"
#include "agent/trainer/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

enum { SIDE = 70, MARGIN = 3, STRIDE = SIDE + MARGIN, CELLS = STRIDE * STRIDE };

static float a[CELLS], b[CELLS], gate[CELLS], before[CELLS], c[CELLS], bias[STRIDE];

static void fill(float *to, size_t n, uint64_t seed) {
  for (size_t i = 0; i < n; i++) to[i] = 2.0f * rng_unit(seed, RNG_WEIGHTS, i) - 1.0f;
}

static float result_of(const struct gemm *g, size_t m, size_t n, double *size) {
  double sum = g->bias ? (double)g->bias[n] : 0;
  if (g->add) sum += (double)before[m * g->ldc + n];
  *size = fabs(sum);
  for (size_t k = 0; k < g->k; k++) {
    double x = (double)g->a[m * g->a_row + k * g->a_col] * (double)g->b[k * g->b_row + n * g->b_col];
    sum += x;
    *size += fabs(x);
  }
  if (g->relu && sum < 0) sum = 0;
  return g->gate && !(g->gate[m * g->ldc + n] > 0) ? 0.0f : (float)sum;
}

static void check_product(struct gemm_plan *plan, const struct gemm *g) {
  memcpy(c, before, sizeof c);
  assert_true(gemm_run(plan, g));
  for (size_t m = 0; m < STRIDE; m++)
    for (size_t n = 0; n < STRIDE; n++) {
      bool inside = m < g->m && n < g->n;
      double size = 0, want = (double)(inside ? result_of(g, m, n, &size) : before[m * STRIDE + n]);
      if (fabs((double)c[m * STRIDE + n] - want) > 1e-6 * size)
        fail_msg("%zu x %zu x %zu: c[%zu][%zu] is %g, not %g", g->m, g->n, g->k, m, n, (double)c[m * STRIDE + n], want);
    }
}

static void test_products(void **state) {
  struct gemm_plan *plan = gemm_plan_create();
  if (!plan) skip();
  fill(a, CELLS, 1);
  fill(b, CELLS, 2);
  fill(gate, CELLS, 3);
  fill(before, CELLS, 4);
  fill(bias, STRIDE, 5);
  for (uint64_t i = 0; i < 3000; i++) {
    uint64_t r = rng_at(6, RNG_SAMPLER, i);
    struct gemm g = {.m = 1 + r % SIDE, .n = 1 + (r >> 8) % SIDE, .k = 1 + (r >> 16) % SIDE, .ldc = STRIDE};
    bool a_rows = r >> 24 & 1, b_rows = r >> 25 & 1;
    g.a = a + (r >> 32) % MARGIN; /* not aligned */
    g.b = b + (r >> 40) % MARGIN;
    g.c = c;
    g.a_row = a_rows ? SIDE : 1;
    g.a_col = a_rows ? 1 : SIDE;
    g.b_row = b_rows ? SIDE : 1;
    g.b_col = b_rows ? 1 : SIDE;
    g.add = (r >> 27 & 3) == 3;
    g.bias = !g.add && (r >> 26 & 1) ? bias : NULL;
    g.relu = !g.add && (r >> 29 & 1);
    g.gate = !g.add && (r >> 30 & 1) ? gate : NULL;
    check_product(plan, &g);
  }
  gemm_plan_destroy(plan);
}

static void test_special_values(void **state) {
  struct gemm_plan *plan = gemm_plan_create();
  if (!plan) skip();
  float x[2] = {NAN, -1.0f}, one = 1.0f, out[2] = {0}, ends[2] = {NAN, 1.0f};
  struct gemm g = {.m = 1, .n = 2, .k = 1, .a = &one, .b = x, .a_row = 1, .a_col = 1, .b_row = 2, .b_col = 1};
  g.c = out;
  g.ldc = 2;
  g.relu = true;
  assert_true(gemm_run(plan, &g));
  assert_true(isnan(out[0]) && out[1] == 0.0f);
  g.relu = false;
  g.gate = ends;
  assert_true(gemm_run(plan, &g));
  assert_true(out[0] == 0.0f && out[1] == -1.0f);
  gemm_plan_destroy(plan);
}

static void test_large_products_are_left_to_the_library(void **state) {
  struct gemm_plan *plan = gemm_plan_create();
  if (!plan) skip();
  struct gemm g = {.m = 1, .n = 1 << 10, .k = 1 << 10, .a_row = 1, .a_col = 1, .b_row = 1 << 10, .b_col = 1};
  assert_false(gemm_run(plan, &g));
  gemm_plan_destroy(plan);
}

enum { N = 1003 };

/* Without contraction: the build has no CPU with fused products in mind, and volatile stops it where it has. */
static void test_updates_have_the_same_bits_everywhere(void **state) {
  static float p[N], m[N], v[N], g[N], p2[N], m2[N], v2[N];
  struct adam_factors f = {1.5f, 0.9f, 0.1f, 0.99f, 0.01f, 1e-8f, 0.03f, 1.2f, 0.01f, 0.999f};
  fill(p, N, 1);
  fill(m, N, 2);
  fill(v, N, 3);
  fill(g, N, 4);
  for (int i = 0; i < N; i++) v[i] = fabsf(v[i]);
  memcpy(p2, p, sizeof p);
  memcpy(m2, m, sizeof m);
  memcpy(v2, v, sizeof v);
  loops_adam(&f, p, m, v, g, N);
  for (int i = 0; i < N; i++) {
    volatile float by = f.by * g[i], decay = f.decay * p2[i], x = by + decay;
    volatile float bm = f.b1 * m2[i], cm = f.c1 * x, bv = f.b2 * v2[i], cx = f.c2 * x, cv = cx * x;
    m2[i] = bm + cm;
    v2[i] = bv + cv;
    volatile float root = sqrtf(v2[i]) * f.root, rm = f.rate * m2[i], kept = f.keep * p2[i],
                   quotient = rm / (root + f.eps);
    p2[i] = kept - quotient;
  }
  assert_memory_equal(p, p2, sizeof p);
  assert_memory_equal(m, m2, sizeof m);
  assert_memory_equal(v, v2, sizeof v);
  loops_sgd(0.9f, 0.01f, 0.1f, 0.5f, p, m, g, N);
  for (int i = 0; i < N; i++) {
    volatile float mu = 0.9f * m2[i], by = 0.5f * g[i], decay = 0.01f * p2[i], x = by + decay;
    m2[i] = mu + x;
    volatile float step = 0.1f * m2[i];
    p2[i] -= step;
  }
  assert_memory_equal(p, p2, sizeof p);
  assert_memory_equal(m, m2, sizeof m);
}

static void test_sums(void **state) {
  static float x[N], y[N], z[N];
  fill(x, N, 1);
  fill(y, N, 2);
  for (size_t n = 0; n < N; n += 17) {
    double squares = 0, differences = 0;
    for (size_t i = 0; i < n; i++) {
      double d = (double)(x[i] - y[i]);
      squares += (double)x[i] * (double)x[i];
      differences += d * d;
    }
    assert_true(fabs(loops_sum_squares(x, n) - squares) <= 1e-12 * squares);
    assert_true(fabs(loops_sum_squared_differences(x, y, n) - differences) <= 1e-12 * differences);
  }
  loops_scale_differences(z, x, y, 0.5f, N);
  loops_add(x, y, N);
  for (int i = 0; i < N; i++) assert_true(fabsf(0.5f * (x[i] - 2.0f * y[i]) - z[i]) < 1e-6f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_products),
      cmocka_unit_test(test_special_values),
      cmocka_unit_test(test_large_products_are_left_to_the_library),
      cmocka_unit_test(test_updates_have_the_same_bits_everywhere),
      cmocka_unit_test(test_sums),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
