#ifndef DAEMON_SERVER_H
#define DAEMON_SERVER_H

/* The daemon's loop around its mind: what peers say becomes core events, what core_step answers is carried out, in order. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "daemon/core/core.h"
#include "daemon/server/state.h"

enum {
  SERVER_LAG_MS = 50,                    /* a tick later than this is the loop's fault: told to the core */
  SERVER_NOBODY_CAME_MS = 60000,         /* how long a daemon without its owner waits for a first HELLO */
  SERVER_FOREIGN_PER_ADDRESS_MAX = 4096, /* connections of PyTorch clients */
  SERVER_FOREIGN_TTL_MS = 30000,         /* keys of a rendezvous, after its last client has gone */
  SERVER_STOP_MS = 3000,                 /* from server_stop to the end, whatever still hangs */
};

struct server_config {
  struct core *core;   /* loaded; outlives the server */
  struct state *state; /* NULL: nothing is saved; outlives the server */
  bool exit_when_idle; /* leave when jobs were served and none is left */
  int owner_fd;        /* pipe or socket that closes when the owner dies; then leave when idle. -1: none */
  size_t max_connections;
  size_t store_bytes, store_keys; /* quotas of the common store */
  uint64_t seed;
  void (*on_stopping)(void *ctx, const char *why); /* server_stop begins; may be NULL */
  void *ctx;
};

struct server;

int server_create(uv_loop_t *loop, const struct server_config *config, struct server **out, struct err *e);
void server_destroy(struct server *s); /* not when server_run gave false */

/* Before server_listen: gives the state's records to the core and writes the file anew with what is still needed. */
void server_load(struct server *s);
/* Takes a listening socket over. `local`: the control socket. */
int server_listen(struct server *s, int fd, bool local, struct err *e);
/* Returns when server_stop has done its work. False: something still hung after SERVER_STOP_MS, and the process should end
 * without waiting for its threads. */
bool server_run(struct server *s);
/* Tells everybody GOING_AWAY, lets what is queued leave, closes. Why: for the log. Idempotent. */
void server_stop(struct server *s, const char *why);
/* It left because nobody needs it: nobody will ask for what it knew. */
bool server_is_unneeded(const struct server *s);
/* One line for the service manager: how many jobs, and how they stand. */
void server_summary(const struct server *s, struct buf *out);

/* Monotonic, as in core events. */
uint64_t server_now_ms(void);
uint64_t server_wall_ms(void);

#endif
