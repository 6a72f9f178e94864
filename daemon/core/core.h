/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_CORE_H
#define DAEMON_CORE_CORE_H

/* The daemon's mind: a pure function of events and time. core_step takes one event and appends effects, which the
 * driver carries out in order. The core has no clock, no socket and no global; its random numbers come from a seed. The
 * same core runs in rdzvd and, many times over, in the simulation.
 *
 *   check_hello.c  checks of what a peer says
 *   hello.c        HELLO: which job, which incarnation, which member
 *   moved.c        jobs that are with another daemon
 *   control.c      rdzvctl's verbs
 *   logs.c         the questions of rdzvctl logs
 *   owner.c        which user a peer is, and that user's share of this daemon
 *   status.c       what rdzvctl, the service manager and the page show
 *   core.c         every other message, and the step
 *
 * What happens to one job is decided in daemon/job. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/key/key.h"
#include "daemon/job/effects.h"
#include "daemon/job/limits.h"
#include "proto/msg.h"

enum {
  CORE_JOBS_MAX = 4096,
  CORE_SPARES_MAX = 4096, /* nodes of one job beyond max_nodes */
  /* A connection that sends more is closed. That of a node is read at this pace instead, but for HELLOs. The first number
   * is for a burst. */
  CORE_HELLOS_AT_ONCE = 16,
  CORE_HELLO_EVERY_MS = 500,
  CORE_MSGS_AT_ONCE = 4096,
  CORE_MSG_EVERY_MS = 5,
  /* All connections of an account may send as much as so many of them, and a node's messages for each of its nodes.
   * Beyond that, connections that send more than a node does are read at a node's pace. */
  CORE_ACCOUNT_TALKS = 64,
  CORE_ACCOUNT_AHEAD_MS = 20000,
  CORE_NODE_MSGS_AT_ONCE = 256,
  CORE_NODE_MSG_EVERY_MS = 50,
  CORE_ANSWER_BYTES_MS = 4096, /* of status and jobs, to one user; while these are less ahead than the next line */
  CORE_ANSWERS_AHEAD_MS = 1000,
  CORE_SKEW_MS = 24 * 3600 * 1000, /* the clocks of two daemons of one job differ by less */
  CORE_ROUND_MS = 10,              /* no job has rounds faster than this, */
  CORE_ROUNDS_AT_ONCE = 1000,      /* but for its first ones */
};

struct core;

struct core_config {
  uint64_t seed;
  int64_t uid;           /* the daemon's user, who may do what root may */
  const struct key *key; /* of the daemon, for rdzvctl key; NULL: --insecure. Outlives the core */
  size_t max_members;    /* of all jobs: as many as the driver has connections; 0: without limit */
  const char *host;      /* of the daemon, where every operator is; NULL: unknown. Borrowed */
  const char *id;        /* DAEMON_ID_MAX hex digits, the same after a restart with the same --state-dir; copied */
  uint16_t port;         /* where agents reach it; 0: unknown */
  const char *page;      /* "localhost:29400": where a browser of this machine reaches it; NULL: unknown. Borrowed */
  bool owned;            /* an agent has started it, so agents can start another one if this one is lost */
  bool claims;           /* the driver carries out JOB_EFFECT_CLAIM: rdzvd has --claim */
  bool saves;            /* the driver carries out JOB_EFFECT_SAVE: rdzvd has --state-dir */
  bool events;           /* the driver carries out JOB_EFFECT_EVENT: rdzvd has --events or --on-event */
};

enum core_event_kind {
  CORE_MSG,      /* a message arrived on connection `conn`; the first must be HELLO, AGENT_DIED, FORWARD or CONTROL */
  CORE_CLOSED,   /* connection `conn` is gone */
  CORE_TICK,     /* core_deadline has passed */
  CORE_LOAD,     /* at start, before any other event: one line of the state file, oldest first */
  CORE_SHUTDOWN, /* SIGTERM: sends GOING_AWAY to every agent; the driver closes afterwards */
  CORE_CLAIMED,  /* the answer to a JOB_EFFECT_CLAIM */
  CORE_TURNED_AWAY, /* a peer with another key came from peer_addr; `host`: which one of core_missing_hosts has it */
};

