/* SPDX-License-Identifier: Apache-2.0 */
/* The part that is the same for every device.
 *
 * compute_wait asks the device at once, then after pauses that grow to a millisecond. So a short wait ends early, and a
 * long one needs little of a core. */

#include "agent/trainer/compute/compute.h"

#include <errno.h>
#include <time.h>

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int compute_wait(struct compute *c, struct compute_mark mark, uint64_t timeout_ms, struct err *e) {
  uint64_t from = now_us();
  for (;;) {
    int rc = compute_done(c, mark, e);
    if (rc) return rc < 0 ? rc : 0;
    uint64_t us = now_us() - from;
    if (us > timeout_ms * 1000)
      return err_set(e, -ETIMEDOUT, "the device (%s) did not finish the queued work within %llu ms", c->device,
                     (unsigned long long)timeout_ms);
    long pause = us < 50 ? 0 : us < 4000 ? 20 : 1000;
    struct timespec ts = {.tv_nsec = pause * 1000};
    if (pause) nanosleep(&ts, NULL);
  }
}

int compute_rows_create(struct compute *c, const struct compute_rows_desc *d, struct compute_rows **out,
                        struct err *e) {
  *out = NULL;
  if (!c->ops->rows_create) return err_set(e, -ENOTSUP, "%s does not keep data sets", c->device);
  return c->ops->rows_create(c, d, out, e);
}

int compute_copy_and_stamp(struct compute *c, struct span dst, struct span src, struct span stamp, struct err *e) {
  if (c->ops->copy_and_stamp) return c->ops->copy_and_stamp(c, dst, src, stamp, e);
  return dst.n ? c->ops->copy(c, dst, src, e) : 0;
}
