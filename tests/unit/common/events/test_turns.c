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

UNIT_TEST(test_order) {
  struct turns t;
  turns_init(&t);
  assert_true(turns_deadline(&t) == UINT64_MAX);
  assert_true(add(&t, "a", "1", false) && add(&t, "b", "2", false));
  assert_int_equal(turns_deadline(&t), 0);
  struct turn *turn = turns_next(&t, 5);
  assert_string_equal(turn->line, "1");
  turns_done(&t, turn);
  assert_true(run(&t, 5, "b") && !run(&t, 5, ""));
  assert_true(add(&t, "c", "", false) && run(&t, 5, "c")); /* behind an empty queue */
  turns_finish(&t);
  assert_int_equal(t.dropped, 0);
}

UNIT_TEST(test_at_once) {
  struct turns t;
  struct turn *out[TURNS_AT_ONCE];
  turns_init(&t);
  for (int i = 0; i < TURNS_AT_ONCE + 1; i++) add(&t, "a", "", i == TURNS_AT_ONCE);
  for (int i = 0; i < TURNS_AT_ONCE; i++) assert_non_null(out[i] = turns_next(&t, 0));
  assert_null(turns_next(&t, 0)); /* not even an urgent one */
  assert_true(turns_deadline(&t) == UINT64_MAX);
  turns_done(&t, out[0]);
  assert_true(run(&t, 0, "a"));
  for (int i = 1; i < TURNS_AT_ONCE; i++) turns_done(&t, out[i]);
  turns_finish(&t);
}

UNIT_TEST(test_a_minute) {
  struct turns t;
  turns_init(&t);
  for (int i = 0; i < TURNS_PER_MINUTE + 2; i++) add(&t, "a", "", false);
  for (int i = 0; i < TURNS_PER_MINUTE; i++) assert_true(run(&t, 1000 + (uint64_t)i, "a"));
  assert_false(run(&t, 2000, "a"));
  assert_int_equal(turns_deadline(&t), 61000);
  assert_false(run(&t, 60999, "a"));
  assert_true(run(&t, 61000, "a"));
  assert_false(run(&t, 61000, "a")); /* the second began a millisecond later */
  assert_true(run(&t, 61001, "a"));
  turns_finish(&t);
}

UNIT_TEST(test_urgent) {
  struct turns t;
  char name[16];
  turns_init(&t);
  for (int i = 0; i < TURNS_PER_MINUTE; i++) assert_true(add(&t, "a", "", false) && run(&t, 0, "a"));
  for (int i = 0; i < TURNS_QUEUE; i++) {
    snprintf(name, sizeof name, "%d", i);
    assert_true(add(&t, name, "", false));
  }
  assert_false(add(&t, "late", "", false));
  assert_int_equal(t.dropped, 1);
  assert_false(add(&t, "end", "", true)); /* in the place of the oldest */
  assert_int_equal(t.dropped, 2);
  assert_int_equal(t.n, TURNS_QUEUE);
  assert_true(run(&t, 0, "end"));
  assert_false(run(&t, 0, ""));
  assert_true(run(&t, 60000, "1"));
  turns_drop_all(&t);
  assert_int_equal(t.dropped, 2 + TURNS_QUEUE - 2);
  turns_finish(&t);
}

UNIT_TEST(test_a_queue_of_urgent_ones) {
  struct turns t;
  turns_init(&t);
  for (int i = 0; i < TURNS_QUEUE; i++) assert_true(add(&t, "end", "", true));
  assert_false(add(&t, "end", "", true));
  assert_int_equal(t.n, TURNS_QUEUE);
  assert_int_equal(t.dropped, 1);
  turns_finish(&t);
}

/* One floods. The other's first event, and root's, run at once; then both users run in turn. */
UNIT_TEST(test_users_take_turns) {
  struct turns t;
  turns_init(&t);
  for (int i = 0; i < TURNS_QUEUE; i++) assert_true(add_of(&t, "uid 1", "flood"));
  assert_false(add_of(&t, "uid 1", "flood"));
  for (int i = 0; i < 10; i++) assert_true(run(&t, 0, "flood"));
  assert_true(add_of(&t, "uid 2", "a") && add_of(&t, "uid 2", "b") && add_of(&t, "", "root"));
  assert_true(run(&t, 0, "root") && run(&t, 0, "a") && run(&t, 0, "flood") && run(&t, 0, "b"));
  for (int i = 0; i < TURNS_PER_MINUTE - 11; i++) assert_true(run(&t, 0, "flood"));
  assert_false(run(&t, 0, ""));
  assert_true(add_of(&t, "uid 2", "c") && run(&t, 0, "c")); /* the minute of the other is its own */
  assert_int_equal(turns_deadline(&t), 60000);
  turns_finish(&t);
}

