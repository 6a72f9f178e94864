/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines per peer address: limits, and that they are forgotten. */

#include "common/system/rationed_log.h"

#include <stdio.h>
#include <string.h>
#include "common/system/log.h"
#include "tests/rig/unit.h"

struct lines {
  int n;
  char first[256], last[256];
};

static void collect(void *ctx, enum log_level level, const char *line) {
  struct lines *l = ctx;
  if (l->n++ == 0) snprintf(l->first, sizeof(l->first), "%s", line);
  snprintf(l->last, sizeof(l->last), "%s", line);
}

static struct lines got;
static struct rations a;

static int set_up(void **state) {
  got = (struct lines){0};
  log_set_sink(collect, &got);
  rations_init(&a, 1);
  return 0;
}

static int tear_down(void **state) {
  log_set_sink(NULL, NULL);
  rations_finish(&a);
  return 0;
}

UNIT_TEST_WITH(test_lines_are_limited_per_address_and_window, set_up, tear_down) {
  for (int i = 0; i < 100; i++) rations_log(&a, "10.0.0.1", 1000 + (uint64_t)i, LOG_WARN, "x %d", i);
  assert_int_equal(got.n, RATION_LINES_MAX);
  rations_log(&a, "10.0.0.2", 1100, LOG_WARN, "another");
  assert_string_equal(got.last, "another");
  got.n = 0;
  rations_log(&a, "10.0.0.1", 1000 + RATION_WINDOW_MS - 1, LOG_WARN, "still");
  assert_int_equal(got.n, 0);
  rations_log(&a, "10.0.0.1", 1000 + RATION_WINDOW_MS, LOG_WARN, "again");
  assert_int_equal(got.n, 2);
  assert_string_equal(got.last, "again");
}

UNIT_TEST_WITH(test_told_how_many_were_left_out, set_up, tear_down) {
  for (int i = 0; i < RATION_LINES_MAX + 7; i++) rations_log(&a, "x", 20000, LOG_WARN, "line");
  got = (struct lines){0};
  rations_log(&a, "x", 20000 + RATION_WINDOW_MS, LOG_DEBUG, "hidden"); /* of a level that is not shown */
  assert_int_equal(got.n, 0);
  rations_log(&a, "x", 20001 + RATION_WINDOW_MS, LOG_INFO, "shown");
  assert_int_equal(got.n, 2);
  assert_string_equal(got.first, "x: 7 more such lines were left out");
}

UNIT_TEST_WITH(test_memory_is_bounded, set_up, tear_down) {
  char addr[32];
  for (int i = 0; i < 20 * RATIONS_MAX; i++) {
    snprintf(addr, sizeof(addr), "10.%d.%d.%d", i >> 16, (i >> 8) & 255, i & 255);
    rations_log(&a, addr, 1000, LOG_WARN, "x");
    assert_true(a.map.count <= RATIONS_MAX + 1);
  }
}

/* One stranger with many addresses. */
UNIT_TEST_WITH(test_lines_are_limited_for_all_together, set_up, tear_down) {
  char addr[32];
  for (int i = 0; i < 20 * RATIONS_MAX; i++) {
    snprintf(addr, sizeof(addr), "127.%d.%d.%d", i >> 16, (i >> 8) & 255, i & 255);
    rations_log(&a, addr, 1000, LOG_WARN, "x");
  }
  assert_true(got.n <= 1024);
  got = (struct lines){0};
  rations_log(&a, "10.0.0.1", 1000 + RATION_WINDOW_MS, LOG_WARN, "again");
  assert_int_equal(got.n, 2);
  assert_non_null(strstr(got.first, "more lines about many addresses were left out"));
  assert_string_equal(got.last, "again");
}
