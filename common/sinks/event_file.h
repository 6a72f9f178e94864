/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SINKS_EVENT_FILE_H
#define COMMON_SINKS_EVENT_FILE_H

/* --events FILE: whole lines, appended by a thread, so that a disk that is full or hangs holds nobody. */

#include <stdbool.h>
#include <uv.h>

enum {
  EVENT_FILE_LATER_MS = 20,         /* from an event to its write, with what has come meanwhile */
  EVENT_FILE_PENDING_MAX = 8 << 20, /* bytes that wait while the file cannot be written; then events are dropped */
  EVENT_FILE_RETRY_MS = 1000,
  EVENT_FILE_FULL_MS = 20,   /* the same while a pipe is full */
  EVENT_FILE_SLOW_MS = 5000, /* a write that takes longer gets a line */
  EVENT_FILE_LAST_MS = 2000, /* at the end: for the last write */
};

struct event_file;
/* path: "-" is stdout. A file is created; a pipe waits for a reader. The thread opens it
 * at once, so a wrong path has its sentence at the beginning. The next event creates a renamed or removed file again. */
struct event_file *event_file_create(uv_loop_t *loop, const char *path);
void event_file_put(struct event_file *f, const char *line); /* without its end; copies it */
/* Writes what is left, EVENT_FILE_LAST_MS at most; then it has no handle in the loop. Nothing may be put any more. */
void event_file_close(struct event_file *f);
bool event_file_is_closed(const struct event_file *f);
/* When closed, and the loop has run since. */
void event_file_destroy(struct event_file *f);

#endif
