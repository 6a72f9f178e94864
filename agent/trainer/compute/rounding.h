/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_COMPUTE_ROUNDING_H
#define AGENT_TRAINER_COMPUTE_ROUNDING_H

/* Rounds floats to what bf16 can hold: to nearest, ties to even, as every device converts them. The result is a float
 * again. Infinities and NaNs stay, and values that are too large become infinities. There are no branches, so loops
 * over this function are vectorised. Pure. */

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

static inline float float_of_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

/* 8 bits of exponent as in a float, 7 of mantissa. A NaN keeps its sign and becomes quiet. */
static inline float round_bf16(float x) {
  uint32_t u = float_bits(x), nan = (u & 0x7fffffffu) > 0x7f800000u;
  uint32_t up = u + 0x7fffu + ((u >> 16) & 1u);
  return float_of_bits((nan ? u | 0x400000u : up) & 0xffff0000u);
}

#endif
