/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor: the link to the daemon, heartbeats, silence, fencing. */

#include "tests/rig/supervisor.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

/* Greeting. -------------------------------------------------------------------------------------------------------- */

BENCH_TEST(test_begins_with_the_death_report_and_connects) {
  bench_begin();
  assert_int_equal(bench_count(SUP_CONNECT), 1);
  assert_int_equal(bench_count(SUP_DEATH_REPORT), 1);
  struct bytes *o = bench_effect(SUP_DEATH_REPORT)->bytes;
  assert_non_null(o);
  struct frame f;
  struct msg m;
  size_t size, preface = memcmp(o->data, frame_preface, FRAME_PREFACE_SIZE) ? 0 : FRAME_PREFACE_SIZE;
  assert_int_equal(frame_parse(o->data + preface, o->len - preface, FRAME_MAX_UNIDENTIFIED, &f, &size, NULL), 1);
  assert_int_equal(msg_decode(&f, TO_DAEMON, &m, NULL), 0);
  assert_int_equal(m.type, MSG_AGENT_DIED);
  assert_string_equal(m.agent_died.job, "job");
  assert_string_equal(m.agent_died.agent, bench.config.agent_id);
  msg_finish(&m);
}

BENCH_TEST(test_hello_says_who_it_is) {
  bench.config.want_rank = 1;
  bench.config.order_key = 4;
  bench.config.expected_nodes = 2;
  bench.config.local_addr = "10.0.0.7";
  bench_begin();
  assert_int_equal(bench_count(SUP_SEND), 0);
  bench_up();
  const struct hello *h = bench_hello();
  assert_string_equal(h->agent, bench.config.agent_id);
  assert_string_equal(h->job, "job");
  assert_string_equal(h->host, "n0");
  assert_string_equal(h->local_addr, "10.0.0.7");
  assert_string_equal(h->incarnation, "");
  assert_int_equal(h->pid, 77);
  assert_int_equal(h->workers, 2);
  assert_int_equal(h->want_rank, 1);
  assert_int_equal(h->order_key, 4);
  assert_int_equal(h->expected_nodes, 2);
  assert_int_equal(h->phase, PHASE_NONE);
  assert_int_equal(h->round, 0);
  assert_memory_equal(&h->settings, &bench.config.settings, sizeof h->settings);
}

/* Trying again could not help, whether something runs or not. */
BENCH_TEST(test_a_daemon_of_another_version_is_final) {
  for (int running = 0; running < 2; running++) {
    struct msg m;
    bench_open();
    if (running)
      bench_running();
    else
      bench_begin();
    if (running) bench_down(false);
    bench_run(0);
    bench_forget();
    bench_event(&(struct supervisor_event){.kind = SUP_LINK_UP});
    msg_init(&m, MSG_GREETING);
    m.greeting.version = PROTO_VERSION + 2;
    m.greeting.oldest = PROTO_VERSION + 1;
    m.greeting.release = "9.0.0";
    bench_msg(&m);
    assert_int_equal(bench_count(SUP_SEND), 0);
    assert_said("has release 9.0.0 (protocol 2 to 3), and this rdzv-agent " RDZV_VERSION
                " (protocol 1): upgrade rdzv where it is " RDZV_VERSION);
    if (running)
      assert_kills_and_exits(EXIT_CODE_REFUSED);
    else
      assert_exit(EXIT_CODE_REFUSED);
  }
}

JOINED_TEST(test_it_is_welcomed_to_an_incarnation) {
  bench_reconnected();
  assert_string_equal(bench_hello()->incarnation, bench.incarnation);
}

BENCH_TEST(test_accepted_but_not_answered) {
  bench_begin();
  bench_event(&(struct supervisor_event){.kind = SUP_LINK_UP});
  bench_run(SUPERVISOR_HELLO_MS - 1);
  assert_int_equal(bench_count(SUP_DISCONNECT), 0);
  bench_run(1);
  assert_int_equal(bench_count(SUP_DISCONNECT), 1);
  bench_run(100);
  assert_int_equal(bench_count(SUP_CONNECT), 2);
}

