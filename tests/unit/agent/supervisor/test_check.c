/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: the node's own check, before the first round and after a failure here; exit code 17. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void checked(const char *why) {
  bench_event(&(struct supervisor_event){.kind = SUP_CHECKED, .text = why});
}

static void begin(void) {
  bench.config.checks = true;
  bench_begin();
  assert_int_equal(bench_count(SUP_CHECK), 1);
  assert_int_equal(bench_effect(SUP_CHECK)->round, 0);
  assert_int_equal(bench_count(SUP_CONNECT), 0);
}

static void fail_here(void) {
  bench_exited(0, EXITED(3), bench.now_ms, "");
  bench_clear();
  assert_state(SUPERVISOR_STOPPED);
}

static void settle(int64_t node_rank, bool charged) {
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_WORKER_EXIT;
  v.code = 3;
  v.node_rank = node_rank;
  bench_settled(1, charged, 1, &v);
  assert_state(SUPERVISOR_JOINING);
}

static void run_round(void) {
  begin();
  checked(NULL);
  bench_up();
  bench_welcome(false);
  bench_start(1);
  bench_all_spawned();
  bench_forget();
}

BENCH_TEST(test_the_connection_waits_for_the_check) {
  begin();
  bench_run(3600000); /* --check-timeout is the driver's */
  assert_int_equal(bench_count(SUP_CONNECT) + bench_count(SUP_EXIT), 0);
  checked(NULL);
  assert_int_equal(bench_count(SUP_CONNECT), 1);
  bench_up();
  assert_true(bench_hello()->checks);
  assert_string_equal(bench_hello()->unfit, "");
}

BENCH_TEST(test_an_unfit_node_says_so_and_leaves) {
  begin();
  checked("exit code 2: GPU 3 is missing");
  assert_said("failed its --check with exit code 2: GPU 3 is missing; exit code 16: run it again on another host");
  bench_up();
  assert_string_equal(bench_hello()->unfit, "exit code 2: GPU 3 is missing");
  struct msg m;
  msg_init(&m, MSG_REFUSED);
  m.refused.code = EXIT_CODE_OTHER_HOST;
  m.refused.text = "n1 of job x: it failed its --check";
  bench_msg(&m);
  assert_exit(EXIT_CODE_OTHER_HOST);
}

BENCH_TEST(test_an_unfit_node_does_not_wait_for_a_daemon) {
  begin();
  checked("exit code 1");
  bench_down(true);
  bench_run(SUPERVISOR_UNFIT_MS - 1);
  assert_int_equal(bench_count(SUP_EXIT), 0);
  bench_run(1);
  assert_exit(EXIT_CODE_OTHER_HOST);
}

BENCH_TEST(test_an_older_daemon_welcomes_it) {
  begin();
  checked("exit code 1");
  bench_up();
  bench_welcome(false);
  assert_string_equal(bench_sent(MSG_BYE)->bye.text, "it failed its --check");
  assert_exit(EXIT_CODE_OTHER_HOST);
}

BENCH_TEST(test_a_signal_while_the_first_check_runs) {
  begin();
  bench_signal(SIGTERM);
  assert_exit(EXIT_CODE_PREEMPTED);
}

BENCH_TEST(test_a_check_follows_a_failure_here) {
  run_round();
  fail_here();
  settle(1, true);
  assert_int_equal(bench_effect(SUP_CHECK)->round, 1);
  const struct hello *h = bench_reconnected(); /* a daemon that comes back knows that it runs */
  assert_int_equal(h->checking, 1);
  assert_int_equal(h->checked, 0);
  bench_welcome(false);
  bench_forget();
  checked("exit code 9");
  h = bench_hello();
  assert_int_equal(h->checking, 0);
  assert_int_equal(h->checked, 1);
  assert_string_equal(h->unfit, "exit code 9");
  assert_int_equal(bench_count(SUP_EXIT), 0); /* the daemon decides */
}

BENCH_TEST(test_no_check_follows_what_others_did) {
  run_round();
  fail_here();
  settle(0, true);
  assert_int_equal(bench_count(SUP_CHECK), 0);
}

BENCH_TEST(test_no_check_follows_a_void_round) {
  run_round();
  fail_here();
  settle(1, false);
  assert_int_equal(bench_count(SUP_CHECK), 0);
}

JOINED_TEST(test_without_the_option_nothing_is_checked) {
  bench_start(1);
  bench_all_spawned();
  fail_here();
  settle(1, true);
  assert_int_equal(bench_count(SUP_CHECK), 0);
  assert_false(bench_hello()->checks);
}

RUNNING_TEST(test_a_wrong_result_is_final) {
  bench_exited(0, EXITED(EXIT_CODE_WRONG_RESULT), bench.now_ms, "");
  assert_int_equal(bench_report(REPORT_FAILED)->what.lasting, LASTING_RESULT);
}
