/* SPDX-License-Identifier: Apache-2.0 */
/* common/system/helper.c with real shells: they answer, fail, hang, talk too much, leave a child with their pipes behind,
 * and cannot be started. */

#include "common/system/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/clock.h"
#include "tests/rig/unit.h"

enum { PATIENCE_MS = 20000, FOREVER_MS = 60000 };

struct rig {
  uv_loop_t loop;
  struct helper *h;
  struct buf lines; /* "out: text\n" or "err: text\n" */
  struct helper_end end;
  struct err why;
  int n_ends, n_texts;
  const char *destroy_at; /* a line that destroys the helper */
};

static int set_up(void **state) {
  struct rig *r = xcalloc(1, sizeof *r);
  assert_int_equal(uv_loop_init(&r->loop), 0);
  *state = r;
  return 0;
}

/* The loop has no handle left, within the time that a dying process has. */
static int tear_down(void **state) {
  struct rig *r = *state;
  helper_destroy(r->h);
  uv_run(&r->loop, UV_RUN_DEFAULT);
  assert_int_equal(uv_loop_close(&r->loop), 0);
  buf_finish(&r->lines);
  free(r);
  return 0;
}

static void on_line(void *ctx, enum helper_stream from, const char *line, size_t len) {
  struct rig *r = ctx;
  assert_non_null(r->h);
  buf_puts(&r->lines, from == HELPER_OUT ? "out: " : "err: ");
  buf_append(&r->lines, line, len);
  buf_putc(&r->lines, '\n');
  if (!r->destroy_at || strlen(r->destroy_at) != len || memcmp(line, r->destroy_at, len) != 0) return;
  helper_destroy(r->h);
  r->h = NULL;
}

static void on_text(void *ctx, enum helper_stream from) {
  struct rig *r = ctx;
  r->n_texts++;
}

static void on_end(void *ctx, const struct helper_end *end) {
  struct rig *r = ctx;
  r->end = *end;
  r->n_ends++;
  helper_explain_end(r->h, end, &r->why);
}

static struct helper_options by_lines(struct rig *r, char **argv) {
  return (struct helper_options){.loop = &r->loop,
                                 .name = "the shell",
                                 .file = "/bin/sh",
                                 .argv = argv,
                                 .output = {{.line_max = 1000}, {.line_max = 1000}},
                                 .on_line = on_line,
                                 .on_end = on_end,
                                 .ctx = r};
}

static char *shell_argv[] = {(char[]){"sh"}, (char[]){"-c"}, NULL, NULL};

static struct helper_options shell(struct rig *r, const char *script) {
  shell_argv[2] = (char *)(uintptr_t)script;
  return by_lines(r, shell_argv);
}

static void start(struct rig *r, const struct helper_options *o) {
  struct err e = ERR_INIT;
  if (helper_start(o, &r->h, &e)) fail_msg("%s", e.text);
}

static void on_tick(uv_timer_t *timer) {}

/* Runs the loop until the condition holds; a timer wakes it. */
#define AWAIT(r, condition)                                                                                            \
  do {                                                                                                                 \
    uv_timer_t tick;                                                                                                   \
    uint64_t end_ms = boot_ms() + PATIENCE_MS;                                                                         \
    uv_timer_init(&(r)->loop, &tick);                                                                                  \
    uv_timer_start(&tick, on_tick, 5, 5);                                                                              \
    while (!(condition) && boot_ms() < end_ms) uv_run(&(r)->loop, UV_RUN_ONCE);                                        \
    uv_close((uv_handle_t *)&tick, NULL);                                                                              \
    uv_run(&(r)->loop, UV_RUN_NOWAIT);                                                                                 \
    assert_true(condition);                                                                                            \
  } while (0)

static pid_t pid_after(const struct rig *r, const char *word) {
  const char *at = strstr(buf_text(&r->lines), word);
  return at ? (pid_t)strtol(at + strlen(word), NULL, 10) : 0;
}

UNIT_TEST_WITH(test_success, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "echo one; echo two >&2; printf rest");
  start(r, &o);
  assert_int_equal(r->n_ends, 0);
  assert_true(helper_pid(r->h) > 0);
  AWAIT(r, r->n_ends);
  assert_int_equal(r->n_ends, 1);
  assert_false(r->end.late);
  assert_int_equal(r->end.status, 0);
  assert_int_equal(r->end.signo, 0);
  assert_true(helper_has_exited(r->h) && helper_out_has_ended(r->h));
  assert_non_null(strstr(r->lines.data, "out: one\n"));
  assert_non_null(strstr(r->lines.data, "err: two\n"));
  assert_non_null(strstr(r->lines.data, "out: rest\n"));
}

