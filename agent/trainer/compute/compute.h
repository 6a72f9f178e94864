#ifndef AGENT_TRAINER_COMPUTE_H
#define AGENT_TRAINER_COMPUTE_H

/* The first of the trainer's two seams: what it asks of a device. compute_cpu.c answers on OpenBLAS, the module of gpu/ on CUDA. What
 * makes both possible behind the same functions, and what every caller must therefore respect:
 *
 *  - Asynchronous by contract. An operation is queued; it sees the results of those queued before it. The host sees a result only when
 *    compute_done() or compute_wait() of a mark recorded behind it has said so. An error of the device may be told late, by a later call.
 *  - Buffers are opaque and counted in elements. Values cross to and from the host as floats; how the device holds them is its own
 *    affair and depends on `use` and on the precision. Only COMPUTE_STAGE memory has an address on the host (compute_host); it is what
 *    compute_copy moves to and from the device without waiting: do not touch a stage between compute_copy and a mark behind it.
 *  - What changes from step to step (the learning rate, the number of updates, the loss scale, whether this update is made at all) lies on
 *    the device, so that the host need not wait for anything, and so that a step can be captured once and launched again
 *    (compute_capture_begin). The host may queue `depth` steps before it reads the results of the first.
 *  - All weights are one allocation, all gradients another, with the same offsets: one call updates everything, one collective reduces
 *    everything.
 *  - A layer is an object (compute_layer), so that chosen algorithms, workspaces and activation masks have a home; so is the optimizer
 *    (compute_opt), with its state and its counters.
 *
 * Precision, the same on every device up to the order of sums:
 *
 *   fp32   everything in float.
 *   tf32   operands of matrix products rounded to 10 bits of mantissa, sums in float. (A CPU computes as for fp32.)
 *   bf16   weights are kept as floats, with a bf16 copy that matrix products read; activations and their gradients are bf16; products are
 *          summed in float; the loss, the gradients of weights, their sum over ranks and the optimizer are float throughout.
 *   fp16   as bf16 with fp16, and the loss's gradient times a scale that the optimizer keeps (compute_opt_desc.scale_loss).
 *
 * Functions return 0 or a negative errno value with a sentence. -ENOMEM is the only one of compute_alloc that a caller should expect. Not
 * thread-safe: one thread per compute. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum compute_precision { COMPUTE_FP32, COMPUTE_TF32, COMPUTE_BF16, COMPUTE_FP16 };

enum compute_use {
  COMPUTE_PARAM, /* weights and biases: floats, with a copy in the precision beside them where it needs one */
  COMPUTE_GRAD,  /* their gradients, and the few scalars that are reduced with them: floats */
  COMPUTE_STATE, /* of the optimizer, and scalars: floats */
  COMPUTE_INPUT, /* inputs and targets: floats, as they came */
  COMPUTE_ACT,   /* activations and their gradients: in the precision */
  COMPUTE_STAGE, /* host memory, pinned where that helps */
};

enum compute_act { COMPUTE_LINEAR, COMPUTE_RELU };

enum compute_loss { COMPUTE_MSE, COMPUTE_RMSE, COMPUTE_CROSS_ENTROPY };

enum compute_optim { COMPUTE_SGD, COMPUTE_ADAM, COMPUTE_ADAMW };

enum { COMPUTE_STATES_MAX = 2, COMPUTE_LOSS_OUT = 3 };

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

/* Floats that go from one place to another. */
struct compute_pair {
  struct span dst, src;
};
enum {
  COMPUTE_PAIRS_MAX = 2,
  COMPUTE_STAMP = 2, /* elements of a stage for the time: a uint64_t, nanoseconds */
};

struct compute_layer_desc {
  uint32_t in, out;       /* values per row */
  enum compute_act act;   /* behind this layer */
  enum compute_act below; /* behind the layer that made the input; COMPUTE_LINEAR for the first */
  size_t weight, bias;    /* where they begin in the flat buffers: weight[out][in], bias[out] */
  size_t max_rows;
};

