#ifndef AGENT_SAY_H
#define AGENT_SAY_H

/* The agent's own lines: the sink of common/log. To the terminal through the relay once it stands (before
 * that straight to stderr), and all of them, with their time, to the agent's file in the log directory, which is
 * written in uv's pool. One per process, as the log is. */

#include <stdbool.h>
#include <uv.h>
#include "agent/output/relay.h"
#include "common/buf.h"
#include "common/err.h"
#include "common/log.h"

struct say {
  uv_loop_t *loop;
  struct relay *relay;
  enum log_level shown; /* on the terminal */
  int fd;               /* the file; -1: none */
  struct buf pending, writing;
  uv_fs_t req;
  bool busy;
};

/* file: appended to; NULL: none. Becomes the log's sink. */
int say_init(struct say *s, uv_loop_t *loop, enum log_level shown, const char *file, struct err *e);
void say_through(struct say *s, struct relay *r); /* NULL: to stderr again */
bool say_is_quiet(const struct say *s);           /* nothing is on its way to the file */
void say_finish(struct say *s);                   /* the log has its default sink again */

#endif
