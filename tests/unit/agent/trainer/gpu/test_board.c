/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank to name when a collective does not end: every case of board.h, and boards with arbitrary bytes. */

#include "agent/trainer/gpu/board.h"

#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "tests/rig/unit.h"

enum { W = 12 };

static void all_wait(struct board_post *p, int world, uint64_t begun) {
  memset(p, 0, (size_t)world * sizeof *p);
  for (int r = 0; r < world; r++)
    p[r] = (struct board_post){.rank = (uint32_t)r, .state = BOARD_WAITS, .begun = begun, .done = begun - (begun > 0)};
}

static void expect(const struct board_post *p, int world, int self, bool running, int lost, const char *text) {
  struct board_verdict w;
  board_decide(p, world, self, running, &w);
  assert_int_equal(w.lost, lost);
  assert_string_equal(w.text, text);
}

UNIT_TEST(test_a_silent_rank_is_named) {
  struct board_post p[W];
  all_wait(p, 4, 7);
  p[3] = (struct board_post){.rank = 3};
  assert_false(board_all_posted(p, 4, 0, true));
  expect(p, 4, 0, true, 3, "rank 3 does not respond");
  p[2].state = BOARD_UP; /* silent since its communicator came up */
  expect(p, 4, 0, true, 2, "ranks 2 and 3 do not respond");
  expect(p, 4, 0, false, 3, "rank 3 does not respond");
  p[1].state = BOARD_SILENT;
  expect(p, 4, 0, true, 1, "ranks 1, 2 and 3 do not respond");
  all_wait(p, W, 7);
  for (int r = 1; r < W; r++) p[r].state = BOARD_SILENT;
  expect(p, W, 0, true, 1, "ranks 1, 2, 3, 4 and 7 more do not respond");
  expect(p, W, 1, true, 2, "ranks 2, 3, 4, 5 and 6 more do not respond"); /* a rank never names itself */
}

UNIT_TEST(test_who_gave_up_comes_first) {
  struct board_post p[W];
  all_wait(p, 4, 7);
  p[1].state = BOARD_SILENT;
  p[2].state = BOARD_GAVE_UP;
  strcpy(p[2].why, "no space left on device");
  assert_int_equal(board_rank_at(p, 4, 0, BOARD_GAVE_UP), 2);
  expect(p, 4, 0, true, 2, "rank 2 gave up: no space left on device");
  assert_int_equal(board_rank_at(p, 4, 2, BOARD_GAVE_UP), -1);
  assert_int_equal(board_rank_at(p, 4, 0, BOARD_WAITS), 2);
  p[0].state = p[3].state = BOARD_UP;
  assert_int_equal(board_rank_at(p, 4, 2, BOARD_WAITS), -1);
  p[0].state = p[3].state = BOARD_ERROR;
  assert_int_equal(board_rank_at(p, 4, 2, BOARD_WAITS), 0);
  expect(p, 4, 2, true, 1, "rank 1 does not respond");
}

UNIT_TEST(test_a_rank_that_does_not_come_is_behind) {
  struct board_post p[W];
  all_wait(p, 4, 42);
  p[2].begun = p[2].done = 41;
  expect(p, 4, 0, true, 2, "rank 2 is behind: it had begun 41 collectives, others 42");
  p[2].begun = 20, p[2].done = 19;
  p[3] = p[2];
  expect(p, 4, 0, true, 2, "ranks 2 and 3 are behind: the first had begun 20 collectives, others 42");
}

UNIT_TEST(test_one_collective_apart_is_no_fault) {
  struct board_post p[W];
  all_wait(p, 4, 42);
  p[1].begun = 41, p[1].done = 40; /* still inside the one that others have left */
  assert_true(board_all_posted(p, 4, 0, true));
  expect(p, 4, 0, true, -1, "all ranks wait in it; the network or NCCL has stopped");
  p[3].state = BOARD_ERROR;
  expect(p, 4, 0, true, -1, "all ranks wait in it; the network or NCCL has stopped");
}

UNIT_TEST(test_before_there_is_a_communicator) {
  struct board_post p[W];
  all_wait(p, 4, 0);
  expect(p, 4, 0, false, -1, "all ranks are there");
  p[1].state = p[3].state = BOARD_UP;
  expect(p, 4, 0, false, -1, "all ranks are there, but rank 2 could not connect either");
  p[2].state = BOARD_UP;
  expect(p, 4, 0, false, -1, "all ranks are there");
  assert_true(board_all_posted(p, 4, 0, false));
}

UNIT_TEST(test_records_come_back_as_they_were) {
  struct board_post p[W], one = {.rank = 2, .state = BOARD_WAITS, .begun = 1ull << 40, .done = 3};
  uint8_t board[4 * BOARD_RECORD + 5];
  memset(board, 0, sizeof board);
  board_write(&one, board);
  one.begun++;
  board_write(&one, board + BOARD_RECORD); /* the last one counts */
  one = (struct board_post){.rank = 1, .state = BOARD_GAVE_UP, .begun = 5, .done = 5};
  memset(one.why, 'x', BOARD_WHY - 1);
  one.why[0] = '\n';
  board_write(&one, board + 2 * BOARD_RECORD);
  one.state = BOARD_WAITS; /* a rank that gave up stays so */
  board_write(&one, board + 3 * BOARD_RECORD);
  board_read(board, sizeof board, 3, p);
  assert_int_equal(p[0].state, BOARD_SILENT);
  assert_int_equal(p[2].state, BOARD_WAITS);
  assert_true(p[2].begun == (1ull << 40) + 1 && p[2].done == 3);
  assert_int_equal(p[1].state, BOARD_GAVE_UP);
  assert_int_equal(strlen(p[1].why), BOARD_WHY - 1);
  assert_int_equal(p[1].why[0], '?');
}

UNIT_TEST(test_nothing_on_a_board_does_harm) {
  struct board_post p[W];
  uint8_t board[16 * BOARD_RECORD];
  struct board_verdict w;
  srand(7);
  for (int round = 0; round < 2000; round++) {
    for (size_t i = 0; i < sizeof board; i++) board[i] = (uint8_t)(rand() % (round % 2 ? 256 : 6));
    size_t size = (size_t)rand() % (sizeof board + 1);
    if (round % 3)
      for (size_t k = 0; k < 16; k++) le32_put(board + k * BOARD_RECORD, (uint32_t)(rand() % (W + 1)));
    board_read(board, size, W, p);
    for (int r = 0; r < W; r++) assert_true(p[r].rank == (uint32_t)r && memchr(p[r].why, 0, BOARD_WHY));
    board_decide(p, W, round % W, round % 2, &w);
    assert_true(w.lost >= -1 && w.lost < W && w.lost != round % W);
    assert_true(w.text[0] && strlen(w.text) < BOARD_TEXT);
    for (const char *c = w.text; *c; c++) assert_true(*c >= ' ' && *c < 127);
  }
  board_read(NULL, 0, W, p);
  assert_int_equal(p[W - 1].state, BOARD_SILENT);
}
