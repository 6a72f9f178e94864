/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: ncclUniqueIds: helpers that mint, what the daemon is told, what the workers get. */

#include "tests/rig/supervisor.h"

#include <string.h>
#include "tests/rig/unit.h"

static char raw[2 * NCCL_ID_SIZE];

/* Round 1 runs, has two ids, and we mint the second. */
static void open_minting(void) {
  bench_open();
  bench.ids = 2;
  bench.mint_first = bench.mint_count = 1;
  bench_running();
  bench.answering = true;
}

static uint32_t helper(void) {
  const struct supervisor_effect *e = bench_effect(SUP_MINT);
  assert_non_null(e);
  return e->mint.helper;
}

static void mint_again(int64_t round, int64_t first, int64_t count) {
  struct msg m;
  msg_init(&m, MSG_MINT);
  m.mint.incarnation = bench.incarnation;
  m.mint.round = round;
  m.mint.first = first;
  m.mint.count = count;
  bench_msg(&m);
}

static void minted(uint32_t number) {
  memset(raw, 'm', sizeof raw);
  bench_event(&(struct supervisor_event){
      .kind = SUP_MINTED, .round = 1, .minted = {.helper = number, .ids = raw, .version = 22809}});
}

static void mint_failed(uint32_t number) {
  bench_event(&(struct supervisor_event){.kind = SUP_MINT_FAILED,
                                         .round = 1,
                                         .mint_failed = {.helper = number, .lasting = true},
                                         .text = "it was killed"});
}

static void ids(int64_t round, int64_t count, const char *text) {
  struct msg m;
  memset(raw, 'i', sizeof raw);
  msg_init(&m, MSG_IDS);
  m.ids.incarnation = bench.incarnation;
  m.ids.round = round;
  m.ids.count = count;
  m.ids.version = 22809;
  m.ids.text = text;
  m.raw = count ? raw : NULL;
  m.raw_len = (size_t)count * NCCL_ID_SIZE;
  bench_msg(&m);
}

BENCH_TEST(test_minting) {
  open_minting();
  const struct supervisor_effect *e = bench_effect(SUP_MINT);
  assert_int_equal(e->mint.count, 1);
  assert_int_equal(e->round, 1);
  e = bench_effect(SUP_IDS);
  assert_int_equal(e->ids.count, 2);
  assert_null(e->bytes);
  assert_string_equal(e->text, "to come from n9");
  minted(helper());
  const struct msg *m = bench_sent(MSG_MINTED);
  assert_int_equal(m->minted.round, 1);
  assert_int_equal(m->minted.first, 1);
  assert_int_equal(m->minted.count, 1);
  assert_int_equal(m->minted.version, 22809);
  assert_int_equal(m->raw_len, NCCL_ID_SIZE);
  bench_forget();
  ids(1, 0, "to come from n8");
  assert_string_equal(bench_effect(SUP_IDS)->text, "to come from n8");
  ids(1, 2, "");
  e = bench_effect(SUP_IDS);
  assert_int_equal(e->bytes->len, 2 * NCCL_ID_SIZE);
  assert_int_equal(e->bytes->data[0], 'i');
  assert_int_equal(e->ids.version, 22809);
  assert_int_equal(bench_count(SUP_UNMINT), 0);
}

BENCH_TEST(test_none) {
  for (int never = 0; never < 2; never++) {
    bench_open();
    if (never) bench.config.settings.nccl_ids = NCCL_IDS_NEVER;
    bench_running();
    const struct supervisor_effect *e = bench_effect(SUP_IDS);
    assert_int_equal(e->ids.count, 0);
    assert_non_null(strstr(e->text, never ? "--nccl-ids never" : "--nccl-ids auto"));
    assert_int_equal(bench_count(SUP_MINT), 0);
  }
}

BENCH_TEST(test_there_will_be_none) {
  struct msg m;
  open_minting();
  msg_init(&m, MSG_IDS);
  m.ids.incarnation = bench.incarnation;
  m.ids.round = 1;
  m.ids.none = true;
  m.ids.text = "n0 (node 0): no library";
  bench_msg(&m);
  const struct supervisor_effect *e = bench_effect(SUP_IDS);
  assert_int_equal(e->ids.count, 0);
  assert_string_equal(e->text, "they could not be minted: n0 (node 0): no library");
  assert_int_equal(bench_count(SUP_UNMINT), 1);
}

