/* SPDX-License-Identifier: Apache-2.0 */
/* Structs to JSON and back, for any table of fields.
 *
 * A value that the peer would refuse is not written. Text that is longer than its field allows is cut at a character.
 * Bytes that are not UTF-8 (a worker's last words may be anything) become U+FFFD. Infinite numbers are left out. An
 * integer or word out of bounds is a bug of the caller, and asserted.
 *
 * Reading asks jansson's tree for each field by name. Other keys are ignored, so a newer peer may send more. A field that
 * breaks a rule ends the reading. The sentence names it by its path (HELLO.reports[3].what.pid).
 *
 * An absent object is read like an empty one, so its own required fields are missing, and the sentence names them. A
 * list is allocated after its length was compared with the field's limit. Strings are not copied: they belong to
 * jansson, which refuses a NUL in them. */

#include "proto/codec.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/printable.h"

enum { SHOWN_MAX = 40 }; /* bytes of a peer's value in a sentence */

/* Members by offset. Pointers and enums go through memcpy, because their declared types differ. */
static void *member(void *at, size_t offset) {
  return (char *)at + offset;
}

static const void *member_const(const void *at, size_t offset) {
  return (const char *)at + offset;
}

static int64_t int_of(const struct field *f, const void *at) {
  return *(const int64_t *)member_const(at, f->offset);
}

static int enum_of(const struct field *f, const void *at) {
  int v;
  memcpy(&v, member_const(at, f->offset), sizeof(v));
  return v;
}

static const char *str_of(const struct field *f, const void *at) {
  return *(const char *const *)member_const(at, f->offset);
}

static const void *list_of(const struct field *f, const void *at, size_t *n) {
  const void *items;
  memcpy(&items, member_const(at, f->offset), sizeof(items));
  *n = *(const size_t *)member_const(at, f->n_offset);
  return items;
}

static int64_t zero_of(const struct field *f) {
  if (f->min == -1) return -1;
  return f->min > 0 ? f->min : f->max < 0 ? f->max : 0;
}

void object_init(const struct object *o, void *at) {
  memset(at, 0, o->size);
  for (const struct field *f = o->fields; f->name; f++) {
    void *p = member(at, f->offset);
    switch (f->type) {
    case FIELD_INT: *(int64_t *)p = zero_of(f); break;
    case FIELD_STR:
    case FIELD_HEX: *(const char **)p = field_empty; break;
    case FIELD_NUM: *(double *)p = (double)NAN; break;
    case FIELD_OBJ: object_init(f->object, p); break;
    case FIELD_BOOL:
    case FIELD_ENUM:
    case FIELD_LIST: break; /* zeroed */
    }
  }
}

/* Writing. */

static bool object_is_zero(const struct object *o, const void *at);

static bool field_is_zero(const struct field *f, const void *at) {
  const void *p = member_const(at, f->offset);
  size_t n;
  switch (f->type) {
  case FIELD_INT: return int_of(f, at) == zero_of(f);
  case FIELD_STR:
  case FIELD_HEX: return str_of(f, at)[0] == '\0';
  case FIELD_NUM: return !isfinite(*(const double *)p);
  case FIELD_BOOL: return !*(const bool *)p;
  case FIELD_ENUM: return enum_of(f, at) == 0;
  case FIELD_OBJ: return object_is_zero(f->object, p);
  case FIELD_LIST: return list_of(f, at, &n), n == 0;
  }
  return false;
}

static bool object_is_zero(const struct object *o, const void *at) {
  for (const struct field *f = o->fields; f->name; f++)
    if (f->required || !field_is_zero(f, at)) return false;
  return true;
}

static void put_string(struct buf *out, const char *s, size_t max) {
  static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
  size_t n = strlen(s), used = 0;
  buf_putc(out, '"');
  for (size_t i = 0; i < n;) {
    size_t plain = 0; /* characters that need no escape */
    for (const char *p = s + i; plain < max - used && *p >= 0x20 && *p < 0x7f && *p != '"' && *p != '\\'; p++) plain++;
    if (plain) {
      buf_append(out, s + i, plain);
      used += plain;
      i += plain;
      continue;
    }
    uint32_t cp;
    size_t size = utf8_char((const unsigned char *)s + i, n - i, &cp), cost = size ? size : 3;
    if (used + cost > max) break;
    if (size == 1 && (s[i] == '"' || s[i] == '\\'))
      buf_printf(out, "\\%c", s[i]);
    else if (size == 1 && s[i] == '\n')
      buf_puts(out, "\\n");
    else if (size == 1 && s[i] < 0x20)
      buf_printf(out, "\\u%04x", (unsigned)s[i]);
    else
      buf_append(out, size ? s + i : replacement, cost);
    used += cost;
    i += size ? size : 1;
  }
  buf_putc(out, '"');
}

