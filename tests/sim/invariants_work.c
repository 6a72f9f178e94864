/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants of workers: when they may start and run, when they must be dead, and what is said of them.
 *
 * Most of it is told by messages: a report says that a worker hangs, that a checkpoint is written, that nothing is
 * left; STOP and START say what the daemon believes. Each is held against what the workers truly do at that moment. */

#include "tests/sim/book.h"

#include <inttypes.h>
#include <string.h>

/* What an agent does with its own hand where its guard cannot comes so much later (agent/guard/watch.h; clocks differ
 * by 3 %). */
static uint64_t by_hand_ms(const struct sim *s) {
  uint64_t ms = (uint64_t)s->config.settings.lease_ms / 10;
  return (ms < GUARD_PATIENCE_MAX_MS ? ms : GUARD_PATIENCE_MAX_MS) * 104 / 100 + 1;
}

/* How long a worker may take to die from when its agent knows that it must. */
uint64_t dying_ms(const struct sim *s, const struct sim_agent *a) {
  uint64_t slept_at = guard_slept_at(s, a), ms = by_hand_ms(s) + s->config.die_max;
  return slept_at && s->now <= slept_at + ms ? ms : s->config.die_max;
}

/* Neither agent nor guard could run, until just now: the second hole that remains. */
bool were_unable(const struct sim *s, const struct sim_agent *a) {
  uint64_t at = guard_unable_at(s, a);
  return at && s->now <= at + by_hand_ms(s) + s->config.die_max;
}

/* It is about to be killed: it has just heard that its round is over, or must fence. */
bool allowed_to_run_on(const struct sim *s, const struct sim_agent *a, const struct sim_worker *w) {
  uint64_t lease = (uint64_t)s->config.settings.lease_ms;
  if (w->b.kill_ms) return true;
  if (a->fence) return a->fence_heard_at > a->heard_at + lease / 2 && s->now <= a->fence_heard_at + dying_ms(s, a);
  return s->now > a->heard_at + lease / 2 ||
         (a->back_at && s->now <= a->back_at + a->node->link.delay_max + dying_ms(s, a));
}

/* Without a state file the daemon that sealed a's round could not know of b, which had not come back to it. */
static bool unknown_to_the_daemon(const struct sim *s, const struct sim_agent *a, const struct sim_agent *b) {
  if (book_remembers(s)) return false;
  const struct round_book *r = book_find(s->checker, a->incarnation, a->round);
  return r && r->sent_life > 1 && (b->known_life != r->sent_life || b->known_at >= r->sent_at);
}

/* A round that one of its nodes has left, or never heard of: it is void or broken, and ends as soon as its daemon
 * knows, though others are still at it. */
static bool is_incomplete(const struct sim *s, const struct sim_agent *a) {
  const struct round_book *r = book_find(s->checker, a->incarnation, a->round);
  if (!r || r->n_places < r->nodes) return r != NULL;
  for (int i = 0; i < r->n_places; i++) {
    const struct sim_agent *b = r->places[i].agent;
    if (b->round != a->round || strcmp(b->incarnation, a->incarnation) != 0) return true;
  }
  return false;
}

/* One daemon has just told it that its round is over, after the other one was gone: its workers are about to die. */
static bool has_just_heard(const struct sim *s, const struct sim_agent *b) {
  return s->two && b->over_round >= b->round && !strcmp(b->over_inc, b->incarnation) &&
         s->now <= b->over_at + dying_ms(s, b);
}

/* Two daemons may have a job each where there are nodes enough for two. That a node's next life went to the other
 * one, while its last one still counts here, is as good as one node more. */
static bool enough_for_two(const struct sim *s, const struct sim_agent *a, const struct sim_agent *b) {
  bool doubled = s->n_agents > s->n_nodes;
  bool elsewhere = a->told_side != b->told_side || a->told_side != b->home;
  return elsewhere &&
         (doubled || is_incomplete(s, a) || is_incomplete(s, b) || 2 * s->config.settings.min_nodes <= s->n_nodes);
}

