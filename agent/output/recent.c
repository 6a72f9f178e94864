/* SPDX-License-Identifier: Apache-2.0 */
/* Each worker has its own share, so that one that prints much does not displace the last words of a quiet one. A share
 * is two buffers of half its size. Lines go to the newer one; when it is full the older one is forgotten. So nothing is
 * ever moved, and at least half of the share is kept. All lines of an agent are numbered, which puts those of several
 * workers in order again. */

#include "agent/output/recent.h"

#include <stdlib.h>
#include "common/mem.h"

struct share {
  struct buf old, new;
  uint64_t last;         /* the number of its last line; 0: none yet */
  uint64_t last_of_old;  /* of `old` */
  uint64_t forgotten_to; /* the number of the last line that was dropped; 0: none was */
};

struct recent {
  size_t n, half;
  uint64_t next; /* the number of the next line */
  struct share v[];
};

struct recent *recent_create(size_t workers) {
  struct recent *r = xcalloc(1, sizeof(*r) + workers * sizeof(r->v[0]));
  size_t each = RECENT_BYTES / (workers ? workers : 1);
  r->n = workers;
  r->half = (each > RECENT_WORKER_MIN ? each : RECENT_WORKER_MIN) / 2;
  r->next = 1;
  return r;
}

void recent_destroy(struct recent *r) {
  for (size_t i = 0; r && i < r->n; i++) {
    buf_finish(&r->v[i].old);
    buf_finish(&r->v[i].new);
  }
  free(r);
}

void recent_add(struct recent *r, size_t worker, const struct worker_line *line) {
  struct share *s = &r->v[worker];
  struct worker_line l = *line;
  if (l.text_len > WORKER_LINE_TEXT_MAX) l.text_len = WORKER_LINE_TEXT_MAX;
  if (l.prefix_len > WORKER_LINE_PREFIX_MAX) l.prefix_len = WORKER_LINE_PREFIX_MAX;
  if (s->new.len + WORKER_LINE_HEADER + l.prefix_len + l.text_len > r->half) {
    /* Makes room for a line. */
    struct buf b = s->old;
    s->forgotten_to = s->last_of_old;
    s->old = s->new;
    s->last_of_old = s->last;
    buf_clear(&b);
    s->new = b;
  }
  s->last = l.number = r->next++;
  worker_line_put(&s->new, &l);
}

/* Reading. --------------------------------------------------------------------------------------------------------- */

/* The lines of one worker that are asked for, one after the other. */
struct reader {
  const struct share *of;
  bool in_new;
  size_t at;
  struct worker_line line; /* the current one */
  long size;               /* of it; 0: no line is left */
};

/* Moves to the first wanted line at or behind the place. */
static void settle(struct reader *d, const struct recent_question *q) {
  for (;;) {
    const struct buf *b = d->in_new ? &d->of->new : &d->of->old;
    d->size = d->at < b->len ? worker_line_get(b->data + d->at, b->len - d->at, &d->line, NULL) : 0;
    const struct worker_line *l = &d->line;
    bool wanted = d->size > 0 && l->number >= q->from && l->round >= q->from_round;
    if (wanted && (q->rank < 0 || l->rank == (uint64_t)q->rank)) return;
    if (d->size == 0 && d->in_new) return;
    d->at = d->size ? d->at + (size_t)d->size : 0;
    if (!d->size) d->in_new = true;
  }
}

static void begin(struct reader *d, const struct share *of, const struct recent_question *q) {
  *d = (struct reader){.of = of, .in_new = of->last_of_old < q->from};
  settle(d, q);
}

static void advance(struct reader *d, const struct recent_question *q) {
  d->at += (size_t)d->size;
  settle(d, q);
}

static int by_number(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* The number of the first of the last q->tail lines. */
static uint64_t tail_from(const struct recent *r, const struct recent_question *q) {
  uint64_t *numbers = NULL, from = r->next;
  size_t n = 0, cap = 0, want = (size_t)q->tail;
  for (size_t i = 0; want && i < r->n; i++) {
    struct reader d;
    for (begin(&d, &r->v[i], q); d.size; advance(&d, q)) {
      if (n == cap) numbers = xrealloc(numbers, (cap = cap ? 2 * cap : 1024) * sizeof(*numbers));
      numbers[n++] = d.line.number;
    }
  }
  if (n) qsort(numbers, n, sizeof(*numbers), by_number);
  if (want) from = n > want ? numbers[n - want] : q->from;
  free(numbers);
  return from;
}

void recent_read(const struct recent *r, const struct recent_question *asked, struct buf *out,
                 struct recent_answer *a) {
  struct recent_question q = *asked;
  struct reader *v = xcalloc(r->n + 1, sizeof(*v)), *d;
  size_t before = out->len;
  if (q.tail >= 0) q.from = tail_from(r, &q);
  *a = (struct recent_answer){.next = r->next};
  for (size_t i = 0; i < r->n; i++) {
    begin(&v[i], &r->v[i], &q);
    bool has_of_rank = q.rank < 0 || v[i].size; /* a share may have lines of several ranks, of several rounds */
    if (has_of_rank && r->v[i].forgotten_to && r->v[i].forgotten_to >= q.from) a->lost = true;
  }
  for (;;) {
    d = NULL;
    for (size_t i = 0; i < r->n; i++)
      if (v[i].size && (!d || v[i].line.number < d->line.number)) d = &v[i];
    if (!d) break;
    if (out->len > before && out->len - before + (size_t)d->size > q.max) {
      a->next = d->line.number;
      a->more = true;
      break;
    }
    worker_line_put(out, &d->line);
    advance(d, &q);
  }
  free(v);
}
