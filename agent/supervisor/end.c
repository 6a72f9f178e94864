/* How an agent ends: by the daemon's word, by a signal, or because it cannot go on.
 *
 * Whatever the way, its workers are dead before it exits, and its exit code is one of the documented table. A signal is a wish to leave: the job is
 * told LEAVING at once, the workers get --stop-timeout, the others go on without a charge. Workers that answer are asked for a checkpoint first, and
 * get the signal when it is there or when half of that time is over (supervisor_prepare.c); all others get it at once. A second signal ends the
 * patience. `leave_by_ms` is the promise that it ends at all.
 *
 * Who was told to leave exits with the code for that, whatever became of the job; but not when it has succeeded: nobody is to start it again. */

#include "agent/supervisor/internal.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"

static void tell_ending(struct supervisor *s, int code) {
  struct ending *e = sup_effect(s, SUP_ENDING)->ending = xcalloc(1, sizeof *e);
  e->heard = s->heard_end;
  e->outcome = s->outcome;
  e->code = code;
  e->round = s->heard_end ? s->end_round : s->round;
  e->restarts_used = s->restarts_used;
  e->max_restarts = s->config.settings.max_restarts;
  verdict_copy(&e->verdict, &s->last);
}

void sup_exit(struct supervisor *s, int code, const char *bye) {
  if (sup_park_delays_exit(s, code, bye)) return;
  sup_say_untold(s);
  if (bye) {
    struct msg m;
    msg_init(&m, MSG_BYE);
    m.bye.text = bye;
    sup_send(s, &m);
  }
  sup_close_store(s);
  sup_effect(s, SUP_STATUS)->text = xstrdup("");
  sup_effect(s, SUP_OBITUARY); /* none any more: nothing of ours runs */
  sup_effect(s, SUP_DISCONNECT);
  sup_set_state(s, SUPERVISOR_DONE);
  s->exit_code = code;
  tell_ending(s, code);
  sup_effect(s, SUP_EXIT)->value = (uint64_t)code;
}

/* The code is decided; what still runs is killed first. */
static void exit_after_trees(struct supervisor *s, int code) {
  s->exit_code = code;
  if (!sup_has_trees(s)) {
    sup_exit(s, code, NULL);
    return;
  }
  s->leave_by_ms = s->now_ms + SUPERVISOR_LEAVE_SLACK_MS;
  sup_stop_trees(s, STOP_EXIT, 0);
}

/* END. ------------------------------------------------------------------------------------------------------------- */

/* What neither the verdict nor the budget says. */
static const char *why_over(const struct supervisor *s, const struct end *end) {
  enum cause c = end->verdict.cause;
  bool death = c == CAUSE_WORKER_EXIT || c == CAUSE_WORKER_SIGNAL || c == CAUSE_WORKER_HUNG ||
               c == CAUSE_DEVICE_HELD || c == CAUSE_CONTACT_LOST || c == CAUSE_NCCL_IDS;
  bool budget = death && end->restarts_used >= s->config.settings.max_restarts;
  bool finished = s->config.settings.after_finish == AFTER_FINISH_FAIL && !budget && !end->verdict.lasting;
  return end->outcome == OUTCOME_FAILED && finished && (death || c == CAUSE_NODE_LOST)
             ? "; no restart, since all workers of another node have finished (--after-finish)"
             : "";
}

static void say_end(struct supervisor *s, const struct end *end) {
  double seconds = (double)(s->now_ms - s->begun_ms) / 1000;
  if (end->outcome == OUTCOME_SUCCESS) {
    sup_say(s, LOG_INFO, "job %s is done: %lld round%s, %lld restart%s, %.1f s", s->config.job,
            (long long)end->round, end->round == 1 ? "" : "s", (long long)end->restarts_used,
            end->restarts_used == 1 ? "" : "s", seconds);
    if (!s->rounds)
      sup_say(s, LOG_WARN,
              "no worker ran on this node: it was a spare; another job at the same endpoint needs an "
              "--rdzv-id of its own");
    return;
  }
  struct buf text = BUF_INIT;
  verdict_sentence(&end->verdict, &text);
  if (end->verdict.cause != CAUSE_NONE) sup_forget_untold(s);
  sup_say_verdict(s, &end->verdict, "");
  char when[40] = "before its first round";
  if (end->round) snprintf(when, sizeof when, "in round %lld", (long long)end->round);
  sup_say(s, LOG_ERROR, "job %s %s %s: %s; %lld of %lld restarts used%s; exit code %lld", s->config.job,
          outcome_name(end->outcome), when, buf_text(&text), (long long)end->restarts_used,
          (long long)s->config.settings.max_restarts, why_over(s, end), (long long)end->code);
  buf_finish(&text);
}

