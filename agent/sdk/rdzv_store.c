/* SPDX-License-Identifier: Apache-2.0 */
/* The store's calls: arguments to requests, and answers to results.
 *
 * A call puts the client's "/" in front of each key, as PyTorch's clients do, and checks the limits. It asks
 * (rdzv_conn.c, or rdzv_alone.c in a world of one) and copies the answer, because the next call overwrites its buffer.
 *
 * A call that may wait looks first. get sends CHECK and GET in one packet; only if the key is missing WAIT follows, and
 * then the same look again. So an existing key costs one round trip, and a key that was deleted between wait and look
 * is simply waited for again. queue_pop does the same.
 *
 * When the deadline of a wait passes, each key is checked once more, to name the missing ones. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)RDZV_KEY_MAX + 1 == C10D_KEY_MAX && (int)RDZV_VALUE_MAX == C10D_VALUE_MAX &&
                   (int)RDZV_KEYS_MAX == C10D_KEYS_MAX,
               "rdzv.h names the protocol's limits");

enum {
  SHOWN_MAX = 64, /* bytes of a key in a sentence */
  NAMED_MAX = 4,  /* keys in a sentence */
  PAUSE_MS = 5,
  LOOKED_MAX = 4096, /* keys that are looked for one by one */
};

int rdzv_ask(struct rdzv *r, const struct c10d_request *q, size_t n, struct c10d_reply *answers, uint64_t deadline) {
  const char *why = NULL;
  for (size_t i = 0; i < n; i++)
    if (c10d_check(&q[i], &why)) return rdzv_store_fail(r, -EMSGSIZE, "%s exceeds the limit of the store", why);
  return r->alone ? rdzv_alone_ask(r, q, n, answers) : rdzv_conn_ask(r, q, n, answers, deadline);
}

/* A key in a form that a sentence can show. */
static const char *show(const char *key, char out[SHOWN_MAX + 4]) {
  size_t n = strnlen(key, SHOWN_MAX);
  for (size_t i = 0; i < n; i++) out[i] = (unsigned char)key[i] < ' ' || key[i] == 127 ? '?' : key[i];
  strcpy(out + n, key[n] ? "..." : "");
  return out;
}

const char *rdzv_describe_call(const struct rdzv *r, char *out, size_t room) {
  char key[SHOWN_MAX + 4];
  if (r->key)
    snprintf(out, room, "%s \"%s\"", r->verb, show(r->key, key));
  else
    snprintf(out, room, "%s", r->verb);
  return out;
}

int rdzv_store_fail(struct rdzv *r, int code, const char *fmt, ...) {
  char what[320], call[160];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof(what), fmt, ap);
  va_end(ap);
  return rdzv_fail(r, code, "%s: %s", rdzv_describe_call(r, call, sizeof(call)), what);
}

/* Calls ------------------------------------------------------------------------------------------------------------ */

/* A call in progress, and its keys in the form of the wire. */
struct call {
  struct rdzv *r;
  const char *const *keys;
  struct slice *wire;
  size_t n;
  int timeout_ms;
  uint64_t deadline;
};

/* The bytes of all keys on the wire, or a negative code. */
static int64_t measure(struct rdzv *r, const char *const *keys, size_t n) {
  size_t bytes = 0;
  if (n > RDZV_KEYS_MAX)
    return rdzv_store_fail(r, -EMSGSIZE, "%zu keys are too many for one call, the limit is %d", n, RDZV_KEYS_MAX);
  for (size_t i = 0; i < n; i++) {
    size_t len = keys[i] ? strlen(keys[i]) : 0;
    if (!keys[i]) return rdzv_store_fail(r, -EINVAL, "a key is NULL");
    if (len > RDZV_KEY_MAX)
      return rdzv_store_fail(r, -EMSGSIZE, "a key has at most %d bytes, this one has %zu", RDZV_KEY_MAX, len);
    bytes += len + 1;
  }
  return (int64_t)bytes;
}

