/* SPDX-License-Identifier: Apache-2.0 */
/* ledger, history: what a job's time went to, in made-up times; and the few points of how it came forward. */

#include "daemon/goodput/ledger.h"

#include "tests/rig/unit.h"

static struct goodput read_at(const struct ledger *l, int64_t now_ms) {
  struct goodput g;
  ledger_read(l, now_ms, &g);
  return g;
}

static void check(const struct ledger *l, int64_t now_ms, const struct goodput *want) {
  struct goodput g = read_at(l, now_ms);
  for (int b = 0; b < BUCKET_COUNT; b++)
    if (goodput_ms(&g, (enum bucket)b) != goodput_ms(want, (enum bucket)b))
      fail_msg("%s is %lld ms instead of %lld", bucket_name((enum bucket)b), (long long)goodput_ms(&g, (enum bucket)b),
               (long long)goodput_ms(want, (enum bucket)b));
}

static void step_resumed(struct ledger *l, int64_t at_ms, int64_t step, int64_t resumed) {
  struct history_point p = {.wall_ms = (uint64_t)at_ms, .step = step, .loss = NAN, .samples_per_second = NAN};
  ledger_step(l, at_ms, at_ms, resumed, &p);
}

static void step(struct ledger *l, int64_t at_ms, int64_t step) {
  step_resumed(l, at_ms, step, -1);
}

/* A round: START, STARTED after 1 s, and steps from `first` on, one each second from 2 s on. Returns the time of the
 * last one. */
static int64_t work(struct ledger *l, int64_t at_ms, int64_t first, int64_t last, int64_t resumed) {
  ledger_begin_round(l, at_ms);
  ledger_turn(l, ledger_counts_steps(l) ? BUCKET_STARTING : BUCKET_PRODUCTIVE, at_ms + 1000);
  at_ms += 2000;
  for (int64_t s = first; s <= last; s++, at_ms += 1000) step_resumed(l, at_ms, s, resumed);
  return at_ms - 1000;
}

UNIT_TEST(test_each_millisecond_is_in_one_bucket) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 1000);
  check(&l, 1500, &(struct goodput){.waiting_ms = 500});
  ledger_turn(&l, BUCKET_FORMING, 3000);
  ledger_begin_round(&l, 3100);
  ledger_turn(&l, BUCKET_PRODUCTIVE, 4000); /* all have STARTED */
  check(&l, 5000, &(struct goodput){.waiting_ms = 2000, .forming_ms = 100, .starting_ms = 900, .productive_ms = 1000});
  assert_int_equal(read_at(&l, 5000).startup_ms, 1000);
  assert_int_equal(read_at(&l, 5000).rounds, 1);
  assert_false(read_at(&l, 5000).steps);
  step(&l, 6000, 1); /* so there are steps, and the start lasted until now */
  check(&l, 7000, &(struct goodput){.waiting_ms = 2000, .forming_ms = 100, .starting_ms = 2900, .productive_ms = 1000});
  assert_int_equal(read_at(&l, 7000).startup_ms, 3000);
  ledger_turn(&l, BUCKET_STOPPING, 8000);
  ledger_close(&l, 8500);
  check(&l, 99000,
        &(struct goodput){
            .waiting_ms = 2000, .forming_ms = 100, .starting_ms = 2900, .productive_ms = 2000, .stopping_ms = 500});
  assert_int_equal(read_at(&l, 0).startup_ms, 3000);
  ledger_turn(&l, BUCKET_PRODUCTIVE, 99000); /* nothing more */
  assert_int_equal(read_at(&l, 99000).productive_ms, 2000);
  ledger_finish(&l);
}

UNIT_TEST(test_time_does_not_run_back) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, -5000); /* the job is older than this machine */
  ledger_turn(&l, BUCKET_FORMING, -9000);
  check(&l, 1000, &(struct goodput){.forming_ms = 6000});
  ledger_turn(&l, BUCKET_STARTING, 500);
  ledger_turn(&l, BUCKET_PRODUCTIVE, 100);
  check(&l, 1000, &(struct goodput){.forming_ms = 5500, .productive_ms = 500});
  ledger_adopt(&l, &l.sum, -GOODPUT_MAX_MS, false, 0);
  assert_int_equal(read_at(&l, 1000).waiting_ms, GOODPUT_MAX_MS); /* the wire carries no more */
  ledger_finish(&l);
}

