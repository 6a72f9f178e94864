/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SUPERVISOR_INTERNAL_H
#define AGENT_SUPERVISOR_INTERNAL_H

/* The members of the mind that its files share. A concern that no other file reads has its struct in its own file:
 * hang_decision.c, park.c, ids.c, forming.c, progress.c, prepare.c (checkpoint), user_log.c (verdicts),
 * follow_daemon.c, which_daemon_next.c, promise.c. */

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

enum { HEARTBEATS_KEPT = 16, WARN_EVERY_MS = 30000 };

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
  struct checkpoints *checkpoint;
  struct ids_of_round *ids;
  struct hang *hang;
  struct park *park;
  struct verdicts *verdicts;
  struct forming *forming;
  struct progress_state *progress;
  struct job_account *account;
  struct following *following;
  struct targets *targets;
  struct promise *promise;
  struct leaving leave;
  bool writes_events; /* the daemon of this connection sends us the job's events: announce.c */
  uint32_t *coverage; /* supervisor_coverage */
  char *fault;
};

/* supervisor.c */
struct supervisor_effect *sup_effect(struct supervisor *s, enum supervisor_effect_kind kind);
void sup_send(struct supervisor *s, const struct msg *m);
bool sup_has_trees(const struct supervisor *s);  /* STARTING, RUNNING, STOPPING; parked workers do not count */
void sup_clear_concerns(struct supervisor *s);   /* a new round begins */
bool sup_is_exiting(const struct supervisor *s); /* the exit code is decided; only the trees are waited for */

/* connection.c */
void sup_connect(struct supervisor *s);
void sup_link_up(struct supervisor *s, const struct supervisor_event *ev);
void sup_link_down(struct supervisor *s, const struct supervisor_event *ev);
void sup_other_program(struct supervisor *s, const struct supervisor_event *ev);
void sup_greeting(struct supervisor *s, const struct supervisor_event *ev);
void sup_send_hello(struct supervisor *s);
/* In no round: the latest there is. */
void sup_note_job(struct supervisor *s, const char *incarnation, int64_t round);
/* True: START came too late, and the link was dropped. */
bool sup_drop_if_outdated(struct supervisor *s, uint64_t age_ms);
void sup_drop_link(struct supervisor *s, const char *why);
/* Connects to the aim of which_daemon_next.c now. lost: a line has reported the loss of the daemon. */
void sup_reconnect(struct supervisor *s, const char *why, bool lost);
void sup_follow_move(struct supervisor *s, bool pause); /* the same after MOVED */
void sup_welcome(struct supervisor *s, const struct supervisor_event *ev);
void sup_heartbeat_ack(struct supervisor *s, const struct supervisor_event *ev);
void sup_link_tick(struct supervisor *s);
uint64_t sup_link_deadline(const struct supervisor *s);

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
void sup_fenced(struct supervisor *s, const struct supervisor_event *ev);
void sup_fenced_parked(struct supervisor *s, const struct supervisor_event *ev);
void sup_fence_tick(struct supervisor *s);
uint64_t sup_fence_deadline(const struct supervisor *s);

/* follow_daemon.c */
const char *sup_follows(const struct supervisor *s); /* the daemon's id; "" */
int64_t sup_term(const struct supervisor *s);
bool sup_turns_from_silence(const struct supervisor *s);   /* at this tick */
bool sup_is_at_another_daemon(const struct supervisor *s); /* than the one that was last in charge */
bool sup_daemon_in_charge(const struct supervisor *s);     /* connected, and its last answer had a majority */
bool sup_note_welcome(struct supervisor *s, const struct welcome *w); /* true: where it was welcomed last */
void sup_note_answer(struct supervisor *s, uint64_t age_ms, bool recovering);
void sup_note_start(struct supervisor *s, const struct start *start);
void sup_note_enough(struct supervisor *s); /* WAITING: a round could begin soon */
void sup_note_heard(struct supervisor *s);  /* after each message */
void sup_note_pause(struct supervisor *s);  /* this agent could not run, so it could not hear anything */
/* A line, if another daemon than before is in charge. agreed: so many of `nodes` follow it; 0: not known. */
void sup_tell_takeover(struct supervisor *s, int64_t agreed, int64_t nodes);
void sup_moved(struct supervisor *s, const struct supervisor_event *ev);
void sup_following_fill_hello(const struct supervisor *s, struct hello *h);
void sup_following_create(struct supervisor *s);
void sup_following_destroy(struct supervisor *s);
void sup_following_tick(struct supervisor *s);
uint64_t sup_following_deadline(const struct supervisor *s);

