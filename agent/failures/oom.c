/* SPDX-License-Identifier: Apache-2.0 */
/* A SIGKILL may come from the kernel, for lack of memory, or from another process. Two places tell which: the counters
 * of the worker's cgroup, and the kernel's log, which names the pid. The formats are the kernel's (mm/oom_kill.c,
 * mm/memcontrol.c) and have not changed since Linux 5. Text in any other format is ignored. */

#include "agent/failures/oom.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/file.h"

/* The number after `key` at the beginning of a line. */
static bool value_of(const char *text, const char *key, uint64_t *out) {
  size_t n = strlen(key);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (strncmp(line, key, n) != 0 || line[n] != ' ') continue;
    char *end;
    *out = strtoull(line + n + 1, &end, 10);
    return end > line + n + 1;
  }
  return false;
}

/* The kernel's log, and a report of it that a process was killed. */
struct oom_log {
  uint64_t last_limit; /* of the report being read */
  int pid;
  bool cgroup;    /* for lack of memory in a cgroup, not in the whole machine */
  uint64_t limit; /* of the cgroup, in bytes; 0: not known */
};

/* Takes one record of /dev/kmsg after the other. True: the record reports that `pid` was killed. */
static bool read_record(struct oom_log *l, const char *record) {
  static const char machine[] = "Out of memory: Killed process ",
                    cgroup[] = "Memory cgroup out of memory: Killed process ", usage[] = "memory: usage ",
                    limit[] = "kB, limit ";
  const char *text = strchr(record, ';'); /* after priority, number, time */
  if (!text++) return false;
  if (strstr(text, " invoked oom-killer: ")) l->last_limit = 0;
  const char *max = strncmp(text, usage, sizeof(usage) - 1) == 0 ? strstr(text, limit) : NULL;
  if (max) l->last_limit = strtoull(max + sizeof(limit) - 1, NULL, 10) * 1024;
  size_t n = 0;
  if (strncmp(text, machine, sizeof(machine) - 1) == 0) n = sizeof(machine) - 1;
  if (strncmp(text, cgroup, sizeof(cgroup) - 1) == 0) n = sizeof(cgroup) - 1;
  if (!n) return false;
  l->cgroup = text[0] == 'M';
  l->pid = (int)strtol(text + n, NULL, 10);
  l->limit = l->cgroup ? l->last_limit : 0;
  return l->pid > 0;
}

enum { OOM_TEXT_MAX = 64 };

/* "out of memory (cgroup limit 4 GiB)"; limit 0: unknown. */
static void put_text(bool cgroup, uint64_t limit, char out[OOM_TEXT_MAX]) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  size_t u = 0;
  double n = (double)limit;
  for (; n >= 1024 && u + 1 < sizeof(units) / sizeof(units[0]); u++) n /= 1024;
  if (cgroup && limit)
    snprintf(out, OOM_TEXT_MAX, "out of memory (cgroup limit %.4g %s)", n, units[u]);
  else
    snprintf(out, OOM_TEXT_MAX, "out of memory%s", cgroup ? " (cgroup limit)" : "");
}

/* The watch. ------------------------------------------------------------------------------------------------------- */

/* When a worker starts: its cgroup and that cgroup's counters. When a worker
 * has died of SIGKILL: the counters again, and the kernel's log since then.
 *
 * The log comes first, since it names the pid. It is believed only where our pids are the kernel's, that is, outside of
 * containers. A counter does not name a process: a cgroup that several workers share has grown by the number of kills,
 * and each death that is reported uses up one of them. All these files are the kernel's own, which do not block. */

enum { KILLS_KEPT = 64, RECORD_MAX = 8192, RECORDS_MAX = 100000 };
static const ino_t FIRST_PID_NAMESPACE = 0xEFFFFFFCU; /* the kernel's PROC_PID_INIT_INO */

struct oom_watch {
  char *proc, *root;
  int kmsg; /* -1: not to be read */
  struct oom_log log;
  struct oom_log kills[KILLS_KEPT]; /* the last ones */
  size_t n_kills;
  struct oom_mark *marks;
  char text[OOM_TEXT_MAX];
};

static bool read_in(const struct oom_watch *w, const struct oom_mark *m, const char *name, char *out, size_t size) {
  char *path = xasprintf("%s%s/%s", w->root, m->cgroup, name);
  bool there = file_read_text(path, out, size) >= 0;
  free(path);
  return there;
}

