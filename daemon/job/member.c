/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes: added, found, removed; and what a job counts of them.
 *
 * A member is a node that the daemon knows and has not lost. Its agent's random id identifies it, so a broken
 * connection, a second agent on the same host and the same host in a later run are never confused. If a lost node comes
 * back, it has an old token and gets STALE.
 *
 * Ten thousand nodes join, start, stop and acknowledge one by one, and each time the job asks "was that the last one?".
 * So the counts are kept as members change. Only this file writes the fields below. A setter changes one field, then
 * compares what the member was counted as with what it is now.
 *
 *   state, conn, leaving, drained, check_round -> available, checking; with expected -> expected_here
 *   gone, end_acked -> owes_ack      node_rank, last_rank -> reported
 *   state, checkpointed -> unsaved   gone -> counted_gone */

#include "daemon/job/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "daemon/health/fleet.h"

static void set_counted(bool *counted, bool is, size_t *n) {
  if (*counted == is) return;
  *counted = is;
  if (is)
    ++*n;
  else
    --*n;
}

/* in: it is a member; otherwise it counts as nothing. */
static void count(struct member *m, bool in) {
  struct job *j = m->job;
  bool was = m->counted.available, waits = m->conn && m->state == MEMBER_WAITING;
  bool joins = in && waits && !m->next.leaving && !m->next.drained;
  set_counted(&m->counted.available, joins && !m->next.check_round, &j->n_available);
  set_counted(&m->counted.checking, joins && m->next.check_round, &j->n_checking);
  if (m->counted.available != was) member_count_at_host(m, m->counted.available);
  set_counted(&m->counted.expected_here, m->counted.available && m->roster.expected, &j->n_expected_here);
  set_counted(&m->counted.owes_ack, in && !m->end_acked && !m->gone, &j->n_owing);
  set_counted(&m->counted.reported, in && (m->node_rank >= 0 || m->next.last_rank >= 0), &j->n_reported);
  set_counted(&m->counted.unsaved, in && m->state == MEMBER_STARTED && !m->checkpointed, &j->n_unsaved);
  set_counted(&m->counted.gone, in && m->gone, &j->n_gone);
  set_counted(&m->counted.suspended, in && m->suspended && m->conn, &j->n_suspended);
}

void member_set_state(struct member *m, enum member_state to) {
  m->job->n_in_state[m->state]--;
  m->job->n_in_state[to]++;
  m->state = to;
  count(m, true);
}

void member_set_conn(struct member *m, uint64_t conn) {
  m->job->n_connected += (conn ? 1 : 0) - (m->conn ? 1 : 0);
  if (m->conn && m->conn != conn) job_pairs_lost(m->job, m);
  m->conn = conn;
  job_quorum_member(m);
  count(m, true);
}

void member_set_leaving(struct member *m) {
  m->next.leaving = true;
  count(m, true);
}

void member_set_checkpointed(struct member *m, bool checkpointed) {
  m->checkpointed = checkpointed;
  count(m, true);
}

void member_set_drained(struct member *m, bool drained) {
  m->next.drained = drained;
  count(m, true);
}

void member_set_check_round(struct member *m, int64_t round) {
  m->next.check_round = round;
  count(m, true);
}

void member_set_expected(struct member *m, bool expected) {
  m->roster.expected = expected;
  count(m, true);
}

void member_set_gone(struct member *m, bool gone) {
  m->gone = gone;
  count(m, true);
}

void member_set_suspended(struct member *m, bool suspended) {
  if (m->suspended == suspended) return;
  m->suspended = suspended;
  count(m, true);
}

void member_set_acked(struct member *m) {
  m->end_acked = true;
  count(m, true);
}

void member_set_rank(struct member *m, int64_t rank) {
  struct map *ranks = &m->job->ranks;
  if (m->node_rank >= 0 && m->node_rank != rank && job_find_rank(m->job, m->node_rank) == m)
    map_remove_n(ranks, &m->node_rank, sizeof m->node_rank);
  m->node_rank = rank;
  if (rank < 0)
    m->rank_base = -1;
  else
    map_put_n(ranks, &rank, sizeof rank, m);
  count(m, true);
}

void member_keep_rank(struct member *m, int64_t rank) {
  m->next.last_rank = rank;
  count(m, true);
}

struct member *job_find_rank(const struct job *j, int64_t rank) {
  return map_get_n(&j->ranks, &rank, sizeof rank);
}

int64_t job_role_size(const struct job *j, const char *role) {
  return (int64_t)(intptr_t)map_get(&j->role_sizes, role);
}

