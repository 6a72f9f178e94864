/* SPDX-License-Identifier: Apache-2.0 */
/* Names to entries, and their cost.
 *
 * A hash table that grows in one step stalls: with ten million keys for a second or more, and all waiting clients time
 * out together. This one is Litwin's linear hashing. There are n buckets. A hash is taken modulo the next power of two,
 * and modulo half of that if the result is beyond the n-th bucket. When there are more entries than buckets, one bucket
 * is added, and the one whose entries may belong there is split: each insertion pays for one. Removing works the other
 * way round. The buckets lie in segments, each as large as all before it, so nothing is ever copied, and a new segment
 * is the kernel's zero pages.
 *
 * An entry is one block: header, name, value. Most keys have some dozens of bytes and are read as often as written. So
 * each costs one allocation and, in a large table, two cache misses. A value that outgrows its room moves the block, so
 * only three pointers lead to an entry: from its bucket, its neighbours in the list of names, and its extra. Waiters
 * and queue elements hang on the extra, which does not move.
 *
 * Everything is charged when it is allocated, with the allocator's own bytes. */

#include "common/store/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { FIRST_BUCKETS = 1 << TABLE_FIRST_BITS };

static struct store_entry **bucket_at(const struct store_table *t, size_t b) {
  if (b < FIRST_BUCKETS) return &t->segments[0][b];
  unsigned top = 63U - (unsigned)__builtin_clzll(b);
  return &t->segments[top - TABLE_FIRST_BITS + 1][b - ((size_t)1 << top)];
}

static struct store_entry **bucket_of(const struct store_table *t, uint32_t hash) {
  size_t b = hash & t->mask;
  return bucket_at(t, b < t->n_buckets ? b : b & t->mask >> 1);
}

static void add_bucket(struct store_table *t) {
  size_t fresh = t->n_buckets;
  if (fresh == 0) {
    t->segments[0] = xcalloc(FIRST_BUCKETS, sizeof(*t->segments[0]));
    t->n_buckets = FIRST_BUCKETS;
    t->mask = FIRST_BUCKETS - 1;
    return;
  }
  if (fresh == t->mask + 1) { /* a power of two: the next segment, as large as all before */
    unsigned top = 63U - (unsigned)__builtin_clzll(fresh);
    t->segments[top - TABLE_FIRST_BITS + 1] = xcalloc(fresh, sizeof(*t->segments[0]));
    t->mask = 2 * t->mask + 1;
  }
  struct store_entry **from = bucket_at(t, fresh & t->mask >> 1), **to = bucket_at(t, fresh);
  while (*from) {
    struct store_entry *e = *from;
    if ((e->hash & t->mask) != fresh) {
      from = &e->next;
      continue;
    }
    *from = e->next;
    e->next = *to;
    *to = e;
  }
  t->n_buckets++;
}

static void drop_bucket(struct store_table *t) {
  size_t last = t->n_buckets - 1;
  struct store_entry **from = bucket_at(t, last), **to = bucket_at(t, last & t->mask >> 1);
  while (*to) to = &(*to)->next;
  *to = *from;
  *from = NULL;
  t->n_buckets = last;
  if (last != (t->mask >> 1) + 1) return;
  unsigned top = 63U - (unsigned)__builtin_clzll(last);
  free(t->segments[top - TABLE_FIRST_BITS + 1]);
  t->segments[top - TABLE_FIRST_BITS + 1] = NULL;
  t->mask >>= 1;
}

struct slice store_entry_key(const struct store_entry *entry) {
  return (struct slice){entry->bytes, entry->key_len};
}

struct store_entry *store_find(const struct store *s, struct slice key) {
  if (s->table.n_entries == 0) return NULL;
  uint32_t hash = (uint32_t)siphash(&s->hash_key, key.data, key.len);
  struct store_entry *e = *bucket_of(&s->table, hash);
  while (e && (e->hash != hash || e->key_len != key.len || (key.len && memcmp(e->bytes, key.data, key.len) != 0)))
    e = e->next;
  return e;
}

size_t store_entry_cost(size_t key_len, size_t room) {
  return sizeof(struct store_entry) + sizeof(struct store_entry *) + STORE_BLOCK + key_len + room;
}

