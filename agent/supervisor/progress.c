/* How far the workers of this node are, as they say through the sdk.
 *
 * They may say it thousands of times a second. The latest of each worker is kept, and twice a second the step of the one that is furthest behind
 * goes to the daemon and into the living line: a job is as far as its slowest rank. What they give each other goes through
 * the round's store, and not through here. */

#include "agent/supervisor/internal.h"

#include <math.h>

void sup_progress(struct supervisor *s, const struct supervisor_event *ev) {
  if (ev->round != s->round || ev->local_rank >= s->config.workers || s->state != SUPERVISOR_RUNNING) return;
  struct worker *w = &s->workers[ev->local_rank];
  w->told_progress = true;
  w->step = ev->step <= INT64_MAX ? ev->step : INT64_MAX;
  w->of = ev->of <= INT64_MAX ? ev->of : INT64_MAX;
  w->loss = ev->loss;
  w->samples_per_second = ev->samples_per_second;
  w->sign_ms[SIGN_SDK] = s->now_ms;
  if (!s->progress_new && s->progress_ms < s->now_ms) s->progress_ms = s->now_ms;
  s->progress_new = true;
  if (s->progress_ms == UINT64_MAX) s->progress_ms = s->now_ms;
}

const struct worker *sup_slowest(const struct supervisor *s, double *samples_per_second) {
  const struct worker *least = NULL;
  *samples_per_second = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (!w->told_progress) continue;
    if (!least || w->step < least->step) least = w;
    if (isfinite(w->samples_per_second)) *samples_per_second += w->samples_per_second;
  }
  return least;
}

void sup_progress_tick(struct supervisor *s) {
  if (!s->progress_new || s->now_ms < s->progress_ms || s->state != SUPERVISOR_RUNNING) return;
  struct msg m;
  msg_init(&m, MSG_PROGRESS);
  const struct worker *w = sup_slowest(s, &m.progress.samples_per_second);
  if (!w) return;
  m.progress.incarnation = s->incarnation;
  m.progress.round = s->round;
  m.progress.step = (int64_t)w->step;
  m.progress.of = (int64_t)w->of;
  m.progress.loss = w->loss;
  sup_send(s, &m);
  sup_say_status(s);
  s->progress_new = false;
  s->progress_ms = s->now_ms + PROGRESS_EVERY_MS;
}

uint64_t sup_progress_deadline(const struct supervisor *s) {
  return s->progress_new && s->state == SUPERVISOR_RUNNING ? s->progress_ms : UINT64_MAX;
}
