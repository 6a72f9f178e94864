/* SPDX-License-Identifier: Apache-2.0 */
/* core: several users at one daemon. Jobs with one id, and attacks of an authenticated user upon another. */

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "daemon/job/accounts.h"
#include "tests/rig/core.h"
#include "tests/rig/unit.h"

enum { ADA = 1000, EVE = 1001 };

static int ask(struct rig *r, int64_t uid, const char *verb, int64_t owner) {
  return rig_ask(r, &(struct control){.verb = verb, .job = "train", .rank = 0, .owner = owner}, uid);
}

static const struct msg *refused(struct rig *r, const struct node *n, const char *part) {
  const struct msg *m = rig_last(r, n->conn, MSG_REFUSED);
  assert_non_null(m);
  if (!strstr(m->refused.text, part)) fail_msg("%s", m->refused.text);
  assert_true(rig_was_closed(r, n->conn));
  return m;
}

static void node_of(struct rig *r, struct node *n, int i, int64_t uid) {
  node_init(r, n, i);
  n->job = "train";
  n->key_uid = uid;
  n->uid = uid < 0 ? ADA : uid;
}

/* Two nodes of Ada's job run, and two of Eve's with the same id. */
static void open_two(struct rig *r, struct node n[4]) {
  rig_open(r, 1);
  r->job = "train";
  for (int i = 0; i < 4; i++) node_of(r, &n[i], i, i < 2 ? ADA : EVE);
  for (int i = 0; i < 4; i++) node_join(r, &n[i % 2 * 2 + i / 2]); /* in turn */
  nodes_started(r, n, 4);
}

/* One id. ---------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_two_users_with_one_id) {
  open_two(r, n);
  for (int i = 0; i < 4; i++) assert_int_equal(n[i].world_size, 2);
  assert_string_equal(n[0].incarnation, n[1].incarnation);
  assert_string_equal(n[2].incarnation, n[3].incarnation);
  assert_string_not_equal(n[0].incarnation, n[2].incarnation);
  rig_forget(r);
  node_exited(r, &n[2], 3, 0);
  assert_non_null(rig_last(r, n[3].conn, MSG_STOP));
  for (int i = 0; i < 2; i++) assert_null(rig_last(r, n[i].conn, MSG_STOP));
  nodes_stopped(r, &n[2], 2);
  assert_int_equal(n[2].round, 2);
  assert_int_equal(n[0].round, 1);
  nodes_finished(r, n, 2);
  assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
  assert_null(rig_last(r, n[2].conn, MSG_END));
  assert_non_null(strstr(r->log.data, "job train (uid 1001): running -> stopping")); /* the log tells them apart */
}

/* Nobody learns of a namesake but root and the daemon's user. */
RIG_TEST(test_who_sees_which) {
  open_two(r, n);
  assert_int_equal(ask(r, ADA, "status", -1), 0);
  assert_said(r, "train: running");
  assert_said(r, "n0");
  assert_null(rig_said(r, "n2"));
  assert_null(rig_said(r, "1001"));
  assert_int_equal(ask(r, ADA, "status", EVE), 1);
  assert_string_equal(buf_text(&r->said), "no job of uid 1001 has the id train; that user has none here\n");
  assert_int_equal(ask(r, 2000, "status", -1), 1);
  assert_string_equal(buf_text(&r->said), "no job of yours has the id train; you have none here\n");
  assert_int_equal(ask(r, 0, "status", -1), 0);
  assert_said(r, "train (uid 1000): running");
  assert_said(r, "train (uid 1001): running");
  assert_int_equal(ask(r, 0, "status", EVE), 0);
  assert_null(rig_said(r, "n0"));
  assert_said(r, "n2");
}

