/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler: every sample goes to exactly one rank exactly once an epoch, for any numbers, and the global batches are
 * the same for any world. */

#include "agent/trainer/data/data.h"

#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static void check_partition(uint64_t n, uint64_t batch, int world, uint64_t epoch) {
  struct sampler s = {.samples = n, .batch = batch, .seed = 11};
  struct permutation p = sampler_epoch(&s, epoch);
  unsigned char *seen = calloc(n, 1);
  uint64_t position = 0, batches = 0;
  while (position < n) {
    uint64_t next = position, global = 0;
    for (int r = 0; r < world; r++) {
      struct sampler_share sh = sampler_share(&s, position, r, world);
      assert_int_equal(sh.first, next); /* shares lie behind each other, without gaps */
      assert_true(sh.count <= sampler_share_max(&s, world));
      global = sh.global;
      next += sh.count;
      for (uint64_t k = 0; k < sh.count; k++) {
        uint64_t sample = permutation_at(&p, sh.first + k);
        assert_true(sample < n && !seen[sample]++);
      }
    }
    assert_int_equal(next - position, global);
    assert_true(global == batch || position + global == n);
    position = next;
    batches++;
  }
  assert_int_equal(batches, sampler_steps_per_epoch(&s));
  for (uint64_t i = 0; i < n; i++) assert_int_equal(seen[i], 1);
  free(seen);
}

UNIT_TEST(test_every_sample_goes_to_one_rank_once) {
  static const uint64_t counts[] = {1, 2, 3, 4, 5, 15, 16, 17, 64, 100, 1000, 4097};
  static const uint64_t batches[] = {1, 2, 3, 7, 64, 5000};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    for (size_t k = 0; k < sizeof batches / sizeof *batches; k++)
      for (int world = 1; world <= 9; world++) check_partition(counts[i], batches[k], world, (i + k) % 4);
}

/* Steps of several batches: each batch equals one of a step with one batch, a step ends with the epoch, and a rank's
 * samples of it follow each other. */
static void check_groups(uint64_t n, uint64_t batch, uint64_t group, int world) {
  struct sampler one = {.samples = n, .batch = batch}, s = {.samples = n, .batch = batch, .batches = group};
  uint64_t position = 0, steps = 0;
  for (; position < n; steps++) {
    uint64_t want = sampler_step_samples(&s, position), covered = 0;
    for (int r = 0; r < world; r++) {
      struct sampler_step g = sampler_step_at(&s, position);
      uint64_t done = 0, batches = 0, mine = 0;
      for (; sampler_next_batch(&s, r, world, &g); batches++) {
        struct sampler_share plain = sampler_share(&one, position + done, r, world);
        assert_true(g.share.first == plain.first && g.share.count == plain.count);
        assert_true(g.total == want && g.row == mine);
        mine += g.share.count;
        done += g.share.global;
        assert_int_equal(g.left, want - done);
      }
      assert_int_equal(done, want);
      assert_true(mine <= sampler_step_share_max(&s, world));
      assert_true(batches == group || (batches < group && position + done == n));
      covered += mine;
    }
    assert_int_equal(covered, want);
    position += want;
  }
  assert_int_equal(position, n);
  assert_int_equal(steps, sampler_steps_per_epoch(&s));
  assert_int_equal(steps, (sampler_steps_per_epoch(&one) + group - 1) / group);
}

UNIT_TEST(test_groups_of_batches) {
  static const uint64_t counts[] = {1, 2, 5, 16, 17, 100, 1000}, batches[] = {1, 3, 10, 50, 5000};
  static const uint64_t groups[] = {1, 2, 3, 4, 7, 100, UINT64_C(1) << 20};
  for (size_t i = 0; i < 7; i++)
    for (size_t k = 0; k < 5; k++)
      for (size_t g = 0; g < 7; g++) check_groups(counts[i], batches[k], groups[g], (int)(1 + (i + k + g) % 5));
  struct sampler s = {.samples = 10, .batch = 4}, all = {.samples = 10, .batch = 4, .batches = 9};
  assert_int_equal(sampler_step_share_max(&s, 3), 2);
  assert_int_equal(sampler_step_share_max(&all, 3), 2 + 2 + 1);
  assert_int_equal(sampler_step_samples(&s, 4), 4); /* group 0: one batch */
  assert_int_equal(sampler_step_samples(&s, 8), 2);
}

UNIT_TEST(test_shares_differ_by_one_at_most) {
  struct sampler s = {.samples = 100, .batch = 10, .seed = 1};
  for (int world = 1; world <= 20; world++)
    for (int r = 0; r < world; r++) {
      uint64_t count = sampler_share(&s, 20, r, world).count, each = 10 / (uint64_t)world;
      assert_true(count == each || count == each + 1);
    }
}

UNIT_TEST(test_epochs_and_seeds_differ_and_repeat) {
  struct sampler a = {.samples = 1000, .batch = 10, .seed = 1}, b = {.samples = 1000, .batch = 10, .seed = 2};
  struct permutation p[4] = {sampler_epoch(&a, 0), sampler_epoch(&a, 1), sampler_epoch(&b, 0), sampler_epoch(&a, 0)};
  int same[4] = {0}, in_place = 0;
  for (uint64_t i = 0; i < 1000; i++) {
    for (int k = 1; k < 4; k++) same[k] += permutation_at(&p[0], i) == permutation_at(&p[k], i);
    in_place += permutation_at(&p[0], i) == i;
  }
  assert_true(same[1] < 20 && same[2] < 20 && in_place < 20); /* one is expected; 20 would not be a shuffle */
  assert_int_equal(same[3], 1000);
}

/* Where sample 0 lands, over many epochs: chi-square over 16 places; 45 is passed once in ten thousand
 * seeds. */
UNIT_TEST(test_places_are_evenly_used) {
  struct sampler s = {.samples = 16, .batch = 4, .seed = 3};
  double hits[16] = {0}, chi = 0;
  for (uint64_t epoch = 0; epoch < 16000; epoch++) {
    struct permutation p = sampler_epoch(&s, epoch);
    for (uint64_t i = 0; i < 16; i++)
      if (permutation_at(&p, i) == 0) hits[i]++;
  }
  for (int i = 0; i < 16; i++) chi += (hits[i] - 1000) * (hits[i] - 1000) / 1000;
  assert_true(chi < 45);
}

UNIT_TEST(test_a_large_set_costs_nothing) {
  struct sampler s = {.samples = UINT64_C(1) << 40, .batch = 1 << 20, .seed = 3};
  struct permutation p = sampler_epoch(&s, 5);
  assert_true(permutation_at(&p, 0) < s.samples && permutation_at(&p, s.samples - 1) < s.samples);
  assert_true(permutation_at(&p, 0) != permutation_at(&p, 1));
}
