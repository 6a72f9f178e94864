/* SPDX-License-Identifier: Apache-2.0 */
/* One matrix product through cuBLASLt, and the algorithms that it has chosen.
 *
 * cuBLASLt chooses an algorithm by types, sizes, the epilogue, and the alignment of the addresses (tensors of a model are
 * aligned to 128 bytes; rows of a batch start anywhere). We ask once for each combination, which takes some tens of
 * microseconds, and keep the answer with the layer. Batches have few different sizes, so a steady step asks nothing. "No
 * algorithm" is kept too, and the caller then takes another way.
 *
 * We take the first algorithm of cuBLASLt's ranking and do not time them, because the winner of a race changes from run
 * to run, and the last bits with it. With gpu_config.deterministic, partial sums of one product must be added in a
 * separate step of fixed order, or the product is not split. Nothing else varies on one device with one version of the
 * library.
 *
 * layer.c describes everything in columns, so nothing is transposed here. Sums are in float for all operands. fp32 is
 * fp32, and TF32 is used only on request. */

#include "agent/trainer/gpu/cuda_compute.h"

#include <errno.h>
#include <string.h>

struct descs {
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t a, b, d;
};

static cudaDataType_t data_type(enum kernel_type t) {
  return t == KERNEL_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static bool has_bias(cublasLtEpilogue_t x) {
  return x == CUBLASLT_EPILOGUE_BIAS || x == CUBLASLT_EPILOGUE_RELU_BIAS || x == CUBLASLT_EPILOGUE_RELU_AUX_BIAS ||
         x == CUBLASLT_EPILOGUE_BGRADB;
}

/* One attribute of a product: its name, its value. */
#define SET(name, value)                                                                                               \
  if (rc == 0) rc = cublasLtMatmulDescSetAttribute(o->op, CUBLASLT_MATMUL_DESC_##name, &(value), sizeof(value))

static cublasStatus_t describe(const struct cuda *u, const struct cuda_product *p, struct descs *o) {
  const struct kernel_gemm *g = &p->g;
  cudaDataType_t ab = data_type(g->ab), d = data_type(g->d);
  cublasComputeType_t compute = u->base.precision == COMPUTE_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  int32_t ta = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, tb = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  uint32_t epilogue = p->epilogue;
  cublasStatus_t rc = cublasLtMatmulDescCreate(&o->op, compute, CUDA_R_32F);
  SET(TRANSA, ta);
  SET(TRANSB, tb);
  SET(EPILOGUE, epilogue);
  if (has_bias(p->epilogue)) SET(BIAS_POINTER, p->bias);
  if (p->epilogue == CUBLASLT_EPILOGUE_RELU_AUX_BIAS || p->epilogue == CUBLASLT_EPILOGUE_DRELU) {
    SET(EPILOGUE_AUX_POINTER, p->mask);
    SET(EPILOGUE_AUX_LD, p->mask_ld);
  }
  if (rc == 0)
    rc = cublasLtMatrixLayoutCreate(&o->a, ab, g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k, (int64_t)g->lda);
  if (rc == 0)
    rc = cublasLtMatrixLayoutCreate(&o->b, ab, g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n, (int64_t)g->ldb);
  return rc ? rc : cublasLtMatrixLayoutCreate(&o->d, d, g->m, g->n, (int64_t)g->ldd);
}

static bool unsupported(cublasStatus_t rc) {
  return rc == CUBLAS_STATUS_NOT_SUPPORTED || rc == CUBLAS_STATUS_INVALID_VALUE || rc == CUBLAS_STATUS_ARCH_MISMATCH;
}

static cublasStatus_t find_algorithm(const struct cuda *u, const struct descs *o, struct cuda_plan *plan) {
  const struct product_key *k = &plan->key;
  uint64_t workspace = u->workspace_size;
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* "none" is always allowed */
  const struct {
    cublasLtMatmulPreferenceAttributes_t name;
    const void *value;
    size_t size;
  } wishes[] = {
      {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->align_a, sizeof k->align_a},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->align_b, sizeof k->align_b},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->align_d, sizeof k->align_d},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->align_d, sizeof k->align_d},
      {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes}, /* the last one: for u->deterministic */
  };
  size_t n_wishes = sizeof wishes / sizeof wishes[0] - (u->deterministic ? 0 : 1);
  cublasLtMatmulHeuristicResult_t best;
  cublasLtMatmulPreference_t pref = NULL;
  int n = 0;
  memset(&best, 0, sizeof best);
  cublasStatus_t rc = cublasLtMatmulPreferenceCreate(&pref);
  for (size_t i = 0; i < n_wishes && rc == 0; i++)
    rc = cublasLtMatmulPreferenceSetAttribute(pref, wishes[i].name, wishes[i].value, wishes[i].size);
  if (rc == 0) rc = cublasLtMatmulAlgoGetHeuristic(u->lt, o->op, o->a, o->b, o->d, o->d, pref, 1, &best, &n);
  if (pref) (void)cublasLtMatmulPreferenceDestroy(pref);
  plan->known = rc == CUBLAS_STATUS_SUCCESS || unsupported(rc);
  plan->found = rc == CUBLAS_STATUS_SUCCESS && n > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  plan->algo = best.algo;
  return plan->known ? CUBLAS_STATUS_SUCCESS : rc;
}

