/* SPDX-License-Identifier: Apache-2.0 */
/* core: who may join, and when a round is sealed. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static const struct msg *refused(const struct rig *r, const struct node *n) {
  const struct msg *m = rig_last(r, n->conn, MSG_REFUSED);
  assert_non_null(m);
  assert_true(rig_was_closed(r, n->conn));
  return m;
}

/* Sealing. --------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_sealed_when_max_are_here) {
  rig_open_for(r, 1, 3);
  for (int i = 0; i < 3; i++) {
    node_init(r, &n[i], i);
    node_join(r, &n[i]);
    assert_int_equal(rig_count(r, n[i].conn, MSG_WELCOME), 1);
    assert_string_equal(rig_state(r, "job"), i < 2 ? "forming" : "starting");
  }
  for (int i = 0; i < 3; i++) {
    assert_int_equal(n[i].round, 1);
    assert_int_equal(n[i].nodes, 3);
    assert_int_equal(n[i].node_rank, i);
  }
  assert_int_equal(r->n_saved, 1); /* tests/rig/core.c checks that it comes before any START */
  assert_non_null(strstr(r->saved[0], "\"event\":\"seal\""));
  assert_non_null(strstr(r->saved[0], "\"round\":1"));
}

RIG_TEST(test_sealed_when_all_the_scheduler_started_are_here) {
  rig_open_for(r, 1, 8);
  for (int i = 0; i < 2; i++) {
    node_init(r, &n[i], i);
    n[i].expected_nodes = 2;
    node_join(r, &n[i]);
    assert_string_equal(rig_state(r, "job"), i ? "starting" : "forming");
  }
  assert_int_equal(n[0].nodes, 2);
}

RIG_TEST(test_fewer_expected_than_min_does_not_seal) {
  rig_open(r, 1);
  node_init(r, n, 0);
  n->expected_nodes = 1;
  node_join(r, n);
  assert_string_equal(rig_state(r, "job"), "forming");
}

RIG_TEST(test_last_call_counts_from_when_min_are_here) {
  rig_open_for(r, 2, 3);
  nodes_init(r, n, 3);
  node_join(r, &n[0]);
  for (int i = 0; i < 60; i++) { /* alone: never sealed, however long it waits */
    rig_run(r, 1000);
    node_heartbeat(r, &n[0]);
  }
  node_join(r, &n[1]);
  for (int i = 0; i < 29; i++) {
    rig_run(r, 1000);
    nodes_heartbeat(r, n, 2);
  }
  assert_string_equal(rig_state(r, "job"), "forming");
  rig_expect_turn(r, 1000, "forming", "starting");
  assert_int_equal(n[0].nodes, 2);
}

/* A node that comes after one has left does not inherit its last call. */
RIG_TEST(test_last_call_begins_anew) {
  rig_open_for(r, 2, 3);
  r->settings.last_call_ms = 3000;
  nodes_init(r, n, 3);
  nodes_join(r, n, 2);
  rig_run(r, 2900);
  node_bye(r, &n[1]);
  rig_run(r, 500);
  node_heartbeat(r, &n[0]);
  node_join(r, &n[2]);
  assert_string_equal(rig_state(r, "job"), "forming");
  rig_expect_turn(r, 3000, "forming", "starting");
}

/* Four that were started together come seconds apart, because their machine is busy. */
RIG_TEST(test_last_call_goes_on_while_nodes_come) {
  rig_open_for(r, 1, 5);
  r->settings.last_call_ms = 1000;
  nodes_init(r, n, 4);
  for (int i = 0; i < 4; i++) {
    node_join(r, &n[i]);
    rig_run(r, 900);
    assert_string_equal(rig_state(r, "job"), "forming");
  }
  rig_expect_turn(r, 100, "forming", "starting");
  assert_int_equal(n[0].nodes, 4);
}

RIG_TEST(test_last_call_of_30_s_goes_on_for_5_s) {
  rig_open_for(r, 1, 3);
  nodes_init(r, n, 2);
  node_join(r, &n[0]);
  for (int i = 0; i < 29; i++) {
    rig_run(r, 1000);
    node_heartbeat(r, &n[0]);
  }
  node_join(r, &n[1]);
  rig_run(r, 2000);
  nodes_heartbeat(r, n, 2);
  assert_string_equal(rig_state(r, "job"), "forming");
  rig_expect_turn(r, 3000, "forming", "starting");
  assert_int_equal(n[0].nodes, 2);
}

