/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_INTERNAL_H
#define DAEMON_JOB_INTERNAL_H

/* Shared by the files of daemon/job alone. */

#include "daemon/job/job.h"

static inline uint64_t lease_ms(const struct job *j) {
  return (uint64_t)j->settings.lease_ms;
}

/* job.c */
struct job *job_create(struct jobs *jobs, int64_t uid, const char *id, const char *incarnation,
                       const struct settings *s);
void job_destroy(struct job *j);
/* The only writer of the state: logs the change, and runs the entry action of `to`. False: job_may_enter refused. */
bool job_enter(struct job *j, enum job_state to, uint64_t now_ms);
/* False: `to` may not follow. That is a bug: it is logged, and jobs.fault says it. Functions that change the job
 * before they call job_enter ask first. */
bool job_may_enter(struct job *j, enum job_state to);
void job_clear_round(struct job *j); /* its causes */

/* member.c */
void job_remove_member(struct job *j, struct member *m);
void member_send(const struct member *m, struct bytes *b); /* takes b */
void member_set_leaving(struct member *m);
void member_set_checkpointed(struct member *m, bool checkpointed);
void member_set_drained(struct member *m, bool drained);
void member_set_check_round(struct member *m, int64_t round); /* 0: none is due */
void member_set_expected(struct member *m, bool expected);
void member_set_acked(struct member *m);
void member_set_rank(struct member *m, int64_t rank); /* in the current round; -1: none */
/* Ranks of the current round's workers, from node ranks: in the job, and in each role. */
void job_number_workers(struct job *j);
int64_t job_role_size(const struct job *j, const char *role);

/* seal.c */
/* FORMING: seals the next round if that may be now. False: it may not. */
bool job_try_seal(struct job *j, uint64_t now_ms);
void job_begin_fence(struct job *j); /* the round begins */
void job_send_start(struct job *j, struct member *m);
uint64_t job_seal_deadline(const struct job *j);
enum prospect job_prospect(const struct job *j, uint64_t now_ms); /* what that deadline is about */
uint64_t job_join_deadline(const struct job *j);                  /* when the job fails unless more nodes come */
void job_update_enough_nodes(struct job *j, uint64_t now_ms);     /* FORMING: nodes came or went */
/* WAITING. It is the same for all nodes, except those on drained hosts. */
struct bytes *job_waiting_bytes(const struct job *j, const struct drain *drained, uint64_t now_ms);
void job_send_news(struct job *j, const struct member *m, struct bytes *news, uint64_t now_ms);
void job_notice_soon(struct job *j, uint64_t now_ms); /* FORMING: WAITING has changed */

void job_assign_addresses(struct member **chosen, size_t n); /* for other nodes */

/* pairs.c */
void job_pairs_note_fault(struct job *j); /* last_verdict is new */
/* FORMING: the next round could begin, and must not yet: nodes exchange data first. */
bool job_pairs_hold_seal(struct job *j, uint64_t now_ms);
uint64_t job_pairs_until(const struct job *j);              /* the seal is held until then, or longer; 0: it is not */
void job_pairs_lost(struct job *j, const struct member *m); /* its connection */
uint64_t job_pairs_deadline(const struct job *j);
void job_pairs_tick(struct job *j, uint64_t now_ms);
void job_pairs_readmit(struct job *j,
                       uint64_t now_ms); /* FORMING, too few nodes are here: those that were left out may come */
void job_pairs_destroy(struct job *j);

/* grow.c */
void job_watch_growth(struct job *j, uint64_t now_ms);                           /* RUNNING begins */
void job_watch_newcomer(struct job *j, const struct member *m, uint64_t now_ms); /* RUNNING: m joined */
void job_grow_if_due(struct job *j, const struct job_event *ev);                 /* RUNNING: the deadline */
void job_note_loss(struct job *j, const struct member *m, uint64_t now_ms); /* m was lost from a round, or left it */

/* prepare.c */
/* Ends the round for a cause that was just offered and is no fault: newcomers, a node that leaves, a drained host.
 * RUNNING: PREPARE goes to all, and STOP when they have their checkpoints, or after half of --stop-timeout.
 * STARTING: nothing is lost yet, so the round is void and stops at once. In any other state it does nothing: the
 * cause is enough. */
