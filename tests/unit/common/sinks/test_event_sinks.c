/* SPDX-License-Identifier: Apache-2.0 */
/* event_sinks: the file of --events and the command of --on-event, with real files, pipes and processes. */

#include "common/sinks/event_sinks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/sinks/event_file.h"
#include "common/system/clock.h"
#include "common/system/log.h"
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

static struct tree tree;
static struct buf said;
static uv_loop_t loop;
static uv_timer_t program; /* stands for the rest of it: the sinks alone keep no loop alive */

static void keep_line(void *ctx, enum log_level level, const char *line) {
  buf_puts(&said, line);
  buf_putc(&said, '\n');
}

static bool was_said(const char *words) {
  return strstr(buf_text(&said), words) != NULL;
}

static void path_of(const char *name, char *out, size_t size) {
  snprintf(out, size, "%s/%s", tree.root, name);
}

static char *read_all(const char *path) {
  struct buf b = BUF_INIT;
  FILE *f = fopen(path, "r");
  char room[4096];
  for (size_t n; f && (n = fread(room, 1, sizeof room, f)) > 0;) buf_append(&b, room, n);
  if (f) fclose(f);
  return b.len ? buf_steal(&b) : xstrdup("");
}

static bool file_is(const char *path, const char *want) {
  char *got = read_all(path);
  bool same = !strcmp(got, want);
  free(got);
  return same;
}

