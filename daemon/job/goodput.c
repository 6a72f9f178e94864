/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's time went to: turns the life of a job into entries of its ledger (daemon/goodput).
 *
 *   FORMING                     forming if enough nodes are here, otherwise waiting
 *   STARTING, RUNNING           starting until the first reported step; if the job has never reported one, until RUNNING
 *   CHECKPOINTING               checkpoint
 *   STOPPING                    stopping
 *   ENDING                      the account is closed
 *
 * A daemon that comes back, or takes over, learns the account from the nodes, which have it from START and SETTLED, each
 * with its age; the state file has that of the last seal. The account with the greatest sum is the latest one. What has
 * happened since then follows from the round's phase and from the first step that the nodes report: so the time while
 * there was no daemon is in the right bucket too. A job without any account is as old as its first node's welcome.
 *
 * Ten thousand nodes report progress twice a second. All of them are looked at twice a second, not for each message, and
 * when the slowest one has come further: so a job is not taken to be a report behind. Whoever reads the account while
 * nothing comes looks at all of them, too: only then is it known how long the job stands still. */

#include "daemon/job/goodput.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"
#include "daemon/job/internal.h"

enum { GATHER_EVERY_MS = 500, GATHER_LATEST_MS = 2000, HOSTS_NAMED = 6 };

struct goodput_book {
  struct ledger ledger;
  struct goodput sealed; /* as START had it; its text is sealed_for */
  char *sealed_for;      /* owned */
  uint64_t sealed_wall_ms;
  uint32_t failures[CAUSE_COUNT];
  uint64_t gathered_ms; /* all members were looked at */
  int64_t slowest;      /* then, the node rank of the last of those that were furthest behind */
  bool measured;        /* a recovery goes on, and the current phase began here at */
  uint64_t phase_ms;
  /* RECOVERING: */
  int64_t adopted_ms;  /* the sum of the account that was adopted; 0: this daemon has its own */
  bool in_round;       /* it was from the current round's START */
  uint64_t started_ms; /* when its last node had STARTED; 0: unknown */
};

/* Recoveries. ------------------------------------------------------------------------------------------------------ */

static void note_phase(struct job *j, enum recovery_phase phase, uint64_t now_ms) {
  struct goodput_book *b = j->goodput;
  if (!b->measured) return;
  recovery_histogram_add(&j->jobs->recovery[phase], now_ms - b->phase_ms);
  b->phase_ms = now_ms;
}

static bool is_intended(const struct job *j) {
  return j->cause.cause == CAUSE_NONE || j->cause.cause == CAUSE_OPERATOR || job_is_planned_end(j);
}

static void note_first_step(struct job *j, uint64_t now_ms) {
  note_phase(j, RECOVERY_FIRST_STEP, now_ms);
  j->goodput->measured = false;
}

/* Progress. -------------------------------------------------------------------------------------------------------- */

static bool is_judged(const struct member *m) {
  const struct job *j = m->job;
  return (j->state == JOB_RUNNING || j->state == JOB_CHECKPOINTING) && member_in_round(m) && m->conn &&
         m->progress.step >= 0 && (m->state == MEMBER_STARTED || m->state == MEMBER_FINISHED);
}

static bool has_steps_left(const struct member *m) {
  return m->state == MEMBER_STARTED && !(m->progress.of > 0 && m->progress.step >= m->progress.of);
}

enum judgement member_judge(const struct member *m, const struct pace *p, uint64_t age_ms) {
  if (!is_judged(m)) return JUDGEMENT_COUNT;
  return has_steps_left(m) ? pace_judge(p, (int64_t)age_ms) : JUDGEMENT_UP_TO_DATE;
}

struct pace job_pace(const struct job *j) {
  return ledger_pace(&j->goodput->ledger, j->settings.hang_timeout_ms);
}

/* Since when the worker stands still that does so longest. */
static int64_t still_since(const struct job *j) {
  int64_t since_ms = INT64_MAX;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (is_judged(m) && has_steps_left(m) && m->progress.since_ms < since_ms) since_ms = m->progress.since_ms;
  }
  return since_ms;
}

/* The step of the slowest node and when it was reached, the speed of all, and the loss of the lowest rank that has
 * one. */
