/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants: they must always hold. The checker sees the messages that are read and sent, every start and end of a
 * worker, and every exit of an agent, and keeps a book of its own about each round: who is in it as what, what its
 * workers truly did, how it was settled. It never asks the minds what they think. The book is in book.c; what workers
 * do is checked in invariants_work.c, all else here.
 *
 * Six allowances, each of which is written down in PROTOCOL.md or the README:
 *   - A node that was last told that no round could form without it does not fence itself. Cut off, it goes on, and
 *     when a
 *     newcomer takes its place both run until it is back. What it was told must have been true: one node of the new
 *     round was not connected
 *     then, nor away for less than its grace, nor, where the daemon was RECOVERING, a node of the old round.
 *   - A process in state D dies when the kernel lets it, and what runs on a host that is suspended when that goes on.
 *   - Where an agent and its guard are both stopped nobody kills their workers, until one of them goes on.
 *   - A daemon that came back without a state file knows what those have told who came back to it: a newcomer who is
 *     there before
 *     all others opens a new incarnation; a round of which nobody has come back has not been, and its number may be
 *     used again.
 *   - Two daemons know nothing of each other: where nodes are enough for two, each may have a round, and each judges
 *     for itself.
 *   - A daemon without a state file that dies between telling one node something and telling another may come to
 *     another
 *     judgement in its next life. Within one life, and with a state file for the end of a job, all are told the same.
 */

#include "tests/sim/book.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"

/* Ranks and tokens. ------------------------------------------------------------------------------------------------ */

static void check_token(struct sim *s, struct sim_agent *a, const struct start *t) {
  int order = a->took_inc[0] ? strcmp(t->incarnation, a->took_inc) : 1;
  bool moved = s->config.takeover && book_of_other_lineage(s, a->took_inc, a->took_round, t->incarnation, t->round);
  if (!moved && (order < 0 || (order == 0 && t->round < a->took_round)))
    sim_violate(s, INV_TOKENS, "%s is started in round %" PRId64 " of %s after round %" PRId64 " of %s", a->name,
                t->round, t->incarnation, a->took_round, a->took_inc);
  a->told_start = true;
  strncpy(a->told_inc, t->incarnation, INCARNATION_MAX);
  a->told_round = t->round;
}

static void check_places(struct sim *s, const struct round_book *r) {
  int64_t sum = 0;
  for (int i = 0; i < r->n_places; i++) {
    const struct place *p = &r->places[i];
    sum += p->workers;
    if (p->node_rank >= r->nodes || p->base + p->workers > r->world)
      sim_violate(s, INV_RANKS,
                  "round %" PRId64 ": %s is node %" PRId64 " of %" PRId64 " with ranks %" PRId64 ".. of %" PRId64,
                  r->round, p->agent->name, p->node_rank, r->nodes, p->base, r->world);
    for (int k = 0; k < i; k++) {
      const struct place *q = &r->places[k];
      const struct place *lo = p->node_rank < q->node_rank ? p : q, *hi = lo == p ? q : p;
      bool next = hi->node_rank == lo->node_rank + 1;
      if (lo->node_rank == hi->node_rank || lo->base + lo->workers > hi->base ||
          (next && lo->base + lo->workers != hi->base))
        sim_violate(s, INV_RANKS,
                    "round %" PRId64 ": %s is node %" PRId64 " from rank %" PRId64 ", %s is node %" PRId64
                    " from rank %" PRId64,
                    r->round, lo->agent->name, lo->node_rank, lo->base, hi->agent->name, hi->node_rank, hi->base);
    }
  }
  if (r->n_places == r->nodes && sum != r->world)
    sim_violate(s, INV_RANKS, "round %" PRId64 ": %" PRId64 " workers in a world of %" PRId64, r->round, sum, r->world);
}

/* What the daemon must have seen of a round to give restarts back, at least: some node further than any charged round
 * before it, or 10 minutes. What was settled by a daemon that died before the next seal, only those know who have
 * heard it. */
