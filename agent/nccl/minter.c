/* SPDX-License-Identifier: Apache-2.0 */
/* Runs rdzv-nccl and reads its answer.
 *
 *   start -> uv_spawn with three pipes -> its record on stdout -> SUP_MINTED -> stop
 *                                                                        or its death -> SUP_MINT_FAILED
 *                                      '-> lines on stderr: NCCL's, to our log
 *
 * Its stdin is a pipe without data; the end of that pipe is its end. The supervisor decides how long it may take.
 *
 * A process that hangs in the kernel does not die of SIGKILL at once. Its end is not waited for: its handles stay
 * until it is reaped, and block nothing. */

#include "agent/nccl/minter.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/nccl/record.h"
#include "common/lines.h"
#include "common/system/command.h"
#include "common/system/log.h"
#include "common/mem.h"

enum { READ_SIZE = 4096, LINE_MAX_BYTES = 1000 };

struct helper {
  struct minter *of;
  struct helper *next;
  uint32_t round, number, count;
  uv_process_t process;
  uv_pipe_t in, out, err;
  struct buf record;
  struct lines lines;
  bool stopped, answered, exited, closing; /* stopped: its events are dropped */
  bool spawned, out_ended, err_ended;
  int64_t status;
  int signo, open_handles;
  char room[READ_SIZE];
};

struct minter {
  struct minter_options o;
  struct helper *first;
};

/* The end of one. -------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle) {
  struct helper *h = handle->data;
  if (--h->open_handles > 0) return;
  buf_finish(&h->record);
  lines_finish(&h->lines);
  free(h);
}

static void take_out(struct helper *h) {
  struct helper **at = &h->of->first;
  while (*at != h) at = &(*at)->next;
  *at = h->next;
}

static void close_helper(struct helper *h) {
  if (h->closing) return;
  h->closing = true;
  take_out(h);
  if (h->spawned) uv_close((uv_handle_t *)&h->process, on_closed);
  uv_close((uv_handle_t *)&h->in, on_closed);
  uv_close((uv_handle_t *)&h->out, on_closed);
  uv_close((uv_handle_t *)&h->err, on_closed);
}

static void report_failure(struct helper *h, const char *why, bool lasting) {
  struct supervisor_event ev = {
      .kind = SUP_MINT_FAILED, .round = h->round, .mint_failed = {.helper = h->number, .why = why, .lasting = lasting}};
  if (h->stopped) return;
  h->stopped = true;
  h->of->o.on_event(h->of->o.ctx, &ev);
}

static void say_death(struct helper *h) {
  char why[96];
  if (h->signo)
    snprintf(why, sizeof why, "rdzv-nccl (pid %d) was killed by signal %d", (int)h->process.pid, h->signo);
  else
    snprintf(why, sizeof why, "rdzv-nccl (pid %d) exited with code %d", (int)h->process.pid, (int)h->status);
  report_failure(h, why, false);
}

/* Its pipes may still hold its last words. */
static void finish_helper(struct helper *h) {
  if (!h->exited || !h->out_ended || !h->err_ended) return;
  say_death(h);
  close_helper(h);
}

static void on_exit_process(uv_process_t *process, int64_t status, int signo) {
  struct helper *h = process->data;
  h->exited = true;
  h->status = status;
  h->signo = signo;
  if (h->stopped)
    close_helper(h);
  else
    finish_helper(h);
}

