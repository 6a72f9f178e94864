/* SPDX-License-Identifier: Apache-2.0 */
/* The model on the CPU: the gradient of every loss against finite differences, and shares against
 * the whole. */

#include "agent/trainer/model/model.h"
#include "agent/trainer/rng.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

enum { ROWS = 6 };

static void good(int rc, const struct err *e) {
  if (rc) fail_msg("%s", e->text);
}

struct bench {
  struct compute *c;
  struct model m;
  struct model_shape shape;
  enum compute_loss loss;
};

static float value_at(uint64_t k) {
  return 2.0f * rng_unit(77, RNG_WEIGHTS, k) - 1.0f;
}

static void open_bench(struct bench *b, const char *layers, enum compute_loss loss) {
  struct err e = ERR_INIT;
  *b = (struct bench){.c = compute_cpu_create(1, COMPUTE_FP32), .loss = loss};
  good(model_shape_parse(layers, &b->shape, &e), &e);
  good(model_init(&b->m, b->c, &b->shape, ROWS, &e), &e);
  float *w = compute_host(b->c, model_params_span(&b->m));
  model_init_weights(&b->shape, 5, w);
  model_unpack(&b->shape, w);
}

static void close_bench(struct bench *b) {
  model_finish(&b->m);
  compute_destroy(b->c);
}

/* A copy without pads: n_params floats, for the caller to free. */
static float *packed(struct bench *b, struct span s) {
  float *copy = malloc(s.n * sizeof *copy);
  memcpy(copy, compute_host(b->c, s), s.n * sizeof *copy);
  model_pack(&b->shape, copy);
  return copy;
}

/* Rows [from, from + rows) of the same ROWS samples. */
static struct span load(struct bench *b, size_t from, size_t rows) {
  size_t in = b->shape.width[0], out = b->shape.width[b->shape.n - 1];
  bool classes = b->loss == COMPUTE_CROSS_ENTROPY;
  float *x = compute_host(b->c, span_of(b->m.act[0], 0, rows * in));
  struct span target = span_of(b->m.target, 0, classes ? rows : rows * out);
  float *t = compute_host(b->c, target);
  for (size_t i = 0; i < rows * in; i++) x[i] = value_at(from * in + i);
  for (size_t i = 0; i < target.n; i++)
    t[i] = classes ? (float)((from + i) * 5 % out) : value_at(10000 + from * out + i);
  return target;
}

/* Loss and gradients of these rows with this weight. */
static double pass(struct bench *b, size_t from, size_t rows, double weight) {
  struct err e = ERR_INIT;
  struct span target = load(b, from, rows);
  good(model_forward(&b->m, rows, &e), &e);
  struct compute_loss_desc d = {.kind = b->loss, .weight = weight};
  good(model_loss(&b->m, &d, target, rows, &e), &e);
  good(model_backward(&b->m, rows, 0, NULL, NULL, &e), &e);
  return (double)compute_host(b->c, model_extra_span(&b->m, MODEL_LOSS, 1))[0];
}

/* The loss in double, from scratch. Differences of float losses would drown in rounding, and steps that are large
 * enough for floats would cross the kink of a ReLU. */
static double loss_in_double(const struct bench *b, const double *w) {
  double total = 0;
  const struct model_shape *s = &b->shape;
  for (size_t r = 0; r < ROWS; r++) {
    double a[2][64] = {{0}};
    const float *x = compute_host(b->c, span_of(b->m.act[0], r * s->width[0], s->width[0]));
    for (uint32_t i = 0; i < s->width[0]; i++) a[0][i] = (double)x[i];
    size_t at = 0;
    for (uint32_t l = 0; l + 1 < s->n; l++) {
      uint32_t in = s->width[l], out = s->width[l + 1];
      if (in > 64 || out > 64) return (double)NAN; /* a[][] is no larger */
      for (uint32_t o = 0; o < out; o++) {
        double z = w[at + (size_t)in * out + o];
        for (uint32_t i = 0; i < in; i++) z += w[at + (size_t)o * in + i] * a[l % 2][i];
        a[(l + 1) % 2][o] = l + 2 < s->n && z < 0 ? 0 : z;
      }
      at += ((size_t)in + 1) * out;
    }
    const double *y = a[(s->n - 1) % 2];
    uint32_t cols = s->width[s->n - 1];
    const float *t = compute_host(b->c, span_of(b->m.target, 0, 1));
    if (b->loss == COMPUTE_CROSS_ENTROPY) {
      double sum = 0;
      for (uint32_t j = 0; j < cols; j++) sum += exp(y[j]);
      total += (log(sum) - y[(size_t)t[r]]) / ROWS;
    } else {
      for (uint32_t j = 0; j < cols; j++) total += pow(y[j] - (double)t[r * cols + j], 2) / (ROWS * cols);
    }
  }
  return b->loss == COMPUTE_RMSE ? sqrt(total) : total;
}