static bool has_earned(const struct sim *s, const struct round_book *r, uint32_t life) {
  const struct checker *k = s->checker;
  int64_t furthest = -1, step = -1;
  for (size_t i = 0; i < k->n_rounds; i++) {
    const struct round_book *b = &k->rounds[i];
    bool before =
        b->round < r->round && b->charged && b->settled_life == life && !strcmp(b->incarnation, r->incarnation);
    if (before && b->failed_step > furthest) furthest = b->failed_step;
  }
  for (int i = 0; i < r->n_places; i++)
    if (r->places[i].step > step) step = r->places[i].step;
  return step > furthest || s->now >= r->sent_at + JOB_LONG_ROUND_MS;
}

/* Without a state file a number can be given out again by a daemon to which nobody has come back who has heard of it.
 */
static void forget_if_unheard(const struct sim *s, struct round_book *r, uint32_t life) {
  if (book_remembers(s) || r->told_life == life) return;
  for (int i = 0; i < r->n_places; i++)
    if (r->places[i].agent->sup && r->places[i].agent->known_life == life && r->places[i].agent->known_at < r->sent_at)
      return;
  r->told = r->failed = r->settled = false;
  r->n_places = 0;
}

static void told_start(struct sim *s, struct sim_agent *a, const struct start *t) {
  check_token(s, a, t);
  struct round_book *r = book_round(s->checker, t->incarnation, t->round);
  forget_if_unheard(s, r, book_life(a));
  if (!r->told) {
    r->told = true;
    r->told_life = book_life(a);
    r->nodes = t->nodes;
    r->world = t->world_size;
    r->used = t->restarts_used;
    r->port = t->store_port;
    strncpy(r->head_addr, t->head_addr, ADDR_MAX);
  }
  if (r->nodes != t->nodes || r->world != t->world_size || strcmp(r->head_addr, t->head_addr) != 0)
    sim_violate(s, INV_RANKS,
                "round %" PRId64 ": %s is told %" PRId64 " nodes, world %" PRId64 ", head %s; others otherwise",
                t->round, a->name, t->nodes, t->world_size, t->head_addr);
  if (r->port != t->store_port)
    sim_violate(s, INV_STORE_THERE, "round %" PRId64 ": %s is told port %" PRId64 ", others %" PRId64, t->round,
                a->name, t->store_port, r->port);
  if (r->used != t->restarts_used)
    sim_violate(s, INV_BUDGET, "round %" PRId64 ": %s is told %" PRId64 " restarts used, others %" PRId64, t->round,
                a->name, t->restarts_used, r->used);
  for (int i = 0; i < r->n_places; i++)
    if (r->places[i].agent->node->uid != a->node->uid)
      sim_violate(s, INV_OWNERS, "round %" PRId64 " has %s of uid %" PRId64 ", and %s of uid %" PRId64, t->round,
                  a->name, a->node->uid, r->places[i].agent->name, r->places[i].agent->node->uid);
  struct place *p = book_place(r, a);
  if (p && (p->node_rank != t->node_rank || p->base != t->rank_base))
    sim_violate(s, INV_RANKS, "round %" PRId64 ": %s is told another rank than before", t->round, a->name);
  if (!p && r->n_places < SIM_NODES_MAX)
    r->places[r->n_places++] = (struct place){a, t->node_rank, t->rank_base, a->node->workers, 0, -1, false};
  check_places(s, r);

  struct round_book *before = book_find(s->checker, t->incarnation, t->round - 1);
  if (!before || !before->told || (!book_remembers(s) && before->told_life != book_life(a))) return;
  if (t->restarts_used < before->used && book_remembers(s) && !has_earned(s, before, book_life(a)))
    sim_violate(s, INV_BUDGET, "round %" PRId64 " has %" PRId64 " restarts used, the one before %" PRId64, t->round,
                t->restarts_used, before->used);
  if (t->restarts_used > before->used + before->failed)
    sim_violate(s, INV_BUDGET, "round %" PRId64 " has %" PRId64 " restarts used, the one before %" PRId64 "%s",
                t->round, t->restarts_used, before->used, before->failed ? "" : ", and none of its workers has failed");
  if (before->settled && before->settled_life == book_life(a) && t->restarts_used != before->used_after)
    sim_violate(s, INV_BUDGET,
                "round %" PRId64 " has %" PRId64 " restarts used, the one before was settled with %" PRId64, t->round,
                t->restarts_used, before->used_after);
}

/* The budget. ------------------------------------------------------------------------------------------------------ */

