/* SPDX-License-Identifier: Apache-2.0 */
/* How an agent ends: by END or REFUSED, by a signal, or because it cannot go on.
 *
 * In every case its workers are dead before it exits, and its exit code is one of the documented table. A signal is a
 * wish to leave. The daemon gets LEAVING at once, the workers get --stop-timeout, and the other nodes go on without a
 * charge. Workers that can write a checkpoint are asked for one first, and get the signal when it is written or when
 * half of that time is over (prepare.c). All others get the signal at once. A second signal kills them. `deadline_ms`
 * guarantees that the agent exits.
 *
 * An agent that a signal asked to leave exits with the code for leaving, even if the job failed. If the job succeeded
 * it exits with 0, so that nothing starts it again. */

#include "agent/supervisor/internal.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"

/* The code is decided; running workers are killed first. */
static void exit_after_trees(struct supervisor *s, int code) {
  s->leave.exit_code = code;
  if (!sup_has_trees(s)) {
    sup_exit(s, code, NULL);
    return;
  }
  s->leave.deadline_ms = s->now_ms + SUPERVISOR_LEAVE_SLACK_MS;
  sup_stop_trees(s, STOP_EXIT, 0);
}

/* END. ------------------------------------------------------------------------------------------------------------- */

static void log_end(struct supervisor *s, const struct end *end) {
  double seconds = (double)(s->now_ms - s->job.begun_ms) / 1000;
  if (end->outcome == OUTCOME_SUCCESS) {
    int64_t rounds = end->goodput.rounds ? end->goodput.rounds : end->round; /* a takeover may leave a number out */
    sup_log(s, s->config.echo ? LOG_DEBUG : LOG_INFO, "job %s is done: %lld round%s, %lld restart%s, %.1f s",
            s->config.job, (long long)rounds, rounds == 1 ? "" : "s", (long long)end->restarts_used,
            end->restarts_used == 1 ? "" : "s", seconds);
    struct buf slow = BUF_INIT;
    buf_put_plain(&slow, end->verdict.slow, strlen(end->verdict.slow), SLOW_TEXT_MAX);
    if (slow.len) sup_log(s, s->config.echo ? LOG_DEBUG : LOG_WARN, "%s", buf_text(&slow));
    buf_finish(&slow);
    if (!s->job.rounds)
      sup_log(
          s, LOG_WARN,
          "no worker ran on this node: it was a spare; another job at the same endpoint needs an --rdzv-id of its own");
    return;
  }
  struct buf text = BUF_INIT, why = BUF_INIT;
  verdict_sentence(&end->verdict, &text);
  /* The reason that neither the verdict nor the budget gives. */
  bool death = cause_costs_restart(end->verdict.cause), failed = end->outcome == OUTCOME_FAILED;
  bool budget = death && end->restarts_used >= s->config.settings.max_restarts;
  int64_t limit = s->config.settings.repeat_limit;
  bool finished = s->config.settings.after_finish == AFTER_FINISH_FAIL && !budget && !end->verdict.lasting;
  if (failed && death && limit && end->repeats >= limit)
    buf_printf(
        &why,
        "; not restarted, since the same failure has come again %lld time%s without progress (--repeat-limit %lld)",
        (long long)end->repeats, end->repeats == 1 ? "" : "s", (long long)limit);
  else if (failed && finished && (death || end->verdict.cause == CAUSE_NODE_LOST))
    buf_puts(&why, "; no restart, since all workers of another node have finished (--after-finish)");
  if (s->forming.warned && !s->round.number)
    buf_printf(&why, "; other machines cannot reach the daemon at %s", sup_daemon_name(s));
  sup_put_finished(s, &end->verdict, &why);
  if (end->verdict.cause != CAUSE_NONE) sup_drop_pending_verdict(s);
  sup_log_verdict(s, &end->verdict, "");
  char when[40] = "before its first round";
  if (end->round) snprintf(when, sizeof when, "in round %lld", (long long)end->round);
  sup_log(s, sup_is_echo(s, &end->verdict) ? LOG_DEBUG : LOG_ERROR,
          "job %s %s %s: %s; %lld of %lld restarts used%s; exit code %lld%s", s->config.job, outcome_name(end->outcome),
          when, buf_text(&text), (long long)end->restarts_used, (long long)s->config.settings.max_restarts,
          buf_text(&why), (long long)end->code, end->code == EXIT_CODE_PREEMPTED ? ": requeue me" : "");
  buf_finish(&text);
  buf_finish(&why);
}

