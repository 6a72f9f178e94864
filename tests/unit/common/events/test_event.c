/* SPDX-License-Identifier: Apache-2.0 */
/* event: the lists, the line, the filter. */

#include "common/events/event.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "tests/rig/unit.h"

static json_t *read_line(const struct event *e) {
  SCOPED(buf_finish) struct buf line = BUF_INIT;
  struct err err = ERR_INIT;
  event_line(e, &line);
  assert_true(event_line_is_sound(buf_text(&line), line.len));
  json_t *v = json_parse_object(line.data, line.len, &err);
  assert_non_null(v);
  return v;
}

static const struct {
  const char *when;
  uint64_t has;
} events[] = {
#define X(id, name, source, when, has) {when, EVENT_HAS_EVERY | (has)},
    EVENT_LIST(X)
#undef X
};

UNIT_TEST(test_lists) {
  static const char *const keys[] = {
#define X(id, key, kind, meaning) key,
      EVENT_FIELD_LIST(X)
#undef X
  };
  for (int i = 0; i < EVENT_NAME_COUNT; i++) {
    const char *name = event_name(i), *last = strrchr(name, '.');
    assert_true(strlen(name) <= EVENT_NAME_MAX && !strncmp(name, "rdzv.", 5) && last && last > name + 4);
    for (const char *c = name; *c; c++) assert_true(islower(*c) || *c == '.' || *c == '_');
    assert_int_equal(event_find(name), i);
    const char *when = events[i].when;
    assert_true(isupper(when[0]) && when[strlen(when) - 1] == '.');
  }
  assert_int_equal(event_find("rdzv.node"), -1);
  for (int i = 0; i < EVENT_FIELD_COUNT; i++)
    for (int k = 0; k < i; k++) assert_string_not_equal(keys[i], keys[k]);
}

UNIT_TEST(test_line) {
  struct event e;
  SCOPED(buf_finish) struct buf line = BUF_INIT;
  event_init(&e, EVENT_ROUND_FAILED, 1700000000123);
  event_text(&e, EVENT_RUN_ID, "j \"1\"");
  event_text(&e, EVENT_DEVICE, ""); /* unknown */
  event_text(&e, EVENT_SIGNAL, NULL);
  event_rank(&e, EVENT_GLOBAL_RANK, 3);
  event_rank(&e, EVENT_STEP, -1);
  event_int(&e, EVENT_ROUND, 2);
  event_bool(&e, EVENT_CHARGED, false);
  event_text(&e, EVENT_MESSAGE, "a\nb");
  event_line(&e, &line);
  assert_string_equal(
      buf_text(&line),
      "{\"name\":\"rdzv.round.failed\",\"source\":\"AGENT\",\"timestamp\":1700000000123,\"metadata\":{"
      "\"run_id\":\"j \\\"1\\\"\",\"round\":2,\"global_rank\":3,\"charged\":false,\"message\":\"a\\nb\"}}");
}

UNIT_TEST(test_numbers) {
  struct event e;
  event_init(&e, EVENT_JOB_PROGRESS, 1);
  event_int(&e, EVENT_STEP, INT64_MAX);
  event_real(&e, EVENT_LOSS, (double)NAN);
  event_real(&e, EVENT_SAMPLES_PER_SECOND, 12.5);
  json_t *v = read_line(&e), *m = json_object_get(v, "metadata");
  assert_int_equal(json_integer_value(json_object_get(m, "step")), INT64_MAX);
  assert_null(json_object_get(m, "loss"));
  assert_true(json_real_value(json_object_get(m, "samples_per_second")) == 12.5);
  json_decref(v);
}

