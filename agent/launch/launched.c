/* SPDX-License-Identifier: Apache-2.0 */
/* One process of the launch tree.
 *
 *     stdin --> plan --> agent (a child, its output read by line) --.
 *                   '--> tree (further hosts, branch.c) -----------+--> stdout, framed by line
 *     stdin --> signals, pulses, end of file --> agent, tree
 *
 * It decides nothing about the job. It lives as long as its agent or any process below, and ensures that nothing is
 * left on this host when the launcher is gone. The end of stdin is the launcher's end, and so is a minute without a
 * pulse (a host without power does not close its connections). Then the agent gets SIGTERM, all processes below see
 * the end of file, and what has not ended after the agents' stop timeout is killed; the agent's guard ends its
 * workers. If this process is killed, the kernel signals its agent, which knows its parent by RDZV_AGENT_LAUNCHER. */

#include "agent/launch/launch.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>
#include "agent/launch/branch.h"
#include "agent/options/interpreter.h"
#include "common/system/clock.h"
#include "common/system/helper.h"
#include "common/system/stream_writer.h"
#include "common/exit_codes.h"
#include "common/err.h"
#include "common/system/log.h"
#include "common/system/loop.h"
#include "common/opts/opts.h"
#include "proto/version.h"

enum {
  PLAN_MS = 30000,         /* for the plan */
  UP_WAITS_MAX = 1 << 20,  /* bytes on their way up; then nothing more is read */
  UP_DROPS_MAX = 64 << 20, /* never more: reports, which cannot be stopped, are small */
  AGENT_LINE_MAX = 60000,  /* of the agent's output */
  OUTPUT_MS = 1000,        /* after the end of the agent, for the rest of its output */
  STOP_MORE_MS = 10000,    /* on top of its stop timeout */
  LOOK_EVERY_MS = 250,
  FLUSH_MS = 2000, /* at the end, for output on its way up */
};

struct launched {
  uv_loop_t loop;
  char *const *env;
  uv_pipe_t in, up_pipe;
  struct outlet up;
  uv_timer_t timer;
  uv_signal_t signals[4];
  struct buf got;  /* of stdin, not parsed yet */
  size_t plan_len; /* 0: no header yet */
  struct launch_plan plan;
  bool planned, gone, paused;
  struct launch_tree *tree;
  struct helper *agent; /* NULL: none runs */
  char *program;        /* the program of the workers here; NULL: not known */
  bool reported;        /* the end of the agent */
  uint64_t heard_ms, pulse_ms, kill_ms, flush_ms;
  int code;
};

static struct launched launched;
static char chunk[65536];

/* Up. -------------------------------------------------------------------------------------------------------------- */

static void set_paused(struct launched *l, bool paused) {
  if (l->paused == paused) return;
  l->paused = paused;
  if (l->agent) helper_pause(l->agent, paused);
  if (l->tree) launch_tree_pause(l->tree, paused);
}

static void on_sent_up(void *ctx) {
  struct launched *l = ctx;
  if (l->up.broken || outlet_waits(&l->up) < UP_WAITS_MAX / 2) set_paused(l, false);
}

/* Takes `text`. */
static void send_up(struct launched *l, struct buf *text) {
  if (outlet_waits(&l->up) > UP_DROPS_MAX) return buf_finish(text);
  outlet_send(&l->up, text);
  if (outlet_waits(&l->up) > UP_WAITS_MAX) set_paused(l, true);
}

static void send_report(void *ctx, const struct launch_report *r) {
  struct buf text = BUF_INIT;
  launch_report_print(r, &text);
  send_up(ctx, &text);
}

static void report_own(struct launched *l, enum launch_event event, int64_t code, const char *why) {
  struct launch_report r = {.index = l->plan.seats[0].index, .event = event, .code = code};
  snprintf(r.text, sizeof(r.text), "%s", why);
  l->reported = l->reported || event != LAUNCH_UP;
  send_report(l, &r);
}

static void on_line(void *ctx, const char *line, size_t len) {
  struct buf text = BUF_INIT;
  buf_append(&text, line, len);
  buf_putc(&text, '\n');
  send_up(ctx, &text);
}

/* The agent. ------------------------------------------------------------------------------------------------------- */

static void on_agent_line(void *ctx, enum helper_stream from, const char *line, size_t len) {
  struct launched *l = ctx;
  struct buf text = BUF_INIT;
  buf_printf(&text, "%d %u ", from == HELPER_OUT ? 1 : 2, (unsigned)l->plan.seats[0].index);
  buf_append(&text, line, len);
  buf_putc(&text, '\n');
  send_up(l, &text);
}

static void on_agent_end(void *ctx, const struct helper_end *end) {
  struct launched *l = ctx;
  char why[80];
  helper_destroy(l->agent);
  l->agent = NULL;
  l->kill_ms = UINT64_MAX;
  snprintf(why, sizeof(why), "its agent was killed by signal %d (%s)", end->signo, strsignal(end->signo));
  if (end->signo)
    report_own(l, LAUNCH_LOST, 0, why);
  else
    report_own(l, LAUNCH_ENDED, end->status & 0xff, "");
}

