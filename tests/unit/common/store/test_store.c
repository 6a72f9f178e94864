/* SPDX-License-Identifier: Apache-2.0 */
/* store: its limits, its sessions, its table; test_model.c compares it with a naive one. */

#include "common/store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

static struct err err;

static struct slice text(const char *s) {
  return (struct slice){s, strlen(s)};
}

static int set(struct store_client *c, const char *key, const char *value) {
  return store_set(c, text(key), text(value), &err);
}

static bool has(struct store_client *c, const char *key) {
  return store_has(c, text(key));
}

static bool wait_for(struct store_client *c, const char *key) {
  store_wait_begin(c);
  assert_int_equal(store_wait_key(c, text(key), &err), 0);
  return store_wait_end(c);
}

static void assert_value(struct store_client *c, const char *key, const char *want) {
  struct slice value;
  assert_true(store_get(c, text(key), &value));
  assert_int_equal(value.len, strlen(want));
  assert_memory_equal(value.data, want, value.len);
}

static void refused(int rc, const char *sentence) {
  assert_int_equal(rc, -ENOSPC);
  assert_string_equal(err.text, sentence);
}

struct keys {
  char text[256];
};

static void collect(void *ctx, struct slice key) {
  struct keys *k = ctx;
  size_t len = strlen(k->text);
  snprintf(k->text + len, sizeof(k->text) - len, "%.*s ", (int)key.len, key.data);
}

static void assert_keys(struct store *s, const char *want) {
  struct keys k = {""};
  store_each_key(s, collect, &k);
  assert_string_equal(k.text, want);
}

UNIT_TEST(test_limit_of_keys) {
  struct store *s = store_create(&(struct store_config){.max_keys = 3});
  struct store_client *c = store_client_create(s, NULL);
  struct slice now, value;
  int64_t total;
  bool released;
  assert_int_equal(set(c, "a", "1"), 0);
  assert_int_equal(store_queue_push(c, text("q"), text("1"), &err), 0);
  assert_int_equal(store_add(c, text("n"), 1, &total, &err), 0);
  size_t bytes = store_bytes(s);
  static const char sentence[] = "the store is full: it holds 3 keys and queue elements, which is the limit";
  refused(set(c, "b", "1"), sentence);
  refused(store_queue_push(c, text("q"), text("2"), &err), sentence);
  refused(store_add(c, text("b"), 1, &total, &err), sentence);
  refused(store_append(c, text("b"), text("1"), &err), sentence);
  refused(store_compare_set(c, text("b"), text(""), text("1"), &now, &err), sentence);
  refused(store_barrier(c, text("b"), 2, &released, &err), sentence);
  assert_int_equal(store_compare_set(c, text("b"), text("x"), text("1"), &now, &err), 0);
  assert_false(wait_for(c, "b")); /* what is only awaited is no key */
  store_cancel(c);
  assert_int_equal(store_bytes(s), bytes);
  assert_keys(s, "a n ");
  assert_int_equal(set(c, "a", "2"), 0); /* not one more */
  assert_int_equal(store_queue_pop(c, text("q"), &value), 1);
  assert_int_equal(set(c, "b", "1"), 0);
  store_client_destroy(c, 0);
  store_destroy(s);
}

UNIT_TEST(test_limit_of_a_value) {
  struct store *s = store_create(&(struct store_config){.max_value = 5});
  struct store_client *c = store_client_create(s, NULL);
  struct slice now;
  int64_t total;
  static const char sentence[] = "a value of 6 bytes is longer than the limit of 5";
  assert_int_equal(set(c, "k", "12345"), 0);
  refused(set(c, "k", "123456"), sentence);
  refused(store_append(c, text("k"), text("6"), &err), sentence);
  refused(store_queue_push(c, text("k"), text("123456"), &err), sentence);
  refused(store_compare_set(c, text("k"), text("12345"), text("123456"), &now, &err), sentence);
  assert_value(c, "k", "12345");
  assert_int_equal(store_append(c, text("k"), text(""), &err), 0);
  assert_int_equal(set(c, "k", "99999"), 0);
  refused(store_add(c, text("k"), 1, &total, &err), sentence);
  assert_value(c, "k", "99999");
  store_client_destroy(c, 0);
  store_destroy(s);
}