/* One call of compute_loss. */
struct compute_loss_desc {
  enum compute_loss kind;
  size_t rows, cols;
  double weight;             /* of this part in the whole: 1 where it is the whole */
  bool add;                  /* to what `out` holds already */
  float who;                 /* stored in out[2] where the loss is not finite: this rank + 1 */
  struct compute_opt *scale; /* dz is times this optimizer's loss scale as well; NULL: 1 */
};

struct compute_opt_desc {
  enum compute_optim kind;
  size_t n;                 /* weights */
  double momentum;          /* sgd */
  double beta1, beta2, eps; /* adam, adamw */
  double
      weight_decay; /* sgd, adam: added to the gradient; adamw: taken from the weights, times lr. 0: none */
  double clip_norm; /* gradients longer than this are shortened to it. 0: never */
  bool
      scale_loss; /* fp16: the loss scale begins at 65536, doubles after 2000 updates in a row, is halved by a step that is skipped */
};

/* A data set: row i is bytes of a file as value / 255 * scale, or the ramp from 0 to i * scale. */
struct compute_rows_desc {
  uint64_t n;
  uint32_t dim;          /* values of a row */
  const uint8_t *pixels; /* n * dim; NULL: ramps */
  double scale;
};
enum {
  COMPUTE_ROWS_SHARE = 4, /* one part in so many of the device's free memory is what a data set may take */
  COMPUTE_ROW_NUMBER = 2, /* elements of a stage for each number: a uint64_t */
};

/* What an optimizer has counted; a checkpoint keeps it. */
struct compute_opt_counters {
  uint64_t updates; /* made: the exponent of Adam's bias correction */
  uint64_t skipped; /* steps whose gradients were not finite: weights and state were left as they were */
  uint32_t skipped_in_row; /* up to the last step */
  uint32_t good_in_row;    /* since the loss scale was last changed */
  float scale;             /* the loss scale; 1 without scale_loss */
  float grad_norm; /* of the last step, before clipping, without the loss scale; not finite: it was skipped */
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
  int (*done)(struct compute *c, struct compute_mark mark, struct err *e);
  int (*layer_create)(struct compute *c, const struct compute_layer_desc *d, struct compute_layer **out,
                      struct err *e);
  void (*layer_destroy)(struct compute *c, struct compute_layer *l);
  int (*forward)(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                 struct span y, size_t rows, struct err *e);
  int (*backward)(struct compute *c, struct compute_layer *l, struct compute_buf *params,
                  struct compute_buf *grads, struct span x, struct span dz, struct span dx, size_t rows,
                  bool add, struct err *e);
  int (*loss)(struct compute *c, const struct compute_loss_desc *d, struct span y, struct span target,
              struct span dz, struct span out, struct err *e);
  int (*correct)(struct compute *c, struct span y, struct span target, struct span out, size_t rows,
                 size_t cols, struct err *e);
  int (*opt_create)(struct compute *c, const struct compute_opt_desc *d, struct compute_opt **out,
                    struct err *e);
  void (*opt_destroy)(struct compute *c, struct compute_opt *o);
  struct compute_buf *(*opt_state)(struct compute_opt *o, int i);
  int (*opt_step)(struct compute *c, struct compute_opt *o, struct span param, struct span grad,
                  struct span lr, struct span bad, struct err *e);
  int (*opt_read)(struct compute *c, struct compute_opt *o, struct span stage, struct err *e);
  int (*opt_set)(struct compute *c, struct compute_opt *o, const struct compute_opt_counters *v,
                 struct err *e);
  /* The rest may be NULL: what a device does not have. */
  int (*tell)(struct compute *c, const struct compute_pair *v, int n, struct span stamp, struct err *e);
  int (*fetch)(struct compute *c, struct span dst, struct span src, struct compute_mark *mark, struct err *e);
  int (*send)(struct compute *c, struct span dst, struct span src, struct err *e);
  int (*rows_create)(struct compute *c, const struct compute_rows_desc *d, struct compute_rows **out,
                     struct err *e);
  void (*rows_destroy)(struct compute *c, struct compute_rows *r);
  int (*rows_take)(struct compute *c, struct compute_rows *r, struct span dst, struct span numbers,
                   struct err *e);
  void (*poison)(struct compute *c, bool on);
  int (*capture_begin)(struct compute *c, struct err *e);
  int (*capture_end)(struct compute *c, struct compute_graph **out, struct err *e);
  int (*launch)(struct compute *c, struct compute_graph *g, struct err *e);
  void (*graph_destroy)(struct compute *c, struct compute_graph *g);
  void (*range_push)(struct compute *c, const char *name);
  void (*range_pop)(struct compute *c);
};

