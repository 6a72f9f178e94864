/* SPDX-License-Identifier: Apache-2.0 */
/* Events, for --events and --on-event.
 *
 * The daemon alone sees all of a job, so it makes all events of it but two. A daemon with --events writes those of all
 * its jobs. An agent with --events says so in HELLO, and the daemon sends the events of the job to one such agent, the
 * writer, so each event of the job is written once, whoever owns the daemon. The writer is the agent on the daemon's own
 * host, or the first that came. It stays the writer until it is lost or leaves. While its connection is broken, events
 * wait for it; beyond EVENTS_KEPT the oldest are dropped, and one event says how many.
 *
 * A job that nobody watches has no announcer, and costs one comparison for each event of its table.
 *
 * An event is made where the thing happens, before its effect on the nodes. So `ended` reaches the writer before END
 * does, and `failed` before it is released. After a daemon was lost, the next one does not know which events were sent:
 * one may come twice, or be missing. */

#include "daemon/job/internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/events/event.h"
#include "common/exit_codes.h"
#include "common/hostlist.h"
#include "common/mem.h"
#include "daemon/health/findings.h"
#include "daemon/job/goodput.h"

enum {
  EVENTS_KEPT = 64,          /* while the writer is away */
  PROGRESS_EVERY_MS = 1000,  /* events about progress */
  WAITING_FIRST_MS = 10000,  /* nodes are missing for so long: the first event about it, */
  WAITING_MOST_MS = 3600000, /* and the longest pause between two */
};

struct announcer {
  bool asked;                      /* an agent has asked for events, ever */
  char writer[AGENT_ID_MAX + 1];   /* "": none */
  const struct member *going;      /* the event is about its end: it gets no more */
  struct bytes *kept[EVENTS_KEPT]; /* frames, a ring */
  size_t n_kept, first_kept, n_dropped;
  uint64_t begun_ms;                          /* the first node came to this daemon */
  uint64_t stopped_ms;                        /* the last round began to stop; 0: none has, here */
  uint64_t progress_ms, waiting_ms, pause_ms; /* the last event about progress; the next about missing nodes */
  int64_t hung_round, stepped_round;          /* it was said of this round */
  int64_t saved_round, saved;                 /* the last event about a checkpoint */
};

void job_announce_create(struct job *j) {
  struct announcer *a = j->announcer = xcalloc(1, sizeof *a);
  a->begun_ms = j->jobs->now_ms;
  a->waiting_ms = j->forming_ms + WAITING_FIRST_MS;
  a->pause_ms = WAITING_FIRST_MS;
}

void job_announce_destroy(struct job *j) {
  struct announcer *a = j->announcer;
  for (size_t i = 0; a && i < a->n_kept; i++) bytes_unref(a->kept[(a->first_kept + i) % EVENTS_KEPT]);
  free(a);
}

/* The writer. ------------------------------------------------------------------------------------------------------ */

static bool may_write(const struct member *m) {
  return m->wants_events && !m->gone && m != m->job->announcer->going;
}

static bool is_better(const struct member *m, const struct member *than) {
  const char *here = m->job->jobs->daemon.host;
  bool near = here[0] && !strcmp(m->host, here), than_near = here[0] && !strcmp(than->host, here);
  return near != than_near ? near : m->joined_no < than->joined_no;
}

/* The agent that owns this daemon joins its job too, perhaps milliseconds later than others: on local disks the file is
 * then always with it. */
static bool owner_is_awaited(const struct job *j) {
  const struct daemon_facts *d = &j->jobs->daemon;
  if (!d->owned || j->state != JOB_FORMING || j->round || j->announcer->n_kept == EVENTS_KEPT) return false;
  for (size_t i = 0; i < j->n_members; i++)
    if (!strcmp(j->members[i]->host, d->host)) return false;
  return true;
}

