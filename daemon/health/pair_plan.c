/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/health/pair_plan.h"

#include <stdlib.h>
#include "common/mem.h"

enum { NAMED_MAX = 4 };

void pair_plan_init(struct pair_plan *p, size_t n_hosts, bool survey) {
  *p = (struct pair_plan){.survey = survey, .n_hosts = n_hosts};
  p->hosts = xcalloc(n_hosts + 1, sizeof *p->hosts);
}

void pair_plan_finish(struct pair_plan *p) {
  for (size_t i = 0; i < p->n; i++) free(p->v[i].text);
  for (size_t i = 0; i < p->n_hosts; i++) free(p->hosts[i].lacks);
  free(p->v);
  free(p->hosts);
}

/* Planning. -------------------------------------------------------------------------------------------------------- */

static void add(struct pair_plan *p, size_t x, size_t y) {
  if (p->n == p->cap) {
    p->cap = p->cap ? 2 * p->cap : 64;
    p->v = xrealloc(p->v, p->cap * sizeof *p->v);
  }
  p->hosts[x].used = p->hosts[y].used = p->hosts[x].met = p->hosts[y].met = true;
  p->v[p->n++] = (struct pair){.a = (uint32_t)(x < y ? x : y), .b = (uint32_t)(x < y ? y : x), .round = p->round};
}

static bool is_free(const struct pair_plan *p, size_t i) {
  return !p->hosts[i].gone && !p->hosts[i].used;
}

static size_t count_meetings(const struct pair_plan *p, size_t x, size_t y) {
  size_t n = 0;
  for (size_t i = 0; i < p->n; i++) n += (p->v[i].a == x && p->v[i].b == y) || (p->v[i].a == y && p->v[i].b == x);
  return n;
}

bool pair_can_use_nccl(const struct pair_plan *p, size_t x, size_t y) {
  return p->nccl && !p->hosts[x].lacks && !p->hosts[y].lacks;
}

static bool is_suspect(const struct pair_host *h, bool nccl) {
  return !h->gone && !h->good[nccl] && h->blamed[nccl] >= 2;
}

/* Over NCCL, if it can. */
static bool does_well(const struct pair_plan *p, size_t x) {
  return p->hosts[x].good[pair_can_use_nccl(p, x, x)];
}

static bool ends_do_well(const struct pair_plan *p, const struct pair *pair) {
  return p->hosts[pair->a].good[pair->nccl] && p->hosts[pair->b].good[pair->nccl];
}

/* Bad, and both ends do well elsewhere. A pair that was good once is not bad. */
static bool is_unlike_its_ends(const struct pair_plan *p, const struct pair *pair) {
  if (!pair->bad || !ends_do_well(p, pair)) return false;
  for (size_t i = 0; i < p->n; i++)
    if (p->v[i].a == pair->a && p->v[i].b == pair->b && p->v[i].state == PAIR_MEASURED && !p->v[i].bad) return false;
  return true;
}

/* x has met a host of y's group. */
static bool has_met_group(const struct pair_plan *p, size_t x, size_t y, bool nccl) {
  for (size_t i = 0; i < p->n; i++) {
    const struct pair *one = &p->v[i];
    if ((one->a != x && one->b != x) || (nccl && !one->nccl)) continue;
    if (p->hosts[one->a == x ? one->b : one->a].group[nccl] == p->hosts[y].group[nccl]) return true;
  }
  return false;
}

static bool has_met_all_groups(const struct pair_plan *p, size_t x, bool nccl) {
  for (size_t y = 0; y < p->n_hosts; y++)
    if (y != x && !p->hosts[y].gone && !(nccl && p->hosts[y].lacks) && !has_met_group(p, x, y, nccl)) return false;
  return true;
}

/* How much is learned if x meets y; 0: nothing. */
static int rank_partner(const struct pair_plan *p, size_t x, size_t y) {
  const struct pair_host *h = &p->hosts[y];
  bool nccl = pair_can_use_nccl(p, x, y);
  if (pair_can_use_nccl(p, x, x) && !nccl) return p->round == 2; /* over TCP, it says nothing of x's fabric */
  if (p->round == 2) return h->good[nccl] ? 4 : h->blamed[nccl] ? 2 : 3;
  if (h->group[nccl] == p->hosts[x].group[nccl] && p->n_hosts > 3) return 0;
  return has_met_group(p, x, y, nccl) ? 1 : is_suspect(h, nccl) ? 3 : 2;
}

