/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: where the round's store is told, when it is served, and when it ends. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include <string.h>
#include "tests/rig/unit.h"

static void open_as_head(void) {
  bench_open();
  bench.node_rank = 0;
  bench_running();
  assert_true(bench.serving);
}

static void stop_all(void) {
  bench_stop(1, NULL);
  bench_all_exited(SIGNALED(SIGTERM));
  bench_clear();
}

/* Telling. --------------------------------------------------------------------------------------------------------- */

BENCH_TEST(test_hello_tells_port_and_addresses) {
  bench.config.addrs = "10.0.0.1 fd00::1";
  bench.s = supervisor_create(&bench.config);
  bench_store(41000);
  assert_int_equal(bench.n_fx, 0); /* nobody to tell yet */
  bench_event(&(struct supervisor_event){.kind = SUP_BEGIN});
  bench_up();
  assert_int_equal(bench_hello()->store_port, 41000);
  assert_string_equal(bench_hello()->addrs, "10.0.0.1 fd00::1");
}

BENCH_TEST(test_reports_tell_the_port_of_the_next_round) {
  bench.node_rank = 0;
  bench.s = supervisor_create(&bench.config);
  bench_store(41000);
  bench_event(&(struct supervisor_event){.kind = SUP_BEGIN});
  bench_up();
  bench_welcome(false);
  bench_start(1);
  bench_store(42000); /* the first one serves this round */
  assert_int_equal(bench_count_sent(MSG_HELLO), 1);
  bench_all_spawned();
  assert_int_equal(bench_sent(MSG_REPORT)->report_msg.store_port, 42000);
  bench_store(43000);
  stop_all();
  assert_int_equal(bench_sent(MSG_REPORT)->report_msg.store_port, 43000);
  bench_settled(1, true, 1, NULL);
  assert_int_equal(bench_count_sent(MSG_HELLO), 1);
}

RUNNING_TEST(test_after_a_lost_connection_hello_tells_the_latest) {
  bench_down(false);
  bench_store(42000);
  bench_run(0);
  bench_forget();
  bench_up();
  assert_int_equal(bench_hello()->store_port, 42000);
}

/* A port that changes between rounds is told at once, and once. */
JOINED_TEST(test_a_change_between_rounds_is_told_by_hello) {
  bench_forget();
  bench_store(42000);
  assert_int_equal(bench_count_sent(MSG_HELLO), 1);
  assert_int_equal(bench_hello()->store_port, 42000);
  bench_store(42000);
  assert_int_equal(bench_count_sent(MSG_HELLO), 1);
}

/* It changed after the last report of the round: SETTLED makes it known. */
RUNNING_TEST(test_a_change_after_the_last_report_is_told_behind_settled) {
  stop_all();
  bench_store(42000);
  bench_forget();
  bench_settled(1, true, 1, NULL);
  assert_int_equal(bench_count_sent(MSG_HELLO), 1);
  assert_int_equal(bench_hello()->store_port, 42000);
}

/* Serving. --------------------------------------------------------------------------------------------------------- */

BENCH_TEST(test_node_0_is_told_port_and_guests) {
  open_as_head();
  const struct supervisor_effect *e = bench_effect(SUP_SPAWN);
  assert_int_equal(e->spawn.start->store_port, 29500);
  assert_int_equal(e->bytes->len, strlen("10.0.0.9\n10.0.0.1\n"));
  assert_memory_equal(e->bytes->data, "10.0.0.9\n10.0.0.1\n", e->bytes->len);
}

RUNNING_TEST(test_another_node_serves_nothing) {
  assert_int_equal(bench_effect(SUP_SPAWN)->spawn.start->store_port, 29500);
  assert_null(bench_effect(SUP_SPAWN)->bytes);
  stop_all();
  bench_settled(1, true, 1, NULL);
  bench_start(2);
  bench_end(1, NULL);
  bench_clear();
  assert_int_equal(bench.exits, 1);
  assert_int_equal(bench_count(SUP_CLOSE_STORE), 0);
}

/* Workers of other nodes use it until they are stopped too, however the round ended on this node. */
BENCH_TEST(test_it_is_kept_until_the_round_is_settled) {
  static const enum supervisor_state ends[] = {SUPERVISOR_STOPPED, SUPERVISOR_FINISHED, SUPERVISOR_STOPPED};
  for (int way = 0; way < 3; way++) {
    open_as_head();
    if (way == 0) bench_stop(1, NULL);
    bench_all_exited(way == 0 ? SIGNALED(SIGTERM) : way == 1 ? EXITED(0) : EXITED(3));
    bench_clear();
    assert_state(ends[way]);
    assert_int_equal(bench_count(SUP_CLOSE_STORE), 0);
    bench_settled(1, way != 1, way != 1, NULL);
    assert_int_equal(bench_count(SUP_CLOSE_STORE), 1);
    assert_int_equal(bench_effect(SUP_CLOSE_STORE)->round, 1);
    assert_false(bench.serving);
    bench_start(2); /* and one more for the next: the bench fails at two at a time */
    assert_true(bench.serving);
  }
}

