/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the bench mode: sizes, values with exact sums, definitions of bandwidth, and lines that readers of
 * nccl-tests accept. */

#include "agent/trainer/run/bench_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static float value_of(uint64_t i, int rank, uint64_t rep) {
  float v;
  bench_fill(&v, 1, i, rank, rep);
  return v;
}

static void expect_sizes(int64_t min, int64_t max, int64_t factor, const uint64_t *want, uint64_t n) {
  struct bench_opts o = {.min = min, .max = max, .factor = factor};
  uint64_t count = 0, k = 0;
  for (bool more = bench_first(&o, &count); more; more = bench_next(&o, &count)) {
    assert_true(k < n);
    assert_int_equal(count, want[k++]);
  }
  assert_int_equal(k, n);
  assert_int_equal(bench_sizes(&o), n);
}

UNIT_TEST(test_sizes_grow_by_the_factor_up_to_the_last) {
  expect_sizes(8, 64, 2, (uint64_t[]){2, 4, 8, 16}, 4);
  expect_sizes(8, 63, 2, (uint64_t[]){2, 4, 8}, 3);
  expect_sizes(4, 4000, 10, (uint64_t[]){1, 10, 100, 1000}, 4);
  expect_sizes(32, 32, 2, (uint64_t[]){8}, 1);
  expect_sizes(10, 41, 2, (uint64_t[]){2, 4, 8}, 3); /* whole elements */
  expect_sizes(3, 64, 2, NULL, 0);
  expect_sizes(64, 32, 2, NULL, 0);
  struct bench_opts wide = {.min = 4, .max = 1LL << 40, .factor = 2};
  assert_int_equal(bench_sizes(&wide), 39);
  wide.factor = 1 << 30;
  assert_int_equal(bench_sizes(&wide), 2);
}

UNIT_TEST(test_bandwidths_are_those_of_nccl_tests) {
  struct bench_result r = {.count = 250000000, .seconds = 0.5}; /* 10^9 bytes */
  assert_true(fabs(bench_algbw(&r) - 2e9) < 1);
  assert_true(fabs(bench_busbw(&r, 4) - 3e9) < 1); /* 2 * 3 / 4 */
  assert_true(fabs(bench_busbw(&r, 2) - 2e9) < 1);
  assert_true(bench_busbw(&r, 1) == 0);
  r.seconds = 0;
  assert_true(bench_algbw(&r) == 0);
}

/* What an all-reduce gives, in any order of the ranks. */
static float *summed(size_t n, uint64_t at, int world, uint64_t rep, bool backwards) {
  float *sum = calloc(n, sizeof *sum), *one = malloc(n * sizeof *one);
  assert_non_null(sum);
  assert_non_null(one);
  for (int k = 0; k < world; k++) {
    bench_fill(one, n, at, backwards ? world - 1 - k : k, rep);
    for (size_t i = 0; i < n; i++) sum[i] += one[i];
  }
  free(one);
  return sum;
}

UNIT_TEST(test_right_sums_are_right_in_every_order) {
  static const int worlds[] = {1, 2, 3, 4, 8, 250, 251, 252, 65536};
  struct bench_sums s;
  for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
    bench_sums_init(&s, worlds[w]);
    for (unsigned k = 0; k < BENCH_VALUES; k++) assert_true(s.of[k] < 16777216.0f);
    for (int backwards = 0; backwards < 2; backwards++) {
      float *sum = summed(500, 77, worlds[w], 3, backwards);
      assert_int_equal(bench_wrong(&s, sum, 500, 77, 3), 0);
      assert_true(bench_wrong(&s, sum, 500, 77, 4) > 400); /* another check has other values */
      assert_true(bench_wrong(&s, sum, 500, 78, 3) > 400); /* and so has another place */
      free(sum);
    }
  }
}

UNIT_TEST(test_each_wrong_element_is_seen) {
  struct bench_sums s;
  enum { N = 1000, WORLD = 5 };
  bench_sums_init(&s, WORLD);
  float *sum = summed(N, 0, WORLD, 1, false), *one = malloc(N * sizeof *one);
  assert_non_null(one);
  sum[3] += 1;
  sum[500] = NAN;
  sum[999] = nextafterf(sum[999], 0);
  assert_int_equal(bench_wrong(&s, sum, N, 0, 1), 3);
  free(sum);
  for (int rank = 0; rank < WORLD; rank++) { /* a rank is missing, or there twice */
    for (int twice = 0; twice < 2; twice++) {
      sum = summed(N, 0, WORLD, 1, false);
      bench_fill(one, N, 0, rank, 1);
      for (size_t i = 0; i < N; i++) sum[i] += twice ? one[i] : -one[i];
      assert_true(bench_wrong(&s, sum, N, 0, 1) > N * 9 / 10);
      free(sum);
    }
  }
  free(one);
}

UNIT_TEST(test_ranks_and_places_have_values_of_their_own) {
  size_t same_place = 0, same_rank = 0;
  for (uint64_t i = 0; i < 10000; i++) {
    float v = value_of(i, 0, 1);
    assert_true(v >= 0 && v < BENCH_VALUES && v == floorf(v));
    same_place += v == value_of(i, 1, 1);
    for (uint64_t by = 1; by <= 4096; by *= 2) same_rank += v == value_of(i + by, 0, 1);
  }
  assert_true(same_place < 10000 / 20); /* by chance one in 251 */
  assert_true(same_rank < 13 * 10000 / 20);
}

static void check_row(struct bench_result r, int world, const char *want) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  bench_print_row(&b, &r, world);
  assert_string_equal(buf_text(&b), want);
}

UNIT_TEST(test_rows_stand_in_columns) {
  check_row((struct bench_result){2, 12.346e-6, 0, true}, 4,
            "           8             2     float     sum      -1      N/A     N/A     N/A     N/A"
            "    12.35    0.00    0.00       0\n");
  check_row((struct bench_result){33554432, 0.07, 12, true}, 4,
            "   134217728      33554432     float     sum      -1      N/A     N/A     N/A     N/A"
            "  70000.0    1.92    2.88      12\n");
  check_row((struct bench_result){33554432, 12.3456789, 0, false}, 2,
            "   134217728      33554432     float     sum      -1      N/A     N/A     N/A     N/A"
            "  1.2e+07    0.01    0.01     N/A\n");
  check_row((struct bench_result){1000000000, 1.5e-6, 0, true}, 1, /* nothing was done: absurd, but in its column */
            "  4000000000    1000000000     float     sum      -1      N/A     N/A     N/A     N/A"
            "     1.50   3e+06    0.00       0\n");
}

UNIT_TEST(test_head_and_foot_are_comments_with_the_settings) {
  struct bench_opts o = {BENCH_ALLREDUCE, 8, 1024, 2, 20, 5, 1};
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  bench_print_head(&b, &o);
  assert_non_null(
      strstr(buf_text(&b), "# minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"));
  assert_non_null(strstr(buf_text(&b),
                         "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
                         "     time   algbw   busbw  #wrong\n"
                         "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
                         "     (us)  (GB/s)  (GB/s)\n"));
  bench_print_foot(&b, 0, 1.25e9);
  assert_non_null(strstr(buf_text(&b), "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.25\n#\n"));
  bench_print_foot(&b, 3, 0);
  assert_non_null(strstr(buf_text(&b), "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 0\n"));
  for (const char *p = buf_text(&b); *p; p = strchr(p, '\n') + 1) assert_int_equal(*p, '#');
}
