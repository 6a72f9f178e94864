/* SPDX-License-Identifier: Apache-2.0 */
/* msg: every rule of every field of every message, broken one at a time. The cases come from the tables: a walk goes
 * down a valid message's JSON, spoils one field, and asks for a refusal that names that field by its path. */

#include "proto/msg.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"
#include "tests/rig/random_msg.h"
#include "tests/rig/unit.h"

static enum msg_type type; /* the message at hand */
static json_t *whole;      /* its JSON, all fields there */
static int n_cases;

static int decode_text(const char *json, size_t len, struct err *e) {
  char *exact = xmemdup(json, len);
  struct frame f = {.type = (uint16_t)type, .json = exact, .json_len = len};
  struct msg m;
  int rc = msg_decode(&f, msg_direction(type), &m, e);
  if (rc == 0) msg_finish(&m);
  free(exact);
  return rc;
}

static int decode_whole(struct err *e) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  json_print(&b, whole);
  int rc = decode_text(b.data, b.len, e);
  return rc;
}

/* object[name] is spoilt (NULL: absent): refused with "<path> ...". ok: it must be taken. Then it is as before. */
static void with(json_t *object, const char *name, json_t *spoilt, const char *path, bool ok) {
  json_t *was = json_incref(json_object_get(object, name));
  if (spoilt)
    json_object_set_new(object, name, spoilt);
  else
    json_object_del(object, name);
  struct err e = ERR_INIT;
  int rc = decode_whole(&e);
  size_t n = strlen(path);
  if (ok && rc != 0) fail_msg("%s: refused: %s", path, e.text);
  if (!ok && rc != -EPROTO) fail_msg("%s: %d instead of -EPROTO", path, rc);
  if (!ok && (strncmp(e.text, path, n) != 0 || e.text[n] != ' ')) fail_msg("%s: not named in: %s", path, e.text);
  json_object_del(object, name);
  if (was) json_object_set_new(object, name, was);
  n_cases++;
}

static const char *path_put(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static const char *path_put(struct buf *b, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  buf_clear(b);
  buf_vprintf(b, fmt, ap);
  va_end(ap);
  return buf_text(b);
}

static json_t *repeated(size_t n, const char *s) {
  SCOPED(buf_finish) struct buf text = BUF_INIT;
  for (size_t i = 0; i < n; i++) buf_puts(&text, s);
  json_t *v = json_stringn(buf_text(&text), text.len);
  return v;
}

static void break_type(json_t *object, const struct field *f, const char *path) {
  static const struct {
    const char *json;
    unsigned fits; /* bits of enum field_type */
  } values[] = {
      {"7", 1u << FIELD_NUM | 1u << FIELD_INT},
      {"1.5", 1u << FIELD_NUM},
      {"1e3", 1u << FIELD_NUM},
      {"\"?\"", 0},
      {"\"a\"", 1u << FIELD_STR | 1u << FIELD_HEX},
      {"true", 1u << FIELD_BOOL},
      {"null", 1u << FIELD_NUM},
      {"{}", 1u << FIELD_OBJ},
      {"[]", 1u << FIELD_LIST},
      {"[7]", 0},
      {"[[]]", 0},
  };
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
    if (values[i].fits & 1u << f->type) continue;
    if (f->type == FIELD_STR && values[i].json[0] == '"') continue;
    bool item = f->type == FIELD_LIST && values[i].json[0] == '['; /* the item is what is named */
    bool word = f->type == FIELD_ENUM && f->words->other >= 0 && values[i].json[0] == '"'; /* of a later release */
    SCOPED(buf_finish) struct buf named = BUF_INIT;
    with(object, f->name, json_loads(values[i].json, JSON_DECODE_ANY, NULL),
         path_put(&named, "%s%s", path, item ? "[0]" : ""), word);
  }
}

static void break_int(json_t *object, const struct field *f, const char *path) {
  with(object, f->name, json_integer(f->min), path, true);
  with(object, f->name, json_integer(f->max), path, true);
  if (f->min > INT64_MIN) with(object, f->name, json_integer(f->min - 1), path, false);
  if (f->max < INT64_MAX) with(object, f->name, json_integer(f->max + 1), path, false);
  with(object, f->name, json_integer(INT64_MIN), path, false);
}

static void break_str(json_t *object, const struct field *f, const char *path) {
  size_t max = (size_t)f->max;
  with(object, f->name, repeated(max, "a"), path, true);
  with(object, f->name, repeated(max + 1, "a"), path, false);
  with(object, f->name, json_string(""), path, !f->required);
  bool text = f->type == FIELD_STR;
  with(object, f->name, repeated(max / 2, "\xc3\xa9"), path, text);
  if (text) with(object, f->name, repeated(max / 2 + 1, "\xc3\xa9"), path, false); /* bytes count, not characters */
  static const char *const not_hex[] = {"g", "A", "/", " ", "a\n", "\""};
  for (size_t i = 0; i < 6; i++)
    with(object, f->name, json_string(not_hex[i]), path, text && strlen(not_hex[i]) <= max);
}

