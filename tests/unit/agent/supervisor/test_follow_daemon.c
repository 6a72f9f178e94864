/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: when an agent turns to another daemon, which ones it asks, and what it says about it. */

#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/supervisor.h"
#include "tests/rig/unit.h"

#define DAEMON_1 "d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1"
#define DAEMON_2 "d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2"

static struct successor successors[] = {
    {.agent = "a2", .host = "gpu2", .addr = "10.0.0.2", .port = 4002},
    {.agent = "000000000000000000000000000000a1", .host = "n0", .addr = "10.0.0.1", .port = 4001},
    {.agent = "a3", .host = "gpu3", .addr = "10.0.0.3", .port = 4003},
};

static const char *const endpoints[] = {"gpu1:29400", "gpu7:29400", "[::1]:29400"};

static void reserve(uint32_t port) {
  bench_event(&(struct supervisor_event){.kind = SUP_STANDBY, .port = port});
}

static void name_successors(void) {
  bench_open();
  bench.daemon = DAEMON_1;
  bench.term = 1;
  bench.successors = successors;
  bench.n_successors = 3;
}

/* Round 1 runs, heartbeats are answered, and gpu2, this node and gpu3 may take over. */
static void open_round(bool fence) {
  name_successors();
  bench.answering = !fence;
  bench.fencing = fence;
  bench_joined();
  bench.fenced = fence;
  bench_start(1);
  bench_all_spawned();
  reserve(4001);
  bench_run(1250);
  bench.answering = bench.fencing = false;
  bench_forget();
}

/* The place of the last SUP_CONNECT. */
static void assert_asks(enum connect_to to, uint32_t endpoint, const char *addr, uint32_t port, uint32_t timeout_ms) {
  const struct supervisor_effect *e = bench_effect(SUP_CONNECT);
  assert_non_null(e);
  assert_int_equal(e->connect.to, to);
  assert_int_equal(e->connect.timeout_ms, timeout_ms);
  if (to == CONNECT_ENDPOINT) assert_int_equal(e->connect.endpoint, endpoint);
  if (to != CONNECT_SUCCESSOR) return;
  assert_string_equal(e->text, addr);
  assert_int_equal(e->connect.port, port);
}

static void assert_asks_endpoint(uint32_t endpoint, uint32_t timeout_ms) {
  assert_asks(CONNECT_ENDPOINT, endpoint, NULL, 0, timeout_ms);
}

/* The attempt fails, and the next one comes at once. */
static void fail_and_go_on(void) {
  bench_forget();
  bench_down(true);
  bench_run(0);
  assert_int_equal(bench_count(SUP_CONNECT), 1);
}

static void welcome_by(const char *daemon, int64_t age_ms) {
  bench.daemon = daemon;
  bench.age_ms = age_ms;
  bench_up();
  bench_welcome(false);
}

/* At ms and not before: it lets go and begins to ask. */
static void assert_turns_after(uint64_t ms) {
  bench_run(ms - 1);
  assert_not_said("; asking");
  bench_forget();
  bench_run(1);
  assert_said("; asking");
  assert_int_equal(bench_count(SUP_DISCONNECT), 1);
  assert_int_equal(bench_count(SUP_CONNECT), 1);
}

/* Clocks. ---------------------------------------------------------------------------------------------------------- */

BENCH_TEST(test_with_the_fence_after_three_eighths_of_a_lease) {
  open_round(true);
  assert_turns_after(1875);
  assert_said("the daemon on node1 does not answer for 1.9 s; asking gpu2");
  bench_run(1000);
  assert_said("; asking"); /* once */
}

/* No other round can form: its daemon has four leases to come back. */
BENCH_TEST(test_without_the_fence_after_four_leases) {
  open_round(false);
  assert_turns_after(20000);
  assert_state(SUPERVISOR_RUNNING);
}

BENCH_TEST(test_a_closed_connection_is_silence_too) {
  open_round(true);
  bench_down(true);
  for (uint64_t until = bench.now_ms + 1874; bench.now_ms < until;) {
    size_t asked = bench_count(SUP_CONNECT);
    bench_run(1);
    if (bench_count(SUP_CONNECT) == asked) continue;
    assert_asks_endpoint(0, 0); /* it may come back */
    bench_down(true);
  }
  assert_not_said("; asking");
  bench_run(1);
  assert_said("; asking gpu2");
  assert_asks_endpoint(0, 500);
}

