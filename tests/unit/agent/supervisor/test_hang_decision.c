/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: workers that make no progress. */

#include "tests/rig/supervisor.h"

#include <math.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

enum { TIMEOUT_MS = 10000, START_MS = 30000 };

struct rig {
  struct bench b;
  bool deaf;   /* looks are not answered */
  bool held;   /* nobody takes the workers' output */
  size_t seen; /* looks that were answered */
};

static void event(struct rig *r, struct supervisor_event ev) {
  ev.round = (uint32_t)supervisor_round(r->b.s);
  bench_event(&r->b, &ev);
}

static void tell(struct rig *r, uint32_t local_rank, uint64_t step) {
  event(r, (struct supervisor_event){
               .kind = SUP_PROGRESS,
               .local_rank = local_rank,
               .progress = {.step = step, .of = 500, .loss = (double)NAN, .samples_per_second = (double)NAN}});
}

static void sign(struct rig *r, uint32_t local_rank, enum hang_sign sign) {
  event(r, (struct supervisor_event){
               .kind = SUP_SIGN, .local_rank = local_rank, .when_ms = r->b.now_ms, .sign = {.kind = sign}});
}

static void probed(struct rig *r, uint32_t local_rank, char state, const char *where) {
  event(r, (struct supervisor_event){
               .kind = SUP_PROBED, .local_rank = local_rank, .probed = {.state = state}, .text = where});
}

static void answer_look(struct rig *r) {
  size_t looks = bench_count(&r->b, SUP_LOOK);
  if (looks == r->seen || r->deaf) return;
  r->seen = looks;
  event(r, (struct supervisor_event){.kind = SUP_LOOKED, .looked = {.held = r->held}});
}

/* Time goes on, and looks are answered. */
static void run(struct rig *r, uint64_t ms) {
  for (uint64_t end = r->b.now_ms + ms; r->b.now_ms < end;) {
    bench_run(&r->b, end - r->b.now_ms < 10 ? end - r->b.now_ms : 10);
    answer_look(r);
  }
}

/* The probe's answer; where it comes late, there is another look. */
static void facts(struct rig *r) {
  event(r, (struct supervisor_event){.kind = SUP_PROBE_FACTS});
  answer_look(r);
}

static void open_as(struct rig *r, enum hang_watch_kind kind, int64_t node_rank) {
  memset(r, 0, sizeof *r);
  bench_open(&r->b);
  r->b.answering = true;
  r->b.config.settings.hang_timeout_ms = TIMEOUT_MS;
  r->b.config.hang_start_ms = START_MS;
  r->b.config.hang_watch = kind;
  r->b.node_rank = node_rank;
  bench_running(&r->b);
}

static const struct verdict *failed(const struct rig *r) {
  const struct report *rep = bench_report(&r->b, REPORT_FAILED);
  return rep ? &rep->what : NULL;
}

static bool is_probing(const struct rig *r) {
  return bench_count(&r->b, SUP_PROBE) > 0;
}

static bool has_stopped(const struct rig *r) {
  return supervisor_state(r->b.s) == SUPERVISOR_STOPPING;
}

/* By default nothing is watched: not a look, not a tick more than before. */
static void test_never(void **state) {
  struct rig r = {0};
  bench_open(&r.b);
  r.b.answering = true;
  bench_running(&r.b);
  run(&r, 3600000);
  assert_int_equal(bench_count(&r.b, SUP_LOOK), 0);
  assert_state(&r.b, SUPERVISOR_RUNNING);
  bench_close(&r.b);
}

/* The last worker of the node starts late: what the first one tells until then counts. */
static void test_progress_while_others_start(void **state) {
  struct rig r = {0};
  bench_open(&r.b);
  r.b.answering = true;
  r.b.config.settings.hang_timeout_ms = TIMEOUT_MS;
  r.b.config.hang_start_ms = TIMEOUT_MS;
  r.b.config.hang_watch = HANG_SDK;
  bench_joined(&r.b);
  bench_start(&r.b, 1);
  bench_spawned(&r.b, 0);
  for (uint64_t i = 1; i <= 12; i++) {
    tell(&r, 0, i);
    run(&r, 1000);
  }
  bench_spawned(&r.b, 1);
  run(&r, 2000);
  assert_false(is_probing(&r));
  bench_close(&r.b);
}

