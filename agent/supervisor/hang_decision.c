/* SPDX-License-Identifier: Apache-2.0 */
/* Hangs: a worker that lives and makes no progress.
 *
 *   look (once a second, or more often if the timeout is short) -> signs -> LOOKED: has a worker timed out?
 *        -> probe: what are the processes doing? -> facts: FAILED, worker-hung -> stacks, 5 s at most -> stop
 *
 * A worker is judged only after a look, never by a timer alone, because a sign of life may still wait in a socket. The
 * same holds for the answer of the probe. Time in which this agent could not look (it was stopped, the machine slept,
 * the terminal took no output), or in which a user had suspended workers of any node, does not count as silence.
 *
 * Which worker hung first? In a collective all ranks stop when one does, at the same step and within milliseconds, so
 * time alone says little. A process that is stopped, or held by the kernel, does not wait for the others. A rank that
 * is a step behind is the one that the others wait for. verdict_outweighs compares exactly that: here among the workers
 * of one node, in the daemon among nodes. If neither helps, the verdict names the earliest worker and says that the
 * cause is not known. NCCL and PyTorch may know which rank the others wait for: they are asked before the processes are
 * looked at, and the verdict has their answer as evidence.
 *
 * A worker may give up a collective by itself, after PyTorch's own timeout, and die. The others still wait in it. So
 * before it is reported and they are stopped, they are asked in the same way, though no stacks are printed.
 *
 * The other nodes learn of the hang by STOP. They probe their own workers before they stop them, because the origin may
 * be one of theirs. Then they report it, and it wins. */

#include "agent/supervisor/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/exit_codes.h"
#include "common/mem.h"

enum {
  LOOK_MIN_MS = 50,
  LOOK_MAX_MS = 1000,
  LOOK_PATIENCE_MS = 3000, /* a file system that does not answer by then has no sign to show */
  LATE_MS = 500,           /* a look that comes later than this: we could not run */
  FACTS_LATE_MS = 50,      /* so with facts, which take a few ms; in doubt another look is cheap */
  NAMES_MAX = 3,           /* others that are named in the verdict */
  TOGETHER_MS = 1000,      /* workers that stop within this time may have stopped in any order */
};

static uint64_t timeout_ms(const struct supervisor *s) {
  return (uint64_t)s->config.settings.hang_timeout_ms;
}

static bool is_watching(const struct supervisor *s) {
  return timeout_ms(s) && s->state == SUPERVISOR_RUNNING;
}

static bool is_probing(const struct supervisor *s) {
  return s->state == SUPERVISOR_RUNNING && s->hang.stop_by_ms != UINT64_MAX;
}

/* Watching. -------------------------------------------------------------------------------------------------------- */

static bool is_working(const struct supervisor *s, const struct worker *w) {
  return w->spawned && !w->exited && !w->gone && !w->parked;
}

static bool reports_progress(const struct supervisor *s, const struct worker *w) {
  return w->reports_progress;
}

/* All workers of this node count as one: none of them prints. */
static bool is_watched_together(const struct supervisor *s) {
  return s->config.hang_watch == HANG_AUTO && !sup_any_worker(s, reports_progress);
}

static enum hang_sign watched_sign(const struct supervisor *s) {
  switch (s->config.hang_watch) {
  case HANG_OUTPUT: return SIGN_OUTPUT;
  case HANG_FILE: return SIGN_FILE;
  case HANG_AUTO: return is_watched_together(s) ? SIGN_OUTPUT : SIGN_SDK;
  case HANG_SDK: break;
  }
  return SIGN_SDK;
}

static bool is_watched(const struct supervisor *s, const struct worker *w) {
  if (!is_working(s, w)) return false;
  if (s->config.hang_watch != HANG_AUTO) return true;
  return is_watched_together(s) ? s->round.node_rank == 0 : w->reports_progress;
}

