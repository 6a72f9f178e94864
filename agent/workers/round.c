/* SPDX-License-Identifier: Apache-2.0 */
/* One round after the other, on this node.
 *
 * START: first the store, since workers connect to it as soon as they run. Then the devices: START waits until they are
 * free of the last round. Then each worker is spawned, or adopted if it was kept. In both cases the guard answers
 * STARTED. A kept worker may die just before it is adopted. The guard then reports the death with the number of the old
 * round, and the worker is spawned like the others: no restart is charged for a worker that was waiting.
 *
 * Death: a worker's last lines and its error file are often the only trace of the reason, so the report waits for them.
 * It does not wait for long: a grandchild may hold the pipe open forever, and the file's server may hang.
 *
 * A failure that concerns one worker (no descriptors left, an environment that is too large) is EXEC_FAILED of that
 * worker. A guard that takes no commands is broken: it is killed, and its death is the event.
 *
 * A guard that takes a stop and does not carry it out is watched (agent/guard/watch.h). Its events are read before
 * anything is held against it: if this process was stopped, the answer may lie in the socket, and libuv runs timers
 * first. After a kill from here, the guard finds the workers dead when it can run again, perhaps before it has read the
 * stop. It would report deaths without a stop. So a SIGKILL after ours counts as ours. */

#include "agent/workers/round.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "agent/failures/exception.h"
#include "agent/guard/watch.h"
#include "agent/options/command_line.h"
#include "agent/options/interpreter.h"
#include "agent/output/output.h"
#include "agent/sdk/server.h"
#include "agent/store/watch.h"
#include "agent/terminal/pty.h"
#include "agent/workers/worker_signs.h"
#include "agent/workers/worker.h"
#include "agent/warm/warm.h"
#include "common/system/aside.h"
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "common/system/loop.h"
#include "common/system/rationed_log.h"

enum {
  LAST_WORDS_MS = 50,
  ERROR_FILE_MS = 1000,  /* a disk takes no time, and a file server is not waited for longer */
  REAP_MS = 3000,        /* the guard is dead: how long its processes may take to die */
  RELAY_FLUSH_MS = 2000, /* at the end */
  KILL_MS = 200,         /* for one kill in the guard's stead; the loop waits for it */
};

/* What a thread is given, and gives back. */
struct interpreter_look {
  pid_t pid;
  uint32_t round;
  char found[PATH_MAX + NAME_MAX + 4]; /* "": nothing */
};

struct round_driver {
  struct round_options o;
  struct guard guard;
  struct relay *relay;
  struct sdk_server *sdk;
  struct rations refused; /* users whose connection was refused there */
  struct failures failures;
  struct oom_watch *oom; /* from the first round on */
  struct hang_watch *hang;
  struct device_watch *devices;
  struct store_watch *store_watch;
  uv_poll_t poll, sdk_poll;
  uv_async_t wake;
  uv_timer_t death_timer; /* the next report of a death */
  uv_timer_t guard_timer;
  struct guard_watch watch;

  struct start *start;            /* the last one; NULL: none came yet */
  bool waits;                     /* for the devices: nothing of it is spawned */
  struct local_set stay;          /* of START: these workers go on */
  uint32_t round, round_before;   /* of the workers; the guard's events carry it */
  bool by_hand;                   /* in this round we have killed in the guard's stead */
  bool clear;                     /* CLEAR has come, deaths are still to be reported; then: */
  uint32_t killed;                /* its orphans */
  struct local_set kept;          /* and the workers that live on */
  struct worker *v;               /* by local rank */
  const struct worker *cause;     /* of the round's failure, as the mind reported it; NULL: none of this node */
  char *cause_text, *cause_error; /* NULL: no failure was reported */
  struct aside *look;             /* for the interpreter of a worker of this round, or of an earlier one; NULL: none */
  uint64_t look_by_ms;            /* no report waits for it longer than that */
  char *interpreter;              /* of the first worker that printed a traceback in this round; NULL: not known */
  bool warm;                      /* workers may be forked from a template */
  unsigned terminals;             /* of the template: enum guard_terminals */
  pid_t template;                 /* 0: none */
  bool no_files;                  /* no folder for error files could be made: logged once */
  bool suspended, settling;       /* settling: the workers are stopped, their last output is on its way */
  bool closing;
  pid_t spare; /* since closing: our own rdzvd, which may outlive us */
};

static void report_deaths(struct round_driver *r);

static void report(struct round_driver *r, struct supervisor_event ev) {
  r->o.on_event(r->o.ctx, &ev);
}

static bool lives(const struct worker *k) {
  return k->pid > 0 && !k->exited;
}

static bool nobody_lives(const struct round_driver *r) {
  bool any = false;
  for (uint32_t i = 0; i < r->o.count; i++) any |= lives(&r->v[i]);
  return !any;
}

/* The worker's local rank as the worker, and a reader of its output, see it. */
static uint32_t seen_rank(const struct round_driver *r, uint32_t i) {
  return (uint32_t)r->o.env->first + i;
}

const struct device *round_device(const struct round_driver *r, uint32_t local_rank) {
  return device_watch_get(r->devices, local_rank);
}

int round_devices(const struct round_driver *r, const struct device **v) {
  return device_watch_list(r->devices, v);
}

/* Its device as a verdict names it; "" if it is not known. Valid until the next call. */
static const char *device_of(const struct round_driver *r, uint32_t i) {
  static char name[DEVICE_MAX + 1];
  const struct device *d = round_device(r, i);
  struct buf text = BUF_INIT;
  if (d) devices_name(d, &text);
  snprintf(name, sizeof(name), "%s", buf_text(&text));
  buf_finish(&text);
  return name;
}

/* By local rank; 0: it does not live. */
static void get_pids(void *ctx, pid_t *pids) {
  const struct round_driver *r = ctx;
  for (uint32_t i = 0; i < r->o.count; i++) pids[i] = lives(&r->v[i]) ? r->v[i].pid : 0;
}

