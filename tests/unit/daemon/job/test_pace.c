/* SPDX-License-Identifier: Apache-2.0 */
/* job: what becomes of PACE. Who is slow is daemon/goodput/slow_ranks's to find, and tested there. */

#include "tests/rig/core.h"

#include <string.h>
#include "common/json.h"
#include "daemon/core/internal.h"
#include "daemon/core/metrics.h"
#include "tests/rig/unit.h"

enum { WORKERS = 4 };

static const struct notice_msg *last_notice(const struct rig *r, const struct node *n) {
  const struct msg *m = rig_last(r, n->conn, MSG_NOTICE);
  return m ? &m->notice_msg : NULL;
}

static size_t notices(const struct rig *r, const struct node *n) {
  return rig_count(r, n->conn, MSG_NOTICE);
}

/* So many nodes with 4 workers, of which min must be there. */
static void open_training(struct rig *r, struct node *n, int64_t min, size_t nodes) {
  rig_open(r, 1);
  r->settings.min_nodes = min;
  r->settings.max_nodes = (int64_t)nodes;
  r->settings.slow_ranks_ms = 12000;
  nodes_init(r, n, nodes);
  for (size_t i = 0; i < nodes; i++) n[i].workers = WORKERS;
  n[0].wants_events = true;
  nodes_join(r, n, nodes);
  nodes_started(r, n, nodes);
  rig_forget(r);
}

/* Seconds of training, 100 collectives in each. The slow rank (-1: none) is in them for no time, the others for `permille`
 * of it. whole: all ranks of its node are as slow. By its wire all are in them alike, and its sends take twice as long. */
static enum slow_by slow_by;
static void train(struct rig *r, struct node *n, size_t nodes, int seconds, int64_t slow, bool whole, int permille) {
  static int64_t sums[RIG_NODES_MAX * WORKERS], collectives;
  if (collectives == 0 || seconds == 0) memset(sums, 0, sizeof sums);
  for (int s = 0; s < seconds; s++) {
    collectives += 100;
    for (size_t i = 0; i < nodes; i++) {
      struct rank_pace v[WORKERS];
      struct msg m;
      for (int64_t k = 0; k < WORKERS; k++) {
        int64_t rank = n[i].rank_base + k;
        bool is_slow = whole ? slow >= 0 && rank / WORKERS == slow / WORKERS : rank == slow;
        if (slow >= 0 && (!is_slow || slow_by == SLOW_BY_WIRE)) sums[rank] += permille * 1000;
        v[k] = (struct rank_pace){.local_rank = k,
                                  .group = 5,
                                  .group_rank = rank,
                                  .group_size = (int64_t)nodes * WORKERS,
                                  .collectives = collectives,
                                  .waited_us = sums[rank],
                                  .sent_bytes = collectives << 20,
                                  .sending_us = collectives * 1000 * (is_slow && slow_by == SLOW_BY_WIRE ? 2 : 1)};
      }
      msg_init(&m, MSG_PACE);
      m.rank_paces.incarnation = n[i].incarnation;
      m.rank_paces.round = n[i].round;
      m.rank_paces.ranks = v;
      m.rank_paces.n_ranks = WORKERS;
      node_say(r, &n[i], &m);
    }
    rig_live(r, 1000);
  }
}

static bool metrics_have(struct rig *r, const char *line) {
  struct buf out = BUF_INIT;
  struct process_facts none = {-1, -1, -1, -1, -1, -1};
  metrics_put(r->core, 0, &none, r->now_ms, &out);
  bool found = strstr(buf_text(&out), line) != NULL;
  buf_finish(&out);
  return found;
}

