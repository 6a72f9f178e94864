/* SPDX-License-Identifier: Apache-2.0 */
/* agent/workers/signals.c: which signals belong to one event. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include "agent/workers/signals.h"

static void same_signal_at_once_is_an_echo(void **state) {
  struct last_signal last = {0};
  assert_false(signal_is_echo(&last, SIGTERM, 1000));
  assert_true(signal_is_echo(&last, SIGTERM, 1000));
  assert_true(signal_is_echo(&last, SIGTERM, 1000 + SIGNAL_ECHO_MS - 1));
  assert_false(signal_is_echo(&last, SIGTERM, 1000 + SIGNAL_ECHO_MS)); /* an echo does not make the event longer */
}

static void first_signal_counts_at_any_time(void **state) {
  struct last_signal last = {0};
  assert_false(signal_is_echo(&last, SIGHUP, 0));
  assert_true(signal_is_echo(&last, SIGHUP, 1));
}

static void another_signal_counts(void **state) {
  struct last_signal last = {0};
  assert_false(signal_is_echo(&last, SIGINT, 1000));
  assert_false(signal_is_echo(&last, SIGTERM, 1000));
  assert_true(signal_is_echo(&last, SIGTERM, 1001));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_signal_at_once_is_an_echo),
      cmocka_unit_test(first_signal_counts_at_any_time),
      cmocka_unit_test(another_signal_counts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
