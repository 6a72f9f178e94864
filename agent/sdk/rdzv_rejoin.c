/* SPDX-License-Identifier: Apache-2.0 */
/* The next round, in this process.
 *
 * A worker that can rejoin is asked where others are stopped. It leaves its round with one record, REJOIN, and is then
 * parked: it no longer holds anything of the round. The WELCOME of the next round wakes it, on the same connection, and
 * replaces everything that the first WELCOME set: rank, world, addresses, the store's port, the numbers of checkpoints.
 * The store connection and the names of the old round are dropped when REJOIN is sent, because its keys must not meet
 * those of the next round.
 *
 * A call that times out or is interrupted can be repeated: REJOIN is sent once. The wait ends for good with RDZV_STOP
 * or the loss of the agent. A new round that ends at once needs no special case: its WELCOME carries RDZV_REJOIN, or
 * REQUEST follows, and the program comes back here. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <string.h>

bool rdzv_must_rejoin(const struct rdzv *r) {
  return r->can_rejoin && !r->parked && (r->requested & RDZV_REJOIN);
}

int rdzv_can_rejoin(struct rdzv *r) {
  struct sdk_head can = rdzv_head_of(SDK_CAN_REJOIN);
  int rc = r->can_rejoin ? 0 : rdzv_tell(r, &can, sizeof(can), "can rejoin");
  if (rc == 0) r->can_rejoin = !r->alone;
  return rc;
}

static int park(struct rdzv *r, const char *reason, uint64_t deadline) {
  struct sdk_rejoin leave = {.head = rdzv_head_of(SDK_REJOIN), .round = r->is.round};
  /* As one line. */
  size_t n = reason ? strnlen(reason, SDK_REASON_MAX - 1) : 0;
  for (size_t i = 0; i < n; i++) leave.text[i] = reason[i] == '\n' ? ' ' : reason[i];
  leave.text[n] = '\0';
  if (rdzv_is_foreign(r)) return -EINVAL;
  rdzv_set_parked(r, true); /* before REJOIN, so that no report of another thread follows it */
  int rc = rdzv_flush_progress(r, deadline);
  if (!rc) rc = rdzv_send_record(r, &leave, sizeof(leave), deadline);
  if (rc) return rdzv_set_parked(r, false), rc;
  rdzv_conn_reset(r);
  rdzv_names_free(r);
  return 0;
}

static int wait_for_place(struct rdzv *r, uint64_t deadline) {
  for (;;) {
    size_t size = 0;
    if (r->requested & RDZV_STOP) return rdzv_fail(r, -ECANCELED, "rejoin: the agent asks this worker to stop");
    int type = rdzv_await(r, &size, deadline);
    if (type == SDK_WELCOME) {
      bool can = r->checkpoints.can;
      int rc = rdzv_take_welcome(r, size);
      if (rc) return rc;
      r->checkpoints = (struct rdzv_checkpoints){.can = can, .asked = r->is.checkpoint};
      rdzv_set_parked(r, false);
      return 0;
    }
    if (type < 0) return type;
  }
}

int rdzv_rejoin(struct rdzv *r, const char *reason, int timeout_ms) {
  uint64_t deadline = rdzv_deadline_in(timeout_ms);
  rdzv_heed_flag(r, true);
  if (r->alone) return rdzv_fail(r, -ENOTSUP, "rejoin: this program runs without an agent, so there is no next round");
  if (!r->can_rejoin) return rdzv_fail(r, -EINVAL, "rejoin: call rdzv_can_rejoin first, and not after rdzv_done");
  int rc = r->parked ? 0 : park(r, reason, deadline);
  if (!rc) rc = wait_for_place(r, deadline);
  if (rc == -EINTR) return rdzv_fail(r, rc, "rejoin: interrupted");
  if (rc == -ETIMEDOUT) return rdzv_fail(r, rc, "rejoin: no next round within %d ms", timeout_ms);
  return rc && rc != -ECANCELED && rdzv_is_lost(r) ? rdzv_lost(r, "rejoin") : rc;
}
