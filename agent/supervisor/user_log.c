/* SPDX-License-Identifier: Apache-2.0 */
/* The lines for the user. Every sentence of the supervisor that is more than a format string is made here.
 *
 * Each node reports a failure once, and it should be the cause. The first death that a node sees is often an echo: a
 * worker that lost its peer exits before the death of the peer is known. So a death here, or a verdict that STOP
 * brings, waits a moment for the settled verdict, which mostly comes within milliseconds. It is logged itself if that
 * takes longer, or if there is no daemon to settle anything. A verdict that differs from the one already logged is
 * logged again; later deaths are only counted. The worker's own last lines follow, indented, because the person at the
 * terminal looks for them; unless they stand there already, since the worker wrote them to this terminal. */

#include "agent/supervisor/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

void sup_log(struct supervisor *s, enum log_level level, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  struct supervisor_effect *e = sup_effect(s, SUP_SAY);
  e->say.level = level;
  e->text = xvasprintf(fmt, ap);
  va_end(ap);
}

static bool same_verdict(const struct verdict *a, const struct verdict *b) {
  return a->cause == b->cause && a->round == b->round && a->node_rank == b->node_rank && a->rank == b->rank &&
         a->pid == b->pid && a->code == b->code;
}

enum { LAST_LINES_MAX = 10, LAST_LINE_MAX = 500, SHOW_AFTER_MS = 250, FINISHED_SHOWN_MAX = 8 };

/* The last lines of a worker's stderr, each on a line of its own. */
static void log_last_lines(struct supervisor *s, const char *text) {
  size_t len = strlen(text), begin = len;
  for (int lines = 0; begin > 0; begin--)
    if (text[begin - 1] == '\n' && begin < len && ++lines == LAST_LINES_MAX) break;
  const char *p = text + begin;
  if (begin) sup_log(s, LOG_WARN, "  | ...");
  while (*p) {
    size_t n = strcspn(p, "\n");
    struct buf line = BUF_INIT;
    buf_put_plain(&line, p, n, LAST_LINE_MAX); /* as it was written, so that a path can be copied */
    if (n) sup_log(s, LOG_WARN, "  | %s", buf_text(&line));
    buf_finish(&line);
    p += n + (p[n] == '\n');
  }
}

static bool text_is_stderr(enum cause c) {
  return c == CAUSE_WORKER_EXIT || c == CAUSE_WORKER_SIGNAL;
}

/* A worker of this node, in its current round. */
static bool is_ours(const struct supervisor *s, const struct verdict *v) {
  return v->round == s->round.number && v->node_rank >= 0 && v->node_rank == s->round.node_rank && v->local_rank >= 0 &&
         v->local_rank < s->config.workers;
}

/* A worker of another agent has failed, and the first agent of this host logs that. With an agent for each GPU one crash
 * would fill pages. The first agent may itself be what was lost, so other verdicts are logged by all. */
bool sup_is_echo(const struct supervisor *s, const struct verdict *v) {
  return s->config.echo && text_is_stderr(v->cause) && !is_ours(s, v);
}

/* "rank 1", "ranks 0-2,5"; "ranks 0,2,4,6,... (40 of 128)". */
static void put_finished(const struct supervisor *s, struct buf *out) {
  int64_t n = s->config.workers, shown = 0, base = s->round.rank_base;
  buf_puts(out, s->round.n_succeeded == 1 ? "rank " : "ranks ");
  for (int64_t i = 0, last; i < n; i = last + 1) {
    last = i;
    if (!s->workers[i].finished) continue;
    while (last + 1 < n && s->workers[last + 1].finished) last++;
    if (shown++ == FINISHED_SHOWN_MAX) {
      buf_printf(out, ",... (%lld of %lld here)", (long long)s->round.n_succeeded, (long long)n);
      return;
    }
    buf_printf(out, "%s%lld", shown > 1 ? "," : "", (long long)(base + i));
    if (last > i) buf_printf(out, "-%lld", (long long)(base + last));
  }
}

