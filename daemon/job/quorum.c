/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this daemon is in charge of a job: a majority that vouches.
 *
 * Another daemon may take a job over when this one does not answer. Two daemons at once would start two rounds. So each
 * asks the nodes of the last sealed round, its voters, and a node follows one daemon at a time.
 *
 * A vote must be known to be young. A heartbeat says which answer of this daemon its agent has read. So the agent
 * followed this daemon when that answer was sent, or later: vouched_ms. Every agent that turns to another daemon has
 * vouched here no later than it last read from here, and tells that time to the other one. The time until which a
 * majority has vouched therefore bounds how long anything may run in this daemon's name. Each answer to a heartbeat
 * carries its age, and nodes with FENCE count their deadline from it.
 *
 * A round that was just sealed has two sets of voters: its own nodes, and those of the round before (its base), which
 * may not have heard of it. A daemon that asks those alone would find a majority that knows nothing of the round. So
 * both sets must vouch until a majority of the base knows the round: then it is firm.
 *
 * A daemon may be lost while it sends START. If a majority of the base has not read it, and the round's own nodes are too
 * few, the next daemon passes that round over: nobody can make it firm. Each node of the base helps the first round only
 * that it has read of, so two rounds on one base cannot both become firm.
 *
 * Who is surely dead follows nobody, and counts as vouching for ever. Half of the voters are enough if the keeper is
 * among them; so two nodes survive the loss of the one without the daemon. A job with claims asks nobody for leave to
 * seal: the claim decides. But then any single node may go on elsewhere, so all of them must vouch. */

#include "daemon/job/quorum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/mem.h"
#include "daemon/job/internal.h"

enum { LOOKS_PER_LEASE = 20, VOTERS_PER_MS = 100, RETIRE_MS = 1000 };

static uint64_t lease_ms(const struct job *j) {
  return (uint64_t)j->settings.lease_ms;
}

static uint64_t latest(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* Majorities. ------------------------------------------------------------------------------------------------------ */

static int by_time_down(const void *pa, const void *pb) {
  uint64_t a = *(const uint64_t *)pa, b = *(const uint64_t *)pb;
  return a < b ? 1 : a > b ? -1 : 0;
}

/* The latest time until which enough of the voters have vouched; times[0 .. n) is sorted from the latest down. */
static uint64_t until_of(const uint64_t *times, size_t n, size_t voters, bool has_keeper, uint64_t keeper_ms,
                         bool all) {
  if (all) return n < voters ? 0 : times[voters - 1];
  uint64_t most = n > voters / 2 ? times[voters / 2] : 0;
  if (voters % 2 || !has_keeper) return most;
  /* Half of them: the keeper, and those that have vouched last of the others. If he is among the first of the list,
   * the last of that half is the slower one; if he is behind them, he is. */
  uint64_t half = n >= voters / 2 ? times[voters / 2 - 1] : 0;
  uint64_t with_keeper = keeper_ms < half ? keeper_ms : half;
  return with_keeper > most ? with_keeper : most;
}

static bool is_of(const struct voter *v, bool base) {
  return base ? v->base : v->current;
}

/* Who has not read START does not know the round, so he cannot follow another daemon from it. With claims he can: there
 * the base is not asked. */
static uint64_t vouched_of(const struct quorum *q, const struct voter *v, bool base, uint64_t now_ms) {
  if (v->from_ms > now_ms) return 0; /* what another daemon allowed with this vote may still run */
  if (v->dead) return UINT64_MAX;
  return !base && !q->all && q->sealed_ms > v->vouched_ms ? q->sealed_ms : v->vouched_ms;
}

/* 0: never. Of a round of unknown nodes nobody has vouched. */
static uint64_t vouched_until(const struct quorum *q, bool base, uint64_t now_ms) {
  size_t voters = (size_t)(base ? q->base_nodes : q->nodes), n = 0;
  uint64_t keeper_ms = 0;
  bool has_keeper = false;
  if (!voters) return 0;
  uint64_t *times = xmalloc((q->voters.count + 1) * sizeof *times);
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    const struct voter *v = e->value;
    if (!is_of(v, base)) continue;
    uint64_t at_ms = vouched_of(q, v, base, now_ms);
    times[n++] = at_ms;
    if (base ? v->base_keeper : v->keeper) {
      has_keeper = true;
      keeper_ms = at_ms;
    }
  }
  qsort(times, n, sizeof *times, by_time_down);
  uint64_t until = until_of(times, n, voters, has_keeper, keeper_ms, q->all);
  free(times);
  return until;
}

