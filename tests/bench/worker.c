/* SPDX-License-Identifier: Apache-2.0 */
/* The worker of the benchmarks: notes when it was exec'd, then waits to be killed, and notes when it is told to stop.
 *
 * Its first act is to read the clock, so what is measured is the launcher's work up to exec plus the dynamic
 * linker's. The note is a file named by pid, written under another name and renamed: who sees it, sees it whole. Its
 * first line holds CLOCK_MONOTONIC in nanoseconds, the clock that the reader uses too, and the rank; at SIGTERM a
 * second line tells the time of that, and the worker dies of the signal at once, so nothing of its own time is in the
 * launcher's. */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int note = -1;

static long long now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Only what may be called in a handler: no stdio. */
static void on_term(int signo) {
  char text[24], *at = text + sizeof text;
  *--at = '\n';
  for (long long t = now_ns(); t > 0; t /= 10) *--at = (char)('0' + t % 10);
  ssize_t n = write(note, at, (size_t)(text + sizeof text - at));
  (void)n;
  signal(signo, SIG_DFL);
  raise(signo); /* blocked until we return */
}

int main(int argc, char **argv) {
  long long began = now_ns();
  if (argc != 2) return fprintf(stderr, "usage: bench-worker DIRECTORY\n"), 64;
  const char *rank = getenv("RANK");
  char tmp[4096], path[4096], text[64];
  snprintf(tmp, sizeof tmp, "%s/.%d", argv[1], (int)getpid());
  snprintf(path, sizeof path, "%s/%d", argv[1], (int)getpid());
  snprintf(text, sizeof text, "%lld %s\n", began, rank ? rank : "0");
  note = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (note < 0 || write(note, text, strlen(text)) != (ssize_t)strlen(text)) return perror(tmp), 1;
  signal(SIGTERM, on_term);
  if (rename(tmp, path) != 0) return perror(path), 1;
  for (;;) pause();
}
