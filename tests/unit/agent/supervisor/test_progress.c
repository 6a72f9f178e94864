/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: how far workers are, as they say through the sdk. */

#include "tests/rig/supervisor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static void progress(struct bench *b, uint32_t local_rank, uint64_t step, double loss, double rate) {
  bench_event(
      b, &(struct supervisor_event){.kind = SUP_PROGRESS,
                                    .round = (uint32_t)supervisor_round(b->s),
                                    .local_rank = local_rank,
                                    .progress = {.step = step, .of = 500, .loss = loss, .samples_per_second = rate}});
}

static void test_the_slowest_step_twice_a_second(void **state) {
  struct bench b;
  bench_open_answered(&b);
  bench_forget(&b);
  for (uint64_t i = 1; i <= 1000; i++) { /* ten seconds */
    progress(&b, 0, 2 * i, 0.5, 100);
    progress(&b, 1, i, 0.25, 50);
    bench_run(&b, 10);
  }
  assert_in_range(bench_count_sent(&b, MSG_PROGRESS), 19, 22);
  const struct progress *p = &bench_sent(&b, MSG_PROGRESS)->progress;
  assert_in_range(p->step, 940, 1000);
  assert_int_equal(p->of, 500);
  assert_int_equal(p->round, 1);
  assert_true(p->loss == 0.25);
  assert_true(p->samples_per_second == 150);
  assert_non_null(strstr(bench_effect(&b, SUP_STATUS)->status.text, " of 500, loss 0.25, 150 samples/s"));
  bench_forget(&b);
  bench_run(&b, 5000); /* nothing new: nothing is sent */
  assert_in_range(bench_count_sent(&b, MSG_PROGRESS), 0, 1);
  bench_close(&b);
}

static void test_progress_is_part_of_the_verdict(void **state) {
  struct bench b;
  bench_open_running(&b);
  progress(&b, 1, 120, (double)NAN, (double)INFINITY);
  bench_exited(&b, 1, SIGNALED(9), b.now_ms, "");
  const struct report *r = bench_report(&b, REPORT_FAILED);
  assert_int_equal(r->what.step, 120);
  assert_int_equal(r->what.of, 500);
  bench_run(&b, 250);
  assert_int_equal(bench_said(&b, "after step 120 of 500"), 1);
  bench_close(&b);
}

/* How far the round has come decides what its failure costs, so the last step is sent, whoever has failed. */
static void test_the_last_step_is_sent_when_the_round_ends(void **state) {
  for (int stopped = 0; stopped < 2; stopped++) {
    struct bench b;
    bench_open_running(&b);
    progress(&b, 0, 7, 0.5, 100);
    bench_run(&b, 0);
    progress(&b, 0, 8, 0.5, 100);
    assert_int_equal(bench_sent(&b, MSG_PROGRESS)->progress.step, 7);
    if (stopped)
      bench_stop(&b, 1, NULL);
    else
      bench_exited(&b, 1, EXITED(1), b.now_ms, "");
    assert_int_equal(bench_sent(&b, MSG_PROGRESS)->progress.step, 8);
    bench_forget(&b);
    bench_clear(&b);
    assert_int_equal(bench_count_sent(&b, MSG_PROGRESS), 0);
    bench_close(&b);
  }
}

static void test_numbers_no_worker_should_tell(void **state) {
  struct bench b;
  bench_open_running(&b);
  progress(&b, 0, UINT64_MAX, (double)NAN, -(double)INFINITY);
  progress(&b, 1, UINT64_MAX, (double)INFINITY, 1e308);
  progress(&b, 0, UINT64_MAX, (double)NAN, 1e308);
  bench_run(&b, 1000);
  assert_int_equal(bench_sent(&b, MSG_PROGRESS)->progress.step, INT64_MAX);
  assert_true(isnan(bench_sent(&b, MSG_PROGRESS)->progress.samples_per_second)); /* the sum is no number */
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_slowest_step_twice_a_second),
      cmocka_unit_test(test_progress_is_part_of_the_verdict),
      cmocka_unit_test(test_the_last_step_is_sent_when_the_round_ends),
      cmocka_unit_test(test_numbers_no_worker_should_tell),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