void job_number_workers(struct job *j) {
  for (struct map_entry *e = NULL; (e = map_next(&j->role_sizes, e));) map_remove_n(&j->role_sizes, e->key, e->key_len);
  j->world_size = 0;
  for (int64_t r = 0; r < j->round_nodes; r++) {
    struct member *m = job_find_rank(j, r);
    if (!m) continue;
    m->rank_base = j->world_size;
    m->role_rank_base = job_role_size(j, m->role);
    j->world_size += m->workers;
    map_put(&j->role_sizes, m->role, (void *)(intptr_t)(m->role_rank_base + m->workers));
  }
}

/* Members. --------------------------------------------------------------------------------------------------------- */

struct member *job_add_member(struct job *j, const struct hello *h, uint64_t now_ms) {
  struct member *m = xcalloc(1, sizeof *m);
  m->vote = xcalloc(1, sizeof *m->vote);
  m->job = j;
  snprintf(m->agent, sizeof m->agent, "%s", h->agent);
  m->host = xstrdup(h->host);
  m->role = xstrdup(h->role);
  snprintf(m->command, sizeof m->command, "%s", h->command);
  snprintf(m->local_addr, sizeof m->local_addr, "%s", h->local_addr);
  m->addrs = xstrdup(h->addrs);
  m->store_port = h->store_port;
  m->pid = h->pid;
  m->workers = h->workers;
  m->want_rank = h->want_rank;
  m->order_key = h->order_key;
  m->worker_store = h->worker_store;
  m->sole = h->sole;
  m->wants_ids = h->wants_ids;
  m->gpus = h->gpus;
  m->wants_events = h->wants_events;
  m->features = features_of(h->features);
  m->heard_ms = m->came_ms = now_ms;
  m->joined_no = ++j->jobs->join_counter;
  m->node_rank = m->rank_base = m->next.last_rank = -1;
  member_clear_progress(m);
  if (j->n_members == j->cap_members) {
    j->cap_members = j->cap_members ? 2 * j->cap_members : 8;
    j->members = xrealloc(j->members, j->cap_members * sizeof *j->members);
  }
  j->members[j->n_members++] = m;
  map_put(&j->agents, m->agent, m);
  m->next.drained = job_drain_of(j, m->host) != NULL;
  if (m->want_rank >= 0) map_put_n(&j->wanted, &m->want_rank, sizeof m->want_rank, m);
  m->roster.told_nodes = h->expected_nodes;
  if (h->expected_nodes > j->expected_nodes) job_expect_nodes(j, h->expected_nodes);
  if (h->expected_hosts[0]) job_expect_hosts(j, h->expected_hosts);
  member_find_expected_host(m);
  job_forget_refusal(j, m->host);
  j->n_in_state[m->state]++;
  j->n_workers += m->workers;
  count(m, true);
  if (j->scan_ms > now_ms + lease_ms(j)) j->scan_ms = now_ms + lease_ms(j);
  return m;
}

void job_remove_member(struct job *j, struct member *m) {
  jobs_bind(j->jobs, m, 0);
  member_set_rank(m, -1);
  j->n_in_state[m->state]--;
  j->n_workers -= m->workers;
  count(m, false);
  map_remove(&j->agents, m->agent);
  if (job_find_wanted(j, m->want_rank) == m) map_remove_n(&j->wanted, &m->want_rank, sizeof m->want_rank);
  for (size_t i = 0; i < j->n_members; i++) {
    if (j->members[i] != m) continue;
    memmove(&j->members[i], &j->members[i + 1], (j->n_members - i - 1) * sizeof *j->members);
    j->n_members--;
    break;
  }
  member_set_account(m, NULL);
  job_health_forget(m);
  free(m->vote);
  free(m->host);
  free(m->role);
  free(m->addrs);
  free(m->progress.laggards);
  free(m);
}

void member_set_account(struct member *m, struct account *a) {
  struct account *old = m->account;
  if (a == old) return;
  size_t n_facts = m->facts ? fleet_size(m->facts) : 0;
  if (old) old->n_members--, old->n_facts -= n_facts;
  m->account = a;
  if (a) a->n_members++, a->n_facts += n_facts;
  accounts_settle(&m->job->jobs->accounts, old);
}

struct member *job_find_agent(const struct job *j, const char *agent) {
  return map_get(&j->agents, agent);
}

struct member *job_find_wanted(const struct job *j, int64_t want_rank) {
  return map_get_n(&j->wanted, &want_rank, sizeof want_rank);
}

void member_set_addrs(struct member *m, const char *addrs) {
  free(m->addrs);
  m->addrs = xstrdup(addrs);
}

void member_send(const struct member *m, struct bytes *b) {
  jobs_send_bytes(m->job->jobs, m->conn, b);
  bytes_unref(b);
}

bool member_in_round(const struct member *m) {
  return m->node_rank >= 0;
}
