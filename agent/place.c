/* What the machine has, put together from the pure parts: devices, numa, advice, env.
 *
 * All of it is asked before the guard is forked, once: not per round, since what is said would only be said again. The
 * affinity is the agent's own, which its workers inherit. */

#include "agent/place.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>
#include "agent/advice.h"
#include "agent/devices.h"
#include "agent/env.h"
#include "common/log.h"

/* CPUs that this process may use. */
static void own_cpus(struct cpus *c) {
  memset(c, 0, sizeof(*c));
  if (sched_getaffinity(0, sizeof(*c), (cpu_set_t *)(void *)c) == 0) return;
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  for (long i = 0; i < (n < 1 ? 1 : n); i++) cpus_add(c, (uint32_t)i);
}

static int64_t count_cpus(void) {
  struct cpus c;
  own_cpus(&c);
  return cpus_count(&c);
}

int place_count_workers(const struct agent_options *o, char *const *env, int64_t *workers, struct err *e) {
  int64_t n = o->nproc;
  if (n == OPTIONS_NPROC_GPU || n == OPTIONS_NPROC_AUTO) {
    int gpus = devices_count("", env);
    if (gpus == 0 && n == OPTIONS_NPROC_GPU)
      return err_set(
          e, -EINVAL,
          "--nproc gpu: there is no GPU here that workers could see (nothing in "
          "/proc/driver/nvidia/gpus and /dev, or CUDA_VISIBLE_DEVICES hides it): give their number, or "
          "auto");
    n = gpus ? gpus : OPTIONS_NPROC_CPU;
  }
  if (n == OPTIONS_NPROC_CPU) n = count_cpus();
  *workers = n < 1 ? 1 : n > WORKERS_MAX ? WORKERS_MAX : n;
  return 0;
}

/* Every line of text, at its level. */
static void say_lines(enum log_level level, const struct buf *text) {
  const char *p = buf_text(text);
  for (size_t n; *p; p += n + (p[n] == '\n')) {
    n = strcspn(p, "\n");
    log_line(level, "%.*s", (int)n, p);
  }
}

static void prepare_numa(const struct agent_options *o, char *const *env, int64_t workers, struct numa *numa,
                         struct buf *info, struct buf *trouble) {
  struct cpus own;
  own_cpus(&own);
  numa_plan(numa, "", env, o->numa, &own, (uint32_t)workers, info, trouble);
  for (uint32_t i = 0; i < numa->n; i++) {
    struct buf list = BUF_INIT;
    cpus_format(&numa->v[i], &list);
    log_debug("numa: local rank %u is bound to CPUs %s", i, list.len ? buf_text(&list) : "-");
    buf_finish(&list);
  }
}

int place_prepare(const struct agent_options *o, char *const *env, int64_t workers, struct numa *numa,
                  struct err *e) {
  struct buf info = BUF_INIT, trouble = BUF_INIT;
  struct env_job job = {.workers = workers, .virtual_local_rank = o->virtual_local_rank};
  *numa = (struct numa){.v = NULL};
  int rc = env_check(env, &job, e);
  if (rc) return rc;
  if (advice_cpus(count_cpus(), workers, env, &trouble)) buf_putc(&trouble, '\n');
  if (o->command && advice_threads(workers, env, &info))
    buf_putc(&info, '\n'); /* the trainer has --threads */
  prepare_numa(o, env, workers, numa, &info, &trouble);
  if (!o->quiet) say_lines(LOG_INFO, &info);
  say_lines(LOG_WARN, &trouble);
  buf_finish(&info);
  buf_finish(&trouble);
  return 0;
}
