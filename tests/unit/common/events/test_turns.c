/* SPDX-License-Identifier: Apache-2.0 */
/* turns: so many at once, so many in a minute, a bounded queue; the last event of a job goes first. */

#include "common/events/turns.h"

#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static bool add_of(struct turns *t, const char *owner, const char *name) {
  return turns_add(t, 0, owner, name, "", false);
}
static bool add(struct turns *t, const char *name, const char *line, bool urgent) {
  return turns_add(t, 0, "", name, line, urgent);
}

/* Runs the next one, to its end. False: none may run now. */
static bool run(struct turns *t, uint64_t now_ms, const char *name) {
  struct turn *turn = turns_next(t, now_ms);
  if (!turn) return false;
  assert_string_equal(turn->name, name);
  turns_done(t, turn);
  return true;
}

static struct turns turns;

static int set_up(void **state) {
  turns_init(&turns);
  return 0;
}

static int tear_down(void **state) {
  turns_finish(&turns);
  return 0;
}

UNIT_TEST_WITH(test_order, set_up, tear_down) {
  assert_true(turns_deadline(&turns) == UINT64_MAX);
  assert_true(add(&turns, "a", "1", false) && add(&turns, "b", "2", false));
  assert_int_equal(turns_deadline(&turns), 0);
  struct turn *turn = turns_next(&turns, 5);
  assert_string_equal(turn->line, "1");
  turns_done(&turns, turn);
  assert_true(run(&turns, 5, "b") && !run(&turns, 5, ""));
  assert_true(add(&turns, "c", "", false) && run(&turns, 5, "c")); /* behind an empty queue */
  turns_finish(&turns);
  assert_int_equal(turns.dropped, 0);
}

UNIT_TEST_WITH(test_at_once, set_up, tear_down) {
  struct turn *out[TURNS_AT_ONCE];
  for (int i = 0; i < TURNS_AT_ONCE + 1; i++) add(&turns, "a", "", i == TURNS_AT_ONCE);
  for (int i = 0; i < TURNS_AT_ONCE; i++) assert_non_null(out[i] = turns_next(&turns, 0));
  assert_null(turns_next(&turns, 0)); /* not even an urgent one */
  assert_true(turns_deadline(&turns) == UINT64_MAX);
  turns_done(&turns, out[0]);
  assert_true(run(&turns, 0, "a"));
  for (int i = 1; i < TURNS_AT_ONCE; i++) turns_done(&turns, out[i]);
}

UNIT_TEST_WITH(test_a_minute, set_up, tear_down) {
  for (int i = 0; i < TURNS_PER_MINUTE + 2; i++) add(&turns, "a", "", false);
  for (int i = 0; i < TURNS_PER_MINUTE; i++) assert_true(run(&turns, 1000 + (uint64_t)i, "a"));
  assert_false(run(&turns, 2000, "a"));
  assert_int_equal(turns_deadline(&turns), 61000);
  assert_false(run(&turns, 60999, "a"));
  assert_true(run(&turns, 61000, "a"));
  assert_false(run(&turns, 61000, "a")); /* the second began a millisecond later */
  assert_true(run(&turns, 61001, "a"));
}

UNIT_TEST_WITH(test_urgent, set_up, tear_down) {
  char name[16];
  for (int i = 0; i < TURNS_PER_MINUTE; i++) assert_true(add(&turns, "a", "", false) && run(&turns, 0, "a"));
  for (int i = 0; i < TURNS_QUEUE; i++) {
    snprintf(name, sizeof name, "%d", i);
    assert_true(add(&turns, name, "", false));
  }
  assert_false(add(&turns, "late", "", false));
  assert_int_equal(turns.dropped, 1);
  assert_false(add(&turns, "end", "", true)); /* in the place of the oldest */
  assert_int_equal(turns.dropped, 2);
  assert_int_equal(turns.n, TURNS_QUEUE);
  assert_true(run(&turns, 0, "end"));
  assert_false(run(&turns, 0, ""));
  assert_true(run(&turns, 60000, "1"));
  turns_drop_all(&turns);
  assert_int_equal(turns.dropped, 2 + TURNS_QUEUE - 2);
}

UNIT_TEST_WITH(test_a_queue_of_urgent_ones, set_up, tear_down) {
  for (int i = 0; i < TURNS_QUEUE; i++) assert_true(add(&turns, "end", "", true));
  assert_false(add(&turns, "end", "", true));
  assert_int_equal(turns.n, TURNS_QUEUE);
  assert_int_equal(turns.dropped, 1);
}

