/* One round on this node: START, the workers' lives and deaths, STOP, and what is reported of it.
 *
 * A worker that dies by itself ends the round for everybody, so its siblings are stopped at once, without waiting to be told. What
 * counts as "by itself" is decided by the time of its death: before the trees were told to stop it is a failure and
 * may be the cause; after that it is our own doing and nobody's business.
 *
 * Node rank 0 serves the round's store, from START until the round is over for everybody: SETTLED, STALE, or its own exit.
 * That its own workers have finished or were stopped is not enough, since those of other nodes may still use it. But once they
 * were stopped nobody new may come, and that before STOPPED is reported: with it the next round can begin, and with
 * --store-port on the same port. A worker elsewhere may have its START before we have SETTLED, and must not find the old store.
 *
 * Who has left the round in place, and waits for the next one (supervisor_park.c), counts as stopped.
 *
 * Nothing is called finished or stopped before the guard says CLEAR: no process of the round is left, in whatever session
 * it hid. That is what lets the daemon start the next round on the word of this one. */

#include "agent/supervisor/internal.h"
#include "agent/sdk/rdzv.h"
#include "agent/supervisor/usage_error.h"
#include "common/exit_codes.h"
#include "common/mem.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sup_clear_round(struct supervisor *s) {
  for (size_t i = 0; i < s->n_reports; i++) verdict_free(&s->reports[i].report.what);
  s->n_reports = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    struct worker *w = &s->workers[i], parked = {.pid = w->pid, .parked = true, .can_rejoin = true};
    memcpy(parked.device, w->device, sizeof parked.device);
    *w = w->parked && !w->gone ? parked : (struct worker){0};
  }
  s->park.first_ms = 0;
  s->n_spawned = s->n_succeeded = 0;
  s->reason = STOP_NONE;
  s->fenced = false;
  s->progress_new = false;
  s->wait_ms = UINT64_MAX;
  sup_hang_end(s);
  s->asked = 0;
  s->asking = s->prepared = s->shut = false;
  sup_ids_clear(s);
}

/* The store. ------------------------------------------------------------------------------------------------------- */

/* In a round its reports tell the new port, long before the next round is sealed. Between rounds only HELLO does. */
static void tell_port(struct supervisor *s) {
  bool can = s->link == LINK_READY || (s->link == LINK_GREETING && s->hello_said);
  if (s->state == SUPERVISOR_JOINING && can && s->told_port != s->store_port) sup_say_hello(s);
}

void sup_store(struct supervisor *s, const struct supervisor_event *ev) {
  s->store_port = ev->port;
  tell_port(s);
}

void sup_close_store(struct supervisor *s) {
  sup_ids_release(s);
  if (s->serving) sup_effect(s, SUP_CLOSE_STORE)->round = (uint32_t)s->round;
  s->serving = false;
}

/* Reports. --------------------------------------------------------------------------------------------------------- */

void sup_send_report(struct supervisor *s, const struct own_report *r) {
  struct msg m;
  if (s->link != LINK_READY) return;
  msg_init(&m, MSG_REPORT);
  m.report_msg.incarnation = s->incarnation;
  m.report_msg.report = r->report;
  m.report_msg.report.ago_ms = (int64_t)(s->now_ms - r->at_ms);
  m.report_msg.store_port = s->told_port = s->store_port;
  sup_send(s, &m);
}

void sup_report(struct supervisor *s, enum report_kind kind, const struct verdict *what, uint64_t at_ms) {
  if (s->n_reports == REPORTS_MAX) return; /* the first ones matter; STOPPED has its place kept below */
  if (s->n_reports >= REPORTS_MAX - 2 && (kind == REPORT_FAILED || kind == REPORT_CHECKPOINTED)) return;
  struct own_report *r = &s->reports[s->n_reports++];
  r->at_ms = at_ms;
  r->report.seq = ++s->report_seq;
  r->report.round = s->round;
  r->report.kind = kind;
  if (what)
    verdict_copy(&r->report.what, what);
  else
    verdict_init(&r->report.what);
  sup_send_report(s, r);
}

/* Failing. -------------------------------------------------------------------------------------------------------- */

void sup_describe_worker(const struct supervisor *s, uint32_t local_rank, struct verdict *v) {
  const struct worker *w = &s->workers[local_rank];
  verdict_init(v);
  v->round = s->round;
  v->node_rank = s->node_rank;
  v->local_rank = local_rank;
  v->rank = s->rank_base + local_rank;
  v->host = s->config.host;
  v->pid = w->pid;
  v->device = w->device;
  v->step = w->told_progress ? (int64_t)w->step : -1;
  v->of = (int64_t)w->of;
}

