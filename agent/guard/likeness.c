/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel shows nearly all of it in /proc/self, so the text is mostly copied from there, and a new kind of limit is
 * compared without a change here. What differs from process to process by itself (pids, memory, counters) is left out. */

#include "agent/guard/likeness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/siphash.h"
#include "common/system/file.h"

enum { FILE_MAX = 16 * 1024, LINK_MAX = 4096 };

/* One line for the file, program or folder behind the name: another one, or a changed one, has another line. */
static void put_identity(struct buf *out, const char *path, bool contents) {
  struct stat st = {0};
  if (stat(path, &st)) st.st_ino = 0;
  buf_printf(out, "%s %llu %llu", path, (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
  if (contents)
    buf_printf(out, " %lld %lld.%09ld", (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
  buf_putc(out, '\n');
}

void likeness_put_confinement(const char *proc, struct buf *out) {
  static const char *const spaces[] = {"cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time_for_children",
                                       "user",   "uts"};
  static const char *const names[] = {
      "Umask:",      "Uid:",          "Gid:",          "Groups:", "NoNewPrivs:", "Seccomp",
      "Speculation", "Cpus_allowed:", "Mems_allowed:", "Cap",     "THP_enabled:"};
  char text[FILE_MAX], path[80], link[LINK_MAX], *rest = NULL;
  for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
    snprintf(path, sizeof(path), "%s/ns/%s", proc, spaces[i]);
    ssize_t n = readlink(path, link, sizeof(link) - 1);
    link[n < 0 ? 0 : n] = '\0';
    buf_printf(out, "%s %s\n", spaces[i], link);
  }
  snprintf(path, sizeof(path), "%s/status", proc);
  file_read_text(path, text, sizeof(text));
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
      if (strncmp(line, names[i], strlen(names[i])) == 0) buf_printf(out, "%s\n", line);
}

int likeness_put(const struct guard_kept_for *kept_for, struct buf *out, struct err *e) {
  static const char *const files[] = {"limits",          "cgroup",        "attr/current", "oom_score_adj",
                                      "coredump_filter", "timerslack_ns", "personality",  "loginuid"};
  char text[FILE_MAX], path[64], folder[LINK_MAX];
  struct sched_param priority = {0};
  put_identity(out, "/proc/self/exe", true);
  put_identity(out, ".", false);
  put_identity(out, "/", false);
  buf_printf(out, "folder %s\n", getcwd(folder, sizeof(folder)) ? folder : "");
  for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
    snprintf(path, sizeof(path), "/proc/self/%s", files[i]);
    file_read_text(path, text, sizeof(text));
    buf_printf(out, "%s:\n%s\n", files[i], text);
  }
  likeness_put_confinement("/proc/self", out);
  int policy = sched_getscheduler(0), memory = 0;
  unsigned long nodes[16] = {0};
  sched_getparam(0, &priority);
  syscall(SYS_get_mempolicy, &memory, nodes, sizeof(nodes) * 8, NULL, 0UL);
  buf_printf(out, "scheduling %d %d %d, I/O %ld, memory %d", policy, priority.sched_priority,
             getpriority(PRIO_PROCESS, 0), syscall(SYS_ioprio_get, 1, 0), memory);
  for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) buf_printf(out, " %lx", nodes[i]);
  buf_printf(out, "\nstdin is a terminal: %d, can seek: %d\n", isatty(STDIN_FILENO),
             lseek(STDIN_FILENO, 0, SEEK_CUR) >= 0);
  buf_printf(out, "session keyring %ld\n",
             syscall(SYS_keyctl, 0 /* KEYCTL_GET_KEYRING_ID */, -3 /* the session's */, 0));
  for (size_t i = 0; kept_for->argv[i]; i++) buf_printf(out, "word %s\n", kept_for->argv[i]);
  struct siphash_key key = siphash_key_from(0);
  for (size_t i = 0; kept_for->env[i]; i++) key.k[0] = siphash(&key, kept_for->env[i], strlen(kept_for->env[i]));
  buf_printf(out, "variables %016" PRIx64 "\n", key.k[0]);
  /* Descriptors go on to workers unless they are close-on-exec. A guard that stays would hold a pipe's end, a lock or an
   * offset in a file, and a later start has others. */
  char link[LINK_MAX];
  DIR *d = opendir("/proc/self/fd");
  const struct dirent *entry;
  int rc = d ? 0 : err_sys(e, -errno, "/proc/self/fd");
  while (d && rc == 0 && (entry = readdir(d))) {
    int fd = (int)strtol(entry->d_name, NULL, 10);
    if (fd <= STDERR_FILENO || fcntl(fd, F_GETFD) & FD_CLOEXEC) continue;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, link, sizeof(link) - 1);
    link[n < 0 ? 0 : n] = '\0';
    if (strcmp(link, "/dev/null") == 0)
      buf_printf(out, "fd %d %s\n", fd, link);
    else
      rc =
          err_set(e, -EBUSY, "descriptor %d (%.40s) is open, which no later start can have: close it, %d>&- in a shell",
                  fd, link, fd);
  }
  if (d) closedir(d);
  return rc;
}
