/* SPDX-License-Identifier: Apache-2.0 */
/* One step of training: this rank's share of the global batch goes to the device, forward, backward, update. As soon as
 * a bucket of gradients is complete it is summed over the ranks, while the backward pass continues.
 *
 * Every rank weights its gradient by its share. So the sum over the ranks is the gradient of the mean over the global
 * batch, for any world size and any shares. The loss and the flags "stop", "checkpoint" and "clock" are summed in the
 * same message: if any rank was asked, all ranks know it after the same step, and stop or save together.
 *
 * Stages carry what differs from step to step: the input and the flags. So the calls are the same for every step of a
 * shape, and capture.c can capture them. Results are read some steps later, always the same number of steps.
 *
 * A rank that leaves the round blocks its updates, but its device still has queued steps. Their gradients come from old
 * weights, so they carry an infinite MODEL_BAD, with which no rank makes the update. The host sees it and leaves too.
 *
 * A step whose gradients are not finite changes nothing: the optimizer skips it on the device, on all ranks alike. More
 * than --max-skipped in a row end the run. The sums that travel with the gradients name the rank whose own loss is not
 * finite. */

#include "agent/trainer/run/trainer.h"

#include "common/system/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { LOG_EVERY_US = 1000000, SUBJECT_MAX = 64 };

/* Waiting. --------------------------------------------------------------------------------------------------------- */

/* trainer_wait is the only wait of a steady step: for the results of a step that was queued `depth` steps ago. On a
 * device it is usually over before it starts. Otherwise the host first polls without a pause, because waking up costs
 * more, and then with pauses, so that a long step needs little of a core.
 *
 * A rank that waits for the device also waits for the other ranks, whose gradients are summed there. So it asks the
 * collectives too: they have their own deadlines, know a lost rank by its number, and block the updates behind what can
 * never complete. If they report nothing long after that, the device is the one that does not respond.
 *
 * It asks the agent too. Over NVLink and shared memory a dead peer raises no error, and the ranks that wait for it would
 * wait until --coll-timeout. The agents know of the death at once, and their request ends the wait. The collectives ask
 * in their own waits (coll_asked_fn). */

enum {
  SPIN_US = 200, /* trainer_wait polls without a pause up to here, then with short pauses, then with long ones */
  SHORT_US = 5000,
  SHORT_PAUSE_US = 20,
  LONG_PAUSE_US = 500,
  GRACE_MS = 10000 /* after --coll-timeout, the time in which the collectives may still name a lost rank */
};

int trainer_leave_error(unsigned requested, struct err *e) {
  if (requested & RDZV_LOST) return err_set(e, -EPIPE, "lost contact with the agent");
  return requested & RDZV_REJOIN ? err_set(e, -ECANCELED, "the agent ends this round") : 0;
}

int trainer_asked(void *trainer, struct err *e) {
  struct trainer *t = trainer;
  return t->rdzv ? trainer_leave_error(rdzv_requested(t->rdzv), e) : 0;
}

int trainer_watch(struct trainer *t, struct err *e) {
  uint64_t now = monotonic_us();
  if (now - t->asked_us >= COLL_ASK_MS * 1000) {
    t->asked_us = now;
    int rc = with_exit(t, TRAINER_LOST, trainer_asked(t, e));
    if (rc) return rc;
  }
  return with_coll_exit(t, coll_progress(t->coll, e));
}

int trainer_wait(struct trainer *t, struct compute_mark mark, uint64_t step, struct err *e) {
  int rc = compute_done(t->c, mark, e);
  if (rc > 0) return 0;
  uint64_t from = t->asked_us = monotonic_us(), limit = ((uint64_t)t->o.coll_timeout_ms + GRACE_MS) * 1000;
  while (rc == 0) {
    rc = trainer_watch(t, e);
    if (rc) return rc;
    uint64_t waited = monotonic_us() - from;
    if (waited > limit) {
      return with_exit(t, TRAINER_SYSTEM,
                       err_set(e, -ETIMEDOUT,
                               "the device (%s) did not finish step %llu within %.0f s, and no rank is missing",
                               t->c->device, (unsigned long long)step, (double)waited / 1e6));
    }
    struct timespec ts = {.tv_nsec = (waited < SHORT_US ? SHORT_PAUSE_US : LONG_PAUSE_US) * 1000L};
    if (waited >= SPIN_US) nanosleep(&ts, NULL);
    rc = compute_done(t->c, mark, e);
  }
  return rc > 0 ? 0 : with_exit(t, TRAINER_SYSTEM, rc);
}

