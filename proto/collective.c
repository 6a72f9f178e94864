/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives that do not end: what one node sees of a process group, joined to what all see.
 *
 * Every rank of a group enters the same collectives in the same order. So a group stands still at the lowest collective
 * that some rank has not left. Ranks that have not entered it are the ones that the others wait for, unless they wait
 * themselves, in another group. Therefore a node counts as `idle` only ranks that are in no collective at all, and names
 * those that have come least far.
 *
 * Joining keeps the lowest collective with its waiting ranks, and the lowest idle ranks. It does not matter in which
 * order nodes report. A node whose ranks all wait further ahead, in a later collective of the group, has left the
 * lowest one; it adds nothing. */

#include "proto/msg.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ranks {
  int64_t v[RANKS_NAMED_MAX];
  size_t n;
};

static void add_rank(struct ranks *r, int64_t rank) {
  size_t at = 0;
  while (at < r->n && r->v[at] < rank) at++;
  if (at == RANKS_NAMED_MAX || (at < r->n && r->v[at] == rank)) return;
  size_t keep = r->n < RANKS_NAMED_MAX ? r->n++ : r->n - 1;
  memmove(&r->v[at + 1], &r->v[at], (keep - at) * sizeof(*r->v));
  r->v[at] = rank;
}

static void add_ranks(struct ranks *r, const char *text) {
  for (const char *at = text; *at >= '0' && *at <= '9';) {
    char *end;
    long long rank = strtoll(at, &end, 10);
    if (rank > WORLD_MAX) return;
    add_rank(r, rank);
    if (*end != ',') return;
    at = end + 1;
  }
}

void ranks_merge(char to[RANKS_TEXT_MAX + 1], const char *from) {
  struct ranks r = {.n = 0};
  size_t used = 0;
  add_ranks(&r, to);
  add_ranks(&r, from);
  to[0] = '\0';
  for (size_t i = 0; i < r.n; i++)
    used += (size_t)snprintf(to + used, RANKS_TEXT_MAX + 1 - used, "%s%" PRId64, i ? "," : "", r.v[i]);
}

void collective_add(struct collective *to, const struct collective *from, char ranks[RANKS_TEXT_MAX + 1]) {
  if (from->seq && from->seq == to->seq) {
    to->waiting = to->waiting > WORLD_MAX - from->waiting ? WORLD_MAX : to->waiting + from->waiting;
    if (!to->op[0]) to->op = from->op;
  } else if (from->seq && (!to->seq || from->seq < to->seq)) {
    to->seq = from->seq;
    to->waiting = from->waiting;
    to->op = from->op;
  }
  if (from->entered < 0 || (to->entered >= 0 && from->entered > to->entered)) return;
  if (from->entered != to->entered) {
    ranks[0] = '\0';
    to->idle = 0;
  }
  to->entered = from->entered;
  to->idle = to->idle > WORLD_MAX - from->idle ? WORLD_MAX : to->idle + from->idle;
  ranks_merge(ranks, from->ranks);
  to->ranks = ranks;
}

bool collective_lacks(const struct collective *c) {
  return c->seq > 0 && c->waiting > 0 && c->idle > 0 && c->entered < c->seq;
}

/* "ranks 3, 5 and 2 more" */
static void put_ranks(const char *text, int64_t total, struct buf *out) {
  struct ranks r = {.n = 0};
  add_ranks(&r, text);
  int64_t more = total > (int64_t)r.n ? total - (int64_t)r.n : 0;
  buf_puts(out, r.n + (size_t)more == 1 ? "rank " : "ranks ");
  for (size_t i = 0; i < r.n; i++)
    buf_printf(out, "%s%" PRId64, i == 0 ? "" : i + 1 == r.n && !more ? " and " : ", ", r.v[i]);
  if (more) buf_printf(out, " and %" PRId64 " more", more);
}

/* "all_reduce #412", and the group unless it is the one of all ranks */
static void put_collective(const struct collective *c, struct buf *out) {
  buf_put_plain(out, c->op[0] ? c->op : "collective", strlen(c->op[0] ? c->op : "collective"), OPERATION_MAX);
  buf_printf(out, " #%" PRId64, c->seq);
  size_t len = strlen(c->group);
  static const char all[] = "default_pg";
  if (len >= sizeof(all) - 1 && strcmp(c->group + len - (sizeof(all) - 1), all) == 0) return;
  buf_puts(out, " of process group ");
  buf_put_plain(out, c->group, len, GROUP_NAME_MAX);
}

/* How much it says: ranks that wait for others, ranks that wait, ranks that do not. */
static int64_t worth(const struct collective *c) {
  if (collective_lacks(c)) return 3LL * WORLD_MAX + c->waiting;
  if (c->seq > 0 && c->waiting > 0) return 2LL * WORLD_MAX + c->waiting;
  return c->idle > 0 && c->entered > 0 ? c->idle : 0;
}

void collectives_sentence(const struct collective *v, size_t n, const char *silent, struct buf *out) {
  const struct collective *c = NULL;
  for (size_t i = 0; i < n; i++)
    if (worth(&v[i]) > (c ? worth(c) : 0)) c = &v[i];
  if (c && collective_lacks(c)) {
    put_ranks(c->ranks, c->idle, out);
    buf_puts(out, c->idle == 1 ? " has not entered " : " have not entered ");
    put_collective(c, out);
    buf_printf(out, ", %" PRId64 " other%s in it", c->waiting, c->waiting == 1 ? " waits" : "s wait");
  } else if (c && c->waiting > 0) {
    buf_printf(out, "%" PRId64 " rank%s in ", c->waiting, c->waiting == 1 ? " waits" : "s wait");
    put_collective(c, out);
  } else if (c) {
    put_ranks(c->ranks, c->idle, out);
    buf_printf(out, " %s in no collective, the last one was #%" PRId64, c->idle == 1 ? "is" : "are", c->entered);
  }
  struct ranks r = {.n = 0};
  add_ranks(&r, silent);
  if (!r.n) return;
  if (c) buf_puts(out, "; ");
  buf_puts(out, "the debug server of ");
  put_ranks(silent, (int64_t)r.n, out);
  buf_puts(out, r.n == 1 ? " does not answer" : " do not answer");
}
