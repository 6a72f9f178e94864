/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for a checkpoint: one request leads to one checkpoint, on all ranks.
 *
 * The agent numbers its requests, and a request stands until its number is answered. rdzv_checkpointed answers the
 * number that rdzv_requested has shown. So a checkpoint that was under way before the program saw the request does not
 * count.
 *
 * With several ranks that is not enough. All are asked, but not at the same instant, and all write a checkpoint as soon
 * as the first rank shares the request. A slower rank has then written its checkpoint before its own request comes, and
 * would make all ranks write a second one. So a request that comes right after a reported checkpoint is answered by
 * that checkpoint and not shown. "Right after" means within a second, or until the program calls rdzv_requested for the
 * first time: a step may take longer than a second, and everything done in between belongs to one step. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>

enum { SAME_REQUEST_MS = 1000 };

static int send_answer(struct rdzv *r, uint64_t deadline) {
  struct rdzv_checkpoints *c = &r->checkpoints;
  struct sdk_checkpointed answer = {.head = rdzv_head_of(SDK_CHECKPOINTED), .checkpoint = c->answered, .step = c->step};
  int rc = rdzv_send_record(r, &answer, sizeof(answer), deadline);
  c->due = rc == -ETIMEDOUT;
  return rc;
}

unsigned rdzv_checkpoint_bit(struct rdzv *r) {
  struct rdzv_checkpoints *c = &r->checkpoints;
  if (!c->can) return 0;
  if (c->asked != c->shown && c->asked != c->answered && c->told_ms &&
      (c->fresh || rdzv_now_ms() - c->told_ms < SAME_REQUEST_MS)) {
    c->shown = c->answered = c->asked;
    c->due = true;
  }
  c->fresh = false;
  c->shown = c->asked;
  if (c->due) send_answer(r, 0);
  return c->shown != c->answered ? RDZV_CHECKPOINT : 0;
}

int rdzv_can_checkpoint(struct rdzv *r) {
  struct sdk_head can = rdzv_head_of(SDK_CAN_CHECKPOINT);
  int rc = r->checkpoints.can ? 0 : rdzv_tell(r, &can, sizeof(can), "can checkpoint");
  if (rc == 0) r->checkpoints.can = !r->alone;
  return rc;
}

int rdzv_checkpointed(struct rdzv *r, uint64_t step) {
  struct rdzv_checkpoints *c = &r->checkpoints;
  if (r->alone) return 0;
  if (rdzv_is_foreign(r)) return rdzv_lost(r, "checkpointed");
  c->step = step;
  c->told_ms = rdzv_now_ms();
  c->fresh = true;
  if (c->shown == c->answered) return 0; /* the request has not come here yet, but it will */
  c->answered = c->shown;
  return rdzv_sent(r, send_answer(r, rdzv_deadline_in(RDZV_LAST_MS)), "checkpointed");
}

int rdzv_saved(struct rdzv *r, uint64_t step) {
  struct sdk_step saved = {.head = rdzv_head_of(SDK_SAVED), .step = step};
  return rdzv_tell(r, &saved, sizeof(saved), "saved");
}

int rdzv_saving(struct rdzv *r, bool on) {
  struct sdk_number saving = {.head = rdzv_head_of(SDK_SAVING), .number = on};
  if (r->alone) return 0;
  if (rdzv_is_foreign(r)) return rdzv_lost(r, "saving"); /* progress has a lock */
  uint64_t deadline = rdzv_deadline_in(RDZV_LAST_MS);
  if (on) rdzv_flush_progress(r, deadline); /* a save may take minutes */
  return rdzv_sent(r, rdzv_send_record(r, &saving, sizeof(saving), deadline), "saving");
}

int rdzv_resumed(struct rdzv *r, uint64_t step) {
  struct sdk_step resumed = {.head = rdzv_head_of(SDK_RESUMED), .step = step};
  return rdzv_tell(r, &resumed, sizeof(resumed), "resumed");
}

uint64_t rdzv_saved_step(const struct rdzv *r) {
  return r->is.saved_step;
}
