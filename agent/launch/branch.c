/* SPDX-License-Identifier: Apache-2.0 */
/* Branches.
 *
 *     started --> its first line --> up ............ its output ends --> over
 *        '------------ BRANCH_HELLO_MS, or its end -----------------------^
 *
 * A branch is a child with three pipes. Output before its first line ("RDZV-LAUNCHED version") is a greeting and is
 * skipped. Its stderr is ssh's; the last line of it is the reason if the branch fails. A branch is over when the
 * process and its output have ended. A process that keeps the pipes longer (a shared connection of ssh in the
 * background) is not waited for.
 *
 * A branch stands for its hosts. When it ends, hosts that were up are lost, and the first of the others has failed.
 * Hosts behind that one were not tried yet, so they start again from here as a branch of their own: a dead host must
 * not cost thirty others. This does not happen once everything is being stopped.
 *
 * Pulses go down and up every five seconds, because a host without power looks like a quiet one. While this process
 * does not read, silence means nothing.
 *
 * Children have their own session: the launcher passes a Ctrl-C on, once. */

#include "agent/launch/branch.h"

#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/lines.h"
#include "common/system/clock.h"
#include "common/deadline.h"
#include "common/limit.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "common/opts/opts.h"

enum {
  BRANCH_LINE_MAX = 65536,    /* of its output */
  REPORT_MAX = 8192,          /* of a report */
  GREETING_MAX = 1024 * 1024, /* bytes before the first line */
  INPUT_MAX = 64 * 1024,      /* with more queued input no pulse is sent */
  NO_PROGRAM = 127,
  NOT_RUNNABLE = 126,
};

struct seat {
  bool up, over;
};

struct branch {
  struct launch_tree *tree;
  struct branch *next;
  size_t first, count;
  struct seat *seats;
  bool local;
  uv_process_t process;
  uv_pipe_t in, out, err;
  int handles; /* not closed yet */
  struct lines lines, words;
  struct buf last; /* last line of stderr */
  size_t greeting;
  bool tried, spawned, exited, out_ended, hello, dropped, over;
  bool in_open;
  int status, signo;
  uint64_t due_ms;              /* when it is killed or given up; UINT64_MAX: never */
  uint64_t heard_ms, answer_ms; /* answer_ms: when its answer is due; UINT64_MAX: not asked */
};

struct launch_tree {
  struct launch_tree_options o;
  struct branch *branches;
  uv_timer_t timer;
  uint64_t pulse_ms;
  size_t n; /* branches that are not over */
  bool paused, ending, destroyed, timer_closed;
};

static char chunk[65536];

static void start_branch(struct launch_tree *t, size_t first, size_t count, bool local);

/* Reports. --------------------------------------------------------------------------------------------------------- */

static const char *head_host(const struct branch *b) {
  return b->tree->o.plan->seats[b->first].host;
}

static void report_seat(struct branch *b, size_t i, enum launch_event event, const char *text) {
  struct launch_report r = {.index = b->tree->o.plan->seats[b->first + i].index, .event = event};
  snprintf(r.text, sizeof(r.text), "%s", text);
  b->seats[i].over = true;
  b->tree->o.on_report(b->tree->o.ctx, &r);
}

/* Why a branch did not come up, or ended. */
static void explain_end(const struct branch *b, struct err *e) {
  const char *last = buf_text(&b->last), *program = b->tree->o.plan->program;
  if (e->code) return;
  if (b->hello && !b->seats[0].up && !b->signo)
    err_set(e, -EIO, "rdzv-agent started there, but received no input: %s must pass stdin on (no ssh -n, no -nostdin)",
            b->tree->o.plan->shell[0]);
  else if (b->hello)
    err_set(e, -EIO, "%s", *last ? last : "its connection ended");
  else if (b->exited && b->status == NO_PROGRAM)
    err_set(e, -ENOENT, "it has no rdzv-agent: not %s%s (--launch-agent gives its path)", program,
            b->tree->o.plan->only_there ? "" : ", nor in PATH");
  else if (b->exited && b->status == NOT_RUNNABLE)
    err_set(e, -EACCES, "rdzv-agent cannot be run there: %s", *last ? last : program);
  else if (*last)
    err_set(e, -EIO, "%s", last);
  else if (b->exited && b->signo)
    err_set(e, -EIO, "%s was killed by signal %d", b->tree->o.plan->shell[0], b->signo);
  else
    err_set(e, -EIO, "%s exited with code %d before rdzv-agent started there", b->tree->o.plan->shell[0], b->status);
}

