/* SPDX-License-Identifier: Apache-2.0 */
/* Names of missing hosts, and the addresses of peers whose key was refused.
 *
 *   host_finder_add -> (timer) -> the missing hosts -> getaddrinfo of each, one after the other -> fn for each address
 *
 * Only the name that the scheduler gave is looked up. The owner of an address could give it any name. Addresses that
 * come during a series wait for the next one. A lookup may take long; it holds one thread of the pool, and one remains
 * for the state file. */

#include "daemon/server/host_finder.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/mem.h"
#include "common/system/loop.h"
#include "proto/msg.h"
#include "common/net/socket.h"

struct host_finder {
  uv_loop_t *loop;
  const struct core *core;
  host_finder_fn fn;
  void *ctx;
  uv_timer_t timer;
  uv_getaddrinfo_t lookup;
  char addrs[HOST_FINDER_ADDRS_MAX][ADDR_MAX + 1];
  size_t n, n_asked; /* addresses, and those that this series is about */
  struct buf hosts;  /* names, each with a NUL */
  size_t at;         /* of the name that is looked up */
  size_t n_series;
  uint64_t began_ms; /* the last series, by the loop's clock; 0: none yet */
  int held;          /* by the timer, and by a lookup */
  bool running, looking, closed;
};

static void release(struct host_finder *t) {
  if (--t->held > 0) return;
  buf_finish(&t->hosts);
  free(t);
}

static void tell(struct host_finder *t, size_t i, const char *host) {
  char addr[ADDR_MAX + 1];
  memcpy(addr, t->addrs[i], sizeof addr);
  memmove(t->addrs[i], t->addrs[i + 1], (--t->n - i) * sizeof t->addrs[0]);
  t->n_asked--;
  t->fn(t->ctx, host, addr);
}

static void on_timer(uv_timer_t *timer);

static void start_timer(struct host_finder *t) {
  uint64_t now = uv_now(t->loop), at = t->began_ms ? t->began_ms + HOST_FINDER_EVERY_MS : now;
  if (!t->n || t->running || t->closed) return;
  uv_timer_start(&t->timer, on_timer, at > now ? at - now : 0, 0);
}

static void look_up_next(struct host_finder *t);

static void on_lookup(uv_getaddrinfo_t *lookup, int status, struct addrinfo *found) {
  struct host_finder *t = lookup->data;
  const char *host = t->hosts.data + t->at;
  t->looking = false;
  if (!t->closed && status == 0) {
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
      union socket_address sa = {0};
      struct ipaddr ip;
      uint16_t port;
      char text[INET6_ADDRSTRLEN];
      if (a->ai_addrlen > sizeof sa) continue;
      memcpy(&sa, a->ai_addr, a->ai_addrlen);
      socket_address_read(&sa, &ip, &port);
      socket_format(&ip, text);
      for (size_t i = 0; i < t->n_asked && !t->closed; i++)
        if (!strcmp(t->addrs[i], text)) tell(t, i--, host);
    }
  }
  uv_freeaddrinfo(found);
  if (!t->closed) {
    t->at += strlen(host) + 1;
    look_up_next(t);
  }
  release(t);
}

static void look_up_next(struct host_finder *t) {
  const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  for (; t->n_asked && t->at < t->hosts.len; t->at += strlen(t->hosts.data + t->at) + 1) {
    t->looking = uv_getaddrinfo(t->loop, &t->lookup, on_lookup, t->hosts.data + t->at, NULL, &hints) == 0;
    if (!t->looking) continue;
    t->held++;
    return;
  }
  while (t->n_asked && !t->closed) tell(t, 0, "");
  t->running = false;
  buf_clear(&t->hosts);
  start_timer(t);
}

static void on_timer(uv_timer_t *timer) {
  struct host_finder *t = timer->data;
  t->running = true;
  t->began_ms = uv_now(t->loop);
  t->n_asked = t->n;
  t->at = 0;
  if (loop_start_pool(t->loop, LOOP_POOL_DAEMON, NULL) == 0)
    core_missing_hosts(t->core, t->n_series++, HOST_FINDER_HOSTS_MAX, &t->hosts);
  look_up_next(t);
}

void host_finder_add(struct host_finder *t, const char *addr) {
  if (!t || t->closed || t->n == HOST_FINDER_ADDRS_MAX) return;
  for (size_t i = 0; i < t->n; i++)
    if (!strcmp(t->addrs[i], addr)) return;
  snprintf(t->addrs[t->n++], sizeof t->addrs[0], "%s", addr);
  start_timer(t);
}

struct host_finder *host_finder_create(uv_loop_t *loop, const struct core *core, host_finder_fn fn, void *ctx) {
  struct host_finder *t = xcalloc(1, sizeof *t);
  *t = (struct host_finder){.loop = loop, .core = core, .fn = fn, .ctx = ctx, .held = 1};
  uv_timer_init(loop, &t->timer);
  t->timer.data = t->lookup.data = t;
  uv_unref((uv_handle_t *)&t->timer);
  return t;
}

static void on_closed(uv_handle_t *timer) {
  release(timer->data);
}

void host_finder_close(struct host_finder *t) {
  if (!t || t->closed) return;
  t->closed = true;
  if (t->looking) uv_cancel((uv_req_t *)&t->lookup);
  uv_close((uv_handle_t *)&t->timer, on_closed);
}
