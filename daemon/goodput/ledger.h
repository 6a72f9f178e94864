/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_GOODPUT_LEDGER_H
#define DAEMON_GOODPUT_LEDGER_H

/* The account of one job: every millisecond since its first node came lies in exactly one bucket of BUCKET_LIST. Pure:
 * it knows no job, only times and steps. daemon/job/goodput.c tells it what happens to the job.
 *
 * Times are milliseconds of the daemon's clock. They are signed: another daemon's machine may have been up for less time
 * than the job. A time before the last change counts as that change. */

#include "daemon/goodput/history.h"
#include "proto/msg.h"

struct ledger {
  struct goodput sum; /* until since_ms; its text is waited_for, below */
  enum bucket bucket; /* since then */
  int64_t since_ms;
  bool closed; /* the job is over: nothing is added */

  char *waited_for, *missing; /* owned: in the longest wait; in the current one, as last named; NULL: unknown */
  int64_t wait_ms;            /* WAITING: since when */

  /* The current round. */
  bool stepped;            /* a worker has reported a step in it */
  int64_t resume_step;     /* that step, or the one before the first that was reported */
  int64_t round_base_ms;   /* productive_ms when its work began */
  int64_t worked_until_ms; /* when it stopped being productive */
  int64_t saving_ms;       /* as told */
  int64_t began_ms;        /* its START */
  bool in_place;           /* workers have stayed in it */
  int64_t restarts_ms;     /* what all restarts had cost when the round before stopped */

  /* Time without progress. */
  int64_t still_ms;   /* no worker has stood still for longer; INT64_MAX: none has a step to do */
  int64_t paid_ms;    /* what it has cost until then is paid */
  int64_t stalled_ms; /* productive time that is lost since still_ms */
  int64_t saved_ms;   /* and that went to a checkpoint: no loss */
  int64_t pauses[2];  /* the longest ones that ended by themselves: the longest first */

  struct history history;
};

void ledger_begin(struct ledger *l, int64_t now_ms); /* the first node has come */
void ledger_finish(struct ledger *l);
/* Time from `at_ms` on goes to this bucket. */
void ledger_turn(struct ledger *l, enum bucket to, int64_t at_ms);
void ledger_close(struct ledger *l, int64_t at_ms);
/* As of now. waited_for borrows from l. */
void ledger_read(const struct ledger *l, int64_t now_ms, struct goodput *out);
void ledger_name_missing(struct ledger *l, const char *hosts); /* WAITING: these; "": unknown */
bool ledger_counts_steps(const struct ledger *l); /* STARTING lasts until a step is reported, since there will be one */

void ledger_begin_round(struct ledger *l, int64_t now_ms);
void ledger_in_place(struct ledger *l);                    /* workers have stayed in the round; once or often */
void ledger_leave_round(struct ledger *l, int64_t now_ms); /* another one goes on, of which nothing is known yet */
/* Progress of the round: `p` has the step, which was reached at at_ms, loss and speed; its productive_ms is filled in.
 * resumed: -1 if no worker has said it. */
void ledger_step(struct ledger *l, int64_t now_ms, int64_t at_ms, int64_t resumed, struct history_point *p);
/* The worker that has stood still longest does so since since_ms; INT64_MAX: none has a step to do. */
void ledger_stand(struct ledger *l, int64_t now_ms, int64_t since_ms);
struct pace ledger_pace(const struct ledger *l, int64_t hang_timeout_ms); /* 0: none */
void ledger_saving(struct ledger *l, int64_t at_ms, int64_t saving_ms);   /* in this round, until now */
void ledger_saved(struct ledger *l, int64_t step);                        /* -1: none */
/* The round has ended. It made no progress since then. */
void ledger_hang(struct ledger *l, int64_t since_ms);
void ledger_lose_unsaved(struct ledger *l); /* the job is over, and nobody will do it again */

/* A daemon that comes back, or takes over: replaces all. in_round: `g` is from the START of the current round. */
void ledger_adopt(struct ledger *l, const struct goodput *g, int64_t since_ms, bool in_round, uint64_t since_wall_ms);

#endif
