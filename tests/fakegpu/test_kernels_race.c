/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel, in every type and of some three blocks, for ThreadSanitizer to watch.
 *
 *   test_kernels_race [--skip-barrier FILE:LINE | --planted]
 *
 * Prints the kernels that were launched, and the barriers and fences that their threads came to. kernels_race.py runs
 * it, once as it is and once without each of them. --planted launches a kernel with a race. */

#include "agent/trainer/gpu/kernels.h"
#include "tests/fakegpu/race_block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 2 * KERNEL_THREADS * 4 + 4 * 30 + 3 }; /* three blocks by fours, and a remainder */

/* race_more.cu */
int race_twice(float *out);
int race_planted(float *out);

static struct kernel_scratch *scratch;

#define GOOD(call)                                                                                                     \
  do {                                                                                                                 \
    if (call) {                                                                                                        \
      fprintf(stderr, "line %d: %s\n", __LINE__, #call);                                                               \
      exit(3);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static void *device(size_t bytes) {
  void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!p) exit(3);
  return memset(p, 0, bytes);
}

static float *floats(size_t n, float value) {
  float *v = device(n * sizeof *v);
  for (size_t i = 0; i < n; i++) v[i] = value;
  return v;
}

static void *values(enum kernel_type t, size_t n, float value) {
  void *to = device(n * kernel_type_size(t));
  GOOD(kernel_fill(NULL, to, t, value, n));
  return to;
}

static void elementwise(enum kernel_type t) {
  void *a = values(t, N, 1), *b = values(t, N, 2);
  float *f = floats(N, 3);
  GOOD(kernel_convert(NULL, a, t, f, KERNEL_F32, N));
  GOOD(kernel_convert(NULL, f, KERNEL_F32, a, t, N));
  GOOD(kernel_bias(NULL, a, b, t, 10, N / 10));
  GOOD(kernel_relu(NULL, a, t, N));
  GOOD(kernel_mask(NULL, a, b, t, N));
  free(a), free(b), free(f);
}

static void sums(enum kernel_type t) {
  enum { ROWS = 20, COLS = 70 };
  void *dz = values(t, ROWS * COLS, 1);
  float *out = floats(COLS, 0);
  GOOD(kernel_column_sums(NULL, out, dz, t, ROWS, COLS));
  free(dz), free(out);
}

static void products(enum kernel_type t) {
  enum { M = 20, K = 20 };
  void *a = values(t, M * K, 1), *b = values(t, M * K, 1), *d = values(KERNEL_F32, M * M, 0);
  for (int i = 0; i < 8; i++) {
    struct kernel_gemm g = {.trans_a = i & 1, .trans_b = i & 2, .add = i & 4, .m = M, .n = M, .k = K, .ldd = M};
    g.lda = g.trans_a ? K : M;
    g.ldb = g.trans_b ? M : K;
    g.ab = t;
    g.d = i & 1 ? KERNEL_F32 : t;
    GOOD(kernel_gemm(NULL, &g, a, b, d));
  }
  free(a), free(b), free(d);
}

static void rows(void) {
  enum { ROWS = 5, DIM = 300 };
  uint64_t *numbers = device(ROWS * sizeof *numbers);
  uint8_t *pixels = device(ROWS * DIM);
  struct kernel_rows k = {.rows = ROWS, .dim = DIM, .scale = 1, .numbers = numbers, .dst = floats(ROWS * DIM, 0)};
  GOOD(kernel_rows(NULL, &k));
  k.pixels = pixels;
  GOOD(kernel_rows(NULL, &k));
  free(numbers), free(pixels), free(k.dst);
}

static void loss(enum kernel_type t, enum compute_loss kind, size_t rows, size_t cols) {
  struct kernel_loss l = {.d = {.kind = kind, .rows = rows, .cols = cols, .weight = 1, .rank_tag = 1}, .type = t};
  l.y = values(t, rows * cols, 0.5f);
  l.dz = values(t, rows * cols, 0);
  l.target = floats(rows * cols, 1);
  l.out = floats(COMPUTE_LOSS_OUT, 0);
  l.blocked = device(sizeof *l.blocked);
  GOOD(kernel_loss(NULL, &l, scratch));
  scratch->arrived = 0; /* not all blocks of a big grid have run */
}

static void losses(enum kernel_type t) {
  loss(t, COMPUTE_MSE, 3, N / 3);
  loss(t, COMPUTE_RMSE, 3, N / 3);
  loss(t, COMPUTE_CROSS_ENTROPY, 3, 10);
  loss(t, COMPUTE_CROSS_ENTROPY, 2, 300);
  loss(t, COMPUTE_CROSS_ENTROPY, KERNEL_PARTIALS + 3, 10); /* two rows by one block */
}

static void update(enum kernel_type t) {
  struct kernel_control *control = device(sizeof *control);
  struct compute_opt_desc d = {.n = N, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  struct kernel_update u = {.n = N, .param = floats(N, 1), .low = values(t, N, 1), .type = t, .grad = floats(N, 0.5f)};
  struct kernel_decide k = {.d = d, .control = control, .grad = u.grad};
  k.blocked = device(sizeof *k.blocked);
  for (int i = 0; i < COMPUTE_STATES; i++) u.state[i] = floats(N, 0);
  GOOD(kernel_control_set(NULL, control, (struct compute_opt_counters){0}));
  for (int turn = 0; turn < 2; turn++) {
    GOOD(kernel_decide(NULL, &k, scratch));
    GOOD(kernel_update(NULL, control, &u));
    k.bad = floats(1, 0);
    k.counters = device(sizeof(struct compute_opt_counters));
  }
  if (control->v.updates != 2) exit(3);
}

static void checksum(void) {
  uint64_t *out = device(sizeof *out), first;
  float *x = floats(N, 0.5f);
  GOOD(kernel_checksum(NULL, x, N, out, scratch));
  first = *out;
  GOOD(kernel_checksum(NULL, x, N, out, scratch));
  if (*out != first || first == 0) exit(3);
  free(x), free(out);
}

static void small(void) {
  float *a = floats(100, 1), *b = floats(100, 2);
  uint64_t *counts = device(2 * sizeof *counts), *stamp = device(sizeof *stamp);
  struct trace *trace = device(sizeof *trace);
  struct kernel_copy_and_stamp c = {.dst = a, .src = b, .n = 100, .stamp = stamp};
  GOOD(kernel_copy_and_stamp(NULL, &c));
  GOOD(trace_begin(NULL, counts, trace, (struct trace_call){.kind = TRACE_SUM}));
  GOOD(trace_end(NULL, counts, trace));
  GOOD(kernel_check());
}

int main(int argc, char **argv) {
  bool skip = argc == 3 && strcmp(argv[1], "--skip-barrier") == 0;
  bool plant = argc == 2 && strcmp(argv[1], "--planted") == 0;
  if (argc != 1 && !skip && !plant) {
    fprintf(stderr, "usage: test_kernels_race [--skip-barrier FILE:LINE | --planted]\n");
    return 2;
  }
  race_start(skip ? argv[2] : NULL);
  scratch = device(sizeof *scratch);
  if (plant) GOOD(race_planted(floats(1, 0)));
  GOOD(race_twice(floats(2, 0)));
  small();
  for (int t = KERNEL_F32; t <= KERNEL_BF16; t++) {
    elementwise((enum kernel_type)t);
    sums((enum kernel_type)t);
    products((enum kernel_type)t);
    losses((enum kernel_type)t);
    update((enum kernel_type)t);
  }
  rows();
  checksum();
  race_print();
  return 0;
}