/* How many more must be here for a majority. */
static size_t lacking(const struct voter_count *c, int64_t voters) {
  size_t n = (size_t)voters, need = n ? n / 2 + 1 : 0;
  if (n % 2 == 0 && c->keepers && c->here >= n / 2) return 0;
  return c->here < need ? need - c->here : 0;
}

/* A daemon that has the round from its nodes finds too few of them, and a majority of the base that does not know it.
 * Nobody can make it firm without those, so they may follow the base with another round. */
static bool may_pass_over(const struct quorum *q) {
  return !q->firm && !q->all && !q->sealed_ms && q->nodes && q->base_nodes && lacking(&q->current, q->nodes) &&
         !lacking(&q->unbound, q->base_nodes);
}

/* The next round needs its vote. */
static bool is_needed(const struct quorum *q, const struct voter *v) {
  return may_pass_over(q) ? v->base && !v->knows : v->current;
}

/* A majority of the base knows the round. */
static bool base_knows(const struct quorum *q, uint64_t now_ms) {
  size_t n = 0, voters = (size_t)q->base_nodes;
  bool keeper = false;
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    const struct voter *v = e->value;
    bool counts = v->dead || (v->current && v->knows);
    if (!v->base || !counts || v->from_ms > now_ms) continue;
    n++;
    keeper = keeper || v->base_keeper;
  }
  return n > voters / 2 || (voters % 2 == 0 && keeper && n == voters / 2);
}

static void look_for_firmness(struct quorum *q, uint64_t now_ms) {
  if (q->firm || !q->nodes) return;
  q->firm = q->all || !q->base_nodes || base_knows(q, now_ms);
  if (q->firm) q->on = q->lasting;
}

/* Both sets, until the round is firm. */
static void look(struct quorum *q, uint64_t now_ms) {
  look_for_firmness(q, now_ms);
  uint64_t own = vouched_until(q, false, now_ms), base = q->firm ? UINT64_MAX : vouched_until(q, true, now_ms);
  q->until_ms = own < base && !may_pass_over(q) ? own : base;
  q->looked_ms = now_ms;
  q->news = q->fresh = false;
  q->next_from_ms = UINT64_MAX;
  q->one_counts = false;
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    const struct voter *v = e->value;
    q->one_counts = q->one_counts || (v->current && (v->here || v->dead) && v->from_ms <= now_ms);
    if (v->from_ms > now_ms && v->from_ms < q->next_from_ms) q->next_from_ms = v->from_ms;
  }
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

bool job_can_be_succeeded(const struct job *j) {
  return j->quorum->on;
}

bool job_is_firm(const struct job *j) {
  return j->quorum->firm;
}

/* A look at ten thousand voters takes a millisecond, and they all vouch eight times in a lease. */
static uint64_t next_look_ms(const struct job *j) {
  const struct quorum *q = j->quorum;
  uint64_t every_ms = lease_ms(j) / LOOKS_PER_LEASE, soon_ms = 1 + q->voters.count / VOTERS_PER_MS;
  uint64_t at_ms = q->looked_ms + (q->news && soon_ms < every_ms ? soon_ms : every_ms);
  return q->fresh ? 0 : at_ms < q->next_from_ms ? at_ms : q->next_from_ms;
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
  if (!q->on || q->until_ms >= now_ms) return 0;
  return q->until_ms && now_ms - q->until_ms < lease_ms(j) ? now_ms - q->until_ms : lease_ms(j);
}

