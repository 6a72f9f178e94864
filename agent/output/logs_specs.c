/* SPDX-License-Identifier: Apache-2.0 */
/* Only Python knows what its packages offer. So a separate process asks it, once, and only if the flag is given. If
 * Python is missing, hangs, or is too old, the name counts as found, because the flag has no effect anyway. */

#include "agent/output/logs_specs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ASK_S = 5, NOT_FOUND = 3 };

static const char question[] = "import sys\nfrom importlib.metadata import entry_points\nsys.exit(0 if "
                               "entry_points(group='torchrun.logs_specs').select(name=sys.argv[1]) else 3)\n";

/* Its exit code; -1: none. */
static int ask_python(char *python, char *name) {
  int status = 0;
  signal(SIGCHLD, SIG_DFL); /* if it is ignored, children leave no exit code */
  pid_t pid = fork();
  if (pid == 0) {
    int null = open("/dev/null", O_RDWR);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) dup2(null, fd);
    signal(SIGALRM, SIG_DFL);
    alarm(ASK_S); /* exec does not end it */
    execlp(python, python, "-c", question, name, (char *)NULL);
    _exit(127);
  }
  while (pid > 0 && waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int logs_specs_check(char *python, const char *option, char *name, struct err *e) {
  if (ask_python(python, name) != NOT_FOUND) return 0;
  return err_set(
      e, -EINVAL,
      "%s=%s: no package of %s has this entry point of torchrun.logs_specs; install the package, or remove the option "
      "(it has no effect)",
      option, name, python);
}
