/* SPDX-License-Identifier: Apache-2.0 */
/* A line is handed to the sink in one piece, by default with one write(2) to stderr. So lines of several processes that
 * share a terminal or a pipe do not mix, and nothing is lost in a stdio buffer when the process dies. If stderr takes no
 * more (a full non-blocking pipe, a closed terminal) the line is lost: a log must not block a loop.
 *
 * This is the only state outside of objects. Pure modules return lines as effects.
 *
 * A line is one printable line, even with strange arguments: line breaks become spaces, and other characters that
 * common/printable.h refuses are escaped. A text of more than LINE_MAX bytes ends in "...". */

#include "common/system/log.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"

enum { LOG_LINE_MAX = 4096 };

static struct {
  const char *program;
  enum log_level max_level;
  log_sink_fn sink;
  void *ctx;
  bool stamped;
} logger = {"rdzv", LOG_INFO, NULL, NULL, false};

void log_init(const char *program, enum log_level max_level) {
  logger.program = program;
  logger.max_level = max_level < LOG_WARN ? LOG_WARN : max_level; /* errors and warnings are always shown */
}

void log_set_sink(log_sink_fn sink, void *ctx) {
  logger.sink = sink;
  logger.ctx = ctx;
}

size_t log_stamp(char *at) {
  struct timespec t;
  struct tm tm;
  clock_gettime(CLOCK_REALTIME, &t);
  localtime_r(&t.tv_sec, &tm);
  size_t n = strftime(at, LOG_STAMP_SIZE, "%Y-%m-%d %H:%M:%S", &tm);
  return n + (size_t)snprintf(at + n, LOG_STAMP_SIZE - n, ".%03d ", (int)(t.tv_nsec / 1000000));
}

/* Whether stderr is the stream that the journal named "DEVICE:INODE". A child whose stderr was redirected inherits the
 * variable too. */
static bool is_journal(const char *name, const struct stat *st) {
  unsigned long long device, inode;
  return name && sscanf(name, "%llu:%llu", &device, &inode) == 2 && device == st->st_dev && inode == st->st_ino;
}

void log_stamp_lines(const char *journal) {
  struct stat st;
  logger.stamped = fstat(STDERR_FILENO, &st) == 0 && !isatty(STDERR_FILENO) && !is_journal(journal, &st);
}

enum log_level log_max_level(void) {
  return logger.max_level;
}

static void write_stderr(const char *line) {
  char stamp[LOG_STAMP_SIZE] = "";
  struct buf out = BUF_INIT;
  if (logger.stamped) log_stamp(stamp);
  buf_printf(&out, "%s%.64s: %s\n", stamp, logger.program, line);
  for (size_t done = 0; done < out.len;) {
    ssize_t w = write(STDERR_FILENO, out.data + done, out.len - done);
    if (w < 0 && errno == EINTR) continue;
    if (w <= 0) break;
    done += (size_t)w;
  }
  buf_finish(&out);
}

void log_line(enum log_level level, const char *fmt, ...) {
  if (level > logger.max_level) return;
  int saved = errno;
  char line[LOG_LINE_MAX];
  struct buf out = BUF_INIT;
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(line, sizeof(line), fmt, ap);
  va_end(ap);
  if (n < 0) line[0] = '\0';
  if (n >= (int)sizeof(line)) {
    size_t end = sizeof(line) - 4;
    while (end > 0 && ((unsigned char)line[end] & 0xC0) == 0x80) end--; /* not within a character */
    memcpy(line + end, "...", 4);
  }
  size_t len = strlen(line);
  while (len > 0 && line[len - 1] == '\n') len--;
  for (size_t i = 0; i < len; i++)
    if (line[i] == '\n' || line[i] == '\r') line[i] = ' ';
  buf_put_plain(&out, line, len, len);
  if (logger.sink)
    logger.sink(logger.ctx, level, buf_text(&out));
  else
    write_stderr(buf_text(&out));
  buf_finish(&out);
  errno = saved;
}

void log_lines(enum log_level level, const char *text) {
  for (size_t n; *text; text += n + (text[n] == '\n')) {
    n = strcspn(text, "\n");
    log_line(level, "%.*s", (int)n, text);
  }
}
