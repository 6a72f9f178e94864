#ifndef DAEMON_RDZV_H
#define DAEMON_RDZV_H

/* One job: its members, its rounds, its end. Inside the daemon's core; pure. daemon/core.c finds the job that a message belongs to, and
 * calls job_event; everything that happens to a job happens in the table of daemon/rdzv.c. */

#include "common/map.h"
#include "daemon/core.h"
#include "proto/frame.h"

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

/* A host that takes no part. daemon/rdzv_drain.c */
struct drain {
  char *host, *by;                       /* by: for people, "root"; in the core's list both are owned */
  int64_t uid;                           /* of whose jobs; -1: of all */
  char incarnation[INCARNATION_MAX + 1]; /* of one life of one job alone; "": of each */
  uint64_t wall_ms;
  bool force; /* rounds are ended even where the job cannot go on */
  struct drain *next;
};

/* What ended a round. daemon/rdzv_verdicts.c */
enum { JOB_PAST_MAX = 16 };
struct ended_round {
  struct verdict verdict; /* a copy */
  uint64_t wall_ms;
  bool charged;
};

/* A host of which nodes are expected: the scheduler lists it, or it has lost nodes since the last round. */
struct host {
  char *name;            /* owned; as it was told first */
  uint32_t wanted, here; /* how many nodes of it are expected, and could take part in a round now */
  bool listed;           /* by a scheduler */
  bool drained;          /* nobody waits for it */
  enum absence why;      /* what happened to a node of it last */
  uint64_t at_ms;        /* and when */
  char *text;            /* owned; NULL: nothing is known */
};

struct refusal {     /* of a node that wanted to join */
  char *host, *text; /* owned; NULL: none */
  uint64_t at_ms;
};

/* Who is expected: daemon/rdzv_missing.c. */
struct roster {
  char *list;       /* the list that was told last, as it was; NULL: none */
  unsigned n_lists; /* how many were taken */
  struct host **v;
  size_t n, cap;
  struct map names,
      shorts; /* lower case -> struct host; shorts: without the domain, &ambiguous where there are several */
  size_t n_unlisted;
  int64_t listed_wanted, listed_missing; /* nodes; of the missing those that a seal waits for */
  struct refusal refusals[REFUSALS_MAX]; /* the newest first */
};

struct member {
  struct job *job;
  struct host *place; /* NULL: nobody expects its host */
  char agent[AGENT_ID_MAX + 1], host[HOST_MAX + 1];
  char label[128], role[ROLE_MAX + 1], local_addr[ADDR_MAX + 1], peer_addr[ADDR_MAX + 1];
  char daemon_addr[ADDR_MAX + 1]; /* our address as it reached us */
  char addr[ADDR_MAX + 1];        /* what others are told, from sealing on */
  char *addrs;                    /* its host's addresses, as it said last, parted by blanks; owned */
  int64_t store_port; /* where it would serve the store of the next round, as it said last; 0: nowhere */
  int64_t pid, workers, want_rank, order_key;
  uint64_t conn;      /* 0: none */
  uint64_t grace_ms;  /* conn 0: until when it may come back */
  uint64_t heard_ms;  /* last sign of life */
  uint64_t joined_no; /* order of joining, for fairness among newcomers */
  enum member_state state;
  uint64_t told_news; /* the job's news when it was last sent WAITING */
  bool missed;        /* its absence is noted: it has said that it leaves */
  bool leaving;       /* it will not take part in another round */
  bool drained;       /* its host is: in no other round */
  bool worker_store;  /* its agent would serve no store as node rank 0: a worker does */
  bool flapping;      /* as the last seal saw it: taken only where it is needed to reach min */
  bool checkpointed;  /* since the last PREPARE */
  bool shut;          /* FINISHED: nobody new comes to the round's store there, if it serves it */
  bool gone;          /* lost after it had finished: kept for the count */
  bool end_acked;
  bool fenced_flag;             /* what its last HEARTBEAT_ACK said */
  int64_t node_rank, rank_base; /* in the current round; -1: in none */
  int64_t role_rank_base;       /* as rank_base, counted among nodes of its role */
  int64_t last_rank;            /* in the last round it was part of; -1: none */
  int64_t last_seq;             /* highest report seq taken */
  int64_t step, of;             /* last PROGRESS */
  double loss, samples_per_second;
  bool knows_round;                            /* TOLD: START has reached it, it said so in HELLO */
  bool available, owes_ack, reported, unsaved; /* what it is counted as: rdzv_member.c */
};

