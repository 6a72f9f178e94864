/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to etcd, and answers as etcd 3.4 gives them. */

#include "daemon/claim/etcd_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

#define HEADER                                                                                                         \
  "\"header\":{\"cluster_id\":\"14841639068965178418\",\"member_id\":\"1\",\"revision\":\"4\",\"raft_term\":\"2\"}"

/* k/, k/1, k/end and so on, as keys of etcd in base64. */
#define KEY(name) "\"key\":\"" name "\""
#define NAME      "cmR6di9jbGFpbXMvMC9qLzE="     /* rdzv/claims/0/j/1 */
#define RUN       "cmR6di9jbGFpbXMvMC9ydW4vag==" /* rdzv/claims/0/run/j */
#define RUNS      "cmR6di9jbGFpbXMvMC9ydW4v"     /* rdzv/claims/0/run/ */
#define RUNS_END  "cmR6di9jbGFpbXMvMC9ydW4w"     /* rdzv/claims/0/run0 */
#define END       "cmR6di9jbGFpbXMvMC9qL2VuZA==" /* rdzv/claims/0/j/end */

UNIT_TEST(test_requests) {
  struct buf b = BUF_INIT;
  etcd_put_create(&b, "0/j/1", "x");
  assert_string_equal(buf_text(&b),
                      "{\"compare\":[{" KEY(
                          NAME) ",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"},"
                                "{" KEY(END) ",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"}],"
                                             "\"success\":[{\"request_put\":{" KEY(
                                                 NAME) ",\"value\":\"eA==\"}}],"
                                                       "\"failure\":[{\"request_range\":{" KEY(
                                                           NAME) "}},{\"request_range\":{" KEY(END) "}}]}");
  buf_clear(&b);
  etcd_put_end(&b, "0/j/", CLAIM_ENDED); /* without "end\0" .. "0/j0" and "0/j/" .. "end" */
  assert_string_equal(
      buf_text(&b),
      "{\"success\":[{\"request_put\":{" KEY(
          END) ",\"value\":\"ZW5kZWQ=\"}},"
               "{\"request_delete_range\":{" KEY(
                   "cmR6di9jbGFpbXMvMC9qLw==") ",\"range_end\":\"" END "\"}},"
                                               "{\"request_delete_range\":{" KEY(
                                                   "cmR6di9jbGFpbXMvMC9qL2VuZAA=") ",\"range_end\":\"cmR6di9jbGFpbXMvMC9qMA==\"}},"
                                                                                   "{\"request_delete_range\":{" KEY(
                                                                                       RUN) ",\"range_end\":\"cmR6di9jbGFpbXMvMC9ydW4vagA=\"}}]}");
  buf_clear(&b);
  etcd_put_run(&b, "0/j/", "x"); /* no key from "0/run/" to "0/run0" */
  assert_string_equal(buf_text(&b),
                      "{\"compare\":[{" KEY(
                          RUNS) ",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\","
                                "\"range_end\":\"" RUNS_END "\"},"
                                "{" KEY(END) ",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"}],"
                                             "\"success\":[{\"request_put\":{" KEY(
                                                 RUN) ",\"value\":\"eA==\"}}],"
                                                      "\"failure\":[{\"request_range\":{" KEY(
                                                          RUNS) ",\"range_end\":\"" RUNS_END "\"}},"
                                                                "{\"request_range\":{" KEY(END) "}}]}");
  buf_finish(&b);
}

static void check_answer(const char *body, enum claim_answer wanted, const char *text) {
  enum claim_answer a = CLAIM_FAILED;
  struct buf there = BUF_INIT;
  struct err e = ERR_INIT;
  if (etcd_read_create(200, body, strlen(body), "x", &a, &there, &e)) fail_msg("%s", e.text);
  assert_int_equal(a, wanted);
  assert_string_equal(buf_text(&there), text);
  buf_finish(&there);
}

#define IS_THERE(value)                                                                                                \
  "{" HEADER ",\"responses\":[{\"response_range\":{" HEADER                                                            \
  ",\"kvs\":[{\"key\":\"eA==\",\"create_revision\":\"3\"" value "}],\"count\":\"1\"}},{\"response_range\":{" HEADER    \
  "}}]}"

UNIT_TEST(test_answers) {
  check_answer("{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{" HEADER "}}]}", CLAIM_WON, "");
  check_answer(IS_THERE(",\"value\":\"eA==\""), CLAIM_WON, ""); /* ours, by an answer that was lost */
  check_answer(IS_THERE(",\"value\":\"eQ==\""), CLAIM_TAKEN, "y");
  check_answer(IS_THERE(""), CLAIM_TAKEN, "");
  check_answer("{" HEADER ",\"responses\":[{\"response_range\":{" HEADER "}},{\"response_range\":{" HEADER
               ",\"kvs\":[{\"key\":\"eA==\",\"value\":\"ZW5kZWQ=\"}],\"count\":\"1\"}}]}",
               CLAIM_TAKEN, CLAIM_ENDED);
  check_answer("{" HEADER ",\"responses\":[{\"response_range\":{\"kvs\":[{\"value\":\"eA==\"}]}},"
               "{\"response_range\":{\"kvs\":[{\"value\":\"ZW5kZWQ=\"}]}}]}",
               CLAIM_TAKEN, CLAIM_ENDED); /* ours, but the job has ended since */
}

static void check_failure(long status, const char *body, const char *why) {
  enum claim_answer a = CLAIM_FAILED;
  struct buf there = BUF_INIT;
  struct err e = ERR_INIT;
  assert_true(etcd_read_create(status, body, strlen(body), "x", &a, &there, &e) < 0);
  if (!strstr(e.text, why)) fail_msg("'%s' does not say '%s'", e.text, why);
  assert_true(etcd_read_end(status, body, strlen(body), &e) < 0);
  buf_finish(&there);
}

UNIT_TEST(test_failures) {
  char *large = malloc(ETCD_ANSWER_MAX + 2);
  memset(large, ' ', ETCD_ANSWER_MAX + 1);
  memcpy(large, "{" HEADER "}", strlen("{" HEADER "}"));
  large[ETCD_ANSWER_MAX + 1] = '\0';
  check_failure(503, "{\"error\":\"etcdserver: no leader\",\"message\":\"etcdserver: no leader\",\"code\":14}",
                "it answers HTTP 503: etcdserver: no leader");
  check_failure(200, "{\"error\":\"etcdserver: request timed out\",\"code\":14}", "etcdserver: request timed out");
  check_failure(404, "404 page not found\n", "it answers HTTP 404: 404 page not found");
  check_failure(502, "", "it answers HTTP 502: nothing");
  check_failure(200, "<html>\x1b[2J", "not from etcd's v3 API: <html>\\x1b[2J");
  check_failure(200, "{}", "neither success nor a value");
  check_failure(200, "{" HEADER "}", "neither success nor a value");
  check_failure(200, IS_THERE(",\"value\":\"?\""), "neither success nor a value");
  check_failure(200, IS_THERE(",\"value\":7"), "neither success nor a value");
  check_failure(200, large, "not from etcd's v3 API");
  free(large);
}

UNIT_TEST(test_end) {
  static const char done[] = "{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{}}]}";
  assert_int_equal(etcd_read_end(200, done, strlen(done), NULL), 0);
}
