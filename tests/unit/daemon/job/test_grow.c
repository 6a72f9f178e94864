/* SPDX-License-Identifier: Apache-2.0 */
/* core: nodes that come while a round runs, and hosts that come and go. */

#include "tests/rig/core.h"

#include <string.h>
#include "tests/rig/unit.h"

static void come(struct rig *r, struct node *n, int i) {
  node_init(r, n, i);
  node_join(r, n);
}

static void open_two(struct rig *r, struct node *n, int64_t min, int64_t max, enum scale_up scale_up) {
  rig_open_for(r, min, max);
  r->settings.scale_up = scale_up;
  r->settings.last_call_ms = 1000;
  r->settings.lease_ms = LEASE_MAX_MS;
  r->settings.stop_timeout_ms = 0; /* no time for a checkpoint before: test_prepare.c */
  for (int i = 0; i < 2; i++) come(r, &n[i], i);
  rig_run(r, 1000);
  nodes_started(r, n, 2);
  assert_string_equal(rig_state(r, "job"), "running");
}

/* The round is as old as a round must be, less what `before` it. */
static void grow_old(struct rig *r, uint64_t before) {
  rig_run(r, JOB_GROW_AGE_MS - before);
}

RIG_TEST(test_a_round_grows_when_it_is_old_enough) {
  open_two(r, n, 2, 4, SCALE_UP_NOW);
  rig_run(r, 5000);
  come(r, &n[2], 2);
  grow_old(r, 6000);
  come(r, &n[3], 3);
  assert_int_equal(rig_count(r, n[0].conn, MSG_STOP), 0);
  rig_run(r, 1000);
  const struct stop *stop = rig_stop(r, &n[0]);
  assert_int_equal(stop->verdict.cause, CAUSE_NODE_JOINED);
  assert_false(stop->void_round);
  assert_string_equal(stop->verdict.text, "nodes n2, n3 joined: a new round is formed with 4 nodes");
  nodes_stopped(r, n, 2);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(n[i].round, 2);
    assert_int_equal(n[i].node_rank, i); /* survivors keep theirs */
    assert_int_equal(n[i].world_size, 4);
    assert_int_equal(n[i].restarts_used, 0);
  }
}

RIG_TEST(test_at_once_where_it_is_old) {
  open_two(r, n, 2, 4, SCALE_UP_NOW);
  grow_old(r, 0);
  rig_run(r, 1000);
  come(r, &n[2], 2);
  rig_run(r, 0);
  assert_int_equal(rig_count(r, n[0].conn, MSG_STOP), 1);
}

RIG_TEST(test_not_when_it_may_not) {
  for (int why = 0; why < 4; why++) {
    open_two(r, n, 2, why == 0 ? 2 : 4, why == 1 ? SCALE_UP_NEXT_ROUND : SCALE_UP_NOW);
    if (why == 2) node_finished(r, &n[1]);
    come(r, &n[2], 2);
    if (why == 3) node_bye(r, &n[2]); /* it has gone again */
    rig_run(r, 4 * JOB_GROW_AGE_MS);
    assert_int_equal(rig_count(r, n[0].conn, MSG_STOP), 0);
    assert_string_equal(rig_state(r, "job"), "running");
  }
}

/* STOP and the ends of workers cross. */
RIG_TEST(test_finished_before_the_stop_came) {
  for (int all = 0; all < 2; all++) {
    open_two(r, n, 2, 4, SCALE_UP_NOW);
    come(r, &n[2], 2);
    grow_old(r, 0);
    assert_string_equal(rig_state(r, "job"), "stopping");
    node_finished(r, &n[0]);
    if (all)
      node_finished(r, &n[1]);
    else
      node_stopped(r, &n[1]);
    if (!all) { /* its store is open to all of the round still, and those of the next are not of it */
      assert_string_equal(rig_state(r, "job"), "stopping");
      node_stopped(r, &n[0]);
    }
    assert_string_equal(rig_state(r, "job"), all ? "ending" : "starting");
    if (all) assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
    if (!all) assert_int_equal(n[0].nodes, 3);
  }
}

RIG_TEST(test_what_dies_meanwhile_is_not_charged) {
  open_two(r, n, 2, 4, SCALE_UP_NOW);
  come(r, &n[2], 2);
  grow_old(r, 0);
  node_killed(r, &n[1], 11, 0);
  nodes_stopped(r, n, 2);
  assert_int_equal(n[2].round, 2);
  assert_int_equal(n[2].restarts_used, 0);
  assert_int_equal(rig_settled(r, &n[0])->verdict.cause, CAUSE_NODE_JOINED);
}

/* Node 1 is lost, node 0 goes on alone, node 1 comes back, and the round is old enough for it. */
static void lose_and_return(struct rig *r, struct node *n) {
  node_death_report(r, &n[1]);
  node_stopped(r, &n[0]);
  node_started(r, &n[0]);
  r->n_nodes--;
  come(r, &n[1], 1);
  grow_old(r, 0);
  if (strcmp(rig_state(r, "job"), "stopping") != 0) return;
  node_stopped(r, &n[0]);
  nodes_started(r, n, 2);
}

RIG_TEST(test_a_flapping_host_is_kept_waiting) {
  open_two(r, n, 1, 2, SCALE_UP_NOW);
  for (int i = 1; i < JOB_FLAP_LOSSES; i++) lose_and_return(r, n);
  assert_int_equal(n[0].nodes, 2); /* twice is nothing */
  lose_and_return(r, n);
  assert_string_equal(rig_state(r, "job"), "running");
  assert_int_equal(n[0].nodes, 1);
  rig_control(r, "status", "job", false);
  assert_said(r, "kept waiting");
  nodes_heartbeat(r, n, 2);
  rig_run(r, JOB_FLAP_MS - 3 * JOB_GROW_AGE_MS - 1000);
  assert_string_equal(rig_state(r, "job"), "running");
  nodes_heartbeat(r, n, 2);
  rig_run(r, 1000); /* the first loss is 10 minutes ago */
  assert_string_equal(rig_state(r, "job"), "stopping");
}

RIG_TEST(test_a_flapping_host_is_taken_where_it_is_needed) {
  open_two(r, n, 1, 2, SCALE_UP_NOW);
  for (int i = 0; i < JOB_FLAP_LOSSES; i++) lose_and_return(r, n);
  assert_int_equal(n[0].nodes, 1);
  int64_t round = n[0].round;
  node_death_report(r, &n[0]);
  assert_int_equal(n[1].round, round + 1);
  assert_int_equal(n[1].nodes, 1);
}
