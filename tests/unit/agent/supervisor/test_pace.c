/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: how long workers are in collectives, as a library in NCCL reports. */

#include "tests/rig/supervisor.h"

#include "tests/rig/unit.h"

static void pace(uint32_t local_rank, int64_t group, int64_t collectives, int64_t waited_us) {
  bench_event(&(struct supervisor_event){.kind = SUP_PACE,
                                         .round = (uint32_t)supervisor_round(bench.s),
                                         .local_rank = local_rank,
                                         .pace = {.local_rank = local_rank,
                                                  .group = group,
                                                  .group_size = 4,
                                                  .collectives = collectives,
                                                  .waited_us = waited_us}});
}

static void open_running(int64_t slow_ranks_ms) {
  bench_open();
  bench.config.settings.slow_ranks_ms = slow_ranks_ms;
  bench.answering = true;
  bench_begin();
  bench_up();
  bench_welcome(false);
  bench_start(1);
  bench_all_spawned();
  bench_forget();
}

BENCH_TEST(test_one_message_with_what_is_new) {
  open_running(120000);
  for (int64_t i = 1; i <= 60; i++) { /* a minute */
    pace(0, 7, 100 * i, 1000 * i);
    pace(1, 7, 100 * i, 2000 * i);
    if (i < 30) pace(1, 8, i, i);
    bench_run(1000);
  }
  assert_in_range(bench_count_sent(MSG_PACE), 12, 13);
  const struct rank_paces *p = &bench_sent(MSG_PACE)->rank_paces;
  assert_int_equal(p->round, 1);
  assert_int_equal(p->n_ranks, 2); /* group 8 has nothing new */
  assert_int_equal(p->ranks[1].local_rank, 1);
  assert_int_equal(p->ranks[1].group, 7);
  assert_int_equal(p->ranks[1].group_size, 4);
  assert_int_equal(p->ranks[1].waited_us, 20 * p->ranks[1].collectives);
  bench_forget();
  bench_run(60000);
  assert_in_range(bench_count_sent(MSG_PACE), 0, 1);
}

/* A worker says once that it had sends and receives: that goes into the next message, and into no other. */
static bool tells_of_pairs(const bool *pairs, int n) {
  static int64_t collectives;
  bench_forget();
  for (int i = 0; i < n; i++)
    bench_event(&(struct supervisor_event){.kind = SUP_PACE,
                                           .round = (uint32_t)supervisor_round(bench.s),
                                           .pace = {.group = 7, .pairs = pairs[i], .collectives = ++collectives}});
  bench_run(6000);
  assert_int_equal(bench_count_sent(MSG_PACE), 1);
  return bench_sent(MSG_PACE)->rank_paces.ranks[0].pairs;
}

BENCH_TEST(test_pairs_of_several_reports) {
  open_running(120000);
  pace(0, 7, 1, 1);
  bench_run(1000); /* the next message is not due yet */
  assert_true(tells_of_pairs((bool[]){true, false}, 2));
  assert_false(tells_of_pairs((bool[]){false}, 1));
}

BENCH_TEST(test_it_can_be_switched_off) {
  open_running(0);
  pace(0, 7, 100, 1000);
  bench_run(10000);
  assert_int_equal(bench_count_sent(MSG_PACE), 0);
}

/* A worker makes communicators without end: those in which it is longest are kept. */
BENCH_TEST(test_many_communicators) {
  open_running(3000);
  for (int64_t g = 1; g <= 5000; g++) pace(1, g, 10, g % 1000 == 0 ? 1000000 + g : 5);
  bench_run(1000);
  const struct rank_paces *p = &bench_sent(MSG_PACE)->rank_paces;
  assert_int_equal(p->n_ranks, 8);
  int long_ones = 0;
  for (size_t i = 0; i < p->n_ranks; i++) long_ones += p->ranks[i].waited_us > 1000000;
  assert_int_equal(long_ones, 5);
}

/* They are of the round: nothing is left of them in the next one. */
BENCH_TEST(test_the_next_round_begins_with_nothing) {
  open_running(120000);
  pace(0, 7, 100, 1000);
  bench_stop(1, NULL);
  bench_all_exited(SIGNALED(15));
  bench_clear();
  bench_settled(1, false, 0, NULL);
  bench_start(2);
  bench_all_spawned();
  bench_forget();
  bench_run(10000);
  assert_int_equal(bench_count_sent(MSG_PACE), 0);
}
