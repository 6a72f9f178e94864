/* SPDX-License-Identifier: Apache-2.0 */
/* A permutation that is computed, not stored: a Feistel network of six rounds over the smallest even number of bits
 * that holds n, with cycle walking. A result of n or more goes through the network again until it is below n. Both
 * steps are invertible, so every number below n occurs exactly once. The domain is smaller than 4n, so four passes are
 * the worst mean.
 *
 * A shuffled array would be simpler, but it needs 8 bytes per sample in each worker, and the whole shuffle at every
 * resume. Here any position can be computed alone. This is not a cipher and need not be one. */

#include "agent/trainer/data/data.h"

#include "agent/trainer/rng.h"

enum { ROUNDS = 6 };

uint64_t sampler_steps_per_epoch(const struct sampler *s) {
  return s->samples / s->batch + (s->samples % s->batch != 0);
}

struct sampler_share sampler_share(const struct sampler *s, uint64_t position, int rank, int world) {
  uint64_t left = s->samples - position, global = left < s->batch ? left : s->batch;
  uint64_t r = (uint64_t)rank, w = (uint64_t)world, each = global / w, more = global % w;
  return (struct sampler_share){
      .first = position + r * each + (r < more ? r : more),
      .count = each + (r < more),
      .global = global,
  };
}

uint64_t sampler_share_max(const struct sampler *s, int world) {
  uint64_t batch = s->batch < s->samples ? s->batch : s->samples;
  return (batch + (uint64_t)world - 1) / (uint64_t)world;
}

struct permutation sampler_epoch(const struct sampler *s, uint64_t epoch) {
  struct permutation p = {.n = s->samples, .half = 1};
  while (p.half < 31 && (UINT64_C(1) << (2 * p.half)) < p.n) p.half++;
  for (unsigned k = 0; k < ROUNDS; k++) p.key[k] = rng_at(s->seed, RNG_SAMPLER, epoch * ROUNDS + k);
  return p;
}

uint64_t permutation_at(const struct permutation *p, uint64_t position) {
  uint64_t mask = (UINT64_C(1) << p->half) - 1, x = position;
  do {
    uint64_t left = x >> p->half, right = x & mask;
    for (unsigned k = 0; k < ROUNDS; k++) {
      uint64_t next = left ^ (rng_mix(p->key[k] ^ right) & mask);
      left = right;
      right = next;
    }
    x = left << p->half | right;
  } while (x >= p->n);
  return x;
}
