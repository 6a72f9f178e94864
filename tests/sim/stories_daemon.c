/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon dies and comes back, in every state of a job, with a state file and without. */

#include "tests/sim/stories.h"

#include <signal.h>
#include <stddef.h>

static void with_file(struct sim_config *c) {
  c->state_dir = true;
}
static void slow_exec_file(struct sim_config *c) {
  c->state_dir = true;
  c->exec_max = 300;
}
static void slow_exec(struct sim_config *c) {
  c->exec_max = 300;
}

static void forming(struct sim *s) {
  story_nodes(s, 1, 1);
  node_add(s, 1);
  sim_until(s, 500);
  story_daemon_away(s, 700);
  sim_for(s, 500);
  agent_start(s, 1);
}

static void starting(struct sim *s) {
  story_nodes(s, 2, 2);
  story_expect(s, "rank 2 runs", 5000);
  story_daemon_away(s, 700);
}

static void running(struct sim *s) {
  story_running(s, 2, 1, 2000);
  story_daemon_away(s, 700);
}

static void stopping(struct sim *s) {
  struct behaviour b = story_forever();
  b.term_ms = 1500;
  rule_add(s, 0, 0, 1, story_exit(1000, 3));
  rule_add(s, 1, 0, 1, b);
  story_nodes(s, 2, 1);
  story_expect(s, "STOP round 1", 5000);
  sim_for(s, 100);
  story_daemon_away(s, 700);
}

static void delayed(struct sim *s) {
  rule_add(s, 0, 0, 1, story_exit(100, 3));
  rule_add(s, 0, 0, 2, story_exit(100, 3));
  story_nodes(s, 2, 1);
  story_expect(s, "wait 1000 ms", 5000);
  sim_for(s, 300);
  story_daemon_away(s, 700);
}

static void ending(struct sim *s) {
  story_nodes(s, 2, 1);
  story_expect(s, "n2 -> rdzvd: finished round 1", 30000);
  story_daemon_away(s, 700); /* END is on its way to both, or to nobody */
}

static void ended(struct sim *s) {
  story_running(s, 2, 1, 9000);
  link_cut(s, 1, true, false);
  sim_for(s, 25000);
  story_daemon_away(s, 700);
  sim_for(s, 1000);
  link_heal(s, 1);
}

/* The worst moments: inside the writing of a line. */
static void dies_at(struct sim *s, int when) {
  story_nodes(s, 2, 1);
  s->d.die_at_save = when;
  story_expect(s, "rdzvd: killed", 5000);
  sim_for(s, 500);
  daemon_start(s);
}
static void dies_before_seal(struct sim *s) {
  dies_at(s, 1);
}
static void dies_behind_seal(struct sim *s) {
  dies_at(s, 3);
}

static void dies_at_end(struct sim *s, int when) {
  story_nodes(s, 2, 1);
  story_expect(s, "rank 1 runs", 5000);
  s->d.die_at_save = when;
  story_expect(s, "rdzvd: killed", 30000);
  sim_for(s, 500);
  daemon_start(s);
}
static void dies_before_end(struct sim *s) {
  dies_at_end(s, 1);
}
static void dies_behind_end(struct sim *s) {
  dies_at_end(s, 3);
}

static void going_away(struct sim *s) {
  story_running(s, 2, 1, 2000);
  daemon_terminate(s);
  sim_for(s, 100);
  daemon_start(s);
}

/* A worker fails, and a node goes, while nobody is there to hear it. */
static void failure_in_the_gap(struct sim *s) {
  rule_add(s, 0, 0, 1, story_exit(2000, 9));
  story_running(s, 2, 1, 1500);
  story_daemon_away(s, 2000);
}

static void node_lost_in_the_gap(struct sim *s) {
  story_running(s, 2, 1, 1500);
  daemon_kill(s);
  sim_for(s, 500);
  agent_kill(s, agent_of(s, 1));
  sim_for(s, 500);
  daemon_start(s);
  sim_for(s, 1000);
  agent_start(s, 1);
}

static void stop_while_recovering(struct sim *s) {
  story_running(s, 2, 1, 1500);
  link_cut(s, 1, true, true);
  story_daemon_away(s, 700);
  sim_for(s, 1500);
  daemon_stop_job(s, "job");
  sim_for(s, 500);
  link_heal(s, 1);
}

static void leaving_while_recovering(struct sim *s) {
  story_running(s, 2, 1, 1500);
  link_cut(s, 1, true, true);
  story_daemon_away(s, 700);
  sim_for(s, 1500);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_for(s, 500);
  link_heal(s, 1);
  agent_start(s, 0);
}

