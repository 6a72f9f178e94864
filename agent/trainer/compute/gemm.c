/* SPDX-License-Identifier: Apache-2.0 */
/* Small products. A library copies both operands into an order of its own before it multiplies, which pays for large
 * matrices. A step on a CPU often has small ones: 64 rows, hidden layers of some hundred units. For those this file
 * copies at most one operand, and adds the bias and applies the activation while the results are in registers.
 *
 *   tile     ROWS x up to 3 vectors of results, summed in registers over all of k: 24 chains of additions hide the
 *            latency of each. Each of its values is one sum in the order of k.
 *   panel    The columns of b that a tile needs. Rows of b that lie in memory are read in place. A transposed b is
 *            copied, 16 x 16 values at a time.
 *   a        Read in place, one value for a whole vector of results.
 *
 * Each row of tiles reads all of b, so the matrices have to stay in the second cache (FLOATS_MAX). Larger products are
 * left to the library. */

#include "agent/trainer/compute/gemm.h"

#include "common/mem.h"

#include <stdint.h>
#include <stdlib.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

enum { LANES = 16, ROWS = 8, VECS = 3, FLOATS_MAX = 1 << 18 /* of each matrix: 1 MiB */ };

#define TARGET   __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma")))
#define INLINE   static inline __attribute__((always_inline)) TARGET
#define EACH_ROW _Pragma("GCC unroll 8") for (int m = 0; m < rows; m++)
#define EACH_VEC _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++)

struct gemm_plan {
  float *panels;
  size_t n;
};

/* The part of a product that one tile makes. */
struct part {
  const struct gemm *g;
  const float *a, *b; /* of the first row, and of the first column */
  size_t b_row;
  size_t m, n;    /* where it lies in c */
  __mmask16 last; /* the columns of its last vector that exist */
};

INLINE __mmask16 mask_of(const struct part *p, int v, int vecs) {
  return v == vecs - 1 ? p->last : (__mmask16)0xffff;
}

/* rows, vecs and by_row are constants, so that sums stay in registers. by_row: a_col is 1. */
INLINE void sum_tile(const struct part *p, __m512 sum[ROWS][VECS], const int rows, const int vecs, const bool by_row) {
  const struct gemm *g = p->g;
  const float *a = p->a, *b = p->b;
  for (size_t k = 0; k < g->k; k++, b += p->b_row) {
    __m512 x[VECS];
    EACH_VEC x[v] = _mm512_maskz_loadu_ps(mask_of(p, v, vecs), b + v * LANES);
    EACH_ROW {
      __m512 s = _mm512_set1_ps(by_row ? a[(size_t)m * g->a_row + k] : a[m]);
      EACH_VEC sum[m][v] = _mm512_fmadd_ps(s, x[v], sum[m][v]);
    }
    if (!by_row) a += g->a_col;
  }
}

INLINE void tile(const struct part *p, const int rows, const int vecs, const bool by_row) {
  const struct gemm *g = p->g;
  __m512 sum[ROWS][VECS], zero = _mm512_setzero_ps();
  size_t at = p->m * g->ldc + p->n;
  EACH_ROW EACH_VEC sum[m][v] = zero;
  sum_tile(p, sum, rows, vecs, by_row);
#define MASK mask_of(p, v, vecs)
#define AT   at + (size_t)m * g->ldc + (size_t)v *LANES
  if (g->bias) EACH_VEC {
      __m512 x = _mm512_maskz_loadu_ps(MASK, g->bias + p->n + v * LANES);
      EACH_ROW sum[m][v] = _mm512_add_ps(sum[m][v], x);
    }
  if (g->add) EACH_ROW EACH_VEC sum[m][v] = _mm512_add_ps(sum[m][v], _mm512_maskz_loadu_ps(MASK, g->c + AT));
  if (g->relu)
    EACH_ROW EACH_VEC sum[m][v] = _mm512_mask_mov_ps(sum[m][v], _mm512_cmp_ps_mask(sum[m][v], zero, _CMP_LT_OQ), zero);
  if (g->gate) EACH_ROW EACH_VEC {
      __mmask16 open = _mm512_cmp_ps_mask(_mm512_maskz_loadu_ps(MASK, g->gate + AT), zero, _CMP_GT_OQ);
      sum[m][v] = _mm512_maskz_mov_ps(open, sum[m][v]);
    }
  EACH_ROW EACH_VEC _mm512_mask_storeu_ps(g->c + AT, MASK, sum[m][v]);
}

typedef void (*tile_fn)(const struct part *);
#define TILE(rows, vecs)                                                                                               \
  TARGET static void tile_##rows##_##vecs##_down(const struct part *p) {                                               \
    tile(p, rows, vecs, false);                                                                                        \
  }                                                                                                                    \
  TARGET static void tile_##rows##_##vecs##_along(const struct part *p) {                                              \
    tile(p, rows, vecs, true);                                                                                         \
  }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3)
TILES(1)
TILES(2)
TILES(3)
TILES(4)
TILES(5)
TILES(6)
TILES(7)
TILES(8)

