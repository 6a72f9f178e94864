/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SUPERVISOR_INTERNAL_H
#define AGENT_SUPERVISOR_INTERNAL_H

/* The members of the mind. Each concern has a struct; the comment above it names the file that writes it. */

#include "agent/supervisor/supervisor.h"
#include "common/buf.h"

enum connection_state {
  CONNECTION_DOWN,       /* waiting for retry_ms */
  CONNECTION_CONNECTING, /* SUP_CONNECT is out */
  CONNECTION_GREETING,   /* connected: GREETING or WELCOME is to come */
  CONNECTION_READY,      /* welcomed */
};

/* Why the trees of this node are being killed. */
enum stop_reason {
  STOP_NONE,
  STOP_ROUND,   /* the round is over: the daemon says so, or a worker here failed */
  STOP_FENCED,  /* silence past the lease, and a round could form without us */
  STOP_STALE,   /* the round went on without us */
  STOP_LEAVING, /* a signal came */
  STOP_EXIT,    /* the exit code is decided: refused, or the job has ended */
};

enum {
  HEARTBEATS_KEPT = 16,
  WARN_EVERY_MS = 30000,
  LEADS = 8, /* 500 ms apart or more: they go back further than a laggard may be behind */
  TARGETS_MAX = 2 + SUCCESSORS_MAX + DAEMONS_MAX,
};

struct worker {
  int pid;                    /* 0: not spawned */
  bool spawned, exited, gone; /* exited: and it counts; gone: counted or not */
  bool finished;              /* exited, with code 0 */
  uint64_t step, of;
  double loss, samples_per_second;
  bool reports_progress;
  uint64_t stepped_ms;                    /* when its step rose last, or began anew; 0: it has reported none */
  bool resumes, saves;                    /* it has said where it resumed; that a checkpoint is complete: */
  uint64_t resumed_step;                  /* there */
  uint64_t saved_step;                    /* the last one */
  uint64_t saving_ms;                     /* how long it has waited for checkpoints in this round, */
  uint64_t saving_since_ms;               /* and since when it does so now; 0: it does not */
  char device[DEVICE_MAX + 1];            /* "": not known */
  uint64_t begun_ms, sign_ms[SIGN_COUNT]; /* 0: there was none */
  char ps[2], where[48];                  /* as a probe found it: state, place in the kernel; "" */
  bool can_rejoin;
  bool parked;   /* it has left its round and waits for the next; it lives, and counts as stopped */
  bool adopting; /* it goes on in this round, and SPAWNED has not come yet */
  bool can_checkpoint;
  uint32_t checkpoint; /* the last request that it has answered, */
  uint64_t checkpoint_step;
};

/* The connection to the daemon: connection.c. */
struct daemon_link {
  enum connection_state state;
  bool welcomed;              /* ever */
  bool loss_reported;         /* a line has reported the loss */
  bool other_program_met;     /* the last attempt met a program that has not welcomed us */
  uint64_t unknown_ms;        /* since when the endpoint's name has not existed; UINT64_MAX: it may exist */
  uint64_t other_protocol_ms; /* since when the endpoint has spoken another protocol; UINT64_MAX: it has not */
  bool other_program_named;   /* SUP_OTHER_PROGRAM came on this connection: down_text names the program */
  bool short_lived;           /* the last connection that was welcomed was gone within SUPERVISOR_RETRY_MAX_MS */
  bool moved;                 /* to a daemon at another address that has not shown yet that it knows our round */
  uint64_t retry_ms, retry_delay_ms;
  uint64_t greeting_ms; /* when GREETING ends */
  uint64_t ready_ms;    /* when this connection was welcomed */
  uint64_t lost_ms;     /* since when there is no daemon */
  uint64_t warned_ms;   /* when the last LINK_DOWN was printed; 0: it was not */
  uint64_t hello_ms;    /* when the last HELLO was sent */
  int64_t hello_seq;    /* the last report in it */
  bool hello_sent;      /* on this connection */
  uint32_t n_fatal;     /* attempts in a row that trying again cannot mend */
  char *down_text;      /* why there is no daemon; NULL: there is one */
};

