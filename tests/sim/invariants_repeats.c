/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that come again. The book has what the agents truly reported, so a daemon that hears something else, or
 * counts wrongly, is seen. Two failures are alike here if cause, code, signal and the name of the exception are; the
 * numbers in its message differ each time.
 *
 * What must be a repeat is judged only where nothing is in doubt: one round after the other, each charged by the same
 * daemon, which has sealed it as well, no step reported, each short, and no longer than the one before. */

#include "tests/sim/book.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

void check_failure_told(struct sim *s, const char *incarnation, const struct report *rep) {
  const struct verdict *v = &rep->what;
  if (rep->kind != REPORT_FAILED) return;
  struct round_book *r = book_round(s->checker, incarnation, rep->round);
  if (!r->failed_at) r->failed_at = s->now;
  if (book_failure(r, v) || r->n_failures == SIM_NODES_MAX) return;
  struct told_failure *f = &r->failures[r->n_failures++];
  *f = (struct told_failure){.rank = v->rank, .code = v->code, .signal = v->signal, .cause = v->cause};
  snprintf(f->words, sizeof f->words, "%.*s", (int)strcspn(v->error, ":"), v->error);
}

static bool is_own_doing(const struct told_failure *f) {
  if (f->cause == CAUSE_WORKER_EXIT) return f->code != 137 && f->code != 143 && f->code != 130 && f->code != 129;
  return f->cause == CAUSE_WORKER_SIGNAL && (f->signal == SIGSEGV || f->signal == SIGABRT);
}

static bool are_alike(const struct told_failure *a, const struct told_failure *b) {
  return a->cause == b->cause && a->code == b->code && a->signal == b->signal && !strcmp(a->words, b->words);
}

static uint64_t lived_ms(const struct round_book *r) {
  return r->failed_at - r->first_at;
}

static bool has_step(const struct round_book *r) {
  for (int i = 0; i < r->n_places; i++)
    if (r->places[i].step >= 0) return true;
  return r->failed_step >= 0;
}

static bool is_certain(const struct round_book *r) {
  return r->settled && r->charged && r->first_life == r->settled_life && r->failed_at > r->first_at && !has_step(r) &&
         is_own_doing(&r->why);
}

/* How often the failure has certainly come again in a row. */
static int64_t certain_repeats(const struct checker *k, const struct round_book *r) {
  int64_t n = 0;
  for (const struct round_book *b; is_certain(r); r = b, n++) {
    b = book_find(k, r->incarnation, r->round - 1);
    if (!b || !is_certain(b) || b->settled_life != r->settled_life || !are_alike(&b->why, &r->why) ||
        lived_ms(b) < lived_ms(r) || lived_ms(r) >= JOB_LONG_ROUND_MS)
      break;
  }
  return n;
}

/* The charged round before. */
static const struct round_book *charged_before(const struct checker *k, const struct round_book *r) {
  for (int64_t n = r->round - 1; n > 0; n--) {
    const struct round_book *b = book_find(k, r->incarnation, n);
    if (!b || !b->settled) return NULL;
    if (b->charged && is_own_doing(&b->why)) return b;
  }
  return NULL;
}

void check_repeats(struct sim *s, const struct sim_agent *a, struct round_book *r, const struct settled *t) {
  int64_t limit = s->config.settings.repeat_limit, repeats = t->last_failure.repeats;
  const struct told_failure *f = book_failure(r, &t->verdict);
  r->why = f ? *f : (struct told_failure){.cause = CAUSE_NONE};
  r->repeats = repeats;
  if (limit && t->charged && repeats >= limit)
    sim_violate(s, INV_REPEATS, "round %" PRId64 " is restarted after %" PRId64 " repeats of %" PRId64, r->round,
                repeats, limit);
  const struct round_book *before = charged_before(s->checker, r);
  if (t->refilled && t->charged && before && repeats > before->repeats)
    sim_violate(s, INV_REPEATS, "round %" PRId64 " is a repeat, and gives restarts back", r->round);
  int64_t least = certain_repeats(s->checker, r);
  if (t->charged && repeats < least)
    sim_violate(s, INV_REPEATS,
                "round %" PRId64 " is repeat %" PRId64 ", but the failure has come again %" PRId64 " times", r->round,
                repeats, least);
}

bool check_repeated_end(struct sim *s, const struct round_book *r, const struct end *t) {
  int64_t limit = s->config.settings.repeat_limit;
  const struct told_failure *f = book_failure(r, &t->verdict);
  if (!limit || t->repeats < limit) return false;
  for (int64_t n = 0; f && n < limit; n++) {
    r = charged_before(s->checker, r);
    if (r && !are_alike(&r->why, f))
      sim_violate(s, INV_REPEATS, "the job ends for repeats, but %s in round %" PRId64 " was another failure",
                  r->why.words[0] ? r->why.words : "what was", r->round);
    f = r ? f : NULL;
  }
  return true;
}
