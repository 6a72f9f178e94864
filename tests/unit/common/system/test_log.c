/* SPDX-License-Identifier: Apache-2.0 */
/* log: levels, sinks, one write per line. */

#include "common/system/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"
#include "tests/rig/unit.h"

static void on_line(void *ctx, enum log_level level, const char *line) {
  buf_printf(ctx, "%d %s|", (int)level, line);
}

UNIT_TEST(test_levels) {
  static const char *const want[] = {
      "0 a|1 b|", /* even where only errors were asked for */
      "0 a|1 b|",
      "0 a|1 b|2 c|",
      "0 a|1 b|2 c|3 d|",
  };
  for (int level = LOG_ERROR; level <= LOG_DEBUG; level++) {
    SCOPED(buf_finish) struct buf out = BUF_INIT;
    log_init("test", (enum log_level)level);
    log_set_sink(on_line, &out);
    log_error("a");
    log_warn("b");
    log_info("c");
    log_debug("d");
    assert_string_equal(buf_text(&out), want[level]);
  }
  log_init("test", LOG_DEBUG);
  assert_int_equal(log_max_level(), LOG_DEBUG);
  log_set_sink(NULL, NULL);
}

UNIT_TEST(test_one_line) {
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  log_init("test", LOG_INFO);
  log_set_sink(on_line, &out);
  errno = EAGAIN;
  log_info("node %s: state\t%d\n\n", "a\nb\x1b[1m", 3);
  assert_int_equal(errno, EAGAIN);
  assert_string_equal(buf_text(&out), "2 node a b\\x1b[1m: state\t3|");
  buf_clear(&out);
  log_info("%05000d", 7);
  assert_true(out.len < 4100);
  assert_string_equal(out.data + out.len - 5, "0...|");
  log_set_sink(NULL, NULL);
}

/* The bytes that `level` and text give on stderr, read with one read. */
static void stderr_of(const char *text, char *got, size_t size) {
  int fds[2], saved = dup(STDERR_FILENO);
  assert_int_equal(pipe(fds), 0);
  dup2(fds[1], STDERR_FILENO);
  log_error("%s", text);
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(fds[1]);
  ssize_t n = read(fds[0], got, size - 1);
  assert_true(n >= 0);
  got[n] = '\0';
  close(fds[0]);
}

UNIT_TEST(test_default_sink) {
  char got[8192], text[4000];
  log_init("rdzvd", LOG_INFO);
  log_set_sink(NULL, NULL);
  stderr_of("job x: sealed", got, sizeof(got));
  assert_string_equal(got, "rdzvd: job x: sealed\n");
  memset(text, 'y', sizeof(text));
  text[sizeof(text) - 1] = '\0';
  stderr_of(text, got, sizeof(got));
  assert_int_equal(strlen(got), strlen(text) + strlen("rdzvd: \n"));
}

UNIT_TEST(test_closed_stderr_is_no_trouble) {
  int saved = dup(STDERR_FILENO);
  close(STDERR_FILENO);
  log_error("nobody sees this");
  dup2(saved, STDERR_FILENO);
  close(saved);
}

/* The journal stamps lines itself; what only inherited its name does not go there. */
UNIT_TEST(test_stamps) {
  char got[256], name[64];
  struct stat st;
  struct tm tm = {.tm_isdst = -1};
  int file = memfd_create("log", 0), saved = dup(STDERR_FILENO), millis = -1, end = 0;
  dup2(file, STDERR_FILENO);
  assert_int_equal(fstat(file, &st), 0);
  snprintf(name, sizeof(name), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
  log_init("test", LOG_INFO);
  log_stamp_lines(name);
  log_info("in the journal");
  log_stamp_lines("1:2");
  log_info("a");
  dup2(saved, STDERR_FILENO);
  close(saved);
  ssize_t n = pread(file, got, sizeof(got) - 1, 0);
  assert_true(n > 0);
  got[n] = '\0';
  static const char plain[] = "test: in the journal\n";
  assert_int_equal(strncmp(got, plain, sizeof(plain) - 1), 0);
  const char *line = got + sizeof(plain) - 1, *rest = strptime(line, "%Y-%m-%d %H:%M:%S", &tm);
  assert_non_null(rest);
  assert_int_equal(sscanf(rest, ".%3d test: a\n%n", &millis, &end), 1);
  assert_int_equal(end, strlen(rest));
  time_t now = time(NULL), then = mktime(&tm);
  assert_true(then <= now && then >= now - 60); /* local time, and now */
  close(file);
}
