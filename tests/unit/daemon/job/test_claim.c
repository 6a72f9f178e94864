/* SPDX-License-Identifier: Apache-2.0 */
/* core: rounds of a job with --claim, each of which one daemon alone can seal. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/mem.h"
#include "tests/rig/unit.h"

enum { LEASE = 5000 };

/* The first claim is for the run. It is forgotten. */
static void win_run(struct rig *r) {
  rig_answer_claim(r, 0, CLAIM_WON, NULL);
  free(r->claims[0].content);
  memmove(&r->claims[0], &r->claims[1], --r->n_claims * sizeof r->claims[0]);
}

static void expect(struct rig *r, const char *state) {
  assert_string_equal(rig_state(r, "job"), state);
}

/* All nodes have joined, and their heartbeats let the daemon ask for the run. */
static void open_asking_for_run(struct rig *r, struct node *n, size_t count, int64_t min_nodes) {
  rig_open_successors(r, min_nodes, (int64_t)count);
  r->settings.claims = true;
  rig_joined(r, n, count);
  assert_int_equal(r->n_claims, 0); /* nobody has followed, ever: the clock is younger than half a lease */
  nodes_heartbeat(r, n, count);
  assert_int_equal(r->n_claims, 1);
  expect(r, "forming");
}

/* It has the run, and asks for round 1. The tests count from there. */
static void open_asking(struct rig *r, struct node *n, size_t count, int64_t min_nodes) {
  open_asking_for_run(r, n, count, min_nodes);
  win_run(r);
  assert_int_equal(r->n_claims, 1);
  expect(r, "forming");
}

static void open_running(struct rig *r, struct node *n, size_t count, int64_t min_nodes) {
  open_asking(r, n, count, min_nodes);
  rig_answer_claim(r, 0, CLAIM_WON, NULL);
  expect(r, "starting");
  nodes_started(r, n, count);
}

static void expect_name(const struct rig *r, size_t i, const struct node *n, int64_t round) {
  char name[CLAIM_NAME_MAX + 1];
  snprintf(name, sizeof name, "1000/job/%s/%lld", n->incarnation, (long long)round);
  assert_string_equal(r->claims[i].name, name);
}

static size_t nodes_in(const struct rig_claim *c) {
  json_t *v = json_parse_object(c->content, strlen(c->content), NULL);
  size_t n = json_array_size(json_object_get(v, "nodes"));
  json_decref(v);
  return n;
}

static char *claim_of_other(const char *agent) {
  return xasprintf("{\"daemon\":\"000000000000000000000000000000ff\",\"host\":\"gpu9\",\"addr\":\"10.0.9.9\","
                   "\"port\":29400,\"nodes\":[\"%s\"]}",
                   agent);
}

RIG_TEST(test_won) {
  open_asking(r, n, 3, 2);
  expect_name(r, 0, &n[0], 1);
  json_t *v = json_parse_object(r->claims[0].content, strlen(r->claims[0].content), NULL);
  assert_string_equal(json_string_value(json_object_get(v, "daemon")), "000000000000000000000000000000d0");
  assert_string_equal(json_string_value(json_object_get(v, "host")), "d0");
  assert_string_equal(json_string_value(json_object_get(v, "addr")), "10.0.255.1");
  assert_int_equal(json_integer_value(json_object_get(v, "port")), 29400);
  assert_int_equal(json_array_size(json_object_get(v, "nodes")), 3);
  json_decref(v);
  rig_live(r, 1000);
  assert_int_equal(r->n_claims, 1); /* one is out */
  rig_answer_claim(r, 0, CLAIM_WON, NULL);
  expect(r, "starting");
  assert_int_equal(n[0].round, 1);
  assert_true(n[0].age_ms <= 1250); /* all have followed */
}

/* No number is left out, and the incarnation stays. */
RIG_TEST(test_round_after_round) {
  open_running(r, n, 2, 2);
  for (int64_t round = 2; round < 5; round++) {
    rig_live(r, 40000);
    node_exited(r, &n[0], 1, 0);
    nodes_stopped(r, n, 2);
    assert_int_equal(r->n_claims, round);
    expect_name(r, (size_t)round - 1, &n[0], round);
    rig_answer_claim(r, (size_t)round - 1, CLAIM_WON, NULL);
    assert_int_equal(n[0].round, round);
    nodes_started(r, n, 2);
  }
}

