#ifndef AGENT_SUPERVISOR_INTERNAL_H
#define AGENT_SUPERVISOR_INTERNAL_H

/* The supervisor's inside, shared by its files (agent/supervisor*.c) and by nobody else. */

#include "agent/supervisor/supervisor.h"
#include "common/buf.h"

enum link {
  LINK_DOWN,       /* waiting for retry_ms */
  LINK_CONNECTING, /* SUP_CONNECT is out */
  LINK_GREETING,   /* connected: CHALLENGE or WELCOME is to come */
  LINK_READY,      /* welcomed */
};

/* Why the trees of this node are being killed. */
enum stop_reason {
  STOP_NONE,
  STOP_ROUND,   /* the round is over: told by the daemon, or a worker of ours failed */
  STOP_FENCED,  /* silence past the lease, and a round could form without us */
  STOP_STALE,   /* the round went on without us */
  STOP_LEAVING, /* a signal told us to leave */
  STOP_EXIT,    /* the exit code is decided: refused, or the job has ended */
};

enum {
  HEARTBEATS_KEPT = 16,
  PROGRESS_EVERY_MS = 500,
  NAG_EVERY_MS = 30000,
  TELL_AFTER_MS = 250,
  EARLY_MS = 1000
};

struct worker {
  int pid;                    /* 0: not spawned */
  bool spawned, exited, gone; /* exited: and it counts; gone: whatever it counts for */
  uint64_t step, of;
  double loss, samples_per_second;
  bool told_progress;
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

/* supervisor_hang.c */
struct hang {
  uint64_t look_ms;    /* the next one; looking: until when it is waited for. UINT64_MAX: none */
  uint64_t looked_ms;  /* the last one */
  uint64_t probed_ms;  /* when the probe began */
  uint64_t stop_by_ms; /* probing, and then the trees are stopped at the latest; UINT64_MAX: not probing */
  bool looking, ours;  /* ours: a worker here hangs; else STOP told of another's */
  bool unanswered;     /* the last look was not answered */
  bool reported;       /* what the probe found */
  bool again, done; /* its answer was late: looked once more before it is believed; it has shown all since */
  struct verdict heard; /* of another node, by STOP; a copy */
  uint64_t heard_ms;    /* when that one's silence began */
};

/* supervisor_park.c */
struct park {
  struct local_set keep; /* STOPPING: who is not stopped, as the guard knows it */
  bool clear;            /* STOPPING: all others are gone */
  uint64_t by_ms;    /* STOPPING: when those of them that have not parked are stopped; UINT64_MAX: all have */
  uint64_t first_ms; /* of this round, when somebody parked unasked; 0: nobody has */
  uint32_t first;    /* who, and why */
  char reason[256];
  bool dismissing;     /* between rounds: who was parked is being stopped, and CLEAR of */
  bool hurried;        /* with SIGKILL */
  int64_t clear_round; /* is to come; then: */
  bool exiting;        /* SUP_EXIT, */
  const char *bye;
  struct start *start; /* or what START wanted meanwhile; NULL: nothing */
  struct bytes *guests;
};

/* supervisor_ids.c */
struct minting { /* ids first .. first + count - 1, by a helper of ours */
  int64_t first, count, version;
  uint32_t number;
  uint64_t by_ms;
  struct bytes *ids; /* NULL: not yet */
};
struct ids_of_round {
  int64_t n, version; /* 0: it has none */
  struct bytes *all;  /* NULL: IDS has not come */
  bool none;          /* IDS has said that there will be none */
  struct minting v[NCCL_IDS_MAX];
  size_t n_minting;
  uint32_t last_number; /* of a helper, ever */
  bool spawned;         /* SUP_SPAWN is out: helpers find the environment of its workers */
};

struct own_report {
  struct report report; /* `what` is a copy */
  uint64_t at_ms;
};

struct supervisor {
  struct supervisor_config config; /* strings are our own */
  enum supervisor_state state;
  uint64_t now_ms; /* of the event being stepped */
  struct supervisor_effects *fx;

  /* The link: supervisor_link.c. */
  enum link link;
  bool welcomed; /* ever */
  bool said_lost;
  bool met_stranger; /* the last attempt met somebody who has not welcomed us */
  bool short_link;   /* the last one that was welcomed was gone within SUPERVISOR_RETRY_MAX_MS */
  bool moved;        /* to a daemon at another address, which has not shown yet that it knows our round */
  uint64_t retry_ms, retry_delay_ms;
  uint64_t connect_ms;    /* when the last SUP_CONNECT went out */
  uint64_t greeting_ms;   /* GREETING ends */
  uint64_t ready_ms;      /* when it was welcomed on this connection */
  uint64_t daemonless_ms; /* since when there is no daemon */
  uint64_t nag_ms;        /* when the last LINK_DOWN was said */
  uint64_t hello_sent_ms;
  int64_t hello_seq; /* the last report that it carried */
  bool hello_said;   /* on this connection */

