/* SPDX-License-Identifier: Apache-2.0 */
/* core: what a failure costs, and when it is given back. */

#include "tests/rig/core.h"

#include <string.h>
#include "tests/rig/unit.h"

enum { MIN = 60000 };

/* Rounds of any length with few messages. */
static void open_patient(struct rig *r, struct node *n) {
  rig_open(r, 1);
  r->settings.lease_ms = LEASE_MAX_MS;
  rig_running(r, n, 2);
}

static void live(struct rig *r, struct node *n, uint64_t ms) {
  for (uint64_t done = 0; done < ms; done += MIN) {
    rig_run(r, ms - done < MIN ? ms - done : MIN);
    nodes_heartbeat(r, n, 2);
  }
}

/* Node 1 fails at the step that it has told last, and all begin again. Each time it is another failure: those that
 * come again are in test_repeat.c. */
static void fail_and_begin(struct rig *r, struct node *n, int64_t step) {
  struct verdict v;
  verdict_init(&v);
  v.error = n[0].round % 2 ? "ValueError: one" : "ValueError: the other";
  v.cause = CAUSE_WORKER_EXIT;
  v.code = 7;
  v.rank = n[1].rank_base;
  v.step = step;
  node_report(r, &n[1], REPORT_FAILED, &v, 0);
  nodes_stopped(r, n, 2);
  for (int i = 0; i < 100 && !strcmp(rig_state(r, "job"), "forming"); i++) live(r, n, 1000);
  nodes_started(r, n, 2);
}

static void both_at(struct rig *r, struct node *n, int64_t step) {
  for (int i = 0; i < 2; i++) node_progress(r, &n[i], step);
}

RIG_TEST(test_ten_minutes_give_them_back) {
  open_patient(r, n);
  fail_and_begin(r, n, -1);
  live(r, n, 10 * MIN - 1);
  fail_and_begin(r, n, -1);
  assert_int_equal(n[0].restarts_used, 2);
  assert_false(rig_settled(r, &n[0])->refilled);
  live(r, n, 10 * MIN);
  fail_and_begin(r, n, -1);
  assert_true(rig_settled(r, &n[0])->refilled);
  assert_int_equal(n[0].restarts_used, 1); /* this failure's own */
}

RIG_TEST(test_the_failure_after_a_refill_does_not_end_the_job) {
  rig_open(r, 1);
  r->settings.lease_ms = LEASE_MAX_MS;
  r->settings.max_restarts = 1;
  rig_running(r, n, 2);
  fail_and_begin(r, n, -1);
  live(r, n, 10 * MIN);
  fail_and_begin(r, n, -1);
  assert_string_equal(rig_state(r, "job"), "running");
  assert_int_equal(n[0].restarts_used, 1);
}

/* A device may be given back, and a machine may be out of processes for a moment: each such failure costs a restart as
 * a worker's death does, and the last one ends the job. */
RIG_TEST(test_failures_to_start_are_charged) {
  static const struct verdict failures[] = {
      {.cause = CAUSE_DEVICE_HELD,
       .code = 79,
       .device = "2, GPU-8f",
       .lasting = LASTING_COMMAND}, /* which it cannot be */
      {.cause = CAUSE_WORKER_EXEC, .code = 71, .text = "fork: Resource temporarily unavailable"},
  };
  for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
    struct verdict v;
    rig_open(r, 1);
    r->settings.max_restarts = 1;
    rig_running(r, n, 2);
    verdict_init(&v);
    v.cause = failures[i].cause;
    v.code = failures[i].code;
    v.lasting = failures[i].lasting;
    if (failures[i].device) v.device = failures[i].device;
    if (failures[i].text) v.text = failures[i].text;
    node_report(r, &n[1], REPORT_FAILED, &v, 0);
    nodes_stopped(r, n, 2);
    assert_true(rig_settled(r, &n[0])->charged);
    assert_int_equal(rig_settled(r, &n[0])->restarts_used, 1);
    assert_null(rig_last(r, n[0].conn, MSG_END));
    for (int k = 0; k < 100 && !strcmp(rig_state(r, "job"), "forming"); k++) live(r, n, 1000);
    node_report(r, &n[1], REPORT_FAILED, &v, 0);
    nodes_stopped(r, n, 2);
    const struct end *end = rig_end(r, &n[0]);
    assert_int_equal(end->code, v.code);
    assert_int_equal(end->restarts_used, 1);
    assert_int_equal(end->verdict.cause, v.cause);
    assert_string_equal(end->verdict.device, v.device);
    assert_string_equal(end->verdict.text, v.text);
    assert_false(end->verdict.lasting);
  }
}

RIG_TEST(test_progress_past_the_failure_gives_them_back) {
  open_patient(r, n);
  both_at(r, n, 100);
  fail_and_begin(r, n, 120);
  assert_int_equal(n[0].failed_step, 120);
  both_at(r, n, 120); /* not past it */
  fail_and_begin(r, n, 110);
  assert_int_equal(n[0].restarts_used, 2);
  assert_int_equal(n[0].failed_step, 120); /* it never goes down */
  assert_int_equal(rig_settled(r, &n[0])->delay_ms, 1000);
  both_at(r, n, 121);
  fail_and_begin(r, n, 121);
  assert_true(rig_settled(r, &n[0])->refilled);
  assert_int_equal(rig_settled(r, &n[0])->delay_ms, 0); /* it is not a crash loop */
  assert_int_equal(n[0].restarts_used, 1);
  assert_int_equal(n[0].failed_step, 121);
}

