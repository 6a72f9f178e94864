/* SPDX-License-Identifier: Apache-2.0 */
/* Whole steps of training: the model's passes, a loss and an optimizer. Ten steps of some models are compared with
 * double, where every activation is rounded as the device stores it. If a device can capture, three launches of one
 * captured step, with changing inputs, equal three steps queued one by one.
 *
 * Allowed difference of the losses, relative to the first: 1e-4 in fp32. In lower precisions a sum that falls on the
 * other side of a rounding step moves an activation by a whole step, so 2^-8. */

#include "agent/trainer/model/model.h"
#include "tests/unit/agent/trainer/compute/seam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 10, ROWS = 24, WIDTHS = 8 };

struct job {
  const char *widths;
  enum compute_loss loss;
  struct compute_opt_desc opt;
};

#define ADAM                                                                                                           \
  { .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 }

static const struct job jobs[] = {
    {"30,10,30", COMPUTE_RMSE, {.lr = 1e-3, .beta1 = 0, .beta2 = 0.99, .eps = 1e-8}},
    {"20,16,9,5", COMPUTE_CROSS_ENTROPY, ADAM},
    {"13,24,24,13", COMPUTE_MSE, ADAM},
};

/* A run on the device. */
struct run {
  const struct job *job;
  struct model m;
  struct compute_opt *opt;
  struct compute_buf *stage; /* x, target, weights, loss */
  size_t n_x, n_t;
  struct span target;
};

static float input_at(size_t step, size_t i) {
  uint32_t h = (uint32_t)(step * 7919 + i + 1) * 2654435761u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  return (float)(h >> 8) * 0x1p-23f - 1.0f;
}

static float target_at(const struct run *r, size_t step, size_t i) {
  if (r->job->loss != COMPUTE_CROSS_ENTROPY) return input_at(step, i);
  size_t class = 0; /* something that can be learned: which of the first inputs is the greatest */
  for (size_t k = 1; k < 5; k++)
    if (input_at(step, i * 20 + k) > input_at(step, i * 20 + class)) class = k;
  return (float)class;
}

static void run_open(struct run *r, const struct job *job) {
  struct err e = ERR_INIT;
  struct model_shape shape;
  *r = (struct run){.job = job};
  good(model_shape_parse(job->widths, &shape, &e), &e);
  good(model_init(&r->m, seam.c, &shape, ROWS, &e), &e);
  struct compute_opt_desc d = job->opt;
  d.n = r->m.n_flat;
  good(compute_opt_create(seam.c, &d, &r->opt, &e), &e);
  r->n_x = (size_t)ROWS * shape.width[0];
  r->n_t = job->loss == COMPUTE_CROSS_ENTROPY ? ROWS : r->n_x;
  r->target = span_of(r->m.target, 0, r->n_t);
  good(compute_alloc(seam.c, COMPUTE_STAGE, r->n_x + r->n_t + r->m.n_flat + MODEL_EXTRAS, &r->stage, &e), &e);
  struct span w = span_of(r->stage, r->n_x + r->n_t, r->m.n_flat);
  model_init_weights(&shape, 3, compute_host(seam.c, w));
  model_unpack(&shape, compute_host(seam.c, w));
  good(compute_copy(seam.c, model_params_span(&r->m), w, &e), &e);
  device_idle();
}

static void run_close(struct run *r) {
  compute_opt_destroy(seam.c, r->opt);
  compute_free(seam.c, r->stage);
  model_finish(&r->m);
}

static void fill_stage(struct run *r, size_t step) {
  float *x = compute_host(seam.c, span_of(r->stage, 0, 1));
  for (size_t i = 0; i < r->n_x; i++) x[i] = input_at(step, i);
  for (size_t i = 0; i < r->n_t; i++) x[r->n_x + i] = target_at(r, step, i);
}

static void queue_step(struct run *r) {
  struct err e = ERR_INIT;
  good(compute_copy(seam.c, span_of(r->m.act[0], 0, r->n_x), span_of(r->stage, 0, r->n_x), &e), &e);
  good(compute_copy(seam.c, r->target, span_of(r->stage, r->n_x, r->n_t), &e), &e);
  good(model_forward(&r->m, ROWS, &e), &e);
  struct compute_loss_desc d = {.kind = r->job->loss, .weight = 1, .rank_tag = 1};
  good(model_loss(&r->m, &d, r->target, ROWS, &e), &e);
  good(model_backward(&r->m, ROWS, 0, NULL, NULL, &e), &e);
  struct compute_update u = {.param = model_params_span(&r->m), .grad = model_grads_span(&r->m)};
  good(compute_opt_step(seam.c, r->opt, &u, &e), &e);
  good(compute_copy(seam.c, span_of(r->stage, r->n_x + r->n_t + r->m.n_flat, 1), model_extra_span(&r->m, MODEL_LOSS, 1),
                    &e),
       &e);
}

