/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: how an agent ends, and with which code. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/sdk/rdzv.h"
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void finish(struct bench *b) {
  bench_all_exited(b, EXITED(0));
  bench_clear(b);
}

/* END. ------------------------------------------------------------------------------------------------------------- */

static void test_success(void **state) {
  struct bench b;
  bench_open_running(&b);
  finish(&b);
  bench_end(&b, 0, NULL);
  assert_exit(&b, 0);
  assert_string_equal(bench_sent(&b, MSG_END_ACK)->end_ack.incarnation, b.incarnation);
  assert_null(bench_effect(&b, SUP_DEATH_REPORT)->death_report.bytes); /* nothing to report any more */
  assert_int_equal(bench_count(&b, SUP_DISCONNECT), 1);
  assert_int_equal(bench_said(&b, "job job is done: 1 round, 0 restarts"), 1);
  assert_int_equal(bench_effect(&b, SUP_EXIT) == &b.fx[b.n_fx - 1], 1); /* the last word */
  bench_close(&b);
}

static void test_failed(void **state) {
  struct bench b;
  struct verdict v;
  bench_open_running(&b);
  bench_stop(&b, 1, NULL);
  bench_clear(&b);
  verdict_init(&v);
  v.cause = CAUSE_WORKER_EXIT;
  v.round = 1;
  v.rank = 0;
  v.host = "n9";
  v.code = 7;
  v.text = "no such dataset\n";
  bench_end(&b, 7, &v);
  assert_exit(&b, 7);
  assert_int_equal(bench_said(&b, "  | no such dataset"), 1);
  assert_int_equal(bench_said(&b, "exit code 7"), 1);
  assert_int_equal(bench_said(&b, "on n9"), 2); /* the verdict, and the last sentence */
  bench_close(&b);
}

static void test_end_while_workers_run_kills_them_first(void **state) {
  struct bench b;
  bench_open_running(&b);
  bench_end(&b, 77, NULL);
  assert_int_equal(b.exits, 0);
  assert_non_null(bench_sent(&b, MSG_END_ACK));
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  bench_end(&b, 3, NULL); /* it is decided */
  bench_down(&b, false);  /* and nobody is needed any more */
  size_t connects = bench_count(&b, SUP_CONNECT);
  bench_run(&b, 3000);
  assert_int_equal(bench_count(&b, SUP_CONNECT), connects);
  assert_int_equal(b.exits, 0);
  bench_clear(&b);
  assert_exit(&b, 77);
  bench_close(&b);
}

static void test_end_of_another_incarnation(void **state) {
  struct bench b;
  bench_open_running(&b);
  finish(&b);
  snprintf(b.incarnation, sizeof b.incarnation, "018bcfe56800-2");
  bench_end(&b, 5, NULL);
  assert_int_equal(b.exits, 0);
  assert_int_equal(bench_count_sent(&b, MSG_END_ACK), 0);
  bench_close(&b);
}

/* While it only waits, the job may turn out to be an older one than it was welcomed to. */
static void test_end_while_joining(void **state) {
  struct bench b;
  bench_open_joined(&b);
  snprintf(b.incarnation, sizeof b.incarnation, "018bcfe50000-2");
  bench_end(&b, 73, NULL);
  assert_exit(&b, 73);
  assert_string_equal(bench_sent(&b, MSG_END_ACK)->end_ack.incarnation, "018bcfe50000-2");
  bench_close(&b);
}

/* So it may while it kills what it ran of that one, to join anew; and what was said stays said. */
static void test_end_on_the_way_to_joining(void **state) {
  struct bench b;
  bench_open_running(&b);
  snprintf(b.incarnation, sizeof b.incarnation, "018bcfe56800-2");
  bench_stale(&b);
  bench_end(&b, 73, NULL);
  assert_int_equal(b.exits, 0);
  bench_event(&b, &(struct supervisor_event){.kind = SUP_GUARD_GONE, .round = 1});
  assert_exit(&b, 73);
  bench_close(&b);
}

