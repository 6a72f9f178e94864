/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_NET_MUNGE_FETCH_H
#define COMMON_NET_MUNGE_FETCH_H

/* Fetches this user's key from a daemon by MUNGE: a credential from munged, one connection, and the answer's credential
 * to munged. A munged or a daemon that is silent costs the deadline, and nothing hangs. */

#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "common/key/key.h"
#include "common/net/socket.h"

struct munge_fetch_options {
  uv_loop_t *loop;
  union socket_address daemon;
  int64_t
      trusted; /* a user, besides root and this one, whose daemon may give a key; MUNGE_NO_USER, MUNGE_DEFAULT_USER */
  uint32_t deadline_ms;
};

/* key: valid in the call; NULL: *e has the sentence, and a code:
 * -EIO: this machine's munged; -ENOENT: no MUNGE here or there; -ECONNREFUSED and others of connect();
 * -ETIMEDOUT; and as munge_ask_take, munge_decode_from and munge_answer_parse. */
typedef void (*munge_fetch_fn)(void *ctx, const struct key *key, const struct err *e);

struct munge_fetch;
/* Calls fn once, never inside this call, and then frees itself. Not NULL. */
struct munge_fetch *munge_fetch_start(const struct munge_fetch_options *o, munge_fetch_fn fn, void *ctx);
/* Before fn: it is not called. */
void munge_fetch_cancel(struct munge_fetch *f);

#endif