BENCH_TEST(test_a_welcome_older_than_the_lease_is_not_believed) {
  bench.config.settings.lease_ms = 1000;
  bench_begin();
  bench_up();
  bench.now_ms += 1000;
  bench_welcome(false);
  assert_int_equal(bench_count(SUP_DISCONNECT), 1);
}

/* Retrying. -------------------------------------------------------------------------------------------------------- */

BENCH_TEST(test_pauses_double_up_to_a_second) {
  static const uint64_t want[] = {0, 20, 40, 80, 160, 320, 640, 1000, 1000};
  bench_begin();
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
    bench_forget();
    bench_down(true);
    if (want[i]) {
      bench_run(want[i] - 1);
      assert_int_equal(bench_count(SUP_CONNECT), 0);
      bench_run(1);
    } else {
      bench_run(0);
    }
    assert_int_equal(bench_count(SUP_CONNECT), 1);
  }
}

BENCH_TEST(test_a_link_that_lived_is_tried_again_at_once) {
  bench.answering = true;
  bench_begin();
  for (int i = 0; i < 5; i++) { /* pauses have grown */
    bench_down(true);
    bench_run(1000);
  }
  bench_up();
  bench_welcome(false);
  bench_run(2000);
  bench_forget();
  bench_down(false);
  bench_run(0);
  assert_int_equal(bench_count(SUP_CONNECT), 1);
  assert_said("lost contact with the daemon at node1:29400");
}

/* One that welcomes and closes, again and again, is not asked ten thousand times a second. */
BENCH_TEST(test_links_that_do_not_live) {
  size_t attempts = 0;
  bench_begin();
  for (uint64_t until = bench.now_ms + 10000; bench.now_ms < until;) {
    if (bench_count(SUP_CONNECT)) {
      attempts++;
      bench_forget();
      bench_up();
      bench_welcome(false);
      bench_down(false);
    }
    bench_run(1);
  }
  assert_in_range(attempts, 5, 40);
}

BENCH_TEST(test_the_same_is_not_said_all_the_time) {
  bench.config.settings.join_timeout_ms = 600000;
  bench_begin();
  for (int i = 0; i < 100; i++) {
    bench_down(true);
    bench_run(1000);
  }
  assert_in_range(bench_said("trying again"), 3, 5); /* every 30 s */
}

BENCH_TEST(test_no_daemon_for_the_join_timeout) {
  for (int welcomed = 0; welcomed < 2; welcomed++) {
    bench_open();
    if (welcomed)
      bench_joined();
    else
      bench_begin();
    for (int i = 0; i < 59; i++) {
      bench_down(true);
      bench_run(1000);
    }
    assert_int_equal(bench.exits, 0);
    bench_down(true);
    bench_run(2000);
    assert_exit(welcomed ? EXIT_CODE_DAEMON_LOST : EXIT_CODE_NO_DAEMON);
    assert_int_equal(bench_said("--join-timeout): "), 1 + (welcomed ? 0 : 0));
  }
}

BENCH_TEST(test_what_cannot_help_is_not_tried) {
  bench_begin();
  bench_event(&(struct supervisor_event){
      .kind = SUP_LINK_DOWN, .link_down = {.exit_code = EXIT_CODE_NO_DAEMON}, .text = "nosuchhost: unknown"});
  assert_exit(EXIT_CODE_NO_DAEMON);
  assert_said("nosuchhost");
}

RUNNING_TEST(test_with_workers_there_is_no_join_timeout) {
  for (int i = 0; i < 300; i++) {
    bench_down(true);
    bench_run(1000);
  }
  assert_int_equal(bench.exits, 0);
  assert_state(SUPERVISOR_RUNNING);
  assert_int_equal(bench_count(SUP_STOP_TREES), 0);
  /* It counts from when nothing runs any more. */
  bench_all_exited(EXITED(0));
  bench_clear();
  for (int i = 0; i < 59; i++) {
    bench_down(true);
    bench_run(1000);
  }
  assert_int_equal(bench.exits, 0);
  bench_down(true);
  bench_run(2000);
  assert_exit(EXIT_CODE_DAEMON_LOST);
}

RUNNING_TEST(test_back_and_running) {
  const struct hello *h = bench_reconnected();
  assert_int_equal(h->phase, PHASE_RUNNING);
  assert_int_equal(h->round, 1);
  assert_int_equal(h->n_reports, 1);
  bench_welcome(false);
  assert_said("the daemon is back");
  assert_state(SUPERVISOR_RUNNING);
}

