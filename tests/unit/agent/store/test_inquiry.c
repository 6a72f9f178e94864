/* SPDX-License-Identifier: Apache-2.0 */
/* inquiry: which connections are asked about, when again, and which answers count. */

#include "agent/store/inquiry.h"

#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "tests/rig/unit.h"

static struct store_caller asked[OWNERS_MAX];
static struct buf heard;

static void on_admit(void *ctx, uint64_t id) {
  buf_printf(&heard, "+%d ", (int)id);
}

static void on_unknown(void *ctx, uint64_t id, const char *host) {
  buf_printf(&heard, "?%d(%s) ", (int)id, host);
}

static void on_refuse(void *ctx, uint64_t id, const struct store_owner *other, const char *host) {
  if (other)
    buf_printf(&heard, "-%d(%d %d %s %s) ", (int)id, (int)other->uid, (int)other->pid, other->name, host);
  else
    buf_printf(&heard, "-%d ", (int)id);
}

static void answer(struct inquiry *q, int64_t serial, int64_t id, int64_t of, enum ownership is, const char *host) {
  static const struct inquiry_callbacks callbacks = {on_admit, on_unknown, on_refuse};
  char name[] = "python3";
  struct store_owner o = {.id = id, .asked = of, .is = is, .uid = 1001, .pid = 4711, .name = name};
  struct owners m = {.incarnation = "0", .round = 1, .serial = serial, .host = host, .owners = &o, .n_owners = 1};
  inquiry_answer(q, &m, &callbacks, NULL);
  memset(name, 'x', sizeof name - 1); /* it borrows nothing */
}

static void expect(const char *want) {
  assert_string_equal(buf_text(&heard), want);
  buf_clear(&heard);
}

static struct inquiry *of_two(int64_t *serial) {
  struct inquiry *q = inquiry_create(1);
  inquiry_add(q, 1, "10.0.0.2", 4001);
  inquiry_add(q, 2, "fd00::3", 4002);
  assert_int_equal(inquiry_deadline(q), 0);
  assert_int_equal(inquiry_next(q, 1000, asked, serial), 2);
  return q;
}

UNIT_TEST(test_one_question_about_all) {
  int64_t serial, later;
  struct inquiry *q = of_two(&serial);
  assert_int_equal(asked[0].id + asked[1].id, 3);
  const struct store_caller *second = &asked[asked[0].id == 1];
  assert_string_equal(second->addr, "fd00::3");
  assert_int_equal(second->port, 4002);
  assert_int_equal(inquiry_next(q, 1000, asked, &later), 0);
  assert_int_equal(inquiry_deadline(q), 1000 + INQUIRY_AGAIN_MS);
  answer(q, serial, 1, 1, OWNERSHIP_OWN, "n1");
  answer(q, serial, 2, 1, OWNERSHIP_OTHER, "n2");
  answer(q, serial, 1, 1, OWNERSHIP_GONE, "n1"); /* it is decided */
  expect("+1 -2(1001 4711 python3 n2) ");
  assert_int_equal(inquiry_deadline(q), UINT64_MAX);
  inquiry_destroy(q);
}

UNIT_TEST(test_it_is_asked_again) {
  int64_t first, second;
  struct inquiry *q = of_two(&first);
  inquiry_add(q, 3, "10.0.0.4", 4003);
  assert_int_equal(inquiry_next(q, 1000 + OWNERS_EVERY_MS, asked, &second), 1); /* the new one alone */
  assert_int_equal(asked[0].id, 3);
  assert_int_equal(inquiry_next(q, 1000 + INQUIRY_AGAIN_MS, asked, &second), 2);
  answer(q, first, 1, 1, OWNERSHIP_GONE, "n1"); /* of the question before */
  expect("");
  answer(q, second, 1, 1, OWNERSHIP_GONE, "n1");
  expect("-1 ");
  inquiry_repeat(q); /* the daemon was away */
  assert_int_equal(inquiry_deadline(q), 1000 + INQUIRY_AGAIN_MS + OWNERS_EVERY_MS);
  assert_int_equal(inquiry_next(q, 5000, asked, &first), 2);
  assert_true(inquiry_drop(q, 2));
  assert_false(inquiry_drop(q, 2));
  answer(q, first, 2, 1, OWNERSHIP_OWN, "n2");
  expect("");
  inquiry_destroy(q);
}

