/* Time in a job: which deadline comes next, and what its passing means.
 *
 * There are two kinds. A state has one deadline of its own (PROTOCOL.md 7), whose passing is the table's event
 * "deadline". Members have a lease while connected and a grace while not; their passing is the event "lost". The grace is for a connection that broke
 * between two processes that live: the agent hears of it, dials, is greeted, says HELLO, four times the way there. 100 ms do for any network
 * that a job trains over; who has a longer way has a longer lease too, so a 50th of that is the grace where it is more. It costs nothing where an agent
 * has died: its guard says so.
 *
 * Ten thousand members heartbeat six times in a lease, so heartbeats must not touch any queue: they only move heard_ms.
 * scan_ms is a time before which nothing of a member can pass; when it comes, all members are looked at once and the
 * next such time is found. That is O(nodes) once in a lease, and O(1) for everything else.
 *
 * A daemon that was itself too busy, or stopped, to read must not blame its agents: the driver tells how late a tick
 * is, all leases are extended by that much, and who is away has time for the longest pause between two attempts. */

#include "daemon/rdzv.h"

static uint64_t earliest(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static uint64_t state_deadline(const struct job *j) {
  switch (j->state) {
  case JOB_FORMING: return earliest(j->notice_ms, earliest(job_seal_deadline(j), job_join_deadline(j)));
  case JOB_STARTING: return j->state_ms + CORE_START_TIMEOUT_MS;
  case JOB_CHECKPOINTING: return j->prepare_ms;
  case JOB_STOPPING:
    return j->state_ms + (uint64_t)j->settings.stop_timeout_ms + CORE_STOP_SLACK_MS +
           (j->settings.hang_timeout_ms ? CORE_PROBE_MS : 0);
  case JOB_RECOVERING: return j->recover_ms;
  case JOB_ENDING: return j->state_ms + CORE_END_ACK_MS;
  case JOB_ENDED: return j->state_ms + CORE_END_KEEP_MS;
  case JOB_RUNNING: return j->grow_ms; /* else as long as it takes: leases watch over it */
  case JOB_STATE_COUNT: break;
  }
  return UINT64_MAX;
}

uint64_t job_deadline(const struct job *j) {
  return earliest(j->scan_ms, state_deadline(j));
}

void job_closed(struct job *j, struct member *m, uint64_t now_ms) {
  core_bind(j->core, m, 0);
  job_away(j, m, now_ms);
}

static uint64_t grace_ms(const struct job *j) {
  uint64_t ms = (uint64_t)j->settings.lease_ms / 50;
  return ms < CORE_GRACE_MS ? CORE_GRACE_MS : ms > CORE_RECONNECT_MAX_MS ? CORE_RECONNECT_MAX_MS : ms;
}

void job_away(struct job *j, struct member *m, uint64_t now_ms) {
  m->grace_ms = now_ms + grace_ms(j);
  if (m->grace_ms < j->forgiven_ms) m->grace_ms = j->forgiven_ms;
  j->scan_ms = earliest(j->scan_ms, m->grace_ms);
}

void job_here(struct job *j, const struct member *m) {
  j->scan_ms = earliest(j->scan_ms, m->heard_ms + (uint64_t)j->settings.lease_ms);
}

/* When m is lost unless something is heard; UINT64_MAX: it has been, and stays for the count. */
static uint64_t patience_ms(const struct member *m) {
  return m->conn ? m->heard_ms + (uint64_t)m->job->settings.lease_ms : m->grace_ms;
}

static void lose(struct job *j, struct member *m, uint64_t now_ms) {
  struct job_event ev = {.kind = JOB_EV_LOST, .now_ms = now_ms, .member = m, .at_ms = m->heard_ms};
  ev.text =
      m->conn ? "it was silent for longer than its lease" : "its connection closed and did not come back";
  core_log(j->core, m->end_acked ? LOG_DEBUG : LOG_WARN, "job %s: node %s (%s) is lost: %s", j->id, m->host,
           m->agent, ev.text);
  m->grace_ms = UINT64_MAX; /* if it stays, as one that had finished does, it is not lost twice */
  job_event(j, &ev);
}

static void scan(struct job *j, uint64_t now_ms) {
  for (size_t i = j->n_members; i-- > 0;) {
    if (i >= j->n_members) continue; /* losing one may end the round and remove others */
    struct member *m = j->members[i];
    if (patience_ms(m) <= now_ms) lose(j, m, now_ms);
  }
  j->scan_ms = UINT64_MAX;
  for (size_t i = 0; i < j->n_members; i++) j->scan_ms = earliest(j->scan_ms, patience_ms(j->members[i]));
}

/* We were late. Who is away, or goes now, may have given up a connection on which we were silent, and be in a pause before it dials
 * again. */
static void forgive(struct job *j, uint64_t now_ms, uint64_t lag_ms) {
  uint64_t back_ms = j->forgiven_ms = now_ms + CORE_RECONNECT_MAX_MS;
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    m->heard_ms += lag_ms;
    if (!m->conn && m->grace_ms < back_ms) m->grace_ms = back_ms;
  }
}

void job_tick(struct job *j, uint64_t now_ms, uint64_t lag_ms) {
  if (lag_ms) forgive(j, now_ms, lag_ms);
  if (now_ms >= j->scan_ms) scan(j, now_ms);
  if (now_ms < state_deadline(j)) return;
  struct job_event ev = {.kind = JOB_EV_DEADLINE, .now_ms = now_ms};
  job_event(j, &ev);
}
