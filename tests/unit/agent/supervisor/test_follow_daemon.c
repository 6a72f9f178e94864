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

static void reserve(struct bench *b, uint32_t port) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_STANDBY, .standby = {.port = port}});
}

static void name_successors(struct bench *b) {
  bench_open(b);
  b->daemon = DAEMON_1;
  b->term = 1;
  b->successors = successors;
  b->n_successors = 3;
}

/* Round 1 runs, heartbeats are answered, and gpu2, this node and gpu3 may take over. */
static void open_round(struct bench *b, bool fence) {
  name_successors(b);
  b->answering = !fence;
  b->fencing = fence;
  bench_joined(b);
  b->fenced = fence;
  bench_start(b, 1);
  bench_all_spawned(b);
  reserve(b, 4001);
  bench_run(b, 1250);
  b->answering = b->fencing = false;
  bench_forget(b);
}

/* The place of the last SUP_CONNECT. */
static void assert_asks(const struct bench *b, enum connect_to to, uint32_t endpoint, const char *addr, uint32_t port,
                        uint32_t timeout_ms) {
  const struct supervisor_effect *e = bench_effect(b, SUP_CONNECT);
  assert_non_null(e);
  assert_int_equal(e->connect.to, to);
  assert_int_equal(e->connect.timeout_ms, timeout_ms);
  if (to == CONNECT_ENDPOINT) assert_int_equal(e->connect.endpoint, endpoint);
  if (to != CONNECT_SUCCESSOR) return;
  assert_string_equal(e->connect.addr, addr);
  assert_int_equal(e->connect.port, port);
}

static void assert_asks_endpoint(const struct bench *b, uint32_t endpoint, uint32_t timeout_ms) {
  assert_asks(b, CONNECT_ENDPOINT, endpoint, NULL, 0, timeout_ms);
}

/* The attempt fails, and the next one comes at once. */
static void fail_and_go_on(struct bench *b) {
  bench_forget(b);
  bench_down(b, true);
  bench_run(b, 0);
  assert_int_equal(bench_count(b, SUP_CONNECT), 1);
}

static void welcome_by(struct bench *b, const char *daemon, int64_t age_ms) {
  b->daemon = daemon;
  b->age_ms = age_ms;
  bench_up(b);
  bench_welcome(b, false);
}

/* At ms and not before: it lets go and begins to ask. */
static void assert_turns_after(struct bench *b, uint64_t ms) {
  bench_run(b, ms - 1);
  assert_int_equal(bench_said(b, "; asking"), 0);
  bench_forget(b);
  bench_run(b, 1);
  assert_int_equal(bench_said(b, "; asking"), 1);
  assert_int_equal(bench_count(b, SUP_DISCONNECT), 1);
  assert_int_equal(bench_count(b, SUP_CONNECT), 1);
}

/* Clocks. ---------------------------------------------------------------------------------------------------------- */

static void test_with_the_fence_after_three_eighths_of_a_lease(void **state) {
  struct bench b;
  open_round(&b, true);
  assert_turns_after(&b, 1875);
  assert_int_equal(bench_said(&b, "the daemon on node1 does not answer for 1.9 s; asking gpu2"), 1);
  bench_run(&b, 1000);
  assert_int_equal(bench_said(&b, "; asking"), 1); /* once */
  bench_close(&b);
}

/* No other round can form: its daemon has four leases to come back. */
static void test_without_the_fence_after_four_leases(void **state) {
  struct bench b;
  open_round(&b, false);
  assert_turns_after(&b, 20000);
  assert_state(&b, SUPERVISOR_RUNNING);
  bench_close(&b);
}

static void test_a_closed_connection_is_silence_too(void **state) {
  struct bench b;
  open_round(&b, true);
  bench_down(&b, true);
  for (uint64_t until = b.now_ms + 1874; b.now_ms < until;) {
    size_t asked = bench_count(&b, SUP_CONNECT);
    bench_run(&b, 1);
    if (bench_count(&b, SUP_CONNECT) == asked) continue;
    assert_asks_endpoint(&b, 0, 0); /* it may come back */
    bench_down(&b, true);
  }
  assert_int_equal(bench_said(&b, "; asking"), 0);
  bench_run(&b, 1);
  assert_int_equal(bench_said(&b, "; asking gpu2"), 1);
  assert_asks_endpoint(&b, 0, 500);
  bench_close(&b);
}

