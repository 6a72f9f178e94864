/* SPDX-License-Identifier: Apache-2.0 */
/* proto/collective.c: which ranks the others wait for, from what each node sees. */

#include <stdio.h>
#include <string.h>
#include "proto/msg.h"
#include "tests/rig/unit.h"

#define WAITS(number, n)                                                                                               \
  { .group = "gloo 0 default_pg", .op = "all_reduce", .seq = number, .waiting = n, .entered = -1, .ranks = "" }
#define IDLE(number, n, text)                                                                                          \
  { .group = "gloo 0 default_pg", .op = "", .entered = number, .idle = n, .ranks = text }

static void says(const struct collective *v, size_t n, const char *silent, const char *expected) {
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  collectives_sentence(v, n, silent, &out);
  assert_string_equal(buf_text(&out), expected);
}

/* In both orders. */
static void joined(const struct collective *nodes, size_t n, const char *expected) {
  for (int back = 0; back < 2; back++) {
    char ranks[RANKS_TEXT_MAX + 1] = "";
    struct collective all = {.group = "gloo 0 default_pg", .op = "", .entered = -1, .ranks = ranks};
    for (size_t i = 0; i < n; i++) collective_add(&all, &nodes[back ? n - 1 - i : i], ranks);
    says(&all, 1, "", expected);
  }
}

UNIT_TEST(test_one_is_missing) {
  struct collective nodes[] = {WAITS(412, 3), WAITS(412, 4), IDLE(411, 1, "3")};
  joined(nodes, 3, "rank 3 has not entered all_reduce #412, 7 others wait in it");
  joined(nodes, 2, "7 ranks wait in all_reduce #412");
  joined(&nodes[2], 1, "rank 3 is in no collective, the last one was #411");
}

UNIT_TEST(test_several_are_missing) {
  struct collective nodes[] = {WAITS(7, 1), IDLE(6, 1, "12"), IDLE(6, 2, "3,4")};
  joined(nodes, 3, "ranks 3, 4 and 12 have not entered all_reduce #7, 1 other waits in it");
  struct collective many[] = {WAITS(7, 1), IDLE(6, 9, "1,2,3,4,5,6,7,8"), IDLE(6, 6, "10,11,12,13,14,15")};
  joined(many, 3, "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 7 more have not entered all_reduce #7, 1 other waits in it");
}

/* A rank that is idle because it is done with the collective is not the one that the others wait for. */
UNIT_TEST(test_the_lowest_counts) {
  struct collective nodes[] = {WAITS(9, 2), WAITS(8, 5), IDLE(7, 1, "6"), IDLE(9, 1, "5")};
  joined(nodes, 4, "rank 6 has not entered all_reduce #8, 5 others wait in it");
  struct collective ahead[] = {WAITS(8, 1), IDLE(9, 1, "5")};
  joined(ahead, 2, "1 rank waits in all_reduce #8");
}

/* Ranks that wait in a group because others wait in another one. */
UNIT_TEST(test_the_group_that_says_most) {
  struct collective v[] = {
      {.group = "nccl 0 default_pg", .op = "all_gather", .seq = 5, .waiting = 60, .entered = -1, .ranks = ""},
      {.group = "nccl 7 mesh_tp",
       .op = "all_reduce",
       .seq = 90,
       .waiting = 3,
       .entered = 89,
       .idle = 1,
       .ranks = "17"}};
  says(v, 2, "", "rank 17 has not entered all_reduce #90 of process group nccl 7 mesh_tp, 3 others wait in it");
  says(v, 1, "4", "60 ranks wait in all_gather #5; the debug server of rank 4 does not answer");
  says(v, 0, "4,9", "the debug server of ranks 4 and 9 do not answer");
  says(v, 0, "", "");
}

UNIT_TEST(test_lists_of_ranks) {
  char to[RANKS_TEXT_MAX + 1] = "";
  ranks_merge(to, "1048576,1048575,1048574,1048573,1048572,1048571,1048570,1048569,1048568");
  assert_string_equal(to, "1048568,1048569,1048570,1048571,1048572,1048573,1048574,1048575");
  ranks_merge(to, "7,x,5");
  assert_string_equal(to, "7,1048568,1048569,1048570,1048571,1048572,1048573,1048574");
  static const char *const bad[] = {"", ",", "-1", " 1", "99999999999999999999", "1048577"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    strcpy(to, "3");
    ranks_merge(to, bad[i]);
    assert_string_equal(to, "3");
  }
}

/* Text of a peer. */
UNIT_TEST(test_hostile_names) {
  struct collective v = {.group = "x\x1b[2J", .op = "\n\x07", .seq = 1, .waiting = 2, .entered = -1, .ranks = ""};
  says(&v, 1, "nonsense", "2 ranks wait in \\n\\x07 #1 of process group x\\x1b[2J");
}
