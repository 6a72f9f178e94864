/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of the store.
 *
 * Each operation has the same steps. It joins the session that the key names, if any. It finds the entry, once. It
 * computes exactly what it would take of every limit and checks that. From there on nothing can fail, so a refused
 * operation has changed nothing. Then it writes, and releases the waiters of the key. Releasing comes last, because it
 * may free an entry that has become unused.
 *
 * PyTorch's semantics are kept to the letter. COMPARE_SET on an absent key answers with `expected`, and releases
 * waiters in all its cases. ADD keeps decimal digits, reads them like C's stoll, and wraps. BARRIER is an ADD that
 * releases no waiter until the last caller has come, and otherwise a wait for its own key.
 *
 * A value has as much room as it needs, with three exceptions. APPEND doubles the room, so that a thousand appends copy
 * the value ten times. ADD leaves room for any number. A value that is written again keeps its room unless that is more
 * than twice too large. */

#include "common/store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/store/internal.h"

enum { DIGITS = 20 }; /* of an int64_t with its sign */

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
  store_sessions_finish(s);
  store_table_finish(s);
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
  store_forget_waits(c);
  store_leave_all(c, now_ms);
  free(c);
}

void *store_client_owner(const struct store_client *c) {
  return c->owner;
}

int store_check(const struct store *s, struct slice key, struct store_need need, struct err *e) {
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
  int rc = store_join(c, key, &w->names, e);
  if (rc < 0) return rc;
  w->entry = store_find(c->store, key);
  w->old = value_of(w->entry);
  return 0;
}

/* The additional cost of room for a value. */
static struct store_need need_of(const struct writing *w, size_t room) {
  size_t has = w->entry ? w->entry->value_room : 0;
  size_t more = !w->entry ? store_entry_cost(w->key.len, room) : room > has ? room - has : 0;
  return (struct store_need){.bytes = more, .items = !has_value(w->entry)};
}

/* Makes room for `room` bytes, of which a value of `len` bytes will be used. Sets w->entry. Nothing can fail here. */
static char *write_value(struct writing *w, size_t room, size_t len) {
  struct store *s = w->client->store;
  if (!w->entry)
    w->entry = store_entry_add(s, w->key, room, w->names);
  else if (room != w->entry->value_room)
    w->entry = store_entry_resize(s, w->entry, room);
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
  if (rc == 0) rc = store_check(s, w->key, need_of(w, room), e);
  if (rc < 0) return rc;
  char *to = write_value(w, room, value.len);
  if (value.len) memcpy(to, value.data, value.len);
  return 0;
}

int store_set(struct store_client *c, struct slice key, struct slice value, struct err *e) {
  struct writing w;
  int rc = begin_writing(&w, c, key, e);
  if (rc == 0) rc = set_value(&w, value, e);
  if (rc == 0) store_wake_all(c->store, w.entry);
  return rc;
}

