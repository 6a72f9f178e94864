/* SPDX-License-Identifier: Apache-2.0 */
/* turns: so many at once, so many in a minute, a bounded queue; the last event of a job goes first. */

#include "common/events/turns.h"

#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

/* Runs the next one, to its end. False: none may run now. */
static bool run(struct turns *t, uint64_t now_ms, const char *name) {
  struct turn *turn = turns_next(t, now_ms);
  if (!turn) return false;
  assert_string_equal(turn->name, name);
  turn_free(turn);
  turns_done(t);
  return true;
}

static void test_order(void **state) {
  struct turns t;
  turns_init(&t);
  assert_true(turns_deadline(&t) == UINT64_MAX);
  assert_true(turns_add(&t, "a", "1", false) && turns_add(&t, "b", "2", false));
  assert_int_equal(turns_deadline(&t), 0);
  struct turn *turn = turns_next(&t, 5);
  assert_string_equal(turn->line, "1");
  turn_free(turn);
  turns_done(&t);
  assert_true(run(&t, 5, "b") && !run(&t, 5, ""));
  assert_true(turns_add(&t, "c", "", false) && run(&t, 5, "c")); /* behind an empty queue */
  turns_finish(&t);
  assert_int_equal(t.dropped, 0);
}

static void test_at_once(void **state) {
  struct turns t;
  struct turn *out[TURNS_AT_ONCE];
  turns_init(&t);
  for (int i = 0; i < TURNS_AT_ONCE + 1; i++) turns_add(&t, "a", "", i == TURNS_AT_ONCE);
  for (int i = 0; i < TURNS_AT_ONCE; i++) assert_non_null(out[i] = turns_next(&t, 0));
  assert_null(turns_next(&t, 0)); /* not even an urgent one */
  assert_true(turns_deadline(&t) == UINT64_MAX);
  turns_done(&t);
  assert_true(run(&t, 0, "a"));
  for (int i = 0; i < TURNS_AT_ONCE; i++) turn_free(out[i]);
  turns_finish(&t);
}

static void test_a_minute(void **state) {
  struct turns t;
  turns_init(&t);
  for (int i = 0; i < TURNS_PER_MINUTE + 2; i++) turns_add(&t, "a", "", false);
  for (int i = 0; i < TURNS_PER_MINUTE; i++) assert_true(run(&t, 1000 + (uint64_t)i, "a"));
  assert_false(run(&t, 2000, "a"));
  assert_int_equal(turns_deadline(&t), 61000);
  assert_false(run(&t, 60999, "a"));
  assert_true(run(&t, 61000, "a"));
  assert_false(run(&t, 61000, "a")); /* the second began a millisecond later */
  assert_true(run(&t, 61001, "a"));
  turns_finish(&t);
}

static void test_urgent(void **state) {
  struct turns t;
  char name[16];
  turns_init(&t);
  for (int i = 0; i < TURNS_PER_MINUTE; i++) assert_true(turns_add(&t, "a", "", false) && run(&t, 0, "a"));
  for (int i = 0; i < TURNS_QUEUE; i++) {
    snprintf(name, sizeof name, "%d", i);
    assert_true(turns_add(&t, name, "", false));
  }
  assert_false(turns_add(&t, "late", "", false));
  assert_int_equal(t.dropped, 1);
  assert_true(turns_add(&t, "end", "", true)); /* in the place of the oldest */
  assert_int_equal(t.dropped, 2);
  assert_int_equal(t.n, TURNS_QUEUE);
  assert_true(run(&t, 0, "end"));
  assert_false(run(&t, 0, ""));
  assert_true(run(&t, 60000, "1"));
  turns_drop_all(&t);
  assert_int_equal(t.dropped, 2 + TURNS_QUEUE - 2);
  turns_finish(&t);
}

static void test_a_queue_of_urgent_ones(void **state) {
  struct turns t;
  turns_init(&t);
  for (int i = 0; i < TURNS_QUEUE; i++) assert_true(turns_add(&t, "end", "", true));
  assert_false(turns_add(&t, "end", "", true));
  assert_int_equal(t.n, TURNS_QUEUE);
  assert_int_equal(t.dropped, 1);
  turns_finish(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_at_once),
      cmocka_unit_test(test_a_minute),
      cmocka_unit_test(test_urgent),
      cmocka_unit_test(test_a_queue_of_urgent_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
