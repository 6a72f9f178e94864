/* SPDX-License-Identifier: Apache-2.0 */
/* agent/hang/file_timers.c: the timers of torch.distributed.elastic.timer.FileTimerClient. */

#include "agent/hang/file_timers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static struct file_timers *t;
static struct err e;

static int take(int pid, const char *scope, double expires_s, int signo) {
  char line[300];
  struct file_timer request;
  int n = snprintf(line, sizeof(line),
                   "{\"version\": 1, \"pid\": %d, \"scope_id\": \"%s\", \"expiration_time\": %f, \"signal\": %d}", pid,
                   scope, expires_s, signo);
  assert_int_equal(file_timer_parse(line, (size_t)n, &request, &e), 0);
  return file_timers_take(t, &request, (uint32_t)pid % 10, &e);
}

static void expires(double now_s, int pid, const char *scope, int signo) {
  struct file_timer got;
  uint32_t owner;
  assert_true(file_timers_expired(t, now_s, &got, &owner));
  assert_int_equal(got.pid, pid);
  assert_int_equal(owner, pid % 10);
  assert_string_equal(got.scope, scope);
  assert_int_equal(got.signo, signo);
  file_timer_finish(&got);
}

static void nothing_expires(double now_s) {
  struct file_timer got;
  uint32_t owner;
  assert_false(file_timers_expired(t, now_s, &got, &owner));
}

static void set_and_released(void **state) {
  double at;
  t = file_timers_create();
  assert_false(file_timers_next(t, &at));
  assert_int_equal(take(11, "a", 100, 9), 0);
  assert_int_equal(take(12, "a", 90, 9), 0);
  assert_true(file_timers_next(t, &at) && at == 90);
  nothing_expires(89.9);
  assert_int_equal(take(12, "a", -1, 0), 0);
  assert_int_equal(take(12, "b", -1, 0), 0); /* never set */
  assert_true(file_timers_next(t, &at) && at == 100);
  assert_int_equal(take(11, "a", 200, 15), 0); /* anew */
  nothing_expires(199);
  expires(200, 11, "a", 15);
  nothing_expires(1e9);
  file_timers_destroy(t);
}

/* torchrun: the first one in the order of expiry that has a signal; the process's others are forgotten. */
static void which_one_counts(void **state) {
  t = file_timers_create();
  assert_int_equal(take(11, "without", 5, 0), 0);
  assert_int_equal(take(11, "late", 9, 9), 0);
  assert_int_equal(take(11, "early", 7, 15), 0);
  assert_int_equal(take(11, "later still", 50, 9), 0);
  assert_int_equal(take(12, "negative", 8, -3), 0);
  expires(10, 11, "early", 15);
  expires(10, 12, "negative", 0);
  nothing_expires(1e9);
  file_timers_destroy(t);
}

static void who_goes_on_keeps_its_timers(void **state) {
  struct local_set stay = {{0}};
  double at;
  t = file_timers_create();
  for (int pid = 11; pid < 16; pid++) assert_int_equal(take(pid, "a", pid, 9), 0);
  local_set_add(&stay, 3);
  file_timers_keep(t, &stay);
  assert_true(file_timers_next(t, &at) && at == 13);
  expires(20, 13, "a", 9);
  nothing_expires(20);
  file_timers_destroy(t);
}

static void suspended_time_does_not_count(void **state) {
  double at;
  t = file_timers_create();
  assert_int_equal(take(11, "a", 5, 9), 0);
  file_timers_extend(t, 10);
  assert_true(file_timers_next(t, &at) && at == 15);
  nothing_expires(14);
  file_timers_destroy(t);
}

static void there_is_a_limit(void **state) {
  char scope[20];
  t = file_timers_create();
  for (int i = 0; i < FILE_TIMERS_MAX; i++) {
    snprintf(scope, sizeof(scope), "%d", i);
    assert_int_equal(take(11, scope, 5, 9), 0);
  }
  assert_int_equal(take(11, "one more", 5, 9), -ENOSPC);
  assert_int_equal(take(11, "7", 6, 9), 0); /* is there already */
  file_timers_destroy(t);
}

static void what_is_refused(void **state) {
  static const char *const lines[] = {
      "",
      "words",
      "[]",
      "{}",
      "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": 1}",
      "{\"pid\": \"1\", \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
      "{\"pid\": 1, \"scope_id\": 7, \"expiration_time\": 1, \"signal\": 9}",
      "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": NaN, \"signal\": 9}",
      "{\"pid\": 0, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
      "{\"pid\": -1, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
      "{\"pid\": 4294967297, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
      "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 65}",
      "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9} {}",
  };
  for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
    struct file_timer got;
    e = (struct err)ERR_INIT;
    if (file_timer_parse(lines[i], strlen(lines[i]), &got, &e) != -EINVAL || !e.text[0]) fail_msg("%s", lines[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(set_and_released),
      cmocka_unit_test(which_one_counts),
      cmocka_unit_test(who_goes_on_keeps_its_timers),
      cmocka_unit_test(suspended_time_does_not_count),
      cmocka_unit_test(there_is_a_limit),
      cmocka_unit_test(what_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
