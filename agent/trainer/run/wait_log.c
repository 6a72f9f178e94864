/* SPDX-License-Identifier: Apache-2.0 */
/* One thread and one mutex. The thread sleeps until a wait is old enough for its next line, or until there is a wait.
 *
 * A line is logged with the mutex held, so that the lines of one wait come in their order. The work itself takes no
 * lock: it adds to a tally, which is atomic. The thread blocks all signals, which are for the training thread. */

#include "agent/trainer/run/wait_log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include "agent/trainer/checkpoint/checkpoint.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/log.h"

enum { WHAT_MAX = 512, LEAVE_S = 5 };

/* The lines. The time left is that at the mean speed so far; it is left out before anything is done, and while nothing
 * moves. */

static void put_seconds(struct buf *out, double s) {
  if (s < 9.95)
    buf_printf(out, "%.1f s", s);
  else if (s < 119.5)
    buf_printf(out, "%.0f s", s);
  else
    buf_printf(out, "%.0f min", s / 60);
}

/* Bytes of two amounts in the unit of the larger, so that they compare. */
static double byte_unit(uint64_t most, const char **name) {
  *name = most >= 1000000000 ? "GB" : most >= 1000000 ? "MB" : "KB";
  return most >= 1000000000 ? 1e9 : most >= 1000000 ? 1e6 : 1e3;
}

void wait_log_line(const struct wait_state *s, struct buf *out) {
  const char *name = s->unit;
  double each = s->unit ? 1 : byte_unit(s->total, &name);
  buf_printf(out, "%s: ", s->what);
  if (s->total)
    buf_printf(out, s->unit ? "%.0f of %.0f %s after " : "%.1f of %.1f %s after ", (double)s->done / each,
               (double)s->total / each, name);
  put_seconds(out, (double)s->ms / 1000);
  if (!s->total) buf_puts(out, " so far");
  if (!s->total || s->done >= s->total) return;
  if (s->still_ms >= s->every_ms) {
    buf_printf(out, ", none of them in the last ");
    put_seconds(out, (double)s->still_ms / 1000);
  } else if (s->done) {
    buf_puts(out, ", about ");
    put_seconds(out, (double)s->ms / 1000 * (double)(s->total - s->done) / (double)s->done);
    buf_puts(out, " left");
  }
}

void wait_log_last_line(const struct wait_state *s, struct buf *out) {
  const char *name;
  buf_printf(out, "%s ended after ", s->what);
  put_seconds(out, (double)s->ms / 1000);
  if (!s->total || s->unit || s->done < s->total || !s->ms) return;
  double each = byte_unit(s->total, &name), rate = (double)s->total * 1000 / (double)s->ms;
  buf_printf(out, ": %.1f %s, ", (double)s->total / each, name);
  each = byte_unit((uint64_t)rate, &name);
  buf_printf(out, "%.3g %s/s", rate / each, name);
}

/* The log. */

struct wait_log {
  struct ckpt_thread log;
  bool logged; /* of this wait there is a line already */
  uint64_t every_ms;
  char what[WHAT_MAX]; /* "": nothing is waited for */
  const char *unit;
  const struct tally *tally;
  uint64_t since_ms, next_ms, moved_ms, seen; /* seen: what the tally was when it last moved */
};

/* Holds the mutex. */
static void log_state(struct wait_log *w, void (*line)(const struct wait_state *s, struct buf *out)) {
  struct buf text = BUF_INIT;
  uint64_t now = monotonic_ms();
  struct wait_state s = {.what = w->what, .unit = w->unit, .ms = now - w->since_ms, .every_ms = w->every_ms};
  if (w->tally) s.done = atomic_load(&w->tally->done);
  if (w->tally) s.total = atomic_load(&w->tally->total);
  if (s.done != w->seen) {
    w->seen = s.done;
    w->moved_ms = now;
  }
  s.still_ms = now - w->moved_ms;
  line(&s, &text);
  log_info("%s", buf_text(&text));
  buf_finish(&text);
}

static void *wait_log_main(void *arg) {
  struct wait_log *w = arg;
  pthread_mutex_lock(&w->log.mutex);
  while (!w->log.stop) {
    if (!w->what[0]) {
      pthread_cond_wait(&w->log.changed, &w->log.mutex);
    } else if (monotonic_ms() >= w->next_ms) {
      log_state(w, wait_log_line);
      w->logged = true;
      w->next_ms = monotonic_ms() + w->every_ms;
    } else {
      ckpt_thread_wait(&w->log, w->next_ms);
    }
  }
  pthread_mutex_unlock(&w->log.mutex);
  return NULL;
}

struct wait_log *wait_log_create(uint64_t every_ms) {
  struct wait_log *w = xcalloc(1, sizeof *w);
  w->every_ms = every_ms;
  if (ckpt_thread_start(&w->log, wait_log_main, w) == 0) return w;
  log_debug("long waits are not logged: a thread cannot be created");
  free(w);
  return NULL;
}

void wait_log_destroy(struct wait_log *w) {
  if (w && ckpt_thread_end(&w->log, LEAVE_S)) free(w);
}

/* Holds the mutex. */
static void end_wait(struct wait_log *w) {
  if (w->what[0] && w->logged) log_state(w, wait_log_last_line);
  w->what[0] = 0;
  w->tally = NULL;
}

void wait_log_begin(struct wait_log *w, const struct tally *tally, const char *unit, const char *fmt, ...) {
  va_list ap;
  if (!w) return;
  va_start(ap, fmt);
  pthread_mutex_lock(&w->log.mutex);
  end_wait(w);
  vsnprintf(w->what, sizeof w->what, fmt, ap);
  w->unit = unit;
  w->tally = tally;
  w->seen = tally ? atomic_load(&tally->done) : 0;
  w->since_ms = w->moved_ms = monotonic_ms();
  w->next_ms = w->since_ms + w->every_ms;
  w->logged = false;
  pthread_cond_signal(&w->log.changed);
  pthread_mutex_unlock(&w->log.mutex);
  va_end(ap);
}

void wait_log_end(struct wait_log *w) {
  if (!w) return;
  pthread_mutex_lock(&w->log.mutex);
  end_wait(w);
  pthread_mutex_unlock(&w->log.mutex);
}
