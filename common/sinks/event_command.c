/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the command of --on-event.
 *
 *   put -> turns -> /bin/sh -c COMMAND, in a session of its own: the event on stdin, its name and its sentence in
 *                     |  RDZV_EVENT and RDZV_EVENT_MESSAGE
 *                     '-> lines of stdout and stderr: our log
 *
 * A fork and a shell take most of a millisecond. They would delay the STOP and the START that follow a failure, so a run
 * begins EVENT_COMMAND_LATER_MS after its event, or at the end.
 *
 * A run is killed with its process group after EVENT_COMMAND_RUN_MS. Nothing waits for it: not the job, and at the end
 * the program for a few seconds at most, since the last event is the one that matters most. When the shell has
 * exited its pipes are read empty and closed: a child that it leaves behind does not hold them. */

#include "common/sinks/event_command.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/events/event.h"
#include "common/events/turns.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/log.h"

enum { READ_SIZE = 4096, DRAIN_MAX = 16, DEATH_MS = 500 };

struct run {
  struct event_command *of;
  struct run *next;
  struct turn *turn;
  uv_process_t process;
  uv_pipe_t in, out, err;
  uv_timer_t timer;
  uv_write_t write;
  struct buf text; /* of its output: a line that has not ended */
  unsigned lines;
  bool exited, killed;
  int open_handles;
};

struct event_command {
  uv_loop_t *loop;
  char *command;
  unsigned last_ms;
  struct turns turns;
  struct run *first;
  uv_timer_t timer; /* the next turn; or the end */
  bool closing, killed, closed;
};

extern char **environ;

static void run_next(struct event_command *c);
static void finish_close_if_idle(struct event_command *c);

/* Output. ---------------------------------------------------------------------------------------------------------- */

static void log_output(struct run *r, const char *line, size_t n) {
  struct buf shown = BUF_INIT;
  if (r->lines++ >= EVENT_COMMAND_LINES_MAX) return;
  if (r->lines == EVENT_COMMAND_LINES_MAX)
    buf_puts(&shown, "... (more lines are left out)");
  else
    buf_put_plain(&shown, line, n, EVENT_COMMAND_LINE_MAX);
  log_info("--on-event (%s): %s", r->turn->name, buf_text(&shown));
  buf_finish(&shown);
}

static void take_output(struct run *r, const char *data, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (data[i] != '\n') {
      if (r->text.len <= EVENT_COMMAND_LINE_MAX) buf_putc(&r->text, data[i]);
      continue;
    }
    log_output(r, buf_text(&r->text), r->text.len);
    buf_clear(&r->text);
  }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  static char room[READ_SIZE]; /* used up before the next read */
  *out = uv_buf_init(room, sizeof room);
}

static void on_out(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  if (n > 0) take_output(stream->data, b->base, (size_t)n);
  if (n < 0) uv_read_stop(stream);
}

/* The shell is gone; its last words may still be in the pipe. */
static void drain(struct run *r, uv_pipe_t *pipe) {
  char room[READ_SIZE];
  int fd;
  ssize_t n;
  if (uv_fileno((uv_handle_t *)pipe, &fd) != 0) return;
  for (int i = 0; i < DRAIN_MAX && (n = read(fd, room, sizeof room)) > 0; i++) take_output(r, room, (size_t)n);
  if (r->text.len) take_output(r, "\n", 1);
}

/* A run. ----------------------------------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle) {
  struct run *r = handle->data;
  if (--r->open_handles > 0) return;
  struct event_command *c = r->of;
  struct run **at = &c->first;
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  turns_done(&c->turns, r->turn);
  buf_finish(&r->text);
  free(r);
  run_next(c);
  finish_close_if_idle(c);
}

static void close_run(struct run *r) {
  uv_handle_t *const handles[] = {(uv_handle_t *)&r->process, (uv_handle_t *)&r->in, (uv_handle_t *)&r->out,
                                  (uv_handle_t *)&r->err, (uv_handle_t *)&r->timer};
  for (size_t i = 0; i < sizeof handles / sizeof *handles; i++)
    if (!uv_is_closing(handles[i])) uv_close(handles[i], on_handle_closed);
}

static void on_exit_process(uv_process_t *process, int64_t status, int signo) {
  struct run *r = process->data;
  r->exited = true;
  drain(r, &r->out);
  drain(r, &r->err);
  if (!r->killed && signo)
    log_warn("--on-event (%s): the command was killed by signal %d", r->turn->name, signo);
  else if (!r->killed && status)
    log_warn("--on-event (%s): the command exited with code %d", r->turn->name, (int)status);
  close_run(r);
}

static void kill_run(struct run *r, const char *why) {
  if (r->exited || r->killed) return;
  r->killed = true;
  log_warn("--on-event (%s): the command is killed: %s", r->turn->name, why);
  kill(-r->process.pid, SIGKILL); /* its session has one group, unless it made more */
}

