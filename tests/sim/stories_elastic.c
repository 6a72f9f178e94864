/* SPDX-License-Identifier: Apache-2.0 */
/* Restarts given back, and rounds that grow. */

#include "tests/sim/stories.h"

#include <stddef.h>

/* Restarts given back. --------------------------------------------------------------------------------------------- */

static void one_restart(struct sim_config *c) {
  c->settings.max_restarts = 1;
}

static void one_restart_with_file(struct sim_config *c) {
  c->settings.max_restarts = 1;
  c->state_dir = true;
}

static struct behaviour telling(struct behaviour b) {
  b.progress_ms = 300;
  return b;
}

/* Each round comes further than the last, until one does not. */
static void refill_by_progress(struct sim *s) {
  s->normal = telling(story_run(60000));
  rule_add(s, 1, 0, 1, telling(story_exit(1000, 3)));
  rule_add(s, 1, 0, 2, telling(story_exit(2000, 3)));
  rule_add(s, 1, 0, 3, telling(story_exit(1500, 3)));
}

static void refill_by_time(struct sim *s) {
  s->normal = story_run(1000);
  rule_add(s, -1, 0, 1, story_forever());
  rule_add(s, 1, 0, 1, story_exit(1000, 3));
  rule_add(s, -1, 0, 2, story_forever());
  rule_add(s, 1, 0, 2, story_exit(610000, 3));
}

/* The daemon that comes back has not forgotten at which step it failed. */
static void refill_is_not_invented(struct sim *s) {
  s->normal = telling(story_run(60000));
  rule_add(s, 1, 0, 1, telling(story_exit(2000, 3)));
  rule_add(s, 1, 0, 2, telling(story_exit(1800, 3)));
  story_nodes(s, 2, 1);
  story_expect(s, "round 2", 10000);
  sim_for(s, 1000);
  story_daemon_away(s, 200);
}

/* Growing. --------------------------------------------------------------------------------------------------------- */

static void two_to_four(struct sim_config *c) {
  c->settings.max_nodes = 4;
  c->settings.last_call_ms = 100;
}

static void next_round(struct sim_config *c) {
  two_to_four(c);
  c->settings.scale_up = SCALE_UP_NEXT_ROUND;
}

/* Two come one after the other, the round is 30 s old, and both are taken at once. */
static void grow(struct sim *s) {
  s->normal = story_run(40000);
  story_nodes(s, 2, 1);
  node_add(s, 1), node_add(s, 1);
  sim_until(s, 5000);
  agent_start(s, 2);
  sim_until(s, 20000);
  agent_start(s, 3);
}

/* It has been old enough for long. */
static void grow_at_once(struct sim *s) {
  s->normal = story_run(50000);
  story_nodes(s, 2, 1);
  node_add(s, 1);
  sim_until(s, 40000);
  agent_start(s, 2);
}

/* Who came has gone again, and is not waited for. */
static void newcomer_goes_again(struct sim *s) {
  s->normal = story_run(50000);
  story_nodes(s, 2, 1);
  node_add(s, 1);
  sim_until(s, 5000);
  agent_start(s, 2);
  sim_until(s, 10000);
  agent_kill(s, agent_of(s, 2));
}

/* Only n3 makes it possible that a round forms without n1, whose wire is cut before the next heartbeat of either. */
static void newcomer_and_a_cut(struct sim *s) {
  s->normal = story_run(20000);
  story_nodes(s, 2, 1);
  node_add(s, 1);
  sim_until(s, 5300);
  agent_start(s, 2);
  sim_until(s, 5310);
  link_cut(s, 0, true, true);
  sim_for(s, 15000);
  link_heal(s, 0);
}

static void comes_when_one_has_finished(struct sim *s) {
  s->normal = story_run(50000);
  rule_add(s, 0, 0, 0, story_run(20000));
  story_nodes(s, 2, 1);
  node_add(s, 1);
  sim_until(s, 5000);
  agent_start(s, 2);
}

static void one_to_two(struct sim_config *c) {
  c->settings.min_nodes = 1;
  c->settings.last_call_ms = 100;
}

/* n2 is lost from three rounds. The fourth time it is kept waiting; and it is taken when n1 is gone. */
static void flapping(struct sim *s) {
  s->normal = story_run(400000);
  story_nodes(s, 2, 1);
  for (int i = 0; i < 3; i++) {
    sim_for(s, 35000);
    agent_kill(s, agent_of(s, 1));
    sim_for(s, 1000);
    agent_start(s, 1);
  }
  sim_for(s, 60000);
  s->normal = story_run(1000);
  agent_kill(s, agent_of(s, 0));
}

const struct story stories_elastic[] = {
    {"grow", two_to_four, grow},
    {"grow-at-once", two_to_four, grow_at_once},
    {"grow-next-round", next_round, grow},
    {"grow-newcomer-goes-again", two_to_four, newcomer_goes_again},
    {"grow-newcomer-and-a-cut", two_to_four, newcomer_and_a_cut},
    {"grow-one-has-finished", two_to_four, comes_when_one_has_finished},
    {"flapping", one_to_two, flapping},
    {"refill-by-progress", one_restart, refill_by_progress},
    {"refill-by-time", one_restart, refill_by_time},
    {"refill-is-not-invented", one_restart, refill_is_not_invented},
    {"refill-is-not-invented-file", one_restart_with_file, refill_is_not_invented},
    {NULL, NULL, NULL},
};
