/* The agent's loop.
 *
 *   link: connected, lost, message --.                                .--> link: connect, send, close
 *   workers: started, died, clear ---+--> supervisor_step --> effects +--> workers: spawn, stop, signal, answers
 *   signal, timer -------------------'                                '--> lines, status, exit
 *
 * Nothing is decided here. An event is handed to the supervisor with its time, the effects that come back are
 * carried out in order, then the one timer is set to the supervisor's next deadline. An effect may cause the
 * next event at once (a connection that fails inside the call); such an event waits in a queue until the
 * effects at hand are done, so the supervisor never sees the second before the first.
 *
 * The end: SUP_EXIT gives the code. Then the connection is flushed and closed, the guard let go, the own
 * daemon waited for, lines written, in that order and each with a deadline. A second signal in this time ends
 * the waiting. Signals that were ignored when we were started stay ignored (nohup, and a shell's background
 * jobs).
 *
 * SUP_SPAWN waits for the workers' devices (agent/device_watch.c); START is kept until then. Whatever ends the round
 * meanwhile comes as SUP_STOP_TREES, and the wait is over. */

#include "agent/session.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "agent/devices/watch.h"
#include "agent/link/host_addrs.h"
#include "agent/job_times.h"
#include "agent/link/link.h"
#include "agent/link/local_daemon.h"
#include "agent/output/log_dir.h"
#include "agent/nccl/minter.h"
#include "agent/output/output.h"
#include "agent/store/round_store.h"
#include "agent/output/log_sink.h"
#include "agent/verdict_file.h"
#include "agent/failures/verdict_json.h"
#include "agent/workers/round.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/mem.h"
#include "common/notify_timer.h"

enum {
  GUARD_FINISH_MS = 2000,
  DAEMON_END_MS =
      12000, /* the job is over: our daemon leaves when all know, after CORE_END_ACK_MS at the latest */
  DAEMON_GRACE_MS = 1000, /* we leave and the job goes on: the daemon is idle at once, or others need it */
  HURRY_MS = 16000,       /* all of the end together */
  LEAVING_EVERY_MS = 10,
  END_LOOK_MS = 60000, /* how far the clock on the wall is trusted to go on */
  SIGNALS_MAX = 64,
};

struct later {
  struct supervisor_event event;
  struct later *next;
  char text[]; /* event.text, and event.message and event.device behind it */
};

struct session {
  const struct session_options *o;
  uv_loop_t loop;
  struct log_dir logs;
  struct say say;
  struct env_job env;
  struct local_daemon *daemon;
  struct link *link;
  struct workers *workers;
  struct round_store *store;
  struct device_watch *devices;
  struct minter *minter;
  struct start *held;    /* waits for the devices */
  struct local_set stay; /* of its workers, those that were kept */
  bool waits_for_devices;
  struct supervisor *supervisor;
  struct supervisor_effects effects;
  uv_timer_t tick;
  struct notify_timer announce;
  uv_timer_t end;                   /* --leave-before-end */
  uv_signal_t signals[SIGNALS_MAX]; /* by number; those that are watched have their loop */
  struct later *first, **last;
  struct bytes *obituary;
  char *daemon_log;
  bool writing;                  /* --verdict-file */
  bool stepping, exiting, ended; /* ended: the daemon said that the job is over */
  uint64_t hurry_ms;
  int exit_code;
};

static struct session session;

static void on_tick(uv_timer_t *timer);
static void begin_exit(struct session *s, int code);
static void post(struct session *s, struct supervisor_event *ev);

/* Effects. --------------------------------------------------------------------------------------------------------- */

/* To the guard, with the address that we are, or were last, connected to; with none yet it waits for the
 * first. */
static void leave_obituary(struct session *s) {
  union address peer = {0};
  const struct bytes *b = s->obituary;
  if (b && !link_peer(s->link, &peer)) return;
  workers_obituary(s->workers, &peer.sa, b ? address_size(&peer) : 0, b);
}

/* The guard knows nothing of the protocol: it gets all that it is to send, the preface first. */
static void set_obituary(struct session *s, const struct bytes *frame) {
  struct buf all = BUF_INIT;
  bytes_unref(s->obituary);
  s->obituary = NULL;
  if (frame) {
    buf_append(&all, frame_preface, FRAME_PREFACE_SIZE);
    buf_append(&all, frame->data, frame->len);
    s->obituary = bytes_create(all.data, all.len);
    buf_finish(&all);
  }
  leave_obituary(s);
}

static void hold_for_devices(struct session *s) {
  pid_t *pids = xcalloc((size_t)s->o->supervisor->workers, sizeof(*pids));
  workers_pids(s->workers, pids);
  device_watch_hold(s->devices, s->held->round, &s->stay, pids);
  free(pids);
}