UNIT_TEST(test_the_longest_wait_is_named) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  ledger_name_missing(&l, "gpu[5,7]");
  ledger_name_missing(&l, "gpu7");
  struct goodput g = read_at(&l, 4000);
  assert_int_equal(g.waited_ms, 4000);
  assert_string_equal(g.waited_for, "gpu7");
  ledger_turn(&l, BUCKET_FORMING, 5000);
  ledger_name_missing(&l, "gpu9"); /* nobody is waited for */
  ledger_turn(&l, BUCKET_WAITING, 6000);
  ledger_name_missing(&l, "gpu1");
  assert_string_equal(read_at(&l, 10000).waited_for, "gpu7");
  assert_string_equal(read_at(&l, 11001).waited_for, "gpu1"); /* it is longer now */
  ledger_turn(&l, BUCKET_FORMING, 8000);
  g = read_at(&l, 20000);
  assert_int_equal(g.waited_ms, 5000);
  assert_int_equal(g.waiting_ms, 7000);
  assert_string_equal(g.waited_for, "gpu7");
  ledger_turn(&l, BUCKET_WAITING, 20000);
  ledger_turn(&l, BUCKET_FORMING, 30000);
  assert_string_equal(read_at(&l, 30000).waited_for, ""); /* unknown, but longer */
  ledger_finish(&l);
}

/* Round 1 does steps 1 to 10 and stops a second later; round 2 resumes at 6. */
UNIT_TEST(test_steps_that_are_done_again_are_lost) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  int64_t at = work(&l, 0, 1, 10, -1); /* step 1 at 2 s, step 10 at 11 s */
  assert_int_equal(at, 11000);
  ledger_turn(&l, BUCKET_STOPPING, 12000);
  ledger_turn(&l, BUCKET_FORMING, 13000);
  struct goodput want = {.starting_ms = 2000, .productive_ms = 10000, .stopping_ms = 1000};
  check(&l, 13000, &want);
  at = work(&l, 13000, 7, 8, -1); /* from 15 s on */
  want = (struct goodput){.starting_ms = 4000,
                          .productive_ms = 5000 + 1000,
                          .lost_ms = 5000,
                          .stopping_ms = 1000}; /* 6 .. 10, and a part */
  check(&l, at, &want);
  ledger_turn(&l, BUCKET_STOPPING, at);
  work(&l, at, 3, 3, -1); /* back to 2, which only the first round has done */
  want.starting_ms += 2000;
  want.lost_ms += 5000;
  want.productive_ms = 1000;
  check(&l, at + 2000, &want);
  ledger_finish(&l);
}

/* Of a node that said STARTED, and of one whose STARTED comes when the round is stopping. */
UNIT_TEST(test_a_round_in_place_counts_once) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  ledger_begin_round(&l, 0);
  int64_t at = work(&l, 0, 1, 10, -1);
  ledger_turn(&l, BUCKET_STOPPING, at);
  ledger_begin_round(&l, at + 100);
  ledger_in_place(&l);
  ledger_turn(&l, BUCKET_STOPPING, at + 200);
  ledger_in_place(&l);
  assert_int_equal(read_at(&l, at + 500).rounds_in_place, 1);
  assert_int_equal(read_at(&l, at + 500).in_place_ms, 200);
  ledger_turn(&l, BUCKET_FORMING, at + 500);
  assert_int_equal(read_at(&l, at + 600).in_place_ms, 200);
  ledger_begin_round(&l, at + 600);
  assert_int_equal(read_at(&l, at + 700).in_place_ms, 200);
  ledger_finish(&l);
}

