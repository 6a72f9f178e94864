/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LAUNCH_LINE_MERGER_H
#define AGENT_LAUNCH_LINE_MERGER_H

/* Which of many agents' lines a person sees. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/launch/plan.h"

enum {
  MERGER_HOLD_MS = 300,      /* how long another agent's line waits for the first host's */
  MERGER_REMEMBER_MS = 5000, /* how long a shown line is not repeated for another host */
  MERGER_MAX = 512,          /* lines that are remembered, and that wait */
};

struct line_merger;

/* emit: shows a line, without newline; std: 1 or 2. host_of: a host's name, for lines of other hosts than the first. */
struct line_merger_options {
  void (*emit)(void *ctx, int std, const char *line, size_t len);
  const char *(*host_of)(void *ctx, uint32_t index);
  void *ctx;
};

struct line_merger *line_merger_create(const struct line_merger_options *o);
void line_merger_destroy(struct line_merger *v); /* waiting lines are lost: flush first */
/* A line of the host's agent or its workers. */
void line_merger_add(struct line_merger *v, uint32_t index, int std, const char *line, size_t len, uint64_t now_ms);
/* From now on hides lines in which an agent announces that a signal makes it exit: the launcher has logged why. */
void line_merger_hide_leaving(struct line_merger *v);
void line_merger_tick(struct line_merger *v, uint64_t now_ms);
uint64_t line_merger_deadline(const struct line_merger *v); /* UINT64_MAX: none */
void line_merger_flush(struct line_merger *v);

#endif