/* which_daemon_next.c */
enum turn_order {
  TURN_FROM_SILENCE, /* home, a place that MOVED named, successors, addresses of --endpoint */
  TURN_PAST_HOME,    /* the same, beginning behind home, which comes last */
  TURN_TO_EARLIER,   /* the addresses of --endpoint before home, and home */
  TURN_TO_MOVED,     /* the place that MOVED named, and the first order */
};
struct daemon_place {
  uint32_t endpoint;       /* which address of --endpoint; UINT32_MAX: none */
  const char *host, *addr; /* addr: numeric */
  uint32_t port;
};
void sup_learn_successors(struct supervisor *s, const struct successor *v, size_t n);
void sup_note_moved(struct supervisor *s, const struct moved *m);
void sup_note_peer(struct supervisor *s, const char *addr, uint32_t port); /* NULL: not known */
bool sup_has_other_targets(const struct supervisor *s);
void sup_begin_cycle(struct supervisor *s, enum turn_order order); /* aims at its first place */
bool sup_next_target(struct supervisor *s);                        /* false: the cycle is over, and begins again */
bool sup_is_turning(const struct supervisor *s);
bool sup_aims_at_home(const struct supervisor *s);
bool sup_cycle_goes_on(const struct supervisor *s);                    /* sup_next_target would find one */
void sup_aim(const struct supervisor *s, struct supervisor_effect *e); /* fills SUP_CONNECT */
uint64_t sup_answer_patience_ms(const struct supervisor *s, bool greeted);
void sup_settle_home(struct supervisor *s);              /* WELCOME */
bool sup_home_is_loopback(const struct supervisor *s);   /* and other machines would meet themselves there */
const char *sup_daemon_name(const struct supervisor *s); /* of the aim, for "the daemon at": "node1:29400" */
const char *sup_home_host(const struct supervisor *s);   /* of home, for "the daemon on": "node1" */
const char *sup_next_host(const struct supervisor *s);   /* the first of the cycle besides home */
bool sup_home_place(const struct supervisor *s, struct daemon_place *p); /* false: its address is not known */
size_t sup_home_order(const struct supervisor *s); /* home among the places that agents share; 0: first */
bool sup_home_is_a_later_endpoint(const struct supervisor *s);
void sup_standby(struct supervisor *s, const struct supervisor_event *ev);
uint32_t sup_tell_standby_port(struct supervisor *s);
bool sup_standby_port_is_told(const struct supervisor *s);
void sup_targets_create(struct supervisor *s);
void sup_targets_destroy(struct supervisor *s);

/* promise.c */
bool sup_can_be_succeeded(const struct supervisor *s); /* another daemon may take the last round over */
void sup_promise_start(struct supervisor *s, const struct start *start);
void sup_promise_retire(struct supervisor *s);
void sup_promise_spare(struct supervisor *s); /* WELCOME or WAITING: another daemon can take the job over */
void sup_promise_firm(struct supervisor *s);
void sup_promise_fill_hello(const struct supervisor *s, struct hello *h);
void sup_forward_watch(struct supervisor *s); /* after each event: has the place of the job changed? */
void sup_forward_end(struct supervisor *s);
void sup_promise_create(struct supervisor *s);
void sup_promise_destroy(struct supervisor *s);

