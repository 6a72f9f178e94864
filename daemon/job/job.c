/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a job, as one table: state x event -> handler. Nothing happens outside the table.
 *
 *   FORMING -> STARTING -> RUNNING -> ENDING -> ENDED
 *      ^          |           |          ^
 *      |          |     CHECKPOINTING ---+      before a planned end: a checkpoint (prepare.c)
 *      |          |           |          |
 *      +-------STOPPING <-----+----------+      RECOVERING leads to any of them after the daemon came back
 *
 * A round ends in STOPPING and nowhere else (end.c).
 *
 * Handlers change the job and add effects. They return nothing, because the caller could do nothing about it.
 * PROTOCOL.md 5 gives the reason for every cell that ignores its event.
 *
 * job_enter is the only writer of the state. The table `states` says which state may follow, and what happens on
 * entry. The daemon refuses any other change and goes on, because it serves other jobs too; the tests abort. */

#include "daemon/job/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/exit_codes.h"
#include "common/mem.h"

#define X(name, word) word,
static const char *const event_names[] = {JOB_EVENT_LIST(X)};
#undef X

const char *job_event_name(enum job_event_kind k) {
  return k < JOB_EV_COUNT ? event_names[k] : "?";
}

/* States. ---------------------------------------------------------------------------------------------------------- */

static void enter_forming(struct job *j, uint64_t now_ms) {
  j->forming_ms = now_ms;
  j->enough_ms = j->came_ms = 0;
  j->notice_ms = now_ms + 1;
}

static void enter_recovering(struct job *j, uint64_t now_ms) {
  job_health_recover(j, now_ms);
  j->recover_ms = now_ms + lease_ms(j) + JOB_RECONNECT_MAX_MS;
  j->notice_ms = now_ms + earliest(lease_ms(j) * 2 / 5, JOB_RECONNECT_MAX_MS);
}

#define TO(state) (1u << JOB_##state)

/* A HELLO of a higher token leads from any state to RECOVERING. Only a line of the state file leads from FORMING, in
 * which a job is created, to ENDED. */
static const struct {
  unsigned next;
  void (*enter)(struct job *j, uint64_t now_ms); /* NULL: nothing to do */
} states[JOB_STATE_COUNT] = {
    [JOB_FORMING] = {TO(STARTING) | TO(ENDING) | TO(RECOVERING) | TO(ENDED), enter_forming},
    [JOB_STARTING] = {TO(RUNNING) | TO(STOPPING) | TO(RECOVERING), NULL},
    [JOB_RUNNING] = {TO(CHECKPOINTING) | TO(STOPPING) | TO(ENDING) | TO(RECOVERING), NULL},
    [JOB_CHECKPOINTING] = {TO(RUNNING) | TO(STOPPING) | TO(ENDING) | TO(RECOVERING), job_send_prepare},
    [JOB_STOPPING] = {TO(FORMING) | TO(ENDING) | TO(RECOVERING), job_send_stop},
    [JOB_RECOVERING] = {TO(FORMING) | TO(STARTING) | TO(RUNNING) | TO(STOPPING) | TO(ENDING) | TO(RECOVERING),
                        enter_recovering},
    [JOB_ENDING] = {TO(ENDED), job_send_end},
    [JOB_ENDED] = {0, NULL},
};

bool job_may_enter(struct job *j, enum job_state to) {
  if (states[j->state].next & (1u << to)) return true;
  const char *from = job_state_name(j->state), *word = job_state_name(to);
  job_log(j, LOG_ERROR, "a change from %s to %s is not allowed; this is a bug", from, word);
  if (!j->jobs->fault) j->jobs->fault = xasprintf("job %s: %s -> %s", j->id, from, word);
  return false;
}

bool job_enter(struct job *j, enum job_state to, uint64_t now_ms) {
  if (!job_may_enter(j, to)) return false;
  job_log(j, LOG_INFO, "%s -> %s round=%lld nodes=%zu", job_state_name(j->state), job_state_name(to),
          (long long)j->round, j->n_members);
  goodput_enter(j, to, now_ms);
  enum job_state from = j->state;
  j->state = to;
  j->state_ms = now_ms;
  j->notice_ms = UINT64_MAX;
  j->news++;
  job_watch_growth(j, now_ms);
  job_announce_state(j, from, now_ms);
  if (states[to].enter) states[to].enter(j, now_ms);
  return true;
}

bool job_round_goes_on(const struct job *j) {
  return j->state == JOB_STARTING || j->state == JOB_RUNNING || j->state == JOB_CHECKPOINTING;
}

/* Losing a node. --------------------------------------------------------------------------------------------------- */

