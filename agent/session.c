/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's loop.
 *
 *   link: connected, lost, message --.                                .--> link: connect, send, close
 *   round: started, died, clear -----+--> supervisor_step --> effects +--> round: start, stop, signal, answers
 *   signal, timer -------------------'                                '--> lines, status, exit
 *
 * The loop decides nothing. An event goes to the mind with its time. The effects that come back are carried out in
 * order. Then the one timer is set to the mind's next deadline. An effect may cause the next event at once (a
 * connection that fails inside the call). Such an event waits in a queue until the effects at hand are done, so the
 * mind never sees the second before the first.
 *
 * The end: SUP_EXIT gives the code. Then the connection is flushed and closed, the guard is stopped, our own daemon
 * leaves, and lines are written, each with a deadline. A second signal during that time ends the waiting. */

#include "agent/session.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "agent/failures/verdict_json.h"
#include "agent/health/health.h"
#include "agent/job_times.h"
#include "agent/kubeflow.h"
#include "agent/launch/hosts.h"
#include "agent/link/forward.h"
#include "agent/link/host_addrs.h"
#include "agent/link/link.h"
#include "agent/link/local_daemon.h"
#include "agent/log_queries.h"
#include "agent/nccl/id_helpers.h"
#include "agent/output/log_dir.h"
#include "agent/output/log_sink.h"
#include "agent/output/output.h"
#include "agent/site_check.h"
#include "agent/pairs/pairs.h"
#include "agent/store/round_store.h"
#include "agent/workers/round.h"
#include "agent/workers/signals.h"
#include "common/system/clock.h"
#include "common/system/command.h"
#include "common/exit_codes.h"
#include "common/sinks/event_sinks.h"
#include "common/err.h"
#include "common/system/loop.h"
#include "common/mem.h"
#include "common/system/notify.h"

enum {
  GUARD_FINISH_MS = 2000,
  ON_EVENT_LAST_MS = 5000, /* the command of --on-event for the job's end */
  HURRY_MS = 16000,        /* the whole end */
  LEAVING_EVERY_MS = 10,
  FRONT_LOOK_MS = 1000, /* while suspended */
  POOL_AFTER_MS = 50,   /* from the first workers */
  END_LOOK_MS = 60000,  /* the wall clock may be set: it is read again at least this often */
  SIGNALS_MAX = 64,
};

struct later {
  struct supervisor_event *event;
  struct later *next;
};

struct session {
  const struct session_options *o;
  uv_loop_t loop;
  struct log_dir logs;
  struct log_sink log_sink;
  struct env_job env;
  struct local_daemon *daemon;
  struct link *link;
  struct forwarder *forwarder;
  struct round_driver *round;
  struct round_store *store;
  struct id_helpers id_helpers;
  struct event_sinks *events; /* NULL: none */
  struct kubeflow *kubeflow;  /* NULL: not under Kubeflow Trainer */
  struct health *health;      /* NULL: --health off */
  struct log_queries *log_queries;
  struct site_check *check; /* NULL: none runs */
  struct pairs *pairs;
  struct supervisor *supervisor;
  struct supervisor_effects effects;
  uv_timer_t tick;
  struct notify_timer announce;
  uv_timer_t end;                   /* --leave-before-end */
  uv_timer_t front;                 /* while suspended */
  uv_timer_t pool;                  /* until libuv's threads are started */
  uint64_t watched;                 /* the signals that make the agent leave */
  struct last_signal last_signal;   /* of these */
  uv_signal_t signals[SIGNALS_MAX]; /* by number; those that are watched have their loop */
  struct later *first, **last;
  struct bytes *death_report;
  char *daemon_log, *profiler;
  bool stepping, exiting, suspended, pool_is_due;
  bool leaving; /* exiting, and nobody reads the last lines any more */
  bool ended;   /* the job, as the mind has heard; else it goes on without this agent */
  bool page_named;
  uint64_t hurry_ms;
  int exit_code;
};

static struct session session;

static void on_tick(uv_timer_t *timer);
static void begin_exit(struct session *s, int code);
static void post(struct session *s, struct supervisor_event *ev);

/* Effects. --------------------------------------------------------------------------------------------------------- */

/* The guard needs the address of the daemon that we are, or were last, connected to. Before the first connection there
 * is none, and on_up sends the death report. */
