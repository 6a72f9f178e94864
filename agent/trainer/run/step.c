/* One step of training, in the order in which it happens:
 *
 *   input      this rank's share of the global batch: where the device keeps the data set, the numbers of its rows into the slot's
 *              stage, and the device makes the rows; else their values into the stage, and from there to the device, beside the steps before
 *   forward    the model, the loss and its gradient, weighted by the share: count / samples of the step
 *   backward   the gradients; as soon as a bucket of them is whole it is summed over ranks, while the pass
 *              goes on
 *   update     when all sums are there
 *   results    the loss of the whole batch, what the ranks agreed on, and the optimizer's counters, into the slot's stages
 *
 * Because every rank weighs its gradient by its share, the sum over ranks is the gradient of the mean over
 * the global batch, whatever the world size and however uneven the shares. The loss is summed the same
 * way, in the same message; so are three flags, "stop", "checkpoint" and "clock": if any rank was asked, all ranks
 * know it after the same step, and leave or save together.
 *
 * With --update-freq a step has several batches: input, forward and backward come once for each, gradients and losses are added up on the device,
 * and only the last backward pass sends them to the others.
 *
 * All this is queued, not done (trainer_queue); a mark stands behind it. On a CPU it is done by then. On a device that runs ahead the results
 * are read some steps later (trainer_read), always the same number of steps, so that all ranks still decide at the same one. What differs from
 * step to step goes through stages: the input, the flags, the learning rate. So the calls themselves are the same for every step of a shape, and where
 * the device can keep them they are captured once for each slot and launched from then on. */

#include "agent/trainer/run/trainer.h"

#include "common/log.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

uint64_t trainer_now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ------------------------------------------------------------------ the host's part */

/* Elements of the input's stage for these rows of a step. */
static struct span in_stage(const struct trainer *t, const struct slot *s, size_t row, size_t rows) {
  size_t width = t->rows ? COMPUTE_ROW_NUMBER : t->data.dim;
  return span_of(s->x, row * width, rows * width);
}

static struct span stamp(const struct slot *s, enum slot_stamp at) {
  return span_of(s->stamps, (size_t)at * COMPUTE_STAMP, COMPUTE_STAMP);
}

static void fill(struct trainer *t, struct slot *s, struct group g) {
  while (sampler_next(&t->sampler, t->rank, t->world, &g)) {
    for (size_t r = (size_t)g.row; r < (size_t)(g.row + g.share.count); r++) {
      uint64_t sample = permutation_at(&t->perm, g.share.first + r - g.row);
      float *at = compute_host(t->c, in_stage(t, s, r, 1));
      if (t->rows)
        memcpy(at, &sample, sizeof sample);
      else
        dataset_sample(&t->data, sample, at);
      if (t->data.labels) *compute_host(t->c, span_of(s->classes, r, 1)) = dataset_label(&t->data, sample);
    }
  }
}

/* Once for each checkpoint: all ranks begin it when they have read it. */
static bool clock_says(struct trainer *t, uint64_t now) {
  uint64_t every = t->o.checkpoint_every.ms * 1000;
  if (!every || !t->save.writer || now - t->save.clock_us < every) return false;
  t->save.clock_us = now;
  return true;
}

/* What this rank was asked goes on its way with the gradients. */
static void set_flags(struct trainer *t, struct slot *s) {
  unsigned now = t->asked = rdzv_requested(t->rdzv);
  float *flags = compute_host(t->c, span_of(s->flags, 0, SLOT_FLAGS));
  bool told =
      (now & RDZV_STOP) && !(now & RDZV_LOST);  /* where the agent is lost, we leave, and the others go on */
  flags[0] = told || *t->sigterm ? 1.0f : 0.0f; /* MODEL_STOP is the first of them */
  flags[MODEL_CHECKPOINT - MODEL_STOP] = now & RDZV_CHECKPOINT ? 1.0f : 0.0f;
  flags[MODEL_CLOCK - MODEL_STOP] = clock_says(t, s->begun_us) ? 1.0f : 0.0f;
}

static void set_lr(struct trainer *t, struct slot *s) {
  s->lr_value = optim_lr(&t->o.hyper, t->queued.step);
  compute_host(t->c, span_of(s->lr, 0, 1))[0] = (float)s->lr_value;
}

/* What is sent by itself is on its way before the step is queued. */
static int send(struct trainer *t, struct slot *s, struct group g, struct err *e) {
  int rc = 0;
  while (s->sent && rc == 0 && sampler_next(&t->sampler, t->rank, t->world, &g)) {
    struct span stage = in_stage(t, s, (size_t)g.row, (size_t)g.share.count);
    rc = compute_send(t->c, span_of(s->sent, stage.at, stage.n), stage, e);
  }
  return rc;
}

