/* SPDX-License-Identifier: Apache-2.0 */
/* encode (aside) -> connect -> write -> read -> decode (aside) -> the key.
 *
 * The timer runs over all of it. What hangs then is left: the thread by aside_leave, the connection by closing it. */

#include "common/net/munge_fetch.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/key/munge.h"
#include "common/key/munge_payload.h"
#include "common/key/secret.h"
#include "common/mem.h"
#include "common/system/aside.h"
#include "common/system/user.h"
#include "proto/munge_ask.h"

enum { READ_SIZE = MUNGE_ASK_BODY_MAX + 64 };

/* What a thread is given, and gives back. */
struct order {
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  size_t len;
  char payload[MUNGE_PAYLOAD_MAX + 1];
  uint32_t encoder;
  int64_t trusted; /* as in munge_fetch_options */
  int rc;          /* the length of what was made, or an error */
  struct err e;
};

struct munge_fetch {
  struct munge_fetch_options o;
  munge_fetch_fn fn;
  void *ctx;
  uv_timer_t timer;
  uv_tcp_t tcp;
  uv_connect_t connect;
  uv_write_t write;
  struct aside *aside;
  struct munge_nonce nonce;
  struct buf out, in;
  const char *phase; /* "munged of this machine" */
  int open_handles;
  char room[READ_SIZE];
};

/* The end. --------------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle) {
  struct munge_fetch *f = handle->data;
  if (--f->open_handles > 0) return;
  buf_finish(&f->in);
  buf_finish(&f->out);
  free(f);
}

void munge_fetch_cancel(struct munge_fetch *f) {
  if (f->aside) aside_leave(f->aside);
  f->aside = NULL;
  f->fn = NULL;
  uv_close((uv_handle_t *)&f->timer, on_closed);
  uv_close((uv_handle_t *)&f->tcp, on_closed);
}

static void answer(struct munge_fetch *f, const struct key *key, const struct err *e) {
  munge_fetch_fn fn = f->fn;
  if (!fn) return;
  munge_fetch_cancel(f);
  fn(f->ctx, key, e);
}

static void fail(struct munge_fetch *f, const struct err *e) {
  answer(f, NULL, e);
}

static void fail_io(struct munge_fetch *f, int code, const char *what) {
  struct err e = ERR_INIT;
  err_sys(&e, code, "%s", what);
  fail(f, &e);
}

static void on_deadline(uv_timer_t *timer) {
  struct munge_fetch *f = timer->data;
  struct err e = ERR_INIT;
  err_set(&e, -ETIMEDOUT, "%s did not answer within %.3g s", f->phase, (double)f->o.deadline_ms / 1000);
  fail(f, &e);
}

/* munged. ---------------------------------------------------------------------------------------------------------- */

static void encode(void *room) {
  struct order *r = room;
  r->rc = munge_encode_for(r->payload, r->len, MUNGE_ANYBODY, r->credential, &r->e);
}

static void decode(void *room) {
  struct order *r = room;
  r->rc = munge_decode_from(r->credential, r->len, r->payload, MUNGE_PAYLOAD_MAX, &r->encoder, &r->e);
  /* Here, because the user database may hang, too. */
  if (r->rc >= 0 && r->trusted == MUNGE_DEFAULT_USER) munge_user_find(NULL, &r->trusted, NULL);
}

static void ask_munged(struct munge_fetch *f, void (*work)(void *), const struct order *r,
                       void (*done)(void *, void *)) {
  struct err e = ERR_INIT;
  f->phase = "munged of this machine";
  f->aside = aside_start(f->o.loop, work, r, sizeof(*r), done, f, &e);
  if (f->aside) return;
  err_wrap(&e, "munged of this machine cannot be asked");
  fail(f, &e);
}

