/* SPDX-License-Identifier: Apache-2.0 */
/* Random valid messages. A field takes a bound, its zero, or anything between; strings mix plain text with what is
 * awkward in JSON and UTF-8: quotes, backslashes, control characters, characters of two to four bytes. */

#include "tests/rig/random_msg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

/* splitmix64 */
uint64_t random_next(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static uint64_t below(struct random_msg *r, uint64_t n) {
  return random_next(&r->state) % n;
}

static void *own(struct random_msg *r, void *p) {
  r->owned = xrealloc(r->owned, (r->n_owned + 1) * sizeof(*r->owned));
  return r->owned[r->n_owned++] = p;
}

static int64_t random_int(struct random_msg *r, const struct field *f) {
  uint64_t span = (uint64_t)f->max - (uint64_t)f->min;
  switch (below(r, 4)) {
  case 0: return f->min;
  case 1: return f->max;
  case 2: return f->min <= 0 && f->max >= 0 ? 0 : f->min;
  default: return (int64_t)((uint64_t)f->min + (span == UINT64_MAX ? random_next(&r->state) : below(r, span + 1)));
  }
}

static const char *random_str(struct random_msg *r, const struct field *f) {
  static const char *const pieces[] = {"a",
                                       "Z",
                                       "7",
                                       " ",
                                       "-",
                                       "\"",
                                       "\\",
                                       "/",
                                       "\n",
                                       "\t",
                                       "\x01",
                                       "\x1b",
                                       "\x7f",
                                       "\xc3\xa9",
                                       "\xe2\x82\xac",
                                       "\xf0\x9f\x98\x80",
                                       "\xef\xbf\xbd",
                                       "\xe2\x80\xa8"};
  static const char *const digits[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8",
                                       "9", "a", "b", "c", "d", "e", "f", "-"};
  bool hex = f->type == FIELD_HEX;
  size_t n_pieces = hex ? sizeof(digits) / sizeof(digits[0]) : sizeof(pieces) / sizeof(pieces[0]);
  size_t max = (size_t)f->max, least = f->required, want = below(r, 8) ? below(r, max < 20 ? max + 1 : 20) : max;
  if (want < least) want = least;
  if (want == 0 && below(r, 2)) return field_empty;
  char *s = own(r, xmalloc(want + 1));
  size_t n = 0;
  while (n < want) {
    const char *piece = hex ? digits[below(r, n_pieces)] : pieces[below(r, n_pieces)];
    if (n + strlen(piece) > want) piece = "0";
    memcpy(s + n, piece, strlen(piece));
    n += strlen(piece);
  }
  s[n] = '\0';
  return s;
}

static double random_num(struct random_msg *r) {
  switch (below(r, 5)) {
  case 0: return (double)NAN;
  case 1: return 0.0;
  case 2: return -(double)(1 + below(r, 1000));
  case 3: return ldexp((double)random_next(&r->state), (int)below(r, 1000) - 500);
  default: return (double)below(r, 1000000) / 7;
  }
}

static void random_object(struct random_msg *r, const struct object *o, void *at);

static void random_list(struct random_msg *r, const struct field *f, void *at) {
  size_t n = below(r, 3) ? below(r, 4) : below(r, (uint64_t)f->max + 1);
  char *items = n ? own(r, xcalloc(n, f->object->size)) : NULL;
  memcpy((char *)at + f->offset, &items, sizeof(items));
  *(size_t *)((char *)at + f->n_offset) = n;
  for (size_t i = 0; i < n; i++) random_object(r, f->object, items + i * f->object->size);
}

static void random_object(struct random_msg *r, const struct object *o, void *at) {
  object_init(o, at);
  for (const struct field *f = o->fields; f->name; f++) {
    void *p = (char *)at + f->offset;
    if (!f->required && f->type != FIELD_OBJ && below(r, 4) == 0) continue;
    switch (f->type) {
    case FIELD_INT: *(int64_t *)p = random_int(r, f); break;
    case FIELD_STR:
    case FIELD_HEX: *(const char **)p = random_str(r, f); break;
    case FIELD_NUM: *(double *)p = random_num(r); break;
    case FIELD_BOOL: *(bool *)p = below(r, 2); break;
    case FIELD_ENUM: {
      int v = (int)below(r, (uint64_t)f->words->count);
      memcpy(p, &v, sizeof(v));
      break;
    }
    case FIELD_OBJ: random_object(r, f->object, p); break;
    case FIELD_LIST: random_list(r, f, at); break;
    }
  }
}

void random_msg_init(struct random_msg *r, enum msg_type t, uint64_t seed) {
  memset(r, 0, sizeof(*r));
  r->state = seed;
  msg_init(&r->m, t);
  random_object(r, msg_objects[t], &r->m.hello);
  /* Of one that does not fit nothing else would be decoded. */
  if (t == MSG_GREETING) r->m.greeting.version = r->m.greeting.oldest = PROTO_VERSION;
  if (t == MSG_HELLO) r->m.hello.version = r->m.hello.oldest = PROTO_VERSION;
  r->m.flags = (uint16_t)random_next(&r->state);
  r->m.id = (uint32_t)random_next(&r->state);
  if (below(r, 2)) return;
  r->m.raw_len = below(r, 40);
  char *raw = own(r, xmalloc(r->m.raw_len + 1));
  for (size_t i = 0; i < r->m.raw_len; i++) raw[i] = (char)random_next(&r->state);
  r->m.raw = raw;
}

void random_msg_finish(struct random_msg *r) {
  for (size_t i = 0; i < r->n_owned; i++) free(r->owned[i]);
  free(r->owned);
  memset(r, 0, sizeof(*r));
}

static bool list_equal(const struct field *f, const void *a, const void *b) {
  const char *x, *y;
  memcpy(&x, (const char *)a + f->offset, sizeof(x));
  memcpy(&y, (const char *)b + f->offset, sizeof(y));
  size_t n = *(const size_t *)((const char *)a + f->n_offset), m = *(const size_t *)((const char *)b + f->n_offset);
  if (n != m) return false;
  for (size_t i = 0; i < n; i++)
    if (!object_equal(f->object, x + i * f->object->size, y + i * f->object->size)) return false;
  return true;
}

static bool field_equal(const struct field *f, const void *a, const void *b) {
  const void *x = (const char *)a + f->offset, *y = (const char *)b + f->offset;
  switch (f->type) {
  case FIELD_INT: return *(const int64_t *)x == *(const int64_t *)y;
  case FIELD_STR:
  case FIELD_HEX: return strcmp(*(const char *const *)x, *(const char *const *)y) == 0;
  case FIELD_NUM: {
    double v = *(const double *)x, w = *(const double *)y;
    return v == w || (isnan(v) && isnan(w));
  }
  case FIELD_BOOL: return *(const bool *)x == *(const bool *)y;
  case FIELD_ENUM: return memcmp(x, y, sizeof(int)) == 0;
  case FIELD_OBJ: return object_equal(f->object, x, y);
  case FIELD_LIST: return list_equal(f, a, b);
  }
  return false;
}

bool object_equal(const struct object *o, const void *a, const void *b) {
  for (const struct field *f = o->fields; f->name; f++)
    if (!field_equal(f, a, b)) return false;
  return true;
}

bool msg_equal(const struct msg *a, const struct msg *b) {
  return a->type == b->type && a->flags == b->flags && a->id == b->id && a->raw_len == b->raw_len &&
         (a->raw_len == 0 || memcmp(a->raw, b->raw, a->raw_len) == 0) &&
         object_equal(msg_objects[a->type], &a->hello, &b->hello);
}
