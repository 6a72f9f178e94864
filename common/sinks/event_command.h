/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SINKS_EVENT_COMMAND_H
#define COMMON_SINKS_EVENT_COMMAND_H

/* --on-event COMMAND: a shell runs it with the event on its stdin. common/events/turns.h has its limits. */

#include <stdbool.h>
#include <uv.h>

enum {
  EVENT_COMMAND_LATER_MS = 100, /* from an event to its run: what follows a failure comes first */
  EVENT_COMMAND_RUN_MS = 30000, /* one run; then its process group is killed */
  EVENT_COMMAND_LINES_MAX = 20, /* of its output that are logged, */
  EVENT_COMMAND_LINE_MAX = 500, /* each cut to so many bytes */
};

struct event_command;
/* last_ms: at the end, for the runs that are still out. */
struct event_command *event_command_create(uv_loop_t *loop, const char *command, unsigned last_ms);
/* Copies them. owner: as turns_add takes it. */
void event_command_put(struct event_command *c, const char *owner, const char *name, const char *line, bool urgent);
/* Runs that are out, or begin now, get last_ms; then it has no handle in the loop. Nothing may be put any more. */
void event_command_close(struct event_command *c);
bool event_command_is_closed(const struct event_command *c);
void event_command_destroy(struct event_command *c); /* when closed, and the loop has run since */

#endif