/* Again after a second, and the sentence is said once. */
RIG_TEST(test_failed) {
  open_asking(r, n, 2, 2);
  rig_forget(r);
  for (size_t i = 0; i < 3; i++) {
    rig_answer_claim(r, i, CLAIM_FAILED, "/claims: Stale file handle");
    rig_run(r, 999);
    assert_int_equal(r->n_claims, i + 1);
    nodes_heartbeat(r, n, 2);
    rig_run(r, 1);
    assert_int_equal(r->n_claims, i + 2);
    assert_string_equal(r->claims[i + 1].name, r->claims[0].name);
  }
  assert_string_equal(buf_text(&r->log),
                      "round 1 of job job cannot be claimed: /claims: Stale file handle; trying again\n");
  rig_run(r, 1000);
  const struct msg *w = rig_last(r, n[0].conn, MSG_WAITING);
  assert_non_null(strstr(w->waiting.text, "Stale file handle"));
  rig_answer_claim(r, 3, CLAIM_WON, NULL);
  expect(r, "starting");
}

/* The driver answers within 10 s. 2 s later the daemon asks again, and an answer to the first one changes nothing. */
RIG_TEST(test_late) {
  open_asking(r, n, 2, 2);
  rig_live(r, JOB_CLAIM_MS + 1999);
  assert_int_equal(r->n_claims, 1);
  rig_live(r, 1001);
  assert_int_equal(r->n_claims, 2);
  rig_answer_claim(r, 0, CLAIM_WON, NULL);
  expect(r, "forming");
  /* The first one was created, with the same content. */
  assert_string_equal(r->claims[0].name, r->claims[1].name);
  assert_string_equal(r->claims[0].content, r->claims[1].content);
  rig_answer_claim(r, 1, CLAIM_WON, NULL);
  expect(r, "starting");
}

/* A claim of its own with other content is passed: those nodes are not these. */
RIG_TEST(test_taken_by_itself) {
  open_asking(r, n, 2, 2);
  rig_answer_claim(r, 0, CLAIM_TAKEN, "{\"daemon\":\"000000000000000000000000000000d0\",\"nodes\":[]}");
  assert_int_equal(r->n_claims, 2);
  expect_name(r, 1, &n[0], 2);
}

/* The daemon was restarted with its id. The claim of its former life is not its own: that round may have been sealed. */
RIG_TEST(test_contents_of_two_lives_differ) {
  open_asking(r, n, 2, 2);
  rig_run(r, 1);
  rig_restart(r, false);
  nodes_join(r, n, 2);
  rig_live(r, LEASE + 3000);
  assert_int_equal(r->n_claims, 2);
  rig_answer_claim(r, 1, CLAIM_WON, NULL); /* the run, again */
  assert_int_equal(r->n_claims, 3);
  assert_string_equal(r->claims[0].name, r->claims[2].name);
  assert_string_not_equal(r->claims[0].content, r->claims[2].content);
}

/* Another daemon has it, and none of its nodes is here: the nodes go there, and are not told every moment. */
RIG_TEST(test_taken_by_another) {
  open_asking(r, n, 2, 2);
  char *other = claim_of_other("ffffffffffffffffffffffffffffffff");
  rig_answer_claim(r, 0, CLAIM_TAKEN, other);
  for (int i = 0; i < 2; i++) {
    const struct msg *m = rig_last(r, n[i].conn, MSG_MOVED);
    assert_string_equal(m->moved.host, "gpu9");
    assert_string_equal(m->moved.addr, "10.0.9.9");
    assert_int_equal(m->moved.port, 29400);
  }
  rig_live(r, 4999);
  assert_int_equal(r->n_claims, 1);
  rig_live(r, 1);
  assert_int_equal(r->n_claims, 2);
  expect_name(r, 1, &n[0], 1);
  /* Whoever comes back has found nobody. It stays for a while, and looks again then. */
  for (size_t i = 1; i < 7; i++) {
    rig_answer_claim(r, i, CLAIM_TAKEN, other);
    assert_int_equal(rig_count(r, n[0].conn, MSG_MOVED), i == 6 ? 2 : 1);
    rig_live(r, 5000);
  }
  free(other);
}

