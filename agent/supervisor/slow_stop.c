/* Who has not stopped yet.
 *
 * A worker that is told to stop mostly does within milliseconds, and nobody wants to read of it. One that hangs in a
 * collective, or saves its state, takes longer, and then a person in front of a quiet terminal asks three things: what
 * is it waiting for, how long will that take, and can it be changed. So two seconds into a stop one line says who is
 * still there, when it will be killed, and by which option that was decided; then another every ten seconds.
 *
 * Only a stop with a grace has a line: what was killed at once, and does not die, is the guard's to name (STUCK). A
 * worker that is gone may have left others in its process group (the real program behind a shell): when all workers are
 * gone and the guard is not done, these are what is waited for. */

#include "agent/supervisor/internal.h"

enum { FIRST_MS = 2000, EVERY_MS = 10000, NAMES_MAX = 8 };

void sup_wait_begin(struct supervisor *s, uint64_t grace_ms) {
  uint64_t kill_ms = s->now_ms + grace_ms;
  bool begun = s->wait_ms != UINT64_MAX;
  if (!begun || kill_ms < s->kill_ms) s->kill_ms = kill_ms;
  if (!begun && grace_ms) s->wait_ms = s->now_ms + FIRST_MS;
}

/* "1, 3 (pid 40, 42)", or "" where no worker is left. */
static void put_names(const struct supervisor *s, struct buf *out) {
  struct buf pids = BUF_INIT;
  int n = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (!w->spawned || w->gone || w->parked || n++ >= NAMES_MAX) continue;
    buf_printf(out, "%s%lld", out->len ? ", " : "", (long long)(s->rank_base + i));
    buf_printf(&pids, "%s%d", pids.len ? ", " : "", w->pid);
  }
  if (n > NAMES_MAX) buf_printf(out, " and %d more", n - NAMES_MAX);
  if (n) buf_printf(out, " (pid %s%s)", buf_text(&pids), n > NAMES_MAX ? ", ..." : "");
  buf_finish(&pids);
}

void sup_wait_tick(struct supervisor *s) {
  if (s->now_ms < s->wait_ms) return;
  s->wait_ms = UINT64_MAX;
  if (s->state != SUPERVISOR_STOPPING || s->now_ms >= s->kill_ms) return;
  struct buf names = BUF_INIT;
  put_names(s, &names);
  sup_say(s, LOG_INFO, "waiting for %s%s to stop, SIGKILL in %.0f s (--stop-timeout)",
          names.len ? "rank " : "what the workers left behind", buf_text(&names),
          (double)(s->kill_ms - s->now_ms) / 1000);
  buf_finish(&names);
  s->wait_ms = s->now_ms + EVERY_MS;
}

uint64_t sup_wait_deadline(const struct supervisor *s) {
  return s->wait_ms;
}