static void send_waiting(struct bench *b, size_t n, bool spare, int64_t lacks) {
  struct msg m;
  msg_init(&m, MSG_WAITING);
  m.waiting.here = 1;
  m.waiting.min_nodes = 1;
  m.waiting.max_nodes = 4;
  m.waiting.incarnation = b->incarnation;
  m.waiting.round = 3;
  m.waiting.spare = spare;
  m.waiting.lacks = lacks;
  m.waiting.text = spare ? "this node waits" : "";
  m.waiting.successors = successors;
  m.waiting.n_successors = n;
  bench_msg(b, &m);
}

static void test_in_no_round_after_a_lease(void **state) {
  struct bench b;
  bench_open(&b);
  b.daemon = DAEMON_1;
  bench_joined(&b);
  send_waiting(&b, 3, true, 0);
  send_waiting(&b, 0, true, 0); /* one that names none teaches nothing */
  bench_forget(&b);
  assert_turns_after(&b, 5000);
  assert_int_equal(bench_said(&b, "asking gpu2"), 1);
  bench_close(&b);
}

static void test_with_one_place_it_never_turns(void **state) {
  for (int fence = 0; fence < 2; fence++) {
    struct bench b;
    bench_open(&b);
    b.daemon = DAEMON_1;
    b.fencing = fence;
    bench_running(&b);
    bench_run(&b, 1000);
    b.fencing = false;
    bench_run(&b, 60000);
    assert_int_equal(bench_said(&b, "asking"), 0);
    assert_asks_endpoint(&b, 0, 0);
    bench_close(&b);
  }
}

/* Messages wait unread while an agent is stopped: the silence was its own. */
static void test_its_own_pause_is_no_silence(void **state) {
  struct bench b;
  open_round(&b, false);
  b.answering = true;
  b.now_ms += 19000;
  bench_run(&b, 5000);
  assert_int_equal(bench_said(&b, "; asking"), 0);
  bench_close(&b);
}

static void test_an_agent_that_ends_does_not_turn(void **state) {
  struct bench b;
  open_round(&b, true);
  bench_end(&b, 0, NULL);
  bench_run(&b, 3000);
  assert_int_equal(bench_said(&b, "; asking"), 0);
  bench_close(&b);
}

/* Places. ---------------------------------------------------------------------------------------------------------- */

static void test_the_order(void **state) {
  struct bench b;
  open_round(&b, true);
  bench_run(&b, 2500);
  assert_asks_endpoint(&b, 0, 500); /* the current one again: a tenth of the lease */
  fail_and_go_on(&b);
  assert_asks(&b, CONNECT_SUCCESSOR, 0, "10.0.0.2", 4002, 500);
  fail_and_go_on(&b);
  assert_asks(&b, CONNECT_OWN, 0, NULL, 0, 1000); /* it meets itself; rdzvd has to start */
  fail_and_go_on(&b);
  assert_asks(&b, CONNECT_SUCCESSOR, 0, "10.0.0.3", 4003, 500);
  fail_and_go_on(&b); /* the first pause is none */
  assert_asks_endpoint(&b, 0, 500);
  bench_close(&b);
}

static void test_who_has_no_port_is_no_successor(void **state) {
  struct bench b;
  open_round(&b, true);
  reserve(&b, 0);
  bench_run(&b, 2500);
  for (int i = 0; i < 12; i++) {
    assert_int_not_equal(bench_effect(&b, SUP_CONNECT)->connect.to, CONNECT_OWN);
    bench_down(&b, true);
    bench_run(&b, 500);
  }
  bench_close(&b);
}