/* Signs of life: connection.c. */
struct signs_of_life {
  uint64_t next_ms;
  uint32_t seq;
  uint32_t read; /* the latest whose answer was read on this connection; 0: none */
  uint64_t sent_ms[HEARTBEATS_KEPT];
  uint64_t acked_ms;    /* when the last one was sent whose answer counts for the fence */
  uint64_t answered_ms; /* the same, and any answer counts */
  uint64_t led_ms;      /* the same, of a daemon that is in charge of the job */
  bool suspended;       /* a user has suspended the workers here */
  bool any_suspended;   /* the same on any node, as the daemon last reported */
};

/* Fencing, when they are not answered: fence.c. */
struct fence {
  bool required;      /* a round could form without this node */
  uint64_t until_ms;  /* the workers here may run until then if that is so */
  uint64_t away_ms;   /* until then no daemon begins a round: GOING_AWAY; 0: none has said so */
  bool unproven;      /* the daemon does not know yet that FENCE was read */
  bool all;           /* the same holds for each node of the round: START, or FRAME_FLAG_ALL_FENCE */
  bool since_welcome; /* fenced, and not welcomed since */
  uint64_t guard_ms;  /* the guard's deadline; UINT64_MAX: none */
  bool killed;        /* the round's trees were killed for silence, even if other reasons came too */
};

/* The current or last round: round.c. */
struct current_round {
  char incarnation[INCARNATION_MAX + 1];
  int64_t number;
  int64_t stayed; /* workers of this node that went on in it */
  int64_t latest; /* that the daemon has named: not below `number` */
  int64_t node_rank, nodes, rank_base, world_size, restarts_used, failed_step;
  struct failure_mark last_failure; /* as START or SETTLED reported it */
  bool held;                        /* a node that the round lost may still run workers: SETTLED */
  int64_t n_spawned, n_succeeded;
  uint64_t early_ms; /* when the ranks that have finished before the others are named; UINT64_MAX: none, or they were */
  char *interpreter; /* of a worker that failed in it; NULL: not known */
};

struct own_report {
  struct report report; /* `what` is a copy */
  uint64_t at_ms;
};

/* The reports of the round, until it is settled: round.c. */
struct reports {
  struct own_report v[REPORTS_MAX];
  size_t n;
  int64_t last_seq;
};

/* The round's end on this node: round.c. */
struct stopping {
  enum stop_reason reason;
  uint64_t begun_ms; /* when the trees were told to stop */
  uint64_t kill_ms;  /* when they are killed, at the latest */
  uint64_t line_ms;  /* when the next line names those that have not stopped yet; UINT64_MAX: none is due */
};

/* The store of the next round, and of this one: round.c. */
struct store_service {
  int64_t port;      /* the driver has it ready for our next round as node rank 0; 0: none */
  int64_t told_port; /* the port that the daemon knows */
  bool serving;      /* this is node rank 0 of a round that is not known to be over */
  bool shut;         /* FINISHED: it was closed to newcomers, and that was reported */
};

/* The node's own check: check.c. */
struct node_check {
  bool runs;
  int64_t round;              /* the last one followed it; 0: it came before the first */
  int64_t checked;            /* of the last that has ended */
  bool unchecked;             /* that one could not run */
  char unfit[REASON_MAX + 1]; /* why that one failed; "": it passed, or could not run */
  uint64_t tell_by_ms;        /* the first one failed: until then a daemon is looked for; UINT64_MAX: it has not */
};

/* The agent's own end: end.c. */
struct leaving {
  int signals, signo; /* how many came; the first */
  bool by_clock;      /* that was not a signal: the agent's time is over */
  int exit_code;
  uint64_t kill_ms;     /* when the workers are killed in any case */
  uint64_t deadline_ms; /* when the agent exits at the latest; UINT64_MAX: it is not leaving */
};

/* The job, as this agent has seen it. */
struct job_seen {
  uint64_t begun_ms; /* SUP_BEGIN */
  int64_t rounds;    /* that began here */
  bool ended;        /* END came: */
  enum outcome outcome;
  int64_t end_round, repeats;
};

