#ifndef AGENT_TRAINER_RNG_H
#define AGENT_TRAINER_RNG_H

/* Randomness as a function: value number `counter` of stream `stream` of a seed. Nothing is advanced, so
 * the result depends neither on the number of ranks nor on who asks first, and a checkpoint stores nothing
 * but the seed. Pure. */

#include <stdint.h>

enum rng_stream { RNG_WEIGHTS = 1, RNG_SAMPLER = 2 };

/* The finalizer of SplitMix64: a good mix of 64 bits. */
static inline uint64_t rng_mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

static inline uint64_t rng_at(uint64_t seed, enum rng_stream stream, uint64_t counter) {
  return rng_mix(rng_mix(rng_mix(seed) + (uint64_t)stream) + counter);
}

/* [0, 1), a multiple of 2^-24, so exact in a float. */
static inline float rng_unit(uint64_t seed, enum rng_stream stream, uint64_t counter) {
  return (float)(rng_at(seed, stream, counter) >> 40) * 0x1p-24f;
}

#endif