/* On success c->wire is set. end_call() must follow in any case. */
static int begin_call(struct call *c, struct rdzv *r, const char *verb, const char *const *keys, size_t n,
                      int timeout_ms) {
  *c = (struct call){.r = r, .keys = keys, .n = n, .timeout_ms = timeout_ms, .deadline = rdzv_deadline_in(timeout_ms)};
  r->verb = verb;
  r->key = n == 1 ? keys[0] : NULL;
  rdzv_heed_flag(r, false);
  int64_t bytes = measure(r, keys, n);
  if (bytes < 0) return (int)bytes;
  c->wire = malloc(n * sizeof(*c->wire) + (size_t)bytes + 1);
  if (!c->wire) {
    rdzv_store_fail(r, -ENOMEM, "out of memory");
    return -ENOMEM;
  }
  char *at = (char *)(c->wire + n);
  for (size_t i = 0; i < n; i++) {
    size_t len = strlen(keys[i]);
    at[0] = '/';
    memcpy(at + 1, keys[i], len);
    c->wire[i] = (struct slice){at, len + 1};
    at += len + 1;
  }
  return 0;
}

static int end_call(struct call *c, int rc) {
  free(c->wire);
  return rc;
}

static struct c10d_request on_key(const struct call *c, enum c10d_op op) {
  return (struct c10d_request){.op = op, .key = c->wire[0]};
}

static struct c10d_request on_keys(const struct call *c, enum c10d_op op) {
  return (struct c10d_request){.op = op, .count = c->n, .keys = c->wire};
}

static int ask(const struct call *c, const struct c10d_request *q, size_t n, struct c10d_reply *answers) {
  return rdzv_ask(c->r, q, n, answers, c->deadline);
}

/* A copy for the caller. */
static int hand_out(struct rdzv *r, struct slice from, char **value, size_t *size) {
  char *copy = malloc(from.len + 1);
  if (!copy) return rdzv_store_fail(r, -ENOMEM, "out of memory for %zu bytes", from.len);
  if (from.len) memcpy(copy, from.data, from.len);
  copy[from.len] = '\0';
  *value = copy;
  if (size) *size = from.len;
  return 0;
}

/* One request about one key, with a number for an answer. */
static int ask_number(struct call *c, struct c10d_request q, int64_t *number) {
  struct c10d_reply a = {0};
  int rc = ask(c, &q, 1, &a);
  if (rc == 0 && number) *number = a.number;
  return rc;
}

/* Waits ------------------------------------------------------------------------------------------------------------ */

/* Adds a key to the list of missing ones. */
static void add_missing(char *text, size_t room, size_t n, const char *key) {
  char shown[SHOWN_MAX + 4];
  size_t len = strlen(text);
  if (n < NAMED_MAX) snprintf(text + len, room - len, "%s\"%s\"", n ? ", " : "", show(key, shown));
}

static int fail_missing(const struct call *c, const struct c10d_reply *a) {
  char text[NAMED_MAX * (SHOWN_MAX + 8) + 32] = "";
  size_t missing = 0;
  for (size_t i = 0; i < c->n; i++)
    if (a[i].byte) add_missing(text, sizeof(text), missing++, c->keys[i]);
  size_t len = strlen(text);
  if (missing > NAMED_MAX) snprintf(text + len, sizeof(text) - len, " and %zu more", missing - NAMED_MAX);
  if (missing == 0) return 0; /* the last key has just come */
  return rdzv_store_fail(c->r, -ETIMEDOUT, "%zu of %zu keys did not come within %d ms: %s", missing, c->n,
                         c->timeout_ms, text);
}