/* A hang that is looked for, or probed: hang_decision.c. */
struct hang {
  uint64_t look_ms;     /* the next one; looking: until when it is waited for. UINT64_MAX: none */
  uint64_t looked_ms;   /* the last one */
  uint64_t probed_ms;   /* when the probe began */
  uint64_t stop_by_ms;  /* probing, and then the trees are stopped at the latest; UINT64_MAX: not probing */
  bool looking, ours;   /* ours: a worker here hangs; else STOP names another node's */
  bool unanswered;      /* the last look was not answered */
  bool reported;        /* the findings of the probe are reported */
  bool again, done;     /* its answer was late: looked once more before it is believed; it has shown all since */
  struct verdict heard; /* of another node, by STOP; a copy */
  uint64_t heard_ms;    /* when that one's silence began */
  struct verdict dead;  /* of a worker here that gave up a collective, until it is reported; a copy. Cause none: none */
  uint64_t dead_ms;
  struct evidence evidence; /* its strings and list are owned */
  char *text;               /* for the verdict; NULL: none */
  struct local_set awaited;
};

/* Workers that stay for the next round: park.c. */
struct park {
  /* STOPPING */
  struct local_set keep; /* the workers that the guard does not stop */
  bool clear;            /* all others are gone */
  uint64_t by_ms;        /* when the kept ones that have not parked are stopped; UINT64_MAX: all have parked */

  /* The first worker that parked unasked in this round. */
  uint64_t first_ms; /* when; 0: none has */
  uint32_t first;    /* its local rank */
  char reason[256];

  /* Between rounds: parked workers are dismissed. */
  bool dismissing;
  bool hurried;        /* with SIGKILL */
  int64_t clear_round; /* the round of the CLEAR that is to come; then: */
  bool exiting;        /* SUP_EXIT follows, */
  const char *bye;     /* with this BYE; NULL: none */
  struct start *start; /* or the workers of a START that came meanwhile are spawned; NULL: none */
  struct bytes *guests;
};

struct minting { /* ids first .. first + count - 1, by a helper of ours */
  int64_t first, count, version;
  uint32_t number;
  uint64_t by_ms;
  struct bytes *ids; /* NULL: not yet */
};

/* The round's NCCL ids: ids.c. */
struct ids_of_round {
  int64_t n, version; /* 0: it has none */
  struct bytes *all;  /* NULL: IDS has not come */
  bool none;          /* IDS has said that there will be none */
  struct minting v[NCCL_IDS_MAX];
  size_t n_minting;
  uint32_t last_number; /* of a helper, ever */
  bool spawned;         /* SUP_SPAWN is out: helpers find the environment of its workers */
};

/* The nodes, or the daemon, that are missing: forming.c. */
struct forming {
  struct bytes *waiting;           /* the last WAITING; NULL: nothing is waited for, as far as is known */
  uint64_t waiting_ms;             /* when it came */
  uint64_t first_ms;               /* when the first line is due */
  uint64_t redraw_ms;              /* when the living line is due */
  uint64_t line_ms;                /* when the last line was printed; 0: none was */
  int64_t line_here, line_missing; /* its numbers */
  bool line_enough, line_twin;
  bool warned;       /* that other machines cannot reach the daemon */
  bool enough;       /* nobody else is needed: the daemon waits for votes, or for a claim */
  bool news;         /* something has changed since */
  bool drawn;        /* there is a living line */
  uint64_t lacks_ms; /* since when nodes of the last round are lacking; UINT64_MAX: none */
};

struct lead {
  uint64_t step, at_ms;
};

/* How far the workers are: progress.c. */
struct progress_state {
  uint64_t sent_ms; /* the last PROGRESS; 0: none */
  bool news;
  bool saving;          /* in it a worker waited for a checkpoint */
  bool any_reported;    /* a worker here has ever reported progress or a checkpoint */
  struct lead lead;     /* the highest step of a worker, and since when */
  struct lead v[LEADS]; /* earlier ones, the newest first */
  size_t n;
  struct local_set laggards; /* in the last PROGRESS */
  uint64_t lag_ms;           /* when another worker may be one; UINT64_MAX: not without news */
};

