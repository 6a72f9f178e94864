/* model, compute_cpu, optim: every loss's gradient against finite differences, shares against the whole,
 * updates against their formulas. */

#include "agent/trainer/model.h"
#include "agent/trainer/optim.h"
#include "agent/trainer/rng.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/unit.h"

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
}

static void close_bench(struct bench *b) {
  model_finish(&b->m);
  compute_destroy(b->c);
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

/* Loss and gradients of these rows with this weight, as the extras and the gradient buffer have them. */
static double pass(struct bench *b, size_t from, size_t rows, double weight) {
  struct err e = ERR_INIT;
  struct span target = load(b, from, rows);
  good(model_forward(&b->m, rows, &e), &e);
  struct compute_loss_desc d = {.kind = b->loss, .weight = weight};
  good(model_loss(&b->m, &d, target, rows, &e), &e);
  good(model_backward(&b->m, rows, false, NULL, NULL, &e), &e);
  return (double)compute_host(b->c, model_extra_span(&b->m, MODEL_LOSS, 1))[0];
}

/* The loss in double, from scratch: the differences of float losses would drown in rounding, and steps
 * that are large enough for floats would cross the kink of a ReLU. */
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
  float *p = compute_host(b.c, model_params_span(&b.m)), *g = compute_host(b.c, model_grads_span(&b.m));
  double *w = calloc(b.m.n_params, sizeof *w);
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
  free(w);
  if (worst > 1e-6) fail_msg("%s: a gradient is off by %g", layers, worst);
  close_bench(&b);
}

static void test_gradients_are_those_of_finite_differences(void **state) {
  static const char *const same[] = {"5,5", "7,3,7", "6,9,4,9,6"}, *const classes[] = {"5,4", "7,6,3",
                                                                                       "6,5,8,5"};
  for (int i = 0; i < 3; i++) {
    check_gradient(same[i], COMPUTE_MSE);
    check_gradient(same[i], COMPUTE_RMSE);
    check_gradient(classes[i], COMPUTE_CROSS_ENTROPY);
  }
}

/* mse and cross-entropy: weighed shares add up to the whole. rmse: to the mean of the shares' own. */
static void test_weighed_shares_add_up(void **state) {
  static const enum compute_loss losses[] = {COMPUTE_MSE, COMPUTE_CROSS_ENTROPY};
  for (int k = 0; k < 2; k++) {
    struct bench b;
    open_bench(&b, "7,6,3", losses[k]);
    double whole = pass(&b, 0, ROWS, 1.0), sum = 0;
    size_t n = b.m.n_params;
    float *g = compute_host(b.c, model_grads_span(&b.m));
    float *want = malloc(n * sizeof *want), *have = calloc(n, sizeof *have);
    memcpy(want, g, n * sizeof *want);
    const size_t cuts[] = {0, 1, 5, 5, ROWS}; /* shares of 1, 4, 0 and 1 rows */
    for (int s = 0; s < 4; s++) {
      size_t rows = cuts[s + 1] - cuts[s];
      memset(g, 0x7f, n * sizeof *g); /* poison: 0 rows must write zeros */
      sum += pass(&b, cuts[s], rows, (double)rows / ROWS);
      for (size_t i = 0; i < n; i++) have[i] += g[i];
    }
    assert_true(fabs(sum - whole) < 1e-6 * whole);
    for (size_t i = 0; i < n; i++) assert_true(fabs((double)(have[i] - want[i])) < 1e-6);
    free(want);
    free(have);
    close_bench(&b);
  }
}

