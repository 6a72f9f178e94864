/* SPDX-License-Identifier: Apache-2.0 */
/* The backstop: its decisions, and what it does with real processes when agent and guard fail together. */

#include "tests/rig/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/unit.h"
#include "agent/guard/backstop.h"
#include "agent/guard/proctree.h"

/* Decisions. ------------------------------------------------------------------------------------------------------- */

UNIT_TEST(test_it_rests_while_all_is_well) {
  struct backstop b;
  backstop_init(&b);
  assert_int_equal(backstop_deadline(&b), BACKSTOP_NEVER);
  assert_int_equal(backstop_next(&b, 1000000), BACKSTOP_REST);
  backstop_fence(&b, 5000);
  assert_int_equal(backstop_deadline(&b), 5000);
  assert_int_equal(backstop_next(&b, 4999), BACKSTOP_REST);
  backstop_fence(&b, 9000); /* a heartbeat was answered */
  assert_int_equal(backstop_next(&b, 5000), BACKSTOP_REST);
  assert_int_equal(backstop_deadline(&b), 9000);
}

UNIT_TEST(test_a_fence_kills_until_nothing_is_left) {
  struct backstop b;
  backstop_init(&b);
  backstop_fence(&b, 5000);
  assert_int_equal(backstop_next(&b, 5000), BACKSTOP_KILL);
  backstop_killed(&b, 2);
  assert_int_equal(backstop_next(&b, 5000), BACKSTOP_REST);
  assert_int_equal(backstop_deadline(&b), 5000 + BACKSTOP_AGAIN_MS);
  assert_int_equal(backstop_next(&b, 5000 + BACKSTOP_AGAIN_MS), BACKSTOP_KILL);
  backstop_killed(&b, 0);
  backstop_fence(&b, 5000);
  assert_int_equal(backstop_deadline(&b), BACKSTOP_NEVER);
  backstop_fence(&b, 20000); /* the node is back */
  assert_int_equal(backstop_deadline(&b), 20000);
}

UNIT_TEST(test_a_guard_without_agent_is_woken_then_replaced) {
  struct backstop b;
  uint64_t kill_at = 100 + BACKSTOP_PATIENCE_MS, give_up_at = kill_at + BACKSTOP_GIVE_UP_MS;
  backstop_init(&b);
  assert_int_equal(backstop_orphan(&b, 100), BACKSTOP_WAKE);
  assert_int_equal(backstop_orphan(&b, 101), BACKSTOP_REST);
  assert_int_equal(backstop_next(&b, 101), BACKSTOP_REST);
  for (uint64_t at = kill_at; at < give_up_at; at += BACKSTOP_AGAIN_MS) {
    assert_int_equal(backstop_deadline(&b), at);
    assert_int_equal(backstop_next(&b, at), BACKSTOP_KILL);
    backstop_killed(&b, 0); /* the guard may still start a worker */
  }
  assert_int_equal(backstop_next(&b, give_up_at), BACKSTOP_GIVE_UP);
}

UNIT_TEST(test_a_fence_is_not_put_off_by_the_agents_death) {
  struct backstop b;
  backstop_init(&b);
  backstop_fence(&b, 500);
  backstop_orphan(&b, 400);
  assert_int_equal(backstop_deadline(&b), 500);
  backstop_fence(&b, BACKSTOP_NEVER); /* a dead agent's last word does not count */
  assert_int_equal(backstop_deadline(&b), 500);
}

/* Processes. ------------------------------------------------------------------------------------------------------- */

struct cast {
  pid_t agent, guard, backstop;
  int done; /* readable when the agent has exited */
};

/* A process that plays the agent of a worker with a whole tree, and fences it fence_ms from now (0: not). */
static struct cast play(unsigned fence_ms) {
  int ready[2];
  struct cast c;
  pid_t agent = fork_agent(ready);
  if (agent == 0) {
    start();
    spawn_deaf_tree();
    if (fence_ms && guard_fence(&g, now_ms() + fence_ms, 100, NULL)) _exit(1);
    struct cast told = {.agent = getpid(), .guard = g.pid, .backstop = g.backstop};
    if (write(ready[1], &told, sizeof(told)) != sizeof(told)) _exit(1);
    for (;;) pause();
  }
  assert_int_equal(read(ready[0], &c, sizeof(c)), sizeof(c));
  close(ready[1]);
  c.done = ready[0];
  return c;
}

static bool is_alive(pid_t pid) {
  struct proc p;
  return proc_read(pid, &p) && p.state != 'Z' && p.state != 'X';
}

/* Until `left` processes of the cast live: no worker, nothing that a worker started. */
static void wait_left(size_t left) {
  for (uint64_t deadline = now_ms() + PATIENCE_MS; living(0) != left; poll(NULL, 0, 2))
    if (now_ms() > deadline) fail_msg("%zu processes live, not %zu", living(0), left);
}

