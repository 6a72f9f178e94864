#ifndef AGENT_TRAINER_COMPUTE_H
#define AGENT_TRAINER_COMPUTE_H

/* The first of the trainer's two seams: what it asks of a device. compute_cpu.c answers on OpenBLAS; a
 * CUDA answer (cuBLASLt with fused epilogues, one stream, events, fused optimizers) fits behind the same
 * functions. What makes that possible, and what every caller must therefore respect:
 *
 *  - Asynchronous by contract. An operation is queued; it sees the results of those queued before it. The
 *    host sees a result only after compute_wait() of a mark recorded behind it. An error of the device may
 *    be told late, by a later call or by compute_wait.
 *  - Buffers are opaque and counted in elements. Values cross to and from the host as floats; how the
 *    device holds them (float, bf16, fp32 master copies) is its own affair and may depend on `use`. Only
 *    COMPUTE_STAGE memory has an address on the host (compute_host), and it is what compute_copy moves to
 *    and from the device without waiting: do not touch a stage between compute_copy and a mark behind it.
 *  - All weights are one allocation, all gradients another, all of an optimizer's state others, with the
 *    same offsets: one call updates everything, one collective reduces everything.
 *  - A layer is an object (compute_layer), so that chosen algorithms, workspaces and activation masks have
 *    a home.
 *
 * Functions return 0 or a negative errno value with a sentence. -ENOMEM is the only one of compute_alloc
 * that a caller should expect. Not thread-safe: one thread per compute. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum compute_use {
  COMPUTE_PARAM, /* weights and biases */
  COMPUTE_GRAD,  /* their gradients, and the few scalars that are reduced with them */
  COMPUTE_STATE, /* of the optimizer */
  COMPUTE_ACT,   /* inputs, activations and their gradients, targets */
  COMPUTE_STAGE, /* host memory, pinned where that helps */
};

enum compute_act { COMPUTE_LINEAR, COMPUTE_RELU };

enum compute_loss { COMPUTE_MSE, COMPUTE_RMSE, COMPUTE_CROSS_ENTROPY };

struct compute;
struct compute_buf;
struct compute_layer;

/* A range of a buffer: elements [at, at + n). */
struct span {
  struct compute_buf *buf;
  size_t at, n;
};

/* A point in the queue. */
struct compute_mark {
  uint64_t n;
};

struct compute_layer_desc {
  uint32_t in, out;       /* values per row */
  enum compute_act act;   /* behind this layer */
  enum compute_act below; /* behind the layer that made the input; COMPUTE_LINEAR for the first */
  size_t weight, bias;    /* where they begin in the flat buffers: weight[out][in], bias[out] */
  size_t max_rows;
};

struct compute_sgd {
  float lr, momentum;
};

struct compute_adam {
  float lr, beta1, beta2, eps;
  uint64_t step; /* from 1: this update's number, for the bias correction */
};

struct compute_ops {
  const char *name;
  void (*destroy)(struct compute *c);
  int (*alloc)(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out, struct err *e);
  void (*free)(struct compute *c, struct compute_buf *b);
  float *(*host)(struct compute *c, struct span s);
  int (*copy)(struct compute *c, struct span dst, struct span src, struct err *e);
  int (*fill)(struct compute *c, struct span dst, float value, struct err *e);
  int (*record)(struct compute *c, struct compute_mark *mark, struct err *e);
  int (*wait)(struct compute *c, struct compute_mark mark, uint64_t timeout_ms, struct err *e);
  int (*layer_create)(struct compute *c, const struct compute_layer_desc *d, struct compute_layer **out,
                      struct err *e);
  void (*layer_destroy)(struct compute *c, struct compute_layer *l);
  int (*forward)(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                 struct span y, size_t rows, struct err *e);
  int (*backward)(struct compute *c, struct compute_layer *l, struct compute_buf *params,
                  struct compute_buf *grads, struct span x, struct span dz, struct span dx, size_t rows,
                  struct err *e);
  int (*loss)(struct compute *c, enum compute_loss kind, struct span y, struct span target, struct span dz,
              struct span out, size_t rows, size_t cols, double weight, struct err *e);
  int (*sgd)(struct compute *c, const struct compute_sgd *h, struct span param, struct span grad,
             struct span momentum, struct err *e);
  int (*adam)(struct compute *c, const struct compute_adam *h, struct span param, struct span grad,
              struct span m, struct span v, struct err *e);
  int (*sum_squares)(struct compute *c, struct span x, struct span out, struct err *e);
};

