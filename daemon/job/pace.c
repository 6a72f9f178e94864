/* SPDX-License-Identifier: Apache-2.0 */
/* Slow ranks: what is made of PACE.
 *
 * daemon/goodput/slow_ranks finds the ranks for which others wait. A line on all agents names each when it is found, and
 * when it keeps up again; if all ranks of a host are slow, the host is named instead. Nothing is stopped for it, unless
 * --slow-limit asks for that: then the host is drained for this job, as with rdzvctl drain, if the job can go on without
 * it. Everything is of the current round: ranks have other places in the next one. What the costliest one has cost goes
 * into the round's verdict. */

#include "daemon/job/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/mem.h"

enum { SLOW_LINES_MAX = 8 }; /* at a time */

struct named {
  int64_t rank, node;
  enum slow_by by;
  int permille;     /* when it was last judged */
  bool slow;        /* it is; otherwise it was */
  bool host;        /* all ranks of the node, by one line */
  uint64_t over_ms; /* since when it costs more than --slow-limit; 0: it does not */
  uint64_t judged_ms;
  uint64_t slow_ms, permil_ms; /* how long it was slow, and what that cost, in thousandths of a ms */
};

struct job_slow {
  struct slow_ranks *ranks;
  struct named *v; /* all ranks that were slow in this round */
  size_t n, cap;
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
  if (!j->slow) return;
  slow_ranks_destroy(j->slow->ranks);
  free(j->slow->v);
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

static void put_subject(const struct job *j, int64_t rank, int64_t node, bool host, struct buf *out) {
  const struct member *m = host ? job_find_rank(j, node) : NULL;
  if (!m) {
    put_rank(j, rank, node, out);
    return;
  }
  buf_puts(out, "host ");
  buf_put_escaped(out, m->host, strlen(m->host), HOST_MAX);
}

static void put_percent(int permille, struct buf *out) {
  buf_printf(out, "%d %%", (permille + 5) / 10);
}

void job_slow_sentence(const struct job *j, const struct slow_rank *r, struct buf *out) {
  bool host = slow_ranks_whole_node(j->slow->ranks, r->node), wire = r->by == SLOW_BY_WIRE;
  if (wire && !host) buf_puts(out, "the wire from ");
  put_subject(j, r->rank, r->node, host, out);
  buf_puts(out, !wire  ? " is slow: the others wait "
                : host ? " has slow wires: sends of its ranks cost "
                       : " is slow, or the one to the rank behind it: its sends cost ");
  put_percent(r->permille, out);
  buf_puts(out, wire ? " of the time" : host ? " of the time for its ranks" : " of the time for it");
}

bool job_slow_is_of_host(const struct job *j, const struct slow_rank *v, size_t i) {
  if (!slow_ranks_whole_node(j->slow->ranks, v[i].node)) return false;
  for (size_t k = 0; k < i; k++)
    if (v[k].node == v[i].node) return true;
  return false;
}

static struct named *place_of(struct job_slow *s, int64_t rank) {
  for (size_t i = 0; i < s->n; i++)
    if (s->v[i].rank == rank) return &s->v[i];
  s->v = xgrow(s->v, s->n, &s->cap, sizeof *s->v);
  s->v[s->n] = (struct named){.rank = rank};
  return &s->v[s->n++];
}

/* A cost is the median of a span, so it is that of the moment half a span ago. */
static uint64_t half_span_ms(const struct job *j) {
  return (uint64_t)j->settings.slow_ranks_ms / 2;
}

static void add_cost(struct named *k, uint64_t ms) {
  if (k->permille < SLOW_OFF_PERMILLE) return;
  k->slow_ms += ms;
  k->permil_ms += ms * (uint64_t)k->permille;
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

static void say(struct job *j, int64_t node, int64_t rank, int permille, struct buf *text) {
  job_send_notice(j, buf_text(text));
  job_announce_slow(j, node, rank, permille, text);
}

static void judge(struct job *j, uint64_t now_ms) {
  struct job_slow *s = j->slow;
  size_t n, lines = 0;
  const struct slow_rank *v = slow_ranks_found(s->ranks, &n);
  for (size_t i = 0; i < s->n; i++) {
    struct named *k = &s->v[i];
    if (!k->slow || slow_ranks_find(s->ranks, k->rank)) continue;
    k->slow = false;
    k->over_ms = 0;
    if (lines == SLOW_LINES_MAX) continue;
    struct buf text = BUF_INIT;
    put_rank(j, k->rank, k->node, &text);
    buf_puts(&text, " keeps up again");
    say(j, k->node, k->rank, -1, &text);
    lines++;
  }
  bool ends = false;
  for (size_t i = 0; i < n; i++) {
    struct named *k = place_of(s, v[i].rank);
    bool host = slow_ranks_whole_node(s->ranks, v[i].node), is_new = !k->slow || (host && !k->host);
    k->node = v[i].node;
    k->by = v[i].by;
    k->slow = true;
    k->host = host;
    k->permille = v[i].permille;
    add_cost(k, earliest(now_ms - k->judged_ms, half_span_ms(j)));
    k->judged_ms = now_ms;
    if (!job_slow_is_of_host(j, v, i) && is_new && lines < SLOW_LINES_MAX) {
      struct buf text = BUF_INIT;
      job_slow_sentence(j, &v[i], &text);
      say(j, k->node, k->rank, k->permille, &text);
      lines++;
    }
    ends |= exceeds_limit(j, k, &v[i], now_ms);
  }
  if (ends) job_end_for_drains(j, now_ms);
}

void job_judge_slow(const struct job *j, uint64_t end_ms, struct buf *out) {
  struct named worst = {.permil_ms = 0};
  for (size_t i = 0; j->slow && i < j->slow->n; i++) {
    struct named k = j->slow->v[i];
    if (k.slow) add_cost(&k, half_span_ms(j));
    if (k.permil_ms > worst.permil_ms) worst = k;
  }
  if (!worst.permil_ms) return;
  bool wire = worst.by == SLOW_BY_WIRE;
  uint64_t cost_ms = worst.permil_ms / 1000;
  if (wire) buf_puts(out, "the sends of ");
  put_subject(j, worst.rank, worst.node, worst.host, out);
  buf_puts(out, wire ? " were slow for " : " was slow for ");
  buf_put_duration(out, worst.slow_ms);
  buf_puts(out, ", which cost ");
  buf_put_duration(out, cost_ms);
  if (j->age_unknown || end_ms <= j->round_ms) return;
  buf_puts(out, " (");
  put_percent((int)(cost_ms * 1000 / (end_ms - j->round_ms)), out);
  buf_puts(out, " of the round)");
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
    if (r->local_rank < m->workers)
      judged |= slow_ranks_note(j->slow->ranks, m->rank_base + r->local_rank, m->node_rank, r, now_ms);
  }
  if (judged) judge(j, now_ms);
}
