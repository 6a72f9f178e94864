/* SPDX-License-Identifier: Apache-2.0 */
/* A stranger can open more connections than there is room for, and can keep each of them silent. If newcomers were
 * refused then, ten thousand silent connections would keep every agent out for as long as they like. So the oldest gives
 * way: an agent says who it is within milliseconds, and a silent connection is the oldest sooner or later.
 *
 * Sources are kept in lists by the number of their connections. That number changes by one at a time, so a source moves
 * to the list beside its own, and the largest number that has a source is known without a search.
 *
 * Where newcomers wait to be served, the sources take turns in a ring. A crowd of one source then costs each of the
 * others the time of one newcomer, however large it is. */

#include "daemon/server/waiting_room.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

struct newcomer_source {
  struct newcomer *oldest, *newest;
  struct newcomer_source *prev, *next;    /* of the same size; the first one's prev is the last */
  struct newcomer_source *before, *after; /* in the ring of turns */
  size_t count;
  char name[];
};

void room_init(struct waiting_room *a, uint64_t seed) {
  *a = (struct waiting_room){.count = 0};
  map_init(&a->sources, seed);
}

void room_finish(struct waiting_room *a) {
  map_finish(&a->sources);
  free(a->by_size);
  *a = (struct waiting_room){.count = 0};
}

static void resize(struct waiting_room *a, struct newcomer_source *s, size_t count) {
  if (s->count > 0) {
    struct newcomer_source **first = &a->by_size[s->count];
    (s->next ? s->next : *first)->prev = s->prev;
    *(*first == s ? first : &s->prev->next) = s->next;
  }
  s->count = count;
  if (count > 0) {
    if (s->count >= a->sizes) {
      size_t sizes = a->sizes ? 2 * a->sizes : 64;
      a->by_size = xrealloc(a->by_size, sizes * sizeof(struct newcomer_source *));
      memset(a->by_size + a->sizes, 0, (sizes - a->sizes) * sizeof(struct newcomer_source *));
      a->sizes = sizes;
    }
    struct newcomer_source **first = &a->by_size[s->count];
    s->next = NULL;
    s->prev = *first ? (*first)->prev : s;
    if (*first) {
      (*first)->prev->next = s;
      (*first)->prev = s;
    } else {
      *first = s;
    }
    if (s->count > a->largest) a->largest = s->count;
  }
  while (a->largest > 0 && !a->by_size[a->largest]) a->largest--;
}

static struct newcomer_source *source_of(struct waiting_room *a, const char *name) {
  struct newcomer_source *s = map_get(&a->sources, name);
  if (s) return s;
  size_t size = strlen(name) + 1;
  s = xcalloc(1, sizeof(*s) + size);
  memcpy(s->name, name, size);
  map_put(&a->sources, name, s);
  if (!a->turn) a->turn = s->before = s;
  s->after = a->turn; /* it is the last of this round */
  s->before = a->turn->before;
  s->before->after = s->after->before = s;
  return s;
}

void room_enter(struct waiting_room *a, struct newcomer *one, const char *source, uint64_t now_ms) {
  struct newcomer_source *s = source_of(a, source);
  *one = (struct newcomer){.older = a->newest, .source_older = s->newest, .source = s, .since_ms = now_ms};
  *(a->newest ? &a->newest->newer : &a->oldest) = one;
  *(s->newest ? &s->newest->source_newer : &s->oldest) = one;
  a->newest = s->newest = one;
  a->count++;
  resize(a, s, s->count + 1);
}

void room_leave(struct waiting_room *a, struct newcomer *one) {
  struct newcomer_source *s = one->source;
  if (!s) return;
  *(one->older ? &one->older->newer : &a->oldest) = one->newer;
  *(one->newer ? &one->newer->older : &a->newest) = one->older;
  *(one->source_older ? &one->source_older->source_newer : &s->oldest) = one->source_newer;
  *(one->source_newer ? &one->source_newer->source_older : &s->newest) = one->source_older;
  *one = (struct newcomer){.source = NULL};
  a->count--;
  resize(a, s, s->count - 1);
  if (s->count == 0) {
    if (a->turn == s) a->turn = s->after == s ? NULL : s->after;
    s->before->after = s->after;
    s->after->before = s->before;
    map_remove(&a->sources, s->name);
    free(s);
  }
}

size_t room_of(const struct waiting_room *a, const char *source) {
  const struct newcomer_source *s = map_get(&a->sources, source);
  return s ? s->count : 0;
}

struct newcomer *room_oldest_of(const struct waiting_room *a, const char *source) {
  const struct newcomer_source *s = map_get(&a->sources, source);
  return s ? s->oldest : NULL;
}

struct newcomer *room_crowded_out(const struct waiting_room *a) {
  return a->largest > 1 ? a->by_size[a->largest]->oldest : a->oldest;
}

struct newcomer *room_next(struct waiting_room *a) {
  struct newcomer_source *s = a->turn;
  if (!s) return NULL;
  a->turn = s->after;
  return s->oldest;
}
