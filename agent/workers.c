/* The workers of one node.
 *
 *   spawn (workers_round.c) -> STARTED or EXEC_FAILED from the guard, once per local rank
 *   death -> EXITED from the guard; told on when the relay has read the worker's last words, or after 50 ms
 *   nothing left -> CLEAR from the guard; told on after every death of the round
 *
 * A worker's last lines and its error file are often the only reason anybody will ever see, so a death waits for
 * them; a grandchild may hold the pipe open for ever, and the file's server may hang, so not for long. The supervisor thus sees each death once, with
 * its text, and then the end of the round.
 *
 * Whatever goes wrong with a single worker (no descriptors left, an environment that is too large) is a
 * worker that could not be started: the job's business. A guard that takes no commands is broken; it is
 * killed, and its death is the event. One that takes a stop and does not carry it out is watched (workers_watch.c).
 *
 * Three sources wake us, all in the loop: the guard's socket, the relay's thread by way of uv_async, and the
 * server behind which the workers' own connections are. */

#include "agent/workers/round.h"
#include "agent/workers_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "agent/options/command_line.h"
#include "agent/failures/failures.h"
#include "agent/workers/hang_watch.h"
#include "agent/failures/oom_watch.h"
#include "agent/output/output.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"

enum {
  LAST_WORDS_MS = 50,
  ERROR_FILE_MS =
      1000,       /* for its error file: a disk takes no time, and a file server is not waited for longer */
  REAP_MS = 3000, /* the guard is dead: how long its processes may take to die */
  RELAY_FLUSH_MS = 2000, /* at the end */
};

static void on_timer(uv_timer_t *timer);

void workers_tell(struct workers *w, struct supervisor_event ev) {
  w->o.on_event(w->o.ctx, &ev);
}

/* What workers say. ------------------------------------------------------------------------------------------------ */

static void on_sdk_event(struct workers *w, const struct sdk_event *s) {
  switch (s->kind) {
  case SDK_EVENT_HELLO: log_debug("worker %u: speaks to us pid=%d", s->local_rank, (int)s->pid); break;
  case SDK_EVENT_PROGRESS:
    workers_tell(w, (struct supervisor_event){.kind = SUP_PROGRESS,
                                              .round = s->round,
                                              .local_rank = s->local_rank,
                                              .step = s->progress.step,
                                              .of = s->progress.of,
                                              .loss = s->progress.loss,
                                              .samples_per_second = s->progress.samples_per_second});
    break;
  case SDK_EVENT_CAN:
    workers_tell(
        w, (struct supervisor_event){
               .kind = SUP_CAN_CHECKPOINT, .round = s->round, .local_rank = s->local_rank, .count = s->on});
    break;
  case SDK_EVENT_CHECKPOINTED:
    workers_tell(w, (struct supervisor_event){.kind = SUP_CHECKPOINTED,
                                              .round = s->round,
                                              .local_rank = s->local_rank,
                                              .count = s->checkpoint,
                                              .step = s->step});
    break;
  case SDK_EVENT_NCCL_UP:
    workers_tell(
        w, (struct supervisor_event){.kind = SUP_NCCL_UP, .round = s->round, .local_rank = s->local_rank});
    break;
  case SDK_EVENT_DONE:
    log_debug("worker %u: is done", s->local_rank);
    workers_tell(w, (struct supervisor_event){.kind = SUP_SIGN,
                                              .round = s->round,
                                              .local_rank = s->local_rank,
                                              .sign = SIGN_SDK,
                                              .when_ms = boot_ms()});
    break;
  case SDK_EVENT_CAN_REJOIN:
    workers_tell(w,
                 (struct supervisor_event){
                     .kind = SUP_CAN_REJOIN, .round = s->round, .local_rank = s->local_rank, .count = s->on});
    break;
  case SDK_EVENT_PARKED:
    workers_tell(w, (struct supervisor_event){
                        .kind = SUP_PARKED, .round = s->round, .local_rank = s->local_rank, .text = s->text});
    break;
  case SDK_EVENT_TROUBLE: log_debug("worker %u: %s", s->local_rank, s->text); break;
  }
}