/* A worker that finished early may be the cause: others may have waited for it. A verdict does not show it. */
void sup_put_finished(const struct supervisor *s, const struct verdict *v, struct buf *out) {
  bool may_wait = text_is_stderr(v->cause) || v->cause == CAUSE_WORKER_HUNG;
  if (!may_wait || v->round != s->round.number || !s->round.n_succeeded) return;
  buf_puts(out, "; before that, ");
  put_finished(s, out);
  buf_puts(out, " had finished with code 0");
}

/* Nothing else tells a person why a job stands still whose script has ended on one rank alone. */
void sup_early_tick(struct supervisor *s) {
  /* Those that go on have made no step since the first one finished, as far as is known. */
  bool may_wait = s->state == SUPERVISOR_RUNNING && s->round.n_succeeded < s->config.workers;
  for (int64_t i = 0; i < s->config.workers; i++)
    if (!s->workers[i].exited && s->workers[i].stepped_ms > s->round.early_ms - SUPERVISOR_EARLY_MS) may_wait = false;
  if (may_wait) {
    struct buf ranks = BUF_INIT;
    long long left = (long long)(s->config.workers - s->round.n_succeeded);
    put_finished(s, &ranks);
    sup_log(s, LOG_INFO, "%s finished with code 0, and %lld worker%s here still run%s after %d s: do they wait for it?",
            buf_text(&ranks), left, left == 1 ? "" : "s", left == 1 ? "s" : "", SUPERVISOR_EARLY_MS / 1000);
    buf_finish(&ranks);
  }
  s->round.early_ms = UINT64_MAX;
}

void sup_log_verdict(struct supervisor *s, const struct verdict *v, const char *before) {
  if (v->cause != CAUSE_NONE) verdict_set(&s->verdicts.last, v);
  if (v->cause == CAUSE_NONE || same_verdict(v, &s->verdicts.shown)) return;
  struct buf text = BUF_INIT, finished = BUF_INIT;
  bool echo = sup_is_echo(s, v);
  verdict_sentence(v, &text);
  sup_put_finished(s, v, &finished);
  sup_log(s,
          echo                            ? LOG_DEBUG
          : v->cause == CAUSE_NODE_JOINED ? LOG_INFO
                                          : LOG_WARN,
          "%s%s%s", before, buf_text(&text), buf_text(&finished));
  buf_finish(&finished);
  verdict_set(&s->verdicts.shown, v);
  if (echo) {
    buf_finish(&text);
    return;
  }
  bool shown = v->shown && (is_ours(s, v) || s->config.one_terminal);
  if (text_is_stderr(v->cause) && !shown) log_last_lines(s, v->text);
  /* A module that is missing is mostly installed for another interpreter. */
  static const char words[] = "ModuleNotFoundError: No module named ";
  const char *ran = s->round.interpreter ? s->round.interpreter : s->config.interpreter;
  if (v->cause == CAUSE_WORKER_EXIT && ran && is_ours(s, v) && strstr(v->text, words))
    sup_log(s, LOG_WARN, "  it ran under %s: install the module there, or name another Python with PYTHON_EXEC", ran);
  /* The driver adds the time, and what the worker has left in files. */
  struct supervisor_effect *e = sup_effect(s, SUP_TOLD);
  if (text_is_stderr(v->cause) && v->text[0]) buf_printf(&text, "\n%s", v->text);
  e->text = buf_steal(&text);
  e->extra = v->error[0] ? xstrdup(v->error) : NULL;
  e->told.local_rank = is_ours(s, v) ? v->local_rank : -1;
}

static bool has_shown(const struct supervisor *s, int64_t round) {
  return s->verdicts.shown.cause != CAUSE_NONE && s->verdicts.shown.round == round;
}

void sup_drop_pending_verdict(struct supervisor *s) {
  verdict_free(&s->verdicts.pending);
  s->verdicts.show_ms = UINT64_MAX;
}

