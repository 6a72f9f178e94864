/* SPDX-License-Identifier: Apache-2.0 */
/* From widths to layers, and the two passes over them. A stack of layers needs no graph and no tape.
 *
 * The gradients of layer i > 0 are summed while the input gradient of that layer is computed, which takes as long as
 * the gradients did. Only the first layer has nothing behind it, so its whole sum would be exposed. Its gradients are
 * computed in parts, by rows of W_0 from the last to the first: only the sum of the last part is exposed. For 8192 x
 * 8192 weights at 8192 rows, a device of 790 TFLOP/s needs 1.4 ms for the product. The sum of their 268 MB needs 1.1 ms
 * at 240 GB/s, and that of an eighth 0.14 ms. The rows of a part are a multiple of PART_ROWS, which fills whole tiles
 * of a product. The bias lies behind the weight, so the first part needs it whole. A layer smaller than two parts stays
 * whole, because each part costs a launch and a collective. */

#include "agent/trainer/model/model.h"

#include "agent/trainer/rng.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_ROWS = 128 };

const char *const model_loss_words[] = {
    [COMPUTE_MSE] = "mse", [COMPUTE_RMSE] = "rmse", [COMPUTE_CROSS_ENTROPY] = "cross-entropy"};

int model_shape_parse(const char *text, struct model_shape *s, struct err *e) {
  struct model_shape shape = {0};
  for (const char *p = text;; p++) {
    char *end;
    errno = 0;
    unsigned long width = *p >= '0' && *p <= '9' ? strtoul(p, &end, 10) : 0;
    if (width == 0 || errno || width > MODEL_WIDTH_MAX)
      return err_set(e, -EINVAL, "widths are numbers from 1 to %d with commas between them, such as 784,128,784",
                     MODEL_WIDTH_MAX);
    if (shape.n == MODEL_WIDTHS_MAX) return err_set(e, -EINVAL, "more than %d widths", MODEL_WIDTHS_MAX);
    shape.width[shape.n++] = (uint32_t)width;
    p = end;
    if (*p == 0) break;
    if (*p != ',') return err_set(e, -EINVAL, "unexpected '%c' behind %lu; widths have commas between them", *p, width);
  }
  if (shape.n < 2) return err_set(e, -EINVAL, "a model needs at least two widths: of its input and of its output");
  if (model_shape_params(&shape) > MODEL_PARAMS_MAX)
    return err_set(e, -EINVAL, "these layers have %llu weights; this trainer takes up to %llu",
                   (unsigned long long)model_shape_params(&shape), (unsigned long long)MODEL_PARAMS_MAX);
  *s = shape;
  return 0;
}

uint64_t model_shape_params(const struct model_shape *s) {
  uint64_t n = 0;
  for (uint32_t i = 0; i + 1 < s->n; i++) n += ((uint64_t)s->width[i] + 1) * s->width[i + 1];
  return n;
}

int model_shape_tensors(const struct model_shape *s, struct model_tensor out[MODEL_TENSORS_MAX], size_t *flat) {
  size_t at = 0, packed = 0;
  int n = 0;
  for (uint32_t i = 0; i + 1 < s->n; i++) {
    size_t sizes[] = {(size_t)s->width[i] * s->width[i + 1], s->width[i + 1]};
    for (int k = 0; k < 2; k++) {
      out[n++] = (struct model_tensor){.at = at, .packed = packed, .n = sizes[k]};
      packed += sizes[k];
      at += (sizes[k] + MODEL_ALIGN - 1) / MODEL_ALIGN * MODEL_ALIGN;
    }
  }
  if (flat) *flat = at;
  return n;
}

void model_pack(const struct model_shape *s, float *floats) {
  struct model_tensor v[MODEL_TENSORS_MAX];
  int n = model_shape_tensors(s, v, NULL);
  for (int i = 0; i < n; i++) memmove(floats + v[i].packed, floats + v[i].at, v[i].n * sizeof *floats);
}

void model_unpack(const struct model_shape *s, float *floats) {
  struct model_tensor v[MODEL_TENSORS_MAX];
  size_t end = 0;
  for (int i = model_shape_tensors(s, v, &end); i-- > 0; end = v[i].at) {
    memmove(floats + v[i].at, floats + v[i].packed, v[i].n * sizeof *floats);
    memset(floats + v[i].at + v[i].n, 0, (end - v[i].at - v[i].n) * sizeof *floats);
  }
}

void model_shape_format(const struct model_shape *s, char sep, char *out, size_t size) {
  size_t at = 0;
  out[0] = 0;
  for (uint32_t i = 0; i < s->n && at < size; i++) {
    int n = i ? snprintf(out + at, size - at, "%c%u", sep, s->width[i]) : snprintf(out, size, "%u", s->width[i]);
    at += (size_t)n;
  }
}

void model_init_weights(const struct model_shape *s, uint64_t seed, float *out) {
  uint64_t k = 0;
  for (uint32_t i = 0; i + 1 < s->n; i++) {
    float bound = (float)(1.0 / sqrt((double)s->width[i]));
    uint64_t end = k + ((uint64_t)s->width[i] + 1) * s->width[i + 1];
    for (; k < end; k++) out[k] = (2.0f * rng_unit(seed, RNG_WEIGHTS, k) - 1.0f) * bound;
  }
}

bool model_weights_finite(const void *w, size_t n, size_t *at, float *value) {
  const char *p = w;
  for (*at = 0; *at < n; ++*at) {
    memcpy(value, p + *at * sizeof *value, sizeof *value);
    if (!isfinite(*value)) return false;
  }
  return true;
}