static void hear_workers(struct workers *w) {
  struct sdk_event ev;
  sdk_server_work(w->sdk);
  while (!w->closing && sdk_server_next(w->sdk, &ev)) on_sdk_event(w, &ev);
}

static void on_sdk_poll(uv_poll_t *poll, int status, int events) {
  hear_workers(poll->data);
}

/* Its device as a verdict names it; "" where it is not known. Valid until the next call. */
static const char *device_of(const struct workers *w, uint32_t i) {
  static char name[DEVICE_MAX + 1];
  const struct device *d = device_watch_get(w->o.devices, i);
  struct buf text = BUF_INIT;
  if (d) devices_name(d, &text);
  snprintf(name, sizeof(name), "%s", buf_text(&text));
  buf_finish(&text);
  return name;
}

/* Deaths. ---------------------------------------------------------------------------------------------------------- */

/* What its error file says, or else the kernel: nobody but the two can know. */
static const char *reason_of(struct workers *w, uint32_t i, const struct error_file *said) {
  const struct worker *k = &w->v[i];
  bool killed = k->unasked && WIFSIGNALED(k->status) && WTERMSIG(k->status) == SIGKILL;
  const char *oom = killed ? oom_watch_died(w->oom, i, k->pid) : NULL;
  return oom ? oom : said ? said->message : NULL;
}

static void tell_exit(struct workers *w, uint32_t i) {
  char tail[RELAY_TAIL_MAX + 1];
  struct worker *k = &w->v[i];
  const struct error_file *said = failures_said(w->failures, i);
  k->told = true;
  relay_tail(w->relay, i, tail);
  workers_tell(w, (struct supervisor_event){.kind = SUP_EXITED,
                                            .round = w->round,
                                            .local_rank = i,
                                            .pid = k->pid,
                                            .status = k->status,
                                            .unasked = k->unasked,
                                            .when_ms = k->when_ms,
                                            .message = reason_of(w, i, said),
                                            .text = said && !tail[0] ? said->callstack : tail});
}

/* When the death of local rank i can be told; now: everything about it is there. */
static uint64_t waits_until(const struct workers *w, uint32_t i, uint64_t now) {
  const struct worker *k = &w->v[i];
  uint64_t words = k->drained ? now : k->due_ms;
  uint64_t file = failures_is_reading(w->failures, i) ? k->file_due_ms : now;
  return words > file ? words : file;
}

static bool any_lives(const struct workers *w) {
  for (uint32_t i = 0; i < w->o.count; i++)
    if (w->v[i].pid > 0 && !w->v[i].exited) return true;
  return false;
}

/* Tells what is due, and of the rest when. */
static void tell_deaths(struct workers *w) {
  uint64_t now = boot_ms(), first = UINT64_MAX;
  if (w->closing) return;
  for (uint32_t i = 0; i < w->o.count; i++) {
    struct worker *k = &w->v[i];
    if (!k->exited || k->told) continue;
    uint64_t due = waits_until(w, i, now);
    if (due <= now)
      tell_exit(w, i);
    else if (due < first)
      first = due;
  }
  if (first != UINT64_MAX) {
    uv_update_time(w->o.loop);
    uv_timer_start(&w->timer, on_timer, first - now, 0);
  } else if (w->clear) {
    w->clear = false;
    hear_workers(w); /* what they said before they died */
    if (!any_lives(w)) sdk_server_close_round(w->sdk);
    workers_tell(w, (struct supervisor_event){
                        .kind = SUP_CLEAR, .round = w->round, .count = w->killed, .kept = w->kept});
  }
}

static void on_timer(uv_timer_t *timer) {
  tell_deaths(timer->data);
}

/* The guard. ------------------------------------------------------------------------------------------------------- */

