/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: ncclUniqueIds: helpers that mint, what the daemon is told, what the workers get. */

#include "tests/rig/supervisor.h"

#include <string.h>
#include "tests/rig/unit.h"

static char raw[2 * NCCL_ID_SIZE];

/* Round 1 runs, has two ids, and we mint the second. */
static void open_minting(struct bench *b) {
  bench_open(b);
  b->ids = 2;
  b->mint_first = b->mint_count = 1;
  bench_running(b);
  b->answering = true;
}

static uint32_t helper(const struct bench *b) {
  const struct supervisor_effect *e = bench_effect(b, SUP_MINT);
  assert_non_null(e);
  return e->mint.helper;
}

static void mint_again(struct bench *b, int64_t round, int64_t first, int64_t count) {
  struct msg m;
  msg_init(&m, MSG_MINT);
  m.mint.incarnation = b->incarnation;
  m.mint.round = round;
  m.mint.first = first;
  m.mint.count = count;
  bench_msg(b, &m);
}

static void minted(struct bench *b, uint32_t number) {
  memset(raw, 'm', sizeof raw);
  bench_event(b, &(struct supervisor_event){
                     .kind = SUP_MINTED, .round = 1, .minted = {.helper = number, .ids = raw, .version = 22809}});
}

static void mint_failed(struct bench *b, uint32_t number) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_MINT_FAILED,
                                            .round = 1,
                                            .mint_failed = {.helper = number, .lasting = true},
                                            .text = "it was killed"});
}

static void ids(struct bench *b, int64_t round, int64_t count, const char *text) {
  struct msg m;
  memset(raw, 'i', sizeof raw);
  msg_init(&m, MSG_IDS);
  m.ids.incarnation = b->incarnation;
  m.ids.round = round;
  m.ids.count = count;
  m.ids.version = 22809;
  m.ids.text = text;
  m.raw = count ? raw : NULL;
  m.raw_len = (size_t)count * NCCL_ID_SIZE;
  bench_msg(b, &m);
}

static void test_minting(void **state) {
  struct bench b;
  open_minting(&b);
  const struct supervisor_effect *e = bench_effect(&b, SUP_MINT);
  assert_int_equal(e->mint.count, 1);
  assert_int_equal(e->round, 1);
  e = bench_effect(&b, SUP_IDS);
  assert_int_equal(e->ids.count, 2);
  assert_null(e->ids.ids);
  assert_string_equal(e->ids.text, "to come from n9");
  minted(&b, helper(&b));
  const struct msg *m = bench_sent(&b, MSG_MINTED);
  assert_int_equal(m->minted.round, 1);
  assert_int_equal(m->minted.first, 1);
  assert_int_equal(m->minted.count, 1);
  assert_int_equal(m->minted.version, 22809);
  assert_int_equal(m->raw_len, NCCL_ID_SIZE);
  bench_forget(&b);
  ids(&b, 1, 0, "to come from n8");
  assert_string_equal(bench_effect(&b, SUP_IDS)->ids.text, "to come from n8");
  ids(&b, 1, 2, "");
  e = bench_effect(&b, SUP_IDS);
  assert_int_equal(e->ids.ids->len, 2 * NCCL_ID_SIZE);
  assert_int_equal(e->ids.ids->data[0], 'i');
  assert_int_equal(e->ids.version, 22809);
  assert_int_equal(bench_count(&b, SUP_UNMINT), 0);
  bench_close(&b);
}

static void test_none(void **state) {
  for (int never = 0; never < 2; never++) {
    struct bench b;
    bench_open(&b);
    if (never) b.config.settings.nccl_ids = NCCL_IDS_NEVER;
    bench_running(&b);
    const struct supervisor_effect *e = bench_effect(&b, SUP_IDS);
    assert_int_equal(e->ids.count, 0);
    assert_non_null(strstr(e->ids.text, never ? "--nccl-ids never" : "--nccl-ids auto"));
    assert_int_equal(bench_count(&b, SUP_MINT), 0);
    bench_close(&b);
  }
}