  /* Signs of life, and what follows where they are not answered. */
  uint64_t next_heartbeat_ms;
  uint32_t heartbeat_seq;
  uint64_t heartbeat_sent[HEARTBEATS_KEPT];
  uint64_t acked_sent_ms; /* when the last acknowledged one was sent */
  uint64_t answered_ms;   /* the same, but a refused connection is none */
  bool fence;
  bool fenced_out;        /* fenced, and not welcomed since */
  uint64_t told_fence_ms; /* what the guard has; UINT64_MAX: nothing */

  /* The round: supervisor_round.c. */
  char incarnation[INCARNATION_MAX + 1];
  int64_t seen_round; /* the latest that the daemon has named: not below `round` */
  int64_t round, node_rank, round_nodes, rank_base, world_size, restarts_used, failed_step;
  char head_host[HOST_MAX + 1];
  struct worker *workers;
  int64_t n_spawned, n_succeeded;
  struct own_report reports[REPORTS_MAX];
  size_t n_reports;
  int64_t report_seq;

  /* Its end. */
  enum stop_reason reason;
  bool fenced;      /* its trees were killed for silence, whatever else is the reason */
  uint64_t stop_ms; /* when the trees were told to stop */
  uint64_t kill_ms; /* when they are killed, at the latest */
  uint64_t wait_ms; /* when it is said next who has not stopped yet; UINT64_MAX: nobody is waited for */

  /* Its checkpoints: supervisor_prepare.c. */
  bool prepared;     /* PREPARE came for it */
  uint32_t asked;    /* how many checkpoints were asked for in this round */
  bool asking;       /* the last of them is not there yet */
  uint64_t asked_ms; /* when it was asked for */

  struct ids_of_round ids;

  /* Its store. */
  int64_t store_port; /* the driver has it ready for our next round as node rank 0; 0: none */
  int64_t told_port;  /* what the daemon was told last */
  bool serving;       /* this is node rank 0 of a round that is not known to be over */
  bool shut;          /* FINISHED: it was closed to those who come new, and that was reported */

  /* Verdicts, each a copy: supervisor_say.c. */
  struct verdict said;   /* that was shown last */
  struct verdict last;   /* the last that was heard */
  struct verdict untold; /* the first that was heard of, not shown yet */
  uint64_t tell_ms;      /* when it is shown, if SETTLED has not come; UINT64_MAX: there is none */

  struct hang hang;
  struct park park;

  /* While a round forms, or there is no daemon: supervisor_forming.c. */
  struct bytes *waiting;           /* the last WAITING; NULL: nothing is waited for, as far as is known */
  char *down_text;                 /* why there is no daemon; NULL: there is */
  uint64_t waiting_ms;             /* when WAITING came */
  uint64_t forming_ms;             /* when the first line is due */
  uint64_t redraw_ms;              /* and when the living one is */
  uint64_t said_forming_ms;        /* when the last line was said; 0: none was */
  int64_t said_here, said_missing; /* what it told */
  bool said_enough, forming_news;
  bool drawn; /* there is a living line */

  /* The agent's beginning and end: supervisor_end.c. */
  uint64_t begun_ms;        /* SUP_START */
  int64_t rounds;           /* whose START came here */
  int signals, leave_signo; /* how many came; the first */
  bool by_clock;            /* that was none, but the time to leave */
  int exit_code;
  bool heard_end;
  enum outcome outcome; /* of the job, once END was heard; */
  int64_t end_round;    /* and in which round */
  uint64_t kill_by_ms;  /* leaving: when what runs is killed, whatever else happens */
  uint64_t ask_by_ms;   /* leaving: a checkpoint is waited for until then; UINT64_MAX: it is not */
  uint64_t leave_by_ms; /* leaving or exiting: no later than this; UINT64_MAX: not leaving */

