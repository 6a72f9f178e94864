/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of the state file: what they tell the next daemon. A line that is damaged, foreign or out of date is
 * logged and ignored. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "tests/rig/unit.h"

UNIT_TEST(test_state_lines_round_trip) {
  struct rig r = {0}, again = {0};
  struct node n[2], m[2];
  struct buf lines = BUF_INIT, back = BUF_INIT;
  rig_open_running(&r, n, 2);
  r.job = "a job with \"quotes\", \\ and \xc3\xa9";
  rig_running(&r, m, 2);
  node_exited(&r, &m[0], 7, 0);
  nodes_stopped(&r, m, 2);
  assert_int_equal(rig_control(&r, "stop", r.job, false), 0);
  nodes_stopped(&r, m, 2);
  core_state_lines(r.core, &lines);
  rig_open(&again, 2);
  again.now_ms = r.now_ms;
  size_t count = 0;
  for (char *line = lines.data, *end; (end = strchr(line, '\n')); line = end + 1, count++) {
    *end = 0;
    rig_load(&again, line);
    *end = '\n';
  }
  assert_int_equal(count, 3); /* the failed worker may be its host's */
  assert_int_equal(again.log.len > 0 && strstr(buf_text(&again.log), "ignored a line") != NULL, 0);
  core_state_lines(again.core, &back);
  assert_string_equal(buf_text(&lines), buf_text(&back));
  assert_string_equal(rig_state(&again, "job"), "recovering");
  assert_string_equal(rig_state(&again, r.job), "ended");
  node_back(&again, &m[0], PHASE_STOPPED); /* away when it ended */
  const struct msg *end = rig_last(&again, m[0].conn, MSG_END);
  assert_non_null(end);
  assert_int_equal(end->end.code, EXIT_CODE_STOPPED);
  assert_int_equal(end->end.verdict.cause, CAUSE_OPERATOR);
  buf_finish(&lines);
  buf_finish(&back);
  rig_close(&again);
  rig_close(&r);
}

RIG_TEST(test_an_end_is_not_remembered_for_ever) {
  rig_open_running(r, n, 2);
  nodes_finished(r, n, 2);
  r->now_ms += 400000; /* the wall clock goes on with it */
  rig_restart(r, true);
  assert_string_equal(rig_state(r, "job"), "ended");
  struct buf lines = BUF_INIT;
  core_state_lines(r->core, &lines); /* rewritten, it is no younger */
  r->now_ms += 400000;
  rig_restart(r, false);
  *strchr(lines.data, '\n') = 0;
  rig_load(r, lines.data);
  assert_string_equal(rig_state(r, "job"), "");
  buf_finish(&lines);
}

RIG_TEST(test_damaged_lines_are_left_out) {
  rig_open_running(r, n, 2);
  nodes_finished(r, n, 2);
  assert_int_equal(r->n_saved, 2);
  for (int k = 0; k < 2; k++) {
    const char *line = r->saved[k];
    char part[2048];
    for (size_t len = 0; len < strlen(line); len++) {
      snprintf(part, sizeof part, "%.*s", (int)len, line);
      rig_restart(r, false);
      rig_load(r, part);
      assert_string_equal(rig_state(r, "job"), "");
      assert_non_null(strstr(buf_text(&r->log), "state: "));
    }
  }
}

/* JSON, and yet no line of ours. */
RIG_TEST(test_lines_of_others_are_left_out) {
  static const struct {
    const char *key, *value;
  } changes[] = {{"event", "\"seals\""},
                 {"event", "1"},
                 {"job", "\"\""},
                 {"job", "null"},
                 {"incarnation", "\"XYZ\""},
                 {"incarnation", "\"\""},
                 {"round", "0"},
                 {"round", "-1"},
                 {"round", "1000000000"},
                 {"round", "1.5"},
                 {"nodes", "-1"},
                 {"nodes", "65537"},
                 {"restarts_used", "1000001"},
                 {"failed_step", "-2"},
                 {"refilled_wall_ms", "null"},
                 {"wall_ms", "-1"},
                 {"settings", "{}"},
                 {"settings", "[]"}};
  rig_open_running(r, n, 2);
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
    json_error_t e;
    json_t *o = json_loads(r->saved[0], 0, &e), *v = json_loads(changes[i].value, JSON_DECODE_ANY, &e);
    assert_non_null(o);
    assert_non_null(v);
    json_object_set_new(o, changes[i].key, v);
    struct buf text = BUF_INIT;
    json_print(&text, o);
    json_decref(o);
    rig_restart(r, false);
    rig_load(r, buf_text(&text));
    assert_string_equal(rig_state(r, "job"), "");
    assert_non_null(strstr(buf_text(&r->log), "ignored a line"));
    buf_finish(&text);
  }
  rig_load(r, r->saved[0]); /* the line itself is fine */
  assert_string_equal(rig_state(r, "job"), "recovering");
}

RIG_TEST(test_a_seal_survives_only_as_the_last_of_its_life) {
  rig_open_running(r, n, 2);
  rig_next_round(r, n, 2);
  rig_restart(r, true); /* two lines */
  struct buf lines = BUF_INIT;
  core_state_lines(r->core, &lines);
  assert_non_null(strstr(lines.data, "\"round\":2"));
  assert_null(strstr(lines.data, "\"round\":1,"));
  buf_finish(&lines);
  nodes_back(r, n, 2, PHASE_STARTING);
  assert_string_equal(rig_state(r, "job"), "starting");
}
