#ifndef COMMON_STORE_INTERNAL_H
#define COMMON_STORE_INTERNAL_H

/* What the store's files share; nobody else includes it.
 *
 * store.c          the operations on keys and queues
 * store_table.c    names to entries; entries, their bytes, what is charged for them
 * store_wait.c     who waits for what
 * store_session.c  which client belongs to which session, and when a session goes */

#include <stddef.h>
#include "common/map.h"
#include "common/siphash.h"
#include "common/store/store.h"

/* A ring of neighbours; a list's head is a link itself. */
struct link {
  struct link *prev, *next;
};

static inline void link_init(struct link *l) {
  l->prev = l->next = l;
}

static inline bool link_alone(const struct link *l) {
  return l->next == l;
}

static inline void link_append(struct link *head, struct link *l) {
  l->prev = head->prev;
  l->next = head;
  head->prev->next = l;
  head->prev = l;
}

static inline void link_remove(struct link *l) {
  l->prev->next = l->next;
  l->next->prev = l->prev;
  link_init(l);
}

#define LINK_OF(l, type, member) ((type *)((uintptr_t)(l)-offsetof(type, member)))

struct element {
  struct element *next;
  size_t len;
  char bytes[];
};

/* What only few names have. An entry may move, this does not. */
struct store_extra {
  struct store_entry *entry;
  struct link waiters; /* of struct awaited */
  struct element *first, *last;
  uint64_t n_elements;
};

/* A name: of a key, of a queue, of something awaited, or all at once. */
struct store_entry {
  struct store_entry *next; /* in its bucket */
  struct link names;        /* in its session's list, or in the store's */
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
  struct link waiters;       /* of the key */
  struct store_extra *extra; /* NULL: the key was seen */
  struct store_wait *wait;
  struct awaited *next; /* of the wait */
};

struct store_wait {
  struct store_client *client;
  struct link of_client; /* in its `waits`, then in its `released` */
  struct link released;  /* in the store's, when it has ended */
  size_t missing, n_awaited;
  struct awaited *awaited;
};

struct store_client {
  struct store *store;
  void *owner;
  struct link waits, released;
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
  struct link names;    /* entries of no session */
  struct link released; /* waits that have ended, oldest first */
  struct element *popped;
  size_t bytes, n_keys, key_bytes, n_items;
  struct map sessions; /* by id */
  struct link all_sessions;
  struct link deserted; /* sessions without a client, by deadline */
};

/* What the allocator keeps beside a block. */
enum { STORE_BLOCK = 16 };

/* What of the limits an operation would take; checked before anything is changed. */
struct store_need {
  size_t bytes, items;
};
int store_check(const struct store *s, struct slice key, struct store_need need, struct err *e);

/* store_table.c */
struct store_entry *store_find(const struct store *s, struct slice key);
/* The bytes that a name of so many bytes costs with room for a value. */
size_t store_entry_cost(size_t key_len, size_t room);
/* A name that is not there yet, without a value; room for one. */
struct store_entry *store_entry_add(struct store *s, struct slice key, size_t room, struct link *names);
/* Makes the room another one; the entry may move. */
struct store_entry *store_entry_resize(struct store *s, struct store_entry *entry, size_t room);
void store_entry_remove(struct store *s, struct store_entry *entry); /* the name and all it has but waiters */
/* Drops what the entry does not need any more: the extra, the entry itself. */
void store_entry_tidy(struct store *s, struct store_entry *entry);
struct store_extra *store_entry_extra(struct store *s, struct store_entry *entry);
void store_drop_value(struct store *s,
                      struct store_entry *entry); /* and tidies: the entry may be gone then */
void store_drop_queue(struct store *s, struct store_extra *extra);
void store_table_finish(struct store *s);
struct slice store_entry_key(const struct store_entry *entry);

/* store_wait.c */
void store_wake_all(struct store *s, struct store_entry *entry); /* the entry may be gone then */
void store_wake_one(struct store *s, struct store_entry *entry);
/* Whether the client may wait for one key more, and what that takes besides the name itself. */
int store_wait_check(struct store_client *c, const struct store_entry *entry, size_t *bytes, struct err *e);
void store_await(struct store_client *c, struct store_entry *entry);
void store_forget_waits(struct store_client *c);

/* store_session.c */
/* Who names a key to write it: *names is the list for a name that will be added. */
int store_join(struct store_client *c, struct slice key, struct link **names, struct err *e);
/* Who names it to read: belongs to the session if there is one. */
void store_touch(struct store_client *c, struct slice key);
void store_begin_anew(struct store_client *c, struct slice key);
void store_leave_all(struct store_client *c, uint64_t now_ms);
void store_sessions_finish(struct store *s);
void store_each_session(const struct store *s, void (*each)(const struct link *names, void *ctx), void *ctx);

#endif
