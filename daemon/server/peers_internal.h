/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_PEERS_INTERNAL_H
#define DAEMON_SERVER_PEERS_INTERNAL_H

/* Shared by the files of the daemon's connections alone:
 *
 *     peers.c          the table, the waiting rooms, ends, what the owner calls
 *     peers_arrive.c   from accept to the first bytes, limits, hand-over to the common store
 *     peers_talk.c     native frames: whose key a peer has, messages, ends
 *     peers_turns.c    what peers make the daemon do before it knows them, in turn
 *     peers_ask.c      one question and one answer: HTTP, and a key by MUNGE
 *     peers_weigh.c    how much memory they hold */

#include <netinet/in.h>
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/system/rations.h"
#include "daemon/server/munge_keys.h"
#include "daemon/server/waiting_room.h"
#include "daemon/server/peers.h"
#include "common/net/acceptor.h"
#include "common/net/socket.h"

struct arrival;

struct peer {
  struct newcomer newcomer; /* first; in a waiting room, or paused */
  struct arrival *arrival;  /* NULL: conn is in use */
  struct conn conn;
  struct peers *peers;
  uint64_t id; /* 0: has no place in the table (yet, or no longer) */
  char *name;  /* "10.0.0.1:4242", later what the owner calls it */
  bool local, identified, framed;
  struct buf first;   /* arrival: the bytes that have come */
  struct buf request; /* HTTP, MUNGE: the bytes so far */
  size_t request_seen;
  bool http;
  bool asked;                  /* local: its one question */
  uint64_t greeted_ms;         /* when GREETING was sent, whose ticket is for a day */
  struct munge_request *munge; /* waits for an answer; NULL: none */
  struct answer *answer;       /* a document is made or read; NULL: none */
  int64_t uid;                 /* of the key, or of the process at the control socket; -1: unknown */
  struct newcomer turn;        /* waits for its turn */
  bool its_turn;               /* to have one message taken */
  char where[64];   /* limits count under this name: an address, an IPv6 network, a user of the control socket */
  char account[32]; /* the user of the key; "": unknown */
  struct ipaddr ip;
  uint16_t port;
  char addr[INET6_ADDRSTRLEN], local_addr[INET6_ADDRSTRLEN];
};

struct peers {
  uv_loop_t *loop;
  struct peers_callbacks cb;
  void *ctx;
  struct acceptor acceptor;
  struct peer **slots;
  size_t n_slots; /* a power of two */
  size_t n_open, max;
  size_t n_held; /* descriptors: n_open, and those that are being closed */
  uint64_t serial;
  struct waiting_room unrecognized, framed; /* the two rooms */
  struct waiting_room paused;               /* identified ones that are not read from */
  struct waiting_room keyless, keyed;       /* those that wait for their turn: peers_turns.c */
  uv_idle_t turns;
  size_t n_identified, user_bytes;
  uint64_t weighed_ms, weighed_users_ms; /* when they were counted last: peers_weigh.c */
  bool closed;
  struct rations rations; /* of lines about addresses, which strangers cause */
  struct rations known;   /* of lines about users who have a share */
  struct c10d_server *store;
  const struct key *key; /* NULL: --insecure */
  enum channel_source key_source;
  struct answers *answers;
  struct munge_keys *munge; /* NULL: --insecure */
  bool munge_works;         /* as far as is known */
  bool munge_looked;        /* whether munged answers here */
  struct ephemeral *ephemeral;
  struct key *tickets; /* NULL: --insecure */
};

/* A line about a peer, rationed: a stranger can cause it. */
#define say(p, level, ...) rations_log(&(p)->peers->rations, peer_source(p), boot_ms(), level, __VA_ARGS__)

/* Its user where that is known, else where it comes from. */
const char *peer_source(const struct peer *p);
struct peer_info peer_info_of(const struct peer *p);

void peer_take_slot(struct peer *p);
/* It speaks our frames: it gets a GREETING, and time to say who it is. */
void peer_begin_framed(struct peer *p);
void peer_leave_slot(struct peer *p);

struct peer *peer_of(struct newcomer *n);
void peer_enter_room(struct peer *p, struct waiting_room *room);
void peer_leave_room(struct peer *p);
bool peer_is_paused(const struct peer *p); /* peers_pause */
/* Closes the one that gives way, for the reason in `why`. False: there is none. */
bool peer_push_out(struct newcomer *n, const char *why);

/* The end of a connection: out of the table at once, freed when libuv has let go of it. */
void peer_drop(struct peer *p, bool flush);
void peer_drop_and_tell(struct peer *p, bool flush);
void peer_free(struct peer *p); /* its descriptor is closed, or the store's */

/* peers_arrive.c --------------------------------------------------------------------------------------------------- */

extern const struct acceptor_callbacks peers_acceptor_callbacks;
bool peer_is_silent(const struct peer *p); /* nothing has come yet */
/* True: it is the store's now. Else it is polled no more. */
bool peer_hand_over_silent(struct peer *p);
void peer_drop_arrival(struct peer *p); /* p->arrival: closes it; frees p later */
void peer_arrive(struct peer *p);       /* p->arrival, its first bytes have come and it is its turn */

/* peers_talk.c ----------------------------------------------------------------------------------------------------- */

extern const struct conn_callbacks peer_conn_callbacks;

/* peers_turns.c ---------------------------------------------------------------------------------------------------- */

void peers_begin_turns(struct peers *ps, uint64_t seed);
void peers_end_turns(struct peers *ps);
/* Its turn comes in a later turn of the loop: peer_arrive, or conn_resume. */
void peer_wait(struct peer *p);
void peer_leave_line(struct peer *p); /* in none: nothing */
/* For struct conn_callbacks. */
bool peer_may_take(struct conn *c, enum msg_type type);

/* peers_weigh.c ---------------------------------------------------------------------------------------------------- */

uint64_t peers_weigh_deadline(const struct peers *ps); /* when to call peers_weigh; UINT64_MAX: never */
void peers_weigh(struct peers *ps, uint64_t now);
/* It is identified, and neither root nor the daemon's user, who have no limits but the daemon's. */
bool peer_has_share(const struct peer *p);

/* peers_ask.c ------------------------------------------------------------------------------------------------------ */

/* The stream is theirs, with what was read of it. */
void peer_begin_http(struct peer *p, const char *data, size_t len);
void peer_begin_munge(struct peer *p, const char *data, size_t len);
void peer_expire_http(struct peer *p); /* its request is incomplete, or it does not read the answer */

#endif