/* round.c */
void sup_start(struct supervisor *s, const struct supervisor_event *ev);
void sup_stop(struct supervisor *s, const struct supervisor_event *ev);
void sup_stop_finished(struct supervisor *s, const struct supervisor_event *ev);
void sup_settled(struct supervisor *s, const struct supervisor_event *ev);
void sup_settled_early(struct supervisor *s, const struct supervisor_event *ev);
void sup_stale(struct supervisor *s, const struct supervisor_event *ev);
void sup_stale_running(struct supervisor *s, const struct supervisor_event *ev);
void sup_kill(struct supervisor *s, const struct supervisor_event *ev);
void sup_spawned(struct supervisor *s, const struct supervisor_event *ev);
void sup_exec_failed(struct supervisor *s, const struct supervisor_event *ev);
void sup_device_held(struct supervisor *s, const struct supervisor_event *ev);
void sup_exited(struct supervisor *s, const struct supervisor_event *ev);
void sup_exited_parked(struct supervisor *s, const struct supervisor_event *ev);
void sup_clear(struct supervisor *s, const struct supervisor_event *ev);
void sup_clear_stopping(struct supervisor *s, const struct supervisor_event *ev);
void sup_clear_parked(struct supervisor *s, const struct supervisor_event *ev);
void sup_describe_worker(const struct supervisor *s, uint32_t local_rank, struct verdict *v);
void sup_stop_trees(struct supervisor *s, enum stop_reason reason, uint64_t grace_ms);
void sup_report(struct supervisor *s, enum report_kind kind, const struct verdict *what, uint64_t at_ms);
void sup_send_report(struct supervisor *s, const struct own_report *r);
void sup_clear_round(struct supervisor *s); /* reports, and workers except parked ones */
void sup_fail_round(struct supervisor *s, const struct verdict *v, uint64_t at_ms);
void sup_round_stopped(struct supervisor *s); /* nothing of the round is left here */
void sup_store(struct supervisor *s, const struct supervisor_event *ev);
void sup_store_between(struct supervisor *s, const struct supervisor_event *ev);
void sup_announce_ports(struct supervisor *s); /* between rounds, if the daemon does not know them */
void sup_close_store(struct supervisor *s);    /* the round is over, or we leave */

/* forming.c */
void sup_waiting(struct supervisor *s, const struct supervisor_event *ev);
void sup_lacking(struct supervisor *s, const struct supervisor_event *ev);
void sup_forming_end(struct supervisor *s); /* the state has changed: nothing is waited for */
bool sup_waits_for_claim(
    const struct supervisor *s); /* enough nodes are here, and the daemon asks the place of the claims */
void sup_note_link_down(struct supervisor *s, const char *text); /* NULL: there is a daemon */
/* The nodes that are missing. False: none is waited for. */
bool sup_format_waiting(const struct supervisor *s, uint64_t now_ms, struct buf *out);
void sup_put_unreachable(const struct supervisor *s, struct buf *out); /* why the job has never begun; or nothing */
bool sup_forming_is_drawn(const struct supervisor *s);                 /* there is a living line */
void sup_forming_create(struct supervisor *s);
void sup_forming_destroy(struct supervisor *s);
void sup_forming_tick(struct supervisor *s);
uint64_t sup_forming_deadline(const struct supervisor *s);

/* fence.c: without a daemon for long */
void sup_orphan_tick(struct supervisor *s);
uint64_t sup_orphan_deadline(const struct supervisor *s);

/* round.c: workers that have not stopped yet */
void sup_wait_begin(struct supervisor *s, uint64_t grace_ms); /* the trees were told to stop, once or again */
void sup_wait_tick(struct supervisor *s);
uint64_t sup_wait_deadline(const struct supervisor *s);

/* end.c */
void sup_end(struct supervisor *s, const struct supervisor_event *ev);
void sup_refused(struct supervisor *s, const struct supervisor_event *ev);
void sup_other_version(struct supervisor *s, int64_t version); /* the daemon's: final, as REFUSED is */
void sup_signal(struct supervisor *s, const struct supervisor_event *ev);
void sup_suspend(struct supervisor *s, const struct supervisor_event *ev);
void sup_guard_gone(struct supervisor *s, const struct supervisor_event *ev);
void sup_exit(struct supervisor *s, int code, const char *bye); /* bye: for the daemon; NULL: none is sent */

/* prepare.c */
/* SUP_REQUEST, with the checkpoint that was asked for */
void sup_request(struct supervisor *s, unsigned bits, const struct local_set *of); /* NULL: of all */
void sup_prepare(struct supervisor *s, const struct supervisor_event *ev);
void sup_can_checkpoint(struct supervisor *s, const struct supervisor_event *ev);
void sup_checkpointed(struct supervisor *s, const struct supervisor_event *ev);
/* Asks the workers for a checkpoint and waits for it, ask_ms at most; then stops them. False: none of them can write
 * one. */