/* The host's part. ------------------------------------------------------------------------------------------------- */

/* Elements of the input stage for these rows of a batch. */
static struct span in_stage(const struct trainer *t, const struct slot *s, size_t row, size_t rows) {
  size_t width = t->rows ? COMPUTE_ROW_NUMBER : t->data.dim;
  return span_of(s->x, row * width, rows * width);
}

static struct span stamp(const struct slot *s, enum slot_stamp at) {
  return span_of(s->stamps, (size_t)at * COMPUTE_STAMP, COMPUTE_STAMP);
}

/* Sends this rank's requests to the others, with the gradients. */
static void set_flags(struct trainer *t, struct slot *s) {
  struct saving *v = &t->save;
  unsigned now = t->requested = rdzv_requested(t->rdzv), writer = 0;
  float *flags = compute_host(t->c, span_of(s->flags, 0, SLOT_FLAGS));
  bool stops = (now & RDZV_STOP) && !(now & RDZV_LOST); /* a rank that lost its agent leaves alone */
  flags[0] = stops || *t->sigterm ? 1.0f : 0.0f;        /* MODEL_STOP is the first flag */
  flags[MODEL_CHECKPOINT - MODEL_STOP] = now & RDZV_CHECKPOINT ? 1.0f : 0.0f;

  /* Rank 0: once per checkpoint that is due by the clock, which all ranks begin when they have read the flag; and which
   * of the last two is on disk. One begins only after the one before is written or given up. */
  uint64_t every = t->o.checkpoint_every.ms * 1000;
  if (every && v->writer && s->begun_us - v->clock_us >= every) {
    v->clock_us = s->begun_us;
    writer = WRITER_CLOCK;
  }
  if (v->written) writer |= v->written == v->due[0] ? WRITER_LAST : v->written == v->due[1] ? WRITER_BEFORE : 0u;
  flags[MODEL_WRITER - MODEL_STOP] = (float)writer;
  memcpy(s->due, v->due, sizeof s->due); /* equal on all ranks, because they queue the same step */
}

/* The device's part. ----------------------------------------------------------------------------------------------- */

static int put_stamp(struct trainer *t, struct slot *s, enum slot_stamp at, struct err *e) {
  return compute_copy_and_stamp(t->c, (struct span){0}, (struct span){0}, stamp(s, at), e);
}

/* Gradients of a bucket, at least. */
static size_t bucket_size(const struct trainer *t) {
  return (size_t)(t->o.bucket_cap_mb * 1048576.0 / sizeof(float));
}

/* Called by model_backward: gradients from `at` on are ready. */
int trainer_reduce_bucket(void *trainer, size_t at, struct err *e) {
  struct trainer *t = trainer;
  if (at > 0 && t->bucket_end - at < bucket_size(t)) return with_coll_exit(t, coll_progress(t->coll, e));
  struct span s = span_of(t->model.grads, at, t->bucket_end - at);
  t->bucket_end = at;
  return with_coll_exit(t, coll_all_reduce_begin(t->coll, t->c, s, &t->tickets[t->n_tickets++], e));
}

