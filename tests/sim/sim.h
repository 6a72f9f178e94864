/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

/* A whole cluster in one process under a fake clock: the real core of the daemon, real supervisors, and everything
 * between and around them scripted: links, guards, workers, faults. One seed is one run, byte for byte.
 *
 * sim.c        the clock, the queue of events, randomness, the trace
 * sim_link.c   connections: delays, breaks, silent cuts
 * sim_daemon.c the driver around core_step: connections, timer, state file, kill and restart
 * sim_place.c  machines: which of them reach each other, and where daemons are
 * sim_claim.c  the register of claims
 * sim_node.c   the driver around supervisor_step: agents' lives
 * sim_guard.c  guards and workers
 * sim_watch.c  guards that cannot run
 * sim_store.c  the round's store
 * sim_ids.c    helpers that mint ncclUniqueIds
 * sim_pairs.c  exchanges of data between nodes
 * describe.c   messages as text
 * invariants*.c what must hold at every event */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/guard/watch.h"
#include "agent/supervisor/supervisor.h"
#include "common/buf.h"
#include "common/bytes.h"
#include "daemon/core/core.h"
#include "proto/msg.h"

enum {
  SIM_NODES_MAX = 16,
  SIM_DAEMONS_MAX = 12,                               /* at one time */
  SIM_MACHINES_MAX = SIM_NODES_MAX + SIM_DAEMONS_MAX, /* nodes' machines, and one for each daemon that is on none */
  SIM_PORT = 29400,                                   /* of --endpoint */
  SIM_WORKERS_MAX = 8,
  SIM_AGENTS_MAX = 64, /* lives of agents in one run */
  SIM_RULES_MAX = 32,
  SIM_HELPERS_MAX = 64, /* of one agent, remembered */
  SIM_TRACE_MAX = 6000, /* lines kept */
  SIM_CONNECT_TIMEOUT_MS = 3000,
  SIM_STEPS_PER_SECOND = 20000, /* more in one virtual second is a storm */
  SIM_HELLO_MS = 10000,         /* the daemon's driver closes a connection that has not said who it is */
};

struct sim;
struct sim_agent;
struct sim_conn;

/* What must hold. Each has a planted bug in planted.c. */
#define INVARIANT_LIST(X)                                                                                              \
  X(RANKS, "no rank is given twice in a round, ranks have no gaps")                                                    \
  X(OWNERS, "no round has nodes of two users")                                                                         \
  X(OVERLAP, "no worker of a round runs, unless it waits, when workers of another start or go on")                     \
  X(ONE_ROUND, "no worker of a round runs when workers of another start, whichever daemon sealed it")                  \
  X(SEALED_ONCE, "no token is sealed twice, and with claims it is sealed by who claimed it")                           \
  X(GOES_ON, "where a majority is there, or a claim, a round follows within a bounded time")                           \
  X(ENDS, "every node learns every end, exit codes agree with it")                                                     \
  X(BUDGET, "the budget is charged once per settled worker failure, else never")                                       \
  X(REPEATS, "a job is not restarted after its limit of repeats, ends for nothing else that was alike, and a repeat "  \
             "refunds nothing")                                                                                        \
  X(GROWTH, "a round is ended for newcomers only when it may and not too soon, and charges nothing")                   \
  X(DRAINED, "no round begins with a node on a host that was drained before")                                          \
  X(TOKENS, "rounds and tokens only go up")                                                                            \
  X(DEADLINE, "no state waits without a deadline")                                                                     \
  X(STORM, "time goes on: steps per virtual second are bounded")                                                       \
  X(BOUNDED, "after the faults the job ends or runs within a bounded time")                                            \
  X(CODEC, "every message that is sent can be decoded")                                                                \
  X(STOPPED, "STOPPED and FINISHED are true when they are sent")                                                       \
  X(CHECKPOINTED, "CHECKPOINTED is true when it is sent, and a planned end waits for it")                              \
  X(SUCCESS, "success means that all workers of the last round exited with 0")                                         \
  X(STORE_OWN, "a worker never reaches the store of another round or incarnation")                                     \
  X(STORE_THERE, "a worker of a round reaches its store as long as the round is not over")                             \
  X(STORE_ENDS, "a store is closed when its agent knows that the round is over; an agent serves one")                  \
  X(ORPHANS, "an agent that exits leaves no worker behind")                                                            \
  X(FENCED, "what a node runs that is to fence is dead when its lease is over")                                        \
  X(PARKED, "a worker that stays does nothing between its rounds, and is not given out twice")                         \
  X(IDS, "all of a round get the same NCCL ids, which were minted for it")                                             \
  X(IDS_COME, "who is to have NCCL ids gets them, or his round ends, within a bounded time")                           \
  X(HELPERS, "a helper that mints lives no longer than its round")                                                     \
  X(EVENTS, "each seal and each end of a job is told in an event, before its END, to those who asked")                 \
  X(GOODPUT,                                                                                                           \
    "the buckets of a job add up to its age, across daemons too, and only productive time changes its bucket")         \
  X(HEALTHY, "no healthy job of fixed size, without spares, is stopped by a fault of the daemon")
