/* SPDX-License-Identifier: Apache-2.0 */
/* The resources of the machine, from the pure parts devices, numa and env.
 *
 * It is read once, before the guard is forked. The affinity is the agent's own; workers inherit it.
 *
 * The GPU driver is asked here only if the number of workers depends on it; else later, while nodes meet
 * (devices/gpus_free_before_round.c). --exclude-busy hides devices from everything that follows, workers included, by a
 * list of the visible ones without them. */

#include "agent/place.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/devices/devices.h"
#include "agent/devices/run_devices_helper.h"
#include "agent/workers/env.h"
#include "common/system/log.h"
#include "common/mem.h"

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

/* Whether the device can be used; if not, logs why. */
static bool is_usable(const struct gpus *known, const struct device *d) {
  const struct gpu *gpu = devices_gpu(known, d);
  if (!gpu || (!gpu->error[0] && !gpu_is_busy(gpu))) return true;
  struct buf name = BUF_INIT, why = BUF_INIT;
  devices_name(d, &name);
  if (gpu->error[0])
    buf_printf(&why, "it fails: %s", gpu->error);
  else
    gpu_say_holder(gpu, NULL, &why);
  log_warn("--exclude-busy leaves out device %s: %s", buf_text(&name), buf_text(&why));
  buf_finish(&name);
  buf_finish(&why);
  return false;
}

/* Narrows p->env to the usable ones; returns how many there are. */
static int exclude_busy(struct placed *p, const struct gpus *known, const struct devices *d) {
  bool good[DEVICES_MAX];
  struct buf list = BUF_INIT;
  int n_good = 0;
  for (int i = 0; i < d->n; i++) n_good += good[i] = is_usable(known, &d->v[i]);
  if (n_good < d->n) {
    size_t n_env = 0, at = 0;
    devices_narrow(d, good, &list);
    const struct device_lists lists = devices_show(d->vendor, buf_text(&list), p->env);
    while (p->env && p->env[n_env]) n_env++;
    char **env = xcalloc(n_env + DEVICE_LIST_COUNT + 1, sizeof(*env));
    for (size_t i = 0; i < n_env; i++) {
      bool replaced = false;
      for (int k = 0; k < DEVICE_LIST_COUNT && !replaced; k++) {
        size_t n = strlen(device_list_names[k]);
        replaced = lists.v[k] && strncmp(p->env[i], device_list_names[k], n) == 0 && p->env[i][n] == '=';
      }
      if (!replaced) env[at++] = xstrdup(p->env[i]);
    }
    for (int k = 0; k < DEVICE_LIST_COUNT; k++)
      if (lists.v[k]) env[at++] = xasprintf("%s=%s", device_list_names[k], lists.v[k]);
    p->env = p->narrowed = env;
  }
  buf_finish(&list);
  return n_good;
}

/* The GPUs that a worker would see, and what they were counted by. */
static struct devices *find_visible(struct placed *p, const struct gpus *known, struct buf *said) {
  struct devices *d = devices_find(devices_root(p->env), p->env, known, p->wish, said);
  if (p->seen) return d;
  const char *list = d->from ? cluster_variable(p->env, d->from) : NULL;
  struct buf text = BUF_INIT;
  if (list)
    agent_options_show_variable(list - strlen(d->from) - 1, &text);
  else if (d->n)
    buf_printf(&text, "%d GPU%s visible", d->n, d->n == 1 ? " is" : "s are");
  else
    buf_puts(&text, "no GPU is visible");
  p->seen = buf_steal(&text);
  return d;
}

