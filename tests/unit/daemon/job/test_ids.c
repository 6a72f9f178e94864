/* SPDX-License-Identifier: Apache-2.0 */
/* core: who mints the ncclUniqueIds of a round, and how they come to all. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void open_job(struct rig *r, struct node *n, size_t count, int64_t workers) {
  rig_open(r, 1);
  r->settings.min_nodes = r->settings.max_nodes = (int64_t)count;
  r->settings.nccl_ids = NCCL_IDS_ALWAYS;
  r->settings.lease_ms = LEASE_MAX_MS;
  for (size_t i = 0; i < count; i++) {
    node_init(r, &n[i], (int)i);
    n[i].workers = workers;
    node_join(r, &n[i]);
  }
  for (size_t i = 0; i < count; i++) node_started(r, &n[i]);
}

static void begin_minted(const struct node *n, int64_t first, int64_t count, struct msg *m) {
  msg_init(m, MSG_MINTED);
  m->minted.incarnation = n->incarnation;
  m->minted.round = n->round;
  m->minted.first = first;
  m->minted.count = count;
}

/* Ids that say who minted them. */
static void minted_by(struct rig *r, struct node *n, int64_t first, int64_t count, int64_t version) {
  char raw[NCCL_IDS_MAX * NCCL_ID_SIZE];
  struct msg m;
  memset(raw, n->host[1], sizeof raw);
  begin_minted(n, first, count, &m);
  m.minted.version = version;
  m.raw = raw;
  m.raw_len = (size_t)count * NCCL_ID_SIZE;
  node_say(r, n, &m);
}

static void minted(struct rig *r, struct node *n, int64_t first, int64_t count) {
  minted_by(r, n, first, count, 22809);
}

static void failed(struct rig *r, struct node *n, int64_t first, int64_t count, const char *why, bool lasting) {
  struct msg m;
  begin_minted(n, first, count, &m);
  m.minted.text = why;
  m.minted.lasting = lasting;
  node_say(r, n, &m);
}

/* The ids that a node was told: a byte each. */
static void check_ids(const struct rig *r, const struct node *n, const char *who) {
  const struct msg *m = rig_last(r, n->conn, MSG_IDS);
  assert_non_null(m);
  assert_int_equal(m->ids.count, strlen(who));
  assert_int_equal(m->ids.round, n->round);
  assert_int_equal(m->raw_len, strlen(who) * NCCL_ID_SIZE);
  for (size_t i = 0; i < m->raw_len; i++) assert_int_equal(m->raw[i], who[i / NCCL_ID_SIZE]);
}

static bool knows(const struct rig *r, const struct node *n) {
  const struct msg *m = rig_last(r, n->conn, MSG_IDS);
  return m && m->ids.count > 0;
}

RIG_TEST(test_one_id_is_minted_by_node_0) {
  open_job(r, n, 3, 4);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(n[i].ids, 1);
    assert_int_equal(n[i].mint_count, i == 0);
    assert_string_equal(n[i].minters, "0 of 1 are here; waiting for n0 (node 0)");
  }
  assert_string_equal(rig_state(r, "job"), "running"); /* nobody waits for it */
  minted(r, &n[0], 0, 1);
  for (int i = 0; i < 3; i++) {
    check_ids(r, &n[i], "0");
    assert_int_equal(rig_last(r, n[i].conn, MSG_IDS)->ids.version, 22809);
    assert_int_equal(rig_count(r, n[i].conn, MSG_IDS), 1);
  }
  rig_run(r, 300000);
  for (int i = 0; i < 3; i++) assert_int_equal(rig_count(r, n[i].conn, MSG_IDS), 1);
}

/* 6 nodes of 100 ranks: 3 ids, for the ranks from 0, 200 and 400 on. */
RIG_TEST(test_large_rounds_have_several) {
  static const int who[] = {0, 2, 4};
  open_job(r, n, 6, 100);
  for (int i = 0, k = 0; i < 6; i++) {
    bool mints = k < 3 && who[k] == i;
    assert_int_equal(n[i].ids, 3);
    assert_int_equal(n[i].mint_count, mints);
    if (mints) assert_int_equal(n[i].mint_first, k++);
  }
  minted(r, &n[4], 2, 1);
  minted(r, &n[0], 0, 1);
  assert_false(knows(r, &n[1]));
  minted(r, &n[0], 0, 1); /* once more: no harm */
  assert_false(knows(r, &n[1]));
  minted(r, &n[2], 1, 1);
  for (int i = 0; i < 6; i++) check_ids(r, &n[i], "024");
  open_job(r, n, 2, 1024); /* 8 ids: four on each node, in one share */
  assert_int_equal(n[0].ids, 8);
  assert_int_equal(n[1].mint_first, 4);
  assert_int_equal(n[1].mint_count, 4);
  minted(r, &n[1], 4, 4);
  minted(r, &n[0], 0, 4);
  check_ids(r, &n[1], "00001111");
}