bool job_in_charge(const struct job *j, uint64_t now_ms) {
  return job_age_ms(j, now_ms) < lease_ms(j) / 2;
}

size_t job_lacks(const struct job *j) {
  const struct quorum *q = j->quorum;
  if (!q->on) return 0;
  if (q->all) return q->current.here ? 0 : 1; /* without any of them the round may run somewhere else */
  if (may_pass_over(q)) return 0;
  size_t own = q->nodes ? lacking(&q->current, q->nodes) : 1, base = q->firm ? 0 : lacking(&q->base, q->base_nodes);
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
  return charged && (job_is_firm(j) || may_pass_over(q));
}

/* The last look may be older than the loss of a node. */
bool job_quorum_allows_it_now(const struct job *j, uint64_t now_ms) {
  if (j->quorum->on) look(j->quorum, now_ms);
  return job_quorum_allows_seal(j, now_ms);
}

/* By the last look. */
uint64_t job_quorum_deadline(const struct job *j, uint64_t now_ms) {
  const struct quorum *q = j->quorum;
  bool charged = q->until_ms >= now_ms || (q->until_ms && now_ms - q->until_ms < lease_ms(j) / 2);
  if (q->on && q->retiring_ms > now_ms) return q->retiring_ms;
  if (!q->on || q->fresh || (charged && (q->firm || may_pass_over(q)) && !q->all)) return 0;
  if (q->all && q->one_counts) return 0;
  return q->news ? next_look_ms(j) : q->next_from_ms;
}

