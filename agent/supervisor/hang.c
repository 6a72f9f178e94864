/* Hangs: a worker that lives and makes no progress.
 *
 *   look (once a second, or more often where the timeout is short) -> signs -> LOOKED: is anybody's time over?
 *        -> probe: what are their processes doing? -> facts: FAILED, worker-hung -> stacks, 5 s at most -> the trees are stopped
 *
 * Only a look is followed by a judgement, never a timer alone: what workers have said may still lie in a socket. That holds for the probe's
 * answer, too: where it is late, we may have been stopped since, and look once more. And time in
 * which this agent could not look (it was stopped, the machine slept, the terminal took no output) is nobody's silence: all
 * workers are given it back.
 *
 * Who hangs first? In a collective all ranks stop when one does, at the same step and within milliseconds, so time alone
 * says little. A process that is stopped, or held by the kernel, is not waiting for the others; a rank that is a step behind
 * is whom they wait for. verdict_outweighs compares just that, here among the workers of one node and at the
 * daemon among nodes. Where neither tells, the verdict names the earliest and says that it cannot be told.
 *
 * The other nodes hear of it by STOP. They look at their own workers before they stop them, because the origin may be
 * theirs: its time was over a little later, or its state tells more than its time. Then they report it, and it wins. */

#include "agent/supervisor/internal.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"

enum {
  LOOK_MIN_MS = 50,
  LOOK_MAX_MS = 1000,
  LOOK_PATIENCE_MS = 3000, /* a file system that does not answer by then has no sign to show */
  LATE_MS = 500,           /* a look that comes later than this: we could not run */
  FACTS_LATE_MS = 50,      /* so with facts, which take a few ms; in doubt another look is cheap */
  NAMES_MAX = 3,           /* others that are named in the verdict */
  TOGETHER_MS = 1000,      /* who stops within this of each other may have stopped in any order */
};

static uint64_t timeout_ms(const struct supervisor *s) {
  return (uint64_t)s->config.settings.hang_timeout_ms;
}

static bool is_watching(const struct supervisor *s) {
  return timeout_ms(s) && s->state == SUPERVISOR_RUNNING;
}

static bool is_probing(const struct supervisor *s) {
  return is_watching(s) && s->hang.stop_by_ms != UINT64_MAX;
}

/* By what workers are watched. ------------------------------------------------------------------------------------- */

static bool lives(const struct worker *w) {
  return w->spawned && !w->exited && !w->gone && !w->parked;
}

static bool any_told(const struct supervisor *s) {
  for (int64_t i = 0; i < s->config.workers; i++)
    if (s->workers[i].told_progress) return true;
  return false;
}

/* All workers of this node as one: none of them prints. */
static bool is_shared(const struct supervisor *s) {
  return s->config.hang_watch == HANG_AUTO && !any_told(s);
}

static enum hang_sign sign_of(const struct supervisor *s) {
  switch (s->config.hang_watch) {
  case HANG_OUTPUT: return SIGN_OUTPUT;
  case HANG_FILE: return SIGN_FILE;
  case HANG_AUTO: return is_shared(s) ? SIGN_OUTPUT : SIGN_SDK;
  case HANG_SDK: break;
  }
  return SIGN_SDK;
}

static bool is_watched(const struct supervisor *s, const struct worker *w) {
  if (!lives(w)) return false;
  if (s->config.hang_watch != HANG_AUTO) return true;
  return is_shared(s) ? s->node_rank == 0 : w->told_progress;
}

/* The last sign of it; 0: none since it was started. */
static uint64_t sign_ms(const struct supervisor *s, const struct worker *w) {
  enum hang_sign sign = sign_of(s);
  uint64_t last = w->sign_ms[sign];
  for (int64_t i = 0; is_shared(s) && i < s->config.workers; i++)
    if (s->workers[i].sign_ms[sign] > last) last = s->workers[i].sign_ms[sign];
  return last;
}

