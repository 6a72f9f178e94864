/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: one round on one node, and what is reported of it. */

#include "common/exit_codes.h"
#include "tests/rig/supervisor.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/sdk/rdzv.h"
#include "tests/rig/unit.h"

/* Starting. -------------------------------------------------------------------------------------------------------- */

JOINED_TEST(test_start_spawns_and_started_is_told_when_all_run) {
  assert_state(SUPERVISOR_JOINING);
  bench_start(1);
  assert_state(SUPERVISOR_STARTING);
  const struct start *start = bench_effect(SUP_SPAWN)->spawn.start;
  assert_int_equal(start->round, 1);
  assert_int_equal(start->rank_base, 2);
  assert_int_equal(start->world_size, 4);
  assert_string_equal(start->head_addr, "10.0.0.9");
  assert_string_equal(start->node_addr, "10.0.0.1");
  assert_said("round 1: 2 nodes, 4 workers; this is node 1 with ranks 2-3, node 0 is n9 (10.0.0.9)");
  bench_spawned(0);
  bench_spawned(0); /* said twice */
  assert_null(bench_report(REPORT_STARTED));
  bench_spawned(1);
  assert_state(SUPERVISOR_RUNNING);
  const struct report *r = bench_report(REPORT_STARTED);
  assert_non_null(r);
  assert_int_equal(r->seq, 1);
  assert_int_equal(r->round, 1);
  assert_int_equal(bench_count_sent(MSG_REPORT), 1);
}

RUNNING_TEST(test_start_said_again_changes_nothing) {
  bench_forget();
  bench_start(1);
  bench_start(2); /* nor one while a round runs */
  assert_int_equal(bench.n_fx, 0);
  assert_int_equal(supervisor_round(bench.s), 1);
}

JOINED_TEST(test_a_start_that_is_older_than_the_lease_is_not_begun) {
  bench.now_ms += 5000; /* we were stopped: the daemon may have given us up */
  bench_start(1);
  assert_int_equal(bench_count(SUP_SPAWN), 0);
  assert_int_equal(bench_count(SUP_DISCONNECT), 1);
  bench_run(0);
  assert_int_equal(bench_count(SUP_CONNECT), 2);
}

static void worker_event(enum supervisor_event_kind kind, uint32_t round, uint32_t local_rank) {
  struct supervisor_event ev = {.kind = kind, .round = round, .local_rank = local_rank, .when_ms = bench.now_ms};
  if (kind == SUP_EXITED) ev.exited.status = EXITED(1);
  bench_event(&ev);
}

RUNNING_TEST(test_events_of_other_rounds_are_not_ours) {
  bench_forget();
  for (int kind = SUP_SPAWNED; kind <= SUP_CLEAR; kind++) worker_event((enum supervisor_event_kind)kind, 2, 0);
  for (int kind = SUP_SPAWNED; kind <= SUP_EXITED; kind++) /* or of no worker of ours */
    worker_event((enum supervisor_event_kind)kind, 1, 2);
  assert_int_equal(bench.n_fx, 0);
  assert_state(SUPERVISOR_RUNNING);
}

/* Ends of workers. ------------------------------------------------------------------------------------------------- */

RUNNING_TEST(test_finished_is_told_when_nothing_is_left) {
  bench_exited(0, EXITED(0), bench.now_ms, "");
  bench_exited(0, EXITED(0), bench.now_ms, ""); /* said twice */
  bench_exited(1, EXITED(0), bench.now_ms, "");
  assert_state(SUPERVISOR_RUNNING); /* what they left behind may still run */
  assert_null(bench_report(REPORT_FINISHED));
  bench_clear();
  assert_state(SUPERVISOR_FINISHED);
  assert_non_null(bench_report(REPORT_FINISHED));
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
}

static void send_kill(const char *incarnation, int64_t round, int64_t local_rank) {
  struct msg m;
  msg_init(&m, MSG_KILL);
  m.kill.incarnation = incarnation;
  m.kill.round = round;
  m.kill.local_rank = local_rank;
  m.kill.signal = SIGUSR1;
  m.kill.by = "ada (uid 1000) from head1";
  bench_forget();
  bench_msg(&m);
}

