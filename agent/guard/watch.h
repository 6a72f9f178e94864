#ifndef AGENT_GUARD_WATCH_H
#define AGENT_GUARD_WATCH_H

/* Whether the guard does what it was told to: who watches is the agent, all of this is pure. A guard can be stopped (SIGSTOP), traced by a debugger, or
 * frozen in a cgroup of its own; then nobody would kill what it keeps, though everybody counts on that.
 *
 *   WAKE     guard_wake: always harmless, and enough where it was stopped by a signal
 *   KILL     what it was to kill is killed by the agent itself, workers that only wait included (guard_kill_trees)
 *   GIVE_UP  the guard is killed, and with it all that is left (GUARD_GONE follows): it says neither CLEAR nor STUCK
 *
 * KILL comes `patience` after a stop's grace is over, or at once after a stop without one: a tenth of the lease, at most a second. A node fences a fifth of
 * its lease before that is over, so its workers are dead in time whatever has become of the guard. A stop in which workers are kept has no KILL: its end is
 * a fence, or GIVE_UP. */

#include <stdbool.h>
#include <stdint.h>
#include "common/local_set.h"

enum {
  GUARD_KILL_DEADLINE_MS = 5000, /* after SIGKILL: a process that is still there is reported as stuck */
  GUARD_WAKE_EVERY_MS = 1000,    /* so long a stopped guard tells nobody of a worker's death */
  GUARD_WAKE_LATE_MS = 500,      /* beyond that: it was we who could not run */
  GUARD_PATIENCE_MAX_MS = 1000,
  GUARD_KILL_AGAIN_MS = 500,
  GUARD_SLACK_MS =
      1500, /* beyond GUARD_KILL_DEADLINE_MS, when it says STUCK: less than SUPERVISOR_LEAVE_SLACK_MS in all */
};

enum guard_watch_act { GUARD_WATCH_REST, GUARD_WATCH_WAKE, GUARD_WATCH_KILL, GUARD_WATCH_GIVE_UP };

struct guard_watch {
  uint64_t patience_ms;
  uint32_t round;                                 /* of the last stop */
  struct local_set keep;                          /* and who was left out */
  bool stuck;                                     /* it has said so: it works, and waits for the kernel */
  uint64_t wake_at_ms, kill_at_ms, give_up_at_ms; /* UINT64_MAX: not */
};

void guard_watch_init(struct guard_watch *w, uint64_t now_ms, uint64_t lease_ms);
/* A stop has been sent. One that follows another before CLEAR may only shorten it. keep NULL: nobody. */
void guard_watch_stop(struct guard_watch *w, uint64_t now_ms, uint32_t round, uint32_t grace_ms,
                      const struct local_set *keep);
/* What the guard says, before what is due is asked for: GUARD_CLEAR, GUARD_STUCK, GUARD_GONE. */
void guard_watch_clear(struct guard_watch *w, uint32_t round, const struct local_set *kept);
void guard_watch_stuck(struct guard_watch *w);
void guard_watch_gone(struct guard_watch *w);
/* What is due now: ask until it is REST. When KILL is due it comes again every GUARD_KILL_AGAIN_MS. */
enum guard_watch_act guard_watch_next(struct guard_watch *w, uint64_t now_ms);
uint64_t guard_watch_deadline(const struct guard_watch *w);

#endif
