/* SPDX-License-Identifier: Apache-2.0 */
/* core: whether a daemon may still decide for a job that another one can take over. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

enum { LEASE = 5000 };

static void expect(struct rig *r, const char *state) {
  assert_string_equal(rig_state(r, "job"), state);
}

/* n nodes in their first round, and their first heartbeats. */
static void open_running(struct rig *r, struct node *n, size_t count, int64_t min_nodes) {
  rig_open_successors(r, min_nodes, (int64_t)count);
  rig_running(r, n, count);
  nodes_heartbeat(r, n, count);
}

static const struct start *start_of(struct rig *r, const struct node *n) {
  const struct msg *m = rig_last(r, n->conn, MSG_START);
  assert_non_null(m);
  return &m->start;
}

static unsigned age_of(struct rig *r, struct node *n) {
  node_heartbeat(r, n);
  return n->ack_age;
}

/* The next answer to n says an age of ms of the lease, rounded up to its 200th part. */
static void expect_age(struct rig *r, struct node *n, uint64_t ms) {
  assert_int_equal(age_of(r, n), (ms * FRAME_AGE_PER_LEASE + LEASE - 1) / LEASE);
}

/* Off. ------------------------------------------------------------------------------------------------------------- */

static void expect_off(struct rig *r, struct node *n) {
  const struct start *s = start_of(r, n);
  assert_int_equal(s->seal.nodes, 0);
  assert_int_equal(s->n_successors, 0);
  rig_run(r, 4000);
  assert_int_equal(age_of(r, n), 0);
  assert_false(n->firm);
}

RIG_TEST(test_off_on_one_machine) {
  rig_open_successors(r, 3, 3);
  nodes_init(r, n, 3);
  for (int i = 0; i < 3; i++) snprintf(n[i].peer_addr, sizeof n[i].peer_addr, "10.0.255.1");
  nodes_join(r, n, 3);
  expect_off(r, &n[1]);
}

/* A daemon that a person has started, at one address: nobody else may start one. */
RIG_TEST(test_off_at_a_shared_daemon) {
  rig_open_successors(r, 3, 3);
  struct core_config config = r->config;
  config.owned = false;
  rig_open_with(r, &config);
  r->settings.min_nodes = r->settings.max_nodes = 3;
  rig_joined(r, n, 3);
  expect_off(r, &n[1]);
}

RIG_TEST(test_on_with_standby_daemons) {
  rig_open_successors(r, 2, 2);
  struct core_config config = r->config;
  config.owned = false;
  rig_open_with(r, &config);
  r->settings.daemons = 2;
  rig_joined(r, n, 2);
  assert_int_equal(start_of(r, &n[0])->n_successors, 0);
  assert_int_equal(start_of(r, &n[0])->seal.nodes, 2);
}

/* Successors. ------------------------------------------------------------------------------------------------------ */

/* By rank, at most three, those of other machines that can start a daemon. */
RIG_TEST(test_successors) {
  rig_open_successors(r, 6, 6);
  nodes_init(r, n, 6);
  n[2].standby_port = 0;
  snprintf(n[3].peer_addr, sizeof n[3].peer_addr, "127.0.0.1"); /* on the daemon's machine, too */
  n[5].want_rank = 1;
  nodes_join(r, n, 6);
  const struct start *s = start_of(r, &n[0]);
  assert_int_equal(s->n_successors, 3);
  assert_string_equal(s->successors[0].agent, n[5].agent);
  assert_string_equal(s->successors[1].agent, n[1].agent);
  assert_string_equal(s->successors[2].agent, n[4].agent);
  assert_string_equal(s->successors[0].host, "n5");
  assert_string_equal(s->successors[0].addr, n[5].peer_addr);
  assert_int_equal(s->successors[0].port, 29505);
}

/* A spare turns with the others. */
RIG_TEST(test_spares_learn_successors) {
  rig_open_successors(r, 2, 2);
  rig_running(r, n, 2);
  node_init(r, &n[2], 2);
  node_join(r, &n[2]);
  assert_int_equal(n[2].n_successors, 1);
  assert_string_equal(n[2].successors[0], n[1].agent);
}

