/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/addresses.h"

#include <netinet/in.h>
#include <string.h>
#include <uv.h>
#include "common/endpoint.h"

static bool is_address_of_this_machine(const struct sockaddr *sa) {
  char text[64], own[64];
  if (uv_ip_name(sa, text, sizeof(text)) < 0) return false;
  struct ipaddr wanted = ipaddr_parse(text);
  if (ipaddr_is_loopback(&wanted)) return true;
  uv_interface_address_t *v;
  int n = 0;
  bool found = false;
  if (uv_interface_addresses(&v, &n) < 0) return false;
  for (int i = 0; i < n && !found; i++) {
    uv_ip_name((const struct sockaddr *)&v[i].address, own, sizeof(own));
    struct ipaddr a = ipaddr_parse(own);
    found = ipaddr_compare(&a, &wanted) == 0;
  }
  uv_free_interface_addresses(v, n);
  return found;
}

bool addresses_keep(struct addresses *all, const struct addrinfo *found, uint16_t port) {
  bool own = false;
  for (const struct addrinfo *a = found; a && all->n < ADDRESSES_MAX; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    own = own || is_address_of_this_machine(a->ai_addr);
    struct sockaddr_storage *to = &all->v[all->n++];
    memcpy(to, a->ai_addr, a->ai_addrlen);
    if (a->ai_family == AF_INET)
      ((struct sockaddr_in *)to)->sin_port = htons(port);
    else
      ((struct sockaddr_in6 *)to)->sin6_port = htons(port);
  }
  return own;
}
