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
 * (ptrace_scope), it says so in its output. */

#include "agent/hang/probe.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "agent/guard/proctree.h"
#include "common/mem.h"
#include "common/system/command.h"
#include "common/system/file.h"
#include "common/system/helper.h"
#include "common/system/log.h"
#include "common/system/loop.h"

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
  struct {
    const char *name; /* NULL: none */
    char *path;
  } tools[PROBE_TOOLS_MAX];
};

struct found {
  uint32_t local_rank;
  int64_t rank;
  pid_t pid;
  char *file;
  bool read;
  struct probe_facts facts;
  struct buf stack; /* output of its tool */
  const char *tool; /* its name; NULL: none */
  char *path;       /* until it is started */
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
};

static void finish_probe(struct probe *p, bool tell);
static void start_next(struct probe *p);

/* Reports. --------------------------------------------------------------------------------------------------------- */

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
    loop_replace_file(p->loop, "the report of a hang", f->file, &text, false);
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

/* Loading symbols of all libraries of a Python process (torch: half a gigabyte) would take a debugger too long, so it
 * gets those of the interpreter and of libraries in which ranks wait. */
static void start_tool(struct probe *p, struct found *f) {
  static const char libraries[] =
      "sharedlibrary lib\\(c\\|pthread\\|python3\\|torch_python\\|nccl\\|gloo\\|mpi\\|rdzv\\)[-.0-9]";
  char pid[16];
  const char *const spy[ARGS_MAX] = {f->path, "dump", "--nonblocking", "--pid", pid};
  const char *const stack[ARGS_MAX] = {f->path, "-p", pid};
  const char *const gdb[ARGS_MAX] = {f->path,
                                     "-nx",
                                     "-batch",
                                     "-iex",
                                     "set debuginfod enabled off",
                                     "-iex",
                                     "set auto-load off",
                                     "-iex",
                                     f->facts.python ? "set auto-solib-add off" : "set auto-solib-add on",
                                     "-ex",
                                     libraries,
                                     "-ex",
                                     "thread apply all bt 40",
                                     "-p",
                                     pid};
  char *argv[ARGS_MAX];
  size_t n = 0, at = 0;
  struct err e = ERR_INIT;
  while (environ[n]) n++;
  char **env = xcalloc(n + 1, sizeof(*env));
  for (size_t i = 0; i < n; i++)
    if (strncmp(environ[i], "DEBUGINFOD_URLS=", 16) != 0) env[at++] = environ[i];
  snprintf(pid, sizeof(pid), "%d", (int)f->facts.pid);
  /* No word is written to. */
  memcpy(argv, strcmp(f->tool, "py-spy") == 0 ? spy : strcmp(f->tool, "gdb") == 0 ? gdb : stack, sizeof(argv));
  const struct helper_options o = {
      .loop = p->loop,
      .name = "it",
      .file = f->path,
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
    if (p->v[i].path) start_tool(p, &p->v[i]);
    free(p->v[i].path);
    p->v[i].path = NULL;
  }
  if (!p->tool) finish_probe(p, true);
}

/* Facts. ----------------------------------------------------------------------------------------------------------- */

/* In the pool. */
static void do_reading(uv_work_t *work) {
  static const char *const names[] = {"py-spy", "eu-stack", "gdb"}; /* the first is for Python alone */
  struct reading *r = work->data;
  for (size_t i = 0; i < r->n; i++) probe_read(r->pids[i], &r->facts[i]);
  for (size_t i = 0; r->stacks && i < r->n && i < PROBE_TOOLS_MAX; i++)
    for (size_t t = r->facts[i].python ? 0 : 1; t < 3 && !r->tools[i].path; t++)
      if (r->facts[i].state && !strchr("ZXD", r->facts[i].state)) {
        r->tools[i].name = names[t];
        r->tools[i].path = command_find(names[t], getenv("PATH"), NULL);
      }
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
      p->v[i].tool = r->tools[i].name;
      p->v[i].path = r->tools[i].path;
      r->tools[i].path = NULL;
    }
    if (p->under_way) start_next(p);
  }
  for (size_t i = 0; i < PROBE_TOOLS_MAX; i++) free(r->tools[i].path);
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
  loop_timer_in(&p->timer, on_deadline, limit_ms);
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

struct probe *probe_create(uv_loop_t *loop, const struct probe_callbacks *cb, void *ctx) {
  struct probe *p = xcalloc(1, sizeof(*p));
  p->loop = loop;
  p->cb = *cb;
  p->ctx = ctx;
  uv_timer_init(loop, &p->timer);
  p->timer.data = p;
  return p;
}

void probe_destroy(struct probe *p) {
  if (!p) return;
  finish_probe(p, false);
  uv_close((uv_handle_t *)&p->timer, loop_free);
}

/* What /proc says. ------------------------------------------------------------------------------------------------- */

/* Reads what a process is doing.
 *
 * Each file is read once into a fixed buffer, and each may be missing: the process exits, belongs to another user, or
 * the kernel lacks the file. Missing values stay empty.
 *
 * A worker is often a shell whose only child does the work (sh -c "python train.py"). The child is looked at instead
 * of the waiting shell, if there is exactly one.
 *
 * Threads mostly wait in few places, so they are counted by state and place. A place is the wait channel, a function of
 * the kernel. Only root can see the stack in the kernel. */

enum { DEPTH_MAX = 4 };

/* Reads /proc/PID/task/TID/FILE; returns how much. */
static size_t read_file(pid_t pid, pid_t tid, const char *file, char *text, size_t size) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)pid, (int)tid, file);
  ssize_t n = file_read_text(path, text, size);
  return n > 0 ? (size_t)n : 0;
}

