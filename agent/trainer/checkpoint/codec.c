/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian fields at fixed places, each checked before it is used: magic and version first, then the checksum of
 * the header, then plausible values, then the length that follows from the header, then the checksum of the rest. A
 * file cut at any byte fails one of these checks.
 *
 * Floats are copied as they lie in memory. The machines we run on are little-endian, which is checked below. */

#include "agent/trainer/checkpoint/codec.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are stored as they lie in memory");

static const char magic[8] = {'R', 'D', 'Z', 'V', 'C', 'K', 'P', 'T'};

/* Offsets of the fields of the header. */
enum {
  AT_MAGIC = 0,
  AT_VERSION = 8,
  AT_HEADER = 12,
  AT_TOTAL = 16,
  AT_STEP = 24,
  AT_EPOCH = 32,
  AT_POSITION = 40,
  AT_UPDATES = 48,
  AT_SEED = 56,
  AT_SAMPLES = 64,
  AT_LAST_LOSS = 72,
  AT_LOSS = 80,
  AT_N_WIDTHS = 84,
  AT_WIDTHS = 88, /* MODEL_WIDTHS_MAX of 4 bytes */
  AT_SKIPPED = AT_WIDTHS + 4 * MODEL_WIDTHS_MAX,
  AT_OPTIONS = AT_SKIPPED + 8, /* CKPT_OPTIONS doubles; zero from there to the checksum */
  AT_CRC = CKPT_HEADER - 4,
};

_Static_assert(AT_OPTIONS + 8 * CKPT_OPTIONS <= AT_CRC, "the header has room for the options");

uint32_t ckpt_crc(const void *data, size_t len) {
  return (uint32_t)crc32_z(crc32_z(0, NULL, 0), data, len);
}

uint64_t ckpt_size(const struct ckpt_kind *k) {
  return CKPT_HEADER + model_shape_params(&k->shape) * 4 * (1 + COMPUTE_STATES) + 4;
}

static void encode_header(const struct ckpt_state *s, uint8_t h[CKPT_HEADER]) {
  uint64_t loss_bits;
  memset(h, 0, CKPT_HEADER);
  memcpy(h + AT_MAGIC, magic, sizeof magic);
  le32_put(h + AT_VERSION, CKPT_VERSION);
  le32_put(h + AT_HEADER, CKPT_HEADER);
  le64_put(h + AT_TOTAL, ckpt_size(&s->kind));
  le64_put(h + AT_STEP, s->step);
  le64_put(h + AT_EPOCH, s->epoch);
  le64_put(h + AT_POSITION, s->position);
  le64_put(h + AT_UPDATES, s->counters.updates);
  le64_put(h + AT_SKIPPED, s->counters.skipped);
  le64_put(h + AT_SEED, s->kind.seed);
  le64_put(h + AT_SAMPLES, s->kind.samples);
  memcpy(&loss_bits, &s->last_loss, 8);
  le64_put(h + AT_LAST_LOSS, loss_bits);
  le32_put(h + AT_LOSS, (uint32_t)s->kind.loss);
  le32_put(h + AT_N_WIDTHS, s->kind.shape.n);
  for (uint32_t i = 0; i < s->kind.shape.n; i++) le32_put(h + AT_WIDTHS + 4 * i, s->kind.shape.width[i]);
  for (size_t i = 0; i < CKPT_OPTIONS; i++) {
    uint64_t bits;
    memcpy(&bits, &s->kind.options[i], 8);
    le64_put(h + AT_OPTIONS + 8 * i, bits);
  }
  le32_put(h + AT_CRC, ckpt_crc(h, AT_CRC));
}

static void add_piece(struct ckpt_bytes *b, const void *data, size_t n) {
  b->pieces[b->n++] = (struct ckpt_piece){data, n};
  b->size += n;
}

/* The weights, or one state of the optimizer: in one piece, or tensor by tensor. */
static void add_floats(struct ckpt_bytes *b, const struct ckpt_state *s, const void *floats) {
  struct model_tensor v[MODEL_TENSORS_MAX];
  int n = s->padded ? model_shape_tensors(&s->kind.shape, v, NULL) : 0;
  for (int i = 0; i < n; i++) add_piece(b, (const float *)floats + v[i].at, v[i].n * 4);
  if (n == 0) add_piece(b, floats, (size_t)model_shape_params(&s->kind.shape) * 4);
}

/* The checksum of the floats is computed once and used twice: behind them, and in the checksum of the whole. */
void ckpt_bytes(const struct ckpt_state *s, struct ckpt_bytes *out) {
  uLong floats = crc32_z(0, NULL, 0);
  out->n = 0;
  out->size = 0;
  encode_header(s, out->head);
  add_piece(out, out->head, sizeof out->head);
  add_floats(out, s, s->params);
  for (int i = 0; i < COMPUTE_STATES; i++) add_floats(out, s, s->states[i]);
  for (int i = 1; i < out->n; i++) floats = crc32_z(floats, out->pieces[i].data, out->pieces[i].n);
  uint64_t bytes = out->size - sizeof out->head;
  le32_put(out->tail, (uint32_t)floats);
  add_piece(out, out->tail, sizeof out->tail);
  uLong all = crc32_combine(ckpt_crc(out->head, sizeof out->head), floats, (z_off_t)bytes);
  out->crc = (uint32_t)crc32_z(all, out->tail, sizeof out->tail);
}

