/* The addresses of this machine's interfaces, as numbers and as HELLO tells them. Where they are more than HELLO may carry (a
 * host of containers has hundreds of bridges), IPv4 goes first and what is left over is not told: the daemon sees the
 * one that the agent itself uses anyway. */

#include "agent/link/host_addrs.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>

struct walk {
  uv_interface_address_t *v;
  int n;
};

static struct walk look(void) {
  struct walk w = {0};
  if (uv_interface_addresses(&w.v, &w.n) < 0) w.n = 0;
  return w;
}

static void look_away(struct walk *w) {
  if (w->n) uv_free_interface_addresses(w->v, w->n);
}

static struct ipaddr numeric(const uv_interface_address_t *i, char text[ADDR_MAX + 1]) {
  int rc = i->address.address4.sin_family == AF_INET6 ? uv_ip6_name(&i->address.address6, text, ADDR_MAX)
                                                      : uv_ip4_name(&i->address.address4, text, ADDR_MAX);
  return rc < 0 ? (struct ipaddr){0} : ipaddr_parse(text);
}

size_t host_addrs(struct ipaddr out[HOST_ADDRS_MAX]) {
  struct walk w = look();
  size_t n = 0;
  for (int i = 0; i < w.n && n < HOST_ADDRS_MAX; i++) {
    char text[ADDR_MAX + 1];
    out[n] = numeric(&w.v[i], text);
    if (out[n].family) n++;
  }
  look_away(&w);
  return n;
}

static void add_family(const struct walk *w, uint8_t family, char out[ADDRS_MAX + 1]) {
  size_t len = strlen(out);
  for (int i = 0; i < w->n; i++) {
    char text[ADDR_MAX + 1];
    struct ipaddr a = numeric(&w->v[i], text);
    if (a.family != family || ipaddr_is_loopback(&a) || ipaddr_is_linklocal(&a)) continue;
    if (len + 1 + strlen(text) > ADDRS_MAX) return;
    len += (size_t)snprintf(out + len, ADDRS_MAX + 1 - len, "%s%s", len ? " " : "", text);
  }
}

void host_addrs_text(char out[ADDRS_MAX + 1]) {
  struct walk w = look();
  out[0] = '\0';
  add_family(&w, 4, out);
  add_family(&w, 6, out);
  look_away(&w);
}
