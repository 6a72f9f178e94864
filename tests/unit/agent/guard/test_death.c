/* SPDX-License-Identifier: Apache-2.0 */
/* Deaths: of the agent, of the guard, and the agent's orderly leave. Whatever happens, nothing survives. */

#include "tests/rig/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/unit.h"
#include "agent/guard/proctree.h"

/* ---------------------------------------------------------------- deaths */

static int listen_loopback(struct sockaddr_in *addr) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  *addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof(*addr);
  assert_int_equal(bind(fd, (struct sockaddr *)addr, len), 0);
  assert_int_equal(listen(fd, 4), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)addr, &len), 0);
  return fd;
}

/* A process that plays the agent; tells on `ready` who its guard is when its worker's tree stands, then waits for its
 * death. */
_Noreturn static void play_agent(int ready, const struct sockaddr_in *addr) {
  start();
  if (guard_death_report(&g, (const struct sockaddr *)addr, sizeof(*addr), NULL, "old", 3, NULL)) _exit(1);
  if (guard_death_report(&g, (const struct sockaddr *)addr, sizeof(*addr), NULL, "he was good", 11, NULL)) _exit(1);
  spawn_deaf_tree();
  if (write(ready, &g, sizeof(g)) != sizeof(g)) _exit(1);
  for (;;) pause();
}

static void wait_nothing_lives(uint64_t deadline) {
  while (living(0) > 0) {
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    if (now_ms() > deadline) fail_msg("%zu processes survive", living(0));
    poll(NULL, 0, 2);
  }
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

/* The backstop could not fork the guard, and the first spawn learns of it. The event must come all the same, or the agent waits for
 * ever. */
UNIT_TEST_WITH(test_guard_that_cannot_be_forked, NULL, clean) {
  static const char *const words[] = {"/bin/true", NULL};
  int pair[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  pid_t error = -EAGAIN, backstop = fork();
  if (backstop == 0) _exit(send(pair[1], &error, sizeof(error), 0) != sizeof(error));
  close(pair[1]);
  g = (struct guard){.fd = pair[0], .backstop = backstop};
  struct guard_spawn s = {.round = 1, .count = 2, .argv = words, .env = words + 1, .out = -1, .err = -1};
  struct guard_event ev;
  for (int i = 0; i < 2; i++) {
    struct err e = ERR_INIT;
    assert_int_equal(guard_spawn(&g, &s, &e), -EAGAIN);
    assert_non_null(strstr(e.text, "cannot fork the guard"));
    assert_non_null(strstr(e.text, "ulimit -u"));
  }
  assert_int_equal(poll(&(struct pollfd){.fd = g.fd, .events = POLLIN}, 1, PATIENCE_MS), 1);
  assert_int_equal(guard_next(&g, &ev), 1);
  assert_int_equal(ev.kind, GUARD_GONE);
  assert_int_equal(g.fd, -1);
  assert_int_equal(guard_next(&g, &ev), 0);
}

UNIT_TEST_WITH(test_agent_killed, NULL, clean) {
  struct sockaddr_in addr;
  int listener = listen_loopback(&addr), ready[2];
  pid_t agent = fork_agent(ready);
  if (agent == 0) play_agent(ready[1], &addr);
  assert_int_equal(read(ready[0], &g, sizeof(g)), sizeof(g));
  uint64_t before = now_ms();
  kill(agent, SIGKILL);
  assert_int_equal(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, PATIENCE_MS), 1);
  uint64_t took = now_ms() - before;
  struct proctree t = PROCTREE_INIT; /* at this moment the trees are dead: the guard and its parent are left */
  proctree_descendants(&t, 0, 0);
  for (size_t i = 0; i < t.n; i++)
    if (t.v[i].state != 'Z' && t.v[i].pid != g.pid && t.v[i].pid != g.backstop) fail_msg("%s lives", t.v[i].name);
  proctree_finish(&t);
  int peer = accept(listener, NULL, NULL);
  char *text = read_all(peer);
  assert_string_equal(text, "he was good");
  free(text);
  wait_nothing_lives(now_ms() + PATIENCE_MS);
  print_message("death_report after %u ms\n", (unsigned)took);
  close(listener);
  close(ready[0]);
  close(ready[1]);
}

UNIT_TEST_WITH(test_guard_killed, NULL, clean) {
  int forked[2];
  char c;
  assert_int_equal(pipe2(forked, O_CLOEXEC), 0);
  pid_t spare = fork();
  if (spare == 0) {
    if (fork() < 0 || write(forked[1], "x", 1) != 1) _exit(1); /* its own child is spared too */
    alarm(110);
    for (;;) pause();
  }
  for (int i = 0; i < 2; i++) assert_int_equal(read(forked[0], &c, 1), 1);
  close(forked[0]);
  close(forked[1]);
  start();
  int out[2];
  for (uint32_t i = 0; i < 2; i++) out[i] = spawn_ready(i, 2, TREE "trap '' TERM; while :; do sleep 60; done");
  wait_trees(2);
  uint64_t before = now_ms();
  kill(g.pid, SIGKILL);
  struct guard_event ev = await(GUARD_GONE);
  assert_int_equal(g.fd, -1);
  assert_int_equal(guard_next(&g, &ev), 0);
  assert_int_equal(guard_reap_orphans(spare, PATIENCE_MS), 0);
  print_message("killed after %u ms\n", (unsigned)(now_ms() - before));
  assert_int_equal(living(spare), 0);
  assert_int_equal(living(0), 2); /* the spared ones */
  struct err e = ERR_INIT;
  assert_int_equal(guard_stop(&g, 7, SIGTERM, 0, NULL, &e), -EPIPE);
  assert_string_equal(e.text, "the guard is gone");
  guard_finish(&g, 1000);
  assert_int_equal(guard_reap_orphans(0, PATIENCE_MS), 0);
  assert_int_equal(living(0), 0);
  close(out[0]);
  close(out[1]);
}

UNIT_TEST_WITH(test_finish_kills, NULL, clean) {
  struct sockaddr_in addr;
  int listener = listen_loopback(&addr);
  start();
  assert_int_equal(guard_death_report(&g, (struct sockaddr *)&addr, sizeof(addr), NULL, "never", 5, NULL), 0);
  assert_int_equal(guard_death_report(&g, NULL, 0, NULL, NULL, 0, NULL), 0);
  int out = spawn_ready(0, 1, TREE "wait");
  wait_trees(1);
  finish();
  assert_int_equal(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 0), 0);
  close(listener);
  close(out);
}

