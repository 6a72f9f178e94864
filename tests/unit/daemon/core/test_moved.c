/* SPDX-License-Identifier: Apache-2.0 */
/* core: jobs that are with another daemon, as FORWARD says. */

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "daemon/core/internal.h"
#include "tests/rig/core.h"
#include "tests/rig/unit.h"

enum { ADA = 1000, EVE = 1001 };

#define HERE      "11111111111111111111111111111111"
#define THERE     "22222222222222222222222222222222"
#define ELSEWHERE "33333333333333333333333333333333"
/* The rig's clock begins at 1700000000000 ms. */
#define BEFORE    "018bcfe56700-0123456789abcdef"
#define RUN       "018bcfe56800-0123456789abcdef"
#define RUN_TWO   "018bcfe56801-0123456789abcdef"
#define LATER     "018bcfe57000-0123456789abcdef"

static void open_rig(struct rig *r) {
  rig_open_with(r, &(struct core_config){.seed = 1, .host = "gpu1", .id = HERE, .port = 29400});
  r->settings.daemons = 2;
}

static struct forward forward_to(const char *daemon, int64_t round, int64_t term) {
  return (struct forward){.job = "job",
                          .uid = ADA,
                          .incarnation = RUN,
                          .origin = BEFORE,
                          .round = round,
                          .term = term,
                          .daemon = daemon,
                          .host = "gpu2",
                          .addr = "10.0.0.77",
                          .port = 29400};
}

/* On a connection of its own, or that of `conn`. Returns the connection. */
static uint64_t say_on(struct rig *r, const struct forward *f, int64_t uid, uint64_t conn) {
  struct msg m;
  msg_init(&m, MSG_FORWARD);
  m.forward = *f;
  if (!conn) conn = ++r->next_conn;
  rig_event(
      r,
      &(struct core_event){
          .kind = CORE_MSG, .conn = conn, .msg = &m, .peer_addr = "10.0.0.78", .local_addr = "10.0.255.1", .uid = uid});
  return conn;
}

static uint64_t say(struct rig *r, const struct forward *f) {
  uint64_t conn = say_on(r, f, -1, 0);
  assert_true(rig_was_closed(r, conn));
  return conn;
}

static void assert_sent_on(struct rig *r, const struct node *n) {
  const struct msg *m = rig_last(r, n->conn, MSG_MOVED);
  assert_non_null(m);
  assert_string_equal(m->moved.host, "gpu2");
  assert_string_equal(m->moved.addr, "10.0.0.77");
  assert_int_equal(m->moved.port, 29400);
  assert_null(rig_last(r, n->conn, MSG_WELCOME));
  assert_true(rig_was_closed(r, n->conn));
}

static void assert_welcome(struct rig *r, const struct node *n) {
  assert_non_null(rig_last(r, n->conn, MSG_WELCOME));
  assert_null(rig_last(r, n->conn, MSG_MOVED));
}

/* A node that followed another daemon in round `round` of RUN, as node `rank` of two. */
static void come_from(struct rig *r, struct node *n, const char *daemon, int64_t round, int64_t term, int64_t rank) {
  struct msg m;
  snprintf(n->incarnation, sizeof n->incarnation, RUN);
  n->round = round;
  n->nodes = 2;
  n->node_rank = rank;
  node_hello(n, &m);
  m.hello.phase = PHASE_RUNNING;
  m.hello.follows = daemon;
  m.hello.term = term;
  m.hello.silent_ms = 3000;
  m.hello.voted_incarnation = RUN;
  m.hello.voted_round = round;
  m.hello.origin = BEFORE;
  m.hello.seal.nodes = 2;
  m.hello.firm = true;
  n->conn = ++r->next_conn;
  node_say(r, n, &m);
}

/* The life of an entry. -------------------------------------------------------------------------------------------- */

