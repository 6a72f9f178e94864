/* SPDX-License-Identifier: Apache-2.0 */
/* Leases and grace of nodes, and holds for the lost ones.
 *
 * A member has a lease while it is connected and a grace while it is not; when one expires, the event is "lost". The
 * grace is for a connection that broke between two living processes. The agent notices, connects, gets GREETING and
 * says HELLO: four times the way. 100 ms are enough on any network that a job trains over. A longer way has a longer
 * lease too, so the grace is a 50th of the lease if that is more. It delays nothing when an agent dies, because its
 * guard reports it.
 *
 * Ten thousand members send six heartbeats in a lease, so a heartbeat must not touch any queue: it only moves heard_ms.
 * scan_ms is a time before which nothing of a member can expire. When it comes, one scan looks at all members and finds
 * the next such time. That is O(nodes) once in a lease, and O(1) for everything else.
 *
 * If no node at all is heard, it is likelier that this daemon is cut off than that all nodes died at once. Then no node
 * is lost while a round runs: none could be told, and at fixed size it would only stop a healthy job. As soon as one is
 * heard, all others get a new lease, or time to reconnect. This lasts at most --join-timeout, so that a job whose nodes
 * are gone for good ends.
 *
 * A daemon that was itself too busy or stopped must not blame its agents. The driver says how late a tick is: all
 * leases are extended by that, and a disconnected node gets the longest pause between two attempts. If no tick was due
 * meanwhile, half a lease without any message shows the same.
 *
 * A hold is for a lost node that may still run workers; until it ends no round is sealed. How long it lasts depends on
 * what the node knew. A node that had to fence, as this daemon knows for certain, is dead a lease after its last sign of
 * life. One that had not is dead after --orphan-grace and --stop-timeout. Where --orphan-grace is forever nobody can
 * tell, and the hold has no end: the silence of a node is not its death. A death report, a BYE, the node's own return
 * outside a round, a later boot of its machine, or an operator's word (`rdzvctl confirm-dead`) ends a hold at once.
 *
 * Only the last hold to expire matters for the seal, which asks after every event. So its time is kept, with the number of
 * holds that expire then: ten thousand lost nodes that come back one by one cost one scan, not ten thousand. Expired
 * holds are removed when their number has doubled, because a job may live for months and lose a node a day. */

#include "daemon/job/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/hostlist.h"
#include "common/mem.h"

enum { HELD_SHOWN_MAX = 16, HELD_BYTES_MAX = 200 };

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

static uint64_t grace_ms(const struct job *j) {
  uint64_t ms = (uint64_t)j->settings.lease_ms / 50;
  return ms < JOB_GRACE_MS ? JOB_GRACE_MS : ms > JOB_RECONNECT_MAX_MS ? JOB_RECONNECT_MAX_MS : ms;
}

void job_away(struct job *j, struct member *m, uint64_t now_ms) {
  m->grace_ms = now_ms + grace_ms(j);
  if (m->grace_ms < j->forgiven_ms) m->grace_ms = j->forgiven_ms;
  j->scan_ms = earliest(j->scan_ms, m->grace_ms);
}

