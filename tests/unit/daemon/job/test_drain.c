/* SPDX-License-Identifier: Apache-2.0 */
/* core: hosts that are left out of rounds. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "tests/rig/unit.h"

enum { OTHER = 2000 };

static void fail_on(struct rig *r, struct node *n, int count, int which);

static int drain(struct rig *r, const char *host, bool force, int64_t uid) {
  return rig_ask(r, &(struct control){.verb = "drain", .host = host, .force = force, .rank = -1}, uid);
}

static int undrain(struct rig *r, const char *host, int64_t uid) {
  return rig_ask(r, &(struct control){.verb = "undrain", .host = host, .rank = -1}, uid);
}

static void open_some(struct rig *r, struct node *n, int64_t min, int64_t max, int here, int running) {
  rig_open_for(r, min, max);
  r->settings.last_call_ms = 1000;
  rig_joined(r, n, here);
  rig_run(r, 1000);
  nodes_started(r, n, running);
  assert_string_equal(rig_state(r, "job"), "running");
}

static const char *told(struct rig *r, const struct node *n) {
  const struct msg *m = rig_last(r, n->conn, MSG_WAITING);
  assert_non_null(m);
  return m->waiting.text;
}

/* Three nodes of a job that needs two and excludes a host after so many failures. */
static void open_excluding(struct rig *r, struct node *n, int64_t after) {
  rig_open_for(r, 2, 3);
  r->settings.exclude_after = after;
  rig_joined(r, n, 3);
}

/* They answer PREPARE first, where it came. */
static void stop_all(struct rig *r, struct node *n, int count) {
  for (int i = 0; i < count; i++)
    if (rig_last(r, n[i].conn, MSG_PREPARE) && !rig_last(r, n[i].conn, MSG_STOP))
      node_report(r, &n[i], REPORT_CHECKPOINTED, NULL, 0);
  for (int i = 0; i < count; i++)
    if (rig_last(r, n[i].conn, MSG_STOP)) node_stopped(r, &n[i]);
}

RIG_TEST(test_round_is_ended_without_a_charge) {
  open_some(r, n, 2, 3, 3, 3);
  assert_int_equal(drain(r, "n1", false, 0), 0);
  assert_said(r, "host n1 is drained: its agents stay connected, and join no round until `rdzvctl undrain n1`");
  assert_said(r, "job job: round 1 ends as planned, nothing is charged; 2 other nodes are here for the next one");
  assert_int_equal(rig_last(r, n[0].conn, MSG_PREPARE)->prepare.verdict.cause, CAUSE_NODE_DRAINED);
  stop_all(r, n, 3);
  const struct stop *stop = rig_stop(r, &n[0]);
  assert_int_equal(stop->verdict.cause, CAUSE_NODE_DRAINED);
  assert_string_equal(stop->verdict.host, "n1");
  const struct msg *settled = rig_last(r, n[1].conn, MSG_SETTLED);
  assert_false(settled->settled.charged);
  assert_int_equal(n[0].round, 2); /* at once */
  assert_int_equal(n[0].nodes, 2);
  assert_int_equal(n[1].round, 1);
  assert_string_equal(told(r, &n[1]),
                      "host n1 is drained by root: its agents join no round until `rdzvctl undrain n1`");
  rig_control(r, "status", "", false);
  assert_said(r, "drained: n1                    for 0 s, by root\n");
  assert_said(r, "  drained\n");
  assert_said(r, "round 1 ended: node 1 (n1) was drained by root (0 s ago)");
}

RIG_TEST(test_refused_where_it_is_needed) {
  open_some(r, n, 2, 2, 2, 2);
  assert_int_equal(drain(r, "n1", false, 0), EXIT_CODE_REFUSED);
  assert_said(r, "job job cannot go on without n1: it needs 2 nodes (--nnodes 2:2), and 1 other is here; --force");
  assert_string_equal(rig_state(r, "job"), "running");
  assert_int_equal(r->n_saved, 1); /* its seal */
  assert_int_equal(drain(r, "n1", true, 0), 0);
  stop_all(r, n, 2);
  assert_string_equal(rig_state(r, "job"), "forming");
  rig_control(r, "status", "", false);
  assert_said(r, "missing 1: n1 (drained 0 s ago: by root)");
}

