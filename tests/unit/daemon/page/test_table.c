/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/page/table.c: what the document says, that texts from peers stay texts, and its limits. */

#include <stdio.h>
#include <string.h>
#include "daemon/page/page.h"
#include "tests/rig/unit.h"

static const char *table(struct buf *out, const char *json) {
  buf_clear(out);
  page_put_table(json, strlen(json), out);
  return buf_text(out);
}

static void check_has(const char *page, const char *part) {
  if (!strstr(page, part)) fail_msg("%s\nis not in\n%s", part, page);
}

#define JOB                                                                                                            \
  "{\"job\":\"nightly\",\"state\":\"running\",\"state_for_ms\":61000,\"round\":2,\"nodes\":1,\"world_size\":8,"        \
  "\"restarts_used\":1,\"max_restarts\":3,"

static void test_a_job(void **state) {
  struct buf out = BUF_INIT;
  const char *page =
      table(&out, "{\"jobs\":[" JOB "\"members\":[{\"node_rank\":0,\"first_rank\":0,\"host\":\"gpu1\","
                  "\"workers\":8,\"state\":\"running\",\"step\":120,\"of\":500,\"loss\":0.5,"
                  "\"samples_per_second\":1234.5,\"progress_age_ms\":3000},{\"node_rank\":-1,"
                  "\"first_rank\":-1,\"host\":\"gpu2\",\"workers\":1,\"state\":\"spare\"}],"
                  "\"verdicts\":[{\"round\":1,\"verdict\":{\"sentence\":\"rank 3 exited with code 1\"}}]}],"
                  "\"drained\":[{\"host\":\"gpu9\",\"by\":\"root\"}]}");
  check_has(page, "<h2>nightly</h2><p><strong>running</strong> for 61 s; round 2, 1 node, 8 workers, restarts 1 of 3");
  check_has(page, "<tr><td>0<td>gpu1<td>0-7<td>running<td>120 of 500<td>0.5<td>1234<td>3 s\n");
  check_has(page, "<tr><td>-<td>gpu2<td>1 worker<td>spare<td><td><td><td>\n");
  check_has(page, "<tr><td>1<td>rank 3 exited with code 1\n");
  check_has(page, "<tr><td>gpu9<td>root\n");
  buf_finish(&out);
}

static void test_other_states(void **state) {
  struct buf out = BUF_INIT;
  check_has(table(&out, "{\"jobs\":[]}"), "no job that you may see");
  check_has(table(&out, "{\"ok\":false,\"text\":\"too large\"}"), "<p>too large.</p>");
  check_has(table(&out, "{\"jobs\":[{\"job\":\"x\",\"uid\":1,\"moved_to\":\"gpu3 (10.0.0.3:1)\"}]}"),
            "<h2>x</h2><p>moved to the daemon on gpu3 (10.0.0.3:1)");
  check_has(table(&out, "{\"jobs\":[{\"job\":\"x\",\"state\":\"ended\",\"outcome\":\"failed\",\"code\":139,"
                        "\"state_for_ms\":7260000}]}"),
            "<strong>failed</strong>, ended 2 h 1 min ago with exit code 139");
  check_has(table(&out, "{\"jobs\":[" JOB "\"waiting\":{\"sentence\":\"1 of 2 nodes is here\"}}]}"),
            "<p>Waiting: 1 of 2 nodes is here.</p>");
  check_has(table(&out, "{\"jobs\":[" JOB "\"ending\":{\"sentence\":\"rank 1 died\"}}]}"),
            "<p>The round is ending: rank 1 died.</p>");
  buf_finish(&out);
}

/* Whatever a peer calls itself, the document has the same elements. */
static void test_hostile_texts(void **state) {
  struct buf out = BUF_INIT;
  const char *page =
      table(&out, "{\"jobs\":[{\"job\":\"<script>alert(1)</script>\",\"state\":\"\\\"'&<\",\"members\":[{"
                  "\"host\":\"a\\u202e\\u0007\\u009b</table>\",\"state\":5,\"step\":\"<\"}],"
                  "\"verdicts\":[{\"verdict\":{\"sentence\":\"<img src=x onerror=y>\"}}]}]}");
  check_has(page, "<h2>&lt;script&gt;alert(1)&lt;/script&gt;</h2>");
  check_has(page, "<strong>&quot;&#39;&amp;&lt;</strong>");
  check_has(page, "<td>a\\u202e\\u0007\\u009b&lt;/table&gt;<td>");
  check_has(page, "&lt;img src=x onerror=y&gt;");
  assert_null(strstr(page, "<script"));
  assert_null(strstr(page, "<img"));
  buf_finish(&out);
}

static void test_many_nodes(void **state) {
  struct buf json = BUF_INIT, out = BUF_INIT;
  buf_puts(&json, "{\"jobs\":[" JOB "\"members\":[");
  for (int i = 0; i < PAGE_TABLE_NODES + 7; i++)
    buf_printf(&json, "%s{\"node_rank\":%d,\"first_rank\":%d,\"workers\":1,\"host\":\"n%d\",\"state\":\"running\"}",
               i ? "," : "", i, i, i);
  buf_puts(&json, "]}]}");
  const char *page = table(&out, buf_text(&json));
  char last[32], next[32];
  snprintf(last, sizeof(last), "<td>n%d<", PAGE_TABLE_NODES - 1);
  snprintf(next, sizeof(next), "<td>n%d<", PAGE_TABLE_NODES);
  check_has(page, last);
  assert_null(strstr(page, next));
  check_has(page, "7 more nodes are not shown");
  buf_finish(&json);
  buf_finish(&out);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_job),
      cmocka_unit_test(test_other_states),
      cmocka_unit_test(test_hostile_texts),
      cmocka_unit_test(test_many_nodes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