/* Implementations embed this first. */
struct compute {
  const struct compute_ops *ops;
};

/* CPU: OpenBLAS with `threads` threads (0: as OPENBLAS_NUM_THREADS or OMP_NUM_THREADS say, else one). */
struct compute *compute_cpu_create(int threads);

static inline void compute_destroy(struct compute *c) {
  if (c) c->ops->destroy(c);
}
/* n elements, zero. */
static inline int compute_alloc(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out,
                                struct err *e) {
  return c->ops->alloc(c, use, n, out, e);
}
static inline void compute_free(struct compute *c, struct compute_buf *b) {
  if (b) c->ops->free(c, b);
}
/* The host's address of a span of a stage; NULL for what the host cannot reach. (On a CPU everything can
 * be reached: that is what coll_tcp builds on.) */
static inline float *compute_host(struct compute *c, struct span s) {
  return c->ops->host(c, s);
}
/* Same n on both sides. */
static inline int compute_copy(struct compute *c, struct span dst, struct span src, struct err *e) {
  return c->ops->copy(c, dst, src, e);
}
static inline int compute_fill(struct compute *c, struct span dst, float value, struct err *e) {
  return c->ops->fill(c, dst, value, e);
}
static inline int compute_record(struct compute *c, struct compute_mark *mark, struct err *e) {
  return c->ops->record(c, mark, e);
}
/* The host waits until everything before the mark is done; -ETIMEDOUT past timeout_ms. */
static inline int compute_wait(struct compute *c, struct compute_mark mark, uint64_t timeout_ms,
                               struct err *e) {
  return c->ops->wait(c, mark, timeout_ms, e);
}
static inline int compute_layer_create(struct compute *c, const struct compute_layer_desc *d,
                                       struct compute_layer **out, struct err *e) {
  return c->ops->layer_create(c, d, out, e);
}
static inline void compute_layer_destroy(struct compute *c, struct compute_layer *l) {
  if (l) c->ops->layer_destroy(c, l);
}
/* y[rows][out] = act(x[rows][in] weight^T + bias). rows may be 0 here and below. */
static inline int compute_forward(struct compute *c, struct compute_layer *l, struct compute_buf *params,
                                  struct span x, struct span y, size_t rows, struct err *e) {
  return c->ops->forward(c, l, params, x, y, rows, e);
}
/* From dz, the gradient of what this layer gives *before* its activation: writes the layer's part of
 * `grads` (weight and bias; zero for 0 rows), and dx, the gradient of what the layer below gives before
 * *its* activation: the mask of `below` is applied here, where a fused epilogue has it for nothing. dx.n
 * 0: not wanted. x is as in compute_forward. */
static inline int compute_backward(struct compute *c, struct compute_layer *l, struct compute_buf *params,
                                   struct compute_buf *grads, struct span x, struct span dz, struct span dx,
                                   size_t rows, struct err *e) {
  return c->ops->backward(c, l, params, grads, x, dz, dx, rows, e);
}
/* out[0] = weight * loss, dz = weight * its gradient by y. Mean over rows and columns (mse, rmse = its
 * square root) with target[rows][cols], or over rows (cross-entropy over softmax(y)) with target[rows],
 * the class numbers. */
static inline int compute_loss(struct compute *c, enum compute_loss kind, struct span y, struct span target,
                               struct span dz, struct span out, size_t rows, size_t cols, double weight,
                               struct err *e) {
  return c->ops->loss(c, kind, y, target, dz, out, rows, cols, weight, e);
}
/* momentum = h.momentum * momentum + grad; param -= lr * momentum. All spans of the same n. */
static inline int compute_sgd_step(struct compute *c, const struct compute_sgd *h, struct span param,
                                   struct span grad, struct span momentum, struct err *e) {
  return c->ops->sgd(c, h, param, grad, momentum, e);
}
/* Adam with bias correction, as torch.optim.Adam. */
static inline int compute_adam_step(struct compute *c, const struct compute_adam *h, struct span param,
                                    struct span grad, struct span m, struct span v, struct err *e) {
  return c->ops->adam(c, h, param, grad, m, v, e);
}
/* out[0] = sum of x^2. */
static inline int compute_sum_squares(struct compute *c, struct span x, struct span out, struct err *e) {
  return c->ops->sum_squares(c, x, out, e);
}

#ifdef __cplusplus
}
#endif
#endif