RIG_TEST(test_unknown_host) {
  open_some(r, n, 1, 3, 2, 2);
  assert_int_equal(drain(r, "n7", false, 0), 1);
  assert_said(r, "no job has a node on host n7 (--force drains it anyway); hosts are: n0, n1\n");
  assert_int_equal(undrain(r, "n7", 0), 1);
  assert_said(r, "host n7 is not drained; no host is drained\n");
  assert_int_equal(drain(r, "n2", true, 0), 0);
  node_init(r, &n[2], 2);
  node_join(r, &n[2]); /* who comes later is held back, too, */
  assert_non_null(strstr(told(r, &n[2]), "host n2 is drained by root"));
  for (int k = 0; k < 20; k++) { /* and no round is ended for it */
    rig_run(r, 3000);
    nodes_heartbeat(r, n, 3);
  }
  assert_null(rig_last(r, n[0].conn, MSG_PREPARE));
}

RIG_TEST(test_undrained_are_newcomers) {
  open_some(r, n, 2, 3, 3, 3);
  drain(r, "n0", false, 0);
  stop_all(r, n, 3);
  assert_int_equal(n[1].node_rank, 1); /* ranks are stable: the hole is filled from behind */
  for (int i = 1; i < 3; i++) node_started(r, &n[i]);
  rig_forget(r);
  assert_int_equal(undrain(r, "n0", 0), 0);
  assert_said(r, "host n0 is undrained: its nodes are newcomers, for the next round");
  assert_non_null(strstr(told(r, &n[0]), "a new round with all waiting nodes"));
  for (int i = 0; i < 10; i++) {
    rig_run(r, 3001);
    nodes_heartbeat(r, n, 3);
  }
  assert_int_equal(rig_last(r, n[1].conn, MSG_PREPARE)->prepare.verdict.cause, CAUSE_NODE_JOINED);
}

RIG_TEST(test_while_starting_is_void) {
  rig_open_for(r, 2, 3);
  rig_joined(r, n, 3);
  node_started(r, &n[0]);
  assert_int_equal(drain(r, "n2", false, 0), 0);
  assert_true(rig_stop(r, &n[0])->void_round);
}

RIG_TEST(test_while_forming_and_stopping) {
  rig_open_for(r, 2, 3);
  r->settings.last_call_ms = 1000;
  nodes_init(r, n, 3);
  node_join(r, &n[0]);
  assert_int_equal(drain(r, "n0", false, 0), 0); /* nothing goes on that it could end */
  assert_non_null(strstr(told(r, &n[0]), "is drained"));
  node_join(r, &n[1]);
  rig_run(r, 2000);
  assert_string_equal(rig_state(r, "job"), "forming"); /* one of two */
  node_join(r, &n[2]);
  rig_run(r, 1000);
  assert_int_equal(n[1].nodes, 2);
  for (int i = 1; i < 3; i++) node_started(r, &n[i]);
  node_exited(r, &n[1], 3, 0);
  assert_string_equal(rig_state(r, "job"), "stopping");
  undrain(r, "n0", 0);
  assert_int_equal(drain(r, "n2", false, 0), 0);
  stop_all(r, n + 1, 2);
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[2].round, 1);
  assert_true(rig_settled(r, &n[1])->charged); /* the failure is the cause all the same */
}

RIG_TEST(test_finished_ones_are_not_begun_again) {
  open_some(r, n, 2, 3, 3, 3);
  node_finished(r, &n[0]);
  assert_int_equal(drain(r, "n1", false, 0), 0);
  assert_said(r, "round 1 goes on there to its end, because some of its nodes have finished; --force ends it");
  assert_string_equal(rig_state(r, "job"), "running");
  assert_int_equal(drain(r, "n1", true, 0), 0);
  stop_all(r, n, 3);
  assert_int_equal(n[0].round, 2); /* and takes part again */
}

RIG_TEST(test_stop_came_too_late) {
  open_some(r, n, 2, 3, 3, 3);
  drain(r, "n1", false, 0);
  nodes_checkpointed(r, n, 3);
  nodes_finished(r, n, 3);
  assert_string_equal(rig_state(r, "job"), "ending");
  assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
}

/* Where --force ends the round whoever has finished, a node that finishes meanwhile does not begin it all anew: with
 * ten thousand that finish one after the other everybody would be asked ten thousand times. */