/* The store first: workers of this node connect to it as soon as they run. */
static void spawn(struct session *s, struct supervisor_effect *fx) {
  struct err e = ERR_INIT;
  int rc = fx->start->node_rank == 0 ? round_store_open(s->store, fx->start, fx->bytes, &e) : 0;
  if (rc == 0) {
    start_free(s->held);
    s->held = fx->start;
    s->stay = fx->keep;
    s->waits_for_devices = true;
    fx->start = NULL;
    hold_for_devices(s);
  } else {
    post(s, &(struct supervisor_event){.kind = SUP_EXEC_FAILED,
                                       .round = (uint32_t)fx->start->round,
                                       .error = -rc,
                                       .when_ms = boot_ms(),
                                       .text = e.text});
  }
}

/* Who was kept for a round that is stopped before it has begun is parked as before. */
static void tell_still_parked(struct session *s) {
  s->waits_for_devices = false;
  for (uint32_t i = 0; i < (uint32_t)s->o->supervisor->workers; i++)
    if (local_set_has(&s->stay, i))
      post(s, &(struct supervisor_event){
                  .kind = SUP_PARKED, .round = (uint32_t)s->held->round, .local_rank = i});
}

static void stop(struct session *s, const struct supervisor_effect *fx) {
  device_watch_cancel(s->devices);
  if (s->waits_for_devices) tell_still_parked(s);
  workers_stop(s->workers, fx->round, fx->signo, (uint32_t)fx->value, &fx->keep);
}

/* In the environment of a worker: it decides where NCCL listens. */
static void mint(struct session *s, const struct supervisor_effect *fx) {
  bool known = s->held && (uint32_t)s->held->round == fx->round;
  char **env = known ? workers_env(s->workers, s->held, 0) : NULL;
  minter_start(s->minter, fx->round, (uint32_t)fx->value, fx->count, env);
  env_destroy(env);
}

static void write_verdict(struct session *s, const struct ending *ending) {
  const struct supervisor_config *c = s->o->supervisor;
  struct buf text = BUF_INIT;
  char when[32];
  struct tm tm;
  if (!s->o->options->verdict_file) return;
  strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&(time_t){time(NULL)}, &tm));
  verdict_text(ending, c->job, c->host, when, &text);
  verdict_file_write(&s->loop, s->o->options->verdict_file, &text, &s->writing);
}

static void carry_out(struct session *s, struct supervisor_effect *fx) {
  switch (fx->kind) {
  case SUP_CONNECT: link_open(s->link); break;
  case SUP_DISCONNECT: link_shut(s->link); break;
  case SUP_SEND: link_send(s->link, bytes_ref(fx->bytes)); break;
  case SUP_SPAWN: spawn(s, fx); break;
  case SUP_SHUT_STORE: round_store_shut(s->store); break;
  case SUP_CLOSE_STORE: round_store_close(s->store); break;
  case SUP_STOP_TREES: stop(s, fx); break;
  case SUP_LOOK: workers_look(s->workers); break;
  case SUP_PROBE: workers_probe(s->workers, fx->value, fx->level); break;
  case SUP_FENCE_AT: workers_fence(s->workers, fx->value); break;
  case SUP_KILL: workers_signal(s->workers, (uint32_t)fx->value, fx->signo); break;
  case SUP_REQUEST: workers_request(s->workers, &fx->keep, (uint32_t)fx->value, fx->checkpoint); break;
  case SUP_MINT: mint(s, fx); break;
  case SUP_UNMINT: minter_stop(s->minter, (uint32_t)fx->value); break;
  case SUP_IDS: workers_ids(s->workers, fx); break;
  case SUP_OBITUARY: set_obituary(s, fx->bytes); break;
  case SUP_SAY: log_line(fx->level, "%s", fx->text); break;
  case SUP_TOLD: workers_told(s->workers, fx->value, fx->text, fx->error_text); break;
  case SUP_STATUS: relay_status(workers_relay(s->workers), fx->text); break;
  case SUP_ENDING: write_verdict(s, fx->ending); break;
  case SUP_EXIT: begin_exit(s, (int)fx->value); break;
  }
}

/* Events. ---------------------------------------------------------------------------------------------------------- */

static void step(struct session *s, struct supervisor_event *ev) {
  ev->now_ms = boot_ms();
  supervisor_step(s->supervisor, ev, &s->effects);
  for (size_t i = 0; i < s->effects.n; i++) carry_out(s, &s->effects.v[i]);
  supervisor_effects_clear(&s->effects);
}

