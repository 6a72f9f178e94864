/* SPDX-License-Identifier: Apache-2.0 */
/* Lessons of the random stories: each of these went wrong once, and is reduced here to its core. */

#include "tests/sim/stories.h"

#include <signal.h>
#include <stddef.h>

static void far(struct sim_config *c) {
  c->delay_min = c->delay_max = 20;
}

/* What happens between HELLO and WELCOME is reported all the same. */
static void fails_while_greeting(struct sim *s) {
  story_running(s, 2, 1, 1000);
  link_break(s, agent_of(s, 1)->conn, 1, 1);
  story_expect(s, "n2 -> rdzvd: HELLO running", 5000);
  worker_signal(s, agent_of(s, 1), 0, SIGKILL);
}

static void patient_elastic(struct sim_config *c) {
  c->settings.max_nodes = 3;
  c->settings.last_call_ms = 100;
  c->settings.stop_timeout_ms = 20000;
}

/* Leaving, cut off, and its workers in no hurry: it fences itself once, and that ends its leaving. */
static void fences_while_leaving(struct sim *s) {
  struct behaviour b = story_forever();
  b.term_ms = UINT32_MAX;
  rule_add(s, 1, 0, 0, b);
  story_running(s, 3, 1, 1000);
  link_cut(s, 1, true, true);
  agent_signal(s, agent_of(s, 1), SIGTERM);
  sim_for(s, 20000);
  link_heal(s, 1);
}

static void three_with_file(struct sim_config *c) {
  c->settings.min_nodes = c->settings.max_nodes = 3;
  c->state_dir = true;
}

/* n1 was cut off without FENCE, its round was settled, the daemon came back, and so does n1: the next round waits
 * until n1 has killed what it runs. */
static void stale_node_holds_the_seal(struct sim *s) {
  s->config.die_max = 200;
  rule_add(s, -1, -1, 0, story_run(20000));
  story_nodes(s, 3, 1);
  node_add(s, 1);
  story_expect(s, "rank 2 runs", 5000);
  sim_for(s, 1000);
  link_cut(s, 0, true, true);
  story_expect(s, "rdzvd -> n3: SETTLED", 20000);
  daemon_kill(s);
  sim_for(s, 100);
  link_heal(s, 0);
  daemon_start(s);
  agent_start(s, 3);
}

/* Without a state file, a newcomer opens a new life of the job; the old one's nodes take it back, and the newcomer
 * hears its end. */
static void newcomer_meets_the_old_life(struct sim *s) {
  story_nodes(s, 2, 1);
  node_add(s, 1);
  story_expect(s, "rank 1 runs", 5000);
  sim_for(s, 1000);
  story_daemon_away(s, 2000);
  agent_start(s, 2);
}

static void with_file(struct sim_config *c) {
  c->state_dir = true;
}

/* n2 misses the end of the first run; the second run ends, the daemon restarts: n2 still learns how its own run
 * ended. */
static void two_ends_are_remembered(struct sim *s) {
  s->normal = story_run(1000);
  story_nodes(s, 2, 1);
  node_add(s, 1);
  story_expect(s, "rank 1 runs", 5000);
  sim_for(s, 500);
  link_cut(s, 1, true, false);
  sim_for(s, 3000);
  rule_add(s, 0, 0, 0, story_exit(500, 3));
  rule_add(s, 0, 0, 2, story_exit(500, 3));
  agent_start(s, 0), agent_start(s, 2);
  sim_until(s, 20000);
  story_daemon_away(s, 100);
  link_heal(s, 1);
}

/* Stopped right after HELLO, continued when its place was given away: START is there to be read, and is too old. */
static void late_start_is_doubted(struct sim *s) {
  rule_add(s, -1, -1, 0, story_run(5000));
  daemon_start(s);
  for (int i = 0; i < 3; i++) node_add(s, 1);
  agent_start(s, 0), agent_start(s, 1);
  story_expect(s, "n2 -> rdzvd: HELLO", 1000);
  agent_pause(s, agent_of(s, 1));
  sim_for(s, 8000);
  agent_start(s, 2);
  sim_for(s, 1000);
  agent_continue(s, agent_of(s, 1));
}

/* An operator stops a job while it is RECOVERING and nobody has come back: whoever does is told. */
static void stopped_before_anybody_is_back(struct sim *s) {
  story_running(s, 2, 1, 1000);
  link_cut(s, 0, true, true), link_cut(s, 1, true, true);
  story_daemon_away(s, 100);
  sim_for(s, 100);
  daemon_stop_job(s, "job");
  sim_for(s, 1000);
  link_heal(s, 0), link_heal(s, 1);
}

/* All fence themselves while the daemon cannot be reached: the job goes on, and if one has finished it fails, but not
 * with 0. */
static void nobody_knows_why(struct sim *s) {
  rule_add(s, 0, 0, 0, story_run(500));
  rule_add(s, 1, 0, 0, story_forever());
  story_nodes(s, 2, 1);
  story_expect(s, "finished round 1", 5000);
  sim_for(s, 2000);
  link_cut(s, 0, true, true), link_cut(s, 1, true, true);
  story_daemon_away(s, 8000);
  link_heal(s, 0), link_heal(s, 1);
}

static void elastic_with_file(struct sim_config *c) {
  c->settings.min_nodes = 1;
  c->state_dir = true;
}

const struct story stories_lessons[] = {
    {"fails-while-greeting", far, fails_while_greeting},
    {"fences-while-leaving", patient_elastic, fences_while_leaving},
    {"stale-node-holds-the-seal", three_with_file, stale_node_holds_the_seal},
    {"newcomer-meets-the-old-life", NULL, newcomer_meets_the_old_life},
    {"two-ends-are-remembered", with_file, two_ends_are_remembered},
    {"late-start-is-doubted", NULL, late_start_is_doubted},
    {"stopped-before-anybody-is-back", with_file, stopped_before_anybody_is_back},
    {"nobody-knows-why", elastic_with_file, nobody_knows_why},
    {NULL, NULL, NULL},
};
