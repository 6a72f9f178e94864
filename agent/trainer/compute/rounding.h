/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_COMPUTE_ROUNDING_H
#define AGENT_TRAINER_COMPUTE_ROUNDING_H

/* Rounds floats to what bf16 and fp16 can hold: to nearest, ties to even, as every device converts them. The result is
 * a float again. Infinities and NaNs stay, and values that are too large become infinities. There are no branches, so
 * loops over these functions are vectorised. Pure. */

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

/* 5 bits of exponent, 10 of mantissa. Below 2^-14 steps are 2^-24, those of floats from 0.5 to 1, so adding 0.5 rounds
 * to them. From 65520 on, halfway above the largest number, the result is an infinity. */
static inline float round_fp16(float x) {
  uint32_t u = float_bits(x), sign = u & 0x80000000u, size = u & 0x7fffffffu;
  uint32_t normal = (size + 0xfffu + ((size >> 13) & 1u)) & 0xffffe000u;
  uint32_t small = float_bits((float_of_bits(size < 0x38800000u ? size : 0) + 0.5f) - 0.5f);
  uint32_t out = size < 0x38800000u ? small : normal;
  out = size >= 0x477ff000u ? 0x7f800000u : out;
  out = size > 0x7f800000u ? size | 0x400000u : out;
  return float_of_bits(sign | out);
}

#endif
