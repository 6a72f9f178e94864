/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_COMPUTE_COMPUTE_H
#define AGENT_TRAINER_COMPUTE_COMPUTE_H

/* The trainer's interface to a device: the first of its two seams (the other is coll.h).
 *
 * cpu.c implements it with OpenBLAS, and the module in gpu/ implements it with CUDA. Both fit behind the same functions
 * because every caller respects these rules:
 *
 *  - Operations are asynchronous. An operation is queued and sees the results of the operations queued before it. The
 *    host may read a result only after compute_done() or compute_wait() has confirmed a mark recorded behind it. A
 *    later call may report an earlier error of the device.
 *  - Buffers are opaque and their sizes count elements. Values cross to and from the host as floats; `use` and the
 *    precision decide how the device stores them. Only COMPUTE_STAGE memory has a host address (compute_host). Do not
 *    touch a stage between a compute_copy and a mark behind it.
 *  - Values that change from step to step lie on the device: the update count, the decision to skip. So a step can be
 *    captured once and launched again. The host may queue `depth` steps before it reads the results of the first.
 *  - All weights are one allocation and all gradients another, with equal offsets. One call updates everything, and one
 *    collective reduces everything.
 *  - A layer is an object (compute_layer) that owns algorithms, workspaces and activation masks. The optimizer is an
 *    object too (compute_opt), with its state and its counters.
 *
 * Precision is the same on every device, up to the order of sums:
 *
 *   fp32   everything is float.
 *   bf16   weights are floats with a bf16 copy that matrix products read. Activations and their gradients are bf16.
 *          Sums of products, the loss, gradients of weights, their sum over ranks, and the optimizer are float.
 *
 * Functions return 0, or a negative errno value with a message. Only compute_alloc is expected to fail in a correct
 * program, with -ENOMEM. Not thread-safe: one thread per compute. */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum compute_precision { COMPUTE_FP32, COMPUTE_BF16 };

enum compute_use {
  COMPUTE_PARAM, /* weights and biases: floats, with a copy in the precision where it needs one */
  COMPUTE_GRAD,  /* their gradients, and the few scalars that are reduced with them: floats */
  COMPUTE_STATE, /* optimizer state, and scalars: floats */
  COMPUTE_INPUT, /* inputs and targets: floats */
  COMPUTE_ACT,   /* activations and their gradients: in the precision */
  COMPUTE_STAGE, /* host memory, pinned if that helps */
};

enum compute_loss { COMPUTE_MSE, COMPUTE_RMSE, COMPUTE_CROSS_ENTROPY };

/* Adam keeps two floats per weight: the mean and the mean square of its gradients. */
enum { COMPUTE_STATES = 2, COMPUTE_LOSS_OUT = 3 };

struct compute;
struct compute_buf;
struct compute_layer;
struct compute_opt;
struct compute_graph;
struct compute_rows;

/* A range of a buffer: elements [at, at + n). */
struct span {
  struct compute_buf *buf;
  size_t at, n;
};

/* A point in the queue. */
struct compute_mark {
  uint64_t n;
};

enum {
  COMPUTE_STAMP = 2,   /* stage elements of a time stamp: a uint64_t in nanoseconds */
  COMPUTE_CHECKSUM = 2 /* the same of a checksum: a uint64_t */
};

/* A layer. Behind every layer but the last is a ReLU. */
struct compute_layer_desc {
  uint32_t in, out;    /* values per row */
  bool first;          /* the input is a COMPUTE_INPUT; otherwise it comes from a ReLU */
  bool relu;           /* behind this layer */
  size_t weight, bias; /* offsets in the flat buffers: weight[out][in], bias[out] */
  size_t max_rows;
};

/* Outputs [from, from + n) of a layer: rows of its weight. */
struct compute_part {
  size_t from, n;
};

/* One call of compute_loss. */
struct compute_loss_desc {
  enum compute_loss kind;
  size_t rows, cols;
  double weight;  /* the share of these rows in the whole; 1: they are the whole */
  float rank_tag; /* written to out[2] if the loss is not finite: this rank + 1 */
};

/* Adam, as in PyTorch. */
struct compute_opt_desc {
  size_t n;  /* weights */
  double lr; /* used as a float */
  double beta1, beta2, eps;
};

/* One update. */
struct compute_update {
  struct span param, grad; /* n of the optimizer */
  struct span bad;         /* one float on the device, out[1] of compute_loss; n 0: none */
  struct span counters;    /* stage of COMPUTE_COUNTERS floats: the counters behind this update; n 0: nowhere */
};

