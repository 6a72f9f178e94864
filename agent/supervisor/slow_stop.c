/* SPDX-License-Identifier: Apache-2.0 */
/* The workers that have not stopped yet.
 *
 * Most workers stop within milliseconds and need no line. A worker that hangs in a collective, or saves its state,
 * takes longer. Then a person in front of a quiet terminal wants to know which worker the agent waits for, how long
 * that will take, and which option changes it. So two seconds into a stop a line names the workers that are still
 * there, when they will be killed, and by which option. Another line follows every ten seconds.
 *
 * Only a stop with a grace has a line. A process that was killed at once, and does not die, is named by the guard
 * (STUCK). A worker that is gone may have left others in its process group (the real program behind a shell). When all
 * workers are gone and the guard has not said CLEAR, the line names these. */

#include "agent/supervisor/internal.h"

enum { FIRST_MS = 2000, EVERY_MS = 10000, NAMES_MAX = 8 };

void sup_wait_begin(struct supervisor *s, uint64_t grace_ms) {
  uint64_t kill_ms = s->now_ms + grace_ms;
  bool begun = s->stop.line_ms != UINT64_MAX;
  if (!begun || kill_ms < s->stop.kill_ms) s->stop.kill_ms = kill_ms;
  if (!begun && grace_ms) s->stop.line_ms = s->now_ms + FIRST_MS;
}

void sup_wait_tick(struct supervisor *s) {
  if (s->now_ms < s->stop.line_ms) return;
  s->stop.line_ms = UINT64_MAX;
  if (s->state != SUPERVISOR_STOPPING || s->now_ms >= s->stop.kill_ms) return;
  struct buf names = BUF_INIT;
  /* "1, 3 (pid 40, 42)", or "" where no worker is left. */
  struct buf pids = BUF_INIT;
  int n = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (!w->spawned || w->gone || w->parked || n++ >= NAMES_MAX) continue;
    buf_printf(&names, "%s%lld", names.len ? ", " : "", (long long)(s->round.rank_base + i));
    buf_printf(&pids, "%s%d", pids.len ? ", " : "", w->pid);
  }
  if (n > NAMES_MAX) buf_printf(&names, " and %d more", n - NAMES_MAX);
  if (n) buf_printf(&names, " (pid %s%s)", buf_text(&pids), n > NAMES_MAX ? ", ..." : "");
  buf_finish(&pids);
  sup_log(s, LOG_INFO, "waiting for %s%s to stop, SIGKILL in %.0f s (--stop-timeout)",
          names.len ? "rank " : "processes that the workers left behind", buf_text(&names),
          (double)(s->stop.kill_ms - s->now_ms) / 1000);
  buf_finish(&names);
  s->stop.line_ms = s->now_ms + EVERY_MS;
}

uint64_t sup_wait_deadline(const struct supervisor *s) {
  return s->stop.line_ms;
}
