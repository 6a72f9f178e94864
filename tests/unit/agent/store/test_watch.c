/* SPDX-License-Identifier: Apache-2.0 */
/* store_watch: which real processes a look finds, and when they give away a script that looks for its store elsewhere. */

#include "agent/store/watch.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/clock.h"
#include "tests/rig/unit.h"

enum { PATIENCE_MS = 10000, RANK_BASE = 4 };

#define SENTENCE                                                                                                       \
  "no worker has connected to the round's store (MASTER_ADDR=10.0.0.1 MASTER_PORT=40485) for 10 s, and rank 1's "      \
  "process 101 (python3) has loaded PyTorch and waits; if the script sets MASTER_ADDR or MASTER_PORT, or has an "      \
  "init_method=\"tcp://...\", start the job with --store worker"

/* A worker alone may sleep; mp.spawn makes ranks of its children. */
UNIT_TEST(test_what_is_said) {
  static const struct {
    int64_t world_size;
    size_t n;
    bool said;
  } cases[] = {{3, 0, false}, {3, 1, true}, {3, 2, true}, {1, 1, false}, {1, 2, true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct store_watch_round round = {.addr = "10.0.0.1", .port = 40485, .world_size = cases[i].world_size};
    const struct store_waiter first = {.rank = 1, .pid = 101, .name = "python3"};
    struct buf said = BUF_INIT;
    assert_int_equal(store_watch_put(&round, &first, cases[i].n, 10000, &said), cases[i].said);
    assert_string_equal(buf_text(&said), cases[i].said ? SENTENCE : "");
    buf_finish(&said);
  }
}

/* A worker that sleeps, or one that has such a child; library: it has mapped this file, or NULL. */
static pid_t start_worker(const char *library, bool below) {
  pid_t pid = fork();
  if (pid) return pid;
  setpgid(0, 0);
  int fd = library ? open(library, O_RDONLY) : -1;
  bool sleeps = !below || fork() == 0;
  if (sleeps && fd >= 0 && mmap(NULL, 1, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED) _exit(1);
  if (sleeps)
    sleep(60);
  else
    pause();
  _exit(0);
}

UNIT_TEST(test_a_look) {
  char dir[] = "/tmp/rdzv-watch-XXXXXX";
  assert_non_null(mkdtemp(dir));
  char *library = xasprintf("%s/libtorch_cpu.so", dir);
  int fd = open(library, O_WRONLY | O_CREAT, 0600);
  assert_int_equal(write(fd, "x", 1), 1);
  close(fd);
  pid_t pids[] = {0, start_worker(NULL, false), start_worker(library, true), start_worker(library, false)};
  struct store_waiter first;
  size_t n = 0;
  for (uint64_t end = boot_ms() + PATIENCE_MS; n != 2 && boot_ms() < end; usleep(20000))
    n = store_watch_look(pids, 4, RANK_BASE, &first);
  assert_int_equal(n, 2);
  assert_int_equal(first.rank, RANK_BASE + 2);
  assert_int_not_equal(first.pid, pids[2]); /* it is the child */
  for (int i = 1; i < 4; i++) {
    kill(-pids[i], SIGKILL);
    waitpid(pids[i], NULL, 0);
  }
  unlink(library);
  rmdir(dir);
  free(library);
}
