/* SPDX-License-Identifier: Apache-2.0 */
/* common/lines.c: lines from bytes in any pieces, and the last lines of a stream. */

#include "common/lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

/* Feeds text in pieces of `step` bytes; what comes out is joined with '|', the rest with '~'. */
static void check(const char *text, size_t step, size_t max, const char *expected) {
  struct lines l;
  SCOPED(buf_finish) struct buf got = BUF_INIT;
  const char *line;
  size_t len, n = strlen(text);
  lines_init(&l, max);
  for (size_t i = 0; i < n; i += step) {
    lines_feed(&l, text + i, n - i < step ? n - i : step);
    while (lines_next(&l, &line, &len)) {
      buf_append(&got, line, len);
      buf_putc(&got, '|');
    }
  }
  if (lines_rest(&l, &line, &len)) {
    buf_append(&got, line, len);
    buf_putc(&got, '~');
  }
  assert_false(lines_rest(&l, &line, &len));
  assert_string_equal(buf_text(&got), expected);
  lines_finish(&l);
}

UNIT_TEST(test_split) {
  for (size_t step = 1; step < 12; step++) {
    check("", step, 100, "");
    check("one\ntwo\n", step, 100, "one|two|");
    check("one\n\n\ntwo", step, 100, "one|||two~");
    check("dos\r\nbar\r100%\r\n", step, 100, "dos\r|bar\r100%\r|");
    check("\n", step, 100, "|");
  }
}

UNIT_TEST(test_long_lines_are_cut) {
  for (size_t step = 1; step < 20; step++) {
    check("abcdefghij\nk\n", step, 4, "abcd|efgh|ij|k|");
    check("abcd\nefgh\n", step, 4, "abcd|efgh|"); /* exactly max: no empty line behind */
    check("abcdefgh\n", step, 4, "abcd|efgh|");
    check("abcde", step, 4, "abcd|e~");
    check("abcd", step, 4, "abcd~");
  }
}

UNIT_TEST(test_nul_bytes_pass) {
  struct lines l;
  const char *line;
  size_t len;
  lines_init(&l, 100);
  lines_feed(&l, "a\0b\nc", 5);
  assert_true(lines_next(&l, &line, &len));
  assert_int_equal(len, 3);
  assert_memory_equal(line, "a\0b", 3);
  assert_false(lines_next(&l, &line, &len));
  lines_peek(&l, &line, &len);
  assert_int_equal(len, 1);
  lines_feed(&l, "d\n", 2);
  assert_true(lines_next(&l, &line, &len));
  assert_memory_equal(line, "cd", 2);
  lines_finish(&l);
}

/* A line that never ends costs no more than max and one piece. */
UNIT_TEST(test_memory_is_bounded) {
  struct lines l;
  SCOPED(unit_free) char *chunk = xmalloc(65536);
  const char *line;
  size_t len, total = 0;
  memset(chunk, 'x', 65536);
  lines_init(&l, 16384);
  for (int i = 0; i < 100; i++) {
    lines_feed(&l, chunk, 65536);
    while (lines_next(&l, &line, &len)) total += len;
  }
  assert_true(l.b.cap <= 4 * 65536);
  lines_rest(&l, &line, &len);
  assert_int_equal(total + len, 100 * 65536);
  lines_finish(&l);
}

static void check_tail(const char *lines, size_t max, const char *expected) {
  SCOPED(buf_finish) struct buf tail = BUF_INIT;
  char *copy = xstrdup(lines), *save = NULL;
  for (char *line = strtok_r(copy, "|", &save); line; line = strtok_r(NULL, "|", &save)) {
    tail_add(&tail, line, strlen(line), max);
    assert_true(tail.len <= max);
  }
  assert_string_equal(buf_text(&tail), expected);
  free(copy);
}

UNIT_TEST(test_tail) {
  check_tail("one|two", 100, "one\ntwo\n");
  check_tail("one|two", 8, "one\ntwo\n");
  check_tail("one|two", 7, "two\n");
  check_tail("one|two|three", 10, "two\nthree\n");
  check_tail("one|two|three", 9, "three\n");
  check_tail("one|two|three", 6, "three\n");
  check_tail("one|two|three", 5, "hree\n"); /* no whole line fits: the end of the last */
  check_tail("one|abcdefghij|x", 6, "x\n");
  check_tail("|", 6, "");
}

static void check_state(const char *text, const char *expected) {
  size_t len = strlen(text);
  const char *state = last_state(text, &len);
  assert_int_equal(len, strlen(expected));
  assert_memory_equal(state, expected, len);
}

UNIT_TEST(test_states) {
  check_state("", "");
  check_state("plain", "plain");
  check_state("\r", "\r");
  check_state("\r10%", "10%");
  check_state("10%\r20%\r30%", "30%");
  check_state("10%\r20%\r", "20%\r"); /* the cursor is at its beginning */
  check_state("windows\r", "windows\r");
}

/* The unfinished line shrinks to its last state; whole lines keep theirs. */
UNIT_TEST(test_states_are_forgotten) {
  struct lines l;
  const char *line;
  size_t len;
  lines_init(&l, 16);
  for (int i = 0; i < 10; i++) {
    lines_feed(&l, "\r123%", 5);
    assert_false(lines_next(&l, &line, &len));
    lines_forget_states(&l);
  }
  lines_peek(&l, &line, &len);
  assert_int_equal(len, 5);
  assert_memory_equal(line, "\r123%", 5);
  lines_feed(&l, "4\n", 2);
  assert_true(lines_next(&l, &line, &len));
  assert_memory_equal(line, "\r123%4", 6);
  lines_forget_states(&l);
  lines_peek(&l, &line, &len);
  assert_int_equal(len, 0);
  lines_finish(&l);
}
