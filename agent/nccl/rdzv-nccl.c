/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-nccl COUNT: creates ncclUniqueIds, reports them to its agent, and lives until that closes its stdin.
 *
 * An id is an address: ncclGetUniqueId opens a socket and starts a thread that waits for the ranks of a communicator.
 * So its process must live until all ranks have connected. The agent itself must not have a foreign library's threads,
 * sockets and crashes, and a worker would have to start before the ids are known. No GPU is used and no CUDA context
 * is made.
 *
 * It runs in a worker's environment, which decides where NCCL listens (NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY, ...).
 * The library is RDZV_NCCL_LIBRARY, else libnccl.so.2 or AMD's librccl.so.1 as the loader finds it, else the one that pip
 * installed for PYTHON_EXEC, the environment that we are installed in, or python3 in PATH, which PyTorch uses there:
 * nvidia-nccl-cu12 or cu13, or the RCCL in a PyTorch for ROCm. Else ROCm's in ROCM_PATH or /opt/rocm. RCCL has NCCL's
 * functions and ids.
 *
 * The answer goes to stdout in the form of agent/nccl/record.h. NCCL prints to stdout too if NCCL_DEBUG asks for it,
 * so NCCL's stdout is our stderr, which the agent logs.
 *
 * It dies with its agent, by the parent-death signal and by the end of its stdin. It ignores signals from a terminal.
 */

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "agent/nccl/record.h"
#include "common/system/command.h"
#include "common/system/file.h"
#include "common/exit_codes.h"

struct unique_id {
  char bytes[NCCL_ID_SIZE];
};

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

static int mint_ids(struct unique_id *ids, uint32_t count, int *version, struct err *e) {
  char why[ERR_TEXT_MAX] = "";
  const char *name;
  int (*get_version)(int *version) = NULL;
  int (*get_id)(struct unique_id * id) = NULL;
  const char *(*get_error)(int code) = NULL;
  const struct {
    const char *symbol;
    void *at;
  } wanted[] = {{"ncclGetVersion", &get_version}, {"ncclGetUniqueId", &get_id}, {"ncclGetErrorString", &get_error}};
  void *library = open_library(&name, why);
  if (!library) return err_set(e, -ENOENT, "NCCL cannot be loaded (--nccl-library): %s", why);
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    void *found = dlsym(library, wanted[i].symbol);
    if (!found) return err_set(e, -ENOENT, "%s has no function %s: is it NCCL?", name, wanted[i].symbol);
    memcpy(wanted[i].at, &found, sizeof found);
  }
  assert(get_version && get_id && get_error); /* for the analyzer, which does not follow memcpy */
  int rc = get_version(version);
  if (rc) return err_set(e, -EIO, "ncclGetVersion: %s", get_error(rc));
  if (*version < 1 || *version > NCCL_VERSION_LIMIT)
    return err_set(e, -EIO, "ncclGetVersion returned %d, which is not a version", *version);
  for (uint32_t i = 0; i < count; i++) {
    rc = get_id(&ids[i]);
    if (rc) return err_set(e, -EIO, "ncclGetUniqueId: %s (NCCL_DEBUG=WARN says more)", get_error(rc));
  }
  return 0;
}

static const char help[] =
    "usage: rdzv-nccl COUNT\n\n"
    "Creates COUNT ncclUniqueIds, prints them in binary, and serves them until its stdin is closed.\n"
    "rdzv-agent --nccl-ids runs it; there is nothing to do with it by hand.\n"
    "RDZV_NCCL_LIBRARY names another libnccl.so.2 or librccl.so.1 (rdzv-agent --nccl-library).\n";

int main(int argc, char **argv) {
  static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP};
  if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) return fputs(help, stdout) < 0;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
  long count = argc == 2 ? strtol(argv[1], NULL, 10) : 0;
  if (count < 1 || count > NCCL_IDS_MAX) {
    fprintf(stderr,
            "rdzv-nccl: the number of ids is missing, or not from 1 to %d; rdzv-agent runs this program (--help)\n",
            NCCL_IDS_MAX);
    return EXIT_CODE_USAGE;
  }
  int out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (out < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return EXIT_CODE_SYSTEM;
  setvbuf(stdout, NULL, _IOLBF, 0); /* NCCL's output is needed while it matters */
  static struct unique_id ids[NCCL_IDS_MAX];
  struct buf record = BUF_INIT;
  struct err e = ERR_INIT;
  int version = 0;
  if (mint_ids(ids, (uint32_t)count, &version, &e))
    nccl_record_put_failure(&record, e.text, e.code == -ENOENT);
  else
    nccl_record_put(&record, version, ids, (uint32_t)count);
  bool minted = file_write_all(out, record.data, record.len) == 0 && !e.code;
  buf_finish(&record);
  close(out);
  if (minted) {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
  }
  _exit(minted ? EXIT_CODE_OK : EXIT_CODE_NCCL); /* NCCL's threads still run: nothing is torn down */
}
