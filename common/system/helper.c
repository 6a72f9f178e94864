/* SPDX-License-Identifier: Apache-2.0 */
/* One helper process.
 *
 *   running --exit--> lingering (linger_ms, while pipes are open, not while paused) --> drained --> ended
 *      '----deadline: SIGKILL to the group-----------------------------------------------------------^
 *
 * libuv may report the exit before it has read the last output. So the pipes are read to their end, or until nothing is
 * in them, before on_end. DRAIN_MAX bounds that: a process left behind may write without end.
 *
 * The owner may destroy the helper in any callback, so each callback is followed by a look at `destroyed`. Memory is
 * freed when the loop has closed all handles.
 *
 * libuv reaps a child as long as its handle is open. The handle of a process that does not die of SIGKILL is closed
 * after HELPER_DEATH_MS, so that a loop that ends, and perhaps its program, does not wait for a driver that hangs. */

#include "common/system/helper.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/lines.h"
#include "common/mem.h"
#include "common/system/command.h"
#include "common/system/stream_writer.h"

enum { READ_SIZE = 65536, DRAIN_MAX = 64 /* reads */, UNREAPED_MAX = 32, STDIO = 4 };

struct reader {
  uv_pipe_t pipe;
  struct helper *of;
  enum helper_stream from;
  struct helper_output want;
  struct lines lines;
  struct buf text;
  bool open;
};

struct helper {
  struct helper_options o; /* without its strings */
  char *name;
  uv_process_t process;
  uv_timer_t timer; /* the deadline; from the exit: the lingering; destroyed: the death */
  uv_pipe_t in;
  uv_shutdown_t shutdown;
  struct outlet outlet;
  struct reader readers[HELPER_STREAMS];
  bool has_input, exited, lingers, paused, ended, destroyed;
  struct helper_end end;
  int open_handles;
  char room[READ_SIZE];
};

/* Processes that did not die in time. ------------------------------------------------------------------------------ */

static pid_t unreaped[UNREAPED_MAX]; /* 0: free */

static void reap_left(void) {
  for (size_t i = 0; i < UNREAPED_MAX; i++)
    if (unreaped[i] && waitpid(unreaped[i], NULL, WNOHANG) != 0) unreaped[i] = 0;
}

size_t helper_left(void) {
  size_t n = 0;
  reap_left();
  for (size_t i = 0; i < UNREAPED_MAX; i++) n += unreaped[i] != 0;
  return n;
}

bool helper_is_gone(pid_t pid) {
  reap_left();
  return kill(pid, 0) != 0;
}

/* The end. --------------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle) {
  struct helper *h = handle->data;
  if (--h->open_handles > 0) return;
  for (int i = 0; i < HELPER_STREAMS; i++) {
    lines_finish(&h->readers[i].lines);
    buf_finish(&h->readers[i].text);
  }
  free(h->name);
  free(h);
}

static void close_handle(void *handle) {
  if (!uv_is_closing(handle)) uv_close(handle, on_closed);
}

static void close_pipes(struct helper *h) {
  if (h->has_input) close_handle(&h->in);
  for (int i = 0; i < HELPER_STREAMS; i++) {
    struct reader *r = &h->readers[i];
    r->open = false;
    if (r->want.line_max || r->want.text_max) close_handle(&r->pipe);
  }
}

static void take_lines(struct reader *r, bool rest) {
  const char *line;
  size_t len;
  struct helper *h = r->of;
  while (!h->destroyed && lines_next(&r->lines, &line, &len)) h->o.on_line(h->o.ctx, r->from, line, len);
  if (rest && !r->want.whole && !h->destroyed && lines_rest(&r->lines, &line, &len))
    h->o.on_line(h->o.ctx, r->from, line, len);
}

static void take_output(struct reader *r, const char *data, size_t n) {
  struct helper *h = r->of;
  if (r->want.line_max) {
    lines_feed(&r->lines, data, n);
    take_lines(r, false);
    return;
  }
  size_t room = r->want.text_max - r->text.len;
  buf_append(&r->text, data, n < room ? n : room);
  if (h->o.on_text) h->o.on_text(h->o.ctx, r->from);
}

static void finish(struct helper *h) {
  for (struct reader *r = h->readers; r < h->readers + HELPER_STREAMS; r++) {
    /* Reads what the pipe holds, past libuv, which keeps nothing of it. */
    ssize_t n;
    int fd;
    if (!r->open || uv_fileno((uv_handle_t *)&r->pipe, &fd)) continue;
    for (int i = 0; i < DRAIN_MAX && !h->paused && !h->destroyed && (n = read(fd, h->room, READ_SIZE)) > 0; i++)
      take_output(r, h->room, (size_t)n);
  }
  if (h->paused && !h->end.late) return; /* until its owner reads again */
  for (int i = 0; i < HELPER_STREAMS; i++) take_lines(&h->readers[i], true);
  if (h->destroyed) return;
  h->ended = true;
  uv_timer_stop(&h->timer);
  close_pipes(h);
  h->o.on_end(h->o.ctx, &h->end);
}