void job_prepare(struct job *j, uint64_t now_ms);
bool job_is_planned_end(const struct job *j);          /* the cause is one of these */
void job_send_prepare(struct job *j, uint64_t now_ms); /* CHECKPOINTING begins */
/* The table's cells of CHECKPOINTING that no other state has. */
void job_checkpointing_resume(struct job *j, const struct job_event *ev);
void job_checkpointing_report(struct job *j, const struct job_event *ev); /* checkpointed, finished, stopped */
void job_checkpointing_deadline(struct job *j, const struct job_event *ev);

/* end.c */
/* Of the current round; it borrows text. */
struct verdict job_verdict(const struct job *j, enum cause cause, int code, const char *text);
void job_offer_cause(struct job *j, const struct verdict *v, uint64_t at_ms);
void job_offer_node_cause(struct job *j, const struct member *m, enum cause cause, int code, const char *text,
                          uint64_t at_ms); /* lost, leaving, drained */
void job_begin_stopping(struct job *j, uint64_t now_ms, bool void_round);
void job_send_stop(struct job *j, uint64_t now_ms); /* STOPPING begins */
void job_settle_if_stopped(struct job *j, uint64_t now_ms);
/* m is node rank 0, has finished, and is to run again with the others. While it accepts workers in its store,
 * workers of the next round could come there. */
bool job_waits_for_head(const struct job *j, const struct member *m);
void job_end(struct job *j, uint64_t now_ms, enum outcome outcome, int code, const struct verdict *v);
void job_send_end(struct job *j, uint64_t now_ms); /* ENDING begins */
void job_finish_if_done(struct job *j, uint64_t now_ms);
void job_ended_if_acknowledged(struct job *j, uint64_t now_ms);
void job_join_timeout(struct job *j, uint64_t now_ms);
/* The messages, for nodes that missed them; the caller's to unref. */
struct bytes *job_stop_bytes(const struct job *j);
struct bytes *job_settled_bytes(const struct job *j);
struct bytes *job_end_bytes(const struct job *j);
void job_note_verdict(struct job *j, bool charged, uint64_t wall_ms); /* last_verdict, once per round */
/* evidence.c: what the nodes of the round know of its collectives goes into `cause`. */
void job_judge_evidence(struct job *j);
void job_forget_evidence(struct job *j);
size_t job_evidence_groups(const struct job *j);

/* pace.c */
void job_forget_pace(struct job *j);
void job_judge_slow(const struct job *j, uint64_t end_ms, struct buf *out); /* the verdict's words; nothing: none was */

/* repeat.c */
/* At the settlement: compares the failure with the one before, and remembers it. True: it is a repeat. */
bool job_judge_repeat(struct job *j, bool charged);
bool job_repeated_too_often(const struct job *j); /* the last failure: --repeat-limit */

/* budget.c */
uint64_t job_round_end_ms(const struct job *j); /* STOPPING: when it was stopped, or hung */
void job_refill_if_earned(struct job *j, uint64_t now_ms, bool repeat);
void job_charge(struct job *j, bool charged);                /* for the cause, which is settled */
void job_learn_budget(struct job *j, const struct hello *h); /* RECOVERING */

/* An answer to a heartbeat. */
enum { MEMBER_ACKS = 8 };
struct sent_ack {
  uint32_t id;
  uint64_t at_ms;
  bool fence;
};

/* A node's vote on the next round, and since when it follows this daemon: voters.c, in_charge.c. */
struct member_vote {
  int64_t standby_port;                  /* where its agent would start a daemon; 0: nowhere */
  char incarnation[INCARNATION_MAX + 1]; /* the last round that it was part of; "": none */
  int64_t round;
  bool tie_breaker, in_base, base_tie_breaker;
  uint64_t welcomed_ms; /* WELCOME, the first one on its connection; 0: unknown */
  uint64_t start_ms;    /* the last START on its connection; 0: none */
  uint64_t followed_ms; /* it followed this daemon then, or later; 0: never */
  uint64_t held_ms;     /* what another daemon allowed with its vote may run until then */
  uint32_t last_beat;   /* on this connection; 0: none */
  struct sent_ack acks[MEMBER_ACKS];
};

