/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_C10D_SERVER_H
#define PROTO_C10D_SERVER_H

/* A store behind sockets: c10d_session and common/store on a libuv loop. It serves the round's store in the agent and
 * the common store in the daemon.
 *
 * A connection that sends nothing is closed after C10D_SILENT_MS. One is kept for each connection in an old numbering
 * from the same address, because a PyTorch 1.13 client has a silent second connection. A client that does not read its
 * replies is not read from either, and is closed when it has taken nothing for C10D_STALL_MS. While waiting replies
 * take half of max_buffered, requests for large replies wait; a large request is read when it fits into a quarter.
 * Keepalive notices a peer that vanished after about half a minute. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/endpoint.h"
#include "common/err.h"
#include "common/store/store.h"

enum {
  C10D_SILENT_MS = 10000,
  C10D_STALL_MS = 30000,
  C10D_USER_TIMEOUT_MS =
      C10D_STALL_MS + 5000,    /* TCP_USER_TIMEOUT; later than the stall, so that the log names a slow reader */
  C10D_OUT_SOFT = 1024 * 1024, /* bytes of waiting replies above which no more requests are served */
  C10D_SETTLE_MS = 20,         /* after its accept, until when the silence of a connection means nothing */
  C10D_LINGER_MS = 2000,       /* after an error: the time a peer has to read what was answered before */
};
#define C10D_BUFFERED_MAX ((size_t)1 << 30)

struct c10d_server;

struct c10d_server_config {
  const char *name; /* copied; in log lines: "store of round 3" */
  struct store_config store;
  size_t max_connections; /* 0: as many as there are descriptors */
  size_t max_per_address; /* 0: no limit */
  size_t max_buffered; /* bytes of unfinished requests and waiting replies, of all connections; 0: C10D_BUFFERED_MAX */
  unsigned silent_ms, stall_ms; /* 0: C10D_SILENT_MS, C10D_STALL_MS */
  /* Whether an address may connect; NULL: every address may. Asked once per connection. A refused one is closed and
   * logged. */
  bool (*allow)(void *ctx, const struct ipaddr *peer, const struct ipaddr *local);
  /* Copied. The reason in the log for a refused connection: "only the nodes of the round may connect". NULL: that the
   * store is not for its address. */
  const char *allowed;
  /* Whether the owner holds a connection from this address that has sent nothing for C10D_SETTLE_MS and may come by
   * c10d_server_adopt_silent. NULL: it holds none. */
  bool (*silent_beside)(void *ctx, const struct ipaddr *peer);
  /* The descriptor of a connection was closed, which the owner may have waited for. It may be called from inside any
   * function below, and must not call the server. May be NULL. */
  void (*on_descriptor_closed)(void *ctx);
  /* The last connection is gone. Called from the loop, never from inside a function below; the server may be closed in
   * it. May be NULL. */
  void (*on_empty)(void *ctx);
  void *ctx;
};

int c10d_server_create(uv_loop_t *loop, const struct c10d_server_config *config, struct c10d_server **out,
                       struct err *e);
/* Accepts on a bound socket, which becomes the server's in case of an error too. */
int c10d_server_listen(struct c10d_server *s, int fd, struct err *e);
/* Serves a connection that the owner has accepted, with socket_set_options and C10D_USER_TIMEOUT_MS, and of which it
 * has read data[0..len). fd becomes the server's and is closed in case of an error, which the caller logs. */
int c10d_server_adopt(struct c10d_server *s, int fd, const struct ipaddr *peer, uint16_t port, const char *data,
                      size_t len, struct err *e);
/* Keeps an accepted connection that has sent nothing, if it can be the silent second one of a client from that address.
 * Else false, and fd stays the caller's. */
bool c10d_server_adopt_silent(struct c10d_server *s, int fd, const struct ipaddr *peer, uint16_t port);

size_t c10d_server_connections(const struct c10d_server *s); /* silent ones included */
uint64_t c10d_server_accepted(const struct c10d_server *s);  /* ever, without refused ones */
const struct store *c10d_server_store(const struct c10d_server *s);

/* Stops listening. Connections stay. s may be NULL. */
void c10d_server_shut(struct c10d_server *s);
/* Stops listening, closes all connections at once and forgets all keys. When the loop has closed the handles the memory
 * is freed, then on_closed (may be NULL) is called. If s is NULL nothing happens. */
void c10d_server_close(struct c10d_server *s, void (*on_closed)(void *ctx), void *ctx);

#endif