RIG_TEST(test_a_verb_is_for_one_of_them) {
  static const char *const verbs[] = {"stop", "kill-worker"};
  open_two(r, n);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(ask(r, 0, verbs[i], -1), EXIT_CODE_USAGE);
    assert_string_equal(buf_text(&r->said),
                        "2 users have a job with the id train: choose one with --user 1000, 1001\n");
    assert_int_equal(ask(r, EVE, verbs[i], ADA), 1);
  }
  rig_ask(r, &(struct control){.verb = "stop", .job = "train", .json = true, .owner = -1}, 0);
  assert_said(r, "\"users\":[1000,1001]");
  assert_int_equal(ask(r, 0, "kill-worker", EVE), 0);
  assert_non_null(rig_last(r, n[2].conn, MSG_KILL));
  assert_null(rig_last(r, n[0].conn, MSG_KILL));
  assert_int_equal(ask(r, EVE, "stop", -1), 0);
  nodes_stopped(r, &n[2], 2);
  nodes_end_ack(r, &n[2], 2);
  assert_null(rig_last(r, n[0].conn, MSG_STOP));
  assert_int_equal(ask(r, 0, "stop", -1), 0); /* the other is over, so this one is meant */
  assert_non_null(rig_last(r, n[0].conn, MSG_STOP));
}

RIG_TEST(test_the_state_file_has_both) {
  for (int with_state = 0; with_state < 2; with_state++) {
    open_two(r, n);
    rig_restart(r, with_state);
    nodes_back(r, n, 4, PHASE_RUNNING);
    for (int i = 0; i < 4; i++) assert_null(rig_last(r, n[i].conn, MSG_STALE));
    assert_int_equal(ask(r, ADA, "status", -1), 0);
    assert_said(r, "train: running");
    assert_null(rig_said(r, "n2"));
    assert_int_equal(ask(r, EVE, "status", -1), 0);
    assert_said(r, "train: running");
    assert_null(rig_said(r, "n0"));
  }
}

/* The end of a job is kept for its own nodes. */
RIG_TEST(test_an_end_is_for_its_own) {
  struct node late;
  open_two(r, n);
  ask(r, EVE, "stop", -1);
  nodes_stopped(r, &n[2], 2);
  late = n[2];
  nodes_end_ack(r, &n[2], 2);
  rig_forget(r);
  late.key_uid = ADA; /* her token, said by another */
  late.conn = 0;
  snprintf(late.agent, sizeof late.agent, "%032x", 99);
  r->nodes[0] = &late;
  node_back(r, &late, PHASE_RUNNING);
  assert_null(rig_last(r, late.conn, MSG_END));
  node_back(r, &n[2], PHASE_STOPPED);
  assert_non_null(rig_last(r, n[2].conn, MSG_END));
}

RIG_TEST(test_a_death_report_is_for_its_own) {
  struct node fake;
  open_two(r, n);
  fake = n[0]; /* Eve has learned the id of Ada's agent */
  fake.key_uid = EVE;
  rig_forget(r);
  node_death_report(r, &fake);
  assert_null(rig_last(r, n[1].conn, MSG_STOP));
  node_death_report(r, &n[0]);
  assert_non_null(rig_last(r, n[1].conn, MSG_STOP));
}

RIG_TEST(test_what_a_job_excludes_is_its_own) {
  rig_open_for(r, 1, 2);
  r->settings.exclude_after = 1;
  r->settings.last_call_ms = 100;
  for (int i = 0; i < 4; i++) node_of(r, &n[i], i, i < 2 ? ADA : EVE);
  snprintf(n[2].host, sizeof n[2].host, "n1");
  nodes_join(r, n, 4);
  nodes_started(r, n, 4);
  node_exited(r, &n[1], 1, 0);
  nodes_stopped(r, n, 2);
  assert_non_null(strstr(r->log.data, "host n1 is excluded"));
  assert_null(rig_last(r, n[2].conn, MSG_PREPARE));
  rig_ask(r, &(struct control){.verb = "status", .owner = -1}, EVE);
  assert_null(rig_said(r, "drained"));
  rig_ask(r, &(struct control){.verb = "undrain", .host = "n1", .owner = -1}, EVE);
  assert_string_equal(buf_text(&r->said), "host n1 is not drained; no host is drained\n");
  assert_int_equal(rig_ask(r, &(struct control){.verb = "undrain", .host = "n1", .owner = -1}, ADA), 0);
}

/* The daemon's own key. -------------------------------------------------------------------------------------------- */

