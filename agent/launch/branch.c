/* SPDX-License-Identifier: Apache-2.0 */
/* Branches.
 *
 *     started --> its first line --> up ............ its output ends --> over
 *        '------------ BRANCH_HELLO_MS, or its end -----------------------^
 *
 * Output before a branch's first line ("RDZV-LAUNCHED version") is a greeting and is skipped. Its stderr is ssh's; the
 * last line of it is the reason if the branch fails. A process that keeps the pipes longer (a shared connection of ssh
 * in the background) is not waited for.
 *
 * When a branch ends, its hosts that were up are lost, and the first of the others has failed. Hosts behind that one
 * were not tried yet, so they start again from here as a branch of their own: a dead host must not cost thirty others.
 *
 * Pulses go down and up every five seconds, because a host without power looks like a quiet one. While this process
 * does not read, silence means nothing. */

#include "agent/launch/branch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/system/clock.h"
#include "common/deadline.h"
#include "common/system/helper.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "common/system/loop.h"
#include "proto/version.h"

enum {
  BRANCH_LINE_MAX = 65536,    /* of its output */
  REPORT_MAX = 8192,          /* of a report */
  GREETING_MAX = 1024 * 1024, /* bytes before the first line */
  INPUT_MAX = 64 * 1024,      /* with more queued input no pulse is sent */
  NO_PROGRAM = 127,
  NOT_RUNNABLE = 126,
};

struct seat {
  bool up, over;
};

struct branch {
  struct launch_tree *tree;
  struct branch *next;
  size_t first, count;
  struct seat *seats;
  struct helper *helper; /* NULL: not started, or over */
  struct buf last;       /* last line of stderr */
  size_t greeting;
  bool exited, leaves, hello, dropped, over; /* leaves: its output has ended */
  struct helper_end end;                     /* once it has exited */
  uint64_t due_ms;                           /* when it is killed or given up; UINT64_MAX: never */
  uint64_t heard_ms, answer_ms;              /* answer_ms: when its answer is due; UINT64_MAX: not asked */
};

struct launch_tree {
  struct launch_tree_options o;
  struct branch *branches;
  uv_timer_t timer;
  uint64_t pulse_ms;
  size_t n; /* branches that are not over */
  bool paused, ending;
};

static void start_branch(struct launch_tree *t, size_t first, size_t count, bool local);

/* Reports. --------------------------------------------------------------------------------------------------------- */

static const char *head_host(const struct branch *b) {
  return b->tree->o.plan->seats[b->first].host;
}

static void report_seat(struct branch *b, size_t i, enum launch_event event, const char *text) {
  struct launch_report r = {.index = b->tree->o.plan->seats[b->first + i].index, .event = event};
  snprintf(r.text, sizeof(r.text), "%s", text);
  b->seats[i].over = true;
  b->tree->o.on_report(b->tree->o.ctx, &r);
}

/* Why a branch did not come up, or ended. */
static void explain_end(const struct branch *b, struct err *e) {
  const char *last = buf_text(&b->last), *program = b->tree->o.plan->program;
  if (e->code) return;
  if (b->hello && !b->seats[0].up && !b->end.signo)
    err_set(e, -EIO, "rdzv-agent started there, but received no input: %s must pass stdin on (no ssh -n, no -nostdin)",
            b->tree->o.plan->shell[0]);
  else if (b->hello)
    err_set(e, -EIO, "%s", *last ? last : "its connection ended");
  else if (b->exited && b->end.status == NO_PROGRAM)
    err_set(e, -ENOENT, "it has no rdzv-agent: not %s%s (--launch-agent gives its path)", program,
            b->tree->o.plan->only_there ? "" : ", nor in PATH");
  else if (b->exited && b->end.status == NOT_RUNNABLE)
    err_set(e, -EACCES, "rdzv-agent cannot be run there: %s", *last ? last : program);
  else if (*last)
    err_set(e, -EIO, "%s", last);
  else if (b->exited && b->end.signo)
    err_set(e, -EIO, "%s was killed by signal %d", b->tree->o.plan->shell[0], b->end.signo);
  else
    err_set(e, -EIO, "%s exited with code %d before rdzv-agent started there", b->tree->o.plan->shell[0],
            b->end.status);
}

/* The end of a branch. --------------------------------------------------------------------------------------------- */

static void end_branch(struct branch *b, struct err *e) {
  struct launch_tree *t = b->tree;
  char behind[ERR_TEXT_MAX];
  if (b->over) return;
  b->over = true;
  b->due_ms = UINT64_MAX;
  explain_end(b, e);
  snprintf(behind, sizeof(behind), "it was connected through %s, which is lost", head_host(b));
  if (!b->seats[0].over) report_seat(b, 0, b->seats[0].up ? LAUNCH_LOST : LAUNCH_FAILED, b->dropped ? "" : e->text);
  bool retry = !b->hello && !t->ending && b->count > 1; /* the hosts behind the first one were not tried */
  if (retry) start_branch(t, b->first + 1, b->count - 1, false);
  for (size_t i = 1; i < b->count && !retry; i++)
    if (!b->seats[i].over) report_seat(b, i, b->seats[i].up ? LAUNCH_LOST : LAUNCH_FAILED, b->dropped ? "" : behind);
  helper_destroy(b->helper);
  b->helper = NULL;
  t->n--;
}

