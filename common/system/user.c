/* SPDX-License-Identifier: Apache-2.0 */
/* Both files are read only when the number is the suspicious one, which on most machines is never. Where /proc/sys is
 * hidden (ProcSubset=pid of systemd) the number is taken to be 65534, as nearly everywhere. A table that cannot be read
 * maps nobody. */

#include "common/system/user.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OVERFLOW_UID = 65534, TABLE_MAX = 16384 }; /* 340 lines of at most 36 bytes */

static const uint64_t all_users = UINT32_MAX; /* (uid_t)-1 is none */

static void read_text(const char *path, char *text, size_t size) {
  size_t len = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  for (ssize_t n = fd < 0 ? 0 : 1; n > 0 && len<size - 1; len += n> 0 ? (size_t)n : 0)
    n = read(fd, text + len, size - 1 - len);
  if (fd >= 0) close(fd);
  text[len] = '\0';
}

bool user_map_is_total(const char *text) {
  uint64_t sum = 0;
  for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
    uint32_t inside, outside, count;
    if (sscanf(line, "%" SCNu32 " %" SCNu32 " %" SCNu32, &inside, &outside, &count) == 3) sum += count;
  }
  return sum >= all_users;
}

bool user_is_known(int64_t uid) {
  char text[TABLE_MAX];
  if (uid < 0) return false;
  read_text("/proc/sys/kernel/overflowuid", text, sizeof(text));
  if (uid != (*text ? atoll(text) : OVERFLOW_UID)) return true;
  read_text("/proc/self/uid_map", text, sizeof(text));
  return user_map_is_total(text);
}

bool user_is_self(int64_t uid) {
  return uid == (int64_t)geteuid() && user_is_known(uid);
}