bool sup_checkpoint_before_leaving(struct supervisor *s, uint64_t ask_ms);
/* After each event: is the requested checkpoint there, or can it no longer come? */
void sup_prepare_watch(struct supervisor *s);
/* At STOP: if the time for the checkpoint is over, names the ranks that have not written it. */
void sup_log_late_checkpoint(struct supervisor *s);
void sup_prepare_create(struct supervisor *s);
void sup_prepare_destroy(struct supervisor *s);
void sup_prepare_clear(struct supervisor *s);
uint64_t sup_prepare_deadline(const struct supervisor *s);

/* progress.c */
void sup_progress(struct supervisor *s, const struct supervisor_event *ev);
void sup_resumed(struct supervisor *s, const struct supervisor_event *ev);
void sup_saved(struct supervisor *s, const struct supervisor_event *ev);
void sup_saving(struct supervisor *s, const struct supervisor_event *ev);
void sup_note_saved(struct supervisor *s, struct worker *w,
                    uint64_t step);                /* w's checkpoint of that step is complete */
void sup_progress_repeat(struct supervisor *s);    /* to a daemon that may not know it: sends it soon */
bool sup_any_reported(const struct supervisor *s); /* a worker here has ever reported progress or a checkpoint */
void sup_note_reported(struct supervisor *s);
void sup_progress_create(struct supervisor *s);
void sup_progress_destroy(struct supervisor *s);
void sup_progress_clear(struct supervisor *s);
void sup_progress_tick(struct supervisor *s);
void sup_progress_flush(struct supervisor *s); /* sends what was not sent yet */
/* Of the workers that report progress, the one that is furthest behind; NULL: none does. Also the sum of their
 * rates. */
const struct worker *sup_slowest(const struct supervisor *s, double *samples_per_second);
uint64_t sup_progress_deadline(const struct supervisor *s);

/* account.c */
void sup_account_note(struct supervisor *s, const struct goodput *g); /* START, SETTLED, END */
void sup_account_begin(struct supervisor *s);                         /* welcomed to the job */
void sup_account_note_step(struct supervisor *s, int64_t step);       /* progress of a worker here */
void sup_account_fill_hello(const struct supervisor *s, struct hello *h);
const struct goodput *sup_account(const struct supervisor *s); /* the last one; all 0: none has come */
void sup_account_create(struct supervisor *s);
void sup_account_destroy(struct supervisor *s);
void sup_account_clear(struct supervisor *s); /* a new round begins */

/* park.c */
void sup_can_rejoin(struct supervisor *s, const struct supervisor_event *ev);
void sup_parked(struct supervisor *s, const struct supervisor_event *ev);
void sup_parked_unasked(struct supervisor *s, const struct supervisor_event *ev);
/* Stops the trees: for the first time in this round, or for a weightier reason. Workers that may stay are asked to
 * park. */
void sup_park_stop(struct supervisor *s, bool first, enum stop_reason reason, uint64_t grace_ms);
void sup_park_note_clear(struct supervisor *s, const struct local_set *kept); /* CLEAR of the round that stops */
bool sup_park_is_exiting(const struct supervisor *s);
void sup_park_create(struct supervisor *s);
void sup_park_destroy(struct supervisor *s);
void sup_park_clear_round(struct supervisor *s);
void sup_park_watch(struct supervisor *s); /* after each event: has everything stopped that is to stop? */
bool sup_park_clear(struct supervisor *s, const struct supervisor_event *ev); /* CLEAR was of dismissed workers */
bool sup_any_parked(const struct supervisor *s);                              /* between rounds */
bool sup_is_dismissing(const struct supervisor *s);                           /* dismissed workers still have time */
void sup_dismiss_parked(struct supervisor *s, uint64_t grace_ms);             /* parked workers are no longer needed */
/* True: SUP_EXIT waits for the deaths of parked workers, and comes by itself. */
bool sup_park_delays_exit(struct supervisor *s, int code, const char *bye);
void sup_park_spawn(struct supervisor *s,
                    const struct msg *m); /* START: SPAWN, now or when the dismissed workers are gone */
void sup_park_finish(struct supervisor *s);
void sup_park_tick(struct supervisor *s);
uint64_t sup_park_deadline(const struct supervisor *s);

