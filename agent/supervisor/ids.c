/* SPDX-License-Identifier: Apache-2.0 */
/* The round's ncclUniqueIds on this node: the ids that it mints for all nodes, and the ids that it gives its workers.
 *
 *   START, MINT --> SUP_MINT --> SUP_MINTED --> MINTED to the daemon          IDS --> SUP_IDS, to the workers
 *                          '--> SUP_MINT_FAILED, or no answer in time --> MINTED with the reason
 *
 * A helper process mints (agent/nccl/rdzv-nccl.c). An id is an address at which its maker listens, so the helper must
 * live as long as ranks may connect to it. It ends with the round, or when a worker here reports that its communicators
 * are up (rdzv_nccl_up): a communicator is up on one rank only after all ranks have met.
 *
 * Nothing is sent twice without a request. The daemon repeats MINT to a node that comes back and owes an answer, and
 * after a restart to each node that it needs ids from. Known ids are sent at once: those of the helper, or those that
 * IDS had brought for all. If MINT asks for other ids than before, the daemon has forgotten the earlier ones and no
 * rank has used them. Their helpers are stopped. */

#include "agent/supervisor/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/mem.h"

/* Helpers. --------------------------------------------------------------------------------------------------------- */

static void drop_minting(struct supervisor *s, struct minting *m) {
  bytes_unref(m->ids);
  *m = s->ids.v[--s->ids.n_minting];
}

static void start_helper(struct supervisor *s, const struct minting *m) {
  struct supervisor_effect *e = sup_effect(s, SUP_MINT);
  e->round = (uint32_t)s->round.number;
  e->mint.helper = m->number;
  e->mint.count = (uint32_t)m->count;
}

static void stop_helper(struct supervisor *s, const struct minting *m) {
  if (!s->ids.spawned) return; /* it was not started */
  struct supervisor_effect *e = sup_effect(s, SUP_UNMINT);
  e->round = (uint32_t)s->round.number;
  e->unmint.helper = m->number;
}

static void cancel_minting(struct supervisor *s, struct minting *m) {
  stop_helper(s, m);
  drop_minting(s, m);
}

void sup_ids_release(struct supervisor *s) {
  while (s->ids.n_minting) cancel_minting(s, &s->ids.v[s->ids.n_minting - 1]);
}

void sup_ids_clear(struct supervisor *s) {
  while (s->ids.n_minting) drop_minting(s, &s->ids.v[s->ids.n_minting - 1]);
  bytes_unref(s->ids.all);
  uint32_t number = s->ids.last_number;
  s->ids = (struct ids_of_round){.last_number = number};
}

static struct minting *find_minting(struct supervisor *s, uint32_t helper) {
  for (size_t i = 0; i < s->ids.n_minting; i++)
    if (s->ids.v[i].number == helper) return &s->ids.v[i];
  return NULL;
}

/* Telling the daemon. ---------------------------------------------------------------------------------------------- */

static void init_minted(const struct supervisor *s, int64_t first, int64_t count, struct msg *m) {
  msg_init(m, MSG_MINTED);
  m->minted.incarnation = s->round.incarnation;
  m->minted.round = s->round.number;
  m->minted.first = first;
  m->minted.count = count;
}

static void send_minted(struct supervisor *s, int64_t first, int64_t count, int64_t version, const char *raw) {
  struct msg m;
  init_minted(s, first, count, &m);
  m.minted.version = version;
  m.raw = raw;
  m.raw_len = (size_t)count * NCCL_ID_SIZE;
  sup_send(s, &m);
}

static void send_minted_ids(struct supervisor *s, const struct minting *m) {
  send_minted(s, m->first, m->count, m->version, m->ids->data);
}

/* The log need not mention a node without NCCL: the daemon asks the next one. If every node fails, the workers that
 * want ids get the reason. */
static void send_mint_failure(struct supervisor *s, struct minting *minting, const char *why, bool lasting) {
  struct msg m;
  sup_log(s, lasting ? LOG_DEBUG : LOG_WARN, "this node could not mint NCCL ids for round %" PRId64 ": %s",
          s->round.number, why);
  init_minted(s, minting->first, minting->count, &m);
  drop_minting(s, minting);
  m.minted.text = why;
  m.minted.lasting = lasting;
  sup_send(s, &m);
}

/* Minting. --------------------------------------------------------------------------------------------------------- */

static void start_minting(struct supervisor *s, int64_t first, int64_t count) {
  for (size_t i = s->ids.n_minting; i-- > 0;) {
    struct minting *m = &s->ids.v[i];
    if (m->first == first && m->count == count) { /* they are there, or on their way */
      if (m->ids) send_minted_ids(s, m);
      return;
    }
    if (m->first < first + count && first < m->first + m->count) cancel_minting(s, m);
  }
  struct minting *m = &s->ids.v[s->ids.n_minting++]; /* shares do not overlap, so there is room for all */
  *m = (struct minting){
      .first = first, .count = count, .number = ++s->ids.last_number, .by_ms = s->now_ms + SUPERVISOR_MINT_MS};
  if (s->ids.spawned) start_helper(s, m);
}

