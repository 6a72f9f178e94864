/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_C10D_H
#define PROTO_C10D_H

/* PyTorch's TCPStore protocol, both sides: requests and replies to bytes and back. Pure, and without memory of its own:
 * parsed slices borrow from the input, and the caller gives the room for encoded bytes. It needs libc only, so that
 * librdzv can link it.
 *
 * Numbers are little-endian, as PyTorch writes them on every machine it runs on. PROTOCOL.md, "The c10d store", has the
 * table. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/slice.h"

enum {
  C10D_KEY_MAX = 8192,                  /* bytes of a key, as sent: with the client's "/" */
  C10D_VALUE_MAX = 8 * 1024 * 1024,     /* of one value in a request */
  C10D_KEYS_MAX = 131072,               /* in one CHECK, WAIT, MULTI_GET or MULTI_SET */
  C10D_REQUEST_MAX = 256 * 1024 * 1024, /* of one request in all */
  C10D_REPLY_MAX = 256 * 1024 * 1024,   /* of one reply: a short MULTI_GET may ask for much */
  C10D_VALIDATE_MAGIC = 0x3C85F7CE,
};

/* X(NAME, number since 2.2, number in 2.1, number in 1.13, request, reply); -1: the operation does not exist. Letters
 * describe a request or reply:
 *   w  u32, in `number`                    k  a string, the key          K  u64 n, n keys
 *   q  i64, in `number`                    e  a string, `expected`       P  u64 n, n times key and value
 *   b  a byte, in `byte`                   v  a string, `value`          S  i64 n, n strings
 *   o  a string, `value`, if `number` is not 0                           M  as many strings as were asked for
 * A string is its u64 length and its bytes. */
#define C10D_OP_LIST(X)                                                                                                \
  X(VALIDATE, 0, -1, -1, "w", "")                                                                                      \
  X(SET, 1, 0, 0, "kv", "")                                                                                            \
  X(COMPARE_SET, 2, 1, 1, "kev", "v")                                                                                  \
  X(GET, 3, 2, 2, "k", "v")                                                                                            \
  X(ADD, 4, 3, 3, "kq", "q")                                                                                           \
  X(CHECK, 5, 4, 4, "K", "b")                                                                                          \
  X(WAIT, 6, 5, 5, "K", "b")                                                                                           \
  X(GETNUMKEYS, 7, 6, 6, "", "q")                                                                                      \
  X(DELETE_KEY, 8, 7, 8, "k", "q")                                                                                     \
  X(APPEND, 9, 8, -1, "kv", "")                                                                                        \
  X(MULTI_GET, 10, 9, -1, "K", "M")                                                                                    \
  X(MULTI_SET, 11, 10, -1, "P", "")                                                                                    \
  X(CANCEL_WAIT, 12, 11, -1, "", "b")                                                                                  \
  X(PING, 13, -1, -1, "w", "w")                                                                                        \
  X(QUEUE_PUSH, 14, -1, -1, "kv", "")                                                                                  \
  X(QUEUE_POP, 15, -1, -1, "k", "qo")                                                                                  \
  X(QUEUE_LEN, 16, -1, -1, "k", "q")                                                                                   \
  X(LIST_KEYS, 17, -1, -1, "", "S")                                                                                    \
  X(BARRIER, 18, -1, -1, "kq", "b")                                                                                    \
  X(WATCH_KEY, -1, -1, 7, "k", "") /* 1.13's second connection; the server never notifies */

#define X(name, now, v21, v113, request, reply) C10D_##name,
enum c10d_op { C10D_OP_LIST(X) C10D_OP_COUNT };
#undef X
const char *c10d_op_name(enum c10d_op op);

/* Numberings. The first bytes of a connection tell the first one from the others; 2.1 and 1.13 differ only from number
 * 7 on. */
enum c10d_dialect { C10D_SINCE_2_2, C10D_2_1, C10D_1_13 };

struct c10d_request {
  enum c10d_op op;
  struct slice key;
  struct slice value;    /* SET, APPEND, QUEUE_PUSH; COMPARE_SET: desired */
  struct slice expected; /* COMPARE_SET */
  int64_t number;        /* ADD: delta; BARRIER: world size; PING: nonce; VALIDATE: magic */
  /* CHECK, WAIT, MULTI_GET, MULTI_SET: `count` keys (and values). A parsed request has them in `items`, for
   * c10d_next_item; a request to encode in the arrays. */
  uint64_t count;
  struct slice items;
  const struct slice *keys, *values;
};

/* The position in the list of an unfinished request or reply, so that no item is looked at twice; zero for each new
 * one. */
struct c10d_progress {
  size_t offset;
  uint64_t strings;
};

/* Looks for one whole request at the front of data. 1: *r is filled, *size bytes are to be consumed. 0: more is needed;
 * *size: at least so many bytes in all before it is worth looking again. -EPROTO, -EMSGSIZE: *why is a sentence; the
 * connection is to be closed. Every length is checked as soon as it is there. */
int c10d_parse(enum c10d_dialect dialect, const char *data, size_t len, struct c10d_progress *p, struct c10d_request *r,
               size_t *size, const char **why);
/* The next key (and value, for MULTI_SET; else *value is empty) of a parsed request; *at begins with 0. False: there
 * are no more. */
bool c10d_next_item(const struct c10d_request *r, size_t *at, struct slice *key, struct slice *value);

/* Writes the request at `out` if it fits into `room` (out may be NULL with room 0). Returns its size, or 0 if the
 * numbering has no such operation. The limits are not checked: see c10d_check. */
size_t c10d_encode(enum c10d_dialect dialect, const struct c10d_request *r, char *out, size_t room);
/* Checks a request against the limits: 0, or -EMSGSIZE and a sentence. */
int c10d_check(const struct c10d_request *r, const char **why);

/* The reply to an operation. */
struct c10d_reply {
  /* ADD, GETNUMKEYS, DELETE_KEY, QUEUE_LEN; QUEUE_POP: size before; LIST_KEYS, MULTI_GET: count; PING: nonce */
  int64_t number;
  int byte;           /* CHECK 0 ready, 1 not; WAIT, BARRIER 0; CANCEL_WAIT 1 */
  struct slice value; /* GET, COMPARE_SET, QUEUE_POP */
  struct slice items; /* MULTI_GET, LIST_KEYS: `number` strings, for c10d_next_string */
};
bool c10d_has_reply(enum c10d_op op);
/* As c10d_parse, for replies. count: how many keys MULTI_GET asked for. */
int c10d_parse_reply(enum c10d_op op, uint64_t count, const char *data, size_t len, struct c10d_progress *p,
                     struct c10d_reply *r, size_t *size, const char **why);
bool c10d_next_string(struct slice items, size_t *at, struct slice *s);

#endif
