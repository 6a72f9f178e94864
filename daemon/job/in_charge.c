/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this daemon is in charge of a job: a majority that follows it.
 *
 * Another daemon may take a job over when this one does not answer. Two daemons at once would start two rounds. So each
 * asks the nodes of the last sealed round, its voters, and a node follows one daemon at a time.
 *
 * A vote must be known to be young. A heartbeat says which answer of this daemon its agent has read. So the agent
 * followed this daemon when that answer was sent, or later: followed_ms. Every agent that turns to another daemon has
 * followed this one no later than it last read from here, and tells that time to the other one. The time until which a
 * majority has followed therefore bounds how long anything may run in this daemon's name. Each answer to a heartbeat
 * carries its age, and nodes with FENCE count their deadline from it.
 *
 * A round that was just sealed has two sets of voters: its own nodes, and those of the round before (its base), which
 * may not have heard of it. A daemon that asks those alone would find a majority that knows nothing of the round. So
 * both sets must follow until a majority of the base knows the round: then it is firm.
 *
 * A daemon may be lost while it sends START. If a majority of the base has not read it, and the round's own nodes are too
 * few, the next daemon passes that round over: nobody can make it firm. Each node of the base helps the first round only
 * that it has read of, so two rounds on one base cannot both become firm.
 *
 * A voter that is surely dead counts as one that follows for ever. But it may have followed another daemon before it
 * died: it died apart. That daemon may have made a round with it, and goes on with another voter. So such a vote lasts
 * only as long as each of the other voters follows. It does not make a round firm.
 *
 * Half of the voters are enough if the tie-breaker is among them; so two nodes survive the loss of the one without the
 * daemon. A job with claims asks nobody for leave to seal: the claim decides. But then any single node may go on
 * elsewhere, so all of them must follow. */

#include "daemon/job/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { LOOKS_PER_LEASE = 20, VOTERS_PER_MS = 100 };

/* Majorities. ------------------------------------------------------------------------------------------------------ */

static int by_time_down(const void *pa, const void *pb) {
  uint64_t a = *(const uint64_t *)pa, b = *(const uint64_t *)pb;
  return a < b ? 1 : a > b ? -1 : 0;
}

/* The latest time until which enough of the voters have followed; times[0 .. n) is sorted from the latest down. */
static uint64_t until_of(const uint64_t *times, size_t n, size_t voters, bool has_tie_breaker, uint64_t tie_breaker_ms,
                         bool all) {
  if (all) return n < voters ? 0 : times[voters - 1];
  uint64_t most = n > voters / 2 ? times[voters / 2] : 0;
  if (voters % 2 || !has_tie_breaker) return most;
  /* Half of them: the tie-breaker, and those of the others that have followed longest. If the tie-breaker is among the
   * first of the list, the last of that half is the slower one; else the tie-breaker is. */
  uint64_t half = n >= voters / 2 ? times[voters / 2 - 1] : 0;
  uint64_t with_tie_breaker = tie_breaker_ms < half ? tie_breaker_ms : half;
  return with_tie_breaker > most ? with_tie_breaker : most;
}

/* 0: never. No voter of a round of unknown nodes is known to follow. The vote of one that died apart is as old as the
 * oldest of the others: another daemon needs one of these to go on with it. */
static uint64_t followed_until(const struct quorum *q, bool base, uint64_t now_ms) {
  size_t voters = (size_t)(base ? q->base_nodes : q->nodes), n = 0;
  uint64_t tie_breaker_ms = 0, oldest_ms = UINT64_MAX;
  bool has_tie_breaker = false;
  if (!voters) return 0;
  uint64_t *times = xmalloc((q->voters.count + 1) * sizeof *times);
  for (int apart = 0; apart < 2; apart++) {
    if (apart && n + (base ? &q->base : &q->current)->apart < voters) oldest_ms = 0; /* nobody knows the rest of them */
    for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
      const struct voter *v = e->value;
      if (!(base ? v->base : v->current) || v->apart != apart) continue;
      /* A node that has not read START does not know the round, so it cannot follow another daemon from it. With claims
       * it can: there the base is not asked. */
      uint64_t at_ms = !base && !q->all && q->sealed_ms > v->followed_ms ? q->sealed_ms : v->followed_ms;
      if (v->dead) at_ms = UINT64_MAX;
      if (v->from_ms > now_ms) at_ms = 0; /* what another daemon allowed with this vote may still run */
      if (apart)
        at_ms = at_ms < oldest_ms ? at_ms : oldest_ms;
      else if (at_ms < oldest_ms)
        oldest_ms = at_ms;
      times[n++] = at_ms;
      if (base ? v->base_tie_breaker : v->tie_breaker) {
        has_tie_breaker = true;
        tie_breaker_ms = at_ms;
      }
    }
  }
  qsort(times, n, sizeof *times, by_time_down);
  uint64_t until = until_of(times, n, voters, has_tie_breaker, tie_breaker_ms, q->all);
  free(times);
  return until;
}