void sup_log_pending_verdict(struct supervisor *s) {
  if (!has_shown(s, s->verdicts.pending.round)) sup_log_verdict(s, &s->verdicts.pending, "");
  sup_drop_pending_verdict(s);
}

/* A worker that dies after the round's first verdict mostly dies of it, so its own verdict is a debug line. */
void sup_log_failure(struct supervisor *s, const struct verdict *v) {
  if (s->verdicts.pending.cause == CAUSE_NONE && !has_shown(s, v->round)) {
    verdict_copy(&s->verdicts.pending, v);
    s->verdicts.show_ms = s->now_ms + SHOW_AFTER_MS;
    if (s->link.state != CONNECTION_READY) sup_log_pending_verdict(s);
    return;
  }
  struct buf text = BUF_INIT;
  verdict_sentence(v, &text);
  sup_log(s, LOG_DEBUG, "then %s", buf_text(&text));
  buf_finish(&text);
}

void sup_log_settled(struct supervisor *s, const struct settled *settled) {
  const struct verdict *v = &settled->verdict;
  struct buf line = BUF_INIT;
  if (v->echoes && same_verdict(v, &s->verdicts.shown)) /* else it is part of the sentence */
    buf_printf(&line, "%lld other worker%s died with it or after it; ", (long long)v->echoes,
               v->echoes == 1 ? "" : "s");
  if (v->cause == CAUSE_NONE) sup_log_pending_verdict(s);
  sup_drop_pending_verdict(s);
  sup_log_verdict(s, v, has_shown(s, v->round) ? "the round's verdict: " : "");
  if (settled->refilled) buf_puts(&line, "the count of used restarts is reset; ");
  if (!settled->charged)
    buf_puts(&line, "no restart is charged; forming the next round");
  else
    buf_printf(&line, "restart %lld of %lld", (long long)settled->restarts_used,
               (long long)s->config.settings.max_restarts);
  if (settled->charged && settled->last_failure.repeats) {
    int64_t limit = s->config.settings.repeat_limit;
    buf_puts(&line, "; the same failure has come again without progress");
    if (limit)
      buf_printf(&line, ", repeat %lld of %lld (--repeat-limit)", (long long)settled->last_failure.repeats,
                 (long long)limit);
  }
  if (settled->charged && settled->delay_ms)
    buf_printf(&line, ", in %.1f s, because rounds are short", (double)settled->delay_ms / 1000);
  sup_log(s, sup_is_echo(s, v) ? LOG_DEBUG : LOG_INFO, "%s", buf_text(&line));
  buf_finish(&line);
  /* Most scripts do not resume by themselves, and a restart then writes over what they have saved. Once in a job, and by
   * one node: the agent knows what its own workers have reported, and the daemon how far those of the others were. */
  bool first = settled->charged && settled->restarts_used == 1 && !settled->refilled;
  bool ran = v->cause != CAUSE_WORKER_EXEC; /* a worker that did not run has saved nothing */
  if (first && ran && s->round.node_rank == 0 && !s->progress.any_reported && settled->failed_step < 0)
    sup_log(
        s, LOG_WARN,
        "no worker reported progress or a checkpoint, so %s starts from the beginning unless it loads a checkpoint itself; --max-restarts 0 turns restarts off",
        s->config.trainer ? "rdzv-trainer" : "the script");
  if (settled->excluded[0]) {
    struct buf name = BUF_INIT;
    buf_put_escaped(&name, settled->excluded, strlen(settled->excluded), HOST_MAX);
    sup_log(
        s, LOG_WARN,
        "host %s is excluded from further rounds: %lld of the job's charged failures happened there (--exclude-after)",
        buf_text(&name), (long long)s->config.settings.exclude_after);
    buf_finish(&name);
  }
}

