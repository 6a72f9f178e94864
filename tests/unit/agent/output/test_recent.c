/* SPDX-License-Identifier: Apache-2.0 */
/* Workers' recent lines: which ones are kept, and which ones a question gets. */

#include "agent/output/recent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/err.h"
#include "tests/rig/unit.h"

static void add(struct recent *r, size_t worker, uint32_t rank, uint32_t round, const char *text) {
  recent_add(r, worker,
             &(struct worker_line){.rank = rank,
                                   .round = round,
                                   .wall_ms = 77,
                                   .is_err = worker == 1,
                                   .prefix = "[p] ",
                                   .prefix_len = 4,
                                   .text = text,
                                   .text_len = strlen(text)});
}

/* The texts of the answer, with a blank behind each. */
static const char *ask(const struct recent *r, struct recent_question q, struct recent_answer *a) {
  static char said[4096];
  struct buf b = BUF_INIT, out = BUF_INIT;
  struct worker_line l;
  struct err e = ERR_INIT;
  long n = 0;
  size_t at = 0;
  if (!q.max) q.max = WORKER_LINE_TEXT_MAX;
  recent_read(r, &q, &b, a);
  for (; at < b.len && (n = worker_line_get(b.data + at, b.len - at, &l, &e)) > 0; at += (size_t)n) {
    buf_append(&out, l.text, l.text_len);
    buf_putc(&out, ' ');
  }
  assert_int_equal(at, b.len);
  snprintf(said, sizeof said, "%s", buf_text(&out));
  buf_finish(&b);
  buf_finish(&out);
  return said;
}

UNIT_TEST(test_order_and_choice) {
  struct recent *r = recent_create(3);
  struct recent_answer a;
  assert_string_equal(ask(r, (struct recent_question){.rank = -1, .tail = -1}, &a), "");
  assert_int_equal(a.next, 1);
  add(r, 0, 8, 1, "a"), add(r, 1, 9, 1, "b"), add(r, 0, 8, 1, "c"), add(r, 2, 10, 1, "d");
  add(r, 0, 9, 2, "e"), add(r, 1, 8, 2, "f"); /* they have changed their ranks */
  assert_string_equal(ask(r, (struct recent_question){.rank = -1, .tail = -1}, &a), "a b c d e f ");
  assert_int_equal(a.next, 7);
  assert_false(a.more || a.lost);
  assert_string_equal(ask(r, (struct recent_question){.rank = 8, .tail = -1}, &a), "a c f ");
  assert_string_equal(ask(r, (struct recent_question){.rank = 9, .tail = -1, .from_round = 2}, &a), "e ");
  assert_string_equal(ask(r, (struct recent_question){.rank = -1, .tail = -1, .from = 5}, &a), "e f ");
  assert_string_equal(ask(r, (struct recent_question){.rank = -1, .tail = 2}, &a), "e f ");
  assert_string_equal(ask(r, (struct recent_question){.rank = 8, .tail = 2}, &a), "c f ");
  assert_string_equal(ask(r, (struct recent_question){.rank = 8, .tail = 0}, &a), "");
  assert_int_equal(a.next, 7);
  assert_string_equal(ask(r, (struct recent_question){.rank = 8, .tail = 100}, &a), "a c f ");
  assert_string_equal(ask(r, (struct recent_question){.rank = 11, .tail = -1}, &a), "");
  recent_destroy(r);
}

UNIT_TEST(test_pieces) {
  struct recent *r = recent_create(2);
  struct recent_answer a;
  add(r, 0, 0, 1, "a"), add(r, 1, 1, 1, "bb"), add(r, 0, 0, 1, "c");
  size_t one = WORKER_LINE_HEADER + 4 + 1;
  assert_string_equal(ask(r, (struct recent_question){.rank = -1, .tail = -1, .max = 2 * one}, &a), "a ");
  assert_true(a.more);
  assert_int_equal(a.next, 2);
  assert_string_equal(ask(r, (struct recent_question){.rank = -1, .tail = -1, .from = 2, .max = 1}, &a), "bb ");
  assert_true(a.more); /* at least one comes */
  assert_string_equal(ask(r, (struct recent_question){.rank = -1, .tail = -1, .from = a.next, .max = one}, &a), "c ");
  assert_false(a.more);
  assert_int_equal(a.next, 4);
  recent_destroy(r);
}

