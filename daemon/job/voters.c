/* SPDX-License-Identifier: Apache-2.0 */
/* This file says which nodes have a vote on the next round of a job (in_charge.c). Votes change at a seal and at HELLO.
 *
 * The nodes of the last sealed round have votes. A daemon that sealed it knows them; one that recovers it learns them from
 * HELLO, in which each node says which round it was part of last, and how many nodes that had.
 *
 * A node that comes from another daemon brings a promise: it follows that one no more. Its vote counts here when all that
 * the other daemon allowed because of it has ended, a lease after the node last read from there.
 *
 * Each seal carries a majority of the votes into the next round. Nodes that it leaves out give theirs up before. */

#include "daemon/job/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/endpoint.h"
#include "common/mem.h"
#include "common/siphash.h"

enum { RETIRE_MS = 1000 };
static const char give_up[] = "the next round begins without this node, which gives up its vote";

/* Carrying. -------------------------------------------------------------------------------------------------------- */

bool member_has_vote(const struct member *m) {
  const struct quorum *q = m->job->quorum;
  const struct voter *v = q->on ? map_get(&q->voters, m->agent) : NULL;
  return v && quorum_needs(q, v) && !v->dead;
}

/* A node that the next round leaves out keeps its vote of the last one, and could lend it to another daemon that knows
 * nothing of the next. If the round would carry too few votes, such nodes are asked to give theirs up: after STALE they
 * say HELLO without it. */
bool job_quorum_carries(struct job *j, struct member *const *chosen, size_t n, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  if (!q->on || q->all) return true;
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) ((struct voter *)e->value)->carried = false;
  /* Enough votes go from the last round, or the one that it passed over, into one of these nodes. */
  struct voter_count c = {0};
  bool over = quorum_may_pass_over(q);
  for (size_t i = 0; i < n; i++) {
    struct voter *v = map_get(&q->voters, chosen[i]->agent);
    if (v) v->carried = true;
  }
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    const struct voter *v = e->value;
    if (!quorum_needs(q, v) || !(v->carried || quorum_counts_dead(q, v, over))) continue;
    c.here++;
    c.tie_breakers += over ? v->base_tie_breaker : v->tie_breaker;
  }
  if (!quorum_lacking(&c, over ? q->base_nodes : q->nodes)) return true;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    struct voter *v = map_get(&q->voters, m->agent);
    if (!v || !quorum_needs(q, v) || v->dead || v->carried) continue;
    job_send_stale(j, m->conn, true, give_up);
    v->asked = true;
  }
  q->retiring_ms = now_ms + RETIRE_MS;
  return false;
}

/* The last round is over, and not firm: some nodes of the one before have never read its START. They can no longer read
 * it, so they are asked to give their votes up. */
void job_quorum_settle(struct job *j, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  if (!q->on || q->firm || now_ms < q->retiring_ms || quorum_may_pass_over(q) || !job_in_charge(j, now_ms)) return;
  bool asked = false;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    struct voter *v = map_get(&q->voters, m->agent);
    if (!v || !v->base || v->dead || (v->current && v->knows) || !m->conn || v->from_ms > now_ms) continue;
    job_send_stale(j, m->conn, true, give_up);
    v->asked = asked = true;
  }
  if (asked) q->retiring_ms = now_ms + RETIRE_MS;
}

/* Voters. ---------------------------------------------------------------------------------------------------------- */

static struct voter *voter_of(struct quorum *q, const char *agent) {
  struct voter *v = map_get(&q->voters, agent);
  if (!v) map_put(&q->voters, agent, v = xcalloc(1, sizeof *v));
  return v;
}

static uint64_t host_hash(const struct job *j, const char *host) {
  return siphash(&j->agents.key, host, strlen(host));
}

static bool is_on_our_machine(const struct member *m) {
  struct ipaddr ip = ipaddr_parse(m->peer_addr);
  return ipaddr_is_loopback(&ip) || !strcmp(m->peer_addr, m->daemon_addr);
}

/* Before the round gets its token: the token of before is the base, and who was only of an older one is forgotten. If the
 * last round is passed over, its base stays, without those that know it: they have spent their votes. */