static double loss_read(struct run *r) {
  return (double)*compute_host(seam.c, span_of(r->stage, r->n_x + r->n_t + r->m.n_flat, 1));
}

/* n_params floats, without pads. */
static const float *weights_read(struct run *r) {
  struct err e = ERR_INIT;
  struct span w = span_of(r->stage, r->n_x + r->n_t, r->m.n_flat);
  good(compute_copy(seam.c, w, model_params_span(&r->m), &e), &e);
  device_idle();
  model_pack(&r->m.shape, compute_host(seam.c, w));
  return compute_host(seam.c, w);
}

/* The same in double. */
struct ref {
  const struct model_shape *s;
  double *w, *m, *v, *g;
  double *act[WIDTHS], *delta[WIDTHS];
  size_t updates;
};

static void ref_open(struct ref *f, struct run *r) {
  size_t n = r->m.n_params;
  *f = (struct ref){.s = &r->m.shape};
  f->w = test_calloc(n, 8), f->m = test_calloc(n, 8), f->v = test_calloc(n, 8), f->g = test_calloc(n, 8);
  const float *w = weights_read(r);
  for (size_t i = 0; i < n; i++) f->w[i] = (double)w[i];
  for (uint32_t i = 0; i < f->s->n; i++) {
    f->act[i] = test_calloc((size_t)ROWS * f->s->width[i], 8);
    f->delta[i] = test_calloc((size_t)ROWS * f->s->width[i], 8);
  }
}

static void ref_close(struct ref *f) {
  double *all[] = {f->w, f->m, f->v, f->g};
  for (size_t i = 0; i < 4; i++) test_free(all[i]);
  for (uint32_t i = 0; i < f->s->n; i++) test_free(f->act[i]), test_free(f->delta[i]);
}

static void ref_forward(struct ref *f) {
  const double *w = f->w;
  for (uint32_t l = 0; l + 1 < f->s->n; l++) {
    size_t in = f->s->width[l], out = f->s->width[l + 1];
    for (size_t r = 0; r < ROWS; r++)
      for (size_t o = 0; o < out; o++) {
        double sum = w[in * out + o];
        for (size_t i = 0; i < in; i++) sum += rounded(f->act[l][r * in + i]) * rounded(w[o * in + i]);
        f->act[l + 1][r * out + o] = l + 2 < f->s->n && sum < 0 ? 0 : rounded(sum);
      }
    w += (in + 1) * out;
  }
}

static double ref_loss(struct ref *f, const struct run *r, size_t step) {
  size_t cols = f->s->width[f->s->n - 1], n = ROWS * cols;
  const double *y = f->act[f->s->n - 1];
  double *dz = f->delta[f->s->n - 1], loss = 0;
  if (r->job->loss == COMPUTE_CROSS_ENTROPY) {
    for (size_t i = 0; i < ROWS; i++) {
      size_t class = (size_t)target_at(r, step, i);
      double sum = 0;
      for (size_t j = 0; j < cols; j++) sum += exp(y[i * cols + j]);
      loss += (log(sum) - y[i * cols + class]) / ROWS;
      for (size_t j = 0; j < cols; j++) dz[i * cols + j] = rounded((exp(y[i * cols + j]) / sum - (j == class)) / ROWS);
    }
    return loss;
  }
  for (size_t i = 0; i < n; i++) loss += pow(y[i] - (double)target_at(r, step, i), 2) / (double)n;
  double root = sqrt(loss), factor = r->job->loss == COMPUTE_RMSE ? 1 / root : 2;
  for (size_t i = 0; i < n; i++) dz[i] = rounded(factor * (y[i] - (double)target_at(r, step, i)) / (double)n);
  return r->job->loss == COMPUTE_RMSE ? root : loss;
}

static void ref_backward(struct ref *f, size_t n_params) {
  size_t at = n_params;
  for (uint32_t l = f->s->n - 1; l-- > 0;) {
    size_t in = f->s->width[l], out = f->s->width[l + 1];
    const double *x = f->act[l], *dz = f->delta[l + 1];
    at -= (in + 1) * out;
    for (size_t o = 0; o < out; o++)
      for (size_t i = 0; i <= in; i++) {
        double sum = 0;
        for (size_t r = 0; r < ROWS; r++) sum += dz[r * out + o] * (i < in ? rounded(x[r * in + i]) : 1);
        f->g[i < in ? at + o * in + i : at + in * out + o] = sum;
      }
    for (size_t r = 0; l > 0 && r < ROWS; r++)
      for (size_t i = 0; i < in; i++) {
        double sum = 0;
        for (size_t o = 0; o < out; o++) sum += dz[r * out + o] * rounded(f->w[at + o * in + i]);
        f->delta[l][r * in + i] = f->act[l][r * in + i] > 0 ? rounded(sum) : 0;
      }
  }
}

