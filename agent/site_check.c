/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the command of --check.
 *
 *   /bin/sh -c COMMAND, in a session of its own, with RDZV_CHECK_WHEN, _ROUND, _JOB and _HOST
 *      |-- exit code 0: the node is fit
 *      |-- 126, 127, a signal, the deadline, no process: the check could not run. The node counts as fit, with a warning
 *      '-- other exit codes: the node is unfit
 *
 * A check that cannot run stops nothing: a driver that is updated, or a tool that is missing on one rack, must not take
 * a whole cluster out of service.
 *
 * Checks print tables, and their last words say most. So the last lines are kept, and logged if the check failed; the
 * last one with a letter or a digit is the reason. */

#include "agent/site_check.h"

#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/system/command.h"
#include "common/system/helper.h"
#include "common/system/log.h"

enum { LINES_KEPT = 20, LINE_READ_MAX = 4096, ENV_OWN = 4 };

struct site_check {
  struct site_check_options o; /* without its strings */
  struct helper *helper;
  struct buf lines[LINES_KEPT]; /* a ring */
  size_t n;                     /* ever */
};

extern char **environ;

static bool has_word(const char *line, size_t n) {
  for (size_t i = 0; i < n; i++)
    if ((line[i] >= '0' && line[i] <= '9') || (line[i] >= 'A' && line[i] <= 'Z') || (line[i] >= 'a' && line[i] <= 'z'))
      return true;
  return false;
}

static void on_line(void *ctx, enum helper_stream from, const char *line, size_t n) {
  struct site_check *c = ctx;
  if (!has_word(line, n)) return;
  struct buf *kept = &c->lines[c->n++ % LINES_KEPT];
  buf_clear(kept);
  buf_put_plain(kept, line, n, SITE_CHECK_WHY_MAX - sizeof "exit code 255: ");
}

static void log_last_lines(struct site_check *c) {
  for (size_t i = c->n > LINES_KEPT ? c->n - LINES_KEPT : 0; i < c->n; i++)
    log_info("--check: %s", buf_text(&c->lines[i % LINES_KEPT]));
}

static void on_end(void *ctx, const struct helper_end *end) {
  struct site_check *c = ctx;
  struct buf why = BUF_INIT;
  bool ran = false;
  if (end->late)
    buf_printf(&why, "it has not ended within %.0f s (--check-timeout)", (double)c->o.timeout_ms / 1000);
  else if (end->signo)
    buf_printf(&why, "signal %d killed it", end->signo);
  else if (end->status == COMMAND_NOT_FOUND || end->status == COMMAND_NOT_RUNNABLE)
    buf_printf(&why, "exit code %d: the command was not found, or cannot be run", end->status);
  else
    ran = true;
  if (!ran) {
    log_warn("--check could not run, and this node counts as fit: %s", buf_text(&why));
  } else if (end->status) {
    log_last_lines(c);
    buf_printf(&why, "exit code %d", end->status);
    if (c->n) buf_printf(&why, ": %s", buf_text(&c->lines[(c->n - 1) % LINES_KEPT]));
  }
  c->o.on_done(c->o.ctx, !ran ? "" : end->status ? buf_text(&why) : NULL);
  buf_finish(&why);
}

void site_check_start(const struct site_check_options *o, struct site_check **out) {
  struct site_check *c = *out = xcalloc(1, sizeof *c);
  struct err e = ERR_INIT;
  size_t n = 0;
  c->o = *o;
  while (environ[n]) n++;
  char *own[ENV_OWN] = {xasprintf("RDZV_CHECK_WHEN=%s", o->round ? "failure" : "start"),
                        xasprintf("RDZV_CHECK_ROUND=%lld", (long long)o->round), xasprintf("RDZV_CHECK_JOB=%s", o->job),
                        xasprintf("RDZV_CHECK_HOST=%s", o->host)};
  char **env = xcalloc(n + ENV_OWN + 1, sizeof *env);
  memcpy(env, own, sizeof own);
  memcpy(env + ENV_OWN, environ, n * sizeof *env);
  char shell[] = "sh", option[] = "-c", *command = xstrdup(o->command), *argv[] = {shell, option, command, NULL};
  const struct helper_options helper = {.loop = o->loop,
                                        .name = "the shell of --check",
                                        .file = "/bin/sh",
                                        .argv = argv,
                                        .env = env,
                                        .deadline_ms = o->timeout_ms,
                                        .output = {{.line_max = LINE_READ_MAX}, {.line_max = LINE_READ_MAX}},
                                        .on_line = on_line,
                                        .on_end = on_end,
                                        .ctx = c};
  int rc = helper_start(&helper, &c->helper, &e);
  for (size_t i = 0; i < ENV_OWN; i++) free(own[i]);
  free(env);
  free(command);
  if (rc == 0) return;
  log_warn("--check could not run, and this node counts as fit: %s", e.text);
  o->on_done(o->ctx, "");
}

void site_check_destroy(struct site_check *c) {
  if (!c) return;
  helper_destroy(c->helper);
  for (size_t i = 0; i < LINES_KEPT; i++) buf_finish(&c->lines[i]);
  free(c);
}
