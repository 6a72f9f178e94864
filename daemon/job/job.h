/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_JOB_H
#define DAEMON_JOB_JOB_H

/* One job: its members, its rounds, its end. Pure. daemon/core finds the job that a message belongs to and calls
 * job_event; one table in job.c, state x event, decides. daemon/core uses this header; the files of this folder share
 * internal.h.
 *
 *   job.c                  the table, the states, deadlines
 *   member.c               a node: added, found, removed; the counts of members
 *   seal.c                the nodes of the next round, and their ranks; START
 *   progress.c             how far the members are, and their checkpoints
 *   expected_nodes.c       expected nodes that are missing; WAITING
 *   grow.c                 newcomers while a round runs, and hosts that come and go
 *   prepare.c              a checkpoint before the planned end of a round
 *   end.c                  what ended a round; how the round and the job end
 *   budget.c               restarts used and refunded
 *   repeat.c               a failure that comes again; fingerprint.c: what it looks like
 *   lease.c                leases and grace; lost_node_hold.c: what a lost node may still run
 *   drain.c                hosts that are left out of rounds
 *   check.c                nodes with a check of their own
 *   past.c                 hosts that a job should do without; suspicion.c: why
 *   ids.c                  the round's ncclUniqueIds
 *   pairs.c                exchanges between nodes, to find a bad host or link; pair_plan.c: which, and the verdict
 *   owners.c               whose the connections to the round's store are
 *   in_charge.c            whether this daemon is in charge: a majority that follows it
 *   reboot.c               votes of agents whose machines were booted again
 *   voters.c               who has a vote, and what becomes of it at a seal and at HELLO
 *   claim.c                the name of the next round, which one daemon alone can create
 *   announce.c             events, for --events
 *   rebuild_from_agents.c  a daemon that comes back
 *   health.c               what nodes say about their hardware, and hosts that are odd
 *   pace.c                 ranks for which others wait
 *   goodput.c              what the job's time went to; the account itself: daemon/goodput
 *   state_line.c           the lines of the state file
 *   jobs.c                 all jobs of one daemon, and what they share */

#include "common/map.h"
#include "daemon/goodput/slow_ranks.h"
#include "daemon/job/jobs.h"

struct announcer;
struct round_ids;
struct quorum;
struct claim;
struct goodput_book;
struct job_health;
struct fleet_node;
struct job_pairs;
struct job_slow;

/* A member's phase in the current round. */
enum member_state {
  MEMBER_WAITING,  /* in no round: ready for the next one */
  MEMBER_TOLD,     /* START was sent */
  MEMBER_STARTED,  /* all its workers run */
  MEMBER_FINISHED, /* all its workers are done; final */
  MEMBER_STOPPED,  /* nothing of the round is left there; in no round: until its next HELLO says that it is in none */
  MEMBER_STATE_COUNT,
};

/* Where a daemon that came back has restarts_used and failed_step from: a later one replaces an earlier one. */
enum budget_from {
  BUDGET_OLDER,   /* a node that knows an earlier round */
  BUDGET_START,   /* the state file's seal, or a node that received START */
  BUDGET_SETTLED, /* a node that received SETTLED */
};

/* The end of a round: end.c. */
enum { JOB_PAST_MAX = 16, JOB_FORMERS_MAX = 8 };
struct ended_round {
  struct verdict verdict; /* a copy */
  uint64_t wall_ms, began_wall_ms;
  int64_t nodes;
  bool charged;
};

/* Workers that are behind the others of their node. */
struct laggards {
  uint64_t came_ms; /* when PROGRESS said so */
  size_t n;
  struct laggard v[]; /* the furthest behind first; age_ms as of came_ms */
};

/* What a node's workers report of the current round. */
struct member_progress {
  int64_t step, of; /* last PROGRESS; step -1: no worker has reported one in this round */
  double loss, samples_per_second;
  int64_t since_ms;       /* since when the worker that stands still longest does so, by our clock; perhaps below 0 */
  int64_t resumed, saved; /* the step that it resumed at, and that of its last complete checkpoint; -1: unknown */
  int64_t saving_ms;      /* how long its workers have waited for checkpoints in this round */
  struct laggards *laggards; /* owned; NULL: none lags */
};

