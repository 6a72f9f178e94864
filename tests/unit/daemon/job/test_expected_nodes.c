/* SPDX-License-Identifier: Apache-2.0 */
/* core: who is expected, who is missing, since when, and what the waiting are told of it. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

/* What n was told last. */
static void assert_told(const struct rig *r, const struct node *n, const char *want) {
  struct buf out = BUF_INIT;
  const struct msg *m = rig_last(r, n->conn, MSG_WAITING);
  assert_non_null(m);
  waiting_sentence(&m->waiting, 0, UINT64_MAX, &out);
  assert_string_equal(buf_text(&out), want);
  buf_finish(&out);
}

static void assert_end(const struct rig *r, const struct node *n, const char *want) {
  assert_int_equal(rig_end(r, n)->code, EXIT_CODE_JOIN_TIMEOUT);
  assert_string_equal(rig_end(r, n)->verdict.text, want);
}

/* Lets time pass; those who are connected stay alive. */
static void pass(struct rig *r, uint64_t seconds) {
  for (; seconds; seconds--) {
    rig_run(r, 1000);
    for (size_t i = 0; i < r->n_nodes; i++)
      if (r->nodes[i]->conn) node_heartbeat(r, r->nodes[i]);
  }
}

static void open_listed(struct rig *r, struct node *n, size_t count, const char *list, int64_t expected) {
  rig_open(r, 1);
  r->settings.min_nodes = r->settings.max_nodes = (int64_t)count;
  for (size_t i = 0; i < count; i++) {
    node_init(r, &n[i], (int)i);
    n[i].expected_hosts = list;
    n[i].expected_nodes = expected;
  }
}

RIG_TEST(test_nobody_is_listed) {
  open_listed(r, n, 3, "", 0);
  node_join(r, &n[0]);
  assert_told(r, &n[0], "1 of 3 nodes is here (n0) after 0 s, giving up in 10 min (--join-timeout); missing 2");
  pass(r, 41);
  node_join(r, &n[2]);
  assert_told(r, &n[2],
              "2 of 3 nodes are here (n[0,2]) after 41 s, giving up in 9 min 19 s (--join-timeout); missing 1");
  pass(r, 559);
  assert_end(r, &n[0], "2 of 3 nodes came (n[0,2]) within 10 min (--join-timeout); missing 1");
}

RIG_TEST(test_a_list_names_them) {
  open_listed(r, n, 6, "n[0-5]", 6);
  node_join(r, &n[0]);
  assert_told(r, &n[0],
              "1 of 6 nodes is here after 0 s, giving up in 10 min (--join-timeout); missing 5: n[1-5] (never came)");
  node_join(r, &n[2]);
  node_join(r, &n[3]);
  pass(r, 60);
  node_drop(r, &n[2]);
  pass(r, 30);
  node_bye(r, &n[3]);
  pass(r, 5);
  assert_told(r, &n[0],
              "1 of 6 nodes is here after 90 s, giving up in 8 min 30 s (--join-timeout); missing 5: n[1,4-5] (never "
              "came), n2 (lost 30 s ago: its connection closed and did not come back), n3 (left 0 s ago)");
}