/* in_charge.c */
struct voter {
  bool current, tie_breaker, base,
      base_tie_breaker; /* of which round, and whether half of it is enough with this one */
  bool dead, here;      /* surely; connected */
  bool apart;           /* dead, and it may have followed another daemon before */
  bool knows;           /* the current round */
  bool asked;           /* to give its vote up */
  bool carried;         /* into the round that is about to be sealed */
  uint64_t followed_ms; /* it followed this daemon then, or later; 0: never */
  uint64_t from_ms;     /* its vote counts from then on */
  uint64_t place;       /* a hash of host and address; 0: unknown */
  uint64_t host;        /* a hash of its host; 0: unknown */
};
struct voter_count {
  size_t here, tie_breakers; /* connected, or dead and not apart */
  size_t apart;
};
struct kept_successor {
  char agent[AGENT_ID_MAX + 1], host[HOST_MAX + 1], addr[ADDR_MAX + 1];
  int64_t port;
};
struct quorum {
  bool on;      /* another daemon could take the last sealed round over: a majority is asked, */
  bool lasting; /* even when the round is firm */
  bool all;     /* any single voter may go on elsewhere: --claim */
  bool firm;
  struct map voters; /* agent id -> struct voter */
  int64_t nodes, base_nodes, base_round;
  char base_incarnation[INCARNATION_MAX + 1];
  struct voter_count current, base;
  struct voter_count unbound; /* of the base: connected, and they do not know the current round */
  struct kept_successor successors[SUCCESSORS_MAX];
  size_t n_successors;
  uint64_t sealed_ms;          /* by this daemon; 0: by another */
  uint64_t retiring_ms;        /* nodes were asked to give up their votes: until when that is waited for */
  bool one_counts;             /* the vote of at least one node of the round */
  bool untold;                 /* the whole round has come here, and does not know that it may go on */
  int64_t agreed;              /* voters that followed this daemon at the last seal */
  struct {                     /* RECOVERING: what its nodes say of the round */
    uint64_t judge_ms;         /* all votes count from then on */
    bool same_daemon;          /* a node followed this daemon before: it was restarted */
    bool has_began, head_came; /* its begin is known; its node rank 0 has come */
    int64_t began_ms;          /* by our clock, and perhaps below 0 */
    bool any_booted;           /* a node came whose machine was booted after a round began */
  } recovering;
  struct {                    /* the last look at all voters, and its result */
    uint64_t at_ms, until_ms; /* this daemon is in charge until then */
    uint64_t next_from_ms;    /* when the next vote begins to count; UINT64_MAX: none */
    bool news, fresh;         /* heartbeats came since; it counts no longer */
  } look;
};
/* A change of what a voter is: tally it with -1 before, and with 1 behind. */
void quorum_tally(struct quorum *q, const struct voter *v, int by);
size_t quorum_lacking(const struct voter_count *c, int64_t voters); /* how many more make a majority */
/* Enough of the base do not know the recovered round, and too few of its own nodes are here: the base decides. */
bool quorum_may_pass_over(const struct quorum *q);
bool quorum_needs(const struct quorum *q, const struct voter *v); /* its vote is one of those that decide */
/* Whether nothing but its death is to be known of it: its vote counts. For the base, or the current round. */
bool quorum_counts_dead(const struct quorum *q, const struct voter *v, bool base);
void member_read_start(const struct member *m); /* of the current round */
void job_quorum_forget(struct job *j);          /* another round is recovered */
void job_quorum_load(struct job *j);            /* its line says that another daemon may have it */
void job_quorum_member(const struct member *m); /* its connection came or went */
/* Enough votes come with these nodes. False: others were asked to give theirs up. */
bool member_has_vote(const struct member *m);
bool job_quorum_carries(struct job *j, struct member *const *chosen, size_t n, uint64_t now_ms);
void job_quorum_settle(struct job *j, uint64_t now_ms); /* FORMING: what is lacking may be asked for */
void job_quorum_rebase(struct job *j);                  /* its token comes next */
void job_quorum_seal(struct job *j, uint64_t now_ms);   /* it has its nodes, ranks, and addresses */
void job_quorum_fill_start(struct job *j, const struct member *m, struct start *s, struct successor successors[]);
bool job_quorum_allows_seal(const struct job *j, uint64_t now_ms);
bool job_quorum_allows_it_now(const struct job *j, uint64_t now_ms); /* looks at all voters: right before a seal */
void job_quorum_all_work(struct job *j);
void job_quorum_tell(struct job *j, uint64_t now_ms); /* then nodes are told that it goes on */
uint64_t job_quorum_tell_deadline(const struct job *j);
/* FORMING: 0: nothing is in the way of a seal; else when to look again; UINT64_MAX: when a vote comes. */
uint64_t job_quorum_deadline(const struct job *j, uint64_t now_ms);
uint64_t job_quorum_judges_ms(const struct job *j); /* RECOVERING; UINT64_MAX: not without the missing nodes */
size_t job_agreed(const struct job *j);             /* voters that follow this daemon */

