/* SPDX-License-Identifier: Apache-2.0 */
/* Devices between rounds.
 *
 *   create --> ask --> their state before us: logged, kept ----------.
 *   hold, first time: waits for that answer, until its deadline --> on_free
 *   hold, later: ask --> all as before --> on_free
 *                 ^  '-> one is held: again after POLL_MS, until timeout_ms have passed --> on_held
 *
 * No process of the last round is left. Its memory on a device is freed a moment later, or seconds later if a driver
 * is slow after a kill. A worker that starts too early fails for lack of memory and costs a restart. So memory is
 * compared with what was in use before our first worker.
 *
 * It is not always known whether a job uses devices. If it certainly does (--nproc gpu, --exclude-busy, a list in
 * CUDA_VISIBLE_DEVICES), a device that is not freed is a failed start, which names the holder. If the machine just has
 * as many devices as workers, only a leftover of this job is; a stranger's process is logged and the workers start. A
 * driver that does not answer stops nothing.
 *
 * A script that does not choose a device by LOCAL_RANK puts all its workers on the first one, and says nothing. So the
 * driver is asked again while the first round runs, until each worker may have a device: two processes on one, and none
 * on another, are worth a line. */

#include "agent/devices/gpus_free_before_round.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/devices/run_devices_helper.h"
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "common/system/loop.h"

enum {
  POLL_MS = 250,
  TELL_MS = 1000,   /* then the log says what is waited for */
  ANSWER_MS = 2000, /* at least, each time the driver is asked */
  LOOK_MS = 15000,  /* from the first start to a look at who uses which device, and between two */
  LOOKS_MAX = 8,
};

struct device_watch {
  struct device_watch_options o;
  struct device_probe *probe;
  uv_timer_t timer;
  struct device_probe *look_probe;
  uv_timer_t look;    /* holding does not stop it */
  int looks;          /* so many more */
  struct gpus before; /* n 0: not known, nothing to compare with */
  struct device *v;   /* by local rank */
  int n;
  bool unknown;              /* there are none, as far as can be seen */
  bool told, begun, holding; /* told: the first answer has come; begun: a round has; holding: hold awaits its answer */
  bool said;                 /* the wait was logged */
  int64_t round;             /* of holding */
  struct local_set stay;     /* of holding */
  pid_t *pids;               /* of those, by local rank; else 0 */
  uint64_t begun_ms;         /* of holding */
  int open;                  /* handles, while it is destroyed */
};

static void ask_driver(struct device_watch *w, uint64_t deadline_ms);

static void list_devices(struct device_watch *w) {
  struct devices *d = devices_find(devices_root(w->o.env), w->o.env, w->before.n ? &w->before : NULL, w->o.wish, NULL);
  const struct device *v;
  int n = devices_of_workers(d, w->o.first, w->o.workers, &v);
  w->unknown = n < 0;
  w->n = n < 0 ? 0 : n;
  memcpy(w->v, v, (size_t)w->n * sizeof *v);
  free(d);
}

/* The driver's view of local rank i's device; NULL: none. */
static const struct gpu *gpu_of_rank(const struct device_watch *w, const struct gpus *g, int i) {
  return devices_gpu(g, &w->v[i]);
}

static void put_device(const struct device_watch *w, int i, struct buf *out) {
  const struct gpu *gpu = gpu_of_rank(w, &w->before, i);
  buf_puts(out, "device ");
  devices_name(&w->v[i], out);
  if (gpu && gpu->name[0]) buf_printf(out, " (%s)", gpu->name);
}

/* The first answer. ------------------------------------------------------------------------------------------------ */

static void take_first(struct device_watch *w, struct gpus *g) {
  w->told = true;
  w->before = *g;
  *g = (struct gpus){0};
  list_devices(w);
  for (int i = 0; i < w->n; i++) {
    const struct gpu *gpu = gpu_of_rank(w, &w->before, i);
    struct buf text = BUF_INIT;
    if (!gpu || (!gpu->error[0] && !gpu_is_busy(gpu))) continue;
    put_device(w, i, &text);
    if (gpu->error[0]) {
      buf_printf(&text, " fails: %s", gpu->error);
    } else {
      buf_puts(&text, " is busy: ");
      gpu_say_holder(gpu, NULL, &text);
    }
    log_line(w->o.certain ? LOG_WARN : LOG_INFO, "%s; --exclude-busy leaves such devices out", buf_text(&text));
    buf_finish(&text);
  }
}

/* Workers on one device. ------------------------------------------------------------------------------------------- */