/* The tie_breaker is the first node on the daemon's machine, else node rank 0. */
RIG_TEST(test_tie_breaker) {
  for (int ours = 0; ours < 3; ours++) {
    rig_open_successors(r, 4, 4);
    nodes_init(r, n, 4);
    snprintf(n[0].peer_addr, sizeof n[0].peer_addr, "10.0.1.1");
    for (int i = 2; ours && i < 2 + ours; i++) snprintf(n[i].peer_addr, sizeof n[i].peer_addr, "10.0.255.1");
    for (int i = 0; i < 4; i++) n[i].want_rank = i;
    nodes_join(r, n, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(start_of(r, &n[i])->seal.tie_breaker, i == (ours ? 2 : 0));
  }
}

/* Ages. ------------------------------------------------------------------------------------------------------------ */

/* Node i has followed last at 1000 * (i + 1) of a lease: its heartbeat said that it had read an answer of then. The age
 * of the majority's word follows, one for each number of nodes. */
RIG_TEST(test_age_of_a_majority) {
  for (int count = 2; count <= 7; count++) {
    for (int tie_breaker = 0; tie_breaker < count; tie_breaker++) {
      rig_open_successors(r, count, count);
      nodes_init(r, n, (size_t)count);
      snprintf(n[0].peer_addr, sizeof n[0].peer_addr, "10.0.1.1");
      snprintf(n[tie_breaker].peer_addr, sizeof n[0].peer_addr, "10.0.255.1");
      nodes_join(r, n, (size_t)count);
      nodes_started(r, n, (size_t)count);
      uint64_t sealed_ms = r->now_ms, followed_ms[7];
      for (int i = 0; i < count; i++) {
        rig_run(r, 100);
        node_heartbeat(r, &n[i]); /* answered now */
        node_heartbeat(r, &n[i]); /* has read that answer */
        followed_ms[i] = r->now_ms;
      }
      rig_run(r, 1000);
      /* The slowest of the majority that followed last, the asking one among them. */
      uint64_t until = followed_ms[count - (count / 2 + 1)];
      if (count % 2 == 0) { /* half with the tie-breaker */
        uint64_t half = followed_ms[count - count / 2];
        uint64_t with = followed_ms[tie_breaker] < half ? followed_ms[tie_breaker] : half;
        if (with > until) until = with;
      }
      assert_true(until > sealed_ms);
      expect_age(r, &n[count - 1], r->now_ms - until);
    }
  }
}

/* A node that has not followed has not read START, or would follow from it: the seal itself counts. */
RIG_TEST(test_age_counts_from_the_seal) {
  rig_open_successors(r, 3, 3);
  rig_joined(r, n, 3);
  assert_int_equal(start_of(r, &n[0])->age_ms, 0);
  rig_run(r, 1001);
  expect_age(r, &n[0], 1001);
  rig_run(r, 3900);
  expect_age(r, &n[0], 4901);
  rig_run(r, 98); /* the others are lost by their leases in 1 ms */
  expect_age(r, &n[0], 4999);
}

/* The age is at most a lease, and says: not in charge. */
RIG_TEST(test_without_a_majority) {
  open_running(r, n, 4, 2);
  for (int i = 1; i < 4; i++) node_leave_silently(&n[i]);
  rig_live(r, 2 * LEASE);
  assert_int_equal(age_of(r, &n[0]), FRAME_AGE_PER_LEASE);
}

/* Two nodes: the one beside the daemon is enough for it, the other one is not. */
RIG_TEST(test_two_nodes) {
  for (int left = 0; left < 2; left++) {
    open_running(r, n, 2, 1);
    node_leave_silently(&n[1 - left]);
    rig_live(r, LEASE + 1000);
    node_stopped(r, &n[left]);
    rig_live(r, LEASE);
    if (left == 0) {
      assert_int_equal(n[0].round, 2);
      assert_true(n[0].ack_age <= FRAME_AGE_PER_LEASE / 4);
    } else {
      expect(r, "forming");
      assert_int_equal(n[1].ack_age, FRAME_AGE_PER_LEASE);
      assert_int_equal(n[1].lacks, 1);
    }
  }
}

/* A majority leaves: their votes stay here for ever. */
RIG_TEST(test_nodes_that_leave_count) {
  open_running(r, n, 5, 1);
  for (int i = 0; i < 3; i++) node_bye(r, &n[i]);
  node_stopped(r, &n[3]);
  node_stopped(r, &n[4]);
  rig_live(r, 1500);
  assert_int_equal(n[3].round, 2);
  assert_int_equal(n[3].nodes, 2);
}

/* The same between two rounds. */
RIG_TEST(test_nodes_that_leave_between_rounds_count) {
  open_running(r, n, 5, 1);
  rig_next_round(r, n, 5);
  nodes_started(r, n, 5);
  node_exited(r, &n[0], 1, 0);
  nodes_stopped(r, n, 5);
  expect(r, "forming"); /* a delay, since rounds were short */
  for (int i = 0; i < 3; i++) node_bye(r, &n[i]);
  rig_live(r, 6000);
  assert_int_equal(n[3].round, 3);
  assert_int_equal(n[3].nodes, 2);
}

/* They were asked to leave, and the round ends with the last of them: their BYE comes behind that. */
RIG_TEST(test_nodes_that_were_asked_to_leave_count) {
  open_running(r, n, 5, 1);
  for (int i = 2; i < 5; i++) node_report(r, &n[i], REPORT_LEAVING, NULL, 0);
  nodes_stopped(r, n, 5);
  rig_live(r, 1500);
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 2);
}

/* Its guard reports it when its closed connection is forgotten already. It may have gone to another daemon first. */
RIG_TEST(test_a_death_report_counts_after_a_lease) {
  open_running(r, n, 5, 1);
  for (int i = 2; i < 5; i++) node_drop(r, &n[i]);
  rig_live(r, 1000);
  node_stopped(r, &n[0]);
  node_stopped(r, &n[1]);
  for (int i = 2; i < 5; i++) node_death_report(r, &n[i]);
  rig_live(r, LEASE - 1);
  expect(r, "forming");
  rig_live(r, 1);
  expect(r, "starting");
  assert_int_equal(n[0].nodes, 2);
}

