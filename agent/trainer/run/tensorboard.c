/* SPDX-License-Identifier: Apache-2.0 */
/* --tensorboard: the curves of a run, which rank 0 writes through librdzv.
 *
 * The ranks agree on a step before each round. TensorBoard drops what an earlier round did beyond it. A folder that
 * cannot be written, or a full disk, costs the curves alone: one warning, and the run continues. */

#include "agent/trainer/run/trainer.h"

#include "common/system/log.h"

#include <math.h>

static void log_values(struct trainer *t, const char *const *tags, const double *values, size_t n) {
  if (rdzv_tensorboard_log(t->board, t->done.step, tags, values, n) == 0) {
    t->board_failed = false;
    return;
  }
  if (!t->board_failed)
    log_warn("%s; the run continues, and the curves lack its steps until that works again", rdzv_error(NULL));
  t->board_failed = true;
}

void trainer_board_begin(struct trainer *t) {
  if (t->rank != 0 || !t->o.tensorboard) {
    trainer_board_close(t); /* this process may have been rank 0 before */
    return;
  }
  if (!t->board && rdzv_tensorboard_open(&t->board, t->o.tensorboard)) {
    log_warn("%s; the run continues without --tensorboard", rdzv_error(NULL));
    return;
  }
  if (rdzv_tensorboard_resumed(t->board, t->done.step)) log_warn("%s", rdzv_error(NULL));
}

void trainer_board_step(struct trainer *t) {
  static const char *const tags[] = {"train/loss", "train/learning_rate", "train/grad_norm",
                                     "train/samples_per_second"};
  double values[] = {t->bad_in_row > 0 ? (double)NAN : t->loss, t->lr_value, (double)t->counters.grad_norm,
                     t->rate.value};
  if (!t->board || t->done.step % (uint64_t)t->o.metrics_every != 0) return;
  log_values(t, tags, values, sizeof tags / sizeof *tags);
}

void trainer_board_evaluation(struct trainer *t, double loss, double accuracy) {
  static const char *const tags[] = {"eval/loss", "eval/accuracy"};
  if (t->board) log_values(t, tags, (double[]){loss, accuracy}, isnan(accuracy) ? 1 : 2);
}

void trainer_board_close(struct trainer *t) {
  rdzv_tensorboard_close(t->board);
  t->board = NULL;
}
