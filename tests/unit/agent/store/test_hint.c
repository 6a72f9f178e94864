/* SPDX-License-Identifier: Apache-2.0 */
/* store_hint: which processes give away a script that looks for its store elsewhere, and when nothing is said. */

#include "agent/store/hint.h"

#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

enum { AGENTS_PORT = 40485, WORKERS = 3 };

struct fixture {
  struct store_hint_process v[WORKERS], before[WORKERS];
  struct store_hint_given given;
  uint64_t elapsed_ms;
  struct buf said;
};

/* Three ranks with PyTorch that have what the agent gave, and compute. */
static void open_fixture(struct fixture *f) {
  memset(f, 0, sizeof *f);
  f->given = (struct store_hint_given){.addr = "10.0.0.1", .port = AGENTS_PORT, .world_size = WORKERS};
  f->elapsed_ms = STORE_HINT_FIRST_MS;
  for (int i = 0; i < WORKERS; i++)
    f->v[i] = (struct store_hint_process){
        .rank = i, .pid = 100 + i, .start = 7, .name = "python3", .addr = "10.0.0.1", .port = "40485", .torch = true};
}

/* What is said where the look before was the same. */
static const char *say(struct fixture *f) {
  memcpy(f->before, f->v, sizeof f->before);
  struct store_hint_look now = {f->v, WORKERS}, before = {f->before, WORKERS};
  buf_clear(&f->said);
  bool said = store_hint_put(&f->given, &before, &now, f->elapsed_ms, &f->said);
  assert_int_equal(said, f->said.len > 0);
  return buf_text(&f->said);
}

#define BEGINNING "no worker has connected to the round's store (MASTER_ADDR=10.0.0.1 MASTER_PORT=40485) for 10 s: "
#define REMEDY                                                                                                         \
  ". If the script sets MASTER_ADDR or MASTER_PORT, or has an init_method=\"tcp://...\", start the job "               \
  "with "                                                                                                              \
  "--store worker"

static void test_workers_that_compute_are_left_alone(void **state) {
  struct fixture f;
  open_fixture(&f);
  assert_string_equal(say(&f), "");
  buf_finish(&f.said);
}

static void test_commands_that_need_no_store(void **state) {
  struct fixture f;
  open_fixture(&f);
  for (int i = 0; i < WORKERS; i++) {
    f.v[i].torch = false;
    f.v[i].sleeps = true;
    strcpy(f.v[i].dials, "10.0.0.9:5000");
    f.v[i].dials_port = 5000;
  }
  assert_string_equal(say(&f), "");
  buf_finish(&f.said);
}

static void test_a_port_of_the_command(void **state) {
  struct fixture f;
  open_fixture(&f);
  f.elapsed_ms = STORE_HINT_FIRST_MS - 1;
  for (int i = 1; i < WORKERS; i++) {
    strcpy(f.v[i].addr, "node\n1");
    strcpy(f.v[i].port, "29500");
    f.v[i].torch = false; /* it may still be importing it */
  }
  assert_string_equal(say(&f), "");
  f.elapsed_ms++;
  assert_string_equal(say(&f), BEGINNING
                      "rank 1's process 101 (python3) and 1 other have MASTER_ADDR=node\\n1 MASTER_PORT=29500 from the "
                      "command, and no worker listens there. Start the job with --store worker, or leave both "
                      "variables as they are");
  f.v[0].listens[f.v[0].n_listens++] = 29500; /* torchrun, or accelerate, in a worker: rank 0's serves it */
  assert_string_equal(say(&f), "");
  f.v[0].n_listens = 0;
  f.v[1].own_store = f.v[2].own_store = true;
  assert_string_equal(say(&f), "");
  f.v[1].own_store = f.v[2].own_store = false;
  f.v[1].reached = f.v[2].reached = true; /* a store that is no worker's */
  assert_string_equal(say(&f), "");
  f.v[1].reached = false;
  strcpy(f.v[1].port, "banana");
  assert_string_equal(say(&f), "");
  buf_finish(&f.said);
}