/* Nodes that have given a round up are alive. */
RIG_TEST(test_an_abandoned_round_is_no_death) {
  open_running(r, n, 3, 3);
  for (int i = 1; i < 3; i++) {
    node_hello_again(r, &n[i]);
    node_leave_silently(&n[i]);
  }
  expect(r, "stopping");
  rig_live(r, 2 * LEASE);
  expect(r, "stopping");
  assert_int_equal(age_of(r, &n[0]), FRAME_AGE_PER_LEASE);
}

/* WELCOME alone proves nothing, and a heartbeat proves the last answer that it names. */
RIG_TEST(test_hello_alone_does_not_count) {
  open_running(r, n, 3, 3);
  rig_live(r, 1250);
  uint64_t followed_ms = r->now_ms; /* by the answers of then, as the next heartbeats say */
  nodes_heartbeat(r, n, 3);
  rig_run(r, 1000);
  for (int i = 1; i < 3; i++) {
    node_drop(r, &n[i]);
    node_back(r, &n[i], PHASE_RUNNING);
  }
  expect_age(r, &n[0], r->now_ms - followed_ms);
  rig_run(r, 500);
  node_heartbeat(r, &n[1]);
  rig_run(r, 500);
  expect_age(r, &n[0], 1000); /* its WELCOME */
}

/* A heartbeat that was sent before the second WELCOME of a connection says nothing of that one. */
RIG_TEST(test_a_second_hello_does_not_count) {
  rig_open_successors(r, 3, 3);
  rig_running(r, n, 3);
  rig_run(r, 2000);
  uint64_t told_ms = r->now_ms;
  nodes_heartbeat(r, n, 3);
  rig_run(r, 1000);
  for (int i = 1; i < 3; i++) {
    r->deaf = true; /* and that one never arrives */
    struct msg m;
    node_hello(&n[i], &m);
    m.hello.phase = PHASE_RUNNING;
    node_say(r, &n[i], &m);
    node_heartbeat(r, &n[i]);
    r->deaf = false;
  }
  rig_run(r, 500);
  expect_age(r, &n[0], r->now_ms - told_ms);
}

/* Firm. ------------------------------------------------------------------------------------------------------------ */

/* The second round is firm when two of three nodes of the first one have reported from it. */
RIG_TEST(test_firm_by_reports) {
  open_running(r, n, 3, 3);
  assert_true(start_of(r, &n[0])->seal.base_nodes == 0);
  rig_next_round(r, n, 3);
  const struct start *s = start_of(r, &n[1]);
  assert_int_equal(s->seal.nodes, 3);
  assert_int_equal(s->seal.base_round, 1);
  assert_string_equal(s->seal.base_incarnation, n[0].incarnation);
  assert_int_equal(s->seal.base_nodes, 3);
  assert_true(s->seal.in_base);
  assert_false(s->seal.base_tie_breaker);
  assert_true(start_of(r, &n[0])->seal.base_tie_breaker);
  assert_int_equal(s->agreed, 3);
  for (int i = 0; i < 3; i++) {
    node_heartbeat(r, &n[2]);
    assert_int_equal(n[2].firm, i >= 2);
    node_started(r, &n[i]);
    rig_run(r, 250);
  }
}

/* By heartbeats: one that has read an answer that is later than START. */
RIG_TEST(test_firm_by_heartbeats) {
  open_running(r, n, 3, 3);
  rig_next_round(r, n, 3);
  rig_live(r, 625); /* answers of before the seal are read */
  assert_false(n[0].firm);
  rig_live(r, 625);
  rig_live(r, 625);
  assert_true(n[0].firm && n[1].firm && n[2].firm);
}

/* Sealing. --------------------------------------------------------------------------------------------------------- */

/* Three of five are lost at once: the others wait, and say how many they need. */
RIG_TEST(test_waits_for_a_majority) {
  open_running(r, n, 5, 2);
  for (int i = 2; i < 5; i++) node_leave_silently(&n[i]);
  rig_live(r, LEASE + 1000);
  node_stopped(r, &n[0]);
  node_stopped(r, &n[1]);
  rig_live(r, 3 * LEASE);
  expect(r, "forming");
  assert_int_equal(n[0].round, 1);
  assert_int_equal(n[0].lacks, 1);
  node_back(r, &n[4], PHASE_STOPPED);
  assert_int_equal(rig_count(r, n[4].conn, MSG_STALE), 1);
  node_hello_again(r, &n[4]);
  rig_live(r, 1250);
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[4].round, 2);
  assert_int_equal(n[0].nodes, 3);
}

