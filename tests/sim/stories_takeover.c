/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that outlive the machine of their daemon. */

#include "tests/sim/stories.h"

#include <signal.h>
#include <stddef.h>

/* The daemon is the first node's, and each other agent can start one. */
static void owned(struct sim_config *c, int min, int max) {
  c->takeover = c->owned = true;
  c->endpoints = 1;
  c->settings.min_nodes = min;
  c->settings.max_nodes = max;
  c->settings.last_call_ms = 100;
  c->settings.join_timeout_ms = 300000;
  if (min < max) c->settings.orphan_grace_ms = 60000;
}

static void one_to_six(struct sim_config *c) {
  owned(c, 1, 6);
}
static void two_to_four(struct sim_config *c) {
  owned(c, 2, 4);
}
static void two_to_four_in_words(struct sim_config *c) {
  owned(c, 2, 4);
  c->logs = true;
}
static void two_to_six(struct sim_config *c) {
  owned(c, 2, 6);
}
static void one_to_six_in_words(struct sim_config *c) {
  owned(c, 1, 6);
  c->logs = true;
}
static void three(struct sim_config *c) {
  owned(c, 3, 3);
}
static void two_with_claims(struct sim_config *c) {
  owned(c, 1, 2);
  c->logs = true;
  c->claims = true;
}
static void four_with_claims(struct sim_config *c) {
  owned(c, 1, 4);
  c->claims = true;
}
/* --endpoint d1,d2,d3 */
static void standby(struct sim_config *c) {
  owned(c, 2, 3);
  c->owned = false;
  c->state_dir = true;
  c->endpoints = 3;
}
static void standby_with_claims(struct sim_config *c) {
  standby(c);
  c->claims = true;
}

static void start_standby(struct sim *s) {
  for (int k = 1; k < (int)s->config.endpoints; k++) {
    daemon_side(s, k);
    daemon_start(s);
    daemon_side(s, 0);
  }
}

static void run(struct sim *s, int nodes) {
  s->normal = story_run(60000);
  start_standby(s);
  story_running(s, nodes, 1, 3000);
}

/* From each of the first machines to each of the others. */
static void wall(struct sim *s, int first, bool both) {
  for (int i = 0; i < first; i++)
    for (int k = first; k < s->n_nodes; k++) place_wall(s, i, k, both);
}

static void lost(struct sim *s) {
  run(s, 4);
  node_power_off(s, 0);
  story_expect(s, "START round", 60000);
}

static void spare(struct sim *s) {
  s->normal = story_run(60000);
  story_nodes(s, 4, 1);
  story_expect(s, "rank 2 runs", 5000);
  sim_for(s, 3000);
  node_power_off(s, 0);
  story_expect(s, "START round", 60000);
}

static void successor_dies(struct sim *s) {
  run(s, 5);
  node_power_off(s, 0);
  story_expect(s, "rdzvd@n2: starts", 30000);
  sim_for(s, 200);
  node_power_off(s, 1);
  story_expect(s, "START round", 60000);
}

static void again_and_again(struct sim *s) {
  run(s, 6);
  for (int i = 0; i < 3; i++) {
    node_power_off(s, i);
    story_expect(s, "START round", 60000);
    sim_for(s, 5000);
  }
}

/* n1 and n2 lose power one after the other, and are booted again while n3 and n4 are cut off from them. They know nothing
 * of the job and begin it anew. When all can meet, that run ends, and its nodes join the older one. */
static void begun_twice(struct sim *s) {
  s->normal = story_run(60000);
  story_running(s, 4, 1, 3000);
  node_power_off(s, 0);
  story_expect(s, "START round", 60000);
  sim_for(s, 5000);
  node_power_off(s, 1);
  wall(s, 2, true);
  story_expect(s, "START round", 60000);
  for (int i = 0; i < 2; i++) {
    node_power_on(s, i);
    agent_start(s, i);
  }
  story_expect(s, "n2.2: rank", 60000);
  sim_for(s, 20000);
  place_open(s);
  story_expect(s, "n2.2: rank", 6000);
}

/* As above, with n1 to n3. Then the younger run loses n1 as well, so neither of the two daemons is at the endpoint when all
 * can meet. The one that n1 starts there knows nothing. It hears of both, and tells the younger one of the older. */
