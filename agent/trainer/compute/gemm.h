/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_COMPUTE_GEMM_H
#define AGENT_TRAINER_COMPUTE_GEMM_H

/* Products of small float matrices in one thread, on CPUs with AVX-512, with the work around them fused in. */

#include <stdbool.h>
#include <stddef.h>

/* c[m][n] = activation(sum over k of a[m][k] b[k][n] + bias[n]). Element (i, j) of a is a[i * a_row + j * a_col], and
 * of b likewise. Rows of c are ldc floats apart. */
struct gemm {
  size_t m, n, k; /* none is 0 */
  const float *a, *b;
  size_t a_row, a_col, b_row, b_col; /* one of each pair is 1 */
  float *c;
  size_t ldc;
  bool add;          /* add to what c has, instead of overwriting it; not with the three below */
  const float *bias; /* n values, or NULL */
  bool relu;         /* a negative result becomes 0, a NaN stays */
  const float *gate; /* in the layout of c, or NULL: where it is not above 0, the result becomes 0 */
};

struct gemm_plan;
/* NULL: this CPU lacks the instructions. */
struct gemm_plan *gemm_plan_create(void);
void gemm_plan_destroy(struct gemm_plan *p); /* NULL is fine */
/* False: nothing was done, because a library does this size better. */
bool gemm_run(struct gemm_plan *p, const struct gemm *g);

#endif
