/* SPDX-License-Identifier: Apache-2.0 */
/* core: ncclUniqueIds when connections break and daemons come back. */

#include "tests/rig/core.h"

#include <string.h>
#include "tests/rig/unit.h"

/* Two nodes of 200 ranks: an id each. */
static void open_job(struct rig *r, struct node *n) {
  rig_open(r, 1);
  r->settings.nccl_ids = NCCL_IDS_ALWAYS;
  for (int i = 0; i < 2; i++) {
    node_init(r, &n[i], i);
    n[i].workers = 200;
    node_join(r, &n[i]);
  }
  nodes_started(r, n, 2);
  rig_forget(r);
}

static void minted(struct rig *r, struct node *n, int64_t first, int64_t count, char byte) {
  char raw[2 * NCCL_ID_SIZE];
  struct msg m;
  memset(raw, byte, sizeof raw);
  msg_init(&m, MSG_MINTED);
  m.minted.incarnation = n->incarnation;
  m.minted.round = n->round;
  m.minted.first = first;
  m.minted.count = count;
  m.minted.version = 22809;
  m.raw = raw;
  m.raw_len = (size_t)count * NCCL_ID_SIZE;
  node_say(r, n, &m);
}

static void check_mint(const struct rig *r, const struct node *n, int64_t first, int64_t count) {
  const struct msg *m = rig_last(r, n->conn, MSG_MINT);
  if (!count) assert_null(m);
  if (!count) return;
  assert_non_null(m);
  assert_int_equal(m->mint.first, first);
  assert_int_equal(m->mint.count, count);
}

static void come_back(struct rig *r, struct node *n) {
  nodes_back(r, n, 2, PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "running");
}

/* What was lost with a connection is asked for again, and what was missed is said again. */
RIG_TEST(test_a_connection_breaks) {
  open_job(r, n);
  node_drop(r, &n[0]);
  node_back(r, &n[0], PHASE_RUNNING);
  check_mint(r, &n[0], 0, 1);
  minted(r, &n[0], 0, 1, 'a');
  node_drop(r, &n[0]);
  rig_forget(r);
  minted(r, &n[1], 1, 1, 'b');
  assert_true(n[1].has_ids);
  node_back(r, &n[0], PHASE_RUNNING);
  check_mint(r, &n[0], 0, 0); /* it has told already */
  const struct msg *m = rig_last(r, n[0].conn, MSG_IDS);
  assert_int_equal(m->ids.count, 2);
  assert_int_equal(m->raw[0], 'a');
  assert_int_equal(m->raw[NCCL_ID_SIZE], 'b');
  node_drop(r, &n[0]);
  rig_forget(r);
  node_back(r, &n[0], PHASE_RUNNING);
  assert_int_equal(rig_count(r, n[0].conn, MSG_IDS), 0); /* it says that it has them */
}

/* START never came: said again, with what is to be minted. */
RIG_TEST(test_start_was_missed) {
  rig_open(r, 1);
  r->settings.nccl_ids = NCCL_IDS_ALWAYS;
  nodes_init(r, n, 2);
  nodes_join(r, n, 2);
  node_drop(r, &n[0]);
  rig_forget(r);
  n[0].round = n[0].ids = n[0].mint_count = 0;
  node_join(r, &n[0]);
  assert_int_equal(rig_count(r, n[0].conn, MSG_START), 1);
  assert_int_equal(n[0].ids, 1);
  assert_int_equal(n[0].mint_count, 1);
}

RIG_TEST(test_a_daemon_comes_back_when_all_have_them) {
  open_job(r, n);
  minted(r, &n[0], 0, 1, 'a');
  minted(r, &n[1], 1, 1, 'b');
  rig_restart(r, true);
  come_back(r, n);
  rig_run(r, 4000);
  for (int i = 0; i < 2; i++) {
    check_mint(r, &n[i], 0, 0);
    assert_int_equal(rig_count(r, n[i].conn, MSG_IDS), 0);
  }
}