/* One floods. The other's first event, and root's, run at once; then both users run in turn. */
UNIT_TEST_WITH(test_users_take_turns, set_up, tear_down) {
  for (int i = 0; i < TURNS_QUEUE; i++) assert_true(add_of(&turns, "uid 1", "flood"));
  assert_false(add_of(&turns, "uid 1", "flood"));
  for (int i = 0; i < 10; i++) assert_true(run(&turns, 0, "flood"));
  assert_true(add_of(&turns, "uid 2", "a") && add_of(&turns, "uid 2", "b") && add_of(&turns, "", "root"));
  assert_true(run(&turns, 0, "root") && run(&turns, 0, "a") && run(&turns, 0, "flood") && run(&turns, 0, "b"));
  for (int i = 0; i < TURNS_PER_MINUTE - 11; i++) assert_true(run(&turns, 0, "flood"));
  assert_false(run(&turns, 0, ""));
  assert_true(add_of(&turns, "uid 2", "c") && run(&turns, 0, "c")); /* the minute of the other is its own */
  assert_int_equal(turns_deadline(&turns), 60000);
}

/* Commands that hang leave places: one to root, and one to another user. */
UNIT_TEST_WITH(test_places, set_up, tear_down) {
  struct turn *out[TURNS_AT_ONCE];
  for (int i = 0; i < 4; i++) add_of(&turns, "uid 1", "1");
  for (int i = 0; i < 2; i++) assert_non_null(out[i] = turns_next(&turns, 0));
  assert_null(turns_next(&turns, 0));
  assert_true(turns_deadline(&turns) == UINT64_MAX);
  add_of(&turns, "uid 2", "2");
  add_of(&turns, "uid 2", "2");
  assert_int_equal(turns_deadline(&turns), 0);
  assert_string_equal((out[2] = turns_next(&turns, 0))->name, "2");
  assert_null(turns_next(&turns, 0));
  add_of(&turns, "", "root");
  assert_string_equal((out[3] = turns_next(&turns, 0))->name, "root");
  turns_done(&turns, out[0]);
  assert_string_equal((out[0] = turns_next(&turns, 0))->name, "1"); /* it was served longer ago */
  for (int i = 0; i < TURNS_AT_ONCE; i++) turns_done(&turns, out[i]);
}

/* Many users fill all queues: who has most gives way to one who comes. */
UNIT_TEST_WITH(test_the_longest_queue_gives_way, set_up, tear_down) {
  char owner[16];
  for (int i = 0; i < TURNS_QUEUE_ALL; i++) {
    snprintf(owner, sizeof owner, "uid %d", i / TURNS_QUEUE);
    assert_true(add_of(&turns, owner, "a"));
  }
  assert_false(add_of(&turns, "uid 500", "b"));
  assert_int_equal(turns.n, TURNS_QUEUE_ALL);
  assert_true(run(&turns, 0, "b"));
}

/* Owners are forgotten when they have nothing and their minute is over; until then there are so many at most. */
UNIT_TEST_WITH(test_owners_are_bounded, set_up, tear_down) {
  char owner[16];
  for (int i = 0; i < TURNS_OWNERS; i++) {
    snprintf(owner, sizeof owner, "uid %d", i);
    assert_true(turns_add(&turns, 1000, owner, "a", "", false) && run(&turns, 1000, "a"));
  }
  assert_false(turns_add(&turns, 60999, "uid -1", "a", "", false));
  assert_int_equal(turns.dropped, 1);
  assert_true(turns_add(&turns, 61000, "uid -1", "a", "", false));
  assert_int_equal(turns.n_owners, 1);
}

/* Neither the owners nor the last events of their jobs, which nothing can push out, take root's place. */
UNIT_TEST_WITH(test_users_leave_room_for_root, set_up, tear_down) {
  char owner[16];
  for (int i = 0; i < TURNS_OWNERS; i++) {
    snprintf(owner, sizeof owner, "uid %d", i);
    assert_true(turns_add(&turns, 1000, owner, "a", "", true));
  }
  assert_int_equal(turns.n, TURNS_QUEUE_ALL);
  assert_false(turns_add(&turns, 1000, "uid -1", "a", "", true));
  for (int i = 0; i < TURNS_QUEUE; i++) assert_true(turns_add(&turns, 1000, "", "mine", "", true));
  assert_false(turns_add(&turns, 1000, "", "mine", "", false));
  assert_true(run(&turns, 1000, "mine"));
}

UNIT_TEST_WITH(test_a_complaint_comes_again, set_up, tear_down) {
  const char *owner;
  for (int i = 0; i < TURNS_QUEUE; i++) assert_true(add_of(&turns, "uid 1", "a"));
  assert_int_equal(turns_complain(&turns, 5, &owner), 0);
  assert_false(add_of(&turns, "uid 1", "a"));
  assert_int_equal(turns_complain(&turns, 5, &owner), 1);
  assert_string_equal(owner, "uid 1");
  for (int i = 0; i < 3; i++) assert_false(add_of(&turns, "uid 1", "a"));
  assert_int_equal(turns_complain(&turns, 5 + TURNS_WARN_MS - 1, &owner), 0);
  assert_int_equal(turns_complain(&turns, 5 + TURNS_WARN_MS, &owner), 3);
  assert_int_equal(turns_complain(&turns, 5 + TURNS_WARN_MS, &owner), 0);
}
