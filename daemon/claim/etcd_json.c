/* SPDX-License-Identifier: Apache-2.0 */
/* A claim is one transaction: if neither its key nor the end of its prefix exists, put it, else read both. The end is
 * one as well: put the end, delete the keys on both sides of it. etcd carries transactions out one after another on a
 * majority of its members, so one alone creates the key, whichever member is asked.
 *
 * A run is a key below JOB/run/: put it, if no key is there and its incarnation has not ended. The transaction of the end
 * deletes it. So one is there at most, and its incarnation has not ended.
 *
 * Bytes are base64 there, and 64-bit numbers are strings. A field with the value false, 0 or "" is left out. An error
 * is an object with "error" or "message", from a proxy perhaps any text. */

#include "daemon/claim/etcd_json.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include "common/json.h"
#include "daemon/claim/name.h"

enum { BASE64 = sodium_base64_VARIANT_ORIGINAL, SHOWN_MAX = 200, HTTP_OK = 200 };

static json_t *base64(const char *data, size_t len) {
  struct buf text = BUF_INIT;
  size_t size = sodium_base64_ENCODED_LEN(len, BASE64);
  sodium_bin2base64(buf_reserve(&text, size), size, (const unsigned char *)data, len, BASE64);
  json_t *v = json_string(text.data);
  buf_finish(&text);
  return v;
}

/* The key of name and tail. */
static json_t *key_of(const char *name, const char *tail, size_t tail_len) {
  struct buf key = BUF_INIT;
  buf_puts(&key, ETCD_KEY_PREFIX);
  buf_puts(&key, name);
  buf_append(&key, tail, tail_len);
  json_t *v = base64(key.data, key.len);
  buf_finish(&key);
  return v;
}

static json_t *key(const char *name) {
  return key_of(name, "", 0);
}

static json_t *never_created(const char *name) {
  return json_pack("{s:o,s:s,s:s,s:s}", "key", key(name), "target", "CREATE", "result", "EQUAL", "create_revision",
                   "0");
}

static json_t *put_key(const char *name, const char *content) {
  return json_pack("{s:{s:o,s:o}}", "request_put", "key", key(name), "value", base64(content, strlen(content)));
}

static json_t *read_key(const char *name) {
  return json_pack("{s:{s:o}}", "request_range", "key", key(name));
}

static json_t *delete_keys(json_t *from, json_t *to) {
  return json_pack("{s:{s:o,s:o}}", "request_delete_range", "key", from, "range_end", to);
}

/* A prefix ends with '/', and '0' follows that. */
static json_t *key_behind(const char *prefix) {
  char behind[CLAIM_RUN_NAME_MAX + 1];
  snprintf(behind, sizeof behind, "%s", prefix);
  behind[strlen(behind) - 1]++;
  return key(behind);
}

void etcd_put_create(struct buf *out, const char *name, const char *content) {
  char end[CLAIM_END_NAME_MAX + 1];
  claim_end_name(name, end);
  json_put(out, json_pack("{s:[o,o],s:[o],s:[o,o]}", "compare", never_created(name), never_created(end), "success",
                          put_key(name, content), "failure", read_key(name), read_key(end)));
}

void etcd_put_run(struct buf *out, const char *prefix, const char *content) {
  char end[CLAIM_END_NAME_MAX + 1], run[CLAIM_RUN_NAME_MAX + 1], runs[CLAIM_RUN_NAME_MAX + 1];
  claim_end_name(prefix, end);
  size_t common = claim_run_name(prefix, run);
  snprintf(runs, sizeof runs, "%.*s", (int)common, run);
  json_t *none = never_created(runs);
  json_object_set_new(none, "range_end", key_behind(runs));
  json_put(out, json_pack("{s:[o,o],s:[o],s:[{s:{s:o,s:o}},o]}", "compare", none, never_created(end), "success",
                          put_key(run, content), "failure", "request_range", "key", key(runs), "range_end",
                          key_behind(runs), read_key(end)));
}

/* A range has its first key and lacks its last one. */
void etcd_put_end(struct buf *out, const char *prefix, const char *content) {
  char end[CLAIM_END_NAME_MAX + 1], run[CLAIM_RUN_NAME_MAX + 1];
  claim_end_name(prefix, end);
  claim_run_name(prefix, run);
  json_put(out,
           json_pack("{s:[o,o,o,o]}", "success", put_key(end, content), delete_keys(key(prefix), key(end)),
                     delete_keys(key_of(end, "", 1), key_behind(prefix)), delete_keys(key(run), key_of(run, "", 1))));
}

/* NULL, and a sentence: it is no answer, or an error. */
static json_t *read_object(long status, const char *body, size_t len, struct err *e) {
  struct buf shown = BUF_INIT;
  json_t *o = len <= ETCD_ANSWER_MAX ? json_parse_object(body, len, NULL) : NULL;
  const char *text = json_string_value(json_object_get(o, "message"));
  if (!text) text = json_string_value(json_object_get(o, "error"));
  if (status == HTTP_OK && o && !text) return o;
  if (text)
    buf_put_plain(&shown, text, strlen(text), SHOWN_MAX);
  else
    buf_put_plain(&shown, body, len, SHOWN_MAX);
  if (status == HTTP_OK && !text)
    err_set(e, -EBADMSG, "what it answers is not from etcd's v3 API: %s", buf_text(&shown));
  else
    err_set(e, -EIO, "it answers HTTP %ld: %s", status, shown.len ? buf_text(&shown) : "nothing");
  buf_finish(&shown);
  json_decref(o);
  return NULL;
}

static bool read_base64(const json_t *v, struct buf *out) {
  const char *text = json_string_value(v);
  size_t len = json_string_length(v), n = 0;
  if (!text) return false;
  unsigned char *to = buf_reserve(out, len);
  if (sodium_base642bin(to, len, text, len, NULL, &n, NULL, BASE64) < 0) return false;
  buf_commit(out, n);
  return true;
}

/* The content of a key, in answer i of a transaction that has put nothing. False: it does not exist. */
static bool read_content(const json_t *o, size_t i, struct buf *out) {
  const json_t *response = json_array_get(json_object_get(o, "responses"), i);
  const json_t *kv = json_array_get(json_object_get(json_object_get(response, "response_range"), "kvs"), 0);
  const json_t *value = json_object_get(kv, "value");
  return kv && (!value || read_base64(value, out)); /* an empty value is left out */
}

int etcd_read_create(long status, const char *body, size_t len, const char *content, enum claim_answer *answer,
                     struct buf *text, struct err *e) {
  json_t *o = read_object(status, body, len, e);
  if (!o) return e->code;
  bool made = json_is_true(json_object_get(o, "succeeded"));
  bool ended = !made && read_content(o, 1, text);
  bool ok = json_is_object(json_object_get(o, "header")) && (made || ended || read_content(o, 0, text));
  json_decref(o);
  if (!ok) return err_set(e, -EBADMSG, "its answer to a transaction has neither success nor a value");
  bool ours = made || ended ? made : (text->len == strlen(content) && memcmp(buf_text(text), content, text->len) == 0);
  *answer = ours ? CLAIM_WON : CLAIM_TAKEN;
  if (ours) buf_clear(text);
  return 0;
}

int etcd_read_end(long status, const char *body, size_t len, struct err *e) {
  json_t *o = read_object(status, body, len, e);
  if (!o) return e->code;
  bool ok = json_is_object(json_object_get(o, "header")) && json_is_true(json_object_get(o, "succeeded"));
  json_decref(o);
  return ok ? 0 : err_set(e, -EBADMSG, "its answer to a transaction has no header");
}