/* The last sign of it; 0: none since it was started. */
static uint64_t last_sign_ms(const struct supervisor *s, const struct worker *w) {
  enum hang_sign sign = watched_sign(s);
  uint64_t last = w->sign_ms[sign];
  for (int64_t i = 0; is_watched_together(s) && i < s->config.workers; i++)
    if (s->workers[i].sign_ms[sign] > last) last = s->workers[i].sign_ms[sign];
  return last;
}

/* When its silence began. */
static uint64_t silent_since_ms(const struct supervisor *s, const struct worker *w) {
  uint64_t last = last_sign_ms(s, w);
  return last > w->begun_ms ? last : w->begun_ms;
}

/* Starting takes longer than a step. Progress shows that it is over; output does not, because programs print while they
 * start. */
static uint64_t hang_due_ms(const struct supervisor *s, const struct worker *w) {
  uint64_t last = last_sign_ms(s, w), start = w->begun_ms + (uint64_t)s->config.hang_start_ms;
  if (!is_watched(s, w)) return UINT64_MAX;
  if (!last) return start;
  uint64_t over = last + timeout_ms(s);
  return watched_sign(s) == SIGN_OUTPUT && over < start ? start : over;
}

static bool is_hung(const struct supervisor *s, const struct worker *w) {
  return s->now_ms >= hang_due_ms(s, w);
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

static void plan_look(struct supervisor *s) {
  uint64_t eighth = timeout_ms(s) / 8;
  uint64_t at = s->now_ms + (eighth < LOOK_MIN_MS ? LOOK_MIN_MS : earliest(eighth, LOOK_MAX_MS));
  for (int64_t i = 0; i < s->config.workers; i++) {
    uint64_t over = hang_due_ms(s, &s->workers[i]);
    if (over > s->now_ms) at = earliest(at, over);
  }
  s->hang.looking = false;
  s->hang.look_ms = at;
}

static void forgive_silence(struct supervisor *s, uint64_t ms) {
  for (int64_t i = 0; i < s->config.workers; i++) {
    struct worker *w = &s->workers[i];
    w->begun_ms += ms;
    for (int k = 0; k < SIGN_COUNT; k++)
      if (w->sign_ms[k]) w->sign_ms[k] = w->sign_ms[k] + ms < s->now_ms ? w->sign_ms[k] + ms : s->now_ms;
    if (w->begun_ms > s->now_ms) w->begun_ms = s->now_ms;
  }
}

static void request_look(struct supervisor *s) {
  uint64_t late = s->hang.look_ms < s->now_ms ? s->now_ms - s->hang.look_ms : 0; /* none was planned: not late */
  if (late > LATE_MS) forgive_silence(s, late);
  s->hang.looking = true;
  s->hang.look_ms = s->now_ms + LOOK_PATIENCE_MS;
  sup_effect(s, SUP_LOOK)->round = (uint32_t)s->round.number;
}

/* Once: a user who has set a timeout wants to know when it counts. */
static void log_watch_rule(struct supervisor *s) {
  double start_s = (double)s->config.hang_start_ms / 1000, hang_s = (double)timeout_ms(s) / 1000;
  static const char *const what[] = {
      [HANG_SDK] = "a worker that reports no progress",
      [HANG_OUTPUT] = "a worker that prints nothing",
      [HANG_FILE] = "a worker whose file (--hang-watch) does not change",
      [HANG_AUTO] = "silence of all workers here",
  };
  if (s->config.hang_watch == HANG_AUTO && s->round.node_rank != 0)
    sup_log(s, LOG_INFO, "hangs: a worker here is watched once it reports progress (--hang-watch)");
  else if (s->config.hang_watch == HANG_OUTPUT || s->config.hang_watch == HANG_AUTO)
    sup_log(s, LOG_INFO,
            "hangs: %s for %g s ends the round (--hang-timeout), not before it is %g s old (--hang-start-timeout)%s",
            what[s->config.hang_watch], hang_s, start_s,
            s->config.hang_watch == HANG_AUTO ? "; a worker that reports progress is watched by its progress" : "");
  else
    sup_log(s, LOG_INFO,
            "hangs: %s for %g s ends the round (--hang-timeout); its start has %g s (--hang-start-timeout)",
            what[s->config.hang_watch], hang_s, start_s);
}

void sup_hang_begin(struct supervisor *s) {
  sup_hang_end(s);
  s->hang.looked_ms = s->now_ms;
  if (!timeout_ms(s)) return;
  plan_look(s);
  if (s->job.rounds == 1) log_watch_rule(s);
}

/* Evidence. -------------------------------------------------------------------------------------------------------- */

static void forget_evidence(struct hang *h) {
  for (size_t i = 0; i < h->evidence.n_collectives; i++) {
    free((char *)(uintptr_t)h->evidence.collectives[i].group);
    free((char *)(uintptr_t)h->evidence.collectives[i].op);
    free((char *)(uintptr_t)h->evidence.collectives[i].ranks);
  }
  free(h->evidence.collectives);
  free((char *)(uintptr_t)h->evidence.silent);
  free((char *)(uintptr_t)h->evidence.text);
  free(h->text);
  h->evidence = (struct evidence){.n_collectives = 0};
  h->text = NULL;
  h->awaited = (struct local_set){{0}};
}

void sup_evidence(struct supervisor *s, const struct supervisor_event *ev) {
  struct hang *h = &s->hang;
  if (!is_probing(s)) return;
  forget_evidence(h);
  struct collective *v = xcalloc(ev->evidence.n + 1, sizeof *v);
  for (size_t i = 0; i < ev->evidence.n; i++) {
    v[i] = ev->evidence.v[i];
    v[i].group = xstrdup(v[i].group);
    v[i].op = xstrdup(v[i].op);
    v[i].ranks = xstrdup(v[i].ranks);
  }
  h->evidence = (struct evidence){
      .collectives = v, .n_collectives = ev->evidence.n, .silent = xstrdup(ev->silent), .text = xstrdup(ev->ras)};
  h->text = xstrdup(ev->text);
  h->awaited = ev->evidence.awaited;
}

/* The worker that gave up a collective. */
static void report_dead(struct supervisor *s) {
  struct hang *h = &s->hang;
  if (h->dead.cause == CAUSE_NONE) return;
  struct verdict v = h->dead;
  if (h->text) v.evidence = h->text;
  sup_report(s, REPORT_FAILED, &v, h->dead_ms);
  sup_log_failure(s, &v);
  verdict_free(&h->dead);
}

void sup_hang_end(struct supervisor *s) {
  report_dead(s);
  s->hang.looking = s->hang.ours = s->hang.reported = false;
  s->hang.look_ms = s->hang.stop_by_ms = UINT64_MAX;
  verdict_free(&s->hang.heard);
  forget_evidence(&s->hang);
}

void sup_sign(struct supervisor *s, const struct supervisor_event *ev) {
  uint64_t *last_ms = &s->workers[ev->local_rank].sign_ms[ev->sign];
  if (ev->when_ms > *last_ms && ev->when_ms <= s->now_ms) *last_ms = ev->when_ms;
}

/* The origin. ------------------------------------------------------------------------------------------------------ */

static void describe_hang(const struct supervisor *s, int64_t local_rank, struct verdict *v, uint64_t *at_ms) {
  const struct worker *w = &s->workers[local_rank];
  sup_describe_worker(s, (uint32_t)local_rank, v);
  *at_ms = silent_since_ms(s, w);
  v->cause = CAUSE_WORKER_HUNG;
  v->code = EXIT_CODE_HUNG;
  v->idle_ms = (int64_t)(s->now_ms - *at_ms);
  v->state = w->ps;
  v->awaited = local_set_has(&s->hang.awaited, (uint32_t)local_rank);
}

/* A worker that has timed out, or that is silent while another one has. */
static bool is_suspect(const struct supervisor *s, const struct worker *w) {
  bool quiet = is_working(s, w) && s->now_ms - silent_since_ms(s, w) >= timeout_ms(s) / 2;
  return is_hung(s, w) || (quiet && (is_watched(s, w) || w->ps[0] == 'T' || w->ps[0] == 't'));
}

/* The local rank of the origin; -1: no worker hangs here. */
static int64_t find_origin(const struct supervisor *s) {
  int64_t best = -1;
  struct verdict v, b;
  uint64_t at, best_at = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    if (!is_suspect(s, &s->workers[i])) continue;
    describe_hang(s, i, &v, &at);
    if (best >= 0 && !verdict_outweighs(&v, at, &b, best_at)) continue;
    best = i;
    b = v;
    best_at = at;
  }
  return best;
}

