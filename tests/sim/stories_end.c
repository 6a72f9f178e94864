/* SPDX-License-Identifier: Apache-2.0 */
/* Ends, good and bad: leaving, finishing, failing after others have finished, an operator. */

#include "tests/sim/stories.h"

#include <signal.h>
#include <stddef.h>

static void leaving_node(struct sim *s) {
  story_running(s, 3, 1, 1000);
  agent_signal(s, agent_of(s, 0), SIGTERM);
}

static void leaving_and_replaced(struct sim *s) {
  story_running(s, 2, 1, 1000);
  agent_signal(s, agent_of(s, 1), SIGTERM);
  sim_for(s, 1000);
  agent_start(s, 1);
}

static void leaving_while_starting(struct sim *s) {
  struct behaviour b = story_run(5000);
  b.exec_ms = 2000;
  rule_add(s, 1, 0, 1, b);
  story_nodes(s, 2, 1);
  story_expect(s, "rank 0 runs", 5000);
  sim_for(s, 500);
  agent_signal(s, agent_of(s, 1), SIGTERM);
  sim_for(s, 500);
  agent_start(s, 1);
}

/* Twice: at once. */
static void two_signals(struct sim *s) {
  struct behaviour b = story_forever();
  b.term_ms = UINT32_MAX;
  rule_add(s, -1, -1, 0, b);
  story_running(s, 2, 1, 1000);
  for (int i = 0; i < 2; i++) {
    agent_signal(s, agent_of(s, 0), SIGINT);
    agent_signal(s, agent_of(s, 1), SIGINT);
    sim_for(s, 500);
  }
}

static void one_finishes_early(struct sim *s) {
  rule_add(s, 1, -1, 0, story_run(500));
  story_nodes(s, 2, 2);
}

/* Its node may even go: its part is done. */
static void finished_and_gone(struct sim *s) {
  rule_add(s, 1, -1, 0, story_run(500));
  story_nodes(s, 2, 2);
  story_expect(s, "finished round 1", 5000);
  sim_for(s, 1000);
  agent_kill(s, agent_of(s, 1));
}

static void fails_after_finish(struct sim *s) {
  rule_add(s, 1, -1, 0, story_run(500));
  rule_add(s, 0, 0, 0, story_exit(3000, 4));
}

static void operator_stops(struct sim *s) {
  story_running(s, 2, 1, 1000);
  daemon_stop_job(s, "job");
}

static void operator_stops_in_the_delay(struct sim *s) {
  rule_add(s, 0, 0, 0, story_exit(100, 3));
  story_nodes(s, 2, 1);
  story_expect(s, "wait 1000 ms", 5000);
  sim_for(s, 500);
  daemon_stop_job(s, "job");
}

static void operator_stops_a_stopping_job(struct sim *s) {
  struct behaviour b = story_forever();
  b.term_ms = 2000;
  rule_add(s, 0, 0, 1, story_exit(1000, 3));
  rule_add(s, 1, 0, 1, b);
  story_nodes(s, 2, 1);
  story_expect(s, "STOP round 1", 5000);
  sim_for(s, 500);
  daemon_stop_job(s, "job");
}

static void end_is_missed(struct sim *s) {
  story_running(s, 2, 1, 9000);
  link_cut(s, 1, true, false); /* it says that it has finished, and hears nothing any more */
  sim_for(s, 3000);
  link_heal(s, 1);
}

static void end_is_missed_for_long(struct sim *s) {
  story_running(s, 2, 1, 9000);
  link_cut(s, 1, true, false);
  sim_for(s, 40000); /* the job is ENDED and remembered */
  link_heal(s, 1);
}

/* A node that is told to leave while the END is held up on its way to it. */
static void bye_after_the_end(struct sim *s) {
  story_running(s, 2, 1, 9000);
  link_cut(s, 1, true, false);
  sim_for(s, 15000);
  agent_signal(s, agent_of(s, 1), SIGTERM);
}

static void forgotten(struct sim *s) {
  s->normal = story_run(1000);
  story_nodes(s, 2, 1);
  story_over(s, 60000);
  sim_for(s, JOB_END_KEEP_MS + 1000);
  daemon_stop_job(s, "job");
  sim_for(s, 10);
}

/* One of three is cut off with a daemon of its own when the others end the job. It is too few for a round, and finds the
 * end among the claims. */
static void end_is_found_late(struct sim *s) {
  s->normal = story_run(20000);
  story_running(s, 3, 1, 3000);
  for (int i = 1; i < 3; i++) place_wall(s, 0, i, true);
  sim_for(s, 60000);
}

static void two_to_three_with_claims(struct sim_config *c) {
  c->takeover = c->owned = c->claims = c->logs = true;
  c->endpoints = 1;
  c->settings.min_nodes = 2;
  c->settings.max_nodes = 3;
  c->settings.last_call_ms = 100;
  c->settings.orphan_grace_ms = 60000;
}
static void long_lease(struct sim_config *c) {
  c->settings.lease_ms = 60000;
}

/* Node 0 is done, and its agent dies: the store that the others use goes with it. */
static void head_finished_and_gone(struct sim *s) {
  rule_add(s, 0, 0, 1, story_run(1000));
  story_nodes(s, 3, 1);
  story_expect(s, "n1 -> rdzvd: finished round 1", 10000);
  agent_kill(s, agent_of(s, 0));
  story_expect(s, "STOP round 1", 5000);
  sim_for(s, 2000);
  agent_start(s, 0);
}

static void three_fixed(struct sim_config *c) {
  c->settings.min_nodes = c->settings.max_nodes = 3;
}

static void three_fixed_restart(struct sim_config *c) {
  three_fixed(c);
  c->settings.after_finish = AFTER_FINISH_RESTART;
}

const struct story stories_end[] = {
    {"leaving-node", story_two_to_three, leaving_node},
    {"end-is-found-late", two_to_three_with_claims, end_is_found_late},
    {"leaving-and-replaced", NULL, leaving_and_replaced},
    {"leaving-while-starting", NULL, leaving_while_starting},
    {"two-signals", NULL, two_signals},
    {"one-finishes-early", NULL, one_finishes_early},
    {"finished-and-gone", NULL, finished_and_gone},
    {"fails-after-finish", NULL, fails_after_finish},
    {"operator-stops", NULL, operator_stops},
    {"operator-stops-in-the-delay", NULL, operator_stops_in_the_delay},
    {"operator-stops-a-stopping-job", NULL, operator_stops_a_stopping_job},
    {"end-is-missed", NULL, end_is_missed},
    {"end-is-missed-for-long", NULL, end_is_missed_for_long},
    {"bye-after-the-end", long_lease, bye_after_the_end},
    {"forgotten", NULL, forgotten},
    {"head-finished-and-gone", three_fixed, head_finished_and_gone},
    {"head-finished-and-gone-restart", three_fixed_restart, head_finished_and_gone},
    {NULL, NULL, NULL},
};