static void begun_twice_apart(struct sim *s) {
  s->normal = story_run(60000);
  story_running(s, 6, 1, 3000);
  for (int i = 0; i < 3; i++) {
    node_power_off(s, i);
    if (i == 2) wall(s, 3, true);
    story_expect(s, "START round", 60000);
    sim_for(s, 5000);
  }
  for (int i = 0; i < 3; i++) {
    node_power_on(s, i);
    agent_start(s, i);
  }
  story_expect(s, "n3.2: rank", 60000);
  node_power_off(s, 0);
  story_expect(s, "n3.2: rank", 60000);
  sim_for(s, 20000);
  place_open(s);
  node_power_on(s, 0);
  agent_start(s, 0);
  story_expect(s, "n3.2: rank", 30000);
}

/* Fixed size, and n1 is cut off. n2 takes over, and cannot know whether n1 has stopped its workers; n1 says so when it is
 * back. Then its daemon, the one at the endpoint, dies: it is started again, because a newcomer asks there. */
static void all_come_back(struct sim *s) {
  run(s, 3);
  wall(s, 1, true);
  sim_for(s, 25000);
  place_open(s);
  story_expect(s, "n1: rank 0 runs, round 3", 20000);
  daemon_side(s, 0);
  daemon_kill(s);
  sim_for(s, 6000);
  agent_kill(s, agent_of(s, 2));
  sim_for(s, 1000);
  agent_start(s, 2);
  story_expect(s, "n3.2: rank", 20000);
}

static void minority(struct sim *s) {
  run(s, 5);
  wall(s, 2, true);
  story_expect(s, "START round", 60000);
  sim_for(s, 20000);
  place_open(s);
}

static void majority(struct sim *s) {
  run(s, 5);
  wall(s, 3, true);
  story_expect(s, "START round", 60000);
  sim_for(s, 20000);
  place_open(s);
}

/* The daemon's own half has the tie_breaker. */
static void tie_breaker(struct sim *s) {
  run(s, 4);
  wall(s, 2, true);
  story_expect(s, "START round", 60000);
  sim_for(s, 20000);
  place_open(s);
}

/* The other half has not, and ends. */
static void no_majority(struct sim *s) {
  run(s, 4);
  node_power_off(s, 0);
  node_power_off(s, 1);
}

/* The daemon's machine hears all others, and nobody hears it. */
static void one_way(struct sim *s) {
  run(s, 4);
  wall(s, 1, false);
  story_expect(s, "START round", 60000);
  sim_for(s, 20000);
  place_open(s);
}

/* And the other way round: all hear it, and it hears nobody. */
static void deaf(struct sim *s) {
  run(s, 4);
  for (int k = 1; k < 4; k++) place_wall(s, k, 0, false);
  story_expect(s, "START round", 60000);
  sim_for(s, 20000);
  place_open(s);
}

/* n2 reaches all, and n1 neither n3 nor n4. */
static void not_transitive(struct sim *s) {
  run(s, 4);
  place_wall(s, 0, 2, true);
  place_wall(s, 0, 3, true);
  story_expect(s, "START round", 60000);
  sim_for(s, 20000);
  place_open(s);
}

static void paused(struct sim *s) {
  run(s, 4);
  daemon_pause(s);
  story_expect(s, "recovering", 60000);
  sim_for(s, 5000);
  daemon_continue(s);
}

/* Not as long as it takes to be succeeded. */
static void paused_shortly(struct sim *s) {
  run(s, 4);
  daemon_pause(s);
  sim_for(s, 1500);
  daemon_continue(s);
}

static void killed(struct sim *s) {
  run(s, 4);
  daemon_kill(s);
}

/* A scheduler starts n1's agent again, which starts its daemon: others know better. */
static void host_returns(struct sim *s) {
  run(s, 4);
  node_power_off(s, 0);
  story_expect(s, "START round", 60000);
  sim_for(s, 40000);
  node_power_on(s, 0);
  agent_start(s, 0);
}

static void standby_takes_over(struct sim *s) {
  run(s, 3);
  place_power_off(s, 0);
  story_expect(s, "recovering", 60000);
  sim_for(s, 20000);
  place_power_on(s, 0);
  daemon_start(s);
}