static void leave_death_report(struct session *s) {
  union socket_address peer = {0};
  const struct bytes *b = s->death_report;
  if (b && !link_peer(s->link, &peer)) return;
  round_death_report(s->round, &peer.any, b ? socket_address_size(&peer) : 0, s->o->key, b);
}

/* In a channel the guard sends frames. Without a key it gets all the bytes that it is to send, the preface first. */
static void set_death_report(struct session *s, const struct bytes *frame) {
  bytes_unref(s->death_report);
  s->death_report = NULL;
  if (frame) {
    struct buf all = BUF_INIT;
    if (!s->o->key) buf_append(&all, frame_preface, FRAME_PREFACE_SIZE);
    buf_append(&all, frame->data, frame->len);
    s->death_report = bytes_create(all.data, all.len);
    buf_finish(&all);
  }
  leave_death_report(s);
}

/* The pool has threads before the workers may have used up the limit. Log files and names have started it before, and so
 * has the death of a worker. */
static void on_pool_timer(uv_timer_t *timer) {
  struct session *s = timer->data;
  struct err e = ERR_INIT;
  if (s->exiting || loop_start_pool(&s->loop, LOOP_POOL_AGENT, &e) == 0) return;
  limit_explain(&e);
  log_warn("%s. Files are read and written without them, and one that hangs stops this agent", e.text);
}

static void on_checked(void *ctx, const char *why) {
  struct session *s = ctx;
  post(s, &(struct supervisor_event){.kind = SUP_CHECKED, .text = why});
}

static void run_check(struct session *s, uint32_t round) {
  const struct agent_options *o = s->o->options;
  site_check_destroy(s->check);
  site_check_start(&(struct site_check_options){.loop = &s->loop,
                                                .command = o->check,
                                                .job = s->o->supervisor->job,
                                                .host = s->o->supervisor->host,
                                                .timeout_ms = (uint32_t)o->check_timeout_ms,
                                                .round = round,
                                                .on_done = on_checked,
                                                .ctx = s},
                   &s->check);
}

static void carry_out(struct session *s, struct supervisor_effect *fx) {
  static const enum link_where where[] = {
      [CONNECT_ENDPOINT] = LINK_TO_ENDPOINT, [CONNECT_SUCCESSOR] = LINK_TO_ADDRESS, [CONNECT_OWN] = LINK_TO_OWN};
  switch (fx->kind) {
  case SUP_CONNECT:
    health_lost(s->health);
    link_open(s->link, &(struct link_to){.where = where[fx->connect.to],
                                         .endpoint = fx->connect.endpoint,
                                         .addr = fx->text,
                                         .port = fx->connect.port,
                                         .timeout_ms = fx->connect.timeout_ms});
    break;
  case SUP_FORWARD:
    forwarder_set(s->forwarder, fx->bytes, fx->forward.current, fx->forward.own);
    fx->bytes = NULL;
    break;
  case SUP_DISCONNECT:
    health_lost(s->health);
    access_check_daemon(round_store_access(s->store), false);
    /* Before an exit, who follows the workers' output may still read the last lines: begin_exit. */
    if (s->effects.v[s->effects.n - 1].kind == SUP_EXIT) break;
    log_queries_forget(s->log_queries);
    link_shut(s->link);
    break;
  case SUP_SEND: link_send(s->link, bytes_ref(fx->bytes)); break;
  case SUP_SPAWN:
    health_begin_round(s->health);
    pairs_leave_gpus(s->pairs);
    front_give_keyboard(s->o->front, true);
    round_start(s->round, fx->spawn.start, fx->bytes, &fx->spawn.keep);
    fx->spawn.start = NULL;
    /* Not at the start, where the workers wait for it. */
    if (!s->pool_is_due) {
      s->pool_is_due = true;
      loop_timer_in(&s->pool, on_pool_timer, POOL_AFTER_MS);
      uv_unref((uv_handle_t *)&s->pool);
    }
    break;
  case SUP_CLOSE_STORE: round_store_close(s->store); break;
  case SUP_MINT: {
    char **env = round_env(s->round, fx->round); /* it decides where NCCL listens */
    id_helpers_start(&s->id_helpers, fx->round, fx->mint.helper, fx->mint.count, env);
    env_destroy(env);
    break;
  }
  case SUP_CHECK: run_check(s, fx->round); break;
  case SUP_UNMINT: id_helpers_stop(&s->id_helpers, fx->unmint.helper); break;
  case SUP_DEATH_REPORT: set_death_report(s, fx->bytes); break;
  case SUP_SAY: log_line(fx->say.level, "%s", fx->text); break;
  case SUP_EVENT: event_sinks_put(s->events, "", fx->extra, fx->text); break;
  case SUP_ADVANCED:
    kubeflow_put(s->kubeflow, &(struct kubeflow_status){.step = fx->advanced.step,
                                                        .of = fx->advanced.of,
                                                        .remaining_s = fx->advanced.remaining_s,
                                                        .loss = fx->advanced.loss,
                                                        .at = (int64_t)time(NULL)});
    break;
  case SUP_ENDING:
    s->ended = fx->ending->heard;
    if (s->o->options->verdict_file) {
      const struct supervisor_config *c = s->o->supervisor;
      struct buf text = BUF_INIT;
      char when[RFC3339_MAX];
      rfc3339(time(NULL), when);
      verdict_json(fx->ending, c->job, c->host, when, &text);
      /* Several agents may share the name on one disk: the last one's stays. */
      loop_replace_file(&s->loop, "--verdict-file", s->o->options->verdict_file, &text, true);
    }
    break;
  case SUP_EXIT: begin_exit(s, fx->exit.code); break;
  default: round_carry_out(s->round, fx); break;
  }
}