static void test_what_does_not_die_does_not_keep_it(void **state) {
  struct bench b;
  bench_open_running(&b);
  bench_end(&b, 77, NULL);
  bench_run(&b, SUPERVISOR_LEAVE_SLACK_MS - 1);
  assert_int_equal(b.exits, 0);
  bench_run(&b, 1);
  assert_exit(&b, 77);
  bench_close(&b);
}

static void test_refused(void **state) {
  for (int running = 0; running < 2; running++) {
    struct bench b;
    struct msg m;
    bench_open(&b);
    if (running)
      bench_running(&b);
    else
      bench_begin(&b);
    msg_init(&m, MSG_REFUSED);
    m.refused.code = EXIT_CODE_REFUSED;
    m.refused.text = "--lease is 5000 ms here and 6000 ms there";
    bench_msg(&b, &m);
    assert_int_equal(bench_said(&b, "--lease is 5000 ms here"), 1);
    if (running)
      assert_kills_and_exits(&b, EXIT_CODE_REFUSED);
    else
      assert_exit(&b, EXIT_CODE_REFUSED);
    bench_close(&b);
  }
}

/* Signals. --------------------------------------------------------------------------------------------------------- */

static void test_a_signal_while_joining_leaves_at_once(void **state) {
  static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  for (int i = 0; i < 4; i++) {
    struct bench b;
    bench_open_joined(&b);
    bench_signal(&b, signals[i]);
    assert_exit(&b, signals[i] == SIGINT ? 130 : EXIT_CODE_PREEMPTED);
    assert_non_null(bench_sent(&b, MSG_BYE));
    bench_close(&b);
  }
}

static void test_a_signal_before_any_connection(void **state) {
  struct bench b;
  bench_open(&b);
  bench_begin(&b);
  bench_signal(&b, SIGINT);
  assert_exit(&b, 130);
  assert_int_equal(bench_count(&b, SUP_SEND), 0);
  bench_close(&b);
}

static void test_a_signal_while_running(void **state) {
  struct bench b;
  bench_open_running(&b);
  bench_signal(&b, SIGTERM);
  assert_int_equal(b.exits, 0);
  assert_int_equal(bench_report(&b, REPORT_LEAVING)->what.cause, CAUSE_NODE_LEAVING);
  assert_non_null(strstr(bench_report(&b, REPORT_LEAVING)->what.text, "SIGTERM"));
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
  assert_int_equal(bench_effect(&b, SUP_REQUEST)->request.bits, RDZV_STOP);
  bench_exited(&b, 0, EXITED(0), b.now_ms, "");
  bench_clear(&b);
  assert_non_null(bench_report(&b, REPORT_STOPPED));
  assert_non_null(bench_sent(&b, MSG_BYE));
  assert_exit(&b, EXIT_CODE_PREEMPTED);
  bench_close(&b);
}

static void test_leaving_by_the_clock(void **state) {
  struct bench b;
  bench_open_running(&b);
  bench_event(&b, &(struct supervisor_event){
                      .kind = SUP_SIGNAL, .signal = {.signo = SIGTERM}, .text = "the scheduler ends the job in 5m"});
  assert_int_equal(bench_said(&b, "the scheduler ends the job in 5m: leaving with exit code 75"), 1);
  assert_string_equal(bench_report(&b, REPORT_LEAVING)->what.text,
                      "its agent leaves: the scheduler ends the job in 5m");
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.signo, SIGTERM);
  bench_forget(&b);
  bench_signal(&b, SIGTERM); /* the scheduler's own: no reason to hurry */
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
  assert_int_equal(bench_said(&b, "already leaving"), 1);
  bench_signal(&b, SIGINT);
  assert_kills_and_exits(&b, EXIT_CODE_PREEMPTED);
  bench_close(&b);
}

static void test_the_clock_after_a_signal_changes_nothing(void **state) {
  struct bench b;
  bench_open_running(&b);
  bench_signal(&b, SIGINT);
  bench_forget(&b);
  bench_event(&b, &(struct supervisor_event){.kind = SUP_SIGNAL, .signal = {.signo = SIGTERM}, .text = "soon"});
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
  bench_clear(&b);
  assert_exit(&b, 130);
  bench_close(&b);
}