UNIT_TEST(test_limit_of_a_key) {
  struct store *s = store_create(&(struct store_config){0});
  struct store_client *c = store_client_create(s, NULL);
  SCOPED(unit_free) char *key = xcalloc(1, STORE_MAX_KEY + 1);
  assert_int_equal(store_set(c, (struct slice){key, STORE_MAX_KEY}, text(""), &err), 0);
  refused(store_set(c, (struct slice){key, STORE_MAX_KEY + 1}, text(""), &err),
          "a key of 65537 bytes is longer than the limit of 65536");
  store_client_destroy(c, 0);
  store_destroy(s);
}

/* What each operation is charged, found out in a store that is large enough, is what it needs: with one byte less it
 * is refused, and nothing has changed. */
static int do_op(struct store_client *c, int op) {
  struct slice now;
  int64_t total;
  bool released;
  switch (op) {
  case 0: return set(c, "new", "value");
  case 1: return set(c, "old", "a longer value");
  case 2: return store_add(c, text("new"), 1, &total, &err);
  case 3: return store_add(c, text("short"), 1, &total, &err);
  case 4: return store_append(c, text("old"), text("more than doubled"), &err);
  case 5: return store_compare_set(c, text("new"), text(""), text("x"), &now, &err);
  case 6: return store_queue_push(c, text("new"), text("element"), &err);
  case 7: return store_queue_push(c, text("old"), text("element"), &err);
  case 8: return store_queue_push(c, text("q"), text("element"), &err);
  case 9: store_wait_begin(c); return store_wait_key(c, text("new"), &err);
  case 10: return store_barrier(c, text("new"), 2, &released, &err);
  case 11: return store_barrier(c, text("short"), 9, &released, &err);
  default: return store_barrier(c, text("new"), 1, &released, &err);
  }
}

static struct store_client *prepared(size_t max_bytes, struct store **s) {
  *s = store_create(&(struct store_config){.max_bytes = max_bytes});
  struct store_client *c = store_client_create(*s, NULL);
  set(c, "old", "value");
  set(c, "short", "1");
  store_queue_push(c, text("q"), text("1"), &err);
  return c;
}

UNIT_TEST(test_limit_of_bytes) {
  for (int op = 0; op <= 12; op++) {
    struct store *s;
    struct store_client *c = prepared(0, &s);
    size_t before = store_bytes(s);
    assert_int_equal(do_op(c, op), 0);
    size_t after = store_bytes(s), exact = after;
    assert_true(after > before);
    store_client_destroy(c, 0);
    store_destroy(s);
    if (op == 4) exact -= strlen("valuemore than doubled"); /* the room for more is taken only where there is some */
    for (int less = 0; less < 2; less++) {
      c = prepared(exact - (size_t)less, &s);
      assert_int_equal(do_op(c, op), less ? -ENOSPC : 0);
      assert_int_equal(store_bytes(s), less ? before : exact);
      if (less) {
        char want[128];
        snprintf(want, sizeof(want),
                 "the store is full: it holds %zu bytes, and %zu more would exceed its limit of %zu", before,
                 exact - before, exact - 1);
        assert_string_equal(err.text, want);
        assert_keys(s, "old short ");
        assert_value(c, "old", "value");
        assert_value(c, "short", "1");
        assert_int_equal(store_queue_len(c, text("q")), 1);
      }
      store_client_destroy(c, 0);
      store_destroy(s);
    }
  }
}

UNIT_TEST(test_limit_of_waits) {
  char names[2];
  struct store *s = store_create(&(struct store_config){.max_waits = 3});
  struct store_client *a = store_client_create(s, names), *b = store_client_create(s, names + 1);
  bool released;
  set(a, "there", "");
  assert_false(wait_for(a, "x"));
  store_wait_begin(a);
  assert_int_equal(store_wait_key(a, text("there"), &err), 0); /* is not waited for */
  assert_int_equal(store_wait_key(a, text("y"), &err), 0);
  assert_int_equal(store_wait_key(a, text("y"), &err), 0);
  refused(store_wait_key(a, text("z"), &err), "one client waits for 3 keys, which is the limit");
  assert_false(wait_for(a, "y")); /* the refused one is gone */
  assert_false(wait_for(a, "y"));
  refused(store_barrier(a, text("bar"), 2, &released, &err), "one client waits for 3 keys, which is the limit");
  assert_false(has(a, "bar"));
  assert_false(wait_for(b, "y"));
  set(b, "y", "");
  assert_ptr_equal(store_client_owner(store_next_released(s)), names);
  assert_ptr_equal(store_client_owner(store_next_released(s)), names);
  assert_ptr_equal(store_client_owner(store_next_released(s)), names + 1);
  assert_null(store_next_released(s));
  store_client_destroy(a, 0);
  store_client_destroy(b, 0);
  assert_int_equal(store_count(s), 2);
  store_destroy(s);
}

