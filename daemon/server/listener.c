/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets.
 *
 * All values are read before the first socket is opened, so that a typing error in the second is not reported as a
 * problem of the first one's port. With SO_REUSEADDR two processes may both bind as long as neither listens, so
 * listen(2) belongs to the same step and its EADDRINUSE counts as the bind's.
 *
 * [::] means every address of the machine, IPv4 too. Where the machine has no IPv6 it becomes 0.0.0.0. Where 0.0.0.0 is
 * asked for beside it with the same port, the IPv6 socket leaves IPv4 to that one.
 *
 * Names are not looked up: a resolver's answer on a cluster node is often 127.0.1.1, where other machines cannot reach
 * the daemon.
 *
 * A socket of --listen-fd was bound without SO_REUSEADDR, so that nobody else could bind its port before. It gets the
 * option here: connections inherit it, and a restarted daemon can bind the port while they are closing. */

#include "daemon/server/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>
#include "common/mem.h"
#include "common/system/port_holder.h"
#include "common/net/socket.h"

/* The request of one --listen. */
struct request {
  union socket_address address;
  bool is_wildcard;
  struct endpoint endpoint;
};

static bool is_number(const char *s) {
  return *s && s[strspn(s, "0123456789")] == '\0';
}

static int parse_request(const char *spec, struct request *r, struct err *e) {
  char full[ENDPOINT_TEXT_MAX + 8];
  bool only_port = spec[0] == ':' && is_number(spec + 1);
  snprintf(full, sizeof(full), "%s%s", only_port ? "[::]" : is_number(spec) ? "[::]:" : "", spec);
  int rc = endpoint_parse(full, RDZV_DEFAULT_PORT, &r->endpoint, e);
  if (rc < 0) return err_wrap(e, "--listen %.100s", spec);
  struct ipaddr ip = ipaddr_parse(r->endpoint.host);
  rc = strchr(r->endpoint.host, ':') ? uv_ip6_addr(r->endpoint.host, r->endpoint.port, &r->address.v6)
                                     : uv_ip4_addr(r->endpoint.host, r->endpoint.port, &r->address.v4);
  if (ip.family == 0 || rc < 0)
    return err_set(e, -EINVAL,
                   "--listen %.100s: a numeric address of this machine is needed, such as 10.0.0.1:%d, or [::]:%d "
                   "for all of them",
                   spec, RDZV_DEFAULT_PORT, RDZV_DEFAULT_PORT);
  r->is_wildcard = r->address.any.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&r->address.v6.sin6_addr)
                                                        : r->address.v4.sin_addr.s_addr == htonl(INADDR_ANY);
  return 0;
}

static int explain(int code, const char *spec, const struct request *r, bool in_haste, struct err *e) {
  struct port_holder holder;
  int port = r->endpoint.port;
  switch (code) {
  case -EADDRINUSE:
    if (!in_haste && port_holder_find(r->endpoint.port, &holder))
      return err_set(e, code,
                     "cannot listen on %.100s: port %d is taken by pid %d (%s); stop it, or choose another port with "
                     "--listen (0: any free one)",
                     spec, port, (int)holder.pid, holder.name);
    return err_set(e, code,
                   "cannot listen on %.100s: port %d is taken by another process; choose another port with --listen "
                   "(0: any free one)",
                   spec, port);
  case -EADDRNOTAVAIL:
    return err_set(e, code, "cannot listen on %.100s: %.100s is not an address of this machine", spec,
                   r->endpoint.host);
  case -EACCES:
    return err_set(e, code, "cannot listen on %.100s: this user may not use port %d; choose one above 1023", spec,
                   port);
  case -EAFNOSUPPORT: return err_set(e, code, "cannot listen on %.100s: this machine has no IPv6", spec);
  default: return err_sys(e, code, "cannot listen on %.100s", spec);
  }
}

