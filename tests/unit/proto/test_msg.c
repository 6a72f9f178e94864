/* SPDX-License-Identifier: Apache-2.0 */
/* msg: round trips of random messages, damage of every kind, defaults, what the encoder mends, copies of verdicts.
 * That a field which breaks its rule is refused by name is test_msg_refused.c. */

#include "proto/msg.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/rig/random_msg.h"
#include "tests/rig/unit.h"

static enum msg_type type_of(int t) {
  return (enum msg_type)t;
}

static struct frame parse(const struct buf *b) {
  struct frame f = {0};
  size_t size;
  assert_int_equal(frame_parse(b->data, b->len, FRAME_MAX_TO_AGENT, &f, &size, NULL), 1);
  assert_int_equal(size, b->len);
  return f;
}

static void decode(const struct buf *b, enum msg_direction direction, struct msg *m) {
  struct frame f = parse(b);
  struct err e = ERR_INIT;
  if (msg_decode(&f, direction, m, &e) != 0) fail_msg("%s", e.text);
}

UNIT_TEST(test_round_trip) {
  for (int t = 1; t < MSG_COUNT; t++)
    for (uint64_t seed = 0; seed < 150; seed++) {
      struct random_msg r;
      struct msg back;
      SCOPED(buf_finish) struct buf b = BUF_INIT, again = BUF_INIT;
      random_msg_init(&r, type_of(t), seed);
      msg_encode(&b, &r.m);
      decode(&b, msg_direction(type_of(t)), &back);
      if (!msg_equal(&r.m, &back)) fail_msg("%s of seed %d changed", msg_name(type_of(t)), (int)seed);
      msg_encode(&again, &back);
      assert_int_equal(again.len, b.len);
      assert_memory_equal(again.data, b.data, b.len);
      msg_finish(&back);
      random_msg_finish(&r);
    }
}

/* Decodes exactly len bytes of JSON, in memory of their own; frees what came of it. */
static int try_json(enum msg_type t, const char *json, size_t len) {
  char *exact = xmemdup(json, len);
  struct frame f = {.type = (uint16_t)t, .json = exact, .json_len = len};
  struct msg m;
  struct err e = ERR_INIT;
  int rc = msg_decode(&f, msg_direction(t), &m, &e);
  if (rc == 0) msg_finish(&m);
  if (rc != 0 && (rc != -EPROTO || !e.text[0])) fail_msg("refused with %d and \"%s\"", rc, e.text);
  free(exact);
  return rc;
}

UNIT_TEST(test_every_truncation_is_refused) {
  for (int t = 1; t < MSG_COUNT; t++)
    for (uint64_t seed = 0; seed < 4; seed++) {
      struct random_msg r;
      SCOPED(buf_finish) struct buf b = BUF_INIT;
      random_msg_init(&r, type_of(t), seed);
      if (t == MSG_HELLO && r.m.hello.n_reports > 3) r.m.hello.n_reports = 3; /* quadratic below */
      msg_encode(&b, &r.m);
      struct frame f = parse(&b), part;
      size_t size, step = f.json_len > 1000 ? f.json_len / 500 : 1;
      for (size_t n = 1; n < f.json_len; n += step)
        if (try_json(type_of(t), f.json, n) == 0) fail_msg("%s cut to %zu bytes", msg_name(type_of(t)), n);
      for (size_t n = 0; n < b.len; n += step)
        assert_int_equal(frame_parse(b.data, n, FRAME_MAX_TO_AGENT, &part, &size, NULL), 0);
      random_msg_finish(&r);
    }
}

/* A frame with one bit flipped is refused, waits for more, or decodes to something within bounds (which encoding
 * asserts). */
static void flip(struct buf *b, size_t at, int bit, enum msg_direction direction) {
  b->data[at] ^= (char)(1 << bit);
  struct frame f;
  struct msg m;
  struct err e = ERR_INIT;
  size_t size;
  int rc = frame_parse(b->data, b->len, FRAME_MAX_TO_DAEMON, &f, &size, &e);
  if (rc == 1) rc = msg_decode(&f, direction, &m, &e);
  if (rc < 0) assert_true(e.text[0] != '\0');
  if (rc == 0 && size <= b->len) {
    SCOPED(buf_finish) struct buf again = BUF_INIT;
    msg_encode(&again, &m);
    msg_finish(&m);
  }
  b->data[at] ^= (char)(1 << bit);
}

