/* SPDX-License-Identifier: Apache-2.0 */
#include "common/events/event.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include "common/json.h"
#include "common/printable.h"

enum field_kind { FIELD_STR, FIELD_INT, FIELD_NUM, FIELD_BOOL };

static const struct {
  const char *key;
  enum field_kind kind;
} fields[EVENT_FIELD_COUNT] = {
#define X(id, key, kind, meaning) {key, FIELD_##kind},
    EVENT_FIELD_LIST(X)
#undef X
};

static const struct {
  const char *name, *source;
  uint64_t has;
} events[EVENT_NAME_COUNT] = {
#define X(id, name, source, when, has) {name, #source, EVENT_HAS_EVERY | (has)},
    EVENT_LIST(X)
#undef X
};

const char *event_name(enum event_name n) {
  return n < EVENT_NAME_COUNT ? events[n].name : "?";
}

int event_find(const char *name) {
  for (int i = 0; i < EVENT_NAME_COUNT; i++)
    if (!strcmp(events[i].name, name)) return i;
  return -1;
}

/* Filling. --------------------------------------------------------------------------------------------------------- */

void event_init(struct event *e, enum event_name n, uint64_t wall_ms) {
  e->name = n;
  e->wall_ms = wall_ms;
  e->set = 0;
}

static struct event_value *set(struct event *e, enum event_field f, enum field_kind kind) {
  assert(f < EVENT_FIELD_COUNT && fields[f].kind == kind);
  assert(events[e->name].has & (1ull << f));
  e->set |= 1ull << f;
  return &e->v[f];
}

void event_text(struct event *e, enum event_field f, const char *text) {
  if (text && text[0]) set(e, f, FIELD_STR)->text = text;
}

void event_int(struct event *e, enum event_field f, int64_t n) {
  set(e, f, FIELD_INT)->number = n;
}

void event_rank(struct event *e, enum event_field f, int64_t n) {
  if (n >= 0) event_int(e, f, n);
}

void event_real(struct event *e, enum event_field f, double real) {
  if (isfinite(real)) set(e, f, FIELD_NUM)->real = real;
}

void event_bool(struct event *e, enum event_field f, bool b) {
  set(e, f, FIELD_BOOL)->number = b;
}

/* The line. -------------------------------------------------------------------------------------------------------- */

static json_t *cut_text(const char *text) {
  char cut[EVENT_TEXT_MAX + 1];
  size_t n = strlen(text);
  if (n <= EVENT_TEXT_MAX) return json_text(text);
  n = EVENT_TEXT_MAX;
  while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
  memcpy(cut, text, n);
  cut[n] = '\0';
  return json_text(cut);
}

static json_t *value_of(enum field_kind kind, const struct event_value *v) {
  switch (kind) {
  case FIELD_STR: return cut_text(v->text);
  case FIELD_INT: return json_integer(v->number);
  case FIELD_NUM: return json_real(v->real);
  case FIELD_BOOL: return json_boolean(v->number);
  }
  return json_null();
}

void event_line(const struct event *e, struct buf *out) {
  json_t *metadata = json_object();
  for (int f = 0; f < EVENT_FIELD_COUNT; f++)
    if (e->set & (1ull << f)) json_object_set_new(metadata, fields[f].key, value_of(fields[f].kind, &e->v[f]));
  json_t *line = json_object();
  json_object_set_new(line, "name", json_string(events[e->name].name));
  json_object_set_new(line, "source", json_string(events[e->name].source));
  json_object_set_new(line, "timestamp", json_integer((json_int_t)e->wall_ms));
  json_object_set_new(line, "metadata", metadata);
  json_put(out, line);
}

bool event_line_is_sound(const char *line, size_t n) {
  if (n < 2 || n > EVENT_LINE_MAX || line[0] != '{' || line[n - 1] != '}') return false;
  for (size_t i = 0, used; i < n; i += used) {
    uint32_t c;
    used = utf8_char((const unsigned char *)line + i, n - i, &c);
    if (!used || !is_printable(c)) return false;
  }
  struct err e = ERR_INIT;
  json_t *object = json_parse_object(line, n, &e);
  json_decref(object);
  return object != NULL;
}

/* The filter. ------------------------------------------------------------------------------------------------------ */

/* "rdzv.round.failed" by itself, by "failed", and by "rdzv.round.*". */
static bool matches(const char *name, const char *word, size_t n) {
  if (n == 3 && !memcmp(word, "all", 3)) return true;
  if (word[n - 1] == '*') return strlen(name) >= n - 1 && !memcmp(name, word, n - 1);
  const char *last = strrchr(name, '.') + 1;
  return (strlen(name) == n && !memcmp(name, word, n)) || (strlen(last) == n && !memcmp(last, word, n));
}

static int refuse_word(const char *word, size_t n, struct err *e) {
  char shown[TEXT_SHOWN];
  return err_set(
      e, -EINVAL,
      "\"%s\" names no event: give names such as rdzv.job.ended, their last words such as ended, beginnings such as "
      "rdzv.node.*, or all",
      text_shown(shown, word, n));
}

int event_filter_read(struct event_filter *f, const char *text, struct err *e) {
  memset(f, 0, sizeof *f);
  for (const char *at = text;; at++) {
    size_t n = strcspn(at, ",");
    bool any = false;
    for (int i = 0; n && i < EVENT_NAME_COUNT; i++) {
      if (!matches(events[i].name, at, n)) continue;
      f->in[i] = any = true;
    }
    if (!any) return refuse_word(at, n, e);
    at += n;
    if (!*at) return 0;
  }
}
