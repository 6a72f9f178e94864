/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/goodput/slow_ranks.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "common/map.h"
#include "common/mem.h"

enum { POINTS = 4, INTERVAL_LEAST_MS = 250 };
#define WIRE_LEAST_BYTES 65536.0 /* of an interval */

/* Sums at a number of collectives. */
struct point {
  double collectives, waited_us, sent_bytes, sending_us, at_ms;
};

/* A rank in a communicator. */
struct part {
  int64_t rank, node, place; /* place: its rank in the communicator */
  struct point v[POINTS];    /* reports, the newest last */
  int n;
  struct point base;                          /* where the current interval began */
  struct point is;                            /* where it ends */
  int16_t lag[SLOW_BY_COUNT][SLOW_INTERVALS]; /* permille of the time, newest at `at` of the group */
  int cost[SLOW_BY_COUNT];                    /* the median of those */
  bool slow[SLOW_BY_COUNT];
};

struct group {
  int64_t size, largest; /* largest: place that was reported */
  struct part *v;
  size_t n, cap;
  struct map ranks; /* rank -> 1 + its index in v */
  bool has_base;
  unsigned intervals, at;
  uint64_t closed_ms, noted_ms;
  int cost[SLOW_BY_COUNT]; /* of its slowest; 0: nobody is slow */
  bool usual[SLOW_BY_COUNT];
};

struct slow_ranks {
  uint64_t span_ms, interval_ms, seed;
  int64_t world;
  struct map groups; /* number -> struct group */
  size_t n_parts;
  uint64_t pairs_until_ms; /* sends and receives in pairs are that recent */
  uint64_t judged_ms;
  struct slow_rank found[SLOW_FOUND_MAX];
  size_t n_found;
};

struct slow_ranks *slow_ranks_create(uint64_t span_ms, int64_t world_size, uint64_t seed) {
  struct slow_ranks *s = xcalloc(1, sizeof *s);
  s->span_ms = span_ms;
  s->interval_ms = span_ms / SLOW_INTERVALS > INTERVAL_LEAST_MS ? span_ms / SLOW_INTERVALS : INTERVAL_LEAST_MS;
  s->world = world_size;
  s->seed = seed;
  map_init(&s->groups, seed);
  return s;
}

static void group_free(struct group *g) {
  map_finish(&g->ranks);
  free(g->v);
  free(g);
}

void slow_ranks_destroy(struct slow_ranks *s) {
  if (!s) return;
  for (struct map_entry *e = NULL; (e = map_next(&s->groups, e));) group_free(e->value);
  map_finish(&s->groups);
  free(s);
}

static struct part *part_of(const struct group *g, int64_t rank) {
  uintptr_t at = (uintptr_t)map_get_n(&g->ranks, &rank, sizeof rank);
  return at ? &g->v[at - 1] : NULL;
}

/* Intervals. ------------------------------------------------------------------------------------------------------- */

static struct point between(const struct point *a, const struct point *b, double collectives) {
  double all = b->collectives - a->collectives, f = all > 0 ? (collectives - a->collectives) / all : 1;
#define MIX(field) .field = a->field + f * (b->field - a->field)
  return (struct point){MIX(collectives), MIX(waited_us), MIX(sent_bytes), MIX(sending_us), MIX(at_ms)};
#undef MIX
}

static struct point point_at(const struct part *p, double collectives) {
  int i = p->n - 1;
  while (i > 0 && p->v[i - 1].collectives >= collectives) i--;
  return i > 0 && p->v[i].collectives > collectives ? between(&p->v[i - 1], &p->v[i], collectives) : p->v[i];
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *v, size_t n) {
  qsort(v, n, sizeof *v, by_size);
  return v[n / 2];
}

static int16_t permille(double part) {
  return (int16_t)(part > 1 ? 1000 : part < -1 ? -1000 : part * 1000 + (part < 0 ? -0.5 : 0.5));
}

/* The time that a byte takes; below 0: it has sent too little. */
static double per_byte(const struct part *p) {
  double bytes = p->is.sent_bytes - p->base.sent_bytes;
  return bytes >= WIRE_LEAST_BYTES ? (p->is.sending_us - p->base.sending_us) / bytes : -1;
}

