/* One voice out of many agents.
 *
 * Workers' lines are shown as they come: the agents have put their ranks in front. Of the agents' own lines a person wants to read one
 * job's, not sixty-four copies. The first host's agent says everything; the others are started with --quiet and say only
 * warnings and errors. Many of these are the same on all hosts, the verdict first of all, and are shown once: as the first host's, if it says
 * them too, which is why the others' wait for a moment. What only some hosts say has the name of the first of them in front:
 *
 *     rdzv-agent: n3: rank 12 (local 0) ... this agent's own
 *
 * A line that was shown is forgotten after a few seconds; then it is news again. An agent that repeats itself is shown
 * repeating itself: only other hosts' copies are dropped. */

#include "agent/launch/line_merger.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

static const char own[] = "rdzv-agent: ";

struct voice {
  uint32_t index;
  uint64_t at_ms; /* shown: when; held: until when */
  size_t len;
  char *line;
};

struct lines_kept {
  struct voice v[VOICES_MAX];
  size_t n;
};

struct launch_voices {
  struct launch_voices_options o;
  struct lines_kept shown, held;
  bool leaving;
};

struct launch_voices *launch_voices_create(const struct launch_voices_options *o) {
  struct launch_voices *v = xcalloc(1, sizeof(*v));
  v->o = *o;
  return v;
}

static void drop_first(struct lines_kept *k, size_t n) {
  for (size_t i = 0; i < n; i++) free(k->v[i].line);
  memmove(k->v, k->v + n, (k->n - n) * sizeof(*k->v));
  k->n -= n;
}

static void keep(struct lines_kept *k, uint32_t index, const char *line, size_t len, uint64_t at_ms) {
  if (k->n == VOICES_MAX) drop_first(k, 1);
  k->v[k->n++] = (struct voice){.index = index, .at_ms = at_ms, .len = len, .line = xmemdup(line, len)};
}

static struct voice *find(struct lines_kept *k, const char *line, size_t len) {
  for (size_t i = 0; i < k->n; i++)
    if (k->v[i].len == len && memcmp(k->v[i].line, line, len) == 0) return &k->v[i];
  return NULL;
}

static void forget(struct lines_kept *k, const char *line, size_t len) {
  struct voice *at = find(k, line, len);
  if (!at) return;
  free(at->line);
  k->n--;
  memmove(at, at + 1, (size_t)(k->v + k->n - at) * sizeof(*at));
}

static void show(struct launch_voices *v, const struct voice *x, uint64_t now_ms) {
  struct buf line = BUF_INIT;
  const size_t n = sizeof(own) - 1;
  buf_puts(&line, own);
  buf_puts(&line, v->o.host_of(v->o.ctx, x->index));
  buf_puts(&line, ": ");
  buf_append(&line, x->line + n, x->len - n);
  v->o.emit(v->o.ctx, 2, buf_text(&line), line.len);
  buf_finish(&line);
  keep(&v->shown, x->index, x->line, x->len, now_ms);
}

static void show_first(struct launch_voices *v, uint64_t now_ms) {
  show(v, &v->held.v[0], now_ms);
  drop_first(&v->held, 1);
}

static void age(struct launch_voices *v, uint64_t now_ms) {
  size_t n = 0;
  while (n < v->shown.n && v->shown.v[n].at_ms + VOICES_REMEMBER_MS <= now_ms) n++;
  if (n) drop_first(&v->shown, n);
}

void launch_voices_leaving(struct launch_voices *v) {
  v->leaving = true;
}

static bool is_leaving(const char *line, size_t len) {
  static const char words[] = "rdzv-agent: SIGTERM: leaving with exit code ";
  return len >= sizeof(words) && memcmp(line, words, sizeof(words) - 1) == 0;
}

void launch_voices_line(struct launch_voices *v, uint32_t index, int std, const char *line, size_t len,
                        uint64_t now_ms) {
  age(v, now_ms);
  if (std != 2 || len < sizeof(own) || memcmp(line, own, sizeof(own) - 1) != 0) {
    v->o.emit(v->o.ctx, std, line, len);
    return;
  }
  struct voice *before = find(&v->shown, line, len);
  if ((before && before->index != index) || (v->leaving && is_leaving(line, len))) return;
  if (index == 0) {
    forget(&v->held, line, len);
    v->o.emit(v->o.ctx, std, line, len);
    keep(&v->shown, index, line, len, now_ms);
    return;
  }
  before = find(&v->held, line, len);
  if (before && before->index != index) return;
  if (v->held.n == VOICES_MAX) show_first(v, now_ms);
  keep(&v->held, index, line, len, now_ms + VOICES_HOLD_MS);
}

void launch_voices_tick(struct launch_voices *v, uint64_t now_ms) {
  while (v->held.n && v->held.v[0].at_ms <= now_ms) show_first(v, now_ms);
}

uint64_t launch_voices_deadline(const struct launch_voices *v) {
  return v->held.n ? v->held.v[0].at_ms : UINT64_MAX;
}

void launch_voices_flush(struct launch_voices *v) {
  while (v->held.n) show_first(v, v->held.v[0].at_ms);
}

void launch_voices_destroy(struct launch_voices *v) {
  if (!v) return;
  drop_first(&v->shown, v->shown.n);
  drop_first(&v->held, v->held.n);
  free(v);
}