/* Commands that hang leave places: one to root, and one to another user. */
UNIT_TEST(test_places) {
  struct turns t;
  struct turn *out[TURNS_AT_ONCE];
  turns_init(&t);
  for (int i = 0; i < 4; i++) add_of(&t, "uid 1", "1");
  for (int i = 0; i < 2; i++) assert_non_null(out[i] = turns_next(&t, 0));
  assert_null(turns_next(&t, 0));
  assert_true(turns_deadline(&t) == UINT64_MAX);
  add_of(&t, "uid 2", "2");
  add_of(&t, "uid 2", "2");
  assert_int_equal(turns_deadline(&t), 0);
  assert_string_equal((out[2] = turns_next(&t, 0))->name, "2");
  assert_null(turns_next(&t, 0));
  add_of(&t, "", "root");
  assert_string_equal((out[3] = turns_next(&t, 0))->name, "root");
  turns_done(&t, out[0]);
  assert_string_equal((out[0] = turns_next(&t, 0))->name, "1"); /* it was served longer ago */
  for (int i = 0; i < TURNS_AT_ONCE; i++) turns_done(&t, out[i]);
  turns_finish(&t);
}

/* Many users fill all queues: who has most gives way to one who comes. */
UNIT_TEST(test_the_longest_queue_gives_way) {
  struct turns t;
  char owner[16];
  turns_init(&t);
  for (int i = 0; i < TURNS_QUEUE_ALL; i++) {
    snprintf(owner, sizeof owner, "uid %d", i / TURNS_QUEUE);
    assert_true(add_of(&t, owner, "a"));
  }
  assert_false(add_of(&t, "uid 500", "b"));
  assert_int_equal(t.n, TURNS_QUEUE_ALL);
  assert_true(run(&t, 0, "b"));
  turns_finish(&t);
}

/* Owners are forgotten when they have nothing and their minute is over; until then there are so many at most. */
UNIT_TEST(test_owners_are_bounded) {
  struct turns t;
  char owner[16];
  turns_init(&t);
  for (int i = 0; i < TURNS_OWNERS; i++) {
    snprintf(owner, sizeof owner, "uid %d", i);
    assert_true(turns_add(&t, 1000, owner, "a", "", false) && run(&t, 1000, "a"));
  }
  assert_false(turns_add(&t, 60999, "uid -1", "a", "", false));
  assert_int_equal(t.dropped, 1);
  assert_true(turns_add(&t, 61000, "uid -1", "a", "", false));
  assert_int_equal(t.n_owners, 1);
  turns_finish(&t);
}

/* Neither the owners nor the last events of their jobs, which nothing can push out, take root's place. */
UNIT_TEST(test_users_leave_room_for_root) {
  struct turns t;
  char owner[16];
  turns_init(&t);
  for (int i = 0; i < TURNS_OWNERS; i++) {
    snprintf(owner, sizeof owner, "uid %d", i);
    assert_true(turns_add(&t, 1000, owner, "a", "", true));
  }
  assert_int_equal(t.n, TURNS_QUEUE_ALL);
  assert_false(turns_add(&t, 1000, "uid -1", "a", "", true));
  for (int i = 0; i < TURNS_QUEUE; i++) assert_true(turns_add(&t, 1000, "", "mine", "", true));
  assert_false(turns_add(&t, 1000, "", "mine", "", false));
  assert_true(run(&t, 1000, "mine"));
  turns_finish(&t);
}

UNIT_TEST(test_a_complaint_comes_again) {
  struct turns t;
  const char *owner;
  turns_init(&t);
  for (int i = 0; i < TURNS_QUEUE; i++) assert_true(add_of(&t, "uid 1", "a"));
  assert_int_equal(turns_complain(&t, 5, &owner), 0);
  assert_false(add_of(&t, "uid 1", "a"));
  assert_int_equal(turns_complain(&t, 5, &owner), 1);
  assert_string_equal(owner, "uid 1");
  for (int i = 0; i < 3; i++) assert_false(add_of(&t, "uid 1", "a"));
  assert_int_equal(turns_complain(&t, 5 + TURNS_WARN_MS - 1, &owner), 0);
  assert_int_equal(turns_complain(&t, 5 + TURNS_WARN_MS, &owner), 3);
  assert_int_equal(turns_complain(&t, 5 + TURNS_WARN_MS, &owner), 0);
  turns_finish(&t);
}