/* Found, looked at, reported, and only then stopped. */
static void test_the_whole_way(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  for (uint64_t i = 1; i <= 50; i++) {
    tell(&r, 0, i);
    if (i <= 40) tell(&r, 1, i);
    run(&r, 200);
  }
  assert_false(is_probing(&r));
  run(&r, 7900); /* its last was 2 s before the other's */
  assert_true(is_probing(&r));
  assert_int_equal(bench_effect(&r.b, SUP_PROBE)->probe.suspect, 1);
  assert_int_equal(bench_effect(&r.b, SUP_PROBE)->probe.level, LOG_WARN);
  assert_false(has_stopped(&r));
  assert_null(failed(&r));
  probed(&r, 1, 'S', "futex_wait_queue");
  probed(&r, 0, 'S', "do_poll");
  facts(&r);
  const struct verdict *v = failed(&r);
  assert_non_null(v);
  assert_int_equal(v->cause, CAUSE_WORKER_HUNG);
  assert_int_equal(v->code, EXIT_CODE_HUNG);
  assert_int_equal(v->rank, 3);
  assert_int_equal(v->step, 40);
  assert_string_equal(v->state, "S");
  assert_in_range(v->idle_ms, TIMEOUT_MS, TIMEOUT_MS + 1000);
  assert_int_equal(bench_report(&r.b, REPORT_FAILED)->ago_ms, v->idle_ms); /* it happened when its silence began */
  assert_non_null(strstr(v->text, "its process waits (state S, in futex_wait_queue)"));
  assert_non_null(strstr(v->text, "rank 2 stopped 2.0 s later at step 50 (state S, in do_poll)"));
  assert_null(strstr(v->text, "which rank")); /* it is behind the other */
  assert_false(has_stopped(&r));
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped(&r));
  assert_int_equal(bench_effect(&r.b, SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
  assert_int_equal(bench_count_sent(&r.b, MSG_REPORT), 2); /* STARTED and this one */
  run(&r, 10000);
  assert_int_equal(bench_count(&r.b, SUP_PROBE), 1); /* nobody is watched any more */
  bench_close(&r.b);
}

/* Both at the same step in the same moment: the process that is stopped is not waiting for anybody. */
static void test_stopped_before_waiting(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  for (uint64_t i = 1; i <= 5; i++) {
    tell(&r, 0, i);
    tell(&r, 1, i);
    run(&r, 200);
  }
  run(&r, TIMEOUT_MS);
  probed(&r, 0, 'S', "do_poll");
  probed(&r, 1, 'T', "do_signal_stop");
  facts(&r);
  assert_int_equal(failed(&r)->rank, 3);
  assert_non_null(strstr(failed(&r)->text, "its process is stopped (state T), as by SIGSTOP"));
  assert_non_null(strstr(failed(&r)->text, "rank 2 stopped at the same time (state S, in do_poll)"));
  assert_null(strstr(failed(&r)->text, "it is not known"));
  bench_close(&r.b);
}

static void test_what_cannot_be_told_is_said(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 7);
  run(&r, 400);
  tell(&r, 1, 7);
  run(&r, TIMEOUT_MS);
  facts(&r); /* and nothing was found */
  assert_int_equal(failed(&r)->rank, 2);
  assert_string_equal(failed(&r)->state, "");
  assert_string_equal(failed(&r)->text, "rank 3 stopped 0.4 s later; it is not known which rank the others wait for");
  bench_close(&r.b);
}

/* The probe does not come back: the workers are stopped all the same, and in time. */
static void test_a_probe_has_a_deadline(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 1);
  tell(&r, 1, 1);
  run(&r, TIMEOUT_MS + 10);
  assert_true(is_probing(&r));
  run(&r, SUPERVISOR_PROBE_MS - 100);
  assert_false(has_stopped(&r));
  run(&r, 200);
  assert_true(has_stopped(&r));
  assert_int_equal(failed(&r)->rank, 2);
  assert_in_range(failed(&r)->idle_ms, TIMEOUT_MS + SUPERVISOR_PROBE_MS - 100, TIMEOUT_MS + SUPERVISOR_PROBE_MS + 100);
  bench_close(&r.b);
}

/* It goes on while it is looked at. */
static void test_called_off(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 1);
  run(&r, 5000);
  tell(&r, 1, 1);
  run(&r, 5050);
  assert_int_equal(bench_count(&r.b, SUP_PROBE), 1);
  tell(&r, 0, 2);
  facts(&r);
  assert_null(failed(&r));
  assert_int_equal(bench_said(&r.b, "makes progress again"), 1);
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_state(&r.b, SUPERVISOR_RUNNING);
  run(&r, 5000); /* the other one */
  assert_int_equal(bench_count(&r.b, SUP_PROBE), 2);
  bench_close(&r.b);
}

