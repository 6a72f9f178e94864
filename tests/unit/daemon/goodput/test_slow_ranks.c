/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/goodput/slow_ranks.c: a made-up job trains for hours, and one rank is slow, or none.
 *
 * A step is compute, then a collective; several make a communicator's sums. Each rank computes as fast as all others, give
 * or take its noise. All leave a collective together when the last one has entered it and the data has crossed the wires. */

#include "daemon/goodput/slow_ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

enum { RANKS = 16, NODE_RANKS = 8, RANKS_MAX = 64, GROUPS_MAX = 80, SPAN_MS = 180000, REPORT_MS = 5000 };

/* A communicator, and what its ranks have counted. */
struct comm {
  int ranks[RANKS_MAX], n;
  struct rank_pace sums[RANKS_MAX];
};

struct world {
  int n;
  double now_s[RANKS_MAX]; /* of each rank: it has come so far */
  double work_s[RANKS_MAX], wire_s;
  double next_report_s[RANKS_MAX];
  struct comm comms[GROUPS_MAX];
  int n_comms;
  bool pairs;
  uint64_t random;
  struct slow_ranks *slow;
  int judged;
  size_t named_ever;
};

static double uniform(struct world *w) { /* 0 to 1 */
  w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (double)(w->random >> 11) / (double)(UINT64_C(1) << 53);
}

static double normal(struct world *w) {
  double sum = 0;
  for (int i = 0; i < 12; i++) sum += uniform(w);
  return sum - 6;
}

static void world_open(struct world *w, int n, uint64_t seed) {
  *w = (struct world){.n = n, .wire_s = 0.05, .random = seed * 77 + 5};
  w->slow = slow_ranks_create(SPAN_MS, n, seed);
  for (int r = 0; r < n; r++) {
    w->work_s[r] = 0.25 * (1 + 0.01 * (2 * uniform(w) - 1)); /* no two devices are alike */
    w->next_report_s[r] = (r / NODE_RANKS) % 2 * 1.7;
  }
}

static struct comm *add_comm(struct world *w) {
  return &w->comms[w->n_comms++];
}

static void add_rank(struct comm *c, int rank) {
  c->ranks[c->n++] = rank;
}

static void number_comms(struct world *w) {
  for (int g = 0; g < w->n_comms; g++)
    for (int i = 0; i < w->comms[g].n; i++)
      w->comms[g].sums[i] = (struct rank_pace){.group = 1000 + g, .group_rank = i, .group_size = w->comms[g].n};
}

static void add_whole(struct world *w) {
  struct comm *c = add_comm(w);
  for (int r = 0; r < w->n; r++) add_rank(c, r);
}

static void work(struct world *w, int rank, double s) {
  w->now_s[rank] += s;
}

/* slow_sender: whose wire is slower by that factor; -1: nobody's. */
static void collective(struct world *w, struct comm *c, int slow_sender, double factor) {
  double all_s = 0;
  bool affected = false;
  for (int i = 0; i < c->n; i++) {
    if (w->now_s[c->ranks[i]] > all_s) all_s = w->now_s[c->ranks[i]];
    affected |= c->ranks[i] == slow_sender;
  }
  all_s += w->wire_s * (affected ? factor : 1) * (1 + 0.02 * uniform(w));
  for (int i = 0; i < c->n; i++) {
    struct rank_pace *a = &c->sums[i];
    int r = c->ranks[i];
    a->collectives++;
    a->waited_us += (int64_t)((all_s - w->now_s[r]) * 1e6);
    a->sent_bytes += 1 << 20;
    a->sending_us += (int64_t)(w->wire_s * (r == slow_sender ? factor : 1) * 1e6 * (0.8 + 0.05 * normal(w)));
    w->now_s[r] = all_s;
  }
}

static void report(struct world *w) {
  for (int r = 0; r < w->n; r++) {
    if (w->now_s[r] < w->next_report_s[r]) continue;
    w->next_report_s[r] = w->now_s[r] + REPORT_MS / 1000.0;
    for (int g = 0; g < w->n_comms; g++)
      for (int i = 0; i < w->comms[g].n; i++) {
        if (w->comms[g].ranks[i] != r) continue;
        struct rank_pace a = w->comms[g].sums[i];
        a.pairs = w->pairs;
        w->judged += slow_ranks_note(w->slow, r, r / NODE_RANKS, &a, (uint64_t)(w->now_s[r] * 1000) + 1);
      }
  }
  size_t n;
  slow_ranks_found(w->slow, &n);
  if (n > w->named_ever) w->named_ever = n;
}

static void world_close(struct world *w) {
  slow_ranks_destroy(w->slow);
}

