/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: where the round's store is told, when it is served, and when it ends. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include <string.h>
#include "tests/rig/unit.h"

static void open_as_head(struct bench *b) {
  bench_open(b);
  b->node_rank = 0;
  bench_running(b);
  assert_true(b->serving);
}

static void stop_all(struct bench *b) {
  bench_stop(b, 1, NULL);
  bench_all_exited(b, SIGNALED(SIGTERM));
  bench_clear(b);
}

/* Telling. --------------------------------------------------------------------------------------------------------- */

static void test_hello_tells_port_and_addresses(void **state) {
  struct bench b;
  bench_open(&b);
  b.config.addrs = "10.0.0.1 fd00::1";
  b.s = supervisor_create(&b.config);
  bench_store(&b, 41000);
  assert_int_equal(b.n_fx, 0); /* nobody to tell yet */
  bench_event(&b, &(struct supervisor_event){.kind = SUP_BEGIN});
  bench_up(&b);
  assert_int_equal(bench_hello(&b)->store_port, 41000);
  assert_string_equal(bench_hello(&b)->addrs, "10.0.0.1 fd00::1");
  bench_close(&b);
}

static void test_reports_tell_the_port_of_the_next_round(void **state) {
  struct bench b;
  bench_open(&b);
  b.node_rank = 0;
  b.s = supervisor_create(&b.config);
  bench_store(&b, 41000);
  bench_event(&b, &(struct supervisor_event){.kind = SUP_BEGIN});
  bench_up(&b);
  bench_welcome(&b, false);
  bench_start(&b, 1);
  bench_store(&b, 42000); /* the first one serves this round */
  assert_int_equal(bench_count_sent(&b, MSG_HELLO), 1);
  bench_all_spawned(&b);
  assert_int_equal(bench_sent(&b, MSG_REPORT)->report_msg.store_port, 42000);
  bench_store(&b, 43000);
  stop_all(&b);
  assert_int_equal(bench_sent(&b, MSG_REPORT)->report_msg.store_port, 43000);
  bench_settled(&b, 1, true, 1, NULL);
  assert_int_equal(bench_count_sent(&b, MSG_HELLO), 1);
  bench_close(&b);
}

static void test_after_a_lost_connection_hello_tells_the_latest(void **state) {
  struct bench b;
  bench_open_running(&b);
  bench_down(&b, false);
  bench_store(&b, 42000);
  bench_run(&b, 0);
  bench_forget(&b);
  bench_up(&b);
  assert_int_equal(bench_hello(&b)->store_port, 42000);
  bench_close(&b);
}

/* A port that changes between rounds is told at once, and once. */
static void test_a_change_between_rounds_is_told_by_hello(void **state) {
  struct bench b;
  bench_open_joined(&b);
  bench_forget(&b);
  bench_store(&b, 42000);
  assert_int_equal(bench_count_sent(&b, MSG_HELLO), 1);
  assert_int_equal(bench_hello(&b)->store_port, 42000);
  bench_store(&b, 42000);
  assert_int_equal(bench_count_sent(&b, MSG_HELLO), 1);
  bench_close(&b);
}

/* It changed after the last report of the round: SETTLED makes it known. */
static void test_a_change_after_the_last_report_is_told_behind_settled(void **state) {
  struct bench b;
  bench_open_running(&b);
  stop_all(&b);
  bench_store(&b, 42000);
  bench_forget(&b);
  bench_settled(&b, 1, true, 1, NULL);
  assert_int_equal(bench_count_sent(&b, MSG_HELLO), 1);
  assert_int_equal(bench_hello(&b)->store_port, 42000);
  bench_close(&b);
}

/* Serving. --------------------------------------------------------------------------------------------------------- */

static void test_node_0_is_told_port_and_guests(void **state) {
  struct bench b;
  open_as_head(&b);
  const struct supervisor_effect *e = bench_effect(&b, SUP_SPAWN);
  assert_int_equal(e->spawn.start->store_port, 29500);
  assert_int_equal(e->spawn.guests->len, strlen("10.0.0.9\n10.0.0.1\n"));
  assert_memory_equal(e->spawn.guests->data, "10.0.0.9\n10.0.0.1\n", e->spawn.guests->len);
  bench_close(&b);
}