/* One after the other: the third one has the job in the end. */
static void standby_third(struct sim *s) {
  run(s, 3);
  place_power_off(s, 0);
  story_expect(s, "rdzvd2 -> n1: WELCOME", 60000);
  sim_for(s, 5000);
  place_power_off(s, 1);
  story_expect(s, "rdzvd3 -> n1: WELCOME", 60000);
}

/* n3 does not reach the first one any more; the others do. */
static void standby_cut_of_one(struct sim *s) {
  run(s, 3);
  place_wall(s, 2, SIM_NODES_MAX, true);
  story_expect(s, "START round", 60000);
  sim_for(s, 10000);
  place_open(s);
}

static void claim_of_one(struct sim *s) {
  run(s, 2);
  node_power_off(s, 0);
  story_expect(s, "START round", 60000);
}

/* Both halves claim, and one of them wins. */
static void claim_taken(struct sim *s) {
  run(s, 4);
  wall(s, 2, true);
  sim_for(s, 40000);
  place_open(s);
}

static void claim_fails(struct sim *s) {
  run(s, 2);
  claim_wall(s, 1, true);
  node_power_off(s, 0);
  sim_for(s, 40000);
  claim_wall(s, 1, false);
}

static void claim_slow(struct sim *s) {
  run(s, 2);
  s->config.claim_max = 4000;
  node_power_off(s, 0);
}

/* n1 hears nobody, loses its guard and with it its agent and daemon, and is started again: it knows nothing of the run
 * that goes on at n2, but for the name of the job. */
static void claim_of_the_run(struct sim *s) {
  run(s, 2);
  s->normal = story_run(150000);
  place_wall(s, 1, 0, false);
  guard_kill(s, agent_of(s, 0));
  story_expect(s, "n2: rank 0 runs, round", 60000);
  if (!agent_alive(agent_of(s, 0))) agent_start(s, 0);
  sim_for(s, 83000);
  place_open(s);
  story_expect(s, "n1.2: rank", 60000);
}

/* Both machines lose power. Nothing shows that the run is over, but an operator knows it. */
static void claim_of_a_dead_run(struct sim *s) {
  run(s, 2);
  node_power_off(s, 0);
  node_power_off(s, 1);
  node_power_on(s, 0);
  agent_start(s, 0);
  story_expect(s, "rdzvctl confirm-dead", 60000);
  sim_for(s, 20000);
  daemon_control(s, &(struct control){.verb = "confirm-dead", .job = "job", .rank = -1});
  story_expect(s, "n1.2: rank 0 runs", 6000);
}

const struct story stories_takeover[] = {
    {"takeover", two_to_four_in_words, lost},
    {"takeover-spare", three, spare},
    {"takeover-successor-dies", one_to_six, successor_dies},
    {"takeover-again-and-again", one_to_six, again_and_again},
    {"takeover-begun-twice", two_to_four_in_words, begun_twice},
    {"takeover-begun-twice-apart", two_to_six, begun_twice_apart},
    {"takeover-all-come-back", three, all_come_back},
    {"takeover-minority", one_to_six, minority},
    {"takeover-majority", one_to_six, majority},
    {"takeover-tie-breaker", one_to_six, tie_breaker},
    {"takeover-no-majority", one_to_six_in_words, no_majority},
    {"takeover-one-way", two_to_four, one_way},
    {"takeover-deaf", two_to_four, deaf},
    {"takeover-not-transitive", two_to_four, not_transitive},
    {"takeover-paused", two_to_four, paused},
    {"takeover-paused-shortly", two_to_four, paused_shortly},
    {"takeover-killed", two_to_four, killed},
    {"takeover-host-returns", two_to_four_in_words, host_returns},
    {"takeover-standby", standby, standby_takes_over},
    {"takeover-standby-third", standby, standby_third},
    {"takeover-standby-cut-of-one", standby, standby_cut_of_one},
    {"takeover-claim", two_with_claims, claim_of_one},
    {"takeover-claim-taken", four_with_claims, claim_taken},
    {"takeover-claim-fails", two_with_claims, claim_fails},
    {"takeover-claim-slow", two_with_claims, claim_slow},
    {"takeover-claim-run", two_with_claims, claim_of_the_run},
    {"takeover-claim-dead-run", two_with_claims, claim_of_a_dead_run},
    {"takeover-claim-standby", standby_with_claims, standby_takes_over},
    {NULL, NULL, NULL},
};
