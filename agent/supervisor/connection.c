/* SPDX-License-Identifier: Apache-2.0 */
/* The link to the daemon: connecting, greeting, and heartbeats.
 *
 * A lost connection stops nothing by itself, because workers do not need the daemon. The agent connects again at once,
 * then with pauses of up to a second, and HELLO says where it stands. follow_daemon.c decides which daemon it connects
 * to. What silence means for the workers, fence.c does.
 *
 * A heartbeat names the last answer that this agent has read. So the daemon knows that the agent followed it no earlier
 * than it sent that answer. It cannot know that from the heartbeat alone, which may have been on its way for long. */

#include "agent/supervisor/internal.h"

#include <string.h>
#include "common/deadline.h"
#include "common/exit_codes.h"

enum { EARLY_MS = 1000 };     /* a daemon that is that late gets no warning */
enum { LAST_LINE_MS = 5000 }; /* so soon before the end the last line is enough */
enum { NUMBER_MAX = 255 };    /* of heartbeats, in HEARTBEAT */

static uint64_t join_timeout_ms(const struct supervisor *s) {
  return (uint64_t)s->config.settings.join_timeout_ms;
}

void sup_connect(struct supervisor *s) {
  s->link.state = CONNECTION_CONNECTING;
  sup_aim(s, sup_effect(s, SUP_CONNECT));
}

void sup_link_up(struct supervisor *s, const struct supervisor_event *ev) {
  if (s->link.state != CONNECTION_CONNECTING) return;
  s->link.state = CONNECTION_GREETING;
  s->link.moved |= ev->link_up.moved;
  s->link.hello_sent = s->link.other_program_named = false;
  s->link.greeting_ms = s->now_ms + sup_answer_patience_ms(s, false);
  s->link.other_program_met = true; /* until WELCOME */
  sup_note_peer(s, ev->text, ev->link_up.port);
}

static uint64_t daemon_due_ms(const struct supervisor *s) {
  uint64_t due_ms = s->link.lost_ms + join_timeout_ms(s);
  if (s->link.welcomed) return due_ms;
  /* The endpoint's port speaks another protocol, and the end of that is not waited for as long as for a daemon. */
  if (s->link.other_protocol_ms != UINT64_MAX && s->link.other_protocol_ms + SUPERVISOR_OTHER_PROTOCOL_MS < due_ms)
    return s->link.other_protocol_ms + SUPERVISOR_OTHER_PROTOCOL_MS;
  if (s->config.reach_ms) due_ms = earliest(due_ms, s->link.lost_ms + (uint64_t)s->config.reach_ms);
  if (s->config.unknown_ms && s->link.unknown_ms != UINT64_MAX)
    due_ms = earliest(due_ms, s->link.unknown_ms + (uint64_t)s->config.unknown_ms);
  return due_ms;
}

/* Whether --join-timeout decides how long a daemon is waited for. */
static const char *due_by(const struct supervisor *s) {
  return daemon_due_ms(s) < s->link.lost_ms + join_timeout_ms(s) ? "" : " (--join-timeout)";
}

/* An agent without a daemon, and without workers, gives up in the end. */
static uint64_t give_up_ms(const struct supervisor *s) {
  bool waits = s->link.state != CONNECTION_READY && !sup_has_trees(s) && !sup_is_exiting(s);
  if (sup_check_failed_first(s)) return s->check.tell_by_ms;
  if (sup_check_runs_first(s)) return UINT64_MAX;
  return waits ? daemon_due_ms(s) : UINT64_MAX;
}

static void log_link_down(struct supervisor *s, const char *text) {
  sup_note_link_down(s, text);
  uint64_t due_ms = daemon_due_ms(s), left_ms = due_ms > s->now_ms ? due_ms - s->now_ms : 0;
  bool again = s->link.warned_ms && (s->now_ms < s->link.warned_ms + WARN_EVERY_MS || left_ms < LAST_LINE_MS);
  /* Nodes start together, and the daemon may be some milliseconds late. */
  uint64_t early_ms = join_timeout_ms(s) / 2 < EARLY_MS ? join_timeout_ms(s) / 2 : EARLY_MS;
  bool early = !s->link.welcomed && s->now_ms < s->job.begun_ms + early_ms;
  /* By the living line, which ends at the terminal's edge: the first time the reason has a line of its own. */
  bool shown = s->forming.drawn && s->link.warned_ms;
  bool goes_on = sup_cycle_goes_on(s); /* another place is asked at once */
  bool work = sup_has_trees(s) && s->state != SUPERVISOR_STOPPING;
  if (s->link.state == CONNECTION_READY && !s->link.loss_reported) {
    sup_log(s, LOG_WARN, "lost contact with the daemon at %s: %s; %s", sup_daemon_name(s), text,
            work ? "workers go on, trying to reconnect" : "trying to reconnect");
    s->link.loss_reported = true;
  } else if (!again) {
    if (work)
      sup_log(s, goes_on ? LOG_DEBUG : LOG_WARN, "%s; workers go on, trying again", text);
    else
      sup_log(s, shown || early || goes_on ? LOG_DEBUG : LOG_WARN, "%s; trying again for %llu s%s", text,
              (unsigned long long)left_ms / 1000, due_by(s));
  }
  if (!again && !early && !goes_on) s->link.warned_ms = s->now_ms ? s->now_ms : 1;
}