/* The verdict's text. ---------------------------------------------------------------------------------------------- */

static void format_process(const struct worker *w, struct buf *out) {
  const char *in = w->where[0] ? ", in " : "";
  switch (w->ps[0]) {
  case '\0': return;
  case 'T': buf_puts(out, "its process is stopped (state T), as by SIGSTOP"); return;
  case 't': buf_puts(out, "its process is held by a debugger (state t)"); return;
  case 'D': buf_printf(out, "the kernel holds its process (state D%s%s)", in, w->where); return;
  case 'S': buf_printf(out, "its process waits (state S%s%s)", in, w->where); return;
  case 'R': buf_puts(out, "its process runs (state R)"); return;
  default: buf_printf(out, "its process is in state %s%s%s", w->ps, in, w->where);
  }
}

/* The silence in words; "" if the sentence says enough. */
static const char *describe_silence(const struct supervisor *s, const struct worker *w) {
  bool ever = last_sign_ms(s, w) != 0;
  switch (watched_sign(s)) {
  case SIGN_OUTPUT:
    if (is_watched_together(s))
      return ever ? "all workers of this node have stopped printing"
                  : "no worker of this node has printed anything since its start";
    return ever ? "it has stopped printing" : "it has printed nothing since its start";
  case SIGN_FILE:
    if (s->hang.unanswered) return "its file cannot be checked: the file system does not answer";
    return ever ? "its file has stopped changing" : "its file has not changed since its start";
  case SIGN_SDK:
  case SIGN_COUNT: break;
  }
  return ever ? "" : "it has reported no progress since its start";
}

