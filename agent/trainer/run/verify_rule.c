/* SPDX-License-Identifier: Apache-2.0 */
/* All ranks are equal if and only if the mean of the squares of their numbers is the square of the mean. Both sides are
 * integers here: with 65536 ranks the sum of 16-bit pieces has 32 bits, and the products below have 64.
 *
 * Gradients are compared in pairs, (owner, the rank that repeats them). Each pair adds factor * (own - other), and its
 * two halves come from two ranks. The factor is the owner's number, so that the differences of two pairs in which one
 * wrong rank takes part do not cancel. */

#include "agent/trainer/run/verify_rule.h"

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

int verify_neighbour(int rank, int world, uint64_t turn) {
  return (int)(((uint64_t)rank + 1 + turn % (uint64_t)(world - 1)) % (uint64_t)world);
}

static double piece(uint64_t checksum, int i) {
  return (double)(checksum >> (16 * i) & 0xffff);
}

void verify_state_terms(uint64_t state, double out[VERIFY_STATE_TERMS]) {
  for (int i = 0; i < VERIFY_PIECES; i++) {
    out[2 * i] = piece(state, i);
    out[2 * i + 1] = piece(state, i) * piece(state, i);
  }
}

void verify_gradient_terms(uint64_t own, uint64_t other, int rank, int neighbour, double out[VERIFY_GRADIENT_TERMS]) {
  for (int i = 0; i < VERIFY_PIECES; i++) out[i] = (rank + 1) * piece(own, i) - (neighbour + 1) * piece(other, i);
}

bool verify_state_agrees(const double sums[VERIFY_STATE_TERMS], int world) {
  for (int i = 0; i < VERIFY_PIECES; i++) {
    uint64_t sum = (uint64_t)sums[2 * i], squares = (uint64_t)sums[2 * i + 1];
    if (sum * sum != squares * (uint64_t)world) return false;
  }
  return true;
}

bool verify_gradients_agree(const double sums[VERIFY_GRADIENT_TERMS]) {
  for (int i = 0; i < VERIFY_PIECES; i++)
    if (sums[i] < 0 || sums[i] > 0) return false;
  return true;
}

static int by_value(const void *a, const void *b) {
  const uint64_t *x = a, *y = b;
  return *x < *y ? -1 : *x > *y;
}

void verify_judge_states(const uint64_t *states, int world, enum verify_mark *marks) {
  size_t n = (size_t)world, most = 0, next = 0;
  uint64_t *sorted = xmalloc(n * sizeof *sorted), right = 0;
  memcpy(sorted, states, n * sizeof *sorted);
  qsort(sorted, n, sizeof *sorted, by_value);
  for (size_t i = 0, end; i < n; i = end) {
    for (end = i; end < n && sorted[end] == sorted[i]; end++) continue;
    if (end - i > most) {
      next = most;
      most = end - i;
      right = sorted[i];
    } else if (end - i > next) {
      next = end - i;
    }
  }
  free(sorted);
  bool decided = most >= 2 && most > next;
  for (int r = 0; r < world; r++)
    marks[r] = !decided ? VERIFY_SUSPECT : states[r] == right ? VERIFY_GOOD : VERIFY_WRONG;
}

static void mark(enum verify_mark *marks, int rank, enum verify_mark what) {
  if (what > marks[rank]) marks[rank] = what;
}

/* Who has computed the gradients of one rank's samples, and what. */
struct answer {
  int by;
  uint64_t value;
};

enum { ANSWERS = 4 };

static void judge_answers(const struct answer a[ANSWERS], enum verify_mark *marks) {
  const struct answer *right = NULL;
  bool unstable = false, agreed = true;
  for (int i = 0; i < ANSWERS; i++)
    for (int k = 0; k < i; k++) {
      bool equal = a[i].value == a[k].value, same_rank = a[i].by == a[k].by;
      agreed &= equal;
      if (same_rank && !equal) {
        unstable = true;
        mark(marks, a[i].by, VERIFY_WRONG);
      }
      if (equal && !same_rank && !right) right = &a[k];
    }
  if (agreed || unstable) return;
  for (int i = 0; i < ANSWERS; i++) {
    if (!right)
      mark(marks, a[i].by, VERIFY_SUSPECT);
    else if (a[i].value != right->value)
      mark(marks, a[i].by, VERIFY_WRONG);
  }
}

void verify_judge_gradients(const struct verify_answers *all, int world, uint64_t turn, enum verify_mark *marks) {
  bool wrong = false;
  memset(marks, 0, (size_t)world * sizeof *marks);
  for (int r = 0; r < world; r++) {
    int first = verify_neighbour(r, world, turn), second = verify_neighbour(r, world, turn + 1);
    /* The ranks that have repeated r's gradients: each turn is a rotation, so they are as far behind r. */
    int by = (2 * r - first + 2 * world) % world, again = (2 * r - second + 2 * world) % world;
    const struct answer answers[ANSWERS] = {
        {r, all[r].own}, {r, all[r].own_again}, {by, all[by].other}, {again, all[again].other_again}};
    judge_answers(answers, marks);
  }
  for (int r = 0; r < world; r++) wrong |= marks[r] == VERIFY_WRONG;
  for (int r = 0; r < world; r++)
    if (wrong && marks[r] == VERIFY_SUSPECT) marks[r] = VERIFY_GOOD;
}
