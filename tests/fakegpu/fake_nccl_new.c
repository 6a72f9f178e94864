/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL got after 2.18, and a program must therefore be able to miss: weak symbols. A module that is linked without
 * this file stands for an old library.
 *
 * Stricter than the library:
 *  - A split is a call of all ranks, and completes only while they poll. A split of a communicator that has work in
 *    progress ends the program: NCCL calls it a possible deadlock.
 *  - Other ranks map the memory of captured collectives, and one of them may be in a collective long after this rank
 *    has aborted its communicator. So memory that captured collectives have written is overwritten once after an abort,
 *    as a later one begins, unless it has been freed. */

#include "tests/fakegpu/fake_nccl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TALK_SPLIT = 1 };

ncclResult_t ncclCommInitRankScalable(ncclComm_t *out, int world, int rank, int n_ids, ncclUniqueId *ids,
                                      ncclConfig_t *config) {
  return fake_comm_init(out, world, rank, n_ids, ids, config);
}

/* A communicator that does not block is polled by its caller. */
static ncclResult_t finish_talk(struct ncclComm *c) {
  if (!c->blocking) return ncclInProgress;
  while (c->talk && !c->failed) {
    fake_comm_poll(c);
    fake_poll();
    fake_unlock();
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    fake_lock();
  }
  return c->failed;
}

/* Splits. ---------------------------------------------------------------------------------------------------------- */

struct split {
  struct ncclComm *child; /* NULL: this rank takes no part, or the child is the caller's */
  ncclComm_t *out;
  bool placed; /* the child has its rank, and meets the others */
};

enum { CARD_COLOR = 3, CARD_KEY, CARD_PORT };

static bool before(const struct fake_card *all, int a, int b) {
  int64_t ka = (int64_t)all[a].word[CARD_KEY], kb = (int64_t)all[b].word[CARD_KEY];
  return ka < kb || (ka == kb && a < b);
}

/* Ranks of the child are ordered by key, then by the rank in the parent. */
static void place(struct ncclComm *c, const struct fake_card *all, struct ncclComm *child) {
  int first = c->rank;
  for (int i = 0; i < c->world; i++) {
    if (all[i].word[CARD_COLOR] != all[c->rank].word[CARD_COLOR]) continue;
    child->world++;
    child->rank += before(all, i, c->rank);
    if (before(all, i, first)) first = i;
  }
  child->phase = FAKE_STAR;
  if (child->rank > 0) fake_comm_dial(child, (uint16_t)all[first].word[CARD_PORT]);
}

static bool end_split(struct ncclComm *c, const struct fake_card *all, void *ctx) {
  struct split *s = ctx;
  if (!s->child) return true;
  if (!s->placed) place(c, all, s->child);
  s->placed = true;
  fake_comm_poll(s->child);
  if (s->child->failed) c->failed = s->child->failed;
  if (s->child->state != FAKE_READY) return false;
  *s->out = s->child;
  s->child = NULL;
  return true;
}

static void drop_split(void *ctx) {
  struct split *s = ctx;
  if (s->child) fake_comm_drop(s->child);
  free(s);
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
  ncclResult_t rc;
  *out = NULL;
  if (!fake_nccl_enter("ncclCommSplit", c, &rc)) return rc;
  if (c->state != FAKE_READY || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) return fake_nccl_leave(ncclInvalidArgument);
  if (fake_comm_busy(c)) fake_die("ncclCommSplit of a communicator that has work in progress");
  struct split *s = calloc(1, sizeof *s);
  struct fake_card mine = {.word = {[CARD_COLOR] = (uint64_t)(int64_t)color, [CARD_KEY] = (uint64_t)(int64_t)key}};
  s->out = out;
  if (color != NCCL_SPLIT_NOCOLOR) {
    s->child = fake_comm_create(0, 0, config);
    if (!config) s->child->blocking = c->blocking;
    mine.word[CARD_PORT] = fake_comm_listen(s->child);
  }
  fake_talk_begin(c, TALK_SPLIT, mine, end_split, drop_split, s);
  return fake_nccl_leave(finish_talk(c));
}

/* Memory. ---------------------------------------------------------------------------------------------------------- */

static struct fake_range *given_away;

static void write_late(void) {
  struct fake_range *r = given_away;
  if (!r || fake_random(4)) return;
  given_away = r->next;
  if (fake_serial_of(r->at) == r->serial) memset(r->at, 0x3e, r->n); /* 0.18, as a float */
  free(r);
}

void fake_comm_use(struct ncclComm *c, void *at, size_t n) {
  write_late();
  for (struct fake_range *r = c->mapped; r; r = r->next)
    if ((char *)at == r->at && n == r->n) return;
  struct fake_range *r = malloc(sizeof *r);
  *r = (struct fake_range){c->mapped, at, n, fake_serial_of(at)};
  c->mapped = r;
}

void fake_comm_give_away(struct ncclComm *c) {
  struct fake_range **last = &c->mapped;
  while (*last) last = &(*last)->next;
  *last = given_away;
  given_away = c->mapped;
  c->mapped = NULL;
}
