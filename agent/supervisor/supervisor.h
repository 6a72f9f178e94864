/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SUPERVISOR_SUPERVISOR_H
#define AGENT_SUPERVISOR_SUPERVISOR_H

/* The agent's mind: join -> start -> run -> stop -> again. It is pure, like the daemon's core: supervisor_step takes
 * one event with its time and appends effects, which the driver (agent/session.c) carries out in order. Events and
 * effects are tagged unions: `kind` says which member counts. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/hang/hang.h"
#include "common/buf.h"
#include "common/bytes.h"
#include "common/local_set.h"
#include "common/log_level.h"
#include "proto/msg.h"

enum {
  SUPERVISOR_RETRY_MIN_MS = 20,
  SUPERVISOR_RETRY_MAX_MS = 1000,       /* <= JOB_RECONNECT_MAX_MS, less what a connect takes */
  SUPERVISOR_HELLO_MS = 5000,           /* connection to WELCOME; then it is closed and tried again */
  SUPERVISOR_OTHER_PROTOCOL_MS = 30000, /* how long the port may speak another protocol before the agent gives up */
  SUPERVISOR_LEAVE_SLACK_MS = 7000,     /* leaving: beyond --stop-timeout */
  SUPERVISOR_EARLY_MS = 60000,          /* from the first worker that finishes to a line about it, while others go on */
  SUPERVISOR_MINT_MS = 20000,           /* until a helper has minted NCCL ids; < JOB_MINT_MS */
  SUPERVISOR_FORWARD_MS = 5000,         /* or a lease, if that is less */
  SUPERVISOR_UNFIT_MS = 10000,          /* a node that failed its first check tells a daemon within this, or nobody */
  SUPERVISOR_CLAIM_MS = 10000,          /* until a daemon knows whether it has a claim: JOB_CLAIM_MS */
  SUPERVISOR_PROBE_MS = 5500, /* a hang: how long workers are probed before they are stopped, at most; < JOB_PROBE_MS */
};

struct supervisor_config {
  const char *agent_id; /* AGENT_ID_MAX hex digits. The supervisor keeps all of these pointers */
  const char *job, *host, *local_addr, *role;
  const char *addrs;          /* of this host, for HELLO; NULL: none */
  const char *command;        /* a hash of the workers' words, for HELLO; NULL: none */
  const char *interpreter;    /* for sentences: the Python that runs the workers' script; NULL: not known */
  const char *endpoint;       /* for sentences: "node1:29400" */
  const char *endpoint_from;  /* the source that implies it; NULL: it was given */
  const char *endpoint_doubt; /* for sentences: no agent of this job can be there, and why; NULL: one may be */
  const char *expected_hosts; /* for HELLO; NULL: not known */
  int64_t pid, uid, workers, want_rank, order_key, expected_nodes;
  struct settings settings;
  enum hang_watch_kind hang_watch;
  int64_t hang_start_ms; /* --hang-start-timeout */
  int64_t reach_ms;      /* how long a daemon is waited for that has never answered; 0: as long as for any other */
  int64_t unknown_ms;    /* the same for a name that does not exist */
  bool echo;             /* another agent of this host logs the lines that are the same for all of them */
  bool living;           /* a terminal has SUP_STATUS, which shows what is waited for: only mistakes are logged */
  bool sole;             /* --sole-agent */
  bool worker_store;     /* --store worker: a worker serves the round's store, no agent does */
  bool wants_ids;        /* --nccl-ids auto: workers use NCCL */
  int64_t gpus;          /* that workers use */
  bool one_terminal;     /* the output of all agents goes to one terminal: --hosts */
  bool trainer;          /* workers are rdzv-trainer: its exit codes are known */
  bool checks;           /* the driver carries out SUP_CHECK: --check */
  bool wants_events;     /* the driver carries out SUP_EVENT: --events or --on-event */
  bool wants_progress;   /* the driver carries out SUP_ADVANCED */
  uint32_t n_endpoints;  /* addresses in --endpoint; 0 counts as 1 */
  const char *const *endpoints; /* their texts, for sentences; NULL: `endpoint` alone */
};