static void send_waiting(size_t n, bool spare, int64_t lacks) {
  struct msg m;
  msg_init(&m, MSG_WAITING);
  m.waiting.here = 1;
  m.waiting.min_nodes = 1;
  m.waiting.max_nodes = 4;
  m.waiting.incarnation = bench.incarnation;
  m.waiting.round = 3;
  m.waiting.spare = spare;
  m.waiting.lacks = lacks;
  m.waiting.text = spare ? "this node waits" : "";
  m.waiting.successors = successors;
  m.waiting.n_successors = n;
  bench_msg(&m);
}

BENCH_TEST(test_in_no_round_after_a_lease) {
  bench.daemon = DAEMON_1;
  bench_joined();
  send_waiting(3, true, 0);
  send_waiting(0, true, 0); /* one that names none teaches nothing */
  bench_forget();
  assert_turns_after(5000);
  assert_said("asking gpu2");
}

BENCH_TEST(test_with_one_place_it_never_turns) {
  for (int fence = 0; fence < 2; fence++) {
    bench_open();
    bench.daemon = DAEMON_1;
    bench.fencing = fence;
    bench_running();
    bench_run(1000);
    bench.fencing = false;
    bench_run(60000);
    assert_not_said("asking");
    assert_asks_endpoint(0, 0);
  }
}

/* Messages wait unread while an agent is stopped: the silence was its own. */
BENCH_TEST(test_its_own_pause_is_no_silence) {
  open_round(false);
  bench.answering = true;
  bench.now_ms += 19000;
  bench_run(5000);
  assert_not_said("; asking");
}

BENCH_TEST(test_an_agent_that_ends_does_not_turn) {
  open_round(true);
  bench_end(0, NULL);
  bench_run(3000);
  assert_not_said("; asking");
}

/* Places. ---------------------------------------------------------------------------------------------------------- */

BENCH_TEST(test_the_order) {
  open_round(true);
  bench_run(2500);
  assert_asks_endpoint(0, 500); /* the current one again: a tenth of the lease */
  fail_and_go_on();
  assert_asks(CONNECT_SUCCESSOR, 0, "10.0.0.2", 4002, 500);
  fail_and_go_on();
  assert_asks(CONNECT_OWN, 0, NULL, 0, 1000); /* it meets itself; rdzvd has to start */
  fail_and_go_on();
  assert_asks(CONNECT_SUCCESSOR, 0, "10.0.0.3", 4003, 500);
  fail_and_go_on(); /* the first pause is none */
  assert_asks_endpoint(0, 500);
}

BENCH_TEST(test_who_has_no_port_is_no_successor) {
  open_round(true);
  reserve(0);
  bench_run(2500);
  for (int i = 0; i < 12; i++) {
    assert_int_not_equal(bench_effect(SUP_CONNECT)->connect.to, CONNECT_OWN);
    bench_down(true);
    bench_run(500);
  }
}

/* After each cycle of four places a pause, of a tenth of the lease at most. */
BENCH_TEST(test_the_pauses) {
  static const uint64_t want[] = {0, 20, 40, 80, 160, 320, 500, 500};
  open_round(true);
  bench_run(2500);
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
    for (int place = 0; place < 3; place++) fail_and_go_on();
    bench_forget();
    bench_down(false);
    if (want[i]) bench_run(want[i] - 1);
    if (want[i]) assert_int_equal(bench_count(SUP_CONNECT), 0);
    bench_run(want[i] ? 1 : 0);
    assert_int_equal(bench_count(SUP_CONNECT), 1);
  }
}

/* One that is paused accepts connections too. */
BENCH_TEST(test_who_accepts_and_is_silent) {
  open_round(false);
  bench_run(20000);
  bench_event(&(struct supervisor_event){.kind = SUP_LINK_UP});
  bench_forget();
  bench_run(499);
  assert_int_equal(bench_count(SUP_CONNECT), 0);
  bench_run(1);
  assert_asks(CONNECT_SUCCESSOR, 0, "10.0.0.2", 4002, 500);
  bench_event(&(struct supervisor_event){.kind = SUP_LINK_UP});
  bench_forget();
  bench_run(2499); /* many agents may have turned to it */
  assert_int_equal(bench_count(SUP_CONNECT), 0);
  bench_run(1);
  assert_int_equal(bench_effect(SUP_CONNECT)->connect.to, CONNECT_OWN);
}

/* Only the whole cycle's end is worth a line. */
BENCH_TEST(test_failures_on_the_way_are_no_lines) {
  open_round(false);
  bench_run(20000);
  bench_forget();
  for (int i = 0; i < 3; i++) {
    bench_down(true);
    bench_run(0);
  }
  for (size_t i = 0; i < bench.n_fx; i++)
    if (bench.fx[i].kind == SUP_SAY) assert_int_equal(bench.fx[i].say.level, LOG_DEBUG);
}

