/* SPDX-License-Identifier: Apache-2.0 */
/* A table of the marks of openings, at most half full. Only holders of the key get into it, so nobody else can choose
 * what collides. */

#include "proto/ephemeral.h"

#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/key/secret.h"
#include "common/mem.h"

enum { SLOTS = 2 * EPHEMERAL_OPENINGS };

struct ephemeral {
  struct noise_ephemeral *key;
  uint64_t born_ms;
  size_t n;
  bool is_set;
  uint64_t seen[SLOTS]; /* 0: unused */
};

struct ephemeral *ephemeral_create(void) {
  struct ephemeral *e = xcalloc(1, sizeof(*e));
  e->key = secret_alloc();
  return e;
}

void ephemeral_destroy(struct ephemeral *e) {
  if (!e) return;
  secret_free(e->key);
  free(e);
}

bool ephemeral_is_old(const struct ephemeral *e, uint64_t now_ms) {
  return !e->is_set || e->n >= EPHEMERAL_OPENINGS || now_ms - e->born_ms >= EPHEMERAL_MS;
}

void ephemeral_renew(struct ephemeral *e, const uint8_t random[NOISE_KEY], uint64_t now_ms) {
  noise_ephemeral_set(e->key, random);
  if (e->n) memset(e->seen, 0, sizeof(e->seen));
  e->n = 0;
  e->born_ms = now_ms;
  e->is_set = true;
}

const struct noise_ephemeral *ephemeral_key(const struct ephemeral *e) {
  return e->key;
}

bool ephemeral_note(struct ephemeral *e, const uint8_t mark[8]) {
  uint64_t number = le64_get(mark);
  if (number == 0) number = 1;
  for (size_t i = number % SLOTS;; i = (i + 1) % SLOTS) {
    if (e->seen[i] == number) return false;
    if (e->seen[i]) continue;
    e->seen[i] = number;
    e->n++;
    return true;
  }
}
