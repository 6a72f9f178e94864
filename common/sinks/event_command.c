/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the command of --on-event.
 *
 *   put -> turns -> /bin/sh -c COMMAND, in a session of its own: the event on stdin, its name and its sentence in
 *                     |  RDZV_EVENT and RDZV_EVENT_MESSAGE
 *                     '-> lines of stdout and stderr: our log
 *
 * A fork and a shell take most of a millisecond. They would delay the STOP and the START that follow a failure, so a run
 * begins EVENT_COMMAND_LATER_MS after its event, or at the end.
 *
 * A run is killed with its process group after EVENT_COMMAND_RUN_MS. Nothing waits for it: not the job, and at the end
 * the program for a few seconds at most, since the last event is the one that matters most. A child that the shell
 * leaves behind does not hold its pipes. */

#include "common/sinks/event_command.h"

#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/events/event.h"
#include "common/events/turns.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/helper.h"
#include "common/system/log.h"

enum { LINE_READ_MAX = 16384 };

struct run {
  struct event_command *of;
  struct run *next;
  struct turn *turn;
  struct helper *helper; /* NULL: it could not be started */
  unsigned lines;
};

struct event_command {
  uv_loop_t *loop;
  char *command;
  unsigned last_ms;
  struct turns turns;
  struct run *first;
  uv_timer_t timer; /* the next turn; or the end */
  bool closing, closed;
};

extern char **environ;

static void run_next(struct event_command *c);
static void finish_close_if_idle(struct event_command *c);

/* Output. ---------------------------------------------------------------------------------------------------------- */

static void on_line(void *ctx, enum helper_stream from, const char *line, size_t n) {
  struct run *r = ctx;
  struct buf shown = BUF_INIT;
  if (r->lines++ >= EVENT_COMMAND_LINES_MAX) return;
  if (r->lines == EVENT_COMMAND_LINES_MAX)
    buf_puts(&shown, "... (more lines are left out)");
  else
    buf_put_plain(&shown, line, n, EVENT_COMMAND_LINE_MAX);
  log_info("--on-event (%s): %s", r->turn->name, buf_text(&shown));
  buf_finish(&shown);
}

/* A run. ----------------------------------------------------------------------------------------------------------- */

static void free_run(struct run *r) {
  struct run **at = &r->of->first;
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  helper_destroy(r->helper);
  turns_done(&r->of->turns, r->turn);
  free(r);
}

static void on_helper_end(void *ctx, const struct helper_end *end) {
  struct run *r = ctx;
  struct event_command *c = r->of;
  if (end->late)
    log_warn("--on-event (%s): the command is killed: it has run for 30 s", r->turn->name);
  else if (end->signo)
    log_warn("--on-event (%s): the command was killed by signal %d", r->turn->name, end->signo);
  else if (end->status)
    log_warn("--on-event (%s): the command exited with code %d", r->turn->name, end->status);
  free_run(r);
  run_next(c);
  finish_close_if_idle(c);
}

enum { OWN_VARIABLES = 2 };

static char **make_env(const struct turn *turn) {
  size_t n = 0, kept = 0;
  while (environ[n]) n++;
  char **env = xcalloc(n + OWN_VARIABLES + 1, sizeof *env);
  env[kept++] = xasprintf("RDZV_EVENT=%s", turn->name);
  /* The sentence, in one line. */
  struct buf out = BUF_INIT;
  struct err e = ERR_INIT;
  json_t *event = json_parse_object(turn->line, strlen(turn->line), &e);
  const char *text = json_string_value(json_object_get(json_object_get(event, "metadata"), "message"));
  buf_puts(&out, "RDZV_EVENT_MESSAGE=");
  if (text) buf_put_plain(&out, text, strlen(text), EVENT_TEXT_MAX);
  json_decref(event);
  env[kept++] = buf_steal(&out);
  for (size_t i = 0; i < n; i++)
    if (strncmp(environ[i], "RDZV_EVENT=", 11) != 0 && strncmp(environ[i], "RDZV_EVENT_MESSAGE=", 19) != 0)
      env[kept++] = environ[i];
  return env;
}