/* What decides about a node's part in the next round. */
struct member_next {
  int64_t last_rank;   /* in the last round it was part of; -1: none */
  bool unfit;          /* its last --check failed: it comes last */
  bool leaving;        /* it joins no further round */
  bool absence_noted;  /* because it said that it leaves */
  bool drained;        /* its host is */
  int64_t check_round; /* its --check follows this round and has not ended; 0: none is due: check.c */
  bool spared;         /* in the last seal: taken only if needed to reach min */
  bool votes;          /* in the last seal: the next round needs votes, and it has one */
};

/* Whether its job waits for this node: expected_nodes.c. */
struct member_roster {
  struct expected_host *at; /* NULL: its host is not expected */
  int64_t told_nodes;       /* how many its scheduler started; 0: unknown */
  bool expected;            /* its host is listed, or it is one of as many as are expected; otherwise perhaps a spare */
};

/* Since when its machine is up: reboot.c. */
struct member_boot {
  bool known;    /* HELLO has said it: */
  int64_t at_ms; /* by our clock, and perhaps below 0 */
  int64_t up_ms; /* so long at its last HELLO */
};

/* Which nodes a job expects, which are missing, since when and why: expected_nodes.c alone looks into it. */

/* A host from which nodes are expected: a scheduler lists it, or it has lost nodes since the last round. */
struct expected_host {
  char *name;            /* owned; in its first spelling */
  uint32_t wanted, here; /* how many of its nodes are expected, and could join a round now */
  bool listed;           /* by a scheduler */
  bool drained;          /* no seal waits for it */
  enum absence why;      /* the last event of a node of it */
  uint64_t at_ms;        /* and when */
  char *text;            /* owned; NULL: unknown */
};

struct roster {
  char *list;       /* the last list, as it came; NULL: none */
  unsigned n_lists; /* how many were read */
  struct expected_host **v;
  size_t n, cap;
  struct map names;  /* lower case -> struct expected_host */
  struct map shorts; /* the same without the domain; &ambiguous if several hosts share it */
  size_t n_unlisted;
  int64_t listed_wanted, listed_missing; /* nodes; of the missing, those that a seal waits for */
  int64_t refused_wanted;                /* nodes of listed hosts that were refused, whether they are here or not */
  struct refusal refusals[REFUSALS_MAX]; /* the newest first */
};

struct member {
  struct job *job;
  struct account *account; /* NULL: without limits */
  unsigned n_groups;       /* in the round's EVIDENCE, which this node was the first to name */

  /* From its HELLO. */
  char agent[AGENT_ID_MAX + 1];
  char *host, *role;                  /* owned */
  char command[COMMAND_HASH_MAX + 1]; /* a hash of its words; "": unknown */
  int64_t pid, workers, want_rank, order_key;
  uint64_t joined_no; /* order of joining, for fairness among newcomers */
  bool sole;          /* no other agent of the job lives on its machine */
  bool worker_store;  /* as node rank 0 its agent would not serve the store: a worker does */
  bool wants_ids;     /* in its last HELLO */
  int64_t gpus;       /* the same */
  bool wants_events;  /* the same */
  bool checks;        /* the same */
  uint64_t features;  /* those that its agent knows, in its last HELLO */

  /* Where it is. */
  char local_addr[ADDR_MAX + 1], peer_addr[ADDR_MAX + 1];
  char daemon_addr[ADDR_MAX + 1]; /* our address as it reached us */
  char addr[ADDR_MAX + 1];        /* the address for other nodes, from the seal on */
  char *addrs;                    /* its host's addresses, as last reported, separated by blanks; owned */
  int64_t store_port;             /* where it would serve the next round's store, as last reported; 0: nowhere */

  /* Its connection. */
  uint64_t conn;      /* 0: none */
  uint64_t grace_ms;  /* conn 0: until when it may come back */
  uint64_t heard_ms;  /* last sign of life */
  uint64_t told_news; /* the job's `news` in the last WAITING sent to it */
  bool suspended;     /* in its last HEARTBEAT: a user has suspended its workers */
  bool end_acked;
  uint64_t came_ms; /* its first HELLO to this daemon */
  uint64_t away_ms; /* by GOING_AWAY of a former life its workers may run until then, unless it has read WELCOME; 0 */

