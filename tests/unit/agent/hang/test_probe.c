/* SPDX-License-Identifier: Apache-2.0 */
/* agent/hang/probe.c: facts of real processes that sleep, are stopped, wait for a child, have threads, or are gone;
 * tools that answer, hang, or are missing. */

#include "agent/hang/probe.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/system/loop.h"
#include "common/mem.h"
#include "tests/rig/unit.h"

enum { PATIENCE_MS = 20000 };

static char dir[] = "/tmp/rdzv-probe-XXXXXX";

/* Children. -------------------------------------------------------------------------------------------------------- */

static void *sleep_on(void *arg) {
  for (;;) pause();
  return NULL;
}

/* A child that does what `how` says, and is reaped by child_end. */
static pid_t child(const char *how) {
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that failed leaves nobody behind */
  alarm(60);
  if (strcmp(how, "stop") == 0) raise(SIGSTOP);
  if (strcmp(how, "read") == 0) {
    int p[2];
    char c;
    if (pipe(p) || read(p[0], &c, 1) < 0) _exit(1);
  }
  if (strcmp(how, "threads") == 0) {
    pthread_t t;
    for (int i = 0; i < 3; i++) pthread_create(&t, NULL, sleep_on, NULL);
  }
  if (strcmp(how, "run") == 0)
    for (volatile unsigned i = 0;; i++) continue;
  if (strcmp(how, "shell") == 0) execl("/bin/sh", "sh", "-c", "sleep 60; true", (char *)NULL);
  for (;;) pause();
}

static void child_end(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
}

/* Until it has come to where it is to be. */
static void read_until(pid_t pid, char state, unsigned threads, const char *name, struct probe_facts *f) {
  for (uint64_t end = boot_ms() + PATIENCE_MS; boot_ms() < end; usleep(2000)) {
    probe_read(pid, f);
    bool named = !name || strcmp(f->name, name) == 0;
    if (f->state == state && f->threads >= threads && named) return;
  }
  fail_msg("pid %d (%s): state %c, %u threads", (int)pid, f->name, f->state ? f->state : '?', f->threads);
}

static char *text_of(const struct probe_facts *f, pid_t pid) {
  struct buf b = BUF_INIT;
  probe_put(f, pid, &b);
  return buf_steal(&b);
}

UNIT_TEST(test_a_stopped_process) {
  struct probe_facts f;
  pid_t pid = child("stop");
  read_until(pid, 'T', 1, NULL, &f);
  assert_int_equal(f.pid, pid);
  assert_int_equal(f.threads, 1);
  char *text = text_of(&f, pid), *head = xasprintf("pid %d (", (int)pid);
  assert_int_equal(strncmp(text, head, strlen(head)), 0);
  assert_non_null(strstr(text, "): state T"));
  assert_null(strstr(text, "threads: ")); /* there is one */
  free(text);
  free(head);
  child_end(pid);
}

/* Where it waits: a function of the kernel, or the system call. */
UNIT_TEST(test_a_process_that_reads) {
  struct probe_facts f;
  pid_t pid = child("read");
  for (uint64_t end = boot_ms() + PATIENCE_MS; boot_ms() < end; usleep(2000)) {
    probe_read(pid, &f);
    if (f.state == 'S' && (strstr(f.where, "pipe") || strcmp(f.where, "read") == 0)) break;
  }
  assert_int_equal(f.state, 'S');
  assert_non_null(f.where[0] ? f.where : NULL);
  if (geteuid() == 0 && f.stack[0]) {
    assert_non_null(strstr(f.stack, " < "));
    assert_null(strpbrk(f.stack, "[]+\n"));
  }
  child_end(pid);
}

UNIT_TEST(test_a_process_that_runs) {
  struct probe_facts f;
  pid_t pid = child("run");
  read_until(pid, 'R', 1, NULL, &f);
  assert_string_equal(f.where, "");
  child_end(pid);
}

UNIT_TEST(test_threads_are_counted) {
  struct probe_facts f;
  pid_t pid = child("threads");
  read_until(pid, 'S', 4, NULL, &f);
  assert_int_equal(f.threads, 4);
  unsigned sum = 0;
  for (unsigned i = 0; i < f.n_groups; i++) sum += f.groups[i].n;
  assert_int_equal(sum, 4);
  char *text = text_of(&f, pid);
  assert_non_null(strstr(text, ", 4 threads\n"));
  assert_non_null(strstr(text, "\nthreads: "));
  free(text);
  child_end(pid);
}

/* The program behind a shell is what hangs. */
UNIT_TEST(test_behind_a_shell) {
  struct probe_facts f;
  pid_t pid = child("shell");
  read_until(pid, 'S', 1, "sleep", &f);
  assert_true(f.pid != pid);
  char *text = text_of(&f, pid),
       *expected = xasprintf("pid %d, that is its child %d (sleep): state S", (int)pid, (int)f.pid);
  assert_non_null(strstr(text, expected));
  free(text);
  free(expected);
  kill(f.pid, SIGKILL);
  child_end(pid);
}

