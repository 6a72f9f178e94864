/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_MUNGE_KEYS_H
#define DAEMON_SERVER_MUNGE_KEYS_H

/* Gives users their keys: it takes a MUNGE credential, learns from this machine's munged whose it is,
 * and returns that user's key in a credential that only that user can decode. munged may be slow, or hang: requests
 * wait in a queue of limited length, each with a deadline. Their sources are served in turn, and a source with many
 * requests gives way first, because anybody may send junk. */

#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/key/key.h"
#include "proto/channel.h"

enum {
  MUNGE_KEYS_THREADS = 4,
  MUNGE_KEYS_QUEUE_MAX = 4096, /* requests that wait; a credential of ours has some 300 bytes */
  MUNGE_KEYS_MS = 5000,        /* from the request to the answer */
};

/* status: CHANNEL_MUNGE and a credential; CHANNEL_MUNGE_REFUSED, which is a verdict about the credential, and a sentence;
 * CHANNEL_BUSY, which another try may end, and a sentence; CHANNEL_NO_MUNGE without bytes. */
typedef void (*munge_keys_fn)(void *ctx, enum channel_status status, const char *bytes, size_t len);

struct munge_keys;
struct munge_request;

/* own: the daemon's own key, which outlives this. */
struct munge_keys *munge_keys_create(uv_loop_t *loop, const struct key *own, uint64_t seed);
/* After its last request was answered or cancelled. A thread that hangs is left behind. */
void munge_keys_destroy(struct munge_keys *d); /* NULL is fine */

/* Calls fn once, never inside this call; the request is gone then. source: as in waiting_room.h. credential is copied. */
struct munge_request *munge_keys_ask(struct munge_keys *d, const char *source, const char *credential, size_t len,
                                     munge_keys_fn fn, void *ctx);
/* Before fn: it is not called. */
void munge_keys_cancel(struct munge_request *r);

#endif