BENCH_TEST(test_the_daemon_is_back) {
  open_round(true);
  bench_run(2500);
  welcome_by(DAEMON_1, 0);
  assert_said("the daemon is back");
  assert_not_said("taken over");
}

/* First contact. --------------------------------------------------------------------------------------------------- */

static void open_endpoints(void) {
  bench_open();
  bench.config.endpoint = "gpu1:29400,gpu7:29400,[::1]:29400";
  bench.config.endpoints = endpoints;
  bench.config.n_endpoints = 3;
  bench.config.settings.daemons = 3;
  bench.daemon = DAEMON_1;
}

BENCH_TEST(test_addresses_in_order) {
  open_endpoints();
  bench_begin();
  for (uint32_t i = 0; i < 6; i++) {
    assert_asks_endpoint(i % 3, 500);
    bench_down(true);
    bench_run(i % 3 == 2 ? 20 : 0);
  }
  assert_asks_endpoint(0, 500);
}

/* Agents that began at different moments must meet. */
BENCH_TEST(test_it_looks_at_earlier_addresses) {
  open_endpoints();
  bench.answering = true;
  bench_begin();
  bench_down(true);
  bench_run(0);
  bench_up();
  bench_welcome(false);
  bench_forget();
  bench_run(9999);
  assert_int_equal(bench_count(SUP_DISCONNECT), 0);
  bench_run(1);
  assert_asks_endpoint(0, 500);
  bench_down(true);
  bench_run(0);
  assert_asks_endpoint(1, 500); /* and back */
  bench_up();
  bench_welcome(false);
  bench_forget();
  bench_run(10000);
  assert_asks_endpoint(0, 500); /* every two leases */
  bench_up();
  bench.daemon = DAEMON_2;
  bench_welcome(false);
  bench_forget();
  bench_run(60000);
  assert_int_equal(bench_count(SUP_CONNECT), 0); /* there is none before the first */
  assert_not_said("taken over");
}

BENCH_TEST(test_it_does_not_look_in_a_round) {
  open_endpoints();
  bench.answering = true;
  bench_begin();
  bench_down(true);
  bench_run(0);
  bench_up();
  bench_welcome(false);
  bench_start(1);
  bench_all_spawned();
  bench_forget();
  bench_run(60000);
  assert_int_equal(bench_count(SUP_CONNECT), 0);
}

/* A name that nobody knows: another address may do, until all are like that. */
BENCH_TEST(test_what_cannot_help_at_one_address) {
  struct supervisor_event down = {
      .kind = SUP_LINK_DOWN, .link_down = {.exit_code = EXIT_CODE_NO_DAEMON}, .text = "gpu1: unknown"};
  open_endpoints();
  bench_begin();
  bench_event(&down);
  bench_run(0);
  bench_event(&down);
  bench_run(0);
  bench_down(true); /* here one may come */
  bench_run(20);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(bench.exits, 0);
    bench_event(&down);
    bench_run(0);
  }
  assert_exit(EXIT_CODE_NO_DAEMON);
}

/* MOVED. ----------------------------------------------------------------------------------------------------------- */

static void send_on(int port) {
  struct msg m;
  msg_init(&m, MSG_MOVED);
  m.moved.host = "gpu9";
  m.moved.addr = "10.0.0.9";
  m.moved.port = port;
  bench_msg(&m);
}

BENCH_TEST(test_moved_is_followed_at_once) {
  name_successors();
  bench_begin();
  bench_up(); /* instead of WELCOME */
  send_on(4009);
  assert_asks(CONNECT_SUCCESSOR, 0, "10.0.0.9", 4009, 500);
  assert_int_equal(bench_count(SUP_DISCONNECT), 1);
  welcome_by(DAEMON_2, 0);
  assert_state(SUPERVISOR_JOINING);
}

BENCH_TEST(test_moved_in_a_round) {
  open_round(false);
  bench.answering = true;
  bench_run(5000);
  send_on(4009);
  bench_run(0);
  assert_asks(CONNECT_SUCCESSOR, 0, "10.0.0.9", 4009, 500);
  welcome_by(DAEMON_2, 0);
  assert_state(SUPERVISOR_RUNNING);
  assert_said("the job has moved from the daemon on node1 to the one on gpu9");
  assert_not_said("did not answer");
}