/* When its silence began. */
static uint64_t silent_ms(const struct supervisor *s, const struct worker *w) {
  uint64_t last = sign_ms(s, w);
  return last > w->begun_ms ? last : w->begun_ms;
}

/* Starting takes longer than a step. That it is over is told by progress, but not by output: programs print while they start. */
static uint64_t over_ms(const struct supervisor *s, const struct worker *w) {
  uint64_t last = sign_ms(s, w), start = w->begun_ms + (uint64_t)s->config.hang_start_ms;
  if (!is_watched(s, w)) return UINT64_MAX;
  if (!last) return start;
  uint64_t over = last + timeout_ms(s);
  return sign_of(s) == SIGN_OUTPUT && over < start ? start : over;
}

static bool is_hung(const struct supervisor *s, const struct worker *w) {
  return s->now_ms >= over_ms(s, w);
}

static bool any_hung(const struct supervisor *s) {
  for (int64_t i = 0; i < s->config.workers; i++)
    if (is_hung(s, &s->workers[i])) return true;
  return false;
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

static uint64_t period_ms(const struct supervisor *s) {
  uint64_t eighth = timeout_ms(s) / 8;
  return eighth < LOOK_MIN_MS ? LOOK_MIN_MS : eighth > LOOK_MAX_MS ? LOOK_MAX_MS : eighth;
}

static void plan_look(struct supervisor *s) {
  uint64_t at = s->now_ms + period_ms(s);
  for (int64_t i = 0; i < s->config.workers; i++) {
    uint64_t over = over_ms(s, &s->workers[i]);
    if (over > s->now_ms && over < at) at = over;
  }
  s->hang.looking = false;
  s->hang.look_ms = at;
}

static void give_back(struct supervisor *s, uint64_t ms) {
  for (int64_t i = 0; i < s->config.workers; i++) {
    struct worker *w = &s->workers[i];
    w->begun_ms += ms;
    for (int k = 0; k < SIGN_COUNT; k++)
      if (w->sign_ms[k]) w->sign_ms[k] = w->sign_ms[k] + ms < s->now_ms ? w->sign_ms[k] + ms : s->now_ms;
    if (w->begun_ms > s->now_ms) w->begun_ms = s->now_ms;
  }
}

static void look(struct supervisor *s) {
  uint64_t late =
      s->hang.look_ms < s->now_ms ? s->now_ms - s->hang.look_ms : 0; /* none was planned: not late */
  if (late > LATE_MS) give_back(s, late);
  s->hang.looking = true;
  s->hang.look_ms = s->now_ms + LOOK_PATIENCE_MS;
  sup_effect(s, SUP_LOOK)->round = (uint32_t)s->round;
}

/* Once: whoever has set a timeout wants to know when it counts, above all where it does not count yet. */
static void say_how(struct supervisor *s) {
  double start_s = (double)s->config.hang_start_ms / 1000, hang_s = (double)timeout_ms(s) / 1000;
  static const char *const what[] = {
      [HANG_SDK] = "a worker that tells no progress through rdzv.h",
      [HANG_OUTPUT] = "a worker that prints nothing",
      [HANG_FILE] = "a worker whose file (--hang-watch) does not change",
      [HANG_AUTO] = "silence of all workers here",
  };
  if (s->config.hang_watch == HANG_AUTO && s->node_rank != 0)
    sup_say(s, LOG_INFO,
            "hangs: a worker here is watched once it tells progress through rdzv.h (--hang-watch)");
  else if (s->config.hang_watch == HANG_OUTPUT || s->config.hang_watch == HANG_AUTO)
    sup_say(s, LOG_INFO,
            "hangs: %s for %g s ends the round (--hang-timeout), not before it is %g s old "
            "(--hang-start-timeout)%s",
            what[s->config.hang_watch], hang_s, start_s,
            s->config.hang_watch == HANG_AUTO
                ? "; a worker that tells progress through rdzv.h is watched by that"
                : "");
  else
    sup_say(s, LOG_INFO,
            "hangs: %s for %g s ends the round (--hang-timeout); its start has %g s (--hang-start-timeout)",
            what[s->config.hang_watch], hang_s, start_s);
}

void sup_hang_begin(struct supervisor *s) {
  sup_hang_end(s);
  s->hang.looked_ms = s->now_ms;
  if (!timeout_ms(s)) return;
  plan_look(s);
  if (s->rounds == 1) say_how(s);
}

void sup_hang_end(struct supervisor *s) {
  s->hang.looking = s->hang.ours = s->hang.reported = false;
  s->hang.look_ms = s->hang.stop_by_ms = UINT64_MAX;
  verdict_free(&s->hang.heard);
}

void sup_hang_sign(struct supervisor *s, uint32_t round, uint32_t local_rank, enum hang_sign sign,
                   uint64_t when_ms) {
  if (round != s->round || local_rank >= s->config.workers || when_ms > s->now_ms) return;
  struct worker *w = &s->workers[local_rank];
  if (when_ms > w->sign_ms[sign]) w->sign_ms[sign] = when_ms;
}

/* Whom it is. ------------------------------------------------------------------------------------------------------ */

static void describe(const struct supervisor *s, int64_t local_rank, struct verdict *v, uint64_t *at_ms) {
  const struct worker *w = &s->workers[local_rank];
  sup_describe_worker(s, (uint32_t)local_rank, v);
  *at_ms = silent_ms(s, w);
  v->cause = CAUSE_WORKER_HUNG;
  v->code = EXIT_CODE_HUNG;
  v->idle_ms = (int64_t)(s->now_ms - *at_ms);
  v->state = w->ps;
}

/* Whose time is over; and whose will not come any more, seeing what the others' silence has led us to. */
static bool is_suspect(const struct supervisor *s, const struct worker *w) {
  bool quiet = lives(w) && s->now_ms - silent_ms(s, w) >= timeout_ms(s) / 2;
  return is_hung(s, w) || (quiet && (is_watched(s, w) || w->ps[0] == 'T' || w->ps[0] == 't'));
}

/* The local rank that is named; -1: nobody hangs here. */
static int64_t find_origin(const struct supervisor *s) {
  int64_t best = -1;
  struct verdict v, b;
  uint64_t at, best_at = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    if (!is_suspect(s, &s->workers[i])) continue;
    describe(s, i, &v, &at);
    if (best >= 0 && !verdict_outweighs(&v, at, &b, best_at)) continue;
    best = i;
    b = v;
    best_at = at;
  }
  return best;
}

