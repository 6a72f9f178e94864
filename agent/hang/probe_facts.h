/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_PROBE_FACTS_H
#define AGENT_HANG_PROBE_FACTS_H

/* Describes a process from /proc: its state, where it waits in the kernel, its threads. Blocking reads, for a
 * thread of the pool. Only files that the kernel answers without the process's memory lock, which a process that hangs
 * in a page fault may hold: never cmdline, environ, maps, or smaps. */

#include <stdbool.h>
#include <sys/types.h>
#include "common/buf.h"

enum { PROBE_WHERE_MAX = 48, PROBE_STACK_MAX = 2048, PROBE_GROUPS_MAX = 8, PROBE_THREADS_MAX = 512 };

struct probe_group { /* threads that do the same */
  char state, where[PROBE_WHERE_MAX];
  unsigned n;
};

struct probe_facts {
  pid_t pid;                   /* the process looked at: the worker, or the child that a shell waits for */
  char state;                  /* R S D T t Z X I; 0: no such process */
  char name[16];               /* of its main thread */
  char where[PROBE_WHERE_MAX]; /* in the kernel: wait channel, else system call; "": not known, or it runs */
  char call[PROBE_WHERE_MAX];  /* system call; "": none, or not known */
  char stack[PROBE_STACK_MAX]; /* in the kernel, "inner < outer < ..."; "": only root can see it */
  bool python;
  unsigned threads; /* at most PROBE_THREADS_MAX are counted */
  struct probe_group groups[PROBE_GROUPS_MAX];
  unsigned n_groups;
};

/* Reads what it can. A process that is gone has state 0; one that exits meanwhile lacks facts. */
void probe_read(pid_t pid, struct probe_facts *f);
/* Appends lines: "pid 4711 (python3): state S, in futex_wait_queue, 12 threads" and so on. */
void probe_put(const struct probe_facts *f, pid_t worker, struct buf *out);

#endif