RIG_TEST(test_sealed_when_all_that_are_listed_are_here) {
  open_listed(r, n, 4, "n[0-2]", 0); /* no count: the list has it */
  for (int i = 0; i < 4; i++) n[i].settings.min_nodes = 1;
  node_join(r, &n[0]);
  node_join(r, &n[3]); /* a stranger is welcome, but nobody waits for it */
  assert_told(r, &n[3],
              "2 of 3 nodes are here, 1 of them not expected, after 0 s, beginning with these 2 in 30 s "
              "(--last-call); "
              "missing 2: n[1-2] (never came)");
  node_join(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "forming");
  pass(r, 1);
  node_drop(r, &n[1]);
  pass(r, 1);
  node_join(r, &n[2]);
  assert_string_equal(rig_state(r, "job"), "forming");
  node_join(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_int_equal(n[0].nodes, 4);
}

RIG_TEST(test_short_and_long_names) {
  open_listed(r, n, 5, "gpu1,gpu2.a,gpu2.b,10.0.0.7", 0);
  for (int i = 0; i < 5; i++) n[i].settings.min_nodes = 1;
  snprintf(n[0].host, sizeof n[0].host, "GPU1.cluster.example");
  snprintf(n[1].host, sizeof n[1].host, "gpu2.c"); /* which one? */
  snprintf(n[2].host, sizeof n[2].host, "10.0.0.8");
  snprintf(n[3].host, sizeof n[3].host, "gpu2.b");
  nodes_join(r, n, 3);
  assert_told(r, &n[2],
              "3 of 4 nodes are here, 2 of them not expected, after 0 s, beginning with these 3 in 30 s "
              "(--last-call); missing 3: "
              "10.0.0.7,gpu2.a,gpu2.b (never came)");
  node_join(r, &n[3]);
  assert_told(r, &n[3],
              "4 of 4 nodes are here, 2 of them not expected, after 0 s, beginning with these 4 in 30 s "
              "(--last-call); missing 2: "
              "10.0.0.7,gpu2.a (never came)");
}

RIG_TEST(test_several_agents_on_a_host) {
  open_listed(r, n, 4, "n[0-1]", 4); /* srun --ntasks-per-node 2 */
  for (int i = 0; i < 4; i++) snprintf(n[i].host, sizeof n[i].host, "n%d", i / 2);
  node_join(r, &n[0]);
  assert_told(r, &n[0],
              "1 of 4 nodes is here after 0 s, giving up in 10 min (--join-timeout); missing 3: n[0-1] (never came)");
  node_join(r, &n[1]);
  node_join(r, &n[2]);
  assert_told(r, &n[2],
              "3 of 4 nodes are here after 0 s, giving up in 10 min (--join-timeout); missing 1: n1 (never came)");
  node_join(r, &n[3]);
  assert_string_equal(rig_state(r, "job"), "starting");
}

/* A spare is a job of its own for the scheduler, which lists its one host. */
static void join_spare(struct rig *r, struct node *spare, const struct node *like) {
  node_init(r, spare, 9);
  spare->settings = like->settings;
  spare->expected_hosts = "n9";
  spare->expected_nodes = 1;
  node_join(r, spare);
}

RIG_TEST(test_a_spare_that_comes_early_remains_one) {
  struct node spare;
  open_listed(r, n, 2, "n[0-1]", 2);
  node_join(r, &n[0]);
  join_spare(r, &spare, &n[0]);
  assert_string_equal(rig_state(r, "job"), "forming");
  assert_told(r, &spare,
              "2 of 2 nodes are here, 1 of them not expected, after 0 s, beginning with these 2 in 30 s "
              "(--last-call); missing 1: n1 (never came)");
  pass(r, 10);
  node_join(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_int_equal(n[0].nodes, 2);
  assert_int_equal(n[1].nodes, 2);
  assert_true(rig_last(r, spare.conn, MSG_WAITING)->waiting.spare);
}

RIG_TEST(test_who_never_comes_is_replaced_by_a_spare) {
  struct node spare;
  open_listed(r, n, 2, "n[0-1]", 2);
  node_join(r, &n[0]);
  join_spare(r, &spare, &n[0]);
  pass(r, 29);
  assert_string_equal(rig_state(r, "job"), "forming");
  pass(r, 2);
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_int_equal(spare.nodes, 2);
}

/* Nor does it make the job an elastic one of its own size. */
RIG_TEST(test_a_spare_of_an_elastic_job) {
  struct node spare;
  open_listed(r, n, 4, "n[0-2]", 3);
  for (int i = 0; i < 4; i++) n[i].settings.min_nodes = 1;
  nodes_join(r, n, 2);
  join_spare(r, &spare, &n[0]);
  assert_string_equal(rig_state(r, "job"), "forming");
  node_join(r, &n[2]);
  assert_string_equal(rig_state(r, "job"), "starting");
  assert_int_equal(spare.nodes, 4); /* there was a place for it, too */
}

RIG_TEST(test_a_spare_may_be_the_first) {
  struct node spare;
  open_listed(r, n, 2, "n[0-1]", 2);
  join_spare(r, &spare, &n[0]);
  node_join(r, &n[0]);
  assert_string_equal(rig_state(r, "job"), "forming");
  assert_told(r, &n[0],
              "2 of 2 nodes are here, 1 of them not expected, after 0 s, beginning with these 2 in 30 s "
              "(--last-call); missing 1: n1 (never came)");
  node_join(r, &n[1]);
  assert_int_equal(n[1].nodes, 2);
  assert_true(rig_last(r, spare.conn, MSG_WAITING)->waiting.spare);
}

RIG_TEST(test_a_list_of_other_names_delays_nobody) {
  open_listed(r, n, 2, "n0,10.0.0.2", 2); /* but as many as were started are here */
  nodes_join(r, n, 2);
  assert_string_equal(rig_state(r, "job"), "starting");
  open_listed(r, n, 2, "rack1,rack2", 2);
  nodes_join(r, n, 2);
  assert_string_equal(rig_state(r, "job"), "starting");
}

/* Without a list: those who were part of the last round. */
RIG_TEST(test_after_a_fault_the_lost_are_missed) {
  rig_open_running(r, n, 3);
  node_death_report(r, &n[1]);
  node_stopped(r, &n[0]);
  node_stopped(r, &n[2]);
  assert_string_equal(rig_state(r, "job"), "forming");
  pass(r, 41);
  assert_told(r, &n[0],
              "2 of 3 nodes are here after 30 s, giving up in 9 min 30 s (--join-timeout); missing 1: n1 "
              "(lost 30 s ago: its agent died; the guard killed its workers)");
  struct node again;
  node_init(r, &again, 7);
  snprintf(again.host, sizeof again.host, "n1");
  node_join(r, &again);
  assert_string_equal(rig_state(r, "job"), "starting");
  node_death_report(r, &n[2]); /* a round later n1 is not missed any more */
  node_stopped(r, &n[0]);
  node_stopped(r, &again);
  pass(r, 1);
  const struct msg *m = rig_last(r, n[0].conn, MSG_WAITING);
  assert_int_equal(m->waiting.n_absent, 1);
  assert_string_equal(m->waiting.absent[0].hosts, "n2");
}

RIG_TEST(test_a_leaving_node_has_left) {
  struct verdict v;
  rig_open_running(r, n, 2);
  verdict_init(&v);
  v.cause = CAUSE_NODE_LEAVING;
  v.text = "SIGTERM asked its agent to leave";
  node_report(r, &n[1], REPORT_LEAVING, &v, 0);
  node_stopped(r, &n[1]);
  node_bye(r, &n[1]);
  node_stopped(r, &n[0]);
  pass(r, 600);
  const struct end *m = rig_end(r, &n[0]);
  assert_non_null(strstr(m->verdict.text, "1 of 2 nodes came within 10 min (--join-timeout); missing 1: n1 (left "));
  assert_non_null(strstr(m->verdict.text, " ago: SIGTERM asked its agent to leave)"));
}

/* Lost together: one group, its oldest time. A thousand are one line. */
RIG_TEST(test_groups) {
  enum { N = 14 };
  open_listed(r, n, N, "", 0);
  for (int i = 0; i < N - 1; i++) node_join(r, &n[i]);
  for (int i = 1; i < 8; i++) node_drop(r, &n[i]);
  pass(r, 20);
  for (int i = 8; i < 10; i++) node_drop(r, &n[i]);
  pass(r, 41);
  assert_told(r, &n[0],
              "4 of 14 nodes are here after 50 s, giving up in 9 min 10 s (--join-timeout); missing 10: "
              "n[1-7] (lost 50 s ago: its connection closed and did not come back), n[8-9] (lost 30 s ago: "
              "its connection closed and did not come back)");
}

RIG_TEST(test_ranks_that_nobody_asked_for) {
  open_listed(r, n, 3, "", 0);
  for (int i = 0; i < 3; i++) n[i].settings.min_nodes = n[i].settings.max_nodes = 8;
  n[0].want_rank = 1;
  n[1].want_rank = 5;
  nodes_join(r, n, 2);
  assert_told(r, &n[1],
              "2 of 8 nodes are here after 0 s, giving up in 10 min (--join-timeout); missing 6: node rank "
              "0, 2-4, 6-7 (never came)");
  node_join(r, &n[2]);
  assert_told(r, &n[2], "3 of 8 nodes are here (n[0-2]) after 0 s, giving up in 10 min (--join-timeout); missing 5");
}

/* Refused. --------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_who_waits_hears_of_who_was_refused) {
  open_listed(r, n, 2, "", 0);
  node_join(r, &n[0]);
  pass(r, 3);
  node_init(r, &n[2], 2);
  n[2].settings.max_nodes = 3;
  node_join(r, &n[2]);
  assert_non_null(rig_last(r, n[2].conn, MSG_REFUSED));
  n[2].conn = 0;
  rig_forget(r);
  rig_run(r, 1); /* news: not in half a minute */
  assert_told(r, &n[0],
              "1 of 2 nodes is here (n0) after 3 s, giving up in 9 min 57 s (--join-timeout); missing 1; n2 "
              "was refused 0 s ago: --nnodes (maximum) is 3 there and 2 in the job");
  pass(r, 597);
  assert_end(r, &n[0],
             "1 of 2 nodes came (n0) within 10 min (--join-timeout); missing 1; n2 was refused 9 min 57 s "
             "ago: --nnodes (maximum) is 3 there and 2 in the job");
}

RIG_TEST(test_refusals_are_few_and_forgotten) {
  open_listed(r, n, 9, "", 0);
  for (int i = 0; i < 9; i++) n[i].settings.max_nodes = n[i].settings.min_nodes = 9;
  n[0].want_rank = 0;
  node_join(r, &n[0]);
  for (int i = 1; i < 8; i++) {
    n[i].want_rank = 0;
    node_join(r, &n[i]);
    n[i].conn = 0;
    rig_run(r, 10);
  }
  n[3].want_rank = 0; /* again: the newest now */
  node_join(r, &n[3]);
  n[3].conn = 0;
  n[6].want_rank = -1; /* and this one has seen it */
  node_join(r, &n[6]);
  const struct waiting *w = &rig_last(r, n[6].conn, MSG_WAITING)->waiting;
  assert_int_equal(w->n_refusals, 3);
  assert_string_equal(w->refusals[0].host, "n3");
  assert_string_equal(w->refusals[1].host, "n7");
  assert_string_equal(w->refusals[2].host, "n5");
  assert_string_equal(w->refusals[0].text, "--node-rank 0 is already taken by n0 (pid 4711)");
}

/* Lists. ----------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_a_list_that_cannot_be_read) {
  open_listed(r, n, 2, "n[0-", 2);
  node_join(r, &n[0]);
  assert_non_null(strstr(buf_text(&r->log), "the list of expected hosts is invalid: \"n[0-\" is not a list of hosts"));
  assert_told(r, &n[0], "1 of 2 nodes is here (n0) after 0 s, giving up in 10 min (--join-timeout); missing 1");
}

/* A job that was requeued runs on other machines. */
RIG_TEST(test_the_last_list_counts) {
  struct node m;
  open_listed(r, n, 3, "n[0-2]", 3);
  nodes_join(r, n, 2);
  pass(r, 10);
  node_drop(r, &n[1]);
  pass(r, 10);
  node_init(r, &n[3], 3);
  n[3].settings = n[0].settings;
  n[3].expected_nodes = 3;
  n[3].expected_hosts = "n[0-1,3]";
  node_join(r, &n[3]);
  assert_told(r, &n[3],
              "2 of 3 nodes are here after 20 s, giving up in 9 min 40 s (--join-timeout); missing 1: n1 "
              "(lost 10 s ago: its connection closed and did not come back)");
  node_bye(r, &n[3]);
  /* But not for ever: a different list from each node costs a bounded number of looks. */
  for (int i = 0; i < 100; i++) {
    char list[32];
    r->n_nodes = 0;
    node_init(r, &m, 100 + i);
    snprintf(list, sizeof list, "x%d", i);
    m.settings = n[0].settings;
    m.expected_hosts = list;
    m.want_rank = 0;
    node_join(r, &m);
    node_bye(r, &m);
  }
  assert_string_equal(rig_state(r, "job"), "forming");
}

/* Another key. ----------------------------------------------------------------------------------------------------- */

#define OTHER_KEY                                                                                                      \
  "its agent has another key than the daemon: give both the same one, by --key-file or RDZV_KEY, or run munged"

static void turn_away(struct rig *r, const char *host, const char *addr) {
  rig_event(r, &(struct core_event){.kind = CORE_TURNED_AWAY, .host = host, .peer_addr = addr});
  rig_run(r, 1000);
}

static void expect_series(const struct rig *r, size_t first, size_t max, const char *want) {
  struct buf names = BUF_INIT;
  size_t n = core_missing_hosts(r->core, first, max, &names), at = 0;
  for (size_t i = 0; i + 1 < n; i++) names.data[at += strlen(names.data + at)] = ' ';
  assert_string_equal(buf_text(&names), want);
  buf_finish(&names);
}

static void expect_missing(const struct rig *r, const char *want) {
  expect_series(r, 0, 3, want);
}

/* One with many missing hosts keeps nobody else's from being looked up. */
RIG_TEST(test_jobs_take_turns_with_their_missing_hosts) {
  static const char *const hosts[][2] = {{"one", "n0,a[1-99]"}, {"two", "n1,b[1-99]"}, {"three", "n2,c[1-2]"}};
  open_listed(r, n, 3, "", 3);
  for (int i = 0; i < 3; i++) {
    n[i].job = hosts[i][0];
    n[i].expected_hosts = hosts[i][1];
    node_join(r, &n[i]);
  }
  expect_series(r, 0, 7, "a1 b1 c1 a2 b2 c2 a3");
  expect_series(r, 1, 3, "b1 c1 a1");
  turn_away(r, "c1", "10.0.0.3");
  expect_series(r, 2, 2, "c2 a1");
  expect_series(r, 0, 0, "");
}

/* The scheduler says who must come, and each of them was refused: there is nobody to wait for. */
RIG_TEST(test_a_job_whose_other_nodes_have_another_key_ends_soon) {
  open_listed(r, n, 3, "n[0-2]", 3);
  expect_missing(r, "");
  node_join(r, &n[0]);
  expect_missing(r, "n1 n2");
  pass(r, 5);
  turn_away(r, "n2", "10.0.0.3");
  expect_missing(r, "n1");
  assert_told(r, &n[0],
              "1 of 3 nodes is here after 5 s, giving up in 9 min 55 s (--join-timeout); missing 2: n1 (never came), "
              "n2 (refused 0 s ago: " OTHER_KEY ")");
  pass(r, 100);
  assert_string_equal(rig_state(r, "job"), "forming");
  turn_away(r, "N1.cluster", "10.0.0.2");
  turn_away(r, "n2", "10.0.0.3"); /* its agent is started again and again */
  assert_told(r, &n[0],
              "1 of 3 nodes is here after 106 s, giving up in 60 s, since no other node can come; missing 2: n2 "
              "(refused 101 s ago: " OTHER_KEY "), n1 (refused 0 s ago: " OTHER_KEY ")");
  node_heartbeat(r, &n[0]);
  pass(r, 57);
  assert_string_equal(rig_state(r, "job"), "forming");
  pass(r, 1);
  assert_end(
      r, &n[0],
      "1 of 3 nodes came within 2 min 46 s, and no other node can come; missing 2: n2 (refused 2 min 41 s ago: " OTHER_KEY
      "), n1 (refused 60 s ago: " OTHER_KEY ")");
}

/* A stranger on the host of a node that has yet to come; the node itself has a minute. */
RIG_TEST(test_a_refused_host_may_come_all_the_same) {
  open_listed(r, n, 2, "n[0-1]", 2);
  node_join(r, &n[0]);
  turn_away(r, "n1", "10.0.0.2");
  pass(r, 50);
  node_join(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "starting");
  nodes_started(r, n, 2);
  pass(r, 20);
  node_bye(r, &n[1]); /* the job has begun: others may take a place */
  node_stopped(r, &n[0]);
  turn_away(r, "n1", "10.0.0.2");
  pass(r, 120);
  assert_string_equal(rig_state(r, "job"), "forming");
}

/* Whoever comes from elsewhere ends nothing: it is named at a private daemon, and not at one that others use too. */
RIG_TEST(test_a_stranger_with_another_key_ends_no_job) {
  for (int owned = 0; owned < 2; owned++) {
    rig_open_with(r, &(struct core_config){.seed = 1, .owned = owned});
    r->settings.min_nodes = r->settings.max_nodes = 2;
    nodes_init(r, n, 2);
    n[0].expected_hosts = n[1].expected_hosts = "n[0-1]";
    node_join(r, &n[0]);
    turn_away(r, "", "10.9.9.9");
    turn_away(r, "n0", "10.0.0.1"); /* it is here */
    assert_told(r, &n[0],
                owned
                    ? "1 of 2 nodes is here after 1 s, giving up in 9 min 59 s (--join-timeout); missing 1: n1 (never "
                      "came); 10.9.9.9 was refused 1 s ago: " OTHER_KEY
                    : "1 of 2 nodes is here after 0 s, giving up in 10 min (--join-timeout); missing 1: n1 (never "
                      "came)");
    pass(r, 120);
    assert_string_equal(rig_state(r, "job"), "forming");
  }
}

/* Half of two are gone, with the daemon. The other one hears soon that it is not enough, long before that is judged. */
RIG_TEST(test_half_of_a_takeover_hears_at_once_what_it_lacks) {
  rig_open_successors(r, 1, 2);
  rig_joined(r, n, 2);
  nodes_started(r, n, 2);
  rig_live(r, 1250);
  for (int i = 0; i < 2; i++) node_leave_silently(&n[i]);
  rig_run(r, 2000);
  rig_use(r, 1);
  node_back(r, &n[1], PHASE_RUNNING);
  rig_run(r, 1999);
  assert_null(rig_last(r, n[1].conn, MSG_WAITING));
  rig_run(r, 1);
  assert_string_equal(rig_state(r, "job"), "recovering");
  assert_int_equal(rig_last(r, n[1].conn, MSG_WAITING)->waiting.lacks, 1);
  assert_told(r, &n[1],
              "the daemon on d1 waits for the nodes of round 1; 1 more node of the last round is needed, since more "
              "than half of them must agree (with --claim $PWD/claims, or another folder that all of them see, these "
              "could go on without)");
}

/* Telling. --------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_news_are_told_once_a_second) {
  open_listed(r, n, 6, "n[0-5]", 6);
  node_join(r, &n[0]);
  rig_run(r, 1); /* the news that a job has begun */
  rig_forget(r);
  for (int i = 1; i < 5; i++) {
    node_join(r, &n[i]);
    rig_run(r, 100);
  }
  assert_int_equal(rig_count(r, n[0].conn, MSG_WAITING), 0);
  rig_run(r, 1000);
  assert_int_equal(rig_count(r, n[0].conn, MSG_WAITING), 1);
  assert_int_equal(rig_count(r, n[4].conn, MSG_WAITING), 2 - 1);
  assert_int_equal(rig_last(r, n[0].conn, MSG_WAITING)->waiting.here, 5);
}

