/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt's part: matrix products in float loops, with the epilogues that a stack of linear layers needs.
 *
 * Meaner than the library:
 *  - an algorithm that was asked for with an alignment, an epilogue, a transposition or a type is refused for anything
 *    else, and for addresses that are less aligned: the program ends, since the library would read wrongly or fault;
 *  - matrices, masks and biases must lie in memory of the device, in full length; sizes of 0, short leading dimensions,
 *    and masks whose leading dimension is no multiple of 128 bits or whose address is no multiple of 16 are refused, as
 *    documented;
 *  - a bias, or its gradient, that is not aligned to 16 bytes ends the program: no preference tells the library of it,
 *    and some of its kernels fault;
 *  - the whole workspace is overwritten by each product that asked for one;
 *  - a ReLU makes 0 of a NaN, which is what a maximum on a GPU may do;
 *  - FAKEGPU_LT=none offers no algorithm, =plain none with an epilogue, =align16 none for addresses that are less
 *    aligned than 16 bytes, =refuse offers them and then does not take them.
 *
 * Which shapes the real library has no algorithm for, and how it rounds, this cannot show. */

#include "tests/fakegpu/fake.h"

#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE = 4096, MAGIC = 0x17a60 };

struct desc {
  cublasComputeType_t compute;
  int32_t trans_a, trans_b;
  uint32_t epilogue;
  void *bias, *aux;
  int64_t aux_ld;
  int32_t bias_type; /* -1: as D */
};

struct layout {
  cudaDataType_t type;
  uint64_t rows, cols;
  int64_t ld;
};

struct preference {
  uint64_t workspace;
  uint32_t align[4]; /* A B C D */
  uint32_t schemes;
};

/* What is kept in a cublasLtMatmulAlgo_t. */
struct algo {
  uint32_t magic, epilogue, align[4], types[3];
  uint32_t trans, workspace;
  uint32_t rest[3];
};

struct product {
  struct fake_work w;
  struct desc op;
  struct layout a, b, c, d;
  const void *pa, *pb, *pc;
  void *pd, *workspace;
  float alpha, beta;
  size_t m, n, k;
};

static const char *mode(void) {
  const char *text = getenv("FAKEGPU_LT");
  return text ? text : "";
}

static cublasStatus_t leave(cublasStatus_t rc) {
  fake_unlock();
  return rc;
}

static bool enter(const char *name, cublasStatus_t *rc) {
  fake_lock();
  *rc = CUBLAS_STATUS_SUCCESS;
  if (fake_take_last(false) == cudaErrorIllegalAddress) *rc = CUBLAS_STATUS_EXECUTION_FAILED;
  if (fake_injected(name)) *rc = CUBLAS_STATUS_INTERNAL_ERROR;
  if (*rc == CUBLAS_STATUS_SUCCESS) return true;
  fake_unlock();
  return false;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
  cublasStatus_t rc;
  if (!enter("cublasLtCreate", &rc)) return rc;
  *out = calloc(1, 64);
  return leave(rc);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
  free(h);
  return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t rc) {
  return rc == CUBLAS_STATUS_SUCCESS            ? "CUBLAS_STATUS_SUCCESS"
         : rc == CUBLAS_STATUS_INVALID_VALUE    ? "CUBLAS_STATUS_INVALID_VALUE"
         : rc == CUBLAS_STATUS_NOT_SUPPORTED    ? "CUBLAS_STATUS_NOT_SUPPORTED"
         : rc == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
                                                : "CUBLAS_STATUS_INTERNAL_ERROR";
}

const char *cublasLtGetStatusString(cublasStatus_t rc) {
  return cublasLtGetStatusName(rc);
}

