/* SPDX-License-Identifier: Apache-2.0 */
/* Machines that were booted again while their node was in a round.
 *
 * A node that falls silent keeps its vote: it may follow another daemon. But when a new agent comes from the same
 * machine, and that machine was booted after the round began, the old agent is dead for certain, and follows nobody. So
 * two nodes go on when the one with the daemon has lost its power and is back, and so does a rack.
 *
 * A service manager as systemd starts an agent only when nothing of its predecessor is left. Then the agent says that it
 * is the sole one of its job there (--sole-agent), which is as good as a boot.
 *
 * A machine is the same if its host name and an address are. The time of the boot is known to the daemon by the agent's
 * word, "up for so long". Clocks may run at different speeds, so the boot must be later by a margin.
 *
 * A daemon that took the job over knows the hosts of nodes that have come, and that of node rank 0 by their word. */

#include <stdio.h>
#include <string.h>
#include "common/siphash.h"
#include "daemon/job/internal.h"

enum { MARGIN_MS = 1000, MARGIN_PART = 20 };

/* Of node rank 0, until it comes itself; no agent has such an id. */
static const char head[] = "head";

static uint64_t place_of(const struct job *j, const char *host, const char *addr, size_t addr_len) {
  char text[HOST_MAX + 1 + ADDR_MAX + 1];
  int n = snprintf(text, sizeof text, "%s %.*s", host, (int)addr_len, addr);
  return addr_len && n > 0 && (size_t)n < sizeof text ? siphash(&j->agents.key, text, (size_t)n) : 0;
}

uint64_t member_place(const struct member *m) {
  return place_of(m->job, m->host, m->addr, strlen(m->addr));
}

static bool is_at(const struct member *m, uint64_t place) {
  const char *p = m->addrs;
  if (place_of(m->job, m->host, m->peer_addr, strlen(m->peer_addr)) == place) return true;
  if (place_of(m->job, m->host, m->local_addr, strlen(m->local_addr)) == place) return true;
  for (size_t n; (p += strspn(p, " "))[0]; p += n)
    if (place_of(m->job, m->host, p, n = strcspn(p, " ")) == place) return true;
  return false;
}

/* Since the round began; times may be below 0, since the daemon's machine may be younger. */
static bool is_booted(const struct member *m) {
  const struct quorum *q = m->job->quorum;
  int64_t now_ms = (int64_t)m->job->jobs->now_ms,
          began_ms = q->sealed_ms ? (int64_t)q->sealed_ms : q->recovering.began_ms;
  if (!q->on || (!q->sealed_ms && !q->nodes)) return false;
  if (m->sole) return true;
  if (!m->boot.known) return false;
  return m->boot.at_ms > began_ms + MARGIN_MS + (now_ms - began_ms) / MARGIN_PART;
}

/* The margin is for clocks that run at different speeds while the machine is up. */
bool member_was_booted_at(const struct member *m, uint64_t since_ms, uint64_t place) {
  int64_t up_ms = (int64_t)m->job->jobs->now_ms - m->boot.at_ms;
  if (m->sole) return place && is_at(m, place);
  return place && m->boot.known && m->boot.at_ms > (int64_t)since_ms + MARGIN_MS + up_ms / MARGIN_PART &&
         is_at(m, place);
}

static void count_as_dead(struct job *j, const struct member *m, struct voter *v) {
  int64_t dead_ms = m->sole ? (int64_t)m->came_ms : m->boot.at_ms;
  job_log(j, LOG_INFO, "%s: the agent that ran on %s in round %lld is dead",
          m->sole ? "a service manager has started an agent again" : "a machine was booted again", m->host,
          (long long)j->round);
  job_quorum_count_dead(j, v, (uint64_t)(dead_ms > 0 ? dead_ms : 0));
  if (v == map_get(&j->quorum->voters, head)) job_account_for_rank(j, 0);
}

void job_find_booted(struct job *j, const struct member *m) {
  struct quorum *q = j->quorum;
  if (!is_booted(m) || map_get(&q->voters, m->agent)) return;
  q->recovering.any_booted = true;
  for (struct map_entry *e = NULL; (e = map_next(&q->voters, e));) {
    struct voter *v = e->value;
    if (!v->here && !v->dead && v->place && is_at(m, v->place)) count_as_dead(j, m, v);
  }
}

/* A node of the round has fallen silent, and its machine may have sent a new agent before. */
void job_voter_left(struct job *j, struct voter *v) {
  for (size_t i = 0; j->quorum->recovering.any_booted && v->place && !v->dead && i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (is_booted(m) && !map_get(&j->quorum->voters, m->agent) && is_at(m, v->place)) count_as_dead(j, m, v);
  }
}

void job_learn_head(struct job *j, const struct hello *h, uint64_t now_ms) {
  struct quorum *q = j->quorum;
  int64_t began_ms = (int64_t)now_ms - h->round_age_ms;
  if (!q->recovering.has_began || began_ms > q->recovering.began_ms) q->recovering.began_ms = began_ms;
  q->recovering.has_began = true;
  if ((h->phase == PHASE_NONE ? h->left_rank : h->node_rank) == 0) { /* with its vote, whether it has work or not */
    q->recovering.head_came = true;
    job_quorum_drop(j, head);
  }
  if (q->recovering.head_came || map_get(&q->voters, head) || !h->head_host[0] || !h->head_addr[0]) return;
  job_quorum_expect(j, head, h->head_host, place_of(j, h->head_host, h->head_addr, strlen(h->head_addr)));
  for (size_t i = 0; i < j->n_members; i++) job_find_booted(j, j->members[i]);
}
