/* SPDX-License-Identifier: Apache-2.0 */
/* loops.h against the same loops compiled for every CPU: bit for bit, since ranks on unlike nodes must stay equal. And
 * round_bf16 against the numbers of that format. */

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
  struct compute_factors f = {0.9f, 0.1f, 0.99f, 0.01f, 1e-8f, 0.03f, 1.2f};
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
    volatile float bm = f.b1 * m2[i], cm = f.c1 * g[i], bv = f.b2 * v2[i], cx = f.c2 * g[i], cv = cx * g[i];
    m2[i] = bm + cm;
    v2[i] = bv + cv;
    volatile float root = sqrtf(v2[i]) * f.root, rm = f.rate * m2[i], quotient = rm / (root + f.eps);
    p2[i] = p2[i] - quotient;
  }
  assert_memory_equal(p, p2, sizeof p);
  assert_memory_equal(m, m2, sizeof m);
  assert_memory_equal(v, v2, sizeof v);
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

UNIT_TEST(test_a_checksum_sees_each_flipped_bit) {
  static float x[N];
  fill(x, N, 1);
  uint64_t want = 0;
  for (int i = 0; i < N; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    want += compute_checksum_part(bits, (uint32_t)i);
  }
  assert_true(loops_checksum(x, N) == want);
  for (int k = 0; k < 32 * N; k += 7) {
    uint32_t bits;
    memcpy(&bits, &x[k / 32], sizeof bits);
    bits ^= 1u << (k % 32);
    memcpy(&x[k / 32], &bits, sizeof bits);
    assert_true(loops_checksum(x, N) != want);
    bits ^= 1u << (k % 32);
    memcpy(&x[k / 32], &bits, sizeof bits);
  }
  float first = x[0];
  x[0] = x[1];
  x[1] = first;
  assert_true(loops_checksum(x, N) != want);
}

enum { BF16_INFINITY = 0x7f80 };

static float float_of_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

/* The value of 16 bits; sizes only, and one beyond the largest, as if the exponent had room for it: ties at the end go
 * there. */
static double bf16_value(unsigned k) {
  return k >> 7 ? ldexp(128 + (k & 127), (int)(k >> 7) - 134) : ldexp(k & 127, -133);
}

/* x lies between number k and number k + 1: to the nearer, at the same distance to the even one. */
static void check_between(unsigned k, float x) {
  double down = bf16_value(k), up = bf16_value(k + 1), d = (double)x - down, u = up - (double)x;
  unsigned want = d < u || (!(u < d) && k % 2 == 0) ? k : k + 1;
  float is = want >= BF16_INFINITY ? INFINITY : (float)bf16_value(want);
  if (round_bf16(x) != is || round_bf16(-x) != -is)
    fail_msg("%a becomes %a, not %a", (double)x, (double)round_bf16(x), (double)is);
}

UNIT_TEST(test_bf16_is_the_nearest) {
  for (unsigned k = 0; k < BF16_INFINITY; k++) {
    double down = bf16_value(k), up = bf16_value(k + 1), half = (down + up) / 2;
    if (up < 0x1p-120) continue; /* floats that are denormal are flushed to zero in a trainer */
    check_between(k, (float)down);
    check_between(k, (float)half);
    if ((double)nextafterf((float)half, 0) >= down) check_between(k, nextafterf((float)half, 0));
    if ((double)nextafterf((float)half, INFINITY) <= up) check_between(k, nextafterf((float)half, INFINITY));
  }
  assert_true(round_bf16(INFINITY) == INFINITY && round_bf16(-INFINITY) == -INFINITY);
  assert_true(isnan(round_bf16(NAN)) && isnan(round_bf16(float_of_bits(0x7f800001u))) &&
              isnan(round_bf16(float_of_bits(0xffffffffu))));
  assert_true(round_bf16(-0.0f) == 0 && signbit(round_bf16(-0.0f)));
  assert_true(round_bf16(3.4028234e38f) == INFINITY && round_bf16(3.38e38f) < INFINITY);
}
