/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of workers and nodes, with and without enough left to go on. */

#include "tests/sim/stories.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>

static void one_to_two(struct sim_config *c) {
  c->settings.min_nodes = 1;
  c->settings.last_call_ms = 100;
}
static void impatient(struct sim_config *c) {
  c->settings.join_timeout_ms = 6000;
}
static void slow_exec(struct sim_config *c) {
  c->exec_max = 300;
}

static void worker_crash(struct sim *s) {
  rule_add(s, 1, 1, 1, story_exit(2000, 7));
  story_nodes(s, 2, 2);
}

static void worker_killed(struct sim *s) {
  story_nodes(s, 2, 1);
  story_expect(s, "rank 0 runs", 5000);
  sim_for(s, 1000);
  worker_signal(s, agent_of(s, 0), 0, SIGKILL);
}

/* One dies of a signal, and its peer of a broken connection, a little earlier as it seems. The signal is the cause. */
static void echo_comes_first(struct sim *s) {
  rule_add(s, 0, 0, 1, story_exit(2000, 1));
  rule_add(s, 1, 0, 1, story_signal(2000, SIGSEGV));
}

static void crash_loop(struct sim *s) {
  rule_add(s, 0, 0, 0, story_exit(100, 3));
}

static void command_not_found(struct sim *s) {
  struct behaviour b = {.exec_errno = ENOENT};
  rule_add(s, 1, -1, 0, b);
}

/* The guard cannot fork in rounds 1 and 2, and can in round 3. */
static void fork_fails_twice(struct sim *s) {
  struct behaviour b = {.exec_errno = EAGAIN};
  rule_add(s, 1, -1, 1, b);
  rule_add(s, 1, -1, 2, b);
}

/* The memory of the last round comes back for the third: one more restart, and the job goes on. */
static void device_held(struct sim *s) {
  struct behaviour b = {.exec_errno = EBUSY};
  rule_add(s, 0, 0, 1, story_exit(100, 3));
  rule_add(s, 1, 0, 2, b);
}

static void ignores_term(struct sim *s) {
  struct behaviour b = story_forever();
  b.term_ms = UINT32_MAX;
  rule_add(s, 0, 0, 1, b);
  rule_add(s, 1, 0, 1, story_exit(1000, 1));
}

static void stuck_in_the_kernel(struct sim *s) {
  struct behaviour b = story_forever();
  b.term_ms = UINT32_MAX;
  b.kill_ms = 30000;
  rule_add(s, 0, 0, 1, b);
  rule_add(s, 1, 0, 1, story_exit(1000, 1));
}

static void node_lost_one_is_enough(struct sim *s) {
  story_running(s, 2, 2, 1000);
  agent_kill(s, agent_of(s, 1));
}

static void node_lost_two_are_enough(struct sim *s) {
  story_running(s, 3, 1, 1000);
  agent_kill(s, agent_of(s, 0));
}

static void node_lost_and_replaced(struct sim *s) {
  story_running(s, 2, 1, 1000);
  agent_kill(s, agent_of(s, 0));
  sim_for(s, 3000);
  agent_start(s, 0);
}

static void node_lost_for_good(struct sim *s) {
  story_running(s, 2, 1, 1000);
  agent_kill(s, agent_of(s, 0));
}

static void guard_killed(struct sim *s) {
  story_running(s, 2, 1, 1000);
  guard_kill(s, agent_of(s, 1));
  sim_for(s, 500);
  if (!agent_alive(agent_of(s, 1))) agent_start(s, 1);
}

/* A worker elsewhere dies: the stopped guard is woken by what it is told, and nobody is lost. */
static void guard_stopped(struct sim *s) {
  rule_add(s, 0, 0, 1, story_exit(2000, 7));
  story_running(s, 3, 1, 1900);
  guard_pause(s, agent_of(s, 2), GUARD_STOPPED);
}

/* Held, it is not: its agent kills in its stead, gives it up, and the others go on. */
static void guard_held(struct sim *s) {
  rule_add(s, 0, 0, 1, story_exit(2000, 7));
  story_running(s, 3, 1, 1900);
  guard_pause(s, agent_of(s, 2), GUARD_HELD);
}

