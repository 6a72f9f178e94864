/* SPDX-License-Identifier: Apache-2.0 */
/* How a job came forward.
 *
 * Two readers need it. The page draws loss and speed over time. The account asks at how much productive time the job
 * had reached a step, when a round goes on behind that step and all later work is lost.
 *
 * Work that is done again is there twice, and the later time counts: the look-up goes backwards from the newest point.
 * A round that went back begins with a point of its own, at its first step and what was productive until there. So the
 * points of one line of work are next to each other, except for a drop, over which nothing is interpolated. */

#include "daemon/goodput/history.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

void history_finish(struct history *h) {
  free(h->v);
  memset(h, 0, sizeof *h);
}

static void append(struct history *h, const struct history_point *p) {
  if (!h->v) {
    h->v = xcalloc(HISTORY_MAX, sizeof *h->v);
    h->every_ms = HISTORY_EVERY_MS;
  }
  if (h->n == HISTORY_MAX) {
    /* The oldest and the newest point stay. */
    size_t kept = 0, from = h->round_from;
    for (size_t i = 0; i < h->n; i++) {
      if (i % 2 && i + 1 < h->n) continue;
      if (i < from) h->round_from = kept + 1;
      h->v[kept++] = h->v[i];
    }
    h->n = kept;
    h->every_ms *= 2;
  }
  h->v[h->n++] = *p;
}

void history_mark(struct history *h, const struct history_point *p) {
  append(h, p);
  h->moves = false;
}

void history_note(struct history *h, const struct history_point *p) {
  bool stays = !h->moves || h->n < 2 || h->v[h->n - 1].wall_ms >= h->v[h->n - 2].wall_ms + h->every_ms;
  if (stays)
    append(h, p);
  else
    h->v[h->n - 1] = *p;
  h->moves = true;
}

void history_begin_round(struct history *h) {
  h->round_from = h->n;
}

void history_shift_round(struct history *h, int64_t by_ms) {
  for (size_t i = h->round_from; i < h->n; i++) h->v[i].productive_ms += by_ms;
}

int64_t history_productive_at(const struct history *h, int64_t step, int64_t now_ms, bool before_round) {
  size_t n = before_round ? h->round_from : h->n;
  if (!n || step > h->v[n - 1].step) return now_ms;
  for (size_t i = n; i-- > 0;) {
    if (h->v[i].step > step) continue;
    const struct history_point *a = &h->v[i], *b = a + 1;
    if (i + 1 == n || b->step <= step) return a->productive_ms;
    double part = (double)(step - a->step) / (double)(b->step - a->step);
    int64_t ms = b->productive_ms - a->productive_ms;
    return a->productive_ms + (ms > 0 ? (int64_t)(part * (double)ms) : 0);
  }
  return 0; /* before the job's first step */
}

/* Pace. ------------------------------------------------------------------------------------------------------------ */

/* Nodes report about once a second, so an age below LATE_MIN_MS means nothing, however short the steps are. Some jobs
 * pause regularly, for example to evaluate the model. A pause that came twice belongs to the pace of the job. */
enum {
  POINTS = 12, /* the newest points of the history that count */
  LATE_STEPS = 5,
  LATE_MIN_MS = 4000,
  LATE_MS = 10000,      /* below, unless --hang-timeout is so short */
  UNKNOWN_MS = 60000,   /* the same while only the first step is known: the second one may compile the model */
  STUCK_TIMES_LATE = 6, /* with --hang-timeout, earlier: 80 % of it */
};

/* Points at the end that have the same step say how long the job has stood still, and not how long a step takes. The
 * point of the step at which a round resumed has no time of its own. */
static double usual_step_ms(const struct history *h) {
  if (!h->n) return 0;
  size_t last = h->n - 1;
  while (last > 0 && h->v[last - 1].step == h->v[last].step) last--;
  size_t first = last;
  for (; first > 0 && last - first < POINTS; first--) {
    const struct history_point *a = &h->v[first - 1], *b = &h->v[first];
    if (a->step > b->step || a->productive_ms >= b->productive_ms) break;
  }
  int64_t steps = h->v[last].step - h->v[first].step, ms = h->v[last].productive_ms - h->v[first].productive_ms;
  return steps > 0 && ms > 0 ? (double)ms / (double)steps : 0;
}

struct pace pace_of(const struct history *h, int64_t pause_ms, int64_t hang_timeout_ms) {
  struct pace p = {.step_ms = usual_step_ms(h)};
  int64_t hang_ms = hang_timeout_ms ? hang_timeout_ms : INT64_MAX;
  p.usual_ms = most((int64_t)p.step_ms, pause_ms);
  p.late_ms = p.step_ms > 0 ? most(LATE_MS, (int64_t)(LATE_STEPS * p.step_ms)) : UNKNOWN_MS;
  p.late_ms = most(p.late_ms, pause_ms + pause_ms / 2);
  p.late_ms = most(LATE_MIN_MS, least(p.late_ms, hang_ms / 2));
  p.slowing_ms = p.late_ms / 2;
  p.stuck_ms = most(p.late_ms + p.slowing_ms, least(STUCK_TIMES_LATE * p.late_ms, hang_ms / 5 * 4));
  return p;
}

enum judgement pace_judge(const struct pace *p, int64_t age_ms) {
  if (age_ms < p->slowing_ms) return JUDGEMENT_UP_TO_DATE;
  if (age_ms < p->late_ms) return JUDGEMENT_SLOWING;
  return age_ms < p->stuck_ms ? JUDGEMENT_LATE : JUDGEMENT_STUCK;
}

const char *judgement_name(enum judgement j) {
#define J(NAME, word) word,
  static const char *const names[] = {JUDGEMENT_LIST(J) ""};
#undef J
  return names[j < JUDGEMENT_COUNT ? j : JUDGEMENT_COUNT];
}