/* Its holders act for the user whom HELLO names. A person whose hosts give different uids is one user all the same. */
RIG_TEST(test_holders_of_the_daemons_key) {
  rig_open(r, 1); /* the daemon's user is root */
  for (int i = 0; i < 4; i++) node_of(r, &n[i], i, i < 2 ? 0 : EVE);
  n[0].uid = ADA;
  n[1].uid = EVE;
  nodes_join(r, n, 4);
  assert_string_equal(n[0].incarnation, n[1].incarnation);
  assert_int_equal(n[0].world_size, 2);
  assert_string_equal(n[2].incarnation, n[3].incarnation);
  assert_string_not_equal(n[0].incarnation, n[2].incarnation); /* Eve's own key is not that of the daemon */
  assert_int_equal(ask(r, ADA, "status", -1), 0);
  assert_said(r, "n1");
  rig_restart(r, true);
  node_back(r, &n[1], PHASE_STARTING);
  node_back(r, &n[0], PHASE_STARTING);
  for (int i = 0; i < 2; i++) assert_null(rig_last(r, n[i].conn, MSG_STALE));
  assert_int_equal(ask(r, ADA, "status", -1), 0);
  assert_said(r, "train: starting");
}

/* The port. -------------------------------------------------------------------------------------------------------- */

static uint64_t control_at_the_port(struct rig *r, int64_t uid, const char *from, uint64_t conn) {
  struct msg m;
  msg_init(&m, MSG_CONTROL);
  m.control.verb = "stop";
  m.control.job = "train";
  m.control.host = m.control.user = "";
  m.control.owner = -1;
  if (!conn) conn = ++r->next_conn;
  rig_event(r,
            &(struct core_event){
                .kind = CORE_MSG, .conn = conn, .msg = &m, .peer_addr = from, .local_addr = "10.0.255.1", .uid = uid});
  return conn;
}

RIG_TEST(test_control_at_the_port) {
  open_two(r, n);
  uint64_t conn = control_at_the_port(r, -1, "10.0.0.7", 0);
  assert_null(rig_last(r, conn, MSG_CONTROL_REPLY));
  assert_non_null(strstr(rig_last(r, conn, MSG_REFUSED)->refused.text, "use its control socket"));
  conn = control_at_the_port(r, 2000, "10.0.0.7", 0);
  const struct msg *reply = rig_last(r, conn, MSG_CONTROL_REPLY);
  assert_int_equal(reply->control_reply.code, 1);
  assert_memory_equal(reply->raw, "no job of yours has the id train; you have none here\n", reply->raw_len);
  assert_true(rig_was_closed(r, conn));
  conn = control_at_the_port(r, EVE, "10.0.0.7", 0);
  assert_int_equal(rig_last(r, conn, MSG_CONTROL_REPLY)->control_reply.code, 0);
  rig_forget(r);
  control_at_the_port(r, EVE, "10.0.0.7", conn); /* one question, even if the connection is not closed yet */
  assert_int_equal(r->n_sent, 0);
  nodes_stopped(r, &n[2], 2);
  assert_string_equal(rig_end(r, &n[2])->verdict.text, "rdzvctl stop by uid 1001 from 10.0.0.7");
}

/* On an agent's own connection it ends that, and the agent may come back. */
RIG_TEST(test_control_of_an_agent) {
  open_two(r, n);
  control_at_the_port(r, ADA, "10.0.0.1", n[0].conn);
  assert_non_null(rig_last(r, n[0].conn, MSG_CONTROL_REPLY));
  assert_true(rig_was_closed(r, n[0].conn));
  node_back(r, &n[0], PHASE_STOPPING);
  nodes_stopped(r, n, 2);
  assert_string_equal(rig_end(r, &n[0])->verdict.text, "rdzvctl stop by uid 1000 from 10.0.0.1");
}

/* Attacks. --------------------------------------------------------------------------------------------------------- */

