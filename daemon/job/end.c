/* SPDX-License-Identifier: Apache-2.0 */
/* How a round ends, and how the job does.
 *
 * A round ends in STOPPING and nowhere else: every node got STOP, and has reported STOPPED or is lost. Only then is the
 * cause settled. Reports arrive in any order from any node, and the first is seldom the cause: when one worker dies,
 * its peers die milliseconds later. So each cause is offered with the time at which it happened, the weightiest is
 * kept, and the budget is charged once, from what is left at the end.
 *
 * The job keeps its last sixteen verdicts, with time and charge, for rdzvctl: "it crashed three times tonight" is a
 * question about rounds that ran unwatched. Their texts are cut, because sixteen whole ones of four thousand jobs would
 * be half a gigabyte; the last verdict is also kept whole. The sixteen live as long as the daemon; the state file has
 * the final verdict of each ended job. */

#include "daemon/job/internal.h"

#include <stdio.h>
#include <string.h>

#include "common/exit_codes.h"
#include "common/mem.h"
#include "daemon/job/goodput.h"

/* Causes. ---------------------------------------------------------------------------------------------------------- */

/* A hung worker has not died: a node names all of them in one verdict. A worker that lost contact has not died
 * either. */
static bool is_counted(enum cause c) {
  return c == CAUSE_WORKER_SIGNAL || c == CAUSE_WORKER_EXIT || c == CAUSE_WORKER_EXEC || c == CAUSE_DEVICE_HELD;
}

void job_offer_cause(struct job *j, const struct verdict *v, uint64_t at_ms) {
  if (is_counted(v->cause)) j->worker_deaths++;
  if (j->cause.cause != CAUSE_NONE && !verdict_outweighs(v, at_ms, &j->cause, j->cause_ms)) return;
  verdict_set(&j->cause, v);
  j->cause.round = j->round;
  j->cause_ms = at_ms;
}

struct verdict job_verdict(const struct job *j, enum cause cause, int code, const char *text) {
  struct verdict v;
  verdict_init(&v);
  v.cause = cause;
  v.round = j->round;
  v.code = code;
  v.text = text;
  return v;
}

void job_offer_node_cause(struct job *j, const struct member *m, enum cause cause, int code, const char *text,
                          uint64_t at_ms) {
  struct verdict v = job_verdict(j, cause, code, text);
  v.node_rank = m->node_rank;
  v.host = m->host;
  v.pid = m->pid;
  v.step = m->progress.step;
  v.of = m->progress.of;
  job_offer_cause(j, &v, at_ms);
}

/* The last verdicts. ----------------------------------------------------------------------------------------------- */

enum { PAST_TEXT_MAX = 1024 };

/* Cuts a long text, but not within a character. */
static void cut_text(char *text) {
  size_t n = strlen(text);
  if (n <= PAST_TEXT_MAX) return;
  n = PAST_TEXT_MAX;
  while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
  text[n] = '\0';
}

void job_note_verdict(struct job *j, bool charged, uint64_t wall_ms) {
  if (j->last_verdict.cause == CAUSE_NONE) return;
  if (!j->past) j->past = xcalloc(JOB_PAST_MAX, sizeof *j->past);
  struct ended_round *p = &j->past[j->n_past++ % JOB_PAST_MAX];
  if (j->n_past > JOB_PAST_MAX) verdict_free(&p->verdict);
  verdict_copy(&p->verdict, &j->last_verdict);
  cut_text((char *)(uintptr_t)p->verdict.text);
  cut_text((char *)(uintptr_t)p->verdict.error);
  p->wall_ms = wall_ms;
  p->began_wall_ms = j->last_verdict.round ? job_round_began_wall_ms(j, j->jobs->now_ms) : 0;
  p->nodes = j->round_nodes;
  p->charged = charged;
}

const struct ended_round *job_past(const struct job *j, size_t ago) {
  if (ago >= j->n_past || ago >= JOB_PAST_MAX) return NULL;
  return &j->past[(j->n_past - 1 - ago) % JOB_PAST_MAX];
}

/* The round ends. -------------------------------------------------------------------------------------------------- */

struct bytes *job_stop_bytes(const struct job *j) {
  struct msg msg;
  msg_init(&msg, MSG_STOP);
  msg.stop.incarnation = j->incarnation;
  msg.stop.round = j->round;
  msg.stop.void_round = j->void_round;
  msg.stop.verdict = j->cause;
  return msg_bytes(&msg);
}

void job_send_stop(struct job *j, uint64_t now_ms) {
  struct bytes *stop = job_stop_bytes(j);
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    bool runs = m->state == MEMBER_TOLD || m->state == MEMBER_STARTED;
    if (runs || job_waits_for_head(j, m)) jobs_send_bytes(j->jobs, m->conn, stop);
  }
  bytes_unref(stop);
}