/* Implementations embed this first. */
struct compute {
  const struct compute_ops *ops;
  enum compute_precision precision;
  int depth; /* steps that may be queued before the first one's results are read; 0: none, everything is done at once */
  double
      peak_flops; /* of matrix products in this precision, per second, by the device's data sheet; 0: not known */
  char device[96]; /* for people: "NVIDIA H200 (GPU-8f2c..., sm_90)"; "cpu, 4 threads" */
};

/* CPU: OpenBLAS with `threads` threads (0: as OPENBLAS_NUM_THREADS or OMP_NUM_THREADS say, else one). */
struct compute *compute_cpu_create(int threads, enum compute_precision precision);

static inline void compute_destroy(struct compute *c) {
  if (c) c->ops->destroy(c);
}
/* n elements, zero. */
static inline int compute_alloc(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out,
                                struct err *e) {
  return c->ops->alloc(c, use, n, out, e);
}
/* Waits for what is queued. NULL is fine. */
static inline void compute_free(struct compute *c, struct compute_buf *b) {
  if (b) c->ops->free(c, b);
}
/* The host's address of a span of a stage; NULL for what the host cannot reach. (On a CPU everything can
 * be reached: that is what coll_tcp builds on.) */
static inline float *compute_host(struct compute *c, struct span s) {
  return c->ops->host(c, s);
}
/* Same n on both sides. To a COMPUTE_PARAM buffer: its copy in the precision follows. From or to COMPUTE_ACT in bf16 and fp16 values are
 * converted, which may wait: for tests, not for a step. */
static inline int compute_copy(struct compute *c, struct span dst, struct span src, struct err *e) {
  return c->ops->copy(c, dst, src, e);
}
static inline int compute_fill(struct compute *c, struct span dst, float value, struct err *e) {
  return c->ops->fill(c, dst, value, e);
}
static inline int compute_record(struct compute *c, struct compute_mark *mark, struct err *e) {
  return c->ops->record(c, mark, e);
}
/* 1: everything before the mark is done. 0: not yet. Never waits. */
static inline int compute_done(struct compute *c, struct compute_mark mark, struct err *e) {
  return c->ops->done(c, mark, e);
}
/* The host waits until everything before the mark is done; -ETIMEDOUT past timeout_ms. For set-up and tests: a step
 * waits with an eye on the other ranks. */
int compute_wait(struct compute *c, struct compute_mark mark, uint64_t timeout_ms, struct err *e);

static inline int compute_layer_create(struct compute *c, const struct compute_layer_desc *d,
                                       struct compute_layer **out, struct err *e) {
  return c->ops->layer_create(c, d, out, e);
}
static inline void compute_layer_destroy(struct compute *c, struct compute_layer *l) {
  if (l) c->ops->layer_destroy(c, l);
}
/* y[rows][out] = act(x[rows][in] weight^T + bias). x: COMPUTE_INPUT for the first layer, else COMPUTE_ACT; y: COMPUTE_ACT. rows may be 0
 * here and below. */
static inline int compute_forward(struct compute *c, struct compute_layer *l, struct compute_buf *params,
                                  struct span x, struct span y, size_t rows, struct err *e) {
  return c->ops->forward(c, l, params, x, y, rows, e);
}
/* From dz, the gradient of what this layer gives *before* its activation: writes the layer's part of
 * `grads` (weight and bias; zero for 0 rows), or adds to it, and dx, the gradient of what the layer below gives before
 * *its* activation: the mask of `below` is applied here, where a fused epilogue has it for nothing. dx.n
 * 0: not wanted. x and rows are as in the compute_forward of this layer that came last. */
