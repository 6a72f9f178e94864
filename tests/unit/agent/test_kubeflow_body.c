/* SPDX-License-Identifier: Apache-2.0 */
/* agent/kubeflow_body.c: the request that Trainer's API describes as UpdateTrainJobStatusRequest, within its bounds. */

#include <jansson.h>
#include <math.h>
#include <string.h>
#include "agent/kubeflow.h"
#include "tests/rig/unit.h"

UNIT_TEST(writes_what_is_known) {
  static const struct {
    struct kubeflow_status s;
    const char *text;
  } cases[] = {
      {{.step = 45, .of = 100, .remaining_s = 120, .loss = 0.5},
       "{\"trainerStatus\": {\"lastUpdatedTime\": \"2026-01-23T10:30:45Z\", \"progressPercentage\": 45, "
       "\"estimatedRemainingSeconds\": 120, \"metrics\": [{\"name\": \"step\", \"value\": \"45\"}, {\"name\": "
       "\"total_steps\", \"value\": \"100\"}, {\"name\": \"loss\", \"value\": \"0.5\"}]}}"},
      {{.step = 7, .remaining_s = -1, .loss = (double)NAN},
       "{\"trainerStatus\": {\"lastUpdatedTime\": \"2026-01-23T10:30:45Z\", \"metrics\": [{\"name\": \"step\", "
       "\"value\": \"7\"}]}}"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    struct buf out = BUF_INIT;
    kubeflow_body(&cases[i].s, "2026-01-23T10:30:45Z", &out);
    assert_string_equal(buf_text(&out), cases[i].text);
    buf_finish(&out);
  }
}

/* Whatever a worker reports: JSON, a percentage from 0 to 100 that reaches 100 at the end only, 32 bits, short values. */
UNIT_TEST(keeps_the_bounds_of_the_api) {
  static const int64_t steps[] = {0, 1, 99, 100, 101, INT64_MAX - 1, INT64_MAX};
  static const double losses[] = {0, -1e300, 1e-300, 3.14159265358979, (double)INFINITY, (double)NAN};
  enum { STEPS = sizeof(steps) / sizeof(*steps), LOSSES = sizeof(losses) / sizeof(*losses) };
  for (int i = 0; i < STEPS * STEPS * LOSSES; i++) {
    struct kubeflow_status s = {
        .step = steps[i % STEPS],
        .of = steps[i / STEPS % STEPS],
        .remaining_s = steps[i % STEPS] - 1,
        .loss = losses[i / STEPS / STEPS],
    };
    struct buf out = BUF_INIT;
    kubeflow_body(&s, "2026-01-23T10:30:45Z", &out);
    json_t *root = json_loads(buf_text(&out), JSON_REJECT_DUPLICATES, NULL), *metric;
    assert_non_null(root);
    json_t *status = json_object_get(root, "trainerStatus"), *percent = json_object_get(status, "progressPercentage"),
           *left = json_object_get(status, "estimatedRemainingSeconds");
    assert_int_equal(json_is_integer(percent), s.of > 0);
    assert_int_equal(json_is_integer(left), s.remaining_s >= 0);
    if (percent) assert_in_range(json_integer_value(percent), 0, s.step < s.of ? 99 : 100);
    if (percent && s.step >= s.of) assert_int_equal(json_integer_value(percent), 100);
    if (left) assert_in_range(json_integer_value(left), 0, INT32_MAX);
    size_t k;
    json_array_foreach(json_object_get(status, "metrics"), k, metric)
        assert_in_range(strlen(json_string_value(json_object_get(metric, "value"))), 1, 64);
    json_decref(root);
    buf_finish(&out);
  }
}