/* A spare has no vote. */
RIG_TEST(test_a_spare_has_no_vote) {
  rig_open_successors(r, 2, 3);
  r->settings.scale_up = SCALE_UP_NEXT_ROUND;
  rig_joined(r, n, 3);
  nodes_started(r, n, 3);
  node_init(r, &n[3], 3);
  node_join(r, &n[3]);
  node_leave_silently(&n[1]);
  node_leave_silently(&n[2]);
  rig_live(r, LEASE + 1000);
  node_stopped(r, &n[0]);
  rig_live(r, LEASE);
  expect(r, "forming");
  assert_int_equal(n[3].lacks, 1);
}

/* Enough nodes for a round, but not for a majority: the job fails as if they were too few. */
RIG_TEST(test_join_timeout_without_a_majority) {
  rig_open_successors(r, 1, 5);
  r->settings.join_timeout_ms = 20000;
  rig_running(r, n, 5);
  nodes_heartbeat(r, n, 5);
  for (int i = 2; i < 5; i++) node_leave_silently(&n[i]);
  rig_live(r, LEASE + 1000);
  node_stopped(r, &n[0]);
  node_stopped(r, &n[1]);
  expect(r, "forming");
  rig_live(r, 18000);
  expect(r, "forming");
  rig_live(r, 3000);
  assert_int_equal(rig_end(r, &n[0])->verdict.cause, CAUSE_JOIN_TIMEOUT);
}

/* Takeover. -------------------------------------------------------------------------------------------------------- */

/* Daemon 0 is lost with its machine; the nodes from `first` on come to daemon 1, after half a lease. */
static void take_over(struct rig *r, struct node *n, int first, int count, enum phase phase) {
  for (int i = 0; i < count; i++) node_leave_silently(&n[i]);
  rig_run(r, LEASE / 2);
  rig_forget(r);
  rig_use(r, 1);
  for (int i = first; i < count; i++) node_back(r, &n[i], phase);
}

/* The daemon alone was lost: nobody else notices. */
RIG_TEST(test_all_come_to_the_next_daemon) {
  open_running(r, n, 3, 2);
  rig_live(r, 1250);
  take_over(r, n, 0, 3, PHASE_RUNNING);
  expect(r, "running");
  for (int i = 0; i < 3; i++) {
    assert_string_equal(n[i].follows, "000000000000000000000000000000d1");
    assert_int_equal(rig_last(r, n[i].conn, MSG_WELCOME)->welcome.term, 2);
    assert_int_equal(n[i].age_ms, LEASE);
    assert_int_equal(rig_count(r, n[i].conn, MSG_START) + rig_count(r, n[i].conn, MSG_STOP), 0);
  }
  nodes_heartbeat(r, n, 3);
  rig_run(r, 1);
  expect_age(r, &n[0], 1);
  rig_live(r, 3 * LEASE);
  expect(r, "running");
  assert_true(n[0].ack_age <= FRAME_AGE_PER_LEASE / 4);
  nodes_finished(r, n, 3);
  assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
}

/* The machine was lost, with node rank 0: the next round begins a lease after the last of the others has heard of the
 * old daemon, to the millisecond. */
RIG_TEST(test_the_promise_is_waited_for) {
  open_running(r, n, 3, 2);
  rig_live(r, 1250);
  node_heartbeat(r, &n[2]);
  uint64_t heard_ms = n[2].heard_ms;
  n[1].heard_ms -= 300;
  take_over(r, n, 1, 3, PHASE_RUNNING);
  expect(r, "recovering");
  assert_int_equal(age_of(r, &n[1]), FRAME_AGE_PER_LEASE);
  rig_live(r, 1500);
  assert_int_equal(age_of(r, &n[1]), FRAME_AGE_PER_LEASE);
  node_stopped(r, &n[1]); /* they fence themselves */
  node_stopped(r, &n[2]);
  rig_live(r, heard_ms + LEASE - 1 - r->now_ms);
  expect(r, "recovering");
  rig_live(r, 1);
  expect(r, "starting");
  const struct start *s = start_of(r, &n[1]);
  assert_int_equal(s->nodes, 2);
  assert_int_equal(s->agreed, 2);
  assert_int_equal(s->seal.base_nodes, 3);
  assert_int_equal(s->seal.base_round, 1);
  assert_true(strcmp(s->incarnation, s->seal.base_incarnation) > 0);
  assert_int_equal(n[1].term, 2);
  const struct verdict *v = &rig_settled(r, &n[1])->verdict;
  assert_int_equal(v->node_rank, 0);
  assert_string_equal(v->host, "n0");
}

/* It takes two seconds before it misses those that are a little later. */
RIG_TEST(test_late_ones_have_two_seconds) {
  open_running(r, n, 3, 2);
  for (int i = 0; i < 3; i++) node_leave_silently(&n[i]);
  rig_run(r, LEASE - 1);
  rig_use(r, 1);
  node_back(r, &n[1], PHASE_STOPPED);
  rig_run(r, 100);
  node_back(r, &n[2], PHASE_STOPPED);
  rig_live(r, 1899);
  expect(r, "recovering");
  rig_live(r, 1);
  expect(r, "starting");
}