/* The best host for x to meet next, the nearest behind x. SIZE_MAX: there is none. */
static size_t find_partner(const struct pair_plan *p, size_t x) {
  size_t best = SIZE_MAX;
  int best_rank = 0;
  for (size_t k = 1; k < p->n_hosts; k++) {
    size_t y = (x + k) % p->n_hosts;
    int rank = is_free(p, y) && !count_meetings(p, x, y) ? rank_partner(p, x, y) : 0;
    if (rank <= best_rank) continue;
    best = y;
    best_rank = rank;
  }
  return best;
}

/* The k-th round of a round-robin: one host stays, the others turn around it. */
static void plan_survey(struct pair_plan *p) {
  size_t n = p->n_hosts + p->n_hosts % 2, turn = n - 1, k = p->round - 1;
  if (n < 2 || k >= (p->n_hosts > PAIR_SURVEY_ALL ? (size_t)PAIR_SURVEY_ROUNDS : turn)) return;
  for (size_t i = 0; i < n / 2; i++) {
    size_t x = i ? (k + i) % turn : turn, y = (k + turn - i) % turn;
    if (x < p->n_hosts && y < p->n_hosts && is_free(p, x) && is_free(p, y)) add(p, x, y);
  }
}

static void retry_links(struct pair_plan *p) {
  for (size_t i = 0, n = p->n; i < n; i++) {
    struct pair one = p->v[i]; /* add() may move it */
    if (is_unlike_its_ends(p, &one) && count_meetings(p, one.a, one.b) < 2 && is_free(p, one.a) && is_free(p, one.b))
      add(p, one.a, one.b);
  }
}

static bool has_open_pair(const struct pair_plan *p) {
  for (size_t i = 0; i < p->n; i++)
    if (pair_is_open(p, &p->v[i])) return true;
  return false;
}

static bool needs_more(const struct pair_plan *p) {
  bool more = (p->n_hosts == 3 && p->round < 3) || has_open_pair(p); /* of three, no two pairs can meet at once */
  for (size_t i = 0; i < p->n && !more; i++) more = is_unlike_its_ends(p, &p->v[i]) && !pair_is_link(p, &p->v[i]);
  return more;
}

enum turn { MET_NOBODY, DOES_BADLY, DOES_WELL, TURNS };

static enum turn turn_of(const struct pair_plan *p, size_t x) {
  return !p->hosts[x].met ? MET_NOBODY : does_well(p, x) ? DOES_WELL : DOES_BADLY;
}

static void plan_search(struct pair_plan *p) {
  size_t half = p->n_hosts / 2;
  for (size_t i = 0; i < half && p->round == 1; i++) add(p, i, i + half);
  bool all = p->round == 2 || p->n_hosts == 3 || has_open_pair(p);
  for (enum turn turn = 0; turn < TURNS && p->round > 1; turn++) {
    if (turn == DOES_WELL && p->round > 2) retry_links(p);
    for (size_t x = 0; x < p->n_hosts && all; x++) {
      if (!is_free(p, x) || turn_of(p, x) != turn || p->hosts[x].fault) continue;
      size_t y = find_partner(p, x);
      if (y != SIZE_MAX) add(p, x, y);
    }
  }
}

size_t pair_plan_next(struct pair_plan *p) {
  size_t before = p->n;
  if (!p->survey) pair_plan_judge(p);
  if (!p->survey && p->round >= PAIR_SEARCH_ROUNDS_MAX) return 0;
  if (!p->survey && p->round >= 2 && !needs_more(p)) return 0;
  p->round++;
  for (size_t i = 0; i < p->n_hosts; i++) p->hosts[i].used = false;
  if (p->survey)
    plan_survey(p);
  else
    plan_search(p);
  return p->n - before;
}

/* Judging. --------------------------------------------------------------------------------------------------------- */

int64_t pair_bytes_s(const struct pair *pair) {
  int64_t us = pair->out_us > pair->in_us ? pair->out_us : pair->in_us;
  return (int64_t)((double)pair->bytes * 1e6 / (double)(us > 0 ? us : 1));
}