/* It loads its data, and logs to a server elsewhere. */
static void test_a_port_that_the_script_sets(void **state) {
  struct fixture f;
  open_fixture(&f);
  strcpy(f.v[2].port, "29500");
  f.v[2].set_inside = f.v[2].connected = true;
  assert_string_equal(say(&f), BEGINNING
                      "rank 2's process 102 (python3) has MASTER_ADDR=10.0.0.1 MASTER_PORT=29500, set by the script "
                      "itself, and no worker listens there. Start the job with --store worker, or leave both variables "
                      "as they are");
  f.v[2].torch = false; /* it may mean something else */
  assert_string_equal(say(&f), "");
  f.v[2].torch = true;
  f.v[2].own_store = true; /* it has said so itself */
  assert_string_equal(say(&f), "");
  buf_finish(&f.said);
}

static void test_an_address_that_does_not_answer(void **state) {
  struct fixture f;
  open_fixture(&f);
  strcpy(f.v[2].dials, "10.0.0.9:29500");
  f.v[2].dials_port = 29500;
  assert_string_equal(say(&f), BEGINNING "rank 2's process 102 (python3) gets no answer from 10.0.0.9:29500" REMEDY);
  f.v[2].dials_port = 443; /* a download */
  assert_string_equal(say(&f), "");
  buf_finish(&f.said);
}

static void test_workers_that_sleep(void **state) {
  struct fixture f;
  open_fixture(&f);
  f.v[1].sleeps = f.v[2].sleeps = true;
  assert_string_equal(say(&f),
                      BEGINNING "rank 1's process 101 (python3) and 1 other sleep and have no connection" REMEDY);
  f.v[2].sleeps = false;
  assert_string_equal(say(&f), BEGINNING "rank 1's process 101 (python3) sleeps and has no connection" REMEDY);
  f.v[1].connected = true; /* to what the script has made itself */
  assert_string_equal(say(&f), "");
  buf_finish(&f.said);
}

/* Once is no sign: every program sleeps at times. */
static void test_it_slept_before(void **state) {
  struct fixture f;
  open_fixture(&f);
  f.v[1].sleeps = true;
  say(&f);
  struct store_hint_look now = {f.v, WORKERS}, before = {f.before, WORKERS}, none = {NULL, 0};
  assert_true(store_hint_put(&f.given, &before, &now, f.elapsed_ms, &f.said));
  assert_false(store_hint_put(&f.given, &none, &now, f.elapsed_ms, &f.said));
  f.before[1].start = 6; /* another process */
  assert_false(store_hint_put(&f.given, &before, &now, f.elapsed_ms, &f.said));
  buf_finish(&f.said);
}

/* One worker alone may sleep; mp.spawn makes ranks of its children. */
static void test_one_worker(void **state) {
  struct fixture f;
  open_fixture(&f);
  f.given.world_size = 1;
  for (int i = 0; i < WORKERS; i++) f.v[i].rank = 0;
  f.v[1].sleeps = true;
  assert_string_equal(say(&f), "");
  f.v[2].sleeps = true;
  assert_string_equal(say(&f),
                      BEGINNING "rank 0's process 101 (python3) and 1 other sleep and have no connection" REMEDY);
  buf_finish(&f.said);
}

static void test_when_to_look(void **state) {
  assert_int_equal(store_hint_next_ms(0, 0), 2500);
  assert_int_equal(store_hint_next_ms(7500, 0), 10000); /* PyTorch is imported by then: both looks see it sleep */
  assert_int_equal(store_hint_next_ms(10000, 0), 12500);
  assert_int_equal(store_hint_next_ms(10000, 10000), 40000);
  assert_int_equal(store_hint_next_ms(40000, 10000), 40000);
  assert_int_equal(store_hint_next_ms(3600000, 0), 3630000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_workers_that_compute_are_left_alone),
      cmocka_unit_test(test_commands_that_need_no_store),
      cmocka_unit_test(test_a_port_of_the_command),
      cmocka_unit_test(test_a_port_that_the_script_sets),
      cmocka_unit_test(test_an_address_that_does_not_answer),
      cmocka_unit_test(test_workers_that_sleep),
      cmocka_unit_test(test_it_slept_before),
      cmocka_unit_test(test_one_worker),
      cmocka_unit_test(test_when_to_look),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
