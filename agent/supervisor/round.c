/* SPDX-License-Identifier: Apache-2.0 */
/* One round on this node: START, the lives and deaths of workers, STOP, and the reports about them.
 *
 * A worker that dies by itself ends the round for all nodes. Its siblings are stopped at once, before the daemon asks
 * for it. The time of a death decides whether the worker died by itself: before the stop of its tree, the death is
 * a failure and may be the cause; later, it is our own doing.
 *
 * Node rank 0 serves the round's store from START until the round is over everywhere: SETTLED, STALE, or its own exit.
 * The end of its own workers is not enough, because workers of other nodes may still use the store. But after they were
 * stopped the store accepts no new clients, and that happens before STOPPED is reported. With STOPPED the next round
 * can begin, and with --store-port on the same port. A worker elsewhere may have its START before this node has
 * SETTLED, and must not find the old store.
 *
 * Nothing is called finished or stopped before the guard says CLEAR: no process of the round is left, in any session.
 * So the daemon can start the next round on the word of this node. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/supervisor/internal.h"
#include "common/err.h"
#include "common/exit_codes.h"
#include "common/mem.h"

/* States. ---------------------------------------------------------------------------------------------------------- */

static void enter_running(struct supervisor *s) {
  sup_report(s, REPORT_STARTED, NULL, s->now_ms);
  sup_hang_begin(s);
  sup_show_status(s);
}

static void enter_finished(struct supervisor *s) {
  if (s->link.state != CONNECTION_READY) s->link.lost_ms = s->now_ms;
  sup_progress_flush(s);
  sup_report(s, REPORT_FINISHED, NULL, s->now_ms);
  sup_effect(s, SUP_STATUS)->text = xstrdup("");
}

static void enter_stopping(struct supervisor *s) {
  sup_progress_flush(s); /* how far the round has come decides what its failure costs */
  s->stop.begun_ms = s->now_ms;
}

static void enter_stopped(struct supervisor *s) {
  struct verdict why;
  verdict_init(&why);
  if (s->stop.reason == STOP_FENCED) why.text = "it was silent past its lease and killed its workers";
  if (s->store.serving) sup_effect(s, SUP_SHUT_STORE)->round = (uint32_t)s->round.number;
  sup_progress_flush(s); /* checkpoints that workers wrote when they were asked to stop */
  sup_report(s, REPORT_STOPPED, &why, s->now_ms);
}

enum {
  MAY_JOIN = 1 << SUPERVISOR_JOINING,
  MAY_START = 1 << SUPERVISOR_STARTING,
  MAY_RUN = 1 << SUPERVISOR_RUNNING,
  MAY_FINISH = 1 << SUPERVISOR_FINISHED,
  MAY_STOP = 1 << SUPERVISOR_STOPPING,
  MAY_HAVE_STOPPED = 1 << SUPERVISOR_STOPPED,
  MAY_EXIT = 1 << SUPERVISOR_DONE,
};

/* The states that may follow each state, and its entry action. */
static const struct {
  unsigned next;
  void (*enter)(struct supervisor *s);
} states[SUPERVISOR_STATE_COUNT] = {
    [SUPERVISOR_JOINING] = {MAY_START | MAY_EXIT, NULL},
    [SUPERVISOR_STARTING] = {MAY_RUN | MAY_FINISH | MAY_STOP | MAY_EXIT, sup_forming_end},
    [SUPERVISOR_RUNNING] = {MAY_FINISH | MAY_STOP | MAY_EXIT, enter_running},
    [SUPERVISOR_FINISHED] = {MAY_JOIN | MAY_STOP | MAY_EXIT, enter_finished},
    [SUPERVISOR_STOPPING] = {MAY_HAVE_STOPPED | MAY_JOIN | MAY_EXIT, enter_stopping},
    [SUPERVISOR_STOPPED] = {MAY_JOIN | MAY_EXIT, enter_stopped},
    [SUPERVISOR_DONE] = {0, sup_forming_end},
};

#define X(name, word) word,
static const char *const state_names[] = {SUPERVISOR_STATE_LIST(X)};
#undef X