static void on_guard_gone(struct workers *w) {
  uv_poll_stop(&w->poll);
  if (w->closing) return;
  log_debug("the guard (pid %d) is gone: killing all it kept", (int)w->guard.pid);
  int left = guard_reap_orphans(w->o.spare(w->o.ctx), REAP_MS);
  for (uint32_t i = 0; i < w->o.count; i++) w->v[i].due_ms = w->v[i].file_due_ms = 0;
  w->clear = false;
  tell_deaths(w);
  workers_tell(w,
               (struct supervisor_event){.kind = SUP_GUARD_GONE, .round = w->round, .count = (uint32_t)left});
}

static void on_guard_started(struct workers *w, const struct guard_event *g, struct worker *k) {
  if (!k) return;
  if (!k->adopting) oom_watch_begin(w->oom, g->local_rank, g->pid);
  k->pid = g->pid;
  k->adopting = false;
}

static void on_guard_exited(struct workers *w, const struct guard_event *g, struct worker *k) {
  if (!k && g->round == w->round_before && g->local_rank < w->o.count) workers_spawn_again(w, g->local_rank);
  if (!k) return;
  k->exited = true;
  k->pid = g->pid;
  k->status = g->status;
  k->unasked = g->unasked && !(w->by_hand && WIFSIGNALED(g->status) && WTERMSIG(g->status) == SIGKILL);
  k->when_ms = g->when_ms;
  k->due_ms = boot_ms() + LAST_WORDS_MS;
  k->file_due_ms = boot_ms() + ERROR_FILE_MS;
  if (k->unasked && g->status) failures_read(w->failures, g->local_rank, g->status, g->when_ms);
}

static void on_guard_clear(struct workers *w, const struct guard_event *g) {
  if (g->round != w->round) {
    workers_tell(w, (struct supervisor_event){
                        .kind = SUP_CLEAR, .round = g->round, .count = g->killed, .kept = g->kept});
    return;
  }
  w->clear = true;
  w->killed = g->killed;
  w->kept = g->kept;
}

/* What the guard says of one process, told on as it is. */
static void tell_on(struct workers *w, const struct guard_event *g, enum supervisor_event_kind kind,
                    const char *device) {
  workers_tell(w, (struct supervisor_event){.kind = kind,
                                            .round = g->round,
                                            .local_rank = g->local_rank,
                                            .pid = g->pid,
                                            .error = g->error,
                                            .when_ms = g->when_ms,
                                            .device = device,
                                            .text = g->text});
}

static void on_guard_event(struct workers *w, const struct guard_event *g) {
  bool known = g->round == w->round && g->local_rank < w->o.count;
  struct worker *k = known ? &w->v[g->local_rank] : NULL;
  switch (g->kind) {
  case GUARD_STARTED:
    on_guard_started(w, g, k);
    tell_on(w, g, SUP_SPAWNED, device_of(w, g->local_rank));
    break;
  case GUARD_EXEC_FAILED: tell_on(w, g, SUP_EXEC_FAILED, device_of(w, g->local_rank)); break;
  case GUARD_UNBOUND:
    log_warn("the worker with local rank %u cannot be bound to its CPUs, and runs on all of ours: %s",
             g->local_rank, strerror(g->error));
    break;
  case GUARD_EXITED: on_guard_exited(w, g, k); break;
  case GUARD_CLEAR:
    guard_watch_clear(&w->watch, g->round, &g->kept);
    on_guard_clear(w, g);
    break;
  case GUARD_FENCED: tell_on(w, g, SUP_FENCED, NULL); break;
  case GUARD_STUCK:
    guard_watch_stuck(&w->watch);
    tell_on(w, g, SUP_STUCK, NULL);
    break;
  case GUARD_GONE:
    guard_watch_gone(&w->watch);
    on_guard_gone(w);
    break;
  }
}

void workers_hear_guard(struct workers *w) {
  struct guard_event ev;
  while (!w->closing && guard_next(&w->guard, &ev)) on_guard_event(w, &ev);
  tell_deaths(w);
}

static void on_poll(uv_poll_t *poll, int status, int events) {
  workers_hear_guard(poll->data);
}

