/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, values, sums and lines of the bench mode. Pure.
 *
 * The index of an element and the number of the check put it into one of 251 classes, and its value is a mix of class
 * and rank. So over all ranks there are only 251 different sums. They are computed once for a world, and a check costs
 * one table look-up per element, for any number of ranks. 65536 ranks times 250 is less than 2^24, so a float holds
 * every partial sum exactly. There is no tolerance, and a single lost bit is a wrong element.
 *
 * Numbers fit nccl-tests' columns: two decimals, fewer if that is too wide, an exponent if even that is too wide. */

#include "agent/trainer/run/bench_table.h"

#include <stdio.h>

enum { CELL = 24 };

bool bench_first(const struct bench_opts *o, uint64_t *count) {
  *count = (uint64_t)o->min / BENCH_ELEM;
  return *count > 0 && o->min <= o->max;
}

bool bench_next(const struct bench_opts *o, uint64_t *count) {
  uint64_t factor = (uint64_t)o->factor, most = (uint64_t)o->max / BENCH_ELEM;
  if (factor < 2 || *count > most / factor) return false;
  *count *= factor;
  return true;
}

uint64_t bench_sizes(const struct bench_opts *o) {
  uint64_t count, n = 0;
  for (bool more = bench_first(o, &count); more; more = bench_next(o, &count)) n++;
  return n;
}

double bench_algbw(const struct bench_result *r) {
  return r->seconds > 0 ? (double)(r->count * BENCH_ELEM) / r->seconds : 0;
}

double bench_busbw(const struct bench_result *r, int world) {
  return bench_algbw(r) * 2 * (world - 1) / world;
}

static unsigned hash_mod(uint64_t a, uint64_t b) {
  uint64_t x = (a + 1) * 0x9E3779B97F4A7C15u + b * 0xD1B54A32D192ED03u;
  x ^= x >> 29;
  return (unsigned)((x >> 3) % BENCH_VALUES);
}

static unsigned value_on_rank(unsigned class, int rank) {
  return hash_mod((uint64_t)rank * BENCH_VALUES + class, 0);
}

void bench_fill(float *v, size_t n, uint64_t at, int rank, uint64_t rep) {
  float of[BENCH_VALUES];
  for (unsigned k = 0; k < BENCH_VALUES; k++) of[k] = (float)value_on_rank(k, rank);
  for (size_t k = 0; k < n; k++) v[k] = of[hash_mod(at + k, rep)];
}

void bench_sums_init(struct bench_sums *s, int world) {
  for (unsigned k = 0; k < BENCH_VALUES; k++) {
    uint64_t sum = 0;
    for (int rank = 0; rank < world; rank++) sum += value_on_rank(k, rank);
    s->of[k] = (float)sum;
  }
}

uint64_t bench_wrong(const struct bench_sums *s, const float *v, size_t n, uint64_t at, uint64_t rep) {
  uint64_t wrong = 0;
  for (size_t k = 0; k < n; k++) wrong += v[k] != s->of[hash_mod(at + k, rep)]; /* also true for NaN */
  return wrong;
}

void bench_print_head(struct buf *out, const struct bench_opts *o) {
  static const char left[] = "%12s  %12s  %8s  %6s  %6s  ", right[] = "%7s  %6s  %6s";
  char l[64], r[32];
  buf_printf(out, "# minBytes %lld maxBytes %lld step: %lld(factor) warmup iters: %lld iters: %lld ", (long long)o->min,
             (long long)o->max, (long long)o->factor, (long long)o->warmup, (long long)o->iters);
  buf_printf(out, "validation: %lld\n#\n", (long long)o->check);
  snprintf(l, sizeof l, left, "#           ", "", "", "", "");
  buf_printf(out, "%s%22s%33s\n", l, "out-of-place", "in-place");
  snprintf(l, sizeof l, left, "#       size", "count", "type", "redop", "root");
  snprintf(r, sizeof r, right, "time", "algbw", "busbw");
  buf_printf(out, "%s%s  #wrong  %s  #wrong\n", l, r, r);
  snprintf(l, sizeof l, left, "#        (B)", "(elements)", "", "", "");
  snprintf(r, sizeof r, right, "(us)", "(GB/s)", "(GB/s)");
  buf_printf(out, "%s%s          %s\n", l, r, r);
}

/* `value` in `width` characters, with as many digits as fit. */
static void format_cell(char out[CELL], double value, int width) {
  for (int digits = 2; digits >= 0; digits--) {
    int n = snprintf(out, CELL, "%*.*f", width, digits, value);
    if (n <= width) return;
  }
  snprintf(out, CELL, "%*.*e", width, width >= 7 ? 1 : 0, value);
}

void bench_print_row(struct buf *out, const struct bench_result *r, int world) {
  char time[CELL], alg[CELL], bus[CELL], wrong[CELL] = "   N/A";
  format_cell(time, r->seconds * 1e6, 7);
  format_cell(alg, bench_algbw(r) / 1e9, 6);
  format_cell(bus, bench_busbw(r, world) / 1e9, 6);
  if (r->checked) snprintf(wrong, sizeof wrong, "%6g", (double)r->wrong);
  buf_printf(out, "%12llu  %12llu  %8s  %6s  %6d", (unsigned long long)(r->count * BENCH_ELEM),
             (unsigned long long)r->count, "float", "sum", -1);
  buf_printf(out, "  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
  buf_printf(out, "  %7s  %6s  %6s  %6s\n", time, alg, bus, wrong);
}

void bench_print_foot(struct buf *out, uint64_t failed, double mean_busbw) {
  buf_printf(out, "# %-20s : %llu %s\n", "Out of bounds values", (unsigned long long)failed, failed ? "FAILED" : "OK");
  buf_printf(out, "# %-20s : %g\n#\n", "Avg bus bandwidth", mean_busbw / 1e9);
}