/* At once after a link that had lived. A daemon that welcomes and closes, again and again, gets a pause. */
static void leave_link(struct supervisor *s) {
  if (s->link.state == CONNECTION_READY) {
    sup_announce_link_down(s);
    bool lived = s->now_ms >= s->link.ready_ms + SUPERVISOR_RETRY_MAX_MS;
    s->link.lost_ms = s->now_ms;
    if (lived || !s->link.short_lived) s->link.retry_delay_ms = 0;
    s->link.short_lived = !lived;
  }
  s->link.state = CONNECTION_DOWN;
}

static void retry_after_pause(struct supervisor *s) {
  uint64_t most = SUPERVISOR_RETRY_MAX_MS, delay = s->link.retry_delay_ms;
  if (s->targets.turning) most = earliest(most, sup_lease_ms(s) / 10);
  s->link.retry_ms = s->now_ms + earliest(delay, most);
  s->link.retry_delay_ms = earliest(delay ? 2 * delay : SUPERVISOR_RETRY_MIN_MS, most);
}

static void pause_and_retry(struct supervisor *s) {
  leave_link(s);
  if (sup_next_target(s))
    s->link.retry_ms = s->now_ms;
  else
    retry_after_pause(s);
}

void sup_reconnect(struct supervisor *s, const char *why, bool lost) {
  if (s->link.state != CONNECTION_DOWN) sup_effect(s, SUP_DISCONNECT);
  sup_note_link_down(s, why);
  s->link.loss_reported |= lost;
  leave_link(s);
  s->link.retry_delay_ms = 0;
  sup_connect(s);
}

/* Daemons that welcome and send on, again and again, get a pause too. */
void sup_follow_move(struct supervisor *s, bool pause) {
  bool welcomed = s->link.state == CONNECTION_READY;
  sup_effect(s, SUP_DISCONNECT);
  sup_note_link_down(s, pause ? "daemons send this node from one to the other" : "the job has moved to another daemon");
  leave_link(s);
  if (welcomed || pause)
    retry_after_pause(s);
  else
    sup_connect(s);
}

void sup_link_down(struct supervisor *s, const struct supervisor_event *ev) {
  if (s->link.state == CONNECTION_DOWN) return;
  if (s->link.state == CONNECTION_CONNECTING) s->link.other_program_met = false;
  if (sup_is_exiting(s)) { /* everything was sent; a daemon is no longer needed */
    s->link.state = CONNECTION_DOWN;
    s->link.retry_ms = UINT64_MAX;
    return;
  }
  /* Another address may know better, until all of them have failed like this. */
  s->link.n_fatal = ev->link_down.exit_code ? s->link.n_fatal + 1 : 0;
  if (ev->link_down.exit_code && !s->link.welcomed && s->link.n_fatal >= s->config.n_endpoints) {
    sup_log(s, LOG_ERROR, "%s", ev->text);
    sup_exit(s, ev->link_down.exit_code, NULL);
    return;
  }
  if (ev->link_down.foreign && s->link.other_protocol_ms == UINT64_MAX) s->link.other_protocol_ms = s->now_ms;
  if (!ev->link_down.foreign && s->link.state == CONNECTION_CONNECTING)
    s->link.other_protocol_ms = UINT64_MAX; /* it no longer listens */
  if (!ev->link_down.unknown)
    s->link.unknown_ms = UINT64_MAX;
  else if (s->link.unknown_ms == UINT64_MAX)
    s->link.unknown_ms = s->now_ms;
  struct buf why = BUF_INIT;
  bool doubt = s->config.endpoint_doubt && !s->link.welcomed;
  buf_puts(&why, ev->text ? ev->text : "the connection was closed");
  if (doubt) buf_printf(&why, "; %s", s->config.endpoint_doubt);
  log_link_down(s, buf_text(&why));
  buf_finish(&why);
  pause_and_retry(s);
}

