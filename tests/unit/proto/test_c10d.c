/* SPDX-License-Identifier: Apache-2.0 */
/* c10d: the codec alone. Random requests of every op in every numbering come back as they were, whole and in pieces;
 * replies too; limits at their value and one above. */

#include "proto/c10d.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "tests/rig/unit.h"

static uint64_t seed;

static uint64_t below(uint64_t n) { /* splitmix64 */
  uint64_t z = seed += 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return (z ^ z >> 31) % n;
}

enum { ITEMS = 5 };

/* A request with its bytes. */
struct sample {
  struct c10d_request r;
  struct slice keys[ITEMS], values[ITEMS];
  char bytes[ITEMS * 2 + 3][24];
};

static struct slice random_slice(struct sample *s, size_t at) {
  size_t len = below(3) ? below(sizeof(s->bytes[at])) : 0;
  for (size_t i = 0; i < len; i++) s->bytes[at][i] = (char)below(256);
  return (struct slice){s->bytes[at], len};
}

static bool follows(enum c10d_op op, const char *letters) {
#define X(name, now, v21, v113, request, reply) request,
  static const char *const requests[] = {C10D_OP_LIST(X)};
#undef X
  return strpbrk(requests[op], letters);
}

static void random_request(struct sample *s, enum c10d_op op) {
  memset(s, 0, sizeof(*s));
  s->r.op = op;
  if (follows(op, "w")) s->r.number = (int64_t)below(UINT64_C(1) << 32);
  if (follows(op, "q")) s->r.number = (int64_t)(below(UINT64_MAX));
  if (follows(op, "k")) s->r.key = random_slice(s, 2 * ITEMS);
  if (follows(op, "e")) s->r.expected = random_slice(s, 2 * ITEMS + 1);
  if (follows(op, "v")) s->r.value = random_slice(s, 2 * ITEMS + 2);
  if (!follows(op, "KP")) return;
  s->r.count = below(ITEMS + 1);
  s->r.keys = s->keys;
  s->r.values = s->values;
  for (size_t i = 0; i < s->r.count; i++) {
    s->keys[i] = random_slice(s, 2 * i);
    if (follows(op, "P")) s->values[i] = random_slice(s, 2 * i + 1);
  }
}

static void assert_same(struct slice a, struct slice b) {
  assert_int_equal(a.len, b.len);
  if (a.len) assert_memory_equal(a.data, b.data, a.len);
}

static void assert_same_request(const struct sample *s, const struct c10d_request *r) {
  assert_int_equal(r->op, s->r.op);
  assert_true(r->number == s->r.number && r->count == s->r.count);
  assert_same(r->key, s->r.key);
  assert_same(r->value, s->r.value);
  assert_same(r->expected, s->r.expected);
  size_t at = 0, i = 0;
  for (struct slice key, value; c10d_next_item(r, &at, &key, &value); i++) {
    assert_same(key, s->keys[i]);
    assert_same(value, s->values[i]);
  }
  assert_true(i == s->r.count);
}

/* A copy that ends where the data end, so that ASan sees a step beyond. */
static int parse_exactly(enum c10d_dialect d, const char *data, size_t len, struct c10d_progress *p,
                         struct c10d_request *r, size_t *size, char **copy) {
  const char *why = NULL;
  *copy = len ? malloc(len) : NULL;
  if (len) memcpy(*copy, data, len);
  return c10d_parse(d, *copy, len, p, r, size, &why);
}

static void check_pieces(enum c10d_dialect d, const struct sample *s, const char *data, size_t len) {
  struct c10d_progress p = {0};
  struct c10d_request r;
  size_t need = 0, size;
  char *copy;
  for (size_t n = 0; n < len; n++) {
    int rc = parse_exactly(d, data, n, &p, &r, &size, &copy);
    free(copy);
    assert_int_equal(rc, 0);
    assert_true(size > n && size <= len && size >= need);
    need = size;
  }
  assert_int_equal(parse_exactly(d, data, len, &p, &r, &size, &copy), 1);
  assert_int_equal(size, len);
  assert_same_request(s, &r);
  free(copy);
}