/* What is said of a run that is newer than Ada's, by another user, and by a peer of whom nothing is known. */
RIG_TEST(test_a_run_from_the_future) {
  static const struct {
    const char *incarnation;
    int64_t round;
    const char *says;
  } t[] = {
      {"ffffffffffff-0123456789abcdef", 499999999, "begins more than 24 hours after now"},
      {"018bd5ff0000-0123456789abcdef", 499999999, "begins more than 24 hours after now"},
      {"018bcfe56800-0123456789abcdef", 499999999, "names round 499999999, for which its job had no time"},
      {"ffffffffffffff-1", 3, "no rdzvd gives such names"},
      {"-", 3, "no rdzvd gives such names"},
  };
  for (size_t i = 0; i < 2 * sizeof t / sizeof t[0]; i++) {
    struct node eve;
    open_two(r, n);
    rig_forget(r);
    node_of(r, &eve, 7, i % 2 ? EVE : -1);
    snprintf(eve.incarnation, sizeof eve.incarnation, "%s", t[i / 2].incarnation);
    eve.round = t[i / 2].round;
    eve.node_rank = 0;
    eve.nodes = 1;
    node_back(r, &eve, PHASE_RUNNING);
    refused(r, &eve, t[i / 2].says);
    for (int k = 0; k < 2; k++) assert_null(rig_last(r, n[k].conn, MSG_STALE));
  }
}

/* A run that is a little newer, with Ada's own incarnation or with another: Eve begins a job of her own. */
RIG_TEST(test_a_token_of_another_users_job) {
  for (int i = 0; i < 2; i++) {
    struct node eve;
    rig_open(r, 1);
    for (int k = 0; k < 2; k++) node_of(r, &n[k], k, ADA);
    nodes_join(r, n, 2);
    nodes_started(r, n, 2);
    node_of(r, &eve, 7, EVE);
    eve.uid = ADA; /* a lie */
    memcpy(eve.incarnation, n[0].incarnation, sizeof eve.incarnation);
    if (i) eve.incarnation[11]++;
    eve.round = 700;
    eve.node_rank = 0;
    eve.nodes = 2;
    rig_forget(r);
    node_back(r, &eve, PHASE_RUNNING);
    node_exited(r, &eve, 1, 0);
    for (int k = 0; k < 2; k++) assert_null(rig_last(r, n[k].conn, MSG_STALE));
    for (int k = 0; k < 2; k++) assert_null(rig_last(r, n[k].conn, MSG_STOP));
    assert_int_equal(ask(r, ADA, "status", -1), 0);
    assert_said(r, "train: running");
    assert_null(rig_said(r, "n7"));
    node_exited(r, &n[0], 1, 0); /* and her next round has its number */
    nodes_stopped(r, n, 2);
    assert_int_equal(n[0].round, 2);
  }
}

/* She takes node rank 0 of a job with this id, with an address of her choice: of her own job. */
RIG_TEST(test_node_rank_0_with_a_chosen_address) {
  static const struct {
    const char *addr, *says;
  } bad[] = {{"0.0.0.0", "is not the address of one machine"},
             {"::", "is not the address of one machine"},
             {"255.255.255.255", "is not the address of one machine"},
             {"224.0.0.1", "is not the address of one machine"},
             {"ff02::1", "is not the address of one machine"},
             {"127.0.0.1", "cannot reach it"},
             {"::1", "cannot reach it"}};
  struct node ada[2], eve;
  struct msg m;
  rig_open(r, 1);
  node_of(r, &ada[0], 0, ADA);
  node_join(r, &ada[0]);
  for (size_t i = 0; i <= sizeof bad / sizeof bad[0]; i++) {
    bool good = i == sizeof bad / sizeof bad[0];
    node_of(r, &eve, 7, EVE);
    node_hello(&eve, &m);
    m.hello.uid = ADA;
    m.hello.want_rank = 0;
    m.hello.local_addr = good ? "8.8.8.8" : bad[i].addr;
    eve.conn = ++r->next_conn;
    node_say(r, &eve, &m);
    if (!good) refused(r, &eve, bad[i].says);
  }
  node_of(r, &ada[1], 1, ADA);
  node_join(r, &ada[1]);
  for (int i = 0; i < 2; i++) assert_string_equal(ada[i].head_addr, "10.0.0.1");
  const struct msg *start = rig_last(r, ada[0].conn, MSG_START);
  assert_null(memchr(start->raw, '8', start->raw_len));
  assert_int_equal(eve.round, 0);
}