/* False: not each worker has a process yet. */
static bool warn_of_shared(const struct device_watch *w, const struct gpus *g) {
  int total = 0, crowded = -1, most = 0, idle = -1;
  for (int i = 0; i < w->n; i++) {
    const struct gpu *gpu = gpu_of_rank(w, g, i);
    int n = gpu && !gpu->mig ? gpu_count_processes(gpu, w->o.job, w->round) : 1;
    total += n;
    if (n > most) most = n, crowded = i;
    if (n == 0) idle = i;
  }
  if (total < w->n) return false;
  if (idle < 0) return true;
  struct buf text = BUF_INIT;
  buf_printf(&text, "%d processes of this job are on ", most);
  put_device(w, crowded, &text);
  buf_puts(&text, ", and none is on ");
  put_device(w, idle, &text);
  log_warn("%s: does each worker choose its own, by LOCAL_RANK? --virtual-local-rank shows each worker only one",
           buf_text(&text));
  buf_finish(&text);
  return true;
}

static void on_look(void *ctx, struct gpus *g, const struct err *e) {
  struct device_watch *w = ctx;
  device_probe_destroy(w->look_probe);
  w->look_probe = NULL;
  if (e) log_debug("devices: it is unknown which workers use which: %s", e->text);
  if (e || warn_of_shared(w, g)) uv_timer_stop(&w->look);
  gpus_finish(g);
}

static void on_look_timer(uv_timer_t *timer) {
  struct device_watch *w = timer->data;
  if (--w->looks <= 0) uv_timer_stop(timer);
  if (!w->look_probe && !w->holding) w->look_probe = device_probe_start(w->o.loop, ANSWER_MS, on_look, w);
}

/* Later ones. ------------------------------------------------------------------------------------------------------ */

static void report_free(struct device_watch *w) {
  if (!w->holding) return;
  w->holding = false;
  if (!w->begun && w->n > 1 && w->before.n) {
    w->looks = LOOKS_MAX;
    uv_update_time(w->o.loop);
    uv_timer_start(&w->look, on_look_timer, LOOK_MS, LOOK_MS);
  }
  w->begun = true;
  uv_timer_stop(&w->timer);
  w->o.on_free(w->o.ctx);
}

static void report_held(struct device_watch *w, const struct gpus *g, int i) {
  struct buf text = BUF_INIT;
  const struct gpu *now = gpu_of_rank(w, g, i), *before = gpu_of_rank(w, &w->before, i);
  if (!now) {
    buf_puts(&text, "the driver no longer lists it");
  } else if (now->error[0]) {
    buf_printf(&text, "it fails: %s", now->error);
  } else {
    buf_printf(&text, "its memory is not free after %.3g s: ", (double)(boot_ms() - w->begun_ms) / 1000);
    gpu_say_holder(now, before, &text);
  }
  const struct gpu_process *p = now ? gpu_holder(now, before) : NULL;
  bool leftover = p && strcmp(p->job, w->o.job) == 0;
  if (w->o.certain || leftover) {
    w->holding = false;
    w->o.on_held(w->o.ctx, (uint32_t)i, buf_text(&text));
  } else {
    struct buf name = BUF_INIT;
    put_device(w, i, &name);
    log_warn("%s: %s; the workers are started anyway", buf_text(&name), buf_text(&text));
    buf_finish(&name);
    report_free(w);
  }
  buf_finish(&text);
}

static void on_poll_timer(uv_timer_t *timer) {
  struct device_watch *w = timer->data;
  uint64_t spent = boot_ms() - w->begun_ms;
  ask_driver(w, spent + ANSWER_MS < w->o.timeout_ms ? w->o.timeout_ms - spent : ANSWER_MS);
}

static void check_held(struct device_watch *w, const struct gpus *g) {
  int i = -1; /* the first local rank whose device is not free */
  for (int k = 0; k < w->n && i < 0; k++) {
    const struct gpu *one = gpu_of_rank(w, g, k), *before = gpu_of_rank(w, &w->before, k);
    if (!before || before->error[0] || local_set_has(&w->stay, (uint32_t)k)) continue;
    if (!one || one->error[0] || !gpu_is_free_again(one, before)) i = k;
  }
  const struct gpu *now = i < 0 ? NULL : gpu_of_rank(w, g, i);
  uint64_t spent = boot_ms() - w->begun_ms;
  if (i < 0) {
    if (spent > POLL_MS) log_debug("devices are free after %" PRIu64 " ms", spent);
    report_free(w);
  } else if (!now || now->error[0] || spent >= w->o.timeout_ms) {
    report_held(w, g, i);
  } else {
    if (spent >= TELL_MS && !w->said) {
      struct buf text = BUF_INIT;
      put_device(w, i, &text);
      buf_puts(&text, ": ");
      gpu_say_holder(gpu_of_rank(w, g, i), gpu_of_rank(w, &w->before, i), &text);
      log_info("waiting for the memory of %s; at most %.3g s (--device-timeout)", buf_text(&text),
               (double)w->o.timeout_ms / 1000);
      buf_finish(&text);
      w->said = true;
    }
    uint64_t left = w->o.timeout_ms - spent;
    loop_timer_in(&w->timer, on_poll_timer, left < POLL_MS ? left : POLL_MS);
  }
}