static void test_the_start_takes_longer(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 0);
  for (int i = 0; i < 58; i++) { /* 29 s */
    tell(&r, 0, (uint64_t)i);
    run(&r, 500);
  }
  assert_false(is_probing(&r));
  tell(&r, 0, 100);
  run(&r, 1050);
  assert_true(is_probing(&r));
  facts(&r);
  assert_int_equal(failed(&r)->rank, 3);
  assert_int_equal(failed(&r)->step, -1);
  assert_non_null(strstr(failed(&r)->text, "it has reported no progress since its start"));
  bench_close(&r.b);
}

/* Without thought: who has told progress is watched by it, and who never does is left alone. */
static void test_auto_with_sdk(void **state) {
  struct rig r;
  open_as(&r, HANG_AUTO, 0);
  for (int i = 0; i < 200; i++) {
    tell(&r, 1, (uint64_t)i);
    run(&r, 500);
  }
  assert_false(is_probing(&r)); /* and rank 0 has not even printed */
  run(&r, TIMEOUT_MS);
  assert_true(is_probing(&r));
  facts(&r);
  assert_int_equal(failed(&r)->rank, 1);
  bench_close(&r.b);
}

/* Nobody uses the sdk: one that prints is enough, on node 0; other nodes are silent by habit. */
static void test_auto_with_output(void **state) {
  struct rig r;
  open_as(&r, HANG_AUTO, 0);
  for (int i = 0; i < 200; i++) {
    sign(&r, 0, SIGN_OUTPUT);
    run(&r, 500);
  }
  assert_false(is_probing(&r));
  run(&r, TIMEOUT_MS);
  facts(&r);
  assert_int_equal(failed(&r)->cause, CAUSE_WORKER_HUNG);
  assert_non_null(strstr(failed(&r)->text, "all workers of this node have stopped printing"));
  assert_non_null(strstr(failed(&r)->text, "it is not known which rank the others wait for"));
  bench_close(&r.b);
  open_as(&r, HANG_AUTO, 1);
  run(&r, 100 * TIMEOUT_MS);
  assert_false(is_probing(&r));
  bench_close(&r.b);
}

/* Programs print while they start, and are silent then. */
static void test_output_does_not_end_the_start(void **state) {
  struct rig r;
  open_as(&r, HANG_OUTPUT, 1);
  run(&r, 100);
  sign(&r, 0, SIGN_OUTPUT);
  sign(&r, 1, SIGN_OUTPUT);
  run(&r, START_MS - 200);
  assert_false(is_probing(&r));
  sign(&r, 0, SIGN_OUTPUT);
  run(&r, 200);
  assert_true(is_probing(&r));
  facts(&r);
  assert_int_equal(failed(&r)->rank, 3);
  assert_non_null(strstr(failed(&r)->text, "it has stopped printing"));
  bench_close(&r.b);
}

static void test_files(void **state) {
  struct rig r;
  open_as(&r, HANG_FILE, 1);
  for (int i = 0; i < 10; i++) {
    sign(&r, 0, SIGN_FILE);
    sign(&r, 1, SIGN_FILE);
    tell(&r, 1, 5); /* nobody asks for it */
    run(&r, 500);
  }
  for (int i = 0; i < 20; i++) {
    assert_false(is_probing(&r));
    sign(&r, 1, SIGN_FILE);
    run(&r, 480);
  }
  run(&r, 500);
  assert_true(is_probing(&r));
  facts(&r);
  run(&r, 20);
  assert_int_equal(failed(&r)->rank, 2);
  assert_string_equal(failed(&r)->text,
                      "its file has stopped changing; it is not known whether it waits for a rank of another "
                      "node");
  bench_close(&r.b);
}

/* A look that is not answered is judged without what it would have said; that is said. */
static void test_a_file_system_that_hangs(void **state) {
  struct rig r;
  open_as(&r, HANG_FILE, 1);
  sign(&r, 0, SIGN_FILE);
  sign(&r, 1, SIGN_FILE);
  r.deaf = true;
  run(&r, TIMEOUT_MS - 100);
  assert_false(is_probing(&r));
  run(&r, 5000);
  assert_true(is_probing(&r));
  facts(&r);
  assert_non_null(strstr(failed(&r)->text, "its file cannot be checked: the file system does not answer"));
  bench_close(&r.b);
}

