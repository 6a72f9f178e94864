#ifndef AGENT_PROBE_H
#define AGENT_PROBE_H

/* What workers that hang are doing: facts from /proc, read in uv's pool, then the stacks of their threads, by a tool that is
 * in PATH (py-spy for Python, eu-stack, gdb), each in a process of its own. All of it ends within PROBE_MS. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>
#include "agent/hang/probe_facts.h"
#include "common/log_level.h"

enum {
  PROBE_MS = 5000,               /* < SUPERVISOR_PROBE_MS */
  PROBE_TARGETS_MAX = 64,        /* workers that are looked at; */
  PROBE_TOOLS_MAX = 4,           /* and of how many the stacks are shown */
  PROBE_OUTPUT_MAX = 256 * 1024, /* bytes of one tool's output that are kept */
  PROBE_LINES_MAX = 12,          /* lines of it that are shown; the file has all */
};

struct probe;

struct probe_target {
  uint32_t local_rank;
  int64_t rank;
  pid_t pid;
  const char *file; /* gets all that was found; NULL: none. Copied */
};

struct probe_callbacks {
  void (*on_fact)(void *ctx, uint32_t local_rank, const struct probe_facts *f);
  void (*on_facts)(void *ctx); /* on_fact was called for all of which something is known */
  void (*on_done)(void *ctx);  /* last */
};

struct probe *probe_create(uv_loop_t *loop, const struct probe_callbacks *cb, void *ctx);
void probe_destroy(struct probe *p); /* NULL is fine; tools are killed, nothing is called any more */

/* The most interesting first. stacks false: facts alone. What is found is logged at level when on_done is called, or
 * probe_end. One that is under way is ended first, without a word. */
void probe_begin(struct probe *p, const struct probe_target *targets, size_t n, enum log_level level,
                 bool stacks);
/* What is found until now is shown; tools are killed. No callback comes any more. */
void probe_end(struct probe *p);
bool probe_is_busy(const struct probe *p); /* a file is being written */

#endif
