/* SPDX-License-Identifier: Apache-2.0 */
/* Runs rdzv-devices and reads its answer.
 *
 *   start -> uv_spawn, a pipe, a timer -> end of the pipe and of the process -> gpus_parse -> the answer
 *
 * The helper may be missing, crash inside the vendor's library, print too much, or hang in the kernel. Each case is
 * one sentence, and the caller continues. A process in an uninterruptible call does not die of SIGKILL either, so its
 * end is not waited for: its handles are closed and its pid is remembered, because another helper would hang too. The
 * next one starts when it is gone and reaped. */

#include "agent/devices/probe.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "common/system/command.h"
#include "common/system/loop.h"
#include "common/mem.h"

enum { READ_SIZE = 65536, RETRY_MS = 10 };

static pid_t unreaped; /* the last one that was killed; 0: none. One for all, as there is one driver */

struct device_probe {
  device_probe_fn fn;
  void *ctx;
  uint32_t deadline_ms;
  uint64_t begun_ms;
  uv_process_t process;
  uv_pipe_t pipe;
  uv_timer_t timer;
  bool spawned, exited, ended, answered; /* spawned: or tried; ended: its output */
  int64_t status;
  int signo, open_handles;
  struct buf text;
  struct err failed; /* before it ran */
  char room[READ_SIZE];
};

static void give_answer(struct device_probe *p, struct gpus *g, const struct err *e) {
  if (p->answered) return;
  p->answered = true;
  uv_timer_stop(&p->timer);
  p->fn(p->ctx, g, e); /* may destroy p */
}

static void give_error(struct device_probe *p, const struct err *e) {
  struct gpus none = {0};
  give_answer(p, &none, e);
}

static void finish_answer(struct device_probe *p) {
  struct gpus g = {0};
  struct err e = ERR_INIT;
  if (!p->exited || !p->ended) return;
  int rc = p->signo    ? err_set(&e, -EIO, "rdzv-devices was killed by signal %d", p->signo)
           : p->status ? err_set(&e, -EIO, "rdzv-devices exited with code %d", (int)p->status)
                       : gpus_parse(buf_text(&p->text), p->text.len, &g, &e);
  give_answer(p, &g, rc ? &e : NULL);
}

static void on_exit_process(uv_process_t *process, int64_t status, int signo) {
  struct device_probe *p = process->data;
  p->exited = true;
  p->status = status;
  p->signo = signo;
  finish_answer(p);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  struct device_probe *p = handle->data;
  *out = uv_buf_init(p->room, sizeof p->room);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct device_probe *p = stream->data;
  if (n > 0 && p->text.len <= GPUS_ANSWER_MAX) buf_append(&p->text, b->base, (size_t)n);
  if (n >= 0) return;
  uv_read_stop(stream);
  p->ended = true;
  finish_answer(p);
}

static void on_deadline(uv_timer_t *timer) {
  struct device_probe *p = timer->data;
  struct err e = ERR_INIT;
  if (!p->failed.code && !p->spawned)
    err_set(&p->failed, -ETIMEDOUT, "the GPU driver still does not answer (pid %d hangs in it)", (int)unreaped);
  if (!p->failed.code)
    err_set(&p->failed, -ETIMEDOUT, "the GPU driver did not answer within %.3g s", (double)p->deadline_ms / 1000);
  e = p->failed;
  give_error(p, &e);
}

static int spawn_helper(struct device_probe *p, struct err *e) {
  char *program = command_companion("rdzv-devices", NULL, getenv("PATH"), e);
  if (!program) return e->code;
  char name[] = "rdzv-devices", *argv[] = {name, NULL};
  uv_stdio_container_t stdio[] = {
      {.flags = UV_IGNORE},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&p->pipe},
      {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
  };
  uv_process_options_t options = {
      .file = program, .args = argv, .exit_cb = on_exit_process, .stdio = stdio, .stdio_count = 3};
  int rc = uv_spawn(p->timer.loop, &p->process, &options);
  p->spawned = true; /* or not: the loop knows the handle in any case */
  p->exited = rc != 0;
  if (rc) err_sys(e, rc, "rdzv-devices (%s) cannot be started", program);
  free(program);
  return rc;
}

/* Spawns the helper when the previous one is gone. */
static void spawn_when_free(uv_timer_t *timer) {
  struct device_probe *p = timer->data;
  uint64_t spent = boot_ms() - p->begun_ms, left = spent < p->deadline_ms ? p->deadline_ms - spent : 0;
  if (unreaped && waitpid(unreaped, NULL, WNOHANG) == 0) {
    uv_timer_start(timer, left > RETRY_MS ? spawn_when_free : on_deadline, RETRY_MS, 0);
    return;
  }
  unreaped = 0;
  int rc = spawn_helper(p, &p->failed);
  if (rc == 0) uv_read_start((uv_stream_t *)&p->pipe, on_alloc, on_read);
  uv_timer_start(timer, on_deadline, rc ? 0 : left, 0);
}

struct device_probe *device_probe_start(uv_loop_t *loop, uint32_t deadline_ms, device_probe_fn fn, void *ctx) {
  struct device_probe *p = xcalloc(1, sizeof *p);
  p->fn = fn;
  p->ctx = ctx;
  p->deadline_ms = deadline_ms;
  p->process.data = p->pipe.data = p->timer.data = p;
  uv_timer_init(loop, &p->timer);
  uv_pipe_init(loop, &p->pipe, 0);
  p->open_handles = 2;
  p->begun_ms = boot_ms();
  uv_update_time(loop);
  spawn_when_free(&p->timer);
  return p;
}

static void on_closed(uv_handle_t *handle) {
  struct device_probe *p = handle->data;
  if (--p->open_handles > 0) return;
  buf_finish(&p->text);
  free(p);
}

void device_probe_destroy(struct device_probe *p) {
  if (!p) return;
  p->answered = true;
  if (p->spawned) {
    if (!p->exited) {
      uv_process_kill(&p->process, SIGKILL);
      unreaped = p->process.pid;
    }
    p->open_handles++;
    uv_close((uv_handle_t *)&p->process, on_closed);
  }
  uv_close((uv_handle_t *)&p->pipe, on_closed);
  uv_close((uv_handle_t *)&p->timer, on_closed);
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
