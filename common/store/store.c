/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of the store.
 *
 * Each operation joins the session that the key names, if any, finds the entry, computes exactly what it would take of
 * every limit and checks that. From there on nothing can fail, so a refused operation has changed nothing. Then it
 * writes, and releases the waiters of the key: last, because that may free an entry that has become unused.
 *
 * PyTorch's semantics are kept to the letter. COMPARE_SET on an absent key answers with `expected`, and releases
 * waiters in all its cases. ADD keeps decimal digits, reads them like C's stoll, and wraps. BARRIER is an ADD that
 * releases no waiter until the last caller has come, and otherwise a wait for its own key.
 *
 * A value has as much room as it needs. But APPEND doubles the room, ADD leaves room for any number, and a value that is
 * written again keeps its room unless that is more than twice too large. */

#include "common/store/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/chain.h"
#include "common/map.h"
#include "common/mem.h"
#include "common/siphash.h"

struct element {
  struct element *next;
  size_t len;
  char bytes[];
};

/* Parts that only few names have. An entry may move; this does not. */
struct store_extra {
  struct store_entry *entry;
  struct chain waiters; /* of struct awaited */
  struct element *first, *last;
  uint64_t n_elements;
};

/* A name of a key, of a queue, of an awaited key, or all at once. */
struct store_entry {
  struct store_entry *next; /* in its bucket */
  struct chain names;       /* in its session's list, or in the store's */
  struct store_extra *extra;
  uint32_t hash;
  uint32_t key_len : 31, has_value : 1;
  uint32_t value_len, value_room;
  char bytes[]; /* the name, then room for the value */
};

enum { TABLE_FIRST_BITS = 4, TABLE_SEGMENTS = 24 };

struct store_table {
  struct store_entry **segments[TABLE_SEGMENTS];
  size_t n_buckets, mask, n_entries;
};

/* One key of a wait, as long as the wait lasts. */
struct awaited {
  struct chain waiters;      /* of the key */
  struct store_extra *extra; /* NULL: the key was seen */
  struct store_wait *wait;
  struct awaited *next; /* of the wait */
};

struct store_wait {
  struct store_client *client;
  struct chain of_client; /* in its `waits`, then in its `released` */
  struct chain released;  /* in the store's, when it has ended */
  size_t missing, n_awaited;
  struct awaited *awaited;
};

struct store_client {
  struct store *store;
  void *owner;
  struct chain waits, released;
  struct store_wait *asking; /* between store_wait_begin and store_wait_end */
  size_t n_awaited;
  struct membership *memberships;
  size_t n_memberships;
};

struct store {
  struct store_config config;
  size_t prefix_len;
  struct siphash_key hash_key;
  struct store_table table;
  struct chain names;    /* entries of no session */
  struct chain released; /* waits that have ended, oldest first */
  struct element *popped;
  size_t bytes, n_keys, key_bytes, n_items;
  struct map sessions; /* by id */
  struct chain all_sessions;
  struct chain deserted; /* sessions without a client, by deadline */
};

/* The allocator's own bytes per block. */
enum { STORE_BLOCK = 16 };

struct store_session {
  struct chain names; /* of its entries */
  struct chain all, deserted;
  uint64_t deadline_ms; /* while it is deserted */
  size_t members;
  size_t id_len;
  char id[];
};

struct membership {
  struct membership *next;
  struct store_session *session;
};

/* The limits that an operation would use; checked before anything is changed. */
struct store_need {
  size_t bytes, items;
};

static int check_limits(const struct store *s, struct slice key, struct store_need need, struct err *e) {
  if (key.len > STORE_MAX_KEY)
    return err_set(e, -ENOSPC, "a key of %zu bytes is longer than the limit of %d", key.len, STORE_MAX_KEY);
  if (s->n_items + need.items > s->config.max_keys)
    return err_set(e, -ENOSPC, "the store is full: it holds %zu keys and queue elements, which is the limit",
                   s->n_items);
  if (need.bytes > 0 && (s->bytes > s->config.max_bytes || need.bytes > s->config.max_bytes - s->bytes))
    return err_set(e, -ENOSPC, "the store is full: it holds %zu bytes, and %zu more would exceed its limit of %zu",
                   s->bytes, need.bytes, s->config.max_bytes);
  return 0;
}

