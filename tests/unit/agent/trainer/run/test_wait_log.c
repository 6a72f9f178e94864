/* SPDX-License-Identifier: Apache-2.0 */
/* The log of long waits: its sentences, and when its thread logs them. */

#include "agent/trainer/run/wait_log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "common/system/log.h"
#include "tests/rig/unit.h"

static void expect_line(void (*line)(const struct wait_state *, struct buf *), struct wait_state s, const char *want) {
  SCOPED(buf_finish) struct buf text = BUF_INIT;
  s.what = "reading x";
  s.every_ms = 10000;
  line(&s, &text);
  assert_string_equal(buf_text(&text), want);
}

UNIT_TEST(test_sentences) {
  expect_line(wait_log_line, (struct wait_state){.ms = 12345}, "reading x: 12 s so far");
  expect_line(wait_log_line, (struct wait_state){.ms = 240000}, "reading x: 4 min so far");
  expect_line(wait_log_line, (struct wait_state){.ms = 5000, .done = 2000000000, .total = 8000000000},
              "reading x: 2.0 of 8.0 GB after 5.0 s, about 15 s left");
  expect_line(wait_log_line, (struct wait_state){.ms = 5000, .total = 8000000000},
              "reading x: 0.0 of 8.0 GB after 5.0 s");
  expect_line(wait_log_line, (struct wait_state){.ms = 50000, .still_ms = 10000, .done = 1500000, .total = 40000000},
              "reading x: 1.5 of 40.0 MB after 50 s, none of them in the last 10 s");
  expect_line(wait_log_line, (struct wait_state){.ms = 30000, .still_ms = 20000, .done = 8000000, .total = 8000000},
              "reading x: 8.0 of 8.0 MB after 30 s");
  expect_line(wait_log_line, (struct wait_state){.ms = 2000, .unit = "sums", .done = 5, .total = 20},
              "reading x: 5 of 20 sums after 2.0 s, about 6.0 s left");
  expect_line(wait_log_last_line, (struct wait_state){.ms = 20000, .done = 8000000000, .total = 8000000000},
              "reading x ended after 20 s: 8.0 GB, 400 MB/s");
  expect_line(wait_log_last_line, (struct wait_state){.ms = 20000, .done = 1, .total = 8000},
              "reading x ended after 20 s");
  expect_line(wait_log_last_line, (struct wait_state){.ms = 20000, .unit = "sums", .done = 9, .total = 9},
              "reading x ended after 20 s");
}

/* The lines that were logged, each with '\n' in front, and a signal for each. */
static struct {
  pthread_mutex_t mutex;
  pthread_cond_t more;
  struct buf text;
} logged = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, BUF_INIT};

static void on_line(void *ctx, enum log_level level, const char *line) {
  pthread_mutex_lock(&logged.mutex);
  buf_printf(&logged.text, "\n%s", line);
  pthread_cond_signal(&logged.more);
  pthread_mutex_unlock(&logged.mutex);
}

/* With the lock. Lines that begin so: '\n' and words. */
static int count_of(const char *begin) {
  int n = 0;
  for (const char *at = buf_text(&logged.text); (at = strstr(at, begin)); at++) n++;
  return n;
}

static int count_lines(const char *begin) {
  pthread_mutex_lock(&logged.mutex);
  int n = count_of(begin);
  pthread_mutex_unlock(&logged.mutex);
  return n;
}

/* The thread may log more, and other lines between them. */
static void await_lines(const char *begin, int n) {
  pthread_mutex_lock(&logged.mutex);
  while (count_of(begin) < n) pthread_cond_wait(&logged.more, &logged.mutex);
  pthread_mutex_unlock(&logged.mutex);
}

/* The first wait lasts until it was logged twice. The second has moved on, and its end is logged once. The third ends at
 * once, so nothing is logged of it. */
UNIT_TEST(test_long_waits_are_logged) {
  struct tally t = {0};
  log_set_sink(on_line, NULL);
  struct wait_log *w = wait_log_create(20);
  wait_log_begin(w, NULL, NULL, "opening %s", "a file");
  await_lines("\nopening a file: ", 2);
  assert_true(count_lines(" so far") >= 2);
  tally_begin(&t, 4000000);
  wait_log_begin(w, &t, NULL, "reading %s", "a file");
  assert_int_equal(count_lines("\nopening a file ended after "), 1);
  tally_add(&t, 1000000);
  await_lines("\nreading a file: 1.0 of 4.0 MB after ", 1);
  tally_add(&t, 3000000);
  wait_log_end(w);
  wait_log_destroy(w);
  const char *last = strrchr(buf_text(&logged.text), '\n');
  assert_memory_equal(last, "\nreading a file ended after ", 28);
  assert_non_null(strstr(last, ": 4.0 MB, "));
  int before = count_lines("\n");
  w = wait_log_create(3600 * 1000);
  wait_log_begin(w, NULL, NULL, "nothing");
  wait_log_end(w);
  wait_log_end(w);
  wait_log_destroy(w);
  assert_int_equal(count_lines("\n"), before);
  log_set_sink(NULL, NULL);
  wait_log_begin(NULL, NULL, NULL, "nothing");
  wait_log_end(NULL);
  wait_log_destroy(NULL);
  buf_finish(&logged.text);
}
