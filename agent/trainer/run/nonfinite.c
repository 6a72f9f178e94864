/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank's gradients are not finite.
 *
 * The sum of the gradients over the ranks tells that a step is bad, but not because of whom. The loss of a rank travels
 * with its number; behind finite losses nobody is known. Looking at each rank's own gradients takes one more pass over
 * them, and must be done before they are summed. So it is not done in every step:
 *
 *   bad step     All ranks read the same results, so all know of it at the same step, and that it names no rank.
 *   next steps   As long as the last step that was read is such a one, the steps that are queued are looked at. All
 *                ranks queue them without a capture, and begin no sum before the backward pass is over. Each rank waits
 *                for the squares of its own gradients. If they are not finite, it puts its number where that of a bad
 *                loss would be. Then the sums go on as always.
 *   result       The number comes with the results of the step, and the message has it. */

#include "agent/trainer/run/nonfinite.h"

#include <math.h>
#include <string.h>

int trainer_nonfinite_alloc(struct trainer *t, struct err *e) {
  if (!t->c->ops->squares) return 0;
  int rc = compute_alloc(t->c, COMPUTE_STATE, COMPUTE_SQUARES, &t->look.squares, e);
  return rc ? rc : compute_alloc(t->c, COMPUTE_STAGE, COMPUTE_SQUARES, &t->look.stage, e);
}

void trainer_nonfinite_free(struct trainer *t) {
  compute_free(t->c, t->look.squares);
  compute_free(t->c, t->look.stage);
  t->look = (struct look){0};
}

void trainer_nonfinite_note(struct trainer *t, const struct slot *s, bool bad, bool named) {
  t->look.due = t->look.squares && t->world > 1 && bad && (!named || s->looked);
}

/* 1: they are finite, or this rank's updates are blocked and nothing of it counts. 0: they are not. */
static int read_squares(struct trainer *t, struct err *e) {
  struct compute_mark mark;
  struct span sum = span_of(t->look.squares, 0, COMPUTE_SQUARES), stage = span_of(t->look.stage, 0, COMPUTE_SQUARES);
  int rc = compute_squares(t->c, model_grads_span(&t->model), sum, e);
  if (rc == 0) rc = compute_copy(t->c, stage, sum, e);
  if (rc == 0) rc = compute_record(t->c, &mark, e);
  if (rc) return with_exit(t, TRAINER_SYSTEM, rc);
  rc = trainer_wait(t, mark, t->queued.step + 1, e);
  if (rc) return rc;
  double squares;
  memcpy(&squares, compute_host(t->c, stage), sizeof squares);
  return isfinite(squares) || isinf(compute_host(t->c, stage)[COMPUTE_SQUARES_BLOCKED]);
}

int trainer_nonfinite_look(struct trainer *t, struct err *e) {
  int fine = read_squares(t, e);
  if (fine) return fine < 0 ? fine : 0;
  float *mine = compute_host(t->c, span_of(t->look.stage, 0, 2));
  mine[0] = 1;
  mine[1] = (float)(t->rank + 1);
  int rc = compute_copy(t->c, model_extra_span(&t->model, MODEL_BAD, 2), span_of(t->look.stage, 0, 2), e);
  return with_exit(t, TRAINER_SYSTEM, rc);
}
