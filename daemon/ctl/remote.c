/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon of another machine is asked with a key: one that was found, or one that MUNGE brings. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/key/munge.h"
#include "common/key/secret.h"
#include "daemon/ctl/client.h"
#include "proto/refusal.h"

enum { KEY_FETCH_MS = 4000 }; /* < the five seconds of a question */

void ctl_fail_key(struct client *c, const char *munge) {
  struct buf text = BUF_INIT;
  refusal_put(&text, &(struct refusal){.status = c->conn.refusal,
                                       .source = c->conn.refusal_key,
                                       .where = c->path,
                                       .endpoint = ctl_endpoint(c),
                                       .who = "this rdzvctl",
                                       .key_from = c->key_from.text,
                                       .named = !key_may_be_replaced(c->key_from.kind),
                                       .munge = munge});
  ctl_fail(c, EXIT_CODE_REFUSED, "%s", buf_text(&text));
  buf_finish(&text);
}

bool ctl_may_ask_munge(const struct client *c) {
  return c->remote && !c->asked_munge && key_may_be_replaced(c->key_from.kind) && munge_available();
}

/* Why no daemon can be asked without a key. keyless: because it has none. */
static void put_no_key(const struct client *c, bool keyless, struct buf *out) {
  const struct endpoint *ep = ctl_endpoint(c);
  if (keyless) {
    buf_printf(out,
               "a daemon without a key (--insecure) takes commands on its own machine only: ssh %s rdzvctl --port %d "
               "...",
               ep->host, ep->port);
  } else {
    buf_printf(out, "this user has no key here for rdzvd at %s: copy it: ", c->path);
    refusal_put_copy(out, ep);
  }
}

static void on_munge_key(void *ctx, const struct key *key, const struct err *e) {
  struct client *c = ctx;
  c->munge.fetch = NULL;
  c->munge.asks = false;
  if (!key) {
    struct buf text = BUF_INIT;
    if (c->key) {
      ctl_fail_key(c, e->text);
    } else if (e->code == -ECONNREFUSED || e->code == -EHOSTUNREACH || e->code == -ENETUNREACH) {
      if (c->address + 1 < c->addresses.n)
        ctl_try_next_address(c);
      else
        ctl_fail_connect(c, e->code);
    } else {
      bool keyless = e->code == -ENOKEY;
      put_no_key(c, keyless, &text);
      if (!keyless) buf_printf(&text, "; MUNGE brings none: %s", e->text);
      ctl_fail(c, EXIT_CODE_REFUSED, "%s", buf_text(&text));
    }
    buf_finish(&text);
    return;
  }
  if (!c->key) c->key = secret_alloc();
  *c->key = *key;
  snprintf(c->key_from.text, sizeof(c->key_from.text), "brought by MUNGE");
  if (ctl_wants_token(c))
    ctl_print_token(c);
  else
    ctl_connect_port(c);
}

static void fetch(struct client *c) {
  struct ctl_munge *m = &c->munge;
  struct munge_fetch_options o = {
      .loop = &c->loop, .daemon = m->daemon, .trusted = m->trusted, .deadline_ms = KEY_FETCH_MS};
  if (m->error.code)
    on_munge_key(c, NULL, &m->error);
  else
    m->fetch = munge_fetch_start(&o, on_munge_key, c);
}

/* The user whose daemon is trusted (--munge-user) is looked up in the loop's thread pool: the user database may be slow,
 * or hang. */
static void look_up(uv_work_t *work) {
  struct client *c = work->data;
  munge_user_find(c->options.munge_user, &c->munge.trusted, &c->munge.error);
}

static void on_looked_up(uv_work_t *work, int status) {
  struct client *c = work->data;
  c->munge.looking = false;
  c->munge.known = true;
  if (c->munge.asks) fetch(c);
}

void ctl_ask_munge(struct client *c) {
  struct ctl_munge *m = &c->munge;
  c->asked_munge = m->asks = true;
  snprintf(c->waits_for, sizeof(c->waits_for), "a key by MUNGE from rdzvd at %s", c->path);
  memcpy(&m->daemon, &c->addresses.v[c->address], sizeof(m->daemon));
  if (m->known) fetch(c);
  if (m->known || m->looking) return;
  m->lookup.data = c;
  int rc = uv_queue_work(&c->loop, &m->lookup, look_up, on_looked_up);
  m->looking = rc == 0;
  if (rc == 0) return;
  struct err e = ERR_INIT;
  err_sys(&e, rc, "the user of --munge-user");
  on_munge_key(c, NULL, &e);
}

void ctl_cancel_munge(struct client *c) {
  if (c->munge.fetch) munge_fetch_cancel(c->munge.fetch);
  c->munge.fetch = NULL;
  c->munge.asks = false;
}

static bool refuse_remote(struct client *c, struct buf *text) {
  ctl_fail(c, EXIT_CODE_REFUSED, "%s", buf_text(text));
  buf_finish(text);
  return false;
}

bool ctl_prepare_remote(struct client *c) {
  struct err e = ERR_INIT;
  struct buf text = BUF_INIT;
  c->asked_munge = false;
  if (strcmp(c->request.verb, "key") == 0) {
    buf_puts(&text, "a daemon hands its key out on its own machine only: ");
    refusal_put_copy(&text, ctl_endpoint(c));
    return refuse_remote(c, &text);
  }
  if (!c->sought_key) {
    /* That of the words, else of the default file, which is not created. It is for all daemons. */
    struct key_origin *from = &c->own_key_from;
    int rc = key_find_given(&c->options.key, &c->key_env, &c->own_key, from, &e);
    if (rc == 0 && from->kind == KEY_SOURCE_UNSET) rc = key_find_default(false, &c->own_key, from, &e);
    if (rc < 0) {
      ctl_finish(c, ctl_complain(c, EXIT_CODE_USAGE, "%s", e.text));
      return false;
    }
    c->sought_key = true;
  }
  c->key_from = c->own_key_from;
  if (c->own_key) {
    c->key = secret_alloc();
    *c->key = *c->own_key;
  }
  if (c->key || ctl_may_ask_munge(c)) return true;
  put_no_key(c, c->key_from.kind == KEY_SOURCE_INSECURE, &text);
  return refuse_remote(c, &text);
}
