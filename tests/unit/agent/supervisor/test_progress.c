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

/* Laggards. -------------------------------------------------------------------------------------------------------- */

static const struct progress *last_progress(struct bench *b) {
  return &bench_sent(b, MSG_PROGRESS)->progress;
}

/* librdzv samples, so workers of short steps seem to be apart by many of them. */
static void test_workers_that_run_in_step_do_not_lag(void **state) {
  struct bench b;
  bench_open_answered(&b);
  for (uint64_t i = 1; i <= 500; i++) {
    progress(&b, 0, 20 * i, 0.5, 100);
    bench_run(&b, 10);
    progress(&b, 1, 20 * i + 10, 0.5, 100);
    bench_run(&b, 10);
    if (i > 1) assert_int_equal(last_progress(&b)->n_laggards, 0);
  }
  assert_in_range(last_progress(&b)->age_ms, 0, 20);
  bench_close(&b);
}

/* The others wait for it, so nobody reports any more, and PROGRESS is sent all the same. */
static void test_a_worker_a_step_behind_lags_after_two_seconds(void **state) {
  struct bench b;
  bench_open_answered(&b);
  progress(&b, 0, 7, 0.5, 100);
  progress(&b, 1, 7, 0.5, 100);
  bench_run(&b, 1000);
  progress(&b, 0, 8, 0.5, 100);
  bench_run(&b, 1900);
  assert_int_equal(last_progress(&b)->n_laggards, 0);
  bench_forget(&b);
  bench_run(&b, 200);
  assert_int_equal(bench_count_sent(&b, MSG_PROGRESS), 1);
  assert_int_equal(last_progress(&b)->n_laggards, 1);
  assert_int_equal(last_progress(&b)->laggards[0].local_rank, 1);
  assert_int_equal(last_progress(&b)->laggards[0].step, 7);
  assert_in_range(last_progress(&b)->laggards[0].age_ms, 3000, 3100);
  assert_int_equal(last_progress(&b)->step, 7);
  assert_in_range(last_progress(&b)->age_ms, 3000, 3100);
  bench_forget(&b);
  bench_run(&b, 5000); /* once */
  assert_int_equal(bench_count_sent(&b, MSG_PROGRESS), 0);
  progress(&b, 1, 8, 0.5, 100);
  bench_run(&b, 1000);
  assert_int_equal(last_progress(&b)->n_laggards, 0);
  bench_close(&b);
}

static void test_a_worker_two_steps_behind_lags_sooner(void **state) {
  struct bench b;
  bench_open_answered(&b);
  progress(&b, 0, 7, 0.5, 100);
  progress(&b, 1, 7, 0.5, 100);
  bench_run(&b, 1000);
  progress(&b, 1, 8, 0.5, 100);
  progress(&b, 1, 9, 0.5, 100);
  bench_run(&b, 450);
  assert_int_equal(last_progress(&b)->n_laggards, 0);
  bench_run(&b, 100);
  assert_int_equal(last_progress(&b)->n_laggards, 1);
  assert_int_equal(last_progress(&b)->laggards[0].local_rank, 0);
  bench_close(&b);
}

static void test_who_does_not_lag(void **state) {
  struct bench b;
  bench_open_answered(&b); /* rank 1 reports nothing: many programs report on one rank */
  progress(&b, 0, 7, 0.5, 100);
  bench_run(&b, 5000);
  assert_int_equal(last_progress(&b)->n_laggards, 0);
  progress(&b, 1, 500, 0.5, 100); /* it is done, and waits for nobody */
  bench_run(&b, 5000);
  assert_int_equal(last_progress(&b)->n_laggards, 0);
  progress(&b, 1, 3, 0.5, 100); /* it counts anew, and leads no longer */
  bench_run(&b, 5000);
  assert_int_equal(last_progress(&b)->n_laggards, 1);
  assert_int_equal(last_progress(&b)->laggards[0].local_rank, 1);
  progress(&b, 0, 3, 0.5, 100);
  bench_run(&b, 5000);
  assert_int_equal(last_progress(&b)->n_laggards, 0);
  bench_close(&b);
}

/* Checkpoints. ----------------------------------------------------------------------------------------------------- */

