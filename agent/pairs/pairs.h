/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_PAIRS_PAIRS_H
#define AGENT_PAIRS_PAIRS_H

/* Answers PAIR: exchanges data with another node's agent over TCP, and says how long it took. daemon/job/pairs.c has the
 * order of the messages, exchange.h what the two agents say to each other.
 *
 * An agent has one exchange at a time. The next PAIR ends the one before, and so does its time limit. Nothing of it blocks. The
 * agent that listens makes the secret, at a port that is open for this exchange alone. A peer that does not show the secret is
 * dropped: at its first wrong byte, or with the exchange. */

#include <uv.h>
#include "proto/msg.h"

enum { PAIRS_PEERS_MAX = 256 /* connections at the port of one exchange that have not shown the secret */ };

struct pairs;

struct pairs_options {
  uv_loop_t *loop;
  void (*send)(void *ctx, const struct msg *m); /* PAIRED, to the daemon */
  void *ctx;
};

struct pairs *pairs_create(const struct pairs_options *o);
void pairs_ask(struct pairs *p, const struct pair_msg *ask);
void pairs_stop(struct pairs *p);    /* the connection to the daemon is gone */
void pairs_destroy(struct pairs *p); /* NULL is fine; memory is freed when the loop has closed its handles */

#endif