static void test_rmse_of_what_is_right_already_has_no_gradient(void **state) {
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

static void test_cross_entropy_of_huge_outputs_is_finite(void **state) {
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

static void run_optimizer(const struct optim_hyper *h, int steps, float *w) {
  struct compute *c = compute_cpu_create(1, COMPUTE_FP32);
  struct err e = ERR_INIT;
  struct compute_buf *p, *g;
  struct compute_opt *o;
  struct compute_opt_desc d = optim_desc(h, 3, false);
  struct compute_opt_counters counters;
  good(compute_alloc(c, COMPUTE_PARAM, 3, &p, &e), &e);
  good(compute_alloc(c, COMPUTE_GRAD, 20, &g, &e), &e);
  good(compute_opt_create(c, &d, &o, &e), &e);
  memcpy(compute_host(c, span_of(p, 0, 3)), w, 3 * sizeof *w);
  for (int s = 0; s < steps; s++) {
    for (int i = 0; i < 3; i++) compute_host(c, span_of(g, 0, 3))[i] = value_at((uint64_t)(s * 3 + i));
    compute_host(c, span_of(g, 3, 1))[0] = (float)optim_lr(h, (uint64_t)s);
    good(compute_opt_step(c, o, span_of(p, 0, 3), span_of(g, 0, 3), span_of(g, 3, 1), &e), &e);
  }
  good(compute_opt_read(c, o, span_of(g, 4, COMPUTE_COUNTERS), &e), &e);
  memcpy(&counters, compute_host(c, span_of(g, 4, COMPUTE_COUNTERS)), sizeof counters);
  assert_int_equal(counters.updates, steps);
  memcpy(w, compute_host(c, span_of(p, 0, 3)), 3 * sizeof *w);
  compute_opt_destroy(c, o);
  compute_free(c, p);
  compute_free(c, g);
  compute_destroy(c);
}

static void test_updates_are_their_formulas(void **state) {
  struct optim_hyper sgd = {.kind = COMPUTE_SGD, .lr = 0.1, .momentum = 0.9};
  struct optim_hyper adam = {.kind = COMPUTE_ADAM, .lr = 0.1, .beta1 = 0.5, .beta2 = 0.99, .eps = 1e-8};
  float ws[3] = {1, 2, 3}, wa[3] = {1, 2, 3};
  run_optimizer(&sgd, 7, ws);
  run_optimizer(&adam, 7, wa);
  for (int i = 0; i < 3; i++) {
    double s = i + 1, a = i + 1, buf = 0, m = 0, v = 0;
    for (int k = 1; k <= 7; k++) {
      double g = (double)value_at((uint64_t)((k - 1) * 3 + i));
      buf = 0.9 * buf + g;
      s -= 0.1 * buf;
      m = 0.5 * m + 0.5 * g;
      v = 0.99 * v + 0.01 * g * g;
      a -= 0.1 * (m / (1 - pow(0.5, k))) / (sqrt(v / (1 - pow(0.99, k))) + 1e-8);
    }
    assert_true(fabs((double)ws[i] - s) < 1e-5);
    assert_true(fabs((double)wa[i] - a) < 1e-5);
  }
}

/* One step with these gradients; what was counted. */
static struct compute_opt_counters step_with(const struct compute_opt_desc *d, const float *grad, float *w) {
  struct compute *c = compute_cpu_create(1, COMPUTE_FP32);
  struct err e = ERR_INIT;
  struct compute_buf *b;
  struct compute_opt *o;
  struct compute_opt_counters counters;
  good(compute_alloc(c, COMPUTE_GRAD, 64, &b, &e), &e);
  good(compute_opt_create(c, d, &o, &e), &e);
  float *p = compute_host(c, span_of(b, 0, 64));
  memcpy(p, w, d->n * sizeof *w);
  memcpy(p + 16, grad, d->n * sizeof *w);
  p[32] = 0.5f; /* lr */
  good(compute_opt_step(c, o, span_of(b, 0, d->n), span_of(b, 16, d->n), span_of(b, 32, 1), &e), &e);
  good(compute_opt_read(c, o, span_of(b, 40, COMPUTE_COUNTERS), &e), &e);
  memcpy(&counters, p + 40, sizeof counters);
  memcpy(w, p, d->n * sizeof *w);
  compute_opt_destroy(c, o);
  compute_free(c, b);
  compute_destroy(c);
  return counters;
}

static void test_norm_of_gradients(void **state) {
  float grad[11], w[11] = {0};
  for (int i = 0; i < 11; i++) grad[i] = (float)i;
  for (size_t n = 1; n <= 11; n++) {
    double want = 0;
    for (size_t i = 0; i < n; i++) want += (double)(i * i);
    struct compute_opt_desc d = {.kind = COMPUTE_SGD, .n = n};
    assert_true(fabs((double)step_with(&d, grad, w).grad_norm - sqrt(want)) < 1e-5);
  }
}

static void test_gradients_that_are_too_long_are_clipped(void **state) {
  float grad[2] = {30, 40}, w[2] = {0, 0};
  struct compute_opt_desc d = {.kind = COMPUTE_SGD, .n = 2, .clip_norm = 5};
  assert_true(step_with(&d, grad, w).grad_norm == 50.0f);
  assert_true(fabs((double)w[0] + 1.5) < 1e-5 && fabs((double)w[1] + 2.0) < 1e-5);
}

static void test_a_step_that_is_not_finite_is_skipped(void **state) {
  float grad[2] = {INFINITY, 1}, w[2] = {7, 8};
  struct compute_opt_desc d = {.kind = COMPUTE_ADAM, .n = 2, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8};
  struct compute_opt_counters v = step_with(&d, grad, w);
  assert_true(w[0] == 7 && w[1] == 8);
  assert_true(v.updates == 0 && v.skipped == 1 && v.skipped_in_row == 1 && v.scale == 1);
  d.scale_loss = true;
  assert_true(step_with(&d, grad, w).scale == 32768);
}

struct order {
  size_t at[8];
  int n;
};

static int note_ready(void *ctx, size_t at, struct err *e) {
  struct order *o = ctx;
  o->at[o->n++] = at;
  return o->n == 3 ? err_set(e, -ECANCELED, "enough") : 0;
}

static void test_gradients_become_ready_from_the_end(void **state) {
  struct bench b;
  struct err e = ERR_INIT;
  struct order o = {.n = 0};
  open_bench(&b, "4,3,2,5", COMPUTE_MSE);
  struct span target = load(&b, 0, 2);
  good(model_forward(&b.m, 2, &e), &e);
  struct compute_loss_desc d = {.kind = COMPUTE_MSE, .weight = 1};
  good(model_loss(&b.m, &d, target, 2, &e), &e);
  assert_int_equal(model_backward(&b.m, 2, false, note_ready, &o, &e), -ECANCELED);
  assert_int_equal(o.n, 3);
  assert_int_equal(o.at[0], 5 * 3 + 4 * 2);
  assert_int_equal(o.at[1], 5 * 3);
  assert_int_equal(o.at[2], 0);
  close_bench(&b);
}

static void test_widths(void **state) {
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gradients_are_those_of_finite_differences),
      cmocka_unit_test(test_weighed_shares_add_up),
      cmocka_unit_test(test_rmse_of_what_is_right_already_has_no_gradient),
      cmocka_unit_test(test_cross_entropy_of_huge_outputs_is_finite),
      cmocka_unit_test(test_updates_are_their_formulas),
      cmocka_unit_test(test_norm_of_gradients),
      cmocka_unit_test(test_gradients_that_are_too_long_are_clipped),
      cmocka_unit_test(test_a_step_that_is_not_finite_is_skipped),
      cmocka_unit_test(test_gradients_become_ready_from_the_end),
      cmocka_unit_test(test_widths),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
