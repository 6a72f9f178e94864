/* SPDX-License-Identifier: Apache-2.0 */
/* core: a failure that comes again without progress ends the job, and refunds nothing. Any other is restarted. */

#include "tests/rig/core.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "daemon/job/limits.h"
#include "tests/rig/unit.h"

enum { S = 1000, MIN = 60000, HOUR = 60 * MIN };

static void open_running(struct rig *r, struct node *n, int64_t repeat_limit, int64_t max_restarts) {
  rig_open(r, 1);
  r->settings.lease_ms = LEASE_MAX_MS;
  r->settings.max_restarts = max_restarts;
  r->settings.repeat_limit = repeat_limit;
  rig_running(r, n, 2);
}

static void live(struct rig *r, struct node *n, uint64_t ms) {
  for (uint64_t done = 0; done < ms; done += MIN) {
    rig_run(r, ms - done < MIN ? ms - done : MIN);
    nodes_heartbeat(r, n, 2);
  }
}

static bool is_over(struct rig *r, struct node *n) {
  return !strcmp(rig_state(r, "job"), "ending");
}

/* All stop, and the next round runs, unless the job is over. */
static void begin_again(struct rig *r, struct node *n) {
  nodes_stopped(r, n, 2);
  for (int i = 0; i < 100 && !strcmp(rig_state(r, "job"), "forming"); i++) live(r, n, 1000);
  if (!is_over(r, n)) nodes_started(r, n, 2);
}

static struct verdict exited(const char *error) {
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_WORKER_EXIT;
  v.code = 1;
  v.error = error;
  return v;
}

static void break_as(struct rig *r, struct node *n, const struct verdict *v, int64_t ago_ms) {
  node_report(r, &n[1], REPORT_FAILED, v, ago_ms);
  begin_again(r, n);
}

/* After so long, at that step (-1: none is reported), with this last exception line. */
static void break_down(struct rig *r, struct node *n, uint64_t after_ms, int64_t step, const char *error) {
  struct verdict v = exited(error);
  live(r, n, after_ms);
  v.step = step;
  break_as(r, n, &v, 0);
}

static const struct settled *settled(struct rig *r, struct node *n) {
  return rig_settled(r, &n[0]);
}

RIG_TEST(test_the_second_repeat_ends_the_job) {
  open_running(r, n, 2, 100);
  break_down(r, n, 5 * S, -1, "ValueError: boom 17");
  assert_int_equal(settled(r, n)->last_failure.repeats, 0);
  break_down(r, n, 5 * S, -1, "ValueError: boom 18");
  assert_int_equal(settled(r, n)->last_failure.repeats, 1);
  assert_false(is_over(r, n));
  break_down(r, n, 5 * S, -1, "ValueError: boom 19");
  assert_true(is_over(r, n));
  const struct end *end = rig_end(r, &n[0]);
  assert_int_equal(end->repeats, 2);
  assert_int_equal(end->restarts_used, 2);
  assert_int_equal(end->code, 1);
}

RIG_TEST(test_limits) {
  for (int64_t limit = 0; limit <= 3; limit++) {
    open_running(r, n, limit, 6);
    int rounds = 0;
    for (; !is_over(r, n); rounds++) break_down(r, n, 5 * S, -1, "ValueError: boom");
    assert_int_equal(rounds, limit ? limit + 1 : 7);
  }
}

/* A deterministic crash after 11 minutes must not restart for ever. */
RIG_TEST(test_a_repeat_never_refunds) {
  for (int64_t limit = 0; limit <= 2; limit += 2) {
    open_running(r, n, limit, 3);
    int rounds = 0;
    for (; !is_over(r, n) && rounds < 9; rounds++) {
      break_down(r, n, 11 * MIN + (uint64_t)rounds * S, -1, "ValueError: boom");
      if (!is_over(r, n)) assert_false(settled(r, n)->refilled);
    }
    assert_int_equal(rounds, limit ? 3 : 4);
  }
}

RIG_TEST(test_a_step_ahead_is_progress) {
  open_running(r, n, 2, 100);
  for (int i = 0; i < 8; i++) break_down(r, n, 5 * S, 100 + i, "ValueError: boom");
  assert_false(is_over(r, n));
  assert_int_equal(settled(r, n)->last_failure.repeats, 0);
  break_down(r, n, 2 * HOUR, 107, "ValueError: boom"); /* a long round, but no further */
  assert_int_equal(settled(r, n)->last_failure.repeats, 1);
  assert_false(settled(r, n)->refilled);
  break_down(r, n, 5 * S, 50, "ValueError: boom");
  assert_true(is_over(r, n));
}

/* It reported steps, and now it does not even come to the first one. */
RIG_TEST(test_no_step_is_behind_any) {
  open_running(r, n, 1, 100);
  break_down(r, n, 5 * S, 100, "ValueError: boom");
  break_down(r, n, 8 * MIN, -1, "ValueError: boom");
  assert_true(is_over(r, n));
}

