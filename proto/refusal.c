/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/refusal.h"

/* A key of the daemon that another machine can be given: rdzvctl there knows it, wherever it comes from. */
static void put_copy(struct buf *out, const char *host) {
  buf_printf(out, "copy it: (umask 077; ssh %s rdzvctl key >~/.config/rdzv/key)", host);
}

static void put_wrong_key(struct buf *out, enum channel_source source, const char *where, const char *host,
                          const char *who, const char *key_from) {
  static const char *const sources[CHANNEL_SOURCE_COUNT] = {
      [CHANNEL_SOURCE_OTHER] = "",
      [CHANNEL_SOURCE_HOME] = " (its user's ~/.config/rdzv/key)",
      [CHANNEL_SOURCE_FILE] = " (its --key-file)",
      [CHANNEL_SOURCE_ENVIRONMENT] = " (its RDZV_KEY)",
      [CHANNEL_SOURCE_RANDOM] = " (drawn by the agent that started it)",
      [CHANNEL_SOURCE_STATE] = " (its service's state folder)",
  };
  buf_printf(out, "rdzvd at %s has another key%s than %s (%s): ", where, sources[source], who, key_from);
  if (source == CHANNEL_SOURCE_RANDOM)
    buf_puts(out, "give all of them the same one, with --key-file or RDZV_KEY");
  else
    put_copy(out, host);
}

void refusal_put(struct buf *out, enum channel_status status, enum channel_source source, const char *where,
                 const char *host, const char *who, const char *key_from) {
  if (status == CHANNEL_WRONG_KEY)
    put_wrong_key(out, source, where, host, who, key_from);
  else if (status == CHANNEL_NO_KEY)
    buf_printf(
        out,
        "rdzvd at %s runs without a key, and %s has one (%s): start rdzvd without --insecure, or give --insecure "
        "to both",
        where, who, key_from);
  else
    buf_printf(out, "rdzvd at %s is too busy to open a channel", where);
}