/* Loopback is good where all nodes are on one machine, or there is one. */
RIG_TEST(test_loopback_addresses) {
  for (int i = 0; i < 3; i++) {
    struct msg m;
    rig_open_for(r, 1, i == 0 ? 1 : 2);
    node_of(r, n, 0, ADA);
    if (i == 1) snprintf(n->peer_addr, sizeof n->peer_addr, "127.0.0.1");
    if (i == 2) snprintf(n->peer_addr, sizeof n->peer_addr, "%s", n->local_addr);
    node_hello(n, &m);
    m.hello.local_addr = "127.0.0.1";
    n->conn = ++r->next_conn;
    node_say(r, n, &m);
    assert_non_null(rig_last(r, n->conn, MSG_WELCOME));
  }
}

/* HELLOs under new ids: one user has a quarter of the jobs, and without keys one address. */
RIG_TEST(test_many_jobs) {
  for (int i = 0; i < 2; i++) {
    struct node eve, ada;
    char id[16];
    rig_open_for(r, 2, 2);
    for (int k = 0; k <= ACCOUNT_JOBS_MAX; k++) {
      r->n_nodes = 0;
      rig_forget(r);
      node_of(r, &eve, k, i ? -1 : EVE);
      eve.uid = 3000 + k; /* a lie, or it would be */
      snprintf(eve.peer_addr, sizeof eve.peer_addr, i ? "127.0.%d.%d" : "10.1.%d.%d", k / 250, k % 250 + 1);
      snprintf(id, sizeof id, "job%d", k);
      eve.job = id;
      node_join(r, &eve);
      if (k < ACCOUNT_JOBS_MAX) assert_non_null(rig_last(r, eve.conn, MSG_WELCOME));
    }
    refused(r, &eve,
            i ? "address 127.0.0.1 has 1024 jobs at this daemon, the limit for one address"
              : "uid 1001 has 1024 jobs at this daemon, the limit for one user");
    node_of(r, &ada, 4000, i ? -1 : ADA);
    node_join(r, &ada);
    assert_non_null(rig_last(r, ada.conn, MSG_WELCOME));
    /* One of hers that is over makes room for her. */
    assert_int_equal(rig_ask(r, &(struct control){.verb = "stop", .job = "job7", .owner = -1}, 0), 0);
    rig_run(r, JOB_END_ACK_MS + 1);
    node_join(r, &eve);
    assert_non_null(rig_last(r, eve.conn, MSG_WELCOME));
  }
}

RIG_TEST(test_many_nodes) {
  struct node eve, ada;
  rig_open_with(r, &(struct core_config){.seed = 1, .max_members = 20});
  r->settings.min_nodes = r->settings.max_nodes = 100;
  for (int k = 0; k <= 10; k++) {
    node_of(r, &eve, k, EVE);
    rig_forget(r);
    node_join(r, &eve);
    if (k < 10) assert_non_null(rig_last(r, eve.conn, MSG_WELCOME));
  }
  refused(r, &eve, "uid 1001 has 10 nodes at this daemon, half of its 20 connections (ulimit -n)");
  node_of(r, &ada, 20, ADA);
  node_join(r, &ada);
  assert_non_null(rig_last(r, ada.conn, MSG_WELCOME));
  r->nodes[0]->conn = 1;
  node_bye(r, r->nodes[0]); /* one of hers makes room for her */
  node_join(r, &eve);
  assert_non_null(rig_last(r, eve.conn, MSG_WELCOME));
  for (int k = 30; k < 50; k++) { /* the daemon's user has no limit but the daemon's */
    r->n_nodes = 0;
    node_of(r, &ada, k, 0);
    node_join(r, &ada);
    assert_non_null(rig_last(r, ada.conn, MSG_WELCOME));
  }
}

RIG_TEST(test_many_expected_hosts) {
  static const char list[] = "h[00001-65536]";
  char id[16];
  rig_open(r, 1);
  for (int k = 0; k < 4; k++) {
    node_of(r, n, k, k < 3 ? EVE : ADA);
    snprintf(id, sizeof id, "job%d", k);
    n->job = id;
    n->expected_hosts = list;
    rig_forget(r);
    node_join(r, n);
    bool kept = !strstr(buf_text(&r->log), "the list of 65536 expected hosts is not kept");
    assert_int_equal(kept, k != 2);
    r->n_nodes = 0;
  }
}

