/* SPDX-License-Identifier: Apache-2.0 */
/* Private folders, and their removal.
 *
 * The state of our own rdzvd must survive the daemon, not the machine, so it is in /dev/shm, where an fsync is free.
 *
 * The agent removes the folder when its daemon is gone; a daemon that outlives its agent removes it itself. If both
 * are killed at once, as a scheduler does at the end of a job's time, it stays. So each start looks for old ones. A
 * folder is abandoned if the agent in its name (rdzvd-PID-XXXXXX) is gone and the daemon's lock in it is free; both
 * count, because a dead daemon may be about to restart. It must be a real folder of our user, since anyone can make
 * names in /dev/shm. */

#include "agent/link/private_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"

enum { SWEEP_MAX = 64 }; /* folders that one start removes */

static void empty_folder(int dir_fd) {
  DIR *dir = fdopendir(dir_fd);
  for (struct dirent *f; dir && (f = readdir(dir));)
    if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0) unlinkat(dir_fd, f->d_name, 0);
  if (dir)
    closedir(dir);
  else
    close(dir_fd);
}

void private_dir_remove(char *dir) {
  int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
  if (fd >= 0) empty_folder(fd);
  if (fd >= 0) rmdir(dir);
  free(dir);
}

/* Whether a daemon uses the folder. */
static bool is_locked(int dir_fd) {
  int fd = openat(dir_fd, "rdzvd.lock", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno != ENOENT;
  bool locked = flock(fd, LOCK_EX | LOCK_NB) != 0;
  close(fd);
  return locked;
}

static bool sweep_one(int place_fd, const char *name) {
  int pid, at = 0;
  struct stat st;
  if (sscanf(name, "rdzvd-%d-%n", &pid, &at) != 1 || at == 0 || pid <= 0) return false;
  if (kill(pid, 0) == 0 || errno != ESRCH) return false;
  int fd = openat(place_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return false;
  if (fstat(fd, &st) != 0 || st.st_uid != geteuid() || is_locked(fd)) {
    close(fd);
    return false;
  }
  empty_folder(fd);
  return unlinkat(place_fd, name, AT_REMOVEDIR) == 0;
}

static void sweep_place(const char *place) {
  DIR *dir = opendir(place);
  int removed = 0;
  for (struct dirent *f; dir && removed < SWEEP_MAX && (f = readdir(dir));) removed += sweep_one(dirfd(dir), f->d_name);
  if (dir) closedir(dir);
}

char *private_dir_create(struct err *e) {
  const char *tmp = getenv("TMPDIR");
  const char *const places[] = {"/dev/shm", tmp && *tmp ? tmp : "/tmp", "/tmp"};
  for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
    char *dir = xasprintf("%s/rdzvd-%d-XXXXXX", places[i], (int)getpid());
    if (mkdtemp(dir)) {
      sweep_place(places[i]);
      return dir;
    }
    free(dir);
  }
  err_sys(e, -errno, "no folder for rdzvd's state can be made in /dev/shm or /tmp");
  return NULL;
}
