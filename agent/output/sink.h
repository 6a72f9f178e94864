#ifndef AGENT_RELAY_SINK_H
#define AGENT_RELAY_SINK_H

/* Where lines go: a terminal, a pipe, a file; and the status line below them. Used by the relay's thread alone. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"

enum { SINK_GIVES_WAY_MS = 1000 };

struct sink {
  int fd;
  bool tty, regular;
  int error; /* negative errno once it took no more; everything is dropped from then on */
  struct buf b;
  size_t written;     /* of b */
  const void *holder; /* whose unfinished line the last one is; NULL: it is finished */
  uint64_t held_ms;   /* when that line grew last */
};

struct sinks {
  struct sink out, err;
  struct sink *to_out; /* where stdout's lines go: err, where both are one thing */
  bool status;         /* may be drawn, on err */
  struct buf line;     /* the status line as it should be; "" none */
  bool drawn;          /* it is on the terminal, the cursor behind it */
  bool changed;
};

void sinks_init(struct sinks *s, int out, int err, bool status);
void sinks_finish(struct sinks *s);
/* One whole line. An unfinished one of somebody else is ended before it. */
void sink_line(struct sink *s, const char *prefix, const char *line, size_t len);
/* Text without a newline: the line of `who` (only compared) begins, or goes on. False, and nothing is done, where the
 * line of somebody else is unfinished and has grown within SINK_GIVES_WAY_MS. */
bool sink_begin(struct sink *s, const void *who, const char *prefix, const char *text, size_t len,
                uint64_t now_ms);
/* The rest of a line that was begun, and its newline. Where it was ended by another meanwhile it becomes a line of its
 * own, or nothing, if there is no rest. */
void sink_rest(struct sink *s, const void *who, const char *prefix, const char *text, size_t len);
void sinks_status(struct sinks *s, const char *line);
/* Writes all there is, takes as long as the reader does. */
void sinks_flush(struct sinks *s);

#endif
