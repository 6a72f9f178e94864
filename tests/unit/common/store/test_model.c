/* SPDX-License-Identifier: Apache-2.0 */
/* store against a naive one: random operations of a few clients on a few names, every answer compared, and who is
 * released, in which order.
 *
 * The model is lists that are walked from end to end. It knows of no limit; in half of the stories the store has a
 * small one, then what the store refuses must have changed nothing, which every later answer shows. A story ends with
 * everybody gone and nothing charged. */

#include "common/store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

enum {
  KEYS = 9,
  CLIENTS = 5,
  VALUE_MAX = 400,
  QUEUE_MAX = 64,
  WAIT_MAX = 64,
  WAIT_KEYS = 4,
  STORIES = 300,
  STEPS = 400
};

static uint64_t seed;

static uint64_t below(uint64_t n) { /* splitmix64 */
  uint64_t z = seed += 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return (z ^ z >> 31) % n;
}

struct value {
  bool there;
  char data[VALUE_MAX];
  size_t len;
};

struct wait {
  int client;
  int keys[WAIT_KEYS]; /* -1: seen */
  int missing;         /* 0: ended */
};

static struct {
  struct value values[KEYS];
  struct value queues[KEYS][QUEUE_MAX];
  size_t queue_len[KEYS];
  struct wait waits[WAIT_MAX]; /* in the order of asking */
  size_t n_waits;
  int released[2 * WAIT_MAX]; /* clients */
  size_t n_released;
} m;

static struct store *store;
static struct store_client *clients[CLIENTS];
static int owners[CLIENTS];

static struct slice key_of(int k) {
  static char names[KEYS][600];
  size_t len = k == 0 ? 0 : k == 1 ? 500 : (size_t)k;
  memset(names[k], 'a' + k, len);
  return (struct slice){names[k], len};
}

static void random_value(struct value *v) {
  v->there = true;
  if (below(3) == 0) {
    v->len = (size_t)snprintf(v->data, sizeof(v->data), "%lld", (long long)below(1000) - 500);
    return;
  }
  v->len = below(4) ? below(12) : below(VALUE_MAX);
  for (size_t i = 0; i < v->len; i++) v->data[i] = (char)('0' + below(12));
}

static struct slice slice_of(const struct value *v) {
  return (struct slice){v->data, v->there ? v->len : 0};
}

static void assert_same(struct slice got, struct slice want) {
  assert_int_equal(got.len, want.len);
  if (want.len) assert_memory_equal(got.data, want.data, want.len);
}

static bool model_has(int k) {
  return m.values[k].there || m.queue_len[k] > 0;
}

static void model_remove_wait(size_t i) {
  memmove(&m.waits[i], &m.waits[i + 1], (--m.n_waits - i) * sizeof(m.waits[0]));
}

/* True: the wait at i ended with it, and is gone. */
static bool model_see(size_t i, int k) {
  struct wait *w = &m.waits[i];
  for (int j = 0; j < WAIT_KEYS; j++) {
    if (w->keys[j] != k) continue;
    w->keys[j] = -1;
    if (--w->missing > 0) continue;
    m.released[m.n_released++] = w->client;
    model_remove_wait(i);
    return true;
  }
  return false;
}

static void model_wake_all(int k) {
  for (size_t i = 0; i < m.n_waits;) i += !model_see(i, k);
}

static void model_wake_one(int k) {
  for (size_t i = 0; i < m.n_waits; i++)
    if (model_see(i, k)) return;
}

static bool allowed(int rc) {
  assert_true(rc == 0 || rc == -ENOSPC);
  return rc == 0;
}

static void do_set(int c, int k) {
  struct value v;
  random_value(&v);
  if (!allowed(store_set(clients[c], key_of(k), slice_of(&v), NULL))) return;
  m.values[k] = v;
  model_wake_all(k);
}

static void do_get(int c, int k) {
  struct slice value;
  assert_int_equal(store_get(clients[c], key_of(k), &value), m.values[k].there);
  assert_same(value, slice_of(&m.values[k]));
}