/* printf takes three times as long, and a START has thirteen fields. */
static void put_int(struct buf *out, int64_t v) {
  char text[24], *at = text + sizeof(text);
  uint64_t left = v < 0 ? -(uint64_t)v : (uint64_t)v;
  do *--at = (char)('0' + left % 10);
  while (left /= 10);
  if (v < 0) *--at = '-';
  buf_append(out, at, (size_t)(text + sizeof(text) - at));
}

bool object_put(struct buf *out, const struct object *o, const void *at, bool sparse) {
  char before = '{';
  for (const struct field *f = o->fields; f->name; f++) {
    bool zero = field_is_zero(f, at);
    if (zero && sparse && !f->required && f->type != FIELD_ENUM) continue;
    if (zero && f->type == FIELD_NUM) continue; /* JSON cannot express it */
    buf_putc(out, before);
    buf_putc(out, '"');
    buf_puts(out, f->name);
    buf_append(out, "\":", 2);
    before = ',';
    const void *p = member_const(at, f->offset);
    switch (f->type) {
    case FIELD_INT:
      assert(int_of(f, at) >= f->min && int_of(f, at) <= f->max);
      put_int(out, int_of(f, at));
      break;
    case FIELD_STR:
    case FIELD_HEX: put_string(out, str_of(f, at), (size_t)f->max); break;
    case FIELD_NUM:
      /* + 0.0: minus zero would be read as an integer and lose its sign. */
      buf_printf(out, "%.17g", *(const double *)p + 0.0);
      break;
    case FIELD_BOOL: buf_puts(out, *(const bool *)p ? "true" : "false"); break;
    case FIELD_ENUM:
      assert(enum_of(f, at) >= 0 && enum_of(f, at) < f->words->count);
      put_string(out, f->words->word[enum_of(f, at)], SIZE_MAX);
      break;
    case FIELD_OBJ:
      if (!object_put(out, f->object, p, sparse)) buf_puts(out, "{}");
      break;
    case FIELD_LIST: {
      size_t n;
      const char *items = list_of(f, at, &n);
      assert(n <= (size_t)f->max);
      for (size_t i = 0; i < n; i++) {
        buf_putc(out, i ? ',' : '[');
        if (!object_put(out, f->object, items + i * f->object->size, sparse)) buf_puts(out, "{}");
      }
      buf_puts(out, n ? "]" : "[]");
      break;
    }
    }
  }
  if (before == '{') return false;
  buf_putc(out, '}');
  return true;
}

/* Reading. */

struct path {
  const struct path *up;
  const char *name;
  size_t index; /* SIZE_MAX: not in a list */
};

static void put_path(struct buf *out, const struct path *p) {
  if (p->up) {
    put_path(out, p->up);
    buf_putc(out, '.');
  }
  buf_puts(out, p->name);
  if (p->index != SIZE_MAX) buf_printf(out, "[%zu]", p->index);
}