static void test_there_will_be_none(void **state) {
  struct bench b;
  struct msg m;
  open_minting(&b);
  msg_init(&m, MSG_IDS);
  m.ids.incarnation = b.incarnation;
  m.ids.round = 1;
  m.ids.none = true;
  m.ids.text = "n0 (node 0): no library";
  bench_msg(&b, &m);
  const struct supervisor_effect *e = bench_effect(&b, SUP_IDS);
  assert_int_equal(e->ids.count, 0);
  assert_string_equal(e->ids.text, "they could not be minted: n0 (node 0): no library");
  assert_int_equal(bench_count(&b, SUP_UNMINT), 1);
  bench_close(&b);
}

/* A MINT that is said again is answered by what there is. */
static void test_mint_is_said_again(void **state) {
  struct bench b;
  open_minting(&b);
  uint32_t first = helper(&b);
  bench_forget(&b);
  mint_again(&b, 1, 1, 1); /* it is at it */
  assert_int_equal(bench_count(&b, SUP_MINT), 0);
  assert_int_equal(bench_count_sent(&b, MSG_MINTED), 0);
  minted(&b, first);
  mint_again(&b, 1, 1, 1); /* it has it */
  assert_int_equal(bench_count_sent(&b, MSG_MINTED), 2);
  mint_again(&b, 1, 0, 1); /* the other one too */
  assert_int_equal(bench_count(&b, SUP_MINT), 1);
  assert_int_not_equal(helper(&b), first);
  bench_forget(&b);
  mint_again(&b, 1, 0, 2); /* other ones than before: those are given up */
  assert_int_equal(bench_count(&b, SUP_UNMINT), 2);
  assert_int_equal(bench_effect(&b, SUP_MINT)->mint.count, 2);
  ids(&b, 1, 2, "");
  bench_forget(&b);
  mint_again(&b, 1, 0, 2); /* from what IDS had brought */
  const struct msg *m = bench_sent(&b, MSG_MINTED);
  assert_int_equal(m->raw_len, 2 * NCCL_ID_SIZE);
  assert_int_equal(m->raw[0], 'i');
  assert_int_equal(bench_count(&b, SUP_MINT), 0);
  bench_close(&b);
}

static void test_what_is_not_for_us(void **state) {
  struct bench b;
  open_minting(&b);
  bench_forget(&b);
  mint_again(&b, 2, 0, 1);
  mint_again(&b, 1, 1, 2); /* beyond the round's ids */
  ids(&b, 2, 2, "");
  ids(&b, 1, 1, ""); /* too few */
  assert_int_equal(bench_said(&b, "sent 1 NCCL ids in 128 bytes, where the round has 2"), 1);
  minted(&b, 99);
  mint_failed(&b, 99);
  assert_int_equal(bench_count(&b, SUP_MINT) + bench_count(&b, SUP_IDS), 0);
  assert_int_equal(bench_count_sent(&b, MSG_MINTED), 0);
  bench_close(&b);
}

static void test_failures(void **state) {
  struct bench b;
  open_minting(&b);
  mint_failed(&b, helper(&b));
  const struct msg *m = bench_sent(&b, MSG_MINTED);
  assert_int_equal(m->minted.version, 0);
  assert_int_equal(m->raw_len, 0);
  assert_true(m->minted.lasting);
  assert_string_equal(m->minted.text, "it was killed");
  bench_forget(&b);
  mint_again(&b, 1, 1, 1); /* a new one */
  uint32_t second = helper(&b);
  minted(&b, second);
  mint_failed(&b, second); /* died when it had told them, but they are not out: that is told, too */
  assert_int_equal(bench_count_sent(&b, MSG_MINTED), 2);
  assert_int_equal(bench_sent(&b, MSG_MINTED)->minted.version, 0);
  mint_again(&b, 1, 1, 1);
  uint32_t third = helper(&b);
  minted(&b, third);
  ids(&b, 1, 2, "");
  bench_forget(&b);
  mint_failed(&b, third); /* too late */
  assert_int_equal(bench_count_sent(&b, MSG_MINTED), 0);
  assert_int_equal(bench_said(&b, "ranks that have not connected to its NCCL ids yet"), 1);
  bench_close(&b);
}

