/* SPDX-License-Identifier: Apache-2.0 */
/* The guard: stopping workers, whole trees of them, and what it says of their end. Workers are shell lines, or this
 * program again (argv[1] says which part it plays). */

#include "tests/rig/guard.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/unit.h"
#include "agent/guard/proctree.h"

static char self_path[4096];

GUARD_TEST(test_stop_without_workers) {
  stop(30000);
  struct guard_event ev = expect(GUARD_CLEAR);
  assert_int_equal(ev.round, 7);
}

GUARD_TEST(test_stop_by_term) {
  spawn_shell(0, 2, "exec sleep 60", NULL);
  spawn_shell(1, 2, "sleep 60 & wait", NULL);
  expect(GUARD_STARTED);
  expect(GUARD_STARTED);
  stop(60000); /* longer than the test waits */
  struct guard_event ev = expect(GUARD_EXITED);
  assert_true(WIFSIGNALED(ev.status) && WTERMSIG(ev.status) == SIGTERM);
  expect(GUARD_EXITED);
  ev = expect(GUARD_CLEAR);
  assert_int_equal(ev.killed, 0);
}

/* By the signal that was asked for; another one later is passed on as well. */
GUARD_TEST(test_stop_by_another_signal) {
  int out;
  char line[16];
  spawn_shell(0, 1,
              "exec 2>/dev/null; trap 'echo hup' HUP; trap 'echo usr1; exit 3' USR1; trap 'echo term' TERM; "
              "echo ready; "
              "while :; do sleep 0.05; done",
              &out);
  read_line(out, line, sizeof(line));
  assert_int_equal(guard_stop(&g, 7, SIGHUP, 30000, NULL, NULL), 0);
  read_line(out, line, sizeof(line));
  assert_string_equal(line, "hup");
  assert_int_equal(guard_stop(&g, 7, SIGHUP, 30000, NULL, NULL), 0); /* once */
  assert_int_equal(guard_stop(&g, 7, SIGUSR1, 30000, NULL, NULL), 0);
  struct guard_event ev = await(GUARD_EXITED);
  assert_int_equal(WEXITSTATUS(ev.status), 3);
  await(GUARD_CLEAR);
  char *text = read_all(out);
  assert_string_equal(text, "usr1\n");
  free(text);
}

/* The stop comes when the worker's pipes are closed already: it was dying before, whoever reaps it when. A sibling that
 * dies of the stop was not. */
UNIT_TEST_WITH(test_dying_before_the_stop, NULL, clean) {
  for (int i = 0; i < 20; i++) {
    start();
    int out, status[2] = {0};
    bool unasked[2] = {false, true};
    spawn_shell(0, 2, "kill -SEGV $$", &out);
    spawn_shell(1, 2, "exec sleep 60", NULL);
    free(read_all(out)); /* to its end */
    stop(10000);
    for (int n = 0; n < 2; n++) {
      struct guard_event ev = await(GUARD_EXITED);
      status[ev.local_rank] = ev.status;
      unasked[ev.local_rank] = ev.unasked;
    }
    assert_true(WIFSIGNALED(status[0]) && WTERMSIG(status[0]) == SIGSEGV);
    assert_true(unasked[0]);
    assert_int_equal(WTERMSIG(status[1]), SIGTERM);
    assert_false(unasked[1]);
    await(GUARD_CLEAR);
    finish();
  }
}

GUARD_TEST(test_term_ignored) {
  int out = spawn_ready(0, 1, "trap '' TERM; echo ready; while :; do sleep 60; done");
  uint64_t before = now_ms();
  stop(300);
  await(GUARD_EXITED);
  assert_true(now_ms() - before >= 299);
  struct guard_event ev = expect(GUARD_CLEAR);
  assert_int_equal(ev.round, 7);
  close(out);
}

/* A second stop shortens the grace, and cannot lengthen it. */
GUARD_TEST(test_shorter_grace) {
  int out = spawn_ready(0, 1, "trap '' TERM; echo ready; while :; do sleep 60; done");
  stop(60000); /* longer than the test waits */
  stop(100);
  stop(60000);
  await(GUARD_CLEAR);
  close(out);
}

/* The shell dies of the SIGTERM at once; the program it ran writes its checkpoint and needs a second. It gets it. */
GUARD_TEST(test_grace_of_a_wrapped_worker) {
  int out = spawn_ready(
      0, 1, "sh -c 'trap \"sleep 0.6; echo saved; exit 0\" TERM; echo ready; while :; do sleep 0.1; done'; true");
  stop(10000);
  await(GUARD_CLEAR);
  char *text = read_all(out);
  assert_non_null(strstr(text, "saved"));
  free(text);
}

GUARD_TEST(test_whole_trees) {
  int out = spawn_ready(0, 1, TREE "wait");
  wait_trees(1);
  stop(100);
  struct guard_event ev = await(GUARD_CLEAR);
  assert_true(ev.killed >= 3);
  assert_int_equal(living(0), STAFF);
  close(out);
}

