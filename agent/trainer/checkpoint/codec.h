/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_CHECKPOINT_CODEC_H
#define AGENT_TRAINER_CHECKPOINT_CODEC_H

/* The bytes of a checkpoint (state.bin), and of the marker that makes it complete (COMMIT). Pure.
 *
 * state.bin is little-endian: a header of CKPT_HEADER bytes (magic, version, what was trained with which options, how
 * far, and its own CRC-32), the weights and the optimizer's state as floats, and the CRC-32 of those. It does not
 * depend on the number of ranks, the round, the device or the precision. COMMIT names the job and the run that wrote
 * it.
 *
 * Version 4 has the activation. A trainer reads only its own version. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/trainer/model/model.h"
#include "common/buf.h"

enum { CKPT_HEADER = 320, CKPT_VERSION = 4, CKPT_JOB_MAX = 132, CKPT_INCARNATION_MAX = 64, CKPT_MARKER_MAX = 512 };

/* Options that decide what the steps after a checkpoint compute. A run with other values resumes from it only on
 * request. The length of a run (--steps, --epochs), files and the device are not among them. */
#define CKPT_OPTION_LIST(X)                                                                                            \
  X(BATCH, "batch")                                                                                                    \
  X(UPDATE_FREQ, "update-freq")                                                                                        \
  X(SCALE, "scale")                                                                                                    \
  X(LR, "lr")                                                                                                          \
  X(WARMUP_STEPS, "warmup-steps")                                                                                      \
  X(LR_DECAY, "lr-decay")                                                                                              \
  X(LR_MIN, "lr-min")                                                                                                  \
  X(LR_POWER, "lr-power")                                                                                              \
  X(MOMENTUM, "momentum")                                                                                              \
  X(BETA1, "beta1")                                                                                                    \
  X(BETA2, "beta2")                                                                                                    \
  X(EPS, "eps")                                                                                                        \
  X(WEIGHT_DECAY, "weight-decay")                                                                                      \
  X(CLIP_NORM, "clip-norm")
#define X(name, option) CKPT_##name,
enum ckpt_option { CKPT_OPTION_LIST(X) CKPT_OPTIONS };
#undef X

/* The options that must be equal for a run to resume from a checkpoint, and those that should be. */
struct ckpt_kind {
  struct model_shape shape;
  enum compute_act activation; /* of the hidden layers */
  enum compute_loss loss;
  enum compute_opt_kind optim;
  uint64_t seed, samples;
  double options[CKPT_OPTIONS]; /* LR_DECAY: an enum optim_decay */
};

struct ckpt_state {
  struct ckpt_kind kind;
  uint64_t step;                        /* steps done */
  uint64_t epoch, position;             /* where the next step starts: samples of this epoch that are done */
  struct compute_opt_counters counters; /* updates and skipped; the rest is not stored */
  double last_loss;
  const void *params; /* floats, at any alignment. encode reads from here; decode points into the given bytes */
  const void *states[COMPUTE_STATES_MAX]; /* compute_opt_states(kind.optim) of them */
  bool padded; /* encode: params and states have the pads of a model in memory (model.h), which are not stored */
};

/* Size of a complete checkpoint of that kind. */
uint64_t ckpt_size(const struct ckpt_kind *k);
/* The same bytes without a copy: the pieces, and the checksum of all. The pieces point into the state and into this
 * struct, so neither may move. */
struct ckpt_piece {
  const void *data;
  size_t n;
};
enum { CKPT_PIECES_MAX = 2 + (1 + COMPUTE_STATES_MAX) * MODEL_TENSORS_MAX };
struct ckpt_bytes {
  struct ckpt_piece pieces[CKPT_PIECES_MAX];
  int n;
  uint64_t size;
  uint32_t crc;
  uint8_t head[CKPT_HEADER], tail[4];
};
void ckpt_bytes(const struct ckpt_state *s, struct ckpt_bytes *out);
void ckpt_encode(const struct ckpt_state *s, struct buf *out);
/* Decodes only the header. -EBADMSG and a message. */
int ckpt_decode_header(const void *data, size_t len, struct ckpt_state *s, struct err *e);
/* Decodes all of it, and checks lengths and checksums. */
int ckpt_decode(const void *data, size_t len, struct ckpt_state *s, struct err *e);
/* 0: a run of kind `want` can continue from `have`. Else -EINVAL and what differs. */
int ckpt_kind_check(const struct ckpt_kind *have, const struct ckpt_kind *want, struct err *e);

/* Compares only `options`. 0: equal. 1: different, and `text` lists names and values (cut to fit). */
int ckpt_options_differ(const struct ckpt_kind *have, const struct ckpt_kind *want, char *text, size_t size);

/* The name of a checkpoint. Its age is generation, then round, then step. A generation is one life of a job in this
 * folder, and no clock decides which of two is newer (claim.h). The incarnation and the round are the fencing token
 * within it. */
struct ckpt_id {
  uint32_t generation;
  char incarnation[CKPT_INCARNATION_MAX];
  uint32_t round;
  uint64_t step;
};
int ckpt_id_compare(const struct ckpt_id *a, const struct ckpt_id *b);
enum { CKPT_NAME_MAX = CKPT_INCARNATION_MAX + 64 };
/* "<generation>-<incarnation>-r<round>-s<step>". parse accepts exactly what format writes. */
void ckpt_name_format(const struct ckpt_id *id, char out[CKPT_NAME_MAX]);
bool ckpt_name_parse(const char *name, struct ckpt_id *id);

/* COMMIT: a few lines of text. parse accepts exactly what format writes, so a truncated marker is invalid. */
struct ckpt_marker {
  struct ckpt_id id;
  char job[CKPT_JOB_MAX]; /* its name, made a word by ckpt_word; "-": no agent, so no job */
  /* generation of the run that began at step 0 or with --resume-from; equal for runs that resumed from each other */
  uint32_t origin;
  uint32_t source; /* CRC-32 of the state.bin that --resume-from named then; 0: none */
  uint64_t size;
  uint32_t crc; /* of all of state.bin */
};
void ckpt_marker_format(const struct ckpt_marker *m, struct buf *out);
bool ckpt_marker_parse(const char *text, size_t len, struct ckpt_marker *m);
/* Turns `text` into a word for a name or a line: unusual characters become '_', and an empty text "-". */
void ckpt_word(const char *text, char *out, size_t size);
uint32_t ckpt_crc(const void *data, size_t len);

#endif