/* Whether it waits for a child. */
static bool is_in_wait(pid_t pid) {
  char text[256];
  long number = read_file(pid, pid, "syscall", text, sizeof(text)) ? strtol(text, NULL, 10) : 0;
  return number == SYS_wait4 || number == SYS_waitid;
}

static void read_where(pid_t pid, pid_t tid, char state, char out[PROBE_WHERE_MAX]) {
  char text[PROBE_WHERE_MAX];
  out[0] = '\0';
  if (state == 'R') return;
  if (read_file(pid, tid, "wchan", text, sizeof(text)) && strcmp(text, "0") != 0) memcpy(out, text, sizeof(text));
}

/* "[<0>] hrtimer_nanosleep+0x74/0xf0\n..." to "hrtimer_nanosleep < ..." */
static void read_stack(pid_t pid, char out[PROBE_STACK_MAX]) {
  char text[PROBE_STACK_MAX];
  size_t used = 0;
  read_file(pid, pid, "stack", text, sizeof(text));
  for (char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
    size_t n = strcspn(p, "\n"), skip = p[0] == '[' ? strcspn(p, "]") : 0;
    if (skip < n && skip) skip += strspn(p + skip, "] ");
    if (skip >= n) continue;
    size_t len = strcspn(p + skip, "+\n");
    int k = snprintf(out + used, PROBE_STACK_MAX - used, "%s%.*s", used ? " < " : "", (int)len, p + skip);
    if (k < 0 || (size_t)k >= PROBE_STACK_MAX - used) break;
    used += (size_t)k;
  }
  out[used] = '\0';
}

static bool read_stat(pid_t pid, pid_t tid, struct proc *p) {
  char text[1024];
  return read_file(pid, tid, "stat", text, sizeof(text)) && proc_parse(text, p);
}

static void read_threads(struct probe_facts *f) {
  char path[40], where[PROBE_WHERE_MAX];
  struct proc p;
  snprintf(path, sizeof(path), "/proc/%d/task", (int)f->pid);
  DIR *d = opendir(path);
  if (!d) return;
  for (struct dirent *entry; f->threads < PROBE_THREADS_MAX && (entry = readdir(d));) {
    pid_t tid = isdigit((unsigned char)entry->d_name[0]) ? (pid_t)strtol(entry->d_name, NULL, 10) : 0;
    if (!tid || !read_stat(f->pid, tid, &p)) continue;
    read_where(f->pid, tid, p.state, where);
    f->threads++;
    unsigned g = 0;
    while (g < f->n_groups && (f->groups[g].state != p.state || strcmp(f->groups[g].where, where) != 0)) g++;
    if (g == PROBE_GROUPS_MAX) continue;
    if (g == f->n_groups) {
      f->groups[f->n_groups++].state = p.state;
      memcpy(f->groups[g].where, where, sizeof(where));
    }
    f->groups[g].n++;
  }
  closedir(d);
}

void probe_read(pid_t pid, struct probe_facts *f) {
  struct proc p;
  *f = (struct probe_facts){.pid = pid};
  if (pid <= 0 || !proc_read(pid, &p)) return;
  for (int depth = 0; depth < DEPTH_MAX && p.state == 'S'; depth++) {
    /* The only child of a process that waits for it. */
    struct proc child;
    char text[64], *end, *rest;
    if (!is_in_wait(f->pid) || !read_file(f->pid, f->pid, "children", text, sizeof(text))) break;
    long next = strtol(text, &end, 10);
    bool only = end != text && strtol(end, &rest, 10) == 0 && next > 0 && next <= INT_MAX;
    if (!only || !read_stat((pid_t)next, (pid_t)next, &child)) break;
    f->pid = (pid_t)next;
    p = child;
  }
  f->state = p.state;
  memcpy(f->name, p.name, sizeof(f->name));
  /* Reads the link, not its target. */
  char path[40], to[PATH_MAX] = "";
  snprintf(path, sizeof(path), "/proc/%d/exe", (int)f->pid);
  if (readlink(path, to, sizeof(to) - 1) < 0) to[0] = '\0';
  const char *base = strrchr(to, '/');
  f->python = strncmp(base ? base + 1 : to, "python", 6) == 0;
  read_where(f->pid, f->pid, p.state, f->where);
  read_stack(f->pid, f->stack);
  read_threads(f);
}

void probe_put(const struct probe_facts *f, pid_t worker, struct buf *out) {
  if (!f->state) {
    buf_printf(out, "pid %d is gone\n", (int)worker);
    return;
  }
  buf_printf(out, "pid %d", (int)worker);
  if (f->pid != worker) buf_printf(out, ", that is its child %d", (int)f->pid);
  buf_puts(out, " (");
  buf_put_escaped(out, f->name, strlen(f->name), sizeof(f->name));
  buf_printf(out, "): state %c%s%s", f->state, f->where[0] ? ", in " : "", f->where);
  buf_printf(out, ", %u thread%s\n", f->threads, f->threads == 1 ? "" : "s");
  if (f->stack[0]) buf_printf(out, "in the kernel: %s\n", f->stack);
  if (f->threads < 2) return;
  buf_puts(out, "threads: ");
  unsigned shown = 0;
  for (unsigned i = 0; i < f->n_groups; i++) {
    if (i) buf_puts(out, ", ");
    buf_printf(out, "%u %c%s%s", f->groups[i].n, f->groups[i].state, f->groups[i].where[0] ? " in " : "",
               f->groups[i].where);
    shown += f->groups[i].n;
  }
  if (shown < f->threads) buf_printf(out, ", %u others", f->threads - shown);
  buf_putc(out, '\n');
}
