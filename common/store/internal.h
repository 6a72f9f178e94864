/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_STORE_INTERNAL_H
#define COMMON_STORE_INTERNAL_H

/* Shared by the store's files. Only they include it.
 *
 * store.c    the operations on keys and queues
 * table.c    names to entries; the bytes that entries are charged for
 * wait.c     which client waits for which keys
 * expiry.c   which client belongs to which session, and when a session is forgotten */

#include "common/chain.h"
#include "common/map.h"
#include "common/siphash.h"
#include "common/store/store.h"

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

/* The limits that an operation would use; checked before anything is changed. */
struct store_need {
  size_t bytes, items;
};
int store_check(const struct store *s, struct slice key, struct store_need need, struct err *e);

/* table.c */
struct store_entry *store_find(const struct store *s, struct slice key);
/* The cost of a name of key_len bytes with room for a value. */
size_t store_entry_cost(size_t key_len, size_t room);
/* Adds a name that is not there yet, without a value. */
struct store_entry *store_entry_add(struct store *s, struct slice key, size_t room, struct chain *names);
/* Changes the room for the value; the entry may move. */
struct store_entry *store_entry_resize(struct store *s, struct store_entry *entry, size_t room);
/* Frees parts that the entry no longer needs: the extra, the entry itself. */
void store_entry_tidy(struct store *s, struct store_entry *entry);
struct store_extra *store_entry_extra(struct store *s, struct store_entry *entry);
void store_drop_value(struct store *s, struct store_entry *entry); /* the entry may be gone then */
void store_drop_queue(struct store *s, struct store_extra *extra);
void store_table_finish(struct store *s);
struct slice store_entry_key(const struct store_entry *entry);

/* wait.c */
void store_wake_all(struct store *s, struct store_entry *entry); /* the entry may be gone then */
void store_wake_one(struct store *s, struct store_entry *entry);
/* Checks whether the client may wait for one key more; *bytes: the cost besides the name itself. */
int store_wait_check(struct store_client *c, const struct store_entry *entry, size_t *bytes, struct err *e);
void store_await(struct store_client *c, struct store_entry *entry);
void store_forget_waits(struct store_client *c);

/* expiry.c */
/* The client names a key to write it, and joins its session. *names is the list for a name that will be added. */
int store_join(struct store_client *c, struct slice key, struct chain **names, struct err *e);
/* The client names a key to read it, and joins its session if that exists. */
void store_touch(struct store_client *c, struct slice key);
void store_begin_anew(struct store_client *c, struct slice key);
void store_leave_all(struct store_client *c, uint64_t now_ms);
void store_sessions_finish(struct store *s);
void store_each_session(const struct store *s, void (*each)(const struct chain *names, void *ctx), void *ctx);

#endif