static void wait_stopped(pid_t pid) {
  struct proc p;
  uint64_t deadline = now_ms() + PATIENCE_MS;
  while (proc_read(pid, &p) && p.state != 'T') {
    if (now_ms() > deadline) fail_msg("pid %d does not stop", (int)pid);
    poll(NULL, 0, 1);
  }
}

/* An agent that ends with events of the guard unread makes the guard's next read fail with ECONNRESET. The commands
 * before that are still there, and count. */
UNIT_TEST_WITH(test_the_last_commands_of_an_agent_count, NULL, clean) {
  struct sockaddr_in addr;
  int listener = listen_loopback(&addr);
  start();
  pid_t guard = g.pid;
  assert_int_equal(guard_death_report(&g, (struct sockaddr *)&addr, sizeof(addr), NULL, "never", 5, NULL), 0);
  spawn_shell(0, 1, "exit 0", NULL);
  assert_int_equal(poll(&(struct pollfd){.fd = g.fd, .events = POLLIN}, 1, PATIENCE_MS), 1); /* it has read both */
  assert_int_equal(kill(guard, SIGSTOP), 0);
  wait_stopped(guard);
  g.pid = 0; /* a command wakes a guard that it knows */
  assert_int_equal(guard_death_report(&g, NULL, 0, NULL, NULL, 0, NULL), 0);
  guard_leave(&g);
  assert_int_equal(kill(guard, SIGCONT), 0);
  g.pid = guard;
  finish();
  assert_int_equal(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 0), 0);
  close(listener);
}

/* A guard that cannot run takes no commands: the agent is told so after a while, and is not stopped itself. */
GUARD_TEST(test_guard_frozen) {
  struct err e = ERR_INIT;
  if (!freeze()) skip();
  int rc = 0;
  for (int i = 0; i < 100000 && rc == 0; i++) rc = guard_signal(&g, -1, SIGUSR1, &e);
  assert_int_equal(rc, -ETIMEDOUT);
  assert_non_null(strstr(e.text, "is it stopped?"));
  thaw();
  spawn_shell(0, 1, "exit 0", NULL);
  await(GUARD_CLEAR);
}

/* One that was stopped is woken by whatever it is told. */
UNIT_TEST_WITH(test_guard_stopped, NULL, clean) {
  start();
  int out = spawn_deaf_tree();
  kill(g.pid, SIGSTOP);
  wait_stopped(g.pid);
  stop(0);
  await(GUARD_CLEAR);
  assert_int_equal(living(0), STAFF);
  kill(g.pid, SIGSTOP);
  wait_stopped(g.pid);
  finish();
  close(out);
}

/* And where nothing wakes it, the agent can do what it does not; it tells the deaths when it can. */
UNIT_TEST_WITH(test_killed_by_hand, NULL, clean) {
  start();
  struct guard_event ev;
  int out = spawn_deaf_tree();
  expect(GUARD_STARTED);
  if (!freeze()) skip();
  stop(0);
  poll(NULL, 0, 20);
  assert_false(guard_next(&g, &ev));
  assert_true(living(0) > TREE_SLEEPS);
  assert_int_equal(guard_kill_trees(&g, PATIENCE_MS), 0);
  assert_int_equal(living(0), STAFF); /* they are not touched */
  thaw();
  ev = expect(GUARD_EXITED);
  assert_true(WIFSIGNALED(ev.status) && WTERMSIG(ev.status) == SIGKILL);
  expect(GUARD_CLEAR);
  finish();
  close(out);
}

/* The agent dies while its guard is stopped: that wakes it. */
UNIT_TEST_WITH(test_agent_of_a_stopped_guard_killed, NULL, clean) {
  int ready[2];
  pid_t guard;
  pid_t agent = fork_agent(ready);
  if (agent == 0) {
    start();
    spawn_deaf_tree();
    kill(g.pid, SIGSTOP);
    wait_stopped(g.pid);
    if (write(ready[1], &g.pid, sizeof(g.pid)) != sizeof(g.pid)) _exit(1);
    for (;;) pause();
  }
  assert_int_equal(read(ready[0], &guard, sizeof(guard)), sizeof(guard));
  kill(agent, SIGKILL);
  wait_nothing_lives(now_ms() + PATIENCE_MS);
  close(ready[0]);
  close(ready[1]);
}

/* Signals that a terminal or a batch system sends to all processes of a job do not end the guard. */
GUARD_TEST(test_guard_ignores_signals) {
  const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGPIPE, SIGTSTP, SIGALRM};
  for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) kill(g.pid, signals[i]);
  spawn_shell(0, 1, "exit 0", NULL);
  expect(GUARD_STARTED);
  assert_int_equal(getpgid(g.pid), g.pid);
  await(GUARD_CLEAR);
}

int main(void) {
  alarm(110); /* a hang is a failure */
  return unit_run(NULL, NULL);
}
