/* SPDX-License-Identifier: Apache-2.0 */
/* A layer: three matrix products, and their epilogues.
 *
 *   forward        y[rows][out]  = act(x W^T + b)        epilogue: bias and ReLU, which also writes a mask of one bit
 *                  per value
 *   weights' grad  dW[out][in]   = dz^T x, in floats     epilogue: the gradient of the bias, the column sums of dz
 *   input's grad   dx[rows][in]  = (dz W) * mask         epilogue: the mask that the layer below wrote in its forward
 *
 * cuBLAS is column-major, so a row-major matrix is its own transpose: we compute y^T = W x^T, where m counts the values
 * of a row and n the rows. Each leading dimension is the width of a row.
 *
 * Each product first tries the fastest way. If cuBLASLt has no algorithm for it (odd widths in bf16, rows aligned to two
 * bytes), the epilogue becomes separate kernels. The bias is then written first and the product added to it, which
 * rounds once. model.h aligns the biases of a model; other callers need the check of their sixteen bytes. If cuBLASLt has
 * no algorithm even then, a kernel makes the product. A forward writes its name into the buffer of its activations, and
 * every other writer erases it. So the buffer tells whether a ReLU mask fits.
 *
 * GELU and its derivative are separate kernels. The product with its bias goes to `before`, and a kernel computes y
 * from it. The gradient of an input is a product without an epilogue, which a kernel then multiplies.
 *
 * In bf16 the forward converts the first layer's input once and keeps it for the backward. The gradient of the
 * bias is not fused if it is to be added, because an epilogue can only overwrite, or if every run must give the same
 * bytes.
 *
 * cuBLASLt's ReLU turns NaN into 0, and ours keeps it. So a hidden unit with a weight that is not finite may yield
 * zeros forever, and neither the loss nor the norm of the gradients shows it. Therefore no run starts with such weights
 * (setup.c, state.c), and no update uses gradients that are not finite. A finite update can still overflow a weight of
 * a hidden layer; with cuBLASLt's ReLU that may stay hidden until the weights are saved and read again. */

#include "agent/trainer/gpu/cuda_compute.h"

#include "common/mem.h"

#include <errno.h>
#include <stdlib.h>

struct compute_layer {
  struct compute_layer_desc d;
  uint64_t serial;
  struct compute_layer *next;
  void *mask;  /* of the ReLU behind this layer */
  void *x_low; /* the input in the precision, if it arrives as floats */
  struct cuda_plans plans;
};

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
  if (d->act == COMPUTE_RELU && u->matmul == PRODUCT_FUSED)
    rc = cuda_mem_raw(c, product_mask_bytes(d->out, d->max_rows), &l->mask, e);
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
static int enqueue_plain(struct compute *c, struct compute_layer *l, struct cuda_product *p, const char *what,
                         struct err *e) {
  struct cuda *u = cuda_of(c);
  p->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int rc = u->matmul == PRODUCT_OWN ? 0 : cuda_matmul(c, &l->plans, p, what, e);
  if (rc) return rc < 0 ? rc : 0;
  return cuda_launched(c, kernel_gemm(u->stream, &p->g, p->a, p->b, p->d), what, e);
}

/* 1: queued with this epilogue. 0: there is none. */
static int enqueue_fused(struct compute *c, struct compute_layer *l, struct cuda_product *p,
                         cublasLtEpilogue_t epilogue, const char *what, struct err *e) {
  if (cuda_of(c)->matmul != PRODUCT_FUSED) return 0;
  p->epilogue = epilogue;
  return cuda_matmul(c, &l->plans, p, what, e);
}

/* The product, its bias and ReLU: to y, or to `before` with GELU. */
static int enqueue_forward(struct compute *c, struct compute_layer *l, struct cuda_product *p, struct span y,
                           size_t rows, struct err *e) {
  static const char what[] = "a layer's forward";
  struct cuda *u = cuda_of(c);
  bool relu = l->d.act == COMPUTE_RELU;
  int rc = 0;
  y.buf->made_by.serial = 0;
  if (relu && l->mask && (rc = enqueue_fused(c, l, p, CUBLASLT_EPILOGUE_RELU_AUX_BIAS, what, e))) {
    y.buf->made_by.layer = l;
    y.buf->made_by.serial = l->serial;
    y.buf->made_by.at = y.at;
    y.buf->made_by.rows = rows;
    return rc < 0 ? rc : 0;
  }
  rc = enqueue_fused(c, l, p, relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS, what, e);
  if (rc) return rc < 0 ? rc : 0;
  p->g.add = true;
  rc = cuda_launched(c, kernel_bias(u->stream, p->d, p->bias, u->low, rows, l->d.out), "a layer's bias", e);
  if (rc == 0) rc = enqueue_plain(c, l, p, what, e);
  if (rc || !relu) return rc;
  return cuda_launched(c, kernel_relu(u->stream, p->d, u->low, rows * l->d.out), "a layer's ReLU", e);
}

