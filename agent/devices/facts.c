/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of facts, and their lines.
 *
 * The lines come from a process with a vendor's library inside, so they are not trusted: a name has the letters of a
 * name, texts are cut, and numbers are bounded. A line that breaks a rule is refused as a whole. */

#include "agent/devices/facts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"

static const char *const parts[FACTS_PARTS] = {"host", "ports", "gpus"};

/* Lists. ----------------------------------------------------------------------------------------------------------- */

/* Cut between two characters. */
static char *copy_text(const char *text, size_t max) {
  size_t n = strnlen(text, max + 1);
  if (n > max)
    for (n = max; n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80;) n--;
  return xstrndup(text, n);
}

static void append(struct fact_list *f, const char *at, const char *name, int64_t value, const char *text) {
  if (f->n == FACTS_MAX) return;
  f->v = xgrow(f->v, f->n, &f->cap, sizeof *f->v);
  f->v[f->n++] = (struct fact){.name = copy_text(name, FACT_NAME_MAX),
                               .at = copy_text(at, FACT_AT_MAX),
                               .value = value,
                               .text = copy_text(text, REASON_MAX)};
}

void facts_number(struct fact_list *f, const char *at, const char *name, int64_t value) {
  append(f, at, name, value, "");
}

void facts_text(struct fact_list *f, const char *at, const char *name, const char *text) {
  if (*text) append(f, at, name, 0, text);
}

void facts_add(struct fact_list *to, const struct fact_list *from) {
  for (size_t i = 0; i < from->n; i++) append(to, from->v[i].at, from->v[i].name, from->v[i].value, from->v[i].text);
}

static bool is_of(const struct fact *a, const char *at, const char *name) {
  return strcmp(a->name, name) == 0 && strcmp(a->at, at) == 0;
}

bool facts_equal(const struct fact_list *a, const struct fact_list *b) {
  bool equal = a->n == b->n;
  for (size_t i = 0; equal && i < a->n; i++)
    equal = is_of(&a->v[i], b->v[i].at, b->v[i].name) && a->v[i].value == b->v[i].value &&
            strcmp(a->v[i].text, b->v[i].text) == 0;
  return equal;
}

const struct fact *facts_find(const struct fact_list *f, const char *at, const char *name) {
  for (size_t i = 0; i < f->n; i++)
    if (is_of(&f->v[i], at, name)) return &f->v[i];
  return NULL;
}

void facts_finish(struct fact_list *f) {
  for (size_t i = 0; i < f->n; i++) {
    free((char *)(uintptr_t)f->v[i].name);
    free((char *)(uintptr_t)f->v[i].at);
    free((char *)(uintptr_t)f->v[i].text);
  }
  free(f->v);
  *f = (struct fact_list){0};
}

int64_t facts_coarse(int64_t value) {
  int64_t step = 1;
  while (value / step >= 8) step *= 2;
  return value / step * step;
}

/* Lines. ----------------------------------------------------------------------------------------------------------- */

void facts_print(const struct facts_line *line, struct buf *out) {
  json_t *o = json_object();
  if (line->part == FACTS_PARTS) {
    const struct gpu_xid *x = &line->xid;
    json_object_set_new(o, "xid", json_integer(x->xid));
    json_object_set_new(o, "gpu", json_integer(x->gpu));
    json_object_set_new(o, "uuid", json_text(x->uuid));
    json_object_set_new(o, "pci", json_text(x->pci));
  } else {
    json_t *list = json_array();
    json_object_set_new(o, "part", json_string(parts[line->part]));
    json_object_set_new(o, "facts", list);
    for (size_t i = 0; i < line->facts.n; i++) {
      const struct fact *f = &line->facts.v[i];
      json_t *one = json_object();
      json_array_append_new(list, one);
      json_object_set_new(one, "name", json_string(f->name));
      if (f->at[0]) json_object_set_new(one, "at", json_text(f->at));
      json_object_set_new(one, f->text[0] ? "text" : "value", f->text[0] ? json_text(f->text) : json_integer(f->value));
    }
    if (line->missing[0]) json_object_set_new(o, "missing", json_text(line->missing));
  }
  json_print(out, o);
  buf_putc(out, '\n');
  json_decref(o);
}

static int read_fact(const json_t *o, struct fact_list *to, struct err *e) {
  const char *name = json_string_value(json_object_get(o, "name")), *at = json_string_value(json_object_get(o, "at"));
  const char *text = json_string_value(json_object_get(o, "text"));
  const json_t *value = json_object_get(o, "value");
  static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
  if (!name || !*name || strlen(name) > FACT_NAME_MAX || name[strspn(name, letters)])
    return err_set(e, -EINVAL, "a fact has no name, or a bad one");
  if (at && strlen(at) > FACT_AT_MAX) return err_set(e, -EINVAL, "the place of %s is too long", name);
  if (!text == !json_is_integer(value) || json_integer_value(value) == INT64_MIN)
    return err_set(e, -EINVAL, "%s has neither a number nor a text, or both", name);
  append(to, at ? at : "", name, json_integer_value(value), text ? text : "");
  return 0;
}

static void read_text(const json_t *o, const char *key, char *out, size_t size) {
  const char *text = json_string_value(json_object_get(o, key));
  char *cut = copy_text(text ? text : "", size - 1);
  memcpy(out, cut, strlen(cut) + 1);
  free(cut);
}

static int read_xid(const json_t *o, struct gpu_xid *x, struct err *e) {
  json_int_t xid = json_integer_value(json_object_get(o, "xid")), gpu = json_integer_value(json_object_get(o, "gpu"));
  if (xid < 1 || xid > XID_MAX) return err_set(e, -EINVAL, "an XID is from 1 to %d", XID_MAX);
  if (gpu < 0 || gpu >= GPUS_MAX) return err_set(e, -EINVAL, "a GPU's number is from 0 to %d", GPUS_MAX - 1);
  x->xid = xid;
  x->gpu = (int)gpu;
  read_text(o, "uuid", x->uuid, sizeof x->uuid);
  read_text(o, "pci", x->pci, sizeof x->pci);
  return 0;
}

int facts_parse(const char *text, size_t len, struct facts_line *line, struct err *e) {
  *line = (struct facts_line){.part = FACTS_PARTS};
  if (len > FACTS_LINE_MAX) return err_set(e, -EINVAL, "a line of %zu bytes is too long", len);
  json_t *o = json_parse_object(text, len, e);
  if (!o) return -EINVAL;
  const char *part = json_string_value(json_object_get(o, "part"));
  const json_t *list = json_object_get(o, "facts");
  int rc = 0;
  if (!part) {
    rc = read_xid(o, &line->xid, e);
  } else {
    for (line->part = FACTS_HOST; line->part < FACTS_PARTS && strcmp(part, parts[line->part]) != 0;) line->part++;
    if (line->part == FACTS_PARTS || !json_is_array(list) || json_array_size(list) > FACTS_MAX)
      rc = err_set(e, -EINVAL, "it has an unknown part, no list of facts, or one that is too long");
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++)
      rc = read_fact(json_array_get(list, i), &line->facts, e);
    read_text(o, "missing", line->missing, sizeof line->missing);
  }
  if (rc) facts_finish(&line->facts);
  json_decref(o);
  return rc;
}