/* One of its nodes is here, and so that round cannot run: the next number. */
RIG_TEST(test_taken_with_one_of_ours) {
  open_asking(r, n, 2, 2);
  char *other = claim_of_other(n[1].agent);
  rig_answer_claim(r, 0, CLAIM_TAKEN, other);
  assert_int_equal(rig_count(r, n[0].conn, MSG_MOVED), 0);
  assert_int_equal(r->n_claims, 2);
  expect_name(r, 1, &n[0], 2);
  rig_answer_claim(r, 1, CLAIM_WON, NULL);
  assert_int_equal(n[0].round, 2);
  free(other);
}

/* A takeover: the winner's node has come here, and what the winner allowed may run until its promise is over. */
RIG_TEST(test_its_promise_is_waited_for) {
  open_running(r, n, 3, 1);
  rig_live(r, 1250);
  for (int i = 0; i < 3; i++) node_leave_silently(&n[i]);
  rig_run(r, LEASE);
  rig_use(r, 1);
  node_back(r, &n[1], PHASE_STOPPED);
  rig_live(r, 2500);
  size_t asked = r->n_claims;
  expect_name(r, asked - 1, &n[1], 2);
  n[2].heard_ms = r->now_ms; /* until now */
  node_back(r, &n[2], PHASE_STOPPED);
  node_hello_again(r, &n[2]);
  uint64_t turned_ms = r->now_ms;
  char *other = claim_of_other(n[2].agent);
  rig_answer_claim(r, asked - 1, CLAIM_TAKEN, other);
  free(other);
  rig_live(r, turned_ms + LEASE - 1 - r->now_ms);
  assert_int_equal(r->n_claims, asked);
  rig_live(r, 626);
  assert_int_equal(r->n_claims, asked + 1);
  expect_name(r, asked, &n[1], 3);
  rig_answer_claim(r, asked, CLAIM_WON, NULL);
  assert_int_equal(n[1].round, 3);
}

/* One node of three is enough, with a claim. Spares alone are not. */
RIG_TEST(test_one_node_goes_on) {
  for (int spare = 0; spare < 2; spare++) {
    rig_open_successors(r, 1, 3);
    r->settings.claims = true;
    rig_joined(r, n, 3);
    nodes_heartbeat(r, n, 3);
    win_run(r);
    rig_answer_claim(r, 0, CLAIM_WON, NULL);
    nodes_started(r, n, 3);
    node_init(r, &n[3], 3);
    node_join(r, &n[3]);
    rig_live(r, 1250);
    for (int i = spare ? 0 : 1; i < 3; i++) node_leave_silently(&n[i]);
    rig_live(r, LEASE + 1000);
    if (!spare) node_stopped(r, &n[0]);
    rig_live(r, 2 * LEASE);
    expect(r, spare && !strcmp(rig_state(r, "job"), "running") ? "running" : "forming");
    assert_int_equal(r->n_claims, spare ? 1 : 2);
    if (!spare) assert_int_equal(nodes_in(&r->claims[1]), 2);
    /* There is no last call after a fault, and the line says what is waited for. */
    if (!spare) assert_int_equal(rig_last(r, n[0].conn, MSG_WAITING)->waiting.prospect, PROSPECT_CLAIM);
  }
}

/* It was won for three nodes, one of which is gone before the round could be sealed. */
RIG_TEST(test_a_claim_holds_for_its_nodes) {
  open_asking(r, n, 3, 2);
  node_bye(r, &n[2]);
  rig_answer_claim(r, 0, CLAIM_WON, NULL);
  expect(r, "forming");
  rig_live(r, 31000); /* the last call */
  assert_int_equal(r->n_claims, 2);
  expect_name(r, 1, &n[0], 2);
  assert_int_equal(nodes_in(&r->claims[1]), 2);
  rig_answer_claim(r, 1, CLAIM_WON, NULL);
  assert_int_equal(n[0].round, 2);
}

