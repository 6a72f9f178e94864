/* SPDX-License-Identifier: Apache-2.0 */
/* buf: growing, consuming, text, escaping, little-endian integers; bytes that are shared. */

#include "common/buf.h"
#include "common/bytes.h"
#include "common/printable.h"

#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

UNIT_TEST(test_empty_is_text) {
  struct buf b = BUF_INIT;
  assert_string_equal(buf_text(&b), "");
  buf_clear(&b);
  buf_consume(&b, 0);
  assert_string_equal(buf_text(&b), "");
  buf_append(&b, NULL, 0);
  assert_string_equal(buf_text(&b), "");
  assert_int_equal(b.len, 0);
  buf_finish(&b);
  buf_finish(&b);
  assert_null(b.data);
}

UNIT_TEST(test_grows_and_stays_text) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  for (int i = 0; i < 10000; i++) {
    buf_putc(&b, (char)('a' + i % 26));
    assert_int_equal(b.data[b.len], '\0');
  }
  assert_int_equal(b.len, 10000);
  for (int i = 0; i < 10000; i++) assert_int_equal(b.data[i], 'a' + i % 26);
  buf_clear(&b);
  assert_string_equal(buf_text(&b), "");
  buf_puts(&b, "again");
  assert_string_equal(buf_text(&b), "again");
}

UNIT_TEST(test_reserve_and_commit) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_puts(&b, "ab");
  char *end = buf_reserve(&b, 1000);
  assert_true(b.cap >= 1003);
  memset(end, 'x', 1000);
  assert_int_equal(b.len, 2);
  buf_commit(&b, 3);
  assert_string_equal(buf_text(&b), "abxxx");
}

UNIT_TEST(test_consume) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_puts(&b, "hello world");
  buf_consume(&b, 0);
  assert_string_equal(buf_text(&b), "hello world");
  buf_consume(&b, 6);
  assert_string_equal(buf_text(&b), "world");
  buf_puts(&b, "!");
  assert_string_equal(buf_text(&b), "world!");
  buf_consume(&b, 6);
  assert_int_equal(b.len, 0);
  assert_string_equal(buf_text(&b), "");
}

UNIT_TEST(test_printf) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_printf(&b, "%s=%d", "x", 5);
  assert_string_equal(buf_text(&b), "x=5");
  for (int width = 70; width < 200; width++) { /* around the length that the first try has room for */
    buf_clear(&b);
    buf_printf(&b, "[%*d]", width, 7);
    assert_int_equal(b.len, width + 2);
    assert_int_equal(b.data[0], '[');
    assert_string_equal(b.data + b.len - 2, "7]");
  }
}

UNIT_TEST(test_steal) {
  struct buf b = BUF_INIT;
  char *s = buf_steal(&b);
  assert_string_equal(s, "");
  free(s);
  buf_puts(&b, "mine");
  s = buf_steal(&b);
  assert_string_equal(s, "mine");
  assert_int_equal(b.len, 0);
  assert_null(b.data);
  free(s);
}

static void check_escaped(const char *in, size_t n, size_t max, const char *want) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_put_escaped(&b, in, n, max);
  assert_string_equal(buf_text(&b), want);
}

#define ESCAPED(in, want) check_escaped(in, sizeof(in) - 1, 1000, want)

UNIT_TEST(test_escape) {
  ESCAPED("", "");
  ESCAPED("plain text, 100%", "plain text, 100%");
  ESCAPED("a\nb\r\t", "a\\nb\\r\\t");
  ESCAPED("say \"no\" \\ 'yes'", "say \\\"no\\\" \\\\ 'yes'");
  ESCAPED("\x1b[31m\x7f", "\\x1b[31m\\x7f");
  ESCAPED("a\0b", "a\\x00b");
  ESCAPED("M\xc3\xbcnchen \xe2\x82\xac \xf0\x9f\x98\x80", "M\xc3\xbcnchen \xe2\x82\xac \xf0\x9f\x98\x80");
}

UNIT_TEST(test_escape_bad_utf8) {
  ESCAPED("\xff", "\\xff");
  ESCAPED("\x80", "\\x80");
  ESCAPED("\xc0\xaf", "\\xc0\\xaf");                   /* overlong '/' */
  ESCAPED("\xe0\x80\xaf", "\\xe0\\x80\\xaf");          /* overlong again */
  ESCAPED("\xed\xa0\x80", "\\xed\\xa0\\x80");          /* a surrogate */
  ESCAPED("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"); /* behind the last character */
  ESCAPED("\xc3", "\\xc3");                            /* ends too early */
  ESCAPED("\xe2\x82", "\\xe2\\x82");
  ESCAPED("\xc3(", "\\xc3(");
}