/* NULL: there is none now. */
static const struct member *find_writer(struct job *j) {
  struct announcer *a = j->announcer;
  const struct member *m = a->writer[0] ? job_find_agent(j, a->writer) : NULL;
  if (m && may_write(m)) return m->conn ? m : NULL;
  m = NULL;
  if (!a->asked || owner_is_awaited(j)) return NULL;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *other = j->members[i];
    if (may_write(other) && other->conn && !other->next.leaving && (!m || is_better(other, m))) m = other;
  }
  if (m) memcpy(a->writer, m->agent, sizeof a->writer);
  return m;
}

static struct bytes *frame_of(enum event_name name, const struct buf *line) {
  struct msg msg;
  msg_init(&msg, MSG_EVENT);
  msg.event_msg.name = event_name(name);
  msg.raw = line->data;
  msg.raw_len = line->len;
  return msg_bytes(&msg);
}

/* With what every event has. host: whose it is; NULL: nobody's. */
static const char *const states[OUTCOME_COUNT] = {
    [OUTCOME_SUCCESS] = "SUCCEEDED", [OUTCOME_FAILED] = "FAILED", [OUTCOME_STOPPED] = "STOPPED"};

static struct event begin(const struct job *j, enum event_name n, const char *host) {
  struct event e;
  event_init(&e, n, j->jobs->wall_ms);
  event_text(&e, EVENT_RUN_ID, j->id);
  event_text(&e, EVENT_HOSTNAME, host);
  if (j->uid >= 0) event_int(&e, EVENT_UID, j->uid);
  if (j->round > 0) event_int(&e, EVENT_ROUND, j->round);
  return e;
}

static void send_kept(struct job *j, const struct member *m) {
  struct announcer *a = j->announcer;
  struct buf line = BUF_INIT, message = BUF_INIT;
  if (a->n_dropped) {
    struct event e = begin(j, EVENT_EVENTS_DROPPED, NULL);
    event_int(&e, EVENT_DROPPED, (int64_t)a->n_dropped);
    buf_printf(&message, "%zu events are lost: the agent that writes them was away for too long", a->n_dropped);
    event_text(&e, EVENT_MESSAGE, buf_text(&message));
    event_line(&e, &line);
    member_send(m, frame_of(e.name, &line));
  }
  for (size_t i = 0; i < a->n_kept; i++) member_send(m, a->kept[(a->first_kept + i) % EVENTS_KEPT]);
  a->n_kept = a->first_kept = a->n_dropped = 0;
  buf_finish(&line);
  buf_finish(&message);
}

/* Sends the event to all that want it, or keeps it for the writer. */
static void finish(struct job *j, struct event *e, struct buf *message) {
  struct announcer *a = j->announcer;
  struct buf line = BUF_INIT;
  event_text(e, EVENT_MESSAGE, buf_text(message));
  event_line(e, &line);
  const struct member *writer = find_writer(j);
  bool is_awaited = false; /* an agent that wants them is a member, and may come back */
  for (size_t i = 0; !writer && a->asked && i < j->n_members && !is_awaited; i++) is_awaited = may_write(j->members[i]);
  if (j->jobs->events) jobs_event(j->jobs, j->account ? j->account->name : "", e->name, &line);
  if (writer) {
    if (a->n_kept) send_kept(j, writer);
    member_send(writer, frame_of(e->name, &line));
  } else if (is_awaited) {
    if (a->n_kept == EVENTS_KEPT) {
      bytes_unref(a->kept[a->first_kept]);
      a->first_kept = (a->first_kept + 1) % EVENTS_KEPT;
      a->n_kept--;
      a->n_dropped++;
    }
    a->kept[(a->first_kept + a->n_kept++) % EVENTS_KEPT] = frame_of(e->name, &line);
  }
  buf_finish(&line);
  buf_finish(message);
}

/* Nodes. ----------------------------------------------------------------------------------------------------------- */