static void on_helper_end(void *ctx, const struct helper_end *end) {
  struct branch *b = ctx;
  struct err e = ERR_INIT;
  b->exited = true;
  b->end = *end;
  end_branch(b, &e);
}

/* Output. ---------------------------------------------------------------------------------------------------------- */

static void on_report_line(struct branch *b, const char *json, size_t len) {
  struct launch_report r;
  struct err e = ERR_INIT;
  if (len > REPORT_MAX || launch_report_parse(&r, json, len, &e)) {
    log_warn("%s: %s", head_host(b), e.text);
    return;
  }
  size_t i = 0;
  while (i < b->count && b->tree->o.plan->seats[b->first + i].index != r.index) i++;
  if (i == b->count || b->seats[i].over) return;
  b->seats[i].up = b->seats[i].up || r.event == LAUNCH_UP;
  b->seats[i].over = r.event != LAUNCH_UP;
  b->tree->o.on_report(b->tree->o.ctx, &r);
}

/* The first line, or a greeting before it. */
static void on_greeting(struct branch *b, const char *line, size_t len) {
  static const char word[] = LAUNCH_UP_WORD " ";
  struct err e = ERR_INIT;
  size_t n = sizeof(word) - 1;
  b->greeting += len + 1;
  if (len < n || memcmp(line, word, n) != 0) {
    if (b->greeting > GREETING_MAX) end_branch(b, (err_set(&e, -EPROTO, "its output is not that of rdzv-agent"), &e));
    return;
  }
  char name[RELEASE_MAX + 1];
  if (release_check(release_parse(line + n, len - n, name), "its rdzv-agent", "rdzv-agent", &e)) {
    end_branch(b, &e);
    return;
  }
  b->hello = true;
  b->due_ms = UINT64_MAX;
}

static void on_line(void *ctx, enum helper_stream from, const char *line, size_t len) {
  struct branch *b = ctx;
  if (from == HELPER_ERR) {
    while (len && strchr("\r \t", line[len - 1])) len--;
    if (!len) return;
    buf_clear(&b->last);
    buf_put_escaped(&b->last, line, len, ERR_TEXT_MAX / 2);
    log_debug("%s: %s", head_host(b), buf_text(&b->last));
    return;
  }
  b->heard_ms = monotonic_ms();
  b->answer_ms = UINT64_MAX;
  if (!b->hello)
    on_greeting(b, line, len);
  else if (len > 2 && line[0] == 'J')
    on_report_line(b, line + 2, len - 2);
  else if (len > 2 && (line[0] == '1' || line[0] == '2'))
    b->tree->o.on_line(b->tree->o.ctx, line, len);
}

/* Start. ----------------------------------------------------------------------------------------------------------- */

static void send_line(struct branch *b, const char *line) {
  struct buf text = BUF_INIT;
  buf_puts(&text, line);
  helper_send(b->helper, &text);
}

static void start_branch(struct launch_tree *t, size_t first, size_t count, bool local) {
  struct branch *b = xcalloc(1, sizeof(*b));
  struct err e = ERR_INIT;
  struct buf plan = BUF_INIT;
  *b = (struct branch){.tree = t, .next = t->branches, .first = first, .count = count};
  b->seats = xcalloc(count, sizeof(*b->seats));
  t->branches = b;
  t->n++;
  b->heard_ms = monotonic_ms();
  b->due_ms = b->heard_ms + BRANCH_HELLO_MS;
  b->answer_ms = UINT64_MAX;
  b->dropped = t->ending; /* nothing more is started */
  if (t->ending) return end_branch(b, &e);
  static char name[] = "rdzv-agent", launched[] = "--launched";
  char **argv =
      local ? launch_words_copy((char *const[]){name, launched, NULL}) : launch_shell_argv(t->o.plan, head_host(b));
  const struct helper_options o = {
      .loop = t->o.loop,
      .file = local ? "/proc/self/exe" : argv[0],
      .argv = argv,
      .input = true,
      .linger_ms = BRANCH_LEAVE_MS,
      .output = {{.line_max = BRANCH_LINE_MAX, .whole = true}, {.line_max = BRANCH_LINE_MAX}},
      .on_line = on_line,
      .on_end = on_helper_end,
      .ctx = b,
  };
  int rc = helper_start(&o, &b->helper, &e);
  launch_words_free(argv);
  if (rc) return end_branch(b, &e);
  if (t->paused) helper_pause(b->helper, true);
  launch_plan_encode(t->o.plan, first, count, &plan);
  helper_send(b->helper, &plan);
}

