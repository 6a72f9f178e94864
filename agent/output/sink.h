/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OUTPUT_SINK_H
#define AGENT_OUTPUT_SINK_H

/* Where lines go: a terminal, a pipe, a file; and below them on a terminal the workers' progress bars and the status
 * line. For the relay's thread only. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/buf.h"

enum { SINK_GIVES_WAY_MS = 1000, SINK_BARS_MAX = 64 };

/* A worker's line that carriage returns rewrite. */
struct sink_bar {
  const void *who; /* only compared */
  struct buf text; /* with its prefix */
};

struct sink {
  int fd;
  bool tty, regular;
  int error; /* negative errno after a failed write; then everything is dropped */
  struct buf b;
  size_t written;     /* of b */
  const void *holder; /* the owner of the unfinished last line; NULL: it is finished */
  uint64_t held_ms;   /* when that line last grew */
};

struct sinks {
  struct sink out, err;
  struct sink *to_out; /* where stdout's lines go: err, if both are the same */
  bool status;         /* may be drawn, on err */
  struct buf line;     /* the status line; "" none */
  struct sink_bar bars[SINK_BARS_MAX];
  size_t n_bars;
  size_t drawn; /* rows of bars and status line that are on the terminal, the cursor after the last */
  bool changed;
  bool hidden; /* no rows are drawn */
  pid_t group; /* rows are drawn only while it is in the foreground; 0: always */
};

void sinks_init(struct sinks *s, int out, int err, bool status);
void sinks_finish(struct sinks *s);
/* Writes a whole line. Ends another owner's unfinished line first. */
void sink_line(struct sink *s, const char *prefix, const char *line, size_t len);
/* Begins or continues the unfinished line of `who` (only compared). False, with no effect: another owner's line is
 * unfinished and grew within SINK_GIVES_WAY_MS. */
bool sink_begin(struct sink *s, const void *who, const char *prefix, const char *text, size_t len, uint64_t now_ms);
/* The rest of an unfinished line, and its newline. If another line ended it meanwhile, the rest becomes a line of its
 * own, if there is one. */
void sink_rest(struct sink *s, const void *who, const char *prefix, const char *text, size_t len);
/* Bytes of a program that has the terminal to itself, as they are. */
void sink_raw(struct sink *s, const void *who, const char *text, size_t len);
/* What was typed, as the terminal echoes it: it continues any unfinished line. */
void sink_echo(struct sink *s, const char *text, size_t len);
/* Shows the bar of `who` from now on, if err is a terminal. len 0: removes it. */
void sinks_bar(struct sinks *s, const void *who, const char *prefix, const char *text, size_t len);
void sinks_status(struct sinks *s, const char *line);
/* Writes everything; blocks as long as the reader does. */
void sinks_flush(struct sinks *s);

#endif