static void on_run_timer(uv_timer_t *timer) {
  kill_run(timer->data, "it has run for 30 s");
}

/* Or it has not read all of it, which it need not. */
static void on_event_written(uv_write_t *write, int status) {
  uv_handle_t *in = (uv_handle_t *)write->handle;
  if (!uv_is_closing(in)) uv_close(in, on_handle_closed); /* the end of its stdin */
}

/* "RDZV_EVENT_MESSAGE=" and the sentence, in one line. */
static char *message_of(const char *line) {
  struct buf out = BUF_INIT;
  struct err e = ERR_INIT;
  json_t *event = json_parse_object(line, strlen(line), &e);
  const char *text = json_string_value(json_object_get(json_object_get(event, "metadata"), "message"));
  buf_puts(&out, "RDZV_EVENT_MESSAGE=");
  if (text) buf_put_plain(&out, text, strlen(text), EVENT_TEXT_MAX);
  json_decref(event);
  return buf_steal(&out);
}

enum { OWN_VARIABLES = 2 };

static char **make_env(const struct turn *turn) {
  size_t n = 0, kept = 0;
  while (environ[n]) n++;
  char **env = xcalloc(n + OWN_VARIABLES + 1, sizeof *env);
  env[kept++] = xasprintf("RDZV_EVENT=%s", turn->name);
  env[kept++] = message_of(turn->line);
  for (size_t i = 0; i < n; i++)
    if (strncmp(environ[i], "RDZV_EVENT=", 11) != 0 && strncmp(environ[i], "RDZV_EVENT_MESSAGE=", 19) != 0)
      env[kept++] = environ[i];
  return env;
}

static void free_env(char **env) {
  for (size_t i = 0; i < OWN_VARIABLES; i++) free(env[i]);
  free(env);
}

static int spawn(struct run *r) {
  char shell[] = "sh", option[] = "-c", *argv[] = {shell, option, r->of->command, NULL};
  char **env = make_env(r->turn);
  uv_stdio_container_t stdio[] = {
      {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&r->in},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&r->out},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&r->err},
  };
  uv_process_options_t options = {.file = "/bin/sh",
                                  .args = argv,
                                  .env = env,
                                  .flags = UV_PROCESS_DETACHED, /* a session of its own: Ctrl-C is not for it */
                                  .exit_cb = on_exit_process,
                                  .stdio = stdio,
                                  .stdio_count = 3};
  int rc = uv_spawn(r->of->loop, &r->process, &options);
  free_env(env);
  return rc;
}

static void start_run(struct event_command *c, struct turn *turn) {
  struct run *r = xcalloc(1, sizeof *r);
  *r = (struct run){.of = c, .next = c->first, .turn = turn, .open_handles = 5};
  c->first = r;
  r->process.data = r->in.data = r->out.data = r->err.data = r->timer.data = r;
  uv_pipe_init(c->loop, &r->in, 0);
  uv_pipe_init(c->loop, &r->out, 0);
  uv_pipe_init(c->loop, &r->err, 0);
  uv_timer_init(c->loop, &r->timer);
  int rc = spawn(r);
  if (rc) {
    log_warn("--on-event (%s): no shell could be started: %s", turn->name, uv_strerror(rc));
    r->exited = true;
    close_run(r);
    return;
  }
  size_t n = strlen(turn->line);
  turn->line[n] = '\n'; /* in the place of its end */
  uv_buf_t b = uv_buf_init(turn->line, (unsigned)n + 1);
  uv_write(&r->write, (uv_stream_t *)&r->in, &b, 1, on_event_written);
  uv_read_start((uv_stream_t *)&r->out, on_alloc, on_out);
  uv_read_start((uv_stream_t *)&r->err, on_alloc, on_out);
  uv_timer_start(&r->timer, on_run_timer, EVENT_COMMAND_RUN_MS, 0);
}