/* Events. ---------------------------------------------------------------------------------------------------------- */

static void step(struct session *s, struct supervisor_event *ev) {
  ev->now_ms = boot_ms();
  ev->wall_ms = s->events ? wall_ms() : 0;
  supervisor_step(s->supervisor, ev, &s->effects);
  for (size_t i = 0; i < s->effects.n; i++) carry_out(s, &s->effects.v[i]);
  supervisor_effects_clear(&s->effects);
}

/* A message, and the ids of MINTED, come only from the loop, never while effects are carried out. So they need not
 * outlive the call. */
static void post(struct session *s, struct supervisor_event *ev) {
  if (s->exiting) return;
  if (s->stepping) {
    struct later *l = xcalloc(1, sizeof(*l));
    l->event = supervisor_event_copy(ev);
    *s->last = l;
    s->last = &l->next;
    return;
  }
  s->stepping = true;
  step(s, ev);
  while (s->first) {
    struct later *l = s->first;
    s->first = l->next;
    if (!s->first) s->last = &s->first;
    if (!s->exiting) step(s, l->event);
    supervisor_event_free(l->event);
    free(l);
  }
  s->stepping = false;
  if (s->exiting) return; /* the timer is for the end now */
  loop_timer_at(&s->tick, on_tick, supervisor_deadline(s->supervisor), boot_ms());
  if (!supervisor_is_busy(s->supervisor)) notify_timer_ready(&s->announce);
}

static void on_tick(uv_timer_t *timer) {
  post(timer->data, &(struct supervisor_event){.kind = SUP_TICK});
}

static void on_signal(uv_signal_t *handle, int signo) {
  struct session *s = handle->data;
  if (signal_is_echo(&s->last_signal, signo, boot_ms())) return;
  if (s->exiting) {
    uv_stop(&s->loop);
    return;
  }
  notify_timer_stopping(&s->announce, NULL);
  post(s, &(struct supervisor_event){.kind = SUP_SIGNAL, .signo = signo});
}

/* Job control. ----------------------------------------------------------------------------------------------------- */

static void on_front_timer(uv_timer_t *timer) {
  struct session *s = timer->data;
  front_check(s->o->front, s->watched);
}

static void on_tstp(uv_signal_t *handle, int signo) {
  struct session *s = handle->data;
  if (!s->exiting) round_suspend(s->round, true);
}

static void on_suspended(void *ctx) {
  struct session *s = ctx;
  front_stop(s->o->front);
  post(s, &(struct supervisor_event){.kind = SUP_SUSPEND, .on = true});
  uv_timer_start(&s->front, on_front_timer, FRONT_LOOK_MS, FRONT_LOOK_MS);
  s->suspended = true;
}

static void on_cont(uv_signal_t *handle, int signo) {
  struct session *s = handle->data;
  front_continued(s->o->front);
  uv_timer_stop(&s->front);
  if (!s->exiting) round_suspend(s->round, false);
  if (!s->exiting) round_resize(s->round);
  if (s->suspended) log_info("the job goes on");
  if (s->suspended) post(s, &(struct supervisor_event){.kind = SUP_SUSPEND});
  s->suspended = false;
}

