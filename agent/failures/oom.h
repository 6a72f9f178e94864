/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_FAILURES_OOM_H
#define AGENT_FAILURES_OOM_H

/* Whether a worker that died of SIGKILL was killed by the kernel for lack of memory. */

#include <stdint.h>
#include <sys/types.h>

enum { OOM_CGROUP_MAX = 512 };

/* memory.events of a cgroup: how often memory ran out at its limit or at one below it (oom), and how many of its
 * processes were killed (oom_kill). */
struct oom_events {
  uint64_t oom, kills;
};

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