/* One of three waits. Enough of them a little later. */
RIG_TEST(test_a_minority_takes_nothing_over) {
  open_running(r, n, 3, 1);
  take_over(r, n, 2, 3, PHASE_STOPPED);
  rig_live(r, 4 * LEASE);
  expect(r, "forming");
  assert_int_equal(n[2].lacks, 1);
  assert_int_equal(n[2].ack_age, FRAME_AGE_PER_LEASE);
  n[1].heard_ms = r->now_ms - 1000; /* it has followed the old one until now */
  uint64_t turned_ms = n[1].heard_ms;
  node_back(r, &n[1], PHASE_STOPPED);
  node_hello_again(r, &n[1]);
  rig_live(r, turned_ms + LEASE - 1 - r->now_ms);
  expect(r, "forming");
  rig_live(r, 1);
  expect(r, "starting");
}

/* Half of them with the tie-breaker, who was beside the old daemon. */
RIG_TEST(test_half_with_the_tie_breaker_takes_over) {
  for (int tie_breaker = 0; tie_breaker < 2; tie_breaker++) {
    open_running(r, n, 4, 1);
    take_over(r, n, tie_breaker ? 0 : 2, tie_breaker ? 2 : 4, PHASE_STOPPED);
    rig_live(r, 2 * LEASE);
    expect(r, tie_breaker ? "starting" : "forming");
    if (!tie_breaker) assert_int_equal(n[2].lacks, 1);
  }
}

/* The same daemon, restarted: it does not know what it has allowed. */
RIG_TEST(test_a_restarted_daemon_waits_for_the_lease) {
  for (int with_state = 0; with_state < 2; with_state++) {
    open_running(r, n, 3, 2);
    rig_live(r, 1250);
    rig_run(r, 500);
    rig_restart(r, with_state);
    uint64_t began_ms = r->now_ms;
    for (int i = 1; i < 3; i++) node_back(r, &n[i], PHASE_STOPPED);
    assert_int_equal(n[1].term, 1);
    rig_live(r, began_ms + LEASE + 2000 - 1 - r->now_ms);
    expect(r, "recovering");
    rig_live(r, 1);
    expect(r, "starting");
  }
}

RIG_TEST(test_a_restarted_daemon_goes_on) {
  for (int with_state = 0; with_state < 2; with_state++) {
    open_running(r, n, 3, 2);
    rig_live(r, 1250);
    rig_run(r, 500);
    rig_restart(r, with_state);
    for (int i = 0; i < 3; i++) node_back(r, &n[i], PHASE_RUNNING);
    expect(r, "running");
    nodes_heartbeat(r, n, 3);
    rig_run(r, 1);
    expect_age(r, &n[0], 1);
  }
}

/* A node that was with another daemon comes back: what that one allowed with its vote may run for a lease. */
RIG_TEST(test_a_vote_that_returns) {
  open_running(r, n, 3, 2);
  rig_live(r, 1250);
  node_leave_silently(&n[2]); /* for good */
  node_drop(r, &n[1]);
  rig_use(r, 1);
  node_back(r, &n[1], PHASE_RUNNING);
  rig_live(r, 1000);
  uint64_t heard_ms = n[1].heard_ms;
  node_drop(r, &n[1]);
  rig_run(r, 200);
  rig_use(r, 0);
  node_hello_again(r, &n[0]);
  rig_forget(r);
  node_back(r, &n[1], PHASE_STOPPED); /* its round is over here, since the connection was lost */
  node_join(r, &n[1]);
  node_stopped(r, &n[0]);
  rig_live(r, heard_ms + LEASE - 1 - r->now_ms);
  assert_int_equal(n[0].round, 1);
  rig_live(r, 700);
  assert_int_equal(n[0].round, 2);
}

/* START has not reached it, it has been with another daemon, and comes back: that one may have counted on it. */
RIG_TEST(test_no_start_for_one_that_was_elsewhere) {
  for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
    rig_open_successors(r, 3, 3);
    nodes_init(r, n, 3);
    nodes_join(r, n, 2);
    r->deaf = true;
    node_join(r, &n[2]);
    r->deaf = false;
    node_drop(r, &n[2]);
    if (elsewhere) {
      rig_use(r, 1);
      node_join(r, &n[2]);
      node_drop(r, &n[2]);
      rig_use(r, 0);
    }
    node_join(r, &n[2]);
    assert_int_equal(rig_count(r, n[2].conn, MSG_START), !elsewhere);
    expect(r, elsewhere ? "stopping" : "starting");
  }
}

/* Nodes 0 .. count-1 run round 1, and their machines are lost with daemon 0 just as round 2 is sealed: START has reached
 * those nodes alone that `told` says. */
static void lose_daemon_at_seal(struct rig *r, struct node *n, int count, const bool *told) {
  nodes_heartbeat(r, n, (size_t)count);
  node_exited(r, &n[0], 1, 0);
  for (int i = 0; i + 1 < count; i++) node_stopped(r, &n[i]);
  struct node before[RIG_NODES_MAX];
  memcpy(before, n, (size_t)count * sizeof *n);
  node_stopped(r, &n[count - 1]);
  assert_int_equal(n[0].round, 2);
  for (int i = 0; i < count; i++)
    if (!told[i]) n[i] = before[i];
  for (int i = 0; i < count; i++) node_leave_silently(&n[i]);
}

