/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants of several daemons of one job, each of which may take it over from another: no token is sealed twice, no
 * two rounds run at the same time, and who has a majority, or a claim, goes on.
 *
 * The checker has a book of seals of its own. A round belongs to the lineage of the round that its first node was told
 * of before, or that its seal names; a round of nodes that have never been in one begins a new lineage. Two lineages
 * know nothing of each other while their machines cannot reach each other. Afterwards one of them ends. With claims the
 * job has a name that one of them has, and the other one never begins, unless somebody has said that the first is dead.
 *
 * Three more allowances, as in invariants.c: a node that was truly told that no round could form without it; a process
 * in state D; and a host that was suspended, or an agent that was stopped together with its guard. */

#include "daemon/core/internal.h"
#include "tests/sim/book.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "common/mem.h"

/* Seals. ----------------------------------------------------------------------------------------------------------- */

static void hear(struct checker *k, uint32_t life, const char *incarnation, int64_t round) {
  if (!incarnation[0]) return;
  for (size_t i = k->n_heard; i-- > 0;)
    if (k->heard[i].life == life && k->heard[i].round == round && !strcmp(k->heard[i].incarnation, incarnation)) return;
  k->heard = xrealloc(k->heard, (k->n_heard + 1) * sizeof *k->heard);
  struct heard_token *h = &k->heard[k->n_heard++];
  *h = (struct heard_token){.life = life, .round = round};
  strncpy(h->incarnation, incarnation, INCARNATION_MAX);
}

static bool has_heard(const struct checker *k, uint32_t life, const struct round_book *r) {
  for (size_t i = k->n_heard; i-- > 0;)
    if (k->heard[i].life == life && k->heard[i].round == r->round && !strcmp(k->heard[i].incarnation, r->incarnation))
      return true;
  return false;
}

void check_takeover_hello(struct sim *s, const struct hello *h) {
  hear(s->checker, s->d.life, h->incarnation, h->round);
  hear(s->checker, s->d.life, h->voted_incarnation, h->voted_round);
}

static void check_claimed(struct sim *s, const struct round_book *r) {
  char end[INCARNATION_MAX + 24];
  snprintf(end, sizeof end, "/%s/%" PRId64, r->incarnation, r->round);
  const char *holder = claim_holder_of(s, end);
  if (!holder || !strstr(holder, s->d.id))
    sim_violate(s, INV_SEALED_ONCE, "%s seals round %" PRId64 " of %s, which %s", s->d.name, r->round, r->incarnation,
                holder ? "another has claimed" : "nobody has claimed");
}

void check_saved(struct sim *s) {
  s->checker->saved_at = s->now;
}

static void note_voter(struct round_book *r, struct sim_agent *a) {
  for (int i = 0; i < r->n_voters; i++)
    if (r->voters[i] == a) return;
  if (r->n_voters < SIM_NODES_MAX) r->voters[r->n_voters++] = a;
}

static void note_base(struct round_book *r, const struct start *t, const struct sim_agent *a) {
  const char *incarnation = t->seal.base_incarnation;
  int64_t round = t->seal.base_round;
  if (!incarnation[0]) incarnation = a->told_inc, round = a->told_round;
  if (r->base_incarnation[0] || !incarnation[0]) return;
  if (round == r->round && !strcmp(incarnation, r->incarnation)) return;
  snprintf(r->base_incarnation, sizeof r->base_incarnation, "%s", incarnation);
  r->base_round = round;
}

/* The daemon says START: it has sealed the round itself, in this life or one whose state it has, or a node has told it
 * of the round. */