int trainer_enqueue_gradients(struct trainer *t, struct slot *s, const struct sampler_share *g, model_ready_fn ready,
                              struct err *e) {
  size_t rows = (size_t)g->count, dim = t->data.dim;
  struct span classes = span_of(t->model.target, 0, rows), stage = in_stage(t, s, 0, rows);
  struct span input = span_of(t->model.act[0], 0, rows * dim);
  struct compute_loss_desc loss = {
      .kind = t->o.loss, .weight = (double)g->count / (double)g->global, .rank_tag = (float)(t->rank + 1)};
  t->n_tickets = 0;
  t->bucket_end = t->model.n_room;
  int rc = compute_copy_and_stamp(t->c, model_extra_span(&t->model, MODEL_STOP, SLOT_FLAGS),
                                  span_of(s->flags, 0, SLOT_FLAGS), stamp(s, STAMP_BEGIN), e);
  if (rc == 0 && t->rows)
    rc = compute_rows_gather(t->c, t->rows, input, stage, e);
  else if (rc == 0)
    rc = compute_copy(t->c, input, stage, e);
  if (rc == 0 && t->data.labels) rc = compute_copy(t->c, classes, span_of(s->classes, 0, rows), e);
  if (rc == 0) rc = put_stamp(t, s, STAMP_INPUT, e);
  if (rc == 0) rc = model_forward(&t->model, rows, e);
  if (rc == 0) rc = model_loss(&t->model, &loss, t->o.loss == COMPUTE_CROSS_ENTROPY ? classes : input, rows, e);
  size_t part = t->world > 1 ? bucket_size(t) : 0;
  return rc ? rc : model_backward(&t->model, rows, part, ready, t, e);
}

int trainer_enqueue_update(struct trainer *t, struct slot *s, struct err *e) {
  /* On a CPU this wait is the part that the backward pass did not hide. */
  uint64_t from = monotonic_us();
  int rc = 0;
  if (t->world > 1) rc = put_stamp(t, s, STAMP_BACKWARD, e);
  for (int i = 0; i < t->n_tickets && rc == 0; i++) rc = with_coll_exit(t, coll_wait(t->coll, t->tickets[i], e));
  s->exposed_us = monotonic_us() - from;
  if (rc == 0 && t->world > 1) rc = put_stamp(t, s, STAMP_SUMMED, e);
  if (rc) return rc;

  struct compute_update u = {.param = model_params_span(&t->model),
                             .grad = model_grads_span(&t->model),
                             .bad = model_extra_span(&t->model, MODEL_BAD, 1),
                             .counters = span_of(s->counters, 0, COMPUTE_COUNTERS)};
  rc = compute_opt_step(t->c, t->opt, &u, e);
  return rc ? rc
            : compute_copy_and_stamp(t->c, span_of(s->results, 0, MODEL_EXTRAS),
                                     model_extra_span(&t->model, 0, MODEL_EXTRAS), stamp(s, STAMP_END), e);
}

int trainer_enqueue_step(struct trainer *t, struct slot *s, const struct sampler_share *g, struct err *e) {
  int rc = trainer_enqueue_gradients(t, s, g, trainer_reduce_bucket, e);
  return rc ? rc : trainer_enqueue_update(t, s, e);
}

/* In order. -------------------------------------------------------------------------------------------------------- */

void trainer_fill_input(struct trainer *t, struct slot *s, const struct sampler_share *g) {
  for (size_t r = 0; r < (size_t)g->count; r++) {
    uint64_t sample = permutation_at(&t->perm, g->first + r);
    float *at = compute_host(t->c, in_stage(t, s, r, 1));
    if (t->rows)
      memcpy(at, &sample, sizeof sample);
    else
      dataset_sample(&t->data, sample, at);
    if (t->data.labels) *compute_host(t->c, span_of(s->classes, r, 1)) = dataset_label(&t->data, sample);
  }
}