UNIT_TEST_WITH(test_exit_code, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "exit 3");
  start(r, &o);
  AWAIT(r, r->n_ends);
  assert_int_equal(r->end.status, 3);
  assert_int_equal(r->why.code, -EIO);
  SCOPED(unit_free) char *expected = xasprintf("the shell (pid %d) exited with code 3", (int)helper_pid(r->h));
  assert_string_equal(r->why.text, expected);
}

UNIT_TEST_WITH(test_signal, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "echo ready; exec sleep 60");
  start(r, &o);
  AWAIT(r, r->lines.len);
  helper_signal(r->h, SIGTERM);
  AWAIT(r, r->n_ends);
  assert_int_equal(r->end.signo, SIGTERM);
  assert_non_null(strstr(r->why.text, " was killed by signal 15"));
  helper_signal(r->h, SIGTERM); /* nobody's pid any more */
}

UNIT_TEST_WITH(test_deadline, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "trap '' TERM; sleep 60 & echo child $! shell $$; wait");
  o.deadline_ms = 300;
  start(r, &o);
  AWAIT(r, r->n_ends);
  assert_true(r->end.late);
  pid_t child = pid_after(r, "child "), sh = pid_after(r, "shell ");
  assert_true(child > 0 && sh > 0);
  AWAIT(r, helper_has_exited(r->h));
  AWAIT(r, helper_is_gone(sh));
  AWAIT(r, helper_is_gone(child)); /* the whole group */
  assert_int_equal(r->n_ends, 1);
}

UNIT_TEST_WITH(test_text_over_the_bound, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "yes 1234567 | head -c 1000000; echo oops >&2");
  o.output[HELPER_OUT] = o.output[HELPER_ERR] = (struct helper_output){.text_max = 1000};
  o.on_text = on_text;
  start(r, &o);
  AWAIT(r, r->n_ends);
  assert_int_equal(r->end.status, 0); /* it could write all of it */
  assert_int_equal(helper_text(r->h, HELPER_OUT)->len, 1000);
  assert_int_equal(strncmp(buf_text(helper_text(r->h, HELPER_OUT)), "1234567\n1234567\n", 16), 0);
  assert_string_equal(buf_text(helper_text(r->h, HELPER_ERR)), "oops\n");
  assert_true(r->n_texts >= 2);
}

UNIT_TEST_WITH(test_a_line_over_the_bound, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "echo abcdefgh");
  o.output[HELPER_OUT].line_max = 5;
  start(r, &o);
  AWAIT(r, r->n_ends);
  assert_string_equal(buf_text(&r->lines), "out: abcde\nout: fgh\n");
}

UNIT_TEST_WITH(test_whole_lines, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "echo one; printf tw");
  o.output[HELPER_OUT].whole = true;
  start(r, &o);
  AWAIT(r, r->n_ends);
  assert_string_equal(buf_text(&r->lines), "out: one\n");
}

UNIT_TEST_WITH(test_a_grandchild_holds_the_pipes, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "sleep 60 & echo child $!");
  uint64_t begun_ms = boot_ms();
  start(r, &o);
  AWAIT(r, r->n_ends);
  pid_t child = pid_after(r, "child ");
  assert_true(child > 0 && boot_ms() - begun_ms < PATIENCE_MS);
  assert_false(helper_is_gone(child)); /* what was left behind on purpose stays */
  kill(child, SIGKILL);
}

UNIT_TEST_WITH(test_output_after_the_exit, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "(while kill -0 $$ 2>/dev/null; do sleep 0.02; done; echo late) &");
  o.linger_ms = FOREVER_MS;
  start(r, &o);
  AWAIT(r, r->n_ends);
  assert_string_equal(buf_text(&r->lines), "out: late\n");
  helper_destroy(r->h);
  o = shell(r, "sleep 60 & echo child $!"); /* and no longer than that */
  o.linger_ms = 100;
  r->n_ends = 0;
  start(r, &o);
  AWAIT(r, r->n_ends);
  kill(pid_after(r, "child "), SIGKILL);
}

UNIT_TEST_WITH(test_pause, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "echo first; read x; echo last");
  o.input = true;
  start(r, &o);
  AWAIT(r, r->lines.len);
  helper_pause(r->h, true);
  helper_close_input(r->h);
  AWAIT(r, helper_has_exited(r->h));
  assert_int_equal(r->n_ends, 0);
  assert_string_equal(buf_text(&r->lines), "out: first\n");
  helper_pause(r->h, false);
  AWAIT(r, r->n_ends);
  assert_string_equal(buf_text(&r->lines), "out: first\nout: last\n");
}

