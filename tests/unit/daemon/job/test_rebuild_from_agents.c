/* SPDX-License-Identifier: Apache-2.0 */
/* core: a daemon that comes back, with and without its state file. */

#include "tests/rig/core.h"

#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

/* Nobody notices. -------------------------------------------------------------------------------------------------- */

RIG_TEST(test_running_goes_on) {
  for (int with_state = 0; with_state < 2; with_state++) {
    rig_open_running(r, n, 3);
    char incarnation[INCARNATION_MAX + 1];
    memcpy(incarnation, n[0].incarnation, sizeof incarnation);
    rig_restart(r, with_state);
    assert_string_equal(rig_state(r, "job"), with_state ? "recovering" : "");
    for (int i = 0; i < 3; i++) {
      node_back(r, &n[i], PHASE_RUNNING);
      assert_string_equal(rig_state(r, "job"), i < 2 ? "recovering" : "running");
      assert_string_equal(rig_last(r, n[i].conn, MSG_WELCOME)->welcome.incarnation, incarnation);
      assert_int_equal(rig_count(r, n[i].conn, MSG_START), 0);
      assert_int_equal(rig_count(r, n[i].conn, MSG_STOP), 0);
    }
    nodes_finished(r, n, 3);
    assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
  }
}

static bool acked_fence(struct rig *r, struct node *n) {
  rig_forget(r);
  node_heartbeat(r, n);
  const struct msg *ack = rig_last(r, n->conn, MSG_HEARTBEAT_ACK);
  assert_true(ack->flags & FRAME_FLAG_RECOVERING);
  return ack->flags & FRAME_FLAG_FENCE;
}

/* The others will be back soon, and then a round can form without the first one: its wire may be cut before its next
 * heartbeat. */
RIG_TEST(test_an_early_one_is_told_to_fence) {
  for (int with_state = 0; with_state < 2; with_state++) {
    rig_open_for(r, 2, 3);
    rig_running(r, n, 3);
    rig_restart(r, with_state);
    node_back(r, &n[0], PHASE_RUNNING);
    assert_true(rig_last(r, n[0].conn, MSG_WELCOME)->welcome.fence);
    assert_true(acked_fence(r, &n[0]));
  }
}

/* All of the round are needed, and nobody else was ever here. */
RIG_TEST(test_an_early_one_that_is_needed_need_not_fence) {
  for (int with_state = 0; with_state < 2; with_state++) {
    for (int elastic = 0; elastic < 2; elastic++) {
      rig_open(r, 1);
      r->settings.max_nodes = elastic ? 3 : 2;
      r->settings.last_call_ms = 0;
      rig_running(r, n, 2);
      rig_restart(r, with_state);
      node_back(r, &n[0], PHASE_RUNNING);
      bool unknown = elastic && !with_state; /* WELCOME comes before the size of the round is known */
      assert_int_equal(rig_last(r, n[0].conn, MSG_WELCOME)->welcome.fence, unknown);
      assert_int_equal(acked_fence(r, &n[0]), unknown); /* until the round ends */
    }
  }
}

/* A spare that is there first is one who could take the place of any that comes back. */
RIG_TEST(test_an_early_spare_counts) {
  rig_open_running(r, n, 2);
  node_init(r, &n[2], 2);
  node_join(r, &n[2]);
  rig_restart(r, true);
  node_join(r, &n[2]);
  node_back(r, &n[0], PHASE_RUNNING);
  assert_true(rig_last(r, n[0].conn, MSG_WELCOME)->welcome.fence);
  assert_true(acked_fence(r, &n[0]));
}

RIG_TEST(test_starting_goes_on) {
  rig_open_joined(r, n, 2);
  rig_restart(r, true);
  nodes_back(r, n, 2, PHASE_STARTING);
  assert_string_equal(rig_state(r, "job"), "starting");
  nodes_started(r, n, 2);
  assert_string_equal(rig_state(r, "job"), "running");
}

/* One that had START and comes in no round has given it up: it is not sent another START of it. */
RIG_TEST(test_starting_and_given_up) {
  rig_open_joined(r, n, 2);
  rig_restart(r, true);
  nodes_back(r, n, 2, PHASE_STARTING);
  assert_string_equal(rig_state(r, "job"), "starting");
  node_join(r, &n[0]);
  assert_string_equal(rig_state(r, "job"), "stopping");
  assert_int_equal(rig_count(r, n[0].conn, MSG_START), 0);
  node_stopped(r, &n[1]);
  assert_int_equal(n[0].round, 2);
}

