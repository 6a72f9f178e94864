/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: workers that make no progress. */

#include "tests/rig/supervisor.h"

#include <math.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

enum { TIMEOUT_MS = 10000, START_MS = 30000 };

static struct {
  bool deaf;   /* looks are not answered */
  bool held;   /* nobody takes the workers' output */
  size_t seen; /* looks that were answered */
} rig;

static int setup(void **state) {
  memset(&rig, 0, sizeof rig);
  return bench_setup(state);
}

static void event(struct supervisor_event ev) {
  ev.round = (uint32_t)supervisor_round(bench.s);
  bench_event(&ev);
}

static void tell(uint32_t local_rank, uint64_t step) {
  event((struct supervisor_event){
      .kind = SUP_PROGRESS,
      .local_rank = local_rank,
      .progress = {.step = step, .of = 500, .loss = (double)NAN, .samples_per_second = (double)NAN}});
}

static void sign(uint32_t local_rank, enum hang_sign sign) {
  event((struct supervisor_event){.kind = SUP_SIGN, .local_rank = local_rank, .when_ms = bench.now_ms, .sign = sign});
}

static void probed(uint32_t local_rank, char state, const char *where) {
  event((struct supervisor_event){.kind = SUP_PROBED, .local_rank = local_rank, .state = state, .text = where});
}

static void answer_look(void) {
  size_t looks = bench_count(SUP_LOOK);
  if (looks == rig.seen || rig.deaf) return;
  rig.seen = looks;
  event((struct supervisor_event){.kind = SUP_LOOKED, .held = rig.held});
}

/* Time goes on, and looks are answered. */
static void run(uint64_t ms) {
  for (uint64_t end = bench.now_ms + ms; bench.now_ms < end;) {
    bench_run(end - bench.now_ms < 10 ? end - bench.now_ms : 10);
    answer_look();
  }
}

/* The probe's answer; where it comes late, there is another look. */
static void facts(void) {
  event((struct supervisor_event){.kind = SUP_PROBE_FACTS});
  answer_look();
}

static void open_as(enum hang_watch_kind kind, int64_t node_rank) {
  memset(&rig, 0, sizeof rig);
  bench_open();
  bench.answering = true;
  bench.config.settings.hang_timeout_ms = TIMEOUT_MS;
  bench.config.hang_start_ms = START_MS;
  bench.config.hang_watch = kind;
  bench.node_rank = node_rank;
  bench_running();
}

static const struct verdict *failed(void) {
  const struct report *rep = bench_report(REPORT_FAILED);
  return rep ? &rep->what : NULL;
}

static bool is_probing(void) {
  return bench_count(SUP_PROBE) > 0;
}

static bool has_stopped(void) {
  return supervisor_state(bench.s) == SUPERVISOR_STOPPING;
}

/* By default nothing is watched: not a look, not a tick more than before. */
UNIT_TEST_WITH(test_never, setup, NULL) {
  bench_open();
  bench.answering = true;
  bench_running();
  run(3600000);
  assert_int_equal(bench_count(SUP_LOOK), 0);
  assert_state(SUPERVISOR_RUNNING);
}

/* The last worker of the node starts late: what the first one tells until then counts. */
UNIT_TEST_WITH(test_progress_while_others_start, setup, NULL) {
  bench_open();
  bench.answering = true;
  bench.config.settings.hang_timeout_ms = TIMEOUT_MS;
  bench.config.hang_start_ms = TIMEOUT_MS;
  bench.config.hang_watch = HANG_SDK;
  bench_joined();
  bench_start(1);
  bench_spawned(0);
  for (uint64_t i = 1; i <= 12; i++) {
    tell(0, i);
    run(1000);
  }
  bench_spawned(1);
  run(2000);
  assert_false(is_probing());
}

