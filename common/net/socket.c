/* SPDX-License-Identifier: Apache-2.0 */
#include "common/net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

enum { KEEPALIVE_IDLE_S = 15, KEEPALIVE_INTERVAL_S = 5, KEEPALIVE_COUNT = 3 };

void socket_address_read(const union socket_address *a, struct ipaddr *addr, uint16_t *port) {
  *addr = (struct ipaddr){0};
  *port = 0;
  if (a->any.sa_family == AF_INET) {
    addr->family = 4;
    memcpy(addr->bytes, &a->v4.sin_addr, 4);
    *port = ntohs(a->v4.sin_port);
  } else if (a->any.sa_family == AF_INET6) {
    bool is_v4 = IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr);
    addr->family = is_v4 ? 4 : 6;
    memcpy(addr->bytes, a->v6.sin6_addr.s6_addr + (is_v4 ? 12 : 0), is_v4 ? 4 : 16);
    *port = ntohs(a->v6.sin6_port);
  }
}

union socket_address socket_address_make(const struct ipaddr *addr, uint16_t port) {
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

socklen_t socket_address_size(const union socket_address *a) {
  return a->any.sa_family == AF_INET ? sizeof(a->v4) : sizeof(a->v6);
}

void socket_local(int fd, struct ipaddr *addr, uint16_t *port) {
  union socket_address a = {.room = {0}};
  socklen_t len = sizeof(a);
  if (getsockname(fd, &a.any, &len) < 0) a.any.sa_family = AF_UNSPEC;
  socket_address_read(&a, addr, port);
}

void socket_peer(int fd, struct ipaddr *addr, uint16_t *port) {
  union socket_address a = {.room = {0}};
  socklen_t len = sizeof(a);
  if (getpeername(fd, &a.any, &len) < 0) a.any.sa_family = AF_UNSPEC;
  socket_address_read(&a, addr, port);
}

bool socket_was_reset(int fd) {
  struct tcp_info info;
  socklen_t len = sizeof(info);
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_CLOSE;
}

void socket_format(const struct ipaddr *addr, char out[INET6_ADDRSTRLEN]) {
  out[0] = '\0';
  if (addr->family) inet_ntop(addr->family == 4 ? AF_INET : AF_INET6, addr->bytes, out, INET6_ADDRSTRLEN);
}

int socket_bind(const union socket_address *a, unsigned flags) {
  bool v6 = a->any.sa_family == AF_INET6;
  int on = 1, v6_only = (flags & SOCKET_V6_ONLY) != 0;
  int fd = socket(a->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -errno;
  if (flags & SOCKET_REUSE) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (v6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof(v6_only));
  if (bind(fd, &a->any, v6 ? sizeof(a->v6) : sizeof(a->v4)) == 0 &&
      (!(flags & SOCKET_LISTEN) || listen(fd, SOCKET_BACKLOG) == 0))
    return fd;
  int code = -errno;
  close(fd);
  return code;
}

int socket_set_options(int fd, unsigned user_timeout_ms) {
  const struct {
    int level, option, value;
  } options[] = {
      {IPPROTO_TCP, TCP_NODELAY, 1},
      {SOL_SOCKET, SO_KEEPALIVE, 1},
      {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
      {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S},
      {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT},
      {IPPROTO_TCP, TCP_USER_TIMEOUT, (int)user_timeout_ms},
  };
  size_t n = sizeof(options) / sizeof(options[0]) - (user_timeout_ms ? 0 : 1);
  int first = 0;
  for (size_t i = 0; i < n; i++) {
    int rc = setsockopt(fd, options[i].level, options[i].option, &options[i].value, sizeof(options[i].value));
    if (rc < 0 && errno != ENOPROTOOPT && first == 0) first = -errno;
  }
  return first;
}

size_t socket_host_addrs(unsigned flags, struct ipaddr out[HOST_ADDRS_MAX]) {
  struct ifaddrs *list;
  size_t n = 0;
  if (getifaddrs(&list) != 0) return 0;
  for (const struct ifaddrs *i = list; i && n < HOST_ADDRS_MAX; i = i->ifa_next) {
    int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
    union socket_address a = {.room = {0}};
    uint16_t port;
    if ((family != AF_INET && family != AF_INET6) || (i->ifa_flags & flags) != flags) continue;
    memcpy(&a, i->ifa_addr, family == AF_INET ? sizeof(a.v4) : sizeof(a.v6));
    socket_address_read(&a, &out[n++], &port);
  }
  freeifaddrs(list);
  return n;
}

bool socket_address_is_local(const union socket_address *a) {
  struct ipaddr wanted, own[HOST_ADDRS_MAX];
  uint16_t port;
  socket_address_read(a, &wanted, &port);
  if (ipaddr_is_loopback(&wanted)) return true;
  for (size_t i = 0, n = socket_host_addrs(0, own); i < n; i++)
    if (ipaddr_compare(&wanted, &own[i]) == 0) return true;
  return false;
}
