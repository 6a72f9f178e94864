/* SPDX-License-Identifier: Apache-2.0 */
/* How far the workers of this node are, as they report through the sdk: steps, checkpoints, and where they resumed.
 *
 * They may report thousands of times a second. The latest report of each worker is kept. Twice a second, and when the
 * round ends here, the step of the worker that is furthest behind goes to the daemon and into the living line: a job is
 * as far as its slowest rank. The daemon also gets the age of the oldest step, so a hang shows as an age that grows.
 *
 * A laggard is a worker that has not come where the furthest worker of this node was half a second ago, give or take a
 * step, or two seconds ago. The past counts, not the present: librdzv sends a report every 20 ms at most, so the latest
 * reports of workers that run in step may differ by many short steps. A few past leads are kept for that. PROGRESS is
 * also sent when a worker becomes a laggard, since nobody may report any more then. */

#include "agent/supervisor/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"

enum {
  PROGRESS_EVERY_MS = 500,
  SAVING_EVERY_MS = 2000, /* while a worker waits for a checkpoint, and nothing else is new */
  LAG_STEPS_MS = 500,     /* a worker lags that is more than a step behind a lead so old, */
  LAG_STEP_MS = 2000,     /* or behind one so old */
};

/* Reports. --------------------------------------------------------------------------------------------------------- */

static void note_lead(struct supervisor *s, uint64_t step) {
  struct progress_state *p = &s->progress;
  p->lead = (struct lead){step, s->now_ms};
  if (p->n && s->now_ms - p->v[0].at_ms < PROGRESS_EVERY_MS) return;
  memmove(&p->v[1], &p->v[0], (LEADS - 1) * sizeof *p->v);
  p->v[0] = p->lead;
  if (p->n < LEADS) p->n++;
}

static void forget_leads(struct progress_state *p) {
  p->lead = (struct lead){0, 0};
  p->n = 0;
}

static uint64_t sound_step(uint64_t step) {
  return step <= INT64_MAX ? step : INT64_MAX;
}

void sup_progress(struct supervisor *s, const struct supervisor_event *ev) {
  struct worker *w = &s->workers[ev->local_rank];
  uint64_t step = sound_step(ev->progress.step);
  if (!w->reports_progress || w->step != step) w->stepped_ms = s->now_ms;
  w->reports_progress = s->progress.any_reported = true;
  w->step = step;
  w->of = sound_step(ev->progress.of);
  w->loss = ev->progress.loss;
  w->samples_per_second = ev->progress.samples_per_second;
  w->sign_ms[SIGN_SDK] = s->now_ms;
  if (step > s->progress.lead.step || !s->progress.n) note_lead(s, step);
  if (s->account.first_step < 0) {
    s->account.first_step = (int64_t)w->step;
    s->account.first_step_ms = s->now_ms;
  }
  s->progress.news = true;
}

void sup_resumed(struct supervisor *s, const struct supervisor_event *ev) {
  struct worker *w = &s->workers[ev->local_rank];
  w->resumes = true;
  w->resumed_step = sound_step(ev->step);
  w->sign_ms[SIGN_SDK] = s->now_ms;
  s->progress.news = true;
}

void sup_note_saved(struct supervisor *s, struct worker *w, uint64_t step) {
  w->saves = s->progress.any_reported = true;
  w->saved_step = sound_step(step);
  s->progress.news = true;
}

void sup_saved(struct supervisor *s, const struct supervisor_event *ev) {
  sup_note_saved(s, &s->workers[ev->local_rank], ev->step);
  s->workers[ev->local_rank].sign_ms[SIGN_SDK] = s->now_ms;
}

static uint64_t saving_ms(const struct supervisor *s, const struct worker *w) {
  return w->saving_ms + (w->saving_since_ms ? s->now_ms - w->saving_since_ms : 0);
}

void sup_saving(struct supervisor *s, const struct supervisor_event *ev) {
  struct worker *w = &s->workers[ev->local_rank];
  w->saving_ms = saving_ms(s, w);
  w->saving_since_ms = ev->on ? s->now_ms : 0;
  w->sign_ms[SIGN_SDK] = s->now_ms;
  s->progress.news = true;
}

/* What they add up to. --------------------------------------------------------------------------------------------- */

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

/* More steps are expected of it. */
static bool is_stepping(const struct worker *w) {
  return w->reports_progress && !w->exited && !w->gone && !w->parked && !(w->of && w->step >= w->of);
}

static bool is_saving(const struct supervisor *s, const struct worker *w) {
  return w->saving_since_ms != 0;
}

/* Laggards. -------------------------------------------------------------------------------------------------------- */

static void add_laggard(struct laggard v[LAGGARDS_MAX], size_t *n, struct laggard l) {
  size_t at = *n;
  while (at > 0 && v[at - 1].step > l.step) at--;
  if (at == LAGGARDS_MAX) return;
  if (*n < LAGGARDS_MAX) ++*n;
  memmove(&v[at + 1], &v[at], (*n - at - 1) * sizeof *v);
  v[at] = l;
}