/* The worker ends well and leaves things behind. */
GUARD_TEST(test_leftovers) {
  int out;
  spawn_shell(0, 1, "trap 'exit 0' USR1; " TREE "while :; do wait; done", &out);
  expect(GUARD_STARTED);
  wait_trees(1);
  assert_int_equal(guard_signal(&g, 0, SIGUSR1, NULL), 0);
  struct guard_event ev = expect(GUARD_EXITED);
  assert_int_equal(ev.status, 0);
  bool asked = false, named = false; /* some of them ignore SIGTERM */
  while ((ev = next_event()).kind == GUARD_LEFTOVER) *(ev.error == SIGTERM ? &asked : &named) = true;
  assert_true(asked && named);
  assert_int_equal(ev.kind, GUARD_CLEAR);
  assert_true(ev.killed >= 3);
  assert_int_equal(living(0), STAFF);
  close(out);
}

/* A worker that exits when its uploader is there, which does `what` at SIGTERM. */
#define UPLOADER(what)                                                                                                 \
  "setsid sh -c 'trap \"" what "\" TERM; echo ready; kill -USR1 $PPID; while :; do sleep 0.05; done' & "               \
  "while :; do sleep 0.05; done"

/* An uploader in a session of its own, which the worker left running, hears SIGTERM and ends; nothing is killed. */
GUARD_TEST(test_a_leftover_is_asked_first) {
  int out;
  spawn_shell(0, 1, "trap 'exit 0' USR1; " UPLOADER("echo saved; exit 0"), &out);
  expect(GUARD_STARTED);
  assert_int_equal(expect(GUARD_EXITED).status, 0);
  struct guard_event ev;
  bool named = false; /* beside its sleep */
  while ((ev = next_event()).kind == GUARD_LEFTOVER) {
    assert_int_equal(ev.error, SIGTERM);
    named |= strcmp(ev.text, "sh") == 0;
  }
  assert_true(named);
  assert_int_equal(ev.kind, GUARD_CLEAR);
  assert_int_equal(ev.killed, 0);
  char *text = read_all(out);
  assert_non_null(strstr(text, "saved\n"));
  free(text);
}

/* A stop without a grace comes while the uploader may still end by itself: it is not asked, and has no seconds. */
GUARD_TEST(test_a_leftover_is_killed_by_a_stop_without_a_grace) {
  int out;
  spawn_shell(0, 1, "trap 'exit 0' USR1; " UPLOADER(""), &out);
  expect(GUARD_STARTED);
  assert_int_equal(expect(GUARD_EXITED).status, 0);
  stop(0);
  assert_true(expect(GUARD_CLEAR).killed >= 1); /* no GUARD_LEFTOVER before */
  close(out);
}

/* A worker that failed leaves nothing that is worth waiting for: the next round is to begin. */
GUARD_TEST(test_leftovers_of_a_failure_are_killed) {
  int out = spawn_ready(0, 1, "trap 'exit 3' USR1; " UPLOADER(""));
  expect(GUARD_STARTED);
  assert_int_equal(WEXITSTATUS(expect(GUARD_EXITED).status), 3);
  assert_true(expect(GUARD_CLEAR).killed >= 1); /* no GUARD_LEFTOVER: nobody was asked */
  close(out);
}

/* The first worker is gone before the second is spawned: not clear yet. */
GUARD_TEST(test_clear_counts_the_announced) {
  spawn_shell(0, 2, "exit 0", NULL);
  expect(GUARD_STARTED);
  expect(GUARD_EXITED);
  spawn_shell(1, 2, "exit 0", NULL);
  expect(GUARD_STARTED);
  expect(GUARD_EXITED);
  expect(GUARD_CLEAR);
  struct guard_event ev;
  assert_int_equal(guard_next(&g, &ev), 0);
}

GUARD_TEST(test_spawn_while_stopping) {
  int out = spawn_ready(0, 2, "trap '' TERM; echo ready; sleep 60");
  expect(GUARD_STARTED);
  stop(60000); /* it is not over before the next command comes */
  spawn_shell(1, 2, "exit 0", NULL);
  struct guard_event ev = await(GUARD_EXEC_FAILED);
  assert_int_equal(ev.error, ECANCELED);
  assert_int_equal(ev.local_rank, 1);
  stop(0);
  await(GUARD_CLEAR);
  spawn_shell(0, 1, "exit 0", NULL); /* and the guard is as new */
  expect(GUARD_STARTED);
  close(out);
  await(GUARD_CLEAR);
}

GUARD_TEST(test_signal) {
  int out[2];
  for (uint32_t i = 0; i < 2; i++) {
    out[i] = spawn_ready(i, 2, "trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done");
    expect(GUARD_STARTED);
  }
  assert_int_equal(guard_signal(&g, 1, SIGUSR1, NULL), 0);
  struct guard_event ev = expect(GUARD_EXITED);
  assert_int_equal(ev.local_rank, 1);
  assert_int_equal(guard_signal(&g, -1, SIGUSR1, NULL), 0);
  ev = expect(GUARD_EXITED);
  assert_int_equal(ev.local_rank, 0);
  expect(GUARD_CLEAR);
  close(out[0]);
  close(out[1]);
}

