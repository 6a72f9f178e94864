/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: a frame's type and flags around one object of the codec.
 *
 * A frame is decoded as a whole or not at all. msg_decode refuses an unknown type and one that goes the other way, so a
 * peer cannot make an agent act on an agent's message. Every field of a decoded message is within its bounds: the
 * receiver checks its meaning, never its form. A body without JSON reads as an empty object, so a heartbeat has 16
 * bytes and needs no special case.
 *
 * Of a GREETING or HELLO that does not fit only its versions and the name of its release are decoded.
 *
 * Both sides keep verdicts (until a round is settled, in state lines, in files). So verdicts have deep copies and a
 * JSON form of their own, with all fields, since other programs read it. */

#include "proto/msg.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"
#include "proto/codec.h"

static const struct {
  const char *name;
  enum msg_direction direction;
} kinds[MSG_COUNT] = {[MSG_NONE] = {"?", TO_AGENT},
#define M(NAME, name, direction) [MSG_##NAME] = {#NAME, direction},
                      MSG_LIST(M)
#undef M
};

static bool is_type(unsigned t) {
  return t > MSG_NONE && t < MSG_COUNT;
}

const char *msg_name(enum msg_type t) {
  return is_type(t) ? kinds[t].name : "?";
}

enum msg_direction msg_direction(enum msg_type t) {
  return is_type(t) ? kinds[t].direction : TO_AGENT;
}

bool msg_is_known(const struct bytes *frame, uint64_t features) {
  static const uint64_t needs[MSG_COUNT] = {
      [MSG_FACTS] = FEATURE_FACTS,  [MSG_NOTICE] = FEATURE_NOTICE, [MSG_PAIR] = FEATURE_PAIRS,
      [MSG_PAIRED] = FEATURE_PAIRS, [MSG_PACE] = FEATURE_PACE,
  };
  unsigned type = frame->len < FRAME_HEADER_SIZE ? MSG_NONE : le16_get(frame->data + 4);
  return !is_type(type) || (needs[type] & ~features) == 0;
}

struct release msg_release(const struct msg *m) {
  if (m->type == MSG_GREETING) return (struct release){m->greeting.release, m->greeting.version, m->greeting.oldest};
  return (struct release){m->hello.release, m->hello.version, m->hello.oldest};
}

/* All members of the union are at its beginning. */
static void *body_of(struct msg *m) {
  return &m->hello;
}

void msg_init(struct msg *m, enum msg_type t) {
  assert(is_type(t));
  memset(m, 0, sizeof(*m));
  m->type = t;
  object_init(msg_objects[t], body_of(m));
}

void msg_encode(struct buf *out, const struct msg *m) {
  assert(is_type(m->type));
  size_t start = out->len;
  static const char room[FRAME_HEADER_SIZE];
  buf_append(out, room, sizeof(room));
  object_put(out, msg_objects[m->type], &m->hello, true);
  struct frame f = {
      .type = (uint16_t)m->type,
      .flags = m->flags,
      .id = m->id,
      .json_len = out->len - start - FRAME_HEADER_SIZE,
      .raw_len = m->raw_len,
  };
  frame_put_header(out->data + start, &f);
  if (m->raw_len) buf_append(out, m->raw, m->raw_len);
}

struct bytes *msg_bytes(const struct msg *m) {
  struct buf out = BUF_INIT;
  msg_encode(&out, m);
  struct bytes *b = bytes_create(out.data, out.len);
  b->secret = m->secret;
  if (m->secret) explicit_bzero(out.data, out.len);
  buf_finish(&out);
  return b;
}

/* A GREETING or HELLO of a release that this one does not work with: its other fields may mean something else. */
static bool take_misfit(struct msg *m, const json_t *json) {
  if (m->type != MSG_GREETING && m->type != MSG_HELLO) return false;
  const char *name = json_string_value(json_object_get(json, "release"));
  struct release r = {.name = name && strlen(name) <= RELEASE_MAX ? name : field_empty,
                      .version = json_integer_value(json_object_get(json, "version")), /* 0: it is no integer */
                      .oldest = json_integer_value(json_object_get(json, "oldest"))};
  if (r.version < 1 || r.version > UINT16_MAX || r.oldest < 0 || r.oldest > UINT16_MAX || release_fits(r)) return false;
  object_init(msg_objects[m->type], body_of(m));
  *(m->type == MSG_GREETING ? &m->greeting.version : &m->hello.version) = r.version;
  *(m->type == MSG_GREETING ? &m->greeting.oldest : &m->hello.oldest) = r.oldest;
  *(m->type == MSG_GREETING ? &m->greeting.release : &m->hello.release) = r.name;
  return true;
}

