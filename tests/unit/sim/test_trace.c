/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/trace.c: what counts as the same story. */

#include "tests/sim/trace.h"

#include "tests/rig/unit.h"

static const char story[] = "[  0.004] rdzvd -> n1: START\n"
                            "[  0.004] rdzvd -> n2: START\n"
                            "[  1.000] n1: rank 0 exits with 3\n"
                            "[  1.002] n1 -> rdzvd: failed\n";

UNIT_TEST(test_the_same) {
  assert_int_equal(trace_difference(story, story), 0);
  assert_int_equal(trace_difference("", ""), 0);
}

UNIT_TEST(test_another_order_or_time_within_the_slack) {
  assert_int_equal(trace_difference(story, "[  0.004] rdzvd -> n2: START\n"
                                           "[  0.031] rdzvd -> n1: START\n"
                                           "[  1.050] n1: rank 0 exits with 3\n"
                                           "[  1.051] n1 -> rdzvd: failed\n"),
                   0);
  assert_int_equal(trace_difference("[100.000] n1: x\n", "[101.000] n1: x\n"), 0);
}

UNIT_TEST(test_differences) {
  /* another text; too late; too early */
  assert_int_equal(trace_difference(story, "[  0.004] rdzvd -> n1: STOP\n"
                                           "[  0.004] rdzvd -> n2: START\n"
                                           "[  1.000] n1: rank 0 exits with 3\n"
                                           "[  1.002] n1 -> rdzvd: failed\n"),
                   1);
  assert_int_equal(trace_difference("[  1.000] n1: x\n", "[  1.051] n1: x\n"), 1);
  assert_int_equal(trace_difference("[100.000] n1: x\n", "[ 98.999] n1: x\n"), 1);
  /* the order of one subject */
  assert_int_equal(trace_difference("[  1.000] n1: x\n[  1.000] n1: y\n", "[  1.000] n1: y\n[  1.000] n1: x\n"), 1);
  /* a line less; a line more */
  assert_int_equal(trace_difference("[  1.000] n1: x\n[  1.000] n2: y\n", "[  1.000] n1: x\n"), 2);
  assert_int_equal(trace_difference("[  1.000] n1: x\n", "[  1.000] n1: x\n[  1.000] n2: y\n"), 2);
  assert_int_equal(trace_difference("", "[  1.000] n1: x\n"), 1);
}
