/* SPDX-License-Identifier: Apache-2.0 */
/* A layer: three matrix products, and their epilogues.
 *
 *   forward        y[rows][out]  = act(x W^T + b)        epilogue: bias and ReLU, which also writes a mask of one bit
 *                  per value
 *   weights' grad  dW[out][in]   = dz^T x, in floats     epilogue: the gradient of the bias, the column sums of dz
 *   input's grad   dx[rows][in]  = (dz W) * mask         epilogue: the mask that the layer below wrote in its forward
 *
 * cuBLAS is column-major, so we compute y^T = W x^T, where m counts the values of a row and n the rows.
 *
 * If cuBLASLt has no algorithm for a product with its epilogue (odd widths in bf16), the epilogue becomes separate
 * kernels: the bias is written first and the product added to it, which rounds once. If there is none even then, a
 * kernel makes the product. A forward writes its name into the buffer of its activations, and every other writer erases
 * it. So the buffer tells whether a ReLU mask fits. The gradient of the bias is not fused if every run must give the
 * same bytes.
 *
 * cuBLASLt's ReLU turns NaN into 0, and ours keeps it. So a hidden unit with a weight that is not finite may yield
 * zeros forever. Therefore no run starts with such weights (setup.c, state.c), and no update uses gradients that are
 * not finite. */

#include "agent/trainer/gpu/cuda_compute.h"

#include "common/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
 * library. */

/* Alignment that a bias, or its gradient, needs to be part of a product. No preference passes it to cuBLASLt. Its
 * search has offered kernels that read sixteen bytes at once, and a misaligned read ends the process. */
enum { BIAS_ALIGN = 16 };

/* The key of an algorithm, compared byte by byte. The alignment of addresses decides which kernels can be used, not the
 * addresses. */
enum product_kind { PRODUCT_FORWARD, PRODUCT_INPUT_GRAD, PRODUCT_WEIGHT_GRAD };
struct product_key {
  enum product_kind product;
  uint32_t epilogue; /* cuBLASLt's number */
  size_t rows, part; /* part: outputs of a gradient of weights */
  uint32_t align_a, align_b, align_d, align_bias;
};
_Static_assert(sizeof(struct product_key) == 6 * sizeof(uint32_t) + 2 * sizeof(size_t), "a key has no padding");

/* One product, column-major as in cuBLAS: D[m][n] = op(A) op(B) + (add ? D : 0). A and B are in the precision, D in
 * `d`. */
struct product {
  struct kernel_gemm g;
  const void *a, *b;
  void *d;
  void *bias;           /* in the type of D; for epilogues that have one */
  void *mask;           /* for epilogues that have one */
  int64_t mask_ld;      /* bits */
  struct product_key k; /* the caller fills in product and rows */
};

enum { PLANS = 24 }; /* per layer: three products, two ways, four numbers of rows */

/* The algorithm for a key, or that there is none. */
struct plan {
  struct product_key key;
  bool known, found;
  cublasLtMatmulAlgo_t algo;
  uint64_t used; /* when, to find the least recently used */
};

struct plans {
  struct plan v[PLANS];
  uint64_t uses;
};

struct compute_layer {
  struct compute_layer_desc d;
  uint64_t serial;
  struct compute_layer *next;
  void *mask;  /* of the ReLU behind this layer */
  void *x_low; /* the input in the precision, if it arrives as floats */
  struct plans plans;
};

struct descs {
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t a, b, d;
};

