/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_STORIES_H
#define TESTS_SIM_STORIES_H

#include "tests/sim/sim.h"

/* A story sets up a cluster and lets things happen to it. It goes on until all agents are gone, and is compared, line by line,
 * with tests/sim/stories/NAME.txt. */
struct story {
  const char *name;
  void (*configure)(struct sim_config *c); /* NULL: two nodes, fixed */
  void (*tell)(struct sim *s);
};

/* Tables that end with a NULL name. */
extern const struct story stories_join[], stories_fault[], stories_end[], stories_daemon[], stories_return[],
    stories_repeat[], stories_lessons[], stories_elastic[], stories_pairs[], stories_partition[], stories_hang[],
    stories_prepare[], stories_stay[], stories_control[], stories_users[], stories_takeover[], stories_goodput[],
    stories_health[];
extern const struct story *const all_stories[]; /* ends with NULL */

/* Plays it. The caller looks at the trace and destroys it. */
struct sim *story_play(const struct story *st, bool verbose);

/* What stories are made of. */
void story_one_to_three(struct sim_config *c); /* nodes, and the first round waits for more of them for 100 ms */
void story_two_to_three(struct sim_config *c);
void story_nodes(struct sim *s, int nodes, uint32_t workers); /* and the daemon, and all agents started at once */
/* The same, until all ranks run, and ms later. */
void story_running(struct sim *s, int nodes, uint32_t workers, uint64_t ms);
void story_daemon_away(struct sim *s, uint64_t ms); /* killed, and started ms later */
void story_expect(struct sim *s, const char *part,
                  uint64_t limit_ms);              /* goes on to that line; a note in the trace if it never comes */
void story_over(struct sim *s, uint64_t limit_ms); /* goes on until all agents are gone */
struct behaviour story_run(uint32_t run_ms);       /* then exits with 0 */
struct behaviour story_exit(uint32_t run_ms, int code);
struct behaviour story_signal(uint32_t run_ms, int signo);
struct behaviour story_forever(void);
struct behaviour story_staying(struct behaviour b, uint32_t park_ms);
struct behaviour story_saving(struct behaviour b, uint32_t ms); /* it answers requests for a checkpoint, in so long */

#endif
