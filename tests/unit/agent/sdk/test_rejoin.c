/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv: a worker leaves its round, waits, and goes on in the next one. */

#include "tests/rig/sdk.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static struct sdk_rig rig;
static struct rdzv *r;

static void join(void) {
  sdk_rig_open(&rig, 1, 2);
  r = sdk_rig_join(&rig);
  assert_int_equal(rdzv_can_rejoin(r), 0);
  pump(&rig, 5);
}

static void leave(void) {
  rdzv_finish(r);
  sdk_rig_close(&rig);
  rig = (struct sdk_rig){0};
}

/* What the next round is for local rank 0: rank 0 of 1, round 5. */
static void open_next(uint32_t n) {
  struct sdk_welcome w[2] = {{.rank = 0,
                              .world_size = n,
                              .local_world_size = n,
                              .node_count = 1,
                              .round = 5,
                              .restart_count = 3,
                              .run_id = "job",
                              .incarnation = "018f-aa",
                              .head_addr = "127.0.0.2",
                              .node_addr = "127.0.0.3"}};
  w[1] = w[0];
  w[1].rank = w[1].local_rank = 1;
  sdk_server_open_round(rig.s, w, n);
}

static unsigned asked(void) {
  pump(&rig, 0);
  return rdzv_requested(r);
}

static void turn(void) {
  for (int i = 0; i < 3; i++) pump(&rig, 5);
}

UNIT_TEST(test_all_is_of_the_next_round) {
  join();
  assert_int_equal(rig.can_rejoin, 1);
  assert_int_equal(asked(), 0);
  sdk_server_request(rig.s, NULL, RDZV_REJOIN, 0);
  assert_int_equal(asked(), RDZV_REJOIN);
  assert_int_equal(rdzv_rejoin(r, "lost contact\nwith rank 3", 0), -ETIMEDOUT);
  assert_non_null(strstr(rdzv_error(r), "no next round within 0 ms"));
  turn();
  assert_int_equal(rig.parked, 1);
  assert_string_equal(rig.reason, "lost contact with rank 3");
  open_next(1);
  assert_int_equal(rdzv_rejoin(r, NULL, PATIENCE_MS), 0);
  assert_int_equal(rdzv_round(r), 5);
  assert_int_equal(rdzv_rank(r), 0);
  assert_int_equal(rdzv_world_size(r), 1);
  assert_int_equal(rdzv_node_rank(r), 0);
  assert_int_equal(rdzv_restart_count(r), 3);
  assert_string_equal(rdzv_head_addr(r), "127.0.0.2");
  assert_string_equal(rdzv_node_addr(r), "127.0.0.3");
  assert_int_equal(asked(), 0);
  turn();
  assert_int_equal(rig.parked, 1); /* said once */
  assert_int_equal(rig.can_rejoin, 2);
  assert_int_equal(rig.cannot_rejoin, 0);
  leave();
}

UNIT_TEST(test_several_rounds) {
  join();
  rdzv_can_checkpoint(r);
  turn();
  for (uint32_t round = 5; round < 9; round++) {
    struct sdk_welcome w = {.rank = round, .world_size = 20, .local_world_size = 1, .node_count = 1, .round = round};
    assert_int_equal(rdzv_rejoin(r, NULL, 0), -ETIMEDOUT);
    turn();
    sdk_server_open_round(rig.s, &w, 1);
    sdk_server_request(rig.s, NULL, round % 2 ? RDZV_REJOIN : 0, 1);
    assert_int_equal(rdzv_rejoin(r, NULL, PATIENCE_MS), 0);
    assert_int_equal(rdzv_rank(r), round);
    assert_int_equal(asked(), RDZV_CHECKPOINT | (round % 2 ? RDZV_REJOIN : 0)); /* void at once */
    assert_int_equal(rdzv_checkpointed(r, round), 0);
    turn();
  }
  assert_int_equal(rig.checkpointed[0], 4);
  assert_int_equal(rig.can, 5);
  assert_int_equal(rig.troubles, 0);
  leave();
}