/* Nothing of a round may be left when the next one begins, so this node waits. */
void sup_stuck(struct supervisor *s, const struct supervisor_event *ev) {
  struct buf who = BUF_INIT;
  const char *command = ev->text ? ev->text : "?";
  bool worker = ev->round == s->round.number && ev->local_rank < (uint32_t)s->config.workers;
  if (worker)
    buf_printf(&who, "rank %lld (local %u), ", (long long)s->round.rank_base + ev->local_rank, ev->local_rank);
  buf_printf(&who, "pid %d (", ev->stuck.pid);
  buf_put_plain(&who, command, strlen(command), LAST_LINE_MAX);
  buf_puts(&who, worker ? ")," : ")");
  if (ev->stuck.denied)
    sup_log(
        s, LOG_WARN,
        "%s runs as uid %lld and cannot be killed by uid %lld; this node waits until it exits; kill it as root or as uid %lld",
        buf_text(&who), (long long)ev->stuck.uid, (long long)s->config.uid, (long long)ev->stuck.uid);
  else
    sup_log(s, LOG_WARN,
            "%s does not die of SIGKILL (state %c): the kernel or a tracer holds it; this node waits until it exits",
            buf_text(&who), ev->stuck.state ? ev->stuck.state : '?');
  buf_finish(&who);
}

void sup_going_away(struct supervisor *s, const struct supervisor_event *ev) {
  sup_log(s, LOG_INFO, "the daemon at %s says: %s", sup_daemon_name(s), ev->msg->going_away.text);
  sup_begin_leave(s, (uint64_t)ev->msg->going_away.away_ms);
}

/* The daemon says it to all agents of the job: the first agent of a host is enough. */
void sup_notice(struct supervisor *s, const struct supervisor_event *ev) {
  struct buf line = BUF_INIT;
  const char *text = ev->msg->notice_msg.text;
  buf_put_plain(&line, text, strlen(text), TEXT_MAX);
  sup_log(s, s->config.echo ? LOG_DEBUG : LOG_WARN, "%s", buf_text(&line));
  buf_finish(&line);
}

void sup_log_start(struct supervisor *s, const struct start *start) {
  struct buf ranks = BUF_INIT;
  int64_t last = start->rank_base + s->config.workers - 1;
  if (last > start->rank_base)
    buf_printf(&ranks, "ranks %lld-%lld", (long long)start->rank_base, (long long)last);
  else
    buf_printf(&ranks, "rank %lld", (long long)last);
  sup_log(s, LOG_INFO, "round %lld: %lld node%s, %lld worker%s; this is node %lld with %s, node 0 is %s (%s)",
          (long long)start->round, (long long)start->nodes, start->nodes == 1 ? "" : "s", (long long)start->world_size,
          start->world_size == 1 ? "" : "s", (long long)start->node_rank, buf_text(&ranks), start->head_host,
          start->head_addr);
  buf_finish(&ranks);
  if (start->other_command[0] && !s->verdicts.command_warned) {
    /* Once: it is the same in each round. */
    struct buf other = BUF_INIT;
    s->verdicts.command_warned = true;
    buf_put_escaped(&other, start->other_command, strlen(start->other_command), HOST_MAX);
    sup_log(
        s, LOG_WARN,
        "host %s runs another command than host %s (this node 0); if that is a mistake, stop the job and run the same command on all nodes",
        buf_text(&other), s->config.host);
    buf_finish(&other);
  }
}

void sup_show_status(struct supervisor *s) {
  struct buf line = BUF_INIT;
  double rate = 0;
  const struct worker *least = sup_slowest(s, &rate);
  buf_printf(&line, "round %lld, %lld node%s, %lld worker%s", (long long)s->round.number, (long long)s->round.nodes,
             s->round.nodes == 1 ? "" : "s", (long long)s->round.world_size, s->round.world_size == 1 ? "" : "s");
  if (least && least->of)
    buf_printf(&line, ", step %llu of %llu", (unsigned long long)least->step, (unsigned long long)least->of);
  else if (least)
    buf_printf(&line, ", step %llu", (unsigned long long)least->step);
  if (least && isfinite(least->loss)) buf_printf(&line, ", loss %.6g", least->loss);
  if (rate > 0) buf_printf(&line, ", %.0f samples/s here", rate);
  sup_effect(s, SUP_STATUS)->text = buf_steal(&line);
}
