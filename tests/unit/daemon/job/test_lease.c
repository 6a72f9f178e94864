/* SPDX-License-Identifier: Apache-2.0 */
/* core: grace, leases, holds, timeouts, and deadlines that always lead somewhere. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

/* Grace. ----------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_a_connection_may_come_back_within_its_grace) {
  rig_open_running(r, n, 2);
  node_drop(r, &n[0]);
  rig_run(r, JOB_GRACE_MS - 1);
  node_back(r, &n[0], PHASE_RUNNING);
  rig_run(r, 1000);
  assert_string_equal(rig_state(r, "job"), "running");
  node_drop(r, &n[0]);
  rig_run(r, JOB_GRACE_MS);
  assert_string_equal(rig_state(r, "job"), "stopping");
  assert_int_equal(rig_stop(r, &n[1])->verdict.cause, CAUSE_NODE_LOST);
}

RIG_TEST(test_a_new_connection_silently_takes_the_place) {
  rig_open_running(r, n, 2);
  uint64_t old = n[0].conn;
  node_back(r, &n[0], PHASE_RUNNING);
  assert_true(rig_was_closed(r, old));
  assert_int_equal(rig_count(r, old, MSG_REFUSED), 0);
  rig_closed(r, old); /* and its end is not that of the node */
  rig_run(r, 1000);
  assert_string_equal(rig_state(r, "job"), "running");
}

/* A connection that is refused, or says another agent's death report, is not that node's any more. */
RIG_TEST(test_a_member_that_is_refused_is_away) {
  struct msg m;
  rig_open_running(r, n, 2);
  node_hello(&n[0], &m);
  m.hello.version = 9;
  node_say(r, &n[0], &m);
  assert_true(rig_was_closed(r, n[0].conn));
  rig_run(r, JOB_GRACE_MS);
  assert_string_equal(rig_state(r, "job"), "stopping");
}

RIG_TEST(test_one_connection_is_one_node) {
  struct node other;
  struct msg m;
  rig_open_running(r, n, 2);
  node_init(r, &other, 5);
  other.conn = n[0].conn; /* the same peer, suddenly another agent */
  node_hello(&other, &m);
  node_say(r, &other, &m);
  rig_run(r, JOB_GRACE_MS);
  assert_string_equal(rig_state(r, "job"), "stopping"); /* the one that it was is lost */
  assert_false(rig_was_closed(r, other.conn));
  n[0].conn = 0;
  rig_run(r, 4000);
  node_heartbeat(r, &n[1]);
  node_stopped(r, &n[1]);
  node_heartbeat(r, &other);
  rig_run(r, 2000);
  assert_string_equal(rig_state(r, "job"), "forming"); /* it did not have to fence, and may still run */
  node_death_report(r, &n[0]);
  rig_run(r, 0);
  assert_int_equal(other.round, 2);
}

/* Leases. ---------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_silence_past_the_lease_is_a_loss) {
  rig_open_running(r, n, 2);
  rig_run(r, 4000);
  node_heartbeat(r, &n[1]);
  rig_expect_turn(r, 1000, "running", "stopping");
  assert_non_null(strstr(rig_stop(r, &n[1])->verdict.text, "lease"));
  assert_string_equal(rig_stop(r, &n[1])->verdict.host, "n0");
}

RIG_TEST(test_every_frame_renews_the_lease) {
  struct msg m;
  rig_open_running(r, n, 2);
  msg_init(&m, MSG_PROGRESS);
  m.progress.incarnation = n[0].incarnation;
  m.progress.round = 1;
  for (int i = 0; i < 5; i++) {
    rig_run(r, 4000);
    node_say(r, &n[0], &m);
    node_heartbeat(r, &n[1]);
  }
  assert_string_equal(rig_state(r, "job"), "running");
}

RIG_TEST(test_lag_extends_leases) {
  rig_open_running(r, n, 2);
  r->now_ms += 9000; /* the daemon itself was stopped for so long */
  rig_event(r, &(struct core_event){.kind = CORE_TICK, .lag_ms = 9000});
  assert_string_equal(rig_state(r, "job"), "running");
  rig_run(r, 4000);
  node_heartbeat(r, &n[1]);
  rig_expect_turn(r, 1000, "running", "stopping");
}

