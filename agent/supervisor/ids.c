/* The round's ncclUniqueIds, as this node sees them: what it mints for all, and what it hands to its workers.
 *
 *   START, MINT --> SUP_MINT --> SUP_MINTED --> MINTED to the daemon          IDS --> SUP_IDS, to the workers
 *                          '--> SUP_MINT_FAILED, or no answer in time --> MINTED with the reason
 *
 * A helper process mints (agent/rdzv-nccl.c), and must live as long as ranks may still come to its ids: an id is an address at which its maker
 * listens. It is over when the round is, or sooner, when a worker of ours says that its communicators are up (rdzv_nccl_up): a
 * communicator is up on one rank only after all ranks have met, so nobody will come there any more.
 *
 * Nothing is sent twice by itself. The daemon says MINT again to whoever comes back and owes it an answer, and after it was restarted to
 * all of whom it needs one; what is known is answered at once, from the helper's ids or from those that IDS had brought for all. Where MINT
 * asks for other ids than before, which only a daemon does that has forgotten, nobody has used the earlier ones: their helpers go.
 *
 * A helper that dies when its ids are told but not yet pushed is told too: another node may take its place. After that it is too late,
 * and said to people. */

#include "agent/supervisor/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/mem.h"

static bool is_ours(const struct supervisor *s, const char *incarnation, int64_t round) {
  bool runs =
      s->state == SUPERVISOR_STARTING || s->state == SUPERVISOR_RUNNING || s->state == SUPERVISOR_FINISHED;
  return runs && round == s->round && !strcmp(incarnation, s->incarnation);
}

/* Helpers. --------------------------------------------------------------------------------------------------------- */

static void forget(struct supervisor *s, struct minting *m) {
  bytes_unref(m->ids);
  *m = s->ids.v[--s->ids.n_minting];
}

static void start_helper(struct supervisor *s, const struct minting *m) {
  struct supervisor_effect *e = sup_effect(s, SUP_MINT);
  e->round = (uint32_t)s->round;
  e->value = m->number;
  e->count = (uint32_t)m->count;
}

static void stop_helper(struct supervisor *s, const struct minting *m) {
  if (!s->ids.spawned) return; /* it was not started */
  struct supervisor_effect *e = sup_effect(s, SUP_UNMINT);
  e->round = (uint32_t)s->round;
  e->value = m->number;
}

static void unmint(struct supervisor *s, struct minting *m) {
  stop_helper(s, m);
  forget(s, m);
}

void sup_ids_release(struct supervisor *s) {
  while (s->ids.n_minting) unmint(s, &s->ids.v[s->ids.n_minting - 1]);
}

void sup_ids_clear(struct supervisor *s) {
  while (s->ids.n_minting) forget(s, &s->ids.v[s->ids.n_minting - 1]);
  bytes_unref(s->ids.all);
  uint32_t number = s->ids.last_number;
  s->ids = (struct ids_of_round){.last_number = number};
}

static struct minting *find(struct supervisor *s, const struct supervisor_event *ev) {
  for (size_t i = 0; i < s->ids.n_minting; i++)
    if (s->ids.v[i].number == ev->count && ev->round == s->round) return &s->ids.v[i];
  return NULL;
}

/* Telling the daemon. ---------------------------------------------------------------------------------------------- */

static void begin_telling(const struct supervisor *s, int64_t first, int64_t count, struct msg *m) {
  msg_init(m, MSG_MINTED);
  m->minted.incarnation = s->incarnation;
  m->minted.round = s->round;
  m->minted.first = first;
  m->minted.count = count;
}

static void tell(struct supervisor *s, int64_t first, int64_t count, int64_t version, const char *raw) {
  struct msg m;
  begin_telling(s, first, count, &m);
  m.minted.version = version;
  m.raw = raw;
  m.raw_len = (size_t)count * NCCL_ID_SIZE;
  sup_send(s, &m);
}

static void tell_minted(struct supervisor *s, const struct minting *m) {
  tell(s, m->first, m->count, m->version, m->ids->data);
}

static void tell_failed(struct supervisor *s, struct minting *minting, const char *why, bool lasting) {
  struct msg m;
  sup_say(s, LOG_WARN, "this node cannot give NCCL ids to round %" PRId64 ": %s", s->round, why);
  begin_telling(s, minting->first, minting->count, &m);
  forget(s, minting);
  m.minted.text = why;
  m.minted.lasting = lasting;
  sup_send(s, &m);
}

/* Minting. --------------------------------------------------------------------------------------------------------- */

/* What overlaps with it has been given up; false: it is there, or on its way. */
static bool make_way(struct supervisor *s, int64_t first, int64_t count) {
  for (size_t i = s->ids.n_minting; i-- > 0;) {
    struct minting *m = &s->ids.v[i];
    if (m->first == first && m->count == count) {
      if (m->ids) tell_minted(s, m);
      return false;
    }
    if (m->first < first + count && first < m->first + m->count) unmint(s, m);
  }
  return true;
}

