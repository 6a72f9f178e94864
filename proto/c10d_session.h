#ifndef PROTO_C10D_SESSION_H
#define PROTO_C10D_SESSION_H

/* One client of a store, without its socket: bytes in, bytes out. Pure. Nothing of a request happens before all of it is there.
 *
 * The owner calls c10d_session_feed with what has come, and after it, as after anything else that touches the store, asks store_next_released until it is
 * empty and has each client named answered by c10d_session_released. Answers to a session's own requests are in order whatever the owner does in between. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/store/store.h"
#include "proto/c10d.h"

enum { C10D_SMALL_REPLY = 64 * 1024 };

struct c10d_session {
  struct store_client *client; /* NULL until the first bytes have told that this is a client */
  struct store *store;
  void *owner; /* of client */
  enum c10d_dialect dialect;
  bool known;     /* dialect is: the first bytes have come */
  bool validated; /* since 2.2: VALIDATE came */
  /* Set by the owner, for numberings before 2.2: a silent connection of the same address stands beside this one, as 1.13 has it and 2.1 has not. Only
   * then are numbers 7 and 8 read as 1.13's. */
  bool companion;
  /* Set by the owner, who has no room for large replies now. A GET, MULTI_GET or LIST_KEYS whose reply has more than C10D_SMALL_REPLY bytes is then not
   * taken: feed stops in front of it and sets `waits`, until it is called again. */
  bool crowded, waits;
  struct c10d_progress progress;
  size_t need; /* bytes that must be there before it is worth looking again */
  uint64_t requests;
};

void c10d_session_init(struct c10d_session *s, struct store *store, void *owner);
void c10d_session_finish(struct c10d_session *s, uint64_t now_ms);

/* Takes whole requests from the front of data; appends replies to out; *used: bytes to be consumed, in case of an error too. Stops when out holds more than
 * out_max: call it again when that is written. 0; or negative with a sentence: close the connection when `out` is written: -EPROTO (no client's bytes),
 * -EMSGSIZE (over a limit of the protocol), -ENOSPC (over a quota), -EINVAL (ADD to what is no number). */
int c10d_session_feed(struct c10d_session *s, const char *data, size_t len, size_t *used, struct buf *out,
                      size_t out_max, struct err *e);
/* A wait of this client's has ended (store_next_released): appends the answer. */
void c10d_session_released(struct c10d_session *s, struct buf *out);

#endif