static void note_steps(struct job *j, uint64_t now_ms) {
  struct goodput_book *b = j->goodput;
  double speed = 0, loss = (double)NAN;
  int64_t loss_rank = INT64_MAX, step = -1, at_ms = (int64_t)j->jobs->now_ms;
  bool any_speed = false;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (!member_in_round(m) || m->progress.step < 0) continue;
    if (step < 0 || m->progress.step <= step)
      step = m->progress.step, at_ms = m->progress.since_ms, b->slowest = m->node_rank;
    if (isfinite(m->progress.samples_per_second)) speed += m->progress.samples_per_second, any_speed = true;
    if (isfinite(m->progress.loss) && m->node_rank < loss_rank) loss = m->progress.loss, loss_rank = m->node_rank;
  }
  struct history_point p = {j->jobs->wall_ms, 0, step, (float)loss, any_speed ? (float)speed : NAN};
  struct job_steps all = job_steps(j);
  b->gathered_ms = now_ms;
  ledger_stand(&b->ledger, (int64_t)now_ms, still_since(j));
  if (step >= 0) ledger_step(&b->ledger, (int64_t)now_ms, at_ms, all.resumed, &p);
  ledger_saved(&b->ledger, all.saved);
}

/* A checkpoint before the first step was a part of the start. */
void goodput_progress(const struct member *m, uint64_t now_ms) {
  struct job *j = m->job;
  struct goodput_book *b = j->goodput;
  if (!member_in_round(m)) return;
  bool first = !b->ledger.stepped && m->progress.step >= 0;
  if (first) note_steps(j, now_ms);
  ledger_saving(&b->ledger, (int64_t)now_ms, m->progress.saving_ms);
  bool further_back = b->ledger.stepped && m->progress.resumed >= 0 && m->progress.resumed < b->ledger.resume_step;
  uint64_t due_ms = b->gathered_ms + (m->node_rank == b->slowest ? GATHER_EVERY_MS : GATHER_LATEST_MS);
  if (!first && (further_back || now_ms >= due_ms)) note_steps(j, now_ms);
  if (first && j->state == JOB_RUNNING) note_first_step(j, now_ms);
}

/* The life of the job. --------------------------------------------------------------------------------------------- */

static enum bucket bucket_of(const struct job *j, enum job_state state) {
  const struct ledger *l = &j->goodput->ledger;
  switch (state) {
  case JOB_FORMING: return j->enough_ms ? BUCKET_FORMING : BUCKET_WAITING;
  case JOB_STARTING: return l->stepped ? BUCKET_PRODUCTIVE : BUCKET_STARTING;
  case JOB_RUNNING: return ledger_counts_steps(l) ? BUCKET_STARTING : BUCKET_PRODUCTIVE;
  case JOB_CHECKPOINTING: return BUCKET_CHECKPOINT;
  case JOB_STOPPING: return BUCKET_STOPPING;
  case JOB_RECOVERING:
  case JOB_ENDING:
  case JOB_ENDED:
  case JOB_STATE_COUNT: break;
  }
  return l->bucket;
}

void goodput_turn(struct job *j, uint64_t now_ms) {
  ledger_turn(&j->goodput->ledger, bucket_of(j, j->state), (int64_t)now_ms);
}

/* START has the account as it is now. */
static void note_sealed(struct job *j, uint64_t wall_ms) {
  struct goodput_book *b = j->goodput;
  free(b->sealed_for);
  b->sealed = b->ledger.sum;
  b->sealed_for = b->sealed.waited_for[0] ? xstrdup(b->sealed.waited_for) : NULL;
  b->sealed.waited_for = b->sealed_for ? b->sealed_for : "";
  b->sealed_wall_ms = wall_ms;
}