/* The next round may begin with that report, and on the same port. */
BENCH_TEST(test_nobody_new_may_come_before_stopped_is_reported) {
  open_as_head();
  bench_stop(1, NULL);
  bench_all_exited(SIGNALED(SIGTERM));
  assert_int_equal(bench_count(SUP_SHUT_STORE), 0);
  bench_forget();
  bench_clear();
  assert_int_equal(bench_count(SUP_SHUT_STORE), 1);
  size_t shut = 0, stopped = 0;
  for (size_t i = 0; i < bench.n_fx; i++) {
    if (bench.fx[i].kind == SUP_SHUT_STORE) shut = i;
    if (bench.sent[i].type == MSG_REPORT) stopped = i;
  }
  assert_true(shut < stopped);
}

/* Node 1's workers are not done: it lives until END. */
BENCH_TEST(test_a_finished_node_serves_until_the_end) {
  open_as_head();
  bench.answering = true;
  bench_all_exited(EXITED(0));
  bench_clear();
  assert_state(SUPERVISOR_FINISHED);
  assert_int_equal(bench_count(SUP_SHUT_STORE), 0);
  bench_run(50000);
  bench_down(false); /* nor does a lost daemon end it, */
  bench_run(0);
  bench_up();
  bench_welcome(false);
  bench_stop(1, NULL); /* nor a stop of the others */
  assert_int_equal(bench_count(SUP_CLOSE_STORE), 0);
  bench_end(0, NULL);
  assert_int_equal(bench_count(SUP_CLOSE_STORE), 1);
  assert_int_equal(bench.exits, 1);
}

BENCH_TEST(test_stale_closes_it_before_joining_anew) {
  open_as_head();
  bench_forget();
  bench_stale();
  assert_true(bench.serving); /* its own workers are being killed */
  bench_clear();
  assert_false(bench.serving);
  size_t close = 0, hello = 0;
  for (size_t i = 0; i < bench.n_fx; i++) {
    if (bench.fx[i].kind == SUP_CLOSE_STORE) close = i;
    if (bench.sent[i].type == MSG_HELLO) hello = i;
  }
  assert_true(close < hello);
}

BENCH_TEST(test_stale_after_finishing) {
  open_as_head();
  bench_all_exited(EXITED(0));
  bench_clear();
  bench_stale();
  assert_false(bench.serving);
}

/* It has killed its own; whether the round is over for the others only the daemon knows. */
BENCH_TEST(test_fencing_keeps_it_until_the_daemon_has_spoken) {
  open_as_head();
  bench_welcome(true);
  bench_run(4500);
  assert_said("killing the workers");
  bench_all_exited(SIGNALED(SIGKILL));
  bench_clear();
  assert_state(SUPERVISOR_STOPPED);
  assert_true(bench.serving);
  bench_stale();
  assert_false(bench.serving);
}

/* The end. --------------------------------------------------------------------------------------------------------- */

BENCH_TEST(test_whoever_leaves_takes_it_along) {
  for (int way = 0; way < 6; way++) {
    open_as_head();
    switch (way) {
    case 0: bench_end(1, NULL); break;
    case 1: bench_signal(SIGTERM); break;
    case 2: bench_event(&(struct supervisor_event){.kind = SUP_GUARD_GONE}); break;
    case 3: {
      struct msg m;
      msg_init(&m, MSG_REFUSED);
      m.refused.code = 72;
      m.refused.text = "no";
      bench_msg(&m);
      break;
    }
    case 4: /* what does not die does not keep it */
      bench_end(1, NULL);
      bench_run(60000);
      break;
    default: /* no daemon comes back */
      bench_all_exited(EXITED(0));
      bench_clear();
      bench_down(false);
      for (int i = 0; i < 100 && !bench.exits; i++) {
        bench_run(1000);
        bench_down(true);
      }
    }
    if (!bench.exits) bench_clear();
    assert_int_equal(bench.exits, 1); /* the bench: closed before that */
    assert_int_equal(bench_count(SUP_CLOSE_STORE), 1);
  }
}

BENCH_TEST(test_a_start_without_a_port_fails_the_workers) {
  for (int64_t rank = 0; rank < 2; rank++) {
    bench_open();
    bench.node_rank = rank;
    bench.store_port = 0;
    bench_joined();
    bench_start(1);
    assert_int_equal(bench_count(SUP_SPAWN), 0);
    assert_int_equal(bench_count(SUP_STOP_TREES), 1);
    const struct report *r = bench_report(REPORT_FAILED);
    assert_non_null(r);
    assert_int_equal(r->what.cause, CAUSE_WORKER_EXEC);
    assert_int_equal(r->what.code, 71);
    assert_false(r->what.lasting);
    assert_non_null(strstr(r->what.text, "node 0 (n9, 10.0.0.9) has no port for the round's store"));
    bench_clear();
    assert_state(SUPERVISOR_STOPPED);
    assert_int_equal(bench_count(SUP_CLOSE_STORE), 0);
  }
}