static size_t lines_of(const struct rig *r, const char *part) {
  size_t n = 0;
  for (const char *at = buf_text(&r->log); (at = strstr(at, part)); at++) n++;
  return n;
}

/* HELLO after HELLO on one connection. */
RIG_TEST(test_a_flood) {
  open_two(r, n);
  for (int i = 0; i < 4; i++) n[i].n_reports = 0;
  rig_forget(r);
  for (int i = 0; i < 100; i++) node_hello_again(r, &n[2]);
  refused(r, &n[2], "this connection sends too many messages: at most 16 HELLOs at once and 2 in a second are read");
  assert_true(rig_count(r, n[2].conn, MSG_WELCOME) < CORE_HELLOS_AT_ONCE);
  assert_int_equal(rig_count(r, n[2].conn, MSG_REFUSED), 1);
  for (int i = 0; i < 10000; i++) { /* at an agent's pace, for ever */
    r->now_ms += 100;
    node_heartbeat(r, &n[0]);
    if (i % 20 == 0) node_hello_again(r, &n[0]);
    if (i % 64 == 0) rig_forget(r);
  }
  assert_null(rig_last(r, n[0].conn, MSG_REFUSED));
}

/* A node's messages after that: it is not read from for a while, and loses neither its place nor its lease. Each of its
 * heartbeats is answered, as late as it is read. */
RIG_TEST(test_a_node_that_is_too_fast) {
  enum { PAUSE_MS = 100, SECONDS = 60 };
  open_two(r, n);
  rig_forget(r);
  size_t n_read = 0, n_answers = 0, n_said = 0;
  for (uint64_t end_ms = r->now_ms + SECONDS * 1000; r->now_ms < end_ms;) {
    for (r->paused = 0; !r->paused; n_read++) node_heartbeat(r, &n[3]); /* as many as are read */
    assert_int_equal(r->paused, n[3].conn);
    n_answers += rig_count(r, n[3].conn, MSG_HEARTBEAT_ACK);
    assert_null(rig_last(r, n[3].conn, MSG_REFUSED));
    assert_int_equal(r->n_closed, 0);
    n_said += lines_of(r, "job train (uid 1001): node n3 sends more than 200 messages in a second: they are read at "
                          "that pace");
    assert_int_equal(lines_of(r, "is lost"), 0);
    rig_forget(r);
    for (int i = 0; i < 3; i++) node_heartbeat(r, &n[i]);
    rig_run(r, PAUSE_MS);
  }
  assert_int_equal(n_answers, n_read);
  assert_in_range(n_read, CORE_MSGS_AT_ONCE + SECONDS * 1000 / CORE_MSG_EVERY_MS - 50,
                  CORE_MSGS_AT_ONCE + SECONDS * 1000 / CORE_MSG_EVERY_MS + 50);
  assert_int_equal(n_said, 1);
}

/* A peer that the job does not take is no node, and is closed. */
RIG_TEST(test_a_stranger_that_is_too_fast) {
  struct node late;
  open_two(r, n);
  late = n[3];
  snprintf(late.agent, sizeof late.agent, "%s", "abababababababab");
  rig_forget(r);
  r->nodes[r->n_nodes++] = &late;
  node_back(r, &late, PHASE_RUNNING); /* of the round, which does not know it */
  assert_non_null(rig_last(r, late.conn, MSG_STALE));
  for (int i = 0; i < 2 * CORE_MSGS_AT_ONCE; i++) node_heartbeat(r, &late);
  refused(r, &late, "at most 4096 messages at once and 200 in a second are read");
  assert_int_equal(rig_count(r, late.conn, MSG_REFUSED), 1);
  assert_int_equal(r->n_paused, 0);
}

