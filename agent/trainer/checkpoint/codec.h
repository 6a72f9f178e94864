#ifndef AGENT_TRAINER_CKPT_CODEC_H
#define AGENT_TRAINER_CKPT_CODEC_H

/* The bytes of a checkpoint (state.bin), and of the marker that says it is whole (COMMIT). Pure.
 *
 * state.bin, little-endian: a header of CKPT_HEADER bytes (magic, version, what was trained, how far, and
 * the header's own CRC-32), the weights and the optimizer's state as floats, and the CRC-32 of those.
 * Nothing in it depends on the number of ranks, names a round, or knows of a device or a precision: weights and state are floats whatever a
 * run computes in, so any run of the same kind goes on from it. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/trainer/model/model.h"
#include "agent/trainer/optim.h"
#include "common/buf.h"

enum { CKPT_HEADER = 192, CKPT_VERSION = 2, CKPT_INCARNATION_MAX = 64, CKPT_MARKER_MAX = 512 };

/* What must be the same for a run to go on from a checkpoint. */
struct ckpt_kind {
  struct model_shape shape;
  enum compute_loss loss;
  enum compute_optim optim;
  uint64_t seed, samples;
};

struct ckpt_state {
  struct ckpt_kind kind;
  uint64_t step;            /* steps done */
  uint64_t epoch, position; /* where the next one begins: samples of this epoch that are done */
  struct compute_opt_counters
      counters; /* updates, skipped, good_in_row, and scale, 0 where there was none; the rest is not kept */
  double last_loss;
  const void *params; /* floats; encode: from here, decode: into the given bytes, any alignment */
  const void *states[COMPUTE_STATES_MAX]; /* compute_opt_states(kind.optim) of them */
};

/* Bytes of a whole checkpoint of that kind. */
uint64_t ckpt_size(const struct ckpt_kind *k);
/* The same bytes without a copy of them: what lies where, and the checksum of all. The pieces point into the state and into this struct, so
 * neither may move. */
struct ckpt_piece {
  const void *data;
  size_t n;
};
enum { CKPT_PIECES_MAX = 3 + COMPUTE_STATES_MAX };
struct ckpt_bytes {
  struct ckpt_piece pieces[CKPT_PIECES_MAX];
  int n;
  uint64_t size;
  uint32_t crc;
  uint8_t head[CKPT_HEADER], tail[4];
};
void ckpt_bytes(const struct ckpt_state *s, struct ckpt_bytes *out);
void ckpt_encode(const struct ckpt_state *s, struct buf *out);
/* The header alone: what there would be. -EBADMSG and a sentence. */
int ckpt_decode_header(const void *data, size_t len, struct ckpt_state *s, struct err *e);
/* All of it: lengths and checksums too. */
int ckpt_decode(const void *data, size_t len, struct ckpt_state *s, struct err *e);
/* 0 if a run of kind `want` can go on from `have`, else -EINVAL and what differs. */
int ckpt_kind_check(const struct ckpt_kind *have, const struct ckpt_kind *want, struct err *e);

/* The fencing token, and the step: what a checkpoint is named by, in this order of age. */
struct ckpt_id {
  char incarnation[CKPT_INCARNATION_MAX];
  uint32_t round;
  uint64_t step;
};
int ckpt_id_compare(const struct ckpt_id *a, const struct ckpt_id *b);
enum { CKPT_NAME_MAX = CKPT_INCARNATION_MAX + 48 };
/* "<incarnation>-r<round>-s<step>"; parse takes exactly what format makes. */
void ckpt_name_format(const struct ckpt_id *id, char out[CKPT_NAME_MAX]);
bool ckpt_name_parse(const char *name, struct ckpt_id *id);

/* COMMIT: a few lines of text; parse takes exactly what format makes, so a marker cut anywhere is none. */
struct ckpt_marker {
  struct ckpt_id id;
  uint64_t size;
  uint32_t crc; /* of all of state.bin */
};
void ckpt_marker_format(const struct ckpt_marker *m, struct buf *out);
bool ckpt_marker_parse(const char *text, size_t len, struct ckpt_marker *m);
uint32_t ckpt_crc(const void *data, size_t len);

#endif
