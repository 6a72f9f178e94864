/* The life of a job, as one table: state x event -> handler. What is not in the table does not happen.
 *
 *   FORMING -> STARTING -> RUNNING -> ENDING -> ENDED
 *      ^          |           |          ^
 *      |          |     CHECKPOINTING ---+      an end that is no fault: a checkpoint first (daemon/rdzv_prepare.c)
 *      |          |           |          |
 *      +-------STOPPING <-----+----------+      RECOVERING leads to any of them after the daemon came back
 *
 * A round ends in STOPPING and nowhere else (daemon/rdzv_end.c).
 *
 * Handlers change the job and queue messages through core_send; they return nothing, because there is nothing that a
 * caller could do better. Every empty cell of the table carries a reason in PROTOCOL.md 5. */

#include "daemon/job/job.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "daemon/core/internal.h"

#define X(name, word) word,
static const char *const event_names[] = {JOB_EVENT_LIST(X)};
#undef X

const char *job_event_name(enum job_event_kind k) {
  return k < JOB_EV_COUNT ? event_names[k] : "?";
}

void job_set_state(struct job *j, enum job_state to, uint64_t now_ms) {
  core_log(j->core, LOG_INFO, "job %s: %s -> %s round=%lld nodes=%zu", j->id, job_state_name(j->state),
           job_state_name(to), (long long)j->round, j->n_members);
  j->state = to;
  j->state_ms = now_ms;
  j->notice_ms = to == JOB_FORMING ? now_ms + 1 : UINT64_MAX;
  j->news++;
  job_watch_growth(j, now_ms);
}

/* A round is on its way, and not being stopped. */
static bool round_goes_on(const struct job *j) {
  return j->state == JOB_STARTING || j->state == JOB_RUNNING || j->state == JOB_CHECKPOINTING;
}

/* Losing a node. --------------------------------------------------------------------------------------------------- */

static void note_absence(const struct job_event *ev) {
  bool left = ev->kind == JOB_EV_BYE || ev->member->leaving;
  member_note_absence(ev->member, left ? ABSENCE_LEFT : ABSENCE_LOST, ev->text, ev->at_ms);
}

static void lose_from_round(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  bool starting = j->state == JOB_STARTING, running = round_goes_on(j);
  job_note_loss(j, m, ev->now_ms);
  job_offer_node_cause(j, m, CAUSE_NODE_LOST, EXIT_CODE_NODE_LOST, ev->text, ev->at_ms);
  if (!ev->dead && (m->state == MEMBER_TOLD || m->state == MEMBER_STARTED)) job_hold(j, m);
  note_absence(ev);
  job_remove_member(j, m);
  if (running)
    job_begin_stopping(j, ev->now_ms, starting);
  else
    job_settle_if_stopped(j, ev->now_ms);
}

/* Node rank 0 is done, and the others are not: its agent served the round's store, which they may still need. */
static void lose_store(struct job *j, const struct job_event *ev) {
  struct buf text = BUF_INIT;
  buf_printf(&text, "%s; it had finished, and the store of the round went with it", ev->text);
  job_offer_node_cause(j, ev->member, CAUSE_NODE_LOST, EXIT_CODE_NODE_LOST, buf_text(&text), ev->at_ms);
  buf_finish(&text);
  job_begin_stopping(j, ev->now_ms, j->state == JOB_STARTING);
}

/* STARTING, RUNNING, CHECKPOINTING, STOPPING. */
static void on_lost(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (!member_in_round(m)) {
    if (m->place) note_absence(ev);
    job_remove_member(j, m);
  } else if (m->state == MEMBER_FINISHED) {
    core_bind(j->core, m, 0); /* its work is done and counted; it may come for the end later */
    member_set_gone(m, true);
    if (m->node_rank == 0 && !m->worker_store && j->state != JOB_STOPPING)
      lose_store(j, ev);
    else
      job_settle_if_stopped(j, ev->now_ms);
  } else if (m->state == MEMBER_STOPPED) {
    note_absence(ev);
    job_remove_member(j, m);
    job_settle_if_stopped(j, ev->now_ms);
  } else {
    lose_from_round(j, ev);
  }
}

static void on_lost_forming(struct job *j, const struct job_event *ev) {
  note_absence(ev);
  job_remove_member(j, ev->member);
  job_watch_numbers(j, ev->now_ms);
  job_notice_soon(j, ev->now_ms);
  if (!j->n_members && !j->round) j->forgotten = true; /* nobody has ever run: as if it had not been */
}

