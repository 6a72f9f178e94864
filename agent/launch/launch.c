/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher's loop.
 *
 *     hosts --> branches --> reports --> controller --> log lines, signals, the end
 *                    '--> lines ----> line merger --> relay --> terminal
 *
 * It decides nothing. The relay that an agent uses for its own lines prints those of all agents: output that the terminal
 * does not take waits there, not in this loop, which must send pulses. If too much waits, hosts are not read.
 *
 * The agent on this machine is a branch without ssh, so all agents are stopped, heard and lost in one way. */

#include "agent/launch/launch.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>
#include "agent/launch/branch.h"
#include "agent/launch/controller.h"
#include "agent/launch/line_merger.h"
#include "agent/output/log_sink.h"
#include "agent/output/relay.h"
#include "agent/workers/signals.h"
#include "common/system/clock.h"
#include "common/deadline.h"
#include "common/exit_codes.h"
#include "common/err.h"
#include "common/system/log.h"
#include "common/system/loop.h"

enum {
  SIGNALS_MAX = 64,
  FRONT_LOOK_MS = 1000,
  WAITS_MAX = 1 << 20, /* bytes for the terminal; with more, hosts are not read */
  FLUSH_MS = 15000,    /* at the end, for the terminal to take the rest */
  INDEX_DIGITS_MAX = 6,
};

struct root {
  const struct launch *l;
  uv_loop_t loop;
  uv_timer_t timer, beat;
  uv_signal_t signals[SIGNALS_MAX];
  uint64_t watched; /* those that end the job */
  struct last_signal last_signal;
  struct front *front;
  uv_timer_t front_timer;
  struct launch_tree *tree;
  struct launch_controller *mind;
  struct line_merger *voices;
  struct relay *relay;
  struct log_sink log_sink;
  struct notify *notify;
  bool ending;
  int code;
  uint64_t flush_ms;
};

static struct root root;

static void carry_out(struct root *r);

/* Output. ---------------------------------------------------------------------------------------------------------- */

static void write_line(void *ctx, int std, const char *line, size_t len) {
  struct root *r = ctx;
  relay_pass(r->relay, std, line, len);
  if (relay_waits(r->relay) > WAITS_MAX) launch_tree_pause(r->tree, true);
}

static const char *host_of(void *ctx, uint32_t index) {
  const struct root *r = ctx;
  return r->l->order[index].host;
}

/* "2 17 text" */
static void on_line(void *ctx, const char *line, size_t len) {
  struct root *r = ctx;
  size_t at = 2;
  uint32_t index = 0;
  for (; at < len && at < 2 + INDEX_DIGITS_MAX && line[at] >= '0' && line[at] <= '9'; at++)
    index = index * 10 + (uint32_t)(line[at] - '0');
  if (at >= len || line[at] != ' ' || index >= r->l->plan.n) return;
  line_merger_add(r->voices, index, line[0] - '0', line + at + 1, len - at - 1, monotonic_ms());
  carry_out(r);
}

/* Decisions. ------------------------------------------------------------------------------------------------------- */

static void on_deadline_timer(uv_timer_t *timer) {
  struct root *r = timer->data;
  uint64_t now = monotonic_ms();
  line_merger_tick(r->voices, now);
  if (launch_tree_is_paused(r->tree)) launch_controller_unread(r->mind, now);
  if (!r->ending) launch_controller_tick(r->mind, now);
  carry_out(r);
}

static void carry_out(struct root *r) {
  struct launch_effect fx;
  while (launch_controller_next(r->mind, &fx)) {
    switch (fx.kind) {
    case LAUNCH_SAY: log_line(fx.level, "%s", fx.text); break;
    case LAUNCH_SIGNAL:
      if (fx.own) line_merger_hide_leaving(r->voices);
      launch_tree_signal(r->tree, fx.value);
      break;
    case LAUNCH_PROBE: launch_tree_probe(r->tree); break;
    case LAUNCH_KILL: launch_tree_kill(r->tree); break;
    case LAUNCH_EXIT:
      r->ending = true;
      r->code = fx.value;
      r->flush_ms = monotonic_ms() + FLUSH_MS;
      line_merger_flush(r->voices);
      notify_stopping(r->notify, NULL);
      break;
    }
  }
  loop_timer_at(&r->timer, on_deadline_timer,
                earliest(launch_controller_deadline(r->mind), line_merger_deadline(r->voices)), monotonic_ms());
}

static void on_report(void *ctx, const struct launch_report *report) {
  struct root *r = ctx;
  log_debug("%s: %s %lld %s", r->l->order[report->index].host,
            report->event == LAUNCH_UP      ? "up"
            : report->event == LAUNCH_ENDED ? "ended"
                                            : "gone",
            (long long)report->code, report->text);
  launch_controller_report(r->mind, report, monotonic_ms());
  carry_out(r);
}

static void on_signal(uv_signal_t *handle, int signo) {
  struct root *r = handle->data;
  if (signal_is_echo(&r->last_signal, signo, monotonic_ms())) return;
  if (r->ending) {
    uv_stop(&r->loop);
    return;
  }
  launch_controller_signal(r->mind, signo, monotonic_ms());
  carry_out(r);
}

