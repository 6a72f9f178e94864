/* SPDX-License-Identifier: Apache-2.0 */
/* Holds for lost nodes.
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

static void hold(struct job *j, const char *agent, const struct hold *like, const char *host) {
  job_drop_hold(j, agent);
  if (j->holds.count >= j->holds_sweep_at) {
    for (struct map_entry *e = NULL; (e = map_next(&j->holds, e));) {
      if (((const struct hold *)e->value)->until_ms > j->jobs->now_ms) continue;
      free(e->value);
      map_remove_n(&j->holds, e->key, e->key_len);
    }
    find_last_hold(j);
    j->holds_sweep_at = 2 * j->holds.count + 16;
  }
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

/* Those of machines that were booted again, as m says; m NULL: those of this host, "": all. Returns how many. */
static size_t drop_holds(struct job *j, const struct member *m, const char *host) {
  size_t n = 0;
  for (struct map_entry *e = NULL; (e = map_next(&j->holds, e));) {
    struct hold *h = e->value;
    if (m ? !member_was_booted_at(m, h->came_ms, h->place) : *host && strcmp(h->host, host) != 0) continue;
    free(h);
    map_remove_n(&j->holds, e->key, e->key_len);
    n++;
  }
  if (n) find_last_hold(j);
  return n;
}

void job_drop_holds_before_boot(struct job *j, const struct member *m) {
  if (!drop_holds(j, m, "")) return;
  job_log(j, LOG_INFO, "%s: nothing of its earlier rounds runs on %s",
          m->sole ? "a service manager has started an agent again" : "a machine was booted again", m->host);
}

size_t job_confirm_dead(struct job *j, const char *host) {
  size_t n = drop_holds(j, NULL, host);
  size_t votes = *host ? job_quorum_confirm_dead(j, host) : 0;
  if (votes > n) n = votes;
  if (n) job_notice_soon(j, j->jobs->now_ms);
  if (n) job_try_seal(j, j->jobs->now_ms);
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
