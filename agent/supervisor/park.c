/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that stay: a worker that has called rdzv_can_rejoin keeps its process when a round ends for another node's
 * sake.
 *
 *   STOPPING: asked (RDZV_REJOIN), the others are stopped --parked--> STOPPED, JOINING: it waits --START--> it goes on
 *                 '-- half of --stop-timeout is over: stopped like the others
 *
 * For the daemon a parked worker is a stopped one, and it may seal a round on that word. So a worker counts as parked
 * only after it has said so itself. A fenced, stale or leaving node stops all workers, and so does the end of the job.
 *
 * Between rounds a parked worker is dismissed as soon as it is not needed: a round runs without this node, the job is
 * another, the agent leaves, or the lease is over while a round could form without this node. Nothing is spawned before
 * the guard says CLEAR of the dismissed workers. The agent does not exit earlier either. A parked worker that dies by
 * itself costs nothing: its place is spawned again.
 *
 * Workers often know first that a peer is gone, and park unasked in the middle of a round. Within a lease (30 s at
 * most) and 2 s a lost node would have been noticed. If nothing has ended the round by then, the alarm was false, or a
 * peer hangs. The first worker that left is reported as the round's failure. */

#include "agent/sdk/rdzv.h"
#include "agent/supervisor/internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/exit_codes.h"

enum { ALONE_MAX_MS = 30000, ALONE_SLACK_MS = 2000, NAMES_MAX = 8 };

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

static bool is_parking(const struct supervisor *s, const struct worker *w) {
  return is_kept(s, w - s->workers) && !w->parked && !w->gone;
}

static void send_requests(struct supervisor *s) {
  struct local_set others = {{0}};
  for (int64_t i = 0; i < s->config.workers; i++)
    if (!is_kept(s, i)) local_set_add(&others, (uint32_t)i);
  if (!local_set_is_empty(&others)) sup_request(s, RDZV_STOP, &others);
  if (!local_set_is_empty(&s->park.keep)) sup_request(s, RDZV_REJOIN, &s->park.keep);
}

static void send_stop(struct supervisor *s, int64_t round, int signo, uint64_t grace_ms, const struct local_set *keep) {
  struct supervisor_effect *e = sup_effect(s, SUP_STOP_TREES);
  e->round = (uint32_t)round;
  e->stop_trees.grace_ms = grace_ms;
  e->stop_trees.signo = signo;
  e->stop_trees.keep = *keep;
}

/* There are fewer to keep now: the others are stopped in the rest of --stop-timeout. */
static void stop_the_rest(struct supervisor *s) {
  uint64_t grace_ms = s->stop.kill_ms > s->now_ms ? s->stop.kill_ms - s->now_ms : 0;
  s->park.clear = false;
  send_requests(s);
  send_stop(s, s->round.number, SIGTERM, grace_ms, &s->park.keep);
}

void sup_park_watch(struct supervisor *s) {
  struct park *p = &s->park;
  if (s->state != SUPERVISOR_STOPPING || !p->clear || sup_any_worker(s, is_parking)) return;
  p->by_ms = UINT64_MAX;
  for (int64_t i = 0; i < s->config.workers; i++)
    if (!is_kept(s, i)) s->workers[i].parked = false;
  sup_round_stopped(s);
}

/* Workers' reports. ------------------------------------------------------------------------------------------------ */

static void stop_parked_except(struct supervisor *s, const struct local_set *stay, uint64_t grace_ms);

void sup_can_rejoin(struct supervisor *s, const struct supervisor_event *ev) {
  struct worker *w = &s->workers[ev->local_rank];
  if (w->gone) return;
  w->can_rejoin = ev->on;
  if (w->can_rejoin || (!w->parked && !w->adopting)) return;
  /* Its connection is gone, or it is done: it cannot learn of the next round. */
  w->parked = w->adopting = false;
  struct local_set stay = parked_set(s);
  if (!sup_has_trees(s)) {
    stop_parked_except(s, &stay, 0);
  } else if (s->state == SUPERVISOR_STOPPING) {
    local_set_remove(&s->park.keep, ev->local_rank); /* only this one: those that have not parked keep their time */
    stop_the_rest(s);
  }
}

void sup_parked(struct supervisor *s, const struct supervisor_event *ev) {
  struct worker *w = &s->workers[ev->local_rank];
  if (w->gone || !is_kept(s, ev->local_rank)) return;
  w->parked = true;
  w->adopting = false;
}

