/* Reads what agent/oom.c understands: when a worker starts, its cgroup and that one's counters; when it has died of
 * SIGKILL, the counters again, and what the kernel has logged since.
 *
 * The log is exact, since it names the pid; it is asked first. It is believed only where our pids are the kernel's, that
 * is outside of containers. A counter does not say who: a cgroup that several workers share has grown by as many as were
 * killed, and each that is told takes one of it. All of these are files of the kernel's own, which do not block. */

#include "agent/failures/oom_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/failures/oom.h"
#include "common/file.h"
#include "common/mem.h"

enum { KILLS_KEPT = 64, RECORD_MAX = 8192, CGROUP_MAX = 512, RECORDS_MAX = 100000 };
static const ino_t FIRST_PID_NAMESPACE = 0xEFFFFFFCU; /* the kernel's PROC_PID_INIT_INO */

struct place {
  char cgroup[CGROUP_MAX]; /* "": none */
  struct oom_events before;
};

struct oom_watch {
  uint32_t count;
  char *proc, *root;
  int kmsg; /* -1: not to be read */
  struct oom_log log;
  struct oom_log kills[KILLS_KEPT]; /* the last ones */
  size_t n_kills;
  struct place *v;
  char text[OOM_TEXT_MAX];
};

static bool read_in(const struct oom_watch *w, const struct place *p, const char *name, char *out,
                    size_t size) {
  char *path = xasprintf("%s%s/%s", w->root, p->cgroup, name);
  bool there = file_read_text(path, out, size) >= 0;
  free(path);
  return there;
}

static bool read_events(const struct oom_watch *w, const struct place *p, struct oom_events *e) {
  char text[1024];
  return p->cgroup[0] && read_in(w, p, "memory.events", text, sizeof(text)) && oom_events_parse(e, text);
}

/* Its own descriptor begins where the log ends now. */
static int open_log(const char *kmsg) {
  struct stat st;
  if (!kmsg && (stat("/proc/self/ns/pid", &st) || st.st_ino != FIRST_PID_NAMESPACE)) return -1;
  int fd = open(kmsg ? kmsg : "/dev/kmsg", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) lseek(fd, 0, SEEK_END);
  return fd;
}

/* A record a read. EPIPE: some were lost, and it goes on. */
static void read_log(struct oom_watch *w) {
  char record[RECORD_MAX];
  for (int i = 0; w->kmsg >= 0 && i < RECORDS_MAX; i++) {
    ssize_t n = read(w->kmsg, record, sizeof(record) - 1);
    if (n < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (n <= 0) return;
    record[n] = '\0';
    if (oom_log_read(&w->log, record)) w->kills[w->n_kills++ % KILLS_KEPT] = w->log;
  }
}

void oom_watch_begin(struct oom_watch *w, uint32_t local_rank, pid_t pid) {
  char text[4096];
  struct place *p = &w->v[local_rank];
  *p = (struct place){0};
  /* what was read about an earlier process with this pid is not about this one */
  for (size_t i = 0; i < KILLS_KEPT; i++)
    if (w->kills[i].pid == pid) w->kills[i].pid = 0;
  char *path = xasprintf("%s/%d/cgroup", w->proc, (int)pid);
  bool there = file_read_text(path, text, sizeof(text)) >= 0;
  free(path);
  if (!there || !oom_cgroup(text, p->cgroup, sizeof(p->cgroup))) return;
  if (!read_events(w, p, &p->before)) p->cgroup[0] = '\0';
}

static const struct oom_log *logged(struct oom_watch *w, pid_t pid) {
  read_log(w);
  for (size_t i = 0; i < KILLS_KEPT; i++)
    if (w->kills[i].pid == pid) return &w->kills[i];
  return NULL;
}

/* The others of that cgroup must not take the same kill for their own. */
static void take_one(struct oom_watch *w, const struct place *p, bool limit) {
  if (!p->cgroup[0]) return;
  for (uint32_t i = 0; i < w->count; i++)
    if (strcmp(w->v[i].cgroup, p->cgroup) == 0) {
      w->v[i].before.kills++;
      w->v[i].before.oom += limit;
    }
}

const char *oom_watch_died(struct oom_watch *w, uint32_t local_rank, pid_t pid) {
  struct place *p = &w->v[local_rank];
  struct oom_events now;
  uint64_t limit = 0;
  const struct oom_log *kill = pid > 0 ? logged(w, pid) : NULL;
  if (kill) {
    limit = kill->limit;
    oom_text(kill->cgroup, limit, w->text);
  } else if (read_events(w, p, &now) && now.kills > p->before.kills) {
    char max[64];
    if (now.oom > p->before.oom && read_in(w, p, "memory.max", max, sizeof(max))) oom_limit(max, &limit);
    oom_text(limit > 0, limit, w->text);
  } else {
    return NULL;
  }
  take_one(w, p, limit > 0);
  return w->text;
}

struct oom_watch *oom_watch_create(uint32_t count, const char *proc, const char *cgroups, const char *kmsg) {
  struct oom_watch *w = xcalloc(1, sizeof(*w));
  w->count = count;
  w->proc = xstrdup(proc ? proc : "/proc");
  w->root = xstrdup(cgroups ? cgroups : "/sys/fs/cgroup");
  w->kmsg = open_log(kmsg);
  w->v = xcalloc(count, sizeof(*w->v));
  return w;
}

void oom_watch_destroy(struct oom_watch *w) {
  if (!w) return;
  if (w->kmsg >= 0) close(w->kmsg);
  free(w->proc);
  free(w->root);
  free(w->v);
  free(w);
}