void job_announce_hello(struct job *j, const struct member *m, bool joins) {
  if (m->wants_events && !j->announcer) job_announce_create(j);
  if (!j->announcer) return;
  j->announcer->asked |= m->wants_events;
  if (m->wants_events && find_writer(j) == m) send_kept(j, m);
  if (joins && j->state != JOB_RECOVERING && !job_is_over(j)) {
    struct buf text = BUF_INIT;
    struct event e = begin(j, EVENT_NODE_JOINED, m->host);
    event_text(&e, EVENT_ROLE, m->role);
    event_int(&e, EVENT_LOCAL_WORLD_SIZE, m->workers);
    event_int(&e, EVENT_NODES, (int64_t)j->n_connected);
    event_int(&e, EVENT_MIN_NODES, j->settings.min_nodes);
    buf_printf(&text, "node %s has joined job %s: %zu node%s here", m->host, j->id, j->n_connected,
               j->n_connected == 1 ? " is" : "s are");
    finish(j, &e, &text);
  }
}

static void announce_gone(struct job *j, const struct job_event *ev, enum event_name name, const char *why) {
  const struct member *m = ev->member;
  struct buf text = BUF_INIT;
  size_t others = j->n_connected - (m->conn ? 1 : 0);
  struct event e = begin(j, name, m->host);
  event_rank(&e, EVENT_GROUP_RANK, m->node_rank);
  event_int(&e, EVENT_NODES, (int64_t)others);
  buf_printf(&text, "node %s %s job %s%s%s", m->host, name == EVENT_NODE_LOST ? "is lost from" : "leaves", j->id,
             why ? ": " : "", why ? why : "");
  if (ev->kind != JOB_EV_LEAVING) j->announcer->going = m;
  finish(j, &e, &text);
  j->announcer->going = NULL;
}

/* The worker that a verdict names. */
static void put_worker(struct event *e, const struct verdict *v) {
  event_rank(e, EVENT_GROUP_RANK, v->node_rank);
  event_rank(e, EVENT_GLOBAL_RANK, v->rank);
  event_rank(e, EVENT_LOCAL_RANK, v->local_rank);
  if (v->pid) event_int(e, EVENT_PID, v->pid);
  event_text(e, EVENT_DEVICE, v->device);
  event_rank(e, EVENT_STEP, v->step);
  if (v->of) event_int(e, EVENT_OF, v->of);
}

static void announce_hung(struct job *j, const struct job_event *ev) {
  struct verdict v = ev->report->what;
  struct buf text = BUF_INIT;
  if (v.cause != CAUSE_WORKER_HUNG || j->announcer->hung_round == j->round || !job_round_goes_on(j)) return;
  j->announcer->hung_round = j->round;
  struct event e = begin(j, EVENT_WORKER_HUNG, ev->member->host);
  if (v.idle_ms) event_int(&e, EVENT_DURATION_MS, v.idle_ms);
  v.host = ev->member->host;
  verdict_sentence(&v, &text);
  v.node_rank = ev->member->node_rank;
  put_worker(&e, &v);
  finish(j, &e, &text);
}

void job_announce_event(struct job *j, const struct job_event *ev) {
  const struct member *m = ev->member;
  if (!m) return;
  bool quiet = job_is_over(j) || m->gone || m->state == MEMBER_FINISHED;
  switch (ev->kind) {
  case JOB_EV_LOST:
    if (!quiet) announce_gone(j, ev, EVENT_NODE_LOST, ev->text);
    break;
  case JOB_EV_BYE:
    if (!quiet && !m->next.leaving) announce_gone(j, ev, EVENT_NODE_LEFT, ev->text);
    break;
  case JOB_EV_LEAVING:
    if (!quiet && !m->next.leaving) announce_gone(j, ev, EVENT_NODE_LEFT, ev->report->what.text);
    break;
  case JOB_EV_FAILED:
    if (!quiet) announce_hung(j, ev);
    break;
  default: break;
  }
}

void job_announce_drain(struct job *j, const struct member *m) {
  struct buf text = BUF_INIT;
  const struct drain *d = m->next.drained ? job_drain_of(j, m->host) : NULL;
  if (!j->announcer || job_is_over(j)) return;
  for (size_t i = 0; i < j->n_members && j->members[i] != m; i++)
    if (!strcmp(j->members[i]->host, m->host)) return; /* it was said of the host's first node */
  struct event e = begin(j, m->next.drained ? EVENT_NODE_DRAINED : EVENT_NODE_UNDRAINED, m->host);
  if (d)
    drain_text(d, &text);
  else
    buf_printf(&text, "host %s is no longer drained", m->host);
  finish(j, &e, &text);
}

