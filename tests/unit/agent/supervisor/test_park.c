/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: workers that keep their process from one round to the next. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/sdk/rdzv.h"
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void can_rejoin(struct bench *b, uint32_t local_rank, bool can) {
  bench_worker(b, local_rank, (struct supervisor_event){.kind = SUP_CAN_REJOIN, .can_rejoin = {.can = can}});
}

static void parks_because(struct bench *b, uint32_t local_rank, const char *reason) {
  bench_worker(b, local_rank, (struct supervisor_event){.kind = SUP_PARKED, .text = reason});
}

static void parks(struct bench *b, uint32_t local_rank) {
  parks_because(b, local_rank, "");
}

/* Round 1 runs, and both workers can rejoin. */
static void open_two(struct bench *b) {
  bench_open_answered(b);
  can_rejoin(b, 0, true);
  can_rejoin(b, 1, true);
  bench_forget(b);
}

static uint64_t kept(const struct bench *b, enum supervisor_effect_kind kind) {
  const struct supervisor_effect *e = bench_effect(b, kind);
  if (!e) return 99;
  switch (kind) {
  case SUP_SPAWN: return e->spawn.keep.bits[0];
  case SUP_REQUEST: return e->request.of.bits[0];
  default: return e->stop_trees.keep.bits[0];
  }
}

/* Both have left round 1, which is settled. */
static void open_parked(struct bench *b) {
  open_two(b);
  bench_stop(b, 1, NULL);
  parks(b, 0);
  parks(b, 1);
  bench_clear(b);
  bench_settled(b, 1, false, 0, NULL);
  assert_state(b, SUPERVISOR_JOINING);
  bench_forget(b);
}

static void test_both_stay(void **state) {
  struct bench b;
  open_two(&b);
  bench_stop(&b, 1, NULL);
  assert_int_equal(kept(&b, SUP_STOP_TREES), 3);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
  assert_int_equal(bench_count(&b, SUP_REQUEST), 1);
  assert_int_equal(bench_effect(&b, SUP_REQUEST)->request.bits, RDZV_REJOIN);
  bench_clear(&b);
  parks(&b, 0);
  assert_null(bench_report(&b, REPORT_STOPPED));
  parks(&b, 1);
  assert_non_null(bench_report(&b, REPORT_STOPPED));
  assert_state(&b, SUPERVISOR_STOPPED);
  bench_settled(&b, 1, false, 0, NULL);
  bench_forget(&b);
  bench_start(&b, 2);
  assert_int_equal(kept(&b, SUP_SPAWN), 3);
  assert_int_equal(bench_said(&b, "2 of 2 workers here go on in place"), 1);
  bench_all_spawned(&b);
  assert_state(&b, SUPERVISOR_RUNNING);
  assert_non_null(bench_report(&b, REPORT_STARTED));
  bench_stop(&b, 2, NULL);
  assert_int_equal(kept(&b, SUP_STOP_TREES), 3); /* and again */
  bench_close(&b);
}

/* Ours dies: its sibling stays, and alone. */
static void test_the_sibling_stays(void **state) {
  struct bench b;
  open_two(&b);
  bench_exited(&b, 1, SIGNALED(9), b.now_ms, "");
  assert_int_equal(kept(&b, SUP_STOP_TREES), 1);
  assert_int_equal(bench_count(&b, SUP_REQUEST), 2); /* STOP for the one, REJOIN for the other */
  assert_int_equal(kept(&b, SUP_REQUEST), 1);
  parks(&b, 0);
  bench_clear(&b);
  assert_non_null(bench_report(&b, REPORT_STOPPED));
  bench_settled(&b, 1, true, 1, NULL);
  bench_start(&b, 2);
  assert_int_equal(kept(&b, SUP_SPAWN), 1);
  bench_close(&b);
}

/* Half of --stop-timeout, then it is stopped in the other half. */
static void test_one_does_not_park(void **state) {
  struct bench b;
  open_two(&b);
  bench_stop(&b, 1, NULL);
  parks(&b, 0);
  bench_clear(&b);
  bench_run(&b, 14999);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 1);
  bench_run(&b, 1);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 2);
  assert_int_equal(kept(&b, SUP_STOP_TREES), 1);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 15000);
  assert_int_equal(bench_said(&b, "rank 3 was asked to rejoin, and has not left round 1 within 15.0 s"), 1);
  parks(&b, 1); /* too late */
  assert_null(bench_report(&b, REPORT_STOPPED));
  bench_exited(&b, 1, SIGNALED(15), b.now_ms, "");
  bench_clear(&b);
  assert_non_null(bench_report(&b, REPORT_STOPPED));
  assert_null(bench_report(&b, REPORT_FAILED));
  bench_settled(&b, 1, false, 0, NULL);
  bench_start(&b, 2);
  assert_int_equal(kept(&b, SUP_SPAWN), 1);
  bench_close(&b);
}

