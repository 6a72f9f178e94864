/* SPDX-License-Identifier: Apache-2.0 */
/* /proc/net/tcp and tcp6 give the inodes of listening sockets per port, and the links in /proc/PID/fd show which
 * process holds an inode. So both are read, the second until the first hit. Without root only the user's own processes
 * show their links, so "not found" is an ordinary answer.
 *
 * This runs once, before the loop starts, when the daemon is about to exit anyway. It is bounded even so: a machine
 * with a million descriptors must not turn "port in use" into a wait. /proc/net/tcp lists listening sockets first, so
 * its limit does not hide them.
 *
 * port_holder_of runs inside a loop, so it looks only at processes of the user who is known to hold the inode, and at
 * fewer links. */

#include "common/system/port_holder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/system/file.h"

enum {
  TABLE_LINES_MAX = 65536,
  INODES_MAX = 8,     /* one port may be held on several addresses */
  LINKS_MAX = 200000, /* descriptors looked at in all */
  LINKS_MAX_IN_LOOP = 10000,
  TCP_STATE_LISTEN = 10,
};

struct inodes {
  unsigned long v[INODES_MAX];
  size_t n;
};

static void find_inodes(const char *table, uint16_t port, struct inodes *found) {
  FILE *f = fopen(table, "re");
  if (!f) return;
  char line[512];
  for (int i = 0; i < TABLE_LINES_MAX && found->n < INODES_MAX && fgets(line, sizeof(line), f); i++) {
    unsigned local_port, state;
    unsigned long inode;
    if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %lu", &local_port, &state,
               &inode) == 3 &&
        local_port == port && state == TCP_STATE_LISTEN)
      found->v[found->n++] = inode;
  }
  fclose(f);
}

static bool is_one_of(const struct inodes *wanted, const char *link) {
  unsigned long inode;
  if (sscanf(link, "socket:[%lu]", &inode) != 1) return false;
  for (size_t i = 0; i < wanted->n; i++)
    if (wanted->v[i] == inode) return true;
  return false;
}

static bool holds_one(int proc_fd, const char *pid, const struct inodes *wanted, int *budget) {
  char path[64];
  snprintf(path, sizeof(path), "%.16s/fd", pid);
  int fd = openat(proc_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
  if (!d) {
    if (fd >= 0) close(fd);
    return false;
  }
  bool found = false;
  struct dirent *entry;
  while (!found && (*budget)-- > 0 && (entry = readdir(d))) {
    char link[64];
    ssize_t n = readlinkat(fd, entry->d_name, link, sizeof(link) - 1);
    if (n <= 0) continue;
    link[n] = '\0';
    found = is_one_of(wanted, link);
  }
  closedir(d);
  return found;
}

static bool is_of(int proc_fd, const char *pid, int64_t uid) {
  struct stat st;
  return uid < 0 || (fstatat(proc_fd, pid, &st, AT_SYMLINK_NOFOLLOW) == 0 && (int64_t)st.st_uid == uid);
}

/* uid -1: of any user. */
static bool find_process(const struct inodes *wanted, int64_t uid, int budget, struct port_holder *h) {
  DIR *proc = wanted->n > 0 ? opendir("/proc") : NULL;
  if (!proc) return false;
  bool found = false;
  struct dirent *entry;
  while (!found && budget > 0 && (entry = readdir(proc))) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !is_of(dirfd(proc), entry->d_name, uid)) continue;
    found = holds_one(dirfd(proc), entry->d_name, wanted, &budget);
    if (found) h->pid = (pid_t)strtol(entry->d_name, NULL, 10);
  }
  closedir(proc);
  if (!found) return false;
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/comm", (int)h->pid);
  file_read_text(path, h->name, sizeof(h->name));
  h->name[strcspn(h->name, "\n")] = '\0';
  return true;
}

bool port_holder_find(uint16_t port, struct port_holder *h) {
  struct inodes wanted = {.n = 0};
  find_inodes("/proc/net/tcp", port, &wanted);
  find_inodes("/proc/net/tcp6", port, &wanted);
  return find_process(&wanted, -1, LINKS_MAX, h);
}

bool port_holder_of(unsigned long inode, int64_t uid, struct port_holder *h) {
  struct inodes wanted = {.v = {inode}, .n = 1};
  return find_process(&wanted, uid, LINKS_MAX_IN_LOOP, h);
}
