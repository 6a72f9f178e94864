/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_HELPER_H
#define COMMON_SYSTEM_HELPER_H

/* Helper processes: a loop starts, reads, feeds, kills and reaps them.
 *
 *   helper_start -> on_line, on_text ... -> on_end, once -> helper_destroy
 *
 * A helper leads a session of its own, unless `joined` is set. Ctrl-C does not reach it, and SIGKILL takes its whole
 * process group.
 *
 * A helper ends when its process has exited and its output has ended. A process that it left behind may hold the pipes.
 * Then output counts for linger_ms after the exit; with 0, only what the pipes already hold. The pipes are closed then.
 *
 * At the deadline the group gets SIGKILL. The helper ends at once, dead or not, with its output so far.
 *
 * The caller destroys the helper, at any time, in its callbacks as well. No callback follows. The group of a process
 * that still runs gets SIGKILL, and the loop lives until it is reaped, HELPER_DEATH_MS at most. A process that hangs in
 * the kernel does not die in that time. A later helper_start reaps it. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>
#include "common/buf.h"
#include "common/err.h"

enum { HELPER_DEATH_MS = 500 };

enum helper_stream { HELPER_OUT, HELPER_ERR, HELPER_STREAMS };

/* What becomes of stdout or stderr. All zero: it goes to /dev/null. */
struct helper_output {
  size_t line_max; /* > 0: on_line gets each line; a longer line comes in pieces of this size */
  bool whole;      /* text behind the last newline is dropped; false: it is the last line */
  size_t text_max; /* > 0: the first bytes are kept for helper_text; the rest is read and dropped */
  bool inherited;  /* the caller's own */
};

struct helper_end {
  bool late; /* killed at its deadline; the others mean nothing */
  int status, signo;
};

/* Strings and arrays are used in helper_start only. */
struct helper_options {
  uv_loop_t *loop;
  const char *name;     /* subject of sentences: "ssh"; NULL: argv[0] */
  const char *file;     /* the program; NULL: this project's program argv[0] (command_companion) */
  const char *built;    /* its folder in a build tree, as command_companion takes it */
  char *const *argv;    /* as of execvp */
  char *const *env;     /* NULL: the caller's */
  const char *cwd;      /* NULL: the caller's */
  int fd3;              /* becomes the helper's descriptor 3; the caller closes it. 0: none */
  bool joined;          /* it stays in the caller's session and group, and SIGKILL takes it alone */
  bool input;           /* stdin is a pipe for helper_send; false: /dev/null */
  uint32_t deadline_ms; /* 0: none */
  uint32_t linger_ms;
  struct helper_output output[HELPER_STREAMS];
  void (*on_line)(void *ctx, enum helper_stream from, const char *line, size_t len); /* without its newline */
  void (*on_text)(void *ctx, enum helper_stream from); /* helper_text has more; NULL: not needed */
  void (*on_end)(void *ctx, const struct helper_end *end);
  void *ctx;
};

struct helper;
/* Calls nothing back; e is not NULL. 0, or a negative code, *out NULL and a sentence: what could not be started, and
 * why. */
int helper_start(const struct helper_options *o, struct helper **out, struct err *e);
void helper_destroy(struct helper *h); /* NULL is fine */

pid_t helper_pid(const struct helper *h);
bool helper_has_exited(const struct helper *h);
/* Whether stdout is at its end, which may be long before the exit. */
bool helper_out_has_ended(const struct helper *h);
const struct buf *helper_text(const struct helper *h, enum helper_stream from);
/* In on_end: "NAME (pid 17) was killed by signal 9", "... exited with code 3". Returns -EIO. */
int helper_explain_end(const struct helper *h, const struct helper_end *end, struct err *e);

/* To the process alone, not to its group. Nothing happens once it has exited. */
void helper_signal(struct helper *h, int signo);
/* Stops reading, and the end waits, until it is switched off. */
void helper_pause(struct helper *h, bool paused);

/* Takes the text. It is dropped if the input is closed, or the helper does not read any more. */
void helper_send(struct helper *h, struct buf *text);
size_t helper_send_waits(const struct helper *h); /* bytes that are not written yet */
void helper_end_input(struct helper *h);          /* behind what was sent */
void helper_close_input(struct helper *h);        /* at once; what is not written yet is dropped */

/* Processes that have not died of SIGKILL within HELPER_DEATH_MS, as one in a file server's hands; of all helpers. */
size_t helper_left(void);
/* Whether no process has this pid, once what helpers left unreaped is reaped. */
bool helper_is_gone(pid_t pid);

#endif
