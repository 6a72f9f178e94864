/* SPDX-License-Identifier: Apache-2.0 */
/* round_bf16 against the numbers of each format, and the precisions of compute/cpu.c: everything that a device would
 * store in 16 bits is a number of 16 bits here, and sums are not. */

#include "agent/trainer/compute/compute.h"
#include "agent/trainer/compute/loops.h"
#include "agent/trainer/model/model.h"
#include "agent/trainer/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static float float_of_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

enum { ROWS = 5 };

static void good(int rc, const struct err *e) {
  if (rc) fail_msg("%s", e->text);
}

/* The value of 16 bits; sizes only, and one beyond the largest, as if the exponent had room for it: ties at the end go
 * there. */
static double bf16_value(unsigned k) {
  return k >> 7 ? ldexp(128 + (k & 127), (int)(k >> 7) - 134) : ldexp(k & 127, -133);
}

/* x lies between number k and number k + 1: to the nearer, at the same distance to the even one. */
static void check_between(unsigned k, unsigned infinity, float x, double (*value)(unsigned), float (*rounded)(float)) {
  double down = value(k), up = value(k + 1), d = (double)x - down, u = up - (double)x;
  unsigned want = d < u || (!(u < d) && k % 2 == 0) ? k : k + 1;
  float is = want >= infinity ? INFINITY : (float)value(want);
  if (rounded(x) != is || rounded(-x) != -is)
    fail_msg("%a becomes %a, not %a", (double)x, (double)rounded(x), (double)is);
}

static void check_all(unsigned infinity, double (*value)(unsigned), float (*rounded)(float)) {
  for (unsigned k = 0; k < infinity; k++) {
    double down = value(k), up = value(k + 1), half = (down + up) / 2;
    if (up < 0x1p-120) continue; /* floats that are denormal are flushed to zero in a trainer */
    check_between(k, infinity, (float)down, value, rounded);
    check_between(k, infinity, (float)half, value, rounded);
    if ((double)nextafterf((float)half, 0) >= down)
      check_between(k, infinity, nextafterf((float)half, 0), value, rounded);
    if ((double)nextafterf((float)half, INFINITY) <= up)
      check_between(k, infinity, nextafterf((float)half, INFINITY), value, rounded);
  }
  assert_true(rounded(INFINITY) == INFINITY && rounded(-INFINITY) == -INFINITY);
  assert_true(isnan(rounded(NAN)) && isnan(rounded(float_of_bits(0x7f800001u))) &&
              isnan(rounded(float_of_bits(0xffffffffu))));
  assert_true(rounded(-0.0f) == 0 && signbit(rounded(-0.0f)));
}

UNIT_TEST(test_bf16_is_the_nearest) {
  check_all(0x7f80, bf16_value, round_bf16);
  assert_true(round_bf16(3.4028234e38f) == INFINITY && round_bf16(3.38e38f) < INFINITY);
}

static float same(float x) {
  return x;
}

typedef float (*round_fn)(float);

struct bench {
  struct compute *c;
  struct model m;
  struct span target;
  round_fn rounded;
};

static void open_bench(struct bench *b, enum compute_precision p) {
  static const round_fn fns[] = {same, round_bf16};
  struct model_shape shape;
  struct err e = ERR_INIT;
  *b = (struct bench){.c = compute_cpu_create(1, p), .rounded = fns[p]};
  good(model_shape_parse("9,8,7,6", &shape, &e), &e);
  good(model_init(&b->m, b->c, &shape, ROWS, &e), &e);
  model_init_weights(&shape, 5, compute_host(b->c, model_params_span(&b->m)));
  model_unpack(&shape, compute_host(b->c, model_params_span(&b->m)));
  b->target = span_of(b->m.target, 0, ROWS * 6);
  float *x = compute_host(b->c, span_of(b->m.act[0], 0, ROWS * 9)), *t = compute_host(b->c, b->target);
  for (size_t i = 0; i < ROWS * 9; i++) x[i] = 3.0f * rng_unit(1, RNG_WEIGHTS, i);
  for (size_t i = 0; i < ROWS * 6; i++) t[i] = rng_unit(2, RNG_WEIGHTS, i);
}

static void close_bench(struct bench *b) {
  model_finish(&b->m);
  compute_destroy(b->c);
}

static void pass(struct bench *b) {
  struct err e = ERR_INIT;
  struct compute_loss_desc d = {.kind = COMPUTE_MSE, .weight = 1};
  good(model_forward(&b->m, ROWS, &e), &e);
  good(model_loss(&b->m, &d, b->target, ROWS, &e), &e);
  good(model_backward(&b->m, ROWS, 0, NULL, NULL, &e), &e);
}

static float *of(struct bench *b, struct compute_buf *buf, size_t n) {
  return compute_host(b->c, span_of(buf, 0, n));
}

/* Layer i's output from its input, in double, with the operands rounded as the product reads them, and rounded once at
 * the end. A float may round a sum differently than a double, so one step of the format is allowed. */