/* Everything that was charged is given back. */
UNIT_TEST(test_bytes_come_back) {
  struct store *s = store_create(&(struct store_config){.session_prefix = "/s."});
  struct store_client *c = store_client_create(s, NULL), *d = store_client_create(s, NULL);
  struct slice value;
  bool released;
  for (int i = 0; i < 1000; i++) {
    char key[32];
    snprintf(key, sizeof(key), i % 3 ? "/k%d" : "/s.x/%d", i);
    assert_false(wait_for(c, key));
    store_barrier(d, text(key), 2, &released, &err);
    store_append(c, text(key), text("abc"), &err);
    store_queue_push(c, text(key), text("element"), &err);
    store_queue_pop(c, text(key), &value);
    if (i % 2) store_delete(c, text(key));
    if (i % 2 == 0) set(d, key, "");
  }
  while (store_next_released(s)) continue;
  for (int i = 0; i < 1000; i += 2) {
    char key[32];
    snprintf(key, sizeof(key), i % 3 ? "/k%d" : "/s.x/%d", i);
    assert_true(store_delete(d, text(key)));
  }
  assert_int_equal(store_count(s), 0);
  assert_int_equal(store_key_bytes(s), 0);
  store_client_destroy(c, 0);
  store_client_destroy(d, 0);
  assert_int_equal(store_bytes(s), 0);
  store_destroy(s);
}

static void number_key(char key[16], unsigned i) {
  snprintf(key, 16, "/%u", i);
}

/* Growing and shrinking the table over several powers of two, in steps that leave every key in its place. */
UNIT_TEST(test_many_keys) {
  enum { N = 40000 };
  struct store *s = store_create(&(struct store_config){.seed = 3});
  struct store_client *c = store_client_create(s, NULL);
  char key[16], value[16];
  for (int turn = 0; turn < 2; turn++) {
    for (unsigned i = 0; i < N; i++) {
      number_key(key, i);
      assert_int_equal(set(c, key, key), 0);
      number_key(value, (unsigned)((uint64_t)i * i / 2 % (i + 1)));
      assert_value(c, value, value);
    }
    assert_int_equal(store_count(s), N);
    for (unsigned i = 0; i < N; i++) {
      number_key(key, i * 7919U % N);
      assert_true(store_delete(c, text(key)));
      assert_false(has(c, key));
      number_key(key, (i + 1) * 7919U % N);
      assert_int_equal(has(c, key), i + 1 < N);
    }
    assert_int_equal(store_bytes(s), 0);
  }
  store_client_destroy(c, 0);
  store_destroy(s);
}

UNIT_TEST(test_many_waiters) {
  enum { N = 5000 };
  struct store *s = store_create(&(struct store_config){0});
  static struct store_client *clients[N];
  for (unsigned i = 0; i < N; i++) {
    clients[i] = store_client_create(s, &clients[i]);
    assert_false(wait_for(clients[i], "/all"));
    char key[16];
    number_key(key, i);
    assert_false(wait_for(clients[i], key));
  }
  for (unsigned i = 1; i < N; i += 2) store_client_destroy(clients[i], 0);
  set(clients[0], "/all", "");
  for (unsigned i = 0; i < N; i += 2) assert_ptr_equal(store_client_owner(store_next_released(s)), &clients[i]);
  assert_null(store_next_released(s));
  for (unsigned i = 0; i < N; i += 2) store_client_destroy(clients[i], 0);
  store_destroy(s);
}

static struct store *with_sessions(void) {
  return store_create(&(struct store_config){.session_prefix = "/torch.rendezvous.", .session_ttl_ms = 30000});
}

#define P "/torch.rendezvous."