/* One step of data parallel training: the gradients come in 4 collectives. */
static void step(struct world *w, int slow_rank, double slower, int slow_sender, double factor) {
  for (int k = 0; k < 4; k++) {
    for (int r = 0; r < w->n; r++)
      work(w, r, w->work_s[r] / 4 * (r == slow_rank ? 1 + slower : 1) * (1 + 0.03 * normal(w)));
    collective(w, &w->comms[0], slow_sender, factor);
  }
  report(w);
}

/* Whether exactly that rank is found within 400 s, and what it costs. */
static int finds(uint64_t seed, int n, double slower, double wire_slower, enum slow_by by) {
  struct world w;
  world_open(&w, n, seed);
  add_whole(&w);
  number_comms(&w);
  int slow = (int)(seed * 7 % (uint64_t)n);
  w.work_s[slow] = 0.25;
  while (w.now_s[0] < 400) step(&w, slower > 0 ? slow : -1, slower, wire_slower > 0 ? slow : -1, 1 + wire_slower);
  size_t found;
  const struct slow_rank *v = slow_ranks_found(w.slow, &found);
  assert_int_equal(found, 1);
  assert_int_equal(v[0].rank, slow);
  assert_int_equal(v[0].by, by);
  int permille = v[0].permille;
  world_close(&w);
  return permille;
}

UNIT_TEST(test_slow_by_work) {
  static const int percents[] = {5, 10, 20, 50};
  for (size_t i = 0; i < sizeof percents / sizeof *percents; i++)
    for (uint64_t seed = 1; seed <= 20; seed++) {
      int permille = finds(seed, RANKS, percents[i] / 100.0, 0, SLOW_BY_WORK);
      /* 0.25 s of work in a step of 0.45 s */
      double expected = 250.0 * percents[i] / 100 / (0.45 + 0.25 * percents[i] / 100);
      assert_true(fabs(permille - expected) < 10 + expected / 10);
    }
}

/* The job is so many percent slower for it: 0.2 s of 0.45 are on the wire. */
UNIT_TEST(test_slow_by_wire) {
  static const int percents[] = {5, 10, 20, 50};
  for (size_t i = 0; i < sizeof percents / sizeof *percents; i++)
    for (uint64_t seed = 1; seed <= 20; seed++) finds(seed, RANKS, 0, percents[i] / 100.0 * 0.45 / 0.2, SLOW_BY_WIRE);
}

UNIT_TEST(test_two_ranks) {
  assert_true(finds(3, 2, 0.2, 0, SLOW_BY_WORK) > 50);
}

/* 24 hours of everything that happens in a healthy job. */
static void noise(uint64_t seed) {
  struct world w;
  world_open(&w, RANKS, seed);
  add_whole(&w);
  number_comms(&w);
  double checkpoint_s = 600, evaluation_s = 3000, loader_s = 900, loader_ends_s = 0;
  int loader_node = 0;
  while (w.now_s[0] < 24 * 3600) {
    for (int r = 0; r < w.n; r++)
      if (uniform(&w) < 0.005) work(&w, r, 0.05 + 0.3 * uniform(&w)); /* garbage collection */
    if (w.now_s[0] > checkpoint_s) {                                  /* by rank 0 */
      work(&w, 0, 20 + 20 * uniform(&w));
      checkpoint_s += 600;
    }
    if (w.now_s[0] > evaluation_s) { /* shards of different sizes; the largest are always the same ranks' */
      for (int batch = 0; batch < 20; batch++) {
        for (int r = 0; r < w.n; r++) work(&w, r, 2 + (r < 3 ? 1 : 0) + uniform(&w));
        collective(&w, &w.comms[0], -1, 1);
        report(&w);
      }
      evaluation_s += 3600;
    }
    if (w.now_s[0] > loader_s) { /* a loader waits for its file server */
      loader_node = uniform(&w) < 0.5;
      loader_ends_s = w.now_s[0] + 10 + 30 * uniform(&w);
      loader_s += 900 + 900 * uniform(&w);
    }
    if (w.now_s[0] < loader_ends_s)
      for (int r = 0; r < 3; r++) work(&w, loader_node * NODE_RANKS + r, 0.1 + 0.2 * uniform(&w));
    step(&w, -1, 0, -1, 1);
    if (w.named_ever) {
      size_t n;
      const struct slow_rank *v = slow_ranks_found(w.slow, &n);
      fail_msg("seed %d: rank %d is named after %.0f s", (int)seed, n ? (int)v[0].rank : -1, w.now_s[0]);
    }
  }
  assert_true(w.judged > 5000);
  world_close(&w);
}

