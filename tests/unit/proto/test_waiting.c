/* SPDX-License-Identifier: Apache-2.0 */
/* waiting: the line of who is missing, word for word. */

#include <string.h>
#include "proto/msg.h"
#include "tests/rig/unit.h"

static void check_until(const struct waiting *w, uint64_t later_ms, uint64_t end_ms, const char *want) {
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  waiting_sentence(w, later_ms, end_ms, &out);
  assert_string_equal(buf_text(&out), want);
}

static void check(const struct waiting *w, uint64_t later_ms, const char *want) {
  check_until(w, later_ms, UINT64_MAX, want);
}

static void check_failed(const struct waiting *w, const char *want) {
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  waiting_failed(w, &out);
  assert_string_equal(buf_text(&out), want);
}

static struct waiting base(int64_t here, int64_t min, int64_t max) {
  struct msg m;
  msg_init(&m, MSG_WAITING);
  m.waiting.here = here;
  m.waiting.min_nodes = min;
  m.waiting.max_nodes = max;
  return m.waiting;
}

UNIT_TEST(test_too_few) {
  struct waiting w = base(1, 2, 2);
  w.missing = 1;
  w.hosts = "n0";
  w.left_ms = 600000;
  check(&w, 0, "1 of 2 nodes is here (n0) after 0 s, giving up in 10 min (--join-timeout); missing 1");
  check(&w, 1001, "1 of 2 nodes is here (n0) after 1 s, giving up in 9 min 59 s (--join-timeout); missing 1");
  check(&w, 599999, "1 of 2 nodes is here (n0) after 9 min 59 s, giving up in 1 s (--join-timeout); missing 1");
  check(&w, 999999, "1 of 2 nodes is here (n0) after 16 min 39 s, giving up in 0 s (--join-timeout); missing 1");
  w.waited_ms = 600000;
  check_failed(&w, "1 of 2 nodes came (n0) within 10 min (--join-timeout); missing 1");
  w = base(1, 3, 8);
  w.missing = 2;
  w.waited_ms = 4 * 3600 * 1000;
  w.left_ms = 2 * 3600 * 1000 + 300000;
  check(&w, 0,
        "1 of 8 nodes is here after 4 h 0 min, giving up in 2 h 5 min (--join-timeout); 3 are needed; "
        "missing 2");
}

/* More than half of the last round decide on the next one. */
UNIT_TEST(test_nodes_of_the_last_round_are_lacking) {
  struct absent absent = {.hosts = "gpu003", .why = ABSENCE_LOST, .ago_ms = 41000, .text = ""};
  struct waiting w = base(2, 1, 4);
  w.lacks = 1;
  w.missing = 1;
  w.absent = &absent;
  w.n_absent = 1;
  w.waited_ms = 41000;
  w.prospect = PROSPECT_LAST_CALL; /* it does not begin then */
  check(&w, 1000,
        "2 of 4 nodes are here after 42 s; 1 more node of the last round is needed, since more than half of them must "
        "agree (with --claim $PWD/claims, or "
        "another folder that all of them see, these could go on without); missing 1: gpu003 (lost 42 s ago)");
  check_until(&w, 1000, 30000,
              "2 of 4 nodes are here after 42 s, giving up in 30 s (--orphan-grace); 1 more node of the last round is "
              "needed, since more than half of them must agree (with --claim $PWD/claims, or "
              "another folder that all of them see, these could go on without); missing 1: "
              "gpu003 (lost 42 s ago)");
  w.lacks = 2;
  w.prospect = PROSPECT_GIVE_UP;
  w.left_ms = 60000;
  for (uint64_t end_ms = 59000; end_ms <= 61000; end_ms += 2000)
    check_until(
        &w, 0, end_ms,
        end_ms < 60000
            ? "2 of 4 nodes are here after 41 s, giving up in 59 s (--orphan-grace); 2 more nodes of the last "
              "round are needed, since more than half of them must agree (with --claim $PWD/claims, or another folder that "
              "all of them see, these could go on without); missing 1: gpu003 (lost 41 s ago)"
            : "2 of 4 nodes are here after 41 s, giving up in 60 s (--join-timeout); 2 more nodes of the last "
              "round are needed, since more than half of them must agree (with --claim $PWD/claims, or another folder that "
              "all of them see, these could go on without); missing 1: gpu003 (lost 41 s ago)");
  check(&w, 0,
        "2 of 4 nodes are here after 41 s, giving up in 60 s (--join-timeout); 2 more nodes of the last round are "
        "needed, since more than half of them must agree (with --claim $PWD/claims, or "
        "another folder that all of them see, these could go on without); missing 1: gpu003 "
        "(lost 41 s ago)");
  check_failed(&w, "2 of 4 nodes came within 41 s (--join-timeout); 2 more nodes of the last round were needed, since "
                   "more than half of them must agree (with --claim $PWD/claims, or "
                   "another folder that all of them see, these could have gone on without); missing 1: "
                   "gpu003 (lost 41 s ago)");
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  w.hosts = "gpu[001-002]";
  w.lacks = 1;
  waiting_lacked(&w, &out);
  assert_string_equal(
      buf_text(&out),
      "2 of 4 nodes are here (gpu[001-002]); 1 more node of the last round was needed, since more than half of them must "
      "agree (with --claim $PWD/claims, or "
      "another folder that all of them see, these could have gone on without); missing 1: gpu003 (lost 41 s ago)");
  w.text = "the daemon on gpu1 waits";
  check(
      &w, 0,
      "the daemon on gpu1 waits; 1 more node of the last round is needed, since more than half of them must agree (with "
      "--claim $PWD/claims, or another folder that all of them see, these could go on without)");
  w.claims = true;
  check(&w, 0,
        "the daemon on gpu1 waits; a node of the last round is needed, since that round may still run elsewhere");
}