/* The deadline of a wait for several keys has passed. -ETIMEDOUT names the missing ones; 0: none is. */
static int name_missing(const struct call *c) {
  struct c10d_request *q = c->n <= LOOKED_MAX ? calloc(c->n, sizeof(*q)) : NULL;
  struct c10d_reply *a = q ? calloc(c->n, sizeof(*a)) : NULL;
  int rc = -ETIMEDOUT;
  for (size_t i = 0; a && i < c->n; i++)
    q[i] = (struct c10d_request){.op = C10D_CHECK, .count = 1, .keys = &c->wire[i]};
  if (a) rc = rdzv_ask(c->r, q, c->n, a, rdzv_deadline_in(RDZV_LATE_MS));
  if (a && rc == 0)
    rc = fail_missing(c, a);
  else
    rc = rdzv_store_fail(c->r, -ETIMEDOUT, "not all of %zu keys came within %d ms", c->n, c->timeout_ms);
  free(a);
  free(q);
  return rc;
}

/* Waits until all keys of the call exist. */
static int wait_for_keys(const struct call *c) {
  struct c10d_request q = on_keys(c, C10D_WAIT);
  struct c10d_reply a = {0};
  c->r->waits = true;
  int rc = ask(c, &q, 1, &a);
  if (rc != -ETIMEDOUT || (!c->r->alone && c->r->conn.fd < 0)) return rc;
  if (c->n > 1) return name_missing(c);
  return c->r->alone ? rc : rdzv_store_fail(c->r, rc, "it did not come within %d ms", c->timeout_ms);
}

/* -ENOENT, without a sentence: the key does not exist. */
static int look(const struct call *c, char **value, size_t *size) {
  struct c10d_request q[2] = {on_keys(c, C10D_CHECK), on_key(c, C10D_GET)};
  struct c10d_reply a[2] = {0};
  int rc = ask(c, q, 2, a);
  if (rc) return rc;
  if (a[0].byte && !a[1].value.len) return -ENOENT;
  return hand_out(c->r, a[1].value, value, size);
}

static int look_in_queue(const struct call *c, char **value, size_t *size) {
  struct c10d_request q = on_key(c, C10D_QUEUE_POP);
  struct c10d_reply a = {0};
  int rc = ask(c, &q, 1, &a);
  if (rc) return rc;
  return a.number > 0 ? hand_out(c->r, a.value, value, size) : -ENOENT;
}

/* Looks, waits and looks again until there is a value or the deadline passes. */
static int take(const struct call *c, int (*look_for)(const struct call *, char **, size_t *), char **value,
                size_t *size) {
  int rc = look_for(c, value, size);
  while (rc == -ENOENT) {
    rc = wait_for_keys(c);
    if (rc == 0) rc = look_for(c, value, size);
    if (rc != -ENOENT) break;
    if (rdzv_now_ms() >= c->deadline)
      return rdzv_store_fail(c->r, -ETIMEDOUT, "other ranks were faster for %d ms", c->timeout_ms);
    poll(NULL, 0,
         PAUSE_MS); /* another rank was faster; or a key has the name of a queue, and ends every wait at once */
  }
  return rc;
}

/* The public functions --------------------------------------------------------------------------------------------- */

/* A call about one key that does not wait. number: of the answer; NULL: not needed. */
static int call_key(struct rdzv *r, const char *verb, const char *key, struct c10d_request q, int64_t *number,
                    int timeout_ms) {
  struct call c;
  int rc = begin_call(&c, r, verb, &key, 1, timeout_ms);
  if (!rc) {
    q.key = c.wire[0];
    rc = ask_number(&c, q, number);
  }
  return end_call(&c, rc);
}

int rdzv_store_set(struct rdzv *r, const char *key, const void *value, size_t size, int timeout_ms) {
  return call_key(r, "store set", key, (struct c10d_request){.op = C10D_SET, .value = {value, size}}, NULL, timeout_ms);
}

int rdzv_store_append(struct rdzv *r, const char *key, const void *data, size_t size, int timeout_ms) {
  struct c10d_request q = {.op = C10D_APPEND, .value = {data, size}};
  return call_key(r, "store append", key, q, NULL, timeout_ms);
}

int rdzv_store_add(struct rdzv *r, const char *key, int64_t delta, int64_t *total, int timeout_ms) {
  return call_key(r, "store add", key, (struct c10d_request){.op = C10D_ADD, .number = delta}, total, timeout_ms);
}

