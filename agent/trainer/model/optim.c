/* From what people say to what compute is told.
 *
 * The learning rate is a function of the number of steps that are done, so a run that was interrupted goes on with the right one, and
 * nothing of it is in a checkpoint. The definitions are those of transformers (get_constant_schedule_with_warmup,
 * get_linear_schedule_with_warmup, get_cosine_schedule_with_warmup with half a wave, get_polynomial_decay_schedule_with_warmup), which
 * are torch.optim.lr_scheduler.LambdaLR with
 *
 *   warm-up    steps / warmup                      so the very first step of a warm-up has a rate of 0
 *   then       left = 1 - (steps - warmup) / (total - warmup)
 *              constant 1; linear left; cosine (1 + cos(pi (1 - left))) / 2; polynomial left ^ power
 *
 * and all but the constant one go down to lr_min instead of 0, as the polynomial one does there (lr_end) and the cosine one in
 * get_cosine_with_min_lr_schedule_with_warmup. The warm-up begins at 0 in any case. Steps past the end have lr_min. */

#include "agent/trainer/optim.h"

#include <math.h>

#define PI 3.14159265358979323846

struct compute_opt_desc optim_desc(const struct optim_hyper *h, size_t n_params, bool scale_loss) {
  return (struct compute_opt_desc){.kind = h->kind,
                                   .n = n_params,
                                   .momentum = h->momentum,
                                   .beta1 = h->beta1,
                                   .beta2 = h->beta2,
                                   .eps = h->eps,
                                   .weight_decay = h->weight_decay,
                                   .clip_norm = h->clip_norm,
                                   .scale_loss = scale_loss};
}

/* 1 at the end of the warm-up, 0 at the end of the run. */
static double height(const struct optim_hyper *h, double left) {
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
  return h->lr_min + (h->lr - h->lr_min) * height(h, left);
}
