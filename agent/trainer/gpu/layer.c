/* A layer: three matrix products, and what stands at their edges.
 *
 *   forward        y[rows][out]  = act(x W^T + b)        epilogue: bias and ReLU, which also leaves a mask of one bit per value
 *   weights' grad  dW[out][in]   = dz^T x, in floats     epilogue: the bias's gradient, the sums of dz's columns
 *   input's grad   dx[rows][in]  = (dz W) * mask         epilogue: the mask that the layer below left in its forward
 *
 * For cuBLAS, which counts by columns, a row-major matrix is its own transpose; so y^T = W x^T is asked for, m being the values of a row and n the
 * rows. The leading dimension of everything is the width of its row.
 *
 * Each product is tried in the best way first. Where cuBLASLt has no algorithm for it (odd widths in bf16, addresses that are aligned to two
 * bytes), or where the bias does not begin at sixteen bytes, the epilogue becomes kernels of its own (the bias is put
 * there first and the product added to it, which is rounded once); where it has none even then, the product does too. That a ReLU mask fits is known by
 * the buffer: the forward that wrote the activations has left its name there, and everybody else who writes into it erases that name.
 *
 * In bf16 and fp16 the first layer's input is converted once, in the forward, and kept for the backward. The bias's gradient is not fused where
 * it is to be added to (an epilogue can only overwrite), nor where the same bytes are wanted on every run. cuBLASLt's ReLU gives 0 for what is not a
 * number, the kernel's leaves it. So a hidden unit whose weight is not finite may give zeros for ever, which neither the loss nor the gradients' norm
 * tell: no run begins with such weights (setup.c, state.c), and no update is made of gradients that are not finite. What is left is a
 * finite update that overflows a weight of a hidden layer: with cuBLASLt's ReLU it may go unseen until the weights are saved and read again. */

#include "agent/trainer/gpu/cuda_compute.h"

#include "common/mem.h"

#include <errno.h>
#include <stdlib.h>