struct job {
  struct core *core;
  char *id;
  char incarnation[INCARNATION_MAX + 1];
  char former[INCARNATION_MAX + 1]; /* core_branch: what it was called before; "" */
  enum job_state state;
  struct settings settings;
  int64_t round, restarts_used, expected_nodes;
  int64_t past_round;  /* rounds up to this one were given out before it was forgotten here and came back */
  int64_t failed_step; /* the furthest step that a charged round had come to; -1: not known */
  int64_t uid;         /* of the user whose job it is, as its agents say; -1: nobody's but root's */
  uint64_t refilled_wall_ms; /* when restarts were given back last; 0: never */

  struct member **members;
  size_t n_members, cap_members;
  struct map agents; /* agent id -> member */
  struct map ranks;  /* node rank in the current round -> member */
  struct map wanted; /* --node-rank -> member */

  /* Counts of members, kept by rdzv_member.c. */
  size_t n_connected;
  size_t n_available; /* could take part in a round that is sealed now */
  size_t n_owing;     /* have not acknowledged the end, and may yet */
  size_t n_reported; /* RECOVERING: have told how they stand, those that know the round as settled included */
  size_t n_unsaved;  /* of the round: run, and have not reported `checkpointed` */
  size_t n_in_state[MEMBER_STATE_COUNT];
  int64_t n_workers; /* of all members: at most WORLD_MAX */

  uint64_t state_ms;      /* when the state was entered */
  uint64_t line_wall_ms;  /* when what the state file says of it happened */
  uint64_t forming_ms;    /* since when the join timeout counts */
  uint64_t enough_ms;     /* FORMING: since when min nodes are here; 0: they are not */
  uint64_t not_before_ms; /* FORMING: delay after short rounds */
  uint64_t recover_ms;    /* RECOVERING: its end */
  uint64_t leave_ms;      /* FORMING: until then others may leave, after one has */
  uint64_t prepare_ms;    /* CHECKPOINTING: its end */
  uint64_t grow_ms;       /* RUNNING: when it is ended for newcomers; UINT64_MAX: there are none */
  uint64_t forgiven_ms;   /* our loop was late: until then nobody is lost for a connection that closed */
  uint64_t deaf_ms;       /* RUNNING: since when nothing is heard of anybody; 0: somebody is heard */
  uint64_t scan_ms;       /* no lease, grace or hold can expire before */
  uint64_t notice_ms;     /* when WAITING goes out next; UINT64_MAX: not now */
  uint64_t last_notice_ms;
  uint64_t news; /* counts what WAITING would tell */
  bool faulted;  /* a round has been: no last call */
  bool settled;  /* RECOVERING: somebody has heard the round's verdict */
  bool exact;    /* RECOVERING: the round is known from the state file, no later one was sealed */
  enum budget_from budget_from; /* RECOVERING: where restarts_used and failed_step are from */
  bool
      skip_round; /* the next seal leaves out a number: a round may have been sealed that nobody here has heard of */
  bool branches;      /* the next seal begins a life of its own: core_branch */
  bool stopping_seen; /* RECOVERING: somebody was told to stop */
  bool forgotten;     /* core frees it after the step */
  struct roster roster;
  struct map flaps;      /* host -> when it was lost; rdzv_grow.c */
  size_t flaps_sweep_at; /* as holds_sweep_at */
  struct map holds;      /* agent id -> when what it may still run is over; rdzv_hold.c */
  uint64_t hold_ms;      /* when the last of them is; 0: none */
  size_t n_last_holds;   /* how many end then */
  size_t holds_sweep_at; /* that many are looked through for expired ones */