static void append_part(struct buf *out, const char *part) {
  if (!part[0]) return;
  if (out->len) buf_puts(out, "; ");
  buf_puts(out, part);
}

/* "rank 2 stopped 1.1 s later at step 100 (state S, in futex_wait_queue)" */
static void format_other(const struct supervisor *s, int64_t i, int64_t origin, struct buf *out) {
  const struct worker *w = &s->workers[i], *o = &s->workers[origin];
  uint64_t at = silent_since_ms(s, w), first = silent_since_ms(s, o);
  struct buf part = BUF_INIT;
  uint64_t apart = at > first ? at - first : first - at;
  buf_printf(&part, "rank %lld stopped ", (long long)(s->round.rank_base + i));
  if (apart < 50)
    buf_puts(&part, "at the same time");
  else
    buf_printf(&part, "%.1f s %s", (double)apart / 1000, at > first ? "later" : "before");
  if (w->reports_progress && (!o->reports_progress || w->step != o->step))
    buf_printf(&part, " at step %llu", (unsigned long long)w->step);
  if (w->ps[0])
    buf_printf(&part, " (state %s%s%s)", w->ps, w->where[0] && w->ps[0] != 'T' ? ", in " : "",
               w->ps[0] != 'T' ? w->where : "");
  append_part(out, buf_text(&part));
  buf_finish(&part);
}

