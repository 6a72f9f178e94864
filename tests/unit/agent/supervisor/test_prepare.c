/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: a checkpoint before a planned end, and before leaving. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/sdk/rdzv.h"
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void can(struct bench *b, uint32_t local_rank, bool on) {
  bench_worker(b, local_rank, (struct supervisor_event){.kind = SUP_CAN_CHECKPOINT, .can_checkpoint = {.can = on}});
}

static void wrote(struct bench *b, uint32_t local_rank, uint32_t number, uint64_t step) {
  bench_worker(b, local_rank,
               (struct supervisor_event){.kind = SUP_CHECKPOINTED, .checkpointed = {.request = number, .step = step}});
}

static void prepare(struct bench *b, int64_t round) {
  struct msg m;
  msg_init(&m, MSG_PREPARE);
  m.prepare.incarnation = b->incarnation;
  m.prepare.round = round;
  m.prepare.left_ms = 15000;
  m.prepare.verdict.cause = CAUSE_NODE_JOINED;
  m.prepare.verdict.text = "node n7 joined";
  bench_msg(b, &m);
}

/* Round 1 runs, and both workers answer. */
static void open_two(struct bench *b) {
  bench_open_answered(b);
  can(b, 0, true);
  can(b, 1, true);
  bench_forget(b);
}

static void test_all_that_can_are_asked_once(void **state) {
  struct bench b;
  open_two(&b);
  prepare(&b, 1);
  assert_int_equal(bench_count(&b, SUP_REQUEST), 1);
  assert_int_equal(bench_effect(&b, SUP_REQUEST)->request.bits, 0);
  assert_int_equal(bench_effect(&b, SUP_REQUEST)->request.checkpoint, 1);
  assert_int_equal(bench_said(&b, "node n7 joined; workers are asked for a checkpoint first, 15 s at most"), 1);
  prepare(&b, 1); /* said again, while they write */
  assert_int_equal(bench_count(&b, SUP_REQUEST), 1);
  wrote(&b, 0, 1, 120);
  bench_run(&b, 300);
  assert_null(bench_report(&b, REPORT_CHECKPOINTED));
  assert_state(&b, SUPERVISOR_RUNNING);
  wrote(&b, 1, 1, 120);
  assert_non_null(bench_report(&b, REPORT_CHECKPOINTED));
  assert_int_equal(bench_said(&b, "a checkpoint was written after step 120, 0.3 s after the request"), 1);
  bench_stop(&b, 1, NULL);
  assert_int_equal(bench_effect(&b, SUP_REQUEST)->request.bits, RDZV_STOP);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.signo, SIGTERM);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
  bench_close(&b);
}

static void test_nobody_can(void **state) {
  struct bench b;
  bench_open_running(&b);
  prepare(&b, 1);
  assert_non_null(bench_report(&b, REPORT_CHECKPOINTED));
  assert_int_equal(bench_count(&b, SUP_REQUEST), 0);
  bench_close(&b);
}

/* One of two answers; one has closed its connection, died, or finished: it is not waited for. */
static void test_who_cannot_any_more(void **state) {
  for (int how = 0; how < 2; how++) {
    struct bench b;
    open_two(&b);
    prepare(&b, 1);
    wrote(&b, 1, 1, 7);
    assert_null(bench_report(&b, REPORT_CHECKPOINTED));
    if (how == 0)
      can(&b, 0, false);
    else
      bench_exited(&b, 0, EXITED(0), b.now_ms, "");
    assert_non_null(bench_report(&b, REPORT_CHECKPOINTED));
    bench_close(&b);
  }
}

static void test_a_worker_that_fails_meanwhile(void **state) {
  struct bench b;
  open_two(&b);
  prepare(&b, 1);
  bench_exited(&b, 0, SIGNALED(11), b.now_ms, "");
  assert_non_null(bench_report(&b, REPORT_FAILED));
  assert_state(&b, SUPERVISOR_STOPPING);
  wrote(&b, 1, 1, 7);
  assert_null(bench_report(&b, REPORT_CHECKPOINTED));
  bench_close(&b);
}

