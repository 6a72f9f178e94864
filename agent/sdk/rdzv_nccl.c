/* SPDX-License-Identifier: Apache-2.0 */
/* ncclUniqueIds from the agent.
 *
 * Ids belong to a round, and a context may see several rounds, so each record about ids names its round. This library
 * asks once per round. From then on the agent sends its news: the nodes that are missing, then the ids or the reason
 * why there are none. The last record is kept. So a second call is answered from here, and a call that times out can
 * name the missing nodes. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <string.h>

void rdzv_take_ids(struct rdzv *r, size_t size) {
  struct rdzv_nccl *k = &r->nccl;
  struct sdk_ids *record = &r->record.ids;
  if (size < offsetof(struct sdk_ids, ids) || record->count > RDZV_NCCL_IDS_MAX ||
      size < offsetof(struct sdk_ids, ids) + (size_t)record->count * RDZV_NCCL_ID_SIZE || record->code > 0)
    return; /* unusable; the wait for ids then times out */
  record->text[sizeof(record->text) - 1] = '\0';
  k->round = record->round;
  k->code = record->code;
  k->version = record->version;
  k->count = record->count;
  memcpy(k->text, record->text, sizeof(k->text));
  memcpy(k->ids, record->ids, (size_t)record->count * RDZV_NCCL_ID_SIZE);
}

/* Until the ids are there, or it is certain that there will be none. */
static int wait_for_ids(struct rdzv *r, uint64_t deadline) {
  const struct rdzv_nccl *k = &r->nccl;
  while (k->round != r->is.round || (!k->count && !k->code)) {
    size_t size = 0;
    if (rdzv_must_rejoin(r))
      return rdzv_fail(r, -ECANCELED, "nccl ids: the round is ending; rdzv_rejoin waits for the next one");
    int type = rdzv_await(r, &size, deadline);
    if (type == -EINTR) return rdzv_fail(r, type, "nccl ids: interrupted");
    bool told = k->round == r->is.round && k->text[0];
    if (type == -ETIMEDOUT)
      return rdzv_fail(r, type, "nccl ids: they did not come in time%s%s", told ? ": " : "",
                       told ? k->text : "; the agent did not report who is missing");
    if (type < 0) return rdzv_lost(r, "nccl ids");
  }
  return k->code ? rdzv_fail(r, k->code, "nccl ids: %s", k->text) : 0;
}

int rdzv_nccl_ids(struct rdzv *r, void *ids, size_t max, int *n, int *nccl_version, int timeout_ms) {
  uint64_t deadline = rdzv_deadline_in(timeout_ms);
  rdzv_heed_flag(r, true);
  if (r->alone) return rdzv_fail(r, -ENOTSUP, "nccl ids: this program runs without an agent; use ncclGetUniqueId");
  int rc = 0;
  if (r->nccl.asked != r->is.round) {
    struct sdk_number want = {.head = rdzv_head_of(SDK_IDS_WANTED), .number = r->is.round};
    rc = rdzv_sent(r, rdzv_send_record(r, &want, sizeof(want), deadline), "nccl ids");
    if (!rc) r->nccl.asked = r->is.round;
  }
  if (!rc) rc = wait_for_ids(r, deadline);
  if (rc) return rc;
  size_t size = (size_t)r->nccl.count * RDZV_NCCL_ID_SIZE;
  if (size > max)
    return rdzv_fail(r, -EMSGSIZE, "nccl ids: %u ids take %zu bytes, and there is room for %zu", r->nccl.count, size,
                     max);
  memcpy(ids, r->nccl.ids, size);
  *n = (int)r->nccl.count;
  if (nccl_version) *nccl_version = r->nccl.version;
  return 0;
}

int rdzv_nccl_up(struct rdzv *r) {
  struct sdk_number up = {.head = rdzv_head_of(SDK_NCCL_UP), .number = r->is.round};
  return rdzv_tell(r, &up, sizeof(up), "nccl up");
}
