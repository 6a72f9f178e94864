/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a process is doing.
 *
 * Each file is read once into a fixed buffer, and each may be missing: the process exits, belongs to another user, or
 * the kernel lacks the file. Missing values stay empty.
 *
 * A worker is often a shell whose only child does the work (sh -c "python train.py"). The child is looked at instead
 * of the waiting shell, if there is exactly one.
 *
 * Threads mostly wait in few places, so they are counted by state and place. A place is the wait channel, a function
 * of the kernel, or the name of the system call if the kernel hides it ("0", for all but the owner). Only root can see
 * the stack in the kernel. */

#include "agent/hang/probe_facts.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "agent/guard/proctree.h"
#include "common/system/file.h"

enum { DEPTH_MAX = 4 };

/* Reads /proc/PID/task/TID/FILE; returns how much. */
static size_t read_file(pid_t pid, pid_t tid, const char *file, char *text, size_t size) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)pid, (int)tid, file);
  ssize_t n = file_read_text(path, text, size);
  return n > 0 ? (size_t)n : 0;
}

static const char *call_name(long number) {
#define CALL(name)                                                                                                     \
  case SYS_##name: return #name
  switch (number) {
    CALL(read);
    CALL(write);
    CALL(readv);
    CALL(writev);
    CALL(pread64);
    CALL(pwrite64);
    CALL(openat);
    CALL(close);
    CALL(ioctl);
    CALL(fsync);
    CALL(flock);
    CALL(fcntl);
    CALL(nanosleep);
    CALL(clock_nanosleep);
    CALL(futex);
    CALL(ppoll);
    CALL(pselect6);
    CALL(epoll_pwait);
    CALL(recvfrom);
    CALL(recvmsg);
    CALL(sendto);
    CALL(sendmsg);
    CALL(connect);
    CALL(accept4);
    CALL(wait4);
    CALL(waitid);
    CALL(rt_sigsuspend);
    CALL(rt_sigtimedwait);
    CALL(mmap);
    CALL(munmap);
    CALL(madvise);
    CALL(exit_group);
#ifdef SYS_poll
    CALL(poll);
    CALL(select);
    CALL(epoll_wait);
    CALL(pause);
    CALL(open);
    CALL(accept);
#endif
  default: return NULL;
  }
#undef CALL
}

/* "running", "-1 ...", or the call's number and its arguments. */
static void read_call(pid_t pid, pid_t tid, char out[PROBE_WHERE_MAX]) {
  char text[256], *end;
  out[0] = '\0';
  if (!read_file(pid, tid, "syscall", text, sizeof(text))) return;
  long number = strtol(text, &end, 10);
  if (end == text || number < 0) return;
  const char *name = call_name(number);
  if (name)
    snprintf(out, PROBE_WHERE_MAX, "%s", name);
  else
    snprintf(out, PROBE_WHERE_MAX, "system call %ld", number);
}

static void read_where(pid_t pid, pid_t tid, char state, char out[PROBE_WHERE_MAX]) {
  char text[PROBE_WHERE_MAX];
  out[0] = '\0';
  if (state == 'R') return;
  bool tells = read_file(pid, tid, "wchan", text, sizeof(text)) && strcmp(text, "0") != 0;
  if (tells)
    memcpy(out, text, sizeof(text));
  else
    read_call(pid, tid, out);
}

/* "[<0>] hrtimer_nanosleep+0x74/0xf0\n..." to "hrtimer_nanosleep < ..." */
static void read_stack(pid_t pid, char out[PROBE_STACK_MAX]) {
  char text[PROBE_STACK_MAX];
  size_t used = 0;
  read_file(pid, pid, "stack", text, sizeof(text));
  for (char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
    size_t n = strcspn(p, "\n"), skip = p[0] == '[' ? strcspn(p, "]") : 0;
    if (skip < n && skip) skip += strspn(p + skip, "] ");
    if (skip >= n) continue;
    size_t len = strcspn(p + skip, "+\n");
    int k = snprintf(out + used, PROBE_STACK_MAX - used, "%s%.*s", used ? " < " : "", (int)len, p + skip);
    if (k < 0 || (size_t)k >= PROBE_STACK_MAX - used) break;
    used += (size_t)k;
  }
  out[used] = '\0';
}

static bool read_stat(pid_t pid, pid_t tid, struct proc *p) {
  char text[1024];
  return read_file(pid, tid, "stat", text, sizeof(text)) && proc_parse(text, p);
}

