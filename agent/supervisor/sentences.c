/* What the user reads. Every sentence of the supervisor that is more than a format string is made here.
 *
 * A failure is told once on each node, and it should be the cause. The first death that a node sees is often an echo: a
 * worker that lost its peer exits before anybody has heard of the peer. So a death here, or what STOP brings, waits a
 * moment for the settled verdict, which mostly comes within milliseconds, and is told itself if that takes longer, or if
 * there is no daemon to settle anything. Another verdict than the one that was told is told again; what dies after it is
 * only counted.
 * The worker's own last lines follow it, indented, because they are what the person at the terminal looks for. */

#include "agent/supervisor/internal.h"

#include <math.h>
#include <string.h>
#include "common/mem.h"

void sup_say(struct supervisor *s, enum log_level level, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  struct supervisor_effect *e = sup_effect(s, SUP_SAY);
  e->level = level;
  e->text = xvasprintf(fmt, ap);
  va_end(ap);
}

static bool same_verdict(const struct verdict *a, const struct verdict *b) {
  return a->cause == b->cause && a->round == b->round && a->node_rank == b->node_rank && a->rank == b->rank &&
         a->pid == b->pid && a->code == b->code;
}

enum { LAST_LINES_MAX = 10, LAST_LINE_MAX = 500 };

/* As it was written, so that a path can be copied; but what would move the cursor or ring the bell is shown escaped. */
static void put_plain(struct buf *out, const char *text, size_t n) {
  for (size_t i = 0; i < n && i < LAST_LINE_MAX; i++) {
    bool control = ((unsigned char)text[i] < 0x20 && text[i] != '\t') || text[i] == 0x7f;
    if (control)
      buf_put_escaped(out, text + i, 1, 1);
    else
      buf_putc(out, text[i]);
  }
  if (n > LAST_LINE_MAX) buf_puts(out, "...");
}

/* The last lines of a worker's stderr, each on a line of its own. */
static void say_last_lines(struct supervisor *s, const char *text) {
  size_t len = strlen(text), begin = len;
  for (int lines = 0; begin > 0; begin--)
    if (text[begin - 1] == '\n' && begin < len && ++lines == LAST_LINES_MAX) break;
  const char *p = text + begin;
  if (begin) sup_say(s, LOG_WARN, "  | ...");
  while (*p) {
    size_t n = strcspn(p, "\n");
    struct buf line = BUF_INIT;
    put_plain(&line, p, n);
    if (n) sup_say(s, LOG_WARN, "  | %s", buf_text(&line));
    buf_finish(&line);
    p += n + (p[n] == '\n');
  }
}

static bool text_is_stderr(enum cause c) {
  return c == CAUSE_WORKER_EXIT || c == CAUSE_WORKER_SIGNAL;
}

/* The driver knows the time, and what the worker has left in files. */
static void told(struct supervisor *s, const struct verdict *v, struct buf *sentence) {
  bool ours = v->round == s->round && v->node_rank >= 0 && v->node_rank == s->node_rank && v->local_rank >= 0;
  struct supervisor_effect *e = sup_effect(s, SUP_TOLD);
  if (text_is_stderr(v->cause) && v->text[0]) buf_printf(sentence, "\n%s", v->text);
  e->text = buf_steal(sentence);
  e->error_text = v->error[0] ? xstrdup(v->error) : NULL;
  e->value = ours ? (uint64_t)v->local_rank : UINT64_MAX;
}

/* The cause, where what failed has waited for a rank that had left without a word: that one is in no verdict. */
static void say_finished(struct supervisor *s, const struct verdict *v) {
  if (!text_is_stderr(v->cause) || v->round != s->round || !s->n_succeeded) return;
  sup_say(s, LOG_WARN, "  before that, %lld of %lld workers here had finished with code 0",
          (long long)s->n_succeeded, (long long)s->config.workers);
}

static void keep_copy(struct verdict *to, const struct verdict *v) {
  struct verdict copy;
  verdict_copy(&copy, v);
  verdict_free(to);
  *to = copy;
}

void sup_say_verdict(struct supervisor *s, const struct verdict *v, const char *before) {
  if (v->cause != CAUSE_NONE) keep_copy(&s->last, v);
  if (v->cause == CAUSE_NONE || same_verdict(v, &s->said)) return;
  struct buf text = BUF_INIT;
  verdict_sentence(v, &text);
  sup_say(s, v->cause == CAUSE_NODE_JOINED ? LOG_INFO : LOG_WARN, "%s%s", before, buf_text(&text));
  if (text_is_stderr(v->cause)) say_last_lines(s, v->text);
  say_finished(s, v);
  told(s, v, &text);
  keep_copy(&s->said, v);
}