static void on_winch(uv_signal_t *handle, int signo) {
  struct session *s = handle->data;
  if (!s->exiting) round_resize(s->round);
}

static void watch_end(struct session *s);

static void on_end(uv_timer_t *timer) {
  struct session *s = timer->data;
  struct buf why = BUF_INIT;
  if (job_times_left_ms(s->o->options) > 0) {
    watch_end(s);
    return;
  }
  job_times_reason(s->o->options, &why);
  post(s, &(struct supervisor_event){.kind = SUP_SIGNAL, .signo = SIGTERM, .text = buf_text(&why)});
  buf_finish(&why);
}

static void watch_end(struct session *s) {
  int64_t left_ms = job_times_left_ms(s->o->options);
  if (left_ms < 0) return;
  loop_timer_in(&s->end, on_end, left_ms < END_LOOK_MS ? (uint64_t)left_ms : END_LOOK_MS);
  uv_unref((uv_handle_t *)&s->end);
}

static void on_up(void *ctx, bool moved) {
  struct session *s = ctx;
  union socket_address peer = {0};
  struct ipaddr daemon;
  uint16_t port;
  char addr[INET6_ADDRSTRLEN], page[ENDPOINT_TEXT_MAX];
  const struct endpoint *ep = s->o->options->endpoints;
  if (s->death_report) leave_death_report(s); /* for the new address */
  link_peer(s->link, &peer);
  socket_address_read(&peer, &daemon, &port);
  round_store_reach(s->store, &daemon);
  /* The daemon is ours, and people on other machines can open its page. */
  if (!s->page_named && local_daemon_owned(s->daemon) && local_daemon_is_at_endpoint(s->daemon) &&
      s->o->supervisor->settings.max_nodes > 1 && !launch_host_is_loopback(ep->host)) {
    s->page_named = true;
    endpoint_format(ep, page);
    log_info("this job's page: http://%s/%s", page, s->o->key ? ", with the password that rdzvctl token prints" : "");
  }
  socket_format(&daemon, addr);
  post(ctx, &(struct supervisor_event){
                .kind = SUP_LINK_UP, .link_up = {.moved = moved, .port = port}, .text = addr[0] ? addr : NULL});
}

static void on_down(void *ctx, const struct link_down *down) {
  health_lost(((struct session *)ctx)->health);
  access_check_daemon(round_store_access(((struct session *)ctx)->store), false);
  log_queries_forget(((struct session *)ctx)->log_queries);
  pairs_stop(((struct session *)ctx)->pairs);
  post(ctx, &(struct supervisor_event){
                .kind = SUP_LINK_DOWN,
                .link_down = {.foreign = down->foreign, .unknown = down->unknown, .exit_code = down->fatal},
                .text = down->why});
}

static void on_other_program(void *ctx, const char *who) {
  post(ctx, &(struct supervisor_event){.kind = SUP_OTHER_PROGRAM, .text = who});
}

/* Messages about the owners of connections go to the store, questions for lines to log_queries, and exchanges to pairs; the
 * mind does not need them. */
static void on_msg(void *ctx, struct msg *m) {
  struct session *s = ctx;
  if (m->type == MSG_WELCOME) access_check_daemon(round_store_access(s->store), true);
  if (m->type == MSG_WELCOME) health_welcome(s->health);
  if (m->type == MSG_STOP) health_look_again(s->health);
  if (m->type == MSG_FIND_OWNERS) access_check_on_find(round_store_access(s->store), &m->find_owners);
  if (m->type == MSG_OWNERS) access_check_on_owners(round_store_access(s->store), &m->owners);
  if (m->type == MSG_FETCH_LOG) log_queries_ask(s->log_queries, &m->fetch_log);
  if (m->type == MSG_PAIR && !s->exiting) pairs_ask(s->pairs, &m->pair_msg);
  if (m->type != MSG_FIND_OWNERS && m->type != MSG_OWNERS && m->type != MSG_FETCH_LOG && m->type != MSG_PAIR)
    post(ctx, &(struct supervisor_event){.kind = SUP_MSG, .msg = m});
}

static void on_standby_port(void *ctx, uint16_t port) {
  post(ctx, &(struct supervisor_event){.kind = SUP_STANDBY, .port = port});
}