void job_announce_host(struct job *j, const char *host, const char *why) {
  struct buf text = BUF_INIT;
  if (!j->announcer) return;
  struct event e = begin(j, EVENT_HOST_EXCLUDED, host);
  buf_printf(&text, "host %s is left out of new rounds: %s", host, why);
  finish(j, &e, &text);
}

void job_announce_pairs(struct job *j, bool found, uint64_t took_ms, const char *sentence) {
  struct buf text = BUF_INIT;
  if (!j->announcer) return;
  struct event e = begin(j, EVENT_PAIRS_CHECKED, NULL);
  event_text(&e, EVENT_STATE, states[found ? OUTCOME_FAILED : OUTCOME_SUCCESS]);
  event_int(&e, EVENT_DURATION_MS, (int64_t)took_ms);
  buf_printf(&text, "job %s: %s", j->id, sentence);
  finish(j, &e, &text);
}

void job_announce_slow(struct job *j, int64_t node_rank, int64_t rank, int permille, struct buf *text) {
  const struct member *m = job_find_rank(j, node_rank);
  if (!j->announcer || !m) {
    buf_finish(text);
    return;
  }
  struct event e = begin(j, permille < 0 ? EVENT_RANK_KEEPS_UP : EVENT_RANK_SLOW, m->host);
  event_rank(&e, EVENT_GROUP_RANK, node_rank);
  event_rank(&e, EVENT_GLOBAL_RANK, rank);
  event_rank(&e, EVENT_LOCAL_RANK, rank - m->rank_base);
  if (permille >= 0) event_real(&e, EVENT_COST, (double)permille / 1000);
  finish(j, &e, text);
}

void job_announce_refusal(struct job *j, const char *host, const char *why) {
  struct buf text = BUF_INIT;
  if (!j->announcer) return;
  struct event e = begin(j, EVENT_NODE_REFUSED, host);
  buf_printf(&text, "node %s was refused by job %s: %s", host, j->id, why);
  finish(j, &e, &text);
}

void job_send_notice(struct job *j, const char *text) {
  struct msg msg;
  msg_init(&msg, MSG_NOTICE);
  msg.notice_msg.text = text;
  struct bytes *b = msg_bytes(&msg);
  for (size_t i = 0; i < j->n_members; i++) jobs_send_bytes(j->jobs, j->members[i]->conn, b);
  bytes_unref(b);
  job_log(j, LOG_WARN, "%s", text);
}

void job_notice(struct job *j, const char *fmt, ...) {
  struct buf text = BUF_INIT;
  va_list ap;
  va_start(ap, fmt);
  buf_vprintf(&text, fmt, ap);
  va_end(ap);
  job_send_notice(j, buf_text(&text));
  if (j->announcer) {
    struct event e = begin(j, EVENT_JOB_NOTICE, NULL);
    finish(j, &e, &text);
  }
  buf_finish(&text);
}

void job_announce_odd(struct job *j, const char *host, const struct finding *f, const char *line) {
  struct buf text = BUF_INIT;
  job_send_notice(j, line);
  if (!j->announcer) return;
  struct event e = begin(j, EVENT_NODE_ODD, host);
  event_text(&e, EVENT_FACT, fact_kinds[f->fact].name);
  event_text(&e, EVENT_AT, f->at);
  event_text(&e, EVENT_CLASS, fact_class_name(f->class));
  event_text(&e, EVENT_VALUE, f->value);
  event_text(&e, EVENT_USUAL, f->usual);
  buf_puts(&text, line);
  finish(j, &e, &text);
}

uint64_t job_announce_deadline(const struct job *j) {
  return j->announcer && j->state == JOB_FORMING ? j->announcer->waiting_ms : UINT64_MAX;
}