/* Round 2 keeps workers, and round 3 does not. Each one costs its stop, its start and the steps that it does again. */
UNIT_TEST(test_what_a_restart_in_place_costs) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  int64_t at = work(&l, 0, 1, 10, -1);
  ledger_turn(&l, BUCKET_STOPPING, at);
  ledger_turn(&l, BUCKET_FORMING, at + 100);
  ledger_begin_round(&l, at + 200);
  ledger_in_place(&l); /* of two nodes */
  ledger_in_place(&l);
  assert_int_equal(read_at(&l, at + 300).in_place_ms, 300);
  step(&l, at + 500, 11);
  step(&l, at + 5000, 12);
  assert_int_equal(read_at(&l, at + 5000).in_place_ms, 500);
  ledger_turn(&l, BUCKET_STOPPING, at + 5000);
  at = work(&l, at + 6000, 13, 20, -1);
  struct goodput g = read_at(&l, at);
  assert_int_equal(g.in_place_ms, 500);
  assert_int_equal(g.rounds_in_place, 1);
  assert_int_equal(goodput_restarts_ms(&g), 500 + 1000 + 2000);
  ledger_turn(&l, BUCKET_STOPPING, at);
  ledger_begin_round(&l, at + 1000);
  ledger_in_place(&l);
  ledger_close(&l, at + 3000);
  assert_int_equal(read_at(&l, at + 9000).in_place_ms, 500 + 3000);
  assert_int_equal(read_at(&l, at + 9000).rounds_in_place, 2);
  /* A daemon that takes over in a round: what it learns comes after START. */
  struct ledger other = {.closed = false};
  g.rounds_in_place = 1;
  ledger_adopt(&other, &g, 0, true, 0);
  ledger_in_place(&other);
  step(&other, 700, 21);
  assert_int_equal(read_at(&other, 5000).in_place_ms, 500 + 700);
  ledger_finish(&other);
  ledger_finish(&l);
}

UNIT_TEST(test_a_worker_says_where_it_resumed) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  int64_t at = work(&l, 0, 101, 110, 100); /* the job goes on from a checkpoint of an earlier job */
  assert_int_equal(read_at(&l, at).from_step, 100);
  assert_int_equal(read_at(&l, at).step, 110);
  ledger_turn(&l, BUCKET_STOPPING, at);
  ledger_begin_round(&l, at);
  step(&l, at + 2000, 110); /* as if it had done that one again, */
  assert_int_equal(read_at(&l, at + 2000).lost_ms, 1000);
  step_resumed(&l, at + 3000, 110, 105); /* but it says now that it resumed at 105 */
  check(&l, at + 3000, &(struct goodput){.starting_ms = 4000, .productive_ms = 4000 + 1000, .lost_ms = 5000});
  step_resumed(&l, at + 4000, 111, 102); /* and another node's, at 102 */
  assert_int_equal(read_at(&l, at + 4000).lost_ms, 8000);
  step_resumed(&l, at + 5000, 112, 105);
  assert_int_equal(read_at(&l, at + 5000).lost_ms, 8000);
  ledger_finish(&l);
}

UNIT_TEST(test_checkpoints_and_unsaved_work) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  int64_t at = work(&l, 0, 1, 10, -1);
  ledger_saving(&l, at, 1500);
  ledger_saving(&l, at, 1500);
  ledger_saving(&l, at, 1200);
  struct goodput want = {.starting_ms = 2000, .productive_ms = 7500, .checkpoint_ms = 1500};
  check(&l, at, &want);
  ledger_saving(&l, at, 60000); /* no more than there was */
  want.checkpoint_ms = 9000;
  want.productive_ms = 0;
  check(&l, at, &want);
  ledger_turn(&l, BUCKET_CHECKPOINT, at);
  ledger_saving(&l, at + 500, 60400); /* it is in its bucket */
  want.checkpoint_ms += 500;
  check(&l, at + 500, &want);
  ledger_finish(&l);

  ledger_begin(&l, 0);
  at = work(&l, 0, 1, 10, -1);
  ledger_lose_unsaved(&l);
  assert_int_equal(read_at(&l, at).lost_ms, 0); /* nobody has said that it saves anything */
  ledger_saved(&l, 4);
  ledger_saved(&l, -1);
  ledger_close(&l, at);
  ledger_lose_unsaved(&l);
  check(&l, at, &(struct goodput){.starting_ms = 2000, .productive_ms = 3000, .lost_ms = 6000});
  ledger_finish(&l);
}

