/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv: a worker with communicators leaves its round. A barrier stands for a collective that cannot complete: `cut`
 * alone opens it. */

#include "tests/rig/sdk.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tests/rig/unit.h"

static struct sdk_rig rig;
static struct rdzv *r;
static struct rdzv_comms each[16], *comms = each; /* of a test each: a thread that is left may hold memory */
static sem_t collective;
static char order[64]; /* what was called, a letter each; R: the agent has the REJOIN */
static int cut_fails, parked_at_poison;

/* For a while: a thread that nothing ends would hang the test. */
static void wait_for(sem_t *s) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 5;
  while (sem_timedwait(s, &until) && errno == EINTR) {
  }
}

static int wait_for_collective(void *ctx) {
  wait_for(&collective);
  return *(int *)ctx;
}

static void note(const char *letter) {
  strcat(order, letter);
}

static void poison(void *ctx) {
  assert_ptr_equal(ctx, &rig);
  parked_at_poison = rig.parked;
  note("P");
}

/* In another thread: the test looks at what it leaves. */
static int cut(void *ctx) {
  if (((struct sdk_rig *)ctx)->parked == 1 && rdzv_round(r) == 5) note("R");
  note("C");
  if (!cut_fails) sem_post(&collective);
  return cut_fails > 0 ? cut_fails : 0;
}

static void turn(void) {
  for (int i = 0; i < 3; i++) pump(&rig, 5);
}

static int join(void **state) {
  sdk_rig_open(&rig, 1, 2);
  r = sdk_rig_join(&rig);
  assert_int_equal(rdzv_can_rejoin(r), 0);
  turn();
  *++comms = (struct rdzv_comms){.poison = poison, .cut = cut, .ctx = &rig};
  sem_init(&collective, 0, 0);
  order[0] = 0;
  cut_fails = 0;
  return 0;
}

static int leave(void **state) {
  rdzv_finish(r);
  sdk_rig_close(&rig);
  rig = (struct sdk_rig){0};
  sem_destroy(&collective);
  return 0;
}

static void open_next(void) {
  struct sdk_welcome w = {.world_size = 1, .local_world_size = 1, .node_count = 1, .round = 5};
  turn();
  sdk_server_open_round(rig.s, &w, 1);
}

static void ask_to_leave(void) {
  sdk_server_request(rig.s, NULL, RDZV_REJOIN, 0);
  turn();
}

static int run(int timeout_ms) {
  static int result = 7;
  return rdzv_run_watched(r, comms, wait_for_collective, &result, timeout_ms);
}

#define JOINED_TEST(name) UNIT_TEST_WITH(name, join, leave)

JOINED_TEST(test_the_result_of_a_wait) {
  sem_post(&collective);
  assert_int_equal(run(PATIENCE_MS), 7);
  sem_post(&collective);
  assert_int_equal(run(PATIENCE_MS), 7);
  sdk_server_request(rig.s, NULL, RDZV_CHECKPOINT, 1); /* ends no wait */
  turn();
  assert_int_equal(run(50), -ETIMEDOUT);
  assert_string_equal(order, "");
  sem_post(&collective);
  assert_int_equal(rdzv_leave(r, comms, "late", 0), -ETIMEDOUT);
  open_next();
  assert_int_equal(rdzv_leave(r, comms, NULL, PATIENCE_MS), 0);
}

JOINED_TEST(test_the_order) {
  ask_to_leave();
  assert_int_equal(run(PATIENCE_MS), -ECANCELED);
  assert_string_equal(rdzv_error(r), "run watched: the round is ending; rdzv_leave waits for the next one");
  assert_string_equal(order, ""); /* the program decides when it leaves */
  for (int i = 0; i < 3; i++) {
    assert_int_equal(rdzv_leave(r, comms, "why", 0), -ETIMEDOUT);
    assert_string_equal(order, "P"); /* once, and nothing is cut before the next round */
    turn();
  }
  assert_int_equal(parked_at_poison, 0);
  assert_string_equal(rig.reason, "why");
  assert_int_equal(run(0), -EINVAL);
  open_next();
  assert_int_equal(rdzv_leave(r, comms, NULL, PATIENCE_MS), 0);
  assert_string_equal(order, "PRC");
  assert_int_equal(rdzv_round(r), 5);
  /* The next round works like the first. */
  sem_post(&collective);
  assert_int_equal(run(PATIENCE_MS), 7);
  ask_to_leave();
  assert_int_equal(rdzv_leave(r, comms, NULL, 0), -ETIMEDOUT);
  assert_string_equal(order, "PRCP");
  open_next();
  assert_int_equal(rdzv_leave(r, comms, NULL, PATIENCE_MS), 0);
  assert_string_equal(order, "PRCPC");
}