/* A command was not taken. If the guard is not gone already, it is of no use. */
void workers_give_guard_up(const struct workers *w, const struct err *e) {
  if (w->guard.fd < 0 || e->code == -EPIPE) return;
  log_error("%s; killing it", e->text);
  kill(w->guard.pid, SIGKILL);
}

/* Output. ---------------------------------------------------------------------------------------------------------- */

static void on_relay_wake(void *ctx) { /* in the relay's thread */
  struct workers *w = ctx;
  uv_async_send(&w->wake);
}

static void on_wake(uv_async_t *wake) {
  struct workers *w = wake->data;
  struct relay_event ev;
  while (!w->closing && relay_next(w->relay, &ev)) {
    if (ev.kind == RELAY_TROUBLE)
      log_warn("%s", ev.text);
    else if (ev.round == w->round && ev.local_rank < w->o.count)
      w->v[ev.local_rank].drained = true;
  }
  tell_deaths(w);
}

static void on_error_file(void *ctx) {
  tell_deaths(ctx);
}

void workers_told(struct workers *w, uint64_t local_rank, const char *text, const char *said) {
  char when[32];
  struct tm tm;
  struct failure_told told = {
      .local_rank = local_rank < w->o.count ? (int64_t)local_rank : -1, .text = text, .said = said};
  const char *file = failures_told(w->failures, &told);
  localtime_r(&(time_t){told.unix_s}, &tm);
  strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
  log_warn("  at %s%s%s", when, file ? ", error file " : "", file ? file : "");
  if (file) w->o.logs->keep = true;
}

void workers_hand_up(struct workers *w, const char *file, int code) {
  failures_hand_up(w->failures, file, code);
}

bool workers_are_busy(const struct workers *w) {
  return failures_is_busy(w->failures) || hang_watch_is_busy(w->hang);
}

/* Commands. -------------------------------------------------------------------------------------------------------- */

void workers_held(struct workers *w, uint32_t round, uint32_t local_rank, const char *text) {
  workers_tell(w, (struct supervisor_event){.kind = SUP_DEVICE_HELD,
                                            .round = round,
                                            .local_rank = local_rank,
                                            .when_ms = boot_ms(),
                                            .device = device_of(w, local_rank),
                                            .text = text});
}

void workers_look(struct workers *w) {
  hear_workers(w);
  hang_watch_look(w->hang);
}

void workers_probe(struct workers *w, uint64_t first, enum log_level level) {
  pid_t *pids = xcalloc(w->o.count, sizeof(*pids));
  for (uint32_t i = 0; i < w->o.count; i++)
    if (!w->v[i].exited) pids[i] = w->v[i].pid;
  hang_watch_probe(w->hang, pids, first, level);
  free(pids);
}

void workers_stop(struct workers *w, uint32_t round, int signo, uint32_t grace_ms,
                  const struct local_set *keep) {
  struct err e = ERR_INIT;
  hang_watch_end(w->hang);
  if (round > w->round) { /* nothing of it was spawned: who was kept is of it now */
    w->round_before = w->round;
    w->round = round;
  }
  guard_watch_stop(&w->watch, boot_ms(), round, grace_ms, keep);
  workers_watch_arm(w);
  if (guard_stop_but(&w->guard, round, signo, grace_ms, keep, &e)) workers_give_guard_up(w, &e);
}

void workers_signal(struct workers *w, uint32_t local_rank, int signo) {
  struct err e = ERR_INIT;
  if (guard_signal(&w->guard, (int)local_rank, signo, &e)) workers_give_guard_up(w, &e);
}

void workers_fence(struct workers *w, uint64_t at_ms) {
  struct err e = ERR_INIT;
  if (guard_fence(&w->guard, at_ms, &e)) workers_give_guard_up(w, &e);
}

void workers_obituary(struct workers *w, const struct sockaddr *addr, socklen_t len, const struct bytes *b) {
  struct err e = ERR_INIT;
  if (guard_obituary(&w->guard, addr, len, b ? b->data : NULL, b ? b->len : 0, &e))
    workers_give_guard_up(w, &e);
}