static void note_absence(const struct job_event *ev) {
  bool left = ev->kind == JOB_EV_BYE || ev->member->next.leaving;
  member_note_absence(ev->member, left ? ABSENCE_LEFT : ABSENCE_LOST, ev->text, ev->at_ms);
}

/* STARTING, RUNNING, CHECKPOINTING, STOPPING. */
static void on_lost(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (!member_in_round(m)) {
    if (m->roster.at) note_absence(ev);
    job_remove_member(j, m);
  } else if (m->state == MEMBER_FINISHED) {
    jobs_bind(j->jobs, m, 0); /* its work is done and counted; it may come back for the end */
    member_set_gone(m, true);
    if (m->node_rank == 0 && !m->worker_store && j->state != JOB_STOPPING) {
      /* Node rank 0 has finished, and others have not: its agent served the round's store, which they may still need. */
      struct buf text = BUF_INIT;
      buf_printf(&text, "%s; it had finished, and the store of the round went with it", ev->text);
      job_offer_node_cause(j, ev->member, CAUSE_NODE_LOST, EXIT_CODE_NODE_LOST, buf_text(&text), ev->at_ms);
      buf_finish(&text);
      job_begin_stopping(j, ev->now_ms, j->state == JOB_STARTING);
    } else
      job_settle_if_stopped(j, ev->now_ms);
  } else if (m->state == MEMBER_STOPPED) {
    note_absence(ev);
    job_remove_member(j, m);
    job_settle_if_stopped(j, ev->now_ms);
  } else {
    bool starting = j->state == JOB_STARTING, running = job_round_goes_on(j);
    job_note_loss(j, m, ev->now_ms);
    job_offer_node_cause(j, m, CAUSE_NODE_LOST, EXIT_CODE_NODE_LOST, ev->text, ev->at_ms);
    if (!ev->dead && (m->state == MEMBER_TOLD || m->state == MEMBER_STARTED)) job_hold_member(j, m);
    note_absence(ev);
    job_remove_member(j, m);
    if (running)
      job_begin_stopping(j, ev->now_ms, starting);
    else
      job_settle_if_stopped(j, ev->now_ms);
  }
}

/* The nodes of its twin learn that this job is here, or that it is gone. */
static void notice_all_soon(struct job *j, uint64_t now_ms) {
  struct job *twin = job_find_twin(j);
  job_notice_soon(j, now_ms);
  if (twin) job_notice_soon(twin, now_ms);
}

static void on_lost_forming(struct job *j, const struct job_event *ev) {
  note_absence(ev);
  job_remove_member(j, ev->member);
  job_update_enough_nodes(j, ev->now_ms);
  notice_all_soon(j, ev->now_ms);
  job_claim_note_loss(j, ev->dead || ev->kind == JOB_EV_BYE);
  if (j->n_members || j->round) return;
  job_claim_give_up(j);
  j->forgotten = true; /* no node has ever run: as if the job had not been */
}

static void on_lost_ending(struct job *j, const struct job_event *ev) {
  /* It may come back for the END until the state's deadline; after that the job is remembered without it. */
  jobs_bind(j->jobs, ev->member, 0);
  if (!ev->dead && !ev->member->end_acked) return;
  member_set_gone(ev->member, true);
  job_ended_if_acknowledged(j, ev->now_ms);
}

static void on_lost_recovering(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (member_in_round(m) && !ev->dead && (m->state == MEMBER_TOLD || m->state == MEMBER_STARTED)) job_hold_member(j, m);
  note_absence(ev);
  job_remove_member(j, m);
}

static void on_bye(struct job *j, const struct job_event *ev) {
  struct job_event lost = *ev;
  lost.kind = JOB_EV_LOST;
  lost.dead = true;
  lost.at_ms = ev->now_ms;
  if (!lost.text) lost.text = "it left";
  member_set_leaving(ev->member);
  on_lost(j, &lost);
}

/* Every node was asked to leave, and this is the last one: no node is left that could form a round. */
static void on_bye_forming(struct job *j, const struct job_event *ev) {
  on_lost_forming(j, ev);
  if (!j->n_members && j->round && j->last_verdict.cause == CAUSE_NODE_LEAVING)
    job_end(j, ev->now_ms, OUTCOME_STOPPED, EXIT_CODE_PREEMPTED, &j->last_verdict);
}

static void on_bye_recovering(struct job *j, const struct job_event *ev) {
  note_absence(ev);
  job_remove_member(j, ev->member);
  job_recover_finish_if_complete(j, ev->now_ms);
}

/* A node that leaves now knows the end, too. */
static void on_acked(struct job *j, const struct job_event *ev) {
  member_set_acked(ev->member);
  job_ended_if_acknowledged(j, ev->now_ms);
}