#define X(name, text) INV_##name,
enum invariant { INVARIANT_LIST(X) INV_COUNT, INV_NONE = INV_COUNT };
#undef X
const char *invariant_name(enum invariant i);
const char *invariant_text(enum invariant i);

/* How a worker behaves. */
enum worker_end { END_NEVER, END_EXIT, END_SIGNAL };
struct behaviour {
  uint32_t run_ms; /* from exec (or from when all have met) to its own end */
  enum worker_end end;
  int code;             /* exit code or signal */
  const char *words;    /* its last exception, "ValueError: boom"; NULL: none */
  uint32_t term_ms;     /* how long it takes to die of SIGTERM; UINT32_MAX: ignores it */
  int term_code;        /* exit code after SIGTERM; -1: dies by the signal */
  uint32_t kill_ms;     /* how long SIGKILL takes: a process in state D */
  uint32_t exec_ms;     /* fork to exec, beyond what the world takes */
  int exec_errno;       /* not 0: cannot be run, EAGAIN: for now; EBUSY: its device is not free */
  bool meet;            /* meets all ranks at the round's store before anything else */
  uint32_t progress_ms; /* 0: tells nothing */
  uint32_t from_step;   /* the step that it resumes at */
  uint32_t hang_ms;     /* from exec until it hangs, and all ranks of its round with it; 0: never */
  char hang_state;      /* of its process then; 0: S */
  bool checkpoints;     /* answers requests for a checkpoint, */
  uint32_t save_ms;     /* which takes it so long; UINT32_MAX: it never does */
  bool rejoins;         /* it can go on in the next round, */
  uint32_t park_ms;     /* and leaves this one so long after it was asked; UINT32_MAX: it never does */
  uint32_t alarm_ms;    /* not 0: from exec until it leaves its round although nothing has happened */
};
struct rule {     /* the last one that fits counts */
  int node;       /* -1: all */
  int local_rank; /* -1: all */
  int spawn;      /* nth spawn of this agent, from 1; 0: all */
  struct behaviour b;
};

struct sim_worker {
  enum { WORKER_NONE, WORKER_SPAWNING, WORKER_RUNNING, WORKER_DEAD } state;
  struct behaviour b;
  uint32_t local_rank, rank, life; /* life: events of an earlier worker in this place are ignored */
  int pid;
  bool exited_zero, told; /* told: EXITED or EXEC_FAILED is on its way */
  bool has_to_meet, met;  /* it is to meet all others at the store; it has come there, and so have they */
  bool there;             /* it is there */
  bool knocked, reached;  /* at the round's store; reached: it is connected */
  bool killed, termed;
  bool unforked; /* SPAWNING: its guard has not read that yet */
  bool kept;     /* left out of the stop, or parked: its agent may give it a place in the next round */
  bool parked;   /* it has left its round and does nothing */
  bool ghost;    /* a planted bug: the guard takes it for dead */
  uint64_t step, ran_at, stepped_at;
  uint32_t asked, saved; /* numbers of checkpoints */
};

struct sim_link {
  uint32_t delay_min, delay_max;
  bool cut[2];      /* by direction: nothing passes, nobody is told */
  bool flushing[2]; /* healed just now: what was held is about to pass */
  bool rejects;     /* cut, and somebody on the way answers in the other end's name */
};

enum sim_pairs {
  SIM_PAIRS_WELL,
  SIM_PAIRS_BAD,
  SIM_PAIRS_SILENT,
  SIM_PAIRS_BAD_FABRIC, /* over NCCL alone */
  SIM_PAIRS_NO_NCCL,    /* it has GPUs and no library */
};

struct sim_node {
  int index;            /* n1 has 0 */
  enum sim_pairs pairs; /* how its exchanges of data with other nodes go */
  int64_t gpus;
  int behind; /* of which switch; between two of them nothing passes */
  char host[16], addr[32];
  uint32_t workers;
  int64_t uid; /* of its user */
  bool keyed;  /* it has a key, so the daemon knows its user; otherwise HELLO says the uid */
  int64_t want_rank, order_key, expected_nodes;
  const char *expected_hosts; /* NULL: not known */
  struct sim_link link;
  uint32_t ports; /* how many were given out */
  bool off;       /* no power */
  uint32_t rate;  /* of its clock: so many of its ms pass in 1000 of the daemon's */
  bool suspended; /* nothing of it runs, its clock goes on */
  uint64_t resumed_at;
  bool drained; /* as rdzvctl was told last, */
  uint64_t drained_at;
  uint32_t lifts; /* how often it was told otherwise */
  int side;       /* to which daemon the first address of its endpoint leads */
};

struct sim_store { /* what an agent serves as node rank 0 */
  bool open;
  bool shut; /* to those who are not connected yet */
  bool over; /* the agent was told that its round is */
  char incarnation[INCARNATION_MAX + 1];
  int64_t round;
  uint32_t port, world, there; /* there: how many have come to meet */
  struct bytes *guests;
};

struct sim_helper { /* mints */
  uint32_t number, round;
  bool lives;
  char ids[NCCL_ID_SIZE]; /* no round has more than one here */
};

