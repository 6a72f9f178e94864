/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rig/template.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/system/copy.h"
#include "tests/rig/unit.h"

enum { PATIENCE_S = 20, ROOM = 64 };

struct template_rig rig = {.t = {.sock = -1}, .far = -1, .now_ms = CLOCK_MS};

uint64_t __wrap_boot_ms(void);

uint64_t __wrap_boot_ms(void) {
  return rig.now_ms;
}

size_t count_fds(void) {
  size_t n = 0;
  DIR *dir = opendir("/proc/self/fd");
  assert_non_null(dir);
  while (readdir(dir)) n++;
  closedir(dir);
  return n;
}

int rig_open(void **state) {
  int pair[2];
  assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  rig = (struct template_rig){.now_ms = CLOCK_MS, .fds = count_fds()};
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  rig.far = pair[1];
  rig.t = (struct template){.sock = pair[0], .state = TEMPLATE_WARMS, .by_ms = CLOCK_MS + FIRST_WORD_MS};
  return 0;
}

int rig_close(void **state) {
  guard_template_drop(&rig.t);
  guard_template_gone(&rig.t);
  free(rig.t.waiting);
  rig.t.waiting = NULL;
  if (rig.far >= 0) close(rig.far);
  rig.far = -1;
  assert_int_equal(count_fds(), rig.fds);
  if (waitpid(-1, NULL, WNOHANG | __WALL) >= 0) {
    guard_reap_orphans(0, 0); /* they must not fail the next test, too */
    fail_msg("a child is left");
  }
  return 0;
}

void say(const void *packet, size_t len) {
  assert_int_equal(send(rig.far, packet, len, MSG_NOSIGNAL), (ssize_t)len);
}

size_t hear_all(void) {
  char word, text[GUARD_TEMPLATE_WORD_MAX];
  size_t n = 0;
  while (guard_template_hear(&rig.t, &word, text, sizeof(text))) n++;
  return n;
}

void queue_worker(uint32_t rank) {
  int memory = memfd_create("test", MFD_CLOEXEC);
  assert_true(memory >= 0);
  assert_int_equal(write(memory, &rank, sizeof(rank)), sizeof(rank));
  int fds[GUARD_SPAWN_FDS] = {memory, fcntl(memory, F_DUPFD_CLOEXEC, 0), fcntl(memory, F_DUPFD_CLOEXEC, 0)};
  struct guard_cmd_spawn c = {
      .round = 11, .local_rank = rank, .count = 3, .argc = 2, .envc = 5, .cpus_size = 16, .size = 100, .warm = 1};
  guard_template_queue(&rig.t, &c, fds);
}

bool read_spawn(struct asked *a) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(a->fds))];
  } control;
  struct iovec iov = {.iov_base = a->words, .iov_len = sizeof(a->words)};
  struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
  ssize_t n = rig.far < 0 ? 0 : recvmsg(rig.far, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n <= 0) return false;
  assert_int_equal(n, sizeof(a->words));
  assert_int_equal(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC), 0);
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  assert_non_null(h);
  assert_int_equal(h->cmsg_len, CMSG_LEN(sizeof(a->fds)));
  memcpy(a->fds, CMSG_DATA(h), sizeof(a->fds));
  assert_int_equal(pread(a->fds[0], &a->rank, sizeof(a->rank), 0), sizeof(a->rank));
  return true;
}

void answer(const struct asked *a, const void *bytes, size_t len) {
  ssize_t sent = send(a->fds[GUARD_SPAWN_FDS], bytes, len, MSG_NOSIGNAL);
  if (sent < 0) assert_true(errno == EPIPE || errno == ECONNRESET); /* nobody waits for it any more */
}

void forget(struct asked *a) {
  for (int i = 0; i < GUARD_SPAWN_FDS + 2; i++) close(a->fds[i]);
}

/* In the child. It must not keep the guard's end of its own pair, which is in every fork of this process. */
_Noreturn static void be_worker(int pair, pid_t guard) {
  char word = 0;
  copy_close_others(pair, -1);
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < PATIENCE_S * 5000 && getppid() != guard; i++) usleep(200);
  uint32_t pid = (uint32_t)getpid();
  if (write(pair, &pid, sizeof(pid)) != sizeof(pid)) _exit(EXIT_TURNED_AWAY);
  _exit(read(pair, &word, 1) == 1 && word == 'g' ? EXIT_RAN : EXIT_TURNED_AWAY);
}

pid_t fork_worker(const struct asked *a, bool twice) {
  pid_t guard = getpid(), pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    if (twice && fork()) _exit(0);
    be_worker(a->fds[GUARD_SPAWN_FDS], guard);
  }
  if (!twice) return pid;
  assert_int_equal(reap_one(pid, NULL), 0);
  return 0;
}

enum template_next await_next(struct waiting_worker *w, pid_t *pid) {
  struct pollfd p[ROOM];
  for (;;) {
    enum template_next next = guard_template_next(&rig.t, false, w, pid);
    if (next != TEMPLATE_WAITS) return next;
    nfds_t n = 0;
    for (size_t i = 0; i < rig.t.n_waiting && n < ROOM; i++)
      p[n++] = (struct pollfd){.fd = rig.t.waiting[i].pair, .events = POLLIN};
    if (poll(p, n, PATIENCE_S * 1000) <= 0) fail_msg("no worker answers");
  }
}

void close_worker(const struct waiting_worker *w) {
  for (int i = 0; i < GUARD_SPAWN_FDS; i++) assert_int_equal(close(w->fds[i]), 0);
  if (w->pair >= 0) assert_int_equal(close(w->pair), 0);
}

uint32_t expect_exec(bool late) {
  struct waiting_worker w;
  pid_t pid;
  uint32_t rank;
  assert_int_equal(guard_template_next(&rig.t, late, &w, &pid), TEMPLATE_EXEC);
  assert_int_equal(w.pair, -1);
  assert_int_equal(pread(w.fds[0], &rank, sizeof(rank), 0), sizeof(rank));
  assert_int_equal(rank, w.command.local_rank);
  close_worker(&w);
  return rank;
}

void expect_nobody(void) {
  struct waiting_worker w;
  pid_t pid;
  assert_int_equal(guard_template_next(&rig.t, false, &w, &pid), TEMPLATE_WAITS);
}

int reap_one(pid_t which, pid_t *pid) {
  int status;
  alarm(PATIENCE_S);
  pid_t reaped = waitpid(which, &status, 0);
  alarm(0);
  assert_true(reaped > 0);
  if (pid) *pid = reaped;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