/* Reports the end for all hosts that are not over. */
static void report_end(struct branch *b, struct err *e) {
  struct launch_tree *t = b->tree;
  char behind[ERR_TEXT_MAX];
  explain_end(b, e);
  snprintf(behind, sizeof(behind), "it was connected through %s, which is lost", head_host(b));
  if (!b->seats[0].over) report_seat(b, 0, b->seats[0].up ? LAUNCH_LOST : LAUNCH_FAILED, b->dropped ? "" : e->text);
  if (!b->hello && !t->ending && b->count > 1) {
    start_branch(t, b->first + 1, b->count - 1, false);
    return;
  }
  for (size_t i = 1; i < b->count; i++)
    if (!b->seats[i].over) report_seat(b, i, b->seats[i].up ? LAUNCH_LOST : LAUNCH_FAILED, b->dropped ? "" : behind);
}

/* The end of a branch. --------------------------------------------------------------------------------------------- */

static void maybe_free_tree(struct launch_tree *t);

static void unlink_branch(struct branch *b) {
  struct branch **at = &b->tree->branches;
  while (*at != b) at = &(*at)->next;
  *at = b->next;
}

static void on_closed(uv_handle_t *handle) {
  struct branch *b = handle->data;
  struct launch_tree *t = b->tree;
  if (--b->handles > 0) return;
  unlink_branch(b);
  lines_finish(&b->lines);
  lines_finish(&b->words);
  buf_finish(&b->last);
  free(b->seats);
  free(b);
  maybe_free_tree(t);
}

static void close_in(struct branch *b) {
  if (!b->in_open) return;
  b->in_open = false;
  uv_close((uv_handle_t *)&b->in, on_closed);
}

static void end_branch(struct branch *b, struct err *e) {
  struct launch_tree *t = b->tree;
  if (b->over) return;
  b->over = true;
  b->due_ms = UINT64_MAX;
  if (b->spawned && !b->exited) uv_process_kill(&b->process, SIGKILL);
  report_end(b, e);
  close_in(b);
  uv_close((uv_handle_t *)&b->out, on_closed);
  uv_close((uv_handle_t *)&b->err, on_closed);
  if (b->tried && (!b->spawned || b->exited)) uv_close((uv_handle_t *)&b->process, on_closed);
  if (--t->n == 0 && !t->destroyed) t->o.on_over(t->o.ctx);
}

static void maybe_end(struct branch *b) {
  struct err e = ERR_INIT;
  if (b->exited && b->out_ended) end_branch(b, &e);
}

static void on_exit_process(uv_process_t *process, int64_t status, int signo) {
  struct branch *b = process->data;
  b->exited = true;
  b->status = (int)status;
  b->signo = signo;
  if (b->over) {
    uv_close((uv_handle_t *)process, on_closed);
    return;
  }
  b->due_ms = monotonic_ms() + BRANCH_LEAVE_MS; /* for the rest of its output */
  maybe_end(b);
}

/* Output. ---------------------------------------------------------------------------------------------------------- */

static size_t seat_of(const struct branch *b, uint32_t index) {
  size_t i = 0;
  while (i < b->count && b->tree->o.plan->seats[b->first + i].index != index) i++;
  return i;
}

static void on_report_line(struct branch *b, const char *json, size_t len) {
  struct launch_report r;
  struct err e = ERR_INIT;
  if (len > REPORT_MAX || launch_report_parse(&r, json, len, &e)) {
    log_warn("%s: %s", head_host(b), e.text);
    return;
  }
  size_t i = seat_of(b, r.index);
  if (i == b->count || b->seats[i].over) return;
  b->seats[i].up = b->seats[i].up || r.event == LAUNCH_UP;
  b->seats[i].over = r.event != LAUNCH_UP;
  b->tree->o.on_report(b->tree->o.ctx, &r);
}