/* Driver to supervisor. The text of an event is the driver's; the supervisor copies what it keeps. */
enum supervisor_event_kind {
  SUP_STORE,     /* the port of the next round's store: before SUP_BEGIN, and whenever it changes */
  SUP_STANDBY,   /* the port that is reserved for a daemon of this agent: before SUP_BEGIN, and whenever it changes */
  SUP_BEGIN,     /* once; only SUP_STORE may come before it */
  SUP_LINK_UP,   /* the connection that SUP_CONNECT asked for is open */
  SUP_LINK_DOWN, /* it could not be opened, or it is closed */
  SUP_OTHER_PROGRAM, /* another program of this machine has accepted the connection and is silent */
  SUP_MSG,           /* from the daemon */
  SUP_SPAWNED,       /* the worker runs */
  SUP_EXEC_FAILED,   /* the worker's command could not be run */
  SUP_DEVICE_HELD,   /* the worker's device is in use, so nothing of the round was started */
  SUP_EXITED,        /* the worker is dead. Comes when its output is drained, or 50 ms after the death */
  SUP_CLEAR,         /* no process of the round is left except the workers in `kept`. Comes after their SUP_EXITED */
  /* the guard has killed everything of the round since when_ms, because the time of SUP_FENCE_AT had passed. Comes
   * before the deaths */
  SUP_FENCED,
  SUP_STUCK,          /* a process of the round does not die of SIGKILL; local_rank: UINT32_MAX if it is not a worker */
  SUP_GUARD_GONE,     /* the guard is dead, and everything that it ran was killed */
  SUP_SIGNAL,         /* one of --signals-to-handle came, or the agent's time is over. A second one kills at once */
  SUP_SUSPEND,        /* a user has suspended the workers (Ctrl-Z), or lets them go on */
  SUP_PROGRESS,       /* a sample of the worker's progress */
  SUP_RESUMED,        /* the worker has the state after that step, and goes on */
  SUP_SAVED,          /* the worker's checkpoint of that step is complete */
  SUP_PACE,           /* the worker's sums of a communicator */
  SUP_SAVING,         /* the worker waits for a checkpoint to be written, or goes on */
  SUP_CAN_CHECKPOINT, /* the worker answers requests for a checkpoint, or no longer does */
  SUP_CHECKPOINTED,   /* the worker has written the checkpoint that SUP_REQUEST asked for */
  SUP_CAN_REJOIN,     /* the worker can go on in the next round, or no longer can, even if it is parked */
  SUP_PARKED,         /* the worker has left the round and waits for the next one */
  SUP_SIGN,           /* the worker gave a sign of life at when_ms */
  SUP_LOOKED,         /* answers SUP_LOOK: all signs until now were sent */
  SUP_PROBED,         /* answers SUP_PROBE: the state of the worker's process */
  SUP_EVIDENCE,       /* before SUP_PROBE_FACTS: what NCCL and PyTorch report; does not come if they report nothing */
  SUP_PROBE_FACTS,    /* SUP_PROBED was sent for all workers that live */
  SUP_PROBE_DONE,     /* the stacks of the workers were printed, as far as they could be read */
  SUP_MINTED,         /* answers SUP_MINT: the ids. The helper lives on */
  SUP_MINT_FAILED,    /* answers SUP_MINT: it failed; or a helper that had answered has died by itself */
  SUP_NCCL_UP,        /* the worker reports that its communicators are up */
  SUP_CHECKED,        /* answers SUP_CHECK */
  SUP_TICK,           /* supervisor_deadline has come */
};

enum { SUPERVISOR_EVENT_STRINGS = 6 };