void goodput_enter(struct job *j, enum job_state to, uint64_t now_ms) {
  struct goodput_book *b = j->goodput;
  uint64_t at_ms = now_ms;
  if (to == JOB_STOPPING && j->state != JOB_RECOVERING) {
    b->measured = !is_intended(j);
    b->phase_ms = j->cause_ms < now_ms ? j->cause_ms : now_ms;
    note_phase(j, RECOVERY_DETECT, now_ms);
  } else if (to == JOB_FORMING && j->state == JOB_STOPPING)
    note_phase(j, RECOVERY_STOP, now_ms);
  else if (to == JOB_STARTING)
    note_phase(j, RECOVERY_FORM, now_ms);
  else if (to == JOB_RUNNING && j->state == JOB_STARTING) {
    note_phase(j, RECOVERY_START, now_ms);
    if (b->ledger.stepped) note_first_step(j, now_ms);
  } else if (to != JOB_RUNNING && to != JOB_CHECKPOINTING) {
    b->measured = false;
  }
  if (j->state == JOB_RECOVERING) {
    /* The round worked on while there was no daemon. It did so until it failed. */
    bool all_started = b->started_ms && !j->n_in_state[MEMBER_TOLD];
    if (b->in_round && all_started && !b->ledger.sum.steps)
      ledger_turn(&b->ledger, BUCKET_PRODUCTIVE, (int64_t)b->started_ms);
    bool failed = to == JOB_STOPPING && j->cause.cause != CAUSE_NONE;
    at_ms = failed && j->cause_ms < now_ms ? j->cause_ms : now_ms;
  }
  bool work_ends = to == JOB_STOPPING || to == JOB_ENDING;
  if (work_ends && b->ledger.stepped && j->state != JOB_STOPPING) note_steps(j, at_ms);
  if (to == JOB_STARTING && j->state == JOB_FORMING) {
    ledger_begin_round(&b->ledger, (int64_t)now_ms);
    b->gathered_ms = 0;
    note_sealed(j, j->jobs->wall_ms);
  } else if (to == JOB_ENDING) {
    ledger_close(&b->ledger, (int64_t)now_ms);
    if (j->outcome != OUTCOME_SUCCESS) ledger_lose_unsaved(&b->ledger);
    if (j->last_verdict.cause == CAUSE_JOIN_TIMEOUT) b->failures[CAUSE_JOIN_TIMEOUT]++;
  } else if (to != JOB_RECOVERING && to != JOB_ENDED)
    ledger_turn(&b->ledger, to == JOB_FORMING ? BUCKET_WAITING : bucket_of(j, to), (int64_t)at_ms);
}

void goodput_settle(struct job *j) {
  struct goodput_book *b = j->goodput;
  if (!is_intended(j)) b->failures[j->cause.cause]++;
  if (j->cause.cause == CAUSE_WORKER_HUNG) ledger_hang(&b->ledger, (int64_t)j->cause_ms);
}

void goodput_name_missing(const struct job *j, const struct waiting *w) {
  struct buf hosts = BUF_INIT;
  for (size_t i = 0; i < w->n_absent && hosts.len < HOSTS_SHOWN_MAX; i++)
    buf_printf(&hosts, "%s%s", i ? "," : "", w->absent[i].hosts);
  ledger_name_missing(&j->goodput->ledger, buf_text(&hosts));
  buf_finish(&hosts);
}

void goodput_started(struct job *j, uint64_t at_ms, bool in_place) {
  if (at_ms > j->goodput->started_ms) j->goodput->started_ms = at_ms;
  if (in_place) ledger_in_place(&j->goodput->ledger);
}

/* Coming back. ----------------------------------------------------------------------------------------------------- */

void goodput_forget(struct job *j, uint64_t now_ms) {
  struct goodput_book *b = j->goodput;
  ledger_leave_round(&b->ledger, (int64_t)now_ms);
  b->measured = b->in_round = false;
  b->adopted_ms = 0;
  b->started_ms = 0;
}

static void adopt(struct job *j, const struct goodput *g, uint64_t age_ms, bool in_round) {
  struct goodput_book *b = j->goodput;
  uint64_t wall_ms = j->jobs->wall_ms > age_ms ? j->jobs->wall_ms - age_ms : 0;
  ledger_adopt(&b->ledger, g, (int64_t)j->jobs->now_ms - (int64_t)age_ms, in_round, wall_ms);
  b->adopted_ms = goodput_total_ms(g);
  b->in_round = in_round;
  note_sealed(j, wall_ms);
}

