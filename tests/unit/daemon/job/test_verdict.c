/* SPDX-License-Identifier: Apache-2.0 */
/* core: what ended a round, what it costs, and when the job is over. */

#include "tests/rig/core.h"

#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void start_all(struct rig *r, struct node *n, int count) {
  nodes_started(r, n, count);
  assert_string_equal(rig_state(r, "job"), "running");
}

/* Which cause. ----------------------------------------------------------------------------------------------------- */

RIG_TEST(test_signal_outweighs_exit) {
  rig_open_running(r, n, 2);
  node_exited(r, &n[0], 1, 500); /* earlier, but it only noticed */
  node_killed(r, &n[1], 9, 100);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_settled(r, &n[0])->verdict.cause, CAUSE_WORKER_SIGNAL);
  assert_int_equal(rig_settled(r, &n[0])->verdict.signal, 9);
  assert_string_equal(rig_settled(r, &n[0])->verdict.host, "n1");
  assert_int_equal(rig_settled(r, &n[0])->verdict.node_rank, 1);
}

RIG_TEST(test_lost_node_outweighs_signal) {
  rig_open_for(r, 2, 3);
  rig_running(r, n, 3);
  node_killed(r, &n[0], 11, 0);
  node_death_report(r, &n[2]);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_settled(r, &n[0])->verdict.cause, CAUSE_NODE_LOST);
  assert_false(rig_settled(r, &n[0])->charged);
  assert_int_equal(rig_settled(r, &n[0])->restarts_used, 0);
}

RIG_TEST(test_the_earliest_among_equals) {
  static const int64_t ago[] = {300, INT64_MAX}; /* the other happened 210 ms ago; or before the clock began */
  for (size_t i = 0; i < sizeof ago / sizeof ago[0]; i++) {
    rig_open_running(r, n, 2);
    rig_run(r, 1000);
    node_exited(r, &n[0], 1, 10);
    rig_run(r, 200);
    node_exited(r, &n[1], 2, ago[i]); /* heard later, happened earlier */
    nodes_stopped(r, n, 2);
    assert_int_equal(rig_settled(r, &n[0])->verdict.code, 2);
  }
}

RIG_TEST(test_echoes_are_counted) {
  rig_open_running(r, n, 2);
  for (int i = 0; i < 3; i++) node_killed(r, &n[0], 6, 100 - i);
  for (int i = 0; i < 4; i++) node_exited(r, &n[1], 1, 0);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_settled(r, &n[1])->verdict.echoes, 6);
  assert_true(rig_settled(r, &n[1])->charged);
  assert_int_equal(rig_settled(r, &n[1])->restarts_used, 1); /* once, however many died */
  assert_int_equal(n[0].restarts_used, 1);
}

static void node_hung(struct rig *r, struct node *n, const char *ps, int64_t step, int64_t ago) {
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_WORKER_HUNG;
  v.rank = v.local_rank = 0;
  v.step = step;
  v.idle_ms = ago;
  v.state = ps;
  v.code = 3; /* the daemon knows better */
  node_report(r, n, REPORT_FAILED, &v, ago);
}

/* It is charged; the other node's hang is no death; what dies of it is counted. */
RIG_TEST(test_a_hang) {
  rig_open(r, 1);
  r->settings.hang_timeout_ms = 60000;
  rig_running(r, n, 2);
  node_hung(r, &n[0], "S", 99, 60100);
  node_hung(r, &n[1], "T", 99, 60000);
  node_exited(r, &n[0], 1, 0);
  nodes_stopped(r, n, 2);
  const struct settled *t = rig_settled(r, &n[0]);
  assert_int_equal(t->verdict.cause, CAUSE_WORKER_HUNG);
  assert_int_equal(t->verdict.node_rank, 1); /* its process is stopped: the other waits for it */
  assert_string_equal(t->verdict.state, "T");
  assert_int_equal(t->verdict.idle_ms, 60000);
  assert_int_equal(t->verdict.code, EXIT_CODE_HUNG);
  assert_int_equal(t->verdict.echoes, 1);
  assert_true(t->charged);
}