/* Counts the devices that workers would see; -EBUSY: too few are left. */
static int count_devices(const struct agent_options *o, struct placed *p, int *count, struct buf *said, struct err *e) {
  const struct gpus *known = NULL; /* the drivers' answer, if there is one */
  if (o->device_timeout_ms) {
    struct err why = ERR_INIT;
    int rc = device_probe_now((uint32_t)o->device_timeout_ms, &p->before, &why);
    if (rc && rc != -ENOENT) log_warn("%s; GPUs are counted in /proc, /sys and /dev", why.text);
    if (rc == -ENOENT) log_debug("devices: %s", why.text);
    if (rc == 0) known = &p->before;
    p->asked = true;
  }
  struct devices *d = find_visible(p, known, said);
  int n = d->n;
  *count = n;
  if (o->exclude_busy && !known)
    log_warn("--exclude-busy has no effect: the GPU driver cannot be asked%s",
             o->device_timeout_ms ? "" : " with --device-timeout 0");
  else if (o->exclude_busy)
    *count = exclude_busy(p, known, d);
  free(d);
  if (!o->exclude_busy || !known || n == 0 || *count >= (o->nproc > 0 ? o->nproc : 1)) return 0;
  char wanted[48] = "";
  if (o->nproc > 0) snprintf(wanted, sizeof(wanted), ", but --nproc asks for %" PRId64, o->nproc);
  return err_set(e, -EBUSY, "--exclude-busy: of %d device%s %s%d %s free%s", n, n == 1 ? "" : "s",
                 *count ? "only " : "", *count, *count == 1 ? "is" : "are", wanted);
}

/* -EINVAL: --nproc gpu or xpu without one. */
static int refuse_no_gpu(const struct agent_options *o, const struct buf *said, struct err *e) {
  const char *spelling = opts_origin(&o->parsed, "nproc")->spelling;
  bool xpu = o->nproc == OPTIONS_NPROC_XPU;
  if (said->len)
    return err_set(e, -EINVAL, "%s=%s: no GPU is visible: %.*s", spelling, xpu ? "xpu" : "gpu",
                   (int)strcspn(buf_text(said), "\n"), buf_text(said));
  if (xpu)
    return err_set(e, -EINVAL,
                   "%s=xpu: no GPU of Intel is visible (/sys/bus/pci and /dev/dri show none, or a variable such as "
                   "ZE_AFFINITY_MASK hides it; a processor's own display does not count): give a number, or auto",
                   spelling);
  return err_set(
      e, -EINVAL,
      "%s=gpu: no GPU is visible (NVML, /proc/driver/nvidia/gpus, /dev, /sys/class/kfd and /sys/bus/pci show "
      "none, or a variable such as CUDA_VISIBLE_DEVICES hides it): give a number, or auto",
      spelling);
}

int place_count_workers(const struct agent_options *o, char *const *env, struct placed *p, struct err *e) {
  int64_t n = o->nproc;
  int gpus = 0;
  bool must = n == OPTIONS_NPROC_GPU || n == OPTIONS_NPROC_XPU;
  bool by_gpus = must || n == OPTIONS_NPROC_AUTO || n == OPTIONS_NPROC_SEEN;
  struct buf said = BUF_INIT;
  *p = (struct placed){.env = env, .wish = n == OPTIONS_NPROC_XPU ? GPU_INTEL : GPU_VENDORS};
  int rc = by_gpus || o->exclude_busy ? count_devices(o, p, &gpus, &said, e) : 0;
  if (rc == 0 && must && gpus == 0) rc = refuse_no_gpu(o, &said, e);
  buf_finish(&said);
  if (rc) return rc;
  p->uses_devices = (by_gpus && gpus) || o->exclude_busy || o->virtual_local_rank || devices_are_named(env);
  if (by_gpus) n = gpus ? gpus : n == OPTIONS_NPROC_SEEN ? 1 : OPTIONS_NPROC_CPU;
  if (n == OPTIONS_NPROC_CPU) n = count_cpus();
  p->workers = n < 1 ? 1 : n > WORKERS_MAX ? WORKERS_MAX : n;
  /* With one agent per device or few devices: if each agent sees all devices, or none exist, LOCAL_RANK continues after
   * that of the agents before it. If an agent sees only its own, it starts at 0. If the agent's index is unknown, all
   * would use the same devices. */
  int64_t all = o->local_agents * p->workers;
  bool several = o->local_agents > 1 || o->crowded_by;
  struct devices *d = several ? find_visible(p, p->before.n ? &p->before : NULL, NULL) : NULL;
  int seen = d ? d->n : 0;
  free(d);
  bool shared = o->local_agents > 1 && all <= WORKERS_MAX && (seen == 0 || seen >= all);
  p->first = shared ? o->local_index * p->workers : 0;
  p->local_world = shared ? all : p->workers;
  if (!o->crowded_by || seen <= p->workers) return 0;
  return err_set(e, -EINVAL,
                 "several agents share this host (%s), and each sees all %d GPUs: start one agent on each host, or set "
                 "CUDA_VISIBLE_DEVICES for each",
                 o->crowded_by, seen);
}