RIG_TEST(test_auto_and_never) {
  for (int wants = 0; wants < 3; wants++) {
    rig_open(r, 1);
    if (wants == 2) r->settings.nccl_ids = NCCL_IDS_NEVER;
    for (int i = 0; i < 2; i++) {
      node_init(r, &n[i], i);
      n[i].wants_ids = i == 1 && wants;
      node_join(r, &n[i]);
    }
    for (int i = 0; i < 2; i++) {
      assert_int_equal(n[i].ids, wants == 1);
      assert_int_equal(n[i].mint_count, wants == 1 && i == 1); /* who wants none has no NCCL, perhaps */
    }
  }
}

RIG_TEST(test_settings_must_agree) {
  rig_open(r, 1);
  node_init(r, &n[0], 0);
  node_join(r, &n[0]);
  r->settings.nccl_ids = NCCL_IDS_ALWAYS;
  node_init(r, &n[1], 1);
  node_join(r, &n[1]);
  const struct msg *m = rig_last(r, n[1].conn, MSG_REFUSED);
  assert_non_null(strstr(m->refused.text, "--nccl-ids is always here (n1) and auto in the job"));
}

/* Failing. --------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_another_takes_its_place) {
  open_job(r, n, 3, 1);
  rig_forget(r);
  failed(r, &n[0], 0, 1, "no socket", false);
  const struct msg *m = rig_last(r, n[1].conn, MSG_MINT);
  assert_int_equal(m->mint.first, 0);
  assert_int_equal(m->mint.count, 1);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(rig_count(r, n[i].conn, MSG_MINT), i == 1);
    assert_string_equal(rig_last(r, n[i].conn, MSG_IDS)->ids.text,
                        "0 of 1 are here; waiting for n1 (node 1); failed: n0 (node 0): no socket");
  }
  minted(r, &n[0], 0, 1); /* it is not asked any more */
  assert_false(knows(r, &n[0]));
  minted(r, &n[1], 0, 1);
  for (int i = 0; i < 3; i++) check_ids(r, &n[i], "1");
}

/* A helper that dies behind its MINTED, while others are waited for. */
RIG_TEST(test_ids_that_are_gone_again) {
  open_job(r, n, 3, 200);
  assert_int_equal(n[0].ids, 3);
  minted(r, &n[0], 0, 1);
  minted(r, &n[1], 1, 1);
  failed(r, &n[0], 0, 1, "rdzv-nccl was killed by signal 9", false);
  minted(r, &n[2], 2, 1);
  assert_false(knows(r, &n[0]));
  assert_int_equal(rig_count(r, n[1].conn, MSG_MINT), 1);
  minted(r, &n[1], 0, 1);
  check_ids(r, &n[0], "112");
  failed(r, &n[1], 0, 1, "gone", false); /* too late */
  rig_run(r, 100000);
  assert_string_equal(rig_state(r, "job"), "running");
}

RIG_TEST(test_three_are_replaced) {
  open_job(r, n, 5, 1);
  for (int i = 0; i < 3; i++) failed(r, &n[i], 0, 1, i == 2 ? "another" : "no socket", false);
  assert_string_equal(rig_state(r, "job"), "running");
  failed(r, &n[3], 0, 1, "another", false);
  assert_int_equal(rig_count(r, n[4].conn, MSG_MINT), 0);
  assert_string_equal(rig_state(r, "job"), "stopping");
  const struct verdict *v = &rig_stop(r, &n[0])->verdict;
  assert_int_equal(v->cause, CAUSE_NCCL_IDS);
  assert_int_equal(v->code, EXIT_CODE_NCCL);
  assert_string_equal(v->text,
                      "n0 (node 0): no socket; the same on n1 (node 1); n2 (node 2): another; the same on n3 (node 3)");
  assert_false(v->lasting);
  nodes_stopped(r, n, 5);
  const struct msg *m = rig_last(r, n[0].conn, MSG_SETTLED);
  assert_true(m->settled.charged); /* and tried again, as often as any failure */
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].ids, 1);
  assert_int_equal(n[0].mint_count, 1); /* what failed in another round is forgotten */
}

RIG_TEST(test_while_not_all_have_started) {
  rig_open(r, 1);
  r->settings.nccl_ids = NCCL_IDS_ALWAYS;
  rig_joined(r, n, 2);
  for (int i = 0; i < 4; i++) failed(r, &n[i % 2], 0, 1, "no socket", false);
  const struct stop *m = rig_stop(r, &n[0]);
  assert_false(m->void_round); /* a void round would be tried for ever */
}

/* Where no node has NCCL a restart would find the same. */
RIG_TEST(test_no_library_anywhere) {
  open_job(r, n, 2, 1);
  failed(r, &n[0], 0, 1, "no library", true);
  assert_string_equal(rig_state(r, "job"), "running");
  failed(r, &n[1], 0, 1, "no library", true); /* and nobody is asked twice */
  const struct verdict *v = &rig_stop(r, &n[0])->verdict;
  assert_true(v->lasting);
  assert_string_equal(v->text, "n0 (node 0): no library; the same on n1 (node 1)");
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_end(r, &n[0])->code, EXIT_CODE_NCCL);
}

