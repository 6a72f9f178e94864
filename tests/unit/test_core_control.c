/* core: what rdzvctl reads and asks. */

#include "tests/unit/core_help.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "tests/unit/unit.h"

static json_t *ask_json(struct rig *r, const char *verb, const char *job) {
  struct buf out = BUF_INIT;
  struct err e = ERR_INIT;
  assert_int_equal(rig_control(r, verb, job, true, &out), 0);
  json_t *v = json_parse_object(out.data, out.len, &e);
  if (!v) fprintf(stderr, "%s\n%s\n", e.text, buf_text(&out));
  assert_non_null(v);
  buf_finish(&out);
  return v;
}

static const char *text_of(const json_t *o, const char *key) {
  const char *s = json_string_value(json_object_get(o, key));
  assert_non_null(s);
  return s;
}

static void test_no_jobs(void **state) {
  struct rig r;
  struct buf out = BUF_INIT;
  rig_open(&r, 1);
  assert_int_equal(rig_control(&r, "jobs", "", false, &out), 0);
  assert_string_equal(buf_text(&out), "no jobs\n");
  json_t *v = ask_json(&r, "jobs", "");
  assert_int_equal(json_array_size(json_object_get(v, "jobs")), 0);
  json_decref(v);
  buf_finish(&out);
  rig_close(&r);
}

static void test_unknown_job_and_verb(void **state) {
  struct rig r;
  struct buf out = BUF_INIT;
  rig_open(&r, 1);
  static const char *const verbs[] = {"status", "jobs", "stop"};
  for (int i = 0; i < 3; i++) {
    buf_clear(&out);
    assert_int_not_equal(rig_control(&r, verbs[i], "nope", i == 0, &out), 0);
    assert_non_null(strstr(buf_text(&out), "nope"));
    assert_int_equal(out.data[out.len - 1], '\n');
  }
  buf_clear(&out);
  assert_int_equal(rig_control(&r, "explode", "", false, &out), EXIT_CODE_USAGE);
  assert_non_null(strstr(buf_text(&out), "explode"));
  assert_non_null(strstr(buf_text(&out), "status, jobs, stop"));
  buf_finish(&out);
  rig_close(&r);
}

static void test_status_json(void **state) {
  struct rig r;
  struct node n[2];
  struct msg m;
  rig_open(&r, 1);
  rig_running(&r, n, 2);
  msg_init(&m, MSG_PROGRESS);
  m.progress.incarnation = n[1].incarnation;
  m.progress.round = 1;
  m.progress.step = 12;
  m.progress.of = 500;
  m.progress.loss = 0.25;
  node_say(&r, &n[1], &m);
  json_t *v = ask_json(&r, "status", "job"), *members;
  const json_t *job = json_array_get(json_object_get(v, "jobs"), 0);
  assert_string_equal(text_of(job, "job"), "job");
  assert_string_equal(text_of(job, "state"), "running");
  assert_string_equal(text_of(job, "incarnation"), n[0].incarnation);
  assert_int_equal(json_integer_value(json_object_get(job, "world_size")), 2);
  members = json_object_get(job, "members");
  assert_int_equal(json_array_size(members), 2);
  const json_t *second = json_array_get(members, 1);
  assert_int_equal(json_integer_value(json_object_get(second, "first_rank")), 1);
  assert_string_equal(text_of(second, "host"), "n1");
  assert_string_equal(text_of(second, "state"), "running");
  assert_int_equal(json_integer_value(json_object_get(second, "step")), 12);
  assert_null(json_object_get(json_array_get(members, 0), "step"));
  json_decref(v);
  rig_close(&r);
}

/* In every state and place there is a word for it, and numbers that make sense. */
static void test_status_in_every_state(void **state) {
  static const char *const want[] = {"forming", "starting",   "running", "running", "stopping",
                                     "forming", "recovering", "ending",  "ended"};
  for (int i = 0; i < 9; i++) {
    struct rig r;
    struct node n[2];
    struct buf out = BUF_INIT;
    rig_open(&r, 1);
    for (int k = 0; k < 2; k++) node_init(&r, &n[k], k);
    for (int k = 0; k < (i ? 2 : 1); k++) node_join(&r, &n[k]);
    for (int k = 0; k < 2 && i >= 2; k++) node_started(&r, &n[k]);
    if (i == 3) node_drop(&r, &n[0]);
    if (i == 4 || i == 5) node_killed(&r, &n[0], 9, 0);
    if (i == 5) {
      node_bye(&r, &n[1]);
      node_stopped(&r, &n[0]);
    }
    if (i == 6) rig_restart(&r, true);
    for (int k = 0; k < 2 && i >= 7; k++) node_finished(&r, &n[k]);
    for (int k = 0; k < 2 && i == 8; k++) node_end_ack(&r, &n[k]);
    json_t *v = ask_json(&r, "status", "job");
    assert_string_equal(text_of(json_array_get(json_object_get(v, "jobs"), 0), "state"), want[i]);
    json_decref(v);
    assert_int_equal(rig_control(&r, "status", "job", false, &out), 0);
    assert_non_null(strstr(buf_text(&out), want[i]));
    assert_null(strchr(buf_text(&out), '?'));
    if (i == 0) assert_non_null(strstr(buf_text(&out), "1 of 2 nodes"));
    if (i == 0) assert_non_null(strstr(buf_text(&out), "  1 worker ")); /* it has no rank yet */
    if (i == 2) assert_non_null(strstr(buf_text(&out), "2 nodes, 2 workers"));
    if (i == 3) assert_non_null(strstr(buf_text(&out), "away"));
    if (i == 5) assert_non_null(strstr(buf_text(&out), "round 1 ended: "));
    if (i == 8) assert_non_null(strstr(buf_text(&out), "ended 0 s ago"));
    if (i >= 7) assert_non_null(strstr(buf_text(&out), "success with exit code 0"));
    buf_finish(&out);
    rig_close(&r);
  }
}