  /* Its part in the current round. */
  enum member_state state;
  int64_t node_rank, rank_base; /* -1: in no round */
  int64_t role_rank_base;       /* as rank_base, counted among nodes of its role */
  int64_t last_seq;             /* the highest report seq taken */
  bool knows_round;             /* TOLD: START has reached it, as its HELLO shows */
  bool checkpointed;            /* since the last PREPARE */
  bool has_ids;                 /* RECOVERING: it has the round's NCCL ids */
  bool shut;                    /* FINISHED: its store, if it serves the round's, accepts no new connections */
  bool gone;                    /* lost after it had finished: kept for the count */

  struct {
    bool told; /* to kill its workers before its lease is over: in the last WELCOME, START or HEARTBEAT_ACK */
    bool read; /* it has read that in this round */
  } fence;
  struct member_progress progress;
  struct member_next next;
  struct member_roster roster;
  struct member_boot boot;
  struct member_vote *vote; /* internal.h; owned */
  struct fleet_node *facts; /* what it has said of itself: health.c; NULL: nothing */

  struct { /* the counts that include it: member.c */
    bool available, expected_here, owes_ack, reported, unsaved, gone, suspended, checking;
  } counted;
};

struct job {
  struct jobs *jobs;
  uint64_t serial;             /* of all jobs of this daemon, in order of creation; never 0 */
  int64_t shown_productive_ms; /* the most that /metrics has shown */

  /* Which incarnation of which job of which user. */
  int64_t uid;             /* -1: none, and only root controls it */
  bool own_key;            /* its nodes hold the daemon's own key: they are one user, whatever uids their hosts have */
  struct account *account; /* NULL: without limits */
  char *id;
  char *log_name; /* `id`, or owned: with the uid, once another user has had the id too */
  char incarnation[INCARNATION_MAX + 1];
  char origin[INCARNATION_MAX + 1]; /* in which this run began; the same whoever takes it over */
  char above[INCARNATION_MAX + 1];  /* the next one is later than this: of a run that ended for ours */
  char formers[JOB_FORMERS_MAX][INCARNATION_MAX + 1]; /* those out of which this one was made, the last one first */
  struct settings settings;
  int64_t expected_nodes;
  int64_t past_round; /* rounds up to this one were used before this daemon forgot the job and it came back */
  bool skip_round;    /* the next seal leaves out a number: a round may have been sealed that no node here knows */
  bool renews;        /* the next seal begins a new incarnation */
  bool forgotten;     /* the core frees the job after the step */

  struct member **members;
  size_t n_members, cap_members;
  struct map agents; /* agent id -> member */
  struct map ranks;  /* node rank in the current round -> member */
  struct map wanted; /* --node-rank -> member */

  /* Counts of members: member.c. */
  size_t n_connected;
  size_t n_gone;
  size_t n_available;     /* could join a round that is sealed now */
  size_t n_expected_here; /* available and expected */
  size_t n_owing;         /* have not acknowledged the end, and still may */
  size_t n_reported;      /* RECOVERING: have reported their state; includes those that know the round as settled */
  size_t n_suspended;     /* connected, and a user has suspended their workers */
  size_t n_checking;      /* connected, and their --check runs */
  size_t n_unsaved;       /* run, and have not reported `checkpointed` */
  size_t n_in_state[MEMBER_STATE_COUNT];
  int64_t n_workers; /* of all members: at most WORLD_MAX */

  bool some_need_not_fence; /* a node got FENCE off since job_tell_fence looked at all of them */
  bool all_fence;           /* each node of the round must fence, and knows it */
  size_t n_fencing;         /* that have shown that they do */
  bool base_fences;         /* so does each node of the base; a daemon that knows no more waits only for their leases */

  int64_t term; /* counts the daemons that were in charge of this job; 1: the first */

  /* The state, and what it waits for. Only job_enter writes `state`. */
  enum job_state state;
  uint64_t state_ms;      /* when it was entered */
  uint64_t forming_ms;    /* since when the join timeout counts */
  uint64_t enough_ms;     /* FORMING: since when min nodes are here; 0: they are not */
  uint64_t came_ms;       /* FORMING: when the last node came */
  uint64_t not_before_ms; /* FORMING: the delay after short rounds */
  uint64_t leave_ms;      /* FORMING: after one node left, others may leave until then */
  uint64_t grow_ms;       /* RUNNING: when the round is ended for newcomers; UINT64_MAX: there are none */
  uint64_t prepare_ms;    /* CHECKPOINTING: its end */
  uint64_t recover_ms;    /* RECOVERING: its end */
  uint64_t deaf_ms;       /* RUNNING: since when no node has been heard; 0: one was heard */
  uint64_t scan_ms;       /* no lease and no grace expires before */
  uint64_t any_ms,        /* when any member was last heard, or a connection of one closed */
      forgiven_ms;        /* our loop was late, or we came back: until then a closed connection loses no node */
  uint64_t line_wall_ms;  /* when that happened which the job's line in the state file says */