bool store_get(struct store_client *c, struct slice key, struct slice *value) {
  store_touch(c, key);
  const struct store_entry *entry = store_find(c->store, key);
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

static size_t format_number(int64_t n, char text[DIGITS]) {
  uint64_t v = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
  char reversed[DIGITS];
  size_t len = 0, at = 0;
  do reversed[len++] = (char)('0' + v % 10);
  while ((v /= 10) > 0);
  if (n < 0) text[at++] = '-';
  while (len > 0) text[at++] = reversed[--len];
  return at;
}

/* Adds; `also` bytes are checked together with its own cost. Releases no waiter. */
static int add(struct writing *w, int64_t delta, size_t also, int64_t *total, struct err *e) {
  struct store *s = w->client->store;
  int64_t old = 0;
  if (has_value(w->entry) && !parse_number(w->old, &old))
    return err_set(e, -EINVAL, "ADD to a key whose value is not a number of 64 bits");
  char text[DIGITS];
  size_t len = format_number((int64_t)((uint64_t)old + (uint64_t)delta), text), room = room_for(w, len);
  if (room < DIGITS) room = DIGITS;
  struct store_need need = need_of(w, room);
  need.bytes += also;
  int rc = check_value(s, len, e);
  if (rc == 0) rc = store_check(s, w->key, need, e);
  if (rc < 0) return rc;
  memcpy(write_value(w, room, len), text, len);
  *total = (int64_t)((uint64_t)old + (uint64_t)delta);
  return 0;
}

int store_add(struct store_client *c, struct slice key, int64_t delta, int64_t *total, struct err *e) {
  struct writing w;
  int rc = begin_writing(&w, c, key, e);
  if (rc == 0) rc = add(&w, delta, 0, total, e);
  if (rc == 0) store_wake_all(c->store, w.entry);
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
  if (!*released) rc = store_wait_check(c, w.entry, &waiting, e);
  if (rc == 0) rc = add(&w, 1, waiting, &total, e);
  if (rc < 0) return rc;
  if (*released) {
    store_wake_all(c->store, w.entry);
    return 0;
  }
  store_await(c, w.entry);
  store_wait_end(c);
  return 0;
}

int store_compare_set(struct store_client *c, struct slice key, struct slice expected, struct slice desired,
                      struct slice *now, struct err *e) {
  struct writing w;
  if (expected.len == 0) store_begin_anew(c, key);
  int rc = begin_writing(&w, c, key, e);
  if (rc < 0) return rc;
  if (slice_equal(w.old, expected)) rc = set_value(&w, desired, e); /* an absent key counts as an empty one here */
  if (rc < 0) return rc;
  *now = has_value(w.entry) ? value_of(w.entry) : expected;
  store_wake_all(c->store, w.entry);
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
    if (store_check(s, key, need_of(&w, room), NULL) < 0) room = len;
  }
  rc = store_check(s, key, need_of(&w, room), e);
  if (rc < 0) return rc;
  char *to = write_value(&w, room, len);
  if (data.len) memcpy(to + w.old.len, data.data, data.len);
  store_wake_all(s, w.entry);
  return 0;
}

bool store_delete(struct store_client *c, struct slice key) {
  store_touch(c, key);
  struct store_entry *entry = store_find(c->store, key);
  if (!has_value(entry)) return false;
  store_drop_value(c->store, entry);
  return true;
}

bool store_has(struct store_client *c, struct slice key) {
  store_touch(c, key);
  const struct store_entry *entry = store_find(c->store, key);
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

struct each_key {
  void (*each)(void *ctx, struct slice key);
  void *ctx;
};

static void each_of(const struct chain *names, void *ctx) {
  const struct each_key *visit = ctx;
  for (const struct chain *l = names->next; l != names; l = l->next) {
    const struct store_entry *entry = CHAIN_ENTRY(l, const struct store_entry, names);
    if (entry->has_value) visit->each(visit->ctx, store_entry_key(entry));
  }
}

void store_each_key(const struct store *s, void (*each)(void *ctx, struct slice key), void *ctx) {
  struct each_key visit = {each, ctx};
  each_of(&s->names, &visit);
  store_each_session(s, each_of, &visit);
}

static const size_t element_cost = sizeof(struct element) + STORE_BLOCK;

int store_queue_push(struct store_client *c, struct slice key, struct slice value, struct err *e) {
  struct store *s = c->store;
  struct writing w;
  int rc = begin_writing(&w, c, key, e);
  if (rc == 0) rc = check_value(s, value.len, e);
  if (rc < 0) return rc;
  struct store_need need = {.bytes = element_cost + value.len, .items = 1};
  if (!w.entry) need.bytes += store_entry_cost(key.len, 0);
  if (!w.entry || !w.entry->extra) need.bytes += sizeof(struct store_extra) + STORE_BLOCK;
  rc = store_check(s, key, need, e);
  if (rc < 0) return rc;
  if (!w.entry) w.entry = store_entry_add(s, key, 0, w.names);
  struct store_extra *x = store_entry_extra(s, w.entry);
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
  store_wake_one(s, w.entry);
  return 0;
}

uint64_t store_queue_pop(struct store_client *c, struct slice key, struct slice *value) {
  struct store *s = c->store;
  store_touch(c, key);
  struct store_entry *entry = store_find(s, key);
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
  store_entry_tidy(s, entry);
  return before;
}

uint64_t store_queue_len(struct store_client *c, struct slice key) {
  store_touch(c, key);
  const struct store_entry *entry = store_find(c->store, key);
  return entry && entry->extra ? entry->extra->n_elements : 0;
}