/* A node that knows only the round before came first, and its promise is the last to end. Then the others say that there
 * is a later round. */
RIG_TEST(test_promises_last_when_a_later_round_is_heard_of) {
  static const char run[] = "018bcfe56800-0123456789abcdef";
  rig_open_successors(r, 2, 4);
  rig_use(r, 1);
  rig_run(r, 2 * LEASE);
  nodes_init(r, n, 5);
  for (int i = 1; i < 5; i++) { /* round 1: 0 to 2, round 2: 1 to 4 */
    bool old = i == 1;
    snprintf(n[i].incarnation, sizeof n[i].incarnation, "%s", run);
    snprintf(n[i].voted_incarnation, sizeof n[i].voted_incarnation, "%s", run);
    snprintf(n[i].base_incarnation, sizeof n[i].base_incarnation, "%s", old ? "" : run);
    snprintf(n[i].follows, sizeof n[i].follows, "000000000000000000000000000000d0");
    n[i].round = n[i].voted_round = old ? 1 : 2;
    n[i].nodes = old ? 3 : 4;
    n[i].node_rank = old ? 1 : i - 1;
    n[i].seal = (struct seal){.nodes = n[i].nodes, .base_round = old ? 0 : 1, .base_nodes = old ? 0 : 3};
    n[i].seal.in_base = i == 2;
    n[i].heard_ms = old ? r->now_ms : r->now_ms - LEASE + 1;
  }
  uint64_t heard_ms = n[1].heard_ms;
  for (int i = 1; i < 5; i++) node_back(r, &n[i], PHASE_STOPPED);
  rig_live(r, heard_ms + LEASE - 1 - r->now_ms);
  assert_int_equal(age_of(r, &n[2]), FRAME_AGE_PER_LEASE);
  rig_live(r, 1251);
  assert_true(age_of(r, &n[2]) <= FRAME_AGE_PER_LEASE / 4);
}

/* A daemon comes back with its file, and newcomers come to it. The job may be with another daemon. */
RIG_TEST(test_newcomers_do_not_begin_what_others_may_have) {
  open_running(r, n, 3, 2);
  rig_live(r, 1250);
  for (int i = 0; i < 3; i++) node_leave_silently(&n[i]);
  rig_restart(r, true);
  for (int i = 3; i < 5; i++) {
    node_init(r, &n[i], i);
    node_join(r, &n[i]);
  }
  rig_live(r, 4 * LEASE);
  expect(r, "forming");
  assert_int_equal(n[3].lacks, 1);
  for (int i = 0; i < 2; i++) node_back(r, &n[i], PHASE_STOPPED), node_hello_again(r, &n[i]);
  rig_live(r, LEASE);
  assert_int_equal(n[3].round, 2);
}

/* One of five has read START of a round that nobody else knows. The other three are a majority of the round before, and
 * no daemon can make that one firm without them. */
RIG_TEST(test_a_round_that_few_know_is_passed_over) {
  for (int first = 1; first < 3; first++) {
    open_running(r, n, 5, 2);
    lose_daemon_at_seal(r, n, 5, (bool[]){false, true, false, false, false});
    rig_run(r, LEASE / 2);
    rig_forget(r);
    rig_use(r, 1);
    if (first == 1) node_back(r, &n[1], PHASE_RUNNING);
    for (int i = 2; i < 5; i++) node_back(r, &n[i], PHASE_STOPPED);
    if (first == 2) node_back(r, &n[1], PHASE_RUNNING);
    for (int i = 2; i < 5; i++) node_hello_again(r, &n[i]); /* they got STALE */
    rig_live(r, 1000);
    node_stopped(r, &n[1]);
    rig_live(r, LEASE + 2000);
    assert_string_equal(n[2].incarnation, n[1].incarnation);
    assert_true(n[2].round >= 3 && n[1].round == n[2].round);
    assert_int_equal(start_of(r, &n[2])->seal.base_round, 1);
    assert_true(start_of(r, &n[2])->seal.in_base);
    assert_false(start_of(r, &n[1])->seal.in_base); /* it had promised to know another one */
    rig_live(r, 2 * LEASE);
    assert_true(n[2].firm);
  }
}

/* Giving up votes. ------------------------------------------------------------------------------------------------- */

static void drain(struct rig *r, const char *host) {
  assert_int_equal(rig_ask(r, &(struct control){.verb = "drain", .host = host, .rank = -1}, 0), 0);
}

/* What an agent does that is asked for its vote. */
static void give_up_vote(struct rig *r, struct node *n) {
  const struct msg *m = rig_last(r, n->conn, MSG_STALE);
  assert_true(m && m->stale.retire);
  n->voted_incarnation[0] = n->base_incarnation[0] = n->origin[0] = '\0';
  n->voted_round = 0;
  n->seal = (struct seal){0};
  node_hello_again(r, n);
}