RIG_TEST(test_newcomers_are_sent_on) {
  open_rig(r);
  const struct forward f = forward_to(THERE, 3, 2);
  uint64_t conn = say(r, &f);
  assert_null(rig_last(r, conn, MSG_REFUSED));
  rig_joined(r, n, 2);
  for (int i = 0; i < 2; i++) assert_sent_on(r, &n[i]);
  const struct msg *m = rig_last(r, n[0].conn, MSG_MOVED);
  assert_string_equal(m->moved.incarnation, RUN);
  assert_int_equal(m->moved.round, 3);
  assert_true(core_idle(r->core));
  assert_false(core_served(r->core));
  assert_true(core_sends_on(r->core));
  assert_int_equal(core_deadline(r->core), r->now_ms + MOVED_KEEP_MS);
}

/* It lives as long as FORWARDs come, and not longer. */
RIG_TEST(test_it_is_forgotten) {
  open_rig(r);
  const struct forward f = forward_to(THERE, 3, 2);
  nodes_init(r, n, 2);
  for (int i = 0; i < 20; i++) {
    say(r, &f);
    rig_run(r, 5000);
  }
  rig_run(r, MOVED_KEEP_MS - 5001);
  node_join(r, &n[0]);
  assert_sent_on(r, &n[0]);
  rig_run(r, 1);
  assert_false(core_sends_on(r->core));
  assert_int_equal(core_deadline(r->core), UINT64_MAX);
  nodes_join(r, n, 2);
  for (int i = 0; i < 2; i++) assert_welcome(r, &n[i]);
  assert_int_equal(n[0].world_size, 2);
}

RIG_TEST(test_a_late_tick_sends_nobody_on) {
  open_rig(r);
  const struct forward f = forward_to(THERE, 3, 2);
  say(r, &f);
  r->now_ms += MOVED_KEEP_MS; /* no tick yet */
  node_init(r, n, 0);
  node_join(r, n);
  assert_welcome(r, n);
}

/* A job here. ------------------------------------------------------------------------------------------------------ */

RIG_TEST(test_a_job_without_a_round_goes_there) {
  open_rig(r);
  rig_joined(r, n, 1);
  assert_string_equal(rig_state(r, "job"), "forming");
  const struct forward f = forward_to(THERE, 1, 1);
  rig_forget(r);
  say(r, &f);
  assert_sent_on(r, n);
  assert_non_null(strstr(buf_text(&r->log), "job job: it is with the daemon on gpu2 (10.0.0.77:29400), in round 1"));
  rig_run(r, MOVED_KEEP_MS);
  assert_int_equal(core_deadline(r->core), UINT64_MAX); /* the job is forgotten */
  assert_true(core_idle(r->core));
}

static void beat(struct rig *r, struct node *n, size_t n_nodes) {
  for (int i = 0; i < 8; i++) {
    r->now_ms += 100;
    nodes_heartbeat(r, n, n_nodes);
  }
}

/* With a majority behind it, this daemon has the latest round. Where none is asked, a later token counts. */
RIG_TEST(test_a_daemon_in_charge_keeps_its_job) {
  for (int alone = 0; alone < 2; alone++) {
    open_rig(r);
    if (alone) r->settings.daemons = 0;
    rig_running(r, n, 2);
    beat(r, n, 2);
    struct forward f = forward_to(THERE, 7, 9);
    f.incarnation = f.origin = n[0].incarnation;
    f.round = 1;
    say(r, &f);
    for (int i = 0; i < 2; i++) assert_null(rig_last(r, n[i].conn, MSG_MOVED));
    assert_string_equal(rig_state(r, "job"), "running");
    assert_non_null(strstr(buf_text(&r->log), "but this one is in charge"));
    rig_forget(r);
    f.round = 2;
    say(r, &f);
    for (int i = 0; i < 2; i++)
      if (alone)
        assert_sent_on(r, &n[i]);
      else
        assert_null(rig_last(r, n[i].conn, MSG_MOVED));
    assert_int_equal(core_sends_on(r->core), alone);
    assert_int_equal(core_idle(r->core), alone);
  }
}

