/* SPDX-License-Identifier: Apache-2.0 */
/* The pipe is open for reading and writing, so it never ends, and a client that opens it without waiting always finds
 * a reader. The pipe is read before a timer is judged, because its release may be in it.
 *
 * Anyone who can write to the pipe could have a process of ours killed. So a pid counts only if it belongs to a
 * worker's session, both when the timer is set and when it expires.
 *
 * A client's deadline is wall-clock time, and that clock may be set, so the watch reads it every few seconds. */

#include "agent/hang/file_timer_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "proto/msg.h"

enum { LOOK_EVERY_MS = 5000, SCOPE_SHOWN_MAX = 200, TRIES = 100, TROUBLE_MAX = 5 };

struct file_timer_watch {
  struct file_timer_watch_options o;
  struct file_timers *timers;
  char *file;
  int fd;
  uv_poll_t poll;
  uv_timer_t timer;
  int open_handles;
  bool suspended;
  double suspended_s; /* since then */
  int troubles;       /* warnings about invalid requests so far */
  size_t used;        /* of an unfinished line */
  char line[FILE_TIMER_LINE_MAX + 1];
};

static double wall_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Requests. -------------------------------------------------------------------------------------------------------- */

static void warn_ignored(struct file_timer_watch *w, const char *why) {
  if (++w->troubles > TROUBLE_MAX) return;
  log_warn("a request in the timer file %s is ignored: %s", w->file, why);
}

static void take_line(struct file_timer_watch *w, size_t n) {
  struct err e = ERR_INIT;
  struct file_timer request;
  if (file_timer_parse(w->line, n, &request, &e)) {
    warn_ignored(w, e.text);
    return;
  }
  int64_t owner = w->o.owner(w->o.ctx, request.pid);
  if (owner < 0) {
    struct buf why = BUF_INIT;
    buf_printf(&why, "pid %d is not a worker of this agent", (int)request.pid);
    if (request.expires_s >= 0) warn_ignored(w, buf_text(&why));
    buf_finish(&why);
    file_timer_finish(&request);
    return;
  }
  if (file_timers_take(w->timers, &request, (uint32_t)owner, &e)) warn_ignored(w, e.text);
}

static void take_bytes(struct file_timer_watch *w, const char *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (bytes[i] != '\n') {
      if (w->used <= FILE_TIMER_LINE_MAX) w->line[w->used++] = bytes[i];
      continue;
    }
    if (w->used > FILE_TIMER_LINE_MAX)
      warn_ignored(w, "it is longer than PIPE_BUF");
    else
      take_line(w, w->used);
    w->used = 0;
  }
}

static void read_requests(struct file_timer_watch *w) {
  char bytes[FILE_TIMER_LINE_MAX];
  ssize_t n;
  for (int i = 0; i < FILE_TIMERS_MAX && (n = read(w->fd, bytes, sizeof(bytes))) > 0; i++)
    take_bytes(w, bytes, (size_t)n);
}

/* Expiry. ---------------------------------------------------------------------------------------------------------- */

static void expire_timer(struct file_timer_watch *w, const struct file_timer *t, uint32_t owner) {
  const char *name = signal_name(t->signo);
  struct buf why = BUF_INIT;
  buf_puts(&why, "its timer \"");
  buf_put_escaped(&why, t->scope, strlen(t->scope), SCOPE_SHOWN_MAX);
  buf_puts(&why, "\" expired");
  if (t->signo && w->o.owner(w->o.ctx, t->pid) == (int64_t)owner) {
    log_warn("pid %d gets %s: %s (TORCHELASTIC_ENABLE_FILE_TIMER)", (int)t->pid, name ? name : "a signal",
             buf_text(&why));
    if (kill(t->pid, t->signo) == 0)
      w->o.on_expired(w->o.ctx, owner, t->pid, buf_text(&why));
    else
      log_warn("pid %d cannot be signalled: %s", (int)t->pid, strerror(errno));
  } else {
    log_info("pid %d: %s; it has no signal, or the process is gone", (int)t->pid, buf_text(&why));
  }
  buf_finish(&why);
}

static void on_expiry_timer(uv_timer_t *timer);

static void arm_timer(struct file_timer_watch *w) {
  double at;
  if (!file_timers_next(w->timers, &at)) {
    uv_timer_stop(&w->timer);
    return;
  }
  double ms = (at - wall_s()) * 1000 + 1;
  uv_update_time(w->o.loop);
  uv_timer_start(&w->timer, on_expiry_timer, ms < 0 ? 0 : ms < LOOK_EVERY_MS ? (uint64_t)ms : LOOK_EVERY_MS, 0);
}