/* Joining and coming back. ----------------------------------------------------------------------------------------- */

static void on_join_forming(struct job *j, const struct job_event *ev) {
  j->came_ms = ev->now_ms;
  if (job_try_seal(j, ev->now_ms)) return;
  notice_all_soon(j, ev->now_ms);
  if (j->n_members + j->roster.n <= JOB_NOTICE_AT_ONCE) job_send_waiting(j, ev->member, ev->now_ms);
}

static void on_join_spare(struct job *j, const struct job_event *ev) {
  job_watch_newcomer(j, ev->member, ev->now_ms);
  job_send_waiting(j, ev->member, ev->now_ms);
}

static void on_join_ending(struct job *j, const struct job_event *ev) {
  member_send(ev->member, job_end_bytes(j));
}

/* Between rounds: the node has missed SETTLED. */
static void on_resume_forming(struct job *j, const struct job_event *ev) {
  member_send(ev->member, job_settled_bytes(j));
  on_join_forming(j, ev);
}

static void on_resume_running(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (m->state == MEMBER_TOLD && ev->hello->phase == PHASE_NONE && !ev->again) job_send_start(j, m);
  if (!ev->again) job_ids_resume(j, m, ev->hello);
}

static void on_resume_checkpointing(struct job *j, const struct job_event *ev) {
  job_checkpointing_resume(j, ev);
  if (!ev->again) job_ids_resume(j, ev->member, ev->hello);
}

static void on_resume_stopping(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (m->state != MEMBER_TOLD && m->state != MEMBER_STARTED && !job_waits_for_head(j, m)) return;
  if (ev->hello->phase == PHASE_NONE && !ev->again)
    member_set_state(m, MEMBER_STOPPED); /* START never reached it */
  else
    member_send(m, job_stop_bytes(j));
  job_settle_if_stopped(j, ev->now_ms);
}

/* Reports. --------------------------------------------------------------------------------------------------------- */

static void on_started(struct job *j, const struct job_event *ev) {
  goodput_started(j, ev->at_ms, ev->report->stayed > 0);
  if (ev->member->state == MEMBER_TOLD) member_set_state(ev->member, MEMBER_STARTED);
  if (j->state == JOB_STARTING && !j->n_in_state[MEMBER_TOLD]) job_enter(j, JOB_RUNNING, ev->now_ms);
}

static void on_failed(struct job *j, const struct job_event *ev) {
  if (ev->member->state == MEMBER_FINISHED) return; /* a finished node reports nothing more */
  struct verdict v = ev->report->what;
  /* Limits a report to what an agent may say about its workers: it cannot speak for operators, or declare nodes lost. */
  if (v.cause == CAUSE_WORKER_SIGNAL)
    v.code = 128 + v.signal;
  else if (v.cause == CAUSE_WORKER_HUNG)
    v.code = EXIT_CODE_HUNG;
  else if (v.cause == CAUSE_CONTACT_LOST)
    v.code = EXIT_CODE_CONTACT_LOST;
  else if (v.cause != CAUSE_WORKER_EXEC && v.cause != CAUSE_DEVICE_HELD && v.cause != CAUSE_OTHER)
    v.cause = CAUSE_WORKER_EXIT;
  if ((v.cause != CAUSE_WORKER_EXIT && v.cause != CAUSE_WORKER_EXEC) || v.lasting == LASTING_NCCL)
    v.lasting = LASTING_NO;
  if (!v.code) v.code = 1;
  /* A command that cannot work fails at once. One that has run before, or has reported progress, met something else: a
   * file server that is away, a node without the program. */
  bool young = j->state == JOB_RECOVERING || ev->at_ms < j->round_ms + JOB_LONG_ROUND_MS;
  bool at_once = j->round == 1 && young && v.step < 0 && job_steps(j).least < 0;
  bool by_itself = v.lasting == LASTING_TRAINER || v.lasting == LASTING_WORKER || v.lasting == LASTING_RESULT;
  if (!by_itself && !at_once) v.lasting = LASTING_NO;
  if (v.cause == CAUSE_WORKER_EXIT && v.code == EXIT_CODE_OTHER_HOST) job_note_other_host(j, ev->member);
  v.host = ev->member->host;
  v.node_rank = ev->member->node_rank;
  job_offer_cause(j, &v, ev->at_ms);
  if (job_round_goes_on(j)) job_begin_stopping(j, ev->now_ms, false);
}

