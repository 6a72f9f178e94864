/* SPDX-License-Identifier: Apache-2.0 */
/* When the agent wakes its guard, does its work, and gives it up. */

#include <stdint.h>
#include "tests/rig/unit.h"
#include "agent/guard/watch.h"
#include "agent/supervisor/supervisor.h"

enum { LEASE = 3000, PATIENCE = 300, UP = GUARD_KILL_DEADLINE_MS + GUARD_SLACK_MS };

static struct guard_watch watch(void) {
  struct guard_watch w;
  guard_watch_init(&w, 0, LEASE);
  return w;
}

/* Goes on to the next thing that is to be done, waking aside; its time. */
static uint64_t next_act(struct guard_watch *w, enum guard_watch_act *act) {
  uint64_t at = 0;
  for (int i = 0; i < 1000; i++) {
    at = guard_watch_deadline(w);
    if (at == UINT64_MAX) break;
    *act = guard_watch_next(w, at);
    if (*act != GUARD_WATCH_WAKE && *act != GUARD_WATCH_REST) return at;
  }
  *act = GUARD_WATCH_REST;
  return at;
}

static void expect_act(struct guard_watch *w, enum guard_watch_act act, uint64_t at) {
  enum guard_watch_act got;
  assert_int_equal(next_act(w, &got), at);
  assert_int_equal(got, act);
}

static void expect_rest(struct guard_watch *w) {
  enum guard_watch_act got;
  next_act(w, &got);
  assert_int_equal(got, GUARD_WATCH_REST);
}

static void clear(struct guard_watch *w, uint32_t round, int kept) {
  struct local_set set = {{0}};
  if (kept >= 0) local_set_add(&set, (uint32_t)kept);
  guard_watch_clear(w, round, &set);
}

UNIT_TEST(test_it_is_woken) {
  struct guard_watch w = watch();
  for (uint64_t at = GUARD_WAKE_EVERY_MS; at < 10000; at += GUARD_WAKE_EVERY_MS) {
    assert_int_equal(guard_watch_deadline(&w), at);
    assert_int_equal(guard_watch_next(&w, at), GUARD_WATCH_WAKE);
    assert_int_equal(guard_watch_next(&w, at), GUARD_WATCH_REST);
  }
  guard_watch_gone(&w);
  assert_int_equal(guard_watch_deadline(&w), UINT64_MAX);
}

UNIT_TEST(test_it_obeys) {
  struct guard_watch w = watch();
  guard_watch_stop(&w, 100, 1, 0, NULL);
  clear(&w, 1, -1);
  expect_rest(&w);
  guard_watch_stop(&w, 100, 2, 30000, NULL);
  clear(&w, 1, -1); /* said before */
  expect_act(&w, GUARD_WATCH_KILL, 30100 + PATIENCE);
}

/* What it was to kill is dead before a lease is over of which a fifth was left. */
UNIT_TEST(test_it_does_not) {
  struct guard_watch w = watch();
  guard_watch_stop(&w, 100, 1, 0, NULL);
  uint64_t at = 100 + PATIENCE;
  assert_true(PATIENCE < LEASE / 5);
  for (; at < 100 + UP; at += GUARD_KILL_AGAIN_MS) expect_act(&w, GUARD_WATCH_KILL, at);
  expect_act(&w, GUARD_WATCH_GIVE_UP, 100 + UP);
  expect_rest(&w);
  assert_in_range(UP, 0, SUPERVISOR_LEAVE_SLACK_MS - 1);
}

UNIT_TEST(test_patience_has_a_limit) {
  struct guard_watch w;
  guard_watch_init(&w, 0, 600000);
  guard_watch_stop(&w, 100, 1, 0, NULL);
  expect_act(&w, GUARD_WATCH_KILL, 100 + GUARD_PATIENCE_MAX_MS);
}

UNIT_TEST(test_a_stop_is_shortened) {
  struct guard_watch w = watch();
  guard_watch_stop(&w, 100, 1, 30000, NULL);
  guard_watch_stop(&w, 200, 1, 0, NULL);
  guard_watch_stop(&w, 300, 1, 30000, NULL);
  expect_act(&w, GUARD_WATCH_KILL, 200 + PATIENCE);
}

/* It is not for us to say who is whose: where somebody stays, all or nobody is killed. */
UNIT_TEST(test_somebody_stays) {
  struct guard_watch w = watch();
  struct local_set keep = {{0}};
  local_set_add(&keep, 3);
  guard_watch_stop(&w, 100, 1, 1000, &keep);
  expect_act(&w, GUARD_WATCH_GIVE_UP, 1100 + UP);
  guard_watch_stop(&w, 100, 1, 1000, &keep);
  clear(&w, 1, 3);
  expect_rest(&w);
  guard_watch_stop(&w, 100, 1, 1000, &keep);
  guard_watch_stop(&w, 200, 1, 0, NULL);
  clear(&w, 1, 3); /* of the stop before */
  expect_act(&w, GUARD_WATCH_KILL, 200 + PATIENCE);
}

/* A process in state D: the guard has said so, and is needed. */
UNIT_TEST(test_a_process_is_stuck) {
  struct guard_watch w = watch();
  guard_watch_stop(&w, 100, 1, 0, NULL);
  guard_watch_stuck(&w);
  expect_rest(&w);
  guard_watch_stop(&w, 10000, 1, 0, NULL);
  expect_act(&w, GUARD_WATCH_KILL, 10000 + PATIENCE);
  assert_int_equal(w.give_up_at_ms, UINT64_MAX);
  clear(&w, 1, -1);
  guard_watch_stop(&w, 20000, 2, 0, NULL);
  assert_int_equal(w.give_up_at_ms, 20000 + UP);
}

/* The agent was stopped itself, and so perhaps was the guard: it has its time once more. */
UNIT_TEST(test_we_come_too_late) {
  struct guard_watch w = watch();
  guard_watch_stop(&w, 100, 1, 0, NULL);
  uint64_t late = 100 + UP + 60000;
  assert_int_equal(guard_watch_next(&w, late), GUARD_WATCH_WAKE);
  assert_int_equal(guard_watch_next(&w, late), GUARD_WATCH_KILL);
  assert_int_equal(guard_watch_next(&w, late), GUARD_WATCH_REST);
  assert_int_equal(w.give_up_at_ms, late + GUARD_SLACK_MS);
}