/* The same from many connections, each within its own limit. Those that send no more than nodes do are spared. */
RIG_TEST(test_a_flood_from_many_connections) {
  enum { NODES = 200, EACH = 2000 };
  static struct node all[NODES];
  struct node ada, calm;
  rig_open_for(r, 1000, 1000);
  for (int i = 0; i < NODES; i++) {
    node_of(r, &all[i], i, EVE);
    node_join(r, &all[i]);
  }
  node_of(r, &calm, 500, EVE);
  node_of(r, &ada, 501, ADA);
  node_join(r, &calm);
  node_join(r, &ada);
  rig_forget(r);
  for (int k = 0; k < EACH; k++)
    for (int i = 0; i < NODES; i++) node_progress(r, &all[i], 1);
  assert_int_equal(r->n_closed, 0);
  assert_true(r->n_paused > NODES);
  assert_int_equal(lines_of(r, "sends more than 20 messages in a second, and all nodes of its user too many: they are "
                               "read at that pace"),
                   16);
  r->paused = 0;
  node_heartbeat(r, &calm);
  node_heartbeat(r, &ada);
  assert_non_null(rig_last(r, calm.conn, MSG_HEARTBEAT_ACK));
  assert_non_null(rig_last(r, ada.conn, MSG_HEARTBEAT_ACK));
  assert_int_equal(r->paused, 0);
  r->now_ms += CORE_ACCOUNT_AHEAD_MS;
  rig_forget(r);
  node_of(r, &all[0], 0, EVE);
  node_join(r, &all[0]);
  for (int k = 0; k < EACH; k++) node_progress(r, &all[0], 1);
  assert_int_equal(r->n_paused, 0);
}

/* One user's refusals do not fill the log. */
RIG_TEST(test_lines_about_refusals) {
  struct node eve, ada;
  rig_open(r, 1);
  node_of(r, &eve, 0, EVE);
  node_of(r, &ada, 1, ADA);
  eve.want_rank = ada.want_rank = 9;
  rig_forget(r);
  for (int i = 0; i < 100; i++) node_join(r, &eve);
  assert_int_equal(lines_of(r, "refused: --node-rank 9 of n0"), 16);
  refused(r, &eve, "--node-rank 9 of n0 is not below --nnodes 2"); /* she learns it each time */
  node_join(r, &ada);
  assert_int_equal(lines_of(r, "refused: --node-rank 9 of n1"), 1);
  r->now_ms += 10000;
  node_join(r, &eve);
  assert_int_equal(lines_of(r, "uid 1001: 84 more such lines were left out"), 1);
  assert_int_equal(lines_of(r, "refused: --node-rank 9 of n0"), 17);
  eve.key_uid = 0; /* root is not counted */
  for (int i = 0; i < 100; i++) node_join(r, &eve);
  assert_int_equal(lines_of(r, "refused: --node-rank 9 of n0"), 117);
  assert_int_equal(lines_of(r, "begins as incarnation"), 0); /* none of these has begun a job */
}

/* What a user writes into the log and the file of --events with HELLOs, each of another job on a new connection. */
static size_t bytes_written(struct rig *r, struct node *n, int n_hellos, size_t *n_said) {
  static char id[16]; /* the node keeps it */
  size_t bytes = 0;
  for (int i = 0; i < n_hellos; i++) {
    r->n_nodes = 0;
    snprintf(id, sizeof id, "j%d", i);
    n->job = id;
    node_join(r, n);
    rig_closed(r, n->conn);
    rig_run(r, 1);
    bytes += r->log.len + r->events.len;
    *n_said += lines_of(r, " lines about jobs of this user were left out");
    rig_forget(r);
  }
  return bytes;
}