enum trap {
  TRAP_PAUSE,
  TRAP_KILL,
  TRAP_KILL_GUARD,
  TRAP_KILL_BOTH,
  TRAP_STOP_GUARD,
  TRAP_HOLD_GUARD,
  TRAP_PAUSE_BOTH,
  TRAP_CUT,   /* its node's wire */
  TRAP_BREAK, /* its connection */
  TRAP_COUNT
};

enum guard_rest {
  GUARD_AWAKE,
  GUARD_STOPPED, /* SIGCONT ends it */
  GUARD_HELD,    /* it does not */
};

/* One life of an agent: its process, its guard, its workers. Kept to the end of the run. */
struct sim_agent {
  struct sim *sim;
  struct sim_node *node;
  int index, life; /* index in sim->agents; life on its node, from 1 */
  char id[AGENT_ID_MAX + 1], name[24];
  uint64_t pause_ms;
  int pause_on;            /* enum event_kind: right behind the next one it meets with trap; -1: none */
  enum msg_type pause_msg; /* the same of the next such message that it reads; 0: none */
  enum trap trap;
  bool paused, exiting, killed, signalled, connecting;
  bool told_start, told_end, refused;
  bool fence; /* as the core said it in what has arrived */
  bool guard_alive, clear_due;
  int exit_code;          /* -1: has not exited by itself */
  struct supervisor *sup; /* NULL: the process is gone */
  struct sim_conn *conn;
  uint64_t connect_gen;
  uint64_t tick_at; /* armed; UINT64_MAX: not */
  /* guard */
  enum guard_rest guard_rest;
  uint64_t slept_at, unable_at; /* until when it was not awake; and neither its agent */
  uint32_t untold;              /* events that it could not tell when they happened */
  struct guard_watch watch;     /* its agent's */
  uint64_t watch_at;            /* as tick_at */
  struct bytes *death_report;
  uint64_t busy_until, notify_at; /* both are FIFO: spawns; events to the mind */
  uint64_t kill_at, fence_at;     /* UINT64_MAX: not */
  struct sim_worker w[SIM_WORKERS_MAX];
  struct sim_store store;
  struct sim_helper helpers[SIM_HELPERS_MAX];
  uint64_t ids_since;  /* since when it waits for the round's ids; 0: it does not */
  uint32_t ready_port; /* 0: none */
  bool port_news;      /* the mind is to be told */
  char head_addr[ADDR_MAX + 1];
  uint32_t head_port; /* where its workers find the round's store */
  uint32_t round, workers, spawns;
  char incarnation[INCARNATION_MAX + 1];
  /* what the checker remembers: tokens told, the end told, the last word about fencing */
  char took_inc[INCARNATION_MAX + 1]; /* of the last START that it did not drop; "": none */
  int64_t took_round;
  char told_inc[INCARNATION_MAX + 1];
  enum outcome end_outcome;
  int end_code, refused_code;
  int64_t told_round;
  char account_inc[INCARNATION_MAX + 1]; /* it was told the account of that job: START, SETTLED, or welcomed to it */
  char over_inc[INCARNATION_MAX + 1];    /* the round that it was told to be over last: SETTLED, STALE, END, REFUSED */
  int64_t over_round;
  uint64_t over_at;
  int home;              /* which daemon has welcomed it last; -1: none */
  uint32_t standby_port; /* for a daemon of its own; 0: none */
  struct bytes *forward; /* NULL: it tells nobody */
  uint32_t forward_past; /* the address that is left out */
  bool forward_own;      /* FORWARD goes only to the daemon on its machine */
  uint64_t forward_gen;
  struct bytes *pass_on; /* for its own daemon: an older run goes on elsewhere; NULL: nothing */
  uint64_t
      ack_at; /* when the last HEARTBEAT_ACK or WELCOME that it has read was sent, of a daemon that knows its round */
  int told_side;           /* which daemon sent it START last, */
  bool succeeded;          /* and another one can take over from it */
  bool heard_fence;        /* the same of any daemon */
  uint64_t fence_heard_at; /* when it heard that it is to fence */
  uint64_t heard_at;
  uint64_t away_at;  /* by GOING_AWAY its workers may run until then; 0 */
  uint64_t back_at;  /* when it read the first of these after a long silence */
  uint64_t known_at; /* when the daemon's life known_life first read its HELLO */
  uint32_t known_life;
  struct collective collective; /* of its workers, when a hang ends the round */
  char ranks[RANKS_TEXT_MAX + 1];
};

enum conn_kind { CONN_AGENT, CONN_GUARD, CONN_FORWARD, CONN_PASS_ON, CONN_CONTROL };
struct held {
  struct bytes *bytes; /* NULL: FIN */
  struct msg *msg;     /* as struct sim_event has it */
  uint64_t sent_at;
  struct held *next;
};
struct sim_conn {
  uint64_t id; /* as the daemon knows it */
  enum conn_kind kind;
  int side;              /* of which daemon, */
  int machine;           /* and where that was */
  struct sim_node *node; /* NULL: CONTROL */
  struct sim_agent *agent;
  uint32_t daemon_life;
  struct sim_node *drains; /* CONTROL: the host that it is to drain; NULL: none */
  uint32_t lifts;          /* of that node, when the daemon read it: one that came since is later */
  bool open[2];            /* by side: [TO_AGENT] the peer's end, [TO_DAEMON] the daemon's */
  bool broken;             /* what is on its way is lost */
  bool vanished;           /* the daemon's end is gone with its machine */
  bool identified;
  uint64_t here_at, /* when the daemon read HELLO on it, and has not sent STALE since; UINT64_MAX: it has not */
      gone_at;      /* when the daemon learned that it is gone, or closed it; UINT64_MAX: it has not */
  bool hung_up;     /* the daemon closed it */
  uint64_t last_at[2];
  struct held *held[2], **held_tail[2];
  uint32_t user_timeout_ms[2]; /* by sending direction */
};

