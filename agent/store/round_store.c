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
 * kernel's queue instead of being refused, which would cost a PyTorch client half a second.
 *
 * No port is used for two rounds in a row, unless --store-port asks for it, so the remains of an old round find nothing
 * at their port. The next socket is opened before the current one is given away, so they differ.
 *
 * The nodes of the round, as START lists them, may connect, and so may loopback and this machine: every address of its
 * interfaces, and a peer with the same address that it connects to (a name space in between may hide the rest).
 *
 * Without a free descriptor there is no next socket; port 0 reports that, and the agent retries every second. */

#include "agent/store/round_store.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/link/host_addrs.h"
#include "agent/store/guests.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "proto/c10d_server.h"
#include "proto/socket.h"

enum {
  RETRY_MS = 1000,
  CONNECTIONS_PER_WORKER = 16, /* PyTorch has one per store object, and some for its monitors */
  CONNECTIONS_MORE = 256,      /* monitors and tools */
};

struct round_store {
  struct round_store_options o;
  int ready; /* -1: none */
  uint16_t ready_port;
  struct c10d_server *server; /* NULL: none is served */
  struct guests guests;
  uv_timer_t retry;
};

/* Sockets ---------------------------------------------------------------------------------------------------------- */

/* On all addresses, of both families if the machine has both. */
static int open_socket(uint16_t port, bool listening) {
  /* connections of the last round may still be closing */
  unsigned flags = (listening ? SOCKET_LISTEN : 0) | (port ? SOCKET_REUSE : 0);
  union socket_address a = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_ANY_INIT}};
  int fd = socket_bind(&a, flags);
  if (fd != -EAFNOSUPPORT && fd != -EADDRNOTAVAIL) return fd;
  a.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
  return socket_bind(&a, flags);
}

static uint16_t port_of(int fd) {
  struct ipaddr addr;
  uint16_t port;
  socket_local(fd, &addr, &port);
  return port;
}

/* The ready socket ------------------------------------------------------------------------------------------------- */

static void on_retry(uv_timer_t *timer);

static int make_ready(struct round_store *r) {
  int fd = open_socket(0, r->o.place == STORE_AGENT);
  r->ready = fd < 0 ? -1 : fd;
  r->ready_port = fd < 0 ? 0 : port_of(fd);
  if (fd < 0) uv_timer_start(&r->retry, on_retry, RETRY_MS, 0);
  return fd < 0 ? fd : 0;
}

static void on_retry(uv_timer_t *timer) {
  struct round_store *r = timer->data;
  if (make_ready(r) == 0) r->o.on_port(r->o.ctx, r->ready_port);
}

/* Takes the ready socket, opens another one and reports its port. */
static int take_ready(struct round_store *r) {
  int fd = r->ready, rc = make_ready(r);
  if (rc) log_warn("no socket for the store of the next round: %s; trying again every second", uv_strerror(rc));
  r->o.on_port(r->o.ctx, r->ready_port);
  return fd;
}

/* Serving ---------------------------------------------------------------------------------------------------------- */

static void let_in(struct round_store *r, const struct bytes *addrs) {
  struct ipaddr own[HOST_ADDRS_MAX];
  size_t n = host_addrs(own);
  guests_finish(&r->guests);
  guests_init(&r->guests, addrs ? addrs->data : NULL, addrs ? addrs->len : 0, own, n);
}

static bool is_guest(void *ctx, const struct ipaddr *peer, const struct ipaddr *local) {
  const struct round_store *r = ctx;
  return ipaddr_is_loopback(peer) || ipaddr_compare(peer, local) == 0 || guests_has(&r->guests, peer);
}

static int serve(struct round_store *r, const struct start *start, int fd, struct err *e) {
  char name[40];
  struct c10d_server_config c = {.name = name, .allow = is_guest, .ctx = r};
  c.allowed = "only the nodes of the round may connect";
  snprintf(name, sizeof name, "store of round %lld", (long long)start->round);
  c.max_connections = (size_t)start->world_size * CONNECTIONS_PER_WORKER + CONNECTIONS_MORE;
  uv_random(NULL, NULL, &c.store.seed, sizeof c.store.seed, 0, NULL);
  int rc = c10d_server_create(r->o.loop, &c, &r->server, e);
  if (rc) {
    close(fd);
    return rc;
  }
  rc = c10d_server_listen(r->server, fd, e);
  if (rc) round_store_close(r);
  return rc;
}

static int open_given(struct round_store *r, int *fd, struct err *e) {
  *fd = r->o.place == STORE_AGENT ? open_socket(r->o.port, true) : -1;
  if (r->o.place == STORE_AGENT && *fd < 0)
    return err_sys(e, *fd,
                   "this is node 0 and cannot serve the round's store on port %u (--store-port, or "
                   "--master-port of a node alone)",
                   (unsigned)r->o.port);
  return 0;
}

static int open_ready(struct round_store *r, const struct start *start, int *fd, struct err *e) {
  if (start->store_port != r->ready_port)
    return err_set(e, -ESTALE, "START names port %lld for the round's store, and port %u is ready on this node",
                   (long long)start->store_port, (unsigned)r->ready_port);
  *fd = take_ready(r);
  if (r->o.place == STORE_AGENT) return 0;
  close(*fd);
  *fd = -1;
  return 0;
}

int round_store_open(struct round_store *r, const struct start *start, const struct bytes *addrs, struct err *e) {
  int fd = -1, rc = r->o.port ? open_given(r, &fd, e) : open_ready(r, start, &fd, e);
  if (rc || fd < 0) return rc;
  let_in(r, addrs);
  return serve(r, start, fd, e);
}

bool round_store_is_used(const struct round_store *r) {
  return !r->server || c10d_server_accepted(r->server) > 0;
}

void round_store_shut(struct round_store *r) {
  c10d_server_shut(r->server);
}

void round_store_close(struct round_store *r) {
  c10d_server_close(r->server, NULL, NULL);
  r->server = NULL;
}

/* The object ------------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle) {
  struct round_store *r = handle->data;
  guests_finish(&r->guests);
  free(r);
}

int round_store_create(const struct round_store_options *o, struct round_store **out, struct err *e) {
  struct round_store *r = xcalloc(1, sizeof *r);
  r->o = *o;
  r->ready = -1;
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
  return r->o.port ? r->o.port : r->ready_port;
}

void round_store_destroy(struct round_store *r) {
  if (!r) return;
  round_store_close(r);
  if (r->ready >= 0) close(r->ready);
  uv_close((uv_handle_t *)&r->retry, on_closed);
}