/* The job ended while its claim was out. */
RIG_TEST(test_an_answer_after_the_end) {
  for (int answer = 0; answer < 3; answer++) {
    open_asking(r, n, 2, 2);
    rig_ask(r, &(struct control){.verb = "stop", .job = "job", .rank = -1}, 0);
    expect(r, "ending");
    char *other = claim_of_other(n[1].agent);
    rig_answer_claim(r, 0, (enum claim_answer)answer, answer == CLAIM_TAKEN ? other : "no");
    expect(r, "ending");
    assert_int_equal(r->n_claims, 1);
    free(other);
  }
}

/* Any byte may be in a name. */
RIG_TEST(test_names_are_escaped) {
  rig_open_successors(r, 1, 1);
  r->settings.claims = true;
  r->job = "../a b/%\xc3\xa4";
  rig_joined(r, n, 1);
  nodes_heartbeat(r, n, 1);
  assert_int_equal(r->n_claims, 1);
  assert_int_equal(strncmp(r->claims[0].name, "1000/%2E.%2Fa%20b%2F%25%C3%A4/", 30), 0);
}

/* The claims go with the job, but only if this daemon decides that it has ended. */
RIG_TEST(test_removed_at_the_end) {
  for (int charged = 0; charged < 2; charged++) {
    open_running(r, n, 3, 3);
    rig_live(r, 1250);
    char prefix[CLAIM_NAME_MAX + 1];
    snprintf(prefix, sizeof prefix, "1000/job/%s/", n[0].incarnation);
    if (!charged) {
      node_leave_silently(&n[2]);
      rig_live(r, LEASE + 1000);
      nodes_stopped(r, n, 2);
      expect(r, "forming");
      rig_ask(r, &(struct control){.verb = "stop", .job = "job", .rank = -1}, 0);
    } else {
      nodes_finished(r, n, 3);
    }
    expect(r, "ending");
    assert_string_equal(r->unclaimed, charged ? prefix : "");
  }
}

/* Another daemon has ended the job. */
RIG_TEST(test_the_job_has_ended_elsewhere) {
  open_asking(r, n, 2, 2);
  rig_answer_claim(r, 0, CLAIM_TAKEN, CLAIM_ENDED);
  for (int i = 0; i < 2; i++) {
    const struct msg *m = rig_last(r, n[i].conn, MSG_REFUSED);
    assert_int_equal(m->refused.code, EXIT_CODE_DAEMON_LOST);
  }
  expect(r, "forming");
}

/* And has left the outcome: nothing starts a job again that was done. */
RIG_TEST(test_the_end_elsewhere_has_its_outcome) {
  static const struct {
    const char *text;
    enum outcome outcome;
    int64_t code;
  } ends[] = {{"ended success 0", OUTCOME_SUCCESS, 0},
              {"ended failed 73", OUTCOME_FAILED, 73},
              {"ended stopped 0", OUTCOME_STOPPED, 0}};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    open_asking(r, n, 2, 2);
    rig_answer_claim(r, 0, CLAIM_TAKEN, ends[i].text);
    for (int k = 0; k < 2; k++) {
      assert_int_equal(rig_end(r, &n[k])->outcome, ends[i].outcome);
      assert_int_equal(rig_end(r, &n[k])->code, ends[i].code);
    }
    expect(r, "ending");
  }
}

RIG_TEST(test_an_end_that_nobody_understands) {
  static const char *const ends[] = {"ended well 0", "ended success", "ended success 256", "ended success -1"};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    open_asking(r, n, 2, 2);
    rig_answer_claim(r, 0, CLAIM_TAKEN, ends[i]);
    assert_int_equal(rig_last(r, n[0].conn, MSG_REFUSED)->refused.code, EXIT_CODE_DAEMON_LOST);
  }
}

/* Too few are here to claim a round, and the others have ended the job with another daemon. */
RIG_TEST(test_too_few_look_for_the_end) {
  open_running(r, n, 2, 2);
  node_death_report(r, &n[1]);
  node_stopped(r, &n[0]);
  expect(r, "forming");
  size_t before = r->n_claims;
  rig_live(r, 4900);
  assert_int_equal(r->n_claims, before);
  rig_live(r, 200);
  assert_int_equal(r->n_claims, before + 1);
  assert_non_null(strstr(r->claims[before].name, "/0"));
  rig_answer_claim(r, before, CLAIM_WON, NULL);
  expect(r, "forming");
  rig_live(r, 5000);
  assert_int_equal(r->n_claims, before + 2);
  rig_answer_claim(r, before + 1, CLAIM_TAKEN, "ended success 0");
  assert_int_equal(rig_end(r, &n[0])->outcome, OUTCOME_SUCCESS);
}