/* Found, looked at, reported, and only then stopped. */
UNIT_TEST_WITH(test_the_whole_way, setup, NULL) {
  open_as(HANG_SDK, 1);
  for (uint64_t i = 1; i <= 50; i++) {
    tell(0, i);
    if (i <= 40) tell(1, i);
    run(200);
  }
  assert_false(is_probing());
  run(7900); /* its last was 2 s before the other's */
  assert_true(is_probing());
  assert_int_equal(bench_effect(SUP_PROBE)->probe.suspect, 1);
  assert_int_equal(bench_effect(SUP_PROBE)->probe.level, LOG_WARN);
  assert_false(has_stopped());
  assert_null(failed());
  probed(1, 'S', "futex_wait_queue");
  probed(0, 'S', "do_poll");
  facts();
  const struct verdict *v = failed();
  assert_non_null(v);
  assert_int_equal(v->cause, CAUSE_WORKER_HUNG);
  assert_int_equal(v->code, EXIT_CODE_HUNG);
  assert_int_equal(v->rank, 3);
  assert_int_equal(v->step, 40);
  assert_string_equal(v->state, "S");
  assert_in_range(v->idle_ms, TIMEOUT_MS, TIMEOUT_MS + 1000);
  assert_int_equal(bench_report(REPORT_FAILED)->ago_ms, v->idle_ms); /* it happened when its silence began */
  assert_non_null(strstr(v->text, "its process waits (state S, in futex_wait_queue)"));
  assert_non_null(strstr(v->text, "rank 2 stopped 2.0 s later at step 50 (state S, in do_poll)"));
  assert_null(strstr(v->text, "which rank")); /* it is behind the other */
  assert_false(has_stopped());
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped());
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
  assert_int_equal(bench_count_sent(MSG_REPORT), 2); /* STARTED and this one */
  run(10000);
  assert_int_equal(bench_count(SUP_PROBE), 1); /* nobody is watched any more */
}

/* Both at the same step in the same moment: the process that is stopped is not waiting for anybody. */
UNIT_TEST_WITH(test_stopped_before_waiting, setup, NULL) {
  open_as(HANG_SDK, 1);
  for (uint64_t i = 1; i <= 5; i++) {
    tell(0, i);
    tell(1, i);
    run(200);
  }
  run(TIMEOUT_MS);
  probed(0, 'S', "do_poll");
  probed(1, 'T', "do_signal_stop");
  facts();
  assert_int_equal(failed()->rank, 3);
  assert_non_null(strstr(failed()->text, "its process is stopped (state T), as by SIGSTOP"));
  assert_non_null(strstr(failed()->text, "rank 2 stopped at the same time (state S, in do_poll)"));
  assert_null(strstr(failed()->text, "it is not known"));
}

UNIT_TEST_WITH(test_what_cannot_be_told_is_said, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 7);
  run(400);
  tell(1, 7);
  run(TIMEOUT_MS);
  facts(); /* and nothing was found */
  assert_int_equal(failed()->rank, 2);
  assert_string_equal(failed()->state, "");
  assert_string_equal(failed()->text, "rank 3 stopped 0.4 s later; it is not known which rank the others wait for");
}

/* The probe does not come back: the workers are stopped all the same, and in time. */
UNIT_TEST_WITH(test_a_probe_has_a_deadline, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 1);
  tell(1, 1);
  run(TIMEOUT_MS + 10);
  assert_true(is_probing());
  run(SUPERVISOR_PROBE_MS - 100);
  assert_false(has_stopped());
  run(200);
  assert_true(has_stopped());
  assert_int_equal(failed()->rank, 2);
  assert_in_range(failed()->idle_ms, TIMEOUT_MS + SUPERVISOR_PROBE_MS - 100, TIMEOUT_MS + SUPERVISOR_PROBE_MS + 100);
}

/* It goes on while it is looked at. */
UNIT_TEST_WITH(test_called_off, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 1);
  run(5000);
  tell(1, 1);
  run(5050);
  assert_int_equal(bench_count(SUP_PROBE), 1);
  tell(0, 2);
  facts();
  assert_null(failed());
  assert_said("makes progress again");
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_state(SUPERVISOR_RUNNING);
  run(5000); /* the other one */
  assert_int_equal(bench_count(SUP_PROBE), 2);
}

UNIT_TEST_WITH(test_the_start_takes_longer, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 0);
  for (int i = 0; i < 58; i++) { /* 29 s */
    tell(0, (uint64_t)i);
    run(500);
  }
  assert_false(is_probing());
  tell(0, 100);
  run(1050);
  assert_true(is_probing());
  facts();
  assert_int_equal(failed()->rank, 3);
  assert_int_equal(failed()->step, -1);
  assert_non_null(strstr(failed()->text, "it has reported no progress since its start"));
}

/* Without thought: who has told progress is watched by it, and who never does is left alone. */
UNIT_TEST_WITH(test_auto_with_sdk, setup, NULL) {
  open_as(HANG_AUTO, 0);
  for (int i = 0; i < 200; i++) {
    tell(1, (uint64_t)i);
    run(500);
  }
  assert_false(is_probing()); /* and rank 0 has not even printed */
  run(TIMEOUT_MS);
  assert_true(is_probing());
  facts();
  assert_int_equal(failed()->rank, 1);
}