/* The node of the younger run hears where the older one is. */
static void assert_older(const struct msg *m, const char *addr, const char *daemon, const char *origin, int64_t round) {
  assert_non_null(m);
  assert_string_equal(m->moved.addr, addr);
  assert_int_equal(m->moved.port, 29400);
  assert_string_equal(m->moved.daemon, daemon);
  assert_string_equal(m->moved.origin, origin);
  assert_int_equal(m->moved.round, round);
}

RIG_TEST(test_the_younger_of_two_runs_hears_of_the_older) {
  open_rig(r);
  struct forward f = forward_to(THERE, 7, 9);
  assert_null(rig_last(r, say(r, &f), MSG_MOVED));
  f.round = 6; /* an earlier round of the same run: the daemon tells nobody */
  assert_null(rig_last(r, say(r, &f), MSG_MOVED));
  f.origin = RUN;
  f.round = 8;
  f.daemon = ELSEWHERE;
  f.addr = "10.0.0.99";
  const struct msg *m = rig_last(r, say(r, &f), MSG_MOVED);
  assert_older(m, "10.0.0.77", THERE, BEFORE, 7);
  assert_string_equal(m->moved.host, "gpu2");
  assert_int_equal(m->moved.term, 9);
  assert_string_equal(m->moved.incarnation, RUN);
}

/* The job has formed twice, apart. */
RIG_TEST(test_the_older_of_two_runs_goes_on) {
  for (int older = 0; older < 2; older++) {
    struct node other;
    open_rig(r);
    rig_running(r, n, 2);
    beat(r, n, 2);
    rig_forget(r);
    struct forward f = forward_to(THERE, 7, 9);
    f.incarnation = LATER;
    f.origin = older ? BEFORE : LATER;
    const struct msg *answer = rig_last(r, say(r, &f), MSG_MOVED);
    for (int i = 0; i < 2; i++)
      if (older)
        assert_sent_on(r, &n[i]);
      else
        assert_null(rig_last(r, n[i].conn, MSG_MOVED));
    if (older)
      assert_null(answer);
    else
      assert_older(answer, "10.0.255.1", HERE, n[0].incarnation, 1);
    if (older) node_back(r, &n[0], PHASE_RUNNING); /* the other daemon does not answer it: it may not run on here */
    if (older) assert_sent_on(r, &n[0]);
    node_init(r, &other, 5); /* and one of a younger run that comes itself */
    snprintf(other.incarnation, sizeof other.incarnation, LATER);
    snprintf(other.voted_incarnation, sizeof other.voted_incarnation, LATER);
    snprintf(other.origin, sizeof other.origin, LATER);
    other.round = other.voted_round = 1;
    other.node_rank = 0;
    other.nodes = 2;
    if (!older) node_back(r, &other, PHASE_RUNNING);
    if (!older) assert_non_null(strstr(rig_last(r, other.conn, MSG_STALE)->stale.text, "began before this node's"));
  }
}

/* Its nodes follow another one, or are cut off. */
RIG_TEST(test_a_daemon_without_a_majority_gives_up) {
  open_rig(r);
  rig_running(r, n, 2);
  beat(r, n, 2);
  r->now_ms += 4000;
  rig_forget(r);
  struct forward f = forward_to(THERE, 1, 2);
  f.incarnation = f.origin = n[0].incarnation;
  say(r, &f);
  for (int i = 0; i < 2; i++) assert_sent_on(r, &n[i]);
  rig_forget(r);
  node_back(r, &n[1], PHASE_RUNNING); /* as if it had not read it */
  assert_sent_on(r, &n[1]);
}

