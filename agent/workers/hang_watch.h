#ifndef AGENT_HANG_WATCH_H
#define AGENT_HANG_WATCH_H

/* The driver's side of hangs: looks for signs of workers in their output or files, and has those that hang looked at. Carries
 * out SUP_LOOK and SUP_PROBE, and answers them; decides nothing. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>
#include "agent/output/log_dir.h"
#include "agent/options/options.h"
#include "agent/output/relay.h"
#include "agent/supervisor/supervisor.h"

struct hang_watch_options {
  uv_loop_t *loop;
  uint32_t count; /* local ranks */
  const struct agent_options *options;
  const struct log_dir *logs;
  struct relay *relay;
  void (*on_event)(void *ctx, struct supervisor_event *ev); /* now_ms is not filled */
  void *ctx;
};

struct hang_watch;

struct hang_watch *hang_watch_create(const struct hang_watch_options *o);
void hang_watch_destroy(struct hang_watch *h); /* NULL is fine; before the relay. No event any more */

void hang_watch_begin(struct hang_watch *h, uint32_t round, int64_t rank_base);
/* What workers have said on their socket was told before. */
void hang_watch_look(struct hang_watch *h);
/* pids: by local rank, 0: it does not run. first: the local rank that matters most, UINT64_MAX: none. */
void hang_watch_probe(struct hang_watch *h, const pid_t *pids, uint64_t first, enum log_level level);
void hang_watch_end(struct hang_watch *h); /* the workers are being stopped: nothing may hold them any more */
bool hang_watch_is_busy(const struct hang_watch *h); /* a file is being written */

#endif