/* Heartbeats. ------------------------------------------------------------------------------------------------------ */

BENCH_TEST(test_a_heartbeat_every_eighth_of_a_lease) {
  bench.config.settings.lease_ms = 8000;
  bench.answering = true;
  bench_joined();
  assert_int_equal(bench_count_sent(MSG_HEARTBEAT), 1); /* at once after WELCOME */
  bench_run(999);
  assert_int_equal(bench_count_sent(MSG_HEARTBEAT), 1);
  bench_run(1);
  assert_int_equal(bench_count_sent(MSG_HEARTBEAT), 2);
  bench_run(60000);
  assert_int_equal(bench_count_sent(MSG_HEARTBEAT), 62);
  assert_int_equal(bench_sent(MSG_HEARTBEAT)->id, 62);
}

RUNNING_TEST(test_a_silent_daemon_is_dropped_after_a_lease) {
  bench_forget();
  bench_run(4999);
  assert_int_equal(bench_count(SUP_DISCONNECT), 0);
  bench_run(1);
  assert_int_equal(bench_count(SUP_DISCONNECT), 1);
  assert_int_equal(bench_count(SUP_CONNECT), 1);
  assert_said("heartbeats");
  assert_state(SUPERVISOR_RUNNING); /* nobody can take its place: it goes on */
  bench_run(100000);
  assert_state(SUPERVISOR_RUNNING);
}

RUNNING_TEST(test_acks_of_nothing) {
  struct msg ack;
  bench_run(3000);
  msg_init(&ack, MSG_HEARTBEAT_ACK);
  static const uint32_t ids[] = {4000000000, 100, 0};
  for (int i = 0; i < 3; i++) {
    ack.id = ids[i];
    bench_msg(&ack);
  }
  bench_forget();
  bench_run(2000);
  assert_int_equal(bench_count(SUP_DISCONNECT), 1); /* they have renewed nothing */
}

/* Fencing. --------------------------------------------------------------------------------------------------------- */

BENCH_TEST(test_fences_at_four_fifths_of_the_lease) {
  bench.fencing = true;
  bench_running();
  bench_run(5 * 625);
  assert_state(SUPERVISOR_RUNNING);
  bench.fencing = false;
  uint64_t acked = bench.now_ms - bench.now_ms % 1; /* the last answered heartbeat was sent at the last multiple */
  bench_forget();
  bench_down(false); /* the cable is cut */
  bench_run(0);
  while (supervisor_state(bench.s) == SUPERVISOR_RUNNING && bench.now_ms < acked + 6000) bench_run(1);
  assert_in_range(bench.now_ms - acked, 3990, 4000);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  assert_said("killing the workers");
  bench_run(1000);
  assert_int_equal(bench_count(SUP_STOP_TREES), 1); /* once */
  bench_clear();
  assert_state(SUPERVISOR_STOPPED);
  bench_up();
  const struct hello *h = bench_hello();
  assert_int_equal(h->phase, PHASE_STOPPED);
  assert_int_equal(h->reports[h->n_reports - 1].kind, REPORT_STOPPED);
  assert_non_null(strstr(h->reports[h->n_reports - 1].what.text, "lease"));
}

/* The guard is told before it is told to spawn, then once per heartbeat that is answered, and taken off at the end. */
JOINED_TEST(test_the_guard_knows_the_deadline) {
  bench_welcome(true);
  assert_int_equal(bench_count(SUP_FENCE_AT), 0); /* nothing runs */
  uint64_t greeted = bench.now_ms;
  bench_start(1);
  size_t fence = 0, spawn = 0;
  for (size_t i = 0; i < bench.n_fx; i++) {
    if (bench.fx[i].kind == SUP_FENCE_AT) fence = i;
    if (bench.fx[i].kind == SUP_SPAWN) spawn = i;
  }
  assert_true(fence < spawn);
  assert_in_range(bench_effect(SUP_FENCE_AT)->fence_at.at_ms, greeted + 3900, greeted + 4000);
  bench_all_spawned();
  bench.fencing = true;
  bench_forget();
  bench_run(8 * 625);
  size_t beats = bench_count_sent(MSG_HEARTBEAT);
  assert_in_range(beats, 7, 8);
  assert_int_equal(bench_count(SUP_FENCE_AT), beats);
  struct verdict lost;
  verdict_init(&lost);
  lost.cause = CAUSE_NODE_LOST;
  lost.node_rank = 0;
  bench_stop(1, &lost);
  bench_clear();
  assert_true(bench_effect(SUP_FENCE_AT)->fence_at.at_ms == UINT64_MAX);
}

