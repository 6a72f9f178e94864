/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a communicator tell each other on the host: for a call that all of them make (a split, a window).
 * Each sends a card to rank 0, which sends all cards to all. It goes over the connections of the collectives, so it
 * begins when none of them is in progress, and none begins before it has ended.
 *
 * Ranks that make different calls would hang in NCCL. Here rank 0 reports it and ends. */

#include "tests/fakegpu/fake_nccl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define TALK_MAGIC UINT64_C(0x4b4c4154454b4146)

struct fake_talk {
  struct fake_card mine, *all; /* all[world]; word 0 to 2 belong to this file */
  size_t sent[FAKE_WORLD_MAX], got[FAKE_WORLD_MAX];
  bool begun, heard;
  fake_talk_end_fn *end;
  void (*drop)(void *ctx);
  void *ctx;
};

bool fake_push(struct ncclComm *c, int peer, const void *from, size_t n, size_t *at, bool *moved) {
  while (*at < n) {
    ssize_t k = send(c->peers[peer], (const char *)from + *at, n - *at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (k <= 0) return false;
    *at += (size_t)k;
    *moved = true;
  }
  return true;
}

bool fake_pull(struct ncclComm *c, int peer, void *to, size_t n, size_t *at, bool *moved) {
  while (*at < n) {
    ssize_t k = recv(c->peers[peer], (char *)to + *at, n - *at, MSG_DONTWAIT);
    if (k <= 0) return false;
    *at += (size_t)k;
    *moved = true;
  }
  return true;
}

bool fake_comm_busy(const struct ncclComm *c) {
  if (c->in_flight || c->pending || c->outstanding > 0) return true;
  for (const struct CUstream_st *s = fake_streams; s; s = s->next)
    for (const struct fake_op *op = s->head; op; op = op->next)
      if (op->w->outside) return true;
  return false;
}

void fake_talk_begin(struct ncclComm *c, uint64_t kind, struct fake_card mine, fake_talk_end_fn *end,
                     void (*drop)(void *ctx), void *ctx) {
  struct fake_talk *t = calloc(1, sizeof *t);
  *t = (struct fake_talk){.mine = mine, .all = calloc((size_t)c->world, sizeof *t->all)};
  t->mine.word[0] = TALK_MAGIC;
  t->mine.word[1] = ++c->talks;
  t->mine.word[2] = kind;
  t->end = end;
  t->drop = drop;
  t->ctx = ctx;
  c->talk = t;
}

void fake_talk_drop(struct ncclComm *c) {
  struct fake_talk *t = c->talk;
  if (!t) return;
  t->drop(t->ctx);
  free(t->all);
  free(t);
  c->talk = NULL;
}

bool fake_talk_begun(const struct ncclComm *c) {
  return c->talk && c->talk->begun;
}

static void check_card(struct fake_talk *t, int rank) {
  if (memcmp(t->all[rank].word, t->mine.word, 3 * sizeof t->mine.word[0]) == 0) return;
  fake_die("rank 0 makes call %llu (kind %llu), rank %d another", (unsigned long long)t->mine.word[1],
           (unsigned long long)t->mine.word[2], rank);
}

static void gather(struct ncclComm *c, struct fake_talk *t) {
  bool whole = true, moved;
  t->all[0] = t->mine;
  for (int i = 1; i < c->world; i++) {
    if (fake_pull(c, i, &t->all[i], sizeof t->all[i], &t->got[i], &moved))
      check_card(t, i);
    else
      whole = false;
  }
  if (!whole) return;
  for (int i = 1; i < c->world; i++)
    whole &= fake_push(c, i, t->all, (size_t)c->world * sizeof *t->all, &t->sent[i], &moved);
  t->heard = whole;
}

static void tell(struct ncclComm *c, struct fake_talk *t) {
  bool moved;
  if (!fake_push(c, 0, &t->mine, sizeof t->mine, &t->sent[0], &moved)) return;
  t->heard = fake_pull(c, 0, t->all, (size_t)c->world * sizeof *t->all, &t->got[0], &moved);
}

void fake_talk_poll(struct ncclComm *c) {
  struct fake_talk *t = c->talk;
  if (!t->begun && fake_comm_busy(c)) return;
  t->begun = true;
  if (!t->heard) c->rank == 0 ? gather(c, t) : tell(c, t);
  if (t->heard && !c->failed && t->end(c, t->all, t->ctx)) fake_talk_drop(c);
}