enum event_kind {
  /* agent, a: to whom, a port in the lower 16 bits, the machine above, b: of which attempt, c: enum conn_kind in the lower
   * 8 bits, above the timeout: a connection request reaches the daemon's machine */
  EV_SYN,
  EV_ACCEPT,       /* conn: the daemon sees a new connection */
  EV_CONNECTED,    /* agent, conn or NULL, a: refused, b: of which attempt, c: enum conn_kind */
  EV_DELIVER,      /* conn, a: direction, b: when it was sent (by a daemon: when its core said it), bytes (NULL: FIN) */
  EV_LOST_END,     /* conn, a: side that notices the break */
  EV_SEND_TIMEOUT, /* conn, a: direction in which something is held too long */
  EV_FLUSH,        /* a: twice the node, and the direction; UINT64_MAX: whatever can pass */
  EV_HELLO_TIMEOUT,
  EV_DAEMON_TICK,
  EV_SAVED, /* a: the daemon's life, b: its side; DAEMON_TICK too */
  EV_AGENT_TICK,
  EV_GUARD_WATCH,  /* agent: its watch over the guard */
  EV_GUARD_EXEC,   /* agent, worker a */
  EV_GUARD_STOP,   /* agent, a: round, b: grace, c: who is kept, a bit for each local rank */
  EV_WORKER_END,   /* agent, worker a, life b: by itself */
  EV_WORKER_KILL,  /* agent, worker a, life b: grace is over */
  EV_WORKER_DIES,  /* agent, worker a, life b, c: status */
  EV_WORKER_STUCK, /* agent, worker a, life b */
  EV_WORKER_KNOCK, /* agent, worker a, life b: at the round's store */
  EV_STORE_RETRY,  /* agent: a port, at last */
  EV_WORKER_STEP,  /* agent, worker a, life b: progress */
  EV_WORKER_PARKS, /* agent, worker a, life b */
  EV_WORKER_SAVED, /* agent, worker a, life b, c: the number of the checkpoint */
  EV_NOTIFY,       /* agent: notice, to the mind */
  EV_GUARD_FENCE,  /* agent: its deadline has passed, if it was not moved */
  EV_GUARD_TELL,   /* agent: notice, which it could not give when it happened */
  EV_GUARD_ALONE,  /* agent: it is dead, and the guard sees that now */
  EV_GUARD_CHECK,  /* agent: are all gone? */
  EV_CALL,         /* fn(sim, a) */
  EV_FORWARD,      /* agent, a: of which order */
  EV_CLAIM,        /* a: index of the request: it reaches the register */
  EV_CLAIMED,      /* the same: the answer is there, or its time is over; b: the daemon's side */
  EV_KIND_COUNT,
};

struct sim_event {
  uint64_t at, seq;
  enum event_kind kind;
  struct sim_agent *agent;
  struct sim_conn *conn;
  uint64_t a, b, c;
  struct bytes *bytes;             /* owned */
  struct msg *msg;                 /* DELIVER: the bytes, decoded; owned. NULL: they are when they arrive */
  struct supervisor_event *notice; /* owned: supervisor_event_copy */
  void (*fn)(struct sim *s, uint64_t arg);
};

struct events {
  struct sim_event **v;
  size_t n, cap;
};

struct sim_daemon {
  struct core *core; /* NULL: down */
  uint32_t life;
  bool paused, state_dir, loading;
  uint64_t paused_at;
  bool owned;       /* an agent has started it; it exits when nobody needs it */
  int trap_on;      /* 1 + enum event_kind: right behind the next one it is killed, or paused; 0: none */
  uint64_t trap_ms; /* paused for so long; 0: killed, until somebody starts it */
  int die_at_save;  /* 1: before the line is on the disk, 2: half of it, 3: after it */
  uint64_t tick_at;
  struct job_effect *queue; /* not carried out yet: [head, tail) */
  uint64_t *queued_at;      /* of each, when the core had it: behind a line for the disk it waits */
  size_t head, tail, cap;
  bool saving;  /* the line at the head is being written */
  char **lines; /* the state file */
  size_t n_lines;
  int machine; /* where it is: a node's index, or SIM_NODES_MAX and its own */
  uint16_t port;
  int owner;            /* the agent that has started it on its standby port; -1: it is one of --endpoint */
  uint32_t no, states;  /* the how manieth daemon this is, and how often it has lost its state: who it is, */
  uint32_t told_states; /* and who it was when it was started last */
  uint32_t seals, seals_told, ends, ends_told; /* in this life: lines of the state file, and events */
  char id[DAEMON_ID_MAX + 1], name[32], host[16], addr[32];
};

