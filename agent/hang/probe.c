/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at hanging workers before they are stopped.
 *
 *   begin -> pool: /proc of every target, and which tool there is -> facts -> one tool after the other -> done
 *      `------------------------ PROBE_MS after the beginning, with what was found ----------------'
 *
 * It must neither delay the stop further nor block the loop. /proc is read in the pool; a job that does not return is
 * given up, and frees itself later. A debugger stops the process to read its stack, which may take long: it is killed
 * at the deadline, and its output so far is logged. A killed debugger leaves its process as it was.
 *
 * A debugger must not ask the network for symbols, so that variable is removed. If it may not inspect the process
 * (ptrace_scope), it says so in its output.
 *
 * The agent logs a short report; the whole one goes to a file beside the worker's logs, if there are any. */

#include "agent/hang/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/system/command.h"
#include "common/system/log.h"
#include "common/system/loop.h"
#include "common/mem.h"

enum { ARGS_MAX = 16, LINE_SHOWN_MAX = 200 };

extern char **environ;

/* Facts being read in the pool. */
struct reading {
  uv_work_t work;
  struct probe *of; /* NULL: given up */
  size_t n;
  bool stacks;
  pid_t pids[PROBE_TARGETS_MAX];
  struct probe_facts facts[PROBE_TARGETS_MAX];
  char *tools[PROBE_TOOLS_MAX]; /* paths; NULL: none */
};

struct found {
  uint32_t local_rank;
  int64_t rank;
  pid_t pid;
  char *file;
  bool read;
  struct probe_facts facts;
  struct buf stack, errors; /* output of its tool; in the end all of it is in `stack` */
  const char *tool;         /* its name, once started */
  char *path;               /* path of the tool, until it is started; NULL: none */
};

struct tool {
  uv_process_t process;
  uv_pipe_t out, err;
  struct probe *of;    /* NULL: given up; it is killed and reaped */
  struct probe *owner; /* while it dies */
  struct found *found;
  struct tool *next;
  int open; /* handles */
  bool exited, out_end, err_end;
  char chunk[8192];
};

/* A report being written in the pool. */
struct writing {
  uv_work_t work;
  struct probe *of;
  char *file;
  struct buf text;
  int error;
};

struct probe {
  uv_loop_t *loop;
  struct probe_callbacks cb;
  void *ctx;
  uv_timer_t timer;
  bool under_way;
  enum log_level level;
  struct reading *reading;
  struct found *v;
  size_t n;
  struct tool *tools, *dying;
  struct writing *writings[PROBE_TARGETS_MAX];
};

static void finish_probe(struct probe *p, bool tell);
static void start_next(struct probe *p);

/* Reports. --------------------------------------------------------------------------------------------------------- */

static void forget_found(struct probe *p) {
  for (size_t i = 0; i < p->n; i++) {
    free(p->v[i].file);
    buf_finish(&p->v[i].stack);
    buf_finish(&p->v[i].errors);
    free(p->v[i].path);
  }
  free(p->v);
  p->v = NULL;
  p->n = 0;
}

/* In the pool. */
static void do_write(uv_work_t *work) {
  struct writing *w = work->data;
  int fd = open(w->file, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) w->error = errno;
  for (size_t at = 0; fd >= 0 && at < w->text.len && !w->error;) {
    ssize_t n = write(fd, w->text.data + at, w->text.len - at);
    if (n < 0 && errno != EINTR) w->error = errno;
    if (n > 0) at += (size_t)n;
  }
  if (fd >= 0) close(fd);
}

static void writing_free(struct writing *w) {
  for (size_t i = 0; w->of && i < PROBE_TARGETS_MAX; i++)
    if (w->of->writings[i] == w) w->of->writings[i] = NULL;
  buf_finish(&w->text);
  free(w->file);
  free(w);
}

static void on_written(uv_work_t *work, int status) {
  struct writing *w = work->data;
  if (w->of && w->error) log_warn("the report of a hang cannot be written to %s: %s", w->file, strerror(w->error));
  writing_free(w);
}

static void write_file(struct probe *p, size_t i, struct buf *text) {
  struct writing *w = xcalloc(1, sizeof(*w));
  *w = (struct writing){.file = xstrdup(p->v[i].file), .text = *text};
  *text = (struct buf)BUF_INIT;
  w->work.data = w;
  if (p->writings[i]) p->writings[i]->of = NULL; /* an earlier round's, whose disk hangs */
  p->writings[i] = w;
  w->of = p;
  loop_work(p->loop, &w->work, do_write, on_written);
}

/* Replaces characters that would move the cursor. */
static void put_plain(struct buf *out, const char *text, size_t n) {
  for (size_t i = 0; i < n && i < LINE_SHOWN_MAX; i++) {
    bool control = (unsigned char)text[i] < 0x20 || text[i] == 0x7f;
    buf_putc(out, control ? ' ' : text[i]);
  }
  if (n > LINE_SHOWN_MAX) buf_puts(out, "...");
}

/* frames: only "#0 ..." and "Thread ..." */
static void show_lines(struct probe *p, const char *text, const char *before, bool frames, const char *file) {
  int n = 0;
  for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
    struct buf line = BUF_INIT;
    size_t len = strcspn(at, "\n");
    if (len == 0 || (frames && at[0] != '#' && strncmp(at, "Thread ", 7) != 0)) continue;
    if (n++ == PROBE_LINES_MAX) {
      log_line(p->level, "%s... (%s%s)", before, file ? "the rest is in " : "--log-dir keeps all of it, in hang.txt",
               file ? file : "");
      return;
    }
    put_plain(&line, at, len);
    log_line(p->level, "%s%s", before, buf_text(&line));
    buf_finish(&line);
  }
}

static void show_found(struct probe *p, size_t i) {
  struct found *f = &p->v[i];
  struct buf text = BUF_INIT;
  char before[32];
  if (!f->read) return;
  snprintf(before, sizeof(before), "  rank %lld: ", (long long)f->rank);
  probe_put(&f->facts, f->pid, &text);
  show_lines(p, buf_text(&text), before, false, f->file);
  if (f->stack.len) {
    log_line(p->level, "%s%s says:", before, f->tool);
    bool frames = strcmp(f->tool, "gdb") == 0 && strstr(buf_text(&f->stack), "\n#");
    show_lines(p, buf_text(&f->stack), "  | ", frames, f->file); /* gdb prints much more than these */
  }
  if (f->file) {
    if (f->stack.len) buf_printf(&text, "\n%s says:\n%s", f->tool, buf_text(&f->stack));
    write_file(p, i, &text);
  }
  buf_finish(&text);
}

/* Tools. ----------------------------------------------------------------------------------------------------------- */

static void on_tool_closed(uv_handle_t *handle) {
  struct tool *t = handle->data;
  if (--t->open == 0) free(t);
}

static void take_out(struct tool **at, const struct tool *t) {
  while (*at && *at != t) at = &(*at)->next;
  if (*at) *at = t->next;
}

static void put_errors(struct found *f) {
  if (f->stack.len && f->errors.len && f->stack.data[f->stack.len - 1] != '\n') buf_putc(&f->stack, '\n');
  buf_append(&f->stack, f->errors.data, f->errors.len);
  buf_clear(&f->errors);
}

/* Its output is complete. A process that still runs is killed; its handle stays until it is reaped. */
static void tool_close(struct tool *t) {
  struct probe *p = t->of;
  take_out(&p->tools, t);
  put_errors(t->found);
  t->of = NULL;
  uv_close((uv_handle_t *)&t->out, on_tool_closed);
  uv_close((uv_handle_t *)&t->err, on_tool_closed);
  if (t->exited) {
    uv_close((uv_handle_t *)&t->process, on_tool_closed);
    return;
  }
  uv_process_kill(&t->process, SIGKILL);
  t->owner = p;
  t->next = p->dying;
  p->dying = t;
}

/* Stops waiting for it, dead or not. */
static void tool_forget(struct tool *t) {
  take_out(&t->owner->dying, t);
  uv_close((uv_handle_t *)&t->process, on_tool_closed);
}

static void tool_check(struct tool *t) {
  struct probe *p = t->of;
  if (!p || !t->exited || !t->out_end || !t->err_end) return;
  tool_close(t);
  start_next(p);
}

static void on_tool_exit(uv_process_t *process, int64_t status, int signo) {
  struct tool *t = process->data;
  t->exited = true;
  if (t->of)
    tool_check(t);
  else
    tool_forget(t);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *b) {
  struct tool *t = handle->data;
  *b = uv_buf_init(t->chunk, sizeof(t->chunk));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct tool *t = stream->data;
  if (!t->of) return;
  struct buf *to = stream == (uv_stream_t *)&t->out ? &t->found->stack : &t->found->errors;
  if (n > 0 && to->len + (size_t)n <= PROBE_OUTPUT_MAX) buf_append(to, b->base, (size_t)n);
  if (n >= 0) return;
  uv_read_stop(stream);
  if (stream == (uv_stream_t *)&t->out) t->out_end = true;
  if (stream == (uv_stream_t *)&t->err) t->err_end = true;
  tool_check(t);
}

/* The argv of a tool; `pid` is a buffer for its last word. Loading symbols of all libraries of a Python process
 * (torch: half a gigabyte) would take a debugger too long, so it gets those of the interpreter and of libraries in
 * which ranks wait. */
static void tool_words(const char *tool, bool python, const char *pid, const char *words[ARGS_MAX]) {
  static const char libraries[] =
      "sharedlibrary lib\\(c\\|pthread\\|python3\\|torch_python\\|nccl\\|gloo\\|mpi\\|rdzv\\)[-.0-9]";
  const char *const spy[] = {tool, "dump", "--nonblocking", "--pid", pid, NULL};
  const char *const stack[] = {tool, "-p", pid, NULL};
  const char *const gdb[] = {tool,
                             "-nx",
                             "-batch",
                             "-iex",
                             "set debuginfod enabled off",
                             "-iex",
                             "set auto-load off",
                             "-iex",
                             python ? "set auto-solib-add off" : "set auto-solib-add on",
                             "-ex",
                             libraries,
                             "-ex",
                             "thread apply all bt 40",
                             "-p",
                             pid,
                             NULL};
  const char *base = strrchr(tool, '/');
  base = base ? base + 1 : tool;
  if (strcmp(base, "py-spy") == 0)
    memcpy(words, spy, sizeof(spy));
  else if (strcmp(base, "gdb") == 0)
    memcpy(words, gdb, sizeof(gdb));
  else
    memcpy(words, stack, sizeof(stack));
}

static char **tool_env(void) {
  size_t n = 0, at = 0;
  while (environ[n]) n++;
  char **env = xcalloc(n + 1, sizeof(*env));
  for (size_t i = 0; i < n; i++)
    if (strncmp(environ[i], "DEBUGINFOD_URLS=", 16) != 0) env[at++] = environ[i];
  return env;
}

static int tool_spawn(struct probe *p, struct tool *t, const char *tool) {
  const char *words[ARGS_MAX] = {NULL};
  char *argv[ARGS_MAX], number[16]; /* libuv writes to none of them */
  uv_stdio_container_t stdio[] = {
      {.flags = UV_IGNORE},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&t->out},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&t->err},
  };
  snprintf(number, sizeof(number), "%d", (int)t->found->facts.pid);
  tool_words(tool, t->found->facts.python, number, words);
  memcpy(argv, words, sizeof(argv));
  char **env = tool_env();
  uv_process_options_t options = {
      .file = tool,
      .args = argv,
      .env = env,
      .flags = UV_PROCESS_DETACHED, /* no Ctrl-C from our terminal */
      .exit_cb = on_tool_exit,
      .stdio = stdio,
      .stdio_count = sizeof(stdio) / sizeof(*stdio),
  };
  int rc = uv_spawn(p->loop, &t->process, &options);
  free(env);
  return rc;
}

static void tool_start(struct probe *p, struct found *f, const char *path) {
  struct tool *t = xcalloc(1, sizeof(*t));
  *t = (struct tool){.of = p, .found = f, .next = p->tools, .open = 3};
  const char *base = strrchr(path, '/');
  f->tool = strcmp(base ? base + 1 : path, "py-spy") == 0 ? "py-spy"
            : strcmp(base ? base + 1 : path, "gdb") == 0  ? "gdb"
                                                         : "eu-stack";
  uv_pipe_init(p->loop, &t->out, 0);
  uv_pipe_init(p->loop, &t->err, 0);
  t->process.data = t->out.data = t->err.data = t;
  p->tools = t;
  int rc = tool_spawn(p, t, path);
  if (rc) {
    t->exited = true;
    buf_printf(&f->stack, "it cannot be started: %s\n", uv_strerror(rc));
    tool_close(t);
    return;
  }
  uv_read_start((uv_stream_t *)&t->out, on_alloc, on_read);
  uv_read_start((uv_stream_t *)&t->err, on_alloc, on_read);
}

/* One tool at a time: the first whole stack is worth more than parts of each. */
static void start_next(struct probe *p) {
  for (size_t i = 0; i < p->n && !p->tools; i++) {
    char *path = p->v[i].path;
    p->v[i].path = NULL;
    if (path) tool_start(p, &p->v[i], path);
    free(path);
  }
  if (!p->tools) finish_probe(p, true);
}

static char *find_tool(bool python) {
  static const char *const names[] = {"py-spy", "eu-stack", "gdb"};
  char *path = NULL;
  for (size_t i = python ? 0 : 1; i < sizeof(names) / sizeof(*names) && !path; i++)
    path = command_find(names[i], getenv("PATH"), NULL);
  return path;
}

/* Facts. ----------------------------------------------------------------------------------------------------------- */

/* In the pool. */
static void do_reading(uv_work_t *work) {
  struct reading *r = work->data;
  for (size_t i = 0; i < r->n; i++) probe_read(r->pids[i], &r->facts[i]);
  for (size_t i = 0; r->stacks && i < r->n && i < PROBE_TOOLS_MAX; i++)
    if (r->facts[i].state && !strchr("ZXD", r->facts[i].state)) r->tools[i] = find_tool(r->facts[i].python);
}

static void reading_free(struct reading *r) {
  for (size_t i = 0; i < PROBE_TOOLS_MAX; i++) free(r->tools[i]);
  free(r);
}

static void on_reading_done(uv_work_t *work, int status) {
  struct reading *r = work->data;
  struct probe *p = r->of;
  if (p) {
    p->reading = NULL;
    for (size_t i = 0; i < p->n; i++) {
      p->v[i].read = true;
      p->v[i].facts = r->facts[i];
      p->cb.on_fact(p->ctx, p->v[i].local_rank, &r->facts[i]);
    }
    p->cb.on_facts(p->ctx);
    for (size_t i = 0; p->under_way && i < p->n && i < PROBE_TOOLS_MAX; i++) {
      p->v[i].path = r->tools[i];
      r->tools[i] = NULL;
    }
    if (p->under_way) start_next(p);
  }
  reading_free(r);
}

/* Beginning and end. ----------------------------------------------------------------------------------------------- */

static void finish_probe(struct probe *p, bool tell) {
  if (!p->under_way) return;
  p->under_way = false;
  uv_timer_stop(&p->timer);
  if (p->reading) p->reading->of = NULL;
  p->reading = NULL;
  while (p->tools) {
    struct tool *t = p->tools;
    buf_puts(&t->found->errors, "(it did not finish in time)\n");
    tool_close(t);
  }
  for (size_t i = 0; i < p->n; i++) show_found(p, i);
  forget_found(p);
  if (tell) p->cb.on_done(p->ctx);
}

static void on_deadline(uv_timer_t *timer) {
  finish_probe(timer->data, true);
}

static void start_reading(struct probe *p, bool stacks) {
  struct reading *r = xcalloc(1, sizeof(*r));
  r->of = p;
  r->n = p->n;
  r->stacks = stacks;
  r->work.data = r;
  for (size_t i = 0; i < p->n; i++) r->pids[i] = p->v[i].pid;
  p->reading = r;
  loop_work(p->loop, &r->work, do_reading, on_reading_done);
}

void probe_begin(struct probe *p, const struct probe_target *targets, size_t n, enum log_level level, bool stacks,
                 uint32_t limit_ms) {
  finish_probe(p, false);
  p->under_way = true;
  p->level = level;
  p->n = n < PROBE_TARGETS_MAX ? n : PROBE_TARGETS_MAX;
  p->v = xcalloc(p->n ? p->n : 1, sizeof(*p->v));
  for (size_t i = 0; i < p->n; i++)
    p->v[i] = (struct found){.local_rank = targets[i].local_rank,
                             .rank = targets[i].rank,
                             .pid = targets[i].pid,
                             .file = targets[i].file ? xstrdup(targets[i].file) : NULL};
  uv_update_time(p->loop);
  uv_timer_start(&p->timer, on_deadline, limit_ms, 0);
  start_reading(p, stacks);
}

void probe_end(struct probe *p) {
  finish_probe(p, false);
}

bool probe_is_busy(const struct probe *p) {
  for (size_t i = 0; i < PROBE_TARGETS_MAX; i++)
    if (p->writings[i]) return true;
  return false;
}

struct probe *probe_create(uv_loop_t *loop, const struct probe_callbacks *cb, void *ctx) {
  struct probe *p = xcalloc(1, sizeof(*p));
  p->loop = loop;
  p->cb = *cb;
  p->ctx = ctx;
  uv_timer_init(loop, &p->timer);
  p->timer.data = p;
  return p;
}

static void on_timer_closed(uv_handle_t *handle) {
  free(handle->data);
}

void probe_destroy(struct probe *p) {
  if (!p) return;
  finish_probe(p, false);
  while (p->dying) tool_forget(p->dying);
  for (size_t i = 0; i < PROBE_TARGETS_MAX; i++)
    if (p->writings[i]) p->writings[i]->of = NULL;
  uv_close((uv_handle_t *)&p->timer, on_timer_closed);
}
