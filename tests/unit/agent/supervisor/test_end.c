/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: how an agent ends, and with which code. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/sdk/rdzv.h"
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void finish(void) {
  bench_all_exited(EXITED(0));
  bench_clear();
}

/* END. ------------------------------------------------------------------------------------------------------------- */

RUNNING_TEST(test_success) {
  finish();
  bench_end(0, NULL);
  assert_exit(0);
  assert_string_equal(bench_sent(MSG_END_ACK)->end_ack.incarnation, bench.incarnation);
  assert_null(bench_effect(SUP_DEATH_REPORT)->bytes); /* nothing to report any more */
  assert_int_equal(bench_count(SUP_DISCONNECT), 1);
  assert_said("job job is done: 1 round, 0 restarts");
  assert_int_equal(bench_effect(SUP_EXIT) == &bench.fx[bench.n_fx - 1], 1); /* the last word */
}

RUNNING_TEST(test_failed) {
  struct verdict v;
  bench_stop(1, NULL);
  bench_clear();
  verdict_init(&v);
  v.cause = CAUSE_WORKER_EXIT;
  v.round = 1;
  v.rank = 0;
  v.host = "n9";
  v.code = 7;
  v.text = "no such dataset\n";
  bench_end(7, &v);
  assert_exit(7);
  assert_said("  | no such dataset");
  assert_said("exit code 7");
  assert_int_equal(bench_said("on n9"), 2); /* the verdict, and the last sentence */
}

RUNNING_TEST(test_end_while_workers_run_kills_them_first) {
  bench_end(77, NULL);
  assert_int_equal(bench.exits, 0);
  assert_non_null(bench_sent(MSG_END_ACK));
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  bench_end(3, NULL); /* it is decided */
  bench_down(false);  /* and nobody is needed any more */
  size_t connects = bench_count(SUP_CONNECT);
  bench_run(3000);
  assert_int_equal(bench_count(SUP_CONNECT), connects);
  assert_int_equal(bench.exits, 0);
  bench_clear();
  assert_exit(77);
}

RUNNING_TEST(test_end_of_another_incarnation) {
  finish();
  snprintf(bench.incarnation, sizeof bench.incarnation, "018bcfe56800-2");
  bench_end(5, NULL);
  assert_int_equal(bench.exits, 0);
  assert_int_equal(bench_count_sent(MSG_END_ACK), 0);
}

/* While it only waits, the job may turn out to be an older one than it was welcomed to. */
JOINED_TEST(test_end_while_joining) {
  snprintf(bench.incarnation, sizeof bench.incarnation, "018bcfe50000-2");
  bench_end(73, NULL);
  assert_exit(73);
  assert_string_equal(bench_sent(MSG_END_ACK)->end_ack.incarnation, "018bcfe50000-2");
}

/* So it may while it kills what it ran of that one, to join anew; and what was said stays said. */
RUNNING_TEST(test_end_on_the_way_to_joining) {
  snprintf(bench.incarnation, sizeof bench.incarnation, "018bcfe56800-2");
  bench_stale();
  bench_end(73, NULL);
  assert_int_equal(bench.exits, 0);
  bench_event(&(struct supervisor_event){.kind = SUP_GUARD_GONE, .round = 1});
  assert_exit(73);
}

RUNNING_TEST(test_what_does_not_die_does_not_keep_it) {
  bench_end(77, NULL);
  bench_run(SUPERVISOR_LEAVE_SLACK_MS - 1);
  assert_int_equal(bench.exits, 0);
  bench_run(1);
  assert_exit(77);
}

BENCH_TEST(test_refused) {
  for (int running = 0; running < 2; running++) {
    struct msg m;
    bench_open();
    if (running)
      bench_running();
    else
      bench_begin();
    msg_init(&m, MSG_REFUSED);
    m.refused.code = EXIT_CODE_REFUSED;
    m.refused.text = "--lease is 5000 ms here and 6000 ms there";
    bench_msg(&m);
    assert_said("--lease is 5000 ms here");
    if (running)
      assert_kills_and_exits(EXIT_CODE_REFUSED);
    else
      assert_exit(EXIT_CODE_REFUSED);
  }
}

/* Signals. --------------------------------------------------------------------------------------------------------- */

BENCH_TEST(test_a_signal_while_joining_leaves_at_once) {
  static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  for (int i = 0; i < 4; i++) {
    bench_open_joined();
    bench_signal(signals[i]);
    assert_exit(signals[i] == SIGINT ? 130 : EXIT_CODE_PREEMPTED);
    assert_non_null(bench_sent(MSG_BYE));
  }
}

BENCH_TEST(test_a_signal_before_any_connection) {
  bench_begin();
  bench_signal(SIGINT);
  assert_exit(130);
  assert_int_equal(bench_count(SUP_SEND), 0);
}

