/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes with which a client asks a daemon for a key, and the daemon's answers. */

#include "proto/munge_ask.h"

#include <errno.h>
#include <string.h>
#include "proto/channel.h"
#include "tests/rig/unit.h"

static void put_answer(struct buf *b, enum channel_status status, uint32_t claimed, const char *body) {
  channel_put_header(b, status, CHANNEL_SOURCE_HOME);
  char n[4]; /* the daemon's own never claim another length */
  le32_put(n, claimed);
  if (body) buf_append(b, n, sizeof n);
  if (body) buf_puts(b, body);
}

static int take(const struct buf *b, struct slice *found, struct err *e) {
  return munge_ask_take(b->data, b->len, found, e);
}

UNIT_TEST(test_the_question) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  munge_ask_put(&b, "MUNGE:AwQF:", 11);
  assert_int_equal(b.len, 8 + 4 + 11);
  assert_memory_equal(b.data, "RDZV\1\0\2\0\13\0\0\0MUNGE:AwQF:", b.len);
  assert_int_equal(channel_kind_of(b.data), CHANNEL_KIND_MUNGE);
  struct slice found = {0};
  for (size_t n = 8; n < b.len; n++) assert_int_equal(munge_ask_find(b.data, n, &found), 0);
  assert_int_equal(munge_ask_find(b.data, b.len, &found), 1);
  assert_true(found.len == 11 && memcmp(found.data, "MUNGE:AwQF:", 11) == 0);
  le32_put(b.data + 8, 0);
  assert_int_equal(munge_ask_find(b.data, b.len, &found), -EPROTO);
  le32_put(b.data + 8, MUNGE_ASK_BODY_MAX + 1);
  assert_int_equal(munge_ask_find(b.data, b.len, &found), -EPROTO);
}

UNIT_TEST(test_an_answer_is_taken_when_it_is_whole) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  struct slice found = {0};
  put_answer(&b, CHANNEL_MUNGE, 11, "MUNGE:AwQF:");
  for (size_t n = 1; n < b.len; n++) assert_int_equal(munge_ask_take(b.data, n, &found, NULL), 0);
  assert_int_equal(take(&b, &found, NULL), 1);
  assert_int_equal(found.len, 11);
  assert_memory_equal(found.data, "MUNGE:AwQF:", 11);
}

UNIT_TEST(test_refusals_have_a_sentence) {
  static const struct {
    enum channel_status status;
    int code;
    const char *body, *why;
  } cases[] = {
      {CHANNEL_NO_KEY, -ENOKEY, NULL, "--insecure"},
      {CHANNEL_NO_MUNGE, -ENOENT, NULL, "no munged"},
      {CHANNEL_BUSY, -EAGAIN, "too many requests wait", "too many requests wait"},
      {CHANNEL_MUNGE_REFUSED, -EACCES, "used before\x1b[2J", "used before\\x1b[2J"},
      {CHANNEL_OK, -EPROTO, NULL, "no rdzvd"},
      {CHANNEL_WRONG_KEY, -EPROTO, NULL, "no rdzvd"},
      {CHANNEL_STATUS_COUNT, -EPROTO, NULL, "no rdzvd"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    SCOPED(buf_finish) struct buf b = BUF_INIT;
    struct err e = ERR_INIT;
    struct slice found;
    put_answer(&b, cases[i].status, cases[i].body ? (uint32_t)strlen(cases[i].body) : 0, cases[i].body);
    assert_int_equal(take(&b, &found, &e), cases[i].code);
    assert_non_null(strstr(e.text, cases[i].why));
  }
}

UNIT_TEST(test_bad_lengths_and_other_programs) {
  static const uint32_t lengths[] = {0, MUNGE_ASK_BODY_MAX + 1, UINT32_MAX};
  struct slice found;
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    SCOPED(buf_finish) struct buf b = BUF_INIT;
    put_answer(&b, CHANNEL_MUNGE, lengths[i], "MUNGE:");
    assert_int_equal(take(&b, &found, NULL), -EPROTO);
  }
  assert_int_equal(munge_ask_take("H", 1, &found, NULL), -EPROTO);
  assert_int_equal(munge_ask_take("RDZV\2", 5, &found, NULL), -EPROTO);
  assert_int_equal(munge_ask_take("RDZV\1\0", 6, &found, NULL), 0);
}