/* rdzvctl kill-worker: for a worker of this round that runs, and for no other. */
RUNNING_TEST(test_kill) {
  send_kill(bench.incarnation, 1, 1);
  assert_int_equal(bench_effect(SUP_KILL)->kill.local_rank, 1);
  assert_int_equal(bench_effect(SUP_KILL)->kill.signo, SIGUSR1);
  assert_said(
      "rdzvctl kill-worker by ada (uid 1000) from head1: signal 10 (SIGUSR1) goes to rank 3 (local 1, pid 5001)");
  send_kill(bench.incarnation, 2, 1);
  assert_int_equal(bench_count(SUP_KILL), 0);
  send_kill("0abc-1", 1, 1);
  assert_int_equal(bench_count(SUP_KILL), 0);
  send_kill(bench.incarnation, 1, 2);
  assert_int_equal(bench_count(SUP_KILL), 0);
  bench_exited(0, EXITED(0), bench.now_ms, "");
  send_kill(bench.incarnation, 1, 0);
  assert_int_equal(bench_count(SUP_KILL), 0);
  bench_exited(1, EXITED(7), bench.now_ms, "");
  send_kill(bench.incarnation, 1, 1);
  assert_int_equal(bench_count(SUP_KILL), 0);
}

RUNNING_TEST(test_excluded_host_is_said) {
  struct msg m;
  bench_exited(1, EXITED(7), bench.now_ms, "");
  bench_clear();
  msg_init(&m, MSG_SETTLED);
  m.settled.incarnation = bench.incarnation;
  m.settled.round = 1;
  m.settled.excluded = "n\033[1m";
  bench_msg(&m);
  assert_said("host n\\x1b[1m is excluded from further rounds: 0 of the job's charged failures happened there");
}

RUNNING_TEST(test_an_exit_code) {
  bench.now_ms += 40;
  bench_exited(1, EXITED(7), bench.now_ms - 15, "a\nlast words\n");
  const struct report *r = bench_report(REPORT_FAILED);
  assert_non_null(r);
  assert_int_equal(r->ago_ms, 15);
  assert_int_equal(r->what.cause, CAUSE_WORKER_EXIT);
  assert_int_equal(r->what.code, 7);
  assert_int_equal(r->what.local_rank, 1);
  assert_int_equal(r->what.rank, 3);
  assert_int_equal(r->what.node_rank, 1);
  assert_int_equal(r->what.pid, 5001);
  assert_int_equal(r->what.step, -1);
  assert_string_equal(r->what.host, "n0");
  assert_string_equal(r->what.text, "a\nlast words\n");
  /* Its siblings are stopped without waiting to be told. */
  assert_state(SUPERVISOR_STOPPING);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 30000);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->round, 1);
  assert_int_equal(bench_effect(SUP_REQUEST)->request.bits, RDZV_STOP);
  bench_clear();
  assert_state(SUPERVISOR_STOPPED);
  assert_non_null(bench_report(REPORT_STOPPED));
}

RUNNING_TEST(test_a_signal) {
  bench_exited(0, SIGNALED(11) | 0x80, bench.now_ms, "");
  const struct report *r = bench_report(REPORT_FAILED);
  assert_int_equal(r->what.cause, CAUSE_WORKER_SIGNAL);
  assert_int_equal(r->what.signal, 11);
  assert_int_equal(r->what.code, 139);
  assert_true(r->what.core);
  assert_int_equal(r->what.rank, 2);
}

BENCH_TEST(test_a_command_that_cannot_run) {
  static const int errors[] = {ENOENT, EACCES};
  for (int i = 0; i < 2; i++) {
    bench_open_joined();
    bench_start(1);
    struct supervisor_event ev = {
        .kind = SUP_EXEC_FAILED, .round = 1, .when_ms = bench.now_ms, .code = errors[i], .text = "no such file"};
    bench_event(&ev);
    bench_event(&ev);
    const struct report *r = bench_report(REPORT_FAILED);
    assert_int_equal(r->what.cause, CAUSE_WORKER_EXEC);
    assert_int_equal(r->what.code, i == 0 ? 127 : 126);
    assert_true(r->what.lasting);
    assert_string_equal(r->what.text, "no such file");
    assert_int_equal(bench_count_sent(MSG_REPORT), 1);
    assert_state(SUPERVISOR_STOPPING);
  }
}

