/* SPDX-License-Identifier: Apache-2.0 */
/* job: nodes exchange data in pairs before the round that follows a network fault, and when rdzvctl check asks. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "daemon/core/internal.h"
#include "tests/rig/core.h"
#include "tests/rig/unit.h"

static const char secret[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/* What is wrong with the network of the nodes. */
struct faults {
  int bad, silent;           /* nodes; -1: none */
  bool lacks, holds, is_old; /* node 1 has no NCCL; it does not free its GPUs; it is of an older release */
};

static struct node *node_of(struct node *n, int count, uint64_t conn) {
  for (int i = 0; i < count; i++)
    if (n[i].conn == conn) return &n[i];
  return NULL;
}

static void answer(struct rig *r, struct node *n, int count, struct node *me, const struct pair_msg *ask,
                   struct faults f) {
  struct msg m;
  bool nccl = ask->gpus > 0 && !(f.is_old && me == &n[1]);
  char ids[2 * NCCL_ID_SIZE + 1];
  if (me - n == f.silent) return;
  msg_init(&m, MSG_PAIRED);
  m.paired.serial = ask->serial;
  if (nccl && f.lacks && me == &n[1]) {
    m.paired.lacks = "libcuda.so.1: no such file";
    nccl = false;
    if (ask->ids[0]) {
      node_say(r, me, &m);
      return;
    }
  }
  if (nccl && !ask->ids[0]) {
    snprintf(ids, sizeof ids, "%0*x", (int)sizeof ids - 1, (unsigned)(me - n));
    m.paired.ids = ids;
    node_say(r, me, &m);
    m.paired.ids = "";
    if (f.holds && me == &n[1]) return;
  } else if (nccl || ask->port) {
    int other = nccl ? (int)strtol(ask->ids + sizeof ids - 9, NULL, 16) : (int)ask->port - 5000;
    assert_true(other >= 0 && other < count && &n[other] != me);
    assert_string_equal(ask->secret, nccl ? "" : secret);
    assert_string_equal(ask->addr, n[other].peer_addr);
    assert_int_equal(ask->gpus, nccl ? 4 : 0);
    bool bad = me - n == f.bad || other == f.bad;
    if (bad) m.paired.text = "no connection in 3.0 s";
    if (!bad) m.paired.bytes = 16 << 20, m.paired.out_us = m.paired.in_us = 8000, m.paired.rtt_us = 90;
  } else {
    m.paired.port = 5000 + (me - n);
    m.paired.secret = secret;
  }
  node_say(r, me, &m);
}

/* Nodes answer until none is asked any more. Returns how many exchanges were asked for. */
static int exchange(struct rig *r, struct node *n, int count, struct faults f) {
  int asked = 0;
  for (size_t i = 0; i < r->n_sent; i++) {
    if (r->sent[i].msg.type != MSG_PAIR) continue;
    struct node *me = node_of(n, count, r->sent[i].conn);
    struct pair_msg ask = r->sent[i].msg.pair_msg; /* what it points to stays; the array may move */
    asked += ask.port == 0 && !ask.ids[0];
    if (me) answer(r, n, count, me, &ask, f);
  }
  return asked;
}

static const struct faults none = {-1, -1};

/* n nodes run, and `who` reports the end of contact: all stop. */
static void lose_contact(struct rig *r, struct node *n, int count, int who) {
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_WORKER_EXIT;
  v.code = 1;
  v.error = "torch.distributed.DistBackendError: ncclRemoteError: A call failed possibly due to a network error";
  node_report(r, &n[who], REPORT_FAILED, &v, 0);
  rig_forget(r);
  for (int i = 0; i < count; i++) node_stopped(r, &n[i]);
}

static void open_checked(struct rig *r, struct node *n, int64_t min, int count) {
  rig_open_for(r, min, count);
  r->settings.pair_check = PAIR_CHECK_AUTO;
  rig_joined(r, n, (size_t)count);
  nodes_started(r, n, (size_t)count);
}