static void read_and_expire(struct file_timer_watch *w) {
  struct file_timer t;
  uint32_t owner;
  if (w->suspended) return;
  read_requests(w);
  double now_s = wall_s();
  while (file_timers_expired(w->timers, now_s, &t, &owner)) {
    expire_timer(w, &t, owner);
    file_timer_finish(&t);
  }
  arm_timer(w);
}

static void on_expiry_timer(uv_timer_t *timer) {
  read_and_expire(timer->data);
}

static void on_poll(uv_poll_t *poll, int status, int events) {
  read_and_expire(poll->data);
}

void file_timer_watch_suspend(struct file_timer_watch *w, bool on) {
  if (on == w->suspended) return;
  read_requests(w);
  if (on) {
    w->suspended_s = wall_s();
    uv_poll_stop(&w->poll);
    uv_timer_stop(&w->timer);
  } else {
    double seconds = wall_s() - w->suspended_s;
    if (seconds > 0) file_timers_extend(w->timers, seconds);
    uv_poll_start(&w->poll, UV_READABLE, on_poll);
  }
  w->suspended = on;
  if (!on) arm_timer(w);
}

void file_timer_watch_begin(struct file_timer_watch *w, const struct local_set *stay) {
  file_timers_keep(w->timers, stay);
  arm_timer(w);
}

/* The pipe. -------------------------------------------------------------------------------------------------------- */

/* torchrun removes any file of that name. Here only the pipe of an earlier run is removed. */
static int make_named(struct file_timer_watch *w, struct err *e) {
  struct stat st;
  w->file = xstrdup(w->o.file);
  if (lstat(w->file, &st) == 0 && S_ISFIFO(st.st_mode)) unlink(w->file);
  if (mkfifo(w->file, 0600) == 0) return 0;
  return err_sys(e, -errno, "TORCHELASTIC_TIMER_FILE=%s: no named pipe can be made there", w->file);
}

static int make_own(struct file_timer_watch *w, struct err *e) {
  const char *tmp = getenv("TMPDIR");
  const char *folder = tmp && *tmp ? tmp : "/tmp";
  for (int i = 0; i < TRIES; i++) {
    uint64_t number;
    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) break;
    free(w->file);
    w->file = xasprintf("%s/watchdog_timer_%016llx", folder, (unsigned long long)number);
    if (mkfifo(w->file, 0600) == 0) return 0;
    if (errno != EEXIST) break;
  }
  return err_sys(e, -errno, "no named pipe for TORCHELASTIC_ENABLE_FILE_TIMER can be made in %s (TMPDIR)", folder);
}

int file_timer_watch_create(const struct file_timer_watch_options *o, struct file_timer_watch **out, struct err *e) {
  struct file_timer_watch *w = xcalloc(1, sizeof(*w));
  w->o = *o;
  int rc = o->file ? make_named(w, e) : make_own(w, e);
  w->fd = rc ? -1 : open(w->file, O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (rc == 0 && w->fd < 0) rc = err_sys(e, -errno, "the named pipe %s cannot be opened", w->file);
  if (rc) {
    free(w->file);
    free(w);
    return rc;
  }
  w->timers = file_timers_create();
  uv_poll_init(o->loop, &w->poll, w->fd);
  uv_timer_init(o->loop, &w->timer);
  w->poll.data = w->timer.data = w;
  w->open_handles = 2;
  uv_poll_start(&w->poll, UV_READABLE, on_poll);
  uv_unref((uv_handle_t *)&w->poll);
  uv_unref((uv_handle_t *)&w->timer);
  *out = w;
  return 0;
}

const char *file_timer_watch_file(const struct file_timer_watch *w) {
  return w->file;
}

static void on_closed(uv_handle_t *handle) {
  struct file_timer_watch *w = handle->data;
  if (--w->open_handles) return;
  file_timers_destroy(w->timers);
  free(w->file);
  free(w);
}

void file_timer_watch_destroy(struct file_timer_watch *w) {
  if (!w) return;
  uv_close((uv_handle_t *)&w->poll, on_closed);
  uv_close((uv_handle_t *)&w->timer, on_closed);
  close(w->fd);
  w->fd = -1;
  unlink(w->file);
}