void job_begin_stopping(struct job *j, uint64_t now_ms, bool void_round) {
  if (!job_may_enter(j, JOB_STOPPING)) return;
  j->void_round = void_round;
  job_enter(j, JOB_STOPPING, now_ms);
  job_settle_if_stopped(j, now_ms);
}

struct bytes *job_settled_bytes(const struct job *j) {
  struct msg msg;
  msg_init(&msg, MSG_SETTLED);
  msg.settled.incarnation = j->incarnation;
  msg.settled.round = j->round;
  msg.settled.charged = j->last_charged;
  msg.settled.refilled = j->last_refilled;
  msg.settled.restarts_used = j->restarts_used;
  msg.settled.failed_step = j->failed_step;
  msg.settled.last_failure = j->last_failure;
  msg.settled.delay_ms = (int64_t)j->last_delay_ms;
  msg.settled.verdict = j->last_verdict;
  msg.settled.excluded = j->last_excluded;
  msg.settled.held = j->hold_ms > j->jobs->now_ms + lease_ms(j);
  job_goodput(j, j->jobs->now_ms, &msg.settled.goodput);
  return msg_bytes(&msg);
}

static void form_next_round(struct job *j, uint64_t now_ms, bool charged) {
  if (!job_may_enter(j, JOB_FORMING)) return;
  j->last_repeat = false;
  job_charge(j, charged);
  job_note_verdict(j, charged, j->jobs->wall_ms);
  job_announce_verdict(j, charged, now_ms);
  snprintf(j->last_excluded, sizeof j->last_excluded, "%s",
           charged ? job_note_failure(j, j->last_verdict.host, now_ms) : "");
  job_settle_other_host(j);
  job_pairs_note_fault(j);
  /* Every node of the round gets its verdict and is free for the next one. */
  struct bytes *settled = job_settled_bytes(j);
  for (size_t i = j->n_members; i-- > 0;) {
    struct member *m = j->members[i];
    if (!member_in_round(m)) continue;
    jobs_send_bytes(j->jobs, m->conn, settled);
    job_begin_check(j, m, now_ms);
    member_keep_rank(m, m->node_rank);
    member_set_rank(m, -1);
    member_set_state(m, MEMBER_WAITING);
    if (m->next.leaving) job_agent_is_dead(j, m->agent); /* it has nothing left to do but to exit */
    if (m->next.leaving || m->gone) job_remove_member(j, m);
  }
  bytes_unref(settled);
  job_clear_round(j);
  j->faulted = true;
  j->not_before_ms = now_ms + j->last_delay_ms;
  job_enter(j, JOB_FORMING, now_ms);
  job_try_seal(j, now_ms);
}

static void end_with_success(struct job *j, uint64_t now_ms) {
  struct verdict none = job_verdict(j, CAUSE_NONE, EXIT_CODE_OK, "");
  struct buf slow = BUF_INIT;
  job_judge_slow(j, now_ms, &slow);
  none.slow = buf_text(&slow);
  j->last_charged = j->last_refilled = false;
  job_end(j, now_ms, OUTCOME_SUCCESS, EXIT_CODE_OK, &none);
  buf_finish(&slow);
}

/* Nodes have finished: the end of this round is the end of the job, unless they are to start again. */
static bool finished_for_good(const struct job *j) {
  return j->n_in_state[MEMBER_FINISHED] > 0 && j->cause.cause != CAUSE_NODE_JOINED &&
         j->cause.cause != CAUSE_NODE_DRAINED && j->settings.after_finish != AFTER_FINISH_RESTART;
}

