/* SPDX-License-Identifier: Apache-2.0 */
/* Writes whole lines to the terminal, with progress bars and the status line always at the bottom.
 *
 * A write to a pipe or terminal has at most PIPE_BUF bytes and ends with a line: the kernel keeps such writes together,
 * so two agents that share a pipe do not tear each other's lines. A regular file gets the whole batch.
 *
 * Each bar is a row at the bottom, in the order in which the bars began. The status line is the last row. The last row
 * has no newline; the cursor stays after it. All rows are wiped before lines are written to a terminal and drawn again
 * after them. A row is cut to the terminal's width, since a wrapped line cannot be wiped by one return. A UTF-8
 * character counts as one column, and an escape sequence (a colour) as none.
 *
 * A line may be shown unfinished, because it is a prompt. Another writer first ends it, so no line is torn. An
 * unfinished line gives way to another only if it has not grown for a second: two prompts are both seen, and eight
 * progress bars do not chase each other. Meanwhile there is no status line.
 *
 * Writes may block (Ctrl-S, a pager): this is the relay's thread, and the workers' pipes fill meanwhile. Another
 * process that shares the descriptor may have made it non-blocking; then poll waits. */

#include "agent/output/sink.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define WIPE "\r\x1b[K"

static void sink_init(struct sink *s, int fd) {
  struct stat st;
  *s = (struct sink){.fd = fd, .tty = isatty(fd)};
  s->regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

void sinks_init(struct sinks *s, int out, int err, bool status) {
  struct stat x, y;
  *s = (struct sinks){.status = status};
  sink_init(&s->out, out);
  sink_init(&s->err, err);
  bool same = fstat(out, &x) == 0 && fstat(err, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
  s->to_out = same ? &s->err : &s->out;
}

void sinks_finish(struct sinks *s) {
  buf_finish(&s->out.b);
  buf_finish(&s->err.b);
  buf_finish(&s->line);
  for (size_t i = 0; i < s->n_bars; i++) buf_finish(&s->bars[i].text);
}

static void append_text(struct sink *s, const char *prefix, const char *text, size_t len) {
  if (s->error) return;
  buf_puts(&s->b, prefix);
  buf_append(&s->b, text, len);
}

static void end_line(struct sink *s) {
  if (!s->error) buf_putc(&s->b, '\n');
  s->holder = NULL;
}

void sink_line(struct sink *s, const char *prefix, const char *line, size_t len) {
  if (s->holder) end_line(s);
  append_text(s, prefix, line, len);
  end_line(s);
}

bool sink_begin(struct sink *s, const void *who, const char *prefix, const char *text, size_t len, uint64_t now_ms) {
  bool mine = s->holder == who;
  if (s->holder && !mine) {
    if (now_ms - s->held_ms < SINK_GIVES_WAY_MS) return false;
    end_line(s);
  }
  append_text(s, mine ? "" : prefix, text, len);
  s->holder = who;
  s->held_ms = now_ms;
  return true;
}

void sink_rest(struct sink *s, const void *who, const char *prefix, const char *text, size_t len) {
  if (s->holder != who) {
    if (len) sink_line(s, prefix, text, len);
    return;
  }
  append_text(s, "", text, len);
  end_line(s);
}

void sink_raw(struct sink *s, const void *who, const char *text, size_t len) {
  if (s->holder && s->holder != who) end_line(s);
  sink_echo(s, text, len);
  if (s->holder) s->holder = who;
}

void sink_echo(struct sink *s, const char *text, size_t len) {
  if (len == 0) return;
  append_text(s, "", text, len);
  if (text[len - 1] == '\n')
    s->holder = NULL;
  else if (!s->holder)
    s->holder = s;
}

void sinks_bar(struct sinks *s, const void *who, const char *prefix, const char *text, size_t len) {
  size_t i = 0;
  while (i < s->n_bars && s->bars[i].who != who) i++;
  if (!s->err.tty || i == SINK_BARS_MAX || (i == s->n_bars && len == 0)) return;
  s->changed = true;
  if (len == 0) {
    buf_finish(&s->bars[i].text);
    memmove(&s->bars[i], &s->bars[i + 1], (--s->n_bars - i) * sizeof(*s->bars));
    return;
  }
  if (i == s->n_bars) s->bars[s->n_bars++] = (struct sink_bar){.who = who, .text = BUF_INIT};
  buf_clear(&s->bars[i].text);
  buf_puts(&s->bars[i].text, prefix);
  buf_append(&s->bars[i].text, text, len);
}

void sinks_status(struct sinks *s, const char *line) {
  if (!s->status) return;
  buf_clear(&s->line);
  buf_puts(&s->line, line);
  s->changed = true;
}

/* The size of the next write: up to PIPE_BUF bytes that end with a line; at least one line. */
static size_t next_piece(const struct sink *s) {
  const char *from = s->b.data + s->written;
  size_t left = s->b.len - s->written;
  if (s->regular || left <= PIPE_BUF) return left;
  size_t n = PIPE_BUF;
  while (n > 0 && from[n - 1] != '\n') n--;
  if (n > 0) return n;
  const char *end = memchr(from, '\n', left);
  return end ? (size_t)(end - from) + 1 : left;
}

static void sink_flush(struct sink *s) {
  size_t end = s->written;
  while (s->written < s->b.len) {
    if (s->written == end) end += next_piece(s);
    ssize_t n = write(s->fd, s->b.data + s->written, end - s->written);
    if (n > 0) s->written += (size_t)n;
    if (n >= 0 || errno == EINTR) continue;
    s->error = errno == EAGAIN ? 0 : -errno;
    if (s->error) break;
    poll(&(struct pollfd){.fd = s->fd, .events = POLLOUT}, 1, -1);
  }
  buf_clear(&s->b);
  s->written = 0;
}

/* The length of the escape sequence at text, such as a colour; 0: there is none. */
static size_t escape_length(const char *text) {
  size_t n = 2;
  if (text[0] != '\x1b' || text[1] != '[') return 0;
  while (text[n] >= 0x20 && text[n] < 0x40) n++;
  return text[n] ? n + 1 : n;
}

/* Appends the text as far as it fits into `columns`: its colours, but nothing else that moves the cursor. */
static void append_fitting(struct buf *out, const char *text, size_t columns) {
  size_t skip;
  for (; *text; text += skip) {
    skip = escape_length(text);
    if (skip && text[skip - 1] == 'm') buf_append(out, text, skip);
    if (skip) continue;
    skip = 1;
    unsigned char c = (unsigned char)*text;
    if (c < 0x20 || c == 0x7f) continue;
    if ((c & 0xc0) != 0x80 && columns-- == 0) return;
    buf_append(out, text, 1);
  }
}

static void draw_row(struct sinks *s, const struct buf *row, size_t columns) {
  const char *text = buf_text(row);
  if (s->drawn++) buf_puts(&s->err.b, "\n");
  buf_puts(&s->err.b, "\r");
  append_fitting(&s->err.b, text, columns);
  buf_puts(&s->err.b, memchr(text, '\x1b', row->len) ? "\x1b[0m\x1b[K" : "\x1b[K");
}

/* Puts a wipe before the batch. */
static void wipe_rows(struct sinks *s, struct sink *to) {
  struct buf b = BUF_INIT;
  buf_puts(&b, WIPE);
  for (; s->drawn > 1; s->drawn--) buf_puts(&b, "\x1b[A\x1b[K");
  buf_append(&b, to->b.data, to->b.len);
  buf_finish(&to->b);
  to->b = b;
  s->drawn = 0;
}

void sinks_flush(struct sinks *s) {
  if (s->drawn && s->out.tty && s->out.b.len > 0) wipe_rows(s, &s->out);
  sink_flush(&s->out);
  /* In the background the cursor is where the user types. */
  bool wanted = !s->hidden && !s->err.holder && (s->n_bars > 0 || (s->status && s->line.len)) &&
                (!s->group || tcgetpgrp(s->err.fd) == s->group);
  bool moved = s->changed && (s->drawn > 1 || s->n_bars > 0);
  if (s->drawn && (s->err.b.len > 0 || !wanted || moved)) wipe_rows(s, &s->err);
  if (wanted && s->drawn <= 1 && (!s->drawn || s->changed)) {
    s->drawn = 0;
    /* As many bars as the terminal has rows for, and one line above them. */
    struct winsize w = {0};
    bool known = ioctl(s->err.fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 1;
    size_t columns = known ? w.ws_col - 1U : 79, rows = known && w.ws_row > 2 ? w.ws_row - 2U : 22;
    for (size_t i = 0; i < s->n_bars && i < rows; i++) draw_row(s, &s->bars[i].text, columns);
    if (s->status && s->line.len) draw_row(s, &s->line, columns);
  }
  s->changed = false;
  sink_flush(&s->err);
}
