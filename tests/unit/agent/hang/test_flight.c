/* SPDX-License-Identifier: Apache-2.0 */
/* agent/hang/flight.c: entries as PyTorch 2.13 writes them; tests/interop/test_evidence.py has the real ones. */

#include "agent/hang/flight.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static struct err e;

#define ENTRY(group, op, seq, state, retired, p2p)                                                                     \
  "{\"collective_seq_id\":" #seq ",\"is_p2p\":" #p2p ",\"process_group\":" group ",\"profiling_name\":\"" op           \
  "\",\"retired\":" #retired ",\"state\":\"" state "\"}"
#define ALL  "[\"0\",\"default_pg\"]"
#define PAIR "[\"1\",\"undefined\"]"

static void take(struct flight *f, const char *entries) {
  char json[2000];
  int n = snprintf(json, sizeof json, "{\"entries\":[%s],\"pg_status\":{\"0\":{}},\"version\":\"2.10\"}", entries);
  assert_int_equal(flight_parse(f, json, (size_t)n, &e), 0);
}

UNIT_TEST(gloo) {
  struct flight f = {.n = 0};
  take(&f, ENTRY(ALL, "gloo:all_reduce", 3, "scheduled", true,
                 false) "," ENTRY(PAIR, "gloo:barrier", 4, "scheduled", true,
                                  false) "," ENTRY(ALL, "gloo:all_reduce", 4, "scheduled", false, false));
  assert_int_equal(f.n, 2);
  assert_string_equal(f.v[0].name, "gloo 0 default_pg");
  assert_int_equal(f.v[0].entered, 4);
  assert_int_equal(f.v[0].pending, 4);
  assert_string_equal(f.v[0].op, "all_reduce");
  assert_string_equal(f.v[1].name, "gloo 1");
  assert_int_equal(f.v[1].pending, 0);
  assert_false(flight_is_idle(&f));
}

/* A program runs ahead of its GPU; sends do not count. */
UNIT_TEST(nccl) {
  struct flight f = {.n = 0};
  take(&f, ENTRY(ALL, "nccl:all_reduce", 7, "completed", false,
                 false) "," ENTRY(ALL, "nccl:reduce_scatter", 8, "started", false,
                                  false) "," ENTRY(ALL, "nccl:all_gather", 9, "scheduled", false,
                                                   false) "," ENTRY(ALL, "nccl:send 0->1", 99, "started", false, true));
  assert_int_equal(f.n, 1);
  assert_int_equal(f.v[0].entered, 9);
  assert_int_equal(f.v[0].pending, 8);
  assert_string_equal(f.v[0].op, "reduce_scatter");
}

UNIT_TEST(empty_and_idle) {
  struct flight f = {.n = 0};
  assert_false(flight_is_idle(&f));
  assert_int_equal(flight_parse(&f, "{}", 2, &e), 0);
  take(&f, "");
  assert_false(flight_is_idle(&f)); /* it has never been in one: nothing is known */
  take(&f, ENTRY(ALL, "gloo:all_reduce", 3, "scheduled", true, false));
  assert_true(flight_is_idle(&f));
}

UNIT_TEST(a_node) {
  static struct flights all;
  struct flight waits = {.n = 0}, idle = {.n = 0};
  char ranks[RANKS_TEXT_MAX + 1];
  struct buf out = BUF_INIT;
  take(&waits, ENTRY(ALL, "gloo:all_reduce", 4, "scheduled", false, false) "," ENTRY(PAIR, "gloo:barrier", 4,
                                                                                     "scheduled", true, false));
  take(&idle, ENTRY(ALL, "gloo:all_reduce", 3, "scheduled", true, false) "," ENTRY(PAIR, "gloo:barrier", 4, "scheduled",
                                                                                   true, false));
  all.n = 0;
  flights_add(&all, 8, &waits);
  flights_add(&all, 9, &idle);
  flights_add(&all, 10, &waits);
  assert_int_equal(all.n, 2);
  assert_int_equal(all.v[0].waiting, 2);
  assert_string_equal(all.v[0].ranks, "9");
  flights_behind(&all, ranks);
  assert_string_equal(ranks, "9");
  collectives_sentence(all.v, all.n, "", &out);
  assert_string_equal(buf_text(&out), "rank 9 has not entered all_reduce #4, 2 others wait in it");
  buf_finish(&out);
}

