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

static void take_addresses(struct address_list *found, const struct addrinfo *list) {
  for (const struct addrinfo *a = list; a && found->n < ADDRESSES_MAX; a = a->ai_next) {
    if (a->ai_addrlen > sizeof(found->v[0]) || (a->ai_family != AF_INET && a->ai_family != AF_INET6)) continue;
    memcpy(&found->v[found->n++], a->ai_addr, a->ai_addrlen);
  }
}

static void on_found(uv_getaddrinfo_t *req, int status, struct addrinfo *list) {
  struct resolve *r = req->data;
  struct address_list found = {0};
  struct err e = ERR_INIT;
  if (status == 0) take_addresses(&found, list);
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

/* Before there is a loop. ------------------------------------------------------------------------------------------ */

/* The address of --local-addr, if it is a name, must be known before the first message to the daemon. The call returns
 * when the name servers have answered, or when the resolver gives them up.
 *
 * A name may have several addresses. An address of this machine that is not loopback is best; then any that is not
 * loopback, since other nodes may see one that is on no interface here (a container behind a bridge). A machine whose
 * own name is 127.0.1.1 has no usable address; "" then stands for the daemon's view of it. */

static int look_up(const char *name, const char *where, struct address_list *found, struct err *e) {
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  struct addrinfo *list = NULL;
  int rc = getaddrinfo(name, NULL, &hints, &list);
  *found = (struct address_list){0};
  take_addresses(found, list);
  if (list) freeaddrinfo(list);
  if (found->n) return 0;
  int status = rc == 0 || rc == EAI_NONAME || rc == EAI_NODATA ? UV_EAI_NONAME
               : rc == EAI_AGAIN                               ? UV_EAI_AGAIN
                                                               : UV_EAI_FAIL;
  return fail_to_find(e, status, name, &(struct resolve_words){where, RESOLVE_REMEDY});
}

int own_addr_find(const char *name, char out[ADDR_MAX + 1], struct err *e) {
  struct address_list found;
  snprintf(out, ADDR_MAX + 1, "%s", name);
  if (ipaddr_parse(name).family) return 0;
  int rc = look_up(name, "in --local-addr", &found, e), best = 0;
  if (rc) return rc;
  out[0] = '\0';
  for (size_t i = 0; i < found.n; i++) {
    struct ipaddr ip;
    uint16_t port;
    socket_address_read(&found.v[i], &ip, &port);
    /* An address of this machine is best; loopback is none. */
    int w = ipaddr_is_loopback(&ip) ? 0 : 1 + socket_address_is_local(&found.v[i]);
    if (w > best) address_text(&found.v[i], out);
    if (w > best) best = w;
  }
  return 0;
}

bool own_addr_is(const char *name) {
  struct address_list found;
  if (look_up(name, "in --endpoint", &found, NULL)) return true;
  for (size_t i = 0; i < found.n; i++)
    if (socket_address_is_local(&found.v[i])) return true;
  return false;
}
