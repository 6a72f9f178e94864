/* SPDX-License-Identifier: Apache-2.0 */
/* job: what nodes know of collectives, joined in the verdict of a hang. */

#include <stdio.h>
#include <string.h>
#include "daemon/job/accounts.h"
#include "tests/rig/core.h"
#include "tests/rig/unit.h"

static void shows(struct rig *r, struct node *n, int64_t round, struct collective *c, size_t count, const char *silent,
                  const char *text) {
  struct msg m;
  msg_init(&m, MSG_EVIDENCE);
  m.evidence.incarnation = n->incarnation;
  m.evidence.round = round;
  m.evidence.collectives = c;
  m.evidence.n_collectives = count;
  m.evidence.silent = silent;
  m.evidence.text = text;
  node_say(r, n, &m);
}

static struct collective waits(int64_t seq, int64_t n) {
  return (struct collective){
      .group = "gloo 0 default_pg", .op = "all_reduce", .seq = seq, .waiting = n, .entered = -1, .ranks = ""};
}

static struct collective idle(int64_t entered, const char *ranks) {
  return (struct collective){.group = "gloo 0 default_pg", .op = "", .entered = entered, .idle = 1, .ranks = ranks};
}

static void hangs(struct rig *r, struct node *n, int64_t rank, enum cause cause, const char *evidence,
                  const char *text) {
  struct verdict v;
  verdict_init(&v);
  v.cause = cause;
  v.node_rank = n->node_rank;
  v.rank = rank;
  v.code = 67;
  v.idle_ms = 5000;
  v.evidence = evidence;
  v.text = text;
  node_report(r, n, REPORT_FAILED, &v, 0);
}

static const char *settled(struct rig *r, struct node *n, int count) {
  for (int i = 0; i < count; i++) node_stopped(r, &n[i]);
  const struct msg *m = rig_last(r, n[0].conn, MSG_SETTLED);
  assert_non_null(m);
  return m->settled.verdict.evidence;
}

RIG_TEST(test_nodes_are_joined) {
  struct collective a = waits(412, 3), b = waits(412, 4), c = idle(411, "3");
  rig_open_running(r, n, 3);
  shows(r, &n[2], 1, &b, 1, "", "");
  hangs(r, &n[2], 5, CAUSE_WORKER_HUNG, "4 ranks wait in all_reduce #412", "");
  const struct msg *m = rig_last(r, n[0].conn, MSG_STOP);
  assert_string_equal(m->stop.verdict.evidence, "4 ranks wait in all_reduce #412");
  shows(r, &n[1], 1, &c, 1, "", "");
  shows(r, &n[0], 1, &a, 1, "", "NCCL says much");
  assert_string_equal(settled(r, n, 3), "rank 3 has not entered all_reduce #412, 7 others wait in it");
}

/* RAS of node 0 knows what no flight recorder does. */
RIG_TEST(test_ras) {
  struct collective a = waits(4, 1);
  rig_open_running(r, n, 2);
  hangs(r, &n[1], 1, CAUSE_WORKER_HUNG, "", "");
  shows(r, &n[0], 1, &a, 1, "", "rank 0 does not answer NCCL");
  assert_string_equal(settled(r, n, 2), "rank 0 does not answer NCCL");
}

RIG_TEST(test_a_collective_that_timed_out) {
  struct collective a = waits(4, 1), b = idle(3, "1");
  rig_open_running(r, n, 2);
  hangs(r, &n[0], 0, CAUSE_WORKER_SIGNAL, "",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)");
  shows(r, &n[0], 1, &a, 1, "", "");
  shows(r, &n[1], 1, &b, 1, "", "");
  assert_string_equal(settled(r, n, 2), "rank 1 has not entered all_reduce #4, 1 other waits in it");
}

