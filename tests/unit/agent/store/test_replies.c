/* SPDX-License-Identifier: Apache-2.0 */
/* replies: which answers go together, when, and under which number. */

#include "agent/store/inquiry.h"

#include "tests/rig/unit.h"

static struct reply due[OWNERS_MAX];

static void ask(struct replies *r, int64_t serial, int64_t first_id, size_t n) {
  struct store_caller callers[OWNERS_MAX];
  for (size_t i = 0; i < n; i++)
    callers[i] = (struct store_caller){
        .id = first_id + (int64_t)i, .addr = "10.0.0.2", .port = 4000 + (int64_t)i, .asked = serial};
  struct find_owners m = {.incarnation = "0",
                          .round = 1,
                          .serial = serial,
                          .addr = "10.0.0.1",
                          .port = 29500,
                          .callers = callers,
                          .n_callers = n};
  replies_add(r, &m);
}

UNIT_TEST(test_the_first_question_is_answered_at_once) {
  struct replies *r = replies_create(1);
  int64_t serial;
  assert_int_equal(replies_deadline(r), UINT64_MAX);
  ask(r, 7, 1, 2);
  assert_true(replies_deadline(r) <= 1000);
  assert_int_equal(replies_next(r, 1000, due, &serial), 2);
  assert_int_equal(serial, 7);
  assert_int_equal(due[1].id, 2);
  assert_int_equal(due[1].asked, 7);
  assert_int_equal(due[1].from_port, 4001);
  assert_int_equal(due[1].to_port, 29500);
  struct ipaddr from = ipaddr_parse("10.0.0.2"), to = ipaddr_parse("10.0.0.1");
  assert_int_equal(ipaddr_compare(&due[1].from, &from), 0);
  assert_int_equal(ipaddr_compare(&due[1].to, &to), 0);
  assert_int_equal(replies_deadline(r), UINT64_MAX);
  assert_int_equal(replies_next(r, 2000, due, &serial), 0);
  replies_destroy(r);
}

/* A question in each millisecond, as of an agent that has no pace. */
UNIT_TEST(test_answers_have_a_pace) {
  struct replies *r = replies_create(1);
  int64_t serial, id = 0;
  size_t n_answers = 0, n_answered = 0;
  for (uint64_t now_ms = 1000; now_ms < 11000; now_ms++) {
    id++;
    ask(r, id, id, 1);
    assert_true(replies_deadline(r) <= now_ms + OWNERS_EVERY_MS);
    size_t n = replies_next(r, now_ms, due, &serial);
    if (!n) continue;
    assert_int_equal(serial, id); /* of the last one */
    n_answers++;
    n_answered += n;
  }
  assert_int_equal(n_answers, 10000 / OWNERS_EVERY_MS);
  assert_in_range(n_answered, id - OWNERS_EVERY_MS, id);
  replies_destroy(r);
}

UNIT_TEST(test_more_than_one_message_holds) {
  struct replies *r = replies_create(1);
  int64_t serial, id = 1;
  for (int i = 0; i < REPLIES_MAX / OWNERS_MAX; i++, id += OWNERS_MAX) ask(r, i + 1, id, OWNERS_MAX);
  ask(r, 99, id, 1); /* there is no room: its asker asks again */
  uint64_t now_ms = 1000;
  for (int i = 0; i < REPLIES_MAX / OWNERS_MAX; i++, now_ms = replies_deadline(r)) {
    assert_int_equal(replies_next(r, now_ms, due, &serial), OWNERS_MAX);
    assert_int_equal(serial, i + 1);
    assert_int_equal(due[0].id, 1 + i * OWNERS_MAX);
  }
  assert_int_equal(now_ms, UINT64_MAX);
  replies_destroy(r);
}

/* The asker counts answers: one that is asked about again before its answer gets one, under the later number. */
UNIT_TEST(test_asked_again_before_the_answer) {
  struct replies *r = replies_create(1);
  int64_t serial;
  ask(r, 1, 1, 2);
  ask(r, 2, 2, 1);
  assert_int_equal(replies_next(r, 1000, due, &serial), 2);
  assert_int_equal(serial, 2);
  assert_int_equal(due[1].asked, 2);
  ask(r, 3, 1, 2);
  replies_clear(r); /* the round is over, or the daemon is away */
  assert_int_equal(replies_deadline(r), UINT64_MAX);
  assert_int_equal(replies_next(r, 9000, due, &serial), 0);
  replies_destroy(r);
  replies_destroy(NULL);
}