/* One that comes each time ends it as well, half a minute later. */
RIG_TEST(test_last_call_does_not_go_on_for_ever) {
  enum { N = 64 };
  struct node all[N];
  rig_open_for(r, 1, N);
  r->settings.last_call_ms = 1000;
  nodes_init(r, all, N);
  int i = 0;
  for (; i < N && !strcmp(i ? rig_state(r, "job") : "forming", "forming"); i++) {
    node_join(r, &all[i]);
    rig_run(r, 900);
    nodes_heartbeat(r, all, i + 1);
  }
  assert_int_equal(i, 35); /* 31 s */
}

RIG_TEST(test_no_last_call_after_a_fault) {
  rig_open_for(r, 2, 3);
  rig_running(r, n, 3);
  node_death_report(r, &n[2]);
  node_stopped(r, &n[0]);
  assert_string_equal(rig_state(r, "job"), "stopping");
  node_stopped(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 2);
}

RIG_TEST(test_more_than_max_are_spares) {
  rig_open_running(r, n, 2);
  node_init(r, &n[2], 2);
  node_join(r, &n[2]);
  const struct msg *w = rig_last(r, n[2].conn, MSG_WAITING);
  assert_non_null(w);
  assert_true(w->waiting.spare);
  assert_non_null(strstr(w->waiting.text, "spare"));
  /* It takes the place of one that is lost, with its rank. */
  node_death_report(r, &n[0]);
  node_stopped(r, &n[1]);
  assert_int_equal(n[2].round, 2);
  assert_int_equal(n[2].node_rank, 0);
  assert_int_equal(n[1].node_rank, 1);
}

/* Refusals. -------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_settings_that_differ_name_both_sides) {
  static const char *const names[] = {"--nnodes (minimum)", "--nnodes (maximum)", "--max-restarts", "--last-call",
                                      "--join-timeout",     "--stop-timeout",     "--lease"};
  for (int i = 0; i < 7; i++) {
    rig_open(r, 1);
    node_init(r, &n[0], 0);
    node_init(r, &n[1], 1);
    node_join(r, &n[0]);
    int64_t *field[] = {&n[1].settings.min_nodes,    &n[1].settings.max_nodes,       &n[1].settings.max_restarts,
                        &n[1].settings.last_call_ms, &n[1].settings.join_timeout_ms, &n[1].settings.stop_timeout_ms,
                        &n[1].settings.lease_ms};
    int64_t was = *field[i], is = i == 0 ? was - 1 : was + 1234;
    char ours[32], theirs[32];
    *field[i] = is;
    node_join(r, &n[1]);
    const struct msg *m = refused(r, &n[1]);
    assert_int_equal(m->refused.code, EXIT_CODE_REFUSED);
    snprintf(ours, sizeof ours, "%lld", (long long)was);
    snprintf(theirs, sizeof theirs, "%lld", (long long)is);
    assert_non_null(strstr(m->refused.text, names[i]));
    assert_non_null(strstr(m->refused.text, ours));
    assert_non_null(strstr(m->refused.text, theirs));
    assert_non_null(strstr(m->refused.text, "n1"));
    assert_string_equal(rig_state(r, "job"), "forming"); /* and the first waits on */
  }
}

RIG_TEST(test_scale_up_is_of_the_job) {
  rig_open(r, 1);
  nodes_init(r, n, 2);
  n[1].settings.scale_up = SCALE_UP_NEXT_ROUND;
  nodes_join(r, n, 2);
  assert_non_null(strstr(refused(r, &n[1])->refused.text, "--scale-up is next-round here (n1) and now in the job"));
}

/* Node rank 0 is told of the first by rank; one whose command is not known does not count. */
RIG_TEST(test_another_command) {
  static const char *const commands[] = {"0a", "", "0b", "0c"};
  for (int differ = 0; differ < 2; differ++) {
    rig_open_for(r, 4, 4);
    for (int i = 3; i >= 0; i--) {
      node_init(r, &n[i], i);
      n[i].want_rank = i;
      n[i].command = differ ? commands[i] : "0a";
      node_join(r, &n[i]);
    }
    for (int i = 0; i < 4; i++) {
      assert_int_equal(n[i].node_rank, i);
      assert_string_equal(n[i].other_command, differ && i == 0 ? n[2].host : "");
    }
  }
}