void sup_other_program(struct supervisor *s, const struct supervisor_event *ev) {
  if (s->link.state != CONNECTION_GREETING || s->link.welcomed || s->link.other_protocol_ms != UINT64_MAX) return;
  s->link.other_program_named = true;
  log_link_down(s, ev->text);
}

/* If a heartbeat is that late, the silence was ours. */
void sup_drop_link(struct supervisor *s, const char *why) {
  struct buf text = BUF_INIT;
  uint64_t due_ms = s->link.state == CONNECTION_READY ? s->heartbeat.next_ms : s->now_ms;
  if (s->now_ms >= due_ms + sup_lease_ms(s) / 2)
    buf_printf(&text, "this agent was stopped, or could not run, for %.1f s", (double)(s->now_ms - due_ms) / 1000);
  else
    buf_puts(&text, why);
  sup_effect(s, SUP_DISCONNECT);
  log_link_down(s, buf_text(&text));
  pause_and_retry(s);
  buf_finish(&text);
}

/* The message is almost as old as the lease: this agent was stopped, or the network was. The daemon may have lost this
 * node since, or will before the work that it asks for has begun. Nothing says when it was sent, but it was sent behind
 * the last answer. */
bool sup_drop_if_outdated(struct supervisor *s, uint64_t age_ms) {
  if (s->now_ms < sup_allowed_until(s, s->heartbeat.acked_ms, age_ms)) return false;
  sup_drop_link(s, "its answer took longer than the lease");
  return true;
}

/* HELLO. ----------------------------------------------------------------------------------------------------------- */

static enum phase phase_of(enum supervisor_state st) {
  switch (st) {
  case SUPERVISOR_STARTING: return PHASE_STARTING;
  case SUPERVISOR_RUNNING: return PHASE_RUNNING;
  case SUPERVISOR_FINISHED: return PHASE_FINISHED;
  case SUPERVISOR_STOPPING: return PHASE_STOPPING;
  case SUPERVISOR_STOPPED: return PHASE_STOPPED;
  case SUPERVISOR_JOINING:
  case SUPERVISOR_DONE:
  case SUPERVISOR_STATE_COUNT: break;
  }
  return PHASE_NONE;
}

/* HELLO must fit into FRAME_MAX_UNIDENTIFIED even if a thousand workers died with much to say, and a byte may take six
 * in JSON. The first to die are the ones that matter; the host is that of HELLO itself. */
enum { HELLO_TEXTS_MAX = 5120 };

static void drop_if_too_long(const char **text, size_t *room) {
  size_t n = strlen(*text);
  if (n > *room)
    *text = "";
  else
    *room -= n;
}

