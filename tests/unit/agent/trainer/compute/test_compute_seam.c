/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of compute.h, on any device.
 *
 *   test_compute_seam [--device cpu|cuda] [--cuda-module FILE] [--precision fp32|bf16] [--deterministic]
 *   [--seed N]
 *
 * The same checks run on the CPU's loops, on the stand-ins for the GPU's libraries and on a GPU. Each compares with a
 * reference that is written here in double and independent of the others. Inputs are random, from a seed that is
 * printed. Every output holds NaN before it is written, so "0 times what was there" shows. Every range lies between
 * guards that no operation may touch.
 *
 * The module is opened as the trainer opens it, but without its search: --cuda-module, or RDZV_CUDA_MODULE. Without one
 * the program exits with 77, "skipped". */

#include "tests/unit/agent/trainer/compute/seam.h"

#include "agent/trainer/gpu/gpu.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 5, WAIT_MS = 60000, SKIPPED = 77 };

#define GUARD_VALUE 7.0f /* the same in every precision */

struct seam seam;

void good(int rc, const struct err *e) {
  if (rc) fail_msg("%d: %s", rc, e->text);
}

void device_idle(void) {
  struct err e = ERR_INIT;
  struct compute_mark mark;
  good(compute_record(seam.c, &mark, &e), &e);
  good(compute_wait(seam.c, mark, WAIT_MS, &e), &e);
}

