/* SPDX-License-Identifier: Apache-2.0 */
/* The user who asks over HTTP.
 *
 * The daemon stores no tokens. A token names its user; the daemon derives that user's key from its own, and the token
 * from that, and compares. A token that is wrong is not made up for by the process that sends it: a request means what
 * it says. */

#include "daemon/server/asker.h"

#include <string.h>

bool asker_key(const struct key *own, int64_t uid, struct key *out) {
  if (uid == own->uid)
    *out = *own;
  else if (own->uid == KEY_OWN)
    key_derive(own, (uint32_t)uid, out);
  else
    return false;
  return true;
}

int64_t asker_of_token(const struct asker_config *c, const char *text, size_t len) {
  struct key shown, right;
  char token[KEY_TEXT_MAX + 1];
  int64_t uid = ASKER_NOBODY;
  if (!c->key || len > KEY_TEXT_MAX || key_parse(text, len, &shown, NULL) < 0) return ASKER_NOBODY;
  if (asker_key(c->key, shown.uid, &right)) {
    key_token(&right, token);
    key_wipe(&right);
    if (key_parse(token, strlen(token), &right, NULL) == 0 && key_equal(&shown, &right))
      uid = shown.uid == c->key->uid ? c->uid : shown.uid;
    explicit_bzero(token, sizeof(token));
    key_wipe(&right);
  }
  key_wipe(&shown);
  return uid;
}

int64_t asker_find(const struct asker_config *c, const struct http_request *r, const struct asker_end *from,
                   const struct asker_end *to) {
  if (r->token) return asker_of_token(c, r->token, r->token_len);
  bool same_host = ipaddr_is_loopback(&from->addr) || ipaddr_compare(&from->addr, &to->addr) == 0;
  if (!r->direct || !c->find_owner || !same_host) return ASKER_NOBODY;
  return c->find_owner(c->ctx, from, to);
}
