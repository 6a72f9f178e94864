/* Reaching the daemon.
 *
 *   link_open -> addresses (numeric, or looked up; standalone: our own daemon's) -> one after the other, 2 s each
 *             -> connected: on_up
 *             -> a machine's own address refused: our own daemon is started, or the neighbour's is waited for, and once more
 *             -> on_down with one sentence about what was tried
 *
 * Several addresses are tried in turn, in the order of the resolver: a daemon on the same network answers or
 * refuses within a millisecond, and two connections at once would both be HELLOs. What succeeded last is
 * tried first, so that a reconnection does not wait for an address that never works.
 *
 * When a lookup fails but an earlier one worked, the earlier addresses are used: a name server that is away
 * must not end a job whose daemon is there.
 *
 * "Refused" means that the very address at which the daemon had welcomed us refused. Then no daemon runs there any more, which is
 * evidence; a timeout, or another address that refuses, is only silence.
 *
 * Each connection is an object of its own (struct peer), because its memory lives until libuv has closed it,
 * and by then the next attempt may be under way. */

#include "agent/link/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum {
  LOOKUP_MS = 5000,
  CONNECT_MS = 2000, /* one address */
  FOREIGN_MS = 10000,
  TAKEN_TRIES = 20, /* somebody has bound the port but does not listen yet: tried again every TAKEN_MS */
  TAKEN_MS = 5,
};

struct peer {
  struct conn conn;
  uv_connect_t req;
  struct link *link; /* NULL: given up, only waiting to be closed */
  struct link *home; /* the same, always */
  bool welcomed;     /* whom it was connected to is known: an end is told by its reason alone */
};

enum link_state { LINK_SHUT, LINK_RESOLVING, LINK_DAEMON, LINK_DIALING, LINK_UP };

struct link {
  struct link_options o;
  enum link_state state;
  struct resolve *resolve;
  struct addresses addresses;
  size_t at, refusals;
  int errors[ADDRESSES_MAX]; /* of each address, in this attempt */
  bool started_daemon;       /* in this attempt */
  bool taken;                /* ours could not be: somebody else has the port */
  int taken_tries;
  struct peer *peer;
  uv_timer_t timer;
  union address last_peer;
  bool has_last_peer;
  union address home; /* where we were welcomed last */
  bool has_home;
  bool foreign; /* the last daemon was somebody else's to start */
  uint64_t refused_since_ms;
  int alive; /* handles: connections and the timer */
};

static void dial(struct link *l);
static void on_resolved(void *ctx, const struct addresses *found, const struct err *e);
static void on_timer(uv_timer_t *timer);

/* The end of an attempt. ------------------------------------------------------------------------------------------- */

static void drop_peer(struct link *l, bool flushed) {
  struct peer *p = l->peer;
  if (!p) return;
  p->link = NULL;
  l->peer = NULL;
  if (flushed)
    conn_close_flushed(&p->conn);
  else
    conn_close(&p->conn);
}

static void settle(struct link *l, enum link_state state) {
  uv_timer_stop(&l->timer);
  resolve_cancel(l->resolve);
  l->resolve = NULL;
  l->state = state;
}

static void go_down_with(struct link *l, bool refused, int fatal, const char *why) {
  settle(l, LINK_SHUT);
  drop_peer(l, false);
  l->o.cb->on_down(l->o.ctx, refused, fatal, why);
}

static void go_down(struct link *l, bool refused, const char *why) {
  go_down_with(l, refused, 0, why);
}

enum { ADDRESSES_NAMED_MAX = 4 };

/* "node1:29400 (10.0.0.5)"; which SIZE_MAX: all of its addresses. */
static void name_target(const struct link *l, size_t which, struct buf *out) {
  char text[ENDPOINT_TEXT_MAX], addr[ADDR_MAX + 1];
  size_t first = which == SIZE_MAX ? 0 : which, n = which == SIZE_MAX ? l->addresses.n : first + 1;
  address_text(&l->addresses.v[first], addr);
  if (l->o.standalone) {
    buf_printf(out, "%s:%u", addr, (unsigned)ntohs(l->addresses.v[first].v4.sin_port));
    return;
  }
  endpoint_format(&l->o.endpoint, text);
  buf_puts(out, text);
  if (n == 1 && !strcmp(addr, l->o.endpoint.host)) return;
  for (size_t i = first; i < n && i < first + ADDRESSES_NAMED_MAX; i++) {
    address_text(&l->addresses.v[i], addr);
    buf_printf(out, "%s%s", i > first ? ", " : " (", addr);
  }
  if (n > first + ADDRESSES_NAMED_MAX) buf_printf(out, " and %zu more", n - first - ADDRESSES_NAMED_MAX);
  buf_putc(out, ')');
}