static void check_gradient(const char *layers, enum compute_loss loss) {
  struct bench b;
  open_bench(&b, layers, loss);
  double value = pass(&b, 0, ROWS, 1.0), worst = 0;
  const double h = 1e-6;
  float *p = packed(&b, model_params_span(&b.m)), *g = packed(&b, model_grads_span(&b.m));
  SCOPED(unit_free) double *w = calloc(b.m.n_params, sizeof *w);
  for (size_t i = 0; i < b.m.n_params; i++) w[i] = (double)p[i];
  assert_true(fabs(value - loss_in_double(&b, w)) < 1e-5 * value);
  for (size_t i = 0; i < b.m.n_params; i++) {
    double was = w[i];
    w[i] = was + h;
    double up = loss_in_double(&b, w);
    w[i] = was - h;
    double down = loss_in_double(&b, w);
    w[i] = was;
    double difference = fabs((up - down) / (2 * h) - (double)g[i]);
    if (difference > worst) worst = difference;
  }
  free(p);
  free(g);
  if (worst > 1e-6) fail_msg("%s: a gradient is off by %g", layers, worst);
  close_bench(&b);
}

UNIT_TEST(test_gradients_are_those_of_finite_differences) {
  static const char *const same[] = {"5,5", "7,3,7", "6,9,4,9,6"}, *const classes[] = {"5,4", "7,6,3", "6,5,8,5"};
  for (int i = 0; i < 3; i++) {
    check_gradient(same[i], COMPUTE_MSE);
    check_gradient(same[i], COMPUTE_RMSE);
    check_gradient(classes[i], COMPUTE_CROSS_ENTROPY);
  }
}

/* mse and cross-entropy: weighted shares add up to the whole. rmse: to the mean of the shares. */
UNIT_TEST(test_weighed_shares_add_up) {
  static const enum compute_loss losses[] = {COMPUTE_MSE, COMPUTE_CROSS_ENTROPY};
  for (int k = 0; k < 2; k++) {
    struct bench b;
    open_bench(&b, "7,6,3", losses[k]);
    double whole = pass(&b, 0, ROWS, 1.0), sum = 0;
    size_t n = b.m.n_params;
    struct span grads = model_grads_span(&b.m);
    float *want = packed(&b, grads), *have = calloc(n, sizeof *have);
    const size_t cuts[] = {0, 1, 5, 5, ROWS}; /* shares of 1, 4, 0 and 1 rows */
    for (int s = 0; s < 4; s++) {
      size_t rows = cuts[s + 1] - cuts[s];
      memset(compute_host(b.c, grads), 0x7f, grads.n * sizeof(float)); /* 0 rows must write zeros over this */
      sum += pass(&b, cuts[s], rows, (double)rows / ROWS);
      float *g = packed(&b, grads);
      for (size_t i = 0; i < n; i++) have[i] += g[i];
      free(g);
    }
    assert_true(fabs(sum - whole) < 1e-6 * whole);
    for (size_t i = 0; i < n; i++) assert_true(fabs((double)(have[i] - want[i])) < 1e-6);
    free(want);
    free(have);
    close_bench(&b);
  }
}

UNIT_TEST(test_rmse_of_what_is_right_already_has_no_gradient) {
  struct compute *c = compute_cpu_create(1, COMPUTE_FP32);
  struct err e = ERR_INIT;
  struct compute_buf *b;
  good(compute_alloc(c, COMPUTE_ACT, 24, &b, &e), &e);
  struct span y = span_of(b, 0, 6), t = span_of(b, 6, 6), dz = span_of(b, 12, 6), out = span_of(b, 18, 3);
  for (int i = 0; i < 6; i++) compute_host(c, y)[i] = compute_host(c, t)[i] = (float)i;
  good(compute_fill(c, dz, 9.0f, &e), &e);
  struct compute_loss_desc d = {.kind = COMPUTE_RMSE, .rows = 2, .cols = 3, .weight = 1};
  good(compute_loss(c, &d, y, t, dz, out, &e), &e);
  assert_true(compute_host(c, out)[0] == 0.0f);
  for (int i = 0; i < 6; i++) assert_true(compute_host(c, dz)[i] == 0.0f);
  compute_free(c, b);
  compute_destroy(c);
}