static bool is_worker_failure(enum cause c) {
  return c == CAUSE_WORKER_EXEC || c == CAUSE_WORKER_EXIT || c == CAUSE_WORKER_SIGNAL || c == CAUSE_WORKER_HUNG ||
         c == CAUSE_DEVICE_HELD || c == CAUSE_CONTACT_LOST || c == CAUSE_NCCL_IDS || c == CAUSE_OTHER;
}

/* It may: below max, and asked for by all. */
static void check_growth(struct sim *s, struct round_book *r, bool charged) {
  const struct settings *t = &s->config.settings;
  if (charged) sim_violate(s, INV_GROWTH, "round %" PRId64 " is charged for newcomers", r->round);
  if (t->scale_up != SCALE_UP_NOW || (r->told && r->nodes >= t->max_nodes))
    sim_violate(s, INV_GROWTH, "round %" PRId64 " with %" PRId64 " of at most %" PRId64 " nodes ends for newcomers",
                r->round, r->nodes, t->max_nodes);
}

static void told_settled(struct sim *s, struct sim_agent *a, const struct settled *t) {
  struct round_book *r = book_round(s->checker, t->incarnation, t->round);
  if (r->settled && r->settled_life == book_life(a) &&
      (r->charged != t->charged || r->used_after != t->restarts_used || r->cause != t->verdict.cause))
    sim_violate(s, INV_BUDGET, "round %" PRId64 " is settled for %s otherwise than for others", t->round, a->name);
  r->settled = true;
  r->settled_life = book_life(a);
  r->charged = t->charged;
  r->used_after = t->restarts_used;
  r->failed_step = t->verdict.step;
  r->cause = t->verdict.cause;
  check_repeats(s, a, r, t);
  bool is_void = r->void_life == book_life(a);
  if (t->charged && (!r->failed || !is_worker_failure(t->verdict.cause) || is_void))
    sim_violate(s, INV_BUDGET, "round %" PRId64 " is charged for %s%s%s", t->round, cause_name(t->verdict.cause),
                is_void ? ", void" : "", r->failed ? "" : ", but no worker of it has failed");
  if (!t->charged && is_worker_failure(t->verdict.cause) && !is_void)
    sim_violate(s, INV_BUDGET, "round %" PRId64 " is not charged for %s", t->round, cause_name(t->verdict.cause));
  if (t->verdict.cause == CAUSE_NODE_JOINED) check_growth(s, r, t->charged);
  if (t->refilled && !has_earned(s, r, book_life(a)))
    sim_violate(s, INV_BUDGET, "round %" PRId64 " gives restarts back, and has come no further", t->round);
  if (t->charged && t->failed_step < t->verdict.step)
    sim_violate(s, INV_BUDGET, "round %" PRId64 " failed at step %" PRId64 ", and %" PRId64 " is remembered", t->round,
                t->verdict.step, t->failed_step);
  if (t->restarts_used > s->config.settings.max_restarts)
    sim_violate(s, INV_BUDGET, "%" PRId64 " restarts used of %" PRId64, t->restarts_used,
                s->config.settings.max_restarts);
  int64_t due = (t->refilled ? 0 : r->used) + t->charged;
  if (r->told && t->restarts_used != due && (book_life(a) == 1 || t->restarts_used > due))
    sim_violate(s, INV_BUDGET, "round %" PRId64 " began with %" PRId64 " restarts used, is %s, and ends with %" PRId64,
                t->round, r->used, t->charged ? "charged" : "not charged", t->restarts_used);
}

/* The end. --------------------------------------------------------------------------------------------------------- */

static void check_success(struct sim *s, const struct end *t) {
  struct round_book *r = book_find(s->checker, t->incarnation, t->round);
  int64_t done = 0;
  for (int i = 0; r && i < r->n_places; i++) done += r->places[i].zero_exits == r->places[i].workers;
  if (!r || done != r->nodes)
    sim_violate(s, INV_SUCCESS, "END success, but only %" PRId64 " of %" PRId64 " nodes of round %" PRId64 " are done",
                done, r ? r->nodes : 0, t->round);
}

