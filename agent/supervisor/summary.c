/* One line for whoever asks the service manager what this agent does.
 *
 * The same facts as on a terminal's living line, but asked for once a second and not told: so nothing is kept for it. While a round forms, who is
 * missing; while it runs, which part of it this node is and how far its slowest worker is; while there is no daemon, since when, because
 * workers go on without one and nothing else would show it. */

#include "agent/supervisor/internal.h"

static const char *plural(int64_t n) {
  return n == 1 ? "" : "s";
}

static void put_no_daemon(const struct supervisor *s, uint64_t now_ms, struct buf *out) {
  if (s->link == LINK_READY || !s->down_text) return;
  uint64_t since_ms = now_ms > s->daemonless_ms ? now_ms - s->daemonless_ms : 0;
  buf_printf(out, "%sno daemon at %s for %llu s: %s", out->len ? "; " : "", s->config.endpoint,
             (unsigned long long)since_ms / 1000, s->down_text);
}

static void put_joining(const struct supervisor *s, uint64_t now_ms, struct buf *out) {
  if (s->link == LINK_READY && s->waiting)
    sup_put_waiting(s, now_ms, out);
  else if (s->link == LINK_READY)
    buf_puts(out, "waiting for the round to begin");
  else if (!s->down_text)
    buf_printf(out, "connecting to %s", s->config.endpoint);
}

static void put_running(const struct supervisor *s, struct buf *out) {
  int64_t last = s->rank_base + s->config.workers - 1;
  const struct worker *least = sup_slowest(s, &(double){0});
  buf_printf(out, "round %lld: node %lld of %lld, rank%s %lld", (long long)s->round, (long long)s->node_rank,
             (long long)s->round_nodes, plural(s->config.workers), (long long)s->rank_base);
  if (last > s->rank_base) buf_printf(out, "-%lld", (long long)last);
  buf_printf(out, " of %lld", (long long)s->world_size);
  if (!least) return;
  buf_printf(out, ", step %llu", (unsigned long long)least->step);
  if (least->of) buf_printf(out, " of %llu", (unsigned long long)least->of);
}

void supervisor_summary(const struct supervisor *s, uint64_t now_ms, struct buf *out) {
  long long round = (long long)s->round, workers = (long long)s->config.workers;
  switch (s->state) {
  case SUPERVISOR_JOINING: put_joining(s, now_ms, out); break;
  case SUPERVISOR_STARTING:
    buf_printf(out, "round %lld: starting %lld worker%s", round, workers, plural(workers));
    break;
  case SUPERVISOR_RUNNING: put_running(s, out); break;
  case SUPERVISOR_FINISHED: buf_printf(out, "round %lld: all workers here are done", round); break;
  case SUPERVISOR_STOPPING: buf_printf(out, "round %lld: stopping workers", round); break;
  case SUPERVISOR_STOPPED: buf_printf(out, "round %lld is over here", round); break;
  case SUPERVISOR_DONE: buf_printf(out, "leaving with code %d", s->exit_code); break;
  case SUPERVISOR_STATE_COUNT: break;
  }
  if (s->state != SUPERVISOR_DONE) put_no_daemon(s, now_ms, out);
}

bool supervisor_is_busy(const struct supervisor *s) {
  return !s->welcomed || s->leave_by_ms != UINT64_MAX || s->state == SUPERVISOR_DONE;
}
