/* The job as an object: created and freed, members added, found and removed.
 *
 * A member is a node that the daemon knows and has not given up. It is identified by its agent's random id, so a
 * broken connection, a second agent on the same host, or the same host in a later run are never mistaken for each
 * other. A node that is lost is removed; should it come back, it is a stranger with an old token and is told so. */

#include "daemon/job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "daemon/core/internal.h"
#include "daemon/job/drain.h"

static void copy_text(char *to, size_t size, const char *from) {
  snprintf(to, size, "%s", from);
}

struct job *job_create(struct core *c, const char *id, const char *incarnation, const struct settings *s,
                       uint64_t now_ms, uint64_t wall_ms) {
  struct job *j = xcalloc(1, sizeof *j);
  j->core = c;
  j->id = xstrdup(id);
  copy_text(j->incarnation, sizeof j->incarnation, incarnation);
  j->settings = *s;
  j->failed_step = j->uid = -1;
  j->state = JOB_FORMING;
  j->state_ms = j->forming_ms = j->last_notice_ms = now_ms;
  j->line_wall_ms = wall_ms;
  j->scan_ms = j->notice_ms = j->grow_ms = UINT64_MAX;
  verdict_init(&j->cause);
  verdict_init(&j->last_verdict);
  map_init(&j->agents, core_random(c));
  map_init(&j->ranks, core_random(c));
  map_init(&j->wanted, core_random(c));
  map_init(&j->role_sizes, core_random(c));
  map_init(&j->holds, core_random(c));
  map_init(&j->flaps, core_random(c));
  map_init(&j->failures, core_random(c));
  job_init_roster(j);
  return j;
}

void job_clear_round(struct job *j) {
  verdict_free(&j->cause);
  verdict_init(&j->cause);
  j->cause_ms = 0;
  j->worker_deaths = 0;
  j->void_round = false;
}

void job_destroy(struct job *j) {
  if (!j) return;
  while (j->n_members) job_remove_member(j, j->members[j->n_members - 1]);
  job_clear_round(j);
  job_ids_forget(j);
  verdict_free(&j->last_verdict);
  map_finish(&j->agents);
  map_finish(&j->ranks);
  map_finish(&j->wanted);
  map_finish(&j->role_sizes);
  free(j->members);
  job_finish_holds(j);
  job_finish_flaps(j);
  job_finish_past(j);
  map_finish(&j->failures);
  job_finish_roster(j);
  free(j->id);
  free(j);
}

struct member *job_add_member(struct job *j, const struct hello *h, uint64_t now_ms) {
  struct member *m = xcalloc(1, sizeof *m);
  m->job = j;
  copy_text(m->agent, sizeof m->agent, h->agent);
  copy_text(m->host, sizeof m->host, h->host);
  copy_text(m->label, sizeof m->label, h->label);
  copy_text(m->role, sizeof m->role, h->role);
  copy_text(m->local_addr, sizeof m->local_addr, h->local_addr);
  m->addrs = xstrdup(h->addrs);
  m->store_port = h->store_port;
  m->pid = h->pid;
  m->workers = h->workers;
  m->want_rank = h->want_rank;
  m->order_key = h->order_key;
  m->worker_store = h->worker_store;
  m->wants_ids = h->wants_ids;
  m->heard_ms = now_ms;
  m->joined_no = ++j->core->join_counter;
  m->node_rank = m->rank_base = m->last_rank = m->step = -1;
  if (j->n_members == j->cap_members) {
    j->cap_members = j->cap_members ? 2 * j->cap_members : 8;
    j->members = xrealloc(j->members, j->cap_members * sizeof *j->members);
  }
  j->members[j->n_members++] = m;
  map_put(&j->agents, m->agent, m);
  if (j->uid < 0) j->uid = h->uid; /* before drains are asked for: some hold for one user's jobs */
  m->drained = job_drain_of(j, m->host) != NULL;
  if (m->want_rank >= 0) map_put_n(&j->wanted, &m->want_rank, sizeof m->want_rank, m);
  m->told_nodes = h->expected_nodes;
  if (h->expected_nodes > j->expected_nodes) job_expect_nodes(j, h->expected_nodes);
  if (h->expected_hosts[0]) job_expect_hosts(j, h->expected_hosts);
  member_find_place(m);
  job_forget_refusal(j, m->host);
  member_count_in(m);
  if (j->scan_ms > now_ms + (uint64_t)j->settings.lease_ms)
    j->scan_ms = now_ms + (uint64_t)j->settings.lease_ms;
  return m;
}

void job_remove_member(struct job *j, struct member *m) {
  core_bind(j->core, m, 0);
  member_count_out(m);
  map_remove(&j->agents, m->agent);
  if (job_find_wanted(j, m->want_rank) == m) map_remove_n(&j->wanted, &m->want_rank, sizeof m->want_rank);
  for (size_t i = 0; i < j->n_members; i++) {
    if (j->members[i] != m) continue;
    memmove(&j->members[i], &j->members[i + 1], (j->n_members - i - 1) * sizeof *j->members);
    j->n_members--;
    break;
  }
  free(m->addrs);
  free(m);
}

struct member *job_find_agent(const struct job *j, const char *agent) {
  return map_get(&j->agents, agent);
}

struct member *job_find_wanted(const struct job *j, int64_t want_rank) {
  return map_get_n(&j->wanted, &want_rank, sizeof want_rank);
}

void member_tell_store(struct member *m, int64_t port) {
  m->store_port = port;
}

void member_tell_addrs(struct member *m, const char *addrs) {
  free(m->addrs);
  m->addrs = xstrdup(addrs);
}

void member_describe(const struct member *m, struct buf *out) {
  if (m->node_rank >= 0)
    buf_printf(out, "node %lld (%s, pid %lld)", (long long)m->node_rank, m->host, (long long)m->pid);
  else
    buf_printf(out, "%s (pid %lld)", m->host, (long long)m->pid);
}

bool member_in_round(const struct member *m) {
  return m->node_rank >= 0;
}

bool job_is_over(const struct job *j) {
  return j->state == JOB_ENDING || j->state == JOB_ENDED;
}
