/* SPDX-License-Identifier: Apache-2.0 */
/* PACE: how long the workers here are in collectives.
 *
 * A worker reports sums for each of its communicators, once a second. The latest sums count, so nothing is lost with a
 * message. Several times in the span after which a slow rank is named (--slow-ranks), and every few seconds at least,
 * the sums that have changed go to the daemon in one message. Who is slow can be seen only beside the other nodes. */

#include "agent/supervisor/internal.h"

#include <stdlib.h>
#include "common/deadline.h"
#include "common/mem.h"

enum { GROUPS_PER_WORKER = 8, PACES_IN_SPAN = 24, PACE_LEAST_MS = 250, PACE_MOST_MS = 5000 };

static uint64_t pace_every_ms(const struct supervisor *s) {
  uint64_t ms = (uint64_t)s->config.settings.slow_ranks_ms / PACES_IN_SPAN;
  return ms < PACE_LEAST_MS ? PACE_LEAST_MS : earliest(ms, PACE_MOST_MS);
}

/* Of a worker with too many communicators those count in which it is longest. NULL: this one does not. */
static struct kept_pace *find_place(struct pace_state *p, const struct rank_pace *of) {
  struct kept_pace *least = NULL;
  int n = 0;
  for (size_t i = 0; i < p->n; i++) {
    struct kept_pace *k = &p->v[i];
    if (k->pace.local_rank != of->local_rank) continue;
    if (k->pace.group == of->group) return k;
    n++;
    if (!least || k->pace.waited_us < least->pace.waited_us) least = k;
  }
  if (n == GROUPS_PER_WORKER || p->n == PACES_MAX) return least && least->pace.waited_us < of->waited_us ? least : NULL;
  p->v = xgrow(p->v, p->n, &p->cap, sizeof *p->v);
  p->v[p->n] = (struct kept_pace){.news = false};
  return &p->v[p->n++];
}

void sup_pace(struct supervisor *s, const struct supervisor_event *ev) {
  struct kept_pace *k = s->config.settings.slow_ranks_ms ? find_place(&s->pace, &ev->pace) : NULL;
  if (!k) return;
  bool pairs = k->news && k->pace.group == ev->pace.group && k->pace.pairs; /* since the last message */
  *k = (struct kept_pace){.pace = ev->pace, .news = true};
  k->pace.pairs |= pairs;
  s->pace.news = true;
}

static uint64_t due_ms(const struct supervisor *s) {
  return s->pace.news ? s->pace.sent_ms + pace_every_ms(s) : UINT64_MAX;
}

void sup_pace_tick(struct supervisor *s) {
  struct pace_state *p = &s->pace;
  if (s->state != SUPERVISOR_RUNNING || s->now_ms < due_ms(s)) return;
  struct msg m;
  msg_init(&m, MSG_PACE);
  m.rank_paces.incarnation = s->round.incarnation;
  m.rank_paces.round = s->round.number;
  m.rank_paces.ranks = xcalloc(p->n, sizeof *m.rank_paces.ranks);
  for (size_t i = 0; i < p->n; i++) {
    if (p->v[i].news) m.rank_paces.ranks[m.rank_paces.n_ranks++] = p->v[i].pace;
    p->v[i].news = false;
  }
  sup_send(s, &m);
  free(m.rank_paces.ranks);
  p->news = false;
  p->sent_ms = s->now_ms;
}

uint64_t sup_pace_deadline(const struct supervisor *s) {
  return s->state == SUPERVISOR_RUNNING ? due_ms(s) : UINT64_MAX;
}

void sup_pace_clear(struct supervisor *s) {
  free(s->pace.v);
  s->pace = (struct pace_state){.v = NULL};
}