const char *supervisor_state_name(enum supervisor_state st) {
  return st < SUPERVISOR_STATE_COUNT ? state_names[st] : "?";
}

/* The only writer of s->state. A change that is not allowed is refused, and the tests fail at it. */
static void set_state(struct supervisor *s, enum supervisor_state to) {
  const char *from = supervisor_state_name(s->state), *word = supervisor_state_name(to);
  if (s->state == to) return;
  if (!(states[s->state].next >> to & 1)) {
    sup_log(s, LOG_ERROR, "round %lld: a change from %s to %s is not allowed; this is a bug",
            (long long)s->round.number, from, word);
    if (!s->fault) s->fault = xasprintf("%s -> %s", from, word);
    return;
  }
  sup_log(s, LOG_DEBUG, "round %lld: %s -> %s", (long long)s->round.number, from, word);
  s->state = to;
  if (states[to].enter) states[to].enter(s);
}

bool sup_has_trees(const struct supervisor *s) {
  return s->state == SUPERVISOR_STARTING || s->state == SUPERVISOR_RUNNING || s->state == SUPERVISOR_STOPPING;
}

bool sup_is_exiting(const struct supervisor *s) {
  return s->stop.reason == STOP_EXIT;
}

void sup_clear_round(struct supervisor *s) {
  for (size_t i = 0; i < s->reports.n; i++) verdict_free(&s->reports.v[i].report.what);
  s->reports.n = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    struct worker *w = &s->workers[i], parked = {.pid = w->pid, .parked = true, .can_rejoin = true};
    memcpy(parked.device, w->device, sizeof parked.device);
    *w = w->parked && !w->gone ? parked : (struct worker){0};
  }
  s->round.n_spawned = s->round.n_succeeded = 0;
  s->round.early_ms = UINT64_MAX;
  free(s->round.interpreter);
  s->round.interpreter = NULL;
  s->stop.reason = STOP_NONE;
  s->stop.line_ms = UINT64_MAX;
  s->fence.killed = s->store.shut = false;
  s->park.first_ms = 0;
  s->account.first_step = -1;
  s->checkpoint.n_requests = 0;
  s->checkpoint.pending = s->checkpoint.prepared = false;
  sup_progress_clear(s);
  sup_pace_clear(s);
  sup_hang_end(s);
  sup_ids_clear(s);
}

/* The store. ------------------------------------------------------------------------------------------------------- */

/* In a round its reports tell the new port, long before the next round is sealed. Between rounds only HELLO does. */
void sup_announce(struct supervisor *s) {
  if (s->link.state == CONNECTION_READY || (s->link.state == CONNECTION_GREETING && s->link.hello_sent))
    sup_send_hello(s);
}

void sup_announce_ports(struct supervisor *s) {
  if (s->store.told_port != s->store.port || s->targets.told_port != s->targets.standby_port) sup_announce(s);
}

void sup_store(struct supervisor *s, const struct supervisor_event *ev) {
  s->store.port = ev->port;
}

void sup_store_between(struct supervisor *s, const struct supervisor_event *ev) {
  s->store.port = ev->port;
  sup_announce_ports(s);
}

void sup_close_store(struct supervisor *s) {
  sup_ids_release(s);
  if (s->store.serving) sup_effect(s, SUP_CLOSE_STORE)->round = (uint32_t)s->round.number;
  s->store.serving = false;
}

/* Reports. --------------------------------------------------------------------------------------------------------- */

void sup_send_report(struct supervisor *s, const struct own_report *r) {
  struct msg m;
  if (s->link.state != CONNECTION_READY) return;
  msg_init(&m, MSG_REPORT);
  m.report_msg.incarnation = s->round.incarnation;
  m.report_msg.report = r->report;
  m.report_msg.report.ago_ms = (int64_t)(s->now_ms - r->at_ms);
  m.report_msg.store_port = s->store.told_port = s->store.port;
  sup_send(s, &m);
}