/* The first line, or a greeting before it. */
static void on_greeting(struct branch *b, const char *line, size_t len) {
  static const char word[] = LAUNCH_UP_WORD " ";
  struct err e = ERR_INIT;
  size_t n = sizeof(word) - 1;
  b->greeting += len + 1;
  if (len < n || memcmp(line, word, n) != 0) {
    if (b->greeting > GREETING_MAX) end_branch(b, (err_set(&e, -EPROTO, "its output is not that of rdzv-agent"), &e));
    return;
  }
  if (len - n != strlen(RDZV_VERSION) || memcmp(line + n, RDZV_VERSION, len - n) != 0) {
    struct buf version = BUF_INIT;
    buf_put_escaped(&version, line + n, len - n, 40);
    err_set(&e, -EPROTO, "it has rdzv-agent %s, and this is %s: install the same on all hosts", buf_text(&version),
            RDZV_VERSION);
    buf_finish(&version);
    end_branch(b, &e);
    return;
  }
  b->hello = true;
  b->due_ms = UINT64_MAX;
}

static void on_line(struct branch *b, const char *line, size_t len) {
  if (!b->hello)
    on_greeting(b, line, len);
  else if (len > 2 && line[0] == 'J')
    on_report_line(b, line + 2, len - 2);
  else if (len > 2 && (line[0] == '1' || line[0] == '2'))
    b->tree->o.on_line(b->tree->o.ctx, line, len);
}

static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf) {
  *buf = uv_buf_init(chunk, sizeof(chunk));
}

static void on_out(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
  struct branch *b = stream->data;
  const char *line;
  size_t len;
  if (n == 0 || b->over) return;
  b->heard_ms = monotonic_ms();
  b->answer_ms = UINT64_MAX;
  if (n < 0) {
    b->out_ended = true;
    uv_read_stop(stream);
    if (!b->exited) b->due_ms = monotonic_ms() + BRANCH_LEAVE_MS;
    maybe_end(b);
    return;
  }
  lines_feed(&b->lines, buf->base, (size_t)n);
  while (!b->over && lines_next(&b->lines, &line, &len)) on_line(b, line, len);
}

static void on_err(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
  struct branch *b = stream->data;
  const char *line;
  size_t len;
  if (n < 0) uv_read_stop(stream);
  if (n <= 0) return;
  lines_feed(&b->words, buf->base, (size_t)n);
  while (lines_next(&b->words, &line, &len)) {
    while (len && strchr("\r \t", line[len - 1])) len--;
    if (!len) continue;
    buf_clear(&b->last);
    buf_put_escaped(&b->last, line, len, ERR_TEXT_MAX / 2);
    log_debug("%s: %s", head_host(b), buf_text(&b->last));
  }
}

/* Input. ----------------------------------------------------------------------------------------------------------- */

struct sending {
  uv_write_t req;
  struct buf text;
};

static void on_sent(uv_write_t *req, int status) {
  struct sending *s = req->data;
  if (s->text.len) sodium_memzero(s->text.data, s->text.len < LAUNCH_HEADER_MAX ? s->text.len : LAUNCH_HEADER_MAX);
  buf_finish(&s->text);
  free(s);
}

/* Takes `text`, and wipes the header of a plan. */
static void send_text(struct branch *b, struct buf *text) {
  struct sending *s = xcalloc(1, sizeof(*s));
  s->text = *text;
  s->req.data = s;
  *text = (struct buf)BUF_INIT;
  uv_buf_t out = uv_buf_init(s->text.data, (unsigned)s->text.len);
  if (b->in_open && uv_write(&s->req, (uv_stream_t *)&b->in, &out, 1, on_sent) == 0) return;
  on_sent(&s->req, UV_EPIPE);
}

static void send_line(struct branch *b, const char *line) {
  struct buf text = BUF_INIT;
  buf_puts(&text, line);
  send_text(b, &text);
}

static void send_plan(struct branch *b) {
  struct buf text = BUF_INIT;
  launch_plan_encode(b->tree->o.plan, b->first, b->count, &text);
  send_text(b, &text);
}