RIG_TEST(test_a_slow_rank_is_named_and_keeps_up_again) {
  open_training(r, n, 3, 3);
  train(r, n, 3, 30, 9, false, 180);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(notices(r, &n[i]), 1);
    assert_string_equal(last_notice(r, &n[i])->text,
                        "rank 9 (n2, local 1) is slow: the others wait 18 % of the time for it");
  }
  assert_non_null(strstr(buf_text(&r->log), "rank 9 (n2, local 1) is slow"));
  assert_string_equal(rig_last(r, n[0].conn, MSG_EVENT)->event_msg.name, "rdzv.rank.slow");
  rig_control(r, "status", "", false);
  assert_said(r, "  rank 9 (n2, local 1) is slow: the others wait 18 % of the time for it, for ");
  rig_control(r, "status", "", true);
  assert_said(r, "\"slow_ranks\":[{\"rank\":9,\"node_rank\":2,\"by\":\"work\",\"permille\":180,");
  assert_true(metrics_have(r, "rdzv_slow_ranks{job=\"job\",uid=\"1000\"} 1\n"));
  assert_true(metrics_have(r, "rdzv_slow_rank_cost_ratio{job=\"job\",uid=\"1000\"} 0.180\n"));
  rig_forget(r);
  train(r, n, 3, 30, 9, false, 180); /* it is said once */
  assert_int_equal(notices(r, &n[0]), 0);
  train(r, n, 3, 30, -1, false, 0);
  assert_string_equal(last_notice(r, &n[1])->text, "rank 9 (n2, local 1) keeps up again");
  assert_string_equal(rig_last(r, n[0].conn, MSG_EVENT)->event_msg.name, "rdzv.rank.keeps_up");
  assert_true(metrics_have(r, "rdzv_slow_ranks{job=\"job\",uid=\"1000\"} 0\n"));
}

RIG_TEST(test_a_slow_host_is_one_line) {
  open_training(r, n, 4, 4);
  train(r, n, 4, 30, 8, true, 100);
  assert_int_equal(notices(r, &n[0]), 1);
  assert_string_equal(last_notice(r, &n[0])->text, "host n2 is slow: the others wait 10 % of the time for its ranks");
  assert_true(metrics_have(r, "rdzv_slow_ranks{job=\"job\",uid=\"1000\"} 4\n"));
}

/* It was slow for 30 s of 60, found after 12 s. The round fails for another reason, and the verdict has
 * both. The next round has nothing of it. */
RIG_TEST(test_the_verdict_says_what_it_cost) {
  open_training(r, n, 3, 3);
  train(r, n, 3, 30, 9, false, 180);
  train(r, n, 3, 30, -1, false, 0);
  node_killed(r, &n[0], 9, 0);
  nodes_stopped(r, n, 3);
  const struct verdict *v = &rig_settled(r, &n[1])->verdict;
  assert_string_equal(v->slow, "rank 9 (n2, local 1) was slow for 29 s, which cost 5 s (9 % of the round)");
  assert_non_null(
      strstr(buf_text(&r->log),
             "is settled: rank 0 on n0 was killed by SIGKILL (signal 9); rank 9 (n2, local 1) was slow for"));
  rig_control(r, "status", "", true);
  assert_said(r, "\"slow\":\"rank 9 (n2, local 1) was slow for");
  nodes_started(r, n, 3);
  node_killed(r, &n[0], 9, 0);
  nodes_stopped(r, n, 3);
  assert_string_equal(rig_settled(r, &n[1])->verdict.slow, "");
}

/* A job that went well says it at its end. Here a whole host was slow until then. */
RIG_TEST(test_the_end_says_what_it_cost) {
  open_training(r, n, 4, 4);
  train(r, n, 4, 100, 8, true, 100);
  nodes_finished(r, n, 4);
  const struct end *end = rig_end(r, &n[0]);
  assert_int_equal(end->outcome, OUTCOME_SUCCESS);
  assert_string_equal(end->verdict.slow, "host n2 was slow for 99 s, which cost 9 s (10 % of the round)");
  const struct msg *m = rig_last(r, n[0].conn, MSG_EVENT);
  assert_string_equal(m->event_msg.name, "rdzv.job.ended");
  assert_non_null(strstr(m->raw, "; host n2 was slow for"));
}

/* A wire for a minute, later a rank for half of it. */
RIG_TEST(test_the_costliest_is_named) {
  open_training(r, n, 3, 3);
  slow_by = SLOW_BY_WIRE;
  train(r, n, 3, 0, -1, false, 0);
  train(r, n, 3, 60, 9, false, 600);
  slow_by = SLOW_BY_WORK;
  train(r, n, 3, 60, -1, false, 0);
  train(r, n, 3, 30, 2, false, 100);
  node_killed(r, &n[0], 9, 0);
  nodes_stopped(r, n, 3);
  assert_string_equal(rig_settled(r, &n[1])->verdict.slow,
                      "the sends of rank 9 (n2, local 1) were slow for 59 s, which cost 17 s (12 % of the round)");
}

