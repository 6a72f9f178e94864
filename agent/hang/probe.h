/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_PROBE_H
#define AGENT_HANG_PROBE_H

/* Describes hanging workers: facts from /proc, read in uv's pool, then the stacks of their threads from a tool in
 * PATH (py-spy for Python, eu-stack, gdb), in a process each. All of it ends within PROBE_MS. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>
#include "agent/hang/probe_facts.h"
#include "common/log_level.h"

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
bool probe_is_busy(const struct probe *p); /* a file is being written */

#endif
