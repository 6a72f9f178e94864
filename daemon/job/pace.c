/* SPDX-License-Identifier: Apache-2.0 */
/* Slow ranks: what is made of PACE.
 *
 * daemon/goodput/slow_ranks finds the ranks for which others wait. A line on all agents names each when it is found, and
 * when it keeps up again; if all ranks of a host are slow, the host is named instead. Nothing is stopped for it, unless
 * --slow-limit asks for that: then the host is drained for this job, as with rdzvctl drain, if the job can go on without
 * it. Everything is of the current round: ranks have other places in the next one. */

#include "daemon/job/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { SLOW_LINES_MAX = 8 }; /* at a time */

struct named {
  int64_t rank, node;
  bool host;        /* all ranks of the node, by one line */
  uint64_t over_ms; /* since when it costs more than --slow-limit; 0: it does not */
};

struct job_slow {
  struct slow_ranks *ranks;
  struct named v[SLOW_FOUND_MAX];
  size_t n;
};

const struct slow_rank *job_slow_ranks(const struct job *j, size_t *n) {
  *n = 0;
  return j->slow ? slow_ranks_found(j->slow->ranks, n) : NULL;
}

int job_slow_permille(const struct job *j) {
  size_t n;
  const struct slow_rank *v = job_slow_ranks(j, &n);
  int most = 0;
  for (size_t i = 0; i < n; i++)
    if (v[i].permille > most) most = v[i].permille;
  return most;
}

void job_forget_pace(struct job *j) {
  if (j->slow) slow_ranks_destroy(j->slow->ranks);
  free(j->slow);
  j->slow = NULL;
}

static void put_rank(const struct job *j, int64_t rank, int64_t node, struct buf *out) {
  const struct member *m = job_find_rank(j, node);
  buf_printf(out, "rank %lld", (long long)rank);
  if (!m) return;
  buf_puts(out, " (");
  buf_put_escaped(out, m->host, strlen(m->host), HOST_MAX);
  buf_printf(out, ", local %lld)", (long long)(rank - m->rank_base));
}

static void put_percent(int permille, struct buf *out) {
  buf_printf(out, "%d %%", (permille + 5) / 10);
}

void job_slow_sentence(const struct job *j, const struct slow_rank *r, struct buf *out) {
  const struct member *m = job_find_rank(j, r->node);
  if (m && slow_ranks_whole_node(j->slow->ranks, r->node)) {
    buf_puts(out, "host ");
    buf_put_escaped(out, m->host, strlen(m->host), HOST_MAX);
    buf_puts(out, r->by == SLOW_BY_WIRE ? " has slow wires: sends of its ranks cost " : " is slow: the others wait ");
    put_percent(r->permille, out);
    buf_printf(out, " of the time%s", r->by == SLOW_BY_WIRE ? "" : " for its ranks");
  } else if (r->by == SLOW_BY_WIRE) {
    buf_puts(out, "the wire from ");
    put_rank(j, r->rank, r->node, out);
    buf_puts(out, " is slow, or the one to the rank behind it: its sends cost ");
    put_percent(r->permille, out);
    buf_puts(out, " of the time");
  } else {
    put_rank(j, r->rank, r->node, out);
    buf_puts(out, " is slow: the others wait ");
    put_percent(r->permille, out);
    buf_puts(out, " of the time for it");
  }
}

bool job_slow_is_of_host(const struct job *j, const struct slow_rank *v, size_t i) {
  if (!slow_ranks_whole_node(j->slow->ranks, v[i].node)) return false;
  for (size_t k = 0; k < i; k++)
    if (v[k].node == v[i].node) return true;
  return false;
}

static struct named *find_named(struct job_slow *s, int64_t rank) {
  for (size_t i = 0; i < s->n; i++)
    if (s->v[i].rank == rank) return &s->v[i];
  return NULL;
}