/* What is said of it. ---------------------------------------------------------------------------------------------- */

static void put_process(const struct worker *w, struct buf *out) {
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

/* Of what is silent; "" where the sentence says enough. */
static const char *silence(const struct supervisor *s, const struct worker *w) {
  bool ever = sign_ms(s, w) != 0;
  switch (sign_of(s)) {
  case SIGN_OUTPUT:
    if (is_shared(s))
      return ever ? "no worker of this node prints any more"
                  : "no worker of this node has printed anything since its start";
    return ever ? "it prints no more" : "it has printed nothing since its start";
  case SIGN_FILE:
    if (s->hang.unanswered) return "its file cannot be looked at: the file system does not answer";
    return ever ? "its file changes no more" : "its file has not changed since its start";
  case SIGN_SDK:
  case SIGN_COUNT: break;
  }
  return ever ? "" : "it has told no progress since its start";
}

static void put_part(struct buf *out, const char *part) {
  if (!part[0]) return;
  if (out->len) buf_puts(out, "; ");
  buf_puts(out, part);
}

/* "rank 2 stopped 1.1 s later at step 100 (state S, in futex_wait_queue)" */
static void put_other(const struct supervisor *s, int64_t i, int64_t origin, struct buf *out) {
  const struct worker *w = &s->workers[i], *o = &s->workers[origin];
  uint64_t at = silent_ms(s, w), first = silent_ms(s, o);
  struct buf part = BUF_INIT;
  uint64_t apart = at > first ? at - first : first - at;
  buf_printf(&part, "rank %lld stopped ", (long long)(s->rank_base + i));
  if (apart < 50)
    buf_puts(&part, "at the same time");
  else
    buf_printf(&part, "%.1f s %s", (double)apart / 1000, at > first ? "later" : "before");
  if (w->told_progress && (!o->told_progress || w->step != o->step))
    buf_printf(&part, " at step %llu", (unsigned long long)w->step);
  if (w->ps[0])
    buf_printf(&part, " (state %s%s%s)", w->ps, w->where[0] && w->ps[0] != 'T' ? ", in " : "",
               w->ps[0] != 'T' ? w->where : "");
  put_part(out, buf_text(&part));
  buf_finish(&part);
}

/* Something tells that it is not waiting for the others. */
static bool is_held(const struct worker *w) {
  return w->ps[0] && strchr("TtD", w->ps[0]);
}

/* The others here have all come further, or stopped clearly later. */
static bool is_first(const struct supervisor *s, int64_t origin) {
  const struct worker *o = &s->workers[origin];
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (i == origin || !is_suspect(s, w)) continue;
    bool behind = w->told_progress && o->told_progress && o->step < w->step;
    if (!behind && silent_ms(s, w) < silent_ms(s, o) + TOGETHER_MS) return false;
  }
  return true;
}

