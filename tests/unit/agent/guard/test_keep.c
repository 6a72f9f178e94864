/* SPDX-License-Identifier: Apache-2.0 */
/* The guard: workers that outlive their round, and what must not. */

#include "tests/rig/guard.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/unit.h"
#include "agent/guard/proctree.h"
#include "common/system/clock.h"

#define STAYS "sleep 70 & setsid sleep 71 & (sleep 72 &) ; echo ready; exec sleep 73"

static void stop_but(uint32_t round, uint32_t grace_ms, uint64_t keep) {
  struct local_set set = {{keep}};
  assert_int_equal(guard_stop(&g, round, SIGTERM, grace_ms, &set, NULL), 0);
}

enum { KEPT_PROCESSES = 4 };

static size_t sleeps(void) {
  struct proctree t = PROCTREE_INIT;
  size_t n = 0;
  proctree_descendants(&t, 0, 0);
  for (size_t i = 0; i < t.n; i++) n += strcmp(t.v[i].name, "sleep") == 0;
  proctree_finish(&t);
  return n;
}

/* Local rank 0 stays, with children of all kinds; 1 goes, and leaves some behind. Returns 0's pid. */
static pid_t two(void) {
  int out[2];
  char line[16];
  spawn_shell(0, 2, STAYS, &out[0]);
  spawn_shell(1, 2, TREE "exec sleep 74", &out[1]);
  pid_t pids[2] = {0};
  for (int i = 0; i < 2; i++) {
    struct guard_event ev = expect(GUARD_STARTED);
    pids[ev.local_rank] = ev.pid;
    read_line(out[i], line, sizeof(line));
  }
  close(out[0]);
  close(out[1]);
  uint64_t end = now_ms() + PATIENCE_MS;
  while (sleeps() < TREE_SLEEPS + KEPT_PROCESSES + 1) {
    assert_true(now_ms() < end);
    usleep(1000);
  }
  return pids[0];
}

static void wait_living(size_t n) {
  uint64_t end = now_ms() + PATIENCE_MS;
  while (living(0) != n) {
    assert_true(now_ms() < end);
    usleep(1000);
  }
}

UNIT_TEST_WITH(test_the_others_go, NULL, clean) {
  for (int i = 0; i < 10; i++) {
    start();
    pid_t pid = two();
    stop_but(7, 200, 1);
    struct guard_event ev = expect(GUARD_EXITED);
    assert_int_equal(ev.local_rank, 1);
    ev = expect(GUARD_CLEAR);
    assert_int_equal(ev.round, 7);
    assert_int_equal(ev.kept.bits[0], 1);
    assert_int_equal(living(0), KEPT_PROCESSES + STAFF);
    assert_int_equal(kill(pid, 0), 0);
    finish();
    assert_int_equal(living(0), 0);
  }
}

/* It goes on in round 8, beside one that is spawned, and dies there like any other. */
GUARD_TEST(test_the_next_round) {
  pid_t pid = two();
  stop_but(7, 0, 1);
  await(GUARD_CLEAR);
  assert_int_equal(guard_adopt(&g, 8, 2, NULL), 0);
  struct guard_event ev = expect(GUARD_STARTED);
  assert_int_equal(ev.round, 8);
  assert_int_equal(ev.local_rank, 0);
  assert_int_equal(ev.pid, pid);
  const char *argv[] = {"/bin/sh", "-c", "exec sleep 60", NULL};
  int null = STDERR_FILENO;
  assert_int_equal(
      guard_spawn(
          &g,
          &(struct guard_spawn){
              .round = 8, .local_rank = 1, .count = 2, .argv = argv, .env = plain_env, .out = null, .err = null},
          NULL),
      0);
  ev = expect(GUARD_STARTED);
  assert_int_equal(ev.local_rank, 1);
  kill(pid, SIGKILL);
  ev = expect(GUARD_EXITED);
  assert_int_equal(ev.round, 8);
  assert_true(ev.unasked);
  assert_int_equal(guard_stop(&g, 8, SIGTERM, 0, NULL, NULL), 0);
  ev = await(GUARD_CLEAR);
  assert_int_equal(ev.round, 8);
  assert_int_equal(living(0), STAFF);
}

/* A kept worker dies when the guard is about to adopt it. Its tree does not come with it into the next round. */
UNIT_TEST_WITH(test_it_dies_before_it_is_adopted, NULL, clean) {
  for (int i = 0; i < 20; i++) {
    start();
    int out = spawn_ready(0, 2, TREE "exec sleep 74");
    spawn_shell(1, 2, "exec sleep 75", NULL);
    pid_t pid = 0;
    for (int k = 0; k < 2; k++) {
      struct guard_event ev = expect(GUARD_STARTED);
      if (ev.local_rank == 0) pid = ev.pid;
    }
    wait_trees(1);
    stop_but(7, 0, 3);
    expect(GUARD_CLEAR);
    kill(g.pid, SIGSTOP); /* it reads both at once, and the command wakes it */
    kill(pid, SIGKILL);
    struct proc p;
    while (proc_read(pid, &p) && p.state != 'Z') usleep(1000);
    assert_int_equal(guard_adopt(&g, 8, 2, NULL), 0);
    assert_int_equal(expect(GUARD_EXITED).local_rank, 0);
    assert_int_equal(expect(GUARD_STARTED).local_rank, 1);
    assert_int_equal(living(0), STAFF + 1);
    close(out);
    finish();
  }
}

