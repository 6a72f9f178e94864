/* Steps that are not finite.
 *
 * A step whose gradients are not finite changes nothing: the optimizer skips it on the device, on all ranks alike, because all have the
 * same sums. Here, some steps later, it is told and counted. With fp16 that is everyday life: the loss scale begins at 65536 and is
 * halved by each such step until gradients fit, which may take 16 of them in a row before it is 1. So one is no reason to end a run. But if
 * more than --max-skipped follow each other, nothing is learned any more, and the run ends. The rank whose own loss is
 * not finite is known by the sums that travel with the gradients. Gradients that are not finite behind a finite loss are known as their sum
 * alone, which says nothing of ranks: to look at each rank's own would be one more pass over all of them in every step.
 *
 * All ranks read the same numbers and come to the same end at the same step. Rank 0 tells of it, at most once a second. */

#include "agent/trainer/run/trainer.h"

#include "common/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

enum { TELL_EVERY_US = 1000000, WHO_MAX = 64 };

static const char *who(const struct trainer *t, const float *x, char out[WHO_MAX]) {
  double bad = (double)x[MODEL_BAD];
  if (bad == 1)
    snprintf(out, WHO_MAX, "the loss of rank %.0f is", (double)x[MODEL_BAD_RANK] - 1);
  else if (bad > 1) /* a rank has a loss for each batch of the step */
    snprintf(out, WHO_MAX, "the losses of %.0f %s are", bad, t->o.update_freq > 1 ? "batches" : "ranks");
  else
    snprintf(out, WHO_MAX, "the %s", isfinite(x[MODEL_LOSS]) ? "gradients are" : "loss is");
  return out;
}

static void tell(struct trainer *t, const float *x) {
  char subject[WHO_MAX], scale[64] = "";
  const struct compute_opt_counters *v = &t->counters;
  uint64_t now = trainer_now_us();
  if (t->rank != 0 || (t->bad_told_us && now - t->bad_told_us < TELL_EVERY_US)) return;
  t->bad_told_us = now;
  if (t->scale_loss) snprintf(scale, sizeof scale, ", the loss scale is %g now", (double)v->scale);
  if (isfinite(v->grad_norm))
    log_warn("%s not finite at step %llu; its gradients are", who(t, x, subject),
             (unsigned long long)t->done.step);
  else
    log_warn("%s not finite at step %llu: the step is skipped (%llu so far)%s", who(t, x, subject),
             (unsigned long long)t->done.step, (unsigned long long)v->skipped, scale);
}

int trainer_judge(struct trainer *t, const float *extras, struct err *e) {
  char subject[WHO_MAX], before[64] = "";
  if (isfinite(t->loss) && isfinite(t->counters.grad_norm)) {
    t->bad_in_row = 0;
    return 0;
  }
  if (++t->bad_in_row <= (uint64_t)t->o.max_skipped) {
    tell(t, extras);
    return 0;
  }
  if (t->o.max_skipped == 1) snprintf(before, sizeof before, ", as in the step before");
  if (t->o.max_skipped > 1)
    snprintf(before, sizeof before, ", as in the %lld steps before", (long long)t->o.max_skipped);
  err_set(e, -ERANGE, "%s no longer a number at step %llu%s: try a smaller --lr, or --scale for the data%s",
          who(t, extras, subject), (unsigned long long)t->done.step, before,
          t->o.checkpoint_dir
              ? ", with --resume none: the last checkpoints may be of weights that grow without end"
              : "");
  return trainer_blame(t, TRAINER_DIVERGED, -ERANGE);
}