/* ids.c */
void sup_ids_create(struct supervisor *s);
void sup_ids_destroy(struct supervisor *s);
void sup_ids_fill_hello(const struct supervisor *s, struct hello *h);
void sup_ids_start(struct supervisor *s, const struct start *start);
void sup_ids_spawned(struct supervisor *s); /* SUP_SPAWN is out */
void sup_mint(struct supervisor *s, const struct supervisor_event *ev);
void sup_ids(struct supervisor *s, const struct supervisor_event *ev);
void sup_minted(struct supervisor *s, const struct supervisor_event *ev);
void sup_mint_failed(struct supervisor *s, const struct supervisor_event *ev);
void sup_nccl_up(struct supervisor *s, const struct supervisor_event *ev);
void sup_ids_release(struct supervisor *s); /* the helpers here are no longer needed */
void sup_ids_clear(struct supervisor *s);   /* a new round, or the end: without effects */
void sup_ids_tick(struct supervisor *s);
uint64_t sup_ids_deadline(const struct supervisor *s);

/* hang_decision.c */
void sup_hang_create(struct supervisor *s);
void sup_hang_destroy(struct supervisor *s);
void sup_hang_begin(struct supervisor *s); /* all workers run */
void sup_hang_end(struct supervisor *s);   /* they are being stopped */
void sup_sign(struct supervisor *s, const struct supervisor_event *ev);
void sup_looked(struct supervisor *s, const struct supervisor_event *ev);
void sup_probed(struct supervisor *s, const struct supervisor_event *ev);
void sup_evidence(struct supervisor *s, const struct supervisor_event *ev);
void sup_probe_facts(struct supervisor *s, const struct supervisor_event *ev);
void sup_probe_done(struct supervisor *s, const struct supervisor_event *ev);
/* STOP came; true: trees are stopped later */
bool sup_hang_stop(struct supervisor *s, const struct verdict *v);
/* A worker has died because a collective did not end in time. True: it is reported once the others were asked for the
 * reason, and then they are stopped. */
bool sup_hang_gave_up(struct supervisor *s, const struct verdict *v, uint64_t at_ms);
void sup_hang_tick(struct supervisor *s);
uint64_t sup_hang_deadline(const struct supervisor *s);

/* announce.c */
void sup_job_event(struct supervisor *s, const struct supervisor_event *ev);
void sup_announce_link_down(struct supervisor *s); /* the connection to a daemon that had welcomed us is gone */
void sup_announce_exit(struct supervisor *s, int code);

/* user_log.c */
void sup_log(struct supervisor *s, enum log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Appends which workers of this node had finished before the verdict's failure, or nothing. */
void sup_put_finished(const struct supervisor *s, const struct verdict *v, struct buf *out);
void sup_early_tick(struct supervisor *s);
uint64_t sup_early_deadline(const struct supervisor *s);
/* Once per verdict. */
void sup_log_verdict(struct supervisor *s, const struct verdict *v, const char *before);
/* Whether the first agent of this host logs this verdict for all of them. */
bool sup_is_echo(const struct supervisor *s, const struct verdict *v);
void sup_log_failure(struct supervisor *s, const struct verdict *v); /* of a worker here, or from STOP */
void sup_log_pending_verdict(struct supervisor *s);
void sup_drop_pending_verdict(struct supervisor *s);
const struct verdict *sup_last_verdict(const struct supervisor *s);
void sup_verdicts_create(struct supervisor *s);
void sup_verdicts_destroy(struct supervisor *s);
void sup_verdicts_tick(struct supervisor *s);
uint64_t sup_verdicts_deadline(const struct supervisor *s);
void sup_log_settled(struct supervisor *s, const struct settled *settled);
void sup_log_start(struct supervisor *s, const struct start *start);
void sup_stuck(struct supervisor *s, const struct supervisor_event *ev);
void sup_going_away(struct supervisor *s, const struct supervisor_event *ev);
void sup_show_status(struct supervisor *s);

/* lasting_failure.c */
/* Why a restarted worker would fail in the same way, judged by how it exited. code: its exit status; text: the last lines of its stderr, separated by newlines; error: its last exception, or "";
 * trainer: it is rdzv-trainer. */
enum lasting find_lasting(int code, const char *text, const char *error, bool trainer);

#endif
