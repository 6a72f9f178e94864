/* SPDX-License-Identifier: Apache-2.0 */
/* Only Python knows what its packages offer. So a separate process asks it, once, and only if the flag is given. If
 * Python is missing, hangs, or is too old, the name counts as found, because the flag has no effect anyway. */

#include "agent/output/logs_specs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ASK_S = 5, NOT_FOUND = 3 };

static char code_flag[] = "-c";
static char question[] = "import sys\nfrom importlib.metadata import entry_points\nsys.exit(0 if "
                         "entry_points(group='torchrun.logs_specs').select(name=sys.argv[1]) else 3)\n";

/* Its exit code; -1: none. SIGCHLD is blocked. */
static int wait_for(pid_t pid) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const struct timespec limit = {.tv_sec = ASK_S};
  int status = 0, got;
  do got = sigtimedwait(&child, NULL, &limit);
  while (got < 0 && errno == EINTR);
  if (got < 0) kill(pid, SIGKILL);
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int ask_python(char *python, char *name) {
  char *const argv[] = {python, code_flag, question, name, NULL};
  posix_spawn_file_actions_t quiet;
  pid_t pid;
  int code = -1;
  if (posix_spawn_file_actions_init(&quiet)) return -1;
  int rc = 0;
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && rc == 0; fd++)
    rc = posix_spawn_file_actions_addopen(&quiet, fd, "/dev/null", O_RDWR, 0);
  if (rc == 0 && posix_spawnp(&pid, python, &quiet, NULL, argv, environ) == 0) code = wait_for(pid);
  posix_spawn_file_actions_destroy(&quiet);
  return code;
}

int logs_specs_check(char *python, const char *option, char *name, struct err *e) {
  sigset_t child, before;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  signal(SIGCHLD, SIG_DFL); /* if it is ignored, children leave no exit code */
  sigprocmask(SIG_BLOCK, &child, &before);
  int code = ask_python(python, name);
  sigprocmask(SIG_SETMASK, &before, NULL);
  if (code != NOT_FOUND) return 0;
  return err_set(
      e, -EINVAL,
      "%s=%s: no package of %s has this entry point of torchrun.logs_specs; install the package, or remove the option "
      "(it has no effect)",
      option, name, python);
}
