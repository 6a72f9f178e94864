/* A hash map from byte strings to pointers that iterates in the order of insertion.
 *
 * Entries stand in a dense array in that order; beside it a table of slots, at least twice as many, holds index + 1
 * of an entry or 0. A key is looked for from the slot its hash names, onward until a 0 (linear probing).
 *
 * Removing makes the entry a hole: its key is freed, its slot stays and is walked past. So there is no tombstone to
 * count, and a loop may remove the entry it stands on, since nothing moves. Holes are swept when the array is
 * full: if a quarter or more of it is holes it is packed in place, else it doubles; either way all slots are
 * filled anew. Every insertion takes a fresh entry, so slots in use never exceed entries in use, hence half the
 * table, and a probe always finds a 0.
 *
 * The hash is SipHash-2-4 (Aumasson and Bernstein) keyed by a seed in the object. Keys come from peers; with a
 * plain hash a hundred chosen keys would turn every lookup into a walk. The order of slots depends on the seed, the
 * order of iteration does not. */

#include "common/map.h"

#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"

static uint64_t rotl(uint64_t x, int n) {
  return x << n | x >> (64 - n);
}

static void sip_round(uint64_t v[4]) {
  v[0] += v[1];
  v[1] = rotl(v[1], 13) ^ v[0];
  v[0] = rotl(v[0], 32);
  v[2] += v[3];
  v[3] = rotl(v[3], 16) ^ v[2];
  v[0] += v[3];
  v[3] = rotl(v[3], 21) ^ v[0];
  v[2] += v[1];
  v[1] = rotl(v[1], 17) ^ v[2];
  v[2] = rotl(v[2], 32);
}

static uint64_t siphash(const uint64_t key[2], const uint8_t *p, size_t len) {
  uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
                   key[1] ^ 0x7465646279746573};
  uint64_t last = (uint64_t)len << 56;
  for (; len >= 8; p += 8, len -= 8) {
    uint64_t m = le64_get(p);
    v[3] ^= m;
    sip_round(v);
    sip_round(v);
    v[0] ^= m;
  }
  for (size_t i = 0; i < len; i++) last |= (uint64_t)p[i] << (8 * i);
  v[3] ^= last;
  sip_round(v);
  sip_round(v);
  v[0] ^= last;
  v[2] ^= 0xFF;
  for (int i = 0; i < 4; i++) sip_round(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void map_init(struct map *m, uint64_t seed) {
  *m = (struct map){.seed = {seed, seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03}};
}

void map_finish(struct map *m) {
  for (size_t i = 0; i < m->n_entries; i++) free(m->entries[i].key);
  free(m->entries);
  free(m->slots);
  *m = (struct map){.seed = {m->seed[0], m->seed[1]}};
}

static struct map_entry *find(const struct map *m, const void *key, size_t len) {
  if (m->count == 0) return NULL;
  uint64_t hash = siphash(m->seed, key, len);
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
  m->entries[m->n_entries] = (struct map_entry){
      .key = xmemdup(key, len), .key_len = len, .value = value, .hash = siphash(m->seed, key, len)};
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
