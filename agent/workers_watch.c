/* The agent's watch over its guard: a timer around guard_watch.c.
 *
 * Whatever comes from the guard is read before anything is held against it: when this process was stopped, its answer may lie in the socket, and libuv
 * runs timers first.
 *
 * What is killed here the guard finds dead when it can run again, perhaps before it has read why. It would tell that as a death that nobody asked for, so
 * workers.c takes a SIGKILL behind ours for ours. */

#include "agent/workers/round.h"
#include "agent/workers_internal.h"

#include <signal.h>
#include "common/clock.h"
#include "common/log.h"

enum { KILL_MS = 200 }; /* at a time; the loop waits for it */

static void kill_trees(struct workers *w) {
  if (!w->by_hand)
    log_warn("the guard (pid %d) has not killed what it was told to kill: is it stopped, traced or frozen? "
             "Killing its processes from here",
             (int)w->guard.pid);
  w->by_hand = true;
  guard_kill_trees(&w->guard, KILL_MS);
}

static void give_up(const struct workers *w) {
  log_error(
      "the guard (pid %d) says neither that nothing is left nor what does not die: is it stopped, traced or "
      "frozen? Killing it",
      (int)w->guard.pid);
  kill(w->guard.pid, SIGKILL);
}

static void on_watch(uv_timer_t *timer) {
  struct workers *w = timer->data;
  enum guard_watch_act act;
  workers_hear_guard(w);
  while (!w->closing && (act = guard_watch_next(&w->watch, boot_ms())) != GUARD_WATCH_REST) {
    if (act == GUARD_WATCH_WAKE) guard_wake(&w->guard);
    if (act == GUARD_WATCH_KILL) kill_trees(w);
    if (act == GUARD_WATCH_GIVE_UP) give_up(w);
  }
  workers_watch_arm(w);
}

void workers_watch_arm(struct workers *w) {
  uint64_t at = guard_watch_deadline(&w->watch), now = boot_ms();
  if (w->closing) return;
  uv_timer_stop(&w->watch_timer);
  if (at == UINT64_MAX) return;
  uv_update_time(w->o.loop);
  uv_timer_start(&w->watch_timer, on_watch, at > now ? at - now : 0, 0);
}

void workers_watch_begin(struct workers *w) {
  uv_timer_init(w->o.loop, &w->watch_timer);
  uv_unref((uv_handle_t *)&w->watch_timer);
  w->watch_timer.data = w;
  guard_watch_init(&w->watch, boot_ms(), (uint64_t)w->o.options->lease_ms);
  workers_watch_arm(w);
}