/* Hooks of planted.c: what happens between the minds. Return false to swallow. */
struct mutator {
  bool (*msg)(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m); /* when it is delivered */
  bool (*agent_effect)(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx);
  uint64_t (*deadline)(struct sim *s, struct sim_agent *a, uint64_t at); /* a NULL: the core's */
  bool (*core_effect)(struct sim *s, struct job_effect *fx);
  void (*store)(struct sim *s, struct sim_agent *a);                       /* it has opened one */
  bool (*dies)(struct sim *s, struct sim_agent *a, struct sim_worker *w);  /* false: it lives on */
  bool (*parks)(struct sim *s, struct sim_agent *a, struct sim_worker *w); /* false: it says so, and goes on */
};

struct sim_config {
  uint64_t seed;
  bool mixed; /* every second node, and every second life of a daemon, is of a release that knows no feature */
  struct settings settings;
  enum hang_watch_kind hang_watch;
  int64_t hang_start_ms;
  bool state_dir;
  uint32_t save_max;                     /* ms that a line takes to the disk at most; 0: none, and nothing waits */
  uint32_t delay_min, delay_max;         /* ms, of links; per message */
  uint32_t exec_max, drain_max, die_max; /* ms: fork to exec, death to EXITED, signal to death; 0: at once */
  bool trace;                            /* keep lines */
  bool verbose;                          /* print them as they come, heartbeats too */
  bool waiting;                          /* WAITING belongs to the trace, */
  bool logs;                             /* what daemon and agents say to people too, */
  bool connections;                      /* and broken connections */
  bool stores;                           /* and rounds' stores, with their ports */
  uint32_t store_port;                   /* --store-port; 0: none */
  bool takeover;                         /* other daemons can take jobs over */
  bool owned;           /* --endpoint names node 1, whose agent starts the daemon; all have standby ports */
  uint32_t endpoints;   /* in --endpoint, a daemon each; 0 counts as 1 */
  bool claims;          /* --claim */
  uint32_t claim_max;   /* ms that half of a claim takes at most */
  unsigned claim_fails; /* of a hundred claims, how many answers are lost */
  uint32_t mint_max;    /* ms that minting takes at most */
  unsigned mint_fails;  /* of a hundred helpers, how many fail; and of the others, how many die */
  bool events;          /* --events, of all agents and daemons */
  unsigned portless;    /* of a hundred times that a port is wanted, how often there is none */
};

struct checker; /* book.h */

struct sim {
  struct sim_config config;
  uint64_t now, seq, front, rng; /* front: sequence numbers of those that go before all others of their time */
  uint64_t steps, second, steps_in_second;
  struct events queue, stash; /* stash: for those who are paused */
  struct events spare;        /* to be used again */
  uint64_t stepped;           /* agents whose mind has taken a step in this one, a bit each */
  bool daemon_stepped;
  struct sim_node nodes[SIM_NODES_MAX];
  int n_nodes;
  struct sim_agent *agents[SIM_AGENTS_MAX];
  int n_agents;
  struct sim_conn **conns;
  size_t n_conns, cap_conns;
  struct sim_daemon d; /* whom the functions of sim_daemon.c act upon, and events are dispatched to */
  struct sim_daemon daemons[SIM_DAEMONS_MAX]; /* the others; daemon_at finds each */
  int side;                                   /* which one d is: 0, where there is only one */
  uint32_t lives;                             /* of all */
  uint32_t n_daemons, ids;                    /* ever, and how many ids they had */
  bool two;                                   /* there have been two, and nothing between them */
  uint32_t walls[SIM_MACHINES_MAX];           /* by sender, a bit for each machine that it does not reach */
  uint32_t away_rate[SIM_DAEMONS_MAX];        /* of clocks of machines that are no node's */
  bool away_off[SIM_DAEMONS_MAX];             /* they have no power */
  struct sim_register *claims;
  bool confirmed; /* by rdzvctl confirm-dead JOB: nothing of its other run lives, says an operator */
  bool suspends;  /* a node was suspended, ever */
  bool harmless;  /* nothing but the daemon has had a fault */
  struct rule rules[SIM_RULES_MAX];
  int n_rules;
  struct behaviour normal; /* where no rule fits */
  bool calm;               /* faults are over: every worker ends well and soon */
  const struct mutator *mutator;
  struct checker *checker;
  int next_pid;
  bool faulty;               /* something has been killed, paused, cut off or broken */
  uint64_t longest_pause_ms; /* of a daemon */
  char control_reply[512];
  /* trace */
  char *lines[SIM_TRACE_MAX];
  size_t n_lines;
  uint64_t digest; /* of all lines */
  size_t mark;     /* sim_until_line looks behind it */
  /* the first violation */
  enum invariant violated;
  char violation[1024];
};

