/* SPDX-License-Identifier: Apache-2.0 */
/* The store's calls of librdzv: one script, played to the list of a world of one, to a real store, and to one that
 * sends and reads three bytes at a time; then what only several workers can show. */

#include "tests/rig/sdk.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/mem.h"
#include "proto/c10d.h"
#include "tests/rig/store.h"
#include "tests/rig/unit.h"

static struct sdk_rig rig;
static struct rdzv *r;

enum world { ALONE, REAL, CRAWLING };

static void open_world(enum world w) {
  uint16_t port = store_thread_start();
  sdk_rig_open_store(&rig, 1, 2, port);
  if (w == ALONE) {
    unsetenv("RDZV_AGENT_SOCKET");
    assert_int_equal(rdzv_init(&r, 0), 0);
  } else {
    r = sdk_rig_join(&rig);
  }
  if (w == CRAWLING) store_thread_crawl(3);
}

static void close_world(void) {
  rdzv_finish(r);
  store_thread_stop();
  sdk_rig_close(&rig);
}

static void ok(int rc) {
  if (rc) fail_msg("%d: %s", rc, rdzv_error(r));
}

static void fails(int rc, int code, const char *sentence) {
  if (rc != code || !strstr(rdzv_error(r), sentence))
    fail_msg("%d \"%s\", expected %d \"%s\"", rc, rdzv_error(r), code, sentence);
}

/* A call that waits in vain. On a busy machine its time may be over before the store has said anything: then once
 * more. */
#define WAITS_IN_VAIN(call, sentence)                                                                                  \
  do {                                                                                                                 \
    int rc_ = call;                                                                                                    \
    for (int i_ = 0; i_ < 100 && rc_ == -ETIMEDOUT && strstr(rdzv_error(r), " in time"); i_++) rc_ = call;             \
    fails(rc_, -ETIMEDOUT, sentence);                                                                                  \
  } while (0)

static void check_text(char *value, size_t size, const char *expected) {
  assert_int_equal(size, strlen(expected));
  assert_string_equal(value, expected); /* there is a NUL behind it */
  free(value);
}

static void check_get(const char *key, const char *expected) {
  char *value;
  size_t size;
  ok(rdzv_store_get(r, key, &value, &size, PATIENCE_MS));
  check_text(value, size, expected);
  ok(rdzv_store_try_get(r, key, &value, &size, PATIENCE_MS));
  check_text(value, size, expected);
}

static void set(const char *key, const char *value) {
  ok(rdzv_store_set(r, key, value, strlen(value), PATIENCE_MS));
}

/* ------------------------------------------------------------ the script */

static void script_values(void) {
  char *value = NULL;
  size_t size = 42;
  bool was = true;
  set("k", "v1");
  check_get("k", "v1");
  set("k", "");
  check_get("k", "");
  ok(rdzv_store_append(r, "k", "ab", 2, PATIENCE_MS));
  ok(rdzv_store_append(r, "k", "\0c", 2, PATIENCE_MS));
  ok(rdzv_store_get(r, "k", &value, &size, PATIENCE_MS));
  assert_int_equal(size, 4);
  assert_memory_equal(value, "ab\0c", 5);
  free(value);
  ok(rdzv_store_append(r, "new", "x", 1, PATIENCE_MS));
  ok(rdzv_store_get(r, "new", &value, NULL, PATIENCE_MS));
  check_text(value, 1, "x");
  ok(rdzv_store_set(r, "", NULL, 0, PATIENCE_MS)); /* an empty key is one */
  check_get("", "");
  ok(rdzv_store_delete_key(r, "", &was, PATIENCE_MS));
  assert_true(was);
  ok(rdzv_store_delete_key(r, "", &was, PATIENCE_MS));
  assert_false(was);
  ok(rdzv_store_delete_key(r, "new", NULL, PATIENCE_MS));
  value = NULL;
  size = 42;
  fails(rdzv_store_try_get(r, "new", &value, &size, PATIENCE_MS), -ENOENT, "store get \"new\": it does not exist");
  assert_null(value);
  assert_int_equal(size, 42);
}

static void check_compare_set(const char *key, const char *expected, const char *desired, const char *now) {
  char *value;
  size_t size;
  ok(rdzv_store_compare_set(r, key, expected, strlen(expected), desired, strlen(desired), &value, &size, PATIENCE_MS));
  check_text(value, size, now);
}