static void test_another_node_serves_nothing(void **state) {
  struct bench b;
  bench_open_running(&b);
  assert_int_equal(bench_effect(&b, SUP_SPAWN)->spawn.start->store_port, 29500);
  assert_null(bench_effect(&b, SUP_SPAWN)->spawn.guests);
  stop_all(&b);
  bench_settled(&b, 1, true, 1, NULL);
  bench_start(&b, 2);
  bench_end(&b, 1, NULL);
  bench_clear(&b);
  assert_int_equal(b.exits, 1);
  assert_int_equal(bench_count(&b, SUP_CLOSE_STORE), 0);
  bench_close(&b);
}

/* Workers of other nodes use it until they are stopped too, however the round ended on this node. */
static void test_it_is_kept_until_the_round_is_settled(void **state) {
  static const enum supervisor_state ends[] = {SUPERVISOR_STOPPED, SUPERVISOR_FINISHED, SUPERVISOR_STOPPED};
  for (int way = 0; way < 3; way++) {
    struct bench b;
    open_as_head(&b);
    if (way == 0) bench_stop(&b, 1, NULL);
    bench_all_exited(&b, way == 0 ? SIGNALED(SIGTERM) : way == 1 ? EXITED(0) : EXITED(3));
    bench_clear(&b);
    assert_state(&b, ends[way]);
    assert_int_equal(bench_count(&b, SUP_CLOSE_STORE), 0);
    bench_settled(&b, 1, way != 1, way != 1, NULL);
    assert_int_equal(bench_count(&b, SUP_CLOSE_STORE), 1);
    assert_int_equal(bench_effect(&b, SUP_CLOSE_STORE)->round, 1);
    assert_false(b.serving);
    bench_start(&b, 2); /* and one more for the next: the bench fails at two at a time */
    assert_true(b.serving);
    bench_close(&b);
  }
}

/* The next round may begin with that report, and on the same port. */
static void test_nobody_new_may_come_before_stopped_is_reported(void **state) {
  struct bench b;
  open_as_head(&b);
  bench_stop(&b, 1, NULL);
  bench_all_exited(&b, SIGNALED(SIGTERM));
  assert_int_equal(bench_count(&b, SUP_SHUT_STORE), 0);
  bench_forget(&b);
  bench_clear(&b);
  assert_int_equal(bench_count(&b, SUP_SHUT_STORE), 1);
  size_t shut = 0, stopped = 0;
  for (size_t i = 0; i < b.n_fx; i++) {
    if (b.fx[i].kind == SUP_SHUT_STORE) shut = i;
    if (b.sent[i].type == MSG_REPORT) stopped = i;
  }
  assert_true(shut < stopped);
  bench_close(&b);
}

/* Node 1's workers are not done: it lives until END. */
static void test_a_finished_node_serves_until_the_end(void **state) {
  struct bench b;
  open_as_head(&b);
  b.answering = true;
  bench_all_exited(&b, EXITED(0));
  bench_clear(&b);
  assert_state(&b, SUPERVISOR_FINISHED);
  assert_int_equal(bench_count(&b, SUP_SHUT_STORE), 0);
  bench_run(&b, 50000);
  bench_down(&b, false); /* nor does a lost daemon end it, */
  bench_run(&b, 0);
  bench_up(&b);
  bench_welcome(&b, false);
  bench_stop(&b, 1, NULL); /* nor a stop of the others */
  assert_int_equal(bench_count(&b, SUP_CLOSE_STORE), 0);
  bench_end(&b, 0, NULL);
  assert_int_equal(bench_count(&b, SUP_CLOSE_STORE), 1);
  assert_int_equal(b.exits, 1);
  bench_close(&b);
}

static void test_stale_closes_it_before_joining_anew(void **state) {
  struct bench b;
  open_as_head(&b);
  bench_forget(&b);
  bench_stale(&b);
  assert_true(b.serving); /* its own workers are being killed */
  bench_clear(&b);
  assert_false(b.serving);
  size_t close = 0, hello = 0;
  for (size_t i = 0; i < b.n_fx; i++) {
    if (b.fx[i].kind == SUP_CLOSE_STORE) close = i;
    if (b.sent[i].type == MSG_HELLO) hello = i;
  }
  assert_true(close < hello);
  bench_close(&b);
}