/* Start. ----------------------------------------------------------------------------------------------------------- */

static char **local_argv(void) {
  static char name[] = "rdzv-agent", launched[] = "--launched";
  return launch_words_copy((char *const[]){name, launched, NULL});
}

static int spawn_branch(struct branch *b, struct err *e) {
  const struct launch_plan *p = b->tree->o.plan;
  char **argv = b->local ? local_argv() : launch_shell_argv(p, head_host(b));
  uv_stdio_container_t stdio[] = {
      {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&b->in},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&b->out},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&b->err},
  };
  uv_process_options_t options = {
      .file = b->local ? "/proc/self/exe" : argv[0],
      .args = argv,
      .flags = UV_PROCESS_DETACHED,
      .exit_cb = on_exit_process,
      .stdio = stdio,
      .stdio_count = 3,
  };
  int rc = uv_spawn(b->tree->o.loop, &b->process, &options);
  if (rc) {
    err_sys(e, rc, "%s cannot be started", b->local ? "rdzv-agent" : argv[0]);
    limit_explain(e);
  }
  launch_words_free(argv);
  return rc;
}

static void init_pipe(struct branch *b, uv_pipe_t *pipe) {
  uv_pipe_init(b->tree->o.loop, pipe, 0);
  pipe->data = b;
  b->handles++;
}

static void read_all(struct branch *b) {
  uv_read_start((uv_stream_t *)&b->out, on_alloc, on_out);
  uv_read_start((uv_stream_t *)&b->err, on_alloc, on_err);
}

static void start_branch(struct launch_tree *t, size_t first, size_t count, bool local) {
  struct branch *b = xcalloc(1, sizeof(*b));
  struct err e = ERR_INIT;
  *b = (struct branch){.tree = t, .next = t->branches, .first = first, .count = count, .local = local, .in_open = true};
  b->seats = xcalloc(count, sizeof(*b->seats));
  t->branches = b;
  t->n++;
  lines_init(&b->lines, BRANCH_LINE_MAX);
  lines_init(&b->words, BRANCH_LINE_MAX);
  init_pipe(b, &b->in);
  init_pipe(b, &b->out);
  init_pipe(b, &b->err);
  b->process.data = b;
  b->heard_ms = monotonic_ms();
  b->due_ms = b->heard_ms + BRANCH_HELLO_MS;
  b->answer_ms = UINT64_MAX;
  b->dropped = t->ending; /* nothing more is started */
  b->tried = !t->ending;
  b->handles += b->tried;
  b->spawned = b->tried && spawn_branch(b, &e) == 0;
  if (b->spawned) {
    send_plan(b);
    read_all(b);
  } else {
    end_branch(b, &e);
  }
}

/* The tree. -------------------------------------------------------------------------------------------------------- */

static void check_branch(struct branch *b, uint64_t now_ms, bool pulse) {
  struct err e = ERR_INIT;
  uint64_t silent_ms = now_ms - b->heard_ms;
  if (b->tree->paused) {
    b->heard_ms = now_ms;
    b->answer_ms = UINT64_MAX;
    if (b->exited) b->due_ms = now_ms + BRANCH_LEAVE_MS; /* the rest of its output waits for us */
    silent_ms = 0;
  }
  if (now_ms >= b->due_ms) {
    if (!b->hello && !b->exited && !b->dropped)
      err_set(&e, -ETIMEDOUT, "no answer within %d s%s%s", BRANCH_HELLO_MS / 1000, b->last.len ? ": " : "",
              buf_text(&b->last));
    end_branch(b, &e);
  } else if (b->hello && (silent_ms > LAUNCH_LOST_MS || now_ms >= b->answer_ms)) {
    err_set(&e, -ETIMEDOUT, "it was silent for %d s", (int)(silent_ms / 1000));
    end_branch(b, &e);
  } else if (pulse && b->in_open && b->in.write_queue_size < INPUT_MAX) {
    send_line(b, "P\n");
  }
}