/* Cut off as well: within its lease. Let go in time, the guard finds them dead, and the node joins anew. */
static void held_guard_is_fenced(struct sim *s) {
  rule_add(s, -1, -1, 1, story_forever());
  story_running(s, 3, 1, 1000);
  guard_pause(s, agent_of(s, 2), GUARD_HELD);
  link_cut(s, 2, true, true);
  story_expect(s, "rank 1 runs, round 2", 20000);
  guard_continue(s, agent_of(s, 2));
  link_heal(s, 2);
}

static void lost_before_started(struct sim *s) {
  story_nodes(s, 2, 2);
  story_expect(s, "rank 0 runs", 5000);
  agent_kill(s, agent_of(s, 1));
  sim_for(s, 1000);
  agent_start(s, 1);
}

/* Its file system hangs in exec: it is given up, and what it starts at last is of a round that is over. */
static void slow_to_start(struct sim *s) {
  struct behaviour b = story_run(10000);
  b.exec_ms = 40000;
  rule_add(s, 2, 0, 1, b);
  story_nodes(s, 3, 1);
}

/* Cut off and fenced while the round still waits for a slow node; back before its lease is over. */
static void fenced_while_starting(struct sim *s) {
  struct behaviour b = story_run(10000);
  b.exec_ms = 15000;
  rule_add(s, 2, 0, 1, b);
  story_nodes(s, 3, 1);
  story_expect(s, "rank 1 runs", 5000);
  sim_for(s, 1000);
  link_cut(s, 1, true, true);
  story_expect(s, "rank 1 dies", 9000);
  link_heal(s, 1);
}

static void silent_node(struct sim *s) {
  story_running(s, 3, 1, 1000);
  node_power_off(s, 2);
}

/* Cut off for longer than its lease, with enough left: it fences itself before the others go on. */
static void fenced(struct sim *s) {
  rule_add(s, -1, -1, 1, story_forever());
  story_running(s, 3, 1, 1000);
  link_cut(s, 1, true, true);
  sim_for(s, 15000);
  link_heal(s, 1);
}

/* As above, behind a firewall that answers in the daemon's name: a reset is not the daemon's word. */
static void rejected(struct sim *s) {
  rule_add(s, -1, -1, 1, story_forever());
  story_running(s, 3, 1, 1000);
  link_reject(s, 2);
  sim_for(s, 15000);
  link_heal(s, 2);
}

/* Fixed size without a spare: n3 need not fence, so n4 may not have its place while its workers may live. */
static void cut_off_before_the_spare_comes(struct sim *s) {
  rule_add(s, -1, -1, 0, story_run(30000));
  story_nodes(s, 3, 1);
  node_add(s, 1);
  story_expect(s, "rank 2 runs", 5000);
  sim_for(s, 1000);
  link_cut(s, 2, true, true);
  sim_for(s, 1000);
  agent_start(s, 3);
}
static void the_spare_waits(struct sim *s) {
  cut_off_before_the_spare_comes(s);
  sim_for(s, 20000);
  link_heal(s, 2);
}
static void its_death_is_confirmed(struct sim *s) {
  cut_off_before_the_spare_comes(s);
  sim_for(s, 20000);
  node_power_off(s, 2);
  daemon_confirm_dead(s, 2);
}

/* FENCE that nobody has read is no fence: the spare comes when n3 is cut off already. */
static void its_grace_is_over(struct sim *s) {
  cut_off_before_the_spare_comes(s);
}
static void three_for_ten_seconds(struct sim_config *c) {
  c->settings.min_nodes = c->settings.max_nodes = 3;
  c->settings.orphan_grace_ms = 10000;
  c->waiting = true;
}
static void three(struct sim_config *c) {
  c->settings.min_nodes = c->settings.max_nodes = 3;
}

/* An agent is stopped for longer than its lease, with enough left: its guard fences, the other goes on, and it joins
 * anew. */
