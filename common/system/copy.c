/* SPDX-License-Identifier: Apache-2.0 */
#include "common/system/copy.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
  FDS_MAX = 1024,     /* to close one by one where the kernel cannot close a range */
  FD_LAST = ~0U >> 1, /* of the numbers that a descriptor can have */
};

void copy_set_name(const struct copy_words *w, const char *name, pid_t of) {
  prctl(PR_SET_NAME, name, 0, 0, 0);
  if (!w || w->argc == 0) return;
  static size_t room; /* the words are gone after the first name */
  char *end = w->argv[0];
  for (int i = 0; i < w->argc && w->argv[i] == end && !room; i++) end += strlen(end) + 1;
  if (!room) room = (size_t)(end - w->argv[0]);
  if (room < 2) return;
  memset(w->argv[0], 0, room);
  snprintf(w->argv[0], room - 1, "%s of %d", name, (int)of);
}

/* SIGKILL, SIGSTOP and those of libc refuse. */
void copy_reset_signals(void) {
  struct sigaction dfl = {.sa_handler = SIG_DFL};
  for (int signo = 1; signo <= SIGRTMAX; signo++) sigaction(signo, &dfl, NULL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

void copy_block_signals(void) {
  const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
  sigset_t set;
  sigfillset(&set);
  for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) sigdelset(&set, faults[i]);
  sigprocmask(SIG_SETMASK, &set, NULL);
}

static void close_range_of(int first, int last) {
  if (first > last) return;
#ifdef SYS_close_range
  if (syscall(SYS_close_range, (unsigned)first, (unsigned)last, 0U) == 0) return;
#endif
  for (int fd = first; fd <= last && fd < FDS_MAX; fd++) close(fd);
}

void copy_close_from(int first) {
  close_range_of(first, FD_LAST);
}

void copy_close_others(int a, int b) {
  int low = a < b ? a : b, high = a < b ? b : a;
  int next = STDERR_FILENO + 1;
  if (low >= next) {
    close_range_of(next, low - 1);
    next = low + 1;
  }
  if (high >= next) {
    close_range_of(next, high - 1);
    next = high + 1;
  }
  copy_close_from(next);
}
