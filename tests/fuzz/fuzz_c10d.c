/* SPDX-License-Identifier: Apache-2.0 */
/* A few clients of one store with small limits, over any bytes; and the codec alone.
 *
 * The input is records: a byte for who and what, a byte for a length, so many bytes. Who: the low two bits. What: the
 * next two: 0 and 1 the bytes arrive, 2 they arrive where little may be answered at a time, 3 the client goes and
 * another comes. So the fuzzer chooses where requests are cut.
 *
 * Whatever comes: nobody consumes what is not there, the store stays within its limit, what is parsed and encoded
 * again is the same bytes, and in the end every key that is listed is there and can be deleted. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "proto/c10d_session.h"

enum { CLIENTS = 4, MAX_BYTES = 20000, ITEMS = 64 };

struct client {
  struct c10d_session session;
  struct buf in, out;
};

struct world {
  struct store *store;
  struct client clients[CLIENTS];
  uint64_t now_ms;
};

static void check(bool holds) {
  if (!holds) abort();
}

/* As conn would: consumed bytes go, answers are written, and again until nothing moves. */
static void feed(struct world *w, struct client *c, size_t out_max) {
  struct err e = ERR_INIT;
  size_t used = 1;
  int rc = 0;
  while (rc == 0 && used > 0) {
    /* Exactly as large as what is there, so that a read behind its end is seen. */
    char *data = c->in.len ? xmalloc(c->in.len) : NULL;
    if (c->in.len) memcpy(data, c->in.data, c->in.len);
    rc = c10d_session_feed(&c->session, data, c->in.len, &used, &c->out, out_max, &e);
    free(data);
    check(used <= c->in.len && store_bytes(w->store) <= MAX_BYTES);
    check(rc == 0 || ((rc == -EPROTO || rc == -EMSGSIZE || rc == -ENOSPC || rc == -EINVAL) && e.text[0]));
    buf_consume(&c->in, used);
    for (struct store_client *woken; (woken = store_next_released(w->store));) {
      struct client *other = store_client_owner(woken);
      check(other->session.client == woken);
      c10d_session_released(&other->session, &other->out);
    }
    buf_clear(&c->out);
  }
  if (rc < 0) { /* closed; a new one takes the place */
    c10d_session_finish(&c->session, w->now_ms);
    c10d_session_init(&c->session, w->store, c);
    buf_clear(&c->in);
  }
}

static void leave(struct world *w, struct client *c) {
  c10d_session_finish(&c->session, w->now_ms);
  c10d_session_init(&c->session, w->store, c);
  buf_clear(&c->in);
  c->session.companion = w->now_ms % 2;
  w->now_ms += 701;
  store_expire(w->store, w->now_ms);
}

static void run(struct world *w, const uint8_t *data, size_t len) {
  for (size_t n; len >= 2; data += n, len -= n) {
    struct client *c = &w->clients[data[0] % CLIENTS];
    unsigned what = data[0] / CLIENTS % 4;
    n = data[1];
    data += 2;
    len -= 2;
    if (n > len) n = len;
    buf_append(&c->in, data, n);
    if (what == 3)
      leave(w, c);
    else
      feed(w, c, what == 2 ? 3 : 65536);
  }
}

struct names {
  struct slice keys[256];
  size_t n;
};

static void collect(void *ctx, struct slice key) {
  struct names *names = ctx;
  if (names->n < 256) names->keys[names->n++] = (struct slice){xmemdup(key.data, key.len), key.len};
}

/* Everybody goes; sessions end; every key is deleted. */
static void finish(struct world *w) {
  struct names names = {.n = 0};
  for (int i = 0; i < CLIENTS; i++) {
    c10d_session_finish(&w->clients[i].session, w->now_ms);
    buf_finish(&w->clients[i].in);
    buf_finish(&w->clients[i].out);
  }
  check(!store_next_released(w->store));
  store_expire(w->store, UINT64_MAX - 1);
  check(store_deadline(w->store) == UINT64_MAX);
  store_each_key(w->store, collect, &names);
  check(names.n == store_count(w->store));
  struct store_client *c = store_client_create(w->store, NULL);
  for (size_t i = 0; i < names.n; i++) {
    struct slice value;
    check(store_get(c, names.keys[i], &value) && store_delete(c, names.keys[i]));
    while (store_queue_pop(c, names.keys[i], &value) > 0) continue;
    free((char *)(uintptr_t)names.keys[i].data);
  }
  store_client_destroy(c, w->now_ms);
  check(store_count(w->store) == 0 && store_key_bytes(w->store) == 0);
  store_destroy(w->store);
}

/* What is parsed is encoded to the same bytes. */
static void there_and_back(enum c10d_dialect dialect, const char *data, size_t len) {
  struct c10d_progress p = {0};
  struct c10d_request r;
  struct slice keys[ITEMS], values[ITEMS];
  const char *why = NULL;
  size_t size, n = 0;
  int rc = c10d_parse(dialect, data, len, &p, &r, &size, &why);
  check(rc < 0 ? why != NULL : rc == 0 ? size > len : size <= len);
  if (rc <= 0 || r.count > ITEMS) return;
  for (size_t at = 0; n < ITEMS && c10d_next_item(&r, &at, &keys[n], &values[n]);) n++;
  check(n == r.count);
  r.keys = keys;
  r.values = values;
  check(c10d_check(&r, &why) == 0);
  char *out = xmalloc(size);
  check(c10d_encode(dialect, &r, out, size) == size && memcmp(out, data, size) == 0);
  free(out);
}

static void replies(const char *data, size_t len) {
  for (enum c10d_op op = 0; op < C10D_OP_COUNT; op++) {
    struct c10d_progress p = {0};
    struct c10d_reply r;
    const char *why = NULL;
    size_t size = 0, at = 0, n = 0;
    struct slice s;
    int rc = c10d_parse_reply(op, 3, data, len, &p, &r, &size, &why);
    check(rc < 0 ? why != NULL : rc == 0 ? size > len : size <= len);
    if (rc != 1) continue;
    while (c10d_next_string(r.items, &at, &s)) n++;
    check((op != C10D_MULTI_GET && op != C10D_LIST_KEYS) || n == (size_t)r.number);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  struct world w = {.now_ms = 1000};
  w.store = store_create(&(struct store_config){.seed = 1,
                                                .max_bytes = MAX_BYTES,
                                                .max_keys = 40,
                                                .max_value = 300,
                                                .max_waits = 20,
                                                .session_prefix = "/s.",
                                                .session_ttl_ms = 1000});
  for (int i = 0; i < CLIENTS; i++) c10d_session_init(&w.clients[i].session, w.store, &w.clients[i]);
  run(&w, data, len);
  finish(&w);
  for (int d = C10D_SINCE_2_2; d <= C10D_1_13; d++) there_and_back((enum c10d_dialect)d, (const char *)data, len);
  replies((const char *)data, len);
  return 0;
}