#define PAIR(rows, vecs)                                                                                               \
  { tile_##rows##_##vecs##_down, tile_##rows##_##vecs##_along }
#define SIX(rows)                                                                                                      \
  { PAIR(rows, 1), PAIR(rows, 2), PAIR(rows, 3) }
static const tile_fn tiles[ROWS][VECS][2] = {SIX(1), SIX(2), SIX(3), SIX(4), SIX(5), SIX(6), SIX(7), SIX(8)};

/* to[j * to_row + i] = from[i * from_row + j], for i, j below LANES. */
TARGET static void transpose(const float *from, size_t from_row, float *to, size_t to_row) {
  __m512 r[LANES], t[LANES];
#define PAIRS(i, step) _mm512_castpd_ps(step(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[(i) + 2])))
  _Pragma("GCC unroll 16") for (size_t i = 0; i < LANES; i++) r[i] = _mm512_loadu_ps(from + i * from_row);
  _Pragma("GCC unroll 8") for (int i = 0; i < LANES; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  _Pragma("GCC unroll 4") for (int i = 0; i < LANES; i += 4) {
    r[i] = PAIRS(i, _mm512_unpacklo_pd);
    r[i + 1] = PAIRS(i, _mm512_unpackhi_pd);
    r[i + 2] = PAIRS(i + 1, _mm512_unpacklo_pd);
    r[i + 3] = PAIRS(i + 1, _mm512_unpackhi_pd);
  }
  _Pragma("GCC unroll 4") for (size_t j = 0; j < 4; j++) { /* columns j, j + 4, j + 8 and j + 12 */
    __m512 even = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88), odd = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
    __m512 even2 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
    __m512 odd2 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    _mm512_storeu_ps(to + j * to_row, _mm512_shuffle_f32x4(even, even2, 0x88));
    _mm512_storeu_ps(to + (j + 4) * to_row, _mm512_shuffle_f32x4(odd, odd2, 0x88));
    _mm512_storeu_ps(to + (j + 8) * to_row, _mm512_shuffle_f32x4(even, even2, 0xdd));
    _mm512_storeu_ps(to + (j + 12) * to_row, _mm512_shuffle_f32x4(odd, odd2, 0xdd));
  }
}

/* Copies k rows of `columns` columns of a transposed b to rows of `width` floats, from column n on. */
static void copy_panel(const struct gemm *g, size_t n, size_t columns, size_t width, float *to) {
  for (size_t j = 0; j < columns; j += LANES) {
    const float *from = g->b + (n + j) * g->b_col;
    size_t have = columns - j < LANES ? columns - j : LANES, i = 0;
    for (; have == LANES && i + LANES <= g->k; i += LANES) transpose(from + i, g->b_col, to + i * width + j, width);
    for (; i < g->k; i++)
      for (size_t c = 0; c < have; c++) to[i * width + j + c] = from[c * g->b_col + i];
  }
}

static void run_panel(struct gemm_plan *plan, const struct gemm *g, size_t n, size_t columns) {
  size_t vecs = (columns + LANES - 1) / LANES, over = columns - (vecs - 1) * LANES;
  bool in_place = g->b_col == 1;
  struct part p = {.g = g, .n = n, .b_row = in_place ? g->b_row : vecs * LANES, .last = (__mmask16)((1u << over) - 1u)};
  p.b = in_place ? g->b + n : plan->panels;
  if (!in_place) copy_panel(g, n, columns, p.b_row, plan->panels);
  for (; p.m < g->m; p.m += ROWS) {
    size_t rows = g->m - p.m < ROWS ? g->m - p.m : ROWS;
    p.a = g->a + p.m * g->a_row;
    tiles[rows - 1][vecs - 1][g->a_col == 1](&p);
  }
}

bool gemm_run(struct gemm_plan *plan, const struct gemm *g) {
  size_t wide = (size_t)VECS * LANES;
  if (g->n * g->k > FLOATS_MAX || g->m * g->k > FLOATS_MAX || g->m * g->n > FLOATS_MAX) return false;
  if (g->b_col != 1 && plan->n < g->k * wide) {
    free(plan->panels);
    plan->n = g->k * wide;
    plan->panels = aligned_alloc(64, plan->n * sizeof(float));
    if (!plan->panels) abort();
  }
  for (size_t n = 0; n < g->n; n += wide) run_panel(plan, g, n, g->n - n < wide ? g->n - n : wide);
  return true;
}

struct gemm_plan *gemm_plan_create(void) {
  bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("fma");
  return can ? xcalloc(1, sizeof(struct gemm_plan)) : NULL;
}

void gemm_plan_destroy(struct gemm_plan *p) {
  if (p) free(p->panels);
  free(p);
}
#else
struct gemm_plan *gemm_plan_create(void) {
  return NULL;
}
void gemm_plan_destroy(struct gemm_plan *p) {}
bool gemm_run(struct gemm_plan *p, const struct gemm *g) {
  return false;
}
#endif
