/* SPDX-License-Identifier: Apache-2.0 */
/* Rations per peer: a numeric address, or an account of the daemon.
 *
 * A stranger who reaches the port can open connections that send nothing or rubbish, as fast as the network allows. The
 * lines that it can write into the log must stay bounded. They are counted per numeric address, not per network: the
 * nodes of a cluster share a network and all start in the same second. They are also counted for all peers together: one
 * user can come from any address of 127.0.0.0/8, and one machine from any of an IPv6 network.
 *
 * At most RATIONS_MAX are kept. The first line of the next window reports what was left out. */

#include "common/rations.h"

#include <stdlib.h>
#include "common/mem.h"

struct ration {
  uint64_t window_ms; /* when it began */
  unsigned lines, left_out;
};

void rations_init(struct rations *a, uint64_t seed) {
  *a = (struct rations){.lines = 0};
  map_init(&a->map, seed);
}

void rations_finish(struct rations *a) {
  map_finish_all(&a->map);
}

/* Whether one more line may be written, of any peer. */
static bool has_room(struct rations *a, uint64_t now_ms, struct rations_left *left) {
  if (a->lines == 0 || now_ms - a->window_ms >= RATION_WINDOW_MS) {
    left->of_all = a->left_out;
    a->window_ms = now_ms;
    a->lines = a->left_out = 0;
  }
  if (a->lines >= RATIONS_LINES_MAX) {
    a->left_out++;
    return false;
  }
  a->lines++;
  return true;
}

bool rations_take(struct rations *a, const char *peer, uint64_t now_ms, struct rations_left *left) {
  struct ration *entry = map_get(&a->map, peer);
  if (!entry && a->map.count >= RATIONS_MAX) { /* forgets all peers: the limit of all of them still holds */
    for (struct map_entry *e = NULL; (e = map_next(&a->map, e));) {
      free(e->value);
      map_remove_n(&a->map, e->key, e->key_len);
    }
  }
  if (!entry) map_put(&a->map, peer, entry = xcalloc(1, sizeof(*entry)));
  *left = (struct rations_left){0};
  if (entry->lines == 0 || now_ms - entry->window_ms >= RATION_WINDOW_MS) {
    unsigned before = entry->left_out;
    *entry = (struct ration){.window_ms = now_ms};
    if (before > 0 && has_room(a, now_ms, left)) left->of_peer = before;
  }
  if (entry->lines >= RATION_LINES_MAX) {
    entry->left_out++;
    return false;
  }
  if (!has_room(a, now_ms, left)) return false;
  entry->lines++;
  return true;
}
