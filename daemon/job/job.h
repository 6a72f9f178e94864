#ifndef DAEMON_RDZV_H
#define DAEMON_RDZV_H

/* One job: its members, its rounds, its end. Inside the daemon's core; pure. daemon/core.c finds the job that a message belongs to, and
 * calls job_event; everything that happens to a job happens in the table of daemon/rdzv.c. */

#include "common/map.h"
#include "daemon/core/core.h"
#include "daemon/job/missing.h"

struct drain;
struct round_ids;

/* The events of the state x event table (PROTOCOL.md 5). */
#define JOB_EVENT_LIST(X)                                                                                    \
  X(JOIN, "join")     /* a node in no round */                                                               \
  X(RESUME, "resume") /* a node came back, or is new to us, and names a round */                             \
  X(STARTED, "started")                                                                                      \
  X(FAILED, "failed")                                                                                        \
  X(FINISHED, "finished")                                                                                    \
  X(LEAVING, "leaving")                                                                                      \
  X(STOPPED, "stopped")                                                                                      \
  X(CHECKPOINTED, "checkpointed")                                                                            \
  X(LOST, "lost") /* grace, lease or patience is over, or an obituary came */                                \
  X(BYE, "bye")                                                                                              \
  X(END_ACK, "end-ack")                                                                                      \
  X(OPERATOR, "operator") /* rdzvctl stop */                                                                 \
  X(DEADLINE, "deadline") /* the state's own deadline has passed */
#define X(name, word) JOB_EV_##name,
enum job_event_kind { JOB_EVENT_LIST(X) JOB_EV_COUNT };
#undef X
const char *job_event_name(enum job_event_kind k);

/* A member's place in the current round. */
enum member_state {
  MEMBER_WAITING,  /* in no round: ready for the next one */
  MEMBER_TOLD,     /* START is out */
  MEMBER_STARTED,  /* all its workers run */
  MEMBER_FINISHED, /* all its workers are done; final */
  MEMBER_STOPPED,  /* nothing of the round is left there; in no round: until it says HELLO, in no round */
  MEMBER_STATE_COUNT,
};

/* Who has told restarts used and the failed step to a daemon that came back: the later the better. */
enum budget_from {
  BUDGET_OLDER,   /* a node that knows an earlier round */
  BUDGET_START,   /* the state file's seal, or a node that has heard START */
  BUDGET_SETTLED, /* a node that has heard SETTLED */
};

/* What ended a round. daemon/rdzv_verdicts.c */
enum { JOB_PAST_MAX = 16 };
struct ended_round {
  struct verdict verdict; /* a copy */
  uint64_t wall_ms;
  bool charged;
};

struct member {
  struct job *job;

  /* Who it is, by its HELLO. */
  char agent[AGENT_ID_MAX + 1], host[HOST_MAX + 1];
  char label[128], role[ROLE_MAX + 1];
  int64_t pid, workers, want_rank, order_key;
  uint64_t joined_no; /* order of joining, for fairness among newcomers */
  struct host *place; /* NULL: nobody expects its host */
  int64_t told_nodes; /* how many its scheduler has started; 0: unknown */
  bool
      expected; /* its host is listed, or it was started as one of as many as are expected; else a spare, perhaps */
  bool worker_store; /* its agent would serve no store as node rank 0: a worker does */
  bool wants_ids;    /* as its last HELLO said */

  /* Where it is. */
  char local_addr[ADDR_MAX + 1], peer_addr[ADDR_MAX + 1];
  char daemon_addr[ADDR_MAX + 1]; /* our address as it reached us */
  char addr[ADDR_MAX + 1];        /* what others are told, from sealing on */
  char *addrs;                    /* its host's addresses, as it said last, parted by blanks; owned */
  int64_t store_port; /* where it would serve the store of the next round, as it said last; 0: nowhere */

  /* Its connection. */
  uint64_t conn;      /* 0: none */
  uint64_t grace_ms;  /* conn 0: until when it may come back */
  uint64_t heard_ms;  /* last sign of life */
  uint64_t told_news; /* the job's news when it was last sent WAITING */
  bool fenced_flag;   /* what its last HEARTBEAT_ACK said */
  bool end_acked;

