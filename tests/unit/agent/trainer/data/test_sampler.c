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
