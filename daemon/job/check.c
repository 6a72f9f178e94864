/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes with a check of their own (--check).
 *
 * A node that failed its first check says so in HELLO and is refused: the others read why it does not come. Once it was
 * part of a round it is a node like others, and the job decides.
 *
 * After a round whose verdict blames a worker of a node with `checks`, that node runs its check. It knows from SETTLED
 * that it has to, and the daemon knows the same, so no message asks for it. Until its HELLO brings the result the node is
 * not available and no round is sealed: a round without it would only grow again a moment later. The agent has a deadline
 * for its check, and a node that dies meanwhile is lost like any other.
 *
 * A failed check excludes the host from this job, as --exclude-after does, unless the job cannot go on without it. */

#include "daemon/job/internal.h"

#include <string.h>

void job_begin_check(struct job *j, struct member *m, uint64_t now_ms) {
  const struct verdict *v = &j->last_verdict;
  if (!m->checks || !j->last_charged || v->node_rank != m->node_rank) return;
  member_set_check_round(m, j->round);
  member_note_absence(m, ABSENCE_CHECKING, "", now_ms);
}

static void end_check(struct job *j, struct member *m, const struct hello *h) {
  struct buf by = BUF_INIT, how = BUF_INIT;
  member_set_check_round(m, 0);
  m->next.absence_noted = false; /* it is here again */
  m->next.unfit = h->unfit[0] != '\0';
  if (!h->unfit[0]) return;
  buf_put_plain(&how, h->unfit, strlen(h->unfit), REASON_MAX);
  buf_printf(&by, "the job itself: its --check failed with %s", buf_text(&how));
  if (job_exclude(j, m->host, buf_text(&by)))
    job_notice(j, "host %s is excluded: its --check failed with %s", m->host, buf_text(&how));
  else
    job_notice(j, "the --check of %s failed with %s; the job cannot go on without this host, and uses it", m->host,
               buf_text(&how));
  buf_finish(&how);
  buf_finish(&by);
}

void job_note_check(struct job *j, struct member *m, const struct hello *h, bool joins) {
  m->checks = h->checks;
  if (job_is_over(j)) return;
  if (joins && h->checking) {
    member_set_check_round(m, h->checking);
    member_note_absence(m, ABSENCE_CHECKING, "", j->jobs->now_ms);
  }
  /* Another daemon may have told it that the round is stale: then it is in none, and has no check to end. */
  bool passed = m->next.check_round && !h->checking && h->checked >= m->next.check_round;
  bool ends = passed || (m->next.check_round && !h->checking && h->phase == PHASE_NONE);
  /* A node that was in a round before comes back with an old result. */
  bool first = joins && !h->checking && !h->checked && !h->voted_round && h->phase == PHASE_NONE && !h->incarnation[0];
  if (ends || (joins && h->unfit[0])) end_check(j, m, h);
  if ((passed || first) && h->checks && !h->unfit[0] && !h->unchecked) job_clear_past(j, m->host);
}
