/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting to the daemon.
 *
 *   link_open -> addresses (numeric, or resolved; standalone: our own daemon's) -> one after the other, 2 s each
 *             -> connected: on_up
 *             -> an address of this machine refused, of the first endpoint: our own daemon starts, or the neighbour's
 *                is awaited; once more
 *             -> on_down with one sentence about the attempt
 *
 * --endpoint may name several daemons. An attempt is for one of them, for a daemon of another agent, or for our own on
 * its reserved port (target_addresses.c). A daemon is started for the first address of --endpoint alone: those at the
 * others are started by people.
 *
 * Addresses are tried in turn, in the resolver's order: a daemon on the same network answers or refuses within a
 * millisecond, and two connections at once would both be HELLOs. The last successful address is tried first, so that a
 * reconnection does not wait for one that never works.
 *
 * Another agent's reserved port refuses until that agent starts rdzvd, which takes it as long as it took us to notice
 * that the old one is gone. So a refusal there is not final at once. Otherwise each agent would go on to its own port, and
 * all would have a daemon of their own.
 *
 * If resolving fails, earlier addresses are used: an absent name server must not end a job whose daemon runs.
 *
 * A daemon with another key, as the one of a whole cluster, may give this user his own by MUNGE. Then the same address
 * is dialed again with that key. The owner's first message follows the daemon's, so the owner need not know; it learns
 * on_user_key, since no agent starts a daemon for such a job. Each address of --endpoint has a key of its own. A daemon
 * that refuses that key as well has restarted with another; the next attempt begins with the key that was found first.
 *
 * A channel gives a ticket, with which the next one costs both sides little: ten thousand agents come back to a daemon
 * that has restarted. It is used for one opening, wherever that goes. If the daemon does not take it, the same address
 * is dialed again with the key.
 *
 * Another program may use the endpoint's port. One on this machine is named after a second. A program that waits for a
 * line before it speaks, as HTTP servers do, gets two line ends shortly before the supervisor gives the connection up;
 * its answer shows what it is.
 *
 * Each connection is an object (struct attempt), because its memory lives until libuv has closed it, and the next
 * attempt may start before. */

#include "agent/link/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/link/host_addrs.h"
#include "agent/link/link_internal.h"
#include "common/net/munge_fetch.h"
#include "proto/refusal.h"
#include "common/exit_codes.h"
#include "common/err.h"
#include "common/key/munge.h"
#include "common/key/secret.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/log.h"

enum {
  LOOKUP_MS = 5000,
  CONNECT_MS = 2000, /* per address */
  HOLDER_MS = 1000,  /* of silence, until the listening program is looked up */
  KNOCK_MS = 4000,   /* of silence, until it gets two line ends; < SUPERVISOR_HELLO_MS */
  TAKEN_TRIES = 20,  /* the port is bound but not listening yet: tried again every TAKEN_MS */
  TAKEN_MS = 5,
  KNOCK_AGAIN_MS = 25,
  MUNGE_MS = 4000, /* < SUPERVISOR_HELLO_MS */
};

struct attempt {
  struct conn conn;
  uv_connect_t req;
  struct link *link; /* NULL: given up, waiting to be closed */
  struct link *home; /* the same, always */
  bool resumes;      /* with a ticket */
  bool welcomed;     /* the peer is known: the reason alone explains an end */
};

static void dial_address(struct link *l);
static void on_resolved(void *ctx, const struct address_list *found, const struct err *e);
static void on_link_timer(uv_timer_t *timer);

/* The end of an attempt. ------------------------------------------------------------------------------------------- */

static void drop_peer(struct link *l, bool flushed) {
  struct attempt *a = l->attempt;
  if (!a) return;
  a->link = NULL;
  l->attempt = NULL;
  if (flushed)
    conn_close_flushed(&a->conn);
  else
    conn_close(&a->conn);
}

static void enter_state(struct link *l, enum link_state state) {
  uv_timer_stop(&l->timer);
  resolve_cancel(l->resolve);
  l->resolve = NULL;
  if (l->fetch) munge_fetch_cancel(l->fetch);
  l->fetch = NULL;
  l->state = state;
}

static void go_down_with(struct link *l, const struct link_down *down) {
  l->again = false;
  enter_state(l, LINK_SHUT);
  drop_peer(l, false);
  l->o.cb->on_down(l->o.ctx, down);
}

static void go_down(struct link *l, const char *why) {
  go_down_with(l, &(struct link_down){.why = why});
}

/* Connections. ----------------------------------------------------------------------------------------------------- */

static void keep_ticket(struct link *l, struct channel_ticket *ticket) {
  secret_free(l->ticket);
  l->ticket = ticket;
}

static void on_conn_msg(struct conn *c, struct msg *m) {
  struct attempt *a = c->owner;
  if (m->type == MSG_GREETING && a->link) keep_ticket(a->link, channel_take_ticket(&c->channel, m->greeting.ticket));
  if (m->type == MSG_WELCOME) {
    c->max_body = FRAME_MAX_TO_AGENT;
    a->welcomed = true;
    if (a->link) {
      a->link->home = a->link->to->addresses.v[a->link->at];
      a->link->has_home = true;
    }
  }
  if (a->link) a->link->o.cb->on_msg(a->link->o.ctx, m);
}

/* What munged or the daemon has said of this user's credential, or that one of the two machines has no MUNGE. Anything
 * else may pass: a daemon or a munged that starts again (for MUNGE_AWAY_MS), one that is busy, a network that fails. */
static bool is_verdict(const struct err *munge) {
  return munge->code == -EACCES || munge->code == -EPROTO || munge->code == -ENOENT || munge->code == -ENOKEY;
}

/* munge: why MUNGE brings no key; NULL: it was not asked. */
static void tell_refusal(struct link *l, enum channel_status status, enum channel_source source,
                         const struct err *munge) {
  struct buf where = BUF_INIT, why = BUF_INIT;
  link_name_target(l, l->at, &where);
  refusal_put(&why, &(struct refusal){.status = status,
                                      .source = source,
                                      .where = buf_text(&where),
                                      .endpoint = &l->to->endpoint,
                                      .who = "this agent",
                                      .key_from = l->o.key_from,
                                      .named = !l->o.munge,
                                      .munge = munge ? munge->text : NULL});
  bool final = status == CHANNEL_WRONG_KEY || status == CHANNEL_NO_KEY;
  if (munge && !is_verdict(munge)) final = false;
  go_down_with(l, &(struct link_down){.fatal = final ? EXIT_CODE_REFUSED : 0, .why = buf_text(&why)});
  buf_finish(&where);
  buf_finish(&why);
}

static void on_fetched(void *ctx, const struct key *key, const struct err *e) {
  struct link *l = ctx;
  l->fetch = NULL;
  if (!key) {
    tell_refusal(l, CHANNEL_WRONG_KEY, l->refused_source, e);
    return;
  }
  log_debug("MUNGE has brought the key of this user");
  l->to->fetched = secret_alloc();
  *l->to->fetched = *key;
  l->again = true;
  l->o.cb->on_user_key(l->o.ctx);
  dial_address(l);
}

/* The daemon does not take our ticket: it has another key now, or was away for too long. */
static void open_with_key(struct link *l) {
  log_debug("the daemon does not take the ticket of the last connection: this one is opened with the key");
  drop_peer(l, false);
  l->again = true;
  dial_address(l);
}

/* The daemon refuses our key. Nothing vouches for that: an agent that was welcomed before keeps trying. */
static void end_refused(struct link *l, const struct conn *c) {
  enum channel_status status = c->refusal;
  enum channel_source source = c->refusal_key;
  if (status == CHANNEL_WRONG_KEY && l->to->fetched) {
    link_forget_fetched(l->to);
    go_down(l, "rdzvd refuses the key that it gave by MUNGE: it may have restarted with another one");
  } else if (status == CHANNEL_WRONG_KEY && l->o.munge && munge_expected(monotonic_ms())) {
    struct munge_fetch_options o = {
        .loop = l->o.loop, .daemon = l->to->addresses.v[l->at], .trusted = l->o.munge_user, .deadline_ms = MUNGE_MS};
    enter_state(l, LINK_MUNGE);
    drop_peer(l, false);
    l->refused_source = source;
    uv_update_time(l->o.loop);
    l->fetch = munge_fetch_start(&o, on_fetched, l);
  } else {
    tell_refusal(l, status, source, NULL);
  }
}

static void on_conn_end(struct conn *c, int code, const char *reason) {
  struct attempt *a = c->owner;
  struct link *l = a->link;
  if (!l) {
    conn_close(c);
    return;
  }
  if (code == -EACCES && c->refusal != CHANNEL_OK) {
    if (a->resumes && c->refusal == CHANNEL_WRONG_KEY)
      open_with_key(l);
    else
      end_refused(l, c);
    return;
  }
  bool foreign = !c->heard && (code == -EPROTO || code == -EMSGSIZE || code == -EBADMSG);
  struct buf where = BUF_INIT, why = BUF_INIT;
  if (!a->welcomed) {
    link_name_target(l, l->at, &where);
    link_put_holder(l, &why);
    buf_printf(&why, " listens at %s and %s", buf_text(&where),
               foreign ? "" : "hung up before it greeted this agent: ");
  }
  buf_puts(&why, reason);
  go_down_with(l, &(struct link_down){.foreign = foreign, .why = buf_text(&why)});
  buf_finish(&where);
  buf_finish(&why);
}

/* rdzvd speaks first, and at once. If it is rdzvd after all, the connection would be dropped soon anyway. */
static void on_silence(struct link *l) {
  struct conn *c = &l->attempt->conn;
  if (c->heard) return;
  if (l->knocks++ > 0) {
    conn_knock(c);
    return;
  }
  uv_timer_start(&l->timer, on_link_timer, KNOCK_MS - HOLDER_MS, 0);
  struct buf where = BUF_INIT, who = BUF_INIT;
  if (link_put_holder(l, &who)) {
    link_name_target(l, l->at, &where);
    buf_printf(&who, " listens at %s, is not rdzvd and has not answered", buf_text(&where));
    l->o.cb->on_other_program(l->o.ctx, buf_text(&who));
  }
  buf_finish(&where);
  buf_finish(&who);
}

/* Memory goes with the last handle. */
static void release(struct link *l) {
  if (--l->alive == 0) free(l);
}

static void on_conn_closed(struct conn *c) {
  struct attempt *a = c->owner;
  release(a->home);
  free(a);
}

static const struct conn_callbacks peer_callbacks = {
    .on_msg = on_conn_msg,
    .on_end = on_conn_end,
    .on_closed = on_conn_closed,
};

/* Dialing. --------------------------------------------------------------------------------------------------------- */

static void be_up(struct link *l) {
  struct err e = ERR_INIT;
  struct attempt *a = l->attempt;
  a->resumes = a->conn.key && l->ticket;
  if (a->resumes) conn_use_ticket(&a->conn, l->ticket);
  int rc = conn_start(&a->conn, l->o.user_timeout_ms, &e);
  if (a->resumes) keep_ticket(l, NULL);
  if (rc) {
    go_down(l, e.text);
    return;
  }
  enter_state(l, LINK_UP);
  l->knocks = 0;
  uv_timer_start(&l->timer, on_link_timer, HOLDER_MS, 0);
  l->last_peer = l->to->addresses.v[l->at];
  l->has_last_peer = true;
  char peer[ADDR_MAX + 1];
  uint16_t port;
  conn_addresses(&l->attempt->conn, peer, l->own_addr, &port);
  if (l->to == l->targets) {
    l->foreign = !local_daemon_owned(l->o.daemon);
    l->refused_since_ms = 0;
  }
  bool again = l->again; /* with MUNGE's key: the owner knows */
  l->again = false;
  if (again) return;
  bool moved = l->has_home && memcmp(&l->home, &l->last_peer, address_size(&l->home)) != 0;
  l->o.cb->on_up(l->o.ctx, moved);
}

static void want_daemon(struct link *l) {
  l->state = LINK_DAEMON;
  l->started_daemon = true;
  local_daemon_want(l->o.daemon, l->where == LINK_TO_OWN);
}

/* Every address failed. */
static void on_exhausted(struct link *l) {
  bool local = link_is_host(l);
  if (link_is_early(l)) {
    uv_timer_start(&l->timer, on_link_timer, KNOCK_AGAIN_MS, 0);
    return;
  }
  if (local && !l->started_daemon && link_may_replace(l)) {
    want_daemon(l);
  } else if (local && l->taken_tries > 0) {
    l->taken_tries--;
    uv_timer_start(&l->timer, on_link_timer, TAKEN_MS, 0);
  } else {
    /* A limit of descriptors under which this process has never had a connection does not pass. */
    struct buf why = BUF_INIT;
    bool limited = !l->has_last_peer && l->at > 0 && l->errors[l->at - 1] == UV_EMFILE;
    link_put_failure(l, &why);
    if (limited) buf_printf(&why, "; %s", limit_advice(EMFILE));
    go_down_with(l, &(struct link_down){.fatal = limited ? EXIT_CODE_SYSTEM : 0, .why = buf_text(&why)});
    buf_finish(&why);
  }
}

/* The current address failed. */
static void try_next_address(struct link *l, int error) {
  uv_timer_stop(&l->timer);
  drop_peer(l, false);
  l->errors[l->at++] = error;
  if (error == UV_ECONNREFUSED) l->refusals++;
  dial_address(l);
}

static void on_connect(uv_connect_t *req, int status) {
  struct attempt *a = req->data;
  if (!a->link) return; /* given up */
  if (status)
    try_next_address(a->link, status);
  else
    be_up(a->link);
}

static struct attempt *new_attempt(struct link *l) {
  struct attempt *a = xcalloc(1, sizeof(*a));
  a->link = a->home = l;
  a->req.data = a;
  l->attempt = a;
  l->alive++;
  return a;
}

static void begin_addresses(struct link *l) {
  l->at = l->refusals = 0;
  memset(l->errors, 0, sizeof(l->errors));
}

/* Our own daemon is at the other end of this socket. */
static void adopt_socket(struct link *l, int fd) {
  begin_addresses(l);
  struct attempt *a = new_attempt(l);
  conn_init_pipe(&a->conn, l->o.loop, &peer_callbacks, a, false);
  conn_skip_preface(&a->conn);
  int rc = uv_pipe_open(&a->conn.pipe, fd);
  if (rc) {
    close(fd);
    go_down(l, uv_strerror(rc));
    return;
  }
  be_up(l);
}

/* Connects to addresses[at], or to the next one if that cannot begin. */
static void dial_address(struct link *l) {
  l->state = LINK_DIALING;
  if (l->at == l->to->addresses.n) {
    on_exhausted(l);
    return;
  }
  struct attempt *a = new_attempt(l);
  conn_init_tcp(&a->conn, l->o.loop, &peer_callbacks, a, false);
  conn_use_key(&a->conn, l->to->fetched ? l->to->fetched : l->o.key);
  uv_update_time(l->o.loop);
  uv_timer_start(&l->timer, on_link_timer, l->timeout_ms ? l->timeout_ms : CONNECT_MS, 0);
  int rc = uv_tcp_connect(&a->req, &a->conn.tcp, &l->to->addresses.v[l->at].any, on_connect);
  if (rc) try_next_address(l, rc);
}

static void dial_all(struct link *l) {
  begin_addresses(l);
  dial_address(l);
}

/* Earlier addresses will do, if a name server is late. */
static uint32_t lookup_ms(const struct link *l) {
  return l->timeout_ms && l->to->addresses.n ? l->timeout_ms : LOOKUP_MS;
}

static void give_lookup_up(struct link *l) {
  struct err e = ERR_INIT;
  resolve_cancel(l->resolve);
  err_set(&e, -ETIMEDOUT, "the name \"%s\" in --endpoint was not found within %g s: no name server answers",
          l->to->endpoint.host, lookup_ms(l) / 1000.0);
  on_resolved(l, NULL, &e);
}

static void on_link_timer(uv_timer_t *timer) {
  struct link *l = timer->data;
  if (l->state == LINK_RESOLVING)
    give_lookup_up(l);
  else if (l->state == LINK_UP)
    on_silence(l);
  else if (l->attempt)
    try_next_address(l, UV_ETIMEDOUT);
  else
    dial_all(l);
}

/* Where to. -------------------------------------------------------------------------------------------------------- */

static void on_resolved(void *ctx, const struct address_list *found, const struct err *e) {
  struct link *l = ctx;
  l->resolve = NULL;
  if (e && l->to->addresses.n == 0) {
    go_down_with(l, &(struct link_down){.unknown = e->code == -ENOENT, .why = e->text});
    return;
  }
  if (!e) l->to->addresses = *found;
  link_prefer_last(l);
  dial_all(l);
}

static void on_daemon_ready(void *ctx, uint16_t port) {
  struct link *l = ctx;
  if (l->state != LINK_DAEMON) return;
  if (l->o.standalone || l->where == LINK_TO_OWN) link_find_own(l, port);
  int fd = local_daemon_take_talk(l->o.daemon);
  if (fd >= 0)
    adopt_socket(l, fd);
  else
    dial_all(l);
}

static void on_daemon_failed(void *ctx, bool taken, int fatal, const struct err *e) {
  struct link *l = ctx;
  if (l->state != LINK_DAEMON) return;
  if (taken && !l->o.standalone && l->where == LINK_TO_ENDPOINT) {
    l->taken = true;
    l->taken_tries = TAKEN_TRIES;
    dial_all(l);
  } else {
    go_down_with(l, &(struct link_down){.fatal = fatal, .why = e->text});
  }
}

static void find_endpoint(struct link *l) {
  l->state = LINK_RESOLVING;
  struct resolve *r = resolve_start(l->o.loop, &l->to->endpoint, &l->o.words, on_resolved, l);
  if (!r) return;
  l->resolve = r;
  uv_update_time(l->o.loop);
  uv_timer_start(&l->timer, on_link_timer, lookup_ms(l), 0);
}

void link_open(struct link *l, const struct link_to *to) {
  if (l->state != LINK_SHUT) return;
  l->started_daemon = false;
  l->taken = false;
  l->taken_tries = 0;
  uv_update_time(l->o.loop);
  l->began_ms = uv_now(l->o.loop);
  if (!link_choose_target(l, to))
    go_down(l, "the next daemon has no numeric address");
  else if (l->where == LINK_TO_ADDRESS)
    dial_all(l);
  else if (l->where == LINK_TO_OWN && !local_daemon_standby_port(l->o.daemon))
    go_down(l, "this agent has reserved no port for rdzvd");
  else if (l->o.standalone || l->where == LINK_TO_OWN)
    want_daemon(l);
  else
    find_endpoint(l);
}

void link_send(struct link *l, struct bytes *b) {
  if (l->state == LINK_UP)
    conn_send_bytes(&l->attempt->conn, b);
  else
    bytes_unref(b);
}

void link_shut(struct link *l) {
  bool up = l->state == LINK_UP;
  l->again = false;
  enter_state(l, LINK_SHUT);
  drop_peer(l, up);
}

bool link_is_shut(const struct link *l) {
  return l->state == LINK_SHUT && l->alive == 1;
}

bool link_peer(const struct link *l, union socket_address *peer) {
  if (l->has_last_peer) *peer = l->last_peer;
  return l->has_last_peer;
}

/* ------------------------------------------------------------------------------------------------------------------ */

struct link *link_create(const struct link_options *o) {
  static const struct local_daemon_callbacks daemon_callbacks = {on_daemon_ready, on_daemon_failed};
  struct link *l = xcalloc(1, sizeof(*l));
  l->o = *o;
  l->alive = 1;
  l->to = l->targets;
  for (size_t i = 0; i < o->n_endpoints; i++) l->targets[i].endpoint = o->endpoints[i];
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
  keep_ticket(l, NULL);
  for (size_t i = 0; i <= DAEMONS_MAX; i++) link_forget_fetched(&l->targets[i]);
  uv_close((uv_handle_t *)&l->timer, on_timer_closed);
}
