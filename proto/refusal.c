/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/refusal.h"

/* A key of the daemon that another machine can be given: rdzvctl there knows it, wherever it comes from. Several daemons
 * may run there. The shell would empty the target of ">" before ssh has an answer, so the key gets its name last. */
void refusal_put_copy(struct buf *out, const struct endpoint *ep) {
  buf_printf(
      out, "(umask 077; mkdir -p ~/.config/rdzv; cd ~/.config/rdzv && ssh %s rdzvctl --port %d key >new && mv new key)",
      ep->host, ep->port);
}

void refusal_put(struct buf *out, const struct refusal *r) {
  if (r->status == CHANNEL_WRONG_KEY) {
    static const char *const sources[CHANNEL_SOURCE_COUNT] = {
        [CHANNEL_SOURCE_OTHER] = "",
        [CHANNEL_SOURCE_HOME] = " (its user's ~/.config/rdzv/key)",
        [CHANNEL_SOURCE_FILE] = " (its --key-file)",
        [CHANNEL_SOURCE_ENVIRONMENT] = " (its RDZV_KEY)",
        [CHANNEL_SOURCE_RANDOM] = " (drawn by the agent that started it)",
        [CHANNEL_SOURCE_STATE] = " (its service's state folder)",
    };
    buf_printf(out, "rdzvd at %s has another key%s than %s (%s): ", r->where, sources[r->source], r->who, r->key_from);
    if (r->source == CHANNEL_SOURCE_RANDOM) {
      buf_puts(out, "give all of them the same one, with --key-file or RDZV_KEY");
    } else if (r->named) {
      buf_printf(out, "put the daemon's key there; this prints it: ssh %s rdzvctl --port %d key", r->endpoint->host,
                 r->endpoint->port);
    } else {
      buf_puts(out, "if another user runs it, choose another port; if it is yours, copy it: ");
      refusal_put_copy(out, r->endpoint);
    }
  } else if (r->status == CHANNEL_NO_KEY) {
    buf_printf(
        out,
        "rdzvd at %s runs without a key, and %s has one (%s): start rdzvd without --insecure, or give --insecure "
        "to both",
        r->where, r->who, r->key_from);
  } else {
    buf_printf(out, "rdzvd at %s is too busy to open a channel", r->where);
  }
  if (r->munge) buf_printf(out, "; MUNGE brings none: %s", r->munge);
}
