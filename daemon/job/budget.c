/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a failure, and when it is refunded.
 *
 * A worker's failure charges one restart. When --max-restarts are used, the next failure ends the job. The budget is
 * there to end a job that fails again and again at the same point, not one that loses a worker a week. So everything
 * used is refunded at the end of a round that lived 10 minutes, or that came further than any charged round before it. A
 * failure that came again without progress (repeat.c) refunds nothing, however long its round lived. A hung round lived
 * until its last progress.
 *
 * "Further" is strict: a crash that always comes at step 100 must not be forgiven by the 99 steps before it, nor two
 * bugs at steps 3 and 5 each by the other. failed_step is the highest step that any node reported in any charged round,
 * and never goes down. A round's own step is that of its slowest node.
 *
 * All of it is decided when a round is settled, so every node that received START or SETTLED can report it to a daemon
 * that has forgotten. Such a daemon does not know how long the round had lived; it starts at 0, which refunds nothing
 * too early. */

#include "daemon/job/internal.h"

uint64_t job_round_end_ms(const struct job *j) {
  bool hung = j->cause.cause == CAUSE_WORKER_HUNG && j->cause_ms < j->state_ms;
  return hung ? j->cause_ms : j->state_ms;
}

static uint64_t round_age_ms(const struct job *j, uint64_t now_ms) {
  if (j->state == JOB_STOPPING) {
    uint64_t end_ms = job_round_end_ms(j);
    return end_ms > j->round_ms ? end_ms - j->round_ms : 0;
  }
  return job_round_goes_on(j) ? now_ms - j->round_ms : 0;
}

bool job_has_earned(const struct job *j, uint64_t now_ms) {
  bool in_round = job_round_goes_on(j) || j->state == JOB_STOPPING;
  if (!j->restarts_used || !in_round) return false;
  return round_age_ms(j, now_ms) >= JOB_LONG_ROUND_MS || job_steps(j).least > j->failed_step;
}

void job_refill_if_earned(struct job *j, uint64_t now_ms, bool repeat) {
  j->last_refilled = !repeat && job_has_earned(j, now_ms);
  if (!j->last_refilled) return;
  job_log(j, LOG_INFO, "%lld used restarts are refunded", (long long)j->restarts_used);
  j->restarts_used = 0;
  j->refilled_wall_ms = j->jobs->wall_ms;
}

void job_charge(struct job *j, bool charged) {
  j->last_charged = charged;
  j->last_delay_ms = 0;
  bool short_round = !j->last_refilled && j->state_ms - j->round_ms < JOB_SHORT_ROUND_MS; /* until its STOP */
  if (!short_round) j->short_rounds = 0;
  if (!charged) return;
  if (short_round) { /* it delays the next one; the first restart is at once */
    uint64_t delay = j->short_rounds == 0 ? 0 : 1000;
    for (unsigned i = 1; i < j->short_rounds && delay < JOB_DELAY_MAX_MS; i++) delay *= 2;
    j->short_rounds++;
    j->last_delay_ms = delay < JOB_DELAY_MAX_MS ? delay : JOB_DELAY_MAX_MS;
  }
  j->restarts_used++;
  int64_t most = job_steps(j).most;
  if (j->cause.step > j->failed_step) j->failed_step = j->cause.step;
  if (most > j->failed_step) j->failed_step = most;
}

/* All nodes that received START of a round got the same numbers, and so did all that received SETTLED. */
void job_learn_budget(struct job *j, const struct hello *h) {
  enum budget_from from = BUDGET_OLDER;
  if (h->round == j->round && h->round > 0 && h->node_rank >= 0)
    from = h->phase == PHASE_NONE ? BUDGET_SETTLED : BUDGET_START;
  if (from < j->budget_from || (from == j->budget_from && h->restarts_used <= j->restarts_used)) return;
  j->restarts_used = h->restarts_used;
  j->failed_step = h->failed_step;
  j->last_failure = h->last_failure;
  j->budget_from = from;
}

/* For people; nothing if no restart was ever used. */
void job_budget_text(const struct job *j, uint64_t now_ms, struct buf *out) {
  if (!j->restarts_used && !j->refilled_wall_ms) return;
  buf_printf(out, "  restarts: %lld of %lld used", (long long)j->restarts_used, (long long)j->settings.max_restarts);
  uint64_t age_ms = round_age_ms(j, now_ms);
  if (job_has_earned(j, now_ms))
    buf_printf(out, ", refunded when this round ends%s",
               j->last_failure.fingerprint ? ", unless the last failure comes again without progress" : "");
  else if (j->restarts_used && j->failed_step >= 0)
    buf_printf(out, ", refunded after a round of 10 min or one that passes step %lld", (long long)j->failed_step);
  else if (j->restarts_used)
    buf_puts(out, ", refunded after a round of 10 min");
  if (j->restarts_used && age_ms && age_ms < JOB_LONG_ROUND_MS && !job_has_earned(j, now_ms))
    buf_printf(out, " (this one has %llu s to go)", (unsigned long long)(JOB_LONG_ROUND_MS - age_ms) / 1000);
  if (j->last_failure.repeats)
    buf_printf(out, "; the last failure has come again %lld time%s without progress",
               (long long)j->last_failure.repeats, j->last_failure.repeats == 1 ? "" : "s");
  if (j->refilled_wall_ms)
    buf_printf(out, "; last refunded %llu s ago",
               (unsigned long long)(j->jobs->wall_ms > j->refilled_wall_ms
                                        ? (j->jobs->wall_ms - j->refilled_wall_ms) / 1000
                                        : 0));
  if (j->state == JOB_FORMING && j->not_before_ms > now_ms)
    buf_printf(out, "; delay %.0f s, %.1f s left", (double)j->last_delay_ms / 1000,
               (double)(j->not_before_ms - now_ms) / 1000);
  buf_putc(out, '\n');
}
