/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that keep their process from one round to the next. */

#include "tests/sim/stories.h"

#include <signal.h>
#include <stddef.h>

/* Two nodes with two workers each, all of whom can stay. */
static void at_work(struct sim *s, int nodes, uint32_t park_ms) {
  s->normal = story_staying(story_run(20000), park_ms);
  story_nodes(s, nodes, 2);
  sim_until(s, 2000);
}

static void one_dies(struct sim *s) {
  at_work(s, 2, 5);
  worker_signal(s, agent_of(s, 1), 0, SIGKILL);
}

/* Again and again: nobody else is ever started anew. */
static void several_die(struct sim *s) {
  at_work(s, 2, 5);
  for (int i = 0; i < 3; i++) {
    worker_signal(s, agent_of(s, i % 2), (uint32_t)i % 2, SIGKILL);
    sim_for(s, 1500 << i);
  }
}

static void a_node_is_lost(struct sim *s) {
  at_work(s, 3, 0);
  node_power_off(s, 0);
}

static void one_never_leaves(struct sim *s) {
  rule_add(s, 0, 1, 0, story_staying(story_run(20000), UINT32_MAX));
  at_work(s, 2, 5);
  worker_signal(s, agent_of(s, 1), 0, SIGKILL);
}

/* One leaves for nothing; it is the round's failure when nobody else has been. */
static void false_alarm(struct sim *s) {
  struct behaviour b = story_staying(story_run(20000), 5);
  b.alarm_ms = 1000;
  rule_add(s, 1, 0, 1, b);
  at_work(s, 2, 5);
}

/* It waits for a node that comes late, and dies meanwhile: it is started like the other. */
static void one_dies_while_it_waits(struct sim *s) {
  at_work(s, 2, 5);
  agent_kill(s, agent_of(s, 1));
  sim_for(s, 1000);
  worker_signal(s, agent_of(s, 0), 1, SIGKILL);
  sim_for(s, 1000);
  agent_start(s, 1);
}

/* The node is told to leave while its workers wait. */
static void leaves_while_they_wait(struct sim *s) {
  at_work(s, 2, 5);
  agent_kill(s, agent_of(s, 1));
  sim_for(s, 1000);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_for(s, 1000);
}

/* A round runs without the node: what waits there is of no use. */
static void is_a_spare(struct sim *s) {
  s->config.settings.min_nodes = 2;
  s->config.settings.max_nodes = 2;
  at_work(s, 3, 5);
  agent_kill(s, agent_of(s, 0));
  sim_for(s, 20);
  agent_start(s, 0);
}

/* Growth: nobody is stopped for those who come. */
static void grow_in_place(struct sim *s) {
  s->normal = story_staying(story_run(50000), 5);
  story_nodes(s, 2, 1);
  node_add(s, 1);
  sim_until(s, 40000);
  agent_start(s, 2);
}

/* Its lease is over while its workers wait: they are not kept beyond it. */
static void fenced_while_they_wait(struct sim *s) {
  at_work(s, 3, 5);
  worker_signal(s, agent_of(s, 0), 0, SIGKILL);
  sim_for(s, 3); /* the STOP is on its way back */
  link_cut(s, 1, true, true);
  sim_for(s, 20000);
  link_heal(s, 1);
}

static void daemon_dies(struct sim *s) {
  at_work(s, 2, 400);
  worker_signal(s, agent_of(s, 1), 0, SIGKILL);
  sim_for(s, 200);
  story_daemon_away(s, 1000);
}

const struct story stories_stay[] = {
    {"stay", NULL, one_dies},
    {"stay-several", NULL, several_die},
    {"stay-lost-node", story_one_to_three, a_node_is_lost},
    {"stay-never-leaves", NULL, one_never_leaves},
    {"stay-false-alarm", NULL, false_alarm},
    {"stay-dies", NULL, one_dies_while_it_waits},
    {"stay-leaves", NULL, leaves_while_they_wait},
    {"stay-spare", NULL, is_a_spare},
    {"stay-grow", story_one_to_three, grow_in_place},
    {"stay-fenced", story_one_to_three, fenced_while_they_wait},
    {"stay-daemon-dies", NULL, daemon_dies},
    {NULL, NULL, NULL},
};
