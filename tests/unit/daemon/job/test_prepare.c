/* SPDX-License-Identifier: Apache-2.0 */
/* core: a checkpoint before the planned end of a round, and nodes that leave. */

#include "tests/rig/core.h"

#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

/* Three nodes, of which one is enough, at work. */
static void open_three(struct rig *r, struct node *n) {
  rig_open_for(r, 2, 3);
  r->settings.min_nodes = 1;
  r->settings.lease_ms = LEASE_MAX_MS;
  rig_running(r, n, 3);
  rig_forget(r);
}

static void leaving(struct rig *r, struct node *n) {
  node_report(r, n, REPORT_LEAVING, NULL, 0);
}

static void checkpointed(struct rig *r, struct node *n) {
  node_report(r, n, REPORT_CHECKPOINTED, NULL, 0);
}

static void check_state(struct rig *r, const char *state) {
  assert_string_equal(rig_state(r, "job"), state);
}

RIG_TEST(test_all_are_asked_and_waited_for) {
  open_three(r, n);
  leaving(r, &n[2]);
  check_state(r, "checkpointing");
  for (int i = 0; i < 3; i++) {
    const struct msg *m = rig_last(r, n[i].conn, MSG_PREPARE);
    assert_int_equal(m->prepare.round, 1);
    assert_int_equal(m->prepare.left_ms, 15000);
    assert_int_equal(m->prepare.verdict.cause, CAUSE_NODE_LEAVING);
  }
  checkpointed(r, &n[0]);
  checkpointed(r, &n[0]); /* another report of the same */
  checkpointed(r, &n[2]);
  rig_run(r, 5000);
  assert_int_equal(rig_count(r, n[0].conn, MSG_STOP), 0);
  checkpointed(r, &n[1]);
  check_state(r, "stopping");
  for (int i = 0; i < 3; i++) {
    assert_int_equal(rig_count(r, n[i].conn, MSG_STOP), 1);
    assert_false(rig_stop(r, &n[i])->void_round);
  }
}

/* Who leaves may have stopped, who is done has finished: neither has more to save. */
RIG_TEST(test_who_has_nothing_more_to_save) {
  open_three(r, n);
  leaving(r, &n[2]);
  node_stopped(r, &n[2]);
  node_bye(r, &n[2]);
  check_state(r, "checkpointing");
  node_finished(r, &n[1]);
  check_state(r, "checkpointing");
  checkpointed(r, &n[0]);
  check_state(r, "stopping");
  node_stopped(r, &n[0]);
  assert_int_equal(rig_end(r, &n[0])->code, EXIT_CODE_PREEMPTED); /* n1 is done for good */
}

RIG_TEST(test_all_finish_instead) {
  open_three(r, n);
  leaving(r, &n[2]);
  for (int i = 0; i < 3; i++) {
    checkpointed(r, &n[i]);
    node_finished(r, &n[i]);
  }
  assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
  open_three(r, n);
  leaving(r, &n[2]);
  nodes_finished(r, n, 3);
  assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
}

RIG_TEST(test_half_of_the_stop_timeout) {
  open_three(r, n);
  leaving(r, &n[2]);
  checkpointed(r, &n[1]);
  rig_run(r, 14999);
  check_state(r, "checkpointing");
  rig_run(r, 1);
  check_state(r, "stopping");
  assert_non_null(strstr(buf_text(&r->log), "without the checkpoint of 2 nodes (n0, n2)"));
  checkpointed(r, &n[0]); /* too late, and no harm */
  check_state(r, "stopping");
}

/* Whatever is no plan ends it at once, and charges nothing. */
RIG_TEST(test_what_cuts_it_short) {
  for (int why = 0; why < 5; why++) {
    open_three(r, n);
    leaving(r, &n[2]);
    rig_run(r, 100);
    if (why == 0) node_exited(r, &n[0], 3, 0);
    if (why == 1) node_death_report(r, &n[0]);
    if (why == 2) node_stopped(r, &n[0]); /* it fenced itself */
    if (why == 3) node_bye(r, &n[0]);
    if (why == 4) rig_control(r, "stop", "job", false);
    check_state(r, "stopping");
    enum cause want = why == 4 ? CAUSE_OPERATOR : CAUSE_NODE_LEAVING;
    assert_int_equal(rig_stop(r, &n[1])->verdict.cause, want);
    if (why == 0) nodes_stopped(r, n, 3);
    if (why == 0) assert_false(rig_settled(r, &n[1])->charged);
  }
}

