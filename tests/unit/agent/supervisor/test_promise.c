/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: what HELLO promises and tells of the last round, and FORWARD. */

#include <string.h>
#include "tests/rig/supervisor.h"
#include "tests/rig/unit.h"

#define DAEMON_1 "d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1"
#define DAEMON_2 "d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2"
#define BASE     "018bcfe56800-0"

static struct successor successors[] = {{.agent = "a2", .host = "gpu2", .addr = "10.0.0.2", .port = 4002}};
static const char *const endpoints[] = {"gpu1:29400", "gpu7:29400"};

/* HELLO. ----------------------------------------------------------------------------------------------------------- */

BENCH_TEST(test_at_first_it_promises_nothing) {
  bench_begin();
  bench_event(&(struct supervisor_event){.kind = SUP_STANDBY, .port = 4001});
  bench_run(3000);
  bench_up();
  const struct hello *h = bench_hello();
  assert_int_equal(h->standby_port, 4001);
  assert_string_equal(h->follows, "");
  assert_int_equal(h->silent_ms, 0);
  assert_int_equal(h->term, 0);
  assert_string_equal(h->voted_incarnation, "");
  assert_int_equal(h->voted_round, 0);
  assert_int_equal(h->seal.nodes, 0);
  assert_false(h->firm);
  assert_string_equal(h->head_host, "");
}

static void open_round(void) {
  bench_open();
  bench.daemon = DAEMON_1;
  bench.term = 3;
  bench.successors = successors;
  bench.n_successors = 1;
  bench.seal = (struct seal){.nodes = 2,
                             .tie_breaker = true,
                             .base_incarnation = BASE,
                             .base_round = 7,
                             .base_nodes = 4,
                             .in_base = true,
                             .base_tie_breaker = true};
  bench_running();
}

static void assert_knows_the_round(const struct hello *h) {
  assert_string_equal(h->voted_incarnation, bench.incarnation);
  assert_int_equal(h->voted_round, 1);
  assert_int_equal(h->seal.nodes, 2);
  assert_true(h->seal.tie_breaker);
  assert_string_equal(h->seal.base_incarnation, BASE);
  assert_int_equal(h->seal.base_round, 7);
  assert_int_equal(h->seal.base_nodes, 4);
  assert_true(h->seal.in_base);
  assert_true(h->seal.base_tie_breaker);
  assert_string_equal(h->head_host, "n9");
}

BENCH_TEST(test_it_says_whom_it_followed_and_for_how_long_it_has_heard_nothing) {
  open_round();
  bench_run(700);
  bench_forget();
  bench_down(false);
  bench_run(300);
  bench_up();
  const struct hello *h = bench_hello();
  assert_string_equal(h->follows, DAEMON_1);
  assert_int_equal(h->silent_ms, 1000);
  assert_int_equal(h->term, 3);
  assert_knows_the_round(h);
}

/* A program that greets is no daemon yet, and one that has not welcomed is not followed. */
BENCH_TEST(test_a_greeting_is_not_heard) {
  open_round();
  bench_down(false);
  bench_run(1000);
  bench_up();
  bench_run(1000);
  bench_down(false);
  bench_run(1000);
  bench_up();
  assert_string_equal(bench_hello()->follows, DAEMON_1);
  assert_int_equal(bench_hello()->silent_ms, 3000);
}

/* In charge or not: its answers were counted from WELCOME on. */
BENCH_TEST(test_who_has_welcomed_is_followed) {
  open_round();
  bench_down(false);
  bench_run(1000);
  bench_up();
  bench.daemon = DAEMON_2;
  bench.age_ms = 5000;
  bench.term = 2; /* it knows less */
  bench_welcome(false);
  bench_run(1200);
  const struct hello *h = bench_reconnected();
  assert_string_equal(h->follows, DAEMON_2);
  assert_int_equal(h->silent_ms, 1200);
  assert_int_equal(h->term, 3);
}

static void ack(uint16_t flags) {
  struct msg m;
  msg_init(&m, MSG_HEARTBEAT_ACK);
  m.flags = flags;
  bench_msg(&m);
}

BENCH_TEST(test_firm) {
  open_round();
  assert_false(bench_reconnected()->firm);
  bench_welcome(false);
  ack(FRAME_FLAG_FIRM);
  ack(0);
  bench_run(1000);
  assert_true(bench_reconnected()->firm);
}

/* The flag may be about a later round, of which this node is no part. */
BENCH_TEST(test_firm_is_of_the_round_that_it_is_in) {
  open_round();
  bench_stop(1, NULL);
  bench_clear();
  bench_settled(1, true, 1, NULL);
  ack(FRAME_FLAG_FIRM);
  const struct hello *h = bench_reconnected();
  assert_int_equal(h->phase, PHASE_NONE);
  assert_false(h->firm);
  assert_knows_the_round(h); /* which it keeps */
  bench_welcome(false);
  bench.seal.base_round = 1;
  bench_start(2);
  ack(FRAME_FLAG_FIRM);
  bench_run(1000);
  h = bench_reconnected();
  assert_int_equal(h->voted_round, 2);
  assert_int_equal(h->seal.base_round, 1);
  assert_true(h->firm);
}

