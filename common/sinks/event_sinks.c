/* SPDX-License-Identifier: Apache-2.0 */
#include "common/sinks/event_sinks.h"

#include <stdlib.h>
#include "common/events/event.h"
#include "common/mem.h"
#include "common/sinks/event_command.h"
#include "common/sinks/event_file.h"

struct event_sinks {
  struct event_filter filter;
  bool one_job;
  struct event_file *file;       /* NULL: none */
  struct event_command *command; /* NULL: none */
};

struct event_sinks *event_sinks_create(uv_loop_t *loop, const struct event_sinks_options *o) {
  if (!o->file && !o->command) return NULL;
  struct event_sinks *s = xcalloc(1, sizeof *s);
  struct err e = ERR_INIT;
  s->one_job = o->one_job;
  if (o->names) event_filter_read(&s->filter, o->names, &e);
  if (o->file) s->file = event_file_create(loop, o->file);
  if (o->command) s->command = event_command_create(loop, o->command, o->last_ms);
  return s;
}

void event_sinks_put(struct event_sinks *s, const char *owner, const char *name, const char *line) {
  if (!s) return;
  int n = event_find(name);
  bool urgent = s->one_job && (n == EVENT_JOB_ENDED || n == EVENT_AGENT_GAVE_UP);
  if (s->file) event_file_put(s->file, line);
  if (s->command && n >= 0 && s->filter.in[n]) event_command_put(s->command, owner, name, line, urgent);
}

void event_sinks_close(struct event_sinks *s) {
  if (!s) return;
  event_file_close(s->file);
  event_command_close(s->command);
}

bool event_sinks_are_closed(const struct event_sinks *s) {
  return !s || (event_file_is_closed(s->file) && event_command_is_closed(s->command));
}

void event_sinks_destroy(struct event_sinks *s) {
  if (!s) return;
  event_file_destroy(s->file);
  event_command_destroy(s->command);
  free(s);
}
