/* SPDX-License-Identifier: Apache-2.0 */
/* Closing what was inherited. */

#include "agent/guard/wire.h"

#include <sys/syscall.h>
#include <unistd.h>

enum { FDS_MAX = 1024 /* to close one by one where the kernel cannot close a range */ };

static void close_from(int first, int last) {
  if (first > last) return;
#ifdef SYS_close_range
  if (syscall(SYS_close_range, (unsigned)first, (unsigned)last, 0U) == 0) return;
#endif
  for (int fd = first; fd <= last && fd < FDS_MAX; fd++) close(fd);
}

void guard_close_others(int a, int b) {
  int low = a < b ? a : b, high = a < b ? b : a;
  int next = STDERR_FILENO + 1;
  if (low >= next) {
    close_from(next, low - 1);
    next = low + 1;
  }
  if (high >= next) {
    close_from(next, high - 1);
    next = high + 1;
  }
  close_from(next, ~0U >> 1);
}
