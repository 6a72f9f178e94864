/* SPDX-License-Identifier: Apache-2.0 */
/* How far the workers of this node are, as they report through the sdk.
 *
 * They may report thousands of times a second. The latest report of each worker is kept. Twice a second, and when the
 * round ends here, the step of the worker that is furthest behind goes to the daemon and into the living line: a job is
 * as far as its slowest rank. */

#include "agent/supervisor/internal.h"

#include <math.h>
#include <stdlib.h>
#include "common/mem.h"

enum { PROGRESS_EVERY_MS = 500 };

struct progress_state {
  uint64_t next_ms; /* when the next PROGRESS may be sent; UINT64_MAX: none was sent yet */
  bool news;
  bool any_reported; /* a worker here has ever reported progress or a checkpoint */
};

void sup_progress(struct supervisor *s, const struct supervisor_event *ev) {
  struct worker *w = &s->workers[ev->local_rank];
  w->reports_progress = s->progress->any_reported = true;
  w->step = ev->progress.step <= INT64_MAX ? ev->progress.step : INT64_MAX;
  w->of = ev->progress.of <= INT64_MAX ? ev->progress.of : INT64_MAX;
  w->loss = ev->progress.loss;
  w->samples_per_second = ev->progress.samples_per_second;
  w->sign_ms[SIGN_SDK] = s->now_ms;
  if (!s->progress->news && s->progress->next_ms < s->now_ms) s->progress->next_ms = s->now_ms;
  s->progress->news = true;
  if (s->progress->next_ms == UINT64_MAX) s->progress->next_ms = s->now_ms;
}

const struct worker *sup_slowest(const struct supervisor *s, double *samples_per_second) {
  const struct worker *least = NULL;
  *samples_per_second = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (!w->reports_progress) continue;
    if (!least || w->step < least->step) least = w;
    if (isfinite(w->samples_per_second)) *samples_per_second += w->samples_per_second;
  }
  return least;
}

void sup_progress_tick(struct supervisor *s) {
  if (s->now_ms >= s->progress->next_ms && s->state == SUPERVISOR_RUNNING) sup_progress_flush(s);
}

void sup_progress_flush(struct supervisor *s) {
  if (!s->progress->news) return;
  struct msg m;
  msg_init(&m, MSG_PROGRESS);
  const struct worker *w = sup_slowest(s, &m.progress.samples_per_second);
  if (!w) return;
  m.progress.incarnation = s->round.incarnation;
  m.progress.round = s->round.number;
  m.progress.step = (int64_t)w->step;
  m.progress.of = (int64_t)w->of;
  m.progress.loss = w->loss;
  sup_send(s, &m);
  sup_show_status(s);
  s->progress->news = false;
  s->progress->next_ms = s->now_ms + PROGRESS_EVERY_MS;
}

uint64_t sup_progress_deadline(const struct supervisor *s) {
  return s->progress->news && s->state == SUPERVISOR_RUNNING ? s->progress->next_ms : UINT64_MAX;
}

bool sup_any_reported(const struct supervisor *s) {
  return s->progress->any_reported;
}

void sup_note_reported(struct supervisor *s) {
  s->progress->any_reported = true;
}

void sup_progress_clear(struct supervisor *s) {
  s->progress->news = false;
}

void sup_progress_create(struct supervisor *s) {
  s->progress = xcalloc(1, sizeof *s->progress);
  s->progress->next_ms = UINT64_MAX;
}

void sup_progress_destroy(struct supervisor *s) {
  free(s->progress);
}