/* Nobody uses the sdk: one that prints is enough, on node 0; other nodes are silent by habit. */
UNIT_TEST_WITH(test_auto_with_output, setup, NULL) {
  open_as(HANG_AUTO, 0);
  for (int i = 0; i < 200; i++) {
    sign(0, SIGN_OUTPUT);
    run(500);
  }
  assert_false(is_probing());
  run(TIMEOUT_MS);
  facts();
  assert_int_equal(failed()->cause, CAUSE_WORKER_HUNG);
  assert_non_null(strstr(failed()->text, "all workers of this node have stopped printing"));
  assert_non_null(strstr(failed()->text, "it is not known which rank the others wait for"));
  open_as(HANG_AUTO, 1);
  run(100 * TIMEOUT_MS);
  assert_false(is_probing());
}

/* Programs print while they start, and are silent then. */
UNIT_TEST_WITH(test_output_does_not_end_the_start, setup, NULL) {
  open_as(HANG_OUTPUT, 1);
  run(100);
  sign(0, SIGN_OUTPUT);
  sign(1, SIGN_OUTPUT);
  run(START_MS - 200);
  assert_false(is_probing());
  sign(0, SIGN_OUTPUT);
  run(200);
  assert_true(is_probing());
  facts();
  assert_int_equal(failed()->rank, 3);
  assert_non_null(strstr(failed()->text, "it has stopped printing"));
}

UNIT_TEST_WITH(test_files, setup, NULL) {
  open_as(HANG_FILE, 1);
  for (int i = 0; i < 10; i++) {
    sign(0, SIGN_FILE);
    sign(1, SIGN_FILE);
    tell(1, 5); /* nobody asks for it */
    run(500);
  }
  for (int i = 0; i < 20; i++) {
    assert_false(is_probing());
    sign(1, SIGN_FILE);
    run(480);
  }
  run(500);
  assert_true(is_probing());
  facts();
  run(20);
  assert_int_equal(failed()->rank, 2);
  assert_string_equal(failed()->text,
                      "its file has stopped changing; it is not known whether it waits for a rank of another "
                      "node");
}

/* A look that is not answered is judged without what it would have said; that is said. */
UNIT_TEST_WITH(test_a_file_system_that_hangs, setup, NULL) {
  open_as(HANG_FILE, 1);
  sign(0, SIGN_FILE);
  sign(1, SIGN_FILE);
  rig.deaf = true;
  run(TIMEOUT_MS - 100);
  assert_false(is_probing());
  run(5000);
  assert_true(is_probing());
  facts();
  assert_non_null(strstr(failed()->text, "its file cannot be checked: the file system does not answer"));
}

/* We were stopped, or the machine slept: what was not heard in that time says nothing. */
UNIT_TEST_WITH(test_time_that_was_not_ours, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 1);
  tell(1, 1);
  run(4000);
  bench.now_ms += 3600000;
  run(100);
  assert_false(is_probing());
  run(4500); /* but for the second until the look that was due */
  assert_false(is_probing());
  run(2500);
  assert_true(is_probing());
}

/* Stopped while the probe looked: what a worker has said since lies in a socket, and comes with the next look. */
UNIT_TEST_WITH(test_time_that_was_not_ours_while_probing, setup, NULL) {
  static const uint64_t stopped_ms[] = {2000, 500, 100};
  for (int i = 0; i < 6; i++) {
    bool goes_on = i % 2;
    open_as(HANG_SDK, 1);
    tell(0, 1);
    tell(1, 1);
    for (int k = 0; k < 200 && !is_probing(); k++) run(TIMEOUT_MS / 100);
    assert_true(is_probing());
    bench.now_ms += stopped_ms[i / 2];
    event((struct supervisor_event){.kind = SUP_PROBE_FACTS});
    event((struct supervisor_event){.kind = SUP_PROBE_DONE});
    assert_null(failed());
    if (goes_on) tell(0, 2), tell(1, 2);
    run(20);
    assert_int_equal(failed() != NULL, !goes_on);
    assert_int_equal(has_stopped(), !goes_on);
    run(TIMEOUT_MS / 2);
    assert_int_equal(has_stopped(), !goes_on);
  }
}

UNIT_TEST_WITH(test_output_that_nobody_takes, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 1);
  tell(1, 1);
  rig.held = true;
  run(100 * TIMEOUT_MS);
  assert_false(is_probing());
  rig.held = false;
  run(TIMEOUT_MS + 2000);
  assert_true(is_probing());
}