/* A few bytes name 65536 hosts: what all jobs together keep of that is limited. */
RIG_TEST(test_lists_of_many_jobs) {
  char name[6][16];
  rig_open_for(r, NODES_MAX, NODES_MAX);
  for (int i = 0; i < 6; i++) {
    node_init(r, &n[i], i);
    snprintf(name[i], sizeof name[i], "job%d", i);
    n[i].job = name[i];
    n[i].expected_hosts = "n[0-65535]";
  }
  nodes_join(r, n, 4);
  assert_null(strstr(buf_text(&r->log), "not kept"));
  node_join(r, &n[4]);
  assert_non_null(strstr(buf_text(&r->log), "job job4: the list of 65536 expected hosts is not kept"));
  node_bye(r, &n[0]); /* and its job with it: there is room again */
  rig_forget(r);
  node_join(r, &n[5]);
  assert_null(strstr(buf_text(&r->log), "not kept"));
}

RIG_TEST(test_a_large_job_is_told_less_often) {
  enum { N = 10000 };
  char list[] = "n[0-10999]";
  rig_open_for(r, 11000, 11000);
  r->settings.lease_ms = 60000;
  uint64_t sent = 0;
  for (int i = 0; i < N; i++) { /* in 10 s */
    r->n_nodes = 0;
    node_init(r, n, i);
    n->expected_hosts = list;
    n->expected_nodes = 11000;
    node_join(r, n);
    rig_run(r, 1);
    for (size_t k = 0; k < r->n_sent; k++) sent += r->sent[k].msg.type == MSG_WAITING;
    rig_forget(r);
  }
  assert_true(sent > 1000 && sent <= 10 * JOB_NOTICES_PER_S + N);
  rig_run(r, 6000);
  assert_told(r, n,
              "10000 of 11000 nodes are here after 12 s, giving up in 9 min 48 s (--join-timeout); missing "
              "1000: n[10000-10999] (never came)");
}