static void close_interval(struct group *g) {
  double *v = xcalloc(g->n, sizeof *v), span_ms = 0;
  size_t senders = 0;
  g->at = (g->at + 1) % SLOW_INTERVALS;
  g->intervals++;
  for (size_t i = 0; i < g->n; i++) span_ms += (g->v[i].is.at_ms - g->v[i].base.at_ms) / (double)g->n;
  for (size_t i = 0; i < g->n; i++) v[i] = g->v[i].is.waited_us - g->v[i].base.waited_us;
  double usual_us = median(v, g->n), span_us = span_ms > 0 ? span_ms * 1000 : 1;
  for (size_t i = 0; i < g->n; i++)
    if (per_byte(&g->v[i]) > 0) v[senders++] = per_byte(&g->v[i]);
  double usual_send = senders >= 4 ? median(v, senders) : -1;
  for (size_t i = 0; i < g->n; i++) {
    struct part *p = &g->v[i];
    double send = per_byte(p), slower = send > 0 && usual_send > 0 ? send / usual_send : 1;
    p->lag[SLOW_BY_WORK][g->at] = permille((usual_us - (p->is.waited_us - p->base.waited_us)) / span_us);
    p->lag[SLOW_BY_WIRE][g->at] =
        slower * 100 >= 100 + SLOW_WIRE_PERCENT ? permille(usual_us / span_us * (1 - 1 / slower)) : 0;
  }
  free(v);
}

/* True: an interval is over. */
static bool group_advance(const struct slow_ranks *s, struct group *g, uint64_t now_ms) {
  int64_t size = g->size ? g->size : g->largest + 1;
  double least = -1;
  if ((int64_t)g->n != size || (size < 2) || now_ms < g->closed_ms + s->interval_ms) return false;
  for (size_t i = 0; i < g->n; i++) {
    double c = g->v[i].v[g->v[i].n - 1].collectives;
    if (least < 0 || c < least) least = c;
  }
  bool compares = g->has_base;
  for (size_t i = 0; i < g->n && compares; i++) compares = least >= g->v[i].base.collectives + SLOW_LEAST_COLLECTIVES;
  if (g->has_base && !compares) return false;
  for (size_t i = 0; i < g->n; i++) g->v[i].is = point_at(&g->v[i], least);
  if (compares) close_interval(g);
  for (size_t i = 0; i < g->n; i++) g->v[i].base = g->v[i].is;
  g->has_base = true;
  g->closed_ms = now_ms;
  return compares;
}

/* Judgement. ------------------------------------------------------------------------------------------------------- */

static bool can_tell(const struct slow_ranks *s, const struct group *g, uint64_t now_ms) {
  bool whole = (int64_t)g->n == s->world;
  if (g->intervals < SLOW_INTERVALS || now_ms > g->closed_ms + 2 * s->span_ms) return false;
  return whole ? now_ms >= s->pairs_until_ms : g->n >= 4;
}

/* Who is slow in this communicator, or nobody. */
static void judge_group(const struct slow_ranks *s, struct group *g, enum slow_by by, uint64_t now_ms) {
  int most = 0;
  size_t n = 0, on_node = 0;
  const struct part *first = NULL;
  bool one_node = true, tells = can_tell(s, g, now_ms);
  for (size_t i = 0; i < g->n; i++) {
    struct part *p = &g->v[i];
    double v[SLOW_INTERVALS];
    int on = 0, off = 0;
    for (int k = 0; k < SLOW_INTERVALS; k++) {
      v[k] = p->lag[by][k];
      on += p->lag[by][k] >= SLOW_ON_PERMILLE;
      off += p->lag[by][k] >= SLOW_OFF_PERMILLE;
    }
    p->cost[by] = (int)median(v, SLOW_INTERVALS);
    p->slow[by] = tells && ((on >= SLOW_MANY && p->cost[by] >= SLOW_ON_PERMILLE) || (p->slow[by] && off > SLOW_FEW));
    if (p->slow[by] && p->cost[by] > most) most = p->cost[by];
  }
  for (size_t i = 0; i < g->n; i++) {
    struct part *p = &g->v[i];
    p->slow[by] = p->slow[by] && 2 * p->cost[by] >= most;
    if (!p->slow[by]) continue;
    n++;
    if (!first) first = p;
    one_node &= p->node == first->node;
  }
  for (size_t i = 0; first && i < g->n; i++) on_node += g->v[i].node == first->node;
  bool differs = n > 1 && 4 * n > g->n && !(one_node && n == on_node && 2 * n <= g->n);
  for (size_t i = 0; differs && i < g->n; i++) g->v[i].slow[by] = false;
  g->cost[by] = n && !differs ? most : 0;
}

