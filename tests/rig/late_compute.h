/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_LATE_COMPUTE_H
#define TESTS_RIG_LATE_COMPUTE_H

/* A device that runs late, on a CPU. Everything is queued, and a few operations are done each time somebody polls a
 * mark. A stage that will receive data is filled with NaN when the copy is queued, so reading it too early shows. A
 * stage that gives data is read when the copy is done, so writing it too early shows. Only stages have a host address.
 * Captured operations are recorded, and each launch does them. */

#include "agent/trainer/compute/compute.h"

struct late_stats {
  uint64_t records, captures, launches;
  uint64_t ahead_max; /* marks recorded and not yet known to be done */
};

struct late_config {
  int depth;
  bool can_capture, fail_capture;
  void (*on_record)(void *ctx, uint64_t n); /* the n-th record, from 1; or NULL */
  void *ctx;
};

struct compute *late_create(const struct late_config *cfg);
struct late_stats late_stats(const struct compute *c);

#endif