static inline int compute_backward(struct compute *c, struct compute_layer *l, struct compute_buf *params,
                                   struct compute_buf *grads, struct span x, struct span dz, struct span dx,
                                   size_t rows, bool add, struct err *e) {
  return c->ops->backward(c, l, params, grads, x, dz, dx, rows, add, e);
}
/* out[0] = weight * loss, out[1] = 1 where that is not finite, else 0, out[2] = who where it is not finite, else 0 (all three added with
 * d->add; a loss that is not finite adds nothing to out[0] of its own but stays in it). dz = weight * gradient of the loss by y * loss scale;
 * NULL dz.buf: the loss alone. Mean over rows and columns (mse, rmse = its square root) with target[rows][cols], or over rows (cross-entropy
 * over softmax(y)) with target[rows], the class numbers. y, dz: COMPUTE_ACT; target: COMPUTE_INPUT; out: COMPUTE_LOSS_OUT floats. */
static inline int compute_loss(struct compute *c, const struct compute_loss_desc *d, struct span y,
                               struct span target, struct span dz, struct span out, struct err *e) {
  return c->ops->loss(c, d, y, target, dz, out, e);
}
/* out[0] += the number of rows whose greatest value (the first of equals) stands at target[row]. */
static inline int compute_correct(struct compute *c, struct span y, struct span target, struct span out,
                                  size_t rows, size_t cols, struct err *e) {
  return c->ops->correct(c, y, target, out, rows, cols, e);
}

/* How many floats per weight an optimizer keeps: sgd its momentum, adam and adamw the mean and the mean square. */
static inline int compute_opt_states(enum compute_optim kind) {
  return kind == COMPUTE_SGD ? 1 : 2;
}
/* State zero, counters zero, loss scale as its beginning. */
static inline int compute_opt_create(struct compute *c, const struct compute_opt_desc *d,
                                     struct compute_opt **out, struct err *e) {
  return c->ops->opt_create(c, d, out, e);
}
static inline void compute_opt_destroy(struct compute *c, struct compute_opt *o) {
  if (o) c->ops->opt_destroy(c, o);
}
/* State number i, 0 <= i < compute_opt_states(kind): d->n floats, for checkpoints. It belongs to the optimizer. */
static inline struct compute_buf *compute_opt_state(struct compute *c, struct compute_opt *o, int i) {
  return c->ops->opt_state(o, i);
}
/* One update, as torch.optim's SGD, Adam and AdamW make it, of gradients that are divided by the loss scale and clipped to clip_norm by
 * their norm over all weights. lr: one float on the device, read when the update is made. bad: one more (n 0: none); where it is not 0, as
 * compute_loss leaves it behind a loss that is not finite, or where the norm is not finite, nothing is changed but the counters and the loss
 * scale, and grad_norm is not finite. grad is left as it was, or scaled: do not use it afterwards. */
static inline int compute_opt_step(struct compute *c, struct compute_opt *o, struct span param,
                                   struct span grad, struct span lr, struct span bad, struct err *e) {
  return c->ops->opt_step(c, o, param, grad, lr, bad, e);
}
/* Queues a copy of the counters to a stage of COMPUTE_COUNTERS floats, to be read as a struct compute_opt_counters behind a mark. */
#define COMPUTE_COUNTERS (sizeof(struct compute_opt_counters) / sizeof(float))
static inline int compute_opt_read(struct compute *c, struct compute_opt *o, struct span stage,
                                   struct err *e) {
  return c->ops->opt_read(c, o, stage, e);
}
static inline int compute_opt_set(struct compute *c, struct compute_opt *o,
                                  const struct compute_opt_counters *v, struct err *e) {
  return c->ops->opt_set(c, o, v, e);
}

