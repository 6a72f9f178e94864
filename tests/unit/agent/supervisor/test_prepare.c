/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: a checkpoint before a planned end, and before leaving. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/sdk/rdzv.h"
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void can(uint32_t local_rank, bool on) {
  bench_worker(local_rank, (struct supervisor_event){.kind = SUP_CAN_CHECKPOINT, .on = on});
}

static void wrote(uint32_t local_rank, uint32_t number, uint64_t step) {
  bench_worker(local_rank,
               (struct supervisor_event){.kind = SUP_CHECKPOINTED, .checkpointed = {.request = number, .step = step}});
}

static void prepare(int64_t round) {
  struct msg m;
  msg_init(&m, MSG_PREPARE);
  m.prepare.incarnation = bench.incarnation;
  m.prepare.round = round;
  m.prepare.left_ms = 15000;
  m.prepare.verdict.cause = CAUSE_NODE_JOINED;
  m.prepare.verdict.text = "node n7 joined";
  bench_msg(&m);
}

/* Round 1 runs, and both workers answer. */
static void open_two(void) {
  bench_open_answered();
  can(0, true);
  can(1, true);
  bench_forget();
}

BENCH_TEST(test_all_that_can_are_asked_once) {
  open_two();
  prepare(1);
  assert_int_equal(bench_count(SUP_REQUEST), 1);
  assert_int_equal(bench_effect(SUP_REQUEST)->request.bits, 0);
  assert_int_equal(bench_effect(SUP_REQUEST)->request.checkpoint, 1);
  assert_said("node n7 joined; workers are asked for a checkpoint first, 15 s at most");
  prepare(1); /* said again, while they write */
  assert_int_equal(bench_count(SUP_REQUEST), 1);
  wrote(0, 1, 120);
  bench_run(300);
  assert_null(bench_report(REPORT_CHECKPOINTED));
  assert_state(SUPERVISOR_RUNNING);
  wrote(1, 1, 120);
  assert_non_null(bench_report(REPORT_CHECKPOINTED));
  assert_said("a checkpoint was written after step 120, 0.3 s after the request");
  bench_stop(1, NULL);
  assert_int_equal(bench_effect(SUP_REQUEST)->request.bits, RDZV_STOP);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.signo, SIGTERM);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
}

RUNNING_TEST(test_nobody_can) {
  prepare(1);
  assert_non_null(bench_report(REPORT_CHECKPOINTED));
  assert_int_equal(bench_count(SUP_REQUEST), 0);
}

/* One of two answers; one has closed its connection, died, or finished: it is not waited for. */
BENCH_TEST(test_who_cannot_any_more) {
  for (int how = 0; how < 2; how++) {
    open_two();
    prepare(1);
    wrote(1, 1, 7);
    assert_null(bench_report(REPORT_CHECKPOINTED));
    if (how == 0)
      can(0, false);
    else
      bench_exited(0, EXITED(0), bench.now_ms, "");
    assert_non_null(bench_report(REPORT_CHECKPOINTED));
  }
}

BENCH_TEST(test_a_worker_that_fails_meanwhile) {
  open_two();
  prepare(1);
  bench_exited(0, SIGNALED(11), bench.now_ms, "");
  assert_non_null(bench_report(REPORT_FAILED));
  assert_state(SUPERVISOR_STOPPING);
  wrote(1, 1, 7);
  assert_null(bench_report(REPORT_CHECKPOINTED));
}

/* Of another round, while stopping, from a worker there is none of, of a checkpoint that nobody asked for. */
BENCH_TEST(test_what_is_not_for_us) {
  open_two();
  prepare(2);
  assert_int_equal(bench_count(SUP_REQUEST), 0);
  wrote(0, 3, 7);
  wrote(99, 0, 7);
  can(99, true);
  prepare(1);
  wrote(0, 0, 7);
  wrote(1, 1, 7);
  assert_null(bench_report(REPORT_CHECKPOINTED));
  bench_stop(1, NULL);
  bench_forget();
  prepare(1);
  wrote(0, 1, 7);
  assert_null(bench_report(REPORT_CHECKPOINTED));
  assert_int_equal(bench_count(SUP_REQUEST), 0);
}