/* It was asked here, did not hear of it, and has given its vote up to another daemon: that one counts it. */
RIG_TEST(test_a_vote_is_given_up_once) {
  rig_open_successors(r, 2, 2);
  rig_running(r, n, 2);
  node_init(r, &n[2], 2);
  node_join(r, &n[2]);
  rig_live(r, 1250);
  drain(r, "n0");
  nodes_checkpointed(r, n, 2);
  nodes_stopped(r, n, 2);
  assert_true(rig_last(r, n[0].conn, MSG_STALE)->stale.retire);
  node_drop(r, &n[0]);
  rig_use(r, 1);
  node_join(r, &n[0]);
  node_drop(r, &n[0]);
  rig_use(r, 0);
  n[0].voted_incarnation[0] = n[0].origin[0] = '\0';
  n[0].voted_round = 0;
  n[0].seal = (struct seal){0};
  for (int i = 0; i < 2; i++) {
    node_join(r, &n[0]); /* the second time it has followed this one */
    rig_live(r, 2 * LEASE);
    expect(r, "forming");
    assert_int_equal(n[1].lacks, 1);
  }
}

/* The tie-breaker of two nodes is drained, and a spare takes its place: it gives its vote up first. So it does at a
 * daemon that has the round from its nodes. */
RIG_TEST(test_a_drained_tie_breaker_gives_its_vote_up) {
  for (int second = 0; second < 2; second++) {
    rig_open_successors(r, 2, 2);
    rig_running(r, n, 2);
    node_init(r, &n[2], 2);
    node_join(r, &n[2]);
    rig_live(r, 1250);
    if (second) {
      for (int i = 0; i < 3; i++) node_leave_silently(&n[i]);
      rig_run(r, LEASE / 2);
      rig_use(r, 1);
      nodes_back(r, n, 2, PHASE_RUNNING);
      node_join(r, &n[2]);
      expect(r, "running");
      rig_live(r, LEASE);
    }
    drain(r, "n0");
    nodes_checkpointed(r, n, 2);
    nodes_stopped(r, n, 2);
    expect(r, "forming");
    give_up_vote(r, &n[0]);
    rig_live(r, 625);
    assert_int_equal(n[1].nodes, 2);
    assert_int_equal(n[2].node_rank >= 0, 1);
    assert_int_equal(n[2].round, 2);
    rig_live(r, 3 * LEASE);
    assert_true(n[1].firm);
    assert_true(n[1].ack_age <= FRAME_AGE_PER_LEASE / 4);
  }
}

/* Reboots. --------------------------------------------------------------------------------------------------------- */

/* A new agent on the machine of node i, which is up for so long. */
static void come_again(struct rig *r, struct node *again, int i, int64_t up_ms) {
  node_init(r, again, i);
  snprintf(again->agent, sizeof again->agent, "%032x", 0xa0 + (unsigned)i);
  again->up_ms = up_ms;
  node_join(r, again);
}

/* Node 0 of two, the one with the daemon, has lost its power. It is back with a daemon and an agent that know nothing. */
RIG_TEST(test_the_other_of_two_is_booted_again) {
  static const struct {
    int64_t up_ms;
    bool moved, goes_on;
  } cases[] = {{60000, false, true}, {590000, false, false}, {1000000, false, false}, {60000, true, false}};
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    struct node again;
    open_running(r, n, 2, 2);
    rig_live(r, 1250);
    take_over(r, n, 2, 2, PHASE_RUNNING);
    n[1].round_age_ms = 600000;
    node_back(r, &n[1], PHASE_STOPPED);
    rig_live(r, 3 * LEASE);
    expect(r, "forming");
    assert_int_equal(n[1].lacks, 1);
    node_init(r, &again, 0);
    if (cases[c].moved) snprintf(again.peer_addr, sizeof again.peer_addr, "10.9.9.9");
    snprintf(again.agent, sizeof again.agent, "%032x", 0xa0);
    again.up_ms = cases[c].up_ms;
    node_join(r, &again);
    rig_live(r, 1000);
    expect(r, cases[c].goes_on ? "starting" : "forming");
  }
}

/* A rack of three of five: the daemon lives, and knows all hosts. The three may have made a round of their own before they
 * lost their power, and one that is silent may still run it. */
RIG_TEST(test_a_rack_is_booted_again) {
  struct node again[3];
  rig_open_successors(r, 1, 5);
  rig_running(r, n, 5);
  nodes_heartbeat(r, n, 5);
  rig_live(r, 600000);
  for (int i = 2; i < 5; i++) node_leave_silently(&n[i]);
  rig_live(r, LEASE + 1000);
  node_stopped(r, &n[0]);
  node_stopped(r, &n[1]);
  rig_live(r, 100000);
  for (int i = 0; i < 3; i++) {
    expect(r, "forming");
    come_again(r, &again[i], 2 + i, 20000);
    rig_live(r, LEASE);
  }
  expect(r, "starting");
}

