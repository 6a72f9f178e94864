/* SPDX-License-Identifier: Apache-2.0 */
/* The address of a node is known only with START: the daemon may give an agent that reached it over loopback the
 * daemon's own address, as other nodes see it. Such an agent holds its port on the other addresses of the machine, and
 * listens there only when START has named one. No program can connect to a socket that does not listen. */

#include "agent/store/ready.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/net/socket.h"

enum { TRIES = 8, SOME_PORT = 9 };

static union socket_address to_sockaddr(const struct ipaddr *addr, uint16_t port) {
  union socket_address a = {.room = {0}};
  if (addr->family == 4) {
    a.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    memcpy(&a.v4.sin_addr, addr->bytes, 4);
  } else {
    a.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
    if (addr->family) memcpy(&a.v6.sin6_addr, addr->bytes, 16);
  }
  return a;
}

static int bind_to(const struct ipaddr *addr, uint16_t port, unsigned flags) {
  union socket_address a = to_sockaddr(addr, port);
  return socket_bind(&a, flags);
}

static void add(struct ready *r, const struct ipaddr *addr, int fd) {
  r->v[r->n++] = (struct ready_socket){*addr, fd};
}

void ready_close(struct ready *r) {
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

/* An address without the port is left out in the last try. */
static int hold_others(struct ready *r, const struct ipaddr *others, size_t n, bool last) {
  for (size_t i = 0; i < n && r->n < READY_MAX; i++) {
    int fd = bind_to(&others[i], r->port, 0);
    if (fd >= 0)
      add(r, &others[i], fd);
    else if (fd == -EADDRINUSE && !last)
      return fd;
  }
  return 0;
}

int ready_open(struct ready *r, const struct ipaddr *addr, const struct ipaddr *others, size_t n_others) {
  int rc = -EADDRINUSE;
  *r = (struct ready){.n = 0};
  for (int i = 1; i <= TRIES && rc == -EADDRINUSE; i++) {
    ready_close(r);
    rc = open_first(r, addr, SOCKET_LISTEN);
    if (rc == 0) rc = hold_others(r, others, n_others, i == TRIES);
  }
  if (rc) ready_close(r);
  return rc;
}

int ready_hold(struct ready *r) {
  struct ipaddr all = {0}, all_v4 = {.family = 4};
  *r = (struct ready){.n = 0};
  int rc = open_first(r, &all, 0);
  return rc == -EAFNOSUPPORT || rc == -EADDRNOTAVAIL ? open_first(r, &all_v4, 0) : rc;
}

static struct ready_socket *find(struct ready *r, const struct ipaddr *addr) {
  for (size_t i = 0; i < r->n; i++)
    if (ipaddr_compare(&r->v[i].addr, addr) == 0) return &r->v[i];
  return NULL;
}

/* The first one listens already. */
static int take(struct ready *r, struct ready_socket *s) {
  int fd = s->fd;
  if (s != r->v && listen(fd, SOCKET_BACKLOG) < 0) return -errno;
  *s = r->v[--r->n];
  return fd;
}

int ready_take(struct ready *r, const struct ipaddr *addr) {
  struct ready_socket *s = find(r, addr);
  struct ipaddr own = s ? *addr : ready_own_towards(addr);
  if (!s && own.family) s = find(r, &own);
  int fd = s ? take(r, s) : own.family ? ready_listen(&own, r->port) : r->n > 0 ? take(r, r->v) : -EADDRNOTAVAIL;
  ready_close(r);
  return fd;
}

int ready_listen(const struct ipaddr *addr, uint16_t port) {
  return bind_to(addr, port, SOCKET_LISTEN | SOCKET_REUSE);
}

/* The kernel's choice of a source may be another address of ours even if this one is ours: the primary one of its
 * interface. */
struct ipaddr ready_own_towards(const struct ipaddr *addr) {
  union socket_address port_0 = to_sockaddr(addr, 0), some_port = to_sockaddr(addr, SOME_PORT);
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
