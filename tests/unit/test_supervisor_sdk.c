/* supervisor: what workers say through the sdk: values for all ranks, progress. */

#include "tests/unit/sup_help.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tests/unit/unit.h"

/* The exchange. ---------------------------------------------------------------------------------------------------- */

static void give(struct bench *b, uint32_t local_rank, const char *key, const char *value) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_EXCHANGE,
                                            .round = (uint32_t)supervisor_round(b->s),
                                            .local_rank = local_rank,
                                            .text = key,
                                            .data = value,
                                            .size = (uint32_t)strlen(value)});
}

static void answer(struct bench *b, const char *key, const char *values, const char *error) {
  struct msg m;
  msg_init(&m, MSG_EXCHANGED);
  m.exchanged.incarnation = b->incarnation;
  m.exchanged.round = 1;
  m.exchanged.key = key;
  m.exchanged.size = 2;
  m.exchanged.error = error;
  m.raw = values;
  m.raw_len = strlen(values);
  bench_msg(b, &m);
}

static void assert_error(const struct bench *b, const char *key, const char *words) {
  const struct supervisor_effect *e = bench_effect(b, SUP_EXCHANGED);
  assert_non_null(e);
  assert_string_equal(e->text, key);
  assert_non_null(e->error_text);
  assert_non_null(strstr(e->error_text, words));
}

static void test_one_message_when_all_have_given(void **state) {
  struct bench b;
  bench_open(&b);
  bench_running(&b);
  give(&b, 1, "id", "dd");
  give(&b, 1, "id", "xx"); /* said twice: the first counts */
  assert_int_equal(bench_count_sent(&b, MSG_EXCHANGE), 0);
  give(&b, 0, "id", "cc");
  const struct msg *m = bench_sent(&b, MSG_EXCHANGE);
  assert_non_null(m);
  assert_string_equal(m->exchange.key, "id");
  assert_int_equal(m->exchange.size, 2);
  assert_int_equal(m->exchange.round, 1);
  assert_int_equal(m->raw_len, 4);
  assert_memory_equal(m->raw, "ccdd", 4);
  answer(&b, "id", "aabbccdd", "");
  answer(&b, "id", "aabbccdd", ""); /* and the answer, too */
  assert_int_equal(bench_count(&b, SUP_EXCHANGED), 1);
  const struct supervisor_effect *e = bench_effect(&b, SUP_EXCHANGED);
  assert_string_equal(e->text, "id");
  assert_int_equal(e->bytes->len, 8);
  assert_memory_equal(e->bytes->data, "aabbccdd", 8);
  bench_close(&b);
}

static void test_before_all_have_been_spawned(void **state) {
  struct bench b;
  bench_open(&b);
  bench_joined(&b);
  bench_start(&b, 1);
  give(&b, 0, "id", "cc");
  give(&b, 1, "id", "dd");
  assert_int_equal(bench_count_sent(&b, MSG_EXCHANGE), 1);
  bench_close(&b);
}

static void test_sent_again_after_every_welcome(void **state) {
  struct bench b;
  bench_open(&b);
  bench_running(&b);
  for (uint32_t i = 0; i < 2; i++) give(&b, i, "done", "vv");
  answer(&b, "done", "vvvvvvvv", "");
  give(&b, 0, "half", "vv");
  bench_down(&b, false);
  for (uint32_t i = 0; i < 2; i++) give(&b, i, "new", "vv"); /* while nobody is there */
  bench_run(&b, 0);
  bench_up(&b);
  bench_forget(&b);
  bench_welcome(&b, false);
  assert_int_equal(bench_count_sent(&b, MSG_EXCHANGE),
                   2); /* done: others may still wait for it; new; not half */
  answer(&b, "done", "vvvvvvvv", "");
  assert_int_equal(bench_count(&b, SUP_EXCHANGED), 0);
  answer(&b, "new", "vvvvvvvv", "");
  assert_int_equal(bench_count(&b, SUP_EXCHANGED), 1);
  bench_close(&b);
}

static void test_errors(void **state) {
  struct bench b;
  char key[EXCHANGE_KEY_MAX + 3], big[EXCHANGE_VALUE_MAX + 2];
  bench_open(&b);
  bench_running(&b);
  give(&b, 0, "size", "ab");
  give(&b, 1, "size", "abc");
  assert_error(&b, "size", "sizes");
  give(&b, 0, "used", "ab");
  give(&b, 1, "used", "cd");
  answer(&b, "used", "", "other ranks gave values of another size");
  assert_error(&b, "used", "other ranks");
  give(&b, 0, "used", "ab");
  assert_error(&b, "used", "has been used");
  give(&b, 0, "short", "ab");
  give(&b, 1, "short", "cd");
  answer(&b, "short", "abcdef", "");
  assert_error(&b, "short", "not the size");
  memset(key, 'k', sizeof key);
  key[EXCHANGE_KEY_MAX + 1] = 0;
  memset(big, 'v', sizeof big);
  big[EXCHANGE_VALUE_MAX + 1] = 0;
  bench_forget(&b);
  give(&b, 0, key, "v");
  give(&b, 0, "", "v");
  give(&b, 0, "empty", "");
  give(&b, 0, "big", big);
  assert_int_equal(bench_count(&b, SUP_EXCHANGED), 4);
  assert_int_equal(bench_count(&b, SUP_SEND), 0);
  for (int i = 0; i < EXCHANGES_MAX; i++) {
    snprintf(key, sizeof key, "key%d", i);
    give(&b, 0, key, "v");
  }
  assert_error(&b, "key15", "too many");
  bench_close(&b);
}

