/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: what the user reads of a round's failure: one verdict, told once, not before its cause. */

#include "tests/rig/supervisor.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/sdk/rdzv.h"
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

/* A script that ends on one rank: the others wait, and nothing fails. */
BENCH_TEST(test_a_rank_that_finishes_early_is_named) {
  static const char line[] =
      "rank 2 finished with code 0, and 1 worker here still runs after 60 s: do they wait for it?";
  bench_open_running();
  bench.answering = true;
  bench_exited(0, EXITED(0), bench.now_ms, "");
  bench_run(59000);
  assert_not_said("finished");
  bench_run(300000);
  assert_int_equal(bench_said(line), 1);
  bench_exited(1, EXITED(1), bench.now_ms, "RuntimeError: Connection closed by peer\n");
  bench_run(1000);
  assert_said("exited with code 1; before that, rank 2 had finished with code 0");
  bench_open_running(); /* both finish, as they should */
  bench.answering = true;
  for (uint32_t i = 0; i < 2; i++) bench_exited(i, EXITED(0), bench.now_ms, "");
  bench_run(300000);
  assert_not_said("finished with code 0");
}

RUNNING_TEST(test_a_failure_is_told_once) {
  bench_forget();
  bench_exited(1, EXITED(7), bench.now_ms, "first\n\x1b[31mRuntimeError: no\n");
  assert_not_said("rank 3"); /* the settled verdict may come at any moment */
  bench_run(250);
  assert_said("rank 3 (local 1) on n0, pid 5001, exited with code 7");
  assert_said("  | first");
  assert_said("  | \\x1b[31mRuntimeError: no");
  struct verdict v = bench_report(REPORT_FAILED)->what;
  v.round = 1;
  bench_stop(1, &v);
  bench_clear();
  v.echoes = 3;
  bench_settled(1, true, 1, &v);
  assert_said("exited with code 7");
  assert_int_equal(bench_said("  | "), 2);
  assert_said("3 other workers died");
}

/* A worker here exits because one elsewhere was killed; `told`: the news of that takes longer than we wait. */
static void another_is_settled(bool told) {
  struct verdict v;
  bench_open_running();
  bench_exited(0, EXITED(1), bench.now_ms, "");
  if (told) bench_run(250);
  bench_clear();
  assert_int_equal(bench_said("exited with code 1"), told);
  verdict_init(&v);
  v.cause = CAUSE_WORKER_SIGNAL;
  v.round = 1;
  v.node_rank = 0;
  v.rank = 0;
  v.local_rank = 0;
  v.host = "n9";
  v.pid = 99;
  v.signal = 9;
  v.code = 137;
  v.text = "its words\n";
  bench_settled(1, true, 1, &v);
  bench_run(1000);
  assert_said("rank 0 (local 0) on n9, pid 99, was killed by SIGKILL");
  assert_int_equal(bench_said("the round's verdict: rank 0"), told);
  assert_said("  | its words");
  assert_int_equal(bench_said("exited with code 1"), told);
}

/* The second agent of a host leaves the failure of a worker that is not its own to the first, but not a lost node. */
BENCH_TEST(test_an_agent_for_each_gpu_logs_a_crash_once) {
  static const enum cause causes[] = {CAUSE_WORKER_SIGNAL, CAUSE_NODE_LOST};
  static const char *const wanted[] = {"on n9, pid 99, was killed", "(n9) was lost"};
  for (int i = 0; i < 4; i++) {
    struct verdict v;
    bool echo = i % 2, own_words = false;
    bench_open();
    bench.config.echo = echo;
    bench_running();
    bench_exited(0, EXITED(1), bench.now_ms, "");
    bench_clear();
    verdict_init(&v);
    v.cause = causes[i / 2];
    v.round = 1;
    v.node_rank = v.rank = v.local_rank = 0;
    v.host = "n9";
    v.pid = 99;
    v.signal = 9;
    v.text = "its words\n";
    bench_settled(1, true, 1, &v);
    bench_run(1000);
    for (size_t k = 0; k < bench.n_fx; k++)
      own_words |=
          bench.fx[k].kind == SUP_SAY && bench.fx[k].say.level != LOG_DEBUG && strstr(bench.fx[k].text, wanted[i / 2]);
    assert_int_equal(own_words, !echo || v.cause == CAUSE_NODE_LOST);
  }
}

/* So with what the daemon says to all: the first agent of a host logs it, on one line whatever is in it. */
BENCH_TEST(test_a_notice_is_logged_once_on_each_host) {
  for (int echo = 0; echo < 2; echo++) {
    struct msg m;
    bench_open();
    bench.config.echo = echo;
    bench_running();
    bench_clear();
    msg_init(&m, MSG_NOTICE);
    m.notice_msg.text = "node n7\x1b[2J has 7 GPUs";
    bench_event(&(struct supervisor_event){.kind = SUP_MSG, .msg = &m});
    const struct supervisor_effect *e = bench_effect(SUP_SAY);
    assert_non_null(e);
    assert_int_equal(e->say.level, echo ? LOG_DEBUG : LOG_WARN);
    assert_null(strchr(e->text, '\x1b'));
    assert_non_null(strstr(e->text, "has 7 GPUs"));
  }
}

