/* SPDX-License-Identifier: Apache-2.0 */
/* The account of a job's time: looked at after each step of a daemon.
 *
 * Within the life of a daemon it is exact: the buckets add up to the time that has passed, and no bucket shrinks but
 * `productive`, which loses to `lost` and `checkpoint`, and before the job's first reported step to `starting`.
 *
 * Across daemons it is an estimate from what nodes remember: the job must seem to have begun when it began. Allowed are
 * the differences of the clocks, and for each life of a daemon a lease, since the age of an account counts from when a
 * node read it.
 *
 * A daemon that has lost its state knows no more than the nodes that come while it recovers. If none of them was ever
 * told the account, its job seems younger, and so it does to the daemons after it. Where there are several daemons, nodes
 * bring accounts of jobs that waited elsewhere, and of two jobs one is left. So when the job began is not checked there:
 * stories do that. */

#include "tests/sim/book.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "daemon/core/internal.h"
#include "daemon/job/goodput.h"

static struct account_book *find(struct checker *k, const char *incarnation) {
  for (size_t i = k->n_accounts; i-- > 0;)
    if (!strcmp(k->accounts[i].incarnation, incarnation)) return &k->accounts[i];
  return NULL;
}

/* What daemons can know. ------------------------------------------------------------------------------------------- */

static bool is_set(uint64_t lives, uint32_t life) {
  return lives >> life % 64 & 1;
}

static void set(uint64_t *lives, uint32_t life, bool on) {
  uint64_t bit = UINT64_C(1) << life % 64;
  *lives = on ? *lives | bit : *lives & ~bit;
}

void check_goodput_hello(struct sim *s, const struct sim_agent *a, const struct hello *h) {
  struct account_book *b = find(s->checker, h->incarnation);
  if (b) b->asked = !strcmp(a->account_inc, h->incarnation);
}

/* One account. ----------------------------------------------------------------------------------------------------- */

static uint64_t local_time(const struct sim *s) {
  return s->now * place_rate(s, s->d.machine) / 1000;
}

/* When the job began, in the world's time, as this daemon has it. */
static int64_t begin_of(const struct sim *s, const struct goodput *g) {
  return (int64_t)s->now - goodput_total_ms(g) * 1000 / (int64_t)place_rate(s, s->d.machine);
}

static struct account_book *open_account(struct sim *s, const struct job *j, const struct goodput *g) {
  struct checker *k = s->checker;
  k->accounts = xrealloc(k->accounts, (k->n_accounts + 1) * sizeof *k->accounts);
  const struct account_book *former = j->formers[0][0] ? find(k, j->formers[0]) : NULL;
  struct account_book *b = &k->accounts[k->n_accounts++];
  *b = former ? *former : (struct account_book){.begin_ms = begin_of(s, g), .latest_ms = begin_of(s, g)};
  if (!former) set(&b->known_by, s->d.life, true);
  b->life = 0;
  memcpy(b->incarnation, j->incarnation, sizeof b->incarnation);
  return b;
}

static int64_t worked_ms(const struct goodput *g) {
  return g->productive_ms + g->lost_ms + g->checkpoint_ms;
}

static void check_entries(struct sim *s, const struct job *j, const struct account_book *b, const struct goodput *g) {
  const struct goodput *last = &b->last;
  int64_t passed_ms = b->closed ? 0 : (int64_t)(local_time(s) - b->last_ms);
  int64_t grown_ms = goodput_total_ms(g) - goodput_total_ms(last);
  if (grown_ms != passed_ms)
    sim_violate(s, INV_GOODPUT, "the account of %s grows by %" PRId64 " ms in %" PRId64 " ms", j->id, grown_ms,
                passed_ms);
  for (int i = 0; i < BUCKET_COUNT; i++)
    if (i != BUCKET_PRODUCTIVE && goodput_ms(g, (enum bucket)i) < goodput_ms(last, (enum bucket)i))
      sim_violate(s, INV_GOODPUT, "%s of %s shrinks from %" PRId64 " to %" PRId64 " ms", bucket_name((enum bucket)i),
                  j->id, goodput_ms(last, (enum bucket)i), goodput_ms(g, (enum bucket)i));
  if (last->steps && worked_ms(g) < worked_ms(last))
    sim_violate(s, INV_GOODPUT, "work of %s becomes something else, and its steps were known", j->id);
}

