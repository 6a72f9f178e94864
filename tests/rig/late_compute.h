#ifndef TESTS_UNIT_LATE_COMPUTE_H
#define TESTS_UNIT_LATE_COMPUTE_H

/* A device that runs late, on a CPU: everything is queued, and a few operations are done each time somebody asks for a mark. What a stage will
 * receive is spoiled with NaN when the copy is queued, so that reading it too early is found out; what a stage gives is read when the
 * copy is done, so that writing it too early is. Only stages have an address on the host. Captured operations are recorded and done by each
 * launch. */

#include "agent/trainer/compute/compute.h"

struct late_stats {
  uint64_t records, captures, launches;
  uint64_t ahead_max; /* marks recorded and not known to be done */
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