UNIT_TEST(test_who_is_missing) {
  struct absent absent[] = {
      {.hosts = "gpu[003,007-009],login1", .why = ABSENCE_NEVER, .text = ""},
      {.hosts = "gpu012", .why = ABSENCE_LOST, .ago_ms = 41000, .text = "its connection closed and did not come back"},
      {.hosts = "gpu[014-015]", .why = ABSENCE_LEFT, .ago_ms = 300000, .text = ""},
      {.hosts = "gpu016", .why = ABSENCE_DRAINED, .ago_ms = 7200000, .text = "rdzvctl drain"},
  };
  struct waiting w = base(55, 64, 64);
  w.expected = 64;
  w.missing = 9;
  w.absent = absent;
  w.n_absent = 2;
  w.waited_ms = 41200;
  w.left_ms = 558800;
  check(&w, 0,
        "55 of 64 nodes are here after 41 s, giving up in 9 min 19 s (--join-timeout); missing 9: "
        "gpu[003,007-009],login1 (never came), gpu012 (lost 41 s ago: its connection closed and did not come "
        "back)");
  w.n_absent = 4;
  check_failed(&w,
               "55 of 64 nodes came within 41 s (--join-timeout); missing 9: gpu[003,007-009],login1 (never came), "
               "gpu012 (lost 41 s ago: its connection closed and did not come back), gpu[014-015] (left 5 min ago), "
               "gpu016 (drained 2 h 0 min ago: rdzvctl drain)");
  w.absent = &absent[1];
  w.n_absent = 1;
  check(&w, 79500,
        "55 of 64 nodes are here after 2 min, giving up in 8 min (--join-timeout); missing 9: gpu012 (lost 2 "
        "min ago: "
        "its connection closed and did not come back)");
}

UNIT_TEST(test_what_comes_next) {
  struct waiting w = base(60, 60, 64);
  w.expected = 64;
  w.missing = 4;
  w.prospect = PROSPECT_LAST_CALL;
  w.waited_ms = 18000;
  w.left_ms = 12000;
  check(&w, 0, "60 of 64 nodes are here after 18 s, beginning with these 60 in 12 s (--last-call); missing 4");
  w.missing = 0;
  w.prospect = PROSPECT_DELAY;
  check(&w, 11500,
        "60 of 64 nodes are here after 29 s, beginning with these 60 in 1 s, because the last rounds were "
        "short");
  w.prospect = PROSPECT_HOLD;
  w.here = 1;
  w.min_nodes = 1;
  check(&w, 0,
        "1 of 64 nodes is here after 18 s, beginning with it alone in 12 s, when a lost node has surely "
        "stopped");
  w.prospect = PROSPECT_LEAVE;
  check(&w, 0, "1 of 64 nodes is here after 18 s, beginning with it alone in 12 s, in case others leave too");
  w.prospect = PROSPECT_CLAIM;
  check(&w, 0, "1 of 64 nodes is here after 18 s, beginning with it alone when the round is claimed (--claim)");
  w.prospect = PROSPECT_VOTES;
  check(&w, 0, "1 of 64 nodes is here after 18 s, beginning with it alone when it has answered the daemon");
  w.here = 2;
  check(&w, 0, "2 of 64 nodes are here after 18 s, beginning with these 2 when they have answered the daemon");
  w.prospect = PROSPECT_HOLD;
  w.here = 70;
  w.expected = 0;
  check(&w, 0,
        "70 of 64 nodes are here after 18 s, beginning with these 64 in 12 s, when a lost node has surely "
        "stopped");
}

UNIT_TEST(test_refused) {
  struct turned_away r[] = {{"n3", 4000, "--nnodes (minimum) is 3 there and 2 in the job"},
                            {"n2", 9000, "--node-rank 1 is already that of n1 (pid 7)"}};
  struct waiting w = base(1, 2, 2);
  w.missing = 1;
  w.left_ms = 5000;
  w.refusals = r;
  w.n_refusals = 2;
  check(&w, 2000,
        "1 of 2 nodes is here after 2 s, giving up in 3 s (--join-timeout); missing 1; n3 was refused 6 s "
        "ago: --nnodes "
        "(minimum) is 3 there and 2 in the job; n2 was refused 11 s ago: --node-rank 1 is already that of n1 "
        "(pid 7)");
}

UNIT_TEST(test_other_texts_and_strangers) {
  struct absent a = {.hosts = "\x1b[31mred\n", .text = "\xff"};
  struct waiting w = base(1, 2, 2);
  w.missing = 1;
  w.absent = &a;
  w.n_absent = 1;
  check(&w, 0,
        "1 of 2 nodes is here after 0 s, giving up in 0 s (--join-timeout); missing 1: \\x1b[31mred\\n "
        "(never came: \\xff)");
  w.text = "round 3 of job j has its 2 nodes";
  check(&w, 5000, "round 3 of job j has its 2 nodes");
}