/* Nothing has happened to any node, every one of the round runs or is done, and nobody can take its place. */
void check_stop(struct sim *s, const struct sim_agent *a) {
  const struct settings *t = &s->config.settings;
  bool spares = s->n_nodes > t->max_nodes; /* then a round could form without it: it is told to fence, and must */
  if (s->config.takeover) return;          /* a takeover costs a round */
  if (!s->harmless || t->min_nodes != t->max_nodes || t->orphan_grace_ms || spares) return;
  const struct round_book *r = book_find(s->checker, a->incarnation, a->round);
  if (!r || !r->told || r->n_places < r->nodes || r->failed || s->config.portless || t->hang_timeout_ms) return;
  for (int i = 0; i < r->n_places; i++) {
    const struct sim_agent *b = r->places[i].agent;
    if (b->round != a->round || strcmp(b->incarnation, a->incarnation) != 0) return;
    for (uint32_t k = 0; k < b->workers; k++)
      if (!worker_works(&b->w[k]) && !b->w[k].exited_zero) return;
  }
  sim_violate(s, INV_HEALTHY, "%s is to stop round %u, of which all run", a->name, a->round);
}

/* When its lease is over, or the time that a daemon has granted when it left. */
static uint64_t lease_over_at(const struct sim *s, const struct sim_agent *a) {
  uint64_t lease_at = a->ack_at + (uint64_t)s->config.settings.lease_ms;
  return a->away_at > lease_at ? a->away_at : lease_at;
}

static bool is_over_its_lease(const struct sim *s, const struct sim_agent *a) {
  return a->fence && s->now > lease_over_at(s, a);
}

/* The daemon may give its ranks away a lease after it has heard of it last, which was not after it answered. A node
 * that hears too late that it must fence, because it was stopped or cut off before, does it as soon as it hears of
 * it: the one hole that remains. */
void check_fenced(struct sim *s, const struct sim_agent *a, const struct sim_worker *w) {
  uint64_t over_ms = lease_over_at(s, a);
  bool could_not = a->node->off || a->node->resumed_at + dying_ms(s, a) >= s->now || w->b.kill_ms || were_unable(s, a);
  uint64_t dead_ms = a->fence_heard_at + dying_ms(s, a);
  bool told_late = dead_ms > over_ms && s->now <= dead_ms;
  bool idle = w->parked && s->two; /* it has left its round; which daemon's answers count for it is nobody's concern */
  if (!a->fence || could_not || told_late || idle || s->now <= over_ms) return;
  sim_violate(s, INV_FENCED, "rank %u of round %u on %s has lived %" PRIu64 " ms longer than its lease", w->rank,
              a->round, a->name, s->now - over_ms);
}

void check_worker_starts(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  for (int i = 0; i < s->n_agents; i++) {
    const struct sim_agent *b = s->agents[i];
    if (b->node->uid != a->node->uid) continue; /* of another job */
    bool same = b->round == a->round && !strcmp(b->incarnation, a->incarnation);
    for (int k = 0; k < SIM_WORKERS_MAX; k++) {
      const struct sim_worker *v = &b->w[k];
      bool frozen =
          b->node->suspended || (s->suspends && b->node->resumed_at + dying_ms(s, b) >= s->now) || were_unable(s, b);
      bool late = v->parked && v->state == WORKER_RUNNING && !frozen && !same && !v->b.kill_ms;
      if (late && b->guard_alive && !s->two && is_over_its_lease(s, b) && b->fence_heard_at <= b->ack_at)
        sim_violate(s, INV_FENCED, "%s starts rank %u of round %u, and %s still keeps a worker of round %u", a->name,
                    w->rank, a->round, b->name, b->round);
      if (frozen || !worker_works(v) || (same && !v->ghost)) continue;
      if (v->b.kill_ms) continue;
      bool thawed = (s->suspends && a->node->resumed_at + s->config.exec_max >= s->now) ||
                    were_unable(s, a); /* as what it had begun */
      if (s->config.takeover && !thawed) check_one_round(s, a, w, b, v);
      if (s->config.takeover) continue;
      if (thawed || unknown_to_the_daemon(s, a, b) || unknown_to_the_daemon(s, b, a) || enough_for_two(s, a, b) ||
          has_just_heard(s, b))
        continue;
      sim_violate(s, INV_OVERLAP, "%s starts rank %u of round %u while %s runs rank %u of round %u", a->name, w->rank,
                  a->round, b->name, v->rank, b->round);
    }
  }
}