/* They gave up connections on which we were silent, and dial again after a pause that may be as long as 2 s. */
RIG_TEST(test_lag_gives_time_to_come_back) {
  rig_open_running(r, n, 3);
  r->now_ms += 9000;
  node_drop(r, &n[0]); /* it lay in the socket, */
  rig_event(r, &(struct core_event){.kind = CORE_TICK, .lag_ms = 9000});
  rig_run(r, 500);
  node_drop(r, &n[1]); /* or comes a little later */
  node_heartbeat(r, &n[2]);
  rig_expect_turn(r, JOB_RECONNECT_MAX_MS - 500, "running", "stopping");
}

/* No tick was due while it was stopped; that nobody was heard for so long tells it all the same. */
RIG_TEST(test_a_pause_without_a_tick_gives_time_to_come_back) {
  rig_open_running(r, n, 2);
  rig_run(r, 1000);
  nodes_heartbeat(r, n, 2);
  r->now_ms += 3000;
  node_heartbeat(r, &n[1]);
  node_drop(r, &n[0]);
  rig_run(r, JOB_RECONNECT_MAX_MS - 1);
  assert_string_equal(rig_state(r, "job"), "running");
  node_heartbeat(r, &n[1]);
  rig_run(r, 1);
  assert_string_equal(rig_state(r, "job"), "stopping");
}

/* As when the daemon's own wire is cut: who would be told that all the others are lost? */
RIG_TEST(test_silence_of_all_is_no_loss) {
  for (int closed = 0; closed < 2; closed++) {
    rig_open_running(r, n, 3);
    rig_run(r, 4000);
    if (closed) node_drop(r, &n[0]); /* what was sent to it was not acknowledged in time */
    rig_run(r, 60000);
    assert_string_equal(rig_state(r, "job"), "running");
    node_heartbeat(r, &n[1]);
    rig_run(r, closed ? JOB_RECONNECT_MAX_MS - 1000 : 4000);
    nodes_heartbeat(r, &n[1], 2);
    rig_expect_turn(r, 1000, "running", "stopping");
    assert_string_equal(rig_stop(r, &n[1])->verdict.host, "n0");
  }
}

/* Not for ever: they may have died all at once. */
RIG_TEST(test_silence_of_all_ends) {
  rig_open_running(r, n, 2);
  rig_run(r, (uint64_t)r->settings.join_timeout_ms + 4900);
  assert_string_equal(rig_state(r, "job"), "running");
  rig_run(r, 2000);
  assert_string_equal(rig_state(r, "job"), "forming");
}

/* One that had finished and was away is watched again when it is back, even if nobody else is. */
RIG_TEST(test_a_lease_of_one_that_came_back) {
  rig_open_running(r, n, 2);
  nodes_finished(r, n, 2);
  nodes_end_ack(r, n, 2);
  nodes_drop(r, n, 2);
  rig_run(r, 1000);
  node_back(r, &n[0], PHASE_FINISHED);
  assert_true(core_deadline(r->core) <= r->now_ms + 5000);
  rig_run(r, 5000);
  assert_true(rig_was_closed(r, n[0].conn));
}

RIG_TEST(test_fence_says_whether_others_could_go_on) {
  for (int min = 1; min <= 2; min++) {
    rig_open_for(r, min, 2);
    rig_running(r, n, 2);
    assert_false(rig_last(r, n[0].conn, MSG_WELCOME)->welcome.fence); /* it was alone then */
    assert_int_equal(rig_last(r, n[1].conn, MSG_WELCOME)->welcome.fence, min == 1);
    for (int i = 0; i < 2; i++) /* before the first heartbeat */
      assert_int_equal(rig_last(r, n[i].conn, MSG_START)->start.fence, min == 1);
    nodes_heartbeat(r, n, 2);
    for (int i = 0; i < 2; i++) {
      const struct msg *ack = rig_last(r, n[i].conn, MSG_HEARTBEAT_ACK);
      assert_int_equal(ack->flags, min == 1 ? FRAME_FLAG_FENCE | FRAME_FLAG_ALL_FENCE : 0);
    }
  }
}