static void start_run(struct event_command *c, struct turn *turn) {
  struct run *r = xcalloc(1, sizeof *r);
  struct err e = ERR_INIT;
  struct buf event = BUF_INIT;
  char shell[] = "sh", option[] = "-c", *argv[] = {shell, option, c->command, NULL}, **env = make_env(turn);
  const struct helper_options o = {
      .loop = c->loop,
      .name = "the shell",
      .file = "/bin/sh",
      .argv = argv,
      .env = env,
      .input = true,
      .deadline_ms = EVENT_COMMAND_RUN_MS,
      .output = {{.line_max = LINE_READ_MAX}, {.line_max = LINE_READ_MAX}},
      .on_line = on_line,
      .on_end = on_helper_end,
      .ctx = r,
  };
  *r = (struct run){.of = c, .next = c->first, .turn = turn};
  c->first = r;
  int rc = helper_start(&o, &r->helper, &e);
  for (size_t i = 0; i < OWN_VARIABLES; i++) free(env[i]);
  free(env);
  if (rc) {
    log_warn("--on-event (%s): %s", turn->name, e.text);
    free_run(r);
    return;
  }
  buf_printf(&event, "%s\n", turn->line);
  helper_send(r->helper, &event);
  helper_end_input(r->helper); /* it need not read all of it */
}

/* Turns. ----------------------------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

static void set_timer(struct event_command *c, uint64_t ms) {
  uv_update_time(c->loop);
  if (uv_is_active((uv_handle_t *)&c->timer) && uv_timer_get_due_in(&c->timer) <= ms) return;
  uv_timer_start(&c->timer, on_timer, ms, 0);
  uv_unref((uv_handle_t *)&c->timer);
}

static void run_next(struct event_command *c) {
  uint64_t now = monotonic_ms();
  for (struct turn *turn; !c->closed && (turn = turns_next(&c->turns, now));) start_run(c, turn);
  uint64_t at = turns_deadline(&c->turns);
  if (!c->closing && at != UINT64_MAX) set_timer(c, at > now ? at - now : 0);
}

void event_command_put(struct event_command *c, const char *owner, const char *name, const char *line, bool urgent) {
  uint64_t now_ms = monotonic_ms();
  if (c->closing) return;
  bool kept = turns_add(&c->turns, now_ms, owner, name, line, urgent);
  const char *of;
  for (size_t n; !kept && (n = turns_complain(&c->turns, now_ms, &of));)
    log_warn("--on-event: %d events%s%s wait, since the command runs %d times at once and %d times a minute%s at most; "
             "%zu further %s dropped",
             TURNS_QUEUE, of[0] ? " of " : "", of, TURNS_AT_ONCE, TURNS_PER_MINUTE, of[0] ? " for each user" : "", n,
             n == 1 ? "one is" : "ones are");
  set_timer(c, EVENT_COMMAND_LATER_MS);
}

struct event_command *event_command_create(uv_loop_t *loop, const char *command, unsigned last_ms) {
  struct event_command *c = xcalloc(1, sizeof *c);
  *c = (struct event_command){.loop = loop, .command = xstrdup(command), .last_ms = last_ms};
  turns_init(&c->turns);
  uv_timer_init(loop, &c->timer);
  c->timer.data = c;
  uv_unref((uv_handle_t *)&c->timer);
  return c;
}

/* The end. --------------------------------------------------------------------------------------------------------- */

static void finish_close(struct event_command *c) {
  c->closed = true;
  turns_drop_all(&c->turns);
  if (c->turns.dropped) log_warn("--on-event: the command did not run for %zu events", c->turns.dropped);
  uv_close((uv_handle_t *)&c->timer, NULL);
}

static void finish_close_if_idle(struct event_command *c) {
  if (c->closing && !c->closed && !c->first) finish_close(c);
}

static void on_timer(uv_timer_t *timer) {
  struct event_command *c = timer->data;
  if (!c->closing) {
    run_next(c);
    return;
  }
  turns_drop_all(&c->turns);
  for (struct run *r = c->first, *next; r; r = next) {
    next = r->next;
    log_warn("--on-event (%s): the command is killed: the program that started it ends", r->turn->name);
    free_run(r);
  }
  finish_close(c);
}

/* What waits only for the next minute does not run any more. */
void event_command_close(struct event_command *c) {
  if (!c || c->closing) return;
  c->closing = true;
  uv_timer_stop(&c->timer);
  run_next(c);
  uv_update_time(c->loop);
  uv_ref((uv_handle_t *)&c->timer);
  uv_timer_start(&c->timer, on_timer, c->last_ms, 0);
  finish_close_if_idle(c);
}

bool event_command_is_closed(const struct event_command *c) {
  return !c || c->closed;
}

void event_command_destroy(struct event_command *c) {
  if (!c) return;
  turns_finish(&c->turns);
  free(c->command);
  free(c);
}
