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

/* Between a and b, which is at a later step. */
static int64_t interpolate(const struct history_point *a, const struct history_point *b, int64_t step) {
  double part = (double)(step - a->step) / (double)(b->step - a->step);
  int64_t ms = b->productive_ms - a->productive_ms;
  return a->productive_ms + (ms > 0 ? (int64_t)(part * (double)ms) : 0);
}

int64_t history_productive_at(const struct history *h, int64_t step, int64_t now_ms, bool before_round) {
  size_t n = before_round ? h->round_from : h->n;
  if (!n || step > h->v[n - 1].step) return now_ms;
  for (size_t i = n; i-- > 0;) {
    if (h->v[i].step > step) continue;
    bool between = i + 1 < n && h->v[i + 1].step > step;
    return between ? interpolate(&h->v[i], &h->v[i + 1], step) : h->v[i].productive_ms;
  }
  return 0; /* before the job's first step */
}