static bool acked_fence(struct rig *r, struct node *n) {
  rig_forget(r);
  node_heartbeat(r, n);
  return rig_last(r, n->conn, MSG_HEARTBEAT_ACK)->flags & FRAME_FLAG_FENCE;
}

/* A node whose connection closed is back within its grace, or lost after it. */
RIG_TEST(test_who_may_come_back_in_time_counts) {
  rig_open_for(r, 2, 3);
  rig_running(r, n, 3);
  node_drop(r, &n[2]);
  assert_true(acked_fence(r, &n[0]));
  rig_run(r, JOB_GRACE_MS);
  assert_string_equal(rig_state(r, "job"), "stopping");
  assert_true(acked_fence(r, &n[0])); /* until the round ends */
}

/* Nobody could take a place until the third node came. Those at work hear of it at once, and once. */
RIG_TEST(test_a_newcomer_makes_others_fence_at_once) {
  rig_open_for(r, 2, 3);
  r->settings.last_call_ms = 0;
  rig_running(r, n, 2);
  for (int i = 0; i < 2; i++) assert_false(acked_fence(r, &n[i]));
  rig_forget(r);
  for (int i = 2; i < 4; i++) {
    node_init(r, &n[i], i);
    node_join(r, &n[i]);
  }
  for (int i = 0; i < 2; i++) {
    assert_int_equal(rig_count(r, n[i].conn, MSG_HEARTBEAT_ACK), 1);
    const struct msg *ack = rig_last(r, n[i].conn, MSG_HEARTBEAT_ACK);
    assert_int_equal(ack->flags, FRAME_FLAG_FENCE);
    assert_int_equal(ack->id, 0);
  }
  for (int i = 2; i < 4; i++) assert_int_equal(rig_count(r, n[i].conn, MSG_HEARTBEAT_ACK), 0);
}

/* START comes again with FENCE, since a spare has come. The other node may not have read that it must fence. */
RIG_TEST(test_a_start_that_is_sent_again) {
  rig_open(r, 1);
  nodes_init(r, n, 3);
  for (int i = 0; i < 2; i++) node_join(r, &n[i]);
  assert_false(rig_last(r, n[1].conn, MSG_START)->start.fence);
  node_drop(r, &n[1]);
  node_join(r, &n[2]);
  n[1].node_rank = -1;
  node_back(r, &n[1], PHASE_NONE);
  const struct msg *start = rig_last(r, n[1].conn, MSG_START);
  assert_non_null(start);
  assert_true(start->start.fence);
  assert_false(start->start.all_fence);
}

/* Holds. ----------------------------------------------------------------------------------------------------------- */

static void open_elastic(struct rig *r, struct node *n) {
  rig_open_for(r, 1, 2);
  rig_running(r, n, 2);
  rig_run(r, 1000);
  nodes_heartbeat(r, n, 2);
  node_drop(r, &n[0]);
  rig_run(r, JOB_GRACE_MS);
  node_stopped(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "forming"); /* n1 is here and could begin, but n0 may still run */
}

RIG_TEST(test_a_lost_node_delays_the_seal_until_its_lease) {
  open_elastic(r, n);
  rig_run(r, 5000 - JOB_GRACE_MS - 1);
  assert_string_equal(rig_state(r, "job"), "forming");
  rig_run(r, 1);
  assert_int_equal(n[1].round, 2);
}

RIG_TEST(test_a_death_report_ends_the_hold) {
  open_elastic(r, n);
  node_death_report(r, &n[0]);
  rig_run(r, 0);
  assert_int_equal(n[1].round, 2);
}

RIG_TEST(test_its_return_ends_the_hold) {
  open_elastic(r, n);
  node_back(r, &n[0], PHASE_RUNNING); /* still running: STALE, and the hold goes on */
  assert_non_null(rig_last(r, n[0].conn, MSG_STALE));
  assert_int_equal(rig_count(r, n[0].conn, MSG_WELCOME), 0);
  rig_run(r, 100);
  assert_string_equal(rig_state(r, "job"), "forming");
  n[0].node_rank = -1; /* on the same connection, in no round */
  node_hello_again(r, &n[0]);
  assert_int_equal(n[1].round, 2);
  assert_int_equal(n[1].nodes, 2);
}