UNIT_TEST(test_every_flipped_bit_is_survived) {
  for (int t = 1; t < MSG_COUNT; t++)
    for (uint64_t seed = 0; seed < 3; seed++) {
      struct random_msg r;
      SCOPED(buf_finish) struct buf b = BUF_INIT;
      random_msg_init(&r, type_of(t), seed);
      if (t == MSG_HELLO && r.m.hello.n_reports > 3) r.m.hello.n_reports = 3;
      msg_encode(&b, &r.m);
      size_t step = b.len > 2000 ? b.len / 300 : 1;
      for (size_t at = 0; at < b.len; at += at < FRAME_HEADER_SIZE ? 1 : step)
        for (int bit = 0; bit<8; bit += b.len> 2000 && at >= FRAME_HEADER_SIZE ? 3 : 1)
          flip(&b, at, bit, msg_direction(type_of(t)));
      random_msg_finish(&r);
    }
}

UNIT_TEST(test_flipped_lengths_are_refused) {
  struct msg m, back;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  msg_init(&m, MSG_REFUSED);
  m.refused.code = 72;
  m.refused.text = "no";
  msg_encode(&b, &m);
  struct frame f = parse(&b);
  for (size_t n = 0; n < f.json_len;
       n++) { /* every JSON length that is too short: less of it is no object, the rest is raw */
    le32_put(b.data + 12, (uint32_t)n);
    f = parse(&b);
    assert_int_equal(msg_decode(&f, TO_AGENT, &back, NULL), -EPROTO);
  }
}

UNIT_TEST(test_types_and_directions) {
  static const unsigned unknown[] = {MSG_NONE, MSG_COUNT, 0x7fff, 0xffff};
  struct msg m;
  struct err e = ERR_INIT;
  for (size_t i = 0; i < 4; i++) {
    struct frame f = {.type = (uint16_t)unknown[i]};
    assert_int_equal(msg_decode(&f, TO_AGENT, &m, &e), -EPROTO);
    assert_int_equal(msg_decode(&f, TO_DAEMON, &m, &e), -EPROTO);
    assert_string_equal(msg_name((enum msg_type)unknown[i]), "?");
  }
  assert_string_equal(e.text, "message type 65535 is unknown to this version");
  for (int t = 1; t < MSG_COUNT; t++) {
    struct frame f = {.type = (uint16_t)t};
    enum msg_direction wrong = msg_direction(type_of(t)) == TO_AGENT ? TO_DAEMON : TO_AGENT;
    assert_int_equal(msg_decode(&f, wrong, &m, &e), -EPROTO);
    assert_non_null(strstr(e.text, msg_name(type_of(t))));
    assert_non_null(strstr(e.text, wrong == TO_AGENT ? "is not for an agent" : "is not for a daemon"));
  }
  assert_string_equal(msg_name(MSG_HELLO), "HELLO");
  assert_string_equal(msg_name(MSG_CONTROL_REPLY), "CONTROL_REPLY");
}

/* Its other fields may mean something else: it is refused by these three. */
UNIT_TEST(test_a_release_that_does_not_fit) {
  static const char known[] =
      "{\"version\":3,\"oldest\":2,\"release\":\"0.4.0\",\"features\":[1],\"agent\":{},\"settings\":7}";
  static const char *const bad[] = {"{\"version\":0}", "{\"version\":65536}", "{\"version\":\"2\"}",
                                    "{\"version\":2.5}"};
  static const enum msg_type greetings[] = {MSG_GREETING, MSG_HELLO};
  for (int i = 0; i < 2; i++) {
    enum msg_direction to = msg_direction(greetings[i]);
    struct frame f = {.type = (uint16_t)greetings[i], .json = known, .json_len = sizeof(known) - 1};
    struct msg m;
    assert_int_equal(msg_decode(&f, to, &m, NULL), 0);
    struct release r = msg_release(&m);
    assert_int_equal(r.version, 3);
    assert_int_equal(r.oldest, 2);
    assert_string_equal(r.name, "0.4.0");
    assert_false(release_fits(r));
    if (to == TO_DAEMON) assert_string_equal(m.hello.agent, "");
    msg_finish(&m);
    for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
      f.json = bad[k];
      f.json_len = strlen(bad[k]);
      assert_int_equal(msg_decode(&f, to, &m, NULL), -EPROTO);
    }
  }
}

