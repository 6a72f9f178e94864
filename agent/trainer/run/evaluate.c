/* SPDX-License-Identifier: Apache-2.0 */
/* Scores the weights on samples that they are not trained on.
 *
 * All ranks do it together, between two steps. Each takes one contiguous share of the set, in pieces as large as its
 * share of a training batch, through activations that the next step overwrites anyway. Gradients, weights and the
 * optimizer do not change, so a run with evaluation ends with the same bytes as one without.
 *
 * The loss of a piece is weighted by its part of the whole set, so the sum over pieces and ranks is the mean over the
 * set. rmse is the root of the mean square over the whole set. (In training it depends on the shares.) The device adds
 * pieces up as floats. After some pieces the host adds those sums up in double, because a million small floats lose
 * precision and counts beyond 2^24 are not exact. The order of all sums is fixed for a given world, so the same weights
 * give the same digits.
 *
 * Two stages take turns, so that the host fills one while the device reads the other. */

#include "agent/trainer/run/trainer.h"

#include <math.h>

enum { PIECES_MAX = 64, ROWS_MAX = 1 << 23 };

bool trainer_evaluation_is_due(const struct trainer *t, uint64_t step) {
  if (!t->o.eval_data || (t->evaluation.made && t->evaluation.step == step)) return false;
  return step == t->last_step || (t->o.eval_every && step % (uint64_t)t->o.eval_every == 0);
}

int trainer_evaluation_alloc(struct trainer *t, struct err *e) {
  struct evaluation *v = &t->evaluation;
  size_t rows = t->model.max_rows;
  int rc = 0;
  if (!t->o.eval_data) return 0;
  for (int i = 0; i < EVAL_STAGES && rc == 0; i++) {
    rc = compute_alloc(t->c, COMPUTE_STAGE, rows * t->data.dim, &v->x[i], e);
    if (rc == 0) rc = compute_alloc(t->c, COMPUTE_STAGE, rows, &v->classes[i], e);
  }
  if (rc == 0) rc = compute_alloc(t->c, COMPUTE_STATE, MODEL_SCORES, &v->scores, e);
  return rc ? rc : compute_alloc(t->c, COMPUTE_STAGE, MODEL_SCORES, &v->stage, e);
}

void trainer_evaluation_free(struct trainer *t) {
  struct evaluation *v = &t->evaluation;
  for (int i = 0; i < EVAL_STAGES; i++) {
    compute_free(t->c, v->x[i]);
    compute_free(t->c, v->classes[i]);
    v->x[i] = v->classes[i] = NULL;
  }
  compute_free(t->c, v->scores);
  compute_free(t->c, v->stage);
  v->scores = v->stage = NULL;
}

/* Scores samples [from, from + rows), through stage k. */
static int score_piece(struct trainer *t, uint64_t from, size_t rows, int k, struct err *e) {
  struct evaluation *v = &t->evaluation;
  size_t dim = t->data.dim;
  struct span x = span_of(v->x[k], 0, rows * dim), classes = span_of(v->classes[k], 0, rows);
  struct span input = span_of(t->model.act[0], 0, rows * dim), target = span_of(t->model.target, 0, rows);
  bool classify = t->o.loss == COMPUTE_CROSS_ENTROPY;
  for (size_t r = 0; r < rows; r++) {
    dataset_sample(&v->data, from + r, compute_host(t->c, x) + r * dim);
    if (classify) compute_host(t->c, classes)[r] = dataset_label(&v->data, from + r);
  }
  struct compute_loss_desc loss = {.kind = classify ? COMPUTE_CROSS_ENTROPY : COMPUTE_MSE,
                                   .weight = (double)rows / (double)v->data.n};
  t->model.input = input;
  int rc = compute_copy(t->c, input, x, e);
  if (rc == 0 && classify) rc = compute_copy(t->c, target, classes, e);
  return rc ? rc
            : model_score(&t->model, &loss, classify ? target : input, rows, span_of(v->scores, 0, MODEL_SCORES), e);
}

/* Scores samples [from, to). */
static int score_share(struct trainer *t, uint64_t from, uint64_t to, double sums[2], struct err *e) {
  struct evaluation *v = &t->evaluation;
  struct span stage = span_of(v->stage, 0, MODEL_SCORES), scores = span_of(v->scores, 0, MODEL_SCORES);
  struct compute_mark marks[EVAL_STAGES], mark;
  uint64_t pieces = 0, rows_max = t->model.max_rows, together = ROWS_MAX / rows_max;
  if (together > PIECES_MAX) together = PIECES_MAX;
  if (together == 0) together = 1;
  int rc = compute_fill(t->c, scores, 0, e);
  while (rc == 0 && from < to) {
    size_t rows = (size_t)(to - from < rows_max ? to - from : rows_max);
    int k = (int)(pieces % EVAL_STAGES);
    if (pieces >= EVAL_STAGES) rc = trainer_wait(t, marks[k], t->done.step, e);
    if (rc == 0) rc = score_piece(t, from, rows, k, e);
    if (rc == 0) rc = compute_record(t->c, &marks[k], e);
    from += rows;
    tally_add(&t->tally, rows);
    pieces++;
    if (rc || (pieces % together && from < to)) continue;
    /* Adds the device's sums to the host's. */
    rc = compute_copy(t->c, stage, scores, e);
    if (rc == 0) rc = compute_fill(t->c, scores, 0, e);
    if (rc == 0) rc = compute_record(t->c, &mark, e);
    if (rc == 0) rc = trainer_wait(t, mark, t->done.step, e);
    if (rc) return rc;
    sums[0] += (double)compute_host(t->c, stage)[0];
    sums[1] += (double)compute_host(t->c, stage)[MODEL_SCORE_CORRECT];
    /* reports progress, so that a long evaluation does not look like a hang */
    rdzv_progress(t->rdzv, t->done.step, t->last_step == UINT64_MAX ? 0 : t->last_step, t->loss,
                  t->rate.value / t->world);
    rc = with_coll_exit(t, coll_progress(t->coll, e));
  }
  return rc;
}

int trainer_evaluate(struct trainer *t, struct err *e) {
  struct evaluation *v = &t->evaluation;
  /* one batch that is the whole set */
  struct sampler whole = {.samples = v->data.n, .batch = v->data.n};
  struct sampler_share mine = sampler_share(&whole, 0, t->rank, t->world);
  double sums[2] = {0};
  uint64_t from = trainer_now_us();
  t->exit = TRAINER_SYSTEM;
  tally_begin(&t->tally, mine.count);
  wait_log_begin(t->waits, &t->tally, "samples of this rank", "evaluating at step %llu",
                 (unsigned long long)t->done.step);
  compute_range_push(t->c, "evaluation");
  int rc = score_share(t, mine.first, mine.first + mine.count, sums, e);
  compute_range_pop(t->c);
  if (rc == 0) rc = with_coll_exit(t, coll_sum(t->coll, sums, 2, e));
  wait_log_end(t->waits);
  if (rc) return rc;
  v->step = t->done.step;
  v->made = true;
  double loss = t->o.loss == COMPUTE_RMSE ? sqrt(sums[0]) : sums[0];
  double accuracy = v->data.labels ? sums[1] / (double)v->data.n : (double)NAN;
  return trainer_report_evaluation(t, loss, accuracy, trainer_now_us() - from, e);
}