static void ref_update(struct ref *f, const struct run *r) {
  const struct compute_opt_desc *d = &r->job->opt;
  double lr = (double)(float)d->lr;
  f->updates++;
  for (size_t i = 0; i < r->m.n_params; i++) {
    f->m[i] = d->beta1 * f->m[i] + (1 - d->beta1) * f->g[i];
    f->v[i] = d->beta2 * f->v[i] + (1 - d->beta2) * f->g[i] * f->g[i];
    f->w[i] -= lr * (f->m[i] / (1 - pow(d->beta1, (double)f->updates))) /
               (sqrt(f->v[i] / (1 - pow(d->beta2, (double)f->updates))) + d->eps);
  }
}

static double loss_tolerance(void) {
  return seam.p == COMPUTE_FP32 ? 1e-4 : 0x1p-8;
}

UNIT_TEST(test_training_follows_the_reference) {
  for (size_t k = 0; k < sizeof jobs / sizeof *jobs; k++) {
    struct run r;
    struct ref f;
    run_open(&r, &jobs[k]);
    ref_open(&f, &r);
    double first = 0, want = 0;
    for (size_t step = 0; step < STEPS; step++) {
      fill_stage(&r, step);
      queue_step(&r);
      device_idle();
      for (size_t i = 0; i < r.n_x; i++) f.act[0][i] = (double)input_at(step, i);
      ref_forward(&f);
      want = ref_loss(&f, &r, step);
      if (step == 0) first = want;
      expect_near(loss_read(&r), want, 0, loss_tolerance() * first, jobs[k].widths, step);
      ref_backward(&f, r.m.n_params);
      ref_update(&f, &r);
    }
    const float *w = weights_read(&r);
    double far = 0;
    for (size_t i = 0; i < r.m.n_params; i++) far += fabs((double)w[i] - f.w[i]) / (double)r.m.n_params;
    if (far > 20 * jobs[k].opt.lr * loss_tolerance()) fail_msg("%s: weights are %g off", jobs[k].widths, far);
    ref_close(&f);
    run_close(&r);
  }
}

/* Like a trainer: stages take turns, and the host reads only the step before. */
UNIT_TEST(test_steps_are_queued_ahead) {
  for (size_t k = 0; k < sizeof jobs / sizeof *jobs; k++) {
    struct err e = ERR_INIT;
    struct run a, b;
    struct compute_buf *stages[3];
    struct compute_mark marks[3];
    run_open(&a, &jobs[k]);
    run_open(&b, &jobs[k]);
    size_t n = a.n_x + a.n_t + a.m.n_flat + MODEL_EXTRAS;
    stages[0] = b.stage;
    for (size_t i = 1; i < 3; i++) good(compute_alloc(seam.c, COMPUTE_STAGE, n, &stages[i], &e), &e);
    for (size_t step = 0; step < STEPS; step++) {
      fill_stage(&a, step);
      queue_step(&a);
      device_idle();
      b.stage = stages[step % 3];
      if (step >= 3) good(compute_wait(seam.c, marks[step % 3], 60000, &e), &e);
      fill_stage(&b, step);
      queue_step(&b);
      good(compute_record(seam.c, &marks[step % 3], &e), &e);
    }
    device_idle();
    expect_near(loss_read(&b), loss_read(&a), seam.same_bytes ? 0 : loss_tolerance(), 0, "queued", k);
    b.stage = stages[0];
    compute_free(seam.c, stages[1]);
    compute_free(seam.c, stages[2]);
    run_close(&a);
    run_close(&b);
  }
}

UNIT_TEST(test_captured_steps_are_steps) {
  if (!compute_can_capture(seam.c)) skip();
  for (size_t k = 0; k < sizeof jobs / sizeof *jobs; k++) {
    struct err e = ERR_INIT;
    struct run a, b;
    struct compute_graph *g = NULL;
    run_open(&a, &jobs[k]);
    run_open(&b, &jobs[k]);
    fill_stage(&b, 0);
    queue_step(&b); /* the first step is not captured: it makes what the first use makes */
    device_idle();
    good(compute_capture_begin(seam.c, &e), &e);
    queue_step(&b); /* kept, not done */
    good(compute_capture_end(seam.c, &g, &e), &e);
    for (size_t step = 0; step < 4; step++) {
      fill_stage(&a, step);
      queue_step(&a);
      device_idle();
      if (step == 0) continue;
      fill_stage(&b, step);
      good(compute_launch(seam.c, g, &e), &e);
      device_idle();
      expect_near(loss_read(&b), loss_read(&a), seam.same_bytes ? 0 : loss_tolerance(), 0, "captured", step);
    }
    size_t bytes = a.m.n_params * sizeof(float);
    float *wa = test_malloc(bytes);
    memcpy(wa, weights_read(&a), bytes);
    if (seam.same_bytes) assert_memory_equal(wa, weights_read(&b), bytes);
    test_free(wa);
    compute_graph_destroy(seam.c, g);
    run_close(&a);
    run_close(&b);
  }
}