static bool has_told(const struct supervisor *s, int64_t round) {
  return s->said.cause != CAUSE_NONE && s->said.round == round;
}

void sup_forget_untold(struct supervisor *s) {
  verdict_free(&s->untold);
  s->tell_ms = UINT64_MAX;
}

void sup_say_untold(struct supervisor *s) {
  if (!has_told(s, s->untold.round)) sup_say_verdict(s, &s->untold, "");
  sup_forget_untold(s);
}

/* Of a worker here, or from STOP. Who dies after the round's first verdict was told mostly dies of it, and says so itself. */
void sup_say_failure(struct supervisor *s, const struct verdict *v) {
  if (s->untold.cause == CAUSE_NONE && !has_told(s, v->round)) {
    verdict_copy(&s->untold, v);
    s->tell_ms = s->now_ms + TELL_AFTER_MS;
    if (s->link != LINK_READY) sup_say_untold(s);
    return;
  }
  struct buf text = BUF_INIT;
  verdict_sentence(v, &text);
  sup_say(s, LOG_DEBUG, "then %s", buf_text(&text));
  buf_finish(&text);
}

static void say_excluded(struct supervisor *s, const char *host) {
  struct buf name = BUF_INIT;
  buf_put_escaped(&name, host, strlen(host), HOST_MAX);
  sup_say(s, LOG_WARN,
          "host %s takes no part any more: %lld of the job's charged failures were there (--exclude-after)",
          buf_text(&name), (long long)s->config.settings.exclude_after);
  buf_finish(&name);
}

void sup_say_settled(struct supervisor *s, const struct settled *settled) {
  const struct verdict *v = &settled->verdict;
  struct buf line = BUF_INIT;
  if (v->echoes && same_verdict(v, &s->said)) /* else it is part of the sentence */
    buf_printf(&line, "%lld other worker%s died with it or after it; ", (long long)v->echoes,
               v->echoes == 1 ? "" : "s");
  if (v->cause == CAUSE_NONE) sup_say_untold(s);
  sup_forget_untold(s);
  sup_say_verdict(s, v, has_told(s, v->round) ? "the round's verdict: " : "");
  if (settled->refilled) buf_puts(&line, "restarts used before are given back; ");
  if (!settled->charged)
    buf_puts(&line, "no restart is charged; forming the next round");
  else
    buf_printf(&line, "restart %lld of %lld", (long long)settled->restarts_used,
               (long long)s->config.settings.max_restarts);
  if (settled->charged && settled->delay_ms)
    buf_printf(&line, ", in %.1f s, because rounds are short", (double)settled->delay_ms / 1000);
  sup_say(s, LOG_INFO, "%s", buf_text(&line));
  buf_finish(&line);
  if (settled->excluded[0]) say_excluded(s, settled->excluded);
}

void sup_say_start(struct supervisor *s, const struct start *start) {
  struct buf ranks = BUF_INIT;
  int64_t last = start->rank_base + s->config.workers - 1;
  if (last > start->rank_base)
    buf_printf(&ranks, "ranks %lld-%lld", (long long)start->rank_base, (long long)last);
  else
    buf_printf(&ranks, "rank %lld", (long long)last);
  sup_say(s, LOG_INFO, "round %lld: %lld node%s, %lld worker%s; this is node %lld with %s, node 0 is %s (%s)",
          (long long)start->round, (long long)start->nodes, start->nodes == 1 ? "" : "s",
          (long long)start->world_size, start->world_size == 1 ? "" : "s", (long long)start->node_rank,
          buf_text(&ranks), start->head_host, start->head_addr);
  buf_finish(&ranks);
}

void sup_say_status(struct supervisor *s) {
  struct buf line = BUF_INIT;
  double rate = 0;
  const struct worker *least = sup_slowest(s, &rate);
  buf_printf(&line, "round %lld, %lld node%s, %lld worker%s", (long long)s->round, (long long)s->round_nodes,
             s->round_nodes == 1 ? "" : "s", (long long)s->world_size, s->world_size == 1 ? "" : "s");
  if (least && least->of)
    buf_printf(&line, ", step %llu of %llu", (unsigned long long)least->step, (unsigned long long)least->of);
  else if (least)
    buf_printf(&line, ", step %llu", (unsigned long long)least->step);
  if (least && isfinite(least->loss)) buf_printf(&line, ", loss %.6g", least->loss);
  if (rate > 0) buf_printf(&line, ", %.0f samples/s here", rate);
  sup_effect(s, SUP_STATUS)->text = buf_steal(&line);
}
