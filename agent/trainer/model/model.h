#ifndef AGENT_TRAINER_MODEL_H
#define AGENT_TRAINER_MODEL_H

/* A stack of linear layers with ReLU between them: an autoencoder or a classifier, by its widths. All
 * weights are one flat array, layer after layer, weight[out][in] then bias[out]: that is the order of
 * --init-weights, --save-weights, checkpoints and checksums too. Behind the gradients lie MODEL_EXTRAS
 * floats that travel in the same all-reduce. */

#include "agent/trainer/compute/compute.h"

enum { MODEL_WIDTHS_MAX = 16, MODEL_WIDTH_MAX = 1 << 20 };
#define MODEL_PARAMS_MAX (UINT64_C(1) << 34)

/* Floats behind the gradients, summed over ranks with them. */
enum model_extra {
  MODEL_LOSS,       /* of the whole batch */
  MODEL_BAD,        /* ranks whose own loss is not finite */
  MODEL_BAD_RANK,   /* the sum of those ranks, each plus 1: with one of them, who it is */
  MODEL_STOP,       /* ranks that were asked to leave */
  MODEL_CHECKPOINT, /* ranks that were asked for a checkpoint */
  MODEL_CLOCK,      /* rank 0's clock says that a checkpoint is due */
  MODEL_EXTRAS
};

struct model_shape {
  uint32_t n; /* widths: layers + 1 */
  uint32_t width[MODEL_WIDTHS_MAX];
};

struct model {
  struct compute *c;
  struct model_shape shape;
  size_t n_params, max_rows;
  struct compute_layer *layers[MODEL_WIDTHS_MAX - 1];
  struct compute_buf *params, *grads;
  struct compute_buf *act[MODEL_WIDTHS_MAX];
  struct span
      input; /* what both passes take for act[0], and begin with: all of act[0], unless somebody says another one */
  struct compute_buf
      *delta[MODEL_WIDTHS_MAX]; /* delta[i]: gradient of act[i] before its activation; [0] unused */
  struct compute_buf *target;   /* max_rows x the last width; class numbers use its first column's worth */
};

/* "784,128,784"; -EINVAL and a sentence. */
int model_shape_parse(const char *text, struct model_shape *s, struct err *e);
uint64_t model_shape_params(const struct model_shape *s);
void model_shape_format(const struct model_shape *s, char sep, char *out, size_t size);
/* As torch.nn.Linear: weights and biases uniform in +-1/sqrt(in), from the seed. out: model_shape_params
 * values. */
void model_init_weights(const struct model_shape *s, uint64_t seed, float *out);

/* w: n floats, at any address. false: number *at, which is *value, is not finite. */
bool model_weights_finite(const void *w, size_t n, size_t *at, float *value);

int model_init(struct model *m, struct compute *c, const struct model_shape *shape, size_t max_rows,
               struct err *e);
void model_finish(struct model *m); /* also after a failed model_init */

/* From rows of `input`. */
int model_forward(struct model *m, size_t rows, struct err *e);
/* The loss against `target` into grads' MODEL_LOSS to MODEL_BAD_RANK, its gradient into the last delta. Rows and columns of `d` are
 * filled in here. */
int model_loss(struct model *m, const struct compute_loss_desc *d, struct span target, size_t rows,
               struct err *e);
/* What the model is worth on these rows, beside training: adds the loss (weighed as `d` says) to the first of MODEL_SCORES floats of `out`,
 * and, for cross-entropy, the number of rows that are classified right to the last. Activations are overwritten, nothing else. */
enum { MODEL_SCORE_CORRECT = COMPUTE_LOSS_OUT, MODEL_SCORES };
int model_score(struct model *m, const struct compute_loss_desc *d, struct span target, size_t rows,
                struct span out, struct err *e);
/* Called as the gradients become ready, from the end to the front: all of [at, n_params) is queued. A
 * non-zero result ends the pass. */
typedef int (*model_ready_fn)(void *ctx, size_t at, struct err *e);
int model_backward(struct model *m, size_t rows, bool add, model_ready_fn ready, void *ctx, struct err *e);
/* Floating-point operations of the matrix products of one step on `rows` rows, forward and backward. */
double model_flops(const struct model_shape *s, uint64_t rows);

static inline struct span span_of(struct compute_buf *b, size_t at, size_t n) {
  return (struct span){b, at, n};
}
static inline struct span model_params_span(const struct model *m) {
  return span_of(m->params, 0, m->n_params);
}
static inline struct span model_grads_span(const struct model *m) {
  return span_of(m->grads, 0, m->n_params);
}
static inline struct span model_extra_span(const struct model *m, enum model_extra from, size_t n) {
  return span_of(m->grads, m->n_params + (size_t)from, n);
}

#endif