/* Before any worker was asked to. */
void sup_parked_unasked(struct supervisor *s, const struct supervisor_event *ev) {
  struct park *p = &s->park;
  struct worker *w = &s->workers[ev->local_rank];
  if (w->gone) return;
  w->parked = true;
  w->adopting = false;
  if (p->first_ms) return;
  p->first_ms = s->now_ms;
  p->first = ev->local_rank;
  snprintf(p->reason, sizeof p->reason, "%s", ev->text ? ev->text : "");
  sup_log(s, LOG_DEBUG, "rank %lld has left round %lld to rejoin%s%s", (long long)(s->round.rank_base + ev->local_rank),
          (long long)s->round.number, p->reason[0] ? ": " : "", p->reason);
}

/* Alone. ----------------------------------------------------------------------------------------------------------- */

static uint64_t alone_deadline_ms(const struct supervisor *s) {
  bool goes_on = s->state == SUPERVISOR_STARTING || s->state == SUPERVISOR_RUNNING;
  uint64_t lease = (uint64_t)s->config.settings.lease_ms;
  if (!goes_on || !s->park.first_ms) return UINT64_MAX;
  return s->park.first_ms + (lease < ALONE_MAX_MS ? lease : ALONE_MAX_MS) + ALONE_SLACK_MS;
}

void sup_park_tick(struct supervisor *s) {
  if (s->now_ms >= alone_deadline_ms(s)) {
    struct verdict v;
    sup_describe_worker(s, s->park.first, &v);
    v.cause = CAUSE_CONTACT_LOST;
    v.code = EXIT_CODE_CONTACT_LOST;
    v.idle_ms = (int64_t)(s->now_ms - s->park.first_ms);
    v.text = s->park.reason;
    sup_fail_round(s, &v, s->park.first_ms);
  }
  if (s->state == SUPERVISOR_STOPPING && s->now_ms >= s->park.by_ms) {
    struct buf names = BUF_INIT;
    int n = 0;
    for (int64_t i = 0; i < s->config.workers; i++) {
      if (!is_parking(s, &s->workers[i]) || n++ >= NAMES_MAX) continue;
      buf_printf(&names, "%s%lld", n > 1 ? ", " : "", (long long)(s->round.rank_base + i));
    }
    if (n > NAMES_MAX) buf_printf(&names, " and %d more", n - NAMES_MAX);
    sup_log(s, LOG_WARN, "rank %s was asked to rejoin, and has not left round %lld within %.1f s: stopping it",
            buf_text(&names), (long long)s->round.number, (double)(s->now_ms - s->stop.begun_ms) / 1000);
    buf_finish(&names);
    s->park.by_ms = UINT64_MAX;
    s->park.keep = parked_set(s);
    stop_the_rest(s);
  }
}

uint64_t sup_park_deadline(const struct supervisor *s) {
  return earliest(alone_deadline_ms(s), s->state == SUPERVISOR_STOPPING ? s->park.by_ms : UINT64_MAX);
}

/* Between rounds. -------------------------------------------------------------------------------------------------- */

static void stop_parked_except(struct supervisor *s, const struct local_set *stay, uint64_t grace_ms) {
  struct park *p = &s->park;
  struct local_set go = parked_set(s);
  for (int64_t i = 0; i < s->config.workers; i++) {
    if (local_set_has(stay, (uint32_t)i)) local_set_remove(&go, (uint32_t)i);
    if (local_set_has(&go, (uint32_t)i)) s->workers[i].parked = false;
  }
  if (grace_ms) sup_request(s, RDZV_STOP, &go);
  if (!p->dismissing) p->clear_round = s->round.number;
  p->dismissing = true;
  p->hurried = !grace_ms;
  send_stop(s, p->clear_round, SIGTERM, grace_ms, stay);
}

void sup_dismiss_parked(struct supervisor *s, uint64_t grace_ms) {
  static const struct local_set nobody;
  bool hasten = s->park.dismissing && !grace_ms;
  if (sup_any_parked(s) || hasten) stop_parked_except(s, &nobody, grace_ms);
}

static void drop_pending_start(struct park *p) {
  start_free(p->start);
  bytes_unref(p->guests);
  p->start = NULL;
  p->guests = NULL;
}

