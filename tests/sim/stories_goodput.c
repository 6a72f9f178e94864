/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's time went to: known faults give known numbers. */

#include "tests/sim/stories.h"

#include <stddef.h>

/* A step each 500 ms; a crash loses what came after step 10. */
static struct behaviour stepping(struct behaviour b, uint32_t from_step) {
  b.progress_ms = 500;
  b.from_step = from_step;
  return b;
}

static void verbose(struct sim_config *c) {
  c->logs = true;
}

/* n2 comes after 4 s. Round 1 has its first step 0.5 s after START, and works for 9.75 s: 19 steps more, and a half. It
 * resumes at step 10, which it had 4.5 s after the first one. Round 2 begins as late, and works for 13.5 s.
 *
 *   waiting 4, starting 0.5 + 0.5, lost 9.75 - 4.5 = 5.25, productive 4.5 + 13.5 = 18, of 28.25 s: 63 % */
static void one_restart(struct sim *s) {
  s->normal = stepping(story_run(14000), 10);
  rule_add(s, 0, 0, 1, stepping(story_forever(), 0));
  rule_add(s, 1, 0, 1, stepping(story_exit(10250, 1), 0));
  daemon_start(s);
  for (int i = 0; i < 2; i++) node_add(s, 1);
  for (int i = 0; i < 2; i++) s->nodes[i].expected_hosts = "n[1-2]", s->nodes[i].expected_nodes = 2;
  agent_start(s, 0);
  sim_until(s, 4000);
  agent_start(s, 1);
}

static const char sentence[] = "useful 63 % of 28 s; lost: 1 restart 6 s, waiting for n2 4 s";

static void goodput(struct sim *s) {
  one_restart(s);
  story_expect(s, sentence, 60000);
}

/* The daemon is killed in each round. It has a state file, or learns all from the nodes: the numbers are the same, as
 * far as it knows when step 10 was. */
static void goodput_without_daemon(struct sim *s) {
  one_restart(s);
  sim_until(s, 9000);
  story_daemon_away(s, 2020);
  sim_until(s, 18000);
  story_daemon_away(s, 2020);
  story_expect(s, sentence, 60000);
}

static void with_file(struct sim_config *c) {
  verbose(c);
  c->state_dir = true;
}

const struct story stories_goodput[] = {
    {"goodput", verbose, goodput},
    {"goodput-daemon-dies", verbose, goodput_without_daemon},
    {"goodput-daemon-dies-file", with_file, goodput_without_daemon},
    {NULL, NULL, NULL},
};