/* After each cycle of four places a pause, of a tenth of the lease at most. */
static void test_the_pauses(void **state) {
  static const uint64_t want[] = {0, 20, 40, 80, 160, 320, 500, 500};
  struct bench b;
  open_round(&b, true);
  bench_run(&b, 2500);
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
    for (int place = 0; place < 3; place++) fail_and_go_on(&b);
    bench_forget(&b);
    bench_down(&b, false);
    if (want[i]) bench_run(&b, want[i] - 1);
    if (want[i]) assert_int_equal(bench_count(&b, SUP_CONNECT), 0);
    bench_run(&b, want[i] ? 1 : 0);
    assert_int_equal(bench_count(&b, SUP_CONNECT), 1);
  }
  bench_close(&b);
}

/* One that is paused accepts connections too. */
static void test_who_accepts_and_is_silent(void **state) {
  struct bench b;
  open_round(&b, false);
  bench_run(&b, 20000);
  bench_event(&b, &(struct supervisor_event){.kind = SUP_LINK_UP});
  bench_forget(&b);
  bench_run(&b, 499);
  assert_int_equal(bench_count(&b, SUP_CONNECT), 0);
  bench_run(&b, 1);
  assert_asks(&b, CONNECT_SUCCESSOR, 0, "10.0.0.2", 4002, 500);
  bench_event(&b, &(struct supervisor_event){.kind = SUP_LINK_UP});
  bench_forget(&b);
  bench_run(&b, 2499); /* many agents may have turned to it */
  assert_int_equal(bench_count(&b, SUP_CONNECT), 0);
  bench_run(&b, 1);
  assert_int_equal(bench_effect(&b, SUP_CONNECT)->connect.to, CONNECT_OWN);
  bench_close(&b);
}

/* Only the whole cycle's end is worth a line. */
static void test_failures_on_the_way_are_no_lines(void **state) {
  struct bench b;
  open_round(&b, false);
  bench_run(&b, 20000);
  bench_forget(&b);
  for (int i = 0; i < 3; i++) {
    bench_down(&b, true);
    bench_run(&b, 0);
  }
  for (size_t i = 0; i < b.n_fx; i++)
    if (b.fx[i].kind == SUP_SAY) assert_int_equal(b.fx[i].say.level, LOG_DEBUG);
  bench_close(&b);
}

static void test_the_daemon_is_back(void **state) {
  struct bench b;
  open_round(&b, true);
  bench_run(&b, 2500);
  welcome_by(&b, DAEMON_1, 0);
  assert_int_equal(bench_said(&b, "the daemon is back"), 1);
  assert_int_equal(bench_said(&b, "taken over"), 0);
  bench_close(&b);
}

/* First contact. --------------------------------------------------------------------------------------------------- */

static void open_endpoints(struct bench *b) {
  bench_open(b);
  b->config.endpoint = "gpu1:29400,gpu7:29400,[::1]:29400";
  b->config.endpoints = endpoints;
  b->config.n_endpoints = 3;
  b->config.settings.daemons = 3;
  b->daemon = DAEMON_1;
}

static void test_addresses_in_order(void **state) {
  struct bench b;
  open_endpoints(&b);
  bench_begin(&b);
  for (uint32_t i = 0; i < 6; i++) {
    assert_asks_endpoint(&b, i % 3, 500);
    bench_down(&b, true);
    bench_run(&b, i % 3 == 2 ? 20 : 0);
  }
  assert_asks_endpoint(&b, 0, 500);
  bench_close(&b);
}

/* Agents that began at different moments must meet. */
static void test_it_looks_at_earlier_addresses(void **state) {
  struct bench b;
  open_endpoints(&b);
  b.answering = true;
  bench_begin(&b);
  bench_down(&b, true);
  bench_run(&b, 0);
  bench_up(&b);
  bench_welcome(&b, false);
  bench_forget(&b);
  bench_run(&b, 9999);
  assert_int_equal(bench_count(&b, SUP_DISCONNECT), 0);
  bench_run(&b, 1);
  assert_asks_endpoint(&b, 0, 500);
  bench_down(&b, true);
  bench_run(&b, 0);
  assert_asks_endpoint(&b, 1, 500); /* and back */
  bench_up(&b);
  bench_welcome(&b, false);
  bench_forget(&b);
  bench_run(&b, 10000);
  assert_asks_endpoint(&b, 0, 500); /* every two leases */
  bench_up(&b);
  b.daemon = DAEMON_2;
  bench_welcome(&b, false);
  bench_forget(&b);
  bench_run(&b, 60000);
  assert_int_equal(bench_count(&b, SUP_CONNECT), 0); /* there is none before the first */
  assert_int_equal(bench_said(&b, "taken over"), 0);
  bench_close(&b);
}

