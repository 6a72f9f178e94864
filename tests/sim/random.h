/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_RANDOM_H
#define TESTS_SIM_RANDOM_H

#include <stdio.h>
#include "tests/sim/sim.h"

/* Plays the random story of this seed to its end: a random cluster, random faults for a while, then peace, in which
 * the job must end. The caller looks at
 * ->violated and destroys it. */
struct sim *random_world(uint64_t seed, bool trace, bool verbose);
struct sim *random_takeover(uint64_t seed, bool trace, bool verbose); /* where other daemons take over */

struct sim *random_small_takeover(uint64_t seed, uint64_t from_ms, uint64_t to_ms, bool verbose); /* not played yet */

/* Plays such a story, and writes it for tests/model/replay.py. model_trace.c */
void model_trace(uint64_t seed, const char *without, bool verbose, FILE *out);

extern bool random_pairs; /* all worlds have --pair-check; false at first */
void random_choose_pairs(struct sim *s, int nodes, bool faults);

enum random_family { RANDOM_WORLD, RANDOM_TAKEOVER, RANDOM_FAMILIES };
const char *random_family_name(enum random_family f);
struct sim *random_play(enum random_family f, uint64_t seed, bool trace, bool verbose);

struct random_summary {
  uint64_t seeds, failures, first_failure; /* first_failure: the lowest seed that failed */
  uint64_t virtual_ms, steps, agents, successes, failed, crashed;
  uint64_t digest; /* of all traces, if they were kept */
};
/* Plays seeds [from, to) in `jobs` processes; coverage is collected. Returns false when one failed: it is played
 * again and its trace printed. */
bool random_campaign(enum random_family f, uint64_t from, uint64_t to, int jobs, bool trace,
                     struct random_summary *sum);

#endif
