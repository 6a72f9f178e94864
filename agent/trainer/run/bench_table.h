/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_RUN_BENCH_TABLE_H
#define AGENT_TRAINER_RUN_BENCH_TABLE_H

/* The arithmetic of `--bench allreduce`: sizes, values, their sums, and the text of a result. Columns, units and
 * definitions are those of nccl-tests (all_reduce_perf), so both can be compared side by side and read by the same
 * scripts:
 *
 *   size     bytes of the data on each rank; count is in elements; float, sum
 *   time     microseconds of one all-reduce: the mean over the iterations, then over the ranks
 *   algbw    size / time, in 10^9 bytes per second
 *   busbw    algbw * 2 (n-1) / n for n ranks: what each rank must at least send and receive, per second
 *   #wrong   elements with a wrong sum, over all ranks; N/A without a check
 *
 * All-reduces are in place, as in training, so the columns for out-of-place are N/A. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"

enum bench_kind { BENCH_NONE, BENCH_ALLREDUCE };

enum { BENCH_VALUES = 251, BENCH_ELEM = sizeof(float) };
#define BENCH_SIZE_MAX ((double)(1LL << 40)) /* bytes */

struct bench_opts {
  enum bench_kind kind;
  int64_t min, max; /* bytes */
  int64_t factor, iters, warmup;
  int64_t check; /* iterations whose sums are checked; 0: none */
};

struct bench_result {
  uint64_t count; /* elements on each rank */
  double seconds; /* of one all-reduce */
  uint64_t wrong;
  bool checked;
};

/* The first size in elements, and the next one. False: there is none. Bytes are rounded down to whole elements. */
bool bench_first(const struct bench_opts *o, uint64_t *count);
bool bench_next(const struct bench_opts *o, uint64_t *count);
uint64_t bench_sizes(const struct bench_opts *o); /* how many */

double bench_algbw(const struct bench_result *r); /* bytes per second; 0 if no time passed */
double bench_busbw(const struct bench_result *r, int world);

/* Fills v[0..n) with the values of the elements from `at` on, on a rank in check number `rep`: whole numbers below
 * BENCH_VALUES, so sums over up to 65536 ranks are exact in float in any order. A value differs between elements and
 * between ranks, so an element in the wrong place, or a rank that was added twice or not at all, shows. */
void bench_fill(float *v, size_t n, uint64_t at, int rank, uint64_t rep);
/* The sums over a world, for bench_wrong. */
struct bench_sums {
  float of[BENCH_VALUES];
};
void bench_sums_init(struct bench_sums *s, int world);
/* The number of elements in v[0..n), from element `at` on, that are not the right sum. */
uint64_t bench_wrong(const struct bench_sums *s, const float *v, size_t n, uint64_t at, uint64_t rep);

/* Append the text of the table. */
void bench_print_head(struct buf *out, const struct bench_opts *o);
void bench_print_row(struct buf *out, const struct bench_result *r, int world);
/* failed: rows with a wrong sum. */
void bench_print_foot(struct buf *out, uint64_t failed, double mean_busbw);

#endif