static const struct part *part_at(const struct group *g, int64_t place) {
  for (size_t i = 0; i < g->n; i++)
    if (g->v[i].place == place) return &g->v[i];
  return NULL;
}

/* The same place is slow in most communicators of this size: so the job is made. */
static void find_usual(struct slow_ranks *s, struct group *g, enum slow_by by, uint64_t now_ms) {
  g->usual[by] = false;
  if (!g->cost[by]) return;
  for (size_t i = 0; i < g->n; i++) {
    const struct part *p = &g->v[i];
    size_t others = 0, same = 0;
    bool one_node = true;
    if (!p->slow[by]) continue;
    for (struct map_entry *e = NULL; (e = map_next(&s->groups, e));) {
      const struct group *other = e->value;
      if (other->n != g->n || !can_tell(s, other, now_ms)) continue;
      const struct part *there = part_at(other, p->place);
      others++;
      if (!there || !there->slow[by]) continue;
      same++;
      one_node &= there->node == p->node;
    }
    g->usual[by] |= others > 1 && 2 * same > others && !one_node;
  }
}

/* It waits for a slow one in another communicator. */
static bool waits_elsewhere(struct slow_ranks *s, const struct group *here, const struct part *p, enum slow_by by) {
  for (struct map_entry *e = NULL; (e = map_next(&s->groups, e));) {
    struct group *g = e->value;
    if (g == here || !g->cost[by] || g->usual[by] || 2 * g->cost[by] < p->cost[by]) continue;
    const struct part *there = part_of(g, p->rank);
    if (there && !there->slow[by]) return true;
  }
  return false;
}

static int by_rank(const void *a, const void *b) {
  int64_t x = ((const struct slow_rank *)a)->rank, y = ((const struct slow_rank *)b)->rank;
  return (x > y) - (x < y);
}

static void find(struct slow_ranks *s, const struct part *p, enum slow_by by, uint64_t now_ms) {
  struct slow_rank *to = NULL;
  for (size_t i = 0; i < s->n_found && !to; i++)
    if (s->found[i].rank == p->rank) to = &s->found[i];
  if (!to && s->n_found < SLOW_FOUND_MAX) {
    to = &s->found[s->n_found++];
    *to = (struct slow_rank){.rank = p->rank, .node = p->node, .permille = INT_MIN, .since_ms = now_ms};
  }
  if (!to || to->permille >= p->cost[by]) return;
  to->permille = p->cost[by];
  to->by = by;
}