static bool none_is_missing(const struct voter_count *c, int64_t voters) {
  return c->here + c->apart >= (size_t)voters;
}

bool quorum_counts_dead(const struct quorum *q, const struct voter *v, bool base) {
  return v->dead && (!v->apart || none_is_missing(base ? &q->base : &q->current, base ? q->base_nodes : q->nodes));
}

size_t quorum_lacking(const struct voter_count *c, int64_t voters) {
  size_t n = (size_t)voters, need = n ? n / 2 + 1 : 0;
  if (n && c->apart && none_is_missing(c, voters)) return 0;
  if (n % 2 == 0 && c->tie_breakers && c->here >= n / 2) return 0;
  return c->here < need ? need - c->here : 0;
}

/* A daemon that has the round from its nodes finds too few of them, and a majority of the base that does not know it.
 * Nobody can make it firm without those, so they may follow the base with another round. */
bool quorum_may_pass_over(const struct quorum *q) {
  return !q->firm && !q->all && !q->sealed_ms && q->nodes && q->base_nodes && quorum_lacking(&q->current, q->nodes) &&
         !quorum_lacking(&q->unbound, q->base_nodes);
}

bool quorum_needs(const struct quorum *q, const struct voter *v) {
  return quorum_may_pass_over(q) ? v->base && !v->knows : v->current;
}

/* A majority of the base knows the round. One that died apart counts only if all the others know it: each of them could
 * make another round firm with its vote. */
static bool base_knows(const struct quorum *q, uint64_t now_ms) {
  size_t n = 0, apart = 0, voters = (size_t)q->base_nodes;
  bool tie_breaker = false;
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    const struct voter *v = e->value;
    if (!v->base || !(v->dead || (v->current && v->knows)) || v->from_ms > now_ms) continue;
    apart += v->apart;
    n += !v->apart;
    tie_breaker = tie_breaker || (v->base_tie_breaker && !v->apart);
  }
  return n > voters / 2 || (voters % 2 == 0 && tie_breaker && n == voters / 2) || n + apart >= voters;
}

/* Both sets, until the round is firm. */
static void look(struct quorum *q, uint64_t now_ms) {
  if (!q->firm && q->nodes) {
    q->firm = q->all || !q->base_nodes || base_knows(q, now_ms);
    if (q->firm) q->on = q->lasting;
  }
  uint64_t own = followed_until(q, false, now_ms), base = q->firm ? UINT64_MAX : followed_until(q, true, now_ms);
  q->look.until_ms = own < base && !quorum_may_pass_over(q) ? own : base;
  q->look.at_ms = now_ms;
  q->look.news = q->look.fresh = false;
  q->look.next_from_ms = UINT64_MAX;
  q->one_counts = false;
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    const struct voter *v = e->value;
    q->one_counts = q->one_counts || (v->current && (v->here || v->dead) && v->from_ms <= now_ms);
    if (v->from_ms > now_ms && v->from_ms < q->look.next_from_ms) q->look.next_from_ms = v->from_ms;
  }
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

bool job_can_be_succeeded(const struct job *j) {
  return j->quorum->on;
}

bool job_is_firm(const struct job *j) {
  return j->quorum->firm;
}

/* A look at ten thousand voters takes a millisecond, and they all send a heartbeat eight times in a lease. */
static uint64_t next_look_ms(const struct job *j) {
  const struct quorum *q = j->quorum;
  uint64_t every_ms = lease_ms(j) / LOOKS_PER_LEASE, soon_ms = 1 + q->voters.count / VOTERS_PER_MS;
  uint64_t at_ms = q->look.at_ms + (q->look.news && soon_ms < every_ms ? soon_ms : every_ms);
  return q->look.fresh ? 0 : at_ms < q->look.next_from_ms ? at_ms : q->look.next_from_ms;
}

