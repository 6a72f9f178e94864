/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that come while a round runs, and hosts that come and go.
 *
 * With --scale-up now, a round below max is ended for newcomers: nothing is charged, and the next round is sealed with
 * all nodes that are here by then. Workers that answer write a checkpoint first (prepare.c); others lose their work
 * since the last one, and all lose the time of a start. So a round younger than 30 s is left alone, and all newcomers
 * until then are taken at once. A round in which a node has finished is left alone for good: it is about to end.
 *
 * Its cause weighs as much as a lost node's: a worker that fails while its peers are being stopped is not charged. A node
 * that finishes before STOP reaches it starts again with the others, unless all have finished: then the job is done.
 *
 * A host that was lost from three rounds, or left them, within 10 minutes would end a healthy round again and again.
 * Its newcomers do not make a round grow, and the next round takes them only if it would not reach min without them. The
 * host is remembered, since each new agent has a new id. A daemon that comes back has forgotten it.
 *
 * grow_ms is computed over all nodes when RUNNING begins and when it has passed. A newcomer can only bring it nearer, so
 * each join costs O(1). */

#include "daemon/job/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

struct flap {
  uint64_t at_ms[JOB_FLAP_LOSSES]; /* a ring: the n-th loss is at n % JOB_FLAP_LOSSES */
  uint64_t n;
  int64_t round; /* of the last one: several agents on a host are lost together */
};

void job_note_loss(struct job *j, const struct member *m, uint64_t now_ms) {
  struct flap *f = map_get(&j->flaps, m->host);
  if (f && f->round == j->round) return;
  if (!f) {
    if (j->flaps.count >= j->flaps_sweep_at) {
      for (struct map_entry *e = NULL; (e = map_next(&j->flaps, e));) {
        f = e->value;
        if (f->at_ms[(f->n - 1) % JOB_FLAP_LOSSES] + JOB_FLAP_MS > now_ms) continue;
        free(f);
        map_remove_n(&j->flaps, e->key, e->key_len);
      }
      j->flaps_sweep_at = 2 * j->flaps.count + 16;
    }
    f = xcalloc(1, sizeof *f);
    map_put(&j->flaps, m->host, f);
  }
  f->round = j->round;
  f->at_ms[f->n++ % JOB_FLAP_LOSSES] = now_ms;
}

uint64_t member_flapping_until(const struct member *m, uint64_t now_ms) {
  const struct flap *f = m->next.last_rank < 0 && m->node_rank < 0 ? map_get(&m->job->flaps, m->host) : NULL;
  if (!f || f->n < JOB_FLAP_LOSSES) return 0;
  uint64_t until_ms = f->at_ms[f->n % JOB_FLAP_LOSSES] + JOB_FLAP_MS;
  return until_ms > now_ms ? until_ms : 0;
}

static bool may_grow(const struct job *j) {
  return j->state == JOB_RUNNING && j->settings.scale_up == SCALE_UP_NOW && j->n_available > 0 &&
         j->round_nodes < j->settings.max_nodes && !j->n_in_state[MEMBER_FINISHED];
}

static void watch_newcomer(struct job *j, const struct member *m, uint64_t now_ms) {
  if (!m->counted.available || m->next.unfit || job_avoids(m->job, m->host)) return;
  uint64_t at_ms = j->round_ms + JOB_GROW_AGE_MS, calm_ms = member_flapping_until(m, now_ms);
  if (calm_ms > at_ms) at_ms = calm_ms;
  if (at_ms < j->grow_ms) j->grow_ms = at_ms;
}

void job_watch_growth(struct job *j, uint64_t now_ms) {
  j->grow_ms = UINT64_MAX;
  for (size_t i = 0; i < j->n_members && may_grow(j); i++) watch_newcomer(j, j->members[i], now_ms);
}

void job_watch_newcomer(struct job *j, const struct member *m, uint64_t now_ms) {
  if (may_grow(j))
    watch_newcomer(j, m, now_ms);
  else
    j->grow_ms = UINT64_MAX;
}

enum { NEWCOMERS_NAMED_MAX = 4 };

void job_grow_if_due(struct job *j, const struct job_event *ev) {
  uint64_t now_ms = ev->now_ms;
  job_watch_growth(j, now_ms);
  if (now_ms < j->grow_ms) return;
  struct buf text = BUF_INIT;
  /* "nodes n3, n4 joined: a new round is formed with 4 nodes" */
  struct buf names = BUF_INIT;
  int64_t n = 0, room = j->settings.max_nodes - j->round_nodes;
  for (size_t i = 0; i < j->n_members && n < room; i++) {
    const struct member *m = j->members[i];
    if (!m->counted.available || member_is_spared(m, now_ms)) continue;
    if (n++ < NEWCOMERS_NAMED_MAX) buf_printf(&names, "%s%s", names.len ? ", " : "", m->host);
  }
  buf_printf(&text, "node%s %s", n == 1 ? "" : "s", buf_text(&names));
  if (n > NEWCOMERS_NAMED_MAX) buf_printf(&text, " and %lld more", (long long)n - NEWCOMERS_NAMED_MAX);
  buf_printf(&text, " joined: a new round is formed with %lld nodes", (long long)(j->round_nodes + n));
  buf_finish(&names);
  struct verdict v = job_verdict(j, CAUSE_NODE_JOINED, 0, buf_text(&text));
  job_offer_cause(j, &v, now_ms);
  job_prepare(j, now_ms);
  buf_finish(&text);
}