/* The plan of this key, or else the least recently used one, emptied. */
static struct cuda_plan *find_plan(struct cuda_plans *plans, const struct product_key *key) {
  struct cuda_plan *oldest = &plans->v[0];
  plans->uses++;
  for (int i = 0; i < CUDA_PLANS; i++) {
    struct cuda_plan *p = &plans->v[i];
    if (p->known && product_key_equal(&p->key, key)) {
      p->used = plans->uses;
      return p;
    }
    if (p->used < oldest->used) oldest = p;
  }
  *oldest = (struct cuda_plan){.key = *key, .used = plans->uses};
  return oldest;
}

int cuda_matmul(struct compute *c, struct cuda_plans *plans, struct cuda_product *p, const char *what, struct err *e) {
  struct cuda *u = cuda_of(c);
  struct product_key *k = &p->k;
  k->epilogue = p->epilogue;
  k->align_a = product_alignment((uintptr_t)p->a);
  k->align_b = product_alignment((uintptr_t)p->b);
  k->align_d = product_alignment((uintptr_t)p->d);
  k->align_bias = has_bias(p->epilogue) ? product_alignment((uintptr_t)p->bias) : 0;
  if (has_bias(p->epilogue) && p->k.align_bias < PRODUCT_BIAS_ALIGN) return 0;
  struct cuda_plan *plan = find_plan(plans, &p->k);
  if (plan->known && !plan->found) return 0;
  struct descs o = {0};
  cublasStatus_t rc = describe(u, p, &o);
  if (rc == 0 && !plan->known) rc = find_algorithm(u, &o, plan);
  if (rc == 0 && plan->found) {
    float alpha = 1.0f, beta = p->g.add ? 1.0f : 0.0f;
    rc = cublasLtMatmul(u->lt, o.op, &alpha, p->a, o.a, p->b, o.b, &beta, p->d, o.d, p->d, o.d, &plan->algo,
                        u->workspace, u->workspace_size, u->stream);
    u->last = what;
    if (unsupported(rc)) { /* offered and then refused: as if it had not been offered */
      plan->found = false;
      rc = CUBLAS_STATUS_SUCCESS;
    }
  }
  if (o.d) (void)cublasLtMatrixLayoutDestroy(o.d);
  if (o.b) (void)cublasLtMatrixLayoutDestroy(o.b);
  if (o.a) (void)cublasLtMatrixLayoutDestroy(o.a);
  if (o.op) (void)cublasLtMatmulDescDestroy(o.op);
  if (rc == 0) return plan->found;
  cudaError_t device = cudaGetLastError();
  bool more = device != cudaSuccess;
  return err_set(e, -EIO, "the device (%s) failed in %s, %zu x %zu x %zu: cuBLASLt: %s%s%s%s", c->device, what, p->g.m,
                 p->g.n, p->g.k, cublasLtGetStatusName(rc), more ? " (" : "", more ? cudaGetErrorName(device) : "",
                 more ? ")" : "");
}