void job_announce_tick(struct job *j, uint64_t now_ms) {
  struct announcer *a = j->announcer;
  struct buf text = BUF_INIT;
  if (now_ms < job_announce_deadline(j)) return;
  a->waiting_ms = now_ms + a->pause_ms;
  a->pause_ms = earliest(2 * a->pause_ms, WAITING_MOST_MS);
  struct event e = begin(j, EVENT_JOB_WAITING, NULL);
  event_int(&e, EVENT_NODES, (int64_t)j->n_available);
  event_int(&e, EVENT_MIN_NODES, j->settings.min_nodes);
  event_int(&e, EVENT_DURATION_MS, (int64_t)(now_ms - j->forming_ms));
  buf_printf(&text, "job %s: ", j->id);
  job_missing_text(j, false, now_ms, &text);
  finish(j, &e, &text);
}

/* Rounds. ---------------------------------------------------------------------------------------------------------- */

void job_announce_sealed(struct job *j, uint64_t now_ms) {
  struct announcer *a = j->announcer;
  const struct member *head = job_find_rank(j, 0);
  struct buf hosts = BUF_INIT, text = BUF_INIT;
  if (!a || j->state != JOB_STARTING) return;
  struct event e = begin(j, EVENT_ROUND_SEALED, NULL);
  if (head) event_text(&e, EVENT_HOSTNAME, head->host);
  event_int(&e, EVENT_GROUP_WORLD_SIZE, j->round_nodes);
  event_int(&e, EVENT_WORLD_SIZE, j->world_size);
  event_int(&e, EVENT_AGENT_RESTARTS, j->restarts_used);
  event_int(&e, EVENT_MAX_RESTARTS, j->settings.max_restarts);
  event_int(&e, EVENT_DURATION_MS, (int64_t)(now_ms - (a->stopped_ms ? a->stopped_ms : a->begun_ms)));
  const char **names = xcalloc((size_t)j->round_nodes, sizeof *names);
  size_t n = 0;
  for (int64_t r = 0; r < j->round_nodes; r++) {
    const struct member *m = job_find_rank(j, r);
    if (m) names[n++] = m->host;
  }
  if (hostlist_compress(names, n, HOSTS_SHOWN_MAX, &hosts) < n) buf_puts(&hosts, ",...");
  free(names);
  event_text(&e, EVENT_HOSTS, buf_text(&hosts));
  buf_printf(&text, "round %lld of job %s: %lld worker%s on %lld node%s", (long long)j->round, j->id,
             (long long)j->world_size, j->world_size == 1 ? "" : "s", (long long)j->round_nodes,
             j->round_nodes == 1 ? "" : "s");
  finish(j, &e, &text);
  buf_finish(&hosts);
}

/* Once a second, and at the end of a round: it looks at all nodes. */
static void announce_saved(struct job *j) {
  struct announcer *a = j->announcer;
  struct buf text = BUF_INIT;
  int64_t saved = job_steps(j).saved;
  if (saved < 0 || (a->saved_round == j->round && saved <= a->saved)) return;
  a->saved_round = j->round;
  a->saved = saved;
  struct event e = begin(j, EVENT_JOB_SAVED, NULL);
  event_rank(&e, EVENT_STEP, saved);
  buf_printf(&text, "job %s has a checkpoint of step %lld", j->id, (long long)saved);
  finish(j, &e, &text);
}

