/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_RNG_H
#define AGENT_TRAINER_RNG_H

/* Random numbers as a function: value `counter` of stream `stream` of a seed. There is no state to advance. So the
 * result does not depend on the number of ranks or the order of calls, and a checkpoint stores only the seed. Initial
 * weights (model/) and the order of samples (data/) use it. Pure. */

#include <stdint.h>

enum rng_stream { RNG_WEIGHTS = 1, RNG_SAMPLER = 2 };

/* The finalizer of SplitMix64. */
static inline uint64_t rng_mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/* Of a text; never 0. */
static inline uint64_t rng_text(const char *text) {
  uint64_t x = 0;
  for (; *text; text++) x = rng_mix(x + (unsigned char)*text);
  return x | 1;
}

static inline uint64_t rng_at(uint64_t seed, enum rng_stream stream, uint64_t counter) {
  return rng_mix(rng_mix(rng_mix(seed) + (uint64_t)stream) + counter);
}

/* [0, 1), a multiple of 2^-24, so exact in a float. */
static inline float rng_unit(uint64_t seed, enum rng_stream stream, uint64_t counter) {
  return (float)(rng_at(seed, stream, counter) >> 40) * 0x1p-24f;
}

#endif
