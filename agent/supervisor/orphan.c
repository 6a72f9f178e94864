/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that is away for long: how long workers run without one (--orphan-grace).
 *
 * Workers need no daemon, so its absence stops nothing by itself. But the scheduler may have given the job up, or a
 * daemon elsewhere may wait for this node's place. Then the workers here are orphans, which burn their devices for
 * nothing. So there is a limit: 60 s for an elastic job, whose other nodes may have found each other elsewhere, and five
 * minutes at fixed size, where nobody goes on without this node before.
 *
 * A daemon that is not in charge of the job counts as none: the one that is may count this time from its last contact.
 *
 * This clock is not the one for fencing (fence.c), which is shorter. But the guard keeps it too, and the daemon knows it
 * from HELLO: a lost node that did not have to fence is dead for certain when it is over.
 *
 * When the time is over the agent leaves as at a signal: workers get SIGTERM and --stop-timeout, a daemon that comes
 * back meanwhile gets LEAVING, and the exit code says "requeue me". */

#include "agent/supervisor/internal.h"

#include <signal.h>
#include "common/exit_codes.h"

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
