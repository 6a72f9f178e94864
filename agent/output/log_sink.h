/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OUTPUT_LOG_SINK_H
#define AGENT_OUTPUT_LOG_SINK_H

/* The sink of common/log: the agent's own log lines. They go to the terminal, through the relay once it runs and to
 * stderr before, and with their time to the agent's file in the log directory, which uv's pool writes. One per
 * process, like the log. */

#include <stdbool.h>
#include <uv.h>
#include "agent/output/relay.h"
#include "common/buf.h"
#include "common/err.h"
#include "common/system/log.h"

struct log_sink {
  uv_loop_t *loop;
  struct relay *relay;
  enum log_level shown; /* level on the terminal */
  int fd;               /* the file; -1: none */
  struct buf pending, writing;
  uv_fs_t req;
  bool busy;
};

/* file: appended to; NULL: none. Becomes the sink of the log. */
int log_sink_init(struct log_sink *s, uv_loop_t *loop, enum log_level shown, const char *file, struct err *e);
void log_sink_use_relay(struct log_sink *s, struct relay *r); /* NULL: to stderr again */
bool log_sink_is_idle(const struct log_sink *s);              /* nothing is being written to the file */
void log_sink_finish(struct log_sink *s);                     /* the log has its default sink again */

#endif
