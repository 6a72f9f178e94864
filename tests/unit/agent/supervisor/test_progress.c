/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: how far workers are, as they say through the sdk. */

#include "tests/rig/supervisor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static void progress(uint32_t local_rank, uint64_t step, double loss, double rate) {
  bench_event(
      &(struct supervisor_event){.kind = SUP_PROGRESS,
                                 .round = (uint32_t)supervisor_round(bench.s),
                                 .local_rank = local_rank,
                                 .progress = {.step = step, .of = 500, .loss = loss, .samples_per_second = rate}});
}

ANSWERED_TEST(test_the_slowest_step_twice_a_second) {
  bench_forget();
  for (uint64_t i = 1; i <= 1000; i++) { /* ten seconds */
    progress(0, 2 * i, 0.5, 100);
    progress(1, i, 0.25, 50);
    bench_run(10);
  }
  assert_in_range(bench_count_sent(MSG_PROGRESS), 19, 22);
  const struct progress *p = &bench_sent(MSG_PROGRESS)->progress;
  assert_in_range(p->step, 940, 1000);
  assert_int_equal(p->of, 500);
  assert_int_equal(p->round, 1);
  assert_true(p->loss == 0.25);
  assert_true(p->samples_per_second == 150);
  assert_non_null(strstr(bench_effect(SUP_STATUS)->text, " of 500, loss 0.25, 150 samples/s"));
  bench_forget();
  bench_run(5000); /* nothing new: nothing is sent */
  assert_in_range(bench_count_sent(MSG_PROGRESS), 0, 1);
}

RUNNING_TEST(test_progress_is_part_of_the_verdict) {
  progress(1, 120, (double)NAN, (double)INFINITY);
  bench_exited(1, SIGNALED(9), bench.now_ms, "");
  const struct report *r = bench_report(REPORT_FAILED);
  assert_int_equal(r->what.step, 120);
  assert_int_equal(r->what.of, 500);
  bench_run(250);
  assert_said("after step 120 of 500");
}

/* How far the round has come decides what its failure costs, so the last step is sent, whoever has failed. */
BENCH_TEST(test_the_last_step_is_sent_when_the_round_ends) {
  for (int stopped = 0; stopped < 2; stopped++) {
    bench_open_running();
    progress(0, 7, 0.5, 100);
    bench_run(0);
    progress(0, 8, 0.5, 100);
    assert_int_equal(bench_sent(MSG_PROGRESS)->progress.step, 7);
    if (stopped)
      bench_stop(1, NULL);
    else
      bench_exited(1, EXITED(1), bench.now_ms, "");
    assert_int_equal(bench_sent(MSG_PROGRESS)->progress.step, 8);
    bench_forget();
    bench_clear();
    assert_int_equal(bench_count_sent(MSG_PROGRESS), 0);
  }
}

RUNNING_TEST(test_numbers_no_worker_should_tell) {
  progress(0, UINT64_MAX, (double)NAN, -(double)INFINITY);
  progress(1, UINT64_MAX, (double)INFINITY, 1e308);
  progress(0, UINT64_MAX, (double)NAN, 1e308);
  bench_run(1000);
  assert_int_equal(bench_sent(MSG_PROGRESS)->progress.step, INT64_MAX);
  assert_true(isnan(bench_sent(MSG_PROGRESS)->progress.samples_per_second)); /* the sum is no number */
}

/* For the scheduler: on node rank 0, if it wants that, with what is left at the speed of this round. */
BENCH_TEST(test_how_far_the_job_is) {
  for (int node = 0; node < 2; node++)
    for (int wanted = 0; wanted < 2; wanted++) {
      bench_open();
      bench.answering = true;
      bench.node_rank = node;
      bench.config.wants_progress = wanted;
      bench_running();
      bench_forget();
      for (uint64_t i = 0; i <= 10; i++) { /* ten steps a second */
        progress(0, 100 + i, 0.5, 100);
        progress(1, 100 + i, 0.25, 100);
        bench_run(100);
      }
      if (node || !wanted) assert_int_equal(bench_count(SUP_ADVANCED), 0);
      if (node || !wanted) continue;
      const struct supervisor_effect *fx = bench_effect(SUP_ADVANCED);
      assert_in_range(fx->advanced.step, 105, 110);
      assert_int_equal(fx->advanced.of, 500);
      assert_in_range(fx->advanced.remaining_s, 35, 45);
      progress(0, 500, 0.5, 100);
      progress(1, 500, 0.5, 100);
      bench_run(600);
      assert_int_equal(bench_effect(SUP_ADVANCED)->advanced.remaining_s, 0);
    }
}

/* Laggards. -------------------------------------------------------------------------------------------------------- */

static const struct progress *last_progress(void) {
  return &bench_sent(MSG_PROGRESS)->progress;
}

/* librdzv samples, so workers of short steps seem to be apart by many of them. */
ANSWERED_TEST(test_workers_that_run_in_step_do_not_lag) {
  for (uint64_t i = 1; i <= 500; i++) {
    progress(0, 20 * i, 0.5, 100);
    bench_run(10);
    progress(1, 20 * i + 10, 0.5, 100);
    bench_run(10);
    if (i > 1) assert_int_equal(last_progress()->n_laggards, 0);
  }
  assert_in_range(last_progress()->age_ms, 0, 20);
}

