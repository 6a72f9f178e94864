/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: workers that keep their process from one round to the next. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/sdk/rdzv.h"
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void can_rejoin(uint32_t local_rank, bool can) {
  bench_worker(local_rank, (struct supervisor_event){.kind = SUP_CAN_REJOIN, .on = can});
}

static void parks_because(uint32_t local_rank, const char *reason) {
  bench_worker(local_rank, (struct supervisor_event){.kind = SUP_PARKED, .text = reason});
}

static void parks(uint32_t local_rank) {
  parks_because(local_rank, "");
}

/* Round 1 runs, and both workers can rejoin. */
static void open_two(void) {
  bench_open_answered();
  can_rejoin(0, true);
  can_rejoin(1, true);
  bench_forget();
}

static uint64_t kept(enum supervisor_effect_kind kind) {
  const struct supervisor_effect *e = bench_effect(kind);
  if (!e) return 99;
  switch (kind) {
  case SUP_SPAWN: return e->spawn.keep.bits[0];
  case SUP_REQUEST: return e->request.of.bits[0];
  default: return e->stop_trees.keep.bits[0];
  }
}

/* Both have left round 1, which is settled. */
static void open_parked(void) {
  open_two();
  bench_stop(1, NULL);
  parks(0);
  parks(1);
  bench_clear();
  bench_settled(1, false, 0, NULL);
  assert_state(SUPERVISOR_JOINING);
  bench_forget();
}

BENCH_TEST(test_both_stay) {
  open_two();
  bench_stop(1, NULL);
  assert_int_equal(kept(SUP_STOP_TREES), 3);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
  assert_int_equal(bench_count(SUP_REQUEST), 1);
  assert_int_equal(bench_effect(SUP_REQUEST)->request.bits, RDZV_REJOIN);
  bench_clear();
  parks(0);
  assert_null(bench_report(REPORT_STOPPED));
  parks(1);
  assert_non_null(bench_report(REPORT_STOPPED));
  assert_state(SUPERVISOR_STOPPED);
  bench_settled(1, false, 0, NULL);
  bench_forget();
  bench_start(2);
  assert_int_equal(kept(SUP_SPAWN), 3);
  assert_said("2 of 2 workers here go on in place");
  bench_all_spawned();
  assert_state(SUPERVISOR_RUNNING);
  assert_int_equal(bench_report(REPORT_STARTED)->stayed, 2);
  bench_stop(2, NULL);
  assert_int_equal(kept(SUP_STOP_TREES), 3); /* and again */
}

/* Ours dies: its sibling stays, and alone. */
BENCH_TEST(test_the_sibling_stays) {
  open_two();
  bench_exited(1, SIGNALED(9), bench.now_ms, "");
  assert_int_equal(kept(SUP_STOP_TREES), 1);
  assert_int_equal(bench_count(SUP_REQUEST), 2); /* STOP for the one, REJOIN for the other */
  assert_int_equal(kept(SUP_REQUEST), 1);
  parks(0);
  bench_clear();
  assert_non_null(bench_report(REPORT_STOPPED));
  bench_settled(1, true, 1, NULL);
  bench_start(2);
  assert_int_equal(kept(SUP_SPAWN), 1);
}

/* Half of --stop-timeout, then it is stopped in the other half. */
BENCH_TEST(test_one_does_not_park) {
  open_two();
  bench_stop(1, NULL);
  parks(0);
  bench_clear();
  bench_run(14999);
  assert_int_equal(bench_count(SUP_STOP_TREES), 1);
  bench_run(1);
  assert_int_equal(bench_count(SUP_STOP_TREES), 2);
  assert_int_equal(kept(SUP_STOP_TREES), 1);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 15000);
  assert_said("rank 3 was asked to rejoin, and has not left round 1 within 15.0 s");
  parks(1); /* too late */
  assert_null(bench_report(REPORT_STOPPED));
  bench_exited(1, SIGNALED(15), bench.now_ms, "");
  bench_clear();
  assert_non_null(bench_report(REPORT_STOPPED));
  assert_null(bench_report(REPORT_FAILED));
  bench_settled(1, false, 0, NULL);
  bench_start(2);
  assert_int_equal(kept(SUP_SPAWN), 1);
}