/* A daemon cannot serve with a user's key, so this agent cannot take over. */
static void on_user_key(void *ctx) {
  struct session *s = ctx;
  local_daemon_forbid_standby(s->daemon);
  on_standby_port(s, 0);
}

static void get_summary(void *ctx, struct buf *out, bool *busy) {
  struct session *s = ctx;
  supervisor_summary(s->supervisor, boot_ms(), out);
  *busy = s->exiting || supervisor_is_busy(s->supervisor);
}

static void on_event(void *ctx, struct supervisor_event *ev) {
  struct session *s = ctx;
  if (ev->kind == SUP_EXITED) ev->exited.xid = health_xid(s->health, round_device(s->round, ev->local_rank));
  post(s, ev);
}

static void on_store_port(void *ctx, uint16_t port) {
  post(ctx, &(struct supervisor_event){.kind = SUP_STORE, .port = port});
}

static void send_to_daemon(void *ctx, const struct msg *m) {
  link_send(((struct session *)ctx)->link, msg_bytes(m));
}

static int get_devices(void *ctx, const struct device **v) {
  return round_devices(((struct session *)ctx)->round, v);
}

static int count_idle_gpus(void *ctx, struct buf *why) {
  const struct session *s = ctx;
  return round_idle_gpus(s->round, why);
}

static pid_t get_daemon_pid(void *ctx) {
  struct session *s = ctx;
  return local_daemon_pid(s->daemon);
}

/* The end. --------------------------------------------------------------------------------------------------------- */

/* Nobody reads the workers' lines any more. */
static void leave(struct session *s) {
  s->leaving = true;
  link_shut(s->link);
  local_daemon_leave(s->daemon, s->ended);
}

/* The loop would end by itself when nothing is left in it. But a name that is being looked up, or a disk that hangs,
 * must not delay the exit. */
static void on_leaving(uv_timer_t *timer) {
  struct session *s = timer->data;
  if (!s->leaving && !log_queries_is_followed(s->log_queries)) leave(s);
  bool done = s->leaving && !s->daemon && link_is_shut(s->link) && log_sink_is_idle(&s->log_sink) && !loop_writes() &&
              event_sinks_are_closed(s->events) && kubeflow_is_closed(s->kubeflow);
  if (done || boot_ms() >= s->hurry_ms) uv_stop(&s->loop);
}

static void begin_exit(struct session *s, int code) {
  s->exiting = true;
  s->exit_code = code;
  notify_timer_stopping(&s->announce, NULL);
  s->hurry_ms = boot_ms() + HURRY_MS;
  front_finish(s->o->front);
  uv_timer_stop(&s->front);
  if (code) round_hand_up(s->round, code);
  event_sinks_close(s->events);
  kubeflow_close(s->kubeflow);
  health_destroy(s->health);
  s->health = NULL;
  forwarder_set(s->forwarder, NULL, UINT32_MAX, false);
  pairs_stop(s->pairs);
  log_queries_end(s->log_queries);
  site_check_destroy(s->check);
  s->check = NULL;
  if (!log_queries_is_followed(s->log_queries)) leave(s);
  round_close(s->round); /* close_all waits for the guard, which ends while our daemon does */
  uv_timer_start(&s->tick, on_leaving, LEAVING_EVERY_MS, LEAVING_EVERY_MS);
  uv_unref((uv_handle_t *)&s->tick);
}

static void on_left(void *ctx) {
  struct session *s = ctx;
  local_daemon_destroy(s->daemon);
  s->daemon = NULL;
}

/* False: something is still in uv's pool. */
static bool close_all(struct session *s) {
  local_daemon_destroy(s->daemon);
  s->daemon = NULL;
  forwarder_destroy(s->forwarder);
  link_destroy(s->link);
  id_helpers_stop_all(&s->id_helpers);
  event_sinks_close(s->events);
  kubeflow_destroy(s->kubeflow);
  health_destroy(s->health);
  log_queries_destroy(s->log_queries);
  pairs_destroy(s->pairs);
  round_store_destroy(s->store);
  uv_close((uv_handle_t *)&s->tick, NULL);
  uv_close((uv_handle_t *)&s->end, NULL);
  uv_close((uv_handle_t *)&s->front, NULL);
  uv_close((uv_handle_t *)&s->pool, NULL);
  notify_timer_close(&s->announce);
  for (int i = 0; i < SIGNALS_MAX; i++)
    if (s->signals[i].loop) uv_close((uv_handle_t *)&s->signals[i], NULL);
  log_sink_use_relay(&s->log_sink, NULL);
  round_destroy(s->round, GUARD_FINISH_MS);
  uv_run(&s->loop, UV_RUN_NOWAIT);
  uv_run(&s->loop, UV_RUN_NOWAIT);
  event_sinks_destroy(s->events);
  log_sink_finish(&s->log_sink);
  log_dir_finish(&s->logs);
  supervisor_destroy(s->supervisor);
  supervisor_effects_finish(&s->effects);
  bytes_unref(s->death_report);
  free(s->daemon_log);
  free(s->profiler);
  return uv_loop_close(&s->loop) == 0;
}

