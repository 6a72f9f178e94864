/* The link to the daemon: connecting, greeting, heartbeats, and what silence means.
 *
 * A lost connection stops nothing by itself: workers do not need the daemon. The agent tries again at once, then
 * with pauses up to a second, and says in HELLO where it stands. Only when it was told that a round could form
 * without it (the FENCE flag of the last answer) must it not outlive its lease: then the daemon may soon give its ranks to
 * others, and its workers are killed a margin before that can happen. The lease counts from the sending of
 * the last heartbeat that was answered, so the daemon, which counts from its arrival, always waits longer.
 *
 * "Connection refused" is an answer as well: no daemon is there, and one that comes back waits for a lease before it
 * seals anything. So it counts as a heartbeat that was answered. But only from the very address at which the daemon had answered:
 * that a name now leads to another machine, where none runs, says nothing about ours.
 *
 * The guard is told the same deadline each time it moves, and keeps it alone where we cannot: stopped (SIGSTOP), or hung.
 *
 * Without that flag nobody can take its place, and going on is the right thing: a daemon that was paused, or is being
 * restarted, kills no job. */

#include "agent/supervisor/internal.h"

#include <string.h>
#include "common/deadline.h"
#include "common/exit_codes.h"

static uint64_t lease_ms(const struct supervisor *s) {
  return (uint64_t)s->config.settings.lease_ms;
}
static uint64_t join_timeout_ms(const struct supervisor *s) {
  return (uint64_t)s->config.settings.join_timeout_ms;
}

void sup_connect(struct supervisor *s) {
  s->link = LINK_CONNECTING;
  s->connect_ms = s->now_ms;
  sup_effect(s, SUP_CONNECT);
}

void sup_link_up(struct supervisor *s, const struct supervisor_event *ev) {
  if (s->link != LINK_CONNECTING) return;
  s->link = LINK_GREETING;
  s->moved |= ev->moved;
  s->hello_said = false;
  s->greeting_ms = s->now_ms + SUPERVISOR_HELLO_MS;
  s->met_stranger = true; /* until it is known better */
}

static void say_why_down(struct supervisor *s, const char *text) {
  sup_keep_why_down(s, text);
  bool again = s->nag_ms && s->now_ms < s->nag_ms + NAG_EVERY_MS;
  /* Nodes start together, and who will listen may be some milliseconds late. */
  uint64_t early_ms = join_timeout_ms(s) / 2 < EARLY_MS ? join_timeout_ms(s) / 2 : EARLY_MS;
  bool early = !s->welcomed && s->now_ms < s->begun_ms + early_ms;
  if (s->link == LINK_READY && !s->said_lost) {
    sup_say(s, LOG_WARN, "lost contact with the daemon at %s: %s; %s", s->config.endpoint, text,
            sup_has_trees(s) ? "workers go on, trying to reconnect" : "trying to reconnect");
    s->said_lost = true;
  } else if (!again) {
    uint64_t left = s->daemonless_ms + join_timeout_ms(s);
    left = left > s->now_ms ? (left - s->now_ms) / 1000 : 0;
    if (sup_has_trees(s))
      sup_say(s, LOG_WARN, "%s; workers go on, trying again", text);
    else
      sup_say(s, s->drawn || early ? LOG_DEBUG : LOG_WARN, "%s; trying again for %llu s (--join-timeout)",
              text, (unsigned long long)left);
  }
  if (!again && !early) s->nag_ms = s->now_ms ? s->now_ms : 1;
}

/* At once after a link that had lived; but a daemon that welcomes and closes, again and again, is not to be asked without
 * a pause. */
static void pause_and_retry(struct supervisor *s) {
  if (s->link == LINK_READY) {
    bool lived = s->now_ms >= s->ready_ms + SUPERVISOR_RETRY_MAX_MS;
    s->daemonless_ms = s->now_ms;
    if (lived || !s->short_link) s->retry_delay_ms = 0;
    s->short_link = !lived;
  }
  s->link = LINK_DOWN;
  s->retry_ms = s->now_ms + s->retry_delay_ms;
  uint64_t next = s->retry_delay_ms ? 2 * s->retry_delay_ms : SUPERVISOR_RETRY_MIN_MS;
  s->retry_delay_ms = next < SUPERVISOR_RETRY_MAX_MS ? next : SUPERVISOR_RETRY_MAX_MS;
}