/* --slow-limit. True: its host is left out, and the round ends. Not for a wire: it has two ends, and one is seen. */
static bool exceeds_limit(struct job *j, struct named *k, const struct slow_rank *r, uint64_t now_ms) {
  const struct member *m = job_find_rank(j, r->node);
  if (!j->settings.slow_limit || r->by == SLOW_BY_WIRE || r->permille < 10 * j->settings.slow_limit) {
    k->over_ms = 0;
    return false;
  }
  if (!k->over_ms) k->over_ms = now_ms;
  if (!m || now_ms - k->over_ms < (uint64_t)j->settings.slow_limit_ms || job_drain_of(j, m->host)) return false;
  struct buf by = BUF_INIT;
  buf_puts(&by, "the job itself: ");
  job_slow_sentence(j, r, &by);
  buf_printf(&by, " (--slow-limit %lld)", (long long)j->settings.slow_limit);
  k->over_ms = now_ms; /* if it cannot be left out now, it is tried again after the same time */
  bool out = job_exclude(j, m->host, buf_text(&by));
  buf_finish(&by);
  return out;
}

static void judge(struct job *j, uint64_t now_ms) {
  struct job_slow *s = j->slow;
  struct named was[SLOW_FOUND_MAX];
  size_t n_was = s->n, n, lines = 0;
  const struct slow_rank *v = slow_ranks_found(s->ranks, &n);
  memcpy(was, s->v, n_was * sizeof *was);
  for (size_t i = 0; i < n_was; i++) {
    if (slow_ranks_find(s->ranks, was[i].rank) || lines == SLOW_LINES_MAX) continue;
    struct buf text = BUF_INIT;
    put_rank(j, was[i].rank, was[i].node, &text);
    buf_puts(&text, " keeps up again");
    job_send_notice(j, buf_text(&text));
    job_announce_slow(j, was[i].node, was[i].rank, -1, &text);
    lines++;
  }
  bool ends = false;
  struct job_slow next = {.ranks = s->ranks};
  for (size_t i = 0; i < n; i++) {
    const struct named *old = find_named(s, v[i].rank);
    struct named *k = &next.v[next.n++];
    bool host = slow_ranks_whole_node(s->ranks, v[i].node);
    *k = (struct named){v[i].rank, v[i].node, host, old ? old->over_ms : 0};
    if (!job_slow_is_of_host(j, v, i) && (!old || (host && !old->host)) && lines < SLOW_LINES_MAX) {
      struct buf text = BUF_INIT;
      job_slow_sentence(j, &v[i], &text);
      job_send_notice(j, buf_text(&text));
      job_announce_slow(j, v[i].node, v[i].rank, v[i].permille, &text);
      lines++;
    }
    ends |= exceeds_limit(j, k, &v[i], now_ms);
  }
  *s = next;
  if (ends) job_end_for_drains(j, now_ms);
}

void member_note_pace(struct member *m, const struct rank_paces *p, uint64_t now_ms) {
  struct job *j = m->job;
  if (p->round != j->round || strcmp(p->incarnation, j->incarnation) != 0 || !member_in_round(m)) return;
  if (j->state != JOB_RUNNING || !j->settings.slow_ranks_ms) return;
  if (!j->slow) {
    j->slow = xcalloc(1, sizeof *j->slow);
    j->slow->ranks = slow_ranks_create((uint64_t)j->settings.slow_ranks_ms, j->world_size, jobs_random(j->jobs));
  }
  bool judged = false;
  for (size_t i = 0; i < p->n_ranks; i++) {
    const struct rank_pace *r = &p->ranks[i];
    if (r->local_rank >= m->workers) continue;
    struct slow_sample sample = {.rank = m->rank_base + r->local_rank,
                                 .node = m->node_rank,
                                 .group = r->group,
                                 .group_rank = r->group_rank,
                                 .group_size = r->group_size,
                                 .pairs = r->pairs,
                                 .collectives = r->collectives,
                                 .waited_us = r->waited_us,
                                 .sent_bytes = r->sent_bytes,
                                 .sending_us = r->sending_us};
    judged |= slow_ranks_note(j->slow->ranks, &sample, now_ms);
  }
  if (judged) judge(j, now_ms);
}
