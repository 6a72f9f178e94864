/* SPDX-License-Identifier: Apache-2.0 */
/* Characters that may reach a terminal as they are: every class of code points, through every function that shows what
 * a peer sent.
 */

#include "common/printable.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/json.h"
#include "common/system/log.h"
#include "tests/rig/unit.h"

/* Characters by their class, and what stands for them; NULL: themselves. */
static const struct {
  const char *class, *in, *shown;
} table[] = {
    {"letter", "a", NULL},
    {"blank", " ", NULL},
    {"Latin letter", "\xc3\xa9", NULL},
    {"no-break space", "\xc2\xa0", NULL},
    {"Han", "\xe4\xb8\xad", NULL},
    {"euro", "\xe2\x82\xac", NULL},
    {"Hebrew: has a direction of its own", "\xd7\xa9", NULL},
    {"combining accent", "e\xcc\x81", NULL},
    {"emoji", "\xf0\x9f\x98\x80", NULL},
    {"replacement character", "\xef\xbf\xbd", NULL},
    {"private use", "\xee\x82\xa0", NULL},
    {"BEL", "\x07", "\\x07"},
    {"ESC", "\x1b[31m", "\\x1b[31m"},
    {"DEL", "\x7f", "\\x7f"},
    {"C1: first", "\xc2\x80", "\\u0080"},
    {"C1: NEL, a line break", "\xc2\x85", "\\u0085"},
    {"C1: CSI", "\xc2\x9b", "\\u009b"},
    {"C1: OSC", "\xc2\x9d", "\\u009d"},
    {"C1: last", "\xc2\x9f", "\\u009f"},
    {"soft hyphen", "\xc2\xad", "\\u00ad"},
    {"grapheme joiner", "\xcd\x8f", "\\u034f"},
    {"Arabic letter mark", "\xd8\x9c", "\\u061c"},
    {"filler", "\xe3\x85\xa4", "\\u3164"},
    {"Mongolian separator", "\xe1\xa0\x8e", "\\u180e"},
    {"zero width space", "\xe2\x80\x8b", "\\u200b"},
    {"left-to-right mark", "\xe2\x80\x8e", "\\u200e"},
    {"right-to-left mark", "\xe2\x80\x8f", "\\u200f"},
    {"line separator", "\xe2\x80\xa8", "\\u2028"},
    {"paragraph separator", "\xe2\x80\xa9", "\\u2029"},
    {"left-to-right embedding", "\xe2\x80\xaa", "\\u202a"},
    {"right-to-left override", "\xe2\x80\xae", "\\u202e"},
    {"word joiner", "\xe2\x81\xa0", "\\u2060"},
    {"left-to-right isolate", "\xe2\x81\xa6", "\\u2066"},
    {"pop isolate", "\xe2\x81\xa9", "\\u2069"},
    {"byte order mark", "\xef\xbb\xbf", "\\ufeff"},
    {"interlinear annotation", "\xef\xbf\xb9", "\\ufff9"},
    {"noncharacter", "\xef\xb7\x90", "\\ufdd0"},
    {"last of a plane", "\xf0\x9f\xbf\xbe", "\\U0001fffe"},
    {"tag", "\xf3\xa0\x81\x81", "\\U000e0041"},
    {"Latin-1", "\xe9", "\\xe9"},
    {"CSI as one byte", "\x9b", "\\x9b"},
    {"overlong ESC", "\xc0\x9b", "\\xc0\\x9b"},
    {"surrogate", "\xed\xa0\x80", "\\xed\\xa0\\x80"},
    {"ends too early", "\xe2\x80", "\\xe2\\x80"},
};
enum { TABLE_LEN = sizeof(table) / sizeof(table[0]) };

static void on_line(void *ctx, enum log_level level, const char *line) {
  buf_puts(ctx, line);
}

static void check(const char *where, size_t i, const char *got) {
  const char *want = table[i].shown ? table[i].shown : table[i].in;
  if (strcmp(got, want) != 0) fail_msg("%s, %s: \"%s\", not \"%s\"", where, table[i].class, got, want);
}

