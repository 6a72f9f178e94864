/* SPDX-License-Identifier: Apache-2.0 */
/* Names to addresses.
 *
 * A numeric host is answered at once. A name goes to getaddrinfo in the pool, which may take as long as the name
 * servers like; a caller that stops waiting cancels, and the request lives on until the pool returns it.
 *
 * AI_ADDRCONFIG is not used: with a loopback interface only (a container, a laptop on a train) it hides names in
 * /etc/hosts.
 *
 * Whether an address is this machine's depends on its interfaces, never on names: "$(hostname)" is often 127.0.1.1 on
 * Debian, and a node's name may have addresses that only other machines see. All of 127.0.0.0/8 is local. */

#include "agent/link/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "agent/link/host_addrs.h"
#include "common/endpoint.h"
#include "common/mem.h"
#include "common/system/loop.h"

struct resolve {
  uv_getaddrinfo_t req;
  struct endpoint endpoint;
  const struct resolve_words *words;
  resolve_fn fn; /* NULL: cancelled */
  void *ctx;
};

static int fail_to_find(struct err *e, int status, const char *host, const struct resolve_words *words) {
  switch (status) {
  case UV_EAI_AGAIN:
    return err_set(e, UV_EAI_AGAIN, "the name \"%s\" %s could not be looked up: no name server answers", host,
                   words->where);
  case UV_EAI_NONAME:
  case UV_EAI_NODATA:
    return err_set(e, -ENOENT, "the name \"%s\" %s is not known on this machine: %s", host, words->where,
                   words->remedy);
  default:
    return err_set(e, -EIO, "the name \"%s\" %s could not be looked up: %s", host, words->where, uv_strerror(status));
  }
}

static void on_found(uv_getaddrinfo_t *req, int status, struct addrinfo *list) {
  struct resolve *r = req->data;
  struct address_list found = {0};
  struct err e = ERR_INIT;
  for (struct addrinfo *a = list; status == 0 && a && found.n < ADDRESSES_MAX; a = a->ai_next) {
    if (a->ai_addrlen > sizeof(found.v[0]) || (a->ai_family != AF_INET && a->ai_family != AF_INET6)) continue;
    memcpy(&found.v[found.n++], a->ai_addr, a->ai_addrlen);
  }
  uv_freeaddrinfo(list);
  if (found.n == 0) fail_to_find(&e, status ? status : UV_EAI_NONAME, r->endpoint.host, r->words);
  if (r->fn) r->fn(r->ctx, &found, e.code ? &e : NULL);
  free(r);
}

struct resolve *resolve_start(uv_loop_t *loop, const struct endpoint *ep, const struct resolve_words *words,
                              resolve_fn fn, void *ctx) {
  struct address_list found = {.n = 1};
  bool v4 = uv_ip4_addr(ep->host, ep->port, &found.v[0].v4) == 0;
  if (v4 || (ipaddr_parse(ep->host).family && uv_ip6_addr(ep->host, ep->port, &found.v[0].v6) == 0)) {
    fn(ctx, &found, NULL);
    return NULL;
  }
  struct resolve *r = xcalloc(1, sizeof(*r));
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  char port[8];
  *r = (struct resolve){.endpoint = *ep, .words = words, .fn = fn, .ctx = ctx};
  r->req.data = r;
  snprintf(port, sizeof(port), "%u", (unsigned)ep->port);
  struct err e = ERR_INIT;
  int rc = loop_start_pool(loop, LOOP_POOL_AGENT, &e);
  if (rc == 0) {
    rc = uv_getaddrinfo(loop, &r->req, on_found, ep->host, port, &hints);
    if (rc == 0) return r;
    fail_to_find(&e, rc, ep->host, words);
  }
  free(r);
  fn(ctx, &found, &e);
  return NULL;
}

void resolve_cancel(struct resolve *r) {
  if (!r) return;
  r->fn = NULL;
  uv_cancel((uv_req_t *)&r->req); /* while it waits for a thread; on_found is called in any case */
}

void address_text(const union socket_address *a, char out[ADDR_MAX + 1]) {
  struct ipaddr ip;
  uint16_t port;
  char text[INET6_ADDRSTRLEN];
  socket_address_read(a, &ip, &port);
  socket_format(&ip, text);
  snprintf(out, ADDR_MAX + 1, "%s", text);
}

