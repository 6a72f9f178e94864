/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: what a person sees while a round forms, with a terminal and without. */

#include "tests/rig/supervisor.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static void waiting(struct msg *m, int64_t here, int64_t left_ms) {
  msg_init(m, MSG_WAITING);
  m->waiting.here = here;
  m->waiting.min_nodes = m->waiting.max_nodes = 64;
  m->waiting.missing = 64 - here;
  m->waiting.left_ms = left_ms;
}

static void tell(int64_t here, int64_t left_ms) {
  struct msg m;
  waiting(&m, here, left_ms);
  bench_msg(&m);
}

static const char *living(void) {
  const struct supervisor_effect *e = bench_effect(SUP_STATUS);
  return e ? e->text : "none";
}

static void joined(bool terminal) {
  bench_open();
  bench.config.living = terminal;
  bench.answering = true;
  bench_joined();
  bench_forget();
}

BENCH_TEST(test_nothing_within_the_first_second) {
  for (int terminal = 0; terminal < 2; terminal++) {
    joined(terminal);
    tell(1, 60000);
    bench_run(999);
    assert_int_equal(bench_count(SUP_STATUS), 0);
    assert_not_said("nodes");
    bench_start(1);
    bench_run(1500);
    assert_not_said("is here");
  }
}

BENCH_TEST(test_a_line_now_and_every_30_s) {
  joined(false);
  tell(1, 600000);
  bench_run(1000);
  assert_said("1 of 64 nodes is here after 1 s, giving up in 9 min 59 s (--join-timeout); missing 63");
  bench_run(29999);
  assert_said(" here ");
  bench_run(1);
  assert_said("1 of 64 nodes is here after 31 s, giving up in 9 min 29 s (--join-timeout); missing 63");
  bench_run(300000);
  assert_int_equal(bench_said(" here "), 12);
  assert_int_equal(bench_count(SUP_STATUS), 0);
}

/* The other half of a job whose two halves have different names may come after the first line. */
BENCH_TEST(test_sooner_when_a_twin_comes) {
  struct msg m;
  joined(false);
  tell(1, 600000);
  bench_run(1000);
  assert_said(" here ");
  for (int i = 0; i < 2; i++) {
    waiting(&m, 1, 599000);
    m.waiting.twin = "theirs";
    bench_msg(&m);
    bench_run(5000);
  }
  assert_said("job theirs of the same user waits here");
  assert_int_equal(bench_said(" here "), 2);
}

BENCH_TEST(test_sooner_when_much_has_changed) {
  struct msg m;
  joined(false);
  tell(1, 600000);
  bench_run(1000);
  for (int here = 2; here < 32; here++) { /* they come as is expected of them */
    tell(here, 600000);
    bench_run(200);
  }
  assert_said(" here ");
  tell(33, 600000); /* half of them */
  bench_run(0);
  assert_said("33 of 64");
  tell(32, 600000); /* one is lost: not within 2 s of the line before */
  bench_run(1999);
  assert_not_said("32 of 64");
  bench_run(1);
  assert_said("32 of 64");
  bench_run(3000);
  waiting(&m, 32, 500000); /* somebody was refused */
  struct turned_away r = {.host = "n9", .ago_ms = 1000, .text = "--lease is 1 ms there"};
  m.waiting.refusals = &r;
  m.waiting.n_refusals = 1;
  bench_msg(&m);
  bench_run(0);
  assert_said("n9 was refused 1 s ago: --lease is 1 ms there");
  bench_msg(&m);
  bench_run(0);
  assert_said("n9 was refused");
  bench_run(3000);
  waiting(&m, 60, 12000); /* enough */
  m.waiting.min_nodes = 60;
  m.waiting.prospect = PROSPECT_LAST_CALL;
  bench_msg(&m);
  bench_run(0);
  assert_said("beginning with these 60 in 12 s (--last-call)");
}

