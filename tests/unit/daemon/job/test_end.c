/* SPDX-License-Identifier: Apache-2.0 */
/* core: when a job is over: all have finished, a failure that nothing follows, an operator; and how the end is told. */

#include "tests/rig/core.h"

#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

RIG_TEST(test_success) {
  rig_open_running(r, n, 2);
  node_finished(r, &n[0]);
  assert_string_equal(rig_state(r, "job"), "running");
  node_finished(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "ending");
  for (int i = 0; i < 2; i++) {
    assert_int_equal(rig_end(r, &n[i])->outcome, OUTCOME_SUCCESS);
    assert_int_equal(rig_end(r, &n[i])->code, 0);
    assert_int_equal(rig_end(r, &n[i])->verdict.cause, CAUSE_NONE);
  }
  node_end_ack(r, &n[0]);
  assert_string_equal(rig_state(r, "job"), "ending");
  node_end_ack(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "ended");
  assert_true(core_idle(r->core));
}

RIG_TEST(test_one_may_finish_before_all_have_started) {
  rig_open_joined(r, n, 2);
  node_finished(r, &n[0]);
  assert_string_equal(rig_state(r, "job"), "starting");
  node_finished(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "ending");
  assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
}

RIG_TEST(test_a_finished_node_may_go_away) {
  rig_open_running(r, n, 2);
  node_finished(r, &n[1]);
  node_drop(r, &n[1]);
  rig_run(r, 4000);
  node_heartbeat(r, &n[0]);
  rig_run(r, 4000);
  assert_string_equal(rig_state(r, "job"), "running");
  node_finished(r, &n[0]);
  assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
  node_end_ack(r, &n[0]);
  assert_string_equal(rig_state(r, "job"), "ended");
  node_back(r, &n[1], PHASE_FINISHED); /* and learns of the end late */
  assert_int_equal(rig_end(r, &n[1])->outcome, OUTCOME_SUCCESS);
}

/* Node rank 0 may not: its agent serves the round's store. */
RIG_TEST(test_a_finished_node_0_takes_the_store_along) {
  rig_open_running(r, n, 2);
  node_finished(r, &n[0]);
  node_drop(r, &n[0]);
  rig_run(r, JOB_GRACE_MS);
  assert_string_equal(rig_state(r, "job"), "stopping");
  assert_int_equal(rig_stop(r, &n[1])->verdict.cause, CAUSE_NODE_LOST);
  node_stopped(r, &n[1]);
  assert_int_equal(rig_end(r, &n[1])->outcome, OUTCOME_FAILED);
  assert_int_equal(rig_end(r, &n[1])->code, EXIT_CODE_NODE_LOST);
}

/* After a node has finished, a failure or a loss ends the job or restarts every node, as --after-finish says. */
RIG_TEST(test_after_finish) {
  for (int lost = 0; lost < 2; lost++)
    for (int restart = 0; restart < 2; restart++) {
      rig_open_for(r, 2, 3);
      r->settings.after_finish = restart ? AFTER_FINISH_RESTART : AFTER_FINISH_FAIL;
      rig_joined(r, n, 3);
      nodes_started(r, n, 3);
      node_finished(r, &n[0]);
      if (lost)
        node_death_report(r, &n[1]);
      else
        node_exited(r, &n[1], 3, 0);
      nodes_stopped(r, n + (lost ? 2 : 1), lost ? 1 : 2);
      if (restart) {
        node_stopped(r, &n[0]);          /* as node 0 it says that its store is closed to newcomers */
        assert_int_equal(n[0].round, 2); /* who has finished runs again */
        assert_int_equal(n[0].nodes, lost ? 2 : 3);
        assert_int_equal(n[0].restarts_used, lost ? 0 : 1);
      } else {
        assert_string_equal(rig_state(r, "job"), "ending");
        assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_FAILED);
        assert_int_equal(rig_end(r, &n[0])->code, lost ? EXIT_CODE_NODE_LOST : 3);
        assert_int_equal(rig_end(r, &n[0])->restarts_used, 0);
      }
    }
}

/* FINISHED is the last report of a node about a round. */
RIG_TEST(test_finished_is_final) {
  rig_open_running(r, n, 2);
  node_finished(r, &n[0]);
  node_exited(r, &n[0], 3, 0);
  node_stopped(r, &n[0]);
  node_report(r, &n[0], REPORT_LEAVING, NULL, 0);
  assert_string_equal(rig_state(r, "job"), "running");
  node_finished(r, &n[1]);
  assert_int_equal(rig_end(r, &n[1])->outcome, OUTCOME_SUCCESS);
}