static size_t find_laggards(struct supervisor *s, struct laggard v[LAGGARDS_MAX], struct local_set *all) {
  struct progress_state *p = &s->progress;
  size_t n = 0;
  p->lag_ms = UINT64_MAX;
  *all = (struct local_set){{0}};
  /* The workers of a round may begin to count anew, and the one that leads may end. */
  bool reached = false;
  for (int64_t i = 0; i < s->config.workers && !reached; i++)
    reached = is_stepping(&s->workers[i]) && s->workers[i].step >= p->lead.step;
  if (!reached) forget_leads(p);
  for (int64_t i = 0; i < s->config.workers && !reached; i++) {
    const struct worker *w = &s->workers[i];
    if (is_stepping(w) && (w->step > p->lead.step || !p->n)) note_lead(s, w->step);
  }
  for (int64_t i = 0; p->n && i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (!is_stepping(w)) continue;
    uint64_t due_ms = UINT64_MAX; /* when w lags unless it reports before */
    for (size_t k = 0; k <= p->n; k++) {
      const struct lead *l = k < p->n ? &p->v[k] : &p->lead;
      if (l->step <= w->step) continue;
      due_ms = earliest(due_ms, l->at_ms + (l->step - w->step > 1 ? LAG_STEPS_MS : LAG_STEP_MS));
    }
    if (due_ms > s->now_ms) {
      p->lag_ms = earliest(p->lag_ms, due_ms);
      continue;
    }
    local_set_add(all, (uint32_t)i);
    add_laggard(v, &n, (struct laggard){i, (int64_t)w->step, (int64_t)(s->now_ms - w->stepped_ms)});
  }
  return n;
}

/* PROGRESS. -------------------------------------------------------------------------------------------------------- */

static void send_progress(struct supervisor *s) {
  struct laggard laggards[LAGGARDS_MAX];
  struct msg m;
  msg_init(&m, MSG_PROGRESS);
  m.progress.incarnation = s->round.incarnation;
  m.progress.round = s->round.number;
  const struct worker *least = sup_slowest(s, &m.progress.samples_per_second);
  m.progress.step = -1;
  if (least) {
    uint64_t since_ms = UINT64_MAX;
    for (int64_t i = 0; i < s->config.workers; i++)
      if (is_stepping(&s->workers[i]) && s->workers[i].stepped_ms < since_ms) since_ms = s->workers[i].stepped_ms;
    if (since_ms == UINT64_MAX) since_ms = least->stepped_ms;
    m.progress.step = (int64_t)least->step;
    m.progress.of = (int64_t)least->of;
    m.progress.loss = least->loss;
    m.progress.age_ms = (int64_t)(s->now_ms - since_ms);
  }
  /* The fields about saving, and about the start of the round. */
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    int64_t resumed = (int64_t)w->resumed_step, saved = (int64_t)w->saved_step, ms = (int64_t)saving_ms(s, w);
    if (w->resumes && (m.progress.resumed < 0 || resumed < m.progress.resumed)) m.progress.resumed = resumed;
    if (w->saves && (m.progress.saved < 0 || saved < m.progress.saved)) m.progress.saved = saved;
    if (ms > m.progress.saving_ms) m.progress.saving_ms = ms;
  }
  m.progress.laggards = laggards;
  m.progress.n_laggards = find_laggards(s, laggards, &s->progress.laggards);
  sup_send(s, &m);
  sup_show_status(s);
  if (s->config.wants_progress && s->round.node_rank == 0 && least) {
    struct supervisor_effect *fx = sup_effect(s, SUP_ADVANCED);
    int64_t step = m.progress.step, of = m.progress.of, made = step - s->account.first_step;
    fx->advanced.step = step;
    fx->advanced.of = of;
    fx->advanced.loss = m.progress.loss;
    fx->advanced.remaining_s = -1;
    if (of && step >= of)
      fx->advanced.remaining_s = 0;
    else if (of && s->account.first_step >= 0 && made > 0) {
      double left = (double)(s->now_ms - s->account.first_step_ms) / 1000 * (double)(of - step) / (double)made;
      if (left < INT32_MAX) fx->advanced.remaining_s = (int64_t)left;
    }
  }
  s->progress.news = false;
  s->progress.saving = sup_any_worker(s, is_saving);
  s->progress.sent_ms = s->now_ms;
}

void sup_progress_flush(struct supervisor *s) {
  if (s->progress.news) send_progress(s);
}

/* When what is new is sent; UINT64_MAX: nothing is. */
static uint64_t due_ms(const struct progress_state *p) {
  if (p->news && !p->sent_ms) return 0;
  return p->news ? p->sent_ms + PROGRESS_EVERY_MS : p->saving ? p->sent_ms + SAVING_EVERY_MS : UINT64_MAX;
}

void sup_progress_tick(struct supervisor *s) {
  struct progress_state *p = &s->progress;
  if (s->state != SUPERVISOR_RUNNING) return;
  if (s->now_ms >= due_ms(p)) {
    send_progress(s);
  } else if (s->now_ms >= p->lag_ms) {
    struct laggard v[LAGGARDS_MAX];
    struct local_set all;
    find_laggards(s, v, &all);
    if (!local_set_is_within(&all, &p->laggards)) send_progress(s);
  }
}

uint64_t sup_progress_deadline(const struct supervisor *s) {
  const struct progress_state *p = &s->progress;
  if (s->state != SUPERVISOR_RUNNING) return UINT64_MAX;
  return earliest(p->lag_ms, due_ms(p));
}

void sup_progress_repeat(struct supervisor *s) {
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (!w->reports_progress && !w->resumes && !w->saves && !w->saving_ms && !w->saving_since_ms) continue;
    s->progress.sent_ms = 0;
    s->progress.news = true;
    return;
  }
}

void sup_progress_clear(struct supervisor *s) {
  s->progress.news = s->progress.saving = false;
  s->progress.lag_ms = UINT64_MAX;
  s->progress.laggards = (struct local_set){{0}};
  forget_leads(&s->progress);
}