static void check_failure(struct sim *s, const struct end *t) {
  enum cause c = t->verdict.cause;
  struct round_book *r = book_find(s->checker, t->incarnation, t->round);
  if (t->restarts_used > s->config.settings.max_restarts)
    sim_violate(s, INV_BUDGET, "%" PRId64 " restarts used at the end", t->restarts_used);
  if (!r || (c != CAUSE_WORKER_EXIT && c != CAUSE_WORKER_SIGNAL)) return;
  bool finished = false, again = s->config.settings.after_finish == AFTER_FINISH_RESTART;
  for (int i = 0; i < r->n_places && !again; i++) finished |= r->places[i].zero_exits == r->places[i].workers;
  if (check_repeated_end(s, r, t) || (t->verdict.lasting && t->round == 1)) return;
  if (t->verdict.lasting == LASTING_RESULT) return; /* in any round: no restart makes a wrong result right */
  if (!finished && t->restarts_used < s->config.settings.max_restarts)
    sim_violate(s, INV_BUDGET, "the job ends for %s with %" PRId64 " of %" PRId64 " restarts used", cause_name(c),
                t->restarts_used, s->config.settings.max_restarts);
}

static void told_end(struct sim *s, struct sim_agent *a, const struct end *t) {
  if ((t->outcome == OUTCOME_SUCCESS) != (t->code == EXIT_CODE_OK))
    sim_violate(s, INV_ENDS, "%s is told %s with code %" PRId64, a->name, outcome_name(t->outcome), t->code);
  struct checker *k = s->checker;
  struct end_book *e = NULL;
  for (size_t i = 0; i < k->n_ends; i++)
    if (!strcmp(k->ends[i].incarnation, t->incarnation)) e = &k->ends[i];
  if (!e) {
    k->ends = xrealloc(k->ends, (k->n_ends + 1) * sizeof *k->ends);
    e = &k->ends[k->n_ends++];
    *e = (struct end_book){.outcome = t->outcome, .code = t->code, .life = book_life(a)};
    strncpy(e->incarnation, t->incarnation, INCARNATION_MAX);
    if (t->outcome == OUTCOME_SUCCESS) check_success(s, t);
    if (t->outcome == OUTCOME_FAILED) check_failure(s, t);
  }
  if ((e->outcome != t->outcome || e->code != t->code) && (book_remembers(s) || e->life == book_life(a)))
    sim_violate(s, INV_ENDS, "%s is told %s with code %" PRId64 ", others %s with %" PRId64, a->name,
                outcome_name(t->outcome), t->code, outcome_name(e->outcome), e->code);
  a->told_end = true;
  a->end_outcome = t->outcome;
  a->end_code = (int)t->code;
}

void check_agent_exit(struct sim *s, struct sim_agent *a, int code) {
  int due = !a->told_end ? a->refused_code : a->end_outcome == OUTCOME_SUCCESS ? EXIT_CODE_OK : a->end_code;
  bool left = a->signalled && (code == EXIT_CODE_PREEMPTED || code == 128 + SIGINT);
  bool as_refused = a->refused && code == a->refused_code; /* END may have been another life's, and is not for it */
  if ((a->told_end || a->refused) && code != due && !left && !as_refused)
    sim_violate(s, INV_ENDS, "%s exits with %d, but was told to exit with %d", a->name, code, due);
  bool known = code == EXIT_CODE_FENCED || code == EXIT_CODE_DAEMON_LOST || code == EXIT_CODE_SYSTEM ||
               code == EXIT_CODE_NO_DAEMON || left;
  if (!a->told_end && !a->refused && !known)
    sim_violate(s, INV_ENDS, "%s exits with %d, and nobody has told it so", a->name, code);
  for (int i = 0; i < SIM_WORKERS_MAX; i++) {
    const struct sim_worker *w = &a->w[i];
    bool late =
        (s->suspends && a->node->resumed_at + dying_ms(s, a) >= s->now) || were_unable(s, a); /* its guard is at it */
    if ((w->state == WORKER_RUNNING || w->state == WORKER_SPAWNING) && !w->b.kill_ms && !late)
      sim_violate(s, INV_ORPHANS, "%s exits while its rank %u runs", a->name, w->rank);
  }
}

static bool serves(const struct sim_agent *a, const char *incarnation, int64_t round) {
  return a->store.open && a->store.round == round && !strcmp(a->store.incarnation, incarnation);
}

static void remember_over(const struct sim *s, struct sim_agent *a, const char *incarnation, int64_t round) {
  a->over_at = s->now;
  snprintf(a->over_inc, sizeof a->over_inc, "%s", incarnation);
  a->over_round = round;
}