/* The codec lets through what no agent of ours says. */
RIG_TEST(test_an_agent_cannot_speak_for_others) {
  static const enum cause causes[] = {CAUSE_NONE, CAUSE_OPERATOR, CAUSE_NODE_LOST, CAUSE_JOIN_TIMEOUT};
  for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
    struct verdict v;
    rig_open(r, 1);
    r->settings.max_restarts = 0;
    rig_running(r, n, 2);
    verdict_init(&v);
    v.cause = causes[i];
    v.host = "somebody-else";
    v.node_rank = 1;
    node_report(r, &n[0], REPORT_FAILED, &v, 0);
    nodes_stopped(r, n, 2);
    const struct end *end = rig_end(r, &n[0]);
    assert_int_equal(end->verdict.cause, CAUSE_WORKER_EXIT);
    assert_int_equal(end->outcome, OUTCOME_FAILED);
    assert_int_equal(end->code, 1); /* a failure does not exit with 0 */
    assert_string_equal(end->verdict.host, "n0");
    assert_int_equal(end->verdict.node_rank, 0);
  }
}

/* It says something that this release does not know, and no exit of a worker. */
RIG_TEST(test_an_agent_of_a_later_release_names_a_cause) {
  struct verdict v;
  rig_open(r, 1);
  rig_running(r, n, 2);
  verdict_init(&v);
  v.cause = CAUSE_OTHER;
  v.rank = v.local_rank = 0;
  v.lasting = LASTING_COMMAND;
  node_report(r, &n[0], REPORT_FAILED, &v, 0);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_settled(r, &n[1])->verdict.cause, CAUSE_OTHER);
  assert_int_equal(rig_settled(r, &n[1])->verdict.code, 1);
  assert_true(rig_settled(r, &n[1])->charged);
}

RIG_TEST(test_more_deaths_than_workers_fit_in_a_message) {
  rig_open_running(r, n, 2);
  r->blind = true;
  for (int i = 0; i < WORLD_MAX + 10; i++) {
    node_exited(r, &n[0], 1, 0);
    r->now_ms += CORE_MSG_EVERY_MS; /* a faster one is cut off */
    if (i == 0) n[0].n_reports = 0;
  }
  r->blind = false;
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_settled(r, &n[1])->verdict.echoes, WORLD_MAX);
}

/* The budget. ------------------------------------------------------------------------------------------------------ */

RIG_TEST(test_the_budget_is_charged_once_per_round) {
  rig_open(r, 1);
  r->settings.max_restarts = 2;
  rig_running(r, n, 2);
  for (int round = 1; round <= 2; round++) {
    node_exited(r, &n[0], 40 + round, 0);
    nodes_stopped(r, n, 2);
    assert_int_equal(rig_settled(r, &n[1])->restarts_used, round);
    rig_run(r, 2000);
    assert_int_equal(n[0].round, round + 1);
    assert_int_equal(n[0].restarts_used, round);
    start_all(r, n, 2);
  }
  node_exited(r, &n[1], 43, 0);
  nodes_stopped(r, n, 2);
  const struct end *end = rig_end(r, &n[0]);
  assert_int_equal(end->outcome, OUTCOME_FAILED);
  assert_int_equal(end->code, 43);
  assert_int_equal(end->restarts_used, 2);
  assert_int_equal(end->round, 3);
  assert_non_null(strstr(r->saved[r->n_saved - 1], "\"event\":\"end\""));
}

RIG_TEST(test_a_report_counts_once) {
  rig_open_running(r, n, 2);
  node_exited(r, &n[0], 1, 0);
  for (int i = 0; i < 3; i++) node_back(r, &n[0], PHASE_STOPPING); /* says it again each time */
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_settled(r, &n[1])->verdict.echoes, 0);
  assert_int_equal(rig_settled(r, &n[1])->restarts_used, 1);
}

RIG_TEST(test_a_report_of_another_round_is_nobodys) {
  rig_open_running(r, n, 2);
  n[0].round = 2;
  node_exited(r, &n[0], 1, 0);
  n[0].round = 1;
  char own[INCARNATION_MAX + 1];
  memcpy(own, n[0].incarnation, sizeof own);
  memcpy(n[0].incarnation, "0123456789ab-0", 15);
  node_exited(r, &n[0], 1, 0);
  memcpy(n[0].incarnation, own, sizeof own);
  assert_string_equal(rig_state(r, "job"), "running");
}

