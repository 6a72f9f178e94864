/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the guard's tests. */

#include "tests/rig/guard.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "agent/guard/proctree.h"
#include "common/buf.h"
#include "tests/rig/unit.h"

const char *const plain_env[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "MARK=yes", NULL};
uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

struct guard g;

void start(void) {
  struct err e = ERR_INIT;
  if (guard_start(&g, NULL, NULL, 0, NULL, &e) || guard_await(&g, &e)) fail_msg("%s", e.text);
}

int guard_setup(void **state) {
  start();
  return 0;
}

int guard_teardown(void **state) {
  finish();
  return clean(state);
}

/* Spawns; *out gets the read end of its stdout and stderr. */
void spawn_env(uint32_t rank, uint32_t count, const char *const *argv, const char *const *env, int *out) {
  int p[2];
  struct err e = ERR_INIT;
  assert_int_equal(pipe2(p, O_CLOEXEC), 0);
  struct guard_spawn s = {
      .round = 7, .local_rank = rank, .count = count, .argv = argv, .env = env, .out = p[1], .err = p[1]};
  if (guard_spawn(&g, &s, &e)) fail_msg("%s", e.text);
  close(p[1]);
  if (out)
    *out = p[0];
  else
    close(p[0]);
}

void spawn_shell(uint32_t rank, uint32_t count, const char *script, int *out) {
  spawn_env(rank, count, (const char *const[]){"sh", "-c", script, NULL}, plain_env, out);
}

int spawn_env_ready(uint32_t rank, uint32_t count, const char *const *argv, const char *const *env) {
  int out;
  char line[16];
  spawn_env(rank, count, argv, env, &out);
  read_line(out, line, sizeof line);
  return out;
}

int spawn_ready(uint32_t rank, uint32_t count, const char *script) {
  return spawn_env_ready(rank, count, (const char *const[]){"sh", "-c", script, NULL}, plain_env);
}

pid_t fork_agent(int ready[2]) {
  assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
  return fork();
}

struct guard_event next_event(void) {
  struct guard_event ev;
  uint64_t deadline = now_ms() + PATIENCE_MS;
  while (!guard_next(&g, &ev)) {
    if (now_ms() > deadline) fail_msg("the guard says nothing");
    poll(&(struct pollfd){.fd = g.fd, .events = POLLIN}, 1, 1000);
  }
  return ev;
}

struct guard_event expect(enum guard_event_kind kind) {
  struct guard_event ev = next_event();
  if (ev.kind != kind) fail_msg("event %d (rank %u, %s), expected %d", (int)ev.kind, ev.local_rank, ev.text, (int)kind);
  return ev;
}

/* Takes events until `kind` comes. */
struct guard_event await(enum guard_event_kind kind) {
  struct guard_event ev;
  do ev = next_event();
  while (ev.kind != kind);
  return ev;
}

char *read_all(int fd) {
  struct buf b = BUF_INIT;
  ssize_t n;
  while ((n = read(fd, buf_reserve(&b, 4096), 4096)) > 0) buf_commit(&b, (size_t)n);
  close(fd);
  buf_puts(&b, "");
  return buf_steal(&b);
}

/* Waits for one line that a worker says when it is ready; the rest stays in the pipe. */
void read_line(int fd, char *out, size_t size) {
  size_t n = 0;
  while (n + 1 < size && read(fd, out + n, 1) == 1 && out[n] != '\n') n++;
  out[n] = '\0';
}

size_t living(pid_t spare) {
  struct proctree t = PROCTREE_INIT;
  proctree_descendants(&t, 0, spare);
  size_t n = 0;
  for (size_t i = 0; i < t.n; i++) n += t.v[i].state != 'Z';
  proctree_finish(&t);
  return n;
}

/* Waits until n trees stand: a shell says "ready" before its children have come that far. */
void wait_trees(size_t n) {
  size_t sleeps = 0;
  for (uint64_t deadline = now_ms() + PATIENCE_MS; sleeps < n * TREE_SLEEPS; poll(NULL, 0, 1)) {
    struct proctree t = PROCTREE_INIT;
    proctree_descendants(&t, 0, 0);
    sleeps = 0;
    for (size_t i = 0; i < t.n; i++) sleeps += strcmp(t.v[i].name, "sleep") == 0;
    proctree_finish(&t);
    if (now_ms() > deadline) fail_msg("the trees do not stand");
  }
}

int spawn_deaf_tree(void) {
  int out = spawn_ready(0, 1, TREE "trap '' TERM; while :; do sleep 60; done");
  wait_trees(1);
  return out;
}

void finish(void) {
  guard_finish(&g, PATIENCE_MS);
  assert_int_equal(g.pid, -1);
  assert_int_equal(living(0), 0);
}

void stop(uint32_t grace_ms) {
  assert_int_equal(guard_stop(&g, 7, SIGTERM, grace_ms, NULL, NULL), 0);
}

int clean(void **state) {
  return guard_reap_orphans(0, PATIENCE_MS);
}

bool freeze(void) {
  if (ptrace(PTRACE_SEIZE, g.pid, NULL, NULL)) return false;
  assert_int_equal(ptrace(PTRACE_INTERRUPT, g.pid, NULL, NULL), 0);
  assert_int_equal(waitpid(g.pid, NULL, __WALL), g.pid);
  return true;
}

void thaw(void) {
  assert_int_equal(ptrace(PTRACE_DETACH, g.pid, NULL, NULL), 0);
}