UNIT_TEST(test_nobody) {
  struct probe_facts f;
  pid_t pid = child("stop");
  child_end(pid);
  probe_read(pid, &f);
  assert_int_equal(f.state, 0);
  char *text = text_of(&f, pid), *expected = xasprintf("pid %d is gone\n", (int)pid);
  assert_string_equal(text, expected);
  free(text);
  free(expected);
  probe_read(0, &f);
  assert_int_equal(f.state, 0);
  pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT); /* a zombie: it has no stack, no child, no call */
  probe_read(pid, &f);
  assert_int_equal(f.state, 'Z');
  child_end(pid);
}

/* The driver. ------------------------------------------------------------------------------------------------------ */

static struct {
  uv_loop_t loop;
  uv_timer_t timer;
  struct probe *p;
  struct probe_facts facts[4];
  int n_facts, n_all, n_done;
  bool end_at_facts;
  uint64_t done_ms;
  struct buf lines;
} d;

static void on_fact(void *ctx, uint32_t local_rank, const struct probe_facts *f) {
  d.facts[local_rank] = *f;
  d.n_facts++;
}

static void on_facts(void *ctx) {
  d.n_all++;
  if (d.end_at_facts) probe_end(d.p);
}

static void on_done(void *ctx) {
  d.n_done++;
  d.done_ms = boot_ms();
}

static void on_line(void *ctx, enum log_level level, const char *line) {
  buf_printf(&d.lines, "%s\n", line);
}

static void setup_open(void) {
  static const struct probe_callbacks callbacks = {on_fact, on_facts, on_done};
  memset(&d, 0, sizeof(d));
  assert_int_equal(uv_loop_init(&d.loop), 0);
  uv_timer_init(&d.loop, &d.timer);
  d.p = probe_create(&d.loop, &callbacks, &d);
  log_init("test", LOG_INFO);
  log_set_sink(on_line, &d);
}

static void setup_close(void) {
  probe_destroy(d.p);
  uv_close((uv_handle_t *)&d.timer, NULL);
  assert_int_equal(uv_run(&d.loop, UV_RUN_DEFAULT), 0);
  assert_int_equal(uv_loop_close(&d.loop), 0);
  log_set_sink(NULL, NULL);
  buf_finish(&d.lines);
}

static void on_end(uv_timer_t *timer) {
  uv_stop(timer->loop);
}

/* Until on_done, and all is written. */
static void run_until_done(void) {
  uint64_t end = boot_ms() + PATIENCE_MS;
  while ((!d.n_done || loop_writes()) && boot_ms() < end) {
    uv_timer_start(&d.timer, on_end, 5, 0);
    uv_run(&d.loop, UV_RUN_DEFAULT);
  }
  assert_int_equal(d.n_done, 1);
  assert_int_equal(loop_writes(), 0);
}

/* A tool of ours in front of all others in PATH. */
static void put_tool(const char *name, const char *script) {
  char *file = xasprintf("%s/%s", dir, name);
  FILE *f = fopen(file, "w");
  assert_non_null(f);
  fprintf(f, "#!/bin/sh\n%s\n", script);
  fclose(f);
  chmod(file, 0755);
  free(file);
}

static void remove_tools(void) {
  static const char *const names[] = {"eu-stack", "gdb", "py-spy", "hang.txt"};
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
    char *file = xasprintf("%s/%s", dir, names[i]);
    unlink(file);
    free(file);
  }
}

static char *read_all(const char *file) {
  struct buf b = BUF_INIT;
  FILE *f = fopen(file, "r");
  assert_non_null(f);
  for (size_t n; (n = fread(buf_reserve(&b, 4096), 1, 4096, f)) > 0;) buf_commit(&b, n);
  fclose(f);
  buf_puts(&b, "");
  return buf_steal(&b);
}

UNIT_TEST(test_facts_and_stacks) {
  pid_t stopped = child("stop"), reading = child("read");
  struct probe_facts f;
  read_until(stopped, 'T', 1, NULL, &f);
  read_until(reading, 'S', 1, NULL, &f);
  put_tool("eu-stack", "echo \"#0 of $2\"; echo oops >&2; printf '\\033[1mno end'");
  setup_open();
  char *file = xasprintf("%s/hang.txt", dir);
  const struct probe_target targets[] = {{1, 5, stopped, file}, {0, 4, reading, NULL}};
  probe_begin(d.p, targets, 2, LOG_WARN, true, PROBE_MS);
  run_until_done();
  assert_int_equal(d.n_facts, 2);
  assert_int_equal(d.n_all, 1);
  assert_int_equal(d.facts[1].state, 'T');
  assert_int_equal(d.facts[0].state, 'S');
  char *line = xasprintf("  rank 5: pid %d (", (int)stopped), *frame = xasprintf("  | #0 of %d\n", (int)reading);
  assert_non_null(strstr(d.lines.data, line));
  assert_non_null(strstr(d.lines.data, "  rank 5: eu-stack says:\n"));
  assert_non_null(strstr(d.lines.data, "  | oops\n"));
  assert_non_null(strstr(d.lines.data, "  |  [1mno end\n")); /* nothing that moves the cursor */
  assert_non_null(strstr(d.lines.data, frame));
  char *text = read_all(file);
  assert_non_null(strstr(text, "state T"));
  assert_non_null(strstr(text, "\neu-stack says:\n"));
  assert_non_null(strstr(text, "\033[1mno end")); /* a file has it as it was */
  free(text);
  free(line);
  free(frame);
  free(file);
  setup_close();
  remove_tools();
  child_end(stopped);
  child_end(reading);
}

