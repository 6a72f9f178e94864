/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_RANDOM_H
#define TESTS_SIM_RANDOM_H

#include "tests/sim/sim.h"

/* Plays the random story of this seed to its end: a random cluster, random faults for a while, then peace, in which
 * the job must end. The caller looks at
 * ->violated and destroys it. */
struct sim *random_play(uint64_t seed, bool trace, bool verbose);

struct random_summary {
  uint64_t seeds, failures, first_failure; /* first_failure: the lowest seed that failed */
  uint64_t virtual_ms, steps, agents, successes, failed, crashed;
  uint64_t digest; /* of all traces, if they were kept */
};
/* Plays seeds [from, to) in `jobs` processes; coverage is collected. Returns false when one failed: it is played
 * again and its trace printed. */
bool random_campaign(uint64_t from, uint64_t to, int jobs, bool trace, struct random_summary *sum);

#endif
