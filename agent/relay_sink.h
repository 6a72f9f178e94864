#ifndef AGENT_RELAY_SINK_H
#define AGENT_RELAY_SINK_H

/* Where lines go: a terminal, a pipe, a file; and the status line below them. Used by the relay's thread alone. */

#include <stdbool.h>
#include "common/buf.h"

struct sink {
  int fd;
  bool tty, regular;
  int error; /* negative errno once it took no more; everything is dropped from then on */
  struct buf b;
  size_t written; /* of b */
};

struct sinks {
  struct sink out, err;
  bool status;     /* may be drawn, on err */
  struct buf line; /* the status line as it should be; "" none */
  bool drawn;      /* it is on the terminal, the cursor behind it */
  bool changed;
};

void sinks_init(struct sinks *s, int out, int err, bool status);
void sinks_finish(struct sinks *s);
void sink_line(struct sink *s, const char *prefix, const char *line, size_t len);
void sinks_status(struct sinks *s, const char *line);
/* Writes all there is, takes as long as the reader does. The one point where the thread may be cancelled. */
void sinks_flush(struct sinks *s);

#endif