RIG_TEST(test_without_time_nobody_is_asked) {
  rig_open_for(r, 2, 3);
  r->settings.stop_timeout_ms = 1;
  rig_running(r, n, 3);
  leaving(r, &n[2]);
  check_state(r, "stopping");
  assert_int_equal(rig_count(r, n[0].conn, MSG_PREPARE), 0);
}

/* It is told again, unless its answer is in the HELLO. */
RIG_TEST(test_prepare_is_said_again) {
  open_three(r, n);
  leaving(r, &n[2]);
  rig_run(r, 1000);
  node_drop(r, &n[0]);
  rig_forget(r);
  node_back(r, &n[0], PHASE_RUNNING);
  assert_int_equal(rig_last(r, n[0].conn, MSG_PREPARE)->prepare.left_ms, 14000);
  node_drop(r, &n[1]);
  rig_forget(r);
  struct report *late = &n[1].reports[n[1].n_reports++];
  *late = (struct report){.seq = ++n[1].seq, .round = 1, .kind = REPORT_CHECKPOINTED};
  verdict_init(&late->what);
  node_back(r, &n[1], PHASE_RUNNING);
  assert_int_equal(rig_count(r, n[1].conn, MSG_PREPARE), 0);
  checkpointed(r, &n[2]);
  node_drop(r, &n[2]);
  node_back(r, &n[2], PHASE_RUNNING); /* it has answered before */
  assert_int_equal(rig_count(r, n[2].conn, MSG_PREPARE), 0);
  check_state(r, "checkpointing");
  checkpointed(r, &n[0]);
  check_state(r, "stopping");
}

RIG_TEST(test_newcomers_are_asked_for_in_the_same_way) {
  rig_open_for(r, 2, 4);
  r->settings.min_nodes = 1;
  r->settings.last_call_ms = 0;
  r->settings.lease_ms = LEASE_MAX_MS;
  node_init(r, &n[0], 0);
  node_join(r, &n[0]);
  node_started(r, &n[0]);
  rig_run(r, JOB_GROW_AGE_MS + 1);
  for (int i = 1; i < 4; i++) node_init(r, &n[i], i);
  node_join(r, &n[1]);
  rig_run(r, 0);
  check_state(r, "checkpointing");
  assert_int_equal(rig_last(r, n[0].conn, MSG_PREPARE)->prepare.verdict.cause, CAUSE_NODE_JOINED);
  node_join(r, &n[2]); /* it comes just in time */
  assert_true(rig_last(r, n[2].conn, MSG_WAITING)->waiting.spare);
  checkpointed(r, &n[0]);
  node_stopped(r, &n[0]);
  assert_int_equal(n[2].round, 2);
  assert_int_equal(n[0].nodes, 3);
}

/* It is about to end by itself. */
RIG_TEST(test_newcomers_wait_when_a_node_finishes) {
  rig_open_for(r, 2, 3);
  r->settings.last_call_ms = 0;
  r->settings.lease_ms = LEASE_MAX_MS;
  nodes_init(r, n, 3);
  nodes_join(r, n, 2);
  nodes_started(r, n, 2);
  rig_run(r, JOB_GROW_AGE_MS + 1);
  node_join(r, &n[2]);
  rig_run(r, 0);
  check_state(r, "checkpointing");
  node_finished(r, &n[0]);
  check_state(r, "running");
  checkpointed(r, &n[1]);
  rig_run(r, 100000);
  check_state(r, "running");
  assert_int_equal(rig_count(r, n[1].conn, MSG_STOP), 0);
  node_finished(r, &n[1]);
  assert_int_equal(rig_end(r, &n[2])->outcome, OUTCOME_SUCCESS);
}