/* Another round, another cause, another node: it says nothing. The next round begins with none. */
RIG_TEST(test_what_does_not_count) {
  struct collective a = waits(4, 1), b = idle(3, "1");
  rig_open_running(r, n, 2);
  shows(r, &n[0], 1, &a, 1, "", "");
  shows(r, &n[1], 1, &b, 1, "", "");
  hangs(r, &n[0], 0, CAUSE_WORKER_EXIT, "", "boom");
  assert_string_equal(settled(r, n, 2), "");
  rig_live(r, 20000);
  assert_int_equal(n[0].round, 2);
  shows(r, &n[0], 1, &a, 1, "", "");
  shows(r, &n[1], 1, &b, 1, "", "text");
  for (int i = 0; i < 2; i++) node_started(r, &n[i]);
  hangs(r, &n[0], 0, CAUSE_WORKER_HUNG, "", "");
  rig_forget(r);
  assert_string_equal(settled(r, n, 2), "");
}

/* n groups, the first of them with this number; ranks wait in each. */
static void shows_groups(struct rig *r, struct node *n, int first, int64_t waiting) {
  struct collective v[COLLECTIVES_MAX];
  char names[COLLECTIVES_MAX][32];
  for (int k = 0; k < COLLECTIVES_MAX; k++) {
    v[k] = waits(4, waiting);
    snprintf(names[k], sizeof names[k], "gloo %d", first + k);
    v[k].group = names[k];
  }
  shows(r, n, n->round, v, COLLECTIVES_MAX, "1", "");
}

/* A node that sends groups without end: the first ones count. */
RIG_TEST(test_limit) {
  rig_open_running(r, n, 2);
  hangs(r, &n[0], 0, CAUSE_WORKER_HUNG, "", "");
  for (int i = 0; i < 100; i++) shows_groups(r, &n[0], i * COLLECTIVES_MAX, i ? 100 : 1);
  assert_string_equal(settled(r, n, 2),
                      "1 rank waits in all_reduce #4 of process group gloo 0; the debug server of rank 1 "
                      "does not answer");
}

/* Each node has its own share, and more may be said of groups that are known. The next round begins with none. */
RIG_TEST(test_limit_of_each_node) {
  rig_open_running(r, n, 2);
  for (int round = 1; round <= 2; round++) {
    hangs(r, &n[0], 0, CAUSE_WORKER_HUNG, "", "");
    for (int i = 0; i < 100; i++) shows_groups(r, &n[0], i * COLLECTIVES_MAX, 1);
    shows_groups(r, &n[1], 0, 2); /* the same ones */
    if (round == 2) shows_groups(r, &n[1], 1000 * COLLECTIVES_MAX, 100);
    shows_groups(r, &n[1], 2000 * COLLECTIVES_MAX, 4);
    assert_string_equal(settled(r, n, 2),
                        round == 1 ? "4 ranks wait in all_reduce #4 of process group gloo 128000; the debug server of "
                                     "rank 1 does not answer"
                                   : "100 ranks wait in all_reduce #4 of process group gloo 64000; the debug server of "
                                     "rank 1 does not answer");
    rig_live(r, 20000);
    for (int i = 0; i < 2; i++) node_started(r, &n[i]);
  }
}

/* As many jobs of one user as it takes. Another user's evidence counts, and hers again when a round of hers is over. */
RIG_TEST(test_limit_of_a_user) {
  enum { FULL = ACCOUNT_GROUPS_MAX / COLLECTIVES_MAX };
  static struct node all[FULL + 3];
  static char ids[FULL + 3][16];
  rig_open_for(r, 1, 1);
  for (int i = 0; i < FULL + 3; i++) {
    bool beyond = i == FULL;
    rig_forget(r);
    if (i == FULL + 2) settled(r, &all[0], 1); /* her first round is over */
    rig_forget(r);
    r->n_nodes = 0;
    node_init(r, &all[i], i);
    snprintf(ids[i], sizeof ids[i], "j%d", i);
    all[i].job = ids[i];
    all[i].key_uid = all[i].uid = i == FULL + 1 ? 1000 : 1001;
    node_join(r, &all[i]);
    node_started(r, &all[i]);
    hangs(r, &all[i], 0, CAUSE_WORKER_HUNG, "", "");
    shows_groups(r, &all[i], 0, 1);
    if (i >= FULL)
      assert_string_equal(settled(r, &all[i], 1),
                          beyond ? "the debug server of rank 1 does not answer"
                                 : "1 rank waits in all_reduce #4 of process group gloo 0; the debug server of rank 1 "
                                   "does not answer");
  }
}