/* The others wait for it, so nobody reports any more, and PROGRESS is sent all the same. */
ANSWERED_TEST(test_a_worker_a_step_behind_lags_after_two_seconds) {
  progress(0, 7, 0.5, 100);
  progress(1, 7, 0.5, 100);
  bench_run(1000);
  progress(0, 8, 0.5, 100);
  bench_run(1900);
  assert_int_equal(last_progress()->n_laggards, 0);
  bench_forget();
  bench_run(200);
  assert_int_equal(bench_count_sent(MSG_PROGRESS), 1);
  assert_int_equal(last_progress()->n_laggards, 1);
  assert_int_equal(last_progress()->laggards[0].local_rank, 1);
  assert_int_equal(last_progress()->laggards[0].step, 7);
  assert_in_range(last_progress()->laggards[0].age_ms, 3000, 3100);
  assert_int_equal(last_progress()->step, 7);
  assert_in_range(last_progress()->age_ms, 3000, 3100);
  bench_forget();
  bench_run(5000); /* once */
  assert_int_equal(bench_count_sent(MSG_PROGRESS), 0);
  progress(1, 8, 0.5, 100);
  bench_run(1000);
  assert_int_equal(last_progress()->n_laggards, 0);
}

ANSWERED_TEST(test_a_worker_two_steps_behind_lags_sooner) {
  progress(0, 7, 0.5, 100);
  progress(1, 7, 0.5, 100);
  bench_run(1000);
  progress(1, 8, 0.5, 100);
  progress(1, 9, 0.5, 100);
  bench_run(450);
  assert_int_equal(last_progress()->n_laggards, 0);
  bench_run(100);
  assert_int_equal(last_progress()->n_laggards, 1);
  assert_int_equal(last_progress()->laggards[0].local_rank, 0);
}

BENCH_TEST(test_who_does_not_lag) {
  bench_open_answered(); /* rank 1 reports nothing: many programs report on one rank */
  progress(0, 7, 0.5, 100);
  bench_run(5000);
  assert_int_equal(last_progress()->n_laggards, 0);
  progress(1, 500, 0.5, 100); /* it is done, and waits for nobody */
  bench_run(5000);
  assert_int_equal(last_progress()->n_laggards, 0);
  progress(1, 3, 0.5, 100); /* it counts anew, and leads no longer */
  bench_run(5000);
  assert_int_equal(last_progress()->n_laggards, 1);
  assert_int_equal(last_progress()->laggards[0].local_rank, 1);
  progress(0, 3, 0.5, 100);
  bench_run(5000);
  assert_int_equal(last_progress()->n_laggards, 0);
}

/* Checkpoints. ----------------------------------------------------------------------------------------------------- */

ANSWERED_TEST(test_what_workers_resumed_and_saved) {
  progress(0, 121, 0.5, 100);
  bench_run(1000);
  assert_int_equal(last_progress()->resumed, -1);
  assert_int_equal(last_progress()->saved, -1);
  bench_worker(1, (struct supervisor_event){.kind = SUP_RESUMED, .step = 120});
  bench_worker(0, (struct supervisor_event){.kind = SUP_RESUMED, .step = 0});
  bench_worker(0, (struct supervisor_event){.kind = SUP_SAVED, .step = 150});
  bench_run(1000);
  assert_int_equal(last_progress()->resumed, 0);
  assert_int_equal(last_progress()->saved, 150);
  bench_worker(1, (struct supervisor_event){.kind = SUP_SAVED, .step = 140});
  bench_run(1000);
  assert_int_equal(last_progress()->saved, 140); /* all parts of it are there */
  assert_int_equal(last_progress()->step, 121);
}

ANSWERED_TEST(test_checkpoints_without_a_step) {
  bench_worker(0, (struct supervisor_event){.kind = SUP_SAVED, .step = 1});
  bench_run(1000);
  assert_int_equal(last_progress()->step, -1);
  assert_int_equal(last_progress()->saved, 1);
}

static void saving(uint32_t local_rank, bool on) {
  bench_worker(local_rank, (struct supervisor_event){.kind = SUP_SAVING, .on = on});
}

ANSWERED_TEST(test_the_time_of_saving_is_the_longest_workers) {
  progress(0, 1, 0.5, 100);
  saving(0, true);
  saving(1, true);
  bench_run(1000);
  saving(1, false);
  saving(1, false); /* twice is once */
  bench_run(10000); /* while one still waits, the daemon is kept up to date */
  assert_in_range(last_progress()->saving_ms, 8900, 11000);
  saving(0, false);
  bench_run(1000);
  assert_in_range(last_progress()->saving_ms, 11000, 11100);
  saving(1, true);
  bench_run(3000);
  saving(1, false);
  bench_forget();
  bench_run(600);
  assert_in_range(last_progress()->saving_ms, 11000, 11100); /* that of rank 1 is 4 s */
  bench_forget();
  bench_run(5000);
  assert_int_equal(bench_count_sent(MSG_PROGRESS), 0);
}

/* Workers write checkpoints when they are asked to stop. */
ANSWERED_TEST(test_a_checkpoint_of_the_stop_is_sent) {
  progress(0, 9, 0.5, 100);
  bench_run(1000);
  bench_stop(1, NULL);
  bench_worker(0, (struct supervisor_event){.kind = SUP_SAVED, .step = 9});
  bench_forget();
  bench_clear();
  assert_int_equal(last_progress()->saved, 9);
}

/* A daemon that takes over knows nothing of it. */
ANSWERED_TEST(test_a_new_daemon_hears_it_again) {
  progress(0, 9, 0.5, 100);
  bench_run(10000);
  bench_forget();
  bench_reconnected();
  bench_welcome(false);
  bench_run(10);
  assert_int_equal(bench_count_sent(MSG_PROGRESS), 1);
  assert_int_equal(last_progress()->step, 9);
  assert_in_range(last_progress()->age_ms, 9000, 12000);
}
