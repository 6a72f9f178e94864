#ifndef AGENT_SUPERVISOR_H
#define AGENT_SUPERVISOR_H

/* The agent's mind: join -> start -> run -> stop -> again. Pure, like the daemon's core: supervisor_step takes one event with its time and appends
 * effects, which the driver (agent/session.c) carries out in order. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/hang/hang.h"
#include "common/local_set.h"
#include "common/buf.h"
#include "common/bytes.h"
#include "common/log_level.h"
#include "proto/msg.h"

enum {
  SUPERVISOR_RETRY_MIN_MS = 20,
  SUPERVISOR_RETRY_MAX_MS = 1000,   /* <= CORE_RECONNECT_MAX_MS, less what a connect takes */
  SUPERVISOR_HELLO_MS = 5000,       /* connection to WELCOME; then it is closed and tried again */
  SUPERVISOR_LEAVE_SLACK_MS = 7000, /* leaving: beyond --stop-timeout */
  SUPERVISOR_MINT_MS = 20000,       /* until a helper has minted NCCL ids; < CORE_MINT_MS */
  SUPERVISOR_PROBE_MS =
      5500, /* a hang: how long workers are looked at before they are stopped, at most; < CORE_PROBE_MS */
};

struct supervisor_config {
  const char *agent_id; /* AGENT_ID_MAX hex digits; strings are copied */
  const char *job, *host, *local_addr, *label, *role;
  const char *addrs;          /* of this host, as HELLO tells them; NULL: none */
  const char *endpoint;       /* for sentences: "node1:29400" */
  const char *endpoint_from;  /* what it follows from; NULL: it was said */
  const char *expected_hosts; /* as HELLO tells them; NULL: not known */
  int64_t pid, uid, workers, want_rank, order_key, expected_nodes;
  struct settings settings;
  uint64_t orphan_grace_ms; /* how long workers go on without a daemon; UINT64_MAX: for ever */
  enum hang_watch_kind hang_watch;
  int64_t hang_start_ms; /* --hang-start-timeout */
  bool many;             /* more than one worker or node: lines name ranks */
  bool living;       /* there is a terminal for SUP_STATUS: what is waited for is shown there, and not said */
  bool worker_store; /* --store worker: a worker serves the round's store, no agent does */
  bool wants_ids;    /* --nccl-ids auto: workers use NCCL */
  bool trainer;      /* workers are rdzv-trainer: its exit codes are known */
};

/* Driver to supervisor. */
enum supervisor_event_kind {
  SUP_STORE, /* before SUP_START and whenever it changes: the next round's store would be served on `port`; 0: there is none */
  SUP_START, /* once, first; but for SUP_STORE */
  SUP_LINK_UP, /* the connection that SUP_CONNECT asked for stands; `moved`: at another numeric address than where we were welcomed last */
  SUP_LINK_DOWN, /* it could not be had, or is gone; text says why; `refused`: nobody listens at the endpoint; error: not 0 where trying
                    again cannot help: the exit code for it */
  SUP_MSG,       /* from the daemon */
  SUP_SPAWNED,   /* local_rank runs as pid */
  SUP_EXEC_FAILED, /* local_rank's command could not be run: error (errno), text */
  SUP_DEVICE_HELD, /* nothing of the round was started, since local_rank's device is not free: text says who holds it */
  SUP_EXITED, /* local_rank, pid, status as of waitpid; text: last lines of its stderr; message: of its error file, or the kernel's
                 reason for SIGKILL. Comes once the output is drained, or 50 ms after the death */
  SUP_CLEAR, /* no process of `round` is left but for the workers in `kept`, and all its SUP_EXITED were told; count: orphans killed */
  SUP_FENCED, /* the guard has killed everything of `round` since when_ms: SUP_FENCE_AT had passed. Comes before the deaths */
  SUP_STUCK,  /* pid does not die of SIGKILL: text names it */
  SUP_GUARD_GONE, /* the guard died, and everything of it was killed; count: what could not be */
  SUP_SIGNAL, /* signo came to the agent, one of --signals-to-handle; a second one kills at once. text: no signal came, but as if: that is why; NULL */
  SUP_PROGRESS,       /* a worker's, sampled: local_rank, step, of, loss, samples_per_second */
  SUP_CAN_CHECKPOINT, /* local_rank answers requests for a checkpoint; count 0: it does not any more */
  SUP_CHECKPOINTED, /* local_rank has written the checkpoint that SUP_REQUEST numbered `count`, after `step` */
  SUP_CAN_REJOIN, /* local_rank can go on in the next round; count 0: it cannot any more, although it may have been parked */
  SUP_PARKED, /* local_rank has left the round and waits for the next one; text: why, where nobody had asked it to; or "" */
  SUP_SIGN, /* local_rank has given a sign, at when_ms: it printed, or its file changed */
  SUP_LOOKED, /* answers SUP_LOOK: all signs until now were told; held: workers could not print, because nobody takes it */
  SUP_PROBED, /* answers SUP_PROBE: local_rank's process; error: its state letter, 0: unknown; text: where in the kernel, or "" */
  SUP_PROBE_FACTS, /* SUP_PROBED was told of all that live; */
  SUP_PROBE_DONE,  /* and their stacks were shown, as far as they could be had */
  SUP_MINTED,      /* answers SUP_MINT with number `count`: its ids, NCCL's version; the helper lives */
  SUP_MINT_FAILED, /* it could not, or the helper that had has died by itself: text */
  SUP_NCCL_UP,     /* local_rank says that its communicators are up */
  SUP_TICK,        /* supervisor_deadline has come */
};

