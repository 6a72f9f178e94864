/* SPDX-License-Identifier: Apache-2.0 */
/* job: a change of state that the table does not allow is refused, and the job and the daemon go on as they were. */

#include <string.h>
#include "daemon/job/job.h"
#include "tests/rig/unit.h"

UNIT_TEST(test_a_forbidden_change_is_refused) {
  struct job_effects fx = {0};
  struct jobs jobs;
  struct settings settings = {.min_nodes = 2, .max_nodes = 2, .lease_ms = 5000};
  jobs_init(&jobs, 1);
  jobs.fx = &fx;
  struct job *j = jobs_add(&jobs, 1000, "job", "00-00", &settings);
  job_recover(j, 4, 1000);
  assert_int_equal(j->state, JOB_RECOVERING);
  assert_null(jobs.fault);
  j->state = JOB_ENDED;
  job_effects_clear(&fx);
  job_recover(j, 5, 2000);
  assert_int_equal(j->state, JOB_ENDED);
  assert_int_equal(j->round, 4);
  assert_string_equal(jobs.fault, "job job: ended -> recovering");
  assert_int_equal(fx.n, 1);
  assert_int_equal(fx.v[0].level, LOG_ERROR);
  assert_string_equal(fx.v[0].text, "job job: a change from ended to recovering is not allowed; this is a bug");
  jobs_finish(&jobs);
  job_effects_finish(&fx);
}
