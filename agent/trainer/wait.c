/* The one wait of a steady step: for the results of a step that was queued `depth` steps ago.
 *
 * On a CPU it is over before it begins. On a device it is most often, too; else the host asks again and again for a moment, which is
 * cheaper than to sleep and be woken, and then with pauses, so that a long step costs little of a core.
 *
 * Whoever waits for the device waits for the other ranks as well, whose gradients are summed in there. So the collectives are asked too:
 * they know when one of them is lost, and say who; they have deadlines of their own, and abort what will never be whole. Only if
 * they have nothing to say long after that is it the device that does not answer. */

#include "agent/trainer/run/trainer.h"

#include <errno.h>
#include <time.h>

enum { SPIN_US = 200, SHORT_US = 5000, SHORT_PAUSE_US = 20, LONG_PAUSE_US = 500, GRACE_MS = 10000 };

static void pause_for(uint64_t waited_us) {
  struct timespec ts = {.tv_nsec = (waited_us < SHORT_US ? SHORT_PAUSE_US : LONG_PAUSE_US) * 1000L};
  if (waited_us >= SPIN_US) nanosleep(&ts, NULL);
}

int trainer_wait(struct trainer *t, struct compute_mark mark, uint64_t step, struct err *e) {
  int rc = compute_done(t->c, mark, e);
  if (rc > 0) return 0;
  uint64_t from = trainer_now_us(), limit = ((uint64_t)t->o.coll_timeout_ms + GRACE_MS) * 1000;
  while (rc == 0) {
    rc = coll_progress(t->coll, e);
    if (rc) return trainer_blame_coll(t, rc);
    uint64_t waited = trainer_now_us() - from;
    if (waited > limit) {
      err_set(e, -ETIMEDOUT,
              "the device (%s) has not come to the end of step %llu for %.0f s, and no rank is missed",
              t->c->device, (unsigned long long)step, (double)waited / 1e6);
      return trainer_blame(t, TRAINER_SYSTEM, -ETIMEDOUT);
    }
    pause_for(waited);
    rc = compute_done(t->c, mark, e);
  }
  return rc > 0 ? 0 : trainer_blame(t, TRAINER_SYSTEM, rc);
}
