/* SPDX-License-Identifier: Apache-2.0 */
/* encode -> connect -> write -> read -> decode: all of it in a thread, since each step may hang.
 *
 * The steps with the daemon have the deadline themselves. munged has none, so the timer is for it, a moment later: what
 * hangs then is left behind with its thread. */

#include "common/net/munge_fetch.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/key/munge.h"
#include "common/key/munge_payload.h"
#include "common/mem.h"
#include "common/system/aside.h"
#include "common/system/clock.h"
#include "common/system/user.h"
#include "proto/munge_ask.h"

enum { READ_SIZE = MUNGE_ASK_BODY_MAX + 64, LATER_MS = 50 };

/* What the thread is given, and gives back. */
struct order {
  union socket_address daemon;
  int64_t trusted; /* as in munge_fetch_options */
  uint32_t most_ms;
  uint64_t deadline_ms;
  char payload[MUNGE_PAYLOAD_MAX + 1]; /* the key is in it while the user database hangs */
  struct key key;
  int rc;
  struct err e;
};

struct munge_fetch {
  struct munge_fetch_options o;
  munge_fetch_fn fn;
  void *ctx;
  uv_timer_t timer;
  struct aside *aside;
};

/* In the thread. --------------------------------------------------------------------------------------------------- */

/* Until the socket is ready for `events`. */
static int await(struct order *o, int fd, short events) {
  struct pollfd p = {.fd = fd, .events = events};
  for (uint64_t now; (now = monotonic_ms()) < o->deadline_ms;) {
    int n = poll(&p, 1, (int)(o->deadline_ms - now));
    if (n > 0) return 0;
    if (n < 0 && errno != EINTR) return err_sys(&o->e, -errno, "rdzvd cannot be asked for a key");
  }
  return err_set(&o->e, -ETIMEDOUT, "rdzvd did not answer within %.3g s", (double)o->most_ms / 1000);
}

/* The daemon's answer, into `in`. *credential is a part of it. */
static int ask_daemon(struct order *o, int fd, const struct buf *out, struct buf *in, struct slice *credential) {
  static const char closed[] = "rdzvd closed the connection on which a key was asked for";
  static const char what[] = "rdzvd cannot be asked for a key";
  int code = 0, rc;
  socklen_t size = sizeof(code),
            len = o->daemon.any.sa_family == AF_INET6 ? sizeof(o->daemon.v6) : sizeof(o->daemon.v4);
  if (connect(fd, &o->daemon.any, len) < 0 && errno != EINPROGRESS) return err_sys(&o->e, -errno, "%s", what);
  rc = await(o, fd, POLLOUT);
  if (rc) return rc;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) < 0 || code) return err_sys(&o->e, -code, "%s", what);
  ssize_t n = send(fd, out->data, out->len, MSG_NOSIGNAL); /* a new connection takes far more */
  if (n != (ssize_t)out->len) return err_sys(&o->e, n < 0 ? -errno : -EIO, "%s", what);
  for (;;) {
    rc = await(o, fd, POLLIN);
    if (rc) return rc;
    n = recv(fd, buf_reserve(in, READ_SIZE), READ_SIZE, 0);
    if (n <= 0) return err_sys(&o->e, n < 0 ? -errno : -ECONNRESET, closed);
    buf_commit(in, (size_t)n);
    rc = munge_ask_take(in->data, in->len, credential, &o->e);
    if (rc) return rc < 0 ? rc : 0;
  }
}

static int fetch(struct order *o) {
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  struct munge_nonce nonce;
  struct buf out = BUF_INIT, in = BUF_INIT;
  struct slice answer = {0};
  uint32_t encoder = 0;
  randombytes_buf(nonce.bytes, sizeof(nonce.bytes));
  size_t len = munge_request_format(&nonce, o->payload);
  int rc = munge_encode_for(o->payload, len, MUNGE_ANYBODY, credential, &o->e);
  if (rc < 0) return rc;
  munge_ask_put(&out, credential, (size_t)rc);
  int fd = socket(o->daemon.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  rc = fd < 0 ? err_sys(&o->e, -errno, "rdzvd cannot be asked for a key") : ask_daemon(o, fd, &out, &in, &answer);
  if (fd >= 0) close(fd);
  if (rc == 0) rc = munge_decode_from(answer.data, answer.len, o->payload, MUNGE_PAYLOAD_MAX, &encoder, &o->e);
  len = rc > 0 ? (size_t)rc : 0;
  /* Here, because the user database may hang, too. */
  if (rc >= 0 && o->trusted == MUNGE_DEFAULT_USER) munge_user_find(NULL, &o->trusted, NULL);
  if (rc >= 0 && !user_is_known(encoder))
    rc = err_set(&o->e, -EACCES, "MUNGE names uid %u for rdzvd, which stands for every unknown user here",
                 (unsigned)encoder);
  if (rc >= 0) rc = munge_encoder_check(encoder, geteuid(), o->trusted, &o->e);
  if (rc >= 0) rc = munge_answer_parse(o->payload, len, &nonce, geteuid(), &o->key, &o->e);
  buf_finish(&out);
  buf_finish(&in);
  return rc < 0 ? rc : 0;
}

static void work(void *room) {
  struct order *o = room;
  o->rc = fetch(o);
}

/* In the loop. ----------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle) {
  free(handle->data);
}

void munge_fetch_cancel(struct munge_fetch *f) {
  if (f->aside) aside_leave(f->aside);
  f->aside = NULL;
  uv_close((uv_handle_t *)&f->timer, on_closed);
}

static void answer(struct munge_fetch *f, const struct key *key, const struct err *e) {
  munge_fetch_fn fn = f->fn;
  void *ctx = f->ctx;
  munge_fetch_cancel(f);
  fn(ctx, key, e);
}

static void on_done(void *ctx, void *room) {
  struct munge_fetch *f = ctx;
  struct order *o = room;
  f->aside = NULL;
  answer(f, o->rc ? NULL : &o->key, o->rc ? &o->e : NULL);
}

static void on_deadline(uv_timer_t *timer) {
  struct munge_fetch *f = timer->data;
  struct err e = ERR_INIT;
  err_set(&e, -ETIMEDOUT, "munged of this machine did not answer within %.3g s", (double)f->o.deadline_ms / 1000);
  answer(f, NULL, &e);
}

static void on_begin(uv_timer_t *timer) {
  struct munge_fetch *f = timer->data;
  struct err e = ERR_INIT;
  struct order o = {.daemon = f->o.daemon,
                    .trusted = f->o.trusted,
                    .most_ms = f->o.deadline_ms,
                    .deadline_ms = monotonic_ms() + f->o.deadline_ms};
  uv_timer_start(timer, on_deadline, f->o.deadline_ms + LATER_MS, 0);
  f->aside = aside_start(f->o.loop, work, &o, sizeof(o), on_done, f, &e);
  if (f->aside) return;
  err_wrap(&e, "munged of this machine cannot be asked");
  answer(f, NULL, &e);
}

struct munge_fetch *munge_fetch_start(const struct munge_fetch_options *o, munge_fetch_fn fn, void *ctx) {
  struct munge_fetch *f = xcalloc(1, sizeof(*f));
  *f = (struct munge_fetch){.o = *o, .fn = fn, .ctx = ctx};
  f->timer.data = f;
  uv_timer_init(o->loop, &f->timer);
  uv_timer_start(&f->timer, on_begin, 0, 0);
  return f;
}