size_t job_agreed(const struct job *j) {
  size_t n = 0;
  for (struct map_entry *e = NULL; j->quorum->on && (e = map_next(&j->quorum->voters, e));) {
    const struct voter *v = e->value;
    const struct member *m = is_needed(j->quorum, v) ? job_find_agent(j, e->key) : NULL;
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

/* Counts. ---------------------------------------------------------------------------------------------------------- */

static void tally(struct quorum *q, const struct voter *v, int by) {
  if (!v->here && !v->dead) return;
  if (v->current) q->current.here += (size_t)by, q->current.keepers += (size_t)(v->keeper ? by : 0);
  if (v->base) q->base.here += (size_t)by, q->base.keepers += (size_t)(v->base_keeper ? by : 0);
  if (v->base && !v->dead && !v->knows)
    q->unbound.here += (size_t)by, q->unbound.keepers += (size_t)(v->base_keeper ? by : 0);
}

/* Vouching. -------------------------------------------------------------------------------------------------------- */

static void vouch(struct member *m, uint64_t at_ms) {
  struct quorum *q = m->job->quorum;
  if (at_ms > m->vouched_ms) m->vouched_ms = at_ms;
  struct voter *v = q->on ? map_get(&q->voters, m->agent) : NULL;
  if (!v) return;
  if (at_ms <= v->vouched_ms) return;
  v->vouched_ms = at_ms;
  q->news = q->news || !q->firm || q->until_ms + lease_ms(m->job) / 4 < m->job->jobs->now_ms;
}

static void knows_round(const struct member *m) {
  struct quorum *q = m->job->quorum;
  struct voter *v = q->firm ? NULL : map_get(&q->voters, m->agent);
  if (!v || v->knows) return;
  tally(q, v, -1);
  v->knows = q->news = true;
  tally(q, v, 1);
}

void member_beat(struct member *m, uint32_t id, unsigned behind, uint64_t now_ms) {
  uint64_t at_ms = m->welcomed_ms; /* it beats only after it has read WELCOME */
  const struct sent_ack *a = &m->acks[(id - behind) % MEMBER_ACKS];
  bool answered = behind && a->id == id - behind;
  if (answered && a->at_ms > at_ms) at_ms = a->at_ms;
  if (answered && m->start_ms && a->at_ms > m->start_ms) knows_round(m);
  vouch(m, at_ms);
  m->last_beat = id;
  m->acks[id % MEMBER_ACKS] = (struct sent_ack){.id = id, .at_ms = now_ms};
}

void member_knows_round(struct member *m) {
  const struct quorum *q = m->job->quorum;
  knows_round(m);
  vouch(m, m->welcomed_ms > q->sealed_ms ? m->welcomed_ms : q->sealed_ms);
}

void job_agent_is_dead(struct job *j, const char *agent) {
  struct quorum *q = j->quorum;
  struct voter *v = map_get(&q->voters, agent);
  if (!v || v->dead) return;
  tally(q, v, -1);
  v->dead = true;
  tally(q, v, 1);
  q->news = q->fresh = true;
  /* It may have followed another daemon, up to its death. */
  if (!v->here) v->from_ms = latest(v->from_ms, j->jobs->now_ms + lease_ms(j));
}

void job_quorum_member(const struct member *m) {
  struct quorum *q = m->job->quorum;
  struct voter *v = map_get(&q->voters, m->agent);
  bool here = m->conn != 0;
  if (!v || v->here == here) return;
  q->retiring_ms = 0;
  tally(q, v, -1);
  v->here = here;
  tally(q, v, 1);
  if (!here) job_voter_left(m->job, v);
}

/* Carrying. -------------------------------------------------------------------------------------------------------- */

/* Enough votes go from the last round, or the one that it passed over, into one of these nodes. Marks them. */
static bool carries(const struct quorum *q, struct member *const *chosen, size_t n) {
  struct voter_count c = {0};
  bool over = may_pass_over(q);
  for (size_t i = 0; i < n; i++) {
    struct voter *v = map_get(&q->voters, chosen[i]->agent);
    if (v) v->carried = true;
  }
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    struct voter *v = e->value;
    if (is_needed(q, v) && (v->carried || v->dead)) {
      c.here++;
      c.keepers += over ? v->base_keeper : v->keeper;
    }
  }
  return !lacking(&c, over ? q->base_nodes : q->nodes);
}

bool member_has_vote(const struct member *m) {
  const struct quorum *q = m->job->quorum;
  const struct voter *v = q->on ? map_get(&q->voters, m->agent) : NULL;
  return v && is_needed(q, v) && !v->dead;
}

static void ask_to_retire(struct job *j, const struct member *m) {
  struct msg msg;
  msg_init(&msg, MSG_STALE);
  msg.stale.incarnation = j->incarnation;
  msg.stale.round = j->round;
  msg.stale.retire = true;
  msg.stale.text = "the next round begins without this node, which gives up its vote";
  jobs_send(j->jobs, m->conn, &msg);
}

/* A node that the next round leaves out keeps its vote of the last one, and could lend it to another daemon that knows
 * nothing of the next. If the round would carry too few votes, such nodes are asked to give theirs up: after STALE they
 * say HELLO without it. */
bool job_quorum_carries(struct job *j, struct member *const *chosen, size_t n, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  if (!q->on || q->all) return true;
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) ((struct voter *)e->value)->carried = false;
  if (carries(q, chosen, n)) return true;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    struct voter *v = map_get(&q->voters, m->agent);
    if (!v || !is_needed(q, v) || v->dead || v->carried) continue;
    ask_to_retire(j, m);
    v->asked = true;
  }
  q->retiring_ms = now_ms + RETIRE_MS;
  return false;
}

/* The last round is over, and not firm: some nodes of the one before have never read its START. They can no longer read
 * it, so they are asked to give their votes up. */
void job_quorum_settle(struct job *j, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  if (!q->on || q->firm || now_ms < q->retiring_ms || may_pass_over(q) || !job_in_charge(j, now_ms)) return;
  bool asked = false;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    struct voter *v = map_get(&q->voters, m->agent);
    if (!v || !v->base || v->dead || (v->current && v->knows) || !m->conn || v->from_ms > now_ms) continue;
    ask_to_retire(j, m);
    v->asked = asked = true;
  }
  if (asked) q->retiring_ms = now_ms + RETIRE_MS;
}

