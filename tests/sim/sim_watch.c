/* SPDX-License-Identifier: Apache-2.0 */
/* Guards that cannot run, and agents that see to it that they do (agent/guard/watch.h, the real one).
 *
 * A guard can be stopped, which its agent ends by whatever it tells it, within a second anyway, and by its own death;
 * or held, as by a debugger or in a frozen cgroup, which nothing ends but whoever holds it, and SIGKILL. What it
 * would do or say meanwhile waits until it is continued, in order. Its workers go on: they run what was forked, die
 * of what they die of, and can be killed by others.
 *
 * The watch has one timer. What a real one does each second, to wake a guard that is awake, is left out. */

#include "tests/sim/sim.h"

#include "common/mem.h"

bool guard_sleeps(const struct sim_agent *a) {
  return a->guard_alive && a->guard_rest != GUARD_AWAKE;
}

static bool is_unable(const struct sim_agent *a) {
  return guard_sleeps(a) && (a->paused || !a->sup);
}

uint64_t guard_slept_at(const struct sim *s, const struct sim_agent *a) {
  return guard_sleeps(a) ? s->now : a->slept_at;
}

uint64_t guard_unable_at(const struct sim *s, const struct sim_agent *a) {
  return is_unable(a) ? s->now : a->unable_at;
}

void guard_note_rest(struct sim *s, struct sim_agent *a) {
  a->slept_at = guard_slept_at(s, a);
  a->unable_at = guard_unable_at(s, a);
}

/* What it knows. --------------------------------------------------------------------------------------------------- */

/* A worker's death is told when its last words are read. */
void guard_tell_now(struct sim *s, struct sim_agent *a, struct supervisor_event ev) {
  uint64_t drain_ms = ev.kind == SUP_EXITED ? sim_between(s, 0, s->config.drain_max) : 0;
  if (ev.when_ms) ev.when_ms = s->now;
  if (a->guard_alive) guard_notify(s, a, s->now + drain_ms, ev);
}

/* Whoever had died by himself when it goes on was dead before it was told to stop anything. */
void guard_tell(struct sim *s, struct sim_agent *a, struct supervisor_event ev, bool by_itself) {
  if (!guard_sleeps(a)) {
    guard_tell_now(s, a, ev);
    return;
  }
  if (ev.kind == SUP_EXITED) ev.exited.unasked = by_itself;
  a->untold++;
  struct sim_event *e = sim_push(s, s->now, EV_GUARD_TELL);
  e->agent = a;
  e->notice = supervisor_event_copy(&ev);
}

bool guard_kills(const struct sim_agent *a, uint64_t of) {
  for (uint32_t i = 0; i < SIM_WORKERS_MAX; i++)
    if ((of >> i & 1) && a->w[i].state == WORKER_RUNNING && a->w[i].killed) return true;
  return false;
}

/* The watch. ------------------------------------------------------------------------------------------------------- */

static void arm(struct sim *s, struct sim_agent *a) {
  uint64_t at = node_when(a->node, guard_watch_deadline(&a->watch));
  if (at == UINT64_MAX || at >= a->watch_at) return;
  a->watch_at = at < s->now ? s->now : at;
  sim_push(s, a->watch_at, EV_GUARD_WATCH)->agent = a;
}

/* From now on somebody has to look. */
static void look_again(struct sim *s, struct sim_agent *a, uint64_t in_ms) {
  uint64_t at = node_time(s, a->node) + in_ms;
  if (at < a->watch.wake_at_ms) a->watch.wake_at_ms = at;
  arm(s, a);
}

void watch_begin(struct sim *s, struct sim_agent *a) {
  guard_watch_init(&a->watch, node_time(s, a->node), (uint64_t)s->config.settings.lease_ms);
  a->watch.wake_at_ms = a->watch_at = UINT64_MAX;
}

void watch_stop(struct sim *s, struct sim_agent *a, uint32_t round, uint64_t grace_ms, uint64_t keep) {
  const struct local_set set = {{keep}};
  guard_watch_stop(&a->watch, node_time(s, a->node), round, (uint32_t)grace_ms, &set);
  look_again(s, a, GUARD_WAKE_EVERY_MS);
}

void watch_hear(struct sim_agent *a, const struct supervisor_event *ev) {
  if (ev->kind == SUP_CLEAR) guard_watch_clear(&a->watch, ev->round, &ev->clear.kept);
  if (ev->kind == SUP_STUCK) guard_watch_stuck(&a->watch);
  if (ev->kind == SUP_GUARD_GONE) guard_watch_gone(&a->watch);
}

static void carry_out(struct sim *s, struct sim_agent *a, enum guard_watch_act act) {
  if (act == GUARD_WATCH_WAKE) guard_nudge(s, a);
  if (act == GUARD_WATCH_KILL) guard_kill_by_hand(s, a);
  if (act == GUARD_WATCH_GIVE_UP) {
    sim_trace(s, "%s: gives its guard up", a->name);
    guard_kill(s, a);
  }
}

void watch_on_timer(struct sim *s, struct sim_event *ev) {
  struct sim_agent *a = ev->agent;
  if (!a->sup || ev->at < a->watch_at) return;
  if (ev->seq < 1ull << 32) { /* it was stopped: what it has been told meanwhile is read first */
    sim_push(s, s->now, EV_GUARD_WATCH)->agent = a;
    return;
  }
  a->watch_at = UINT64_MAX;
  uint64_t now = node_time(s, a->node);
  enum guard_watch_act act;
  while ((act = guard_watch_next(&a->watch, now)) != GUARD_WATCH_REST) carry_out(s, a, act);
  bool busy = guard_sleeps(a) || a->watch.kill_at_ms != UINT64_MAX || a->watch.give_up_at_ms != UINT64_MAX;
  if (!busy) a->watch.wake_at_ms = UINT64_MAX;
  arm(s, a);
}

/* What can happen to a guard. -------------------------------------------------------------------------------------- */

void guard_pause(struct sim *s, struct sim_agent *a, enum guard_rest rest) {
  s->faulty = true;
  if (!a->guard_alive || a->guard_rest == GUARD_HELD || a->node->off) return;
  sim_trace(s, "%s: guard %s", a->name, rest == GUARD_HELD ? "held" : "stopped");
  s->harmless = false;
  a->guard_rest = rest;
  if (a->sup)
    look_again(s, a, sim_between(s, 1, GUARD_WAKE_EVERY_MS));
  else
    guard_nudge(s, a); /* nobody's child: there is no reason to stop it, and none to model it */
}

void guard_continue(struct sim *s, struct sim_agent *a) {
  if (!guard_sleeps(a)) return;
  sim_trace(s, "%s: guard continued", a->name);
  guard_note_rest(s, a);
  a->guard_rest = GUARD_AWAKE;
  sim_unstash_guard(s, a);
}

void guard_nudge(struct sim *s, struct sim_agent *a) {
  if (a->guard_rest == GUARD_STOPPED) guard_continue(s, a);
}