/* Who has finished keeps none, and needs none: there is nothing to give it any more. */
RIG_TEST(test_a_finished_node_comes_back_after_the_daemon) {
  open_job(r, n);
  minted(r, &n[0], 0, 1, 'a');
  minted(r, &n[1], 1, 1, 'b');
  node_finished(r, &n[0]);
  n[0].has_ids = false;
  rig_restart(r, true);
  node_back(r, &n[0], PHASE_FINISHED);
  node_back(r, &n[1], PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "running");
  node_drop(r, &n[0]);
  node_back(r, &n[0], PHASE_FINISHED);
  assert_int_equal(rig_count(r, n[0].conn, MSG_IDS), 0);
}

/* Nobody has them: nobody can have used any, and all are asked anew. */
RIG_TEST(test_a_daemon_comes_back_when_nobody_has_them) {
  for (int with_state = 0; with_state < 2; with_state++) {
    open_job(r, n);
    minted(r, &n[0], 0, 1, 'a');
    rig_restart(r, with_state);
    node_back(r, &n[0], PHASE_RUNNING);
    minted(r, &n[0], 0, 1, 'x'); /* while it recovers nobody is asked */
    node_back(r, &n[1], PHASE_RUNNING);
    check_mint(r, &n[0], 0, 1);
    check_mint(r, &n[1], 1, 1);
    minted(r, &n[0], 0, 1, 'a');
    assert_false(n[1].has_ids);
    minted(r, &n[1], 1, 1, 'b');
    for (int i = 0; i < 2; i++) {
      const struct msg *m = rig_last(r, n[i].conn, MSG_IDS);
      assert_int_equal(m->raw[0], 'a');
      assert_int_equal(m->raw[NCCL_ID_SIZE], 'b');
    }
  }
}

/* One has them and may have used them: it is those that the other must have. */
RIG_TEST(test_a_daemon_comes_back_when_one_has_them) {
  open_job(r, n);
  minted(r, &n[0], 0, 1, 'a');
  node_drop(r, &n[0]);
  minted(r, &n[1], 1, 1, 'b');
  assert_true(n[1].has_ids && !n[0].has_ids);
  rig_restart(r, true);
  come_back(r, n);
  check_mint(r, &n[0], 0, 0);
  check_mint(r, &n[1], 0, 2);
  minted(r, &n[1], 0, 2, 'c');
  const struct msg *m = rig_last(r, n[0].conn, MSG_IDS);
  assert_int_equal(m->ids.count, 2);
  assert_int_equal(m->raw[2 * NCCL_ID_SIZE - 1], 'c');
}

/* Who alone had them cannot tell them: nobody else is asked to make others. */
RIG_TEST(test_they_are_lost) {
  struct msg m;
  open_job(r, n);
  minted(r, &n[0], 0, 1, 'a');
  node_drop(r, &n[0]);
  minted(r, &n[1], 1, 1, 'b');
  rig_restart(r, true);
  come_back(r, n);
  for (int i = 0; i < 4; i++) {
    msg_init(&m, MSG_MINTED);
    m.minted.incarnation = n[1].incarnation;
    m.minted.round = 1;
    m.minted.count = 2;
    m.minted.text = "no";
    node_say(r, &n[1], &m);
  }
  check_mint(r, &n[0], 0, 0);
  assert_int_equal(rig_stop(r, &n[0])->verdict.cause, CAUSE_NCCL_IDS);
}

/* A round without ids has none after a recovery, whatever is wanted now. */
RIG_TEST(test_a_round_without) {
  rig_open_running(r, n, 2);
  rig_restart(r, true);
  for (int i = 0; i < 2; i++) n[i].wants_ids = true;
  come_back(r, n);
  for (int i = 0; i < 2; i++) check_mint(r, &n[i], 0, 0);
}