void sup_fail(struct supervisor *s, const struct verdict *v, uint64_t at_ms) {
  sup_report(s, REPORT_FAILED, v, at_ms);
  sup_say_failure(s, v);
  if (s->state == SUPERVISOR_STOPPING) return;
  sup_stop_trees(s, STOP_ROUND, (uint64_t)s->config.settings.stop_timeout_ms);
}

/* START. ----------------------------------------------------------------------------------------------------------- */

/* Workers of a round without a store would wait for it until their own patience is over. */
static void fail_without_store(struct supervisor *s, const struct start *start) {
  struct buf text = BUF_INIT;
  buf_printf(&text, "node 0 (%s, %s) has no port for the round's store; its agent's log says why",
             start->head_host, start->head_addr);
  struct verdict v;
  sup_describe_worker(s, 0, &v);
  v.cause = CAUSE_WORKER_EXEC;
  v.code = 126;
  v.text = buf_text(&text);
  sup_fail(s, &v, s->now_ms);
  buf_finish(&text);
}

void sup_start(struct supervisor *s, const struct msg *m) {
  const struct start *start = &m->start;
  bool same = start->round == s->round && !strcmp(start->incarnation, s->incarnation);
  if (s->state != SUPERVISOR_JOINING || (same && s->node_rank >= 0)) return; /* said twice, or too late */
  if (sup_is_exiting(s)) return;
  if (start->fence) s->fence = true; /* that much is true even if it comes too late */
  if (sup_is_outdated(s, s->acked_sent_ms)) return;
  if (strcmp(start->incarnation, s->incarnation) != 0) sup_dismiss(s, 0);
  sup_clear_round(s);
  snprintf(s->incarnation, sizeof s->incarnation, "%s", start->incarnation);
  snprintf(s->head_host, sizeof s->head_host, "%s", start->head_host);
  s->round = s->seen_round = start->round;
  s->node_rank = start->node_rank;
  s->round_nodes = start->nodes;
  s->rank_base = start->rank_base;
  s->world_size = start->world_size;
  s->restarts_used = start->restarts_used;
  s->failed_step = start->failed_step;
  s->rounds++;
  sup_set_state(s, SUPERVISOR_STARTING);
  sup_say_start(s, start);
  if (!start->store_port) {
    fail_without_store(s, start);
    return;
  }
  s->serving = s->node_rank == 0;
  s->fence = start->fence;
  sup_tell_guard(s); /* first: we may be stopped right behind it */
  sup_ids_start(s, start);
  sup_park_spawn(s, m);
}

/* rdzvctl kill-worker: what comes of it is the worker's own death. */
void sup_kill(struct supervisor *s, const struct kill *kill) {
  bool ours = kill->round == s->round && !strcmp(kill->incarnation, s->incarnation);
  bool runs = s->state == SUPERVISOR_STARTING || s->state == SUPERVISOR_RUNNING;
  if (!ours || !runs || kill->local_rank >= s->config.workers) return;
  const struct worker *w = &s->workers[kill->local_rank];
  if (!w->spawned || w->gone) return;
  const char *name = signal_name((int)kill->signal);
  sup_say(s, LOG_WARN, "rdzvctl kill-worker: signal %lld (%s) goes to rank %lld (local %lld, pid %d)",
          (long long)kill->signal, name ? name : "no name", (long long)(s->rank_base + kill->local_rank),
          (long long)kill->local_rank, w->pid);
  struct supervisor_effect *e = sup_effect(s, SUP_KILL);
  e->signo = (int)kill->signal;
  e->value = (uint64_t)kill->local_rank;
}

static void keep_device(struct worker *w, const struct supervisor_event *ev) {
  snprintf(w->device, sizeof w->device, "%s", ev->device ? ev->device : "");
}

void sup_spawned(struct supervisor *s, const struct supervisor_event *ev) {
  if (ev->round != s->round || ev->local_rank >= s->config.workers) return;
  struct worker *w = &s->workers[ev->local_rank];
  w->pid = ev->pid;
  keep_device(w, ev);
  if (!w->spawned) s->n_spawned++;
  w->spawned = true;
  w->adopting = w->parked = false;
  w->begun_ms = s->now_ms;
  if (s->state != SUPERVISOR_STARTING || s->n_spawned < s->config.workers) return;
  sup_set_state(s, SUPERVISOR_RUNNING);
  sup_report(s, REPORT_STARTED, NULL, s->now_ms);
  sup_hang_begin(s);
  sup_say_status(s);
}

