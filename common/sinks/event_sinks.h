/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SINKS_EVENT_SINKS_H
#define COMMON_SINKS_EVENT_SINKS_H

/* What --events and --on-event of rdzv-agent and rdzvd do with an event. */

#include <stdbool.h>
#include <uv.h>

struct event_sinks_options {
  const char *file;    /* --events; NULL: none */
  const char *command; /* --on-event; NULL: none */
  const char *names;   /* the events for which it runs, as event_filter_read takes them; checked */
  unsigned last_ms;    /* at the end: for runs of the command that are still out; then they are killed */
  bool one_job;        /* its last event may run the command beyond the limit on runs in a minute */
};

struct event_sinks;
/* NULL if there is neither a file nor a command; all functions take NULL. */
struct event_sinks *event_sinks_create(uv_loop_t *loop, const struct event_sinks_options *o);
/* Copies them. owner: whose share of the command's runs it takes; "": root's, or there is only one user. */
void event_sinks_put(struct event_sinks *s, const char *owner, const char *name, const char *line);
/* The last events get EVENT_FILE_LAST_MS, the command last_ms; then no handle is left in the loop. */
void event_sinks_close(struct event_sinks *s);
bool event_sinks_are_closed(const struct event_sinks *s);
void event_sinks_destroy(struct event_sinks *s); /* when closed, and the loop has run since */

#endif
