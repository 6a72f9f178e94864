/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_PEERS_H
#define DAEMON_SERVER_PEERS_H

/* All connections of the daemon: accepting, telling protocols apart by their first bytes, limits, names for the log. It
 * knows keys, frames and GREETING and nothing of jobs: messages go up to the owner under the connection's number, with
 * the user to whom the peer's key belongs. PyTorch's clients are handed to the server of the common store. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/bytes.h"
#include "common/endpoint.h"
#include "common/err.h"
#include "common/key/key.h"
#include "daemon/server/answer.h"
#include "daemon/server/http.h"
#include "common/net/c10d_server.h"
#include "common/net/conn.h"
#include "proto/msg.h"

enum {
  PEERS_MAX = 131072, /* connections in all, where RLIMIT_NOFILE allows that many */
  PEERS_CONTROL_MORE =
      32, /* beyond them at the control socket: for root and the daemon's user, half of it for others */
  /* Of one address that have not said who they are: a quarter of all, within these. One host may start that many
   * programs at once. At a limit the oldest gives way. */
  PEERS_PER_ADDRESS_MIN = 256,
  PEERS_PER_ADDRESS_MAX = 1024,
  PEERS_PER_USER_MAX = 32,   /* at the control socket, of a user who is neither root nor ours */
  PEERS_IDENTIFY_MS = 10000, /* from accept to the first frame, and from that to JOB_EFFECT_IDENTIFIED */
  PEERS_TURN_US = 2000,      /* a turn of the loop for those that wait for theirs */
  PEERS_UNIDENTIFIED_BYTES = 64 * 1024 * 1024, /* what all of them may have sent of unfinished messages */
  /* What the identified ones of one user hold: unfinished messages, and what they do not read. Root and the daemon's
   * user may have more. */
  PEERS_USER_BYTES = 1024 * 1024 * 1024,
  /* How long nothing is read from an agent that sends too much. Each message is a sign of life, and some are read after
   * each pause, so the daemon holds no lease for expired over it. But heartbeats wait behind the agent's other messages,
   * and so do their answers: an agent with a long queue may find itself cut off, and connects again. */
  PEERS_PAUSE_MS = 100,
  PEERS_WEIGH_MS = 100,        /* how often the first are counted, if they could be more; */
  PEERS_WEIGH_USERS_MS = 1000, /* the second, which are all connections */
};

_Static_assert(10 * PEERS_PAUSE_MS <= LEASE_MIN_MS, "pauses must be short for every lease");

struct peers;

/* A connection as the owner sees it. Valid in the callback. */
struct peer_info {
  uint64_t id;                        /* never 0, never used twice */
  const char *peer_addr, *local_addr; /* numeric, "" for the control socket */
  const char *name;                   /* for logs */
  bool local;                         /* came over the control socket */
  int64_t uid;                        /* the peer's user; -1: unknown, without a key */
};

struct peers_callbacks {
  void (*on_msg)(void *ctx, const struct peer_info *peer, const struct msg *m);
  void (*on_gone)(void *ctx, const struct peer_info *peer); /* closed, and not by peers_close */
  void (*on_turned_away)(void *ctx, const char *addr);      /* its key is another one; NULL: nobody asks */
  void (*on_deadline)(void *ctx);                           /* peers_deadline is no longer UINT64_MAX */
  /* The answer to a whole request over HTTP on this connection: *a, with a sentence in *text, or without a body; or
   * *document, which puts its own head. All of them are empty before. */
  void (*on_request)(void *ctx, int fd, const struct http_request *r, struct http_answer *a, struct buf *text,
                     struct answer_document *document);
};

struct peers_options {
  uv_loop_t *loop;
  size_t max;        /* connections */
  size_t user_bytes; /* 0: PEERS_USER_BYTES */
  uint64_t seed;
  const struct key *key;          /* the daemon's own, borrowed; NULL: --insecure */
  enum channel_source key_source; /* where it comes from, for refusals */
  const struct peers_callbacks *cb;
  void *ctx;
};
struct peers *peers_create(const struct peers_options *o);
void peers_destroy(struct peers *p); /* after peers_close_all, when the loop has nothing left to do */

/* Where PyTorch's clients go from now on, not owned; NULL: they are closed. They count for `max`. */
void peers_set_store(struct peers *p, struct c10d_server *store);
/* For c10d_server_config: on_descriptor_closed, silent_beside. */
void peers_resume(struct peers *p);
bool peers_silent_beside(const struct peers *p, const struct ipaddr *addr);

/* Accepts on a bound socket, which becomes the peers' in case of an error too. `control`: it is the control
 * socket, a unix one; only its connections may do what rdzvctl does. */
int peers_listen(struct peers *p, int fd, bool control, struct err *e);

/* Serves the agent at the other end of a connected unix socket, which becomes the peers' in case of an error too. Nobody
 * but the process that started this one has that end. So it needs no key, and neither side sends a preface. addr: what
 * stands for both addresses. */
int peers_adopt(struct peers *p, int fd, const char *addr, struct err *e);

/* To a number that is gone: nothing happens. */
void peers_send(struct peers *p, uint64_t id, struct bytes *b); /* takes one reference */
void peers_close(struct peers *p, uint64_t id);                 /* after what is queued has left */
/* It is identified: `name` for logs, larger frames, no deadline. */
void peers_identify(struct peers *p, uint64_t id, const char *name, unsigned user_timeout_ms);

/* Nothing is read from it for PEERS_PAUSE_MS, if it is identified. */
void peers_pause(struct peers *p, uint64_t id);

/* Native peers that have not been identified: an agent may be among them. */
size_t peers_undecided(const struct peers *p);
uint64_t peers_deadline(const struct peers *p); /* when to call peers_expire; UINT64_MAX: never */
void peers_expire(struct peers *p, uint64_t now_ms);
/* Stops listening and closes every connection, flushed. */
void peers_close_all(struct peers *p);

#endif