int trainer_queue_step(struct trainer *t, struct err *e) {
  struct sampler_share g = sampler_share(&t->sampler, t->queued.position, t->rank, t->world);
  struct slot *s = slots_next(&t->slots);
  t->exit = TRAINER_SYSTEM; /* unless another cause is set below */
  s->begun_us = monotonic_us();
  trainer_fill_input(t, s, &g);
  s->input_us = monotonic_us() - s->begun_us;
  s->exposed_us = s->calls_us = 0;
  memset(compute_host(t->c, stamp(s, STAMP_BEGIN)), 0, sizeof(uint64_t) * STAMPS);
  set_flags(t, s);
  uint64_t from = monotonic_us();
  bool verified = t->verify.gradients && trainer_verify_due(t);
  int rc = verified ? trainer_enqueue_verified_step(t, s, e) : trainer_launch_captured(t, s, &g, e);
  bool launched = rc == 0 && !verified;
  if (rc == 1) rc = trainer_enqueue_step(t, s, &g, e);
  if (rc == 0) rc = compute_record(t->c, &s->mark, e);
  if (rc) return rc;
  s->calls_us = monotonic_us() - from;
  struct run_position *p = &t->queued;
  p->step++;
  p->position += g.global;
  if (p->position >= t->sampler.samples) {
    p->position = 0;
    p->epoch++;
    t->perm = sampler_epoch(&t->sampler, p->epoch);
  }
  s->after = t->queued;
  s->samples = g.global;
  slots_push(&t->slots);
  /* Last: even if this reports an error, the step may complete, and then it must be in its slot. */
  return launched ? with_coll_exit(t, coll_progress(t->coll, e)) : 0;
}

static uint64_t ns_between(const uint64_t *from, const uint64_t *to) {
  return *to > *from ? *to - *from : 0;
}

/* The time of a step starts when the step before was read, or when this one was begun, whichever is later. A step of one
 * rank has no sums to wait for. If a device runs ahead and has no clock, its times are unknown. */