void goodput_hello(struct job *j, const struct hello *h) {
  struct goodput_book *b = j->goodput;
  bool in_round = h->phase != PHASE_NONE && h->round == j->round;
  if (!h->incarnation[0] || (!in_round && h->phase != PHASE_NONE)) return;
  /* An account without an entry says only how old the job is, at least. */
  int64_t total_ms = goodput_total_ms(&h->goodput);
  bool better = total_ms > b->adopted_ms;
  if (!total_ms) {
    struct goodput ours;
    job_goodput(j, j->jobs->now_ms, &ours);
    better = h->goodput_age_ms > goodput_total_ms(&ours);
  }
  if (better) adopt(j, &h->goodput, (uint64_t)h->goodput_age_ms, in_round);
  if (!in_round || !b->in_round || h->first_step < 0 || b->ledger.stepped) return;
  uint64_t age_ms = (uint64_t)h->first_step_age_ms;
  int64_t at_ms = (int64_t)j->jobs->now_ms - (int64_t)age_ms;
  struct history_point p = {j->jobs->wall_ms > age_ms ? j->jobs->wall_ms - age_ms : 0, 0, h->first_step, NAN, NAN};
  ledger_step(&b->ledger, at_ms, at_ms, -1, &p);
}

/* The state file. -------------------------------------------------------------------------------------------------- */

void *goodput_line_json(const struct job *j) {
  const struct goodput_book *b = j->goodput;
  json_t *v = goodput_to_json(b->ledger.closed ? &b->ledger.sum : &b->sealed);
  json_object_set_new(v, "wall_ms", json_integer((json_int_t)b->sealed_wall_ms));
  return v;
}

void goodput_load(struct job *j, const void *json, bool ended) {
  struct goodput g;
  json_int_t at = json_integer_value(json_object_get(json, "wall_ms"));
  j->goodput->ledger.closed = ended;
  if (!json || goodput_from_json(json, &g, NULL) < 0 || at < 0) return;
  uint64_t age_ms = j->jobs->wall_ms > (uint64_t)at ? j->jobs->wall_ms - (uint64_t)at : 0;
  adopt(j, &g, age_ms < (uint64_t)GOODPUT_MAX_MS ? age_ms : (uint64_t)GOODPUT_MAX_MS, !ended);
  j->goodput->ledger.closed = ended;
}

/* The whole. ------------------------------------------------------------------------------------------------------- */

void job_goodput(const struct job *j, uint64_t now_ms, struct goodput *out) {
  struct ledger *l = &j->goodput->ledger;
  /* The time of the oldest progress is that of the last look at all nodes, so it may be later by now, and not earlier. */
  if (l->bucket == BUCKET_PRODUCTIVE && (int64_t)now_ms - ledger_pace(l, 0).late_ms >= l->still_ms) {
    ledger_stand(l, (int64_t)now_ms, still_since(j));
    ledger_turn(l, BUCKET_PRODUCTIVE, (int64_t)now_ms); /* what was shown as lost remains lost */
  }
  ledger_read(l, (int64_t)now_ms, out);
}

void job_progress(const struct job *j, uint64_t now_ms, struct job_progress *out) {
  *out = (struct job_progress){.judgement = JUDGEMENT_COUNT, .step = -1, .left_ms = -1, .pace = job_pace(j)};
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    const struct laggards *l = m->progress.laggards;
    if (!member_in_round(m)) continue;
    out->nodes++;
    if (!m->conn && !m->gone) out->away++;
    if (m->progress.step < 0) continue;
    if (out->step < 0 || m->progress.step < out->step) out->step = m->progress.step, out->of = m->progress.of;
    uint64_t age_ms = member_progress_age_ms(m, now_ms);
    enum judgement is = member_judge(m, &out->pace, age_ms);
    if (is == JUDGEMENT_COUNT) continue;
    out->in_judgement[is]++;
    if (out->judgement == JUDGEMENT_COUNT || is > out->judgement) out->judgement = is;
    if (has_steps_left(m) && age_ms > out->age_ms) out->age_ms = age_ms;
    bool has_speed = isfinite(m->progress.samples_per_second);
    out->has_speed |= has_speed;
    int64_t step = l ? l->v[0].step : m->progress.step;
    if (is >= JUDGEMENT_LATE && (!out->behind || step < out->behind_step)) {
      out->behind = m;
      out->behind_step = step;
      out->behind_local_rank = l ? l->v[0].local_rank : m->workers == 1 ? 0 : -1;
    } else if (is < JUDGEMENT_LATE && has_speed && m->progress.samples_per_second > 0) {
      out->samples_per_second += m->progress.samples_per_second;
    }
  }
  const struct history *h = &j->goodput->ledger.history;
  out->last_step = out->step < 0 && h->n ? h->v[h->n - 1].step : out->step;
  bool runs = out->judgement < JUDGEMENT_LATE && !out->away && out->pace.step_ms > 0;
  if (runs && out->of > out->step) out->left_ms = (int64_t)((double)(out->of - out->step) * out->pace.step_ms);
}

