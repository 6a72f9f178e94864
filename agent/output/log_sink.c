/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's log lines.
 *
 * The relay owns the terminal, because only one writer can keep lines whole and the status line at the bottom. It
 * takes lines and returns at once, so a terminal stopped with Ctrl-S blocks nothing.
 *
 * The log file may be on a network disk, so uv's pool writes it, one write at a time; later lines gather for the next
 * write. A disk that hangs forever costs lines, not the job: the buffer is bounded, and the end of the program does
 * not wait for it. The file gets all levels.
 *
 * A text of several lines (a worker's last lines in a verdict) becomes as many log lines. */

#include "agent/output/log_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/mem.h"

enum { PENDING_MAX = 1024 * 1024 };

static const char program[] = "rdzv-agent";

static void write_pending(struct log_sink *s);

static void on_written(uv_fs_t *req) {
  struct log_sink *s = req->data;
  uv_fs_req_cleanup(req);
  s->busy = false;
  buf_clear(&s->writing);
  write_pending(s);
}

static void write_pending(struct log_sink *s) {
  if (s->busy || s->pending.len == 0) return;
  struct buf swap = s->writing;
  s->writing = s->pending;
  s->pending = swap;
  uv_buf_t b = uv_buf_init(s->writing.data, (unsigned)s->writing.len);
  s->req.data = s;
  s->busy = uv_fs_write(s->loop, &s->req, s->fd, &b, 1, -1, on_written) == 0;
}

static void on_line(void *ctx, enum log_level level, const char *text) {
  struct log_sink *s = ctx;
  char *copy = xstrdup(text), *rest = copy, *line;
  while ((line = strsep(&rest, "\n"))) {
    if (!*line) continue;
    if (level <= s->shown) {
      char *shown = xasprintf("%s: %s%s", program, line, s->relay ? "" : "\n");
      if (s->relay)
        relay_say(s->relay, shown);
      else
        (void)!write(STDERR_FILENO, shown, strlen(shown)); /* a closed stderr cannot be reported */
      free(shown);
    }
    if (s->fd >= 0 && s->pending.len <= PENDING_MAX) {
      char stamp[LOG_STAMP_SIZE];
      buf_append(&s->pending, stamp, log_stamp(stamp));
      buf_puts(&s->pending, line);
      buf_putc(&s->pending, '\n');
      write_pending(s);
    }
  }
  free(copy);
}

int log_sink_init(struct log_sink *s, uv_loop_t *loop, enum log_level shown, const char *file, struct err *e) {
  *s = (struct log_sink){.loop = loop, .shown = shown, .fd = -1};
  if (file) s->fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (file && s->fd < 0) return err_sys(e, -errno, "%s cannot be written (--log-dir)", file);
  log_init(program, s->fd >= 0 ? LOG_DEBUG : shown);
  log_set_sink(on_line, s);
  return 0;
}

void log_sink_use_relay(struct log_sink *s, struct relay *r) {
  s->relay = r;
}

bool log_sink_is_idle(const struct log_sink *s) {
  return !s->busy;
}

void log_sink_finish(struct log_sink *s) {
  log_set_sink(NULL, NULL);
  if (s->busy) return; /* the pool still reads the buffer: it stays until the process ends */
  buf_finish(&s->pending);
  buf_finish(&s->writing);
  if (s->fd >= 0) close(s->fd);
}