RIG_TEST(test_a_bye_needs_no_grace_and_leaves_no_hold) {
  rig_open_for(r, 1, 2);
  rig_running(r, n, 2);
  node_bye(r, &n[0]);
  assert_string_equal(rig_state(r, "job"), "stopping"); /* at once: there is no grace */
  node_stopped(r, &n[1]);
  assert_int_equal(n[1].round, 2);
}

/* Two of two, and n0 is lost without having to fence. A third one could have its place. */
static void open_unfenced(struct rig *r, struct node *n, int64_t grace_ms) {
  rig_open_for(r, 2, 2);
  r->settings.orphan_grace_ms = grace_ms;
  r->settings.stop_timeout_ms = 1000;
  rig_running(r, n, 2);
  rig_run(r, 1000);
  nodes_heartbeat(r, n, 2);
  node_drop(r, &n[0]);
  rig_run(r, JOB_GRACE_MS);
  node_stopped(r, &n[1]);
  node_init(r, &n[2], 2);
  node_join(r, &n[2]);
  assert_string_equal(rig_state(r, "job"), "forming");
}

RIG_TEST(test_a_place_is_free_when_the_grace_is_over) {
  open_unfenced(r, n, 2000);
  uint64_t most_ms = (2000 + 1000 + ORPHAN_SLACK_MS) * 21 / 20;
  for (uint64_t end = r->now_ms + most_ms - JOB_GRACE_MS - 1; r->now_ms < end;) {
    rig_run(r, end - r->now_ms < 1000 ? end - r->now_ms : 1000);
    nodes_heartbeat(r, n + 1, 2);
  }
  assert_string_equal(rig_state(r, "job"), "forming");
  rig_run(r, 1);
  assert_int_equal(n[2].round, 2);
}

/* Nobody knows when it is dead: the line names the host and what to do, and an operator can say that it is. */
RIG_TEST(test_a_place_is_free_when_an_operator_says_so) {
  open_unfenced(r, n, 0);
  for (int i = 0; i < 20; i++) {
    rig_run(r, 1000);
    nodes_heartbeat(r, n + 1, 2);
  }
  assert_string_equal(rig_state(r, "job"), "forming");
  assert_non_null(strstr(rig_last(r, n[1].conn, MSG_WAITING)->waiting.held, "rdzvctl confirm-dead job n0"));
  struct control q = {.verb = "confirm-dead", .job = "job", .host = "n1", .owner = -1, .rank = -1};
  assert_int_equal(rig_ask(r, &q, 0), EXIT_CODE_REFUSED); /* it is connected */
  q.host = "elsewhere";
  assert_int_equal(rig_ask(r, &q, 0), EXIT_CODE_REFUSED);
  assert_string_equal(rig_state(r, "job"), "forming");
  q.host = "n0";
  assert_int_equal(rig_ask(r, &q, 0), 0);
  assert_said(r, "1 lost node on n0 counts as dead");
  rig_run(r, 0);
  assert_int_equal(n[2].round, 2);
}

/* Its machine was booted since: nothing of that round runs there. */
RIG_TEST(test_a_place_is_free_when_the_machine_is_booted) {
  for (int booted = 0; booted < 2; booted++) {
    struct node again;
    open_unfenced(r, n, 0);
    for (int i = 0; i < 300; i++) {
      rig_run(r, 1000);
      nodes_heartbeat(r, n + 1, 2);
    }
    node_init(r, &again, 0);
    snprintf(again.agent, sizeof again.agent, "%032x", 0xa0);
    again.up_ms = booted ? 60000 : 600000;
    node_join(r, &again);
    assert_string_equal(rig_state(r, "job"), booted ? "starting" : "forming");
  }
}

