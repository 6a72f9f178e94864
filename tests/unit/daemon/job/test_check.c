/* SPDX-License-Identifier: Apache-2.0 */
/* core: nodes with a check of their own, and workers that ask for another host. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

/* HELLO on its connection, or on a new one. */
static void hello(struct rig *r, struct node *n, int64_t checking, int64_t checked, const char *unfit) {
  struct msg m;
  node_hello(n, &m);
  m.hello.checks = true;
  m.hello.checking = checking;
  m.hello.checked = checked;
  m.hello.unfit = unfit;
  node_say(r, n, &m);
}

/* Two nodes, of which n1 has a check, and its worker has failed. */
static void fail_on_1(struct rig *r, struct node *n, int64_t min, int64_t max) {
  rig_open_for(r, min, max);
  r->settings.last_call_ms = 1000;
  nodes_init(r, n, 2);
  nodes_join(r, n, 1);
  node_join(r, &n[1]);
  if (n[1].round == 0) hello(r, &n[1], 0, 0, "");
  rig_run(r, 1000);
  nodes_started(r, n, 2);
  assert_string_equal(rig_state(r, "job"), "running");
}

static void settle(struct rig *r, struct node *n) {
  rig_forget(r);
  node_exited(r, &n[1], 3, 0);
  nodes_stopped(r, n, 2);
}

RIG_TEST(test_an_unfit_node_is_refused_and_named) {
  rig_open_for(r, 2, 2);
  nodes_init(r, n, 2);
  node_join(r, &n[0]);
  n[1].conn = ++r->next_conn;
  hello(r, &n[1], 0, 0, "exit code 2: GPU 3 is missing");
  const struct msg *m = rig_last(r, n[1].conn, MSG_REFUSED);
  assert_non_null(m);
  assert_int_equal(m->refused.code, EXIT_CODE_OTHER_HOST);
  rig_run(r, 2000);
  m = rig_last(r, n[0].conn, MSG_WAITING);
  assert_int_equal(m->waiting.n_refusals, 1);
  assert_string_equal(m->waiting.refusals[0].host, "n1");
  assert_string_equal(m->waiting.refusals[0].text, "it failed its --check with exit code 2: GPU 3 is missing");
  assert_int_equal(n[0].round, 0);
}

/* It comes first, and the others later; so does a second one. */
RIG_TEST(test_an_unfit_node_that_comes_first_is_named) {
  static const char text[] = "it failed its --check with exit code 2: GPU 3 is missing";
  rig_open_for(r, 2, 2);
  nodes_init(r, n, 4);
  for (int i = 1; i < 3; i++) {
    n[i].conn = ++r->next_conn;
    hello(r, &n[i], 0, 0, "exit code 2: GPU 3 is missing");
    assert_non_null(rig_last(r, n[i].conn, MSG_REFUSED));
    rig_run(r, 2000);
  }
  rig_control(r, "status", "", false);
  assert_said(r, "no jobs\njob: no node has joined; n1 was refused 4 s ago: it failed its --check with exit code 2");
  assert_said(r, "missing\njob: no node has joined; n2 was refused 2 s ago: ");
  rig_control(r, "status", "job", false);
  assert_said(r, "n1 was refused 4 s ago: ");
  node_join(r, &n[0]);
  rig_run(r, 2000);
  const struct msg *m = rig_last(r, n[0].conn, MSG_WAITING);
  assert_int_equal(m->waiting.n_refusals, 2);
  assert_string_equal(m->waiting.refusals[1].host, "n1");
  assert_string_equal(m->waiting.refusals[1].text, text);
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "no node has joined"));
  assert_said(r, "n1 was refused ");
  node_join(r, &n[3]);
  assert_int_equal(n[0].round, 1);
}

RIG_TEST(test_early_refusals_are_bounded_and_forgotten) {
  char id[16];
  rig_open_for(r, 2, 2);
  nodes_init(r, n, 1);
  for (int i = 0; i < 100; i++) {
    snprintf(id, sizeof id, "job-%d", i);
    n[0].job = id;
    n[0].conn = ++r->next_conn;
    hello(r, &n[0], 0, 0, "exit code 1");
    rig_run(r, 10);
  }
  rig_control(r, "status", "job-35", false);
  assert_null(rig_said(r, "no node has joined"));
  rig_control(r, "status", "job-36", false);
  assert_said(r, "no node has joined");
  rig_run(r, 600000);
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "no node has joined"));
}

RIG_TEST(test_no_round_begins_before_the_check_has_ended) {
  fail_on_1(r, n, 1, 3);
  settle(r, n);
  rig_live(r, 20000);
  assert_string_equal(rig_state(r, "job"), "forming"); /* one node would be enough */
  const struct msg *m = rig_last(r, n[0].conn, MSG_WAITING);
  assert_int_equal(m->waiting.prospect, PROSPECT_CHECK);
  assert_int_equal(m->waiting.absent[0].why, ABSENCE_CHECKING);
  hello(r, &n[1], 1, 0, ""); /* as when its ports have changed */
  assert_int_equal(n[0].round, 1);
  hello(r, &n[1], 0, 1, "");
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 2);
}

RIG_TEST(test_a_node_that_dies_in_its_check_is_lost) {
  fail_on_1(r, n, 1, 3);
  settle(r, n);
  node_death_report(r, &n[1]);
  rig_run(r, 1000);
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 1);
}

RIG_TEST(test_a_failed_check_excludes_the_host) {
  fail_on_1(r, n, 1, 3);
  settle(r, n);
  hello(r, &n[1], 0, 1, "exit code 9");
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 1);
  const struct msg *m = rig_last(r, n[1].conn, MSG_WAITING);
  assert_non_null(strstr(m->waiting.text, "drained by the job itself: its --check failed with exit code 9"));
  m = rig_last(r, n[0].conn, MSG_NOTICE);
  assert_string_equal(m->notice_msg.text, "host n1 is excluded: its --check failed with exit code 9");
}

RIG_TEST(test_a_host_that_is_needed_stays) {
  fail_on_1(r, n, 2, 3);
  settle(r, n);
  hello(r, &n[1], 0, 1, "exit code 9");
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 2);
}

/* Exit code 16. ---------------------------------------------------------------------------------------------------- */

RIG_TEST(test_one_host_that_asks_comes_last) {
  rig_open_for(r, 2, 3);
  rig_joined(r, n, 3);
  nodes_started(r, n, 3);
  node_exited(r, &n[1], EXIT_CODE_OTHER_HOST, 0);
  nodes_stopped(r, n, 3);
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 2);
  assert_int_equal(n[1].round, 1);
}

RIG_TEST(test_all_hosts_that_ask_get_other_ranks) {
  rig_open_for(r, 2, 3);
  rig_joined(r, n, 3);
  nodes_started(r, n, 3);
  for (int i = 0; i < 3; i++) node_exited(r, &n[i], EXIT_CODE_OTHER_HOST, 0);
  nodes_stopped(r, n, 3);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(n[i].round, 2);
    assert_int_equal(n[i].nodes, 3);
    assert_int_equal(n[i].node_rank, (i + 1) % 3);
  }
}

RIG_TEST(test_a_wrong_result_ends_the_job) {
  rig_open_running(r, n, 2);
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_WORKER_EXIT;
  v.code = EXIT_CODE_WRONG_RESULT;
  v.lasting = LASTING_RESULT;
  v.step = 1000;
  node_report(r, &n[0], REPORT_FAILED, &v, 0);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_end(r, &n[0])->code, EXIT_CODE_WRONG_RESULT);
  assert_int_equal(rig_end(r, &n[0])->restarts_used, 0);
}
