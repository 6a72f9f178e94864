/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_STORE_STORE_H
#define COMMON_STORE_STORE_H

/* Keys, values, queues and waits: the store behind the round's port in the agent and behind the daemon's port. Pure: no
 * socket and no clock. When a wait has ended, store_next_released names its client.
 *
 * It keeps PyTorch's semantics (PROTOCOL.md, "The c10d store"). WAIT counts the keys that are missing when it is asked,
 * and a key that was set and deleted again still counts as seen. ADD stores decimal digits. A queue may have the name
 * of a key, but a queue that is not empty counts as present for CHECK and WAIT.
 *
 * Memory is bounded. Every key, value, queue element and awaited key is charged with its bytes and the cost of keeping
 * them. An operation that would exceed a limit is refused as a whole with -ENOSPC and a sentence, before anything has
 * changed.
 *
 * Sessions are for the daemon's common store. With session_prefix P, a client that names a key P<id>, P<id>/... or
 * P<id>.<digits>/... belongs to the session <id>. Its keys are deleted ttl_ms after the last such client has gone. They
 * are deleted at once when a new client then begins the session with COMPARE_SET from empty, as torchrun opens a
 * rendezvous. So the same id can be used twice in a row. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/slice.h"

struct store_config {
  uint64_t seed;              /* of the hash */
  size_t max_bytes;           /* the sum of all charges; 0: STORE_MAX_BYTES */
  size_t max_keys;            /* keys and queue elements; 0: STORE_MAX_KEYS */
  size_t max_value;           /* bytes of one value, appended ones included; 0: STORE_MAX_VALUE */
  size_t max_waits;           /* keys that one client waits for; 0: STORE_MAX_WAITS */
  const char *session_prefix; /* "/torch.rendezvous.", copied; NULL: no sessions */
  uint64_t session_ttl_ms;
};

enum {
  STORE_MAX_KEY = 65536, /* bytes of a key */
  STORE_MAX_KEYS = 16 * 1024 * 1024,
  STORE_MAX_VALUE = 64 * 1024 * 1024,
  STORE_MAX_WAITS = 2 * 131072,
  STORE_MAX_SESSIONS = 64, /* that one client may belong to */
};
#define STORE_MAX_BYTES ((size_t)4 << 30)

struct store;
struct store_client; /* one per connection */

struct store *store_create(const struct store_config *config);
void store_destroy(struct store *s); /* after its clients; NULL is fine */

struct store_client *store_client_create(struct store *s, void *owner);
/* Ends its waits; its sessions get their deadline from now_ms. NULL is fine. */
void store_client_destroy(struct store_client *c, uint64_t now_ms);
void *store_client_owner(const struct store_client *c);

/* Every operation is a client's, since it may belong to a session. Input is copied; returned slices are valid until the
 * next call. Errors: -ENOSPC (a limit), -EINVAL (ADD to a value that is not a number). */
int store_set(struct store_client *c, struct slice key, struct slice value, struct err *e);
bool store_get(struct store_client *c, struct slice key, struct slice *value); /* false: *value is empty */
int store_add(struct store_client *c, struct slice key, int64_t delta, int64_t *total, struct err *e);
/* *now: the answer of COMPARE_SET, which is `expected` if the key is absent and expected is not empty. Waiters of the
 * key are released even then, as in PyTorch. */
int store_compare_set(struct store_client *c, struct slice key, struct slice expected, struct slice desired,
                      struct slice *now, struct err *e);
int store_append(struct store_client *c, struct slice key, struct slice data, struct err *e);
bool store_delete(struct store_client *c, struct slice key); /* whether it was there */
bool store_has(struct store_client *c, struct slice key);    /* as CHECK sees it */

size_t store_count(const struct store *s);     /* of keys, without queues */
size_t store_key_bytes(const struct store *s); /* of all their names together */
/* Calls `each` for every key once, those of sessions last; the store must not change meanwhile. */
void store_each_key(const struct store *s, void (*each)(void *ctx, struct slice key), void *ctx);

int store_queue_push(struct store_client *c, struct slice key, struct slice value, struct err *e);
/* Returns the number of elements before the pop; if it is not 0, *value is the first one, valid until the next pop or
 * the end of the store. */
uint64_t store_queue_pop(struct store_client *c, struct slice key, struct slice *value);
uint64_t store_queue_len(struct store_client *c, struct slice key);

/* A wait: begin, one key at a time, end. True: no key is missing, answer now. False: store_next_released or
 * store_take_released will name the client once for this wait. A client may have several waits. -ENOSPC from
 * store_wait_key: the wait is dropped. */
void store_wait_begin(struct store_client *c);
int store_wait_key(struct store_client *c, struct slice key, struct err *e);
bool store_wait_end(struct store_client *c);
/* Adds 1 to the key. *released: world_size callers have come, this one included, and the waiters of the key are
 * released. Else it is a wait for the key, and releases no waiter. As in PyTorch, any value that others store under the
 * key releases it too. */
int store_barrier(struct store_client *c, struct slice key, int64_t world_size, bool *released, struct err *e);
void store_cancel(struct store_client *c); /* drops all its waits; a release that was not reported yet stays */

/* A client with a wait that has ended, in the order of the ends; NULL: none now. */
struct store_client *store_next_released(struct store *s);
/* How many waits of this client have ended and were not reported; they are reported by this. */
size_t store_take_released(struct store_client *c);

/* Sessions. */
uint64_t store_deadline(const struct store *s); /* UINT64_MAX: none */
void store_expire(struct store *s, uint64_t now_ms);

size_t store_bytes(const struct store *s); /* the bytes charged now */

#endif