  /* RECOVERING: the known facts about the round. */
  bool settled;                 /* a node knows its verdict */
  bool exact;                   /* it is from the state file: no later round was sealed */
  bool stopping_seen;           /* a node got STOP */
  bool told_held;               /* a node says that another one may still run workers of an earlier round */
  uint64_t away_ms;             /* by GOING_AWAY nodes that are missing may run until then */
  struct map accounted;         /* its node ranks whose node has come, now or since, or is dead */
  int64_t told_ids;             /* how many NCCL ids it has */
  char told_head[HOST_MAX + 1]; /* the host of its node rank 0; "": unknown */
  enum budget_from budget_from; /* where restarts_used and failed_step are from */

  /* The expected nodes, and the facts for WAITING: expected_nodes.c, seal.c. */
  struct roster roster;
  uint64_t news;      /* counts changes of what WAITING would say */
  uint64_t notice_ms; /* when WAITING is sent next; UINT64_MAX: not now */
  uint64_t last_notice_ms;

  /* Hosts and agents that are held back. */
  struct map flaps;             /* host -> when it was lost: grow.c */
  size_t flaps_sweep_at;        /* as holds_sweep_at */
  struct map holds;             /* agent id -> when all that it still runs has stopped: lost_node_hold.c */
  uint64_t hold_ms;             /* when the last hold expires; 0: there is none */
  size_t n_last_holds;          /* how many expire then */
  size_t holds_sweep_at;        /* expired holds are removed when there are this many */
  struct map failures;          /* host -> charged failures there, as intptr_t: drain.c */
  struct {                      /* exit code 16: past.c */
    char host[HOST_MAX + 1];    /* of the first worker of the round that asked for another host; "": none */
    bool many;                  /* so did workers of other hosts */
    char avoided[HOST_MAX + 1]; /* the one that the last such round wants to do without; "": none */
    bool rotates;               /* node ranks move on by one at the next seal */
  } asked;

  /* The current or last round. */
  int64_t round, round_nodes, world_size;
  struct map role_sizes; /* role -> its workers, as intptr_t */
  int64_t store_port;    /* of the round's store at node rank 0, as it was at the seal */
  uint64_t round_ms;     /* START */
  bool age_unknown;      /* a daemon that came back does not know how old it is */
  bool drilled;          /* rdzvctl kill-worker has killed a worker of it */
  bool void_round;
  struct verdict cause; /* the weightiest so far; a copy */
  uint64_t cause_ms;
  int64_t worker_deaths;
  struct hang_evidence *evidence; /* of its nodes; NULL: there is none: evidence.c */
  struct round_ids *ids;          /* NULL: it has none: ids.c */
  struct quorum *quorum;          /* who lets this daemon decide: in_charge.c */
  struct claim *claim;            /* of the next round: claim.c; NULL: none was ever tried */
  struct goodput_book *goodput;   /* goodput.c */
  struct job_slow *slow;          /* pace.c; NULL: no worker has reported its collectives in this round */
  struct announcer *announcer;    /* announce.c; NULL: nobody wants events */
  struct job_health *health;      /* health.c; NULL: no node has said facts */
  struct job_pairs *pairs;        /* the last pair check: pairs.c; NULL: there was none */
  struct {
    bool due;         /* a pair check, before the next round begins, */
    bool must_return; /* if this agent is there */
    char host[HOST_MAX + 1];
  } suspect; /* the last fault that points to the network */

  /* Rounds that are settled. */
  struct verdict last_verdict; /* a copy */
  bool last_charged, last_refilled, last_repeat;
  char last_excluded[HOST_MAX + 1]; /* the host that the last one excluded; "": none */
  bool faulted;                     /* there was such a round: no last call */
  struct ended_round *past;         /* a ring of JOB_PAST_MAX: end.c */
  size_t n_past;                    /* ever */