struct supervisor_event {
  enum supervisor_event_kind kind;
  uint64_t now_ms;
  uint64_t wall_ms;           /* since 1970, for events */
  uint32_t round, local_rank; /* of the worker, or of what else of a round the event tells */
  uint64_t when_ms;           /* EXEC_FAILED, DEVICE_HELD, EXITED, FENCED, SIGN: when it happened, <= now_ms */
  /* Strings; NULL: not known. A copy owns its own.
   *
   *   LINK_UP       text: the daemon's numeric address, for FORWARD
   *   LINK_DOWN, MINT_FAILED   text: why
   *   OTHER_PROGRAM text: a clause that names the program
   *   SPAWNED       device: as in a verdict; also of EXEC_FAILED and DEVICE_HELD
   *   EXEC_FAILED   text: why
   *   DEVICE_HELD   text: which process holds it
   *   EXITED        text: the last lines of its stderr. error: its last exception, or the kernel's reason for SIGKILL.
   *                 interpreter: the one that printed its traceback
   *   STUCK         text: the command of the process
   *   SIGNAL        text: no signal came, but the agent is to leave as if one had. NULL: a signal came
   *   PARKED        text: why it left unasked; "" or NULL: it was asked
   *   CHECKED       text: why the node is unfit; NULL: it is fit; "": its check could not run
   *   PROBED        text: where in the kernel, or ""
   *   EVIDENCE      text: for the verdict. ras: what NCCL's RAS says of all ranks. silent: ranks, as in EVIDENCE. "":
   *                 nothing */
  union {
    struct {
      const char *text, *device, *error, *interpreter, *ras, *silent;
    };
    const char *strings[SUPERVISOR_EVENT_STRINGS]; /* the same */
  };
  union {
    uint32_t port;       /* STORE, STANDBY; 0: none */
    bool on;             /* SUSPEND, SAVING, CAN_CHECKPOINT, CAN_REJOIN */
    uint64_t step;       /* RESUMED, SAVED */
    int pid;             /* SPAWNED */
    int code;            /* EXEC_FAILED: errno */
    uint32_t survivors;  /* GUARD_GONE: processes that could not be killed */
    int signo;           /* SIGNAL */
    enum hang_sign sign; /* SIGN */
    bool held;           /* LOOKED: workers could not go on: they are suspended, or nothing reads their output */
    char state;          /* PROBED: as in /proc/PID/stat; 0: unknown */
    struct {
      bool moved; /* the numeric address is not the one that welcomed us last */
      uint32_t port;
    } link_up;
    struct {
      int exit_code; /* not 0: trying again cannot help; the agent exits with it */
      bool foreign;  /* the program there has spoken another protocol */
      bool unknown;  /* its name does not exist */
    } link_down;
    const struct msg *msg;
    struct {
      int status;       /* as of waitpid */
      bool unasked;     /* it died before SUP_STOP_TREES reached it */
      bool lines_shown; /* its last lines are on the terminal already */
      bool final;       /* its error file says that a restart would not help */
      int64_t xid;      /* what its GPU's driver has reported in this round; 0: nothing */
    } exited;
    struct {
      struct local_set kept;
      uint32_t orphans; /* processes that the workers had left behind, and that were killed */
    } clear;
    struct {
      int pid;
      char state;  /* as in /proc/PID/stat */
      bool denied; /* the process runs as user `uid`, and the agent's user may not kill it */
      int64_t uid;
    } stuck;
    struct {
      uint64_t step, of;
      double loss, samples_per_second;
    } progress;
    struct rank_pace pace;
    struct {
      uint32_t request; /* SUP_REQUEST's number */
      uint64_t step;    /* after which it was written */
    } checkpointed;
    struct {
      struct collective *v; /* of this node */
      size_t n;
      struct local_set awaited; /* others wait for them in a collective */
    } evidence;
    struct {
      uint32_t helper; /* SUP_MINT's number */
      const void *ids; /* as many as were asked for, NCCL_ID_SIZE bytes each */
      int64_t version; /* NCCL's */
    } minted;
    struct {
      uint32_t helper;
      bool lasting; /* it will always fail here: there is no NCCL */
    } mint_failed;
  };
};

_Static_assert(sizeof(const char *) * SUPERVISOR_EVENT_STRINGS == offsetof(struct supervisor_event, silent) +
                                                                      sizeof(const char *) -
                                                                      offsetof(struct supervisor_event, text),
               "strings has each of them");

/* With its own copies of the strings. The message, the ids and the collectives are not copied. */
struct supervisor_event *supervisor_event_copy(const struct supervisor_event *ev);
void supervisor_event_free(struct supervisor_event *copy); /* NULL is fine */

/* How the job ended for this agent: for --verdict-file. */
struct ending {
  bool heard; /* END came, and `outcome` counts */
  enum outcome outcome;
  int64_t code; /* this agent's exit code */
  int64_t round, restarts_used, max_restarts, repeats;
  struct verdict verdict; /* a copy of the last one, of any round; cause none: there was none */
  struct goodput goodput; /* the last account that came; its text is a copy */
};

