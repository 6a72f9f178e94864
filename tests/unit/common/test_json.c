/* SPDX-License-Identifier: Apache-2.0 */
/* json: what is let in, what is said about the rest, what is printed. */

#include "common/json.h"

#include <errno.h>
#include <string.h>
#include "tests/rig/unit.h"

static void check_refused(const char *text, size_t len, const char *where, const char *why) {
  struct err e = ERR_INIT;
  assert_null(json_parse_object(text, len, &e));
  assert_int_equal(e.code, -EBADMSG);
  if (!strstr(e.text, where) || !strstr(e.text, why)) fail_msg("'%s' names neither '%s' nor '%s'", e.text, where, why);
  assert_null(json_parse_object(text, len, NULL));
}

#define REFUSED(text, where, why) check_refused(text, sizeof(text) - 1, where, why)

UNIT_TEST(test_object) {
  struct err e = ERR_INIT;
  json_t *v = json_parse_object("{\"a\": 1, \"b\": [true, null]} \n", 29, &e);
  assert_non_null(v);
  assert_int_equal(json_integer_value(json_object_get(v, "a")), 1);
  assert_int_equal(json_array_size(json_object_get(v, "b")), 2);
  assert_int_equal(e.code, 0);
  json_decref(v);
  v = json_parse_object("{}", 2, NULL);
  assert_non_null(v);
  json_decref(v);
}

UNIT_TEST(test_length_is_believed) {
  json_t *v = json_parse_object("{}garbage that is not ours", 2, NULL);
  assert_non_null(v);
  json_decref(v);
}

UNIT_TEST(test_refused) {
  REFUSED("", "line 1", "expected");
  REFUSED("{", "line 1", "expected");
  REFUSED("{\"a\": 1}x", "line 1, column 9", "end of file");
  REFUSED("{\"a\": 1}{}", "line 1", "end of file");
  REFUSED("{\"a\": 1, \"a\": 2}", "line 1", "duplicate");
  REFUSED("{\"a\":\n 1,\n ?}", "line 3", "near '?'");
  REFUSED("[1]", "line 1", "object");
  REFUSED("\"text\"", "line 1", "expected");
  REFUSED("{\"a\": \"\\u0000\"}", "line 1", "\\\\u0000");
  REFUSED("{\"a\0\": 1}", "line 1", "");
  REFUSED("{\"a\": \"\xff\"}", "line 1", "byte 0xff");
  REFUSED("{\"a\": 99999999999999999999}", "line 1", "too big");
  REFUSED("{\"a\": NaN}", "line 1", "invalid token");
}

UNIT_TEST(test_depth_is_bounded) {
  static char deep[200000];
  memset(deep, '[', sizeof(deep));
  for (size_t i = 0; i < 5; i++) deep[i] = "{\"a\":"[i];
  check_refused(deep, sizeof(deep), "line 1", "depth");
}

UNIT_TEST(test_sentence_is_printable) {
  struct err e = ERR_INIT;
  assert_null(json_parse_object("{\"a\": \x1b[31mred}", 15, &e));
  for (const char *p = e.text; *p; p++) assert_true((unsigned char)*p >= 0x20 && *p != 0x7F);
}

UNIT_TEST(test_every_prefix_is_refused) {
  static const char text[] = "{\"type\": \"hello\", \"n\": [1, -2.5e3, {\"x\": \"\\u00e9\"}], \"ok\": true}";
  for (size_t n = 0; n + 1 < sizeof(text) - 1; n++) assert_null(json_parse_object(text, n, NULL));
  json_t *v = json_parse_object(text, sizeof(text) - 1, NULL);
  assert_non_null(v);
  json_decref(v);
}

UNIT_TEST(test_print_keeps_order) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  json_t *v = json_pack("{s:i, s:s, s:[b,n,f]}", "zebra", 1, "apple", "x\"y\n", "mid", 1, 0.5);
  buf_puts(&b, "> ");
  json_print(&b, v);
  assert_string_equal(buf_text(&b), "> {\"zebra\":1,\"apple\":\"x\\\"y\\n\",\"mid\":[true,null,0.5]}");
  json_decref(v);
}

UNIT_TEST(test_round_trip) {
  static const char text[] = "{\"n\":9223372036854775807,\"m\":-1,\"t\":\"\xe2\x82\xac\",\"o\":{\"e\":{}}}";
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  json_t *v = json_parse_object(text, sizeof(text) - 1, NULL);
  assert_non_null(v);
  json_print(&b, v);
  assert_string_equal(buf_text(&b), text);
  json_decref(v);
}
