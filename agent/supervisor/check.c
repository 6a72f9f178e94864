/* SPDX-License-Identifier: Apache-2.0 */
/* When this node's own check (--check) runs, and what becomes of its result.
 *
 *   BEGIN --> check --passed--> connect
 *               '----failed---> connect, HELLO with the reason, REFUSED, exit with EXIT_CODE_OTHER_HOST
 *   SETTLED that blames a worker of this node --> check --> HELLO with the result
 *
 * The first check comes before HELLO, because nothing may start on a bad node. The daemon is told of a failure all the
 * same: the others wait for this node, and should read why it does not come. If no daemon answers, they cannot meet
 * anyway, and the agent does not wait for one.
 *
 * The daemon reads the same SETTLED and knows that a check follows (HELLO's `checks`), so no round is sealed meanwhile.
 * It decides what a failed check means: the job goes on without this node if it can. */

#include "agent/supervisor/internal.h"

#include <stdio.h>
#include "common/exit_codes.h"

static void begin(struct supervisor *s, int64_t round) {
  s->check.round = round;
  s->check.runs = true;
  sup_effect(s, SUP_CHECK)->round = (uint32_t)round;
}

bool sup_check_first(struct supervisor *s) {
  if (s->config.checks) begin(s, 0);
  return s->config.checks;
}

bool sup_check_runs_first(const struct supervisor *s) {
  return s->check.runs && !s->check.round;
}

void sup_check_settled(struct supervisor *s, const struct settled *settled) {
  if (!s->config.checks || !settled->charged || settled->verdict.node_rank != s->round.node_rank) return;
  sup_log(s, LOG_INFO, "a worker of this node failed: --check runs before the next round");
  begin(s, settled->round);
}

void sup_checked(struct supervisor *s, const struct supervisor_event *ev) {
  struct node_check *c = &s->check;
  bool first = sup_check_runs_first(s);
  c->runs = false;
  c->checked = c->round;
  c->unchecked = ev->text && !ev->text[0];
  snprintf(c->unfit, sizeof c->unfit, "%s", ev->text ? ev->text : "");
  if (first) {
    s->link.lost_ms = s->now_ms;
    if (c->unfit[0]) {
      c->tell_by_ms = s->now_ms + SUPERVISOR_UNFIT_MS;
      sup_log(s, LOG_ERROR, "this node failed its --check with %s; exit code %d: run it again on another host",
              c->unfit, EXIT_CODE_OTHER_HOST);
    }
    sup_connect(s);
    return;
  }
  if (c->unfit[0]) sup_log(s, LOG_WARN, "this node failed its --check with %s", c->unfit);
  sup_announce(s);
}

/* The daemon went on without telling this node the verdict: its own reports say whether a worker of it failed. */
void sup_check_stale(struct supervisor *s) {
  bool failed = false;
  for (size_t i = 0; i < s->reports.n; i++) failed |= s->reports.v[i].report.kind == REPORT_FAILED;
  if (s->config.checks && failed && !sup_is_exiting(s)) begin(s, s->round.number);
}

bool sup_check_failed_first(const struct supervisor *s) {
  return s->check.tell_by_ms != UINT64_MAX;
}

void sup_check_leave(struct supervisor *s) {
  sup_exit(s, EXIT_CODE_OTHER_HOST, "it failed its --check");
}
