#ifndef AGENT_LINK_H
#define AGENT_LINK_H

/* The agent's connection to the daemon: finds the endpoint, starts rdzvd where there should be one and is
 * none, connects, and hands messages over. One attempt per link_open; when to try again is the supervisor's
 * business. */

#include <stdbool.h>
#include <uv.h>
#include "agent/link/local_daemon.h"
#include "agent/options/options.h"
#include "agent/link/resolve.h"
#include "common/bytes.h"
#include "common/endpoint.h"
#include "proto/conn.h"

struct link;

struct link_callbacks {
  /* moved: to another address than the one at which we were welcomed last */
  void (*on_up)(void *ctx, bool moved);
  /* The attempt failed, or the connection ended: a sentence for people. refused: nobody listens there. fatal:
   * not 0 where trying again cannot help: what to exit with. May come inside link_open. */
  void (*on_down)(void *ctx, bool refused, int fatal, const char *why);
  void (*on_msg)(void *ctx, struct msg *m); /* m is valid in the call */
};

struct link_options {
  uv_loop_t *loop;
  struct endpoint endpoint; /* not used when standalone */
  bool standalone;
  struct resolve_words words;  /* of the endpoint */
  bool derived;                /* it was: whoever reads of it has not chosen the port */
  enum hosting hosting;        /* where it is not standalone */
  struct local_daemon *daemon; /* its answers come to the link from now on */
  unsigned user_timeout_ms;    /* TCP_USER_TIMEOUT */
  const struct link_callbacks *cb;
  void *ctx;
};

struct link *link_create(const struct link_options *o);
void link_open(struct link *l);
void link_send(struct link *l,
               struct bytes *b); /* takes one reference; dropped where there is no connection */
void link_shut(struct link *l);  /* flushes and closes, or gives the attempt up; on_down does not follow */
bool link_is_shut(const struct link *l); /* nothing of it is left in the loop but a name being looked up */
/* Whom it was connected to last; false: nobody yet. */
bool link_peer(const struct link *l, union address *peer);
void link_destroy(struct link *l); /* memory is free when the loop has closed its handles */

#endif