void job_quorum_rebase(struct job *j) {
  struct quorum *q = j->quorum;
  bool was_on = q->on, passes_over = quorum_may_pass_over(q);
  if (passes_over)
    job_log(j, LOG_WARN,
            "round %lld is passed over: too few of its nodes are here, and of those of round %lld enough do "
            "not know it",
            (long long)j->round, (long long)q->base_round);
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    struct voter *v = e->value;
    quorum_tally(q, v, -1);
    v->base = passes_over ? v->base && !v->knows : was_on && v->current;
    v->base_tie_breaker = v->base && (passes_over ? v->base_tie_breaker : v->tie_breaker);
    v->current = v->tie_breaker = v->knows = false;
    quorum_tally(q, v, 1);
    if (v->base) continue;
    free(v);
    map_remove_n(&q->voters, e->key, e->key_len);
  }
  if (passes_over) return;
  q->base_nodes = was_on ? q->nodes : 0;
  q->base_round = was_on ? j->round : 0;
  memset(q->base_incarnation, 0, sizeof q->base_incarnation);
  if (was_on) memcpy(q->base_incarnation, j->incarnation, sizeof q->base_incarnation);
}

void job_quorum_seal(struct job *j, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  struct voter *tie_breaker = NULL;
  bool ours = false; /* a node of our machine was found */
  for (int64_t r = 0; r < j->round_nodes; r++) {
    struct member *m = job_find_rank(j, r);
    struct voter *v = voter_of(q, m->agent);
    quorum_tally(q, v, -1);
    v->current = true;
    v->dead = v->apart = v->knows = v->asked = false;
    v->here = m->conn != 0;
    v->place = member_place(m);
    v->host = host_hash(j, m->host);
    if (m->vote->followed_ms > v->followed_ms) v->followed_ms = m->vote->followed_ms;
    if (r == 0 || (!ours && is_on_our_machine(m))) tie_breaker = v;
    ours = ours || is_on_our_machine(m);
    m->vote->round = j->round;
    memcpy(m->vote->incarnation, j->incarnation, sizeof m->vote->incarnation);
    m->vote->in_base = v->base;
    m->vote->base_tie_breaker = v->base_tie_breaker;
    m->vote->tie_breaker = false;
    quorum_tally(q, v, 1);
  }
  if (tie_breaker) {
    quorum_tally(q, tie_breaker, -1);
    tie_breaker->tie_breaker = true;
    quorum_tally(q, tie_breaker, 1);
    for (size_t i = 0; i < j->n_members; i++)
      if (map_get(&q->voters, j->members[i]->agent) == tie_breaker) j->members[i]->vote->tie_breaker = true;
  }
  q->n_successors = 0;
  for (int64_t r = 0; j->jobs->daemon.owned && r < j->round_nodes && q->n_successors < SUCCESSORS_MAX; r++) {
    const struct member *m = job_find_rank(j, r);
    if (!m || !m->vote->standby_port || is_on_our_machine(m)) continue;
    struct kept_successor *s = &q->successors[q->n_successors++];
    memcpy(s->agent, m->agent, sizeof s->agent);
    snprintf(s->host, sizeof s->host, "%s", m->host);
    memcpy(s->addr, m->addr, sizeof s->addr);
    s->port = m->vote->standby_port;
  }
  q->nodes = j->round_nodes;
  q->all = j->settings.claims;
  q->lasting = q->n_successors > 0 || j->settings.daemons > 1 || j->settings.claims;
  q->firm = q->all || !q->base_nodes;
  q->on = q->lasting || !q->firm;
  q->sealed_ms = now_ms;
  q->look.fresh = true;
  q->retiring_ms = 0;
}

void job_quorum_fill_start(struct job *j, const struct member *m, struct start *s, struct successor successors[]) {
  const struct quorum *q = j->quorum;
  const struct voter *v = map_get(&q->voters, m->agent);
  if (!q->on || !v) return;
  s->seal.nodes = q->nodes;
  s->seal.tie_breaker = v->tie_breaker;
  s->seal.base_incarnation = q->base_incarnation;
  s->seal.base_round = q->base_round;
  s->seal.base_nodes = q->base_nodes;
  s->seal.in_base = v->base;
  s->seal.base_tie_breaker = v->base_tie_breaker;
  s->n_successors = job_successors(j, successors);
  s->successors = successors;
  s->age_ms = (int64_t)job_age_ms(j, j->jobs->now_ms);
  s->agreed = q->agreed;
}

/* A daemon that has the round from its agents. --------------------------------------------------------------------- */

static bool has_voted(const struct member *m, const char *incarnation, int64_t round) {
  return round > 0 && m->vote->round == round && !strcmp(m->vote->incarnation, incarnation);
}

static void count_vote(struct job *j, const struct member *m) {
  struct quorum *q = j->quorum;
  bool current = has_voted(m, j->incarnation, j->round);
  bool base = current ? m->vote->in_base : has_voted(m, q->base_incarnation, q->base_round);
  if (!q->base_nodes) base = false;
  struct voter *v = map_get(&q->voters, m->agent);
  if (!v && !current && !base) return;
  if (!v) v = voter_of(q, m->agent);
  quorum_tally(q, v, -1);
  v->here = m->conn != 0;
  v->current = current;
  v->tie_breaker = current && m->vote->tie_breaker;
  v->base = base;
  v->base_tie_breaker = base && (current ? m->vote->base_tie_breaker : m->vote->tie_breaker);
  v->dead = v->apart = false;
  v->knows = current;
  v->host = host_hash(j, m->host);
  v->from_ms = latest(v->from_ms, m->vote->held_ms);
  q->recovering.judge_ms = latest(q->recovering.judge_ms, m->vote->held_ms);
  quorum_tally(q, v, 1);
}