static void judge(struct slow_ranks *s, uint64_t now_ms) {
  size_t kept = 0;
  for (size_t i = 0; i < s->n_found; i++) s->found[i].permille = INT_MIN; /* not found again yet */
  s->judged_ms = now_ms;
  for (struct map_entry *e = NULL; (e = map_next(&s->groups, e));) {
    struct group *g = e->value;
    if (now_ms > g->noted_ms + 2 * s->span_ms + 60000) { /* the communicator is gone */
      s->n_parts -= g->n;
      map_remove_n(&s->groups, e->key, e->key_len);
      group_free(g);
      continue;
    }
    for (int by = 0; by < SLOW_BY_COUNT; by++) judge_group(s, g, (enum slow_by)by, now_ms);
  }
  for (struct map_entry *e = NULL; (e = map_next(&s->groups, e));)
    for (int by = 0; by < SLOW_BY_COUNT; by++) find_usual(s, e->value, (enum slow_by)by, now_ms);
  for (struct map_entry *e = NULL; (e = map_next(&s->groups, e));) {
    const struct group *g = e->value;
    for (int by = 0; by < SLOW_BY_COUNT; by++)
      for (size_t i = 0; g->cost[by] && !g->usual[by] && i < g->n; i++)
        if (g->v[i].slow[by] && !waits_elsewhere(s, g, &g->v[i], (enum slow_by)by))
          find(s, &g->v[i], (enum slow_by)by, now_ms);
  }
  for (size_t i = 0; i < s->n_found; i++)
    if (s->found[i].permille > INT_MIN) s->found[kept++] = s->found[i];
  s->n_found = kept;
  qsort(s->found, s->n_found, sizeof *s->found, by_rank);
}

/* Samples. --------------------------------------------------------------------------------------------------------- */

static struct part *find_part(struct slow_ranks *s, int64_t rank, int64_t node, const struct rank_pace *a,
                              struct group **of) {
  struct group *g = *of = map_get_n(&s->groups, &a->group, sizeof a->group);
  struct part *p = g ? part_of(g, rank) : NULL;
  if (p) return p;
  if (s->n_parts >= (size_t)s->world * SLOW_GROUPS_PER_RANK || (g && (int64_t)g->n >= s->world)) return NULL;
  if (!g) {
    g = *of = xcalloc(1, sizeof *g);
    map_init(&g->ranks, s->seed);
    map_put_n(&s->groups, &a->group, sizeof a->group, g);
  }
  g->v = xgrow(g->v, g->n, &g->cap, sizeof *g->v);
  s->n_parts++;
  p = &g->v[g->n++];
  map_put_n(&g->ranks, &rank, sizeof rank, (void *)(uintptr_t)g->n);
  *p = (struct part){.rank = rank, .node = node, .place = a->group_rank};
  g->has_base = false;
  return p;
}

bool slow_ranks_note(struct slow_ranks *s, int64_t rank, int64_t node, const struct rank_pace *a, uint64_t now_ms) {
  struct group *g;
  struct part *p = find_part(s, rank, node, a, &g);
  if (!p) return false;
  struct point now = {(double)a->collectives, (double)a->waited_us, (double)a->sent_bytes, (double)a->sending_us,
                      (double)now_ms};
  if (p->n && now.collectives < p->v[p->n - 1].collectives) p->n = 0, g->has_base = false;
  if (p->n == POINTS) memmove(p->v, p->v + 1, (POINTS - 1) * sizeof *p->v), p->n--;
  p->v[p->n++] = now;
  if (a->pairs) s->pairs_until_ms = now_ms + 2 * s->span_ms;
  g->noted_ms = now_ms;
  if (a->group_size) g->size = a->group_size;
  if (a->group_rank > g->largest) g->largest = a->group_rank;
  if (!group_advance(s, g, now_ms) || now_ms < s->judged_ms + s->interval_ms / 2) return false;
  judge(s, now_ms);
  return true;
}

const struct slow_rank *slow_ranks_found(const struct slow_ranks *s, size_t *n) {
  *n = s->n_found;
  return s->found;
}

const struct slow_rank *slow_ranks_find(const struct slow_ranks *s, int64_t rank) {
  for (size_t i = 0; i < s->n_found; i++)
    if (s->found[i].rank == rank) return &s->found[i];
  return NULL;
}

bool slow_ranks_whole_node(const struct slow_ranks *s, int64_t node) {
  int64_t only = -1;
  bool several = false;
  for (struct map_entry *e = NULL; (e = map_next(&s->groups, e));) {
    const struct group *g = e->value;
    for (size_t i = 0; i < g->n; i++) {
      if (g->v[i].node != node) continue;
      if (!slow_ranks_find(s, g->v[i].rank)) return false;
      several |= only >= 0 && only != g->v[i].rank;
      only = g->v[i].rank;
    }
  }
  return several;
}
