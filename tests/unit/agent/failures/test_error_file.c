/* SPDX-License-Identifier: Apache-2.0 */
/* agent/failures/error_file.c: both forms that PyTorch reads, invalid files, and the file that is passed on. */

#include "agent/failures/error_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "tests/rig/unit.h"

static int parse(struct error_file *f, const char *text) {
  struct err e = ERR_INIT;
  int rc = error_file_parse(f, text, strlen(text), &e);
  assert_int_equal(rc != 0, e.text[0] != '\0');
  return rc;
}

UNIT_TEST(test_exception_without_words) {
  struct error_file f;
  static const char *const told[][2] = {
      {"{\"message\": \"MemoryError: \"}", "MemoryError"},
      {"{\"message\": \"KeyError: 'a:'\"}", "KeyError: 'a:'"},
      {"{\"message\": \": \"}", ":"},
      {"{\"message\": \"\"}", ""},
  };
  for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
    assert_int_equal(parse(&f, told[i][0]), 0);
    assert_string_equal(f.message, told[i][1]);
  }
}

UNIT_TEST(test_as_record_writes_it) {
  struct error_file f;
  assert_int_equal(parse(&f, "{\"message\": {\"message\": \"ValueError: boom\", \"extraInfo\": {\"py_callstack\": "
                             "\"Traceback (most recent call last):\\n  raise\\nValueError: boom\\n\", "
                             "\"timestamp\": \"1795253234\"}}}"),
                   0);
  assert_string_equal(f.message, "ValueError: boom");
  assert_string_equal(f.callstack, "Traceback (most recent call last):\n  raise\nValueError: boom\n");
  assert_int_equal(f.timestamp, 1795253234);
}

UNIT_TEST(test_a_plain_message) {
  struct error_file f;
  assert_int_equal(parse(&f, "{\"message\": \"out of luck\", \"timestamp\": 17}"), 0);
  assert_string_equal(f.message, "out of luck");
  assert_string_equal(f.callstack, "");
  assert_int_equal(f.timestamp, 17);
  assert_int_equal(parse(&f, "{\"message\": \"\"}"), 0);
  assert_string_equal(f.message, "");
  assert_int_equal(f.timestamp, 0);
}

UNIT_TEST(test_a_final_failure) {
  struct error_file f;
  static const struct {
    const char *text;
    bool final;
  } rows[] = {
      {"{\"message\": {\"message\": \"bad data\", \"extraInfo\": {\"final\": true}}}", true},
      {"{\"message\": \"bad data\", \"final\": true}", true},
      {"{\"message\": \"bad data\", \"final\": \"true\"}", false},
      {"{\"message\": {\"message\": \"bad data\", \"final\": true}}", false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_int_equal(parse(&f, rows[i].text), 0);
    assert_int_equal(f.final, rows[i].final);
  }
}

/* Other types than it should have: not there, and no reason to refuse the rest. */
UNIT_TEST(test_odd_types) {
  struct error_file f;
  assert_int_equal(parse(&f, "{\"message\": {\"message\": 7, \"extraInfo\": []}}"), 0);
  assert_string_equal(f.message, "");
  assert_int_equal(parse(&f, "{\"message\": {\"message\": \"a\", \"extraInfo\": {\"py_callstack\": {}, "
                             "\"timestamp\": -4}}}"),
                   0);
  assert_string_equal(f.message, "a");
  assert_string_equal(f.callstack, "");
  assert_int_equal(f.timestamp, 0);
  assert_int_equal(parse(&f, "{\"message\": {\"message\": \"a\\u0000b\"}, \"timestamp\": \"x\"}"), 0);
  assert_string_equal(f.message, "a");
}

UNIT_TEST(test_refused) {
  static const char *const texts[] = {"",
                                      "{",
                                      "[]",
                                      "\"message\"",
                                      "{}",
                                      "{\"message\": null}",
                                      "{\"message\": \"cut",
                                      "{\"message\": \"\xff\"}",
                                      "{\"message\": [1]}"};
  struct error_file f;
  struct err e = ERR_INIT;
  for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
    assert_int_equal(parse(&f, texts[i]), -EBADMSG);
    assert_null(error_file_copy(texts[i], strlen(texts[i]), 1));
  }
  char *large = xmalloc(ERROR_FILE_MAX + 1);
  memset(large, ' ', ERROR_FILE_MAX + 1);
  memcpy(large, "{\"message\": \"a\"}", 16);
  assert_int_equal(error_file_parse(&f, large, ERROR_FILE_MAX, &e), 0);
  assert_int_equal(error_file_parse(&f, large, ERROR_FILE_MAX + 1, &e), -EBADMSG);
  assert_non_null(strstr(e.text, "1048576 bytes"));
  free(large);
}

