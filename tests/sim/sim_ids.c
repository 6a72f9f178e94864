/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers that mint ncclUniqueIds, as agent/nccl/id_helpers.c promises them: an answer after a while, a failure, or a
 * death behind the answer. An id says for which round it was minted and by whom, so that the checker sees when one goes
 * where it does not belong. */

#include "tests/sim/book.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "common/mem.h"

enum { IDS_PATIENCE_MS = 200000, TRIES = 4 };

static struct sim_helper *helper_of(struct sim_agent *a, uint64_t number) {
  return &a->helpers[number % SIM_HELPERS_MAX];
}

static void notify(struct sim *s, struct sim_agent *a, uint64_t at, const struct sim_helper *h, bool minted,
                   const char *text) {
  struct sim_event *e = sim_push(s, at, EV_NOTIFY);
  e->agent = a;
  struct supervisor_event ev = {.round = h->round};
  if (minted) {
    ev.kind = SUP_MINTED;
    ev.minted.helper = h->number;
    ev.minted.ids = h->ids;
    ev.minted.version = 22809;
  } else {
    ev.kind = SUP_MINT_FAILED;
    ev.mint_failed.helper = h->number;
    ev.text = text;
  }
  e->notice = supervisor_event_copy(&ev);
}

/* Four of them end the round. */
static void note_failure(struct sim *s, const struct sim_agent *a) {
  struct round_book *r = book_round(s->checker, a->told_inc, a->told_round);
  s->harmless = false;
  if (++r->mints_failed >= TRIES) r->failed = true;
}

void ids_mint(struct sim *s, struct sim_agent *a, const struct supervisor_effect *fx) {
  struct sim_helper *h = helper_of(a, fx->mint.helper);
  uint64_t at = s->now + (s->calm ? 1 : sim_between(s, 1, 1 + s->config.mint_max));
  *h = (struct sim_helper){.number = fx->mint.helper, .round = fx->round, .lives = true};
  snprintf(h->ids, sizeof h->ids, "%s %" PRId64 " %s %u", a->told_inc, a->told_round, a->name, h->number);
  bool fails = !s->calm && sim_chance(s, s->config.mint_fails);
  if (fails) note_failure(s, a);
  notify(s, a, at, h, !fails, fails ? "no socket" : "");
  if (fails) h->lives = false;
  if (fails || s->calm || !sim_chance(s, s->config.mint_fails)) return;
  h->lives = false;   /* soon, and by itself */
  note_failure(s, a); /* if it dies before all have the ids */
  notify(s, a, at + sim_between(s, 1, 100), h, false, "killed");
}

void ids_unmint(struct sim_agent *a, uint64_t number) {
  struct sim_helper *h = helper_of(a, number);
  if (h->number == number) h->lives = false;
}

static uint64_t sum_of(const struct bytes *b) {
  uint64_t sum = 14695981039346656037u;
  for (size_t i = 0; i < b->len; i++) sum = (sum ^ (uint8_t)b->data[i]) * 1099511628211u;
  return sum;
}

void ids_hand_out(struct sim *s, struct sim_agent *a, const struct supervisor_effect *fx) {
  struct round_book *r = book_round(s->checker, a->told_inc, a->told_round);
  char token[INCARNATION_MAX + 24];
  const struct bytes *ids = fx->bytes;
  if (!ids) {
    if (fx->ids.count && !a->ids_since) a->ids_since = s->now + 1;
    return;
  }
  a->ids_since = 0;
  int n = snprintf(token, sizeof token, "%s %" PRId64 " ", a->told_inc, a->told_round);
  for (size_t at = 0; at < ids->len; at += NCCL_ID_SIZE)
    if (fx->round != a->told_round || memcmp(ids->data + at, token, (size_t)n) != 0)
      sim_violate(s, INV_IDS, "%s has ids for round %u of %.100s", a->name, fx->round, ids->data + at);
  uint64_t sum = sum_of(ids);
  if (r->has_ids && r->ids_sum != sum)
    sim_violate(s, INV_IDS, "%s has other ids for round %u than others", a->name, fx->round);
  r->has_ids = true;
  r->ids_sum = sum;
}

void check_ids(struct sim *s, struct sim_agent *a) {
  enum supervisor_state st = supervisor_state(a->sup);
  bool runs = st == SUPERVISOR_STARTING || st == SUPERVISOR_RUNNING;
  if (!runs) a->ids_since = 0;
  if (a->ids_since && s->now > a->ids_since + IDS_PATIENCE_MS)
    sim_violate(s, INV_IDS_COME, "%s has waited for the ids of round %" PRId64 " for %" PRIu64 " s", a->name,
                supervisor_round(a->sup), (s->now - a->ids_since) / 1000);
  for (int i = 0; i < SIM_HELPERS_MAX; i++) {
    const struct sim_helper *h = &a->helpers[i];
    bool ours = h->round == supervisor_round(a->sup) && (runs || st == SUPERVISOR_FINISHED);
    if (h->lives && !ours)
      sim_violate(s, INV_HELPERS, "%s has a helper of round %u, and is %s in round %" PRId64, a->name, h->round,
                  supervisor_state_name(st), supervisor_round(a->sup));
  }
}
