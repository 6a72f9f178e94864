/* SPDX-License-Identifier: Apache-2.0 */
/* The account of one job.
 *
 * Time is added when the bucket changes, and in a copy when the account is read. So nothing ticks, and the buckets add
 * up to the job's age by construction.
 *
 * Some time changes its bucket later, when more is known; all of these take it from `productive`:
 *
 *   lost        A round goes on behind a step that an earlier one had reached. All work beyond that step is lost. Its
 *               cost is the productive time since the job was at that step (history.h). Or the job has ended before
 *               the last work was saved. Or nothing came forward: a pause that is late by the job's own pace (history.h)
 *               is lost, without the time that the job usually takes. A hang is lost from the last progress on.
 *   checkpoint  Workers say afterwards how long they have waited for a checkpoint.
 *   starting    The first worker of a job reports its first step. Until then it was not known that workers of this job
 *               report steps, and their time counted from STARTED on. This happens once.
 *
 * A round whose workers say nothing of where they resumed is taken to have resumed at the step before its first one. */

#include "daemon/goodput/ledger.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

static void add(struct goodput *g, enum bucket b, int64_t ms) {
  int64_t *entry = goodput_bucket(g, b);
  ms = least(ms, GOODPUT_MAX_MS - *entry);
  *entry += ms;
  /* Before the first step of all, a start is not the cost of a restart. */
  if ((b == BUCKET_FORMING || b == BUCKET_STARTING) && !g->productive_ms && !g->lost_ms && !g->checkpoint_ms)
    g->startup_ms += ms;
}

static void move_productive(struct ledger *l, enum bucket to, int64_t ms) {
  ms = least(ms, l->sum.productive_ms);
  if (ms <= 0) return;
  l->sum.productive_ms -= ms;
  add(&l->sum, to, ms);
}

/* Time without progress. ------------------------------------------------------------------------------------------- */

enum { PAUSE_MIN_MS = 4000 }; /* a shorter one is a matter of when nodes report */

struct pace ledger_pace(const struct ledger *l, int64_t hang_timeout_ms) {
  return pace_of(&l->history, l->pauses[1], hang_timeout_ms);
}

/* The productive time that is lost because nothing has come forward, beyond what is lost for that already. It is a matter
 * of the pace alone: with a short hang timeout the judgement comes sooner. */
static int64_t stalled_until(const struct ledger *l, int64_t at_ms) {
  if (l->bucket != BUCKET_PRODUCTIVE || !l->stepped || l->still_ms >= at_ms) return 0;
  struct pace p = ledger_pace(l, 0);
  if (at_ms - l->still_ms - l->saved_ms < p.late_ms) return 0;
  int64_t ms = at_ms - most(l->still_ms, l->paid_ms) - p.usual_ms - l->saved_ms - l->stalled_ms;
  return most(ms, 0);
}

static void lose_stalled(struct goodput *g, int64_t ms) {
  ms = least(ms, g->productive_ms);
  g->productive_ms -= ms;
  add(g, BUCKET_LOST, ms);
  g->stalled_ms = least(g->stalled_ms + ms, GOODPUT_MAX_MS);
}

void ledger_stand(struct ledger *l, int64_t now_ms, int64_t since_ms) {
  if (since_ms <= l->still_ms) { /* the first one; or of a node that was away, whose age was not known */
    l->still_ms = since_ms;
    return;
  }
  int64_t until_ms = least(since_ms, now_ms);
  if (l->bucket == BUCKET_PRODUCTIVE) ledger_turn(l, BUCKET_PRODUCTIVE, until_ms);
  /* The pause has ended, and the job goes on. */
  int64_t ms = until_ms - most(l->still_ms, l->paid_ms) - l->saved_ms;
  bool pauses = l->bucket == BUCKET_PRODUCTIVE && l->stepped && ms >= PAUSE_MIN_MS;
  if (pauses && ms > l->pauses[0]) {
    l->pauses[1] = l->pauses[0];
    l->pauses[0] = ms;
  } else if (pauses && ms > l->pauses[1]) {
    l->pauses[1] = ms;
  }
  l->paid_ms = until_ms;
  l->still_ms = since_ms;
  l->stalled_ms = l->saved_ms = 0;
}

/* Time. ------------------------------------------------------------------------------------------------------------ */

/* Adds a wait that ends, or goes on, to what is known of the longest one. */
static void compare_wait(const struct ledger *l, int64_t until_ms, struct goodput *g) {
  int64_t ms = least(until_ms - l->wait_ms, GOODPUT_MAX_MS);
  if (ms <= g->waited_ms) return;
  g->waited_ms = ms;
  g->waited_for = l->missing ? l->missing : "";
}