/* A daemon that came back asks anew, and the next round begins to count anew. */
BENCH_TEST(test_a_second_request) {
  open_two();
  for (uint32_t n = 1; n <= 2; n++) {
    bench_forget();
    prepare(1);
    assert_int_equal(bench_effect(SUP_REQUEST)->request.checkpoint, n);
    wrote(0, n, 10 * n);
    assert_null(bench_report(REPORT_CHECKPOINTED));
    wrote(1, n, 10 * n);
    assert_non_null(bench_report(REPORT_CHECKPOINTED));
  }
  bench_stop(1, NULL);
  bench_clear();
  bench_settled(1, false, 0, NULL);
  bench_start(2);
  bench_all_spawned();
  bench_forget();
  prepare(2);
  assert_non_null(bench_report(REPORT_CHECKPOINTED)); /* these cannot, as far as is known */
  assert_int_equal(bench_count(SUP_REQUEST), 0);
}

/* What was asked for is told when the link is back. */
BENCH_TEST(test_the_answer_waits_for_the_link) {
  open_two();
  prepare(1);
  bench_down(false);
  wrote(0, 1, 7);
  wrote(1, 1, 7);
  bench_run(100);
  bench_up();
  const struct hello *h = bench_hello();
  assert_int_equal(h->reports[h->n_reports - 1].kind, REPORT_CHECKPOINTED);
  assert_int_equal(h->phase, PHASE_RUNNING);
}

/* Leaving. --------------------------------------------------------------------------------------------------------- */

static void check_exit_75(void) {
  bench_clear();
  assert_int_equal(bench.exits, 1);
  assert_int_equal(bench.exit_code, EXIT_CODE_PREEMPTED);
}

/* Stopped (SIGSTOP) while they were at it, and continued when all its time is over: they are killed, and only then it
 * goes. */
BENCH_TEST(test_leaving_late_leaves_nobody_behind) {
  open_two();
  bench_signal(SIGTERM);
  bench.now_ms += 600000;
  bench_event(&(struct supervisor_event){.kind = SUP_TICK});
  assert_int_equal(bench.exits, 0);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  check_exit_75();
}

BENCH_TEST(test_leaving_asks_first) {
  open_two();
  bench_signal(SIGUSR1);
  assert_non_null(bench_report(REPORT_LEAVING));
  assert_int_equal(bench_effect(SUP_REQUEST)->request.checkpoint, 1);
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
  assert_said("SIGUSR1: leaving with exit code 75; workers are asked for a checkpoint first, for "
              "up to 15 s, and have 30 s in all to stop (--stop-timeout)");
  prepare(1); /* the daemon's word for the same */
  assert_int_equal(bench_count(SUP_REQUEST), 1);
  bench_run(2000);
  wrote(0, 1, 7);
  wrote(1, 1, 7);
  assert_non_null(bench_report(REPORT_CHECKPOINTED));
  bench_run(1000);
  assert_int_equal(bench_count(SUP_STOP_TREES), 0); /* others may be at it still */
  bench_stop(1, NULL);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.signo, SIGUSR1);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 27000); /* all in all 30 s */
  check_exit_75();
}

/* They are quicker than PREPARE: it is answered at once. */
BENCH_TEST(test_prepare_after_the_checkpoint) {
  open_two();
  bench_signal(SIGTERM);
  wrote(0, 1, 7);
  wrote(1, 1, 7);
  assert_null(bench_report(REPORT_CHECKPOINTED));
  prepare(1);
  assert_non_null(bench_report(REPORT_CHECKPOINTED));
  assert_int_equal(bench_count(SUP_REQUEST), 1);
}

BENCH_TEST(test_leaving_waits_for_half_of_the_stop_timeout) {
  for (int one_writes = 0; one_writes < 2; one_writes++) {
    open_two();
    bench_signal(SIGTERM);
    wrote(0, 1, 7);
    if (one_writes) wrote(1, 1, 7); /* STOP never comes */
    bench_run(14999);
    assert_int_equal(bench_count(SUP_STOP_TREES), 0);
    bench_run(1);
    assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 15000);
    assert_int_equal(bench_said("rank 3 has not written the requested checkpoint"), !one_writes);
    check_exit_75();
  }
}

