/* The one log of a driver program.
 *
 * A line is formatted into a buffer on the stack and handed to the sink, which by default is one write(2) to
 * stderr: lines of several processes that share a terminal or a pipe do not mix, and nothing is lost in a stdio
 * buffer when the process dies the next moment.
 *
 * This is the only state of a process outside its objects: a few words, set at the start of main. Pure modules
 * never come here, they give lines out as effects, so several of them live in one test without a shared log.
 *
 * A daemon's lines begin with the time where nothing else says it; at a terminal they stay short.
 *
 * A line is one line whatever its arguments hold: control characters become '?', line breaks spaces. That is the
 * last fence only: who prints what a peer sent uses buf_put_escaped. A line of more than LINE_MAX bytes ends in
 * "...". Where stderr takes no more (a full non-blocking pipe, a closed terminal) the line is lost: a log must not
 * block a loop. */

#include "common/log.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

/* The journal's name for the stream that it has given us: "DEVICE:INODE". A child whose stderr went elsewhere inherits the name too. */
static bool is_journal(const char *name, const struct stat *st) {
  unsigned long long device, inode;
  return name && sscanf(name, "%llu:%llu", &device, &inode) == 2 && device == st->st_dev &&
         inode == st->st_ino;
}

void log_stamp_lines(const char *journal) {
  struct stat st;
  logger.stamped = fstat(STDERR_FILENO, &st) == 0 && !isatty(STDERR_FILENO) && !is_journal(journal, &st);
}

enum log_level log_max_level(void) {
  return logger.max_level;
}

static void make_one_line(char *line) {
  size_t len = strlen(line);
  while (len > 0 && line[len - 1] == '\n') line[--len] = '\0';
  for (char *p = line; *p; p++) {
    if (*p == '\n' || *p == '\r')
      *p = ' ';
    else if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7F)
      *p = '?';
  }
}

static void write_stderr(const char *line) {
  char out[LOG_LINE_MAX + 120], stamp[LOG_STAMP_SIZE] = "";
  if (logger.stamped) log_stamp(stamp);
  int n = snprintf(out, sizeof(out) - 1, "%s%.64s: %s", stamp, logger.program, line);
  if (n < 0) return;
  size_t len = strlen(out);
  out[len++] = '\n';
  for (size_t done = 0; done < len;) {
    ssize_t w = write(STDERR_FILENO, out + done, len - done);
    if (w < 0 && errno == EINTR) continue;
    if (w <= 0) return;
    done += (size_t)w;
  }
}

void log_line(enum log_level level, const char *fmt, ...) {
  if (level > logger.max_level) return;
  int saved = errno;
  char line[LOG_LINE_MAX];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(line, sizeof(line), fmt, ap);
  va_end(ap);
  if (n < 0) line[0] = '\0';
  if (n >= (int)sizeof(line)) memcpy(line + sizeof(line) - 4, "...", 4);
  make_one_line(line);
  if (logger.sink)
    logger.sink(logger.ctx, level, line);
  else
    write_stderr(line);
  errno = saved;
}