static int refuse(struct err *e, const struct path *path, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int refuse(struct err *e, const struct path *path, const char *fmt, ...) {
  struct buf text = BUF_INIT;
  put_path(&text, path);
  buf_putc(&text, ' ');
  va_list ap;
  va_start(ap, fmt);
  buf_vprintf(&text, fmt, ap);
  va_end(ap);
  int rc = err_set(e, -EPROTO, "%s", buf_text(&text));
  buf_finish(&text);
  return rc;
}

static const char *kind_of(const json_t *v) {
  switch (json_typeof(v)) {
  case JSON_OBJECT: return "an object";
  case JSON_ARRAY: return "a list";
  case JSON_STRING: return "a string";
  case JSON_INTEGER: return "an integer";
  case JSON_REAL: return "a real number";
  case JSON_TRUE:
  case JSON_FALSE: return "true or false";
  case JSON_NULL: return "null";
  }
  return "something else";
}

static int get_object(const struct path *path, const struct object *o, const json_t *json, void *at, struct err *e);

static int get_field(const struct path *path, const struct field *f, const json_t *v, void *at, struct err *e) {
  void *p = member(at, f->offset);
  if (!v && f->required) return refuse(e, path, "is missing");
  if (!v && f->type != FIELD_OBJ) return 0;
  bool text = f->type == FIELD_STR || f->type == FIELD_HEX || f->type == FIELD_ENUM;
  if (text && !json_is_string(v)) return refuse(e, path, "must be a string, not %s", kind_of(v));
  const char *s = text ? json_string_value(v) : NULL;
  switch (f->type) {
  case FIELD_INT: {
    if (!json_is_integer(v)) return refuse(e, path, "must be an integer, not %s", kind_of(v));
    int64_t i = json_integer_value(v);
    if (i < f->min || i > f->max)
      return refuse(e, path, "is %" PRId64 ", which is not within %" PRId64 " to %" PRId64, i, f->min, f->max);
    *(int64_t *)p = i;
    return 0;
  }
  case FIELD_STR:
  case FIELD_HEX: {
    size_t n = json_string_length(v);
    if (n > (size_t)f->max) return refuse(e, path, "is %zu bytes long, more than the %" PRId64 " allowed", n, f->max);
    if (n == 0 && f->required) return refuse(e, path, "is empty");
    if (f->type == FIELD_HEX && strspn(s, "0123456789abcdef-") != n)
      return refuse(e, path, "holds other characters than 0-9, a-f and -");
    *(const char **)p = s;
    return 0;
  }
  case FIELD_ENUM: {
    for (int i = 0; i < f->words->count; i++)
      if (strcmp(s, f->words->word[i]) == 0) return memcpy(p, &i, sizeof(i)), 0;
    if (f->words->other >= 0) return memcpy(p, &f->words->other, sizeof(int)), 0;
    struct buf shown = BUF_INIT;
    buf_put_escaped(&shown, s, json_string_length(v), SHOWN_MAX);
    int rc = refuse(e, path, "is \"%s\", a word that this version does not know", buf_text(&shown));
    buf_finish(&shown);
    return rc;
  }
  case FIELD_OBJ: return get_object(path, f->object, v, p, e);
  case FIELD_LIST: {
    if (!json_is_array(v)) return refuse(e, path, "must be a list, not %s", kind_of(v));
    size_t n = json_array_size(v);
    if (n > (size_t)f->max) return refuse(e, path, "has %zu items, more than the %" PRId64 " allowed", n, f->max);
    if (n == 0) return 0;
    char *items = xcalloc(n, f->object->size);
    memcpy(p, &items, sizeof(items));
    *(size_t *)member(at, f->n_offset) = n;
    for (size_t i = 0; i < n; i++) object_init(f->object, items + i * f->object->size);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
      struct path here = {path->up, path->name, i};
      rc = get_object(&here, f->object, json_array_get(v, i), items + i * f->object->size, e);
    }
    return rc;
  }
  case FIELD_NUM:
    if (json_is_null(v)) return 0;
    if (!json_is_number(v)) return refuse(e, path, "must be a number, not %s", kind_of(v));
    *(double *)p = json_number_value(v);
    return 0;
  case FIELD_BOOL:
    if (!json_is_boolean(v)) return refuse(e, path, "must be true or false, not %s", kind_of(v));
    *(bool *)p = json_is_true(v);
    return 0;
  }
  return 0;
}

static int get_object(const struct path *path, const struct object *o, const json_t *json, void *at, struct err *e) {
  if (json && !json_is_object(json)) return refuse(e, path, "must be an object, not %s", kind_of(json));
  for (const struct field *f = o->fields; f->name; f++) {
    struct path here = {path, f->name, SIZE_MAX};
    int rc = get_field(&here, f, json_object_get(json, f->name), at, e);
    if (rc) return rc;
  }
  return 0;
}

int object_get(const char *name, const struct object *o, const json_t *json, void *at, struct err *e) {
  struct path here = {NULL, name, SIZE_MAX};
  object_init(o, at);
  return get_object(&here, o, json, at, e);
}

void object_free_lists(const struct object *o, void *at) {
  for (const struct field *f = o->fields; f->name; f++) {
    if (f->type == FIELD_OBJ) object_free_lists(f->object, member(at, f->offset));
    if (f->type != FIELD_LIST) continue;
    char *items;
    memcpy(&items, member(at, f->offset), sizeof(items));
    size_t *n = member(at, f->n_offset);
    for (size_t i = 0; i < *n; i++) object_free_lists(f->object, items + i * f->object->size);
    free(items);
    memset(member(at, f->offset), 0, sizeof(items));
    *n = 0;
  }
}