void check_sealed(struct sim *s, struct sim_conn *c, struct round_book *r, const struct start *t) {
  if (!r->sealed_by[0]) {
    snprintf(r->sealed_by, sizeof r->sealed_by, "%s", s->d.id);
    r->sealed_nodes = t->nodes;
    r->sealed_world = t->world_size;
    if (s->config.settings.claims) check_claimed(s, r);
  } else if (strcmp(r->sealed_by, s->d.id) != 0 && !has_heard(s->checker, s->d.life, r)) {
    sim_violate(s, INV_SEALED_ONCE, "%s seals round %" PRId64 " of %s, which daemon %.8s has sealed before", s->d.name,
                r->round, r->incarnation, r->sealed_by);
  }
  if (r->sealed_nodes != t->nodes || r->sealed_world != t->world_size)
    sim_violate(s, INV_SEALED_ONCE, "%s seals round %" PRId64 " of %s with %" PRId64 " nodes, before it had %" PRId64,
                s->d.name, r->round, r->incarnation, t->nodes, r->sealed_nodes);
  note_voter(r, c->agent);
  note_base(r, t, c->agent);
}

/* One round. ------------------------------------------------------------------------------------------------------- */

static const struct round_book *root_of(const struct checker *k, const struct round_book *r) {
  for (size_t i = 0; i <= k->n_rounds; i++) {
    const struct round_book *base = r->base_incarnation[0] ? book_find(k, r->base_incarnation, r->base_round) : NULL;
    if (!base) return r;
    r = base;
  }
  return r;
}

bool book_of_other_lineage(const struct sim *s, const char *incarnation_a, int64_t round_a, const char *incarnation_b,
                           int64_t round_b) {
  const struct round_book *a = book_find(s->checker, incarnation_a, round_a);
  const struct round_book *b = book_find(s->checker, incarnation_b, round_b);
  return !a || !b || root_of(s->checker, a) != root_of(s->checker, b);
}

void check_one_round(struct sim *s, struct sim_agent *a, const struct sim_worker *w, const struct sim_agent *b,
                     const struct sim_worker *v) {
  bool claimed = s->config.settings.claims && !s->confirmed;
  if (!claimed && book_of_other_lineage(s, a->incarnation, a->round, b->incarnation, b->round)) return;
  sim_violate(s, INV_ONE_ROUND, "%s starts rank %u of round %u of %s while %s runs rank %u of round %u of %s", a->name,
              w->rank, a->round, a->incarnation, b->name, v->rank, b->round, b->incarnation);
}

/* It goes on. ------------------------------------------------------------------------------------------------------ */

static const struct round_book *last_sealed(const struct checker *k) {
  const struct round_book *last = NULL;
  for (size_t i = 0; i < k->n_rounds; i++)
    if (k->rounds[i].sealed_by[0] && (!last || k->rounds[i].first_at >= last->first_at)) last = &k->rounds[i];
  return last;
}

/* A claim needs one of them: without any, the round may run somewhere else. */
static bool has_majority(const struct sim *s, const struct round_book *r) {
  int64_t alive = 0;
  for (int i = 0; i < r->n_voters; i++) alive += r->voters[i]->sup != NULL;
  return s->config.settings.claims ? alive > 0 : 2 * alive > r->sealed_nodes;
}

/* Some of its nodes are here and have not heard of it: then nobody can tell whether it runs elsewhere. Nor of a later one
 * that is only on a disk. */
static bool is_half_known(const struct round_book *r) {
  for (int i = 0; i < r->n_voters; i++) {
    const struct sim_agent *a = r->voters[i];
    if (a->sup && (a->took_round != r->round || strcmp(a->took_inc, r->incarnation) != 0)) return true;
  }
  return r->n_voters < r->sealed_nodes;
}

/* Nor of the next one, if it is claimed and none of its nodes is here. */
static bool is_claimed_for_others(const struct sim *s, const struct round_book *r) {
  char end[INCARNATION_MAX + 32];
  snprintf(end, sizeof end, "/%s/%" PRId64, r->incarnation, r->round + 1);
  const char *content = claim_holder_of(s, end);
  if (!content) return false;
  for (int i = 0; i < s->n_agents; i++)
    if (s->agents[i]->sup && strstr(content, s->agents[i]->id)) return false;
  return true;
}

/* It runs on all of its nodes. */
static bool runs_still(const struct round_book *r) {
  for (int i = 0; i < r->n_voters; i++) {
    const struct sim_agent *a = r->voters[i];
    bool works = a->sup && a->round == r->round && !strcmp(a->incarnation, r->incarnation);
    for (uint32_t w = 0; works && w < a->workers; w++) works = worker_works(&a->w[w]) || a->w[w].exited_zero;
    if (!works) return false;
  }
  return true;
}