static int start_agent(struct launched *l, struct err *e) {
  char host[HOST_NAME_MAX + 1] = "";
  const char *cwd = l->plan.cwd;
  struct stat st;
  int rc = 0, key_fd = -1;
  if (stat(cwd, &st) != 0 || (S_ISDIR(st.st_mode) && access(cwd, X_OK) != 0))
    return err_sys(e, -errno, "the folder %s", cwd);
  if (!S_ISDIR(st.st_mode)) return err_set(e, -ENOTDIR, "%s is not a folder", cwd);
  if (l->plan.key) key_fd = rc = key_pipe(l->plan.key, l->plan.key_source, e);
  if (rc < 0) return rc;
  gethostname(host, sizeof(host) - 1);
  char **env = launch_env_agent(&l->plan, l->env, host, getpid());
  const struct helper_options o = {
      .loop = &l->loop,
      .name = "its agent",
      .file = "/proc/self/exe",
      .argv = l->plan.argv,
      .env = env,
      .cwd = l->plan.cwd,
      .fd3 = l->plan.key ? key_fd : 0,
      .linger_ms = OUTPUT_MS,
      .output = {{.line_max = AGENT_LINE_MAX}, {.line_max = AGENT_LINE_MAX}},
      .on_line = on_agent_line,
      .on_end = on_agent_end,
      .ctx = l,
  };
  rc = helper_start(&o, &l->agent, e);
  if (key_fd >= 0) close(key_fd);
  if (rc == 0) l->program = interpreter_find(l->plan.argv, env, l->plan.cwd);
  launch_words_free(env);
  return rc;
}

static void signal_agent(struct launched *l, int signo) {
  if (l->agent) helper_signal(l->agent, signo);
}

/* Down. ------------------------------------------------------------------------------------------------------------ */

/* The launcher is gone. */
static void on_launcher_gone(struct launched *l) {
  if (l->gone) return;
  l->gone = true;
  uv_read_stop((uv_stream_t *)&l->in);
  signal_agent(l, SIGTERM);
  l->kill_ms = monotonic_ms() + l->plan.stop_ms + STOP_MORE_MS;
  if (l->tree) launch_tree_close(l->tree);
}

static void kill_all(struct launched *l) {
  signal_agent(l, SIGKILL);
  if (l->tree) launch_tree_kill(l->tree);
}

static void send_pulse(struct launched *l) {
  struct buf text = BUF_INIT;
  buf_puts(&text, "P\n");
  send_up(l, &text);
}

static void on_command(struct launched *l, const char *line) {
  int64_t signo;
  l->heard_ms = monotonic_ms();
  if (line[0] == 'S' || line[0] == 'Q') send_pulse(l);
  if (line[0] == 'K') {
    kill_all(l);
  } else if (line[0] == 'Q') {
    launch_tree_probe(l->tree);
  } else if (line[0] == 'S' && line[1] == ' ' && parse_int(line + 2, 1, 64, &signo, NULL) == 0) {
    signal_agent(l, (int)signo);
    launch_tree_signal(l->tree, (int)signo);
  }
}

static void end_with_error(struct launched *l, const struct err *e) {
  log_error("%s", e->text);
  l->code = EXIT_CODE_USAGE;
  uv_stop(&l->loop);
}

/* Reads the header, then the plan; true: one of them was complete. */
static bool take_plan(struct launched *l) {
  struct err e = ERR_INIT;
  size_t n = l->got.len;
  char *end = n ? memchr(l->got.data, '\n', n < LAUNCH_HEADER_MAX ? n : LAUNCH_HEADER_MAX) : NULL;
  if (l->plan_len) {
    if (n < l->plan_len) return false;
    if (launch_plan_decode(&l->plan, l->got.data, l->plan_len, &e)) {
      end_with_error(l, &e);
      return false;
    }
    buf_consume(&l->got, l->plan_len);
    l->planned = true;
    l->tree = launch_tree_create(&(struct launch_tree_options){
        .loop = &l->loop, .plan = &l->plan, .on_report = send_report, .on_line = on_line, .ctx = l});
    if (start_agent(l, &e))
      report_own(l, LAUNCH_FAILED, 0, e.text);
    else
      report_own(l, LAUNCH_UP, 0, l->program ? l->program : "");
    if (l->plan.n > 1) launch_tree_start(l->tree, 1, l->plan.n - 1, false);
    return true;
  }
  if (!end && n < LAUNCH_HEADER_MAX) return false;
  if (end) *end = '\0';
  char none[] = "";
  if (launch_header_parse(&l->plan, end ? l->got.data : none, &l->plan_len, &e)) {
    end_with_error(l, &e);
    return false;
  }
  buf_consume(&l->got, (size_t)(end - l->got.data) + 1);
  return true;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  *out = uv_buf_init(chunk, sizeof(chunk));
}

