/* SPDX-License-Identifier: Apache-2.0 */
/* loops.h against the same loops compiled for every CPU: bit for bit, since ranks on unlike nodes must stay equal. */

#include "agent/trainer/compute/loops.h"
#include "agent/trainer/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static void fill(float *to, size_t n, uint64_t seed) {
  for (size_t i = 0; i < n; i++) to[i] = 2.0f * rng_unit(seed, RNG_WEIGHTS, i) - 1.0f;
}

enum { N = 1003 };

/* Without contraction: the build has no CPU with fused products in mind, and volatile stops it where it has. */
UNIT_TEST(test_updates_have_the_same_bits_everywhere) {
  static float p[N], m[N], v[N], g[N], p2[N], m2[N], v2[N];
  struct compute_factors f = {.by = 1.5f,
                              .b1 = 0.9f,
                              .c1 = 0.1f,
                              .b2 = 0.99f,
                              .c2 = 0.01f,
                              .eps = 1e-8f,
                              .rate = 0.03f,
                              .root = 1.2f,
                              .decay = 0.01f,
                              .keep = 0.999f};
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
  f = (struct compute_factors){.by = 0.5f, .lr = 0.1f, .mu = 0.9f, .decay = 0.01f};
  loops_sgd(&f, p, m, g, N);
  for (int i = 0; i < N; i++) {
    volatile float mu = 0.9f * m2[i], by = 0.5f * g[i], decay = 0.01f * p2[i], x = by + decay;
    m2[i] = mu + x;
    volatile float step = 0.1f * m2[i];
    p2[i] -= step;
  }
  assert_memory_equal(p, p2, sizeof p);
  assert_memory_equal(m, m2, sizeof m);
}

UNIT_TEST(test_sums) {
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