RIG_TEST(test_finishing_under_a_forced_drain) {
  open_some(r, n, 1, 3, 3, 3);
  assert_int_equal(drain(r, "n1", true, 0), 0);
  rig_run(r, 1000);
  node_finished(r, &n[0]);
  assert_string_equal(rig_state(r, "job"), "checkpointing");
  assert_int_equal(rig_count(r, n[2].conn, MSG_PREPARE), 1);
  node_report(r, &n[2], REPORT_CHECKPOINTED, NULL, 0);
  node_report(r, &n[1], REPORT_CHECKPOINTED, NULL, 0);
  assert_non_null(rig_last(r, n[2].conn, MSG_STOP));
}

RIG_TEST(test_rank_asked_for_is_free_again) {
  rig_open(r, 1);
  nodes_init(r, n, 3);
  n[0].want_rank = n[2].want_rank = 0;
  nodes_join(r, n, 2);
  nodes_started(r, n, 2);
  drain(r, "n0", true, 0);
  node_join(r, &n[2]);
  assert_null(rig_last(r, n[2].conn, MSG_REFUSED));
  stop_all(r, n, 2);
  assert_int_equal(n[2].round, 2);
  assert_int_equal(n[2].node_rank, 0);
  undrain(r, "n0", 0); /* two claims, and the one that works stays */
  assert_int_equal(n[0].round, 1);
}

RIG_TEST(test_is_remembered) {
  open_some(r, n, 2, 3, 3, 3);
  drain(r, "n1", false, 0);
  stop_all(r, n, 3);
  for (int i = 0; i < 3; i += 2) node_started(r, &n[i]);
  rig_restart(r, true);
  node_back(r, &n[0], PHASE_RUNNING);
  node_back(r, &n[2], PHASE_RUNNING);
  n[1].round = 1;
  node_join(r, &n[1]);
  assert_string_equal(rig_state(r, "job"), "running");
  assert_non_null(strstr(told(r, &n[1]), "host n1 is drained by root"));
  undrain(r, "n1", 0);
  rig_restart(r, true);
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "drained:"));
}

/* Drained while the daemon waits for its nodes: the round is ended when it knows that it goes on. */
RIG_TEST(test_while_recovering) {
  open_some(r, n, 2, 3, 3, 3);
  rig_restart(r, true);
  node_back(r, &n[0], PHASE_RUNNING);
  assert_int_equal(drain(r, "n0", false, 0), EXIT_CODE_REFUSED);
  assert_said(r, "and 0 others are here since the daemon came back");
  assert_int_equal(drain(r, "n0", true, 0), 0);
  node_back(r, &n[1], PHASE_RUNNING);
  node_back(r, &n[2], PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "checkpointing");
  assert_int_equal(rig_last(r, n[2].conn, MSG_PREPARE)->prepare.verdict.cause, CAUSE_NODE_DRAINED);
}

/* What was drained before a job came is no reason to end what cannot go on without. */
RIG_TEST(test_remembered_drain_ends_nothing_that_needs_it) {
  open_some(r, n, 2, 2, 2, 2);
  rig_restart(r, false);
  rig_load(r, "{\"event\":\"drain\",\"host\":\"n0\",\"uid\":-1,\"incarnation\":\"\",\"by\":\"root\",\"wall_ms\":5}");
  nodes_back(r, n, 2, PHASE_RUNNING);
  assert_string_equal(rig_state(r, "job"), "running");
  assert_non_null(strstr(buf_text(&r->log), "round 1 needs it and goes on"));
}

RIG_TEST(test_lines_that_are_none) {
  static const char *const bad[] = {
      "{\"event\":\"drain\"}",
      "{\"event\":\"drain\",\"host\":\"\",\"uid\":-1,\"incarnation\":\"\",\"by\":\"x\",\"wall_ms\":5}",
      "{\"event\":\"drain\",\"host\":\"a\",\"uid\":-2,\"incarnation\":\"\",\"by\":\"x\",\"wall_ms\":5}",
      "{\"event\":\"drain\",\"host\":\"a\",\"uid\":-1,\"incarnation\":\"\",\"wall_ms\":5}",
      "{\"event\":\"drain\",\"host\":\"a\",\"uid\":-1,\"incarnation\":\"\",\"by\":\"x\",\"wall_ms\":-5}",
      "{\"event\":\"undrain\",\"host\":7,\"uid\":-1,\"incarnation\":\"\"}",
  };
  rig_open(r, 1);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    rig_forget(r);
    rig_load(r, bad[i]);
    assert_non_null(strstr(buf_text(&r->log), "state: ignored a line"));
  }
  rig_control(r, "status", "", false);
  assert_string_equal(buf_text(&r->said), "no jobs\n");
}

