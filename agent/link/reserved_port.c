/* SPDX-License-Identifier: Apache-2.0 */
/* A reserved port.
 *
 * The kernel gives the port of a bound socket to nobody else, and refuses connections to it until somebody listens. The
 * socket lacks SO_REUSEADDR: with it, another program could bind the same port. Where --local-addr is the address of a
 * gateway, it cannot be bound, and the port is one of all addresses. */

#include "agent/link/reserved_port.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>
#include "common/net/socket.h"

static int bind_to(const char *addr, struct reserved_port *out) {
  union socket_address a = {.room = {0}};
  struct endpoint ep = {.port = 0};
  struct ipaddr unused;
  int rc = strchr(addr, ':') ? uv_ip6_addr(addr, 0, &a.v6) : uv_ip4_addr(addr, 0, &a.v4);
  if (rc == 0) rc = out->fd = socket_bind(&a, 0);
  if (rc < 0) return rc;
  socket_local(out->fd, &unused, &out->port);
  snprintf(ep.host, sizeof(ep.host), "%s", addr);
  ep.port = out->port;
  endpoint_format(&ep, out->text);
  return 0;
}

int reserve_port(const char *addr, struct reserved_port *out, struct err *e) {
  const char *const places[] = {addr && *addr ? addr : "::", "::", "0.0.0.0"};
  int rc = -EADDRNOTAVAIL;
  *out = (struct reserved_port){.fd = -1};
  for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
    rc = bind_to(places[i], out);
    if (rc != -EADDRNOTAVAIL && rc != -EAFNOSUPPORT) break;
  }
  if (rc == 0) return 0;
  out->fd = -1;
  return err_sys(e, rc, "no port can be reserved for rdzvd");
}

void reserved_port_close(struct reserved_port *s) {
  if (s->fd >= 0) close(s->fd);
  s->fd = -1;
}