GUARD_TEST(test_many_workers) {
  enum { N = 64 };
  uint64_t before = now_ms();
  for (uint32_t i = 0; i < N; i++) spawn_shell(i, N, "exec sleep 60", NULL);
  for (int i = 0; i < N; i++) expect(GUARD_STARTED);
  print_message("%d workers run after %u ms\n", N, (unsigned)(now_ms() - before));
  before = now_ms();
  stop(10000);
  for (int i = 0; i < N; i++) expect(GUARD_EXITED);
  expect(GUARD_CLEAR);
  print_message("and are gone after %u ms\n", (unsigned)(now_ms() - before));
}

/* This program as a worker: forks on and on, each child in a session of its own, a thousand times at most. */
static int play_storm(void) {
  signal(SIGTERM, SIG_IGN);
  for (int i = 0; i < 1000; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      setsid();
      if (i % 2 && fork() > 0) _exit(0); /* half of them let go of their parent */
      alarm(20);
      pause();
      _exit(0);
    }
    if (i == 50 && write(STDOUT_FILENO, "ready\n", 6) != 6) return 1;
    if (i % 3 == 0) usleep(200);
  }
  pause();
  return 0;
}

UNIT_TEST_WITH(test_fork_storm, NULL, clean) {
  start();
  int out = spawn_env_ready(0, 1, (const char *const[]){self_path, "storm", NULL}, plain_env);
  stop(20);
  struct guard_event ev = await(GUARD_CLEAR);
  assert_int_equal(living(0), STAFF);
  assert_true(ev.killed >= 50);
  print_message("%u killed\n", ev.killed);
  close(out);
  finish();
}

/* This program as a worker that forks as shells do: with signals blocked. The SIGTERM that comes meanwhile is its own
 * alone. */
static int play_late_child(void) {
  sigset_t term, pending;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, NULL);
  if (write(STDOUT_FILENO, "ready\n", 6) != 6) return 1;
  do {
    usleep(1000);
    sigpending(&pending);
  } while (!sigismember(&pending, SIGTERM));
  bool child = fork() == 0;
  sigprocmask(SIG_UNBLOCK, &term, NULL); /* the parent dies here */
  alarm(60);
  while (child) pause();
  return 2;
}

UNIT_TEST_WITH(test_child_forked_at_the_stop, NULL, clean) {
  start();
  int out = spawn_env_ready(0, 1, (const char *const[]){self_path, "late child", NULL}, plain_env);
  stop(60000); /* longer than the test waits: the child must have been told */
  assert_int_equal(WTERMSIG(await(GUARD_EXITED).status), SIGTERM);
  struct guard_event ev = expect(GUARD_CLEAR);
  assert_int_equal(ev.killed, 0);
  close(out);
  finish();
}

/* Somebody traces the worker and does not let it go: dead, but not gone. It is named, and CLEAR waits. */
GUARD_TEST(test_stuck) {
  spawn_env(0, 1, (const char *const[]){"sleep", "60", NULL}, plain_env, NULL);
  pid_t pid = expect(GUARD_STARTED).pid;
  if (ptrace(PTRACE_SEIZE, pid, NULL, NULL)) {
    guard_finish(&g, PATIENCE_MS);
    skip();
  }
  stop(0);
  struct guard_event ev = expect(GUARD_STUCK);
  assert_int_equal(ev.pid, pid);
  assert_int_equal(ev.error, 'Z');
  assert_string_equal(ev.text, "sleep");
  assert_int_equal(guard_next(&g, &ev), 0);
  assert_int_equal(waitpid(pid, NULL, __WALL), pid);
  expect(GUARD_EXITED);
  expect(GUARD_CLEAR);
}

/* --------------------------------------------------------------- proctree */

UNIT_TEST_WITH(test_stat_is_parsed, NULL, clean) {
  struct proc p;
  assert_true(proc_parse("12 (a) b) (c) S 7 1 1 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 98765 11 22", &p));
  assert_int_equal(p.pid, 12);
  assert_int_equal(p.ppid, 7);
  assert_int_equal(p.state, 'S');
  assert_int_equal(p.start, 98765);
  assert_string_equal(p.name, "a) b) (c");
  assert_false(proc_parse("", &p));
  assert_false(proc_parse("12 (abc", &p));
  assert_false(proc_parse("12 (abc) S 7 1 1", &p));
  assert_true(proc_read(getpid(), &p));
  assert_int_equal(p.ppid, getppid());
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "storm") == 0) return play_storm();
  if (argc > 1 && strcmp(argv[1], "late child") == 0) return play_late_child();
  if (readlink("/proc/self/exe", self_path, sizeof(self_path) - 1) < 0) return 1;
  alarm(110); /* a hang is a failure */
  return unit_run(NULL, NULL);
}