/* The tree. -------------------------------------------------------------------------------------------------------- */

static void on_tree_timer(uv_timer_t *timer) {
  struct launch_tree *t = timer->data;
  uint64_t now = monotonic_ms();
  bool pulse = launch_pulse_is_due(&t->pulse_ms, now);
  for (struct branch *b = t->branches; b; b = b->next)
    if (!b->over) {
      struct err e = ERR_INIT;
      uint64_t silent_ms = now - b->heard_ms;
      if (b->tree->paused) {
        b->heard_ms = now;
        b->answer_ms = UINT64_MAX;
        silent_ms = 0;
      }
      if (helper_out_has_ended(b->helper) && !b->leaves) {
        b->leaves = true;
        b->due_ms = now + BRANCH_LEAVE_MS;
      }
      if (now >= b->due_ms && !helper_has_exited(b->helper)) {
        if (!b->hello && !b->dropped)
          err_set(&e, -ETIMEDOUT, "no answer within %d s%s%s", BRANCH_HELLO_MS / 1000, b->last.len ? ": " : "",
                  buf_text(&b->last));
        end_branch(b, &e);
      } else if (b->hello && (silent_ms > LAUNCH_LOST_MS || now >= b->answer_ms)) {
        err_set(&e, -ETIMEDOUT, "it was silent for %d s", (int)(silent_ms / 1000));
        end_branch(b, &e);
      } else if (pulse && helper_send_waits(b->helper) < INPUT_MAX) {
        send_line(b, "P\n");
      }
    }
}

struct launch_tree *launch_tree_create(const struct launch_tree_options *o) {
  enum { LOOK_EVERY_MS = 250 };
  struct launch_tree *t = xcalloc(1, sizeof(*t));
  t->o = *o;
  launch_pulse_is_due(&t->pulse_ms, monotonic_ms());
  uv_timer_init(o->loop, &t->timer);
  t->timer.data = t;
  uv_timer_start(&t->timer, on_tree_timer, LOOK_EVERY_MS, LOOK_EVERY_MS);
  return t;
}

void launch_tree_start(struct launch_tree *t, size_t first, size_t count, bool local) {
  size_t from, n;
  if (local) {
    start_branch(t, first, count, true);
    return;
  }
  for (size_t i = 0; i < launch_split(count, t->o.plan->fan_out, i, &from, &n); i++)
    start_branch(t, first + from, n, false);
}

bool launch_tree_is_over(const struct launch_tree *t) {
  return t->n == 0;
}

static void ask_branch(struct branch *b, const char *line) {
  send_line(b, line);
  b->answer_ms = earliest(b->answer_ms, monotonic_ms() + LAUNCH_ANSWER_MS);
}

void launch_tree_signal(struct launch_tree *t, int signo) {
  char line[24];
  snprintf(line, sizeof(line), "S %d\n", signo);
  bool goes_on = signo == SIGTSTP || signo == SIGCONT;
  if (!goes_on) t->ending = true;
  for (struct branch *b = t->branches; b; b = b->next) {
    if (b->over) continue;
    if (b->hello) {
      ask_branch(b, line);
    } else if (!goes_on) {
      b->dropped = true;
      helper_close_input(b->helper);
      b->due_ms = monotonic_ms() + BRANCH_LEAVE_MS;
      helper_signal(b->helper, SIGTERM);
    }
  }
}

void launch_tree_probe(struct launch_tree *t) {
  for (struct branch *b = t->branches; b; b = b->next)
    if (!b->over && b->hello) ask_branch(b, "Q\n");
}

void launch_tree_kill(struct launch_tree *t) {
  t->ending = true;
  for (struct branch *b = t->branches; b; b = b->next) {
    if (b->over) continue;
    send_line(b, "K\n");
    b->due_ms = monotonic_ms() + BRANCH_LEAVE_MS;
  }
}

void launch_tree_close(struct launch_tree *t) {
  t->ending = true;
  for (struct branch *b = t->branches; b; b = b->next)
    if (!b->over) helper_close_input(b->helper);
}

void launch_tree_pause(struct launch_tree *t, bool paused) {
  if (t->paused == paused) return;
  t->paused = paused;
  for (struct branch *b = t->branches; b; b = b->next) {
    if (b->over) continue;
    b->heard_ms = monotonic_ms();
    helper_pause(b->helper, paused);
  }
}

bool launch_tree_is_paused(const struct launch_tree *t) {
  return t->paused;
}

void launch_tree_destroy(struct launch_tree *t) {
  struct err e = ERR_INIT;
  if (!t) return;
  t->ending = true;
  for (struct branch *b = t->branches, *next; b; b = next) {
    next = b->next;
    end_branch(b, &e);
    buf_finish(&b->last);
    free(b->seats);
    free(b);
  }
  uv_close((uv_handle_t *)&t->timer, loop_free);
}
