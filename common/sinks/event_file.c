/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on their way to the file of --events.
 *
 *   put -> pending -> 20 ms later a thread opens, looks whether the file was renamed, writes -> on_written -> what came meanwhile
 *
 * One thread at a time: what comes while it writes is written together next. A thread begins a little after an event,
 * because the next round follows a failure, and thousands of nodes join together. The file is opened with O_APPEND, and
 * whole lines go out in one write, so several processes may share it. A write that was cut short leaves the rest at the
 * front of what is pending, and it goes into the same file.
 *
 * What cannot be written waits, EVENT_FILE_PENDING_MAX bytes of it, and is tried again every second. Beyond that, events
 * are dropped: one line says so, and when the file can be written again, an event in it says how many. A call that hangs
 * is left behind at the end (common/system/aside.h). */

#include "common/sinks/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/events/event.h"
#include "common/mem.h"
#include "common/system/aside.h"
#include "common/system/clock.h"
#include "common/system/log.h"

/* What the thread gets, and gives back. All of it is in one piece, which is the thread's if it is left behind. */
struct writing {
  int fd;        /* -1: not open */
  bool mid_line; /* the file ends within a line of ours */
  size_t path_size, len, written;
  int error;
  char data[]; /* the path and its NUL, then the text */
};

struct event_file {
  uv_loop_t *loop;
  char *path;
  struct buf pending, batch;
  struct aside *aside; /* NULL: nothing is being written */
  uv_timer_t timer;    /* the retry; or a write that is slow; or the end */
  int fd;
  bool mid_line, opened, failing, slow, closing, closed;
  size_t dropped;
};

/* In the thread. --------------------------------------------------------------------------------------------------- */

static int open_file(const char *path) {
  struct stat st;
  if (!strcmp(path, "-")) return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK; /* a pipe without a reader: ENXIO */
  int fd = open(path, flags, 0666);
  if (fd < 0) return -1;
  if (fstat(fd, &st) == 0 && !S_ISFIFO(st.st_mode)) fcntl(fd, F_SETFL, O_WRONLY | O_APPEND);
  return fd;
}

/* The path leads to another file than the open one, or to none. */
static bool was_renamed(const struct writing *w) {
  struct stat open_one, there;
  if (w->fd < 0 || w->mid_line || !strcmp(w->data, "-") || fstat(w->fd, &open_one) < 0) return false;
  if (!S_ISREG(open_one.st_mode)) return false;
  return stat(w->data, &there) < 0 || there.st_dev != open_one.st_dev || there.st_ino != open_one.st_ino;
}

static void forget_file(struct writing *w) {
  if (w->fd >= 0) close(w->fd);
  w->fd = -1;
}

static void write_batch(void *room) {
  struct writing *w = room;
  const char *text = w->data + w->path_size;
  if (was_renamed(w)) forget_file(w);
  if (w->fd < 0) w->fd = open_file(w->data);
  w->error = w->fd < 0 ? errno : 0;
  while (!w->error && w->written < w->len) {
    ssize_t n = write(w->fd, text + w->written, w->len - w->written);
    if (n > 0)
      w->written += (size_t)n;
    else if (n == 0 || errno != EINTR)
      w->error = n == 0 ? ENOSPC : errno;
  }
  if (w->written) w->mid_line = text[w->written - 1] != '\n';
  if (w->error && w->error != ENOSPC && w->error != EDQUOT && w->error != EAGAIN) forget_file(w);
}

/* In the loop. ----------------------------------------------------------------------------------------------------- */

static void write_pending(struct event_file *f);
static void finish_close(struct event_file *f);

static const char *describe(int error) {
  if (error == ENXIO) return "no process reads this pipe";
  if (error == EPIPE) return "the process that read this pipe is gone";
  if (error == EAGAIN) return "the process that reads this pipe does not keep up";
  return strerror(error);
}

static void on_timer(uv_timer_t *timer) {
  struct event_file *f = timer->data;
  if (f->closing) {
    log_warn("--events %s has not been written within %d s; the last events are lost", f->path,
             EVENT_FILE_LAST_MS / 1000);
    finish_close(f);
  } else if (f->aside) {
    f->slow = true;
    log_warn("--events %s: a write has taken %d s; events wait, and nothing else does", f->path,
             EVENT_FILE_SLOW_MS / 1000);
  } else {
    write_pending(f);
  }
}

static void set_timer(struct event_file *f, uint64_t ms) {
  if (f->closing) return; /* it is the timer of the end */
  uv_update_time(f->loop);
  uv_timer_start(&f->timer, on_timer, ms, 0);
  uv_unref((uv_handle_t *)&f->timer);
}

/* The rest goes out first next time. */
static void keep_rest(struct event_file *f, size_t written) {
  struct buf rest = BUF_INIT;
  buf_append(&rest, f->batch.data + written, f->batch.len - written);
  buf_append(&rest, f->pending.data, f->pending.len);
  buf_finish(&f->pending);
  f->pending = rest;
}

