/* SPDX-License-Identifier: Apache-2.0 */
/* Actions of an operator, and of a job on its hosts. */

#include "tests/sim/stories.h"

#include <signal.h>
#include <stddef.h>

static void two_or_three(struct sim_config *c) {
  c->settings.max_nodes = 3;
  c->settings.last_call_ms = 100;
  c->waiting = true;
}

static void two_or_three_with_file(struct sim_config *c) {
  two_or_three(c);
  c->state_dir = true;
}

static void two_of_two(struct sim_config *c) {
  c->waiting = true;
}

/* Drains. ---------------------------------------------------------------------------------------------------------- */

/* The round goes on with two, and with three again when the host is given back. */
static void drain(struct sim *s) {
  s->normal = story_run(60000);
  story_nodes(s, 3, 1);
  sim_until(s, 5000);
  daemon_drain(s, 1, false);
  sim_until(s, 10000);
  daemon_undrain(s, 1);
}

/* A daemon that comes back has not forgotten it, and who comes anew to that host is held back as well. */
static void drain_is_remembered(struct sim *s) {
  s->normal = story_run(20000);
  story_nodes(s, 3, 1);
  sim_until(s, 5000);
  daemon_drain(s, 1, false);
  sim_until(s, 6000);
  story_daemon_away(s, 200);
  sim_for(s, 1000);
  agent_kill(s, agent_of(s, 1));
  sim_for(s, 1000);
  agent_start(s, 1);
}

static void drain_refused(struct sim *s) {
  s->normal = story_run(5000);
  story_nodes(s, 2, 1);
  sim_until(s, 1000);
  daemon_drain(s, 1, false);
}

/* And the same by force: the job waits for another node. */
static void drain_by_force(struct sim *s) {
  s->normal = story_run(5000);
  story_nodes(s, 2, 1);
  node_add(s, 1);
  sim_until(s, 1000);
  daemon_drain(s, 1, true);
  sim_until(s, 8000);
  agent_start(s, 2);
}

static void drain_with_a_spare(struct sim *s) {
  s->normal = story_run(5000);
  story_nodes(s, 2, 1);
  node_add(s, 1);
  sim_until(s, 500);
  agent_start(s, 2);
  sim_until(s, 1000);
  daemon_drain(s, 0, false);
}

/* --exclude-after. ------------------------------------------------------------------------------------------------- */

static void after_two(struct sim_config *c) {
  two_or_three(c);
  c->settings.exclude_after = 2;
}

static void exclude(struct sim *s) {
  s->normal = story_run(6000);
  rule_add(s, 1, 0, 0, story_exit(1000, 3));
  story_nodes(s, 3, 1);
}

/* --after-finish restart. ------------------------------------------------------------------------------------------ */

static void restart(struct sim_config *c) {
  c->settings.after_finish = AFTER_FINISH_RESTART;
}

static void after_finish_restart(struct sim *s) {
  s->normal = story_run(1000);
  rule_add(s, 1, 0, 1, story_exit(2000, 3));
}

static void after_finish_restart_lost(struct sim *s) {
  s->normal = story_run(1000);
  rule_add(s, 1, 0, 1, story_forever());
  story_nodes(s, 2, 1);
  sim_until(s, 2000);
  agent_kill(s, agent_of(s, 1));
  sim_until(s, 3000);
  rule_add(s, 1, 0, 0, story_run(1000));
  agent_start(s, 1);
}

/* Drills. ---------------------------------------------------------------------------------------------------------- */

static void kill_worker(struct sim *s) {
  s->normal = story_run(3000);
  story_nodes(s, 2, 2);
  sim_until(s, 1000);
  daemon_control(s, &(struct control){.verb = "kill-worker", .job = "job", .rank = 3, .signal = SIGSEGV});
}

const struct story stories_control[] = {
    {"drain", two_or_three, drain},
    {"drain-is-remembered", two_or_three_with_file, drain_is_remembered},
    {"drain-refused", two_of_two, drain_refused},
    {"drain-by-force", two_of_two, drain_by_force},
    {"drain-with-a-spare", two_of_two, drain_with_a_spare},
    {"exclude", after_two, exclude},
    {"after-finish-restart", restart, after_finish_restart},
    {"after-finish-restart-lost", restart, after_finish_restart_lost},
    {"kill-worker", NULL, kill_worker},
    {NULL},
};
