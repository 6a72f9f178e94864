/* How a round begins on this node: who is spawned, and who goes on.
 *
 *   spawned: relay_open, env_create, guard_spawn
 *   kept from the round before: relay_rename, its place through its socket, guard_adopt (once for all of them, first)
 *
 * Either way the guard answers STARTED, and from there on the two are the same. One that was kept may die just before it is adopted; the guard tells that
 * with the number of the old round, and then it is spawned like the others: nobody is charged for who was waiting.
 *
 * Whatever goes wrong with a single worker (no descriptors left, an environment that is too large) is a worker that could not be started. */

#include "agent/workers/round.h"
#include "agent/workers_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/options/command_line.h"
#include "agent/output/output.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"

/* What the worker, and whoever reads its output, takes for its local rank. */
static uint32_t seen_rank(const struct workers *w, uint32_t i) {
  return (uint32_t)w->o.env->first + i;
}

/* Every worker is told its own place; the rest is the same for all. */
static void open_round(struct workers *w, const struct start *start) {
  struct sdk_welcome *v = xcalloc(w->o.count, sizeof(*v));
  for (uint32_t i = 0; i < w->o.count; i++) {
    v[i] = (struct sdk_welcome){
        .rank = (uint32_t)start->rank_base + i,
        .world_size = (uint32_t)start->world_size,
        .local_rank = seen_rank(w, i),
        .local_world_size = (uint32_t)w->o.env->local_world,
        .node_rank = (uint32_t)start->node_rank,
        .node_count = (uint32_t)start->nodes,
        .round = (uint32_t)start->round,
        .restart_count = (uint32_t)start->restarts_used,
        .store_port = w->o.env->worker_store ? 0 : (uint32_t)start->store_port,
    };
    snprintf(v[i].run_id, sizeof(v[i].run_id), "%s", w->o.env->run_id);
    snprintf(v[i].incarnation, sizeof(v[i].incarnation), "%s", start->incarnation);
    snprintf(v[i].head_addr, sizeof(v[i].head_addr), "%s", start->head_addr);
    snprintf(v[i].node_addr, sizeof(v[i].node_addr), "%s", start->node_addr);
  }
  sdk_server_open_round(w->sdk, v, w->o.count);
  free(v);
}

struct place {
  struct relay_place to;
  char *file, *filtered;
};

static struct place find_place(const struct workers *w, uint32_t i, int std) {
  const char *name = std == STD_OUT ? "stdout.log" : "stderr.log";
  const char *filtered = std == STD_OUT ? "filtered_stdout.log" : "filtered_stderr.log";
  struct output_route r = output_route(w->o.options, seen_rank(w, i), std);
  struct place p = {.to.shown = r.shown};
  if (r.file) p.to.file = p.file = log_dir_attempt_file(w->o.logs, w->round, seen_rank(w, i), name);
  if (r.filtered) p.to.filtered = p.filtered = log_dir_attempt_file(w->o.logs, w->round, -1, filtered);
  return p;
}

static void place_finish(struct place *p) {
  free(p->file);
  free(p->filtered);
}

/* What the relay calls a worker in this round, and where its output goes. */
struct named {
  struct relay_worker to;
  struct place out, err;
  struct buf prefix, label;
};

static void name_worker(const struct workers *w, const struct start *start, uint32_t i, struct named *n) {
  struct output_name name = {.rank = start->rank_base + i,
                             .world_size = start->world_size,
                             .local_rank = seen_rank(w, i),
                             .host = w->o.host};
  *n = (struct named){.out = find_place(w, i, STD_OUT), .err = find_place(w, i, STD_ERR)};
  output_prefix(w->o.options, &name, &n->prefix);
  output_label(w->o.options, &name, &n->label);
  n->to = (struct relay_worker){.round = w->round,
                                .local_rank = i,
                                .prefix = buf_text(&n->prefix),
                                .label = buf_text(&n->label),
                                .alone = start->world_size == 1,
                                .out = n->out.to,
                                .err = n->err.to};
}

static void named_finish(struct named *n) {
  place_finish(&n->out);
  place_finish(&n->err);
  buf_finish(&n->prefix);
  buf_finish(&n->label);
}

static int open_output(struct workers *w, const struct start *start, uint32_t i, int *out, int *err,
                       struct err *e) {
  struct named n;
  name_worker(w, start, i, &n);
  int rc = relay_open(w->relay, &n.to, out, err, e);
  named_finish(&n);
  return rc;
}

/* Error files have a place even where nobody asked for files. */
static void need_logs(struct workers *w) {
  struct err e = ERR_INIT;
  if (w->o.logs->dir || w->no_files || output_has_no_files(w->o.options)) return;
  if (log_dir_make(w->o.logs, NULL, w->o.env->run_id, &e) == 0) return;
  w->no_files = true;
  log_warn("%s; workers cannot say in a file what they fail of", e.text);
}

