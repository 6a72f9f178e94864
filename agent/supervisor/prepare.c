/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint before a planned end.
 *
 * The daemon sends PREPARE when it is about to end a round for a reason that is not a failure. A signal to this agent
 * means the same for its own workers. Workers that can write a checkpoint (agent/sdk/rdzv.h) are asked once, by a
 * number, and go on training. When each of them has reported a checkpoint that it began after the request, or is gone,
 * this node reports `checkpointed`.
 *
 * A PREPARE that is repeated while they write changes nothing. One that is repeated after the answer comes from a
 * daemon that was restarted, so it is worth another checkpoint. A node that leaves does not write another one.
 *
 * An agent that leaves holds its signal back. While there is a daemon it waits for STOP, because other nodes may still
 * write their part and need these ranks for the next step. Without a daemon it passes the signal on when its own
 * workers have written. In any case it does so when half of --stop-timeout is over. Nothing else has a deadline
 * here. */

#include "agent/supervisor/internal.h"

#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 8 };

void sup_request(struct supervisor *s, unsigned bits, const struct local_set *of) {
  struct supervisor_effect *e = sup_effect(s, SUP_REQUEST);
  e->request.bits = bits;
  for (int64_t i = 0; i < s->config.workers; i++)
    if (!of || local_set_has(of, (uint32_t)i)) local_set_add(&e->request.of, (uint32_t)i);
  e->request.checkpoint = s->checkpoint.n_requests;
}

static bool can_answer(const struct supervisor *s, const struct worker *w) {
  return w->can_checkpoint && !w->gone && !w->exited && !w->parked;
}

static bool owes_checkpoint(const struct supervisor *s, const struct worker *w) {
  return can_answer(s, w) && w->checkpoint != s->checkpoint.n_requests;
}

static void request_checkpoint(struct supervisor *s) {
  s->checkpoint.n_requests++;
  s->checkpoint.pending = true;
  s->checkpoint.requested_ms = s->now_ms;
  sup_request(s, 0, NULL);
}

/* PREPARE. --------------------------------------------------------------------------------------------------------- */

static void report_checkpointed(struct supervisor *s) {
  s->checkpoint.prepared = false;
  sup_report(s, REPORT_CHECKPOINTED, NULL, s->now_ms);
}

void sup_prepare(struct supervisor *s, const struct supervisor_event *ev) {
  const struct prepare *p = &ev->msg->prepare;
  s->checkpoint.prepared = true;
  bool written = s->leave.signals && s->checkpoint.n_requests && !s->checkpoint.pending,
       can = sup_any_worker(s, can_answer);
  if (!can || written) {
    report_checkpointed(s);
    return;
  }
  if (s->checkpoint.pending) return;
  struct buf why = BUF_INIT;
  verdict_sentence(&p->verdict, &why);
  sup_log(s, LOG_INFO, "%s; workers are asked for a checkpoint first, %.0f s at most", buf_text(&why),
          (double)p->left_ms / 1000);
  buf_finish(&why);
  request_checkpoint(s);
}

/* Workers' reports. ------------------------------------------------------------------------------------------------ */

void sup_can_checkpoint(struct supervisor *s, const struct supervisor_event *ev) {
  s->workers[ev->local_rank].can_checkpoint = ev->on;
  if (ev->on) s->progress.any_reported = true; /* it writes checkpoints */
}

void sup_checkpointed(struct supervisor *s, const struct supervisor_event *ev) {
  if (ev->checkpointed.request > s->checkpoint.n_requests) return;
  s->workers[ev->local_rank].checkpoint = ev->checkpointed.request;
  s->workers[ev->local_rank].checkpoint_step = ev->checkpointed.step;
  sup_note_saved(s, &s->workers[ev->local_rank], ev->checkpointed.step);
  s->workers[ev->local_rank].sign_ms[SIGN_SDK] = s->now_ms; /* it took a while, perhaps */
}

static void answer_if_written(struct supervisor *s) {
  uint64_t least = UINT64_MAX; /* of those that have answered, the one that is furthest behind */
  if (sup_any_worker(s, owes_checkpoint)) return;
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (w->checkpoint == s->checkpoint.n_requests && w->checkpoint_step < least) least = w->checkpoint_step;
  }
  if (least != UINT64_MAX)
    sup_log(s, LOG_INFO, "a checkpoint was written after step %llu, %.1f s after the request",
            (unsigned long long)least, (double)(s->now_ms - s->checkpoint.requested_ms) / 1000);
  s->checkpoint.pending = false;
  if (s->checkpoint.prepared) report_checkpointed(s);
}

/* Leaving. --------------------------------------------------------------------------------------------------------- */

bool sup_checkpoint_before_leaving(struct supervisor *s, uint64_t ask_ms) {
  if (s->state != SUPERVISOR_RUNNING || !ask_ms || !sup_any_worker(s, can_answer)) return false;
  s->checkpoint.leave_ms = s->now_ms + ask_ms;
  if (!s->checkpoint.pending) request_checkpoint(s);
  return true;
}

static void log_unwritten(struct supervisor *s) {
  struct buf late = BUF_INIT;
  if (s->checkpoint.pending) {
    int n = 0;
    for (int64_t i = 0; i < s->config.workers; i++) {
      if (!owes_checkpoint(s, &s->workers[i])) continue;
      if (n++ < NAMES_MAX) buf_printf(&late, "%s%lld", n > 1 ? ", " : "", (long long)(s->round.rank_base + i));
    }
    if (n > NAMES_MAX) buf_printf(&late, " and %d more", n - NAMES_MAX);
  }
  if (late.len)
    sup_log(s, LOG_WARN, "rank %s has not written the requested checkpoint; stopping without it", buf_text(&late));
  buf_finish(&late);
}

/* The daemon waits as long, and began to wait about when the workers were asked. */
void sup_log_late_checkpoint(struct supervisor *s) {
  uint64_t patience_ms = (uint64_t)s->config.settings.stop_timeout_ms / 2;
  if (s->now_ms - s->checkpoint.requested_ms >= patience_ms - patience_ms / 10) log_unwritten(s);
}

static bool is_waiting_to_leave(const struct supervisor *s) {
  return s->checkpoint.leave_ms != UINT64_MAX && (s->state == SUPERVISOR_RUNNING || s->state == SUPERVISOR_FINISHED);
}

void sup_prepare_watch(struct supervisor *s) {
  if (s->checkpoint.pending && s->state == SUPERVISOR_RUNNING) answer_if_written(s);
  if (!is_waiting_to_leave(s)) return;
  bool over = s->now_ms >= s->checkpoint.leave_ms;
  if (s->state == SUPERVISOR_FINISHED) {
    if (over || s->link.state != CONNECTION_READY) sup_exit(s, s->leave.exit_code, "a signal asked it to leave");
  } else if (over || (!s->checkpoint.pending && s->link.state != CONNECTION_READY)) {
    log_unwritten(s);
    sup_stop_trees(s, STOP_LEAVING, s->leave.kill_ms - s->now_ms);
  }
}

uint64_t sup_prepare_deadline(const struct supervisor *s) {
  return is_waiting_to_leave(s) ? s->checkpoint.leave_ms : UINT64_MAX;
}