static const char *notice(struct rig *r, const struct node *n) {
  const struct msg *m = rig_last(r, n->conn, MSG_NOTICE);
  return m ? m->notice_msg.text : "";
}

RIG_TEST(test_a_bad_host_is_named_and_left_out) {
  open_checked(r, n, 3, 4);
  lose_contact(r, n, 4, 0);
  assert_string_equal(rig_state(r, "job"), "forming");
  assert_true(exchange(r, n, 4, (struct faults){.bad = 2, .silent = -1}) >= 4);
  assert_string_equal(rig_state(r, "job"), "starting");
  for (int i = 0; i < 4; i++) {
    const char *text = notice(r, &n[i]);
    assert_ptr_equal(strstr(text, "pair check after round 1: host n2 has a network fault: with "), text);
    assert_non_null(strstr(text, "; the job goes on without n2"));
    assert_int_equal(rig_count(r, n[i].conn, MSG_NOTICE), 1);
    assert_int_equal(rig_count(r, n[i].conn, MSG_START), i != 2);
  }
  rig_control(r, "status", "job", false);
  assert_said(r, "  pair check: host n2 has a network fault");
  assert_said(r, "by the job itself: the pair check found a network fault there");
}

RIG_TEST(test_the_job_goes_on_with_a_bad_host_that_it_needs) {
  open_checked(r, n, 4, 4);
  lose_contact(r, n, 4, 0);
  exchange(r, n, 4, (struct faults){.bad = 2, .silent = -1});
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_non_null(strstr(notice(r, &n[0]), "host n2 has a network fault"));
  assert_null(strstr(notice(r, &n[0]), "without"));
  assert_int_equal(rig_count(r, n[2].conn, MSG_START), 1);
}

/* Another node is lost for good. The job waits a while, and takes the bad host rather than none. */
RIG_TEST(test_a_host_that_is_needed_later_is_readmitted) {
  open_checked(r, n, 3, 4);
  lose_contact(r, n, 4, 0);
  exchange(r, n, 4, (struct faults){.bad = 2, .silent = -1});
  assert_string_equal(rig_state(r, "job"), "starting");
  struct node *rest[] = {&n[0], &n[1], &n[3]};
  for (int i = 0; i < 3; i++) node_started(r, rest[i]);
  node_death_report(r, &n[3]);
  node_stopped(r, &n[0]);
  node_stopped(r, &n[1]);
  uint64_t begun_ms = r->now_ms;
  while (!strcmp(rig_state(r, "job"), "forming")) {
    nodes_heartbeat(r, n, 3);
    rig_run(r, 1000);
    assert_true(r->now_ms < begun_ms + 60000);
  }
  assert_true(r->now_ms >= begun_ms + 20000);
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_non_null(strstr(notice(r, &n[0]), "may join again"));
  assert_int_equal(rig_last(r, n[2].conn, MSG_START)->start.nodes, 3);
}

RIG_TEST(test_nothing_is_said_if_all_is_well) {
  open_checked(r, n, 3, 4);
  lose_contact(r, n, 4, 0);
  assert_int_equal(exchange(r, n, 4, none), 4);
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_string_equal(notice(r, &n[0]), "");
}

RIG_TEST(test_other_failures_are_not_checked) {
  open_checked(r, n, 3, 4);
  node_exited(r, &n[1], 1, 0);
  rig_forget(r);
  for (int i = 0; i < 4; i++) node_stopped(r, &n[i]);
  assert_int_equal(exchange(r, n, 4, none), 0);
  assert_string_equal(rig_state(r, "job"), "starting");
}

RIG_TEST(test_off) {
  rig_open_for(r, 3, 4);
  rig_joined(r, n, 4);
  nodes_started(r, n, 4);
  lose_contact(r, n, 4, 0);
  assert_int_equal(exchange(r, n, 4, none), 0);
  assert_string_equal(rig_state(r, "job"), "starting");
}