/* The beginning. --------------------------------------------------------------------------------------------------- */

/* An endpoint of 127.0.0.1 means this machine alone. A name may stand for a loopback address and for others too. */
static bool is_loopback(const struct endpoint *ep) {
  struct ipaddr ip = ipaddr_parse(ep->host);
  return ip.family && ipaddr_is_loopback(&ip);
}

static int open_round(struct session *s, struct err *e) {
  const struct agent_options *o = s->o->options;
  const struct supervisor_config *c = s->o->supervisor;
  s->profiler = c->settings.slow_ranks_ms ? command_library("librdzv-nccl-profiler.so", "profiler/") : NULL;
  s->env = (struct env_job){
      .profiler = s->profiler,
      .run_id = c->job,
      .workers = c->workers,
      .first = s->o->placed->first,
      .local_world = s->o->placed->local_world,
      .shares_host = o->local_agents > 1,
      .max_restarts = c->settings.max_restarts,
      .role = o->role,
      .worker_store = o->store == STORE_WORKER,
      .virtual_local_rank = o->virtual_local_rank,
      .mpi_env = o->mpi_env,
      .nccl_library = o->nccl_library,
      .signals = o->signals,
      .end_time = o->end_time,
      .scheduler_restarts = o->scheduler_restarts,
  };
  struct round_options round = {
      .loop = &s->loop,
      .count = (uint32_t)c->workers,
      .argv = s->o->argv,
      .base_env = s->o->placed->env,
      .env = &s->env,
      .numa = s->o->numa,
      .options = o,
      .host = c->host,
      .logs = &s->logs,
      .devices = {.job = c->job,
                  .first = (uint32_t)s->o->placed->first,
                  .timeout_ms = (uint32_t)o->device_timeout_ms,
                  .wish = s->o->placed->wish,
                  .certain = s->o->placed->uses_devices,
                  .asked = s->o->placed->asked,
                  .before = &s->o->placed->before},
      .store = s->store,
      .on_event = on_event,
      .group = s->o->front->pid ? getpgid(s->o->front->pid) : 0,
      .on_suspended = on_suspended,
      .daemon_pid = get_daemon_pid,
      .ctx = s,
  };
  const struct front *front = s->o->front;
  int rc = round_create(&round, &s->o->guard, &s->round, e);
  if (rc == 0) log_sink_use_relay(&s->log_sink, round_relay(s->round));
  if (rc == 0 && front->keyboard >= 0) relay_echo(round_relay(s->round), front->keyboard, front->terminal);
  return rc;
}

static struct local_daemon_options daemon_options(const struct session_options *of) {
  const struct agent_options *o = of->options;
  return (struct local_daemon_options){
      .loopback = o->standalone,
      .host = is_loopback(o->endpoints) ? o->endpoints->host : NULL,
      .port = o->endpoints->port,
      .process = {.key = of->key, .key_source = of->key_origin->kind, .verbose = o->verbose, .claim = o->claim},
      .reserved = {.fd = -1},
  };
}

static void open_daemon(struct session *s) {
  struct local_daemon_options own = daemon_options(s->o);
  own.loop = &s->loop;
  own.process.log_file = s->daemon_log;
  struct reserved_port reserved = {.fd = -1};
  struct err e = ERR_INIT;
  const struct agent_options *o = s->o->options;
  bool reachable = false;
  for (size_t i = 0; i < o->n_endpoints; i++) reachable = reachable || !is_loopback(&o->endpoints[i]);
  /* Whether this agent may start rdzvd when the one that it uses is lost. */
  bool may_stand_by = reachable && !o->standalone && o->nnodes.max > 1 && o->hosting != HOST_NEVER &&
                      (!s->o->key || s->o->key->uid == KEY_OWN);
  if (may_stand_by && reserve_port(s->o->supervisor->local_addr, &reserved, &e))
    log_warn("%s: this agent cannot take over if the daemon is lost", e.text);
  own.reserved = reserved;
  own.on_port = on_standby_port;
  own.on_left = on_left;
  own.ctx = s;
  own.early = s->o->daemon;
  s->daemon = local_daemon_create(&own);
}

