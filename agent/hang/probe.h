/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_PROBE_H
#define AGENT_HANG_PROBE_H

/* Describes hanging workers: facts from /proc, read in uv's pool, then the stacks of their threads from a tool in
 * PATH (py-spy for Python, eu-stack, gdb), in a process each. All of it ends within PROBE_MS. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>
#include "common/buf.h"
#include "common/log_level.h"

/* Describes a process from /proc: its state, where it waits in the kernel, its threads. Blocking reads, for a
 * thread of the pool. Only files that the kernel answers without the process's memory lock, which a process that hangs
 * in a page fault may hold: never cmdline, environ, maps, or smaps. */

enum { PROBE_WHERE_MAX = 48, PROBE_STACK_MAX = 2048, PROBE_GROUPS_MAX = 8, PROBE_THREADS_MAX = 512 };

struct probe_group { /* threads that do the same */
  char state, where[PROBE_WHERE_MAX];
  unsigned n;
};

struct probe_facts {
  pid_t pid;                   /* the process looked at: the worker, or the child that a shell waits for */
  char state;                  /* R S D T t Z X I; 0: no such process */
  char name[16];               /* of its main thread */
  char where[PROBE_WHERE_MAX]; /* in the kernel: its wait channel; "": not known, or it runs */
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

enum {
  PROBE_MS = 5000,               /* < SUPERVISOR_PROBE_MS */
  PROBE_TARGETS_MAX = 64,        /* workers with facts */
  PROBE_TOOLS_MAX = 4,           /* workers with stacks */
  PROBE_OUTPUT_MAX = 256 * 1024, /* bytes kept of one tool's output */
  PROBE_LINES_MAX = 12,          /* lines logged of it; the file has all */
};

struct probe;

struct probe_target {
  uint32_t local_rank;
  int64_t rank;
  pid_t pid;
  const char *file; /* gets the whole report; NULL: none. Copied */
};

struct probe_callbacks {
  void (*on_fact)(void *ctx, uint32_t local_rank, const struct probe_facts *f);
  void (*on_facts)(void *ctx); /* on_fact was called for all workers with facts */
  void (*on_done)(void *ctx);  /* last */
};

struct probe *probe_create(uv_loop_t *loop, const struct probe_callbacks *cb, void *ctx);
void probe_destroy(struct probe *p); /* NULL is fine; kills tools; no callback follows */

/* Most interesting target first. stacks false: facts only. The report is logged at `level` when on_done is called, or
 * by probe_end. limit_ms <= PROBE_MS. A probe under way is ended first, without a report. */
void probe_begin(struct probe *p, const struct probe_target *targets, size_t n, enum log_level level, bool stacks,
                 uint32_t limit_ms);
/* Logs what was found so far and kills tools. No callback follows. */
void probe_end(struct probe *p);

#endif