  /* Its part in the current round, */
  enum member_state state;
  int64_t node_rank, rank_base; /* -1: in none */
  int64_t role_rank_base;       /* as rank_base, counted among nodes of its role */
  int64_t last_seq;             /* highest report seq taken */
  int64_t step, of;             /* last PROGRESS */
  double loss, samples_per_second;
  bool knows_round;  /* TOLD: START has reached it, it said so in HELLO */
  bool checkpointed; /* since the last PREPARE */
  bool has_ids;      /* RECOVERING: it has the round's NCCL ids */
  bool shut;         /* FINISHED: nobody new comes to the round's store there, if it serves it */
  bool gone;         /* lost after it had finished: kept for the count */

  /* and in the next one. */
  int64_t last_rank; /* in the last round it was part of; -1: none */
  bool leaving;      /* it will not take part in another */
  bool missed;       /* its absence is noted: it has said that it leaves */
  bool drained;      /* its host is: in no other round */
  bool flapping;     /* as the last seal saw it: taken only where it is needed to reach min */

  bool available, expected_here, owes_ack, reported, unsaved; /* what it is counted as: rdzv_member.c */
};

struct job {
  struct core *core;

  /* Which life of which job. */
  char *id;
  char incarnation[INCARNATION_MAX + 1];
  char former[INCARNATION_MAX + 1]; /* core_branch: what it was called before; "" */
  struct settings settings;
  int64_t uid; /* of the user whose job it is, as its agents say; -1: nobody's but root's */
  int64_t expected_nodes;
  int64_t past_round; /* rounds up to this one were given out before it was forgotten here and came back */
  bool
      skip_round; /* the next seal leaves out a number: one may have been sealed that nobody here has heard of */
  bool branches;  /* the next seal begins a life of its own: core_branch */
  bool forgotten; /* core frees it after the step */

  struct member **members;
  size_t n_members, cap_members;
  struct map agents; /* agent id -> member */
  struct map ranks;  /* node rank in the current round -> member */
  struct map wanted; /* --node-rank -> member */

  /* Counts of members, kept by rdzv_member.c. */
  size_t n_connected;
  size_t n_available;     /* could take part in a round that is sealed now */
  size_t n_expected_here; /* of those: who is expected */
  size_t n_owing;         /* have not acknowledged the end, and may yet */
  size_t n_reported; /* RECOVERING: have told how they stand, those that know the round as settled included */
  size_t n_unsaved;  /* of the round: run, and have not reported `checkpointed` */
  size_t n_in_state[MEMBER_STATE_COUNT];
  int64_t n_workers; /* of all members: at most WORLD_MAX */

  /* The state, and what it waits for. */
  enum job_state state;
  uint64_t state_ms;      /* when it was entered */
  uint64_t forming_ms;    /* since when the join timeout counts */
  uint64_t enough_ms;     /* FORMING: since when min nodes are here; 0: they are not */
  uint64_t not_before_ms; /* FORMING: delay after short rounds */
  uint64_t leave_ms;      /* FORMING: until then others may leave, after one has */
  uint64_t grow_ms;       /* RUNNING: when it is ended for newcomers; UINT64_MAX: there are none */
  uint64_t prepare_ms;    /* CHECKPOINTING: its end */
  uint64_t recover_ms;    /* RECOVERING: its end */
  uint64_t deaf_ms;       /* RUNNING: since when nothing is heard of anybody; 0: somebody is heard */
  uint64_t scan_ms;       /* no lease, grace or hold can expire before */
  uint64_t any_ms,        /* when any member was heard last, or a connection of one closed */
      forgiven_ms; /* our loop was late, or we came back: until then nobody is lost for a connection that closed */
  uint64_t line_wall_ms; /* when what the state file says of it happened */

  /* RECOVERING: what is known of the round. */
  bool settled;                 /* somebody has heard its verdict */
  bool exact;                   /* it is known from the state file, no later one was sealed */
  bool stopping_seen;           /* somebody was told to stop */
  int64_t told_ids;             /* how many NCCL ids it has */
  enum budget_from budget_from; /* where restarts_used and failed_step are from */

