/* SPDX-License-Identifier: Apache-2.0 */
/* announce: an agent hands on the job's events, and has two of its own. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include <string.h>
#include "common/events/event.h"
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void open_watching(struct bench *b) {
  bench_open(b);
  b->config.wants_events = true;
  bench_joined(b);
}

static void tell(struct bench *b, const char *name, const char *line) {
  struct msg m;
  msg_init(&m, MSG_EVENT);
  m.event_msg.name = name;
  m.raw = line;
  m.raw_len = strlen(line);
  bench_msg(b, &m);
}

static size_t count_events(const struct bench *b, const char *name) {
  size_t n = 0;
  for (size_t i = 0; i < b->n_fx; i++)
    if (b->fx[i].kind == SUP_EVENT && !strcmp(b->fx[i].event.name, name)) {
      assert_true(event_line_is_sound(b->fx[i].event.line, strlen(b->fx[i].event.line)));
      n++;
    }
  return n;
}

static void test_an_event_of_the_job(void **state) {
  struct bench b;
  open_watching(&b);
  assert_true(bench_hello(&b)->wants_events);
  tell(&b, "rdzv.later.kind", "{\"name\":\"rdzv.later.kind\"}"); /* of a later daemon */
  assert_int_equal(count_events(&b, "rdzv.later.kind"), 1);
  assert_string_equal(bench_effect(&b, SUP_EVENT)->event.line, "{\"name\":\"rdzv.later.kind\"}");
  tell(&b, "rdzv.x.y", "{\"a\":\"\n\"}");
  tell(&b, "rdzv.x.y", "");
  assert_int_equal(count_events(&b, "rdzv.x.y"), 0);
  assert_int_equal(bench_said(&b, "sent an event that is not a line of JSON"), 2);
  bench_close(&b);
}

static void test_nobody_asked(void **state) {
  struct bench b;
  bench_open_joined(&b);
  assert_false(bench_hello(&b)->wants_events);
  tell(&b, "rdzv.node.joined", "{}");
  bench_down(&b, false);
  bench_signal(&b, SIGTERM);
  assert_int_equal(bench_count(&b, SUP_EVENT), 0);
  bench_close(&b);
}

/* A thousand agents lose the daemon: the one that wrote the events says so. */
static void test_the_daemon_is_lost(void **state) {
  struct bench b;
  open_watching(&b);
  bench_reconnected(&b);
  assert_int_equal(bench_count(&b, SUP_EVENT), 0);
  bench_welcome(&b, false);
  tell(&b, "rdzv.node.joined", "{}");
  bench_down(&b, false);
  assert_int_equal(count_events(&b, "rdzv.daemon.lost"), 1);
  bench_run(&b, 3000);
  assert_int_equal(count_events(&b, "rdzv.daemon.lost"), 1);
  bench_close(&b);
}

static void test_giving_up(void **state) {
  struct bench b;
  open_watching(&b);
  bench_down(&b, false);
  bench_run(&b, 70000);
  assert_exit(&b, EXIT_CODE_DAEMON_LOST);
  assert_int_equal(count_events(&b, "rdzv.agent.gave_up"), 1);
  bench_close(&b);
}

static void test_refused(void **state) {
  struct bench b;
  struct msg m;
  open_watching(&b);
  msg_init(&m, MSG_REFUSED);
  m.refused.code = EXIT_CODE_REFUSED;
  m.refused.text = "no";
  bench_msg(&b, &m);
  assert_exit(&b, EXIT_CODE_REFUSED);
  assert_int_equal(count_events(&b, "rdzv.agent.gave_up"), 1);
  bench_close(&b);
}

/* The daemon says that a job is over, and that a node leaves. */
static void test_orderly_ends(void **state) {
  struct bench b;
  open_watching(&b);
  bench_end(&b, 0, NULL);
  assert_int_equal(bench_count(&b, SUP_EVENT), 0);
  bench_close(&b);
  open_watching(&b);
  bench_signal(&b, SIGTERM);
  assert_int_equal(bench_count(&b, SUP_EVENT), 0);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_an_event_of_the_job),
      cmocka_unit_test(test_nobody_asked),
      cmocka_unit_test(test_the_daemon_is_lost),
      cmocka_unit_test(test_giving_up),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_orderly_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