UNIT_TEST_WITH(test_input, set_up, tear_down) {
  struct rig *r = *state;
  struct buf text = BUF_INIT;
  int begin[2];
  struct helper_options o = shell(r, "read x <&3; wc -c; exit 4");
  assert_int_equal(pipe2(begin, O_CLOEXEC), 0);
  o.input = true;
  o.fd3 = begin[0];
  start(r, &o);
  for (int i = 0; i < 300000; i++) buf_putc(&text, 'x');
  helper_send(r->h, &text); /* more than a pipe holds */
  assert_int_equal(text.len, 0);
  assert_true(helper_send_waits(r->h) > 0);
  close(begin[0]);
  close(begin[1]); /* it begins to read */
  helper_end_input(r->h);
  AWAIT(r, r->n_ends);
  assert_string_equal(buf_text(&r->lines), "out: 300000\n");
  assert_int_equal(r->end.status, 4);
  buf_puts(&text, "too late");
  helper_send(r->h, &text);
  assert_int_equal(helper_send_waits(r->h), 0);
}

UNIT_TEST_WITH(test_environment_folder_descriptor, set_up, tear_down) {
  struct rig *r = *state;
  int ends[2];
  char *env[] = {(char[]){"WORD=blue"}, NULL};
  assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
  assert_int_equal(write(ends[1], "secret\n", 7), 7);
  struct helper_options o = shell(r, "echo $WORD $HOME; pwd; read x <&3; echo $x");
  o.env = env;
  o.cwd = "/";
  o.fd3 = ends[0];
  start(r, &o);
  AWAIT(r, r->n_ends);
  close(ends[0]);
  close(ends[1]);
  assert_string_equal(buf_text(&r->lines), "out: blue\nout: /\nout: secret\n");
}

UNIT_TEST_WITH(test_cannot_be_started, set_up, tear_down) {
  struct rig *r = *state;
  struct err e = ERR_INIT;
  struct helper_options o = shell(r, "");
  o.file = "/nowhere/sh";
  o.input = true;
  assert_int_equal(helper_start(&o, &r->h, &e), -ENOENT);
  assert_null(r->h);
  assert_string_equal(e.text, "the shell cannot be started: No such file or directory");
  char *argv[] = {(char[]){"rdzv-nothing"}, NULL};
  o = by_lines(r, argv);
  o.file = NULL;
  assert_int_equal(helper_start(&o, &r->h, &e), -ENOENT);
  assert_int_equal(strncmp(e.text, "rdzv-nothing is neither beside this program", 43), 0);
  assert_int_equal(r->n_ends, 0);
}

UNIT_TEST_WITH(test_destroyed_while_it_runs, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "sleep 60 & echo child $! shell $$; wait");
  o.deadline_ms = FOREVER_MS;
  start(r, &o);
  AWAIT(r, r->lines.len);
  uint64_t begun_ms = boot_ms();
  helper_destroy(r->h);
  r->h = NULL;
  uv_run(&r->loop, UV_RUN_DEFAULT); /* the loop reaps it */
  assert_true(boot_ms() - begun_ms < PATIENCE_MS);
  assert_true(helper_is_gone(pid_after(r, "shell ")));
  AWAIT(r, helper_is_gone(pid_after(r, "child ")));
  assert_int_equal(r->n_ends, 0);
}

UNIT_TEST_WITH(test_joined, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "echo ready; exec sleep 60");
  o.joined = true;
  start(r, &o);
  AWAIT(r, r->lines.len);
  pid_t pid = helper_pid(r->h);
  assert_int_equal(getpgid(pid), getpgid(0));
  helper_destroy(r->h); /* and we live */
  r->h = NULL;
  AWAIT(r, helper_is_gone(pid));
}

UNIT_TEST_WITH(test_destroyed_in_a_callback, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "printf 'a\\nstop\\nb\\n'; exec sleep 60");
  r->destroy_at = "stop";
  start(r, &o);
  AWAIT(r, !r->h);
  uv_run(&r->loop, UV_RUN_DEFAULT);
  assert_string_equal(buf_text(&r->lines), "out: a\nout: stop\n");
  assert_int_equal(r->n_ends, 0);
}

/* The loop does not wait for a process that does not die. It is reaped later. */
UNIT_TEST_WITH(test_unreaped, set_up, tear_down) {
  struct rig *r = *state;
  struct helper_options o = shell(r, "echo ready; exec sleep 60");
  start(r, &o);
  AWAIT(r, r->lines.len);
  pid_t pid = helper_pid(r->h);
  helper_destroy(r->h);
  r->h = NULL;
  usleep(2 * HELPER_DEATH_MS * 1000); /* the loop sees the timer and the death in one turn */
  uv_run(&r->loop, UV_RUN_DEFAULT);
  AWAIT(r, helper_is_gone(pid));
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  return unit_run(NULL, NULL);
}
