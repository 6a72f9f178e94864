/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_MODEL_MODEL_H
#define AGENT_TRAINER_MODEL_MODEL_H

/* The trained model. Pure: a compute does the work.
 *
 * The model is a stack of linear layers with a ReLU between them. Its widths make it an autoencoder or a
 * classifier. All weights are one flat array, layer after layer, weight[out][in] then bias[out]. In memory each of these
 * tensors starts at a multiple of 128 bytes, because a device fuses and vectorises only what is aligned. The pads
 * between them are zero and stay zero: no operation writes their gradient, and an update of 0 by 0 is 0. Files
 * and checksums have the same order without pads. Behind the gradients the ranks sum
 * MODEL_EXTRAS floats in the same collectives. The zeros in front of the extras make it a multiple of a unit, so that
 * ranks can have equal parts. */

#include "agent/trainer/compute/compute.h"

enum {
  MODEL_WIDTHS_MAX = 16,
  MODEL_WIDTH_MAX = 1 << 20,
  MODEL_ALIGN = 32, /* floats: 128 bytes */
  MODEL_TENSORS_MAX = 2 * (MODEL_WIDTHS_MAX - 1),
  MODEL_PARTS_MAX = 8,                                     /* of the first layer in a backward pass */
  MODEL_READY_MAX = MODEL_WIDTHS_MAX - 2 + MODEL_PARTS_MAX /* calls of model_ready_fn in a backward pass */
};
#define MODEL_PARAMS_MAX (UINT64_C(1) << 34)

/* Floats behind the gradients. They are summed over the ranks with them. */
enum model_extra {
  MODEL_LOSS,       /* of the whole batch */
  MODEL_BAD,        /* the number of losses that are not finite; infinite: a rank's updates are blocked */
  MODEL_BAD_RANK,   /* the sum of (rank + 1) over these losses: if there is only one, it gives the rank */
  MODEL_STOP,       /* the number of ranks that were asked to stop */
  MODEL_CHECKPOINT, /* the number of ranks that were asked for a checkpoint */
  MODEL_WRITER,     /* rank 0 alone, about its checkpoints: bits of enum model_writer */
  MODEL_EXTRAS
};

enum model_writer {
  WRITER_CLOCK = 1,  /* a checkpoint is due by the clock */
  WRITER_LAST = 2,   /* the checkpoint that was begun last is on disk */
  WRITER_BEFORE = 4, /* the checkpoint before that is on disk */
};

struct model_shape {
  uint32_t n; /* widths: layers + 1 */
  uint32_t width[MODEL_WIDTHS_MAX];
};

/* The weights, or the biases, of a layer. */
struct model_tensor {
  size_t at;     /* in memory */
  size_t packed; /* in a file */
  size_t n;
};

struct model {
  struct compute *c;
  struct model_shape shape;
  size_t n_params; /* weights and biases */
  size_t n_flat;   /* floats in memory, pads included */
  size_t n_room;   /* floats of grads that are summed: the extras are the last ones */
  size_t max_rows;
  struct compute_layer *layers[MODEL_WIDTHS_MAX - 1];
  struct compute_buf *params, *grads;
  struct compute_buf *act[MODEL_WIDTHS_MAX];
  struct compute_buf *delta[MODEL_WIDTHS_MAX]; /* delta[i]: gradient of act[i] before its ReLU; [0] is unused */
  struct compute_buf *target;                  /* max_rows x the last width; max_rows class numbers */
};

/* "784,128,784"; -EINVAL and a message. */
int model_shape_parse(const char *text, struct model_shape *s, struct err *e);
uint64_t model_shape_params(const struct model_shape *s);
/* Fills in the tensors in their order, and returns their number: 2 per layer, weight then bias. *flat: floats in
 * memory. */
int model_shape_tensors(const struct model_shape *s, struct model_tensor out[MODEL_TENSORS_MAX], size_t *flat);
/* Convert between the two layouts in place. `floats` has room for the longer layout, the one with pads. */
void model_pack(const struct model_shape *s, float *floats);
void model_unpack(const struct model_shape *s, float *floats);
void model_shape_format(const struct model_shape *s, char sep, char *out, size_t size);
/* Writes model_shape_params values. As torch.nn.Linear: weights and biases are uniform in +-1/sqrt(in), from the
 * seed. */
void model_init_weights(const struct model_shape *s, uint64_t seed, float *out);

/* w: n floats at any address. false: weight *at is *value, which is not finite. */
bool model_weights_finite(const void *w, size_t n, size_t *at, float *value);

/* The words of options, by their enum. */
extern const char *const model_loss_words[3];

int model_init(struct model *m, struct compute *c, const struct model_shape *shape, size_t max_rows, struct err *e);
void model_finish(struct model *m); /* also after a failed model_init */
/* Moves the gradients to new memory, all 0. No queued, registered or captured work may use the old memory. */
int model_renew_grads(struct model *m, struct err *e);

int model_forward(struct model *m, size_t rows, struct err *e);
/* Computes the loss against `target` into MODEL_LOSS to MODEL_BAD_RANK of the gradients, and its gradient into the last
 * delta. Fills in rows and columns of `d`. */
int model_loss(struct model *m, const struct compute_loss_desc *d, struct span target, size_t rows, struct err *e);
/* Called as gradients become ready, from the end to the front: all of [at, n_flat) is queued. A non-zero result ends
 * the pass. */
typedef int (*model_ready_fn)(void *ctx, size_t at, struct err *e);
/* part: gradients; a first layer of at least two such parts becomes ready in parts. 0: as a whole. */
int model_backward(struct model *m, size_t rows, size_t part, model_ready_fn ready, void *ctx, struct err *e);
/* Floating-point operations of the matrix products of one step on `rows` rows, forward and backward. */
double model_flops(const struct model_shape *s, uint64_t rows);

static inline struct span span_of(struct compute_buf *b, size_t at, size_t n) {
  return (struct span){b, at, n};
}
static inline struct span model_params_span(const struct model *m) {
  return span_of(m->params, 0, m->n_flat);
}
static inline struct span model_grads_span(const struct model *m) {
  return span_of(m->grads, 0, m->n_flat);
}
static inline struct span model_extra_span(const struct model *m, enum model_extra from, size_t n) {
  return span_of(m->grads, m->n_room - MODEL_EXTRAS + (size_t)from, n);
}

#endif
