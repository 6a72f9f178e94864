/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: how long workers go on while no daemon answers (--orphan-grace). */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void orphan(struct bench *b, uint64_t grace_ms) {
  bench_open(b);
  b->config.settings.orphan_grace_ms = (int64_t)grace_ms;
  bench_running(b);
  b->answering = true;
  bench_run(b, 10000);
  b->answering = false;
  bench_forget(b);
}

/* As an endpoint does at which no daemon runs, or as one that is cut off. */
static void stay_away(struct bench *b, uint64_t ms, bool refused) {
  for (uint64_t end = b->now_ms + ms; b->now_ms < end;) {
    size_t before = bench_count(b, SUP_CONNECT);
    bench_run(b, 100);
    if (bench_count(b, SUP_CONNECT) > before) bench_down(b, refused);
  }
}

static void test_after_the_grace_it_leaves(void **state) {
  for (int refused = 0; refused < 2; refused++) {
    struct bench b;
    orphan(&b, 60000);
    bench_down(&b, false);
    stay_away(&b, 58000, refused);
    assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
    stay_away(&b, 2000, refused);
    assert_int_equal(bench_count(&b, SUP_STOP_TREES), 1);
    assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.grace_ms,
                     30000); /* --stop-timeout: they may checkpoint */
    assert_int_equal(bench_effect(&b, SUP_STOP_TREES)->stop_trees.signo, SIGTERM);
    assert_int_equal(bench_said(&b, "--orphan-grace"), 1);
    bench_clear(&b);
    assert_exit(&b, EXIT_CODE_DAEMON_LOST);
    bench_close(&b);
  }
}

static void test_a_daemon_that_is_back_in_time(void **state) {
  struct bench b;
  orphan(&b, 60000);
  bench_down(&b, false);
  stay_away(&b, 55000, true);
  bench_run(&b, 1000);
  bench_up(&b);
  bench_welcome(&b, false);
  b.answering = true;
  bench_run(&b, 100000);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
  bench_close(&b);
}

/* It is told, as it would be of a signal; the others form anew without this node. */
static void test_a_daemon_that_is_back_while_it_leaves(void **state) {
  struct bench b;
  orphan(&b, 1000);
  bench_down(&b, false);
  stay_away(&b, 3000, true);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 1);
  bench_run(&b, 1000);
  bench_up(&b);
  const struct hello *h = bench_hello(&b);
  assert_int_equal(h->phase, PHASE_STOPPING);
  assert_int_equal(h->reports[h->n_reports - 1].kind, REPORT_LEAVING);
  bench_welcome(&b, false);
  bench_clear(&b);
  assert_int_equal(b.exit_code, EXIT_CODE_DAEMON_LOST);
  assert_non_null(bench_sent(&b, MSG_BYE));
  bench_close(&b);
}

static void test_for_ever(void **state) {
  struct bench b;
  orphan(&b, 0);
  bench_down(&b, false);
  stay_away(&b, 3600000, true);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
  bench_close(&b);
}

/* A daemon that is not in charge answers. The one that is may count the grace from its last contact. */
static void test_a_daemon_without_a_majority_is_none(void **state) {
  struct bench b;
  orphan(&b, 60000);
  b.answering = true;
  b.age_ms = b.config.settings.lease_ms;
  bench_run(&b, 58000);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 0);
  bench_run(&b, 3000);
  assert_int_equal(bench_count(&b, SUP_STOP_TREES), 1);
  assert_int_equal(bench_said(&b, "has been without a majority of the nodes for 60 s (--orphan-grace)"), 1);
  bench_close(&b);
}

/* What runs no more is none: that waits for --join-timeout. */
static void test_only_workers_are_orphans(void **state) {
  struct bench b;
  orphan(&b, 1000);
  bench_all_exited(&b, EXITED(0));
  bench_clear(&b);
  bench_down(&b, false);
  stay_away(&b, 30000, true);
  assert_int_equal(bench_said(&b, "--orphan-grace"), 0);
  assert_int_equal(b.exits, 0);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_after_the_grace_it_leaves),
      cmocka_unit_test(test_a_daemon_that_is_back_in_time),
      cmocka_unit_test(test_a_daemon_that_is_back_while_it_leaves),
      cmocka_unit_test(test_for_ever),
      cmocka_unit_test(test_a_daemon_without_a_majority_is_none),
      cmocka_unit_test(test_only_workers_are_orphans),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