/* A command was not taken. If the guard is not gone already, it is broken. */
static void give_up_guard(const struct round_driver *r, const struct err *e) {
  if (r->guard.fd < 0 || e->code == -EPIPE) return;
  log_error("%s; killing it", e->text);
  guard_sigkill(&r->guard);
}

/* The workers' socket. --------------------------------------------------------------------------------------------- */

static int64_t at_most(uint64_t n, int64_t most) {
  return n < (uint64_t)most ? (int64_t)n : most;
}

static struct rank_pace pace_of_record(const struct sdk_event *s) {
  const struct sdk_pace *p = &s->pace;
  return (struct rank_pace){.local_rank = s->local_rank,
                            .group = (int64_t)p->group,
                            .group_rank = at_most(p->rank, WORLD_MAX),
                            .group_size = at_most(p->size, WORLD_MAX),
                            .pairs = p->pairs != 0,
                            .collectives = at_most(p->collectives, INT64_MAX),
                            .waited_us = at_most(p->waited_us, INT64_MAX),
                            .sent_bytes = at_most(p->sent_bytes, INT64_MAX),
                            .sending_us = at_most(p->sending_us, INT64_MAX)};
}

static void on_sdk_event(struct round_driver *r, const struct sdk_event *s) {
  static const enum supervisor_event_kind kinds[] = {[SDK_EVENT_PROGRESS] = SUP_PROGRESS,
                                                     [SDK_EVENT_CAN] = SUP_CAN_CHECKPOINT,
                                                     [SDK_EVENT_CHECKPOINTED] = SUP_CHECKPOINTED,
                                                     [SDK_EVENT_SAVED] = SUP_SAVED,
                                                     [SDK_EVENT_RESUMED] = SUP_RESUMED,
                                                     [SDK_EVENT_SAVING] = SUP_SAVING,
                                                     [SDK_EVENT_PACE] = SUP_PACE,
                                                     [SDK_EVENT_NCCL_UP] = SUP_NCCL_UP,
                                                     [SDK_EVENT_DONE] = SUP_SIGN,
                                                     [SDK_EVENT_CAN_REJOIN] = SUP_CAN_REJOIN,
                                                     [SDK_EVENT_PARKED] = SUP_PARKED};
  if (s->kind == SDK_EVENT_HELLO) {
    log_debug("worker %u: connected pid=%d", s->local_rank, (int)s->pid);
    return;
  }
  if (s->kind == SDK_EVENT_TROUBLE) {
    /* Any user of the machine can connect, as fast as the kernel allows, so lines are rationed by user. */
    char user[32];
    snprintf(user, sizeof(user), "user %u", (unsigned)s->uid);
    rations_log(&r->refused, user, monotonic_ms(), LOG_DEBUG, "the workers' socket: %s", s->text);
    return;
  }
  struct supervisor_event ev = {.kind = kinds[s->kind], .round = s->round, .local_rank = s->local_rank};
  switch (ev.kind) {
  case SUP_PROGRESS:
    ev.progress.step = s->progress.step;
    ev.progress.of = s->progress.of;
    ev.progress.loss = s->progress.loss;
    ev.progress.samples_per_second = s->progress.samples_per_second;
    break;
  case SUP_CHECKPOINTED:
    ev.checkpointed.request = s->checkpoint;
    ev.checkpointed.step = s->step;
    break;
  case SUP_SAVED:
  case SUP_RESUMED: ev.step = s->step; break;
  case SUP_PACE: ev.pace = pace_of_record(s); break;
  case SUP_SIGN:
    log_debug("worker %u: is done", s->local_rank);
    ev.when_ms = boot_ms();
    ev.sign = SIGN_SDK;
    break;
  case SUP_PARKED: ev.text = s->text; break;
  case SUP_NCCL_UP: break;
  default: ev.on = s->on;
  }
  report(r, ev);
}

static void read_workers(struct round_driver *r) {
  struct sdk_event ev;
  sdk_server_work(r->sdk);
  while (!r->closing && sdk_server_next(r->sdk, &ev)) on_sdk_event(r, &ev);
}

static void on_sdk_poll(uv_poll_t *poll, int status, int events) {
  read_workers(poll->data);
}

/* Deaths. ---------------------------------------------------------------------------------------------------------- */

static void report_exit(struct round_driver *r, uint32_t i) {
  char tail[RELAY_TAIL_MAX + 1];
  struct worker *k = &r->v[i];
  struct buf reason = BUF_INIT;
  const struct error_file *said = k->failure.said;
  k->reported = true;
  relay_tail(r->relay, k->pipes, tail);
  if (k->status) {
    /* The kernel's out-of-memory killer, else its error file, else its stderr. Of a worker that a signal has killed, stderr
     * has the reason only if the worker aborted itself. */
    bool by_signal = WIFSIGNALED(k->status), killed = by_signal && WTERMSIG(k->status) == SIGKILL;
    const char *oom = k->unasked && killed ? oom_watch_died(r->oom, &k->memory, k->pid) : NULL;
    const char *message = said ? said->message : "";
    /* PyTorch's spawn has the child's whole traceback in the message of its error file. */
    bool nested = strstr(message, "\nTraceback (most recent call last):") != NULL;
    if (oom)
      buf_puts(&reason, oom);
    else if (*message && !(nested && (exception_line(tail, &reason) || exception_line(message, &reason))))
      buf_puts(&reason, message);
    else if (!*message && (!by_signal || WTERMSIG(k->status) == SIGABRT) && !exception_line(tail, &reason))
      last_line(tail, &reason);
  }
  bool is_shown = output_route(&r->o.options->output, seen_rank(r, i), STD_ERR).shown; /* above the verdict */
  report(r, (struct supervisor_event){.kind = SUP_EXITED,
                                      .round = r->round,
                                      .local_rank = i,
                                      .when_ms = k->when_ms,
                                      .exited = {.status = k->status,
                                                 .unasked = k->unasked,
                                                 .lines_shown = tail[0] && is_shown,
                                                 .final = said && said->final},
                                      .error = buf_text(&reason),
                                      .interpreter = r->interpreter,
                                      .text = said && !tail[0] ? said->callstack : tail});
  buf_finish(&reason);
}