/* Instead of parking it leaves: its death is nobody's failure, and is not waited for any longer. */
BENCH_TEST(test_it_exits_instead) {
  open_two();
  bench_stop(1, NULL);
  parks(0);
  bench_clear();
  bench.now_ms += 10;
  bench_exited(1, EXITED(5), bench.now_ms, "");
  assert_null(bench_report(REPORT_FAILED));
  assert_non_null(bench_report(REPORT_STOPPED));
}

BENCH_TEST(test_the_connection_goes) {
  open_two();
  bench_stop(1, NULL);
  parks(0);
  parks(1);
  can_rejoin(1, false);
  assert_int_equal(kept(SUP_STOP_TREES), 1);
  bench_exited(1, SIGNALED(15), bench.now_ms, "");
  bench_clear();
  assert_non_null(bench_report(REPORT_STOPPED));
  bench_settled(1, false, 0, NULL);
  bench_forget();
  can_rejoin(0, false); /* and now the other, between rounds */
  assert_int_equal(kept(SUP_STOP_TREES), 0);
  bench_start(2); /* waits until it is gone */
  assert_int_equal(bench_count(SUP_SPAWN), 0);
  bench_event(&(struct supervisor_event){.kind = SUP_CLEAR, .round = 1});
  assert_int_equal(kept(SUP_SPAWN), 0);
}

/* A second worker dies after it has parked. A third one, which is still on its way, keeps its time. */
BENCH_TEST(test_the_connection_goes_while_the_sibling_leaves) {
  open_two();
  bench_stop(1, NULL);
  parks(1);
  can_rejoin(1, false);
  assert_int_equal(bench_count(SUP_STOP_TREES), 2);
  assert_int_equal(kept(SUP_STOP_TREES), 1);
  bench_exited(1, SIGNALED(9), bench.now_ms, "");
  bench_clear();
  assert_null(bench_report(REPORT_STOPPED));
  bench_run(10000);
  parks(0);
  assert_non_null(bench_report(REPORT_STOPPED));
  bench_settled(1, true, 1, NULL);
  bench_start(2);
  assert_int_equal(kept(SUP_SPAWN), 1);
}

BENCH_TEST(test_it_dies_while_it_waits) {
  open_parked();
  bench_exited(1, SIGNALED(9), bench.now_ms, "");
  assert_int_equal(bench_count(SUP_SEND), 0);
  bench_start(2);
  assert_int_equal(kept(SUP_SPAWN), 1);
}

/* A weightier reason: nobody stays. */
BENCH_TEST(test_who_leaves_takes_all_with_it) {
  open_two();
  bench_stop(1, NULL);
  parks(0);
  bench_signal(SIGTERM);
  assert_int_equal(kept(SUP_STOP_TREES), 0);
  assert_int_equal(bench_effect(SUP_REQUEST)->request.bits, RDZV_STOP);
  assert_int_equal(kept(SUP_REQUEST), 3);
  bench_all_exited(SIGNALED(15));
  bench_clear();
  assert_exit(EXIT_CODE_PREEMPTED);
}

/* Between rounds: the exit waits for their deaths, a second signal hastens it, and its BYE is true. */
BENCH_TEST(test_leaving_while_they_wait) {
  for (int twice = 0; twice < 2; twice++) {
    open_parked();
    bench_signal(SIGTERM);
    assert_int_equal(bench.exits, 0);
    assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
    assert_int_equal(kept(SUP_STOP_TREES), 0);
    bench_start(2);
    assert_int_equal(bench_count(SUP_SPAWN), 0);
    if (twice) {
      bench_signal(SIGTERM);
      assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
    }
    assert_null(bench_sent(MSG_BYE));
    bench_clear();
    assert_exit(EXIT_CODE_PREEMPTED);
    assert_non_null(bench_sent(MSG_BYE));
  }
}

