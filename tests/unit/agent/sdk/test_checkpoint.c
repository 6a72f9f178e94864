/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv: one request for a checkpoint is answered by one checkpoint. */

#include "tests/rig/sdk.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include "tests/rig/unit.h"

static struct sdk_rig rig;
static struct rdzv *r;

static void join(void) {
  sdk_rig_open(&rig, 1, 2);
  r = sdk_rig_join(&rig);
}

static void leave(void) {
  rdzv_finish(r);
  sdk_rig_close(&rig);
  rig = (struct sdk_rig){0};
}

static unsigned asked(void) {
  pump(&rig, 0);
  return rdzv_requested(r) & RDZV_CHECKPOINT;
}

/* All that it has said has been read. */
static int answers(void) {
  for (int i = 0; i < 3; i++) pump(&rig, 5);
  return rig.checkpointed[0];
}

UNIT_TEST(test_the_bit_stays_until_it_is_answered) {
  join();
  assert_int_equal(rdzv_can_checkpoint(r), 0);
  assert_int_equal(rdzv_can_checkpoint(r), 0);
  assert_int_equal(asked(), 0);
  assert_int_equal(rig.can, 1);
  sdk_server_request(rig.s, NULL, 0, 1);
  for (int i = 0; i < 3; i++) assert_int_equal(asked(), RDZV_CHECKPOINT);
  assert_int_equal(answers(), 0);
  assert_int_equal(rdzv_checkpointed(r, 120), 0);
  assert_int_equal(asked(), 0);
  assert_int_equal(answers(), 1);
  assert_int_equal(rig.checkpoint_step[0], 120);
  sdk_server_request(rig.s, NULL, RDZV_STOP, 1);
  pump(&rig, 0);
  assert_int_equal(rdzv_requested(r), RDZV_STOP);
  leave();
  assert_int_equal(rig.troubles, 0);
}

/* Who has not said that it answers is not shown what it does not answer. */
UNIT_TEST(test_who_does_not_answer) {
  join();
  sdk_server_request(rig.s, NULL, 0, 1);
  assert_int_equal(asked(), 0);
  assert_int_equal(rdzv_can_checkpoint(r), 0);
  assert_int_equal(asked(), RDZV_CHECKPOINT); /* it was asked before, and is waited for from now on */
  leave();
}

/* A checkpoint that was begun before the request was seen is none for it. */
UNIT_TEST(test_what_was_begun_before) {
  join();
  rdzv_can_checkpoint(r);
  assert_int_equal(asked(), 0);
  sdk_server_request(rig.s, NULL, 0, 1);
  pump(&rig, 0);
  poll(NULL, 0, 5);
  assert_int_equal(asked(), RDZV_CHECKPOINT);
  sdk_server_request(rig.s, NULL, 0, 2);
  pump(&rig, 0); /* another one while it writes: not seen yet, and not answered */
  rdzv_checkpointed(r, 5);
  answers();
  poll(NULL, 0, 1100);
  rdzv_requested(r); /* the look that belongs to the checkpoint */
  assert_int_equal(answers(), 2);
  sdk_server_request(rig.s, NULL, 0, 3);
  assert_int_equal(asked(), RDZV_CHECKPOINT);
  leave();
}

/* Another rank was asked first: this one's request comes right after its checkpoint, and is answered by it. */
UNIT_TEST(test_another_rank_was_quicker) {
  join();
  rdzv_can_checkpoint(r);
  assert_int_equal(asked(), 0);
  assert_int_equal(rdzv_checkpointed(r, 7), 0);
  assert_int_equal(answers(), 0);
  for (int i = 0; i < 3; i++) assert_int_equal(asked(), 0);
  sdk_server_request(rig.s, NULL, 0, 1);
  assert_int_equal(asked(), 0);
  assert_int_equal(answers(), 1);
  assert_int_equal(rig.checkpoint_step[0], 7);
  leave();
}

/* A step that takes long: only the first look counts. */
UNIT_TEST(test_the_first_look_after_it) {
  join();
  rdzv_can_checkpoint(r);
  for (int late = 0; late < 2; late++) {
    rdzv_checkpointed(r, 7);
    poll(NULL, 0, 1100);
    if (late) assert_int_equal(asked(), 0);
    sdk_server_request(rig.s, NULL, 0, 1 + (uint32_t)late);
    assert_int_equal(asked(), late ? RDZV_CHECKPOINT : 0);
  }
  assert_int_equal(answers(), 1);
  leave();
}

/* Who comes late hears of it in WELCOME. */
UNIT_TEST(test_asked_before_it_came) {
  sdk_rig_open(&rig, 1, 2);
  sdk_server_request(rig.s, NULL, 0, 4);
  r = sdk_rig_join(&rig);
  rdzv_can_checkpoint(r);
  assert_int_equal(asked(), RDZV_CHECKPOINT);
  rdzv_checkpointed(r, 1);
  assert_int_equal(answers(), 1);
  leave();
}

UNIT_TEST(test_a_lost_agent) {
  join();
  rdzv_can_checkpoint(r);
  sdk_server_request(rig.s, NULL, 0, 1);
  assert_int_equal(asked(), RDZV_CHECKPOINT);
  sdk_server_close_round(rig.s);
  assert_true(rdzv_checkpointed(r, 1) < 0);
  assert_string_equal(rdzv_error(r), "checkpointed: round 4 is over");
  leave();
}