void job_quorum_expect(struct job *j, const char *key, const char *host, uint64_t place); /* only that is known of it */
void job_quorum_drop(struct job *j, const char *key);
size_t job_quorum_confirm_dead(struct job *j, const char *host); /* how many votes of that host count as dead now */
void job_quorum_count_dead(struct job *j, struct voter *v, uint64_t dead_ms); /* it is dead, and counts from then on */

/* rebuild_from_agents.c */
void job_account_for_rank(struct job *j, int64_t node_rank); /* of the recovered round: nothing unknown runs there */

/* reboot.c */
uint64_t member_place(const struct member *m);
/* Its machine is the one of that place, and was booted after that time. */
bool member_was_booted_at(const struct member *m, uint64_t since_ms, uint64_t place);
void job_find_booted(struct job *j, const struct member *m); /* m came without a vote */
void job_voter_left(struct job *j, struct voter *v);
void job_learn_head(struct job *j, const struct hello *h, uint64_t now_ms); /* RECOVERING: of a node of the round */

/* claim.c */
/* The claim of the next round, with exactly these nodes, is won; otherwise it is asked for. True at once without
 * claims. */
bool job_has_claim(struct job *j, struct member *const *chosen, size_t n, uint64_t now_ms);
int64_t job_next_claimed_round(const struct job *j);
/* FORMING: too few nodes are here to claim a round; whether the job has ended elsewhere is asked now and then. */
uint64_t job_claim_look_deadline(const struct job *j);
void job_claim_look(struct job *j, uint64_t now_ms);
bool job_claim_waits(const struct job *j); /* for heartbeats */
void job_claim_forget(struct job *j);      /* another round is recovered */
void job_claim_destroy(struct job *j);
void job_claim_remove_all(struct job *j);           /* the job has ended */
void job_claim_note_loss(struct job *j, bool dead); /* a node is gone; dead: surely */
const char *job_claim_text(const struct job *j);    /* why the next round is not claimed; "" */
uint64_t job_claim_deadline(const struct job *j);   /* when job_has_claim is to be asked again; 0: now */

/* announce.c. Each but the first does nothing if nobody wants events. */
void job_announce_create(struct job *j);
void job_announce_destroy(struct job *j);
void job_announce_state(struct job *j, enum job_state from, uint64_t now_ms); /* job_enter, before the entry action */
void job_announce_event(struct job *j, const struct job_event *ev);           /* before the table's handler */
void job_announce_sealed(struct job *j, uint64_t now_ms);
void job_announce_verdict(struct job *j, bool charged, uint64_t now_ms);  /* last_verdict, and the budget is charged */
void job_announce_drain(struct job *j, const struct member *m);           /* its `drained` has changed */
void job_announce_host(struct job *j, const char *host, const char *why); /* suspicion.c excludes it now */
void job_announce_pairs(struct job *j, bool found, uint64_t took_ms, const char *text);
/* A rank is slow, and costs so much of the time; -1: it keeps up again. Takes text. */
void job_announce_slow(struct job *j, int64_t node_rank, int64_t rank, int permille, struct buf *text);
void job_announce_refusal(struct job *j, const char *host, const char *text);
void job_announce_tick(struct job *j, uint64_t now_ms);
uint64_t job_announce_deadline(const struct job *j);

/* Lifts the drains of this incarnation that have this `by`. False: there are none. */
bool job_readmit(struct job *j, const char *by);