void sup_report(struct supervisor *s, enum report_kind kind, const struct verdict *what, uint64_t at_ms) {
  if (s->reports.n == REPORTS_MAX) return; /* the first ones matter; STOPPED has its place kept below */
  if (s->reports.n >= REPORTS_MAX - 2 && (kind == REPORT_FAILED || kind == REPORT_CHECKPOINTED)) return;
  struct own_report *r = &s->reports.v[s->reports.n++];
  r->at_ms = at_ms;
  r->report.seq = ++s->reports.last_seq;
  r->report.round = s->round.number;
  r->report.kind = kind;
  r->report.stayed = kind == REPORT_STARTED ? s->round.stayed : 0;
  if (what)
    verdict_copy(&r->report.what, what);
  else
    verdict_init(&r->report.what);
  sup_send_report(s, r);
}

/* Failing. --------------------------------------------------------------------------------------------------------- */

void sup_describe_worker(const struct supervisor *s, uint32_t local_rank, struct verdict *v) {
  const struct worker *w = &s->workers[local_rank];
  verdict_init(v);
  v->round = s->round.number;
  v->node_rank = s->round.node_rank;
  v->local_rank = local_rank;
  v->rank = s->round.rank_base + local_rank;
  v->host = s->config.host;
  v->pid = w->pid;
  v->device = w->device;
  v->step = w->reports_progress ? (int64_t)w->step : -1;
  v->of = (int64_t)w->of;
}

void sup_fail_round(struct supervisor *s, const struct verdict *v, uint64_t at_ms) {
  sup_report(s, REPORT_FAILED, v, at_ms);
  sup_log_failure(s, v);
  if (s->state == SUPERVISOR_STOPPING) return;
  sup_stop_trees(s, STOP_ROUND, (uint64_t)s->config.settings.stop_timeout_ms);
}

/* START. ----------------------------------------------------------------------------------------------------------- */

void sup_start(struct supervisor *s, const struct supervisor_event *ev) {
  const struct start *start = &ev->msg->start;
  bool same = start->round == s->round.number && !strcmp(start->incarnation, s->round.incarnation);
  if ((same && s->round.node_rank >= 0) || sup_is_exiting(s)) return; /* said twice, or too late */
  if (start->fence) s->fence.required = true;                         /* that much is true even if it comes too late */
  if (sup_drop_if_outdated(s, (uint64_t)start->age_ms)) return;
  sup_allow_workers(s, s->heartbeat.acked_ms, (uint64_t)start->age_ms);
  if (strcmp(start->incarnation, s->round.incarnation) != 0) sup_dismiss_parked(s, 0);
  sup_clear_round(s);
  snprintf(s->round.incarnation, sizeof s->round.incarnation, "%s", start->incarnation);
  s->round.number = s->round.latest = start->round;
  s->round.node_rank = start->node_rank;
  s->round.nodes = start->nodes;
  s->round.rank_base = start->rank_base;
  s->round.world_size = start->world_size;
  s->round.restarts_used = start->restarts_used;
  s->round.failed_step = start->failed_step;
  s->round.last_failure = start->last_failure;
  sup_account_note(s, &start->goodput);
  s->job.rounds++;
  sup_promise_start(s, start);
  set_state(s, SUPERVISOR_STARTING);
  sup_note_start(s, start);
  sup_log_start(s, start);
  if (!start->store_port) {
    /* Workers of a round without a store would wait for it until their own timeout. */
    struct buf text = BUF_INIT;
    buf_printf(&text, "node 0 (%s, %s) has no port for the round's store; its agent's log says why", start->head_host,
               start->head_addr);
    struct verdict v;
    sup_describe_worker(s, 0, &v);
    v.pid = 0;
    v.cause = CAUSE_WORKER_EXEC; /* its agent tries again to have one, so the next round may go well */
    v.code = EXIT_CODE_SYSTEM;
    v.text = buf_text(&text);
    sup_fail_round(s, &v, s->now_ms);
    buf_finish(&text);
    return;
  }
  s->store.serving = s->round.node_rank == 0;
  sup_begin_fence(s, start->fence, start->all_fence);
  sup_ids_start(s, start);
  sup_park_spawn(s, ev->msg);
}