/* A MINT that is said again is answered by what there is. */
BENCH_TEST(test_mint_is_said_again) {
  open_minting();
  uint32_t first = helper();
  bench_forget();
  mint_again(1, 1, 1); /* it is at it */
  assert_int_equal(bench_count(SUP_MINT), 0);
  assert_int_equal(bench_count_sent(MSG_MINTED), 0);
  minted(first);
  mint_again(1, 1, 1); /* it has it */
  assert_int_equal(bench_count_sent(MSG_MINTED), 2);
  mint_again(1, 0, 1); /* the other one too */
  assert_int_equal(bench_count(SUP_MINT), 1);
  assert_int_not_equal(helper(), first);
  bench_forget();
  mint_again(1, 0, 2); /* other ones than before: those are given up */
  assert_int_equal(bench_count(SUP_UNMINT), 2);
  assert_int_equal(bench_effect(SUP_MINT)->mint.count, 2);
  ids(1, 2, "");
  bench_forget();
  mint_again(1, 0, 2); /* from what IDS had brought */
  const struct msg *m = bench_sent(MSG_MINTED);
  assert_int_equal(m->raw_len, 2 * NCCL_ID_SIZE);
  assert_int_equal(m->raw[0], 'i');
  assert_int_equal(bench_count(SUP_MINT), 0);
}

BENCH_TEST(test_what_is_not_for_us) {
  open_minting();
  bench_forget();
  mint_again(2, 0, 1);
  mint_again(1, 1, 2); /* beyond the round's ids */
  ids(2, 2, "");
  ids(1, 1, ""); /* too few */
  assert_said("sent 1 NCCL ids in 128 bytes, where the round has 2");
  minted(99);
  mint_failed(99);
  assert_int_equal(bench_count(SUP_MINT) + bench_count(SUP_IDS), 0);
  assert_int_equal(bench_count_sent(MSG_MINTED), 0);
}

BENCH_TEST(test_failures) {
  open_minting();
  mint_failed(helper());
  const struct msg *m = bench_sent(MSG_MINTED);
  assert_int_equal(m->minted.version, 0);
  assert_int_equal(m->raw_len, 0);
  assert_true(m->minted.lasting);
  assert_string_equal(m->minted.text, "it was killed");
  bench_forget();
  mint_again(1, 1, 1); /* a new one */
  uint32_t second = helper();
  minted(second);
  mint_failed(second); /* died when it had told them, but they are not out: that is told, too */
  assert_int_equal(bench_count_sent(MSG_MINTED), 2);
  assert_int_equal(bench_sent(MSG_MINTED)->minted.version, 0);
  mint_again(1, 1, 1);
  uint32_t third = helper();
  minted(third);
  ids(1, 2, "");
  bench_forget();
  mint_failed(third); /* too late */
  assert_int_equal(bench_count_sent(MSG_MINTED), 0);
  assert_said("ranks that have not connected to its NCCL ids yet");
}

BENCH_TEST(test_no_answer) {
  open_minting();
  bench_run(SUPERVISOR_MINT_MS - 1);
  assert_int_equal(bench_count(SUP_UNMINT), 0);
  bench_run(1);
  assert_int_equal(bench_count(SUP_UNMINT), 1);
  assert_string_equal(bench_sent(MSG_MINTED)->minted.text, "rdzv-nccl did not answer within 20 s");
}

/* A helper goes when nobody can come to its ids any more. */
BENCH_TEST(test_helpers_go) {
  for (int why = 0; why < 5; why++) {
    open_minting();
    uint32_t number = helper();
    minted(number);
    bench_event(&(struct supervisor_event){.kind = SUP_NCCL_UP, .round = 1}); /* nobody has the ids: a lie */
    assert_int_equal(bench_count(SUP_UNMINT), 0);
    ids(1, 2, "");
    if (why == 0) bench_event(&(struct supervisor_event){.kind = SUP_NCCL_UP, .round = 1});
    if (why == 1) bench_stop(1, NULL);
    if (why == 2) bench_exited(0, EXITED(3), bench.now_ms, "");
    if (why == 3) bench_stale();
    if (why == 4) bench_signal(15);
    assert_int_equal(bench_count(SUP_UNMINT), 1);
    assert_int_equal(bench_effect(SUP_UNMINT)->unmint.helper, number);
    bench_forget();
    mint_failed(number); /* nothing more is heard of it */
    assert_int_equal(bench_count_sent(MSG_MINTED) + bench_said("NCCL"), 0);
  }
}

/* Its workers are done, those of others may come yet. */
BENCH_TEST(test_a_finished_node_keeps_its_helper) {
  open_minting();
  minted(helper());
  ids(1, 2, "");
  bench_all_exited(EXITED(0));
  bench_clear();
  assert_state(SUPERVISOR_FINISHED);
  assert_int_equal(bench_count(SUP_UNMINT), 0);
  bench_end(0, NULL);
  assert_int_equal(bench_count(SUP_UNMINT), 1);
}

BENCH_TEST(test_hello_tells) {
  open_minting();
  for (int have = 0; have < 2; have++) {
    if (have) ids(1, 2, "");
    bench_down(false);
    bench_run(2000);
    bench_forget();
    bench_up();
    const struct msg *m = bench_sent(MSG_HELLO);
    assert_int_equal(m->hello.ids, 2);
    assert_int_equal(m->hello.has_ids, have);
    bench_welcome(false);
  }
}