/* START may be kept for a while before its workers are spawned. */
void sup_ids_spawned(struct supervisor *s) {
  s->ids.spawned = true;
  for (size_t i = 0; i < s->ids.n_minting; i++) start_helper(s, &s->ids.v[i]);
}

void sup_mint(struct supervisor *s, const struct supervisor_event *ev) {
  const struct mint *ask = &ev->msg->mint;
  if (ask->first + ask->count > s->ids.n) return;
  if (s->ids.all)
    send_minted(s, ask->first, ask->count, s->ids.version, s->ids.all->data + ask->first * NCCL_ID_SIZE);
  else
    start_minting(s, ask->first, ask->count);
}

void sup_minted(struct supervisor *s, const struct supervisor_event *ev) {
  struct minting *m = find_minting(s, ev->minted.helper);
  if (!m || m->ids) return;
  m->ids = bytes_create(ev->minted.ids, (size_t)m->count * NCCL_ID_SIZE);
  m->version = ev->minted.version;
  send_minted_ids(s, m);
}

void sup_mint_failed(struct supervisor *s, const struct supervisor_event *ev) {
  struct minting *m = find_minting(s, ev->mint_failed.helper);
  const char *why = ev->text ? ev->text : "?";
  if (!m) return;
  if (!s->ids.all) {
    send_mint_failure(s, m, why, ev->mint_failed.lasting);
    return;
  }
  sup_log(s, LOG_WARN, "%s; ranks that have not connected to its NCCL ids yet can no longer do so", why);
  drop_minting(s, m);
}

/* Ids for our workers. --------------------------------------------------------------------------------------------- */

static void give_ids(struct supervisor *s, const char *text) {
  struct supervisor_effect *e = sup_effect(s, SUP_IDS);
  e->round = (uint32_t)s->round.number;
  e->bytes = s->ids.all ? bytes_ref(s->ids.all) : NULL;
  e->ids.version = s->ids.version;
  e->ids.count = s->ids.none ? 0 : (uint32_t)s->ids.n;
  e->text = xstrdup(text);
}

void sup_ids_start(struct supervisor *s, const struct start *start) {
  s->ids.n = start->ids;
  if (start->ids)
    give_ids(s, start->minters);
  else
    give_ids(
        s,
        s->config.settings.nccl_ids == NCCL_IDS_NEVER
            ? "this job has none: its agents run with --nccl-ids never"
            : "this job has none: with --nccl-ids auto they are for rdzv-trainer on GPUs; start its agents with --nccl-ids always");
  if (start->mint_count && start->mint_first + start->mint_count <= start->ids)
    start_minting(s, start->mint_first, start->mint_count);
}

void sup_ids(struct supervisor *s, const struct supervisor_event *ev) {
  const struct msg *m = ev->msg;
  const struct ids *ids = &m->ids;
  if (s->ids.all) return;
  if (ids->none) {
    struct buf why = BUF_INIT;
    buf_printf(&why, "they could not be minted: %s", ids->text);
    sup_ids_release(s);
    s->ids.none = true;
    give_ids(s, buf_text(&why));
    buf_finish(&why);
    return;
  }
  if (!ids->count) {
    give_ids(s, ids->text);
    return;
  }
  if (ids->count != s->ids.n || m->raw_len != (size_t)ids->count * NCCL_ID_SIZE) {
    sup_log(s, LOG_WARN, "the daemon at %s sent %" PRId64 " NCCL ids in %zu bytes, where the round has %" PRId64,
            sup_daemon_name(s), ids->count, m->raw_len, s->ids.n);
    return;
  }
  s->ids.none = false;
  s->ids.all = bytes_create(m->raw, m->raw_len);
  s->ids.version = ids->version;
  give_ids(s, "");
}

void sup_nccl_up(struct supervisor *s, const struct supervisor_event *ev) {
  if (s->ids.all) sup_ids_release(s);
}

/* Time. ------------------------------------------------------------------------------------------------------------ */

void sup_ids_tick(struct supervisor *s) {
  char why[64];
  for (size_t i = s->ids.n_minting; i-- > 0;) {
    struct minting *m = &s->ids.v[i];
    if (m->ids || s->now_ms < m->by_ms) continue;
    stop_helper(s, m);
    snprintf(why, sizeof why, "rdzv-nccl did not answer within %d s", SUPERVISOR_MINT_MS / 1000);
    send_mint_failure(s, m, why, false);
  }
}

uint64_t sup_ids_deadline(const struct supervisor *s) {
  uint64_t at_ms = UINT64_MAX;
  for (size_t i = 0; i < s->ids.n_minting; i++)
    if (!s->ids.v[i].ids) at_ms = earliest(at_ms, s->ids.v[i].by_ms);
  return at_ms;
}