void sup_send_hello(struct supervisor *s) {
  struct report reports[REPORTS_MAX];
  struct msg m;
  msg_init(&m, MSG_HELLO);
  struct hello *h = &m.hello;
  h->version = PROTO_VERSION;
  h->oldest = PROTO_OLDEST;
  h->features = features_words();
  h->release = RDZV_VERSION;
  h->agent = s->config.agent_id;
  h->job = s->config.job;
  h->settings = s->config.settings;
  h->host = s->config.host;
  h->pid = s->config.pid;
  h->workers = s->config.workers;
  h->want_rank = s->config.want_rank;
  h->role = s->config.role;
  h->command = s->config.command;
  h->order_key = s->config.order_key;
  h->expected_nodes = s->config.expected_nodes;
  h->expected_hosts = s->config.expected_hosts;
  h->uid = s->config.uid;
  h->worker_store = s->config.worker_store;
  h->sole = s->config.sole;
  h->wants_ids = s->config.wants_ids;
  h->gpus = s->config.gpus;
  h->local_addr = s->config.local_addr;
  h->addrs = s->config.addrs;
  h->wants_events = s->config.wants_events;
  h->store_port = s->store.told_port = s->store.port;
  h->incarnation = s->round.incarnation;
  h->round = s->round.number;
  h->phase = phase_of(s->state);
  h->node_rank = s->round.node_rank;
  h->round_nodes = s->round.nodes;
  h->restarts_used = s->round.restarts_used;
  h->failed_step = s->round.failed_step;
  h->last_failure = s->round.last_failure;
  if (h->phase == PHASE_NONE && s->round.latest > s->round.number) { /* it was not part of that one, but knows of it */
    h->round = s->round.latest;
    h->node_rank = -1;
    h->round_nodes = 0;
  }
  if (h->phase != PHASE_NONE) {
    h->ids = s->ids.n;
    h->has_ids = s->ids.all != NULL;
  }
  h->standby_port = s->targets.told_port = s->targets.standby_port;
  h->follows = s->following.follows;
  h->silent_ms = h->follows[0] ? (int64_t)(s->now_ms - s->following.heard_ms) : 0;
  h->term = s->following.term;
  const struct promise *p = &s->promise;
  h->voted_incarnation = p->incarnation;
  h->voted_round = p->round;
  h->origin = p->origin;
  h->seal = p->seal;
  h->firm = p->firm;
  h->head_host = p->head_host;
  h->head_addr = p->head_addr;
  h->left_rank = h->phase == PHASE_NONE && p->round ? p->node_rank : -1;
  h->round_age_ms = p->round ? (int64_t)(s->now_ms - p->begun_ms) : 0;
  h->up_ms = (int64_t)s->now_ms; /* the driver's clock counts from the boot */
  h->succeeded = sup_can_be_succeeded(s);
  h->goodput = s->account.last;
  h->goodput_age_ms = s->round.incarnation[0] ? (int64_t)(s->now_ms - s->account.came_ms) : 0;
  h->first_step = s->account.first_step;
  if (h->first_step >= 0) h->first_step_age_ms = (int64_t)(s->now_ms - s->account.first_step_ms);
  h->away_ms = sup_leave_left_ms(s);
  h->held = s->round.held;
  h->all_fence = s->fence.all;
  h->checks = s->config.checks;
  h->checking = s->check.runs ? s->check.round : 0;
  h->checked = s->check.checked;
  h->unfit = s->check.unfit;
  h->unchecked = s->check.unchecked;
  size_t room = HELLO_TEXTS_MAX;
  drop_if_too_long(&h->unfit, &room);
  drop_if_too_long(&h->head_host, &room);
  drop_if_too_long(&h->goodput.waited_for, &room);
  for (size_t i = 0; i < s->reports.n; i++) {
    reports[i] = s->reports.v[i].report;
    reports[i].ago_ms = (int64_t)(s->now_ms - s->reports.v[i].at_ms);
    reports[i].what.host = "";
    drop_if_too_long(&reports[i].what.device, &room);
    drop_if_too_long(&reports[i].what.error, &room);
    drop_if_too_long(&reports[i].what.evidence, &room);
    drop_if_too_long(&reports[i].what.text, &room);
  }
  h->reports = reports;
  h->n_reports = s->reports.n;
  s->link.hello_ms = s->now_ms;
  s->link.greeting_ms = s->now_ms + sup_answer_patience_ms(s, true);
  s->link.hello_seq = s->reports.last_seq;
  s->link.hello_sent = true;
  sup_send(s, &m);
}

void sup_greeting(struct supervisor *s, const struct supervisor_event *ev) {
  if (s->link.state != CONNECTION_GREETING) return;
  struct err e = ERR_INIT;
  struct buf who = BUF_INIT;
  buf_printf(&who, "rdzvd at %s", sup_daemon_name(s));
  if (release_check(msg_release(ev->msg), buf_text(&who), "rdzv-agent", &e))
    sup_misfit(s, e.text);
  else
    sup_send_hello(s);
  buf_finish(&who);
}

/* In no round the daemon's word counts. With another incarnation the earlier facts are forgotten. */
void sup_note_job(struct supervisor *s, const char *incarnation, int64_t round) {
  if (strcmp(s->round.incarnation, incarnation) != 0) {
    sup_dismiss_parked(s, 0);
    if (!s->round.incarnation[0]) s->account.came_ms = s->now_ms; /* a later one goes on with the job */
    memcpy(s->round.incarnation, incarnation, strlen(incarnation) + 1);
    s->round.number = s->round.latest = s->round.nodes = s->round.restarts_used = 0;
    s->round.node_rank = s->round.failed_step = -1;
    s->round.last_failure = FAILURE_MARK_NONE;
    s->round.held = false;
  }
  if (round > s->round.latest) s->round.latest = round;
}