/* Whatever the nodes do, the next round begins within 30 s. */
static void assert_silence_is_found(struct rig *r, struct node *n) {
  uint64_t begun_ms = r->now_ms;
  while (!strcmp(rig_state(r, "job"), "forming")) {
    exchange(r, n, 4, (struct faults){.bad = -1, .silent = 3});
    rig_forget(r);
    nodes_heartbeat(r, n, 4);
    rig_run(r, 1000);
    assert_true(r->now_ms < begun_ms + 30000);
  }
  rig_control(r, "status", "job", false);
  assert_said(r, "host n3 has a network fault");
}

RIG_TEST(test_a_silent_node) {
  open_checked(r, n, 3, 4);
  lose_contact(r, n, 4, 0);
  assert_silence_is_found(r, n);
  assert_said(r, "n3 did not answer in 4 s");
}

RIG_TEST(test_a_node_lost_meanwhile) {
  open_checked(r, n, 3, 4);
  lose_contact(r, n, 4, 0);
  node_drop(r, &n[3]);
  rig_run(r, 1);
  for (int turn = 0; turn < 4; turn++) {
    exchange(r, n, 4, (struct faults){.bad = -1, .silent = 3});
    rig_run(r, 1);
  }
  rig_run(r, 3000);
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_string_equal(notice(r, &n[0]), "");
}

/* A lost node is a suspect when the same agent is back; another agent on its host is not. */
RIG_TEST(test_a_lost_node_that_is_back) {
  for (int other = 0; other < 2; other++) {
    open_checked(r, n, 4, 4);
    node_drop(r, &n[3]);
    rig_run(r, 1000);
    for (int i = 0; i < 3; i++) node_stopped(r, &n[i]);
    for (int i = 0; i < 8; i++) { /* until nothing of it runs */
      nodes_heartbeat(r, n, 3);
      rig_run(r, 1000);
    }
    assert_string_equal(rig_state(r, "job"), "forming");
    rig_forget(r);
    if (other) node_death_report(r, &n[3]), node_init(r, &n[3], 9), snprintf(n[3].host, sizeof n[3].host, "n3");
    node_join(r, &n[3]);
    assert_int_equal(exchange(r, n, 4, none) > 0, !other);
    assert_string_equal(rig_state(r, "job"), "starting");
    rig_close(r);
  }
}

RIG_TEST(test_answers_that_nobody_asked_for) {
  open_checked(r, n, 3, 4);
  struct msg m;
  msg_init(&m, MSG_PAIRED);
  m.paired.serial = 1;
  m.paired.text = "no connection";
  node_say(r, &n[0], &m);
  lose_contact(r, n, 4, 0);
  for (int64_t serial = 1; serial < 9; serial++) /* of other pairs, of other nodes */
    for (int i = 0; i < 4; i++) {
      const struct msg *asked = rig_last(r, n[i].conn, MSG_PAIR);
      m.paired.serial = serial;
      if (!asked || asked->pair_msg.serial != serial) node_say(r, &n[i], &m);
    }
  for (int i = 0; i < 30 && !strcmp(rig_state(r, "job"), "forming"); i++) {
    nodes_heartbeat(r, n, 4);
    rig_run(r, 1000);
  }
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_null(strstr(notice(r, &n[0]), "no connection"));
}

/* Over NCCL. ------------------------------------------------------------------------------------------------------- */

static void open_with_gpus(struct rig *r, struct node *n, int count) {
  rig_open_for(r, 3, count);
  r->settings.pair_check = PAIR_CHECK_AUTO;
  for (int i = 0; i < count; i++) {
    node_init(r, &n[i], i);
    n[i].gpus = i ? 4 : 8;
    node_join(r, &n[i]);
  }
  nodes_started(r, n, (size_t)count);
}