RUNNING_TEST(test_a_signal_while_running) {
  bench_signal(SIGTERM);
  assert_int_equal(bench.exits, 0);
  assert_int_equal(bench_report(REPORT_LEAVING)->what.cause, CAUSE_NODE_LEAVING);
  assert_non_null(strstr(bench_report(REPORT_LEAVING)->what.text, "SIGTERM"));
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
  assert_int_equal(bench_effect(SUP_REQUEST)->request.bits, RDZV_STOP);
  bench_exited(0, EXITED(0), bench.now_ms, "");
  bench_clear();
  assert_non_null(bench_report(REPORT_STOPPED));
  assert_non_null(bench_sent(MSG_BYE));
  assert_exit(EXIT_CODE_PREEMPTED);
}

RUNNING_TEST(test_leaving_by_the_clock) {
  bench_event(
      &(struct supervisor_event){.kind = SUP_SIGNAL, .signo = SIGTERM, .text = "the scheduler ends the job in 5m"});
  assert_said("the scheduler ends the job in 5m: leaving with exit code 75");
  assert_string_equal(bench_report(REPORT_LEAVING)->what.text, "its agent leaves: the scheduler ends the job in 5m");
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.signo, SIGTERM);
  bench_forget();
  bench_signal(SIGTERM); /* the scheduler's own: no reason to hurry */
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
  assert_said("already leaving");
  bench_signal(SIGINT);
  assert_kills_and_exits(EXIT_CODE_PREEMPTED);
}

RUNNING_TEST(test_the_clock_after_a_signal_changes_nothing) {
  bench_signal(SIGINT);
  bench_forget();
  bench_event(&(struct supervisor_event){.kind = SUP_SIGNAL, .signo = SIGTERM, .text = "soon"});
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
  bench_clear();
  assert_exit(130);
}

RUNNING_TEST(test_a_second_signal_kills) {
  bench_signal(SIGINT);
  bench_forget();
  bench_signal(SIGINT);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  assert_said("second signal");
  bench_signal(SIGTERM);
  bench_clear();
  assert_exit(130);
}

/* The workers get the signal that the agent got; a stop for another reason is SIGTERM. */
RUNNING_TEST(test_a_signal_is_passed_on) {
  bench_stop(1, NULL);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.signo, SIGTERM);
  bench_signal(SIGUSR1);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.signo, SIGUSR1);
  assert_said("SIGUSR1: leaving with exit code 75; workers have");
  bench_signal(SIGTERM);
  assert_kills_and_exits(EXIT_CODE_PREEMPTED);
}

BENCH_TEST(test_says_who_does_not_stop) {
  bench_open_running(); /* ranks 2 and 3 */
  bench_signal(SIGTERM);
  bench_run(1999);
  assert_not_said("waiting for");
  bench_run(1);
  assert_said("waiting for rank 2, 3 (pid ");
  assert_said("to stop, SIGKILL in 28 s (--stop-timeout)");
  bench_exited(0, SIGNALED(SIGTERM), bench.now_ms, "");
  bench_run(9999);
  assert_said("waiting for");
  bench_run(1);
  assert_said("waiting for rank 3 (pid ");
  assert_said("SIGKILL in 18 s");
  bench_exited(1, EXITED(0), bench.now_ms, "");
  bench_run(10000);
  assert_said("waiting for processes that the workers left behind to stop, SIGKILL in 8 s");
  bench_run(8000); /* the guard kills it */
  assert_int_equal(bench_said("waiting for"), 3);
  bench_clear();
  assert_exit(EXIT_CODE_PREEMPTED);
}

/* A second signal cuts the waiting short, and the next round begins without any. */
RUNNING_TEST(test_waits_for_nobody_that_is_killed) {
  bench_stop(1, NULL);
  bench_run(1000);
  bench_clear();
  bench_settled(1, true, 1, NULL);
  bench_start(2);
  bench_run(20000);
  assert_not_said("waiting for");
  bench_signal(SIGINT);
  bench_signal(SIGINT);
  bench_run(3000);
  assert_not_said("waiting for");
}

ANSWERED_TEST(test_leaving_has_an_end) {
  bench_signal(SIGTERM);
  bench_run(30000 + SUPERVISOR_LEAVE_SLACK_MS - 1);
  assert_int_equal(bench.exits, 0);
  bench_run(1);
  assert_exit(EXIT_CODE_PREEMPTED);
}

/* It was stopped while it waited for checkpoints, for longer than it may take to leave. The first that it reads then
 * ends its patience, before any tick: what its guard kills from then on has its time nevertheless. */
ANSWERED_TEST(test_leaving_late_leaves_nobody_behind) {
  for (uint32_t i = 0; i < 2; i++)
    bench_event(&(struct supervisor_event){.kind = SUP_CAN_CHECKPOINT, .round = 1, .local_rank = i, .on = true});
  bench_signal(SIGTERM);
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
  bench.now_ms += 30000 + SUPERVISOR_LEAVE_SLACK_MS + 1000;
  bench_event(&(struct supervisor_event){
      .kind = SUP_CHECKPOINTED, .round = 1, .local_rank = 0, .checkpointed = {.request = 1}});
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  bench_run(SUPERVISOR_LEAVE_SLACK_MS - 1);
  assert_int_equal(bench.exits, 0);
  bench_run(1);
  assert_exit(EXIT_CODE_PREEMPTED);
}