RIG_TEST(test_lines_about_jobs) {
  enum { HELLOS = 12000, NODES = 150 }; /* so many of hers are not lost yet */
  struct node eve, ada, root;
  size_t n_said = 0, before;
  rig_open_with(r, &(struct core_config){.seed = 1, .events = true});
  node_of(r, &eve, 0, EVE);
  node_of(r, &ada, 1, ADA);
  node_of(r, &root, 2, 0);
  before = r->now_ms;
  size_t bytes = bytes_written(r, &eve, HELLOS, &n_said), passed_s = (r->now_ms - before + 999) / 1000;
  assert_in_range(passed_s, HELLOS / 1000, HELLOS / 500);
  size_t at_once = ACCOUNT_LINES_AT_ONCE + NODES * ACCOUNT_LINES_OF_NODE;
  assert_in_range(bytes, ACCOUNT_LINES_AT_ONCE, at_once + (passed_s + 1) * ACCOUNT_LINES_PER_S);
  assert_in_range(n_said, 1, passed_s / 2); /* not one for each line */
  assert_in_range(bytes_written(r, &ada, 100, &n_said), 100 * 100, ACCOUNT_LINES_AT_ONCE);
  size_t of_root = bytes_written(r, &root, HELLOS / 10, &n_said);
  assert_true(of_root > HELLOS / 10 * 500); /* the daemon's user has no limit */
  rig_run(r, 60000);
  node_join(r, &eve); /* and hers are written again, with what was left out */
  assert_int_equal(lines_of(r, "uid 1001: "), 1);
  assert_int_equal(lines_of(r, " lines about jobs of this user were left out"), 1);
  assert_non_null(strstr(buf_text(&r->events), "events are lost: jobs of uid 1001 have too many"));
  assert_true(lines_of(r, "begins as incarnation") >= 1);
}

/* Progress of many jobs leaves room for what is rarer. */
RIG_TEST(test_events_about_progress) {
  enum { JOBS = 300, SECONDS = 60 };
  static struct node all[JOBS];
  static char ids[JOBS][16];
  rig_open_with(r, &(struct core_config){.seed = 1, .events = true});
  r->settings.min_nodes = r->settings.max_nodes = 1;
  r->settings.lease_ms = 600000;
  for (int i = 0; i < JOBS; i++) {
    r->n_nodes = 0;
    node_of(r, &all[i], i, EVE);
    snprintf(ids[i], sizeof ids[i], "j%d", i);
    all[i].job = ids[i];
    node_join(r, &all[i]);
    node_started(r, &all[i]);
  }
  size_t n_progress = 0;
  for (int s = 0; s < SECONDS; s++) {
    rig_forget(r);
    for (int i = 0; i < JOBS; i++) node_progress(r, &all[i], s + 1);
    r->now_ms += 1000;
    for (const char *at = buf_text(&r->events); (at = strstr(at, "rdzv.job.progress")); at++) n_progress++;
  }
  assert_in_range(n_progress, JOBS * SECONDS / 4, JOBS * (SECONDS - 5));
  rig_forget(r);
  node_finished(r, &all[0]);
  assert_non_null(strstr(buf_text(&r->events), "rdzv.events.dropped"));
  assert_non_null(strstr(buf_text(&r->events), "rdzv.job.ended"));
}

/* What an ended job leaves behind is Eve's: Ada's is not pushed out. */
RIG_TEST(test_past_incarnations) {
  struct node ada, eve;
  rig_open_for(r, 1, 1);
  node_of(r, &ada, 0, ADA);
  node_join(r, &ada);
  node_started(r, &ada);
  node_finished(r, &ada);
  node_end_ack(r, &ada);
  rig_run(r, JOB_END_KEEP_MS + 1);
  for (int k = 1; k < 300; k++) {
    r->n_nodes = 0;
    rig_forget(r);
    node_of(r, &eve, k, EVE);
    node_join(r, &eve);
    node_started(r, &eve);
    node_finished(r, &eve);
    node_end_ack(r, &eve);
    rig_run(r, JOB_END_KEEP_MS + 1);
  }
  r->nodes[0] = &ada; /* it was away, and brings its run back: round 1 is used */
  node_back(r, &ada, PHASE_NONE);
  rig_run(r, 60000);
  assert_true(ada.round > 1);
}

/* With HELLO's word alone: Eve names her own uid, and does not reach Ada's job. */
RIG_TEST(test_without_keys) {
  struct node eve;
  rig_open(r, 1);
  for (int i = 0; i < 2; i++) node_of(r, &n[i], i, -1);
  node_of(r, &eve, 7, -1);
  eve.uid = EVE;
  node_join(r, &n[0]);
  node_join(r, &eve);
  node_join(r, &n[1]);
  assert_int_equal(n[0].world_size, 2);
  assert_int_equal(n[1].world_size, 2);
  assert_int_equal(eve.round, 0);
  assert_int_equal(ask(r, EVE, "stop", ADA), 1);
}
