/* SPDX-License-Identifier: Apache-2.0 */
/* The lines about nodes that are missing while a round forms, and about a daemon that is missing.
 *
 * On a terminal this is one living line, redrawn once a second. The seconds between two WAITING are counted here
 * (proto/waiting.c). Without a terminal a line is logged every 30 s, and sooner when something important changes: there
 * are enough nodes now, or no longer; a node was lost or refused; half of the missing nodes have come. Sixty-four
 * agents write into the same output of a batch system, so changes as expected are not logged each time. On a terminal
 * these lines go to the agent's file alone, except one that names a user's mistake, which the living line would cut
 * off.
 *
 * If too few nodes of the last round are here to decide on the next one, more time may not help: the others may be
 * dead, or have met elsewhere. An elastic job ends then after --orphan-grace. Looking for the others at another daemon
 * does not stop that clock.
 *
 * Within the first second nothing is shown, because by then most jobs have begun. */

#include "agent/supervisor/internal.h"

#include <stdlib.h>
#include "common/deadline.h"
#include "common/exit_codes.h"
#include "common/mem.h"

enum { QUIET_MS = 1000, REDRAW_MS = 1000, NEWS_MS = 2000 };

static void forget_waiting(struct supervisor *s) {
  bytes_unref(s->forming.waiting);
  s->forming.waiting = NULL;
}

static bool is_waiting_for_nodes(const struct supervisor *s) {
  return s->state == SUPERVISOR_JOINING && s->link.state == CONNECTION_READY && s->forming.waiting;
}

/* From the kept bytes; the caller calls msg_finish. */
static void read_waiting(const struct supervisor *s, struct msg *m) {
  struct frame f;
  size_t size;
  msg_init(m, MSG_WAITING);
  if (frame_parse(s->forming.waiting->data, s->forming.waiting->len, FRAME_MAX_TO_AGENT, &f, &size, NULL) == 1)
    msg_decode(&f, TO_AGENT, m, NULL);
}

/* Since the last line: a node was refused, or another job waits here. */
static bool has_new_mistake(const struct supervisor *s, const struct waiting *w) {
  uint64_t since_ms = s->forming.waiting_ms - s->forming.line_ms;
  bool refused = w->n_refusals && (uint64_t)w->refusals[0].ago_ms < since_ms;
  for (size_t i = 0; i < w->n_absent; i++)
    refused |= w->absent[i].why == ABSENCE_REFUSED && (uint64_t)w->absent[i].ago_ms < since_ms;
  return refused || (w->twin[0] && !s->forming.line_twin);
}

static bool has_enough(const struct waiting *w) {
  return !waiting_gives_up(w) && !w->lacks;
}

bool sup_waits_for_claim(const struct supervisor *s) {
  return s->config.settings.claims && is_waiting_for_nodes(s) && s->forming.enough;
}

static void note_lacks(struct supervisor *s, int64_t lacks) {
  s->forming.lacks_ms = lacks ? earliest(s->forming.lacks_ms, s->now_ms) : UINT64_MAX;
}

/* In the round: a daemon that has just begun knows of it by too few nodes. */
void sup_lacking(struct supervisor *s, const struct supervisor_event *ev) {
  const struct waiting *w = &ev->msg->waiting;
  struct buf text = BUF_INIT;
  if (!w->lacks || sup_is_exiting(s)) return;
  waiting_sentence(w, 0, UINT64_MAX, &text);
  sup_log(s, s->config.echo ? LOG_DEBUG : LOG_INFO, "%s", buf_text(&text));
  buf_finish(&text);
}

void sup_waiting(struct supervisor *s, const struct supervisor_event *ev) {
  const struct waiting *w = &ev->msg->waiting;
  if (sup_is_exiting(s)) return;
  if (w->incarnation[0]) sup_note_job(s, w->incarnation, w->round);
  if (w->spare && w->round > s->round.number) /* it runs without us */
    sup_dismiss_parked(s, (uint64_t)s->config.settings.stop_timeout_ms);
  if (w->n_successors) {
    sup_learn_successors(s, w->successors, w->n_successors);
    s->promise.succeeded = true;
  }
  if (w->spare && !w->lacks && sup_daemon_in_charge(s)) sup_tell_takeover(s, 0, 0);
  note_lacks(s, w->lacks);
  /* They have begun to follow this daemon, which takes up to a lease to show. Leaving now would undo it. */
  if (has_enough(w) && !w->spare && s->following.weak_ms != UINT64_MAX) s->following.weak_ms = s->now_ms;
  s->forming.enough = !w->lacks && w->here >= s->config.settings.min_nodes;
  if (w->text[0] && !w->lacks) {
    sup_forming_end(s);
    sup_log(s, LOG_INFO, "%s", w->text);
    return;
  }
  if (!s->forming.waiting) {
    s->forming.line_ms = 0;
    s->forming.first_ms = s->forming.redraw_ms = s->now_ms + QUIET_MS;
  }
  forget_waiting(s);
  s->forming.waiting = msg_bytes(ev->msg);
  s->forming.waiting_ms = s->now_ms;
  bool enough = has_enough(w);
  s->forming.news = has_new_mistake(s, w) || enough != s->forming.line_enough || w->here < s->forming.line_here ||
                    (w->missing < s->forming.line_missing && w->missing <= s->forming.line_missing / 2);
}

void sup_forming_end(struct supervisor *s) {
  forget_waiting(s);
  if (s->state != SUPERVISOR_JOINING) note_lacks(s, 0);
  if (s->forming.drawn) sup_effect(s, SUP_STATUS)->text = xstrdup("");
  s->forming.drawn = false;
}