RIG_TEST(test_a_bad_host_is_named_over_nccl) {
  open_with_gpus(r, n, 4);
  lose_contact(r, n, 4, 0);
  exchange(r, n, 4, (struct faults){.bad = 2, .silent = -1});
  assert_non_null(strstr(notice(r, &n[0]), "host n2 has a network fault"));
  assert_non_null(strstr(notice(r, &n[0]), "; measured over NCCL; the job goes on without n2"));
}

/* It is asked to listen, or to connect: others go on over NCCL. */
RIG_TEST(test_a_host_without_nccl) {
  for (int old = 0; old < 2; old++) {
    open_with_gpus(r, n, 4);
    lose_contact(r, n, 4, 3);
    exchange(r, n, 4, (struct faults){.bad = 2, .silent = -1, .lacks = !old, .is_old = old});
    assert_non_null(strstr(notice(r, &n[0]), "host n2 has a network fault"));
    assert_non_null(strstr(notice(r, &n[0]), old ? "; measured over NCCL and TCP"
                                                 : "NCCL and TCP: no NCCL on n1 (libcuda.so.1: no such file)"));
    assert_string_equal(rig_state(r, "job"), "starting");
    rig_close(r);
  }
}

/* The next round waits until it is over for both ends, and not for ever. */
RIG_TEST(test_the_gpus_are_free_before_the_round) {
  open_with_gpus(r, n, 4);
  lose_contact(r, n, 4, 0);
  uint64_t begun_ms = r->now_ms;
  exchange(r, n, 4, (struct faults){.bad = -1, .silent = -1, .holds = true});
  assert_string_equal(rig_state(r, "job"), "forming");
  while (!strcmp(rig_state(r, "job"), "forming")) {
    rig_forget(r);
    nodes_heartbeat(r, n, 4);
    rig_run(r, 1000);
    exchange(r, n, 4, (struct faults){.bad = -1, .silent = -1, .holds = true});
    assert_true(r->now_ms < begun_ms + 30000);
  }
  assert_string_equal(notice(r, &n[0]), "");
}

RIG_TEST(test_silence_over_nccl) {
  open_with_gpus(r, n, 4);
  lose_contact(r, n, 4, 0);
  assert_silence_is_found(r, n);
  assert_said(r, "n3 did not answer in 9 s");
  assert_said(r, "; good pairs reach ");
}

/* rdzvctl check. --------------------------------------------------------------------------------------------------- */

static int check(struct rig *r, int64_t from, int64_t uid) {
  struct control q = {.verb = "check",
                      .job = "job",
                      .host = "",
                      .user = "",
                      .agent = "",
                      .owner = -1,
                      .rank = -1,
                      .tail = -1,
                      .json = true,
                      .from = from};
  return rig_ask(r, &q, uid);
}

static const struct control_reply *reply(const struct rig *r) {
  return &r->sent[r->n_sent - 1].msg.control_reply;
}

RIG_TEST(test_a_survey_beside_a_round) {
  open_checked(r, n, 3, 5);
  rig_forget(r);
  assert_int_equal(check(r, 0, 0), 0);
  int64_t serial = reply(r)->next;
  assert_true(serial > 0 && reply(r)->pause_ms > 0);
  assert_int_equal(check(r, 0, 0), 0); /* a second asker sees the same one */
  assert_int_equal(reply(r)->next, serial);
  assert_int_equal(exchange(r, n, 5, (struct faults){.bad = 1, .silent = -1}), 10);
  assert_int_equal(check(r, serial, 0), 0);
  json_t *v = json_loads(buf_text(&r->said), 0, NULL);
  assert_int_equal(json_array_size(json_object_get(v, "pairs")), 10);
  assert_true(json_is_true(json_object_get(json_array_get(json_object_get(v, "hosts"), 1), "fault")));
  json_decref(v);
  assert_string_equal(rig_state(r, "job"), "running");
  assert_int_equal(rig_count(r, n[0].conn, MSG_NOTICE), 0);
  assert_int_equal(check(r, serial + 100, 0), 1);
  assert_said(r, "another check of job job has taken its place");
}