BENCH_TEST(test_a_settled_verdict_that_names_another) {
  another_is_settled(true);
}

BENCH_TEST(test_an_echo_is_not_told_before_its_cause) {
  another_is_settled(false);
}

enum { REPORTS_NOTHING, REPORTS_PROGRESS, CAN_CHECKPOINT, REPORTS_ELSEWHERE, SECOND_RESTART, NOT_STARTED, NO_CHARGE };

/* How often the line is there that a restart begins from the beginning, in a round of which this is node 0. */
static int starts_over(int what, bool node_0) {
  bench_open();
  bench.node_rank = node_0 ? 0 : 1;
  bench_running();
  if (what == REPORTS_PROGRESS)
    bench_event(&(struct supervisor_event){.kind = SUP_PROGRESS, .round = 1, .progress = {.step = 3}});
  if (what == CAN_CHECKPOINT)
    bench_event(&(struct supervisor_event){.kind = SUP_CAN_CHECKPOINT, .round = 1, .on = true});
  bench_exited(0, EXITED(1), bench.now_ms, "");
  bench_clear();
  struct msg m;
  msg_init(&m, MSG_SETTLED);
  m.settled.incarnation = bench.incarnation;
  m.settled.round = 1;
  m.settled.charged = what != NO_CHARGE;
  m.settled.restarts_used = what == SECOND_RESTART ? 2 : what == NO_CHARGE ? 0 : 1;
  m.settled.verdict.cause = what == NOT_STARTED ? CAUSE_WORKER_EXEC : CAUSE_WORKER_EXIT;
  m.settled.failed_step = what == REPORTS_ELSEWHERE ? 7 : -1;
  bench_msg(&m);
  int n = bench_said("so the script starts from the beginning unless it loads a checkpoint itself; "
                     "--max-restarts 0 turns restarts off");
  return n;
}

BENCH_TEST(test_a_restart_that_starts_over) {
  assert_int_equal(starts_over(REPORTS_NOTHING, true), 1);
  assert_int_equal(starts_over(REPORTS_NOTHING, false), 0);
  for (int what = REPORTS_PROGRESS; what <= NO_CHARGE; what++) assert_int_equal(starts_over(what, true), 0);
}

RUNNING_TEST(test_a_failure_without_a_daemon_is_told_at_once) {
  bench_down(false);
  bench_exited(0, EXITED(1), bench.now_ms, "");
  assert_said("exited with code 1");
}

BENCH_TEST(test_only_the_last_lines) {
  char text[400] = "";
  bench_open_running();
  for (int i = 0; i < 30; i++) {
    char line[24];
    snprintf(line, sizeof line, "line-%02d\n", i);
    strcat(text, line);
  }
  bench_exited(0, EXITED(1), bench.now_ms, text);
  bench_run(250);
  assert_int_equal(bench_said("  | line-"), 10);
  assert_said("line-29");
  assert_not_said("line-19");
}

/* The worker has printed its last lines to this terminal, or another node's worker to that node's. */
BENCH_TEST(test_lines_that_are_shown) {
  for (int i = 0; i < 4; i++) {
    bool ours = i & 1, one_terminal = i & 2;
    struct verdict v;
    bench_open();
    bench.config.one_terminal = one_terminal;
    bench_running();
    bench_worker(1, (struct supervisor_event){.kind = SUP_EXITED,
                                              .when_ms = bench.now_ms,
                                              .exited = {.status = EXITED(7), .lines_shown = true},
                                              .text = "boom\n",
                                              .error = "boom"});
    v = bench_report(REPORT_FAILED)->what;
    assert_true(v.shown);
    v.round = 1;
    if (!ours) v.node_rank = 0;
    bench_clear();
    bench_settled(1, true, 1, &v);
    assert_said("exited with code 7: boom");
    assert_int_equal(bench_said("  | boom"), !ours && !one_terminal);
  }
}

BENCH_TEST(test_a_repeat_is_told) {
  struct msg m;
  bench.config.settings.repeat_limit = 2;
  bench_running();
  bench_exited(0, EXITED(1), bench.now_ms, "");
  bench_clear();
  msg_init(&m, MSG_SETTLED);
  m.settled.incarnation = bench.incarnation;
  m.settled.round = 1;
  m.settled.charged = true;
  m.settled.restarts_used = 2;
  m.settled.last_failure.repeats = 1;
  bench_msg(&m);
  assert_said("restart 2 of 3; the same failure has come again without progress, repeat 1 of 2 "
              "(--repeat-limit)");
}

