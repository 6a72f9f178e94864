/* Counters per peer address.
 *
 * Anybody who reaches the port can open connections that say nothing, or send rubbish, as fast as the network allows.
 * Two things must stay bounded then: how many descriptors one address holds before it has said who it is, and how
 * many lines it can write into our log. Both are counted here, per numeric address and not per network: the nodes of
 * a cluster share a network and all start in the same second.
 *
 * An entry lives as long as its address has unidentified connections (those are bounded by the limit on
 * descriptors) or a log window that has not passed; of the latter kind at most ADDRESSES_MAX are kept. What was left out
 * is told with the first line of the next window. */

#include "common/rations.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/buf.h"
#include "common/mem.h"

struct address {
  size_t unidentified;
  uint64_t window_ms; /* when it began */
  unsigned lines, left_out;
};

void addresses_init(struct addresses *a, uint64_t seed) {
  map_init(&a->map, seed);
  a->sweep_at = ADDRESSES_MAX;
}

void addresses_finish(struct addresses *a) {
  for (struct map_entry *e = NULL; (e = map_next(&a->map, e));) free(e->value);
  map_finish(&a->map);
}

size_t addresses_unidentified(const struct addresses *a, const char *addr) {
  const struct address *entry = map_get(&a->map, addr);
  return entry ? entry->unidentified : 0;
}

static void drop_idle(struct addresses *a) {
  for (struct map_entry *e = NULL; (e = map_next(&a->map, e));) {
    struct address *entry = e->value;
    if (entry->unidentified > 0) continue;
    map_remove_n(&a->map, e->key, e->key_len);
    free(entry);
  }
  a->sweep_at = 2 * a->map.count > ADDRESSES_MAX ? 2 * a->map.count : ADDRESSES_MAX;
}

static struct address *get(struct addresses *a, const char *addr) {
  struct address *entry = map_get(&a->map, addr);
  if (entry) return entry;
  if (a->map.count >= a->sweep_at) drop_idle(a);
  entry = xcalloc(1, sizeof(*entry));
  map_put(&a->map, addr, entry);
  return entry;
}

void addresses_count(struct addresses *a, const char *addr, int change) {
  struct address *entry = get(a, addr);
  entry->unidentified += (size_t)change;
  if (entry->unidentified > 0 || entry->lines > 0) return;
  map_remove(&a->map, addr);
  free(entry);
}

void addresses_log(struct addresses *a, const char *addr, uint64_t now_ms, enum log_level level,
                   const char *fmt, ...) {
  if (level > log_max_level()) return; /* what is not shown does not use up the window */
  struct address *entry = get(a, addr);
  if (entry->lines == 0 || now_ms - entry->window_ms >= ADDRESS_WINDOW_MS) {
    if (entry->left_out > 0) log_line(level, "%s: %u more such lines were left out", addr, entry->left_out);
    *entry = (struct address){.unidentified = entry->unidentified, .window_ms = now_ms};
  }
  if (entry->lines >= ADDRESS_LOG_LINES) {
    entry->left_out++;
    return;
  }
  entry->lines++;
  struct buf text = BUF_INIT;
  va_list ap;
  va_start(ap, fmt);
  buf_vprintf(&text, fmt, ap);
  va_end(ap);
  log_line(level, "%s", buf_text(&text));
  buf_finish(&text);
}
