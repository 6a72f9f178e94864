/* Descendants of a process, from /proc.
 *
 * Two questions. "Who are my children?" is asked on every step of a kill, and the kernel answers it from one file,
 * /proc/thread-self/children (where it was built to; else all of /proc is read and filtered). "Who descends from me,
 * at any depth?" is asked only where the first did not lead to the end: it reads /proc/PID/stat of every process of
 * the machine, some ten microseconds each, and takes the closure over parents. Walking down
 * /proc/PID/task/TID/children instead would read one file per thread, and a worker may have hundreds.
 *
 * No answer is exact. Between two reads a process can fork, exit, or be handed to another parent; a child can be
 * missed by the children file when its neighbour exits. Callers loop until waitpid says that there is no child at
 * all, which is exact: every descendant hangs on a chain of parents, and a chain whose link dies is hung on the
 * subreaper.
 *
 * A pid can be used again. A child that was not waited for keeps its pid, so signals to children are safe; for deeper
 * ones the start time is read once more before the signal, which leaves a window of microseconds, in which the kernel
 * would have to hand out all other pids first. */

#include "agent/proctree.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/mem.h"

void proctree_finish(struct proctree *t) {
  free(t->v);
  *t = (struct proctree)PROCTREE_INIT;
}

static void add(struct proctree *t, const struct proc *p) {
  if (t->n == t->cap) {
    t->cap = t->cap ? t->cap * 2 : 64;
    t->v = xrealloc(t->v, t->cap * sizeof(*t->v));
  }
  t->v[t->n++] = *p;
}

/* Of the kernel's include/linux/sched.h; proc(5) promises the field, and these have been the same for twenty years. */
enum { PF_EXITING = 0x4, PF_SIGNALED = 0x400 };

bool proc_parse(const char *stat, struct proc *p) {
  const char *open = strchr(stat, '('), *close = strrchr(stat, ')'); /* the name may hold both */
  if (!open || !close || close < open) return false;
  memset(p, 0, sizeof(*p));
  size_t n = (size_t)(close - open - 1);
  memcpy(p->name, open + 1, n < sizeof(p->name) - 1 ? n : sizeof(p->name) - 1);
  p->pid = (pid_t)strtol(stat, NULL, 10);
  unsigned long long start;
  unsigned flags;
  int ppid;
  if (sscanf(close + 1, " %c %d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
             &p->state, &ppid, &flags, &start) != 4)
    return false;
  p->ppid = ppid;
  p->start = start;
  p->dying = p->state == 'Z' || p->state == 'X' || (flags & (PF_EXITING | PF_SIGNALED)) != 0;
  return p->pid > 0;
}

bool proc_read(pid_t pid, struct proc *p) {
  char path[40], text[1024];
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (n <= 0) return false; /* it went between open and read */
  text[n] = '\0';
  return proc_parse(text, p);
}

static void scan(struct proctree *t) {
  t->n = 0;
  DIR *d = opendir("/proc");
  if (!d) return;
  struct proc p;
  for (struct dirent *entry; (entry = readdir(d));)
    if (isdigit((unsigned char)entry->d_name[0]) && proc_read((pid_t)strtol(entry->d_name, NULL, 10), &p))
      add(t, &p);
  closedir(d);
}

static bool read_children_file(struct buf *out) {
  int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t n;
  while ((n = read(fd, buf_reserve(out, 4096), 4096)) > 0) buf_commit(out, (size_t)n);
  close(fd);
  buf_puts(out, "");
  return n == 0;
}

void proctree_children(struct proctree *t) {
  struct buf text = BUF_INIT;
  t->n = 0;
  if (read_children_file(&text)) {
    struct proc p;
    char *at = text.data, *end;
    for (long pid; (pid = strtol(at, &end, 10)) > 0 && end != at; at = end)
      if (proc_read((pid_t)pid, &p)) add(t, &p);
  } else {
    scan(t);
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++)
      if (t->v[i].ppid == getpid()) t->v[kept++] = t->v[i];
    t->n = kept;
  }
  buf_finish(&text);
}

static int by_pid(const void *a, const void *b) {
  const struct proc *p = a, *q = b;
  return (p->pid > q->pid) - (p->pid < q->pid);
}

/* Marks the descendants among t's entries, which are in order of pid; returns how many there are. */
static size_t mark(const struct proctree *t, bool *is, pid_t root, pid_t spare) {
  size_t count = 0, before;
  do {
    before = count;
    for (size_t i = 0; i < t->n; i++) {
      const struct proc *p = &t->v[i];
      if (is[i] || p->pid == spare || p->pid == root) continue;
      struct proc key = {.pid = p->ppid};
      const struct proc *parent = bsearch(&key, t->v, t->n, sizeof(*t->v), by_pid);
      if (p->ppid != root && !(parent && is[parent - t->v])) continue;
      is[i] = true;
      count++;
    }
  } while (count > before);
  return count;
}

void proctree_descendants(struct proctree *t, pid_t root, pid_t spare) {
  scan(t);
  if (t->n == 0) return;
  qsort(t->v, t->n, sizeof(*t->v), by_pid);
  bool *is = xcalloc(t->n, sizeof(*is));
  mark(t, is, root, spare);
  size_t kept = 0;
  for (size_t i = 0; i < t->n; i++)
    if (is[i]) t->v[kept++] = t->v[i];
  t->n = kept;
  free(is);
}

void proc_kill(const struct proc *p) {
  struct proc now;
  if (proc_read(p->pid, &now) && now.start == p->start && now.state != 'Z' && now.state != 'X')
    kill(p->pid, SIGKILL);
}
