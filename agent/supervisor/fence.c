/* SPDX-License-Identifier: Apache-2.0 */
/* The fence: by when the workers here must be dead if the daemon falls silent.
 *
 * The FENCE flag of the daemon's last answer says that a round could form without this node. Then the node must not
 * outlive its lease: the daemon may soon give its ranks to others, and its workers are killed a margin earlier. The
 * lease counts from the sending of the last heartbeat that was answered. The daemon counts from its arrival, so it
 * always waits longer. Only what the daemon has sealed counts as an answer: anybody on the way can refuse or reset a
 * connection. A daemon that stops for longer says so before (GOING_AWAY) and names a time in which no round begins.
 *
 * Where another daemon can take the job over, an answer proves less, because the others may follow another one by now.
 * Then the answer has an age: so long ago a majority of the round's nodes still followed the daemon that answers. No
 * other daemon seals a round before that is a lease ago. So the workers may live for 17 twentieths of that lease: the
 * second attempt to kill them comes a tenth later, and is still in time.
 *
 * FENCE stays until the round ends, even if the spares that caused it have gone. If the other nodes of the round are
 * enough for one of their own, this node fences whatever the answers say. So a daemon knows without a word that each
 * node of such a round is dead when its lease is over. The guard keeps the same deadline when this agent cannot.
 *
 * Without the FENCE flag no other node gets this node's place, and the workers keep running until --orphan-grace. So a
 * daemon that was paused, or is being restarted, kills no job. If this node is lost then, the daemon begins no round
 * until it knows that nothing runs here (daemon/job/lost_node_hold.c). */

#include <signal.h>
#include <string.h>
#include "agent/supervisor/internal.h"
#include "common/deadline.h"
#include "common/exit_codes.h"

/* Answers. --------------------------------------------------------------------------------------------------------- */

/* A daemon at another address recovers our round from our reports. It knows nothing of the daemon that told us to
 * fence, which may live and form a round with the others. Its answers count only when all nodes of the round have come
 * to it. A daemon at the same address is a restarted one: no other can give our place away. Answers with an age need no
 * such rule. */
bool sup_answer_counts(struct supervisor *s, bool recovering) {
  if (!recovering || !s->fence.required || !sup_has_trees(s) || s->fence.killed || sup_can_be_succeeded(s))
    s->link.moved = false;
  return !s->link.moved;
}

uint64_t sup_allowed_until(const struct supervisor *s, uint64_t sent_ms, uint64_t age_ms) {
  uint64_t lease = sup_lease_ms(s), most = lease - lease / 5, counted = lease * 17 / 20;
  return sent_ms + earliest(most, age_ms < counted ? counted - age_ms : 0);
}

void sup_allow_workers(struct supervisor *s, uint64_t sent_ms, uint64_t age_ms) {
  uint64_t until_ms = sup_allowed_until(s, sent_ms, age_ms);
  if (sent_ms && until_ms > s->fence.until_ms) s->fence.until_ms = until_ms;
}

/* GOING_AWAY: the daemon said it behind the answer to that heartbeat, so it counts from there at most. */
void sup_begin_leave(struct supervisor *s, uint64_t away_ms) {
  if (!away_ms || s->link.moved || s->link.state != CONNECTION_READY || sup_can_be_succeeded(s)) return;
  s->fence.away_ms = s->heartbeat.acked_ms + away_ms - away_ms / 20;
  if (s->fence.away_ms > s->fence.until_ms) s->fence.until_ms = s->fence.away_ms;
}

/* The daemon is back, and its answers count again. */
void sup_end_leave(struct supervisor *s) {
  if (s->fence.until_ms == s->fence.away_ms) s->fence.until_ms = 0;
}

/* How long nodes may still run by that, for HELLO; by our clock, which may be slower than the daemon's. It stays until the
 * round ends: another node may have read GOING_AWAY and no WELCOME, and the daemon that welcomed us may die. */
int64_t sup_leave_left_ms(const struct supervisor *s) {
  return s->fence.away_ms > s->now_ms ? (int64_t)((s->fence.away_ms - s->now_ms) * 21 / 20 + 1) : 0;
}

