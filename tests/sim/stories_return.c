/* SPDX-License-Identifier: Apache-2.0 */
/* Those who come back, and those who come again: stale nodes, second incarnations, stores that outlive a daemon. */

#include "tests/sim/stories.h"

#include <stddef.h>

/* Paused past its lease, and continued when the others have long gone on. Its guard cannot fence it yet. */
static void stale_agent(struct sim *s) {
  rule_add(s, -1, -1, 0, story_run(30000));
  story_running(s, 3, 1, 1000);
  agent_pause(s, agent_of(s, 1));
  sim_for(s, 9000);
  agent_continue(s, agent_of(s, 1));
}

static void same_command_again(struct sim *s) {
  s->normal = story_run(1000);
  story_nodes(s, 2, 1);
  story_over(s, 60000);
  sim_for(s, 500);
  agent_start(s, 0), agent_start(s, 1);
}

/* One of the second run's nodes is there before the first run's last node has left. */
static void again_before_the_end(struct sim *s) {
  s->normal = story_run(2000);
  story_running(s, 2, 1, 1500);
  link_cut(s, 1, true, false);
  sim_for(s, 2500);
  agent_start(s, 0);
  sim_for(s, 2500);
  link_heal(s, 1);
  sim_for(s, 3000);
  agent_start(s, 1);
}

static void agent_restarted_at_once(struct sim *s) {
  story_running(s, 2, 1, 1000);
  agent_kill(s, agent_of(s, 1));
  agent_start(s, 1);
}

static struct behaviour meeting(void) {
  struct behaviour b = story_run(3000);
  b.meet = true;
  return b;
}

static void meet(struct sim *s) {
  rule_add(s, -1, -1, 0, meeting());
  story_nodes(s, 2, 2);
}

/* They meet without a daemon: the store is where it was. */
static void meet_across_a_restart(struct sim *s) {
  struct behaviour late = meeting();
  late.exec_ms = 500;
  rule_add(s, -1, -1, 0, meeting());
  rule_add(s, 1, 1, 0, late);
  story_nodes(s, 2, 2);
  story_expect(s, "rank 2 runs", 5000);
  story_daemon_away(s, 1000);
}

static void meet_in_the_next_round(struct sim *s) {
  rule_add(s, -1, -1, 0, meeting());
  story_nodes(s, 2, 1);
  story_expect(s, "have met", 5000);
  sim_for(s, 1000);
  worker_signal(s, agent_of(s, 0), 0, 9);
}

/* A crash, and the daemon dies and comes back: a port for each round, told by reports; none of it moves while the
 * daemon is away. */
static void store_ports(struct sim *s) {
  rule_add(s, 1, 0, 1, story_exit(1000, 3));
  rule_add(s, 0, 0, 2, story_run(2000));
  rule_add(s, 1, 0, 2, story_run(5000));
  story_nodes(s, 2, 1);
  story_expect(s, "started round 2", 10000);
  story_daemon_away(s, 1000);
}

static void show_stores(struct sim_config *c) {
  c->stores = true;
}

/* The same port in each round, and node 0 hears all of it late: n2's worker of round 2 is there before the store of
 * round 1 is closed, finds the door shut, and comes again. */
static void same_store_port(struct sim *s) {
  rule_add(s, -1, -1, 0, meeting());
  rule_add(s, 1, 0, 1, story_exit(500, 3));
  story_nodes(s, 2, 1);
  s->nodes[0].link.delay_min = s->nodes[0].link.delay_max = 30;
}

static void one_port(struct sim_config *c) {
  c->stores = true;
  c->store_port = 29500;
}

/* No node ever has a port: the job ends when its restarts are used, and says why. */
static void no_port(struct sim *s) {}

static void no_ports(struct sim_config *c) {
  c->stores = c->logs = true;
  c->portless = 100;
}

/* Its connection breaks with SETTLED on the way: it is told again. */
static void settled_is_missed(struct sim *s) {
  rule_add(s, 0, 0, 1, story_exit(100, 3));
  rule_add(s, 0, 0, 2, story_exit(100, 3));
  story_nodes(s, 2, 1);
  story_expect(s, "n2 -> rdzvd: stopped round 2", 5000);
  link_break(s, agent_of(s, 1)->conn, 2, 1);
}

static void lost_in_the_last_call(struct sim *s) {
  story_nodes(s, 2, 1);
  sim_until(s, 50);
  agent_kill(s, agent_of(s, 1));
  sim_for(s, 1000);
  agent_start(s, 1);
}

const struct story stories_return[] = {
    {"stale-agent", story_two_to_three, stale_agent},
    {"same-command-again", NULL, same_command_again},
    {"again-before-the-end", NULL, again_before_the_end},
    {"agent-restarted-at-once", NULL, agent_restarted_at_once},
    {"meet", NULL, meet},
    {"meet-across-a-restart", show_stores, meet_across_a_restart},
    {"meet-in-the-next-round", NULL, meet_in_the_next_round},
    {"store-ports", show_stores, store_ports},
    {"store-port-of-the-last-round", one_port, same_store_port},
    {"store-without-a-port", no_ports, no_port},
    {"settled-is-missed", NULL, settled_is_missed},
    {"lost-in-the-last-call", story_two_to_three, lost_in_the_last_call},
    {NULL, NULL, NULL},
};
