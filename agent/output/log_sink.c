/* Where the agent's own lines go.
 *
 * The relay owns the terminal, because only one hand can keep lines whole and the status line at the bottom.
 * It takes lines and returns at once; a terminal that is stopped with Ctrl-S stops nobody.
 *
 * The file in the log directory may lie on a network disk, so it is written in uv's pool, one write at a time: what
 * is said meanwhile gathers and goes with the next. A disk that hangs for good costs lines, not the job: what
 * gathers is bounded, and the end of the program does not wait for it. All levels go to the file, since who
 * reads it wants to know what happened.
 *
 * A text of several lines (the last words of a worker, in a verdict) becomes as many lines: a line is what
 * terminal, file and grep have in common. */

#include "agent/output/log_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/mem.h"

enum { PENDING_MAX = 1024 * 1024 };

static const char program[] = "rdzv-agent";

static void write_pending(struct say *s);

static void on_written(uv_fs_t *req) {
  struct say *s = req->data;
  uv_fs_req_cleanup(req);
  s->busy = false;
  buf_clear(&s->writing);
  write_pending(s);
}

static void write_pending(struct say *s) {
  if (s->busy || s->pending.len == 0) return;
  struct buf swap = s->writing;
  s->writing = s->pending;
  s->pending = swap;
  uv_buf_t b = uv_buf_init(s->writing.data, (unsigned)s->writing.len);
  s->req.data = s;
  s->busy = uv_fs_write(s->loop, &s->req, s->fd, &b, 1, -1, on_written) == 0;
}

static void to_file(struct say *s, const char *line) {
  if (s->fd < 0 || s->pending.len > PENDING_MAX) return;
  char stamp[LOG_STAMP_SIZE];
  buf_append(&s->pending, stamp, log_stamp(stamp));
  buf_puts(&s->pending, line);
  buf_putc(&s->pending, '\n');
  write_pending(s);
}

static void to_terminal(const struct say *s, const char *line) {
  struct buf text = BUF_INIT;
  buf_printf(&text, "%s: %s", program, line);
  if (s->relay) {
    relay_say(s->relay, buf_text(&text));
  } else {
    buf_putc(&text, '\n');
    ssize_t n = write(STDERR_FILENO, text.data, text.len);
    (void)n; /* a closed stderr has nobody to be told */
  }
  buf_finish(&text);
}

static void on_line(void *ctx, enum log_level level, const char *text) {
  struct say *s = ctx;
  char *copy = xstrdup(text), *rest = copy, *line;
  while ((line = strsep(&rest, "\n"))) {
    if (!*line) continue;
    if (level <= s->shown) to_terminal(s, line);
    to_file(s, line);
  }
  free(copy);
}

int say_init(struct say *s, uv_loop_t *loop, enum log_level shown, const char *file, struct err *e) {
  *s = (struct say){.loop = loop, .shown = shown, .fd = -1};
  if (file) s->fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file && s->fd < 0) return err_sys(e, -errno, "%s cannot be written (--log-dir)", file);
  log_init(program, s->fd >= 0 ? LOG_DEBUG : shown);
  log_set_sink(on_line, s);
  return 0;
}

void say_through(struct say *s, struct relay *r) {
  s->relay = r;
}

bool say_is_quiet(const struct say *s) {
  return !s->busy;
}

void say_finish(struct say *s) {
  log_set_sink(NULL, NULL);
  if (s->busy) return; /* the pool still reads the buffer: it is left to the end of the process */
  buf_finish(&s->pending);
  buf_finish(&s->writing);
  if (s->fd >= 0) close(s->fd);
}