static void put_others(const struct supervisor *s, int64_t origin, struct buf *out) {
  int n = 0;
  for (int64_t i = 0; i < s->config.workers && !is_shared(s); i++)
    if (i != origin && is_suspect(s, &s->workers[i]) && n++ < NAMES_MAX) put_other(s, i, origin, out);
  if (n > NAMES_MAX) {
    char more[48];
    snprintf(more, sizeof more, "and %d more ranks of this node", n - NAMES_MAX);
    put_part(out, more);
  }
  if (is_held(&s->workers[origin])) return;
  if (!is_first(s, origin))
    put_part(out, "which rank the others wait for cannot be told");
  else if (s->world_size > s->config.workers)
    put_part(out, "whether it waits for a rank of another node cannot be told");
}

static void put_text(const struct supervisor *s, int64_t origin, struct buf *out) {
  put_process(&s->workers[origin], out);
  put_part(out, silence(s, &s->workers[origin]));
  put_others(s, origin, out);
}

/* Probing. --------------------------------------------------------------------------------------------------------- */

static void probe(struct supervisor *s, bool ours) {
  int64_t origin = find_origin(s);
  s->hang.ours = ours;
  s->hang.reported = false;
  s->hang.looking = s->hang.again = s->hang.done = false;
  s->hang.look_ms = UINT64_MAX;
  s->hang.probed_ms = s->now_ms;
  s->hang.stop_by_ms = s->now_ms + SUPERVISOR_PROBE_MS;
  struct supervisor_effect *e = sup_effect(s, SUP_PROBE);
  e->round = (uint32_t)s->round;
  e->level = ours ? LOG_WARN : LOG_INFO;
  e->value = origin >= 0 ? (uint64_t)origin : UINT64_MAX;
}

static bool outweighs_heard(const struct supervisor *s, const struct verdict *v, uint64_t at_ms) {
  const struct verdict *h = &s->hang.heard;
  return h->cause == CAUSE_NONE || verdict_outweighs(v, at_ms, h, s->hang.heard_ms);
}

/* One of ours, where it tells more than what was heard. */
static void report(struct supervisor *s) {
  int64_t origin = find_origin(s);
  struct buf text = BUF_INIT;
  struct verdict v;
  uint64_t at_ms;
  s->hang.reported = true;
  if (origin < 0) return;
  describe(s, origin, &v, &at_ms);
  if (!outweighs_heard(s, &v, at_ms)) return;
  put_text(s, origin, &text);
  v.text = buf_text(&text);
  sup_report(s, REPORT_FAILED, &v, at_ms);
  sup_say_failure(s, &v);
  buf_finish(&text);
}

