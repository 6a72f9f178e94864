/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_CHECKPOINT_CODEC_H
#define AGENT_TRAINER_CHECKPOINT_CODEC_H

/* The bytes of a checkpoint (model.safetensors), and of the marker that makes it complete (COMMIT). Pure.
 *
 * model.safetensors holds the weights, and behind them the optimizer's state with the names of PyTorch's Adam
 * ("exp_avg.0.weight"). Its metadata has the format's version, what was trained with which options, how far, and a
 * CRC-32 of the file. It does not depend on the number of ranks, the round, the device or the precision. COMMIT names
 * the job and the run that wrote it.
 *
 * A trainer reads only its own version. Weights of another one are read by --init-weights. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/trainer/model/model.h"
#include "common/buf.h"

enum { CKPT_HEADER = 12288, CKPT_VERSION = 6, CKPT_JOB_MAX = 132, CKPT_INCARNATION_MAX = 64, CKPT_MARKER_MAX = 512 };

#define CKPT_STATE_FILE "model.safetensors"

/* Options that decide what the steps after a checkpoint compute. A run with other values resumes from it only on
 * request. The length of a run (--steps, --epochs), files and the device are not among them. */
#define CKPT_OPTION_LIST(X)                                                                                            \
  X(BATCH, "batch")                                                                                                    \
  X(SCALE, "scale")                                                                                                    \
  X(LR, "lr")                                                                                                          \
  X(BETA1, "beta1")                                                                                                    \
  X(BETA2, "beta2")                                                                                                    \
  X(EPS, "eps")
#define X(name, option) CKPT_##name,
enum ckpt_option { CKPT_OPTION_LIST(X) CKPT_OPTIONS };
#undef X

/* The options that must be equal for a run to resume from a checkpoint, and those that should be. */
struct ckpt_kind {
  struct model_shape shape;
  enum compute_loss loss;
  uint64_t seed, samples;
  double options[CKPT_OPTIONS];
};

struct ckpt_state {
  struct ckpt_kind kind;
  uint64_t step;                        /* steps done */
  uint64_t epoch, position;             /* where the next step starts: samples of this epoch that are done */
  struct compute_opt_counters counters; /* updates and skipped; the rest is not stored */
  double last_loss;
  const void *params; /* floats, at any alignment. encode reads from here; decode points into the given bytes */
  const void *states[COMPUTE_STATES];
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
enum { CKPT_PIECES_MAX = 1 + (1 + COMPUTE_STATES) * MODEL_TENSORS_MAX };
struct ckpt_bytes {
  struct ckpt_piece pieces[CKPT_PIECES_MAX];
  int n;
  uint64_t size;
  uint32_t crc;
  uint8_t head[CKPT_HEADER];
};
/* The header alone, with zeros for the digits of the checksum. */
void ckpt_encode_header(const struct ckpt_state *s, uint8_t h[CKPT_HEADER]);
void ckpt_bytes(const struct ckpt_state *s, struct ckpt_bytes *out);
void ckpt_encode(const struct ckpt_state *s, struct buf *out);
/* Checks lengths and checksums. -EBADMSG and a message. */
int ckpt_decode(const void *data, size_t len, struct ckpt_state *s, struct err *e);
/* 0: a run of kind `want` can continue from `have`. Else -EINVAL and what differs. */
int ckpt_kind_check(const struct ckpt_kind *have, const struct ckpt_kind *want, struct err *e);

/* Compares only `options`. 0: equal. 1: different, and `text` lists names and values (cut to fit). */
int ckpt_options_differ(const struct ckpt_kind *have, const struct ckpt_kind *want, char *text, size_t size);

/* The name of a checkpoint. Its age is generation, then round, then step. A generation is one life of a job in this
 * folder, and no clock decides which of two is newer (claim.c). The incarnation and the round are the fencing token
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
  /* generation of the run that began at step 0; equal for runs that resumed from each other */
  uint32_t origin;
  uint64_t size;
  uint32_t crc; /* of all of model.safetensors */
};
void ckpt_marker_format(const struct ckpt_marker *m, struct buf *out);
bool ckpt_marker_parse(const char *text, size_t len, struct ckpt_marker *m);
/* Turns `text` into a word for a name or a line: unusual characters become '_', and an empty text "-". */
void ckpt_word(const char *text, char *out, size_t size);
uint32_t ckpt_crc(const void *data, size_t len);

