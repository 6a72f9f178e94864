/* SPDX-License-Identifier: Apache-2.0 */
/* A header has one size, and is filled up with spaces, so the size of a checkpoint follows from the model. It is read
 * only if it is exactly what would be written for what it says. So the places of the tensors need no checks of their
 * own. A file that is cut or changed at any byte fails the checksum, which counts its own digits as zeros.
 *
 * Floats are copied as they lie in memory. The machines we run on are little-endian, which is checked below. */

#include "agent/trainer/checkpoint/codec.h"

#include "agent/trainer/checkpoint/safetensors.h"
#include "common/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are stored as they lie in memory");

#define CRC_PREFIX "{\"__metadata__\":{\"crc32\":\""
enum { CRC_AT = SAFE_LENGTH + sizeof CRC_PREFIX - 1, CRC_DIGITS = 8 };

static const char *const option_names[] = {
#define X(name, option) [CKPT_##name] = (option),
    CKPT_OPTION_LIST(X)
#undef X
};

/* Numbers in the metadata. */
static const struct {
  const char *key;
  size_t at;
} numbers[] = {
    {"step", offsetof(struct ckpt_state, step)},
    {"epoch", offsetof(struct ckpt_state, epoch)},
    {"position", offsetof(struct ckpt_state, position)},
    {"updates", offsetof(struct ckpt_state, counters.updates)},
    {"skipped", offsetof(struct ckpt_state, counters.skipped)},
    {"seed", offsetof(struct ckpt_state, kind.seed)},
    {"samples", offsetof(struct ckpt_state, kind.samples)},
};

uint32_t ckpt_crc(const void *data, size_t len) {
  return (uint32_t)crc32_z(crc32_z(0, NULL, 0), data, len);
}

uint64_t ckpt_size(const struct ckpt_kind *k) {
  return CKPT_HEADER + model_shape_params(&k->shape) * 4 * (1 + COMPUTE_STATES);
}

void ckpt_encode_header(const struct ckpt_state *s, uint8_t h[CKPT_HEADER]) {
  static const char *const parts[] = {"", "exp_avg.", "exp_avg_sq."};
  _Static_assert(sizeof parts / sizeof *parts == 1 + COMPUTE_STATES, "the weights, and each state of Adam");
  struct buf b = BUF_INIT;
  char layers[MODEL_WIDTHS_MAX * 8];
  uint64_t at = 0;
  model_shape_format(&s->kind.shape, ',', layers, sizeof layers);
  buf_printf(&b, CRC_PREFIX "00000000\",\"format\":\"pt\",\"rdzv-trainer\":\"%d\"", CKPT_VERSION);
  buf_printf(&b, ",\"layers\":\"%s\",\"loss\":\"%s\"", layers, model_loss_words[s->kind.loss]);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    buf_printf(&b, ",\"%s\":\"%" PRIu64 "\"", numbers[i].key,
               *(const uint64_t *)(const void *)((const char *)s + numbers[i].at));
  for (size_t i = 0; i < CKPT_OPTIONS; i++) buf_printf(&b, ",\"%s\":\"%.17g\"", option_names[i], s->kind.options[i]);
  buf_printf(&b, ",\"last_loss\":\"%.17g\"}", s->last_loss);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) safe_put_tensors(&b, &s->kind.shape, parts[i], &at);
  buf_putc(&b, '}');
  memset(h, ' ', CKPT_HEADER);
  le64_put(h, CKPT_HEADER - SAFE_LENGTH);
  memcpy(h + SAFE_LENGTH, b.data, b.len < CKPT_HEADER - SAFE_LENGTH ? b.len : CKPT_HEADER - SAFE_LENGTH); /* all fits */
  buf_finish(&b);
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

/* The checksum of the floats is computed once and used twice: in the header, and in the checksum of the whole. */
void ckpt_bytes(const struct ckpt_state *s, struct ckpt_bytes *out) {
  uLong floats = crc32_z(0, NULL, 0);
  char digits[CRC_DIGITS + 1];
  out->n = 0;
  out->size = 0;
  ckpt_encode_header(s, out->head);
  add_piece(out, out->head, sizeof out->head);
  add_floats(out, s, s->params);
  for (int i = 0; i < COMPUTE_STATES; i++) add_floats(out, s, s->states[i]);
  for (int i = 1; i < out->n; i++) floats = crc32_z(floats, out->pieces[i].data, out->pieces[i].n);
  z_off_t bytes = (z_off_t)(out->size - sizeof out->head);
  uLong inner = crc32_combine(ckpt_crc(out->head, sizeof out->head), floats, bytes);
  snprintf(digits, sizeof digits, "%08" PRIx32, (uint32_t)inner);
  memcpy(out->head + CRC_AT, digits, CRC_DIGITS);
  out->crc = (uint32_t)crc32_combine(ckpt_crc(out->head, sizeof out->head), floats, bytes);
}

void ckpt_encode(const struct ckpt_state *s, struct buf *out) {
  struct ckpt_bytes b;
  ckpt_bytes(s, &b);
  buf_reserve(out, (size_t)b.size);
  for (int i = 0; i < b.n; i++) buf_append(out, b.pieces[i].data, b.pieces[i].n);
}

