/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of --verify-every: every rank's gradients are repeated by every other one in turn, a difference anywhere
 * shows in the sums, and the wrong rank is named, whichever it is and whenever it was wrong. */

#include "agent/trainer/run/verify_rule.h"

#include "agent/trainer/rng.h"

#include <string.h>
#include "tests/rig/unit.h"

enum { WORLD_MAX = 9 };

UNIT_TEST(test_the_neighbours_rotate) {
  for (int world = 2; world <= WORLD_MAX; world++)
    for (int r = 0; r < world; r++) {
      unsigned seen = 0;
      for (uint64_t turn = 5; turn < 5 + (uint64_t)world - 1; turn++) {
        int n = verify_neighbour(r, world, turn);
        assert_int_not_equal(n, r);
        if (world > 2) assert_int_not_equal(n, verify_neighbour(r, world, turn + 1));
        seen |= 1u << n;
      }
      assert_int_equal(seen, ((1u << world) - 1) & ~(1u << r));
    }
}

static bool states_agree(const uint64_t *states, int world) {
  double sums[VERIFY_STATE_TERMS] = {0}, terms[VERIFY_STATE_TERMS];
  for (int r = 0; r < world; r++) {
    verify_state_terms(states[r], terms);
    for (int i = 0; i < VERIFY_STATE_TERMS; i++) sums[i] += terms[i];
  }
  return verify_state_agrees(sums, world);
}

UNIT_TEST(test_a_state_that_differs_is_seen_and_named) {
  for (int world = 2; world <= WORLD_MAX; world++)
    for (int bad = 0; bad < world; bad++)
      for (int bit = 0; bit < 64; bit++) {
        uint64_t states[WORLD_MAX];
        enum verify_mark marks[WORLD_MAX];
        for (int r = 0; r < world; r++) states[r] = rng_mix((uint64_t)bit);
        assert_true(states_agree(states, world));
        states[bad] ^= UINT64_C(1) << bit;
        assert_false(states_agree(states, world));
        verify_judge_states(states, world, marks);
        for (int r = 0; r < world; r++)
          assert_int_equal(marks[r], world == 2 ? VERIFY_SUSPECT : r == bad ? VERIFY_WRONG : VERIFY_GOOD);
      }
}

/* Sums of the largest world that there may be stay exact. */
UNIT_TEST(test_a_large_world) {
  enum { LARGE = 65536 };
  double same[VERIFY_STATE_TERMS], other[VERIFY_STATE_TERMS], sums[VERIFY_STATE_TERMS];
  verify_state_terms(UINT64_MAX, same);
  verify_state_terms(UINT64_MAX - 1, other);
  for (int i = 0; i < VERIFY_STATE_TERMS; i++) sums[i] = LARGE * same[i];
  assert_true(verify_state_agrees(sums, LARGE));
  for (int i = 0; i < VERIFY_STATE_TERMS; i++) sums[i] += other[i] - same[i];
  assert_false(verify_state_agrees(sums, LARGE));
}

UNIT_TEST(test_states_without_a_majority) {
  enum verify_mark marks[5];
  verify_judge_states((uint64_t[]){1, 1, 2, 2}, 4, marks);
  for (int r = 0; r < 4; r++) assert_int_equal(marks[r], VERIFY_SUSPECT);
  verify_judge_states((uint64_t[]){1, 2, 3}, 3, marks);
  for (int r = 0; r < 3; r++) assert_int_equal(marks[r], VERIFY_SUSPECT);
  verify_judge_states((uint64_t[]){4, 1, 3, 4, 2}, 5, marks);
  for (int r = 0; r < 5; r++) assert_int_equal(marks[r], r == 0 || r == 3 ? VERIFY_GOOD : VERIFY_WRONG);
}

/* A rank that is wrong at some of the four things that it computes: its own gradients, a neighbour's, both again. */
struct fault {
  int rank;
  unsigned at; /* bits */
  bool random; /* other wrong bits each time, not the same ones */
};

static void compute_all(struct verify_answers *all, int world, uint64_t turn, struct fault f) {
  for (int r = 0; r < world; r++) {
    uint64_t *const values[] = {&all[r].own, &all[r].other, &all[r].own_again, &all[r].other_again};
    int of[] = {r, verify_neighbour(r, world, turn), r, verify_neighbour(r, world, turn + 1)};
    for (unsigned i = 0; i < 4; i++) {
      *values[i] = rng_mix(100 + (uint64_t)of[i]);
      if (r == f.rank && (f.at & 1u << i)) *values[i] = rng_mix(500 + (uint64_t)of[i] + (f.random ? 97 * (1 + i) : 0));
    }
  }
}

static bool gradients_agree(const struct verify_answers *all, int world, uint64_t turn) {
  double sums[VERIFY_GRADIENT_TERMS] = {0}, terms[VERIFY_GRADIENT_TERMS];
  for (int r = 0; r < world; r++) {
    verify_gradient_terms(all[r].own, all[r].other, r, verify_neighbour(r, world, turn), terms);
    for (int i = 0; i < VERIFY_GRADIENT_TERMS; i++) sums[i] += terms[i];
  }
  return verify_gradients_agree(sums);
}

UNIT_TEST(test_wrong_gradients_are_seen_and_named) {
  for (int world = 2; world <= WORLD_MAX; world++)
    for (uint64_t turn = 0; turn < 12; turn++)
      for (struct fault f = {0}; f.rank < world; f.rank++)
        for (f.at = 0; f.at < 16; f.at++)
          for (int random = 0; random < 2; random++) {
            struct verify_answers all[WORLD_MAX];
            enum verify_mark marks[WORLD_MAX];
            f.random = random;
            compute_all(all, world, turn, f);
            bool seen = f.at & 3;
            assert_int_equal(!gradients_agree(all, world, turn), seen);
            verify_judge_gradients(all, world, turn, marks);
            /* With two ranks: the same wrong bits twice, so neither rank contradicts itself. */
            bool own_twice = (f.at & 5) == 5 && !f.random, other_twice = (f.at & 10) == 10 && !f.random;
            bool own_good = (f.at & 5) == 0, other_good = (f.at & 10) == 0;
            bool undecided = world == 2 && (own_twice || own_good) && (other_twice || other_good);
            for (int r = 0; r < world; r++) {
              enum verify_mark want = f.at == 0     ? VERIFY_GOOD
                                      : undecided   ? VERIFY_SUSPECT
                                      : r == f.rank ? VERIFY_WRONG
                                                    : VERIFY_GOOD;
              assert_int_equal(marks[r], want);
            }
          }
}

UNIT_TEST(test_two_wrong_ranks) {
  struct verify_answers all[6], second[6];
  enum verify_mark marks[6];
  compute_all(all, 6, 0, (struct fault){1, 15, true});
  compute_all(second, 6, 0, (struct fault){4, 15, true});
  all[4] = second[4];
  verify_judge_gradients(all, 6, 0, marks);
  for (int r = 0; r < 6; r++) assert_int_equal(marks[r], r == 1 || r == 4 ? VERIFY_WRONG : VERIFY_GOOD);
}