static void note_times(struct trainer *t, const struct slot *s, uint64_t from, uint64_t now) {
  uint64_t since = s->begun_us > t->read_us ? s->begun_us : t->read_us, at[STAMPS];
  struct timing *ms = &t->timing;
  *ms = (struct timing){.step = now - since,
                        .input = s->input_us,
                        .wait = now - from,
                        .samples = s->samples,
                        .checkpoint = t->checkpoint_us};
  ms->compute = ms->exposed = ms->device_input = ms->idle = (double)NAN;
  t->checkpoint_us = 0;
  t->read_us = now;
  t->samples += s->samples;
  t->steps++;
  memcpy(at, compute_host(t->c, stamp(s, STAMP_BEGIN)), sizeof at);
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

static int check_finite(struct trainer *t, const float *extras, struct err *e) {
  char subject[SUBJECT_MAX], before[64] = "";
  const struct compute_opt_counters *v = &t->counters;
  unsigned long long step = t->done.step;
  if (isfinite(t->loss) && isfinite(v->grad_norm)) {
    t->bad_in_row = 0;
    return 0;
  }
  if (extras[MODEL_BAD] == 1)
    snprintf(subject, sizeof subject, "the loss of rank %.0f is", (double)extras[MODEL_BAD_RANK] - 1);
  else if (extras[MODEL_BAD] > 1)
    snprintf(subject, sizeof subject, "the losses of %.0f ranks are", (double)extras[MODEL_BAD]);
  else
    snprintf(subject, sizeof subject, "the %s", isfinite(t->loss) ? "gradients are" : "loss is");
  if (++t->bad_in_row <= (uint64_t)t->o.max_skipped) {
    uint64_t now = monotonic_us();
    if (t->rank != 0 || (t->bad_logged_us && now - t->bad_logged_us < LOG_EVERY_US)) return 0;
    t->bad_logged_us = now;
    if (isfinite(v->grad_norm))
      log_warn("%s not finite at step %llu, but the gradients are", subject, step);
    else
      log_warn("%s not finite at step %llu: step skipped (%llu so far)", subject, step, (unsigned long long)v->skipped);
    return 0;
  }
  if (t->o.max_skipped == 1) snprintf(before, sizeof before, ", as in the step before");
  if (t->o.max_skipped > 1)
    snprintf(before, sizeof before, ", as in the %lld steps before", (long long)t->o.max_skipped);
  return with_exit(
      t, TRAINER_DIVERGED,
      err_set(e, -ERANGE, "%s not finite at step %llu%s; try a smaller --lr, or scale the data with --scale%s", subject,
              step, before,
              t->o.checkpoint_dir
                  ? "; start over with --resume none, because the last checkpoints may already have diverged"
                  : ""));
}

int trainer_read_step(struct trainer *t, struct err *e) {
  struct slot *s = slots_oldest(&t->slots);
  uint64_t from = monotonic_us();
  int rc = trainer_wait(t, s->mark, s->after.step, e);
  if (rc) return rc;
  float x[MODEL_EXTRAS];
  memcpy(x, compute_host(t->c, span_of(s->results, 0, MODEL_EXTRAS)), sizeof x);
  if (isinf(x[MODEL_BAD])) {
    return with_exit(
        t, TRAINER_LOST,
        err_set(e, -ECONNABORTED, "another rank left the round before step %llu", (unsigned long long)s->after.step));
  }
  memcpy(&t->counters, compute_host(t->c, span_of(s->counters, 0, COMPUTE_COUNTERS)), sizeof t->counters);
  note_times(t, s, from, monotonic_us());
  t->done = s->after;
  t->loss = (double)x[MODEL_LOSS];
  t->stop |= x[MODEL_STOP] > 0;
  t->checkpoint |= x[MODEL_CHECKPOINT] > 0;
  /* Only one rank sets these bits, so a float holds them exactly. */
  unsigned writer = x[MODEL_WRITER] > 0 && x[MODEL_WRITER] < 8 ? (unsigned)x[MODEL_WRITER] : 0;
  t->clock |= (writer & WRITER_CLOCK) != 0;
  if (writer & WRITER_LAST) trainer_save_report(t, s->due[0]);
  if (writer & WRITER_BEFORE) trainer_save_report(t, s->due[1]);
  slots_pop(&t->slots);
  return check_finite(t, x, e);
}

static int read_and_report(struct trainer *t, struct err *e) {
  int rc = trainer_read_step(t, e);
  if (rc) return rc;
  if (!t->phase_us[PHASE_FIRST_STEP]) trainer_end_phase(t, PHASE_FIRST_STEP);
  return trainer_report_step(t, e);
}

int trainer_discard_queued(struct trainer *t, struct err *e) {
  struct span stage = span_of(t->slots.v[0].counters, 0, COMPUTE_COUNTERS); /* free when the steps are read */
  struct compute_opt_counters now;
  int rc = with_exit(t, TRAINER_SYSTEM, trainer_await_queue(t, e));
  if (rc) return rc;
  /* Reads the steps that completed. The device counts one update or one skip per step, and the count behind a step lies
   * in that step's slot. If it did not grow, the update was blocked, and so were those of all later steps. */
  for (struct slot *s; rc == 0 && (s = slots_oldest(&t->slots)); rc = read_and_report(t, e)) {
    memcpy(&now, compute_host(t->c, span_of(s->counters, 0, COMPUTE_COUNTERS)), sizeof now);
    if (trainer_steps_counted(&now) == trainer_steps_counted(&t->counters)) break;
  }
  slots_clear(&t->slots);
  if (rc) return rc;
  rc = compute_opt_read(t->c, t->opt, stage, e);
  if (rc == 0) rc = trainer_await_queue(t, e);
  if (rc) return with_exit(t, TRAINER_SYSTEM, rc);
  memcpy(&now, compute_host(t->c, stage), sizeof now);
  t->queued = t->done;
  t->perm = sampler_epoch(&t->sampler, t->queued.epoch);
  if (trainer_steps_counted(&now) == trainer_steps_counted(&t->counters)) return 0;
  return with_exit(t, TRAINER_SYSTEM,
                   err_set(e, -EPROTO, "the optimizer counted %llu steps, but %llu were read",
                           (unsigned long long)trainer_steps_counted(&now),
                           (unsigned long long)trainer_steps_counted(&t->counters)));
}

/* The loop: queue a step, read the step that is due, act on its results.
 *
 *   queue step n                 the device works on n-1, n-2, ...
 *   read step n-depth+1          only if every slot is taken, so the host never waits for the step it has just queued
 *   act                          stop or checkpoint: at the same step on every rank, because all read the same numbers
 *
 * With one slot, as on a CPU, the loop reads the step that it has just queued. With several, up to depth-1 more steps
 * are queued when it learns of a stop, and they complete normally. Some actions need the run to stand still: a
 * checkpoint that was requested, the end. Before them the loop drains: it reads all queued steps. */

/* Sleeps until the next step may start. A signal ends the sleep. */
static void throttle(struct trainer *t) {
  uint64_t now = monotonic_us(), gap = t->o.throttle > 0 ? (uint64_t)(1e6 / t->o.throttle) : 0;
  if (gap && t->next_step_us > now && !*t->sigterm) {
    uint64_t us = t->next_step_us - now;
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&ts, NULL);
    now = t->next_step_us;
  }
  t->next_step_us = now + gap;
}