/* The nodes of an ended run learn how it ended. */
RIG_TEST(test_an_end_comes_first) {
  open_rig(r);
  rig_running(r, n, 2);
  nodes_finished(r, n, 2);
  node_end_ack(r, &n[0]);
  node_drop(r, &n[1]);
  struct forward f = forward_to(THERE, 1, 1);
  f.incarnation = "018bcfe60000-0123456789abcdef";
  say(r, &f);
  node_back(r, &n[1], PHASE_FINISHED);
  assert_non_null(rig_last(r, n[1].conn, MSG_END));
  assert_null(rig_last(r, n[1].conn, MSG_MOVED));
  struct node other;
  node_init(r, &other, 5);
  node_join(r, &other);
  assert_sent_on(r, &other);
}

/* No circles. ------------------------------------------------------------------------------------------------------ */

RIG_TEST(test_nodes_that_come_from_there) {
  static const struct {
    const char *follows;
    int64_t round, term;
    bool stays;
  } t[] = {
      {THERE, 3, 2, true},      /* that daemon does not answer */
      {THERE, 3, 3, true},      /* nor now, and it was asked later */
      {THERE, 2, 1, false},     /* it followed an earlier life of that daemon */
      {ELSEWHERE, 3, 2, false}, /* one of the daemons before */
      {ELSEWHERE, 4, 2, true},  /* it knows a later round, */
      {ELSEWHERE, 3, 3, true},  /* or a later daemon */
      {HERE, 2, 1, false},      {"", 0, 0, false},
  };
  for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
    open_rig(r);
    const struct forward f = forward_to(THERE, 3, 2);
    say(r, &f);
    node_init(r, n, 0);
    if (t[i].round)
      come_from(r, n, t[i].follows, t[i].round, t[i].term, 0);
    else
      node_join(r, n);
    if (t[i].stays)
      assert_welcome(r, n);
    else
      assert_sent_on(r, n);
  }
}

/* The named daemon is lost too, and its nodes come here: newcomers follow. */
RIG_TEST(test_the_job_comes_back) {
  open_rig(r);
  r->settings.max_nodes = 3;
  const struct forward f = forward_to(THERE, 3, 2);
  say(r, &f);
  nodes_init(r, n, 3);
  for (int i = 0; i < 2; i++) come_from(r, &n[i], THERE, 3, 2, i);
  for (int i = 0; i < 2; i++) assert_welcome(r, &n[i]);
  beat(r, n, 2);
  node_join(r, &n[2]);
  assert_welcome(r, &n[2]);
  assert_false(core_sends_on(r->core));
}

/* A FORWARD of a node that lags behind. */
RIG_TEST(test_an_older_word_is_not_believed) {
  open_rig(r);
  node_init(r, n, 0);
  struct forward f = forward_to(THERE, 3, 2);
  say(r, &f);
  struct forward old = forward_to(ELSEWHERE, 3, 1);
  old.host = "gpu3";
  old.addr = "10.0.0.99";
  say(r, &old);
  old.round = 2;
  old.term = 5;
  say(r, &old);
  old.incarnation = BEFORE;
  old.round = 9;
  say(r, &old);
  node_join(r, n);
  assert_sent_on(r, n);
  old.incarnation = RUN_TWO;
  old.round = 1;
  say(r, &old);
  node_join(r, n);
  assert_string_equal(rig_last(r, n->conn, MSG_MOVED)->moved.addr, "10.0.0.99");
}

RIG_TEST(test_two_addresses_of_one_daemon) {
  open_rig(r);
  const struct forward f = forward_to(HERE, 3, 2);
  uint64_t conn = say(r, &f);
  assert_null(rig_last(r, conn, MSG_REFUSED));
  node_init(r, n, 0);
  node_join(r, n);
  assert_welcome(r, n);
}

