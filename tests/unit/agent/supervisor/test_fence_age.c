/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: heartbeats that name the last answer, and the age of an answer: by when the workers must be dead. */

#include <string.h>
#include "tests/rig/supervisor.h"
#include "tests/rig/unit.h"

#define DAEMON_1 "d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1"
#define DAEMON_2 "d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2"

static struct successor successors[] = {{.agent = "a2", .host = "gpu2", .addr = "10.0.0.2", .port = 4002}};

/* Heartbeats. ------------------------------------------------------------------------------------------------------ */

static int64_t number(const struct bench *b) {
  const struct msg *m = bench_sent(b, MSG_HEARTBEAT);
  assert_non_null(m);
  return m->flags >> FRAME_NUMBER_SHIFT;
}

static void answer(struct bench *b, uint32_t id, uint16_t flags, int64_t parts) {
  struct msg m;
  msg_init(&m, MSG_HEARTBEAT_ACK);
  m.id = id;
  m.flags = (uint16_t)(flags | parts << FRAME_NUMBER_SHIFT);
  bench_msg(b, &m);
}

static void test_a_heartbeat_names_the_last_answer(void **state) {
  struct bench b;
  bench_open_joined(&b);
  assert_int_equal(bench_sent(&b, MSG_HEARTBEAT)->id, 1);
  assert_int_equal(number(&b), 0); /* none was read yet */
  answer(&b, 1, 0, 0);
  bench_run(&b, 625);
  assert_int_equal(number(&b), 1); /* the one before */
  bench_run(&b, 625);
  assert_int_equal(number(&b), 2); /* that answer was lost */
  answer(&b, 3, 0, 0);
  answer(&b, 2, 0, 0); /* late: it does not count back */
  answer(&b, 0, 0, 0); /* to none */
  bench_run(&b, 625);
  assert_int_equal(number(&b), 1);
  bench_close(&b);
}

static void test_an_answer_that_is_too_old_is_none(void **state) {
  struct bench b;
  bench_open_joined(&b);
  answer(&b, 1, 0, 0);
  for (int i = 1; i <= 600; i++) {
    bench_event(&b, &(struct supervisor_event){.kind = SUP_SUSPEND, .suspend = {.on = i % 2}});
    assert_int_equal(bench_sent(&b, MSG_HEARTBEAT)->id, i + 1);
    assert_int_equal(number(&b), i <= 255 ? i : 0);
    assert_int_equal(!(bench_sent(&b, MSG_HEARTBEAT)->flags & FRAME_FLAG_SUSPENDED), i % 2 == 0);
  }
  bench_close(&b);
}

/* Another daemon may be at its other end, which has answered nothing yet. */
static void test_a_new_connection_begins_without_an_answer(void **state) {
  struct bench b;
  bench_open_joined(&b);
  answer(&b, 1, 0, 0);
  bench_reconnected(&b);
  answer(&b, 1, 0, 0); /* of the old connection, perhaps */
  bench_welcome(&b, false);
  assert_int_equal(bench_sent(&b, MSG_HEARTBEAT)->id, 2);
  assert_int_equal(number(&b), 0);
  bench_close(&b);
}

/* Ages. ------------------------------------------------------------------------------------------------------------ */

static uint64_t deadline(const struct bench *b) {
  const struct supervisor_effect *e = bench_effect(b, SUP_FENCE_AT);
  assert_non_null(e);
  return e->fence_at.at_ms;
}

/* Round 1 runs with FENCE, and gpu2 may take over. Its lease is 5 s. All answers have that age. */
static void open_fenced(struct bench *b, int64_t age_ms) {
  bench_open(b);
  b->age_ms = age_ms;
  b->daemon = DAEMON_1;
  b->successors = successors;
  b->n_successors = 1;
  b->fencing = true;
  bench_joined(b);
  bench_start(b, 1);
  bench_all_spawned(b);
  b->fencing = false;
}

static void test_the_age_of_an_answer(void **state) {
  static const struct {
    int64_t parts; /* of 200 */
    uint64_t left_ms;
  } ages[] = {{0, 4000}, {10, 4000}, {11, 3975}, {40, 3250}, {100, 1750}, {160, 250}, {169, 25}};
  for (size_t i = 0; i < sizeof ages / sizeof ages[0]; i++) {
    struct bench b;
    open_fenced(&b, 2500);
    bench_run(&b, 1250);
    uint64_t sent = b.now_ms;
    uint32_t id = bench_sent(&b, MSG_HEARTBEAT)->id;
    uint64_t before = deadline(&b);
    b.now_ms += 10;
    answer(&b, id, FRAME_FLAG_FENCE, ages[i].parts);
    uint64_t want = sent + ages[i].left_ms;
    assert_int_equal(deadline(&b), want > before ? want : before);
    bench_close(&b);
  }
}