/* Nothing is wrong with the command: the daemon may try again. */
JOINED_TEST(test_a_limit_of_the_machine_is_not_lasting) {
  bench_start(1);
  bench_event(&(struct supervisor_event){.kind = SUP_EXEC_FAILED,
                                         .round = 1,
                                         .when_ms = bench.now_ms,
                                         .code = EAGAIN,
                                         .text = "fork: Resource temporarily unavailable"});
  const struct report *r = bench_report(REPORT_FAILED);
  assert_int_equal(r->what.cause, CAUSE_WORKER_EXEC);
  assert_int_equal(r->what.code, EXIT_CODE_SYSTEM);
  assert_false(r->what.lasting);
  assert_string_equal(r->what.text, "fork: Resource temporarily unavailable; see ulimit -u, and pids.max of "
                                    "the cgroup");
}

/* Nothing of the round runs; the verdict names device and holder, and it is the daemon that counts restarts. */
JOINED_TEST(test_device_held) {
  bench_start(1);
  struct supervisor_event ev = {.kind = SUP_DEVICE_HELD,
                                .round = 1,
                                .local_rank = 1,
                                .when_ms = bench.now_ms,
                                .device = "5, GPU-8f",
                                .text = "pid 7 holds it"};
  bench_event(&ev);
  const struct report *r = bench_report(REPORT_FAILED);
  assert_int_equal(r->what.cause, CAUSE_DEVICE_HELD);
  assert_int_equal(r->what.code, EXIT_CODE_DEVICES);
  assert_int_equal(r->what.local_rank, 1);
  assert_string_equal(r->what.device, "5, GPU-8f");
  assert_string_equal(r->what.text, "pid 7 holds it");
  assert_state(SUPERVISOR_STOPPING);
}

/* Who dies before the stop died by itself; who dies after it died of it. */
BENCH_TEST(test_deaths_around_the_stop) {
  bench.config.workers = 4;
  bench_running();
  uint64_t before = bench.now_ms;
  bench.now_ms += 100;
  bench_stop(1, NULL);
  assert_state(SUPERVISOR_STOPPING);
  bench.now_ms += 10;
  bench_exited(0, SIGNALED(15), bench.now_ms, "");
  assert_null(bench_report(REPORT_FAILED));
  bench_exited(1, EXITED(3), before + 99, ""); /* it had died already, and we hear of it now */
  assert_int_equal(bench_report(REPORT_FAILED)->what.code, 3);
  assert_int_equal(bench_report(REPORT_FAILED)->ago_ms, 11);
  bench_exited(2, EXITED(0), before + 99, "");
  bench_event(&(struct supervisor_event){
      .kind = SUP_EXITED,
      .round = 1,
      .local_rank = 3,
      .when_ms = bench.now_ms,
      .exited = {.status = EXITED(4), .unasked = true, .xid = 79}}); /* the guard knows better */
  assert_int_equal(bench_report(REPORT_FAILED)->what.code, 4);
  assert_int_equal(bench_report(REPORT_FAILED)->what.xid, 79);
  assert_int_equal(bench_count_sent(MSG_REPORT), 3);
  bench_clear();
  assert_state(SUPERVISOR_STOPPED);
}

/* Tokens. ---------------------------------------------------------------------------------------------------------- */

RUNNING_TEST(test_what_does_not_fit_the_token_changes_nothing) {
  bench_forget();
  bench_stop(2, NULL);
  bench_settled(2, true, 3, NULL);
  snprintf(bench.incarnation, sizeof bench.incarnation, "018bcfe56800-2");
  bench_stop(1, NULL);
  bench_settled(1, true, 3, NULL);
  bench_end(5, NULL);
  assert_int_equal(bench.n_fx, 0);
  assert_state(SUPERVISOR_RUNNING);
}