UNIT_TEST(test_heartbeats_are_16_bytes) {
  struct msg m, back;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  msg_init(&m, MSG_HEARTBEAT_ACK);
  m.id = 77;
  m.flags = FRAME_FLAG_FENCE;
  msg_encode(&b, &m);
  assert_int_equal(b.len, 16);
  decode(&b, TO_AGENT, &back);
  assert_int_equal(back.id, 77);
  assert_int_equal(back.flags, FRAME_FLAG_FENCE);
  assert_null(back.owned);
  msg_finish(&back);
}

UNIT_TEST(test_absent_is_what_init_says) {
  struct msg m, back;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  msg_init(&m, MSG_WAITING);
  assert_int_equal(m.waiting.min_nodes, 1); /* nearest to 0 in its bounds */
  msg_init(&m, MSG_HELLO);
  assert_int_equal(m.hello.want_rank, -1);
  assert_int_equal(m.hello.order_key, -1);
  assert_int_equal(m.hello.settings.lease_ms, LEASE_MIN_MS);
  msg_init(&m, MSG_PROGRESS);
  assert_true(isnan(m.progress.loss));
  msg_init(&m, MSG_STALE);
  msg_encode(&b, &m);
  assert_int_equal(b.len, FRAME_HEADER_SIZE); /* nothing but zeros: nothing sent */
  decode(&b, TO_AGENT, &back);
  assert_true(msg_equal(&m, &back));
  msg_finish(&back);
  struct frame f = {.type = MSG_PROGRESS,
                    .json = "{\"incarnation\":\"a\",\"round\":1,\"loss\":null,\"samples_per_second\":3}"};
  f.json_len = strlen(f.json);
  assert_int_equal(msg_decode(&f, TO_DAEMON, &back, NULL), 0);
  assert_true(isnan(back.progress.loss));
  assert_true(back.progress.samples_per_second == 3.0);
  msg_finish(&back);
}

