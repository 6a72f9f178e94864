/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_RUN_METRICS_H
#define AGENT_TRAINER_RUN_METRICS_H

/* --metrics: one JSON object per line, appended with one write each, so that a killed process leaves whole lines.
 *
 *   metrics_begin(m, "step"); metrics_uint(m, "step", 7); metrics_real(m, "loss", 0.5); metrics_end(m, e);
 *
 * Without a file every call does nothing. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"

struct metrics {
  int fd;           /* -1: none */
  const char *path; /* the caller's text, for messages */
  struct buf line;
};

int metrics_open(struct metrics *m, const char *path, struct err *e); /* path NULL: none */
void metrics_finish(struct metrics *m);
static inline bool metrics_on(const struct metrics *m) {
  return m->fd >= 0;
}
void metrics_begin(struct metrics *m, const char *event);
void metrics_uint(struct metrics *m, const char *key, uint64_t v);
void metrics_real(struct metrics *m, const char *key, double v); /* null if it is not finite */
void metrics_text(struct metrics *m, const char *key, const char *v);
int metrics_end(struct metrics *m, struct err *e);

#endif