  /* PROGRESS: supervisor_progress.c. */
  uint64_t progress_ms; /* when the next may be sent; UINT64_MAX: none was yet */
  bool progress_new;
};

/* supervisor.c */
struct supervisor_effect *sup_effect(struct supervisor *s, enum supervisor_effect_kind kind);
void sup_set_state(struct supervisor *s, enum supervisor_state to);
void sup_send(struct supervisor *s, const struct msg *m);
bool sup_has_trees(const struct supervisor *s);  /* STARTING, RUNNING, STOPPING; not who is parked */
bool sup_is_exiting(const struct supervisor *s); /* the exit code is decided; only the trees are waited for */

/* supervisor_link.c */
void sup_connect(struct supervisor *s);
void sup_link_up(struct supervisor *s, const struct supervisor_event *ev);
void sup_link_down(struct supervisor *s, const struct supervisor_event *ev);
void sup_say_hello(struct supervisor *s);
/* In no round: the latest there is. */
void sup_learn(struct supervisor *s, const char *incarnation, int64_t round);
bool sup_is_outdated(struct supervisor *s, uint64_t answered_ms); /* then the link was dropped */
void sup_welcome(struct supervisor *s, const struct welcome *w);
void sup_heartbeat_ack(struct supervisor *s, uint32_t seq, uint16_t flags);
void sup_tell_guard(struct supervisor *s); /* by when it must fence, where that has changed */
void sup_fenced(struct supervisor *s, const struct supervisor_event *ev);
void sup_link_tick(struct supervisor *s);
uint64_t sup_link_deadline(const struct supervisor *s);

/* supervisor_round.c */
void sup_start(struct supervisor *s, const struct msg *m);
void sup_stop(struct supervisor *s, const struct stop *stop);
void sup_settled(struct supervisor *s, const struct settled *settled);
void sup_stale(struct supervisor *s, const struct stale *stale);
void sup_kill(struct supervisor *s, const struct kill *kill);
void sup_spawned(struct supervisor *s, const struct supervisor_event *ev);
void sup_exec_failed(struct supervisor *s, const struct supervisor_event *ev);
void sup_device_held(struct supervisor *s, const struct supervisor_event *ev);
void sup_exited(struct supervisor *s, const struct supervisor_event *ev);
void sup_clear(struct supervisor *s, const struct supervisor_event *ev);
void sup_describe_worker(const struct supervisor *s, uint32_t local_rank, struct verdict *v);
void sup_stop_trees(struct supervisor *s, enum stop_reason reason, uint64_t grace_ms);
void sup_report(struct supervisor *s, enum report_kind kind, const struct verdict *what, uint64_t at_ms);
void sup_send_report(struct supervisor *s, const struct own_report *r);
void sup_clear_round(struct supervisor *s); /* reports, workers but for who is parked */
void sup_fail(struct supervisor *s, const struct verdict *v, uint64_t at_ms);
void sup_stopped(struct supervisor *s); /* nothing of the round is left here */
void sup_store(struct supervisor *s, const struct supervisor_event *ev);
void sup_close_store(struct supervisor *s); /* the round is over, or we leave */

/* supervisor_forming.c */
void sup_waiting(struct supervisor *s, const struct msg *m);
void sup_forming_over(struct supervisor *s); /* the state is another: nothing is waited for any more */
void sup_keep_why_down(struct supervisor *s, const char *text); /* NULL: there is a daemon */
/* While s->waiting: who is missing. */
void sup_put_waiting(const struct supervisor *s, uint64_t now_ms, struct buf *out);
void sup_forming_tick(struct supervisor *s);
uint64_t sup_forming_deadline(const struct supervisor *s);

/* supervisor_orphan.c */
void sup_orphan_tick(struct supervisor *s);
uint64_t sup_orphan_deadline(const struct supervisor *s);

/* supervisor_wait.c */
void sup_wait_begin(struct supervisor *s, uint64_t grace_ms); /* the trees were told to stop, or told again */
void sup_wait_tick(struct supervisor *s);
uint64_t sup_wait_deadline(const struct supervisor *s);

/* supervisor_end.c */
void sup_end(struct supervisor *s, const struct end *end);
void sup_refused(struct supervisor *s, const struct refused *r);
void sup_signal(struct supervisor *s, int signo, const char *why);
void sup_guard_gone(struct supervisor *s, const struct supervisor_event *ev);
void sup_exit(struct supervisor *s, int code, const char *bye); /* bye: told to the daemon; NULL: nothing */

/* supervisor_prepare.c */
/* SUP_REQUEST, with the checkpoint that was asked for */
void sup_request(struct supervisor *s, unsigned bits, const struct local_set *of); /* NULL: of all */
void sup_prepare(struct supervisor *s, const struct prepare *p);
void sup_can_checkpoint(struct supervisor *s, const struct supervisor_event *ev);
void sup_checkpointed(struct supervisor *s, const struct supervisor_event *ev);
/* On leaving: asks the workers for a checkpoint and waits for it, ask_ms at most; then they are stopped. False: none of them can. */
bool sup_leave_prepared(struct supervisor *s, uint64_t ask_ms);
/* After each event: has what was waited for come, or become impossible? */
void sup_prepare_watch(struct supervisor *s);
/* STOP comes: where the time for the checkpoint is over, names the ranks that have not written it. */
void sup_prepare_stopped(struct supervisor *s);
uint64_t sup_prepare_deadline(const struct supervisor *s);

/* supervisor_progress.c */
void sup_progress(struct supervisor *s, const struct supervisor_event *ev);
void sup_progress_tick(struct supervisor *s);
/* The worker that is furthest behind, of those that told; NULL: none has. Also the sum of all their rates. */
const struct worker *sup_slowest(const struct supervisor *s, double *samples_per_second);
uint64_t sup_progress_deadline(const struct supervisor *s);

/* supervisor_park.c */
void sup_can_rejoin(struct supervisor *s, const struct supervisor_event *ev);
void sup_parked(struct supervisor *s, const struct supervisor_event *ev);
/* The trees are about to be stopped, for the first time in this round or for a weightier reason: s->park.keep, and the workers are asked. */
void sup_park_choose(struct supervisor *s, bool first, enum stop_reason reason, uint64_t grace_ms);
void sup_park_watch(struct supervisor *s); /* after each event: is all stopped that is to be? */
bool sup_park_clear(struct supervisor *s,
                    const struct supervisor_event *ev);    /* CLEAR was of those who were dismissed */
bool sup_any_parked(const struct supervisor *s);           /* between rounds */
bool sup_dismisses(const struct supervisor *s);            /* some have time to go */
void sup_dismiss(struct supervisor *s, uint64_t grace_ms); /* who is parked is not needed any more */
/* SUP_EXIT must wait for their deaths: it comes by itself. */
bool sup_park_delays_exit(struct supervisor *s, int code, const char *bye);
void sup_park_spawn(struct supervisor *s,
                    const struct msg *m); /* START: SPAWN, now or when those are gone who may not stay */
bool sup_park_cancel_spawn(struct supervisor *s); /* true: it had not come to that */
void sup_park_finish(struct supervisor *s);
void sup_park_tick(struct supervisor *s);
uint64_t sup_park_deadline(const struct supervisor *s);

/* supervisor_ids.c */
void sup_ids_start(struct supervisor *s, const struct start *start);
void sup_ids_spawned(struct supervisor *s); /* SUP_SPAWN is out */
void sup_mint(struct supervisor *s, const struct mint *ask);
void sup_ids(struct supervisor *s, const struct msg *m);
void sup_minted(struct supervisor *s, const struct supervisor_event *ev);
void sup_mint_failed(struct supervisor *s, const struct supervisor_event *ev);
void sup_nccl_up(struct supervisor *s, const struct supervisor_event *ev);
void sup_ids_release(struct supervisor *s); /* nobody needs our helpers any more */
void sup_ids_clear(struct supervisor *s);   /* a new round, or the end: without effects */
void sup_ids_tick(struct supervisor *s);
uint64_t sup_ids_deadline(const struct supervisor *s);

/* supervisor_hang.c */
void sup_hang_begin(struct supervisor *s); /* all workers run */
void sup_hang_end(struct supervisor *s);   /* they are being stopped */
void sup_hang_sign(struct supervisor *s, uint32_t round, uint32_t local_rank, enum hang_sign sign,
                   uint64_t when_ms);
void sup_hang_looked(struct supervisor *s, const struct supervisor_event *ev);
void sup_hang_probed(struct supervisor *s, const struct supervisor_event *ev);
void sup_hang_facts(struct supervisor *s, const struct supervisor_event *ev);
void sup_hang_probe_done(struct supervisor *s, const struct supervisor_event *ev);
/* STOP came; true: trees are stopped later */
bool sup_hang_stop(struct supervisor *s, const struct verdict *v);
void sup_hang_tick(struct supervisor *s);
uint64_t sup_hang_deadline(const struct supervisor *s);

/* supervisor_say.c */
void sup_say(struct supervisor *s, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Once per verdict. */
void sup_say_verdict(struct supervisor *s, const struct verdict *v, const char *before);
void sup_say_failure(struct supervisor *s, const struct verdict *v); /* of a worker here, or from STOP */
void sup_say_untold(struct supervisor *s);
void sup_forget_untold(struct supervisor *s);
void sup_say_settled(struct supervisor *s, const struct settled *settled);
void sup_say_start(struct supervisor *s, const struct start *start);
void sup_say_status(struct supervisor *s);

#endif
