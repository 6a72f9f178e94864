#ifndef AGENT_PROCTREE_H
#define AGENT_PROCTREE_H

/* Who descends from whom, as /proc tells. A picture of a moving thing: use it in a loop, until nothing is left. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct proc {
  pid_t pid, ppid;     /* as this process counts; 0: it cannot see that one */
  pid_t entry, parent; /* as /proc counts: another number where /proc is that of an outer PID namespace */
  char state;          /* R S D T t Z X I; Z: dead, waiting for its parent */
  bool dying;          /* killed by a signal or in exit, whether or not its parent knows yet */
  uint64_t start;      /* clock ticks after boot: pid and start name a process for ever */
  char name[16];
};

struct proctree {
  struct proc *v;
  size_t n, cap;
};

#define PROCTREE_INIT                                                                                        \
  { 0 }

void proctree_finish(struct proctree *t);

/* The content of /proc/PID/stat; entry and pid, parent and ppid are the same then. False: not in that form. */
bool proc_parse(const char *stat, struct proc *p);
/* This process or a descendant; false: no such process. */
bool proc_read(pid_t pid, struct proc *p);

/* Children of this process, which must have one thread only: the cheap question, one file. */
void proctree_children(struct proctree *t);
/* All descendants of this process, without `spare` and its own (0: none); zombies too. Reads all of /proc. */
void proctree_descendants(struct proctree *t, pid_t spare);
/* All descendants of `child`, a child of this process, without itself; as above. */
void proctree_below(struct proctree *t, pid_t child);

/* SIGKILL to p if it is still the same process and alive. */
void proc_kill(const struct proc *p);

#endif
