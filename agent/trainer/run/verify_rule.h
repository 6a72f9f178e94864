/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_RUN_VERIFY_RULE_H
#define AGENT_TRAINER_RUN_VERIFY_RULE_H

/* The rules of --verify-every: whose gradients a rank repeats, whether all ranks agree, and which one is wrong. Pure.
 *
 * A check of a healthy world costs one coll_sum of a few numbers, whatever its size. Only when that finds a difference
 * do the ranks exchange what each of them has. */

#include <stdbool.h>
#include <stdint.h>

/* The rank whose gradients `rank` repeats at the turn'th check. In world - 1 turns it is each of the others once, and two
 * turns in a row are two ranks if there are two. */
int verify_neighbour(int rank, int world, uint64_t turn);

/* The numbers that the ranks sum. A checksum is cut into pieces, so that all sums are exact in doubles. */
enum { VERIFY_PIECES = 4, VERIFY_STATE_TERMS = 2 * VERIFY_PIECES, VERIFY_GRADIENT_TERMS = VERIFY_PIECES };
void verify_state_terms(uint64_t state, double out[VERIFY_STATE_TERMS]);
/* own: of this rank's gradients. other: of the neighbour's, as this rank computed them. */
void verify_gradient_terms(uint64_t own, uint64_t other, int rank, int neighbour, double out[VERIFY_GRADIENT_TERMS]);
/* From the sums over all ranks. true: all are equal. */
bool verify_state_agrees(const double sums[VERIFY_STATE_TERMS], int world);
bool verify_gradients_agree(const double sums[VERIFY_GRADIENT_TERMS]);

enum verify_mark {
  VERIFY_GOOD,
  VERIFY_SUSPECT, /* it differs from others, and no third rank can decide */
  VERIFY_WRONG,   /* two others agree on something else, or it gave two answers to one question */
};

/* states: a checksum of each rank. The value that most ranks have is right, if two have it. Then no rank is suspect. */
void verify_judge_states(const uint64_t *states, int world, enum verify_mark *marks);

/* Checksums of gradients: a rank's own, and the neighbour's of a turn. */
struct verify_answers {
  uint64_t own, other;             /* at the turn that found a difference */
  uint64_t own_again, other_again; /* at the turn behind it */
};
/* A value that two ranks computed is right. If any rank is wrong, none is suspect. */
void verify_judge_gradients(const struct verify_answers *all, int world, uint64_t turn, enum verify_mark *marks);

#endif
