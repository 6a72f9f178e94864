/* SPDX-License-Identifier: Apache-2.0 */
/* See kubeflow.h. */

#include <inttypes.h>
#include <math.h>
#include "agent/kubeflow.h"

void kubeflow_body(const struct kubeflow_status *s, const char *when, struct buf *out) {
  buf_printf(out, "{\"trainerStatus\": {\"lastUpdatedTime\": \"%s\"", when);
  if (s->of > 0) { /* 100 at the end only */
    int percent = s->step >= s->of ? 100 : (int)(100.0 * (double)s->step / (double)s->of);
    buf_printf(out, ", \"progressPercentage\": %d", percent == 100 && s->step < s->of ? 99 : percent);
  }
  /* Trainer's are 32-bit numbers. */
  if (s->remaining_s >= 0)
    buf_printf(out, ", \"estimatedRemainingSeconds\": %" PRId64,
               s->remaining_s < INT32_MAX ? s->remaining_s : INT32_MAX);
  buf_printf(out, ", \"metrics\": [{\"name\": \"step\", \"value\": \"%" PRId64 "\"}", s->step);
  if (s->of > 0) buf_printf(out, ", {\"name\": \"total_steps\", \"value\": \"%" PRId64 "\"}", s->of);
  if (isfinite(s->loss)) buf_printf(out, ", {\"name\": \"loss\", \"value\": \"%.6g\"}", s->loss);
  buf_puts(out, "]}}");
}
