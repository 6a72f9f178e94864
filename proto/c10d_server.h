#ifndef PROTO_C10D_SERVER_H
#define PROTO_C10D_SERVER_H

/* A store behind sockets: the driver around c10d_session and store, for the round's store in the agent and the common space in the daemon.
 *
 * A connection that sends nothing is kept only as the silent second one of a PyTorch 1.13 client: while a connection in the old
 * numbering of the same address lives; else it goes after C10D_SILENT_MS. Who does not read is not read from either, and dropped when it took
 * nothing for C10D_STALL_MS. While replies take half of max_buffered, who asks for a large one waits for those; a large request is read when
 * it fits into a quarter. Keepalive is on: a peer that vanished is noticed after about half a minute. */

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
  C10D_OUT_SOFT = 1024 * 1024, /* bytes of replies that wait: above it no more requests are taken */
  C10D_SETTLE_MS =
      20, /* a client that has just connected is silent for so long without meaning anything by it */
  C10D_LINGER_MS = 2000, /* after an error: how long the peer may take to read what was answered before */
};
#define C10D_BUFFERED_MAX ((size_t)1 << 30)

struct c10d_server;

struct c10d_server_config {
  const char *name; /* in log lines: "store of round 3", copied */
  struct store_config store;
  size_t max_connections; /* 0: no limit but descriptors */
  size_t max_per_address; /* 0: no limit */
  size_t
      max_buffered; /* unfinished requests and waiting replies of all connections together; 0: C10D_BUFFERED_MAX */
  unsigned silent_ms, stall_ms; /* 0: C10D_SILENT_MS, C10D_STALL_MS */
  /* Whether a numeric address may connect; NULL: all may. Asked once per connection; others are closed with one log line each (rationed). */
  bool (*allow)(void *ctx, const struct ipaddr *peer, const struct ipaddr *local);
  const char *
      allowed; /* who may, for that line: "only the nodes of the round may connect"; copied; NULL: that it is not for this address */
  /* Whether the owner holds a connection of this address that has said nothing for C10D_SETTLE_MS, and may be handed over
   * by c10d_server_adopt_silent; NULL: it holds none. */
  bool (*silent_beside)(void *ctx, const struct ipaddr *peer);
  /* The last connection is gone. From the loop, not from inside any call; the server may be closed in it. May be NULL. */
  void (*on_empty)(void *ctx);
  void *ctx;
};

int c10d_server_create(uv_loop_t *loop, const struct c10d_server_config *config, struct c10d_server **out,
                       struct err *e);
/* Accepts on a listening socket that becomes the server's, in case of an error too. */
int c10d_server_listen(struct c10d_server *s, int fd, struct err *e);
/* Takes a connected socket of which data[0..len) was read already. Closed by the server, in case of an error too: then e says why, and nothing
 * has been logged. */
int c10d_server_adopt(struct c10d_server *s, int fd, const char *data, size_t len, struct err *e);
/* Takes one that was silent for its time, if an old client's first connection of its address lives and has no silent one yet; else false and fd is the caller's. */
bool c10d_server_adopt_silent(struct c10d_server *s, int fd);

size_t c10d_server_connections(const struct c10d_server *s); /* silent ones included */
const struct store *c10d_server_store(const struct c10d_server *s);

/* Stops listening: nobody new, and who is connected stays. s may be NULL. */
void c10d_server_shut(struct c10d_server *s);
/* Stops listening, closes all connections at once, forgets all keys; memory is freed when the loop has closed the handles, then on_closed
 * (may be NULL). s may be NULL: then nothing happens. */
void c10d_server_close(struct c10d_server *s, void (*on_closed)(void *ctx), void *ctx);

#endif
