/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that come again, and failures that no restart can mend. */

#include "tests/sim/stories.h"

#include <signal.h>
#include <stddef.h>

enum { MIN = 60000 };

static void many_restarts(struct sim_config *c) {
  c->settings.max_restarts = 100;
}
static void no_limit(struct sim_config *c) {
  c->settings.repeat_limit = 0;
}

static struct behaviour raise_after(uint32_t run_ms, const char *words) {
  struct behaviour b = story_exit(run_ms, 1);
  b.words = words;
  return b;
}

static void repeats_end_the_job(struct sim *s) {
  rule_add(s, 0, 0, 0, raise_after(2000, "ValueError: boom"));
}

/* The rank does not matter. */
static void repeats_on_other_nodes(struct sim *s) {
  for (int round = 1; round <= 3; round++) rule_add(s, round % 2, 0, round, raise_after(2000, "ValueError: boom"));
}

/* Each round comes a step further, and the fifth one to the end. */
static void moves_on(struct sim *s) {
  for (int round = 1; round <= 4; round++) {
    struct behaviour b = raise_after(1000 + 600 * (uint32_t)round, "ValueError: boom");
    b.progress_ms = 500;
    rule_add(s, 0, 0, round, b);
  }
}

static void failures_alternate(struct sim *s) {
  for (int round = 1; round <= 4; round++)
    rule_add(s, 0, 0, round, raise_after(2000, round % 2 ? "ValueError: boom" : "KeyError: 'a'"));
}

/* A crash after 11 minutes: each round is long enough to refund the budget, and none of the repeats does. */
static void repeats_refund_nothing(struct sim *s) {
  s->normal = story_forever();
  rule_add(s, 0, 0, 0, raise_after(11 * MIN, "ValueError: boom"));
}

/* The same without a limit of repeats: the budget ends it. */
static void repeats_use_the_budget_up(struct sim *s) {
  repeats_refund_nothing(s);
}

/* After any time, as of a network: the job goes on from a checkpoint that nobody can see here. */
static void fails_now_and_then(struct sim *s) {
  static const uint32_t after[] = {50 * MIN, 30 * MIN, 20 * MIN, 12 * MIN};
  s->normal = story_run(100 * MIN);
  for (int round = 1; round <= 4; round++)
    rule_add(s, 0, 0, round, raise_after(after[round - 1], "DistBackendError: NCCL error"));
}

/* By somebody else: a drill, or the kernel's out-of-memory killer. */
static void killed_again_and_again(struct sim *s) {
  for (int round = 1; round <= 3; round++) rule_add(s, 0, 0, round, story_signal(2000, SIGKILL));
}

/* A node is lost between: that says nothing about the bug. */
static void lost_between_repeats(struct sim *s) {
  rule_add(s, 0, 0, 0, raise_after(2000, "ValueError: boom"));
  story_nodes(s, 2, 1);
  story_expect(s, "rank 0 runs, round 2", 10000);
  sim_for(s, 500);
  agent_kill(s, agent_of(s, 1));
  sim_for(s, 500);
  agent_start(s, 1);
}

/* The agents remember for a daemon that has no file. */
static void daemon_dies_between_repeats(struct sim *s) {
  for (int round = 1; round <= 3; round++) {
    struct behaviour b = raise_after(4000, "ValueError: boom");
    b.progress_ms = 500;
    rule_add(s, 0, 0, round, b);
  }
  story_nodes(s, 2, 1);
  story_expect(s, "rank 0 runs, round 3", 30000);
  sim_for(s, 500);
  story_daemon_away(s, 500);
}

static void import_fails(struct sim *s) {
  rule_add(s, -1, 0, 0, raise_after(300, "ModuleNotFoundError: No module named 'x'"));
}

/* On a node that comes late, or where the file server is away. */
static void import_fails_later(struct sim *s) {
  rule_add(s, 0, 0, 1, raise_after(2000, "ValueError: boom"));
  rule_add(s, 0, 0, 2, raise_after(300, "ModuleNotFoundError: No module named 'x'"));
}

const struct story stories_repeat[] = {
    {"repeats-end-the-job", NULL, repeats_end_the_job},
    {"repeats-on-other-nodes", NULL, repeats_on_other_nodes},
    {"repeats-refund-nothing", NULL, repeats_refund_nothing},
    {"repeats-use-the-budget-up", no_limit, repeats_use_the_budget_up},
    {"moves-on", many_restarts, moves_on},
    {"failures-alternate", NULL, failures_alternate},
    {"fails-now-and-then", NULL, fails_now_and_then},
    {"killed-again-and-again", NULL, killed_again_and_again},
    {"lost-between-repeats", NULL, lost_between_repeats},
    {"daemon-dies-between-repeats", many_restarts, daemon_dies_between_repeats},
    {"import-fails", NULL, import_fails},
    {"import-fails-later", NULL, import_fails_later},
    {NULL, NULL, NULL},
};