/* The first agent of the host says it. */
BENCH_TEST(test_no_line_from_the_second_agent_of_a_host) {
  bench.config.echo = true;
  bench_joined();
  bench_forget();
  tell(1, 600000);
  bench_run(1000);
  assert_int_equal(bench_effect(SUP_SAY)->say.level, LOG_DEBUG);
}

BENCH_TEST(test_a_living_line) {
  joined(true);
  tell(1, 600000);
  bench_run(1000);
  assert_string_equal(living(),
                      "1 of 64 nodes is here after 1 s, giving up in 9 min 59 s (--join-timeout); missing 63");
  bench_run(41000);
  assert_string_equal(living(),
                      "1 of 64 nodes is here after 42 s, giving up in 9 min 18 s (--join-timeout); missing 63");
  assert_int_equal(bench_count(SUP_STATUS), 42);
  tell(63, 500000); /* not faster than once a second */
  tell(62, 500000);
  bench_run(1000);
  assert_int_equal(bench_count(SUP_STATUS), 43);
  assert_string_equal(living(),
                      "62 of 64 nodes are here after 1 s, giving up in 8 min 19 s (--join-timeout); missing 2");
  for (size_t i = 0; i < bench.n_fx; i++) /* nor said, but into the file */
    if (bench.fx[i].kind == SUP_SAY) assert_int_equal(bench.fx[i].say.level, LOG_DEBUG);
  bench_start(1);
  assert_string_equal(living(), "");
  bench_run(5000);
  assert_string_equal(living(), "");
}

static size_t lines_with(const char *words) {
  size_t n = 0;
  for (size_t i = 0; i < bench.n_fx; i++)
    n += bench.fx[i].kind == SUP_SAY && bench.fx[i].say.level <= LOG_INFO && strstr(bench.fx[i].text, words);
  return n;
}

/* A terminal's edge cuts the living line off before it comes to the mistake. */
BENCH_TEST(test_a_mistake_has_a_line_on_a_terminal_too) {
  struct msg m;
  joined(true);
  tell(1, 600000);
  bench_run(5000);
  assert_int_equal(lines_with(" here "), 0);
  struct turned_away r = {.host = "n9", .ago_ms = 0, .text = "--nnodes (minimum) is 3 there and 2 in the job"};
  waiting(&m, 1, 595000);
  m.waiting.refusals = &r;
  m.waiting.n_refusals = 1;
  bench_msg(&m);
  bench_run(45000);
  assert_int_equal(lines_with("n9 was refused 0 s ago: --nnodes (minimum) is 3 there and 2 in the job"), 1);
  assert_int_equal(lines_with(" here "), 1);
  m.waiting.twin = "theirs";
  m.waiting.left_ms = 550000;
  r.ago_ms = 45000;
  bench_msg(&m);
  bench_run(45000);
  assert_int_equal(lines_with("job theirs of the same user waits here"), 1);
  assert_int_equal(lines_with(" here "), 2);
  assert_non_null(strstr(living(), "job theirs of the same user waits here"));
}

static int warnings_at(const char *endpoint, const char *addr, int64_t here, const char *from) {
  bench_open();
  bench.config.endpoint = endpoint;
  bench.config.endpoint_from = from;
  bench.peer = addr;
  bench.config.living = bench.answering = true;
  bench_joined();
  bench_forget();
  tell(here, 600000);
  bench_run(40000);
  int n = lines_with("other machines cannot reach the daemon at ");
  return n;
}

/* A machine's own name is a loopback address for itself alone, and two agents of one host may meet at 127.0.0.1. */
BENCH_TEST(test_an_endpoint_that_each_machine_has_for_itself) {
  assert_int_equal(warnings_at("localhost:29400", "127.0.0.1", 1, NULL), 1);
  assert_int_equal(warnings_at("node1:29400", "127.0.1.1", 1, NULL), 1);
  assert_int_equal(warnings_at("[::1]:29400", "::1", 1, NULL), 1);
  assert_int_equal(warnings_at("node1:29400", "10.0.0.1", 1, NULL), 0);
  assert_int_equal(warnings_at("N0.example.org:29400", "127.0.1.1", 1, NULL), 0);
  assert_int_equal(warnings_at("localhost:29400", "127.0.0.1", 2, NULL), 0);
  assert_int_equal(warnings_at("127.0.0.1:29400", "127.0.0.1", 1, "SLURM_JOB_NODELIST"), 0);
}

