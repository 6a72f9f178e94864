/* SPDX-License-Identifier: Apache-2.0 */
/* The sentences about an attempt that failed. */

#include <stdio.h>
#include <string.h>
#include "agent/link/host_addrs.h"
#include "agent/link/link_internal.h"
#include "common/system/port_holder.h"

enum { ADDRESSES_NAMED_MAX = 4 };

void link_name_target(const struct link *l, size_t which, struct buf *out) {
  char text[ENDPOINT_TEXT_MAX], addr[ADDR_MAX + 1];
  size_t first = which == SIZE_MAX ? 0 : which, n = which == SIZE_MAX ? l->to->addresses.n : first + 1;
  address_text(&l->to->addresses.v[first], addr);
  endpoint_format(&l->to->endpoint, text);
  buf_puts(out, text);
  if (n == 1 && !strcmp(addr, l->to->endpoint.host)) return;
  for (size_t i = first; i < n && i < first + ADDRESSES_NAMED_MAX; i++) {
    address_text(&l->to->addresses.v[i], addr);
    buf_printf(out, "%s%s", i > first ? ", " : " (", addr);
  }
  if (n > first + ADDRESSES_NAMED_MAX) buf_printf(out, " and %zu more", n - first - ADDRESSES_NAMED_MAX);
  buf_putc(out, ')');
}

/* The reason for one address, or the same for all. */
static void put_reason(const struct link *l, int error, const char *where, struct buf *out) {
  if (error == UV_ECONNREFUSED && l->taken)
    buf_printf(out, "a program holds %s but accepts no connections: %s", where,
               l->o.derived ? "give --endpoint HOST:PORT, with another port, the same to all agents"
                            : "choose another port");
  else if (error == UV_ECONNREFUSED)
    buf_printf(out, "nothing listens at %s: %s", where,
               l->o.derived || l->where != LINK_TO_ENDPOINT ? "the agent there has not started rdzvd yet"
               : l->to == l->targets                        ? "start rdzvd there, or an agent with the same --endpoint"
                                                            : "start rdzvd there");
  else if (error == UV_ETIMEDOUT)
    buf_printf(out, "%s does not answer: is the machine up, and the port open in its firewall?", where);
  else if (error == UV_ENETUNREACH || error == UV_EHOSTUNREACH)
    buf_printf(out, "there is no route to %s from this machine: check the address and the network", where);
  else
    buf_printf(out, "no connection to %s: %s", where, uv_strerror(error));
}

static const char *short_reason(int error) {
  if (error == UV_ECONNREFUSED) return "nothing listens";
  if (error == UV_ETIMEDOUT) return "no answer";
  if (error == UV_ENETUNREACH || error == UV_EHOSTUNREACH) return "no route";
  return uv_strerror(error);
}

/* "no connection to node1:29400: 10.0.0.5 (nothing listens), 10.1.0.5 (no answer)" */
static void put_reasons(const struct link *l, struct buf *out) {
  char text[ENDPOINT_TEXT_MAX], addr[ADDR_MAX + 1];
  endpoint_format(&l->to->endpoint, text);
  buf_printf(out, "no connection to %s: ", text);
  for (size_t i = 0; i < l->to->addresses.n; i++) {
    address_text(&l->to->addresses.v[i], addr);
    buf_printf(out, "%s%s (%s)", i ? ", " : "", addr, short_reason(l->errors[i]));
  }
}

void link_put_failure(const struct link *l, struct buf *out) {
  bool same = true;
  struct buf where = BUF_INIT;
  for (size_t i = 1; i < l->to->addresses.n; i++) same = same && l->errors[i] == l->errors[0];
  link_name_target(l, SIZE_MAX, &where);
  if (same)
    put_reason(l, l->errors[0], buf_text(&where), out);
  else
    put_reasons(l, out);
  buf_finish(&where);
}

bool link_put_holder(const struct link *l, struct buf *out) {
  const union socket_address *a = &l->to->addresses.v[l->at];
  struct port_holder h;
  if (!address_is_local(a) || !port_holder_find(ntohs(a->v4.sin_port), &h)) {
    buf_puts(out, "a program");
    return false;
  }
  buf_printf(out, "pid %d (", (int)h.pid);
  buf_put_escaped(out, h.name, strlen(h.name), sizeof(h.name));
  buf_putc(out, ')');
  return strcmp(h.name, "rdzvd") != 0;
}
