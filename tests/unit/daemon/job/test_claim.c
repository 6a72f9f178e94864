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

static void expect(struct rig *r, const char *state) {
  assert_string_equal(rig_state(r, "job"), state);
}

/* All nodes have joined, and their heartbeats let the daemon ask for round 1. */
static void open_asking(struct rig *r, struct node *n, size_t count, int64_t min_nodes) {
  rig_open_successors(r, min_nodes, (int64_t)count);
  r->settings.claims = true;
  rig_joined(r, n, count);
  assert_int_equal(r->n_claims, 0); /* nobody has vouched, ever: the clock is younger than half a lease */
  nodes_heartbeat(r, n, count);
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

static void test_won(void **state) {
  struct rig r;
  struct node n[3];
  open_asking(&r, n, 3, 2);
  expect_name(&r, 0, &n[0], 1);
  json_t *v = json_parse_object(r.claims[0].content, strlen(r.claims[0].content), NULL);
  assert_string_equal(json_string_value(json_object_get(v, "daemon")), "000000000000000000000000000000d0");
  assert_string_equal(json_string_value(json_object_get(v, "host")), "d0");
  assert_string_equal(json_string_value(json_object_get(v, "addr")), "10.0.255.1");
  assert_int_equal(json_integer_value(json_object_get(v, "port")), 29400);
  assert_int_equal(json_array_size(json_object_get(v, "nodes")), 3);
  json_decref(v);
  rig_live(&r, 1000);
  assert_int_equal(r.n_claims, 1); /* one is out */
  rig_answer_claim(&r, 0, CLAIM_WON, NULL);
  expect(&r, "starting");
  assert_int_equal(n[0].round, 1);
  assert_true(n[0].age_ms <= 1250); /* all have vouched */
  rig_close(&r);
}

/* No number is left out, and the incarnation stays. */
static void test_round_after_round(void **state) {
  struct rig r;
  struct node n[2];
  open_running(&r, n, 2, 2);
  for (int64_t round = 2; round < 5; round++) {
    rig_live(&r, 40000);
    node_exited(&r, &n[0], 1, 0);
    nodes_stopped(&r, n, 2);
    assert_int_equal(r.n_claims, round);
    expect_name(&r, (size_t)round - 1, &n[0], round);
    rig_answer_claim(&r, (size_t)round - 1, CLAIM_WON, NULL);
    assert_int_equal(n[0].round, round);
    nodes_started(&r, n, 2);
  }
  rig_close(&r);
}

/* Again after a second, and the sentence is said once. */
static void test_failed(void **state) {
  struct rig r;
  struct node n[2];
  open_asking(&r, n, 2, 2);
  rig_forget(&r);
  for (size_t i = 0; i < 3; i++) {
    rig_answer_claim(&r, i, CLAIM_FAILED, "/claims: Stale file handle");
    rig_run(&r, 999);
    assert_int_equal(r.n_claims, i + 1);
    nodes_heartbeat(&r, n, 2);
    rig_run(&r, 1);
    assert_int_equal(r.n_claims, i + 2);
    assert_string_equal(r.claims[i + 1].name, r.claims[0].name);
  }
  assert_string_equal(buf_text(&r.log),
                      "round 1 of job job cannot be claimed: /claims: Stale file handle; trying again\n");
  rig_run(&r, 1000);
  const struct msg *w = rig_last(&r, n[0].conn, MSG_WAITING);
  assert_non_null(strstr(w->waiting.text, "Stale file handle"));
  rig_answer_claim(&r, 3, CLAIM_WON, NULL);
  expect(&r, "starting");
  rig_close(&r);
}

/* The driver answers within 10 s. 2 s later the daemon asks again, and an answer to the first one changes nothing. */
static void test_late(void **state) {
  struct rig r;
  struct node n[2];
  open_asking(&r, n, 2, 2);
  rig_live(&r, JOB_CLAIM_MS + 1999);
  assert_int_equal(r.n_claims, 1);
  rig_live(&r, 1001);
  assert_int_equal(r.n_claims, 2);
  rig_answer_claim(&r, 0, CLAIM_WON, NULL);
  expect(&r, "forming");
  /* The first one was created, with the same content. */
  assert_string_equal(r.claims[0].name, r.claims[1].name);
  assert_string_equal(r.claims[0].content, r.claims[1].content);
  rig_answer_claim(&r, 1, CLAIM_WON, NULL);
  expect(&r, "starting");
  rig_close(&r);
}

/* A claim of its own with other content is passed: those nodes are not these. */
static void test_taken_by_itself(void **state) {
  struct rig r;
  struct node n[2];
  open_asking(&r, n, 2, 2);
  rig_answer_claim(&r, 0, CLAIM_TAKEN, "{\"daemon\":\"000000000000000000000000000000d0\",\"nodes\":[]}");
  assert_int_equal(r.n_claims, 2);
  expect_name(&r, 1, &n[0], 2);
  rig_close(&r);
}

/* The daemon was restarted with its id. The claim of its former life is not its own: that round may have been sealed. */
static void test_contents_of_two_lives_differ(void **state) {
  struct rig r;
  struct node n[2];
  open_asking(&r, n, 2, 2);
  rig_run(&r, 1);
  rig_restart(&r, false);
  nodes_join(&r, n, 2);
  rig_live(&r, LEASE + 3000);
  assert_int_equal(r.n_claims, 2);
  assert_string_equal(r.claims[0].name, r.claims[1].name);
  assert_string_not_equal(r.claims[0].content, r.claims[1].content);
  rig_close(&r);
}

/* Another daemon has it, and none of its nodes is here: the nodes go there, and are not told every moment. */
static void test_taken_by_another(void **state) {
  struct rig r;
  struct node n[2];
  open_asking(&r, n, 2, 2);
  char *other = claim_of_other("ffffffffffffffffffffffffffffffff");
  rig_answer_claim(&r, 0, CLAIM_TAKEN, other);
  for (int i = 0; i < 2; i++) {
    const struct msg *m = rig_last(&r, n[i].conn, MSG_MOVED);
    assert_string_equal(m->moved.host, "gpu9");
    assert_string_equal(m->moved.addr, "10.0.9.9");
    assert_int_equal(m->moved.port, 29400);
  }
  rig_live(&r, 4999);
  assert_int_equal(r.n_claims, 1);
  rig_live(&r, 1);
  assert_int_equal(r.n_claims, 2);
  expect_name(&r, 1, &n[0], 1);
  rig_answer_claim(&r, 1, CLAIM_TAKEN, other);
  assert_int_equal(rig_count(&r, n[0].conn, MSG_MOVED), 2);
  free(other);
  rig_close(&r);
}

/* One of its nodes is here, and so that round cannot run: the next number. */
static void test_taken_with_one_of_ours(void **state) {
  struct rig r;
  struct node n[2];
  open_asking(&r, n, 2, 2);
  char *other = claim_of_other(n[1].agent);
  rig_answer_claim(&r, 0, CLAIM_TAKEN, other);
  assert_int_equal(rig_count(&r, n[0].conn, MSG_MOVED), 0);
  assert_int_equal(r.n_claims, 2);
  expect_name(&r, 1, &n[0], 2);
  rig_answer_claim(&r, 1, CLAIM_WON, NULL);
  assert_int_equal(n[0].round, 2);
  free(other);
  rig_close(&r);
}

/* A takeover: the winner's node has come here, and what the winner allowed may run until its promise is over. */
static void test_its_promise_is_waited_for(void **state) {
  struct rig r;
  struct node n[3];
  open_running(&r, n, 3, 1);
  rig_live(&r, 1250);
  for (int i = 0; i < 3; i++) node_leave_silently(&n[i]);
  rig_run(&r, LEASE);
  rig_use(&r, 1);
  node_back(&r, &n[1], PHASE_STOPPED);
  rig_live(&r, 2500);
  size_t asked = r.n_claims;
  expect_name(&r, asked - 1, &n[1], 2);
  n[2].heard_ms = r.now_ms; /* until now */
  node_back(&r, &n[2], PHASE_STOPPED);
  node_hello_again(&r, &n[2]);
  uint64_t turned_ms = r.now_ms;
  char *other = claim_of_other(n[2].agent);
  rig_answer_claim(&r, asked - 1, CLAIM_TAKEN, other);
  free(other);
  rig_live(&r, turned_ms + LEASE - 1 - r.now_ms);
  assert_int_equal(r.n_claims, asked);
  rig_live(&r, 626);
  assert_int_equal(r.n_claims, asked + 1);
  expect_name(&r, asked, &n[1], 3);
  rig_answer_claim(&r, asked, CLAIM_WON, NULL);
  assert_int_equal(n[1].round, 3);
  rig_close(&r);
}

/* One node of three is enough, with a claim. Spares alone are not. */
static void test_one_node_goes_on(void **state) {
  for (int spare = 0; spare < 2; spare++) {
    struct rig r;
    struct node n[4];
    rig_open_successors(&r, 1, 3);
    r.settings.claims = true;
    rig_joined(&r, n, 3);
    nodes_heartbeat(&r, n, 3);
    rig_answer_claim(&r, 0, CLAIM_WON, NULL);
    nodes_started(&r, n, 3);
    node_init(&r, &n[3], 3);
    node_join(&r, &n[3]);
    rig_live(&r, 1250);
    for (int i = spare ? 0 : 1; i < 3; i++) node_leave_silently(&n[i]);
    rig_live(&r, LEASE + 1000);
    if (!spare) node_stopped(&r, &n[0]);
    rig_live(&r, 2 * LEASE);
    expect(&r, spare && !strcmp(rig_state(&r, "job"), "running") ? "running" : "forming");
    assert_int_equal(r.n_claims, spare ? 1 : 2);
    if (!spare) assert_int_equal(nodes_in(&r.claims[1]), 2);
    rig_close(&r);
  }
}

/* It was won for three nodes, one of which is gone before the round could be sealed. */
static void test_a_claim_holds_for_its_nodes(void **state) {
  struct rig r;
  struct node n[3];
  open_asking(&r, n, 3, 2);
  node_bye(&r, &n[2]);
  rig_answer_claim(&r, 0, CLAIM_WON, NULL);
  expect(&r, "forming");
  rig_live(&r, 31000); /* the last call */
  assert_int_equal(r.n_claims, 2);
  expect_name(&r, 1, &n[0], 2);
  assert_int_equal(nodes_in(&r.claims[1]), 2);
  rig_answer_claim(&r, 1, CLAIM_WON, NULL);
  assert_int_equal(n[0].round, 2);
  rig_close(&r);
}

/* The job ended while its claim was out. */
static void test_an_answer_after_the_end(void **state) {
  for (int answer = 0; answer < 3; answer++) {
    struct rig r;
    struct node n[2];
    struct buf text = BUF_INIT;
    open_asking(&r, n, 2, 2);
    rig_ask(&r, &(struct control){.verb = "stop", .job = "job", .rank = -1}, 0, &text);
    expect(&r, "ending");
    char *other = claim_of_other(n[1].agent);
    rig_answer_claim(&r, 0, (enum claim_answer)answer, answer == CLAIM_TAKEN ? other : "no");
    expect(&r, "ending");
    assert_int_equal(r.n_claims, 1);
    free(other);
    buf_finish(&text);
    rig_close(&r);
  }
}

/* Any byte may be in a name. */
static void test_names_are_escaped(void **state) {
  struct rig r;
  struct node n[1];
  rig_open_successors(&r, 1, 1);
  r.settings.claims = true;
  r.job = "../a b/%\xc3\xa4";
  rig_joined(&r, n, 1);
  nodes_heartbeat(&r, n, 1);
  assert_int_equal(r.n_claims, 1);
  assert_int_equal(strncmp(r.claims[0].name, "1000/%2E.%2Fa%20b%2F%25%C3%A4/", 30), 0);
  rig_close(&r);
}

/* The claims go with the job, but only if this daemon decides that it has ended. */
static void test_removed_at_the_end(void **state) {
  for (int charged = 0; charged < 2; charged++) {
    struct rig r;
    struct node n[3];
    struct buf text = BUF_INIT;
    open_running(&r, n, 3, 3);
    rig_live(&r, 1250);
    char prefix[CLAIM_NAME_MAX + 1];
    snprintf(prefix, sizeof prefix, "1000/job/%s/", n[0].incarnation);
    if (!charged) {
      node_leave_silently(&n[2]);
      rig_live(&r, LEASE + 1000);
      nodes_stopped(&r, n, 2);
      expect(&r, "forming");
      rig_ask(&r, &(struct control){.verb = "stop", .job = "job", .rank = -1}, 0, &text);
    } else {
      nodes_finished(&r, n, 3);
    }
    expect(&r, "ending");
    assert_string_equal(r.unclaimed, charged ? prefix : "");
    buf_finish(&text);
    rig_close(&r);
  }
}

/* Another daemon has ended the job. */
static void test_the_job_has_ended_elsewhere(void **state) {
  struct rig r;
  struct node n[2];
  open_asking(&r, n, 2, 2);
  rig_answer_claim(&r, 0, CLAIM_TAKEN, CLAIM_ENDED);
  for (int i = 0; i < 2; i++) {
    const struct msg *m = rig_last(&r, n[i].conn, MSG_REFUSED);
    assert_int_equal(m->refused.code, EXIT_CODE_DAEMON_LOST);
  }
  expect(&r, "forming");
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_won),
      cmocka_unit_test(test_round_after_round),
      cmocka_unit_test(test_failed),
      cmocka_unit_test(test_late),
      cmocka_unit_test(test_taken_by_itself),
      cmocka_unit_test(test_contents_of_two_lives_differ),
      cmocka_unit_test(test_taken_by_another),
      cmocka_unit_test(test_taken_with_one_of_ours),
      cmocka_unit_test(test_its_promise_is_waited_for),
      cmocka_unit_test(test_one_node_goes_on),
      cmocka_unit_test(test_a_claim_holds_for_its_nodes),
      cmocka_unit_test(test_an_answer_after_the_end),
      cmocka_unit_test(test_names_are_escaped),
      cmocka_unit_test(test_removed_at_the_end),
      cmocka_unit_test(test_the_job_has_ended_elsewhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