int cuda_layer_forward(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                       struct span y, size_t rows, struct err *e) {
  struct cuda *u = cuda_of(c);
  bool gelus = l->d.act == COMPUTE_GELU;
  void *in = NULL;
  if (rows == 0) return 0;
  int rc = check_buffers(c, l, x, y, rows, e);
  if (rc == 0) rc = converted_input(c, l, x, rows, true, &in, e);
  if (rc) return rc;
  struct cuda_product p = {
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
      .d = gelus ? l->d.before->data : cuda_at(y),
      .bias = param_at(c, params, l->d.bias),
      .mask = l->mask,
      .mask_ld = product_mask_ld(l->d.out),
      .k = {.product = PRODUCT_FORWARD, .rows = rows},
  };
  rc = enqueue_forward(c, l, &p, y, rows, e);
  if (rc || !gelus) return rc;
  return cuda_launched(c, kernel_gelu(u->stream, cuda_at(y), p.d, u->low, rows * l->d.out), "a layer's GELU", e);
}

int cuda_layer_backward_weight(struct compute *c, struct compute_layer *l, struct compute_buf *grads, struct span x,
                               struct span dz, struct compute_part part, size_t rows, bool add, struct err *e) {
  static const char what[] = "a layer's gradient of weights";
  struct cuda *u = cuda_of(c);
  float *dw = (float *)grads->data + l->d.weight + part.from * l->d.in;
  float *db = part.from + part.n == l->d.out ? (float *)grads->data + l->d.bias : NULL; /* with the last part */
  void *in = NULL;
  if (part.from > l->d.out || part.n > l->d.out - part.from)
    return err_set(e, -EINVAL, "outputs %zu to %zu of a layer of %u", part.from, part.from + part.n, l->d.out);
  if (rows == 0) {
    if (add) return 0;
    int rc = cuda_launched(c, kernel_fill(u->stream, dw, KERNEL_F32, 0.0f, (size_t)l->d.in * part.n), "a fill", e);
    return rc || !db ? rc : cuda_launched(c, kernel_fill(u->stream, db, KERNEL_F32, 0.0f, l->d.out), "a fill", e);
  }
  int rc = check_buffers(c, l, x, dz, rows, e);
  if (rc == 0) rc = converted_input(c, l, x, rows, false, &in, e);
  if (rc) return rc;
  struct cuda_product p = {
      .g = {.trans_b = true,
            .add = add,
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
  bool fused = part.n == l->d.out && !add && !u->deterministic;
  rc = fused ? enqueue_fused(c, l, &p, CUBLASLT_EPILOGUE_BGRADB, what, e) : 0;
  if (rc) return rc < 0 ? rc : 0;
  rc = enqueue_plain(c, l, &p, what, e);
  if (rc || !db) return rc;
  return cuda_launched(c, kernel_column_sums(u->stream, db, cuda_at(dz), u->low, rows, l->d.out, add),
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
  const struct compute_layer *below = l->d.below == COMPUTE_RELU ? mask_writer(c, x, rows) : NULL;
  struct cuda_product p = {
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
      .mask_ld = product_mask_ld(l->d.in),
      .k = {.product = PRODUCT_INPUT_GRAD, .rows = rows},
  };
  dx.buf->made_by.serial = 0;
  rc = below && below->d.out == l->d.in ? enqueue_fused(c, l, &p, CUBLASLT_EPILOGUE_DRELU, what, e) : 0;
  if (rc) return rc < 0 ? rc : 0;
  rc = enqueue_plain(c, l, &p, what, e);
  if (rc || l->d.below == COMPUTE_LINEAR) return rc;
  if (l->d.below == COMPUTE_GELU)
    return cuda_launched(c, kernel_gelu_grad(u->stream, p.d, l->d.below_before->data, u->low, rows * l->d.in),
                         "a layer's gradient of GELU", e);
  return cuda_launched(c, kernel_mask(u->stream, p.d, cuda_at(x), u->low, rows * l->d.in), "a layer's mask", e);
}
