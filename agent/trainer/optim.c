/* Thin on purpose: which state an optimizer has and which of compute's fused updates it is. A schedule of the
 * learning rate would live here, as a function of `updates`. */

#include "agent/trainer/optim.h"

int optim_states(enum optim_kind kind) {
  return kind == OPTIM_ADAM ? 2 : 1;
}

int optim_init(struct optim *o, struct compute *c, const struct optim_hyper *h, size_t n_params,
               struct err *e) {
  *o = (struct optim){.c = c, .h = *h, .n_states = optim_states(h->kind)};
  for (int i = 0; i < o->n_states; i++) {
    int rc = compute_alloc(c, COMPUTE_STATE, n_params, &o->state[i], e);
    if (rc) return err_wrap(e, "the optimizer's memory");
  }
  return 0;
}

void optim_finish(struct optim *o) {
  for (int i = 0; i < o->n_states; i++) compute_free(o->c, o->state[i]);
  *o = (struct optim){0};
}

int optim_step(struct optim *o, struct span params, struct span grads, struct err *e) {
  const struct optim_hyper *h = &o->h;
  struct span s0 = {o->state[0], 0, params.n}, s1 = {o->state[1], 0, params.n};
  o->updates++;
  if (h->kind == OPTIM_SGD) {
    struct compute_sgd sgd = {.lr = (float)h->lr, .momentum = (float)h->momentum};
    return compute_sgd_step(o->c, &sgd, params, grads, s0, e);
  }
  struct compute_adam adam = {
      .lr = (float)h->lr,
      .beta1 = (float)h->beta1,
      .beta2 = (float)h->beta2,
      .eps = (float)h->eps,
      .step = o->updates,
  };
  return compute_adam_step(o->c, &adam, params, grads, s0, s1, e);
}