struct supervisor_event {
  enum supervisor_event_kind kind;
  uint64_t now_ms;
  const struct msg *msg;
  uint32_t round, local_rank, port;
  int pid, status, error, signo;
  uint32_t count;
  struct local_set kept; /* CLEAR */
  bool refused, moved;
  bool held;           /* LOOKED */
  enum hang_sign sign; /* SIGN */
  bool lasting;        /* MINT_FAILED: here it will always fail: there is no NCCL */
  bool unasked;        /* EXITED: it died before SUP_STOP_TREES reached it */
  uint64_t when_ms;    /* EXITED, EXEC_FAILED, FENCED: when it happened, <= now_ms */
  uint64_t step, of;
  double loss, samples_per_second;
  const char *text;
  const char *message; /* EXITED: what its error file says, or the kernel; NULL: nothing */
  const void *ids;     /* MINTED: as many as were asked for, NCCL_ID_SIZE bytes each */
  int64_t version;     /* and NCCL's */
  const char *device; /* SPAWNED, EXEC_FAILED, DEVICE_HELD: the worker's, for verdicts; NULL: none is known */
};

/* How it ended for this agent: for --verdict-file. */
struct ending {
  bool heard; /* END came: outcome counts */
  enum outcome outcome;
  int64_t code; /* what this agent exits with */
  int64_t round, restarts_used, max_restarts;
  struct verdict
      verdict; /* a copy of the last one that was heard, of whatever round; cause none: there was none */
};