static void name_it(struct listener *l) {
  union socket_address a = {.room = {0}};
  struct endpoint ep = {.port = 0};
  socklen_t len = sizeof(a);
  getsockname(l->fd, &a.any, &len);
  if (a.any.sa_family == AF_INET6)
    uv_ip6_name(&a.v6, ep.host, sizeof(ep.host));
  else
    uv_ip4_name(&a.v4, ep.host, sizeof(ep.host));
  /* sin_port and sin6_port are at the same place */
  l->port = ep.port = ntohs(a.v4.sin_port);
  char scope[IF_NAMESIZE];
  if (a.any.sa_family == AF_INET6 && a.v6.sin6_scope_id && if_indextoname(a.v6.sin6_scope_id, scope)) {
    size_t n = strlen(ep.host);
    snprintf(ep.host + n, sizeof(ep.host) - n, "%%%s", scope);
  }
  endpoint_format(&ep, l->text);
}

static int open_one(const char *spec, struct request *r, bool v6only, bool in_haste, struct listener *l,
                    struct err *e) {
  const int flags = SOCKET_LISTEN | SOCKET_REUSE;
  int fd = socket_bind(&r->address, flags | (v6only ? SOCKET_V6_ONLY : 0));
  bool no_ipv6 = fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL;
  if (no_ipv6 && r->address.any.sa_family == AF_INET6 && r->is_wildcard) {
    uv_ip4_addr("0.0.0.0", r->endpoint.port, &r->address.v4);
    fd = socket_bind(&r->address, flags);
  }
  if (fd < 0) return explain(fd, spec, r, in_haste, e);
  l->fd = fd;
  name_it(l);
  return 0;
}

static int get_int(int fd, int option) {
  int value = -1;
  socklen_t len = sizeof(value);
  return getsockopt(fd, SOL_SOCKET, option, &value, &len) == 0 ? value : -1;
}

/* What the descriptor is instead of a bound TCP socket; NULL: it is one. */
static const char *find_fault(int fd) {
  struct ipaddr addr;
  uint16_t port;
  int family = get_int(fd, SO_DOMAIN);
  if (fcntl(fd, F_GETFD) < 0) return "this descriptor is not open";
  if (get_int(fd, SO_TYPE) != SOCK_STREAM || (family != AF_INET && family != AF_INET6))
    return "this descriptor is not a TCP socket";
  socket_peer(fd, &addr, &port);
  if (addr.family) return "this socket is a connection";
  socket_local(fd, &addr, &port);
  return port ? NULL : "this socket is not bound to a port";
}

int listener_adopt(int fd, struct listener *out, struct err *e) {
  int on = 1;
  const char *fault = find_fault(fd);
  if (fault) return err_set(e, -EINVAL, "--listen-fd %d: %s", fd, fault);
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ||
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 || listen(fd, SOCKET_BACKLOG) < 0)
    return err_sys(e, -errno, "cannot listen on --listen-fd %d", fd);
  out->fd = fd;
  name_it(out);
  return 0;
}

int listeners_open(const char *const *specs, size_t n, bool in_haste, struct listener *out, struct err *e) {
  struct request *v = xcalloc(n, sizeof(*v));
  int rc = 0;
  size_t opened = 0;
  for (size_t i = 0; i < n && rc == 0; i++) rc = parse_request(specs[i], &v[i], e);
  for (size_t i = 0; i < n && rc == 0; i++) {
    bool has_ipv4 = false; /* a wildcard of the same port: then that of IPv6 is for IPv6 alone */
    for (size_t k = 0; k < n; k++)
      has_ipv4 |= v[k].address.any.sa_family == AF_INET && v[k].is_wildcard && v[k].endpoint.port != 0 &&
                  v[k].endpoint.port == v[i].endpoint.port;
    rc = open_one(specs[i], &v[i], has_ipv4, in_haste, &out[i], e);
    if (rc == 0) opened++;
  }
  if (rc < 0)
    while (opened > 0) close(out[--opened].fd);
  free(v);
  return rc;
}
