/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_wait is the only wait of a steady step: for the results of a step that was queued `depth` steps ago. On a
 * device it is usually over before it starts. Otherwise the host first polls without a pause, because waking up costs
 * more, and then with pauses, so that a long step needs little of a core.
 *
 * A rank that waits for the device also waits for the other ranks, whose gradients are summed there. So it asks the
 * collectives too: they have their own deadlines, know a lost rank by its number, and block the updates behind what can
 * never complete. If they report nothing long after that, the device is the one that does not respond.
 *
 * It asks the agent too. Over NVLink and shared memory a dead peer raises no error, and the ranks that wait for it would
 * wait until --coll-timeout. The agents know of the death at once, and their request ends the wait. The collectives ask
 * in their own waits (coll_asked_fn). */

#include "agent/trainer/run/trainer.h"

#include <errno.h>
#include <time.h>

enum {
  SPIN_US = 200, /* trainer_wait polls without a pause up to here, then with short pauses, then with long ones */
  SHORT_US = 5000,
  SHORT_PAUSE_US = 20,
  LONG_PAUSE_US = 500,
  GRACE_MS = 10000 /* after --coll-timeout, the time in which the collectives may still name a lost rank */
};

int trainer_leave_error(unsigned requested, struct err *e) {
  if (requested & RDZV_LOST) return err_set(e, -EPIPE, "lost contact with the agent");
  return requested & RDZV_REJOIN ? err_set(e, -ECANCELED, "the agent ends this round") : 0;
}

int trainer_asked(void *trainer, struct err *e) {
  struct trainer *t = trainer;
  return t->rdzv ? trainer_leave_error(rdzv_requested(t->rdzv), e) : 0;
}

int trainer_watch(struct trainer *t, struct err *e) {
  uint64_t now = trainer_now_us();
  if (now - t->asked_us >= COLL_ASK_MS * 1000) {
    t->asked_us = now;
    int rc = with_exit(t, TRAINER_LOST, trainer_asked(t, e));
    if (rc) return rc;
  }
  return with_coll_exit(t, coll_progress(t->coll, e));
}

int trainer_wait(struct trainer *t, struct compute_mark mark, uint64_t step, struct err *e) {
  int rc = compute_done(t->c, mark, e);
  if (rc > 0) return 0;
  uint64_t from = t->asked_us = trainer_now_us(), limit = ((uint64_t)t->o.coll_timeout_ms + GRACE_MS) * 1000;
  while (rc == 0) {
    rc = trainer_watch(t, e);
    if (rc) return rc;
    uint64_t waited = trainer_now_us() - from;
    if (waited > limit) {
      err_set(e, -ETIMEDOUT, "the device (%s) did not finish step %llu within %.0f s, and no rank is missing",
              t->c->device, (unsigned long long)step, (double)waited / 1e6);
      return with_exit(t, TRAINER_SYSTEM, -ETIMEDOUT);
    }
    struct timespec ts = {.tv_nsec = (waited < SHORT_US ? SHORT_PAUSE_US : LONG_PAUSE_US) * 1000L};
    if (waited >= SPIN_US) nanosleep(&ts, NULL);
    rc = compute_done(t->c, mark, e);
  }
  return rc > 0 ? 0 : with_exit(t, TRAINER_SYSTEM, rc);
}