UNIT_TEST(test_no_false_alarm_in_a_day_of_noise) {
  for (uint64_t seed = 1; seed <= 5; seed++) noise(seed);
}

/* It is named once, stays named while it is just below, and is forgotten when it keeps up. */
UNIT_TEST(test_it_keeps_up_again) {
  struct world w;
  size_t n;
  world_open(&w, RANKS, 9);
  w.work_s[6] = 0.25;
  add_whole(&w);
  number_comms(&w);
  while (w.now_s[0] < 400) step(&w, 6, 0.2, -1, 1);
  assert_non_null(slow_ranks_find(w.slow, 6));
  uint64_t since_ms = slow_ranks_find(w.slow, 6)->since_ms;
  while (w.now_s[0] < 700) step(&w, 6, 0.03, -1, 1); /* about 1.6 % of the time */
  assert_non_null(slow_ranks_find(w.slow, 6));
  assert_true(slow_ranks_find(w.slow, 6)->since_ms == since_ms);
  while (w.now_s[0] < 1100) step(&w, -1, 0, -1, 1);
  slow_ranks_found(w.slow, &n);
  assert_int_equal(n, 0);
  world_close(&w);
}

UNIT_TEST(test_a_whole_node) {
  struct world w;
  size_t n;
  world_open(&w, 32, 4);
  add_whole(&w);
  number_comms(&w);
  for (int r = 8; r < 16; r++) w.work_s[r] *= 1.2;
  while (w.now_s[0] < 400) step(&w, -1, 0, -1, 1);
  const struct slow_rank *v = slow_ranks_found(w.slow, &n);
  assert_int_equal(n, 8);
  assert_int_equal(v[0].rank, 8);
  assert_true(slow_ranks_whole_node(w.slow, 1));
  assert_false(slow_ranks_whole_node(w.slow, 0));
  world_close(&w);
}

/* Half of the ranks have more to do: nobody is to blame. */
UNIT_TEST(test_different_work) {
  struct world w;
  world_open(&w, RANKS, 5);
  add_whole(&w);
  number_comms(&w);
  for (int r = 0; r < RANKS; r += 2) w.work_s[r] *= 1.3;
  while (w.now_s[0] < 600) step(&w, -1, 0, -1, 1);
  assert_int_equal(w.named_ever, 0);
  world_close(&w);
}

/* tp x dp ranks: 8 ranks of a node are tensor parallel, and nodes are data parallel. */
static void tensor_parallel(struct world *w, int nodes) {
  for (int k = 0; k < nodes; k++) {
    struct comm *c = add_comm(w);
    for (int i = 0; i < 8; i++) add_rank(c, 8 * k + i);
  }
  for (int i = 0; i < 8; i++) {
    struct comm *c = add_comm(w);
    for (int k = 0; k < nodes; k++) add_rank(c, 8 * k + i);
  }
  number_comms(w);
}

static void tensor_parallel_step(struct world *w, int nodes, int slow, double slower) {
  for (int layer = 0; layer < 8; layer++) {
    for (int r = 0; r < w->n; r++) work(w, r, w->work_s[r] / 8 * (r == slow ? 1 + slower : 1) * (1 + 0.03 * normal(w)));
    for (int k = 0; k < nodes; k++) collective(w, &w->comms[k], -1, 1);
  }
  for (int i = 0; i < 8; i++) collective(w, &w->comms[nodes + i], -1, 1);
  report(w);
}

/* Its neighbours wait for it in their communicator, and are late in the others for that reason alone. */
UNIT_TEST(test_one_rank_of_a_tensor_parallel_node) {
  struct world w;
  size_t n;
  world_open(&w, 64, 6);
  tensor_parallel(&w, 8);
  w.wire_s = 0.004;
  while (w.now_s[0] < 400) tensor_parallel_step(&w, 8, 21, 0.2);
  const struct slow_rank *v = slow_ranks_found(w.slow, &n);
  assert_int_equal(n, 1);
  assert_int_equal(v[0].rank, 21);
  world_close(&w);
}

/* Stages of a pipeline end their backward pass one after the other, and meet in an all-reduce of the gradients' norm: the
 * first stage always comes last. Its data parallel communicator shows that its ranks are alike. */