static void on_death_timer(uv_timer_t *timer) {
  report_deaths(timer->data);
}

/* Those that are due, and after the last one CLEAR. */
static void report_deaths(struct round_driver *r) {
  uint64_t now = boot_ms(), first = UINT64_MAX;
  if (r->closing) return;
  for (uint32_t i = 0; i < r->o.count; i++) {
    struct worker *k = &r->v[i];
    if (!k->exited || k->reported) continue;
    /* Its death is reported when all its words are here, or late. */
    uint64_t words = relay_is_drained(k->pipes) ? now : k->words_by_ms;
    uint64_t file = k->failure.reading ? k->file_by_ms : now;
    uint64_t look = r->look ? r->look_by_ms : now;
    uint64_t last = words > file ? words : file;
    uint64_t due = last > look ? last : look;
    if (due <= now)
      report_exit(r, i);
    else if (due < first)
      first = due;
  }
  if (first != UINT64_MAX) {
    loop_timer_in(&r->death_timer, on_death_timer, first - now);
  } else if (r->clear) {
    r->clear = false;
    read_workers(r); /* their last records before they died */
    if (nobody_lives(r)) sdk_server_close_round(r->sdk);
    report(r, (struct supervisor_event){
                  .kind = SUP_CLEAR, .round = r->round, .clear = {.orphans = r->killed, .kept = r->kept}});
  }
}

static void on_relay_wake(void *ctx) { /* in the relay's thread */
  struct round_driver *r = ctx;
  uv_async_send(&r->wake);
}

static void look_at_interpreter(void *room) {
  struct interpreter_look *l = room;
  char *found = interpreter_running(l->pid);
  if (found) snprintf(l->found, sizeof(l->found), "%s", found);
  free(found);
}

static void on_looked(void *ctx, void *room) {
  struct round_driver *r = ctx;
  const struct interpreter_look *l = room;
  r->look = NULL;
  if (l->found[0] && l->round == r->round) r->interpreter = xstrdup(l->found);
  report_deaths(r);
}

static void on_wake(uv_async_t *wake) {
  struct round_driver *r = wake->data;
  char trouble[RELAY_TROUBLE_MAX];
  /* A dead process does not show any more what it was, so this begins while it lives. Its PATH may name folders of a file
   * server that hangs, and then the loop must go on: one thread looks, and no other as long as it hangs. */
  struct interpreter_look l = {.round = r->round};
  for (uint32_t i = 0; i < r->o.count && !r->closing; i++) {
    const struct worker *k = &r->v[i];
    if (k->pipes && relay_take_traceback(k->pipes) && lives(k)) l.pid = k->pid;
  }
  if (l.pid && !r->look && !r->interpreter) {
    r->look = aside_start(r->o.loop, look_at_interpreter, &l, sizeof(l), on_looked, r, NULL);
    r->look_by_ms = boot_ms() + ERROR_FILE_MS;
  }
  while (!r->closing && relay_next_trouble(r->relay, trouble)) log_warn("%s", trouble);
  if (r->settling && relay_is_settled(r->relay)) {
    r->settling = false;
    r->o.on_suspended(r->o.ctx);
  }
  report_deaths(r);
}

static void on_error_file(void *ctx) {
  report_deaths(ctx);
}

static void note_failure(struct round_driver *r, int64_t local_rank, const char *text, const char *error) {
  char when[32];
  struct tm tm;
  const struct worker *k = local_rank >= 0 && local_rank < (int64_t)r->o.count ? &r->v[local_rank] : NULL;
  bool failed = k && k->exited && k->unasked && k->status;
  const char *file = failed && k->failure.said ? k->failure.file : NULL;
  time_t at = time(NULL) - (failed ? (time_t)((boot_ms() - k->when_ms) / 1000) : 0);
  r->cause = k;
  free(r->cause_text);
  free(r->cause_error);
  r->cause_text = xstrdup(text);
  r->cause_error = xstrdup(error);
  localtime_r(&at, &tm);
  strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
  log_warn("  at %s%s%s", when, file ? ", error file " : "", file ? file : "");
  if (file) r->o.logs->keep = true;
}

void round_hand_up(struct round_driver *r, int code) {
  const char *file = getenv("TORCHELASTIC_ERROR_FILE");
  const struct worker *k = r->cause && r->cause->failure.said ? r->cause : NULL;
  bool ours = k != NULL;
  if (!file || !*file) return;
  /* One file is to name the root cause. torchrun takes its first failed worker's. If the cause lies on another node, our
   * own first worker's error is what this node knows. */
  for (uint32_t i = 0; i < r->o.count && !ours; i++)
    if (r->v[i].failure.said && (!k || r->v[i].when_ms < k->when_ms)) k = &r->v[i];
  struct failure_cause cause = {.worker = k ? &k->failure : NULL,
                                .worker_status = k ? k->status : 0,
                                .text = r->cause_text,
                                .message = r->cause_error,
                                .code = code};
  failures_hand_up(&r->failures, file, &cause);
}

/* START. ----------------------------------------------------------------------------------------------------------- */

