/* SPDX-License-Identifier: Apache-2.0 */
/* Losses and the optimizer: checks arguments and queues kernels (kernels_loss.cu, kernels_opt.cu).
 *
 * The optimizer's counters and the factors of one update lie in one control block on the device. Its first field is the
 * struct compute_opt_counters that compute_opt_read copies to a stage. An update writes them there itself, so a step
 * has no copy for them. Host and device have the same byte order and the same layout. */

#include "agent/trainer/gpu/cuda_compute.h"

#include "common/mem.h"

#include <errno.h>
#include <stdlib.h>

struct compute_opt {
  struct compute_opt_desc d;
  struct kernel_control *control;
  struct compute_buf *state[COMPUTE_STATES];
};

int cuda_opt_loss(struct compute *c, const struct compute_loss_desc *d, struct span y, struct span target,
                  struct span dz, struct span out, struct err *e) {
  struct cuda *u = cuda_of(c);
  struct kernel_loss l = {.d = *d,
                          .type = y.buf->type,
                          .y = cuda_at(y),
                          .target = cuda_at(target),
                          .dz = cuda_at(dz),
                          .out = cuda_at(out),
                          .blocked = u->blocked_dev};
  if (target.buf->type != KERNEL_F32 || out.buf->type != KERNEL_F32 || dz.buf->type != l.type)
    return err_set(e, -EINVAL, "a loss between buffers of the wrong use");
  return cuda_launched(c, kernel_loss(u->stream, &l, u->scratch), "the loss", e);
}

int cuda_opt_create(struct compute *c, const struct compute_opt_desc *d, struct compute_opt **out, struct err *e) {
  int rc = cuda_not_captured(c, "making an optimizer", e);
  if (rc) return rc;
  struct compute_opt *o = xcalloc(1, sizeof *o);
  o->d = *d;
  void *control = NULL;
  rc = cuda_mem_raw(c, sizeof(struct kernel_control), &control, e);
  o->control = control;
  for (int i = 0; i < COMPUTE_STATES && rc == 0; i++) rc = cuda_mem_alloc(c, COMPUTE_STATE, d->n, &o->state[i], e);
  if (rc == 0) rc = cuda_opt_set(c, o, &(struct compute_opt_counters){0}, e);
  if (rc) {
    cuda_opt_destroy(c, o);
    return rc;
  }
  *out = o;
  return 0;
}

void cuda_opt_destroy(struct compute *c, struct compute_opt *o) {
  for (int i = 0; i < COMPUTE_STATES; i++) compute_free(c, o->state[i]);
  if (o->control && cuda_idle(c)) (void)cudaFree(o->control);
  free(o);
}

struct compute_buf *cuda_opt_state(struct compute_opt *o, int i) {
  return o->state[i];
}

static int check_counters(struct span stage, struct err *e) {
  if (stage.buf->use == COMPUTE_STAGE && stage.n >= COMPUTE_COUNTERS) return 0;
  return err_set(e, -EINVAL, "counters need a stage of %zu values", COMPUTE_COUNTERS);
}

int cuda_opt_step(struct compute *c, struct compute_opt *o, const struct compute_update *v, struct err *e) {
  struct cuda *u = cuda_of(c);
  if (v->param.n != o->d.n || v->grad.n != o->d.n)
    return err_set(e, -EINVAL, "an update of %zu weights by %zu gradients, for %zu", v->param.n, v->grad.n, o->d.n);
  if (v->param.buf->use != COMPUTE_PARAM || v->grad.buf->type != KERNEL_F32 ||
      (v->bad.n && (v->bad.buf->type != KERNEL_F32 || v->bad.buf->use == COMPUTE_STAGE)))
    return err_set(e, -EINVAL, "an update with buffers of the wrong use");
  int rc = v->counters.n ? check_counters(v->counters, e) : 0;
  if (rc) return rc;
  struct kernel_decide decide = {.d = o->d,
                                 .control = o->control,
                                 .grad = cuda_at(v->grad),
                                 .bad = v->bad.n ? cuda_at(v->bad) : NULL,
                                 .blocked = u->blocked_dev,
                                 .counters = v->counters.n ? cuda_at(v->counters) : NULL};
  struct kernel_update k = {.n = o->d.n, .param = cuda_at(v->param), .type = u->low, .grad = cuda_at(v->grad)};
  if (v->param.buf->low) k.low = (char *)v->param.buf->low + v->param.at * kernel_type_size(u->low);
  for (int i = 0; i < COMPUTE_STATES; i++) k.state[i] = o->state[i]->data;
  rc = cuda_launched(c, kernel_decide(u->stream, &decide, u->scratch), "the norm of gradients", e);
  return rc ? rc : cuda_launched(c, kernel_update(u->stream, o->control, &k), "the update", e);
}

int cuda_opt_read(struct compute *c, struct compute_opt *o, struct span stage, struct err *e) {
  int rc = check_counters(stage, e);
  if (rc) return rc;
  return cuda_check(
      c,
      cudaMemcpyAsync(cuda_at(stage), &o->control->v, sizeof o->control->v, cudaMemcpyDeviceToHost, cuda_of(c)->stream),
      "reading counters", e);
}

int cuda_opt_set(struct compute *c, struct compute_opt *o, const struct compute_opt_counters *v, struct err *e) {
  return cuda_launched(c, kernel_control_set(cuda_of(c)->stream, o->control, *v), "setting counters", e);
}

int cuda_opt_checksum(struct compute *c, struct span s, struct span out, struct err *e) {
  struct cuda *u = cuda_of(c);
  if (s.buf->type != KERNEL_F32 || out.buf->use != COMPUTE_STAGE || out.n != COMPUTE_CHECKSUM || out.at % 2 != 0)
    return err_set(e, -EINVAL, "a checksum of a buffer of the wrong use");
  return cuda_launched(c, kernel_checksum(u->stream, cuda_at(s), s.n, cuda_at(out), u->scratch), "a checksum", e);
}