void check_worker_ends(struct sim *s, struct sim_agent *a, struct sim_worker *w, int status, bool by_itself) {
  struct round_book *r = book_round(s->checker, a->incarnation, a->round);
  struct place *p = book_place(r, a);
  if (status == 0 && p) p->zero_exits++;
  if (status != 0 && by_itself) r->failed = true, s->harmless = false;
}

/* A hang is nothing that happens: it is said, so it is believed where the worker was silent since then. */
enum { HEARD_MS = 100 }; /* what a worker tells is heard within this, or its agent cannot hear at all, and knows that */

static void check_hung(struct sim *s, struct sim_agent *a, const char *incarnation, const struct report *rep) {
  if (rep->kind != REPORT_FAILED || rep->what.cause != CAUSE_WORKER_HUNG) return;
  book_round(s->checker, incarnation, rep->round)->failed = true;
  s->harmless = false;
  const struct sim_worker *w = &a->w[rep->what.local_rank];
  uint64_t ago_ms = (uint64_t)rep->ago_ms * 1000 / a->node->rate;                        /* told by its clock */
  uint64_t said_ms = (uint64_t)(rep->ago_ms - rep->what.idle_ms) * 1000 / a->node->rate; /* ago: it was judged */
  if (w->stepped_at + said_ms > s->now) return;                                          /* and went on afterwards */
  /* Suspended, it is told afterwards what it did before; in peace, or when others are stopped, what had hung goes on.
   */
  bool slept = s->calm || a->kill_at != UINT64_MAX || (s->suspends && a->node->resumed_at + ago_ms >= s->now);
  if (a->round == rep->round && !slept && w->stepped_at + ago_ms > s->now + HEARD_MS)
    sim_violate(s, INV_BUDGET, "%s says that rank %u hangs since %" PRId64 " ms, but it told a step %" PRIu64 " ms ago",
                a->name, w->rank, rep->ago_ms, s->now - w->stepped_at);
}

/* Who has rejoined for nothing is its round's failure. */
static void check_contact_lost(struct sim *s, const struct sim_agent *a, const char *incarnation,
                               const struct report *rep, bool again) {
  if (rep->kind != REPORT_FAILED || rep->what.cause != CAUSE_CONTACT_LOST) return;
  book_round(s->checker, incarnation, rep->round)->failed = true;
  s->harmless = false;
  const struct sim_worker *w = &a->w[rep->what.local_rank];
  if (!again && worker_works(w) && a->guard_alive)
    sim_violate(s, INV_PARKED, "%s says that rank %u has left round %u, but it is at work", a->name, w->rank, a->round);
}

/* Of a round without a store no worker is started, and each node reports that. */
static void check_without_store(struct sim *s, const char *incarnation, const struct report *rep) {
  if (rep->kind != REPORT_FAILED || rep->what.cause != CAUSE_WORKER_EXEC) return;
  struct round_book *r = book_round(s->checker, incarnation, rep->round);
  if (!r->port) r->failed = true, s->harmless = false;
}

static void check_hangs(struct sim *s, struct sim_agent *a, const struct msg *m) {
  if (m->type == MSG_REPORT) check_without_store(s, m->report_msg.incarnation, &m->report_msg.report);
  for (size_t i = 0; m->type == MSG_HELLO && i < m->hello.n_reports; i++)
    check_without_store(s, m->hello.incarnation, &m->hello.reports[i]);
  if (m->type == MSG_REPORT) check_hung(s, a, m->report_msg.incarnation, &m->report_msg.report);
  if (m->type == MSG_REPORT) check_contact_lost(s, a, m->report_msg.incarnation, &m->report_msg.report, false);
  for (size_t i = 0; m->type == MSG_HELLO && i < m->hello.n_reports; i++)
    check_contact_lost(s, a, m->hello.incarnation, &m->hello.reports[i], true);
  for (size_t i = 0; m->type == MSG_HELLO && i < m->hello.n_reports; i++)
    check_hung(s, a, m->hello.incarnation, &m->hello.reports[i]);
}