/* Halves of one job, of which one has concluded another name than the other. */
RIG_TEST(test_two_jobs_that_wait_for_as_many_nodes) {
  open_listed(r, n, 5, "", 0);
  for (int i = 0; i < 4; i++) n[i].settings.min_nodes = n[i].settings.max_nodes = 2;
  n[1].job = "slurm-47.0";
  n[2].job = "another user's";
  n[2].uid = 1001;
  n[4].job = "of another size";
  for (int i = 2; i < 5; i += 2) node_join(r, &n[i]);
  node_join(r, &n[0]);
  assert_told(r, &n[0], "1 of 2 nodes is here (n0) after 0 s, giving up in 10 min (--join-timeout); missing 1");
  rig_forget(r);
  node_join(r, &n[1]);
  assert_told(r, &n[1],
              "1 of 2 nodes is here (n1) after 0 s, giving up in 10 min (--join-timeout); missing 1; job job of "
              "the same user waits here for 2 nodes too: if both are one job, give both the same --rdzv-id");
  pass(r, 2);
  assert_told(r, &n[0],
              "1 of 2 nodes is here (n0) after 1 s, giving up in 9 min 59 s (--join-timeout); missing 1; job "
              "slurm-47.0 of the same user waits here for 2 nodes too: if both are one job, give both the same "
              "--rdzv-id");
  assert_null(rig_last(r, n[2].conn, MSG_WAITING));
  node_join(r, &n[3]); /* the other one begins: it was a job of its own */
  assert_int_equal(n[0].nodes, 2);
  pass(r, 30);
  assert_told(r, &n[1], "1 of 2 nodes is here (n1) after 31 s, giving up in 9 min 29 s (--join-timeout); missing 1");
}
