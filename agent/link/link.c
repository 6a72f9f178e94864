/* SPDX-License-Identifier: Apache-2.0 Connecting to the daemon.
 *
 *   link_open -> addresses (numeric, or resolved; standalone: our own daemon's) -> one after the other, 2 s each
 *             -> connected: on_up
 *             -> an address of this machine refused, of the first endpoint: our own daemon starts, or the neighbour's
 *                is awaited; once more
 *             -> on_down with one sentence about the attempt
 *
 * --endpoint may name several daemons. An attempt is for one of them, for a daemon of another agent, or for our own on
 * its reserved port. A daemon is started for the first address of --endpoint alone: those at the
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
#include "common/buf.h"
#include "common/err.h"
#include "common/exit_codes.h"
#include "common/key/munge.h"
#include "common/key/secret.h"
#include "common/mem.h"
#include "common/system/loop.h"
#include "common/net/munge_fetch.h"
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/system/port_holder.h"
#include "proto/refusal.h"

enum {
  LOOKUP_MS = 5000,
  CONNECT_MS = 2000, /* per address */
  HOLDER_MS = 1000,  /* of silence, until the listening program is looked up */
  KNOCK_MS = 4000,   /* of silence, until it gets two line ends; < SUPERVISOR_HELLO_MS */
  TAKEN_TRIES = 20,  /* the port is bound but not listening yet: tried again every TAKEN_MS */
  TAKEN_MS = 5,
  KNOCK_AGAIN_MS = 25,
  MUNGE_MS = 4000, /* < SUPERVISOR_HELLO_MS */
  FOREIGN_MS = 10000,
  KNOCK_TIMES = 3, /* a tenth of a lease each: agents turn within an eighth of a lease of each other */
  ADDRESSES_NAMED_MAX = 4,
};

enum link_state { LINK_SHUT, LINK_RESOLVING, LINK_DAEMON, LINK_DIALING, LINK_MUNGE, LINK_UP };

struct link_target {
  struct endpoint endpoint;
  struct address_list addresses; /* as last found */
  struct key *fetched;           /* by MUNGE; NULL: none */
};

