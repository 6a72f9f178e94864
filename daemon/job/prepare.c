/* A checkpoint before the planned end of a round.
 *
 * When a round is ended for newcomers, or because a node leaves or is drained, nothing has failed yet, so nothing need be lost. RUNNING
 * becomes CHECKPOINTING: everybody is told PREPARE with the reason and the time that is left. Each agent asks those of its workers that
 * answer such a request (agent/sdk/rdzv.h) and reports `checkpointed` when they have, at once where none does. When all have, STOPPING
 * follows as ever; the workers go on training until then, and lose what they do in between, which is a round trip or two.
 *
 * A node that has finished, or that leaves and has stopped, has nothing more to save. The wait is over at half of --stop-timeout in any
 * case: the other half is for stopping. A failure or a loss in the meantime ends the round at once, because whoever waits for the
 * dead will write nothing any more; so does an operator. The planned cause was there first, weighs more than what workers do, and charges nothing.
 *
 * Between two lives of the daemon nothing of this is remembered, and nobody waits for it: workers that were asked write their checkpoint and go on, an
 * agent that was told to leave stops in its own time. What a round recovers to is RUNNING; newcomers make it grow again later, a node that
 * is still there and says `leaving` makes it prepare at once. An answer to the daemon before is taken for one to this one only if this one has asked,
 * too, in between: then its checkpoint is a moment older than it could be.
 *
 * When a node finishes in the meantime the round is about to end by itself. Newcomers and a drain can wait for that: it is left alone, and goes on
 * as if nothing had been asked. A node that leaves cannot; if all finish before they have stopped, the job is done all the same (rdzv_end.c).
 *
 * How many have not answered is a count that rdzv_member.c keeps. */

#include "daemon/job/job.h"

#include "daemon/core/internal.h"
#include "daemon/job/drain.h"

bool job_is_planned_end(const struct job *j) {
  enum cause c = j->cause.cause;
  return c == CAUSE_NODE_JOINED || c == CAUSE_NODE_LEAVING || c == CAUSE_NODE_DRAINED;
}

struct bytes *job_prepare_bytes(const struct job *j) {
  struct msg msg;
  uint64_t now_ms = j->core->now_ms;
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

static void tell_all(struct job *j, uint64_t now_ms) {
  j->prepare_ms = now_ms + (uint64_t)j->settings.stop_timeout_ms / 2;
  job_set_state(j, JOB_CHECKPOINTING, now_ms);
  struct bytes *prepare = job_prepare_bytes(j);
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    if (m->state != MEMBER_STARTED) continue;
    member_set_checkpointed(m, false);
    core_send_bytes(j->core, m->conn, prepare);
  }
  bytes_unref(prepare);
  stop_if_all_have(j, now_ms);
}

void job_prepare(struct job *j, uint64_t now_ms) {
  if (j->state == JOB_STARTING)
    job_begin_stopping(j, now_ms, true);
  else if (j->state == JOB_RUNNING && j->settings.stop_timeout_ms < 2)
    job_begin_stopping(j, now_ms, false);
  else if (j->state == JOB_RUNNING)
    tell_all(j, now_ms);
}

/* It has missed PREPARE, unless its answer is in this very HELLO, behind which it will be counted. */
void job_checkpointing_resume(struct job *j, const struct job_event *ev) {
  const struct member *m = ev->member;
  if (m->state != MEMBER_STARTED || m->checkpointed) return;
  for (size_t i = 0; i < ev->hello->n_reports; i++) {
    const struct report *r = &ev->hello->reports[i];
    if (r->kind == REPORT_CHECKPOINTED && r->round == j->round && r->seq > m->last_seq) return;
  }
  struct bytes *prepare = job_prepare_bytes(j);
  core_send_bytes(j->core, m->conn, prepare);
  bytes_unref(prepare);
}

/* One has finished; the others go on. */
static void call_off(struct job *j, uint64_t now_ms) {
  core_log(j->core, LOG_INFO, "job %s: a node of round %lld has finished, so it is not ended for others",
           j->id, (long long)j->round);
  job_clear_round(j);
  job_set_state(j, JOB_RUNNING, now_ms);
  job_end_for_drains(j, now_ms); /* where one has come since that does not mind: --force */
}

static bool can_wait(const struct job *j) {
  if (j->cause.cause == CAUSE_NODE_DRAINED) return !job_is_ended_for_drains(j);
  return j->cause.cause != CAUSE_NODE_LEAVING;
}

void job_checkpointing_report(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (ev->kind == JOB_EV_CHECKPOINTED)
    member_set_checkpointed(m, true);
  else if (m->state != MEMBER_FINISHED)
    member_set_state(m, ev->kind == JOB_EV_FINISHED ? MEMBER_FINISHED : MEMBER_STOPPED);
  job_finish_if_done(j, ev->now_ms);
  if (j->state != JOB_CHECKPOINTING) return;
  if (ev->kind == JOB_EV_FINISHED && can_wait(j))
    call_off(j, ev->now_ms);
  else
    stop_if_all_have(j, ev->now_ms);
}

enum { HOSTS_NAMED_MAX = 8 };

void job_checkpointing_deadline(struct job *j, const struct job_event *ev) {
  struct buf names = BUF_INIT;
  for (size_t i = 0, named = 0; i < j->n_members && named < HOSTS_NAMED_MAX; i++)
    if (j->members[i]->unsaved) buf_printf(&names, "%s%s", named++ ? ", " : "", j->members[i]->host);
  core_log(j->core, LOG_WARN,
           "job %s: round %lld ends without the checkpoint of %zu node%s (%s%s): %.1f s are over", j->id,
           (long long)j->round, j->n_unsaved, j->n_unsaved == 1 ? "" : "s", buf_text(&names),
           j->n_unsaved > HOSTS_NAMED_MAX ? ", ..." : "", (double)(ev->now_ms - j->state_ms) / 1000);
  buf_finish(&names);
  job_begin_stopping(j, ev->now_ms, false);
}