static void script_numbers(void) {
  int64_t n = 0;
  ok(rdzv_store_add(r, "n", 5, &n, PATIENCE_MS));
  assert_int_equal(n, 5);
  ok(rdzv_store_add(r, "n", -7, &n, PATIENCE_MS));
  assert_int_equal(n, -2);
  check_get("n", "-2");
  ok(rdzv_store_add(r, "n", INT64_MAX, NULL, PATIENCE_MS));
  ok(rdzv_store_add(r, "n", 0, &n, PATIENCE_MS));
  assert_true(n == INT64_MAX - 2);
  set("blank", " 12abc");
  ok(rdzv_store_add(r, "blank", 1, &n, PATIENCE_MS));
  assert_int_equal(n, 13);
  check_compare_set("c", "", "X", "X");
  check_compare_set("c", "X", "Y", "Y");
  check_compare_set("c", "X", "Z", "Y");
  check_compare_set("c", "", "Z", "Y");
  check_compare_set("absent", "X", "Y", "X");
  fails(rdzv_store_try_get(r, "absent", &(char *){NULL}, NULL, PATIENCE_MS), -ENOENT, "");
}

static void script_many(void) {
  const char *const keys[] = {"m1", "m2", "m3", "zz"};
  const void *const in[] = {"one", "", "three"};
  char *out[3], **names;
  size_t sizes[3], n_names;
  int64_t n, after;
  bool there = true;
  ok(rdzv_store_num_keys(r, &n, PATIENCE_MS));
  ok(rdzv_store_check(r, keys, 3, &there, PATIENCE_MS));
  assert_false(there);
  ok(rdzv_store_multi_set(r, keys, 3, in, (const size_t[]){3, 0, 5}, PATIENCE_MS));
  ok(rdzv_store_num_keys(r, &after, PATIENCE_MS));
  assert_int_equal(after, n + 3);
  ok(rdzv_store_wait(r, keys, 3, PATIENCE_MS));
  ok(rdzv_store_check(r, keys, 3, &there, PATIENCE_MS));
  assert_true(there);
  ok(rdzv_store_check(r, keys, 4, &there, PATIENCE_MS));
  assert_false(there);
  ok(rdzv_store_multi_get(r, keys, 3, out, sizes, PATIENCE_MS));
  for (int i = 0; i < 3; i++) check_text(out[i], sizes[i], in[i]);
  ok(rdzv_store_list_keys(r, &names, &n_names, PATIENCE_MS));
  assert_int_equal(n_names, after);
  int seen = 0;
  for (size_t i = 0; i < n_names; i++)
    seen += !strcmp(names[i], "m1") || !strcmp(names[i], "m2") || !strcmp(names[i], "m3");
  assert_int_equal(seen, 3);
  assert_null(names[n_names]);
  free(names);
  ok(rdzv_store_wait(r, NULL, 0, 0)); /* nothing is always there, and says so without a store */
  ok(rdzv_store_check(r, NULL, 0, &there, 0));
  assert_true(there);
  ok(rdzv_store_multi_get(r, NULL, 0, NULL, NULL, 0));
  ok(rdzv_store_multi_set(r, NULL, 0, NULL, NULL, 0));
}

static void script_queues(void) {
  char *value = NULL;
  size_t size;
  int64_t n;
  bool there;
  ok(rdzv_store_queue_len(r, "q", &n, PATIENCE_MS));
  assert_int_equal(n, 0);
  fails(rdzv_store_queue_try_pop(r, "q", &value, &size, PATIENCE_MS), -ENOENT,
        "store queue_pop \"q\": the queue is empty");
  ok(rdzv_store_queue_push(r, "q", "first", 5, PATIENCE_MS));
  ok(rdzv_store_queue_push(r, "q", "", 0, PATIENCE_MS));
  ok(rdzv_store_queue_push(r, "other", "x", 1, PATIENCE_MS));
  ok(rdzv_store_queue_push(r, "q", "third", 5, PATIENCE_MS));
  ok(rdzv_store_queue_len(r, "q", &n, PATIENCE_MS));
  assert_int_equal(n, 3);
  ok(rdzv_store_check(r, (const char *const[]){"q"}, 1, &there, PATIENCE_MS));
  assert_true(there);
  ok(rdzv_store_queue_pop(r, "q", &value, &size, PATIENCE_MS));
  check_text(value, size, "first");
  ok(rdzv_store_queue_pop(r, "q", &value, NULL, PATIENCE_MS));
  check_text(value, 0, "");
  ok(rdzv_store_queue_try_pop(r, "q", &value, &size, PATIENCE_MS));
  check_text(value, size, "third");
  ok(rdzv_store_queue_pop(r, "other", &value, &size, PATIENCE_MS));
  check_text(value, size, "x");
  set("key", "of a queue's name");
  WAITS_IN_VAIN(rdzv_store_queue_pop(r, "key", &value, NULL, 30), "store queue_pop \"key\"");
}