static void on_finished(struct job *j, const struct job_event *ev) {
  if (ev->member->state == MEMBER_STOPPED) return;
  member_set_state(ev->member, MEMBER_FINISHED);
  if (j->state == JOB_STARTING && !j->n_in_state[MEMBER_TOLD]) job_enter(j, JOB_RUNNING, ev->now_ms);
  job_finish_if_done(j, ev->now_ms);
  job_settle_if_stopped(j, ev->now_ms);
}

static void on_leaving(struct job *j, const struct job_event *ev) {
  member_set_leaving(ev->member);
  if (ev->member->state == MEMBER_FINISHED) return;
  job_note_loss(j, ev->member, ev->now_ms);
  member_note_absence(ev->member, ABSENCE_LEFT, ev->report->what.text, ev->at_ms);
  job_offer_node_cause(j, ev->member, CAUSE_NODE_LEAVING, EXIT_CODE_PREEMPTED, ev->report->what.text, ev->at_ms);
  j->leave_ms = ev->now_ms + JOB_LEAVE_MS;
  job_prepare(j, ev->now_ms);
}

static void on_stopped(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (m->state == MEMBER_FINISHED)
    m->shut = true;
  else
    member_set_state(m, MEMBER_STOPPED);
  job_settle_if_stopped(j, ev->now_ms);
}

/* The node stopped by itself: it has fenced itself, or lost its guard. It is alive and ready, but the round is
 * broken. */
static void on_stopped_unasked(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (m->state == MEMBER_FINISHED) return;
  member_set_state(m, MEMBER_STOPPED);
  const char *text = ev->report->what.text[0] ? ev->report->what.text : "it stopped its workers by itself";
  job_offer_node_cause(j, m, CAUSE_NODE_LOST, EXIT_CODE_NODE_LOST, text, ev->at_ms);
  job_begin_stopping(j, ev->now_ms, j->state == JOB_STARTING);
}

/* A leaving node stops when it has its checkpoint, or no time left for one. */
static void on_stopped_checkpointing(struct job *j, const struct job_event *ev) {
  if (ev->member->next.leaving)
    job_checkpointing_report(j, ev);
  else
    on_stopped_unasked(j, ev);
}

static void on_report_recovering(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  switch (ev->kind) {
  case JOB_EV_STARTED: on_started(j, ev); break;
  case JOB_EV_FAILED: on_failed(j, ev); break;
  case JOB_EV_LEAVING: on_leaving(j, ev); break;
  case JOB_EV_FINISHED: member_set_state(m, MEMBER_FINISHED); break;
  case JOB_EV_CHECKPOINTED: break; /* the daemon had asked for it before it restarted */
  default:
    m->shut = true;
    if (m->state != MEMBER_FINISHED) member_set_state(m, MEMBER_STOPPED);
    break;
  }
}

/* Operator and deadlines. ------------------------------------------------------------------------------------------ */

static void on_operator(struct job *j, const struct job_event *ev) {
  struct verdict v = job_verdict(j, CAUSE_OPERATOR, EXIT_CODE_STOPPED, ev->text ? ev->text : "");
  job_offer_cause(j, &v, ev->now_ms);
  if (job_round_goes_on(j)) job_begin_stopping(j, ev->now_ms, false);
}

/* Judged by the nodes that are here. The others may still run until their lease is over, and learn of the end when
 * they come back. */
static void on_operator_recovering(struct job *j, const struct job_event *ev) {
  struct verdict v = job_verdict(j, CAUSE_OPERATOR, EXIT_CODE_STOPPED, ev->text ? ev->text : "");
  job_offer_cause(j, &v, ev->now_ms);
  uint64_t lease_over_ms = ev->now_ms + lease_ms(j) + JOB_RECONNECT_MAX_MS;
  job_hold_agent(j, "", "", j->recover_ms < lease_over_ms ? j->recover_ms : lease_over_ms);
  if (j->n_members) {
    job_recover_finish(j, ev->now_ms);
    return;
  }
  job_hold_missing(j, ev->now_ms);
  job_end(j, ev->now_ms, OUTCOME_STOPPED, EXIT_CODE_STOPPED, &v);
}

static void on_operator_forming(struct job *j, const struct job_event *ev) {
  struct verdict v = job_verdict(j, CAUSE_OPERATOR, EXIT_CODE_STOPPED, ev->text ? ev->text : "");
  job_end(j, ev->now_ms, OUTCOME_STOPPED, EXIT_CODE_STOPPED, &v);
}