/* Each worker gets its own place; the rest is the same for all. */
static void open_socket(struct round_driver *r) {
  const struct start *start = r->start;
  struct sdk_welcome *v = xcalloc(r->o.count, sizeof(*v));
  for (uint32_t i = 0; i < r->o.count; i++) {
    v[i] = (struct sdk_welcome){
        .rank = (uint32_t)start->rank_base + i,
        .world_size = (uint32_t)start->world_size,
        .local_rank = seen_rank(r, i),
        .local_world_size = (uint32_t)r->o.env->local_world,
        .node_rank = (uint32_t)start->node_rank,
        .node_count = (uint32_t)start->nodes,
        .round = (uint32_t)start->round,
        .restart_count = (uint32_t)start->restarts_used,
        .store_port = r->o.env->worker_store ? 0 : (uint32_t)start->store_port,
    };
    snprintf(v[i].run_id, sizeof(v[i].run_id), "%s", r->o.env->run_id);
    snprintf(v[i].incarnation, sizeof(v[i].incarnation), "%s", start->incarnation);
    snprintf(v[i].head_addr, sizeof(v[i].head_addr), "%s", start->head_addr);
    snprintf(v[i].node_addr, sizeof(v[i].node_addr), "%s", start->node_addr);
  }
  sdk_server_open_round(r->sdk, v, r->o.count);
  free(v);
}

/* How the relay names a worker in this round, and the files of its output. */
struct naming {
  struct relay_source source;
  char *files[2][2]; /* of out and err: its file, the filtered one */
  struct buf prefix, label;
};

/* alone: the job has one worker. */
static bool wants_pty(const struct round_driver *r, uint32_t i, int std, bool alone) {
  const struct output_settings *output = &r->o.options->output;
  const struct output_route route = output_route(output, seen_rank(r, i), std);
  return output_wants_pty(output, &route, alone, isatty(std == STD_OUT ? STDOUT_FILENO : STDERR_FILENO));
}

static struct relay_place find_place(const struct round_driver *r, uint32_t i, int std, char *files[2]) {
  const char *name = std == STD_OUT ? "stdout.log" : "stderr.log";
  const char *filtered = std == STD_OUT ? "filtered_stdout.log" : "filtered_stderr.log";
  struct output_route route = output_route(&r->o.options->output, seen_rank(r, i), std);
  if (route.file) files[0] = log_dir_attempt_file(r->o.logs, r->round, seen_rank(r, i), name);
  if (route.filtered) files[1] = log_dir_attempt_file(r->o.logs, r->round, -1, filtered);
  return (struct relay_place){.shown = route.shown,
                              .pty = wants_pty(r, i, std, r->start->world_size == 1),
                              .needs_pty = r->o.options->output.pty,
                              .file = files[0],
                              .filtered = files[1]};
}

static void naming_init(struct naming *n, const struct round_driver *r, uint32_t i) {
  struct output_name name = {.role = r->o.options->role,
                             .rank = r->start->rank_base + i,
                             .world_size = r->start->world_size,
                             .local_rank = seen_rank(r, i),
                             .host = r->o.host};
  *n = (struct naming){.source = {.local_rank = i,
                                  .rank = (uint32_t)name.rank,
                                  .round = (uint32_t)r->start->round,
                                  .alone = r->start->world_size == 1}};
  output_prefix(&r->o.options->output, &name, &n->prefix);
  output_label(&r->o.options->output, &name, &n->label);
  n->source.prefix = buf_text(&n->prefix);
  n->source.label = buf_text(&n->label);
  n->source.out = find_place(r, i, STD_OUT, n->files[0]);
  n->source.err = find_place(r, i, STD_ERR, n->files[1]);
}

static void naming_finish(struct naming *n) {
  for (int k = 0; k < 4; k++) free(n->files[k / 2][k % 2]);
  buf_finish(&n->prefix);
  buf_finish(&n->label);
}

/* rdzv-trainers share the devices if there are more trainers than devices. A worker with --virtual-local-rank whose device
 * is not known counts on one of that number. `unseen` is filled with it. */
static struct env_job describe_job(const struct round_driver *r, uint32_t i, struct device *unseen) {
  struct env_job job = *r->o.env;
  const struct device *all;
  int n = r->o.options->command ? 0 : device_watch_list(r->devices, &all);
  const struct device *device = device_watch_get(r->devices, n > 0 ? i % (uint32_t)n : i);
  *unseen = (struct device){.vendor = GPU_NVIDIA};
  snprintf(unseen->entry, sizeof(unseen->entry), "%u", seen_rank(r, i));
  if (n > 0 || job.virtual_local_rank) job.alone = device ? device : unseen;
  job.socket = sdk_server_name(r->sdk);
  job.ras_addr = hang_watch_ras_addr(r->hang);
  job.device_uuid = device && device->uuid[0] ? device->uuid : NULL;
  return job;
}

static int spawn_worker(struct round_driver *r, uint32_t i, struct err *e) {
  struct worker *k = &r->v[i];
  struct device unseen;
  struct env_job job = describe_job(r, i, &unseen);
  struct naming n;
  int out = -1, err = -1;
  naming_init(&n, r, i);
  int rc = relay_open(r->relay, &n.source, &k->pipes, &out, &err, e);
  naming_finish(&n);
  if (rc) return rc;
  char **argv = command_line_for(r->o.argv, seen_rank(r, i));
  char *error_file = log_dir_attempt_file(r->o.logs, r->round, seen_rank(r, i), "error.json");
  failure_set_file(&k->failure, error_file);
  job.error_file = error_file;
  char **env = env_create(r->o.base_env, r->start, &job, i);
  unsigned terminals = (isatty(out) ? GUARD_TTY_OUT : 0U) | (isatty(err) ? GUARD_TTY_ERR : 0U);
  const struct cpus *cpus = i < r->o.numa->n && cpus_count(&r->o.numa->v[i]) ? &r->o.numa->v[i] : NULL;
  rc = guard_spawn(&r->guard,
                   &(struct guard_spawn){.round = r->round,
                                         .local_rank = i,
                                         .count = r->o.count,
                                         .argv = (const char *const *)argv,
                                         .env = (const char *const *)env,
                                         .out = out,
                                         .err = err,
                                         .warm = r->warm && terminals == r->terminals,
                                         .cpus = cpus,
                                         .cpus_size = sizeof(*cpus)},
                   e);
  env_destroy(env);
  free(argv);
  free(error_file);
  close(out);
  close(err);
  return rc;
}

