/* SPDX-License-Identifier: Apache-2.0 */
/* One log out of many agents' lines.
 *
 * Workers' lines are shown as they come, since agents have added the ranks. Of the agents' own lines a person wants
 * one copy. The first host's agent logs everything; the others run with --quiet and log only warnings and errors. Many
 * of these are the same on all hosts, such as the verdict, and are shown once: as the first host's, if it logs them
 * too, so the others' wait for a moment. A line that only some hosts log gets the name of the first of them:
 *
 *     rdzv-agent: n3: rank 12 (local 0) ... the agent's own line
 *
 * A shown line is forgotten after a few seconds and may then be shown again. An agent that repeats itself is shown
 * repeating itself; only copies of other hosts are dropped. */

#include "agent/launch/line_merger.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

static const char own[] = "rdzv-agent: ";

struct kept_line {
  uint32_t index;
  uint64_t at_ms; /* shown: when; held: until when */
  size_t len;
  char *line;
};

struct kept_lines {
  struct kept_line v[MERGER_MAX];
  size_t n;
};

struct line_merger {
  struct line_merger_options o;
  struct kept_lines shown, held;
  bool leaving;
};

struct line_merger *line_merger_create(const struct line_merger_options *o) {
  struct line_merger *v = xcalloc(1, sizeof(*v));
  v->o = *o;
  return v;
}

static void drop_first(struct kept_lines *k, size_t n) {
  for (size_t i = 0; i < n; i++) free(k->v[i].line);
  memmove(k->v, k->v + n, (k->n - n) * sizeof(*k->v));
  k->n -= n;
}

static void keep_line(struct kept_lines *k, uint32_t index, const char *line, size_t len, uint64_t at_ms) {
  if (k->n == MERGER_MAX) drop_first(k, 1);
  k->v[k->n++] = (struct kept_line){.index = index, .at_ms = at_ms, .len = len, .line = xmemdup(line, len)};
}

static struct kept_line *find_line(struct kept_lines *k, const char *line, size_t len) {
  for (size_t i = 0; i < k->n; i++)
    if (k->v[i].len == len && memcmp(k->v[i].line, line, len) == 0) return &k->v[i];
  return NULL;
}

static void show_first(struct line_merger *v, uint64_t now_ms) {
  struct buf line = BUF_INIT;
  const size_t n = sizeof(own) - 1;
  buf_puts(&line, own);
  buf_puts(&line, v->o.host_of(v->o.ctx, v->held.v[0].index));
  buf_puts(&line, ": ");
  buf_append(&line, v->held.v[0].line + n, v->held.v[0].len - n);
  v->o.emit(v->o.ctx, 2, buf_text(&line), line.len);
  buf_finish(&line);
  keep_line(&v->shown, v->held.v[0].index, v->held.v[0].line, v->held.v[0].len, now_ms);
  drop_first(&v->held, 1);
}

void line_merger_hide_leaving(struct line_merger *v) {
  v->leaving = true;
}

void line_merger_add(struct line_merger *v, uint32_t index, int std, const char *line, size_t len, uint64_t now_ms) {
  size_t n = 0;
  while (n < v->shown.n && v->shown.v[n].at_ms + MERGER_REMEMBER_MS <= now_ms) n++;
  if (n) drop_first(&v->shown, n);
  if (std != 2 || len < sizeof(own) || memcmp(line, own, sizeof(own) - 1) != 0) {
    v->o.emit(v->o.ctx, std, line, len);
    return;
  }
  static const char leaving[] = "rdzv-agent: SIGTERM: leaving with exit code ";
  struct kept_line *before = find_line(&v->shown, line, len);
  if (before && before->index != index) return;
  if (v->leaving && len >= sizeof(leaving) && memcmp(line, leaving, sizeof(leaving) - 1) == 0) return;
  if (index == 0) {
    struct kept_line *at = find_line(&v->held, line, len);
    if (at) {
      free(at->line);
      v->held.n--;
      memmove(at, at + 1, (size_t)(v->held.v + v->held.n - at) * sizeof(*at));
    }
    v->o.emit(v->o.ctx, std, line, len);
    keep_line(&v->shown, index, line, len, now_ms);
    return;
  }
  before = find_line(&v->held, line, len);
  if (before && before->index != index) return;
  if (v->held.n == MERGER_MAX) show_first(v, now_ms);
  keep_line(&v->held, index, line, len, now_ms + MERGER_HOLD_MS);
}

void line_merger_tick(struct line_merger *v, uint64_t now_ms) {
  while (v->held.n && v->held.v[0].at_ms <= now_ms) show_first(v, now_ms);
}

uint64_t line_merger_deadline(const struct line_merger *v) {
  return v->held.n ? v->held.v[0].at_ms : UINT64_MAX;
}

void line_merger_flush(struct line_merger *v) {
  while (v->held.n) show_first(v, v->held.v[0].at_ms);
}

void line_merger_destroy(struct line_merger *v) {
  if (!v) return;
  drop_first(&v->shown, v->shown.n);
  drop_first(&v->held, v->held.n);
  free(v);
}