  /* The budget: budget.c. */
  int64_t restarts_used;
  int64_t failed_step;              /* the furthest step of any charged round; -1: unknown */
  struct failure_mark last_failure; /* of those that can be repeated: repeat.c */
  uint64_t refilled_wall_ms;        /* when restarts were last refunded; 0: never */
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
  bool again;                  /* JOIN, RESUME: on the same connection, so nothing that was sent is lost */
  const struct report *report; /* STARTED .. CHECKPOINTED */
  uint64_t at_ms;              /* when it happened, according to the sender */
  bool dead;                   /* LOST: certainly nothing of it runs */
  const char *text;            /* LOST, OPERATOR: why */
};

/* Expected nodes. */
void job_init_roster(struct job *j);
void job_finish_roster(struct job *j);
void job_expect_nodes(struct job *j, int64_t n); /* more than before */
/* A node's list of hosts, compressed; j->expected_nodes is known. */
void job_expect_hosts(struct job *j, const char *list);
void job_watch_drains(struct job *j); /* drains have changed, and members are flagged */

bool job_all_expected_are_here(const struct job *j, size_t here);
/* Nodes that are not expected are here, listed ones are still to come, and there is room for them. */
bool job_others_hold_places(const struct job *j);

void member_find_expected_host(struct member *m); /* of a new member */
/* For member.c: m could join a round now, or no longer. */
void member_count_at_host(struct member *m, bool here);
/* m will not come back by itself: for its host's line among the missing. */
void member_note_absence(struct member *m, enum absence why, const char *text, uint64_t at_ms);
void job_forget_absences(struct job *j);                  /* a round is sealed */
void job_forget_refusal(struct job *j, const char *host); /* a node of it has joined */

void job_recall_refusals(struct job *j); /* a new one: those that came before it */

/* A peer with another key than the daemon's came from addr. host: the listed host that has this address; "": none. */
void job_note_turned_away(struct job *j, const char *host, const char *addr, uint64_t now_ms);
/* Appends the next listed host that may be such a peer's, with a NUL. *at: 0 at first. False: there are no more. */
bool job_next_missing_host(const struct job *j, size_t *at, struct buf *out);
/* When the job gives up because no node can come that it needs; UINT64_MAX: one may. */
uint64_t job_hopeless_ms(const struct job *j);

/* While a round forms: how many nodes are expected, or needed, and not here. */
int64_t job_missing_nodes(const struct job *j);
/* Another job of the same user that has never run and waits for as many nodes; NULL: none. */
struct job *job_find_twin(const struct job *j);

/* The part of WAITING that says who is here and who is missing. missing_finish frees what it points into. */
struct missing {
  struct waiting *w;
  struct absent absent[ABSENT_MAX];
  struct turned_away refusals[REFUSALS_MAX];
  struct buf hosts, drained_by, held, groups[ABSENT_MAX];
};
/* names: with who is missing, which looks at all nodes. */
void missing_fill(struct missing *k, const struct job *j, struct waiting *w, bool names, uint64_t now_ms);
void missing_finish(struct missing *k);

/* The table. */
void job_event(struct job *j, const struct job_event *ev);
void job_tick(struct job *j, uint64_t now_ms, uint64_t lag_ms);
uint64_t job_deadline(const struct job *j);
bool job_is_over(const struct job *j);       /* ENDING or ENDED */
bool job_round_goes_on(const struct job *j); /* STARTING, RUNNING or CHECKPOINTING */
/* FENCE for m: a round could form without it, now or when all that may still come back are back. Remembers the last
 * value sent to m. */
bool member_tell_fence(struct member *m);
/* A node came. If a round could form without them now, it tells so to the nodes of the round that were told not to
 * fence. */
void job_tell_fence(struct job *j);