static void format_others(const struct supervisor *s, int64_t origin, struct buf *out) {
  int n = 0;
  for (int64_t i = 0; i < s->config.workers && !is_watched_together(s); i++)
    if (i != origin && is_suspect(s, &s->workers[i]) && n++ < NAMES_MAX) format_other(s, i, origin, out);
  if (n > NAMES_MAX) {
    char more[48];
    snprintf(more, sizeof more, "and %d more ranks of this node", n - NAMES_MAX);
    append_part(out, more);
  }
  /* A worker that is stopped or in the kernel does not wait for the others. */
  if (s->workers[origin].ps[0] && strchr("TtD", s->workers[origin].ps[0])) return;
  const struct evidence *e = &s->hang.evidence; /* it may tell which rank the others wait for */
  for (size_t i = 0; i < e->n_collectives; i++)
    if (collective_lacks(&e->collectives[i])) return;
  if (e->text && e->text[0]) return;
  /* The others here have all come further, or stopped clearly later. */
  bool first = true;
  const struct worker *o = &s->workers[origin];
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    bool behind = w->reports_progress && o->reports_progress && o->step < w->step;
    if (i != origin && is_suspect(s, w) && !behind && silent_since_ms(s, w) < silent_since_ms(s, o) + TOGETHER_MS)
      first = false;
  }
  if (!first)
    append_part(out, "it is not known which rank the others wait for");
  else if (s->round.world_size > s->config.workers)
    append_part(out, "it is not known whether it waits for a rank of another node");
}

/* Probing. --------------------------------------------------------------------------------------------------------- */

static void start_probe(struct supervisor *s, bool ours) {
  int64_t origin = timeout_ms(s) ? find_origin(s) : -1;
  s->hang.ours = ours;
  s->hang.reported = false;
  s->hang.looking = s->hang.again = s->hang.done = false;
  s->hang.look_ms = UINT64_MAX;
  s->hang.probed_ms = s->now_ms;
  s->hang.stop_by_ms = s->now_ms + SUPERVISOR_PROBE_MS;
  struct supervisor_effect *e = sup_effect(s, SUP_PROBE);
  e->round = (uint32_t)s->round.number;
  e->probe.level = ours ? LOG_WARN : LOG_INFO;
  e->probe.suspect = origin;
  e->probe.evidence_only = s->hang.dead.cause != CAUSE_NONE || verdict_is_collective_timeout(&s->hang.heard);
}

/* A worker of ours, if it says more than the verdict of another node. */
static void report_hang(struct supervisor *s) {
  int64_t origin = timeout_ms(s) ? find_origin(s) : -1;
  struct buf text = BUF_INIT;
  struct verdict v;
  uint64_t at_ms;
  if (origin < 0) return;
  describe_hang(s, origin, &v, &at_ms);
  const struct verdict *heard = &s->hang.heard;
  if (heard->cause != CAUSE_NONE && !verdict_outweighs(&v, at_ms, heard, s->hang.heard_ms)) return;
  format_process(&s->workers[origin], &text);
  append_part(&text, describe_silence(s, &s->workers[origin]));
  format_others(s, origin, &text);
  v.text = buf_text(&text);
  if (s->hang.text) v.evidence = s->hang.text;
  sup_report(s, REPORT_FAILED, &v, at_ms);
  sup_log_failure(s, &v);
  buf_finish(&text);
}

void sup_probed(struct supervisor *s, const struct supervisor_event *ev) {
  if (!is_probing(s)) return;
  struct worker *w = &s->workers[ev->local_rank];
  w->ps[0] = ev->state;
  snprintf(w->where, sizeof w->where, "%s", ev->text ? ev->text : "");
}

/* The answer is there. True: it is accepted, and reported. */
static bool accept_facts(struct supervisor *s) {
  if (s->hang.reported) return true;
  if (!s->hang.again && s->hang.ours && !s->hang.unanswered && s->now_ms > s->hang.probed_ms + FACTS_LATE_MS) {
    s->hang.again = true;
    request_look(s);
  }
  if (s->hang.looking) return false;
  if (s->hang.ours && s->hang.heard.cause == CAUSE_NONE && !sup_any_worker(s, is_hung)) {
    sup_log(s, LOG_WARN, "a worker made no progress for --hang-timeout, and makes progress again");
    sup_hang_end(s);
    plan_look(s);
    return false;
  }
  bool gave_up = s->hang.dead.cause != CAUSE_NONE || verdict_is_collective_timeout(&s->hang.heard);
  s->hang.reported = true;
  struct msg m;
  if (s->hang.text) {
    msg_init(&m, MSG_EVIDENCE);
    m.evidence = s->hang.evidence;
    m.evidence.incarnation = s->round.incarnation;
    m.evidence.round = s->round.number;
    sup_send(s, &m);
  }
  report_dead(s);
  if (!gave_up) report_hang(s);
  return true;
}