static void on_lost_ending(struct job *j, const struct job_event *ev) {
  /* It may come back for the END until the state's deadline; after that the job is remembered without it. */
  core_bind(j->core, ev->member, 0);
  if (!ev->dead && !ev->member->end_acked) return;
  member_set_gone(ev->member, true);
  job_ended_if_acknowledged(j, ev->now_ms);
}

static void on_lost_recovering(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (member_in_round(m) && !ev->dead && (m->state == MEMBER_TOLD || m->state == MEMBER_STARTED))
    job_hold(j, m);
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

/* All were told to leave, and this is the last of them: nobody is left to wait for anybody. */
static void on_bye_forming(struct job *j, const struct job_event *ev) {
  on_lost_forming(j, ev);
  if (!j->n_members && j->round && j->last_verdict.cause == CAUSE_NODE_LEAVING)
    job_end(j, ev->now_ms, OUTCOME_FAILED, EXIT_CODE_PREEMPTED, &j->last_verdict);
}

static void on_bye_recovering(struct job *j, const struct job_event *ev) {
  note_absence(ev);
  job_remove_member(j, ev->member);
  job_recover_finish_if_complete(j, ev->now_ms);
}

static void on_bye_ending(struct job *j, const struct job_event *ev) {
  member_set_acked(ev->member);
  job_ended_if_acknowledged(j, ev->now_ms);
}

/* Joining and coming back. ----------------------------------------------------------------------------------------- */

static void on_join_forming(struct job *j, const struct job_event *ev) {
  if (job_ready_to_seal(j, ev->now_ms)) {
    job_seal(j, ev->now_ms);
    return;
  }
  job_notice_soon(j, ev->now_ms);
  if (j->n_members + j->roster.n <= CORE_NOTICE_AT_ONCE) job_send_waiting(j, ev->member, ev->now_ms);
}

static void on_join_spare(struct job *j, const struct job_event *ev) {
  job_watch_newcomer(j, ev->member, ev->now_ms);
  job_send_waiting(j, ev->member, ev->now_ms);
}

/* To one that has missed what all others were sent. */
static void send_again(struct job *j, const struct member *m, struct bytes *b) {
  core_send_bytes(j->core, m->conn, b);
  bytes_unref(b);
}

static void on_join_ending(struct job *j, const struct job_event *ev) {
  send_again(j, ev->member, job_end_bytes(j));
}

/* Between rounds: it has missed how the last one was settled. */
static void on_resume_forming(struct job *j, const struct job_event *ev) {
  send_again(j, ev->member, job_settled_bytes(j));
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
    send_again(j, m, job_stop_bytes(j));
  job_settle_if_stopped(j, ev->now_ms);
}

/* Reports. --------------------------------------------------------------------------------------------------------- */

static void on_started(struct job *j, const struct job_event *ev) {
  if (ev->member->state == MEMBER_TOLD) member_set_state(ev->member, MEMBER_STARTED);
  if (j->state == JOB_STARTING && !j->n_in_state[MEMBER_TOLD]) job_set_state(j, JOB_RUNNING, ev->now_ms);
}

/* What an agent may say of its workers, and nothing else: it cannot speak for operators, or lose nodes. */
static void make_worker_death(struct verdict *v) {
  if (v->cause == CAUSE_WORKER_SIGNAL)
    v->code = 128 + v->signal;
  else if (v->cause == CAUSE_WORKER_HUNG)
    v->code = EXIT_CODE_HUNG;
  else if (v->cause == CAUSE_CONTACT_LOST)
    v->code = EXIT_CODE_CONTACT_LOST;
  else if (v->cause != CAUSE_WORKER_EXEC && v->cause != CAUSE_DEVICE_HELD)
    v->cause = CAUSE_WORKER_EXIT;
  if (v->cause != CAUSE_WORKER_EXIT) v->lasting = false;
  if (!v->code) v->code = 1;
}

static void on_failed(struct job *j, const struct job_event *ev) {
  if (ev->member->state == MEMBER_FINISHED) return; /* that was its last word */
  struct verdict v = ev->report->what;
  make_worker_death(&v);
  v.host = ev->member->host;
  v.node_rank = ev->member->node_rank;
  job_offer_cause(j, &v, ev->at_ms);
  if (round_goes_on(j)) job_begin_stopping(j, ev->now_ms, false);
}

static void on_finished(struct job *j, const struct job_event *ev) {
  if (ev->member->state == MEMBER_STOPPED) return;
  member_set_state(ev->member, MEMBER_FINISHED);
  if (j->state == JOB_STARTING && !j->n_in_state[MEMBER_TOLD]) job_set_state(j, JOB_RUNNING, ev->now_ms);
  job_finish_if_done(j, ev->now_ms);
  job_settle_if_stopped(j, ev->now_ms);
}

static void on_leaving(struct job *j, const struct job_event *ev) {
  member_set_leaving(ev->member);
  if (ev->member->state == MEMBER_FINISHED) return;
  job_note_loss(j, ev->member, ev->now_ms);
  member_note_absence(ev->member, ABSENCE_LEFT, ev->report->what.text, ev->at_ms);
  job_offer_node_cause(j, ev->member, CAUSE_NODE_LEAVING, EXIT_CODE_PREEMPTED, ev->report->what.text,
                       ev->at_ms);
  j->leave_ms = ev->now_ms + CORE_LEAVE_MS;
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

/* It stopped by itself: it has fenced itself, or lost its guard. Alive and ready, but the round is broken. */
static void on_stopped_unasked(struct job *j, const struct job_event *ev) {
  struct member *m = ev->member;
  if (m->state == MEMBER_FINISHED) return;
  member_set_state(m, MEMBER_STOPPED);
  const char *text = ev->report->what.text[0] ? ev->report->what.text : "it stopped its workers by itself";
  job_offer_node_cause(j, m, CAUSE_NODE_LOST, EXIT_CODE_NODE_LOST, text, ev->at_ms);
  job_begin_stopping(j, ev->now_ms, j->state == JOB_STARTING);
}

/* One that leaves stops when it has its checkpoint, or no more time for one. */
static void on_stopped_checkpointing(struct job *j, const struct job_event *ev) {
  if (ev->member->leaving)
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
  case JOB_EV_CHECKPOINTED: break; /* an earlier life of the daemon had asked for it */
  default:
    m->shut = true;
    if (m->state != MEMBER_FINISHED) member_set_state(m, MEMBER_STOPPED);
    break;
  }
}

static void on_end_ack(struct job *j, const struct job_event *ev) {
  member_set_acked(ev->member);
  job_ended_if_acknowledged(j, ev->now_ms);
}

/* Operator and deadlines. ------------------------------------------------------------------------------------------ */

static void operator_verdict(struct job *j, const struct job_event *ev, struct verdict *v) {
  verdict_init(v);
  v->cause = CAUSE_OPERATOR;
  v->round = j->round;
  v->code = EXIT_CODE_STOPPED;
  v->text = ev->text ? ev->text : "";
}

static void on_operator(struct job *j, const struct job_event *ev) {
  struct verdict v;
  operator_verdict(j, ev, &v);
  job_offer_cause(j, &v, ev->now_ms);
  if (round_goes_on(j)) job_begin_stopping(j, ev->now_ms, false);
}

/* Judged by who is here; who has not reported may still run until it would have been given up, and learns of it from the
 * end that is remembered. */
static void on_operator_recovering(struct job *j, const struct job_event *ev) {
  struct verdict v;
  operator_verdict(j, ev, &v);
  job_offer_cause(j, &v, ev->now_ms);
  uint64_t lease_over_ms = ev->now_ms + (uint64_t)j->settings.lease_ms + CORE_RECONNECT_MAX_MS;
  job_hold_agent(j, "", j->recover_ms < lease_over_ms ? j->recover_ms : lease_over_ms);
  if (j->n_members)
    job_recover_finish(j, ev->now_ms);
  else
    job_end(j, ev->now_ms, OUTCOME_STOPPED, EXIT_CODE_STOPPED, &v);
}

static void on_operator_forming(struct job *j, const struct job_event *ev) {
  struct verdict v;
  operator_verdict(j, ev, &v);
  job_end(j, ev->now_ms, OUTCOME_STOPPED, EXIT_CODE_STOPPED, &v);
}

/* To those who have not heard the news; when nothing has happened for long, to all. */
static void send_notices(struct job *j, uint64_t now_ms) {
  bool idle = now_ms >= j->last_notice_ms + CORE_NOTICE_IDLE_MS;
  j->last_notice_ms = now_ms;
  j->notice_ms = now_ms + CORE_NOTICE_IDLE_MS;
  struct bytes *news = job_waiting_bytes(j, NULL, now_ms);
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    bool knows = m->told_news == j->news || (m->drained && m->told_news != UINT64_MAX);
    if (!idle && knows) continue;
    m->told_news = j->news;
    job_send_news(j, m, news, now_ms);
  }
  bytes_unref(news);
}