bool address_is_local(const union socket_address *a) {
  struct ipaddr wanted, own[HOST_ADDRS_MAX];
  uint16_t port;
  socket_address_read(a, &wanted, &port);
  if (ipaddr_is_loopback(&wanted)) return true;
  for (size_t i = 0, n = host_addrs(own); i < n; i++)
    if (ipaddr_compare(&wanted, &own[i]) == 0) return true;
  return false;
}

/* Before there is a loop. ------------------------------------------------------------------------------------------ */

/* The address of --local-addr, if it is a name.
 *
 * It must be known before the first message to the daemon, so a separate loop runs until the resolver answers or the
 * deadline passes. A request that still waits for its name server cannot be cancelled; it and the loop stay until the
 * process ends.
 *
 * A name may have several addresses. An address of this machine that is not loopback is best; then any that is not
 * loopback, since other nodes may see one that is on no interface here (a container behind a bridge). A machine whose
 * own name is 127.0.1.1 has no usable address; "" then stands for the daemon's view of it. */

struct lookup {
  uv_loop_t loop;
  uv_timer_t timer;
  bool done, failed;
  struct address_list found;
  struct err e;
};

static struct lookup lookup; /* outlives a request that hangs */

static void on_looked_up(void *ctx, const struct address_list *found, const struct err *e) {
  struct lookup *l = ctx;
  l->done = true;
  l->failed = e != NULL;
  if (e)
    l->e = *e;
  else
    l->found = *found;
  uv_stop(&l->loop);
}

static void on_deadline(uv_timer_t *timer) {
  uv_stop(timer->loop);
}

/* Resolves until the answer or the deadline. */
static int look_up(const char *name, const char *option, uint32_t deadline_ms, bool *hung, struct err *e) {
  struct lookup *l = &lookup;
  struct endpoint ep = {.port = 1};
  static char where[40]; /* the request may outlive this call */
  static const struct resolve_words words = {where, RESOLVE_REMEDY};
  static bool stuck; /* a name server that never answered still uses `lookup` */
  if (stuck)
    return err_set(e, -ETIMEDOUT, "%s %s: the name server does not answer: give a numeric address", option, name);
  *l = (struct lookup){.done = false};
  snprintf(ep.host, sizeof(ep.host), "%s", name);
  int rc = loop_open(&l->loop, e);
  if (rc) return rc;
  uv_timer_init(&l->loop, &l->timer);
  uv_timer_start(&l->timer, on_deadline, deadline_ms, 0);
  snprintf(where, sizeof(where), "in %s", option);
  struct resolve *r = resolve_start(&l->loop, &ep, &words, on_looked_up, l);
  if (!l->done) uv_run(&l->loop, UV_RUN_DEFAULT);
  *hung = stuck = !l->done;
  if (!l->done) {
    resolve_cancel(r);
    return err_set(e, -ETIMEDOUT, "%s %s: no name server has answered in %u s: give a numeric address", option, name,
                   (unsigned)(deadline_ms / 1000));
  }
  uv_close((uv_handle_t *)&l->timer, NULL);
  uv_run(&l->loop, UV_RUN_NOWAIT);
  uv_loop_close(&l->loop);
  return l->failed ? err_set(e, l->e.code, "%s", l->e.text) : 0;
}

int own_addr_find(const char *name, uint32_t deadline_ms, char out[ADDR_MAX + 1], bool *hung, struct err *e) {
  snprintf(out, ADDR_MAX + 1, "%s", name);
  if (ipaddr_parse(name).family) return 0;
  int rc = look_up(name, "--local-addr", deadline_ms, hung, e), best = 0;
  if (rc) return rc;
  out[0] = '\0';
  for (size_t i = 0; i < lookup.found.n; i++) {
    struct ipaddr ip;
    uint16_t port;
    socket_address_read(&lookup.found.v[i], &ip, &port);
    /* An address of this machine is best; loopback is none. */
    int w = ipaddr_is_loopback(&ip) ? 0 : 1 + address_is_local(&lookup.found.v[i]);
    if (w > best) address_text(&lookup.found.v[i], out);
    if (w > best) best = w;
  }
  return 0;
}

bool own_addr_is(const char *name, uint32_t deadline_ms, bool *hung) {
  if (look_up(name, "--endpoint", deadline_ms, hung, NULL)) return true;
  for (size_t i = 0; i < lookup.found.n; i++)
    if (address_is_local(&lookup.found.v[i])) return true;
  return false;
}