/* What is known of the cost of a round that workers have stayed in. Its stop belongs to the next one. */
static void add_in_place(const struct ledger *l, struct goodput *g) {
  bool runs = l->bucket != BUCKET_STOPPING && l->bucket != BUCKET_WAITING && l->bucket != BUCKET_FORMING;
  if (!l->in_place || !runs) return;
  g->in_place_ms = least(g->in_place_ms + most(goodput_restarts_ms(g) - l->restarts_ms, 0), GOODPUT_MAX_MS);
}

void ledger_turn(struct ledger *l, enum bucket to, int64_t at_ms) {
  if (l->closed) return;
  at_ms = most(at_ms, l->since_ms);
  add(&l->sum, l->bucket, at_ms - l->since_ms);
  l->since_ms = at_ms;
  int64_t stalled_ms = stalled_until(l, at_ms);
  lose_stalled(&l->sum, stalled_ms);
  l->stalled_ms += stalled_ms;
  if (l->bucket == to) return;
  if (l->bucket == BUCKET_PRODUCTIVE) l->worked_until_ms = at_ms;
  if (to == BUCKET_PRODUCTIVE) l->paid_ms = at_ms;
  if (l->bucket == BUCKET_WAITING) {
    compare_wait(l, at_ms, &l->sum);
    if (l->missing && l->sum.waited_for == l->missing) {
      free(l->waited_for);
      l->sum.waited_for = l->waited_for = l->missing;
    } else {
      free(l->missing);
    }
    l->missing = NULL;
  }
  if (to == BUCKET_STOPPING) {
    add_in_place(l, &l->sum);
    l->restarts_ms = goodput_restarts_ms(&l->sum);
  }
  if (to == BUCKET_WAITING) l->wait_ms = at_ms;
  l->bucket = to;
}

void ledger_close(struct ledger *l, int64_t at_ms) {
  ledger_turn(l, BUCKET_STOPPING, at_ms);
  l->closed = true;
}

void ledger_read(const struct ledger *l, int64_t now_ms, struct goodput *out) {
  *out = l->sum;
  if (!l->closed && now_ms > l->since_ms) {
    add(out, l->bucket, now_ms - l->since_ms);
    lose_stalled(out, stalled_until(l, now_ms));
    if (l->bucket == BUCKET_WAITING) compare_wait(l, now_ms, out);
  }
  add_in_place(l, out);
}

void ledger_name_missing(struct ledger *l, const char *hosts) {
  if (l->closed || l->bucket != BUCKET_WAITING) return;
  free(l->missing);
  l->missing = hosts[0] ? xstrdup(hosts) : NULL;
}

/* Rounds and steps. ------------------------------------------------------------------------------------------------ */

static void forget_round(struct ledger *l) {
  l->stepped = l->in_place = false;
  l->resume_step = -1;
  l->saving_ms = 0;
  l->still_ms = INT64_MAX;
  l->stalled_ms = l->saved_ms = 0;
  l->round_base_ms = l->sum.productive_ms;
  history_begin_round(&l->history);
}

void ledger_begin_round(struct ledger *l, int64_t now_ms) {
  ledger_turn(l, BUCKET_STARTING, now_ms);
  l->began_ms = now_ms;
  if (l->sum.rounds < ROUND_MAX) l->sum.rounds++;
  forget_round(l);
}

void ledger_in_place(struct ledger *l) {
  if (!l->in_place && l->sum.rounds_in_place < ROUND_MAX) l->sum.rounds_in_place++;
  l->in_place = true;
}

void ledger_leave_round(struct ledger *l, int64_t now_ms) {
  ledger_turn(l, BUCKET_WAITING, now_ms);
  forget_round(l);
}

bool ledger_counts_steps(const struct ledger *l) {
  return l->sum.steps && !l->stepped;
}

/* What came after the job was at this step is done again, or nobody has it. */
static void lose_behind(struct ledger *l, int64_t step, bool before_round) {
  int64_t ms = l->sum.productive_ms;
  move_productive(l, BUCKET_LOST, ms - history_productive_at(&l->history, step, ms, before_round));
}

/* A later one could not be read. */
static void forget_unread_checkpoint(struct ledger *l) {
  if (l->sum.saved > l->resume_step) l->sum.saved = l->resume_step;
}

static void step_first(struct ledger *l, int64_t at_ms, int64_t resumed, struct history_point *p) {
  if (l->bucket == BUCKET_STARTING || l->bucket == BUCKET_PRODUCTIVE) ledger_turn(l, BUCKET_PRODUCTIVE, at_ms);
  l->stepped = true;
  l->resume_step = resumed >= 0 ? least(resumed, p->step) : p->step - 1;
  if (l->sum.steps)
    lose_behind(l, l->resume_step, true);
  else {
    /* The first worker of the job that reports a step: until now it was starting, as far as this round goes. */
    move_productive(l, BUCKET_STARTING, l->sum.productive_ms - l->round_base_ms);
    l->sum.steps = true;
    l->sum.from_step = most(l->resume_step, 0);
  }
  l->round_base_ms = l->sum.productive_ms;
  forget_unread_checkpoint(l);
  struct history_point base = *p;
  base.step = l->resume_step;
  base.productive_ms = p->productive_ms = l->sum.productive_ms;
  if (base.step < p->step) history_mark(&l->history, &base);
  history_mark(&l->history, p);
}