static void put_later(struct session *s, const struct supervisor_event *ev) {
  size_t n = ev->text ? strlen(ev->text) + 1 : 0, m = ev->message ? strlen(ev->message) + 1 : 0;
  size_t k = ev->device ? strlen(ev->device) + 1 : 0;
  struct later *l = xcalloc(1, sizeof(*l) + n + m + k);
  l->event = *ev;
  if (n) l->event.text = memcpy(l->text, ev->text, n);
  if (m) l->event.message = memcpy(l->text + n, ev->message, m);
  if (k) l->event.device = memcpy(l->text + n + m, ev->device, k);
  *s->last = l;
  s->last = &l->next;
}

static void set_tick(struct session *s) {
  uint64_t at = supervisor_deadline(s->supervisor), now = boot_ms();
  if (s->exiting) return; /* the timer is for the end now */
  uv_timer_stop(&s->tick);
  if (at == UINT64_MAX) return;
  uv_update_time(&s->loop);
  uv_timer_start(&s->tick, on_tick, at > now ? at - now : 0, 0);
}

/* ev->msg and ev->data come only from the loop, never while effects are carried out: they need not outlive
 * the call. */
static void post(struct session *s, struct supervisor_event *ev) {
  if (s->exiting) return;
  if (s->stepping) {
    put_later(s, ev);
    return;
  }
  s->stepping = true;
  step(s, ev);
  while (s->first) {
    struct later *l = s->first;
    s->first = l->next;
    if (!s->first) s->last = &s->first;
    if (!s->exiting) step(s, &l->event);
    free(l);
  }
  s->stepping = false;
  set_tick(s);
}

static void on_tick(uv_timer_t *timer) {
  post(timer->data, &(struct supervisor_event){.kind = SUP_TICK});
}

static void on_signal(uv_signal_t *handle, int signo) {
  struct session *s = handle->data;
  if (s->exiting) {
    uv_stop(&s->loop);
    return;
  }
  notify_timer_stopping(&s->announce, NULL);
  post(s, &(struct supervisor_event){.kind = SUP_SIGNAL, .signo = signo});
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
  uv_update_time(&s->loop);
  uv_timer_start(&s->end, on_end, left_ms < END_LOOK_MS ? (uint64_t)left_ms : END_LOOK_MS, 0);
  uv_unref((uv_handle_t *)&s->end);
}

static void on_up(void *ctx, bool moved) {
  leave_obituary(ctx);
  post(ctx, &(struct supervisor_event){.kind = SUP_LINK_UP, .moved = moved});
}

static void on_down(void *ctx, bool refused, int fatal, const char *why) {
  post(ctx,
       &(struct supervisor_event){.kind = SUP_LINK_DOWN, .refused = refused, .error = fatal, .text = why});
}

static void on_msg(void *ctx, struct msg *m) {
  struct session *s = ctx;
  bool welcome = m->type == MSG_WELCOME;
  s->ended = s->ended || m->type == MSG_END;
  post(s, &(struct supervisor_event){.kind = SUP_MSG, .msg = m});
  if (welcome && !supervisor_is_busy(s->supervisor)) notify_timer_ready(&s->announce);
}

static void get_summary(void *ctx, struct buf *out, bool *busy) {
  struct session *s = ctx;
  supervisor_summary(s->supervisor, boot_ms(), out);
  *busy = s->exiting || supervisor_is_busy(s->supervisor);
}

static void on_workers(void *ctx, struct supervisor_event *ev) {
  post(ctx, ev);
}

static void on_store_port(void *ctx, uint16_t port) {
  post(ctx, &(struct supervisor_event){.kind = SUP_STORE, .port = port});
}

/* The devices are free. */
static void on_free(void *ctx) {
  struct session *s = ctx;
  s->waits_for_devices = false;
  workers_spawn(s->workers, s->held, &s->stay);
}

static void on_held(void *ctx, uint32_t local_rank, const char *text) {
  struct session *s = ctx;
  workers_held(s->workers, (uint32_t)s->held->round, local_rank, text);
}

static pid_t on_spare(void *ctx) {
  struct session *s = ctx;
  return local_daemon_pid(s->daemon);
}

/* The end. --------------------------------------------------------------------------------------------------------- */

/* While we are leaving. The loop ends by itself when nothing is left in it, but a name that is being looked
 * up, or a disk that hangs, is not waited for. */
static void on_leaving(uv_timer_t *timer) {
  struct session *s = timer->data;
  bool done = !s->daemon && link_is_shut(s->link) && say_is_quiet(&s->say) && !workers_are_busy(s->workers) &&
              !s->writing;
  if (done || boot_ms() >= s->hurry_ms) uv_stop(&s->loop);
}