/* False: the guard is gone, and that event follows. */
static bool try_to_spawn(struct round_driver *r, uint32_t i) {
  struct err e = ERR_INIT;
  int rc = spawn_worker(r, i, &e);
  if (rc && rc != -EPIPE)
    report(r, (struct supervisor_event){.kind = SUP_EXEC_FAILED,
                                        .round = r->round,
                                        .local_rank = i,
                                        .when_ms = boot_ms(),
                                        .code = -rc,
                                        .text = e.text});
  return rc != -EPIPE;
}

/* Its record, for a new round. One that goes on keeps its process, its pipes and its error file. */
static void begin_worker(struct round_driver *r, uint32_t i, bool goes_on) {
  struct worker *k = &r->v[i];
  if (!goes_on) {
    relay_release(r->relay, k->pipes);
    k->pipes = NULL;
    k->pid = 0;
    failure_finish(&k->failure);
  }
  failure_clear(&k->failure);
  k->adopting = goes_on;
  k->exited = k->reported = k->unasked = false;
  k->sign_ms = 0;
}

/* The devices are free. */
static void begin_round(void *ctx) {
  struct round_driver *r = ctx;
  const struct start *start = r->start;
  r->waits = false;
  r->round_before = r->round;
  r->round = (uint32_t)start->round;
  r->clear = r->by_hand = false;
  r->cause = NULL;
  free(r->cause_text);
  free(r->cause_error);
  free(r->interpreter);
  r->cause_text = r->cause_error = r->interpreter = NULL;
  for (uint32_t i = 0; i < r->o.count; i++) {
    bool goes_on = local_set_has(&r->stay, i) && lives(&r->v[i]); /* a death may be known here and not reported yet */
    begin_worker(r, i, goes_on);
  }
  open_socket(r);
  hang_watch_begin(r->hang, start);
  /* Error files have a folder even if no log files were asked for. */
  struct err e = ERR_INIT;
  if (!r->o.logs->dir && !r->no_files && !output_has_no_files(&r->o.options->output) &&
      log_dir_make(r->o.logs, NULL, true, r->o.env->run_id, &e)) {
    r->no_files = true;
    log_warn("%s; workers have no error files", e.text);
  }
  bool any = false;
  for (uint32_t i = 0; i < r->o.count; i++) {
    struct naming n;
    if (!r->v[i].adopting) continue;
    any = true;
    naming_init(&n, r, i);
    relay_rename(r->relay, r->v[i].pipes, &n.source);
    naming_finish(&n);
  }
  bool takes = !any || guard_adopt(&r->guard, r->round, r->o.count, &e) == 0;
  if (!takes) give_up_guard(r, &e);
  for (uint32_t i = 0; takes && i < r->o.count; i++) takes = r->v[i].adopting || try_to_spawn(r, i);
  if (!r->oom) r->oom = oom_watch_create(NULL, NULL, NULL); /* while the guard starts the first workers */
  if (start->node_rank != 0 || r->o.options->store != STORE_AGENT) return;
  store_watch_begin(r->store_watch, &(struct store_watch_round){.addr = start->head_addr,
                                                                .port = (uint16_t)start->store_port,
                                                                .world_size = start->world_size,
                                                                .rank_base = start->rank_base});
}

/* A worker's device is not free, and nothing was spawned. START still waits: a stop follows. */
static void on_held(void *ctx, uint32_t local_rank, const char *text) {
  struct round_driver *r = ctx;
  report(r, (struct supervisor_event){.kind = SUP_DEVICE_HELD,
                                      .round = (uint32_t)r->start->round,
                                      .local_rank = local_rank,
                                      .when_ms = boot_ms(),
                                      .device = device_of(r, local_rank),
                                      .text = text});
}

void round_start(struct round_driver *r, struct start *start, const struct bytes *guests,
                 const struct local_set *stay) {
  struct err e = ERR_INIT;
  access_check_know(round_store_access(r->o.store), start);
  int rc = start->node_rank == 0 ? round_store_open(r->o.store, start, guests, &e) : 0;
  if (rc) {
    report(r, (struct supervisor_event){.kind = SUP_EXEC_FAILED,
                                        .round = (uint32_t)start->round,
                                        .when_ms = boot_ms(),
                                        .code = -rc,
                                        .text = e.text});
    start_free(start);
    return;
  }
  start_free(r->start);
  r->start = start;
  r->stay = *stay;
  r->waits = true;
  pid_t *pids = xcalloc(r->o.count, sizeof(*pids));
  get_pids(r, pids);
  device_watch_hold(r->devices, start->round, stay, pids);
  free(pids);
}

int round_idle_gpus(const struct round_driver *r, struct buf *why) {
  const struct device *all;
  int n = device_watch_list(r->devices, &all);
  bool used = r->o.devices.certain || n == (int)r->o.count, idle = !r->waits && nobody_lives(r);
  if (why && !idle) buf_puts(why, "workers run on its GPUs");
  return used && idle && n > 0 ? n : 0;
}

char **round_env(const struct round_driver *r, uint32_t round) {
  if (!r->start || (uint32_t)r->start->round != round) return NULL;
  struct device unseen;
  struct env_job job = describe_job(r, 0, &unseen);
  return env_create(r->o.base_env, r->start, &job, 0);
}

/* The end of a round. ---------------------------------------------------------------------------------------------- */

static void arm_guard_timer(struct round_driver *r);