/* Output. ---------------------------------------------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  struct helper *h = handle->data;
  *out = uv_buf_init(h->room, sizeof h->room);
}

static void log_one(const char *line, size_t len) {
  struct buf text = BUF_INIT;
  buf_put_escaped(&text, line, len, len);
  log_info("rdzv-nccl: %s", buf_text(&text));
  buf_finish(&text);
}

static void on_err(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct helper *h = stream->data;
  const char *line;
  size_t len;
  if (n > 0) lines_feed(&h->lines, b->base, (size_t)n);
  while (lines_next(&h->lines, &line, &len)) log_one(line, len);
  if (n >= 0) return;
  if (lines_rest(&h->lines, &line, &len)) log_one(line, len);
  uv_read_stop(stream);
  h->err_ended = true;
  finish_helper(h);
}

static void take_record(struct helper *h) {
  struct err e = ERR_INIT;
  struct supervisor_event ev = {.kind = SUP_MINTED, .round = h->round, .minted = {.helper = h->number}};
  if (h->answered || h->stopped) return;
  int rc = nccl_record_parse(h->record.data, h->record.len, h->count, &ev.minted.version, &ev.minted.ids, &e);
  if (rc < 0) report_failure(h, e.text, rc == -ENOENT);
  h->answered = rc > 0;
  if (rc > 0) h->of->o.on_event(h->of->o.ctx, &ev);
}

static void on_out(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct helper *h = stream->data;
  if (n > 0 && h->record.len <= NCCL_RECORD_MAX) buf_append(&h->record, b->base, (size_t)n);
  if (n > 0) take_record(h);
  if (n >= 0) return;
  uv_read_stop(stream);
  h->out_ended = true;
  finish_helper(h);
}

/* Starting. -------------------------------------------------------------------------------------------------------- */

static struct helper *helper_create(struct minter *m) {
  struct helper *h = xcalloc(1, sizeof *h);
  h->of = m;
  h->next = m->first;
  m->first = h;
  h->process.data = h->in.data = h->out.data = h->err.data = h;
  uv_pipe_init(m->o.loop, &h->in, 0);
  uv_pipe_init(m->o.loop, &h->out, 0);
  uv_pipe_init(m->o.loop, &h->err, 0);
  lines_init(&h->lines, LINE_MAX_BYTES);
  h->open_handles = 3;
  return h;
}

static int spawn_helper(struct helper *h, char *const *env, struct err *e) {
  char name[] = "rdzv-nccl", count[16], *argv[] = {name, count, NULL};
  char *program = command_companion(name, NULL, getenv("PATH"), e);
  if (!program) return e->code;
  snprintf(count, sizeof count, "%u", h->count);
  uv_stdio_container_t stdio[] = {
      {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&h->in},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&h->out},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&h->err},
  };
  uv_process_options_t options = {.file = program,
                                  .args = argv,
                                  .env = (char **)(uintptr_t)env,
                                  .exit_cb = on_exit_process,
                                  .stdio = stdio,
                                  .stdio_count = 3};
  int rc = uv_spawn(h->of->o.loop, &h->process, &options);
  h->spawned = true; /* or not: the loop knows the handle in any case */
  h->open_handles++;
  uv_unref((uv_handle_t *)&h->process);
  if (rc) err_sys(e, rc, "rdzv-nccl (%s) cannot be started", program);
  free(program);
  return rc;
}

void minter_start(struct minter *m, uint32_t round, uint32_t number, uint32_t count, char *const *env) {
  struct err e = ERR_INIT;
  struct helper *h = helper_create(m);
  h->round = round;
  h->number = number;
  h->count = count;
  int rc = env ? spawn_helper(h, env, &e) : err_set(&e, -ESTALE, "its round has not begun here");
  if (rc) {
    report_failure(h, e.text, e.code == -ENOENT);
    close_helper(h);
    return;
  }
  uv_read_start((uv_stream_t *)&h->out, on_alloc, on_out);
  uv_read_start((uv_stream_t *)&h->err, on_alloc, on_err);
  log_debug("rdzv-nccl: started pid=%d round=%u ids=%u", (int)h->process.pid, round, count);
}

/* Processes that NCCL started end with its pipes. */
static void stop_helper(struct helper *h) {
  h->stopped = true;
  if (h->spawned && !h->exited) uv_process_kill(&h->process, SIGKILL);
}

void minter_stop(struct minter *m, uint32_t number) {
  for (struct helper *h = m->first; h; h = h->next) {
    if (h->number != number || h->stopped) continue;
    stop_helper(h);
    if (h->exited) close_helper(h); /* else when it is reaped */
    return;
  }
}

struct minter *minter_create(const struct minter_options *o) {
  struct minter *m = xcalloc(1, sizeof *m);
  m->o = *o;
  return m;
}

void minter_destroy(struct minter *m) {
  if (!m) return;
  while (m->first) {
    stop_helper(m->first);
    close_helper(m->first);
  }
  free(m);
}