static void announce_ended(struct job *j, uint64_t now_ms) {
  const struct verdict *v = &j->last_verdict;
  uint64_t ran_ms = now_ms - j->announcer->begun_ms;
  struct buf text = BUF_INIT;
  struct event e = begin(j, EVENT_JOB_ENDED, NULL);
  event_text(&e, EVENT_STATE, states[j->outcome]);
  event_int(&e, EVENT_EXIT_CODE, j->code);
  event_int(&e, EVENT_AGENT_RESTARTS, j->restarts_used);
  event_int(&e, EVENT_MAX_RESTARTS, j->settings.max_restarts);
  event_int(&e, EVENT_TOTAL_RUN_TIME, (int64_t)(ran_ms / 1000));
  event_rank(&e, EVENT_STEP, job_steps(j).least);
  struct goodput g;
  job_goodput(j, now_ms, &g);
  static const enum event_field fields[BUCKET_COUNT] = {
#define X(id, name) EVENT_GOODPUT_##id,
      BUCKET_LIST(X)
#undef X
  };
  for (int b = 0; b < BUCKET_COUNT; b++) event_real(&e, fields[b], (double)goodput_ms(&g, (enum bucket)b) / 1000);
  event_real(&e, EVENT_GOODPUT_TOTAL, (double)goodput_total_ms(&g) / 1000);
  event_real(&e, EVENT_GOODPUT_USEFUL, (double)(uint64_t)(goodput_useful(&g) * 10000 + 0.5) / 10000);
  if (j->outcome == OUTCOME_SUCCESS) {
    buf_printf(&text, "job %s is done: %lld restart%s, %.1f s", j->id, (long long)j->restarts_used,
               j->restarts_used == 1 ? "" : "s", (double)ran_ms / 1000);
    if (v->slow[0]) buf_printf(&text, "; %s", v->slow);
  } else {
    event_text(&e, EVENT_CAUSE, cause_name(v->cause));
    event_text(&e, EVENT_HOSTNAME, v->host);
    event_rank(&e, EVENT_GLOBAL_RANK, v->rank);
    event_text(&e, EVENT_RAW_ERROR, v->error[0] ? v->error : v->cause == CAUSE_OPERATOR ? "" : v->text);
    buf_printf(&text, "job %s %s%s: ", j->id, outcome_name(j->outcome), j->round ? "" : " before its first round");
    verdict_sentence(v, &text);
    buf_printf(&text, "; %lld of %lld restarts used; exit code %d%s", (long long)j->restarts_used,
               (long long)j->settings.max_restarts, j->code, j->code == EXIT_CODE_PREEMPTED ? ": requeue me" : "");
  }
  struct buf useful = BUF_INIT;
  goodput_sentence(&g, &useful);
  if (useful.len) buf_printf(&text, "; %s", buf_text(&useful));
  finish(j, &e, &text);
  buf_finish(&useful);
}

void job_announce_state(struct job *j, enum job_state from, uint64_t now_ms) {
  struct announcer *a = j->announcer;
  if (!a) return;
  if (from == JOB_RECOVERING && j->state != JOB_RECOVERING) {
    bool same = j->quorum->recovering.same_daemon;
    const char *host = j->jobs->daemon.host;
    struct buf text = BUF_INIT;
    struct event e = begin(j, same ? EVENT_DAEMON_RETURNED : EVENT_DAEMON_TOOK_OVER, host);
    event_int(&e, EVENT_NODES, (int64_t)j->n_connected);
    buf_printf(&text, "job %s: the daemon%s%s %s: %zu node%s here", j->id, host[0] ? " on " : "", host,
               same ? "was restarted" : "has taken over", j->n_connected, j->n_connected == 1 ? " is" : "s are");
    finish(j, &e, &text);
  }
  switch (j->state) {
  case JOB_FORMING:
    a->waiting_ms = now_ms + WAITING_FIRST_MS;
    a->pause_ms = WAITING_FIRST_MS;
    break;
  case JOB_RUNNING:
    if (from == JOB_STARTING) {
      bool first = j->round == 1;
      uint64_t since_ms = first ? j->round_ms : a->stopped_ms;
      struct buf text = BUF_INIT;
      struct event e = begin(j, first ? EVENT_ROUND_STARTED : EVENT_ROUND_RESTARTED, NULL);
      event_int(&e, EVENT_GROUP_WORLD_SIZE, j->round_nodes);
      event_int(&e, EVENT_WORLD_SIZE, j->world_size);
      event_int(&e, EVENT_AGENT_RESTARTS, j->restarts_used);
      if (since_ms) event_int(&e, EVENT_DURATION_MS, (int64_t)(now_ms - since_ms));
      buf_printf(&text, "round %lld of job %s: ", (long long)j->round, j->id);
      if (j->world_size == 1)
        buf_puts(&text, "its worker runs");
      else
        buf_printf(&text, "all %lld workers run", (long long)j->world_size);
      if (!first && since_ms) buf_printf(&text, " again after %.1f s", (double)(now_ms - since_ms) / 1000);
      finish(j, &e, &text);
    }
    break;
  case JOB_STOPPING:
    a->stopped_ms = now_ms;
    announce_saved(j);
    break;
  case JOB_ENDING:
    announce_saved(j);
    announce_ended(j, now_ms);
    break;
  default: break;
  }
}