/* rdzvctl kill-worker: the worker then dies by itself. */
void sup_kill(struct supervisor *s, const struct supervisor_event *ev) {
  const struct kill *kill = &ev->msg->kill;
  if (kill->local_rank >= s->config.workers) return;
  const struct worker *w = &s->workers[kill->local_rank];
  if (!w->spawned || w->gone) return;
  const char *name = signal_name((int)kill->signal);
  sup_log(s, LOG_WARN, "rdzvctl kill-worker%s%s: signal %lld (%s) goes to rank %lld (local %lld, pid %d)",
          kill->by[0] ? " by " : "", kill->by, (long long)kill->signal, name ? name : "no name",
          (long long)(s->round.rank_base + kill->local_rank), (long long)kill->local_rank, w->pid);
  struct supervisor_effect *e = sup_effect(s, SUP_KILL);
  e->kill.signo = (int)kill->signal;
  e->kill.local_rank = (uint32_t)kill->local_rank;
}

static void note_device(struct worker *w, const char *device) {
  snprintf(w->device, sizeof w->device, "%s", device ? device : "");
}

void sup_spawned(struct supervisor *s, const struct supervisor_event *ev) {
  struct worker *w = &s->workers[ev->local_rank];
  w->pid = ev->pid;
  note_device(w, ev->device);
  if (!w->spawned) s->round.n_spawned++;
  w->spawned = true;
  w->adopting = w->parked = false;
  w->begun_ms = s->now_ms;
  if (s->state == SUPERVISOR_STARTING && s->round.n_spawned == s->config.workers) set_state(s, SUPERVISOR_RUNNING);
}

/* Deaths. ---------------------------------------------------------------------------------------------------------- */

/* The death is not our doing. */
static bool died_by_itself(const struct supervisor *s, const struct supervisor_event *ev) {
  return s->state != SUPERVISOR_STOPPING || (ev->kind == SUP_EXITED && ev->exited.unasked) ||
         ev->when_ms < s->stop.begun_ms;
}

/* The command has not shown yet that it can work. */
static bool is_the_beginning(const struct supervisor *s, uint32_t local_rank) {
  return s->round.number == 1 && !s->workers[local_rank].reports_progress;
}

void sup_exec_failed(struct supervisor *s, const struct supervisor_event *ev) {
  if (!died_by_itself(s, ev) || s->workers[ev->local_rank].exited) return;
  s->workers[ev->local_rank].exited = true;
  note_device(&s->workers[ev->local_rank], ev->device);
  struct verdict v;
  sup_describe_worker(s, ev->local_rank, &v);
  struct err why = {.code = -ev->code};
  err_set(&why, why.code, "%s", ev->text ? ev->text : "");
  limit_explain(&why);
  v.cause = CAUSE_WORKER_EXEC;
  bool transient = limit_is_transient(ev->code);
  v.lasting = transient || !is_the_beginning(s, ev->local_rank) ? LASTING_NO : LASTING_COMMAND;
  v.code = transient ? EXIT_CODE_SYSTEM : ev->code == ENOENT ? 127 : 126;
  v.text = why.text;
  sup_fail_round(s, &v, ev->when_ms);
}

void sup_device_held(struct supervisor *s, const struct supervisor_event *ev) {
  if (!died_by_itself(s, ev)) return;
  note_device(&s->workers[ev->local_rank], ev->device);
  struct verdict v;
  sup_describe_worker(s, ev->local_rank, &v);
  v.cause = CAUSE_DEVICE_HELD;
  v.code = EXIT_CODE_DEVICES;
  v.text = ev->text ? ev->text : "";
  sup_fail_round(s, &v, ev->when_ms);
}