static int prepare(struct trainer *t, struct slot *s, const struct group *g, struct err *e) {
  s->begun_us = trainer_now_us();
  compute_range_push(t->c, "input");
  fill(t, s, *g);
  compute_range_pop(t->c);
  s->input_us = trainer_now_us() - s->begun_us;
  s->exposed_us = s->calls_us = 0;
  memset(compute_host(t->c, stamp(s, STAMP_BEGIN)), 0, sizeof(uint64_t) * STAMPS);
  set_flags(t, s);
  set_lr(t, s);
  return send(t, s, *g, e);
}

/* ------------------------------------------------------------------ the device's part */

static int load_controls(struct trainer *t, struct slot *s, struct err *e) {
  struct compute_pair to[] = {
      {model_extra_span(&t->model, MODEL_STOP, SLOT_FLAGS), span_of(s->flags, 0, SLOT_FLAGS)},
      {span_of(t->lr, 0, 1), span_of(s->lr, 0, 1)}};
  return compute_tell(t->c, to, 2, stamp(s, STAMP_BEGIN), e);
}

static int load(struct trainer *t, struct slot *s, const struct group *g, struct err *e) {
  size_t rows = (size_t)g->share.count, from = (size_t)g->row, dim = t->data.dim;
  struct span classes = span_of(s->classes, from, rows), stage = in_stage(t, s, from, rows);
  struct span input =
      s->sent ? span_of(s->sent, from * dim, rows * dim) : span_of(t->model.act[0], 0, rows * dim);
  int rc = 0;
  t->model.input = input;
  if (t->rows)
    rc = compute_rows_take(t->c, t->rows, input, stage, e);
  else if (!s->sent)
    rc = compute_copy(t->c, input, stage, e);
  if (rc || !t->data.labels) return rc;
  return compute_copy(t->c, span_of(t->model.target, 0, rows), classes, e);
}

/* model_backward: gradients from `at` on are there. */
static int sum_bucket(void *ctx, size_t at, struct err *e) {
  struct trainer *t = ctx;
  if (at > 0 && (double)(t->bucket_end - at) * sizeof(float) < t->o.bucket_cap_mb * 1048576.0)
    return trainer_blame_coll(t, coll_progress(t->coll, e));
  struct span s = span_of(t->model.grads, at, t->bucket_end - at);
  t->bucket_end = at;
  return trainer_blame_coll(t, coll_all_reduce_begin(t->coll, t->c, s, &t->tickets[t->n_tickets++], e));
}

static int lose(struct trainer *t, const struct group *g, bool add, struct err *e) {
  size_t rows = (size_t)g->share.count;
  bool classify = t->o.loss == COMPUTE_CROSS_ENTROPY;
  struct span target = classify ? span_of(t->model.target, 0, rows)
                                : span_of(t->model.input.buf, t->model.input.at, rows * t->data.dim);
  struct compute_loss_desc loss = {.kind = t->o.loss,
                                   .weight = (double)g->share.count / (double)g->total,
                                   .add = add,
                                   .who = (float)(t->rank + 1),
                                   .scale = t->opt};
  return model_loss(&t->model, &loss, target, rows, e);
}

static int gradients(struct trainer *t, const struct group *g, bool add, struct err *e) {
  size_t rows = (size_t)g->share.count;
  compute_range_push(t->c, "forward");
  int rc = model_forward(&t->model, rows, e);
  compute_range_pop(t->c);
  compute_range_push(t->c, "loss");
  if (rc == 0) rc = lose(t, g, add, e);
  compute_range_pop(t->c);
  compute_range_push(t->c, "backward");
  if (rc == 0) rc = model_backward(&t->model, rows, add, g->left ? NULL : sum_bucket, t, e);
  compute_range_pop(t->c);
  return rc;
}

static int batches(struct trainer *t, struct slot *s, struct group g, struct err *e) {
  int rc = 0;
  t->n_tickets = 0;
  t->bucket_end = t->model.n_params + MODEL_EXTRAS;
  for (bool add = false; rc == 0 && sampler_next(&t->sampler, t->rank, t->world, &g); add = true) {
    rc = load(t, s, &g, e);
    if (rc == 0 && !add) rc = compute_tell(t->c, NULL, 0, stamp(s, STAMP_INPUT), e);
    if (rc == 0) rc = gradients(t, &g, add, e);
  }
  return rc;
}

/* On a CPU what is waited for here is what the backward pass did not hide. */
static int sums(struct trainer *t, struct slot *s, struct err *e) {
  uint64_t from = trainer_now_us();
  int rc = t->world > 1 ? compute_tell(t->c, NULL, 0, stamp(s, STAMP_BACKWARD), e) : 0;
  if (rc) return rc;
  for (int i = 0; i < t->n_tickets && rc == 0; i++) rc = coll_wait(t->coll, t->tickets[i], e);
  s->exposed_us = trainer_now_us() - from;
  if (rc) return trainer_blame_coll(t, rc);
  return t->world > 1 ? compute_tell(t->c, NULL, 0, stamp(s, STAMP_SUMMED), e) : 0;
}

