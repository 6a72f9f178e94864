/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's TCPStore protocol to bytes and back. Parser, encoder and reply parser walk the letters of C10D_OP_LIST and
 * know no single operation.
 *
 * A request has no frame: it is whole when its last field is. The parser stops at the first unfinished field with the
 * number of bytes that would help. Plain requests have at most three fields and are walked again; in a list, which may
 * have 262,144 strings, the parser goes on where it stopped. A length is compared with its limit as soon as its eight
 * bytes are there. Sizes are only added after that, so a length near 2^64 cannot wrap.
 *
 * librdzv links this file, so it uses only the C library. */

#include "proto/c10d.h"

#include <errno.h>
#include <string.h>

#define X(name, now, v21, v113, request, reply) {#name, {now, v21, v113}, request, reply},
static const struct op {
  const char *name;
  signed char number[3]; /* by dialect */
  const char *request, *reply;
} ops[C10D_OP_COUNT] = {C10D_OP_LIST(X)};
#undef X

#define TOO_LONG_KEY     "a key of more than 8192 bytes"
#define TOO_LONG_VALUE   "a value of more than 8388608 bytes"
#define TOO_MANY_KEYS    "more than 131072 keys in one request"
#define TOO_LONG_REQUEST "a request of more than 268435456 bytes"
#define TOO_LONG_REPLY   "a reply of more than 268435456 bytes"
_Static_assert(C10D_KEY_MAX == 8192 && C10D_VALUE_MAX == 8388608 && C10D_KEYS_MAX == 131072 &&
                   C10D_REQUEST_MAX == 268435456 && C10D_REPLY_MAX == 268435456,
               "the sentences name the limits");

const char *c10d_op_name(enum c10d_op op) {
  return op < C10D_OP_COUNT ? ops[op].name : "?";
}

bool c10d_has_reply(enum c10d_op op) {
  return ops[op].reply[0] != '\0';
}

static uint64_t get_le(const char *p, size_t bytes) {
  uint64_t v = 0;
  for (size_t i = bytes; i-- > 0;) v = v << 8 | (uint8_t)p[i];
  return v;
}

/* The input and the position in it. */
struct scan {
  const char *data;
  size_t len, at;
  size_t need; /* after a failure with rc 0: the bytes that are needed before more is known */
  size_t max_key, max_value, max_all;
  const char *too_long; /* the sentence for max_all */
  int rc;
  const char *why;
  struct c10d_progress *progress;
};

static bool need(struct scan *s, size_t total) {
  s->need = total;
  s->rc = 0;
  return false;
}

static bool refuse(struct scan *s, int rc, const char *why) {
  s->rc = rc;
  s->why = why;
  return false;
}

static bool scan_number(struct scan *s, size_t bytes, uint64_t *v) {
  if (s->len - s->at < bytes) return need(s, s->at + bytes);
  *v = get_le(s->data + s->at, bytes);
  s->at += bytes;
  return true;
}

/* behind: the least number of bytes that must follow the string. */
static bool scan_string(struct scan *s, bool is_key, size_t behind, struct slice *out) {
  size_t begin = s->at;
  uint64_t n;
  if (!scan_number(s, 8, &n)) return false;
  if (n > (is_key ? s->max_key : s->max_value)) return refuse(s, -EMSGSIZE, is_key ? TOO_LONG_KEY : TOO_LONG_VALUE);
  if (s->at + n + behind > s->max_all) return refuse(s, -EMSGSIZE, s->too_long);
  if (s->len - s->at < n) {
    s->at = begin;
    return need(s, begin + 8 + n + behind);
  }
  *out = (struct slice){s->data + s->at, n};
  s->at += n;
  return true;
}

/* n strings; `pairs`: every second one is a value. Goes on where it stopped. */
static bool scan_list(struct scan *s, uint64_t n, bool pairs, struct slice *items) {
  size_t begin = s->at;
  if (n > (s->max_all - s->at) / 8) return refuse(s, -EMSGSIZE, s->too_long);
  if (s->progress->strings > 0) s->at = s->progress->offset;
  while (s->progress->strings < n) {
    bool is_key = !(pairs && s->progress->strings % 2), last = s->progress->strings + 1 == n;
    struct slice string;
    if (!scan_string(s, is_key, last ? 0 : 8, &string)) return false;
    s->progress->strings++;
    s->progress->offset = s->at;
  }
  *items = (struct slice){s->data + begin, s->at - begin};
  return true;
}