static void begin_exit(struct session *s, int code) {
  s->exiting = true;
  s->exit_code = code;
  notify_timer_stopping(&s->announce, NULL);
  s->hurry_ms = boot_ms() + HURRY_MS;
  const char *parent = getenv("TORCHELASTIC_ERROR_FILE"); /* of whoever started us */
  if (code && parent && *parent) workers_hand_up(s->workers, parent, code);
  device_watch_cancel(s->devices);
  link_shut(s->link);
  workers_close(s->workers, GUARD_FINISH_MS);
  local_daemon_leave(s->daemon, s->ended ? DAEMON_END_MS : DAEMON_GRACE_MS);
  uv_timer_start(&s->tick, on_leaving, LEAVING_EVERY_MS, LEAVING_EVERY_MS);
  uv_unref((uv_handle_t *)&s->tick);
}

static void on_left(void *ctx) {
  struct session *s = ctx;
  local_daemon_destroy(s->daemon);
  s->daemon = NULL;
}

/* What is still open after the loop ended, or was stopped. */
static bool close_all(struct session *s) {
  local_daemon_destroy(s->daemon);
  link_destroy(s->link);
  device_watch_destroy(s->devices);
  minter_destroy(s->minter);
  start_free(s->held);
  round_store_destroy(s->store);
  uv_close((uv_handle_t *)&s->tick, NULL);
  uv_close((uv_handle_t *)&s->end, NULL);
  notify_timer_close(&s->announce);
  for (int i = 0; i < SIGNALS_MAX; i++)
    if (s->signals[i].loop) uv_close((uv_handle_t *)&s->signals[i], NULL);
  say_through(&s->say, NULL);
  workers_destroy(s->workers);
  uv_run(&s->loop, UV_RUN_NOWAIT);
  uv_run(&s->loop, UV_RUN_NOWAIT);
  say_finish(&s->say);
  log_dir_finish(&s->logs);
  supervisor_destroy(s->supervisor);
  supervisor_effects_finish(&s->effects);
  bytes_unref(s->obituary);
  free(s->daemon_log);
  return uv_loop_close(&s->loop) == 0;
}

/* The beginning. --------------------------------------------------------------------------------------------------- */

/* Who writes 127.0.0.1 wants this machine alone; a name may stand for it and for the network too. */
static const char *loopback_host(const struct agent_options *o) {
  struct ipaddr ip = ipaddr_parse(o->endpoint.host);
  return ip.family && ipaddr_is_loopback(&ip) ? o->endpoint.host : NULL;
}

/* The agent's own lines go to files only where a place was named; what workers leave has one in any case. */
static int open_logs(struct session *s, enum log_level shown, struct err *e) {
  const struct agent_options *o = s->o->options;
  const struct supervisor_config *c = s->o->supervisor;
  bool files = output_has_files(o);
  int rc = files ? log_dir_make(&s->logs, o->log_dir, c->job, e) : 0;
  if (rc) return rc;
  s->logs.keep = files;
  char *own = o->log_dir ? log_dir_file(&s->logs, "agent", c->host) : NULL;
  s->daemon_log = o->log_dir ? log_dir_file(&s->logs, "rdzvd", c->host) : NULL;
  rc = say_init(&s->say, &s->loop, shown, own, e);
  free(own);
  if (!rc && files) log_info("logs go to %s", s->logs.dir);
  return rc;
}