void ckpt_encode(const struct ckpt_state *s, struct buf *out) {
  struct ckpt_bytes b;
  ckpt_bytes(s, &b);
  buf_reserve(out, (size_t)b.size);
  for (int i = 0; i < b.n; i++) buf_append(out, b.pieces[i].data, b.pieces[i].n);
}

static int decode_header(const void *data, size_t len, struct ckpt_state *s, struct err *e) {
  const uint8_t *h = data;
  struct ckpt_state out = {0};
  if (len < CKPT_HEADER) return err_set(e, -EBADMSG, "is truncated within its header");
  if (memcmp(h, magic, sizeof magic) != 0) return err_set(e, -EBADMSG, "is not a checkpoint of rdzv-trainer");
  if (le32_get(h + AT_VERSION) != CKPT_VERSION || le32_get(h + AT_HEADER) != CKPT_HEADER)
    return err_set(e, -EBADMSG, "has format version %u; this trainer reads version %d", le32_get(h + AT_VERSION),
                   CKPT_VERSION);
  if (le32_get(h + AT_CRC) != ckpt_crc(h, AT_CRC)) return err_set(e, -EBADMSG, "has a damaged header");
  uint32_t loss = le32_get(h + AT_LOSS);
  if (loss > COMPUTE_CROSS_ENTROPY) return err_set(e, -EBADMSG, "has a loss that this trainer does not know");
  out.kind.loss = (enum compute_loss)loss;
  struct model_shape *shape = &out.kind.shape;
  shape->n = le32_get(h + AT_N_WIDTHS);
  if (shape->n < 2 || shape->n > MODEL_WIDTHS_MAX) return err_set(e, -EBADMSG, "has an invalid number of layers");
  for (uint32_t i = 0; i < shape->n; i++) {
    shape->width[i] = le32_get(h + AT_WIDTHS + 4 * i);
    if (shape->width[i] < 1 || shape->width[i] > MODEL_WIDTH_MAX)
      return err_set(e, -EBADMSG, "has a layer of invalid width");
  }
  if (model_shape_params(shape) > MODEL_PARAMS_MAX) return err_set(e, -EBADMSG, "has too many weights");
  out.step = le64_get(h + AT_STEP);
  out.epoch = le64_get(h + AT_EPOCH);
  out.position = le64_get(h + AT_POSITION);
  out.counters.updates = le64_get(h + AT_UPDATES);
  out.counters.skipped = le64_get(h + AT_SKIPPED);
  out.kind.seed = le64_get(h + AT_SEED);
  out.kind.samples = le64_get(h + AT_SAMPLES);
  uint64_t loss_bits = le64_get(h + AT_LAST_LOSS);
  memcpy(&out.last_loss, &loss_bits, 8);
  bool finite = true;
  for (size_t i = 0; i < CKPT_OPTIONS; i++) {
    uint64_t bits = le64_get(h + AT_OPTIONS + 8 * i);
    memcpy(&out.kind.options[i], &bits, 8);
    finite &= isfinite(out.kind.options[i]) != 0;
  }
  if (out.position >= out.kind.samples || !finite || le64_get(h + AT_TOTAL) != ckpt_size(&out.kind))
    return err_set(e, -EBADMSG, "has a header that contradicts itself");
  *s = out;
  return 0;
}

int ckpt_decode(const void *data, size_t len, struct ckpt_state *s, struct err *e) {
  struct ckpt_state out = {0};
  int rc = decode_header(data, len, &out, e);
  if (rc) return rc;
  if (len != ckpt_size(&out.kind))
    return err_set(e, -EBADMSG, "has %zu bytes instead of %" PRIu64, len, ckpt_size(&out.kind));
  const uint8_t *p = (const uint8_t *)data + CKPT_HEADER;
  if (le32_get(p + len - CKPT_HEADER - 4) != ckpt_crc(p, len - CKPT_HEADER - 4))
    return err_set(e, -EBADMSG, "is damaged: its checksum does not match its content");
  size_t bytes = (size_t)model_shape_params(&out.kind.shape) * 4;
  out.params = p;
  for (int i = 0; i < COMPUTE_STATES; i++) out.states[i] = p + bytes * (size_t)(i + 1);
  *s = out;
  return 0;
}

int ckpt_kind_check(const struct ckpt_kind *have, const struct ckpt_kind *want, struct err *e) {
  char a[128], b[128];
  model_shape_format(&have->shape, ',', a, sizeof a);
  model_shape_format(&want->shape, ',', b, sizeof b);
  if (strcmp(a, b) != 0) return err_set(e, -EINVAL, "was made with --layers %s, this run has %s", a, b);
  if (have->loss != want->loss)
    return err_set(e, -EINVAL, "was made with --loss %s, this run has %s", model_loss_words[have->loss],
                   model_loss_words[want->loss]);
  if (have->seed != want->seed)
    return err_set(e, -EINVAL, "was made with --seed %" PRIu64 ", this run has %" PRIu64, have->seed, want->seed);
  if (have->samples != want->samples)
    return err_set(e, -EINVAL, "was made on %" PRIu64 " samples, this run has %" PRIu64, have->samples, want->samples);
  return 0;
}