static void test_a_second_signal_kills(void **state) {
  struct bench b;
  bench_open_running(&b);
  bench_signal(&b, SIGINT);
  bench_forget(&b);
  bench_signal(&b, SIGINT);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  assert_int_equal(bench_said(&b, "second signal"), 1);
  bench_signal(&b, SIGTERM);
  bench_clear(&b);
  assert_exit(&b, 130);
  bench_close(&b);
}

/* The workers get the signal that the agent got; a stop for another reason is SIGTERM. */
static void test_a_signal_is_passed_on(void **state) {
  struct bench b;
  bench_open_running(&b);
  bench_stop(&b, 1, NULL);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.signo, SIGTERM);
  bench_signal(&b, SIGUSR1);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.signo, SIGUSR1);
  assert_int_equal(bench_said(&b, "SIGUSR1: leaving with exit code 75; workers have"), 1);
  bench_signal(&b, SIGTERM);
  assert_kills_and_exits(&b, EXIT_CODE_PREEMPTED);
  bench_close(&b);
}

static void test_says_who_does_not_stop(void **state) {
  struct bench b;
  bench_open_running(&b); /* ranks 2 and 3 */
  bench_signal(&b, SIGTERM);
  bench_run(&b, 1999);
  assert_int_equal(bench_said(&b, "waiting for"), 0);
  bench_run(&b, 1);
  assert_int_equal(bench_said(&b, "waiting for rank 2, 3 (pid "), 1);
  assert_int_equal(bench_said(&b, "to stop, SIGKILL in 28 s (--stop-timeout)"), 1);
  bench_exited(&b, 0, SIGNALED(SIGTERM), b.now_ms, "");
  bench_run(&b, 9999);
  assert_int_equal(bench_said(&b, "waiting for"), 1);
  bench_run(&b, 1);
  assert_int_equal(bench_said(&b, "waiting for rank 3 (pid "), 1);
  assert_int_equal(bench_said(&b, "SIGKILL in 18 s"), 1);
  bench_exited(&b, 1, EXITED(0), b.now_ms, "");
  bench_run(&b, 10000);
  assert_int_equal(bench_said(&b, "waiting for processes that the workers left behind to stop, SIGKILL in 8 s"), 1);
  bench_run(&b, 8000); /* the guard kills it */
  assert_int_equal(bench_said(&b, "waiting for"), 3);
  bench_clear(&b);
  assert_exit(&b, EXIT_CODE_PREEMPTED);
  bench_close(&b);
}

/* A second signal cuts the waiting short, and the next round begins without any. */
static void test_waits_for_nobody_that_is_killed(void **state) {
  struct bench b;
  bench_open_running(&b);
  bench_stop(&b, 1, NULL);
  bench_run(&b, 1000);
  bench_clear(&b);
  bench_settled(&b, 1, true, 1, NULL);
  bench_start(&b, 2);
  bench_run(&b, 20000);
  assert_int_equal(bench_said(&b, "waiting for"), 0);
  bench_signal(&b, SIGINT);
  bench_signal(&b, SIGINT);
  bench_run(&b, 3000);
  assert_int_equal(bench_said(&b, "waiting for"), 0);
  bench_close(&b);
}

static void test_leaving_has_an_end(void **state) {
  struct bench b;
  bench_open_answered(&b);
  bench_signal(&b, SIGTERM);
  bench_run(&b, 30000 + SUPERVISOR_LEAVE_SLACK_MS - 1);
  assert_int_equal(b.exits, 0);
  bench_run(&b, 1);
  assert_exit(&b, EXIT_CODE_PREEMPTED);
  bench_close(&b);
}

/* It was stopped while it waited for checkpoints, for longer than it may take to leave. The first that it reads then
 * ends its patience, before any tick: what its guard kills from then on has its time nevertheless. */