BENCH_TEST(test_who_was_passed_over_hears_of_another_round) {
  open_round();
  bench_stale();
  ack(FRAME_FLAG_FIRM);
  assert_false(bench_reconnected()->firm);
}

/* A round begins without it, and no other daemon may count on its vote. */
BENCH_TEST(test_who_is_retired_has_no_vote) {
  struct msg m;
  open_round();
  bench_stop(1, NULL);
  bench_clear();
  bench_settled(1, true, 1, NULL);
  bench_forget();
  msg_init(&m, MSG_STALE);
  m.stale.incarnation = bench.incarnation;
  m.stale.round = 1;
  m.stale.text = "a round begins without this node";
  m.stale.retire = true;
  bench_msg(&m);
  const struct hello *h = bench_hello();
  assert_int_equal(h->voted_round, 0);
  assert_string_equal(h->voted_incarnation, "");
  assert_int_equal(h->seal.nodes, 0);
  assert_string_equal(h->seal.base_incarnation, "");
}

JOINED_TEST(test_another_port_is_told_between_rounds) {
  bench_forget();
  bench_event(&(struct supervisor_event){.kind = SUP_STANDBY, .port = 4001});
  assert_int_equal(bench_hello()->standby_port, 4001);
  bench_start(1);
  bench_all_spawned();
  bench_forget();
  bench_event(&(struct supervisor_event){.kind = SUP_STANDBY, .port = 4005});
  assert_null(bench_sent(MSG_HELLO)); /* in a round it would be a new beginning */
  bench_stop(1, NULL);
  bench_clear();
  bench_settled(1, true, 1, NULL);
  assert_int_equal(bench_hello()->standby_port, 4005);
}

/* FORWARD. --------------------------------------------------------------------------------------------------------- */

static void link_up_at(const char *addr, uint32_t port) {
  struct msg m;
  bench_event(&(struct supervisor_event){.kind = SUP_LINK_UP, .link_up = {.port = port}, .text = addr});
  msg_init(&m, MSG_GREETING);
  m.greeting.version = PROTO_VERSION;
  bench_msg(&m);
}

/* Node `rank` of round 1, welcomed at the first of two addresses. */
static void open_forwarding(int64_t rank, const char *addr) {
  bench_open();
  bench.config.endpoint = "gpu1:29400,gpu7:29400";
  bench.config.endpoints = endpoints;
  bench.config.n_endpoints = 2;
  bench.nodes = rank < 2 ? 2 : rank + 1;
  bench.config.settings.daemons = 2;
  bench.config.uid = 1000;
  bench.daemon = DAEMON_1;
  bench.term = 3;
  bench.node_rank = rank;
  bench.answering = true;
  bench_begin();
  link_up_at(addr, 29400);
  bench_welcome(false);
  bench_start(1);
  bench_all_spawned();
}

static void read_forward(struct msg *m) {
  const struct supervisor_effect *e = bench_effect(SUP_FORWARD);
  struct frame f;
  size_t size;
  assert_non_null(e);
  assert_non_null(e->bytes);
  const struct bytes *bytes = e->bytes;
  assert_int_equal(frame_parse(bytes->data, bytes->len, FRAME_MAX_UNIDENTIFIED, &f, &size, NULL), 1);
  assert_int_equal(msg_decode(&f, TO_DAEMON, m, NULL), 0);
  assert_int_equal(m->type, MSG_FORWARD);
}

static void assert_place(const char *host, const char *addr, int port, const char *daemon) {
  struct msg m;
  read_forward(&m);
  assert_string_equal(m.forward.host, host);
  assert_string_equal(m.forward.addr, addr);
  assert_int_equal(m.forward.port, port);
  assert_string_equal(m.forward.daemon, daemon);
  msg_finish(&m);
}

BENCH_TEST(test_node_0_says_where_the_job_is) {
  struct msg m;
  open_forwarding(0, "10.0.0.3");
  assert_int_equal(bench_count(SUP_FORWARD), 1);
  assert_int_equal(bench_effect(SUP_FORWARD)->forward.current, 0);
  assert_place("gpu1", "10.0.0.3", 29400, DAEMON_1);
  read_forward(&m);
  assert_string_equal(m.forward.job, "job");
  assert_int_equal(m.forward.uid, 1000);
  assert_string_equal(m.forward.incarnation, bench.incarnation);
  assert_int_equal(m.forward.round, 1);
  assert_int_equal(m.forward.term, 3);
  msg_finish(&m);
  bench_run(20000);
  assert_int_equal(bench_count(SUP_FORWARD), 1); /* the driver repeats it */
  bench_stop(1, NULL);
  bench_clear();
  assert_int_equal(bench_count(SUP_FORWARD), 1);
  bench_settled(1, true, 1, NULL);
  assert_int_equal(bench_count(SUP_FORWARD), 1); /* the next round may wait for those who are elsewhere */
  bench_start(2);
  read_forward(&m);
  assert_int_equal(m.forward.round, 2);
  msg_finish(&m);
}