static void test_values_of_a_round_end_with_it(void **state) {
  struct bench b;
  bench_open(&b);
  bench_running(&b);
  give(&b, 0, "id", "aa");
  bench_stop(&b, 1, NULL);
  give(&b, 1, "id", "bb"); /* too late */
  assert_int_equal(bench_count_sent(&b, MSG_EXCHANGE), 0);
  bench_clear(&b);
  bench_settled(&b, 1, false, 0, NULL);
  bench_start(&b, 2);
  give(&b, 1, "id", "bb");
  assert_int_equal(bench_count_sent(&b, MSG_EXCHANGE), 0);
  answer(&b, "id", "aabbccdd", ""); /* of round 1 */
  assert_int_equal(bench_count(&b, SUP_EXCHANGED), 0);
  bench_close(&b);
}

/* Progress. -------------------------------------------------------------------------------------------------------- */

static void progress(struct bench *b, uint32_t local_rank, uint64_t step, double loss, double rate) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_PROGRESS,
                                            .round = (uint32_t)supervisor_round(b->s),
                                            .local_rank = local_rank,
                                            .step = step,
                                            .of = 500,
                                            .loss = loss,
                                            .samples_per_second = rate});
}

static void test_the_slowest_step_twice_a_second(void **state) {
  struct bench b;
  bench_open(&b);
  b.answering = true;
  bench_running(&b);
  bench_forget(&b);
  for (uint64_t i = 1; i <= 1000; i++) { /* ten seconds */
    progress(&b, 0, 2 * i, 0.5, 100);
    progress(&b, 1, i, 0.25, 50);
    bench_run(&b, 10);
  }
  assert_in_range(bench_count_sent(&b, MSG_PROGRESS), 19, 22);
  const struct progress *p = &bench_sent(&b, MSG_PROGRESS)->progress;
  assert_in_range(p->step, 940, 1000);
  assert_int_equal(p->of, 500);
  assert_int_equal(p->round, 1);
  assert_true(p->loss == 0.25);
  assert_true(p->samples_per_second == 150);
  assert_non_null(strstr(bench_effect(&b, SUP_STATUS)->text, " of 500, loss 0.25, 150 samples/s"));
  bench_forget(&b);
  bench_run(&b, 5000); /* nothing new: nothing is sent */
  assert_in_range(bench_count_sent(&b, MSG_PROGRESS), 0, 1);
  bench_close(&b);
}

static void test_progress_is_part_of_the_verdict(void **state) {
  struct bench b;
  bench_open(&b);
  bench_running(&b);
  progress(&b, 1, 120, (double)NAN, (double)INFINITY);
  bench_exited(&b, 1, SIGNALED(9), b.now_ms, "");
  const struct report *r = bench_report(&b, REPORT_FAILED);
  assert_int_equal(r->what.step, 120);
  assert_int_equal(r->what.of, 500);
  bench_run(&b, 250);
  assert_int_equal(bench_said(&b, "after step 120 of 500"), 1);
  bench_close(&b);
}

static void test_numbers_no_worker_should_tell(void **state) {
  struct bench b;
  bench_open(&b);
  bench_running(&b);
  progress(&b, 0, UINT64_MAX, (double)NAN, -(double)INFINITY);
  progress(&b, 1, UINT64_MAX, (double)INFINITY, 1e308);
  progress(&b, 0, UINT64_MAX, (double)NAN, 1e308);
  bench_run(&b, 1000);
  assert_int_equal(bench_sent(&b, MSG_PROGRESS)->progress.step, INT64_MAX);
  assert_true(isnan(bench_sent(&b, MSG_PROGRESS)->progress.samples_per_second)); /* the sum is no number */
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_message_when_all_have_given),
      cmocka_unit_test(test_before_all_have_been_spawned),
      cmocka_unit_test(test_sent_again_after_every_welcome),
      cmocka_unit_test(test_errors),
      cmocka_unit_test(test_values_of_a_round_end_with_it),
      cmocka_unit_test(test_the_slowest_step_twice_a_second),
      cmocka_unit_test(test_progress_is_part_of_the_verdict),
      cmocka_unit_test(test_numbers_no_worker_should_tell),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