  /* Who is expected, and what WAITING tells of it: rdzv_missing.c, rdzv_round.c. */
  struct roster roster;
  uint64_t news;      /* counts what WAITING would tell */
  uint64_t notice_ms; /* when it goes out next; UINT64_MAX: not now */
  uint64_t last_notice_ms;

  /* Hosts and agents that are kept back. */
  struct map flaps;      /* host -> when it was lost; rdzv_grow.c */
  size_t flaps_sweep_at; /* as holds_sweep_at */
  struct map holds;      /* agent id -> when what it may still run is over; rdzv_hold.c */
  uint64_t hold_ms;      /* when the last of them is; 0: none */
  size_t n_last_holds;   /* how many end then */
  size_t holds_sweep_at; /* that many are looked through for expired ones */
  struct map failures;   /* host -> charged failures there, as intptr_t; rdzv_drain.c */

  /* The current or last round. */
  int64_t round, round_nodes, world_size;
  struct map role_sizes; /* role -> its workers, as intptr_t */
  int64_t store_port;    /* of the round's store at node rank 0, as it was when the round was sealed */
  uint64_t round_ms;     /* START */
  bool void_round;
  struct verdict cause; /* the weightiest so far; a copy */
  uint64_t cause_ms;
  int64_t worker_deaths;
  struct round_ids *ids; /* NULL: it has none; rdzv_ids.c */

  /* Rounds that are settled. */
  struct verdict last_verdict; /* a copy */
  bool last_charged, last_refilled;
  char last_excluded[HOST_MAX + 1]; /* the host that the last one made take no part any more; "": none */
  bool faulted;                     /* a round has been: no last call */
  struct ended_round *past;         /* a ring of JOB_PAST_MAX; rdzv_verdicts.c */
  size_t n_past;                    /* ever */

  /* The budget: rdzv_budget.c. */
  int64_t restarts_used;
  int64_t failed_step;       /* the furthest step that a charged round had come to; -1: not known */
  uint64_t refilled_wall_ms; /* when restarts were given back last; 0: never */
  unsigned short_rounds;
  uint64_t last_delay_ms;

  enum outcome outcome; /* ENDING, ENDED */
  int code;
};

struct job_event {
  enum job_event_kind kind;
  uint64_t now_ms;
  struct member *member;       /* all but OPERATOR and DEADLINE */
  const struct hello *hello;   /* JOIN, RESUME */
  bool again;                  /* JOIN, RESUME: on the same connection, so nothing that it was sent is lost */
  const struct report *report; /* STARTED .. STOPPED */
  uint64_t at_ms;              /* when it happened, by the sender's account */
  bool dead;                   /* LOST: surely nothing of it runs */
  const char *text;            /* LOST, OPERATOR: why */
};

/* daemon/rdzv.c */
void job_event(struct job *j, const struct job_event *ev);
void job_set_state(struct job *j, enum job_state to, uint64_t now_ms);
bool job_could_form_without(const struct job *j, const struct member *m);

/* daemon/rdzv_end.c: how a round ends, and how the job does */
void job_offer_cause(struct job *j, const struct verdict *v, uint64_t at_ms);
/* Of a whole node: lost, leaving... */
void job_offer_node_cause(struct job *j, const struct member *m, enum cause cause, int code, const char *text,
                          uint64_t at_ms);
void job_begin_stopping(struct job *j, uint64_t now_ms, bool void_round);
void job_settle_if_stopped(struct job *j, uint64_t now_ms);
/* m is node rank 0, has finished, and is to run again with the others: as long as it lets workers into its store, those of the next round could
 * come there. */
bool job_waits_for_head(const struct job *j, const struct member *m);
void job_end(struct job *j, uint64_t now_ms, enum outcome outcome, int code, const struct verdict *v);
void job_finish_if_done(struct job *j, uint64_t now_ms);
void job_ended_if_acknowledged(struct job *j, uint64_t now_ms);
void job_join_timeout(struct job *j, uint64_t now_ms);
/* The messages, for those who have missed them; the caller's to unref. */
struct bytes *job_stop_bytes(const struct job *j);
struct bytes *job_settled_bytes(const struct job *j);
struct bytes *job_end_bytes(const struct job *j);