/* It was welcomed when too few were here to go on without it, and is cut off right behind START. */
JOINED_TEST(test_start_says_whether_to_fence) {
  uint64_t greeted = bench.now_ms;
  assert_int_equal(bench_count(SUP_FENCE_AT), 0);
  bench.fenced = true;
  bench_start(1);
  assert_in_range(bench_effect(SUP_FENCE_AT)->fence_at.at_ms, greeted + 3900, greeted + 4000);
}

/* Round 1 runs, others could go on without this node, and the daemon answers no more. */
static void open_fenced(void) {
  bench_open();
  bench.fencing = true;
  bench_running();
  bench_run(1000);
  bench.fencing = false;
}

/* Stopped for ten seconds: its guard has acted in its stead, whichever of the two speaks first. Or the guard was stopped
 * as long, and reports only now. */
static void fenced_by_its_guard(bool tick_first, bool guard_stopped) {
  open_fenced();
  uint64_t at = bench_effect(SUP_FENCE_AT)->fence_at.at_ms;
  bench_forget();
  bench.now_ms = at + 10000;
  if (tick_first) bench_event(&(struct supervisor_event){.kind = SUP_TICK});
  bench_event(&(struct supervisor_event){.kind = SUP_FENCED, .round = 1, .when_ms = guard_stopped ? bench.now_ms : at});
  for (uint32_t i = 0; i < 2; i++) bench_exited(i, SIGNALED(9), at + 1, "");
  bench_clear();
  assert_state(SUPERVISOR_STOPPED);
  assert_said("was stopped, or could not run, for 10.0 s");
  assert_not_said("SIGKILL"); /* no failure of theirs */
  bench_down(false);
  bench_run(1000);
  bench_up();
  const struct hello *h = bench_hello();
  assert_int_equal(h->phase, PHASE_STOPPED);
  for (size_t i = 0; i < h->n_reports; i++) assert_int_not_equal(h->reports[i].kind, REPORT_FAILED);
}

BENCH_TEST(test_workers_that_are_being_killed_do_not_go_on) {
  open_fenced();
  bench.answering = false;
  bench_run(4000);
  assert_state(SUPERVISOR_STOPPING);
  bench_down(false);
  assert_said("; trying to reconnect");
  assert_not_said("workers go on");
}

BENCH_TEST(test_fenced_by_its_guard) {
  for (int i = 0; i < 4; i++) fenced_by_its_guard(i & 1, i & 2);
}

/* Of a round that is over here, or of none. */
RUNNING_TEST(test_an_old_fence_is_nothing) {
  bench_event(&(struct supervisor_event){.kind = SUP_FENCED, .round = 9, .when_ms = bench.now_ms});
  assert_state(SUPERVISOR_RUNNING);
  assert_int_equal(bench_count(SUP_FENCE_AT), 0); /* without the flag it never hears of one */
}

JOINED_TEST(test_no_fence_without_the_flag) {
  bench_welcome(true); /* while it was in no round */
  bench.fenced = false;
  bench_start(1);
  bench_all_spawned();
  bench_down(false);
  bench_run(60000);
  assert_state(SUPERVISOR_RUNNING);
}

static void welcome_back(bool recovering) {
  struct msg m;
  bench_down(false);
  bench_run(20);
  bench_up();
  msg_init(&m, MSG_WELCOME);
  m.welcome.incarnation = bench.incarnation;
  m.welcome.round = 1;
  m.welcome.state = recovering ? JOB_RECOVERING : JOB_RUNNING;
  bench_msg(&m);
}