static int update(struct trainer *t, struct err *e) {
  compute_range_push(t->c, "update");
  int rc = compute_opt_step(t->c, t->opt, model_params_span(&t->model), model_grads_span(&t->model),
                            span_of(t->lr, 0, 1), model_extra_span(&t->model, MODEL_BAD, 1), e);
  compute_range_pop(t->c);
  return rc;
}

static int results(struct trainer *t, struct slot *s, struct err *e) {
  struct compute_pair from = {span_of(s->results, 0, MODEL_EXTRAS),
                              model_extra_span(&t->model, 0, MODEL_EXTRAS)};
  int rc = compute_tell(t->c, &from, 1, stamp(s, STAMP_END), e);
  return rc ? rc : compute_opt_read(t->c, t->opt, span_of(s->counters, 0, COMPUTE_COUNTERS), e);
}

/* From stages to stages: the same calls for every step of this shape in this slot. */
static int calls(struct trainer *t, struct slot *s, const struct group *g, struct err *e) {
  int rc = load_controls(t, s, e);
  if (rc == 0) rc = batches(t, s, *g, e);
  if (rc == 0) rc = sums(t, s, e);
  if (rc == 0) rc = update(t, e);
  return rc ? rc : results(t, s, e);
}

/* ------------------------------------------------------------------ captured steps */

static int capture(struct trainer *t, struct slot *s, const struct group *g, struct compute_graph **out,
                   struct err *e) {
  struct err why = ERR_INIT;
  int rc = compute_capture_begin(t->c, &why);
  if (rc == 0) {
    int called = calls(t, s, g, &why);
    rc = compute_capture_end(t->c, out, called ? NULL : &why);
    if (rc == 0 && called) compute_graph_destroy(t->c, *out);
    if (called) rc = called;
  }
  if (rc == 0) return 0;
  t->capture = false;
  if (t->o.cuda_graph == CUDA_GRAPH_ON)
    return err_set(e, rc, "--cuda-graph on: the step cannot be captured: %s", why.text);
  t->exit = TRAINER_SYSTEM;
  if (t->rank == 0) log_info("steps are not captured: %s", why.text);
  return 1;
}

/* 1: this step is not captured. */
static int launch(struct trainer *t, struct slot *s, const struct group *g, struct err *e) {
  if (!t->capture) return 1;
  struct compute_graph *graph = slot_graph(s, g->total);
  if (!graph) {
    if (!slots_saw(&t->slots, g->total)) return 1;
    int rc = capture(t, s, g, &graph, e);
    if (rc) return rc;
    if (!slot_keep_graph(s, g->total, graph)) {
      compute_graph_destroy(t->c, graph);
      return 1;
    }
  }
  compute_range_push(t->c, "captured step");
  int rc = compute_launch(t->c, graph, e);
  compute_range_pop(t->c);
  return rc;
}

/* ------------------------------------------------------------------ in order */

static void advance(struct trainer *t, const struct group *g) {
  struct place *p = &t->queued;
  p->step++;
  p->position += g->total;
  if (p->position < t->sampler.samples) return;
  p->position = 0;
  p->epoch++;
  t->perm = sampler_epoch(&t->sampler, p->epoch);
}

int trainer_queue(struct trainer *t, struct err *e) {
  struct group g = sampler_group(&t->sampler, t->queued.position);
  struct slot *s = slots_next(&t->slots);
  t->exit = TRAINER_SYSTEM; /* unless somebody else is to blame */
  int rc = prepare(t, s, &g, e);
  if (rc) return rc;
  uint64_t from = trainer_now_us();
  rc = launch(t, s, &g, e);
  bool launched = rc == 0;
  if (rc == 1) rc = calls(t, s, &g, e);
  if (rc == 0) rc = compute_record(t->c, &s->mark, e);
  if (rc) return rc;
  s->calls_us = trainer_now_us() - from;
  advance(t, &g);
  s->after = t->queued;
  s->samples = g.total;
  slots_push(&t->slots);
  /* Only now: whatever it says, this step may come to its end, and then it has to be found in its slot. */
  return launched ? trainer_blame_coll(t, coll_progress(t->coll, e)) : 0;
}

static uint64_t ns_between(const uint64_t *from, const uint64_t *to) {
  return *to > *from ? *to - *from : 0;
}