/* It is a place like the others from then on. */
BENCH_TEST(test_moved_becomes_a_target) {
  open_round(true);
  send_on(4009);
  bench_run(0);
  static const uint32_t ports[] = {4009, 4002, 4003};
  for (size_t i = 0, seen = 0; seen < 3; i++) {
    assert_true(i < 12);
    const struct supervisor_effect *e = bench_effect(SUP_CONNECT);
    if (e->connect.to == CONNECT_SUCCESSOR && e->connect.port == ports[seen]) seen++;
    bench_down(true);
    bench_run(500);
  }
}

BENCH_TEST(test_our_own_port_is_our_own_daemon) {
  struct msg m;
  open_round(true);
  msg_init(&m, MSG_MOVED);
  m.moved.host = "n0";
  m.moved.addr = "10.0.0.1";
  m.moved.port = 4001;
  bench_msg(&m);
  bench_run(0);
  assert_int_equal(bench_effect(SUP_CONNECT)->connect.to, CONNECT_OWN);
}

BENCH_TEST(test_daemons_that_send_it_round_in_circles) {
  name_successors();
  bench_begin();
  for (int laps = 0; laps < 3; laps++) {
    for (int i = 0; i < 8; i++) {
      bench_up();
      send_on(5000 + i);
      assert_asks(CONNECT_SUCCESSOR, 0, "10.0.0.9", (uint32_t)(5000 + i), 500);
    }
    bench_up();
    bench_forget();
    send_on(5008);
    assert_int_equal(bench_count(SUP_CONNECT), 0); /* a pause, then the usual cycle */
    bench_run(laps ? 500 : 0);
    assert_asks(CONNECT_SUCCESSOR, 0, "10.0.0.9", 5008, 500);
  }
}

/* Each of two daemons welcomes it and sends it to the other one. */
BENCH_TEST(test_daemons_that_welcome_and_send_on) {
  size_t moves = 0;
  name_successors();
  bench_begin();
  for (uint64_t until = bench.now_ms + 10000; bench.now_ms < until;) {
    if (bench_count(SUP_CONNECT)) {
      bench_forget();
      welcome_by(moves % 2 ? DAEMON_1 : DAEMON_2, 0);
      send_on(5000 + (int)(moves++ % 2));
    }
    bench_run(1);
  }
  assert_in_range(moves, 5, 40);
}

/* A daemon without a majority. ------------------------------------------------------------------------------------- */

BENCH_TEST(test_a_daemon_that_is_not_in_charge_is_left) {
  open_round(false);
  bench.answering = true;
  bench.age_ms = 5000;
  bench_forget();
  bench_run(625 + 10000); /* from the first answer that says so */
  assert_said("too few nodes of the last round have followed the daemon on node1 for 10.0 s; asking gpu2");
  static const uint32_t ports[] = {4002, 0, 4003};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(bench_effect(SUP_CONNECT)->connect.port, i == 1 ? 4001 : ports[i]);
    fail_and_go_on();
  }
  assert_asks_endpoint(0, 500); /* home is the last */
}

BENCH_TEST(test_an_answer_in_charge_starts_the_time_again) {
  open_round(false);
  bench.answering = true;
  for (int i = 0; i < 3; i++) {
    bench.age_ms = 5000;
    bench_run(9000);
    bench.age_ms = 4975;
    bench_run(625);
  }
  assert_not_said("asking");
}

/* From the second place it goes to the third, not back to the first. */
BENCH_TEST(test_all_places_are_asked_in_turn) {
  open_round(true);
  bench_run(2500);
  fail_and_go_on();
  bench.answering = true;
  welcome_by(DAEMON_2, 5000);
  bench_forget();
  bench_run(10000);
  assert_said("the daemon on gpu2");
  assert_int_equal(bench_effect(SUP_CONNECT)->connect.to, CONNECT_OWN);
  fail_and_go_on();
  assert_asks(CONNECT_SUCCESSOR, 0, "10.0.0.3", 4003, 500);
  fail_and_go_on();
  assert_asks_endpoint(0, 500);
  fail_and_go_on();
  assert_asks(CONNECT_SUCCESSOR, 0, "10.0.0.2", 4002, 500);
}

/* Two places without a majority, in no round. Returns how long it stayed at the daemon that has welcomed it. */
static uint64_t stay(const char *daemon) {
  welcome_by(daemon, 5000);
  bench_forget();
  uint64_t since_ms = bench.now_ms;
  for (int i = 0; i < 400 && !bench_said("asking") && !bench.exits; i++) bench_run(250);
  return bench.now_ms - since_ms;
}