/* Turns. ----------------------------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

static void set_timer(struct event_command *c, uint64_t ms) {
  uv_update_time(c->loop);
  if (uv_is_active((uv_handle_t *)&c->timer) && uv_timer_get_due_in(&c->timer) <= ms) return;
  uv_timer_start(&c->timer, on_timer, ms, 0);
  uv_unref((uv_handle_t *)&c->timer);
}

static void run_next(struct event_command *c) {
  uint64_t now = monotonic_ms();
  for (struct turn *turn; !c->closed && (turn = turns_next(&c->turns, now));) start_run(c, turn);
  uint64_t at = turns_deadline(&c->turns);
  if (!c->closing && at != UINT64_MAX) set_timer(c, at > now ? at - now : 0);
}

static void warn_of_drops(struct event_command *c, uint64_t now_ms) {
  const char *owner;
  for (size_t n; (n = turns_complain(&c->turns, now_ms, &owner));)
    log_warn("--on-event: %d events%s%s wait, since the command runs %d times at once and %d times a minute%s at most; "
             "%zu further %s dropped",
             TURNS_QUEUE, owner[0] ? " of " : "", owner, TURNS_AT_ONCE, TURNS_PER_MINUTE,
             owner[0] ? " for each user" : "", n, n == 1 ? "one is" : "ones are");
}

void event_command_put(struct event_command *c, const char *owner, const char *name, const char *line, bool urgent) {
  uint64_t now_ms = monotonic_ms();
  if (c->closing) return;
  if (!turns_add(&c->turns, now_ms, owner, name, line, urgent)) warn_of_drops(c, now_ms);
  set_timer(c, EVENT_COMMAND_LATER_MS);
}

struct event_command *event_command_create(uv_loop_t *loop, const char *command, unsigned last_ms) {
  struct event_command *c = xcalloc(1, sizeof *c);
  *c = (struct event_command){.loop = loop, .command = xstrdup(command), .last_ms = last_ms};
  turns_init(&c->turns);
  uv_timer_init(loop, &c->timer);
  c->timer.data = c;
  uv_unref((uv_handle_t *)&c->timer);
  return c;
}

/* The end. --------------------------------------------------------------------------------------------------------- */

static void on_own_timer_closed(uv_handle_t *handle) {}

static void finish_close(struct event_command *c) {
  c->closed = true;
  turns_drop_all(&c->turns);
  if (c->turns.dropped) log_warn("--on-event: the command did not run for %zu events", c->turns.dropped);
  uv_close((uv_handle_t *)&c->timer, on_own_timer_closed);
}

static void finish_close_if_idle(struct event_command *c) {
  if (c->closing && !c->closed && !c->first) finish_close(c);
}

static void on_timer(uv_timer_t *timer) {
  struct event_command *c = timer->data;
  if (!c->closing) {
    run_next(c);
    return;
  }
  if (c->killed) { /* and something does not die: it is left behind */
    for (struct run *r = c->first; r; r = r->next) uv_unref((uv_handle_t *)&r->process);
    finish_close(c);
    return;
  }
  c->killed = true;
  turns_drop_all(&c->turns);
  for (struct run *r = c->first; r; r = r->next) kill_run(r, "the program that started it ends");
  uv_timer_start(&c->timer, on_timer, DEATH_MS, 0);
}

/* What waits only for the next minute does not run any more. */
void event_command_close(struct event_command *c) {
  if (!c || c->closing) return;
  c->closing = true;
  uv_timer_stop(&c->timer);
  run_next(c);
  uv_update_time(c->loop);
  uv_ref((uv_handle_t *)&c->timer);
  uv_timer_start(&c->timer, on_timer, c->last_ms, 0);
  finish_close_if_idle(c);
}

bool event_command_is_closed(const struct event_command *c) {
  return !c || c->closed;
}

void event_command_destroy(struct event_command *c) {
  if (!c || c->first) return; /* a process that does not die still has a handle: the program is about to exit */
  turns_finish(&c->turns);
  free(c->command);
  free(c);
}