/* false: this is no header of ours, or has values of no sense. */
static bool read_metadata(const json_t *meta, struct ckpt_state *s) {
#define WORD(key) json_string_value(json_object_get(meta, key))
  const char *word = WORD("layers"), *loss = WORD("loss");
  int kind = 0, kinds = sizeof model_loss_words / sizeof *model_loss_words;
  if (!word || !loss || model_shape_parse(word, &s->kind.shape, NULL)) return false;
  while (kind < kinds && strcmp(loss, model_loss_words[kind]) != 0) kind++;
  if (kind == kinds) return false;
  s->kind.loss = (enum compute_loss)kind;
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    if (!(word = WORD(numbers[i].key))) return false;
    *(uint64_t *)(void *)((char *)s + numbers[i].at) = strtoull(word, NULL, 10);
  }
  for (size_t i = 0; i < CKPT_OPTIONS; i++) {
    if (!(word = WORD(option_names[i]))) return false;
    s->kind.options[i] = strtod(word, NULL);
    if (!isfinite(s->kind.options[i])) return false;
  }
  if (!(word = WORD("last_loss"))) return false;
  s->last_loss = strtod(word, NULL);
  return s->position < s->kind.samples;
#undef WORD
}

static int decode_header(const uint8_t *h, struct ckpt_state *s, struct err *e) {
  uint8_t again[CKPT_HEADER];
  json_t *json = json_parse_object((const char *)h + SAFE_LENGTH, CKPT_HEADER - SAFE_LENGTH, e);
  if (!json) return err_wrap(e, "has a damaged header");
  const json_t *meta = json_object_get(json, "__metadata__");
  const char *version = json_string_value(json_object_get(meta, "rdzv-trainer"));
  int rc = 0;
  if (!version || strtol(version, NULL, 10) != CKPT_VERSION)
    rc = err_set(e, -EBADMSG, "has format version %.8s; this trainer reads version %d", version ? version : "?",
                 CKPT_VERSION);
  bool sense = rc == 0 && read_metadata(meta, s);
  json_decref(json);
  if (sense) {
    ckpt_encode_header(s, again);
    memcpy(again + CRC_AT, h + CRC_AT, CRC_DIGITS);
    sense = memcmp(again, h, CKPT_HEADER) == 0;
  }
  return rc || sense ? rc : err_set(e, -EBADMSG, "has a header that contradicts itself");
}

int ckpt_decode(const void *data, size_t len, struct ckpt_state *s, struct err *e) {
  struct ckpt_state out = {0};
  const uint8_t *h = data, *p = h + CKPT_HEADER;
  char digits[CRC_DIGITS + 1];
  if (len < CKPT_HEADER) return err_set(e, -EBADMSG, "is truncated within its header");
  if (le64_get(h) != CKPT_HEADER - SAFE_LENGTH || memcmp(h + SAFE_LENGTH, CRC_PREFIX, sizeof CRC_PREFIX - 1) != 0)
    return err_set(e, -EBADMSG, "is not a checkpoint of this version of rdzv-trainer");
  uLong crc = crc32_z(ckpt_crc(h, CRC_AT), (const Bytef *)"00000000", CRC_DIGITS);
  crc = crc32_z(crc, h + CRC_AT + CRC_DIGITS, len - CRC_AT - CRC_DIGITS);
  snprintf(digits, sizeof digits, "%08" PRIx32, (uint32_t)crc);
  if (memcmp(digits, h + CRC_AT, CRC_DIGITS) != 0)
    return err_set(e, -EBADMSG, "is damaged: its checksum does not match its content");
  int rc = decode_header(h, &out, e);
  if (rc) return rc;
  if (len != ckpt_size(&out.kind))
    return err_set(e, -EBADMSG, "has %zu bytes instead of %" PRIu64, len, ckpt_size(&out.kind));
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
  struct buf out = BUF_INIT;
  int n = 0;
  for (int i = 0; i < CKPT_OPTIONS; i++) {
    double more = want->options[i] - have->options[i];
    if (!(more < 0 || more > 0)) continue;
    buf_printf(&out, "%s--%s %.9g there and %.9g here", n++ ? ", " : "", option_names[i], have->options[i],
               want->options[i]);
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
  buf_printf(out, CKPT_STATE_FILE " %" PRIu64 " bytes crc32 %08" PRIx32 "\n", m->size, m->crc);
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
                 "\nstep %19" SCNu64 "\norigin %9" SCNu32 "\n" CKPT_STATE_FILE " %19" SCNu64 " bytes crc32 %8" SCNx32,
                 &version, out.job, &out.id.generation, out.id.incarnation, &out.id.round, &out.id.step, &out.origin,
                 &out.size, &out.crc);
  if (n != 9) return false;
  ckpt_marker_format(&out, &again);
  bool same = again.len == len && memcmp(again.data, text, len) == 0;
  buf_finish(&again);
  if (same) *m = out;
  return same;
}