/* The daemon counts on it: whoever comes and goes, or comes back, a node that had to fence has to until its round ends. */
BENCH_TEST(test_a_fence_lasts_until_the_round_ends) {
  for (int recovering = 0; recovering < 2; recovering++) {
    open_fenced();
    welcome_back(recovering);
    bench.answering = true; /* without FENCE */
    bench_run(20000);
    assert_true(bench_effect(SUP_FENCE_AT)->fence_at.at_ms != UINT64_MAX);
    bench.answering = false;
    bench_run(5000);
    assert_state(SUPERVISOR_STOPPING);
  }
}

/* The daemon that has come back tells nobody to fence, and nobody had told it before. */
ANSWERED_TEST(test_no_fence_is_kept_where_there_was_none) {
  bench_run(1000);
  welcome_back(true);
  bench_run(1000);
  assert_int_equal(bench_count(SUP_FENCE_AT), 0);
}

/* An acknowledgement with id 0 answers no heartbeat: it says that a round can form without us now, and renews
 * nothing. */
ANSWERED_TEST(test_an_ack_of_no_heartbeat) {
  struct msg ack;
  bench_run(20 * 625 + 500);
  uint64_t beat = bench.now_ms - 500;
  bench.answering = false;
  msg_init(&ack, MSG_HEARTBEAT_ACK);
  ack.flags = FRAME_FLAG_FENCE;
  bench_msg(&ack);
  assert_in_range(bench_effect(SUP_FENCE_AT)->fence_at.at_ms, beat + 3900, beat + 4000);
}

/* Anybody on the way can refuse a connection, or reset one. */
BENCH_TEST(test_refused_is_no_answer) {
  open_fenced();
  for (int i = 0; i < 2; i++) {
    bench_down(true);
    bench_run(1000);
  }
  assert_state(SUPERVISOR_RUNNING);
  bench_down(true);
  bench_run(2000);
  assert_state(SUPERVISOR_STOPPING);
}

/* The daemon says when it leaves that no round begins for a while. */
static void leave(int64_t away_ms) {
  struct msg m;
  msg_init(&m, MSG_GOING_AWAY);
  m.going_away.text = "it is being stopped";
  m.going_away.away_ms = away_ms;
  bench_msg(&m);
  bench.answering = false;
  bench_down(false);
}

BENCH_TEST(test_a_daemon_that_leaves_leaves_time) {
  open_fenced();
  leave(60000);
  bench_run(55000);
  assert_state(SUPERVISOR_RUNNING);
  bench_run(5000);
  assert_state(SUPERVISOR_STOPPING);
}

/* A daemon that comes back learns of it, and from its WELCOME on silence counts as ever. */
BENCH_TEST(test_a_daemon_that_is_back_takes_that_time_back) {
  open_fenced();
  leave(60000);
  bench_run(10000);
  bench_up();
  assert_in_range(bench_hello()->away_ms, 45000, 52000);
  bench_welcome(true);
  bench_run(4100); /* that daemon dies before it has heard of all nodes, and the next one must know */
  assert_state(SUPERVISOR_STOPPING);
  bench_down(true);
  bench_run(1000);
  bench_up();
  assert_in_range(bench_hello()->away_ms, 40000, 47000);
}

/* A node that is leaving fences too, at once, and does not do it again and again. */
BENCH_TEST(test_fences_while_leaving) {
  open_fenced();
  bench_signal(15);
  bench_down(false);
  bench_run(0);
  bench_forget();
  bench_run(6000);
  assert_int_equal(bench_count(SUP_STOP_TREES), 1);
  assert_kills_and_exits(EXIT_CODE_PREEMPTED);
}

/* Another program has the port. ------------------------------------------------------------------------------------ */

static void down_foreign(void) {
  bench_event(&(struct supervisor_event){
      .kind = SUP_LINK_DOWN, .link_down = {.foreign = true}, .text = "pid 9 (sshd) listens at node1:29400"});
}

static void begin_with_ten_minutes(void) {
  bench_open();
  bench.config.settings.join_timeout_ms = 600000;
  bench_begin();
}