static char *long_text(char c, size_t n) {
  char *text = malloc(n + 1);
  memset(text, c, n);
  text[n] = '\0';
  return text;
}

/* A worker that prints much pushes out its own lines, and no others. */
UNIT_TEST(test_bounds) {
  struct recent *r = recent_create(1024); /* the smallest share */
  struct recent_answer a;
  char *text = long_text('x', 1000);
  struct buf b = BUF_INIT;
  add(r, 1, 1, 1, "quiet");
  for (int i = 0; i < 1000; i++) add(r, 0, 0, 1, text);
  assert_string_equal(ask(r, (struct recent_question){.rank = 1, .tail = -1}, &a), "quiet ");
  assert_false(a.lost);
  recent_read(r, &(struct recent_question){.rank = 0, .tail = -1, .max = SIZE_MAX}, &b, &a);
  assert_in_range(b.len, RECENT_WORKER_MIN / 2 - 2000, RECENT_WORKER_MIN);
  assert_true(a.lost);
  buf_clear(&b);
  recent_read(r, &(struct recent_question){.rank = 0, .tail = 3, .max = SIZE_MAX}, &b, &a);
  assert_int_equal(b.len, 3 * (1000 + 4 + WORKER_LINE_HEADER));
  assert_false(a.lost); /* what was asked for is here */
  buf_clear(&b);
  recent_read(r, &(struct recent_question){.rank = 0, .tail = -1, .from = 1000, .max = SIZE_MAX}, &b, &a);
  assert_false(a.lost);
  free(text);
  buf_finish(&b);
  recent_destroy(r);
}

UNIT_TEST(test_long_lines) {
  struct recent *r = recent_create(1);
  struct recent_answer a;
  struct buf b = BUF_INIT;
  char *text = long_text('y', WORKER_LINE_TEXT_MAX + 10);
  add(r, 0, 0, 1, text);
  recent_read(r, &(struct recent_question){.rank = 0, .tail = -1, .max = 10}, &b, &a);
  assert_int_equal(b.len, WORKER_LINE_HEADER + 4 + WORKER_LINE_TEXT_MAX);
  free(text);
  buf_finish(&b);
  recent_destroy(r);
}

/* Lines come from a peer: nothing is read behind their end. */
UNIT_TEST(test_wire) {
  struct buf b = BUF_INIT;
  struct worker_line l;
  struct err e = ERR_INIT;
  worker_line_put(&b, &(struct worker_line){.number = 1ull << 40,
                                            .wall_ms = 5,
                                            .rank = 7,
                                            .round = 3,
                                            .is_err = true,
                                            .prefix = "[7] ",
                                            .prefix_len = 4,
                                            .text = "a\0b",
                                            .text_len = 3});
  assert_int_equal(worker_line_get(b.data, b.len, &l, &e), WORKER_LINE_HEADER + 7);
  assert_true(l.is_err && l.number == 1ull << 40 && l.wall_ms == 5 && l.rank == 7 && l.round == 3);
  assert_memory_equal(l.prefix, "[7] ", 4);
  assert_memory_equal(l.text, "a\0b", 3);
  assert_int_equal(worker_line_get(b.data, 0, &l, &e), 0);
  for (size_t n = 1; n < b.len; n++) {
    char *exact = malloc(n); /* so that the sanitizer sees the end */
    memcpy(exact, b.data, n);
    assert_int_equal(worker_line_get(exact, n, &l, &e), -EPROTO);
    free(exact);
  }
  le16_put(b.data + 24, WORKER_LINE_TEXT_MAX + 1);
  assert_int_equal(worker_line_get(b.data, b.len, &l, &e), -EPROTO);
  buf_finish(&b);
}