/* It was told to leave, whatever becomes of the job or of its round. */
BENCH_TEST(test_an_end_or_stale_while_leaving) {
  for (int stale = 0; stale < 2; stale++) {
    bench_open_running();
    bench_signal(SIGTERM);
    if (stale)
      bench_stale();
    else
      bench_end(9, NULL);
    assert_kills_and_exits(EXIT_CODE_PREEMPTED);
  }
}

RUNNING_TEST(test_a_signal_after_finishing) {
  finish();
  bench_signal(SIGTERM);
  assert_exit(EXIT_CODE_PREEMPTED);
  assert_non_null(bench_sent(MSG_BYE));
}

RUNNING_TEST(test_a_signal_while_exiting_changes_nothing) {
  bench_end(7, NULL);
  bench_signal(SIGTERM);
  bench_clear();
  assert_exit(7);
}

/* The guard. ------------------------------------------------------------------------------------------------------- */

static void guard_gone(uint32_t left) {
  bench_event(&(struct supervisor_event){.kind = SUP_GUARD_GONE, .round = 1, .survivors = left});
}

BENCH_TEST(test_without_a_guard_it_cannot_go_on) {
  for (int running = 0; running < 2; running++) {
    bench_open();
    if (running)
      bench_running();
    else
      bench_joined();
    guard_gone(0);
    assert_exit(EXIT_CODE_SYSTEM);
    assert_non_null(bench_sent(MSG_BYE));
  }
}

RUNNING_TEST(test_no_bye_for_what_still_runs) {
  guard_gone(3);
  assert_exit(EXIT_CODE_SYSTEM);
  assert_null(bench_sent(MSG_BYE)); /* it promises that nothing runs */
}

BENCH_TEST(test_a_decided_code_outlives_the_guard) {
  for (int by_signal = 0; by_signal < 2; by_signal++) {
    bench_open_running();
    if (by_signal)
      bench_signal(SIGINT);
    else
      bench_end(0, NULL);
    guard_gone(0);
    assert_exit(by_signal ? 130 : 0);
  }
}

/* After the last word. --------------------------------------------------------------------------------------------- */

/* The bench fails at the first effect behind SUP_EXIT. */
RUNNING_TEST(test_nothing_after_the_end) {
  finish();
  bench_end(0, NULL);
  for (int kind = SUP_BEGIN; kind <= SUP_TICK; kind++) {
    struct msg m;
    msg_init(&m, MSG_START);
    m.start.incarnation = m.start.origin = bench.incarnation;
    m.start.round = 2;
    m.start.store_port = 29500;
    struct supervisor_event ev = {.kind = (enum supervisor_event_kind)kind, .round = 1};
    if (kind == SUP_MSG) ev.msg = &m;
    if (kind == SUP_SIGNAL) ev.signo = SIGTERM;
    bench_event(&ev);
  }
  bench.now_ms += 1000000;
  bench_run(1000000);
  assert_exit(0);
}

/* Any event in any state: at most one end, and deadlines that move on (the bench checks both). */
BENCH_TEST(test_any_event_at_any_time) {
  uint64_t x = 88172645463325252;
  for (int run = 0; run < 400; run++) {
    bench_open();
    bench.answering = run % 2;
    bench.fencing = run % 3 == 0;
    bench.node_rank = run / 2 % 2;
    bench_begin();
    for (int i = 0; i < 120; i++) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      uint32_t a = x >> 8 & 1;
      int64_t round = supervisor_round(bench.s) ? supervisor_round(bench.s) : 1;
      bench.store_port = x >> 40 & 15 ? 29500 : 0;
      switch (x % 24) {
      case 0: bench_up(); break;
      case 1: bench_down(a); break;
      case 2:
      case 3: bench_welcome(a); break;
      case 4:
      case 5: bench_start(round + (int64_t)(x >> 16 & 1)); break;
      case 6: bench_stop(round, NULL); break;
      case 7: bench_settled(round, a, 1, NULL); break;
      case 8: bench_stale(); break;
      case 9:
        if (i > 100) bench_end((int)a, NULL);
        break;
      case 10:
      case 11:
      case 12: bench_spawned(a); break;
      case 13: bench_exited(a, x >> 20 & 1 ? EXITED(0) : SIGNALED(9), bench.now_ms, "x\n"); break;
      case 14:
      case 15: bench_clear(); break;
      case 16:
        if (i > 90) bench_signal(SIGTERM);
        break;
      case 18:
        bench_event(&(struct supervisor_event){.kind = SUP_PROGRESS,
                                               .round = (uint32_t)supervisor_round(bench.s),
                                               .local_rank = a,
                                               .progress = {.step = x}});
        break;
      case 19: bench_run(x >> 16 & 8191); break;
      case 20: bench_store((uint32_t)(x >> 16 & 3)); break;
      default: bench_run(x >> 16 & 127); break;
      }
    }
    bench_run(100000);
  }
}