/* Instead of parking it leaves: its death is nobody's failure, and is not waited for any longer. */
static void test_it_exits_instead(void **state) {
  struct bench b;
  open_two(&b);
  bench_stop(&b, 1, NULL);
  parks(&b, 0);
  bench_clear(&b);
  b.now_ms += 10;
  bench_exited(&b, 1, EXITED(5), b.now_ms, "");
  assert_null(bench_report(&b, REPORT_FAILED));
  assert_non_null(bench_report(&b, REPORT_STOPPED));
  bench_close(&b);
}

static void test_the_connection_goes(void **state) {
  struct bench b;
  open_two(&b);
  bench_stop(&b, 1, NULL);
  parks(&b, 0);
  parks(&b, 1);
  can_rejoin(&b, 1, false);
  assert_int_equal(kept(&b, SUP_STOP_TREES), 1);
  bench_exited(&b, 1, SIGNALED(15), b.now_ms, "");
  bench_clear(&b);
  assert_non_null(bench_report(&b, REPORT_STOPPED));
  bench_settled(&b, 1, false, 0, NULL);
  bench_forget(&b);
  can_rejoin(&b, 0, false); /* and now the other, between rounds */
  assert_int_equal(kept(&b, SUP_STOP_TREES), 0);
  bench_start(&b, 2); /* waits until it is gone */
  assert_int_equal(bench_count(&b, SUP_SPAWN), 0);
  bench_event(&b, &(struct supervisor_event){.kind = SUP_CLEAR, .round = 1});
  assert_int_equal(kept(&b, SUP_SPAWN), 0);
  bench_close(&b);
}

static void test_it_dies_while_it_waits(void **state) {
  struct bench b;
  open_parked(&b);
  bench_exited(&b, 1, SIGNALED(9), b.now_ms, "");
  assert_int_equal(bench_count(&b, SUP_SEND), 0);
  bench_start(&b, 2);
  assert_int_equal(kept(&b, SUP_SPAWN), 1);
  bench_close(&b);
}

/* A weightier reason: nobody stays. */
static void test_who_leaves_takes_all_with_it(void **state) {
  struct bench b;
  open_two(&b);
  bench_stop(&b, 1, NULL);
  parks(&b, 0);
  bench_signal(&b, SIGTERM);
  assert_int_equal(kept(&b, SUP_STOP_TREES), 0);
  assert_int_equal(bench_effect(&b, SUP_REQUEST)->request.bits, RDZV_STOP);
  assert_int_equal(kept(&b, SUP_REQUEST), 3);
  bench_all_exited(&b, SIGNALED(15));
  bench_clear(&b);
  assert_exit(&b, EXIT_CODE_PREEMPTED);
  bench_close(&b);
}

/* Between rounds: the exit waits for their deaths, a second signal hastens it, and its BYE is true. */
static void test_leaving_while_they_wait(void **state) {
  for (int twice = 0; twice < 2; twice++) {
    struct bench b;
    open_parked(&b);
    bench_signal(&b, SIGTERM);
    assert_int_equal(b.exits, 0);
    assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
    assert_int_equal(kept(&b, SUP_STOP_TREES), 0);
    bench_start(&b, 2);
    assert_int_equal(bench_count(&b, SUP_SPAWN), 0);
    if (twice) {
      bench_signal(&b, SIGTERM);
      assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 0);
    }
    assert_null(bench_sent(&b, MSG_BYE));
    bench_clear(&b);
    assert_exit(&b, EXIT_CODE_PREEMPTED);
    assert_non_null(bench_sent(&b, MSG_BYE));
    bench_close(&b);
  }
}

/* No CLEAR: it goes all the same. */
static void test_leaving_is_bounded(void **state) {
  struct bench b;
  open_parked(&b);
  bench_signal(&b, SIGTERM);
  bench_run(&b, 30000 + SUPERVISOR_LEAVE_SLACK_MS + 1000);
  assert_int_equal(b.exits, 1);
  bench_close(&b);
}

static void test_the_end(void **state) {
  struct bench b;
  open_parked(&b);
  bench_end(&b, 73, NULL);
  assert_kills_and_exits(&b, 73);
  bench_close(&b);
}

