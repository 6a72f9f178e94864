/* SPDX-License-Identifier: Apache-2.0 */
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
 * Numbers. A PID namespace may still have the /proc of an outer one. Then /proc shows outer numbers, and a signal to
 * such a number would hit no process or the wrong one. /proc/self is the number under which /proc knows us. If that is
 * not our pid, trees are built from /proc's numbers. Each process's line NSpid has its numbers, from the outermost
 * namespace to its innermost, and shows which one is ours to use. All descendants are in our namespace or further in,
 * so they have one.
 *
 * A pid can be used again. A child that was not waited for keeps its pid, so signals to children are safe; for deeper
 * ones the start time is read once more before the signal. That leaves a window of microseconds, in which the kernel
 * would first have to hand out all other pids. */

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
  p->ppid = p->parent = ppid;
  p->entry = p->pid;
  p->start = start;
  p->dying = p->state == 'Z' || p->state == 'X' || (flags & (PF_EXITING | PF_SIGNALED)) != 0;
  return p->pid > 0;
}

/* At most size - 1 bytes of /proc/ENTRY/FILE, as a string. */
static bool read_file(pid_t entry, const char *file, char *text, size_t size) {
  char path[40];
  snprintf(path, sizeof(path), "/proc/%d/%s", (int)entry, file);
  return file_read_text(path, text, size) > 0; /* 0: it went between open and read */
}

static bool read_entry(pid_t entry, struct proc *p) {
  char text[1024];
  return read_file(entry, "stat", text, sizeof(text)) && proc_parse(text, p);
}

/* How /proc counts. ------------------------------------------------------------------------------------------------ */

struct view {
  pid_t self; /* our entry */
  int depth;  /* which of a process's numbers is ours to use, from 1; 0: the entry itself, there is only one */
};

/* The number at `depth` of a process's NSpid line, or 0; depth 0: how many there are. */
static pid_t namespace_pid(pid_t entry, int depth) {
  char text[4096];
  if (!read_file(entry, "status", text, sizeof(text))) return 0;
  const char *at = strstr(text, "\nNSpid:");
  if (!at) return 0;
  at += strlen("\nNSpid:");
  int n = 0;
  for (char *end; *at && *at != '\n'; at = end) {
    pid_t pid = (pid_t)strtol(at, &end, 10);
    if (end == at) break;
    if (++n == depth) return pid;
  }
  return depth ? 0 : n;
}

static struct view look(void) {
  char text[24];
  ssize_t n = readlink("/proc/self", text, sizeof(text) - 1);
  text[n > 0 ? n : 0] = '\0';
  pid_t self = (pid_t)strtol(text, NULL, 10);
  if (self <= 0 || self == getpid()) return (struct view){.self = getpid()};
  return (struct view){.self = self, .depth = (int)namespace_pid(self, 0)};
}

/* From /proc's numbers to ours; `parent` is p's, or NULL. */
static void translate(const struct view *view, struct proc *p, const struct proc *parent) {
  if (view->depth == 0) return;
  p->pid = namespace_pid(p->entry, view->depth);
  p->ppid = p->parent == view->self ? getpid() : parent ? namespace_pid(parent->entry, view->depth) : 0;
}

static void scan(struct proctree *t) {
  t->n = 0;
  DIR *d = opendir("/proc");
  if (!d) return;
  struct proc p;
  for (struct dirent *entry; (entry = readdir(d));)
    if (isdigit((unsigned char)entry->d_name[0]) && read_entry((pid_t)strtol(entry->d_name, NULL, 10), &p)) add(t, &p);
  closedir(d);
}

void proctree_children(struct proctree *t) {
  struct view view = look();
  struct buf text = BUF_INIT;
  int rc = file_drain(open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC), SIZE_MAX, &text);
  buf_puts(&text, "");
  t->n = 0;
  if (rc == 0) {
    struct proc p;
    char *at = text.data, *end;
    for (long pid; (pid = strtol(at, &end, 10)) > 0 && end != at; at = end)
      if (read_entry((pid_t)pid, &p)) add(t, &p);
  } else {
    scan(t);
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++)
      if (t->v[i].parent == view.self) t->v[kept++] = t->v[i];
    t->n = kept;
  }
  for (size_t i = 0; i < t->n; i++) translate(&view, &t->v[i], NULL);
  buf_finish(&text);
}