static void test_it_does_not_look_in_a_round(void **state) {
  struct bench b;
  open_endpoints(&b);
  b.answering = true;
  bench_begin(&b);
  bench_down(&b, true);
  bench_run(&b, 0);
  bench_up(&b);
  bench_welcome(&b, false);
  bench_start(&b, 1);
  bench_all_spawned(&b);
  bench_forget(&b);
  bench_run(&b, 60000);
  assert_int_equal(bench_count(&b, SUP_CONNECT), 0);
  bench_close(&b);
}

/* A name that nobody knows: another address may do, until all are like that. */
static void test_what_cannot_help_at_one_address(void **state) {
  struct supervisor_event down = {
      .kind = SUP_LINK_DOWN, .link_down = {.exit_code = EXIT_CODE_NO_DAEMON}, .text = "gpu1: unknown"};
  struct bench b;
  open_endpoints(&b);
  bench_begin(&b);
  bench_event(&b, &down);
  bench_run(&b, 0);
  bench_event(&b, &down);
  bench_run(&b, 0);
  bench_down(&b, true); /* here one may come */
  bench_run(&b, 20);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(b.exits, 0);
    bench_event(&b, &down);
    bench_run(&b, 0);
  }
  assert_exit(&b, EXIT_CODE_NO_DAEMON);
  bench_close(&b);
}

/* MOVED. ----------------------------------------------------------------------------------------------------------- */

static void send_on(struct bench *b, int port) {
  struct msg m;
  msg_init(&m, MSG_MOVED);
  m.moved.host = "gpu9";
  m.moved.addr = "10.0.0.9";
  m.moved.port = port;
  bench_msg(b, &m);
}

static void test_moved_is_followed_at_once(void **state) {
  struct bench b;
  name_successors(&b);
  bench_begin(&b);
  bench_up(&b); /* instead of WELCOME */
  send_on(&b, 4009);
  assert_asks(&b, CONNECT_SUCCESSOR, 0, "10.0.0.9", 4009, 500);
  assert_int_equal(bench_count(&b, SUP_DISCONNECT), 1);
  welcome_by(&b, DAEMON_2, 0);
  assert_state(&b, SUPERVISOR_JOINING);
  bench_close(&b);
}

static void test_moved_in_a_round(void **state) {
  struct bench b;
  open_round(&b, false);
  b.answering = true;
  bench_run(&b, 5000);
  send_on(&b, 4009);
  bench_run(&b, 0);
  assert_asks(&b, CONNECT_SUCCESSOR, 0, "10.0.0.9", 4009, 500);
  welcome_by(&b, DAEMON_2, 0);
  assert_state(&b, SUPERVISOR_RUNNING);
  assert_int_equal(bench_said(&b, "the job has moved from the daemon on node1 to the one on gpu9"), 1);
  assert_int_equal(bench_said(&b, "did not answer"), 0);
  bench_close(&b);
}

/* It is a place like the others from then on. */
static void test_moved_becomes_a_target(void **state) {
  struct bench b;
  open_round(&b, true);
  send_on(&b, 4009);
  bench_run(&b, 0);
  static const uint32_t ports[] = {4009, 4002, 4003};
  for (size_t i = 0, seen = 0; seen < 3; i++) {
    assert_true(i < 12);
    const struct supervisor_effect *e = bench_effect(&b, SUP_CONNECT);
    if (e->connect.to == CONNECT_SUCCESSOR && e->connect.port == ports[seen]) seen++;
    bench_down(&b, true);
    bench_run(&b, 500);
  }
  bench_close(&b);
}

static void test_our_own_port_is_our_own_daemon(void **state) {
  struct bench b;
  struct msg m;
  open_round(&b, true);
  msg_init(&m, MSG_MOVED);
  m.moved.host = "n0";
  m.moved.addr = "10.0.0.1";
  m.moved.port = 4001;
  bench_msg(&b, &m);
  bench_run(&b, 0);
  assert_int_equal(bench_effect(&b, SUP_CONNECT)->connect.to, CONNECT_OWN);
  bench_close(&b);
}