int msg_decode(const struct frame *f, enum msg_direction direction, struct msg *m, struct err *e) {
  if (!is_type(f->type)) return err_set(e, -EPROTO, "message type %u is unknown to this version", f->type);
  if (kinds[f->type].direction != direction)
    return err_set(e, -EPROTO, "%s is not for %s to receive", kinds[f->type].name,
                   direction == TO_AGENT ? "an agent" : "a daemon");
  struct err why = ERR_INIT;
  json_t *json = f->json_len ? json_parse_object(f->json, f->json_len, &why) : NULL;
  int rc = 0;
  if (f->json_len && !json) return err_set(e, -EPROTO, "%s: %s", kinds[f->type].name, why.text);
  memset(m, 0, sizeof(*m));
  m->type = f->type;
  m->flags = f->flags;
  m->id = f->id;
  m->raw = f->raw;
  m->raw_len = f->raw_len;
  if (!take_misfit(m, json)) rc = object_get(kinds[f->type].name, msg_objects[f->type], json, body_of(m), e);
  if (rc) {
    object_free_lists(msg_objects[f->type], body_of(m));
    json_decref(json);
    return rc;
  }
  m->owned = json;
  return 0;
}

void msg_finish(struct msg *m) {
  if (!m->owned) return; /* made by hand, or without JSON: nothing to free */
  object_free_lists(msg_objects[m->type], body_of(m));
  json_decref(m->owned);
  m->owned = NULL;
}

void verdict_init(struct verdict *v) {
  object_init(&object_verdict, v);
}

static const char **string_at(struct verdict *v, const struct field *f) {
  return f->type == FIELD_STR || f->type == FIELD_HEX ? (const char **)((char *)v + f->offset) : NULL;
}

void verdict_copy(struct verdict *to, const struct verdict *from) {
  *to = *from;
  for (const struct field *f = object_verdict.fields; f->name; f++) {
    const char **s = string_at(to, f);
    if (s) *s = **s ? xstrdup(*s) : field_empty;
  }
}

void verdict_free(struct verdict *v) {
  for (const struct field *f = object_verdict.fields; f->name; f++) {
    const char **s = string_at(v, f);
    if (!s || *s == field_empty) continue;
    char *own; /* allocated, although the type of the field is const */
    memcpy(&own, s, sizeof(own));
    free(own);
  }
  verdict_init(v);
}

void verdict_set(struct verdict *to, const struct verdict *from) {
  struct verdict copy;
  verdict_copy(&copy, from);
  verdict_free(to);
  *to = copy;
}

static json_t *to_json(const struct object *object, const void *from) {
  struct buf text = BUF_INIT;
  object_put(&text, object, from, false);
  json_t *json = json_parse_object(text.data, text.len, NULL);
  assert(json); /* jansson can read everything that the codec writes */
  buf_finish(&text);
  return json;
}

/* The objects that have a JSON form of their own, and the names for their sentences. */
#define J(S, name)                                                                                                     \
  void *S##_to_json(const struct S *v) {                                                                               \
    return to_json(&object_##S, v);                                                                                    \
  }                                                                                                                    \
  int S##_from_json(const void *json, struct S *v, struct err *e) {                                                    \
    return object_get(name, &object_##S, json, v, e);                                                                  \
  }
J(verdict, "verdict")
J(settings, "settings")
J(failure_mark, "last_failure")
J(goodput, "goodput")
#undef J

void *waiting_to_json(const struct waiting *w) {
  return to_json(msg_objects[MSG_WAITING], w);
}

void goodput_init(struct goodput *g) {
  object_init(&object_goodput, g);
}