/* Supervisor to driver. */
enum supervisor_effect_kind {
  SUP_CONNECT, /* open a connection to the endpoint (starting rdzvd where design says so); answer LINK_UP or LINK_DOWN */
  SUP_DISCONNECT, /* flush and close; no LINK_DOWN follows */
  SUP_SEND,       /* bytes to the daemon */
  SUP_SPAWN, /* start all workers of `start` (its strings are owned by the effect); those in `keep` run, and go on in it. Answer SPAWNED for each. Node rank 0: first serve the round's store on
                start->store_port, let in who is in bytes (START's raw; NULL: nobody else), and have another port ready: SUP_STORE.
                Where that is impossible: SUP_EXEC_FAILED for a worker */
  SUP_SHUT_STORE, /* nothing of the round is left here: nobody new may come to its store, who is connected stays */
  SUP_CLOSE_STORE, /* the round is over for everybody, or we leave: what was served for it is closed, its keys forgotten */
  SUP_STOP_TREES, /* guard_stop_but(round, signo, value ms, keep): 0 kills at once. Answer CLEAR, when all but those in keep are gone */
  SUP_FENCE_AT, /* guard_fence(value): what runs then is killed even if we cannot act; UINT64_MAX: no longer */
  SUP_REQUEST, /* of the workers in `keep`, through the sdk: bits in value (RDZV_STOP, RDZV_REJOIN); of all, a checkpoint by its number in
                  `checkpoint`, 0: none */
  SUP_KILL,    /* guard_signal(value: local rank, signo): rdzvctl kill-worker */
  SUP_LOOK,    /* for signs of workers, what they have said on their socket first; answer SIGN, LOOKED */
  SUP_PROBE, /* their processes, value's first (UINT64_MAX: none is suspected), and show what is found at level. Answer PROBED,
                   PROBE_FACTS, PROBE_DONE, within SUPERVISOR_PROBE_MS. It ends with STOP_TREES */
  SUP_MINT, /* start a helper that mints `count` NCCL ids in the environment of worker 0 of `round`; value is its number. Answer
                 MINTED or MINT_FAILED with it */
  SUP_UNMINT, /* that helper may go; nothing more is heard of it */
  SUP_IDS, /* NCCL ids of `round` for its workers. count 0: it has none, text says why; bytes NULL: they are not here yet,
                 text says who is waited for; else bytes, `count` ids, value NCCL's version */
  SUP_OBITUARY, /* bytes for guard_obituary; NULL: none (nothing to report any more) */
  SUP_SAY,      /* a line for the user, at level */
  SUP_TOLD, /* after the lines of a verdict: text is its sentence, and below it the last lines of a worker that died;
                    error_text what its error file says, or NULL; value the worker's local rank; UINT64_MAX: it is
                    not of this node, or of no worker */
  SUP_STATUS, /* the living line; text "" takes it away */
  SUP_ENDING, /* `ending`; SUP_EXIT follows */
  SUP_EXIT, /* all is done: value is the exit code. The driver flushes, lets the guard go, waits for its own daemon, and exits */
};

struct supervisor_effect {
  enum supervisor_effect_kind kind;
  enum log_level level;
  struct bytes *bytes;
  char *text, *error_text; /* owned */
  struct start *start;     /* owned, SPAWN */
  struct ending *ending;   /* owned, ENDING */
  uint32_t round;
  int signo;             /* STOP_TREES, KILL */
  uint32_t checkpoint;   /* REQUEST */
  struct local_set keep; /* SPAWN, STOP_TREES, REQUEST */
  uint32_t count;        /* MINT, IDS */
  uint64_t value;
};

struct supervisor_effects {
  struct supervisor_effect *v;
  size_t n, cap;
};
void supervisor_effects_clear(struct supervisor_effects *fx);
void start_free(struct start *start); /* of an effect, taken out of it; NULL is fine */
struct start *start_copy(const struct start *from);
void supervisor_effects_finish(struct supervisor_effects *fx);

#define SUPERVISOR_STATE_LIST(X)                                                                             \
  X(JOINING, "joining")   /* not welcomed yet, or waiting for a START */                                     \
  X(STARTING, "starting") /* workers are being spawned */                                                    \
  X(RUNNING, "running")                                                                                      \
  X(FINISHED, "finished") /* all workers exited with 0 */                                                    \
  X(STOPPING, "stopping") /* STOP, fencing, leaving: trees are being killed */                               \
  X(STOPPED, "stopped")   /* nothing left of the round but who is parked; waits for SETTLED */               \
  X(DONE, "done")         /* SUP_EXIT is out */
#define X(name, word) SUPERVISOR_##name,
enum supervisor_state { SUPERVISOR_STATE_LIST(X) SUPERVISOR_STATE_COUNT };
#undef X
const char *supervisor_state_name(enum supervisor_state s);

struct supervisor;
struct supervisor *supervisor_create(const struct supervisor_config *config);
void supervisor_destroy(struct supervisor *s);
void supervisor_step(struct supervisor *s, const struct supervisor_event *ev, struct supervisor_effects *fx);
uint64_t supervisor_deadline(const struct supervisor *s); /* UINT64_MAX: none */

/* One line for the service manager: what this agent does. */
void supervisor_summary(const struct supervisor *s, uint64_t now_ms, struct buf *out);
/* It has not been welcomed yet, or is leaving: that takes its time, and ends by itself. */
bool supervisor_is_busy(const struct supervisor *s);

/* For tests. */
enum supervisor_state supervisor_state(const struct supervisor *s);
int64_t
supervisor_round(const struct supervisor *s); /* the round whose workers it has or had last; 0: none */

#endif
