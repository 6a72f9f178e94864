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

enum { OOM_TEXT_MAX = 64 };

struct oom_watch {
  const char *proc, *root; /* PID/cgroup is below proc; root: the mount of version 2 */
  struct oom_mark *marks;
  char text[OOM_TEXT_MAX];
};

#define OOM_WATCH_INIT                                                                                                 \
  { .proc = "/proc", .root = "/sys/fs/cgroup" }

void oom_watch_begin(struct oom_watch *w, struct oom_mark *m, pid_t pid); /* the worker runs */
/* After its death by SIGKILL: "out of memory (...)", or NULL: the sender of the signal is not known. Valid until the
 * next call. */
const char *oom_watch_died(struct oom_watch *w, const struct oom_mark *m);

#endif