/* Several agents have the address: one yes is enough, and only the last no counts. */
UNIT_TEST(test_several_agents) {
  int64_t serial;
  struct inquiry *q = of_two(&serial);
  answer(q, serial, 1, 3, OWNERSHIP_OTHER, "n1");
  answer(q, serial, 1, 3, OWNERSHIP_GONE, "n2");
  answer(q, serial, 2, 2, OWNERSHIP_OTHER, "n1");
  expect("");
  answer(q, serial, 1, 3, OWNERSHIP_OWN, "n3");
  answer(q, serial, 2, 2, OWNERSHIP_GONE, "n2");
  expect("+1 -2(1001 4711 python3 n1) ");
  inquiry_destroy(q);
}

UNIT_TEST(test_who_cannot_tell_and_who_is_nowhere) {
  int64_t serial;
  struct inquiry *q = of_two(&serial);
  answer(q, serial, 1, 1, OWNERSHIP_UNKNOWN, "n1");
  answer(q, serial, 2, 0, OWNERSHIP_GONE, "");
  expect("?1(n1) -2 ");
  inquiry_destroy(q);
}

/* However many come, and however often somebody looks: one question in OWNERS_EVERY_MS, about OWNERS_MAX at most. */
UNIT_TEST(test_questions_have_a_pace) {
  struct inquiry *q = inquiry_create(1);
  uint64_t id = 0, now_ms = 1000;
  int64_t serial = 0;
  size_t n_questions = 0, n_asked = 0;
  for (; now_ms < 11000; now_ms++) { /* a thousand in a second */
    inquiry_add(q, ++id, "10.0.0.2", 4000);
    assert_true(inquiry_deadline(q) <= now_ms + OWNERS_EVERY_MS);
    size_t n = inquiry_next(q, now_ms, asked, &serial);
    n_questions += n > 0;
    n_asked += n;
    for (size_t i = 0; i < n; i++) answer(q, serial, asked[i].id, 1, OWNERSHIP_GONE, "n1");
  }
  buf_clear(&heard);
  assert_int_equal(n_questions, 10000 / OWNERS_EVERY_MS);
  assert_in_range(n_asked, id - OWNERS_EVERY_MS, id);
  for (size_t i = 0; i < 2 * OWNERS_MAX; i++) inquiry_add(q, ++id, "10.0.0.2", 4000);
  now_ms = inquiry_deadline(q);
  for (int i = 0; i < 2; i++, now_ms += OWNERS_EVERY_MS) {
    assert_int_equal(inquiry_next(q, now_ms, asked, &serial), OWNERS_MAX);
    assert_int_equal(inquiry_next(q, now_ms + OWNERS_EVERY_MS - 1, asked, &serial), 0);
    assert_int_equal(inquiry_deadline(q), now_ms + OWNERS_EVERY_MS);
  }
  assert_in_range(inquiry_next(q, now_ms, asked, &serial), 0, OWNERS_EVERY_MS);
  inquiry_destroy(q);
}

/* After a silence nobody waits. */
UNIT_TEST(test_the_first_one_is_asked_about_at_once) {
  struct inquiry *q = inquiry_create(1);
  int64_t serial;
  for (uint64_t now_ms = 1000; now_ms < 5000; now_ms += OWNERS_EVERY_MS) {
    inquiry_add(q, now_ms, "10.0.0.2", 4001);
    assert_true(inquiry_deadline(q) <= now_ms);
    assert_int_equal(inquiry_next(q, now_ms, asked, &serial), 1);
    answer(q, serial, (int64_t)now_ms, 1, OWNERSHIP_GONE, "n1");
  }
  inquiry_destroy(q);
  buf_clear(&heard);
}

/* An agent answers two questions under the number of the second. */
UNIT_TEST(test_an_answer_to_several_questions) {
  int64_t first, second;
  struct inquiry *q = of_two(&first);
  inquiry_add(q, 3, "10.0.0.4", 4003);
  assert_int_equal(inquiry_next(q, 1000 + OWNERS_EVERY_MS, asked, &second), 1);
  answer(q, second, 1, 1, OWNERSHIP_OWN, "n1");
  answer(q, second, 3, 1, OWNERSHIP_OWN, "n1");
  answer(q, first, 2, 1, OWNERSHIP_OWN, "n1");
  expect("+1 +3 +2 ");
  inquiry_destroy(q);
}

int main(void) {
  int failed = unit_run(NULL, NULL);
  buf_finish(&heard);
  return failed;
}
