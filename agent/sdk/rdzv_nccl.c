/* ncclUniqueIds from the agent.
 *
 * Ids belong to a round, and this context may see several of them, so all that is said of ids names its round. They are asked for once in a round;
 * from then on the agent tells what it knows: who is waited for, then the ids, or that there will be none. The last word is kept, so a
 * second call is answered from here, and a call that has timed out knows whom to name.
 *
 * That communicators are up is told once in a round, too: who says it again costs nobody anything. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <string.h>

void rdzv_take_ids(struct rdzv *r, size_t size) {
  struct rdzv_nccl *k = &r->nccl;
  struct sdk_ids *said = &r->record.ids;
  if (size < offsetof(struct sdk_ids, ids) || said->count > RDZV_NCCL_IDS_MAX ||
      size != offsetof(struct sdk_ids, ids) + (size_t)said->count * RDZV_NCCL_ID_SIZE || said->code > 0)
    return; /* nothing that we could use: the wait for it says so in the end */
  said->text[sizeof(said->text) - 1] = '\0';
  k->round = said->round;
  k->code = said->code;
  k->version = said->version;
  k->count = said->count;
  memcpy(k->text, said->text, sizeof(k->text));
  memcpy(k->ids, said->ids, (size_t)said->count * RDZV_NCCL_ID_SIZE);
}

static int ask(struct rdzv *r, uint64_t deadline) {
  struct sdk_ids_wanted want = {.head = rdzv_head_of(SDK_IDS_WANTED), .round = r->is.round};
  if (r->nccl.asked == r->is.round) return 0;
  int rc = rdzv_send_record(r, &want, sizeof(want), deadline);
  if (rc == -ETIMEDOUT || rc == -EAGAIN) return rdzv_fail(r, -ETIMEDOUT, "nccl ids: the agent does not read");
  if (rc) return rdzv_lost(r, "nccl ids");
  r->nccl.asked = r->is.round;
  return 0;
}

/* Until the last word is spoken. */
static int wait_for_ids(struct rdzv *r, uint64_t deadline) {
  const struct rdzv_nccl *k = &r->nccl;
  while (k->round != r->is.round || (!k->count && !k->code)) {
    size_t size = 0;
    if (rdzv_must_rejoin(r))
      return rdzv_fail(r, -ECANCELED,
                       "nccl ids: the round is being ended: rdzv_rejoin waits for the next one");
    int type = rdzv_await(r, &size, deadline);
    bool told = k->round == r->is.round && k->text[0];
    if (type == -ETIMEDOUT)
      return rdzv_fail(r, type, "nccl ids: they did not come in time%s%s", told ? ": " : "",
                       told ? k->text : "; the agent did not say who is waited for");
    if (type < 0) return rdzv_lost(r, "nccl ids");
  }
  return k->code ? rdzv_fail(r, k->code, "nccl ids: %s", k->text) : 0;
}

int rdzv_nccl_ids(struct rdzv *r, void *ids, size_t max, int *n, int *nccl_version, int timeout_ms) {
  uint64_t deadline = rdzv_deadline_in(timeout_ms);
  if (r->alone)
    return rdzv_fail(
        r, -ENOTSUP,
        "nccl ids: this program runs without an agent, and nobody mints them: ncclGetUniqueId does");
  int rc = ask(r, deadline);
  if (!rc) rc = wait_for_ids(r, deadline);
  if (rc) return rc;
  size_t size = (size_t)r->nccl.count * RDZV_NCCL_ID_SIZE;
  if (size > max)
    return rdzv_fail(r, -EMSGSIZE, "nccl ids: there are %u, and %zu bytes of room for them are %zu too few",
                     r->nccl.count, max, size - max);
  memcpy(ids, r->nccl.ids, size);
  *n = (int)r->nccl.count;
  if (nccl_version) *nccl_version = r->nccl.version;
  return 0;
}

int rdzv_nccl_up(struct rdzv *r) {
  if (r->alone) return 0;
  struct sdk_nccl_up up = {.head = rdzv_head_of(SDK_NCCL_UP), .round = r->is.round};
  int rc = rdzv_send_record(r, &up, sizeof(up), rdzv_deadline_in(RDZV_LAST_MS));
  if (rc == -ETIMEDOUT) return rdzv_fail(r, rc, "nccl up: the agent does not read");
  return rc ? rdzv_lost(r, "nccl up") : 0;
}
