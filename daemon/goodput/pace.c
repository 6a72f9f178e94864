/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a job makes steps.
 *
 * Nodes report about once a second, so an age below LATE_MIN_MS means nothing, however short the steps are. Some jobs
 * pause regularly, for example to evaluate the model. A pause that came twice belongs to the pace of the job. */

#include "daemon/goodput/pace.h"

enum {
  POINTS = 12, /* the newest points of the history that count */
  LATE_STEPS = 5,
  LATE_MIN_MS = 4000,
  LATE_MS = 10000,      /* below, unless --hang-timeout is so short */
  UNKNOWN_MS = 60000,   /* the same while only the first step is known: the second one may compile the model */
  STUCK_TIMES_LATE = 6, /* with --hang-timeout, earlier: 80 % of it */
};

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static bool is_joined(const struct history_point *a, const struct history_point *b) {
  return a->step <= b->step && a->productive_ms < b->productive_ms;
}

/* Points at the end that have the same step say how long the job has stood still, and not how long a step takes. The
 * point of the step at which a round resumed has no time of its own. */
static double usual_step_ms(const struct history *h) {
  if (!h->n) return 0;
  size_t last = h->n - 1;
  while (last > 0 && h->v[last - 1].step == h->v[last].step) last--;
  size_t first = last;
  while (first > 0 && last - first < POINTS && is_joined(&h->v[first - 1], &h->v[first])) first--;
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
