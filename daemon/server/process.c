/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/process.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FDS_AT_ONCE = 512 };

static void read_memory(struct process_facts *f) {
  long long pages, resident;
  long size = sysconf(_SC_PAGESIZE);
  FILE *in = fopen("/proc/self/statm", "re");
  if (!in) return;
  if (fscanf(in, "%lld %lld", &pages, &resident) == 2) {
    f->virtual_bytes = pages * size;
    f->resident_bytes = resident * size;
  }
  fclose(in);
}

void process_begin_counting(struct process *p) {
  p->fds = opendir("/proc/self/fd");
  p->facts.open_fds = p->fds ? 0 : -1;
}

void process_begin(struct process *p, double started_wall_s) {
  struct timespec cpu;
  struct rlimit limit;
  struct stat st;
  *p = (struct process){.facts = {.cpu_s = -1,
                                  .started_wall_s = started_wall_s,
                                  .resident_bytes = -1,
                                  .virtual_bytes = -1,
                                  .open_fds = -1,
                                  .max_fds = -1}};
  read_memory(&p->facts);
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0)
    p->facts.cpu_s = (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    p->facts.max_fds = (int64_t)limit.rlim_cur;
  if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0)
    p->facts.open_fds = st.st_size;
  else
    process_begin_counting(p);
}

bool process_more(struct process *p) {
  if (!p->fds) return false;
  for (int i = 0; i < FDS_AT_ONCE; i++) {
    const struct dirent *entry = readdir(p->fds);
    if (!entry) {
      p->facts.open_fds--; /* the one that lists them */
      process_finish(p);
      return false;
    }
    if (entry->d_name[0] != '.') p->facts.open_fds++;
  }
  return true;
}

void process_finish(struct process *p) {
  if (p->fds) closedir(p->fds);
  p->fds = NULL;
}