/* Steps of nodes count like those of the worker that failed. */
RIG_TEST(test_steps_of_other_nodes) {
  open_running(r, n, 1, 100);
  node_progress(r, &n[0], 10);
  break_down(r, n, 5 * S, -1, "ValueError: boom");
  node_progress(r, &n[0], 11);
  break_down(r, n, 5 * S, -1, "ValueError: boom");
  assert_false(is_over(r, n));
  node_progress(r, &n[0], 11);
  break_down(r, n, 5 * S, -1, "ValueError: boom");
  assert_true(is_over(r, n));
}

RIG_TEST(test_other_failures_are_no_repeats) {
  open_running(r, n, 1, 100);
  for (int i = 0; i < 6; i++) break_down(r, n, 5 * S, -1, i % 2 ? "ValueError: boom" : "KeyError: 'a'");
  assert_false(is_over(r, n));
  break_down(r, n, 5 * S, -1, "KeyError: 'b'");
  assert_false(is_over(r, n));
  break_down(r, n, 5 * S, -1, "KeyError: 'b'");
  assert_true(is_over(r, n));
}

/* Without steps: each row is how long three rounds live, and whether the third one is a repeat. */
RIG_TEST(test_without_steps_time_counts) {
  static const struct {
    uint64_t first, second, third;
    int64_t repeats;
  } rows[] = {
      {5 * S, 5 * S, 6 * S, 2},
      {5 * S, 14 * S, 14 * S, 2},        /* within 10 s */
      {5 * S, 30 * S, 60 * S, 0},        /* longer each time */
      {5 * MIN, 1 * MIN, 10 * S, 2},     /* short, and no longer */
      {5 * HOUR, 3 * HOUR, 2 * HOUR, 0}, /* it may go on from a checkpoint */
      {5 * HOUR, 2 * MIN, 2 * MIN, 2},   /* from the last checkpoint to the crash */
      {2 * HOUR, 115 * MIN, 125 * MIN, 2},
      {2 * HOUR, 100 * MIN, 2 * HOUR, 0},
      {2 * HOUR, 2 * HOUR, 150 * MIN, 0},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    open_running(r, n, 9, 100);
    break_down(r, n, rows[i].first, -1, "ValueError: boom");
    break_down(r, n, rows[i].second, -1, "ValueError: boom");
    break_down(r, n, rows[i].third, -1, "ValueError: boom");
    if (settled(r, n)->last_failure.repeats != rows[i].repeats)
      fail_msg("row %zu: %lld repeats", i, (long long)settled(r, n)->last_failure.repeats);
  }
}

/* Faults from outside are charged as ever, and never end the job before its budget does. */
RIG_TEST(test_faults_from_outside_do_not_repeat) {
  static const struct verdict outside[] = {
      {.cause = CAUSE_WORKER_SIGNAL, .signal = SIGKILL, .code = 137},
      {.cause = CAUSE_WORKER_SIGNAL, .signal = SIGKILL, .code = 137, .error = "out of memory (cgroup limit 4 GiB)"},
      {.cause = CAUSE_WORKER_SIGNAL, .signal = SIGTERM, .code = 143},
      {.cause = CAUSE_WORKER_EXIT, .code = 137}, /* by a shell between */
      {.cause = CAUSE_WORKER_EXIT, .code = 143},
      {.cause = CAUSE_WORKER_EXEC, .code = 71},
      {.cause = CAUSE_DEVICE_HELD, .code = 79},
      {.cause = CAUSE_CONTACT_LOST, .code = 80},
      {.cause = CAUSE_WORKER_HUNG, .code = 67, .state = "T"},
      {.cause = CAUSE_WORKER_HUNG, .code = 67, .state = "D"},
  };
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    struct verdict v = exited(outside[i].error ? outside[i].error : "");
    open_running(r, n, 1, 4);
    v.cause = outside[i].cause;
    v.signal = outside[i].signal;
    v.code = outside[i].code;
    if (outside[i].state) v.state = outside[i].state;
    int rounds = 0;
    for (; !is_over(r, n); rounds++) break_as(r, n, &v, 0);
    assert_int_equal(rounds, 5);
  }
}

RIG_TEST(test_what_repeats_besides_exits) {
  static const struct verdict own[] = {
      {.cause = CAUSE_WORKER_SIGNAL, .signal = SIGSEGV, .code = 139},
      {.cause = CAUSE_WORKER_SIGNAL, .signal = SIGABRT, .code = 134},
      {.cause = CAUSE_WORKER_HUNG, .code = 67, .state = "S"},
      {.cause = CAUSE_WORKER_EXEC, .code = 127},
  };
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    struct verdict v = exited("");
    open_running(r, n, 1, 4);
    v.cause = own[i].cause;
    v.signal = own[i].signal;
    v.code = own[i].code;
    if (own[i].state) v.state = own[i].state;
    break_as(r, n, &v, 0);
    break_as(r, n, &v, 0);
    assert_true(is_over(r, n));
  }
}