/* A data set. Row i is bytes of a file as value / 255 * scale, or the ramp from 0 to i * scale. */
struct compute_rows_desc {
  uint64_t n;
  uint32_t dim;          /* values of a row */
  const uint8_t *pixels; /* n * dim; NULL: ramps */
  double scale;
};
enum {
  COMPUTE_ROWS_SHARE = 4, /* a data set may use 1/4 of the device's free memory */
  COMPUTE_ROW_NUMBER = 2, /* stage elements of one row number: a uint64_t */
};

/* The counters of an optimizer. Checkpoints store them. */
struct compute_opt_counters {
  uint64_t updates;        /* updates made: the exponent of Adam's bias correction */
  uint64_t skipped;        /* steps with gradients that were not finite; they left weights and state unchanged */
  uint32_t skipped_in_row; /* up to the last step */
  float grad_norm;         /* of the last step; not finite: the step was skipped */
};

struct compute_ops {
  const char *name;
  void (*destroy)(struct compute *c);
  /* n elements, all zero. */
  int (*alloc)(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out, struct err *e);
  void (*free)(struct compute *c, struct compute_buf *b);
  /* The host address of a span of a stage; NULL if the host cannot reach it. On a CPU every span has one, and
   * coll/tcp.c relies on that. */
  float *(*host)(struct compute *c, struct span s);
  /* n is equal on both sides. A copy to a COMPUTE_PARAM also updates its copy in the precision. At most one side is
   * a stage, and the other one then no COMPUTE_ACT. A copy on the device between COMPUTE_ACT and floats converts. */
  int (*copy)(struct compute *c, struct span dst, struct span src, struct err *e);
  int (*record)(struct compute *c, struct compute_mark *mark, struct err *e);
  /* 1: all operations before the mark are done. 0: not yet. Never waits. */
  int (*done)(struct compute *c, struct compute_mark mark, struct err *e);
  int (*layer_create)(struct compute *c, const struct compute_layer_desc *d, struct compute_layer **out, struct err *e);
  void (*layer_destroy)(struct compute *c, struct compute_layer *l);
  /* y[rows][out] = x[rows][in] weight^T + bias, and 0 where that is negative if the layer has a ReLU. x is a
   * COMPUTE_INPUT for the first layer, else a COMPUTE_ACT; y is a COMPUTE_ACT. rows may be 0, here and below. */
  int (*forward)(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x, struct span y,
                 size_t rows, struct err *e);
  /* The backward pass of a layer is two operations, so that the sum over the ranks can start between them. dz is the
   * gradient of this layer's output before its ReLU. x and rows are those of the last compute_forward of this layer.
   *
   * The first writes gradients of the weight to `grads`: those of one part of the outputs. The part with the last
   * output also writes the gradient of the whole bias. They are zero for 0 rows. */
  int (*backward_weight)(struct compute *c, struct compute_layer *l, struct compute_buf *grads, struct span x,
                         struct span dz, struct compute_part part, size_t rows, struct err *e);
  /* The second writes dx, the gradient of the output of the layer below before *its* ReLU: this call applies the
   * derivative of its ReLU, because a fused epilogue has it for free. Not for the first layer. */
  int (*backward_input)(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                        struct span dz, struct span dx, size_t rows, struct err *e);
  /* Three floats in `out`:
   *
   *   out[0]   weight * loss, even if it is not finite
   *   out[1]   1 if the loss is not finite, else 0; infinite if updates are blocked
   *   out[2]   rank_tag if the loss is not finite, else 0
   *
   * dz = weight * gradient of the loss by y. mse is the mean over rows and columns against target[rows][cols], and
   * rmse its square root. cross-entropy is the mean over rows of softmax(y) against target[rows], the class numbers.
   * y, dz: COMPUTE_ACT. target: COMPUTE_INPUT. */
  int (*loss)(struct compute *c, const struct compute_loss_desc *d, struct span y, struct span target, struct span dz,
              struct span out, struct err *e);
  /* State and counters are zero. */
  int (*opt_create)(struct compute *c, const struct compute_opt_desc *d, struct compute_opt **out, struct err *e);
  void (*opt_destroy)(struct compute *c, struct compute_opt *o);
  struct compute_buf *(*opt_state)(struct compute_opt *o, int i);
  /* One update, equal to that of torch.optim's Adam. If u->bad is not 0, or the norm is not finite, the update is
   * skipped: only the counters change, and grad_norm is not finite. If u->bad is infinite, the updates of some rank are
   * blocked, and this call changes nothing, as if they were blocked here too. An update that is blocked writes
   * u->counters too. */
  int (*opt_step)(struct compute *c, struct compute_opt *o, const struct compute_update *u, struct err *e);
  /* Queues a copy of the counters to a stage, as they are behind the queued operations. */
  int (*opt_read)(struct compute *c, struct compute_opt *o, struct span stage, struct err *e);
  int (*opt_set)(struct compute *c, struct compute_opt *o, const struct compute_opt_counters *v, struct err *e);
  /* Writes a checksum of the bits of floats, not of activations, to `out`: COMPUTE_CHECKSUM elements of a stage.
   * Every device computes the same. */
  int (*checksum)(struct compute *c, struct span s, struct span out, struct err *e);
  /* Optional: NULL if the device has no such operation. */
  int (*copy_and_stamp)(struct compute *c, struct span dst, struct span src, struct span stamp, struct err *e);
  int (*rows_create)(struct compute *c, const struct compute_rows_desc *d, struct compute_rows **out, struct err *e);
  void (*rows_destroy)(struct compute *c, struct compute_rows *r);
  /* Fills dst, a COMPUTE_INPUT, with the rows whose numbers (uint64_t, below n) the stage holds. The bits equal
   * those of dataset_sample. */
  int (*rows_gather)(struct compute *c, struct compute_rows *r, struct span dst, struct span numbers, struct err *e);
  void (*block_updates)(struct compute *c, bool on);
  int (*capture_begin)(struct compute *c, struct err *e);
  int (*capture_end)(struct compute *c, struct compute_graph **out, struct err *e);
  int (*launch)(struct compute *c, struct compute_graph *g, struct err *e);
  void (*graph_destroy)(struct compute *c, struct compute_graph *g);
};