static void test_leaving_late_leaves_nobody_behind(void **state) {
  struct bench b;
  bench_open_answered(&b);
  for (uint32_t i = 0; i < 2; i++)
    bench_event(&b, &(struct supervisor_event){
                        .kind = SUP_CAN_CHECKPOINT, .round = 1, .local_rank = i, .can_checkpoint = {.can = true}});
  bench_signal(&b, SIGTERM);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
  b.now_ms += 30000 + SUPERVISOR_LEAVE_SLACK_MS + 1000;
  bench_event(&b, &(struct supervisor_event){
                      .kind = SUP_CHECKPOINTED, .round = 1, .local_rank = 0, .checkpointed = {.request = 1}});
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  bench_run(&b, SUPERVISOR_LEAVE_SLACK_MS - 1);
  assert_int_equal(b.exits, 0);
  bench_run(&b, 1);
  assert_exit(&b, EXIT_CODE_PREEMPTED);
  bench_close(&b);
}

/* It was told to leave, whatever becomes of the job or of its round. */
static void test_an_end_or_stale_while_leaving(void **state) {
  for (int stale = 0; stale < 2; stale++) {
    struct bench b;
    bench_open_running(&b);
    bench_signal(&b, SIGTERM);
    if (stale)
      bench_stale(&b);
    else
      bench_end(&b, 9, NULL);
    assert_kills_and_exits(&b, EXIT_CODE_PREEMPTED);
    bench_close(&b);
  }
}

static void test_a_signal_after_finishing(void **state) {
  struct bench b;
  bench_open_running(&b);
  finish(&b);
  bench_signal(&b, SIGTERM);
  assert_exit(&b, EXIT_CODE_PREEMPTED);
  assert_non_null(bench_sent(&b, MSG_BYE));
  bench_close(&b);
}

static void test_a_signal_while_exiting_changes_nothing(void **state) {
  struct bench b;
  bench_open_running(&b);
  bench_end(&b, 7, NULL);
  bench_signal(&b, SIGTERM);
  bench_clear(&b);
  assert_exit(&b, 7);
  bench_close(&b);
}

/* The guard. ------------------------------------------------------------------------------------------------------- */

static void guard_gone(struct bench *b, uint32_t left) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_GUARD_GONE, .round = 1, .guard_gone = {.survivors = left}});
}

static void test_without_a_guard_it_cannot_go_on(void **state) {
  for (int running = 0; running < 2; running++) {
    struct bench b;
    bench_open(&b);
    if (running)
      bench_running(&b);
    else
      bench_joined(&b);
    guard_gone(&b, 0);
    assert_exit(&b, EXIT_CODE_SYSTEM);
    assert_non_null(bench_sent(&b, MSG_BYE));
    bench_close(&b);
  }
}

static void test_no_bye_for_what_still_runs(void **state) {
  struct bench b;
  bench_open_running(&b);
  guard_gone(&b, 3);
  assert_exit(&b, EXIT_CODE_SYSTEM);
  assert_null(bench_sent(&b, MSG_BYE)); /* it promises that nothing runs */
  bench_close(&b);
}

static void test_a_decided_code_outlives_the_guard(void **state) {
  for (int by_signal = 0; by_signal < 2; by_signal++) {
    struct bench b;
    bench_open_running(&b);
    if (by_signal)
      bench_signal(&b, SIGINT);
    else
      bench_end(&b, 0, NULL);
    guard_gone(&b, 0);
    assert_exit(&b, by_signal ? 130 : 0);
    bench_close(&b);
  }
}

/* After the last word. --------------------------------------------------------------------------------------------- */

/* The bench fails at the first effect behind SUP_EXIT. */
static void test_nothing_after_the_end(void **state) {
  struct bench b;
  bench_open_running(&b);
  finish(&b);
  bench_end(&b, 0, NULL);
  for (int kind = SUP_BEGIN; kind <= SUP_TICK; kind++) {
    struct msg m;
    msg_init(&m, MSG_START);
    m.start.incarnation = m.start.origin = b.incarnation;
    m.start.round = 2;
    m.start.store_port = 29500;
    struct supervisor_event ev = {.kind = (enum supervisor_event_kind)kind, .round = 1};
    if (kind == SUP_MSG) ev.msg = &m;
    if (kind == SUP_SIGNAL) ev.signal.signo = SIGTERM;
    bench_event(&b, &ev);
  }
  b.now_ms += 1000000;
  bench_run(&b, 1000000);
  assert_exit(&b, 0);
  bench_close(&b);
}

