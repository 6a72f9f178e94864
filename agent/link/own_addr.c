/* SPDX-License-Identifier: Apache-2.0 */
/* The address of --local-addr, if it is a name.
 *
 * It must be known before the first message to the daemon, so a separate loop runs until the resolver answers or the
 * deadline passes. A request that still waits for its name server cannot be cancelled; it and the loop stay until the
 * process ends.
 *
 * A name may have several addresses. An address of this machine that is not loopback is best; then any that is not
 * loopback, since other nodes may see one that is on no interface here (a container behind a bridge). A machine whose
 * own name is 127.0.1.1 has no usable address; "" then stands for the daemon's view of it. */

#include "agent/link/own_addr.h"

#include <errno.h>
#include <stdio.h>
#include <uv.h>
#include "agent/link/resolve.h"
#include "common/endpoint.h"
#include "common/system/loop.h"

struct lookup {
  uv_loop_t loop;
  uv_timer_t timer;
  bool done, failed;
  struct address_list found;
  struct err e;
};

static struct lookup lookup; /* outlives a request that hangs */

static void on_found(void *ctx, const struct address_list *found, const struct err *e) {
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

static void choose_address(const struct address_list *found, char out[ADDR_MAX + 1]) {
  int best = 0;
  out[0] = '\0';
  for (size_t i = 0; i < found->n; i++) {
    char text[ADDR_MAX + 1];
    address_text(&found->v[i], text);
    struct ipaddr ip = ipaddr_parse(text);
    /* An address of this machine is best; loopback is none. */
    int w = ipaddr_is_loopback(&ip) ? 0 : 1 + address_is_local(&found->v[i]);
    if (w <= best) continue;
    best = w;
    snprintf(out, ADDR_MAX + 1, "%s", text);
  }
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
  struct resolve *r = resolve_start(&l->loop, &ep, &words, on_found, l);
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
  int rc = look_up(name, "--local-addr", deadline_ms, hung, e);
  if (rc == 0) choose_address(&lookup.found, out);
  return rc;
}

bool own_addr_is(const char *name, uint32_t deadline_ms, bool *hung) {
  if (look_up(name, "--endpoint", deadline_ms, hung, NULL)) return true;
  for (size_t i = 0; i < lookup.found.n; i++)
    if (address_is_local(&lookup.found.v[i])) return true;
  return false;
}