UNIT_TEST(test_cross_entropy_of_huge_outputs_is_finite) {
  struct compute *c = compute_cpu_create(1, COMPUTE_FP32);
  struct err e = ERR_INIT;
  struct compute_buf *b;
  good(compute_alloc(c, COMPUTE_ACT, 16, &b, &e), &e);
  float *p = compute_host(c, span_of(b, 0, 16));
  p[0] = 1e30f;
  p[1] = -1e30f;
  p[2] = 500.0f;
  p[3] = 1.0f; /* the class */
  struct compute_loss_desc d = {.kind = COMPUTE_CROSS_ENTROPY, .rows = 1, .cols = 3, .weight = 1};
  good(compute_loss(c, &d, span_of(b, 0, 3), span_of(b, 3, 1), span_of(b, 4, 3), span_of(b, 8, 3), &e), &e);
  assert_true(fabs((double)p[8] / 2e30 - 1) < 1e-6);
  assert_true(p[4] == 1.0f && p[5] == -1.0f && p[6] == 0.0f);
  compute_free(c, b);
  compute_destroy(c);
}

struct order {
  struct bench *b;
  size_t at[8];
  bool input_done[8]; /* the input gradient of the layer that became ready was written before */
  int n, enough;
};

static int note_ready(void *ctx, size_t at, struct err *e) {
  struct order *o = ctx;
  int below = (int)o->b->shape.n - 2 - o->n;
  o->at[o->n] = at;
  o->input_done[o->n] = below > 0 && !isnan(*compute_host(o->b->c, span_of(o->b->m.delta[below], 0, 1)));
  return ++o->n == o->enough ? err_set(e, -ECANCELED, "enough") : 0;
}

/* So that the sum over the ranks starts as early as it can: before the input gradient of the same layer. */
UNIT_TEST(test_gradients_become_ready_from_the_end) {
  struct bench b;
  struct err e = ERR_INIT;
  struct order o = {.b = &b, .enough = 3};
  open_bench(&b, "4,3,2,5", COMPUTE_MSE);
  struct span target = load(&b, 0, 2);
  good(model_forward(&b.m, 2, &e), &e);
  struct compute_loss_desc d = {.kind = COMPUTE_MSE, .weight = 1};
  good(model_loss(&b.m, &d, target, 2, &e), &e);
  for (int i = 1; i < 3; i++) *compute_host(b.c, span_of(b.m.delta[i], 0, 1)) = NAN;
  assert_int_equal(model_backward(&b.m, 2, 0, note_ready, &o, &e), -ECANCELED);
  assert_int_equal(o.n, 3);
  assert_int_equal(o.at[0], 4 * MODEL_ALIGN); /* each of these tensors fits in one */
  assert_int_equal(o.at[1], 2 * MODEL_ALIGN);
  assert_int_equal(o.at[2], 0);
  for (int i = 0; i < 3; i++) assert_false(o.input_done[i]);
  close_bench(&b);
}

UNIT_TEST(test_tensors_are_aligned_in_memory_and_packed_in_files) {
  struct model_shape s;
  struct err e = ERR_INIT;
  struct model_tensor v[MODEL_TENSORS_MAX];
  size_t flat = 0, next = 0, end = 0;
  good(model_shape_parse("7,33,32,5", &s, &e), &e);
  assert_int_equal(model_shape_tensors(&s, v, &flat), 6);
  for (int i = 0; i < 6; i++) {
    assert_int_equal(v[i].at % MODEL_ALIGN, 0);
    assert_true(v[i].at >= end && v[i].at < end + MODEL_ALIGN);
    assert_int_equal(v[i].packed, next);
    next += v[i].n;
    end = v[i].at + v[i].n;
  }
  assert_int_equal(next, model_shape_params(&s));
  assert_int_equal(flat, (end + MODEL_ALIGN - 1) / MODEL_ALIGN * MODEL_ALIGN);

  SCOPED(unit_free) float *floats = malloc(flat * sizeof *floats);
  memset(floats, 0x7f, flat * sizeof *floats);
  for (size_t i = 0; i < next; i++) floats[i] = (float)(i + 1);
  model_unpack(&s, floats);
  for (int i = 0; i < 6; i++) {
    size_t until = i < 5 ? v[i + 1].at : flat;
    for (size_t k = v[i].at; k < until; k++)
      assert_true(floats[k] == (k < v[i].at + v[i].n ? (float)(v[i].packed + k - v[i].at + 1) : 0));
  }
  model_pack(&s, floats);
  for (size_t i = 0; i < next; i++) assert_true(floats[i] == (float)(i + 1));
}