static void pipeline(struct world *w, int stages, bool slow) {
  int dp = w->n / stages;
  for (int k = 0; k < stages; k++) {
    struct comm *c = add_comm(w);
    for (int i = 0; i < dp; i++) add_rank(c, k * dp + i);
  }
  for (int i = 0; i < dp; i++) {
    struct comm *c = add_comm(w);
    for (int k = 0; k < stages; k++) add_rank(c, k * dp + i);
  }
  add_whole(w);
  number_comms(w);
  w->pairs = true;
  while (w->now_s[0] < 600) {
    for (int r = 0; r < w->n; r++) {
      int later = stages - r / dp;
      work(w, r, w->work_s[r] * (1 + 0.03 * normal(w)) + 0.02 * later + (slow && r == 5 ? 0.06 : 0));
    }
    for (int g = 0; g < w->n_comms; g++) collective(w, &w->comms[g], -1, 1);
    for (int r = 0; r < w->n; r++) { /* the next forward pass begins with the first stage */
      int stage = r / dp;
      work(w, r, 0.02 * stage);
    }
    report(w);
  }
}

UNIT_TEST(test_stages_of_a_pipeline) {
  struct world w;
  world_open(&w, 64, 7);
  pipeline(&w, 8, false);
  assert_true(w.judged > 20);
  assert_int_equal(w.named_ever, 0);
  world_close(&w);
}

UNIT_TEST(test_a_slow_rank_in_a_pipeline) {
  struct world w;
  size_t n;
  world_open(&w, 64, 7);
  pipeline(&w, 8, true);
  const struct slow_rank *v = slow_ranks_found(w.slow, &n);
  assert_int_equal(n, 1);
  assert_int_equal(v[0].rank, 5);
  world_close(&w);
}

/* A send and a receive at the begin do not blind the job for ever. */
UNIT_TEST(test_pairs_are_forgotten) {
  struct world w;
  world_open(&w, RANKS, 9);
  add_whole(&w);
  number_comms(&w);
  w.work_s[6] = 0.25;
  w.pairs = true;
  while (w.now_s[0] < 400) step(&w, 6, 0.2, -1, 1);
  assert_int_equal(w.named_ever, 0);
  w.pairs = false;
  while (w.now_s[0] < 400 + 1.9 * SPAN_MS / 1000) step(&w, 6, 0.2, -1, 1);
  assert_int_equal(w.named_ever, 0);
  while (w.now_s[0] < 400 + 2.3 * SPAN_MS / 1000) step(&w, 6, 0.2, -1, 1);
  assert_non_null(slow_ranks_find(w.slow, 6));
  world_close(&w);
}

/* A rank whose reports do not come: nothing can be compared. And the sums of a rank may begin anew. */
UNIT_TEST(test_reports_that_do_not_come) {
  struct slow_ranks *s = slow_ranks_create(SPAN_MS, 4, 1);
  size_t n;
  for (int64_t t = 0; t < 400; t += 5)
    for (int64_t r = 0; r < 3; r++) {
      struct rank_pace a = {
          .group = 7, .group_rank = r, .group_size = 4, .collectives = t * 10, .waited_us = r ? t * 500000 : 0};
      assert_false(slow_ranks_note(s, r, 0, &a, (uint64_t)(t * 1000)));
    }
  for (int64_t t = 400; t < 800; t += 5)
    for (int64_t r = 0; r < 4; r++) {
      int64_t since = t > 600 ? t - 600 : t;
      struct rank_pace a = {
          .group = 7, .group_rank = r, .group_size = 4, .collectives = since * 10, .waited_us = r ? since * 500000 : 0};
      slow_ranks_note(s, r, 0, &a, (uint64_t)(t * 1000));
    }
  slow_ranks_found(s, &n);
  assert_int_equal(n, 1);
  assert_int_equal(slow_ranks_find(s, 0)->permille, 500);
  slow_ranks_destroy(s);
}

/* A worker may report what it likes: what is kept is bounded, and no arithmetic fails. */
UNIT_TEST(test_nonsense_is_bounded) {
  struct slow_ranks *s = slow_ranks_create(1000, 4, 1);
  struct world w = {.random = 3};
  for (int i = 0; i < 20000; i++) {
    struct rank_pace a = {.group = 1 + (int64_t)(uniform(&w) * 1000),
                          .group_rank = (int64_t)(uniform(&w) * 1048576),
                          .group_size = (int64_t)(uniform(&w) * 5),
                          .collectives = i % 3 ? (int64_t)(uniform(&w) * 1e6) : INT64_MAX,
                          .waited_us = i % 5 ? (int64_t)(uniform(&w) * 1e12) : INT64_MAX,
                          .sent_bytes = (int64_t)(uniform(&w) * 1e12),
                          .sending_us = i % 7 ? i : INT64_MAX};
    slow_ranks_note(s, (int64_t)(uniform(&w) * 4), 0, &a, (uint64_t)i * 100);
  }
  slow_ranks_destroy(s);
}
