/* --recovery inplace: when another rank is gone, this one keeps its process, its device and its weights.
 *
 *   lost      a collective says that a rank is gone, or the agent asks to leave the round (RDZV_REJOIN)
 *   leave     updates that wait for sums that will never be whole are not made; the ring is told and closed; which steps were done is read from
 *             what the optimizer had counted behind each; those are reported as if nothing had happened
 *   rejoin    the agent hears that this worker waits, and gives it its place in the next round
 *   enter     rank, world, token; buffers for a larger share where the world has become smaller; a new ring
 *   agree     everybody tells its step; who has the highest gives its state to all
 *
 * Ranks leave at slightly different places: one may have made the update of a step in which another one lost its neighbour. The one ahead has the sums of
 * all, so its state is whole, and nothing is lost; those at the same step have the same bytes. Who was started anew has nothing, and takes what it is given.
 * Only if nobody has anything (the first round, or all were started anew) there is the checkpoint. So every rank must go the same way, and --recovery
 * must be the same for all of them: the exchange of steps says so by its name.
 *
 * Any of this may fail for the same reason as the step did, because yet another rank is gone: then it begins anew. What cannot be mended so (no memory,
 * no agent, told to stop) ends the process as without it. */

#include "agent/trainer/run/trainer.h"

#include "common/buf.h"
#include "common/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REJOIN_SLICE_MS = 500 };

/* What every rank tells. */
struct standing {
  uint64_t step;
  uint64_t has_state; /* 0: it has begun nothing yet */
};

/* For the metrics, in microseconds. */
struct times {
  uint64_t began, left, assigned, joined;
};

static bool in_place(const struct trainer *t) {
  return t->o.recovery == RECOVERY_INPLACE && !rdzv_alone(t->rdzv);
}

static bool told_to_stop(const struct trainer *t) {
  return *t->sigterm || (rdzv_requested(t->rdzv) & RDZV_STOP);
}

void trainer_offer_rejoin(struct trainer *t) {
  if (in_place(t) && rdzv_can_rejoin(t->rdzv)) log_warn("%s", rdzv_error(t->rdzv));
}

int trainer_asked_to_leave(struct trainer *t, struct err *e) {
  if (t->asked & RDZV_LOST)
    return trainer_blame(t, TRAINER_LOST, err_set(e, -EPIPE, "lost contact with the agent"));
  if (!(t->asked & RDZV_REJOIN)) return 0;
  return trainer_blame(t, TRAINER_LOST, err_set(e, -ECANCELED, "the agent ends this round"));
}

bool trainer_can_recover(const struct trainer *t, int rc) {
  if (rc == 0 || !t->rdzv) return false;
  bool lost =
      rc == -ECONNRESET || rc == -ETIMEDOUT || rc == -ECONNABORTED || rc == -ECANCELED || rc == -ECONNREFUSED;
  bool others = t->exit == TRAINER_LOST || (t->exit == TRAINER_STOPPED && rc == -ECANCELED);
  return t->rdzv && t->c && t->model.params && in_place(t) && lost && others && !told_to_stop(t);
}

/* Leaving. --------------------------------------------------------------------------------------------------------- */

static int leave(struct trainer *t, const char *why, struct err *e) {
  compute_poison(t->c, true);
  if (t->coll) coll_abort(t->coll, why); /* nothing on the device comes to its end before */
  int rc = trainer_blame(t, TRAINER_SYSTEM, trainer_settle(t, e));
  slots_drop_graphs(&t->slots); /* what they have of the collectives must go before coll_destroy */
  compute_poison(t->c, false);
  coll_destroy(t->coll);
  t->coll = NULL;
  if (rc == 0) rc = trainer_discard(t, e);
  t->stop = t->checkpoint = t->clock = false; /* who asked asks again in the next round */
  t->asked = 0;
  return rc;
}

static int rejoin(struct trainer *t, const char *why, struct err *e) {
  int rc = rdzv_rejoin(t->rdzv, why, 0);
  while (rc == -ETIMEDOUT && !*t->sigterm) rc = rdzv_rejoin(t->rdzv, NULL, REJOIN_SLICE_MS);
  if (rc == 0) return 0;
  t->exit = *t->sigterm || rc == -ECANCELED ? TRAINER_STOPPED : TRAINER_LOST;
  return err_set(e,
                 rc == -ETIMEDOUT   ? -EINTR
                 : rc == -ECANCELED ? -EINTR
                                    : rc,
                 "%s", *t->sigterm ? "told to stop while it waited for the next round" : rdzv_error(t->rdzv));
}

/* Agreeing. -------------------------------------------------------------------------------------------------------- */

