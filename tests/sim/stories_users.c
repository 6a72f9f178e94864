/* SPDX-License-Identifier: Apache-2.0 */
/* Two users whose jobs have one name. n1 and n2 are Ada's, n3 and n4 Eve's. */

#include "tests/sim/stories.h"

#include <stddef.h>

enum { ADA = 1000, EVE = 1001 };

static void with_logs(struct sim_config *c) {
  c->waiting = c->logs = true;
}

static void with_file(struct sim_config *c) {
  c->state_dir = true;
}

static void begin(struct sim *s, bool keyed) {
  daemon_start(s);
  for (int i = 0; i < 4; i++) {
    struct sim_node *n = &s->nodes[node_add(s, 1)];
    n->uid = i < 2 ? ADA : EVE;
    n->keyed = keyed;
  }
  for (int i = 0; i < 4; i++) agent_start(s, i % 2 * 2 + i / 2); /* in turn */
}

/* A worker of Eve's fails, and Ada's job does not notice. */
static void two_users(struct sim *s) {
  s->normal = story_run(3000);
  rule_add(s, 2, 0, 1, story_exit(500, 3));
  begin(s, true);
}

/* The same at a daemon without keys, where HELLO alone says whose nodes they are. */
static void two_users_without_keys(struct sim *s) {
  s->normal = story_run(3000);
  begin(s, false);
}

/* Root means one of them, and has to say so. */
static void two_users_and_root(struct sim *s) {
  s->normal = story_run(3000);
  begin(s, true);
  sim_until(s, 1000);
  daemon_stop_job(s, "job");
  sim_until(s, 1500);
  daemon_control(s, &(struct control){.verb = "stop", .job = "job", .rank = -1, .owner = EVE});
}

/* The daemon comes back, and each node finds its own. */
static void two_users_and_a_restart(struct sim *s) {
  s->normal = story_run(5000);
  begin(s, true);
  sim_until(s, 1000);
  story_daemon_away(s, 500);
  sim_until(s, 2000);
  agent_kill(s, agent_of(s, 3));
  sim_until(s, 2500);
  agent_start(s, 3);
}

const struct story stories_users[] = {
    {"two-users", with_logs, two_users},
    {"two-users-without-keys", NULL, two_users_without_keys},
    {"two-users-and-root", NULL, two_users_and_root},
    {"two-users-and-a-restart", NULL, two_users_and_a_restart},
    {"two-users-and-a-restart-with-file", with_file, two_users_and_a_restart},
    {NULL},
};