static int compare(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* Only pairs of one kind are compared. GPUs that share a network card are slower together. */
static int64_t kind_of(const struct pair *pair) {
  return pair->nccl ? 1 + pair->gpus : 0;
}

/* Of two speeds, and of three, the upper quartile is the highest: a slow pair shows beside one other. */
static void find_usual(const struct pair_plan *p, int64_t kind, int64_t *bytes_s, int64_t *rtt_us) {
  int64_t *speeds = xcalloc(2 * p->n + 1, sizeof *speeds), *trips = speeds + p->n;
  size_t n = 0;
  for (size_t i = 0; i < p->n; i++) {
    if (p->v[i].state != PAIR_MEASURED || kind_of(&p->v[i]) != kind) continue;
    speeds[n] = pair_bytes_s(&p->v[i]);
    trips[n++] = p->v[i].rtt_us;
  }
  qsort(speeds, n, sizeof *speeds, compare);
  qsort(trips, n, sizeof *trips, compare);
  *bytes_s = n ? speeds[n * 3 / 4] : 0;
  *rtt_us = n ? trips[n / 4] : 0;
  free(speeds);
}

static void join(struct pair_plan *p, size_t x, size_t y, bool nccl) {
  uint32_t group = p->hosts[x].group[nccl], other = p->hosts[y].group[nccl];
  for (size_t i = 0; i < p->n_hosts; i++)
    if (p->hosts[i].group[nccl] == other) p->hosts[i].group[nccl] = group;
}

static void judge_pairs(struct pair_plan *p, int64_t kind) {
  int64_t bytes_s, rtt_us;
  find_usual(p, kind, &bytes_s, &rtt_us);
  for (size_t i = 0; i < p->n; i++) {
    struct pair *one = &p->v[i];
    if (kind_of(one) != kind) continue;
    bool slow = pair_bytes_s(one) < bytes_s / PAIR_SLOW_FACTOR;
    bool late = one->rtt_us > rtt_us * PAIR_LATE_FACTOR && one->rtt_us > PAIR_LATE_MIN_US;
    one->bad = one->state == PAIR_FAILED || (one->state == PAIR_MEASURED && (slow || late));
  }
}

/* By the pairs over NCCL alone, or by all. A bad pair over NCCL counts against a host only if the other one does well over
 * NCCL, which may be bad everywhere. */
static void judge_hosts(struct pair_plan *p, bool nccl) {
  for (size_t i = 0; i < p->n_hosts; i++) {
    p->hosts[i].good[nccl] = p->hosts[i].blamed[nccl] = 0;
    p->hosts[i].group[nccl] = (uint32_t)i;
  }
  for (size_t i = 0; i < p->n; i++) {
    const struct pair *one = &p->v[i];
    if (one->state != PAIR_MEASURED || one->bad || (nccl && !one->nccl)) continue;
    p->hosts[one->a].good[nccl]++;
    p->hosts[one->b].good[nccl]++;
    if (!p->survey) join(p, one->a, one->b, nccl);
  }
  for (size_t i = 0; i < p->n; i++) {
    const struct pair *one = &p->v[i];
    if (!one->bad || (nccl && !one->nccl)) continue;
    p->hosts[one->a].blamed[nccl] += p->hosts[one->b].good[one->nccl] > 0;
    p->hosts[one->b].blamed[nccl] += p->hosts[one->a].good[one->nccl] > 0;
  }
  for (size_t i = 0; i < p->n_hosts; i++)
    p->hosts[i].fault |= is_suspect(&p->hosts[i], nccl) && (p->survey || has_met_all_groups(p, i, nccl));
}

void pair_plan_judge(struct pair_plan *p) {
  for (size_t i = 0; i < p->n_hosts; i++) p->hosts[i].fault = false;
  for (int64_t kind = 0; kind <= 1 + PAIR_GPUS_MAX; kind++) judge_pairs(p, kind);
  for (int nccl = 1; nccl >= 0; nccl--) judge_hosts(p, nccl);
}

bool pair_is_link(const struct pair_plan *p, const struct pair *pair) {
  return is_unlike_its_ends(p, pair) && (p->survey || count_meetings(p, pair->a, pair->b) > 1);
}

bool pair_is_open(const struct pair_plan *p, const struct pair *pair) {
  const struct pair_host *a = &p->hosts[pair->a], *b = &p->hosts[pair->b];
  return pair->bad && !a->gone && !b->gone && !a->fault && !b->fault && !ends_do_well(p, pair);
}

/* The sentence. ---------------------------------------------------------------------------------------------------- */

static void put_speed(struct buf *out, const struct pair *one) {
  double mb_s = (double)pair_bytes_s(one) / 1e6;
  if (one->state == PAIR_FAILED)
    buf_puts(out, one->text ? one->text : "no answer");
  else if (mb_s >= 1000)
    buf_printf(out, "%.1f GB/s", mb_s / 1000);
  else
    buf_printf(out, mb_s < 10 ? "%.2f MB/s" : "%.0f MB/s", mb_s);
  if (one->bad && one->nccl && one->state == PAIR_MEASURED) buf_printf(out, " on GPU %lld", (long long)one->gpu);
}

/* The best of those that the first bad one is compared with. */
static const struct pair *find_best(const struct pair_plan *p) {
  const struct pair *best = NULL, *bad = NULL;
  for (size_t i = 0; i < p->n && !bad; i++) bad = p->v[i].bad ? &p->v[i] : NULL;
  for (size_t i = 0; i < p->n; i++)
    if (p->v[i].state == PAIR_MEASURED && (!bad || kind_of(&p->v[i]) == kind_of(bad)) &&
        (!best || pair_bytes_s(&p->v[i]) > pair_bytes_s(best)))
      best = &p->v[i];
  return best;
}

static void put_transport(const struct pair_plan *p, const char *const *names, struct buf *out) {
  size_t n_nccl = 0, who = SIZE_MAX;
  for (size_t i = 0; i < p->n; i++) n_nccl += p->v[i].nccl;
  for (size_t i = 0; i < p->n_hosts && who == SIZE_MAX; i++)
    if (p->hosts[i].lacks) who = i;
  buf_printf(out, "; measured over %s", !n_nccl ? "TCP" : n_nccl == p->n ? "NCCL" : "NCCL and TCP");
  if (who != SIZE_MAX) buf_printf(out, ": no NCCL on %s (%s)", names[who], p->hosts[who].lacks);
}

static void put_fault(const struct pair_plan *p, const char *const *names, size_t host, struct buf *out) {
  size_t n = 0;
  buf_printf(out, "host %s has a network fault: ", names[host]);
  for (size_t i = 0; i < p->n; i++) {
    const struct pair *one = &p->v[i];
    if ((one->a != host && one->b != host) || !one->bad || n++ >= NAMED_MAX) continue;
    buf_printf(out, "%swith %s (", n > 1 ? ", " : "", names[one->a == host ? one->b : one->a]);
    put_speed(out, one);
    buf_putc(out, ')');
  }
}

/* Each pair once, however often it was tried. */
static bool is_repeat(const struct pair_plan *p, size_t at) {
  for (size_t i = 0; i < at; i++)
    if (p->v[i].bad && p->v[i].a == p->v[at].a && p->v[i].b == p->v[at].b) return true;
  return false;
}

static size_t put_pairs(const struct pair_plan *p, const char *const *names,
                        bool (*is)(const struct pair_plan *p, const struct pair *pair), const char *what,
                        const char *why, struct buf *out) {
  size_t n = 0;
  for (size_t i = 0; i < p->n; i++) {
    const struct pair *one = &p->v[i];
    if (!is(p, one) || is_repeat(p, i) || n++ >= NAMED_MAX) continue;
    buf_printf(out, "%s%s and %s (", n > 1 ? ", between " : what, names[one->a], names[one->b]);
    put_speed(out, one);
    buf_putc(out, ')');
  }
  if (n > NAMED_MAX) buf_printf(out, " and %zu more", n - NAMED_MAX);
  if (n) buf_puts(out, why);
  return n;
}

bool pair_plan_sentence(const struct pair_plan *p, const char *const *names, struct buf *out) {
  const struct pair *best = find_best(p), *worst = NULL;
  size_t begin = out->len, faults = 0, bad = 0, measured = 0;
  for (size_t i = 0; i < p->n; i++) {
    bad += p->v[i].bad;
    if (p->v[i].state != PAIR_MEASURED) continue;
    measured++;
    if (!worst || pair_bytes_s(&p->v[i]) < pair_bytes_s(worst)) worst = &p->v[i];
  }
  for (size_t i = 0; i < p->n_hosts; i++) {
    if (!p->hosts[i].fault || faults++ >= NAMED_MAX) continue;
    if (faults > 1) buf_puts(out, "; ");
    put_fault(p, names, i, out);
  }
  if (faults > NAMED_MAX) buf_printf(out, "; and %zu more hosts have one", faults - NAMED_MAX);
  if (faults && best) {
    buf_puts(out, "; good pairs reach ");
    put_speed(out, best);
  }
  put_pairs(p, names, pair_is_link, faults ? "; the link is bad between " : "the link is bad between ",
            ", and both ends do well with others", out);
  put_pairs(p, names, pair_is_open, out->len > begin ? "; it is bad between " : "the network is bad between ",
            ": either end may be at fault", out);
  bool found = out->len > begin;
  if (!found && bad) {
    buf_printf(out, "%zu of %zu pairs were bad once, and no host or link is at fault", bad, p->n);
  } else if (!found && measured) {
    buf_printf(out, "all %zu pairs are good, ", measured);
    put_speed(out, worst);
    buf_printf(out, " or more");
  } else if (!found) {
    buf_puts(out, "no pair could be measured");
  }
  put_transport(p, names, out);
  return found;
}
