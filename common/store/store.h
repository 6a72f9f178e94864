#ifndef COMMON_STORE_H
#define COMMON_STORE_H

/* Keys, values, queues, and who waits for them: the one store, behind the round's port in the agent and behind the daemon's. Pure: no socket and
 * no clock; what is to be told to a client whose wait has ended is handed out by store_next_released.
 *
 * It keeps PyTorch's semantics (PROTOCOL.md, "The c10d store"): WAIT counts the keys that are missing when it is asked, and a key that was set
 * and deleted again still counts as seen; ADD stores decimal digits; a queue is a name space beside the keys, but a non-empty queue counts as
 * present for CHECK and WAIT.
 *
 * Memory is bounded: every key, value, queue element and awaited key is charged with its bytes and what it costs to keep them, and what would exceed a
 * limit is refused as a whole with -ENOSPC and a sentence, before anything has changed.
 *
 * Sessions, for the daemon's common space: with session_prefix P, every client that names a key P<id>, P<id>/..., or P<id>.<digits>/... belongs
 * to the session <id>. All its keys go ttl_ms after the last such client has gone; and at once, when then a client that is new to the session
 * begins it with COMPARE_SET from empty (that is how torchrun opens a rendezvous): the same id can be used twice in a row. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/slice.h"

struct store_config {
  uint64_t seed;              /* of the hash */
  size_t max_bytes;           /* all that is charged; 0: STORE_MAX_BYTES */
  size_t max_keys;            /* keys and queue elements; 0: STORE_MAX_KEYS */
  size_t max_value;           /* bytes of one value, however it came to them; 0: STORE_MAX_VALUE */
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
struct store_client; /* somebody who asks: one per connection */

struct store *store_create(const struct store_config *config);
void store_destroy(struct store *s); /* after its clients; NULL is fine */

struct store_client *store_client_create(struct store *s, void *owner);
/* Its waits are forgotten; its sessions get their deadline from now_ms. NULL is fine. */
void store_client_destroy(struct store_client *c, uint64_t now_ms);
void *store_client_owner(const struct store_client *c);

/* Every operation is a client's, since it may belong to a session. Slices that go in are not the store's own; those that come out are valid until the next
 * call. Errors: -ENOSPC (a limit), -EINVAL (ADD to what is no number). */
int store_set(struct store_client *c, struct slice key, struct slice value, struct err *e);
bool store_get(struct store_client *c, struct slice key, struct slice *value); /* false: *value is empty */
int store_add(struct store_client *c, struct slice key, int64_t delta, int64_t *total, struct err *e);
/* *now: as COMPARE_SET answers, which is `expected` where the key is absent and expected is not empty. Wakes who waits for the key even then, as PyTorch does. */
int store_compare_set(struct store_client *c, struct slice key, struct slice expected, struct slice desired,
                      struct slice *now, struct err *e);
int store_append(struct store_client *c, struct slice key, struct slice data, struct err *e);
bool store_delete(struct store_client *c, struct slice key); /* whether it was there */
bool store_has(struct store_client *c, struct slice key);    /* as CHECK sees it */

size_t store_count(const struct store *s);     /* of keys, without queues */
size_t store_key_bytes(const struct store *s); /* of all their names together */
/* Every key once, those of sessions last; nothing may change meanwhile. */
void store_each_key(const struct store *s, void (*each)(void *ctx, struct slice key), void *ctx);

int store_queue_push(struct store_client *c, struct slice key, struct slice value, struct err *e);
/* Elements before the pop; if not 0, *value is the first one, valid until the next pop or the store's end. */
uint64_t store_queue_pop(struct store_client *c, struct slice key, struct slice *value);
uint64_t store_queue_len(struct store_client *c, struct slice key);

/* A wait: begin, a key at a time, end. True: nothing is missing, answer now. False: the client will be named once for it by
 * store_next_released or store_take_released. A client may have several. -ENOSPC from store_wait_key: the wait begun is gone. */
void store_wait_begin(struct store_client *c);
int store_wait_key(struct store_client *c, struct slice key, struct err *e);
bool store_wait_end(struct store_client *c);
/* ADD 1 to the key; true in *released: world_size have come, this one included, and who waits for the key is released. Else as a wait for the key, and nobody is
 * woken: as PyTorch has it, whatever is stored there by others releases too. */
int store_barrier(struct store_client *c, struct slice key, int64_t world_size, bool *released,
                  struct err *e);
void store_cancel(struct store_client *c); /* all its waits; a release that was not handed out yet stays */

/* A client of which a wait has ended, in the order of the ends; NULL: no more now. */
struct store_client *store_next_released(struct store *s);
/* How many of this client's waits have ended and were not handed out yet: now they are. */
size_t store_take_released(struct store_client *c);

/* Sessions. */
uint64_t store_deadline(const struct store *s); /* UINT64_MAX: none */
void store_expire(struct store *s, uint64_t now_ms);

size_t store_bytes(const struct store *s); /* what is charged now */

#endif
