/* SPDX-License-Identifier: Apache-2.0 */
/* Two lives of a job, two daemons, and what is left of a side that lost. */

#include "tests/sim/stories.h"

#include <signal.h>
#include <stddef.h>

static void cut(struct sim *s, int from, int to) {
  for (int i = from; i <= to; i++) link_cut(s, i, true, true);
}

static void heal(struct sim *s, int from, int to) {
  for (int i = from; i <= to; i++) link_heal(s, i);
}

/* Three lives of a daemon without a state file. The first knows n1 to n3, the second n4 and n5 only, which open a
 * newer incarnation; the third recovers the older one, seals a round of it, loses it to the newer one, which ends.
 * Then n3 comes, which has heard of the older one alone, and not of its latest round. */
static void older_life_comes_again(struct sim *s) {
  s->normal = story_run(20000);
  story_nodes(s, 3, 1);
  node_add(s, 1);
  node_add(s, 1);
  node_add(s, 1);
  node_add(s, 1);
  story_expect(s, "rank 1 runs", 5000);
  sim_for(s, 500);
  cut(s, 0, 2);
  daemon_kill(s);
  daemon_start(s);
  agent_start(s, 3);
  agent_start(s, 4);
  story_expect(s, "n5: rank 1 runs", 5000);
  sim_for(s, 500);
  cut(s, 3, 4);
  daemon_kill(s);
  agent_kill(s, agent_of(s, 1));
  daemon_start(s);
  heal(s, 0, 0);
  agent_start(s, 5);
  story_expect(s, "round 3", 40000);
  sim_for(s, 1000);
  heal(s, 3, 4);
  story_expect(s, "END", 40000);
  sim_for(s, 1000);
  heal(s, 2, 2);
  agent_start(s, 6);
}

static void second_daemon(struct sim *s) {
  daemon_side(s, 1);
  daemon_start(s);
  daemon_side(s, 0);
}

/* As when a name is resolved anew. The connection that there was breaks. */
static void turn(struct sim *s, int node, int side) {
  struct sim_agent *a = agent_of(s, node);
  node_turn(s, node, side);
  if (a && a->conn) link_break(s, a->conn, 0, 0);
}

/* Two daemons, and no majority of --nnodes for both: the one that has enough nodes goes on, whatever the other is
 * told. n3 comes to the second one in a round of the first, and waits there; when it comes back it is told that the
 * round went on. */
static void majority(struct sim *s) {
  s->normal = story_run(60000);
  story_nodes(s, 3, 1);
  second_daemon(s);
  story_expect(s, "rank 2 runs", 5000);
  sim_for(s, 1000);
  turn(s, 2, 1);
  story_expect(s, "rank 1 runs, round 2", 20000);
  sim_for(s, 20000);
  turn(s, 2, 0);
}

/* The same, and then the majority turns: the second daemon has it, and what the first one has left stops. */
static void majority_turns(struct sim *s) {
  s->normal = story_run(60000);
  story_nodes(s, 3, 1);
  second_daemon(s);
  story_expect(s, "rank 2 runs", 5000);
  sim_for(s, 1000);
  turn(s, 1, 1);
  turn(s, 2, 1);
  story_expect(s, "rdzvd2 -> n3: START", 30000);
  sim_for(s, 20000);
  turn(s, 0, 1);
}

/* One endpoint, two addresses, a daemon behind each: two whole jobs begin. */
static void two_jobs(struct sim *s) {
  s->normal = story_run(40000);
  daemon_start(s);
  second_daemon(s);
  for (int i = 0; i < 4; i++) node_add(s, 1);
  s->nodes[2].side = s->nodes[3].side = 1;
  agent_start(s, 0);
  agent_start(s, 1);
  sim_for(s, 500);
  agent_start(s, 2);
  agent_start(s, 3);
  story_expect(s, "n4: rank 1 runs", 5000);
  sim_for(s, 5000);
}

/* They meet when a node turns: the older is over, and its nodes are told in words. */
static void two_jobs_meet(struct sim *s) {
  two_jobs(s);
  turn(s, 0, 1);
  sim_for(s, 10000);
  turn(s, 1, 1);
}

/* And the other way round: a node of the newer one comes to the older one's daemon. */
static void newer_comes_to_older(struct sim *s) {
  two_jobs(s);
  turn(s, 2, 0);
  turn(s, 3, 0);
}

static void soon_free(struct sim_config *c) {
  c->settings.orphan_grace_ms = 5000;
}

const struct story stories_partition[] = {
    {"older-life-comes-again", soon_free, older_life_comes_again},
    {"two-daemons-majority", story_two_to_three, majority},
    {"two-daemons-majority-turns", story_two_to_three, majority_turns},
    {"two-daemons-meet", NULL, two_jobs_meet},
    {"two-daemons-newer-comes-to-older", NULL, newer_comes_to_older},
    {NULL, NULL, NULL},
};