static void test_what_workers_resumed_and_saved(void **state) {
  struct bench b;
  bench_open_answered(&b);
  progress(&b, 0, 121, 0.5, 100);
  bench_run(&b, 1000);
  assert_int_equal(last_progress(&b)->resumed, -1);
  assert_int_equal(last_progress(&b)->saved, -1);
  bench_worker(&b, 1, (struct supervisor_event){.kind = SUP_RESUMED, .resumed = {.step = 120}});
  bench_worker(&b, 0, (struct supervisor_event){.kind = SUP_RESUMED, .resumed = {.step = 0}});
  bench_worker(&b, 0, (struct supervisor_event){.kind = SUP_SAVED, .saved = {.step = 150}});
  bench_run(&b, 1000);
  assert_int_equal(last_progress(&b)->resumed, 0);
  assert_int_equal(last_progress(&b)->saved, 150);
  bench_worker(&b, 1, (struct supervisor_event){.kind = SUP_SAVED, .saved = {.step = 140}});
  bench_run(&b, 1000);
  assert_int_equal(last_progress(&b)->saved, 140); /* all parts of it are there */
  assert_int_equal(last_progress(&b)->step, 121);
  bench_close(&b);
}

static void test_checkpoints_without_a_step(void **state) {
  struct bench b;
  bench_open_answered(&b);
  bench_worker(&b, 0, (struct supervisor_event){.kind = SUP_SAVED, .saved = {.step = 1}});
  bench_run(&b, 1000);
  assert_int_equal(last_progress(&b)->step, -1);
  assert_int_equal(last_progress(&b)->saved, 1);
  bench_close(&b);
}

static void saving(struct bench *b, uint32_t local_rank, bool on) {
  bench_worker(b, local_rank, (struct supervisor_event){.kind = SUP_SAVING, .saving = {.on = on}});
}

static void test_the_time_of_saving_is_the_longest_workers(void **state) {
  struct bench b;
  bench_open_answered(&b);
  progress(&b, 0, 1, 0.5, 100);
  saving(&b, 0, true);
  saving(&b, 1, true);
  bench_run(&b, 1000);
  saving(&b, 1, false);
  saving(&b, 1, false); /* twice is once */
  bench_run(&b, 10000); /* while one still waits, the daemon is kept up to date */
  assert_in_range(last_progress(&b)->saving_ms, 8900, 11000);
  saving(&b, 0, false);
  bench_run(&b, 1000);
  assert_in_range(last_progress(&b)->saving_ms, 11000, 11100);
  saving(&b, 1, true);
  bench_run(&b, 3000);
  saving(&b, 1, false);
  bench_forget(&b);
  bench_run(&b, 600);
  assert_in_range(last_progress(&b)->saving_ms, 11000, 11100); /* that of rank 1 is 4 s */
  bench_forget(&b);
  bench_run(&b, 5000);
  assert_int_equal(bench_count_sent(&b, MSG_PROGRESS), 0);
  bench_close(&b);
}

/* Workers write checkpoints when they are asked to stop. */
static void test_a_checkpoint_of_the_stop_is_sent(void **state) {
  struct bench b;
  bench_open_answered(&b);
  progress(&b, 0, 9, 0.5, 100);
  bench_run(&b, 1000);
  bench_stop(&b, 1, NULL);
  bench_worker(&b, 0, (struct supervisor_event){.kind = SUP_SAVED, .saved = {.step = 9}});
  bench_forget(&b);
  bench_clear(&b);
  assert_int_equal(last_progress(&b)->saved, 9);
  bench_close(&b);
}

/* A daemon that takes over knows nothing of it. */
static void test_a_new_daemon_hears_it_again(void **state) {
  struct bench b;
  bench_open_answered(&b);
  progress(&b, 0, 9, 0.5, 100);
  bench_run(&b, 10000);
  bench_forget(&b);
  bench_reconnected(&b);
  bench_welcome(&b, false);
  bench_run(&b, 10);
  assert_int_equal(bench_count_sent(&b, MSG_PROGRESS), 1);
  assert_int_equal(last_progress(&b)->step, 9);
  assert_in_range(last_progress(&b)->age_ms, 9000, 12000);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_slowest_step_twice_a_second),
      cmocka_unit_test(test_progress_is_part_of_the_verdict),
      cmocka_unit_test(test_the_last_step_is_sent_when_the_round_ends),
      cmocka_unit_test(test_numbers_no_worker_should_tell),
      cmocka_unit_test(test_workers_that_run_in_step_do_not_lag),
      cmocka_unit_test(test_a_worker_a_step_behind_lags_after_two_seconds),
      cmocka_unit_test(test_a_worker_two_steps_behind_lags_sooner),
      cmocka_unit_test(test_who_does_not_lag),
      cmocka_unit_test(test_what_workers_resumed_and_saved),
      cmocka_unit_test(test_checkpoints_without_a_step),
      cmocka_unit_test(test_the_time_of_saving_is_the_longest_workers),
      cmocka_unit_test(test_a_checkpoint_of_the_stop_is_sent),
      cmocka_unit_test(test_a_new_daemon_hears_it_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
