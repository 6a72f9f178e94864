/* SPDX-License-Identifier: Apache-2.0 */
/* Entries stand in a dense array in the order of insertion. Beside it a table of slots, at least twice as many, holds
 * index + 1 of an entry, or 0. The search for a key begins at the slot that its hash names and goes on to the first 0
 * (linear probing).
 *
 * Removing turns the entry into a hole: its key is freed, and its slot stays and is walked past. So there are no
 * tombstones to count, and a loop may remove its current entry, since nothing moves. Holes are removed when the array
 * is full: if a quarter of it is holes it is packed in place, else it doubles; in both cases all slots are filled
 * again. Every insertion takes a new entry, so at most half of the slots are in use, and a probe always finds a 0. */

#include "common/map.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

void map_init(struct map *m, uint64_t seed) {
  *m = (struct map){.key = siphash_key_from(seed)};
}

void map_finish(struct map *m) {
  for (size_t i = 0; i < m->n_entries; i++) free(m->entries[i].key);
  free(m->entries);
  free(m->slots);
  *m = (struct map){.key = m->key};
}

static struct map_entry *find(const struct map *m, const void *key, size_t len) {
  if (m->count == 0) return NULL;
  uint64_t hash = siphash(&m->key, key, len);
  size_t mask = m->n_slots - 1;
  for (size_t i = hash & mask; m->slots[i]; i = (i + 1) & mask) {
    struct map_entry *e = &m->entries[m->slots[i] - 1];
    if (e->key && e->hash == hash && e->key_len == len && memcmp(e->key, key, len) == 0) return e;
  }
  return NULL;
}

static void link_entry(struct map *m, size_t index) {
  size_t mask = m->n_slots - 1, i = m->entries[index].hash & mask;
  while (m->slots[i]) i = (i + 1) & mask;
  m->slots[i] = (uint32_t)(index + 1);
}

static void make_room(struct map *m) {
  if (m->n_entries < m->cap_entries) return;
  size_t n = 0;
  for (size_t i = 0; i < m->n_entries; i++)
    if (m->entries[i].key) m->entries[n++] = m->entries[i];
  m->n_entries = n;
  if (n + m->cap_entries / 4 >= m->cap_entries) { /* few holes: more of them would not pay the next sweep */
    m->cap_entries = m->cap_entries ? m->cap_entries * 2 : 8;
    m->n_slots = m->cap_entries * 2;
    m->entries = xrealloc(m->entries, m->cap_entries * sizeof(*m->entries));
    m->slots = xrealloc(m->slots, m->n_slots * sizeof(*m->slots));
  }
  memset(m->slots, 0, m->n_slots * sizeof(*m->slots));
  for (size_t i = 0; i < n; i++) link_entry(m, i);
}

void *map_get_n(const struct map *m, const void *key, size_t len) {
  const struct map_entry *e = find(m, key, len);
  return e ? e->value : NULL;
}

void *map_put_n(struct map *m, const void *key, size_t len, void *value) {
  struct map_entry *e = find(m, key, len);
  if (e) {
    void *old = e->value;
    e->value = value;
    return old;
  }
  make_room(m);
  m->entries[m->n_entries] =
      (struct map_entry){.key = xmemdup(key, len), .key_len = len, .value = value, .hash = siphash(&m->key, key, len)};
  link_entry(m, m->n_entries++);
  m->count++;
  return NULL;
}

void *map_remove_n(struct map *m, const void *key, size_t len) {
  struct map_entry *e = find(m, key, len);
  if (!e) return NULL;
  void *old = e->value;
  free(e->key);
  e->key = NULL;
  e->value = NULL;
  m->count--;
  return old;
}

void *map_get(const struct map *m, const char *key) {
  return map_get_n(m, key, strlen(key));
}

void *map_put(struct map *m, const char *key, void *value) {
  return map_put_n(m, key, strlen(key), value);
}

void *map_remove(struct map *m, const char *key) {
  return map_remove_n(m, key, strlen(key));
}

struct map_entry *map_next(const struct map *m, const struct map_entry *after) {
  for (size_t i = after ? (size_t)(after - m->entries) + 1 : 0; i < m->n_entries; i++)
    if (m->entries[i].key) return &m->entries[i];
  return NULL;
}

void map_finish_all(struct map *m) {
  for (struct map_entry *e = NULL; (e = map_next(m, e));) free(e->value);
  map_finish(m);
}
