/* The next round, in this process.
 *
 * A worker that may stay is asked where others are stopped; it leaves its round by one record, REJOIN, and then it is parked: it holds nothing of the
 * round any more, and for everybody but its agent it is as good as gone. What wakes it is the WELCOME of the next round, on the same connection, which
 * replaces all that the first one said: rank, world, addresses, the store's port, the numbers of checkpoints. Whatever belongs to the old round goes
 * when REJOIN is sent and not later: a store of a round that is over must not be asked, and its keys must not meet those of the next.
 *
 * The wait can be given up and taken up again: REJOIN is sent once. It ends for good when the agent says RDZV_STOP, or is gone; a new round that is void
 * at once is no special case, since its WELCOME carries RDZV_REJOIN, or REQUEST follows, and the caller comes back here. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <string.h>

bool rdzv_must_rejoin(const struct rdzv *r) {
  return r->can_rejoin && !r->parked && (r->requested & RDZV_REJOIN);
}

int rdzv_can_rejoin(struct rdzv *r) {
  struct sdk_can_rejoin can = {.head = rdzv_head_of(SDK_CAN_REJOIN)};
  if (r->alone || r->can_rejoin) return 0;
  int rc = rdzv_send_record(r, &can, sizeof(can), rdzv_deadline_in(RDZV_LAST_MS));
  if (rc == -ETIMEDOUT) return rdzv_fail(r, rc, "can rejoin: the agent does not read");
  if (rc) return rdzv_lost(r, "can rejoin");
  r->can_rejoin = true;
  return 0;
}

/* One line of what may be shown. */
static void copy_reason(char out[SDK_REASON_MAX], const char *reason) {
  size_t n = reason ? strnlen(reason, SDK_REASON_MAX - 1) : 0;
  for (size_t i = 0; i < n; i++) out[i] = reason[i] == '\n' ? ' ' : reason[i];
  out[n] = '\0';
}

static int park(struct rdzv *r, const char *reason, uint64_t deadline) {
  struct sdk_rejoin leave = {.head = rdzv_head_of(SDK_REJOIN), .round = r->is.round};
  copy_reason(leave.text, reason);
  int rc = 0;
  if (r->progress_held) rc = rdzv_send_record(r, &r->progress, sizeof(r->progress), deadline);
  if (!rc) rc = rdzv_send_record(r, &leave, sizeof(leave), deadline);
  if (rc) return rc;
  r->parked = true;
  r->progress_held = false;
  r->progress_sent_ms = 0;
  rdzv_conn_reset(r);
  rdzv_names_free(r);
  return 0;
}

static int take_place(struct rdzv *r, size_t size) {
  bool can = r->checkpoints.can;
  int rc = rdzv_take_welcome(r, size);
  if (rc) return rc;
  r->checkpoints = (struct rdzv_checkpoints){.can = can, .asked = r->is.checkpoint};
  r->parked = false;
  return 0;
}

static int wait_for_place(struct rdzv *r, uint64_t deadline) {
  for (;;) {
    size_t size = 0;
    if (r->requested & RDZV_STOP)
      return rdzv_fail(r, -ECANCELED, "rejoin: the agent has told this worker to stop");
    int type = rdzv_await(r, &size, deadline);
    if (type == SDK_WELCOME) return take_place(r, size);
    if (type < 0) return type;
  }
}

int rdzv_rejoin(struct rdzv *r, const char *reason, int timeout_ms) {
  uint64_t deadline = rdzv_deadline_in(timeout_ms);
  if (r->alone) return rdzv_fail(r, -ENOTSUP, "rejoin: there is no agent, and no next round");
  if (!r->can_rejoin)
    return rdzv_fail(r, -EINVAL, "rejoin: rdzv_can_rejoin must come first, and no rdzv_done after it");
  int rc = r->parked ? 0 : park(r, reason, deadline);
  if (!rc) rc = wait_for_place(r, deadline);
  if (rc == -ETIMEDOUT) return rdzv_fail(r, rc, "rejoin: no next round within %d ms", timeout_ms);
  if (rc == 0 || rc == -ECANCELED || r->fd >= 0) return rc;
  return rdzv_lost(r, "rejoin");
}