void sup_exited(struct supervisor *s, const struct supervisor_event *ev) {
  struct worker *w = &s->workers[ev->local_rank];
  w->gone = true;
  w->parked = false;
  if (!died_by_itself(s, ev) || w->exited) return;
  w->exited = true;
  if (WIFEXITED(ev->exited.status) && WEXITSTATUS(ev->exited.status) == 0) {
    w->finished = true;
    if (!s->round.n_succeeded++)
      s->round.early_ms = s->now_ms + SUPERVISOR_EARLY_MS; /* CLEAR makes it FINISHED when it was the last */
    return;
  }
  struct verdict v;
  sup_describe_worker(s, ev->local_rank, &v);
  v.text = ev->text ? ev->text : "";
  v.error = ev->error ? ev->error : "";
  v.shown = ev->exited.lines_shown;
  v.xid = ev->exited.xid;
  if (ev->interpreter) {
    free(s->round.interpreter);
    s->round.interpreter = xstrdup(ev->interpreter);
  }
  if (WIFSIGNALED(ev->exited.status)) {
    v.cause = CAUSE_WORKER_SIGNAL;
    v.signal = WTERMSIG(ev->exited.status);
    v.core = (ev->exited.status & 0x80) != 0; /* WCOREDUMP, which <stdlib.h> lacks */
    v.code = 128 + v.signal;
  } else {
    v.cause = CAUSE_WORKER_EXIT;
    v.code = WEXITSTATUS(ev->exited.status);
    if (v.code == EXIT_CODE_WRONG_RESULT)
      v.lasting = LASTING_RESULT;
    else if (ev->exited.final)
      v.lasting = LASTING_WORKER;
    else if (s->config.trainer || is_the_beginning(s, ev->local_rank))
      v.lasting = find_lasting((int)v.code, v.text, v.error, s->config.trainer);
  }
  if (sup_hang_gave_up(s, &v, ev->when_ms)) return;
  sup_fail_round(s, &v, ev->when_ms);
}

/* Its place is spawned again. */
void sup_exited_parked(struct supervisor *s, const struct supervisor_event *ev) {
  s->workers[ev->local_rank].gone = true;
  s->workers[ev->local_rank].parked = false;
}

/* Stopping. -------------------------------------------------------------------------------------------------------- */

/* A weightier reason replaces a lighter one, and decides what follows CLEAR. An agent that leaves does so even if
 * something else stops its workers, and gives them no more time than the signal did. */
void sup_stop_trees(struct supervisor *s, enum stop_reason reason, uint64_t grace_ms) {
  uint64_t left_ms = s->leave.kill_ms > s->now_ms ? s->leave.kill_ms - s->now_ms : 0;
  if (grace_ms > left_ms) grace_ms = left_ms;
  if (s->leave.signals && reason < STOP_LEAVING) reason = STOP_LEAVING;
  if (reason > s->stop.reason) s->stop.reason = reason;
  bool first = s->state != SUPERVISOR_STOPPING;
  set_state(s, SUPERVISOR_STOPPING);
  sup_park_stop(s, first, reason, grace_ms);
  sup_ids_release(s);
  sup_wait_begin(s, grace_ms);
  sup_hang_end(s);
  sup_effect(s, SUP_STATUS)->text = xstrdup("");
}

/* The workers here have finished, and will run again with those of other nodes. As after a stop, the old store accepts
 * no new clients. */
void sup_stop_finished(struct supervisor *s, const struct supervisor_event *ev) {
  if (!s->store.serving || s->store.shut) return;
  s->store.shut = true;
  sup_effect(s, SUP_SHUT_STORE)->round = (uint32_t)s->round.number;
  sup_report(s, REPORT_STOPPED, NULL, s->now_ms);
}

void sup_stop(struct supervisor *s, const struct supervisor_event *ev) {
  const struct stop *stop = &ev->msg->stop;
  sup_log_failure(s, &stop->verdict);
  if (sup_hang_stop(s, &stop->verdict)) return;
  sup_log_late_checkpoint(s);
  sup_stop_trees(s, STOP_ROUND, (uint64_t)s->config.settings.stop_timeout_ms);
}

static void rejoin(struct supervisor *s) {
  sup_close_store(s);
  sup_check_stale(s);
  sup_clear_round(s);
  s->round.node_rank = -1;
  set_state(s, SUPERVISOR_JOINING);
  sup_announce(s);
}

static void note_stale(struct supervisor *s, const struct stale *stale, const char *what) {
  sup_log(s, LOG_WARN, "%s; %s", stale->text, what);
  if (!strcmp(stale->incarnation, s->round.incarnation) && stale->round > s->round.latest)
    s->round.latest = stale->round;
}

