/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_LOGS_LINE_H
#define DAEMON_CTL_LOGS_LINE_H

/* A worker's line as rdzvctl logs prints it. Pure. */

#include <stdbool.h>
#include "common/buf.h"
#include "proto/worker_line.h"

struct logs_form {
  bool prefix;            /* in front of the line */
  bool to_terminal;       /* only text and colours */
  bool json;              /* an object; `prefix` does not count */
  const char *job, *host; /* json */
};

/* Appends the line and a newline. */
void logs_put_line(struct buf *out, const struct worker_line *line, const struct logs_form *form);

#endif
