/* core: small values of all ranks meet through the daemon. */

#include "tests/unit/core_help.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/unit/unit.h"

static void give(struct rig *r, struct node *n, const char *key, int64_t size, const char *values) {
  struct msg m;
  msg_init(&m, MSG_EXCHANGE);
  m.exchange.incarnation = n->incarnation;
  m.exchange.round = n->round;
  m.exchange.key = key;
  m.exchange.size = size;
  m.raw = values;
  m.raw_len = strlen(values);
  node_say(r, n, &m);
}

static void assert_values(const struct rig *r, const struct node *n, const char *key, const char *want) {
  const struct msg *m = rig_last(r, n->conn, MSG_EXCHANGED);
  assert_non_null(m);
  assert_string_equal(m->exchanged.key, key);
  assert_string_equal(m->exchanged.error, "");
  assert_int_equal(m->exchanged.round, n->round);
  assert_int_equal(m->raw_len, strlen(want));
  assert_memory_equal(m->raw, want, strlen(want));
}

static void assert_error(const struct rig *r, const struct node *n, const char *word) {
  const struct msg *m = rig_last(r, n->conn, MSG_EXCHANGED);
  assert_non_null(m);
  assert_non_null(strstr(m->exchanged.error, word));
  assert_int_equal(m->raw_len, 0);
}

/* Ranks 0; 1 and 2; 3. */
static void three_nodes(struct rig *r, struct node *n) {
  rig_open(r, 1);
  r->settings.min_nodes = r->settings.max_nodes = 3;
  for (int i = 0; i < 3; i++) {
    node_init(r, &n[i], i);
    n[i].workers = i == 1 ? 2 : 1;
    node_join(r, &n[i]);
  }
  for (int i = 0; i < 3; i++) node_started(r, &n[i]);
}

static void test_all_are_told_in_order_of_rank(void **state) {
  struct rig r;
  struct node n[3];
  three_nodes(&r, n);
  give(&r, &n[2], "id", 2, "dd");
  give(&r, &n[1], "id", 2, "bbcc");
  assert_int_equal(rig_count(&r, n[2].conn, MSG_EXCHANGED), 0);
  give(&r, &n[0], "id", 2, "aa");
  for (int i = 0; i < 3; i++) {
    assert_values(&r, &n[i], "id", "aabbccdd");
    assert_int_equal(rig_count(&r, n[i].conn, MSG_EXCHANGED), 1);
  }
  give(&r, &n[1], "id", 2, "bbcc"); /* it had missed the answer */
  assert_int_equal(rig_count(&r, n[1].conn, MSG_EXCHANGED), 2);
  assert_int_equal(rig_count(&r, n[0].conn, MSG_EXCHANGED), 1);
  rig_close(&r);
}

static void test_before_all_have_started(void **state) {
  struct rig r;
  struct node n[2];
  rig_open(&r, 1);
  for (int i = 0; i < 2; i++) {
    node_init(&r, &n[i], i);
    node_join(&r, &n[i]);
  }
  give(&r, &n[0], "k", 1, "a");
  give(&r, &n[1], "k", 1, "b");
  assert_values(&r, &n[0], "k", "ab");
  rig_close(&r);
}

static void test_a_second_giving_replaces_the_first(void **state) {
  struct rig r;
  struct node n[3];
  three_nodes(&r, n);
  give(&r, &n[0], "k", 1, "x");
  give(&r, &n[0], "k", 1, "a");
  give(&r, &n[1], "k", 1, "bc");
  give(&r, &n[2], "k", 1, "d");
  assert_values(&r, &n[0], "k", "abcd");
  rig_close(&r);
}

static void test_sizes_that_do_not_fit(void **state) {
  struct rig r;
  struct node n[3];
  three_nodes(&r, n);
  give(&r, &n[1], "k", 2, "bb"); /* two workers, one value */
  assert_error(&r, &n[1], "workers");
  give(&r, &n[0], "k", 2, "aa");
  give(&r, &n[1], "k", 1, "bc");
  assert_error(&r, &n[1], "size");
  give(&r, &n[2], "k", 256, "");
  assert_error(&r, &n[2], "workers");
  give(&r, &n[1], "k", 2, "bbcc");
  give(&r, &n[2], "k", 2, "dd");
  assert_values(&r, &n[0], "k", "aabbccdd");
  rig_close(&r);
}

static void test_too_many_keys(void **state) {
  struct rig r;
  struct node n[3];
  char key[] = "key-a";
  three_nodes(&r, n);
  for (int i = 0; i <= EXCHANGES_MAX; i++, key[4]++) give(&r, &n[0], key, 1, "a");
  assert_error(&r, &n[0], "too many");
  assert_int_equal(rig_count(&r, n[0].conn, MSG_EXCHANGED), 1);
  rig_close(&r);
}

