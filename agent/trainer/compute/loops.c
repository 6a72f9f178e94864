/* SPDX-License-Identifier: Apache-2.0 */
/* Sums have CHAINS partial sums, whatever vectors the CPU has, so that the order of additions is the same everywhere and
 * no addition waits for the one before. Products and sums are not contracted (meson.build), and roots and quotients are
 * exact by IEEE 754. So the bits do not depend on the CPU. */

#include "agent/trainer/compute/loops.h"

#include "agent/trainer/wide.h"

#include <math.h>

enum { LANES = 8, VECS = 4, CHAINS = LANES * VECS };

typedef double chain __attribute__((vector_size(LANES * sizeof(double))));
typedef float floats __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* The squares of a, or of a - b if there is a b. */
WIDE_BODY double squares_of(const float *a, const float *b, size_t n) {
  chain sum[VECS] = {{0}};
  size_t i = 0;
  for (; i + CHAINS <= n; i += CHAINS)
    for (size_t k = 0; k < VECS; k++) {
      floats x = *(const floats *)(a + i + k * LANES);
      if (b) x -= *(const floats *)(b + i + k * LANES);
      chain d = __builtin_convertvector(x, chain);
      sum[k] += d * d;
    }
  chain all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  double total = ((all[0] + all[1]) + (all[2] + all[3])) + ((all[4] + all[5]) + (all[6] + all[7]));
  for (; i < n; i++) {
    double d = (double)(b ? a[i] - b[i] : a[i]);
    total += d * d;
  }
  return total;
}

WIDE_BODY void differences_of(float *restrict out, const float *restrict a, const float *restrict b, float by,
                              size_t n) {
  for (size_t i = 0; i < n; i++) out[i] = by * (a[i] - b[i]);
}

WIDE_BODY void add_of(float *restrict to, const float *restrict what, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] += what[i];
}

WIDE_BODY void adam_of(const struct compute_factors *from, float *restrict p, float *restrict m, float *restrict v,
                       const float *restrict g, size_t n) {
  const struct compute_factors f = *from;
  for (size_t i = 0; i < n; i++) {
    m[i] = f.b1 * m[i] + f.c1 * g[i];
    v[i] = f.b2 * v[i] + f.c2 * g[i] * g[i];
    p[i] = p[i] - f.rate * m[i] / (sqrtf(v[i]) * f.root + f.eps);
  }
}

WIDE_BODY uint64_t checksum_of(const float *p, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, p + i, sizeof bits);
    sum += compute_checksum_part(bits, (uint32_t)i);
  }
  return sum;
}

WIDE_BODY double squares_alone(const float *p, size_t n) {
  return squares_of(p, NULL, n);
}

WIDE(double, loops_sum_squares, (const float *p, size_t n), (p, n), squares_alone)
WIDE(double, loops_sum_squared_differences, (const float *a, const float *b, size_t n), (a, b, n), squares_of)
WIDE(uint64_t, loops_checksum, (const float *p, size_t n), (p, n), checksum_of)
WIDE(void, loops_scale_differences, (float *out, const float *a, const float *b, float by, size_t n),
     (out, a, b, by, n), differences_of)
WIDE(void, loops_add, (float *to, const float *what, size_t n), (to, what, n), add_of)
WIDE(void, loops_adam, (const struct compute_factors *f, float *p, float *m, float *v, const float *g, size_t n),
     (f, p, m, v, g, n), adam_of)
