/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_GUARD_PROCTREE_H
#define AGENT_GUARD_PROCTREE_H

/* Descendants of a process, from /proc. Processes change while they are read: repeat the call until none is left. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct proc {
  pid_t pid, ppid;
  char state;     /* R S D T t Z X I; Z: dead, waiting for its parent */
  bool dying;     /* killed by a signal or in exit, even if its parent does not know yet */
  uint64_t start; /* clock ticks after boot: pid and start together identify a process */
  char name[16];
};

struct proctree {
  struct proc *v;
  size_t n, cap;
};

#define PROCTREE_INIT                                                                                                  \
  { 0 }

void proctree_finish(struct proctree *t);

/* The content of /proc/PID/stat. False: not in that form. */
bool proc_parse(const char *stat, struct proc *p);
/* False: no such process. */
bool proc_read(pid_t pid, struct proc *p);

/* Children of this process, which must have one thread only. Cheap: one file. */
void proctree_children(struct proctree *t);
/* All descendants of `top`, without itself: of this process (0), or of one of its descendants. Zombies too, but neither
 * `spare` (0: none) nor its descendants. Reads all of /proc. */
void proctree_descendants(struct proctree *t, pid_t top, pid_t spare);
/* All processes whose environment, as far as this user may read it, has that "NAME=value". Without zombies. */
void proctree_marked(struct proctree *t, const char *variable);

/* Sends `signo` to p if it is still the same process and alive. False: no permission (it now runs as another user). */
bool proc_signal(const struct proc *p, int signo);
/* The user that it runs as; (uid_t)-1: it is gone. */
uid_t proc_uid(const struct proc *p);

#endif
