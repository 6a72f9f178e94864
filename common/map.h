/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_MAP_H
#define COMMON_MAP_H

/* A hash map from strings to pointers. Keys are copied and may hold any bytes; values belong to the caller. The hash is
 * keyed (SipHash-2-4) by `seed`, so that a peer that chooses keys cannot cause collisions. Iteration is in the order of
 * insertion, so a run from the same seed is the same run. */

#include <stddef.h>
#include <stdint.h>
#include "common/siphash.h"

struct map_entry {
  char *key; /* NUL-terminated copy, NULL: a hole left by map_remove */
  size_t key_len;
  void *value;
  uint64_t hash;
};

struct map {
  struct map_entry *entries; /* dense, in order of insertion, with holes */
  uint32_t *slots;
  size_t n_entries, cap_entries, n_slots;
  size_t count; /* live keys */
  struct siphash_key key;
};

void map_init(struct map *m, uint64_t seed);
void map_finish(struct map *m);     /* values are not touched */
void map_finish_all(struct map *m); /* values are freed */
void *map_get(const struct map *m, const char *key);
void *map_get_n(const struct map *m, const void *key, size_t len);
void *map_put(struct map *m, const char *key, void *value); /* the value that was there, else NULL */
void *map_put_n(struct map *m, const void *key, size_t len, void *value);
void *map_remove(struct map *m, const char *key); /* the value that was there, else NULL */
void *map_remove_n(struct map *m, const void *key, size_t len);
/* for (struct map_entry *e = NULL; (e = map_next(&m, e));) ...; removing *e itself inside the loop is allowed, adding
 * is not */
struct map_entry *map_next(const struct map *m, const struct map_entry *after);

#endif