/* rdzvctl kill-worker --signal SEGV: a drill. */
RIG_TEST(test_a_drill_does_not_repeat) {
  open_running(r, n, 1, 100);
  for (int i = 0; i < 3; i++) {
    const struct control q = {.verb = "kill-worker", .job = "job", .host = "", .rank = 1, .signal = SIGSEGV};
    struct verdict v = exited("");
    assert_int_equal(rig_ask(r, &q, 0), 0);
    v.cause = CAUSE_WORKER_SIGNAL;
    v.signal = SIGSEGV;
    v.code = 139;
    break_as(r, n, &v, 0);
  }
  assert_false(is_over(r, n));
}

/* A hang at the start lives for the whole of --hang-timeout, and that refunds nothing. */
RIG_TEST(test_a_hung_round_lived_until_its_last_progress) {
  struct verdict v = exited("");
  open_running(r, n, 0, 3);
  v.cause = CAUSE_WORKER_HUNG;
  v.code = 67;
  v.state = "S";
  v.idle_ms = 30 * MIN;
  int rounds = 0;
  for (; !is_over(r, n) && rounds < 9; rounds++) {
    live(r, n, 30 * MIN);
    break_as(r, n, &v, 30 * MIN);
  }
  assert_int_equal(rounds, 4);
}

/* A lost node between says nothing about the bug, unless its round came further. */
RIG_TEST(test_rounds_between) {
  for (int further = 0; further < 2; further++) {
    struct verdict v = exited("");
    open_running(r, n, 1, 100);
    break_down(r, n, 20 * S, -1, "ValueError: boom");
    v.cause = CAUSE_WORKER_SIGNAL;
    v.signal = SIGKILL;
    v.code = 137;
    live(r, n, further ? 2 * MIN : 10 * S);
    break_as(r, n, &v, 0);
    break_down(r, n, 20 * S, -1, "ValueError: boom");
    assert_int_equal(is_over(r, n), !further);
  }
}

/* From the agents, or from the state file. */
RIG_TEST(test_a_restarted_daemon_remembers) {
  for (int with_state = 0; with_state < 2; with_state++) {
    open_running(r, n, 2, 100);
    break_down(r, n, 5 * S, 40, "ValueError: boom");
    break_down(r, n, 5 * S, 40, "ValueError: boom");
    rig_restart(r, with_state);
    nodes_back(r, n, 2, PHASE_RUNNING);
    break_down(r, n, 5 * S, 40, "ValueError: boom");
    assert_true(is_over(r, n));
  }
}

/* How long a round has lived is not known then, so without steps nothing is a repeat. */
RIG_TEST(test_a_restarted_daemon_does_not_know_the_age) {
  open_running(r, n, 1, 100);
  break_down(r, n, 5 * S, -1, "ValueError: boom");
  live(r, n, 5 * HOUR);
  rig_restart(r, true);
  nodes_back(r, n, 2, PHASE_RUNNING);
  break_down(r, n, 5 * S, -1, "ValueError: boom");
  assert_false(is_over(r, n));
}

RIG_TEST(test_lasting_failures_are_final_at_the_beginning_alone) {
  enum { FIRST, LATER, AFTER_A_STEP, AFTER_LONG, CASES };
  for (int i = FIRST; i < CASES; i++) {
    struct verdict v = exited("ImportError: x");
    open_running(r, n, 2, 100);
    if (i == LATER) break_down(r, n, 5 * S, -1, "ValueError: boom");
    if (i == AFTER_A_STEP) node_progress(r, &n[0], 1);
    if (i == AFTER_LONG) live(r, n, 10 * MIN);
    v.lasting = LASTING_IMPORT;
    break_as(r, n, &v, 0);
    assert_int_equal(is_over(r, n), i == FIRST);
    if (i == FIRST) assert_int_equal(rig_end(r, &n[0])->verdict.lasting, LASTING_IMPORT);
    if (i != FIRST) assert_int_equal(settled(r, n)->verdict.lasting, LASTING_NO);
  }
}

RIG_TEST(test_what_a_worker_calls_final_is_final_at_any_time) {
  struct verdict v = exited("RuntimeError: x");
  open_running(r, n, 2, 100);
  break_down(r, n, 5 * S, -1, "ValueError: boom");
  node_progress(r, &n[0], 1);
  v.lasting = LASTING_WORKER;
  break_as(r, n, &v, 0);
  assert_true(is_over(r, n));
  assert_int_equal(rig_end(r, &n[0])->verdict.lasting, LASTING_WORKER);
}

RIG_TEST(test_status_tells) {
  open_running(r, n, 2, 3);
  break_down(r, n, 5 * S, -1, "ValueError: boom");
  break_down(r, n, 5 * S, -1, "ValueError: boom");
  rig_control(r, "status", "job", false);
  assert_said(r, "; the last failure has come again 1 time without progress");
  assert_said(r, "but not after a repeat; --repeat-limit 2; ");
  rig_control(r, "status", "job", true);
  assert_said(r, "\"repeats\":1");
}