struct kept_pace {
  struct rank_pace pace;
  bool news; /* since the last PACE */
};

/* How long the workers are in collectives: pace.c. */
struct pace_state {
  struct kept_pace *v;
  size_t n, cap;
  bool news;
  uint64_t sent_ms;
};

/* The checkpoint before a planned end: prepare.c. */
struct checkpoints {
  bool prepared;         /* PREPARE came for the round */
  uint32_t n_requests;   /* in this round */
  bool pending;          /* the last one is not answered yet */
  uint64_t requested_ms; /* when it was sent */
  uint64_t leave_ms;     /* leaving: the answer is waited for until then; UINT64_MAX: it is not */
};

/* Verdicts for the user, each a copy: user_log.c. */
struct verdicts {
  struct verdict shown;   /* last */
  struct verdict last;    /* that came */
  struct verdict pending; /* the first of the round, not shown yet */
  uint64_t show_ms;       /* when it is shown, if SETTLED has not come; UINT64_MAX: there is none */
  bool command_warned;    /* a line has warned that another node runs another command */
};

/* What the job's time went to: round.c. */
struct job_account {
  struct goodput last; /* all 0: none has come; its text is waited_for */
  char waited_for[HOSTS_SHOWN_MAX + 1];
  uint64_t came_ms;   /* or when this agent was welcomed to the job */
  int64_t first_step; /* of the current round; -1: none was reported here */
  uint64_t first_step_ms;
};

/* Why the daemon in charge was left. */
enum parting { PARTING_SILENCE, PARTING_WEAK, PARTING_MOVED };

/* Which daemon is followed: follow_daemon.c. */
struct following {
  char follows[DAEMON_ID_MAX + 1]; /* the daemon that welcomed this agent last; "": none */
  uint64_t heard_ms;               /* when its last message was read */
  uint64_t awake_ms;               /* when this agent could run again after a pause of its own */
  int64_t term;                    /* the highest */
  uint64_t weak_ms;                /* since when the daemon is connected and not in charge; UINT64_MAX: it is */
  uint64_t search_ms;              /* since when it looks for a daemon; UINT64_MAX: it does not */
  uint64_t settled_ms;             /* since when this one is in charge */
  size_t left;                     /* the order of the last daemon that was left because it was weak */
  unsigned laps;                   /* how often this agent went round; at this place its patience is 2^stays as long */
  unsigned turns;                  /* from weak daemons, since one was in charge */
  unsigned stays;
  bool alone;       /* no other place has answered when it went round */
  uint64_t look_ms; /* when to look at earlier addresses; UINT64_MAX: never */
  unsigned moves;   /* MOVED in a row */
  /* The last daemon that was in charge, for the line about the next one. */
  char charge[DAEMON_ID_MAX + 1];
  char *charge_host;
  uint64_t charge_heard_ms;
  enum parting parting;
};

struct target {
  enum connect_to to;
  uint32_t endpoint;       /* CONNECT_ENDPOINT */
  char addr[ADDR_MAX + 1]; /* numeric; "": not known */
  uint32_t port;
  char host[HOST_MAX + 1];     /* for people */
  char text[HOST_MAX + 1 + 8]; /* the same, with the port */
};

struct target_list {
  struct target v[TARGETS_MAX];
  size_t n;
};

/* Where the daemon may be: which_daemon_next.c. */
struct targets {
  struct target home, aim, moved;
  struct target origin; /* of the daemon that named the successors */
  bool has_home, has_moved, has_origin;
  struct target_list successors, cycle;
  size_t at; /* the aim's place in the cycle */
  bool turning;
  bool others;                      /* there are places besides home */
  uint32_t standby_port, told_port; /* what is reserved for a daemon of this agent; the daemon knows */
};

/* What the last FORWARD said. */
struct told {
  bool on, own; /* own: FORWARD goes only to the daemon of this agent */
  int64_t round, term;
  char incarnation[INCARNATION_MAX + 1], daemon[DAEMON_ID_MAX + 1], addr[ADDR_MAX + 1];
  uint32_t port, endpoint;
};