struct compute_layer {
  struct compute_layer_desc d;
  uint64_t serial;
  struct compute_layer *next;
  void *mask;  /* of ReLU behind this layer */
  void *x_low; /* the input in the precision, where it comes as floats */
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
  if (d->act == COMPUTE_RELU && u->matmul == RULES_FUSED)
    rc = cuda_mem_raw(c, rules_mask_bytes(d->out, d->max_rows), &l->mask, e);
  if (rc == 0 && d->below == COMPUTE_LINEAR && u->low != KERNEL_F32)
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

/* The layer that made these activations with a mask, if it still exists and they are still its. */
static const struct compute_layer *maker(struct compute *c, struct span x, size_t rows) {
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

/* The input as products read it; `convert`: in the forward. */
static int input_of(struct compute *c, struct compute_layer *l, struct span x, size_t rows, bool convert,
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

static int check(struct compute *c, const struct compute_layer *l, struct span x, struct span y, size_t rows,
                 struct err *e) {
  if (rows > l->d.max_rows)
    return err_set(e, -EINVAL, "%zu rows for a layer made for %zu", rows, l->d.max_rows);
  if (x.n < rows * l->d.in || y.n < rows * l->d.out || y.buf->type != cuda_of(c)->low)
    return err_set(e, -EINVAL, "a layer of %u to %u values between buffers of the wrong size or use", l->d.in,
                   l->d.out);
  return 0;
}

/* Without an epilogue: by cuBLASLt, or else by the kernel. */
static int plain(struct compute *c, struct compute_layer *l, struct cuda_product *p, const char *what,
                 struct err *e) {
  struct cuda *u = cuda_of(c);
  p->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int rc = u->matmul == RULES_OWN ? 0 : cuda_matmul(c, &l->plans, p, what, e);
  if (rc) return rc < 0 ? rc : 0;
  return cuda_launched(c, kernel_gemm(u->stream, &p->g, p->a, p->b, p->d), what, e);
}

/* 1: done with this epilogue; 0: there is none. */
static int fused(struct compute *c, struct compute_layer *l, struct cuda_product *p,
                 cublasLtEpilogue_t epilogue, const char *what, struct err *e) {
  if (cuda_of(c)->matmul != RULES_FUSED) return 0;
  p->epilogue = epilogue;
  return cuda_matmul(c, &l->plans, p, what, e);
}

int cuda_layer_forward(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                       struct span y, size_t rows, struct err *e) {
  static const char what[] = "a layer's forward";
  struct cuda *u = cuda_of(c);
  bool relu = l->d.act == COMPUTE_RELU;
  void *in = NULL;
  if (rows == 0) return 0;
  int rc = check(c, l, x, y, rows, e);
  if (rc == 0) rc = input_of(c, l, x, rows, true, &in, e);
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
      .d = cuda_at(y),
      .bias = param_at(c, params, l->d.bias),
      .mask = l->mask,
      .mask_ld = rules_mask_ld(l->d.out),
      .k = {.product = RULES_FORWARD, .rows = rows},
  };
  y.buf->made_by.serial = 0;
  if (relu && l->mask && (rc = fused(c, l, &p, CUBLASLT_EPILOGUE_RELU_AUX_BIAS, what, e))) {
    y.buf->made_by.layer = l;
    y.buf->made_by.serial = l->serial;
    y.buf->made_by.at = y.at;
    y.buf->made_by.rows = rows;
    return rc < 0 ? rc : 0;
  }
  rc = fused(c, l, &p, relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS, what, e);
  if (rc) return rc < 0 ? rc : 0;
  p.g.add = true;
  rc = cuda_launched(c, kernel_bias(u->stream, p.d, p.bias, u->low, rows, l->d.out), "a layer's bias", e);
  if (rc == 0) rc = plain(c, l, &p, what, e);
  if (rc || !relu) return rc;
  return cuda_launched(c, kernel_relu(u->stream, p.d, u->low, rows * l->d.out), "a layer's ReLU", e);
}

/* The layer's part of the gradients when there are no rows. */
static int no_rows(struct compute *c, struct compute_layer *l, float *dw, float *db, bool add,
                   struct err *e) {
  cudaStream_t stream = cuda_of(c)->stream;
  if (add) return 0;
  int rc =
      cuda_launched(c, kernel_fill(stream, dw, KERNEL_F32, 0.0f, (size_t)l->d.in * l->d.out), "a fill", e);
  return rc ? rc : cuda_launched(c, kernel_fill(stream, db, KERNEL_F32, 0.0f, l->d.out), "a fill", e);
}

static int weight_grad(struct compute *c, struct compute_layer *l, float *dw, float *db, const void *in,
                       const void *dz, size_t rows, bool add, struct err *e) {
  static const char what[] = "a layer's gradient of weights";
  struct cuda *u = cuda_of(c);
  struct cuda_product p = {
      .g = {.trans_b = true,
            .add = add,
            .m = l->d.in,
            .n = l->d.out,
            .k = rows,
            .lda = l->d.in,
            .ldb = l->d.out,
            .ldd = l->d.in,
            .ab = u->low,
            .d = KERNEL_F32},
      .a = in,
      .b = dz,
      .d = dw,
      .bias = db,
      .k = {.product = RULES_WEIGHT_GRAD, .rows = rows},
  };
  int rc = add || u->deterministic ? 0 : fused(c, l, &p, CUBLASLT_EPILOGUE_BGRADB, what, e);
  if (rc) return rc < 0 ? rc : 0;
  rc = plain(c, l, &p, what, e);
  if (rc) return rc;
  return cuda_launched(c, kernel_column_sums(u->stream, db, dz, u->low, rows, l->d.out, add),
                       "a layer's gradient of biases", e);
}

static int input_grad(struct compute *c, struct compute_layer *l, const void *weight, const void *dz,
                      struct span x, struct span dx, size_t rows, struct err *e) {
  static const char what[] = "a layer's gradient of its input";
  struct cuda *u = cuda_of(c);
  const struct compute_layer *below = l->d.below == COMPUTE_RELU ? maker(c, x, rows) : NULL;
  struct cuda_product p = {
      .g = {.m = l->d.in,
            .n = rows,
            .k = l->d.out,
            .lda = l->d.in,
            .ldb = l->d.out,
            .ldd = l->d.in,
            .ab = u->low,
            .d = u->low},
      .a = weight,
      .b = dz,
      .d = cuda_at(dx),
      .mask = below ? below->mask : NULL,
      .mask_ld = rules_mask_ld(l->d.in),
      .k = {.product = RULES_INPUT_GRAD, .rows = rows},
  };
  dx.buf->made_by.serial = 0;
  int rc = below && below->d.out == l->d.in ? fused(c, l, &p, CUBLASLT_EPILOGUE_DRELU, what, e) : 0;
  if (rc) return rc < 0 ? rc : 0;
  rc = plain(c, l, &p, what, e);
  if (rc || l->d.below != COMPUTE_RELU) return rc;
  return cuda_launched(c, kernel_mask(u->stream, p.d, cuda_at(x), u->low, rows * l->d.in), "a layer's mask",
                       e);
}

int cuda_layer_backward(struct compute *c, struct compute_layer *l, struct compute_buf *params,
                        struct compute_buf *grads, struct span x, struct span dz, struct span dx, size_t rows,
                        bool add, struct err *e) {
  float *dw = (float *)grads->data + l->d.weight, *db = (float *)grads->data + l->d.bias;
  void *in = NULL;
  if (rows == 0) return no_rows(c, l, dw, db, add, e);
  int rc = check(c, l, x, dz, rows, e);
  if (rc == 0 && dx.n > 0) rc = check(c, l, dx, dz, rows, e);
  if (rc == 0) rc = input_of(c, l, x, rows, false, &in, e);
  if (rc == 0) rc = weight_grad(c, l, dw, db, in, cuda_at(dz), rows, add, e);
  if (rc || dx.n == 0) return rc;
  if (dx.buf->type != cuda_of(c)->low || x.buf->type != cuda_of(c)->low)
    return err_set(e, -EINVAL, "the gradient of an input between buffers of the wrong use");
  return input_grad(c, l, param_at(c, params, l->d.weight), cuda_at(dz), x, dx, rows, e);
}