/* Keeps a data set on the device. -ENOTSUP: not this device. -ENOMEM: it is too large (COMPUTE_ROWS_SHARE). Waits. The pixels are not read
 * afterwards. */
int compute_rows_create(struct compute *c, const struct compute_rows_desc *d, struct compute_rows **out,
                        struct err *e);
static inline void compute_rows_destroy(struct compute *c, struct compute_rows *r) {
  if (r) c->ops->rows_destroy(c, r);
}
/* dst, a COMPUTE_INPUT, becomes the rows whose numbers (uint64_t, below n) a stage holds: bit for bit what dataset_sample gives. */
static inline int compute_rows_take(struct compute *c, struct compute_rows *r, struct span dst,
                                    struct span numbers, struct err *e) {
  return c->ops->rows_take(c, r, dst, numbers, e);
}

/* Small copies between stages and floats (no COMPUTE_PARAM) as one operation, n of them, COMPUTE_PAIRS_MAX at most; and behind them the device's
 * clock to `stamp`, COMPUTE_STAMP elements of a stage. A device without a clock of its own leaves the stamp as it is. */
int compute_tell(struct compute *c, const struct compute_pair *v, int n, struct span stamp, struct err *e);
/* A copy of a stage to a COMPUTE_INPUT of floats that goes on beside what is queued; what is queued from now on sees it. Nothing that is queued may
 * use either. Not within a capture. Where the device has nothing of the kind it is a copy. */
static inline int compute_send(struct compute *c, struct span dst, struct span src, struct err *e) {
  return c->ops->send ? c->ops->send(c, dst, src, e) : c->ops->copy(c, dst, src, e);
}
static inline bool compute_can_send(const struct compute *c) {
  return c->ops->send;
}

/* A copy to a stage of what `src`, floats on the device, holds behind what is queued now; it is made beside what is queued later, which must not
 * write there before the mark is done. One at a time. Not within a capture. Where the device has nothing of the kind it is a copy, and a mark. */
static inline int compute_fetch(struct compute *c, struct span dst, struct span src,
                                struct compute_mark *mark, struct err *e) {
  if (c->ops->fetch) return c->ops->fetch(c, dst, src, mark, e);
  int rc = c->ops->copy(c, dst, src, e);
  return rc ? rc : c->ops->record(c, mark, e);
}
static inline bool compute_can_fetch(const struct compute *c) {
  return c->ops->fetch;
}

/* While on, updates that are queued and have not begun change nothing, not even counters: what they would have been made from may never have
 * become whole. To be called before a communicator is aborted; off again when all that was queued is done. Takes effect at once, not
 * queued. */
static inline void compute_poison(struct compute *c, bool on) {
  if (c->ops->poison) c->ops->poison(c, on);
}

/* A step that is queued again and again can be captured: what is queued between begin and end is not done, but kept, and done, with the same
 * buffers, by each launch. Collectives take part. Marks cannot be recorded in between. On failure nothing is captured, and the same
 * calls can be made without. */
static inline bool compute_can_capture(const struct compute *c) {
  return c->ops->capture_begin;
}
static inline int compute_capture_begin(struct compute *c, struct err *e) {
  return c->ops->capture_begin(c, e);
}
static inline int compute_capture_end(struct compute *c, struct compute_graph **out, struct err *e) {
  return c->ops->capture_end(c, out, e);
}
static inline int compute_launch(struct compute *c, struct compute_graph *g, struct err *e) {
  return c->ops->launch(c, g, e);
}
static inline void compute_graph_destroy(struct compute *c, struct compute_graph *g) {
  if (g) c->ops->graph_destroy(c, g);
}
/* Names what follows for a profiler. */
static inline void compute_range_push(struct compute *c, const char *name) {
  if (c->ops->range_push) c->ops->range_push(c, name);
}
static inline void compute_range_pop(struct compute *c) {
  if (c->ops->range_pop) c->ops->range_pop(c);
}

#ifdef __cplusplus
}
#endif
#endif