static void walk(json_t *object, const struct object *o, const char *path);

static void break_list(json_t *object, const struct field *f, const char *path) {
  json_t *list = json_object_get(object, f->name), *long_list = json_array();
  for (int64_t i = 0; i < f->max; i++) json_array_append(long_list, json_array_get(list, 0));
  with(object, f->name, json_incref(long_list), path, true);
  json_array_append(long_list, json_array_get(list, 0));
  with(object, f->name, long_list, path, false);
  with(object, f->name, json_array(), path, true);
  SCOPED(buf_finish) struct buf inner = BUF_INIT;
  walk(json_array_get(list, 1), f->object, path_put(&inner, "%s[1]", path));
}

static void walk(json_t *object, const struct object *o, const char *path) {
  for (const struct field *f = o->fields; f->name; f++) {
    SCOPED(buf_finish) struct buf text = BUF_INIT;
    const char *here = path_put(&text, "%s.%s", path, f->name);
    if (f->required || f->type != FIELD_OBJ) with(object, f->name, NULL, here, !f->required);
    break_type(object, f, here);
    switch (f->type) {
    case FIELD_INT: break_int(object, f, here); break;
    case FIELD_STR:
    case FIELD_HEX: break_str(object, f, here); break;
    case FIELD_OBJ: walk(json_object_get(object, f->name), f->object, here); break;
    case FIELD_LIST: break_list(object, f, here); break;
    case FIELD_NUM:
    case FIELD_BOOL:
    case FIELD_ENUM: break;
    }
  }
}

/* A valid message's JSON with all fields there, lists with two items. */
static json_t *full(enum msg_type t) {
  struct random_msg r;
  struct report reports[2];
  struct absent absent[2];
  struct turned_away refusals[2];
  struct store_caller callers[2];
  struct store_owner owners[2];
  struct laggard laggards[2];
  struct collective collectives[2];
  struct rank_pace paces[2];
  random_msg_init(&r, t, 42);
  for (int i = 0; i < 2; i++) {
    object_init(&object_report, &reports[i]);
    reports[i].seq = reports[i].round = 1;
    object_init(&object_absent, &absent[i]);
    object_init(&object_turned_away, &refusals[i]);
    object_init(&object_store_caller, &callers[i]);
    object_init(&object_store_owner, &owners[i]);
    object_init(&object_laggard, &laggards[i]);
    callers[i].id = callers[i].port = owners[i].id = 1;
    callers[i].addr = "10.0.0.2";
    object_init(&object_rank_pace, &paces[i]);
    paces[i].group = 1;
    object_init(&object_collective, &collectives[i]);
    collectives[i].group = "gloo 0 default_pg";
  }
  if (t == MSG_HELLO) {
    r.m.hello.reports = reports;
    r.m.hello.n_reports = 2;
  }
  if (t == MSG_WAITING) {
    r.m.waiting.absent = absent;
    r.m.waiting.refusals = refusals;
    r.m.waiting.n_absent = r.m.waiting.n_refusals = 2;
  }
  if (t == MSG_PROGRESS) {
    r.m.progress.laggards = laggards;
    r.m.progress.n_laggards = 2;
  }
  if (t == MSG_ASK_OWNERS || t == MSG_FIND_OWNERS) {
    struct store_caller **at = t == MSG_ASK_OWNERS ? &r.m.ask_owners.callers : &r.m.find_owners.callers;
    *at = callers;
    *(t == MSG_ASK_OWNERS ? &r.m.ask_owners.n_callers : &r.m.find_owners.n_callers) = 2;
  }
  if (t == MSG_FOUND_OWNERS || t == MSG_OWNERS) {
    struct store_owner **at = t == MSG_OWNERS ? &r.m.owners.owners : &r.m.found_owners.owners;
    *at = owners;
    *(t == MSG_OWNERS ? &r.m.owners.n_owners : &r.m.found_owners.n_owners) = 2;
  }
  if (t == MSG_EVIDENCE) {
    r.m.evidence.collectives = collectives;
    r.m.evidence.n_collectives = 2;
  }
  if (t == MSG_PACE) {
    r.m.rank_paces.ranks = paces;
    r.m.rank_paces.n_ranks = 2;
  }
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  bool any = object_put(&b, msg_objects[t], &r.m.hello, false);
  json_t *json = any ? json_parse_object(b.data, b.len, NULL) : json_object();
  assert_non_null(json);
  random_msg_finish(&r);
  return json;
}

