/* SPDX-License-Identifier: Apache-2.0 */
/* pace: how long a usual step takes, and from which age on the last one is late. */

#include "daemon/goodput/history.h"

#include <math.h>
#include "tests/rig/unit.h"

static struct history_point at(int64_t productive_ms, int64_t step) {
  return (struct history_point){(uint64_t)productive_ms, productive_ms, step, NAN, NAN};
}

static void check_limits(const struct pace *p, int64_t slowing_ms, int64_t late_ms, int64_t stuck_ms) {
  assert_int_equal(p->slowing_ms, slowing_ms);
  assert_int_equal(p->late_ms, late_ms);
  assert_int_equal(p->stuck_ms, stuck_ms);
}

UNIT_TEST(test_limits_follow_the_usual_step) {
  struct history_point v[40];
  for (int i = 0; i < 20; i++) v[i] = at(i * 8000, i * 2); /* 4 s a step */
  struct history h = {.v = v, .n = 20};
  struct pace p = pace_of(&h, 0, 0);
  assert_float_equal(p.step_ms, 4000, 0.1);
  check_limits(&p, 10000, 20000, 120000);
  assert_int_equal(pace_judge(&p, 9999), JUDGEMENT_UP_TO_DATE);
  assert_int_equal(pace_judge(&p, 10000), JUDGEMENT_SLOWING);
  assert_int_equal(pace_judge(&p, 20000), JUDGEMENT_LATE);
  assert_int_equal(pace_judge(&p, 120000), JUDGEMENT_STUCK);
  assert_string_equal(judgement_name(JUDGEMENT_STUCK), "stuck");
  assert_string_equal(judgement_name(JUDGEMENT_COUNT), "");
  for (int i = 20; i < 40; i++) v[i] = at(19 * 8000, 38); /* others report, and one node stands still: no slower pace */
  h.n = 40;
  assert_float_equal(pace_of(&h, 0, 0).step_ms, 4000, 0.1);
  p = pace_of(&h, 0, 20000); /* the hang timeout comes sooner */
  check_limits(&p, 5000, 10000, 16000);
  p = pace_of(&h, 60000, 0); /* it pauses for a minute now and then */
  check_limits(&p, 45000, 90000, 540000);
  assert_int_equal(p.usual_ms, 60000);
}

UNIT_TEST(test_short_steps_and_unknown_ones) {
  struct history_point v[] = {at(0, 0), at(0, 1), at(1000, 51), at(2000, 101), at(2500, 60), at(3500, 160)};
  struct history h = {.v = v, .n = 2};
  struct pace p = pace_of(&h, 0, 0);
  assert_true(p.step_ms == 0); /* the first step took no productive time */
  check_limits(&p, 30000, 60000, 360000);
  h.n = 4;
  p = pace_of(&h, 0, 0);
  check_limits(&p, 5000, 10000, 60000);
  p = pace_of(&h, 0, 1000);
  check_limits(&p, 2000, 4000, 6000); /* nodes do not report more often */
  h.n = 6;                            /* steps are done again: what came before does not count */
  assert_float_equal(pace_of(&h, 0, 0).step_ms, 10, 0.1);
  h.n = 0;
  assert_true(pace_of(&h, 0, 0).step_ms == 0);
}
