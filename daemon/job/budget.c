/* What a failure costs, and when it is forgiven.
 *
 * A worker's failure charges one restart; when --max-restarts are used the next failure ends the job. The budget is there
 * to end a job that fails again and again at the same place, not one that runs for a month and loses a worker a week. So all that
 * was used is given back at the end of a round that lived 10 minutes, or that came further than any charged
 * round before it.
 *
 * "Further" is meant strictly, because a crash that always comes at step 100 must not be forgiven by the 99 steps before
 * it, nor two bugs at steps 3 and 5 each by the other. failed_step is therefore the highest step that anybody had told in
 * any charged round, and it never goes down; a round's own step is that of its slowest node. Between two
 * refills there are at most --max-restarts failures, and each refill by progress is a step ahead: a job that gets nowhere ends.
 *
 * It is all decided when a round is settled, so "restarts used" is one number for the whole round, and whoever has heard START or
 * SETTLED can tell it to a daemon that has forgotten. What such a daemon does not know is how long the round had lived before it
 * came; it counts anew, which gives nothing back too soon.
 *
 * The delay after short rounds is another matter: it keeps a crash loop from being a busy one. */

#include "daemon/job/job.h"

#include "daemon/core/internal.h"

uint64_t job_age_ms(const struct job *j, uint64_t now_ms) {
  if (j->state == JOB_STOPPING) return j->state_ms - j->round_ms;
  bool lives = j->state == JOB_STARTING || j->state == JOB_RUNNING || j->state == JOB_CHECKPOINTING;
  return lives ? now_ms - j->round_ms : 0;
}

int64_t job_step(const struct job *j) {
  int64_t least = -1;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (member_in_round(m) && m->step >= 0 && (least < 0 || m->step < least)) least = m->step;
  }
  return least;
}

bool job_has_earned(const struct job *j, uint64_t now_ms) {
  bool in_round = j->state == JOB_STARTING || j->state == JOB_RUNNING || j->state == JOB_CHECKPOINTING ||
                  j->state == JOB_STOPPING;
  if (!j->restarts_used || !in_round) return false;
  return job_age_ms(j, now_ms) >= CORE_LONG_ROUND_MS || job_step(j) > j->failed_step;
}

void job_refill_if_earned(struct job *j, uint64_t now_ms) {
  j->last_refilled = job_has_earned(j, now_ms);
  if (!j->last_refilled) return;
  core_log(j->core, LOG_INFO, "job %s: %lld used restarts are given back", j->id,
           (long long)j->restarts_used);
  j->restarts_used = 0;
  j->refilled_wall_ms = j->core->wall_ms;
}

/* A round that lived short delays the next; the first restart is at once. */
static uint64_t next_delay_ms(struct job *j, bool charged) {
  bool short_round = j->state_ms - j->round_ms < CORE_SHORT_ROUND_MS; /* until it was told to stop */
  if (!charged || !short_round) {
    if (!short_round) j->short_rounds = 0;
    return 0;
  }
  uint64_t delay = j->short_rounds == 0 ? 0 : 1000;
  for (unsigned i = 1; i < j->short_rounds && delay < CORE_DELAY_MAX_MS; i++) delay *= 2;
  j->short_rounds++;
  return delay < CORE_DELAY_MAX_MS ? delay : CORE_DELAY_MAX_MS;
}

void job_charge(struct job *j, bool charged) {
  j->last_charged = charged;
  j->last_delay_ms = next_delay_ms(j, charged);
  if (!charged) return;
  j->restarts_used++;
  if (j->cause.step > j->failed_step) j->failed_step = j->cause.step;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (member_in_round(m) && m->step > j->failed_step) j->failed_step = m->step;
  }
}

/* All who have heard START of a round were told the same, and so were all who have heard SETTLED. */
void job_learn_budget(struct job *j, const struct hello *h) {
  enum budget_from from = BUDGET_OLDER;
  if (h->round == j->round && h->round > 0 && h->node_rank >= 0)
    from = h->phase == PHASE_NONE ? BUDGET_SETTLED : BUDGET_START;
  if (from < j->budget_from || (from == j->budget_from && h->restarts_used <= j->restarts_used)) return;
  j->restarts_used = h->restarts_used;
  j->failed_step = h->failed_step;
  j->budget_from = from;
}

/* For people: nothing where nothing was ever used. */
void job_budget_text(const struct job *j, uint64_t now_ms, struct buf *out) {
  if (!j->restarts_used && !j->refilled_wall_ms) return;
  buf_printf(out, "  restarts: %lld of %lld used", (long long)j->restarts_used,
             (long long)j->settings.max_restarts);
  uint64_t age_ms = job_age_ms(j, now_ms);
  if (job_has_earned(j, now_ms))
    buf_puts(out, ", given back when this round ends");
  else if (j->restarts_used && j->failed_step >= 0)
    buf_printf(out, ", given back after a round of 10 min or one that comes past step %lld",
               (long long)j->failed_step);
  else if (j->restarts_used)
    buf_puts(out, ", given back after a round of 10 min");
  if (j->restarts_used && age_ms && age_ms < CORE_LONG_ROUND_MS && !job_has_earned(j, now_ms))
    buf_printf(out, " (this one has %llu s to go)", (unsigned long long)(CORE_LONG_ROUND_MS - age_ms) / 1000);
  if (j->refilled_wall_ms)
    buf_printf(out, "; last given back %llu s ago",
               (unsigned long long)(j->core->wall_ms > j->refilled_wall_ms
                                        ? (j->core->wall_ms - j->refilled_wall_ms) / 1000
                                        : 0));
  if (j->state == JOB_FORMING && j->not_before_ms > now_ms)
    buf_printf(out, "; delay %.0f s, %.1f s left", (double)j->last_delay_ms / 1000,
               (double)(j->not_before_ms - now_ms) / 1000);
  buf_putc(out, '\n');
}