/* Implementations embed this as their first member. */
struct compute {
  const struct compute_ops *ops;
  enum compute_precision precision;
  int depth; /* steps that may be queued before the host reads the first one's results; 0: each call is synchronous */
  char device[96]; /* for messages: "NVIDIA H200 (GPU-8f2c..., sm_90)"; "cpu" */
  /* The same calls on devices of one kind give the same bits: the model and the libraries. 0: not even twice on this
   * device. */
  uint64_t kind;
  /* A collective may never finish on this device, so nothing of it can be freed. The process should leave by _exit,
   * because the exit handlers of the device's libraries wait for it. */
  bool held;
};

/* The CPU. OPENBLAS_NUM_THREADS or OMP_NUM_THREADS decide about its threads; without them there is one. */
struct compute *compute_cpu_create(enum compute_precision precision);

/* The operations, by their names in compute_ops. */
#define compute_alloc(c, ...)           (c)->ops->alloc((c), __VA_ARGS__)
#define compute_host(c, ...)            (c)->ops->host((c), __VA_ARGS__)
#define compute_copy(c, ...)            (c)->ops->copy((c), __VA_ARGS__)
#define compute_record(c, ...)          (c)->ops->record((c), __VA_ARGS__)
#define compute_done(c, ...)            (c)->ops->done((c), __VA_ARGS__)
#define compute_layer_create(c, ...)    (c)->ops->layer_create((c), __VA_ARGS__)
#define compute_forward(c, ...)         (c)->ops->forward((c), __VA_ARGS__)
#define compute_backward_weight(c, ...) (c)->ops->backward_weight((c), __VA_ARGS__)
#define compute_backward_input(c, ...)  (c)->ops->backward_input((c), __VA_ARGS__)
#define compute_loss(c, ...)            (c)->ops->loss((c), __VA_ARGS__)
#define compute_opt_create(c, ...)      (c)->ops->opt_create((c), __VA_ARGS__)
#define compute_opt_step(c, ...)        (c)->ops->opt_step((c), __VA_ARGS__)
#define compute_opt_read(c, ...)        (c)->ops->opt_read((c), __VA_ARGS__)
#define compute_opt_set(c, ...)         (c)->ops->opt_set((c), __VA_ARGS__)
#define compute_checksum(c, ...)        (c)->ops->checksum((c), __VA_ARGS__)
#define compute_rows_gather(c, ...)     (c)->ops->rows_gather((c), __VA_ARGS__)
#define compute_capture_begin(c, ...)   (c)->ops->capture_begin((c), __VA_ARGS__)
#define compute_capture_end(c, ...)     (c)->ops->capture_end((c), __VA_ARGS__)
#define compute_launch(c, ...)          (c)->ops->launch((c), __VA_ARGS__)

static inline void compute_destroy(struct compute *c) {
  if (c) c->ops->destroy(c);
}
/* Waits for all queued operations. NULL is fine. */
static inline void compute_free(struct compute *c, struct compute_buf *b) {
  if (b) c->ops->free(c, b);
}
/* Waits until all operations before the mark are done; -ETIMEDOUT after timeout_ms. For set-up and tests: a step also
 * watches the other ranks (trainer_wait). */
