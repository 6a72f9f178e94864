/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: heartbeats that name the last answer, and the age of an answer: by when the workers must be dead. */

#include <string.h>
#include "tests/rig/supervisor.h"
#include "tests/rig/unit.h"

#define DAEMON_1 "d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1"
#define DAEMON_2 "d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2"

static struct successor successors[] = {{.agent = "a2", .host = "gpu2", .addr = "10.0.0.2", .port = 4002}};

/* Heartbeats. ------------------------------------------------------------------------------------------------------ */

static int64_t number(void) {
  const struct msg *m = bench_sent(MSG_HEARTBEAT);
  assert_non_null(m);
  return m->flags >> FRAME_NUMBER_SHIFT;
}

static void answer(uint32_t id, uint16_t flags, int64_t parts) {
  struct msg m;
  msg_init(&m, MSG_HEARTBEAT_ACK);
  m.id = id;
  m.flags = (uint16_t)(flags | parts << FRAME_NUMBER_SHIFT);
  bench_msg(&m);
}

JOINED_TEST(test_a_heartbeat_names_the_last_answer) {
  assert_int_equal(bench_sent(MSG_HEARTBEAT)->id, 1);
  assert_int_equal(number(), 0); /* none was read yet */
  answer(1, 0, 0);
  bench_run(625);
  assert_int_equal(number(), 1); /* the one before */
  bench_run(625);
  assert_int_equal(number(), 2); /* that answer was lost */
  answer(3, 0, 0);
  answer(2, 0, 0); /* late: it does not count back */
  answer(0, 0, 0); /* to none */
  bench_run(625);
  assert_int_equal(number(), 1);
}

JOINED_TEST(test_an_answer_that_is_too_old_is_none) {
  answer(1, 0, 0);
  for (int i = 1; i <= 600; i++) {
    bench_event(&(struct supervisor_event){.kind = SUP_SUSPEND, .on = i % 2});
    assert_int_equal(bench_sent(MSG_HEARTBEAT)->id, i + 1);
    assert_int_equal(number(), i <= 255 ? i : 0);
    assert_int_equal(!(bench_sent(MSG_HEARTBEAT)->flags & FRAME_FLAG_SUSPENDED), i % 2 == 0);
  }
}

/* Another daemon may be at its other end, which has answered nothing yet. */
JOINED_TEST(test_a_new_connection_begins_without_an_answer) {
  answer(1, 0, 0);
  bench_reconnected();
  answer(1, 0, 0); /* of the old connection, perhaps */
  bench_welcome(false);
  assert_int_equal(bench_sent(MSG_HEARTBEAT)->id, 2);
  assert_int_equal(number(), 0);
}

/* Ages. ------------------------------------------------------------------------------------------------------------ */

static uint64_t deadline(void) {
  const struct supervisor_effect *e = bench_effect(SUP_FENCE_AT);
  assert_non_null(e);
  return e->fence_at.at_ms;
}

/* Round 1 runs with FENCE, and gpu2 may take over. Its lease is 5 s. All answers have that age. */
static void open_fenced(int64_t age_ms) {
  bench_open();
  bench.age_ms = age_ms;
  bench.daemon = DAEMON_1;
  bench.successors = successors;
  bench.n_successors = 1;
  bench.fencing = true;
  bench_joined();
  bench_start(1);
  bench_all_spawned();
  bench.fencing = false;
}

BENCH_TEST(test_the_age_of_an_answer) {
  static const struct {
    int64_t parts; /* of 200 */
    uint64_t left_ms;
  } ages[] = {{0, 4000}, {10, 4000}, {11, 3975}, {40, 3250}, {100, 1750}, {160, 250}, {169, 25}};
  for (size_t i = 0; i < sizeof ages / sizeof ages[0]; i++) {
    open_fenced(2500);
    bench_run(1250);
    uint64_t sent = bench.now_ms;
    uint32_t id = bench_sent(MSG_HEARTBEAT)->id;
    uint64_t before = deadline();
    bench.now_ms += 10;
    answer(id, FRAME_FLAG_FENCE, ages[i].parts);
    uint64_t want = sent + ages[i].left_ms;
    assert_int_equal(deadline(), want > before ? want : before);
  }
}

