/* SPDX-License-Identifier: Apache-2.0 */
/* Telling the other daemons of --endpoint.
 *
 *   timer -> each address that has no call open: resolve -> connect -> GREETING -> the frame -> the daemon closes
 *
 * A call ends at its deadline, which is shorter than the pause between two, so there is never more than one to an
 * address. If a name has several addresses, each call tries the next one.
 *
 * MOVED is the answer if an older run of the job goes on elsewhere. Then one more call tells the daemon that this agent
 * follows, as a node of the older run would. It gives its own run up. */

#include "agent/link/forward.h"

#include <stdlib.h>
#include "agent/link/resolve.h"
#include "common/mem.h"
#include "common/system/loop.h"
#include "common/system/log.h"
#include "common/net/conn.h"

struct call {
  struct forwarder *owner;
  struct endpoint endpoint;
  uint32_t which;      /* UINT32_MAX: the daemon that is followed */
  struct bytes *frame; /* a reference while the call is open */
  bool said;
  unsigned tries; /* for the next address of the name */
  struct resolve *resolve;
  struct dial *dial;
  uv_timer_t deadline;
};

/* Its memory lives until libuv has closed it, and the next may start before. */
struct dial {
  struct conn conn;
  uv_connect_t req;
  struct call *call; /* NULL: given up */
  struct forwarder *owner;
};

struct forwarder {
  const struct link *link;
  struct link_options o;
  uint32_t every_ms;
  struct call calls[DAEMONS_MAX], home;
  uv_timer_t timer;
  struct bytes *frame; /* NULL: nothing to tell */
  uint32_t current;
  bool own;
  size_t alive; /* handles */
};

static void release(struct forwarder *f) {
  if (--f->alive == 0) free(f);
}

/* One call. -------------------------------------------------------------------------------------------------------- */

static void begin_call(struct call *c, struct bytes *frame); /* takes the reference */

static bool is_open(const struct call *c) {
  return c->resolve || c->dial;
}

static void end_call(struct call *c, const char *why) {
  char text[ENDPOINT_TEXT_MAX];
  struct dial *d = c->dial;
  if (why) {
    endpoint_format(&c->endpoint, text);
    log_debug("%s is not told where the job is: %s", text, why);
  }
  uv_timer_stop(&c->deadline);
  bytes_unref(c->frame);
  c->frame = NULL;
  resolve_cancel(c->resolve);
  c->resolve = NULL;
  c->dial = NULL;
  if (!d) return;
  d->call = NULL;
  if (why)
    conn_close(&d->conn);
  else
    conn_close_flushed(&d->conn);
}

static void on_deadline(uv_timer_t *timer) {
  struct call *c = timer->data;
  end_call(c, c->said ? NULL : "no answer");
}

static void on_msg(struct conn *conn, struct msg *m) {
  struct dial *d = conn->owner;
  struct call *c = d->call;
  if (!c) return;
  if (m->type == MSG_GREETING && !c->said) {
    struct err e = ERR_INIT;
    c->said = !release_check(msg_release(m), "the daemon there", "rdzv-agent", &e);
    if (c->said)
      conn_send_bytes(conn, bytes_ref(c->frame));
    else
      end_call(c, e.text);
  } else if (m->type == MSG_MOVED && c->said) {
    struct call *home = &c->owner->home;
    if (c != home && !is_open(home)) {
      struct bytes *frame = forward_older(c->frame, &m->moved, &home->endpoint);
      if (frame) begin_call(home, frame);
    }
    end_call(c, NULL);
  }
}

static void on_end(struct conn *conn, int code, const char *reason) {
  struct dial *d = conn->owner;
  if (d->call)
    end_call(d->call, d->call->said ? NULL : reason);
  else
    conn_close(conn);
}

static void on_closed(struct conn *conn) {
  struct dial *d = conn->owner;
  release(d->owner);
  free(d);
}

static const struct conn_callbacks callbacks = {.on_msg = on_msg, .on_end = on_end, .on_closed = on_closed};

