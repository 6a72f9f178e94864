#ifndef DAEMON_CORE_H
#define DAEMON_CORE_H

/* The daemon's mind. Pure: core_step takes one event with its time and appends effects, which the driver carries out in order. No clock, no
 * socket, no global; randomness from a seed. The same core runs in rdzvd and, N times, in the simulation. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/bytes.h"
#include "common/log_level.h"
#include "proto/msg.h"

enum {
  CORE_GRACE_MS = 100,           /* a closed connection may come back within, or within a 50th of the lease */
  CORE_START_TIMEOUT_MS = 30000, /* START to STARTED */
  CORE_MINT_MS = 30000,          /* START or MINT to MINTED; more than an agent waits for its helper */
  CORE_STOP_SLACK_MS = 10000, /* beyond --stop-timeout, until a node that has not reported STOPPED is lost */
  CORE_PROBE_MS =
      6000, /* and that, where hangs are watched for: workers are looked at before they are stopped */
  CORE_RECONNECT_MAX_MS = 2000, /* the longest pause between an agent's attempts to reconnect */
  CORE_END_ACK_MS = 10000,      /* how long END is repeated for nodes that have not acknowledged it */
  CORE_END_KEEP_MS = 600000,   /* how long an ended job is remembered, and one whose nodes do not come back */
  CORE_SHORT_ROUND_MS = 30000, /* a round that lived shorter delays the next */
  CORE_DELAY_MAX_MS = 30000,
  CORE_GROW_AGE_MS = 30000,    /* a round is not ended for newcomers before it is that old */
  CORE_LEAVE_MS = 1000,        /* after `leaving`: no round is sealed, others may leave too */
  CORE_FLAP_LOSSES = 3,        /* a host that was lost so often */
  CORE_FLAP_MS = 600000,       /* within that joins only when it is needed */
  CORE_LONG_ROUND_MS = 600000, /* a round that lived that long gives the restarts back */
  CORE_NOTICE_MS = 1000,       /* WAITING is sent at most this often while nodes come and go, */
  CORE_NOTICE_IDLE_MS = 30000, /* and this often when nothing changes; */
  CORE_NOTICES_PER_S = 2000,   /* of one job, at most, however many nodes it has */
  CORE_NOTICE_AT_ONCE = 256,   /* nodes and expected hosts, up to which who joins is told at once */
  CORE_JOBS_MAX = 4096,
  CORE_SPARES_MAX = 4096, /* of one job, beyond max_nodes */
  CORE_DRAINS_MAX = 4096,
  CORE_DRAINS_SHARED_MAX = 3072, /* beyond that many only root and the daemon's user drain hosts */
  CORE_HOSTS_MAX = 262144, /* that jobs expect, of all jobs together: a list of a few bytes names 65536 */
  CORE_FAILING_HOSTS_MAX = 256,   /* of one job: whose failures are counted for --exclude-after */
  CORE_ROUND_MAX = ROUND_MAX / 2, /* a peer that names a later one has made it up */
};

struct core;

struct core_config {
  uint64_t seed;
  bool exit_when_idle; /* daemon of one agent: see core_idle */
  int64_t uid;         /* of the daemon's user: may what root may */
};

/* What the driver knows of the common store, for `rdzvctl status`. */
struct core_store_facts {
  size_t connections, keys, bytes;
};

enum core_event_kind {
  CORE_MSG,      /* a message came on connection `conn`; the first must be HELLO, OBITUARY or CONTROL */
  CORE_CLOSED,   /* connection `conn` is gone */
  CORE_TICK,     /* core_deadline has come */
  CORE_LOAD,     /* at start, before all else: one line of the state file, oldest first */
  CORE_SHUTDOWN, /* SIGTERM: tell every agent GOING_AWAY; the driver closes afterwards */
};

struct core_event {
  enum core_event_kind kind;
  uint64_t now_ms;  /* monotonic */
  uint64_t wall_ms; /* since 1970, for new incarnations and for people */
  uint64_t lag_ms;  /* TICK: how late it is because the loop was busy; leases are extended by it */
  uint64_t conn;    /* never 0, never used twice */
  const struct msg *msg;
  const char *peer_addr, *local_addr;   /* MSG: numeric, "" for the unix socket */
  bool local;                           /* MSG: came over the unix socket: CONTROL is allowed */
  int64_t uid;                          /* MSG, local: whose process it is */
  const struct core_store_facts *store; /* MSG, local; NULL: not known */
  const char *line;                     /* LOAD */
};

enum core_effect_kind {
  CORE_SEND,       /* bytes to conn; to a connection that is gone: nothing */
  CORE_CLOSE,      /* flush and close conn; CORE_CLOSED need not follow, and does no harm */
  CORE_IDENTIFIED, /* conn said who it is: text is its name for logs, frames up to FRAME_MAX_TO_DAEMON, TCP_USER_TIMEOUT = value ms */
  CORE_SAVE, /* append text + "\n" to the state file and fsync it before any later effect is carried out */
  CORE_LOG,
};

struct core_effect {
  enum core_effect_kind kind;
  uint64_t conn;
  struct bytes *bytes; /* SEND: one reference */
  char *text;          /* SAVE, LOG, IDENTIFIED: owned */
  enum log_level level;
  uint64_t value;
};

struct core_effects {
  struct core_effect *v;
  size_t n, cap;
};
void core_effects_clear(struct core_effects *fx); /* frees what effects own; memory of the array kept */
void core_effects_finish(struct core_effects *fx);

struct core *core_create(const struct core_config *config);
void core_destroy(struct core *c);
void core_step(struct core *c, const struct core_event *ev, struct core_effects *fx);
/* When the next CORE_TICK is due, monotonic ms; UINT64_MAX: nothing is waited for. Cheap. */
uint64_t core_deadline(const struct core *c);
/* Nothing is left to do: every job that has a node has ENDED (all have acknowledged it, or had their time). With exit_when_idle
 * the driver leaves once its agent is gone or the job has been served, and this holds. */
bool core_idle(const struct core *c);
/* At least one job has been here. */
bool core_served(const struct core *c);

/* One line about all jobs that have not ended, without their names: everybody on the machine may read what the service manager shows. `store` may be
 * NULL. */
void core_summary(const struct core *c, const struct core_store_facts *store, struct buf *out);

/* Lines of the state file that are still needed, for rewriting it at start: one per job that is not forgotten. */
void core_state_lines(const struct core *c, struct buf *out);

/* For tests and coverage: how often (state, event) was taken in this core. event: enum core_table_event in daemon/rdzv.h */

const uint32_t *core_coverage(const struct core *c, size_t *n_states, size_t *n_events);

#endif