RIG_TEST(test_void_rounds_cost_nothing) {
  rig_open_for(r, 2, 3);
  rig_joined(r, n, 3);
  for (int i = 0; i < 3; i++) assert_int_equal(n[i].round, 1);
  node_started(r, &n[0]);
  node_death_report(r, &n[1]); /* lost between seal and start */
  n[1].conn = 0;
  assert_true(rig_stop(r, &n[0])->void_round);
  node_exited(r, &n[0], 5, 0); /* of being stopped */
  node_stopped(r, &n[0]);
  node_stopped(r, &n[2]);
  assert_false(rig_settled(r, &n[0])->charged);
  assert_int_equal(rig_settled(r, &n[0])->restarts_used, 0);
  assert_int_equal(rig_settled(r, &n[0])->delay_ms, 0);
  assert_int_equal(n[0].round, 2);
}

RIG_TEST(test_a_failure_while_starting_is_charged_and_leaving_is_not) {
  for (int leaves = 0; leaves < 2; leaves++) {
    rig_open_joined(r, n, 2);
    node_started(r, &n[0]);
    if (leaves)
      node_report(r, &n[0], REPORT_LEAVING, NULL, 0);
    else
      node_exited(r, &n[0], 5, 0);
    assert_int_equal(rig_stop(r, &n[1])->void_round, leaves);
    nodes_stopped(r, n, 2);
    assert_int_equal(rig_settled(r, &n[1])->charged, !leaves);
  }
}

RIG_TEST(test_leaving_costs_nothing) {
  rig_open_for(r, 2, 3);
  rig_running(r, n, 3);
  node_report(r, &n[2], REPORT_LEAVING, NULL, 0);
  nodes_checkpointed(r, n, 3);
  assert_string_equal(rig_state(r, "job"), "stopping");
  assert_int_equal(rig_stop(r, &n[0])->verdict.cause, CAUSE_NODE_LEAVING);
  nodes_stopped(r, n, 3);
  rig_run(r, JOB_LEAVE_MS);
  /* It is not asked again, though it is connected still. */
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 2);
  assert_int_equal(n[2].round, 1);
  assert_false(rig_settled(r, &n[0])->charged);
}

/* Delays. ---------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_short_rounds_delay_the_next) {
  static const uint64_t want[] = {0, 1000, 2000, 4000, 8000, 16000, 30000, 30000};
  rig_open(r, 1);
  r->settings.max_restarts = 100;
  r->settings.lease_ms = 60000;
  rig_running(r, n, 2);
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
    int64_t round = n[0].round;
    rig_run(r, 1000);
    node_exited(r, &n[0], 1, 0);
    nodes_stopped(r, n, 2);
    assert_int_equal(rig_settled(r, &n[0])->delay_ms, want[i]);
    if (want[i]) {
      assert_string_equal(rig_state(r, "job"), "forming");
      rig_run(r, want[i] - 1);
      assert_string_equal(rig_state(r, "job"), "forming");
      rig_run(r, 1);
    }
    assert_int_equal(n[0].round, round + 1);
    start_all(r, n, 2);
    nodes_heartbeat(r, n, 2);
  }
  /* One that lives long enough resets that; how long its workers take to stop is not its life. */
  rig_run(r, JOB_SHORT_ROUND_MS);
  node_exited(r, &n[0], 1, 0);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_settled(r, &n[0])->delay_ms, 0);
  start_all(r, n, 2);
  rig_run(r, JOB_SHORT_ROUND_MS - 1);
  node_exited(r, &n[0], 1, 0);
  rig_run(r, 5000);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_settled(r, &n[0])->delay_ms, 0); /* the first short one again */
  start_all(r, n, 2);
  node_exited(r, &n[0], 1, 0);
  rig_run(r, 5000);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_settled(r, &n[0])->delay_ms, 1000);
}

/* A join timeout that is shorter than the delay is about nodes that are missing, not about these. */
RIG_TEST(test_a_delay_is_no_join_timeout) {
  rig_open(r, 1);
  r->settings.join_timeout_ms = 500;
  rig_running(r, n, 2);
  for (int i = 0; i < 2; i++) {
    node_exited(r, &n[0], 1, 0);
    nodes_stopped(r, n, 2);
    rig_run(r, i * 1000);
    start_all(r, n, 2);
  }
  assert_int_equal(n[0].round, 3);
}
