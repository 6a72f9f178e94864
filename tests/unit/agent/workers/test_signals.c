/* SPDX-License-Identifier: Apache-2.0 */
/* agent/workers/signals.c: which signals belong to one event. */

#include "tests/rig/unit.h"

#include <signal.h>
#include "agent/workers/signals.h"

UNIT_TEST(same_signal_at_once_is_an_echo) {
  struct last_signal last = {0};
  assert_false(signal_is_echo(&last, SIGTERM, 1000));
  assert_true(signal_is_echo(&last, SIGTERM, 1000));
  assert_true(signal_is_echo(&last, SIGTERM, 1000 + SIGNAL_ECHO_MS - 1));
  assert_false(signal_is_echo(&last, SIGTERM, 1000 + SIGNAL_ECHO_MS)); /* an echo does not make the event longer */
}

UNIT_TEST(first_signal_counts_at_any_time) {
  struct last_signal last = {0};
  assert_false(signal_is_echo(&last, SIGHUP, 0));
  assert_true(signal_is_echo(&last, SIGHUP, 1));
}

UNIT_TEST(another_signal_counts) {
  struct last_signal last = {0};
  assert_false(signal_is_echo(&last, SIGINT, 1000));
  assert_false(signal_is_echo(&last, SIGTERM, 1000));
  assert_true(signal_is_echo(&last, SIGTERM, 1001));
}