/* Members. Setters keep the counts: no other code writes these fields. */
struct member *job_add_member(struct job *j, const struct hello *h, uint64_t now_ms);
void member_set_account(struct member *m, struct account *a);
void job_set_account(struct job *j, struct account *a);
struct member *job_find_agent(const struct job *j, const char *agent);
struct member *job_find_rank(const struct job *j, int64_t rank);
struct member *job_find_wanted(const struct job *j, int64_t want_rank); /* the member that asked for this node rank */
bool member_in_round(const struct member *m);
void member_set_state(struct member *m, enum member_state to);
void member_set_conn(struct member *m, uint64_t conn); /* only for jobs_bind and jobs_unbind */
void member_set_gone(struct member *m, bool gone);
void member_set_suspended(struct member *m, bool suspended);
void member_keep_rank(struct member *m, int64_t rank);
void member_set_addrs(struct member *m, const char *addrs);
/* m is a newcomer of a host that was lost too often: until when it waits; 0: it need not. */
uint64_t member_flapping_until(const struct member *m, uint64_t now_ms);

/* Taken only if a round needs it: such a newcomer, or a host that the job avoids. */
bool member_is_spared(const struct member *m, uint64_t now_ms);
bool job_avoids(const struct job *j, const char *host);
/* Forgets failures of that user's jobs there, or those of all users. Returns how many runs that were. */
size_t jobs_clear_past(struct jobs *jobs, const char *host, int64_t uid, bool all);
void job_note_check(struct job *j, struct member *m, const struct hello *h, bool joins); /* HELLO, before the table */

/* Leases. */
void member_heard(struct member *m, uint64_t now_ms);              /* a message came */
void job_closed(struct job *j, struct member *m, uint64_t now_ms); /* its connection is gone; its grace begins */
void job_away(struct job *j, struct member *m, uint64_t now_ms);   /* the same, of a member that was unbound already */
/* Progress. */
void member_note_progress(struct member *m, const struct progress *p, uint64_t now_ms); /* if it is of this round */
void member_clear_progress(struct member *m);                                           /* another round begins */
void member_note_pace(struct member *m, const struct rank_paces *p, uint64_t now_ms);   /* the same */
/* Since the step rose of the worker for which that is longest ago; UINT64_MAX: none has reported a step. */
uint64_t member_progress_age_ms(const struct member *m, uint64_t now_ms);
/* The same of one worker, as far as it is known: a laggard has its own age. */
uint64_t member_worker_age_ms(const struct member *m, int64_t local_rank, uint64_t now_ms);
/* What the nodes of the round have reported; -1: nothing. */
struct job_steps {
  int64_t least, most; /* the step of the node that is furthest behind, and of the one that is furthest ahead */
  int64_t saved;       /* the last checkpoint that all nodes which write some have */
  int64_t resumed;     /* the workers resumed there */
};
struct job_steps job_steps(const struct job *j);
/* Holds: no round is sealed before the workers of a lost node have been killed. */
void job_hold_member(struct job *j, const struct member *m);
void job_hold_stale(struct job *j,
                    const struct hello *h); /* its round is over, and it has not killed its workers yet */
void job_hold_agent(struct job *j, const char *agent, const char *host, uint64_t until_ms); /* "": not known */
/* Nodes of a run that began later have ended it for this one. Its workers have used its tokens, and tokens only go up: so
 * the next round belongs to an incarnation that is later than both. */
void job_end_run(struct job *j, const char *incarnation);
void job_note_return(struct job *j, const struct hello *h); /* of a node of the recovered round */
void job_drop_hold(struct job *j, const char *agent);
void job_drop_holds_before_boot(struct job *j, const struct member *m); /* its machine was booted since */
void job_copy_holds(struct job *j, const struct job *from);
/* An operator says that nothing of the job runs on that host; "": on none of those that are held. How many nodes count as
 * dead now. */
size_t job_confirm_dead(struct job *j, const char *host);
void member_note_fence(struct member *m); /* it has read FENCE in this round */

