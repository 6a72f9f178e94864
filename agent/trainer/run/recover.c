/* SPDX-License-Identifier: Apache-2.0 */
/* --recovery inplace: when another rank is lost, this rank keeps its process, its device and its weights.
 *
 *   lost      A collective reports a lost rank, or the agent asks to leave the round (RDZV_REJOIN).
 *   leave     This rank blocks its updates, tells the other ranks, and queues nothing more. The communicator stays: a
 *             rank that has not left yet may be in a collective with this one (gpu/nccl_comm.c).
 *   rejoin    The agent gives this worker its place in the next round.
 *   end       Each other rank of the last round is dead or waits now. Only now what is queued is cut off. The
 *             optimizer's count behind each step shows which steps are done.
 *   agree     All ranks exchange their steps, and the rank with the highest gives its state to all.
 *
 * Ranks leave at slightly different steps. The one ahead has the sums of all ranks, because nothing was cut off before
 * all had left. So its state is complete and nothing is lost. Only if no rank has a state do they resume from a
 * checkpoint.
 *
 * A rank that the next round leaves out waits too, and is stopped only when that round runs. Until then its device may
 * be in a collective of the last round, which goes on when the others cut theirs off, and stores into their memory:
 * NCCL maps the buffers of a captured collective on all ranks of a node. So no round uses the gradients' memory of the
 * round before. */

#include "agent/trainer/run/trainer.h"

#include "common/buf.h"
#include "common/mem.h"
#include "common/system/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REJOIN_SLICE_MS = 500, REASON_MAX = 200 };

/* The message that the ranks exchange. */
struct standing {
  uint64_t step;
  uint64_t has_state; /* 0: this rank has no state yet */
};

/* For the metrics, in microseconds. */
struct times {
  uint64_t began, assigned, ended, joined;
};

static bool in_place(const struct trainer *t) {
  return t->o.recovery == RECOVERY_INPLACE && !rdzv_alone(t->rdzv);
}

void trainer_offer_rejoin(struct trainer *t) {
  if (in_place(t) && rdzv_can_rejoin(t->rdzv)) log_warn("%s", rdzv_error(t->rdzv));
}

int trainer_asked_to_leave(struct trainer *t, struct err *e) {
  return with_exit(t, TRAINER_LOST, trainer_leave_error(t->requested, e));
}

bool trainer_can_recover(const struct trainer *t, int rc) {
  if (rc == 0 || !t->rdzv) return false;
  bool lost = rc == -ECONNRESET || rc == -ETIMEDOUT || rc == -ECONNABORTED || rc == -ECANCELED || rc == -ECONNREFUSED;
  bool others = t->exit == TRAINER_LOST || (t->exit == TRAINER_STOPPED && rc == -ECANCELED);
  bool stops = *t->sigterm || (rdzv_requested(t->rdzv) & RDZV_STOP);
  return t->c && t->model.params && in_place(t) && lost && others && !stops;
}

int trainer_agree(struct trainer *t, struct err *e) {
  struct standing mine = {.step = t->done.step, .has_state = t->has_state};
  struct standing *all = xcalloc((size_t)t->world, sizeof *all);
  int root = -1, rc = in_place(t) ? trainer_exchange(t, "rdzv-trainer.standing", &mine, sizeof mine, all, e) : 0;
  bool all_equal = true;
  for (int i = 0; rc == 0 && i < t->world; i++)
    if (all[i].has_state && (root < 0 || all[i].step > all[root].step)) root = i;
  for (int i = 0; root >= 0 && i < t->world; i++) all_equal &= all[i].has_state && all[i].step == all[root].step;
  t->behind = root >= 0 && (!mine.has_state || mine.step != all[root].step);
  free(all);
  if (rc == 0 && root < 0) rc = trainer_resume(t, e);

  if (rc == 0 && root >= 0 && !all_equal) { /* like a checkpoint from the root, with the same checks */
    struct buf bytes = BUF_INIT;
    if (t->rank == root) {
      rc = trainer_pack(t, &bytes, e);
    } else {
      buf_reserve(&bytes, trainer_packed_size(t));
      bytes.len = trainer_packed_size(t);
    }
    if (rc == 0) rc = with_coll_exit(t, trainer_broadcast(t, "sending the state from", &bytes, root, e));
    if (rc == 0 && t->behind) rc = trainer_unpack(t, bytes.data, bytes.len, "the state of another rank", e);
    buf_finish(&bytes);
  }
  if (rc) return rc;
  t->queued = t->done;
  t->perm = sampler_epoch(&t->sampler, t->queued.epoch);
  t->has_state = true;
  if (rdzv_resumed(t->rdzv, t->done.step)) log_warn("%s", rdzv_error(t->rdzv));
  return 0;
}

