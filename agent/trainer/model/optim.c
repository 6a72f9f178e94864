/* SPDX-License-Identifier: Apache-2.0 */
/* From the options to what compute takes.
 *
 * The learning rate is a function of the number of steps done, so an interrupted run continues with the right one and a
 * checkpoint does not store it. The definitions are those of transformers (get_constant_schedule_with_warmup,
 * get_linear_schedule_with_warmup, get_cosine_schedule_with_warmup with half a wave,
 * get_polynomial_decay_schedule_with_warmup). They are torch.optim.lr_scheduler.LambdaLR with
 *
 *   warm-up    steps / warmup, so the first step of a warm-up has a rate of 0
 *   then       left = 1 - (steps - warmup) / (total - warmup) constant 1; linear left; cosine (1 + cos(pi (1 - left)))
 *              / 2; polynomial left ^ power
 *
 * All but the constant one fall to lr_min instead of 0, like the polynomial one there (lr_end) and the cosine one in
 * get_cosine_with_min_lr_schedule_with_warmup. The warm-up always starts at 0. Steps past the end have lr_min. */

#include "agent/trainer/model/model.h"

#include <math.h>

#define PI 3.14159265358979323846

struct compute_opt_desc optim_desc(const struct optim_hyper *h, size_t n) {
  return (struct compute_opt_desc){.kind = h->kind,
                                   .n = n,
                                   .momentum = h->momentum,
                                   .beta1 = h->beta1,
                                   .beta2 = h->beta2,
                                   .eps = h->eps,
                                   .weight_decay = h->weight_decay,
                                   .clip_norm = h->clip_norm};
}

/* 1 at the end of the warm-up, 0 at the end of the run. */
static double decay_factor(const struct optim_hyper *h, double left) {
  switch (h->decay) {
  case OPTIM_CONSTANT: return 1;
  case OPTIM_LINEAR: return left;
  case OPTIM_COSINE: return (1 + cos(PI * (1 - left))) / 2;
  case OPTIM_POLYNOMIAL: return pow(left, h->lr_power);
  }
  return 1;
}

double optim_lr(const struct optim_hyper *h, uint64_t steps) {
  double done = (double)steps, warmup = (double)h->warmup_steps, total = (double)h->total_steps;
  if (done < warmup) return h->lr * done / warmup;
  if (h->decay == OPTIM_CONSTANT) return h->lr;
  double left = done < total ? 1 - (done - warmup) / (total - warmup) : 0;
  return h->lr_min + (h->lr - h->lr_min) * decay_factor(h, left);
}