static void mint(struct supervisor *s, int64_t first, int64_t count) {
  if (!make_way(s, first, count)) return;
  struct minting *m = &s->ids.v[s->ids.n_minting++]; /* shares do not overlap, so there is room for all */
  *m = (struct minting){.first = first,
                        .count = count,
                        .number = ++s->ids.last_number,
                        .by_ms = s->now_ms + SUPERVISOR_MINT_MS};
  if (s->ids.spawned) start_helper(s, m);
}

/* START may be kept for a while before its workers are spawned. */
void sup_ids_spawned(struct supervisor *s) {
  s->ids.spawned = true;
  for (size_t i = 0; i < s->ids.n_minting; i++) start_helper(s, &s->ids.v[i]);
}

void sup_mint(struct supervisor *s, const struct mint *ask) {
  if (!is_ours(s, ask->incarnation, ask->round) || ask->first + ask->count > s->ids.n) return;
  if (s->ids.all)
    tell(s, ask->first, ask->count, s->ids.version, s->ids.all->data + ask->first * NCCL_ID_SIZE);
  else
    mint(s, ask->first, ask->count);
}

void sup_minted(struct supervisor *s, const struct supervisor_event *ev) {
  struct minting *m = find(s, ev);
  if (!m || m->ids) return;
  m->ids = bytes_create(ev->ids, (size_t)m->count * NCCL_ID_SIZE);
  m->version = ev->version;
  tell_minted(s, m);
}

void sup_mint_failed(struct supervisor *s, const struct supervisor_event *ev) {
  struct minting *m = find(s, ev);
  if (!m) return;
  if (!s->ids.all) {
    tell_failed(s, m, ev->text ? ev->text : "?", ev->lasting);
    return;
  }
  sup_say(s, LOG_WARN, "%s; ranks that have not come to its NCCL ids yet will find nobody there",
          ev->text ? ev->text : "?");
  forget(s, m);
}

/* Ids for our workers. --------------------------------------------------------------------------------------------- */

static void hand_out(struct supervisor *s, const char *text) {
  struct supervisor_effect *e = sup_effect(s, SUP_IDS);
  e->round = (uint32_t)s->round;
  e->bytes = s->ids.all ? bytes_ref(s->ids.all) : NULL;
  e->value = (uint64_t)s->ids.version;
  e->count = s->ids.none ? 0 : (uint32_t)s->ids.n;
  e->text = xstrdup(text);
}

void sup_ids_start(struct supervisor *s, const struct start *start) {
  s->ids.n = start->ids;
  if (start->ids)
    hand_out(s, start->minters);
  else
    hand_out(s, s->config.settings.nccl_ids == NCCL_IDS_NEVER
                    ? "this job has none: its agents run with --nccl-ids never"
                    : "this job has none: with --nccl-ids auto they are for rdzv-trainer on GPUs; start its "
                      "agents with --nccl-ids always");
  if (start->mint_count && start->mint_first + start->mint_count <= start->ids)
    mint(s, start->mint_first, start->mint_count);
}

void sup_ids(struct supervisor *s, const struct msg *m) {
  const struct ids *ids = &m->ids;
  if (!is_ours(s, ids->incarnation, ids->round) || s->ids.all) return;
  if (ids->none) {
    struct buf why = BUF_INIT;
    buf_printf(&why, "they could not be minted: %s", ids->text);
    sup_ids_release(s);
    s->ids.none = true;
    hand_out(s, buf_text(&why));
    buf_finish(&why);
    return;
  }
  if (!ids->count) {
    hand_out(s, ids->text);
    return;
  }
  if (ids->count != s->ids.n || m->raw_len != (size_t)ids->count * NCCL_ID_SIZE) {
    sup_say(s, LOG_WARN,
            "the daemon at %s sent %" PRId64 " NCCL ids in %zu bytes, where the round has %" PRId64,
            s->config.endpoint, ids->count, m->raw_len, s->ids.n);
    return;
  }
  s->ids.none = false;
  s->ids.all = bytes_create(m->raw, m->raw_len);
  s->ids.version = ids->version;
  hand_out(s, "");
}

void sup_nccl_up(struct supervisor *s, const struct supervisor_event *ev) {
  if (ev->round == s->round && s->ids.all) sup_ids_release(s);
}

/* Time. ------------------------------------------------------------------------------------------------------------ */

void sup_ids_tick(struct supervisor *s) {
  char why[64];
  for (size_t i = s->ids.n_minting; i-- > 0;) {
    struct minting *m = &s->ids.v[i];
    if (m->ids || s->now_ms < m->by_ms) continue;
    stop_helper(s, m);
    snprintf(why, sizeof why, "rdzv-nccl has not answered in %d s", SUPERVISOR_MINT_MS / 1000);
    tell_failed(s, m, why, false);
  }
}

uint64_t sup_ids_deadline(const struct supervisor *s) {
  uint64_t at_ms = UINT64_MAX;
  for (size_t i = 0; i < s->ids.n_minting; i++)
    if (!s->ids.v[i].ids) at_ms = earliest(at_ms, s->ids.v[i].by_ms);
  return at_ms;
}
