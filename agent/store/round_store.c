/* SPDX-License-Identifier: Apache-2.0 */
/* The port of the round's store on this node.
 *
 * The place of the next round's store must be known before the round is, because START goes to all nodes at once. So
 * each agent keeps a socket open that is unused until it becomes node rank 0:
 *
 *   ready socket --START--> served until the round is over
 *        ^           |
 *        '- another -'  at once, and its port goes out with the next report
 *
 * The socket listens from the beginning. A worker elsewhere may have START before this agent. It then connects into the
 * kernel's queue instead of being refused, which would cost a PyTorch client half a second. No port is used for two
 * rounds in a row, unless --store-port asks for it, so the remains of an old round find nothing at their port.
 *
 * A socket listens on this node's address alone: that of --local-addr, else the one on the way to the daemon, which the
 * daemon sees as well (the exception is below). access_check.c decides about each connection. */

#include "agent/store/round_store.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "agent/link/host_addrs.h"
#include "common/mem.h"
#include "common/system/loop.h"
#include "common/net/c10d_server.h"
#include "common/net/socket.h"
#include "common/system/log.h"

enum {
  RETRY_MS = 1000,
  CONNECTIONS_PER_WORKER = 16, /* PyTorch has one per store object, and some for its monitors */
  CONNECTIONS_MORE = 256,      /* monitors and tools */
};

#define BYTES_MIN ((size_t)256 << 20)
#define BYTES_MAX ((size_t)4 << 30)

/* The ready sockets. ----------------------------------------------------------------------------------------------- */

/* The address of a node is known only with START: the daemon may give an agent that reached it over loopback the
 * daemon's own address, as other nodes see it. Such an agent holds its port on the other addresses of the machine, and
 * listens there only when START has named one. No program can connect to a socket that does not listen. */

enum { TRIES = 8, SOME_PORT = 9, READY_MAX = 64 };

/* One port, on this node's address alone. */
struct ready {
  uint16_t port; /* 0: there is none */
  struct ready_socket {
    struct ipaddr addr; /* family 0: all addresses */
    int fd;
  } v[READY_MAX]; /* the first one listens */
  size_t n;
};

static int bind_to(const struct ipaddr *addr, uint16_t port, unsigned flags) {
  union socket_address a = socket_address_make(addr, port);
  return socket_bind(&a, flags);
}

static void add(struct ready *r, const struct ipaddr *addr, int fd) {
  r->v[r->n++] = (struct ready_socket){*addr, fd};
}

static void ready_close(struct ready *r) {
  for (size_t i = 0; i < r->n; i++) close(r->v[i].fd);
  r->n = 0;
  r->port = 0;
}

static int open_first(struct ready *r, const struct ipaddr *addr, unsigned flags) {
  struct ipaddr bound;
  int fd = bind_to(addr, 0, flags);
  if (fd < 0) return fd;
  add(r, addr, fd);
  socket_local(fd, &bound, &r->port);
  return 0;
}

/* A socket that listens on `addr` at a free port, and sockets that hold the same port on the others. */
static int ready_open(struct ready *r, const struct ipaddr *addr, const struct ipaddr *others, size_t n_others) {
  int rc = -EADDRINUSE;
  *r = (struct ready){.n = 0};
  for (int i = 1; i <= TRIES && rc == -EADDRINUSE; i++) {
    ready_close(r);
    rc = open_first(r, addr, SOCKET_LISTEN);
    for (size_t k = 0; rc == 0 && k < n_others && r->n < READY_MAX; k++) {
      int fd = bind_to(&others[k], r->port, 0);
      if (fd >= 0) add(r, &others[k], fd);
      if (fd == -EADDRINUSE && i < TRIES) rc = fd; /* in the last try the address is left out */
    }
  }
  if (rc) ready_close(r);
  return rc;
}

/* One that holds a free port on all addresses, for another process. */
static int ready_hold(struct ready *r) {
  struct ipaddr all = {0}, all_v4 = {.family = 4};
  *r = (struct ready){.n = 0};
  int rc = open_first(r, &all, 0);
  return rc == -EAFNOSUPPORT || rc == -EADDRNOTAVAIL ? open_first(r, &all_v4, 0) : rc;
}

/* A socket that listens there, also while connections of an earlier one are closing. */
static int ready_listen(const struct ipaddr *addr, uint16_t port) {
  return bind_to(addr, port, SOCKET_LISTEN | SOCKET_REUSE);
}