/* Workers that may do without are not stopped for it; who asks is told why. */
RIG_TEST(test_auto_goes_on_without) {
  rig_open(r, 1);
  for (int i = 0; i < 2; i++) {
    node_init(r, &n[i], i);
    n[i].wants_ids = true;
    node_join(r, &n[i]);
  }
  nodes_started(r, n, 2);
  for (int i = 0; i < 2; i++) failed(r, &n[i], 0, 1, "no library", true);
  assert_string_equal(rig_state(r, "job"), "running");
  const struct msg *m = rig_last(r, n[1].conn, MSG_IDS);
  assert_true(m->ids.none);
  assert_string_equal(m->ids.text, "n0 (node 0): no library; the same on n1 (node 1)");
  rig_forget(r);
  node_drop(r, &n[0]);
  node_back(r, &n[0], PHASE_RUNNING);
  assert_true(rig_last(r, n[0].conn, MSG_IDS)->ids.none);
  rig_run(r, 4000);
  assert_int_equal(rig_count(r, n[0].conn, MSG_IDS), 1);
}

RIG_TEST(test_no_answer) {
  open_job(r, n, 2, 1);
  rig_run(r, JOB_MINT_MS - 1);
  assert_int_equal(rig_count(r, n[1].conn, MSG_MINT), 0);
  assert_in_range(rig_count(r, n[1].conn, MSG_IDS), 5, 6); /* who is waited for, now and then */
  rig_run(r, 1);
  assert_int_equal(rig_count(r, n[1].conn, MSG_MINT), 1);
  assert_non_null(strstr(rig_last(r, n[0].conn, MSG_IDS)->ids.text, "n0 (node 0): no answer in 30 s"));
  rig_run(r, 3 * JOB_MINT_MS);
  assert_string_equal(rig_state(r, "job"), "stopping");
}

RIG_TEST(test_versions_that_differ) {
  open_job(r, n, 2, 200);
  minted_by(r, &n[0], 0, 1, 22809);
  minted_by(r, &n[1], 1, 1, 22703);
  const struct verdict *v = &rig_stop(r, &n[0])->verdict;
  assert_string_equal(v->text, "NCCL is 2.28.9 on n0 (node 0) and 2.27.3 on n1 (node 1): major and minor version "
                               "must be the same on all nodes");
  assert_false(knows(r, &n[0]));
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_end(r, &n[1])->code, EXIT_CODE_NCCL); /* a restart would find the same */
  open_job(r, n, 2, 200);
  minted_by(r, &n[0], 0, 1, 22809);
  minted_by(r, &n[1], 1, 1, 22803);
  check_ids(r, &n[0], "01");
  assert_int_equal(rig_last(r, n[0].conn, MSG_IDS)->ids.version, 22803);
  assert_non_null(strstr(buf_text(&r->log), "NCCL is 2.28.9 on n0 (node 0) and 2.28.3 on n1 (node 1)"));
}

/* What is not for this round, or no ids. --------------------------------------------------------------------------- */

RIG_TEST(test_stale_and_senseless) {
  struct msg m;
  char raw[NCCL_ID_SIZE] = {1};
  open_job(r, n, 2, 1);
  begin_minted(&n[0], 0, 1, &m);
  m.minted.round = 7;
  m.minted.version = 22809;
  m.raw = raw;
  m.raw_len = sizeof raw;
  node_say(r, &n[0], &m);
  assert_false(knows(r, &n[0]));
  assert_non_null(strstr(buf_text(&r->log), "MINTED of node n0 is stale: it is of round 7, and the job at 1"));
  minted(r, &n[1], 0, 1); /* it was not asked */
  assert_false(knows(r, &n[0]));
  m.minted.round = 1;
  m.raw_len--;
  node_say(r, &n[0], &m);
  assert_true(rig_was_closed(r, n[0].conn));
  assert_non_null(strstr(buf_text(&r->log), "node n0 sent 127 bytes for 1 NCCL ids from number 0 on"));
}

RIG_TEST(test_fresh_in_each_round) {
  open_job(r, n, 2, 1);
  minted(r, &n[0], 0, 1);
  rig_next_round(r, n, 2);
  assert_int_equal(n[0].mint_count, 1);
  rig_forget(r);
  struct msg m;
  begin_minted(&n[0], 0, 1, &m);
  m.minted.round = 1;
  m.minted.text = "its helper was let go";
  node_say(r, &n[0], &m);
  assert_int_equal(rig_count(r, n[1].conn, MSG_MINT), 0); /* of the first round: nobody minds */
  minted(r, &n[0], 0, 1);
  check_ids(r, &n[1], "0");
}