static void test_ranks_first_then_spares(void **state) {
  struct rig r;
  struct node n[2], spare;
  struct buf out = BUF_INIT;
  rig_open(&r, 1);
  node_init(&r, &n[0], 9); /* joins first, but is rank 1 */
  node_init(&r, &n[1], 3);
  node_init(&r, &spare, 0);
  node_join(&r, &n[0]);
  node_join(&r, &n[1]);
  node_join(&r, &spare);
  rig_control(&r, "status", "", false, &out);
  const char *a = strstr(buf_text(&out), "n3 "), *b = strstr(buf_text(&out), "n9 "),
             *c = strstr(buf_text(&out), "n0 ");
  assert_true(a && b && c && a < b && b < c);
  assert_non_null(strstr(c, "spare"));
  buf_finish(&out);
  rig_close(&r);
}

/* What peers call themselves reaches a person's terminal as text, never as control. */
static void test_hostile_names_are_escaped(void **state) {
  static const char nasty[] = "h\x1b[2J\n\r\x07\xc2\x9b"
                              "31m\"\\";
  struct rig r;
  struct node n[2];
  rig_open(&r, 1);
  r.job = "job\x1b]0;x\x07\n";
  for (int i = 0; i < 2; i++) {
    node_init(&r, &n[i], i);
    snprintf(n[i].host, sizeof n[i].host, "%s%d", nasty, i);
    node_join(&r, &n[i]);
    static const char *const verbs[] = {"status", "jobs"};
    for (int k = 0; k < 2; k++) {
      struct buf out = BUF_INIT;
      assert_int_equal(rig_control(&r, verbs[k], r.job, false, &out), 0);
      for (size_t at = 0; at < out.len; at++)
        assert_true(out.data[at] == '\n' || (unsigned char)out.data[at] >= 0x20);
      assert_null(strstr(out.data, "\xc2\x9b"));
      assert_non_null(strstr(out.data, "\\x1b"));
      buf_finish(&out);
    }
    const struct msg *w = rig_last(&r, n[0].conn, MSG_WAITING);
    for (const char *p = w->waiting.text; *p; p++) assert_true((unsigned char)*p >= 0x20);
  }
  json_t *v = ask_json(&r, "status", r.job); /* for programs they are as they are */
  const json_t *job = json_array_get(json_object_get(v, "jobs"), 0);
  assert_string_equal(text_of(job, "job"), r.job);
  assert_string_equal(text_of(json_array_get(json_object_get(job, "members"), 0), "host"), n[0].host);
  json_decref(v);
  struct buf out = BUF_INIT;
  rig_control(&r, "stop", "no\x1bsuch", false, &out);
  assert_null(strchr(buf_text(&out), '\x1b'));
  buf_clear(&out);
  rig_control(&r, "ver\x1b", "", false, &out);
  assert_null(strchr(buf_text(&out), '\x1b'));
  buf_clear(&out);
  rig_control(&r, "stop", r.job, false, &out);
  assert_null(strchr(buf_text(&out), '\x1b'));
  buf_finish(&out);
  rig_close(&r);
}

static void test_stop_says_what_it_did(void **state) {
  struct rig r;
  struct node n[2];
  struct buf out = BUF_INIT;
  rig_open(&r, 1);
  rig_running(&r, n, 2);
  assert_int_equal(rig_control(&r, "stop", "job", false, &out), 0);
  assert_non_null(strstr(buf_text(&out), "job job is being stopped"));
  buf_clear(&out);
  assert_int_not_equal(rig_control(&r, "stop", "", false, &out), 0); /* never all of them */
  buf_finish(&out);
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_jobs),
      cmocka_unit_test(test_unknown_job_and_verb),
      cmocka_unit_test(test_status_json),
      cmocka_unit_test(test_status_in_every_state),
      cmocka_unit_test(test_ranks_first_then_spares),
      cmocka_unit_test(test_hostile_names_are_escaped),
      cmocka_unit_test(test_stop_says_what_it_did),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