/* Whose host is it? ------------------------------------------------------------------------------------------------ */

RIG_TEST(test_users) {
  rig_open_for(r, 1, 2);
  r->settings.last_call_ms = 100;
  nodes_init(r, n, 4);
  n[2].job = n[3].job = "theirs";
  n[2].uid = n[3].uid = OTHER;
  snprintf(n[2].host, sizeof n[2].host, "n0"); /* both jobs have a node on n0 */
  nodes_join(r, n, 4);
  nodes_started(r, n, 4);
  assert_int_equal(drain(r, "n0", false, 1000), 0); /* for this user's jobs, and without a word about the others' */
  assert_said(r,
              "this holds for your jobs\njob job: round 1 ends as planned, nothing is charged; 1 other node is here");
  assert_null(rig_last(r, n[2].conn, MSG_PREPARE));
  assert_int_equal(undrain(r, "n0", OTHER), 1);
  assert_int_equal(undrain(r, "n0", 1000), 0);
  assert_int_equal(drain(r, "n3", false, 1000), 1); /* where only others are is nowhere */
  assert_said(r, "no job of yours has a node on host n3; hosts are: n0, n1\n");
  assert_int_equal(drain(r, "n1", false, 1000), 0);
  assert_said(r, "this holds for your jobs");
  assert_non_null(rig_last(r, n[0].conn, MSG_PREPARE));
  assert_null(rig_last(r, n[2].conn, MSG_PREPARE));
  struct node late;
  node_init(r, &late, 7);
  late.job = "theirs";
  late.uid = OTHER;
  snprintf(late.host, sizeof late.host, "n1");
  node_join(r, &late); /* of the other job: held back for nobody */
  assert_null(strstr(told(r, &late), "drained"));
  assert_int_equal(undrain(r, "n1", OTHER), 1);
  assert_said(r, "host n1 is not drained; no host is drained");
  assert_int_equal(undrain(r, "n1", 1000), 0);
}

/* The first node of a new job tells whose it is, and is held back itself. */
RIG_TEST(test_users_drain_holds_for_their_next_job) {
  struct node next;
  open_some(r, n, 1, 2, 2, 2);
  assert_int_equal(drain(r, "n1", false, 1000), 0);
  node_init(r, &next, 1);
  next.job = "next";
  snprintf(next.agent, sizeof next.agent, "%032x", 77);
  node_join(r, &next);
  assert_non_null(strstr(told(r, &next), "host n1 is drained by uid 1000"));
  rig_run(r, 60000);
  assert_int_equal(next.round, 0);
}

RIG_TEST(test_a_drain_names_its_user) {
  rig_open_on(r, 1, "head1");
  nodes_init(r, n, 2);
  for (int i = 0; i < 2; i++) node_join(r, &n[i]);
  rig_ask(r, &(struct control){.verb = "drain", .host = "n1", .user = "ada", .force = true}, 1000);
  rig_ask(r, &(struct control){.verb = "status"}, 0);
  assert_said(r, "for 0 s, by ada (uid 1000) from head1");
}

RIG_TEST(test_users_do_not_lift_what_root_has_drained) {
  open_some(r, n, 2, 3, 3, 3);
  drain(r, "n1", false, 0);
  assert_int_equal(undrain(r, "n1", 1000), EXIT_CODE_REFUSED);
  assert_said(r, "host n1 was not drained by you: only root or the daemon's user may undrain it");
}

/* What others have excluded is not told. */
RIG_TEST(test_users_do_not_hear_of_others_drains) {
  open_excluding(r, n, 1);
  fail_on(r, n, 3, 1);
  assert_int_equal(undrain(r, "n1", OTHER), 1);
  assert_said(r, "host n1 is not drained; no host is drained");
  assert_int_equal(undrain(r, "n1", 0), 0);
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "drained"));
}

/* --exclude-after. ------------------------------------------------------------------------------------------------- */

static void fail_on(struct rig *r, struct node *n, int count, int which) {
  for (int i = 0; i < count; i++)
    if (n[i].round == n[which].round) node_started(r, &n[i]);
  node_exited(r, &n[which], 3, 0);
  stop_all(r, n, count);
  rig_run(r, 4000); /* rounds are short: a delay */
  nodes_heartbeat(r, n, count);
}