static void on_deadline_forming(struct job *j, const struct job_event *ev) {
  if (job_ready_to_seal(j, ev->now_ms))
    job_seal(j, ev->now_ms);
  else if (ev->now_ms >= job_join_deadline(j))
    job_join_timeout(j, ev->now_ms);
  else if (ev->now_ms >= j->notice_ms)
    send_notices(j, ev->now_ms);
}

/* STARTING: not all have started; STOPPING: not all have stopped. Who is late is lost. */
static void on_deadline_late(struct job *j, const struct job_event *ev) {
  enum job_state state = j->state;
  for (size_t i = j->n_members; i-- > 0 && j->state == state;) {
    if (i >= j->n_members) continue;
    struct member *m = j->members[i];
    bool late = m->state == MEMBER_TOLD ||
                (state == JOB_STOPPING && (m->state == MEMBER_STARTED || job_waits_for_head(j, m)));
    if (!late) continue;
    struct job_event lost = {.kind = JOB_EV_LOST, .now_ms = ev->now_ms, .member = m, .at_ms = ev->now_ms};
    lost.text =
        state == JOB_STARTING ? "its workers did not start in time" : "its workers did not stop in time";
    job_event(j, &lost);
  }
}

static void on_deadline_recovering(struct job *j, const struct job_event *ev) {
  job_recover_finish(j, ev->now_ms);
}
static void on_deadline_running(struct job *j, const struct job_event *ev) {
  job_grow_if_due(j, ev->now_ms);
}
static void on_deadline_ending(struct job *j, const struct job_event *ev) {
  job_set_state(j, JOB_ENDED, ev->now_ms);
}
static void on_deadline_ended(struct job *j, const struct job_event *ev) {
  j->forgotten = true;
}