static void stopped_agent_is_fenced(struct sim *s) {
  rule_add(s, -1, -1, 1, story_forever());
  story_running(s, 2, 1, 1000);
  agent_pause(s, agent_of(s, 1));
  story_expect(s, "round 2", 20000);
  sim_for(s, 2000);
  agent_continue(s, agent_of(s, 1));
}

/* Not for so long that the others have gone on: its workers are dead, and the round with them. */
static void stopped_agent_is_back_at_once(struct sim *s) {
  rule_add(s, -1, -1, 1, story_forever());
  story_running(s, 2, 1, 1000);
  agent_pause(s, agent_of(s, 1));
  story_expect(s, "guard fences", 20000);
  sim_for(s, 100);
  agent_continue(s, agent_of(s, 1));
}

/* Fixed size: its workers go on, and those of the others, until it is taken for lost. */
static void stopped_agent_is_needed(struct sim *s) {
  rule_add(s, -1, -1, 1, story_run(15000));
  story_running(s, 2, 1, 1000);
  agent_pause(s, agent_of(s, 1));
  sim_for(s, 12000);
  agent_continue(s, agent_of(s, 1));
}

/* Fixed size: nobody can go on without it, so it need not fence. */
static void cut_off_but_needed(struct sim *s) {
  struct behaviour b = story_run(15000);
  rule_add(s, -1, -1, 0, b);
  story_running(s, 2, 1, 1000);
  link_cut(s, 1, true, true);
  sim_for(s, 8000);
  link_heal(s, 1);
}

static void short_cut(struct sim *s) {
  story_running(s, 2, 1, 1000);
  link_cut(s, 1, true, true);
  sim_for(s, 3000);
  link_heal(s, 1);
}

static void connection_breaks(struct sim *s) {
  story_running(s, 2, 1, 1000);
  link_break(s, agent_of(s, 1)->conn, 5, 1);
}

const struct story stories_fault[] = {
    {"worker-crash", NULL, worker_crash},
    {"worker-killed", NULL, worker_killed},
    {"echo-comes-first", NULL, echo_comes_first},
    {"crash-loop", NULL, crash_loop},
    {"command-not-found", NULL, command_not_found},
    {"fork-fails-twice", NULL, fork_fails_twice},
    {"device-held", NULL, device_held},
    {"ignores-term", NULL, ignores_term},
    {"stuck-in-the-kernel", NULL, stuck_in_the_kernel},
    {"node-lost-one-is-enough", one_to_two, node_lost_one_is_enough},
    {"node-lost-two-are-enough", story_two_to_three, node_lost_two_are_enough},
    {"node-lost-and-replaced", NULL, node_lost_and_replaced},
    {"node-lost-for-good", impatient, node_lost_for_good},
    {"guard-killed", NULL, guard_killed},
    {"guard-stopped", story_two_to_three, guard_stopped},
    {"guard-held", story_two_to_three, guard_held},
    {"held-guard-is-fenced", story_two_to_three, held_guard_is_fenced},
    {"lost-before-started", slow_exec, lost_before_started},
    {"slow-to-start", story_two_to_three, slow_to_start},
    {"fenced-while-starting", story_two_to_three, fenced_while_starting},
    {"silent-node", story_two_to_three, silent_node},
    {"fenced", story_two_to_three, fenced},
    {"rejected", story_two_to_three, rejected},
    {"spare-waits-for-the-cut-off", three, the_spare_waits},
    {"spare-waits-for-a-word", three, its_death_is_confirmed},
    {"spare-waits-for-the-grace", three_for_ten_seconds, its_grace_is_over},
    {"stopped-agent-is-fenced", one_to_two, stopped_agent_is_fenced},
    {"stopped-agent-is-back-at-once", one_to_two, stopped_agent_is_back_at_once},
    {"stopped-agent-is-needed", NULL, stopped_agent_is_needed},
    {"cut-off-but-needed", NULL, cut_off_but_needed},
    {"short-cut", NULL, short_cut},
    {"connection-breaks", NULL, connection_breaks},
    {NULL, NULL, NULL},
};