/* The last round, for another daemon: promise.c. */
struct promise {
  char incarnation[INCARNATION_MAX + 1], base[INCARNATION_MAX + 1]; /* of the round, and of the one before */
  char origin[INCARNATION_MAX + 1];                                 /* of the run that the round is part of */
  int64_t round;                                                    /* 0: none yet */
  struct seal seal;                                                 /* its string is `base` */
  char *head_host;
  char node_addr[ADDR_MAX + 1]; /* of this node in it, */
  int64_t node_rank;            /* and its rank */
  char head_addr[ADDR_MAX + 1]; /* of node rank 0 in it */
  uint64_t begun_ms;            /* when START came */
  bool firm;
  bool succeeded; /* START has named successors, or WAITING has while this node was in no round */
  struct told told;
};

struct supervisor {
  struct supervisor_config config; /* strings are our own */
  enum supervisor_state state;     /* only set_state in round.c writes it */
  uint64_t now_ms, wall_ms;        /* of the event being stepped */
  struct supervisor_effects *fx;
  struct worker *workers; /* one record each, by local rank */
  struct job_seen job;
  struct daemon_link link;
  struct signs_of_life heartbeat;
  struct fence fence;
  struct current_round round;
  struct reports reports;
  struct stopping stop;
  struct store_service store;
  struct checkpoints checkpoint;
  struct ids_of_round ids;
  struct hang hang;
  struct park park;
  struct verdicts verdicts;
  struct forming forming;
  struct progress_state progress;
  struct pace_state pace;
  struct job_account account;
  struct following following;
  struct targets targets;
  struct promise promise;
  struct leaving leave;
  struct node_check check;
  bool writes_events; /* the daemon of this connection sends us the job's events: announce.c */
  uint32_t *coverage; /* supervisor_coverage */
  char *fault;
};

static inline uint64_t sup_lease_ms(const struct supervisor *s) {
  return (uint64_t)s->config.settings.lease_ms;
}

/* The handlers of table.inc. */
typedef void sup_handler_fn(struct supervisor *s, const struct supervisor_event *ev);
sup_handler_fn sup_job_event, sup_link_up, sup_link_down, sup_other_program, sup_greeting, sup_welcome,
    sup_heartbeat_ack, sup_suspend, sup_end, sup_refused, sup_signal, sup_guard_gone, sup_fenced, sup_fenced_parked,
    sup_moved, sup_waiting, sup_lacking, sup_sign, sup_looked, sup_probed, sup_evidence, sup_probe_facts,
    sup_probe_done, sup_mint, sup_ids, sup_minted, sup_mint_failed, sup_nccl_up, sup_can_rejoin, sup_parked,
    sup_parked_unasked, sup_prepare, sup_can_checkpoint, sup_checkpointed, sup_progress, sup_resumed, sup_saved,
    sup_saving, sup_pace, sup_start, sup_stop, sup_stop_finished, sup_settled, sup_settled_early, sup_stale,
    sup_stale_running, sup_kill, sup_spawned, sup_exec_failed, sup_device_held, sup_exited, sup_exited_parked,
    sup_clear, sup_clear_stopping, sup_clear_parked, sup_store, sup_store_between, sup_stuck, sup_going_away,
    sup_standby, sup_notice, sup_checked;

/* What is due at this time, in each file; and when something is due there next. */
typedef void sup_tick_fn(struct supervisor *s);
sup_tick_fn sup_link_tick, sup_fence_tick, sup_following_tick, sup_forming_tick, sup_orphan_tick, sup_wait_tick,
    sup_progress_tick, sup_pace_tick, sup_park_tick, sup_ids_tick, sup_hang_tick, sup_early_tick;
typedef uint64_t sup_deadline_fn(const struct supervisor *s);
sup_deadline_fn sup_link_deadline, sup_fence_deadline, sup_following_deadline, sup_forming_deadline,
    sup_orphan_deadline, sup_prepare_deadline, sup_progress_deadline, sup_pace_deadline, sup_park_deadline,
    sup_ids_deadline, sup_hang_deadline;