int rdzv_store_delete_key(struct rdzv *r, const char *key, bool *was_there, int timeout_ms) {
  int64_t n = 0;
  int rc = call_key(r, "store delete_key", key, (struct c10d_request){.op = C10D_DELETE_KEY}, &n, timeout_ms);
  if (!rc && was_there) *was_there = n > 0;
  return rc;
}

int rdzv_store_queue_push(struct rdzv *r, const char *key, const void *value, size_t size, int timeout_ms) {
  struct c10d_request q = {.op = C10D_QUEUE_PUSH, .value = {value, size}};
  return call_key(r, "store queue_push", key, q, NULL, timeout_ms);
}

int rdzv_store_queue_len(struct rdzv *r, const char *key, int64_t *n, int timeout_ms) {
  return call_key(r, "store queue_len", key, (struct c10d_request){.op = C10D_QUEUE_LEN}, n, timeout_ms);
}

int rdzv_store_get(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms) {
  struct call c;
  int rc = begin_call(&c, r, "store get", &key, 1, timeout_ms);
  if (!rc) rc = take(&c, look, value, size);
  return end_call(&c, rc);
}

int rdzv_store_try_get(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms) {
  struct call c;
  int rc = begin_call(&c, r, "store get", &key, 1, timeout_ms);
  if (!rc) rc = look(&c, value, size);
  if (rc == -ENOENT) rdzv_store_fail(r, rc, "it does not exist");
  return end_call(&c, rc);
}

int rdzv_store_compare_set(struct rdzv *r, const char *key, const void *expected, size_t expected_size,
                           const void *desired, size_t desired_size, char **value, size_t *size, int timeout_ms) {
  struct call c;
  struct c10d_reply a = {0};
  int rc = begin_call(&c, r, "store compare_set", &key, 1, timeout_ms);
  if (!rc) {
    struct c10d_request q = on_key(&c, C10D_COMPARE_SET);
    q.expected = (struct slice){expected, expected_size};
    q.value = (struct slice){desired, desired_size};
    rc = ask(&c, &q, 1, &a);
  }
  if (!rc) rc = hand_out(r, a.value, value, size);
  return end_call(&c, rc);
}

int rdzv_store_wait(struct rdzv *r, const char *const *keys, size_t n, int timeout_ms) {
  struct call c;
  int rc = begin_call(&c, r, "store wait", keys, n, timeout_ms);
  if (!rc && n > 0) rc = wait_for_keys(&c);
  return end_call(&c, rc);
}

int rdzv_store_check(struct rdzv *r, const char *const *keys, size_t n, bool *there, int timeout_ms) {
  struct call c;
  struct c10d_reply a = {0};
  int rc = begin_call(&c, r, "store check", keys, n, timeout_ms);
  struct c10d_request q = on_keys(&c, C10D_CHECK);
  if (!rc && n > 0) rc = ask(&c, &q, 1, &a);
  if (!rc) *there = a.byte == 0;
  return end_call(&c, rc);
}

int rdzv_store_multi_get(struct rdzv *r, const char *const *keys, size_t n, char **values, size_t *sizes,
                         int timeout_ms) {
  struct call c;
  struct c10d_reply a = {0};
  size_t at = 0, i = 0;
  int rc = begin_call(&c, r, "store multi_get", keys, n, timeout_ms);
  struct c10d_request q = on_keys(&c, C10D_MULTI_GET);
  if (!rc && n > 0) rc = wait_for_keys(&c);
  if (!rc && n > 0) rc = ask(&c, &q, 1, &a);
  for (struct slice s; !rc && i < n && c10d_next_string(a.items, &at, &s); i += !rc)
    rc = hand_out(r, s, &values[i], sizes ? &sizes[i] : NULL);
  if (!rc && i < n) rc = rdzv_store_fail(r, -EPROTO, "the store answered %zu of %zu keys", i, n);
  while (rc && i > 0) free(values[--i]);
  return end_call(&c, rc);
}