/* Voters. ---------------------------------------------------------------------------------------------------------- */

static void forget_voters(struct quorum *q) {
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    free(e->value);
    map_remove_n(&q->voters, e->key, e->key_len);
  }
  q->current = q->base = q->unbound = (struct voter_count){0};
}

static struct voter *voter_of(struct quorum *q, const char *agent) {
  struct voter *v = map_get(&q->voters, agent);
  if (!v) map_put(&q->voters, agent, v = xcalloc(1, sizeof *v));
  return v;
}

static bool is_on_our_machine(const struct member *m) {
  struct ipaddr ip = ipaddr_parse(m->peer_addr);
  return ipaddr_is_loopback(&ip) || !strcmp(m->peer_addr, m->daemon_addr);
}

static void choose_successors(const struct job *j, struct quorum *q) {
  q->n_successors = 0;
  for (int64_t r = 0; j->jobs->daemon.owned && r < j->round_nodes && q->n_successors < SUCCESSORS_MAX; r++) {
    const struct member *m = job_find_rank(j, r);
    if (!m || !m->standby_port || is_on_our_machine(m)) continue;
    struct kept_successor *s = &q->successors[q->n_successors++];
    memcpy(s->agent, m->agent, sizeof s->agent);
    memcpy(s->host, m->host, sizeof s->host);
    memcpy(s->addr, m->addr, sizeof s->addr);
    s->port = m->standby_port;
  }
}

/* The voters of the last round become the base; who was only of an older one is forgotten. */
static void shift_voters(struct quorum *q, bool was_on) {
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    struct voter *v = e->value;
    tally(q, v, -1);
    v->base = was_on && v->current;
    v->base_keeper = v->base && v->keeper;
    v->current = v->keeper = v->knows = false;
    tally(q, v, 1);
    if (v->base) continue;
    free(v);
    map_remove_n(&q->voters, e->key, e->key_len);
  }
}

/* The base stays, without those that know the round that is passed over: they have spent their votes. */
static void drop_current(struct quorum *q) {
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    struct voter *v = e->value;
    tally(q, v, -1);
    v->base = v->base && !v->knows;
    v->base_keeper = v->base && v->base_keeper;
    v->current = v->keeper = v->knows = false;
    tally(q, v, 1);
    if (v->base) continue;
    free(v);
    map_remove_n(&q->voters, e->key, e->key_len);
  }
}

/* Before the round gets its token: the token of before is the base. */
void job_quorum_rebase(struct job *j) {
  struct quorum *q = j->quorum;
  bool was_on = q->on;
  if (may_pass_over(q)) {
    jobs_log(j->jobs, LOG_WARN,
             "job %s: round %lld is passed over: too few of its nodes are here, and of those of round %lld enough do "
             "not know it",
             j->log_name, (long long)j->round, (long long)q->base_round);
    drop_current(q);
    return;
  }
  shift_voters(q, was_on);
  q->base_nodes = was_on ? q->nodes : 0;
  q->base_round = was_on ? j->round : 0;
  memset(q->base_incarnation, 0, sizeof q->base_incarnation);
  if (was_on) memcpy(q->base_incarnation, j->incarnation, sizeof q->base_incarnation);
}

static void set_keeper(struct job *j, struct voter *keeper) {
  if (!keeper) return;
  tally(j->quorum, keeper, -1);
  keeper->keeper = true;
  tally(j->quorum, keeper, 1);
  for (size_t i = 0; i < j->n_members; i++)
    if (map_get(&j->quorum->voters, j->members[i]->agent) == keeper) j->members[i]->voted_keeper = true;
}