void sup_stale(struct supervisor *s, const struct supervisor_event *ev) {
  note_stale(s, &ev->msg->stale, "joining again");
  if (sup_is_exiting(s)) {
    sup_close_store(s);
    return;
  }
  if (ev->msg->stale.retire) sup_promise_retire(s);
  sup_dismiss_parked(s, 0);
  rejoin(s);
}

void sup_stale_running(struct supervisor *s, const struct supervisor_event *ev) {
  note_stale(s, &ev->msg->stale, "killing the workers here and joining again");
  if (!sup_is_exiting(s)) sup_stop_trees(s, STOP_STALE, 0);
}

/* The stop is over: nothing runs. */
void sup_round_stopped(struct supervisor *s) {
  enum stop_reason reason = s->stop.reason;
  if (s->link.state != CONNECTION_READY) s->link.lost_ms = s->now_ms;
  if (reason == STOP_STALE) {
    rejoin(s);
    return;
  }
  if (reason == STOP_EXIT) {
    sup_exit(s, s->leave.exit_code, NULL);
    return;
  }
  set_state(s, SUPERVISOR_STOPPED);
  if (reason == STOP_LEAVING) sup_exit(s, s->leave.exit_code, "a signal asked it to leave");
}

/* False: CLEAR is of workers that were parked, or of an older round. */
static bool is_clear_of_round(struct supervisor *s, const struct supervisor_event *ev) {
  uint32_t n = ev->clear.orphans;
  if (sup_park_clear(s, ev) || ev->round != s->round.number) return false;
  if (n)
    sup_log(s, LOG_DEBUG, "%u process%s that the workers had left behind %s killed", n, n == 1 ? "" : "es",
            n == 1 ? "was" : "were");
  return true;
}

void sup_clear(struct supervisor *s, const struct supervisor_event *ev) {
  /* If a worker has failed, its event is on its way: its output is still being read. */
  if (is_clear_of_round(s, ev) && s->round.n_succeeded == s->config.workers) set_state(s, SUPERVISOR_FINISHED);
}

/* A CLEAR of an earlier stop may have kept more workers. */
void sup_clear_stopping(struct supervisor *s, const struct supervisor_event *ev) {
  if (is_clear_of_round(s, ev)) s->park.clear |= local_set_is_within(&ev->clear.kept, &s->park.keep);
}

void sup_clear_parked(struct supervisor *s, const struct supervisor_event *ev) {
  sup_park_clear(s, ev);
}

/* What the job's time went to. -------------------------------------------------------------------------------------
 * The daemon keeps the account, and its nodes remember it: each START, SETTLED and END has it, and each HELLO gives the
 * last one back, with its age. A daemon that was restarted, or that takes the job over, goes on with it. The first step
 * that a worker here has reported in the round tells it how long the round's start took. */

void sup_account_note(struct supervisor *s, const struct goodput *g) {
  struct job_account *a = &s->account;
  a->last = *g;
  snprintf(a->waited_for, sizeof a->waited_for, "%s", g->waited_for);
  a->last.waited_for = a->waited_for;
  a->came_ms = s->now_ms;
}

/* Between rounds. -------------------------------------------------------------------------------------------------- */

static void note_settled(struct supervisor *s, const struct settled *settled) {
  s->round.restarts_used = settled->restarts_used;
  s->round.failed_step = settled->failed_step;
  s->round.last_failure = settled->last_failure;
  s->round.held = settled->held;
  sup_account_note(s, &settled->goodput);
}

void sup_settled(struct supervisor *s, const struct supervisor_event *ev) {
  const struct settled *settled = &ev->msg->settled;
  note_settled(s, settled);
  if (sup_is_exiting(s)) {
    sup_close_store(s);
    return;
  }
  sup_log_settled(s, settled);
  sup_check_settled(s, settled);
  sup_close_store(s);
  sup_clear_round(s);
  set_state(s, SUPERVISOR_JOINING);
  sup_announce_ports(s);
}

void sup_settled_early(struct supervisor *s, const struct supervisor_event *ev) {
  note_settled(s, &ev->msg->settled);
}