bool job_has_passed(const struct job *j, const char *incarnation, int64_t round) {
  const struct quorum *q = j->quorum;
  if (!strcmp(incarnation, q->base_incarnation)) return round <= q->base_round;
  return job_is_former(j, incarnation);
}

uint64_t job_age_ms(const struct job *j, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  if (!q->on) return 0;
  if (now_ms >= next_look_ms(j)) look(q, now_ms);
  if (!q->on || q->look.until_ms >= now_ms) return 0;
  return q->look.until_ms && now_ms - q->look.until_ms < lease_ms(j) ? now_ms - q->look.until_ms : lease_ms(j);
}

bool job_in_charge(const struct job *j, uint64_t now_ms) {
  return job_age_ms(j, now_ms) < lease_ms(j) / 2;
}

size_t job_lacks(const struct job *j) {
  const struct quorum *q = j->quorum;
  if (!q->on) return 0;
  if (q->all) return q->current.here ? 0 : 1; /* without any of them the round may run somewhere else */
  if (quorum_may_pass_over(q)) return 0;
  size_t own = q->nodes ? quorum_lacking(&q->current, q->nodes) : 1,
         base = q->firm ? 0 : quorum_lacking(&q->base, q->base_nodes);
  return own > base ? own : base;
}

uint16_t job_ack_number(const struct job *j, uint64_t now_ms) {
  uint64_t age = job_age_ms(j, now_ms), lease = lease_ms(j);
  return (uint16_t)((age * FRAME_AGE_PER_LEASE + lease - 1) / lease);
}

bool job_quorum_allows_seal(const struct job *j, uint64_t now_ms) {
  const struct quorum *q = j->quorum;
  if (!q->on) return true;
  bool charged = job_in_charge(j, now_ms);
  if (q->all) return q->one_counts; /* the claim decides */
  return charged && (job_is_firm(j) || quorum_may_pass_over(q));
}

/* The last look may be older than the loss of a node. */
bool job_quorum_allows_it_now(const struct job *j, uint64_t now_ms) {
  if (j->quorum->on) look(j->quorum, now_ms);
  return job_quorum_allows_seal(j, now_ms);
}

/* By the last look. */
uint64_t job_quorum_deadline(const struct job *j, uint64_t now_ms) {
  const struct quorum *q = j->quorum;
  bool charged = q->look.until_ms >= now_ms || (q->look.until_ms && now_ms - q->look.until_ms < lease_ms(j) / 2);
  if (q->on && q->retiring_ms > now_ms) return q->retiring_ms;
  if (!q->on || q->look.fresh || (charged && (q->firm || quorum_may_pass_over(q)) && !q->all)) return 0;
  if (q->all && q->one_counts) return 0;
  return q->look.news ? next_look_ms(j) : q->look.next_from_ms;
}

size_t job_agreed(const struct job *j) {
  size_t n = 0;
  for (struct map_entry *e = NULL; j->quorum->on && (e = map_next(&j->quorum->voters, e));) {
    const struct voter *v = e->value;
    const struct member *m = quorum_needs(j->quorum, v) ? job_find_agent(j, e->key) : NULL;
    n += m && m->conn;
  }
  return n;
}

size_t job_successors(const struct job *j, struct successor out[SUCCESSORS_MAX]) {
  const struct quorum *q = j->quorum;
  if (!q->on) return 0;
  for (size_t i = 0; i < q->n_successors; i++) {
    const struct kept_successor *s = &q->successors[i];
    out[i] = (struct successor){.agent = s->agent, .host = s->host, .addr = s->addr, .port = s->port};
  }
  return q->n_successors;
}

void quorum_tally(struct quorum *q, const struct voter *v, int by) {
  if (!v->here && !v->dead) return;
  if (v->dead && v->apart) {
    if (v->current) q->current.apart += (size_t)by;
    if (v->base) q->base.apart += (size_t)by;
    return;
  }
  if (v->current) q->current.here += (size_t)by, q->current.tie_breakers += (size_t)(v->tie_breaker ? by : 0);
  if (v->base) q->base.here += (size_t)by, q->base.tie_breakers += (size_t)(v->base_tie_breaker ? by : 0);
  if (v->base && !v->dead && !v->knows)
    q->unbound.here += (size_t)by, q->unbound.tie_breakers += (size_t)(v->base_tie_breaker ? by : 0);
}

/* Following. ------------------------------------------------------------------------------------------------------- */