size_t cublasLtGetVersion(void) {
  return CUBLAS_VERSION;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
  struct desc *d = malloc(sizeof *d);
  if (scale != CUDA_R_32F) fake_die("a scale of type %d", (int)scale);
  *d = (struct desc){.compute = compute, .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .bias_type = -1};
  *out = (cublasLtMatmulDesc_t)(void *)d;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  free(d);
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t store(void *to, size_t room, const void *value, size_t size) {
  if (size != room) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(to, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t size) {
  struct desc *d = (void *)desc;
#define SET(attribute, field)                                                                                          \
  case attribute: return store(&d->field, sizeof d->field, value, size)
  switch (name) {
    SET(CUBLASLT_MATMUL_DESC_TRANSA, trans_a);
    SET(CUBLASLT_MATMUL_DESC_TRANSB, trans_b);
    SET(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    SET(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    SET(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    SET(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
    SET(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
  default: fake_die("attribute %d of a product is not known here", (int)name);
  }
#undef SET
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
  struct layout *l = malloc(sizeof *l);
  *l = (struct layout){type, rows, cols, ld};
  *out = (cublasLtMatrixLayout_t)(void *)l;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  free(l);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
  struct preference *p = malloc(sizeof *p);
  *p = (struct preference){.align = {256, 256, 256, 256}, .schemes = UINT32_MAX};
  *out = (cublasLtMatmulPreference_t)(void *)p;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  free(p);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                                    size_t size) {
  struct preference *p = (void *)pref;
#define SET(attribute, field)                                                                                          \
  case attribute: return store(&p->field, sizeof p->field, value, size)
  switch (name) {
    SET(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    SET(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align[0]);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align[1]);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align[2]);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align[3]);
  default: fake_die("preference %d is not known here", (int)name);
  }
#undef SET
}

static size_t size_of(cudaDataType_t t) {
  return t == CUDA_R_32F ? 4 : 2;
}

static bool known_epilogue(uint32_t x) {
  static const uint32_t known[] = {CUBLASLT_EPILOGUE_DEFAULT,  CUBLASLT_EPILOGUE_RELU,
                                   CUBLASLT_EPILOGUE_BIAS,     CUBLASLT_EPILOGUE_RELU_BIAS,
                                   CUBLASLT_EPILOGUE_RELU_AUX, CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
                                   CUBLASLT_EPILOGUE_DRELU,    CUBLASLT_EPILOGUE_DRELU_BGRAD,
                                   CUBLASLT_EPILOGUE_BGRADA,   CUBLASLT_EPILOGUE_BGRADB};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i] == x) return true;
  return false;
}

static bool has_mask(uint32_t x) {
  return x & 128;
}

static bool sized(const struct layout *l) {
  return l->rows > 0 && l->cols > 0 && l->ld >= (int64_t)l->rows &&
         (l->type == CUDA_R_32F || l->type == CUDA_R_16BF || l->type == CUDA_R_16F);
}

/* What the documentation refuses. */
static cublasStatus_t check(const struct desc *o, const struct layout *a, const struct layout *b,
                            const struct layout *c, const struct layout *d, size_t *k) {
  uint64_t m = o->trans_a ? a->cols : a->rows, ka = o->trans_a ? a->rows : a->cols;
  uint64_t n = o->trans_b ? b->rows : b->cols, kb = o->trans_b ? b->cols : b->rows;
  *k = ka;
  if (!sized(a) || !sized(b) || !sized(c) || !sized(d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (ka != kb || m != d->rows || n != d->cols || c->rows != m || c->cols != n) return CUBLAS_STATUS_INVALID_VALUE;
  if (a->type != b->type || c->type != d->type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (d->type != a->type && d->type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!known_epilogue(o->epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (o->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!has_mask(o->epilogue)) return CUBLAS_STATUS_SUCCESS;
  if (o->aux_ld % 128 || o->aux_ld < (int64_t)d->rows || (uintptr_t)o->aux % 16 || !o->aux)
    return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t la,
                                              cublasLtMatrixLayout_t lb, cublasLtMatrixLayout_t lc,
                                              cublasLtMatrixLayout_t ld, cublasLtMatmulPreference_t pref, int want,
                                              cublasLtMatmulHeuristicResult_t *results, int *found) {
  const struct desc *o = (void *)desc;
  const struct layout *a = (void *)la, *b = (void *)lb, *c = (void *)lc, *d = (void *)ld;
  const struct preference *p = (void *)pref;
  cublasStatus_t rc;
  size_t k;
  *found = 0;
  if (!enter("cublasLtMatmulAlgoGetHeuristic", &rc)) return rc;
  if ((rc = check(o, a, b, c, d, &k))) return leave(rc);
  const uint32_t least[4] = {p->align[0], p->align[1], p->align[2], p->align[3]};
  bool none = strcmp(mode(), "none") == 0 || (strcmp(mode(), "plain") == 0 && o->epilogue != CUBLASLT_EPILOGUE_DEFAULT);
  for (int i = 0; i < 4; i++) none |= least[i] < size_of(a->type) || (strcmp(mode(), "align16") == 0 && least[i] < 16);
  if (none) return leave(CUBLAS_STATUS_NOT_SUPPORTED);
  struct algo x = {.magic = MAGIC, .epilogue = o->epilogue, .types = {a->type, d->type, o->compute}};
  memcpy(x.align, least, sizeof x.align);
  x.trans = (uint32_t)(o->trans_a * 2 + o->trans_b);
  x.workspace = p->workspace >= WORKSPACE ? WORKSPACE : 0;
  memset(results, 0, sizeof *results * (size_t)want);
  _Static_assert(sizeof x <= sizeof results->algo, "an algorithm has 64 bytes");
  memcpy(&results[0].algo, &x, sizeof x);
  results[0].workspaceSize = x.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return leave(CUBLAS_STATUS_SUCCESS);
}

static float load(const void *p, cudaDataType_t t, size_t i) {
  uint32_t bits;
  float x;
  if (t == CUDA_R_32F) return ((const float *)p)[i];
  uint16_t h = ((const uint16_t *)p)[i];
  if (t == CUDA_R_16BF) {
    bits = (uint32_t)h << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
  }
  int exp = h >> 10 & 31, low = h & 1023;
  x = exp == 31 ? (low ? NAN : INFINITY) : exp ? ldexpf((float)(low + 1024), exp - 25) : ldexpf((float)low, -24);
  return h & 0x8000 ? -x : x;
}

static uint16_t to_half(float x) {
  uint16_t sign = signbit(x) ? 0x8000 : 0;
  float a = fabsf(x);
  if (isnan(x)) return 0x7fff;
  if (a >= 65520.0f) return sign | 0x7c00;
  if (a < 0x1p-14f) return sign | (uint16_t)nearbyintf(a * 0x1p24f);
  int exp;
  float f = frexpf(a, &exp); /* [0.5, 1) */
  return sign | (uint16_t)(((exp + 14) << 10) + ((int)nearbyintf(f * 2048) - 1024));
}

static void put(void *p, cudaDataType_t t, size_t i, float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (t == CUDA_R_32F)
    ((float *)p)[i] = x;
  else if (t == CUDA_R_16F)
    ((uint16_t *)p)[i] = to_half(x);
  else
    ((uint16_t *)p)[i] = isnan(x) ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* As rows of k values, one for each row (A) or column (B) of D. */
static float *pack(const struct product *p, const void *at, const struct layout *l, size_t rows, bool by_k) {
  float *v = malloc(rows * p->k * sizeof *v + 1);
  for (size_t r = 0; r < rows; r++)
    for (size_t k = 0; k < p->k; k++)
      v[r * p->k + k] = load(at, l->type, by_k ? r * (size_t)l->ld + k : k * (size_t)l->ld + r);
  return v;
}

static float dot(const float *a, const float *b, size_t n) {
  float sum[4] = {0};
  size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int k = 0; k < 4; k++) sum[k] += a[i + (size_t)k] * b[i + (size_t)k];
  for (; i < n; i++) sum[0] += a[i] * b[i];
  return sum[0] + sum[1] + (sum[2] + sum[3]);
}

static bool mask_bit(const struct product *p, size_t i, size_t j) {
  size_t bit = j * (size_t)p->op.aux_ld + i;
  return ((const uint8_t *)p->op.aux)[bit / 8] >> (bit % 8) & 1;
}

static void set_mask_bit(const struct product *p, size_t i, size_t j, bool on) {
  size_t bit = j * (size_t)p->op.aux_ld + i;
  uint8_t *byte = (uint8_t *)p->op.aux + bit / 8;
  *byte = (uint8_t)((*byte & ~(1u << bit % 8)) | (unsigned)on << bit % 8);
}

static float epilogue(const struct product *p, size_t i, size_t j, float x) {
  uint32_t ep = p->op.epilogue;
  cudaDataType_t bias = p->op.bias_type < 0 ? p->d.type : (cudaDataType_t)p->op.bias_type;
  if (ep & 4) x += load(p->op.bias, bias, i);
  if (ep & 2) {
    if (has_mask(ep)) set_mask_bit(p, i, j, x > 0);
    x = x > 0 ? x : 0.0f;
  }
  if ((ep & 8) && !mask_bit(p, i, j)) x = 0.0f;
  return x;
}

static void bias_gradient(const struct product *p, const float *rows, size_t n) {
  for (size_t r = 0; r < n; r++) {
    float sum = 0;
    for (size_t k = 0; k < p->k; k++) sum += rows[r * p->k + k];
    put(p->op.bias, p->op.bias_type < 0 ? p->d.type : (cudaDataType_t)p->op.bias_type, r, sum);
  }
}

static enum fake_ran run_product(struct fake_work *w, void **state) {
  struct product *p = (struct product *)w;
  float *a = pack(p, p->pa, &p->a, p->m, p->op.trans_a), *b = pack(p, p->pb, &p->b, p->n, !p->op.trans_b);
  float *columns = calloc(p->m + 1, sizeof(float));
  if (p->workspace) memset(p->workspace, 0xff, WORKSPACE);
  for (size_t j = 0; j < p->n; j++)
    for (size_t i = 0; i < p->m; i++) {
      float x = p->alpha * dot(a + i * p->k, b + j * p->k, p->k);
      if (p->beta != 0) x += p->beta * load(p->pc, p->c.type, j * (size_t)p->c.ld + i);
      x = epilogue(p, i, j, x);
      columns[i] += x;
      put(p->pd, p->d.type, j * (size_t)p->d.ld + i, x);
    }
  if (p->op.epilogue == CUBLASLT_EPILOGUE_BGRADA) bias_gradient(p, a, p->m);
  if (p->op.epilogue == CUBLASLT_EPILOGUE_BGRADB) bias_gradient(p, b, p->n);
  if (p->op.epilogue == CUBLASLT_EPILOGUE_DRELU_BGRAD)
    for (size_t i = 0; i < p->m; i++) put(p->op.bias, p->d.type, i, columns[i]);
  free(a);
  free(b);
  free(columns);
  return FAKE_DONE;
}

static void destroy_product(struct fake_work *w) {
  free(w);
}

static void in_device(const void *p, size_t n, uint32_t align, const char *what) {
  if (fake_place_of(p, n) != FAKE_DEVICE) fake_die("a product's %s is not %zu bytes of the device's memory", what, n);
  if ((uintptr_t)p % align)
    fake_die("a product's %s is not aligned to %u, as its algorithm takes it to be", what, align);
}

static size_t bytes_of(const struct layout *l) {
  return ((size_t)l->ld * (l->cols - 1) + l->rows) * size_of(l->type);
}

static void check_memory(const struct product *p, const struct algo *x) {
  uint32_t ep = p->op.epilogue;
  in_device(p->pa, bytes_of(&p->a), x->align[0], "A");
  in_device(p->pb, bytes_of(&p->b), x->align[1], "B");
  in_device(p->pc, bytes_of(&p->c), x->align[2], "C");
  in_device(p->pd, bytes_of(&p->d), x->align[3], "D");
  size_t bias = ep == CUBLASLT_EPILOGUE_BGRADB ? p->n : p->m;
  if (ep & (4 | 16 | 256 | 512)) in_device(p->op.bias, bias * size_of(p->d.type), 16, "bias");
  if (has_mask(ep)) in_device(p->op.aux, (size_t)p->op.aux_ld * p->n / 8, 16, "mask");
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_size,
                              cudaStream_t stream) {
  struct product q = {.w = {1, "matmul", run_product, destroy_product, false},
                      .op = *(struct desc *)(void *)desc,
                      .a = *(struct layout *)(void *)la,
                      .b = *(struct layout *)(void *)lb,
                      .c = *(struct layout *)(void *)lc,
                      .d = *(struct layout *)(void *)ld,
                      .pa = a,
                      .pb = b,
                      .pc = c,
                      .pd = d,
                      .alpha = *(const float *)alpha,
                      .beta = *(const float *)beta};
  struct algo x;
  cublasStatus_t rc;
  if (!enter("cublasLtMatmul", &rc)) return rc;
  if ((rc = check(&q.op, &q.a, &q.b, &q.c, &q.d, &q.k))) return leave(rc);
  if (!algo) fake_die("a product without an algorithm");
  memcpy(&x, algo, sizeof x);
  if (x.magic != MAGIC || x.epilogue != q.op.epilogue || x.types[0] != (uint32_t)q.a.type ||
      x.types[1] != (uint32_t)q.d.type || x.types[2] != (uint32_t)q.op.compute ||
      x.trans != (uint32_t)(q.op.trans_a * 2 + q.op.trans_b))
    fake_die("a product by an algorithm that was found for another");
  if (strcmp(mode(), "refuse") == 0) return leave(CUBLAS_STATUS_NOT_SUPPORTED);
  q.m = q.d.rows;
  q.n = q.d.cols;
  check_memory(&q, &x);
  if (x.workspace) {
    if (workspace_size < x.workspace) return leave(CUBLAS_STATUS_INVALID_VALUE);
    in_device(workspace, x.workspace, 16, "workspace");
    q.workspace = workspace;
  }
  struct product *p = malloc(sizeof *p);
  *p = q;
  return leave(fake_queue(fake_stream_of(stream), &p->w) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS);
}