/* All stay: CLEAR comes at once; and the next round needs no SPAWN. */
GUARD_TEST(test_all_stay) {
  two();
  for (uint32_t round = 7; round < 12; round++) {
    stop_but(round, 30000, 3);
    assert_int_equal(expect(GUARD_CLEAR).round, round);
    assert_int_equal(guard_adopt(&g, round + 1, 2, NULL), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(expect(GUARD_STARTED).round, round + 1);
  }
}

/* Fewer stay than was said at first: those are told, and killed, and that is told again. */
GUARD_TEST(test_fewer_stay) {
  two();
  stop_but(7, 20000, 3);
  expect(GUARD_CLEAR);
  stop_but(7, 20000, 1); /* it is told, and what is left behind is killed */
  struct guard_event ev = expect(GUARD_EXITED);
  assert_int_equal(ev.local_rank, 1);
  assert_int_equal(WTERMSIG(ev.status), SIGTERM);
  assert_false(ev.unasked);
  assert_int_equal(expect(GUARD_CLEAR).round, 7);
  stop_but(7, 0, 0);
  ev = expect(GUARD_EXITED);
  assert_int_equal(WTERMSIG(ev.status), SIGKILL);
  expect(GUARD_CLEAR);
  assert_int_equal(living(0), STAFF);
}

/* While the others are still being stopped. */
GUARD_TEST(test_fewer_stay_meanwhile) {
  two();
  stop_but(7, 20000, 3);
  stop_but(7, 20000, 0);
  for (int i = 0; i < 2; i++) await(GUARD_EXITED);
  await(GUARD_CLEAR);
  assert_int_equal(living(0), STAFF);
}

/* What waits dies: told, with nobody to blame, and it leaves nothing. Then the round begins without it. */
GUARD_TEST(test_it_dies_while_it_waits) {
  pid_t pid = two();
  stop_but(7, 0, 1);
  await(GUARD_CLEAR);
  kill(pid, SIGKILL);
  struct guard_event ev = expect(GUARD_EXITED);
  assert_int_equal(ev.round, 7);
  assert_false(ev.unasked);
  wait_living(STAFF);
  assert_int_equal(guard_adopt(&g, 8, 1, NULL), 0);
  const char *argv[] = {"/bin/true", NULL};
  assert_int_equal(
      guard_spawn(
          &g,
          &(struct guard_spawn){
              .round = 8, .count = 1, .argv = argv, .env = plain_env, .out = STDERR_FILENO, .err = STDERR_FILENO},
          NULL),
      0);
  expect(GUARD_STARTED);
  expect(GUARD_EXITED);
  assert_int_equal(expect(GUARD_CLEAR).round, 8);
}

/* The lease is over while it waits; what was to begin then begins too late. */
UNIT_TEST_WITH(test_fenced_while_it_waits, NULL, clean) {
  for (int adopted = 0; adopted < 2; adopted++) {
    start();
    two();
    stop_but(7, 0, 1);
    await(GUARD_CLEAR);
    if (adopted && !freeze()) skip();
    assert_int_equal(guard_fence(&g, boot_ms() + 50, 5000, NULL), 0);
    if (adopted) {
      usleep(60000);
      assert_int_equal(guard_adopt(&g, 8, 1, NULL), 0);
      thaw();
    }
    assert_int_equal(expect(GUARD_FENCED).round, adopted ? 8 : 7);
    expect(GUARD_EXITED);
    assert_int_equal(expect(GUARD_CLEAR).round, adopted ? 8 : 7);
    assert_int_equal(living(0), STAFF);
    finish();
  }
}

/* The round begins while what was kept for it is being killed. */
GUARD_TEST(test_adopted_while_it_is_killed) {
  two();
  stop_but(7, 0, 1);
  await(GUARD_CLEAR);
  if (!freeze()) skip();
  stop_but(7, 0, 0);
  assert_int_equal(guard_adopt(&g, 8, 1, NULL), 0);
  thaw();
  expect(GUARD_EXITED);
  assert_int_equal(expect(GUARD_CLEAR).round, 7);
  assert_int_equal(expect(GUARD_FENCED).round, 8);
  assert_int_equal(expect(GUARD_CLEAR).round, 8);
}