/* Stopped for two leases and continued: nobody is blamed for it. */
static void paused(struct sim *s) {
  story_running(s, 2, 1, 1000);
  daemon_pause(s);
  sim_for(s, 11000);
  daemon_continue(s);
}

static void long_gone(struct sim *s) {
  rule_add(s, -1, -1, 0, story_run(30000));
  story_running(s, 2, 1, 1000);
  story_daemon_away(s, 20000);
}

/* All of three run, the daemon is gone, and comes back. n1 finds it first: the wires of the others need a moment. */
static void one_returns_early(struct sim *s, void (*end)(struct sim *s)) {
  s->normal = story_run(30000);
  story_running(s, 3, 1, 2000);
  end(s);
  for (int i = 1; i < 3; i++) link_cut(s, i, true, true);
  sim_for(s, 100);
  daemon_start(s);
  story_expect(s, "rdzvd -> n1: WELCOME", 3000);
}

static void others_return(struct sim *s) {
  for (int i = 1; i < 3; i++) link_heal(s, i);
}

/* n1's wire is cut before its next heartbeat, and the others form a round without it. */
static void early_one_is_cut(struct sim *s) {
  one_returns_early(s, daemon_kill);
  link_cut(s, 0, true, true);
  others_return(s);
  sim_for(s, 20000);
  link_heal(s, 0);
}

/* The same, but n1's agent is stopped: its guard has to know the deadline. */
static void early_one_is_stopped(struct sim *s) {
  one_returns_early(s, daemon_terminate);
  agent_pause(s, agent_of(s, 0));
  others_return(s);
  sim_for(s, 20000);
  agent_continue(s, agent_of(s, 0));
}

/* n1 and n2 run, n3 is a spare. The daemon comes back, has both, goes on, and does not know of n3 yet when n1 is cut
 * off. */
static void spare_returns_late(struct sim *s) {
  s->normal = story_run(30000);
  story_nodes(s, 3, 1);
  story_expect(s, "rank 1 runs", 5000);
  sim_for(s, 2000);
  daemon_kill(s);
  link_cut(s, 2, true, true);
  sim_for(s, 100);
  daemon_start(s);
  story_expect(s, "rdzvd -> n2: WELCOME round 1 recovering", 3000);
  sim_for(s, 900);
  link_cut(s, 0, true, true);
  link_heal(s, 2);
  sim_for(s, 20000);
  link_heal(s, 0);
}

static void elastic(struct sim_config *c) {
  c->settings.min_nodes = 1;
  c->settings.last_call_ms = 100;
}

/* A node may still run what nobody here knows: its place is free when --orphan-grace is over. */
static void soon_free(struct sim_config *c) {
  c->settings.orphan_grace_ms = 10000;
}
static void soon_free_file(struct sim_config *c) {
  soon_free(c);
  with_file(c);
}

const struct story stories_daemon[] = {
    {"daemon-dies-forming", NULL, forming},
    {"daemon-dies-forming-file", with_file, forming},
    {"daemon-dies-starting", slow_exec, starting},
    {"daemon-dies-starting-file", slow_exec_file, starting},
    {"daemon-dies-running", NULL, running},
    {"daemon-dies-running-file", with_file, running},
    {"daemon-dies-stopping", NULL, stopping},
    {"daemon-dies-stopping-file", with_file, stopping},
    {"daemon-dies-delayed", NULL, delayed},
    {"daemon-dies-delayed-file", with_file, delayed},
    {"daemon-dies-ending", NULL, ending},
    {"daemon-dies-ending-file", with_file, ending},
    {"daemon-dies-ended", NULL, ended},
    {"daemon-dies-ended-file", with_file, ended},
    {"daemon-dies-before-seal", with_file, dies_before_seal},
    {"daemon-dies-behind-seal", soon_free_file, dies_behind_seal},
    {"daemon-dies-before-end", with_file, dies_before_end},
    {"daemon-dies-behind-end", with_file, dies_behind_end},
    {"daemon-going-away", NULL, going_away},
    {"daemon-gone-worker-fails", NULL, failure_in_the_gap},
    {"daemon-gone-node-lost", soon_free, node_lost_in_the_gap},
    {"daemon-recovering-stopped", NULL, stop_while_recovering},
    {"daemon-recovering-node-leaves", NULL, leaving_while_recovering},
    {"daemon-paused", NULL, paused},
    {"daemon-back-early-one-cut", story_two_to_three, early_one_is_cut},
    {"daemon-back-early-one-stopped", story_two_to_three, early_one_is_stopped},
    {"daemon-back-spare-late", NULL, spare_returns_late},
    {"daemon-long-gone", NULL, long_gone},
    {"daemon-long-gone-elastic", elastic, long_gone},
    {NULL, NULL, NULL},
};