/* The end. --------------------------------------------------------------------------------------------------------- */

void sup_exit(struct supervisor *s, int code, const char *bye) {
  if (sup_park_delays_exit(s, code, bye)) return;
  sup_log_pending_verdict(s);
  if (bye) {
    struct msg m;
    msg_init(&m, MSG_BYE);
    m.bye.text = bye;
    sup_send(s, &m);
  }
  sup_close_store(s);
  sup_forward_end(s);
  sup_effect(s, SUP_STATUS)->text = xstrdup("");
  sup_effect(s, SUP_DEATH_REPORT); /* none now: nothing of ours runs */
  sup_effect(s, SUP_DISCONNECT);
  set_state(s, SUPERVISOR_DONE);
  s->leave.exit_code = code;
  sup_announce_exit(s, code);
  struct ending *e = sup_effect(s, SUP_ENDING)->ending = xcalloc(1, sizeof *e);
  e->heard = s->job.ended;
  e->outcome = s->job.outcome;
  e->code = code;
  e->round = s->job.ended ? s->job.end_round : s->round.number;
  e->restarts_used = s->round.restarts_used;
  e->repeats = s->job.ended ? s->job.repeats : s->round.last_failure.repeats;
  e->max_restarts = s->config.settings.max_restarts;
  verdict_copy(&e->verdict, &s->verdicts.last);
  e->goodput = s->account.last;
  e->goodput.waited_for = xstrdup(e->goodput.waited_for);
  sup_effect(s, SUP_EXIT)->exit.code = code;
}

/* Workers that have not stopped yet. ------------------------------------------------------------------------------- */

/* The workers that have not stopped yet.
 *
 * Most workers stop within milliseconds and need no line. A worker that hangs in a collective, or saves its state,
 * takes longer. Then a person in front of a quiet terminal wants to know which worker the agent waits for, how long
 * that will take, and which option changes it. So two seconds into a stop a line names the workers that are still
 * there, when they will be killed, and by which option. Another line follows every ten seconds.
 *
 * Only a stop with a grace has a line. A process that was killed at once, and does not die, is named by the guard
 * (STUCK). A worker that is gone may have left others in its process group (the real program behind a shell). When all
 * workers are gone and the guard has not said CLEAR, the line names these. */

enum { FIRST_MS = 2000, EVERY_MS = 10000, NAMES_MAX = 8 };

void sup_wait_begin(struct supervisor *s, uint64_t grace_ms) {
  uint64_t kill_ms = s->now_ms + grace_ms;
  bool begun = s->stop.line_ms != UINT64_MAX;
  if (!begun || kill_ms < s->stop.kill_ms) s->stop.kill_ms = kill_ms;
  if (!begun && grace_ms) s->stop.line_ms = s->now_ms + FIRST_MS;
}

void sup_wait_tick(struct supervisor *s) {
  s->stop.line_ms = UINT64_MAX;
  if (s->state != SUPERVISOR_STOPPING || s->now_ms >= s->stop.kill_ms) return;
  struct buf names = BUF_INIT;
  /* "1, 3 (pid 40, 42)", or "" where no worker is left. */
  struct buf pids = BUF_INIT;
  int n = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (!w->spawned || w->gone || w->parked || n++ >= NAMES_MAX) continue;
    buf_printf(&names, "%s%lld", names.len ? ", " : "", (long long)(s->round.rank_base + i));
    buf_printf(&pids, "%s%d", pids.len ? ", " : "", w->pid);
  }
  if (n > NAMES_MAX) buf_printf(&names, " and %d more", n - NAMES_MAX);
  if (n) buf_printf(&names, " (pid %s%s)", buf_text(&pids), n > NAMES_MAX ? ", ..." : "");
  buf_finish(&pids);
  sup_log(s, LOG_INFO, "waiting for %s%s to stop, SIGKILL in %.0f s (--stop-timeout)",
          names.len ? "rank " : "processes that the workers left behind", buf_text(&names),
          (double)(s->stop.kill_ms - s->now_ms) / 1000);
  buf_finish(&names);
  s->stop.line_ms = s->now_ms + EVERY_MS;
}