static void script_waits(void) {
  char *value = NULL, *values[6] = {0};
  const char *const keys[] = {"there", "w1", "w2", "w3", "w4", "w5"};
  int64_t n;
  set("there", "x");
  WAITS_IN_VAIN(rdzv_store_get(r, "w1", &value, NULL, 20), "store get \"w1\": it ");
  WAITS_IN_VAIN(rdzv_store_wait(r, keys, 3, 20), "store wait: 2 of 3 keys did not come within 20 ms: \"w1\", \"w2\"");
  WAITS_IN_VAIN(rdzv_store_wait(r, keys, 6, 20), "\"w1\", \"w2\", \"w3\", \"w4\" and 1 more");
  WAITS_IN_VAIN(rdzv_store_multi_get(r, keys, 2, values, NULL, 20), "store multi_get: 1 of 2 keys did not come");
  WAITS_IN_VAIN(rdzv_store_wait(r, keys + 1, 1, 20), "store wait \"w1\": it ");
  WAITS_IN_VAIN(rdzv_store_queue_pop(r, "empty", &value, NULL, 20), "store queue_pop \"empty\": it ");
  ok(rdzv_store_num_keys(r, &n, PATIENCE_MS)); /* no answer is due: the store hears at once that this one has come */
  fails(rdzv_store_barrier(r, "b", 2, 20), -ETIMEDOUT, "store barrier \"b\": fewer than 2 came within 20 ms");
  ok(rdzv_store_barrier(r, "b", 2, PATIENCE_MS));
  ok(rdzv_store_barrier(r, "b", 2, PATIENCE_MS)); /* never reset, as PyTorch's */
  fails(
      rdzv_store_get(r, "bad\n\001and far too long a key for a sentence, which goes on and on and on", &value, NULL, 1),
      -ETIMEDOUT, "store get \"bad??and far too long a key for a sentence, which goes on and on...\": ");
  assert_null(value);
  assert_null(values[0]);
}

static void script_limits(void) {
  char *key = xmalloc(RDZV_KEY_MAX + 2);
  const char *const null = NULL;
  memset(key, 'k', RDZV_KEY_MAX + 1);
  key[RDZV_KEY_MAX + 1] = '\0';
  fails(rdzv_store_set(r, key, "v", 1, PATIENCE_MS), -EMSGSIZE, "a key has at most 8191 bytes, this one has 8192");
  key[RDZV_KEY_MAX] = '\0';
  set(key, "v");
  check_get(key, "v");
  free(key);
  fails(rdzv_store_set(r, NULL, "v", 1, PATIENCE_MS), -EINVAL, "a key is NULL");
  fails(rdzv_store_wait(r, &null, 1, PATIENCE_MS), -EINVAL, "store wait: a key is NULL");
  fails(rdzv_store_wait(r, &null, RDZV_KEYS_MAX + 1, PATIENCE_MS), -EMSGSIZE, "131073 keys are too many");
  fails(rdzv_store_set(r, "big", "", RDZV_VALUE_MAX + 1, PATIENCE_MS), -EMSGSIZE,
        "store set \"big\": a value of more than 8388608 bytes");
}

static void play_script(enum world w) {
  open_world(w);
  script_values();
  script_numbers();
  script_many();
  script_queues();
  script_waits();
  if (w != CRAWLING) script_limits();
  close_world();
}

UNIT_TEST(test_alone) {
  play_script(ALONE);
}

