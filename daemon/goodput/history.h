/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_GOODPUT_HISTORY_H
#define DAEMON_GOODPUT_HISTORY_H

/* How a job came forward, in few points. Pure. A ring would forget the beginning; instead, when all places are taken,
 * every second point is dropped and the next ones come half as often. So 256 points cover an hour as well as a month. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static inline int64_t most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

enum { HISTORY_MAX = 256, HISTORY_EVERY_MS = 1000 };

struct history_point {
  uint64_t wall_ms;
  int64_t productive_ms; /* of the job until then, without what was lost by then */
  int64_t step;
  float loss, samples_per_second; /* NAN: unknown */
};

struct history {
  struct history_point *v; /* oldest first; NULL until the first point */
  size_t n;
  size_t round_from; /* the first point of the current round */
  bool moves;        /* the newest point may still be replaced */
  uint64_t every_ms; /* between two points; the newest one moves on until then */
};

void history_finish(struct history *h);
/* A point that stays: work begins. */
void history_mark(struct history *h, const struct history_point *p);
/* The newest point, which moves on until it is old enough to stay. */
void history_note(struct history *h, const struct history_point *p);
void history_begin_round(struct history *h);
void history_shift_round(struct history *h, int64_t by_ms); /* the productive time at its points was by_ms more */
/* The productive time at which the job was at this step, the last time that it was there; by interpolation. now_ms: the
 * time now, which a later step than any gives. before_round: only points of earlier rounds count. */
int64_t history_productive_at(const struct history *h, int64_t step, int64_t now_ms, bool before_round);

/* How fast a job makes steps, and from which age on its last step is late.
 *
 * The pace is steps per productive time. Productive time stands still while the job does, so a job that stands still does
 * not become a slow one, for which nothing would be late. Everything that is shown about progress follows from this: the
 * judgement on a node, the speed and the time left, and what a pause costs in the account. */

/* J(NAME, word): from good to bad. */
#define JUDGEMENT_LIST(J) J(UP_TO_DATE, "up to date") J(SLOWING, "slowing") J(LATE, "late") J(STUCK, "stuck")
#define J(NAME, word)     JUDGEMENT_##NAME,
enum judgement { JUDGEMENT_LIST(J) JUDGEMENT_COUNT }; /* COUNT: no steps are reported, or nothing runs */
#undef J

struct pace {
  double step_ms;     /* of a usual step; 0: unknown */
  int64_t usual_ms;   /* how long the job goes without a step now and then: that is no loss */
  int64_t slowing_ms; /* the age of the last step from which on it is slowing, */
  int64_t late_ms;    /* late, */
  int64_t stuck_ms;   /* and stuck */
};

/* pause_ms: as long as the job has stood still, and gone on by itself, more than once; 0: never. hang_timeout_ms: 0:
 * there is none. */
struct pace pace_of(const struct history *h, int64_t pause_ms, int64_t hang_timeout_ms);
enum judgement pace_judge(const struct pace *p, int64_t age_ms);
const char *judgement_name(enum judgement j); /* "": COUNT */

#endif