/* daemon/rdzv_prepare.c: a checkpoint before the planned end of a round */
/* The round is to be ended for a cause that was offered just before, and that is no fault: newcomers, a node that leaves or is drained. RUNNING:
 * all are told PREPARE, and STOP when they have their checkpoints, after half of --stop-timeout at the latest. STARTING: nothing is lost
 * yet, so it is void and stops at once. In any other state the cause was all that is needed. */
void job_prepare(struct job *j, uint64_t now_ms);
bool job_is_planned_end(const struct job *j); /* the cause is one of these */
/* PREPARE for one that has missed it. The caller's to unref. */
struct bytes *job_prepare_bytes(const struct job *j);
/* The table's cells of CHECKPOINTING that no other state has. */
void job_checkpointing_resume(struct job *j, const struct job_event *ev);
/* checkpointed, finished, stopped */
void job_checkpointing_report(struct job *j, const struct job_event *ev);
void job_checkpointing_deadline(struct job *j, const struct job_event *ev);

/* daemon/rdzv_budget.c: restarts used and given back, and the delay after short rounds */
bool job_has_earned(const struct job *j, uint64_t now_ms); /* the round has: at its end they are given back */
int64_t job_step(const struct job *j); /* of the node that is furthest behind; -1: none has told one */
uint64_t job_age_ms(const struct job *j, uint64_t now_ms); /* of the round, until it was told to stop */
void job_refill_if_earned(struct job *j, uint64_t now_ms);
void job_charge(struct job *j, bool charged);                /* for the cause, which is settled */
void job_learn_budget(struct job *j, const struct hello *h); /* RECOVERING */
void job_budget_text(const struct job *j, uint64_t now_ms, struct buf *out);

/* daemon/rdzv_time.c: deadlines, leases, grace */
uint64_t job_deadline(const struct job *j);
void job_tick(struct job *j, uint64_t now_ms, uint64_t lag_ms);
void job_closed(struct job *j, struct member *m, uint64_t now_ms); /* its connection is gone; grace begins */
void job_away(struct job *j, struct member *m, uint64_t now_ms);   /* the same, and m has none any more */
void job_here(struct job *j, const struct member *m);              /* it has one: its lease counts */
void member_heard(struct member *m, uint64_t now_ms);              /* it lives */

/* daemon/rdzv_job.c: the object */
struct job *job_create(struct core *c, const char *id, const char *incarnation, const struct settings *s,
                       uint64_t now_ms, uint64_t wall_ms);
void job_destroy(struct job *j);
struct member *job_add_member(struct job *j, const struct hello *h, uint64_t now_ms);
void job_remove_member(struct job *j, struct member *m);
struct member *job_find_agent(const struct job *j, const char *agent);
struct member *job_find_wanted(const struct job *j, int64_t want_rank); /* who asked for it */
void job_clear_round(struct job *j);                                    /* causes */
void member_tell_store(struct member *m, int64_t port); /* REPORT, HELLO: what it said before is over */
void member_tell_addrs(struct member *m, const char *addrs);
void member_describe(const struct member *m, struct buf *out); /* "node 1 (n1, pid 4711)" */
bool member_in_round(const struct member *m);
bool job_is_over(const struct job *j); /* ENDING or ENDED */

/* daemon/rdzv_hold.c: lost nodes whose workers may still run; no round is sealed before they have killed them */
void job_hold_agent(struct job *j, const char *agent, uint64_t until_ms);
void job_hold(struct job *j, const struct member *m); /* until its lease is over */
void job_drop_hold(struct job *j, const char *agent);
void job_hold_as(struct job *j, const struct job *before); /* the same ones */
uint64_t job_hold_until(const struct job *j);
void job_finish_holds(struct job *j);