void job_quorum_seal(struct job *j, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  struct voter *keeper = NULL;
  bool ours = false; /* a node of our machine was found */
  for (int64_t r = 0; r < j->round_nodes; r++) {
    struct member *m = job_find_rank(j, r);
    struct voter *v = voter_of(q, m->agent);
    tally(q, v, -1);
    v->current = true;
    v->dead = v->knows = v->asked = false;
    v->here = m->conn != 0;
    v->place = member_place(m);
    if (m->vouched_ms > v->vouched_ms) v->vouched_ms = m->vouched_ms;
    if (r == 0 || (!ours && is_on_our_machine(m))) keeper = v;
    ours = ours || is_on_our_machine(m);
    m->voted_round = j->round;
    memcpy(m->voted_incarnation, j->incarnation, sizeof m->voted_incarnation);
    m->voted_in_base = v->base;
    m->voted_base_keeper = v->base_keeper;
    m->voted_keeper = false;
    tally(q, v, 1);
  }
  set_keeper(j, keeper);
  choose_successors(j, q);
  q->nodes = j->round_nodes;
  q->all = j->settings.claims;
  q->lasting = q->n_successors > 0 || j->settings.daemons > 1 || j->settings.claims;
  q->firm = q->all || !q->base_nodes;
  q->on = q->lasting || !q->firm;
  q->sealed_ms = q->known_ms = now_ms;
  q->fresh = true;
  q->retiring_ms = 0;
}

void job_quorum_fill_start(struct job *j, const struct member *m, struct start *s, struct successor successors[]) {
  const struct quorum *q = j->quorum;
  const struct voter *v = map_get(&q->voters, m->agent);
  if (!q->on || !v) return;
  s->seal.nodes = q->nodes;
  s->seal.keeper = v->keeper;
  s->seal.base_incarnation = q->base_incarnation;
  s->seal.base_round = q->base_round;
  s->seal.base_nodes = q->base_nodes;
  s->seal.in_base = v->base;
  s->seal.base_keeper = v->base_keeper;
  s->n_successors = job_successors(j, successors);
  s->successors = successors;
  s->age_ms = (int64_t)job_age_ms(j, j->jobs->now_ms);
  s->agreed = q->agreed;
}

/* A daemon that has the round from its agents. --------------------------------------------------------------------- */

static bool has_voted(const struct member *m, const char *incarnation, int64_t round) {
  return round > 0 && m->voted_round == round && !strcmp(m->voted_incarnation, incarnation);
}

static void count_vote(struct job *j, const struct member *m) {
  struct quorum *q = j->quorum;
  bool current = has_voted(m, j->incarnation, j->round);
  bool base = current ? m->voted_in_base : has_voted(m, q->base_incarnation, q->base_round);
  if (!q->base_nodes) base = false;
  struct voter *v = map_get(&q->voters, m->agent);
  if (!v && !current && !base) return;
  if (!v) v = voter_of(q, m->agent);
  tally(q, v, -1);
  v->here = m->conn != 0;
  v->current = current;
  v->keeper = current && m->voted_keeper;
  v->base = base;
  v->base_keeper = base && (current ? m->voted_base_keeper : m->voted_keeper);
  v->dead = false;
  v->knows = current;
  v->from_ms = latest(v->from_ms, m->held_ms);
  q->judge_ms = latest(q->judge_ms, m->held_ms);
  tally(q, v, 1);
}

void job_quorum_forget(struct job *j, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  forget_voters(q);
  q->on = q->lasting = q->all = q->firm = q->same_daemon = false;
  q->nodes = q->base_nodes = q->base_round = q->agreed = 0;
  q->judge_ms = 0;
  q->has_began = q->head_came = false;
  q->n_successors = 0;
  memset(q->base_incarnation, 0, sizeof q->base_incarnation);
  q->sealed_ms = 0;
  q->known_ms = now_ms;
  q->fresh = true;
}

void job_quorum_load(struct job *j) {
  struct quorum *q = j->quorum;
  q->lasting = q->on = true;
  q->all = j->settings.claims;
}

/* Who has been in a round that another daemon could take over says so. The size of the recovered one may still be
 * unknown then. */