RIG_TEST(test_want_rank) {
  rig_open(r, 1);
  nodes_init(r, n, 3);
  n[0].want_rank = 2;
  node_join(r, &n[0]);
  const struct msg *m = refused(r, &n[0]);
  assert_int_equal(m->refused.code, EXIT_CODE_REFUSED);
  assert_non_null(strstr(m->refused.text, "2"));
  assert_string_equal(rig_state(r, "job"), ""); /* a job is not begun by who is refused */

  n[0].want_rank = n[1].want_rank = 1;
  nodes_join(r, n, 2);
  m = refused(r, &n[1]);
  assert_int_equal(m->refused.code, EXIT_CODE_REFUSED);
  assert_non_null(strstr(m->refused.text, "n0"));
  assert_non_null(strstr(m->refused.text, "n1"));

  node_drop(r, &n[0]); /* the same node again is no duplicate */
  node_join(r, &n[0]);
  assert_int_equal(rig_count(r, n[0].conn, MSG_REFUSED), 0);
  node_bye(r, &n[0]); /* and a rank is free when its owner has left */
  node_join(r, &n[1]);
  assert_int_equal(rig_count(r, n[1].conn, MSG_WELCOME), 1);
  node_join(r, &n[2]);
  assert_int_equal(n[1].node_rank, 1);
  assert_int_equal(n[2].node_rank, 0);
}

RIG_TEST(test_version) {
  struct msg m;
  rig_open(r, 1);
  node_init(r, n, 0);
  node_hello(n, &m);
  m.hello.version = PROTO_VERSION + 1;
  m.hello.oldest = PROTO_VERSION + 1;
  m.hello.release = "9.0.0";
  n->conn = ++r->next_conn;
  node_say(r, n, &m);
  const struct msg *answer = refused(r, n);
  assert_int_equal(answer->refused.code, EXIT_CODE_REFUSED);
  assert_string_equal(answer->refused.text,
                      "its rdzv-agent has release 9.0.0 (protocol 2), and this rdzvd " RDZV_VERSION
                      " (protocol 1): upgrade rdzv where it is " RDZV_VERSION);
  assert_false(core_served(r->core));
}

/* Each is valid for the codec, and no job can be made of it. */
RIG_TEST(test_hello_that_makes_no_sense) {
  struct msg m;
  rig_open(r, 1);
  node_init(r, n, 0);
  for (int i = 0; i < 6; i++) {
    node_hello(n, &m);
    m.hello.incarnation = "0123456789ab-1";
    m.hello.round = 3;
    m.hello.round_nodes = 2;
    m.hello.node_rank = 1;
    m.hello.phase = PHASE_RUNNING;
    if (i == 0) m.hello.settings.min_nodes = 3;
    if (i == 1) m.hello.node_rank = 2;
    if (i == 2) m.hello.round = 0;
    if (i == 3) m.hello.incarnation = "";
    if (i == 4) m.hello.local_addr = "eth0";
    if (i == 5) m.hello.round = ROUND_MAX;
    n->conn = ++r->next_conn;
    node_say(r, n, &m);
    assert_int_equal(refused(r, n)->refused.code, EXIT_CODE_REFUSED);
    assert_string_equal(rig_state(r, "job"), "");
  }
}

RIG_TEST(test_a_world_has_a_limit) {
  rig_open_for(r, 1024, 2000);
  r->settings.last_call_ms = 1000;
  for (int i = 0; i < 1025; i++) {
    r->n_nodes = 0;
    node_init(r, n, i);
    n->workers = WORKERS_MAX;
    node_join(r, n);
    assert_int_equal(rig_count(r, n->conn, MSG_REFUSED), i == 1024);
  }
  rig_run(r, 1000);
  assert_string_equal(rig_state(r, "job"), "starting");
}

RIG_TEST(test_only_the_unix_socket_controls) {
  struct msg m;
  rig_open(r, 1);
  node_init(r, n, 0);
  n->conn = ++r->next_conn;
  msg_init(&m, MSG_CONTROL);
  m.control.verb = "stop";
  m.control.job = "job";
  node_say(r, n, &m);
  refused(r, n);

  node_hello(n, &m);
  rig_event(r,
            &(struct core_event){
                .kind = CORE_MSG, .conn = ++r->next_conn, .msg = &m, .local = true, .peer_addr = "", .local_addr = ""});
  assert_non_null(rig_last(r, r->next_conn, MSG_REFUSED));
  assert_string_equal(rig_state(r, "job"), "");
}