/* We were stopped, or the machine slept: what was not heard in that time says nothing. */
static void test_time_that_was_not_ours(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 1);
  tell(&r, 1, 1);
  run(&r, 4000);
  r.b.now_ms += 3600000;
  run(&r, 100);
  assert_false(is_probing(&r));
  run(&r, 4500); /* but for the second until the look that was due */
  assert_false(is_probing(&r));
  run(&r, 2500);
  assert_true(is_probing(&r));
  bench_close(&r.b);
}

/* Stopped while the probe looked: what a worker has said since lies in a socket, and comes with the next look. */
static void test_time_that_was_not_ours_while_probing(void **state) {
  static const uint64_t stopped_ms[] = {2000, 500, 100};
  for (int i = 0; i < 6; i++) {
    bool goes_on = i % 2;
    struct rig r;
    open_as(&r, HANG_SDK, 1);
    tell(&r, 0, 1);
    tell(&r, 1, 1);
    for (int k = 0; k < 200 && !is_probing(&r); k++) run(&r, TIMEOUT_MS / 100);
    assert_true(is_probing(&r));
    r.b.now_ms += stopped_ms[i / 2];
    event(&r, (struct supervisor_event){.kind = SUP_PROBE_FACTS});
    event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
    assert_null(failed(&r));
    if (goes_on) tell(&r, 0, 2), tell(&r, 1, 2);
    run(&r, 20);
    assert_int_equal(failed(&r) != NULL, !goes_on);
    assert_int_equal(has_stopped(&r), !goes_on);
    run(&r, TIMEOUT_MS / 2);
    assert_int_equal(has_stopped(&r), !goes_on);
    bench_close(&r.b);
  }
}

static void test_output_that_nobody_takes(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 1);
  tell(&r, 1, 1);
  r.held = true;
  run(&r, 100 * TIMEOUT_MS);
  assert_false(is_probing(&r));
  r.held = false;
  run(&r, TIMEOUT_MS + 2000);
  assert_true(is_probing(&r));
  bench_close(&r.b);
}

/* Who has left does not hang. */
static void test_the_finish(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 1);
  tell(&r, 1, 1);
  bench_exited(&r.b, 0, EXITED(0), r.b.now_ms, "");
  run(&r, 5000);
  sign(&r, 1, SIGN_SDK); /* rdzv_done */
  run(&r, TIMEOUT_MS - 100);
  assert_false(is_probing(&r));
  run(&r, 200);
  assert_true(is_probing(&r));
  bench_exited(&r.b, 1, EXITED(0), r.b.now_ms, ""); /* at last */
  bench_clear(&r.b);
  assert_state(&r.b, SUPERVISOR_FINISHED);
  facts(&r);
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  run(&r, 2 * SUPERVISOR_PROBE_MS);
  assert_state(&r.b, SUPERVISOR_FINISHED);
  assert_null(failed(&r));
  bench_close(&r.b);
}

/* A worker dies while others are looked at: that is enough. */
static void test_a_death_ends_the_probe(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 1);
  tell(&r, 1, 1);
  run(&r, TIMEOUT_MS + 10);
  bench_exited(&r.b, 0, SIGNALED(6), r.b.now_ms, "");
  assert_true(has_stopped(&r));
  facts(&r);
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_int_equal(failed(&r)->cause, CAUSE_WORKER_SIGNAL);
  assert_int_equal(bench_count(&r.b, SUP_STOP_TREES), 1);
  bench_close(&r.b);
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
static void test_stop_finds_the_origin_here(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 9);
  tell(&r, 1, 9);
  run(&r, 9500);
  struct verdict v = others(9, 10000);
  bench_stop(&r.b, 1, &v);
  assert_true(is_probing(&r));
  assert_int_equal(bench_effect(&r.b, SUP_PROBE)->probe.level, LOG_INFO);
  assert_false(has_stopped(&r));
  bench_stop(&r.b, 1, &v); /* said again, after a reconnect */
  assert_int_equal(bench_count(&r.b, SUP_PROBE), 1);
  probed(&r, 0, 'S', "do_poll");
  probed(&r, 1, 'T', "");
  facts(&r);
  assert_int_equal(failed(&r)->rank, 3);
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped(&r));
  bench_close(&r.b);
}

static void test_stop_finds_nothing_here(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 9);
  tell(&r, 1, 9);
  run(&r, 9500);
  struct verdict v = others(8, 10000);
  bench_stop(&r.b, 1, &v);
  probed(&r, 0, 'S', "do_poll");
  probed(&r, 1, 'R', "");
  facts(&r);
  assert_null(failed(&r)); /* theirs is a step behind */
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped(&r));
  bench_close(&r.b);
}

