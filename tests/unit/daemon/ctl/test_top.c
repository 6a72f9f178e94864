/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl top: which row comes first, and what fits. */

#include "daemon/ctl/top.h"

#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static char *page(const char *json, bool one_job, size_t width) {
  struct buf out = BUF_INIT;
  if (!top_put_page(&out, json, strlen(json), one_job, width)) fail_msg("not understood: %s", json);
  buf_puts(&out, "");
  return buf_steal(&out);
}

static void check(const char *json, bool one_job, size_t width, const char *expected) {
  char *text = page(json, one_job, width);
  assert_string_equal(text, expected);
  free(text);
}

#define NODE(rank, host, state, more)                                                                                  \
  "{\"node_rank\":" rank ",\"first_rank\":1" rank "0,\"host\":\"" host "\",\"workers\":8,\"state\":\"" state "\"" more \
  "}"
#define JOB(name, state, more)                                                                                         \
  "{\"job\":\"" name "\",\"uid\":1000,\"state\":\"" state                                                              \
  "\",\"state_for_ms\":5000,\"round\":2,\"nodes\":2,\"world_size\":16,\"restarts_used\":1,\"max_restarts\":3" more "}"

UNIT_TEST(test_nodes) {
  check("{\"jobs\":[" JOB("j", "running",
                          ",\"members\":[" NODE("0", "gpu0", "running",
                                                ",\"heard_ms_ago\":3,\"step\":120,\"of\":500,\"progress_age_ms\":900,"
                                                "\"loss\":0.5,\"samples_per_second\":100") "," NODE("1", "gpu1",
                                                                                                    "running", ",\"step\":119,\"of\":500,\"progress_age_ms\":61000,\"judgement\":\"stuck\",\"laggards\":[{\"local_rank\":3,\"step\":117,\"age_ms\":61000}]") "," NODE("2", "gpu2", "away", "") "," NODE("3", "gpu3", "running", ",\"heard_ms_ago\":4100,\"step\":120") "," NODE("4",
                                                                                                                                                                                                                                                                                                                                                                                "gpu4",
                                                                                                                                                                                                                                                                                                                                                                                "running", ",\"progress_age_ms\":1200,\"step\":120") "],"
                                                                                                                                                                                                                                                                                                                                                                                                                                     "\"goodput\":{\"useful\":0.934,\"total\":600},\"progress\":{\"step\":119,\"of\":500,\"age_ms\":61000,\"judgement\":\"stuck\",\"samples_per_second\":100}") "]}",
        true, 0,
        "JOB  STATE    FOR  ROUND  NODES  WORKERS  RESTARTS        STEP     PROGRESS  SAMPLES/S  USEFUL\n"
        "j    running  5 s      2      2       16    1 of 3  119 of 500  61 s, stuck        100    93 %\n"
        "\n"
        "NODE  HOST  RANKS    STATE          STEP     PROGRESS  LOSS  SAMPLES/S  SILENT  BEHIND\n"
        "   2  gpu2  120-127  away\n"
        "   3  gpu3  130-137  running         120                                   4 s\n"
        "   1  gpu1  110-117  running  119 of 500  61 s, stuck                           local 3 at 117, 61 s\n"
        "   0  gpu0  100-107  running  120 of 500          0 s   0.5        100\n"
        "   4  gpu4  140-147  running         120          1 s\n");
}

UNIT_TEST(test_jobs) {
  static const char json[] =
      "{\"jobs\":[" JOB("done", "ended", ",\"outcome\":\"success\",\"code\":0") "," JOB(
          "fine", "running", "") "," JOB("broken",
                                         "ended", ",\"outcome\":\"failed\",\"code\":3,\"last_verdict\":{\"sentence\":\"rank 3 died\"}") "," JOB("slow", "running", ",\"members\":[" NODE("0", "a", "running", ",\"step\":7,\"progress_age_ms\":20000") "],\"progress\":{\"step\":7,\"age_ms\":20000,\"judgement\":\"late\",\"sentence\":\"1 of 1 node has made no progress for 20 s: a\"}") "," JOB("waits", "forming", ",\"min_nodes\":2,\"waiting\":{\"here\":1,\"sentence\":\"missing 1: gpu7\"}") "," JOB("torn", "running", ",\"members\":[" NODE("0", "a", "away", "") "]") ","
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                  "{\"job\":\"gone\",\"uid\":1000,\"moved_to\":\"h (h:1)\"}],\"drained\":[{\"host\":\"gpu9\"},{\"host\":\"g\\u001b[2J\"}]}";
  check(
      json, false, 0,
      "JOB     STATE             FOR  ROUND   NODES  WORKERS  RESTARTS  STEP    PROGRESS  WHY\n"
      "torn    running           5 s      2       2       16    1 of 3\n"
      "slow    running           5 s      2       2       16    1 of 3     7  20 s, late  1 of 1 node has made no progress for 20 s: a\n"
      "waits   forming           5 s      2  1 of 2             1 of 3                    missing 1: gpu7\n"
      "fine    running           5 s      2       2       16    1 of 3\n"
      "broken  failed, code 3    5 s      2       2       16    1 of 3                    rank 3 died\n"
      "done    success, code 0   5 s      2       2       16    1 of 3\n"
      "gone    moved to h (h:1)\n"
      "drained: gpu9, g\\x1b[2J\n");
}

/* Columns go, the least important first; the last one is cut. */
UNIT_TEST(test_narrow) {
  static const char json[] =
      "{\"jobs\":[" JOB("j", "running", ",\"members\":[" NODE("0", "a", "running", ",\"step\":7,\"progress_age_ms\":20") "],\"progress\":{\"step\":7,\"of\":0,\"age_ms\":20,\"judgement\":\"up to date\"}") "," JOB(
          "k", "stopping", ",\"ending\":{\"sentence\":\"a very long sentence about what has happened\"}") "]}";
  check(json, false, 80,
        "JOB  STATE     FOR  ROUND  NODES  RESTARTS  STEP  PROGRESS  WHY\n"
        "k    stopping  5 s      2      2    1 of 3                  a very long sentenc~\n"
        "j    running   5 s      2      2    1 of 3     7       0 s\n");
  check(json, false, 30,
        "JOB  STATE     NODES  PROGRESS\n"
        "k    stopping      2\n"
        "j    running       2       0 s\n");
  check(json, false, 10, "JOB  STATE\nk    stopping\nj    running\n"); /* the screen cuts the rest */
}

/* Names from elsewhere: wide, hostile, of two users. */
UNIT_TEST(test_names) {
  check("{\"jobs\":[{\"job\":\"\\u00e9t\\u00e9\",\"uid\":1,\"state\":\"running\\n\\u001b]0;x\\u0007\"},"
        "{\"job\":\"a-name-that-is-much-too-long-for-its-column\",\"uid\":2,\"state\":\"forming\"},{\"job\":7},8]}",
        false, 0,
        "JOB                           UID  STATE                  RESTARTS\n"
        "a-name-that-is-much-too-lon~    2  forming                  0 of 0\n"
        "été                             1  running\\n\\x1b]0;x\\x07    0 of 0\n"
        "                               -1                           0 of 0\n"
        "                               -1                           0 of 0\n");
}

UNIT_TEST(test_other_answers) {
  struct buf out = BUF_INIT;
  assert_false(top_put_page(&out, "what", 4, false, 80));
  assert_false(top_put_page(&out, "{}", 2, true, 80));
  buf_finish(&out);
  check("{\"jobs\":[],\"drained\":[]}", false, 80, "no jobs\n");
}
