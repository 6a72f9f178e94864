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
 * When nothing is heard of any node at all, it is more likely that this daemon is cut off than that all of them died at once. Then nobody is
 * given up while a round runs: nobody is there to be told of it, and at fixed size it would only stop a healthy job. As soon as one is
 * heard, all others have a lease anew, or time to reconnect. It lasts no longer than --join-timeout, so that a job
 * whose nodes are gone for good comes to its end.
 *
 * A daemon that was itself too busy, or stopped, to read must not blame its agents: the driver tells how late a tick
 * is, all leases are extended by that much, and who is away has time for the longest pause between two attempts. Where no tick was due meanwhile,
 * that nothing was heard of anybody for half a lease tells the same. */

#include "daemon/job/job.h"

#include "common/deadline.h"
#include "daemon/core/internal.h"

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
  return earliest(earliest(j->scan_ms, job_ids_deadline(j)), state_deadline(j));
}

static void forgive(struct job *j, uint64_t now_ms, uint64_t lag_ms);

/* A node heartbeats six times in a lease. */
static void note_life(struct job *j, uint64_t now_ms) {
  if (j->any_ms && now_ms >= j->any_ms + (uint64_t)j->settings.lease_ms / 2) forgive(j, now_ms, 0);
  j->any_ms = now_ms;
}

void job_closed(struct job *j, struct member *m, uint64_t now_ms) {
  note_life(j, now_ms);
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

void member_heard(struct member *m, uint64_t now_ms) {
  struct job *j = m->job;
  m->heard_ms = now_ms;
  note_life(j, now_ms);
  if (!j->deaf_ms) return;
  core_log(j->core, LOG_WARN, "job %s: node %s (%s) is heard again, after %llu s of silence from all", j->id,
           m->host, m->agent, (unsigned long long)(now_ms - j->deaf_ms) / 1000);
  j->deaf_ms = 0;
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *other = j->members[i];
    if (other->conn)
      other->heard_ms = now_ms;
    else if (other->grace_ms < now_ms + CORE_RECONNECT_MAX_MS)
      other->grace_ms = now_ms + CORE_RECONNECT_MAX_MS;
  }
}

/* Somebody's time is over, and the others have missed a heartbeat or two as well. */
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

static void be_deaf(struct job *j, uint64_t now_ms) {
  j->scan_ms = now_ms + (uint64_t)j->settings.lease_ms / 6;
  if (j->deaf_ms) return;
  j->deaf_ms = now_ms;
  core_log(j->core, LOG_WARN,
           "job %s: nothing is heard of any node (%zu), as if this daemon were cut off from all: "
           "nobody is given up before one "
           "of them is heard, for %lld s at most (--join-timeout)",
           j->id, j->n_members, (long long)j->settings.join_timeout_ms / 1000);
}

static void scan(struct job *j, uint64_t now_ms) {
  if (is_deaf(j, now_ms)) {
    be_deaf(j, now_ms);
    return;
  }
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
  if (j->state == JOB_RECOVERING && j->recover_ms < back_ms) j->recover_ms = back_ms;
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    m->heard_ms += lag_ms;
    if (!m->conn && m->grace_ms < back_ms) m->grace_ms = back_ms;
  }
}

void job_tick(struct job *j, uint64_t now_ms, uint64_t lag_ms) {
  if (lag_ms) forgive(j, now_ms, lag_ms);
  if (now_ms >= j->scan_ms) scan(j, now_ms);
  if (now_ms >= job_ids_deadline(j)) job_ids_tick(j, now_ms);
  if (now_ms < state_deadline(j)) return;
  struct job_event ev = {.kind = JOB_EV_DEADLINE, .now_ms = now_ms};
  job_event(j, &ev);
}