static int open_workers(struct session *s, struct err *e) {
  const struct agent_options *o = s->o->options;
  const struct supervisor_config *c = s->o->supervisor;
  s->env = (struct env_job){
      .run_id = c->job,
      .workers = c->workers,
      .first = s->o->placed->first,
      .local_world = s->o->placed->local_world,
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
  struct workers_options workers = {
      .loop = &s->loop,
      .count = (uint32_t)c->workers,
      .argv = s->o->argv,
      .base_env = s->o->placed->env,
      .env = &s->env,
      .numa = s->o->numa,
      .devices = s->devices,
      .options = o,
      .host = c->host,
      .logs = &s->logs,
      .on_event = on_workers,
      .spare = on_spare,
      .ctx = s,
  };
  int rc = workers_create(&workers, &s->o->guard, &s->workers, e);
  if (rc == 0) say_through(&s->say, workers_relay(s->workers));
  return rc;
}

static void open_devices(struct session *s) {
  const struct supervisor_config *c = s->o->supervisor;
  s->devices = device_watch_create(&(struct device_watch_options){
      .loop = &s->loop,
      .env = s->o->placed->env,
      .job = c->job,
      .workers = (uint32_t)c->workers,
      .first = (uint32_t)s->o->placed->first,
      .timeout_ms = (uint32_t)s->o->options->device_timeout_ms,
      .certain = s->o->placed->uses_devices,
      .asked = s->o->placed->asked,
      .before = &s->o->placed->before,
      .on_free = on_free,
      .on_held = on_held,
      .ctx = s,
  });
}

static void on_minter(void *ctx, struct supervisor_event *ev) {
  post(ctx, ev);
}

static void open_link(struct session *s) {
  static const struct link_callbacks link_callbacks = {on_up, on_down, on_msg};
  const struct agent_options *o = s->o->options;
  s->daemon = local_daemon_create(&(struct local_daemon_options){
      .loop = &s->loop,
      .loopback = o->standalone,
      .host = loopback_host(o),
      .port = o->endpoint.port,
      .log_file = s->daemon_log,
      .verbose = o->verbose,
      .on_left = on_left,
      .ctx = s,
  });
  s->link = link_create(&(struct link_options){
      .loop = &s->loop,
      .endpoint = o->endpoint,
      .standalone = o->standalone,
      .words = {o->endpoint_where,
                o->from.endpoint ? "give --endpoint HOST:PORT, the same to all agents" : RESOLVE_REMEDY},
      .derived = o->from.endpoint,
      .hosting = o->hosting,
      .daemon = s->daemon,
      .user_timeout_ms = (unsigned)s->o->supervisor->settings.lease_ms,
      .cb = &link_callbacks,
      .ctx = s,
  });
}

static int open_parts(struct session *s, struct err *e) {
  const struct agent_options *o = s->o->options;
  enum log_level shown = o->quiet ? LOG_WARN : o->verbose ? LOG_DEBUG : LOG_INFO;
  struct round_store_options store = {.loop = &s->loop,
                                      .place = o->store,
                                      .port = (uint16_t)o->store_port,
                                      .on_port = on_store_port,
                                      .ctx = s};
  int rc = open_logs(s, shown, e);
  open_devices(s);
  s->minter = minter_create(&(struct minter_options){.loop = &s->loop, .on_event = on_minter, .ctx = s});
  if (rc == 0) rc = open_workers(s, e);
  if (rc == 0) rc = round_store_create(&store, &s->store, e);
  if (rc == 0) open_link(s);
  return rc;
}

/* Schedulers send these to all processes of a job, for those that have asked for them: the workers. */
static void on_signal_of_others(uv_signal_t *handle, int signo) {
  log_info("%s: it is for the workers, if they have it too; with --signals-to-handle the agent leaves at it",
           signal_name(signo));
}

static void watch_signals(struct session *s) {
  for (int signo = 1; signo < SIGNALS_MAX; signo++) {
    struct sigaction now;
    bool ours = s->o->options->signals >> signo & 1;
    if ((!ours && signo != SIGUSR1 && signo != SIGUSR2) || sigaction(signo, NULL, &now)) continue;
    if (now.sa_handler == SIG_IGN && signo != SIGTERM) continue;
    uv_signal_t *handle = &s->signals[signo];
    uv_signal_init(&s->loop, handle);
    handle->data = s;
    uv_signal_start(handle, ours ? on_signal : on_signal_of_others, signo);
    uv_unref((uv_handle_t *)handle);
  }
}

int session_run(const struct session_options *o, bool *hung) {
  struct session *s = &session;
  struct err e = ERR_INIT;
  *s = (struct session){.o = o, .last = &s->first, .exit_code = EXIT_CODE_INTERNAL};
  int rc = uv_loop_init(&s->loop);
  if (rc == 0)
    rc = open_parts(s, &e);
  else
    err_sys(&e, rc, "no event loop");
  if (rc) {
    log_error("%s", e.text);
    *hung = true;
    return EXIT_CODE_SYSTEM;
  }
  uv_timer_init(&s->loop, &s->tick);
  s->tick.data = s;
  uv_timer_init(&s->loop, &s->end);
  s->end.data = s;
  watch_signals(s);
  char addrs[ADDRS_MAX + 1];
  struct supervisor_config config = *o->supervisor;
  host_addrs_text(addrs);
  config.addrs = addrs;
  s->supervisor = supervisor_create(&config);
  notify_timer_start(&s->announce, &s->loop, o->notify, get_summary, s);
  on_store_port(s, round_store_port(s->store));
  post(s, &(struct supervisor_event){.kind = SUP_START});
  watch_end(s);
  uv_run(&s->loop, UV_RUN_DEFAULT);
  *hung = !close_all(s);
  return s->exit_code;
}