/* No CLEAR: it goes all the same. */
BENCH_TEST(test_leaving_is_bounded) {
  open_parked();
  bench_signal(SIGTERM);
  bench_run(30000 + SUPERVISOR_LEAVE_SLACK_MS + 1000);
  assert_int_equal(bench.exits, 1);
}

BENCH_TEST(test_the_end) {
  open_parked();
  bench_end(73, NULL);
  assert_kills_and_exits(73);
}

BENCH_TEST(test_stale) {
  open_parked();
  bench_stale();
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  assert_non_null(bench_sent(MSG_HELLO));
  bench_welcome(false);
  bench_start(10);
  assert_int_equal(bench_count(SUP_SPAWN), 0);
  bench_event(&(struct supervisor_event){.kind = SUP_CLEAR, .round = 1});
  assert_int_equal(kept(SUP_SPAWN), 0);
}

/* START and STOP of the next round come while workers of the last one die slowly. The guard's CLEAR will be of the
 * last one. */
BENCH_TEST(test_stale_again_while_they_die) {
  open_parked();
  bench_stale();
  bench_welcome(false);
  bench_start(10);
  bench_stop(10, NULL);
  bench_forget();
  bench_stale();
  assert_int_equal(bench_effect(SUP_STOP_TREES)->round, 1);
  assert_null(bench_sent(MSG_HELLO));
  bench_event(&(struct supervisor_event){.kind = SUP_CLEAR, .round = 1});
  assert_int_equal(bench_hello()->phase, PHASE_NONE);
}

/* A round runs without this node. */
BENCH_TEST(test_a_spare) {
  open_parked();
  struct msg m;
  msg_init(&m, MSG_WAITING);
  m.waiting.min_nodes = m.waiting.max_nodes = 1;
  m.waiting.incarnation = bench.incarnation;
  m.waiting.round = 1;
  m.waiting.text = "a round forms"; /* ours is the last: not yet */
  bench_msg(&m);
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
  m.waiting.spare = true;
  m.waiting.round = 2;
  m.waiting.text = "round 2 runs with 1 node; this one is a spare";
  bench_msg(&m);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
  bench_start(3); /* it is needed: no grace any more */
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->round, 1);
  /* STOP before the old ones are gone: nothing of round 3 ever ran */
  bench_stop(3, NULL);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->round, 1);
  assert_null(bench_report(REPORT_STOPPED));
  bench_event(&(struct supervisor_event){.kind = SUP_CLEAR, .round = 1});
  assert_non_null(bench_report(REPORT_STOPPED));
  assert_int_equal(bench_count(SUP_SPAWN), 0);
}

/* It was told that a round could form without it: who waits has the same deadline as who runs. */
BENCH_TEST(test_fenced_while_they_wait) {
  for (int by_guard = 0; by_guard < 2; by_guard++) {
    bench_open();
    bench.fencing = true;
    bench_running();
    can_rejoin(0, true);
    bench_run(2000);
    bench_stop(1, NULL);
    parks(0);
    bench_exited(1, SIGNALED(15), bench.now_ms, "");
    bench_clear();
    bench_settled(1, false, 0, NULL);
    assert_true(bench_effect(SUP_FENCE_AT)->fence_at.at_ms < UINT64_MAX);
    bench_forget();
    bench.fencing = false;
    if (by_guard)
      bench_event(&(struct supervisor_event){.kind = SUP_FENCED, .round = 1, .when_ms = bench.now_ms});
    else
      bench_run(4000);
    assert_int_equal(kept(SUP_STOP_TREES), 0);
    assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
    assert_state(SUPERVISOR_JOINING);
    bench_clear();
    assert_int_equal(bench_effect(SUP_FENCE_AT)->fence_at.at_ms, UINT64_MAX);
  }
}

