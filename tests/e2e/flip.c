/* SPDX-License-Identifier: Apache-2.0 */
/* A processor that errs, put before OpenBLAS (LD_PRELOAD): a bit of one matrix product's result, or of the weights that it
 * reads, is flipped on one rank.
 *
 *   FLIP_RANK    the rank
 *   FLIP_AT      the product from which on it happens, counted from 1 on, of those that FLIP_WHAT means
 *   FLIP_WHAT    gradients: the result of a product with a transposed first matrix; weights: the second matrix of the
 *                others, if it is transposed
 *   FLIP_WHERE   a number that decides which bit it is; otherwise each product has another one
 *   FLIP_ONCE    set: that once, and only in the first round */
#include <cblas.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void flip(const float *at, uint64_t n, uint64_t where) {
  uint32_t bits;
  float *p = (float *)(uintptr_t)at + where % n;
  memcpy(&bits, p, sizeof bits);
  bits ^= 1u << (where / n % 32);
  memcpy(p, &bits, sizeof bits);
}

static uint64_t number(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : otherwise;
}

static int is(const char *name, const char *word) {
  const char *text = getenv(name);
  return text && strcmp(text, word) == 0;
}

/* RANK is that of the agent's start; the stand-in for the agent gives the local one alone. */
static int here(void) {
  const char *rank = getenv("RANK") ? getenv("RANK") : getenv("RDZV_LOCAL_RANK");
  return rank && is("FLIP_RANK", rank);
}

void cblas_sgemm(const enum CBLAS_ORDER order, const enum CBLAS_TRANSPOSE ta, const enum CBLAS_TRANSPOSE tb,
                 const int m, const int n, const int k, const float alpha, const float *a, const int lda,
                 const float *b, const int ldb, const float beta, float *c, const int ldc) {
  static void (*real)(enum CBLAS_ORDER, enum CBLAS_TRANSPOSE, enum CBLAS_TRANSPOSE, int, int, int, float, const float *,
                      int, const float *, int, float, float *, int);
  static uint64_t calls;
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "cblas_sgemm");
  int gradients = is("FLIP_WHAT", "gradients"), due = 0;
  if (here() && (gradients ? ta == CblasTrans : ta == CblasNoTrans && tb == CblasTrans)) {
    calls++;
    due = getenv("FLIP_ONCE") ? calls == number("FLIP_AT", 0) && is("RDZV_ROUND", "1") : calls >= number("FLIP_AT", 0);
  }
  uint64_t where = number("FLIP_WHERE", calls) * 0x9e3779b97f4a7c15ull >> 16;
  if (due && !gradients) flip(b, (uint64_t)n * (uint64_t)k, where);
  real(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  if (due && gradients) flip(c, (uint64_t)n, where);
}