void check_agent_told(struct sim *s, struct sim_agent *a, const struct msg *m) {
  if (m->type == MSG_SETTLED && serves(a, m->settled.incarnation, m->settled.round)) a->store.over = true;
  if (m->type == MSG_SETTLED) remember_over(s, a, m->settled.incarnation, m->settled.round);
  if (m->type == MSG_STALE || m->type == MSG_END || m->type == MSG_REFUSED)
    remember_over(s, a, a->incarnation, a->round);
  /* A run of this job that began before its own goes on there: it joins that one as a newcomer. */
  if (m->type == MSG_STALE && strcmp(m->stale.incarnation, a->took_inc) < 0) a->took_inc[0] = '\0';
  if (m->type == MSG_START) {
    told_start(s, a, &m->start);
  } else if (m->type == MSG_STOP) {
    struct round_book *r = book_round(s->checker, m->stop.incarnation, m->stop.round);
    if (m->stop.void_round) r->void_life = book_life(a);
    if (m->stop.verdict.cause == CAUSE_NODE_JOINED) check_growth(s, r, false);
  } else if (m->type == MSG_SETTLED) {
    told_settled(s, a, &m->settled);
  } else if (m->type == MSG_END) {
    told_end(s, a, &m->end);
  } else if (m->type == MSG_REFUSED) {
    a->refused = true;
    a->refused_code = (int)m->refused.code;
  }
}

/* The round's store. ----------------------------------------------------------------------------------------------- */

void check_store_told(struct sim *s, struct sim_agent *a) {
  if (a->store.open && (a->store.over || !a->sup))
    sim_violate(s, INV_STORE_ENDS, "%s still serves round %" PRId64 ", which is over", a->name, a->store.round);
}

/* Nobody serves it because node rank 0 is gone, or knows that the round is over, or has not begun: else it should. */
void check_store_missing(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  const struct round_book *r = book_find(s->checker, a->incarnation, a->round);
  for (int i = 0; r && i < r->n_places; i++) {
    const struct sim_agent *head = r->places[i].agent;
    bool begun = head->round == a->round && !strcmp(head->incarnation, a->incarnation);
    bool over = head->over_round >= a->round && !strcmp(head->over_inc, a->incarnation);
    over |= head->told_round != a->round || strcmp(head->told_inc, a->incarnation) != 0; /* START of another */
    if (r->places[i].node_rank != 0 || !head->sup || !begun || over) continue;
    sim_violate(s, INV_STORE_THERE, "rank %u of round %u on %s finds nobody at %s port %u; %s should be there", w->rank,
                a->round, a->name, a->head_addr, a->head_port, head->name);
  }
}

/* Time. ------------------------------------------------------------------------------------------------------------ */

void check_deadlines(struct sim *s) {
  bool mutated = s->mutator && s->mutator->deadline;
  if (s->daemon_stepped && s->d.core && !core_idle(s->d.core)) {
    uint64_t at = core_deadline(s->d.core);
    if (mutated) at = s->mutator->deadline(s, NULL, at);
    if (at == UINT64_MAX) sim_violate(s, INV_DEADLINE, "the daemon has a job and waits for nothing");
  }
  for (int i = 0; i < s->n_agents; i++) {
    struct sim_agent *a = s->agents[i];
    if (!(s->stepped >> i & 1) || !a->sup || a->connecting) continue;
    uint64_t at = supervisor_deadline(a->sup);
    if (mutated) at = s->mutator->deadline(s, a, at);
    if (at == UINT64_MAX)
      sim_violate(s, INV_DEADLINE, "%s is %s and waits for nothing", a->name,
                  supervisor_state_name(supervisor_state(a->sup)));
  }
}

void check_over(struct sim *s) {
  for (int i = 0; i < s->n_agents; i++)
    if (s->agents[i]->sup)
      sim_violate(s, INV_BOUNDED, "%s is still %s", s->agents[i]->name,
                  supervisor_state_name(supervisor_state(s->agents[i]->sup)));
  for (int side = 0; side < SIM_DAEMONS_MAX; side++) {
    const struct sim_daemon *d = daemon_at(s, side);
    if (d->core && !core_idle(d->core))
      sim_violate(s, INV_ENDS, "all agents are gone, and %s is not idle", daemon_name(s, side));
  }
}