static void test_stale(void **state) {
  struct bench b;
  open_parked(&b);
  bench_stale(&b);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  assert_non_null(bench_sent(&b, MSG_HELLO));
  bench_welcome(&b, false);
  bench_start(&b, 10);
  assert_int_equal(bench_count(&b, SUP_SPAWN), 0);
  bench_event(&b, &(struct supervisor_event){.kind = SUP_CLEAR, .round = 1});
  assert_int_equal(kept(&b, SUP_SPAWN), 0);
  bench_close(&b);
}

/* START and STOP of the next round come while workers of the last one die slowly. The guard's CLEAR will be of the
 * last one. */
static void test_stale_again_while_they_die(void **state) {
  struct bench b;
  open_parked(&b);
  bench_stale(&b);
  bench_welcome(&b, false);
  bench_start(&b, 10);
  bench_stop(&b, 10, NULL);
  bench_forget(&b);
  bench_stale(&b);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->round, 1);
  assert_null(bench_sent(&b, MSG_HELLO));
  bench_event(&b, &(struct supervisor_event){.kind = SUP_CLEAR, .round = 1});
  assert_int_equal(bench_hello(&b)->phase, PHASE_NONE);
  bench_close(&b);
}

/* A round runs without this node. */
static void test_a_spare(void **state) {
  struct bench b;
  open_parked(&b);
  struct msg m;
  msg_init(&m, MSG_WAITING);
  m.waiting.min_nodes = m.waiting.max_nodes = 1;
  m.waiting.incarnation = b.incarnation;
  m.waiting.round = 1;
  m.waiting.text = "a round forms"; /* ours is the last: not yet */
  bench_msg(&b, &m);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
  m.waiting.spare = true;
  m.waiting.round = 2;
  m.waiting.text = "round 2 runs with 1 node; this one is a spare";
  bench_msg(&b, &m);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
  bench_start(&b, 3); /* it is needed: no grace any more */
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->round, 1);
  /* STOP before the old ones are gone: nothing of round 3 ever ran */
  bench_stop(&b, 3, NULL);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->round, 1);
  assert_null(bench_report(&b, REPORT_STOPPED));
  bench_event(&b, &(struct supervisor_event){.kind = SUP_CLEAR, .round = 1});
  assert_non_null(bench_report(&b, REPORT_STOPPED));
  assert_int_equal(bench_count(&b, SUP_SPAWN), 0);
  bench_close(&b);
}

/* It was told that a round could form without it: who waits has the same deadline as who runs. */
static void test_fenced_while_they_wait(void **state) {
  for (int by_guard = 0; by_guard < 2; by_guard++) {
    struct bench b;
    bench_open(&b);
    b.fencing = true;
    bench_running(&b);
    can_rejoin(&b, 0, true);
    bench_run(&b, 2000);
    bench_stop(&b, 1, NULL);
    parks(&b, 0);
    bench_exited(&b, 1, SIGNALED(15), b.now_ms, "");
    bench_clear(&b);
    bench_settled(&b, 1, false, 0, NULL);
    assert_true(bench_effect(&b, SUP_FENCE_AT)->fence_at.at_ms < UINT64_MAX);
    bench_forget(&b);
    b.fencing = false;
    if (by_guard)
      bench_event(&b, &(struct supervisor_event){.kind = SUP_FENCED, .round = 1, .when_ms = b.now_ms});
    else
      bench_run(&b, 4000);
    assert_int_equal(kept(&b, SUP_STOP_TREES), 0);
    assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms, 0);
    assert_state(&b, SUPERVISOR_JOINING);
    bench_clear(&b);
    assert_int_equal(bench_effect(&b, SUP_FENCE_AT)->fence_at.at_ms, UINT64_MAX);
    bench_close(&b);
  }
}

/* Nobody but this worker has noticed anything: a lease and 2 s later it is the round's failure. */
static void test_a_false_alarm(void **state) {
  struct bench b;
  open_two(&b);
  parks_because(&b, 1, "lost contact with rank 0");
  parks(&b, 0);
  bench_run(&b, 6999);
  assert_null(bench_report(&b, REPORT_FAILED));
  bench_run(&b, 1);
  const struct report *rep = bench_report(&b, REPORT_FAILED);
  assert_non_null(rep);
  assert_int_equal(rep->what.cause, CAUSE_CONTACT_LOST);
  assert_int_equal(rep->what.rank, 3);
  assert_int_equal(rep->what.idle_ms, 7000);
  assert_string_equal(rep->what.text, "lost contact with rank 0");
  assert_int_equal(kept(&b, SUP_STOP_TREES), 3); /* both are parked, and stay */
  bench_run(&b, 300);
  assert_int_equal(bench_said(&b, "rank 3 (local 1) on n0, pid 5001, left the round to rejoin, and nothing else ended "
                                  "it within 7.0 s: lost contact with rank 0"),
                   1);
  bench_clear(&b);
  assert_non_null(bench_report(&b, REPORT_STOPPED));
  bench_close(&b);
}