/* The run. --------------------------------------------------------------------------------------------------------- */

#define OTHER_RUN "018b00000000-0011223344556677" /* before that of the rig */

static char *run_of_other(const char *incarnation, const char *more) {
  return xasprintf("{\"daemon\":\"000000000000000000000000000000ff\",\"host\":\"gpu9\",\"addr\":\"10.0.9.9\","
                   "\"port\":29400,\"nodes\":[],\"incarnation\":\"%s\"%s}",
                   incarnation, more);
}

/* Before round 1, and never again. */
RIG_TEST(test_the_run_is_claimed_first) {
  open_asking_for_run(r, n, 2, 2);
  char name[CLAIM_NAME_MAX + 1];
  snprintf(name, sizeof name, "1000/job/%s/", n[0].incarnation);
  assert_string_equal(r->claims[0].name, name);
  json_t *v = json_parse_object(r->claims[0].content, strlen(r->claims[0].content), NULL);
  assert_string_equal(json_string_value(json_object_get(v, "incarnation")), n[0].incarnation);
  assert_string_equal(json_string_value(json_object_get(v, "addr")), "10.0.255.1");
  json_decref(v);
  rig_answer_claim(r, 0, CLAIM_WON, NULL);
  expect(r, "forming");
  expect_name(r, 1, &n[0], 1);
  rig_answer_claim(r, 1, CLAIM_WON, NULL);
  nodes_started(r, n, 2);
  rig_live(r, 40000);
  node_exited(r, &n[0], 1, 0);
  nodes_stopped(r, n, 2);
  assert_int_equal(r->n_claims, 3);
  expect_name(r, 2, &n[0], 2);
}

/* Nobody begins, and the line says for what the job waits. */
RIG_TEST(test_another_run_goes_on) {
  open_asking_for_run(r, n, 2, 2);
  char *other = run_of_other(OTHER_RUN, "");
  rig_forget(r);
  for (size_t i = 0; i < 4; i++) {
    rig_answer_claim(r, i, CLAIM_TAKEN, other);
    assert_int_equal(rig_count(r, n[0].conn, MSG_MOVED), 1);
    rig_live(r, 4999);
    assert_int_equal(r->n_claims, i + 1);
    rig_live(r, 1);
    assert_int_equal(r->n_claims, i + 2);
    assert_string_equal(r->claims[i + 1].name, r->claims[0].name);
    expect(r, "forming");
  }
  const struct msg *m = rig_last(r, n[0].conn, MSG_MOVED);
  assert_string_equal(m->moved.addr, "10.0.9.9");
  static const char says[] =
      "another run of job job, which began at 2023-10-05 13:21:21 UTC with the daemon on gpu9, has "
      "not ended, and this one waits for it. If nothing of it runs any more: rdzvctl "
      "confirm-dead job. If it is a different job: name this one with --rdzv-id";
  assert_string_equal(rig_last(r, n[0].conn, MSG_WAITING)->waiting.text, says);
  assert_non_null(strstr(buf_text(&r->log), says));
  assert_null(strstr(strstr(buf_text(&r->log), says) + 1, says)); /* once */
  rig_answer_claim(r, 4, CLAIM_WON, NULL);                        /* it has ended */
  expect_name(r, 5, &n[0], 1);
  rig_answer_claim(r, 5, CLAIM_WON, NULL);
  expect(r, "starting");
  free(other);
}

