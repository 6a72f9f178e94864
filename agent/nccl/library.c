/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/nccl/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/system/command.h"
#include "common/system/file.h"

/* Where pip installed it, from Python itself: no rule about folders holds for virtual environments, conda and pyenv
 * alike. It imports no torch. The child dies with us. */
static bool ask_python(char *out) {
  static const char question[] =
      "from importlib.util import find_spec\n"
      "from os import path\n"
      "for name, file in ('nvidia.nccl', 'libnccl.so.2'), ('torch', 'librccl.so.1'), ('torch', 'librccl.so'):\n"
      "  try:\n"
      "    found = path.join(list(find_spec(name).submodule_search_locations)[0], 'lib', file)\n"
      "  except (ImportError, AttributeError):\n"
      "    continue\n"
      "  if path.exists(found):\n"
      "    print(found)\n"
      "    break\n";
  const char *python = getenv("PYTHON_EXEC");
  int ends[2];
  if (!python || !*python) python = command_own_python(NULL);
  if (!python) python = "python3";
  if (pipe2(ends, O_CLOEXEC)) return false;
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 2) < 0 || dup2(ends[1], 1) < 0) _exit(127);
    execlp(python, python, "-c", question, (char *)NULL);
    _exit(127);
  }
  close(ends[1]);
  size_t len = 0;
  for (ssize_t n; pid > 0 && len < PATH_MAX && (n = read(ends[0], out + len, PATH_MAX - len)) > 0;) len += (size_t)n;
  close(ends[0]);
  int status = 1;
  if (pid > 0) waitpid(pid, &status, 0);
  while (len > 0 && out[len - 1] == '\n') len--;
  if (status || len == 0 || len == PATH_MAX) return false;
  out[len] = '\0';
  return true;
}

/* Opens the first of the places above. why: the last error, other than that there is no RCCL. */
static void *open_library(const char **name, char why[ERR_TEXT_MAX]) {
  static char path[PATH_MAX];
  const char *given = getenv("RDZV_NCCL_LIBRARY"), *rocm = getenv("ROCM_PATH");
  bool is_given = given && *given;
  void *library = NULL;
  for (int i = 0; !library && i < (is_given ? 1 : 4); i++) {
    *name = is_given ? given : i == 0 ? "libnccl.so.2" : i == 1 ? "librccl.so.1" : path;
    if (i == 3) snprintf(path, sizeof path, "%s/lib/librccl.so.1", rocm && *rocm ? rocm : "/opt/rocm");
    if ((i == 2 && !ask_python(path)) || (i == 3 && access(path, F_OK) != 0)) continue;
    library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
    const char *text = library ? NULL : dlerror();
    if (text && (i != 1 || strncmp(text, *name, strlen(*name)) != 0)) snprintf(why, ERR_TEXT_MAX, "%s", text);
  }
  return library;
}

int library_find(void *library, const char *file, const char *what, const struct symbol *v, size_t n, struct err *e) {
  for (size_t i = 0; i < n; i++) {
    void *found = dlsym(library, v[i].name);
    if (!found && !v[i].optional) return err_set(e, -ENOENT, "%s has no function %s: is it %s?", file, v[i].name, what);
    memcpy(v[i].at, &found, sizeof found);
  }
  return 0;
}

int nccl_load(const struct symbol *v, size_t n, struct err *e) {
  char why[ERR_TEXT_MAX] = "";
  const char *file;
  void *library = open_library(&file, why);
  if (!library) return err_set(e, -ENOENT, "NCCL cannot be loaded (--nccl-library): %s", why);
  return library_find(library, file, "NCCL", v, n, e);
}

int nccl_say(int out, const char *word, const char *text) {
  struct buf line = BUF_INIT;
  buf_printf(&line, "%s %s", word, text);
  for (size_t i = 0; i < line.len; i++)
    if ((unsigned char)line.data[i] < 0x20) line.data[i] = ' '; /* NCCL's texts have lines */
  buf_putc(&line, '\n');
  int rc = file_write_all(out, line.data, line.len);
  buf_finish(&line);
  return rc;
}