/* What the device says. A step of one rank has no sums to wait for. A device that runs ahead and has no clock leaves what it did unknown. */
static void note_device_times(struct trainer *t, const struct slot *s) {
  uint64_t at[STAMPS];
  struct timing *ms = &t->timing;
  memcpy(at, compute_host(t->c, stamp(s, STAMP_BEGIN)), sizeof at);
  ms->compute = ms->exposed = ms->device_input = ms->idle = (double)NAN;
  if (at[STAMP_END] == 0) {
    t->device_ns = 0;
    if (t->c->depth > 0) return;
    ms->compute = (double)(s->calls_us - s->exposed_us);
    ms->exposed = (double)s->exposed_us;
    return;
  }
  uint64_t exposed = t->world > 1 ? ns_between(&at[STAMP_BACKWARD], &at[STAMP_SUMMED]) : 0;
  uint64_t after_input = ns_between(&at[STAMP_INPUT], &at[STAMP_END]);
  ms->exposed = (double)exposed / 1000;
  ms->device_input = (double)ns_between(&at[STAMP_BEGIN], &at[STAMP_INPUT]) / 1000;
  ms->compute = (double)(after_input > exposed ? after_input - exposed : 0) / 1000;
  if (t->device_ns) ms->idle = (double)ns_between(&t->device_ns, &at[STAMP_BEGIN]) / 1000;
  t->device_ns = at[STAMP_END];
}

/* What a step took is the time since the one before was read, or since it was begun, if that was later. */
static void note_times(struct trainer *t, const struct slot *s, uint64_t from, uint64_t now) {
  uint64_t since = s->begun_us > t->read_us ? s->begun_us : t->read_us;
  t->timing = (struct timing){.step = now - since,
                              .input = s->input_us,
                              .wait = now - from,
                              .samples = s->samples,
                              .checkpoint = t->checkpoint_us};
  t->checkpoint_us = 0;
  t->read_us = now;
  t->samples += s->samples;
  t->steps++;
  note_device_times(t, s);
}

int trainer_read(struct trainer *t, struct err *e) {
  struct slot *s = slots_oldest(&t->slots);
  uint64_t from = trainer_now_us();
  compute_range_push(t->c, "wait");
  int rc = trainer_wait(t, s->mark, s->after.step, e);
  compute_range_pop(t->c);
  if (rc) return rc;
  float x[MODEL_EXTRAS];
  memcpy(x, compute_host(t->c, span_of(s->results, 0, MODEL_EXTRAS)), sizeof x);
  memcpy(&t->counters, compute_host(t->c, span_of(s->counters, 0, COMPUTE_COUNTERS)), sizeof t->counters);
  note_times(t, s, from, trainer_now_us());
  t->done = s->after;
  t->loss = (double)x[MODEL_LOSS];
  t->lr_value = s->lr_value;
  t->stop |= x[MODEL_STOP] > 0;
  t->checkpoint |= x[MODEL_CHECKPOINT] > 0;
  t->clock |= x[MODEL_CLOCK] > 0;
  slots_pop(&t->slots);
  return trainer_judge(t, x, e);
}

static uint64_t steps_counted(const struct compute_opt_counters *v) {
  return v->updates + v->skipped;
}

/* Slot by slot: the device counts the updates that it makes and those that it skips, one of them for each step, and what it had counted
 * behind a step lies in the step's own slot. Where that has not grown, the update was held back, and so were those of all later steps. */
static int read_made(struct trainer *t, struct err *e) {
  struct compute_opt_counters then;
  int rc = 0;
  for (struct slot *s; rc == 0 && (s = slots_oldest(&t->slots)); rc = trainer_take(t, e)) {
    memcpy(&then, compute_host(t->c, span_of(s->counters, 0, COMPUTE_COUNTERS)), sizeof then);
    if (steps_counted(&then) == steps_counted(&t->counters)) break;
  }
  slots_clear(&t->slots);
  return rc;
}

int trainer_discard(struct trainer *t, struct err *e) {
  struct span stage = span_of(t->slots.v[0].counters, 0, COMPUTE_COUNTERS); /* free behind read_made */
  struct compute_opt_counters now;
  int rc = trainer_blame(t, TRAINER_SYSTEM, trainer_settle(t, e));
  if (rc == 0) rc = read_made(t, e);
  if (rc) return rc;
  rc = compute_opt_read(t->c, t->opt, stage, e);
  if (rc == 0) rc = trainer_settle(t, e);
  if (rc) return trainer_blame(t, TRAINER_SYSTEM, rc);
  memcpy(&now, compute_host(t->c, stage), sizeof now);
  t->queued = t->done;
  t->perm = sampler_epoch(&t->sampler, t->queued.epoch);
  if (steps_counted(&now) == steps_counted(&t->counters)) return 0;
  err_set(e, -EPROTO, "the optimizer has counted %llu steps, and %llu were read",
          (unsigned long long)steps_counted(&now), (unsigned long long)steps_counted(&t->counters));
  return trainer_blame(t, TRAINER_SYSTEM, -EPROTO);
}
