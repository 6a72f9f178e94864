/* SPDX-License-Identifier: Apache-2.0 */
/* goodput_text: the line of what a job's time went to, word for word; and the same for programs. */

#include <jansson.h>
#include <string.h>
#include "proto/msg.h"
#include "tests/rig/unit.h"

#define MIN  INT64_C(60000)
#define HOUR (60 * MIN)

static struct goodput base(int64_t rounds) {
  struct goodput g;
  goodput_init(&g);
  g.rounds = rounds;
  g.steps = true;
  return g;
}

static void check(const struct goodput *g, const char *want) {
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  goodput_sentence(g, &out);
  assert_string_equal(buf_text(&out), want);
}

UNIT_TEST(test_what_it_was_lost_to) {
  struct goodput g = base(3);
  g.productive_ms = 4 * HOUR + 12 * MIN - 17 * MIN;
  g.waiting_ms = g.waited_ms = 9 * MIN;
  g.waited_for = "gpu7";
  g.lost_ms = 4 * MIN;
  g.stopping_ms = 30000;
  g.starting_ms = MIN;
  g.forming_ms = 30000;
  g.checkpoint_ms = 2 * MIN;
  check(&g, "useful 93 % of 4 h 12 min; lost: waiting for gpu7 9 min, 2 restarts 6 min, checkpoints 2 min");
  g.startup_ms = 70000; /* of that, and no restart has caused it */
  check(&g,
        "useful 93 % of 4 h 12 min; lost: waiting for gpu7 9 min, 2 restarts 5 min, checkpoints 2 min, startup 70 s");
  g.waited_ms = 5 * MIN;
  g.rounds = 2;
  check(
      &g,
      "useful 93 % of 4 h 12 min; lost: waiting for gpu7 and others 9 min, 1 restart 5 min, checkpoints 2 min, startup 70 s");
  g.waited_for = "";
  g.rounds = 1;
  check(
      &g,
      "useful 93 % of 4 h 12 min; lost: waiting for nodes 9 min, unsaved work 4 min, checkpoints 2 min, startup 70 s");
}

UNIT_TEST(test_no_progress) {
  struct goodput g = base(1);
  g.productive_ms = 5 * MIN;
  g.lost_ms = 10 * MIN;
  g.stalled_ms = 9 * MIN;
  check(&g, "useful 33 % of 15 min; lost: no progress 9 min, unsaved work 60 s");
  g.rounds = 2; /* a restart costs what it lost, and not how long nobody declared a hang */
  check(&g, "useful 33 % of 15 min; lost: no progress 9 min, 1 restart 60 s");
  g.rounds_in_place = 1;
  check(&g, "useful 33 % of 15 min; lost: no progress 9 min, 1 restart (1 in place) 60 s");
}

UNIT_TEST(test_what_is_not_worth_a_word) {
  struct goodput g = base(1);
  g.productive_ms = 9999;
  check(&g, "");
  g.productive_ms = 10000;
  check(&g, "useful 100 % of 10 s");
  g.stopping_ms = 99;
  check(&g, "useful 99 % of 10 s");
  g.stopping_ms = 999;
  check(&g, "useful 90 % of 11 s");
  g.stopping_ms = 1000;
  check(&g, "useful 90 % of 11 s; lost: stopping 1 s");
  g.productive_ms = 100 * HOUR;
  g.checkpoint_ms = 59999;
  check(&g, "useful 99.9 % of 4 d 4 h");
  g.checkpoint_ms = 60000;
  check(&g, "useful 99.9 % of 4 d 4 h; lost: checkpoints 60 s");
  g.rounds = 0; /* nothing ran */
  check(&g, "");
}

UNIT_TEST(test_without_steps) {
  struct goodput g = base(1);
  g.steps = false;
  g.productive_ms = 95000;
  g.starting_ms = g.startup_ms = 5000;
  check(&g, "ran 95 % of 100 s; lost: startup 5 s");
  g.rounds = 2;
  check(&g, "ran 95 % of 100 s; lost: startup 5 s; work done again is not known, since no worker reports steps");
}

UNIT_TEST(test_a_hostile_name) {
  struct goodput g = base(1);
  g.productive_ms = g.waiting_ms = g.waited_ms = 30000;
  g.waited_for = "\033[31mred\n";
  check(&g, "useful 50 % of 60 s; lost: waiting for \\x1b[31mred\\n 30 s");
}

UNIT_TEST(test_json) {
  struct goodput g = base(2);
  g.productive_ms = 66700;
  g.lost_ms = 33300;
  g.waited_for = "gpu7";
  json_t *v = goodput_seconds_json(&g);
  assert_true(json_real_value(json_object_get(v, "useful")) == 0.667);
  assert_true(json_real_value(json_object_get(v, "total")) == 100);
  assert_true(json_real_value(json_object_get(v, "lost")) == 33.3);
  for (int b = 0; b < BUCKET_COUNT; b++) assert_true(json_is_real(json_object_get(v, bucket_name((enum bucket)b))));
  assert_string_equal(json_string_value(json_object_get(v, "waited_for")), "gpu7");
  assert_int_equal(json_integer_value(json_object_get(v, "rounds")), 2);
  json_decref(v);
  goodput_init(&g);
  v = goodput_seconds_json(&g);
  assert_true(json_real_value(json_object_get(v, "useful")) == 0);
  json_decref(v);
}

UNIT_TEST(test_round_trip) {
  struct goodput g = base(7), back;
  for (int b = 0; b < BUCKET_COUNT; b++) *goodput_bucket(&g, (enum bucket)b) = 1000 + b;
  g.waited_for = "gpu[1-3]";
  g.from_step = 5;
  g.step = 9;
  json_t *v = goodput_to_json(&g);
  assert_int_equal(goodput_from_json(v, &back, NULL), 0);
  for (int b = 0; b < BUCKET_COUNT; b++) assert_int_equal(goodput_ms(&back, (enum bucket)b), 1000 + b);
  assert_string_equal(back.waited_for, "gpu[1-3]");
  assert_int_equal(back.from_step, 5);
  assert_int_equal(back.step, 9);
  assert_int_equal(back.saved, -1);
  assert_int_equal(goodput_total_ms(&back), 7 * 1000 + 21);
  json_object_set_new(v, "lost_ms", json_integer(-1));
  assert_int_not_equal(goodput_from_json(v, &back, NULL), 0);
  json_decref(v);
}