/* FENCE never ends before the round does. So whoever knows that a node has read it once knows when that node is dead. */
void sup_update_fence(struct supervisor *s, bool fence, bool all) {
  s->fence.required |= fence;
  s->fence.all |= all;
}

void sup_begin_fence(struct supervisor *s, bool fence, bool all) {
  s->heartbeat.led_ms = s->heartbeat.answered_ms;
  s->fence.away_ms = 0;
  s->fence.all = all;
  /* The other nodes of the round are enough for one of their own. */
  s->fence.required = fence || s->round.nodes > s->config.settings.min_nodes;
  s->fence.unproven = false;
  sup_update_guard_fence(s); /* first: we may be stopped right behind it */
}

/* Silence. --------------------------------------------------------------------------------------------------------- */

/* The guard has the same deadline. If this agent comes that late, it could not act itself. The daemon goes on without
 * this node a twentieth of the lease after the deadline: who is continued then is late. */
static void log_fenced(struct supervisor *s, uint64_t at_ms) {
  struct buf line = BUF_INIT;
  const char *daemon = sup_daemon_name(s), *home = s->targets.home.host;
  long long round = (long long)s->round.number;
  double lease_s = (double)sup_lease_ms(s) / 1000, silent_s = (double)(s->now_ms - s->heartbeat.acked_ms) / 1000;
  bool ready = s->link.state == CONNECTION_READY;
  bool silent = !ready || s->now_ms >= s->heartbeat.acked_ms + sup_lease_ms(s) / 2;
  bool expected = false; /* it is part of every takeover by another node's daemon */
  if (s->now_ms >= at_ms + sup_lease_ms(s) / 40) {
    buf_printf(
        &line,
        "this agent was stopped, or could not run, for %.1f s after its workers had to be killed: the daemon at %s had not answered, and a round can form without this node; its guard has killed its workers",
        (double)(s->now_ms - at_ms) / 1000, daemon);
  } else if (s->link.moved && ready) {
    buf_printf(
        &line,
        "the daemon at %s did not begin round %lld and has not found all its nodes; the one that began it may form a round without this node: killing the workers before the lease of %.1f s is over",
        daemon, round, lease_s);
  } else if (!sup_can_be_succeeded(s)) {
    buf_printf(
        &line,
        "no answer from the daemon at %s for %.1f s, and a round can form without this node: killing the workers before the lease of %.1f s is over",
        daemon, silent_s, lease_s);
  } else {
    buf_printf(&line, "killing the workers of round %lld before the lease of %.1f s is over: ", round, lease_s);
    expected = !silent && s->following.charge[0] && strcmp(s->following.follows, s->following.charge) != 0;
    if (expected)
      buf_printf(&line, "%s may begin the next round then", home);
    else if (silent)
      buf_printf(&line, "no daemon has answered for %.1f s, and the others may form a round without this node",
                 silent_s);
    else
      buf_printf(&line,
                 "too few of its nodes follow the daemon on %s, and the others may form a round without this node",
                 home);
  }
  sup_log(s, expected ? LOG_WARN : LOG_ERROR, "%s", buf_text(&line));
  buf_finish(&line);
}

/* A death from at_ms on is not a failure, although its event may come much later. */
static void fence_now(struct supervisor *s, uint64_t at_ms) {
  log_fenced(s, at_ms);
  s->fence.since_welcome = true;
  if (!sup_has_trees(s)) {
    sup_dismiss_parked(s, 0);
    return;
  }
  s->fence.killed = true;
  sup_stop_trees(s, STOP_FENCED, 0);
  s->stop.begun_ms = earliest(s->stop.begun_ms, at_ms);
}

/* The guard may have been stopped as long as this agent. Then the backstop killed the workers at the deadline, and
 * when_ms is only when the guard could run again. */
static uint64_t fenced_at_ms(const struct supervisor *s, const struct supervisor_event *ev) {
  return earliest(ev->when_ms, sup_fence_deadline(s));
}

void sup_fenced(struct supervisor *s, const struct supervisor_event *ev) {
  uint64_t at_ms = fenced_at_ms(s, ev);
  if (!s->fence.killed && s->stop.reason != STOP_STALE && s->stop.reason != STOP_EXIT) fence_now(s, at_ms);
  s->stop.begun_ms = earliest(s->stop.begun_ms, at_ms);
}