/* C's own, on a copy with a NUL behind. False: no number. Sets *n to what is there. */
static bool model_number(int k, long long *n) {
  char copy[VALUE_MAX + 1], *end;
  *n = 0;
  if (!m.values[k].there) return true;
  memcpy(copy, m.values[k].data, m.values[k].len);
  copy[m.values[k].len] = '\0';
  errno = 0;
  *n = strtoll(copy, &end, 10);
  return errno == 0 && end != copy;
}

static void model_put_number(int k, long long n) {
  m.values[k].there = true;
  m.values[k].len = (size_t)snprintf(m.values[k].data, VALUE_MAX, "%lld", n);
}

static void do_add(int c, int k) {
  int64_t delta = (int64_t)below(20) - 10, total;
  long long n;
  int rc = store_add(clients[c], key_of(k), delta, &total, NULL);
  if (!model_number(k, &n)) {
    assert_int_equal(rc, -EINVAL);
    return;
  }
  if (!allowed(rc)) return;
  n = (long long)((uint64_t)n + (uint64_t)delta);
  assert_true(total == n);
  model_put_number(k, n);
  model_wake_all(k);
}

static void do_compare_set(int c, int k) {
  struct value expected = {.len = 0}, desired;
  if (below(2)) expected = m.values[k];
  if (below(4) == 0) random_value(&expected);
  if (!expected.there) expected.len = 0;
  random_value(&desired);
  struct slice now;
  struct value *v = &m.values[k];
  bool same = v->there ? v->len == expected.len && memcmp(v->data, expected.data, v->len) == 0 : expected.len == 0;
  if (!allowed(store_compare_set(clients[c], key_of(k), (struct slice){expected.data, expected.len}, slice_of(&desired),
                                 &now, NULL)))
    return;
  if (same) *v = desired;
  assert_same(now, v->there ? slice_of(v) : (struct slice){expected.data, expected.len});
  model_wake_all(k);
}

static void do_append(int c, int k) {
  struct value more, *v = &m.values[k];
  random_value(&more);
  size_t len = v->there ? v->len : 0;
  if (len + more.len > VALUE_MAX) return;
  if (!allowed(store_append(clients[c], key_of(k), slice_of(&more), NULL))) return;
  memcpy(v->data + len, more.data, more.len);
  v->len = len + more.len;
  v->there = true;
  model_wake_all(k);
}

static void do_delete(int c, int k) {
  assert_int_equal(store_delete(clients[c], key_of(k)), m.values[k].there);
  m.values[k].there = false;
}

static void do_has(int c, int k) {
  assert_int_equal(store_has(clients[c], key_of(k)), model_has(k));
  assert_int_equal(store_queue_len(clients[c], key_of(k)), m.queue_len[k]);
}

static void do_push(int c, int k) {
  struct value v;
  random_value(&v);
  if (m.queue_len[k] == QUEUE_MAX) return;
  if (!allowed(store_queue_push(clients[c], key_of(k), slice_of(&v), NULL))) return;
  m.queues[k][m.queue_len[k]++] = v;
  model_wake_one(k);
}

static void do_pop(int c, int k) {
  struct slice value;
  assert_int_equal(store_queue_pop(clients[c], key_of(k), &value), m.queue_len[k]);
  if (m.queue_len[k] == 0) return;
  assert_same(value, slice_of(&m.queues[k][0]));
  memmove(&m.queues[k][0], &m.queues[k][1], --m.queue_len[k] * sizeof(struct value));
}

static void do_wait(int c, int k) {
  struct wait w = {.client = c, .keys = {-1, -1, -1, -1}};
  if (m.n_waits == WAIT_MAX) return;
  store_wait_begin(clients[c]);
  for (uint64_t i = 0, n = below(WAIT_KEYS + 1); i < n; i++) {
    if (!allowed(store_wait_key(clients[c], key_of(k), NULL))) return;
    if (!model_has(k)) w.keys[w.missing++] = k;
    k = (int)below(KEYS);
  }
  assert_int_equal(store_wait_end(clients[c]), w.missing == 0);
  if (w.missing) m.waits[m.n_waits++] = w;
}