/* lease.c */
void job_scan_leases(struct job *j, uint64_t now_ms, uint64_t lag_ms);

/* check.c */
void job_begin_check(struct job *j, struct member *m, uint64_t now_ms); /* the round is settled, and m was in it */

/* past.c */
void job_note_past(struct job *j, bool charged); /* the round is settled, and its members are still in it */
void job_note_success(struct job *j);            /* its nodes are still in the round */
void job_save_past(const struct job *j);
void job_clear_past(struct job *j, const char *host);
void job_note_other_host(struct job *j, const struct member *m); /* a worker of m exited with 16 */
void job_settle_other_host(struct job *j);
void job_rotate_ranks(struct job *j);
void job_tell_avoided(struct job *j, struct member *const *chosen, size_t n);

/* lost_node_hold.c */
/* When the workers of a node are dead that was heard last at that time and need not fence; UINT64_MAX: nobody knows. */
uint64_t job_unfenced_until(const struct job *j, uint64_t heard_ms);
bool job_all_fence(const struct job *j); /* each node of the round must fence, and knows it */
/* A clause that names the nodes whose workers may live for longer than a lease. False: there are none. */
bool job_put_held(const struct job *j, struct buf *out);

/* ids.c */
void job_ids_seal(struct job *j, uint64_t now_ms); /* the round has its nodes and ranks: chooses who mints */
void job_ids_start(const struct job *j, const struct member *m, struct start *start); /* borrows from j */
/* m is back: repeats messages that it may have missed. */
void job_ids_resume(struct job *j, const struct member *m, const struct hello *h);
/* The round goes on: finds nodes that have the ids, or mint them. */
void job_ids_recovered(struct job *j, uint64_t now_ms);
uint64_t job_ids_deadline(const struct job *j);
void job_ids_tick(struct job *j, uint64_t now_ms); /* may end the round */
void job_ids_forget(struct job *j);

/* goodput.c */
void goodput_create(struct job *j);
void goodput_destroy(struct job *j);
void goodput_enter(struct job *j, enum job_state to, uint64_t now_ms); /* job_enter, before the state changes */
void goodput_turn(struct job *j, uint64_t now_ms); /* FORMING: there are enough nodes, or no longer */
void goodput_name_missing(const struct job *j, const struct waiting *w); /* FORMING: as WAITING says it */
void goodput_started(struct job *j, uint64_t at_ms, bool in_place);      /* a node has; workers of it have stayed */
void goodput_progress(const struct member *m, uint64_t now_ms);          /* its fields are those of PROGRESS */
void goodput_settle(struct job *j);                                      /* the cause of the round's end is final */
void goodput_forget(struct job *j, uint64_t now_ms);                     /* RECOVERING begins */
void goodput_hello(struct job *j, const struct hello *h);                /* RECOVERING: of any node */
void *goodput_line_json(const struct job *j);                            /* for the job's line; json_t, the caller's */
void goodput_load(struct job *j, const void *json, bool ended);          /* the same; NULL is fine */

/* health.c */
void job_health_forget(struct member *m); /* m is being removed */
void job_health_destroy(struct job *j);
void job_health_recover(struct job *j,
                        uint64_t now_ms); /* RECOVERING begins: its nodes say again what they have said */
uint64_t job_health_deadline(const struct job *j);
void job_health_tick(struct job *j, uint64_t now_ms);

/* announce.c, of an odd host: the line goes to all agents of the job. */
struct finding;
void job_announce_odd(struct job *j, const char *host, const struct finding *f, const char *text);
void job_send_notice(struct job *j, const char *text); /* job_notice without its event */

/* drain.c: a drain of the job's own holds for this incarnation of it alone. */
/* False: the job cannot go on without the host, or there are too many drains. */
bool job_may_exclude(const struct job *j, const char *host);
struct drain job_own_drain(const struct job *j, const char *host, const char *by); /* borrows both */

/* rebuild_from_agents.c */
void job_recover_hello(struct job *j, const struct job_event *ev);
void job_recover_finish(struct job *j, uint64_t now_ms);
void job_hold_missing(struct job *j, uint64_t now_ms); /* nodes of the round that have not come back */

/* state_line.c */
void job_save(const struct job *j);

#endif
