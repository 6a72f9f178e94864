/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_C10D_SESSION_H
#define PROTO_C10D_SESSION_H

/* One client of a store, without its socket: bytes in, bytes out. Pure. A request has no effect before all of it is
 * there.
 *
 * The owner calls c10d_session_feed with what has come. After that, and after anything else that changes the store, it
 * calls store_next_released until that returns NULL, and c10d_session_released for each client returned. The answers to
 * a session's own requests are in order in any case. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/store/store.h"
#include "proto/c10d.h"

enum { C10D_SMALL_REPLY = 64 * 1024 };

struct c10d_session {
  struct store_client *client; /* NULL until the first bytes have shown that this is a client */
  struct store *store;
  void *owner;               /* of client */
  enum c10d_dialect dialect; /* C10D_SINCE_2_2 until the first bytes show another one */
  uint64_t requests;         /* served */
  struct c10d_progress progress;
  size_t need; /* bytes of input that make it worth looking again */
  /* Set by the owner for numberings before 2.2: a silent connection of the same address stands beside this one, as it
   * does in 1.13 and not in 2.1. Only then numbers 7 and 8 are read as 1.13's. */
  bool companion;
  /* Set by the owner: it has no room for large replies. feed then stops in front of a GET, MULTI_GET or LIST_KEYS whose
   * reply has more than C10D_SMALL_REPLY bytes and sets `waits`, until the next call. */
  bool crowded, waits;
};

void c10d_session_init(struct c10d_session *s, struct store *store, void *owner);
void c10d_session_finish(struct c10d_session *s, uint64_t now_ms);

/* Serves whole requests at the front of data and appends replies to out. *used: the bytes to consume, in case of an
 * error too. It stops when out holds more than out_max bytes; call it again when they are written. 0, or a negative
 * code and a sentence: close the connection when `out` is written. -EPROTO: not a client's bytes. -EMSGSIZE: over a
 * limit of the protocol. -ENOSPC: over a quota. -EINVAL: ADD to a value that is not a number. */
int c10d_session_feed(struct c10d_session *s, const char *data, size_t len, size_t *used, struct buf *out,
                      size_t out_max, struct err *e);
/* A wait of this client has ended (store_next_released): appends the answer. */
void c10d_session_released(struct c10d_session *s, struct buf *out);

#endif
