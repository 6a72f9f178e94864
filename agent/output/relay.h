#ifndef AGENT_RELAY_H
#define AGENT_RELAY_H

/* The relay: workers' output from their pipes to the terminal and to files, in whole lines, in a thread of its own, so
 * that a slow terminal or disk never holds up the agent's loop (the workers' pipes fill instead). The agent's own lines
 * and the living status line go the same way, so lines never mix. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/opts/opts.h"

enum {
  RELAY_LINE_MAX = 16384, /* a longer line is cut into pieces of this size; files get it as it is */
  RELAY_TAIL_MAX = 2048,  /* bytes of a worker's last stderr lines that are kept for the verdict */
  RELAY_PROMPT_MS = 100,  /* a line that is not finished by then is shown as far as it is, on a terminal */
  RELAY_HELD_MS = 1000,
  RELAY_QUEUE_MAX = 1024, /* lines of the agent's own that wait; then the oldest are dropped and counted */
};

struct relay;

struct relay_options {
  int out, err; /* where workers' stdout and stderr go: 1 and 2 */
  bool status;  /* err is a terminal: draw the status line */
  /* A line that has one of these texts in it is appended to its stream's `filtered` file too; NULL: none. They outlive
   * the relay. */
  const struct opt_strings *out_filters, *err_filters;
  void (*wake)(void *ctx); /* called from the relay's thread when relay_next has something */
  void *ctx;
};

int relay_create(struct relay **out, const struct relay_options *o, struct err *e);
/* Writes what is queued and what is in the pipes now, waits at most deadline_ms, frees. Pipes still open are closed. */
void relay_destroy(struct relay *r, uint32_t deadline_ms);

/* Where one stream of a worker goes. NULL or "": to no such file. The folders above a file are made. */
struct relay_place {
  const char *file; /* gets the worker's bytes, appended */
  const char
      *filtered; /* gets the lines of the filters, with `label` in front; several workers may share it */
  bool shown;    /* on the terminal; where `file` cannot be written it is shown all the same */
};

struct relay_worker {
  uint32_t round, local_rank;
  const char *prefix; /* "" or e.g. "[3] ": in front of each line on the terminal, not in files */
  const char *label;  /* in front of each line in a filtered file */
  bool alone; /* nobody else writes: a line that is not finished is shown where there is no terminal too */
  struct relay_place out, err;
};

/* Makes the two pipes of one worker. *out, *err: write ends, close-on-exec, the caller's to pass on and close. */
int relay_open(struct relay *r, const struct relay_worker *w, int *out, int *err, struct err *e);

/* The newest worker of that local rank goes on in another round: name, label and places from now on. */
void relay_rename(struct relay *r, const struct relay_worker *w);

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
/* When the newest worker of each local rank last wrote anything, in boot_ms; 0: nothing yet. */
void relay_heard(struct relay *r, uint64_t *when_ms, uint32_t count);
/* The thread hangs in a write for RELAY_HELD_MS: what workers print is not taken. */
bool relay_is_held(const struct relay *r);
/* The last lines that local_rank wrote to stderr in its newest round, whole lines where possible, NUL-terminated; at
 * most RELAY_TAIL_MAX bytes. */
void relay_tail(struct relay *r, uint32_t local_rank, char out[RELAY_TAIL_MAX + 1]);

#endif