/* A worker that answers requests, and has not answered the last one; nothing has told it to stop. */
static bool owes_checkpoint(const struct sim_worker *w) {
  return worker_works(w) && !w->ghost && !w->kept && !w->termed && !w->killed && w->b.checkpoints &&
         (!w->asked || w->saved != w->asked);
}

static void check_checkpointed(struct sim *s, const struct sim_agent *a) {
  for (int i = 0; i < SIM_WORKERS_MAX; i++)
    if (owes_checkpoint(&a->w[i]))
      sim_violate(s, INV_CHECKPOINTED, "%s reports the checkpoint of round %u that its rank %u has not written",
                  a->name, a->round, a->w[i].rank);
}

void check_agent_sent(struct sim *s, struct sim_agent *a, const struct msg *m) {
  check_hangs(s, a, m);
  if (m->type == MSG_REPORT) check_failure_told(s, m->report_msg.incarnation, &m->report_msg.report);
  for (size_t i = 0; m->type == MSG_HELLO && i < m->hello.n_reports; i++)
    check_failure_told(s, m->hello.incarnation, &m->hello.reports[i]);
  if (m->type == MSG_HELLO && m->hello.phase == PHASE_NONE && a->store.open)
    sim_violate(s, INV_STORE_ENDS, "%s joins anew and still serves round %" PRId64, a->name, a->store.round);
  if (m->type == MSG_PROGRESS) {
    struct place *p = book_place(book_round(s->checker, m->progress.incarnation, m->progress.round), a);
    if (p && m->progress.step > p->step)
      p->step = m->progress.step; /* the daemon has heard the last, or one before it */
  }
  if (m->type != MSG_REPORT) return;
  const struct report *rep = &m->report_msg.report;
  if (rep->kind == REPORT_CHECKPOINTED) check_checkpointed(s, a);
  if (rep->kind != REPORT_STOPPED && rep->kind != REPORT_FINISHED) return;
  for (int i = 0; i < SIM_WORKERS_MAX; i++) {
    const struct sim_worker *w = &a->w[i];
    if (worker_works(w) && w->kept)
      sim_violate(s, INV_PARKED, "%s reports %s of round %" PRId64 " while its rank %u, which is to stay, is at work",
                  a->name, report_kind_name(rep->kind), rep->round, w->rank);
    else if (worker_works(w) || w->state == WORKER_SPAWNING)
      sim_violate(s, INV_STOPPED, "%s reports %s of round %" PRId64 " while its rank %u runs", a->name,
                  report_kind_name(rep->kind), rep->round, w->rank);
  }
  struct place *p = book_place(book_round(s->checker, m->report_msg.incarnation, rep->round), a);
  if (rep->kind == REPORT_FINISHED && (!p || p->zero_exits != p->workers))
    sim_violate(s, INV_STOPPED, "%s reports that it has finished round %" PRId64 ", but not all its workers have",
                a->name, rep->round);
}

/* A daemon that came back counts from then on, so it is later still. START waits for its line, and that for other
 * lines before it. */
static void check_age(struct sim *s, const char *incarnation, int64_t round) {
  const struct round_book *r = book_find(s->checker, incarnation, round);
  if (!r || r->first_life != s->d.life) return;
  uint64_t age_ms = (uint64_t)JOB_GROW_AGE_MS * 1000 / place_rate(s, s->d.machine);
  if (s->now + 4 * s->config.save_max < r->sent_at + age_ms)
    sim_violate(s, INV_GROWTH, "round %" PRId64 " ends for newcomers after %" PRIu64 " ms", round, s->now - r->sent_at);
}