/* Takes start and guests. */
static void spawn_round(struct supervisor *s, struct start *start, struct bytes *guests) {
  struct supervisor_effect *e = sup_effect(s, SUP_SPAWN);
  int64_t n = 0;
  e->spawn.start = start;
  e->bytes = guests;
  e->spawn.keep = parked_set(s);
  for (int64_t i = 0; i < s->config.workers; i++) {
    struct worker *w = &s->workers[i];
    w->adopting = w->parked;
    w->parked = false;
    n += w->adopting;
  }
  s->round.stayed = n;
  sup_ids_spawned(s);
  if (n)
    sup_log(s, LOG_INFO, "%lld of %lld worker%s here go%s on in place", (long long)n, (long long)s->config.workers,
            s->config.workers == 1 ? "" : "s", n == 1 ? "es" : "");
}

void sup_park_spawn(struct supervisor *s, const struct msg *m) {
  struct start *start = start_copy(&m->start);
  struct bytes *guests = m->raw_len ? bytes_create(m->raw, m->raw_len) : NULL;
  if (!s->park.dismissing) {
    spawn_round(s, start, guests);
    return;
  }
  static const struct local_set nobody;
  struct local_set stay = parked_set(s);
  s->park.start = start;
  s->park.guests = guests;
  stop_parked_except(s, local_set_is_empty(&stay) ? &nobody : &stay, 0); /* without a grace: the round waits */
}

void sup_park_stop(struct supervisor *s, bool first, enum stop_reason reason, uint64_t grace_ms) {
  struct park *p = &s->park;
  if (p->start) { /* nothing of the round was spawned: only the CLEAR of the dismissed workers is to come */
    static const struct local_set nobody;
    drop_pending_start(p);
    if (s->stop.reason != STOP_ROUND) stop_parked_except(s, &nobody, 0);
    p->keep = parked_set(s);
    p->clear = false;
    return;
  }
  bool asked = !local_set_is_empty(&p->keep);
  if (first || s->stop.reason != STOP_ROUND) memset(&p->keep, 0, sizeof p->keep);
  for (int64_t i = 0; first && s->stop.reason == STOP_ROUND && i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    bool can = w->adopting || (w->spawned && !w->exited && !w->gone && w->can_rejoin);
    /* Without a grace there is no time to park, but a worker that has parked already may stay. */
    if (w->parked || (grace_ms >= 2 && can)) local_set_add(&p->keep, (uint32_t)i);
  }
  p->clear = false;
  p->by_ms = sup_any_worker(s, is_parking) ? s->now_ms + grace_ms / 2 : UINT64_MAX;
  if (grace_ms && (first || asked)) send_requests(s);
  /* While dismissed workers of an earlier round live, nothing of this one was spawned: the guard will say CLEAR of
   * theirs. */
  send_stop(s, p->dismissing ? p->clear_round : s->round.number, reason == STOP_LEAVING ? s->leave.signo : SIGTERM,
            grace_ms, &p->keep);
}

bool sup_park_clear(struct supervisor *s, const struct supervisor_event *ev) {
  struct park *p = &s->park;
  struct local_set stay = parked_set(s);
  if (!p->dismissing || ev->round != p->clear_round) return false;
  if (!local_set_is_within(&ev->clear.kept, &stay)) return true; /* of the stop before */
  p->dismissing = false;
  if (p->exiting) {
    sup_exit(s, s->leave.exit_code, p->bye);
  } else if (p->start) {
    struct start *start = p->start;
    struct bytes *guests = p->guests;
    p->start = NULL;
    p->guests = NULL;
    spawn_round(s, start, guests);
  } else if (s->state == SUPERVISOR_STOPPING) {
    p->clear = true;
  }
  return true;
}

bool sup_park_delays_exit(struct supervisor *s, int code, const char *bye) {
  struct park *p = &s->park;
  uint64_t grace_ms = s->leave.signals == 1 ? (uint64_t)s->config.settings.stop_timeout_ms : 0;
  bool over = p->exiting && (!p->dismissing || s->now_ms >= s->leave.deadline_ms);
  if (over || (!sup_any_parked(s) && !p->dismissing)) return false;
  p->bye = bye;
  s->leave.exit_code = code;
  if (p->exiting) return true; /* with another code, if END came meanwhile */
  p->exiting = true;
  s->stop.reason = STOP_EXIT;
  s->leave.deadline_ms = s->now_ms + grace_ms + SUPERVISOR_LEAVE_SLACK_MS;
  sup_dismiss_parked(s, grace_ms);
  return true;
}

void sup_park_finish(struct supervisor *s) {
  drop_pending_start(&s->park);
  s->park.dismissing = false;
  for (int64_t i = 0; i < s->config.workers; i++) s->workers[i].parked = false;
}