static void stop_trees(struct round_driver *r, const struct supervisor_effect *fx) {
  const struct local_set *keep = &fx->stop_trees.keep;
  uint32_t round = fx->round, grace_ms = (uint32_t)fx->stop_trees.grace_ms;
  struct err e = ERR_INIT;
  store_watch_end(r->store_watch);
  device_watch_cancel(r->devices);
  if (r->waits) {
    /* Workers that were kept for a round that has not begun are parked as before. */
    r->waits = false;
    for (uint32_t i = 0; i < r->o.count; i++)
      if (local_set_has(&r->stay, i))
        report(r, (struct supervisor_event){.kind = SUP_PARKED, .round = (uint32_t)r->start->round, .local_rank = i});
  }
  hang_watch_end(r->hang);
  if (round > r->round) { /* nothing of the new round was spawned, but the kept workers belong to it */
    r->round_before = r->round;
    r->round = round;
  }
  guard_watch_stop(&r->watch, boot_ms(), round, grace_ms, keep);
  arm_guard_timer(r);
  if (guard_stop(&r->guard, round, fx->stop_trees.signo, grace_ms, keep, &e)) give_up_guard(r, &e);
}

/* The guard's events. ---------------------------------------------------------------------------------------------- */

static void on_guard_gone(struct round_driver *r) {
  uv_poll_stop(&r->poll);
  if (r->closing) return;
  log_debug("the guard (pid %d) is gone: killing all its processes", (int)r->guard.pid);
  int left = guard_reap_orphans(r->o.daemon_pid(r->o.ctx), REAP_MS);
  if (r->guard.pid_fd >= 0) {
    char *marked = xasprintf("RDZV_AGENT_SOCKET=%s", sdk_server_name(r->sdk));
    left += guard_kill_marked(marked, REAP_MS);
    free(marked);
  }
  for (uint32_t i = 0; i < r->o.count; i++) r->v[i].words_by_ms = r->v[i].file_by_ms = 0;
  r->look_by_ms = 0;
  r->clear = false;
  report_deaths(r);
  report(r, (struct supervisor_event){.kind = SUP_GUARD_GONE, .round = r->round, .survivors = (uint32_t)left});
}

#define COLD "no warm start, workers import their modules themselves: "

static void log_template(const struct guard_event *g) {
  switch ((enum guard_template_word)g->error) {
  case TEMPLATE_BUDGET: break;
  case TEMPLATE_READY: log_debug("template (pid %d): forks workers, modules: %s", (int)g->pid, g->text); break;
  case TEMPLATE_WORDS:
    log_debug("template (pid %d): %s reads the script's arguments, so it is for the same ones", (int)g->pid, g->text);
    break;
  case TEMPLATE_LEARNED: log_debug("template (pid %d): has learned, modules: %s", (int)g->pid, g->text); break;
  case TEMPLATE_AGAIN: log_debug("template (pid %d): begins again: %s", (int)g->pid, g->text); break;
  case TEMPLATE_DOUBT:
    if (*g->text) log_info(COLD "%s", g->text);
    break;
  }
}

static void on_guard_event(struct round_driver *r, const struct guard_event *g) {
  bool here = g->local_rank < r->o.count, known = here && g->round == r->round;
  struct worker *k = here ? &r->v[g->local_rank] : NULL;
  struct supervisor_event ev = {
      .kind = SUP_TICK, .round = g->round, .local_rank = g->local_rank, .when_ms = g->when_ms, .text = g->text};
  switch (g->kind) {
  case GUARD_STARTED:
    if (known && !k->adopting) oom_watch_begin(r->oom, &k->memory, g->pid);
    if (known) {
      k->pid = g->pid;
      k->adopting = false;
    }
    ev.kind = SUP_SPAWNED;
    ev.pid = g->pid;
    ev.device = device_of(r, g->local_rank);
    break;
  case GUARD_EXEC_FAILED:
    ev.kind = SUP_EXEC_FAILED;
    ev.code = g->error;
    ev.device = device_of(r, g->local_rank);
    break;
  case GUARD_UNBOUND:
    log_warn("the worker with local rank %u cannot be bound to its CPUs, so it runs on all CPUs of the agent: %s",
             g->local_rank, strerror(g->error));
    break;
  case GUARD_EXITED:
    if (known) {
      k->exited = true;
      k->pid = g->pid;
      k->status = g->status;
      k->unasked = g->unasked && !(r->by_hand && WIFSIGNALED(g->status) && WTERMSIG(g->status) == SIGKILL);
      k->when_ms = g->when_ms;
      k->words_by_ms = boot_ms() + LAST_WORDS_MS;
      k->file_by_ms = boot_ms() + ERROR_FILE_MS;
      if (k->unasked && g->status) failures_read(&r->failures, &k->failure, g->local_rank);
    } else if (here && g->round == r->round_before && k->adopting) { /* it died before the guard could adopt it */
      begin_worker(r, g->local_rank, false);
      try_to_spawn(r, g->local_rank);
    }
    break;
  case GUARD_CLEAR:
    guard_watch_clear(&r->watch, g->round, &g->kept);
    if (g->round == r->round) {
      r->clear = true;
      r->killed = g->killed;
      r->kept = g->kept;
    } else {
      report(r, (struct supervisor_event){
                    .kind = SUP_CLEAR, .round = g->round, .clear = {.orphans = g->killed, .kept = g->kept}});
    }
    break;
  case GUARD_LEFTOVER:
    if (g->error == SIGKILL)
      log_warn("pid %d (%s), which a finished worker left running, gets SIGKILL: it has not ended in the %d s since "
               "SIGTERM; a worker should wait for it before it exits",
               (int)g->pid, g->text, GUARD_LEFTOVER_STOP_MS / 1000);
    else
      log_info("pid %d (%s), which a finished worker left running, gets SIGTERM: all workers have finished; it "
               "has %d s to end",
               (int)g->pid, g->text, GUARD_LEFTOVER_STOP_MS / 1000);
    break;
  case GUARD_SUSPENDED:
    if (!r->suspended) break; /* it goes on already */
    log_info("the job is suspended: its workers on this node are stopped until it continues (fg, bg, SIGCONT)");
    r->settling = true;
    relay_hide(r->relay, true);
    break;
  case GUARD_TEMPLATE:
    r->template = g->error == TEMPLATE_DOUBT ? 0 : g->pid;
    log_template(g);
    break;
  case GUARD_FENCED: ev.kind = SUP_FENCED; break;
  case GUARD_STUCK:
    guard_watch_stuck(&r->watch);
    ev.kind = SUP_STUCK;
    ev.stuck.pid = g->pid;
    ev.stuck.state = (char)g->error;
    ev.stuck.denied = g->denied;
    ev.stuck.uid = g->uid;
    break;
  case GUARD_GONE:
    guard_watch_gone(&r->watch);
    on_guard_gone(r);
    break;
  }
  if (ev.kind != SUP_TICK) report(r, ev);
}