int rdzv_store_multi_set(struct rdzv *r, const char *const *keys, size_t n, const void *const *values,
                         const size_t *sizes, int timeout_ms) {
  struct call c;
  int rc = begin_call(&c, r, "store multi_set", keys, n, timeout_ms);
  struct slice *v = rc || n == 0 ? NULL : calloc(n, sizeof(*v));
  struct c10d_request q = on_keys(&c, C10D_MULTI_SET);
  q.values = v;
  for (size_t i = 0; v && i < n; i++) v[i] = (struct slice){values[i], sizes[i]};
  if (!rc && n > 0) rc = v ? ask(&c, &q, 1, NULL) : rdzv_store_fail(r, -ENOMEM, "out of memory");
  free(v);
  return end_call(&c, rc);
}

int rdzv_store_num_keys(struct rdzv *r, int64_t *n, int timeout_ms) {
  struct call c;
  int rc = begin_call(&c, r, "store num_keys", NULL, 0, timeout_ms);
  if (!rc) rc = ask_number(&c, (struct c10d_request){.op = C10D_GETNUMKEYS}, n);
  return end_call(&c, rc);
}

/* One block: the pointers, then the text. */
static int hand_out_keys(struct rdzv *r, const struct c10d_reply *a, char ***keys, size_t *n) {
  size_t max = a->number > 0 ? (size_t)a->number : 0, at = 0;
  char **v = malloc((max + 1) * sizeof(*v) + a->items.len + 1), *text = (char *)(v + max + 1);
  if (!v) return rdzv_store_fail(r, -ENOMEM, "out of memory");
  *n = 0;
  for (struct slice s; *n < max && c10d_next_string(a->items, &at, &s);) {
    if (s.len == 0 || s.data[0] != '/') continue; /* "init/", with which PyTorch counts its clients */
    v[(*n)++] = text;
    memcpy(text, s.data + 1, s.len - 1);
    text[s.len - 1] = '\0';
    text += s.len;
  }
  v[*n] = NULL;
  *keys = v;
  return 0;
}

int rdzv_store_list_keys(struct rdzv *r, char ***keys, size_t *n, int timeout_ms) {
  struct call c;
  struct c10d_reply a = {0};
  struct c10d_request q = {.op = C10D_LIST_KEYS};
  int rc = begin_call(&c, r, "store list_keys", NULL, 0, timeout_ms);
  if (!rc) rc = ask(&c, &q, 1, &a);
  if (!rc) rc = hand_out_keys(r, &a, keys, n);
  return end_call(&c, rc);
}

int rdzv_store_barrier(struct rdzv *r, const char *key, int64_t world_size, int timeout_ms) {
  struct call c;
  int rc = begin_call(&c, r, "store barrier", &key, 1, timeout_ms);
  if (!rc) {
    struct c10d_request q = on_key(&c, C10D_BARRIER);
    q.number = world_size;
    r->waits = true;
    rc = ask_number(&c, q, NULL);
    if (rc == -ETIMEDOUT && (r->alone || r->conn.fd >= 0))
      rdzv_store_fail(r, rc, "fewer than %lld came within %d ms", (long long)world_size, timeout_ms);
  }
  return end_call(&c, rc);
}

int rdzv_store_queue_pop(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms) {
  struct call c;
  int rc = begin_call(&c, r, "store queue_pop", &key, 1, timeout_ms);
  if (!rc) rc = take(&c, look_in_queue, value, size);
  return end_call(&c, rc);
}

int rdzv_store_queue_try_pop(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms) {
  struct call c;
  int rc = begin_call(&c, r, "store queue_pop", &key, 1, timeout_ms);
  if (!rc) rc = look_in_queue(&c, value, size);
  if (rc == -ENOENT) rdzv_store_fail(r, rc, "the queue is empty");
  return end_call(&c, rc);
}