UNIT_TEST(test_every_class_everywhere) {
  for (size_t i = 0; i < TABLE_LEN; i++) {
    const char *in = table[i].in;
    SCOPED(buf_finish) struct buf escaped = BUF_INIT, plain = BUF_INIT, logged = BUF_INIT;
    struct err e = ERR_INIT;
    buf_put_escaped(&escaped, in, strlen(in), 100);
    check("buf_put_escaped", i, buf_text(&escaped));
    buf_put_plain(&plain, in, strlen(in), 100);
    check("buf_put_plain", i, buf_text(&plain));
    log_init("test", LOG_INFO);
    log_set_sink(on_line, &logged);
    log_info("%s", in);
    log_set_sink(NULL, NULL);
    check("log", i, buf_text(&logged));
    err_set(&e, -EINVAL, "%s", in);
    check("err", i, e.text);
  }
}

/* Whether all of it could be shown. */
static bool is_safe(const char *text, size_t n) {
  for (size_t i = 0, len; i < n; i += len) {
    uint32_t c;
    len = utf8_char((const unsigned char *)text + i, n - i, &c);
    if (!len || !is_printable(c)) return false;
  }
  return true;
}

/* Printable, still JSON, and the same to a parser. */
UNIT_TEST(test_json) {
  for (size_t i = 0; i < TABLE_LEN; i++) {
    json_t *v = json_text(table[i].in);
    SCOPED(buf_finish) struct buf out = BUF_INIT;
    assert_non_null(v);
    json_print(&out, v);
    assert_true(is_safe(out.data, out.len));
    json_t *again = json_loadb(out.data, out.len, JSON_DECODE_ANY, NULL);
    assert_string_equal(json_string_value(again), json_string_value(v));
    json_decref(again);
    json_decref(v);
  }
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  const char raw[] = "{\"a\":\n\"\xc2\x9b\x9b\xf3\xa0\x81\x81\xc3\xa9\x1b\"}\n"; /* another program's */
  json_put_printable(&out, raw, sizeof(raw) - 1);
  assert_string_equal(buf_text(&out), "{\"a\":\n\"\\u009b\\ufffd\\udb40\\udc41\xc3\xa9\\u001b\"}\n");
}

UNIT_TEST(test_quotes) {
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  buf_put_plain(&out, "a\t\"C:\\x\"\nb", 10, 100);
  assert_string_equal(buf_text(&out), "a\t\"C:\\x\"\\nb");
  buf_clear(&out);
  buf_put_plain(&out, "\\u202e", 6, 100); /* escaped once already */
  assert_string_equal(buf_text(&out), "\\u202e");
  buf_clear(&out);
  buf_put_plain(&out, "ab\xe2\x82\xac", 5, 4);
  assert_string_equal(buf_text(&out), "ab...");
}

UNIT_TEST(test_anything_is_safe) {
  uint32_t x = 1;
  for (int round = 0; round < 2000; round++) {
    char in[64];
    SCOPED(buf_finish) struct buf plain = BUF_INIT, json = BUF_INIT;
    struct err e = ERR_INIT;
    for (size_t i = 0; i < sizeof(in) - 1; i++) {
      x = x * 1664525 + 1013904223;
      in[i] = (char)((x >> 24) | 1); /* no NUL */
    }
    in[sizeof(in) - 1] = '\0';
    err_set(&e, -EINVAL, "%s", in);
    assert_true(is_safe(e.text, strlen(e.text)));
    json_t *v = json_text(in);
    json_print(&json, v);
    json_decref(v);
    assert_true(is_safe(buf_text(&json), json.len));
    for (char *p = in; *p; p++)
      if (*p == '\t') *p = ' ';
    buf_put_plain(&plain, in, strlen(in), 100);
    assert_true(is_safe(buf_text(&plain), plain.len));
  }
}

/* An escape is longer than what it stands for: the sentence is cut, and the front stays. */
UNIT_TEST(test_long_err) {
  char in[ERR_TEXT_MAX];
  struct err e = ERR_INIT;
  memset(in, 0x1b, sizeof(in) - 1);
  in[sizeof(in) - 1] = '\0';
  err_set(&e, -EINVAL, "front: %s", in);
  assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
  assert_memory_equal(e.text, "front: \\x1b", 11);
  assert_string_equal(e.text + strlen(e.text) - 3, "...");
}
