/* The worker of the benchmarks: notes when it was exec'd, then waits to be killed.
 *
 * Its first act is to read the clock, so what is measured is the launcher's work up to exec plus the dynamic linker's. The note is a file
 * named by pid, written under another name and renamed: who sees it, sees it whole. It holds CLOCK_MONOTONIC in nanoseconds, the clock that
 * the reader uses too, and the rank. */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (argc != 2) return fprintf(stderr, "usage: bench-worker DIRECTORY\n"), 64;
  const char *rank = getenv("RANK");
  char tmp[4096], path[4096];
  snprintf(tmp, sizeof tmp, "%s/.%d", argv[1], (int)getpid());
  snprintf(path, sizeof path, "%s/%d", argv[1], (int)getpid());
  FILE *f = fopen(tmp, "w");
  if (!f) return perror(tmp), 1;
  fprintf(f, "%lld %s\n", (long long)now.tv_sec * 1000000000LL + now.tv_nsec, rank ? rank : "0");
  if (fclose(f) != 0 || rename(tmp, path) != 0) return perror(path), 1;
  for (;;) pause();
}
