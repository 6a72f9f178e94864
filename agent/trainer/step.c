/* One step of training, in the order in which it happens:
 *
 *   load       this rank's share of the global batch, through the stage to the device
 *   forward    the model, the loss and its gradient, weighted by the share: count / global
 *   backward   the gradients; as soon as a bucket of them is whole it is summed over ranks, while the pass
 *              goes on
 *   update     when all sums are there
 *   read       the loss of the whole batch, and what the ranks agreed on
 *
 * Because every rank weighs its gradient by its share, the sum over ranks is the gradient of the mean over
 * the global batch, whatever the world size and however uneven the shares. The loss is summed the same
 * way, in the same message; so are two flags, "stop" and "checkpoint": if any rank was asked, all ranks
 * know it after the same step, and leave or save together. The agent takes the request back when it is told that the
 * checkpoint is written (trainer.c), so the flag is up for one step. */

#include "agent/trainer/trainer.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

uint64_t trainer_now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int load(struct trainer *t, const struct share *s, struct err *e) {
  size_t rows = (size_t)s->count, dim = t->data.dim;
  struct span x = span_of(t->stage_x, 0, rows * dim), classes = span_of(t->stage_t, 0, rows);
  float *px = compute_host(t->c, x), *pc = compute_host(t->c, classes);
  for (size_t r = 0; r < rows; r++) {
    uint64_t sample = permutation_at(&t->perm, s->first + r);
    dataset_sample(&t->data, sample, px + r * dim);
    if (t->data.labels) pc[r] = dataset_label(&t->data, sample);
  }
  int rc = compute_copy(t->c, span_of(t->model.act[0], 0, rows * dim), x, e);
  if (rc || !t->data.labels) return rc;
  return compute_copy(t->c, span_of(t->model.target, 0, rows), classes, e);
}

/* What this rank was asked goes on its way with the gradients. */
static int tell_flags(struct trainer *t, struct err *e) {
  unsigned now = rdzv_requested(t->rdzv);
  struct span s = span_of(t->stage_flags, 0, 2);
  float *flags = compute_host(t->c, s);
  flags[0] = (now & RDZV_STOP) || *t->sigterm ? 1.0f : 0.0f;
  flags[1] = now & RDZV_CHECKPOINT ? 1.0f : 0.0f;
  return compute_copy(t->c, model_extra_span(&t->model, MODEL_STOP, 2), s, e);
}

/* model_backward: gradients from `at` on are there. */
static int sum_bucket(void *ctx, size_t at, struct err *e) {
  struct trainer *t = ctx;
  if (at > 0 && (double)(t->bucket_end - at) * sizeof(float) < t->o.bucket_cap_mb * 1048576.0)
    return trainer_blame(t, TRAINER_LOST, coll_progress(t->coll, e));
  struct span s = span_of(t->model.grads, at, t->bucket_end - at);
  t->bucket_end = at;
  return trainer_blame(t, TRAINER_LOST,
                       coll_all_reduce_begin(t->coll, t->c, s, &t->tickets[t->n_tickets++], e));
}

static int gradients(struct trainer *t, const struct share *s, struct err *e) {
  size_t rows = (size_t)s->count;
  bool classify = t->o.loss == COMPUTE_CROSS_ENTROPY;
  struct span target =
      classify ? span_of(t->model.target, 0, rows) : span_of(t->model.act[0], 0, rows * t->data.dim);
  int rc = model_forward(&t->model, rows, e);
  struct compute_loss_desc loss = {.kind = t->o.loss,
                                   .weight = (double)s->count / (double)s->global,
                                   .who = (float)(t->rank + 1),
                                   .scale = t->opt};
  if (rc == 0) rc = model_loss(&t->model, &loss, target, rows, e);
  if (rc == 0) rc = tell_flags(t, e);
  t->n_tickets = 0;
  t->bucket_end = t->model.n_params + MODEL_EXTRAS;
  return rc ? rc : model_backward(&t->model, rows, false, sum_bucket, t, e);
}

static int sums(struct trainer *t, struct err *e) {
  int rc = 0;
  for (int i = 0; i < t->n_tickets && rc == 0; i++) rc = coll_wait(t->coll, t->tickets[i], e);
  return trainer_blame(t, TRAINER_LOST, rc);
}

static int read_extras(struct trainer *t, struct err *e) {
  struct compute_mark mark;
  struct span s = span_of(t->stage_extras, 0, MODEL_EXTRAS);
  int rc = compute_copy(t->c, s, model_extra_span(&t->model, 0, MODEL_EXTRAS), e);
  struct span counters = span_of(t->stage_counters, 0, COMPUTE_COUNTERS);
  if (rc == 0) rc = compute_opt_read(t->c, t->opt, counters, e);
  if (rc == 0) rc = compute_record(t->c, &mark, e);
  if (rc == 0) rc = compute_wait(t->c, mark, (uint64_t)t->o.coll_timeout_ms, e);
  if (rc) return rc;
  const float *x = compute_host(t->c, s);
  t->loss = (double)x[MODEL_LOSS];
  t->stop = x[MODEL_STOP] > 0;
  t->checkpoint = x[MODEL_CHECKPOINT] > 0;
  memcpy(&t->counters, compute_host(t->c, counters), sizeof t->counters);
  return 0;
}

static int update(struct trainer *t, struct err *e) {
  struct span stage = span_of(t->stage_lr, 0, 1), lr = span_of(t->lr, 0, 1);
  compute_host(t->c, stage)[0] = (float)optim_lr(&t->o.hyper, t->step);
  int rc = compute_copy(t->c, lr, stage, e);
  return rc ? rc
            : compute_opt_step(t->c, t->opt, model_params_span(&t->model), model_grads_span(&t->model), lr,
                               e);
}

static void advance(struct trainer *t, const struct share *s) {
  t->step++;
  t->samples += s->global;
  t->position += s->global;
  if (t->position < t->sampler.samples) return;
  t->position = 0;
  t->epoch++;
  t->perm = sampler_epoch(&t->sampler, t->epoch);
}

int trainer_step(struct trainer *t, struct err *e) {
  struct share s = sampler_share(&t->sampler, t->position, t->rank, t->world);
  t->exit = TRAINER_SYSTEM; /* unless somebody else is to blame */
  int rc = load(t, &s, e);
  if (rc == 0) rc = gradients(t, &s, e);
  if (rc == 0) rc = sums(t, e);
  if (rc == 0) rc = update(t, e);
  if (rc == 0) rc = read_extras(t, e);
  if (rc) return rc;
  advance(t, &s);
  if (isfinite(t->loss)) return 0;
  return trainer_blame(
      t, TRAINER_DIVERGED,
      err_set(e, -ERANGE,
              "the loss is no longer a number at step %llu: try a smaller --lr, or --scale for the data",
              (unsigned long long)t->step));
}