RIG_TEST(test_all_had_finished) {
  rig_open_running(r, n, 2);
  for (int i = 0; i < 2; i++) {
    node_drop(r, &n[i]);
    node_finished(r, &n[i]); /* kept, and said in HELLO */
  }
  rig_restart(r, true);
  nodes_back(r, n, 2, PHASE_FINISHED);
  assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
}

RIG_TEST(test_world_and_ranks_are_known_again) {
  rig_open_for(r, 3, 3);
  for (int i = 0; i < 3; i++) {
    node_init(r, &n[i], i);
    n[i].workers = i + 1;
    node_join(r, &n[i]);
  }
  nodes_started(r, n, 3);
  rig_restart(r, false);
  for (int i = 2; i >= 0; i--) node_back(r, &n[i], PHASE_RUNNING);
  rig_control(r, "status", "job", true);
  assert_said(r, "\"world_size\":6");
}

/* Somebody has news. ----------------------------------------------------------------------------------------------- */

RIG_TEST(test_some_were_told_to_stop) {
  rig_open_running(r, n, 2);
  rig_restart(r, false);
  node_back(r, &n[0], PHASE_STOPPING);
  node_back(r, &n[1], PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "stopping");
  assert_non_null(rig_last(r, n[1].conn, MSG_STOP));
}

RIG_TEST(test_all_had_stopped_and_nobody_had_heard) {
  rig_open_running(r, n, 2);
  node_exited(r, &n[0], 3, 0);
  nodes_drop(r, n, 2);
  nodes_stopped(r, n, 2);
  rig_restart(r, true);
  nodes_back(r, n, 2, PHASE_STOPPED);
  const struct settled *m = rig_settled(r, &n[1]);
  assert_true(m->charged);
  assert_int_equal(m->verdict.code, 3);
  assert_int_equal(n[0].round, 2);
}

RIG_TEST(test_one_has_heard_it_settled) {
  rig_open_running(r, n, 3);
  node_exited(r, &n[0], 3, 0);
  nodes_drop(r, n, 3);
  nodes_stopped(r, n, 3);
  n[0].restarts_used = 1; /* SETTLED reached this one alone */
  n[0].n_reports = 0;
  rig_restart(r, false);
  node_join(r, &n[0]);
  node_back(r, &n[1], PHASE_STOPPED);
  assert_string_equal(rig_state(r, "job"), "recovering");
  node_back(r, &n[2], PHASE_STOPPED);
  assert_string_equal(rig_state(r, "job"), "forming");
  for (int i = 1; i < 3; i++) {
    assert_non_null(rig_last(r, n[i].conn, MSG_STALE));
    n[i].n_reports = 0;
    n[i].node_rank = -1;
    node_hello_again(r, &n[i]);
  }
  assert_true(n[0].round > 1);
  assert_int_equal(n[0].restarts_used, 1); /* charged once, not again */
  assert_int_equal(n[2].restarts_used, 1);
}

/* The STALE of that moment may be lost with its connection: it is said again, as often as it takes. */
RIG_TEST(test_stale_is_said_again) {
  for (int phase = PHASE_STARTING; phase < PHASE_COUNT; phase++) {
    rig_open_running(r, n, 2);
    node_drop(r, &n[0]);
    rig_restart(r, false);
    node_back(r, &n[1], (enum phase)phase);
    node_join(r, &n[0]); /* knows it settled */
    assert_string_equal(rig_state(r, "job"), "forming");
    node_drop(r, &n[1]);
    node_back(r, &n[1], (enum phase)phase);
    assert_non_null(rig_last(r, n[1].conn, MSG_STALE));
    n[1].node_rank = -1;
    node_hello_again(r, &n[1]);
    assert_int_equal(rig_count(r, n[1].conn, MSG_START), 1);
  }
}

RIG_TEST(test_restarts_used_is_the_highest_told) {
  rig_open_running(r, n, 2);
  rig_restart(r, false);
  n[0].restarts_used = 1;
  n[1].restarts_used = 3;
  nodes_back(r, n, 2, PHASE_RUNNING);
  node_exited(r, &n[0], 9, 0);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_end(r, &n[0])->code, 9); /* 3 of 3 were used */
}

/* Somebody is missing. --------------------------------------------------------------------------------------------- */