/* The network has delayed the HELLO of a connection that the agent gave up before START came: it runs the round by now. */
RIG_TEST(test_a_delayed_hello_changes_nothing) {
  struct node before;
  rig_open(r, 1);
  nodes_init(r, n, 2);
  before = n[0];
  before.up_ms = 4000;
  n[0].up_ms = 5000;
  nodes_join(r, n, 2);
  for (int i = 0; i < 2; i++) node_started(r, &n[i]);
  assert_string_equal(rig_state(r, "job"), "running");
  node_join(r, &before);
  assert_true(rig_was_closed(r, before.conn));
  assert_null(rig_last(r, before.conn, MSG_WELCOME));
  assert_string_equal(rig_state(r, "job"), "running");
  assert_non_null(strstr(buf_text(&r->log), "its HELLO comes behind a later one"));
  for (int i = 0; i < 40; i++) {
    rig_run(r, 1000);
    nodes_heartbeat(r, n, 2);
  }
  assert_string_equal(rig_state(r, "job"), "running");
}

/* Its service manager has left nothing of it. An agent of another address says nothing about that machine. */
RIG_TEST(test_a_place_is_free_for_a_sole_agent) {
  for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
    struct node again;
    struct msg m;
    open_unfenced(r, n, 0);
    rig_run(r, 1000);
    nodes_heartbeat(r, n + 1, 2);
    node_init(r, &again, 0);
    snprintf(again.agent, sizeof again.agent, "%032x", 0xa0);
    if (elsewhere) snprintf(again.peer_addr, sizeof again.peer_addr, "10.9.9.9");
    node_hello(&again, &m);
    m.hello.sole = true;
    again.conn = ++r->next_conn;
    node_say(r, &again, &m);
    assert_string_equal(rig_state(r, "job"), elsewhere ? "forming" : "starting");
  }
}

/* It has read that it must fence, and says so: its lease is enough. Without that answer it may not know. */
RIG_TEST(test_a_fence_counts_when_it_was_read) {
  for (int read = 0; read < 2; read++) {
    rig_open_running(r, n, 2);
    node_init(r, &n[2], 2);
    node_join(r, &n[2]);
    rig_run(r, 100);
    if (read) {
      nodes_heartbeat(r, n, 2); /* the answer has FENCE, */
      rig_run(r, 100);
      nodes_heartbeat(r, n, 2); /* and this says that it was read */
    }
    node_drop(r, &n[0]);
    rig_run(r, JOB_GRACE_MS);
    node_stopped(r, &n[1]);
    for (int i = 0; i < 10; i++) {
      rig_run(r, 1000);
      nodes_heartbeat(r, n + 1, 2);
    }
    assert_int_equal(n[2].round, read ? 2 : 0);
  }
}

RIG_TEST(test_holds_do_not_pile_up) {
  struct node stray;
  rig_open_running(r, n, 2);
  for (int i = 0; i < 5000; i++) { /* strangers that claim to run something of this round */
    r->n_nodes = 2;
    node_init(r, &stray, 100 + i);
    memcpy(stray.incarnation, n[0].incarnation, sizeof stray.incarnation);
    stray.round = 1;
    stray.node_rank = 0;
    stray.nodes = 2;
    node_back(r, &stray, PHASE_RUNNING);
    assert_non_null(rig_last(r, stray.conn, MSG_STALE));
    rig_forget(r);
    rig_run(r, 10);
    if (i % 100 == 0) nodes_heartbeat(r, n, 2);
  }
  assert_string_equal(rig_state(r, "job"), "running");
}

/* Timeouts of states. ---------------------------------------------------------------------------------------------- */

RIG_TEST(test_who_does_not_start_is_lost) {
  rig_open(r, 1);
  r->settings.lease_ms = 60000;
  rig_joined(r, n, 2);
  node_started(r, &n[0]);
  rig_expect_turn(r, JOB_START_TIMEOUT_MS, "starting", "stopping");
  assert_true(rig_was_closed(r, n[1].conn));
  assert_true(rig_stop(r, &n[0])->void_round);
  node_stopped(r, &n[0]);
  assert_false(rig_settled(r, &n[0])->charged);
}