static void test_daemons_that_send_it_round_in_circles(void **state) {
  struct bench b;
  name_successors(&b);
  bench_begin(&b);
  for (int laps = 0; laps < 3; laps++) {
    for (int i = 0; i < 8; i++) {
      bench_up(&b);
      send_on(&b, 5000 + i);
      assert_asks(&b, CONNECT_SUCCESSOR, 0, "10.0.0.9", (uint32_t)(5000 + i), 500);
    }
    bench_up(&b);
    bench_forget(&b);
    send_on(&b, 5008);
    assert_int_equal(bench_count(&b, SUP_CONNECT), 0); /* a pause, then the usual cycle */
    bench_run(&b, laps ? 500 : 0);
    assert_asks(&b, CONNECT_SUCCESSOR, 0, "10.0.0.9", 5008, 500);
  }
  bench_close(&b);
}

/* Each of two daemons welcomes it and sends it to the other one. */
static void test_daemons_that_welcome_and_send_on(void **state) {
  struct bench b;
  size_t moves = 0;
  name_successors(&b);
  bench_begin(&b);
  for (uint64_t until = b.now_ms + 10000; b.now_ms < until;) {
    if (bench_count(&b, SUP_CONNECT)) {
      bench_forget(&b);
      welcome_by(&b, moves % 2 ? DAEMON_1 : DAEMON_2, 0);
      send_on(&b, 5000 + (int)(moves++ % 2));
    }
    bench_run(&b, 1);
  }
  assert_in_range(moves, 5, 40);
  bench_close(&b);
}

/* A daemon without a majority. ------------------------------------------------------------------------------------- */

static void test_a_daemon_that_is_not_in_charge_is_left(void **state) {
  struct bench b;
  open_round(&b, false);
  b.answering = true;
  b.age_ms = 5000;
  bench_forget(&b);
  bench_run(&b, 625 + 10000); /* from the first answer that says so */
  assert_int_equal(
      bench_said(&b, "too few nodes of the last round have followed the daemon on node1 for 10.0 s; asking gpu2"), 1);
  static const uint32_t ports[] = {4002, 0, 4003};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(bench_effect(&b, SUP_CONNECT)->connect.port, i == 1 ? 4001 : ports[i]);
    fail_and_go_on(&b);
  }
  assert_asks_endpoint(&b, 0, 500); /* home is the last */
  bench_close(&b);
}

static void test_an_answer_in_charge_starts_the_time_again(void **state) {
  struct bench b;
  open_round(&b, false);
  b.answering = true;
  for (int i = 0; i < 3; i++) {
    b.age_ms = 5000;
    bench_run(&b, 9000);
    b.age_ms = 4975;
    bench_run(&b, 625);
  }
  assert_int_equal(bench_said(&b, "asking"), 0);
  bench_close(&b);
}

/* From the second place it goes to the third, not back to the first. */
static void test_all_places_are_asked_in_turn(void **state) {
  struct bench b;
  open_round(&b, true);
  bench_run(&b, 2500);
  fail_and_go_on(&b);
  b.answering = true;
  welcome_by(&b, DAEMON_2, 5000);
  bench_forget(&b);
  bench_run(&b, 10000);
  assert_int_equal(bench_said(&b, "the daemon on gpu2"), 1);
  assert_int_equal(bench_effect(&b, SUP_CONNECT)->connect.to, CONNECT_OWN);
  fail_and_go_on(&b);
  assert_asks(&b, CONNECT_SUCCESSOR, 0, "10.0.0.3", 4003, 500);
  fail_and_go_on(&b);
  assert_asks_endpoint(&b, 0, 500);
  fail_and_go_on(&b);
  assert_asks(&b, CONNECT_SUCCESSOR, 0, "10.0.0.2", 4002, 500);
  bench_close(&b);
}