/* supervisor.c */
struct supervisor_effect *sup_effect(struct supervisor *s, enum supervisor_effect_kind kind);
void sup_send(struct supervisor *s, const struct msg *m);
bool sup_has_trees(const struct supervisor *s); /* STARTING, RUNNING, STOPPING; parked workers do not count */
typedef bool sup_worker_fn(const struct supervisor *s, const struct worker *w);
bool sup_any_worker(const struct supervisor *s, sup_worker_fn *is);
bool sup_is_exiting(const struct supervisor *s); /* the exit code is decided; only the trees are waited for */

/* check.c */
bool sup_check_first(struct supervisor *s); /* BEGIN: the check runs, and the connection waits for it */
bool sup_check_runs_first(const struct supervisor *s);
bool sup_check_failed_first(const struct supervisor *s);
void sup_check_leave(struct supervisor *s);
void sup_check_stale(struct supervisor *s);                                  /* STALE ended the round */
void sup_check_settled(struct supervisor *s, const struct settled *settled); /* the round is still here */

/* connection.c */
void sup_connect(struct supervisor *s);
void sup_send_hello(struct supervisor *s);
/* In no round: the latest there is. */
void sup_note_job(struct supervisor *s, const char *incarnation, int64_t round);
/* True: START came too late, and the link was dropped. */
bool sup_drop_if_outdated(struct supervisor *s, uint64_t age_ms);
void sup_drop_link(struct supervisor *s, const char *why);
/* Connects to the aim of which_daemon_next.c now. lost: a line has reported the loss of the daemon. */
void sup_reconnect(struct supervisor *s, const char *why, bool lost);
void sup_follow_move(struct supervisor *s, bool pause); /* the same after MOVED */

/* fence.c */
/* The daemon has answered. False: it is at another address and does not know yet whether the round goes on. */
bool sup_answer_counts(struct supervisor *s, bool recovering);
uint64_t sup_allowed_until(const struct supervisor *s, uint64_t sent_ms, uint64_t age_ms);
/* The answer to what was sent at sent_ms: so long ago a majority followed this daemon. sent_ms 0: to nothing. */
void sup_allow_workers(struct supervisor *s, uint64_t sent_ms, uint64_t age_ms);
void sup_begin_leave(struct supervisor *s, uint64_t away_ms); /* GOING_AWAY */
void sup_end_leave(struct supervisor *s);                     /* WELCOME */
int64_t sup_leave_left_ms(const struct supervisor *s);
void sup_update_fence(struct supervisor *s, bool fence, bool all);
void sup_begin_fence(struct supervisor *s, bool fence, bool all); /* START */
void sup_update_guard_fence(struct supervisor *s);                /* by when it must fence, if that has changed */

/* follow_daemon.c */
bool sup_turns_from_silence(const struct supervisor *s); /* at this tick */
bool sup_daemon_in_charge(const struct supervisor *s);   /* connected, and its last answer had a majority */
bool sup_note_welcome(struct supervisor *s, const struct welcome *w); /* true: where it was welcomed last */
/* The daemon in charge, or not: so long ago a majority followed it. */
void sup_note_answer(struct supervisor *s, uint64_t age_ms, bool recovering);
void sup_note_start(struct supervisor *s, const struct start *start);
void sup_note_heard(struct supervisor *s); /* after each message */
/* A line, if another daemon than before is in charge. agreed: so many of `nodes` follow it; 0: not known. */
void sup_tell_takeover(struct supervisor *s, int64_t agreed, int64_t nodes);

