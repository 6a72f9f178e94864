/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint before a planned end: newcomers, and nodes that leave. */

#include "tests/sim/stories.h"

#include <signal.h>
#include <stddef.h>

static void one_to_three_with_file(struct sim_config *c) {
  story_one_to_three(c);
  c->state_dir = true;
}

/* Three nodes at work, whose workers take 200 ms for a checkpoint. */
static void at_work(struct sim *s, uint32_t save_ms) {
  s->normal = story_saving(story_run(20000), save_ms);
  story_nodes(s, 3, 1);
  sim_until(s, 2000);
}

/* One for all, before the STOP. Who comes while they write is in time, as far as there is room. */
static void grow_with_checkpoint(struct sim *s) {
  s->normal = story_saving(story_run(50000), 200);
  rule_add(s, 1, 0, 0, story_saving(story_run(50000), 700));
  story_nodes(s, 2, 1);
  node_add(s, 1), node_add(s, 1);
  sim_until(s, 40000);
  agent_start(s, 2);
  sim_for(s, 300);
  agent_start(s, 3);
}

static void leave_with_checkpoint(struct sim *s) {
  at_work(s, 200);
  agent_signal(s, agent_of(s, 0), SIGTERM);
}

/* Some answer, and some do not. */
static void leave_with_some(struct sim *s) {
  rule_add(s, 1, 0, 0, story_run(20000));
  at_work(s, 200);
  agent_signal(s, agent_of(s, 1), SIGTERM);
}

/* The second comes while the first is still at its checkpoint, the third round has one node. */
static void two_leave(struct sim *s) {
  at_work(s, 200);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_for(s, 100);
  agent_signal(s, agent_of(s, 2), SIGTERM);
}

/* The round is over already, the next one is not sealed yet. */
static void two_leave_within_the_second(struct sim *s) {
  at_work(s, 10);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_for(s, 800);
  agent_signal(s, agent_of(s, 2), SIGTERM);
}

static void all_leave(struct sim *s) {
  at_work(s, 200);
  for (int i = 0; i < 3; i++) {
    agent_signal(s, agent_of(s, i), SIGTERM);
    sim_for(s, 20);
  }
}

/* The first to leave has ended the round before the others hear of it. */
static void all_leave_one_by_one(struct sim *s) {
  at_work(s, 10);
  for (int i = 0; i < 3; i++) {
    agent_signal(s, agent_of(s, i), SIGTERM);
    sim_for(s, 300);
  }
}

/* And one answer comes too late. */
static void fails_while_checkpointing(struct sim *s) {
  rule_add(s, 2, 0, 0, story_saving(story_run(20000), 998));
  at_work(s, 3000);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_for(s, 999);
  worker_signal(s, agent_of(s, 1), 0, SIGSEGV);
}

static void lost_while_checkpointing(struct sim *s) {
  at_work(s, 3000);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_for(s, 1000);
  agent_kill(s, agent_of(s, 1));
}

static void operator_while_checkpointing(struct sim *s) {
  at_work(s, 3000);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_for(s, 1000);
  daemon_stop_job(s, "job");
}

/* The daemon stops waiting, and so does the agent that leaves. */
static void checkpoint_never_comes(struct sim *s) {
  rule_add(s, 1, 0, 0, story_saving(story_run(20000), UINT32_MAX));
  at_work(s, 200);
  agent_signal(s, agent_of(s, 0), SIGTERM);
}

static void daemon_dies_while_checkpointing(struct sim *s) {
  at_work(s, 1000);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_for(s, 300);
  story_daemon_away(s, 200);
}

/* It comes back too late: who leaves has not waited for it. */
static void daemon_gone_while_checkpointing(struct sim *s) {
  at_work(s, 1000);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_for(s, 300);
  story_daemon_away(s, 1500);
}

/* It was to grow, and grows later: newcomers have not gone. */
static void daemon_dies_before_it_grows(struct sim *s) {
  s->normal = story_saving(story_run(50000), 500);
  story_nodes(s, 2, 1);
  node_add(s, 1);
  sim_until(s, 40000);
  agent_start(s, 2);
  story_expect(s, "PREPARE", 5000);
  story_daemon_away(s, 100);
}

/* PREPARE is said again to one that may not have heard it, and its answer is in the HELLO of another. */
static void link_breaks_while_checkpointing(struct sim *s) {
  at_work(s, 500);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_for(s, 100);
  link_break(s, agent_of(s, 1)->conn, 0, 0);
  sim_for(s, 392);
  link_break(s, agent_of(s, 2)->conn, 0, 0);
}

/* All that was left to do is done, before the checkpoint is. */
static void finishes_while_checkpointing(struct sim *s) {
  at_work(s, UINT32_MAX);
  sim_until(s, 19000);
  agent_signal(s, agent_of(s, 0), SIGTERM);
}

const struct story stories_prepare[] = {
    {"prepare-grow", story_one_to_three, grow_with_checkpoint},
    {"prepare-leave", story_one_to_three, leave_with_checkpoint},
    {"prepare-leave-some", story_one_to_three, leave_with_some},
    {"prepare-two-leave", story_one_to_three, two_leave},
    {"prepare-two-leave-within-the-second", story_one_to_three, two_leave_within_the_second},
    {"prepare-all-leave", story_one_to_three, all_leave},
    {"prepare-all-leave-one-by-one", story_one_to_three, all_leave_one_by_one},
    {"prepare-fails", story_one_to_three, fails_while_checkpointing},
    {"prepare-lost", story_one_to_three, lost_while_checkpointing},
    {"prepare-operator", story_one_to_three, operator_while_checkpointing},
    {"prepare-never-comes", story_one_to_three, checkpoint_never_comes},
    {"prepare-daemon-dies", story_one_to_three, daemon_dies_while_checkpointing},
    {"prepare-daemon-dies-file", one_to_three_with_file, daemon_dies_while_checkpointing},
    {"prepare-daemon-gone", one_to_three_with_file, daemon_gone_while_checkpointing},
    {"prepare-daemon-dies-growing", story_one_to_three, daemon_dies_before_it_grows},
    {"prepare-link-breaks", story_one_to_three, link_breaks_while_checkpointing},
    {"prepare-finishes", story_one_to_three, finishes_while_checkpointing},
    {NULL, NULL, NULL},
};