/* Users. ----------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_it_is_for_its_own_user) {
  struct node ada, eve;
  open_rig(r);
  node_init(r, &ada, 0);
  node_init(r, &eve, 1);
  ada.key_uid = ADA;
  eve.key_uid = eve.uid = EVE;
  node_join(r, &ada);
  struct forward f = forward_to(THERE, 3, 2); /* names Ada */
  assert_true(rig_was_closed(r, say_on(r, &f, EVE, 0)));
  assert_null(rig_last(r, ada.conn, MSG_MOVED));
  node_join(r, &eve);
  assert_sent_on(r, &eve);
  rig_forget(r);
  node_hello_again(r, &ada);
  assert_welcome(r, &ada);
  rig_forget(r);
  say_on(r, &f, 0, 0); /* root speaks for Ada */
  assert_sent_on(r, &ada);
}

/* The holders of the daemon's own key are one user. */
RIG_TEST(test_holders_of_the_daemons_key) {
  open_rig(r);
  const struct forward f = forward_to(THERE, 3, 2);
  say_on(r, &f, 0, 0);
  node_init(r, n, 0);
  n->key_uid = 0;
  n->uid = 4711;
  node_join(r, n);
  assert_sent_on(r, n);
}

RIG_TEST(test_limits) {
  char id[32];
  open_rig(r);
  struct forward f = forward_to(THERE, 3, 2);
  f.job = id;
  for (int i = 0; i <= ACCOUNT_MOVED_MAX; i++) {
    snprintf(id, sizeof id, "job%d", i);
    rig_forget(r);
    say_on(r, &f, EVE, 0);
  }
  assert_non_null(
      strstr(buf_text(&r->log), "job job1024: its daemon is not remembered, because uid 1001 has 1024 such"));
  node_init(r, n, 0);
  n->job = id;
  n->key_uid = n->uid = EVE;
  node_join(r, n);
  assert_welcome(r, n);
  f.job = "job";
  say_on(r, &f, ADA, 0); /* others have room */
  rig_run(r, MOVED_KEEP_MS);
  assert_false(core_sends_on(r->core));
  say_on(r, &f, EVE, 0);
  assert_true(core_sends_on(r->core));
}

RIG_TEST(test_the_limit_of_all) {
  char id[32];
  open_rig(r);
  struct forward f = forward_to(THERE, 3, 2);
  f.job = id;
  for (int i = 0; i <= MOVED_MAX; i++) {
    snprintf(id, sizeof id, "job%d", i);
    rig_forget(r);
    say_on(r, &f, 2000 + i / 1000, 0);
  }
  assert_non_null(strstr(buf_text(&r->log), "because this daemon has 4096 such jobs"));
  rig_run(r, MOVED_KEEP_MS);
  assert_int_equal(core_deadline(r->core), UINT64_MAX);
}

/* Hostile values. -------------------------------------------------------------------------------------------------- */