void job_quorum_forget(struct job *j) {
  struct quorum *q = j->quorum;
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    free(e->value);
    map_remove_n(&q->voters, e->key, e->key_len);
  }
  q->current = q->base = q->unbound = (struct voter_count){0};
  q->on = q->lasting = q->all = q->firm = q->recovering.same_daemon = false;
  q->nodes = q->base_nodes = q->base_round = q->agreed = 0;
  q->recovering.judge_ms = 0;
  q->recovering.has_began = q->recovering.head_came = false;
  q->n_successors = 0;
  memset(q->base_incarnation, 0, sizeof q->base_incarnation);
  q->sealed_ms = 0;
  q->look.fresh = true;
}

void job_quorum_load(struct job *j) {
  struct quorum *q = j->quorum;
  q->lasting = q->on = true;
  q->all = j->settings.claims;
}

/* What the agent read of another daemon, and what that one allowed with its vote, has its time before the vote counts
 * here. */
static void note_promise(struct job *j, struct member *m, struct voter *v, const struct hello *h, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  bool same = h->follows[0] && !strcmp(h->follows, j->jobs->daemon.id), other = h->follows[0] && !same;
  bool forgotten = same && j->state == JOB_RECOVERING && !j->exact; /* with what other nodes had promised */
  q->recovering.same_daemon = q->recovering.same_daemon || same;
  if (other && h->term >= j->term) j->term = h->term < TERM_MAX ? h->term + 1 : TERM_MAX;
  if (!other && !forgotten) return;
  uint64_t silent = (uint64_t)h->silent_ms < lease_ms(j) ? (uint64_t)h->silent_ms : lease_ms(j);
  uint64_t until = now_ms + lease_ms(j) - silent;
  if (until > m->vote->held_ms) m->vote->held_ms = until;
  if (!v) return;
  if (until > v->from_ms) v->from_ms = until;
  if (until > q->recovering.judge_ms) q->recovering.judge_ms = until;
}

/* A voter of a round that this daemon has sealed: it may have been in another one since. */
static void recount_vote(struct job *j, const struct member *m, const struct hello *h, struct voter *v) {
  const struct quorum *q = j->quorum;
  if (has_voted(m, j->incarnation, j->round)) return;
  if (v->base && has_voted(m, q->base_incarnation, q->base_round)) return; /* START has not reached it yet */
  /* It has no vote, and knows of the round: it may have given up that vote elsewhere. */
  bool spent = !m->vote->round && h->round >= j->round && !strcmp(h->incarnation, j->incarnation);
  quorum_tally(j->quorum, v, -1);
  v->base = v->base_tie_breaker = false;
  if (spent) v->current = v->tie_breaker = false;
  quorum_tally(j->quorum, v, 1);
}

/* All nodes of the round are here and at work in it. No other daemon can have sealed a round behind it: it would have
 * lost these nodes first, and would wait for their leases, longer than their votes last. */
void job_quorum_all_work(struct job *j) {
  struct quorum *q = j->quorum;
  for (struct map_entry *e = NULL; q->on && (e = map_next(&q->voters, e));) ((struct voter *)e->value)->from_ms = 0;
  for (size_t i = 0; q->on && i < j->n_members; i++)
    if (member_in_round(j->members[i])) j->members[i]->vote->held_ms = 0;
  q->look.fresh = true;
  q->untold = q->on;
}

