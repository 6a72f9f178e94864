/* SPDX-License-Identifier: Apache-2.0 */
/* Joining: who takes part, and who waits. */

#include "tests/sim/stories.h"

#include <stddef.h>

static void two_to_three(struct sim_config *c) {
  c->settings.max_nodes = 3;
  c->waiting = true;
}
static void waiting(struct sim_config *c) {
  c->waiting = true;
}
static void impatient(struct sim_config *c) {
  c->settings.min_nodes = c->settings.max_nodes = 3;
  c->settings.join_timeout_ms = 5000;
  c->waiting = true;
}

static void five(struct sim_config *c) {
  c->settings.min_nodes = c->settings.max_nodes = 5;
  c->waiting = c->logs = true;
}
static void one_to_two_owned(struct sim_config *c) {
  c->takeover = c->owned = true;
  c->endpoints = 1;
  c->settings.min_nodes = 1;
  c->settings.last_call_ms = 100;
  c->settings.orphan_grace_ms = 20000;
  c->logs = true;
}
static void waiting_said(struct sim_config *c) {
  c->waiting = c->logs = true;
}

static void all_join(struct sim *s) {
  story_nodes(s, 2, 2);
}

static void late_joiner(struct sim *s) {
  story_nodes(s, 2, 1);
  node_add(s, 1);
  sim_until(s, 600);
  agent_start(s, 2);
}

static void last_call_passes(struct sim *s) {}

static void one_too_many(struct sim *s) {
  story_nodes(s, 3, 1);
  story_expect(s, "rank 0 runs", 5000);
  sim_for(s, 1000);
  agent_kill(s, agent_of(s, 0)); /* the spare takes its place */
}

static void newcomer_while_running(struct sim *s) {
  story_nodes(s, 2, 1);
  node_add(s, 1);
  rule_add(s, 1, 0, 1, story_exit(4000, 1));
  sim_until(s, 3000);
  agent_start(s, 2); /* takes part from the next round on */
}

static void expected_nodes(struct sim *s) {
  daemon_start(s);
  for (int i = 0; i < 2; i++) {
    node_add(s, 1);
    s->nodes[i].expected_nodes = 2; /* the scheduler has started no more: no last call */
    agent_start(s, i);
  }
}

/* A spare is there before the job's second node, which has its place all the same. */
static void spare_comes_early(struct sim *s) {
  daemon_start(s);
  for (int i = 0; i < 3; i++) {
    node_add(s, 1);
    s->nodes[i].expected_nodes = i < 2 ? 2 : 1;
    s->nodes[i].expected_hosts = i < 2 ? "n[1-2]" : "n3";
  }
  agent_start(s, 0), agent_start(s, 2);
  sim_until(s, 600);
  agent_start(s, 1);
  story_expect(s, "rank 0 runs", 5000);
  sim_for(s, 1000);
  node_power_off(s, 1); /* and now it is needed */
}

static void ranks_by_order(struct sim *s) {
  daemon_start(s);
  for (int i = 0; i < 3; i++) {
    node_add(s, (uint32_t)i + 1);
    s->nodes[i].order_key = 2 - i;
  }
  s->nodes[1].want_rank = 2;
  for (int i = 0; i < 3; i++) agent_start(s, i);
}

static void same_rank_twice(struct sim *s) {
  daemon_start(s);
  node_add(s, 1), node_add(s, 1);
  s->nodes[0].want_rank = s->nodes[1].want_rank = 0;
  agent_start(s, 0);
  sim_until(s, 100);
  agent_start(s, 1);
  sim_until(s, 200);
  s->nodes[1].want_rank = 1;
  agent_start(s, 1);
}

static void who_is_missing(struct sim *s) {}

/* A list from the scheduler; one comes, one is lost, two never come, one is refused. */
static void missing_by_name(struct sim *s) {
  daemon_start(s);
  for (int i = 0; i < 4; i++) {
    node_add(s, 1);
    s->nodes[i].expected_nodes = 5;
    s->nodes[i].expected_hosts = "n[1-5]";
  }
  for (int i = 0; i < 3; i++) agent_start(s, i);
  sim_until(s, 2000);
  node_power_off(s, 1);
  sim_until(s, 20000);
  s->nodes[2].want_rank = s->nodes[3].want_rank = 0;
  agent_signal(s, agent_of(s, 2), 15);
  sim_until(s, 20500);
  agent_start(s, 2);
  sim_until(s, 21000);
  agent_start(s, 3); /* asks for the same rank */
}

/* Without a list: who was there in the last round. */
static void lost_and_missed(struct sim *s) {
  story_nodes(s, 2, 1);
  story_expect(s, "rank 0 runs", 5000);
  sim_for(s, 1000);
  agent_kill(s, agent_of(s, 1));
}

/* Two nodes, and the daemon's machine is lost. The other one says soon that it is not enough, and what would be. */
static void half_is_lost(struct sim *s) {
  s->normal = story_run(60000);
  story_running(s, 2, 1, 3000);
  node_power_off(s, 0);
}

static void stop_while_forming(struct sim *s) {
  story_nodes(s, 1, 1);
  sim_until(s, 500);
  daemon_stop_job(s, "job");
}

static void leaves_while_forming(struct sim *s) {
  story_nodes(s, 1, 1);
  sim_until(s, 500);
  agent_signal(s, agent_of(s, 0), 15);
}

static void daemon_comes_late(struct sim *s) {
  node_add(s, 1), node_add(s, 1);
  agent_start(s, 0), agent_start(s, 1);
  sim_until(s, 3000);
  daemon_start(s);
}

static void three(struct sim_config *c) {
  c->settings.min_nodes = c->settings.max_nodes = 3;
}

const struct story stories_join[] = {
    {"all-join", NULL, all_join},
    {"late-joiner", two_to_three, late_joiner},
    {"last-call-passes", two_to_three, last_call_passes},
    {"one-too-many", waiting, one_too_many},
    {"newcomer-while-running", two_to_three, newcomer_while_running},
    {"expected-nodes", two_to_three, expected_nodes},
    {"spare-comes-early", NULL, spare_comes_early},
    {"ranks-by-order", three, ranks_by_order},
    {"same-rank-twice", NULL, same_rank_twice},
    {"who-is-missing", impatient, who_is_missing},
    {"missing-by-name", five, missing_by_name},
    {"lost-and-missed", waiting_said, lost_and_missed},
    {"half-is-lost", one_to_two_owned, half_is_lost},
    {"stop-while-forming", waiting, stop_while_forming},
    {"leaves-while-forming", NULL, leaves_while_forming},
    {"daemon-comes-late", NULL, daemon_comes_late},
    {NULL, NULL, NULL},
};