/* daemon/rdzv_member.c: the only writers of state, conn, leaving, drained, checkpointed, gone, end_acked, node_rank and last_rank */
void member_count_in(struct member *m);
void member_count_out(struct member *m); /* also takes it out of the round */
void member_set_state(struct member *m, enum member_state to);
void member_set_conn(struct member *m, uint64_t conn); /* only core_bind and core_unbind */
void member_set_leaving(struct member *m);
void member_set_checkpointed(struct member *m, bool checkpointed);
void member_set_drained(struct member *m, bool drained);
void member_set_expected(struct member *m, bool expected);
void member_set_gone(struct member *m, bool gone);
void member_set_acked(struct member *m);
void member_place(struct member *m, int64_t rank); /* its rank in the current round; -1: it is in none */
void member_keep_rank(struct member *m, int64_t rank);
struct member *job_find_rank(const struct job *j, int64_t rank);
/* Ranks of the current round's workers, from node ranks: in the job, and in each role. */
void job_number_workers(struct job *j);
int64_t job_role_size(const struct job *j, const char *role);

/* daemon/rdzv_round.c: who takes part, as which rank */
bool job_ready_to_seal(struct job *j, uint64_t now_ms);
void job_seal(struct job *j, uint64_t now_ms);
void job_send_start(struct job *j, struct member *m);
uint64_t job_seal_deadline(const struct job *j);
uint64_t job_join_deadline(const struct job *j);        /* when it is over unless more nodes come */
void job_watch_numbers(struct job *j, uint64_t now_ms); /* FORMING: nodes came or went */
/* WAITING, the same for all but those on drained hosts */
struct bytes *job_waiting_bytes(const struct job *j, const struct drain *drained, uint64_t now_ms);
void job_send_news(struct job *j, const struct member *m, struct bytes *news, uint64_t now_ms);
void job_send_waiting(struct job *j, struct member *m, uint64_t now_ms);
void job_notice_soon(struct job *j, uint64_t now_ms); /* FORMING: there is news for WAITING */

/* daemon/rdzv_grow.c: newcomers while a round runs, and hosts that come and go */
void job_watch_growth(struct job *j, uint64_t now_ms);                           /* RUNNING begins */
void job_watch_newcomer(struct job *j, const struct member *m, uint64_t now_ms); /* RUNNING: m has come */
void job_grow_if_due(struct job *j, uint64_t now_ms);
/* It was lost from a round, or left it. */
void job_note_loss(struct job *j, const struct member *m, uint64_t now_ms);
/* A newcomer of a host that was lost too often: until when; 0: it is none. */
uint64_t member_flapping_until(const struct member *m, uint64_t now_ms);
void job_finish_flaps(struct job *j);

/* daemon/rdzv_verdicts.c */
void job_note_verdict(struct job *j, bool charged, uint64_t wall_ms); /* last_verdict, once per round */
const struct ended_round *job_past(const struct job *j, size_t ago);  /* 0: the last; NULL: there is none */
void job_finish_past(struct job *j);

/* daemon/rdzv_ids.c: the round's ncclUniqueIds */
void job_ids_seal(struct job *j, uint64_t now_ms); /* the round has its nodes and ranks: who mints */
void job_ids_start(const struct job *j, const struct member *m, struct start *start); /* borrows from j */
/* m is back in its round: what it may have missed. */
void job_ids_resume(struct job *j, const struct member *m, const struct hello *h);
bool minted_is_sound(const struct msg *m); /* as long as it says it is */
void job_ids_minted(struct job *j, struct member *m, const struct msg *msg, uint64_t now_ms);
void job_ids_recovered(struct job *j, uint64_t now_ms); /* its round goes on: who has them, or is to mint */
uint64_t job_ids_deadline(const struct job *j);
void job_ids_tick(struct job *j, uint64_t now_ms);       /* may end the round */
void job_ids_text(const struct job *j, struct buf *out); /* a line for status, or nothing */
void job_ids_forget(struct job *j);

/* daemon/rdzv_addrs.c */
/* Who may reach the round's store: each address of its nodes once, a line each. */
void job_round_addrs(const struct job *j, struct buf *out);

/* daemon/rdzv_recover.c */
void job_recover(struct job *j, int64_t round, uint64_t now_ms); /* enters RECOVERING of that round */
void job_recover_hello(struct job *j, const struct job_event *ev);
void job_recover_finish_if_complete(struct job *j, uint64_t now_ms);
void job_recover_finish(struct job *j, uint64_t now_ms);

#endif
