/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: how long workers go on while no daemon answers (--orphan-grace). */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void orphan(uint64_t grace_ms) {
  bench_open();
  bench.config.settings.orphan_grace_ms = (int64_t)grace_ms;
  bench_running();
  bench.answering = true;
  bench_run(10000);
  bench.answering = false;
  bench_forget();
}

/* As an endpoint does at which no daemon runs, or as one that is cut off. */
static void stay_away(uint64_t ms, bool refused) {
  for (uint64_t end = bench.now_ms + ms; bench.now_ms < end;) {
    size_t before = bench_count(SUP_CONNECT);
    bench_run(100);
    if (bench_count(SUP_CONNECT) > before) bench_down(refused);
  }
}

BENCH_TEST(test_after_the_grace_it_leaves) {
  for (int refused = 0; refused < 2; refused++) {
    orphan(60000);
    bench_down(false);
    stay_away(58000, refused);
    assert_int_equal(bench_count(SUP_STOP_TREES), 0);
    stay_away(2000, refused);
    assert_int_equal(bench_count(SUP_STOP_TREES), 1);
    assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms,
                     30000); /* --stop-timeout: they may checkpoint */
    assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.signo, SIGTERM);
    assert_said("--orphan-grace");
    bench_clear();
    assert_exit(EXIT_CODE_DAEMON_LOST);
  }
}

BENCH_TEST(test_a_daemon_that_is_back_in_time) {
  orphan(60000);
  bench_down(false);
  stay_away(55000, true);
  bench_run(1000);
  bench_up();
  bench_welcome(false);
  bench.answering = true;
  bench_run(100000);
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
}

/* It is told, as it would be of a signal; the others form anew without this node. */
BENCH_TEST(test_a_daemon_that_is_back_while_it_leaves) {
  orphan(1000);
  bench_down(false);
  stay_away(3000, true);
  assert_int_equal(bench_count(SUP_STOP_TREES), 1);
  bench_run(1000);
  bench_up();
  const struct hello *h = bench_hello();
  assert_int_equal(h->phase, PHASE_STOPPING);
  assert_int_equal(h->reports[h->n_reports - 1].kind, REPORT_LEAVING);
  bench_welcome(false);
  bench_clear();
  assert_int_equal(bench.exit_code, EXIT_CODE_DAEMON_LOST);
  assert_non_null(bench_sent(MSG_BYE));
}

BENCH_TEST(test_for_ever) {
  orphan(0);
  bench_down(false);
  stay_away(3600000, true);
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
}

/* A daemon that is not in charge answers. The one that is may count the grace from its last contact. */
BENCH_TEST(test_a_daemon_without_a_majority_is_none) {
  orphan(60000);
  bench.answering = true;
  bench.age_ms = bench.config.settings.lease_ms;
  bench_run(58000);
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
  bench_run(3000);
  assert_int_equal(bench_count(SUP_STOP_TREES), 1);
  assert_said("has been without a majority of the nodes for 60 s (--orphan-grace)");
}

/* What runs no more is none: that waits for --join-timeout. */
BENCH_TEST(test_only_workers_are_orphans) {
  orphan(1000);
  bench_all_exited(EXITED(0));
  bench_clear();
  bench_down(false);
  stay_away(30000, true);
  assert_not_said("--orphan-grace");
  assert_int_equal(bench.exits, 0);
}
