/* A permutation that is computed, not stored: a Feistel network of six rounds over the smallest even
 * number of bits that holds n, and "cycle walking": a result of n or more is put through again until it is
 * below n. Both steps are invertible, so every number below n is hit exactly once. The domain is less than
 * four times n, so four walks are the mean at worst.
 *
 * A shuffled array would be simpler, but costs 8 bytes per sample in each worker and the whole shuffle at
 * every resume; this costs nothing and any position can be asked for. It is no cipher and need not be. */

#include "agent/trainer/sampler.h"

#include "agent/trainer/rng.h"

enum { ROUNDS = 6 };

/* Of a step; no more than the whole data, so nothing overflows. */
static uint64_t most(const struct sampler *s) {
  uint64_t group = s->group ? s->group : 1;
  return group < s->samples / s->batch + 1 ? group * s->batch : s->samples;
}

uint64_t sampler_steps(const struct sampler *s) {
  return s->samples / most(s) + (s->samples % most(s) != 0);
}

uint64_t sampler_step_samples(const struct sampler *s, uint64_t position) {
  uint64_t left = s->samples - position;
  return left < most(s) ? left : most(s);
}

struct share sampler_share(const struct sampler *s, uint64_t position, int rank, int world) {
  uint64_t left = s->samples - position, global = left < s->batch ? left : s->batch;
  uint64_t r = (uint64_t)rank, w = (uint64_t)world, each = global / w, more = global % w;
  return (struct share){
      .first = position + r * each + (r < more ? r : more),
      .count = each + (r < more),
      .global = global,
  };
}

uint64_t sampler_share_max(const struct sampler *s, int world) {
  uint64_t batch = s->batch < s->samples ? s->batch : s->samples;
  return (batch + (uint64_t)world - 1) / (uint64_t)world;
}

uint64_t sampler_step_share_max(const struct sampler *s, int world) {
  struct sampler last = {.samples = most(s) % s->batch, .batch = s->batch};
  return most(s) / s->batch * sampler_share_max(s, world) + sampler_share_max(&last, world);
}

struct group sampler_group(const struct sampler *s, uint64_t position) {
  uint64_t total = sampler_step_samples(s, position);
  return (struct group){.total = total, .left = total, .next = position};
}

bool sampler_next(const struct sampler *s, int rank, int world, struct group *g) {
  if (g->left == 0) return false;
  g->row += g->share.count;
  g->share = sampler_share(s, g->next, rank, world);
  g->next += g->share.global;
  g->left -= g->share.global;
  return true;
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