static void reap_all(void) {
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

UNIT_TEST_WITH(test_agent_and_guard_killed_at_once, NULL, clean) {
  for (int i = 0; i < 10; i++) {
    struct cast c = play(0);
    kill(i % 2 ? c.agent : c.guard, SIGKILL);
    kill(i % 2 ? c.guard : c.agent, SIGKILL);
    wait_left(0);
    reap_all();
    close(c.done);
  }
}

/* The backstop dies of nothing that a job's processes get; its guard and agent go on without it. */
UNIT_TEST_WITH(test_without_backstop_the_guard_goes_on, NULL, clean) {
  start();
  int out = spawn_deaf_tree();
  kill(g.backstop, SIGTERM);
  kill(g.backstop, SIGHUP);
  assert_true(is_alive(g.backstop));
  kill(g.backstop, SIGKILL);
  stop(0);
  await(GUARD_CLEAR);
  finish();
  close(out);
  struct cast c = play(0);
  kill(c.backstop, SIGKILL);
  kill(c.guard, SIGSTOP);
  kill(c.agent, SIGKILL); /* wakes the guard, which has become its child */
  wait_left(0);
  reap_all();
  close(c.done);
}

/* A guard that cannot be woken, as under a debugger: its trees are killed, and then the guard. */
UNIT_TEST_WITH(test_agent_of_a_held_guard_killed, NULL, clean) {
  struct cast c = play(0);
  g = (struct guard){.fd = -1, .pid = c.guard};
  if (!freeze()) skip();
  kill(c.agent, SIGKILL);
  wait_left(STAFF);
  assert_true(is_alive(c.guard) && is_alive(c.backstop));
  waitpid(c.guard, NULL, __WALL); /* a dead tracee is its tracer's first */
  wait_left(0);
  reap_all();
  close(c.done);
}

UNIT_TEST_WITH(test_fence_when_agent_and_guard_are_stopped, NULL, clean) {
  struct cast c = play(300);
  kill(c.agent, SIGSTOP);
  kill(c.guard, SIGSTOP);
  wait_left(1 + STAFF);
  assert_true(is_alive(c.agent) && is_alive(c.guard) && is_alive(c.backstop));
  kill(c.agent, SIGKILL);
  wait_left(0);
  reap_all();
  close(c.done);
}

/* The guard goes on after the backstop has fenced: its report is that of a fence, not of a failed worker. */
UNIT_TEST_WITH(test_a_guard_that_goes_on_reports_the_fence, NULL, clean) {
  start();
  int out = spawn_deaf_tree();
  expect(GUARD_STARTED);
  assert_int_equal(guard_fence(&g, now_ms() + 200, 100, NULL), 0);
  kill(g.pid, SIGSTOP);
  wait_left(STAFF);
  kill(g.pid, SIGCONT);
  expect(GUARD_FENCED);
  struct guard_event ev = expect(GUARD_EXITED);
  assert_true(WIFSIGNALED(ev.status) && WTERMSIG(ev.status) == SIGKILL);
  assert_false(ev.unasked);
  expect(GUARD_CLEAR);
  finish();
  close(out);
}

static void expect_file(pid_t pid, const char *name, const char *want) {
  char path[64], text[256] = "";
  snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
  for (uint64_t deadline = now_ms() + PATIENCE_MS; strncmp(text, want, strlen(want)) != 0; poll(NULL, 0, 1)) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    close(fd);
    if (now_ms() > deadline) fail_msg("%s is %s, not %s", path, text, want);
  }
}

/* What aims at rdzv by name, by session or by group misses it, and it keeps nobody's pipe open. */
GUARD_TEST(test_it_stands_apart) {
  char path[64];
  expect_file(g.backstop, "comm", "backstop\n");
  for (uint64_t deadline = now_ms() + PATIENCE_MS; getsid(g.backstop) != g.backstop; poll(NULL, 0, 1))
    if (now_ms() > deadline) fail_msg("the backstop has no session of its own");
  assert_int_equal(getsid(g.pid), getsid(0));
  snprintf(path, sizeof(path), "/proc/%d/fd", (int)g.backstop);
  size_t others = 1;
  for (uint64_t deadline = now_ms() + PATIENCE_MS; others > 0; poll(NULL, 0, 1)) {
    DIR *d = opendir(path);
    assert_non_null(d);
    others = 0;
    for (struct dirent *entry; (entry = readdir(d));) {
      char link[sizeof(path) + sizeof(entry->d_name) + 1], to[64] = "";
      if (entry->d_name[0] == '.') continue;
      snprintf(link, sizeof(link), "%s/%s", path, entry->d_name);
      if (readlink(link, to, sizeof(to) - 1) > 0)
        others += strcmp(to, "/dev/null") != 0 && strcmp(to, "anon_inode:[signalfd]") != 0;
    }
    closedir(d);
    if (now_ms() > deadline) fail_msg("the backstop holds %zu descriptors", others);
  }
}

int main(void) {
  alarm(110); /* a hang is a failure */
  return unit_run(NULL, NULL);
}