/* A node that was asked for a port answers with ids: the other one's GPUs have workers. */
RIG_TEST(test_ids_that_nobody_asked_for) {
  char ids[2 * NCCL_ID_SIZE + 1];
  struct msg m;
  open_with_gpus(r, n, 4);
  rig_forget(r);
  check(r, 0, 0);
  msg_init(&m, MSG_PAIRED);
  memset(ids, 'a', sizeof ids - 1);
  ids[sizeof ids - 1] = '\0';
  for (int i = 0; i < 4; i++) {
    const struct msg *asked = rig_last(r, n[i].conn, MSG_PAIR);
    if (!asked) continue;
    m.paired.serial = asked->pair_msg.serial;
    m.paired.ids = ids;
    node_say(r, &n[i], &m);
  }
  for (size_t i = 0; i < r->n_sent; i++)
    if (r->sent[i].msg.type == MSG_PAIR) assert_int_equal(r->sent[i].msg.pair_msg.gpus, 0);
  for (int i = 0; i < 4; i++) assert_true(rig_count(r, n[i].conn, MSG_PAIR) <= 1);
}

/* Their agents know nothing of it, and nobody waits for them. */
RIG_TEST(test_nodes_of_an_older_release_take_no_part) {
  rig_open_for(r, 4, 4);
  r->settings.pair_check = PAIR_CHECK_AUTO;
  nodes_init(r, n, 4);
  n[0].features = n[3].features = "facts notice pace";
  nodes_join(r, n, 4);
  nodes_started(r, n, 4);
  lose_contact(r, n, 4, 0);
  assert_int_equal(exchange(r, n, 4, none), 1);
  assert_int_equal(rig_count(r, n[0].conn, MSG_PAIR) + rig_count(r, n[3].conn, MSG_PAIR), 0);
  assert_string_equal(rig_state(r, "job"), "starting"); /* at once */
  node_drop(r, &n[1]);
  assert_int_equal(check(r, 0, 0), 1);
  assert_said(r, "fewer than two nodes of job job are connected and of a release that checks pairs");
}

/* Beside a round GPUs are in use. Between rounds a survey takes them, until the round can begin. */
RIG_TEST(test_a_survey_with_gpus) {
  open_with_gpus(r, n, 4);
  rig_forget(r);
  assert_int_equal(check(r, 0, 0), 0);
  int64_t serial = reply(r)->next;
  exchange(r, n, 4, none);
  assert_int_equal(check(r, serial, 0), 0);
  assert_said(r, "measured over TCP: no NCCL on n0 (workers run on its GPUs)");
  rig_close(r);
  rig_open_for(r, 4, 4);
  for (int i = 0; i < 4; i++) {
    node_init(r, &n[i], i);
    n[i].gpus = 4;
    if (i < 3) node_join(r, &n[i]);
  }
  rig_forget(r);
  assert_int_equal(check(r, 0, 0), 0);
  serial = reply(r)->next;
  node_join(r, &n[3]);
  assert_string_equal(rig_state(r, "job"), "forming");
  assert_int_equal(exchange(r, n, 4, none), 1);
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_int_equal(check(r, serial, 0), 0);
  assert_said(r, "measured over NCCL");
  assert_said(r, "\"complete\":false");
}

RIG_TEST(test_a_survey_needs_two_nodes_and_a_live_job) {
  rig_open_for(r, 1, 1);
  rig_joined(r, n, 1);
  assert_int_equal(check(r, 0, 0), 1);
  assert_said(r, "fewer than two nodes of job job are connected and of a release that checks pairs");
  struct control q = {.verb = "check",
                      .job = "other",
                      .host = "",
                      .user = "",
                      .agent = "",
                      .owner = -1,
                      .rank = -1,
                      .tail = -1,
                      .json = true};
  assert_int_equal(rig_ask(r, &q, 0), 1);
}
