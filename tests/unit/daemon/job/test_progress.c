/* SPDX-License-Identifier: Apache-2.0 */
/* job: how far its nodes are, as they say in PROGRESS. */

#include "tests/rig/core.h"

#include "daemon/core/internal.h"
#include "tests/rig/unit.h"

static const struct member *member_of(const struct rig *r, const struct node *n) {
  const struct job *j = jobs_find(&r->core->jobs, n->uid, "job");
  assert_non_null(j);
  const struct member *m = job_find_agent(j, n->agent);
  assert_non_null(m);
  return m;
}

static struct msg progress_of(const struct node *n, int64_t step, int64_t age_ms) {
  struct msg m;
  msg_init(&m, MSG_PROGRESS);
  m.progress.incarnation = n->incarnation;
  m.progress.round = n->round;
  m.progress.step = step;
  m.progress.age_ms = age_ms;
  return m;
}

RIG_TEST(test_the_age_grows_until_the_next_report) {
  rig_open_running(r, n, 2);
  assert_true(member_progress_age_ms(member_of(r, &n[0]), r->now_ms) == UINT64_MAX);
  struct msg m = progress_of(&n[0], 7, 300);
  node_say(r, &n[0], &m);
  assert_int_equal(member_progress_age_ms(member_of(r, &n[0]), r->now_ms), 300);
  rig_live(r, 2000);
  assert_int_equal(member_progress_age_ms(member_of(r, &n[0]), r->now_ms), 2300);
  m = progress_of(&n[0], 8, INT64_MAX); /* no agent is so old */
  node_say(r, &n[0], &m);
  assert_true(member_progress_age_ms(member_of(r, &n[0]), r->now_ms) == INT64_MAX);
  m = progress_of(&n[1], -1, 0); /* a checkpoint, and no step yet */
  m.progress.saved = 3;
  node_say(r, &n[1], &m);
  assert_true(member_progress_age_ms(member_of(r, &n[1]), r->now_ms) == UINT64_MAX);
  assert_int_equal(job_steps(member_of(r, &n[1])->job).saved, 3);
}

RIG_TEST(test_laggards_have_their_own_age) {
  rig_open_for(r, 2, 2);
  nodes_init(r, n, 2);
  n[0].workers = 4;
  nodes_join(r, n, 2);
  nodes_started(r, n, 2);
  struct laggard laggards[] = {{2, 6, 5000}, {0, 7, 3000}, {4, 6, 5000}}; /* it has no local rank 4 */
  struct msg m = progress_of(&n[0], 6, 5000);
  m.progress.laggards = laggards;
  m.progress.n_laggards = 3;
  node_say(r, &n[0], &m);
  rig_live(r, 1000);
  const struct member *of = member_of(r, &n[0]);
  assert_int_equal(of->progress.laggards->n, 2);
  assert_int_equal(member_worker_age_ms(of, 2, r->now_ms), 6000);
  assert_int_equal(member_worker_age_ms(of, 0, r->now_ms), 4000);
  assert_int_equal(member_worker_age_ms(of, 1, r->now_ms), 1000);
  assert_int_equal(member_progress_age_ms(of, r->now_ms), 6000);
  m = progress_of(&n[0], 8, 10);
  node_say(r, &n[0], &m);
  assert_null(of->progress.laggards);
  assert_int_equal(member_worker_age_ms(of, 2, r->now_ms), 10);
}

static void say_saved(struct rig *r, struct node *n, int64_t resumed, int64_t saved) {
  struct msg m = progress_of(n, 200, 0);
  m.progress.resumed = resumed;
  m.progress.saved = saved;
  node_say(r, n, &m);
}

/* A checkpoint is complete when every node that writes some has its part. */
RIG_TEST(test_checkpoints_of_all_nodes) {
  rig_open_running(r, n, 3);
  const struct job *j = member_of(r, &n[0])->job;
  assert_int_equal(job_steps(j).saved, -1);
  assert_int_equal(job_steps(j).resumed, -1);
  say_saved(r, &n[0], 120, 150);
  say_saved(r, &n[1], 120, -1);
  say_saved(r, &n[2], 100, 140);
  assert_int_equal(job_steps(j).saved, 140);
  assert_int_equal(job_steps(j).resumed, 100);
  struct msg old = progress_of(&n[0], 300, 0);
  old.progress.round = 7;
  node_say(r, &n[0], &old);
  assert_int_equal(member_of(r, &n[0])->progress.step, 200);
  rig_next_round(r, n, 3);
  assert_int_equal(job_steps(j).saved, -1);
  assert_int_equal(job_steps(j).resumed, -1);
  assert_true(member_progress_age_ms(member_of(r, &n[0]), r->now_ms) == UINT64_MAX);
}