/* Nobody but this worker has noticed anything: a lease and 2 s later it is the round's failure. */
BENCH_TEST(test_a_false_alarm) {
  open_two();
  parks_because(1, "lost contact with rank 0");
  parks(0);
  bench_run(6999);
  assert_null(bench_report(REPORT_FAILED));
  bench_run(1);
  const struct report *rep = bench_report(REPORT_FAILED);
  assert_non_null(rep);
  assert_int_equal(rep->what.cause, CAUSE_CONTACT_LOST);
  assert_int_equal(rep->what.rank, 3);
  assert_int_equal(rep->what.idle_ms, 7000);
  assert_string_equal(rep->what.text, "lost contact with rank 0");
  assert_int_equal(kept(SUP_STOP_TREES), 3); /* both are parked, and stay */
  bench_run(300);
  assert_said("rank 3 (local 1) on n0, pid 5001, left the round to rejoin, and nothing else ended "
              "it within 7.0 s: lost contact with rank 0");
  bench_clear();
  assert_non_null(bench_report(REPORT_STOPPED));
}

/* Mostly somebody else has. */
BENCH_TEST(test_no_false_alarm) {
  open_two();
  parks(1);
  bench_run(3000);
  bench_stop(1, NULL);
  parks(0);
  bench_clear();
  bench_settled(1, false, 0, NULL);
  bench_start(2);
  bench_all_spawned();
  bench_run(20000);
  assert_null(bench_report(REPORT_FAILED));
}

/* A round that is void before anything was heard of those who go on in it: they are asked again. */
BENCH_TEST(test_void_at_once) {
  open_parked();
  bench_start(2);
  bench_stop(2, NULL);
  assert_int_equal(kept(SUP_STOP_TREES), 3);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->round, 2);
  assert_int_equal(bench_effect(SUP_REQUEST)->request.bits, RDZV_REJOIN);
  bench_all_spawned();
  bench_clear();
  assert_null(bench_report(REPORT_STOPPED));
  parks(0);
  parks(1);
  assert_non_null(bench_report(REPORT_STOPPED));
}

/* CLEAR of the first stop, of whom all were left out, is none of the second one. */
BENCH_TEST(test_clear_of_the_stop_before) {
  struct supervisor_event clear = {.kind = SUP_CLEAR, .round = 1, .clear = {.kept = {{3}}}};
  open_two();
  bench_stop(1, NULL);
  bench_signal(SIGTERM);
  bench_event(&clear);
  assert_int_equal(bench.exits, 0);
  assert_state(SUPERVISOR_STOPPING);
  clear.clear.kept = (struct local_set){{0}};
  bench_event(&clear);
  assert_int_equal(bench.exits, 1);
}

/* It was leaving, and learns meanwhile how the job has ended. */
BENCH_TEST(test_the_end_while_it_leaves) {
  open_parked();
  bench_down(true);
  bench_run(60100);
  assert_int_equal(bench.exits, 0);
  bench_end(73, NULL);
  assert_int_equal(bench.exits, 0);
  bench_clear();
  assert_exit(73);
}

/* Nothing is given: only who has parked already may stay. */
BENCH_TEST(test_without_a_grace) {
  bench.config.settings.stop_timeout_ms = 0;
  bench_running();
  can_rejoin(0, true);
  can_rejoin(1, true);
  parks(1);
  bench_stop(1, NULL);
  assert_int_equal(kept(SUP_STOP_TREES), 2);
}

/* The daemon does not come back: nobody waits for ever. */
BENCH_TEST(test_no_daemon_any_more) {
  open_parked();
  bench.answering = false;
  bench_down(true);
  bench_run(61000);
  assert_int_equal(kept(SUP_STOP_TREES), 0);
  bench_clear();
  assert_exit(EXIT_CODE_DAEMON_LOST);
}