static void test_other_rounds_and_other_nodes_have_no_part(void **state) {
  struct rig r;
  struct node n[3], spare;
  three_nodes(&r, n);
  node_init(&r, &spare, 7);
  node_join(&r, &spare);
  spare.round = 1;
  give(&r, &spare, "k", 1, "z");
  n[0].round = 2;
  give(&r, &n[0], "k", 1, "z");
  n[0].round = 1;
  assert_int_equal(rig_count(&r, spare.conn, MSG_EXCHANGED) + rig_count(&r, n[0].conn, MSG_EXCHANGED), 0);
  give(&r, &n[0], "k", 1, "a");
  give(&r, &n[1], "k", 1, "bc");
  give(&r, &n[2], "k", 1, "d");
  assert_values(&r, &n[0], "k", "abcd");
  rig_close(&r);
}

static void test_the_next_round_begins_empty(void **state) {
  struct rig r;
  struct node n[3];
  three_nodes(&r, n);
  give(&r, &n[0], "k", 1, "a");
  node_exited(&r, &n[0], 1, 0);
  give(&r, &n[1], "k", 1, "bc"); /* nobody waits any more */
  for (int i = 0; i < 3; i++) node_stopped(&r, &n[i]);
  assert_int_equal(n[0].round, 2);
  give(&r, &n[1], "k", 1, "BC");
  give(&r, &n[2], "k", 1, "D");
  assert_int_equal(rig_count(&r, n[1].conn, MSG_EXCHANGED), 0);
  give(&r, &n[0], "k", 1, "A");
  assert_values(&r, &n[2], "k", "ABCD");
  rig_close(&r);
}

static void test_gathered_again_after_a_restart(void **state) {
  struct rig r;
  struct node n[3];
  three_nodes(&r, n);
  give(&r, &n[0], "k", 1, "a");
  rig_restart(&r, false);
  node_back(&r, &n[2], PHASE_RUNNING);
  give(&r, &n[2], "k", 1, "d"); /* agents send it behind their WELCOME, before all are back */
  node_back(&r, &n[0], PHASE_RUNNING);
  give(&r, &n[0], "k", 1, "a");
  node_back(&r, &n[1], PHASE_RUNNING);
  give(&r, &n[1], "k", 1, "bc");
  for (int i = 0; i < 3; i++) assert_values(&r, &n[i], "k", "abcd");
  rig_close(&r);
}

/* While recovering, one that gave its part may be lost, and another come as the same rank with more workers. What was given
 * has its own length, and goes with its giver. */
static void test_another_giver_for_the_same_rank(void **state) {
  struct rig r;
  struct node n[3], other;
  three_nodes(&r, n);
  rig_restart(&r, false);
  node_back(&r, &n[0], PHASE_RUNNING);
  give(&r, &n[0], "k", 8, "aaaaaaaa");
  node_bye(&r, &n[0]);
  node_init(&r, &other, 9);
  memcpy(other.incarnation, n[0].incarnation, sizeof other.incarnation);
  other.round = 1;
  other.nodes = 3;
  other.node_rank = 0;
  other.workers = WORKERS_MAX;
  node_back(&r, &other, PHASE_RUNNING);
  for (int i = 1; i < 3; i++) {
    node_back(&r, &n[i], PHASE_RUNNING);
    give(&r, &n[i], "k", 8, i == 1 ? "bbbbbbbbcccccccc" : "dddddddd");
  }
  assert_int_equal(rig_count(&r, n[1].conn, MSG_EXCHANGED), 0); /* rank 0 has given nothing */
  rig_close(&r);
}

static void test_more_than_a_message_may_carry(void **state) {
  enum { NODES = 81, BYTES = EXCHANGE_VALUE_MAX * WORKERS_MAX }; /* 81 * 256 KiB */
  struct rig r;
  static struct node n[NODES];
  rig_open(&r, 1);
  r.settings.min_nodes = r.settings.max_nodes = NODES;
  for (int i = 0; i < NODES; i++) {
    node_init(&r, &n[i], i);
    n[i].workers = WORKERS_MAX;
    node_join(&r, &n[i]);
  }
  char *values = xmalloc(BYTES + 1);
  memset(values, 'v', BYTES);
  values[BYTES] = 0;
  const struct msg *start = rig_last(&r, n[0].conn, MSG_START);
  assert_non_null(start);
  for (int i = 0; i < NODES; i++) {
    memcpy(n[i].incarnation, n[0].incarnation, sizeof n[i].incarnation);
    n[i].round = 1;
    give(&r, &n[i], "k", EXCHANGE_VALUE_MAX, values);
  }
  for (int i = 0; i < NODES; i++) assert_error(&r, &n[i], "more than");
  free(values);
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_are_told_in_order_of_rank),
      cmocka_unit_test(test_before_all_have_started),
      cmocka_unit_test(test_a_second_giving_replaces_the_first),
      cmocka_unit_test(test_sizes_that_do_not_fit),
      cmocka_unit_test(test_too_many_keys),
      cmocka_unit_test(test_other_rounds_and_other_nodes_have_no_part),
      cmocka_unit_test(test_the_next_round_begins_empty),
      cmocka_unit_test(test_gathered_again_after_a_restart),
      cmocka_unit_test(test_another_giver_for_the_same_rank),
      cmocka_unit_test(test_more_than_a_message_may_carry),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