/* One address, or all for the same reason. */
static void put_reason(const struct link *l, int error, const char *where, struct buf *out) {
  if (error == UV_ECONNREFUSED && l->taken)
    buf_printf(out, "%s is held by a program that takes no connections: %s", where,
               l->o.derived ? "give --endpoint HOST:PORT, with another port, the same to all agents"
                            : "choose another port");
  else if (error == UV_ECONNREFUSED)
    buf_printf(out, "nobody listens at %s: %s", where,
               l->o.derived ? "the agent there is to start rdzvd, and has not yet"
                            : "start rdzvd there, or an agent with the same --endpoint");
  else if (error == UV_ETIMEDOUT)
    buf_printf(out, "%s does not answer: is the machine up, and the port open in its firewall?", where);
  else if (error == UV_ENETUNREACH || error == UV_EHOSTUNREACH)
    buf_printf(out, "there is no way to %s from this machine: check the address and the network", where);
  else
    buf_printf(out, "no connection to %s: %s", where, uv_strerror(error));
}

static const char *short_reason(int error) {
  if (error == UV_ECONNREFUSED) return "nobody listens";
  if (error == UV_ETIMEDOUT) return "no answer";
  if (error == UV_ENETUNREACH || error == UV_EHOSTUNREACH) return "no way there";
  return uv_strerror(error);
}

/* "no connection to node1:29400: 10.0.0.5 (nobody listens), 10.1.0.5 (no answer)" */
static void put_reasons(const struct link *l, struct buf *out) {
  char text[ENDPOINT_TEXT_MAX], addr[ADDR_MAX + 1];
  endpoint_format(&l->o.endpoint, text);
  buf_printf(out, "no connection to %s: ", text);
  for (size_t i = 0; i < l->addresses.n; i++) {
    address_text(&l->addresses.v[i], addr);
    buf_printf(out, "%s%s (%s)", i ? ", " : "", addr, short_reason(l->errors[i]));
  }
}

static bool home_refused(const struct link *l) {
  for (size_t i = 0; l->has_home && i < l->addresses.n; i++)
    if (l->errors[i] == UV_ECONNREFUSED && memcmp(&l->home, &l->addresses.v[i], address_size(&l->home)) == 0)
      return true;
  return false;
}

static void fail_to_connect(struct link *l) {
  bool same = true;
  struct buf where = BUF_INIT, why = BUF_INIT;
  for (size_t i = 1; i < l->addresses.n; i++) same = same && l->errors[i] == l->errors[0];
  name_target(l, SIZE_MAX, &where);
  if (same)
    put_reason(l, l->errors[0], buf_text(&where), &why);
  else
    put_reasons(l, &why);
  go_down(l, home_refused(l), buf_text(&why));
  buf_finish(&where);
  buf_finish(&why);
}

/* Connections. ----------------------------------------------------------------------------------------------------- */

static void on_conn_msg(struct conn *c, struct msg *m) {
  struct peer *p = c->owner;
  if (m->type == MSG_WELCOME) {
    c->max_body = FRAME_MAX_TO_AGENT;
    p->welcomed = true;
    if (p->link) {
      p->link->home = p->link->addresses.v[p->link->at];
      p->link->has_home = true;
    }
  }
  if (p->link) p->link->o.cb->on_msg(p->link->o.ctx, m);
}

static void on_conn_end(struct conn *c, int code, const char *reason) {
  struct peer *p = c->owner;
  struct link *l = p->link;
  if (!l) {
    conn_close(c);
    return;
  }
  struct buf where = BUF_INIT, why = BUF_INIT;
  name_target(l, l->at, &where);
  if (!p->welcomed)
    buf_printf(&why, "what listens at %s is no rdzvd, or hung up before it greeted: ", buf_text(&where));
  buf_puts(&why, reason);
  go_down(l, false, buf_text(&why));
  buf_finish(&where);
  buf_finish(&why);
}

