/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint before the planned end of a round.
 *
 * A round that ends for newcomers, or because a node leaves or is drained, has not failed, so nothing needs to be lost.
 * RUNNING becomes CHECKPOINTING, and PREPARE goes to all nodes. Each agent asks those of its workers that answer such
 * requests (agent/sdk/rdzv.h), and reports `checkpointed` when they have written; at once if none answers them. When all
 * have, STOPPING follows. Workers train on until then, and lose a round trip or two.
 *
 * A node that has finished, or that leaves and has stopped, has nothing to save. The wait ends after half of
 * --stop-timeout; the other half is for stopping. A failure or a loss ends the round at once, because workers whose
 * peer is dead will not finish a checkpoint; so does an operator. The planned cause came first, outweighs what workers
 * do, and charges nothing.
 *
 * A daemon that comes back remembers none of this, and the round recovers to RUNNING. Newcomers make it grow later, and
 * a node that still reports `leaving` starts a new PREPARE. An answer to the former daemon can count as one to this
 * daemon: the checkpoint is then a moment older than it could be.
 *
 * If a node finishes meanwhile, the round is about to end by itself. Newcomers and drains can wait for that. A leaving
 * node cannot; if all finish before they have stopped, the job is done even so (end.c). */

#include "daemon/job/internal.h"

bool job_is_planned_end(const struct job *j) {
  enum cause c = j->cause.cause;
  return c == CAUSE_NODE_JOINED || c == CAUSE_NODE_LEAVING || c == CAUSE_NODE_DRAINED;
}

static struct bytes *prepare_bytes(const struct job *j) {
  struct msg msg;
  uint64_t now_ms = j->jobs->now_ms;
  msg_init(&msg, MSG_PREPARE);
  msg.prepare.incarnation = j->incarnation;
  msg.prepare.round = j->round;
  msg.prepare.left_ms = j->prepare_ms > now_ms ? (int64_t)(j->prepare_ms - now_ms) : 0;
  msg.prepare.verdict = j->cause;
  return msg_bytes(&msg);
}

static void stop_if_all_have(struct job *j, uint64_t now_ms) {
  if (j->state == JOB_CHECKPOINTING && !j->n_unsaved) job_begin_stopping(j, now_ms, false);
}

void job_send_prepare(struct job *j, uint64_t now_ms) {
  j->prepare_ms = now_ms + (uint64_t)j->settings.stop_timeout_ms / 2;
  struct bytes *prepare = prepare_bytes(j);
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    if (m->state != MEMBER_STARTED) continue;
    member_set_checkpointed(m, false);
    jobs_send_bytes(j->jobs, m->conn, prepare);
  }
  bytes_unref(prepare);
}

void job_prepare(struct job *j, uint64_t now_ms) {
  if (j->state == JOB_STARTING)
    job_begin_stopping(j, now_ms, true);
  else if (j->state == JOB_RUNNING && j->settings.stop_timeout_ms < 2)
    job_begin_stopping(j, now_ms, false);
  else if (j->state == JOB_RUNNING) {
    job_enter(j, JOB_CHECKPOINTING, now_ms);
    stop_if_all_have(j, now_ms);
  }
}

/* The node has missed PREPARE, unless its answer is in this HELLO and will be counted after it. */
void job_checkpointing_resume(struct job *j, const struct job_event *ev) {
  const struct member *m = ev->member;
  if (m->state != MEMBER_STARTED || m->checkpointed) return;
  for (size_t i = 0; i < ev->hello->n_reports; i++) {
    const struct report *r = &ev->hello->reports[i];
    if (r->kind == REPORT_CHECKPOINTED && r->round == j->round && r->seq > m->last_seq) return;
  }
  member_send(m, prepare_bytes(j));
}

void job_checkpointing_report(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (ev->kind == JOB_EV_CHECKPOINTED)
    member_set_checkpointed(m, true);
  else if (m->state != MEMBER_FINISHED)
    member_set_state(m, ev->kind == JOB_EV_FINISHED ? MEMBER_FINISHED : MEMBER_STOPPED);
  job_finish_if_done(j, ev->now_ms);
  if (j->state != JOB_CHECKPOINTING) return;
  bool waits =
      j->cause.cause == CAUSE_NODE_DRAINED ? !job_is_ended_for_drains(j) : j->cause.cause != CAUSE_NODE_LEAVING;
  if (ev->kind != JOB_EV_FINISHED || !waits) {
    stop_if_all_have(j, ev->now_ms);
    return;
  }
  if (!job_may_enter(j, JOB_RUNNING)) return;
  job_log(j, LOG_INFO, "a node of round %lld has finished, so the round is not ended", (long long)j->round);
  job_clear_round(j);
  job_enter(j, JOB_RUNNING, ev->now_ms);
  job_end_for_drains(j, ev->now_ms); /* for a drain that came since and does not wait: --force */
}

enum { HOSTS_NAMED_MAX = 8 };

void job_checkpointing_deadline(struct job *j, const struct job_event *ev) {
  struct buf names = BUF_INIT;
  for (size_t i = 0, named = 0; i < j->n_members && named < HOSTS_NAMED_MAX; i++)
    if (j->members[i]->counted.unsaved) buf_printf(&names, "%s%s", named++ ? ", " : "", j->members[i]->host);
  job_log(j, LOG_WARN, "round %lld ends without the checkpoint of %zu node%s (%s%s): %.1f s have passed",
          (long long)j->round, j->n_unsaved, j->n_unsaved == 1 ? "" : "s", buf_text(&names),
          j->n_unsaved > HOSTS_NAMED_MAX ? ", ..." : "", (double)(ev->now_ms - j->state_ms) / 1000);
  buf_finish(&names);
  job_begin_stopping(j, ev->now_ms, false);
}