BENCH_TEST(test_no_lease_is_too_small_for_its_parts) {
  bench.config.settings.lease_ms = 1001;
  bench.fencing = true;
  bench.age_ms = 500;
  bench.successors = successors;
  bench.n_successors = 1;
  bench_joined();
  uint64_t sent = bench.now_ms;
  bench_start(1);
  assert_int_equal(deadline(), sent + 850 - 500); /* 100 parts are 501 ms: WELCOME says it better */
}

/* A daemon that has lost its majority says so, and its answers move nothing. */
BENCH_TEST(test_an_age_of_a_lease_extends_nothing) {
  open_fenced(0);
  uint64_t before = deadline();
  bench.fencing = true;
  bench.age_ms = 5000;
  bench_run(3900);
  assert_int_equal(deadline(), before);
  assert_state(SUPERVISOR_RUNNING);
  bench_run(100);
  assert_state(SUPERVISOR_STOPPING);
  assert_said("over: too few of its nodes follow the daemon on node1, and the others");
}

/* Wherever it is: its WELCOME counts for nothing, and one with a majority counts at once. */
BENCH_TEST(test_the_welcome_of_another_daemon) {
  for (int in_charge = 0; in_charge < 2; in_charge++) {
    open_fenced(0);
    uint64_t before = deadline();
    bench_run(2500);
    assert_said("asking gpu2");
    bench_down(true);
    bench_run(0);
    bench.daemon = DAEMON_2;
    bench.age_ms = in_charge ? 1000 : 5000;
    uint64_t greeted = bench.now_ms;
    bench_up();
    struct msg m;
    msg_init(&m, MSG_WELCOME);
    m.welcome = (struct welcome){.incarnation = bench.incarnation,
                                 .round = 1,
                                 .state = JOB_RECOVERING,
                                 .peer_addr = "",
                                 .fence = true,
                                 .daemon = DAEMON_2,
                                 .age_ms = bench.age_ms};
    bench_msg(&m);
    assert_int_equal(deadline(), in_charge ? greeted + 3250 : before);
  }
}

/* START was sent behind the answer to the last heartbeat, whenever it is read. */
BENCH_TEST(test_the_age_of_start) {
  for (int late = 0; late < 2; late++) {
    bench_open();
    bench.daemon = DAEMON_1;
    bench.successors = successors;
    bench.n_successors = 1;
    bench.age_ms = 5000;
    bench_joined();
    answer(1, 0, 200);
    uint64_t sent = bench.now_ms;
    bench_run(600 + (late ? 1150 : 1149));
    bench.fenced = true;
    bench.age_ms = 2500;
    bench_start(1);
    assert_int_equal(bench_count(SUP_SPAWN), !late);
    if (late)
      assert_int_equal(bench_count(SUP_DISCONNECT), 1);
    else
      assert_int_equal(deadline(), sent + 1750);
  }
}

/* The others may follow another daemon by now, which this node cannot reach. */
BENCH_TEST(test_refused_is_no_answer_where_others_may_take_over) {
  for (int how = 0; how < 3; how++) {
    bench_open();
    bench.successors = successors;
    bench.n_successors = how == 0;
    if (how == 1) bench.config.settings.daemons = 2;
    if (how == 2) bench.config.settings.claims = true;
    bench.fencing = true;
    bench_running();
    bench.fencing = false;
    uint64_t end = deadline();
    while (bench.now_ms < end) {
      bench_down(true);
      assert_state(SUPERVISOR_RUNNING);
      bench_run(1000);
    }
    assert_state(SUPERVISOR_STOPPING);
  }
}

/* Three of a job that needs two: the other two are enough, whatever a daemon sees of them. */
BENCH_TEST(test_fence_never_ends_where_the_others_are_enough) {
  bench.config.settings.max_nodes = 4;
  bench.nodes = 3;
  bench.successors = successors;
  bench.n_successors = 1;
  bench.answering = true;
  bench_running();
  bench_run(20000);
  assert_int_equal(deadline(), bench.now_ms + 4000);
}
