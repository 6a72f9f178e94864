/* What the loop asks about workers whose output the relay's thread reads, and tells of them.
 *
 * When they printed last, what their last lines were, whether anybody takes what they print: answered from what lies behind the mutex, so the loop never
 * waits for the thread. And a worker that lives on in the next round is called otherwise there: its rank, its round's files. Its pipes stay; the thread
 * changes names and files between two reads, so a line is never torn between two files. */

#include "agent/relay_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"

void relay_renaming_free(struct renaming *n) {
  if (!n) return;
  for (int k = 0; k < 2; k++) {
    relay_file_finish(&n->files[k][0]);
    relay_file_finish(&n->files[k][1]);
  }
  free(n->prefix);
  free(n->label);
  free(n);
}

static struct renaming *renaming_create(const struct relay_worker *o) {
  struct renaming *n = xcalloc(1, sizeof(*n));
  const struct relay_place *places[2] = {&o->out, &o->err};
  n->round = o->round;
  n->alone = o->alone;
  n->prefix = xstrdup(o->prefix ? o->prefix : "");
  n->label = xstrdup(o->label ? o->label : "");
  for (int k = 0; k < 2; k++) {
    relay_file_init(&n->files[k][0], places[k]->file);
    relay_file_init(&n->files[k][1], places[k]->filtered);
  }
  return n;
}

void relay_rename(struct relay *r, const struct relay_worker *o) {
  struct renaming *n = renaming_create(o), *before = n;
  pthread_mutex_lock(&r->mutex);
  for (struct worker *w = r->workers; w; w = w->next) {
    if (w->local_rank != o->local_rank || w->superseded) continue;
    before = w->renaming;
    w->renaming = n;
    break;
  }
  pthread_mutex_unlock(&r->mutex);
  relay_renaming_free(before); /* nobody has that local rank: n itself */
  relay_kick(r);
}

void relay_heard(struct relay *r, uint64_t *when_ms, uint32_t count) {
  memset(when_ms, 0, count * sizeof(*when_ms));
  pthread_mutex_lock(&r->mutex);
  for (const struct worker *w = r->workers; w; w = w->next)
    if (w->local_rank < count && !w->superseded)
      when_ms[w->local_rank] = atomic_load_explicit(&w->heard_ms, memory_order_relaxed);
  pthread_mutex_unlock(&r->mutex);
}

bool relay_is_held(const struct relay *r) {
  uint64_t turn = atomic_load_explicit(&r->turn_ms, memory_order_relaxed);
  return turn && boot_ms() >= turn + RELAY_HELD_MS;
}

void relay_tail(struct relay *r, uint32_t local_rank, char out[RELAY_TAIL_MAX + 1]) {
  struct buf tail = BUF_INIT;
  pthread_mutex_lock(&r->mutex);
  for (struct worker *w = r->workers; w; w = w->next) { /* the newest is first */
    if (w->local_rank != local_rank) continue;
    const char *rest;
    size_t len;
    buf_append(&tail, w->tail.data, w->tail.len);
    lines_peek(&w->err.lines, &rest, &len);
    if (len > 0) tail_add(&tail, rest, len, RELAY_TAIL_MAX);
    break;
  }
  pthread_mutex_unlock(&r->mutex);
  snprintf(out, RELAY_TAIL_MAX + 1, "%s", buf_text(&tail));
  buf_finish(&tail);
}