static void open_link(struct session *s) {
  static const struct link_callbacks link_callbacks = {on_up, on_down, on_other_program, on_msg, on_user_key};
  const struct agent_options *o = s->o->options;
  const struct resolve_words words = {
      o->endpoint_where, o->from.endpoint ? "give --endpoint HOST:PORT, the same to all agents" : RESOLVE_REMEDY};
  const struct link_options link = {
      .loop = &s->loop,
      .endpoints = o->endpoints,
      .n_endpoints = o->n_endpoints,
      .standalone = o->standalone,
      .local_addr = s->o->supervisor->local_addr,
      .words = words,
      .derived = o->from.endpoint,
      .hosting = o->hosting,
      .key = s->o->key,
      .daemon = s->daemon,
      .key_from = s->o->key_origin->text,
      .munge = key_may_be_replaced(s->o->key_origin->kind),
      .munge_user = s->o->munge_user,
      .user_timeout_ms = (unsigned)s->o->supervisor->settings.lease_ms,
      .cb = &link_callbacks,
      .ctx = s,
  };
  s->link = link_create(&link);
  s->forwarder = forwarder_create(s->link, &link, supervisor_forward_ms(&s->o->supervisor->settings));
}

static int open_parts(struct session *s, struct err *e) {
  const struct agent_options *o = s->o->options;
  enum log_level shown = o->quiet ? LOG_WARN : o->verbose ? LOG_DEBUG : LOG_INFO;
  const struct supervisor_config *c = s->o->supervisor;
  struct round_store_options store = {.loop = &s->loop,
                                      .place = o->store,
                                      .port = (uint16_t)o->store_port,
                                      .addr = c->local_addr,
                                      .alone = o->standalone || c->settings.max_nodes == 1,
                                      .on_port = on_store_port,
                                      .send = send_to_daemon,
                                      .ctx = s};
  /* The agent's own lines go to a file only if --log-dir was given. The workers' error files have a folder in any case. */
  bool files = output_has_files(&o->output);
  int rc = files ? log_dir_make(&s->logs, o->output.log_dir, false, c->job, e) : 0;
  if (rc) return rc;
  s->logs.keep = files;
  char *own = o->output.log_dir ? log_dir_file(&s->logs, "agent", c->host) : NULL;
  s->daemon_log = o->output.log_dir ? log_dir_file(&s->logs, "rdzvd", c->host) : NULL;
  if (own) rc = loop_start_pool(&s->loop, LOOP_POOL_AGENT, e);
  if (rc == 0) rc = log_sink_init(&s->log_sink, &s->loop, shown, own, e);
  free(own);
  if (rc) return rc;
  if (files) log_info("logs go to %s", s->logs.dir);
  open_daemon(s);
  s->id_helpers = (struct id_helpers){.loop = &s->loop, .on_event = on_event, .ctx = s};
  rc = round_store_create(&store, &s->store, e);
  if (rc == 0) rc = open_round(s, e);
  if (rc) return rc;
  s->events = event_sinks_create(&s->loop, &(struct event_sinks_options){.file = o->events,
                                                                         .command = o->on_event,
                                                                         .names = o->on_event_names,
                                                                         .last_ms = ON_EVENT_LAST_MS,
                                                                         .one_job = true});
  if (!cluster_variable(o->env, "RDZV_AGENT_SOCKET")) s->kubeflow = kubeflow_create(&s->loop, o->env);
  if (o->health != HEALTH_OFF)
    s->health = health_create(&(struct health_options){.loop = &s->loop,
                                                       .job = c->job,
                                                       .deadline_ms = (uint32_t)o->device_timeout_ms,
                                                       .send = send_to_daemon,
                                                       .devices = get_devices,
                                                       .ctx = s});
  s->log_queries = log_queries_create(&(struct log_queries_options){
      .loop = &s->loop, .relay = round_relay(s->round), .send = send_to_daemon, .ctx = s});
  s->pairs = pairs_create(&(struct pairs_options){.loop = &s->loop,
                                                  .env = s->o->placed->env,
                                                  .nccl_library = o->nccl_library,
                                                  .first_gpu = s->o->placed->first,
                                                  .count_gpus = count_idle_gpus,
                                                  .send = send_to_daemon,
                                                  .ctx = s});
  open_link(s);
  return 0;
}