struct store_entry *store_entry_add(struct store *s, struct slice key, size_t room, struct chain *names) {
  struct store_table *t = &s->table;
  if (t->n_entries >= t->n_buckets && t->n_buckets < ((size_t)1 << (TABLE_FIRST_BITS + TABLE_SEGMENTS - 1)))
    add_bucket(t);
  struct store_entry *e = xmalloc(sizeof(*e) + key.len + room);
  *e = (struct store_entry){.hash = (uint32_t)siphash(&s->hash_key, key.data, key.len),
                            .key_len = (uint32_t)key.len & 0x7FFFFFFF,
                            .value_room = (uint32_t)room};
  if (key.len) memcpy(e->bytes, key.data, key.len);
  struct store_entry **bucket = bucket_of(t, e->hash);
  e->next = *bucket;
  *bucket = e;
  t->n_entries++;
  chain_append(names, &e->names);
  s->bytes += store_entry_cost(key.len, room);
  return e;
}

static struct store_entry **pointer_to(const struct store *s, const struct store_entry *entry) {
  struct store_entry **p = bucket_of(&s->table, entry->hash);
  while (*p != entry) p = &(*p)->next;
  return p;
}

struct store_entry *store_entry_resize(struct store *s, struct store_entry *entry, size_t room) {
  struct store_entry **p = pointer_to(s, entry);
  s->bytes += room;
  s->bytes -= entry->value_room;
  struct store_entry *moved = xrealloc(entry, sizeof(*entry) + entry->key_len + room);
  moved->value_room = (uint32_t)room;
  *p = moved;
  moved->names.prev->next = moved->names.next->prev = &moved->names;
  if (moved->extra) moved->extra->entry = moved;
  return moved;
}

/* Removes the name and everything but its waiters. */
static void remove_entry(struct store *s, struct store_entry *entry) {
  struct store_table *t = &s->table;
  *pointer_to(s, entry) = entry->next;
  t->n_entries--;
  chain_remove(&entry->names);
  s->bytes -= store_entry_cost(entry->key_len, entry->value_room);
  free(entry);
  /* Four buckets per removal, so that an emptied table has freed all. A table that is a quarter full is far from
   * growing again. */
  for (int i = 0; i < 4 && t->n_buckets > FIRST_BUCKETS && t->n_entries < t->n_buckets / 4; i++) drop_bucket(t);
}

struct store_extra *store_entry_extra(struct store *s, struct store_entry *entry) {
  if (entry->extra) return entry->extra;
  entry->extra = xcalloc(1, sizeof(*entry->extra));
  entry->extra->entry = entry;
  chain_init(&entry->extra->waiters);
  s->bytes += sizeof(*entry->extra) + STORE_BLOCK;
  return entry->extra;
}

void store_entry_tidy(struct store *s, struct store_entry *entry) {
  struct store_extra *x = entry->extra;
  if (x && x->n_elements == 0 && chain_is_alone(&x->waiters)) {
    free(x);
    entry->extra = NULL;
    s->bytes -= sizeof(*x) + STORE_BLOCK;
  }
  if (!entry->extra && !entry->has_value) remove_entry(s, entry);
}

void store_drop_value(struct store *s, struct store_entry *entry) {
  if (entry->has_value) {
    s->n_keys--;
    s->n_items--;
    s->key_bytes -= entry->key_len;
    entry->has_value = 0;
    entry->value_len = 0;
    if (entry->extra) entry = store_entry_resize(s, entry, 0);
  }
  store_entry_tidy(s, entry);
}

void store_drop_queue(struct store *s, struct store_extra *extra) {
  while (extra->first) {
    struct element *el = extra->first;
    extra->first = el->next;
    s->bytes -= sizeof(*el) + STORE_BLOCK + el->len;
    free(el);
  }
  s->n_items -= extra->n_elements;
  extra->last = NULL;
  extra->n_elements = 0;
}

void store_table_finish(struct store *s) {
  struct store_table *t = &s->table;
  for (size_t b = 0; b < t->n_buckets; b++)
    for (struct store_entry *e = *bucket_at(t, b), *next; e; e = next) {
      next = e->next;
      if (e->extra) store_drop_queue(s, e->extra);
      free(e->extra);
      free(e);
    }
  for (size_t i = 0; i < TABLE_SEGMENTS; i++) free(t->segments[i]);
}
