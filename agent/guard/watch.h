/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_GUARD_WATCH_H
#define AGENT_GUARD_WATCH_H

/* The agent's watch over its guard: pure. A guard can be stopped (SIGSTOP), traced by a debugger, or frozen in a cgroup
 * of its own. Then nothing kills its workers, though the daemon counts on that.
 *
 *   WAKE     guard_wake: always harmless, and enough if a signal has stopped it
 *   KILL     the agent itself kills the workers, parked ones included (guard_kill_trees)
 *   GIVE_UP  the agent kills the guard and all that is left (GUARD_GONE follows): it sends neither CLEAR nor STUCK
 *
 * KILL comes `patience` after a stop's grace is over, or after a stop without a grace. Patience is a tenth of the
 * lease, at most a second. A node fences a fifth of its lease before that is over, so its workers are dead in time even
 * if the guard is stopped. A stop that keeps workers has no KILL: it ends by a fence, or GIVE_UP. */

#include <stdbool.h>
#include <stdint.h>
#include "common/local_set.h"

enum {
  GUARD_KILL_DEADLINE_MS = 5000, /* after SIGKILL: a process that is still there is reported as stuck */
  GUARD_WAKE_EVERY_MS = 1000,    /* a stopped guard may report a worker's death that much later */
  GUARD_WAKE_LATE_MS = 500,      /* later than that: this process could not run */
  GUARD_PATIENCE_MAX_MS = 1000,
  GUARD_KILL_AGAIN_MS = 500,
  GUARD_SLACK_MS =
      1500, /* beyond GUARD_KILL_DEADLINE_MS, when STUCK comes: less than SUPERVISOR_LEAVE_SLACK_MS in all */
};

enum guard_watch_act { GUARD_WATCH_REST, GUARD_WATCH_WAKE, GUARD_WATCH_KILL, GUARD_WATCH_GIVE_UP };

struct guard_watch {
  uint64_t patience_ms;
  uint32_t round;                                 /* of the last stop */
  struct local_set keep;                          /* and the workers that it keeps */
  bool stuck;                                     /* STUCK came: the guard works, and waits for the kernel */
  uint64_t wake_at_ms, kill_at_ms, give_up_at_ms; /* UINT64_MAX: never */
};

void guard_watch_init(struct guard_watch *w, uint64_t now_ms, uint64_t lease_ms);
/* A stop has been sent. One that follows another before CLEAR may only shorten it. keep NULL: none. */
void guard_watch_stop(struct guard_watch *w, uint64_t now_ms, uint32_t round, uint32_t grace_ms,
                      const struct local_set *keep);
/* The guard's events GUARD_CLEAR, GUARD_STUCK, GUARD_GONE. Pass them on before guard_watch_next. */
void guard_watch_clear(struct guard_watch *w, uint32_t round, const struct local_set *kept);
void guard_watch_stuck(struct guard_watch *w);
void guard_watch_gone(struct guard_watch *w);
/* The act that is due now: call it until REST. KILL comes again every GUARD_KILL_AGAIN_MS. */
enum guard_watch_act guard_watch_next(struct guard_watch *w, uint64_t now_ms);
uint64_t guard_watch_deadline(const struct guard_watch *w);

#endif