void ledger_step(struct ledger *l, int64_t now_ms, int64_t at_ms, int64_t resumed, struct history_point *p) {
  if (l->closed) return;
  l->sum.step = p->step;
  if (!l->stepped) {
    step_first(l, now_ms, resumed, p); /* no bucket shrinks for what comes late */
    l->sum.step_ms = p->productive_ms;
    return;
  }
  if (resumed >= 0 && resumed < l->resume_step) {
    /* A worker says it only now, and it is further back than it seemed. */
    int64_t ms = l->sum.productive_ms;
    int64_t from = history_productive_at(&l->history, l->resume_step, ms, true);
    int64_t to = history_productive_at(&l->history, resumed, ms, true);
    int64_t before_ms = l->sum.productive_ms;
    l->resume_step = resumed;
    forget_unread_checkpoint(l);
    move_productive(l, BUCKET_LOST, from - to);
    history_shift_round(&l->history, l->sum.productive_ms - before_ms);
    l->round_base_ms = most(l->round_base_ms + l->sum.productive_ms - before_ms, 0);
  }
  if (l->bucket == BUCKET_PRODUCTIVE) ledger_turn(l, BUCKET_PRODUCTIVE, now_ms);
  int64_t until_ms = l->bucket == BUCKET_PRODUCTIVE ? l->since_ms : l->worked_until_ms;
  int64_t since_ms = most(until_ms - at_ms - (at_ms <= l->still_ms ? l->stalled_ms : 0), 0);
  p->productive_ms = most(l->sum.productive_ms - since_ms, l->round_base_ms);
  l->sum.step_ms = p->productive_ms;
  history_note(&l->history, p);
}

void ledger_saving(struct ledger *l, int64_t at_ms, int64_t saving_ms) {
  int64_t ms = saving_ms - l->saving_ms;
  if (l->closed || ms <= 0) return;
  l->saving_ms = saving_ms;
  if (l->bucket != BUCKET_PRODUCTIVE) return; /* that time is in a bucket of its own */
  ledger_turn(l, BUCKET_PRODUCTIVE, at_ms);
  ms = least(ms, l->sum.productive_ms - l->round_base_ms);
  move_productive(l, BUCKET_CHECKPOINT, ms);
  l->saved_ms += most(ms, 0);
}

void ledger_saved(struct ledger *l, int64_t step) {
  if (step >= 0 && !l->closed) l->sum.saved = step;
}

void ledger_hang(struct ledger *l, int64_t since_ms) {
  int64_t worked_ms = l->sum.productive_ms - l->round_base_ms;
  move_productive(l, BUCKET_LOST, least(l->worked_until_ms - since_ms - l->stalled_ms, worked_ms));
}

void ledger_lose_unsaved(struct ledger *l) {
  if (l->sum.saved >= 0) lose_behind(l, l->sum.saved, false);
}

/* The whole. ------------------------------------------------------------------------------------------------------- */

void ledger_finish(struct ledger *l) {
  history_finish(&l->history);
  free(l->waited_for);
  free(l->missing);
  memset(l, 0, sizeof *l);
}

void ledger_begin(struct ledger *l, int64_t now_ms) {
  ledger_finish(l);
  goodput_init(&l->sum);
  l->bucket = BUCKET_WAITING;
  l->since_ms = l->wait_ms = l->began_ms = l->worked_until_ms = now_ms;
  forget_round(l);
}

void ledger_adopt(struct ledger *l, const struct goodput *g, int64_t since_ms, bool in_round, uint64_t since_wall_ms) {
  char *waited_for = g->waited_for[0] ? xstrdup(g->waited_for) : NULL;
  struct goodput copy = *g;
  ledger_begin(l, since_ms);
  l->waited_for = waited_for;
  copy.waited_for = waited_for ? waited_for : "";
  l->sum = copy;
  if (g->steps) {
    /* What is left of the history: a line from the job's first step, with which its work began, to its last one. */
    uint64_t age_ms = (uint64_t)goodput_total_ms(g);
    struct history_point first = {0, 0, least(g->from_step + 1, g->step), NAN, NAN};
    if (since_wall_ms > age_ms) first.wall_ms = since_wall_ms - age_ms;
    struct history_point last = {since_wall_ms, least(g->step_ms, g->productive_ms), g->step, NAN, NAN};
    history_mark(&l->history, &first);
    history_note(&l->history, &last);
  }
  forget_round(l);
  l->restarts_ms = goodput_restarts_ms(&l->sum);
  if (in_round) l->bucket = BUCKET_STARTING;
}