BENCH_TEST(test_an_end_by_repeats_is_explained) {
  for (int64_t repeats = 1; repeats <= 2; repeats++) {
    struct msg m;
    bench_open();
    bench.config.settings.repeat_limit = 2;
    bench_running();
    msg_init(&m, MSG_END);
    m.end.incarnation = bench.incarnation;
    m.end.round = 1;
    m.end.code = 7;
    m.end.outcome = OUTCOME_FAILED;
    m.end.restarts_used = 2;
    m.end.repeats = repeats;
    m.end.verdict.cause = CAUSE_WORKER_EXIT;
    m.end.verdict.code = 7;
    bench_msg(&m);
    assert_int_equal(bench_said("2 of 3 restarts used; not restarted, since the same failure has come again 2 times "
                                "without progress (--repeat-limit 2); exit code 7"),
                     repeats == 2);
    assert_int_equal(bench_effect(SUP_STOP_TREES) != NULL, true);
  }
}

RUNNING_TEST(test_stuck_is_named) {
  bench_event(
      &(struct supervisor_event){.kind = SUP_STUCK, .round = 1, .stuck = {.pid = 5000, .state = 'D'}, .text = "a\x1b"});
  assert_said("rank 2 (local 0), pid 5000 (a\\x1b), does not die of SIGKILL (state D)");
  bench_event(&(struct supervisor_event){
      .kind = SUP_STUCK, .round = 1, .local_rank = UINT32_MAX, .stuck = {.pid = 5001, .state = 'D'}, .text = "b"});
  assert_said("pid 5001 (b) does not die of SIGKILL (state D)");
}

RUNNING_TEST(test_another_users_process_is_named) {
  bench_event(&(struct supervisor_event){.kind = SUP_STUCK,
                                         .round = 1,
                                         .local_rank = 1,
                                         .stuck = {.pid = 4711, .state = 'S', .denied = true, .uid = 0},
                                         .text = "sudo"});
  assert_said("rank 3 (local 1), pid 4711 (sudo), runs as uid 0 and cannot be killed by uid ");
  assert_said("this node waits until it exits");
  assert_not_said("SIGKILL");
}

/* It is the same in each round, so it is said once. */
BENCH_TEST(test_another_command_is_told_once) {
  bench.node_rank = 0;
  bench.other_command = "n\n7";
  bench_running();
  assert_said("host n\\n7 runs another command than host n0 (this node 0)");
  bench_stop(1, NULL);
  bench_clear();
  bench_settled(1, false, 0, NULL);
  bench_start(2);
  assert_int_equal(supervisor_round(bench.s), 2);
  assert_said("another command");
}

/* The interpreter of a script that lacks a module, where it is known: on the worker's own node, for that failure. */
static int names_interpreter(const char *interpreter, const char *text) {
  bench_open();
  bench.config.interpreter = interpreter;
  bench_running();
  bench_exited(1, EXITED(1), bench.now_ms, text);
  bench_run(250);
  int said = (int)bench_said("  it ran under /env/bin/python3 (python3.11): install the module there, or");
  return said;
}

BENCH_TEST(test_the_interpreter_that_lacks_a_module) {
  static const char python[] = "/env/bin/python3 (python3.11)";
  assert_int_equal(names_interpreter(python, "x\nModuleNotFoundError: No module named 'torch'\n"), 1);
  assert_int_equal(names_interpreter(python, "ValueError: no\n"), 0);
  assert_int_equal(names_interpreter(NULL, "ModuleNotFoundError: No module named 'torch'\n"), 0);
}

/* One that was seen stands for its round alone. */
BENCH_TEST(test_an_interpreter_of_another_round) {
  static const char text[] = "ModuleNotFoundError: No module named 'torch'\n";
  bench.config.interpreter = "/env/bin/python3";
  bench_running();
  bench_event(&(struct supervisor_event){.kind = SUP_EXITED,
                                         .round = 1,
                                         .local_rank = 1,
                                         .when_ms = bench.now_ms,
                                         .exited = {.status = EXITED(1)},
                                         .text = text,
                                         .interpreter = "/shim/bin/python3"});
  bench_run(250);
  assert_said("  it ran under /shim/bin/python3: install");
  bench_clear();
  bench_settled(1, false, 0, NULL);
  bench_start(2);
  bench_all_spawned();
  bench_exited(1, EXITED(1), bench.now_ms, text);
  bench_run(250);
  assert_said("  it ran under /shim/bin/python3: install");
  assert_said("  it ran under /env/bin/python3: install");
}

/* An event that waits outlives what its driver said. */
BENCH_TEST(test_a_copy_has_strings_of_its_own) {
  char a[] = "lines", b[] = "/usr/bin/python3", c[] = "error";
  struct supervisor_event *copy =
      supervisor_event_copy(&(struct supervisor_event){.kind = SUP_EXITED, .text = a, .interpreter = b, .error = c});
  assert_ptr_not_equal(copy->text, a);
  assert_ptr_not_equal(copy->interpreter, b);
  assert_ptr_not_equal(copy->error, c);
  assert_string_equal(copy->interpreter, b);
  supervisor_event_free(copy);
}
