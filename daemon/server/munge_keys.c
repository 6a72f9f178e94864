/* SPDX-License-Identifier: Apache-2.0 */
/* A request waits in the queue, then is in the hands of a thread, or is answered in the loop's next turn (it gives way).
 *
 *   QUEUED -> RUNNING -> answered
 *      '---------'-----> answered by its deadline; the thread stays busy until munged or libmunge lets it go
 *
 * So a munged that hangs holds MUNGE_KEYS_THREADS threads and nothing else. And junk from forty addresses costs an
 * honest request the time of forty. */

#include "daemon/server/munge_keys.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/key/munge.h"
#include "common/key/munge_payload.h"
#include "common/mem.h"
#include "common/system/aside.h"
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/system/user.h"
#include "daemon/server/asker.h"
#include "daemon/server/waiting_room.h"

struct munge_request {
  struct newcomer waits; /* first; in the queue */
  struct munge_keys *keys;
  struct slot *slot; /* the thread that works on it, or NULL */
  munge_keys_fn fn;
  void *ctx;
  uv_timer_t timer;
  char *credential;
  size_t len;
};

/* What a thread is given, and gives back. */
struct order {
  struct key own;
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  size_t len;
  uint32_t uid;
  int rc; /* the length of the answer, or an error */
  struct err e;
};

struct slot {
  struct munge_keys *keys;
  struct aside *aside;           /* NULL: free */
  struct munge_request *request; /* NULL: it was answered or cancelled meanwhile */
};

struct munge_keys {
  uv_loop_t *loop;
  const struct key *own;
  struct slot slot[MUNGE_KEYS_THREADS];
  struct waiting_room queue;
};

/* Requests. -------------------------------------------------------------------------------------------------------- */

static void on_request_closed(uv_handle_t *handle) {
  struct munge_request *r = handle->data;
  free(r->credential);
  free(r);
}

void munge_keys_cancel(struct munge_request *r) {
  room_leave(&r->keys->queue, &r->waits);
  if (r->slot) r->slot->request = NULL;
  uv_close((uv_handle_t *)&r->timer, on_request_closed);
}

static void answer(struct munge_request *r, enum channel_status status, const char *bytes, size_t len) {
  munge_keys_fn fn = r->fn;
  void *ctx = r->ctx;
  munge_keys_cancel(r);
  fn(ctx, status, bytes, len);
}

/* Threads. --------------------------------------------------------------------------------------------------------- */

static int answer_payload(struct order *o, const char *payload, size_t len) {
  struct munge_nonce nonce;
  struct key key;
  char text[MUNGE_PAYLOAD_MAX + 1];
  int rc = munge_request_parse(payload, len, &nonce, &o->e);
  if (rc) return rc;
  if (!asker_key(&o->own, o->uid, &key))
    return err_set(&o->e, -EACCES, "rdzvd has a key of uid %u only", (unsigned)o->own.uid);
  size_t n = munge_answer_format(&nonce, &key, text);
  key_wipe(&key);
  rc = munge_encode_for(text, n, o->uid, o->credential, &o->e);
  explicit_bzero(text, sizeof(text));
  return rc;
}

static void work(void *room) {
  struct order *o = room;
  char payload[MUNGE_PAYLOAD_MAX + 1];
  o->rc = !munge_expected(monotonic_ms())
              ? -ENOENT
              : munge_decode_from(o->credential, o->len, payload, MUNGE_PAYLOAD_MAX, &o->uid, &o->e);
  if (o->rc >= 0 && !user_is_known(o->uid))
    o->rc = err_set(&o->e, -EACCES, "MUNGE names uid %u, which stands for every unknown user here", (unsigned)o->uid);
  if (o->rc >= 0) o->rc = answer_payload(o, payload, (size_t)o->rc);
}

static void serve(struct munge_keys *d);