static void note_follower(struct member *m, uint64_t at_ms) {
  struct quorum *q = m->job->quorum;
  if (at_ms > m->vote->followed_ms) m->vote->followed_ms = at_ms;
  struct voter *v = q->on ? map_get(&q->voters, m->agent) : NULL;
  if (!v) return;
  if (at_ms <= v->followed_ms) return;
  v->followed_ms = at_ms;
  q->look.news = q->look.news || !q->firm || q->look.until_ms + lease_ms(m->job) / 4 < m->job->jobs->now_ms;
}

void member_read_start(const struct member *m) {
  struct quorum *q = m->job->quorum;
  struct voter *v = q->firm ? NULL : map_get(&q->voters, m->agent);
  if (!v || v->knows) return;
  quorum_tally(q, v, -1);
  v->knows = q->look.news = true;
  quorum_tally(q, v, 1);
}

void member_beat(struct member *m, uint32_t id, unsigned behind, uint64_t now_ms) {
  uint64_t at_ms = m->vote->welcomed_ms; /* it beats only after it has read WELCOME */
  const struct sent_ack *a = &m->vote->acks[(id - behind) % MEMBER_ACKS];
  bool answered = behind && a->id == id - behind;
  if (answered && a->at_ms > at_ms) at_ms = a->at_ms;
  if (answered && m->vote->start_ms && a->at_ms > m->vote->start_ms) member_read_start(m);
  if (answered && a->fence && a->at_ms > m->vote->start_ms) member_note_fence(m);
  m->away_ms = 0; /* it has read WELCOME, which ends what GOING_AWAY allowed */
  note_follower(m, at_ms);
  m->vote->last_beat = id;
  m->vote->acks[id % MEMBER_ACKS] = (struct sent_ack){.id = id, .at_ms = now_ms, .fence = m->fence.told};
}

void member_knows_round(struct member *m) {
  const struct quorum *q = m->job->quorum;
  member_read_start(m);
  note_follower(m, m->vote->welcomed_ms > q->sealed_ms ? m->vote->welcomed_ms : q->sealed_ms);
}

void job_agent_is_dead(struct job *j, const char *agent) {
  struct quorum *q = j->quorum;
  struct voter *v = map_get(&q->voters, agent);
  if (!v || v->dead) return;
  if (!v->here) {
    job_quorum_count_dead(j, v, j->jobs->now_ms);
    return;
  }
  quorum_tally(q, v, -1);
  v->dead = true;
  quorum_tally(q, v, 1);
  q->look.news = q->look.fresh = true;
}

void job_quorum_member(const struct member *m) {
  struct quorum *q = m->job->quorum;
  struct voter *v = map_get(&q->voters, m->agent);
  bool here = m->conn != 0;
  if (!v || v->here == here) return;
  q->retiring_ms = 0;
  quorum_tally(q, v, -1);
  v->here = here;
  quorum_tally(q, v, 1);
  if (!here) job_voter_left(m->job, v);
}

uint64_t job_quorum_tell_deadline(const struct job *j) {
  if (!j->quorum->untold) return UINT64_MAX;
  uint64_t at_ms = next_look_ms(j), now_ms = j->jobs->now_ms; /* a time of before would look like a late loop */
  return at_ms > now_ms ? at_ms : now_ms;
}

/* The whole round has come here, and its nodes have been told nothing that lets their workers live. Their next
 * heartbeats may be too late. So the last ones are answered once more, now that the answers are worth something. */
void job_quorum_tell(struct job *j, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  if (!q->untold || now_ms < next_look_ms(j)) return;
  q->untold = q->on && job_round_goes_on(j);
  if (!q->untold || !job_in_charge(j, now_ms)) return;
  q->untold = false;
  struct msg ack;
  msg_init(&ack, MSG_HEARTBEAT_ACK);
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    if (!m->conn || !m->vote->last_beat || !member_in_round(m)) continue;
    ack.id = m->vote->last_beat;
    ack.flags = (member_tell_fence(m) ? FRAME_FLAG_FENCE : 0) | (q->firm ? FRAME_FLAG_FIRM : 0) |
                (j->n_suspended ? FRAME_FLAG_SUSPENDED : 0);
    ack.flags |= (uint16_t)(job_ack_number(j, now_ms) << FRAME_NUMBER_SHIFT);
    jobs_send(j->jobs, m->conn, &ack);
  }
}