/* Deaths. ---------------------------------------------------------------------------------------------------------- */

static bool ours_to_judge(const struct supervisor *s, const struct supervisor_event *ev) {
  if (ev->round != s->round || ev->local_rank >= s->config.workers || !sup_has_trees(s)) return false;
  return s->state != SUPERVISOR_STOPPING || ev->unasked || ev->when_ms < s->stop_ms;
}

void sup_exec_failed(struct supervisor *s, const struct supervisor_event *ev) {
  if (!ours_to_judge(s, ev) || s->workers[ev->local_rank].exited) return;
  s->workers[ev->local_rank].exited = true;
  keep_device(&s->workers[ev->local_rank], ev);
  struct verdict v;
  sup_describe_worker(s, ev->local_rank, &v);
  v.cause = CAUSE_WORKER_EXEC;
  v.code = ev->error == ENOENT ? 127 : 126;
  v.text = ev->text ? ev->text : "";
  sup_fail(s, &v, ev->when_ms);
}

void sup_device_held(struct supervisor *s, const struct supervisor_event *ev) {
  if (!ours_to_judge(s, ev)) return;
  keep_device(&s->workers[ev->local_rank], ev);
  struct verdict v;
  sup_describe_worker(s, ev->local_rank, &v);
  v.cause = CAUSE_DEVICE_HELD;
  v.code = EXIT_CODE_DEVICES;
  v.text = ev->text ? ev->text : "";
  sup_fail(s, &v, ev->when_ms);
}

void sup_exited(struct supervisor *s, const struct supervisor_event *ev) {
  bool judged = ours_to_judge(s, ev);
  if (ev->round == s->round && ev->local_rank < s->config.workers) {
    s->workers[ev->local_rank].gone = true;
    s->workers[ev->local_rank].parked = false;
  }
  if (!judged) return;
  struct worker *w = &s->workers[ev->local_rank];
  if (w->exited) return;
  w->exited = true;
  if (WIFEXITED(ev->status) && WEXITSTATUS(ev->status) == 0) {
    s->n_succeeded++; /* CLEAR makes it FINISHED when it was the last */
    return;
  }
  struct verdict v;
  sup_describe_worker(s, ev->local_rank, &v);
  v.text = ev->text ? ev->text : "";
  v.error = ev->message ? ev->message : "";
  if (WIFSIGNALED(ev->status)) {
    v.cause = CAUSE_WORKER_SIGNAL;
    v.signal = WTERMSIG(ev->status);
    v.core = (ev->status & 0x80) != 0; /* WCOREDUMP, which <stdlib.h> lacks */
    v.code = 128 + v.signal;
  } else {
    v.cause = CAUSE_WORKER_EXIT;
    v.code = WEXITSTATUS(ev->status);
    v.lasting = is_usage_error((int)v.code, v.text, s->config.trainer);
  }
  sup_fail(s, &v, ev->when_ms);
}

/* Stopping. -------------------------------------------------------------------------------------------------------- */

/* A weightier reason replaces a lighter one: what follows CLEAR is the heaviest's business. Who leaves does so whatever else stops its workers, and
 * gives them no more time than the signal did. */
void sup_stop_trees(struct supervisor *s, enum stop_reason reason, uint64_t grace_ms) {
  uint64_t left_ms = s->kill_by_ms > s->now_ms ? s->kill_by_ms - s->now_ms : 0;
  if (grace_ms > left_ms) grace_ms = left_ms;
  if (s->signals && reason < STOP_LEAVING) reason = STOP_LEAVING;
  if (reason > s->reason) s->reason = reason;
  bool first = s->state != SUPERVISOR_STOPPING;
  if (first) s->stop_ms = s->now_ms;
  sup_set_state(s, SUPERVISOR_STOPPING);
  if (!sup_park_cancel_spawn(s)) {
    sup_park_choose(s, first, reason, grace_ms);
    struct supervisor_effect *e = sup_effect(s, SUP_STOP_TREES);
    e->round = (uint32_t)s->round;
    e->value = grace_ms;
    e->signo = reason == STOP_LEAVING ? s->leave_signo : SIGTERM;
    e->keep = s->park.keep;
  }
  sup_ids_release(s);
  sup_wait_begin(s, grace_ms);
  sup_hang_end(s);
  sup_effect(s, SUP_STATUS)->text = xstrdup("");
}

/* Its workers have finished, and run again with those of the others: as when they are stopped, nobody may come to the old store then. */
static void shut_finished(struct supervisor *s) {
  if (!s->serving || s->shut) return;
  s->shut = true;
  sup_effect(s, SUP_SHUT_STORE)->round = (uint32_t)s->round;
  sup_report(s, REPORT_STOPPED, NULL, s->now_ms);
}