UNIT_TEST(test_text_is_mended_on_its_way_out) {
  char text[TEXT_MAX + 10];
  memset(text, 'x', sizeof(text));
  memcpy(text + TEXT_MAX - 1, "\xe2\x82\xac", 3); /* one byte of it would fit */
  text[sizeof(text) - 1] = '\0';
  struct msg m, back;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  msg_init(&m, MSG_BYE);
  m.bye.text = text;
  msg_encode(&b, &m);
  decode(&b, TO_DAEMON, &back);
  assert_int_equal(strlen(back.bye.text), TEXT_MAX - 1);
  msg_finish(&back);
  buf_clear(&b);
  m.bye.text = "a\xff\xc3z\xed\xa0\x80";
  msg_encode(&b, &m);
  decode(&b, TO_DAEMON, &back);
  assert_string_equal(back.bye.text, "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  msg_finish(&back);
  buf_clear(&b);
  memset(text, '\xff', sizeof(text) - 1); /* grows by being mended: the limit holds for what is sent */
  m.bye.text = text;
  msg_encode(&b, &m);
  decode(&b, TO_DAEMON, &back);
  assert_int_equal(strlen(back.bye.text), TEXT_MAX / 3 * 3);
  msg_finish(&back);
}

UNIT_TEST(test_infinite_numbers_are_left_out) {
  struct msg m, back;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  msg_init(&m, MSG_PROGRESS);
  m.progress.incarnation = "1-a";
  m.progress.round = 1;
  m.progress.loss = (double)INFINITY;
  m.progress.samples_per_second = 0.1;
  msg_encode(&b, &m);
  decode(&b, TO_DAEMON, &back);
  assert_true(isnan(back.progress.loss));
  assert_true(back.progress.samples_per_second == 0.1);
  msg_finish(&back);
}

UNIT_TEST(test_msg_bytes) {
  struct random_msg r;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  random_msg_init(&r, MSG_START, 5);
  msg_encode(&b, &r.m);
  struct bytes *bytes = msg_bytes(&r.m);
  assert_int_equal(bytes->len, b.len);
  assert_memory_equal(bytes->data, b.data, b.len);
  bytes_unref(bytes);
  random_msg_finish(&r);
}

UNIT_TEST(test_encode_appends) {
  struct msg m;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  msg_init(&m, MSG_BYE);
  m.bye.text = "one";
  msg_encode(&b, &m);
  size_t first = b.len;
  m.bye.text = "second";
  msg_encode(&b, &m);
  struct frame f;
  size_t size;
  assert_int_equal(frame_parse(b.data, b.len, 1000, &f, &size, NULL), 1);
  assert_int_equal(size, first);
  assert_int_equal(frame_parse(b.data + first, b.len - first, 1000, &f, &size, NULL), 1);
  assert_memory_equal(f.json, "{\"text\":\"second\"}", f.json_len);
}

UNIT_TEST(test_verdict_copies) {
  for (uint64_t seed = 0; seed < 50; seed++) {
    struct random_msg r;
    struct verdict copy, plain;
    random_msg_init(&r, MSG_STOP, seed);
    verdict_copy(&copy, &r.m.stop.verdict);
    assert_true(object_equal(&object_verdict, &copy, &r.m.stop.verdict));
    if (copy.text[0]) assert_ptr_not_equal(copy.text, r.m.stop.verdict.text);
    struct verdict with = copy; /* it borrows all but one */
    with.host = "another";
    verdict_set(&copy, &with);
    verdict_set(&copy, &copy);
    assert_string_equal(copy.host, "another");
    verdict_set(&copy, &r.m.stop.verdict);
    assert_true(object_equal(&object_verdict, &copy, &r.m.stop.verdict));
    random_msg_finish(&r); /* the copy stands on its own */
    assert_true(strlen(copy.host) <= HOST_MAX && strlen(copy.text) <= TEXT_MAX);
    verdict_free(&copy);
    verdict_init(&plain);
    assert_true(object_equal(&object_verdict, &copy, &plain));
    verdict_free(&copy); /* nothing left to free: fine */
  }
}

UNIT_TEST(test_verdict_as_json) {
  for (uint64_t seed = 0; seed < 50; seed++) {
    struct random_msg r;
    struct verdict back;
    random_msg_init(&r, MSG_STOP, seed);
    json_t *json = verdict_to_json(&r.m.stop.verdict);
    assert_int_equal(json_object_size(json), 24); /* all of them, for readers that are not us */
    assert_int_equal(verdict_from_json(json, &back, NULL), 0);
    assert_true(object_equal(&object_verdict, &back, &r.m.stop.verdict));
    struct err e = ERR_INIT;
    json_object_set_new(json, "signal", json_integer(128));
    assert_int_equal(verdict_from_json(json, &back, &e), -EPROTO);
    assert_string_equal(e.text, "verdict.signal is 128, which is not within 0 to 127");
    json_decref(json);
    random_msg_finish(&r);
  }
}

UNIT_TEST(test_words) {
  assert_string_equal(phase_name(PHASE_STOPPED), "stopped");
  assert_string_equal(report_kind_name(REPORT_LEAVING), "leaving");
  assert_string_equal(cause_name(CAUSE_JOIN_TIMEOUT), "join-timeout");
  assert_string_equal(outcome_name(OUTCOME_STOPPED), "stopped");
  assert_string_equal(job_state_name(JOB_ENDED), "ended");
  assert_string_equal(cause_name(CAUSE_COUNT), "?");
}
