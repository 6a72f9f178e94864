#ifndef AGENT_DEVICE_WATCH_H
#define AGENT_DEVICE_WATCH_H

/* The devices of this node's workers: which they are, in what state they were before the first start, and whether they
 * are free again before the next. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "agent/devices/devices.h"
#include "common/local_set.h"

struct device_watch_options {
  uv_loop_t *loop;
  char *const *env; /* that the workers inherit */
  const char *job;  /* its name */
  uint32_t workers; /* at most */
  uint32_t
      first; /* of the devices that are seen, whose worker has local rank 0: those before it are other agents' */
  uint32_t timeout_ms; /* for an answer of the driver, and for devices to become free; 0: nothing is asked */
  bool certain; /* the job uses devices; else it may be one that does not, on a machine that has some */
  bool asked;   /* the driver was asked already: */
  struct gpus *before; /* what it said; taken over, may be empty */
  void (*on_free)(void *ctx);
  void (*on_held)(void *ctx, uint32_t local_rank, const char *text);
  void *ctx;
};

struct device_watch *device_watch_create(const struct device_watch_options *o); /* strings are borrowed */
void device_watch_destroy(struct device_watch *w); /* memory is free when the loop has closed its handles */

/* This round's workers are about to be started: on_free when they may, maybe inside the call, after timeout_ms at the
 * latest; or on_held, with who holds the device of that worker. The first time it only says in what state devices are. Those in `stay` (NULL: none) run
 * already and have their devices: nothing is asked of these, and what pids[local rank] has on any device is its own. */
void device_watch_hold(struct device_watch *w, int64_t round, const struct local_set *stay,
                       const pid_t *pids);
void device_watch_cancel(struct device_watch *w); /* the round is over: no answer any more */

/* How many devices the workers have, at most as many as there are workers. */
int device_watch_count(const struct device_watch *w);
/* The device that the worker with this local rank would take; NULL: none, or it is not known. */
const struct device *device_watch_get(const struct device_watch *w, uint32_t local_rank);

#endif
