/* What a job counts of its members, kept as they change.
 *
 * Ten thousand nodes join, start, stop and acknowledge one by one, and after each of them somebody asks "was that the
 * last?". Counting anew each time would make every such wave O(nodes^2), seconds of a busy daemon, so the answers are kept: how
 * many members are in which state, how many could take part in the next round, how many have not acknowledged the end.
 * Ranks are found by a map for the same reason.
 *
 * The price is a rule: nobody outside this file writes the fields below. A setter changes one of them and then compares what
 * the member was counted as with what it is now. There is no other bookkeeping, so a counter cannot be
 * forgotten in a corner of the table.
 *
 *   state, conn, leaving, drained -> available; and with expected -> expected_here
 *         gone, end_acked -> owes_ack        node_rank, last_rank -> reported
 *   state, checkpointed -> unsaved */

#include "daemon/job/job.h"

#include <string.h>

static void count(bool *counted, bool is, size_t *n) {
  if (*counted == is) return;
  *counted = is;
  if (is)
    ++*n;
  else
    --*n;
}

static void recount(struct member *m) {
  struct job *j = m->job;
  bool was = m->available;
  count(&m->available, m->conn && m->state == MEMBER_WAITING && !m->leaving && !m->drained, &j->n_available);
  if (m->available != was) member_count_at_place(m, m->available);
  count(&m->expected_here, m->available && m->expected, &j->n_expected_here);
  count(&m->owes_ack, !m->end_acked && !m->gone, &j->n_owing);
  count(&m->reported, m->node_rank >= 0 || m->last_rank >= 0, &j->n_reported);
  count(&m->unsaved, m->state == MEMBER_STARTED && !m->checkpointed, &j->n_unsaved);
}

void member_count_in(struct member *m) {
  m->job->n_in_state[m->state]++;
  m->job->n_workers += m->workers;
  recount(m);
}

void member_count_out(struct member *m) {
  struct job *j = m->job;
  member_place(m, -1);
  j->n_in_state[m->state]--;
  j->n_workers -= m->workers;
  if (m->available) member_count_at_place(m, false);
  count(&m->available, false, &j->n_available);
  count(&m->expected_here, false, &j->n_expected_here);
  count(&m->owes_ack, false, &j->n_owing);
  count(&m->reported, false, &j->n_reported);
  count(&m->unsaved, false, &j->n_unsaved);
}

void member_set_state(struct member *m, enum member_state to) {
  m->job->n_in_state[m->state]--;
  m->job->n_in_state[to]++;
  m->state = to;
  recount(m);
}

void member_set_conn(struct member *m, uint64_t conn) {
  m->job->n_connected += (conn ? 1 : 0) - (m->conn ? 1 : 0);
  m->conn = conn;
  recount(m);
}

void member_set_leaving(struct member *m) {
  m->leaving = true;
  recount(m);
}

void member_set_checkpointed(struct member *m, bool checkpointed) {
  m->checkpointed = checkpointed;
  recount(m);
}

void member_set_drained(struct member *m, bool drained) {
  m->drained = drained;
  recount(m);
}

void member_set_expected(struct member *m, bool expected) {
  m->expected = expected;
  recount(m);
}

void member_set_gone(struct member *m, bool gone) {
  m->gone = gone;
  recount(m);
}

void member_set_acked(struct member *m) {
  m->end_acked = true;
  recount(m);
}

void member_place(struct member *m, int64_t rank) {
  struct map *ranks = &m->job->ranks;
  if (m->node_rank >= 0 && m->node_rank != rank && job_find_rank(m->job, m->node_rank) == m)
    map_remove_n(ranks, &m->node_rank, sizeof m->node_rank);
  m->node_rank = rank;
  if (rank < 0)
    m->rank_base = -1;
  else
    map_put_n(ranks, &rank, sizeof rank, m);
  recount(m);
}

void member_keep_rank(struct member *m, int64_t rank) {
  m->last_rank = rank;
  recount(m);
}

struct member *job_find_rank(const struct job *j, int64_t rank) {
  return map_get_n(&j->ranks, &rank, sizeof rank);
}

int64_t job_role_size(const struct job *j, const char *role) {
  return (int64_t)(intptr_t)map_get(&j->role_sizes, role);
}

void job_number_workers(struct job *j) {
  for (struct map_entry *e = NULL; (e = map_next(&j->role_sizes, e));)
    map_remove_n(&j->role_sizes, e->key, e->key_len);
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