/* Workers here that do not depend on it, and go on, are stopped, but not blamed, whatever their steps. */
static void test_stop_blames_nobody_who_goes_on(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 1);
  tell(&r, 1, 1);
  struct verdict v = others(500, 10000);
  bench_stop(&r.b, 1, &v);
  facts(&r);
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_null(failed(&r));
  assert_true(has_stopped(&r));
  bench_close(&r.b);
}

/* Any other STOP stops at once; and so does a signal to the agent. */
static void test_others_do_not_wait_for_a_probe(void **state) {
  struct rig r;
  struct verdict v = others(9, 10000);
  for (int i = 0; i < 2; i++) {
    open_as(&r, HANG_SDK, 1);
    bench_stop(&r.b, 1, &v);
    assert_false(has_stopped(&r));
    v.cause = CAUSE_NODE_LOST;
    if (i)
      bench_signal(&r.b, 15);
    else
      bench_stop(&r.b, 1, &v);
    assert_true(has_stopped(&r));
    event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
    assert_int_equal(bench_count(&r.b, SUP_STOP_TREES), 1);
    bench_close(&r.b);
    v.cause = CAUSE_WORKER_HUNG;
  }
}

/* The daemon is away: it is said here, kept, and reported with the next HELLO. */
static void test_without_a_daemon(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 1);
  tell(&r, 1, 2);
  bench_down(&r.b, true);
  run(&r, TIMEOUT_MS + 10);
  probed(&r, 0, 'D', "nfs_wait_bit_killable");
  facts(&r);
  assert_int_equal(bench_said(&r.b, "made no progress for 10.0 s, after step 1 of 500: the kernel holds its "
                                    "process (state D, in nfs_wait_bit_killable)"),
                   1);
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped(&r));
  bench_forget(&r.b);
  bench_up(&r.b);
  const struct hello *h = &bench_sent(&r.b, MSG_HELLO)->hello;
  assert_int_equal(h->n_reports, 2);
  assert_int_equal(h->reports[1].what.cause, CAUSE_WORKER_HUNG);
  assert_string_equal(h->reports[1].what.state, "D");
  bench_close(&r.b);
}

/* Evidence. -------------------------------------------------------------------------------------------------------- */

static void shows(struct rig *r, uint32_t awaited) {
  struct collective c = {
      .group = "gloo 0 default_pg", .op = "all_reduce", .seq = 7, .waiting = 1, .entered = 6, .idle = 1, .ranks = "3"};
  struct supervisor_event ev = {.kind = SUP_EVIDENCE,
                                .evidence = {.v = &c, .n = 1},
                                .text = "rank 3 has not entered all_reduce #7, 1 other waits in it",
                                .ras = "NCCL says this",
                                .silent = ""};
  local_set_add(&ev.evidence.awaited, awaited);
  event(r, ev);
}

/* The worker that others wait for is the origin, though another one stopped first. */
static void test_evidence_names_the_origin(void **state) {
  struct rig r;
  open_as(&r, HANG_SDK, 1);
  tell(&r, 0, 5);
  run(&r, 100);
  tell(&r, 1, 5);
  run(&r, TIMEOUT_MS);
  assert_true(is_probing(&r));
  assert_int_equal(bench_effect(&r.b, SUP_PROBE)->probe.suspect, 0);
  assert_false(bench_effect(&r.b, SUP_PROBE)->probe.evidence_only);
  shows(&r, 1);
  assert_int_equal(bench_count_sent(&r.b, MSG_EVIDENCE), 0); /* the workers may recover */
  facts(&r);
  assert_int_equal(bench_count_sent(&r.b, MSG_EVIDENCE), 1);
  const struct verdict *v = failed(&r);
  assert_int_equal(v->rank, 3);
  assert_true(v->awaited);
  assert_string_equal(v->evidence, "rank 3 has not entered all_reduce #7, 1 other waits in it");
  assert_null(strstr(v->text, "it is not known"));
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped(&r));
  bench_close(&r.b);
}

static void gives_up(struct rig *r, uint32_t local_rank, const char *lines) {
  event(r, (struct supervisor_event){.kind = SUP_EXITED,
                                     .local_rank = local_rank,
                                     .when_ms = r->b.now_ms,
                                     .exited = {.status = 6, .unasked = true},
                                     .text = lines});
}

#define WATCHDOG "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"