/* Names. ----------------------------------------------------------------------------------------------------------- */

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

static struct store_entry *find_entry(const struct store *s, struct slice key) {
  if (s->table.n_entries == 0) return NULL;
  uint32_t hash = (uint32_t)siphash(&s->hash_key, key.data, key.len);
  struct store_entry *e = *bucket_of(&s->table, hash);
  while (e && (e->hash != hash || e->key_len != key.len || (key.len && memcmp(e->bytes, key.data, key.len) != 0)))
    e = e->next;
  return e;
}

/* The cost of a name of key_len bytes with room for a value. */
static size_t entry_cost(size_t key_len, size_t room) {
  return sizeof(struct store_entry) + sizeof(struct store_entry *) + STORE_BLOCK + key_len + room;
}

/* Adds a name that is not there yet, without a value. */
static struct store_entry *add_entry(struct store *s, struct slice key, size_t room, struct chain *names) {
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
  s->bytes += entry_cost(key.len, room);
  return e;
}

static struct store_entry **pointer_to(const struct store *s, const struct store_entry *entry) {
  struct store_entry **p = bucket_of(&s->table, entry->hash);
  while (*p != entry) p = &(*p)->next;
  return p;
}

/* Changes the room for the value; the entry may move. */
static struct store_entry *resize_entry(struct store *s, struct store_entry *entry, size_t room) {
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

static struct store_extra *extra_of(struct store *s, struct store_entry *entry) {
  if (entry->extra) return entry->extra;
  entry->extra = xcalloc(1, sizeof(*entry->extra));
  entry->extra->entry = entry;
  chain_init(&entry->extra->waiters);
  s->bytes += sizeof(*entry->extra) + STORE_BLOCK;
  return entry->extra;
}

/* Frees parts that the entry no longer needs: the extra, the entry itself. */
static void tidy_entry(struct store *s, struct store_entry *entry) {
  struct store_extra *x = entry->extra;
  if (x && x->n_elements == 0 && chain_is_alone(&x->waiters)) {
    free(x);
    entry->extra = NULL;
    s->bytes -= sizeof(*x) + STORE_BLOCK;
  }
  if (!entry->extra && !entry->has_value) {
    /* Removes the name and everything but its waiters. */
    struct store_table *t = &s->table;
    *pointer_to(s, entry) = entry->next;
    t->n_entries--;
    chain_remove(&entry->names);
    s->bytes -= entry_cost(entry->key_len, entry->value_room);
    free(entry);
    /* Four buckets per removal, so that an emptied table has freed all. A table that is a quarter full is far from
     * growing again. */
    for (int i = 0; i < 4 && t->n_buckets > FIRST_BUCKETS && t->n_entries < t->n_buckets / 4; i++) drop_bucket(t);
  }
}

/* The entry may be gone then. */
static void drop_value(struct store *s, struct store_entry *entry) {
  if (entry->has_value) {
    s->n_keys--;
    s->n_items--;
    s->key_bytes -= entry->key_len;
    entry->has_value = 0;
    entry->value_len = 0;
    if (entry->extra) entry = resize_entry(s, entry, 0);
  }
  tidy_entry(s, entry);
}

static void drop_queue(struct store *s, struct store_extra *extra) {
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

/* Sessions. -------------------------------------------------------------------------------------------------------- */

/* Sessions: keys that are deleted when their clients have gone.
 *
 * A daemon that serves torchrun jobs for months must delete their keys, because torchrun never does. So names that
 * begin with the configured prefix are grouped: <prefix><id> is a session's own name, and <prefix><id>/... and
 * <prefix><id>.<round>/... belong to it. An id may also end in .7; its own name came first and made the session, so the
 * longer id is preferred if it exists.
 *
 * A client that writes such a name or waits for it is a member until its connection ends. A client that only reads
 * becomes a member if the session exists. When the last member leaves, the session enters a queue of deserted sessions
 * with its deadline. All have the same time to live, so the queue is in order, and a timer needs only its head.
 *
 * The same command, run twice in a row, brings members before the deadline, which must not find the first run's closed
 * rendezvous. Their first request distinguishes them: torchrun opens a rendezvous with COMPARE_SET from empty on the
 * session's own name. On a deserted session that deletes its keys. */

static const size_t membership_cost = sizeof(struct membership) + STORE_BLOCK;

static size_t session_cost(size_t id_len) {
  /* Its block and its place among the sessions: an entry, the id and slots, twice, since that table doubles. */
  return sizeof(struct store_session) + 2 * id_len + 2 * STORE_BLOCK + 2 * sizeof(struct map_entry) + 16;
}

static struct slice without_round(struct slice name) {
  size_t n = name.len;
  while (n > 0 && name.data[n - 1] >= '0' && name.data[n - 1] <= '9') n--;
  if (n > 0 && n < name.len && name.data[n - 1] == '.') name.len = n - 1;
  return name;
}

/* The session of a key; *id is empty if it belongs to none. own: the key is the session's own name. */
static struct store_session *session_of(const struct store *s, struct slice key, struct slice *id, bool *own) {
  *id = (struct slice){NULL, 0};
  *own = false;
  if (s->prefix_len == 0 || key.len <= s->prefix_len || memcmp(key.data, s->config.session_prefix, s->prefix_len) != 0)
    return NULL;
  *id = (struct slice){key.data + s->prefix_len, key.len - s->prefix_len};
  const char *slash = memchr(id->data, '/', id->len);
  *own = !slash;
  if (slash) id->len = (size_t)(slash - id->data);
  struct store_session *found = map_get_n(&s->sessions, id->data, id->len);
  if (found || !slash) return found;
  *id = without_round(*id);
  return map_get_n(&s->sessions, id->data, id->len);
}

/* Whether c is a member. The membership moves to the front. */
static bool is_member(struct store_client *c, const struct store_session *session) {
  for (struct membership **p = &c->memberships; *p; p = &(*p)->next)
    if ((*p)->session == session) {
      struct membership *m = *p;
      *p = m->next;
      m->next = c->memberships;
      c->memberships = m;
      return true;
    }
  return false;
}

static void session_remove(struct store *s, struct store_session *session) {
  map_remove_n(&s->sessions, session->id, session->id_len);
  while (!chain_is_alone(&session->names)) { /* names that a client of another session waits for */
    struct chain *l = session->names.next;
    chain_remove(l);
    chain_append(&s->names, l);
  }
  chain_remove(&session->all);
  chain_remove(&session->deserted);
  s->bytes -= session_cost(session->id_len);
  free(session);
}

static void add_member(struct store_client *c, struct store_session *session) {
  struct membership *m = xmalloc(sizeof(*m));
  *m = (struct membership){c->memberships, session};
  c->memberships = m;
  c->n_memberships++;
  session->members++;
  chain_remove(&session->deserted);
  c->store->bytes += membership_cost;
}

/* The client names a key to write it, and joins its session. *names is the list for a name that will be added. */
static int join_session(struct store_client *c, struct slice key, struct chain **names, struct err *e) {
  struct store *s = c->store;
  struct slice id;
  bool own;
  *names = &s->names;
  struct store_session *session = session_of(s, key, &id, &own);
  if (!id.data) return 0;
  if (session && is_member(c, session)) return *names = &session->names, 0;
  if (c->n_memberships >= STORE_MAX_SESSIONS)
    return err_set(e, -ENOSPC, "one client is a member of %d sessions, which is the limit", STORE_MAX_SESSIONS);
  struct store_need need = {.bytes = membership_cost + (session ? 0 : session_cost(id.len))};
  int rc = check_limits(s, key, need, e);
  if (rc < 0) return rc;
  if (!session) {
    session = xcalloc(1, sizeof(*session) + id.len);
    chain_init(&session->names);
    chain_init(&session->deserted);
    chain_append(&s->all_sessions, &session->all);
    session->id_len = id.len;
    if (id.len) memcpy(session->id, id.data, id.len);
    map_put_n(&s->sessions, id.data, id.len, session);
    s->bytes += session_cost(id.len);
  }
  add_member(c, session);
  *names = &session->names;
  return 0;
}

/* The client names a key to read it, and joins its session if that exists. */
static void touch_session(struct store_client *c, struct slice key) {
  struct slice id;
  bool own;
  if (c->store->prefix_len == 0) return;
  struct store_session *session = session_of(c->store, key, &id, &own);
  if (!session || is_member(c, session) || c->n_memberships >= STORE_MAX_SESSIONS) return;
  if (c->store->bytes + membership_cost <= c->store->config.max_bytes) add_member(c, session);
}

static void wipe(struct store *s, struct store_session *session) {
  for (struct chain *l = session->names.next, *next; l != &session->names; l = next) {
    struct store_entry *entry = CHAIN_ENTRY(l, struct store_entry, names);
    next = l->next;
    if (entry->extra) drop_queue(s, entry->extra);
    drop_value(s, entry);
  }
}

uint64_t store_deadline(const struct store *s) {
  if (chain_is_alone(&s->deserted)) return UINT64_MAX;
  return CHAIN_ENTRY(s->deserted.next, struct store_session, deserted)->deadline_ms;
}

void store_expire(struct store *s, uint64_t now_ms) {
  while (store_deadline(s) <= now_ms) {
    struct store_session *session = CHAIN_ENTRY(s->deserted.next, struct store_session, deserted);
    wipe(s, session);
    session_remove(s, session);
  }
}

/* Waits. ----------------------------------------------------------------------------------------------------------- */

/* Which client waits for which keys.
 *
 * A wait belongs to a client and has one node for every key that was missing when it was asked. The node hangs in the
 * key's list of waiters. When the key comes, all its nodes are taken off and counted. A wait learns nothing else of a
 * key, so a key that is deleted again still counts as seen, and a key that is named twice is counted twice. The cost
 * depends on the waiters of that key alone. A wait that is dropped takes its nodes out of their rings, one step each.
 *
 * A wait that has ended stands in the store's list of released waits until the owner asks, so the pure core never calls
 * back. It also stands in a list of its client, so that the client's own session can answer in the right order: WAIT,
 * SET and PING sent in one piece are answered in that order. */

static const size_t wait_cost = sizeof(struct store_wait) + STORE_BLOCK;
static const size_t awaited_cost = sizeof(struct awaited) + STORE_BLOCK;

/* Frees the nodes of a wait, and names that existed only for them. */
static void forget_awaited(struct store_wait *w) {
  struct store_client *c = w->client;
  struct store *s = c->store;
  for (struct awaited *a = w->awaited, *next; a; a = next) {
    next = a->next;
    if (a->extra) {
      chain_remove(&a->waiters);
      tidy_entry(s, a->extra->entry);
    }
    free(a);
  }
  s->bytes -= w->n_awaited * awaited_cost;
  c->n_awaited -= w->n_awaited;
  w->awaited = NULL;
  w->n_awaited = 0;
}

static void wait_destroy(struct store_wait *w) {
  if (!w) return;
  forget_awaited(w);
  chain_remove(&w->of_client);
  chain_remove(&w->released);
  w->client->store->bytes -= wait_cost;
  free(w);
}

/* The oldest waiter has seen the key. True: its wait has ended by that. */
static bool see_first(struct store_extra *x) {
  struct awaited *a = CHAIN_ENTRY(x->waiters.next, struct awaited, waiters);
  struct store_wait *w = a->wait;
  chain_remove(&a->waiters);
  a->extra = NULL;
  bool ended = --w->missing == 0 && w != w->client->asking;
  if (ended) {
    struct store_client *c = w->client;
    forget_awaited(w);
    chain_remove(&w->of_client);
    chain_append(&c->released, &w->of_client);
    chain_append(&c->store->released, &w->released);
  }
  return ended;
}

/* The entry may be gone then. */
static void wake_all(struct store *s, struct store_entry *entry) {
  if (!entry || !entry->extra) return;
  while (!chain_is_alone(&entry->extra->waiters)) see_first(entry->extra);
  tidy_entry(s, entry);
}

/* Checks whether the client may wait for one key more; *bytes: the cost besides the name itself. */
static int check_wait(struct store_client *c, const struct store_entry *entry, size_t *bytes, struct err *e) {
  if (c->n_awaited >= c->store->config.max_waits)
    return err_set(e, -ENOSPC, "one client waits for %zu keys, which is the limit", c->n_awaited);
  *bytes = awaited_cost + (c->asking ? 0 : wait_cost);
  if (!entry || !entry->extra) *bytes += sizeof(struct store_extra) + STORE_BLOCK;
  return 0;
}

static void await(struct store_client *c, struct store_entry *entry) {
  struct store *s = c->store;
  struct store_wait *w = c->asking;
  if (!w) {
    w = c->asking = xcalloc(1, sizeof(*w));
    w->client = c;
    chain_append(&c->waits, &w->of_client);
    chain_init(&w->released);
    s->bytes += wait_cost;
  }
  struct awaited *a = xmalloc(sizeof(*a));
  *a = (struct awaited){.extra = extra_of(s, entry), .wait = w, .next = w->awaited};
  chain_append(&a->extra->waiters, &a->waiters);
  w->awaited = a;
  w->missing++;
  w->n_awaited++;
  c->n_awaited++;
  s->bytes += awaited_cost;
}

static void drop_asking(struct store_client *c) {
  struct store_wait *w = c->asking;
  c->asking = NULL;
  wait_destroy(w);
}

void store_wait_begin(struct store_client *c) {
  drop_asking(c);
}

static int await_key(struct store_client *c, struct slice key, struct err *e) {
  struct chain *names;
  int rc = join_session(c, key, &names, e);
  if (rc < 0) return rc;
  struct store_entry *entry = find_entry(c->store, key);
  if (entry && (entry->has_value || (entry->extra && entry->extra->n_elements > 0))) return 0;
  struct store_need need = {0};
  rc = check_wait(c, entry, &need.bytes, e);
  if (!entry) need.bytes += entry_cost(key.len, 0);
  if (rc == 0) rc = check_limits(c->store, key, need, e);
  if (rc < 0) return rc;
  await(c, entry ? entry : add_entry(c->store, key, 0, names));
  return 0;
}

int store_wait_key(struct store_client *c, struct slice key, struct err *e) {
  int rc = await_key(c, key, e);
  if (rc < 0) drop_asking(c);
  return rc;
}

bool store_wait_end(struct store_client *c) {
  struct store_wait *w = c->asking;
  c->asking = NULL;
  if (w && w->missing > 0) return false;
  wait_destroy(w);
  return true;
}

void store_cancel(struct store_client *c) {
  c->asking = NULL;
  while (!chain_is_alone(&c->waits)) wait_destroy(CHAIN_ENTRY(c->waits.next, struct store_wait, of_client));
}

struct store_client *store_next_released(struct store *s) {
  if (chain_is_alone(&s->released)) return NULL;
  struct store_wait *w = CHAIN_ENTRY(s->released.next, struct store_wait, released);
  struct store_client *c = w->client;
  wait_destroy(w);
  return c;
}

size_t store_take_released(struct store_client *c) {
  size_t n = 0;
  for (; !chain_is_alone(&c->released); n++) wait_destroy(CHAIN_ENTRY(c->released.next, struct store_wait, of_client));
  return n;
}

/* The store and its clients. --------------------------------------------------------------------------------------- */

struct store *store_create(const struct store_config *config) {
  struct store *s = xcalloc(1, sizeof(*s));
  s->config = *config;
  s->config.session_prefix = xstrdup(config->session_prefix);
  s->prefix_len = config->session_prefix ? strlen(config->session_prefix) : 0;
  if (!s->config.max_bytes) s->config.max_bytes = STORE_MAX_BYTES;
  if (!s->config.max_keys) s->config.max_keys = STORE_MAX_KEYS;
  if (!s->config.max_value) s->config.max_value = STORE_MAX_VALUE;
  if (s->config.max_value > INT32_MAX) s->config.max_value = INT32_MAX;
  if (!s->config.max_waits) s->config.max_waits = STORE_MAX_WAITS;
  s->hash_key = siphash_key_from(config->seed);
  chain_init(&s->names);
  chain_init(&s->released);
  chain_init(&s->all_sessions);
  chain_init(&s->deserted);
  map_init(&s->sessions, config->seed);
  return s;
}

void store_destroy(struct store *s) {
  if (!s) return;
  while (!chain_is_alone(&s->all_sessions))
    session_remove(s, CHAIN_ENTRY(s->all_sessions.next, struct store_session, all));
  map_finish(&s->sessions);
  struct store_table *t = &s->table;
  for (size_t b = 0; b < t->n_buckets; b++)
    for (struct store_entry *e = *bucket_at(t, b), *next; e; e = next) {
      next = e->next;
      if (e->extra) drop_queue(s, e->extra);
      free(e->extra);
      free(e);
    }
  for (size_t i = 0; i < TABLE_SEGMENTS; i++) free(t->segments[i]);
  free(s->popped);
  free((char *)(uintptr_t)s->config.session_prefix);
  free(s);
}

struct store_client *store_client_create(struct store *s, void *owner) {
  struct store_client *c = xcalloc(1, sizeof(*c));
  c->store = s;
  c->owner = owner;
  chain_init(&c->waits);
  chain_init(&c->released);
  return c;
}

void store_client_destroy(struct store_client *c, uint64_t now_ms) {
  if (!c) return;
  store_cancel(c);
  store_take_released(c);
  struct store *s = c->store;
  for (struct membership *m = c->memberships, *next; m; m = next) {
    struct store_session *session = m->session;
    next = m->next;
    free(m);
    s->bytes -= membership_cost;
    if (--session->members > 0) continue;
    if (chain_is_alone(&session->names)) {
      session_remove(s, session);
      continue;
    }
    uint64_t ttl = s->config.session_ttl_ms;
    session->deadline_ms = now_ms < UINT64_MAX - 1 - ttl ? now_ms + ttl : UINT64_MAX - 1;
    chain_append(&s->deserted, &session->deserted);
  }
  free(c);
}

void *store_client_owner(const struct store_client *c) {
  return c->owner;
}

/* Operations. ------------------------------------------------------------------------------------------------------ */

enum { DIGITS = 20 }; /* of an int64_t with its sign */

static int check_value(const struct store *s, size_t len, struct err *e) {
  if (len <= s->config.max_value) return 0;
  return err_set(e, -ENOSPC, "a value of %zu bytes is longer than the limit of %zu", len, s->config.max_value);
}

/* A value that is going to be written. */
struct writing {
  struct store_client *client;
  struct slice key;
  struct store_entry *entry; /* NULL: the name is new */
  struct chain *names;
  struct slice old; /* empty where there is none */
};

static bool has_value(const struct store_entry *entry) {
  return entry && entry->has_value;
}

static struct slice value_of(const struct store_entry *entry) {
  if (!has_value(entry)) return (struct slice){"", 0};
  return (struct slice){entry->bytes + entry->key_len, entry->value_len};
}

static int begin_writing(struct writing *w, struct store_client *c, struct slice key, struct err *e) {
  *w = (struct writing){.client = c, .key = key};
  int rc = join_session(c, key, &w->names, e);
  if (rc < 0) return rc;
  w->entry = find_entry(c->store, key);
  w->old = value_of(w->entry);
  return 0;
}

/* The additional cost of room for a value. */
static struct store_need need_of(const struct writing *w, size_t room) {
  size_t has = w->entry ? w->entry->value_room : 0;
  size_t more = !w->entry ? entry_cost(w->key.len, room) : room > has ? room - has : 0;
  return (struct store_need){.bytes = more, .items = !has_value(w->entry)};
}

/* Makes room for `room` bytes, of which a value of `len` bytes will be used. Sets w->entry. Nothing can fail here. */
static char *write_value(struct writing *w, size_t room, size_t len) {
  struct store *s = w->client->store;
  if (!w->entry)
    w->entry = add_entry(s, w->key, room, w->names);
  else if (room != w->entry->value_room)
    w->entry = resize_entry(s, w->entry, room);
  if (!w->entry->has_value) {
    s->n_keys++;
    s->n_items++;
    s->key_bytes += w->key.len;
    w->entry->has_value = 1;
  }
  w->entry->value_len = (uint32_t)len;
  return w->entry->bytes + w->entry->key_len;
}

/* The room that is there, unless it is too small or more than twice too large. */
static size_t room_for(const struct writing *w, size_t len) {
  size_t has = w->entry ? w->entry->value_room : 0;
  return has >= len && has <= 2 * len + 64 ? has : len;
}

static int set_value(struct writing *w, struct slice value, struct err *e) {
  struct store *s = w->client->store;
  size_t room = room_for(w, value.len);
  int rc = check_value(s, value.len, e);
  if (rc == 0) rc = check_limits(s, w->key, need_of(w, room), e);
  if (rc < 0) return rc;
  char *to = write_value(w, room, value.len);
  if (value.len) memcpy(to, value.data, value.len);
  return 0;
}

int store_set(struct store_client *c, struct slice key, struct slice value, struct err *e) {
  struct writing w;
  int rc = begin_writing(&w, c, key, e);
  if (rc == 0) rc = set_value(&w, value, e);
  if (rc == 0) wake_all(c->store, w.entry);
  return rc;
}

bool store_get(struct store_client *c, struct slice key, struct slice *value) {
  touch_session(c, key);
  const struct store_entry *entry = find_entry(c->store, key);
  *value = value_of(entry);
  return has_value(entry);
}

/* As stoll: blanks, a sign, digits; the rest is ignored. False: not a number, or one that does not fit. */
static bool parse_number(struct slice text, int64_t *out) {
  const char *p = text.data, *end = p + text.len;
  while (p < end && ((*p) == ' ' || ((*p) >= '\t' && (*p) <= '\r'))) p++;
  bool minus = p < end && *p == '-', any = false;
  if (p < end && (*p == '-' || *p == '+')) p++;
  uint64_t v = 0, most = (uint64_t)INT64_MAX + minus;
  for (; p < end && *p >= '0' && *p <= '9'; p++, any = true) {
    unsigned digit = (unsigned)(*p - '0');
    if (v > (most - digit) / 10) return false;
    v = 10 * v + digit;
  }
  *out = (int64_t)(minus ? 0 - v : v);
  return any;
}

/* Adds; `also` bytes are checked together with its own cost. Releases no waiter. */
static int add(struct writing *w, int64_t delta, size_t also, int64_t *total, struct err *e) {
  struct store *s = w->client->store;
  int64_t old = 0;
  if (has_value(w->entry) && !parse_number(w->old, &old))
    return err_set(e, -EINVAL, "ADD to a key whose value is not a number of 64 bits");
  char text[DIGITS + 1];
  size_t len = (size_t)snprintf(text, sizeof(text), "%" PRId64, (int64_t)((uint64_t)old + (uint64_t)delta));
  size_t room = room_for(w, len);
  if (room < DIGITS) room = DIGITS;
  struct store_need need = need_of(w, room);
  need.bytes += also;
  int rc = check_value(s, len, e);
  if (rc == 0) rc = check_limits(s, w->key, need, e);
  if (rc < 0) return rc;
  memcpy(write_value(w, room, len), text, len);
  *total = (int64_t)((uint64_t)old + (uint64_t)delta);
  return 0;
}

int store_add(struct store_client *c, struct slice key, int64_t delta, int64_t *total, struct err *e) {
  struct writing w;
  int rc = begin_writing(&w, c, key, e);
  if (rc == 0) rc = add(&w, delta, 0, total, e);
  if (rc == 0) wake_all(c->store, w.entry);
  return rc;
}

int store_barrier(struct store_client *c, struct slice key, int64_t world_size, bool *released, struct err *e) {
  struct writing w;
  int64_t total = 0, old = 0;
  int rc = begin_writing(&w, c, key, e);
  if (rc < 0) return rc;
  store_wait_begin(c);
  parse_number(w.old, &old);
  *released = (int64_t)((uint64_t)old + 1) >= world_size;
  size_t waiting = 0;
  if (!*released) rc = check_wait(c, w.entry, &waiting, e);
  if (rc == 0) rc = add(&w, 1, waiting, &total, e);
  if (rc < 0) return rc;
  if (*released) {
    wake_all(c->store, w.entry);
    return 0;
  }
  await(c, w.entry);
  store_wait_end(c);
  return 0;
}

int store_compare_set(struct store_client *c, struct slice key, struct slice expected, struct slice desired,
                      struct slice *now, struct err *e) {
  struct writing w;
  struct slice id;
  bool own;
  struct store_session *session = session_of(c->store, key, &id, &own);
  if (expected.len == 0 && session && own && session->members == 0) wipe(c->store, session); /* it begins anew */
  int rc = begin_writing(&w, c, key, e);
  if (rc < 0) return rc;
  if (slice_equal(w.old, expected)) rc = set_value(&w, desired, e); /* an absent key counts as an empty one here */
  if (rc < 0) return rc;
  *now = has_value(w.entry) ? value_of(w.entry) : expected;
  wake_all(c->store, w.entry);
  return 0;
}

int store_append(struct store_client *c, struct slice key, struct slice data, struct err *e) {
  struct writing w;
  struct store *s = c->store;
  int rc = begin_writing(&w, c, key, e);
  if (rc < 0) return rc;
  size_t len = w.old.len + data.len, has = w.entry ? w.entry->value_room : 0, room = has;
  rc = check_value(s, len, e);
  if (rc < 0) return rc;
  if (len > has) {
    room = w.old.len == 0 || 2 * len > s->config.max_value ? len : 2 * len;
    if (check_limits(s, key, need_of(&w, room), NULL) < 0) room = len;
  }
  rc = check_limits(s, key, need_of(&w, room), e);
  if (rc < 0) return rc;
  char *to = write_value(&w, room, len);
  if (data.len) memcpy(to + w.old.len, data.data, data.len);
  wake_all(s, w.entry);
  return 0;
}

bool store_delete(struct store_client *c, struct slice key) {
  touch_session(c, key);
  struct store_entry *entry = find_entry(c->store, key);
  if (!has_value(entry)) return false;
  drop_value(c->store, entry);
  return true;
}

bool store_has(struct store_client *c, struct slice key) {
  touch_session(c, key);
  const struct store_entry *entry = find_entry(c->store, key);
  return entry && (entry->has_value || (entry->extra && entry->extra->n_elements > 0));
}

size_t store_count(const struct store *s) {
  return s->n_keys;
}

size_t store_key_bytes(const struct store *s) {
  return s->key_bytes;
}

size_t store_bytes(const struct store *s) {
  return s->bytes;
}

static void each_of(const struct chain *names, void (*each)(void *ctx, struct slice key), void *ctx) {
  for (const struct chain *l = names->next; l != names; l = l->next) {
    const struct store_entry *entry = CHAIN_ENTRY(l, const struct store_entry, names);
    if (entry->has_value) each(ctx, (struct slice){entry->bytes, entry->key_len});
  }
}

void store_each_key(const struct store *s, void (*each)(void *ctx, struct slice key), void *ctx) {
  each_of(&s->names, each, ctx);
  for (const struct chain *l = s->all_sessions.next; l != &s->all_sessions; l = l->next)
    each_of(&CHAIN_ENTRY(l, const struct store_session, all)->names, each, ctx);
}

static const size_t element_cost = sizeof(struct element) + STORE_BLOCK;

int store_queue_push(struct store_client *c, struct slice key, struct slice value, struct err *e) {
  struct store *s = c->store;
  struct writing w;
  int rc = begin_writing(&w, c, key, e);
  if (rc == 0) rc = check_value(s, value.len, e);
  if (rc < 0) return rc;
  struct store_need need = {.bytes = element_cost + value.len, .items = 1};
  if (!w.entry) need.bytes += entry_cost(key.len, 0);
  if (!w.entry || !w.entry->extra) need.bytes += sizeof(struct store_extra) + STORE_BLOCK;
  rc = check_limits(s, key, need, e);
  if (rc < 0) return rc;
  if (!w.entry) w.entry = add_entry(s, key, 0, w.names);
  struct store_extra *x = extra_of(s, w.entry);
  struct element *el = xmalloc(sizeof(*el) + value.len);
  *el = (struct element){.len = value.len};
  if (value.len) memcpy(el->bytes, value.data, value.len);
  if (x->last)
    x->last->next = el;
  else
    x->first = el;
  x->last = el;
  x->n_elements++;
  s->n_items++;
  s->bytes += element_cost + value.len;
  while (!chain_is_alone(&x->waiters) && !see_first(x)) continue; /* wakes one */
  return 0;
}

uint64_t store_queue_pop(struct store_client *c, struct slice key, struct slice *value) {
  struct store *s = c->store;
  touch_session(c, key);
  struct store_entry *entry = find_entry(s, key);
  *value = (struct slice){"", 0};
  if (!entry || !entry->extra || entry->extra->n_elements == 0) return 0;
  struct store_extra *x = entry->extra;
  uint64_t before = x->n_elements--;
  struct element *el = x->first;
  x->first = el->next;
  if (!x->first) x->last = NULL;
  s->n_items--;
  s->bytes -= element_cost + el->len;
  free(s->popped);
  s->popped = el;
  *value = (struct slice){el->bytes, el->len};
  tidy_entry(s, entry);
  return before;
}

uint64_t store_queue_len(struct store_client *c, struct slice key) {
  touch_session(c, key);
  const struct store_entry *entry = find_entry(c->store, key);
  return entry && entry->extra ? entry->extra->n_elements : 0;
}
