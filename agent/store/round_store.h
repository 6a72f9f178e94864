#ifndef AGENT_ROUND_STORE_H
#define AGENT_ROUND_STORE_H

/* The port of the round's store on this node: one that is ready for the next round in which this node is node rank 0, and the store that
 * is served now, if it is.
 *
 *   STORE_AGENT   a listening socket is ready, and its port is told to the daemon; opening a round serves a new, empty store on it
 *   STORE_WORKER  a free port is held; opening a round lets it go, for the worker that serves a store of its own there
 *
 * With `port` it is that one in every round; then nothing is held between rounds. */

#include <stdint.h>
#include <uv.h>
#include "agent/options/options.h"
#include "common/bytes.h"
#include "common/err.h"
#include "proto/msg.h"

struct round_store_options {
  uv_loop_t *loop;
  enum store_place place;
  uint16_t port; /* --store-port; 0: a free one each round */
  void (*on_port)(void *ctx,
                  uint16_t port); /* another one is ready (0: none); also from within round_store_open */
  void *ctx;
};

struct round_store;

/* Fails where no socket can be had. on_port is not called. */
int round_store_create(const struct round_store_options *o, struct round_store **out, struct err *e);
uint16_t round_store_port(const struct round_store *r); /* what is to be told */

/* START has come, and this is node rank 0. addrs: its raw part, or NULL; they, loopback and this machine's own addresses are let in. The one before must
 * be closed. -ESTALE: START does not name the port that is ready. A sentence with every error; nothing is served then. */
int round_store_open(struct round_store *r, const struct start *start, const struct bytes *addrs,
                     struct err *e);
/* Nobody new may come; who is connected stays. */
void round_store_shut(struct round_store *r);
/* Closes what is served, at once, with all connections; nothing where nothing is. */
void round_store_close(struct round_store *r);
void round_store_destroy(
    struct round_store *r); /* its memory is free when the loop has closed the handles; NULL is fine */

#endif