/* Who was started in an earlier round has the error file of that one in its environment. */
static void begin_failures(struct workers *w) {
  struct local_set stay = {{0}};
  for (uint32_t i = 0; i < w->o.count; i++)
    if (w->v[i].adopting) local_set_add(&stay, i);
  failures_begin(w->failures, &stay);
}

/* Where rdzv-trainers are more than devices, they share them. */
static struct env_job describe_job(const struct workers *w, uint32_t i) {
  struct env_job job = *w->o.env;
  int n = w->o.options->command ? 0 : device_watch_count(w->o.devices);
  const struct device *device = device_watch_get(w->o.devices, n ? i % (uint32_t)n : i);
  job.socket = sdk_server_name(w->sdk);
  job.devices = n;
  job.device_uuid = device && device->uuid[0] ? device->uuid : NULL;
  return job;
}

char **workers_env(const struct workers *w, const struct start *start, uint32_t local_rank) {
  struct env_job job = describe_job(w, local_rank);
  return env_create(w->o.base_env, start, &job, local_rank);
}

static int spawn_one(struct workers *w, const struct start *start, uint32_t i, struct err *e) {
  struct env_job job = describe_job(w, i);
  int out = -1, err = -1;
  int rc = open_output(w, start, i, &out, &err, e);
  if (rc) return rc;
  char **argv = command_line_for(w->o.argv, seen_rank(w, i));
  char *error_file = log_dir_attempt_file(w->o.logs, w->round, seen_rank(w, i), "error.json");
  failures_name(w->failures, i, error_file);
  job.error_file = error_file;
  char **env = env_create(w->o.base_env, start, &job, i);
  const struct cpus *cpus = i < w->o.numa->n && cpus_count(&w->o.numa->v[i]) ? &w->o.numa->v[i] : NULL;
  rc = guard_spawn(&w->guard,
                   &(struct guard_spawn){.round = w->round,
                                         .local_rank = i,
                                         .count = w->o.count,
                                         .argv = (const char *const *)argv,
                                         .env = (const char *const *)env,
                                         .out = out,
                                         .err = err,
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
static bool try_to_spawn(struct workers *w, uint32_t i) {
  struct err e = ERR_INIT;
  int rc = spawn_one(w, w->start, i, &e);
  if (rc && rc != -EPIPE)
    workers_tell(w, (struct supervisor_event){.kind = SUP_EXEC_FAILED,
                                              .round = w->round,
                                              .local_rank = i,
                                              .error = -rc,
                                              .when_ms = boot_ms(),
                                              .text = e.text});
  return rc != -EPIPE;
}

/* It was to be adopted, and had died before the guard heard of that. */
void workers_spawn_again(struct workers *w, uint32_t i) {
  if (!w->v[i].adopting) return;
  w->v[i] = (struct worker){0};
  try_to_spawn(w, i);
}

/* Who stays, of those that are to: a death may be known here that was not told yet. */
static struct worker *take_over(struct workers *w, const struct local_set *stay) {
  struct worker *v = xcalloc(w->o.count, sizeof(*v));
  for (uint32_t i = 0; stay && i < w->o.count; i++)
    if (local_set_has(stay, i) && w->v[i].pid > 0 && !w->v[i].exited)
      v[i] = (struct worker){.pid = w->v[i].pid, .adopting = true};
  return v;
}

static void rename_output(struct workers *w, uint32_t i) {
  struct named n;
  name_worker(w, w->start, i, &n);
  relay_rename(w->relay, &n.to);
  named_finish(&n);
}

static bool adopt(struct workers *w) {
  struct err e = ERR_INIT;
  bool any = false;
  for (uint32_t i = 0; i < w->o.count; i++) {
    if (!w->v[i].adopting) continue;
    any = true;
    rename_output(w, i);
  }
  int rc = any ? guard_adopt(&w->guard, w->round, w->o.count, &e) : 0;
  if (rc) workers_give_guard_up(w, &e);
  return rc == 0;
}

void workers_spawn(struct workers *w, const struct start *start, const struct local_set *stay) {
  struct worker *v = take_over(w, stay);
  w->round_before = w->round;
  w->round = (uint32_t)start->round;
  w->clear = w->by_hand = false;
  free(w->v);
  w->v = v;
  start_free(w->start);
  w->start = start_copy(start);
  open_round(w, start);
  hang_watch_begin(w->hang, w->round, start->rank_base);
  begin_failures(w);
  need_logs(w);
  if (!adopt(w)) return;
  for (uint32_t i = 0; i < w->o.count; i++)
    if (!w->v[i].adopting && !try_to_spawn(w, i)) return;
}

void workers_pids(const struct workers *w, pid_t *pids) {
  for (uint32_t i = 0; i < w->o.count; i++) pids[i] = w->v[i].exited ? 0 : w->v[i].pid;
}