void sup_end(struct supervisor *s, const struct end *end) {
  if (sup_is_exiting(s) && !s->park.exiting) return;
  /* While it only waits, or is on its way to it, the job may have turned out to be another one than it was welcomed to. */
  bool waits = s->state == SUPERVISOR_JOINING || (s->state == SUPERVISOR_STOPPING && s->reason == STOP_STALE);
  if (!waits && strcmp(end->incarnation, s->incarnation) != 0) return;
  struct msg m;
  msg_init(&m, MSG_END_ACK);
  m.end_ack.incarnation = end->incarnation;
  sup_send(s, &m);
  s->heard_end = true;
  s->outcome = end->outcome;
  s->end_round = end->round;
  s->restarts_used = end->restarts_used;
  say_end(s, end);
  bool left = s->signals && end->outcome != OUTCOME_SUCCESS;
  exit_after_trees(s, left ? s->exit_code : (int)end->code);
}

void sup_refused(struct supervisor *s, const struct refused *r) {
  if (sup_is_exiting(s)) return;
  sup_say(s, LOG_ERROR, "the daemon at %s refused this node: %s", s->config.endpoint, r->text);
  exit_after_trees(s, (int)r->code);
}

/* Signals. --------------------------------------------------------------------------------------------------------- */

static void report_leaving(struct supervisor *s, const char *why) {
  struct buf text = BUF_INIT;
  if (s->by_clock)
    buf_printf(&text, "its agent leaves: %s", why);
  else
    buf_printf(&text, "its agent was told to leave by %s", why);
  struct verdict what;
  verdict_init(&what);
  what.cause = CAUSE_NODE_LEAVING;
  what.text = buf_text(&text);
  sup_report(s, REPORT_LEAVING, &what, s->now_ms);
  buf_finish(&text);
}

/* why: the signal's name, or what else it is. */
static void leave(struct supervisor *s, int signo, const char *why) {
  uint64_t grace = (uint64_t)s->config.settings.stop_timeout_ms;
  s->exit_code = signo == SIGINT ? 128 + SIGINT : EXIT_CODE_PREEMPTED;
  if (!sup_has_trees(s)) {
    sup_say(s, LOG_WARN, "%s: leaving with exit code %d", why, s->exit_code);
    sup_exit(s, s->exit_code, "it was told to leave by a signal");
    return;
  }
  s->kill_by_ms = s->now_ms + grace;
  s->leave_by_ms = s->kill_by_ms + SUPERVISOR_LEAVE_SLACK_MS;
  report_leaving(s, why);
  if (sup_leave_prepared(s, grace / 2)) {
    sup_say(s, LOG_WARN,
            "%s: leaving with exit code %d; workers are asked for a checkpoint first, which may take %.0f s, "
            "and have "
            "%.0f s in all to stop (--stop-timeout), a second signal kills them",
            why, s->exit_code, (double)grace / 2000, (double)grace / 1000);
    return;
  }
  sup_say(s, LOG_WARN,
          "%s: leaving with exit code %d; workers have %.0f s to stop (--stop-timeout), a second signal "
          "kills them",
          why, s->exit_code, (double)grace / 1000);
  sup_stop_trees(s, STOP_LEAVING, grace);
}

/* A signal that comes when the agent leaves by the clock is mostly the scheduler's own, at the end: workers still have their time. */
void sup_signal(struct supervisor *s, int signo, const char *why) {
  const char *name = signal_name(signo);
  if (why && (s->signals || sup_is_exiting(s))) return;
  if (sup_is_exiting(s)) {
    sup_dismiss(s, 0);
    return;
  }
  if (s->by_clock) {
    s->by_clock = false;
    sup_say(s, LOG_INFO, "%s: this agent is leaving already", name ? name : "a signal");
    return;
  }
  if (++s->signals == 1) {
    s->leave_signo = signo;
    s->by_clock = why != NULL;
    leave(s, signo, why ? why : name ? name : "a signal");
    return;
  }
  sup_say(s, LOG_WARN, "second signal: killing the workers");
  sup_stop_trees(s, STOP_LEAVING, 0);
}

void sup_guard_gone(struct supervisor *s, const struct supervisor_event *ev) {
  sup_say(s, LOG_ERROR, "the guard process died; %s",
          ev->count ? "some workers could not be killed" : "its workers were killed");
  bool decided = s->signals || sup_is_exiting(s);
  sup_park_finish(s);
  sup_exit(s, decided ? s->exit_code : EXIT_CODE_SYSTEM,
           ev->count ? NULL : "its guard process died"); /* BYE promises that nothing runs */
}