void sup_stop(struct supervisor *s, const struct stop *stop) {
  bool running = s->state == SUPERVISOR_STARTING || s->state == SUPERVISOR_RUNNING;
  if (stop->round != s->round || strcmp(stop->incarnation, s->incarnation) != 0) return;
  if (s->state == SUPERVISOR_FINISHED) shut_finished(s);
  if (!running) return;
  sup_say_failure(s, &stop->verdict);
  if (sup_hang_stop(s, &stop->verdict)) return;
  sup_prepare_stopped(s);
  sup_stop_trees(s, STOP_ROUND, (uint64_t)s->config.settings.stop_timeout_ms);
}

static void join_anew(struct supervisor *s) {
  sup_close_store(s);
  sup_clear_round(s);
  s->node_rank = -1;
  sup_set_state(s, SUPERVISOR_JOINING);
  if (s->link == LINK_READY || (s->link == LINK_GREETING && s->hello_said)) sup_say_hello(s);
}

void sup_stale(struct supervisor *s, const struct stale *stale) {
  sup_say(s, LOG_WARN, "%s; %sjoining anew", stale->text,
          sup_has_trees(s) ? "killing what runs here and " : "");
  if (!strcmp(stale->incarnation, s->incarnation) && stale->round > s->seen_round)
    s->seen_round = stale->round;
  if (sup_is_exiting(s) && !sup_has_trees(s)) sup_close_store(s);
  if (sup_is_exiting(s)) return;
  if (sup_has_trees(s)) {
    sup_stop_trees(s, STOP_STALE, 0);
    return;
  }
  sup_dismiss(s, 0);
  join_anew(s);
}

/* What is left of a stop once nothing runs any more. */
void sup_stopped(struct supervisor *s) {
  enum stop_reason reason = s->reason;
  if (s->link != LINK_READY) s->daemonless_ms = s->now_ms;
  if (reason == STOP_STALE) {
    join_anew(s);
    return;
  }
  if (reason == STOP_EXIT) {
    sup_exit(s, s->exit_code, NULL);
    return;
  }
  struct verdict why;
  verdict_init(&why);
  if (reason == STOP_FENCED) why.text = "it was silent past its lease and killed its workers";
  sup_set_state(s, SUPERVISOR_STOPPED);
  if (s->serving) sup_effect(s, SUP_SHUT_STORE)->round = (uint32_t)s->round;
  sup_report(s, REPORT_STOPPED, &why, s->now_ms);
  if (reason == STOP_LEAVING) sup_exit(s, s->exit_code, "it was told to leave by a signal");
}

void sup_clear(struct supervisor *s, const struct supervisor_event *ev) {
  if (sup_park_clear(s, ev)) return;
  if (ev->round != s->round || !sup_has_trees(s)) return;
  if (ev->count)
    sup_say(s, LOG_DEBUG, "%u process%s that the workers had left behind %s killed", ev->count,
            ev->count == 1 ? "" : "es", ev->count == 1 ? "was" : "were");
  if (s->state ==
      SUPERVISOR_STOPPING) { /* that is all, where nobody stays; of an earlier stop, if more were to stay then */
    s->park.clear |= local_set_is_within(&ev->kept, &s->park.keep);
    return;
  }
  if (s->n_succeeded < s->config.workers)
    return; /* a failure is on its way: its output is still being read */
  if (s->link != LINK_READY) s->daemonless_ms = s->now_ms;
  sup_set_state(s, SUPERVISOR_FINISHED);
  sup_report(s, REPORT_FINISHED, NULL, s->now_ms);
  sup_effect(s, SUP_STATUS)->text = xstrdup("");
}

/* Between rounds. -------------------------------------------------------------------------------------------------- */

void sup_settled(struct supervisor *s, const struct settled *settled) {
  if (settled->round != s->round || strcmp(settled->incarnation, s->incarnation) != 0) return;
  s->restarts_used = settled->restarts_used;
  s->failed_step = settled->failed_step;
  if (sup_is_exiting(s) && !sup_has_trees(s)) sup_close_store(s);
  if (sup_is_exiting(s)) return;
  if (s->state != SUPERVISOR_STOPPED && s->state != SUPERVISOR_FINISHED) return;
  sup_say_settled(s, settled);
  sup_close_store(s);
  sup_clear_round(s);
  sup_set_state(s, SUPERVISOR_JOINING);
  tell_port(s);
}
