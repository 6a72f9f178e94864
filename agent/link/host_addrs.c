/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of this machine's interfaces as text for HELLO. If HELLO cannot hold all (a host of
 * containers has hundreds of bridges), IPv4 comes first and the rest is omitted: the daemon sees the address that the
 * agent uses anyway. */

#include "agent/link/host_addrs.h"

#include <net/if.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/net/socket.h"

/* An address that this machine does not have cannot be bound. */
static bool can_bind(const struct sockaddr *addr, socklen_t len) {
  int fd = socket(addr->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  bool bound = fd >= 0 && bind(fd, addr, len) == 0;
  if (fd >= 0) close(fd);
  return bound;
}

const char *host_loopback(void) {
  static const char *found;
  struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  if (!found) {
    bool only_v6 = !can_bind((struct sockaddr *)&v4, sizeof(v4)) && can_bind((struct sockaddr *)&v6, sizeof(v6));
    found = only_v6 ? "::1" : "127.0.0.1";
  }
  return found;
}

void host_addrs_text(char out[ADDRS_MAX + 1]) {
  struct ipaddr all[HOST_ADDRS_MAX];
  size_t n = socket_host_addrs(IFF_UP | IFF_RUNNING, all), len = 0;
  out[0] = '\0';
  for (int family = 4; family <= 6; family += 2)
    for (size_t i = 0; i < n; i++) {
      char text[INET6_ADDRSTRLEN];
      if (all[i].family != family || ipaddr_is_loopback(&all[i]) || ipaddr_is_linklocal(&all[i])) continue;
      socket_format(&all[i], text);
      if (len + 1 + strlen(text) > ADDRS_MAX) return;
      len += (size_t)snprintf(out + len, ADDRS_MAX + 1 - len, "%s%s", len ? " " : "", text);
    }
}