static void check_forward(struct bench *b, uint32_t i, const struct model_tensor v[2]) {
  uint32_t in = b->m.shape.width[i], out = b->m.shape.width[i + 1];
  const float *x = of(b, b->m.act[i], ROWS * in), *y = of(b, b->m.act[i + 1], ROWS * out),
              *w = of(b, b->m.params, b->m.n_flat) + v[0].at, *bias = of(b, b->m.params, b->m.n_flat) + v[1].at;
  double step = b->rounded == round_bf16 ? 0x1p-7 : 0x1p-20;
  for (size_t r = 0; r < ROWS; r++)
    for (size_t o = 0; o < out; o++) {
      double z = (double)b->rounded(bias[o]);
      for (size_t k = 0; k < in; k++) z += (double)b->rounded(w[o * in + k]) * (double)b->rounded(x[r * in + k]);
      if (i + 2 < b->m.shape.n && z < 0) z = 0;
      double have = (double)y[r * out + o], want = (double)b->rounded((float)z);
      if (fabs(have - want) > step * fabs(want) + 1e-6) fail_msg("layer %u: %g is %g", i, want, have);
    }
}

static void check_stored(struct bench *b, struct compute_buf *buf, size_t n) {
  const float *p = of(b, buf, n);
  for (size_t i = 0; i < n; i++)
    if (p[i] != b->rounded(p[i])) fail_msg("%a is stored, which has too many bits", (double)p[i]);
}

/* The gradient of the weight: a sum in float of products of stored values. The operands are exact, and only floats
 * round. */
static void check_gradient(struct bench *b, uint32_t i, const struct model_tensor v[2]) {
  uint32_t in = b->m.shape.width[i], out = b->m.shape.width[i + 1];
  const float *x = of(b, b->m.act[i], ROWS * in), *dz = of(b, b->m.delta[i + 1], ROWS * out);
  const float *g = of(b, b->m.grads, b->m.n_flat) + v[0].at, *bias = of(b, b->m.grads, b->m.n_flat) + v[1].at;
  bool wide = false;
  for (size_t o = 0; o < out; o++)
    for (size_t k = 0; k <= in; k++) { /* [in]: the bias */
      double sum = 0;
      for (size_t r = 0; r < ROWS; r++)
        sum += (double)dz[r * out + o] * (k < in ? (double)b->rounded(x[r * in + k]) : 1.0);
      float have = k < in ? g[o * in + k] : bias[o];
      if (fabs((double)have - sum) > 1e-6 * fabs(sum) + 1e-7)
        fail_msg("layer %u: a gradient is %g, not %g", i, (double)have, sum);
      wide |= have != b->rounded(have);
    }
  assert_true(wide || b->rounded == same); /* gradients of weights are floats */
}

static void check_products(enum compute_precision p) {
  struct bench b;
  open_bench(&b, p);
  pass(&b);
  struct model_tensor v[MODEL_TENSORS_MAX];
  model_shape_tensors(&b.m.shape, v, NULL);
  for (uint32_t i = 0; i + 1 < b.m.shape.n; i++) {
    uint32_t out = b.m.shape.width[i + 1];
    check_forward(&b, i, v + 2 * (size_t)i);
    check_gradient(&b, i, v + 2 * (size_t)i);
    check_stored(&b, b.m.act[i + 1], ROWS * out);
    check_stored(&b, b.m.delta[i + 1], ROWS * out);
  }
  close_bench(&b);
}

UNIT_TEST(test_products_read_and_write_the_precision) {
  for (int p = COMPUTE_FP32; p <= COMPUTE_BF16; p++) check_products((enum compute_precision)p);
}

/* dx of the last layer: the rounded weights again, and the derivative of the layer below. */
static void check_gradients_of_activations(enum compute_precision p) {
  struct bench b;
  open_bench(&b, p);
  pass(&b);
  const float *dz = of(&b, b.m.delta[3], ROWS * 6), *dx = of(&b, b.m.delta[2], ROWS * 7),
              *x = of(&b, b.m.act[2], ROWS * 7);
  struct model_tensor v[MODEL_TENSORS_MAX];
  model_shape_tensors(&b.m.shape, v, NULL);
  const float *w = of(&b, b.m.params, b.m.n_flat) + v[4].at;
  double step = p == COMPUTE_BF16 ? 0x1p-7 : 0x1p-20;
  for (size_t r = 0; r < ROWS; r++)
    for (size_t k = 0; k < 7; k++) {
      double sum = 0;
      for (size_t o = 0; o < 6; o++) sum += (double)dz[r * 6 + o] * (double)b.rounded(w[o * 7 + k]);
      if (!(x[r * 7 + k] > 0)) sum = 0;
      assert_true(fabs((double)dx[r * 7 + k] - sum) <= step * fabs(sum) + 1e-7);
    }
  close_bench(&b);
}

UNIT_TEST(test_gradients_of_activations) {
  for (int p = COMPUTE_FP32; p <= COMPUTE_BF16; p++) check_gradients_of_activations((enum compute_precision)p);
}

UNIT_TEST(test_copies_and_fills_of_activations_round) {
  struct compute *c = compute_cpu_create(1, COMPUTE_BF16);
  struct err e = ERR_INIT;
  struct compute_buf *act, *stage;
  good(compute_alloc(c, COMPUTE_ACT, 2, &act, &e), &e);
  good(compute_alloc(c, COMPUTE_STAGE, 1, &stage, &e), &e);
  compute_host(c, span_of(stage, 0, 1))[0] = 1.001f;
  good(compute_copy(c, span_of(act, 0, 1), span_of(stage, 0, 1), &e), &e);
  good(compute_fill(c, span_of(act, 1, 1), 1.01f, &e), &e);
  assert_true(compute_host(c, span_of(act, 0, 2))[0] == 1.0f && compute_host(c, span_of(act, 0, 2))[1] == 1.0078125f);
  compute_free(c, act);
  compute_free(c, stage);
  compute_destroy(c);
}