/* Our own address on the way to that one, which is the same if it is ours. Family 0: there is no way.
 *
 * The kernel's choice of a source may be another address of ours even if this one is ours: the primary one of its
 * interface. */
static struct ipaddr own_towards(const struct ipaddr *addr) {
  union socket_address port_0 = socket_address_make(addr, 0), some_port = socket_address_make(addr, SOME_PORT);
  socklen_t len = addr->family == 4 ? sizeof port_0.v4 : sizeof port_0.v6;
  struct ipaddr own = {0};
  uint16_t port;
  int fd = addr->family ? socket(port_0.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
  if (fd < 0) return own;
  if (bind(fd, &port_0.any, len) == 0)
    own = *addr;
  else if (connect(fd, &some_port.any, len) == 0)
    socket_local(fd, &own, &port);
  close(fd);
  return own;
}

/* The descriptor of a socket that listens on `addr`, or on what the kernel uses towards it. All others are closed. */
static int ready_take(struct ready *r, const struct ipaddr *addr) {
  struct ipaddr own = own_towards(addr);
  size_t at = 0;
  while (at < r->n && ipaddr_compare(&r->v[at].addr, addr) != 0) at++;
  for (size_t i = 0; at == r->n && own.family && i < r->n; i++)
    if (ipaddr_compare(&r->v[i].addr, &own) == 0) at = i;
  if (at == r->n && !own.family) at = 0;
  int fd = r->n == 0 ? -EADDRNOTAVAIL : at < r->n ? r->v[at].fd : ready_listen(&own, r->port);
  if (at < r->n) {
    if (at > 0 && listen(fd, SOCKET_BACKLOG) < 0) /* the first one listens already */
      fd = -errno;
    else
      r->v[at] = r->v[--r->n];
  }
  ready_close(r);
  return fd;
}

/* The store of a round. -------------------------------------------------------------------------------------------- */

struct round_store {
  struct round_store_options o;
  struct ready ready;
  struct ipaddr at;           /* where it listens */
  struct c10d_server *server; /* NULL: none is served */
  struct access_check *access;
  uv_timer_t retry;
};

/* The ready socket ------------------------------------------------------------------------------------------------- */

static void on_retry(uv_timer_t *timer);

static bool is_of_one_machine(const struct ipaddr *addr) {
  return !addr->family || ipaddr_is_loopback(addr) || ipaddr_is_linklocal(addr);
}

static int make_ready(struct round_store *r) {
  struct ipaddr others[HOST_ADDRS_MAX];
  /* The daemon may give this node another address than that of its own way to it. */
  size_t n = 0, all = r->o.alone || !is_of_one_machine(&r->at) ? 0 : socket_host_addrs(0, others);
  for (size_t i = 0; i < all; i++)
    if (!is_of_one_machine(&others[i])) others[n++] = others[i];
  int rc = r->o.place == STORE_AGENT ? ready_open(&r->ready, &r->at, others, n) : ready_hold(&r->ready);
  if (rc) uv_timer_start(&r->retry, on_retry, RETRY_MS, 0);
  return rc;
}

static void on_retry(uv_timer_t *timer) {
  struct round_store *r = timer->data;
  if (make_ready(r) == 0) r->o.on_port(r->o.ctx, r->ready.port);
}

/* Opens another one and reports its port. */
static void replace_ready(struct round_store *r) {
  int rc = make_ready(r);
  if (rc) log_warn("no socket for the store of the next round: %s; trying again every second", uv_strerror(rc));
  r->o.on_port(r->o.ctx, r->ready.port);
}

void round_store_reach(struct round_store *r, const struct ipaddr *daemon) {
  struct ipaddr given = ipaddr_parse(r->o.addr ? r->o.addr : "");
  struct ipaddr at = own_towards(given.family ? &given : daemon);
  if (given.family && !at.family) at = own_towards(daemon);
  if (!at.family || ipaddr_is_linklocal(&at)) at = ipaddr_parse(host_loopback());
  if (ipaddr_compare(&at, &r->at) == 0) return;
  r->at = at;
  if (r->o.port || r->o.place == STORE_WORKER) return;
  uv_timer_stop(&r->retry);
  ready_close(&r->ready);
  replace_ready(r);
}

/* Serving ---------------------------------------------------------------------------------------------------------- */

static int serve(struct round_store *r, const struct start *start, const struct bytes *addrs, int fd, struct err *e) {
  char name[40];
  struct c10d_server_config c = {
      .name = name, .admit = access_check_admit, .on_undecided = access_check_on_undecided, .ctx = r->access};
  uint64_t all = uv_get_total_memory(), allowed = uv_get_constrained_memory();
  if (allowed > 0 && allowed < all) all = allowed;
  c.store.max_bytes = all / 4 < BYTES_MIN ? BYTES_MIN : all / 4 > BYTES_MAX ? BYTES_MAX : (size_t)(all / 4);
  if (r->o.max_bytes) c.store.max_bytes = r->o.max_bytes;
  snprintf(name, sizeof name, "store of round %lld", (long long)start->round);
  c.max_connections = (size_t)start->world_size * CONNECTIONS_PER_WORKER + CONNECTIONS_MORE;
  uv_random(NULL, NULL, &c.store.seed, sizeof c.store.seed, 0, NULL);
  int rc = c10d_server_create(r->o.loop, &c, &r->server, e);
  if (rc) {
    close(fd);
    return rc;
  }
  access_check_open(r->access, r->server, addrs);
  rc = c10d_server_listen(r->server, fd, e);
  if (rc) round_store_close(r);
  return rc;
}

static int open_given(struct round_store *r, const struct ipaddr *head, int *fd, struct err *e) {
  struct ipaddr own = own_towards(head);
  *fd = r->o.place == STORE_AGENT ? ready_listen(own.family ? &own : &r->at, r->o.port) : -1;
  if (r->o.place == STORE_AGENT && *fd < 0)
    return err_sys(e, *fd,
                   "this is node 0 and cannot serve the round's store on port %u (--store-port, or "
                   "--master-port of a node alone)",
                   (unsigned)r->o.port);
  return 0;
}

static int open_ready(struct round_store *r, const struct start *start, const struct ipaddr *head, int *fd,
                      struct err *e) {
  if (start->store_port != r->ready.port)
    return err_set(e, -ESTALE, "START names port %lld for the round's store, and port %u is ready on this node",
                   (long long)start->store_port, (unsigned)r->ready.port);
  struct ready ready = r->ready;
  *fd = -1;
  r->ready = (struct ready){.n = 0};
  replace_ready(r); /* while the old one is open, so that the ports differ */
  if (r->o.place == STORE_AGENT)
    *fd = ready_take(&ready, head);
  else
    ready_close(&ready);
  if (r->o.place == STORE_AGENT && *fd < 0)
    return err_sys(e, *fd, "this is node 0 and cannot serve the round's store at %s port %lld", start->head_addr,
                   (long long)start->store_port);
  return 0;
}

int round_store_open(struct round_store *r, const struct start *start, const struct bytes *addrs, struct err *e) {
  struct ipaddr head = ipaddr_parse(start->head_addr);
  int fd = -1, rc = r->o.port ? open_given(r, &head, &fd, e) : open_ready(r, start, &head, &fd, e);
  return rc || fd < 0 ? rc : serve(r, start, addrs, fd, e);
}

struct access_check *round_store_access(const struct round_store *r) {
  return r->access;
}

bool round_store_is_used(const struct round_store *r) {
  return !r->server || c10d_server_accepted(r->server) > 0;
}

void round_store_shut(struct round_store *r) {
  c10d_server_shut(r->server);
}

void round_store_close(struct round_store *r) {
  access_check_shut(r->access);
  c10d_server_close(r->server, NULL, NULL);
  r->server = NULL;
}

/* The object ------------------------------------------------------------------------------------------------------- */

int round_store_create(const struct round_store_options *o, struct round_store **out, struct err *e) {
  struct round_store *r = xcalloc(1, sizeof *r);
  r->o = *o;
  r->at = ipaddr_parse(host_loopback());
  r->access = access_check_create(&(struct access_check_options){.loop = o->loop, .send = o->send, .ctx = o->ctx});
  uv_timer_init(o->loop, &r->retry);
  uv_unref((uv_handle_t *)&r->retry);
  r->retry.data = r;
  int rc = o->port ? 0 : make_ready(r);
  if (rc) {
    round_store_destroy(r);
    return err_sys(e, rc, "no socket for the round's store");
  }
  *out = r;
  return 0;
}

uint16_t round_store_port(const struct round_store *r) {
  return r->o.port ? r->o.port : r->ready.port;
}

void round_store_destroy(struct round_store *r) {
  if (!r) return;
  round_store_close(r);
  ready_close(&r->ready);
  access_check_destroy(r->access);
  uv_close((uv_handle_t *)&r->retry, loop_free);
}