RIG_TEST(test_a_missing_node_voids_the_round) {
  rig_open_for(r, 2, 3);
  rig_running(r, n, 3);
  rig_restart(r, true);
  node_back(r, &n[0], PHASE_RUNNING);
  node_back(r, &n[2], PHASE_RUNNING);
  for (int i = 0; i < 6; i++) {
    rig_run(r, 1000);
    node_heartbeat(r, &n[0]);
    node_heartbeat(r, &n[2]);
  }
  rig_expect_turn(r, 1000, "recovering", "stopping"); /* lease + 2 s */
  const struct msg *stop = rig_last(r, n[0].conn, MSG_STOP);
  assert_true(stop->stop.void_round);
  assert_int_equal(stop->stop.verdict.cause, CAUSE_NODE_LOST);
  assert_non_null(strstr(stop->stop.verdict.text, "node 1"));
  node_stopped(r, &n[0]);
  node_stopped(r, &n[2]);
  assert_false(rig_settled(r, &n[0])->charged);
  assert_int_equal(n[0].round, 2);
}

/* It could not be known whether its workers lived. It comes back in no round, and says which rank it has left. */
RIG_TEST(test_a_missing_node_comes_back_later) {
  rig_open_running(r, n, 2);
  rig_restart(r, false);
  node_back(r, &n[1], PHASE_RUNNING);
  for (int i = 0; i < 8; i++) {
    rig_run(r, 1000);
    node_heartbeat(r, &n[1]);
  }
  node_stopped(r, &n[1]);
  n[0].node_rank = -1;
  node_back(r, &n[0], PHASE_NONE);
  for (int i = 0; i < 20; i++) {
    rig_run(r, 1000);
    nodes_heartbeat(r, n, 2);
  }
  assert_string_equal(rig_state(r, "job"), "forming");
  n[0].left_rank = 0;
  node_hello_again(r, &n[0]);
  assert_int_equal(n[0].round, 3); /* a daemon that came back skips a number */
  assert_int_equal(n[1].round, 3);
}

RIG_TEST(test_nothing_is_sealed_while_recovering) {
  struct node stranger[2];
  rig_open_running(r, n, 2);
  rig_restart(r, true);
  for (int i = 0; i < 2; i++) {
    node_init(r, &stranger[i], 10 + i);
    node_join(r, &stranger[i]);
    const struct msg *w = rig_last(r, stranger[i].conn, MSG_WAITING);
    assert_non_null(w);
    assert_non_null(strstr(w->waiting.text, "waits for the nodes of round"));
  }
  assert_string_equal(rig_state(r, "job"), "recovering");
  nodes_back(r, n, 2, PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "running");
}

RIG_TEST(test_nobody_comes_back) {
  rig_open_running(r, n, 2);
  rig_restart(r, true);
  rig_expect_turn(r, JOB_END_KEEP_MS, "recovering", ""); /* their network may take its time */
}

/* Tokens. ---------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_a_higher_round_replaces_a_lower) {
  struct node old;
  rig_open_running(r, n, 2);
  node_init(r, &old, 9);
  memcpy(old.incarnation, n[0].incarnation, sizeof old.incarnation);
  old.round = 1;
  old.node_rank = 0;
  old.nodes = 1;
  rig_next_round(r, n, 2);
  nodes_started(r, n, 2);
  rig_restart(r, false);
  node_back(r, &old, PHASE_RUNNING); /* one that was cut off in round 1 comes first */
  node_back(r, &n[0], PHASE_RUNNING);
  assert_non_null(rig_last(r, old.conn, MSG_STALE));
  node_back(r, &n[1], PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "running");
  /* And one that comes after is told so at once. */
  rig_forget(r);
  node_back(r, &old, PHASE_RUNNING);
  const struct msg *stale = rig_last(r, old.conn, MSG_STALE);
  assert_non_null(stale);
  assert_int_equal(stale->stale.round, 2);
  assert_string_equal(stale->stale.incarnation, n[0].incarnation);
}

RIG_TEST(test_old_nodes_take_the_job_back) {
  struct node fresh;
  rig_open_running(r, n, 2);
  rig_restart(r, false);
  r->wall_ms += 60000;
  node_init(r, &fresh, 9);
  node_join(r, &fresh);
  assert_string_equal(rig_state(r, "job"), "forming"); /* a life of its own, without a round */
  node_back(r, &n[0], PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "recovering");
  node_back(r, &n[1], PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "running");
  assert_int_equal(rig_count(r, n[0].conn, MSG_STOP), 0);
}

