/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_GOODPUT_PACE_H
#define DAEMON_GOODPUT_PACE_H

/* How fast a job makes steps, and from which age on its last step is late. Pure.
 *
 * The pace is steps per productive time. Productive time stands still while the job does, so a job that stands still does
 * not become a slow one, for which nothing would be late. Everything that is shown about progress follows from this: the
 * judgement on a node, the speed and the time left, and what a pause costs in the account. */

#include "daemon/goodput/history.h"

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