static cudaDataType_t data_type(enum kernel_type t) {
  return t == KERNEL_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static bool has_bias(uint32_t x) {
  return x == CUBLASLT_EPILOGUE_BIAS || x == CUBLASLT_EPILOGUE_RELU_BIAS || x == CUBLASLT_EPILOGUE_RELU_AUX_BIAS ||
         x == CUBLASLT_EPILOGUE_BGRADB;
}

/* One attribute of a product: its name, its value. */
#define SET(name, value)                                                                                               \
  (rc = rc ? rc : cublasLtMatmulDescSetAttribute(o->op, CUBLASLT_MATMUL_DESC_##name, &(value), sizeof(value)))

static cublasStatus_t describe(const struct product *p, struct descs *o) {
  const struct kernel_gemm *g = &p->g;
  cudaDataType_t ab = data_type(g->ab), d = data_type(g->d);
  int32_t ta = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, tb = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasStatus_t rc = cublasLtMatmulDescCreate(&o->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  SET(TRANSA, ta);
  SET(TRANSB, tb);
  SET(EPILOGUE, p->k.epilogue);
  if (has_bias(p->k.epilogue)) SET(BIAS_POINTER, p->bias);
  if (p->k.epilogue == CUBLASLT_EPILOGUE_RELU_AUX_BIAS || p->k.epilogue == CUBLASLT_EPILOGUE_DRELU) {
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

static cublasStatus_t find_algorithm(const struct cuda *u, const struct descs *o, struct plan *plan) {
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
static struct plan *find_plan(struct plans *plans, const struct product_key *key) {
  struct plan *oldest = &plans->v[0];
  plans->uses++;
  for (int i = 0; i < PLANS; i++) {
    struct plan *p = &plans->v[i];
    if (p->known && memcmp(&p->key, key, sizeof *key) == 0) {
      p->used = plans->uses;
      return p;
    }
    if (p->used < oldest->used) oldest = p;
  }
  *oldest = (struct plan){.key = *key, .used = plans->uses};
  return oldest;
}

/* The largest power of two, up to 256, that divides an address. */
static uint32_t alignment(const void *at) {
  uint32_t n = 256;
  while ((uintptr_t)at % n) n /= 2;
  return n;
}

/* 1: queued. 0: cuBLASLt has no algorithm for it. */
static int matmul(struct compute *c, struct compute_layer *l, struct product *p, cublasLtEpilogue_t epilogue,
                  const char *what, struct err *e) {
  struct cuda *u = cuda_of(c);
  struct product_key *k = &p->k;
  k->epilogue = epilogue;
  k->align_a = alignment(p->a);
  k->align_b = alignment(p->b);
  k->align_d = alignment(p->d);
  k->align_bias = has_bias(epilogue) ? alignment(p->bias) : 0;
  if (has_bias(epilogue) && k->align_bias < BIAS_ALIGN) return 0;
  struct plan *plan = find_plan(&l->plans, &p->k);
  if (plan->known && !plan->found) return 0;
  struct descs o = {0};
  cublasStatus_t rc = describe(p, &o);
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

/* The leading dimension, in bits, of the mask that a ReLU epilogue writes for `width` values per row. */
static int64_t mask_ld(size_t width) {
  return (int64_t)((width + 127) / 128 * 128);
}

/* Layers. ---------------------------------------------------------------------------------------------------------- */

int cuda_layer_create(struct compute *c, const struct compute_layer_desc *d, struct compute_layer **out,
                      struct err *e) {
  struct cuda *u = cuda_of(c);
  int rc = cuda_not_captured(c, "making a layer", e);
  if (rc) return rc;
  struct compute_layer *l = xcalloc(1, sizeof *l);
  l->d = *d;
  l->serial = ++u->serials;
  l->next = u->layers;
  u->layers = l;
  if (d->relu) rc = cuda_mem_raw(c, (size_t)mask_ld(d->out) / 8 * d->max_rows, &l->mask, e);
  if (rc == 0 && d->first && u->low != KERNEL_F32)
    rc = cuda_mem_raw(c, d->max_rows * d->in * kernel_type_size(u->low), &l->x_low, e);
  if (rc) {
    cuda_layer_destroy(c, l);
    return rc;
  }
  *out = l;
  return 0;
}

void cuda_layer_destroy(struct compute *c, struct compute_layer *l) {
  struct compute_layer **at = &cuda_of(c)->layers;
  while (*at && *at != l) at = &(*at)->next;
  if (*at) *at = l->next;
  if (cuda_idle(c)) {
    (void)cudaFree(l->mask);
    (void)cudaFree(l->x_low);
  }
  free(l);
}

/* The layer that wrote these activations and their mask, if both still exist. */
static const struct compute_layer *mask_writer(struct compute *c, struct span x, size_t rows) {
  const struct compute_buf *b = x.buf;
  if (b->made_by.serial == 0 || b->made_by.at != x.at || b->made_by.rows != rows) return NULL;
  for (const struct compute_layer *l = cuda_of(c)->layers; l; l = l->next)
    if (l == b->made_by.layer && l->serial == b->made_by.serial) return l;
  return NULL;
}

/* Where products read parameters. */
static void *param_at(struct compute *c, struct compute_buf *params, size_t at) {
  char *from = params->low ? params->low : params->data;
  return from + at * kernel_type_size(cuda_of(c)->low);
}

/* The input as products read it. convert: in the forward. */
static int converted_input(struct compute *c, struct compute_layer *l, struct span x, size_t rows, bool convert,
                           void **out, struct err *e) {
  struct cuda *u = cuda_of(c);
  *out = cuda_at(x);
  if (x.buf->type == u->low) return 0;
  *out = l->x_low;
  if (!l->x_low) return err_set(e, -EINVAL, "only the first layer takes an input of floats");
  if (!convert) return 0;
  return cuda_launched(c, kernel_convert(u->stream, l->x_low, u->low, cuda_at(x), KERNEL_F32, rows * l->d.in),
                       "the conversion of the input", e);
}

static int check_buffers(struct compute *c, const struct compute_layer *l, struct span x, struct span y, size_t rows,
                         struct err *e) {
  if (rows > l->d.max_rows) return err_set(e, -EINVAL, "%zu rows for a layer made for %zu", rows, l->d.max_rows);
  if (x.n < rows * l->d.in || y.n < rows * l->d.out || y.buf->type != cuda_of(c)->low)
    return err_set(e, -EINVAL, "a layer of %u to %u values between buffers of the wrong size or use", l->d.in,
                   l->d.out);
  return 0;
}

/* Without an epilogue: by cuBLASLt, or else by a kernel. */
static int enqueue_plain(struct compute *c, struct compute_layer *l, struct product *p, const char *what,
                         struct err *e) {
  struct cuda *u = cuda_of(c);
  int rc = matmul(c, l, p, CUBLASLT_EPILOGUE_DEFAULT, what, e);
  if (rc) return rc < 0 ? rc : 0;
  return cuda_launched(c, kernel_gemm(u->stream, &p->g, p->a, p->b, p->d), what, e);
}

int cuda_layer_forward(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                       struct span y, size_t rows, struct err *e) {
  struct cuda *u = cuda_of(c);
  void *in = NULL;
  if (rows == 0) return 0;
  int rc = check_buffers(c, l, x, y, rows, e);
  if (rc == 0) rc = converted_input(c, l, x, rows, true, &in, e);
  if (rc) return rc;
  struct product p = {
      .g = {.trans_a = true,
            .m = l->d.out,
            .n = rows,
            .k = l->d.in,
            .lda = l->d.in,
            .ldb = l->d.in,
            .ldd = l->d.out,
            .ab = u->low,
            .d = u->low},
      .a = param_at(c, params, l->d.weight),
      .b = in,
      .d = cuda_at(y),
      .bias = param_at(c, params, l->d.bias),
      .mask = l->mask,
      .mask_ld = mask_ld(l->d.out),
      .k = {.product = PRODUCT_FORWARD, .rows = rows},
  };
  static const char what[] = "a layer's forward";
  bool relu = l->d.relu;
  y.buf->made_by.serial = 0;
  if (relu && (rc = matmul(c, l, &p, CUBLASLT_EPILOGUE_RELU_AUX_BIAS, what, e))) {
    y.buf->made_by.layer = l;
    y.buf->made_by.serial = l->serial;
    y.buf->made_by.at = y.at;
    y.buf->made_by.rows = rows;
    return rc < 0 ? rc : 0;
  }
  rc = matmul(c, l, &p, relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS, what, e);
  if (rc) return rc < 0 ? rc : 0;
  p.g.add = true;
  rc = cuda_launched(c, kernel_bias(u->stream, p.d, p.bias, u->low, rows, l->d.out), "a layer's bias", e);
  if (rc == 0) rc = enqueue_plain(c, l, &p, what, e);
  if (rc || !relu) return rc;
  return cuda_launched(c, kernel_relu(u->stream, p.d, u->low, rows * l->d.out), "a layer's ReLU", e);
}

int cuda_layer_backward_weight(struct compute *c, struct compute_layer *l, struct compute_buf *grads, struct span x,
                               struct span dz, struct compute_part part, size_t rows, struct err *e) {
  static const char what[] = "a layer's gradient of weights";
  struct cuda *u = cuda_of(c);
  float *dw = (float *)grads->data + l->d.weight + part.from * l->d.in;
  float *db = part.from + part.n == l->d.out ? (float *)grads->data + l->d.bias : NULL; /* with the last part */
  void *in = NULL;
  if (part.from > l->d.out || part.n > l->d.out - part.from)
    return err_set(e, -EINVAL, "outputs %zu to %zu of a layer of %u", part.from, part.from + part.n, l->d.out);
  if (rows == 0) {
    int rc = cuda_launched(c, kernel_fill(u->stream, dw, KERNEL_F32, 0.0f, (size_t)l->d.in * part.n), "a fill", e);
    return rc || !db ? rc : cuda_launched(c, kernel_fill(u->stream, db, KERNEL_F32, 0.0f, l->d.out), "a fill", e);
  }
  int rc = check_buffers(c, l, x, dz, rows, e);
  if (rc == 0) rc = converted_input(c, l, x, rows, false, &in, e);
  if (rc) return rc;
  struct product p = {
      .g = {.trans_b = true,
            .m = l->d.in,
            .n = part.n,
            .k = rows,
            .lda = l->d.in,
            .ldb = l->d.out,
            .ldd = l->d.in,
            .ab = u->low,
            .d = KERNEL_F32},
      .a = in,
      .b = (char *)cuda_at(dz) + part.from * kernel_type_size(u->low),
      .d = dw,
      .bias = db,
      .k = {.product = PRODUCT_WEIGHT_GRAD, .rows = rows, .part = part.n},
  };
  bool fused = part.n == l->d.out && !u->deterministic;
  rc = fused ? matmul(c, l, &p, CUBLASLT_EPILOGUE_BGRADB, what, e) : 0;
  if (rc) return rc < 0 ? rc : 0;
  rc = enqueue_plain(c, l, &p, what, e);
  if (rc || !db) return rc;
  return cuda_launched(c, kernel_column_sums(u->stream, db, cuda_at(dz), u->low, rows, l->d.out),
                       "a layer's gradient of biases", e);
}

int cuda_layer_backward_input(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                              struct span dz, struct span dx, size_t rows, struct err *e) {
  static const char what[] = "a layer's gradient of its input";
  struct cuda *u = cuda_of(c);
  if (rows == 0) return 0;
  int rc = check_buffers(c, l, x, dz, rows, e);
  if (rc == 0) rc = check_buffers(c, l, dx, dz, rows, e);
  if (rc) return rc;
  if (dx.buf->type != u->low || x.buf->type != u->low)
    return err_set(e, -EINVAL, "the gradient of an input between buffers of the wrong use");
  const struct compute_layer *below = mask_writer(c, x, rows);
  struct product p = {
      .g = {.m = l->d.in,
            .n = rows,
            .k = l->d.out,
            .lda = l->d.in,
            .ldb = l->d.out,
            .ldd = l->d.in,
            .ab = u->low,
            .d = u->low},
      .a = param_at(c, params, l->d.weight),
      .b = cuda_at(dz),
      .d = cuda_at(dx),
      .mask = below ? below->mask : NULL,
      .mask_ld = mask_ld(l->d.in),
      .k = {.product = PRODUCT_INPUT_GRAD, .rows = rows},
  };
  dx.buf->made_by.serial = 0;
  rc = below && below->d.out == l->d.in ? matmul(c, l, &p, CUBLASLT_EPILOGUE_DRELU, what, e) : 0;
  if (rc) return rc < 0 ? rc : 0;
  rc = enqueue_plain(c, l, &p, what, e);
  if (rc) return rc;
  return cuda_launched(c, kernel_mask(u->stream, p.d, cuda_at(x), u->low, rows * l->d.in), "a layer's mask", e);
}