/* Mostly somebody else has. */
static void test_no_false_alarm(void **state) {
  struct bench b;
  open_two(&b);
  parks(&b, 1);
  bench_run(&b, 3000);
  bench_stop(&b, 1, NULL);
  parks(&b, 0);
  bench_clear(&b);
  bench_settled(&b, 1, false, 0, NULL);
  bench_start(&b, 2);
  bench_all_spawned(&b);
  bench_run(&b, 20000);
  assert_null(bench_report(&b, REPORT_FAILED));
  bench_close(&b);
}

/* A round that is void before anything was heard of those who go on in it: they are asked again. */
static void test_void_at_once(void **state) {
  struct bench b;
  open_parked(&b);
  bench_start(&b, 2);
  bench_stop(&b, 2, NULL);
  assert_int_equal(kept(&b, SUP_STOP_TREES), 3);
  assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->round, 2);
  assert_int_equal(bench_effect(&b, SUP_REQUEST)->request.bits, RDZV_REJOIN);
  bench_all_spawned(&b);
  bench_clear(&b);
  assert_null(bench_report(&b, REPORT_STOPPED));
  parks(&b, 0);
  parks(&b, 1);
  assert_non_null(bench_report(&b, REPORT_STOPPED));
  bench_close(&b);
}

/* CLEAR of the first stop, of whom all were left out, is none of the second one. */
static void test_clear_of_the_stop_before(void **state) {
  struct bench b;
  struct supervisor_event clear = {.kind = SUP_CLEAR, .round = 1, .clear = {.kept = {{3}}}};
  open_two(&b);
  bench_stop(&b, 1, NULL);
  bench_signal(&b, SIGTERM);
  bench_event(&b, &clear);
  assert_int_equal(b.exits, 0);
  assert_state(&b, SUPERVISOR_STOPPING);
  clear.clear.kept = (struct local_set){{0}};
  bench_event(&b, &clear);
  assert_int_equal(b.exits, 1);
  bench_close(&b);
}

/* It was leaving, and learns meanwhile how the job has ended. */
static void test_the_end_while_it_leaves(void **state) {
  struct bench b;
  open_parked(&b);
  bench_down(&b, true);
  bench_run(&b, 60100);
  assert_int_equal(b.exits, 0);
  bench_end(&b, 73, NULL);
  assert_int_equal(b.exits, 0);
  bench_clear(&b);
  assert_exit(&b, 73);
  bench_close(&b);
}

/* Nothing is given: only who has parked already may stay. */
static void test_without_a_grace(void **state) {
  struct bench b;
  bench_open(&b);
  b.config.settings.stop_timeout_ms = 0;
  bench_running(&b);
  can_rejoin(&b, 0, true);
  can_rejoin(&b, 1, true);
  parks(&b, 1);
  bench_stop(&b, 1, NULL);
  assert_int_equal(kept(&b, SUP_STOP_TREES), 2);
  bench_close(&b);
}

/* The daemon does not come back: nobody waits for ever. */
static void test_no_daemon_any_more(void **state) {
  struct bench b;
  open_parked(&b);
  b.answering = false;
  bench_down(&b, true);
  bench_run(&b, 61000);
  assert_int_equal(kept(&b, SUP_STOP_TREES), 0);
  bench_clear(&b);
  assert_exit(&b, EXIT_CODE_DAEMON_LOST);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_both_stay),
      cmocka_unit_test(test_the_sibling_stays),
      cmocka_unit_test(test_one_does_not_park),
      cmocka_unit_test(test_it_exits_instead),
      cmocka_unit_test(test_the_connection_goes),
      cmocka_unit_test(test_it_dies_while_it_waits),
      cmocka_unit_test(test_who_leaves_takes_all_with_it),
      cmocka_unit_test(test_leaving_while_they_wait),
      cmocka_unit_test(test_leaving_is_bounded),
      cmocka_unit_test(test_the_end),
      cmocka_unit_test(test_stale),
      cmocka_unit_test(test_stale_again_while_they_die),
      cmocka_unit_test(test_a_spare),
      cmocka_unit_test(test_fenced_while_they_wait),
      cmocka_unit_test(test_a_false_alarm),
      cmocka_unit_test(test_no_false_alarm),
      cmocka_unit_test(test_void_at_once),
      cmocka_unit_test(test_clear_of_the_stop_before),
      cmocka_unit_test(test_the_end_while_it_leaves),
      cmocka_unit_test(test_without_a_grace),
      cmocka_unit_test(test_no_daemon_any_more),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