static void on_deadline_forming(struct job *j, const struct job_event *ev) {
  job_try_seal(j, ev->now_ms);
  if (j->state != JOB_FORMING) return; /* otherwise its claim is out */
  job_claim_look(j, ev->now_ms);
  job_pairs_readmit(j, ev->now_ms);
  if (j->state != JOB_FORMING) return;
  if (ev->now_ms >= job_join_deadline(j)) job_join_timeout(j, ev->now_ms);
  /* A round that is ready may still wait for its claim. */
  if (j->state == JOB_FORMING && ev->now_ms >= j->notice_ms) {
    /* To nodes that have not got the news; after a long time without news, to all. */
    bool idle = ev->now_ms >= j->last_notice_ms + JOB_NOTICE_IDLE_MS;
    j->last_notice_ms = ev->now_ms;
    j->notice_ms = ev->now_ms + JOB_NOTICE_IDLE_MS;
    struct bytes *news = job_waiting_bytes(j, NULL, ev->now_ms);
    for (size_t i = 0; i < j->n_members; i++) {
      struct member *m = j->members[i];
      bool knows = m->told_news == j->news || (m->next.drained && m->told_news != UINT64_MAX);
      if (!idle && knows) continue;
      m->told_news = j->news;
      job_send_news(j, m, news, ev->now_ms);
    }
    bytes_unref(news);
  }
}

/* STARTING: not all have started; STOPPING: not all have stopped. Late nodes are lost. */
static void on_deadline_late(struct job *j, const struct job_event *ev) {
  enum job_state state = j->state;
  for (size_t i = j->n_members; i-- > 0 && j->state == state;) {
    if (i >= j->n_members) continue;
    struct member *m = j->members[i];
    bool late =
        m->state == MEMBER_TOLD || (state == JOB_STOPPING && (m->state == MEMBER_STARTED || job_waits_for_head(j, m)));
    if (!late) continue;
    struct job_event lost = {.kind = JOB_EV_LOST, .now_ms = ev->now_ms, .member = m, .at_ms = ev->now_ms};
    lost.text = state == JOB_STARTING ? "its workers did not start in time" : "its workers did not stop in time";
    job_event(j, &lost);
  }
}

static void on_deadline_recovering(struct job *j, const struct job_event *ev) {
  if (ev->now_ms >= j->notice_ms) {
    /* Nodes that can come have come by now, mostly. Those that are here hear at once that they are too few, and what would
     * have helped: the round is judged later, and until then they would only know that their daemon is gone. */
    j->notice_ms = UINT64_MAX;
    if (job_lacks(j)) {
      struct bytes *news = job_waiting_bytes(j, NULL, ev->now_ms);
      for (size_t i = 0; i < j->n_members; i++) job_send_news(j, j->members[i], news, ev->now_ms);
      bytes_unref(news);
    }
  }
  if (ev->now_ms >= j->recover_ms) job_recover_finish(j, ev->now_ms);
}

static void on_deadline_ending(struct job *j, const struct job_event *ev) {
  job_enter(j, JOB_ENDED, ev->now_ms);
}

static void on_deadline_ended(struct job *j, const struct job_event *ev) {
  j->forgotten = true;
}

static void ignore(struct job *j, const struct job_event *ev) {
  job_log(j, LOG_DEBUG, "%s in state %s is ignored", job_event_name(ev->kind), job_state_name(j->state));
}

typedef void (*job_handler_fn)(struct job *j, const struct job_event *ev);