enum connect_to {
  CONNECT_ENDPOINT,  /* an address of --endpoint; start rdzvd first where the agent owns one */
  CONNECT_SUCCESSOR, /* another agent's daemon */
  CONNECT_OWN,       /* start rdzvd on the port of SUP_STANDBY unless it runs, and connect to it */
};

/* Supervisor to driver. */
enum supervisor_effect_kind {
  /* open a connection to a daemon, as connect.to says; answer LINK_UP or LINK_DOWN */
  SUP_CONNECT,
  /* tell the daemons at the other addresses of --endpoint that this job is elsewhere, now and every
   * supervisor_forward_ms; connections of their own, failures are silent. Node rank 0 tells all of them, another node
   * only its own, which newcomers ask: the driver starts that again if it has exited */
  SUP_FORWARD,
  SUP_DISCONNECT, /* flush and close; no LINK_DOWN follows */
  SUP_SEND,       /* bytes to the daemon */
  /* start all workers of `start`, except those in `keep`, which run and go on in it. Answer SPAWNED for each. Node
   * rank 0: first serve the round's store on start->store_port to `guests`, and have another port ready: SUP_STORE.
   * If that is impossible: SUP_EXEC_FAILED for a worker */
  SUP_SPAWN,
  SUP_SHUT_STORE,  /* nothing of the round is left here: the store accepts no new connection and keeps the open ones */
  SUP_CLOSE_STORE, /* the round is over everywhere, or the agent leaves: close the store and forget its keys */
  SUP_STOP_TREES,  /* guard_stop(round, signo, grace_ms, keep). Answer CLEAR when all except those in `keep` are gone */
  SUP_FENCE_AT,    /* guard_fence(at_ms): then the workers are killed even if this agent cannot act */
  SUP_REQUEST,     /* send a request to workers through the sdk */
  SUP_KILL,        /* guard_signal(local_rank, signo): rdzvctl kill-worker */
  SUP_LOOK,        /* look for signs of workers; read their socket first. Answer SIGN, LOOKED */
  /* ask NCCL and PyTorch about the workers' collectives, look at the workers' processes, and print what is found. Answer
   * EVIDENCE, PROBED, PROBE_FACTS, PROBE_DONE within SUPERVISOR_PROBE_MS. STOP_TREES ends it */
  SUP_PROBE,
  /* start a helper that mints NCCL ids in the environment of worker 0 of the round. Answer MINTED or MINT_FAILED */
  SUP_MINT,
  SUP_CHECK,        /* run --check, after that round; 0: before the first. Answer CHECKED */
  SUP_UNMINT,       /* that helper may go; it sends no further event */
  SUP_IDS,          /* the round's NCCL ids, for its workers */
  SUP_DEATH_REPORT, /* bytes for guard_death_report */
  SUP_SAY,          /* a line for the user */
  SUP_TOLD,         /* a verdict was reported: comes after its lines */
  SUP_STATUS,       /* the living line */
  SUP_EVENT,        /* an event, for --events and --on-event */
  SUP_ADVANCED,     /* on node rank 0: how far the job is, for its scheduler */
  SUP_ENDING,       /* how it ended, for --verdict-file; SUP_EXIT follows */
  SUP_EXIT,         /* all is done. The driver flushes, stops the guard, waits for its own daemon, and exits */
};