/* Notifies the service manager, and reads hosts again when the terminal has taken their output. */
static void on_beat(uv_timer_t *timer) {
  struct root *r = timer->data;
  uint64_t now = monotonic_ms();
  notify_beat(r->notify, now, NULL, false);
  if (relay_waits(r->relay) < WAITS_MAX / 2) launch_tree_pause(r->tree, false);
  if (r->ending && (launch_tree_is_over(r->tree) || now >= r->flush_ms)) uv_stop(&r->loop);
}

/* Beginning and end. ----------------------------------------------------------------------------------------------- */

/* The agents do it in their own time. */
static void on_job_control(uv_signal_t *handle, int signo) {
  struct root *r = handle->data;
  if (r->ending) return;
  launch_tree_signal(r->tree, signo);
  if (signo == SIGTSTP)
    front_stop(r->front);
  else
    front_continued(r->front);
}

static void on_front_timer(uv_timer_t *timer) {
  struct root *r = timer->data;
  front_check(r->front, r->watched);
}

int launch_run(const struct launch *l, const struct agent_options *o, struct notify *notify, struct front *front,
               bool *hung) {
  struct root *r = &root;
  struct err e = ERR_INIT;
  *r = (struct root){.l = l, .notify = notify, .front = front, .code = EXIT_CODE_INTERNAL};
  int rc = loop_open(&r->loop, &e);
  if (rc == 0) {
    enum log_level shown = o->quiet ? LOG_WARN : o->verbose ? LOG_DEBUG : LOG_INFO;
    rc = log_sink_init(&r->log_sink, &r->loop, shown, NULL, &e);
    if (rc == 0) rc = relay_create(&r->relay, &(struct relay_options){.out = STDOUT_FILENO, .err = STDERR_FILENO}, &e);
    if (rc == 0) log_sink_use_relay(&r->log_sink, r->relay);
  }
  if (rc) {
    limit_explain(&e);
    log_error("%s", e.text);
    *hung = true;
    return EXIT_CODE_SYSTEM;
  }
  signal(SIGPIPE, SIG_IGN);
  static const struct line_merger_options voices = {write_line, host_of, &root};
  enum { BEAT_EVERY_MS = 20 };
  const struct launch_plan *p = &r->l->plan;
  uint64_t now = monotonic_ms();
  r->voices = line_merger_create(&voices);
  r->mind = launch_controller_create(
      &(struct launch_controller_config){
          .seats = r->l->order, .n = p->n, .need = o->nnodes.min, .serves = r->l->serves, .stop_ms = p->stop_ms},
      now);
  r->tree = launch_tree_create(
      &(struct launch_tree_options){.loop = &r->loop, .plan = p, .on_report = on_report, .on_line = on_line, .ctx = r});
  uv_timer_init(&r->loop, &r->timer);
  uv_timer_init(&r->loop, &r->beat);
  uv_timer_init(&r->loop, &r->front_timer);
  r->timer.data = r->beat.data = r->front_timer.data = r;
  uv_timer_start(&r->beat, on_beat, BEAT_EVERY_MS, BEAT_EVERY_MS);
  uv_timer_start(&r->front_timer, on_front_timer, FRONT_LOOK_MS, FRONT_LOOK_MS);
  uint64_t watched = r->watched = signals_to_watch(o);
  for (int signo = 1; signo < SIGNALS_MAX; signo++) {
    bool ours = watched >> signo & 1, control = signo == SIGTSTP || signo == SIGCONT;
    if (!ours && (!control || signal_is_ignored(signo))) continue;
    uv_signal_init(&r->loop, &r->signals[signo]);
    r->signals[signo].data = r;
    uv_signal_start(&r->signals[signo], ours ? on_signal : on_job_control, signo);
  }
  if (r->l->here) launch_tree_start(r->tree, 0, 1, true);
  if (p->n > r->l->here) launch_tree_start(r->tree, r->l->here, p->n - r->l->here, false);
  notify_ready(r->notify, NULL);
  carry_out(r);
  uv_run(&r->loop, UV_RUN_DEFAULT);
  front_finish(r->front);
  launch_tree_destroy(r->tree);
  r->tree = NULL;
  uv_close((uv_handle_t *)&r->timer, NULL);
  uv_close((uv_handle_t *)&r->beat, NULL);
  uv_close((uv_handle_t *)&r->front_timer, NULL);
  for (int i = 0; i < SIGNALS_MAX; i++)
    if (r->signals[i].loop) uv_close((uv_handle_t *)&r->signals[i], NULL);
  uv_run(&r->loop, UV_RUN_NOWAIT);
  uv_run(&r->loop, UV_RUN_NOWAIT);
  log_sink_use_relay(&r->log_sink, NULL);
  relay_destroy(r->relay, FLUSH_MS);
  log_sink_finish(&r->log_sink);
  launch_controller_destroy(r->mind);
  line_merger_destroy(r->voices);
  *hung = uv_loop_close(&r->loop) != 0;
  return r->code;
}
