/* SPDX-License-Identifier: Apache-2.0 */
/* Runs rdzv-devices and reads its answer.
 *
 *   start -> a helper with a deadline -> its text -> gpus_parse -> the answer
 *
 * The helper may be missing, crash inside the vendor's library, print too much, or hang in the kernel. Each case is
 * one sentence, and the caller continues. A process in an uninterruptible call does not die of SIGKILL either, so its
 * pid is remembered, because another helper would hang too. The next one starts when it is gone. */

#include "agent/devices/run_devices_helper.h"

#include <errno.h>
#include <stdlib.h>
#include "common/system/clock.h"
#include "common/system/helper.h"
#include "common/system/loop.h"
#include "common/mem.h"

enum { RETRY_MS = 10 };

static pid_t killed; /* the last one; 0: it is gone. One for all, as there is one driver */

bool devices_helper_may_start(void) {
  if (killed && helper_is_gone(killed)) killed = 0;
  return !killed;
}

void devices_helper_destroy(struct helper *h) {
  if (h && !helper_has_exited(h)) killed = helper_pid(h);
  helper_destroy(h);
}

struct device_probe {
  device_probe_fn fn;
  void *ctx;
  uint32_t deadline_ms;
  uint64_t begun_ms;
  struct helper *helper; /* NULL: not started */
  uv_timer_t timer;      /* until it is */
  bool answered;
  struct err failed; /* its start */
};

static void give_answer(struct device_probe *p, struct gpus *g, const struct err *e) {
  p->answered = true;
  p->fn(p->ctx, g, e); /* may destroy p */
}

static void on_helper_end(void *ctx, const struct helper_end *end) {
  struct device_probe *p = ctx;
  const struct buf *text = helper_text(p->helper, HELPER_OUT);
  struct gpus g = {0};
  struct err e = ERR_INIT;
  if (end->late)
    err_set(&e, -ETIMEDOUT, "the GPU driver did not answer within %.3g s", (double)p->deadline_ms / 1000);
  else if (end->signo || end->status)
    helper_explain_end(p->helper, end, &e);
  else
    gpus_parse(buf_text(text), text->len, &g, &e);
  give_answer(p, &g, e.code ? &e : NULL);
}

static void on_no_start(uv_timer_t *timer) {
  struct device_probe *p = timer->data;
  struct gpus none = {0};
  struct err e = p->failed;
  if (!e.code) err_set(&e, -ETIMEDOUT, "the GPU driver still does not answer (pid %d hangs in it)", (int)killed);
  give_answer(p, &none, &e);
}

static void start_when_free(uv_timer_t *timer) {
  struct device_probe *p = timer->data;
  uint64_t spent = boot_ms() - p->begun_ms, left = spent < p->deadline_ms ? p->deadline_ms - spent : 0;
  char name[] = "rdzv-devices", *argv[] = {name, NULL};
  const struct helper_options o = {
      .loop = timer->loop,
      .argv = argv,
      .deadline_ms = left ? (uint32_t)left : 1,
      .output = {{.text_max = GPUS_ANSWER_MAX + 1}, {.inherited = true}},
      .on_end = on_helper_end,
      .ctx = p,
  };
  if (!devices_helper_may_start()) {
    uv_timer_start(timer, left > RETRY_MS ? start_when_free : on_no_start, RETRY_MS, 0);
    return;
  }
  if (helper_start(&o, &p->helper, &p->failed)) uv_timer_start(timer, on_no_start, 0, 0);
}

struct device_probe *device_probe_start(uv_loop_t *loop, uint32_t deadline_ms, device_probe_fn fn, void *ctx) {
  struct device_probe *p = xcalloc(1, sizeof *p);
  *p = (struct device_probe){.fn = fn, .ctx = ctx, .deadline_ms = deadline_ms, .begun_ms = boot_ms()};
  uv_timer_init(loop, &p->timer);
  p->timer.data = p;
  uv_update_time(loop);
  start_when_free(&p->timer);
  return p;
}

void device_probe_destroy(struct device_probe *p) {
  if (!p) return;
  devices_helper_destroy(p->helper);
  uv_close((uv_handle_t *)&p->timer, loop_free);
}

struct waited {
  struct gpus *g;
  struct err *e;
  int rc;
};

static void on_answer(void *ctx, struct gpus *g, const struct err *e) {
  struct waited *w = ctx;
  *w->g = *g;
  w->rc = e ? e->code : 0;
  if (e && w->e) *w->e = *e;
}

int device_probe_now(uint32_t deadline_ms, struct gpus *g, struct err *e) {
  uv_loop_t loop;
  struct waited w = {.g = g, .e = e, .rc = -EIO};
  *g = (struct gpus){0};
  int rc = loop_open(&loop, e);
  if (rc) return rc;
  struct device_probe *p = device_probe_start(&loop, deadline_ms, on_answer, &w);
  while (!p->answered) uv_run(&loop, UV_RUN_ONCE);
  device_probe_destroy(p);
  uv_run(&loop, UV_RUN_DEFAULT);
  uv_loop_close(&loop);
  return w.rc;
}