/* Who has left does not hang. */
UNIT_TEST_WITH(test_the_finish, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 1);
  tell(1, 1);
  bench_exited(0, EXITED(0), bench.now_ms, "");
  run(5000);
  sign(1, SIGN_SDK); /* rdzv_done */
  run(TIMEOUT_MS - 100);
  assert_false(is_probing());
  run(200);
  assert_true(is_probing());
  bench_exited(1, EXITED(0), bench.now_ms, ""); /* at last */
  bench_clear();
  assert_state(SUPERVISOR_FINISHED);
  facts();
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  run(2 * SUPERVISOR_PROBE_MS);
  assert_state(SUPERVISOR_FINISHED);
  assert_null(failed());
}

/* A worker dies while others are looked at: that is enough. */
UNIT_TEST_WITH(test_a_death_ends_the_probe, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 1);
  tell(1, 1);
  run(TIMEOUT_MS + 10);
  bench_exited(0, SIGNALED(6), bench.now_ms, "");
  assert_true(has_stopped());
  facts();
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_int_equal(failed()->cause, CAUSE_WORKER_SIGNAL);
  assert_int_equal(bench_count(SUP_STOP_TREES), 1);
}

/* Of another node. ------------------------------------------------------------------------------------------------- */

static struct verdict others(int64_t step, int64_t idle_ms) {
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_WORKER_HUNG;
  v.round = 1;
  v.node_rank = v.rank = v.local_rank = 0;
  v.host = "n9";
  v.state = "S";
  v.step = step;
  v.idle_ms = idle_ms;
  return v;
}

/* Ours is the one that they wait for, and would have been found a moment later. */
UNIT_TEST_WITH(test_stop_finds_the_origin_here, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 9);
  tell(1, 9);
  run(9500);
  struct verdict v = others(9, 10000);
  bench_stop(1, &v);
  assert_true(is_probing());
  assert_int_equal(bench_effect(SUP_PROBE)->probe.level, LOG_INFO);
  assert_false(has_stopped());
  bench_stop(1, &v); /* said again, after a reconnect */
  assert_int_equal(bench_count(SUP_PROBE), 1);
  probed(0, 'S', "do_poll");
  probed(1, 'T', "");
  facts();
  assert_int_equal(failed()->rank, 3);
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped());
}

UNIT_TEST_WITH(test_stop_finds_nothing_here, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 9);
  tell(1, 9);
  run(9500);
  struct verdict v = others(8, 10000);
  bench_stop(1, &v);
  probed(0, 'S', "do_poll");
  probed(1, 'R', "");
  facts();
  assert_null(failed()); /* theirs is a step behind */
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped());
}

/* Workers here that do not depend on it, and go on, are stopped, but not blamed, whatever their steps. */
UNIT_TEST_WITH(test_stop_blames_nobody_who_goes_on, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 1);
  tell(1, 1);
  struct verdict v = others(500, 10000);
  bench_stop(1, &v);
  facts();
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_null(failed());
  assert_true(has_stopped());
}

/* Any other STOP stops at once; and so does a signal to the agent. */
UNIT_TEST_WITH(test_others_do_not_wait_for_a_probe, setup, NULL) {
  struct verdict v = others(9, 10000);
  for (int i = 0; i < 2; i++) {
    open_as(HANG_SDK, 1);
    bench_stop(1, &v);
    assert_false(has_stopped());
    v.cause = CAUSE_NODE_LOST;
    if (i)
      bench_signal(15);
    else
      bench_stop(1, &v);
    assert_true(has_stopped());
    event((struct supervisor_event){.kind = SUP_PROBE_DONE});
    assert_int_equal(bench_count(SUP_STOP_TREES), 1);
    v.cause = CAUSE_WORKER_HUNG;
  }
}

/* The daemon is away: it is said here, kept, and reported with the next HELLO. */
UNIT_TEST_WITH(test_without_a_daemon, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 1);
  tell(1, 2);
  bench_down(true);
  run(TIMEOUT_MS + 10);
  probed(0, 'D', "nfs_wait_bit_killable");
  facts();
  assert_said("made no progress for 10.0 s, after step 1 of 500: the kernel holds its "
              "process (state D, in nfs_wait_bit_killable)");
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped());
  bench_forget();
  bench_up();
  const struct hello *h = &bench_sent(MSG_HELLO)->hello;
  assert_int_equal(h->n_reports, 2);
  assert_int_equal(h->reports[1].what.cause, CAUSE_WORKER_HUNG);
  assert_string_equal(h->reports[1].what.state, "D");
}

