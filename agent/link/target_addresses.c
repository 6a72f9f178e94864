/* SPDX-License-Identifier: Apache-2.0 */
/* Where an attempt goes: an address of --endpoint, a daemon of another agent, or our own; and what follows from a
 * refusal there. */

#include <stdio.h>
#include <string.h>
#include "agent/link/host_addrs.h"
#include "agent/link/link_internal.h"
#include "common/key/secret.h"

enum {
  FOREIGN_MS = 10000,
  KNOCK_TIMES = 3, /* a tenth of a lease each: agents turn within an eighth of a lease of each other */
};

void link_forget_fetched(struct link_target *t) {
  secret_free(t->fetched);
  t->fetched = NULL;
}

/* Adds a numeric address unless it is there; "" is none. */
static void add_address(struct address_list *list, const char *addr, uint16_t port) {
  union socket_address a = {.room = {0}};
  if ((strchr(addr, ':') ? uv_ip6_addr(addr, port, &a.v6) : uv_ip4_addr(addr, port, &a.v4)) != 0) return;
  for (size_t i = 0; i < list->n; i++)
    if (memcmp(&list->v[i], &a, address_size(&a)) == 0) return;
  list->v[list->n++] = a;
}

static void name_target(struct link_target *t, const char *addr, uint16_t port) {
  t->endpoint.port = port;
  snprintf(t->endpoint.host, sizeof(t->endpoint.host), "%s", addr);
}

bool link_choose_target(struct link *l, const struct link_to *to) {
  bool named = to->where == LINK_TO_ENDPOINT;
  size_t which = to->endpoint < l->o.n_endpoints ? to->endpoint : 0;
  l->to = &l->targets[named ? which : DAEMONS_MAX];
  l->where = to->where;
  l->timeout_ms = to->timeout_ms;
  if (named) return true;
  link_forget_fetched(l->to); /* of another daemon */
  l->to->addresses.n = 0;
  if (to->where == LINK_TO_OWN) return true;
  add_address(&l->to->addresses, to->addr, to->port);
  name_target(l->to, to->addr, to->port);
  return l->to->addresses.n > 0;
}

/* Other nodes know this one by the address that the daemon sees, so loopback comes last. */
void link_find_own(struct link *l, uint16_t port) {
  struct address_list *list = &l->to->addresses;
  char first[ADDR_MAX + 1];
  list->n = 0;
  if (!l->o.standalone) {
    add_address(list, l->o.local_addr, port);
    add_address(list, l->own_addr, port);
  }
  add_address(list, host_loopback(), port);
  address_text(&list->v[0], first);
  name_target(l->to, first, port);
}

/* The last successful address comes first. */
void link_prefer_last(struct link *l) {
  struct address_list *list = &l->to->addresses;
  for (size_t i = 1; l->has_last_peer && i < list->n; i++) {
    union socket_address a = list->v[i];
    if (memcmp(&a, &l->last_peer, address_size(&a)) != 0) continue;
    memmove(&list->v[1], &list->v[0], i * sizeof(a));
    list->v[0] = a;
    return;
  }
}

const struct key *link_key(const struct link *l, uint32_t endpoint) {
  if (endpoint == UINT32_MAX) return l->to && l->to->fetched ? l->to->fetched : l->o.key;
  return l->targets[endpoint].fetched ? l->targets[endpoint].fetched : l->o.key;
}

/* Refusals. -------------------------------------------------------------------------------------------------------- */

bool link_may_replace(struct link *l) {
  if (!l->foreign) return true;
  uint64_t now = uv_now(l->o.loop);
  if (!l->refused_since_ms) l->refused_since_ms = now;
  return now - l->refused_since_ms >= FOREIGN_MS;
}

bool link_is_host(const struct link *l) {
  bool local = l->o.hosting == HOST_ALWAYS;
  if (l->to != l->targets) return false;
  for (size_t i = 0; l->refusals && i < l->to->addresses.n; i++)
    local = local || (l->errors[i] == UV_ECONNREFUSED && address_is_local(&l->to->addresses.v[i]));
  return local && l->o.hosting != HOST_NEVER;
}

bool link_is_early(const struct link *l) {
  return l->where != LINK_TO_ENDPOINT && l->refusals &&
         uv_now(l->o.loop) < l->began_ms + (uint64_t)KNOCK_TIMES * l->timeout_ms;
}
