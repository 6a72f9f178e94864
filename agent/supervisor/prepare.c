/* A checkpoint before a planned end.
 *
 * The daemon says PREPARE when a round is about to be ended for a reason that is no failure, and a signal to this agent means the same for its own
 * workers. Those that answer (agent/sdk/rdzv.h) are asked once, by a number, and go on training; when all of them have told of a checkpoint that
 * they began after the request, or are gone, that is reported as `checkpointed`. Where none answers that is at once, and nobody is asked.
 *
 * PREPARE said again while they write changes nothing. Said again after the answer, it is from a daemon that came back and knows nothing of the first
 * one, so it is worth another checkpoint; but not where we leave: then ours is written, and the stop is near.
 *
 * An agent that leaves has its signal in hand. While the daemon is there it is held back until STOP: other nodes may still be writing their
 * part, and need these ranks for the next step. Without a daemon it is given when the own workers have written. In any case it is given when
 * half of --stop-timeout is over. Nothing else has a deadline here: who only prepares goes on training, and STOP comes by itself. The daemon's
 * patience is as long as ours, so either may end first: whoever has not written by then is named in both cases.
 *
 * If the workers finish instead, there may be an END to wait for, for as long as the checkpoint could have taken. */

#include "agent/supervisor/internal.h"
#include "agent/sdk/rdzv.h"

#include <string.h>
#include "common/mem.h"

enum { NAMES_MAX = 8 };

void sup_request(struct supervisor *s, unsigned bits, const struct local_set *of) {
  struct supervisor_effect *e = sup_effect(s, SUP_REQUEST);
  e->value = bits;
  for (int64_t i = 0; i < s->config.workers; i++)
    if (!of || local_set_has(of, (uint32_t)i)) local_set_add(&e->keep, (uint32_t)i);
  e->checkpoint = s->asked;
}

static bool answers(const struct worker *w) {
  return w->can_checkpoint && !w->gone && !w->exited && !w->parked;
}

static bool owes_checkpoint(const struct supervisor *s, const struct worker *w) {
  return answers(w) && w->checkpoint != s->asked;
}

static bool any_answers(const struct supervisor *s) {
  for (int64_t i = 0; i < s->config.workers; i++)
    if (answers(&s->workers[i])) return true;
  return false;
}

static void ask(struct supervisor *s) {
  s->asked++;
  s->asking = true;
  s->asked_ms = s->now_ms;
  sup_request(s, 0, NULL);
}

/* PREPARE. --------------------------------------------------------------------------------------------------------- */

static void report_checkpointed(struct supervisor *s) {
  s->prepared = false;
  sup_report(s, REPORT_CHECKPOINTED, NULL, s->now_ms);
}

void sup_prepare(struct supervisor *s, const struct prepare *p) {
  if (s->state != SUPERVISOR_RUNNING || p->round != s->round || strcmp(p->incarnation, s->incarnation) != 0)
    return;
  s->prepared = true;
  bool written = s->signals && s->asked && !s->asking, can = any_answers(s);
  if (!can || written) {
    report_checkpointed(s);
    return;
  }
  if (s->asking) return;
  struct buf why = BUF_INIT;
  verdict_sentence(&p->verdict, &why);
  sup_say(s, LOG_INFO, "%s; workers are asked for a checkpoint first, %.0f s at most", buf_text(&why),
          (double)p->left_ms / 1000);
  buf_finish(&why);
  ask(s);
}

/* What workers say. ------------------------------------------------------------------------------------------------ */

static bool is_ours(const struct supervisor *s, const struct supervisor_event *ev) {
  return ev->round == s->round && ev->local_rank < s->config.workers;
}

void sup_can_checkpoint(struct supervisor *s, const struct supervisor_event *ev) {
  if (is_ours(s, ev)) s->workers[ev->local_rank].can_checkpoint = ev->count > 0;
}

void sup_checkpointed(struct supervisor *s, const struct supervisor_event *ev) {
  if (!is_ours(s, ev) || ev->count > s->asked) return;
  s->workers[ev->local_rank].checkpoint = ev->count;
  s->workers[ev->local_rank].checkpoint_step = ev->step;
  sup_hang_sign(s, ev->round, ev->local_rank, SIGN_SDK, s->now_ms); /* it took a while, perhaps */
}

/* "after step 120, 0.3 s after it was asked for": of those that have answered, the one that is furthest behind. */
static void say_written(struct supervisor *s) {
  uint64_t least = UINT64_MAX;
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (w->checkpoint == s->asked && w->checkpoint_step < least) least = w->checkpoint_step;
  }
  if (least == UINT64_MAX) return;
  sup_say(s, LOG_INFO, "a checkpoint is written, after step %llu, %.1f s after it was asked for",
          (unsigned long long)least, (double)(s->now_ms - s->asked_ms) / 1000);
}

static void answer_if_written(struct supervisor *s) {
  for (int64_t i = 0; i < s->config.workers; i++)
    if (owes_checkpoint(s, &s->workers[i])) return;
  s->asking = false;
  say_written(s);
  if (s->prepared) report_checkpointed(s);
}

/* Leaving. --------------------------------------------------------------------------------------------------------- */

bool sup_leave_prepared(struct supervisor *s, uint64_t ask_ms) {
  if (s->state != SUPERVISOR_RUNNING || !ask_ms || !any_answers(s)) return false;
  s->ask_by_ms = s->now_ms + ask_ms;
  if (!s->asking) ask(s);
  return true;
}

static void put_late(const struct supervisor *s, struct buf *out) {
  int n = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    if (!owes_checkpoint(s, &s->workers[i])) continue;
    if (n++ < NAMES_MAX) buf_printf(out, "%s%lld", n > 1 ? ", " : "", (long long)(s->rank_base + i));
  }
  if (n > NAMES_MAX) buf_printf(out, " and %d more", n - NAMES_MAX);
}

static void say_unwritten(struct supervisor *s) {
  struct buf late = BUF_INIT;
  if (s->asking) put_late(s, &late);
  if (late.len)
    sup_say(s, LOG_WARN, "rank %s has not written the checkpoint that it was asked for; stopping without it",
            buf_text(&late));
  buf_finish(&late);
}

/* The daemon has the same patience, and began to wait about when we asked. */
void sup_prepare_stopped(struct supervisor *s) {
  uint64_t patience_ms = (uint64_t)s->config.settings.stop_timeout_ms / 2;
  if (s->now_ms - s->asked_ms >= patience_ms - patience_ms / 10) say_unwritten(s);
}

static void give_signal(struct supervisor *s) {
  say_unwritten(s);
  sup_stop_trees(s, STOP_LEAVING, s->kill_by_ms - s->now_ms);
}

static bool is_waiting_to_leave(const struct supervisor *s) {
  return s->ask_by_ms != UINT64_MAX && (s->state == SUPERVISOR_RUNNING || s->state == SUPERVISOR_FINISHED);
}

void sup_prepare_watch(struct supervisor *s) {
  if (s->asking && s->state == SUPERVISOR_RUNNING) answer_if_written(s);
  if (!is_waiting_to_leave(s)) return;
  bool over = s->now_ms >= s->ask_by_ms;
  if (s->state == SUPERVISOR_FINISHED) {
    if (over || s->link != LINK_READY) sup_exit(s, s->exit_code, "it was told to leave by a signal");
  } else if (over || (!s->asking && s->link != LINK_READY)) {
    give_signal(s);
  }
}

uint64_t sup_prepare_deadline(const struct supervisor *s) {
  return is_waiting_to_leave(s) ? s->ask_by_ms : UINT64_MAX;
}
