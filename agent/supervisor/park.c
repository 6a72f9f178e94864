/* Workers that stay: who has said rdzv_can_rejoin keeps its process when a round ends for somebody else's sake.
 *
 *   STOPPING: asked (RDZV_REJOIN), the others are stopped --parked--> STOPPED, JOINING: it waits --START--> it goes on, the others are spawned
 *                 '-- half of --stop-timeout is over: stopped like the others
 *
 * To the daemon a parked worker is a stopped one, and it may seal a round on that word. So it is called parked only when it has said so itself, and from
 * then on it does nothing until it is told its place. Whoever has not parked by half of --stop-timeout has the other half to die like all others, so
 * a stop takes no longer than before. Only a stop for the round's sake leaves anybody out. Fenced, stale, leaving, at the end: all are stopped.
 *
 * Between rounds a parked worker is dismissed as soon as it is of no use: a round runs without this node, the job is another, the agent goes, or the
 * lease is over where a round could form without us. Nothing is spawned before the guard says CLEAR of it: a START that comes meanwhile is kept. Nor does
 * the agent leave before. That it dies by itself costs nothing: its place is spawned anew.
 *
 * Workers often know before anybody else that a peer is gone, and park unasked, in the middle of a round. Mostly its end follows within milliseconds. If
 * nothing has ended it when a lost node would long have been noticed (a lease, 30 s at most, and 2 s), the alarm was false, or a peer hangs; the round is
 * of no use then, and the first who left is its failure. */

#include "agent/supervisor/internal.h"
#include "agent/sdk/rdzv.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "common/deadline.h"
#include "common/exit_codes.h"
#include "common/mem.h"

enum { ALONE_MAX_MS = 30000, ALONE_SLACK_MS = 2000, NAMES_MAX = 8 };

static bool lives(const struct worker *w) {
  return w->spawned && !w->exited && !w->gone;
}

static bool is_kept(const struct supervisor *s, int64_t i) {
  return local_set_has(&s->park.keep, (uint32_t)i);
}

static struct local_set parked_set(const struct supervisor *s) {
  struct local_set set = {{0}};
  for (int64_t i = 0; i < s->config.workers; i++)
    if (s->workers[i].parked && !s->workers[i].gone) local_set_add(&set, (uint32_t)i);
  return set;
}

bool sup_any_parked(const struct supervisor *s) {
  struct local_set set = parked_set(s);
  return !sup_has_trees(s) && !local_set_is_empty(&set);
}

/* Stopping. -------------------------------------------------------------------------------------------------------- */

/* With a grace of nothing there is no time to park, but who has done it already may stay. */
static bool may_stay(const struct worker *w, uint64_t grace_ms) {
  return w->parked || (grace_ms >= 2 && (w->adopting || (lives(w) && w->can_rejoin)));
}

static bool owes_parking(const struct supervisor *s) {
  for (int64_t i = 0; i < s->config.workers; i++)
    if (is_kept(s, i) && !s->workers[i].parked && !s->workers[i].gone) return true;
  return false;
}

static void ask(struct supervisor *s) {
  struct local_set others = {{0}};
  for (int64_t i = 0; i < s->config.workers; i++)
    if (!is_kept(s, i)) local_set_add(&others, (uint32_t)i);
  if (!local_set_is_empty(&others)) sup_request(s, RDZV_STOP, &others);
  if (!local_set_is_empty(&s->park.keep)) sup_request(s, RDZV_REJOIN, &s->park.keep);
}

void sup_park_choose(struct supervisor *s, bool first, enum stop_reason reason, uint64_t grace_ms) {
  struct park *p = &s->park;
  bool asked = !local_set_is_empty(&p->keep);
  if (first || s->reason != STOP_ROUND) memset(&p->keep, 0, sizeof p->keep);
  for (int64_t i = 0; first && s->reason == STOP_ROUND && i < s->config.workers; i++)
    if (may_stay(&s->workers[i], grace_ms)) local_set_add(&p->keep, (uint32_t)i);
  p->clear = false;
  p->by_ms = owes_parking(s) ? s->now_ms + grace_ms / 2 : UINT64_MAX;
  if (grace_ms && (first || asked)) ask(s);
}

/* All but those who have parked are stopped now, in what is left of --stop-timeout. */
static void stop_the_rest(struct supervisor *s) {
  struct park *p = &s->park;
  p->by_ms = UINT64_MAX;
  p->clear = false;
  p->keep = parked_set(s);
  ask(s);
  struct supervisor_effect *e = sup_effect(s, SUP_STOP_TREES);
  e->round = (uint32_t)s->round;
  e->value = s->kill_ms > s->now_ms ? s->kill_ms - s->now_ms : 0;
  e->signo = SIGTERM;
  e->keep = p->keep;
}

