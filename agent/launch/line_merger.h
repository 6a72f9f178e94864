#ifndef AGENT_LAUNCH_VOICES_H
#define AGENT_LAUNCH_VOICES_H

/* Which of the lines of many agents a person is shown. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/launch/plan.h"

enum {
  VOICES_HOLD_MS = 300,      /* a line of another agent waits so long for the first host's */
  VOICES_REMEMBER_MS = 5000, /* what was shown is not shown again for another host */
  VOICES_MAX = 512,          /* lines that are remembered, and that wait */
};

struct launch_voices;

/* emit: a line to show, without newline; std: 1 or 2. host_of: a host's name, for lines that are not the first one's. */
struct launch_voices_options {
  void (*emit)(void *ctx, int std, const char *line, size_t len);
  const char *(*host_of)(void *ctx, uint32_t index);
  void *ctx;
};

struct launch_voices *launch_voices_create(const struct launch_voices_options *o);
void launch_voices_destroy(struct launch_voices *v); /* what waits is lost: flush first */
/* A line of the host's agent, or of its workers. */
void launch_voices_line(struct launch_voices *v, uint32_t index, int std, const char *line, size_t len,
                        uint64_t now_ms);
/* From now on nobody says any more that a signal makes it leave: the launcher has said why. */
void launch_voices_leaving(struct launch_voices *v);
void launch_voices_tick(struct launch_voices *v, uint64_t now_ms);
uint64_t launch_voices_deadline(const struct launch_voices *v); /* UINT64_MAX: none */
void launch_voices_flush(struct launch_voices *v);

#endif
