/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_NET_C10D_SERVER_H
#define COMMON_NET_C10D_SERVER_H

/* A store behind sockets: c10d_session and common/store on a libuv loop. It serves the round's store in the agent and
 * the common store in the daemon.
 *
 * A connection that sends nothing is closed after C10D_SILENT_MS, but for the second ones of PyTorch 1.13. A client that
 * does not read its replies is closed when it has taken nothing for C10D_STALL_MS.
 *
 * The owner decides who may come in. It is asked before a byte of a connection is read, and may answer later. */

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
      C10D_STALL_MS + 5000,            /* TCP_USER_TIMEOUT; later than the stall, so that the log names a slow reader */
  C10D_OUT_SOFT = 1024 * 1024,         /* bytes of waiting replies above which no more requests are served */
  C10D_SETTLE_MS = 20,                 /* after its accept, until when the silence of a connection means nothing */
  C10D_LINGER_MS = 2000,               /* after an error: the time a peer has to read what was answered before */
  C10D_DECIDE_MS = 30000,              /* how long a connection waits for the owner's decision */
  C10D_CALLERS_MAX = 16384,            /* connections that wait for one; */
  C10D_CALLERS_PER_ADDRESS_MAX = 2048, /* of one address */
};
#define C10D_BUFFERED_MAX ((size_t)1 << 30)

struct c10d_server;

/* A connection of which nothing was read. */
struct c10d_caller {
  uint64_t id;            /* never 0, never used twice by one server */
  struct ipaddr from, to; /* its address, and ours */
  uint16_t from_port, to_port;
};

enum c10d_admission {
  C10D_ADMIT,
  C10D_REFUSE, /* closed, and logged if there is a reason */
  C10D_LATER,  /* c10d_server_admit or c10d_server_refuse follows */
};

struct c10d_server_config {
  const char *name; /* copied; in log lines: "store of round 3" */
  struct store_config store;
  size_t max_connections; /* 0: as many as there are descriptors */
  size_t max_per_address; /* 0: no limit */
  size_t max_buffered; /* bytes of unfinished requests and waiting replies, of all connections; 0: C10D_BUFFERED_MAX */
  unsigned silent_ms, stall_ms; /* 0: C10D_SILENT_MS, C10D_STALL_MS */
  size_t max_callers;           /* connections that wait for a decision; 0: C10D_CALLERS_MAX */
  unsigned decide_ms;           /* 0: C10D_DECIDE_MS */
  /* Whether a connection that this server has accepted may come in; asked once for each. NULL: every one may. It must
   * not call the server. */
  enum c10d_admission (*admit)(void *ctx, const struct c10d_caller *caller, struct err *why);
  /* No decision came within decide_ms: the connection will be closed. The reason is logged, if there is one. NULL: the
   * server says that nobody has answered. */
  void (*on_undecided)(void *ctx, const struct c10d_caller *caller, struct err *why);
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

/* The decision about a caller that waits; nothing happens if it no longer does. why: for the log; NULL: none. */
void c10d_server_admit(struct c10d_server *s, uint64_t id);
void c10d_server_refuse(struct c10d_server *s, uint64_t id, const char *why);

size_t c10d_server_connections(const struct c10d_server *s); /* silent ones included, callers that wait not */
size_t c10d_server_callers(const struct c10d_server *s);     /* that wait for a decision */
uint64_t c10d_server_accepted(const struct c10d_server *s);  /* ever, without refused ones */
const struct store *c10d_server_store(const struct c10d_server *s);

/* Stops listening. Connections stay. s may be NULL. */
void c10d_server_shut(struct c10d_server *s);
/* Stops listening, closes all connections at once and forgets all keys. When the loop has closed the handles the memory
 * is freed, then on_closed (may be NULL) is called. If s is NULL nothing happens. */
void c10d_server_close(struct c10d_server *s, void (*on_closed)(void *ctx), void *ctx);

#endif