static uint64_t next_random(void) {
  uint64_t x = seam.seed += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

float random_unit(void) {
  return (float)(next_random() >> 40) * 0x1p-23f - 1.0f;
}

/* To the nearest, ties to even: `bits` of mantissa behind the point, `low` the exponent of the smallest normal number,
 * infinite from `over` on. */
static double round_to(double v, int bits, int low, double over) {
  if (v == 0 || !isfinite(v)) return v;
  int exp;
  frexp(v, &exp);
  int unit = (exp - 1 < low ? low : exp - 1) - bits;
  double r = ldexp(nearbyint(ldexp(v, -unit)), unit);
  return fabs(r) >= over ? copysign(HUGE_VAL, v) : r;
}

double rounded(double v) {
  if (seam.p == COMPUTE_BF16) return round_to(v, 7, -126, 0x1p128);
  return (double)(float)v;
}

/* Through floats on the device, which a copy converts. */
static void move(struct span device, float *v, bool to_device) {
  struct err e = ERR_INIT;
  struct compute_buf *stage, *floats;
  if (device.n == 0) return;
  good(compute_alloc(seam.c, COMPUTE_STAGE, device.n, &stage, &e), &e);
  good(compute_alloc(seam.c, COMPUTE_STATE, device.n, &floats, &e), &e);
  struct span s = {stage, 0, device.n}, f = {floats, 0, device.n};
  float *host = compute_host(seam.c, s);
  assert_non_null(host);
  if (to_device) memcpy(host, v, device.n * sizeof *v);
  good(to_device ? compute_copy(seam.c, f, s, &e) : compute_copy(seam.c, f, device, &e), &e);
  good(to_device ? compute_copy(seam.c, device, f, &e) : compute_copy(seam.c, s, f, &e), &e);
  device_idle();
  if (!to_device) memcpy(v, host, device.n * sizeof *v);
  compute_free(seam.c, stage);
  compute_free(seam.c, floats);
}

static void fill(struct span s, float value) {
  float *v = test_malloc((s.n + 1) * sizeof *v);
  for (size_t i = 0; i < s.n; i++) v[i] = value;
  move(s, v, true);
  test_free(v);
}

void field_make(struct field *f, enum compute_use use, size_t n, size_t at) {
  struct err e = ERR_INIT;
  *f = (struct field){.use = use, .v = calloc(n + 1, sizeof(float))};
  assert_non_null(f->v);
  good(compute_alloc(seam.c, use, at + n + GUARD, &f->buf, &e), &e);
  f->s = (struct span){f->buf, at, n};
  fill((struct span){f->buf, 0, at + n + GUARD}, GUARD_VALUE);
  field_fill_nan(f);
}

void field_fill_nan(struct field *f) {
  fill(f->s, NAN);
}

void field_drop(struct field *f) {
  compute_free(seam.c, f->buf);
  free(f->v);
}

void field_put(struct field *f) {
  if (f->use == COMPUTE_ACT)
    for (size_t i = 0; i < f->s.n; i++) f->v[i] = (float)rounded((double)f->v[i]);
  move(f->s, f->v, true);
}

static void check_guard(struct span s, const char *where) {
  float v[1024];
  for (size_t at = 0; at < s.n; at += 1024) {
    size_t n = s.n - at < 1024 ? s.n - at : 1024;
    move((struct span){s.buf, s.at + at, n}, v, false);
    for (size_t i = 0; i < n; i++)
      if (v[i] != GUARD_VALUE) fail_msg("%zu elements %s the range, %g was written", at + i, where, (double)v[i]);
  }
}

void field_get(struct field *f) {
  move(f->s, f->v, false);
  for (size_t i = 0; f->use == COMPUTE_ACT && i < f->s.n; i++)
    if (!isnan(f->v[i]) && (double)f->v[i] != rounded((double)f->v[i]))
      fail_msg("%a is stored, which has too many bits", (double)f->v[i]);
  check_guard((struct span){f->buf, 0, f->s.at}, "from the buffer's begin, before");
  check_guard((struct span){f->buf, f->s.at + f->s.n, GUARD}, "behind the end of");
}

void field_random(struct field *f, float scale) {
  for (size_t i = 0; i < f->s.n; i++) f->v[i] = scale * random_unit();
  field_put(f);
}

void expect_near(double got, double want, double rel, double abs, const char *what, size_t i) {
  if (got == want || (isnan(got) && isnan(want))) return;
  double bound = rel * fabs(want) + abs;
  if (fabs(got - want) <= bound) return;
  fail_msg("%s[%zu] is %.9g, not %.9g: off by %.3g, %.3g is allowed", what, i, got, want, fabs(got - want), bound);
}

void expect_sum(double got, double want, double mass, bool stored, const char *what, size_t i) {
  expect_near(got, want, stored ? seam.out : 0x1p-23, SEAM_SUM * mass + 1e-37, what, i);
}

static void open_device(const char *device, const char *module, bool deterministic) {
  struct err e = ERR_INIT;
  seam.same_bytes = deterministic || strcmp(device, "cpu") == 0;
  if (strcmp(device, "cpu") == 0) {
    seam.c = compute_cpu_create(seam.p);
    return;
  }
  if (!module) {
    puts("skipped: no --cuda-module and no RDZV_CUDA_MODULE");
    exit(SKIPPED);
  }
  void *so = dlopen(module, RTLD_NOW | RTLD_LOCAL);
  const struct gpu_module *gpu = so ? (const struct gpu_module *)dlsym(so, "rdzv_gpu") : NULL;
  if (!gpu || gpu->abi != GPU_ABI) {
    fprintf(stderr, "%s: %s\n", module, gpu ? "of another tree" : dlerror());
    exit(1);
  }
  struct gpu_config cfg = {.precision = seam.p, .deterministic = deterministic};
  if (gpu->compute_create(&cfg, &seam.c, &e)) {
    fprintf(stderr, "%s: %s\n", module, e.text);
    exit(1);
  }
}

static void set_precision(const char *name) {
  bool low = strcmp(name, "bf16") == 0;
  if (!low && strcmp(name, "fp32") != 0) {
    fprintf(stderr, "unknown precision %s\n", name);
    exit(2);
  }
  seam.p = low ? COMPUTE_BF16 : COMPUTE_FP32;
  seam.out = low ? 0x1p-8 : 0x1p-22;
}

int main(int argc, char **argv) {
  const char *device = "cpu", *precision = "fp32", *module = getenv("RDZV_CUDA_MODULE");
  bool deterministic = false;
  seam.seed = 1;
  for (int i = 1; i < argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(argv[i], "--deterministic") == 0) {
      deterministic = true;
      continue;
    }
    if (strcmp(argv[i], "--device") == 0)
      device = value;
    else if (strcmp(argv[i], "--cuda-module") == 0)
      module = value;
    else if (strcmp(argv[i], "--precision") == 0)
      precision = value;
    else if (strcmp(argv[i], "--seed") == 0)
      seam.seed = strtoull(value, NULL, 10);
    else {
      fprintf(stderr, "unknown option %s\n", argv[i]);
      return 2;
    }
    i++;
  }
  set_precision(precision);
  open_device(device, module, deterministic);
  printf("# %s, %s, seed %llu\n", seam.c->device, precision, (unsigned long long)seam.seed);
  int failed = unit_run(NULL, NULL);
  compute_destroy(seam.c);
  return failed ? 1 : 0;
}