/* Memory goes with the last handle. */
static void release(struct link *l) {
  if (--l->alive == 0) free(l);
}

static void on_conn_closed(struct conn *c) {
  struct peer *p = c->owner;
  release(p->home);
  free(p);
}

static const struct conn_callbacks peer_callbacks = {
    .on_msg = on_conn_msg,
    .on_end = on_conn_end,
    .on_closed = on_conn_closed,
};

/* Dialing. --------------------------------------------------------------------------------------------------------- */

static void be_up(struct link *l) {
  struct err e = ERR_INIT;
  int rc = conn_start(&l->peer->conn, l->o.user_timeout_ms, &e);
  if (rc) {
    go_down(l, false, e.text);
    return;
  }
  settle(l, LINK_UP);
  l->last_peer = l->addresses.v[l->at];
  l->has_last_peer = true;
  l->foreign = !local_daemon_owned(l->o.daemon);
  l->refused_since_ms = 0;
  bool moved = l->has_home && memcmp(&l->home, &l->last_peer, address_size(&l->home)) != 0;
  l->o.cb->on_up(l->o.ctx, moved);
}

static void want_daemon(struct link *l) {
  l->state = LINK_DAEMON;
  l->started_daemon = true;
  local_daemon_want(l->o.daemon);
}

/* A daemon that somebody else had started is theirs to start again, at the same port; only when they have not
 * done so for a while is it replaced by our own. */
static bool may_replace(struct link *l) {
  if (!l->foreign) return true;
  uint64_t now = uv_now(l->o.loop);
  if (!l->refused_since_ms) l->refused_since_ms = now;
  return now - l->refused_since_ms >= FOREIGN_MS;
}

/* Whether rdzvd at the endpoint is ours to start: this machine refused, or we are told that it is the host. (Then the
 * endpoint may lead here through an address translation that we cannot see.) */
static bool is_host(const struct link *l) {
  bool local = l->o.hosting == HOST_ALWAYS;
  for (size_t i = 0; l->refusals && i < l->addresses.n; i++)
    local = local || (l->errors[i] == UV_ECONNREFUSED && address_is_local(&l->addresses.v[i]));
  return local && l->o.hosting != HOST_NEVER;
}

/* Every address was tried in vain. */
static void on_exhausted(struct link *l) {
  bool local = is_host(l);
  if (local && !l->started_daemon && may_replace(l)) {
    want_daemon(l);
  } else if (local && l->taken_tries > 0) {
    l->taken_tries--;
    uv_timer_start(&l->timer, on_timer, TAKEN_MS, 0);
  } else {
    fail_to_connect(l);
  }
}

/* The address at hand failed. */
static void next(struct link *l, int error) {
  uv_timer_stop(&l->timer);
  drop_peer(l, false);
  l->errors[l->at++] = error;
  if (error == UV_ECONNREFUSED) l->refusals++;
  dial(l);
}

static void on_connect(uv_connect_t *req, int status) {
  struct peer *p = req->data;
  if (!p->link) return; /* given up */
  if (status)
    next(p->link, status);
  else
    be_up(p->link);
}

/* Connects to addresses[at], or to the next one for which that can even be begun. */
static void dial(struct link *l) {
  l->state = LINK_DIALING;
  if (l->at == l->addresses.n) {
    on_exhausted(l);
    return;
  }
  struct peer *p = xcalloc(1, sizeof(*p));
  conn_init_tcp(&p->conn, l->o.loop, &peer_callbacks, p, false);
  p->link = p->home = l;
  p->req.data = p;
  l->peer = p;
  l->alive++;
  uv_update_time(l->o.loop);
  uv_timer_start(&l->timer, on_timer, CONNECT_MS, 0);
  int rc = uv_tcp_connect(&p->req, &p->conn.tcp, &l->addresses.v[l->at].sa, on_connect);
  if (rc) next(l, rc);
}

static void dial_all(struct link *l) {
  l->at = l->refusals = 0;
  memset(l->errors, 0, sizeof(l->errors));
  dial(l);
}