/* After peace every machine with power reaches all others. */
static bool can_have_daemon(struct sim *s, const struct round_book *r) {
  for (uint32_t k = 0; k < (s->config.endpoints ? s->config.endpoints : 1); k++) {
    const struct sim_daemon *d = daemon_at(s, (int)k);
    bool on_node = d->machine < SIM_NODES_MAX;
    if (d->core || (on_node && s->config.owned && agent_alive(agent_of(s, d->machine)))) return true;
  }
  int able = 0;
  for (int i = 0; i < r->n_voters && s->config.owned; i++) able += r->voters[i]->sup != NULL;
  return able > 0 && 2 * able > r->n_voters;
}

static bool is_voter(const struct round_book *r, const struct sim_agent *a) {
  for (int i = 0; i < r->n_voters; i++)
    if (r->voters[i] == a) return true;
  return false;
}

/* Who has missed the last round finds the job. */
static bool has_endpoint(struct sim *s) {
  for (uint32_t k = 0; k < (s->config.endpoints ? s->config.endpoints : 1); k++)
    if (daemon_at(s, (int)k)->core) return true;
  return false;
}

static bool works(const struct sim_agent *a) {
  for (uint32_t w = 0; w < a->workers; w++)
    if (worker_works(&a->w[w])) return true;
  return false;
}

/* One that formed apart has met the older one by now. */
static void check_one_run(struct sim *s, uint64_t since_ms) {
  for (int i = 0; i < s->n_agents; i++)
    for (int k = 0; k < i; k++) {
      const struct sim_agent *a = s->agents[i], *b = s->agents[k];
      if (!works(a) || !works(b) || !strcmp(a->incarnation, b->incarnation)) continue;
      if (book_of_other_lineage(s, a->incarnation, a->round, b->incarnation, b->round))
        sim_violate(s, INV_ONE_ROUND,
                    "%s and %s run rounds of two runs, %s and %s, for %" PRIu64 " s after they can meet", a->name,
                    b->name, a->incarnation, b->incarnation, (s->now - since_ms) / 1000);
    }
}

/* Workers of a node that nobody has heard of may still run (--orphan-grace). Or r gave way to an older run, and the nodes
 * of that one have died since. */
static bool waits_rightly(struct sim *s, const struct round_book *r) {
  for (int i = 0; i < SIM_DAEMONS_MAX; i++) {
    const struct core *c = daemon_at(s, i)->core;
    for (size_t k = 0; c && k < c->jobs.n_all; k++) {
      const struct job *j = c->jobs.all[k];
      if (j->hold_ms > c->jobs.now_ms) return true;
      if (j->round && !job_is_over(j) && strcmp(j->origin, r->incarnation) < 0 &&
          book_of_other_lineage(s, j->incarnation, j->round, r->incarnation, r->round))
        return true;
    }
  }
  return false;
}

void check_goes_on(struct sim *s, uint64_t since_ms) {
  const struct checker *k = s->checker;
  check_one_run(s, since_ms);
  const struct round_book *r = last_sealed(k);
  if (!r || k->n_ends || r->first_at >= since_ms || r->first_at < k->saved_at || is_half_known(r) ||
      is_claimed_for_others(s, r) || runs_still(r) || !can_have_daemon(s, r))
    return;
  const struct round_book *base = book_find(k, r->base_incarnation, r->base_round);
  int64_t alive = 0;
  for (int i = 0; i < s->n_agents; i++) alive += s->agents[i]->sup && (is_voter(r, s->agents[i]) || has_endpoint(s));
  bool enough = has_majority(s, r) && (s->config.settings.claims || !base || has_majority(s, base));
  if (enough && alive >= s->config.settings.min_nodes && !waits_rightly(s, r))
    sim_violate(s, INV_GOES_ON,
                "since %" PRIu64 " s no round follows round %" PRId64 " of %s, although %d of its nodes are there",
                (s->now - since_ms) / 1000, r->round, r->incarnation, r->n_voters);
}
