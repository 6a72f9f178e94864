/* A daemon that is away for long: how long workers go on without one (--orphan-grace).
 *
 * Workers need no daemon, so by itself its absence stops nothing. At fixed size that is right for ever: nobody can take the place of a
 * node that the job cannot do without, and the longest absence that ends well is one that nobody has noticed. An elastic job
 * is another matter. Its other nodes may have found each other elsewhere and go on under a newer token, or the scheduler may
 * have given the job up; then what runs here is an orphan, which burns its devices for nothing and may write where
 * the job's next life writes. So there is a limit to it, 60 s, unless the user says otherwise.
 *
 * It is another clock than the one for fencing (supervisor_link.c). That one is about safety, and an endpoint that refuses
 * connections restarts it, since where no daemon is nobody gives our place away. This one is about sense: it counts from the
 * last answer, whatever the silence is made of.
 *
 * When it has passed the agent leaves as it would at a signal: workers get SIGTERM and --stop-timeout, a daemon that comes
 * back meanwhile is told LEAVING, and the exit code says "requeue me". */

#include "agent/supervisor/internal.h"

#include <signal.h>
#include "common/exit_codes.h"

static bool runs(const struct supervisor *s) {
  return s->state == SUPERVISOR_STARTING || s->state == SUPERVISOR_RUNNING;
}

uint64_t sup_orphan_deadline(const struct supervisor *s) {
  uint64_t grace_ms = s->config.orphan_grace_ms;
  if (s->link == LINK_READY || !runs(s) || grace_ms >= UINT64_MAX - s->answered_ms) return UINT64_MAX;
  return s->answered_ms + grace_ms;
}

void sup_orphan_tick(struct supervisor *s) {
  if (s->now_ms < sup_orphan_deadline(s)) return;
  uint64_t stop_ms = (uint64_t)s->config.settings.stop_timeout_ms;
  sup_say(
      s, LOG_ERROR,
      "the daemon at %s has been away for %.0f s (--orphan-grace): stopping the workers, which have %.0f s "
      "(--stop-timeout); exit code %d: requeue me",
      s->config.endpoint, (double)(s->now_ms - s->answered_ms) / 1000, (double)stop_ms / 1000,
      EXIT_CODE_DAEMON_LOST);
  struct verdict what;
  verdict_init(&what);
  what.cause = CAUSE_NODE_LEAVING;
  what.text = "its daemon was away for longer than --orphan-grace";
  sup_report(s, REPORT_LEAVING, &what, s->now_ms);
  s->exit_code = EXIT_CODE_DAEMON_LOST;
  s->leave_by_ms = s->now_ms + stop_ms + SUPERVISOR_LEAVE_SLACK_MS;
  s->leave_signo = SIGTERM;
  sup_stop_trees(s, STOP_LEAVING, stop_ms);
}