static void read_guard(struct round_driver *r) {
  struct guard_event ev;
  while (!r->closing && guard_next(&r->guard, &ev)) on_guard_event(r, &ev);
  report_deaths(r);
}

static void on_poll(uv_poll_t *poll, int status, int events) {
  read_guard(poll->data);
}

/* The watch over the guard. ---------------------------------------------------------------------------------------- */

static void on_guard_timer(uv_timer_t *timer) {
  struct round_driver *r = timer->data;
  enum guard_watch_act act;
  read_guard(r);
  while (!r->closing && (act = guard_watch_next(&r->watch, boot_ms())) != GUARD_WATCH_REST) {
    if (act == GUARD_WATCH_WAKE) guard_wake(&r->guard);
    if (act == GUARD_WATCH_KILL) {
      if (!r->by_hand && !r->watch.stuck)
        log_warn("the guard (pid %d) has not killed the processes in time: is it stopped, traced or frozen? "
                 "Killing its processes from here",
                 (int)r->guard.pid);
      r->by_hand = true;
      guard_kill_trees(&r->guard, KILL_MS);
    }
    if (act == GUARD_WATCH_GIVE_UP) {
      log_error("the guard (pid %d) does not report the end of the stop: is it stopped, traced or frozen? Killing it",
                (int)r->guard.pid);
      guard_sigkill(&r->guard);
    }
  }
  arm_guard_timer(r);
}

static void arm_guard_timer(struct round_driver *r) {
  if (!r->closing) loop_timer_at(&r->guard_timer, on_guard_timer, guard_watch_deadline(&r->watch), boot_ms());
}

/* Other effects. --------------------------------------------------------------------------------------------------- */

static void give_ids(struct round_driver *r, const struct supervisor_effect *fx) {
  const struct bytes *all = fx->bytes;
  struct sdk_ids record = {.round = fx->round, .version = (int32_t)fx->ids.version, .count = fx->ids.count};
  if (!fx->ids.count) record.code = -ENOTSUP;
  if (!all) record.count = 0;
  if (all) memcpy(record.ids, all->data, all->len);
  snprintf(record.text, sizeof(record.text), "%s", fx->text);
  sdk_server_ids(r->sdk, &record);
}

void round_carry_out(struct round_driver *r, const struct supervisor_effect *fx) {
  struct err e = ERR_INIT;
  int rc = 0;
  switch (fx->kind) {
  case SUP_SHUT_STORE:
    store_watch_end(r->store_watch);
    round_store_shut(r->o.store);
    break;
  case SUP_STOP_TREES: stop_trees(r, fx); break;
  case SUP_LOOK:
    read_workers(r); /* records from their socket are reported first */
    hang_watch_look(r->hang, r->v);
    break;
  case SUP_PROBE: hang_watch_probe(r->hang, r->v, fx->probe.suspect, fx->probe.level, !fx->probe.evidence_only); break;
  case SUP_FENCE_AT: rc = guard_fence(&r->guard, fx->fence_at.at_ms, r->watch.patience_ms, &e); break;
  case SUP_KILL: rc = guard_signal(&r->guard, (int)fx->kill.local_rank, fx->kill.signo, &e); break;
  case SUP_REQUEST: sdk_server_request(r->sdk, &fx->request.of, fx->request.bits, fx->request.checkpoint); break;
  case SUP_IDS: give_ids(r, fx); break;
  case SUP_STATUS: relay_status(r->relay, fx->text); break;
  case SUP_TOLD: note_failure(r, fx->told.local_rank, fx->text, fx->extra); break;
  default: break;
  }
  if (rc) give_up_guard(r, &e);
}

void round_suspend(struct round_driver *r, bool on) {
  struct err e = ERR_INIT;
  if (r->closing) return;
  r->suspended = on;
  r->settling = false;
  if (!on) relay_hide(r->relay, false);
  hang_watch_suspend(r->hang, on);
  if (guard_suspend(&r->guard, on, &e)) give_up_guard(r, &e);
}

void round_resize(struct round_driver *r) {
  struct err e = ERR_INIT;
  if (r->closing) return;
  relay_resize(r->relay);
  if (guard_signal(&r->guard, -1, SIGWINCH, &e)) give_up_guard(r, &e);
}

void round_death_report(struct round_driver *r, const struct sockaddr *addr, socklen_t len, const struct key *key,
                        const struct bytes *b) {
  struct err e = ERR_INIT;
  if (guard_death_report(&r->guard, addr, len, key, b ? b->data : NULL, b ? b->len : 0, &e)) give_up_guard(r, &e);
}

struct relay *round_relay(struct round_driver *r) {
  return r->relay;
}

/* Beginning and end. ----------------------------------------------------------------------------------------------- */

static bool is_store_used(void *ctx) {
  const struct round_driver *r = ctx;
  return round_store_is_used(r->o.store);
}

