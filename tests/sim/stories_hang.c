/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that make no progress any more or little, and those that wait for them. */

#include "tests/sim/stories.h"

#include <stddef.h>

static void impatient(struct sim_config *c) {
  c->settings.hang_timeout_ms = 2000;
  c->hang_start_ms = 4000;
  c->logs = true;
}
static void watchful(struct sim_config *c) {
  c->settings.slow_ranks_ms = 12000;
  c->logs = true;
}
static void last_chance(struct sim_config *c) {
  impatient(c);
  c->settings.max_restarts = 0;
}

static struct behaviour telling(struct behaviour b) {
  b.progress_ms = 300;
  return b;
}
static struct behaviour hanging(uint32_t hang_ms, char state) {
  struct behaviour b = telling(story_forever());
  b.hang_ms = hang_ms;
  b.hang_state = state;
  return b;
}

/* All of its round stop with it, at the same step and in the same moment. Its process is stopped: that tells. */
static void one_rank_hangs(struct sim *s) {
  s->normal = telling(story_run(8000));
  rule_add(s, 1, 1, 1, hanging(3000, 'T'));
  story_nodes(s, 2, 2);
}

/* Nobody is different from anybody. */
static void all_hang(struct sim *s) {
  s->normal = telling(story_run(8000));
  rule_add(s, -1, -1, 1, hanging(3000, 0));
  story_nodes(s, 2, 2);
}

/* The first is held up by something; later, while it waits, a rank of the other node is held by the kernel. */
static void two_nodes_hang(struct sim *s) {
  s->normal = telling(story_run(8000));
  rule_add(s, 0, 0, 1, hanging(3000, 0));
  rule_add(s, 1, 0, 1, hanging(3500, 'D'));
}

/* It does not take a daemon to see it; but to settle it. */
static void hang_without_daemon(struct sim *s) {
  s->normal = telling(story_run(8000));
  rule_add(s, 1, 0, 1, hanging(3000, 'T'));
  story_running(s, 2, 1, 2500);
  story_daemon_away(s, 5000);
}

/* The others have left when it does not: it is not in its last step any more. */
static void hang_at_the_finish(struct sim *s) {
  struct behaviour b = hanging(3001, 0);
  s->normal = telling(story_run(3000));
  rule_add(s, 1, 1, 1, b);
  story_nodes(s, 2, 2);
}

/* Before it has told anything. On node 0 they are silent as well, and that is what is seen. */
static void hang_at_the_start(struct sim *s) {
  s->normal = telling(story_run(8000));
  rule_add(s, 1, 0, 1, hanging(100, 'T'));
}

/* Its agent was stopped for longer than the timeout, and has not read what its workers said. They do not hang. */
static void stopped_agent_sees_no_hang(struct sim *s) {
  s->normal = telling(story_run(12000));
  story_running(s, 2, 1, 3000);
  agent_pause(s, agent_of(s, 1));
  sim_for(s, 4000);
  agent_continue(s, agent_of(s, 1));
}

/* The second node's workers are suspended, and the first one's wait for them, for three times the timeout. That is a
 * hang only after fg. */
static void suspended_is_no_hang(struct sim *s) {
  s->normal = telling(story_run(8000));
  rule_add(s, 0, 0, 1, hanging(3000, 0));
  story_running(s, 2, 1, 2500);
  agent_suspend(s, agent_of(s, 1), true);
  sim_for(s, 9000);
  agent_suspend(s, agent_of(s, 1), false);
}

static void hang_ends_the_job(struct sim *s) {
  s->normal = telling(story_run(8000));
  rule_add(s, 0, 1, 0, hanging(3000, 'D'));
  story_nodes(s, 2, 2);
}

/* For 15 s the others wait 180 ms in each second for rank 2. Then a worker of the other node is killed: the verdict has
 * both. Nothing is slow in the next round. */
static void slow_and_killed(struct sim *s) {
  s->normal = story_run(25000);
  rule_add(s, 0, 1, 1, story_signal(16500, 9));
  story_running(s, 2, 2, 0);
  for (int64_t second = 1; second <= 15; second++) {
    for (int node = 0; node < 2; node++) {
      struct rank_pace paces[2];
      struct msg m;
      struct sim_agent *a = agent_of(s, node);
      for (int64_t i = 0; i < 2; i++)
        paces[i] = (struct rank_pace){.local_rank = i,
                                      .group = 5,
                                      .group_rank = 2 * node + i,
                                      .group_size = 4,
                                      .collectives = second * 100,
                                      .waited_us = node == 1 && i == 0 ? 0 : second * 180000};
      msg_init(&m, MSG_PACE);
      m.rank_paces.incarnation = a->incarnation;
      m.rank_paces.round = a->round;
      m.rank_paces.ranks = paces;
      m.rank_paces.n_ranks = 2;
      agent_say(s, a, &m);
    }
    sim_for(s, 1000);
  }
}

const struct story stories_hang[] = {
    {"slow-and-killed", watchful, slow_and_killed},
    {"one-rank-hangs", impatient, one_rank_hangs},
    {"all-hang", impatient, all_hang},
    {"two-nodes-hang", impatient, two_nodes_hang},
    {"hang-without-daemon", impatient, hang_without_daemon},
    {"hang-at-the-finish", impatient, hang_at_the_finish},
    {"hang-at-the-start", impatient, hang_at_the_start},
    {"stopped-agent-sees-no-hang", impatient, stopped_agent_sees_no_hang},
    {"suspended-is-no-hang", impatient, suspended_is_no_hang},
    {"hang-ends-the-job", last_chance, hang_ends_the_job},
    {NULL, NULL, NULL},
};