static int by_entry(const void *a, const void *b) {
  const struct proc *p = a, *q = b;
  return (p->entry > q->entry) - (p->entry < q->entry);
}

static const struct proc *find_entry(const struct proctree *t, pid_t entry) {
  struct proc key = {.entry = entry};
  return bsearch(&key, t->v, t->n, sizeof(*t->v), by_entry);
}

/* Marks the descendants of `root` among t's entries, which are in order; returns how many there are. */
static size_t mark(const struct proctree *t, bool *is, pid_t root, pid_t spare) {
  size_t count = 0, before;
  do {
    before = count;
    for (size_t i = 0; i < t->n; i++) {
      const struct proc *p = &t->v[i];
      if (is[i] || p->entry == spare || p->entry == root) continue;
      const struct proc *parent = find_entry(t, p->parent);
      if (p->parent != root && !(parent && is[parent - t->v])) continue;
      is[i] = true;
      count++;
    }
  } while (count > before);
  return count;
}

/* Under which number /proc has a descendant of ours; 0: it has none. */
static pid_t entry_of(const struct proctree *t, const struct view *view, const bool *ours, pid_t pid) {
  if (view->depth == 0 || pid == 0) return pid;
  for (size_t i = 0; i < t->n; i++)
    if (ours[i] && namespace_pid(t->v[i].entry, view->depth) == pid) return t->v[i].entry;
  return 0;
}

void proctree_descendants(struct proctree *t, pid_t top, pid_t spare) {
  struct view view = look();
  scan(t);
  if (t->n == 0) return;
  qsort(t->v, t->n, sizeof(*t->v), by_entry);
  bool *is = xcalloc(t->n, sizeof(*is)), *ours = xcalloc(t->n, sizeof(*ours));
  mark(t, ours, view.self, 0);
  pid_t root = top ? entry_of(t, &view, ours, top) : view.self;
  if (root > 0) mark(t, is, root, entry_of(t, &view, ours, spare));
  for (size_t i = 0; i < t->n; i++)
    if (is[i]) translate(&view, &t->v[i], find_entry(t, t->v[i].parent));
  size_t kept = 0;
  for (size_t i = 0; i < t->n; i++)
    if (is[i]) t->v[kept++] = t->v[i];
  t->n = kept;
  free(ours);
  free(is);
}

void proctree_marked(struct proctree *t, const char *variable) {
  struct view view = look();
  struct buf env = BUF_INIT;
  size_t kept = 0, size = strlen(variable) + 1;
  char path[40];
  scan(t);
  for (size_t i = 0; i < t->n; i++) {
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)t->v[i].entry);
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
    t->v[kept] = t->v[i];
    translate(&view, &t->v[kept++], NULL);
  }
  t->n = kept;
  buf_finish(&env);
}

bool proc_read(pid_t pid, struct proc *p) {
  struct view view = look();
  if (view.depth == 0) return read_entry(pid, p);
  if (pid == getpid() && read_entry(view.self, p)) {
    p->pid = pid;
    return true;
  }
  struct proctree t = PROCTREE_INIT;
  bool found = false;
  proctree_descendants(&t, 0, 0);
  for (size_t i = 0; i < t.n && !found; i++) {
    found = t.v[i].pid == pid;
    if (found) *p = t.v[i];
  }
  proctree_finish(&t);
  return found;
}

bool proc_signal(const struct proc *p, int signo) {
  struct proc now;
  if (p->pid > 0 && read_entry(p->entry, &now) && now.start == p->start && now.state != 'Z' && now.state != 'X')
    return kill(p->pid, signo) == 0 || errno != EPERM;
  return true;
}

uid_t proc_uid(const struct proc *p) {
  char text[4096];
  unsigned real, effective;
  const char *at = read_file(p->entry, "status", text, sizeof(text)) ? strstr(text, "\nUid:") : NULL;
  return at && sscanf(at, "\nUid: %u %u", &real, &effective) == 2 ? effective : (uid_t)-1;
}