static void finish_probe(struct supervisor *s) {
  s->hang.done = true;
  if (accept_facts(s)) sup_stop_trees(s, STOP_ROUND, (uint64_t)s->config.settings.stop_timeout_ms);
}

void sup_probe_facts(struct supervisor *s, const struct supervisor_event *ev) {
  if (is_probing(s)) accept_facts(s);
}

void sup_probe_done(struct supervisor *s, const struct supervisor_event *ev) {
  if (is_probing(s)) finish_probe(s);
}

/* The second look, at a probe whose answer was late. */
static void finish_second_look(struct supervisor *s) {
  s->hang.looking = false;
  s->hang.look_ms = UINT64_MAX;
  if (accept_facts(s) && s->hang.done) sup_stop_trees(s, STOP_ROUND, (uint64_t)s->config.settings.stop_timeout_ms);
}

static void judge(struct supervisor *s, bool answered) {
  s->hang.unanswered = !answered;
  s->hang.looked_ms = s->now_ms;
  if (sup_any_worker(s, is_hung))
    start_probe(s, true);
  else
    plan_look(s);
}

void sup_looked(struct supervisor *s, const struct supervisor_event *ev) {
  if (!is_watching(s) || !s->hang.looking) return;
  if (is_probing(s)) {
    finish_second_look(s);
    return;
  }
  if (ev->held || s->heartbeat.any_suspended) forgive_silence(s, s->now_ms - s->hang.looked_ms);
  judge(s, true);
}

bool sup_hang_gave_up(struct supervisor *s, const struct verdict *v, uint64_t at_ms) {
  if (s->state != SUPERVISOR_RUNNING || !verdict_is_collective_timeout(v) || !sup_any_worker(s, is_working))
    return false;
  if (s->hang.dead.cause != CAUSE_NONE || s->hang.reported) { /* the first one counts */
    sup_report(s, REPORT_FAILED, v, at_ms);
    sup_log_failure(s, v);
    return true;
  }
  verdict_copy(&s->hang.dead, v);
  s->hang.dead_ms = at_ms;
  if (!is_probing(s)) start_probe(s, false);
  return true;
}

bool sup_hang_stop(struct supervisor *s, const struct verdict *v) {
  bool gave_up = s->state == SUPERVISOR_RUNNING && verdict_is_collective_timeout(v) && sup_any_worker(s, is_working);
  if (!gave_up && (v->cause != CAUSE_WORKER_HUNG || !is_watching(s))) return false;
  if (s->hang.heard.cause == CAUSE_NONE && v->node_rank != s->round.node_rank) {
    verdict_copy(&s->hang.heard, v);
    s->hang.heard_ms = s->now_ms - ((uint64_t)v->idle_ms < s->now_ms ? (uint64_t)v->idle_ms : s->now_ms);
  }
  if (!is_probing(s)) start_probe(s, false);
  return true;
}

void sup_hang_tick(struct supervisor *s) {
  if (!is_watching(s) && !is_probing(s)) return;
  if (is_probing(s) && s->hang.looking && s->now_ms >= s->hang.look_ms) {
    finish_second_look(s);
  } else if (s->now_ms >= s->hang.stop_by_ms && !s->hang.looking) {
    finish_probe(s);
  } else if (s->now_ms >= s->hang.look_ms && s->hang.looking) {
    judge(s, false);
  } else if (s->now_ms >= s->hang.look_ms) {
    request_look(s);
  }
}

uint64_t sup_hang_deadline(const struct supervisor *s) {
  if (!is_watching(s) && !is_probing(s)) return UINT64_MAX;
  if (s->hang.looking) return s->hang.look_ms;
  return earliest(s->hang.look_ms, s->hang.stop_by_ms);
}