/* claim.c: which run may write to a checkpoint folder, and which checkpoint a run may resume from. Pure.
 *
 * A job is known by its name, the agent's run id. A trainer without an agent has no name and is a job of its own.
 * Within a job the fencing token (incarnation, round) tells which round is newer, and the newer one takes the folder
 * from the older one.
 *
 * Checkpoints have an order of their own, the generation. A run that opens the folder takes the generation of its own
 * incarnation if that is the highest there, else the next higher one. So no clock decides which checkpoint is newer,
 * and what a run writes is newer than all that it found. */

/* The process that holds a folder, and its token. */
struct ckpt_owner {
  char job[CKPT_JOB_MAX];                 /* as in struct ckpt_marker */
  char incarnation[CKPT_INCARNATION_MAX]; /* CKPT_ALONE: no agent */
  uint32_t round, generation;
  char host[64], boot[40]; /* words; boot: the id of the kernel's boot */
  uint64_t pid_space, pid, started;
};

#define CKPT_ALONE "alone"

enum { CKPT_OWNER_MAX = 512 };
/* One line of text. parse accepts exactly what format writes. */
void ckpt_owner_format(const struct ckpt_owner *o, char out[CKPT_OWNER_MAX]);
bool ckpt_owner_parse(const char *text, struct ckpt_owner *out);
/* "job NAME, round 3, pid 4711 on HOST". */
void ckpt_owner_describe(const struct ckpt_owner *o, char *out, size_t size);

/* Trainers without an agent are jobs of their own. */
bool ckpt_owner_same_job(const struct ckpt_owner *a, const struct ckpt_owner *b);

enum ckpt_life {
  CKPT_GONE,    /* its process has ended, or it gave no sign of life for too long */
  CKPT_UNKNOWN, /* it is on another host, and may have ended since its last sign of life */
  CKPT_ALIVE,
};

enum ckpt_claim {
  CKPT_TAKE,   /* the folder belongs to me now */
  CKPT_WAIT,   /* wait until the holder releases it, is known to be gone, or is known to be alive */
  CKPT_BUSY,   /* another job writes there */
  CKPT_FENCED, /* a newer round of the same job writes there */
};

/* held: NULL if there is no holder. */
enum ckpt_claim ckpt_claim_decide(const struct ckpt_owner *me, const struct ckpt_owner *held, enum ckpt_life life);
/* The generation of a run that opens a folder with these n checkpoints. held: the last holder; NULL: none. */
uint32_t ckpt_claim_generation(const struct ckpt_owner *me, const struct ckpt_owner *held, const struct ckpt_id *v,
                               size_t n);

/* Whether a run of kind `want`, of job `job`, may resume from the checkpoint with marker `have` and kind `had`. 0: yes.
 * 1: yes, and `e` lists the options that differ. -EINVAL: no. -EPERM: only on request. `e` has the reason. */
int ckpt_fit(const struct ckpt_marker *have, const struct ckpt_kind *had, const char *job, const struct ckpt_kind *want,
             struct err *e);

/* Decides which of n checkpoints, newest first, are removed. whole[i] is the marker, or NULL without one. A run removes
 * checkpoints of its own origin beyond the `keep` newest, and what older rounds did not finish. Sets each goes[i]. */
void ckpt_claim_prune(const struct ckpt_id *v, const struct ckpt_marker *const *whole, size_t n,
                      const struct ckpt_marker *mine, int keep, bool *goes);

#endif