static int64_t tolerance(const struct sim *s, const struct goodput *g) {
  int64_t off = 0, delay_ms = 5;
  for (int i = 0; i < SIM_MACHINES_MAX; i++) {
    int64_t rate = (int64_t)place_rate(s, i);
    if (rate && llabs(rate - 1000) > off) off = llabs(rate - 1000);
  }
  for (int i = 0; i < s->n_nodes; i++)
    if (s->nodes[i].link.delay_max > delay_ms) delay_ms = s->nodes[i].link.delay_max;
  /* A HELLO that waits for a paused daemon has the account of when it was sent. */
  int64_t read_late_ms = ((int64_t)s->lives - 1) * s->config.settings.lease_ms + (int64_t)s->longest_pause_ms;
  return goodput_total_ms(g) * 2 * off / 1000 + 2 * delay_ms + read_late_ms;
}

static void check_begin(struct sim *s, const struct job *j, struct account_book *b, const struct goodput *g) {
  int64_t at_ms = begin_of(s, g), more_ms = tolerance(s, g);
  if (!is_set(b->known_by, s->d.life) && at_ms > b->latest_ms) b->latest_ms = at_ms;
  if (at_ms >= b->begin_ms - more_ms && at_ms <= b->latest_ms + more_ms) return;
  sim_violate(s, INV_GOODPUT, "%s has begun at %" PRId64 " ms, and its account at %s says %" PRId64, j->id, b->begin_ms,
              s->d.name, at_ms);
}

static void check_job(struct sim *s, const struct job *j) {
  struct goodput g;
  job_goodput(j, local_time(s), &g);
  struct account_book *b = find(s->checker, j->incarnation);
  if (!b) b = open_account(s, j, &g);
  bool closed = job_is_over(j), judged = j->state != JOB_RECOVERING;
  bool replaced = b->asked && j->round != b->round; /* it went through RECOVERING in one step */
  if ((book_remembers(s) && !judged && j->round) || (b->asked && (!judged || !b->life || replaced)))
    set(&b->known_by, s->d.life, true);
  if (judged && b->life == s->d.life && !replaced) check_entries(s, j, b, &g);
  if (judged && !closed && !book_several(s)) check_begin(s, j, b, &g);
  b->asked = false;
  set(&b->had_by, s->d.life, true);
  b->life = judged ? s->d.life : 0;
  b->round = j->round;
  b->last = g;
  b->last.waited_for = "";
  b->last_ms = local_time(s);
  b->closed = closed;
}

static bool has_job(const struct sim *s, const char *incarnation) {
  for (size_t i = 0; i < s->d.core->jobs.n_all; i++)
    if (!strcmp(s->d.core->jobs.all[i]->incarnation, incarnation)) return true;
  return false;
}

/* The job is now another one to the daemon, and keeps what it knew of this one. */
static void carry_over(struct sim *s, const struct account_book *b) {
  for (size_t i = 0; i < s->d.core->jobs.n_all; i++) {
    struct account_book *other = find(s->checker, s->d.core->jobs.all[i]->incarnation);
    if (other && other->begin_ms > b->begin_ms) other->begin_ms = b->begin_ms;
  }
}

/* A job that is gone may come again, and then the daemon knows nothing more of it. */
static void forget_others(struct sim *s) {
  struct checker *k = s->checker;
  for (size_t i = 0; i < k->n_accounts; i++) {
    struct account_book *b = &k->accounts[i];
    if (!is_set(b->had_by, s->d.life) || has_job(s, b->incarnation)) continue;
    carry_over(s, b);
    if (b->life == s->d.life) b->life = 0;
    set(&b->had_by, s->d.life, false);
    set(&b->known_by, s->d.life, false);
  }
}

void check_goodput(struct sim *s) {
  forget_others(s);
  for (size_t i = 0; i < s->d.core->jobs.n_all; i++) check_job(s, s->d.core->jobs.all[i]);
}