void sup_link_down(struct supervisor *s, const struct supervisor_event *ev) {
  if (s->link == LINK_DOWN) return;
  if (s->link == LINK_CONNECTING) s->met_stranger = false;
  if (sup_is_exiting(s)) { /* all was said; nobody is needed any more */
    s->link = LINK_DOWN;
    s->retry_ms = UINT64_MAX;
    return;
  }
  if (ev->error && !s->welcomed) {
    sup_say(s, LOG_ERROR, "%s", ev->text);
    sup_exit(s, ev->error, NULL);
    return;
  }
  /* Nobody listened there at that time, so nobody could give our place away; one that starts later waits for a lease. */
  if (ev->refused && !s->moved && s->link == LINK_CONNECTING && s->connect_ms > s->acked_sent_ms)
    s->acked_sent_ms = s->connect_ms;
  say_why_down(s, ev->text ? ev->text : "the connection was closed");
  pause_and_retry(s);
}

/* Where a heartbeat is as late as that, the silence was ours. */
static void drop_silent_link(struct supervisor *s, const char *why) {
  struct buf text = BUF_INIT;
  uint64_t due_ms = s->link == LINK_READY ? s->next_heartbeat_ms : s->now_ms;
  if (s->now_ms >= due_ms + lease_ms(s) / 2)
    buf_printf(&text, "this agent was stopped, or could not run, for %.1f s",
               (double)(s->now_ms - due_ms) / 1000);
  else
    buf_puts(&text, why);
  sup_effect(s, SUP_DISCONNECT);
  say_why_down(s, buf_text(&text));
  pause_and_retry(s);
  buf_finish(&text);
}

static void drop_unanswering_link(struct supervisor *s) {
  struct buf why = BUF_INIT;
  buf_printf(&why, "what listens at %s takes the connection, but does not answer as rdzvd does",
             s->config.endpoint);
  drop_silent_link(s, buf_text(&why));
  buf_finish(&why);
}

/* What came is almost as old as our lease may be: we were stopped, or the network was. The daemon may have lost us since, or will before
 * what it asks for has begun. */