/* Evidence. -------------------------------------------------------------------------------------------------------- */

static void shows(uint32_t awaited) {
  struct collective c = {
      .group = "gloo 0 default_pg", .op = "all_reduce", .seq = 7, .waiting = 1, .entered = 6, .idle = 1, .ranks = "3"};
  struct supervisor_event ev = {.kind = SUP_EVIDENCE,
                                .evidence = {.v = &c, .n = 1},
                                .text = "rank 3 has not entered all_reduce #7, 1 other waits in it",
                                .ras = "NCCL says this",
                                .silent = ""};
  local_set_add(&ev.evidence.awaited, awaited);
  event(ev);
}

/* The worker that others wait for is the origin, though another one stopped first. */
UNIT_TEST_WITH(test_evidence_names_the_origin, setup, NULL) {
  open_as(HANG_SDK, 1);
  tell(0, 5);
  run(100);
  tell(1, 5);
  run(TIMEOUT_MS);
  assert_true(is_probing());
  assert_int_equal(bench_effect(SUP_PROBE)->probe.suspect, 0);
  assert_false(bench_effect(SUP_PROBE)->probe.evidence_only);
  shows(1);
  assert_int_equal(bench_count_sent(MSG_EVIDENCE), 0); /* the workers may recover */
  facts();
  assert_int_equal(bench_count_sent(MSG_EVIDENCE), 1);
  const struct verdict *v = failed();
  assert_int_equal(v->rank, 3);
  assert_true(v->awaited);
  assert_string_equal(v->evidence, "rank 3 has not entered all_reduce #7, 1 other waits in it");
  assert_null(strstr(v->text, "it is not known"));
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped());
}

static void gives_up(uint32_t local_rank, const char *lines) {
  event((struct supervisor_event){.kind = SUP_EXITED,
                                  .local_rank = local_rank,
                                  .when_ms = bench.now_ms,
                                  .exited = {.status = 6, .unasked = true},
                                  .text = lines});
}

#define WATCHDOG "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"

/* Without --hang-timeout as well. */
UNIT_TEST_WITH(test_a_worker_gives_up_a_collective, setup, NULL) {
  bench_open();
  bench.answering = true;
  bench_running();
  gives_up(0, WATCHDOG);
  assert_true(is_probing());
  assert_true(bench_effect(SUP_PROBE)->probe.evidence_only);
  assert_null(failed());
  assert_false(has_stopped());
  shows(1);
  facts();
  const struct verdict *v = failed();
  assert_int_equal(v->cause, CAUSE_WORKER_SIGNAL);
  assert_int_equal(v->rank, 2);
  assert_string_equal(v->evidence, "rank 3 has not entered all_reduce #7, 1 other waits in it");
  assert_int_equal(bench_count_sent(MSG_EVIDENCE), 1);
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped());
  assert_int_equal(bench_count_sent(MSG_REPORT), 2); /* STARTED and this one */
}

/* The probe does not answer; the others die meanwhile; no other worker is left. Each is reported once. */
UNIT_TEST_WITH(test_giving_up_ends_in_any_case, setup, NULL) {
  for (int kind = 0; kind < 3; kind++) {
    bench_open();
    bench.answering = true;
    bench_running();
    gives_up(0, WATCHDOG);
    if (kind == 0) run(SUPERVISOR_PROBE_MS + 100);
    if (kind == 1) gives_up(1, WATCHDOG);
    if (kind == 2) gives_up(1, "Connection closed by peer");
    assert_true(has_stopped());
    assert_int_equal(bench_count_sent(MSG_REPORT), kind ? 3 : 2);
  }
}

/* The other nodes collect evidence before they stop. */
UNIT_TEST_WITH(test_another_node_gives_up, setup, NULL) {
  bench_open();
  bench.answering = true;
  bench_running();
  struct msg m;
  msg_init(&m, MSG_STOP);
  m.stop.incarnation = bench.incarnation;
  m.stop.round = supervisor_round(bench.s);
  m.stop.verdict.cause = CAUSE_WORKER_SIGNAL;
  m.stop.verdict.node_rank = 0;
  m.stop.verdict.text = WATCHDOG;
  bench_msg(&m);
  assert_true(is_probing());
  shows(1);
  facts();
  assert_null(failed());
  assert_int_equal(bench_count_sent(MSG_EVIDENCE), 1);
  event((struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped());
}
