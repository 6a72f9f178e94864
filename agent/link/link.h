/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_LINK_H
#define AGENT_LINK_LINK_H

/* The agent's connection to a daemon: finds its address, starts rdzvd if it should run here and does not, connects,
 * and passes messages on. link_open makes one attempt; the supervisor decides where to, and when to try again. */

#include <stdbool.h>
#include <uv.h>
#include "agent/link/local_daemon.h"
#include "agent/link/resolve.h"
#include "agent/options/options.h"
#include "common/bytes.h"
#include "common/endpoint.h"
#include "common/key/key.h"
#include "common/net/conn.h"

struct link;

/* The attempt failed, or the connection ended. */
struct link_down {
  bool foreign;    /* the program that listens there uses another protocol */
  bool unknown;    /* the name server answers that there is no such name */
  int fatal;       /* not 0 if another try cannot help: the exit code */
  const char *why; /* a sentence for people */
};

enum link_where {
  LINK_TO_ENDPOINT, /* an address of --endpoint; rdzvd is started at the first one if it should run here */
  LINK_TO_ADDRESS,  /* another agent's rdzvd */
  LINK_TO_OWN,      /* this agent's rdzvd, which is started unless it runs */
};

struct link_to {
  enum link_where where;
  uint32_t endpoint;   /* TO_ENDPOINT: which, from 0 */
  const char *addr;    /* TO_ADDRESS: numeric */
  uint16_t port;       /* TO_ADDRESS */
  uint32_t timeout_ms; /* for each address; 0: the link's own. TO_ADDRESS, TO_OWN: longer while it refuses */
};

struct link_callbacks {
  /* moved: to another address than the one that welcomed us last */
  void (*on_up)(void *ctx, bool moved);
  /* May be called inside link_open; `down` is valid in the call. */
  void (*on_down)(void *ctx, const struct link_down *down);
  /* Another program of this machine accepted the connection and is silent; `who` names it. At most once per
   * connection. */
  void (*on_other_program)(void *ctx, const char *who);
  void (*on_msg)(void *ctx, struct msg *m); /* m is valid in the call */
  /* The daemon takes a key that MUNGE has brought for this user, which is not one for a daemon. on_msg follows. */
  void (*on_user_key)(void *ctx);
};

struct link_options {
  uv_loop_t *loop;
  const struct endpoint *endpoints; /* copied; not used when standalone */
  size_t n_endpoints;               /* 1 to DAEMONS_MAX */
  bool standalone;
  const char *local_addr;      /* numeric; "": not given */
  struct resolve_words words;  /* of the endpoints */
  bool derived;                /* the port was derived, so the user has not chosen it */
  enum hosting hosting;        /* unless standalone */
  struct local_daemon *daemon; /* its answers come to the link from now on */
  const struct key *key;       /* of the job, borrowed; NULL: connections are plain (--insecure) */
  const char *key_from;        /* its source, for people: "RDZV_KEY" */
  bool munge;                  /* nobody named the key: if the daemon refuses it, MUNGE may bring another one */
  int64_t munge_user;          /* besides root and this user, whose daemon may give it; MUNGE_DEFAULT_USER */
  unsigned user_timeout_ms;    /* TCP_USER_TIMEOUT */
  const struct link_callbacks *cb;
  void *ctx;
};

struct link *link_create(const struct link_options *o);
void link_open(struct link *l, const struct link_to *to);
/* The key for an address of --endpoint, or (UINT32_MAX) for the daemon that is followed: the job's, or what MUNGE brought
 * from there. Valid until the loop goes on. */
const struct key *link_key(const struct link *l, uint32_t endpoint);
void link_send(struct link *l, struct bytes *b); /* takes one reference; dropped without a connection */
void link_shut(struct link *l);          /* flushes and closes, or gives the attempt up; on_down does not follow */
bool link_is_shut(const struct link *l); /* the loop has nothing of it but a name being resolved */
/* The address of the last connection; false: none yet. */
bool link_peer(const struct link *l, union socket_address *peer);
void link_destroy(struct link *l); /* memory is freed when the loop has closed its handles */

#endif
