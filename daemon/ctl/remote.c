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
  struct endpoint ep;
  struct buf text = BUF_INIT;
  endpoint_parse(c->options.endpoint, RDZV_DEFAULT_PORT, &ep, NULL);
  refusal_put(&text, &(struct refusal){.status = c->conn.refusal,
                                       .source = c->conn.refusal_key,
                                       .where = c->path,
                                       .endpoint = &ep,
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
static void put_no_key(const struct client *c, const struct endpoint *ep, bool keyless, struct buf *out) {
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

static void fail_munge(struct client *c, const struct err *e) {
  struct endpoint ep;
  struct buf text = BUF_INIT;
  if (c->key) {
    ctl_fail_key(c, e->text);
  } else if (ctl_munge_unreachable(e)) {
    if (c->address + 1 < c->addresses.n)
      ctl_try_next_address(c);
    else
      ctl_fail_connect(c, e->code);
  } else {
    endpoint_parse(c->options.endpoint, RDZV_DEFAULT_PORT, &ep, NULL);
    bool keyless = e->code == -ENOKEY;
    put_no_key(c, &ep, keyless, &text);
    if (!keyless) buf_printf(&text, "; MUNGE brings none: %s", e->text);
    ctl_fail(c, EXIT_CODE_REFUSED, "%s", buf_text(&text));
  }
  buf_finish(&text);
}

static void on_munge_key(void *ctx, const struct key *key, const struct err *e) {
  struct client *c = ctx;
  if (!key) {
    fail_munge(c, e);
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

static int refuse_remote(const struct client *c, struct buf *text) {
  ctl_complain(c, EXIT_CODE_REFUSED, "%s", buf_text(text));
  buf_finish(text);
  return EXIT_CODE_REFUSED;
}

int ctl_prepare_remote(struct client *c, const struct endpoint *ep) {
  struct err e = ERR_INIT;
  struct buf text = BUF_INIT;
  if (strcmp(c->request.verb, "key") == 0) {
    buf_puts(&text, "a daemon hands its key out on its own machine only: ");
    refusal_put_copy(&text, ep);
    return refuse_remote(c, &text);
  }
  if (ctl_key_find(&c->options.key, &c->key_env, &c->key, &c->key_from, &e) < 0)
    return ctl_complain(c, EXIT_CODE_USAGE, "%s", e.text);
  if (c->key || ctl_may_ask_munge(c)) return 0;
  put_no_key(c, ep, c->key_from.kind == KEY_SOURCE_INSECURE, &text);
  return refuse_remote(c, &text);
}
