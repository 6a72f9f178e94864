/* SPDX-License-Identifier: Apache-2.0 */
/* agent/launch/line_merger.c: one log out of many agents' lines. */

#include "agent/launch/line_merger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static struct buf shown;
static struct line_merger *voices;

static void emit(void *ctx, int std, const char *line, size_t len) {
  buf_printf(&shown, "%d %.*s\n", std, (int)len, line);
}

static const char *host_of(void *ctx, uint32_t index) {
  static const char *const names[] = {"n1", "n2", "n3"};
  return names[index];
}

static int begin(void **state) {
  static const struct line_merger_options o = {.emit = emit, .host_of = host_of};
  voices = line_merger_create(&o);
  buf_clear(&shown);
  return 0;
}

static int end(void **state) {
  line_merger_destroy(voices);
  buf_finish(&shown);
  return 0;
}

static void says(uint32_t index, const char *line, uint64_t now_ms) {
  line_merger_add(voices, index, 2, line, strlen(line), now_ms);
}

UNIT_TEST_WITH(test_workers_are_shown_as_they_come, begin, end) {
  line_merger_add(voices, 1, 1, "[3] x", 5, 0);
  line_merger_add(voices, 2, 1, "[3] x", 5, 0);
  line_merger_add(voices, 1, 1, "rdzv-agent: x", 13, 0); /* on stdout: nobody's agent */
  line_merger_add(voices, 1, 2, "", 0, 0);
  assert_string_equal(buf_text(&shown), "1 [3] x\n1 [3] x\n1 rdzv-agent: x\n2 \n");
}

UNIT_TEST_WITH(test_what_all_say_is_said_once, begin, end) {
  says(1, "rdzv-agent: rank 3 died", 100);
  assert_int_equal(line_merger_deadline(voices), 100 + MERGER_HOLD_MS);
  says(0, "rdzv-agent: rank 3 died", 150);
  says(2, "rdzv-agent: rank 3 died", 200);
  line_merger_tick(voices, 10000);
  assert_string_equal(buf_text(&shown), "2 rdzv-agent: rank 3 died\n");
  assert_int_equal(line_merger_deadline(voices), UINT64_MAX);
}

UNIT_TEST_WITH(test_what_one_says_has_its_name, begin, end) {
  says(1, "rdzv-agent: no GPU", 100);
  says(2, "rdzv-agent: no GPU", 110);
  line_merger_tick(voices, 100 + MERGER_HOLD_MS - 1);
  assert_string_equal(buf_text(&shown), "");
  line_merger_tick(voices, 100 + MERGER_HOLD_MS);
  assert_string_equal(buf_text(&shown), "2 rdzv-agent: n2: no GPU\n");
  says(0, "rdzv-agent: no GPU", 500);
  assert_string_equal(buf_text(&shown), "2 rdzv-agent: n2: no GPU\n");
}

UNIT_TEST_WITH(test_it_is_news_again_later, begin, end) {
  says(0, "rdzv-agent: restart", 0);
  says(0, "rdzv-agent: restart", 10);
  says(1, "rdzv-agent: restart", MERGER_REMEMBER_MS + 20);
  line_merger_flush(voices);
  assert_string_equal(buf_text(&shown), "2 rdzv-agent: restart\n2 rdzv-agent: restart\n2 rdzv-agent: n2: restart\n");
}

UNIT_TEST_WITH(test_many_lines_lose_none, begin, end) {
  char line[64];
  size_t lines = 0;
  for (int i = 0; i < 3 * MERGER_MAX; i++) {
    snprintf(line, sizeof(line), "rdzv-agent: %d", i);
    says(1, line, 0);
  }
  line_merger_flush(voices);
  for (const char *p = buf_text(&shown); (p = strchr(p, '\n')); p++) lines++;
  assert_int_equal(lines, 3 * MERGER_MAX);
}

UNIT_TEST_WITH(test_leaving, begin, end) {
  says(0, "rdzv-agent: SIGTERM: leaving with exit code 75", 0);
  line_merger_hide_leaving(voices);
  says(0, "rdzv-agent: SIGTERM: leaving with exit code 75", 9000);
  says(1, "rdzv-agent: SIGTERM: leaving with exit code 75", 9000);
  says(0, "rdzv-agent: x", 9000);
  line_merger_flush(voices);
  assert_string_equal(buf_text(&shown), "2 rdzv-agent: SIGTERM: leaving with exit code 75\n2 rdzv-agent: x\n");
}