/* While we looked at it, it went on. */
static bool call_off(struct supervisor *s) {
  if (!s->hang.ours || s->hang.heard.cause != CAUSE_NONE || any_hung(s)) return false;
  sup_say(s, LOG_WARN, "a worker made no progress for --hang-timeout, but goes on now");
  sup_hang_end(s);
  plan_look(s);
  return true;
}

void sup_hang_probed(struct supervisor *s, const struct supervisor_event *ev) {
  if (!is_probing(s) || ev->round != s->round || ev->local_rank >= s->config.workers) return;
  struct worker *w = &s->workers[ev->local_rank];
  w->ps[0] = (char)ev->error;
  snprintf(w->where, sizeof w->where, "%s", ev->text ? ev->text : "");
}

/* The answer is there. True: it is believed, and told. */
static bool believe(struct supervisor *s) {
  if (s->hang.reported) return true;
  if (!s->hang.again && s->hang.ours && !s->hang.unanswered &&
      s->now_ms > s->hang.probed_ms + FACTS_LATE_MS) {
    s->hang.again = true;
    look(s);
  }
  if (s->hang.looking || call_off(s)) return false;
  report(s);
  return true;
}

static void conclude(struct supervisor *s) {
  sup_stop_trees(s, STOP_ROUND, (uint64_t)s->config.settings.stop_timeout_ms);
}

void sup_hang_facts(struct supervisor *s, const struct supervisor_event *ev) {
  if (is_probing(s) && ev->round == s->round) believe(s);
}

void sup_hang_probe_done(struct supervisor *s, const struct supervisor_event *ev) {
  if (!is_probing(s) || ev->round != s->round) return;
  s->hang.done = true;
  if (believe(s)) conclude(s);
}

/* The second look, at a probe whose answer was late. */
static void looked_again(struct supervisor *s) {
  s->hang.looking = false;
  s->hang.look_ms = UINT64_MAX;
  if (believe(s) && s->hang.done) conclude(s);
}

void sup_hang_looked(struct supervisor *s, const struct supervisor_event *ev) {
  if (!is_watching(s) || ev->round != s->round || !s->hang.looking) return;
  if (is_probing(s)) {
    looked_again(s);
    return;
  }
  s->hang.unanswered = false;
  if (ev->held) give_back(s, s->now_ms - s->hang.looked_ms);
  s->hang.looked_ms = s->now_ms;
  if (any_hung(s))
    probe(s, true);
  else
    plan_look(s);
}

bool sup_hang_stop(struct supervisor *s, const struct verdict *v) {
  if (v->cause != CAUSE_WORKER_HUNG || !is_watching(s)) return false;
  if (s->hang.heard.cause == CAUSE_NONE && v->node_rank != s->node_rank) {
    verdict_copy(&s->hang.heard, v);
    s->hang.heard_ms = s->now_ms - ((uint64_t)v->idle_ms < s->now_ms ? (uint64_t)v->idle_ms : s->now_ms);
  }
  if (!is_probing(s)) probe(s, false);
  return true;
}

void sup_hang_tick(struct supervisor *s) {
  if (!is_watching(s)) return;
  if (is_probing(s) && s->hang.looking && s->now_ms >= s->hang.look_ms) {
    looked_again(s);
  } else if (s->now_ms >= s->hang.stop_by_ms && !s->hang.looking) {
    sup_hang_probe_done(s, &(struct supervisor_event){.round = (uint32_t)s->round});
  } else if (s->now_ms >= s->hang.look_ms && s->hang.looking) {
    s->hang.unanswered = true;
    s->hang.looked_ms = s->now_ms;
    if (any_hung(s))
      probe(s, true);
    else
      plan_look(s);
  } else if (s->now_ms >= s->hang.look_ms) {
    look(s);
  }
}

uint64_t sup_hang_deadline(const struct supervisor *s) {
  if (!is_watching(s)) return UINT64_MAX;
  if (s->hang.looking) return s->hang.look_ms;
  return s->hang.look_ms < s->hang.stop_by_ms ? s->hang.look_ms : s->hang.stop_by_ms;
}
