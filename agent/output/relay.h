/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OUTPUT_RELAY_H
#define AGENT_OUTPUT_RELAY_H

/* The relay carries workers' output from their pipes to the terminal and to files, in whole lines. It has a thread of
 * its own, so a slow terminal or disk never delays the agent's loop (the workers' pipes fill instead). The agent's own
 * lines and the status line go the same way, so lines never mix. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "agent/output/recent.h"
#include "common/err.h"
#include "common/opts/opts.h"

enum {
  RELAY_LINE_MAX = 16384, /* longer lines are split on the terminal; files get them whole */
  RELAY_TAIL_MAX = 2048,  /* bytes of a worker's last stderr lines for the verdict */
  RELAY_PROMPT_MS = 100,  /* a terminal shows an unfinished line after this time, and redraws a bar this often */
  RELAY_BAR_MS = 10000,   /* without a terminal, a progress bar is printed as a line at this interval */
  RELAY_HELD_MS = 1000,
  RELAY_TROUBLE_MAX = 512,
  RELAY_QUEUE_MAX = 1024, /* lines of the agent's own that wait; beyond that the oldest are dropped and counted */
};

struct relay;

struct relay_options {
  int out, err; /* where workers' stdout and stderr go: 1 and 2 */
  bool status;  /* err is a terminal: draw the status line */
  pid_t group;  /* bars and status are drawn while this process group is in the foreground of err; 0: always */
  /* A line that contains one of these texts is also appended to its stream's `filtered` file; NULL: none. They outlive
   * the relay. */
  const struct opt_strings *out_filters, *err_filters;
  uint32_t workers;        /* recent lines are kept for local ranks below this number */
  void (*wake)(void *ctx); /* from the relay's thread: some pipes are drained, or there is a trouble or a traceback; or
                            * NULL */
  void *ctx;
};

int relay_create(struct relay **out, const struct relay_options *o, struct err *e);
/* Starts the work of relay_destroy, and returns at once. Output that arrives later is not written. */
void relay_close(struct relay *r);
/* Writes the queued lines and what is in the pipes now, waits at most deadline_ms, frees. Open pipes are closed. */
void relay_destroy(struct relay *r, uint32_t deadline_ms);

/* Where one stream of a worker goes. NULL or "": no such file. Missing folders are made. */
struct relay_place {
  const char *file;     /* gets the worker's bytes, appended */
  const char *filtered; /* gets lines that match the filters, with `label` in front; several workers may share it */
  bool shown;           /* on the terminal; also if `file` cannot be written */
  bool pty;             /* the worker gets a pseudo-terminal instead of a pipe */
  bool needs_pty;       /* false: a pipe is used if no pseudo-terminal is available (a container without /dev/ptmx) */
};

/* How one worker's lines begin, and where they go. */
struct relay_source {
  uint32_t local_rank;
  uint32_t rank, round; /* of its recent lines */
  const char *prefix;   /* "" or e.g. "[3] ": in front of each line on the terminal, not in files */
  const char *label;    /* in front of each line in a filtered file */
  bool alone;           /* no other worker writes: an unfinished line is shown even without a terminal */
  struct relay_place out, err;
};

/* The two pipes of one worker, and its last lines. */
struct relay_pipes;
/* *out, *err: write ends, close-on-exec, the caller's to pass on and close. *pipes is valid until relay_release. */
int relay_open(struct relay *r, const struct relay_source *s, struct relay_pipes **pipes, int *out, int *err,
               struct err *e);
/* The master of the workers' keyboard: its echo goes to the terminal, or to `terminal` if neither out nor err is one.
 * Both stay the caller's, and outlive the relay. */
void relay_echo(struct relay *r, int keyboard, int terminal);
/* true: hides bars and status line, because the job is suspended and the shell has the terminal; false: shows them. */
void relay_hide(struct relay *r, bool on);
/* Whether all output printed before relay_hide is on the terminal. `wake` is called when that becomes true. */
bool relay_is_settled(struct relay *r);
/* Gives the workers' pseudo-terminals the new size of the terminal. */
void relay_resize(struct relay *r);
/* The worker continues in another round: prefix, label and files from now on. */
void relay_rename(struct relay *r, struct relay_pipes *p, const struct relay_source *s);
/* Releases the worker's pipes. Output that is still in the pipes is written as before. NULL is fine. */
void relay_release(struct relay *r, struct relay_pipes *p);
/* Whether both pipes have ended and all their output is written. `wake` is called when that becomes true. */
bool relay_is_drained(const struct relay_pipes *p);
/* Whether a Python traceback has begun in its stderr since the last call: its process is about to end. `wake` is called
 * when that becomes true. */
bool relay_take_traceback(struct relay_pipes *p);
/* When the worker last wrote, in boot_ms; 0: not yet. */
uint64_t relay_heard_ms(const struct relay_pipes *p);
/* The worker's last stderr lines, whole lines if possible, NUL-terminated; at most RELAY_TAIL_MAX bytes. */
void relay_tail(struct relay *r, const struct relay_pipes *p, char out[RELAY_TAIL_MAX + 1]);

/* Appends recent lines of this agent's workers, from earlier rounds too. A progress bar gives a line now and then. */
void relay_recent(struct relay *r, const struct recent_question *q, struct buf *out, struct recent_answer *a);

/* Prints a log line of the agent to stderr, above the status line. No newline in it. */
void relay_say(struct relay *r, const char *line);
/* Prints lines of other agents to stdout (std 1) or stderr (2). No line is dropped: the caller waits while too many bytes
 * are queued. */
void relay_pass(struct relay *r, int std, const char *line, size_t len);
size_t relay_waits(struct relay *r); /* bytes of them that are queued */
/* Replaces the status line at the bottom; "" removes it. Ignored without .status. */
void relay_status(struct relay *r, const char *line);

/* Whether the thread has been in one write for RELAY_HELD_MS, so that it does not read the workers' output. */
bool relay_is_held(const struct relay *r);
/* From the loop, after wake. True: text says which log file, or that the terminal, cannot be written, and why; output
 * continues elsewhere. Once each. */
bool relay_next_trouble(struct relay *r, char text[RELAY_TROUBLE_MAX]);

#endif