/* Of another round, while stopping, from a worker there is none of, of a checkpoint that nobody asked for. */
static void test_what_is_not_for_us(void **state) {
  struct bench b;
  open_two(&b);
  prepare(&b, 2);
  assert_int_equal(bench_count(&b, SUP_REQUEST), 0);
  wrote(&b, 0, 3, 7);
  wrote(&b, 99, 0, 7);
  can(&b, 99, true);
  prepare(&b, 1);
  wrote(&b, 0, 0, 7);
  wrote(&b, 1, 1, 7);
  assert_null(bench_report(&b, REPORT_CHECKPOINTED));
  bench_stop(&b, 1, NULL);
  bench_forget(&b);
  prepare(&b, 1);
  wrote(&b, 0, 1, 7);
  assert_null(bench_report(&b, REPORT_CHECKPOINTED));
  assert_int_equal(bench_count(&b, SUP_REQUEST), 0);
  bench_close(&b);
}

/* A daemon that came back asks anew, and the next round begins to count anew. */
static void test_a_second_request(void **state) {
  struct bench b;
  open_two(&b);
  for (uint32_t n = 1; n <= 2; n++) {
    bench_forget(&b);
    prepare(&b, 1);
    assert_int_equal(bench_effect(&b, SUP_REQUEST)->request.checkpoint, n);
    wrote(&b, 0, n, 10 * n);
    assert_null(bench_report(&b, REPORT_CHECKPOINTED));
    wrote(&b, 1, n, 10 * n);
    assert_non_null(bench_report(&b, REPORT_CHECKPOINTED));
  }
  bench_stop(&b, 1, NULL);
  bench_clear(&b);
  bench_settled(&b, 1, false, 0, NULL);
  bench_start(&b, 2);
  bench_all_spawned(&b);
  bench_forget(&b);
  prepare(&b, 2);
  assert_non_null(bench_report(&b, REPORT_CHECKPOINTED)); /* these cannot, as far as is known */
  assert_int_equal(bench_count(&b, SUP_REQUEST), 0);
  bench_close(&b);
}

/* What was asked for is told when the link is back. */
static void test_the_answer_waits_for_the_link(void **state) {
  struct bench b;
  open_two(&b);
  prepare(&b, 1);
  bench_down(&b, false);
  wrote(&b, 0, 1, 7);
  wrote(&b, 1, 1, 7);
  bench_run(&b, 100);
  bench_up(&b);
  const struct hello *h = bench_hello(&b);
  assert_int_equal(h->reports[h->n_reports - 1].kind, REPORT_CHECKPOINTED);
  assert_int_equal(h->phase, PHASE_RUNNING);
  bench_close(&b);
}

/* Leaving. --------------------------------------------------------------------------------------------------------- */

static void check_exit_75(struct bench *b) {
  bench_clear(b);
  assert_int_equal(b->exits, 1);
  assert_int_equal(b->exit_code, EXIT_CODE_PREEMPTED);
}

/* Stopped (SIGSTOP) while they were at it, and continued when all its time is over: they are killed, and only then it
 * goes. */
static void test_leaving_late_leaves_nobody_behind(void **state) {
  struct bench b;
  open_two(&b);
  bench_signal(&b, SIGTERM);
  b.now_ms += 600000;
  bench_event(&b, &(struct supervisor_event){.kind = SUP_TICK});
  assert_int_equal(b.exits, 0);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  check_exit_75(&b);
  bench_close(&b);
}