RUNNING_TEST(test_settled_leads_to_the_next_round) {
  struct verdict v;
  bench_exited(0, EXITED(7), bench.now_ms, "oops\n");
  bench_settled(1, true, 1, NULL); /* not before it has stopped */
  assert_state(SUPERVISOR_STOPPING);
  bench_clear();
  verdict_init(&v);
  v = bench_report(REPORT_FAILED)->what;
  v.round = 1;
  bench_forget();
  bench_settled(1, true, 1, NULL);
  assert_state(SUPERVISOR_JOINING);
  assert_said("restart 1 of 3");
  bench_start(1); /* the old one again */
  assert_state(SUPERVISOR_JOINING);
  bench_start(2);
  assert_state(SUPERVISOR_STARTING);
  bench_all_spawned();
  assert_int_equal(bench_report(REPORT_STARTED)->round, 2);
  assert_true(bench_report(REPORT_STARTED)->seq > 3); /* numbers go on */
}

RUNNING_TEST(test_stale_kills_and_joins_anew) {
  bench_forget();
  bench_stale();
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  assert_int_equal(bench_count_sent(MSG_HELLO), 0); /* not before all is dead */
  bench_clear();
  assert_state(SUPERVISOR_JOINING);
  const struct msg *hello = bench_sent(MSG_HELLO);
  assert_non_null(hello);
  assert_int_equal(hello->hello.phase, PHASE_NONE);
  assert_int_equal(hello->hello.node_rank, -1);
  assert_int_equal(hello->hello.n_reports, 0);
  assert_null(bench_report(REPORT_STOPPED));
  bench_welcome(false);
  bench_start(2);
  assert_state(SUPERVISOR_STARTING);
}

RUNNING_TEST(test_stale_with_nothing_that_runs) {
  bench_stop(1, NULL);
  bench_clear();
  assert_state(SUPERVISOR_STOPPED);
  bench_forget();
  bench_stale();
  assert_state(SUPERVISOR_JOINING);
  assert_int_equal(bench_hello()->phase, PHASE_NONE);
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
}

/* Reports are kept until they are settled. ------------------------------------------------------------------------- */

RUNNING_TEST(test_reports_are_said_again_in_every_hello) {
  bench.now_ms += 1000;
  bench_exited(0, EXITED(7), bench.now_ms, "oops");
  bench_down(false);
  bench_clear(); /* told to nobody */
  assert_null(bench_report(REPORT_STOPPED));
  for (int i = 0; i < 2; i++) {
    bench_run(500);
    bench_up();
    const struct hello *h = bench_hello();
    assert_int_equal(h->phase, PHASE_STOPPED);
    assert_int_equal(h->round, 1);
    assert_int_equal(h->node_rank, 1);
    assert_int_equal(h->round_nodes, 2);
    assert_string_equal(h->incarnation, bench.incarnation);
    assert_int_equal(h->n_reports, 3);
    assert_int_equal(h->reports[0].kind, REPORT_STARTED);
    assert_int_equal(h->reports[0].ago_ms, 1500 + 500 * i);
    assert_int_equal(h->reports[1].kind, REPORT_FAILED);
    assert_int_equal(h->reports[1].ago_ms, 500 + 500 * i);
    assert_string_equal(h->reports[1].what.text, "oops");
    assert_int_equal(h->reports[2].kind, REPORT_STOPPED);
    assert_true(h->reports[0].seq < h->reports[1].seq && h->reports[1].seq < h->reports[2].seq);
    bench_welcome(false);
    bench_down(false);
  }
  bench_run(500);
  bench_up();
  bench_welcome(false);
  bench_settled(1, true, 1, NULL);
  bench_down(false);
  bench_run(500);
  bench_up();
  const struct hello *h = bench_hello();
  assert_int_equal(h->n_reports, 0);
  assert_int_equal(h->phase, PHASE_NONE);
  assert_int_equal(h->round, 1); /* that it was in, and knows as settled */
  assert_int_equal(h->node_rank, 1);
  assert_int_equal(h->restarts_used, 1);
}