/* Without the option nothing is judged; nor are words of another round. */
RIG_TEST(test_off_and_stale) {
  open_training(r, n, 3, 3);
  n[1].round++;
  train(r, n, 3, 30, 9, false, 180);
  assert_int_equal(notices(r, &n[0]), 0);
  n[1].round--;
  rig_close(r);
  rig_open(r, 1);
  r->settings.min_nodes = r->settings.max_nodes = 3;
  nodes_init(r, n, 3);
  for (size_t i = 0; i < 3; i++) n[i].workers = WORKERS;
  nodes_join(r, n, 3);
  nodes_started(r, n, 3);
  train(r, n, 3, 30, 9, false, 180);
  assert_int_equal(notices(r, &n[0]), 0);
}

/* --slow-limit 15,20s: its host is drained for this job, and the round ends as for a drain. */
RIG_TEST(test_slow_limit) {
  rig_open(r, 1);
  r->settings.slow_limit = 15;
  r->settings.slow_limit_ms = 20000;
  r->settings.min_nodes = 2;
  r->settings.max_nodes = 3;
  r->settings.slow_ranks_ms = 12000;
  nodes_init(r, n, 3);
  for (size_t i = 0; i < 3; i++) n[i].workers = WORKERS;
  nodes_join(r, n, 3);
  nodes_started(r, n, 3);
  train(r, n, 3, 60, 9, false, 120); /* it costs less than that */
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "drained"));
  assert_said(r, "--slow-limit 15,20s");
  train(r, n, 3, 15, 9, false, 200);
  assert_null(rig_last(r, n[0].conn, MSG_PREPARE));
  train(r, n, 3, 25, 9, false, 200);
  assert_non_null(rig_last(r, n[0].conn, MSG_PREPARE));
  rig_control(r, "status", "", false);
  assert_said(r, "drained: n2");
  assert_said(
      r, "by the job itself: rank 9 (n2, local 1) is slow: the others wait 20 % of the time for it (--slow-limit 15)");
}

/* Of a wire one end is seen, and the other may be at fault. */
RIG_TEST(test_slow_limit_is_not_for_wires) {
  rig_open(r, 1);
  r->settings.slow_limit = 15;
  r->settings.slow_limit_ms = 20000;
  r->settings.min_nodes = 2;
  r->settings.max_nodes = 3;
  r->settings.slow_ranks_ms = 12000;
  nodes_init(r, n, 3);
  for (size_t i = 0; i < 3; i++) n[i].workers = WORKERS;
  nodes_join(r, n, 3);
  nodes_started(r, n, 3);
  slow_by = SLOW_BY_WIRE;
  train(r, n, 3, 0, -1, false, 0);
  train(r, n, 3, 90, 9, false, 600);
  slow_by = SLOW_BY_WORK;
  rig_control(r, "status", "", false);
  assert_said(r, "the wire from rank 9 (n2, local 1) is slow, or the one to the rank behind it: its sends cost 30 %");
  assert_null(rig_said(r, "drained"));
  assert_null(rig_last(r, n[0].conn, MSG_PREPARE));
}

RIG_TEST(test_slow_limit_only_where_it_can) {
  rig_open(r, 1);
  r->settings.slow_limit = 15;
  r->settings.min_nodes = r->settings.max_nodes = 3;
  r->settings.slow_ranks_ms = 12000;
  nodes_init(r, n, 3);
  for (size_t i = 0; i < 3; i++) n[i].workers = WORKERS;
  nodes_join(r, n, 3);
  nodes_started(r, n, 3);
  train(r, n, 3, 60, 9, false, 200);
  assert_non_null(strstr(buf_text(&r->log), "host n2 would be excluded, but the job cannot go on without it"));
  assert_null(rig_last(r, n[0].conn, MSG_PREPARE));
}
