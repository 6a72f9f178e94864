/* SPDX-License-Identifier: Apache-2.0 */
/* Leases and grace of nodes: when a silent one is lost. What it may still run then: lost_node_hold.c.
 *
 * A member has a lease while it is connected and a grace while it is not; when one expires, the event is "lost". The
 * grace is for a connection that broke between two living processes: the agent notices, connects, gets GREETING and
 * says HELLO. 100 ms are enough on any network that a job trains over. A longer way has a longer lease too, so the grace
 * is a 50th of the lease if that is more. It delays nothing when an agent dies, because its guard reports it.
 *
 * Ten thousand members send six heartbeats in a lease, so a heartbeat only moves heard_ms. Nothing of a member can
 * expire before scan_ms. Then one scan looks at all members and finds the next such time.
 *
 * If no node at all is heard, it is likelier that this daemon is cut off than that all nodes died at once. Then no node
 * is lost while a round runs: none could be told, and at fixed size it would only stop a healthy job. As soon as one is
 * heard, all others get a new lease, or time to reconnect. This lasts at most --join-timeout.
 *
 * A daemon that was itself too busy or stopped must not blame its agents. The driver says how late a tick is: all
 * leases are extended by that, and a disconnected node gets the longest pause between two attempts. If no tick was due
 * meanwhile, half a lease without any message shows the same. */

#include "daemon/job/internal.h"

#include "common/deadline.h"

static void extend_leases(struct job *j, uint64_t now_ms, uint64_t lag_ms);

/* A node heartbeats six times in a lease. */
static void note_life(struct job *j, uint64_t now_ms) {
  if (j->any_ms && now_ms >= j->any_ms + (uint64_t)j->settings.lease_ms / 2) extend_leases(j, now_ms, 0);
  j->any_ms = now_ms;
}

void job_closed(struct job *j, struct member *m, uint64_t now_ms) {
  note_life(j, now_ms);
  jobs_bind(j->jobs, m, 0);
  job_away(j, m, now_ms);
}

void job_away(struct job *j, struct member *m, uint64_t now_ms) {
  uint64_t ms = lease_ms(j) / 50;
  m->grace_ms = now_ms + (ms < JOB_GRACE_MS ? JOB_GRACE_MS : ms > JOB_RECONNECT_MAX_MS ? JOB_RECONNECT_MAX_MS : ms);
  if (m->grace_ms < j->forgiven_ms) m->grace_ms = j->forgiven_ms;
  j->scan_ms = earliest(j->scan_ms, m->grace_ms);
}

/* When m is lost unless it is heard; UINT64_MAX: it was lost, and stays for the count. */
static uint64_t patience_ms(const struct member *m) {
  return m->conn ? m->heard_ms + (uint64_t)m->job->settings.lease_ms : m->grace_ms;
}

void member_heard(struct member *m, uint64_t now_ms) {
  struct job *j = m->job;
  m->heard_ms = now_ms;
  note_life(j, now_ms);
  if (!j->deaf_ms) return;
  job_log(j, LOG_WARN, "node %s (" AGENT_SHOWN ") is heard again, after %llu s without a message from any node",
          m->host, m->agent, (unsigned long long)(now_ms - j->deaf_ms) / 1000);
  j->deaf_ms = 0;
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *other = j->members[i];
    if (other->conn)
      other->heard_ms = now_ms;
    else if (other->grace_ms < now_ms + JOB_RECONNECT_MAX_MS)
      other->grace_ms = now_ms + JOB_RECONNECT_MAX_MS;
  }
}

/* A member is due, and all others have missed a heartbeat or two as well. */
static bool is_deaf(const struct job *j, uint64_t now_ms) {
  bool due = false;
  uint64_t lease_ms = (uint64_t)j->settings.lease_ms;
  if (j->state != JOB_RUNNING) return false;
  for (size_t i = 0; i < j->n_members; i++) {
    if (j->members[i]->heard_ms + lease_ms / 3 > now_ms) return false;
    due = due || patience_ms(j->members[i]) <= now_ms;
  }
  return due && (!j->deaf_ms || now_ms < j->deaf_ms + (uint64_t)j->settings.join_timeout_ms);
}

/* We were late. A node that is away, or leaves now, may have given up a connection on which we were silent, and be
 * in a pause before it reconnects. */
static void extend_leases(struct job *j, uint64_t now_ms, uint64_t lag_ms) {
  uint64_t back_ms = j->forgiven_ms = now_ms + JOB_RECONNECT_MAX_MS;
  if (j->state == JOB_RECOVERING && j->recover_ms < back_ms) j->recover_ms = back_ms;
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    m->heard_ms += lag_ms;
    if (!m->conn && m->grace_ms < back_ms) m->grace_ms = back_ms;
  }
}

void job_scan_leases(struct job *j, uint64_t now_ms, uint64_t lag_ms) {
  if (lag_ms) extend_leases(j, now_ms, lag_ms);
  if (now_ms < j->scan_ms) return;
  if (is_deaf(j, now_ms)) {
    j->scan_ms = now_ms + (uint64_t)j->settings.lease_ms / 6;
    if (j->deaf_ms) return;
    j->deaf_ms = now_ms;
    job_log(j, LOG_WARN,
            "no message from any of its nodes (%zu), as if this daemon were cut off: it loses no node before one "
            "is heard, for at most %lld s (--join-timeout)",
            j->n_members, (long long)j->settings.join_timeout_ms / 1000);
    return;
  }
  for (size_t i = j->n_members; i-- > 0;) {
    if (i >= j->n_members) continue; /* losing one may end the round and remove others */
    struct member *m = j->members[i];
    if (patience_ms(m) > now_ms) continue;
    struct job_event ev = {.kind = JOB_EV_LOST, .now_ms = now_ms, .member = m, .at_ms = m->heard_ms};
    ev.text = m->conn ? "it was silent for longer than its lease" : "its connection closed and did not come back";
    job_log(j, m->end_acked ? LOG_DEBUG : LOG_WARN, "node %s (" AGENT_SHOWN ") is lost: %s", m->host, m->agent,
            ev.text);
    m->grace_ms = UINT64_MAX; /* a finished member stays, and is not lost twice */
    job_event(j, &ev);
  }
  j->scan_ms = UINT64_MAX;
  for (size_t i = 0; i < j->n_members; i++) j->scan_ms = earliest(j->scan_ms, patience_ms(j->members[i]));
}
