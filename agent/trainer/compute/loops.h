/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_COMPUTE_LOOPS_H
#define AGENT_TRAINER_COMPUTE_LOOPS_H

/* The loops of cpu.c that take time. They have the same bits on every CPU: ranks on unlike nodes make the same update
 * from the same sums, and must stay equal. Pure. */

#include <stddef.h>

/* The factors of one update; bias corrections are in them. */
struct adam_factors {
  float by;                      /* of the gradients */
  float b1, c1, b2, c2, eps;     /* c: 1 - b */
  float rate, root, decay, keep; /* p = keep p - rate m / (root sqrt(v) + eps); decay p is added to the gradient */
};

double loops_sum_squares(const float *p, size_t n);
double loops_sum_squared_differences(const float *a, const float *b, size_t n);
void loops_scale_differences(float *out, const float *a, const float *b, float by, size_t n); /* by * (a - b) */
void loops_add(float *to, const float *what, size_t n);
/* No two of the arrays overlap. */
void loops_adam(const struct adam_factors *f, float *p, float *m, float *v, const float *g, size_t n);
void loops_sgd(float mu, float decay, float lr, float by, float *p, float *m, const float *g, size_t n);

#endif