/* clang-format off */
static const job_handler_fn table[JOB_STATE_COUNT][JOB_EV_COUNT] = {
  [JOB_FORMING] = {
    [JOB_EV_JOIN] = on_join_forming, [JOB_EV_RESUME] = on_resume_forming, [JOB_EV_STARTED] = ignore,
    [JOB_EV_FAILED] = ignore, [JOB_EV_FINISHED] = ignore, [JOB_EV_LEAVING] = ignore, [JOB_EV_STOPPED] = ignore,
    [JOB_EV_CHECKPOINTED] = ignore, [JOB_EV_LOST] = on_lost_forming, [JOB_EV_BYE] = on_bye_forming,
    [JOB_EV_END_ACK] = ignore, [JOB_EV_OPERATOR] = on_operator_forming, [JOB_EV_DEADLINE] = on_deadline_forming},
  [JOB_STARTING] = {
    [JOB_EV_JOIN] = on_join_spare, [JOB_EV_RESUME] = on_resume_running, [JOB_EV_STARTED] = on_started,
    [JOB_EV_FAILED] = on_failed, [JOB_EV_FINISHED] = on_finished, [JOB_EV_LEAVING] = on_leaving,
    [JOB_EV_STOPPED] = on_stopped_unasked, [JOB_EV_CHECKPOINTED] = ignore, [JOB_EV_LOST] = on_lost,
    [JOB_EV_BYE] = on_bye, [JOB_EV_END_ACK] = ignore, [JOB_EV_OPERATOR] = on_operator,
    [JOB_EV_DEADLINE] = on_deadline_late},
  [JOB_RUNNING] = {
    [JOB_EV_JOIN] = on_join_spare, [JOB_EV_RESUME] = on_resume_running, [JOB_EV_STARTED] = ignore,
    [JOB_EV_FAILED] = on_failed, [JOB_EV_FINISHED] = on_finished, [JOB_EV_LEAVING] = on_leaving,
    [JOB_EV_STOPPED] = on_stopped_unasked, [JOB_EV_CHECKPOINTED] = ignore, [JOB_EV_LOST] = on_lost,
    [JOB_EV_BYE] = on_bye, [JOB_EV_END_ACK] = ignore, [JOB_EV_OPERATOR] = on_operator,
    [JOB_EV_DEADLINE] = job_grow_if_due},
  [JOB_CHECKPOINTING] = {
    [JOB_EV_JOIN] = on_join_spare, [JOB_EV_RESUME] = on_resume_checkpointing, [JOB_EV_STARTED] = ignore,
    [JOB_EV_FAILED] = on_failed, [JOB_EV_FINISHED] = job_checkpointing_report, [JOB_EV_LEAVING] = on_leaving,
    [JOB_EV_STOPPED] = on_stopped_checkpointing, [JOB_EV_CHECKPOINTED] = job_checkpointing_report,
    [JOB_EV_LOST] = on_lost, [JOB_EV_BYE] = on_bye, [JOB_EV_END_ACK] = ignore, [JOB_EV_OPERATOR] = on_operator,
    [JOB_EV_DEADLINE] = job_checkpointing_deadline},
  [JOB_STOPPING] = {
    [JOB_EV_JOIN] = on_join_spare, [JOB_EV_RESUME] = on_resume_stopping, [JOB_EV_STARTED] = on_started,
    [JOB_EV_FAILED] = on_failed, [JOB_EV_FINISHED] = on_finished, [JOB_EV_LEAVING] = on_leaving,
    [JOB_EV_STOPPED] = on_stopped, [JOB_EV_CHECKPOINTED] = ignore, [JOB_EV_LOST] = on_lost, [JOB_EV_BYE] = on_bye,
    [JOB_EV_END_ACK] = ignore, [JOB_EV_OPERATOR] = on_operator, [JOB_EV_DEADLINE] = on_deadline_late},
  [JOB_RECOVERING] = {
    [JOB_EV_JOIN] = job_recover_hello, [JOB_EV_RESUME] = job_recover_hello, [JOB_EV_STARTED] = on_report_recovering,
    [JOB_EV_FAILED] = on_report_recovering, [JOB_EV_FINISHED] = on_report_recovering,
    [JOB_EV_LEAVING] = on_report_recovering, [JOB_EV_STOPPED] = on_report_recovering,
    [JOB_EV_CHECKPOINTED] = on_report_recovering, [JOB_EV_LOST] = on_lost_recovering,
    [JOB_EV_BYE] = on_bye_recovering, [JOB_EV_END_ACK] = ignore, [JOB_EV_OPERATOR] = on_operator_recovering,
    [JOB_EV_DEADLINE] = on_deadline_recovering},
  [JOB_ENDING] = {
    [JOB_EV_JOIN] = on_join_ending, [JOB_EV_RESUME] = on_join_ending, [JOB_EV_STARTED] = ignore,
    [JOB_EV_FAILED] = ignore, [JOB_EV_FINISHED] = ignore, [JOB_EV_LEAVING] = ignore, [JOB_EV_STOPPED] = ignore,
    [JOB_EV_CHECKPOINTED] = ignore, [JOB_EV_LOST] = on_lost_ending, [JOB_EV_BYE] = on_acked,
    [JOB_EV_END_ACK] = on_acked, [JOB_EV_OPERATOR] = ignore, [JOB_EV_DEADLINE] = on_deadline_ending},
  [JOB_ENDED] = {
    [JOB_EV_JOIN] = on_join_ending, [JOB_EV_RESUME] = on_join_ending, [JOB_EV_STARTED] = ignore,
    [JOB_EV_FAILED] = ignore, [JOB_EV_FINISHED] = ignore, [JOB_EV_LEAVING] = ignore, [JOB_EV_STOPPED] = ignore,
    [JOB_EV_CHECKPOINTED] = ignore, [JOB_EV_LOST] = on_lost_ending, [JOB_EV_BYE] = on_acked,
    [JOB_EV_END_ACK] = on_acked, [JOB_EV_OPERATOR] = ignore, [JOB_EV_DEADLINE] = on_deadline_ended},
};
/* clang-format on */

