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
  if (!key) {
    struct buf text = BUF_INIT;
    if (c->key) {
      ctl_fail_key(c, e->text);
    } else if (ctl_munge_unreachable(e)) {
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

void ctl_ask_munge(struct client *c) {
  c->asked_munge = true;
  snprintf(c->waits_for, sizeof(c->waits_for), "a key by MUNGE from rdzvd at %s", c->path);
  ctl_munge_ask(&c->munge, &c->loop, c->options.munge_user, &c->addresses.v[c->address], on_munge_key, c);
}

static bool refuse_remote(struct client *c, struct buf *text) {
  ctl_fail(c, EXIT_CODE_REFUSED, "%s", buf_text(text));
  buf_finish(text);
  return false;
}

/* What was found is for all daemons; what MUNGE brings is for one. */
static int find_key(struct client *c, struct err *e) {
  int rc = c->sought_key ? 0 : ctl_key_find(&c->options.key, &c->key_env, &c->own_key, &c->own_key_from, e);
  if (rc < 0) return rc;
  c->sought_key = true;
  c->key_from = c->own_key_from;
  if (!c->own_key) return 0;
  c->key = secret_alloc();
  *c->key = *c->own_key;
  return 0;
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
  if (find_key(c, &e) < 0) {
    ctl_finish(c, ctl_complain(c, EXIT_CODE_USAGE, "%s", e.text));
    return false;
  }
  if (c->key || ctl_may_ask_munge(c)) return true;
  put_no_key(c, c->key_from.kind == KEY_SOURCE_INSECURE, &text);
  return refuse_remote(c, &text);
}
