/* SPDX-License-Identifier: Apache-2.0 */
/* --verdict-file: its content. */

#include <jansson.h>
#include <string.h>
#include "agent/failures/verdict_json.h"
#include "common/json.h"
#include "tests/rig/unit.h"

static json_t *made(const struct ending *end) {
  struct buf text = BUF_INIT;
  verdict_json(end, "my-job", "node1", "2025-11-21T22:17:03Z", &text);
  assert_int_equal(text.data[text.len - 1], '\n');
  json_t *v = json_parse_object(text.data, text.len - 1, NULL);
  assert_non_null(v);
  buf_finish(&text);
  return v;
}

static void assert_says(const json_t *v, const char *key, const char *text) {
  const json_t *member = json_object_get(v, key);
  if (text)
    assert_string_equal(json_string_value(member), text);
  else
    assert_true(json_is_null(member));
}

static void assert_number(const json_t *v, const char *key, json_int_t n) {
  assert_true(json_is_integer(json_object_get(v, key)));
  assert_int_equal(json_integer_value(json_object_get(v, key)), n);
}

static struct ending failed(void) {
  struct ending e = {
      .heard = true, .outcome = OUTCOME_FAILED, .code = 139, .round = 3, .restarts_used = 2, .max_restarts = 2};
  verdict_init(&e.verdict);
  goodput_init(&e.goodput);
  e.goodput.waiting_ms = 2500;
  e.goodput.productive_ms = 7500;
  e.goodput.waited_for = "node7";
  e.verdict.cause = CAUSE_WORKER_SIGNAL;
  e.verdict.rank = 5;
  e.verdict.host = "node2";
  e.verdict.signal = 11;
  e.verdict.core = true;
  e.verdict.text = "last \"words\"\n\xc3\xa4";
  return e;
}

UNIT_TEST(test_failure) {
  struct ending e = failed();
  json_t *v = made(&e);
  assert_says(v, "job", "my-job");
  assert_says(v, "host", "node1");
  assert_says(v, "time", "2025-11-21T22:17:03Z");
  assert_says(v, "outcome", "failed");
  assert_number(v, "exit_code", 139);
  assert_number(v, "round", 3);
  assert_number(v, "restarts", 2);
  assert_number(v, "max_restarts", 2);
  assert_non_null(strstr(json_string_value(json_object_get(v, "sentence")), "rank 5"));
  const json_t *w = json_object_get(v, "verdict");
  assert_says(w, "cause", "worker-signal");
  assert_says(w, "host", "node2");
  assert_says(w, "text", "last \"words\"\n\xc3\xa4");
  assert_number(w, "signal", 11);
  assert_true(json_is_true(json_object_get(w, "core")));
  const json_t *g = json_object_get(v, "goodput");
  assert_says(g, "waited_for", "node7");
  assert_true(json_real_value(json_object_get(g, "useful")) == 0.75);
  assert_true(json_real_value(json_object_get(g, "waiting")) == 2.5);
  assert_true(json_real_value(json_object_get(g, "productive")) == 7.5);
  json_decref(v);
}

/* All fields, with nothing to say too. */
UNIT_TEST(test_success) {
  struct ending e = {.heard = true, .outcome = OUTCOME_SUCCESS, .round = 1, .max_restarts = 3};
  verdict_init(&e.verdict);
  goodput_init(&e.goodput);
  json_t *v = made(&e);
  assert_true(json_is_null(json_object_get(v, "goodput"))); /* none has come */
  assert_says(v, "outcome", "success");
  assert_says(v, "sentence", "the job is done");
  assert_number(v, "exit_code", 0);
  const json_t *w = json_object_get(v, "verdict");
  static const char *const keys[] = {"cause",  "round",   "node_rank", "rank",  "local_rank", "host",
                                     "pid",    "code",    "signal",    "core",  "step",       "of",
                                     "echoes", "lasting", "device",    "error", "shown",      "text"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (!json_object_get(w, keys[i])) fail_msg("the verdict has no \"%s\"", keys[i]);
  assert_says(w, "cause", "none");
  assert_number(w, "rank", -1);
  json_decref(v);
}

/* It left before the end: what it knows of the job is no outcome, and its own code says why. */
UNIT_TEST(test_left_before_the_end) {
  struct ending e = failed();
  e.heard = false;
  e.code = 75;
  json_t *v = made(&e);
  assert_says(v, "outcome", NULL);
  assert_number(v, "exit_code", 75);
  assert_non_null(strstr(json_string_value(json_object_get(v, "sentence")), "asked this node to leave"));
  json_decref(v);
}