static void send_heartbeat(struct supervisor *s) {
  struct msg m;
  msg_init(&m, MSG_HEARTBEAT);
  m.id = ++s->heartbeat.seq;
  uint32_t back = s->heartbeat.read ? m.id - s->heartbeat.read : 0;
  m.flags = s->heartbeat.suspended ? FRAME_FLAG_SUSPENDED : 0;
  if (back <= NUMBER_MAX) m.flags |= (uint16_t)(back << FRAME_NUMBER_SHIFT);
  s->heartbeat.sent_ms[m.id % HEARTBEATS_KEPT] = s->now_ms;
  s->heartbeat.next_ms = s->now_ms + sup_lease_ms(s) / 8;
  sup_send(s, &m);
}

void sup_welcome(struct supervisor *s, const struct supervisor_event *ev) {
  const struct welcome *w = &ev->msg->welcome;
  bool again = s->link.state == CONNECTION_READY;
  if (s->link.state != CONNECTION_GREETING && !again) return;
  if (s->now_ms >= s->link.hello_ms + sup_lease_ms(s)) { /* and so may be the START behind it: we may be lost by now */
    if (w->fence && sup_answer_counts(s, w->state == JOB_RECOVERING))
      s->fence.required = true; /* and others may be in our place */
    sup_drop_link(s, "its answer took longer than the lease");
    return;
  }
  if (!again) s->link.ready_ms = s->now_ms;
  if (!again) s->heartbeat.read = 0; /* this daemon has not answered it */
  s->link.state = CONNECTION_READY;
  s->heartbeat.answered_ms = s->link.hello_ms;
  if ((uint64_t)w->age_ms < sup_lease_ms(s)) s->heartbeat.led_ms = s->link.hello_ms;
  bool back = sup_note_welcome(s, w);
  if (w->succeeded) s->promise.succeeded = true;
  if (sup_answer_counts(s, w->state == JOB_RECOVERING)) {
    s->heartbeat.acked_ms = s->link.hello_ms;
    sup_end_leave(s);
    sup_allow_workers(s, s->link.hello_ms, (uint64_t)w->age_ms);
    sup_update_fence(s, w->fence, false);
  }
  if (s->link.loss_reported && back) sup_log(s, LOG_INFO, "the daemon is back");
  s->link.loss_reported = false;
  s->link.warned_ms = 0;
  s->link.welcomed = true;
  if (sup_check_failed_first(s)) { /* a daemon of an earlier release does not refuse it */
    sup_check_leave(s);
    return;
  }
  s->link.other_protocol_ms = UINT64_MAX;
  sup_note_link_down(s, NULL);
  s->fence.since_welcome = false;
  if (!phase_of(s->state)) sup_note_job(s, w->incarnation, w->round);
  /* Reports that came up between HELLO and its answer could not be sent then. */
  for (size_t i = 0; i < s->reports.n; i++) {
    if (s->reports.v[i].report.seq <= s->link.hello_seq) continue;
    sup_send_report(s, &s->reports.v[i]);
  }
  sup_progress_repeat(s);
  send_heartbeat(s);
}

/* Heartbeats. ------------------------------------------------------------------------------------------------------ */

/* The other nodes learn of it with their next heartbeat. */
void sup_suspend(struct supervisor *s, const struct supervisor_event *ev) {
  s->heartbeat.suspended = ev->on;
  if (s->link.state == CONNECTION_READY) send_heartbeat(s);
}

/* With id 0 it answers no heartbeat, and brings only its flags. */
void sup_heartbeat_ack(struct supervisor *s, const struct supervisor_event *ev) {
  uint32_t seq = ev->msg->id;
  uint16_t flags = ev->msg->flags;
  if (s->link.state != CONNECTION_READY) return; /* of another daemon, perhaps */
  if (seq && (seq > s->heartbeat.seq || s->heartbeat.seq - seq >= HEARTBEATS_KEPT)) return;
  uint64_t sent = seq ? s->heartbeat.sent_ms[seq % HEARTBEATS_KEPT] : 0;
  if (sent > s->heartbeat.answered_ms) s->heartbeat.answered_ms = sent;
  if (seq > s->heartbeat.read) s->heartbeat.read = seq;
  bool recovering = flags & FRAME_FLAG_RECOVERING;
  uint64_t parts = flags >> FRAME_NUMBER_SHIFT;
  uint64_t ms = (parts * sup_lease_ms(s) + FRAME_AGE_PER_LEASE - 1) / FRAME_AGE_PER_LEASE;
  uint64_t age_ms = earliest(ms, sup_lease_ms(s));
  if (age_ms < sup_lease_ms(s) && sent > s->heartbeat.led_ms) s->heartbeat.led_ms = sent;
  if (flags & FRAME_FLAG_FIRM) sup_promise_firm(s);
  sup_note_answer(s, age_ms, recovering);
  if (seq) s->heartbeat.any_suspended = flags & FRAME_FLAG_SUSPENDED;
  if (!sup_answer_counts(s, recovering)) return;
  if (sent > s->heartbeat.acked_ms) s->heartbeat.acked_ms = sent;
  sup_allow_workers(s, sent, age_ms);
  bool fenced = s->fence.required;
  sup_update_fence(s, flags & FRAME_FLAG_FENCE, flags & FRAME_FLAG_ALL_FENCE);
  /* The daemon may count on this fence only once it knows that FENCE was read: the second of these heartbeats says so. */
  if (s->fence.required && (!fenced || (seq && s->fence.unproven))) {
    s->fence.unproven = !fenced;
    send_heartbeat(s);
  }
}

