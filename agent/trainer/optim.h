#ifndef AGENT_TRAINER_OPTIM_H
#define AGENT_TRAINER_OPTIM_H

/* The optimizer as people describe it, and the learning rate of each step. State and counters are compute's
 * (compute_opt). Pure. */

#include "agent/trainer/compute/compute.h"

/* How the learning rate goes down from the end of the warm-up to the end of the run. */
enum optim_decay { OPTIM_CONSTANT, OPTIM_LINEAR, OPTIM_COSINE, OPTIM_POLYNOMIAL };

struct optim_hyper {
  enum compute_optim kind;
  double lr, momentum, beta1, beta2, eps, weight_decay, clip_norm;
  enum optim_decay decay;
  double lr_min, lr_power;           /* where it ends; OPTIM_POLYNOMIAL's exponent */
  int64_t warmup_steps, total_steps; /* of the whole run, warm-up included */
};

struct compute_opt_desc optim_desc(const struct optim_hyper *h, size_t n_params, bool scale_loss);
/* Of the step after `steps` steps. */
double optim_lr(const struct optim_hyper *h, uint64_t steps);

#endif