static void do_barrier(int c, int k) {
  int64_t world = (int64_t)below(6) - 1;
  bool released;
  long long n;
  if (m.n_waits == WAIT_MAX) return;
  int rc = store_barrier(clients[c], key_of(k), world, &released, NULL);
  bool number = model_number(k, &n);
  if (rc == -EINVAL) assert_false(number);
  if (rc == -EINVAL || !allowed(rc)) return;
  assert_true(number);
  model_put_number(k, n + 1);
  assert_int_equal(released, n + 1 >= world);
  if (released)
    model_wake_all(k);
  else
    m.waits[m.n_waits++] = (struct wait){.client = c, .keys = {k, -1, -1, -1}, .missing = 1};
}

static void do_cancel(int c, int k) {
  store_cancel(clients[c]);
  for (size_t i = m.n_waits; i-- > 0;)
    if (m.waits[i].client == c) model_remove_wait(i);
}

static size_t model_take(int c) {
  size_t n = 0, kept = 0;
  for (size_t i = 0; i < m.n_released; i++)
    if (m.released[i] == c)
      n++;
    else
      m.released[kept++] = m.released[i];
  m.n_released = kept;
  return n;
}

static void do_take(int c, int k) {
  assert_int_equal(store_take_released(clients[c]), model_take(c));
}

static void do_leave(int c, int k) {
  if (below(4)) return;
  store_client_destroy(clients[c], 0);
  clients[c] = store_client_create(store, &owners[c]);
  do_cancel(c, k);
  model_take(c);
}

static void drain(void) {
  for (size_t i = 0; i < m.n_released; i++) {
    struct store_client *c = store_next_released(store);
    assert_non_null(c);
    assert_ptr_equal(store_client_owner(c), &owners[m.released[i]]);
  }
  assert_null(store_next_released(store));
  m.n_released = 0;
}

static void count_key(void *ctx, struct slice key) {
  size_t *seen = ctx;
  for (int k = 0; k < KEYS; k++) {
    struct slice name = key_of(k);
    if (name.len == key.len && (key.len == 0 || memcmp(name.data, key.data, key.len) == 0)) seen[k]++;
  }
}

static void do_list(int c, int k) {
  size_t seen[KEYS] = {0}, count = 0, bytes = 0;
  store_each_key(store, count_key, seen);
  for (int i = 0; i < KEYS; i++) {
    assert_int_equal(seen[i], m.values[i].there);
    count += m.values[i].there;
    if (m.values[i].there) bytes += key_of(i).len;
  }
  assert_int_equal(store_count(store), count);
  assert_int_equal(store_key_bytes(store), bytes);
}

static void story(bool small) {
  static void (*const ops[])(int c, int k) = {do_set,     do_get,    do_add,  do_compare_set, do_append, do_delete,
                                              do_has,     do_push,   do_pop,  do_wait,        do_wait,   do_wait,
                                              do_barrier, do_cancel, do_take, do_leave,       do_list};
  memset(&m, 0, sizeof(m));
  store = store_create(&(struct store_config){.seed = seed,
                                              .max_keys = small ? 8 : 0,
                                              .max_value = small ? 300 : 0,
                                              .max_waits = small ? 5 : 0,
                                              .max_bytes = small ? 3000 : 0});
  for (int c = 0; c < CLIENTS; c++) clients[c] = store_client_create(store, &owners[c]);
  for (int i = 0; i < STEPS; i++) {
    ops[below(sizeof(ops) / sizeof(ops[0]))]((int)below(CLIENTS), (int)below(KEYS));
    if (small) assert_true(store_bytes(store) <= 3000);
    if (below(4) == 0 || m.n_released > WAIT_MAX / 2) drain();
  }
  drain();
  for (int c = 0; c < CLIENTS; c++) {
    for (int k = 0; k < KEYS; k++) {
      do_delete(c, k);
      while (m.queue_len[k] > 0) do_pop(c, k);
    }
    store_client_destroy(clients[c], 0);
  }
  assert_int_equal(store_bytes(store), 0);
  store_destroy(store);
}

UNIT_TEST(test_as_the_model) {
  for (int i = 0; i < STORIES; i++) {
    seed = (uint64_t)i * 1000003;
    story(i % 2);
  }
}
