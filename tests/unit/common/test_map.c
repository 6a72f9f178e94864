/* SPDX-License-Identifier: Apache-2.0 */
/* map: against a plain array, with many keys, holes, removal while iterating, order. */

#include "common/map.h"

#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static void *number(uintptr_t n) {
  return (void *)n;
}

UNIT_TEST(test_empty) {
  struct map m;
  map_init(&m, 1);
  assert_null(map_get(&m, "x"));
  assert_null(map_remove(&m, "x"));
  assert_null(map_next(&m, NULL));
  assert_int_equal(m.count, 0);
  map_finish(&m);
  map_finish(&m);
}

UNIT_TEST(test_put_get_remove) {
  SCOPED(map_finish) struct map m;
  char key[] = "alpha";
  map_init(&m, 42);
  assert_null(map_put(&m, key, number(1)));
  key[0] = 'x'; /* the key was copied */
  assert_ptr_equal(map_get(&m, "alpha"), number(1));
  assert_null(map_get(&m, "xlpha"));
  assert_ptr_equal(map_put(&m, "alpha", number(2)), number(1));
  assert_int_equal(m.count, 1);
  assert_ptr_equal(map_remove(&m, "alpha"), number(2));
  assert_null(map_get(&m, "alpha"));
  assert_null(map_remove(&m, "alpha"));
  assert_int_equal(m.count, 0);
  assert_null(map_put(&m, "alpha", number(3)));
  assert_ptr_equal(map_get(&m, "alpha"), number(3));
}

UNIT_TEST(test_keys_are_bytes) {
  SCOPED(map_finish) struct map m;
  map_init(&m, 42);
  map_put_n(&m, "", 0, number(1));
  map_put_n(&m, "\0", 1, number(2));
  map_put_n(&m, "\0\0", 2, number(3));
  map_put_n(&m, "a\0b", 3, number(4));
  map_put_n(&m, "a\0c", 3, number(5));
  map_put(&m, "a", number(6));
  assert_ptr_equal(map_get(&m, ""), number(1));
  assert_ptr_equal(map_get_n(&m, "\0", 1), number(2));
  assert_ptr_equal(map_get_n(&m, "\0\0", 2), number(3));
  assert_ptr_equal(map_get_n(&m, "a\0b", 3), number(4));
  assert_ptr_equal(map_get_n(&m, "a\0c", 3), number(5));
  assert_ptr_equal(map_get(&m, "a"), number(6));
  assert_ptr_equal(map_remove_n(&m, "a\0b", 3), number(4));
  assert_ptr_equal(map_get_n(&m, "a\0c", 3), number(5));
  assert_int_equal(m.count, 5);
}

UNIT_TEST(test_many_keys_in_order) {
  enum { N = 20000 };
  SCOPED(map_finish) struct map m;
  char key[32];
  map_init(&m, 7);
  for (uintptr_t i = 0; i < N; i++) {
    snprintf(key, sizeof(key), "key-%zu", (size_t)i * 7919 % N);
    assert_null(map_put(&m, key, number(i + 1)));
  }
  assert_int_equal(m.count, N);
  uintptr_t at = 0;
  for (struct map_entry *e = NULL; (e = map_next(&m, e));) {
    snprintf(key, sizeof(key), "key-%zu", (size_t)at * 7919 % N);
    assert_string_equal(e->key, key);
    assert_int_equal(e->key_len, strlen(key));
    assert_ptr_equal(e->value, number(++at));
  }
  assert_int_equal(at, N);
  for (size_t i = 0; i < N; i++) {
    snprintf(key, sizeof(key), "key-%zu", i);
    assert_non_null(map_get(&m, key));
  }
}

UNIT_TEST(test_order_after_replace_and_remove) {
  SCOPED(map_finish) struct map m;
  char seen[16] = "";
  map_init(&m, 9);
  map_put(&m, "a", number(1));
  map_put(&m, "b", number(2));
  map_put(&m, "c", number(3));
  map_put(&m, "a", number(4)); /* stays where it was */
  map_remove(&m, "b");
  map_put(&m, "d", number(5));
  map_put(&m, "b", number(6)); /* is new, so comes last */
  for (struct map_entry *e = NULL; (e = map_next(&m, e));) strncat(seen, e->key, 1);
  assert_string_equal(seen, "acdb");
}