static bool scan_counted(struct scan *s, bool pairs, struct c10d_request *r) {
  if (!scan_number(s, 8, &r->count)) return false;
  if (r->count > C10D_KEYS_MAX) return refuse(s, -EMSGSIZE, TOO_MANY_KEYS);
  return scan_list(s, pairs ? 2 * r->count : r->count, pairs, &r->items);
}

/* more: another field follows, which takes at least eight bytes. */
static bool scan_request_field(struct scan *s, char field, bool more, struct c10d_request *r) {
  uint64_t number;
  switch (field) {
  case 'w':
  case 'q':
    if (!scan_number(s, field == 'w' ? 4 : 8, &number)) return false;
    r->number = (int64_t)number;
    return true;
  case 'k': return scan_string(s, true, more ? 8 : 0, &r->key);
  case 'e': return scan_string(s, false, more ? 8 : 0, &r->expected);
  case 'v': return scan_string(s, false, more ? 8 : 0, &r->value);
  default: return scan_counted(s, field == 'P', r);
  }
}

/* Numbers are nearly in the order of the list, so the first or second guess is right. */
static const struct op *find_op(enum c10d_dialect dialect, char byte) {
  for (unsigned i = 0, number = (uint8_t)byte; number < C10D_OP_COUNT && i < C10D_OP_COUNT; i++) {
    const struct op *op = &ops[(number + i) % C10D_OP_COUNT];
    if (op->number[dialect] == (int)number) return op;
  }
  return NULL;
}

static int result(const struct scan *s, bool whole, size_t *size, const char **why) {
  *size = whole ? s->at : s->need;
  if (!whole && s->rc < 0 && why) *why = s->why;
  return whole ? 1 : s->rc;
}

int c10d_parse(enum c10d_dialect dialect, const char *data, size_t len, struct c10d_progress *p, struct c10d_request *r,
               size_t *size, const char **why) {
  struct scan s = {.data = data,
                   .len = len,
                   .max_key = C10D_KEY_MAX,
                   .max_value = C10D_VALUE_MAX,
                   .max_all = C10D_REQUEST_MAX,
                   .too_long = TOO_LONG_REQUEST,
                   .progress = p};
  if (len == 0) return result(&s, need(&s, 1), size, why);
  const struct op *op = find_op(dialect, data[0]);
  if (!op) return result(&s, refuse(&s, -EPROTO, "no operation has this number"), size, why);
  *r = (struct c10d_request){.op = (enum c10d_op)(op - ops)};
  s.at = 1;
  for (const char *field = op->request; *field; field++)
    if (!scan_request_field(&s, *field, field[1], r)) return result(&s, false, size, why);
  return result(&s, true, size, why);
}

bool c10d_next_string(struct slice items, size_t *at, struct slice *s) {
  if (*at >= items.len) return false;
  *s = (struct slice){items.data + *at + 8, get_le(items.data + *at, 8)};
  *at += 8 + s->len;
  return true;
}

bool c10d_next_item(const struct c10d_request *r, size_t *at, struct slice *key, struct slice *value) {
  *value = (struct slice){"", 0};
  if (!c10d_next_string(r->items, at, key)) return false;
  return r->op != C10D_MULTI_SET || c10d_next_string(r->items, at, value);
}

static bool scan_reply_field(struct scan *s, char field, uint64_t count, struct c10d_reply *r) {
  uint64_t number = 0;
  switch (field) {
  case 'w':
  case 'q':
    if (!scan_number(s, field == 'w' ? 4 : 8, &number)) return false;
    r->number = (int64_t)number;
    return true;
  case 'b':
    if (!scan_number(s, 1, &number)) return false;
    r->byte = (int)number;
    return true;
  case 'o':
    if (r->number == 0) return true;
    return scan_string(s, false, 0, &r->value);
  case 'v': return scan_string(s, false, 0, &r->value);
  case 'M': r->number = (int64_t)count; return scan_list(s, count, false, &r->items);
  default:
    if (!scan_number(s, 8, &number)) return false;
    r->number = (int64_t)number;
    return scan_list(s, number, false, &r->items);
  }
}