/* Texts of a peer: too long, not UTF-8, characters that move the cursor. All of an event's texts at their longest fit. */
UNIT_TEST(test_hostile_texts) {
  char escapes[EVENT_TEXT_MAX + 100], wide[EVENT_TEXT_MAX + 100];
  memset(escapes, 0x1b, sizeof escapes);
  escapes[sizeof escapes - 1] = '\0';
  for (size_t i = 0; i + 2 < sizeof wide; i += 3) memcpy(wide + i, "\xe2\x82\xac", 3);
  wide[(sizeof wide - 1) / 3 * 3] = '\0';
  for (int n = 0; n < EVENT_NAME_COUNT; n++) {
    static const enum event_field texts[] = {EVENT_RUN_ID, EVENT_STATE, EVENT_HOSTNAME, EVENT_ROLE,      EVENT_DEVICE,
                                             EVENT_HOSTS,  EVENT_CAUSE, EVENT_SIGNAL,   EVENT_RAW_ERROR, EVENT_MESSAGE};
    struct event e;
    event_init(&e, n, UINT32_MAX);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
      if (events[n].has & (1ull << texts[i])) event_text(&e, texts[i], escapes);
    json_decref(read_line(&e));
  }
  struct event e;
  event_init(&e, EVENT_NODE_LOST, 0);
  event_text(&e, EVENT_HOSTNAME, "a\xff\xc3(b\xe2\x80\xae");
  event_text(&e, EVENT_MESSAGE, wide);
  json_t *v = read_line(&e), *m = json_object_get(v, "metadata");
  assert_string_equal(json_string_value(json_object_get(m, "hostname")), "a\xef\xbf\xbd\xef\xbf\xbd(b\xe2\x80\xae");
  size_t cut = strlen(json_string_value(json_object_get(m, "message")));
  assert_true(cut <= EVENT_TEXT_MAX && cut > EVENT_TEXT_MAX - 3 && cut % 3 == 0);
  json_decref(v);
}

UNIT_TEST(test_sound) {
  static const char *const bad[] = {"",
                                    "{",
                                    "[]",
                                    "{}\n",
                                    "{\"a\":1} {}",
                                    "{\"a\"}",
                                    "x{\"a\":1}",
                                    "{\"a\":\"\x1b\"}",
                                    "{\"a\":\"\xff\"}",
                                    "{\"a\":1,\"a\":2}"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (event_line_is_sound(bad[i], strlen(bad[i]))) fail_msg("%s", bad[i]);
  assert_true(event_line_is_sound("{\"name\":\"later\"}", 16));
  SCOPED(unit_free) char *long_one = malloc(EVENT_LINE_MAX + 2);
  assert_non_null(long_one);
  memset(long_one, ' ', EVENT_LINE_MAX + 1);
  long_one[0] = '{';
  long_one[EVENT_LINE_MAX] = long_one[EVENT_LINE_MAX - 1] = '}';
  assert_true(event_line_is_sound(long_one, EVENT_LINE_MAX));
  long_one[EVENT_LINE_MAX - 1] = ' ';
  assert_false(event_line_is_sound(long_one, EVENT_LINE_MAX + 1));
}

static size_t chosen(const struct event_filter *f) {
  size_t n = 0;
  for (int i = 0; i < EVENT_NAME_COUNT; i++) n += f->in[i];
  return n;
}

UNIT_TEST(test_filter) {
  struct event_filter f;
  struct err e = ERR_INIT;
  assert_int_equal(event_filter_read(&f, EVENT_FILTER_DEFAULT, &e), 0);
  assert_true(f.in[EVENT_ROUND_FAILED] && f.in[EVENT_JOB_ENDED] && !f.in[EVENT_JOB_PROGRESS]);
  assert_true(f.in[EVENT_NODE_LOST] && f.in[EVENT_DAEMON_LOST]); /* a last word may mean several */
  assert_int_equal(event_filter_read(&f, "all", &e), 0);
  assert_int_equal(chosen(&f), EVENT_NAME_COUNT);
  assert_int_equal(event_filter_read(&f, "failed,rdzv.job.ended", &e), 0);
  assert_true(chosen(&f) == 2 && f.in[EVENT_ROUND_FAILED] && f.in[EVENT_JOB_ENDED]);
  assert_int_equal(event_filter_read(&f, "rdzv.daemon.*", &e), 0);
  assert_true(chosen(&f) == 3 && f.in[EVENT_DAEMON_TOOK_OVER]);
  static const char *const wrong[][2] = {
      {"fail", "\"fail\""}, {"failed,,ended", "\"\""}, {"", "\"\""},           {"ended,nope", "\"nope\""},
      {"ended,", "\"\""},   {"allx", "\"allx\""},      {"job.*", "\"job.*\""}, {"round.failed", "\"round.failed\""},
      {"a\n", "\"a\\n\""}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(event_filter_read(&f, wrong[i][0], &e), -EINVAL);
    if (strncmp(e.text, wrong[i][1], strlen(wrong[i][1])) != 0) fail_msg("%s", e.text);
    assert_non_null(strstr(e.text, "names no event"));
  }
}