int ckpt_options_differ(const struct ckpt_kind *have, const struct ckpt_kind *want, char *text, size_t size) {
  static const char *const names[] = {
#define X(name, option) [CKPT_##name] = (option),
      CKPT_OPTION_LIST(X)
#undef X
  };
  struct buf out = BUF_INIT;
  int n = 0;
  for (int i = 0; i < CKPT_OPTIONS; i++) {
    double more = want->options[i] - have->options[i];
    if (!(more < 0 || more > 0)) continue;
    buf_printf(&out, "%s--%s %.9g there and %.9g here", n++ ? ", " : "", names[i], have->options[i], want->options[i]);
  }
  if (size) snprintf(text, size, "%s", n ? buf_text(&out) : "");
  buf_finish(&out);
  return n > 0;
}

/* Names and markers: both are read only if they are exactly what would be written. */

int ckpt_id_compare(const struct ckpt_id *a, const struct ckpt_id *b) {
  if (a->generation != b->generation) return a->generation < b->generation ? -1 : 1;
  if (a->round != b->round) return a->round < b->round ? -1 : 1;
  if (a->step != b->step) return a->step < b->step ? -1 : 1;
  int c = strcmp(a->incarnation, b->incarnation); /* only in a folder that somebody has assembled */
  return c < 0 ? -1 : c > 0;
}

void ckpt_name_format(const struct ckpt_id *id, char out[CKPT_NAME_MAX]) {
  snprintf(out, CKPT_NAME_MAX, "%06" PRIu32 "-%s-r%06" PRIu32 "-s%012" PRIu64, id->generation, id->incarnation,
           id->round, id->step);
}

bool ckpt_name_parse(const char *name, struct ckpt_id *id) {
  struct ckpt_id out = {0};
  char again[CKPT_NAME_MAX];
  const char *s = strrchr(name, '-'), *r = s, *from = strchr(name, '-');
  while (r && r > name && *--r != '-') {
  }
  if (!r || !from || r <= from + 1 || (size_t)(r - from) > sizeof out.incarnation) return false;
  memcpy(out.incarnation, from + 1, (size_t)(r - from - 1));
  if (sscanf(name, "%9" SCNu32 "-", &out.generation) != 1) return false;
  if (sscanf(r, "-r%9" SCNu32 "-s%19" SCNu64, &out.round, &out.step) != 2) return false;
  ckpt_name_format(&out, again);
  if (strcmp(again, name) != 0) return false;
  *id = out;
  return true;
}

void ckpt_word(const char *text, char *out, size_t size) {
  snprintf(out, size, "%s", text[0] ? text : "-");
  for (char *p = out; *p; p++)
    if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.@:-", *p) || (*p == '.' && p == out))
      *p = '_';
}

void ckpt_marker_format(const struct ckpt_marker *m, struct buf *out) {
  size_t from = out->len;
  buf_printf(out, "rdzv-trainer checkpoint %d\njob %s\ngeneration %" PRIu32 "\nincarnation %s\n", CKPT_VERSION, m->job,
             m->id.generation, m->id.incarnation);
  buf_printf(out, "round %" PRIu32 "\nstep %" PRIu64 "\norigin %" PRIu32 "\n", m->id.round, m->id.step, m->origin);
  buf_printf(out, "state.bin %" PRIu64 " bytes crc32 %08" PRIx32 "\n", m->size, m->crc);
  buf_printf(out, "marker crc32 %08" PRIx32 "\n", ckpt_crc(out->data + from, out->len - from));
}

bool ckpt_marker_parse(const char *text, size_t len, struct ckpt_marker *m) {
  struct ckpt_marker out = {0};
  char copy[CKPT_MARKER_MAX + 1];
  struct buf again = BUF_INIT;
  int version = 0; /* a marker of another version differs from what format writes */
  if (len > CKPT_MARKER_MAX) return false;
  memcpy(copy, text, len);
  copy[len] = 0;
  int n = sscanf(copy,
                 "rdzv-trainer checkpoint %9d\njob %131s\ngeneration %9" SCNu32 "\nincarnation %63s\nround %9" SCNu32
                 "\nstep %19" SCNu64 "\norigin %9" SCNu32 "\nstate.bin %19" SCNu64 " bytes crc32 %8" SCNx32,
                 &version, out.job, &out.id.generation, out.id.incarnation, &out.id.round, &out.id.step, &out.origin,
                 &out.size, &out.crc);
  if (n != 9) return false;
  ckpt_marker_format(&out, &again);
  bool same = again.len == len && memcmp(again.data, text, len) == 0;
  buf_finish(&again);
  if (same) *m = out;
  return same;
}