RIG_TEST(test_old_nodes_come_too_late) {
  struct node fresh[2];
  rig_open_running(r, n, 2);
  rig_restart(r, false);
  r->wall_ms += 60000;
  for (int i = 0; i < 2; i++) {
    node_init(r, &fresh[i], 10 + i);
    node_join(r, &fresh[i]);
  }
  assert_string_equal(rig_state(r, "job"), "starting");
  node_back(r, &n[0], PHASE_RUNNING);
  assert_non_null(strstr(rig_last(r, n[0].conn, MSG_STALE)->stale.text, "a newer run of job job has taken its place"));
  assert_string_equal(rig_state(r, "job"), "starting");
  /* It may not hear of it, and nothing else stops it: the next round begins when it says that it has stopped. */
  node_exited(r, &fresh[0], 1, 0);
  nodes_stopped(r, fresh, 2);
  rig_live(r, 60000);
  assert_string_equal(rig_state(r, "job"), "forming");
  node_back(r, &n[0], PHASE_NONE);
  const struct msg *m = rig_last(r, n[0].conn, MSG_REFUSED);
  assert_non_null(m);
  assert_int_equal(m->refused.code, EXIT_CODE_DAEMON_LOST);
  rig_live(r, 1000);
  assert_int_equal(fresh[1].round, 2);
}

RIG_TEST(test_two_claim_one_rank) {
  struct node thief;
  rig_open_running(r, n, 2);
  rig_restart(r, false);
  node_init(r, &thief, 9);
  memcpy(thief.incarnation, n[0].incarnation, sizeof thief.incarnation);
  thief.round = 1;
  thief.node_rank = 0;
  thief.nodes = 2;
  node_back(r, &n[0], PHASE_RUNNING);
  node_back(r, &thief, PHASE_RUNNING);
  assert_non_null(rig_last(r, thief.conn, MSG_STALE));
  thief.nodes = 3;
  thief.node_rank = 1;
  node_back(r, &thief, PHASE_RUNNING); /* another size of the round */
  assert_non_null(rig_last(r, thief.conn, MSG_STALE));
  assert_string_equal(rig_state(r, "job"), "recovering");
  node_back(r, &n[1], PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "running");
}

RIG_TEST(test_one_that_changes_its_rank) {
  rig_open_running(r, n, 2);
  rig_restart(r, false);
  n[0].node_rank = 1;
  node_back(r, &n[0], PHASE_RUNNING);
  n[0].node_rank = 0;
  nodes_back(r, n, 2, PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "running");
}

/* Tokens are given out once, though nobody here may know of the last one. */
RIG_TEST(test_no_token_twice) {
  rig_open_running(r, n, 2);
  rig_next_round(r, n, 2);
  for (int i = 0; i < 2; i++) { /* START of round 2 reached nobody */
    n[i].round = 1;
    n[i].n_reports = 0;
  }
  rig_restart(r, false);
  nodes_join(r, n, 2);
  assert_true(n[0].round > 2);
}

/* An operator. ----------------------------------------------------------------------------------------------------- */

RIG_TEST(test_a_stop_holds_while_recovering) {
  for (int back = 0; back < 3; back++) { /* how many are back when it comes */
    rig_open_running(r, n, 2);
    rig_restart(r, true);
    if (back > 0) node_back(r, &n[0], back == 2 ? PHASE_NONE : PHASE_RUNNING);
    assert_int_equal(rig_control(r, "stop", "job", false), 0);
    if (back == 1) node_stopped(r, &n[0]);
    node_back(r, &n[1], PHASE_RUNNING);
    const struct end *end = rig_end(r, &n[1]);
    assert_int_equal(end->outcome, OUTCOME_STOPPED);
    assert_int_equal(end->code, EXIT_CODE_STOPPED);
    if (back) assert_non_null(rig_last(r, n[0].conn, MSG_END));
  }
}

/* Nobody is back, and the nodes need not fence: what begins next waits until they have surely stopped. */
RIG_TEST(test_a_stop_of_missing_nodes_holds) {
  struct node fresh[2];
  rig_open(r, 1);
  r->settings.orphan_grace_ms = 60000;
  rig_running(r, n, 2);
  rig_restart(r, true);
  assert_int_equal(rig_control(r, "stop", "job", false), 0);
  for (int i = 0; i < 2; i++) {
    node_init(r, &fresh[i], 10 + i);
    node_join(r, &fresh[i]);
  }
  for (int i = 0; i < 110; i++) {
    rig_run(r, 1000);
    nodes_heartbeat(r, fresh, 2);
    if (i == 90) assert_int_equal(fresh[0].round, 0);
  }
  assert_int_equal(fresh[0].round, 1);
}