RIG_TEST(test_a_command_that_cannot_run_ends_at_once) {
  struct verdict v;
  rig_open_joined(r, n, 2);
  verdict_init(&v);
  v.cause = CAUSE_WORKER_EXEC;
  v.code = 127;
  v.lasting = LASTING_COMMAND;
  v.text = "no such file";
  node_report(r, &n[0], REPORT_FAILED, &v, 0);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_end(r, &n[1])->code, 127);
  assert_int_equal(rig_end(r, &n[1])->outcome, OUTCOME_FAILED);
  assert_string_equal(rig_end(r, &n[1])->verdict.text, "no such file");
}

RIG_TEST(test_operator) {
  /* 0 forming, 1 starting, 2 running, 3 stopping after a failure */
  for (int when = 0; when < 4; when++) {
    rig_open(r, 1);
    nodes_init(r, n, 2);
    for (int i = 0; i < (when ? 2 : 1); i++) node_join(r, &n[i]);
    for (int i = 0; i < 2 && when >= 2; i++) node_started(r, &n[i]);
    if (when == 3) node_killed(r, &n[1], 9, 0);
    assert_int_equal(rig_control(r, "stop", "job", false), 0);
    if (when) {
      assert_string_equal(rig_state(r, "job"), "stopping");
      nodes_stopped(r, n, 2);
    }
    for (int i = 0; i < (when ? 2 : 1); i++) {
      assert_int_equal(rig_end(r, &n[i])->outcome, OUTCOME_STOPPED);
      assert_int_equal(rig_end(r, &n[i])->code, EXIT_CODE_STOPPED);
      assert_int_equal(rig_end(r, &n[i])->verdict.cause, CAUSE_OPERATOR);
      assert_int_equal(rig_end(r, &n[i])->restarts_used, 0);
    }
    assert_int_not_equal(rig_control(r, "stop", "job", false), 0); /* it is over */
  }
}

/* END may be lost with its connection, and the job begun anew by others: who has not heard of the end is in their
 * way. */
RIG_TEST(test_who_comes_back_to_a_job_that_is_over_is_to_fence) {
  rig_open_running(r, n, 2);
  node_heartbeat(r, &n[1]);
  assert_int_equal(rig_last(r, n[1].conn, MSG_HEARTBEAT_ACK)->flags, 0); /* two nodes, fixed */
  assert_int_equal(rig_control(r, "stop", "job", false), 0);
  node_stopped(r, &n[0]);
  node_drop(r, &n[1]);
  rig_run(r, JOB_GRACE_MS);
  node_end_ack(r, &n[0]);
  node_back(r, &n[1], PHASE_RUNNING);
  assert_true(rig_last(r, n[1].conn, MSG_WELCOME)->welcome.fence);
  assert_non_null(rig_last(r, n[1].conn, MSG_END));
}

RIG_TEST(test_end_is_repeated_and_then_given_up) {
  rig_open(r, 1);
  r->settings.lease_ms = 60000;
  rig_running(r, n, 2);
  nodes_finished(r, n, 2);
  node_end_ack(r, &n[0]);
  node_back(r, &n[1], PHASE_FINISHED);
  assert_non_null(rig_last(r, n[1].conn, MSG_END));
  rig_expect_turn(r, JOB_END_ACK_MS, "ending", "ended");
}

/* A daemon that knew less has given the run another name, and began no round of it. */
RIG_TEST(test_who_knows_the_run_by_another_name_gets_its_end) {
  rig_open_successors(r, 2, 2);
  rig_joined(r, n, 2);
  nodes_started(r, n, 2);
  nodes_finished(r, n, 2);
  node_end_ack(r, &n[0]);
  node_leave_silently(&n[1]);
  rig_run(r, JOB_END_ACK_MS);
  assert_string_equal(rig_state(r, "job"), "ended");
  char *digit = &n[1].incarnation[strlen(n[1].incarnation) - 1];
  *digit = *digit == '0' ? '1' : '0';
  n[1].round = 0;
  n[1].conn = 0;
  node_join(r, &n[1]);
  assert_non_null(rig_last(r, n[1].conn, MSG_END));
  node_init(r, &n[0], 3); /* one that was in no round of it begins the job again */
  node_join(r, &n[0]);
  assert_null(rig_last(r, n[0].conn, MSG_END));
}

RIG_TEST(test_a_bye_is_an_acknowledgement) {
  rig_open_running(r, n, 2);
  nodes_finished(r, n, 2);
  node_bye(r, &n[0]);
  node_end_ack(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "ended");
}

RIG_TEST(test_early_end_ack_acknowledges_nothing) {
  rig_open_running(r, n, 2);
  nodes_end_ack(r, n, 2);
  nodes_finished(r, n, 2);
  assert_string_equal(rig_state(r, "job"), "ending");
}