UNIT_TEST(test_with_a_store) {
  play_script(REAL);
}

UNIT_TEST(test_with_a_crawling_store) {
  play_script(CRAWLING);
}

/* ----------------------------------------------------------------- large */

static void check_large(enum world w) {
  char *big = xmalloc(RDZV_VALUE_MAX), *values[3];
  size_t sizes[3];
  const char *const keys[] = {"b0", "b1", "b2"};
  open_world(w);
  for (size_t i = 0; i < RDZV_VALUE_MAX; i++) big[i] = (char)(i * 31 >> 5);
  for (int i = 0; i < 3; i++) ok(rdzv_store_set(r, keys[i], big, RDZV_VALUE_MAX, PATIENCE_MS));
  ok(rdzv_store_multi_get(r, keys, 3, values, sizes, PATIENCE_MS));
  for (int i = 0; i < 3; i++) {
    assert_int_equal(sizes[i], RDZV_VALUE_MAX);
    assert_memory_equal(values[i], big, RDZV_VALUE_MAX);
    free(values[i]);
  }
  ok(rdzv_store_append(r, "b0", big, 1, PATIENCE_MS));
  ok(rdzv_store_get(r, "b0", &values[0], &sizes[0], PATIENCE_MS));
  assert_int_equal(sizes[0], RDZV_VALUE_MAX + 1);
  free(values[0]);
  free(big);
  close_world();
}

UNIT_TEST(test_large_values) {
  check_large(ALONE);
  check_large(REAL);
}

UNIT_TEST(test_very_many_keys) {
  enum { N = RDZV_KEYS_MAX };
  char(*names)[16] = xcalloc(N, sizeof(*names)), **values = xcalloc(N, sizeof(*values));
  const char **keys = xcalloc(N, sizeof(*keys));
  size_t *sizes = xcalloc(N, sizeof(*sizes));
  bool there;
  open_world(REAL);
  for (int i = 0; i < N; i++) {
    snprintf(names[i], sizeof(names[i]), "key %d", i);
    keys[i] = names[i];
    sizes[i] = strlen(names[i]);
  }
  WAITS_IN_VAIN(rdzv_store_wait(r, keys, N, 100), "not all of 131072 keys came within 100 ms");
  ok(rdzv_store_multi_set(r, keys, N, (const void *const *)keys, sizes, PATIENCE_MS));
  ok(rdzv_store_check(r, keys, N, &there, PATIENCE_MS));
  assert_true(there);
  memset(sizes, 0, N * sizeof(*sizes));
  ok(rdzv_store_multi_get(r, keys, N, values, sizes, PATIENCE_MS));
  for (int i = 0; i < N; i++) check_text(values[i], sizes[i], names[i]);
  close_world();
  free(sizes);
  free(keys);
  free(values);
  free(names);
}

/* --------------------------------------------------------------- together */

static int part_talk(struct rdzv *w) {
  char key[32], *value = NULL;
  int rank = rdzv_rank(w), world = rdzv_world_size(w), rc = 0;
  for (int i = 0; i < 50 && !rc; i++) { /* a word goes round */
    snprintf(key, sizeof(key), "word %d %d", i, (rank + 1) % world);
    rc = rdzv_store_set(w, key, key, strlen(key), PATIENCE_MS);
    snprintf(key, sizeof(key), "word %d %d", i, rank);
    if (!rc) rc = rdzv_store_get(w, key, &value, NULL, PATIENCE_MS);
    if (!rc && strcmp(value, key) != 0) rc = 1000 + i;
    free(value);
    value = NULL;
  }
  if (!rc) rc = rdzv_store_barrier(w, "talked", world, PATIENCE_MS);
  for (int i = 0; i < 50 && !rc; i++) { /* each pops as many as it pushes, whosever they are */
    rc = rdzv_store_queue_push(w, "queue", "x", 1, PATIENCE_MS);
    if (!rc) rc = rdzv_store_queue_pop(w, "queue", &value, NULL, PATIENCE_MS);
    free(value);
    value = NULL;
  }
  int64_t n = 0;
  if (!rc) rc = rdzv_store_add(w, "all", 1, &n, PATIENCE_MS);
  return rc;
}