  /* The current or last round. */
  int64_t round_nodes, world_size;
  struct map role_sizes; /* of the current round: role -> its workers, as intptr_t */
  int64_t store_port;    /* of the round's store at node rank 0, as it was when the round was sealed */
  uint64_t round_ms;     /* START */
  unsigned short_rounds;
  bool void_round;
  struct verdict cause; /* the weightiest so far; a copy */
  uint64_t cause_ms;
  int64_t worker_deaths;
  struct verdict last_verdict; /* of the last settled round; a copy */
  bool last_charged, last_refilled;
  char last_excluded[HOST_MAX +
                     1];    /* the host that the last settled round made take no part any more; "": none */
  struct ended_round *past; /* a ring of JOB_PAST_MAX */
  size_t n_past;            /* ever */
  struct map failures;      /* host -> charged failures there, as intptr_t */
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
void job_checkpointing_report(struct job *j,
                              const struct job_event *ev); /* checkpointed, finished, stopped */
void job_checkpointing_deadline(struct job *j, const struct job_event *ev);

/* daemon/rdzv_budget.c: restarts used and given back, and the delay after short rounds */
bool job_has_earned(const struct job *j, uint64_t now_ms); /* the round has: at its end they are given back */
int64_t
job_step(const struct job *j); /* of the node that is furthest behind, of those that told; -1: none has */
uint64_t job_age_ms(const struct job *j, uint64_t now_ms); /* of the round, until it was told to stop */
void job_refill_if_earned(struct job *j, uint64_t now_ms);
void job_charge(struct job *j, bool charged);                /* for the cause, which is settled */
void job_learn_budget(struct job *j, const struct hello *h); /* RECOVERING */
void job_budget_text(const struct job *j, uint64_t now_ms, struct buf *out);

/* daemon/rdzv_time.c: deadlines, leases, grace */
uint64_t job_deadline(const struct job *j);
void job_tick(struct job *j, uint64_t now_ms, uint64_t lag_ms);
void job_closed(struct job *j, struct member *m, uint64_t now_ms); /* its connection is gone; grace begins */
void job_away(struct job *j, struct member *m,
              uint64_t now_ms);                       /* the same, and m has no connection any more */
void job_here(struct job *j, const struct member *m); /* it has a connection: its lease counts */
void member_heard(struct member *m, uint64_t now_ms); /* it lives */

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

/* daemon/rdzv_missing.c: who is expected, who is missing, since when and why */
void job_init_roster(struct job *j);
void job_finish_roster(struct job *j);
/* A node's list of hosts, compressed; j->expected_nodes is known. */
void job_expect_hosts(struct job *j, const char *list);
int64_t job_expected(const struct job *j); /* how many nodes are to come; 0: it is not known */
bool job_all_expected_are_here(const struct job *j, size_t here);
void member_find_place(struct member *m); /* it is new */
void member_count_at_place(struct member *m,
                           bool here); /* rdzv_member.c: it could take part in a round, or no longer */
/* It will not come back by itself: for its host's line among the missing. */
void member_note_absence(struct member *m, enum absence why, const char *text, uint64_t at_ms);
void job_forget_absences(struct job *j); /* a round is sealed: who was missing is missed no more */
void job_note_refusal(struct job *j, const char *host, const char *text, uint64_t now_ms);
void job_watch_drains(struct job *j);                     /* they are others now, and members are flagged */
void job_forget_refusal(struct job *j, const char *host); /* it has joined now */
void job_missing_text(const struct job *j, uint64_t now_ms, struct buf *out);
void job_missing_failed(const struct job *j, uint64_t now_ms, struct buf *out); /* the time is up */
/* All of WAITING that has to do with who is here; what it points into is freed with missing_finish. */
struct missing {
  struct waiting *w;
  struct absent absent[ABSENT_MAX];
  struct turned_away refusals[REFUSALS_MAX];
  struct buf hosts, drained_by, groups[ABSENT_MAX];
};
void missing_fill(struct missing *k, const struct job *j, struct waiting *w, uint64_t now_ms);
void missing_finish(struct missing *k);

/* daemon/rdzv_grow.c: newcomers while a round runs, and hosts that come and go */
void job_watch_growth(struct job *j, uint64_t now_ms);                           /* RUNNING begins */
void job_watch_newcomer(struct job *j, const struct member *m, uint64_t now_ms); /* RUNNING: m has come */
void job_grow_if_due(struct job *j, uint64_t now_ms);
void job_note_loss(struct job *j, const struct member *m,
                   uint64_t now_ms); /* it was lost from a round, or left it */
/* A newcomer of a host that was lost too often: until when; 0: it is none. */
uint64_t member_flapping_until(const struct member *m, uint64_t now_ms);
void job_finish_flaps(struct job *j);

/* daemon/rdzv_drain.c: hosts that take no part */
const struct drain *core_first_drain(const struct core *c, const char *host); /* and its next; NULL: none */
bool drain_holds(const struct drain *d, const struct job *j);
const struct drain *job_drain_of(const struct job *j, const char *host); /* one that holds; NULL: none */
/* Keeps a copy of `like`, saves it, and ends or forms rounds by it; the same one again: its force alone may be new. false: there are
 * too many. */
bool core_drain(struct core *c, const struct drain *like, uint64_t now_ms);
/* Lifts those of that host with the uid and life of `like`; NULL: all. Their number. */
size_t core_undrain(struct core *c, const char *host, const struct drain *like, uint64_t now_ms);
void core_finish_drains(struct core *c);
void job_apply_drains(struct job *j, uint64_t now_ms);
void job_end_for_drains(struct job *j,
                        uint64_t now_ms); /* STARTING, RUNNING: where one of the round is on such a host */
void job_drop_drains(struct job *j);      /* its own: it is over */
void core_drop_drains(struct core *c,
                      const char *incarnation); /* those of a life that is not here any more */
void job_take_drains_along(struct job *j);      /* core_branch: from its former life into this one */
size_t job_nodes_without(const struct job *j, const char *host); /* that could take part */
bool job_could_go_on_without(const struct job *j, const char *host);
bool job_works_on(const struct job *j,
                  const char *host);             /* workers of the round are there, or are being started */
bool job_has_finished_ones(const struct job *j); /* nodes of the round have, and are not to begin again */
/* A charged one. The host that takes no part any more for it (--exclude-after), or "". */
const char *job_note_failure(struct job *j, const char *host, uint64_t now_ms);
void job_forget_failures(struct job *j, const char *host);
void drain_text(const struct drain *d, struct buf *out); /* what its agents are told */
void drain_state_line(const struct drain *d, bool begins, struct buf *out);
bool core_load_drain(struct core *c, const void *json); /* false: it is no such line */
void core_drain_lines(const struct core *c, struct buf *out);

/* daemon/rdzv_verdicts.c */
void job_note_verdict(struct job *j, bool charged, uint64_t wall_ms); /* last_verdict, once per round */
const struct ended_round *job_past(const struct job *j, size_t ago);  /* 0: the last; NULL: there is none */
void job_finish_past(struct job *j);

/* daemon/rdzv_addrs.c */
/* Who may reach the round's store: each address of its nodes once, a line each. */
void job_round_addrs(const struct job *j, struct buf *out);

/* daemon/rdzv_recover.c */
void job_recover(struct job *j, int64_t round, uint64_t now_ms); /* enters RECOVERING of that round */
void job_recover_hello(struct job *j, const struct job_event *ev);
void job_recover_finish_if_complete(struct job *j, uint64_t now_ms);
void job_recover_finish(struct job *j, uint64_t now_ms);

/* daemon/core_state.c */
void job_state_line(const struct job *j, struct buf *out);
void core_load_line(struct core *c, const char *line, uint64_t now_ms);

/* daemon/core_hello.c */
void core_hello(struct core *c, const struct core_event *ev);
void core_reports(struct job *j, const char *agent, const struct report *reports, size_t n, uint64_t now_ms);
void core_refuse(struct core *c, uint64_t conn, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* daemon/core_control.c: rdzvctl's verbs */
void core_control(struct core *c, const struct core_event *ev);
bool control_may(const struct core *c, int64_t uid, const struct job *j); /* j NULL: everything */

/* daemon/status.c: what rdzvctl shows */
void status_put_name(struct buf *out, const char *s); /* escaped */
void status_put_duration(struct buf *out, uint64_t ms);
/* All jobs that uid may see, or the one with that id; whole: with nodes and verdicts. The number of jobs. `store` may be NULL. Where *out
 * is longer than STATUS_MAX afterwards there was more to tell than one answer can take, and it is of no use. */
enum { STATUS_MAX = FRAME_MAX_TO_AGENT - 65536 };
size_t status_jobs_text(const struct core *c, int64_t uid, const char *id, bool whole,
                        const struct core_store_facts *store, struct buf *out);
size_t status_jobs_json(const struct core *c, int64_t uid, const char *id,
                        const struct core_store_facts *store, struct buf *out);

/* An incarnation that this daemon has forgotten, or taken for replaced, and the last round of it. */
struct past {
  char incarnation[INCARNATION_MAX + 1];
  int64_t round;
};
enum { PAST_MAX = 256 };

/* daemon/core.c: what a job may ask of the core during a step */
struct core {
  struct core_config config;
  uint64_t rng[2];
  struct map jobs;  /* id -> the live job of that id */
  struct job **all; /* live and ended, in order of creation */
  size_t n_all, cap_all;
  struct map conns;           /* connection -> struct member */
  struct past past[PAST_MAX]; /* a ring */
  size_t n_past;              /* how many there have been */
  struct map drains;          /* host -> its first struct drain */
  size_t n_drains;
  uint64_t join_counter;
  bool served;
  uint64_t now_ms, wall_ms; /* of the event that is being stepped */
  struct core_effects *fx;
  uint32_t coverage[JOB_STATE_COUNT * JOB_EV_COUNT];
};

struct job *core_add_job(struct core *c, const char *id, const char *incarnation, const struct settings *s);
void core_forget(struct core *c, struct job *j);
/* Another daemon may give out rounds of the same life, and no token may be given out twice: the next round is of a life of its own. */
void core_branch(struct core *c, struct job *j);
void core_note_past(struct core *c, const struct job *j);
int64_t core_past_round(const struct core *c, const char *incarnation); /* 0: not known */
bool core_forget_oldest_end(struct core *c); /* to make room; false: no job has ended */
struct job *core_find_incarnation(const struct core *c, const char *id, const char *incarnation);
void core_identified(struct core *c, uint64_t conn, char *name, uint64_t lease_ms); /* takes name */
void core_send(struct core *c, uint64_t conn, const struct msg *m);                 /* conn 0: nothing */
void core_send_bytes(struct core *c, uint64_t conn, struct bytes *b); /* takes a reference of its own */
void core_close(struct core *c, uint64_t conn);
void core_hang_up(struct core *c,
                  uint64_t conn); /* as core_close; whose member it is has its grace to come back */
void core_save(struct core *c, const struct buf *line);
void core_log(struct core *c, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void core_bind(struct core *c, struct member *m,
               uint64_t conn); /* m's connection is conn (0: none); the old one is closed */
uint64_t core_unbind(struct core *c, struct member *m); /* takes m's connection from it, open */
uint64_t core_random(struct core *c);

#endif