void job_event(struct job *j, const struct job_event *ev) {
  j->jobs->coverage[(size_t)j->state * JOB_EV_COUNT + ev->kind]++;
  if (j->announcer) job_announce_event(j, ev);
  table[j->state][ev->kind](j, ev); /* NOLINT(clang-analyzer-core.CallAndMessage): no cell is empty */
}

/* Fencing. --------------------------------------------------------------------------------------------------------- */

/* How many nodes could form a round without the one that asks. Every node that can still come back counts, connected
 * or not: the answer holds until the next one, and forever if the connection breaks before that. */
static size_t count_others(const struct job *j, bool is_reported) {
  /* RECOVERING: nodes of the round that have not come back yet, except the one that asks. Before the first HELLO the
   * size of the round may be unknown; then max nodes counts. WELCOME is sent before the node has its rank in the
   * round: is_reported says whether it is counted. */
  size_t nodes = (size_t)(j->round_nodes ? j->round_nodes : j->settings.max_nodes);
  size_t returned = is_reported ? j->n_reported : j->n_reported + 1;
  return j->n_members - j->n_gone - 1 + (j->state == JOB_RECOVERING && nodes > returned ? nodes - returned : 0);
}

/* A job that is over may be started again, without waiting for nodes that do not know of its end. FENCE stays on until
 * the round ends: the agent keeps it as well. */
bool member_tell_fence(struct member *m) {
  struct job *j = m->job;
  bool on = member_in_round(m) && (j->all_fence || m->fence.told);
  m->fence.told =
      on || job_is_over(j) || j->base_fences || count_others(j, m->counted.reported) >= (size_t)j->settings.min_nodes;
  if (!m->fence.told) j->some_need_not_fence = true;
  return m->fence.told;
}

/* The round begins. Until it is firm, another daemon may know its base alone, and begin a round with nodes that have not
 * read START. If nodes of the base had to fence, that daemon waits for no more than their leases. */
void job_begin_fence(struct job *j) {
  const struct quorum *q = j->quorum;
  j->base_fences = !q->firm && (j->all_fence || q->base_nodes > j->settings.min_nodes);
  j->all_fence = j->base_fences || count_others(j, true) >= (size_t)j->settings.min_nodes;
  j->n_fencing = 0;
  for (size_t i = 0; i < j->n_members; i++) j->members[i]->fence.read = j->members[i]->fence.told = false;
}

void member_note_fence(struct member *m) {
  struct job *j = m->job;
  if (m->fence.read || !member_in_round(m)) return;
  m->fence.read = true;
  if (++j->n_fencing == (size_t)j->round_nodes) j->all_fence = true;
}

/* Ten thousand nodes join one by one: only the join that makes the others enough looks at all of them. Nodes in no
 * round learn it from START. */
void job_tell_fence(struct job *j) {
  bool enough = count_others(j, true) >= (size_t)j->settings.min_nodes;
  if (!j->some_need_not_fence || !j->ranks.count || job_is_over(j) || !enough) return;
  /* A HEARTBEAT_ACK without a heartbeat. */
  struct msg msg;
  msg_init(&msg, MSG_HEARTBEAT_ACK);
  msg.flags = FRAME_FLAG_FENCE | (j->state == JOB_RECOVERING ? FRAME_FLAG_RECOVERING : 0);
  struct bytes *ack = msg_bytes(&msg);
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    if (m->conn && member_in_round(m) && !m->fence.told && member_tell_fence(m)) jobs_send_bytes(j->jobs, m->conn, ack);
  }
  j->some_need_not_fence = false;
  bytes_unref(ack);
}

/* Time. ------------------------------------------------------------------------------------------------------------ */

static uint64_t state_deadline(const struct job *j) {
  switch (j->state) {
  case JOB_FORMING:
    return earliest(earliest(j->notice_ms, job_claim_look_deadline(j)),
                    earliest(job_seal_deadline(j), job_join_deadline(j)));
  case JOB_STARTING: return j->state_ms + JOB_START_TIMEOUT_MS;
  case JOB_CHECKPOINTING: return j->prepare_ms;
  case JOB_STOPPING:
    return j->state_ms + (uint64_t)j->settings.stop_timeout_ms + JOB_STOP_SLACK_MS +
           (j->settings.hang_timeout_ms || verdict_is_collective_timeout(&j->cause) ? JOB_PROBE_MS : 0);
  case JOB_RECOVERING: return earliest(j->notice_ms, j->recover_ms);
  case JOB_ENDING: return j->state_ms + JOB_END_ACK_MS;
  case JOB_ENDED: return j->state_ms + JOB_END_KEEP_MS;
  case JOB_RUNNING: return j->grow_ms; /* otherwise without a limit: leases watch over it */
  case JOB_STATE_COUNT: break;
  }
  return UINT64_MAX;
}