/* Whatever an update multiplies, the pads are zero. */
UNIT_TEST(test_pads_stay_zero) {
  struct bench b;
  struct err e = ERR_INIT;
  struct compute_opt *o;
  struct model_tensor v[MODEL_TENSORS_MAX];
  open_bench(&b, "7,6,3", COMPUTE_MSE);
  struct compute_opt_desc d = {.n = b.m.n_flat, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-30};
  good(compute_opt_create(b.c, &d, &o, &e), &e);
  for (int step = 0; step < 3; step++) {
    pass(&b, 0, ROWS, 1.0);
    struct compute_update u = {.param = model_params_span(&b.m), .grad = model_grads_span(&b.m)};
    good(compute_opt_step(b.c, o, &u, &e), &e);
  }
  struct compute_buf *all[] = {b.m.params, b.m.grads, compute_opt_state(b.c, o, 0), compute_opt_state(b.c, o, 1)};
  int n = model_shape_tensors(&b.shape, v, NULL);
  for (size_t a = 0; a < sizeof all / sizeof *all; a++) {
    const float *p = compute_host(b.c, span_of(all[a], 0, b.m.n_flat));
    for (int i = 0; i < n; i++) {
      size_t until = i + 1 < n ? v[i + 1].at : b.m.n_flat;
      for (size_t at = v[i].at + v[i].n; at < until; at++) assert_true(p[at] == 0);
      if (a == 0) assert_true(p[v[i].at] != 0);
    }
  }
  compute_opt_destroy(b.c, o);
  close_bench(&b);
}

/* A first layer of 2 * 300 gradients: in parts of whole blocks of 128 rows, and no more parts than asked for. */
UNIT_TEST(test_a_large_first_layer_becomes_ready_in_parts) {
  static const struct {
    size_t part;
    int n;
    size_t at[3];
  } want[] = {{0, 1, {0}}, {301, 1, {0}}, {300, 2, {256 * 2, 0}}, {1, 3, {256 * 2, 128 * 2, 0}}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    struct bench b;
    struct err e = ERR_INIT;
    struct order o = {.b = &b, .enough = 8};
    open_bench(&b, "2,300,7", COMPUTE_MSE);
    pass(&b, 0, ROWS, 1.0);
    struct model_tensor v[MODEL_TENSORS_MAX];
    int n = model_shape_tensors(&b.shape, v, NULL);
    size_t bytes = b.m.n_flat * sizeof(float);
    float *g = compute_host(b.c, model_grads_span(&b.m)), *whole = malloc(bytes);
    memcpy(whole, g, bytes);
    for (size_t k = 0; k < b.m.n_flat; k++) g[k] = NAN;
    good(model_backward(&b.m, ROWS, want[i].part, note_ready, &o, &e), &e);
    assert_int_equal(o.n, 1 + want[i].n);
    assert_int_equal(o.at[0], v[2].at);
    for (int k = 0; k < want[i].n; k++) assert_int_equal(o.at[k + 1], want[i].at[k]);
    for (int t = 0; t < n; t++)
      for (size_t k = v[t].at; k < v[t].at + v[t].n; k++) assert_true(fabs((double)(g[k] - whole[k])) < 1e-6);
    free(whole);
    close_bench(&b);
  }
}

UNIT_TEST(test_widths) {
  struct model_shape s;
  struct err e = ERR_INIT;
  char text[64];
  good(model_shape_parse("784,128,784", &s, &e), &e);
  assert_int_equal(model_shape_params(&s), 784 * 128 + 128 + 128 * 784 + 784);
  model_shape_format(&s, '-', text, sizeof text);
  assert_string_equal(text, "784-128-784");
  static const char *const wrong[] = {"",
                                      "5",
                                      "5,",
                                      "5,,5",
                                      ",5",
                                      "5,0,5",
                                      "5;5",
                                      "5,-1",
                                      "5, 5",
                                      "5,1048577",
                                      "0x5,5",
                                      "5,5x",
                                      "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
                                      "1048576,1048576",
                                      "99999999999999999999,1"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    e.text[0] = 0;
    if (model_shape_parse(wrong[i], &s, &e) != -EINVAL || !e.text[0]) fail_msg("'%s' is taken", wrong[i]);
  }
  model_shape_format(&s, ',', text, 4);
  assert_true(strlen(text) < 4);
}
