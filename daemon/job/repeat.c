/* SPDX-License-Identifier: Apache-2.0 */
/* A failure that comes again.
 *
 * A restart helps against a fault that passes, and not against a bug that every round meets at the same place. So a
 * charged failure leaves a mark (struct failure_mark). The next one is a repeat if it failed the same way
 * (fingerprint.c), could be the workers' own doing (can_repeat), and came no further. A repeat never refunds the
 * budget, and the --repeat-limit'th in a row ends the job. A failure of another kind begins a row of its own.
 *
 * Of the signs that hang detection knows only a step means the same in two rounds. If either round has reported one,
 * the later round came further only with a higher step. Without any step the time from START to the failure is the only
 * measure. It cannot see what a checkpoint has saved, so it claims little:
 *
 *   - A round that lived longer by more than a tenth, and by more than 10 s, came further.
 *   - A short one (below 10 min, which refunds nothing by itself) that lived no longer came no further.
 *   - A long one came no further only if it lived about as long. A deterministic crash comes after the same time again.
 *     A fault from outside that hits a job which resumes from checkpoints comes after any time: 5 h, 2 h, 3 h.
 *
 * A round that ends without such a failure says nothing about the bug, unless it came further than the mark: then the
 * row is over. */

#include "daemon/job/fingerprint.h"
#include "daemon/job/internal.h"

#include <signal.h>
#include <string.h>

enum { REPEATS_MAX = 1000000, SLACK_MIN_MS = 10000 };

/* Signals that a process brings upon itself. All others are sent: by an operator, a scheduler, the kernel when memory
 * runs out. */
static bool is_own_signal(int64_t signo) {
  switch (signo) {
  case SIGILL:
  case SIGTRAP:
  case SIGABRT:
  case SIGBUS:
  case SIGFPE:
  case SIGSEGV:
  case SIGSYS: return true;
  default: return false;
  }
}

/* The failure may be the workers' own doing, so that it comes again by itself. */
static bool can_repeat(const struct job *j, const struct verdict *v) {
  if (j->drilled) return false;
  switch (v->cause) {
  /* A shell exits with 128 + N when signal N has killed its command. */
  case CAUSE_WORKER_EXIT:
    return !(v->code == 128 + SIGKILL || v->code == 128 + SIGTERM || v->code == 128 + SIGINT ||
             v->code == 128 + SIGHUP);
  case CAUSE_WORKER_SIGNAL: return is_own_signal(v->signal);
  case CAUSE_WORKER_EXEC: return v->code == 126 || v->code == 127;            /* not a limit of the machine */
  case CAUSE_WORKER_HUNG: return !v->state[0] || !strchr("TtD", v->state[0]); /* stopped, or held by the kernel */
  default: return false; /* another process's device, a lost contact, a minter; nodes that come and go */
  }
}

static int64_t lived_ms(const struct job *j) {
  if (j->age_unknown) return -1;
  uint64_t end_ms = job_round_end_ms(j);
  return end_ms > j->round_ms ? (int64_t)(end_ms - j->round_ms) : 0;
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t slack_ms(const struct failure_mark *before) {
  return larger(before->lived_ms / 10, SLACK_MIN_MS);
}

static bool came_further(const struct failure_mark *before, const struct failure_mark *now) {
  if (before->step >= 0 || now->step >= 0) return now->step > before->step;
  return before->lived_ms >= 0 && now->lived_ms > before->lived_ms + slack_ms(before);
}

static bool came_no_further(const struct failure_mark *before, const struct failure_mark *now) {
  if (before->step >= 0 || now->step >= 0) return now->step <= before->step;
  if (before->lived_ms < 0 || now->lived_ms < 0 || came_further(before, now)) return false;
  return now->lived_ms < JOB_LONG_ROUND_MS || now->lived_ms >= before->lived_ms - slack_ms(before);
}

bool job_judge_repeat(struct job *j, bool charged) {
  struct failure_mark *before = &j->last_failure;
  struct failure_mark now = {.step = larger(j->cause.step, job_steps(j).most), .lived_ms = lived_ms(j)};
  if (!charged || !can_repeat(j, &j->cause)) {
    if (came_further(before, &now)) *before = FAILURE_MARK_NONE;
    return false;
  }
  now.fingerprint = fingerprint(&j->cause);
  bool again = now.fingerprint == before->fingerprint && came_no_further(before, &now);
  if (again) {
    now.repeats = before->repeats < REPEATS_MAX ? before->repeats + 1 : REPEATS_MAX;
    now.step = larger(now.step, before->step);
    now.lived_ms = larger(now.lived_ms, before->lived_ms);
  }
  *before = now;
  return again;
}

bool job_repeated_too_often(const struct job *j) {
  return j->settings.repeat_limit && j->last_failure.repeats >= j->settings.repeat_limit;
}