UNIT_TEST(test_workers_talk) {
  struct player p[MAX_LOCAL];
  sdk_rig_open_store(&rig, MAX_LOCAL, MAX_LOCAL, store_thread_start());
  drive(&rig, p, MAX_LOCAL, part_talk, NULL);
  for (int i = 0; i < MAX_LOCAL; i++)
    if (p[i].result) fail_msg("%d: %s", p[i].result, p[i].text);
  sdk_rig_close(&rig);
  store_thread_stop();
}

/* Answers that come while the patience ends: whatever happens, the next call gets its own. */
static int part_impatient(struct rdzv *w) {
  char key[32], *value;
  int rank = rdzv_rank(w), late = 0;
  for (int i = 0; i < 300; i++) {
    snprintf(key, sizeof(key), "race %d", i);
    int64_t mine = 0;
    int rc = 0;
    if (rank == 0) {
      poll(NULL, 0, 1);
      rc = rdzv_store_set(w, key, key, strlen(key), PATIENCE_MS);
    } else {
      rc = rdzv_store_get(w, key, &value, NULL, i % 3);
      if (rc == 0 && strcmp(value, key) != 0) return 1000 + i;
      if (rc == 0) free(value);
      late += rc == -ETIMEDOUT;
      if (rc == -ETIMEDOUT)
        rc = rdzv_store_get(w, key, &value, NULL, PATIENCE_MS);
      else if (rc == 0)
        value = NULL;
      if (rc == 0 && value && strcmp(value, key) != 0) return 2000 + i;
      if (rc == 0) free(value);
    }
    snprintf(key, sizeof(key), "mine %d", rank);
    if (!rc) rc = rdzv_store_add(w, key, 1, &mine, PATIENCE_MS);
    if (rc) return rc;
    if (mine != i + 1) return 3000 + i;
  }
  return rank == 0 || late > 0 ? 0 : 1; /* or it has shown nothing */
}

UNIT_TEST(test_patience_that_ends_as_the_answer_comes) {
  struct player p[MAX_LOCAL];
  sdk_rig_open_store(&rig, MAX_LOCAL, MAX_LOCAL, store_thread_start());
  drive(&rig, p, MAX_LOCAL, part_impatient, NULL);
  for (int i = 0; i < MAX_LOCAL; i++)
    if (p[i].result) fail_msg("%d: %d: %s", i, p[i].result, p[i].text);
  sdk_rig_close(&rig);
  store_thread_stop();
}

/* What was sent last is there, though the worker left at once with an answer unread. */
UNIT_TEST(test_last_words_arrive) {
  char *value;
  open_world(REAL);
  WAITS_IN_VAIN(rdzv_store_get(r, "never", &value, NULL, 5), "did not come");
  set("last", "words");
  WAITS_IN_VAIN(rdzv_store_get(r, "never", &value, NULL, 5), "did not come");
  rdzv_finish(r);
  r = sdk_rig_join(&rig);
  check_get("last", "words");
  close_world();
}

static void *stop_soon(void *arg) {
  poll(NULL, 0, 50);
  store_thread_stop();
  return NULL;
}

UNIT_TEST(test_the_store_ends_in_a_wait) {
  pthread_t thread;
  char *value;
  open_world(REAL);
  set("k", "v");
  pthread_create(&thread, NULL, stop_soon, NULL);
  fails(rdzv_store_get(r, "never", &value, NULL, PATIENCE_MS), -ECONNRESET,
        "store get \"never\": the store closed the connection: the round is over");
  pthread_join(thread, NULL);
  fails(rdzv_store_get(r, "k", &value, NULL, PATIENCE_MS), -ECONNRESET, "store get \"k\": the store closed");
  close_world();
}

UNIT_TEST(test_what_a_store_refuses) {
  int64_t n;
  for (enum world w = ALONE; w <= REAL; w++) {
    open_world(w);
    set("word", "no number");
    if (w == ALONE)
      fails(rdzv_store_add(r, "word", 1, &n, PATIENCE_MS), -EINVAL, "its value is not a number");
    else
      fails(rdzv_store_add(r, "word", 1, &n, PATIENCE_MS), -ECONNRESET, "the store closed the connection");
    close_world();
  }
}

int main(void) {
  alarm(100);
  return unit_run(NULL, NULL);
}