/* Lives. ----------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_the_same_command_again_opens_a_new_incarnation) {
  struct node again[2];
  rig_open_running(r, n, 2);
  nodes_finished(r, n, 2);
  nodes_end_ack(r, n, 2);
  assert_string_equal(rig_state(r, "job"), "ended");
  rig_run(r, 50);
  for (int i = 0; i < 2; i++) {
    node_init(r, &again[i], 10 + i);
    node_join(r, &again[i]);
  }
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_int_equal(again[0].round, 1);
  assert_true(strcmp(again[0].incarnation, n[0].incarnation) > 0);
  /* One that was away hears how its own life ended, not of the new one. */
  rig_forget(r);
  node_back(r, &n[0], PHASE_FINISHED);
  const struct end *end = rig_end(r, &n[0]);
  assert_int_equal(end->outcome, OUTCOME_SUCCESS);
  assert_string_equal(end->incarnation, n[0].incarnation);
}

RIG_TEST(test_ended_jobs_are_forgotten) {
  rig_open_running(r, n, 2);
  nodes_finished(r, n, 2);
  nodes_end_ack(r, n, 2);
  nodes_drop(r, n, 2);
  assert_true(core_idle(r->core));
  rig_expect_turn(r, JOB_END_KEEP_MS, "ended", "");
  assert_true(core_deadline(r->core) == UINT64_MAX);
}

RIG_TEST(test_a_job_nobody_ran_leaves_nothing) {
  rig_open(r, 1);
  node_init(r, n, 0);
  node_join(r, n);
  assert_false(core_idle(r->core));
  node_drop(r, n);
  rig_run(r, JOB_GRACE_MS);
  assert_string_equal(rig_state(r, "job"), "");
  assert_true(core_idle(r->core));
  assert_int_equal(r->n_saved, 0);
}

RIG_TEST(test_jobs_do_not_touch_each_other) {
  struct node a[2], b[2];
  rig_open_running(r, a, 2);
  r->job = "other";
  r->settings.lease_ms = 9000; /* its own settings */
  for (int i = 0; i < 2; i++) {
    node_init(r, &b[i], i); /* and the same agent ids */
    node_join(r, &b[i]);
  }
  nodes_started(r, b, 2);
  assert_string_equal(rig_state(r, "other"), "running");
  node_exited(r, &b[0], 3, 0);
  assert_string_equal(rig_state(r, "other"), "stopping");
  assert_string_equal(rig_state(r, "job"), "running");
  assert_int_equal(rig_count(r, a[0].conn, MSG_STOP), 0);
  assert_true(strcmp(a[0].incarnation, b[0].incarnation) != 0);
}

RIG_TEST(test_the_number_of_jobs_is_limited) {
  char id[16];
  rig_open_for(r, 1, 1);
  for (int i = 0; i <= CORE_JOBS_MAX; i++) {
    r->n_nodes = 0;
    node_init(r, n, i);
    snprintf(id, sizeof id, "job%d", i);
    n->job = id;
    rig_forget(r);
    node_join(r, n);
    if (i < CORE_JOBS_MAX) assert_non_null(rig_last(r, n->conn, MSG_WELCOME));
  }
  assert_non_null(strstr(refused(r, n)->refused.text, "this daemon has reached its limit of 4096 jobs of all users"));
  /* One that is over makes room before its ten minutes have passed. */
  assert_int_equal(rig_control(r, "stop", "job7", false), 0);
  rig_run(r, 1);
  node_join(r, n);
  assert_non_null(rig_last(r, n->conn, MSG_REFUSED)); /* but not while its end is on its way */
}

UNIT_TEST(test_several_cores) {
  struct rig r[2] = {0};
  struct node n[2][2];
  for (int i = 0; i < 2; i++) rig_open(&r[i], (uint64_t)i);
  for (int i = 0; i < 2; i++) rig_running(&r[i], n[i], 2);
  node_exited(&r[0], &n[0][0], 1, 0);
  assert_string_equal(rig_state(&r[0], "job"), "stopping");
  assert_string_equal(rig_state(&r[1], "job"), "running");
  assert_true(strcmp(n[0][0].incarnation, n[1][0].incarnation) != 0);
  for (int i = 0; i < 2; i++) rig_close(&r[i]);
}

UNIT_TEST(test_a_seed_decides_everything) {
  struct rig r[2] = {0};
  struct node n[2][2];
  for (int i = 0; i < 2; i++) {
    rig_open(&r[i], 42);
    rig_running(&r[i], n[i], 2);
  }
  assert_string_equal(n[0][0].incarnation, n[1][0].incarnation);
  for (int i = 0; i < 2; i++) rig_close(&r[i]);
}