/* Two places without a majority, in no round. Returns how long it stayed at the daemon that has welcomed it. */
static uint64_t stay(struct bench *b, const char *daemon) {
  welcome_by(b, daemon, 5000);
  bench_forget(b);
  uint64_t since_ms = b->now_ms;
  for (int i = 0; i < 400 && !bench_said(b, "asking") && !b->exits; i++) bench_run(b, 250);
  return b->now_ms - since_ms;
}

static void open_weak(struct bench *b) {
  bench_open(b);
  b->daemon = DAEMON_1;
  b->answering = true;
  b->config.settings.join_timeout_ms = 600000;
  bench_joined(b);
  send_waiting(b, 1, false, 1);
  bench_down(b, false);
  bench_run(b, 0);
}

/* Agents that go round at different times meet at the first place that answers. */
static void test_it_stays_longer_at_the_first_place_each_time(void **state) {
  static const uint64_t want_ms[] = {10000, 20000, 10000, 40000, 10000, 80000};
  struct bench b;
  open_weak(&b);
  assert_int_equal(stay(&b, DAEMON_1), 10000);
  for (size_t i = 0; i < sizeof want_ms / sizeof want_ms[0]; i++) {
    assert_int_equal(bench_effect(&b, SUP_CONNECT)->connect.to, i % 2 ? CONNECT_ENDPOINT : CONNECT_SUCCESSOR);
    assert_int_equal(stay(&b, i % 2 ? DAEMON_1 : DAEMON_2), want_ms[i]);
  }
  bench_close(&b);
}

/* Each of them counts --join-timeout anew. */
static void test_it_does_not_look_for_ever(void **state) {
  struct bench b;
  open_weak(&b);
  uint64_t begun_ms = b.now_ms;
  for (int i = 0; i < 100 && !b.exits; i++) stay(&b, i % 2 ? DAEMON_2 : DAEMON_1);
  assert_exit(&b, EXIT_CODE_DAEMON_LOST);
  assert_in_range(b.now_ms - begun_ms, 600000, 615000);
  assert_int_equal(
      bench_said(&b, "no daemon that enough nodes of the last round follow was found within 600 s (--join-timeout)"),
      1);
  bench_close(&b);
}

/* The line of who has taken over. ---------------------------------------------------------------------------------- */

/* gpu2 welcomes it; the round there is over. */
static void turn_to_gpu2(struct bench *b, int64_t age_ms) {
  bench_run(b, 2500);
  fail_and_go_on(b);
  b->answering = true;
  welcome_by(b, DAEMON_2, age_ms);
}

static void test_start_says_who_has_taken_over(void **state) {
  for (int echo = 0; echo < 2; echo++) {
    struct bench b;
    name_successors(&b);
    b.config.echo = echo;
    b.fencing = true;
    bench_joined(&b);
    bench_start(&b, 1);
    bench_all_spawned(&b);
    b.fencing = false;
    turn_to_gpu2(&b, 5000);
    assert_int_equal(bench_said(&b, "the daemon is back"), 0);
    bench_stale(&b);
    bench_clear(&b);
    bench_run(&b, 2500);
    b.seal = (struct seal){.nodes = 3, .base_round = 1, .base_nodes = 4};
    b.agreed = 3;
    b.age_ms = 0;
    bench_forget(&b);
    bench_start(&b, 2);
    assert_int_equal(
        bench_said(&b, "the daemon on node1 did not answer for 5.0 s; gpu2 has taken over (3 of 4 nodes agree)"), 1);
    for (size_t i = 0; i < b.n_fx; i++)
      if (b.fx[i].kind == SUP_SAY && strstr(b.fx[i].say.text, "taken over"))
        assert_int_equal(b.fx[i].say.level, echo ? LOG_DEBUG : LOG_WARN);
    bench_close(&b);
  }
}

/* The round goes on: said when the new one has its majority, and once. */
static void test_a_round_that_goes_on_under_another_daemon(void **state) {
  struct bench b;
  open_round(&b, false);
  b.answering = false;
  bench_run(&b, 20000);
  fail_and_go_on(&b);
  b.answering = true;
  welcome_by(&b, DAEMON_2, 5000);
  bench_run(&b, 2000);
  assert_int_equal(bench_said(&b, "taken over"), 0);
  b.age_ms = 1000;
  bench_run(&b, 2000);
  assert_int_equal(bench_said(&b, "; gpu2 has taken over"), 1);
  assert_int_equal(bench_said(&b, "agree"), 0);
  assert_state(&b, SUPERVISOR_RUNNING);
  bench_close(&b);
}