void sup_end(struct supervisor *s, const struct supervisor_event *ev) {
  const struct end *end = &ev->msg->end;
  if (sup_is_exiting(s) && !s->park.exiting) return;
  /* An agent that only waits, or is about to, may have been welcomed to another life of the job. */
  bool waits = s->state == SUPERVISOR_JOINING || (s->state == SUPERVISOR_STOPPING && s->stop.reason == STOP_STALE);
  if (!waits && strcmp(end->incarnation, s->round.incarnation) != 0) return;
  struct msg m;
  msg_init(&m, MSG_END_ACK);
  m.end_ack.incarnation = end->incarnation;
  sup_send(s, &m);
  s->job.ended = true;
  s->job.outcome = end->outcome;
  s->job.end_round = end->round;
  s->job.repeats = end->repeats;
  s->round.restarts_used = end->restarts_used;
  sup_account_note(s, &end->goodput);
  log_end(s, end);
  struct buf text = BUF_INIT;
  goodput_sentence(&end->goodput, &text);
  if (text.len) sup_log(s, s->config.echo ? LOG_DEBUG : LOG_INFO, "%s", buf_text(&text));
  buf_finish(&text);
  bool left = s->leave.signals && end->outcome != OUTCOME_SUCCESS;
  exit_after_trees(s, left ? s->leave.exit_code : (int)end->code);
}

void sup_refused(struct supervisor *s, const struct supervisor_event *ev) {
  const struct refused *r = &ev->msg->refused;
  if (sup_is_exiting(s)) return;
  /* A line has said why it is unfit. */
  bool unfit = sup_check_failed_first(s);
  sup_log(s, unfit && r->code == EXIT_CODE_OTHER_HOST ? LOG_DEBUG : LOG_ERROR, "the daemon at %s refused this node: %s",
          sup_daemon_name(s), r->text);
  exit_after_trees(s, unfit ? EXIT_CODE_OTHER_HOST : (int)r->code);
}

void sup_misfit(struct supervisor *s, const char *why) {
  if (sup_is_exiting(s)) return;
  sup_log(s, LOG_ERROR, "%s", why);
  exit_after_trees(s, EXIT_CODE_REFUSED);
}

/* Signals. --------------------------------------------------------------------------------------------------------- */

/* why: the signal's name, or another reason. */
static void begin_leaving(struct supervisor *s, int signo, const char *why) {
  uint64_t grace = (uint64_t)s->config.settings.stop_timeout_ms;
  s->leave.exit_code = signo == SIGINT ? 128 + SIGINT : EXIT_CODE_PREEMPTED;
  if (!sup_has_trees(s)) {
    sup_log(s, LOG_WARN, "%s: leaving with exit code %d", why, s->leave.exit_code);
    sup_exit(s, s->leave.exit_code, "a signal asked it to leave");
    return;
  }
  s->leave.kill_ms = s->now_ms + grace;
  s->leave.deadline_ms = s->leave.kill_ms + SUPERVISOR_LEAVE_SLACK_MS;
  struct buf text = BUF_INIT;
  if (s->leave.by_clock)
    buf_printf(&text, "its agent leaves: %s", why);
  else
    buf_printf(&text, "%s asked its agent to leave", why);
  struct verdict what;
  verdict_init(&what);
  what.cause = CAUSE_NODE_LEAVING;
  what.text = buf_text(&text);
  sup_report(s, REPORT_LEAVING, &what, s->now_ms);
  buf_finish(&text);
  if (sup_checkpoint_before_leaving(s, grace / 2)) {
    sup_log(
        s, LOG_WARN,
        "%s: leaving with exit code %d; workers are asked for a checkpoint first, for up to %.0f s, and have %.0f s in all to stop (--stop-timeout); a second signal kills them",
        why, s->leave.exit_code, (double)grace / 2000, (double)grace / 1000);
    return;
  }
  sup_log(s, LOG_WARN,
          "%s: leaving with exit code %d; workers have %.0f s to stop (--stop-timeout); a second signal kills them",
          why, s->leave.exit_code, (double)grace / 1000);
  sup_stop_trees(s, STOP_LEAVING, grace);
}

/* A signal while the agent leaves by the clock mostly comes from the scheduler, at the end of the job. Workers keep
 * their time. */
void sup_signal(struct supervisor *s, const struct supervisor_event *ev) {
  int signo = ev->signo;
  const char *why = ev->text;
  const char *name = signal_name(signo);
  if (why && (s->leave.signals || sup_is_exiting(s))) return;
  if (sup_is_exiting(s)) {
    sup_dismiss_parked(s, 0);
    return;
  }
  if (s->leave.by_clock) {
    s->leave.by_clock = false;
    sup_log(s, LOG_INFO, "%s: this agent is already leaving", name ? name : "a signal");
    return;
  }
  if (++s->leave.signals == 1) {
    s->leave.signo = signo;
    s->leave.by_clock = why != NULL;
    begin_leaving(s, signo, why ? why : name ? name : "a signal");
    return;
  }
  sup_log(s, LOG_WARN, "second signal: killing the workers");
  sup_stop_trees(s, STOP_LEAVING, 0);
}

void sup_guard_gone(struct supervisor *s, const struct supervisor_event *ev) {
  sup_log(s, LOG_ERROR, "the guard process died; %s",
          ev->survivors ? "some workers could not be killed" : "its workers were killed");
  bool decided = s->leave.signals || sup_is_exiting(s);
  sup_park_finish(s);
  sup_exit(s, decided ? s->leave.exit_code : EXIT_CODE_SYSTEM,
           ev->survivors ? NULL : "its guard process died"); /* BYE promises that nothing runs */
}