static int drain(struct trainer *t, struct err *e) {
  int rc = 0;
  while (rc == 0 && slots_oldest(&t->slots)) rc = read_and_report(t, e);
  return rc;
}

/* A checkpoint has only state that all ranks agree on. */
static int verify_saved(struct trainer *t, struct err *e) {
  return t->o.checkpoint_dir ? trainer_verify_state(t, e) : 0;
}

static int begin_save(struct trainer *t, struct err *e) {
  int rc = verify_saved(t, e);
  return rc ? rc : trainer_save_begin(t, e);
}

/* Some rank was asked for a checkpoint, and all ranks are here. Rank 0 writes it, and all report it. */
static int save_as_asked(struct trainer *t, struct err *e) {
  int rc = drain(t, e);
  if (rc == 0) rc = verify_saved(t, e);
  if (rc == 0) rc = trainer_save_now(t, true, e);
  if (rc) return rc;
  t->checkpoint = t->clock = false;
  if (!t->o.checkpoint_dir) return 0;
  trainer_save_report(t, t->done.step);
  if (t->rank == 0) log_info("checkpoint written at step %llu, as requested", (unsigned long long)t->done.step);
  if (rdzv_checkpointed(t->rdzv, t->done.step)) log_warn("%s", rdzv_error(t->rdzv));
  return 0;
}

int trainer_loop(struct trainer *t, struct err *e) {
  uint64_t every = t->o.checkpoint_every.steps;
  int rc = 0;
  /* Without a folder there are no checkpoints to ask for. */
  if (t->o.checkpoint_dir && rdzv_can_checkpoint(t->rdzv)) log_warn("%s", rdzv_error(t->rdzv));
  t->begin_us = t->reported_us = t->rate.since_us = monotonic_us();
  while (t->queued.step < t->last_step && !t->stop && rc == 0) {
    throttle(t);
    rc = trainer_asked_to_leave(t, e);
    if (rc == 0 && trainer_verify_due(t)) {
      rc = drain(t, e);
      if (rc == 0) rc = trainer_verify_state(t, e);
    }
    if (rc == 0) rc = trainer_queue_step(t, e);
    if (rc == 0 && every && t->queued.step % every == 0) rc = begin_save(t, e);
    if (rc == 0 && slots_full(&t->slots)) rc = read_and_report(t, e);
    if (rc == 0 && t->clock) rc = begin_save(t, e);
    t->clock = false;
    if (rc == 0) rc = trainer_save_poll(t, e);
    if (rc == 0 && t->checkpoint) rc = save_as_asked(t, e);
  }
  if (rc == 0) rc = drain(t, e);
  if (rc == 0 && !t->checkpoint) rc = verify_saved(t, e);
  if (rc) return rc;
  return t->checkpoint ? save_as_asked(t, e) : trainer_save_now(t, t->done.step >= t->last_step, e);
}