/* The beginning of a message, the end of a call stack, never half a character. */
UNIT_TEST(test_long_ones_are_cut) {
  struct error_file f;
  struct buf text = BUF_INIT;
  buf_printf(&text, "{\"message\": {\"message\": \"");
  for (int i = 0; i < 1000; i++) buf_printf(&text, "\u00e4"); /* two bytes each */
  buf_printf(&text, "\", \"extraInfo\": {\"py_callstack\": \"");
  for (int i = 0; i < 400; i++) buf_printf(&text, "line %03d \u00e4\\n", i);
  buf_printf(&text, "\"}}}");
  assert_int_equal(parse(&f, buf_text(&text)), 0);
  assert_true(strlen(f.message) <= ERROR_MESSAGE_MAX && strlen(f.message) > ERROR_MESSAGE_MAX - 6);
  assert_string_equal(f.message + strlen(f.message) - 5, "\u00e4...");
  assert_true(strlen(f.callstack) <= ERROR_CALLSTACK_MAX);
  assert_memory_equal(f.callstack, "line ", 5);
  assert_string_equal(f.callstack + strlen(f.callstack) - 12, "line 399 \u00e4\n");
  buf_finish(&text);
}

UNIT_TEST(test_one_long_line) {
  struct error_file f;
  struct buf text = BUF_INIT;
  buf_printf(&text, "{\"message\": {\"extraInfo\": {\"py_callstack\": \"x");
  for (int i = 0; i < 2000; i++) buf_printf(&text, "\u00e4");
  buf_printf(&text, "\"}}}");
  assert_int_equal(parse(&f, buf_text(&text)), 0);
  assert_int_equal(strlen(f.callstack), ERROR_CALLSTACK_MAX);
  assert_memory_equal(f.callstack, "\u00e4", 2);
  buf_finish(&text);
}

static void check_handed_on(const char *data, int code, const char *expected) {
  char *copy = error_file_copy(data, strlen(data), code);
  assert_string_equal(copy, expected);
  free(copy);
}

UNIT_TEST(test_handed_on) {
  check_handed_on("{\"message\": {\"message\": \"a\", \"more\": [1, 2]}, \"b\": 1}", -11,
                  "{\"message\":{\"message\":\"a\",\"more\":[1,2],\"errorCode\":-11},\"b\":1}");
  check_handed_on("{\"message\": {\"errorCode\": 3}}", 0, "{\"message\":{\"errorCode\":3}}");
  check_handed_on("{\"message\": \"a\"}", 7, "{\"message\":\"a\"}"); /* this form has no place for it */
}

UNIT_TEST(test_made_of_a_verdict) {
  char *text = error_file_make("rank 3 was \"lost\"", "last\nlines \xff", 17, 78);
  assert_string_equal(text, "{\"message\":{\"message\":\"rank 3 was \\\"lost\\\"\",\"extraInfo\":{\"py_callstack\":"
                            "\"last\\nlines \xef\xbf\xbd\",\"timestamp\":\"17\"},\"errorCode\":78}}");
  struct error_file f;
  assert_int_equal(parse(&f, text), 0);
  assert_string_equal(f.message, "rank 3 was \"lost\"");
  assert_int_equal(f.timestamp, 17);
  free(text);
}
