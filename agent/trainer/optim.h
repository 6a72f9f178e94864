#ifndef AGENT_TRAINER_OPTIM_H
#define AGENT_TRAINER_OPTIM_H

/* The optimizer: hyperparameters, its state (flat buffers as long as the weights), and the number of
 * updates so far. */

#include "agent/trainer/compute.h"

enum optim_kind { OPTIM_SGD, OPTIM_ADAM };
enum { OPTIM_STATES_MAX = 2 };

struct optim_hyper {
  enum optim_kind kind;
  double lr, momentum, beta1, beta2, eps;
};

struct optim {
  struct compute *c;
  struct optim_hyper h;
  uint64_t updates;
  int n_states; /* SGD: momentum. Adam: mean, mean square */
  struct compute_buf *state[OPTIM_STATES_MAX];
};

int optim_states(enum optim_kind kind);
int optim_init(struct optim *o, struct compute *c, const struct optim_hyper *h, size_t n_params,
               struct err *e);
void optim_finish(struct optim *o); /* also after a failed optim_init */
int optim_step(struct optim *o, struct span params, struct span grads, struct err *e);

#endif