UNIT_TEST(test_without_stacks) {
  pid_t stopped = child("stop");
  put_tool("eu-stack", "echo never");
  setup_open();
  const struct probe_target target = {0, 0, stopped, NULL};
  probe_begin(d.p, &target, 1, LOG_WARN, false, PROBE_MS);
  run_until_done();
  assert_int_equal(d.n_facts, 1);
  assert_null(strstr(d.lines.data, "never"));
  setup_close();
  remove_tools();
  child_end(stopped);
}

/* A tool that hangs is killed with what it has said; one that says too much is cut. */
UNIT_TEST(test_a_tool_that_hangs) {
  pid_t stopped = child("stop");
  put_tool("eu-stack", "echo first; exec sleep 60");
  setup_open();
  const struct probe_target target = {0, 0, stopped, NULL};
  uint64_t begun = boot_ms();
  probe_begin(d.p, &target, 1, LOG_WARN, true, PROBE_MS);
  run_until_done();
  assert_true(d.done_ms - begun >= PROBE_MS - 50);
  assert_non_null(strstr(d.lines.data, "  | first\n"));
  assert_non_null(strstr(d.lines.data, "  | (it did not finish in time)\n"));
  setup_close();
  put_tool("eu-stack", "yes '#0 again' | head -c 1000000");
  setup_open();
  probe_begin(d.p, &target, 1, LOG_WARN, true, PROBE_MS);
  run_until_done();
  unsigned n = 0;
  for (const char *p = d.lines.data; (p = strstr(p, "#0 again")); p++) n++;
  assert_int_equal(n, PROBE_LINES_MAX);
  assert_non_null(strstr(d.lines.data, "  | ... (--log-dir keeps all of it, in hang.txt)\n"));
  setup_close();
  remove_tools();
  child_end(stopped);
}

/* The workers are stopped: nothing may hold them, and nobody is told any more. */
UNIT_TEST(test_ended) {
  pid_t stopped = child("stop");
  char *mark = xasprintf("%s/mark", dir), *script = xasprintf("echo $$ > %s; exec sleep 60", mark);
  put_tool("eu-stack", script);
  setup_open();
  const struct probe_target target = {0, 0, stopped, NULL};
  probe_begin(d.p, &target, 1, LOG_WARN, true, PROBE_MS);
  struct stat st;
  for (uint64_t end = boot_ms() + PATIENCE_MS; (stat(mark, &st) || !st.st_size) && boot_ms() < end; usleep(1000))
    uv_run(&d.loop, UV_RUN_NOWAIT);
  char *text = read_all(mark);
  pid_t tool = (pid_t)atoi(text);
  assert_true(tool > 0);
  probe_end(d.p);
  for (uint64_t end = boot_ms() + PATIENCE_MS; kill(tool, 0) == 0 && boot_ms() < end; usleep(1000))
    uv_run(&d.loop, UV_RUN_NOWAIT);
  assert_int_equal(kill(tool, 0), -1);
  assert_int_equal(d.n_done, 0);
  d.end_at_facts = true; /* from within the callback */
  probe_begin(d.p, &target, 1, LOG_WARN, true, PROBE_MS);
  for (uint64_t end = boot_ms() + PATIENCE_MS; !d.n_all && boot_ms() < end; usleep(1000))
    uv_run(&d.loop, UV_RUN_NOWAIT);
  probe_begin(d.p, &target, 1, LOG_WARN, true, PROBE_MS); /* and with a job of the pool under way */
  setup_close();
  unlink(mark);
  free(text);
  free(mark);
  free(script);
  remove_tools();
  child_end(stopped);
}

UNIT_TEST(test_no_target) {
  setup_open();
  probe_begin(d.p, NULL, 0, LOG_WARN, true, PROBE_MS);
  run_until_done();
  assert_int_equal(d.n_all, 1);
  setup_close();
}

int main(void) {
  assert_non_null(mkdtemp(dir));
  char *path = xasprintf("%s:%s", dir, getenv("PATH"));
  setenv("PATH", path, 1);
  free(path);
  int failed = unit_run(NULL, NULL);
  rmdir(dir);
  return failed;
}