static void start_template(struct round_driver *r) {
  struct err e = ERR_INIT;
  const char *mode = r->o.options->warm;
  if (strcmp(mode, "off") == 0 || !warm_fits(r->o.argv)) return;
  bool alone = r->o.count == 1 && r->o.options->nnodes.max == 1;
  struct guard_tty tty = {.slave = -1, .master = -1};
  if (wants_pty(r, 0, STD_OUT, alone)) tty.streams |= GUARD_TTY_OUT;
  if (wants_pty(r, 0, STD_ERR, alone)) tty.streams |= GUARD_TTY_ERR;
  if (tty.streams &&
      pty_open(PTY_OUTPUT, isatty(STDOUT_FILENO) ? STDOUT_FILENO : STDERR_FILENO, &tty.master, &tty.slave))
    tty.streams = 0; /* neither will there be one for a worker */
  r->terminals = tty.streams;
  char **env = env_create_common(r->o.base_env, r->o.count);
  size_t n = 0;
  while (env[n]) n++;
  env = xrealloc(env, (n + 2) * sizeof(*env));
  env[n] = xasprintf("RDZV_TEMPLATE_MODULES=%s", strcmp(mode, "auto") == 0 ? "" : mode);
  env[n + 1] = NULL;
  const struct guard_plan plan = {.argv = (const char *const *)r->o.argv,
                                  .own = warm_own_words(r->o.argv),
                                  .env = (const char *const *)env,
                                  .zip = warm_zip,
                                  .zip_len = warm_zip_len,
                                  .tty = tty};
  r->warm = guard_template(&r->guard, &plan, &e) == 0;
  if (!r->warm) log_warn(COLD "%s", e.text);
  if (tty.streams) {
    close(tty.master);
    close(tty.slave);
  }
  env_destroy(env);
}

int round_create(const struct round_options *o, const struct guard *g, struct round_driver **out, struct err *e) {
  struct round_driver *r = xcalloc(1, sizeof(*r));
  r->o = *o;
  r->guard = *g;
  r->v = xcalloc(o->count, sizeof(*r->v));
  rations_init(&r->refused, 0); /* its keys are user numbers, which a peer cannot choose to collide */
  *out = r;
  uv_async_init(o->loop, &r->wake, on_wake);
  uv_timer_init(o->loop, &r->death_timer);
  uv_timer_init(o->loop, &r->guard_timer);
  uv_poll_init(o->loop, &r->poll, g->fd);
  r->wake.data = r->death_timer.data = r->guard_timer.data = r->poll.data = r->sdk_poll.data = r;
  uv_unref((uv_handle_t *)&r->wake);
  uv_unref((uv_handle_t *)&r->guard_timer);
  struct device_watch_options devices = o->devices;
  devices.loop = o->loop;
  devices.env = o->base_env;
  devices.workers = o->count;
  devices.on_free = begin_round;
  devices.on_held = on_held;
  devices.ctx = r;
  r->devices = device_watch_create(&devices);
  r->store_watch = store_watch_create(&(struct store_watch_options){
      .loop = o->loop, .count = o->count, .get_pids = get_pids, .is_used = is_store_used, .ctx = r});
  r->failures = (struct failures){.loop = o->loop, .on_read = on_error_file, .ctx = r};
  const struct relay_options relay = {
      .out = STDOUT_FILENO,
      .err = STDERR_FILENO,
      .status = isatty(STDERR_FILENO),
      .group = o->group,
      .out_filters = &o->options->output.duplicate_stdout_filters,
      .err_filters = &o->options->output.duplicate_stderr_filters,
      .workers = o->count,
      .wake = on_relay_wake,
      .ctx = r,
  };
  int rc = relay_create(&r->relay, &relay, e);
  if (rc == 0) r->hang = hang_watch_create(o, r->relay);
  if (rc == 0) rc = sdk_server_create(&r->sdk, NULL, e);
  if (rc) return rc;
  uv_poll_init(o->loop, &r->sdk_poll, sdk_server_fd(r->sdk));
  uv_poll_start(&r->sdk_poll, UV_READABLE, on_sdk_poll);
  uv_poll_start(&r->poll, UV_READABLE | UV_DISCONNECT, on_poll);
  guard_watch_init(&r->watch, boot_ms(), (uint64_t)o->options->lease_ms);
  arm_guard_timer(r);
  start_template(r);
  return 0;
}

void round_close(struct round_driver *r) {
  if (r->closing) return;
  r->closing = true;
  device_watch_cancel(r->devices);
  uv_close((uv_handle_t *)&r->poll, NULL);
  uv_close((uv_handle_t *)&r->death_timer, NULL);
  uv_close((uv_handle_t *)&r->sdk_poll, NULL);
  uv_close((uv_handle_t *)&r->guard_timer, NULL);
  if (r->look) aside_leave(r->look);
  r->look = NULL;
  r->spare = r->o.daemon_pid(r->o.ctx);
  struct err e = ERR_INIT;
  if (!r->guard.may_stay || r->guard.fd < 0 || !r->template || !nobody_lives(r))
    guard_leave(&r->guard);
  else if (guard_keep(&r->guard, (uint64_t)r->o.options->warm_keep_ms, r->template, &e))
    log_info("the template does not stay: %s", e.text);
  else
    log_debug("the template stays for %" PRId64 " s, for the next start (rdzvctl warm)",
              r->o.options->warm_keep_ms / 1000);
}

static void on_wake_closed(uv_handle_t *handle) {
  struct round_driver *r = handle->data;
  sdk_server_destroy(r->sdk);
  for (uint32_t i = 0; i < r->o.count; i++) failure_finish(&r->v[i].failure);
  oom_watch_destroy(r->oom);
  start_free(r->start);
  rations_finish(&r->refused);
  free(r->cause_text);
  free(r->cause_error);
  free(r->interpreter);
  free(r->v);
  free(r);
}

void round_destroy(struct round_driver *r, uint32_t deadline_ms) {
  if (nobody_lives(r)) relay_close(r->relay); /* nobody writes any more: its thread ends while the guard does */
  guard_finish(&r->guard, deadline_ms);
  if (r->guard.pid > 0) guard_reap_orphans(r->spare, REAP_MS);
  device_watch_destroy(r->devices);
  store_watch_destroy(r->store_watch);
  hang_watch_destroy(r->hang);
  relay_destroy(r->relay, RELAY_FLUSH_MS);
  uv_close((uv_handle_t *)&r->wake, on_wake_closed);
}