/* Without --hang-timeout as well. */
static void test_a_worker_gives_up_a_collective(void **state) {
  struct rig r = {0};
  bench_open(&r.b);
  r.b.answering = true;
  bench_running(&r.b);
  gives_up(&r, 0, WATCHDOG);
  assert_true(is_probing(&r));
  assert_true(bench_effect(&r.b, SUP_PROBE)->probe.evidence_only);
  assert_null(failed(&r));
  assert_false(has_stopped(&r));
  shows(&r, 1);
  facts(&r);
  const struct verdict *v = failed(&r);
  assert_int_equal(v->cause, CAUSE_WORKER_SIGNAL);
  assert_int_equal(v->rank, 2);
  assert_string_equal(v->evidence, "rank 3 has not entered all_reduce #7, 1 other waits in it");
  assert_int_equal(bench_count_sent(&r.b, MSG_EVIDENCE), 1);
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped(&r));
  assert_int_equal(bench_count_sent(&r.b, MSG_REPORT), 2); /* STARTED and this one */
  bench_close(&r.b);
}

/* The probe does not answer; the others die meanwhile; no other worker is left. Each is reported once. */
static void test_giving_up_ends_in_any_case(void **state) {
  for (int kind = 0; kind < 3; kind++) {
    struct rig r = {0};
    bench_open(&r.b);
    r.b.answering = true;
    bench_running(&r.b);
    gives_up(&r, 0, WATCHDOG);
    if (kind == 0) run(&r, SUPERVISOR_PROBE_MS + 100);
    if (kind == 1) gives_up(&r, 1, WATCHDOG);
    if (kind == 2) gives_up(&r, 1, "Connection closed by peer");
    assert_true(has_stopped(&r));
    assert_int_equal(bench_count_sent(&r.b, MSG_REPORT), kind ? 3 : 2);
    bench_close(&r.b);
  }
}

/* The other nodes collect evidence before they stop. */
static void test_another_node_gives_up(void **state) {
  struct rig r = {0};
  bench_open(&r.b);
  r.b.answering = true;
  bench_running(&r.b);
  struct msg m;
  msg_init(&m, MSG_STOP);
  m.stop.incarnation = r.b.incarnation;
  m.stop.round = supervisor_round(r.b.s);
  m.stop.verdict.cause = CAUSE_WORKER_SIGNAL;
  m.stop.verdict.node_rank = 0;
  m.stop.verdict.text = WATCHDOG;
  bench_msg(&r.b, &m);
  assert_true(is_probing(&r));
  shows(&r, 1);
  facts(&r);
  assert_null(failed(&r));
  assert_int_equal(bench_count_sent(&r.b, MSG_EVIDENCE), 1);
  event(&r, (struct supervisor_event){.kind = SUP_PROBE_DONE});
  assert_true(has_stopped(&r));
  bench_close(&r.b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_evidence_names_the_origin),
      cmocka_unit_test(test_a_worker_gives_up_a_collective),
      cmocka_unit_test(test_giving_up_ends_in_any_case),
      cmocka_unit_test(test_another_node_gives_up),
      cmocka_unit_test(test_never),
      cmocka_unit_test(test_progress_while_others_start),
      cmocka_unit_test(test_the_whole_way),
      cmocka_unit_test(test_stopped_before_waiting),
      cmocka_unit_test(test_what_cannot_be_told_is_said),
      cmocka_unit_test(test_a_probe_has_a_deadline),
      cmocka_unit_test(test_called_off),
      cmocka_unit_test(test_the_start_takes_longer),
      cmocka_unit_test(test_auto_with_sdk),
      cmocka_unit_test(test_auto_with_output),
      cmocka_unit_test(test_output_does_not_end_the_start),
      cmocka_unit_test(test_files),
      cmocka_unit_test(test_a_file_system_that_hangs),
      cmocka_unit_test(test_time_that_was_not_ours),
      cmocka_unit_test(test_time_that_was_not_ours_while_probing),
      cmocka_unit_test(test_output_that_nobody_takes),
      cmocka_unit_test(test_the_finish),
      cmocka_unit_test(test_a_death_ends_the_probe),
      cmocka_unit_test(test_stop_finds_the_origin_here),
      cmocka_unit_test(test_stop_finds_nothing_here),
      cmocka_unit_test(test_stop_blames_nobody_who_goes_on),
      cmocka_unit_test(test_others_do_not_wait_for_a_probe),
      cmocka_unit_test(test_without_a_daemon),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