void workers_ids(struct workers *w, const struct supervisor_effect *ids) {
  struct sdk_ids record = {.round = ids->round, .version = (int32_t)ids->value, .count = ids->count};
  if (!ids->count) record.code = -ENOTSUP;
  if (!ids->bytes) record.count = 0;
  if (ids->bytes) memcpy(record.ids, ids->bytes->data, ids->bytes->len);
  snprintf(record.text, sizeof(record.text), "%s", ids->text);
  sdk_server_ids(w->sdk, &record);
}

void workers_request(struct workers *w, const struct local_set *of, uint32_t bits, uint32_t checkpoint) {
  sdk_server_request(w->sdk, of, bits, checkpoint);
}

struct relay *workers_relay(struct workers *w) {
  return w->relay;
}

/* Beginning and end. ----------------------------------------------------------------------------------------------- */

static int open_relay(struct workers *w, struct err *e) {
  struct relay_options o = {
      .out = STDOUT_FILENO,
      .err = STDERR_FILENO,
      .status = isatty(STDERR_FILENO),
      .out_filters = &w->o.options->duplicate_stdout_filters,
      .err_filters = &w->o.options->duplicate_stderr_filters,
      .wake = on_relay_wake,
      .ctx = w,
  };
  return relay_create(&w->relay, &o, e);
}

int workers_create(const struct workers_options *o, const struct guard *g, struct workers **out,
                   struct err *e) {
  struct workers *w = xcalloc(1, sizeof(*w));
  w->o = *o;
  w->guard = *g;
  w->v = xcalloc(o->count, sizeof(*w->v));
  *out = w;
  uv_async_init(o->loop, &w->wake, on_wake);
  uv_timer_init(o->loop, &w->timer);
  uv_poll_init(o->loop, &w->poll, g->fd);
  w->wake.data = w->timer.data = w->poll.data = w->sdk_poll.data = w;
  uv_unref((uv_handle_t *)&w->wake);
  w->failures = failures_create(
      &(struct failures_options){.loop = o->loop, .count = o->count, .on_read = on_error_file, .ctx = w});
  w->oom = oom_watch_create(o->count, NULL, NULL, NULL);
  int rc = open_relay(w, e);
  if (rc == 0)
    w->hang = hang_watch_create(&(struct hang_watch_options){.loop = o->loop,
                                                             .count = o->count,
                                                             .options = o->options,
                                                             .logs = o->logs,
                                                             .relay = w->relay,
                                                             .on_event = o->on_event,
                                                             .ctx = o->ctx});
  if (rc == 0) rc = sdk_server_create(&w->sdk, NULL, e);
  if (rc) return rc;
  uv_poll_init(o->loop, &w->sdk_poll, sdk_server_fd(w->sdk));
  uv_poll_start(&w->sdk_poll, UV_READABLE, on_sdk_poll);
  uv_poll_start(&w->poll, UV_READABLE | UV_DISCONNECT, on_poll);
  workers_watch_begin(w);
  return 0;
}

void workers_close(struct workers *w, uint32_t deadline_ms) {
  if (w->closing) return;
  w->closing = true;
  uv_close((uv_handle_t *)&w->poll, NULL);
  uv_close((uv_handle_t *)&w->timer, NULL);
  uv_close((uv_handle_t *)&w->sdk_poll, NULL);
  uv_close((uv_handle_t *)&w->watch_timer, NULL);
  guard_finish(&w->guard, deadline_ms);
  if (w->guard.pid > 0) guard_reap_orphans(w->o.spare(w->o.ctx), REAP_MS);
}

static void on_wake_closed(uv_handle_t *handle) {
  struct workers *w = handle->data;
  sdk_server_destroy(w->sdk);
  failures_destroy(w->failures);
  oom_watch_destroy(w->oom);
  start_free(w->start);
  free(w->v);
  free(w);
}

void workers_destroy(struct workers *w) {
  hang_watch_destroy(w->hang);
  relay_destroy(w->relay, RELAY_FLUSH_MS);
  uv_close((uv_handle_t *)&w->wake, on_wake_closed);
}