static void on_in(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
  struct launched *l = &launched;
  if (n == 0) return;
  if (n < 0) {
    on_launcher_gone(l);
    if (!l->planned) uv_stop(&l->loop);
    return;
  }
  l->heard_ms = monotonic_ms();
  buf_append(&l->got, buf->base, (size_t)n);
  if (!l->planned) sodium_memzero(buf->base, (size_t)n);
  while (!l->planned && take_plan(l)) continue;
  if (l->planned) {
    char *end;
    while (l->got.len && (end = memchr(l->got.data, '\n', l->got.len))) {
      *end = '\0';
      on_command(l, l->got.data);
      buf_consume(&l->got, (size_t)(end - l->got.data) + 1);
    }
  }
}

/* Time. ------------------------------------------------------------------------------------------------------------ */

static void on_look_timer(uv_timer_t *timer) {
  struct launched *l = timer->data;
  uint64_t now = monotonic_ms();
  struct err e = ERR_INIT;
  if (!l->planned) {
    if (now - l->heard_ms > PLAN_MS)
      end_with_error(l, (err_set(&e, -ETIMEDOUT, "no plan received within %d s", PLAN_MS / 1000), &e));
    return;
  }
  if (launch_pulse_is_due(&l->pulse_ms, now)) send_pulse(l);
  if (now - l->heard_ms > LAUNCH_SILENCE_MS) on_launcher_gone(l);
  if (now >= l->kill_ms) {
    kill_all(l);
    l->kill_ms = UINT64_MAX;
  }
}

static void on_signal(uv_signal_t *handle, int signo) {
  if (launched.planned)
    on_launcher_gone(&launched);
  else
    uv_stop(&launched.loop);
}

/* After each turn of the loop: ends it if nothing is left to do. */
static void on_turn(uv_prepare_t *prepare) {
  struct launched *l = prepare->data;
  uint64_t now = monotonic_ms();
  if (!l->planned) return;
  if (!l->reported || !launch_tree_is_over(l->tree)) return;
  if (!l->gone || !l->flush_ms) l->flush_ms = now + FLUSH_MS; /* as long as the launcher may take it */
  if (l->up.broken || outlet_waits(&l->up) == 0 || now >= l->flush_ms) uv_stop(&l->loop);
}

/* Whether the loop can wait for it: not a file, and not a terminal, which would change the data. */
static bool is_stream(int fd) {
  uv_handle_type type = uv_guess_handle(fd);
  return type == UV_NAMED_PIPE || type == UV_TCP;
}

int launched_run(char *const *env) {
  struct launched *l = &launched;
  struct err e = ERR_INIT;
  struct buf hello = BUF_INIT;
  uv_prepare_t turn;
  signal(SIGPIPE, SIG_IGN);
  *l = (struct launched){.env = env, .kill_ms = UINT64_MAX, .heard_ms = monotonic_ms()};
  int rc = loop_open(&l->loop, &e);
  if (rc == 0) {
    uv_pipe_init(&l->loop, &l->in, 0);
    uv_pipe_init(&l->loop, &l->up_pipe, 0);
    l->up = (struct outlet){.stream = (uv_stream_t *)&l->up_pipe, .on_sent = on_sent_up, .ctx = l};
    rc = is_stream(STDIN_FILENO) && is_stream(STDOUT_FILENO) ? uv_pipe_open(&l->in, STDIN_FILENO) : -ENOTSOCK;
    if (rc == 0) rc = uv_pipe_open(&l->up_pipe, STDOUT_FILENO);
    if (rc)
      err_set(&e, rc,
              "--launched is used by rdzv-agent --hosts and needs pipes to it: a remote shell must pass stdin and "
              "stdout on (no ssh -n, no -nostdin)");
  }
  if (rc) {
    limit_explain(&e);
    log_error("%s", e.text);
    return limit_is_transient(rc) ? EXIT_CODE_SYSTEM : EXIT_CODE_USAGE;
  }
  uv_read_start((uv_stream_t *)&l->in, on_alloc, on_in);
  static const int watched[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  signal(SIGUSR1, SIG_IGN); /* Grid Engine sends them to tasks as well: only the first host decides what follows */
  signal(SIGUSR2, SIG_IGN);
  for (int i = 0; i < 4; i++) {
    uv_signal_init(&l->loop, &l->signals[i]);
    uv_signal_start(&l->signals[i], on_signal, watched[i]);
  }
  buf_reserve(&l->got, sizeof(chunk) + LAUNCH_HEADER_MAX); /* so that it does not move before the key in it is wiped */
  uv_timer_init(&l->loop, &l->timer);
  uv_prepare_init(&l->loop, &turn);
  l->timer.data = turn.data = l;
  uv_timer_start(&l->timer, on_look_timer, LOOK_EVERY_MS, LOOK_EVERY_MS);
  uv_prepare_start(&turn, on_turn);
  buf_puts(&hello, LAUNCH_UP_WORD " ");
  release_put(&hello);
  buf_putc(&hello, '\n');
  send_up(l, &hello);
  launch_pulse_is_due(&l->pulse_ms, monotonic_ms());
  uv_run(&l->loop, UV_RUN_DEFAULT);
  launch_tree_destroy(l->tree);
  free(l->program);
  return l->code;
}