void job_announce_verdict(struct job *j, bool charged, uint64_t now_ms) {
  const struct verdict *v = &j->last_verdict;
  bool planned = v->cause == CAUSE_OPERATOR || v->cause == CAUSE_NODE_JOINED || v->cause == CAUSE_NODE_LEAVING ||
                 v->cause == CAUSE_NODE_DRAINED;
  struct buf text = BUF_INIT;
  if (!j->announcer) return;
  struct event e = begin(j, planned ? EVENT_ROUND_STOPPED : EVENT_ROUND_FAILED, NULL);
  event_text(&e, EVENT_CAUSE, cause_name(v->cause));
  event_text(&e, EVENT_HOSTNAME, v->host);
  event_text(&e, EVENT_STATE, planned ? "STOPPED" : "FAILED");
  if (!j->age_unknown) event_int(&e, EVENT_DURATION_MS, (int64_t)(now_ms - j->round_ms));
  if (!planned) {
    put_worker(&e, v);
    event_text(&e, EVENT_SIGNAL, v->signal ? signal_name((int)v->signal) : NULL);
    if (v->code) event_int(&e, EVENT_EXIT_CODE, v->code);
    event_text(&e, EVENT_RAW_ERROR, v->error[0] ? v->error : v->text);
    event_bool(&e, EVENT_CHARGED, charged);
    event_int(&e, EVENT_AGENT_RESTARTS, j->restarts_used);
    event_int(&e, EVENT_MAX_RESTARTS, j->settings.max_restarts);
  }
  buf_printf(&text, "job %s, round %lld: ", j->id, (long long)j->round);
  verdict_sentence(v, &text);
  finish(j, &e, &text);
}

void job_announce_progress(const struct member *m) {
  struct job *j = m->job;
  struct announcer *a = j->announcer;
  struct buf text = BUF_INIT;
  double rate = 0;
  if (!a || m->progress.step < 0 || !job_round_goes_on(j)) return; /* it may say alone at which step it resumed */
  if (a->stepped_round != j->round) {
    a->stepped_round = j->round;
    struct event e = begin(j, EVENT_ROUND_FIRST_STEP, NULL);
    event_rank(&e, EVENT_STEP, m->progress.step);
    if (m->progress.of) event_int(&e, EVENT_OF, m->progress.of);
    if (!j->age_unknown) event_int(&e, EVENT_DURATION_MS, (int64_t)(j->jobs->now_ms - j->round_ms));
    buf_printf(&text, "job %s, round %lld: the first step is %lld", j->id, (long long)j->round,
               (long long)m->progress.step);
    finish(j, &e, &text);
  }
  if (a->progress_ms && j->jobs->now_ms < a->progress_ms + PROGRESS_EVERY_MS) return;
  a->progress_ms = j->jobs->now_ms;
  announce_saved(j);
  for (size_t i = 0; i < j->n_members; i++)
    if (member_in_round(j->members[i]) && isfinite(j->members[i]->progress.samples_per_second))
      rate += j->members[i]->progress.samples_per_second;
  struct event e = begin(j, EVENT_JOB_PROGRESS, NULL);
  int64_t least = job_steps(j).least, step = least >= 0 ? least : m->progress.step;
  event_rank(&e, EVENT_STEP, step);
  if (m->progress.of) event_int(&e, EVENT_OF, m->progress.of);
  event_real(&e, EVENT_LOSS, m->progress.loss);
  if (rate > 0) event_real(&e, EVENT_SAMPLES_PER_SECOND, rate);
  buf_printf(&text, "job %s is at step %lld", j->id, (long long)step);
  if (m->progress.of) buf_printf(&text, " of %lld", (long long)m->progress.of);
  finish(j, &e, &text);
}