/* The trainer's --device; NULL: not given. */
static const char *trainer_device(const struct agent_options *o) {
  static const char option[] = "--device";
  const char *device = NULL;
  for (char *const *w = o->words; w && *w; w++) {
    size_t n = sizeof(option) - 1;
    if (strncmp(*w, option, n) != 0) continue;
    if ((*w)[n] == '=') device = *w + n + 1;
    if (!(*w)[n] && w[1]) device = w[1];
  }
  return device;
}

bool place_uses_nccl(const struct agent_options *o, const struct placed *p) {
  const char *device = o->command ? "cpu" : trainer_device(o);
  if (device && strcmp(device, "auto") != 0) return strcmp(device, "cpu") != 0;
  struct devices *d = devices_find(devices_root(p->env), p->env, p->before.n ? &p->before : NULL, GPU_NVIDIA, NULL);
  bool any = d->n > 0;
  free(d);
  return any;
}

void placed_finish(struct placed *p) {
  gpus_finish(&p->before);
  free(p->seen);
  env_destroy(p->narrowed);
  *p = (struct placed){.workers = 0};
}

int place_prepare(const struct agent_options *o, const struct placed *p, struct numa *numa, struct err *e) {
  struct buf info = BUF_INIT, trouble = BUF_INIT;
  struct devices *d = devices_find(devices_root(p->env), p->env, p->before.n ? &p->before : NULL, p->wish,
                                   p->uses_devices ? &trouble : NULL);
  *numa = (struct numa){.v = NULL};
  if (o->virtual_local_rank && d->from && d->n < p->first + p->workers) {
    err_set(e, -EINVAL,
            "--virtual-local-rank gives each of the %" PRId64 " workers a device of its own, but %s names only %d",
            p->workers + p->first, d->from, d->n);
    buf_finish(&trouble);
    free(d);
    return -EINVAL;
  }
  /* A batch system may have bound the agent to the single CPU of its task: training then runs at a tenth of its speed, and
   * nothing says why. Slurm does that by default. */
  int64_t cpus = count_cpus(), workers = p->workers;
  bool slurm = cluster_variable(p->env, "SLURM_JOB_ID") || cluster_variable(p->env, "SLURM_JOBID");
  if (workers > 1 && cpus < workers) {
    buf_printf(&trouble, "%" PRId64 " workers share %" PRId64 " CPU%s: this process may use no more", workers, cpus,
               cpus == 1 ? "" : "s");
    if (slurm)
      buf_printf(&trouble,
                 "; if the machine has more, ask Slurm for them: srun -c %" PRId64 " (--cpus-per-task) or more",
                 workers);
    buf_putc(&trouble, '\n');
  }
  /* Few GPUs for many workers may be meant; a worker on GPU number LOCAL_RANK fails, and one on GPU 0 shares it. */
  const char *device = o->command ? NULL : trainer_device(o);
  int n = d->n;
  if (n > 0 && workers > n && (!device || strcmp(device, "cpu") != 0))
    buf_printf(&trouble,
               "%" PRId64 " workers share %d GPU%s: this process sees no more; ask the scheduler for %" PRId64
               ", or start --nproc %d\n",
               workers, n, n == 1 ? "" : "s", workers, n);
  /* As torchrun does it, because scripts were tuned with it. The trainer takes one thread by itself. */
  if (o->command && env_limits_threads(p->env, workers))
    buf_printf(&info, "OMP_NUM_THREADS is not set: each of the %" PRId64 " workers gets 1; set it to tune\n", workers);
  const struct numa_slots slots = {(uint32_t)p->first, (uint32_t)p->workers, (uint32_t)p->local_world};
  struct cpus own;
  own_cpus(&own);
  numa_plan(numa, devices_root(p->env), d, o->numa, &own, &slots, &info, &trouble);
  free(d);
  for (uint32_t i = 0; i < numa->n; i++) {
    struct buf list = BUF_INIT;
    cpus_format(&numa->v[i], &list);
    log_debug("numa: local rank %u is bound to CPUs %s", i, list.len ? buf_text(&list) : "-");
    buf_finish(&list);
  }
  if (!o->quiet) log_lines(LOG_INFO, buf_text(&info));
  log_lines(LOG_WARN, buf_text(&trouble));
  buf_finish(&info);
  buf_finish(&trouble);
  return 0;
}