static void stop_late(struct supervisor *s) {
  struct buf names = BUF_INIT;
  int n = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (!is_kept(s, i) || w->parked || w->gone || n++ >= NAMES_MAX) continue;
    buf_printf(&names, "%s%lld", n > 1 ? ", " : "", (long long)(s->rank_base + i));
  }
  if (n > NAMES_MAX) buf_printf(&names, " and %d more", n - NAMES_MAX);
  sup_say(s, LOG_WARN, "rank %s was asked to rejoin, and has not left round %lld within %.1f s: stopping it",
          buf_text(&names), (long long)s->round, (double)(s->now_ms - s->stop_ms) / 1000);
  buf_finish(&names);
  stop_the_rest(s);
}

void sup_park_watch(struct supervisor *s) {
  struct park *p = &s->park;
  if (s->state != SUPERVISOR_STOPPING || !p->clear || owes_parking(s)) return;
  p->by_ms = UINT64_MAX;
  for (int64_t i = 0; i < s->config.workers; i++)
    if (!is_kept(s, i)) s->workers[i].parked = false;
  sup_stopped(s);
}

/* What workers say. ------------------------------------------------------------------------------------------------ */

static bool is_ours(const struct supervisor *s, const struct supervisor_event *ev) {
  return ev->round == s->round && ev->local_rank < s->config.workers && !s->workers[ev->local_rank].gone;
}

static void dismiss(struct supervisor *s, const struct local_set *stay, uint64_t grace_ms);

/* Its connection is gone, or it is done: it will hear of no next round. */
static void not_any_more(struct supervisor *s, struct worker *w) {
  if (!w->parked && !w->adopting) return;
  bool between = !sup_has_trees(s);
  w->parked = w->adopting = false;
  struct local_set stay = parked_set(s);
  if (between)
    dismiss(s, &stay, 0);
  else if (s->state == SUPERVISOR_STOPPING)
    stop_the_rest(s);
}

void sup_can_rejoin(struct supervisor *s, const struct supervisor_event *ev) {
  if (!is_ours(s, ev)) return;
  struct worker *w = &s->workers[ev->local_rank];
  w->can_rejoin = ev->count > 0;
  if (!w->can_rejoin) not_any_more(s, w);
}

void sup_parked(struct supervisor *s, const struct supervisor_event *ev) {
  struct park *p = &s->park;
  bool stopping = s->state == SUPERVISOR_STOPPING;
  if (!is_ours(s, ev) || !sup_has_trees(s) || (stopping && !is_kept(s, ev->local_rank))) return;
  struct worker *w = &s->workers[ev->local_rank];
  w->parked = true;
  w->adopting = false;
  if (stopping || p->first_ms) return;
  p->first_ms = s->now_ms;
  p->first = ev->local_rank;
  snprintf(p->reason, sizeof p->reason, "%s", ev->text ? ev->text : "");
  sup_say(s, LOG_DEBUG, "rank %lld has left round %lld to rejoin%s%s",
          (long long)(s->rank_base + ev->local_rank), (long long)s->round, p->reason[0] ? ": " : "",
          p->reason);
}

/* Alone. ----------------------------------------------------------------------------------------------------------- */

static uint64_t alone_ms(const struct supervisor *s) {
  bool goes_on = s->state == SUPERVISOR_STARTING || s->state == SUPERVISOR_RUNNING;
  uint64_t lease = (uint64_t)s->config.settings.lease_ms;
  if (!goes_on || !s->park.first_ms) return UINT64_MAX;
  return s->park.first_ms + (lease < ALONE_MAX_MS ? lease : ALONE_MAX_MS) + ALONE_SLACK_MS;
}

static void fail_alone(struct supervisor *s) {
  struct verdict v;
  sup_describe_worker(s, s->park.first, &v);
  v.cause = CAUSE_CONTACT_LOST;
  v.code = EXIT_CODE_CONTACT_LOST;
  v.idle_ms = (int64_t)(s->now_ms - s->park.first_ms);
  v.text = s->park.reason;
  sup_fail(s, &v, s->park.first_ms);
}

void sup_park_tick(struct supervisor *s) {
  if (s->now_ms >= alone_ms(s)) fail_alone(s);
  if (s->state == SUPERVISOR_STOPPING && s->now_ms >= s->park.by_ms) stop_late(s);
}

uint64_t sup_park_deadline(const struct supervisor *s) {
  return earliest(alone_ms(s), s->state == SUPERVISOR_STOPPING ? s->park.by_ms : UINT64_MAX);
}

/* Between rounds. -------------------------------------------------------------------------------------------------- */