/* Any event in any state: at most one end, and deadlines that move on (the bench checks both). */
static void test_any_event_at_any_time(void **state) {
  uint64_t x = 88172645463325252;
  for (int run = 0; run < 400; run++) {
    struct bench b;
    bench_open(&b);
    b.answering = run % 2;
    b.fencing = run % 3 == 0;
    b.node_rank = run / 2 % 2;
    bench_begin(&b);
    for (int i = 0; i < 120; i++) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      uint32_t a = x >> 8 & 1;
      int64_t round = supervisor_round(b.s) ? supervisor_round(b.s) : 1;
      b.store_port = x >> 40 & 15 ? 29500 : 0;
      switch (x % 24) {
      case 0: bench_up(&b); break;
      case 1: bench_down(&b, a); break;
      case 2:
      case 3: bench_welcome(&b, a); break;
      case 4:
      case 5: bench_start(&b, round + (int64_t)(x >> 16 & 1)); break;
      case 6: bench_stop(&b, round, NULL); break;
      case 7: bench_settled(&b, round, a, 1, NULL); break;
      case 8: bench_stale(&b); break;
      case 9:
        if (i > 100) bench_end(&b, (int)a, NULL);
        break;
      case 10:
      case 11:
      case 12: bench_spawned(&b, a); break;
      case 13: bench_exited(&b, a, x >> 20 & 1 ? EXITED(0) : SIGNALED(9), b.now_ms, "x\n"); break;
      case 14:
      case 15: bench_clear(&b); break;
      case 16:
        if (i > 90) bench_signal(&b, SIGTERM);
        break;
      case 18:
        bench_event(&b, &(struct supervisor_event){.kind = SUP_PROGRESS,
                                                   .round = (uint32_t)supervisor_round(b.s),
                                                   .local_rank = a,
                                                   .progress = {.step = x}});
        break;
      case 19: bench_run(&b, x >> 16 & 8191); break;
      case 20: bench_store(&b, (uint32_t)(x >> 16 & 3)); break;
      default: bench_run(&b, x >> 16 & 127); break;
      }
    }
    bench_run(&b, 100000);
    bench_close(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_success),
      cmocka_unit_test(test_failed),
      cmocka_unit_test(test_end_while_workers_run_kills_them_first),
      cmocka_unit_test(test_end_of_another_incarnation),
      cmocka_unit_test(test_end_while_joining),
      cmocka_unit_test(test_end_on_the_way_to_joining),
      cmocka_unit_test(test_what_does_not_die_does_not_keep_it),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_a_signal_while_joining_leaves_at_once),
      cmocka_unit_test(test_a_signal_before_any_connection),
      cmocka_unit_test(test_a_signal_while_running),
      cmocka_unit_test(test_leaving_by_the_clock),
      cmocka_unit_test(test_the_clock_after_a_signal_changes_nothing),
      cmocka_unit_test(test_a_second_signal_kills),
      cmocka_unit_test(test_a_signal_is_passed_on),
      cmocka_unit_test(test_says_who_does_not_stop),
      cmocka_unit_test(test_waits_for_nobody_that_is_killed),
      cmocka_unit_test(test_leaving_has_an_end),
      cmocka_unit_test(test_leaving_late_leaves_nobody_behind),
      cmocka_unit_test(test_an_end_or_stale_while_leaving),
      cmocka_unit_test(test_a_signal_after_finishing),
      cmocka_unit_test(test_a_signal_while_exiting_changes_nothing),
      cmocka_unit_test(test_without_a_guard_it_cannot_go_on),
      cmocka_unit_test(test_no_bye_for_what_still_runs),
      cmocka_unit_test(test_a_decided_code_outlives_the_guard),
      cmocka_unit_test(test_nothing_after_the_end),
      cmocka_unit_test(test_any_event_at_any_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