BENCH_TEST(test_a_refused_host_has_a_line_on_a_terminal_too) {
  struct msg m;
  joined(true);
  tell(1, 600000);
  bench_run(5000);
  struct absent a = {.hosts = "n9", .why = ABSENCE_REFUSED, .ago_ms = 0, .text = "its agent has another key"};
  waiting(&m, 1, 60000);
  m.waiting.prospect = PROSPECT_HOPELESS;
  m.waiting.absent = &a;
  m.waiting.n_absent = 1;
  bench_msg(&m);
  bench_run(45000);
  assert_int_equal(lines_with("giving up in 60 s, since no other node can come; missing 63: n9 (refused 0 s ago"), 1);
  assert_int_equal(lines_with(" here "), 1);
}

BENCH_TEST(test_other_texts_are_said_at_once) {
  for (int terminal = 0; terminal < 2; terminal++) {
    struct msg m;
    joined(terminal);
    tell(1, 600000);
    bench_run(2000);
    waiting(&m, 1, 0);
    m.waiting.spare = true;
    m.waiting.text = "round 1 has its nodes; this one is a spare";
    bench_msg(&m);
    assert_said("this one is a spare");
    assert_string_equal(living(), terminal ? "" : "none");
    bench_forget();
    bench_run(60000);
    assert_not_said(" here ");
    assert_int_equal(bench_count(SUP_STATUS), 0);
  }
}

static void down(const char *why) {
  bench_event(&(struct supervisor_event){.kind = SUP_LINK_DOWN, .text = why});
}

BENCH_TEST(test_no_daemon) {
  for (int terminal = 0; terminal < 2; terminal++) {
    bench_open();
    bench.config.living = terminal;
    bench_begin();
    for (int i = 0; i < 45; i++) {
      down("nothing listens at node1:29400 (10.0.0.5)");
      bench_run(1000);
    }
    assert_string_equal(living(), terminal
                                      ? "no daemon for 45 s, giving up in 15 s (--join-timeout): nothing listens at "
                                        "node1:29400 (10.0.0.5)"
                                      : "none");
    size_t lines = 0;
    for (size_t i = 0; i < bench.n_fx; i++) lines += bench.fx[i].kind == SUP_SAY && bench.fx[i].say.level == LOG_WARN;
    assert_int_equal(lines, terminal ? 1 : 2); /* after a second; and every 30 s, where no line is drawn */
    bench_forget();
    down("the name \"node1\" is not known");
    bench_run(1000);
    if (terminal)
      assert_string_equal(living(),
                          "no daemon for 46 s, giving up in 14 s (--join-timeout): the name \"node1\" is not known");
    bench_up();
    bench_welcome(false);
    bench_forget();
    tell(1, 60000);
    bench_run(1000);
    if (terminal)
      assert_string_equal(living(), "1 of 64 nodes is here after 1 s, giving up in 59 s (--join-timeout); missing 63");
  }
}

BENCH_TEST(test_giving_up_says_why) {
  bench_begin();
  for (int i = 0; i < 61 && !bench.exits; i++) {
    down("node1:29400 (10.0.0.5) does not answer");
    bench_run(1000);
  }
  assert_said("no rdzvd could be reached at node1:29400 within 60 s (--join-timeout): node1:29400 "
              "(10.0.0.5) does not answer");
}

BENCH_TEST(test_hello_tells_who_is_expected) {
  bench.config.uid = 1000;
  bench.config.expected_nodes = 16;
  bench.config.expected_hosts = "gpu[001-016]";
  bench_begin();
  bench_up();
  const struct hello *h = bench_hello();
  assert_int_equal(h->uid, 1000);
  assert_int_equal(h->expected_nodes, 16);
  assert_string_equal(h->expected_hosts, "gpu[001-016]");
}