static void finish_if_over(struct helper *h) {
  if (!h->exited || h->ended || h->paused || h->destroyed) return;
  if (h->lingers && (h->readers[HELPER_OUT].open || h->readers[HELPER_ERR].open)) return;
  finish(h);
}

static void on_timer(uv_timer_t *timer);

static void start_timer(struct helper *h, uint32_t ms) {
  uv_update_time(h->o.loop);
  uv_timer_start(&h->timer, on_timer, ms, 0);
}

static void kill_group(const struct helper *h) {
  if (!h->o.joined) kill(-h->process.pid, SIGKILL);
  kill(h->process.pid, SIGKILL); /* it may have left its group */
}

static void on_timer(uv_timer_t *timer) {
  struct helper *h = timer->data;
  if (h->destroyed) {
    size_t i = 0; /* with a full list it stays a zombie until this program exits */
    while (i < UNREAPED_MAX && unreaped[i]) i++;
    if (i < UNREAPED_MAX) unreaped[i] = h->process.pid;
    close_handle(&h->process);
    close_handle(&h->timer);
  } else if (h->exited) {
    h->lingers = false;
    finish_if_over(h);
  } else {
    kill_group(h);
    h->end.late = true;
    finish(h);
  }
}

static void on_exit_process(uv_process_t *process, int64_t status, int signo) {
  struct helper *h = process->data;
  h->exited = true;
  h->end.status = (int)status;
  h->end.signo = signo;
  if (h->destroyed) {
    close_handle(&h->process);
    close_handle(&h->timer);
  } else if (!h->ended) {
    uv_timer_stop(&h->timer);
    h->lingers = h->o.linger_ms > 0;
    if (h->lingers) start_timer(h, h->o.linger_ms);
    finish_if_over(h);
  }
}

void helper_destroy(struct helper *h) {
  if (!h || h->destroyed) return;
  h->destroyed = true;
  close_pipes(h);
  if (!h->exited) {
    kill_group(h);
    start_timer(h, HELPER_DEATH_MS);
    return;
  }
  close_handle(&h->process);
  close_handle(&h->timer);
}

/* Output. ---------------------------------------------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  struct helper *h = handle->data;
  *out = uv_buf_init(h->room, READ_SIZE);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct helper *h = stream->data;
  struct reader *r =
      stream == (uv_stream_t *)&h->readers[HELPER_OUT].pipe ? &h->readers[HELPER_OUT] : &h->readers[HELPER_ERR];
  if (n > 0) take_output(r, b->base, (size_t)n);
  if (n >= 0 || h->destroyed) return;
  uv_read_stop(stream);
  r->open = false;
  finish_if_over(h);
}

void helper_pause(struct helper *h, bool paused) {
  if (h->paused == paused || h->ended) return;
  h->paused = paused;
  for (int i = 0; i < HELPER_STREAMS; i++) {
    uv_stream_t *stream = (uv_stream_t *)&h->readers[i].pipe;
    if (!h->readers[i].open) continue;
    if (paused)
      uv_read_stop(stream);
    else
      uv_read_start(stream, on_alloc, on_read);
  }
  if (paused || !h->exited) return;
  h->lingers = true; /* not at once: a callback may be on the stack */
  start_timer(h, h->o.linger_ms);
}

/* Input. ----------------------------------------------------------------------------------------------------------- */

static bool input_is_open(const struct helper *h) {
  return h->has_input && !uv_is_closing((const uv_handle_t *)&h->in);
}

void helper_send(struct helper *h, struct buf *text) {
  if (input_is_open(h))
    outlet_send(&h->outlet, text);
  else
    buf_wipe(text);
}

size_t helper_send_waits(const struct helper *h) {
  return input_is_open(h) ? outlet_waits(&h->outlet) : 0;
}

/* Not NULL: libuv before 1.44.2 calls it unchecked if the pipe is closed first. */
static void on_shut_down(uv_shutdown_t *shutdown, int status) {}

void helper_end_input(struct helper *h) {
  if (input_is_open(h)) uv_shutdown(&h->shutdown, (uv_stream_t *)&h->in, on_shut_down);
}