/* With --hang-timeout, agents look at their workers before they stop them. */
RIG_TEST(test_who_does_not_stop_is_lost) {
  for (int probes = 0; probes < 2; probes++) {
    rig_open(r, 1);
    r->settings.lease_ms = 600000;
    if (probes) r->settings.hang_timeout_ms = 60000;
    rig_running(r, n, 2);
    node_exited(r, &n[0], 1, 0);
    node_stopped(r, &n[0]);
    rig_expect_turn(r, 30000 + JOB_STOP_SLACK_MS + (probes ? JOB_PROBE_MS : 0), "stopping", "forming");
    assert_int_equal(rig_settled(r, &n[0])->verdict.cause, CAUSE_NODE_LOST);
    assert_non_null(strstr(rig_settled(r, &n[0])->verdict.text, "stop"));
    assert_string_equal(rig_settled(r, &n[0])->verdict.host, "n1");
  }
}

RIG_TEST(test_join_timeout_names_who_is_here) {
  rig_open_for(r, 4, 4);
  r->settings.join_timeout_ms = 60000;
  rig_joined(r, n, 2);
  for (int i = 0; i < 60; i++) {
    assert_string_equal(rig_state(r, "job"), "forming");
    nodes_heartbeat(r, n, 2);
    rig_run(r, 1000);
  }
  const struct end *end = rig_end(r, &n[0]);
  assert_int_equal(end->code, EXIT_CODE_JOIN_TIMEOUT);
  assert_int_equal(end->verdict.cause, CAUSE_JOIN_TIMEOUT);
  assert_non_null(strstr(end->verdict.text, "2 of 4"));
  assert_non_null(strstr(end->verdict.text, "n[0-1]"));
  assert_non_null(strstr(end->verdict.text, "missing 2"));
}

RIG_TEST(test_join_timeout_is_about_missing_nodes) {
  rig_open_for(r, 2, 3);
  r->settings.join_timeout_ms = 2000;
  r->settings.last_call_ms = 4000; /* longer than that */
  rig_joined(r, n, 2);
  rig_expect_turn(r, 4000, "forming", "starting");
}

/* When they become too few, it is from then on that others may come. */
RIG_TEST(test_join_timeout_begins_when_they_are_too_few) {
  rig_open_for(r, 2, 3);
  r->settings.join_timeout_ms = 2000;
  r->settings.last_call_ms = 30000;
  rig_joined(r, n, 2);
  rig_run(r, 4000);
  node_bye(r, &n[1]);
  nodes_heartbeat(r, n, 1);
  rig_run(r, 1999);
  assert_string_equal(rig_state(r, "job"), "forming");
  rig_run(r, 1);
  assert_int_equal(rig_end(r, &n[0])->code, EXIT_CODE_JOIN_TIMEOUT);
}

/* WAITING. --------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_waiting_is_throttled) {
  enum { MANY = 200 };
  struct node first;
  rig_open_for(r, 1000, 1000);
  node_init(r, &first, 0);
  node_join(r, &first);
  assert_int_equal(rig_count(r, first.conn, MSG_WAITING), 1);
  for (int i = 1; i < MANY; i++) { /* one every 10 ms, for two seconds */
    r->n_nodes = 1;
    node_init(r, n, i);
    node_join(r, n);
    assert_int_equal(rig_count(r, n->conn, MSG_WAITING), 1);
    rig_run(r, 10);
  }
  assert_in_range(rig_count(r, first.conn, MSG_WAITING), 2, 4);
  assert_int_equal(rig_last(r, n->conn, MSG_WAITING)->waiting.max_nodes, 1000);
}

RIG_TEST(test_waiting_when_nothing_changes) {
  rig_open(r, 1);
  node_init(r, n, 0);
  node_join(r, n);
  rig_run(r, 2000);
  rig_forget(r);
  for (int i = 0; i < 120; i++) {
    node_heartbeat(r, n);
    rig_run(r, 1000);
  }
  assert_in_range(rig_count(r, n->conn, MSG_WAITING), 3, 5);
  const struct msg *w = rig_last(r, n->conn, MSG_WAITING);
  assert_int_equal(w->waiting.here, 1);
  assert_int_equal(w->waiting.min_nodes, 2);
  assert_false(w->waiting.spare);
  assert_string_equal(w->waiting.hosts, "n0");
  assert_true(w->waiting.left_ms > 0);
}