/* The only child of a process that waits for it; 0: none, several, or it does something else. */
static pid_t awaited(pid_t pid) {
  char text[64], call[PROBE_WHERE_MAX], *end, *rest;
  read_call(pid, pid, call);
  if (strncmp(call, "wait", 4) != 0 || !read_file(pid, pid, "children", text, sizeof(text))) return 0;
  long child = strtol(text, &end, 10);
  return end != text && strtol(end, &rest, 10) == 0 && child > 0 && child <= INT_MAX ? (pid_t)child : 0;
}

static void count_thread(struct probe_facts *f, char state, const char *where) {
  f->threads++;
  for (unsigned i = 0; i < f->n_groups; i++) {
    struct probe_group *g = &f->groups[i];
    if (g->state != state || strcmp(g->where, where) != 0) continue;
    g->n++;
    return;
  }
  if (f->n_groups == PROBE_GROUPS_MAX) return;
  struct probe_group *g = &f->groups[f->n_groups++];
  *g = (struct probe_group){.state = state, .n = 1};
  snprintf(g->where, sizeof(g->where), "%s", where);
}

static void read_threads(struct probe_facts *f) {
  char path[40], where[PROBE_WHERE_MAX];
  struct proc p;
  snprintf(path, sizeof(path), "/proc/%d/task", (int)f->pid);
  DIR *d = opendir(path);
  if (!d) return;
  for (struct dirent *entry; f->threads < PROBE_THREADS_MAX && (entry = readdir(d));) {
    pid_t tid = isdigit((unsigned char)entry->d_name[0]) ? (pid_t)strtol(entry->d_name, NULL, 10) : 0;
    if (!tid || !read_stat(f->pid, tid, &p)) continue;
    read_where(f->pid, tid, p.state, where);
    count_thread(f, p.state, where);
  }
  closedir(d);
}

/* Reads the link, not its target. */
static bool is_python(pid_t pid) {
  char path[40], to[PATH_MAX];
  snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
  ssize_t n = readlink(path, to, sizeof(to) - 1);
  if (n <= 0) return false;
  to[n] = '\0';
  const char *base = strrchr(to, '/');
  return strncmp(base ? base + 1 : to, "python", 6) == 0;
}

void probe_read(pid_t pid, struct probe_facts *f) {
  struct proc p;
  *f = (struct probe_facts){.pid = pid};
  if (pid <= 0 || !proc_read(pid, &p)) return;
  f->pid = p.entry;
  for (int depth = 0; depth < DEPTH_MAX && p.state == 'S'; depth++) {
    struct proc child;
    pid_t next = awaited(f->pid);
    if (!next || !read_stat(next, next, &child)) break;
    f->pid = next;
    p = child;
  }
  f->state = p.state;
  memcpy(f->name, p.name, sizeof(f->name));
  f->python = is_python(f->pid);
  read_where(f->pid, f->pid, p.state, f->where);
  read_call(f->pid, f->pid, f->call);
  read_stack(f->pid, f->stack);
  read_threads(f);
}

void probe_put(const struct probe_facts *f, pid_t worker, struct buf *out) {
  if (!f->state) {
    buf_printf(out, "pid %d is gone\n", (int)worker);
    return;
  }
  buf_printf(out, "pid %d", (int)worker);
  if (f->pid != worker) buf_printf(out, ", that is its child %d", (int)f->pid);
  buf_puts(out, " (");
  buf_put_escaped(out, f->name, strlen(f->name), sizeof(f->name));
  buf_printf(out, "): state %c%s%s", f->state, f->where[0] ? ", in " : "", f->where);
  if (f->call[0] && f->state != 'T' && strcmp(f->call, f->where) != 0) buf_printf(out, ", %s", f->call);
  buf_printf(out, ", %u thread%s\n", f->threads, f->threads == 1 ? "" : "s");
  if (f->stack[0]) buf_printf(out, "in the kernel: %s\n", f->stack);
  if (f->threads < 2) return;
  buf_puts(out, "threads: ");
  unsigned shown = 0;
  for (unsigned i = 0; i < f->n_groups; i++) {
    if (i) buf_puts(out, ", ");
    buf_printf(out, "%u %c%s%s", f->groups[i].n, f->groups[i].state, f->groups[i].where[0] ? " in " : "",
               f->groups[i].where);
    shown += f->groups[i].n;
  }
  if (shown < f->threads) buf_printf(out, ", %u others", f->threads - shown);
  buf_putc(out, '\n');
}