static void learn_round(struct job *j, const struct hello *h, bool current) {
  struct quorum *q = j->quorum;
  if (!h->seal.nodes && !h->succeeded) return;
  job_quorum_load(j);
  if (q->nodes || !current || !h->seal.nodes) return;
  q->nodes = h->seal.nodes;
  q->base_nodes = h->seal.base_nodes;
  q->base_round = h->seal.base_round;
  snprintf(q->base_incarnation, sizeof q->base_incarnation, "%s", h->seal.base_incarnation);
  for (size_t i = 0; i < j->n_members; i++) count_vote(j, j->members[i]);
}

/* What the agent read of another daemon, and what that one allowed with its vote, has its time before the vote counts
 * here. */
static void note_promise(struct job *j, struct member *m, struct voter *v, const struct hello *h, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  bool same = h->follows[0] && !strcmp(h->follows, j->jobs->daemon.id), other = h->follows[0] && !same;
  bool forgotten = same && j->state == JOB_RECOVERING && !j->exact; /* with what other nodes had promised */
  q->same_daemon = q->same_daemon || same;
  if (other && h->term >= j->term) j->term = h->term < TERM_MAX ? h->term + 1 : TERM_MAX;
  if (!other && !forgotten) return;
  uint64_t silent = (uint64_t)h->silent_ms < lease_ms(j) ? (uint64_t)h->silent_ms : lease_ms(j);
  uint64_t until = now_ms + lease_ms(j) - silent;
  if (until > m->held_ms) m->held_ms = until;
  if (!v) return;
  if (until > v->from_ms) v->from_ms = until;
  if (until > q->judge_ms) q->judge_ms = until;
}

/* It has given its vote up, because this daemon asked for it: it follows nobody from that round. */
static void retire(struct job *j, struct voter *v) {
  tally(j->quorum, v, -1);
  v->dead = true;
  tally(j->quorum, v, 1);
  j->quorum->retiring_ms = 0;
  j->quorum->fresh = true;
}

/* A voter of a round that this daemon has sealed: it may have been in another one since. */
static void recount_vote(struct job *j, const struct member *m, const struct hello *h, struct voter *v) {
  const struct quorum *q = j->quorum;
  if (has_voted(m, j->incarnation, j->round)) return;
  if (v->base && has_voted(m, q->base_incarnation, q->base_round)) return; /* START has not reached it yet */
  /* It has no vote, and knows of the round: it may have given up that vote elsewhere. */
  bool spent = !m->voted_round && h->round >= j->round && !strcmp(h->incarnation, j->incarnation);
  tally(j->quorum, v, -1);
  v->base = v->base_keeper = false;
  if (spent) v->current = v->keeper = false;
  tally(j->quorum, v, 1);
}

/* All nodes of the round are here and at work in it. No other daemon can have sealed a round behind it: it would have
 * lost these nodes first, and would wait for their leases, longer than their votes last. */
void job_quorum_all_work(struct job *j) {
  struct quorum *q = j->quorum;
  for (struct map_entry *e = NULL; q->on && (e = map_next(&q->voters, e));) ((struct voter *)e->value)->from_ms = 0;
  for (size_t i = 0; q->on && i < j->n_members; i++)
    if (member_in_round(j->members[i])) j->members[i]->held_ms = 0;
  q->fresh = true;
  q->untold = q->on;
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
    if (!m->conn || !m->last_beat || !member_in_round(m)) continue;
    ack.id = m->last_beat;
    ack.flags = (member_tell_fence(m) ? FRAME_FLAG_FENCE : 0) | (q->firm ? FRAME_FLAG_FIRM : 0) |
                (j->n_suspended ? FRAME_FLAG_SUSPENDED : 0);
    ack.flags |= (uint16_t)(job_ack_number(j, now_ms) << FRAME_NUMBER_SHIFT);
    jobs_send(j->jobs, m->conn, &ack);
  }
}

static bool all_work(const struct job *j) {
  const size_t *n = j->n_in_state;
  size_t at_work = n[MEMBER_TOLD] + n[MEMBER_STARTED] + n[MEMBER_FINISHED];
  return job_round_goes_on(j) && !j->n_gone && at_work == (size_t)j->round_nodes && j->quorum->current.here >= at_work;
}