static int compare(struct trainer *t, int *root, bool *all_equal, struct err *e) {
  struct standing mine = {.step = t->done.step, .has_state = t->begun};
  struct standing *all = calloc((size_t)t->world, sizeof *all);
  *root = -1;
  *all_equal = true;
  if (!all) return trainer_blame(t, TRAINER_SYSTEM, err_set(e, -ENOMEM, "out of memory"));
  int rc =
      rdzv_exchange(t->rdzv, "rdzv-trainer.standing", &mine, sizeof mine, all, (int)t->o.coll_timeout_ms);
  if (rc) trainer_blame(t, TRAINER_LOST, err_set(e, rc, "%s", rdzv_error(t->rdzv)));
  for (int i = 0; rc == 0 && i < t->world; i++)
    if (all[i].has_state && (*root < 0 || all[i].step > all[*root].step)) *root = i;
  for (int i = 0; rc == 0 && *root >= 0 && i < t->world; i++)
    *all_equal &= all[i].has_state && all[i].step == all[*root].step;
  t->behind = rc == 0 && *root >= 0 && (!mine.has_state || mine.step != all[*root].step);
  free(all);
  return rc;
}

/* As from a checkpoint that the root has, and with the same checks. */
static int give_state(struct trainer *t, int root, struct err *e) {
  struct buf bytes = BUF_INIT;
  size_t size = trainer_packed_size(t);
  int rc = 0;
  if (t->rank == root) {
    rc = trainer_pack(t, &bytes, e);
  } else {
    buf_reserve(&bytes, size);
    bytes.len = size;
  }
  if (rc == 0) rc = trainer_blame_coll(t, coll_broadcast(t->coll, bytes.data, size, root, e));
  if (rc == 0 && t->behind) rc = trainer_unpack(t, bytes.data, bytes.len, "the state of another rank", e);
  buf_finish(&bytes);
  return rc;
}

int trainer_agree(struct trainer *t, struct err *e) {
  int root = -1, rc = 0;
  bool all_equal = true;
  if (in_place(t)) rc = compare(t, &root, &all_equal, e);
  if (rc == 0 && root < 0) rc = trainer_resume(t, e);
  if (rc == 0 && root >= 0 && !all_equal) rc = give_state(t, root, e);
  if (rc) return rc;
  t->queued = t->done;
  t->perm = sampler_epoch(&t->sampler, t->queued.epoch);
  t->begun = true;
  return 0;
}

/* All of it. ------------------------------------------------------------------------------------------------------- */

static int report(struct trainer *t, const struct times *at, struct err *e) {
  uint64_t now = trainer_now_us();
  t->read_us = now;
  t->rate.since_us = now;
  t->rate.samples = t->samples;
  t->rate.steps = t->steps;
  t->device_ns = 0;
  if (t->rank == 0)
    log_info("round %u: in place at step %" PRIu64 " with %d rank%s, %.0f ms after the round was left",
             rdzv_round(t->rdzv), t->done.step, t->world, t->world == 1 ? "" : "s",
             (double)(now - at->began) / 1000);
  metrics_begin(&t->metrics, "recover");
  metrics_uint(&t->metrics, "step", t->done.step);
  metrics_uint(&t->metrics, "round", rdzv_round(t->rdzv));
  metrics_uint(&t->metrics, "world", (uint64_t)t->world);
  metrics_real(&t->metrics, "left_ms", (double)(at->left - at->began) / 1000);
  metrics_real(&t->metrics, "assigned_ms", (double)(at->assigned - at->left) / 1000);
  metrics_real(&t->metrics, "ring_ms", (double)(at->joined - at->assigned) / 1000);
  metrics_real(&t->metrics, "state_ms", (double)(now - at->joined) / 1000);
  metrics_real(&t->metrics, "ms", (double)(now - at->began) / 1000);
  return trainer_blame(t, TRAINER_FILES, metrics_end(&t->metrics, e));
}

/* Why this one left, for the agent: short, and only where nobody asked for it. */
static void reason(const struct trainer *t, int rc, char out[64]) {
  if (t->coll && t->coll->lost >= 0 && rc != -ECANCELED)
    snprintf(out, 64, "lost contact with rank %d", t->coll->lost);
  else
    snprintf(out, 64, rc == -ECANCELED ? "" : "a collective failed");
}

static int once(struct trainer *t, int why, struct times *at, struct err *e) {
  char text[64];
  reason(t, why, text);
  int rc = leave(t, text[0] ? text : "the round ends", e);
  at->left = trainer_now_us();
  if (rc == 0) rc = rejoin(t, text, e);
  at->assigned = trainer_now_us();
  if (rc == 0) rc = trainer_enter(t, e);
  if (rc == 0) rc = device_join(t, e);
  at->joined = trainer_now_us();
  return rc ? rc : trainer_agree(t, e);
}

int trainer_recover(struct trainer *t, int rc, struct err *e) {
  struct times at = {.began = trainer_now_us()};
  if (t->rank == 0 && rc != -ECANCELED)
    log_info("%s; leaving round %u for the next one", e->text, rdzv_round(t->rdzv));
  do {
    *e = (struct err)ERR_INIT;
    rc = once(t, rc, &at, e);
  } while (trainer_can_recover(t, rc));
  return rc ? rc : report(t, &at, e);
}
