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

const char *const optim_kind_words[] = {[COMPUTE_SGD] = "sgd", [COMPUTE_ADAM] = "adam", [COMPUTE_ADAMW] = "adamw"};
const char *const optim_decay_words[] = {[OPTIM_CONSTANT] = "constant",
                                         [OPTIM_LINEAR] = "linear",
                                         [OPTIM_COSINE] = "cosine",
                                         [OPTIM_POLYNOMIAL] = "polynomial"};

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

double optim_lr(const struct optim_hyper *h, uint64_t steps) {
  double done = (double)steps, warmup = (double)h->warmup_steps, total = (double)h->total_steps;
  if (done < warmup) return h->lr * done / warmup;
  if (h->decay == OPTIM_CONSTANT) return h->lr;
  double factor = done < total ? 1 - (done - warmup) / (total - warmup) : 0; /* from 1 at the end of the warm-up to 0 */
  if (h->decay == OPTIM_COSINE) factor = (1 + cos(PI * (1 - factor))) / 2;
  if (h->decay == OPTIM_POLYNOMIAL) factor = pow(factor, h->lr_power);
  return h->lr_min + (h->lr - h->lr_min) * factor;
}