UNIT_TEST(test_every_op_in_every_numbering) {
  unsigned n = 0;
  seed = 1;
  for (int turn = 0; turn < 99; turn++)
    for (enum c10d_op op = 0; op < C10D_OP_COUNT; op++)
      for (enum c10d_dialect d = C10D_SINCE_2_2; d <= C10D_1_13; d++) {
        struct sample s;
        char out[512];
        random_request(&s, op);
        size_t len = c10d_encode(d, &s.r, NULL, 0);
        assert_true(len <= sizeof(out));
        if (len == 0) continue; /* not of this numbering */
        memset(out, '!', sizeof(out));
        assert_int_equal(c10d_encode(d, &s.r, out, len - 1), len);
        assert_int_equal(out[0], '!'); /* nothing of what does not fit */
        assert_int_equal(c10d_encode(d, &s.r, out, len), len);
        assert_true(len == sizeof(out) || out[len] == '!');
        check_pieces(d, &s, out, len);
        n++;
      }
  assert_int_equal(n, 99 * (19 + 12 + 9));
}

UNIT_TEST(test_numbers) {
#define X(name, now, v21, v113, request, reply)                                                                        \
  {                                                                                                                    \
    struct c10d_request r = {.op = C10D_##name};                                                                       \
    const int numbers[] = {now, v21, v113};                                                                            \
    for (int d = 0; d < 3; d++) {                                                                                      \
      char out[64] = {'?'};                                                                                            \
      size_t len = c10d_encode((enum c10d_dialect)d, &r, out, sizeof(out));                                            \
      assert_int_equal(numbers[d] < 0 ? '?' : numbers[d], out[0]);                                                     \
      assert_int_equal(len == 0, numbers[d] < 0);                                                                      \
    }                                                                                                                  \
    assert_string_equal(c10d_op_name(C10D_##name), #name);                                                             \
    assert_int_equal(c10d_has_reply(C10D_##name), reply[0] != 0);                                                      \
  }
  C10D_OP_LIST(X)
#undef X
  assert_string_equal(c10d_op_name(C10D_OP_COUNT), "?");
}

UNIT_TEST(test_no_such_number) {
  for (int d = 0; d < 3; d++)
    for (int byte = 0; byte < 256; byte++) {
      char data = (char)byte;
      struct c10d_progress p = {0};
      struct c10d_request r;
      size_t size;
      const char *why = NULL;
      static const int most[] = {18, 11, 8};
      int rc = c10d_parse((enum c10d_dialect)d, &data, 1, &p, &r, &size, &why);
      assert_int_equal(rc == -EPROTO, byte > most[d]);
      assert_int_equal(why != NULL, rc < 0);
    }
}

/* A request that begins like this, with the length n behind it. */
static int with_length(const char *begin, size_t len, uint64_t n, const char **why) {
  char data[64];
  struct c10d_progress p = {0};
  struct c10d_request r;
  size_t size;
  memcpy(data, begin, len);
  le64_put(data + len, n);
  *why = NULL;
  return c10d_parse(C10D_SINCE_2_2, data, len + 8, &p, &r, &size, why);
}

static void check_limit(const char *begin, size_t len, uint64_t limit, const char *sentence) {
  const char *why;
  assert_int_equal(with_length(begin, len, limit, &why), 0);
  for (int shift = 0; shift < 64; shift++) {
    uint64_t n = limit + (UINT64_C(1) << shift);
    assert_int_equal(with_length(begin, len, n, &why), -EMSGSIZE);
    assert_string_equal(why, sentence);
  }
  for (uint64_t n = UINT64_MAX; n > UINT64_MAX - 64; n--) assert_int_equal(with_length(begin, len, n, &why), -EMSGSIZE);
}

UNIT_TEST(test_limits) {
  static const char none[] = "\x01\0\0\0\0\0\0\0\0", list[] = "\x06\x02\0\0\0\0\0\0\0",
                    pairs[] = "\x0b\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k";
  check_limit("\x01", 1, C10D_KEY_MAX, "a key of more than 8192 bytes");
  check_limit(none, 9, C10D_VALUE_MAX, "a value of more than 8388608 bytes");
  check_limit("\x06", 1, C10D_KEYS_MAX, "more than 131072 keys in one request");
  check_limit("\x0b", 1, C10D_KEYS_MAX, "more than 131072 keys in one request");
  check_limit(list, 9, C10D_KEY_MAX, "a key of more than 8192 bytes");
  check_limit(pairs, 18, C10D_VALUE_MAX, "a value of more than 8388608 bytes");
}

/* Values of 8 MiB each, until one more would be too much; the last is made to fit to the byte. */
UNIT_TEST(test_limit_of_a_whole_request) {
  size_t cap = C10D_REQUEST_MAX + 64;
  char *data = xcalloc(1, cap), *value = xcalloc(1, C10D_VALUE_MAX);
  for (size_t over = 0; over < 2; over++) {
    struct slice keys[32], values[32];
    struct c10d_request r = {.op = C10D_MULTI_SET, .count = 32, .keys = keys, .values = values};
    for (int i = 0; i < 32; i++) {
      keys[i] = (struct slice){"k", 1};
      values[i] = (struct slice){value, C10D_VALUE_MAX - (i == 31 ? 9 + 32 * 17 - over : 0)};
    }
    const char *why = NULL;
    size_t len = c10d_encode(C10D_SINCE_2_2, &r, data, cap), size;
    assert_int_equal(len, C10D_REQUEST_MAX + over);
    assert_int_equal(c10d_check(&r, &why), over ? -EMSGSIZE : 0);
    struct c10d_progress p = {0};
    /* It is refused when the last length is there, not when the last byte is. */
    size_t seen = len - values[31].len;
    assert_int_equal(c10d_parse(C10D_SINCE_2_2, data, over ? seen : len, &p, &r, &size, &why), over ? -EMSGSIZE : 1);
    if (over) assert_string_equal(why, "a request of more than 268435456 bytes");
  }
  free(data);
  free(value);
}

UNIT_TEST(test_check) {
  static char bytes[C10D_VALUE_MAX + 1];
  const char *why;
  struct slice keys[2] = {{bytes, 1}, {bytes, C10D_KEY_MAX}}, values[2] = {{bytes, C10D_VALUE_MAX}, {bytes, 0}};
  struct c10d_request r = {.op = C10D_SET, .key = {bytes, C10D_KEY_MAX}, .value = {bytes, C10D_VALUE_MAX}};
  assert_int_equal(c10d_check(&r, &why), 0);
  r.key.len++;
  assert_int_equal(c10d_check(&r, &why), -EMSGSIZE);
  r.key.len--;
  r.expected = (struct slice){bytes, C10D_VALUE_MAX + 1};
  assert_int_equal(c10d_check(&r, &why), -EMSGSIZE);
  r = (struct c10d_request){.op = C10D_MULTI_SET, .count = 2, .keys = keys, .values = values};
  assert_int_equal(c10d_check(&r, &why), 0);
  keys[1].len++;
  assert_int_equal(c10d_check(&r, &why), -EMSGSIZE);
  keys[1].len--;
  values[0].len++;
  assert_int_equal(c10d_check(&r, &why), -EMSGSIZE);
  r.op = C10D_WAIT; /* has no values */
  assert_int_equal(c10d_check(&r, &why), 0);
  r.count = C10D_KEYS_MAX + 1;
  assert_int_equal(c10d_check(&r, &why), -EMSGSIZE);
}

/* Every reply in pieces: 0 until it is whole, then 1 and all of it. */
static void check_reply(enum c10d_op op, uint64_t count, const void *data, size_t len, struct c10d_reply *r) {
  struct c10d_progress p = {0};
  const char *why = NULL;
  size_t size;
  for (size_t n = 0; n < len; n++) {
    char *copy = n ? xmemdup(data, n) : NULL;
    assert_int_equal(c10d_parse_reply(op, count, copy, n, &p, r, &size, &why), 0);
    assert_true(size > n && size <= len);
    free(copy);
  }
  char more[256];
  memcpy(more, data, len);
  assert_int_equal(c10d_parse_reply(op, count, data, len, &p, r, &size, &why), 1);
  assert_int_equal(size, len);
  p = (struct c10d_progress){0};
  assert_int_equal(c10d_parse_reply(op, count, more, sizeof(more), &p, r, &size, &why), 1);
  assert_int_equal(size, len); /* what follows is the next one's */
  p = (struct c10d_progress){0};
  assert_int_equal(c10d_parse_reply(op, count, data, len, &p, r, &size, &why), 1);
}

static void assert_strings(const struct c10d_reply *r, const char *const want[], size_t n) {
  size_t at = 0;
  struct slice s;
  assert_int_equal(r->number, n);
  for (size_t i = 0; i < n; i++) {
    assert_true(c10d_next_string(r->items, &at, &s));
    assert_same(s, (struct slice){want[i], strlen(want[i])});
  }
  assert_false(c10d_next_string(r->items, &at, &s));
}

UNIT_TEST(test_replies) {
  struct c10d_reply r;
  static const char *const two[] = {"ab", ""};
  static const char value[] = "\3\0\0\0\0\0\0\0xyz", strings[] = "\2\0\0\0\0\0\0\0ab\0\0\0\0\0\0\0\0",
                    list[] = "\2\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0ab\0\0\0\0\0\0\0\0",
                    popped[] = "\5\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0xyz";
  check_reply(C10D_GET, 0, value, 11, &r);
  assert_same(r.value, (struct slice){"xyz", 3});
  check_reply(C10D_ADD, 0, "\xfe\xff\xff\xff\xff\xff\xff\xff", 8, &r);
  assert_int_equal(r.number, -2);
  check_reply(C10D_CHECK, 0, "\1", 1, &r);
  assert_int_equal(r.byte, 1);
  check_reply(C10D_PING, 0, "\xff\xff\xff\xff", 4, &r);
  assert_true(r.number == 0xFFFFFFFF);
  check_reply(C10D_MULTI_GET, 2, strings, 18, &r);
  assert_strings(&r, two, 2);
  check_reply(C10D_MULTI_GET, 0, "", 0, &r);
  assert_strings(&r, two, 0);
  check_reply(C10D_LIST_KEYS, 0, list, 26, &r);
  assert_strings(&r, two, 2);
  check_reply(C10D_QUEUE_POP, 0, popped, 19, &r);
  assert_int_equal(r.number, 5);
  assert_same(r.value, (struct slice){"xyz", 3});
  check_reply(C10D_QUEUE_POP, 0, "\0\0\0\0\0\0\0\0", 8, &r);
  assert_int_equal(r.number, 0);
  check_reply(C10D_SET, 0, "", 0, &r);
}

UNIT_TEST(test_reply_limits) {
  struct c10d_reply r;
  char data[16];
  const char *why;
  size_t size;
  for (int shift = 0; shift < 64; shift++) {
    struct c10d_progress p = {0};
    uint64_t most = C10D_REPLY_MAX - 8;
    le64_put(data, most);
    assert_int_equal(c10d_parse_reply(C10D_GET, 0, data, 8, &p, &r, &size, &why), 0);
    assert_int_equal(size, C10D_REPLY_MAX);
    le64_put(data, most + (UINT64_C(1) << shift));
    assert_int_equal(c10d_parse_reply(C10D_GET, 0, data, 8, &p, &r, &size, &why), -EMSGSIZE);
    le64_put(data, (C10D_REPLY_MAX - 8) / 8 + (UINT64_C(1) << shift));
    assert_int_equal(c10d_parse_reply(C10D_LIST_KEYS, 0, data, 8, &p, &r, &size, &why), -EMSGSIZE);
  }
}