bool sup_is_outdated(struct supervisor *s, uint64_t answered_ms) {
  if (s->now_ms < answered_ms + lease_ms(s) - lease_ms(s) / 5) return false;
  drop_silent_link(s, "its answer took longer than the lease");
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

static void fill_identity(const struct supervisor *s, struct hello *h) {
  h->version = PROTO_VERSION;
  h->agent = s->config.agent_id;
  h->job = s->config.job;
  h->settings = s->config.settings;
  h->host = s->config.host;
  h->pid = s->config.pid;
  h->workers = s->config.workers;
  h->want_rank = s->config.want_rank;
  h->label = s->config.label;
  h->role = s->config.role;
  h->order_key = s->config.order_key;
  h->expected_nodes = s->config.expected_nodes;
  h->expected_hosts = s->config.expected_hosts;
  h->uid = s->config.uid;
  h->worker_store = s->config.worker_store;
  h->wants_ids = s->config.wants_ids;
  h->local_addr = s->config.local_addr;
  h->addrs = s->config.addrs;
}

/* HELLO must fit into FRAME_MAX_UNIDENTIFIED even if a thousand workers died with much to say, and a byte may take six
 * in JSON. The first to die are the ones that matter; the host is that of HELLO itself. */
enum { HELLO_TEXTS_MAX = 5120 };

static void leave_out(const char **text, size_t *room) {
  size_t n = strlen(*text);
  if (n > *room)
    *text = "";
  else
    *room -= n;
}

static void fill_reports(const struct supervisor *s, struct report *reports) {
  size_t room = HELLO_TEXTS_MAX;
  for (size_t i = 0; i < s->n_reports; i++) {
    reports[i] = s->reports[i].report;
    reports[i].ago_ms = (int64_t)(s->now_ms - s->reports[i].at_ms);
    reports[i].what.host = "";
    leave_out(&reports[i].what.device, &room);
    leave_out(&reports[i].what.error, &room);
    leave_out(&reports[i].what.text, &room);
  }
}

void sup_say_hello(struct supervisor *s) {
  struct report reports[REPORTS_MAX];
  struct msg m;
  msg_init(&m, MSG_HELLO);
  struct hello *h = &m.hello;
  fill_identity(s, h);
  h->store_port = s->told_port = s->store_port;
  h->incarnation = s->incarnation;
  h->round = s->round;
  h->phase = phase_of(s->state);
  h->node_rank = s->node_rank;
  h->round_nodes = s->round_nodes;
  h->restarts_used = s->restarts_used;
  h->failed_step = s->failed_step;
  if (h->phase == PHASE_NONE && s->seen_round > s->round) { /* it was no part of that one, but knows of it */
    h->round = s->seen_round;
    h->node_rank = -1;
    h->round_nodes = 0;
  }
  if (h->phase != PHASE_NONE) {
    h->ids = s->ids.n;
    h->has_ids = s->ids.all != NULL;
  }
  fill_reports(s, reports);
  h->reports = reports;
  h->n_reports = s->n_reports;
  s->hello_sent_ms = s->now_ms;
  s->greeting_ms = s->now_ms + SUPERVISOR_HELLO_MS;
  s->hello_seq = s->report_seq;
  s->hello_said = true;
  sup_send(s, &m);
}

/* What happened between HELLO and its answer: it could not be sent then. */
static void resend_reports(struct supervisor *s) {
  for (size_t i = 0; i < s->n_reports; i++) {
    if (s->reports[i].report.seq <= s->hello_seq) continue;
    sup_send_report(s, &s->reports[i]);
  }
}

/* A daemon at another address that recovers our round from what we tell it knows nothing of the one that told us to fence, which may
 * live and form a round with the others. Until it has found all of our round, and they are with it, its answers are no
 * reason to go on. A daemon at the same address is a restarted one: nobody else has our place to give away. */
static bool answer_counts(struct supervisor *s, bool recovering) {
  if (!recovering || !s->fence || !sup_has_trees(s) || s->fenced) s->moved = false;
  return !s->moved;
}

/* In no round: what the daemon says is what is known. Another incarnation makes all that was known history. */
void sup_learn(struct supervisor *s, const char *incarnation, int64_t round) {
  if (strcmp(s->incarnation, incarnation) != 0) {
    sup_dismiss(s, 0);
    memcpy(s->incarnation, incarnation, strlen(incarnation) + 1);
    s->round = s->seen_round = s->round_nodes = s->restarts_used = 0;
    s->node_rank = s->failed_step = -1;
  }
  if (round > s->seen_round) s->seen_round = round;
}

void sup_welcome(struct supervisor *s, const struct welcome *w) {
  bool again = s->link == LINK_READY;
  if (s->link != LINK_GREETING && !again) return;
  if (s->now_ms >=
      s->hello_sent_ms + lease_ms(s)) { /* and so may be the START behind it: we may be lost by now */
    if (w->fence && answer_counts(s, w->state == JOB_RECOVERING))
      s->fence = true; /* and others may be in our place */
    drop_silent_link(s, "its answer took longer than the lease");
    return;
  }
  if (!again) s->ready_ms = s->now_ms;
  s->link = LINK_READY;
  s->answered_ms = s->hello_sent_ms;
  s->next_heartbeat_ms = s->now_ms + lease_ms(s) / 6;
  if (answer_counts(s, w->state == JOB_RECOVERING)) {
    s->acked_sent_ms = s->hello_sent_ms;
    s->fence = w->fence;
  }
  if (s->said_lost) sup_say(s, LOG_INFO, "the daemon is back");
  s->said_lost = false;
  s->nag_ms = 0;
  s->welcomed = true;
  sup_keep_why_down(s, NULL);
  s->fenced_out = false;
  if (!phase_of(s->state)) sup_learn(s, w->incarnation, w->round);
  resend_reports(s);
}

/* Heartbeats. ------------------------------------------------------------------------------------------------------ */

static void send_heartbeat(struct supervisor *s) {
  struct msg m;
  msg_init(&m, MSG_HEARTBEAT);
  m.id = ++s->heartbeat_seq;
  s->heartbeat_sent[m.id % HEARTBEATS_KEPT] = s->now_ms;
  s->next_heartbeat_ms = s->now_ms + lease_ms(s) / 6;
  sup_send(s, &m);
}

void sup_heartbeat_ack(struct supervisor *s, uint32_t seq, uint16_t flags) {
  if (seq > s->heartbeat_seq || s->heartbeat_seq - seq >= HEARTBEATS_KEPT) return;
  uint64_t sent = s->heartbeat_sent[seq % HEARTBEATS_KEPT];
  if (sent > s->answered_ms) s->answered_ms = sent;
  if (!answer_counts(s, flags & FRAME_FLAG_RECOVERING)) return;
  if (sent > s->acked_sent_ms) s->acked_sent_ms = sent;
  s->fence = (flags & FRAME_FLAG_FENCE) != 0;
}

/* Silence. --------------------------------------------------------------------------------------------------------- */

static uint64_t fence_ms(const struct supervisor *s) {
  return s->acked_sent_ms + lease_ms(s) - lease_ms(s) / 5;
}

static bool must_fence(const struct supervisor *s) {
  bool runs = sup_has_trees(s) && s->reason != STOP_STALE && s->reason != STOP_EXIT;
  return s->fence && !s->fenced && (runs || sup_any_parked(s) || sup_dismisses(s));
}

/* The guard has the same deadline. Where we come that late, it was we who could not act. */
static void say_fenced(struct supervisor *s, uint64_t at_ms) {
  if (s->now_ms >= at_ms + lease_ms(s) / 10) {
    sup_say(s, LOG_ERROR,
            "this agent was stopped, or could not run, for %.1f s beyond the time that its node may go on "
            "without "
            "the daemon at %s, and a round can form without this node: its guard has killed its workers",
            (double)(s->now_ms - at_ms) / 1000, s->config.endpoint);
    return;
  }
  if (s->moved && s->link == LINK_READY) {
    sup_say(
        s, LOG_ERROR,
        "the daemon at %s is another than the one that began round %lld and has not found all its nodes; "
        "with "
        "that one a round can form without this node: killing its workers before its lease of %.1f s is over",
        s->config.endpoint, (long long)s->round, (double)lease_ms(s) / 1000);
    return;
  }
  sup_say(s, LOG_ERROR,
          "no answer from the daemon at %s for %.1f s, and a round can form without this node: killing its "
          "workers before "
          "its lease of %.1f s is over",
          s->config.endpoint, (double)(s->now_ms - s->acked_sent_ms) / 1000, (double)lease_ms(s) / 1000);
}

static void fence(struct supervisor *s, uint64_t at_ms) {
  say_fenced(s, at_ms);
  s->fenced_out = true;
  if (!sup_has_trees(s)) {
    sup_dismiss(s, 0);
    return;
  }
  s->fenced = true;
  sup_stop_trees(s, STOP_FENCED, 0);
}

/* Deaths from when_ms on are nobody's failure, although we may have heard of it much later. */
void sup_fenced(struct supervisor *s, const struct supervisor_event *ev) {
  if (sup_any_parked(s) && ev->round == s->round) {
    fence(s, ev->when_ms);
    return;
  }
  if (ev->round != s->round || !sup_has_trees(s)) return;
  if (!s->fenced && s->reason != STOP_STALE && s->reason != STOP_EXIT) fence(s, ev->when_ms);
  if (ev->when_ms < s->stop_ms) s->stop_ms = ev->when_ms;
}

void sup_tell_guard(struct supervisor *s) {
  uint64_t at = must_fence(s) ? fence_ms(s) : UINT64_MAX;
  if (at == s->told_fence_ms || s->state == SUPERVISOR_DONE) return;
  s->told_fence_ms = at;
  sup_effect(s, SUP_FENCE_AT)->value = at;
}

/* Without a daemon, and with nothing that runs: not for ever. */
static uint64_t give_up_ms(const struct supervisor *s) {
  if (s->link == LINK_READY || sup_has_trees(s) || sup_is_exiting(s)) return UINT64_MAX;
  return s->daemonless_ms + join_timeout_ms(s);
}

static void give_up(struct supervisor *s) {
  if (s->welcomed) {
    sup_say(s, LOG_ERROR, "the daemon at %s did not come back within %lld s (--join-timeout): giving up",
            s->config.endpoint, (long long)(join_timeout_ms(s) / 1000));
    sup_exit(s, s->fenced_out ? EXIT_CODE_FENCED : EXIT_CODE_DAEMON_LOST, NULL);
    return;
  }
  struct buf other = BUF_INIT;
  buf_puts(&other, "another program listens there, or rdzvd hangs: ");
  if (s->config.endpoint_from)
    buf_printf(&other,
               "give --endpoint HOST:PORT, with another port than follows from %s, the same to all agents",
               s->config.endpoint_from);
  else
    buf_puts(&other, "choose another port, the same on all nodes");
  sup_say(s, LOG_ERROR, "no rdzvd could be reached at %s within %lld s (--join-timeout): %s",
          s->config.endpoint, (long long)(join_timeout_ms(s) / 1000),
          s->met_stranger ? buf_text(&other)
          : s->down_text  ? s->down_text
                          : "start one there, or check the address");
  buf_finish(&other);
  sup_exit(s, EXIT_CODE_NO_DAEMON, NULL);
}

void sup_link_tick(struct supervisor *s) {
  if (s->now_ms >= give_up_ms(s)) {
    give_up(s);
    return;
  }
  if (must_fence(s) && s->now_ms >= fence_ms(s)) fence(s, fence_ms(s));
  if (s->link == LINK_DOWN && s->now_ms >= s->retry_ms) sup_connect(s);
  if (s->link == LINK_GREETING && s->now_ms >= s->greeting_ms) drop_unanswering_link(s);
  if (s->link != LINK_READY) return;
  if (s->now_ms >= s->answered_ms + lease_ms(s))
    drop_silent_link(s, "it does not answer heartbeats");
  else if (s->now_ms >= s->next_heartbeat_ms)
    send_heartbeat(s);
}

uint64_t sup_link_deadline(const struct supervisor *s) {
  uint64_t at = give_up_ms(s);
  if (must_fence(s)) at = earliest(at, fence_ms(s));
  if (s->link == LINK_DOWN) at = earliest(at, s->retry_ms);
  if (s->link == LINK_GREETING) at = earliest(at, s->greeting_ms);
  if (s->link == LINK_READY) at = earliest(at, earliest(s->next_heartbeat_ms, s->answered_ms + lease_ms(s)));
  return at;
}
