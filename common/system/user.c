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
#include "common/system/file.h"

enum { OVERFLOW_UID = 65534, TABLE_MAX = 16384 }; /* 340 lines of at most 36 bytes */

static const uint64_t all_users = UINT32_MAX; /* (uid_t)-1 is none */

bool user_map_is_total(const char *text) {
  uint64_t sum = 0;
  for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
    uint32_t inside, outside, count;
    if (sscanf(line, "%" SCNu32 " %" SCNu32 " %" SCNu32, &inside, &outside, &count) == 3) sum += count;
  }
  return sum >= all_users;
}

bool user_is_known(int64_t uid) {
  char overflow[24];
  if (uid < 0) return false;
  file_read_text("/proc/sys/kernel/overflowuid", overflow, sizeof(overflow));
  if (uid != (*overflow ? atoll(overflow) : OVERFLOW_UID)) return true;
  struct buf map = BUF_INIT;
  file_drain(open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC), TABLE_MAX, &map);
  bool known = user_map_is_total(buf_text(&map));
  buf_finish(&map);
  return known;
}

bool user_is_self(int64_t uid) {
  return uid == (int64_t)geteuid() && user_is_known(uid);
}