/* Pointers are owned by the effect. A driver that takes one sets it to NULL. */
struct supervisor_effect {
  enum supervisor_effect_kind kind;
  uint32_t round; /* CHECK, SHUT_STORE, CLOSE_STORE, STOP_TREES, LOOK, PROBE, MINT, UNMINT, IDS */
  /* What an effect does not need is NULL.
   *
   *   CONNECT       text: CONNECT_SUCCESSOR: numeric address
   *   FORWARD       bytes: the frame; NULL: no longer
   *   SEND          bytes: the frame
   *   SPAWN         bytes: the addresses that may use the store, from START's raw part; NULL: no others
   *   IDS           bytes: the ids; NULL: not here, or there are none. text: why there are none, or which nodes still mint
   *   DEATH_REPORT  bytes; NULL: nothing left to report
   *   SAY           text
   *   TOLD          text: the verdict's sentence, and below it the last lines of a worker that died. extra: the message of
   *                 its error file; NULL: none
   *   STATUS        text; "": remove the line
   *   EVENT         text: JSON without an end of line. extra: "rdzv.node.joined" */
  char *text, *extra;
  struct bytes *bytes; /* one reference */
  union {
    struct {
      enum connect_to to;
      uint32_t endpoint;   /* CONNECT_ENDPOINT: which address of --endpoint, from 0 */
      uint16_t port;       /* CONNECT_SUCCESSOR */
      uint32_t timeout_ms; /* to each address; 0: the driver's own */
    } connect;
    struct {
      uint32_t current; /* the address of --endpoint that is connected, which needs no telling; UINT32_MAX: none */
      bool own;         /* only to the rdzvd that this agent runs, if it is at an address of --endpoint */
    } forward;
    struct {
      struct start *start;
      struct local_set keep;
    } spawn;
    struct {
      uint64_t grace_ms; /* 0: kill at once */
      int signo;         /* the first signal */
      struct local_set keep;
    } stop_trees;
    struct {
      uint64_t at_ms; /* UINT64_MAX: never */
    } fence_at;
    struct {
      struct local_set of;
      uint32_t bits;       /* RDZV_STOP, RDZV_REJOIN: to those in `of` */
      uint32_t checkpoint; /* the number of a checkpoint, asked of all; 0: none */
    } request;
    struct {
      uint32_t local_rank;
      int signo;
    } kill;
    struct {
      int64_t suspect; /* the local rank to begin with; -1: none */
      enum log_level level;
      bool evidence_only; /* no stacks: a worker has died already */
    } probe;
    struct {
      uint32_t helper, count; /* the helper's number, and how many ids */
    } mint, unmint;
    struct {
      uint32_t count;  /* 0: the round has none */
      int64_t version; /* NCCL's */
    } ids;
    struct {
      enum log_level level;
    } say;
    struct {
      int64_t step, of;    /* of 0: not known */
      int64_t remaining_s; /* of this round's steps, at their speed; -1: not known */
      double loss;
    } advanced;
    struct {
      int64_t local_rank; /* of the worker; -1: it is not of this node, or the verdict is not about a worker */
    } told;
    struct ending *ending;
    struct {
      int code;
    } exit;
  };
};

struct supervisor_effects {
  struct supervisor_effect *v;
  size_t n, cap;
};
void supervisor_effects_clear(struct supervisor_effects *fx);
void start_free(struct start *start); /* of an effect, taken out of it; NULL is fine */
struct start *start_copy(const struct start *from);
void supervisor_effects_finish(struct supervisor_effects *fx);

#define SUPERVISOR_STATE_LIST(X)                                                                                       \
  X(JOINING, "joining")   /* not welcomed yet, or waiting for a START */                                               \
  X(STARTING, "starting") /* workers are being spawned */                                                              \
  X(RUNNING, "running")                                                                                                \
  X(FINISHED, "finished") /* all workers exited with 0 */                                                              \
  X(STOPPING, "stopping") /* STOP, fencing, leaving: trees are being killed */                                         \
  X(STOPPED, "stopped")   /* nothing left of the round but who is parked; waits for SETTLED */                         \
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
/* Between two SUP_FORWARD: two runs that have formed apart meet within a lease. */
uint64_t supervisor_forward_ms(const struct settings *settings);

/* One line about this agent for the service manager. */
void supervisor_summary(const struct supervisor *s, uint64_t now_ms, struct buf *out);
/* It has not been welcomed yet, or is leaving. Both take time and end by themselves. */
bool supervisor_is_busy(const struct supervisor *s);

/* For tests. ------------------------------------------------------------------------------------------------------- */

/* The table of events and states: a row for each event, and for each message that MSG can bring. */
size_t supervisor_table_size(void);
const char *supervisor_table_event(size_t row);
/* Why the event changes nothing in that state; NULL: it does. impossible: it never comes there. */
const char *supervisor_table_reason(size_t row, enum supervisor_state state, bool *impossible);
/* How often each cell was taken: [row * SUPERVISOR_STATE_COUNT + state]. */
const uint32_t *supervisor_coverage(const struct supervisor *s);
/* A change of state that was refused because it is not allowed: a bug; NULL: there was none. */
const char *supervisor_fault(const struct supervisor *s);

enum supervisor_state supervisor_state(const struct supervisor *s);
int64_t supervisor_round(const struct supervisor *s); /* the current or last round; 0: none */

#endif
