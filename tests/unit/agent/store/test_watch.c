/* SPDX-License-Identifier: Apache-2.0 */
/* store_watch: what a look finds of real processes, and which processes give away a script that looks for its store
 * elsewhere. */

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

enum { PATIENCE_MS = 10000, RANK_BASE = 4, WORKERS = 3 };

#define SENTENCE                                                                                                       \
  "no worker has connected to the round's store (MASTER_ADDR=10.0.0.1 MASTER_PORT=40485) for 10 s, and rank 1's "      \
  "process 101 (python3) has loaded PyTorch, waits and has no connection; if the script sets MASTER_ADDR or "          \
  "MASTER_PORT, or has an init_method=\"tcp://...\", start the job with --store worker"

/* Three ranks; the flags of each: t PyTorch is loaded, s it sleeps, u it gets no answer, c it is connected. */
static const struct {
  const char *what, *ranks[WORKERS];
  int64_t world_size;
  bool said;
} cases[] = {
    {"they compute", {"t", "t", "t"}, 3, false},
    {"commands that need no store", {"su", "su", "su"}, 3, false},
    {"two sleep", {"t", "ts", "ts"}, 3, true},
    {"one gets no answer", {"t", "tu", "ts"}, 3, true},
    {"they are connected to what the script has made itself", {"t", "tuc", "tsc"}, 3, false},
    {"one worker alone may sleep", {"t", "ts", "t"}, 1, false},
    {"mp.spawn makes ranks of its children", {"t", "ts", "ts"}, 1, true},
};

UNIT_TEST(test_what_is_said) {
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct store_watch_round round = {.addr = "10.0.0.1", .port = 40485, .world_size = cases[i].world_size};
    struct store_process v[WORKERS];
    struct buf said = BUF_INIT;
    for (int k = 0; k < WORKERS; k++) {
      const char *flags = cases[i].ranks[k];
      v[k] = (struct store_process){.rank = k,
                                    .pid = 100 + k,
                                    .name = "python3",
                                    .torch = strchr(flags, 't'),
                                    .sleeps = strchr(flags, 's'),
                                    .unanswered = strchr(flags, 'u'),
                                    .connected = strchr(flags, 'c')};
    }
    bool any = store_watch_put(&round, v, WORKERS, 10000, &said);
    if (any != cases[i].said || strcmp(buf_text(&said), any ? SENTENCE : "") != 0)
      fail_msg("%s: %s", cases[i].what, buf_text(&said));
    buf_finish(&said);
  }
}

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

/* A worker with a program below it. */
static pid_t start_worker(void) {
  pid_t pid = fork();
  if (pid == 0) {
    execl("/bin/sh", "sh", "-c", "sleep 60 & wait", (char *)NULL);
    _exit(127);
  }
  return pid;
}

/* Until the grandchild sleeps. One look reads several files of a process, which may execute its program between two
 * of them. */
static const struct store_process *look_for_sleeper(const pid_t *pids, struct store_process **v, size_t *n) {
  for (uint64_t end = boot_ms() + PATIENCE_MS; boot_ms() < end; usleep(20000)) {
    free(*v);
    *n = store_watch_look(pids, 2, RANK_BASE, v);
    for (size_t i = 0; i < *n; i++)
      if ((*v)[i].sleeps && strcmp((*v)[i].name, "sleep") == 0) return &(*v)[i];
  }
  return NULL;
}

UNIT_TEST(test_a_look) {
  struct store_process *v = NULL;
  size_t n = 0;
  pid_t pids[2] = {0, start_worker()};
  const struct store_process *p = look_for_sleeper(pids, &v, &n);
  assert_non_null(p);
  assert_int_equal(n, 2); /* the shell, and the program below it: nothing of pids[0], and not this test */
  assert_int_equal(p->rank, RANK_BASE + 1);
  assert_int_not_equal(p->pid, pids[1]);
  assert_false(p->torch || p->connected || p->unanswered);
  assert_int_equal(v[p == v].pid, pids[1]);
  kill(p->pid, SIGKILL);
  kill(pids[1], SIGKILL);
  waitpid(pids[1], NULL, 0);
  free(v);
}

/* A connection, and one that nobody answers: its listener's queue is full. */
UNIT_TEST(test_sockets) {
  struct store_process *v;
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
  for (uint64_t end = boot_ms() + PATIENCE_MS;; usleep(20000)) {
    assert_int_equal(store_watch_look(pids, 2, 0, &v), 2);
    if (v[0].unanswered && v[1].connected) break;
    assert_true(boot_ms() < end);
    free(v);
  }
  assert_false(v[0].connected || v[1].unanswered);
  for (int i = 0; i < 2; i++) {
    kill(pids[i], SIGKILL);
    waitpid(pids[i], NULL, 0);
  }
  close(queued);
  close(fd);
  free(v);
}
