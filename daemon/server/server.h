/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_SERVER_H
#define DAEMON_SERVER_SERVER_H

/* The daemon's loop around its mind: messages of peers become core events, and the effects of core_step are carried
 * out in order. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "common/key/source.h"
#include "daemon/core/core.h"
#include "daemon/server/claims.h"
#include "daemon/server/state.h"
#include "proto/channel.h"

enum {
  SERVER_CONNECTIONS_MAX = 131072,
  SERVER_LAG_MS = 50,                    /* a later tick is the loop's fault: the core gets it as lag */
  SERVER_NOBODY_CAME_MS = 60000,         /* how long a daemon whose owner is gone waits for a first HELLO */
  SERVER_FOREIGN_PER_ADDRESS_MAX = 4096, /* connections of PyTorch clients */
  SERVER_FOREIGN_TTL_MS = 30000,         /* how long keys of a rendezvous live after its last client has gone */
  SERVER_STOP_MS = 3000,                 /* from the first wish to stop to the exit, even if something hangs */
};

struct event_sinks;

struct server_config {
  struct core *core;          /* loaded; outlives the server */
  struct state *state;        /* NULL: nothing is saved; outlives the server */
  const char *id;             /* of the daemon, for the state file; outlives the server */
  struct claims *claims;      /* NULL: no --claim; outlives the server */
  struct event_sinks *events; /* NULL: no --events and no --on-event; outlives the server */
  const struct key *key;      /* of the daemon; NULL: --insecure. Outlives the server */
  enum key_source key_source; /* for the answer to a wrong key */
  bool exit_when_idle;        /* exit when jobs were served and none is left */
  int owner_fd; /* a pipe or socket that closes when the owner dies; the daemon then exits when idle. -1: none */
  size_t max_connections;
  bool c10d;                      /* serve the common store, to everybody */
  size_t store_bytes, store_keys; /* its quotas */
  uint64_t seed;
  void (*on_stopping)(void *ctx, const char *why); /* it begins to stop; may be NULL */
  void *ctx;
};

struct server;

int server_create(uv_loop_t *loop, const struct server_config *config, struct server **out, struct err *e);
void server_destroy(struct server *s); /* not after server_run returned false */

/* Before server_listen: passes the state's records to the core, and rewrites the file with what is still needed. */
void server_load(struct server *s);
/* Accepts on a bound socket, which becomes the server's. `control`: it is the control socket. */
int server_listen(struct server *s, int fd, bool control, struct err *e);
/* Serves the agent at the other end of a connected unix socket, without a key. fd becomes the server's. addr: what stands
 * for its address, and for that of this end. */
int server_adopt(struct server *s, int fd, const char *addr, struct err *e);
/* Returns when it has stopped. False: something still hung after SERVER_STOP_MS, and the process
 * should exit without waiting for its threads. */
bool server_run(struct server *s);
/* It stopped because no agent needs it, so its state file is not needed either. */
bool server_is_unneeded(const struct server *s);

/* Monotonic, as in core events. It goes on while the machine is suspended: the leases of other machines do. */
uint64_t server_now_ms(void);

#endif