struct core_event {
  enum core_event_kind kind;
  uint64_t now_ms;  /* monotonic */
  uint64_t wall_ms; /* since 1970, for new incarnations and for people */
  uint64_t lag_ms;  /* TICK: how late it is because the loop was busy; leases are extended by it */
  uint64_t conn;    /* never 0, never used twice */
  const struct msg *msg;
  const char *peer_addr, *local_addr; /* MSG: numeric, "" for the unix socket */
  bool local;                         /* MSG: it came over the unix socket: only CONTROL is allowed */
  /* MSG: the peer's user, whom the driver has authenticated: the kernel's word on the unix socket, the key's user on the
   * port (the daemon's own user for the daemon's own key). -1: this daemon has no keys, and the port is open to all. */
  int64_t uid;
  const char *line;          /* LOAD */
  const char *host;          /* TURNED_AWAY; "": none of them */
  uint64_t serial;           /* CLAIMED: of the effect */
  enum claim_answer claimed; /* CLAIMED */
  const char *claim_text;    /* CLAIMED: CLAIM_TAKEN: the content that is there; CLAIM_FAILED: a sentence */
};

struct core *core_create(const struct core_config *config);
void core_destroy(struct core *c);
void core_step(struct core *c, const struct core_event *ev, struct job_effects *fx);
/* When the next CORE_TICK is due, monotonic ms; UINT64_MAX: never. Cheap. */
uint64_t core_deadline(const struct core *c);
/* Every job that has a node has ended, and its nodes have acknowledged the end or had their time to. With
 * exit_when_idle the driver exits when this holds and its agent is gone or a job has been served. */
bool core_idle(const struct core *c);
/* Listed hosts that jobs wait for, of which nothing has come, at most `max`: each with a NUL. How many. Jobs take
 * turns; `first`, which counts the calls, says which one begins. */
size_t core_missing_hosts(const struct core *c, size_t first, size_t max, struct buf *out);
/* At least one job has been here. */
bool core_served(const struct core *c);
/* Nodes that come here are sent on to the daemon that has their job. So this one is still needed, although it may be
 * idle. core_deadline says when that ends. */
bool core_sends_on(const struct core *c);
/* Somebody follows the output of a job's workers, and may still ask for the last lines. core_deadline says when that
 * ends. */
bool core_is_followed(const struct core *c);

/* One line about all jobs that have not ended. It names no job, because everybody on the machine may read what the
 * service manager shows. */
void core_summary(const struct core *c, struct buf *out);

/* What `rdzvctl status --json` shows the user `uid`, in pieces of about `budget` bytes. `job`: of
 * this name alone, "": all; `owner`: of this user alone, -1: of any. A job that is not here is an empty list. */
struct core_status;
enum { CORE_STATUS_BUDGET = 32768 }; /* a millisecond or so: tests/unit/daemon/core/test_scale.c */
enum core_status_piece {
  CORE_STATUS_MORE,    /* a piece was appended, and another one follows */
  CORE_STATUS_WHOLE,   /* it was the last one */
  CORE_STATUS_REFUSED, /* the text is a sentence now, as a JSON object: it is too much */
};
struct core_status *core_status_begin(struct core *c, int64_t uid, const char *job, int64_t owner);
enum core_status_piece core_status_more(struct core_status *s, struct core *c, uint64_t now_ms, uint64_t wall_ms,
                                        size_t budget, struct buf *out);
void core_status_end(struct core_status *s, struct core *c); /* NULL: nothing */

/* The lines of the state file that are still needed: the driver rewrites the file with them at start. */
void core_state_lines(const struct core *c, struct buf *out);

#endif