void job_progress_sentence(const struct job *j, uint64_t now_ms, const struct job_progress *p, struct buf *out) {
  if (p->judgement != JUDGEMENT_LATE && p->judgement != JUDGEMENT_STUCK) return;
  /* "1 of 64 nodes has made no progress for 41 s: gpu017". */
  size_t late = p->in_judgement[JUDGEMENT_LATE] + p->in_judgement[JUDGEMENT_STUCK], named = 0;
  if (late == p->nodes && late > 1)
    buf_puts(out, "No node has made progress for ");
  else
    buf_printf(out, "%zu of %zu node%s %s made no progress for %s", late, p->nodes, p->nodes == 1 ? "" : "s",
               late == 1 ? "has" : "have", late == 1 ? "" : "up to ");
  buf_put_duration(out, (uint64_t)p->age_ms);
  for (size_t i = 0; (late < p->nodes || late == 1) && i < j->n_members && named < HOSTS_NAMED; i++) {
    const struct member *m = j->members[i];
    enum judgement is = member_judge(m, &p->pace, member_progress_age_ms(m, now_ms));
    if (is != JUDGEMENT_LATE && is != JUDGEMENT_STUCK) continue;
    buf_puts(out, named++ ? ", " : ": ");
    if (!m->sole) buf_printf(out, "node %lld on ", (long long)m->node_rank); /* two agents of one host */
    buf_put_escaped(out, m->host, strlen(m->host), HOST_MAX);
  }
  if (late < p->nodes && late > named) buf_printf(out, " and %zu more", late - named);
  if (late == p->nodes && !p->behind->progress.laggards && p->behind_step == job_steps(j).most) return;
  buf_puts(out, "; furthest behind: ");
  if (p->behind_local_rank >= 0)
    buf_printf(out, "rank %lld (local %lld) on ", (long long)(p->behind->rank_base + p->behind_local_rank),
               (long long)p->behind_local_rank);
  buf_put_escaped(out, p->behind->host, strlen(p->behind->host), HOST_MAX);
  buf_printf(out, ", at step %lld", (long long)p->behind_step);
}

size_t job_history(const struct job *j, const struct history_point **points) {
  *points = j->goodput->ledger.history.v;
  return j->goodput->ledger.history.n;
}

uint64_t job_failures(const struct job *j, enum cause cause) {
  return j->goodput->failures[cause];
}

uint64_t job_restarts(const struct job *j) {
  int64_t rounds = j->goodput->ledger.sum.rounds;
  return rounds > 1 ? (uint64_t)rounds - 1 : 0;
}

uint64_t job_round_began_wall_ms(const struct job *j, uint64_t now_ms) {
  int64_t age_ms = (int64_t)now_ms - j->goodput->ledger.began_ms;
  return j->jobs->wall_ms > (uint64_t)age_ms ? j->jobs->wall_ms - (uint64_t)age_ms : 0;
}

void goodput_create(struct job *j) {
  j->goodput = xcalloc(1, sizeof *j->goodput);
  goodput_init(&j->goodput->sealed);
  ledger_begin(&j->goodput->ledger, (int64_t)j->jobs->now_ms);
  goodput_forget(j, j->jobs->now_ms);
}

void goodput_destroy(struct job *j) {
  ledger_finish(&j->goodput->ledger);
  free(j->goodput->sealed_for);
  free(j->goodput);
}