static void test_a_spare_says_it_too(void **state) {
  struct bench b;
  bench_open(&b);
  b.daemon = DAEMON_1;
  bench_joined(&b);
  send_waiting(&b, 3, true, 0);
  bench_run(&b, 5000);
  fail_and_go_on(&b);
  welcome_by(&b, DAEMON_2, 5000);
  send_waiting(&b, 3, true, 1);
  assert_int_equal(bench_said(&b, "taken over"), 0);
  b.age_ms = 0;
  b.answering = true;
  bench_run(&b, 625);
  send_waiting(&b, 3, true, 0);
  send_waiting(&b, 3, true, 0);
  assert_int_equal(bench_said(&b, "; gpu2 has taken over"), 1);
  bench_close(&b);
}

/* A daemon that was started again without its state has another id, and nobody has taken over. */
static void test_the_same_place_is_no_takeover(void **state) {
  struct bench b;
  open_round(&b, false);
  bench_down(&b, true);
  bench_run(&b, 100);
  welcome_by(&b, DAEMON_2, 0);
  assert_int_equal(bench_said(&b, "taken over"), 0);
  assert_int_equal(bench_said(&b, "the daemon is back"), 1);
  bench_close(&b);
}

/* Names in other lines are those of the daemon that is meant. */
static void test_lines_name_the_daemon_that_is_followed(void **state) {
  struct bench b;
  open_round(&b, true);
  turn_to_gpu2(&b, 0);
  bench_forget(&b);
  bench_down(&b, false);
  assert_int_equal(bench_said(&b, "lost contact with the daemon at gpu2:4002"), 1);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_with_the_fence_after_three_eighths_of_a_lease),
      cmocka_unit_test(test_without_the_fence_after_four_leases),
      cmocka_unit_test(test_a_closed_connection_is_silence_too),
      cmocka_unit_test(test_in_no_round_after_a_lease),
      cmocka_unit_test(test_with_one_place_it_never_turns),
      cmocka_unit_test(test_its_own_pause_is_no_silence),
      cmocka_unit_test(test_an_agent_that_ends_does_not_turn),
      cmocka_unit_test(test_the_order),
      cmocka_unit_test(test_who_has_no_port_is_no_successor),
      cmocka_unit_test(test_the_pauses),
      cmocka_unit_test(test_who_accepts_and_is_silent),
      cmocka_unit_test(test_failures_on_the_way_are_no_lines),
      cmocka_unit_test(test_the_daemon_is_back),
      cmocka_unit_test(test_addresses_in_order),
      cmocka_unit_test(test_it_looks_at_earlier_addresses),
      cmocka_unit_test(test_it_does_not_look_in_a_round),
      cmocka_unit_test(test_what_cannot_help_at_one_address),
      cmocka_unit_test(test_moved_is_followed_at_once),
      cmocka_unit_test(test_moved_in_a_round),
      cmocka_unit_test(test_moved_becomes_a_target),
      cmocka_unit_test(test_our_own_port_is_our_own_daemon),
      cmocka_unit_test(test_daemons_that_send_it_round_in_circles),
      cmocka_unit_test(test_daemons_that_welcome_and_send_on),
      cmocka_unit_test(test_a_daemon_that_is_not_in_charge_is_left),
      cmocka_unit_test(test_an_answer_in_charge_starts_the_time_again),
      cmocka_unit_test(test_all_places_are_asked_in_turn),
      cmocka_unit_test(test_it_stays_longer_at_the_first_place_each_time),
      cmocka_unit_test(test_it_does_not_look_for_ever),
      cmocka_unit_test(test_start_says_who_has_taken_over),
      cmocka_unit_test(test_a_round_that_goes_on_under_another_daemon),
      cmocka_unit_test(test_a_spare_says_it_too),
      cmocka_unit_test(test_the_same_place_is_no_takeover),
      cmocka_unit_test(test_lines_name_the_daemon_that_is_followed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