struct link {
  struct link_options o;
  enum link_state state;
  struct link_target targets[DAEMONS_MAX + 1]; /* those of --endpoint; the last one is any other address */
  struct link_target *to;                      /* of this attempt */
  enum link_where where;
  uint32_t timeout_ms;
  uint64_t began_ms; /* this attempt */
  struct resolve *resolve;
  size_t at, refusals;
  int errors[ADDRESSES_MAX]; /* of each address, in this attempt */
  bool started_daemon;       /* in this attempt */
  bool taken;                /* our daemon could not start: the port is taken */
  int taken_tries;
  struct attempt *attempt;
  struct munge_fetch *fetch;
  uv_timer_t timer;
  int knocks; /* on_silence calls, on this connection */
  union socket_address last_peer;
  bool has_last_peer;
  char own_addr[ADDR_MAX + 1]; /* this end of the last connection; "": none yet */
  union socket_address home;   /* the address that welcomed us last */
  bool has_home;
  struct channel_ticket *ticket;      /* of the last channel, for the next one; NULL: none */
  enum channel_source refused_source; /* of the daemon's key, while MUNGE is asked */
  bool again;                         /* the next connection is another try of the one that the owner knows */
  bool foreign;                       /* another agent started the last daemon */
  uint64_t refused_since_ms;
  int alive; /* handles: connections and the timer */
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

/* Where an attempt goes. ------------------------------------------------------------------------------------------- */

static void forget_fetched(struct link_target *t) {
  secret_free(t->fetched);
  t->fetched = NULL;
}

/* Adds a numeric address unless it is there; "" is none. */
static void add_address(struct address_list *list, const char *addr, uint16_t port) {
  union socket_address a = {.room = {0}};
  if ((strchr(addr, ':') ? uv_ip6_addr(addr, port, &a.v6) : uv_ip4_addr(addr, port, &a.v4)) != 0) return;
  for (size_t i = 0; i < list->n; i++)
    if (memcmp(&list->v[i], &a, socket_address_size(&a)) == 0) return;
  list->v[list->n++] = a;
}

static void name_target(struct link_target *t, const char *addr, uint16_t port) {
  t->endpoint.port = port;
  snprintf(t->endpoint.host, sizeof(t->endpoint.host), "%s", addr);
}

/* Fills to, where and timeout_ms. False: the address of TO_ADDRESS is not numeric. */
static bool choose_target(struct link *l, const struct link_to *to) {
  bool named = to->where == LINK_TO_ENDPOINT;
  size_t which = to->endpoint < l->o.n_endpoints ? to->endpoint : 0;
  l->to = &l->targets[named ? which : DAEMONS_MAX];
  l->where = to->where;
  l->timeout_ms = to->timeout_ms;
  if (named) return true;
  forget_fetched(l->to); /* of another daemon */
  l->to->addresses.n = 0;
  if (to->where == LINK_TO_OWN) return true;
  add_address(&l->to->addresses, to->addr, to->port);
  name_target(l->to, to->addr, to->port);
  return l->to->addresses.n > 0;
}

/* The last successful address comes first. */
static void prefer_last(struct link *l) {
  struct address_list *list = &l->to->addresses;
  for (size_t i = 1; l->has_last_peer && i < list->n; i++) {
    union socket_address a = list->v[i];
    if (memcmp(&a, &l->last_peer, socket_address_size(&a)) != 0) continue;
    memmove(&list->v[1], &list->v[0], i * sizeof(a));
    list->v[0] = a;
    return;
  }
}

/* Refusals. -------------------------------------------------------------------------------------------------------- */

/* Another agent starts its own daemon again, at the same port. Only if it has not done so for a while is it replaced by
 * ours. */
static bool may_replace(struct link *l) {
  if (!l->foreign) return true;
  uint64_t now = uv_now(l->o.loop);
  if (!l->refused_since_ms) l->refused_since_ms = now;
  return now - l->refused_since_ms >= FOREIGN_MS;
}

/* Whether rdzvd at the first endpoint is ours to start: an address of this machine refused, or is_host says so. (Then the
 * endpoint may lead here through an address translation.) */
static bool is_host(const struct link *l) {
  bool local = l->o.hosting == HOST_ALWAYS;
  if (l->to != l->targets) return false;
  for (size_t i = 0; l->refusals && i < l->to->addresses.n; i++)
    local = local || (l->errors[i] == UV_ECONNREFUSED && socket_address_is_local(&l->to->addresses.v[i]));
  return local && l->o.hosting != HOST_NEVER;
}

/* Another agent may be about to start rdzvd on its reserved port, or our own starts again. */
static bool is_early(const struct link *l) {
  return l->where != LINK_TO_ENDPOINT && l->refusals &&
         uv_now(l->o.loop) < l->began_ms + (uint64_t)KNOCK_TIMES * l->timeout_ms;
}

/* Sentences about it. ---------------------------------------------------------------------------------------------- */

/* Appends "node1:29400 (10.0.0.5)"; which SIZE_MAX: all of its addresses. */
static void put_target(const struct link *l, size_t which, struct buf *out) {
  char text[ENDPOINT_TEXT_MAX], addr[ADDR_MAX + 1];
  size_t first = which == SIZE_MAX ? 0 : which, n = which == SIZE_MAX ? l->to->addresses.n : first + 1;
  address_text(&l->to->addresses.v[first], addr);
  endpoint_format(&l->to->endpoint, text);
  buf_puts(out, text);
  if (n == 1 && !strcmp(addr, l->to->endpoint.host)) return;
  for (size_t i = first; i < n && i < first + ADDRESSES_NAMED_MAX; i++) {
    address_text(&l->to->addresses.v[i], addr);
    buf_printf(out, "%s%s", i > first ? ", " : " (", addr);
  }
  if (n > first + ADDRESSES_NAMED_MAX) buf_printf(out, " and %zu more", n - first - ADDRESSES_NAMED_MAX);
  buf_putc(out, ')');
}

/* The reason for one address, or the same for all. */
static void put_reason(const struct link *l, int error, const char *where, struct buf *out) {
  if (error == UV_ECONNREFUSED && l->taken)
    buf_printf(out, "a program holds %s but accepts no connections: %s", where,
               l->o.derived ? "give --endpoint HOST:PORT, with another port, the same to all agents"
                            : "choose another port");
  else if (error == UV_ECONNREFUSED)
    buf_printf(out, "nothing listens at %s: %s", where,
               l->o.derived || l->where != LINK_TO_ENDPOINT ? "the agent there has not started rdzvd yet"
               : l->to == l->targets                        ? "start rdzvd there, or an agent with the same --endpoint"
                                                            : "start rdzvd there");
  else if (error == UV_ETIMEDOUT)
    buf_printf(out, "%s does not answer: is the machine up, and the port open in its firewall?", where);
  else if (error == UV_ENETUNREACH || error == UV_EHOSTUNREACH)
    buf_printf(out, "there is no route to %s from this machine: check the address and the network", where);
  else
    buf_printf(out, "no connection to %s: %s", where, uv_strerror(error));
}

/* Appends the program that listens at the current address: "pid 4711 (python3)" if it is visible on this machine, else
 * "a program". Returns whether it is certainly not rdzvd. */
static bool put_holder(const struct link *l, struct buf *out) {
  const union socket_address *a = &l->to->addresses.v[l->at];
  struct port_holder h;
  if (!socket_address_is_local(a) || !port_holder_find(ntohs(a->v4.sin_port), &h)) {
    buf_puts(out, "a program");
    return false;
  }
  buf_printf(out, "pid %d (", (int)h.pid);
  buf_put_escaped(out, h.name, strlen(h.name), sizeof(h.name));
  buf_putc(out, ')');
  return strcmp(h.name, "rdzvd") != 0;
}

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

/* munge: why MUNGE brings no key; NULL: it was not asked. */
static void tell_refusal(struct link *l, enum channel_status status, enum channel_source source,
                         const struct err *munge) {
  struct buf where = BUF_INIT, why = BUF_INIT;
  put_target(l, l->at, &where);
  refusal_put(&why, &(struct refusal){.status = status,
                                      .source = source,
                                      .where = buf_text(&where),
                                      .endpoint = &l->to->endpoint,
                                      .who = "this agent",
                                      .key_from = l->o.key_from,
                                      .named = !l->o.munge,
                                      .munge = munge ? munge->text : NULL});
  bool final = status == CHANNEL_WRONG_KEY || status == CHANNEL_NO_KEY;
  /* What munged or the daemon has said of this user's credential, or that one of the two machines has no MUNGE, is
   * final. Anything else may pass: a daemon or a munged that starts again (for MUNGE_AWAY_MS), one that is busy, a
   * network that fails. */
  if (munge && munge->code != -EACCES && munge->code != -EPROTO && munge->code != -ENOENT && munge->code != -ENOKEY)
    final = false;
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

/* The daemon refuses our key. Nothing vouches for that: an agent that was welcomed before keeps trying. */
static void end_refused(struct link *l, const struct conn *c) {
  enum channel_status status = c->refusal;
  enum channel_source source = c->refusal_key;
  if (status == CHANNEL_WRONG_KEY && l->to->fetched) {
    forget_fetched(l->to);
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
    if (!a->resumes || c->refusal != CHANNEL_WRONG_KEY) return end_refused(l, c);
    /* The daemon has another key now, or was away for too long. */
    log_debug("the daemon does not take the ticket of the last connection: this one is opened with the key");
    drop_peer(l, false);
    l->again = true;
    dial_address(l);
    return;
  }
  bool foreign = !c->heard && (code == -EPROTO || code == -EMSGSIZE || code == -EBADMSG);
  struct buf where = BUF_INIT, why = BUF_INIT;
  if (!a->welcomed) {
    put_target(l, l->at, &where);
    put_holder(l, &why);
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
  if (put_holder(l, &who)) {
    put_target(l, l->at, &where);
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
  bool moved = l->has_home && memcmp(&l->home, &l->last_peer, socket_address_size(&l->home)) != 0;
  l->o.cb->on_up(l->o.ctx, moved);
}

static void want_daemon(struct link *l) {
  l->state = LINK_DAEMON;
  l->started_daemon = true;
  local_daemon_want(l->o.daemon, l->where == LINK_TO_OWN);
}

/* Every address failed. */
static void on_exhausted(struct link *l) {
  bool local = is_host(l);
  if (is_early(l)) {
    uv_timer_start(&l->timer, on_link_timer, KNOCK_AGAIN_MS, 0);
    return;
  }
  if (local && !l->started_daemon && may_replace(l)) {
    want_daemon(l);
  } else if (local && l->taken_tries > 0) {
    l->taken_tries--;
    uv_timer_start(&l->timer, on_link_timer, TAKEN_MS, 0);
  } else {
    /* A limit of descriptors under which this process has never had a connection does not pass. */
    struct buf why = BUF_INIT;
    bool limited = !l->has_last_peer && l->at > 0 && l->errors[l->at - 1] == UV_EMFILE;
    bool same = true;
    struct buf where = BUF_INIT;
    for (size_t i = 1; i < l->to->addresses.n; i++) same = same && l->errors[i] == l->errors[0];
    put_target(l, SIZE_MAX, &where);
    if (same) {
      put_reason(l, l->errors[0], buf_text(&where), &why);
    } else {
      /* "no connection to node1:29400: 10.0.0.5 (nothing listens), 10.1.0.5 (no answer)" */
      char text[ENDPOINT_TEXT_MAX], addr[ADDR_MAX + 1];
      endpoint_format(&l->to->endpoint, text);
      buf_printf(&why, "no connection to %s: ", text);
      for (size_t i = 0; i < l->to->addresses.n; i++) {
        address_text(&l->to->addresses.v[i], addr);
        int error = l->errors[i];
        bool no_route = error == UV_ENETUNREACH || error == UV_EHOSTUNREACH;
        buf_printf(&why, "%s%s (%s)", i ? ", " : "", addr,
                   error == UV_ECONNREFUSED ? "nothing listens"
                   : error == UV_ETIMEDOUT  ? "no answer"
                   : no_route               ? "no route"
                                            : uv_strerror(error));
      }
    }
    buf_finish(&where);
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
  loop_timer_in(&l->timer, on_link_timer, l->timeout_ms ? l->timeout_ms : CONNECT_MS);
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

static void on_link_timer(uv_timer_t *timer) {
  struct link *l = timer->data;
  if (l->state == LINK_RESOLVING) {
    struct err e = ERR_INIT;
    resolve_cancel(l->resolve);
    err_set(&e, -ETIMEDOUT, "the name \"%s\" in --endpoint was not found within %g s: no name server answers",
            l->to->endpoint.host, lookup_ms(l) / 1000.0);
    on_resolved(l, NULL, &e);
  } else if (l->state == LINK_UP) {
    on_silence(l);
  } else if (l->attempt) {
    try_next_address(l, UV_ETIMEDOUT);
  } else {
    dial_all(l);
  }
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
  prefer_last(l);
  dial_all(l);
}

static void on_daemon_ready(void *ctx, uint16_t port) {
  struct link *l = ctx;
  if (l->state != LINK_DAEMON) return;
  if (l->o.standalone || l->where == LINK_TO_OWN) {
    /* The addresses of our own daemon, for this attempt. Other nodes know this one by the address that the daemon sees, so loopback comes last. */
    struct address_list *list = &l->to->addresses;
    char first[ADDR_MAX + 1];
    list->n = 0;
    if (!l->o.standalone) {
      add_address(list, l->o.local_addr, port);
      add_address(list, l->own_addr, port);
    }
    add_address(list, host_loopback(), port);
    address_text(&list->v[0], first);
    name_target(l->to, first, port);
  }
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

void link_open(struct link *l, const struct link_to *to) {
  if (l->state != LINK_SHUT) return;
  l->started_daemon = false;
  l->taken = false;
  l->taken_tries = 0;
  uv_update_time(l->o.loop);
  l->began_ms = uv_now(l->o.loop);
  if (!choose_target(l, to)) return go_down(l, "the next daemon has no numeric address");
  if (l->where == LINK_TO_ADDRESS) return dial_all(l);
  if (l->where == LINK_TO_OWN && !local_daemon_standby_port(l->o.daemon))
    return go_down(l, "this agent has reserved no port for rdzvd");
  if (l->o.standalone || l->where == LINK_TO_OWN) return want_daemon(l);
  l->state = LINK_RESOLVING;
  struct resolve *r = resolve_start(l->o.loop, &l->to->endpoint, &l->o.words, on_resolved, l);
  if (!r) return;
  l->resolve = r;
  loop_timer_in(&l->timer, on_link_timer, lookup_ms(l));
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

const struct key *link_key(const struct link *l, uint32_t endpoint) {
  if (endpoint == UINT32_MAX) return l->to && l->to->fetched ? l->to->fetched : l->o.key;
  return l->targets[endpoint].fetched ? l->targets[endpoint].fetched : l->o.key;
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
  for (size_t i = 0; i <= DAEMONS_MAX; i++) forget_fetched(&l->targets[i]);
  uv_close((uv_handle_t *)&l->timer, on_timer_closed);
}
