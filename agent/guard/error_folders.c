/* SPDX-License-Identifier: Apache-2.0 */
/* The folders of workers' error files, as far as the guard handles them.
 *
 *   TOP/RUN/attempt_N/LOCAL_RANK/error.json
 *
 * The worker's own process makes the last two, before its command runs. A file server that hangs then delays this
 * worker alone, and neither the agent's loop nor the guard's.
 *
 * A TOP whose name marks it as temporary is the agent's to remove. An agent that was killed cannot, so the guard, which
 * outlives it, removes empty folders. It never deletes a file: an error file may explain why the agent died. */

#include "agent/guard/wire.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TO_RUN = 3, TO_TOP = 4 }; /* levels up from the error file */

static char run[PATH_MAX]; /* the folder RUN below a temporary TOP; "" none */

/* The folder `levels` above the error file that env names; false: there is none. */
static bool find_folder(char *const *env, int levels, char out[PATH_MAX]) {
  static const char name[] = "TORCHELASTIC_ERROR_FILE=";
  while (*env && strncmp(*env, name, sizeof(name) - 1) != 0) env++;
  const char *file = *env ? *env + sizeof(name) - 1 : "";
  size_t n = strlen(file);
  if (n >= PATH_MAX) return false;
  memcpy(out, file, n + 1);
  for (int i = 0; i < levels; i++) {
    char *slash = strrchr(out, '/');
    if (!slash || slash == out) return false;
    *slash = '\0';
  }
  return true;
}

void guard_make_folder(char *const *env) {
  char path[PATH_MAX];
  for (int levels = 2; levels > 0; levels--)
    if (find_folder(env, levels, path)) mkdir(path, 0777);
}

void guard_note_folder(char *const *env) {
  static const char temporary[] = "torchelastic_";
  char path[PATH_MAX];
  const char *name = find_folder(env, TO_TOP, path) ? strrchr(path, '/') : NULL;
  if (name && strncmp(name + 1, temporary, sizeof(temporary) - 1) == 0) find_folder(env, TO_RUN, run);
}

/* Takes fd. */
static void remove_empty(int fd, int depth) {
  DIR *dir = fdopendir(fd);
  if (!dir) {
    close(fd);
    return;
  }
  for (struct dirent *f; (f = readdir(dir));) {
    if (strcmp(f->d_name, ".") == 0 || strcmp(f->d_name, "..") == 0) continue;
    if (f->d_type != DT_DIR && f->d_type != DT_UNKNOWN) continue;
    int below = depth ? openat(fd, f->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (below >= 0) remove_empty(below, depth - 1);
    unlinkat(fd, f->d_name, AT_REMOVEDIR); /* fails if it is not empty */
  }
  closedir(dir);
}

void guard_remove_folder(void) {
  int fd = run[0] ? open(run, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
  if (fd < 0) return;
  remove_empty(fd, 1);
  rmdir(run);
  *strrchr(run, '/') = '\0'; /* TOP, if it is empty */
  rmdir(run);
  run[0] = '\0'; /* it is called again when the guard stays */
}