RIG_TEST(test_exclude_after) {
  open_excluding(r, n, 2);
  fail_on(r, n, 3, 1);
  assert_string_equal(rig_settled(r, &n[0])->excluded, "");
  rig_forget(r);
  fail_on(r, n, 3, 1);
  assert_string_equal(rig_settled(r, &n[0])->excluded, "n1");
  assert_int_equal(n[0].round, 3);
  assert_int_equal(n[0].nodes, 2);
  assert_int_equal(n[1].round, 2);
  assert_non_null(strstr(told(r, &n[1]), "is drained by the job itself: 2 charged failures there (--exclude-after 2)"));
  rig_control(r, "status", "", false);
  assert_said(r, "by the job itself: 2 charged failures there (--exclude-after 2), in job job");
  assert_said(r, "--after-finish fail, --exclude-after 2\n");
  assert_int_equal(undrain(r, "n1", 1000), 0); /* it is the job's own matter */
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "drained"));
}

RIG_TEST(test_exclude_after_only_where_it_can) {
  rig_open(r, 1);
  r->settings.exclude_after = 1;
  rig_joined(r, n, 2);
  fail_on(r, n, 2, 1);
  assert_int_equal(n[1].round, 2);
  assert_non_null(strstr(buf_text(&r->log), "host n1 would be excluded, but the job cannot go on without it"));
}

/* The count and the drain outlive the daemon, and end with the job. */
RIG_TEST(test_exclude_after_is_remembered) {
  open_excluding(r, n, 2);
  fail_on(r, n, 3, 1);
  nodes_started(r, n, 3);
  rig_restart(r, true);
  nodes_back(r, n, 3, PHASE_RUNNING);
  node_exited(r, &n[1], 3, 0);
  stop_all(r, n, 3);
  rig_run(r, 4000);
  nodes_heartbeat(r, n, 3);
  assert_string_equal(rig_settled(r, &n[0])->excluded, "n1");
  for (int i = 0; i < 3; i += 2) node_started(r, &n[i]);
  rig_restart(r, true);
  rig_control(r, "status", "", false);
  assert_said(r, "drained: n1");
  for (int i = 0; i < 3; i += 2) node_back(r, &n[i], PHASE_RUNNING);
  for (int i = 0; i < 3; i += 2) node_finished(r, &n[i]);
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "drained:"));
}

/* Three, of which the second had a failure: --exclude-after 1. */
static void open_excluded(struct rig *r, struct node *n) {
  open_excluding(r, n, 1);
  fail_on(r, n, 3, 1);
  assert_int_equal(n[0].round, 2);
  for (int i = 0; i < 3; i += 2) node_started(r, &n[i]);
}

/* It ended so long ago that the daemon that comes does not remember it. */
RIG_TEST(test_exclude_after_ends_with_the_job) {
  open_excluded(r, n);
  for (int i = 0; i < 3; i += 2) node_finished(r, &n[i]);
  r->wall_ms += 2 * JOB_END_KEEP_MS;
  rig_restart(r, true);
  rig_control(r, "status", "", false);
  assert_string_equal(buf_text(&r->said), "no jobs\n");
}

/* The life goes on under another name. */
RIG_TEST(test_exclude_after_in_a_branch) {
  char before[INCARNATION_MAX + 1];
  open_excluded(r, n);
  memcpy(before, n[0].incarnation, sizeof before);
  n[0].round = 5; /* another daemon has sealed it, and is gone */
  n[0].nodes = 2;
  n[0].nodes = 1;
  n[0].node_rank = 0;
  n[0].n_reports = 0;
  node_back(r, &n[0], PHASE_STOPPED);
  node_join(r, &n[2]);
  node_join(r, &n[1]);
  rig_run(r, 4000);
  nodes_heartbeat(r, n, 3);
  rig_run(r, 4000);
  assert_string_not_equal(n[2].incarnation, before);
  assert_int_equal(n[2].nodes, 2);
  rig_control(r, "status", "", false);
  assert_said(r, "drained: n1");
  assert_said(r, "in job job");
  for (int i = 0; i < 3; i += 2) node_started(r, &n[i]);
  rig_restart(r, true);
  for (int i = 0; i < 3; i += 2) node_back(r, &n[i], PHASE_RUNNING);
  for (int i = 0; i < 3; i += 2) node_finished(r, &n[i]);
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "drained"));
}

static int finish_said(void **state) {
  return 0;
}

int main(void) {
  return unit_run(NULL, finish_said);
}