/* A majority is lacking. ------------------------------------------------------------------------------------------- */

static void send_lacks(int64_t lacks) {
  struct msg m;
  waiting(&m, 1, 600000);
  m.waiting.lacks = lacks;
  bench_msg(&m);
}

static void open_lacking(uint64_t grace_ms, bool living) {
  bench_open();
  bench.config.settings.orphan_grace_ms = (int64_t)grace_ms;
  bench.config.living = living;
  bench.answering = true;
  bench_joined();
  send_lacks(1);
  bench_forget();
}

BENCH_TEST(test_the_lines_say_how_many_are_needed) {
  open_lacking(0, true);
  bench_run(1000);
  assert_non_null(strstr(bench_effect(SUP_STATUS)->text,
                         "1 more node of the last round is needed, since more than half of them must agree"));
  assert_said("1 more node of the last round is needed");
  assert_said("--claim");
}

/* A daemon that has just taken over and knows that the others are too few: while workers run, and when they are stopped. */
BENCH_TEST(test_a_node_at_work_says_at_once_what_is_needed) {
  for (int stopped = 0; stopped < 2; stopped++) {
    struct msg m;
    joined(false);
    bench_start(1);
    bench_all_spawned();
    if (stopped) bench_stop(1, NULL);
    if (stopped) bench_clear();
    bench_forget();
    waiting(&m, 1, 0);
    m.waiting.lacks = 1;
    m.waiting.text = "the daemon on n2 waits for the nodes of round 1";
    bench_msg(&m);
    assert_said("the daemon on n2 waits for the nodes of round 1; 1 more node of the last round");
    assert_said("(with --claim $PWD/claims, or another folder that all of them see");
    bench_run(3000);
    assert_said("is needed");
    assert_int_equal(bench.exits, 0);
  }
}

BENCH_TEST(test_without_a_majority_it_ends_after_the_orphan_grace) {
  open_lacking(60000, false);
  bench_run(1000);
  assert_said("after 1 s, giving up in 59 s (--orphan-grace); 1 more node");
  bench_run(58999);
  assert_int_equal(bench.exits, 0);
  bench_run(1);
  assert_exit(EXIT_CODE_DAEMON_LOST);
  assert_said("no majority for the next round within 60 s (--orphan-grace): 1 of ");
  assert_said("1 more node of the last round was needed");
  assert_said("(with --claim $PWD/claims, or another folder that all of them see, these could have gone on without)");
  assert_said("exit code 76: requeue me");
  assert_non_null(bench_sent(MSG_BYE));
}

BENCH_TEST(test_at_fixed_size_the_join_timeout_ends_it) {
  open_lacking(0, false);
  bench_run(3600000);
  assert_int_equal(bench.exits, 0);
}

BENCH_TEST(test_a_majority_ends_that_time) {
  for (int start = 0; start < 2; start++) {
    open_lacking(60000, false);
    bench_run(50000);
    if (start) {
      bench_start(1);
      bench_all_spawned();
      bench_stop(1, NULL);
      bench_clear();
      bench_settled(1, true, 1, NULL);
    } else {
      send_lacks(0);
    }
    send_lacks(1);
    bench_run(59999);
    assert_int_equal(bench.exits, 0);
    bench_run(1);
    assert_exit(EXIT_CODE_DAEMON_LOST);
  }
}

/* It looks for the others at another daemon, where they are lacking too. */
BENCH_TEST(test_another_daemon_does_not_end_that_time) {
  open_lacking(60000, false);
  bench_run(50000);
  bench_down(false);
  bench_run(15000);
  assert_int_equal(bench.exits, 0); /* nobody says now that they are lacking */
  bench_up();
  bench_welcome(false);
  assert_int_equal(bench.exits, 0);
  send_lacks(2);
  bench_run(0);
  assert_exit(EXIT_CODE_DAEMON_LOST);
  assert_said("within 65 s (--orphan-grace)");
}