RUNNING_TEST(test_what_happened_between_hello_and_welcome) {
  bench_reconnected();
  bench_forget();
  bench_exited(0, EXITED(7), bench.now_ms, "");
  assert_int_equal(bench_count_sent(MSG_REPORT), 0); /* not before it is welcomed */
  bench.now_ms += 30;
  bench_welcome(false);
  assert_int_equal(bench_count_sent(MSG_REPORT), 1);
  assert_int_equal(bench_report(REPORT_FAILED)->ago_ms, 30);
}

/* A thousand workers that die with much to say: HELLO fits its frame (tests/rig/supervisor.c), and the end has its
 * place. */
BENCH_TEST(test_more_deaths_than_a_hello_can_carry) {
  char text[TEXT_MAX + 1];
  bench.config.workers = 1024;
  memset(text, '\x01', TEXT_MAX); /* six bytes each in JSON */
  text[TEXT_MAX] = 0;
  bench_running();
  bench.now_ms += 10;
  for (uint32_t i = 0; i < 1024; i++) bench_exited(i, SIGNALED(9), bench.now_ms - 5, text);
  bench_down(false);
  bench_signal(15);
  bench_run(0);
  bench_up();
  const struct hello *h = bench_hello();
  assert_int_equal(h->n_reports, REPORTS_MAX - 1);
  assert_int_equal(strlen(h->reports[1].what.text), TEXT_MAX); /* the first keeps its words */
  assert_int_equal(h->reports[REPORTS_MAX - 2].kind, REPORT_LEAVING);
}

/* And where all else that HELLO carries is as long as it may be. */
BENCH_TEST(test_the_longest_hello) {
  char text[97], device[DEVICE_MAX + 1], host[HOST_MAX + 1], hosts[HOSTS_MAX + 1], addrs[ADDRS_MAX + 1];
  memset(text, '\x01', sizeof text);
  memset(device, '"', sizeof device);
  memset(host, '\x01', sizeof host);
  memset(hosts, 'n', sizeof hosts);
  memset(addrs, '1', sizeof addrs);
  text[sizeof text - 1] = device[DEVICE_MAX] = host[HOST_MAX] = hosts[HOSTS_MAX] = addrs[ADDRS_MAX] = '\0';
  bench.config.workers = 1024;
  bench.config.expected_hosts = hosts;
  bench.config.addrs = addrs;
  bench.config.settings.daemons = DAEMONS_MAX;
  bench.config.settings.claims = true;
  bench.daemon = "d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1";
  bench.term = TERM_MAX;
  bench.seal = (struct seal){.nodes = NODES_MAX,
                             .tie_breaker = true,
                             .base_incarnation = "0123456789abcdef0123456789abcdef01234567",
                             .base_round = ROUND_MAX,
                             .base_nodes = NODES_MAX,
                             .in_base = true,
                             .base_tie_breaker = true};
  bench.head_host = host;
  bench_begin();
  bench_event(&(struct supervisor_event){.kind = SUP_STANDBY, .port = 65535});
  bench_up();
  bench_welcome(false);
  bench_start(1);
  bench.now_ms += 10;
  for (uint32_t i = 0; i < 1024; i++)
    bench_event(
        &(struct supervisor_event){.kind = SUP_SPAWNED, .round = 1, .local_rank = i, .pid = 4194304, .device = device});
  for (uint32_t i = 0; i < 1024; i++) bench_exited(i, SIGNALED(11) | 0x80, bench.now_ms - 5, text);
  bench_down(false);
  bench_signal(15);
  bench_run(0);
  bench_up();
  const struct hello *h = bench_hello(); /* which fits: tests/rig/supervisor.c */
  assert_int_equal(strlen(h->reports[1].what.text), sizeof text - 1);
  assert_int_equal(strlen(h->reports[1].what.device), DEVICE_MAX);
  assert_int_equal(strlen(h->head_host), HOST_MAX);
}
