#ifndef AGENT_RELAY_H
#define AGENT_RELAY_H

/* The relay: workers' output from their pipes to the terminal and to files, in whole lines, in a thread of its own, so
 * that a slow terminal or disk never holds up the agent's loop (the workers' pipes fill instead). The agent's own lines
 * and the living status line go the same way, so lines never mix. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum {
  RELAY_LINE_MAX = 16384, /* a longer line is cut into pieces of this size; files get it as it is */
  RELAY_TAIL_MAX = 2048,  /* bytes of a worker's last stderr lines that are kept for the verdict */
  RELAY_QUEUE_MAX = 1024, /* lines of the agent's own that wait; then the oldest are dropped and counted */
};

struct relay;

struct relay_options {
  int out, err; /* where workers' stdout and stderr go: 1 and 2 */
  bool status;  /* err is a terminal: draw the status line */
  /* NULL: no files. Else DIR/round_N/rank_R/{stdout.log,stderr.log}: the worker's bytes, appended, never deleted. */
  const char *log_dir;
  bool quiet; /* workers' lines only to files; where a file cannot be written, to the terminal all the same */
  void (*wake)(void *ctx); /* called from the relay's thread when relay_next has something */
  void *ctx;
};

int relay_create(struct relay **out, const struct relay_options *o, struct err *e);
/* Writes what is queued and what is in the pipes now, waits at most deadline_ms, frees. Pipes still open are closed. */
void relay_destroy(struct relay *r, uint32_t deadline_ms);

/* Makes the two pipes of one worker. *out, *err: write ends, close-on-exec, the caller's to pass on and close. prefix:
 * "" or e.g. "[3] ", put in front of each line on the terminal, not in files; at most 31 bytes. */
int relay_open(struct relay *r, uint32_t round, uint32_t rank, uint32_t local_rank, const char *prefix,
               int *out, int *err, struct err *e);

/* One line of the agent's own to stderr (no newline in it), above the status line. */
void relay_say(struct relay *r, const char *line);
/* Replaces the living line at the bottom; "" takes it away. Ignored without .status. */
void relay_status(struct relay *r, const char *line);

enum relay_event_kind {
  RELAY_DRAINED, /* both pipes of local_rank have reached their end and everything is written */
  RELAY_TROUBLE, /* a log file, or the terminal itself, cannot be written: text says which and why; output goes on to
                    what is left. Once for each */
};
struct relay_event {
  enum relay_event_kind kind;
  uint32_t round, local_rank;
  char text[512];
};
/* From the loop, after wake: 1 filled, 0 nothing more. */
int relay_next(struct relay *r, struct relay_event *ev);
/* The last lines that local_rank wrote to stderr in its newest round, whole lines where possible, NUL-terminated; at
 * most RELAY_TAIL_MAX bytes. */
void relay_tail(struct relay *r, uint32_t local_rank, char out[RELAY_TAIL_MAX + 1]);

#endif