/* The newest checkpoint could not be read. */
UNIT_TEST(test_what_was_saved_is_no_longer) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  int64_t at = work(&l, 0, 1, 10, -1);
  ledger_saved(&l, 8);
  ledger_turn(&l, BUCKET_STOPPING, at);
  work(&l, at, 5, 5, 4);
  assert_int_equal(read_at(&l, at).saved, 4);
  ledger_finish(&l);
}

UNIT_TEST(test_a_hang_is_lost_from_the_last_progress_on) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  int64_t at = work(&l, 0, 1, 10, -1);
  ledger_turn(&l, BUCKET_STOPPING, at + 60000);
  ledger_turn(&l, BUCKET_STOPPING, at + 61000);
  ledger_hang(&l, at);
  struct goodput want = {.starting_ms = 2000, .productive_ms = 9000, .lost_ms = 60000, .stopping_ms = 1000};
  check(&l, at + 61000, &want);
  ledger_finish(&l);

  ledger_begin(&l, 0); /* it hung before it had worked: that was the start */
  ledger_begin_round(&l, 0);
  ledger_turn(&l, BUCKET_STOPPING, 9000);
  ledger_hang(&l, 1000);
  check(&l, 9000, &(struct goodput){.starting_ms = 9000});
  ledger_finish(&l);
}

/* As the daemon sees it: progress at at_ms, and then nothing. */
static void stand(struct ledger *l, int64_t at_ms, int64_t since_ms) {
  ledger_stand(l, at_ms, since_ms);
}

UNIT_TEST(test_time_without_progress_is_lost) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  int64_t at = work(&l, 0, 1, 10, -1); /* a second for each step */
  stand(&l, at, at);
  struct goodput want = {.starting_ms = 2000, .productive_ms = 9000 + 9999};
  check(&l, at + 9999, &want); /* it may be slow */
  want = (struct goodput){.starting_ms = 2000, .productive_ms = 9000 + 1000, .lost_ms = 9000};
  check(&l, at + 10000, &want); /* a usual step is no loss */
  want.lost_ms = 79000;
  check(&l, at + 80000, &want);
  assert_int_equal(read_at(&l, at + 80000).stalled_ms, 79000);
  assert_float_equal(ledger_pace(&l, 0).step_ms, 1000, 0.1); /* it has not become slow */
  stand(&l, at + 80500, at + 80000);                         /* it goes on by itself */
  step(&l, at + 80500, 11);
  want.productive_ms += 500;
  check(&l, at + 80500, &want);
  assert_float_equal(ledger_pace(&l, 0).step_ms, 1000, 100);
  ledger_finish(&l);
}

/* An evaluation: a pause that comes again. */
UNIT_TEST(test_a_usual_pause_is_no_loss) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  int64_t at = work(&l, 0, 1, 10, -1), lost_ms[4];
  for (int i = 0; i < 4; i++) {
    stand(&l, at, at);
    at += 30000;
    stand(&l, at, at);
    step(&l, at, 11 + i);
    lost_ms[i] = read_at(&l, at).lost_ms;
  }
  assert_int_equal(lost_ms[0], 29000);
  assert_true(lost_ms[1] > lost_ms[0]);
  assert_int_equal(lost_ms[2], lost_ms[1]);
  assert_int_equal(lost_ms[3], lost_ms[1]);
  stand(&l, at, at);
  assert_true(read_at(&l, at + 46000).lost_ms > lost_ms[3]); /* longer than usual */
  ledger_finish(&l);
}

