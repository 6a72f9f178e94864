/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_ROUND_STORE_H
#define AGENT_STORE_ROUND_STORE_H

/* The port of the round's store on this node: one that is ready for the next round in which this node is node rank 0,
 * and the store that is served now, if any.
 *
 *   STORE_AGENT   a socket listens on this node's address, and the daemon knows its port; opening a round serves a new,
 *                 empty store on it
 *   STORE_WORKER  a free port is held; opening a round releases it for the worker that serves its own store there. What
 *                 that worker listens on, and whom it lets in, is PyTorch's: every address, and everybody
 *
 * With `port` that port is used in every round, and nothing is held between rounds. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "agent/options/options.h"
#include "agent/store/access_check.h"
#include "common/bytes.h"
#include "common/endpoint.h"
#include "common/err.h"
#include "proto/msg.h"

struct round_store_options {
  uv_loop_t *loop;
  enum store_place place;
  uint16_t port;    /* --store-port; 0: a free one each round */
  const char *addr; /* --local-addr, numeric; "": this node's address is that of its way to the daemon. Borrowed */
  bool alone;       /* the job is on this machine alone */
  size_t max_bytes; /* of one round's store; 0: a quarter of the memory, within bounds */
  /* Another port is ready (0: none). May be called inside round_store_open and round_store_daemon. */
  void (*on_port)(void *ctx, uint16_t port);
  void (*send)(void *ctx, const struct msg *m); /* to the daemon */
  void *ctx;
};

struct round_store;

/* Fails if there is no socket. on_port is not called. */
int round_store_create(const struct round_store_options *o, struct round_store **out, struct err *e);
uint16_t round_store_port(const struct round_store *r); /* for HELLO and reports */

/* The agent is connected to the daemon at that address, and will say HELLO: the next round's store may need another
 * address, and so another port. */
void round_store_reach(struct round_store *r, const struct ipaddr *daemon);
/* The list of those that may connect. It takes the daemon's messages about it, and the nodes of each START
 * (access_check_know). */
struct access_check *round_store_access(const struct round_store *r);

/* START has come, and this is node rank 0. addrs: its raw part, or NULL. Processes of this user may connect from those addresses and
 * from this machine. The store before must be closed. -ESTALE: START names another port than the ready one. On
 * an error, with a sentence, nothing is served. */
int round_store_open(struct round_store *r, const struct start *start, const struct bytes *addrs, struct err *e);
/* Whether a connection has been let in to the store; true if none is served. */
bool round_store_is_used(const struct round_store *r);
/* Accepts no more connections. Existing ones stay. */
void round_store_shut(struct round_store *r);
/* Closes the store at once, with all connections, if one is served. */
void round_store_close(struct round_store *r);
void round_store_destroy(struct round_store *r); /* freed when the loop has closed the handles; NULL is fine */

#endif