RIG_TEST(test_what_is_refused) {
  static const struct {
    const char *daemon, *addr, *incarnation;
    int64_t port, round;
    const char *says;
  } t[] = {
      {"22", "10.0.0.77", RUN, 29400, 3, "FORWARD of job job names daemon 22, and no rdzvd has such an id"},
      {"2222222222222222222222222222222-", "10.0.0.77", RUN, 29400, 3, "and no rdzvd has such an id"},
      {THERE, "gpu2", RUN, 29400, 3, "names address gpu2, which is not numeric"},
      {THERE, "10.0.0.77 10.0.0.78", RUN, 29400, 3, "which is not numeric"},
      {THERE, "0.0.0.0", RUN, 29400, 3, "which is not one machine's"},
      {THERE, "ff02::1", RUN, 29400, 3, "which is not one machine's"},
      {THERE, "255.255.255.255", RUN, 29400, 3, "which is not one machine's"},
      {THERE, "127.0.0.1", RUN, 29400, 3, "which leads from each machine to itself"},
      {THERE, "::1", RUN, 29400, 3, "which leads from each machine to itself"},
      {THERE, "10.0.255.1", RUN, 29400, 3, "names this daemon's own address, 10.0.255.1"},
      {THERE, "::ffff:10.0.255.1", RUN, 29400, 3, "names this daemon's own address"},
      {THERE, "10.0.0.77", "-", 29400, 3, "no rdzvd gives such names"},
      {THERE, "10.0.0.77", "ffffffffffff-0123456789abcdef", 29400, 3, "begins more than 24 hours after now"},
      {THERE, "10.0.0.77", RUN, 29400, 499999999, "names round 499999999, for which its job had no time"},
      {THERE, "10.0.0.77", "000000000000-0123456789abcdef", 29400, ROUND_MAX, "which no job has reached"},
  };
  for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
    open_rig(r);
    rig_joined(r, n, 1);
    struct forward f = forward_to(t[i].daemon, t[i].round, 2);
    f.addr = t[i].addr;
    f.incarnation = f.origin = t[i].incarnation;
    f.port = t[i].port;
    uint64_t conn = say(r, &f);
    const struct msg *m = rig_last(r, conn, MSG_REFUSED);
    assert_non_null(m);
    if (!strstr(m->refused.text, t[i].says)) fail_msg("%s", m->refused.text);
    assert_null(rig_last(r, n->conn, MSG_MOVED));
    assert_false(core_sends_on(r->core));
  }
}

/* The other port of this machine is another daemon's, and so is loopback for a sender on it. */
RIG_TEST(test_another_daemon_of_this_machine) {
  open_rig(r);
  struct forward f = forward_to(THERE, 3, 2);
  f.addr = "10.0.255.1";
  f.port = 29401;
  assert_null(rig_last(r, say(r, &f), MSG_REFUSED));
  f.addr = "127.0.0.1";
  f.daemon = ELSEWHERE;
  struct msg m;
  msg_init(&m, MSG_FORWARD);
  m.forward = f;
  rig_msg(r, 900, &m, "127.0.0.1", "127.0.0.1");
  assert_null(rig_last(r, 900, MSG_REFUSED));
}

/* One FORWARD a connection; on an agent's own it ends that; and none on the control socket. */
RIG_TEST(test_its_connection) {
  open_rig(r);
  struct forward f = forward_to(THERE, 3, 2);
  uint64_t conn = say(r, &f);
  rig_forget(r);
  f.round = 4;
  f.daemon = ELSEWHERE;
  say_on(r, &f, -1, conn);
  assert_int_equal(r->log.len, 0);
  assert_int_equal(r->n_sent, 0);
  rig_run(r, MOVED_KEEP_MS);
  node_init(r, n, 0);
  node_join(r, n);
  f.job = "another";
  say_on(r, &f, -1, n->conn);
  assert_true(rig_was_closed(r, n->conn));
  node_back(r, n, PHASE_NONE);
  assert_welcome(r, n);
  struct msg m;
  msg_init(&m, MSG_FORWARD);
  m.forward = f;
  rig_event(r,
            &(struct core_event){
                .kind = CORE_MSG, .conn = 901, .msg = &m, .peer_addr = "", .local_addr = "", .local = true, .uid = 0});
  assert_non_null(strstr(rig_last(r, 901, MSG_REFUSED)->refused.text, "FORWARD is not accepted on this socket"));
}

/* rdzvctl. --------------------------------------------------------------------------------------------------------- */

static int ask(struct rig *r, int64_t uid, const char *verb, const char *job, bool json) {
  return rig_ask(r, &(struct control){.verb = verb, .job = job, .rank = 0, .json = json, .owner = -1}, uid);
}