BENCH_TEST(test_another_protocol_is_not_waited_for_long) {
  begin_with_ten_minutes();
  for (uint64_t ms = 0; ms < SUPERVISOR_OTHER_PROTOCOL_MS; ms += 500) {
    assert_int_equal(bench.exits, 0);
    bench_event(&(struct supervisor_event){.kind = SUP_LINK_UP});
    down_foreign();
    bench_run(500);
  }
  assert_exit(EXIT_CODE_NO_DAEMON);
  assert_said("no rdzvd could be reached at node1:29400 within 30 s: pid 9 (sshd) listens at "
              "node1:29400; stop that program, or choose another port");
  assert_int_equal(bench_said("trying again for "), 3); /* at 0, 0.5 and 1 s, not just before the end */
}

/* The scheduler's list proves that no agent of this job will start a daemon there. */
BENCH_TEST(test_a_place_outside_of_the_step_is_not_waited_for_long) {
  bench.config.settings.join_timeout_ms = 600000;
  bench.config.endpoint_doubt = "n1 is not one of this step's hosts, n[3-4]: leave --endpoint out";
  bench.config.reach_ms = 60000;
  bench_begin();
  bench_run(2000);
  bench_down(true);
  assert_said("hosts, n[3-4]: leave --endpoint out; trying again for 58 s");
  while (!bench.exits && bench.now_ms < 700000) {
    bench_run(1000);
    if (!bench.exits) bench_down(true);
  }
  assert_exit(EXIT_CODE_NO_DAEMON);
  assert_said("no rdzvd could be reached at node1:29400 within 60 s: ");
}

static void down_unknown(void) {
  bench_event(&(struct supervisor_event){
      .kind = SUP_LINK_DOWN, .link_down = {.unknown = true}, .text = "the name is not known"});
}

/* A misspelt name is tried for a minute. A name that exists meanwhile has the whole time. */
BENCH_TEST(test_a_name_that_does_not_exist_is_not_tried_for_long) {
  for (int appears = 0; appears < 2; appears++) {
    bench_open();
    bench.config.settings.join_timeout_ms = 600000;
    bench.config.unknown_ms = 60000;
    bench_begin();
    bench_run(2000);
    down_unknown();
    assert_said("the name is not known; trying again for 60 s");
    while (!bench.exits && bench.now_ms < 700000) {
      bench_run(1000);
      if (!bench.exits && appears && bench.now_ms > 30000)
        bench_down(true);
      else if (!bench.exits)
        down_unknown();
    }
    assert_exit(EXIT_CODE_NO_DAEMON);
    assert_int_equal(bench_said(appears ? "within 600 s (--join-timeout): " : "within 62 s: the name is not known"), 1);
  }
}

/* It may have been stopped, and rdzvd is on its way. */
BENCH_TEST(test_after_another_protocol_a_daemon_is_waited_for) {
  begin_with_ten_minutes();
  bench_event(&(struct supervisor_event){.kind = SUP_LINK_UP});
  down_foreign();
  bench_run(2000);
  bench_down(true);
  for (int i = 0; i < 60; i++) {
    bench_run(1000);
    bench_down(true);
  }
  assert_int_equal(bench.exits, 0);
  bench_up();
  bench_welcome(false);
  down_foreign(); /* of a job that had its daemon */
  bench_run(SUPERVISOR_OTHER_PROTOCOL_MS + 1000);
  assert_int_equal(bench.exits, 0);
}

BENCH_TEST(test_who_is_silent_is_named) {
  begin_with_ten_minutes();
  bench_event(&(struct supervisor_event){.kind = SUP_LINK_UP});
  bench_run(1000);
  bench_event(&(struct supervisor_event){.kind = SUP_OTHER_PROGRAM, .text = "pid 9 (nc) is silent"});
  assert_said("pid 9 (nc) is silent; trying again for 599 s (--join-timeout)");
  for (int i = 0; i < 600 && !bench.exits; i++) {
    bench_run(1000);
    if (!bench.exits) bench_event(&(struct supervisor_event){.kind = SUP_LINK_UP});
    if (!bench.exits)
      bench_event(&(struct supervisor_event){.kind = SUP_OTHER_PROGRAM, .text = "pid 9 (nc) is silent"});
  }
  assert_exit(EXIT_CODE_NO_DAEMON);
  assert_true(bench.now_ms >= 600000); /* it may be rdzvd that hangs, behind a proxy */
  assert_said("within 600 s (--join-timeout): pid 9 (nc) is silent; stop that program, or choose another port");
}
