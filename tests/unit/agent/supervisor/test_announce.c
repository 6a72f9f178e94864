/* SPDX-License-Identifier: Apache-2.0 */
/* announce: an agent hands on the job's events, and has two of its own. */

#include "tests/rig/supervisor.h"

#include <signal.h>
#include <string.h>
#include "common/events/event.h"
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void open_watching(void) {
  bench_open();
  bench.config.wants_events = true;
  bench_joined();
}

static void tell(const char *name, const char *line) {
  struct msg m;
  msg_init(&m, MSG_EVENT);
  m.event_msg.name = name;
  m.raw = line;
  m.raw_len = strlen(line);
  bench_msg(&m);
}

static size_t count_events(const char *name) {
  size_t n = 0;
  for (size_t i = 0; i < bench.n_fx; i++)
    if (bench.fx[i].kind == SUP_EVENT && !strcmp(bench.fx[i].extra, name)) {
      assert_true(event_line_is_sound(bench.fx[i].text, strlen(bench.fx[i].text)));
      n++;
    }
  return n;
}

BENCH_TEST(test_an_event_of_the_job) {
  open_watching();
  assert_true(bench_hello()->wants_events);
  tell("rdzv.later.kind", "{\"name\":\"rdzv.later.kind\"}"); /* of a later daemon */
  assert_int_equal(count_events("rdzv.later.kind"), 1);
  assert_string_equal(bench_effect(SUP_EVENT)->text, "{\"name\":\"rdzv.later.kind\"}");
  tell("rdzv.x.y", "{\"a\":\"\n\"}");
  tell("rdzv.x.y", "");
  assert_int_equal(count_events("rdzv.x.y"), 0);
  assert_int_equal(bench_said("sent an event that is not a line of JSON"), 2);
}

JOINED_TEST(test_nobody_asked) {
  assert_false(bench_hello()->wants_events);
  tell("rdzv.node.joined", "{}");
  bench_down(false);
  bench_signal(SIGTERM);
  assert_int_equal(bench_count(SUP_EVENT), 0);
}

/* A thousand agents lose the daemon: the one that wrote the events says so. */
BENCH_TEST(test_the_daemon_is_lost) {
  open_watching();
  bench_reconnected();
  assert_int_equal(bench_count(SUP_EVENT), 0);
  bench_welcome(false);
  tell("rdzv.node.joined", "{}");
  bench_down(false);
  assert_int_equal(count_events("rdzv.daemon.lost"), 1);
  bench_run(3000);
  assert_int_equal(count_events("rdzv.daemon.lost"), 1);
}

BENCH_TEST(test_giving_up) {
  open_watching();
  bench_down(false);
  bench_run(70000);
  assert_exit(EXIT_CODE_DAEMON_LOST);
  assert_int_equal(count_events("rdzv.agent.gave_up"), 1);
}

BENCH_TEST(test_refused) {
  struct msg m;
  open_watching();
  msg_init(&m, MSG_REFUSED);
  m.refused.code = EXIT_CODE_REFUSED;
  m.refused.text = "no";
  bench_msg(&m);
  assert_exit(EXIT_CODE_REFUSED);
  assert_int_equal(count_events("rdzv.agent.gave_up"), 1);
}

/* The daemon says that a job is over, and that a node leaves. */
BENCH_TEST(test_orderly_ends) {
  open_watching();
  bench_end(0, NULL);
  assert_int_equal(bench_count(SUP_EVENT), 0);
  open_watching();
  bench_signal(SIGTERM);
  assert_int_equal(bench_count(SUP_EVENT), 0);
}
