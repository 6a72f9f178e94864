/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a job with a time limit.
 *
 * Schedulers give it as a time of day. A signal that the scheduler sends in time (Slurm's --signal, -notify) is
 * better, since it follows a changed limit. --leave-before-end is for other schedulers and uses the limit known at the
 * start.
 *
 * The wall clock counts, as for the scheduler. A waiting caller checks it at least once a minute, in case the clock
 * was set or the machine slept.
 *
 * A job shorter than --leave-before-end would leave at once, and its exit code would requeue it forever, so it is
 * refused. */

#include "agent/job_times.h"

#include <errno.h>
#include <inttypes.h>
#include <time.h>
#include "common/system/clock.h"
#include "common/system/log.h"

/* "90s", "12m", "3h 5m", "2d 3h" */
static void put_span(struct buf *out, int64_t ms) {
  int64_t s = ms < 0 ? 0 : ms / 1000, m = s / 60, h = m / 60;
  if (s < 120)
    buf_printf(out, "%" PRId64 "s", s);
  else if (m < 60)
    buf_printf(out, "%" PRId64 "m", m);
  else if (h < 24)
    buf_printf(out, "%" PRId64 "h %" PRId64 "m", h, m % 60);
  else
    buf_printf(out, "%" PRId64 "d %" PRId64 "h", h / 24, h % 24);
}

int64_t job_times_left_ms(const struct agent_options *o) {
  if (!o->end_time || !o->leave_before_end_ms) return -1;
  int64_t left = o->end_time * 1000 - o->leave_before_end_ms - (int64_t)wall_ms();
  return left > 0 ? left : 0;
}

int job_times_check(const struct agent_options *o, struct err *e) {
  struct buf before = BUF_INIT, left = BUF_INIT;
  if (job_times_left_ms(o) != 0) return 0;
  put_span(&before, o->leave_before_end_ms);
  put_span(&left, o->end_time * 1000 - (int64_t)wall_ms());
  int rc = err_set(
      e, -EINVAL, "--leave-before-end is %s, but the job ends in %s (%s): no time is left to run; request a longer job",
      buf_text(&before), buf_text(&left), o->from.end_time);
  buf_finish(&before);
  buf_finish(&left);
  return rc;
}

void job_times_reason(const struct agent_options *o, struct buf *out) {
  buf_puts(out, "the scheduler ends the job in ");
  put_span(out, o->end_time * 1000 - (int64_t)wall_ms());
}

bool job_times_end(const struct agent_options *o, char out[JOB_TIMES_LEN]) {
  struct tm tm;
  time_t end = (time_t)o->end_time;
  return o->end_time && localtime_r(&end, &tm) && strftime(out, JOB_TIMES_LEN, "%Y-%m-%d %H:%M:%S", &tm);
}

void job_times_say(const struct agent_options *o) {
  struct buf text = BUF_INIT;
  char when[JOB_TIMES_LEN];
  if (o->order_key > 0 || (!o->end_time && o->scheduler_restarts <= 0)) return;
  if (job_times_end(o, when)) {
    buf_printf(&text, "the scheduler ends the job at %s, in ", when);
    put_span(&text, o->end_time * 1000 - (int64_t)wall_ms());
  }
  if (o->leave_before_end_ms) {
    buf_puts(&text, "; its agents leave ");
    put_span(&text, o->leave_before_end_ms);
    buf_puts(&text, " before");
  }
  if (o->scheduler_restarts > 0)
    buf_printf(&text, "%sthe scheduler has started it %" PRId64 " time%s before", text.len ? "; " : "",
               o->scheduler_restarts, o->scheduler_restarts == 1 ? "" : "s");
  if (text.len) log_info("%s", buf_text(&text));
  buf_finish(&text);
}