static void dismiss(struct supervisor *s, const struct local_set *stay, uint64_t grace_ms) {
  struct park *p = &s->park;
  struct local_set go = parked_set(s);
  for (int64_t i = 0; i < s->config.workers; i++) {
    if (local_set_has(stay, (uint32_t)i)) local_set_remove(&go, (uint32_t)i);
    if (local_set_has(&go, (uint32_t)i)) s->workers[i].parked = false;
  }
  if (grace_ms) sup_request(s, RDZV_STOP, &go);
  if (!p->dismissing) p->clear_round = s->round;
  p->dismissing = true;
  p->hurried = !grace_ms;
  struct supervisor_effect *e = sup_effect(s, SUP_STOP_TREES);
  e->round = (uint32_t)p->clear_round;
  e->value = grace_ms;
  e->signo = SIGTERM;
  e->keep = *stay;
}

void sup_dismiss(struct supervisor *s, uint64_t grace_ms) {
  static const struct local_set nobody;
  bool hasten = s->park.dismissing && !grace_ms;
  if (sup_any_parked(s) || hasten) dismiss(s, &nobody, grace_ms);
}

/* Those who were told to go, and had a grace for it, may still be there. */
bool sup_dismisses(const struct supervisor *s) {
  return s->park.dismissing && !s->park.hurried;
}

static void forget_start(struct park *p) {
  start_free(p->start);
  bytes_unref(p->guests);
  p->start = NULL;
  p->guests = NULL;
}

/* Takes start and guests. */
static void spawn(struct supervisor *s, struct start *start, struct bytes *guests) {
  struct supervisor_effect *e = sup_effect(s, SUP_SPAWN);
  int64_t n = 0;
  e->start = start;
  e->bytes = guests;
  e->keep = parked_set(s);
  for (int64_t i = 0; i < s->config.workers; i++) {
    struct worker *w = &s->workers[i];
    w->adopting = w->parked;
    w->parked = false;
    n += w->adopting;
  }
  sup_ids_spawned(s);
  if (n)
    sup_say(s, LOG_INFO, "%lld of %lld worker%s here go%s on in place", (long long)n,
            (long long)s->config.workers, s->config.workers == 1 ? "" : "s", n == 1 ? "es" : "");
}

void sup_park_spawn(struct supervisor *s, const struct msg *m) {
  struct start *start = start_copy(&m->start);
  struct bytes *guests = m->raw_len ? bytes_create(m->raw, m->raw_len) : NULL;
  if (!s->park.dismissing) {
    spawn(s, start, guests);
    return;
  }
  static const struct local_set nobody;
  struct local_set stay = parked_set(s);
  s->park.start = start;
  s->park.guests = guests;
  dismiss(s, local_set_is_empty(&stay) ? &nobody : &stay, 0); /* whatever grace they had: the round waits */
}

/* The round is stopped before anything of it was spawned: what is waited for is the CLEAR of those who were dismissed. */
bool sup_park_cancel_spawn(struct supervisor *s) {
  static const struct local_set nobody;
  if (!s->park.start) return false;
  forget_start(&s->park);
  if (s->reason != STOP_ROUND) dismiss(s, &nobody, 0);
  s->park.keep = parked_set(s);
  s->park.clear = false;
  return true;
}

bool sup_park_clear(struct supervisor *s, const struct supervisor_event *ev) {
  struct park *p = &s->park;
  struct local_set stay = parked_set(s);
  if (!p->dismissing || ev->round != p->clear_round) return false;
  if (!local_set_is_within(&ev->kept, &stay)) return true; /* of the stop before */
  p->dismissing = false;
  if (p->exiting) {
    sup_exit(s, s->exit_code, p->bye);
  } else if (p->start) {
    struct start *start = p->start;
    struct bytes *guests = p->guests;
    p->start = NULL;
    p->guests = NULL;
    spawn(s, start, guests);
  } else if (s->state == SUPERVISOR_STOPPING) {
    p->clear = true;
  }
  return true;
}

bool sup_park_delays_exit(struct supervisor *s, int code, const char *bye) {
  struct park *p = &s->park;
  uint64_t grace_ms = s->signals == 1 ? (uint64_t)s->config.settings.stop_timeout_ms : 0;
  bool over = p->exiting && (!p->dismissing || s->now_ms >= s->leave_by_ms);
  if (over || (!sup_any_parked(s) && !p->dismissing)) return false;
  p->bye = bye;
  s->exit_code = code;
  if (p->exiting) return true; /* with another code, if END came meanwhile */
  p->exiting = true;
  s->reason = STOP_EXIT;
  s->leave_by_ms = s->now_ms + grace_ms + SUPERVISOR_LEAVE_SLACK_MS;
  sup_dismiss(s, grace_ms);
  return true;
}

void sup_park_finish(struct supervisor *s) {
  forget_start(&s->park);
  s->park.dismissing = false;
  for (int64_t i = 0; i < s->config.workers; i++) s->workers[i].parked = false;
}