uint64_t job_deadline(const struct job *j) {
  uint64_t others =
      earliest(earliest(job_ids_deadline(j), job_quorum_tell_deadline(j)),
               earliest(job_announce_deadline(j), earliest(job_health_deadline(j), job_pairs_deadline(j))));
  return earliest(earliest(j->scan_ms, others), state_deadline(j));
}

void job_tick(struct job *j, uint64_t now_ms, uint64_t lag_ms) {
  job_scan_leases(j, now_ms, lag_ms);
  if (now_ms >= job_ids_deadline(j)) job_ids_tick(j, now_ms);
  job_quorum_tell(j, now_ms);
  job_announce_tick(j, now_ms);
  job_health_tick(j, now_ms);
  job_pairs_tick(j, now_ms);
  if (now_ms < state_deadline(j)) return;
  struct job_event ev = {.kind = JOB_EV_DEADLINE, .now_ms = now_ms};
  job_event(j, &ev);
}

/* The object. ------------------------------------------------------------------------------------------------------ */

struct job *job_create(struct jobs *jobs, int64_t uid, const char *id, const char *incarnation,
                       const struct settings *s) {
  struct job *j = xcalloc(1, sizeof *j);
  j->jobs = jobs;
  j->uid = uid;
  j->id = j->log_name = xstrdup(id);
  snprintf(j->incarnation, sizeof j->incarnation, "%s", incarnation);
  snprintf(j->origin, sizeof j->origin, "%s", incarnation);
  j->settings = *s;
  j->failed_step = -1;
  j->last_failure = FAILURE_MARK_NONE;
  j->state = JOB_FORMING;
  j->state_ms = j->forming_ms = j->last_notice_ms = jobs->now_ms;
  j->line_wall_ms = jobs->wall_ms;
  j->scan_ms = j->notice_ms = j->grow_ms = UINT64_MAX;
  verdict_init(&j->cause);
  verdict_init(&j->last_verdict);
  map_init(&j->agents, jobs_random(jobs));
  map_init(&j->ranks, jobs_random(jobs));
  map_init(&j->wanted, jobs_random(jobs));
  map_init(&j->role_sizes, jobs_random(jobs));
  map_init(&j->holds, jobs_random(jobs));
  map_init(&j->accounted, jobs_random(jobs));
  map_init(&j->flaps, jobs_random(jobs));
  map_init(&j->failures, jobs_random(jobs));
  job_init_roster(j);
  j->term = 1;
  j->quorum = xcalloc(1, sizeof *j->quorum);
  map_init(&j->quorum->voters, jobs->random_state[0]);
  goodput_create(j);
  if (jobs->events) job_announce_create(j);
  return j;
}

void job_set_account(struct job *j, struct account *a) {
  struct account *old = j->account;
  if (a == old) return;
  size_t n_groups = job_evidence_groups(j);
  if (old) old->n_jobs--, old->n_hosts -= j->roster.n, old->n_groups -= n_groups;
  j->account = a;
  if (a) a->n_jobs++, a->n_hosts += j->roster.n, a->n_groups += n_groups;
  accounts_settle(&j->jobs->accounts, old);
}

void job_clear_round(struct job *j) {
  verdict_free(&j->cause);
  verdict_init(&j->cause);
  j->cause_ms = 0;
  j->worker_deaths = 0;
  j->void_round = j->drilled = false;
  job_forget_evidence(j);
  job_forget_pace(j);
}

void job_destroy(struct job *j) {
  while (j->n_members) job_remove_member(j, j->members[j->n_members - 1]);
  job_set_account(j, NULL);
  job_clear_round(j);
  job_ids_forget(j);
  verdict_free(&j->last_verdict);
  map_finish(&j->agents);
  map_finish(&j->ranks);
  map_finish(&j->wanted);
  map_finish(&j->role_sizes);
  free(j->members);
  map_finish_all(&j->holds);
  map_finish(&j->accounted);
  map_finish_all(&j->flaps);
  for (size_t i = 0; i < j->n_past && i < JOB_PAST_MAX; i++) verdict_free(&j->past[i].verdict);
  free(j->past);
  map_finish(&j->failures);
  job_finish_roster(j);
  map_finish_all(&j->quorum->voters);
  free(j->quorum);
  job_claim_destroy(j);
  job_pairs_destroy(j);
  goodput_destroy(j);
  job_announce_destroy(j);
  job_health_destroy(j);
  if (j->log_name != j->id) free(j->log_name);
  free(j->id);
  free(j);
}

bool job_is_over(const struct job *j) {
  return j->state == JOB_ENDING || j->state == JOB_ENDED;
}