static void forget_link(struct member *m, uint64_t now_ms) {
  memset(m->acks, 0, sizeof m->acks);
  m->last_beat = 0;
  m->start_ms = 0;
  m->welcomed_ms = now_ms;
}

void member_note_vote(struct member *m, const struct hello *h, bool again, uint64_t now_ms) {
  struct job *j = m->job;
  struct quorum *q = j->quorum;
  m->standby_port = h->standby_port;
  snprintf(m->voted_incarnation, sizeof m->voted_incarnation, "%s", h->voted_incarnation);
  m->voted_round = h->voted_round;
  m->voted_in_base = h->seal.in_base;
  m->voted_keeper = h->seal.keeper;
  m->voted_base_keeper = h->seal.base_keeper;
  if (!again) forget_link(m, now_ms); /* otherwise heartbeats that were sent before this WELCOME may still come */
  member_note_boot(m, h, now_ms);
  if (job_is_over(j) || !j->round) return;
  bool current = has_voted(m, j->incarnation, j->round);
  struct voter *v = map_get(&q->voters, m->agent);
  if (v && strcmp(h->follows, j->jobs->daemon.id) != 0) v->asked = false; /* it may have been asked elsewhere, too */
  bool retires = v && v->asked && !h->voted_incarnation[0];
  if (!q->sealed_ms && !retires) {
    learn_round(j, h, current);
    count_vote(j, m);
  }
  v = map_get(&q->voters, m->agent);
  if (retires)
    retire(j, v);
  else if (v && q->sealed_ms)
    recount_vote(j, m, h, v);
  note_promise(j, m, v, h, now_ms);
  if (v && v->from_ms > now_ms && all_work(j)) job_quorum_all_work(j);
  if (current) knows_round(m);
  if (current && h->firm) q->firm = true;
  if (h->term > j->term) j->term = h->term;
  q->news = true;
  if (current && !q->sealed_ms) job_learn_head(j, h, now_ms);
  if (!v) job_find_booted(j, m);
}

/* Node rank 0 of a recovered round, which has not come: only its machine is known. */
void job_quorum_expect(struct job *j, const char *key, uint64_t place) {
  struct voter *v = voter_of(j->quorum, key);
  v->current = true;
  v->place = place;
}

void job_quorum_drop(struct job *j, const char *key) {
  struct voter *v = map_get(&j->quorum->voters, key);
  if (!v) return;
  tally(j->quorum, v, -1);
  map_remove(&j->quorum->voters, key);
  free(v);
}

void job_quorum_bury(struct job *j, struct voter *v, uint64_t from_ms) {
  tally(j->quorum, v, -1);
  v->dead = true;
  tally(j->quorum, v, 1);
  v->from_ms = latest(v->from_ms, from_ms);
  j->quorum->fresh = true;
}

/* RECOVERING: when it may be judged without the nodes that are missing. */
uint64_t job_quorum_judges_ms(const struct job *j) {
  const struct quorum *q = j->quorum;
  if (!q->on || q->same_daemon || (!q->all && job_lacks(j))) return UINT64_MAX;
  uint64_t soon_ms = lease_ms(j) * 2 / 5 < JOB_RECONNECT_MAX_MS ? lease_ms(j) * 2 / 5 : JOB_RECONNECT_MAX_MS;
  uint64_t at_ms = j->state_ms + soon_ms;
  return at_ms > q->judge_ms ? at_ms : q->judge_ms;
}

void job_quorum_note_agreed(struct job *j) {
  j->quorum->agreed = (int64_t)job_agreed(j);
}

/* The object. ------------------------------------------------------------------------------------------------------ */

void job_quorum_create(struct job *j) {
  j->quorum = xcalloc(1, sizeof *j->quorum);
  map_init(&j->quorum->voters, j->jobs->random_state[0]);
}

void job_quorum_destroy(struct job *j) {
  forget_voters(j->quorum);
  map_finish(&j->quorum->voters);
  free(j->quorum);
}
