/* SPDX-License-Identifier: Apache-2.0 */
/* One line about this agent for the service manager.
 *
 * It has the same facts as the living line of a terminal, but is asked for once a second, so nothing is kept for it.
 * While a round forms it names the missing nodes. While the round runs it says which part of it this node is and how
 * far its slowest worker is. While there is no daemon it says since when, because workers keep running without one and
 * nothing else would show it. */

#include "agent/supervisor/internal.h"

static const char *plural(int64_t n) {
  return n == 1 ? "" : "s";
}

void supervisor_summary(const struct supervisor *s, uint64_t now_ms, struct buf *out) {
  long long round = (long long)s->round.number, workers = (long long)s->config.workers;
  const struct worker *least = sup_slowest(s, &(double){0});
  switch (s->state) {
  case SUPERVISOR_JOINING:
    if (s->check.runs)
      buf_puts(out, "--check runs");
    else if (s->link.state != CONNECTION_READY && !s->link.down_text)
      buf_printf(out, "connecting to %s", sup_daemon_name(s));
    else if (s->link.state == CONNECTION_READY && !sup_format_waiting(s, now_ms, out))
      buf_puts(out, "waiting for the round to begin");
    break;
  case SUPERVISOR_STARTING:
    buf_printf(out, "round %lld: starting %lld worker%s", round, workers, plural(workers));
    break;
  case SUPERVISOR_RUNNING:
    buf_printf(out, "round %lld: node %lld of %lld, rank%s %lld", round, (long long)s->round.node_rank,
               (long long)s->round.nodes, plural(workers), (long long)s->round.rank_base);
    if (workers > 1) buf_printf(out, "-%lld", (long long)s->round.rank_base + workers - 1);
    buf_printf(out, " of %lld", (long long)s->round.world_size);
    if (least) buf_printf(out, ", step %llu", (unsigned long long)least->step);
    if (least && least->of) buf_printf(out, " of %llu", (unsigned long long)least->of);
    break;
  case SUPERVISOR_FINISHED: buf_printf(out, "round %lld: all workers here are done", round); break;
  case SUPERVISOR_STOPPING: buf_printf(out, "round %lld: stopping workers", round); break;
  case SUPERVISOR_STOPPED: buf_printf(out, "round %lld is over here", round); break;
  case SUPERVISOR_DONE: buf_printf(out, "leaving with code %d", s->leave.exit_code); break;
  case SUPERVISOR_STATE_COUNT: break;
  }
  if (s->state != SUPERVISOR_DONE && s->link.state != CONNECTION_READY && s->link.down_text) {
    uint64_t since_ms = now_ms > s->link.lost_ms ? now_ms - s->link.lost_ms : 0;
    buf_printf(out, "%sno daemon at %s for %llu s: %s", out->len ? "; " : "", sup_daemon_name(s),
               (unsigned long long)since_ms / 1000, s->link.down_text);
  }
}

bool supervisor_is_busy(const struct supervisor *s) {
  return !s->link.welcomed || s->leave.deadline_ms != UINT64_MAX || s->state == SUPERVISOR_DONE;
}