RIG_TEST(test_rdzvctl_says_where) {
  open_rig(r);
  struct forward f = forward_to(THERE, 3, 2);
  f.host = "gpu2\n";
  say_on(r, &f, ADA, 0);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(ask(r, i ? 0 : ADA, i ? "jobs" : "status", i ? "" : "job", false), 0);
    assert_string_equal(buf_text(&r->said), "job: moved to the daemon on gpu2\\n (10.0.0.77:29400)\n");
  }
  f.addr = "fd00::7";
  say_on(r, &f, EVE, 0);
  assert_int_equal(ask(r, 0, "status", "", false), 0);
  assert_said(r, "job (uid 1001): moved to the daemon on gpu2\\n ([fd00::7]:29400)\n");
  assert_int_equal(ask(r, EVE, "status", "", true), 0);
  assert_said(r, "{\"jobs\":[{\"job\":\"job\",\"uid\":1001,\"moved_to\":\"gpu2\\\\n ([fd00::7]:29400)\"}]");
  assert_int_equal(ask(r, 2000, "status", "job", false), 1);
  assert_string_equal(buf_text(&r->said), "no job of yours has the id job; you have none here\n");
  assert_int_equal(ask(r, ADA, "stop", "job", false), 1);
  assert_string_equal(buf_text(&r->said),
                      "job job has moved to the daemon on gpu2\\n (10.0.0.77:29400): ask that one, with --endpoint\n");
  assert_int_equal(ask(r, ADA, "stop", "job", true), 1);
  assert_said(r, "\"moved_to\":\"gpu2\\\\n (10.0.0.77:29400)\"");
  assert_int_equal(ask(r, ADA, "stop", "other", false), 1);
  assert_string_equal(buf_text(&r->said), "no job of yours has the id other; you have none here\n");
}

RIG_TEST(test_rdzvctl_shows_the_daemon) {
  open_rig(r);
  rig_joined(r, n, 1);
  ask(r, 0, "status", "job", false);
  assert_said(r, "\n  daemon gpu1\n");
  node_init(r, &n[1], 1);
  node_join(r, &n[1]);
  nodes_started(r, n, 2);
  beat(r, n, 2);
  ask(r, 0, "status", "job", false);
  if (!rig_said(r, ", in charge (heard a majority 0.")) fail_msg("%s", buf_text(&r->said));
  ask(r, 0, "status", "job", true);
  assert_said(r, "\"daemon\":{\"host\":\"gpu1\",\"term\":");
  assert_said(r, "\"in_charge\":true,");
  assert_said(r, "\"successors\":[],\"claims\":false}");
  r->now_ms += 6000; /* no tick yet */
  ask(r, 0, "status", "job", false);
  assert_said(r, ", not in charge (heard no majority for 5.0 s or longer)");
  ask(r, 0, "status", "job", true);
  assert_said(r, "\"in_charge\":false,\"age_ms\":5000,");
}

/* The agents that would start the next daemon, and claims. */
RIG_TEST(test_rdzvctl_shows_successors) {
  struct msg m;
  rig_open_with(r, &(struct core_config){.seed = 1, .host = "gpu1", .id = HERE, .port = 29400, .owned = true});
  r->settings.min_nodes = r->settings.max_nodes = 3;
  nodes_init(r, n, 3);
  snprintf(n[0].peer_addr, sizeof n[0].peer_addr, "%s", n[0].local_addr); /* on the daemon's machine */
  for (int i = 0; i < 3; i++) {
    node_hello(&n[i], &m);
    m.hello.standby_port = 29500;
    n[i].conn = ++r->next_conn;
    node_say(r, &n[i], &m);
  }
  nodes_started(r, n, 3);
  ask(r, 0, "status", "job", false);
  assert_said(r, "\n  daemon gpu1, term 1, in charge (heard a majority 0.0 s ago); successors n1, n2\n");
  ask(r, 0, "status", "job", true);
  assert_said(r, "\"term\":1,\"in_charge\":true,\"age_ms\":0,\"successors\":[\"n1\",\"n2\"],");
  nodes_finished(r, n, 3);
  ask(r, 0, "status", "job", false);
  assert_null(rig_said(r, "daemon"));
}