UNIT_TEST(test_every_rule_of_every_field) {
  for (int t = 1; t < MSG_COUNT; t++) {
    type = (enum msg_type)t;
    whole = full(type);
    struct err e = ERR_INIT;
    if (decode_whole(&e) != 0) fail_msg("%s", e.text);
    walk(whole, msg_objects[t], msg_name(type));
    json_decref(whole);
  }
  assert_true(n_cases > 1500);
}

/* An absent object is an empty one: what is required in it is missing. */
UNIT_TEST(test_absent_object) {
  type = MSG_HELLO;
  whole = full(type);
  with(whole, "settings", NULL, "HELLO.settings.min_nodes", false);
  json_decref(whole);
  type = MSG_REPORT;
  whole = full(type);
  with(whole, "report", NULL, "REPORT.report.seq", false);
  json_decref(whole);
  type = MSG_STOP;
  whole = full(type);
  with(whole, "verdict", NULL, "", true);
  json_decref(whole);
}

UNIT_TEST(test_unknown_keys_are_ignored) {
  for (int t = 1; t < MSG_COUNT; t++) {
    type = (enum msg_type)t;
    whole = full(type);
    with(whole, "from_the_future", json_pack("{s:[i,n]}", "a", 1), "", true);
    json_decref(whole);
  }
}

static const char *refusal(enum msg_type t, const char *json, size_t len) {
  static struct err e;
  e = (struct err)ERR_INIT;
  type = t;
  assert_int_equal(decode_text(json, len, &e), -EPROTO);
  for (const char *p = e.text; *p; p++) assert_true((unsigned char)*p >= 0x20 && (unsigned char)*p < 0x7f);
  return e.text;
}

static void check(const char *json, const char *part) {
  const char *text = refusal(MSG_BYE, json, strlen(json));
  if (strncmp(text, "BYE", 3) != 0 || !strstr(text, part)) fail_msg("\"%s\" is not in: %s", part, text);
}

UNIT_TEST(test_json_that_is_none) {
  check("{\"text\":\"a\",\"text\":\"b\"}", "duplicate");
  check("{\"x\":{\"y\":1,\"y\":2}}", "duplicate"); /* where nobody looks, too */
  check("[]", "object");
  check("{}{}", "JSON");
  check("{} x", "JSON");
  check("{\"text\":\"\xff\"}", "JSON");
  check("{\"text\":\"\xc0\xaf\"}", "JSON");
  check("{\"text\":\"\xed\xa0\x80\"}", "JSON");
  check("{\"text\":\"\\u0000\"}", "JSON");
  check("{\"text\\u0000x\":1}", "JSON");
  check("{\"text\":\"\\ud800\"}", "JSON");
  check("{\"x\":1e999}", "JSON");
  check("{\"x\":99999999999999999999}", "JSON");
  check("{'text':1}", "JSON");
  check("{\"text\":\x1b[31m}", "JSON"); /* shown escaped, see refusal() */
  assert_non_null(strstr(refusal(MSG_BYE, "{\"text\":\"a\0b\"}", 14), "JSON"));
  assert_non_null(strstr(refusal(MSG_BYE, "\0", 1), "JSON"));
  assert_non_null(strstr(refusal(MSG_BYE, "{}\0", 3), "JSON"));
}

UNIT_TEST(test_deep_nesting) {
  enum { DEPTH = 30000 };
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_puts(&b, "{\"x\":");
  for (int i = 0; i < DEPTH; i++) buf_putc(&b, '[');
  for (int i = 0; i < DEPTH; i++) buf_putc(&b, ']');
  buf_putc(&b, '}');
  refusal(MSG_BYE, b.data, b.len);
  buf_clear(&b);
  for (int i = 0; i < DEPTH; i++) buf_puts(&b, "{\"x\":");
  refusal(MSG_BYE, b.data, b.len);
}

UNIT_TEST(test_a_word_is_shown_escaped_and_cut) {
  static const char head[] = "{\"incarnation\":\"a\",\"outcome\":\"", tail[] = "\"}";
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_printf(&b, "%s\\u001b[31m\\n%s", head, tail);
  assert_string_equal(refusal(MSG_END, b.data, b.len),
                      "END.outcome is \"\\x1b[31m\\n\", a word that this version does not know");
  buf_clear(&b);
  buf_puts(&b, head);
  for (int i = 0; i < 5000; i++) buf_putc(&b, 'x');
  buf_puts(&b, tail);
  assert_true(strlen(refusal(MSG_END, b.data, b.len)) < 120);
}