UNIT_TEST(test_told_to_stop_while_parked) {
  join();
  assert_int_equal(rdzv_rejoin(r, NULL, 0), -ETIMEDOUT);
  turn();
  sdk_server_request(rig.s, NULL, RDZV_STOP, 0);
  assert_int_equal(rdzv_rejoin(r, NULL, PATIENCE_MS), -ECANCELED);
  assert_int_equal(rdzv_rejoin(r, NULL, PATIENCE_MS), -ECANCELED);
  leave();
}

UNIT_TEST(test_an_interrupt_while_parked) {
  volatile sig_atomic_t stopped = 1;
  join();
  rdzv_set_interrupt(r, &stopped);
  assert_int_equal(rdzv_rejoin(r, NULL, PATIENCE_MS), -EINTR);
  assert_string_equal(rdzv_error(r), "rejoin: interrupted");
  turn();
  assert_int_equal(rig.parked, 1);
  stopped = 0;
  open_next(1);
  assert_int_equal(rdzv_rejoin(r, NULL, PATIENCE_MS), 0);
  assert_int_equal(rdzv_round(r), 5);
  leave();
}

UNIT_TEST(test_the_agent_goes) {
  join();
  assert_int_equal(rdzv_rejoin(r, NULL, 0), -ETIMEDOUT);
  turn();
  sdk_server_close_round(rig.s);
  assert_int_equal(rdzv_rejoin(r, NULL, PATIENCE_MS), -ESTALE);
  assert_string_equal(rdzv_error(r), "rejoin: round 4 is over");
  leave();
}

/* Who is not parked when the next round begins is of the old one. */
UNIT_TEST(test_too_late) {
  join();
  open_next(1);
  assert_int_equal(rdzv_rejoin(r, NULL, PATIENCE_MS), -ESTALE);
  assert_int_equal(rig.cannot_rejoin, 0);
  turn();
  assert_int_equal(rig.cannot_rejoin, 1);
  leave();
}

UNIT_TEST(test_who_may_not) {
  sdk_rig_open(&rig, 1, 2);
  r = sdk_rig_join(&rig);
  assert_int_equal(rdzv_rejoin(r, NULL, 0), -EINVAL);
  sdk_server_request(rig.s, NULL, RDZV_REJOIN, 0);
  assert_int_equal(asked(), 0); /* it has not said that it can */
  assert_int_equal(rdzv_can_rejoin(r), 0);
  assert_int_equal(asked(), RDZV_REJOIN);
  rdzv_done(r);
  assert_int_equal(rdzv_rejoin(r, NULL, 0), -EINVAL);
  turn();
  assert_int_equal(rig.can_rejoin, 1);
  assert_int_equal(rig.cannot_rejoin, 1);
  leave();
}

UNIT_TEST(test_without_an_agent) {
  unsetenv("RDZV_AGENT_SOCKET");
  assert_int_equal(rdzv_init(&r, 0), 0);
  assert_int_equal(rdzv_can_rejoin(r), 0);
  assert_int_equal(rdzv_rejoin(r, NULL, 0), -ENOTSUP);
  rdzv_finish(r);
}

/* Of two processes of one local rank one can rejoin; and it goes with its connection. */
UNIT_TEST(test_one_of_a_local_rank) {
  struct rdzv *second;
  join();
  second = sdk_rig_join(&rig);
  rdzv_can_rejoin(second);
  turn();
  assert_int_equal(rig.troubles, 1);
  assert_non_null(strstr(rig.trouble, "says that it can rejoin, but so did another process"));
  assert_int_equal(rig.can_rejoin, 1);
  rdzv_finish(second);
  assert_int_equal(rdzv_rejoin(r, NULL, 0), -ETIMEDOUT);
  turn();
  rdzv_finish(r);
  r = NULL;
  turn();
  assert_int_equal(rig.cannot_rejoin, 1);
  leave();
}

/* A wait for the store of a round that ends. */
UNIT_TEST(test_a_wait_is_ended) {
  sdk_rig_open_store(&rig, 1, 2, 9);
  r = sdk_rig_join(&rig);
  rdzv_can_rejoin(r);
  turn();
  sdk_server_request(rig.s, NULL, RDZV_REJOIN, 0);
  turn();
  char *value;
  assert_int_equal(rdzv_store_get(r, "k", &value, NULL, PATIENCE_MS), -ECANCELED);
  assert_non_null(strstr(rdzv_error(r), "rdzv_rejoin waits for the next one"));
  leave();
}