static void test_no_answer(void **state) {
  struct bench b;
  open_minting(&b);
  bench_run(&b, SUPERVISOR_MINT_MS - 1);
  assert_int_equal(bench_count(&b, SUP_UNMINT), 0);
  bench_run(&b, 1);
  assert_int_equal(bench_count(&b, SUP_UNMINT), 1);
  assert_string_equal(bench_sent(&b, MSG_MINTED)->minted.text, "rdzv-nccl did not answer within 20 s");
  bench_close(&b);
}

/* A helper goes when nobody can come to its ids any more. */
static void test_helpers_go(void **state) {
  for (int why = 0; why < 5; why++) {
    struct bench b;
    open_minting(&b);
    uint32_t number = helper(&b);
    minted(&b, number);
    bench_event(&b, &(struct supervisor_event){.kind = SUP_NCCL_UP, .round = 1}); /* nobody has the ids: a lie */
    assert_int_equal(bench_count(&b, SUP_UNMINT), 0);
    ids(&b, 1, 2, "");
    if (why == 0) bench_event(&b, &(struct supervisor_event){.kind = SUP_NCCL_UP, .round = 1});
    if (why == 1) bench_stop(&b, 1, NULL);
    if (why == 2) bench_exited(&b, 0, EXITED(3), b.now_ms, "");
    if (why == 3) bench_stale(&b);
    if (why == 4) bench_signal(&b, 15);
    assert_int_equal(bench_count(&b, SUP_UNMINT), 1);
    assert_int_equal(bench_effect(&b, SUP_UNMINT)->unmint.helper, number);
    bench_forget(&b);
    mint_failed(&b, number); /* nothing more is heard of it */
    assert_int_equal(bench_count_sent(&b, MSG_MINTED) + bench_said(&b, "NCCL"), 0);
    bench_close(&b);
  }
}

/* Its workers are done, those of others may come yet. */
static void test_a_finished_node_keeps_its_helper(void **state) {
  struct bench b;
  open_minting(&b);
  minted(&b, helper(&b));
  ids(&b, 1, 2, "");
  bench_all_exited(&b, EXITED(0));
  bench_clear(&b);
  assert_state(&b, SUPERVISOR_FINISHED);
  assert_int_equal(bench_count(&b, SUP_UNMINT), 0);
  bench_end(&b, 0, NULL);
  assert_int_equal(bench_count(&b, SUP_UNMINT), 1);
  bench_close(&b);
}

static void test_hello_tells(void **state) {
  struct bench b;
  open_minting(&b);
  for (int have = 0; have < 2; have++) {
    if (have) ids(&b, 1, 2, "");
    bench_down(&b, false);
    bench_run(&b, 2000);
    bench_forget(&b);
    bench_up(&b);
    const struct msg *m = bench_sent(&b, MSG_HELLO);
    assert_int_equal(m->hello.ids, 2);
    assert_int_equal(m->hello.has_ids, have);
    bench_welcome(&b, false);
  }
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_minting),
      cmocka_unit_test(test_none),
      cmocka_unit_test(test_there_will_be_none),
      cmocka_unit_test(test_mint_is_said_again),
      cmocka_unit_test(test_what_is_not_for_us),
      cmocka_unit_test(test_failures),
      cmocka_unit_test(test_no_answer),
      cmocka_unit_test(test_helpers_go),
      cmocka_unit_test(test_a_finished_node_keeps_its_helper),
      cmocka_unit_test(test_hello_tells),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