/* Recovering. ------------------------------------------------------------------------------------------------------ */

static int report_recovery(struct trainer *t, const struct times *at, struct err *e) {
  uint64_t now = monotonic_us();
  t->read_us = now;
  t->rate.since_us = now;
  t->rate.samples = t->samples;
  t->rate.steps = t->steps;
  t->device_ns = 0;
  if (t->rank == 0)
    log_info("round %u: continuing in place at step %" PRIu64 " with %d rank%s, %.0f ms after leaving the round before",
             rdzv_round(t->rdzv), t->done.step, t->world, t->world == 1 ? "" : "s", (double)(now - at->began) / 1000);
  metrics_begin(&t->metrics, "recover");
  metrics_uint(&t->metrics, "step", t->done.step);
  metrics_uint(&t->metrics, "round", rdzv_round(t->rdzv));
  metrics_uint(&t->metrics, "world", (uint64_t)t->world);
  metrics_real(&t->metrics, "assigned_ms", (double)(at->assigned - at->began) / 1000);
  metrics_real(&t->metrics, "left_ms", (double)(at->ended - at->assigned) / 1000);
  metrics_real(&t->metrics, "ring_ms", (double)(at->joined - at->ended) / 1000);
  metrics_real(&t->metrics, "state_ms", (double)(now - at->joined) / 1000);
  metrics_real(&t->metrics, "ms", (double)(now - at->began) / 1000);
  return with_exit(t, TRAINER_FILES, metrics_end(&t->metrics, e));
}

static int recover_once(struct trainer *t, const struct err *why, struct times *at, struct err *e) {
  char text[REASON_MAX];
  /* Why this rank left, for the agent. Empty if the agent asked for it. */
  if (why->code == -ECANCELED)
    text[0] = 0;
  else if (t->coll && t->coll->lost >= 0)
    snprintf(text, REASON_MAX, "lost contact with rank %d", t->coll->lost);
  else
    snprintf(text, REASON_MAX, "%.*s", REASON_MAX - 1, why->text);
  compute_block_updates(t->c, true);
  coll_abort(t->coll, text[0] ? text : "the round ends");
  int rc = rdzv_rejoin(t->rdzv, text, 0);
  while (rc == -ETIMEDOUT) rc = rdzv_rejoin(t->rdzv, NULL, REJOIN_SLICE_MS);
  at->assigned = monotonic_us();
  if (rc) {
    t->exit = *t->sigterm || rc == -ECANCELED ? TRAINER_STOPPED : TRAINER_LOST;
    return err_set(e, rc == -ECANCELED ? -EINTR : rc, "%s",
                   *t->sigterm ? "stopped while waiting for the next round" : rdzv_error(t->rdzv));
  }

  /* No rank uses the collectives of the last round now. */
  coll_cut(t->coll);
  rc = with_exit(t, TRAINER_SYSTEM, trainer_await_queue(t, e));
  if (rc == 0) {
    slots_drop_graphs(&t->slots); /* they hold parts of the collectives, so they go before coll_destroy */
    coll_destroy(t->coll);
    t->coll = NULL;
    if (t->c->held) /* it has blocked the updates for good, and the device may still write to the gradients */
      rc = with_exit(
          t, TRAINER_SYSTEM,
          err_set(e, -EIO, "the collectives of the last round did not end; this process ends, to start again"));
  }
  if (rc == 0) {
    compute_block_updates(t->c, false);
    rc = trainer_discard_queued(t, e);
    /* The requests are repeated in the next round. Those of the steps just read go too: others read them before. */
    t->stop = t->checkpoint = t->clock = false;
    t->requested = 0;
  }
  at->ended = monotonic_us();
  if (rc == 0) rc = trainer_enter_round(t, e);
  if (rc == 0) rc = trainer_join_ranks(t, e);
  at->joined = monotonic_us();
  return rc ? rc : trainer_agree(t, e);
}

int trainer_recover(struct trainer *t, int rc, struct err *e) {
  struct times at = {.began = monotonic_us()};
  if (t->rank == 0 && rc != -ECANCELED) log_info("%s; leaving round %u for the next one", e->text, rdzv_round(t->rdzv));
  do {
    struct err why = *e;
    why.code = rc;
    *e = (struct err)ERR_INIT;
    rc = recover_once(t, &why, &at, e);
  } while (trainer_can_recover(t, rc));
  return rc ? rc : report_recovery(t, &at, e);
}