/* which_daemon_next.c */
enum turn_order {
  TURN_FROM_SILENCE, /* home, a place that MOVED named, successors, addresses of --endpoint */
  TURN_PAST_HOME,    /* the same, beginning behind home, which comes last */
  TURN_TO_EARLIER,   /* the addresses of --endpoint before home, and home */
  TURN_TO_MOVED,     /* the place that MOVED named, and the first order */
};
void sup_learn_successors(struct supervisor *s, const struct successor *v, size_t n);
void sup_note_moved(struct supervisor *s, const struct moved *m);
void sup_note_peer(struct supervisor *s, const char *addr, uint32_t port); /* NULL: not known */
void sup_begin_cycle(struct supervisor *s, enum turn_order order);         /* aims at its first place */
bool sup_next_target(struct supervisor *s); /* false: the cycle is over, and begins again */
bool sup_aims_at_home(const struct supervisor *s);
bool sup_cycle_goes_on(const struct supervisor *s);                    /* sup_next_target would find one */
void sup_aim(const struct supervisor *s, struct supervisor_effect *e); /* fills SUP_CONNECT */
uint64_t sup_answer_patience_ms(const struct supervisor *s, bool greeted);
void sup_settle_home(struct supervisor *s);              /* WELCOME */
bool sup_home_is_loopback(const struct supervisor *s);   /* and other machines would meet themselves there */
const char *sup_daemon_name(const struct supervisor *s); /* of the aim, for "the daemon at": "node1:29400" */
const char *sup_next_host(const struct supervisor *s);   /* the first of the cycle besides home */
size_t sup_home_order(const struct supervisor *s);       /* home among the places that agents share; 0: first */
void sup_targets_create(struct supervisor *s);

/* promise.c */
bool sup_can_be_succeeded(const struct supervisor *s); /* another daemon may take the last round over */
void sup_promise_start(struct supervisor *s, const struct start *start);
void sup_promise_retire(struct supervisor *s);
void sup_promise_firm(struct supervisor *s);
void sup_forward_watch(struct supervisor *s); /* after each event: has the place of the job changed? */
void sup_forward_end(struct supervisor *s);

/* round.c */
void sup_describe_worker(const struct supervisor *s, uint32_t local_rank, struct verdict *v);
void sup_stop_trees(struct supervisor *s, enum stop_reason reason, uint64_t grace_ms);
void sup_report(struct supervisor *s, enum report_kind kind, const struct verdict *what, uint64_t at_ms);
void sup_send_report(struct supervisor *s, const struct own_report *r);
void sup_clear_round(struct supervisor *s); /* reports, and workers except parked ones */
void sup_fail_round(struct supervisor *s, const struct verdict *v, uint64_t at_ms);
void sup_round_stopped(struct supervisor *s);                         /* nothing of the round is left here */
void sup_account_note(struct supervisor *s, const struct goodput *g); /* START, SETTLED, END */
void sup_announce(struct supervisor *s);                              /* HELLO again, if a daemon listens */
void sup_announce_ports(struct supervisor *s); /* between rounds, if the daemon does not know them */
void sup_close_store(struct supervisor *s);    /* the round is over, or we leave */

/* forming.c */
void sup_forming_end(struct supervisor *s); /* the state has changed: nothing is waited for */
bool sup_waits_for_claim(
    const struct supervisor *s); /* enough nodes are here, and the daemon asks the place of the claims */
void sup_note_link_down(struct supervisor *s, const char *text); /* NULL: there is a daemon */
/* The nodes that are missing. False: none is waited for. */
bool sup_format_waiting(const struct supervisor *s, uint64_t now_ms, struct buf *out);

/* round.c: workers that have not stopped yet */
void sup_wait_begin(struct supervisor *s, uint64_t grace_ms); /* the trees were told to stop, once or again */

/* end.c */
void sup_misfit(struct supervisor *s, const char *why);         /* the daemon's: final, as REFUSED is */
void sup_exit(struct supervisor *s, int code, const char *bye); /* bye: for the daemon; NULL: none is sent */

/* prepare.c */
/* SUP_REQUEST, with the checkpoint that was asked for */
void sup_request(struct supervisor *s, unsigned bits, const struct local_set *of); /* NULL: of all */
/* Asks the workers for a checkpoint and waits for it, ask_ms at most; then stops them. False: none of them can write
 * one. */
bool sup_checkpoint_before_leaving(struct supervisor *s, uint64_t ask_ms);
/* After each event: is the requested checkpoint there, or can it no longer come? */
void sup_prepare_watch(struct supervisor *s);
/* At STOP: if the time for the checkpoint is over, names the ranks that have not written it. */
void sup_log_late_checkpoint(struct supervisor *s);