static int alloc_grads(struct model *m, struct err *e) {
  return compute_alloc(m->c, COMPUTE_GRAD, m->n_room, &m->grads, e);
}

int model_init(struct model *m, struct compute *c, const struct model_shape *shape, size_t max_rows, struct err *e) {
  *m = (struct model){
      .c = c, .shape = *shape, .n_params = (size_t)model_shape_params(shape), .max_rows = max_rows ? max_rows : 1};
  struct model_tensor tensors[MODEL_TENSORS_MAX];
  model_shape_tensors(shape, tensors, &m->n_flat);
  m->n_room = m->n_flat + MODEL_EXTRAS;
  int rc = compute_alloc(c, COMPUTE_PARAM, m->n_flat, &m->params, e);
  if (rc == 0) rc = alloc_grads(m, e);
  if (rc == 0) rc = compute_alloc(c, COMPUTE_INPUT, m->max_rows * shape->width[shape->n - 1], &m->target, e);
  for (uint32_t i = 0; i < shape->n && rc == 0; i++) {
    size_t n = m->max_rows * shape->width[i];
    rc = compute_alloc(c, i ? COMPUTE_ACT : COMPUTE_INPUT, n, &m->act[i], e);
    if (rc == 0 && i > 0) rc = compute_alloc(c, COMPUTE_ACT, n, &m->delta[i], e);
  }
  for (uint32_t i = 0; i + 1 < shape->n && rc == 0; i++) {
    uint32_t in = shape->width[i], out = shape->width[i + 1];
    struct compute_layer_desc d = {
        .in = in,
        .out = out,
        .first = i == 0,
        .relu = i + 2 < shape->n,
        .weight = tensors[2 * i].at,
        .bias = tensors[2 * i + 1].at,
        .max_rows = m->max_rows,
    };
    rc = compute_layer_create(c, &d, &m->layers[i], e);
  }
  if (rc) err_wrap(e, "the model's memory");
  return rc;
}

int model_renew_grads(struct model *m, struct err *e) {
  compute_free(m->c, m->grads);
  m->grads = NULL;
  return alloc_grads(m, e);
}

void model_finish(struct model *m) {
  if (!m->c) return;
  for (uint32_t i = 0; i + 1 < m->shape.n; i++) compute_layer_destroy(m->c, m->layers[i]);
  for (uint32_t i = 0; i < m->shape.n; i++) {
    compute_free(m->c, m->act[i]);
    compute_free(m->c, m->delta[i]);
  }
  compute_free(m->c, m->target);
  compute_free(m->c, m->grads);
  compute_free(m->c, m->params);
  *m = (struct model){0};
}

static struct span rows_of(const struct model *m, struct compute_buf *const *bufs, uint32_t i, size_t rows) {
  return span_of(bufs[i], 0, rows * m->shape.width[i]);
}

int model_forward(struct model *m, size_t rows, struct err *e) {
  int rc = 0;
  for (uint32_t i = 0; i + 1 < m->shape.n && rc == 0; i++)
    rc = compute_forward(m->c, m->layers[i], m->params, rows_of(m, m->act, i, rows), rows_of(m, m->act, i + 1, rows),
                         rows, e);
  return rc;
}

int model_loss(struct model *m, const struct compute_loss_desc *d, struct span target, size_t rows, struct err *e) {
  uint32_t last = m->shape.n - 1;
  struct compute_loss_desc all = *d;
  all.rows = rows;
  all.cols = m->shape.width[last];
  return compute_loss(m->c, &all, rows_of(m, m->act, last, rows), target, rows_of(m, m->delta, last, rows),
                      model_extra_span(m, MODEL_LOSS, COMPUTE_LOSS_OUT), e);
}

/* Two operations per weight and row, three times: forward, gradient of the weight, gradient of the input. The first
 * layer's input has no gradient. */
double model_flops(const struct model_shape *s, uint64_t rows) {
  double n = 0;
  for (uint32_t i = 0; i + 1 < s->n; i++)
    n += (i ? 6.0 : 4.0) * (double)s->width[i] * (double)s->width[i + 1] * (double)rows;
  return n;
}

int model_backward(struct model *m, size_t rows, size_t part, model_ready_fn ready, void *ctx, struct err *e) {
  struct model_tensor tensors[MODEL_TENSORS_MAX] = {0};
  int rc = 0;
  model_shape_tensors(&m->shape, tensors, NULL);
  for (uint32_t i = m->shape.n - 1; i-- > 0 && rc == 0;) {
    size_t in = m->shape.width[i], out = m->shape.width[i + 1], step = out; /* rows of the weight per part */
    size_t parts = i == 0 && ready && part > 0 ? in * out / part : 1;
    if (parts > MODEL_PARTS_MAX) parts = MODEL_PARTS_MAX;
    if (parts >= 2) step = ((out + parts - 1) / parts + PART_ROWS - 1) / PART_ROWS * PART_ROWS;
    for (size_t end = out, from; end > 0 && rc == 0; end = from) {
      from = (end - 1) / step * step;
      rc = compute_backward_weight(m->c, m->layers[i], m->grads, rows_of(m, m->act, i, rows),
                                   rows_of(m, m->delta, i + 1, rows), (struct compute_part){from, end - from}, rows, e);
      if (rc == 0 && ready) rc = ready(ctx, tensors[2 * i].at + from * in, e);
    }
    if (rc == 0 && i > 0)
      rc = compute_backward_input(m->c, m->layers[i], m->params, rows_of(m, m->act, i, rows),
                                  rows_of(m, m->delta, i + 1, rows), rows_of(m, m->delta, i, rows), rows, e);
  }
  return rc;
}