/* sim.c */
void sim_config_init(struct sim_config *c); /* 2 nodes fixed, 1 ms links, no state dir */
struct sim *sim_create(const struct sim_config *c);
void sim_destroy(struct sim *s);
uint64_t sim_random(struct sim *s);
uint64_t sim_below(struct sim *s, uint64_t n);                 /* 0 .. n-1; 0 for n 0 */
uint64_t sim_between(struct sim *s, uint64_t lo, uint64_t hi); /* both included */
bool sim_chance(struct sim *s, unsigned percent);
struct sim_event *sim_push(struct sim *s, uint64_t at, enum event_kind kind); /* to be filled in */
void sim_call(struct sim *s, uint64_t at, void (*fn)(struct sim *s, uint64_t arg), uint64_t arg);
bool sim_step(struct sim *s);               /* false: no event is left, or an invariant is violated */
void sim_until(struct sim *s, uint64_t ms); /* to that time */
void sim_for(struct sim *s, uint64_t ms);
bool sim_until_line(struct sim *s, const char *part, uint64_t limit_ms); /* a new line has this part */
bool sim_until_over(struct sim *s, uint64_t limit_ms);                   /* all agents are gone */
void sim_unstash_node(struct sim *s, const struct sim_node *n);
void sim_unstash_guard(struct sim *s, const struct sim_agent *a);
void sim_unstash(struct sim *s, const struct sim_agent *a); /* NULL: d's */
void sim_trace(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_trace_print(const struct sim *s, size_t last);
void sim_violate(struct sim *s, enum invariant i, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool sim_tracing(const struct sim *s);

/* sim_link.c */
struct sim_conn *link_open(struct sim *s, enum conn_kind kind, struct sim_node *node, struct sim_agent *agent);
void link_send(struct sim *s, struct sim_conn *c, enum msg_direction d, struct bytes *b); /* a reference of its own */
void link_send_read(struct sim *s, struct sim_conn *c, enum msg_direction d, struct bytes *b, struct msg *m,
                    uint64_t said_at); /* the same, and m is what they say; takes m; NULL: not known */
struct msg *link_read(struct sim *s, enum msg_direction d, const struct bytes *b,
                      const char *what); /* one whole message, or a violation of CODEC that begins with what */
void link_forget(struct msg *m);         /* what link_read made; NULL: nothing */
void link_fin(struct sim *s, struct sim_conn *c, enum msg_direction d); /* flush and close of the sender's end */
void link_break(struct sim *s, struct sim_conn *c, uint64_t agent_in_ms, uint64_t daemon_in_ms);
void link_cut(struct sim *s, int node, bool to_agent, bool to_daemon);
void link_reject(struct sim *s, int node);
void link_heal(struct sim *s, int node);
void link_on_deliver(struct sim *s, struct sim_event *ev);
void link_on_send_timeout(struct sim *s, struct sim_event *ev);
void link_on_flush(struct sim *s, struct sim_event *ev);
void link_on_lost_end(struct sim *s, struct sim_event *ev);
void link_free(struct sim_conn *c);
struct sim_event *sim_push_front(struct sim *s, const struct sim_event *ev); /* at once, in order */
struct sim_place {
  int machine;
  uint16_t port;
};
void link_connect(struct sim *s, struct sim_agent *a, enum conn_kind kind, struct sim_place to, uint32_t timeout_ms,
                  uint64_t attempt); /* timeout_ms 0: SIM_CONNECT_TIMEOUT_MS */
void link_mend(struct sim *s);       /* some machines reach each other again */
void link_on_syn(struct sim *s, struct sim_event *ev);
uint64_t link_delay(struct sim *s, const struct sim_conn *c);

/* sim_daemon.c */
void daemon_side(struct sim *s, int side);              /* which one the following act upon; put it back to 0 */
const char *daemon_name(const struct sim *s, int side); /* "rdzvd", "rdzvd2", "rdzvd@n2" */
struct sim_daemon *daemon_at(struct sim *s, int side);
void daemon_start(struct sim *s);
void daemon_kill(struct sim *s);      /* SIGKILL: connections break, the state file stays */
void daemon_terminate(struct sim *s); /* SIGTERM */
void daemon_pause(struct sim *s);
void daemon_continue(struct sim *s);
void daemon_control(struct sim *s, const struct control *q); /* rdzvctl, as root; NULL for "" */
void daemon_stop_job(struct sim *s, const char *job);        /* rdzvctl stop */
void daemon_drain(struct sim *s, int node, bool force);
void daemon_confirm_dead(struct sim *s, int node);
void daemon_undrain(struct sim *s, int node);
void daemon_accept(struct sim *s, struct sim_conn *c);
void daemon_receive(struct sim *s, struct sim_conn *c, struct msg *m);
void daemon_closed(struct sim *s, struct sim_conn *c);
void daemon_on_saved(struct sim *s, struct sim_event *ev);
void daemon_on_tick(struct sim *s, struct sim_event *ev);
void daemon_on_hello_timeout(struct sim *s, struct sim_event *ev);
void daemon_finish(struct sim *s);
void daemon_vanish(struct sim *s); /* with the power of its machine */
void daemon_on_claimed(struct sim *s, uint64_t serial, enum claim_answer answer, const char *text);

/* sim_place.c */
bool place_passes(const struct sim *s, int from, int to); /* what a machine sends reaches the other */
bool place_conn_passes(const struct sim *s, const struct sim_conn *c, int d);
void place_wall(struct sim *s, int from, int to, bool both); /* machines */
void place_open(struct sim *s);                              /* no wall is left */
uint32_t place_rate(const struct sim *s, int machine);
int place_side(struct sim *s, struct sim_place at); /* the daemon that is reached there, if it is up */
struct sim_place place_endpoint(const struct sim *s, uint32_t k, const struct sim_node *n);
struct sim_place place_find(const struct sim *s, const char *addr, uint16_t port); /* machine -1: there is none */
void place_daemon(struct sim *s, int side, int machine);                           /* before it starts */
int place_own(struct sim *s, struct sim_agent *a); /* the daemon of this agent, perhaps down; -1: no room */
void place_power_off(struct sim *s, int side);     /* a daemon's machine that is no node's */
void place_power_on(struct sim *s, int side);

/* sim_claim.c */
void claim_finish(struct sim *s);
void claim_ask(struct sim *s, const struct job_effect *fx);
void claim_grant(struct sim *s, const struct job_effect *fx); /* a planted bug: won, whoever has it */
void claim_withdraw(struct sim *s, const struct job_effect *fx);
void claim_on_arrival(struct sim *s, struct sim_event *ev);
void claim_on_answer(struct sim *s, struct sim_event *ev);
void claim_wall(struct sim *s, int machine, bool up);              /* the register does not hear it */
const char *claim_holder_of(const struct sim *s, const char *end); /* of a name that ends so */
const char *claim_holder(const struct sim *s, const char *name);   /* its content; NULL: nobody has it */

/* sim_node.c */
int node_add(struct sim *s, uint32_t workers);
void node_turn(struct sim *s, int node, int side); /* its endpoint leads to another daemon from now on */
uint64_t node_time(const struct sim *s, const struct sim_node *n); /* what its clock says */
uint64_t node_when(const struct sim_node *n, uint64_t local);      /* when it says that, or has just said it */
void node_suspend(struct sim *s, int node);                        /* as a laptop, or a virtual machine that is moved */
void node_resume(struct sim *s, int node);
void node_power_on(struct sim *s, int node);
void node_power_off(struct sim *s, int node);           /* everything on it is gone, nobody is told */
struct sim_agent *agent_start(struct sim *s, int node); /* as a person or a scheduler starts it */
struct sim_agent *agent_of(struct sim *s, int node);    /* its last life, or NULL */
void agent_kill(struct sim *s, struct sim_agent *a);    /* SIGKILL; its guard lives and kills */
void agent_signal(struct sim *s, struct sim_agent *a, int signo);
void agent_say(struct sim *s, struct sim_agent *a, const struct msg *m); /* a message that its mind does not make */
void agent_suspend(struct sim *s, struct sim_agent *a, bool on);         /* Ctrl-Z, fg */
void agent_pause(struct sim *s, struct sim_agent *a);
void agent_trap(struct sim *s, struct sim_agent *a, enum event_kind kind, enum trap trap,
                uint64_t ms); /* right behind the next such event; PAUSE, CUT: for so long */
void agent_trap_msg(struct sim *s, struct sim_agent *a, enum msg_type type, enum trap trap, uint64_t ms);
void agent_continue(struct sim *s, struct sim_agent *a);
bool agent_alive(const struct sim_agent *a);
void agent_mind(struct sim *s, struct sim_agent *a, struct supervisor_event *ev); /* one step and its effects */
void agent_receive(struct sim *s, struct sim_agent *a, struct msg *m, uint64_t sent_at);
void agent_link_down(struct sim *s, struct sim_agent *a, const char *why);
void agent_on_connected(struct sim *s, struct sim_event *ev);
void agent_on_tick(struct sim *s, struct sim_event *ev);
void agent_on_forward(struct sim *s, struct sim_event *ev);
void agent_forward_answered(struct sim *s, struct sim_agent *a, const struct moved *older);
void agent_free(struct sim_agent *a);

/* sim_guard.c */
void guard_spawn_all(struct sim *s, struct sim_agent *a, const struct start *start, uint64_t stay);
void guard_stop_trees(struct sim *s, struct sim_agent *a, uint64_t round, uint64_t grace_ms, uint64_t keep);
void guard_fence_at(struct sim *s, struct sim_agent *a, uint64_t at);
void guard_look(struct sim *s, struct sim_agent *a);  /* SUP_LOOK: nothing but what was told */
void guard_probe(struct sim *s, struct sim_agent *a); /* SUP_PROBE */
void guard_ask(struct sim *s, struct sim_agent *a, const struct supervisor_effect *fx); /* SUP_REQUEST */
bool worker_works(const struct sim_worker *w);           /* it runs, and not only waits for its next round */
void guard_all_met(struct sim *s, struct sim_agent *a);  /* its workers and all others of the round */
void guard_kill_all(struct sim *s, struct sim_agent *a); /* the agent is gone */
void guard_kill(struct sim *s, struct sim_agent *a);     /* SIGKILL to the guard itself */
void guard_calm(struct sim *s, struct sim_agent *a);     /* its workers end well soon */
void worker_signal(struct sim *s, struct sim_agent *a, uint32_t local_rank, int signo); /* from outside */
bool guard_has_workers(const struct sim_agent *a);
void guard_on_event(struct sim *s, struct sim_event *ev);
void rule_add(struct sim *s, int node, int local_rank, int spawn, struct behaviour b);

/* sim_watch.c */
bool guard_sleeps(const struct sim_agent *a); /* it lives and cannot run */
bool guard_kills(const struct sim_agent *a,
                 uint64_t of); /* it has fenced while they waited, and the agent has not read that */
void guard_pause(struct sim *s, struct sim_agent *a, enum guard_rest rest);
void guard_continue(struct sim *s, struct sim_agent *a);
void guard_nudge(struct sim *s, struct sim_agent *a);        /* SIGCONT, as with each command */
void guard_kill_by_hand(struct sim *s, struct sim_agent *a); /* sim_guard.c: the agent, in its stead */
uint64_t guard_slept_at(const struct sim *s,
                        const struct sim_agent *a); /* the last time when it could not run; 0: never */
uint64_t guard_unable_at(const struct sim *s, const struct sim_agent *a); /* and neither could its agent */
void guard_note_rest(struct sim *s, struct sim_agent *a); /* right before either of them can run again */
void guard_notify(struct sim *s, struct sim_agent *a, uint64_t at,
                  struct supervisor_event ev); /* sim_guard.c: to the mind */
void guard_tell(struct sim *s, struct sim_agent *a, struct supervisor_event ev,
                bool by_itself); /* at once, or when it can */
void guard_tell_now(struct sim *s, struct sim_agent *a, struct supervisor_event ev);
void watch_begin(struct sim *s, struct sim_agent *a);
void watch_stop(struct sim *s, struct sim_agent *a, uint32_t round, uint64_t grace_ms, uint64_t keep);
void watch_hear(struct sim_agent *a, const struct supervisor_event *ev);
void watch_on_timer(struct sim *s, struct sim_event *ev);

/* sim_store.c */
void store_make_ready(struct sim *s, struct sim_agent *a);
void store_tell(struct sim *s, struct sim_agent *a); /* the mind hears of a new port */
void store_open(struct sim *s, struct sim_agent *a, const struct supervisor_effect *spawn);
void store_close(struct sim *s, struct sim_agent *a);
void store_knock(struct sim *s, struct sim_agent *a, struct sim_worker *w);
uint64_t store_next_knock(const struct sim *s, const struct sim_worker *w);
void store_on_retry(struct sim *s, struct sim_event *ev);
void store_free(struct sim_agent *a);

/* sim_ids.c */
void ids_mint(struct sim *s, struct sim_agent *a, const struct supervisor_effect *fx);
void ids_unmint(struct sim_agent *a, uint64_t number);
void ids_hand_out(struct sim *s, struct sim_agent *a, const struct supervisor_effect *fx);
void check_ids(struct sim *s, struct sim_agent *a); /* after each step of its mind */

/* sim_pairs.c */
bool pairs_receive(struct sim *s, struct sim_agent *a, const struct msg *m); /* false: it is for the mind */

/* describe.c */
void describe_msg(const struct msg *m, bool ports, struct buf *out); /* "START round 1: node 0 of 2, ranks 0-1 of 4" */

/* book.c, invariants.c, invariants_work.c, invariants_repeats.c */
struct checker *checker_create(void);
void checker_destroy(struct checker *k);
void check_hello(struct sim *s, struct sim_conn *c, const struct hello *h);     /* the daemon reads it */
void check_core_sent(struct sim *s, struct sim_conn *c, const struct msg *m);   /* as delivered, before any mutation */
void check_agent_told(struct sim *s, struct sim_agent *a, const struct msg *m); /* as the agent reads it */
void check_agent_sent(struct sim *s, struct sim_agent *a, const struct msg *m); /* when the mind says it */
bool allowed_to_run_on(const struct sim *s, const struct sim_agent *a, const struct sim_worker *w);
bool were_unable(const struct sim *s,
                 const struct sim_agent *a); /* neither it nor its guard could run, until just now */
uint64_t dying_ms(const struct sim *s, const struct sim_agent *a); /* from when its agent knows it must die */
void check_store_told(struct sim *s, struct sim_agent *a);         /* the mind has dealt with what it was told */
void check_store_missing(struct sim *s, struct sim_agent *a, struct sim_worker *w); /* nobody serves where it knocks */
void check_stop(struct sim *s, const struct sim_agent *a); /* its workers are about to be stopped */
void check_fenced(struct sim *s, const struct sim_agent *a, const struct sim_worker *w); /* it is dead */
void check_worker_starts(struct sim *s, struct sim_agent *a, struct sim_worker *w);
void check_worker_ends(struct sim *s, struct sim_agent *a, struct sim_worker *w, int status, bool by_itself);
void check_agent_exit(struct sim *s, struct sim_agent *a, int code);
void check_deadlines(struct sim *s);
void check_goodput(struct sim *s);                       /* the daemon has taken a step: invariants_goodput.c */
void check_saved(struct sim *s);                         /* a daemon has written a seal */
void check_event_saved(struct sim *s, const char *line); /* a line goes to the state file */
void check_event_made(struct sim *s, const struct job_effect *fx);
void check_event_sent(struct sim *s, const struct msg *m);
void check_event_written(struct sim *s, const struct sim_agent *a, const char *name, const char *line);
void check_over(struct sim *s); /* links healed, all are gone */
/* There is peace since then: all machines with power reach each other. */
void check_goes_on(struct sim *s, uint64_t since_ms);

#endif