static bool has_lost_one(const struct round_book *r) {
  for (int i = 0; i < r->n_places; i++)
    if (!r->places[i].agent->sup) return true;
  return false;
}

/* Where nothing has gone wrong, and nobody has left at once, as who has finished does, there is no reason to be
 * quicker. */
static void check_planned_end(struct sim *s, const struct round_book *r) {
  uint64_t wait_ms = (uint64_t)s->config.settings.stop_timeout_ms / 2 * 1000 / place_rate(s, s->d.machine);
  if (s->faulty || r->failed || !wait_ms || has_lost_one(r) ||
      (r->prepared && s->now + 4 * s->config.save_max >= r->prepared_at + wait_ms))
    return;
  for (int i = 0; i < s->n_agents; i++) {
    const struct sim_agent *a = s->agents[i];
    if (a->round != r->round || strcmp(a->incarnation, r->incarnation) != 0) continue;
    for (int k = 0; k < SIM_WORKERS_MAX; k++)
      if (owes_checkpoint(&a->w[k]))
        sim_violate(s, INV_CHECKPOINTED, "round %" PRId64 " is stopped before rank %u has written its checkpoint",
                    r->round, a->w[k].rank);
  }
}

static bool is_planned(enum cause c) {
  return c == CAUSE_NODE_JOINED || c == CAUSE_NODE_LEAVING || c == CAUSE_NODE_DRAINED;
}

/* A START that is said again is of a round that began before. Of two daemons each has its own. */
static void check_drained(struct sim *s, const struct sim_conn *c, const struct start *t) {
  const struct round_book *r = book_round(s->checker, t->incarnation, t->round);
  uint64_t began = r->sent_life ? r->first_at : s->now;
  if (book_several(s) || !c->node || !c->node->drained || began <= c->node->drained_at) return;
  sim_violate(s, INV_DRAINED, "round %" PRId64 " begins with %s, which is drained", t->round, c->node->host);
}

void check_core_sent(struct sim *s, struct sim_conn *c, const struct msg *m) {
  check_event_sent(s, m);
  if (m->type == MSG_STOP && m->stop.verdict.cause == CAUSE_NODE_JOINED)
    check_age(s, m->stop.incarnation, m->stop.round);
  if (m->type == MSG_STOP && is_planned(m->stop.verdict.cause) && !m->stop.void_round)
    check_planned_end(s, book_round(s->checker, m->stop.incarnation, m->stop.round));
  if (m->type == MSG_PREPARE) {
    struct round_book *r = book_round(s->checker, m->prepare.incarnation, m->prepare.round);
    if (!r->prepared) r->prepared_at = s->now;
    r->prepared = true;
  }
  if (m->type == MSG_CONTROL_REPLY && c->drains && !m->control_reply.code && c->lifts == c->drains->lifts) {
    c->drains->drained = true;
    c->drains->drained_at = s->now;
  }
  if (m->type == MSG_STALE || m->type == MSG_REFUSED) c->here_at = UINT64_MAX;
  if (m->type != MSG_START) return;
  check_drained(s, c, &m->start);
  if (c->kind != CONN_AGENT) sim_violate(s, INV_RANKS, "START goes to a connection that is no agent's");
  struct round_book *r = book_round(s->checker, m->start.incarnation, m->start.round);
  if (s->config.takeover) check_sealed(s, c, r, &m->start);
  if (r->sent_life == s->d.life) return;
  if (!r->sent_life) r->first_life = s->d.life, r->first_at = s->now;
  r->sent_life = s->d.life;
  r->sent_at = s->now;
}

void check_hello(struct sim *s, struct sim_conn *c, const struct hello *h) {
  struct sim_agent *a = c->agent;
  if (s->config.takeover) check_takeover_hello(s, h);
  check_goodput_hello(s, a, h);
  if (c->here_at == UINT64_MAX) c->here_at = s->now;
  if (a->known_life == s->d.life) return;
  a->known_life = s->d.life;
  a->known_at = s->now;
}
