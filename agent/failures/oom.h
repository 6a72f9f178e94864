/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_FAILURES_OOM_H
#define AGENT_FAILURES_OOM_H

/* The kernel's reports of its out-of-memory killer, in the kernel's formats. Pure: text in, facts out. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* /proc/PID/cgroup: the cgroup of version 2, "/job/step0". False: it is the root, or its name is too long. */
bool oom_cgroup(const char *text, char *out, size_t size);

/* memory.events of a cgroup: how often memory ran out at its limit or at one below it (oom), and how many of its
 * processes were killed (oom_kill). False: the text has neither. */
struct oom_events {
  uint64_t oom, kills;
};
bool oom_events_parse(struct oom_events *e, const char *text);
bool oom_limit(const char *memory_max, uint64_t *bytes); /* false: "max", or not a number */

/* Takes one record of /dev/kmsg after the other. True: the record reports that `pid` was killed. `cgroup`: for lack of
 * memory in a cgroup, whose limit is `limit` bytes (0: not known); else in the whole machine. */
struct oom_log {
  uint64_t last_limit; /* of the report being read */
  int pid;
  bool cgroup;
  uint64_t limit;
};
bool oom_log_read(struct oom_log *l, const char *record);

/* "out of memory (cgroup limit 4 GiB)"; limit 0: unknown. */
enum { OOM_TEXT_MAX = 64 };
void oom_text(bool cgroup, uint64_t limit, char out[OOM_TEXT_MAX]);

/* Whether a worker that died of SIGKILL was killed by the kernel for lack of memory. */

enum { OOM_CGROUP_MAX = 512 };

/* The state of a worker's cgroup when the worker started. Part of the caller's record of the worker; all zero at first.
 * Once begun it stays where it is as long as the watch. */
struct oom_mark {
  struct oom_mark *next;
  char cgroup[OOM_CGROUP_MAX]; /* "": none */
  struct oom_events before;
};

struct oom_watch;
/* proc: holds PID/cgroup; cgroups: the mount of version 2; kmsg: the kernel's log, read from now on. NULL: the system's
 * own. A file that is missing or may not be read tells nothing. */
struct oom_watch *oom_watch_create(const char *proc, const char *cgroups, const char *kmsg);
void oom_watch_destroy(struct oom_watch *w);
void oom_watch_begin(struct oom_watch *w, struct oom_mark *m, pid_t pid); /* the worker runs */
/* After its death by SIGKILL: "out of memory (...)", or NULL: the sender of the signal is not known. Valid until the
 * next call. */
const char *oom_watch_died(struct oom_watch *w, const struct oom_mark *m, pid_t pid);

#endif