static void on_done(void *ctx, void *room) {
  struct slot *s = ctx;
  struct order *o = room;
  struct munge_request *r = s->request;
  struct munge_keys *d = s->keys;
  s->aside = NULL;
  s->request = NULL;
  if (r) r->slot = NULL;
  if (r && o->rc > 0) {
    log_debug("munge: the key of uid %u goes to its user", (unsigned)o->uid);
    answer(r, CHANNEL_MUNGE, o->credential, (size_t)o->rc);
  } else if (r && o->rc == -ENOENT) {
    answer(r, CHANNEL_NO_MUNGE, NULL, 0);
  } else if (r && o->rc != -EACCES && o->rc != -EPROTO) { /* munged has said nothing about the credential */
    err_wrap(&o->e, "on rdzvd's machine");
    log_debug("munge: a request for a key fails: %s", o->e.text);
    answer(r, CHANNEL_BUSY, o->e.text, strlen(o->e.text));
  } else if (r) {
    log_debug("munge: a request for a key is refused: %s", o->e.text);
    answer(r, CHANNEL_MUNGE_REFUSED, o->e.text, strlen(o->e.text));
  }
  serve(d);
}

static void serve(struct munge_keys *d) {
  for (size_t i = 0; d->queue.count && i < MUNGE_KEYS_THREADS; i++) {
    struct slot *s = &d->slot[i];
    if (s->aside) continue;
    struct munge_request *r = (struct munge_request *)room_next(&d->queue);
    struct order o = {.own = *d->own, .len = r->len};
    memcpy(o.credential, r->credential, r->len);
    s->aside = aside_start(d->loop, work, &o, sizeof(o), on_done, s, NULL);
    key_wipe(&o.own);
    if (!s->aside) return; /* it waits for the next thread that ends, or for its deadline */
    room_leave(&d->queue, &r->waits);
    r->slot = s;
    s->request = r;
  }
}

static void on_deadline(uv_timer_t *timer) {
  struct munge_request *r = timer->data;
  char why[160];
  int n = snprintf(why, sizeof(why), "munged of rdzvd's machine did not answer within %.3g s", MUNGE_KEYS_MS / 1000.0);
  log_debug("munge: %s", why);
  answer(r, CHANNEL_BUSY, why, (size_t)n);
}

static void on_busy(uv_timer_t *timer) {
  static const char why[] = "too many requests for keys wait at rdzvd";
  answer(timer->data, CHANNEL_BUSY, why, sizeof(why) - 1);
}

static void on_bad(uv_timer_t *timer) {
  static const char why[] = "this is not a MUNGE credential";
  answer(timer->data, CHANNEL_MUNGE_REFUSED, why, sizeof(why) - 1);
}

struct munge_request *munge_keys_ask(struct munge_keys *d, const char *source, const char *credential, size_t len,
                                     munge_keys_fn fn, void *ctx) {
  struct munge_request *r = xcalloc(1, sizeof(*r));
  bool bad = !len || len > MUNGE_CREDENTIAL_MAX;
  *r = (struct munge_request){.keys = d, .fn = fn, .ctx = ctx, .len = len};
  r->timer.data = r;
  uv_timer_init(d->loop, &r->timer);
  uv_timer_start(&r->timer, bad ? on_bad : on_deadline, bad ? 0 : MUNGE_KEYS_MS, 0);
  if (bad) return r;
  r->credential = xmemdup(credential, len);
  room_enter(&d->queue, &r->waits, source, uv_now(d->loop));
  if (d->queue.count > MUNGE_KEYS_QUEUE_MAX) {
    struct munge_request *out = (struct munge_request *)room_crowded_out(&d->queue);
    room_leave(&d->queue, &out->waits);
    uv_timer_start(&out->timer, on_busy, 0, 0);
  }
  serve(d);
  return r;
}

struct munge_keys *munge_keys_create(uv_loop_t *loop, const struct key *own, uint64_t seed) {
  struct munge_keys *d = xcalloc(1, sizeof(*d));
  d->loop = loop;
  d->own = own;
  room_init(&d->queue, seed);
  for (size_t i = 0; i < MUNGE_KEYS_THREADS; i++) d->slot[i].keys = d;
  return d;
}

void munge_keys_destroy(struct munge_keys *d) {
  if (!d) return;
  for (size_t i = 0; i < MUNGE_KEYS_THREADS; i++)
    if (d->slot[i].aside) aside_leave(d->slot[i].aside);
  room_finish(&d->queue);
  free(d);
}
