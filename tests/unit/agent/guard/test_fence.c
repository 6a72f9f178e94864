/* SPDX-License-Identifier: Apache-2.0 */
/* The guard's deadline: it is kept when the agent (this process) says nothing any more, moved, taken back, and
 * nothing is started behind it. */

#include "tests/rig/guard.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <poll.h>
#include <unistd.h>
#include "tests/rig/unit.h"
#include "common/system/clock.h"

static void fence_at(uint64_t at_ms) {
  assert_int_equal(guard_fence(&g, at_ms, 0, NULL), 0);
}

/* Two workers with whole trees, which take no notice of SIGTERM. */
static void spawn_trees(void) {
  for (uint32_t i = 0; i < 2; i++) {
    close(spawn_ready(i, 2, TREE "trap '' TERM; while :; do sleep 60; done"));
    expect(GUARD_STARTED);
  }
  wait_trees(2);
}

/* FENCED first, so that the deaths behind it are known to be our own doing. */
static void expect_fenced(uint64_t at_ms) {
  struct guard_event ev = expect(GUARD_FENCED);
  assert_int_equal(ev.round, 7);
  assert_true(ev.when_ms >= at_ms);
  for (int i = 0; i < 2; i++) {
    ev = expect(GUARD_EXITED);
    assert_true(WIFSIGNALED(ev.status) && WTERMSIG(ev.status) == SIGKILL);
    assert_false(ev.unasked);
  }
  expect(GUARD_CLEAR);
  assert_int_equal(living(0), STAFF);
}

GUARD_TEST(test_the_deadline_passes) {
  spawn_trees();
  uint64_t at = boot_ms() + 150;
  fence_at(at);
  expect_fenced(at);
}

GUARD_TEST(test_it_is_moved) {
  spawn_trees();
  uint64_t at = 0;
  for (int i = 0; i < 10; i++) { /* each time before it comes */
    fence_at(at = boot_ms() + 60000);
    poll(NULL, 0, 20);
  }
  struct guard_event ev;
  assert_false(guard_next(&g, &ev));
  fence_at(at = boot_ms() + 100); /* a nearer one counts as well: the test does not wait for the other */
  expect_fenced(at);
}

GUARD_TEST(test_it_is_taken_back) {
  struct guard_event ev;
  spawn_trees();
  uint64_t at = boot_ms() + 2000; /* whatever else this machine does, it is taken back before */
  fence_at(at);
  fence_at(GUARD_NO_FENCE);
  while (boot_ms() < at + 200) poll(NULL, 0, 20);
  assert_false(guard_next(&g, &ev));
  stop(0);
  await(GUARD_CLEAR);
}

GUARD_TEST(test_it_ends_a_grace) {
  spawn_trees();
  uint64_t at = boot_ms() + 200;
  fence_at(at);
  stop(60000); /* longer than the test waits */
  expect(GUARD_FENCED);
  assert_true(boot_ms() >= at);
  await(GUARD_CLEAR);
}

/* Of finished workers only children are left, in sessions of their own, deaf to SIGTERM, or stopped. */
GUARD_TEST(test_it_ends_what_finished_workers_left) {
  int out = spawn_ready(0, 1, "trap 'exit 0' USR1; " TREE "setsid sh -c 'kill -STOP $$' & while :; do wait; done");
  expect(GUARD_STARTED);
  wait_trees(1);
  assert_int_equal(guard_signal(&g, 0, SIGUSR1, NULL), 0);
  assert_int_equal(expect(GUARD_EXITED).status, 0);
  uint64_t at = boot_ms() + 20; /* before any of them is asked */
  fence_at(at);
  assert_true(expect(GUARD_FENCED).when_ms >= at);
  assert_true(expect(GUARD_CLEAR).killed >= TREE_SLEEPS);
  assert_int_equal(living(0), STAFF);
  close(out);
}

/* A worker that is slow to die, as one with a large model is, hides its children: here a tracer holds it in its exit. */
GUARD_TEST(test_a_worker_that_is_slow_to_die) {
  int out = spawn_ready(0, 1, TREE "while :; do sleep 60; done");
  pid_t pid = expect(GUARD_STARTED).pid;
  wait_trees(1);
  if (ptrace(PTRACE_SEIZE, pid, NULL, (void *)PTRACE_O_TRACEEXIT)) {
    guard_finish(&g, PATIENCE_MS);
    skip();
  }
  fence_at(boot_ms());
  expect(GUARD_FENCED);
  uint64_t deadline = boot_ms() + PATIENCE_MS;
  while (living(0) > STAFF + 1) { /* and the one that hangs */
    assert_true(boot_ms() < deadline);
    poll(NULL, 0, 5);
  }
  assert_int_equal(waitpid(pid, NULL, __WALL), pid);
  assert_int_equal(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
  await(GUARD_CLEAR);
  assert_int_equal(living(0), STAFF);
  close(out);
}

/* With nothing at hand it means nothing, but nothing is started behind it until it is moved. */
GUARD_TEST(test_nothing_starts_behind_it) {
  struct guard_event ev;
  fence_at(boot_ms());
  poll(NULL, 0, 50);
  assert_false(guard_next(&g, &ev));
  int out;
  spawn_shell(0, 1, "echo alive", &out);
  expect(GUARD_FENCED);
  ev = expect(GUARD_CLEAR);
  assert_int_equal(ev.round, 7);
  char *text = read_all(out);
  assert_string_equal(text, "");
  free(text);
  fence_at(boot_ms() + 60000);
  spawn_shell(0, 1, "echo alive", &out);
  text = read_all(out);
  assert_string_equal(text, "alive\n");
  free(text);
  expect(GUARD_STARTED);
  await(GUARD_CLEAR);
}

/* The agent is another process, and stopped. */
UNIT_TEST_WITH(test_a_stopped_agent, NULL, clean) {
  int ready[2];
  assert_int_equal(pipe(ready), 0);
  assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  pid_t agent = fork();
  if (agent == 0) {
    start();
    spawn_trees();
    fence_at(boot_ms() + 400);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char x;
  assert_int_equal(read(ready[0], &x, 1), 1);
  kill(agent, SIGSTOP);
  uint64_t deadline = boot_ms() + PATIENCE_MS;
  while (living(0) > 1 + STAFF) { /* the agent too */
    if (boot_ms() > deadline) fail_msg("%zu processes live on", living(0));
    poll(NULL, 0, 5);
  }
  kill(agent, SIGKILL);
  waitpid(agent, NULL, 0);
  while (living(0) > 0 && boot_ms() < deadline) poll(NULL, 0, 5);
  assert_int_equal(living(0), 0);
  close(ready[0]);
  close(ready[1]);
}

int main(void) {
  alarm(110); /* a hang is a failure */
  return unit_run(NULL, NULL);
}