static void test_stale_after_finishing(void **state) {
  struct bench b;
  open_as_head(&b);
  bench_all_exited(&b, EXITED(0));
  bench_clear(&b);
  bench_stale(&b);
  assert_false(b.serving);
  bench_close(&b);
}

/* It has killed its own; whether the round is over for the others only the daemon knows. */
static void test_fencing_keeps_it_until_the_daemon_has_spoken(void **state) {
  struct bench b;
  open_as_head(&b);
  bench_welcome(&b, true);
  bench_run(&b, 4500);
  assert_int_equal(bench_said(&b, "killing the workers"), 1);
  bench_all_exited(&b, SIGNALED(SIGKILL));
  bench_clear(&b);
  assert_state(&b, SUPERVISOR_STOPPED);
  assert_true(b.serving);
  bench_stale(&b);
  assert_false(b.serving);
  bench_close(&b);
}

/* The end. --------------------------------------------------------------------------------------------------------- */

static void test_whoever_leaves_takes_it_along(void **state) {
  for (int way = 0; way < 6; way++) {
    struct bench b;
    open_as_head(&b);
    switch (way) {
    case 0: bench_end(&b, 1, NULL); break;
    case 1: bench_signal(&b, SIGTERM); break;
    case 2: bench_event(&b, &(struct supervisor_event){.kind = SUP_GUARD_GONE}); break;
    case 3: {
      struct msg m;
      msg_init(&m, MSG_REFUSED);
      m.refused.code = 72;
      m.refused.text = "no";
      bench_msg(&b, &m);
      break;
    }
    case 4: /* what does not die does not keep it */
      bench_end(&b, 1, NULL);
      bench_run(&b, 60000);
      break;
    default: /* no daemon comes back */
      bench_all_exited(&b, EXITED(0));
      bench_clear(&b);
      bench_down(&b, false);
      for (int i = 0; i < 100 && !b.exits; i++) {
        bench_run(&b, 1000);
        bench_down(&b, true);
      }
    }
    if (!b.exits) bench_clear(&b);
    assert_int_equal(b.exits, 1); /* the bench: closed before that */
    assert_int_equal(bench_count(&b, SUP_CLOSE_STORE), 1);
    bench_close(&b);
  }
}

static void test_a_start_without_a_port_fails_the_workers(void **state) {
  for (int64_t rank = 0; rank < 2; rank++) {
    struct bench b;
    bench_open(&b);
    b.node_rank = rank;
    b.store_port = 0;
    bench_joined(&b);
    bench_start(&b, 1);
    assert_int_equal(bench_count(&b, SUP_SPAWN), 0);
    assert_int_equal(bench_count(&b, SUP_STOP_TREES), 1);
    const struct report *r = bench_report(&b, REPORT_FAILED);
    assert_non_null(r);
    assert_int_equal(r->what.cause, CAUSE_WORKER_EXEC);
    assert_int_equal(r->what.code, 71);
    assert_false(r->what.lasting);
    assert_non_null(strstr(r->what.text, "node 0 (n9, 10.0.0.9) has no port for the round's store"));
    bench_clear(&b);
    assert_state(&b, SUPERVISOR_STOPPED);
    assert_int_equal(bench_count(&b, SUP_CLOSE_STORE), 0);
    bench_close(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_hello_tells_port_and_addresses),
      cmocka_unit_test(test_reports_tell_the_port_of_the_next_round),
      cmocka_unit_test(test_after_a_lost_connection_hello_tells_the_latest),
      cmocka_unit_test(test_a_change_between_rounds_is_told_by_hello),
      cmocka_unit_test(test_a_change_after_the_last_report_is_told_behind_settled),
      cmocka_unit_test(test_node_0_is_told_port_and_guests),
      cmocka_unit_test(test_another_node_serves_nothing),
      cmocka_unit_test(test_it_is_kept_until_the_round_is_settled),
      cmocka_unit_test(test_nobody_new_may_come_before_stopped_is_reported),
      cmocka_unit_test(test_a_finished_node_serves_until_the_end),
      cmocka_unit_test(test_stale_closes_it_before_joining_anew),
      cmocka_unit_test(test_stale_after_finishing),
      cmocka_unit_test(test_fencing_keeps_it_until_the_daemon_has_spoken),
      cmocka_unit_test(test_whoever_leaves_takes_it_along),
      cmocka_unit_test(test_a_start_without_a_port_fails_the_workers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