/* A rank that waits in one group is a victim in the others. */
UNIT_TEST(a_rank_that_waits_elsewhere) {
  static struct flights all;
  struct flight r0 = {.n = 0}, r1 = {.n = 0}, r2 = {.n = 0};
  char ranks[RANKS_TEXT_MAX + 1];
  take(&r0, ENTRY(ALL, "gloo:all_reduce", 4, "scheduled", false, false));
  take(&r1, ENTRY(ALL, "gloo:all_reduce", 3, "scheduled", true, false) "," ENTRY(PAIR, "gloo:barrier", 5, "scheduled",
                                                                                 false, false));
  take(&r2, ENTRY(PAIR, "gloo:barrier", 4, "scheduled", true, false));
  all.n = 0;
  flights_add(&all, 0, &r0);
  flights_add(&all, 1, &r1);
  flights_add(&all, 2, &r2);
  flights_behind(&all, ranks);
  assert_string_equal(ranks, "2");
}

UNIT_TEST(limits) {
  struct flight f = {.n = 0};
  static struct flights all;
  all.n = 0;
  for (int i = 0; i < 3 * COLLECTIVES_MAX; i++) {
    char entry[200];
    snprintf(entry, sizeof entry, ENTRY("[\"g%d\",\"\"]", "gloo:x", 1, "scheduled", false, false), i);
    if (i % 64 == 0) f.n = 0;
    take(&f, entry);
    flights_add(&all, i, &f);
  }
  assert_int_equal(all.n, COLLECTIVES_MAX);
  f.n = 0;
  char name[600];
  memset(name, 'n', sizeof name);
  char *entry = NULL;
  assert_true(asprintf(&entry, ENTRY("[\"%.500s\",\"%.500s\"]", "%.300s:%.300s", 1, "scheduled", false, false), name,
                       name, name, name) > 0);
  take(&f, entry);
  assert_int_equal(f.v[0].pending, 1);
  assert_true(strlen(f.v[0].name) <= GROUP_NAME_MAX);
  free(entry);
}

UNIT_TEST(refused) {
  struct flight f = {.n = 0};
  static const char *const bad[] = {"", "[]", "{", "{\"entries\":[}", "x"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(flight_parse(&f, bad[i], strlen(bad[i]), &e), -EPROTO);
  static const char *const odd[] = {
      "{\"entries\":3}", "{\"entries\":[1,null,[],{}]}",
      "{\"entries\":[{\"collective_seq_id\":\"7\"},{\"collective_seq_id\":-7,\"profiling_name\":3}]}",
      "{\"entries\":[{\"collective_seq_id\":0,\"process_group\":{}}]}"};
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
    assert_int_equal(flight_parse(&f, odd[i], strlen(odd[i]), &e), 0);
  assert_int_equal(f.n, 0);
}

/* HTTP. ------------------------------------------------------------------------------------------------------------ */

static int unwrap(const char *answer, const char *body) {
  struct slice got;
  int status = flight_unwrap(answer, strlen(answer), &got, &e);
  if (status >= 0) assert_int_equal(got.len, strlen(body));
  if (status >= 0) assert_memory_equal(got.data, body, got.len);
  return status;
}

UNIT_TEST(http) {
  assert_int_equal(unwrap("HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 2\r\n\r\n{}", "{}"), 200);
  assert_int_equal(unwrap("HTTP/1.1 404 Not Found\r\n\r\nHandler x not found", "Handler x not found"), 404);
  assert_int_equal(unwrap("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore", ""), 200);
  assert_int_equal(unwrap("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{}", ""), -EPROTO);
  assert_non_null(strstr(e.text, "cut after 2 of 7 bytes"));
  static const char *const bad[] = {"",
                                    "HTTP/1.1 200 OK\r\n",
                                    "SSH-2.0-OpenSSH\r\n\r\n",
                                    "HTTP/1.1 99 x\r\n\r\n",
                                    "HTTP/2 200\r\n\r\n",
                                    "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
                                    "\r\n\r\n"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(unwrap(bad[i], ""), -EPROTO);
}