/* Node 0 has finished and runs again: its store must be closed to new workers first. It says so, or is lost. */
RIG_TEST(test_a_finished_head_runs_again) {
  for (int how = 0; how < 2; how++) {
    rig_open(r, 1);
    r->settings.after_finish = AFTER_FINISH_RESTART;
    r->settings.min_nodes = how ? 1 : 2;
    rig_running(r, n, 2);
    node_finished(r, &n[0]);
    node_exited(r, &n[1], 3, 0);
    assert_int_equal(rig_count(r, n[0].conn, MSG_STOP), 1);
    node_stopped(r, &n[1]);
    check_state(r, "stopping");
    if (how == 0) {
      node_drop(r, &n[0]);
      rig_forget(r);
      node_back(r, &n[0], PHASE_FINISHED);
      assert_int_equal(rig_count(r, n[0].conn, MSG_STOP), 1);
      node_stopped(r, &n[0]);
    }
    if (how == 1) node_death_report(r, &n[0]);
    assert_int_equal(n[1].round, 2);
  }
}

/* The next round waits for others that leave, and they end nothing any more. */
RIG_TEST(test_a_second_for_others_that_leave) {
  open_three(r, n);
  leaving(r, &n[2]);
  nodes_checkpointed(r, n, 3);
  nodes_stopped(r, n, 3);
  check_state(r, "forming");
  rig_run(r, JOB_LEAVE_MS - 1);
  check_state(r, "forming");
  node_bye(r, &n[1]);
  rig_run(r, 1);
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 1);
}

/* Together, or one after the other: no round is formed any more, and nobody waits for --join-timeout. */
RIG_TEST(test_all_leave) {
  open_three(r, n);
  for (int i = 0; i < 3; i++) leaving(r, &n[i]);
  nodes_checkpointed(r, n, 3);
  for (int i = 0; i < 2; i++) {
    node_stopped(r, &n[i]);
    node_bye(r, &n[i]);
  }
  node_stopped(r, &n[2]);
  const struct msg *end = rig_last(r, n[2].conn, MSG_END);
  assert_int_equal(end->end.outcome, OUTCOME_STOPPED);
  assert_int_equal(end->end.code, EXIT_CODE_PREEMPTED);
  node_bye(r, &n[2]);
  check_state(r, "ended");

  open_three(r, n);
  leaving(r, &n[0]);
  nodes_checkpointed(r, n, 3);
  nodes_stopped(r, n, 3);
  for (int i = 0; i < 3; i++) node_bye(r, &n[i]);
  check_state(r, "ended");
  node_init(r, &n[1], 1);
  node_join(r, &n[1]); /* the same command again */
  assert_string_not_equal(n[1].incarnation, n[0].incarnation);
}

/* A spare takes over what they leave. */
RIG_TEST(test_all_leave_but_a_spare) {
  rig_open(r, 1);
  r->settings.max_nodes = r->settings.min_nodes = 1;
  node_init(r, &n[0], 0);
  node_init(r, &n[1], 1);
  node_join(r, &n[0]);
  node_started(r, &n[0]);
  node_join(r, &n[1]);
  leaving(r, &n[0]);
  node_stopped(r, &n[0]);
  rig_run(r, JOB_LEAVE_MS);
  assert_int_equal(n[1].round, 2);
}

/* A daemon that comes back has forgotten that it asked; who leaves tells it so. */
RIG_TEST(test_a_daemon_that_comes_back) {
  for (int leaves = 0; leaves < 2; leaves++) {
    open_three(r, n);
    leaving(r, &n[2]);
    rig_restart(r, false);
    if (!leaves) n[2].n_reports--;
    nodes_back(r, n, 3, PHASE_RUNNING);
    check_state(r, leaves ? "checkpointing" : "running");
    for (int i = 0; i < 3; i++) assert_int_equal(rig_count(r, n[i].conn, MSG_PREPARE), leaves);
    checkpointed(r, &n[0]); /* an answer to the one before, or to this one */
    check_state(r, leaves ? "checkpointing" : "running");
  }
}
