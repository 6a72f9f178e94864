#ifndef AGENT_TRAINER_BENCH_TABLE_H
#define AGENT_TRAINER_BENCH_TABLE_H

/* The parts of `--bench allreduce` that are only arithmetic: which sizes, which values, what their sums must be, and how a result reads.
 * Columns, units and definitions are nccl-tests' (all_reduce_perf), so that both can be laid side by side, and read by the same scripts:
 *
 *   size     bytes of the data on each rank, count in elements; float, sum
 *   time     microseconds of one all-reduce: the mean over the iterations, then over the ranks
 *   algbw    size / time, in 10^9 bytes per second
 *   busbw    algbw * 2 (n-1) / n for n ranks: what each rank must send and receive at least, per second
 *   #wrong   elements whose sum was not the right one, over all ranks; N/A without a check
 *
 * All-reduces here are in place, as in training; the columns for out-of-place say N/A. */

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
  int64_t check; /* iterations whose sums are looked at; 0: none */
};

struct bench_result {
  uint64_t count; /* elements on each rank */
  double seconds; /* of one all-reduce */
  uint64_t wrong;
  bool checked;
};

/* Sizes in elements, the first and each one behind another. False: there is none. A size is rounded down to whole elements. */
bool bench_first(const struct bench_opts *o, uint64_t *count);
bool bench_next(const struct bench_opts *o, uint64_t *count);
uint64_t bench_sizes(const struct bench_opts *o); /* how many */

double bench_algbw(const struct bench_result *r); /* bytes per second; 0 where no time passed */
double bench_busbw(const struct bench_result *r, int world);

/* What element `i` is on a rank, in the check number `rep`: a whole number below BENCH_VALUES, so that sums over up to 65536 ranks are exact
 * in float whatever the order; it differs from element to element and from rank to rank, so that an element in the wrong place, or
 * a rank that was added twice or not at all, is seen. */
float bench_value(uint64_t i, int rank, uint64_t rep);
/* v[k] = bench_value(at + k). */
void bench_fill(float *v, size_t n, uint64_t at, int rank, uint64_t rep);
/* The sums over a world, for bench_wrong. */
struct bench_sums {
  float of[BENCH_VALUES];
};
void bench_sums_init(struct bench_sums *s, int world);
/* How many of v[0..n), elements from `at` on, are not the sum. */
uint64_t bench_wrong(const struct bench_sums *s, const float *v, size_t n, uint64_t at, uint64_t rep);

/* The text of the table. */
void bench_print_head(struct buf *out, const struct bench_opts *o);
void bench_print_row(struct buf *out, const struct bench_result *r, int world);
/* failed: rows with a wrong sum. */
void bench_print_foot(struct buf *out, uint64_t failed, double mean_busbw);

#endif
