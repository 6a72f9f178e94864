/* SPDX-License-Identifier: Apache-2.0 */
/* A PyTorch client's conversation with a store.
 *
 * The first bytes show which numbering the client speaks. 00 CE F7 85 3C is the handshake of 2.2 and later. Any other
 * 00 is SET in the numberings before that, and 01 to 0B are the other old numbers. The handshake read as an old SET
 * would announce a key of a thousand million bytes, so the two cannot be confused; anything else is refused after at
 * most five bytes. They may come one by one.
 *
 * Requests are then served in order, each when it is whole. Most are answered at once. WAIT and BARRIER may be answered
 * later, by a byte when the wait ends. A client cannot see which of several waits a byte is for, so each wait is simply
 * answered once.
 *
 * Two rules of PyTorch's server keep the answers in order. Waits that have ended are answered before the client's next
 * request is served, and waits that a request itself ends are answered before its own reply. So WAIT, ADD of the same
 * key and PING are answered in that order. The byte for a wait that has ended always precedes the 1 of CANCEL_WAIT. So
 * a client that gives up learns that it was just too late.
 *
 * This protocol has no error reply. A request that cannot be served ends the connection, and the server's log gives the
 * reason. */

#include "proto/c10d_session.h"

#include <errno.h>
#include <string.h>

enum { STOP_WAITING = 0, WAIT_CANCELED = 1, READY = 0, NOT_READY = 1 };

static const char handshake[] = {0x00, (char)0xCE, (char)0xF7, (char)0x85, 0x3C};
enum { OLD_NUMBERS_MAX = 11 };

void c10d_session_init(struct c10d_session *s, struct store *store, void *owner) {
  *s = (struct c10d_session){.store = store, .owner = owner};
}

void c10d_session_finish(struct c10d_session *s, uint64_t now_ms) {
  store_client_destroy(s->client, now_ms);
  s->client = NULL;
}

void c10d_session_released(struct c10d_session *s, struct buf *out) {
  buf_putc(out, STOP_WAITING);
}

static void put_u64(struct buf *out, uint64_t v) {
  le64_put(buf_reserve(out, 8), v);
  buf_commit(out, 8);
}

static void put_string(struct buf *out, struct slice v) {
  char *p = buf_reserve(out, 8 + v.len);
  le64_put(p, v.len);
  if (v.len) memcpy(p + 8, v.data, v.len);
  buf_commit(out, 8 + v.len);
}

/* -EAGAIN, without a sentence: not now. */
static int check_reply(const struct c10d_session *s, uint64_t bytes, enum c10d_op op, struct err *e) {
  if (bytes <= C10D_REPLY_MAX) return s->crowded && bytes > C10D_SMALL_REPLY ? -EAGAIN : 0;
  return err_set(e, -EMSGSIZE, "the reply to %s would take %llu bytes, more than %d", c10d_op_name(op),
                 (unsigned long long)bytes, C10D_REPLY_MAX);
}

static int do_wait(struct c10d_session *s, const struct c10d_request *r, struct buf *out, struct err *e) {
  struct slice key, none;
  store_wait_begin(s->client);
  for (size_t at = 0; c10d_next_item(r, &at, &key, &none);) {
    int rc = store_wait_key(s->client, key, e);
    if (rc < 0) return rc;
  }
  if (store_wait_end(s->client)) buf_putc(out, STOP_WAITING);
  return 0;
}

static int do_multi_get(struct c10d_session *s, const struct c10d_request *r, struct buf *out, struct err *e) {
  struct slice key, none, value;
  uint64_t bytes = 0;
  for (size_t at = 0; c10d_next_item(r, &at, &key, &none); bytes += 8 + value.len) store_get(s->client, key, &value);
  int rc = check_reply(s, bytes, r->op, e);
  if (rc < 0) return rc;
  buf_reserve(out, bytes);
  for (size_t at = 0; c10d_next_item(r, &at, &key, &none);) {
    store_get(s->client, key, &value);
    put_string(out, value);
  }
  return 0;
}

static void list_key(void *out, struct slice key) {
  put_string(out, key);
}

static int do_list_keys(struct c10d_session *s, const struct c10d_request *r, struct buf *out, struct err *e) {
  uint64_t n = store_count(s->store), bytes = 8 + 8 * n + store_key_bytes(s->store);
  int rc = check_reply(s, bytes, r->op, e);
  if (rc < 0) return rc;
  buf_reserve(out, bytes);
  put_u64(out, n);
  store_each_key(s->store, list_key, out);
  return 0;
}

