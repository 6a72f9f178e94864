/* SPDX-License-Identifier: Apache-2.0 */
/* store_watch: what a look finds of real processes. A child executes a shell with variables of its own, and inherits a
 * listening socket. */

#include "agent/store/watch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "tests/rig/unit.h"

enum { PATIENCE_MS = 10000, RANK_BASE = 4 };

static int listen_somewhere(uint16_t *port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&a, len), 0);
  assert_int_equal(listen(fd, 1), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
  *port = ntohs(a.sin_port);
  return fd;
}

/* A worker whose shell has set its variables for the program below it. */
static pid_t start_worker(void) {
  pid_t pid = fork();
  if (pid == 0) {
    setenv("MASTER_PORT", "40485", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    execl("/bin/sh", "sh", "-c", "MASTER_ADDR=node1 MASTER_PORT=29500 sleep 60 & wait", (char *)NULL);
    _exit(127);
  }
  return pid;
}

/* Until the grandchild sleeps. One look reads several files of a process, which may execute its program between two
 * of them. */
static const struct store_hint_process *look_for_sleeper(const pid_t *pids, struct store_hint_look *look) {
  for (uint64_t end = boot_ms() + PATIENCE_MS; boot_ms() < end; usleep(20000)) {
    free(look->v);
    store_watch_look(pids, 2, RANK_BASE, look);
    for (size_t i = 0; i < look->n; i++)
      if (look->v[i].sleeps && strcmp(look->v[i].name, "sleep") == 0) return &look->v[i];
  }
  return NULL;
}

static void test_a_look(void **state) {
  struct store_hint_look look = {NULL, 0};
  uint16_t port;
  int fd = listen_somewhere(&port);
  pid_t pids[2] = {0, start_worker()};
  close(fd);
  const struct store_hint_process *p = look_for_sleeper(pids, &look);
  assert_non_null(p);
  assert_int_equal(look.n, 2); /* the shell, and the program below it: nothing of pids[0], and not this test */
  assert_int_equal(p->rank, RANK_BASE + 1);
  assert_int_not_equal(p->pid, pids[1]);
  assert_string_equal(p->name, "sleep");
  assert_string_equal(p->addr, "node1");
  assert_string_equal(p->port, "29500");
  assert_false(p->own_store || p->torch || p->connected);
  const struct store_hint_process *shell = &look.v[p == look.v];
  assert_int_equal(shell->pid, pids[1]);
  assert_string_equal(shell->port, "40485");
  assert_string_equal(shell->addr, "");
  assert_int_equal(shell->n_listens, 1);
  assert_int_equal(shell->listens[0], port);
  kill(p->pid, SIGKILL);
  kill(pids[1], SIGKILL);
  waitpid(pids[1], NULL, 0);
  free(look.v);
}

/* A process sets variables of its own, after it has filled its environment so that the array lies elsewhere. */
static void test_variables_that_a_process_sets_itself(void **state) {
  struct store_hint_look look = {NULL, 0};
  pid_t pid = fork();
  if (pid == 0) {
    setenv("MASTER_PORT", "40485", 1);
    execl("/proc/self/exe", "test_watch", "sets", (char *)NULL);
    _exit(127);
  }
  uint64_t end = boot_ms() + PATIENCE_MS;
  do {
    usleep(20000);
    free(look.v);
    store_watch_look(&pid, 1, 0, &look);
    assert_true(boot_ms() < end);
  } while (look.n != 1 || strcmp(look.v[0].port, "29500") != 0);
  assert_string_equal(look.v[0].addr, "node7");
  assert_true(look.v[0].set_inside && look.v[0].own_store);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  free(look.v);
}

static int set_variables(void) {
  for (int i = 0; i < 1000; i++) {
    char name[16];
    snprintf(name, sizeof name, "V%d", i);
    setenv(name, "a value", 1);
  }
  setenv("MASTER_PORT", "29500", 1);
  setenv("MASTER_ADDR", "node7", 1);
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  sleep(60);
  return 0;
}

/* A connection, and one that nobody answers: its listener's queue is full. */
static void test_sockets(void **state) {
  struct store_hint_look look;
  uint16_t port;
  int fd = listen_somewhere(&port);
  assert_int_equal(listen(fd, 0), 0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int queued = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(connect(queued, (struct sockaddr *)&a, sizeof a), 0);
  pid_t pids[2];
  for (int i = 0; i < 2; i++) {
    pids[i] = fork();
    if (pids[i]) continue;
    close(fd);
    if (i == 0) close(queued);
    int s = i ? queued : socket(AF_INET, SOCK_STREAM, 0);
    if (i == 0) connect(s, (struct sockaddr *)&a, sizeof a);
    sleep(60);
    _exit(0);
  }
  char want[32];
  snprintf(want, sizeof want, "127.0.0.1:%u", (unsigned)port);
  for (uint64_t end = boot_ms() + PATIENCE_MS;; usleep(20000)) {
    store_watch_look(pids, 2, 0, &look);
    assert_int_equal(look.n, 2);
    if (look.v[0].dials[0] && look.v[1].connected) break;
    assert_true(boot_ms() < end);
    free(look.v);
  }
  assert_string_equal(look.v[0].dials, want);
  assert_int_equal(look.v[0].dials_port, port);
  assert_false(look.v[0].connected || look.v[0].reached);
  assert_string_equal(look.v[1].dials, "");
  for (int i = 0; i < 2; i++) {
    kill(pids[i], SIGKILL);
    waitpid(pids[i], NULL, 0);
  }
  close(queued);
  close(fd);
  free(look.v);
}

int main(int argc, char **argv) {
  if (argc > 1) return set_variables();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_look),
      cmocka_unit_test(test_variables_that_a_process_sets_itself),
      cmocka_unit_test(test_sockets),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