static void on_connect(uv_connect_t *req, int status) {
  struct dial *d = req->data;
  struct err e = ERR_INIT;
  if (!d->call) return;
  if (status == UV_ECONNREFUSED && d->call->which == 0) local_daemon_serve(d->owner->o.daemon);
  if (status >= 0) conn_use_key(&d->conn, link_key(d->owner->link, d->call->which));
  if (status < 0)
    end_call(d->call, uv_strerror(status));
  else if (conn_start(&d->conn, d->owner->every_ms, &e) < 0)
    end_call(d->call, e.text);
}

static void on_resolved(void *ctx, const struct address_list *found, const struct err *e) {
  struct call *c = ctx;
  struct forwarder *f = c->owner;
  c->resolve = NULL;
  if (e) {
    end_call(c, e->text);
    return;
  }
  struct dial *d = xcalloc(1, sizeof(*d));
  conn_init_tcp(&d->conn, f->o.loop, &callbacks, d, false);
  d->call = c;
  d->owner = f;
  d->req.data = d;
  c->dial = d;
  f->alive++;
  int rc = uv_tcp_connect(&d->req, &d->conn.tcp, &found->v[c->tries++ % found->n].any, on_connect);
  if (rc < 0) end_call(c, uv_strerror(rc));
}

static void begin_call(struct call *c, struct bytes *frame) {
  struct forwarder *f = c->owner;
  if (is_open(c)) {
    bytes_unref(frame);
    return;
  }
  c->frame = frame;
  c->said = false;
  loop_timer_in(&c->deadline, on_deadline, f->every_ms * 4 / 5);
  struct resolve *r = resolve_start(f->o.loop, &c->endpoint, &f->o.words, on_resolved, c);
  if (r) c->resolve = r;
}

/* All of them. ----------------------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer) {
  struct forwarder *f = timer->data;
  for (uint32_t i = 0; i < (f->own ? 1 : f->o.n_endpoints); i++)
    if (i != f->current) begin_call(&f->calls[i], bytes_ref(f->frame));
}

void forwarder_set(struct forwarder *f, struct bytes *frame, uint32_t current, bool own) {
  bytes_unref(f->frame);
  f->frame = frame;
  f->current = current;
  f->own = own;
  uv_timer_stop(&f->timer);
  for (size_t i = 0; i < f->o.n_endpoints; i++)
    if (is_open(&f->calls[i])) end_call(&f->calls[i], "the job has moved on");
  if (is_open(&f->home)) end_call(&f->home, "the job has moved on");
  if (frame && (!own || local_daemon_is_at_endpoint(f->o.daemon))) uv_timer_start(&f->timer, on_timer, 0, f->every_ms);
}

static void open_call(struct call *c) {
  uv_timer_init(c->owner->o.loop, &c->deadline);
  c->deadline.data = c;
  c->owner->alive++;
}

struct forwarder *forwarder_create(const struct link *link, const struct link_options *o, uint32_t every_ms) {
  struct forwarder *f = xcalloc(1, sizeof(*f));
  f->link = link;
  f->o = *o;
  f->every_ms = every_ms;
  uv_timer_init(o->loop, &f->timer);
  f->timer.data = f;
  f->alive = 1;
  for (uint32_t i = 0; i < o->n_endpoints; i++) {
    f->calls[i] = (struct call){.owner = f, .endpoint = o->endpoints[i], .which = i};
    open_call(&f->calls[i]);
  }
  f->home = (struct call){.owner = f, .which = UINT32_MAX};
  open_call(&f->home);
  return f;
}

static void on_timer_closed(uv_handle_t *handle) {
  release(handle->data);
}

static void on_deadline_closed(uv_handle_t *handle) {
  release(((struct call *)handle->data)->owner);
}

void forwarder_destroy(struct forwarder *f) {
  if (!f) return;
  forwarder_set(f, NULL, UINT32_MAX, false);
  for (size_t i = 0; i < f->o.n_endpoints; i++) uv_close((uv_handle_t *)&f->calls[i].deadline, on_deadline_closed);
  uv_close((uv_handle_t *)&f->home.deadline, on_deadline_closed);
  uv_close((uv_handle_t *)&f->timer, on_timer_closed);
}
