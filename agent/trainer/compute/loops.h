/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_COMPUTE_LOOPS_H
#define AGENT_TRAINER_COMPUTE_LOOPS_H

/* The loops of cpu.c that take time. They have the same bits on every CPU: ranks on unlike nodes make the same update
 * from the same sums, and must stay equal. Pure. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "agent/trainer/compute/compute.h"

/* Rounds a float to what bf16 can hold (8 bits of exponent as in a float, 7 of mantissa): to nearest, ties to even, as
 * every device converts them. The result is a float again. Infinities stay, values that are too large become infinities,
 * and a NaN keeps its sign and becomes quiet. There are no branches, so loops over this function are vectorised. */
static inline float round_bf16(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  uint32_t nan = (u & 0x7fffffffu) > 0x7f800000u, up = u + 0x7fffu + ((u >> 16) & 1u);
  u = (nan ? u | 0x400000u : up) & 0xffff0000u;
  memcpy(&x, &u, sizeof x);
  return x;
}

double loops_sum_squares(const float *p, size_t n);
double loops_sum_squared_differences(const float *a, const float *b, size_t n);
void loops_scale_differences(float *out, const float *a, const float *b, float by, size_t n); /* by * (a - b) */
void loops_add(float *to, const float *what, size_t n);
uint64_t loops_checksum(const float *p, size_t n); /* compute_checksum_part */
/* No two of the arrays overlap. */
void loops_adam(const struct compute_factors *f, float *p, float *m, float *v, const float *g, size_t n);

#endif