/* Turns the loop until the condition holds; fails after 20 s. */
#define AWAIT(condition)                                                                                               \
  for (uint64_t until_ms = monotonic_ms() + 20000; !(condition);) {                                                    \
    if (monotonic_ms() > until_ms) fail_msg("never: %s; said: %s", #condition, buf_text(&said));                       \
    uv_run(&loop, UV_RUN_NOWAIT);                                                                                      \
    usleep(1000);                                                                                                      \
  }

static void on_program(uv_timer_t *timer) {}

static void keep_program(void) {
  uv_timer_start(&program, on_program, 600000, 0);
}

static struct event_sinks *open_sinks(const char *file, const char *command, unsigned last_ms) {
  return event_sinks_create(
      &loop, &(struct event_sinks_options){
                 .file = file, .command = command, .names = "failed,ended", .last_ms = last_ms, .one_job = true});
}

static void close_sinks(struct event_sinks *s) {
  event_sinks_close(s);
  uv_timer_stop(&program);
  uv_run(&loop, UV_RUN_DEFAULT); /* it ends by itself: no handle is left */
  keep_program();
  assert_true(event_sinks_are_closed(s));
  event_sinks_destroy(s);
}

static int set_up(void **state) {
  tree_init(&tree);
  buf_clear(&said);
  int rc = uv_loop_init(&loop);
  uv_timer_init(&loop, &program);
  keep_program();
  return rc;
}

static int tear_down(void **state) {
  tree_finish(&tree);
  uv_close((uv_handle_t *)&program, NULL);
  uv_run(&loop, UV_RUN_DEFAULT);
  return uv_loop_close(&loop);
}

/* The file. -------------------------------------------------------------------------------------------------------- */

UNIT_TEST_WITH(test_nothing, set_up, tear_down) {
  assert_null(open_sinks(NULL, NULL, 100));
  event_sinks_put(NULL, "", "rdzv.job.ended", "{}");
  close_sinks(NULL);
}

UNIT_TEST_WITH(test_a_file, set_up, tear_down) {
  char path[96];
  path_of("ev", path, sizeof path);
  struct event_sinks *s = open_sinks(path, NULL, 100);
  event_sinks_put(s, "", "rdzv.node.joined", "{\"a\":1}");
  event_sinks_put(s, "", "rdzv.unheard.of", "{\"b\":2}");
  close_sinks(s); /* what was put before is written */
  assert_true(file_is(path, "{\"a\":1}\n{\"b\":2}\n"));
  s = open_sinks(path, NULL, 100);
  event_sinks_put(s, "", "rdzv.node.joined", "{}");
  close_sinks(s);
  assert_true(file_is(path, "{\"a\":1}\n{\"b\":2}\n{}\n")); /* appended */
  assert_int_equal(said.len, 0);
}

UNIT_TEST_WITH(test_a_file_is_renamed, set_up, tear_down) {
  char path[96], old[96];
  path_of("ev", path, sizeof path);
  path_of("ev.1", old, sizeof old);
  struct event_sinks *s = open_sinks(path, NULL, 100);
  event_sinks_put(s, "", "x", "{1}");
  AWAIT(file_is(path, "{1}\n"));
  assert_int_equal(rename(path, old), 0);
  event_sinks_put(s, "", "x", "{2}");
  AWAIT(file_is(path, "{2}\n"));
  assert_int_equal(unlink(path), 0);
  event_sinks_put(s, "", "x", "{3}");
  close_sinks(s);
  assert_true(file_is(path, "{3}\n") && file_is(old, "{1}\n"));
}

/* A wrong path is told at once, before there is an event; events wait until it is right. */
UNIT_TEST_WITH(test_a_folder_that_comes_late, set_up, tear_down) {
  char path[96], folder[96];
  path_of("late", folder, sizeof folder);
  path_of("late/ev", path, sizeof path);
  struct event_sinks *s = open_sinks(path, NULL, 100);
  AWAIT(was_said("late/ev cannot be written: No such file or directory; events wait until it can"));
  event_sinks_put(s, "", "x", "{1}");
  assert_int_equal(mkdir(folder, 0700), 0);
  AWAIT(file_is(path, "{1}\n"));
  AWAIT(was_said("is written again; 0 events were dropped"));
  close_sinks(s);
}

UNIT_TEST_WITH(test_a_full_disk, set_up, tear_down) {
  struct event_sinks *s = open_sinks("/dev/full", NULL, 100);
  SCOPED(buf_finish) struct buf line = BUF_INIT;
  event_sinks_put(s, "", "x", "{}");
  AWAIT(was_said("/dev/full cannot be written: No space left on device"));
  for (int i = 0; i < 60000; i++) buf_putc(&line, 'x');
  for (int i = 0; i < 140; i++) event_sinks_put(s, "", "x", buf_text(&line)); /* 139 fit into 8 MiB */
  assert_true(was_said("8 MiB of events wait; further ones are dropped"));
  close_sinks(s);
  assert_true(was_said("/dev/full: 141 events were not written"));
}

/* Then the file says itself how many are missing. */
UNIT_TEST_WITH(test_dropped_events_are_counted_in_the_file, set_up, tear_down) {
  char path[96];
  SCOPED(buf_finish) struct buf line = BUF_INIT;
  path_of("pipe", path, sizeof path);
  assert_int_equal(mkfifo(path, 0600), 0);
  struct event_sinks *s = open_sinks(path, NULL, 100);
  AWAIT(was_said("no process reads this pipe"));
  for (int i = 0; i < 100000; i++) buf_putc(&line, 'x');
  for (int i = 0; i < 88; i++) event_sinks_put(s, "", "x", buf_text(&line)); /* 83 fit */
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  assert_true(fd >= 0);
  SCOPED(buf_finish) struct buf got = BUF_INIT;
  char room[65536];
  AWAIT(({
    for (ssize_t n; (n = read(fd, room, sizeof room)) > 0;) buf_append(&got, room, (size_t)n);
    const char *last = strstr(buf_text(&got), "rdzv.events.dropped");
    last &&strchr(last, '\n');
  }));
  size_t lines = 0;
  for (size_t i = 0; i < got.len; i++) lines += got.data[i] == '\n';
  assert_int_equal(lines, 84);
  assert_non_null(strstr(buf_text(&got), "\"dropped\":5,"));
  assert_int_equal(got.len, 83 * (line.len + 1) + strlen(strstr(buf_text(&got), "{\"name")));
  close_sinks(s);
  close(fd);
}

UNIT_TEST_WITH(test_a_reader_goes, set_up, tear_down) {
  char path[96], room[64];
  path_of("pipe", path, sizeof path);
  assert_int_equal(mkfifo(path, 0600), 0);
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct event_sinks *s = open_sinks(path, NULL, 100);
  event_sinks_put(s, "", "x", "{1}");
  AWAIT(read(fd, room, sizeof room) == 4);
  close(fd);
  event_sinks_put(s, "", "x", "{2}");
  AWAIT(was_said("the process that read this pipe is gone"));
  fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  AWAIT(read(fd, room, sizeof room) == 4);
  assert_memory_equal(room, "{2}\n", 4);
  close_sinks(s);
  close(fd);
}

/* A file server that hangs, as a terminal whose output is held: the write does not return, and nobody waits for it. */
UNIT_TEST_WITH(test_a_write_that_hangs, set_up, tear_down) {
  int fds[2], saved = dup(STDOUT_FILENO);
  SCOPED(buf_finish) struct buf line = BUF_INIT;
  fflush(stdout);
  assert_int_equal(pipe(fds), 0);
  dup2(fds[1], STDOUT_FILENO);
  for (int i = 0; i < 200000; i++) buf_putc(&line, 'x'); /* more than the pipe takes */
  struct event_sinks *s = open_sinks("-", NULL, 100);
  event_sinks_put(s, "", "x", buf_text(&line));
  uint64_t before_ms = monotonic_ms();
  event_sinks_close(s);
  AWAIT(event_sinks_are_closed(s));
  uint64_t took_ms = monotonic_ms() - before_ms;
  dup2(saved, STDOUT_FILENO);
  close(saved);
  assert_true(took_ms >= EVENT_FILE_LAST_MS);
  assert_true(was_said("has not been written within 2 s"));
  close(fds[1]);
  char room[65536]; /* let the thread end: it must touch nothing that is gone */
  for (size_t got = 0; got < line.len;) {
    ssize_t n = read(fds[0], room, sizeof room);
    assert_true(n > 0);
    got += (size_t)n;
  }
  close(fds[0]);
  uv_timer_stop(&program);
  AWAIT(!uv_loop_alive(&loop));
  event_sinks_destroy(s);
}

/* The command. ----------------------------------------------------------------------------------------------------- */

UNIT_TEST_WITH(test_a_command, set_up, tear_down) {
  static const char line[] = "{\"metadata\":{\"message\":\"a \\\"b\\\"\\nc\"}}";
  char command[600], out[96];
  path_of("out", out, sizeof out);
  snprintf(command, sizeof command,
           "cat >>'%s'; printf '%%s: %%s\\n' \"$RDZV_EVENT\" \"$RDZV_EVENT_MESSAGE\" >>'%s'; echo word; printf err >&2",
           out, out);
  struct event_sinks *s = open_sinks(NULL, command, 10000);
  event_sinks_put(s, "", "rdzv.node.joined", "{no}"); /* not one of those that were asked for */
  event_sinks_put(s, "", "rdzv.job.ended", line);
  close_sinks(s); /* it is waited for */
  char *got = read_all(out),
       *want = xasprintf("%s\nrdzv.job.ended: a \"b\"\\nc\n", line); /* the sentence is one line */
  assert_string_equal(got, want);
  assert_true(was_said("--on-event (rdzv.job.ended): word\n") && was_said("--on-event (rdzv.job.ended): err\n"));
  free(got);
  free(want);
}

UNIT_TEST_WITH(test_a_command_fails, set_up, tear_down) {
  struct event_sinks *s = open_sinks(NULL, "printf '\\033[31mred\\n'; exit 7", 10000);
  event_sinks_put(s, "", "rdzv.job.ended", "{}");
  close_sinks(s);
  assert_true(was_said("--on-event (rdzv.job.ended): the command exited with code 7"));
  assert_true(was_said("[31mred") && !strchr(buf_text(&said), 033));
}

/* It does not read its event, and says too much. */
UNIT_TEST_WITH(test_a_talkative_command, set_up, tear_down) {
  struct event_sinks *s =
      open_sinks(NULL, "exec <&-; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done", 10000);
  event_sinks_put(s, "", "rdzv.job.ended", "{}");
  close_sinks(s);
  assert_true(was_said("line 18\n") && !was_said("line 19\n") && was_said("more lines are left out"));
}

static bool is_gone(int pid) {
  return kill(pid, 0) < 0 && errno == ESRCH;
}

/* At the end it has last_ms, and dies with all that it started. */
UNIT_TEST_WITH(test_a_command_that_hangs, set_up, tear_down) {
  char command[600], out[96];
  path_of("pids", out, sizeof out);
  snprintf(command, sizeof command, "sleep 300 & echo $! $$ >'%s.new'; mv '%s.new' '%s'; wait", out, out, out);
  struct event_sinks *s = open_sinks(NULL, command, 300);
  event_sinks_put(s, "", "rdzv.job.ended", "{}");
  AWAIT(access(out, F_OK) == 0);
  char *pids = read_all(out), *rest;
  int child = (int)strtol(pids, &rest, 10), shell = (int)strtol(rest, NULL, 10);
  free(pids);
  close_sinks(s);
  assert_true(was_said("the command is killed: the program that started it ends"));
  AWAIT(is_gone(shell));
  AWAIT(is_gone(child));
}

/* A child that it leaves behind does not hold its pipes. */
UNIT_TEST_WITH(test_a_child_is_left_behind, set_up, tear_down) {
  char command[200], out[96];
  path_of("pid", out, sizeof out);
  snprintf(command, sizeof command, "sleep 300 & echo $! >'%s'; echo done", out);
  struct event_sinks *s = open_sinks(NULL, command, 20000);
  event_sinks_put(s, "", "rdzv.job.ended", "{}");
  close_sinks(s);
  assert_true(was_said("): done"));
  char *pid = read_all(out);
  assert_int_equal(kill((pid_t)strtol(pid, NULL, 10), SIGKILL), 0); /* it lived on */
  free(pid);
}

UNIT_TEST_WITH(test_too_many_events, set_up, tear_down) {
  char command[600], out[96];
  path_of("out", out, sizeof out);
  snprintf(command, sizeof command, "read l; echo \"$l\" >>'%s'", out);
  struct event_sinks *s = open_sinks(NULL, command, 10000);
  for (int i = 0; i < 120; i++) event_sinks_put(s, "", "rdzv.round.failed", "f");
  assert_true(was_said(
      "64 events wait, since the command runs 4 times at once and 30 times a minute at most; 1 further one is dropped"));
  event_sinks_put(s, "", "rdzv.job.ended", "end");
  close_sinks(s);
  char *got = read_all(out);
  size_t lines = 0;
  for (const char *c = got; *c; c++) lines += *c == '\n';
  assert_int_equal(lines, 31);
  assert_non_null(strstr(got, "end\n"));
  assert_true(was_said("the command did not run for 90 events"));
  free(got);
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  log_init("test", LOG_INFO);
  log_set_sink(keep_line, NULL);
  int rc = unit_run(NULL, NULL);
  buf_finish(&said);
  return rc;
}