UNIT_TEST(test_session_goes) {
  struct store *s = with_sessions();
  struct store_client *a = store_client_create(s, NULL), *b = store_client_create(s, NULL);
  struct slice now, value;
  store_compare_set(a, text(P "job"), text(""), text("state"), &now, &err);
  assert_int_equal(now.len, 5);
  set(a, P "job.1/MASTER_ADDR", "host");
  set(a, P "job/more", "x");
  set(a, P "other", "x");
  set(a, "/plain", "stays");
  store_queue_push(a, text(P "job.22/q"), text("x"), &err);
  assert_true(has(b, P "job")); /* who reads it belongs to it too */
  assert_int_equal(store_deadline(s), UINT64_MAX);
  store_client_destroy(a, 1000);
  assert_int_equal(store_deadline(s), 31000); /* other; job has b */
  store_expire(s, 30999);
  assert_int_equal(store_count(s), 5);
  store_expire(s, 31000);
  assert_keys(s, "/plain " P "job " P "job.1/MASTER_ADDR " P "job/more ");
  assert_int_equal(store_deadline(s), UINT64_MAX);
  store_client_destroy(b, 40000);
  assert_int_equal(store_deadline(s), 70000);
  struct store_client *late = store_client_create(s, NULL);
  assert_true(store_get(late, text(P "job"), &value)); /* in time: it goes on */
  assert_int_equal(store_deadline(s), UINT64_MAX);
  store_client_destroy(late, 50000);
  assert_int_equal(store_deadline(s), 80000);
  store_expire(s, 80000);
  assert_keys(s, "/plain ");
  late = store_client_create(s, NULL);
  assert_int_equal(store_queue_len(late, text(P "job.22/q")), 0);
  store_delete(late, text("/plain"));
  assert_int_equal(store_bytes(s), 0);
  store_client_destroy(late, 0);
  store_destroy(s);
}

UNIT_TEST(test_session_begins_anew) {
  struct store *s = with_sessions();
  struct store_client *a = store_client_create(s, NULL);
  struct slice now;
  store_compare_set(a, text(P "job"), text(""), text("first"), &now, &err);
  set(a, P "job.0/k", "x");
  struct store_client *b = store_client_create(s, NULL);
  store_compare_set(b, text(P "job"), text(""), text("second"), &now, &err);
  assert_memory_equal(now.data, "first", 5); /* a is there: the same rendezvous */
  store_client_destroy(a, 0);
  store_client_destroy(b, 0);
  a = store_client_create(s, NULL);
  store_compare_set(a, text(P "job.0/k"), text(""), text("y"), &now, &err); /* not the session's own name */
  assert_memory_equal(now.data, "x", 1);
  store_client_destroy(a, 0);
  a = store_client_create(s, NULL);
  store_compare_set(a, text(P "job"), text(""), text("second"), &now, &err);
  assert_int_equal(now.len, 6);
  assert_memory_equal(now.data, "second", 6);
  assert_keys(s, P "job ");
  store_client_destroy(a, 0);
  store_destroy(s);
}

/* Ids that look like another's rounds: the own name came first and decides. */
UNIT_TEST(test_session_ids) {
  struct store *s = with_sessions();
  struct store_client *a = store_client_create(s, NULL), *b = store_client_create(s, NULL);
  set(a, P "job", "");
  set(b, P "job.7", "");
  set(b, P "job.7/x", "");
  set(b, P "job.7.1/x", "");
  set(a, P "job.8/x", "");
  set(a, "/torch.rendezvous", "no session");
  set(a, P, "none either");
  store_client_destroy(b, 0);
  store_expire(s, 30000);
  assert_keys(s, "/torch.rendezvous " P " " P "job " P "job.8/x ");
  store_client_destroy(a, 30000);
  store_expire(s, 60000);
  assert_keys(s, "/torch.rendezvous " P " ");
  store_destroy(s);
}

UNIT_TEST(test_session_with_waiters) {
  struct store *s = with_sessions();
  struct store_client *a = store_client_create(s, NULL), *b = store_client_create(s, NULL);
  assert_false(wait_for(a, P "job.7/x")); /* makes session "job" */
  set(b, P "job.7", "");
  assert_false(wait_for(b, P "job.7/x"));
  store_client_destroy(a, 0); /* "job" has no member now, but a name that b waits for */
  store_expire(s, 30000);
  set(b, P "job.7/x", "");
  assert_ptr_equal(store_next_released(s), b);
  assert_true(has(b, P "job.7/x"));
  store_client_destroy(b, 30000);
  store_expire(s, 60000);
  assert_int_equal(store_count(s), 1); /* that name belongs to nobody any more */
  store_destroy(s);
}

UNIT_TEST(test_session_limit) {
  struct store *s = with_sessions();
  struct store_client *c = store_client_create(s, NULL);
  char key[64];
  for (int i = 0; i <= STORE_MAX_SESSIONS; i++) {
    snprintf(key, sizeof(key), P "job%d", i);
    if (i < STORE_MAX_SESSIONS)
      assert_int_equal(set(c, key, ""), 0);
    else
      refused(set(c, key, ""), "one client is a member of 64 sessions, which is the limit");
  }
  assert_false(has(c, key)); /* reading is no reason to refuse */
  store_client_destroy(c, 0);
  store_expire(s, 30000);
  assert_int_equal(store_bytes(s), 0);
  store_destroy(s);
}
