/* SPDX-License-Identifier: Apache-2.0 */
/* The model on the CPU: shares against the whole, the layout of the weights, and the order of a backward pass. What a
 * pass computes is compared with double in test_compute_seam. */

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
  *b = (struct bench){.c = compute_cpu_create(COMPUTE_FP32), .loss = loss};
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
