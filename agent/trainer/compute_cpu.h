#ifndef AGENT_TRAINER_COMPUTE_CPU_H
#define AGENT_TRAINER_COMPUTE_CPU_H

/* What the files of the CPU's compute share: compute_cpu.c (memory, layers, losses), compute_cpu_opt.c (the optimizer). */

#include "agent/trainer/compute/compute.h"

struct compute_buf {
  float *data;
  size_t n;
  enum compute_use use;
};

/* Floats that a product reads, rounded to the precision; they grow as they are needed. */
struct rounded {
  float *data;
  size_t n;
};

struct compute_cpu {
  struct compute base;
  struct rounded weights, bias, input;
};

static inline float *at(struct span s) {
  return s.buf->data + s.at;
}

float compute_cpu_opt_scale(const struct compute_opt *o);
int compute_cpu_opt_create(struct compute *c, const struct compute_opt_desc *d, struct compute_opt **out,
                           struct err *e);
void compute_cpu_opt_destroy(struct compute *c, struct compute_opt *o);
struct compute_buf *compute_cpu_opt_state(struct compute_opt *o, int i);
int compute_cpu_opt_step(struct compute *c, struct compute_opt *o, struct span param, struct span grad,
                         struct span lr, struct span bad, struct err *e);
int compute_cpu_opt_read(struct compute *c, struct compute_opt *o, struct span stage, struct err *e);
int compute_cpu_opt_set(struct compute *c, struct compute_opt *o, const struct compute_opt_counters *v,
                        struct err *e);

#endif