int c10d_parse_reply(enum c10d_op op, uint64_t count, const char *data, size_t len, struct c10d_progress *p,
                     struct c10d_reply *r, size_t *size, const char **why) {
  struct scan s = {.data = data,
                   .len = len,
                   .max_key = C10D_REPLY_MAX, /* of a list; stock servers have no limit for replies */
                   .max_value = C10D_REPLY_MAX,
                   .max_all = C10D_REPLY_MAX,
                   .too_long = TOO_LONG_REPLY,
                   .progress = p};
  *r = (struct c10d_reply){.value = {"", 0}, .items = {"", 0}};
  for (const char *field = ops[op].reply; *field; field++)
    if (!scan_reply_field(&s, *field, count, r)) return result(&s, false, size, why);
  return result(&s, true, size, why);
}

/* The room for a request. Bytes that do not fit are only counted. */
struct request_writer {
  char *out;
  size_t room, at;
};

static void put_bytes(struct request_writer *s, const void *data, size_t n) {
  if (n > 0 && n <= s->room && s->at <= s->room - n) memcpy(s->out + s->at, data, n);
  s->at += n;
}

static void put_number(struct request_writer *s, uint64_t v, size_t bytes) {
  char b[8];
  for (size_t i = 0; i < bytes; i++) b[i] = (char)(v >> (8 * i));
  put_bytes(s, b, bytes);
}

static void put_string(struct request_writer *s, struct slice v) {
  put_number(s, v.len, 8);
  put_bytes(s, v.data, v.len);
}

size_t c10d_encode(enum c10d_dialect dialect, const struct c10d_request *r, char *out, size_t room) {
  const struct op *op = &ops[r->op];
  if (op->number[dialect] < 0) return 0;
  struct request_writer s = {0};
  for (int pass = 0; pass < 2; pass++) { /* first count, then write if all of it fits */
    if (pass == 1 && s.at > room) break;
    s = (struct request_writer){out, pass ? room : 0, 0};
    put_number(&s, (uint64_t)op->number[dialect], 1);
    for (const char *field = op->request; *field; field++) switch (*field) {
      case 'w': put_number(&s, (uint64_t)r->number, 4); break;
      case 'q': put_number(&s, (uint64_t)r->number, 8); break;
      case 'k': put_string(&s, r->key); break;
      case 'e': put_string(&s, r->expected); break;
      case 'v': put_string(&s, r->value); break;
      default:
        put_number(&s, r->count, 8);
        for (uint64_t i = 0; i < r->count; i++) {
          put_string(&s, r->keys[i]);
          if (*field == 'P') put_string(&s, r->values[i]);
        }
      }
  }
  return s.at;
}

int c10d_check(const struct c10d_request *r, const char **why) {
  bool pairs = r->op == C10D_MULTI_SET;
  *why = NULL;
  if (r->key.len > C10D_KEY_MAX) *why = TOO_LONG_KEY;
  if (r->value.len > C10D_VALUE_MAX || r->expected.len > C10D_VALUE_MAX) *why = TOO_LONG_VALUE;
  if (r->count > C10D_KEYS_MAX) *why = TOO_MANY_KEYS;
  for (uint64_t i = 0; i < r->count && !*why; i++) {
    if (r->keys[i].len > C10D_KEY_MAX) *why = TOO_LONG_KEY;
    if (pairs && r->values[i].len > C10D_VALUE_MAX) *why = TOO_LONG_VALUE;
  }
  if (!*why && c10d_encode(C10D_SINCE_2_2, r, NULL, 0) > C10D_REQUEST_MAX) *why = TOO_LONG_REQUEST;
  return *why ? -EMSGSIZE : 0;
}