static void test_leaving_asks_first(void **state) {
  struct bench b;
  open_two(&b);
  bench_signal(&b, SIGUSR1);
  assert_non_null(bench_report(&b, REPORT_LEAVING));
  assert_int_equal(bench_effect(&b, SUP_REQUEST)->request.checkpoint, 1);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
  assert_int_equal(bench_said(&b, "SIGUSR1: leaving with exit code 75; workers are asked for a checkpoint first, for "
                                  "up to 15 s, and have 30 s in all to stop (--stop-timeout)"),
                   1);
  prepare(&b, 1); /* the daemon's word for the same */
  assert_int_equal(bench_count(&b, SUP_REQUEST), 1);
  bench_run(&b, 2000);
  wrote(&b, 0, 1, 7);
  wrote(&b, 1, 1, 7);
  assert_non_null(bench_report(&b, REPORT_CHECKPOINTED));
  bench_run(&b, 1000);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0); /* others may be at it still */
  bench_stop(&b, 1, NULL);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.signo, SIGUSR1);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 27000); /* all in all 30 s */
  check_exit_75(&b);
  bench_close(&b);
}

/* They are quicker than PREPARE: it is answered at once. */
static void test_prepare_after_the_checkpoint(void **state) {
  struct bench b;
  open_two(&b);
  bench_signal(&b, SIGTERM);
  wrote(&b, 0, 1, 7);
  wrote(&b, 1, 1, 7);
  assert_null(bench_report(&b, REPORT_CHECKPOINTED));
  prepare(&b, 1);
  assert_non_null(bench_report(&b, REPORT_CHECKPOINTED));
  assert_int_equal(bench_count(&b, SUP_REQUEST), 1);
  bench_close(&b);
}

static void test_leaving_waits_for_half_of_the_stop_timeout(void **state) {
  for (int one_writes = 0; one_writes < 2; one_writes++) {
    struct bench b;
    open_two(&b);
    bench_signal(&b, SIGTERM);
    wrote(&b, 0, 1, 7);
    if (one_writes) wrote(&b, 1, 1, 7); /* STOP never comes */
    bench_run(&b, 14999);
    assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
    bench_run(&b, 1);
    assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 15000);
    assert_int_equal(bench_said(&b, "rank 3 has not written the requested checkpoint"), !one_writes);
    check_exit_75(&b);
    bench_close(&b);
  }
}

/* The daemon waits as long as we do, so its STOP may be there first. */
static void test_the_daemon_is_tired_of_waiting_first(void **state) {
  struct bench b;
  open_two(&b);
  bench_signal(&b, SIGTERM);
  wrote(&b, 0, 1, 7);
  bench_run(&b, 14999);
  bench_stop(&b, 1, NULL);
  assert_int_equal(bench_said(&b, "rank 3 has not written the requested checkpoint; stopping without it"), 1);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 1);
  bench_run(&b, 1);
  assert_int_equal(bench_said(&b, "has not written the requested checkpoint"), 1);
  check_exit_75(&b);
  bench_close(&b);
}

/* Something else has ended the round: they have had no time to write. */
static void test_a_stop_in_between_blames_nobody(void **state) {
  struct bench b;
  open_two(&b);
  bench_signal(&b, SIGTERM);
  bench_run(&b, 1000);
  bench_stop(&b, 1, NULL);
  assert_int_equal(bench_said(&b, "has not written the requested checkpoint"), 0);
  check_exit_75(&b);
  bench_close(&b);
}

static void test_leaving_without_a_daemon(void **state) {
  for (int late = 0; late < 2; late++) {
    struct bench b;
    open_two(&b);
    if (!late) bench_down(&b, true);
    bench_signal(&b, SIGTERM);
    wrote(&b, 0, 1, 7);
    assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
    wrote(&b, 1, 1, 7);
    if (late) bench_down(&b, true);
    assert_int_equal(bench_count(&b, SUP_STOP_TREES), 1);
    check_exit_75(&b);
    bench_close(&b);
  }
}

static void test_a_second_signal_does_not_wait(void **state) {
  struct bench b;
  open_two(&b);
  bench_signal(&b, SIGTERM);
  bench_signal(&b, SIGTERM);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  check_exit_75(&b);
  bench_close(&b);
}

