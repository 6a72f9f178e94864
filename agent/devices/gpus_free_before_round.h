/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_GPUS_FREE_BEFORE_ROUND_H
#define AGENT_DEVICES_GPUS_FREE_BEFORE_ROUND_H

/* The devices of this node's workers: which they are, their state before the first start, and whether they are free
 * again before the next. */

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
  uint32_t first;   /* the index of local rank 0's device among the visible ones: those before it are other agents' */
  uint32_t timeout_ms;  /* for an answer of the GPU driver, and for devices to become free; 0: no check */
  enum gpu_vendor wish; /* of devices_find */
  bool certain;         /* the job uses devices; else it may not use those that the machine has */
  bool asked;           /* the GPU driver was asked already: */
  struct gpus *before;  /* its answer; taken over, may be empty */
  void (*on_free)(void *ctx);
  void (*on_held)(void *ctx, uint32_t local_rank, const char *text);
  void *ctx;
};

struct device_watch *device_watch_create(const struct device_watch_options *o); /* strings are borrowed */
void device_watch_destroy(struct device_watch *w); /* memory is free when the loop has closed its handles */

/* This round's workers are about to be started. on_free comes when they may be, maybe inside the call, after
 * timeout_ms at the latest; or on_held, with the process that holds that worker's device. The first time only the
 * state of the devices is logged. Workers in `stay` (NULL: none) run already and keep their devices: these are not
 * checked, and memory of pids[local rank] on any device is its own. */
void device_watch_hold(struct device_watch *w, int64_t round, const struct local_set *stay, const pid_t *pids);
void device_watch_cancel(struct device_watch *w); /* the round is over: neither on_free nor on_held comes */

/* The workers' devices, at most as many as workers; -1: not known. */
int device_watch_list(const struct device_watch *w, const struct device **v);
/* The device of the worker with this local rank; NULL: it has none, or it is not known. */
const struct device *device_watch_get(const struct device_watch *w, uint32_t local_rank);

#endif