/* Rounds. */
/* retire: the node gives up its vote, too. */
void job_send_stale(const struct job *j, uint64_t conn, bool retire, const char *why);
void job_send_waiting(struct job *j, struct member *m, uint64_t now_ms);
void job_note_refusal(struct job *j, const char *host, const char *text, uint64_t now_ms);
/* MINTED carries as many bytes as it says. */
bool minted_is_sound(const struct msg *m);
void job_ids_minted(struct job *j, struct member *m, const struct msg *msg, uint64_t now_ms);
/* ASK_OWNERS of node rank 0, and FOUND_OWNERS of the nodes. */
void job_ask_owners(struct job *j, struct member *m, const struct ask_owners *ask);
void job_found_owners(struct job *j, struct member *m, const struct found_owners *found);
void job_take_evidence(struct job *j, struct member *m, const struct evidence *e); /* EVIDENCE */
/* The daemon's word to m, and m's to the daemon: in_charge.c. */
/* HELLO, before WELCOME. again: on the connection of an earlier one. */
void member_note_vote(struct member *m, const struct hello *h, bool again, uint64_t now_ms);
/* A heartbeat, which is answered now; its agent has read the answer to the one that came `behind` before; 0: unknown. */
void member_beat(struct member *m, uint32_t id, unsigned behind, uint64_t now_ms);
void member_knows_round(struct member *m);                     /* a message of it names the current round */
void job_agent_is_dead(struct job *j, const char *agent);      /* surely: it follows nobody */
uint16_t job_ack_number(const struct job *j, uint64_t now_ms); /* HEARTBEAT_ACK's */
void job_seal_if_ready(struct job *j, uint64_t now_ms);        /* FORMING: a vote came */
void job_claimed(struct job *j, enum claim_answer answer, const char *text, uint64_t now_ms); /* CORE_CLAIMED */
uint64_t job_claim_serial(const struct job *j);                                               /* that is out; 0: none */
/* Before its first round: it has the name of the job, or may have it. surely: it has. */
bool job_claims_run(const struct job *j, bool surely);
void job_claim_give_up(struct job *j);      /* before its first round: its incarnation is not gone on with */
bool job_claim_confirm_dead(struct job *j); /* the run that it waits for is. False: it waits for none */
bool job_is_former(const struct job *j, const char *incarnation);
void job_recover(struct job *j, int64_t round, uint64_t now_ms); /* enters RECOVERING of that round */
/* GOING_AWAY: until then this daemon, and the next one at its state file, begin no round while a node is missing. Saved;
 * 0: no promise can be made. */
int64_t job_promise_away(struct job *j, uint64_t now_ms);
void job_recover_finish_if_complete(struct job *j, uint64_t now_ms);

/* Pairs. */
void job_paired(struct job *j, const struct member *m, const struct msg *msg, uint64_t now_ms); /* PAIRED */
/* Begins a survey of all hosts, or finds one. Returns its serial; 0: there are no two nodes; -1: the job's own check goes on. */
int64_t job_pairs_survey(struct job *j, uint64_t now_ms);
enum pairs_progress { PAIRS_GO_ON, PAIRS_ARE_DONE, PAIRS_REPLACED /* by another check */ };
enum pairs_progress job_pairs_progress(const struct job *j, int64_t serial);
void *job_pairs_json(const struct job *j);           /* PAIRS_ARE_DONE; a json_t, the caller's */
const char *job_pairs_sentence(const struct job *j); /* of the last check; "": there was none */

