/* SPDX-License-Identifier: Apache-2.0 */
/* The agent watches its guard.
 *
 * A stopped process obeys no command: its workers would run on beside those that have taken their ranks. So a command
 * that was sent is not taken for done. The agent waits for the answer, CLEAR or STUCK, and acts itself when there is
 * none:
 *
 *   stop -grace-> kill -patience-> KILL, again and again -5 s and some slack-> GIVE_UP
 *
 * Killing a process twice costs nothing, so KILL need not know why there is no answer. Killing the guard costs the
 * agent its life, so that comes late. Between commands the guard is also woken every second: nothing else reports a
 * death.
 *
 * If this process comes too late itself, it may have been stopped, and the guard with it. Then the guard gets its time
 * once more, from now on, before it is given up. The driver has read all its events before it asks. */

#include "agent/guard/watch.h"

#include "common/deadline.h"

static void rest(struct guard_watch *w) {
  w->kill_at_ms = w->give_up_at_ms = UINT64_MAX;
}

void guard_watch_init(struct guard_watch *w, uint64_t now_ms, uint64_t lease_ms) {
  uint64_t patience_ms = lease_ms / 10;
  *w = (struct guard_watch){.patience_ms = patience_ms < GUARD_PATIENCE_MAX_MS ? patience_ms : GUARD_PATIENCE_MAX_MS,
                            .wake_at_ms = now_ms + GUARD_WAKE_EVERY_MS};
  rest(w);
}

void guard_watch_stop(struct guard_watch *w, uint64_t now_ms, uint32_t round, uint32_t grace_ms,
                      const struct local_set *keep) {
  uint64_t due_ms = now_ms + grace_ms;
  w->round = round;
  w->keep = keep ? *keep : (struct local_set){{0}};
  if (local_set_is_empty(&w->keep)) w->kill_at_ms = earliest(w->kill_at_ms, due_ms + w->patience_ms);
  if (!w->stuck) w->give_up_at_ms = earliest(w->give_up_at_ms, due_ms + GUARD_KILL_DEADLINE_MS + GUARD_SLACK_MS);
}

void guard_watch_clear(struct guard_watch *w, uint32_t round, const struct local_set *kept) {
  if (round != w->round || !local_set_is_within(kept, &w->keep)) return; /* of a stop before */
  rest(w);
  w->stuck = false;
}

void guard_watch_stuck(struct guard_watch *w) {
  rest(w);
  w->stuck = true;
}

void guard_watch_gone(struct guard_watch *w) {
  rest(w);
  w->wake_at_ms = UINT64_MAX;
}

enum guard_watch_act guard_watch_next(struct guard_watch *w, uint64_t now_ms) {
  if (now_ms >= w->wake_at_ms) {
    bool late = now_ms >= w->wake_at_ms + GUARD_WAKE_LATE_MS;
    if (late && w->give_up_at_ms < now_ms + GUARD_SLACK_MS) w->give_up_at_ms = now_ms + GUARD_SLACK_MS;
    w->wake_at_ms = now_ms + GUARD_WAKE_EVERY_MS;
    return GUARD_WATCH_WAKE;
  }
  if (now_ms >= w->kill_at_ms) {
    w->kill_at_ms = now_ms + GUARD_KILL_AGAIN_MS;
    return GUARD_WATCH_KILL;
  }
  if (now_ms < w->give_up_at_ms) return GUARD_WATCH_REST;
  rest(w);
  return GUARD_WATCH_GIVE_UP;
}

uint64_t guard_watch_deadline(const struct guard_watch *w) {
  return earliest(w->wake_at_ms, earliest(w->kill_at_ms, w->give_up_at_ms));
}
