/* SPDX-License-Identifier: Apache-2.0 */
/* agent/hang/ras.c: conversations and answers. */

#include "agent/hang/ras.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static struct err e;
static struct ras_finding f;

/* The conversation. ------------------------------------------------------------------------------------------------ */

static void hears(struct ras_talk *t, const char *text, const char *asks) {
  struct buf out = BUF_INIT;
  for (const char *at = text; *at; at++) assert_int_equal(ras_feed(t, at, 1, &out, &e), 0); /* byte by byte */
  assert_string_equal(buf_text(&out), asks);
  buf_finish(&out);
}

UNIT_TEST(talk_json) {
  struct buf out = BUF_INIT;
  struct ras_talk t;
  ras_begin(&t, &out);
  assert_string_equal(buf_text(&out), "CLIENT PROTOCOL 2\n");
  hears(&t, "SERVER PROTOCOL 2\n", "TIMEOUT 1\n");
  hears(&t, "OK\n", "SET FORMAT json\n");
  hears(&t, "OK\n", "STATUS\n");
  hears(&t, "{\n}", "");
  assert_string_equal(buf_text(&t.in), "{\n}");
  ras_finish(&t);
  buf_finish(&out);
}

UNIT_TEST(talk_refused) {
  struct buf out = BUF_INIT;
  struct ras_talk t;
  ras_begin(&t, &out);
  assert_int_equal(ras_feed(&t, "HTTP/1.1 400 \x1b[2J\n", 18, &out, &e), -EPROTO);
  assert_non_null(strstr(e.text, "\\x1b[2J"));
  ras_finish(&t);
  ras_begin(&t, &out);
  static const char old[] = "server protocol 1\r\nOK\nERROR: Unknown command SET FORMAT json\n";
  assert_int_equal(ras_feed(&t, old, sizeof old - 1, &out, &e), -EPROTO);
  assert_string_equal(e.text, "it has no JSON, so its NCCL is older than 2.28.7");
  ras_finish(&t);
  char line[2 * RAS_LINE_MAX];
  memset(line, 'x', sizeof line);
  ras_begin(&t, &out);
  assert_int_equal(ras_feed(&t, line, sizeof line, &out, &e), -EPROTO);
  ras_finish(&t);
  char *much = calloc(1, RAS_JSON_MAX);
  ras_begin(&t, &out);
  assert_int_equal(ras_feed(&t, "SERVER PROTOCOL 2\nOK\nOK\n{", 25, &out, &e), 0);
  assert_int_equal(ras_feed(&t, much, RAS_JSON_MAX, &out, &e), -EPROTO);
  ras_finish(&t);
  free(much);
  buf_finish(&out);
}

/* Answers. --------------------------------------------------------------------------------------------------------- */

static void says(int64_t world_size, const char *expected) {
  struct buf out = BUF_INIT;
  ras_sentence(&f, world_size, &out);
  assert_string_equal(buf_text(&out), expected);
  buf_finish(&out);
}

static void json(const char *communicators) {
  struct buf b = BUF_INIT;
  buf_printf(&b, "{\"nccl_version\": \"2.29.1\", \"communicators\": [%s], \"ras\": {\"timeouts_count\": 0}}\n",
             communicators);
  assert_int_equal(ras_parse_json(b.data, b.len, &f, &e), 0);
  buf_finish(&b);
}

#define RANK(n, process, gathers, reduces, error)                                                                      \
  "{\"rank\": " #n ", \"host\": \"10.0.0.1\", \"pid\": " #process                                                      \
  ", \"status\": {\"init_state\": 0, \"async_error\": " #error "}, \"collective_counts\": {\"AllGather\": " #gathers   \
  ", \"AllReduce\": " #reduces "}}"
#define MISSING(n, process, silent, dead)                                                                              \
  "{\"rank\": " #n ", \"host\": \"10.0.0.2\", \"pid\": " #process ", \"status\": {\"unresponsive\": " #silent          \
  ", \"considered_dead\": " #dead "}}"

UNIT_TEST(json_behind) {
  json("{\"size\": 4, \"ranks\": [" RANK(0, 70, 5, 414, 0) "," RANK(1, 71, 5, 413, 0) "," RANK(
      2, 72, 5, 414, 0) "," RANK(3, 73, 5, 411, 0) "], \"missing_ranks\": []}");
  says(4, "rank 3 has not entered AllReduce #412, 3 others have");
  says(8,
       "rank 3 (process 73 on 10.0.0.1) has not entered AllReduce #412 of a communicator with 4 ranks, 3 others have");
  json("{\"size\": 2, \"ranks\": [" RANK(0, 70, 5, 9, 0) "," RANK(1, 71, 5, 9, 0) "], \"missing_ranks\": []}");
  says(2, "");
}

UNIT_TEST(json_silent) {
  json("{\"size\": 3, \"ranks\": [" RANK(0, 70, 5, 9, 0) "], \"missing_ranks\": [" MISSING(
      1, 71, true, false) "," MISSING(2, 72, false, false) "]}");
  says(3, "rank 1 does not answer NCCL"); /* rank 2 answers, and has left the communicator */
  json("{\"size\": 3, \"ranks\": [" RANK(0, 70, 5, 9, 1) "], \"missing_ranks\": [" MISSING(
      1, 71, true, true) "," MISSING(2, 72, true, true) "]},"
                                                        "{\"size\": 2, \"ranks\": [" RANK(
                                                            0, 70, 5, 9,
                                                            7) "], \"missing_ranks\": [" MISSING(0, 71, true,
                                                                                                 true) "]}");
  says(3, "rank 1 and rank 2 are dead for NCCL; NCCL reports an error on 1 rank");
}

UNIT_TEST(json_refused) {
  static const char *const bad[] = {"", "{}", "[]", "{\"communicators\": {}}", "{\"communicators\": [", "Job summary"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(ras_parse_json(bad[i], strlen(bad[i]), &f, &e), -EPROTO);
  json(
      "1,null,{},{\"size\":-1},{\"size\":2,\"ranks\":3},{\"size\":2,\"ranks\":[7,{}],\"missing_ranks\":[8,{\"status\":1}]},"
      "{\"size\":2,\"ranks\":[{\"collective_counts\":{\"A\":-5}},{\"collective_counts\":{\"A\":\"x\"}}]}");
  says(2, "");
}