void sup_fenced_parked(struct supervisor *s, const struct supervisor_event *ev) {
  if (sup_any_parked(s)) fence_now(s, fenced_at_ms(s, ev));
}

void sup_update_guard_fence(struct supervisor *s) {
  uint64_t at = sup_fence_deadline(s);
  if (at == s->fence.guard_ms || s->state == SUPERVISOR_DONE) return;
  s->fence.guard_ms = at;
  sup_effect(s, SUP_FENCE_AT)->fence_at.at_ms = at;
}

void sup_fence_tick(struct supervisor *s) {
  uint64_t at_ms = sup_fence_deadline(s);
  if (s->now_ms >= at_ms) fence_now(s, at_ms);
}

/* Without FENCE too nothing outlives --orphan-grace and --stop-timeout, even if this agent cannot run then. */
uint64_t sup_fence_deadline(const struct supervisor *s) {
  bool runs = sup_has_trees(s) && s->stop.reason != STOP_STALE && s->stop.reason != STOP_EXIT;
  bool lives = runs || sup_any_parked(s) || (s->park.dismissing && !s->park.hurried);
  if (s->fence.required && !s->fence.killed && lives) return s->fence.until_ms;
  int64_t grace_ms = s->config.settings.orphan_grace_ms;
  if (!grace_ms || s->fence.killed || !sup_has_trees(s)) return UINT64_MAX;
  return s->heartbeat.led_ms + (uint64_t)(grace_ms + s->config.settings.stop_timeout_ms + ORPHAN_SLACK_MS);
}

/* A daemon that is away for long: how long workers run without one (--orphan-grace).
 *
 * The scheduler may have given the job up, or a daemon elsewhere may wait for this node's place. Then the workers here
 * are orphans, which burn their devices for nothing. So there is a limit: 60 s for an elastic job, whose other nodes
 * may have found each other elsewhere, and five minutes at fixed size, where nobody goes on without this node before. A
 * daemon that is not in charge of the job counts as none.
 *
 * The guard keeps this clock too, and the daemon knows it from HELLO: a lost node that did not have to fence is dead
 * for certain when it is over.
 *
 * When the time is over the agent leaves as at a signal: workers get SIGTERM and --stop-timeout, a daemon that comes
 * back meanwhile gets LEAVING, and the exit code says "requeue me". */

uint64_t sup_orphan_deadline(const struct supervisor *s) {
  int64_t grace_ms = s->config.settings.orphan_grace_ms;
  bool led = s->link.state == CONNECTION_READY && s->heartbeat.led_ms == s->heartbeat.answered_ms;
  if (led || (s->state != SUPERVISOR_STARTING && s->state != SUPERVISOR_RUNNING) || !grace_ms) return UINT64_MAX;
  return s->heartbeat.led_ms + (uint64_t)grace_ms;
}

void sup_orphan_tick(struct supervisor *s) {
  if (s->now_ms < sup_orphan_deadline(s)) return;
  uint64_t stop_ms = (uint64_t)s->config.settings.stop_timeout_ms;
  sup_log(
      s, LOG_ERROR,
      "the daemon at %s has been %s for %.0f s (--orphan-grace): stopping the workers within %.0f s (--stop-timeout); exit code %d: requeue me",
      sup_daemon_name(s), s->link.state == CONNECTION_READY ? "without a majority of the nodes" : "unreachable",
      (double)(s->now_ms - s->heartbeat.led_ms) / 1000, (double)stop_ms / 1000, EXIT_CODE_DAEMON_LOST);
  struct verdict what;
  verdict_init(&what);
  what.cause = CAUSE_NODE_LEAVING;
  what.text = "its daemon was unreachable for longer than --orphan-grace";
  sup_report(s, REPORT_LEAVING, &what, s->now_ms);
  s->leave.exit_code = EXIT_CODE_DAEMON_LOST;
  s->leave.deadline_ms = s->now_ms + stop_ms + SUPERVISOR_LEAVE_SLACK_MS;
  s->leave.signo = SIGTERM;
  sup_stop_trees(s, STOP_LEAVING, stop_ms);
}
