/* SPDX-License-Identifier: Apache-2.0 */
/* The loop: queue a step, read the step that is due, act on its results.
 *
 *   queue step n                 the device works on n-1, n-2, ...
 *   read step n-depth+1          only if every slot is taken, so the host never waits for the step it has just queued
 *   act                          stop or checkpoint: at the same step on every rank, because all read the same numbers
 *
 * With one slot, as on a CPU, the loop reads the step that it has just queued. With several, up to depth-1 more steps
 * are queued when it learns of a stop, and they complete normally. Some actions need the run to stand still: a
 * checkpoint that was requested, an evaluation, the end. Before them the loop drains: it reads all queued steps.
 *
 * All ranks evaluate after the same step. --throttle delays the queueing, so a throttled run pauses between two steps
 * and not within one. */

#include "agent/trainer/run/trainer.h"

#include "common/system/log.h"

#include <time.h>

/* Sleeps until the next step may start. A signal ends the sleep. */
static void throttle(struct trainer *t) {
  uint64_t now = trainer_now_us(), gap = t->o.throttle > 0 ? (uint64_t)(1e6 / t->o.throttle) : 0;
  if (gap && t->next_step_us > now && !*t->sigterm) {
    uint64_t us = t->next_step_us - now;
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&ts, NULL);
    now = t->next_step_us;
  }
  t->next_step_us = now + gap;
}

int trainer_read_and_report(struct trainer *t, struct err *e) {
  int rc = trainer_read_step(t, e);
  if (rc) return rc;
  if (!t->phase_us[PHASE_FIRST_STEP]) trainer_end_phase(t, PHASE_FIRST_STEP);
  return trainer_report_step(t, e);
}

static int drain(struct trainer *t, struct err *e) {
  int rc = 0;
  while (rc == 0 && slots_oldest(&t->slots)) rc = trainer_read_and_report(t, e);
  return rc;
}

/* Some rank was asked for a checkpoint, and all ranks are here. Rank 0 writes it, and all report it. */
static int save_as_asked(struct trainer *t, struct err *e) {
  int rc = drain(t, e);
  if (rc == 0) rc = trainer_save_now(t, true, e);
  if (rc) return rc;
  t->checkpoint = t->clock = false;
  if (!t->o.checkpoint_dir) return 0;
  trainer_save_report(t, t->done.step);
  if (t->rank == 0) log_info("checkpoint written at step %llu, as requested", (unsigned long long)t->done.step);
  if (rdzv_checkpointed(t->rdzv, t->done.step)) log_warn("%s", rdzv_error(t->rdzv));
  return 0;
}

/* Not after a request to stop: there may be little time. */
static int evaluate_if_due(struct trainer *t, struct err *e) {
  if (!trainer_evaluation_is_due(t, t->queued.step)) return 0;
  int rc = drain(t, e);
  return rc || t->stop ? rc : trainer_evaluate(t, e);
}

int trainer_loop(struct trainer *t, struct err *e) {
  uint64_t every = t->o.checkpoint_every.steps;
  int rc = 0;
  /* Without a folder there are no checkpoints to ask for. */
  if (t->o.checkpoint_dir && rdzv_can_checkpoint(t->rdzv)) log_warn("%s", rdzv_error(t->rdzv));
  t->begin_us = t->reported_us = t->rate.since_us = trainer_now_us();
  while (t->queued.step < t->last_step && !t->stop && rc == 0) {
    throttle(t);
    rc = trainer_asked_to_leave(t, e);
    if (rc == 0) rc = trainer_queue_step(t, e);
    if (rc == 0 && every && t->queued.step % every == 0) rc = trainer_save_begin(t, e);
    if (rc == 0 && slots_full(&t->slots)) rc = trainer_read_and_report(t, e);
    if (rc == 0 && t->clock) rc = trainer_save_begin(t, e);
    t->clock = false;
    if (rc == 0) rc = trainer_save_poll(t, e);
    if (rc == 0 && t->checkpoint) rc = save_as_asked(t, e);
    if (rc == 0 && t->queued.step < t->last_step) rc = evaluate_if_due(t, e); /* the end has its own evaluation */
  }
  if (rc == 0) rc = drain(t, e);
  if (rc) return rc;
  rc = t->checkpoint ? save_as_asked(t, e) : trainer_save_now(t, t->done.step >= t->last_step, e);
  return rc ? rc : evaluate_if_due(t, e);
}