/* Giving up. ------------------------------------------------------------------------------------------------------- */

static void give_up_on_daemon(struct supervisor *s) {
  if (s->link.welcomed) {
    sup_log(s, LOG_ERROR, "the daemon at %s did not come back within %lld s (--join-timeout): giving up",
            sup_daemon_name(s), (long long)(join_timeout_ms(s) / 1000));
    sup_exit(s, s->fence.since_welcome ? EXIT_CODE_FENCED : EXIT_CODE_DAEMON_LOST, NULL);
    return;
  }
  struct buf why = BUF_INIT;
  buf_puts(&why, s->link.down_text ? s->link.down_text : "start one there, or check the address");
  if (s->link.other_program_met && s->config.endpoint_from)
    buf_printf(
        &why, "; stop that program, or give all agents the same --endpoint HOST:PORT with another port than %s implies",
        s->config.endpoint_from);
  else if (s->link.other_program_met)
    buf_puts(&why, "; stop that program, or choose another port, the same on all nodes");
  sup_log(s, LOG_ERROR, "no rdzvd could be reached at %s within %llu s%s: %s", s->config.endpoint,
          (unsigned long long)(s->now_ms - s->link.lost_ms) / 1000, due_by(s), buf_text(&why));
  buf_finish(&why);
  sup_exit(s, EXIT_CODE_NO_DAEMON, NULL);
}

void sup_link_tick(struct supervisor *s) {
  if (s->now_ms >= give_up_ms(s)) {
    if (sup_check_failed_first(s))
      sup_check_leave(s);
    else
      give_up_on_daemon(s);
    return;
  }
  if (s->link.state == CONNECTION_READY && s->now_ms >= s->heartbeat.next_ms + sup_lease_ms(s) / 4)
    s->following.awake_ms = s->now_ms;
  sup_fence_tick(s);
  if (s->link.state == CONNECTION_DOWN && s->now_ms >= s->link.retry_ms && !sup_check_runs_first(s)) sup_connect(s);
  if (s->link.state == CONNECTION_GREETING && s->now_ms >= s->link.greeting_ms) {
    struct buf why = BUF_INIT;
    if (s->link.other_program_named)
      buf_puts(&why, s->link.down_text);
    else
      buf_printf(&why, "the program that listens at %s accepts the connection, but does not answer like rdzvd",
                 sup_daemon_name(s));
    sup_drop_link(s, buf_text(&why));
    buf_finish(&why);
  }
  if (s->link.state != CONNECTION_READY) return;
  bool silent = s->now_ms >= s->heartbeat.answered_ms + sup_lease_ms(s);
  if (silent && !sup_turns_from_silence(s)) /* which says so itself */
    sup_drop_link(s, "it does not answer heartbeats");
  else if (s->now_ms >= s->heartbeat.next_ms)
    send_heartbeat(s);
}

uint64_t sup_link_deadline(const struct supervisor *s) {
  uint64_t at = earliest(give_up_ms(s), sup_fence_deadline(s));
  if (s->link.state == CONNECTION_DOWN && !sup_check_runs_first(s)) at = earliest(at, s->link.retry_ms);
  if (s->link.state == CONNECTION_GREETING) at = earliest(at, s->link.greeting_ms);
  if (s->link.state == CONNECTION_READY)
    at = earliest(at, earliest(s->heartbeat.next_ms, s->heartbeat.answered_ms + sup_lease_ms(s)));
  return at;
}