/* Schedulers send SIGUSR1 and SIGUSR2 to all processes of a job, for the workers that have asked for them. */
static void on_signal_of_others(uv_signal_t *handle, int signo) {
  log_info(
      "%s came and was ignored: it is for the workers, if they got it too. To make the agent leave at it, name it in "
      "--signals-to-handle",
      signal_name(signo));
}

/* Its log file has a folder that does not exist yet. */
void session_start_daemon(struct session_options *o, int (*program)(int argc, char **argv),
                          const struct copy_words *words) {
  struct local_daemon_options own = daemon_options(o);
  own.process.program = loop_was_opened() ? NULL : program; /* the copy closes what libuv needs */
  own.process.words = words;
  o->daemon = DAEMON_PROCESS_NONE;
  if (o->options->standalone && !o->options->output.log_dir) local_daemon_start_early(&own, &o->daemon);
}

int session_run(const struct session_options *o, bool *hung) {
  struct session *s = &session;
  struct err e = ERR_INIT;
  *s = (struct session){.o = o, .last = &s->first, .exit_code = EXIT_CODE_INTERNAL};
  int rc = loop_open(&s->loop, &e);
  if (rc == 0) rc = open_parts(s, &e);
  if (rc) {
    limit_explain(&e);
    log_error("%s", e.text);
    /* Nothing may be left of a start that failed. */
    struct daemon_process early = s->o->daemon;
    if (s->daemon)
      local_daemon_destroy(s->daemon);
    else
      daemon_process_kill(&early);
    *hung = true;
    return EXIT_CODE_SYSTEM;
  }
  uv_timer_t *const timers[] = {&s->tick, &s->end, &s->front, &s->pool};
  for (size_t i = 0; i < sizeof(timers) / sizeof(*timers); i++) {
    uv_timer_init(&s->loop, timers[i]);
    timers[i]->data = s;
  }
  uv_unref((uv_handle_t *)&s->front);
  uint64_t watched = s->watched = signals_to_watch(s->o->options);
  for (int signo = 1; signo < SIGNALS_MAX; signo++) {
    bool ours = watched >> signo & 1;
    uv_signal_cb cb = ours                                   ? on_signal
                      : signo == SIGTSTP                     ? on_tstp
                      : signo == SIGCONT                     ? on_cont
                      : signo == SIGWINCH                    ? on_winch
                      : signo == SIGUSR1 || signo == SIGUSR2 ? on_signal_of_others
                                                             : NULL;
    if (!cb || (!ours && signal_is_ignored(signo))) continue;
    uv_signal_t *handle = &s->signals[signo];
    uv_signal_init(&s->loop, handle);
    handle->data = s;
    uv_signal_start(handle, cb, signo);
    uv_unref((uv_handle_t *)handle);
  }
  char addrs[ADDRS_MAX + 1] = "";
  struct supervisor_config config = *o->supervisor;
  if (!o->options->standalone) host_addrs_text(addrs); /* nobody elsewhere asks for it */
  config.addrs = addrs;
  config.wants_events = s->events != NULL;
  config.wants_progress = s->kubeflow != NULL;
  config.checks = o->options->check != NULL;
  /* NCCL is not touched if the user says so, nor the GPUs beside trainers on CPUs. */
  bool nccl =
      config.settings.nccl_ids != NCCL_IDS_NEVER && (o->options->command || place_uses_nccl(o->options, o->placed));
  config.gpus = nccl ? round_idle_gpus(s->round, NULL) : 0;
  s->supervisor = supervisor_create(&config);
  notify_timer_start(&s->announce, &s->loop, o->notify, get_summary, s);
  on_store_port(s, round_store_port(s->store));
  on_standby_port(s, local_daemon_standby_port(s->daemon));
  post(s, &(struct supervisor_event){.kind = SUP_BEGIN});
  watch_end(s);
  uv_run(&s->loop, UV_RUN_DEFAULT);
  *hung = !close_all(s);
  return s->exit_code;
}
