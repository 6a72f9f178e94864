/* SPDX-License-Identifier: Apache-2.0 */
/* One worker: from the bytes of a SPAWN command to a running program.
 *
 * The strings arrive in a memfd. It is mapped, the two arrays of pointers are built before the fork, and the child only
 * makes system calls until exec.
 *
 * The child takes its own session: the terminal's Ctrl-C and the shell's job control then reach the agent alone, and a
 * stop can signal the process group. The child asks to be killed when the guard dies, and checks that the guard has not
 * died before it asked. Until exec signals are blocked, so that a SIGTERM that comes early waits and then acts.
 *
 * A pipe that exec closes reports whether exec succeeded: end of file is success, an int is errno. A negative int
 * before it reports that the worker could not be bound to its CPUs. The guard reads the pipe from its loop, so a
 * program on a hung file system delays no other.
 *
 * Ours are all close-on-exec. Descriptors that the agent was started with (stdin, a job server's pipes, a PMI socket)
 * go on to the worker, as with any launcher. */

#include "agent/guard/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/copy.h"
#include "common/system/file.h"

int guard_strings_map(struct guard_strings *s, const struct guard_cmd_spawn *c, int fd) {
  *s = (struct guard_strings){.size = c->size};
  if (c->size == 0 || c->size > GUARD_SPAWN_MAX || c->argc == 0 || c->argc > c->size || c->envc > c->size ||
      c->cpus_size > c->size || c->cpus_size > GUARD_CPUS_MAX)
    return -EBADMSG;
  s->map = mmap(NULL, c->size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (s->map == MAP_FAILED) return -errno;
  s->v = xmalloc(((size_t)c->argc + c->envc + 2) * sizeof(*s->v));
  size_t at = c->cpus_size, n = 0;
  for (uint32_t i = 0; i < c->argc + c->envc; i++) {
    const char *end = at < c->size ? memchr(s->map + at, '\0', c->size - at) : NULL;
    if (!end) return -EBADMSG;
    s->v[n++] = s->map + at;
    if (n == c->argc) s->v[n++] = NULL;
    at = (size_t)(end - s->map) + 1;
  }
  s->v[n] = NULL;
  return s->v[0] ? 0 : -EBADMSG;
}

void guard_strings_finish(struct guard_strings *s) {
  if (s->map && s->map != MAP_FAILED) munmap(s->map, s->size);
  free(s->v);
}

/* In the child. Never returns. */
_Noreturn static void become_worker(const struct guard_strings *s, const struct guard_cmd_spawn *c, pid_t guard,
                                    int out, int err, int report) {
  char **argv = s->v, **env = s->v + c->argc + 1;
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != guard) _exit(0); /* it died before the signal was set */
  int error = 0;
  if (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0) error = errno;
  copy_reset_signals();
  /* Memory follows by first touch. The set was read before the round, and may have shrunk since: then the worker runs on
   * the guard's CPUs. */
  if (c->cpus_size && sched_setaffinity(0, c->cpus_size, (const cpu_set_t *)(const void *)s->map) != 0) {
    int unbound = -errno;
    (void)!write(report, &unbound, sizeof(unbound));
  }
  /* The folder of its error file. A file server that hangs delays this worker alone. */
  static const char name[] = "TORCHELASTIC_ERROR_FILE=";
  char *const *file = env;
  while (*file && strncmp(*file, name, sizeof(name) - 1) != 0) file++;
  if (*file) file_make_folders(*file + sizeof(name) - 1);
  if (!error) {
    environ = env; /* PATH is looked up there */
    execvpe(argv[0], argv, env);
    error = errno;
  }
  ssize_t told = write(report, &error, sizeof(error));
  _exit(told == (ssize_t)sizeof(error) ? 127 : 126);
}

int guard_fork_worker(const struct guard_cmd_spawn *s, const int fds[GUARD_SPAWN_FDS], pid_t *pid, int *exec_fd,
                      char name[GUARD_NAME_MAX]) {
  struct guard_strings strings;
  int report[2] = {-1, -1}, rc = guard_strings_map(&strings, s, fds[0]);
  pid_t guard = getpid();
  snprintf(name, GUARD_NAME_MAX, "its command and environment");
  if (!rc && strings.v) {
    snprintf(name, GUARD_NAME_MAX, "pipe");
    rc = pipe2(report, O_CLOEXEC | O_NONBLOCK) ? -errno : 0;
    if (!rc) {
      snprintf(name, GUARD_NAME_MAX, "fork");
      *pid = fork();
      if (*pid == 0) become_worker(&strings, s, guard, fds[1], fds[2], report[1]);
      if (*pid < 0) rc = -errno;
      close(report[1]);
      if (rc) close(report[0]);
    }
    if (!rc) {
      snprintf(name, GUARD_NAME_MAX, "%s", strings.v[0]);
      *exec_fd = report[0];
    }
  }
  guard_strings_finish(&strings);
  for (int i = 0; i < GUARD_SPAWN_FDS; i++) close(fds[i]);
  return rc;
}

void guard_exec_text(int error, const char *name, char *out, size_t size) {
  if (error == ENOENT && !strchr(name, '/'))
    snprintf(out, size, "%s: not found in PATH", name);
  else if (error == ENOENT && access(name, F_OK) == 0)
    snprintf(out, size, "%s: its interpreter was not found", name);
  else if (error == ECANCELED)
    snprintf(out, size, "%s: not started, the round is being stopped", name);
  else if (error == EBUSY)
    snprintf(out, size, "%s: not started, another round is not over", name);
  else
    snprintf(out, size, "%s: %s", name, strerror(error));
}