void member_note_vote(struct member *m, const struct hello *h, bool again, uint64_t now_ms) {
  struct job *j = m->job;
  struct quorum *q = j->quorum;
  m->vote->standby_port = h->standby_port;
  snprintf(m->vote->incarnation, sizeof m->vote->incarnation, "%s", h->voted_incarnation);
  m->vote->round = h->voted_round;
  m->vote->in_base = h->seal.in_base;
  m->vote->tie_breaker = h->seal.tie_breaker;
  m->vote->base_tie_breaker = h->seal.base_tie_breaker;
  if (!again) { /* otherwise heartbeats that were sent before this WELCOME may still come */
    memset(m->vote->acks, 0, sizeof m->vote->acks);
    m->vote->last_beat = 0;
    m->vote->start_ms = 0;
    m->vote->welcomed_ms = now_ms;
  }
  m->boot.known = h->up_ms > 0;
  m->boot.up_ms = h->up_ms;
  m->boot.at_ms = (int64_t)now_ms - h->up_ms;
  if (job_is_over(j) || !j->round) return;
  bool current = has_voted(m, j->incarnation, j->round);
  struct voter *v = map_get(&q->voters, m->agent);
  if (v && strcmp(h->follows, j->jobs->daemon.id) != 0) v->asked = false; /* it may have been asked elsewhere, too */
  bool retires = v && v->asked && !h->voted_incarnation[0];
  if (!q->sealed_ms && !retires) {
    /* A node that was in a round which another daemon could take over says so. The size of the recovered round may still
     * be unknown then. */
    if (h->seal.nodes || h->succeeded) job_quorum_load(j);
    if (h->seal.nodes && !q->nodes && current) {
      q->nodes = h->seal.nodes;
      q->base_nodes = h->seal.base_nodes;
      q->base_round = h->seal.base_round;
      snprintf(q->base_incarnation, sizeof q->base_incarnation, "%s", h->seal.base_incarnation);
      for (size_t i = 0; i < j->n_members; i++) count_vote(j, j->members[i]);
    }
    count_vote(j, m);
  }
  v = map_get(&q->voters, m->agent);
  if (retires) { /* because this daemon asked for it: it follows nobody from that round */
    quorum_tally(q, v, -1);
    v->dead = true;
    quorum_tally(q, v, 1);
    q->retiring_ms = 0;
    q->look.fresh = true;
  } else if (v && q->sealed_ms) {
    recount_vote(j, m, h, v);
  }
  note_promise(j, m, v, h, now_ms);
  const size_t *n = j->n_in_state;
  size_t at_work = n[MEMBER_TOLD] + n[MEMBER_STARTED] + n[MEMBER_FINISHED];
  bool all_work = job_round_goes_on(j) && !j->n_gone && at_work == (size_t)j->round_nodes && q->current.here >= at_work;
  if (v && v->from_ms > now_ms && all_work) job_quorum_all_work(j);
  if (current) member_read_start(m);
  if (current && h->firm) q->firm = true;
  if (h->term > j->term) j->term = h->term;
  q->look.news = true;
  if (current && !q->sealed_ms) job_learn_head(j, h, now_ms);
  if (!v) job_find_booted(j, m);
}

/* Node rank 0 of a recovered round, which has not come: only its machine is known. */
void job_quorum_expect(struct job *j, const char *key, const char *host, uint64_t place) {
  struct voter *v = voter_of(j->quorum, key);
  v->host = host_hash(j, host);
  v->current = true;
  v->place = place;
}

void job_quorum_drop(struct job *j, const char *key) {
  struct voter *v = map_get(&j->quorum->voters, key);
  if (!v) return;
  quorum_tally(j->quorum, v, -1);
  map_remove(&j->quorum->voters, key);
  free(v);
}

/* It was not here when it died, at dead_ms at the latest. Another daemon counts its vote from a lease on after it has last
 * heard this one (by a clock that may be slow), and what that daemon allowed then ends within a lease. */
void job_quorum_count_dead(struct job *j, struct voter *v, uint64_t dead_ms) {
  quorum_tally(j->quorum, v, -1);
  v->dead = true;
  v->apart = !v->followed_ms || dead_ms > v->followed_ms + lease_ms(j) * 17 / 20;
  quorum_tally(j->quorum, v, 1);
  v->from_ms = latest(v->from_ms, dead_ms + lease_ms(j));
  j->quorum->look.news = j->quorum->look.fresh = true;
}

size_t job_quorum_confirm_dead(struct job *j, const char *host) {
  size_t n = 0;
  uint64_t hash = host_hash(j, host);
  for (struct map_entry *e = NULL; (e = map_next(&j->quorum->voters, e));) {
    struct voter *v = e->value;
    if (v->host != hash || v->here || v->dead) continue;
    job_quorum_count_dead(j, v, j->jobs->now_ms);
    n++;
  }
  return n;
}

/* RECOVERING: when it may be judged without the nodes that are missing. */
uint64_t job_quorum_judges_ms(const struct job *j) {
  const struct quorum *q = j->quorum;
  if (!q->on || q->recovering.same_daemon || (!q->all && job_lacks(j))) return UINT64_MAX;
  uint64_t soon_ms = lease_ms(j) * 2 / 5 < JOB_RECONNECT_MAX_MS ? lease_ms(j) * 2 / 5 : JOB_RECONNECT_MAX_MS;
  uint64_t at_ms = j->state_ms + soon_ms;
  return at_ms > q->recovering.judge_ms ? at_ms : q->recovering.judge_ms;
}