/* Events. */
void job_announce_hello(struct job *j, const struct member *m, bool joins); /* WELCOME is out */
void job_announce_progress(const struct member *m);                         /* PROGRESS came */
/* A line for people, on all agents of the job, in this daemon's log, and as an event. No full stop. */
void job_notice(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* For people. */
/* The slow ranks, in order. job_slow_ranks may return NULL if there are none. */
const struct slow_rank *job_slow_ranks(const struct job *j, size_t *n);
int job_slow_permille(const struct job *j); /* of the time: what the slowest costs; 0: none is slow */
void job_slow_sentence(const struct job *j, const struct slow_rank *r, struct buf *out); /* of its host if all are */
bool job_slow_is_of_host(const struct job *j, const struct slow_rank *v,
                         size_t i);                        /* an earlier one has that sentence */
bool job_has_earned(const struct job *j, uint64_t now_ms); /* at the end of this round the restarts are refunded */
const struct ended_round *job_past(const struct job *j, size_t ago); /* 0: the last; NULL: there is none */
void job_budget_text(const struct job *j, uint64_t now_ms, struct buf *out);
void job_ids_text(const struct job *j, struct buf *out); /* a line, or nothing */
/* While a round forms: the missing nodes, as in WAITING, with the sentence for people. The json_t is the caller's. */
void *job_missing_json(const struct job *j, uint64_t now_ms);
/* That sentence. failed: the one for when the join timeout has passed. */
void job_missing_text(const struct job *j, bool failed, uint64_t now_ms, struct buf *out);

/* Drained hosts: their nodes are left out of rounds. The jobs of a daemon share one list (struct jobs); a job asks it, and
 * each member carries a flag. */
struct drain {
  char *host, *by;                       /* by: for people, "root"; both owned by the list */
  int64_t uid;                           /* it holds for this user's jobs; -1 without an incarnation: for all */
  char incarnation[INCARNATION_MAX + 1]; /* it holds for this incarnation of that user's job alone; "": for each */
  uint64_t wall_ms;
  bool force; /* it ends rounds even if the job cannot go on */
  struct drain *next;
};

/* The list. */
const struct drain *jobs_first_drain(const struct jobs *jobs, const char *host); /* of its chain; NULL: none */
size_t jobs_drains_of(const struct jobs *jobs, int64_t uid); /* how many drains of this user there are */
/* Adds a copy of `like`, saves it, and ends or forms rounds accordingly. If it is in the list already, only its
 * force can change. false: the list is full. */
bool jobs_drain(struct jobs *jobs, const struct drain *like, uint64_t now_ms);
/* Removes the host's drains that have the uid and the incarnation of `like`; NULL: all of them. Returns how many. */
size_t jobs_undrain(struct jobs *jobs, const char *host, const struct drain *like, uint64_t now_ms);
/* Of an incarnation that is gone; saves nothing. */
void jobs_drop_drains(struct jobs *jobs, int64_t uid, const char *incarnation);
void jobs_finish_drains(struct jobs *jobs);
void jobs_drain_lines(const struct jobs *jobs, struct buf *out); /* for the state file */
bool jobs_load_drain(struct jobs *jobs, const void *json);       /* a json_t; false: the line is invalid */
void drain_text(const struct drain *d, struct buf *out);         /* for its agents */

/* A job's part. */
bool drain_holds(const struct drain *d, const struct job *j);
const struct drain *job_drain_of(const struct job *j, const char *host); /* one that holds; NULL: none */
/* STARTING, RUNNING: ends the round if a node of it is drained and the round may be ended for that. */
void job_end_for_drains(struct job *j, uint64_t now_ms);
bool job_is_ended_for_drains(const struct job *j);               /* or would be, if it were not being ended already */
void job_move_drains(struct job *j);                             /* from its former incarnation to this one */
size_t job_nodes_without(const struct job *j, const char *host); /* that could join */
bool job_could_go_on_without(const struct job *j, const char *host);
bool job_works_on(const struct job *j, const char *host); /* workers of the round run there, or are being started */
bool job_has_finished_ones(const struct job *j); /* nodes of the round have finished, and are not to start again */

/* Drains the host for this incarnation, as rdzvctl drain does. False: the job cannot go on without it, or there are too many
 * drains. */
bool job_exclude(struct job *j, const char *host, const char *by);
/* --exclude-after: counts a charged failure on the host. Returns the host if it is excluded now, otherwise "". */
const char *job_note_failure(struct job *j, const char *host, uint64_t now_ms);

/* Whether this daemon may still decide for a job, now that another one can take it over. The nodes of the last sealed round
 * are its voters. Each of them follows one daemon at a time, and says so with its heartbeats. While a majority of them
 * follows one, no other daemon has one. PROTOCOL.md 9 has the rules and their proof. */
/* Another daemon could take the last sealed round over. Otherwise nobody is asked, and the daemon is always in charge. */
bool job_can_be_succeeded(const struct job *j);
/* How old the majority's word is, 0 .. the lease. The lease: this daemon is not in charge. Looks again at most every
 * 20th of a lease. */
uint64_t job_age_ms(const struct job *j, uint64_t now_ms);
bool job_in_charge(const struct job *j, uint64_t now_ms); /* that word is younger than half a lease */
/* Enough nodes of the round before know this one: no daemon can pass it over. */
bool job_is_firm(const struct job *j);
/* The current round was made out of that one, or of a later one. */
bool job_has_passed(const struct job *j, const char *incarnation, int64_t round);
/* How many nodes of the last sealed round are missing here for the next seal; 0: enough are here. */
size_t job_lacks(const struct job *j);
/* The agents that take over if this daemon is lost, in their order. Strings borrow from members. Returns how many. */
size_t job_successors(const struct job *j, struct successor out[SUCCESSORS_MAX]);

#endif
