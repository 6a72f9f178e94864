/* The loop: queue a step, read the one that is due, act on what it says.
 *
 *   queue step n                 the device works on n-1, n-2, ...
 *   read step n-depth+1          only when every slot is taken; so the host never waits for the step that it has just queued
 *   act                          stop, checkpoint: at the same step on every rank, as all read the same numbers at the same place
 *
 * With one slot, as on a CPU, the step that is queued is the one that is read. With several, "stop" is known when up to depth-1
 * more steps are queued; they are simply done. Before whatever wants the run to stand still (a checkpoint that somebody waits for, the end), what is
 * under way is read to the end: drained.
 *
 * Evaluation stands between two steps as well: all ranks come to it at the same step, and what it computes it computes behind that one.
 *
 * --throttle holds back the queueing, so a throttled run stands still between two steps, not within one. */

#include "agent/trainer/run/trainer.h"

#include "common/log.h"

#include <time.h>

/* Not before the next step's turn. A signal ends the wait. */
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

int trainer_take(struct trainer *t, struct err *e) {
  int rc = trainer_read(t, e);
  if (rc) return rc;
  if (!t->phase_us[PHASE_FIRST_STEP]) trainer_phase(t, PHASE_FIRST_STEP);
  return trainer_report_step(t, e);
}

int trainer_drain(struct trainer *t, struct err *e) {
  int rc = 0;
  while (rc == 0 && slots_oldest(&t->slots)) rc = trainer_take(t, e);
  return rc;
}

/* Some rank was asked for it, and all have come here. It is rank 0 that writes; the others tell of it when it has. */
static int asked(struct trainer *t, struct err *e) {
  int rc = trainer_drain(t, e);
  if (rc == 0) rc = trainer_save_now(t, true, e);
  if (rc) return rc;
  t->checkpoint = t->clock = false;
  if (!t->o.checkpoint_dir) return 0;
  if (t->rank == 0) log_info("checkpoint written at step %llu, as asked", (unsigned long long)t->done.step);
  if (rdzv_checkpointed(t->rdzv, t->done.step)) log_warn("%s", rdzv_error(t->rdzv));
  return 0;
}

/* Not when told to stop: there may be little time. */
static int evaluate(struct trainer *t, struct err *e) {
  if (!trainer_evaluation_is_due(t, t->queued.step)) return 0;
  int rc = trainer_drain(t, e);
  return rc || t->stop ? rc : trainer_evaluate(t, e);
}

static int step(struct trainer *t, struct err *e) {
  uint64_t every = t->o.checkpoint_every.steps;
  throttle(t);
  int rc = trainer_asked_to_leave(t, e);
  if (rc == 0) rc = trainer_queue(t, e);
  if (rc == 0 && every && t->queued.step % every == 0) rc = trainer_save_begin(t, e);
  if (rc == 0 && slots_full(&t->slots)) rc = trainer_take(t, e);
  if (rc == 0 && t->clock) rc = trainer_save_begin(t, e);
  t->clock = false;
  if (rc == 0) rc = trainer_save_poll(t, e);
  if (rc == 0 && t->checkpoint) rc = asked(t, e);
  return rc || t->queued.step == t->last_step ? rc : evaluate(t, e); /* the end has its own */
}

int trainer_loop(struct trainer *t, struct err *e) {
  int rc = 0;
  /* Without a place for them there is nothing to wait for. */
  if (t->o.checkpoint_dir && rdzv_can_checkpoint(t->rdzv)) log_warn("%s", rdzv_error(t->rdzv));
  t->begin_us = t->reported_us = t->rate.since_us = trainer_now_us();
  while (t->queued.step < t->last_step && !t->stop && rc == 0) rc = step(t, e);
  if (rc == 0) rc = trainer_drain(t, e);
  if (rc) return rc;
  rc = t->checkpoint ? asked(t, e) : trainer_save_now(t, t->done.step >= t->last_step, e);
  return rc ? rc : evaluate(t, e);
}