static int serve(struct c10d_session *s, const struct c10d_request *r, struct buf *out, struct err *e) {
  struct slice key, value = {0};
  size_t at = 0;
  int64_t number = 0;
  bool done = true;
  int rc = 0;
  switch (r->op) {
  case C10D_VALIDATE: /* the first one needs no check: its magic is how it was recognized */
    return s->requests == 1 ? 0 : err_set(e, -EPROTO, "a second VALIDATE");
  case C10D_SET: return store_set(s->client, r->key, r->value, e);
  case C10D_COMPARE_SET:
    rc = store_compare_set(s->client, r->key, r->expected, r->value, &value, e);
    if (rc == 0) put_string(out, value);
    return rc;
  case C10D_GET:
    store_get(s->client, r->key, &value);
    rc = check_reply(s, 8 + value.len, r->op, e);
    if (rc == 0) put_string(out, value);
    return rc;
  case C10D_ADD:
    rc = store_add(s->client, r->key, r->number, &number, e);
    if (rc == 0) put_u64(out, (uint64_t)number);
    return rc;
  case C10D_CHECK:
    while (done && c10d_next_item(r, &at, &key, &value)) done = store_has(s->client, key);
    buf_putc(out, done ? READY : NOT_READY);
    return 0;
  case C10D_WAIT: return do_wait(s, r, out, e);
  case C10D_GETNUMKEYS: put_u64(out, store_count(s->store)); return 0;
  case C10D_DELETE_KEY: put_u64(out, store_delete(s->client, r->key)); return 0;
  case C10D_APPEND: return store_append(s->client, r->key, r->value, e);
  case C10D_MULTI_GET: return do_multi_get(s, r, out, e);
  case C10D_MULTI_SET:
    while (rc == 0 && c10d_next_item(r, &at, &key, &value)) rc = store_set(s->client, key, value, e);
    return rc;
  case C10D_CANCEL_WAIT:
    store_cancel(s->client);
    buf_putc(out, WAIT_CANCELED);
    return 0;
  case C10D_PING:
    le32_put(buf_reserve(out, 4), (uint32_t)r->number);
    buf_commit(out, 4);
    return 0;
  case C10D_QUEUE_PUSH: return store_queue_push(s->client, r->key, r->value, e);
  case C10D_QUEUE_POP:
    number = (int64_t)store_queue_pop(s->client, r->key, &value);
    put_u64(out, (uint64_t)number);
    if (number > 0) put_string(out, value);
    return 0;
  case C10D_QUEUE_LEN: put_u64(out, store_queue_len(s->client, r->key)); return 0;
  case C10D_LIST_KEYS: return do_list_keys(s, r, out, e);
  case C10D_BARRIER:
    rc = store_barrier(s->client, r->key, r->number, &done, e);
    if (rc == 0 && done) buf_putc(out, STOP_WAITING);
    return rc;
  case C10D_WATCH_KEY: /* the server never notifies */
  case C10D_OP_COUNT: break;
  }
  return 0;
}

/* 1: the numbering is known; 0: s->need bytes are needed. */
static int identify(struct c10d_session *s, const char *data, size_t len, struct err *e) {
  if (s->client) return 1;
  if (len == 0) return s->need = 1, 0;
  if ((uint8_t)data[0] > OLD_NUMBERS_MAX) return err_set(e, -EPROTO, "the first bytes are not a TCPStore client's");
  if (data[0] == handshake[0] && len < sizeof(handshake)) return s->need = sizeof(handshake), 0;
  bool greets = data[0] == handshake[0] && memcmp(data, handshake, sizeof(handshake)) == 0;
  if (data[0] == handshake[0] && !greets && le32_get(data + 1) > C10D_KEY_MAX)
    return err_set(e, -EPROTO, "the first bytes are neither VALIDATE with its number nor SET as before 2.2");
  s->dialect = greets ? C10D_SINCE_2_2 : C10D_2_1;
  s->client = store_client_create(s->store, s->owner);
  return 1;
}

/* Inserts the answers to this client's ended waits at offset `at` of out. */
static void answer_ended_waits(struct c10d_session *s, struct buf *out, size_t at) {
  size_t n = store_take_released(s->client);
  if (n == 0) return;
  buf_reserve(out, n);
  memmove(out->data + at + n, out->data + at, out->len - at);
  memset(out->data + at, STOP_WAITING, n);
  buf_commit(out, n);
}

/* 1: a request of *size bytes was served; 0: s->need bytes are needed. */
static int serve_first(struct c10d_session *s, const char *data, size_t len, size_t *size, struct buf *out,
                       struct err *e) {
  int rc = identify(s, data, len, e);
  if (rc <= 0) return rc;
  enum c10d_dialect dialect = s->dialect == C10D_2_1 && s->companion ? C10D_1_13 : s->dialect;
  struct c10d_request r;
  const char *why = NULL;
  rc = c10d_parse(dialect, data, len, &s->progress, &r, size, &why);
  if (rc == 0) return s->need = *size, 0;
  if (rc < 0 && s->requests == 0) return err_set(e, rc, "not a handshake, and as a first request before 2.2: %s", why);
  if (rc < 0) return err_set(e, rc, "%s", why);
  s->progress = (struct c10d_progress){0};
  s->need = 0;
  s->requests++;
  answer_ended_waits(s, out, out->len);
  size_t reply = out->len;
  rc = serve(s, &r, out, e);
  answer_ended_waits(s, out, reply);
  if (rc == -EAGAIN) return s->waits = true, s->requests--, 0;
  if (rc < 0) err_wrap(e, "%s", c10d_op_name(r.op));
  return rc < 0 ? rc : 1;
}

int c10d_session_feed(struct c10d_session *s, const char *data, size_t len, size_t *used, struct buf *out,
                      size_t out_max, struct err *e) {
  *used = 0;
  s->waits = false;
  while (out->len <= out_max && *used < len && len - *used >= s->need) {
    size_t size = 0;
    int rc = serve_first(s, data + *used, len - *used, &size, out, e);
    if (rc < 0) return rc;
    if (rc == 0) break;
    *used += size;
  }
  return 0;
}