static void on_tree_timer(uv_timer_t *timer) {
  struct launch_tree *t = timer->data;
  uint64_t now = monotonic_ms();
  bool pulse = now >= t->pulse_ms;
  if (pulse) t->pulse_ms = now + LAUNCH_PULSE_MS;
  for (struct branch *b = t->branches, *next; b && !t->destroyed; b = next) {
    next = b->next;
    if (!b->over) check_branch(b, now, pulse);
  }
}

struct launch_tree *launch_tree_create(const struct launch_tree_options *o) {
  enum { LOOK_EVERY_MS = 250 };
  struct launch_tree *t = xcalloc(1, sizeof(*t));
  t->o = *o;
  t->pulse_ms = monotonic_ms() + LAUNCH_PULSE_MS;
  uv_timer_init(o->loop, &t->timer);
  t->timer.data = t;
  uv_timer_start(&t->timer, on_tree_timer, LOOK_EVERY_MS, LOOK_EVERY_MS);
  return t;
}

void launch_tree_start(struct launch_tree *t, size_t first, size_t count, bool local) {
  size_t from, n;
  if (local) {
    start_branch(t, first, count, true);
    return;
  }
  for (size_t i = 0; i < launch_split(count, t->o.plan->fan_out, i, &from, &n); i++)
    start_branch(t, first + from, n, false);
}

bool launch_tree_is_over(const struct launch_tree *t) {
  return t->n == 0;
}

static void drop_branch(struct branch *b) {
  b->dropped = true;
  close_in(b);
  b->due_ms = monotonic_ms() + BRANCH_LEAVE_MS;
  if (!b->exited) uv_process_kill(&b->process, SIGTERM);
}

static void ask_branch(struct branch *b, const char *line) {
  send_line(b, line);
  b->answer_ms = earliest(b->answer_ms, monotonic_ms() + LAUNCH_ANSWER_MS);
}

void launch_tree_signal(struct launch_tree *t, int signo) {
  char line[24];
  snprintf(line, sizeof(line), "S %d\n", signo);
  bool goes_on = signo == SIGTSTP || signo == SIGCONT;
  if (!goes_on) t->ending = true;
  for (struct branch *b = t->branches; b; b = b->next) {
    if (b->over) continue;
    if (b->hello)
      ask_branch(b, line);
    else if (!goes_on)
      drop_branch(b);
  }
}

void launch_tree_probe(struct launch_tree *t) {
  for (struct branch *b = t->branches; b; b = b->next)
    if (!b->over && b->hello) ask_branch(b, "Q\n");
}

void launch_tree_kill(struct launch_tree *t) {
  t->ending = true;
  for (struct branch *b = t->branches; b; b = b->next) {
    if (b->over) continue;
    send_line(b, "K\n");
    b->due_ms = monotonic_ms() + BRANCH_LEAVE_MS;
  }
}

void launch_tree_close(struct launch_tree *t) {
  t->ending = true;
  for (struct branch *b = t->branches; b; b = b->next)
    if (!b->over) close_in(b);
}

void launch_tree_pause(struct launch_tree *t, bool paused) {
  if (t->paused == paused) return;
  t->paused = paused;
  for (struct branch *b = t->branches; b; b = b->next) {
    if (b->over || b->out_ended) continue;
    b->heard_ms = monotonic_ms();
    if (paused)
      uv_read_stop((uv_stream_t *)&b->out);
    else
      uv_read_start((uv_stream_t *)&b->out, on_alloc, on_out);
  }
}

bool launch_tree_is_paused(const struct launch_tree *t) {
  return t->paused;
}

static void maybe_free_tree(struct launch_tree *t) {
  if (t->destroyed && t->timer_closed && !t->branches) free(t);
}

static void on_timer_closed(uv_handle_t *handle) {
  struct launch_tree *t = handle->data;
  t->timer_closed = true;
  maybe_free_tree(t);
}

void launch_tree_destroy(struct launch_tree *t) {
  struct err e = ERR_INIT;
  if (!t) return;
  t->destroyed = t->ending = true;
  for (struct branch *b = t->branches, *next; b; b = next) {
    next = b->next;
    end_branch(b, &e);
  }
  uv_close((uv_handle_t *)&t->timer, on_timer_closed);
}