/* Nodes with another command are of another job, and those of a daemon that was here have nowhere to go. */
RIG_TEST(test_who_is_not_sent_to_the_other_run) {
  static const char *const more[] = {",\"command\":\"0123456789abcdef\"", ",\"port\":29400,\"addr\":\"10.0.255.1\""};
  for (int i = 0; i < 2; i++) {
    rig_open_successors(r, 2, 2);
    r->settings.claims = true;
    for (int k = 0; k < 2; k++) {
      node_init(r, &n[k], k);
      n[k].command = k ? "0123456789abcdef" : "fedcba9876543210";
      node_join(r, &n[k]);
    }
    nodes_heartbeat(r, n, 2);
    char *other = i ? xasprintf("{\"incarnation\":\"" OTHER_RUN "\"%s}", more[i]) : run_of_other(OTHER_RUN, more[i]);
    rig_answer_claim(r, 0, CLAIM_TAKEN, other);
    assert_int_equal(rig_count(r, n[0].conn, MSG_MOVED), 0);
    assert_int_equal(rig_count(r, n[1].conn, MSG_MOVED), !i);
    free(other);
  }
}

/* Another daemon of the same incarnation has claimed it. */
RIG_TEST(test_the_run_is_its_own) {
  open_asking_for_run(r, n, 2, 2);
  char *own = run_of_other(n[0].incarnation, "");
  rig_answer_claim(r, 0, CLAIM_TAKEN, own);
  expect_name(r, 1, &n[0], 1);
  free(own);
}

RIG_TEST(test_a_run_that_nobody_can_read) {
  static const char *const texts[] = {"", "{}", "x", "{\"incarnation\":7}"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    open_asking_for_run(r, n, 2, 2);
    rig_answer_claim(r, 0, CLAIM_TAKEN, texts[i]);
    rig_live(r, 1000);
    assert_non_null(strstr(rig_last(r, n[0].conn, MSG_WAITING)->waiting.text, "no rdzvd has written what it says"));
    assert_int_equal(r->n_claims, 2);
  }
}

/* An operator knows that it is dead: it is ended, and the job goes on at once. */
RIG_TEST(test_the_other_run_is_dead) {
  struct control dead = {.verb = "confirm-dead", .job = "job", .rank = -1};
  open_asking_for_run(r, n, 2, 2);
  rig_ask(r, &dead, EXIT_CODE_REFUSED);
  assert_string_equal(r->unclaimed, "");
  char *other = run_of_other(OTHER_RUN, "");
  rig_answer_claim(r, 0, CLAIM_TAKEN, other);
  rig_live(r, 1000);
  dead.host = "gpu9";
  rig_ask(r, &dead, EXIT_CODE_REFUSED);
  assert_string_equal(r->unclaimed, "");
  dead.host = "";
  rig_ask(r, &dead, 0);
  assert_said(r, "the run that it waits for counts as dead");
  assert_string_equal(r->unclaimed, "1000/job/" OTHER_RUN "/");
  assert_int_equal(r->n_claims, 2);
  rig_answer_claim(r, 1, CLAIM_WON, NULL);
  expect_name(r, 2, &n[0], 1);
  free(other);
}

/* All nodes leave before the first round. Nobody else can have it, so the name is free again. A node that is only
 * silent may have taken the incarnation to another daemon. */
RIG_TEST(test_a_run_without_a_round_is_given_up) {
  for (int silent = 0; silent < 2; silent++) {
    open_asking(r, n, 2, 2);
    char prefix[CLAIM_NAME_MAX + 1];
    snprintf(prefix, sizeof prefix, "1000/job/%s/", n[0].incarnation);
    if (silent) {
      node_leave_silently(&n[1]);
      rig_live(r, LEASE + 1000);
    } else {
      node_bye(r, &n[1]);
    }
    node_bye(r, &n[0]);
    assert_string_equal(r->unclaimed, silent ? "" : prefix);
  }
}

/* A node knows an incarnation that began earlier. Without the run that one has no round, unless it had ended. */
RIG_TEST(test_an_older_incarnation_comes_to_a_claimed_run) {
  for (int won = 0; won < 2; won++) {
    won ? open_asking(r, n, 2, 2) : open_asking_for_run(r, n, 2, 2);
    node_init(r, &n[2], 2);
    snprintf(n[2].incarnation, sizeof n[2].incarnation, OTHER_RUN);
    node_join(r, &n[2]);
    assert_string_not_equal(n[2].incarnation, OTHER_RUN);
    expect(r, "forming");
  }
}