/* In a round the others tell only the daemon that they run themselves. Between rounds the first four tell all of them: node
 * rank 0 may be the one that was lost. */
BENCH_TEST(test_others_do_between_rounds) {
  for (int64_t rank = 1; rank < 6; rank++) {
    open_forwarding(rank, "10.0.0.3");
    assert_true(bench_effect(SUP_FORWARD)->forward.own);
    bench_run(20000);
    bench_stop(1, NULL);
    bench_clear();
    bench_settled(1, true, 1, NULL);
    assert_int_equal(bench_effect(SUP_FORWARD)->bytes != NULL, rank < 4);
    assert_false(bench_effect(SUP_FORWARD)->forward.own && rank < 4);
  }
}

/* A later round runs without this node, and node rank 0 of that one knows its place. */
BENCH_TEST(test_a_round_without_it) {
  struct msg m;
  open_forwarding(0, "10.0.0.3");
  bench_stop(1, NULL);
  bench_clear();
  bench_settled(1, true, 1, NULL);
  msg_init(&m, MSG_WAITING);
  m.waiting.incarnation = bench.incarnation;
  m.waiting.round = 2;
  m.waiting.spare = true;
  m.waiting.text = "this node waits";
  bench_msg(&m);
  assert_null(bench_effect(SUP_FORWARD)->bytes);
}

BENCH_TEST(test_one_address_needs_no_telling) {
  bench.daemon = DAEMON_1;
  bench.node_rank = 0;
  bench.answering = true;
  bench_begin();
  link_up_at("10.0.0.3", 29400);
  bench_welcome(false);
  bench_start(1);
  bench_run(5000);
  assert_int_equal(bench_count(SUP_FORWARD), 0);
}

/* Other machines reach it by another address. */
BENCH_TEST(test_a_daemon_on_this_machine) {
  open_forwarding(0, "127.0.0.1");
  assert_place("gpu1", "10.0.0.1", 29400, DAEMON_1);
}

/* A connection that is lost for a moment changes nothing; one that is sought elsewhere does, until there is a daemon in
 * charge. */
BENCH_TEST(test_what_it_says_follows_the_daemon) {
  open_forwarding(0, "10.0.0.3");
  bench.n_successors = 0;
  bench_down(true);
  bench_run(1000);
  assert_int_equal(bench_count(SUP_FORWARD), 1);
  bench_run(20000);
  assert_said("asking gpu7");
  assert_int_equal(bench_count(SUP_FORWARD), 2);
  assert_null(bench_effect(SUP_FORWARD)->bytes);
  bench_down(true);
  bench_run(0);
  link_up_at("10.0.0.7", 29401);
  bench.daemon = DAEMON_2;
  bench.age_ms = 5000;
  bench_welcome(false);
  assert_int_equal(bench_count(SUP_FORWARD), 2);
  bench.age_ms = 0;
  bench_run(625);
  assert_int_equal(bench_count(SUP_FORWARD), 3);
  assert_int_equal(bench_effect(SUP_FORWARD)->forward.current, 1);
  assert_place("gpu7", "10.0.0.7", 29401, DAEMON_2);
}

/* A successor is at no address of --endpoint, so even a single one must be told. */
BENCH_TEST(test_a_successor_is_somewhere_else) {
  open_round();
  bench_stop(1, NULL);
  bench_clear();
  bench_settled(1, true, 1, NULL);
  bench_run(5000);
  assert_said("asking gpu2");
  bench_down(true);
  bench_run(0);
  assert_int_equal(bench_effect(SUP_CONNECT)->connect.to, CONNECT_SUCCESSOR);
  link_up_at(NULL, 0);
  bench.daemon = DAEMON_2;
  bench_welcome(false);
  bench.node_rank = 0;
  bench.n_successors = 0;
  bench_start(2);
  assert_int_equal(bench_effect(SUP_FORWARD)->forward.current, UINT32_MAX);
  assert_place("gpu2", "10.0.0.2", 4002, DAEMON_2);
}

/* SUP_EXIT is the last effect: tests/rig/supervisor.c. */
BENCH_TEST(test_the_end_takes_it_back) {
  open_forwarding(0, "10.0.0.3");
  bench_all_exited(EXITED(0));
  bench_clear();
  bench_end(0, NULL);
  assert_exit(0);
  assert_int_equal(bench_count(SUP_FORWARD), 2);
  assert_null(bench_effect(SUP_FORWARD)->bytes);
}

/* It was in no round yet. A daemon that knows nothing must learn from it that the job may run elsewhere. */
BENCH_TEST(test_a_newcomer_knows_that_the_job_can_move) {
  for (int moves = 0; moves < 2; moves++) {
    bench_open();
    bench.succeeded = moves;
    bench_joined();
    bench_down(false);
    bench_run(2000);
    bench_up();
    assert_int_equal(bench_hello()->succeeded, moves);
  }
}