static void give_lookup_up(struct link *l) {
  struct err e = ERR_INIT;
  resolve_cancel(l->resolve);
  err_set(&e, -ETIMEDOUT, "the name \"%s\" in --endpoint is being looked up for %d s: no name server answers",
          l->o.endpoint.host, LOOKUP_MS / 1000);
  on_resolved(l, NULL, &e);
}

static void on_timer(uv_timer_t *timer) {
  struct link *l = timer->data;
  if (l->state == LINK_RESOLVING)
    give_lookup_up(l);
  else if (l->peer)
    next(l, UV_ETIMEDOUT);
  else
    dial_all(l);
}

/* Where to. -------------------------------------------------------------------------------------------------------- */

/* What worked last comes first. */
static void prefer_last(struct link *l) {
  for (size_t i = 1; l->has_last_peer && i < l->addresses.n; i++) {
    union address a = l->addresses.v[i];
    if (memcmp(&a, &l->last_peer, address_size(&a)) != 0) continue;
    memmove(&l->addresses.v[1], &l->addresses.v[0], i * sizeof(a));
    l->addresses.v[0] = a;
    return;
  }
}

static void on_resolved(void *ctx, const struct addresses *found, const struct err *e) {
  struct link *l = ctx;
  l->resolve = NULL;
  if (e && l->addresses.n == 0) {
    go_down(l, false, e->text);
    return;
  }
  if (!e) l->addresses = *found;
  prefer_last(l);
  dial_all(l);
}

static void on_daemon_ready(void *ctx, uint16_t port) {
  struct link *l = ctx;
  if (l->state != LINK_DAEMON) return;
  if (l->o.standalone) {
    l->addresses = (struct addresses){.n = 1};
    uv_ip4_addr("127.0.0.1", port, &l->addresses.v[0].v4);
  }
  dial_all(l);
}

static void on_daemon_failed(void *ctx, bool taken, int fatal, const struct err *e) {
  struct link *l = ctx;
  if (l->state != LINK_DAEMON) return;
  if (taken && !l->o.standalone) {
    l->taken = true;
    l->taken_tries = TAKEN_TRIES;
    dial_all(l);
  } else {
    go_down_with(l, false, fatal, e->text);
  }
}

void link_open(struct link *l) {
  if (l->state != LINK_SHUT) return;
  l->started_daemon = false;
  l->taken = false;
  l->taken_tries = 0;
  if (l->o.standalone) {
    want_daemon(l);
  } else {
    l->state = LINK_RESOLVING;
    struct resolve *r = resolve_start(l->o.loop, &l->o.endpoint, &l->o.words, on_resolved, l);
    if (!r) return;
    l->resolve = r;
    uv_update_time(l->o.loop);
    uv_timer_start(&l->timer, on_timer, LOOKUP_MS, 0);
  }
}

void link_send(struct link *l, struct bytes *b) {
  if (l->state == LINK_UP)
    conn_send_bytes(&l->peer->conn, b);
  else
    bytes_unref(b);
}

void link_shut(struct link *l) {
  bool up = l->state == LINK_UP;
  settle(l, LINK_SHUT);
  drop_peer(l, up);
}

bool link_is_shut(const struct link *l) {
  return l->state == LINK_SHUT && l->alive == 1;
}

bool link_peer(const struct link *l, union address *peer) {
  if (l->has_last_peer) *peer = l->last_peer;
  return l->has_last_peer;
}

/* ------------------------------------------------------------------------------------------------------------------ */

struct link *link_create(const struct link_options *o) {
  static const struct local_daemon_callbacks daemon_callbacks = {on_daemon_ready, on_daemon_failed};
  struct link *l = xcalloc(1, sizeof(*l));
  l->o = *o;
  l->alive = 1;
  uv_timer_init(o->loop, &l->timer);
  l->timer.data = l;
  local_daemon_bind(o->daemon, &daemon_callbacks, l);
  return l;
}

static void on_timer_closed(uv_handle_t *handle) {
  release(handle->data);
}

void link_destroy(struct link *l) {
  if (!l) return;
  link_shut(l);
  uv_close((uv_handle_t *)&l->timer, on_timer_closed);
}
