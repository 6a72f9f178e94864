/* The optimizer on a CPU.
 *
 * The norm of all gradients comes first, whether it is wanted or not: it is what tells that a step must be skipped, and what clipping
 * needs. It is summed in double, in one fixed order. Then one pass over weights, gradients and state.
 *
 * The loss scale follows the rule that everybody uses: halved by a step that overflowed, which is skipped; doubled after 2000 updates
 * without one. Gradients are divided by it here, within the pass. */

#include "agent/trainer/compute_cpu.h"

#include "common/mem.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GROWTH_INTERVAL = 2000 };

#define SCALE_FIRST 65536.0f
#define SCALE_MAX   0x1p40f

struct compute_opt {
  struct compute_opt_desc d;
  struct compute_opt_counters v;
  struct compute_buf *state[COMPUTE_STATES_MAX];
};

float compute_cpu_opt_scale(const struct compute_opt *o) {
  return o->v.scale;
}

int compute_cpu_opt_create(struct compute *c, const struct compute_opt_desc *d, struct compute_opt **out,
                           struct err *e) {
  struct compute_opt *o = xcalloc(1, sizeof *o);
  o->d = *d;
  o->v.scale = d->scale_loss ? SCALE_FIRST : 1.0f;
  for (int i = 0; i < compute_opt_states(d->kind); i++) {
    int rc = compute_alloc(c, COMPUTE_STATE, d->n, &o->state[i], e);
    if (rc) {
      compute_cpu_opt_destroy(c, o);
      return rc;
    }
  }
  *out = o;
  return 0;
}

void compute_cpu_opt_destroy(struct compute *c, struct compute_opt *o) {
  for (int i = 0; i < COMPUTE_STATES_MAX; i++) compute_free(c, o->state[i]);
  free(o);
}

struct compute_buf *compute_cpu_opt_state(struct compute_opt *o, int i) {
  return o->state[i];
}

static double sum_squares(const float *p, size_t n) {
  double sum[4] = {0}; /* four chains, so that one addition need not wait for the last */
  size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int k = 0; k < 4; k++) sum[k] += (double)p[i + (size_t)k] * (double)p[i + (size_t)k];
  for (; i < n; i++) sum[0] += (double)p[i] * (double)p[i];
  return sum[0] + sum[1] + sum[2] + sum[3];
}

/* `by`: what gradients are multiplied with. */
static void sgd(const struct compute_opt_desc *d, float lr, float by, struct span param, struct span grad,
                struct compute_buf *momentum) {
  float *restrict p = at(param), *restrict m = momentum->data;
  const float *restrict g = at(grad);
  float mu = (float)d->momentum, decay = (float)d->weight_decay;
  for (size_t i = 0; i < param.n; i++) {
    m[i] = mu * m[i] + (by * g[i] + decay * p[i]);
    p[i] -= lr * m[i];
  }
}

static void adam(const struct compute_opt_desc *d, uint64_t step, float lr, float by, struct span param,
                 struct span grad, struct compute_buf *const *state) {
  float *restrict p = at(param), *restrict m = state[0]->data, *restrict v = state[1]->data;
  const float *restrict g = at(grad);
  float b1 = (float)d->beta1, b2 = (float)d->beta2, eps = (float)d->eps;
  float c1 = (float)(1.0 - d->beta1),
        c2 = (float)(1.0 - d->beta2); /* rounded after the difference, as torch does */
  float rate = (float)((double)lr / (1.0 - pow(d->beta1, (double)step)));
  float root = (float)(1.0 / sqrt(1.0 - pow(d->beta2, (double)step)));
  float decay = d->kind == COMPUTE_ADAM ? (float)d->weight_decay : 0.0f;
  float keep = d->kind == COMPUTE_ADAMW ? (float)(1.0 - (double)lr * d->weight_decay) : 1.0f;
  for (size_t i = 0; i < param.n; i++) {
    float x = by * g[i] + decay * p[i];
    m[i] = b1 * m[i] + c1 * x;
    v[i] = b2 * v[i] + c2 * x * x;
    p[i] = keep * p[i] - rate * m[i] / (sqrtf(v[i]) * root + eps);
  }
}

static void skip(struct compute_opt *o) {
  o->v.skipped++;
  o->v.skipped_in_row++;
  o->v.good_in_row = 0;
  if (o->d.scale_loss && o->v.scale > 1.0f) o->v.scale /= 2;
}

static void count(struct compute_opt *o) {
  o->v.updates++;
  o->v.skipped_in_row = 0;
  o->v.good_in_row++;
  if (!o->d.scale_loss || o->v.good_in_row < GROWTH_INTERVAL) return;
  o->v.good_in_row = 0;
  if (o->v.scale < SCALE_MAX) o->v.scale *= 2;
}

int compute_cpu_opt_step(struct compute *c, struct compute_opt *o, struct span param, struct span grad,
                         struct span lr, struct span bad, struct err *e) {
  if (param.n != o->d.n || grad.n != o->d.n)
    return err_set(e, -EINVAL, "an update of %zu weights by %zu gradients, for %zu", param.n, grad.n, o->d.n);
  double norm = sqrt(sum_squares(at(grad), grad.n)) / (double)o->v.scale, by = 1.0 / (double)o->v.scale;
  o->v.grad_norm = bad.n && at(bad)[0] != 0.0f ? NAN : (float)norm;
  if (!isfinite(o->v.grad_norm)) {
    skip(o);
    return 0;
  }
  if (o->d.clip_norm > 0 && norm > o->d.clip_norm) by *= o->d.clip_norm / (norm + 1e-6); /* as torch has it */
  count(o);
  if (o->d.kind == COMPUTE_SGD)
    sgd(&o->d, at(lr)[0], (float)by, param, grad, o->state[0]);
  else
    adam(&o->d, o->v.updates, at(lr)[0], (float)by, param, grad, o->state);
  return 0;
}

int compute_cpu_opt_read(struct compute *c, struct compute_opt *o, struct span stage, struct err *e) {
  memcpy(at(stage), &o->v, sizeof o->v);
  return 0;
}

int compute_cpu_opt_set(struct compute *c, struct compute_opt *o, const struct compute_opt_counters *v,
                        struct err *e) {
  o->v = *v;
  return 0;
}