RIG_TEST(test_the_slowest_node_counts) {
  open_patient(r, n);
  both_at(r, n, 10);
  fail_and_begin(r, n, 10);
  node_progress(r, &n[0], 500);
  node_progress(r, &n[1], 9);
  fail_and_begin(r, n, 9);
  assert_int_equal(n[0].restarts_used, 2);
  assert_int_equal(n[0].failed_step, 500); /* but it is remembered that somebody had come there */
}

RIG_TEST(test_a_crash_at_the_same_step_ends_the_job) {
  open_patient(r, n);
  for (int i = 0; i < 4; i++) {
    assert_string_equal(rig_state(r, "job"), "running");
    both_at(r, n, 90 + i % 2); /* told twice a second: not the very last one */
    fail_and_begin(r, n, 100);
  }
  assert_string_equal(rig_state(r, "job"), "ending");
}

RIG_TEST(test_a_round_that_ends_without_a_charge_gives_them_back_too) {
  open_patient(r, n);
  fail_and_begin(r, n, -1);
  live(r, n, 10 * MIN);
  node_death_report(r, &n[1]);
  node_stopped(r, &n[0]);
  assert_true(rig_settled(r, &n[0])->refilled);
  assert_false(rig_settled(r, &n[0])->charged);
  assert_int_equal(rig_settled(r, &n[0])->restarts_used, 0);
}

RIG_TEST(test_a_restarted_daemon_remembers) {
  for (int with_state = 0; with_state < 2; with_state++) {
    open_patient(r, n);
    fail_and_begin(r, n, 50);
    fail_and_begin(r, n, 40);
    rig_restart(r, with_state);
    nodes_back(r, n, 2, PHASE_RUNNING);
    both_at(r, n, 50); /* not past 50: nothing is given back because it was forgotten */
    fail_and_begin(r, n, 45);
    assert_int_equal(n[0].restarts_used, 3);
    assert_int_equal(n[0].failed_step, 50);
  }
}

/* An agent that has missed the refill does not bring the old number back. */
RIG_TEST(test_an_older_number_is_not_invented_anew) {
  for (int with_state = 0; with_state < 2; with_state++) {
    struct node spare;
    open_patient(r, n);
    fail_and_begin(r, n, -1);
    fail_and_begin(r, n, -1);
    live(r, n, 10 * MIN);
    fail_and_begin(r, n, -1);
    assert_int_equal(n[0].restarts_used, 1);
    rig_restart(r, with_state);
    node_init(r, &spare, 2);
    memcpy(spare.incarnation, n[0].incarnation, sizeof spare.incarnation);
    spare.round = n[0].round; /* it has heard of the round, and its number is an old one */
    spare.restarts_used = 2;
    node_join(r, &spare);
    nodes_back(r, n, 2, PHASE_RUNNING);
    fail_and_begin(r, n, -1);
    assert_int_equal(n[0].restarts_used, 2);
  }
}

RIG_TEST(test_settled_is_known_better_than_start) {
  open_patient(r, n);
  fail_and_begin(r, n, 7);
  node_exited(r, &n[1], 7, 0);
  node_stopped(r, &n[0]);
  node_drop(r, &n[1]); /* within its grace: it is still waited for */
  node_back(r, &n[1], PHASE_STOPPING);
  int64_t used = n[0].restarts_used, round = n[0].round;
  node_stopped(r, &n[1]);
  assert_int_equal(n[1].restarts_used, used + 1);
  if (n[0].round != round) fail_msg("a delay was to come");
  n[0].restarts_used = used; /* as if it had missed SETTLED */
  rig_restart(r, true);
  node_back(r, &n[0], PHASE_STOPPED);
  n[1].n_reports = 0;
  node_join(r, &n[1]);
  if (n[0].conn) node_join(r, &n[0]); /* it was told STALE */
  live(r, n, 10000);
  assert_int_equal(n[1].restarts_used, used + 1);
}

RIG_TEST(test_status_tells) {
  open_patient(r, n);
  rig_control(r, "status", "job", false);
  assert_null(rig_said(r, "restarts:"));
  fail_and_begin(r, n, 50);
  live(r, n, MIN);
  rig_control(r, "status", "job", false);
  assert_said(r, "  restarts: 1 of 3 used, refunded after a round of 10 min or one that passes step 50 "
                 "(this one has 540 s to go)\n");
  both_at(r, n, 51);
  rig_control(r, "status", "job", false);
  assert_said(r, "  restarts: 1 of 3 used, refunded when this round ends, unless the last failure comes "
                 "again without progress\n");
  rig_control(r, "status", "job", true);
  assert_said(r, "\"restarts_earned\":true");
  assert_said(r, "\"failed_step\":50");
  fail_and_begin(r, n, 51);
  live(r, n, 5000);
  node_exited(r, &n[1], 7, 0);
  nodes_stopped(r, n, 2);
  rig_control(r, "status", "job", false);
  assert_said(r, "restarts: 2 of 3 used, refunded after a round of 10 min or one that passes "
                 "step 51; last refunded ");
}

RIG_TEST(test_status_tells_the_delay) {
  rig_open(r, 1);
  r->settings.max_restarts = 9;
  rig_running(r, n, 2);
  for (int i = 0; i < 3; i++) {
    if (i) rig_run(r, i == 1 ? 0 : 1000);
    for (int k = 0; k < 2 && i; k++) node_started(r, &n[k]);
    node_exited(r, &n[1], 7, 0);
    nodes_stopped(r, n, 2);
  }
  rig_control(r, "status", "job", false);
  assert_said(r, "restarts: 3 of 9 used, refunded after a round of 10 min; the last failure has come again 2 times "
                 "without progress; delay 2 s, 2.0 s left\n");
  rig_control(r, "status", "job", true);
  assert_said(r, "\"delay_ms\":2000");
  assert_said(r, "\"delay_left_ms\":2000");
}