static void on_decoded(void *ctx, void *room) {
  struct munge_fetch *f = ctx;
  struct order *r = room;
  struct key *key = secret_alloc();
  f->aside = NULL;
  int rc = r->rc;
  if (rc >= 0 && !user_is_known(r->encoder))
    rc = err_set(&r->e, -EACCES, "MUNGE names uid %u for rdzvd, which stands for every unknown user here",
                 (unsigned)r->encoder);
  if (rc >= 0) rc = munge_encoder_check(r->encoder, geteuid(), r->trusted, &r->e);
  if (rc >= 0) rc = munge_answer_parse(r->payload, (size_t)r->rc, &f->nonce, geteuid(), key, &r->e);
  answer(f, rc < 0 ? NULL : key, rc < 0 ? &r->e : NULL);
  secret_free(key);
}

/* The daemon. ------------------------------------------------------------------------------------------------------ */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  struct munge_fetch *f = handle->data;
  *out = uv_buf_init(f->room, sizeof(f->room));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct munge_fetch *f = stream->data;
  struct err e = ERR_INIT;
  struct slice credential;
  if (n < 0) {
    fail_io(f, n == UV_EOF ? -ECONNRESET : (int)n, "rdzvd closed the connection on which a key was asked for");
    return;
  }
  buf_append(&f->in, b->base, (size_t)n);
  int rc = f->in.len ? munge_ask_take(f->in.data, f->in.len, &credential, &e) : 0;
  if (rc < 0) fail(f, &e);
  if (rc <= 0) return;
  struct order r = {.len = credential.len, .trusted = f->o.trusted};
  memcpy(r.credential, credential.data, credential.len);
  uv_read_stop(stream);
  ask_munged(f, decode, &r, on_decoded);
}

static void on_written(uv_write_t *req, int status) {
  struct munge_fetch *f = req->data;
  if (status < 0 && status != UV_ECANCELED) fail_io(f, status, "rdzvd cannot be asked for a key");
}

static void on_connected(uv_connect_t *req, int status) {
  struct munge_fetch *f = req->data;
  if (status == UV_ECANCELED) return;
  if (status == 0) {
    uv_buf_t b = uv_buf_init(f->out.data, (unsigned)f->out.len);
    status = uv_write(&f->write, (uv_stream_t *)&f->tcp, &b, 1, on_written);
  }
  if (status == 0) status = uv_read_start((uv_stream_t *)&f->tcp, on_alloc, on_read);
  if (status) fail_io(f, status, "rdzvd cannot be asked for a key");
}

static void on_encoded(void *ctx, void *room) {
  struct munge_fetch *f = ctx;
  struct order *r = room;
  f->aside = NULL;
  if (r->rc < 0) {
    fail(f, &r->e);
    return;
  }
  munge_ask_put(&f->out, r->credential, (size_t)r->rc);
  f->phase = "rdzvd";
  int rc = uv_tcp_connect(&f->connect, &f->tcp, &f->o.daemon.any, on_connected);
  if (rc) fail_io(f, rc, "rdzvd cannot be asked for a key");
}

static void on_begin(uv_timer_t *timer) {
  struct munge_fetch *f = timer->data;
  struct order r = {.rc = 0};
  randombytes_buf(f->nonce.bytes, sizeof(f->nonce.bytes));
  r.len = munge_request_format(&f->nonce, r.payload);
  uv_timer_start(timer, on_deadline, f->o.deadline_ms, 0);
  ask_munged(f, encode, &r, on_encoded);
}

struct munge_fetch *munge_fetch_start(const struct munge_fetch_options *o, munge_fetch_fn fn, void *ctx) {
  struct munge_fetch *f = xcalloc(1, sizeof(*f));
  f->o = *o;
  f->fn = fn;
  f->ctx = ctx;
  f->timer.data = f->tcp.data = f->connect.data = f->write.data = f;
  uv_timer_init(o->loop, &f->timer);
  uv_tcp_init(o->loop, &f->tcp);
  f->open_handles = 2;
  uv_timer_start(&f->timer, on_begin, 0, 0);
  return f;
}