JOINED_TEST(test_a_stop_cuts_nothing) {
  ask_to_leave();
  assert_int_equal(run(PATIENCE_MS), -ECANCELED);
  sdk_server_request(rig.s, NULL, RDZV_STOP, 0);
  turn();
  assert_int_equal(rdzv_leave(r, comms, NULL, PATIENCE_MS), -ECANCELED);
  assert_string_equal(order, "P");
  sem_post(&collective);
}

JOINED_TEST(test_a_lost_agent_cuts_nothing) {
  sdk_server_close_round(rig.s);
  assert_int_equal(run(PATIENCE_MS), -ESTALE);
  assert_int_equal(rdzv_leave(r, comms, NULL, PATIENCE_MS), -ESTALE);
  assert_string_equal(order, "P");
  sem_post(&collective);
}

/* A program that cannot leave in time gets -EIO, which tells it to exit. Later calls return the same. */
JOINED_TEST(test_a_cut_that_fails) {
  ask_to_leave();
  assert_int_equal(run(PATIENCE_MS), -ECANCELED);
  assert_int_equal(rdzv_leave(r, comms, NULL, 0), -ETIMEDOUT);
  open_next();
  cut_fails = 3;
  assert_int_equal(rdzv_leave(r, comms, NULL, PATIENCE_MS), -EIO);
  assert_string_equal(rdzv_error(r), "leave: cut failed with 3; exit now");
  cut_fails = 0;
  assert_int_equal(rdzv_leave(r, comms, NULL, PATIENCE_MS), -EIO);
  assert_int_equal(run(0), -EINVAL);
  assert_string_equal(order, "PRC");
  sem_post(&collective);
}

JOINED_TEST(test_a_wait_that_no_cut_ends) {
  ask_to_leave();
  assert_int_equal(run(PATIENCE_MS), -ECANCELED);
  assert_int_equal(rdzv_leave(r, comms, NULL, 0), -ETIMEDOUT);
  open_next();
  cut_fails = -1; /* it returns 0 */
  comms->cut_ms = 50;
  assert_int_equal(rdzv_leave(r, comms, NULL, PATIENCE_MS), -EIO);
  assert_non_null(strstr(rdzv_error(r), "the watched wait did not end within 50 ms"));
  sem_post(&collective);
}

static sem_t driver;

static int hang(void *ctx) {
  wait_for(&driver);
  return 0;
}

JOINED_TEST(test_a_cut_that_hangs) {
  sem_init(&driver, 0, 0);
  comms->cut = hang;
  comms->cut_ms = 50;
  comms->poison = NULL;
  assert_int_equal(rdzv_leave(r, comms, NULL, 0), -ETIMEDOUT);
  open_next();
  assert_int_equal(rdzv_leave(r, comms, NULL, PATIENCE_MS), -EIO);
  assert_string_equal(rdzv_error(r), "leave: cut did not end within 50 ms; exit now");
  sem_post(&driver);
}

JOINED_TEST(test_without_an_agent) {
  struct rdzv *alone;
  unsetenv("RDZV_AGENT_SOCKET");
  assert_int_equal(rdzv_init(&alone, 0), 0);
  int result = 4;
  sem_post(&collective);
  assert_int_equal(rdzv_run_watched(alone, comms, wait_for_collective, &result, PATIENCE_MS), 4);
  assert_int_equal(rdzv_leave(alone, comms, NULL, 0), -ENOTSUP);
  assert_string_equal(order, "P");
  rdzv_finish(alone);
}