/* The daemon waits as long as we do, so its STOP may be there first. */
BENCH_TEST(test_the_daemon_is_tired_of_waiting_first) {
  open_two();
  bench_signal(SIGTERM);
  wrote(0, 1, 7);
  bench_run(14999);
  bench_stop(1, NULL);
  assert_said("rank 3 has not written the requested checkpoint; stopping without it");
  assert_int_equal(bench_count(SUP_STOP_TREES), 1);
  bench_run(1);
  assert_said("has not written the requested checkpoint");
  check_exit_75();
}

/* Something else has ended the round: they have had no time to write. */
BENCH_TEST(test_a_stop_in_between_blames_nobody) {
  open_two();
  bench_signal(SIGTERM);
  bench_run(1000);
  bench_stop(1, NULL);
  assert_not_said("has not written the requested checkpoint");
  check_exit_75();
}

BENCH_TEST(test_leaving_without_a_daemon) {
  for (int late = 0; late < 2; late++) {
    open_two();
    if (!late) bench_down(true);
    bench_signal(SIGTERM);
    wrote(0, 1, 7);
    assert_int_equal(bench_count(SUP_STOP_TREES), 0);
    wrote(1, 1, 7);
    if (late) bench_down(true);
    assert_int_equal(bench_count(SUP_STOP_TREES), 1);
    check_exit_75();
  }
}

BENCH_TEST(test_a_second_signal_does_not_wait) {
  open_two();
  bench_signal(SIGTERM);
  bench_signal(SIGTERM);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  check_exit_75();
}

BENCH_TEST(test_a_failure_while_leaving) {
  open_two();
  bench_signal(SIGTERM);
  bench_run(1000);
  bench_exited(0, EXITED(3), bench.now_ms, "");
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 29000);
  check_exit_75();
}

/* With no time there is nothing to wait for. */
BENCH_TEST(test_leaving_with_no_stop_timeout) {
  bench.config.settings.stop_timeout_ms = 1;
  bench_running();
  can(0, true);
  bench_signal(SIGTERM);
  assert_int_equal(bench_count(SUP_STOP_TREES), 1);
  check_exit_75();
}

/* They finish instead: the END is waited for, as long as the checkpoint could have taken. A success needs no other
 * run. */
BENCH_TEST(test_they_finish_while_it_leaves) {
  for (int ends = 0; ends < 2; ends++) {
    open_two();
    bench_signal(SIGTERM);
    bench_all_exited(EXITED(0));
    bench_clear();
    assert_non_null(bench_report(REPORT_FINISHED));
    bench_run(14000);
    assert_int_equal(bench.exits, 0);
    if (ends) {
      struct msg m;
      msg_init(&m, MSG_END);
      m.end.incarnation = bench.incarnation;
      m.end.round = 1;
      m.end.outcome = OUTCOME_SUCCESS;
      bench_msg(&m);
    } else {
      bench_run(1000);
      assert_non_null(bench_sent(MSG_BYE));
    }
    assert_int_equal(bench.exits, 1);
    assert_int_equal(bench.exit_code, ends ? EXIT_CODE_OK : EXIT_CODE_PREEMPTED);
  }
}

/* It serves the round's store, has finished, and is to run again: STOP asks it to let nobody new in, once. */
BENCH_TEST(test_stop_after_finishing) {
  for (int node = 0; node < 2; node++) {
    bench_open();
    bench.node_rank = node;
    bench_running();
    bench_all_exited(EXITED(0));
    bench_clear();
    bench_forget();
    bench_stop(1, NULL);
    bench_stop(1, NULL);
    assert_int_equal(bench_count(SUP_SHUT_STORE), node == 0);
    assert_int_equal(bench_count_sent(MSG_REPORT), node == 0);
    assert_state(SUPERVISOR_FINISHED);
    bench_settled(1, false, 0, NULL);
    assert_state(SUPERVISOR_JOINING);
  }
}
