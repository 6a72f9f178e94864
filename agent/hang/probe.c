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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/system/command.h"
#include "common/system/helper.h"
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
  struct buf stack; /* output of its tool */
  const char *tool; /* its name, once started */
  char *path;       /* path of the tool, until it is started; NULL: none */
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
  struct helper *tool;   /* NULL: none runs */
  struct found *subject; /* of the tool */
  struct writing *writings[PROBE_TARGETS_MAX];
};

static void finish_probe(struct probe *p, bool tell);
static void start_next(struct probe *p);

/* Reports. --------------------------------------------------------------------------------------------------------- */

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

static void on_written(uv_work_t *work, int status) {
  struct writing *w = work->data;
  if (w->of && w->error) log_warn("the report of a hang cannot be written to %s: %s", w->file, strerror(w->error));
  for (size_t i = 0; w->of && i < PROBE_TARGETS_MAX; i++)
    if (w->of->writings[i] == w) w->of->writings[i] = NULL;
  buf_finish(&w->text);
  free(w->file);
  free(w);
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
    /* Replaces characters that would move the cursor. */
    for (size_t i = 0; i < len && i < LINE_SHOWN_MAX; i++) {
      bool control = (unsigned char)at[i] < 0x20 || at[i] == 0x7f;
      buf_putc(&line, control ? ' ' : at[i]);
    }
    if (len > LINE_SHOWN_MAX) buf_puts(&line, "...");
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

static void append(struct buf *to, const char *text) {
  if (to->len && *text && to->data[to->len - 1] != '\n') buf_putc(to, '\n');
  buf_puts(to, text);
}

/* Its output so far. A tool that still runs is killed. */
static void end_tool(struct probe *p) {
  append(&p->subject->stack, buf_text(helper_text(p->tool, HELPER_OUT)));
  append(&p->subject->stack, buf_text(helper_text(p->tool, HELPER_ERR)));
  helper_destroy(p->tool);
  p->tool = NULL;
}

static void on_tool_end(void *ctx, const struct helper_end *end) {
  end_tool(ctx);
  start_next(ctx);
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

static void start_tool(struct probe *p, struct found *f, const char *path) {
  const char *words[ARGS_MAX] = {NULL}, *base = strrchr(path, '/');
  char *argv[ARGS_MAX], number[16], **env = tool_env();
  struct err e = ERR_INIT;
  base = base ? base + 1 : path;
  f->tool = strcmp(base, "py-spy") == 0 ? "py-spy" : strcmp(base, "gdb") == 0 ? "gdb" : "eu-stack";
  snprintf(number, sizeof(number), "%d", (int)f->facts.pid);
  tool_words(path, f->facts.python, number, words);
  memcpy(argv, words, sizeof(argv)); /* no word is written to */
  const struct helper_options o = {
      .loop = p->loop,
      .name = "it",
      .file = path,
      .argv = argv,
      .env = env,
      .output = {{.text_max = PROBE_OUTPUT_MAX}, {.text_max = PROBE_OUTPUT_MAX}},
      .on_end = on_tool_end,
      .ctx = p,
  };
  p->subject = f;
  if (helper_start(&o, &p->tool, &e)) buf_printf(&f->stack, "%s\n", e.text);
  free(env);
}

/* One tool at a time: the first whole stack is worth more than parts of each. */
static void start_next(struct probe *p) {
  for (size_t i = 0; i < p->n && !p->tool; i++) {
    char *path = p->v[i].path;
    p->v[i].path = NULL;
    if (path) start_tool(p, &p->v[i], path);
    free(path);
  }
  if (!p->tool) finish_probe(p, true);
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
  for (size_t i = 0; i < PROBE_TOOLS_MAX; i++) free(r->tools[i]);
  free(r);
}

/* Beginning and end. ----------------------------------------------------------------------------------------------- */

static void finish_probe(struct probe *p, bool tell) {
  if (!p->under_way) return;
  p->under_way = false;
  uv_timer_stop(&p->timer);
  if (p->reading) p->reading->of = NULL;
  p->reading = NULL;
  if (p->tool) {
    end_tool(p);
    append(&p->subject->stack, "(it did not finish in time)\n");
  }
  for (size_t i = 0; i < p->n; i++) show_found(p, i);
  for (size_t i = 0; i < p->n; i++) {
    free(p->v[i].file);
    buf_finish(&p->v[i].stack);
    free(p->v[i].path);
  }
  free(p->v);
  p->v = NULL;
  p->n = 0;
  if (tell) p->cb.on_done(p->ctx);
}

static void on_deadline(uv_timer_t *timer) {
  finish_probe(timer->data, true);
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
  struct reading *r = xcalloc(1, sizeof(*r));
  r->of = p;
  r->n = p->n;
  r->stacks = stacks;
  r->work.data = r;
  for (size_t i = 0; i < p->n; i++) r->pids[i] = p->v[i].pid;
  p->reading = r;
  loop_work(p->loop, &r->work, do_reading, on_reading_done);
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
  for (size_t i = 0; i < PROBE_TARGETS_MAX; i++)
    if (p->writings[i]) p->writings[i]->of = NULL;
  uv_close((uv_handle_t *)&p->timer, on_timer_closed);
}