static void ignore(struct job *j, const struct job_event *ev) {
  core_log(j->core, LOG_DEBUG, "job %s: %s in state %s changes nothing", j->id, job_event_name(ev->kind),
           job_state_name(j->state));
}

/* The table. ------------------------------------------------------------------------------------------------------- */

typedef void (*job_handler_fn)(struct job *j, const struct job_event *ev);

/* clang-format off */
static const job_handler_fn table[JOB_STATE_COUNT][JOB_EV_COUNT] = {
  [JOB_FORMING] = {
    [JOB_EV_JOIN] = on_join_forming, [JOB_EV_RESUME] = on_resume_forming, [JOB_EV_STARTED] = ignore,
    [JOB_EV_FAILED] = ignore, [JOB_EV_FINISHED] = ignore, [JOB_EV_LEAVING] = ignore, [JOB_EV_STOPPED] = ignore, [JOB_EV_CHECKPOINTED] = ignore,
    [JOB_EV_LOST] = on_lost_forming, [JOB_EV_BYE] = on_bye_forming, [JOB_EV_END_ACK] = ignore,
    [JOB_EV_OPERATOR] = on_operator_forming, [JOB_EV_DEADLINE] = on_deadline_forming},
  [JOB_STARTING] = {
    [JOB_EV_JOIN] = on_join_spare, [JOB_EV_RESUME] = on_resume_running, [JOB_EV_STARTED] = on_started,
    [JOB_EV_FAILED] = on_failed, [JOB_EV_FINISHED] = on_finished, [JOB_EV_LEAVING] = on_leaving,
    [JOB_EV_STOPPED] = on_stopped_unasked, [JOB_EV_CHECKPOINTED] = ignore, [JOB_EV_LOST] = on_lost, [JOB_EV_BYE] = on_bye, [JOB_EV_END_ACK] = ignore,
    [JOB_EV_OPERATOR] = on_operator, [JOB_EV_DEADLINE] = on_deadline_late},
  [JOB_RUNNING] = {
    [JOB_EV_JOIN] = on_join_spare, [JOB_EV_RESUME] = on_resume_running, [JOB_EV_STARTED] = ignore,
    [JOB_EV_FAILED] = on_failed, [JOB_EV_FINISHED] = on_finished, [JOB_EV_LEAVING] = on_leaving,
    [JOB_EV_STOPPED] = on_stopped_unasked, [JOB_EV_CHECKPOINTED] = ignore, [JOB_EV_LOST] = on_lost, [JOB_EV_BYE] = on_bye, [JOB_EV_END_ACK] = ignore,
    [JOB_EV_OPERATOR] = on_operator, [JOB_EV_DEADLINE] = on_deadline_running},
  [JOB_CHECKPOINTING] = {
    [JOB_EV_JOIN] = on_join_spare, [JOB_EV_RESUME] = on_resume_checkpointing, [JOB_EV_STARTED] = ignore,
    [JOB_EV_FAILED] = on_failed, [JOB_EV_FINISHED] = job_checkpointing_report, [JOB_EV_LEAVING] = on_leaving,
    [JOB_EV_STOPPED] = on_stopped_checkpointing, [JOB_EV_CHECKPOINTED] = job_checkpointing_report, [JOB_EV_LOST] = on_lost,
    [JOB_EV_BYE] = on_bye, [JOB_EV_END_ACK] = ignore, [JOB_EV_OPERATOR] = on_operator, [JOB_EV_DEADLINE] = job_checkpointing_deadline},
  [JOB_STOPPING] = {
    [JOB_EV_JOIN] = on_join_spare, [JOB_EV_RESUME] = on_resume_stopping, [JOB_EV_STARTED] = on_started,
    [JOB_EV_FAILED] = on_failed, [JOB_EV_FINISHED] = on_finished, [JOB_EV_LEAVING] = on_leaving,
    [JOB_EV_STOPPED] = on_stopped, [JOB_EV_CHECKPOINTED] = ignore, [JOB_EV_LOST] = on_lost, [JOB_EV_BYE] = on_bye, [JOB_EV_END_ACK] = ignore,
    [JOB_EV_OPERATOR] = on_operator, [JOB_EV_DEADLINE] = on_deadline_late},
  [JOB_RECOVERING] = {
    [JOB_EV_JOIN] = job_recover_hello, [JOB_EV_RESUME] = job_recover_hello, [JOB_EV_STARTED] = on_report_recovering,
    [JOB_EV_FAILED] = on_report_recovering, [JOB_EV_FINISHED] = on_report_recovering,
    [JOB_EV_LEAVING] = on_report_recovering, [JOB_EV_STOPPED] = on_report_recovering, [JOB_EV_CHECKPOINTED] = on_report_recovering,
    [JOB_EV_LOST] = on_lost_recovering, [JOB_EV_BYE] = on_bye_recovering, [JOB_EV_END_ACK] = ignore,
    [JOB_EV_OPERATOR] = on_operator_recovering, [JOB_EV_DEADLINE] = on_deadline_recovering},
  [JOB_ENDING] = {
    [JOB_EV_JOIN] = on_join_ending, [JOB_EV_RESUME] = on_join_ending, [JOB_EV_STARTED] = ignore,
    [JOB_EV_FAILED] = ignore, [JOB_EV_FINISHED] = ignore, [JOB_EV_LEAVING] = ignore, [JOB_EV_STOPPED] = ignore, [JOB_EV_CHECKPOINTED] = ignore,
    [JOB_EV_LOST] = on_lost_ending, [JOB_EV_BYE] = on_bye_ending, [JOB_EV_END_ACK] = on_end_ack,
    [JOB_EV_OPERATOR] = ignore, [JOB_EV_DEADLINE] = on_deadline_ending},
  [JOB_ENDED] = {
    [JOB_EV_JOIN] = on_join_ending, [JOB_EV_RESUME] = on_join_ending, [JOB_EV_STARTED] = ignore,
    [JOB_EV_FAILED] = ignore, [JOB_EV_FINISHED] = ignore, [JOB_EV_LEAVING] = ignore, [JOB_EV_STOPPED] = ignore, [JOB_EV_CHECKPOINTED] = ignore,
    [JOB_EV_LOST] = on_lost_ending, [JOB_EV_BYE] = on_bye_ending, [JOB_EV_END_ACK] = on_end_ack,
    [JOB_EV_OPERATOR] = ignore, [JOB_EV_DEADLINE] = on_deadline_ended},
};
/* clang-format on */

void job_event(struct job *j, const struct job_event *ev) {
  j->core->coverage[(size_t)j->state * JOB_EV_COUNT + ev->kind]++;
  table[j->state][ev->kind](j, ev);
}

/* Once it is over, anybody may begin it anew, in which nobody waits for who has not heard of its end. */
bool job_could_form_without(const struct job *j, const struct member *m) {
  if (j->state == JOB_ENDING || j->state == JOB_ENDED) return true;
  return j->n_connected - (m->conn ? 1 : 0) >= (size_t)j->settings.min_nodes;
}