static bool read_events(const struct oom_watch *w, const struct oom_mark *m, struct oom_events *e) {
  char text[1024];
  return m->cgroup[0] && read_in(w, m, "memory.events", text, sizeof(text)) && value_of(text, "oom_kill", &e->kills) &&
         value_of(text, "oom", &e->oom);
}

void oom_watch_begin(struct oom_watch *w, struct oom_mark *m, pid_t pid) {
  char text[4096];
  struct oom_mark **at = &w->marks;
  while (*at && *at != m) at = &(*at)->next;
  if (*at) *at = m->next;
  *m = (struct oom_mark){.next = w->marks};
  w->marks = m;
  /* earlier notes are about another process with the same pid */
  for (size_t i = 0; i < KILLS_KEPT; i++)
    if (w->kills[i].pid == pid) w->kills[i].pid = 0;
  char *path = xasprintf("%s/%d/cgroup", w->proc, (int)pid);
  bool there = file_read_text(path, text, sizeof(text)) >= 0;
  free(path);
  if (!there) return;
  /* The cgroup of version 2, "0::/job/step0". The root has neither counters nor a limit. */
  const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
  size_t n = 0;
  if (line) line += *line == '\n' ? 4 : 3;
  if (line) n = strcspn(line, "\n");
  if (n < 2 || n >= sizeof(m->cgroup) || line[0] != '/') return;
  memcpy(m->cgroup, line, n);
  if (!read_events(w, m, &m->before)) m->cgroup[0] = '\0';
}

const char *oom_watch_died(struct oom_watch *w, const struct oom_mark *m, pid_t pid) {
  struct oom_events now;
  uint64_t limit = 0;
  const struct oom_log *kill = NULL;
  for (int i = 0; pid > 0 && w->kmsg >= 0 && i < RECORDS_MAX; i++) { /* a record a read; EPIPE: some were lost */
    char record[RECORD_MAX];
    ssize_t n = read(w->kmsg, record, sizeof(record) - 1);
    if (n < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (n <= 0) break;
    record[n] = '\0';
    if (read_record(&w->log, record)) w->kills[w->n_kills++ % KILLS_KEPT] = w->log;
  }
  for (size_t i = 0; pid > 0 && i < KILLS_KEPT && !kill; i++)
    if (w->kills[i].pid == pid) kill = &w->kills[i];
  if (kill) {
    limit = kill->limit;
    put_text(kill->cgroup, limit, w->text);
  } else if (read_events(w, m, &now) && now.kills > m->before.kills) {
    char max[64];
    if (now.oom > m->before.oom && read_in(w, m, "memory.max", max, sizeof(max))) {
      char *end;
      limit = strtoull(max, &end, 10);
      if (max[0] < '0' || max[0] > '9' || (*end && *end != '\n')) limit = 0; /* "max" */
    }
    put_text(limit > 0, limit, w->text);
  } else {
    return NULL;
  }
  /* The same kill must not explain another death in that cgroup. */
  for (struct oom_mark *other = w->marks; m->cgroup[0] && other; other = other->next)
    if (strcmp(other->cgroup, m->cgroup) == 0) {
      other->before.kills++;
      other->before.oom += limit > 0;
    }
  return w->text;
}

struct oom_watch *oom_watch_create(const char *proc, const char *cgroups, const char *kmsg) {
  struct oom_watch *w = xcalloc(1, sizeof(*w));
  w->proc = xstrdup(proc ? proc : "/proc");
  w->root = xstrdup(cgroups ? cgroups : "/sys/fs/cgroup");
  struct stat st;
  bool ours = stat("/proc/self/ns/pid", &st) == 0 && st.st_ino == FIRST_PID_NAMESPACE; /* the pids in the log */
  w->kmsg = kmsg || ours ? open(kmsg ? kmsg : "/dev/kmsg", O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
  if (w->kmsg >= 0) lseek(w->kmsg, 0, SEEK_END);
  return w;
}

void oom_watch_destroy(struct oom_watch *w) {
  if (!w) return;
  if (w->kmsg >= 0) close(w->kmsg);
  free(w->proc);
  free(w->root);
  free(w);
}