void helper_close_input(struct helper *h) {
  if (h->has_input) close_handle(&h->in);
}

/* Start. ----------------------------------------------------------------------------------------------------------- */

static struct helper *create(const struct helper_options *o) {
  struct helper *h = xcalloc(1, sizeof *h);
  h->o = *o;
  h->name = xstrdup(o->name ? o->name : o->argv[0]);
  h->has_input = o->input;
  h->process.data = h->timer.data = h->in.data = h;
  uv_timer_init(o->loop, &h->timer);
  h->open_handles = 2; /* the process too, as soon as libuv has tried */
  if (o->input) {
    uv_pipe_init(o->loop, &h->in, 0);
    h->open_handles++;
    h->outlet.stream = (uv_stream_t *)&h->in;
  }
  for (int i = 0; i < HELPER_STREAMS; i++) {
    struct reader *r = &h->readers[i];
    *r = (struct reader){.of = h, .from = (enum helper_stream)i, .want = o->output[i]};
    if (!r->want.line_max && !r->want.text_max) continue;
    lines_init(&r->lines, r->want.line_max);
    uv_pipe_init(o->loop, &r->pipe, 0);
    r->pipe.data = h;
    h->open_handles++;
  }
  return h;
}

static uv_stdio_container_t stdio_of(struct reader *r, int fd) {
  uv_stdio_container_t c = {.flags = UV_IGNORE};
  if (r->want.inherited) c = (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = fd};
  if (r->want.line_max || r->want.text_max)
    c = (uv_stdio_container_t){.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&r->pipe};
  return c;
}

int helper_start(const struct helper_options *o, struct helper **out, struct err *e) {
  char *companion = o->file ? NULL : command_companion(o->argv[0], o->built, getenv("PATH"), e);
  *out = NULL;
  if (!o->file && !companion) return e->code;
  reap_left();
  struct helper *h = create(o);
  uv_stdio_container_t stdio[STDIO] = {
      {.flags = UV_IGNORE},
      stdio_of(&h->readers[HELPER_OUT], STDOUT_FILENO),
      stdio_of(&h->readers[HELPER_ERR], STDERR_FILENO),
      {.flags = UV_INHERIT_FD, .data.fd = h->o.fd3},
  };
  if (h->has_input)
    stdio[0] = (uv_stdio_container_t){.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&h->in};
  uv_process_options_t options = {.file = o->file ? o->file : companion,
                                  .args = (char **)(uintptr_t)h->o.argv, /* libuv writes to none of them */
                                  .env = (char **)(uintptr_t)h->o.env,
                                  .cwd = h->o.cwd,
                                  .flags = h->o.joined ? 0 : UV_PROCESS_DETACHED,
                                  .exit_cb = on_exit_process,
                                  .stdio = stdio,
                                  .stdio_count = h->o.fd3 ? STDIO : STDIO - 1};
  int rc = uv_spawn(h->o.loop, &h->process, &options);
  if (rc == 0) {
    *out = h;
    for (int i = 0; i < HELPER_STREAMS; i++) {
      struct reader *r = &h->readers[i];
      r->open = r->want.line_max || r->want.text_max;
      if (r->open) uv_read_start((uv_stream_t *)&r->pipe, on_alloc, on_read);
    }
    if (o->deadline_ms) start_timer(h, o->deadline_ms);
  } else {
    if (companion)
      err_sys(e, rc, "%s (%s) cannot be started", h->name, companion);
    else
      err_sys(e, rc, "%s cannot be started", h->name);
    limit_explain(e);
    h->exited = true;
    helper_destroy(h);
  }
  free(companion);
  return rc;
}

/* Questions. ------------------------------------------------------------------------------------------------------- */

pid_t helper_pid(const struct helper *h) {
  return h->process.pid;
}

bool helper_has_exited(const struct helper *h) {
  return h->exited;
}

bool helper_out_has_ended(const struct helper *h) {
  return !h->readers[HELPER_OUT].open;
}

const struct buf *helper_text(const struct helper *h, enum helper_stream from) {
  return &h->readers[from].text;
}

int helper_explain_end(const struct helper *h, const struct helper_end *end, struct err *e) {
  if (end->signo) return err_set(e, -EIO, "%s (pid %d) was killed by signal %d", h->name, helper_pid(h), end->signo);
  return err_set(e, -EIO, "%s (pid %d) exited with code %d", h->name, helper_pid(h), end->status);
}

void helper_signal(struct helper *h, int signo) {
  if (!h->exited) uv_process_kill(&h->process, signo);
}