int compute_wait(struct compute *c, struct compute_mark mark, uint64_t timeout_ms, struct err *e);

static inline void compute_layer_destroy(struct compute *c, struct compute_layer *l) {
  if (l) c->ops->layer_destroy(c, l);
}
static inline void compute_opt_destroy(struct compute *c, struct compute_opt *o) {
  if (o) c->ops->opt_destroy(c, o);
}
/* State i, 0 <= i < COMPUTE_STATES: d->n floats, for checkpoints. The optimizer owns it. */
static inline struct compute_buf *compute_opt_state(struct compute *c, struct compute_opt *o, int i) {
  return c->ops->opt_state(o, i);
}
/* Stage elements of a struct compute_opt_counters. */
#define COMPUTE_COUNTERS (sizeof(struct compute_opt_counters) / sizeof(float))

/* Keeps a data set on the device. -ENOTSUP: this device keeps none. -ENOMEM: the data set is too large
 * (COMPUTE_ROWS_SHARE). Waits, and does not read the pixels afterwards. */
int compute_rows_create(struct compute *c, const struct compute_rows_desc *d, struct compute_rows **out, struct err *e);
static inline void compute_rows_destroy(struct compute *c, struct compute_rows *r) {
  if (r) c->ops->rows_destroy(c, r);
}

/* A small copy between a stage and floats that are no COMPUTE_PARAM (dst.n 0: none), and behind it the device's clock to
 * `stamp`, COMPUTE_STAMP elements of a stage, as one operation. A device without a clock leaves the stamp unchanged. */
int compute_copy_and_stamp(struct compute *c, struct span dst, struct span src, struct span stamp, struct err *e);

/* While on, queued updates that have not started change nothing, not even counters: the gradients they would use may be
 * incomplete. The gradients of later queued steps then come from old weights. So their losses say so to the other ranks
 * (compute_loss), whose updates are blocked with these. Call it before a communicator is aborted, and switch it off
 * after all queued operations are done. Takes effect at once. */
static inline void compute_block_updates(struct compute *c, bool on) {
  if (c->ops->block_updates) c->ops->block_updates(c, on);
}

/* Capture: operations between begin and end are recorded instead of done, collectives included. Each launch then does
 * them, with the same buffers. No mark can be recorded in between. After a failure nothing is captured, and the same
 * calls work without a capture. */
static inline bool compute_can_capture(const struct compute *c) {
  return c->ops->capture_begin;
}
static inline void compute_graph_destroy(struct compute *c, struct compute_graph *g) {
  if (g) c->ops->graph_destroy(c, g);
}

#ifdef __CUDACC__
#define COMPUTE_DEVICE __host__ __device__
#else
#define COMPUTE_DEVICE
#endif

/* The part of element i in a checksum, which is the sum of all parts, modulo 2^64. The factor is odd, so a single flipped
 * bit always changes the sum, and depends on i, so the order matters. */
COMPUTE_DEVICE static inline uint64_t compute_checksum_part(uint32_t bits, uint32_t i) {
  return (uint64_t)bits * (i * 0x9e3779b2u | 1u);
}

/* The factors of one update: the mean m becomes b1 m + c1 g, the mean square v b2 v + c2 g g, and a weight loses
 * rate m / (root sqrt(v) + eps). */
struct compute_factors {
  float b1, c1, b2, c2, eps, rate, root;
};

/* Decides about an update from the sum of the squared gradients, and counts it. true: it is made, with these factors.
 * One definition for the CPU and for the kernels. */
COMPUTE_DEVICE static inline bool compute_decide(const struct compute_opt_desc *d, double squares, bool bad,
                                                 struct compute_opt_counters *v, struct compute_factors *f) {
  double lr = (double)(float)d->lr;
  v->grad_norm = bad ? nanf("") : (float)sqrt(squares);
  if (!isfinite(v->grad_norm)) {
    v->skipped++;
    v->skipped_in_row++;
    return false;
  }
  v->updates++;
  v->skipped_in_row = 0;
  f->b1 = (float)d->beta1;
  f->c1 = (float)(1.0 - d->beta1); /* rounded after the subtraction, as torch does */
  f->b2 = (float)d->beta2;
  f->c2 = (float)(1.0 - d->beta2);
  f->eps = (float)d->eps;
  f->rate = (float)(lr / (1.0 - pow(d->beta1, (double)v->updates)));
  f->root = (float)(1.0 / sqrt(1.0 - pow(d->beta2, (double)v->updates)));
  return true;
}

#ifdef __cplusplus
}
#endif
#endif