void job_here(struct job *j, const struct member *m) {
  j->scan_ms = earliest(j->scan_ms, m->heard_ms + (uint64_t)j->settings.lease_ms);
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
  jobs_log(j->jobs, LOG_WARN,
           "job %s: node %s (" AGENT_SHOWN ") is heard again, after %llu s without a message from any node",
           j->log_name, m->host, m->agent, (unsigned long long)(now_ms - j->deaf_ms) / 1000);
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

static void enter_deafness(struct job *j, uint64_t now_ms) {
  j->scan_ms = now_ms + (uint64_t)j->settings.lease_ms / 6;
  if (j->deaf_ms) return;
  j->deaf_ms = now_ms;
  jobs_log(
      j->jobs, LOG_WARN,
      "job %s: no message from any of its nodes (%zu), as if this daemon were cut off: it loses no node before one "
      "is heard, for at most %lld s (--join-timeout)",
      j->log_name, j->n_members, (long long)j->settings.join_timeout_ms / 1000);
}

static void scan_members(struct job *j, uint64_t now_ms) {
  if (is_deaf(j, now_ms)) {
    enter_deafness(j, now_ms);
    return;
  }
  for (size_t i = j->n_members; i-- > 0;) {
    if (i >= j->n_members) continue; /* losing one may end the round and remove others */
    struct member *m = j->members[i];
    if (patience_ms(m) <= now_ms) {
      struct job_event ev = {.kind = JOB_EV_LOST, .now_ms = now_ms, .member = m, .at_ms = m->heard_ms};
      ev.text = m->conn ? "it was silent for longer than its lease" : "its connection closed and did not come back";
      jobs_log(j->jobs, m->end_acked ? LOG_DEBUG : LOG_WARN, "job %s: node %s (" AGENT_SHOWN ") is lost: %s",
               j->log_name, m->host, m->agent, ev.text);
      m->grace_ms = UINT64_MAX; /* a finished member stays, and is not lost twice */
      job_event(j, &ev);
    }
  }
  j->scan_ms = UINT64_MAX;
  for (size_t i = 0; i < j->n_members; i++) j->scan_ms = earliest(j->scan_ms, patience_ms(j->members[i]));
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
  if (now_ms >= j->scan_ms) scan_members(j, now_ms);
}

/* Holds. ----------------------------------------------------------------------------------------------------------- */

struct hold {
  uint64_t until_ms; /* UINT64_MAX: nobody knows */
  uint64_t came_ms;  /* its agent ran then, at the latest */
  uint64_t place;    /* of its machine; 0: unknown */
  char host[];       /* "": unknown */
};

static void find_last_hold(struct job *j) {
  j->hold_ms = j->n_last_holds = 0;
  for (struct map_entry *e = NULL; (e = map_next(&j->holds, e));) {
    uint64_t until_ms = ((const struct hold *)e->value)->until_ms;
    if (until_ms > j->hold_ms) {
      j->hold_ms = until_ms;
      j->n_last_holds = 0;
    }
    j->n_last_holds += until_ms == j->hold_ms;
  }
}

static void sweep_holds(struct job *j) {
  for (struct map_entry *e = NULL; (e = map_next(&j->holds, e));) {
    if (((const struct hold *)e->value)->until_ms > j->jobs->now_ms) continue;
    free(e->value);
    map_remove_n(&j->holds, e->key, e->key_len);
  }
  find_last_hold(j);
  j->holds_sweep_at = 2 * j->holds.count + 16;
}

static void hold(struct job *j, const char *agent, const struct hold *like, const char *host) {
  job_drop_hold(j, agent);
  if (j->holds.count >= j->holds_sweep_at) sweep_holds(j);
  struct hold *h = xcalloc(1, sizeof *h + strlen(host) + 1);
  *h = *like;
  memcpy(h->host, host, strlen(host) + 1);
  map_put(&j->holds, agent, h);
  if (h->until_ms > j->hold_ms) {
    j->hold_ms = h->until_ms;
    j->n_last_holds = 0;
  }
  j->n_last_holds += h->until_ms == j->hold_ms;
}

void job_hold_agent(struct job *j, const char *agent, const char *host, uint64_t until_ms) {
  hold(j, agent, &(struct hold){.until_ms = until_ms}, host);
}

uint64_t job_unfenced_until(const struct job *j, uint64_t heard_ms) {
  const struct settings *s = &j->settings;
  if (!s->orphan_grace_ms) return UINT64_MAX;
  uint64_t most_ms = (uint64_t)(s->orphan_grace_ms + s->stop_timeout_ms + ORPHAN_SLACK_MS);
  return heard_ms + most_ms + most_ms / 20; /* its clock may be slower than ours */
}

bool job_all_fence(const struct job *j) {
  return j->all_fence || j->round_nodes > j->settings.min_nodes;
}

void job_hold_member(struct job *j, const struct member *m) {
  bool fences = m->fence.read || job_all_fence(j);
  uint64_t lease_ms = m->heard_ms + (uint64_t)j->settings.lease_ms;
  struct hold like = {.came_ms = m->came_ms, .place = member_place(m)};
  like.until_ms = latest(fences ? lease_ms : job_unfenced_until(j, m->heard_ms), m->away_ms);
  bool booted = false;
  for (size_t i = 0; !fences && !booted && i < j->n_members; i++)
    booted = j->members[i] != m && member_was_booted_at(j->members[i], like.came_ms, like.place);
  if (!booted) hold(j, m->agent, &like, m->host);
}

void job_hold_stale(struct job *j, const struct hello *h) {
  uint64_t now_ms = j->jobs->now_ms;
  bool fences = h->all_fence || h->round_nodes > h->settings.min_nodes;
  uint64_t until_ms = fences ? now_ms + (uint64_t)j->settings.lease_ms : job_unfenced_until(j, now_ms);
  job_hold_agent(j, h->agent, h->host, latest(until_ms, now_ms + (uint64_t)h->away_ms));
}

void job_drop_hold(struct job *j, const char *agent) {
  struct hold *h = map_remove(&j->holds, agent);
  bool last = h && h->until_ms == j->hold_ms && --j->n_last_holds == 0;
  free(h);
  if (last) find_last_hold(j);
}

void job_copy_holds(struct job *j, const struct job *from) {
  for (struct map_entry *e = NULL; (e = map_next(&from->holds, e));) {
    const struct hold *h = e->value;
    hold(j, e->key, h, h->host);
  }
}

uint64_t job_hold_until(const struct job *j) {
  return j->hold_ms;
}

/* Drops the holds for which `ends` says so, and counts them. */
static size_t drop_holds(struct job *j, bool (*ends)(const struct hold *h, const void *of), const void *of) {
  size_t n = 0;
  for (struct map_entry *e = NULL; (e = map_next(&j->holds, e));) {
    struct hold *h = e->value;
    if (!ends(h, of)) continue;
    free(h);
    map_remove_n(&j->holds, e->key, e->key_len);
    n++;
  }
  if (n) find_last_hold(j);
  return n;
}

static bool was_booted_since(const struct hold *h, const void *member) {
  return member_was_booted_at(member, h->came_ms, h->place);
}

void job_drop_holds_before_boot(struct job *j, const struct member *m) {
  if (!drop_holds(j, was_booted_since, m)) return;
  jobs_log(j->jobs, LOG_INFO, "job %s: %s: nothing of its earlier rounds runs on %s", j->log_name,
           m->sole ? "a service manager has started an agent again" : "a machine was booted again", m->host);
}

static bool is_on_host(const struct hold *h, const void *host) {
  return !*(const char *)host || !strcmp(h->host, host);
}

size_t job_confirm_dead(struct job *j, const char *host) {
  size_t n = drop_holds(j, is_on_host, host);
  size_t votes = *host ? job_quorum_confirm_dead(j, host) : 0;
  if (votes > n) n = votes;
  if (n) job_notice_soon(j, j->jobs->now_ms);
  if (n && j->state == JOB_FORMING && job_ready_to_seal(j, j->jobs->now_ms)) job_seal(j, j->jobs->now_ms);
  return n;
}

/* Nodes that were not to fence: beyond a lease. */
bool job_put_held(const struct job *j, struct buf *out) {
  const char *names[HELD_SHOWN_MAX];
  uint64_t soon_ms = j->jobs->now_ms + (uint64_t)j->settings.lease_ms;
  size_t n = 0, unknown = 0;
  if (j->hold_ms <= soon_ms) return false;
  for (struct map_entry *e = NULL; (e = map_next(&j->holds, e));) {
    const struct hold *h = e->value;
    if (h->until_ms <= soon_ms) continue;
    if (h->host[0] && n < HELD_SHOWN_MAX)
      names[n++] = h->host;
    else
      unknown++;
  }
  if (n) hostlist_compress(names, n, HELD_BYTES_MAX, out);
  if (unknown) buf_printf(out, "%s%s", n ? " and " : "", n ? "others" : "a node that did not come back");
  buf_puts(out, " may still run workers of an earlier round: the daemon has lost contact");
  if (j->hold_ms < UINT64_MAX)
    buf_printf(out, ", and knows in %.0f s that they have stopped (--orphan-grace)",
               (double)(j->hold_ms - j->jobs->now_ms) / 1000);
  buf_puts(out, ". To go on now, make sure that nothing of the job runs there, then: rdzvctl confirm-dead ");
  buf_put_escaped(out, j->id, strlen(j->id), JOB_ID_MAX);
  if (n == 1 && !unknown) buf_printf(out, " %s", names[0]);
  return true;
}

void job_finish_holds(struct job *j) {
  for (struct map_entry *e = NULL; (e = map_next(&j->holds, e));) free(e->value);
  map_finish(&j->holds);
}