static void settle_round(struct job *j, uint64_t now_ms) {
  /* All have stopped, and none has reported a cause: they fenced themselves while no daemon was connected. */
  bool unnamed = j->cause.cause == CAUSE_NONE; /* no host is to blame */
  for (size_t i = 0; i < j->n_members && j->cause.cause == CAUSE_NONE; i++)
    if (j->members[i]->state == MEMBER_STOPPED && member_in_round(j->members[i]))
      job_offer_node_cause(j, j->members[i], CAUSE_NODE_LOST, EXIT_CODE_NODE_LOST,
                           "it stopped its workers while no daemon was connected", now_ms);
  job_judge_evidence(j);
  goodput_settle(j);
  struct verdict *v = &j->cause;
  v->echoes = j->worker_deaths - (is_counted(v->cause) ? 1 : 0);
  if (v->echoes > WORLD_MAX) v->echoes = WORLD_MAX; /* a node reports more deaths than there are workers */
  struct buf slow = BUF_INIT, text = BUF_INIT;
  job_judge_slow(j, job_round_end_ms(j), &slow);
  struct verdict with = *v;
  with.slow = buf_text(&slow);
  verdict_set(&j->last_verdict, &with);
  buf_finish(&slow);
  v = &j->last_verdict;
  verdict_sentence(v, &text);
  job_log(j, LOG_WARN, "round %lld is settled: %s", (long long)j->round, buf_text(&text));
  buf_finish(&text);

  size_t n_finished = j->n_in_state[MEMBER_FINISHED];
  bool charged = cause_costs_restart(v->cause) && !j->void_round;
  j->last_repeat = job_judge_repeat(j, charged);
  job_refill_if_earned(j, now_ms, j->last_repeat);
  if (!unnamed) job_note_past(j, charged);
  bool all_leave = v->cause == CAUSE_NODE_LEAVING; /* one after the other: then the whole job is meant to end */
  for (size_t i = 0; i < j->n_members; i++) all_leave &= j->members[i]->next.leaving || j->members[i]->gone;
  bool over = v->cause == CAUSE_OPERATOR || v->lasting || finished_for_good(j) || all_leave ||
              (charged && j->restarts_used >= j->settings.max_restarts) ||
              (j->last_repeat && job_repeated_too_often(j));
  if (job_is_planned_end(j) && n_finished == (size_t)j->round_nodes) { /* STOP came too late for every node */
    end_with_success(j, now_ms);
    return;
  }
  if (!over) {
    form_next_round(j, now_ms, charged);
    return;
  }
  j->last_charged = false;
  job_announce_verdict(j, false, now_ms);
  bool stopped = v->cause == CAUSE_OPERATOR || v->cause == CAUSE_NODE_LEAVING; /* its nodes were asked to leave */
  job_end(j, now_ms, stopped ? OUTCOME_STOPPED : OUTCOME_FAILED, (int)v->code, v);
}

bool job_waits_for_head(const struct job *j, const struct member *m) {
  return m->node_rank == 0 && m->state == MEMBER_FINISHED && !m->gone && !m->shut && !finished_for_good(j) &&
         j->n_in_state[MEMBER_FINISHED] < (size_t)j->round_nodes;
}

void job_settle_if_stopped(struct job *j, uint64_t now_ms) {
  if (j->state != JOB_STOPPING || j->n_in_state[MEMBER_TOLD] || j->n_in_state[MEMBER_STARTED]) return;
  const struct member *head = job_find_rank(j, 0);
  if (!head || !job_waits_for_head(j, head)) settle_round(j, now_ms);
}

/* The job ends. ---------------------------------------------------------------------------------------------------- */

struct bytes *job_end_bytes(const struct job *j) {
  struct msg msg;
  msg_init(&msg, MSG_END);
  msg.end.incarnation = j->incarnation;
  msg.end.round = j->round;
  msg.end.outcome = j->outcome;
  msg.end.code = j->code;
  msg.end.restarts_used = j->restarts_used;
  msg.end.repeats = j->last_failure.repeats;
  msg.end.verdict = j->last_verdict;
  job_goodput(j, j->jobs->now_ms, &msg.end.goodput);
  return msg_bytes(&msg);
}

void job_ended_if_acknowledged(struct job *j, uint64_t now_ms) {
  if (j->state == JOB_ENDING && !j->n_owing) job_enter(j, JOB_ENDED, now_ms);
}

void job_send_end(struct job *j, uint64_t now_ms) {
  job_claim_remove_all(j);
  j->line_wall_ms = j->jobs->wall_ms;
  if (j->outcome == OUTCOME_SUCCESS) job_note_success(j);
  job_save(j);
  struct bytes *end = job_end_bytes(j);
  for (size_t i = 0; i < j->n_members; i++) jobs_send_bytes(j->jobs, j->members[i]->conn, end);
  bytes_unref(end);
}

void job_end(struct job *j, uint64_t now_ms, enum outcome outcome, int code, const struct verdict *v) {
  if (!job_may_enter(j, JOB_ENDING)) return;
  verdict_set(&j->last_verdict, v);
  j->outcome = outcome;
  j->code = code;
  if (!j->last_repeat) j->last_failure.repeats = 0; /* those of an earlier round */
  job_note_verdict(j, false, j->jobs->wall_ms);
  jobs_drop_drains(j->jobs, j->uid, j->incarnation);
  job_enter(j, JOB_ENDING, now_ms);
  job_ended_if_acknowledged(j, now_ms);
}

void job_finish_if_done(struct job *j, uint64_t now_ms) {
  if (!job_round_goes_on(j)) return;
  if (j->n_in_state[MEMBER_FINISHED] < (size_t)j->round_nodes) return;
  end_with_success(j, now_ms);
}

void job_join_timeout(struct job *j, uint64_t now_ms) {
  struct buf text = BUF_INIT;
  job_missing_text(j, true, now_ms, &text);
  struct verdict v = job_verdict(j, CAUSE_JOIN_TIMEOUT, EXIT_CODE_JOIN_TIMEOUT, buf_text(&text));
  job_end(j, now_ms, OUTCOME_FAILED, EXIT_CODE_JOIN_TIMEOUT, &v);
  buf_finish(&text);
}