static void test_no_lease_is_too_small_for_its_parts(void **state) {
  struct bench b;
  bench_open(&b);
  b.config.settings.lease_ms = 1001;
  b.fencing = true;
  b.age_ms = 500;
  b.successors = successors;
  b.n_successors = 1;
  bench_joined(&b);
  uint64_t sent = b.now_ms;
  bench_start(&b, 1);
  assert_int_equal(deadline(&b), sent + 850 - 500); /* 100 parts are 501 ms: WELCOME says it better */
  bench_close(&b);
}

/* A daemon that has lost its majority says so, and its answers move nothing. */
static void test_an_age_of_a_lease_extends_nothing(void **state) {
  struct bench b;
  open_fenced(&b, 0);
  uint64_t before = deadline(&b);
  b.fencing = true;
  b.age_ms = 5000;
  bench_run(&b, 3900);
  assert_int_equal(deadline(&b), before);
  assert_state(&b, SUPERVISOR_RUNNING);
  bench_run(&b, 100);
  assert_state(&b, SUPERVISOR_STOPPING);
  assert_int_equal(bench_said(&b, "over: too few of its nodes follow the daemon on node1, and the others"), 1);
  bench_close(&b);
}

/* Wherever it is: its WELCOME counts for nothing, and one with a majority counts at once. */
static void test_the_welcome_of_another_daemon(void **state) {
  for (int in_charge = 0; in_charge < 2; in_charge++) {
    struct bench b;
    open_fenced(&b, 0);
    uint64_t before = deadline(&b);
    bench_run(&b, 2500);
    assert_int_equal(bench_said(&b, "asking gpu2"), 1);
    bench_down(&b, true);
    bench_run(&b, 0);
    b.daemon = DAEMON_2;
    b.age_ms = in_charge ? 1000 : 5000;
    uint64_t greeted = b.now_ms;
    bench_up(&b);
    struct msg m;
    msg_init(&m, MSG_WELCOME);
    m.welcome = (struct welcome){.version = PROTO_VERSION,
                                 .incarnation = b.incarnation,
                                 .round = 1,
                                 .state = JOB_RECOVERING,
                                 .peer_addr = "",
                                 .fence = true,
                                 .daemon = DAEMON_2,
                                 .age_ms = b.age_ms};
    bench_msg(&b, &m);
    assert_int_equal(deadline(&b), in_charge ? greeted + 3250 : before);
    bench_close(&b);
  }
}

/* START was sent behind the answer to the last heartbeat, whenever it is read. */
static void test_the_age_of_start(void **state) {
  for (int late = 0; late < 2; late++) {
    struct bench b;
    bench_open(&b);
    b.daemon = DAEMON_1;
    b.successors = successors;
    b.n_successors = 1;
    b.age_ms = 5000;
    bench_joined(&b);
    answer(&b, 1, 0, 200);
    uint64_t sent = b.now_ms;
    bench_run(&b, 600 + (late ? 1150 : 1149));
    b.fenced = true;
    b.age_ms = 2500;
    bench_start(&b, 1);
    assert_int_equal(bench_count(&b, SUP_SPAWN), !late);
    if (late)
      assert_int_equal(bench_count(&b, SUP_DISCONNECT), 1);
    else
      assert_int_equal(deadline(&b), sent + 1750);
    bench_close(&b);
  }
}

/* The others may follow another daemon by now, which this node cannot reach. */
static void test_refused_is_no_answer_where_others_may_take_over(void **state) {
  for (int how = 0; how < 3; how++) {
    struct bench b;
    bench_open(&b);
    b.successors = successors;
    b.n_successors = how == 0;
    if (how == 1) b.config.settings.daemons = 2;
    if (how == 2) b.config.settings.claims = true;
    b.fencing = true;
    bench_running(&b);
    b.fencing = false;
    uint64_t end = deadline(&b);
    while (b.now_ms < end) {
      bench_down(&b, true);
      assert_state(&b, SUPERVISOR_RUNNING);
      bench_run(&b, 1000);
    }
    assert_state(&b, SUPERVISOR_STOPPING);
    bench_close(&b);
  }
}

/* Three of a job that needs two: the other two are enough, whatever a daemon sees of them. */
static void test_fence_never_ends_where_the_others_are_enough(void **state) {
  struct bench b;
  bench_open(&b);
  b.config.settings.max_nodes = 4;
  b.nodes = 3;
  b.successors = successors;
  b.n_successors = 1;
  b.answering = true;
  bench_running(&b);
  bench_run(&b, 20000);
  assert_int_equal(deadline(&b), b.now_ms + 4000);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_heartbeat_names_the_last_answer),
      cmocka_unit_test(test_an_answer_that_is_too_old_is_none),
      cmocka_unit_test(test_a_new_connection_begins_without_an_answer),
      cmocka_unit_test(test_the_age_of_an_answer),
      cmocka_unit_test(test_no_lease_is_too_small_for_its_parts),
      cmocka_unit_test(test_an_age_of_a_lease_extends_nothing),
      cmocka_unit_test(test_the_welcome_of_another_daemon),
      cmocka_unit_test(test_the_age_of_start),
      cmocka_unit_test(test_refused_is_no_answer_where_others_may_take_over),
      cmocka_unit_test(test_fence_never_ends_where_the_others_are_enough),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