static void on_written(void *ctx, void *room) {
  struct event_file *f = ctx;
  const struct writing *w = room;
  f->aside = NULL;
  f->fd = w->fd;
  f->mid_line = w->mid_line;
  if (!f->closing) uv_timer_stop(&f->timer);
  if (w->error) {
    keep_rest(f, w->written);
    if (!f->failing)
      log_warn("--events %s cannot be written: %s; events wait until it can, up to 8 MiB of them", f->path,
               describe(w->error));
    f->failing = true;
    set_timer(f, w->error == EAGAIN ? EVENT_FILE_FULL_MS : EVENT_FILE_RETRY_MS);
  } else {
    if (f->failing || f->slow) log_info("--events %s is written again; %zu events were dropped", f->path, f->dropped);
    if (f->dropped) {
      /* An event about those that were dropped, in front of the next ones. */
      struct event e;
      struct buf text = BUF_INIT;
      buf_printf(&text, "%zu events are lost: this file could not be written", f->dropped);
      event_init(&e, EVENT_EVENTS_DROPPED, wall_ms());
      event_int(&e, EVENT_DROPPED, (int64_t)f->dropped);
      event_text(&e, EVENT_MESSAGE, buf_text(&text));
      event_line(&e, &f->pending);
      buf_putc(&f->pending, '\n');
      buf_finish(&text);
    }
    f->failing = f->slow = false;
    f->dropped = 0;
  }
  buf_finish(&f->batch); /* a thousand nodes that join leave nothing behind */
  if (f->closing && (w->error || !f->pending.len))
    finish_close(f);
  else if (!w->error)
    write_pending(f);
}

/* Also the first call, without a line: it opens the file. */
static void write_pending(struct event_file *f) {
  struct err e = ERR_INIT;
  if (f->aside || f->closed || (!f->pending.len && f->opened)) return;
  struct buf swap = f->batch;
  f->batch = f->pending;
  f->pending = swap;
  buf_clear(&f->pending);
  size_t path_size = strlen(f->path) + 1, size = sizeof(struct writing) + path_size + f->batch.len;
  struct writing *w = xcalloc(1, size);
  *w = (struct writing){.fd = f->fd, .mid_line = f->mid_line, .path_size = path_size, .len = f->batch.len};
  memcpy(w->data, f->path, path_size);
  if (f->batch.len) memcpy(w->data + path_size, f->batch.data, f->batch.len);
  f->aside = aside_start(f->loop, write_batch, w, size, on_written, f, &e);
  free(w);
  f->opened = true;
  if (f->aside) {
    set_timer(f, EVENT_FILE_SLOW_MS);
    return;
  }
  keep_rest(f, 0);
  buf_clear(&f->batch);
  set_timer(f, EVENT_FILE_RETRY_MS);
  if (f->closing) finish_close(f);
}

void event_file_put(struct event_file *f, const char *line) {
  size_t n = strlen(line) + 1;
  if (f->closing) return;
  if (f->pending.len + f->batch.len + n > EVENT_FILE_PENDING_MAX) {
    if (!f->dropped++) log_warn("--events %s: 8 MiB of events wait; further ones are dropped", f->path);
    return;
  }
  buf_append(&f->pending, line, n - 1);
  buf_putc(&f->pending, '\n');
  if (!f->failing && !f->aside && !uv_is_active((uv_handle_t *)&f->timer)) set_timer(f, EVENT_FILE_LATER_MS);
}

struct event_file *event_file_create(uv_loop_t *loop, const char *path) {
  struct event_file *f = xcalloc(1, sizeof *f);
  *f = (struct event_file){.loop = loop, .path = xstrdup(path), .fd = -1};
  uv_timer_init(loop, &f->timer);
  f->timer.data = f;
  uv_unref((uv_handle_t *)&f->timer);
  write_pending(f);
  return f;
}

/* The end. --------------------------------------------------------------------------------------------------------- */

static size_t count_lines(const struct buf *b) {
  size_t n = 0;
  for (size_t i = 0; i < b->len; i++) n += b->data[i] == '\n';
  return n;
}

static void finish_close(struct event_file *f) {
  if (f->closed) return;
  f->closed = true;
  f->dropped += count_lines(&f->pending) + (f->aside ? count_lines(&f->batch) : 0);
  if (f->dropped) log_warn("--events %s: %zu events were not written", f->path, f->dropped);
  if (f->aside) aside_leave(f->aside);
  uv_close((uv_handle_t *)&f->timer, NULL);
}

void event_file_close(struct event_file *f) {
  if (!f || f->closing) return;
  if (!f->aside) write_pending(f);
  f->closing = true;
  if (!f->aside) {
    finish_close(f);
    return;
  }
  uv_update_time(f->loop);
  uv_ref((uv_handle_t *)&f->timer);
  uv_timer_start(&f->timer, on_timer, EVENT_FILE_LAST_MS, 0);
}

bool event_file_is_closed(const struct event_file *f) {
  return !f || f->closed;
}

void event_file_destroy(struct event_file *f) {
  if (!f) return;
  if (f->fd >= 0 && !f->aside)
    close(f->fd); /* else a thread that hangs still has it, and the process is about to exit */
  buf_finish(&f->pending);
  buf_finish(&f->batch);
  free(f->path);
  free(f);
}
