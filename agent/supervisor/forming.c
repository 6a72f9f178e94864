/* What a person sees while a round forms, or while there is no daemon yet.
 *
 * On a terminal that is one living line, written anew once a second with the time going on: who is missing, since when, and how long that
 * goes on. The daemon sends WAITING when there is news, and seldom otherwise; the seconds in between are counted here, from the last
 * one and its age (proto/waiting.c).
 *
 * Without a terminal a line is said every 30 s, and sooner when something has happened that one would want to know at once: enough nodes are
 * here now, or no longer; a node was lost or refused; half of those who were missing have come. Sixty-four agents write into
 * the same output of a batch system, so what merely goes on as expected is not told each time. On a terminal the same lines go to the
 * agent's file alone.
 *
 * Nothing at all is shown within the first second: by then most jobs have begun. */

#include "agent/supervisor/internal.h"

#include <stdlib.h>
#include "common/mem.h"

enum { QUIET_MS = 1000, REDRAW_MS = 1000, NEWS_MS = 2000 };

static void forget_waiting(struct supervisor *s) {
  bytes_unref(s->waiting);
  s->waiting = NULL;
}

static bool is_waiting_for_nodes(const struct supervisor *s) {
  return s->state == SUPERVISOR_JOINING && s->link == LINK_READY && s->waiting;
}

static bool is_waiting_for_daemon(const struct supervisor *s) {
  return s->config.living && s->state == SUPERVISOR_JOINING && s->link != LINK_READY && s->down_text;
}

/* Filled from what was kept; the caller's to msg_finish. */
static void read_waiting(const struct supervisor *s, struct msg *m) {
  struct frame f;
  size_t size;
  msg_init(m, MSG_WAITING);
  if (frame_parse(s->waiting->data, s->waiting->len, FRAME_MAX_TO_AGENT, &f, &size, NULL) == 1)
    msg_decode(&f, TO_AGENT, m, NULL);
}

/* Since the last line. */
static bool much_has_changed(const struct supervisor *s, const struct waiting *w) {
  bool enough = w->prospect != PROSPECT_GIVE_UP;
  bool refused = w->n_refusals && (uint64_t)w->refusals[0].ago_ms + s->said_forming_ms < s->now_ms;
  return refused || enough != s->said_enough || w->here < s->said_here ||
         (w->missing < s->said_missing && w->missing <= s->said_missing / 2);
}

void sup_waiting(struct supervisor *s, const struct msg *m) {
  const struct waiting *w = &m->waiting;
  if (s->state != SUPERVISOR_JOINING || sup_is_exiting(s)) return;
  if (w->incarnation[0]) sup_learn(s, w->incarnation, w->round);
  if (w->spare && w->round > s->round) /* it runs without us */
    sup_dismiss(s, (uint64_t)s->config.settings.stop_timeout_ms);
  if (w->text[0]) {
    sup_forming_over(s);
    sup_say(s, LOG_INFO, "%s", w->text);
    return;
  }
  if (!s->waiting) {
    s->said_forming_ms = 0;
    s->forming_ms = s->redraw_ms = s->now_ms + QUIET_MS;
  }
  forget_waiting(s);
  s->waiting = msg_bytes(m);
  s->waiting_ms = s->now_ms;
  s->forming_news = much_has_changed(s, w);
}

void sup_forming_over(struct supervisor *s) {
  forget_waiting(s);
  if (s->drawn) sup_effect(s, SUP_STATUS)->text = xstrdup("");
  s->drawn = false;
}

/* No daemon: why, until there is one. */
void sup_keep_why_down(struct supervisor *s, const char *text) {
  if (text) forget_waiting(s);
  if (text && !s->down_text) s->redraw_ms = s->now_ms + QUIET_MS;
  free(s->down_text);
  s->down_text = text ? xstrdup(text) : NULL;
}

static uint64_t line_due_ms(const struct supervisor *s) {
  if (!s->said_forming_ms) return s->forming_ms;
  return s->said_forming_ms + (s->forming_news ? (uint64_t)NEWS_MS : (uint64_t)NAG_EVERY_MS);
}

static void say_line(struct supervisor *s, const struct waiting *w, const char *text) {
  sup_say(s, s->config.living ? LOG_DEBUG : LOG_INFO, "%s", text);
  s->said_forming_ms = s->now_ms;
  s->said_here = w->here;
  s->said_missing = w->missing;
  s->said_enough = w->prospect != PROSPECT_GIVE_UP;
  s->forming_news = false;
}

static void draw(struct supervisor *s, const char *text) {
  sup_effect(s, SUP_STATUS)->text = xstrdup(text);
  s->drawn = true;
  s->redraw_ms = s->now_ms + REDRAW_MS;
}

void sup_put_waiting(const struct supervisor *s, uint64_t now_ms, struct buf *out) {
  struct msg m;
  read_waiting(s, &m);
  waiting_sentence(&m.waiting, now_ms > s->waiting_ms ? now_ms - s->waiting_ms : 0, out);
  msg_finish(&m);
}

static void tell_missing(struct supervisor *s) {
  struct buf text = BUF_INIT;
  struct msg m;
  read_waiting(s, &m);
  waiting_sentence(&m.waiting, s->now_ms - s->waiting_ms, &text);
  if (s->now_ms >= line_due_ms(s)) say_line(s, &m.waiting, buf_text(&text));
  if (s->config.living && s->now_ms >= s->redraw_ms) draw(s, buf_text(&text));
  msg_finish(&m);
  buf_finish(&text);
}

static void tell_no_daemon(struct supervisor *s) {
  struct buf text = BUF_INIT;
  uint64_t gone = s->now_ms - s->daemonless_ms, most = (uint64_t)s->config.settings.join_timeout_ms;
  buf_printf(&text, "no daemon for %llu s, giving up in %llu s (--join-timeout): %s",
             (unsigned long long)gone / 1000,
             (unsigned long long)(most > gone ? most - gone + 999 : 0) / 1000, s->down_text);
  draw(s, buf_text(&text));
  buf_finish(&text);
}

void sup_forming_tick(struct supervisor *s) {
  if (s->now_ms < sup_forming_deadline(s)) return;
  if (is_waiting_for_nodes(s))
    tell_missing(s);
  else
    tell_no_daemon(s);
}

uint64_t sup_forming_deadline(const struct supervisor *s) {
  if (is_waiting_for_daemon(s)) return s->redraw_ms;
  if (!is_waiting_for_nodes(s)) return UINT64_MAX;
  uint64_t at_ms = line_due_ms(s);
  return s->config.living && s->redraw_ms < at_ms ? s->redraw_ms : at_ms;
}
