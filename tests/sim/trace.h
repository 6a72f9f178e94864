/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_TRACE_H
#define TESTS_SIM_TRACE_H

/* Compares two traces of a story on what matters. A trace has lines "[  0.004] rdzvd -> n1: START round 1 ...".
 *
 * Lines with one subject, here "rdzvd -> n1", must be the same and in the same order. A line may come earlier or later
 * by TRACE_SLACK_MS, or by TRACE_SLACK_PERCENT of its time. So lines of different subjects may change places only if
 * they are that close. */

#include <stddef.h>

enum { TRACE_SLACK_MS = 50, TRACE_SLACK_PERCENT = 1 };

/* 0, or the number of the first line, from 1, for which there is no partner: of `expected`, or else of `got`. */
size_t trace_difference(const char *expected, const char *got);

#endif
