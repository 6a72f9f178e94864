/* SPDX-License-Identifier: Apache-2.0 */
/* Descendants of a process, from /proc.
 *
 * "Who are my children?" is asked on every step of a kill, and the kernel answers it from one file,
 * /proc/thread-self/children (where it was built to; else all of /proc is read). "Who descends from me?" reads
 * /proc/PID/stat of every process of the machine, some ten microseconds each, and takes the closure over parents.
 * Walking down /proc/PID/task/TID/children would read one file per thread, and a worker may have hundreds.
 *
 * No answer is exact: between two reads a process can fork, exit, or be handed to another parent. Callers loop until
 * waitpid says that there is no child at all, which is exact: every descendant hangs on a chain of parents, and a chain
 * whose link dies is hung on the subreaper.
 *
 * A child that was not waited for keeps its pid, so signals to children are safe. For deeper ones the start time is
 * read once more before the signal. */

#include "agent/guard/proctree.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/system/file.h"
#include "common/mem.h"

void proctree_finish(struct proctree *t) {
  free(t->v);
  *t = (struct proctree)PROCTREE_INIT;
}

static void add(struct proctree *t, const struct proc *p) {
  t->v = xgrow(t->v, t->n, &t->cap, sizeof(*t->v));
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
  if (sscanf(close + 1, " %c %d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &p->state,
             &ppid, &flags, &start) != 4)
    return false;
  p->ppid = ppid;
  p->start = start;
  p->dying = p->state == 'Z' || p->state == 'X' || (flags & (PF_EXITING | PF_SIGNALED)) != 0;
  return p->pid > 0;
}

/* At most size - 1 bytes of /proc/PID/FILE, as a string. */
static bool read_file(pid_t pid, const char *file, char *text, size_t size) {
  char path[40];
  snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
  return file_read_text(path, text, size) > 0; /* 0: it went between open and read */
}

bool proc_read(pid_t pid, struct proc *p) {
  char text[1024];
  return read_file(pid, "stat", text, sizeof(text)) && proc_parse(text, p);
}

static void scan(struct proctree *t) {
  t->n = 0;
  DIR *d = opendir("/proc");
  if (!d) return;
  struct proc p;
  for (struct dirent *entry; (entry = readdir(d));)
    if (isdigit((unsigned char)entry->d_name[0]) && proc_read((pid_t)strtol(entry->d_name, NULL, 10), &p)) add(t, &p);
  closedir(d);
}

void proctree_children(struct proctree *t) {
  struct buf text = BUF_INIT;
  int rc = file_drain(open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC), SIZE_MAX, &text);
  buf_puts(&text, "");
  t->n = 0;
  if (rc == 0) {
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

void proctree_descendants(struct proctree *t, pid_t top, pid_t spare) {
  pid_t root = top ? top : getpid();
  size_t kept = 0, count = 0, before;
  scan(t);
  if (t->n == 0) return;
  qsort(t->v, t->n, sizeof(*t->v), by_pid);
  bool *is = xcalloc(t->n, sizeof(*is));
  do {
    before = count;
    for (size_t i = 0; i < t->n; i++) {
      const struct proc *p = &t->v[i], key = {.pid = p->ppid};
      if (is[i] || p->pid == spare || p->pid == root) continue;
      const struct proc *parent = bsearch(&key, t->v, t->n, sizeof(*t->v), by_pid);
      is[i] = p->ppid == root || (parent && is[parent - t->v]);
      count += is[i];
    }
  } while (count > before);
  for (size_t i = 0; i < t->n; i++)
    if (is[i]) t->v[kept++] = t->v[i];
  t->n = kept;
  free(is);
}

void proctree_marked(struct proctree *t, const char *variable) {
  struct buf env = BUF_INIT;
  size_t kept = 0, size = strlen(variable) + 1;
  char path[40];
  scan(t);
  for (size_t i = 0; i < t->n; i++) {
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)t->v[i].pid);
    buf_clear(&env);
    buf_putc(&env, '\0'); /* every variable has a NUL before and behind it */
    file_drain(open(path, O_RDONLY | O_CLOEXEC), SIZE_MAX, &env);
    bool found = false;
    for (size_t at = 0; at + size < env.len && !found; at++) {
      const char *nul = memchr(env.data + at, '\0', env.len - at - size);
      if (!nul) break;
      at = (size_t)(nul - env.data);
      found = memcmp(nul + 1, variable, size) == 0;
    }
    if (!found || t->v[i].state == 'Z') continue;
    t->v[kept++] = t->v[i];
  }
  t->n = kept;
  buf_finish(&env);
}

bool proc_signal(const struct proc *p, int signo) {
  struct proc now;
  if (proc_read(p->pid, &now) && now.start == p->start && now.state != 'Z' && now.state != 'X')
    return kill(p->pid, signo) == 0 || errno != EPERM;
  return true;
}

uid_t proc_uid(const struct proc *p) {
  char text[4096];
  unsigned real, effective;
  const char *at = read_file(p->pid, "status", text, sizeof(text)) ? strstr(text, "\nUid:") : NULL;
  return at && sscanf(at, "\nUid: %u %u", &real, &effective) == 2 ? effective : (uid_t)-1;
}