static void open_weak(void) {
  bench_open();
  bench.daemon = DAEMON_1;
  bench.answering = true;
  bench.config.settings.join_timeout_ms = 600000;
  bench_joined();
  send_waiting(1, false, 1);
  bench_down(false);
  bench_run(0);
}

/* Agents that go round at different times meet at the first place that answers. */
BENCH_TEST(test_it_stays_longer_at_the_first_place_each_time) {
  static const uint64_t want_ms[] = {10000, 20000, 10000, 40000, 10000, 80000};
  open_weak();
  assert_int_equal(stay(DAEMON_1), 10000);
  for (size_t i = 0; i < sizeof want_ms / sizeof want_ms[0]; i++) {
    assert_int_equal(bench_effect(SUP_CONNECT)->connect.to, i % 2 ? CONNECT_ENDPOINT : CONNECT_SUCCESSOR);
    assert_int_equal(stay(i % 2 ? DAEMON_1 : DAEMON_2), want_ms[i]);
  }
}

/* Each of them counts --join-timeout anew. */
BENCH_TEST(test_it_does_not_look_for_ever) {
  open_weak();
  uint64_t begun_ms = bench.now_ms;
  for (int i = 0; i < 100 && !bench.exits; i++) stay(i % 2 ? DAEMON_2 : DAEMON_1);
  assert_exit(EXIT_CODE_DAEMON_LOST);
  assert_in_range(bench.now_ms - begun_ms, 600000, 615000);
  assert_said("no daemon that enough nodes of the last round follow was found within 600 s (--join-timeout)");
}

/* The line of who has taken over. ---------------------------------------------------------------------------------- */

/* gpu2 welcomes it; the round there is over. */
static void turn_to_gpu2(int64_t age_ms) {
  bench_run(2500);
  fail_and_go_on();
  bench.answering = true;
  welcome_by(DAEMON_2, age_ms);
}

BENCH_TEST(test_start_says_who_has_taken_over) {
  for (int echo = 0; echo < 2; echo++) {
    name_successors();
    bench.config.echo = echo;
    bench.fencing = true;
    bench_joined();
    bench_start(1);
    bench_all_spawned();
    bench.fencing = false;
    turn_to_gpu2(5000);
    assert_not_said("the daemon is back");
    bench_stale();
    bench_clear();
    bench_run(2500);
    bench.seal = (struct seal){.nodes = 3, .base_round = 1, .base_nodes = 4};
    bench.agreed = 3;
    bench.age_ms = 0;
    bench_forget();
    bench_start(2);
    assert_said("the daemon on node1 did not answer for 5.0 s; gpu2 has taken over (3 of 4 nodes agree)");
    for (size_t i = 0; i < bench.n_fx; i++)
      if (bench.fx[i].kind == SUP_SAY && strstr(bench.fx[i].text, "taken over"))
        assert_int_equal(bench.fx[i].say.level, echo ? LOG_DEBUG : LOG_WARN);
  }
}

/* The round goes on: said when the new one has its majority, and once. */
BENCH_TEST(test_a_round_that_goes_on_under_another_daemon) {
  open_round(false);
  bench.answering = false;
  bench_run(20000);
  fail_and_go_on();
  bench.answering = true;
  welcome_by(DAEMON_2, 5000);
  bench_run(2000);
  assert_not_said("taken over");
  bench.age_ms = 1000;
  bench_run(2000);
  assert_said("; gpu2 has taken over");
  assert_not_said("agree");
  assert_state(SUPERVISOR_RUNNING);
}

BENCH_TEST(test_a_spare_says_it_too) {
  bench.daemon = DAEMON_1;
  bench_joined();
  send_waiting(3, true, 0);
  bench_run(5000);
  fail_and_go_on();
  welcome_by(DAEMON_2, 5000);
  send_waiting(3, true, 1);
  assert_not_said("taken over");
  bench.age_ms = 0;
  bench.answering = true;
  bench_run(625);
  send_waiting(3, true, 0);
  send_waiting(3, true, 0);
  assert_said("; gpu2 has taken over");
}

/* A daemon that was started again without its state has another id, and nobody has taken over. */
BENCH_TEST(test_the_same_place_is_no_takeover) {
  open_round(false);
  bench_down(true);
  bench_run(100);
  welcome_by(DAEMON_2, 0);
  assert_not_said("taken over");
  assert_said("the daemon is back");
}

/* Names in other lines are those of the daemon that is meant. */
BENCH_TEST(test_lines_name_the_daemon_that_is_followed) {
  open_round(true);
  turn_to_gpu2(0);
  bench_forget();
  bench_down(false);
  assert_said("lost contact with the daemon at gpu2:4002");
}
