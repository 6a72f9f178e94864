/* SPDX-License-Identifier: Apache-2.0 */
/* agent/guard/suspend.c: all processes of the workers stop, and go on, and end all the same. */

#include "tests/rig/guard.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/unit.h"
#include "agent/guard/proctree.h"

/* Shells and sleeps, and how many of them are stopped. */
static size_t count(size_t *stopped) {
  struct proctree t = PROCTREE_INIT;
  size_t n = 0;
  *stopped = 0;
  proctree_descendants(&t, 0, 0);
  for (size_t i = 0; i < t.n; i++) {
    bool counts = !t.v[i].dying && (strcmp(t.v[i].name, "sleep") == 0 || strcmp(t.v[i].name, "sh") == 0);
    n += counts;
    *stopped += counts && t.v[i].state == 'T';
  }
  proctree_finish(&t);
  return n;
}

static void wait_stopped(bool all) {
  uint64_t deadline = now_ms() + PATIENCE_MS;
  size_t stopped, n;
  while (n = count(&stopped), all ? stopped != n || n == 0 : stopped > 0) {
    if (now_ms() > deadline) fail_msg("%zu of %zu are stopped", stopped, n);
    usleep(1000);
  }
}

static void suspend_tree(void) {
  close(spawn_ready(0, 1, TREE "while :; do sleep 60; done"));
  wait_trees(1);
  expect(GUARD_STARTED);
  assert_int_equal(guard_suspend(&g, true, NULL), 0);
  assert_int_equal(expect(GUARD_SUSPENDED).round, 7);
  wait_stopped(true);
}

GUARD_TEST(test_suspended_and_continued) {
  suspend_tree();
  assert_int_equal(guard_suspend(&g, false, NULL), 0);
  wait_stopped(false);
  wait_trees(1);
  stop(0);
  await(GUARD_CLEAR);
  assert_int_equal(living(0), STAFF);
}

GUARD_TEST(test_a_stop_with_a_grace) {
  int out =
      spawn_ready(0, 1, "exec 2>/dev/null; trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.01; done");
  char line[16];
  expect(GUARD_STARTED);
  assert_int_equal(guard_suspend(&g, true, NULL), 0);
  expect(GUARD_SUSPENDED);
  stop(30000);
  read_line(out, line, sizeof(line));
  assert_string_equal(line, "bye");
  assert_int_equal(WEXITSTATUS(expect(GUARD_EXITED).status), 3);
  expect(GUARD_CLEAR);
  close(out);
}

GUARD_TEST(test_the_agent_leaves) {
  suspend_tree();
  finish();
  assert_int_equal(living(0), 0);
}

/* A new round begins meanwhile: its workers run as soon as the user continues the job. */
GUARD_TEST(test_spawned_while_suspended) {
  assert_int_equal(guard_suspend(&g, true, NULL), 0);
  expect(GUARD_SUSPENDED);
  spawn_shell(0, 1, "exec sleep 60", NULL);
  expect(GUARD_STARTED);
  wait_stopped(true);
  assert_int_equal(guard_suspend(&g, false, NULL), 0);
  wait_stopped(false);
  stop(0);
  await(GUARD_CLEAR);
}
