/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of this machine's interfaces, as numbers and as text for HELLO. If HELLO cannot hold all (a host of
 * containers has hundreds of bridges), IPv4 comes first and the rest is omitted: the daemon sees the address that the
 * agent uses anyway. */

#include "agent/link/host_addrs.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

struct walk {
  uv_interface_address_t *v;
  int n;
};

static struct walk list_interfaces(void) {
  struct walk w = {0};
  if (uv_interface_addresses(&w.v, &w.n) < 0) w.n = 0;
  return w;
}

static void free_interfaces(struct walk *w) {
  if (w->n) uv_free_interface_addresses(w->v, w->n);
}

static struct ipaddr interface_address(const uv_interface_address_t *i, char text[ADDR_MAX + 1]) {
  int rc = i->address.address4.sin_family == AF_INET6 ? uv_ip6_name(&i->address.address6, text, ADDR_MAX)
                                                      : uv_ip4_name(&i->address.address4, text, ADDR_MAX);
  return rc < 0 ? (struct ipaddr){0} : ipaddr_parse(text);
}

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

/* Binding and the routes may stay while the interface is down. */
bool host_reaches_loopback(void) {
  struct ifaddrs *list;
  bool seen = false, up = false;
  if (getifaddrs(&list) != 0) return true; /* not known */
  for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
    if (!(i->ifa_flags & IFF_LOOPBACK)) continue;
    up = up || (i->ifa_flags & IFF_UP);
    seen = true;
  }
  freeifaddrs(list);
  return up || !seen;
}

size_t host_addrs(struct ipaddr out[HOST_ADDRS_MAX]) {
  struct walk w = list_interfaces();
  size_t n = 0;
  for (int i = 0; i < w.n && n < HOST_ADDRS_MAX; i++) {
    char text[ADDR_MAX + 1];
    out[n] = interface_address(&w.v[i], text);
    if (out[n].family) n++;
  }
  free_interfaces(&w);
  return n;
}

static void add_family(const struct walk *w, uint8_t family, char out[ADDRS_MAX + 1]) {
  size_t len = strlen(out);
  for (int i = 0; i < w->n; i++) {
    char text[ADDR_MAX + 1];
    struct ipaddr a = interface_address(&w->v[i], text);
    if (a.family != family || ipaddr_is_loopback(&a) || ipaddr_is_linklocal(&a)) continue;
    if (len + 1 + strlen(text) > ADDRS_MAX) return;
    len += (size_t)snprintf(out + len, ADDRS_MAX + 1 - len, "%s%s", len ? " " : "", text);
  }
}

void host_addrs_text(char out[ADDRS_MAX + 1]) {
  struct walk w = list_interfaces();
  out[0] = '\0';
  add_family(&w, 4, out);
  add_family(&w, 6, out);
  free_interfaces(&w);
}