/* Deadlines. ------------------------------------------------------------------------------------------------------- */

/* In every state in which something is waited for there is a deadline, and TICK at the deadline moves on (rig_run
 * checks that). Left alone, every job comes to its end and is forgotten. */
RIG_TEST(test_left_alone_everything_ends) {
  for (int when = 0; when < 9; when++) {
    rig_open(r, 1);
    r->settings.min_nodes = 1 + when % 2;
    nodes_init(r, n, 2);
    for (int i = 0; i < (when >= 2 ? 2 : 1); i++) node_join(r, &n[i]);
    for (int i = 0; i < 2 && when >= 3; i++) node_started(r, &n[i]);
    if (when >= 5) node_finished(r, &n[0]);
    if (when >= 6) node_exited(r, &n[1], 1, 0);
    if (when >= 7) node_stopped(r, &n[1]);
    if (when == 8) {
      rig_restart(r, true);
      assert_string_equal(rig_state(r, "job"), "ended");
    }
    assert_true(core_deadline(r->core) != UINT64_MAX);
    if (when % 3 == 0)
      for (int i = 0; i < 2; i++)
        if (n[i].conn) node_drop(r, &n[i]);
    rig_run(r, 3600 * 1000);
    assert_string_equal(rig_state(r, "job"), "");
    assert_true(core_deadline(r->core) == UINT64_MAX);
    assert_true(core_idle(r->core));
  }
}

RIG_TEST(test_going_away) {
  rig_open_running(r, n, 2);
  rig_event(r, &(struct core_event){.kind = CORE_SHUTDOWN});
  for (int i = 0; i < 2; i++) {
    assert_int_equal(rig_count(r, n[i].conn, MSG_GOING_AWAY), 1);
    assert_int_equal(rig_last(r, n[i].conn, MSG_GOING_AWAY)->going_away.away_ms, 60000);
  }
  assert_string_equal(rig_state(r, "job"), "running"); /* it ends no job */
}

/* Nobody would know of the promise if a node that has not read it came back first. */
RIG_TEST(test_going_away_without_a_state_file) {
  rig_open_running(r, n, 2);
  r->config.saves = false;
  rig_restart(r, false);
  for (int i = 0; i < 2; i++) node_back(r, &n[i], PHASE_RUNNING);
  rig_event(r, &(struct core_event){.kind = CORE_SHUTDOWN});
  for (int i = 0; i < 2; i++) assert_int_equal(rig_last(r, n[i].conn, MSG_GOING_AWAY)->going_away.away_ms, 0);
}

/* One of three reads it, and is cut off. The other two have lost their connections before, and know of no promise. The
 * next daemon does, and so does the one behind it. */
RIG_TEST(test_the_next_daemon_keeps_the_promise) {
  rig_open_for(r, 2, 3);
  nodes_init(r, n, 3);
  for (int i = 0; i < 3; i++) node_join(r, &n[i]);
  for (int i = 0; i < 3; i++) node_started(r, &n[i]);
  int64_t round = n[0].round;
  rig_event(r, &(struct core_event){.kind = CORE_SHUTDOWN});
  for (int life = 0; life < 2; life++) {
    rig_restart(r, true);
    for (int i = 0; i < 2; i++) node_back(r, &n[i], life ? PHASE_NONE : PHASE_RUNNING);
    for (int i = 0; i < 20; i++) {
      rig_run(r, 1000);
      nodes_heartbeat(r, n, 2);
      for (int k = 0; k < 2 && life == 0 && i == 12; k++) node_stopped(r, &n[k]);
    }
    for (int k = 0; k < 2; k++) assert_int_equal(n[k].round, round);
  }
  for (int i = 0; i < 90 && n[0].round == round; i++) {
    rig_run(r, 1000);
    nodes_heartbeat(r, n, 2);
  }
  assert_true(n[0].round > round);
}
