#ifndef AGENT_PROBE_FACTS_H
#define AGENT_PROBE_FACTS_H

/* What a process is doing, as /proc tells: its state, where in the kernel it waits, its threads. Blocking reads, for a thread
 * of the pool. Only files that the kernel answers without the process's memory lock, which a process that hangs in a page fault
 * may hold: never cmdline, environ, maps, or smaps. */

#include <stdbool.h>
#include <sys/types.h>
#include "common/buf.h"

enum { PROBE_WHERE_MAX = 48, PROBE_STACK_MAX = 2048, PROBE_GROUPS_MAX = 8, PROBE_THREADS_MAX = 512 };

struct probe_group { /* threads that do the same */
  char state, where[PROBE_WHERE_MAX];
  unsigned n;
};

struct probe_facts {
  pid_t pid;     /* that was looked at: the worker, or, where that is a shell that waits, what it waits for */
  char state;    /* R S D T t Z X I; 0: there is no such process */
  char name[16]; /* of its main thread */
  char where
      [PROBE_WHERE_MAX]; /* in the kernel: wait channel, else system call; "": neither can be had, or it runs */
  char call[PROBE_WHERE_MAX];  /* system call; "": none, or not known */
  char stack[PROBE_STACK_MAX]; /* in the kernel, "inner < outer < ..."; "": root alone may see it */
  bool python;
  unsigned threads; /* more than PROBE_THREADS_MAX are not looked at */
  struct probe_group groups[PROBE_GROUPS_MAX];
  unsigned n_groups;
};

/* As much as can be had; a process that is gone, or goes, has state 0 or lacks some of it. */
void probe_read(pid_t pid, struct probe_facts *f);
/* Lines, each ended by a newline: "pid 4711 (python3): state S, in futex_wait_queue, 12 threads" and so on. */
void probe_put(const struct probe_facts *f, pid_t worker, struct buf *out);

#endif
