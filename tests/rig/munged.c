/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rig/munged.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/key/munge.h"

enum { WAIT_MS = 10000, STEP_MS = 5 };

static const char program[] = "/usr/sbin/munged";

bool munged_is_installed(void) {
  return access(program, X_OK) == 0;
}

static void write_key(const struct munged *m) {
  char path[96];
  uint8_t key[64];
  snprintf(path, sizeof path, "%s/key", m->folder);
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (getrandom(key, sizeof key, 0) != sizeof key || write(fd, key, sizeof key) != sizeof key) abort();
  close(fd);
}

static _Noreturn void run(const struct munged *m) {
  char socket[128], key[128], pid[128], seed[128], log[128];
  snprintf(socket, sizeof socket, "--socket=%s", m->socket);
  snprintf(key, sizeof key, "--key-file=%s/key", m->folder);
  snprintf(pid, sizeof pid, "--pid-file=%s/pid", m->folder);
  snprintf(seed, sizeof seed, "--seed-file=%s/seed", m->folder);
  snprintf(log, sizeof log, "%s/log", m->folder);
  int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(fd, STDERR_FILENO);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  execl(program, program, "--foreground", "--force", socket, key, pid, seed, (char *)NULL);
  _exit(127);
}

static void make_folder(struct munged *m) {
  snprintf(m->folder, sizeof m->folder, "/tmp/rdzv-munged-XXXXXX");
  if (!mkdtemp(m->folder) || chmod(m->folder, 0711) != 0) abort(); /* other users reach the socket */
  snprintf(m->socket, sizeof m->socket, "%s/socket", m->folder);
}

void munged_start(struct munged *m) {
  make_folder(m);
  write_key(m);
  m->pid = fork();
  if (m->pid == 0) run(m);
  munged_use(m);
  for (int ms = 0; !munge_available(); ms += STEP_MS) {
    if (ms > WAIT_MS || waitpid(m->pid, NULL, WNOHANG) > 0) {
      fprintf(stderr, "munged does not start: see %s/log\n", m->folder);
      abort();
    }
    usleep(STEP_MS * 1000);
  }
}

static _Noreturn void hang_up(int listener) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) close(accept(listener, NULL, NULL));
}

void munged_hangs_up(struct munged *m) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  make_folder(m);
  memcpy(at.sun_path, m->socket, sizeof m->socket);
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, (const struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 16) != 0) abort();
  m->pid = fork();
  if (m->pid == 0) hang_up(listener);
  close(listener);
  munged_use(m);
}

void munged_stop(struct munged *m) {
  static const char *const files[] = {"key", "pid", "seed", "log", "socket", "socket.lock"};
  char path[96];
  kill(m->pid, SIGKILL);
  waitpid(m->pid, NULL, 0);
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    snprintf(path, sizeof path, "%s/%s", m->folder, files[i]);
    unlink(path);
  }
  rmdir(m->folder);
}

void munged_use(const struct munged *m) {
  setenv("RDZV_MUNGE_SOCKET", m->socket, 1);
}
