/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_LOCAL_SET_H
#define COMMON_LOCAL_SET_H

/* A set of local ranks, by value. */

#include <stdbool.h>
#include <stdint.h>

enum { LOCAL_SET_MAX = 1024 }; /* WORKERS_MAX */

struct local_set {
  uint64_t bits[LOCAL_SET_MAX / 64];
};

static inline bool local_set_has(const struct local_set *s, uint32_t i) {
  return i < LOCAL_SET_MAX && (s->bits[i / 64] >> i % 64 & 1);
}

static inline void local_set_add(struct local_set *s, uint32_t i) {
  if (i < LOCAL_SET_MAX) s->bits[i / 64] |= UINT64_C(1) << i % 64;
}

static inline void local_set_remove(struct local_set *s, uint32_t i) {
  if (i < LOCAL_SET_MAX) s->bits[i / 64] &= ~(UINT64_C(1) << i % 64);
}

/* Every member of `s` is in `in`. */
static inline bool local_set_is_within(const struct local_set *s, const struct local_set *in) {
  uint64_t beyond = 0;
  for (int i = 0; i < LOCAL_SET_MAX / 64; i++) beyond |= s->bits[i] & ~in->bits[i];
  return !beyond;
}

static inline bool local_set_is_empty(const struct local_set *s) {
  uint64_t any = 0;
  for (int i = 0; i < LOCAL_SET_MAX / 64; i++) any |= s->bits[i];
  return !any;
}

#endif