static void test_a_failure_while_leaving(void **state) {
  struct bench b;
  open_two(&b);
  bench_signal(&b, SIGTERM);
  bench_run(&b, 1000);
  bench_exited(&b, 0, EXITED(3), b.now_ms, "");
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 29000);
  check_exit_75(&b);
  bench_close(&b);
}

/* With no time there is nothing to wait for. */
static void test_leaving_with_no_stop_timeout(void **state) {
  struct bench b;
  bench_open(&b);
  b.config.settings.stop_timeout_ms = 1;
  bench_running(&b);
  can(&b, 0, true);
  bench_signal(&b, SIGTERM);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 1);
  check_exit_75(&b);
  bench_close(&b);
}

/* They finish instead: the END is waited for, as long as the checkpoint could have taken. A success needs no other
 * run. */
static void test_they_finish_while_it_leaves(void **state) {
  for (int ends = 0; ends < 2; ends++) {
    struct bench b;
    open_two(&b);
    bench_signal(&b, SIGTERM);
    bench_all_exited(&b, EXITED(0));
    bench_clear(&b);
    assert_non_null(bench_report(&b, REPORT_FINISHED));
    bench_run(&b, 14000);
    assert_int_equal(b.exits, 0);
    if (ends) {
      struct msg m;
      msg_init(&m, MSG_END);
      m.end.incarnation = b.incarnation;
      m.end.round = 1;
      m.end.outcome = OUTCOME_SUCCESS;
      bench_msg(&b, &m);
    } else {
      bench_run(&b, 1000);
      assert_non_null(bench_sent(&b, MSG_BYE));
    }
    assert_int_equal(b.exits, 1);
    assert_int_equal(b.exit_code, ends ? EXIT_CODE_OK : EXIT_CODE_PREEMPTED);
    bench_close(&b);
  }
}

/* It serves the round's store, has finished, and is to run again: STOP asks it to let nobody new in, once. */
static void test_stop_after_finishing(void **state) {
  for (int node = 0; node < 2; node++) {
    struct bench b;
    bench_open(&b);
    b.node_rank = node;
    bench_running(&b);
    bench_all_exited(&b, EXITED(0));
    bench_clear(&b);
    bench_forget(&b);
    bench_stop(&b, 1, NULL);
    bench_stop(&b, 1, NULL);
    assert_int_equal(bench_count(&b, SUP_SHUT_STORE), node == 0);
    assert_int_equal(bench_count_sent(&b, MSG_REPORT), node == 0);
    assert_state(&b, SUPERVISOR_FINISHED);
    bench_settled(&b, 1, false, 0, NULL);
    assert_state(&b, SUPERVISOR_JOINING);
    bench_close(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_that_can_are_asked_once),
      cmocka_unit_test(test_nobody_can),
      cmocka_unit_test(test_who_cannot_any_more),
      cmocka_unit_test(test_a_worker_that_fails_meanwhile),
      cmocka_unit_test(test_what_is_not_for_us),
      cmocka_unit_test(test_a_second_request),
      cmocka_unit_test(test_the_answer_waits_for_the_link),
      cmocka_unit_test(test_leaving_asks_first),
      cmocka_unit_test(test_prepare_after_the_checkpoint),
      cmocka_unit_test(test_leaving_late_leaves_nobody_behind),
      cmocka_unit_test(test_leaving_waits_for_half_of_the_stop_timeout),
      cmocka_unit_test(test_the_daemon_is_tired_of_waiting_first),
      cmocka_unit_test(test_a_stop_in_between_blames_nobody),
      cmocka_unit_test(test_leaving_without_a_daemon),
      cmocka_unit_test(test_a_second_signal_does_not_wait),
      cmocka_unit_test(test_a_failure_while_leaving),
      cmocka_unit_test(test_leaving_with_no_stop_timeout),
      cmocka_unit_test(test_they_finish_while_it_leaves),
      cmocka_unit_test(test_stop_after_finishing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