/* NULL: there is a daemon. */
void sup_note_link_down(struct supervisor *s, const char *text) {
  if (text) forget_waiting(s);
  if (text && !s->link.down_text) s->forming.redraw_ms = s->now_ms + QUIET_MS;
  free(s->link.down_text);
  s->link.down_text = text ? xstrdup(text) : NULL;
}

static uint64_t line_due_ms(const struct supervisor *s) {
  if (!s->forming.line_ms) return s->forming.first_ms;
  return s->forming.line_ms + (s->forming.news ? (uint64_t)NEWS_MS : (uint64_t)WARN_EVERY_MS);
}

static void draw_living_line(struct supervisor *s, const char *text) {
  sup_effect(s, SUP_STATUS)->text = xstrdup(text);
  s->forming.drawn = true;
  s->forming.redraw_ms = s->now_ms + REDRAW_MS;
}

static uint64_t lack_ends_ms(const struct supervisor *s) {
  uint64_t since_ms = s->forming.lacks_ms;
  int64_t grace_ms = s->config.settings.orphan_grace_ms;
  bool waits = is_waiting_for_nodes(s) && since_ms != UINT64_MAX && !sup_is_exiting(s);
  return waits && grace_ms ? since_ms + (uint64_t)grace_ms : UINT64_MAX;
}

static uint64_t since(uint64_t from_ms, uint64_t now_ms) {
  return now_ms > from_ms ? now_ms - from_ms : 0;
}

static void put_waiting(const struct supervisor *s, const struct waiting *w, uint64_t now_ms, struct buf *out) {
  uint64_t end_ms = lack_ends_ms(s);
  waiting_sentence(w, since(s->forming.waiting_ms, now_ms), end_ms == UINT64_MAX ? end_ms : since(now_ms, end_ms), out);
}

bool sup_format_waiting(const struct supervisor *s, uint64_t now_ms, struct buf *out) {
  struct msg m;
  if (!s->forming.waiting) return false;
  read_waiting(s, &m);
  put_waiting(s, &m.waiting, now_ms, out);
  msg_finish(&m);
  return true;
}

/* The daemon is at 127.0.0.1 or localhost, which leads each machine to itself. Agents of one host may meet there, so
 * nothing is said once two have met. */
static void warn_of_loopback(struct supervisor *s, const struct waiting *w) {
  if (s->forming.warned || s->round.number || w->here > 1 || !w->missing || s->config.echo) return;
  if (!sup_home_is_loopback(s)) return;
  s->forming.warned = true;
  sup_log(s, LOG_WARN,
          "other machines cannot reach the daemon at %s: on each machine that is the machine itself; if nodes are "
          "missing on other machines, give all agents a name of this one in its place, such as %s",
          sup_daemon_name(s), s->config.host);
}

static void show_missing(struct supervisor *s) {
  struct buf text = BUF_INIT;
  struct msg m;
  read_waiting(s, &m);
  put_waiting(s, &m.waiting, s->now_ms, &text);
  warn_of_loopback(s, &m.waiting);
  if (s->now_ms >= line_due_ms(s)) {
    bool shown = s->config.living && !has_new_mistake(s, &m.waiting); /* by the living line */
    sup_log(s, shown || s->config.echo ? LOG_DEBUG : LOG_INFO, "%s", buf_text(&text));
    s->forming.line_ms = s->now_ms;
    s->forming.line_here = m.waiting.here;
    s->forming.line_missing = m.waiting.missing;
    s->forming.line_twin = m.waiting.twin[0] != 0;
    s->forming.line_enough = has_enough(&m.waiting);
    s->forming.news = false;
  }
  if (s->config.living && s->now_ms >= s->forming.redraw_ms) draw_living_line(s, buf_text(&text));
  msg_finish(&m);
  buf_finish(&text);
}

void sup_forming_tick(struct supervisor *s) {
  if (s->now_ms >= lack_ends_ms(s)) {
    /* Workers that stay for the next round have waited in vain. */
    struct buf text = BUF_INIT;
    struct msg m;
    read_waiting(s, &m);
    waiting_lacked(&m.waiting, &text);
    msg_finish(&m);
    sup_log(s, LOG_ERROR, "%s within %.0f s (--orphan-grace): %s; exit code %d: requeue me",
            s->config.settings.claims ? "no node of the last round came" : "no majority for the next round",
            (double)(s->now_ms - s->forming.lacks_ms) / 1000, buf_text(&text), EXIT_CODE_DAEMON_LOST);
    buf_finish(&text);
    sup_exit(s, EXIT_CODE_DAEMON_LOST, "too few nodes of the last round have come for longer than --orphan-grace");
    return;
  }
  if (s->now_ms < sup_forming_deadline(s)) return;
  if (is_waiting_for_nodes(s)) {
    show_missing(s);
    return;
  }
  struct buf text = BUF_INIT;
  uint64_t gone = s->now_ms - s->link.lost_ms, most = (uint64_t)s->config.settings.join_timeout_ms;
  buf_printf(&text, "no daemon for %llu s, giving up in %llu s (--join-timeout): %s", (unsigned long long)gone / 1000,
             (unsigned long long)(most > gone ? most - gone + 999 : 0) / 1000, s->link.down_text);
  draw_living_line(s, buf_text(&text));
  buf_finish(&text);
}

uint64_t sup_forming_deadline(const struct supervisor *s) {
  bool no_daemon = s->state == SUPERVISOR_JOINING && s->link.state != CONNECTION_READY && s->link.down_text;
  if (s->config.living && no_daemon) return s->forming.redraw_ms;
  if (!is_waiting_for_nodes(s)) return UINT64_MAX;
  uint64_t at_ms = earliest(line_due_ms(s), lack_ends_ms(s));
  return s->config.living && s->forming.redraw_ms < at_ms ? s->forming.redraw_ms : at_ms;
}