/* progress.c */
void sup_note_saved(struct supervisor *s, struct worker *w,
                    uint64_t step);             /* w's checkpoint of that step is complete */
void sup_progress_repeat(struct supervisor *s); /* to a daemon that may not know it: sends it soon */
void sup_progress_clear(struct supervisor *s);
void sup_progress_flush(struct supervisor *s); /* sends what was not sent yet */
/* Of the workers that report progress, the one that is furthest behind; NULL: none does. Also the sum of their
 * rates. */
const struct worker *sup_slowest(const struct supervisor *s, double *samples_per_second);

/* pace.c */
void sup_pace_clear(struct supervisor *s); /* another round, or the end */

/* park.c */
/* Stops the trees: for the first time in this round, or for a weightier reason. Workers that may stay are asked to
 * park. */
void sup_park_stop(struct supervisor *s, bool first, enum stop_reason reason, uint64_t grace_ms);
void sup_park_watch(struct supervisor *s); /* after each event: has everything stopped that is to stop? */
bool sup_park_clear(struct supervisor *s, const struct supervisor_event *ev); /* CLEAR was of dismissed workers */
bool sup_any_parked(const struct supervisor *s);                              /* between rounds */
void sup_dismiss_parked(struct supervisor *s, uint64_t grace_ms);             /* parked workers are no longer needed */
/* True: SUP_EXIT waits for the deaths of parked workers, and comes by itself. */
bool sup_park_delays_exit(struct supervisor *s, int code, const char *bye);
void sup_park_spawn(struct supervisor *s,
                    const struct msg *m); /* START: SPAWN, now or when the dismissed workers are gone */
void sup_park_finish(struct supervisor *s);

/* ids.c */
void sup_ids_start(struct supervisor *s, const struct start *start);
void sup_ids_spawned(struct supervisor *s); /* SUP_SPAWN is out */
void sup_ids_release(struct supervisor *s); /* the helpers here are no longer needed */
void sup_ids_clear(struct supervisor *s);   /* a new round, or the end: without effects */

/* hang_decision.c */
void sup_hang_begin(struct supervisor *s); /* all workers run */
void sup_hang_end(struct supervisor *s);   /* they are being stopped */
/* STOP came; true: trees are stopped later */
bool sup_hang_stop(struct supervisor *s, const struct verdict *v);
/* A worker has died because a collective did not end in time. True: it is reported once the others were asked for the
 * reason, and then they are stopped. */
bool sup_hang_gave_up(struct supervisor *s, const struct verdict *v, uint64_t at_ms);

/* announce.c */
void sup_announce_link_down(struct supervisor *s); /* the connection to a daemon that had welcomed us is gone */
void sup_announce_exit(struct supervisor *s, int code);

/* user_log.c */
void sup_log(struct supervisor *s, enum log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Appends which workers of this node had finished before the verdict's failure, or nothing. */
void sup_put_finished(const struct supervisor *s, const struct verdict *v, struct buf *out);
/* Once per verdict. */
void sup_log_verdict(struct supervisor *s, const struct verdict *v, const char *before);
/* Whether the first agent of this host logs this verdict for all of them. */
bool sup_is_echo(const struct supervisor *s, const struct verdict *v);
void sup_log_failure(struct supervisor *s, const struct verdict *v); /* of a worker here, or from STOP */
void sup_log_pending_verdict(struct supervisor *s);
void sup_drop_pending_verdict(struct supervisor *s);
void sup_log_settled(struct supervisor *s, const struct settled *settled);
void sup_log_start(struct supervisor *s, const struct start *start);
void sup_show_status(struct supervisor *s);

/* lasting_failure.c */
/* Why a restarted worker would fail in the same way, judged by how it exited. code: its exit status; text: the last lines of its stderr, separated by newlines; error: its last exception, or "";
 * trainer: it is rdzv-trainer. */
enum lasting find_lasting(int code, const char *text, const char *error, bool trainer);

#endif
