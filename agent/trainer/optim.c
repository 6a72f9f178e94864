/* From what people say to what compute is told. */

#include "agent/trainer/optim.h"

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

double optim_lr(const struct optim_hyper *h, uint64_t steps) {
  (void)steps;
  return h->lr;
}