UNIT_TEST(test_a_pause_may_be_a_checkpoint_or_a_hang) {
  struct ledger l = {.closed = false};
  ledger_begin(&l, 0);
  int64_t at = work(&l, 0, 1, 10, -1);
  stand(&l, at, at);
  for (int s = 2; s <= 60; s += 2) ledger_saving(&l, at + s * 1000, s * 1000);
  struct goodput want = {.starting_ms = 2000, .productive_ms = 9000, .checkpoint_ms = 60000};
  check(&l, at + 60000, &want);
  ledger_turn(&l, BUCKET_STOPPING, at + 80000);
  want.productive_ms += 1000;
  want.lost_ms = 19000;
  check(&l, at + 80000, &want);
  ledger_finish(&l);

  ledger_begin(&l, 0);
  at = work(&l, 0, 1, 10, -1);
  stand(&l, at, at);
  ledger_turn(&l, BUCKET_STOPPING, at + 60000);
  ledger_hang(&l, at); /* it is declared, and nothing is lost twice */
  want = (struct goodput){.starting_ms = 2000, .productive_ms = 9000, .lost_ms = 60000};
  check(&l, at + 60000, &want);
  ledger_finish(&l);
}

/* Another daemon knows START's account, and what the nodes say of the round. */
UNIT_TEST(test_another_daemon_goes_on) {
  struct ledger l = {.closed = false}, next = {.closed = false};
  ledger_begin(&l, 0);
  ledger_name_missing(&l, "gpu7");
  ledger_turn(&l, BUCKET_FORMING, 500);
  int64_t at = work(&l, 500, 1, 10, -1);
  ledger_turn(&l, BUCKET_STOPPING, at);
  ledger_begin_round(&l, at);
  struct goodput told = read_at(&l, at);
  step(&l, at + 2000, 7);
  ledger_adopt(&next, &told, -100000, true, 1000000);
  check(&next, -99000, &(struct goodput){.waiting_ms = 500, .starting_ms = 2000 + 1000, .productive_ms = 9000});
  struct history_point p = {.wall_ms = 1002000, .step = 7, .loss = NAN, .samples_per_second = NAN};
  ledger_step(&next, -98000, -98000, -1, &p);
  struct goodput a = read_at(&l, at + 60000), b = read_at(&next, -100000 + 60000);
  assert_int_equal(a.productive_ms, b.productive_ms);
  assert_int_equal(a.lost_ms, 4000);
  assert_int_equal(b.lost_ms, 4000);
  assert_string_equal(b.waited_for, "gpu7");
  assert_int_equal(next.history.v[0].wall_ms, 1000000 - 11500);
  ledger_finish(&l);
  assert_string_equal(next.sum.waited_for, "gpu7"); /* its own */
  ledger_finish(&next);
}

/* A thousand rounds and a million steps. */
UNIT_TEST(test_history_stays_small) {
  struct history h = {.n = 0};
  int64_t ms = 0;
  for (int64_t round = 0; round < 1000; round++) {
    history_begin_round(&h);
    for (int64_t s = 0; s < 1000; s++, ms += 100) {
      struct history_point p = {(uint64_t)ms, ms, round * 1000 + s, 1, 2};
      if (!s)
        history_mark(&h, &p);
      else
        history_note(&h, &p);
      assert_true(h.n <= HISTORY_MAX && h.round_from <= h.n);
    }
  }
  assert_true(h.n > HISTORY_MAX / 3);
  assert_int_equal(h.v[0].step, 0);
  assert_int_equal(h.v[h.n - 1].step, 999999);
  for (size_t i = 1; i < h.n; i++) assert_true(h.v[i].wall_ms >= h.v[i - 1].wall_ms);
  for (int64_t s = 777; s < 1000000; s += 777)
    assert_in_range(history_productive_at(&h, s, ms, false), s * 100 - 1, s * 100);
  assert_int_equal(history_productive_at(&h, -1, ms, false), 0);
  assert_int_equal(history_productive_at(&h, 1000000, ms, false), ms);
  history_finish(&h);
  assert_int_equal(history_productive_at(&h, 5, 77, false), 77); /* nothing is known */
}