UNIT_TEST(test_remove_inside_iteration) {
  SCOPED(map_finish) struct map m;
  char key[16];
  map_init(&m, 3);
  for (uintptr_t i = 1; i <= 1000; i++) {
    snprintf(key, sizeof(key), "%zu", (size_t)i);
    map_put(&m, key, number(i));
  }
  uintptr_t visited = 0;
  for (struct map_entry *e = NULL; (e = map_next(&m, e));) {
    assert_ptr_equal(e->value, number(++visited));
    if (visited % 3) assert_ptr_equal(map_remove_n(&m, e->key, e->key_len), number(visited));
  }
  assert_int_equal(visited, 1000);
  assert_int_equal(m.count, 333);
  uintptr_t want = 0;
  for (struct map_entry *e = NULL; (e = map_next(&m, e));) assert_ptr_equal(e->value, number(want += 3));
  for (struct map_entry *e = NULL; (e = map_next(&m, e));) map_remove(&m, e->key);
  assert_int_equal(m.count, 0);
  assert_null(map_next(&m, NULL));
}

/* A queue's life: what comes goes again. Holes are swept, so the memory stays that of the few that live. */
UNIT_TEST(test_churn_does_not_grow) {
  SCOPED(map_finish) struct map m;
  char key[16];
  map_init(&m, 5);
  for (uintptr_t i = 1; i <= 100000; i++) {
    snprintf(key, sizeof(key), "%zu", (size_t)i);
    map_put(&m, key, number(i));
    if (i <= 10) continue;
    snprintf(key, sizeof(key), "%zu", (size_t)i - 10);
    assert_ptr_equal(map_remove(&m, key), number(i - 10));
  }
  assert_int_equal(m.count, 10);
  assert_true(m.cap_entries <= 32);
}

UNIT_TEST(test_against_an_array) {
  enum { KEYS = 300, STEPS = 200000 };
  uintptr_t model[KEYS] = {0};
  size_t count = 0;
  uint64_t x = 88172645463325252;
  SCOPED(map_finish) struct map m;
  map_init(&m, 11);
  for (uintptr_t step = 1; step <= STEPS; step++) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    size_t k = x % KEYS;
    char key[16];
    snprintf(key, sizeof(key), "k%zu", k);
    if (x >> 32 & 1) {
      assert_ptr_equal(map_put(&m, key, number(step)), number(model[k]));
      count += model[k] == 0;
      model[k] = step;
    } else {
      assert_ptr_equal(map_remove(&m, key), number(model[k]));
      count -= model[k] != 0;
      model[k] = 0;
    }
    assert_int_equal(m.count, count);
  }
  for (size_t k = 0; k < KEYS; k++) {
    char key[16];
    snprintf(key, sizeof(key), "k%zu", k);
    assert_ptr_equal(map_get(&m, key), number(model[k]));
  }
}

/* The vectors of the SipHash paper's reference: key 00..0f, input 00..(n-1). Seeds are set by hand for it. */
UNIT_TEST(test_hash_is_siphash) {
  static const struct {
    size_t n;
    uint64_t want;
  } vectors[] = {{0, 0x726fdb47dd0e0e31},  {1, 0x74f839c593dc67fd},  {7, 0xab0200f58b01d137}, {8, 0x93f5f5799a932462},
                 {15, 0xa129ca6149be45e5}, {16, 0x3f2acc7f57c29bdb}, {63, 0x958a324ceb064572}};
  uint8_t input[64];
  for (size_t i = 0; i < sizeof(input); i++) input[i] = (uint8_t)i;
  for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
    SCOPED(map_finish) struct map m;
    map_init(&m, 0);
    m.key.k[0] = 0x0706050403020100;
    m.key.k[1] = 0x0f0e0d0c0b0a0908;
    map_put_n(&m, input, vectors[i].n, number(1));
    assert_true(map_next(&m, NULL)->hash == vectors[i].want);
  }
}

UNIT_TEST(test_seed_changes_hashes_not_order) {
  struct map a, b;
  map_init(&a, 1);
  map_init(&b, 2);
  for (const char *k = "qwertyuiop"; *k; k++) {
    map_put_n(&a, k, 1, number(1));
    map_put_n(&b, k, 1, number(1));
  }
  struct map_entry *x = NULL, *y = NULL;
  while ((x = map_next(&a, x)) && (y = map_next(&b, y))) {
    assert_string_equal(x->key, y->key);
    assert_true(x->hash != y->hash);
  }
  map_finish(&a);
  map_finish(&b);
}
