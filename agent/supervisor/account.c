/* SPDX-License-Identifier: Apache-2.0 */
/* What the job's time went to, as the daemon has said it last.
 *
 * The daemon keeps the account, and its nodes remember it: each START, SETTLED and END has it, and each HELLO gives the
 * last one back, with its age. A daemon that was restarted, or that takes the job over, goes on with it. The first step
 * that a worker here has reported in the round tells it how long the round's start took. */

#include "agent/supervisor/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include "common/mem.h"

void sup_account_note(struct supervisor *s, const struct goodput *g) {
  struct job_account *a = &s->account;
  a->last = *g;
  snprintf(a->waited_for, sizeof a->waited_for, "%s", g->waited_for);
  a->last.waited_for = a->waited_for;
  a->came_ms = s->now_ms;
}

void sup_account_note_step(struct supervisor *s, int64_t step) {
  struct job_account *a = &s->account;
  if (a->first_step >= 0) return;
  a->first_step = step;
  a->first_step_ms = s->now_ms;
}

void sup_account_fill_hello(const struct supervisor *s, struct hello *h) {
  const struct job_account *a = &s->account;
  h->goodput = a->last;
  h->goodput_age_ms = s->round.incarnation[0] ? (int64_t)(s->now_ms - a->came_ms) : 0;
  h->first_step = a->first_step;
  if (a->first_step >= 0) h->first_step_age_ms = (int64_t)(s->now_ms - a->first_step_ms);
}
