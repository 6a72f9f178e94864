#ifndef AGENT_TRAINER_SAMPLER_H
#define AGENT_TRAINER_SAMPLER_H

/* Who trains on what. An epoch is one permutation of all samples, from the seed and the epoch's number.
 * Global batch k is the k-th run of `batch` positions in it (the last one may be short), the same for any
 * world size; each rank takes one contiguous share of each global batch, shares differing by one sample at
 * most. So every sample goes to exactly one rank exactly once an epoch. A step takes `group` batches, fewer
 * at the end of an epoch, which no step goes across. Pure. */

#include <stdbool.h>
#include <stdint.h>

struct sampler {
  uint64_t samples, batch, seed;
  uint64_t group; /* batches in a step; 0 is 1 */
};

/* One epoch's permutation. */
struct permutation {
  uint64_t n;
  unsigned half; /* bits in each half of the Feistel network */
  uint64_t key[6];
};

/* Positions [first, first + count) of the epoch are this rank's; `global` is the whole batch's number of
 * samples. count may be 0. */
struct share {
  uint64_t first, count, global;
};

/* The batches of one step, one after the other. */
struct group {
  uint64_t total;     /* samples of the step, over all ranks */
  uint64_t left;      /* of them behind this batch; 0: it is the last one */
  struct share share; /* this rank's part of the batch */
  uint64_t row;       /* this rank's samples of the batches before */
  uint64_t next;      /* where the next one begins */
};

uint64_t sampler_steps(const struct sampler *s); /* in an epoch */
/* Samples, over all ranks, of the step that begins at `position`: of its one batch, or of its group of batches. What a rank adds to the
 * step's gradient weighs its samples in this many, so that the sum is the gradient of the mean over all of them. */
uint64_t sampler_step_samples(const struct sampler *s, uint64_t position);
/* The share of the batch that begins at `position` (0 <= position < samples). */
struct share sampler_share(const struct sampler *s, uint64_t position, int rank, int world);
/* The largest share that any rank can get; of a batch, and of all batches of a step. */
uint64_t sampler_share_max(const struct sampler *s, int world);
uint64_t sampler_step_share_max(const struct sampler *s, int world);
/* Before the first batch of the step that begins at `position`; then, for each batch, true and what it is:
 *
 *   struct group g = sampler_group(s, position);
 *   while (sampler_next(s, rank, world, &g)) ... */
struct group sampler_group(const struct sampler *s, uint64_t position);
bool sampler_next(const struct sampler *s, int rank, int world, struct group *g);
struct permutation sampler_epoch(const struct sampler *s, uint64_t epoch);
uint64_t permutation_at(const struct permutation *p, uint64_t position); /* the sample's number */

#endif