/* The workers of the next round learn what one of this round has reported. */
UNIT_TEST(test_what_was_saved_outlives_the_round) {
  join();
  assert_int_equal(rdzv_saved_step(r), 0);
  assert_int_equal(rdzv_saved(r, 120), 0);
  assert_int_equal(rdzv_saved(r, 140), 0);
  answers();
  assert_int_equal(rdzv_saved_step(r), 0);
  rdzv_finish(r);
  struct sdk_welcome next = {.world_size = 1, .local_world_size = 1, .node_count = 1, .round = ROUND + 1};
  sdk_server_open_round(rig.s, &next, 1);
  setenv("RDZV_ROUND", "5", 1);
  r = sdk_rig_join(&rig);
  assert_true(rdzv_round(r) == ROUND + 1 && rdzv_saved_step(r) == 140);
  leave();
  assert_int_equal(rig.troubles, 0);
}

/* The sums are the worker's own; all ranks have one group for them. */
UNIT_TEST(test_waits_of_a_worker_without_nccl) {
  join();
  assert_int_equal(rdzv_waited(r, 40, 1500), 0);
  assert_int_equal(rdzv_waited(r, 80, 3500), 0);
  answers();
  const struct sdk_pace *p = &rig.pace[0];
  assert_true(p->group == 1 && p->rank == (uint32_t)rdzv_rank(r) && p->size == (uint32_t)rdzv_world_size(r));
  assert_true(p->collectives == 80 && p->waited_us == 3500 && !p->pairs);
  sdk_server_close_round(rig.s);
  assert_true(rdzv_waited(r, 1, 1) < 0);
  assert_string_equal(rdzv_error(r), "waited: round 4 is over");
  leave();
  assert_int_equal(rig.troubles, 0);
}

/* The agent measures the time, so the last step is there before it begins. */
UNIT_TEST(test_a_worker_that_waits_for_a_checkpoint) {
  join();
  assert_int_equal(rdzv_resumed(r, 120), 0);
  for (uint64_t step = 121; step < 130; step++) assert_int_equal(rdzv_progress(r, step, 500, 0.5, 64), 0);
  assert_int_equal(rdzv_saving(r, true), 0);
  answers();
  assert_int_equal(rig.resumed_step[0], 120);
  assert_int_equal(rig.progress[0].step, 129);
  assert_true(rig.saving == 1 && rig.not_saving == 0);
  assert_int_equal(rdzv_saving(r, true), 0); /* it does already */
  assert_int_equal(rdzv_saving(r, false), 0);
  assert_int_equal(rdzv_saved(r, 129), 0);
  answers();
  assert_true(rig.saving == 1 && rig.not_saving == 1);
  assert_true(rig.saves == 1 && rig.saved_step[0] == 129);
  rdzv_saving(r, true);
  rdzv_done(r);
  answers();
  assert_true(rig.saving == 2 && rig.not_saving == 2);
  sdk_server_close_round(rig.s);
  assert_true(rdzv_saving(r, true) < 0);
  assert_string_equal(rdzv_error(r), "saving: round 4 is over");
  assert_true(rdzv_resumed(r, 1) < 0);
  assert_string_equal(rdzv_error(r), "resumed: round 4 is over");
  leave();
  assert_int_equal(rig.troubles, 0);
}

/* Its connection is all that the agent has of it. */
UNIT_TEST(test_a_worker_that_dies_while_it_saves) {
  join();
  rdzv_saving(r, true);
  rdzv_finish(r);
  answers();
  assert_true(rig.saving == 1 && rig.not_saving == 1);
  sdk_rig_close(&rig);
  rig = (struct sdk_rig){0};
}

/* A parked worker has left its round. */
UNIT_TEST(test_a_worker_that_leaves_its_round_while_it_saves) {
  join();
  rdzv_can_rejoin(r);
  rdzv_saving(r, true);
  assert_int_equal(rdzv_rejoin(r, "a peer is gone", 0), -ETIMEDOUT);
  answers();
  assert_true(rig.parked == 1 && rig.saving == 1 && rig.not_saving == 1);
  rdzv_saving(r, true);
  rdzv_resumed(r, 7);
  rdzv_saved(r, 7);
  answers();
  assert_true(rig.saving == 1 && rig.saves == 0 && rig.resumed_step[0] == 0);
  struct sdk_welcome next = {.world_size = 1, .local_world_size = 1, .node_count = 1, .round = ROUND + 1};
  sdk_server_open_round(rig.s, &next, 1);
  assert_int_equal(rdzv_rejoin(r, NULL, 1000), 0);
  assert_int_equal(rdzv_saved_step(r), 7); /* that it was written is true all the same */
  rdzv_saving(r, true);
  answers();
  assert_int_equal(rig.saving, 2);
  leave();
}

UNIT_TEST(test_without_an_agent) {
  assert_int_equal(rdzv_init(&r, 0), 0);
  assert_true(rdzv_alone(r));
  assert_int_equal(rdzv_saving(r, true), 0);
  assert_int_equal(rdzv_resumed(r, 7), 0);
  rdzv_finish(r);
}