UNIT_TEST(test_escape_hides_tricks) {
  ESCAPED("\xc2\x9b", "\\u009b");       /* CSI as one character */
  ESCAPED("\xe2\x80\xae", "\\u202e");   /* right-to-left override */
  ESCAPED("\xe2\x80\xa8", "\\u2028");   /* line separator */
  ESCAPED("\xe2\x81\xa6x", "\\u2066x"); /* isolate */
  ESCAPED("\xef\xbb\xbfx", "\\ufeffx"); /* byte order mark */
}

UNIT_TEST(test_escape_max) {
  check_escaped("abcdef", 6, 6, "abcdef");
  check_escaped("abcdef", 6, 5, "abcde...");
  check_escaped("abcdef", 6, 0, "...");
  check_escaped("ab\xe2\x82\xac", 5, 4, "ab..."); /* no character is split */
  check_escaped("ab\xe2\x82\xac", 5, 5, "ab\xe2\x82\xac");
}

UNIT_TEST(test_escape_of_anything_is_printable) {
  uint32_t x = 1;
  for (int round = 0; round < 2000; round++) {
    char in[64];
    SCOPED(buf_finish) struct buf b = BUF_INIT;
    for (size_t i = 0; i < sizeof(in); i++) {
      x = x * 1664525 + 1013904223;
      in[i] = (char)(x >> 24);
    }
    buf_put_escaped(&b, in, sizeof(in), 40);
    for (size_t i = 0; i < b.len; i++) assert_true((unsigned char)b.data[i] >= 0x20 && b.data[i] != 0x7F);
  }
}

UNIT_TEST(test_utf8_char) {
  uint32_t c = 77;
  assert_int_equal(utf8_char((const unsigned char *)"a", 1, &c), 1);
  assert_int_equal(c, 'a');
  assert_int_equal(utf8_char((const unsigned char *)"\xe2\x82\xac!", 4, &c), 3);
  assert_int_equal(c, 0x20AC);
  assert_int_equal(utf8_char((const unsigned char *)"\xe2\x82\xac", 2, &c), 0);
  assert_int_equal(utf8_char((const unsigned char *)"\xed\xa0\x80", 3, &c), 0);
  assert_int_equal(c, 0x20AC); /* untouched where there is none */
}

UNIT_TEST(test_little_endian) {
  unsigned char raw[16] = {0};
  for (size_t at = 0; at < 8; at++) {
    le64_put(raw + at, 0x8899AABBCCDDEEFF);
    assert_int_equal(raw[at], 0xFF);
    assert_int_equal(raw[at + 7], 0x88);
    assert_true(le64_get(raw + at) == 0x8899AABBCCDDEEFF);
    assert_true(le32_get(raw + at) == 0xCCDDEEFF);
    assert_int_equal(le16_get(raw + at + 6), 0x8899);
  }
  le32_put(raw + 1, 0xFEDCBA98);
  assert_memory_equal(raw + 1, "\x98\xba\xdc\xfe", 4);
  le16_put(raw + 3, 0xFFFE);
  assert_memory_equal(raw + 3, "\xfe\xff", 2);
  assert_true(le32_get("\xff\xff\xff\xff") == UINT32_MAX);
}

UNIT_TEST(test_durations) {
  static const struct {
    uint64_t s;
    const char *text;
  } cases[] = {{0, "0 s"},          {119, "119 s"},          {120, "2 min"},      {7199, "119 min"},
               {7200, "2 h 0 min"}, {172799, "47 h 59 min"}, {172800, "2 d 0 h"}, {8640000, "100 d 0 h"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    SCOPED(buf_finish) struct buf b = BUF_INIT;
    buf_put_duration(&b, cases[i].s * 1000 + 999);
    assert_string_equal(buf_text(&b), cases[i].text);
  }
}

UNIT_TEST(test_references) {
  char source[] = "push";
  struct bytes *b = bytes_create(source, 4);
  source[0] = 'x'; /* they were copied */
  assert_int_equal(b->refs, 1);
  assert_int_equal(b->len, 4);
  for (int i = 0; i < 1000; i++) assert_ptr_equal(bytes_ref(b), b);
  assert_int_equal(b->refs, 1001);
  for (int i = 0; i < 1000; i++) bytes_unref(b);
  assert_int_equal(b->refs, 1);
  assert_memory_equal(b->data, "push", 4);
  bytes_unref(b);
}

UNIT_TEST(test_empty_bytes) {
  struct bytes *b = bytes_create(NULL, 0);
  assert_int_equal(b->len, 0);
  bytes_unref(b);
  bytes_unref(NULL);
}