/* Asking. ---------------------------------------------------------------------------------------------------------- */

static void on_answer(void *ctx, struct gpus *g, const struct err *e) {
  struct device_watch *w = ctx;
  bool first = !w->told;
  device_probe_destroy(w->probe);
  w->probe = NULL;
  if (e && e->code != -ENOENT)
    log_warn("%s; it is unknown whether the workers' devices are free", e->text);
  else if (e)
    log_debug("devices: %s", e->text);
  if (first) take_first(w, g);
  if (first || e)
    report_free(w);
  else if (w->holding) {
    gpus_forgive(g, w->o.job, w->round, w->pids, w->o.workers);
    check_held(w, g);
  }
  gpus_finish(g);
}

static void ask_driver(struct device_watch *w, uint64_t deadline_ms) {
  uv_timer_stop(&w->timer);
  w->probe = device_probe_start(w->o.loop, (uint32_t)deadline_ms, on_answer, w);
}

void device_watch_hold(struct device_watch *w, int64_t round, const struct local_set *stay, const pid_t *pids) {
  w->round = round;
  w->stay = stay ? *stay : (struct local_set){{0}};
  for (uint32_t i = 0; i < w->o.workers; i++) w->pids[i] = local_set_has(&w->stay, i) ? pids[i] : 0;
  w->holding = true;
  w->said = false;
  w->begun_ms = boot_ms();
  if (w->probe) return; /* the first */
  if (!w->begun || !w->before.n) {
    report_free(w);
    return;
  }
  ask_driver(w, w->o.timeout_ms);
}

void device_watch_cancel(struct device_watch *w) {
  w->holding = false;
  uv_timer_stop(&w->timer);
  if (!w->told) return; /* the first answer counts for the next round */
  device_probe_destroy(w->probe);
  w->probe = NULL;
}

int device_watch_list(const struct device_watch *w, const struct device **v) {
  *v = w->v;
  return w->unknown ? -1 : w->n;
}

const struct device *device_watch_get(const struct device_watch *w, uint32_t local_rank) {
  const struct device *d = local_rank < (uint32_t)w->n ? &w->v[local_rank] : NULL;
  return d && (d->index >= 0 || d->uuid[0]) ? d : NULL;
}

struct device_watch *device_watch_create(const struct device_watch_options *o) {
  struct device_watch *w = xcalloc(1, sizeof *w);
  w->o = *o;
  w->v = xcalloc(DEVICES_MAX, sizeof *w->v);
  w->pids = xcalloc(o->workers, sizeof *w->pids);
  uv_timer_init(o->loop, &w->timer);
  uv_timer_init(o->loop, &w->look);
  uv_unref((uv_handle_t *)&w->look); /* a look ends with the agent */
  w->timer.data = w->look.data = w;
  list_devices(w);
  bool other = getenv("RDZV_NVML_LIBRARY") != NULL;
  if (o->asked)
    take_first(w, o->before);
  else if (o->timeout_ms && (w->n > 0 || other) && (o->certain || (uint32_t)w->n == o->workers || other))
    ask_driver(w, o->timeout_ms);
  else
    w->told = true;
  return w;
}

static void on_closed(uv_handle_t *handle) {
  struct device_watch *w = handle->data;
  if (--w->open > 0) return;
  gpus_finish(&w->before);
  free(w->v);
  free(w->pids);
  free(w);
}

void device_watch_destroy(struct device_watch *w) {
  if (!w) return;
  device_probe_destroy(w->probe);
  w->probe = NULL;
  device_probe_destroy(w->look_probe);
  w->look_probe = NULL;
  w->open = 2;
  uv_close((uv_handle_t *)&w->timer, on_closed);
  uv_close((uv_handle_t *)&w->look, on_closed);
}