/* Its agent died before another daemon could count its vote, as its guard says: another silent node changes nothing. */
RIG_TEST(test_a_death_in_time) {
  for (int late = 0; late < 2; late++) {
    rig_open_successors(r, 1, 5);
    rig_running(r, n, 5);
    nodes_heartbeat(r, n, 5);
    rig_live(r, 60000);
    for (int i = 2; i < 5; i++) node_leave_silently(&n[i]);
    if (late) rig_live(r, LEASE);
    node_death_report(r, &n[2]);
    rig_live(r, LEASE + 1000);
    node_stopped(r, &n[0]);
    node_stopped(r, &n[1]);
    rig_live(r, 3 * LEASE);
    expect(r, late ? "forming" : "starting");
  }
}

/* Node 2 may have followed another daemon before it died. That one goes on with it as soon as node 1 turns there. So the
 * dead node's vote is as old as that of node 1, which is silent and still connected. */
RIG_TEST(test_a_vote_of_one_that_died_apart) {
  rig_open_successors(r, 1, 3);
  rig_running(r, n, 3);
  nodes_heartbeat(r, n, 3);
  rig_live(r, 60000);
  node_leave_silently(&n[2]);
  rig_live(r, LEASE + 100);
  node_death_report(r, &n[2]);
  rig_live(r, LEASE + 100);
  expect(r, "stopping");
  assert_true(age_of(r, &n[0]) <= LEASE / 4 * FRAME_AGE_PER_LEASE / LEASE);
  node_leave_silently(&n[1]);
  rig_live(r, LEASE / 2);
  assert_true(age_of(r, &n[0]) >= LEASE / 2 * FRAME_AGE_PER_LEASE / LEASE);
}

/* Two of three run the next round, and two are enough. The third may be with another daemon, and so may be one of the two
 * that does not read START. That daemon waits a lease for the other one, which must not outlive it. */
RIG_TEST(test_the_base_fences) {
  for (int64_t min = 2; min <= 3; min++) {
    rig_open_successors(r, min, 3);
    rig_running(r, n, 3);
    nodes_heartbeat(r, n, 3);
    rig_live(r, 60000);
    if (min < 3) node_leave_silently(&n[2]);
    rig_live(r, LEASE + 100);
    if (min == 3) node_exited(r, &n[2], 1, 0);
    for (int i = 0; i < (min == 3 ? 3 : 2); i++) node_stopped(r, &n[i]);
    rig_live(r, 3 * LEASE);
    assert_int_equal(n[0].round, 2);
    assert_int_equal(start_of(r, &n[0])->fence, min < 3);
  }
}

static void assert_confirmed(struct rig *r, const char *host, const char *text) {
  const struct control q = {.verb = "confirm-dead", .job = "job", .host = host, .owner = -1, .rank = -1};
  assert_int_equal(rig_ask(r, &q, 0), 0);
  if (!rig_said(r, text)) fail_msg("%s", buf_text(&r->said));
}

/* An operator knows that a machine is off. Its node may have followed another daemon before, with two that are silent here:
 * they may go on. */
RIG_TEST(test_one_of_three_that_left_is_dead) {
  rig_open_successors(r, 1, 5);
  rig_running(r, n, 5);
  nodes_heartbeat(r, n, 5);
  for (int i = 2; i < 5; i++) node_leave_silently(&n[i]);
  rig_live(r, LEASE + 1000);
  node_stopped(r, &n[0]);
  node_stopped(r, &n[1]);
  rig_live(r, 3 * LEASE);
  assert_confirmed(r, "n2", "1 lost node on n2 counts as dead; 1 more node of the last round is needed");
  rig_live(r, 3 * LEASE);
  expect(r, "forming");
  assert_int_equal(n[0].lacks, 1);
  assert_confirmed(r, "n3", "1 more node of the last round is needed");
  assert_confirmed(r, "n4", "waits for it no longer");
  rig_live(r, 2 * LEASE);
  expect(r, "starting");
}

/* Node rank 0 comes to the next daemon without work, and leaves it. Then it may follow another one with node 2, which is
 * silent here, before it dies. It is one voter, although node 1 has named its machine before it came. */
RIG_TEST(test_a_head_that_comes_without_work_is_one_voter) {
  open_running(r, n, 3, 2);
  rig_live(r, 1250);
  take_over(r, n, 3, 3, PHASE_RUNNING);
  node_back(r, &n[1], PHASE_STOPPED);
  n[0].left_rank = 0;
  node_back(r, &n[0], PHASE_NONE);
  rig_live(r, 3 * LEASE);
  node_leave_silently(&n[0]);
  rig_live(r, 10 * LEASE);
  assert_int_equal(n[1].lacks, 1);
  const struct control q = {.verb = "confirm-dead", .job = "job", .host = "n0", .owner = -1, .rank = -1};
  assert_int_equal(rig_ask(r, &q, 0), 0);
  rig_live(r, 3 * LEASE);
  assert_int_equal(n[1].round, 1);
  assert_int_equal(n[1].lacks, 1);
}
