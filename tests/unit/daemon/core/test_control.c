/* SPDX-License-Identifier: Apache-2.0 */
/* core: what rdzvctl reads and asks. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "tests/rig/unit.h"

static json_t *ask_json(struct rig *r, const char *verb, const char *job) {
  struct err e = ERR_INIT;
  assert_int_equal(rig_control(r, verb, job, true), 0);
  json_t *v = json_parse_object(r->said.data, r->said.len, &e);
  if (!v) fprintf(stderr, "%s\n%s\n", e.text, buf_text(&r->said));
  assert_non_null(v);
  return v;
}

static const char *text_of(const json_t *o, const char *key) {
  const char *s = json_string_value(json_object_get(o, key));
  assert_non_null(s);
  return s;
}

RIG_TEST(test_no_jobs) {
  rig_open(r, 1);
  assert_int_equal(rig_control(r, "jobs", "", false), 0);
  assert_string_equal(buf_text(&r->said), "no jobs\n");
  json_t *v = ask_json(r, "jobs", "");
  assert_int_equal(json_array_size(json_object_get(v, "jobs")), 0);
  json_decref(v);
}

RIG_TEST(test_unknown_job_and_verb) {
  rig_open(r, 1);
  static const char *const verbs[] = {"status", "jobs", "stop"};
  for (int i = 0; i < 3; i++) {
    assert_int_not_equal(rig_control(r, verbs[i], "nope", i == 0), 0);
    assert_said(r, "nope");
    assert_int_equal(r->said.data[r->said.len - 1], '\n');
  }
  assert_int_equal(rig_control(r, "explode", "", false), EXIT_CODE_USAGE);
  assert_said(r, "explode");
  assert_said(r, "status, jobs, drain, undrain, stop, kill-worker");
}

/* More than a frame takes, and more than anybody reads. */
RIG_TEST(test_too_much_to_tell) {
  enum { MANY = 14000 };
  rig_open_for(r, NODES_MAX, NODES_MAX);
  node_init(r, n, 0);
  memset(n->host, 1, HOST_MAX); /* six bytes each in JSON */
  r->blind = true;
  for (int i = 0; i < MANY; i++) {
    snprintf(n->agent, sizeof n->agent, "%032x", (unsigned)i + 1);
    node_join(r, n);
  }
  assert_int_equal(rig_control(r, "status", "job", true), 1);
  json_t *v = json_parse_object(r->said.data, r->said.len, NULL);
  assert_non_null(v);
  assert_non_null(strstr(text_of(v, "text"), "the answer is larger than 19 MiB: ask for one job"));
  json_decref(v);
  assert_int_equal(rig_control(r, "status", "job", false), 0);
  assert_int_equal(rig_control(r, "jobs", "", false), 0);
}

/* /status of a user, in pieces of so many bytes or a little more. */
static enum core_status_piece status_of(struct rig *r, int64_t uid, const char *job, int64_t owner, size_t budget,
                                        struct buf *out) {
  struct core_status *s = core_status_begin(r->core, uid, job, owner);
  enum core_status_piece piece;
  buf_clear(out);
  do piece = core_status_more(s, r->core, r->now_ms, r->wall_ms + r->now_ms, budget, out);
  while (piece == CORE_STATUS_MORE);
  core_status_end(s, r->core);
  return piece;
}

/* The same as `status --json`, without a question on a connection. */
RIG_TEST(test_status_of_a_user) {
  struct buf root = BUF_INIT, other = BUF_INIT;
  rig_open_running(r, n, 2);
  assert_int_equal(rig_control(r, "status", "", true), 0);
  assert_int_equal(status_of(r, 0, "", -1, 1 << 20, &root), CORE_STATUS_WHOLE);
  assert_non_null(strstr(buf_text(&root), "\"job\":\"job\""));
  assert_string_equal(buf_text(&root), buf_text(&r->said));
  for (size_t budget = 1; budget < 2000; budget += 97) {
    assert_int_equal(status_of(r, 0, "", -1, budget, &root), CORE_STATUS_WHOLE);
    assert_string_equal(buf_text(&root), buf_text(&r->said));
  }
  assert_int_equal(status_of(r, 4242, "", -1, 1 << 20, &other), CORE_STATUS_WHOLE);
  assert_ptr_equal(strstr(buf_text(&other), "{\"jobs\":[],\"drained\":[],\"wall_ms\":"), buf_text(&other));
  assert_int_equal(status_of(r, 0, "job", 1000, 1 << 20, &root), CORE_STATUS_WHOLE);
  assert_string_equal(buf_text(&root), buf_text(&r->said));
  assert_int_equal(status_of(r, 0, "job", 1001, 1 << 20, &root), CORE_STATUS_WHOLE);
  assert_string_equal(buf_text(&root), buf_text(&other));
  assert_int_equal(status_of(r, 0, "jo", -1, 1 << 20, &root), CORE_STATUS_WHOLE);
  assert_string_equal(buf_text(&root), buf_text(&other));
  buf_finish(&root);
  buf_finish(&other);
}

/* Between any two pieces a job ends and is forgotten, with the nodes of another. The text is JSON all the same. */
RIG_TEST(test_status_while_jobs_go) {
  for (int at = 0, last = 0; at <= last; at++) {
    struct buf text = BUF_INIT;
    struct err e = ERR_INIT;
    int pieces = 1;
    rig_open(r, 1);
    for (int i = 0; i < 4; i++) {
      node_init(r, &n[i], i);
      n[i].job = i < 2 ? "a" : "b";
    }
    nodes_join(r, n, 4);
    nodes_started(r, n, 4);
    struct core_status *s = core_status_begin(r->core, 0, "", -1);
    for (; core_status_more(s, r->core, r->now_ms, r->wall_ms, 1, &text) == CORE_STATUS_MORE; pieces++) {
      if (pieces != at + 1) continue;
      nodes_finished(r, n, 2);
      nodes_end_ack(r, n, 2);
      node_drop(r, &n[3]);
      rig_run(r, 601 * 1000);
    }
    core_status_end(s, r->core);
    if (at == 0) last = pieces - 1;
    json_t *v = json_parse_object(text.data, text.len, &e);
    if (!v) fail_msg("%s: %s", e.text, buf_text(&text));
    json_decref(v);
    buf_finish(&text);
  }
}

RIG_TEST(test_status_json) {
  struct msg m;
  rig_open_running(r, n, 2);
  msg_init(&m, MSG_PROGRESS);
  m.progress.incarnation = n[1].incarnation;
  m.progress.round = 1;
  m.progress.step = 12;
  m.progress.of = 500;
  m.progress.loss = 0.25;
  node_say(r, &n[1], &m);
  json_t *v = ask_json(r, "status", "job"), *members;
  const json_t *job = json_array_get(json_object_get(v, "jobs"), 0);
  assert_string_equal(text_of(job, "job"), "job");
  assert_string_equal(text_of(job, "state"), "running");
  assert_string_equal(text_of(job, "incarnation"), n[0].incarnation);
  assert_int_equal(json_integer_value(json_object_get(job, "world_size")), 2);
  members = json_object_get(job, "members");
  assert_int_equal(json_array_size(members), 2);
  const json_t *second = json_array_get(members, 1);
  assert_int_equal(json_integer_value(json_object_get(second, "first_rank")), 1);
  assert_string_equal(text_of(second, "host"), "n1");
  assert_string_equal(text_of(second, "state"), "running");
  assert_int_equal(json_integer_value(json_object_get(second, "step")), 12);
  assert_null(json_object_get(json_array_get(members, 0), "step"));
  json_decref(v);
}

RIG_TEST(test_status_json_names_the_missing) {
  rig_open_running(r, n, 2);
  node_drop(r, &n[1]);
  rig_run(r, JOB_GRACE_MS);
  node_stopped(r, &n[0]);
  rig_run(r, 300);
  json_t *v = ask_json(r, "status", "job");
  const json_t *waiting = json_object_get(json_array_get(json_object_get(v, "jobs"), 0), "waiting");
  assert_int_equal(json_integer_value(json_object_get(waiting, "here")), 1);
  const json_t *absent = json_array_get(json_object_get(waiting, "absent"), 0);
  assert_string_equal(text_of(absent, "hosts"), "n1");
  assert_string_equal(text_of(absent, "why"), "lost");
  assert_true(json_integer_value(json_object_get(absent, "ago_ms")) >= 300);
  json_decref(v);
}

/* In every state and place there is a word for it, and numbers that make sense. */
RIG_TEST(test_status_in_every_state) {
  static const char *const want[] = {"forming", "starting",   "running", "running", "stopping",
                                     "forming", "recovering", "ending",  "ended"};
  for (int i = 0; i < 9; i++) {
    rig_open(r, 1);
    for (int k = 0; k < 2; k++) node_init(r, &n[k], k);
    for (int k = 0; k < (i ? 2 : 1); k++) node_join(r, &n[k]);
    for (int k = 0; k < 2 && i >= 2; k++) node_started(r, &n[k]);
    if (i == 3) node_drop(r, &n[0]);
    if (i == 4 || i == 5) node_killed(r, &n[0], 9, 0);
    if (i == 5) {
      node_bye(r, &n[1]);
      node_stopped(r, &n[0]);
    }
    if (i == 6) rig_restart(r, true);
    for (int k = 0; k < 2 && i >= 7; k++) node_finished(r, &n[k]);
    for (int k = 0; k < 2 && i == 8; k++) node_end_ack(r, &n[k]);
    json_t *v = ask_json(r, "status", "job");
    assert_string_equal(text_of(json_array_get(json_object_get(v, "jobs"), 0), "state"), want[i]);
    json_decref(v);
    assert_int_equal(rig_control(r, "status", "job", false), 0);
    assert_said(r, want[i]);
    assert_null(strchr(buf_text(&r->said), '?'));
    if (i == 0) assert_said(r, "1 of 2 nodes");
    if (i == 0) assert_said(r, "  1 worker "); /* it has no rank yet */
    if (i == 2) assert_said(r, "2 nodes, 2 workers");
    if (i == 3) assert_said(r, "away");
    if (i == 5) assert_said(r, "round 1 ended: ");
    if (i == 8) assert_said(r, "ended 0 s ago");
    if (i >= 7) assert_said(r, "success with exit code 0");
  }
}

RIG_TEST(test_ranks_first_then_spares) {
  struct node spare;
  rig_open(r, 1);
  node_init(r, &n[0], 9); /* joins first, but is rank 1 */
  node_init(r, &n[1], 3);
  node_init(r, &spare, 0);
  nodes_join(r, n, 2);
  node_join(r, &spare);
  rig_control(r, "status", "", false);
  const char *a = rig_said(r, "n3 "), *b = rig_said(r, "n9 "), *c = rig_said(r, "n0 ");
  assert_true(a && b && c && a < b && b < c);
  assert_non_null(strstr(c, "spare"));
}

/* What peers call themselves reaches a person's terminal as text, never as control. */
RIG_TEST(test_hostile_names_are_escaped) {
  static const char nasty[] = "h\x1b[2J\n\r\x07\xc2\x9b"
                              "31m\"\\";
  rig_open(r, 1);
  r->job = "job\x1b]0;x\x07\n";
  for (int i = 0; i < 2; i++) {
    node_init(r, &n[i], i);
    snprintf(n[i].host, sizeof n[i].host, "%s%d", nasty, i);
    node_join(r, &n[i]);
    static const char *const verbs[] = {"status", "jobs"};
    for (int k = 0; k < 2; k++) {
      assert_int_equal(rig_control(r, verbs[k], r->job, false), 0);
      for (size_t at = 0; at < r->said.len; at++)
        assert_true(r->said.data[at] == '\n' || (unsigned char)r->said.data[at] >= 0x20);
      assert_null(strstr(r->said.data, "\xc2\x9b"));
      assert_non_null(strstr(r->said.data, "\\x1b"));
    }
    const struct msg *w = rig_last(r, n[0].conn, MSG_WAITING);
    for (const char *p = w->waiting.text; *p; p++) assert_true((unsigned char)*p >= 0x20);
  }
  json_t *v = ask_json(r, "status", r->job); /* for programs they are as they are */
  const json_t *job = json_array_get(json_object_get(v, "jobs"), 0);
  assert_string_equal(text_of(job, "job"), r->job);
  assert_string_equal(text_of(json_array_get(json_object_get(job, "members"), 0), "host"), n[0].host);
  json_decref(v);
  rig_control(r, "stop", "no\x1bsuch", false);
  assert_null(strchr(buf_text(&r->said), '\x1b'));
  rig_control(r, "ver\x1b", "", false);
  assert_null(strchr(buf_text(&r->said), '\x1b'));
  rig_control(r, "stop", r->job, false);
  assert_null(strchr(buf_text(&r->said), '\x1b'));
}

RIG_TEST(test_stop_says_what_it_did) {
  rig_open_running(r, n, 2);
  assert_int_equal(rig_control(r, "stop", "job", false), 0);
  assert_said(r, "job job is being stopped");
  assert_int_not_equal(rig_control(r, "stop", "", false), 0); /* never all of them */
}

/* Who may what. ---------------------------------------------------------------------------------------------------- */

static int ask_as(struct rig *r, int64_t uid, const char *verb, const char *job) {
  return rig_ask(r, &(struct control){.verb = verb, .job = job, .rank = 0}, uid);
}

RIG_TEST(test_users_see_their_own_jobs_alone) {
  static const char *const verbs[] = {"status", "stop", "kill-worker"};
  rig_open_running(r, n, 2); /* of uid 1000 */
  assert_int_equal(ask_as(r, 2000, "status", ""), 0);
  assert_string_equal(buf_text(&r->said), "no jobs of yours (uid 2000)\n");
  for (int i = 0; i < 3; i++) {
    assert_int_equal(ask_as(r, 2000, verbs[i], "job"), 1);
    assert_string_equal(buf_text(&r->said), "no job of yours has the id job; you have none here\n");
  }
  assert_int_equal(rig_ask(r, &(struct control){.verb = "status", .json = true}, 2000), 0);
  assert_ptr_equal(rig_said(r, "{\"jobs\":[],\"drained\":[],\"wall_ms\":"), buf_text(&r->said));
  assert_int_equal(ask_as(r, 1000, "jobs", ""), 0);
  assert_said(r, "job: running");
  assert_int_equal(ask_as(r, 1000, "kill-worker", "job"), 0);
  assert_int_equal(ask_as(r, 1000, "stop", "job"), 0);
  assert_string_equal(rig_state(r, "job"), "stopping");
}

/* Another user's large answers must not keep all jobs waiting. */
RIG_TEST(test_pace_of_answers) {
  int told[3] = {0};
  rig_open_running(r, n, 2); /* of uid 1000 */
  for (int i = 0; i < 3000; i++) {
    told[0] += ask_as(r, 1000, "status", "job") == 0;
    told[1] += ask_as(r, 0, "status", "job") == 0;
    if (i < 900) told[2] += ask_as(r, 2000, "jobs", "") == 0;
  }
  assert_in_range(told[0], CORE_ANSWERS_AHEAD_MS, CORE_ANSWERS_AHEAD_MS + 1);
  assert_int_equal(told[1], 3000);
  assert_int_equal(told[2], 900);
  assert_int_equal(ask_as(r, 1000, "status", "job"), EXIT_CODE_REFUSED);
  assert_said(r, "uid 1000 has asked for too much in the last seconds: ask again in 1 s");
  r->now_ms += 3000;
  assert_int_equal(ask_as(r, 1000, "status", "job"), 0);
}

/* Where peers have no user, HELLO is all there is: who says nothing leaves the job to root, and nobody makes it his. */
RIG_TEST(test_whose_job_it_is) {
  rig_open_for(r, 1, 1);
  nodes_init(r, n, 2);
  n[0].uid = -1;
  node_join(r, &n[0]);
  assert_int_equal(ask_as(r, -1, "status", "job"), 1);
  node_join(r, &n[1]); /* of uid 1000 */
  assert_string_not_equal(n[0].incarnation, n[1].incarnation);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(ask_as(r, 1000, "status", "job"), 0);
    assert_null(rig_said(r, "n0"));
    assert_int_equal(ask_as(r, 2000, "status", "job"), 1);
    if (i == 0) rig_restart(r, true); /* the state file knows it */
  }
}

/* What a verdict says about the operator: the kernel's uid, rdzvctl's name for it unless it could mislead, the host. */
RIG_TEST(test_who_and_from_where) {
  static const struct {
    int64_t uid;
    const char *user, *host, *says;
  } cases[] = {
      {0, "", "head1", "rdzvctl stop by root from head1"},
      {0, "ada", "head1", "rdzvctl stop by root from head1"},
      {1000, "ada", "head1", "rdzvctl stop by ada (uid 1000) from head1"},
      {1000, "LAB\\ada.l-1@lab", "head1", "rdzvctl stop by LAB\\ada.l-1@lab (uid 1000) from head1"},
      {1000, "", "head1", "rdzvctl stop by uid 1000 from head1"},
      {1000, "root", "head1", "rdzvctl stop by uid 1000 from head1"},
      {1000, "root from head1", "head1", "rdzvctl stop by uid 1000 from head1"},
      {1000, "x\x1b", "", "rdzvctl stop by uid 1000"},
      {1000, "ada", NULL, "rdzvctl stop by ada (uid 1000)"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rig_open_on(r, 1, cases[i].host);
    nodes_init(r, n, 2);
    for (int k = 0; k < 2; k++) n[k].uid = 1000;
    for (int k = 0; k < 2; k++) node_join(r, &n[k]);
    nodes_started(r, n, 2);
    rig_ask(r, &(struct control){.verb = "kill-worker", .job = "job", .user = cases[i].user}, cases[i].uid);
    assert_string_equal(rig_last(r, n[0].conn, MSG_KILL)->kill.by, cases[i].says + strlen("rdzvctl stop by "));
    rig_ask(r, &(struct control){.verb = "stop", .job = "job", .user = cases[i].user}, cases[i].uid);
    nodes_stopped(r, n, 2);
    for (int k = 0; k < 2; k++) assert_string_equal(rig_end(r, &n[k])->verdict.text, cases[i].says);
    rig_ask(r, &(struct control){.verb = "status", .job = "job"}, 0);
    assert_said(r, cases[i].says);
  }
}

/* kill-worker. ----------------------------------------------------------------------------------------------------- */

static int kill_rank(struct rig *r, const char *job, int64_t rank, int64_t signal) {
  return rig_ask(r, &(struct control){.verb = "kill-worker", .job = job, .rank = rank, .signal = signal}, 0);
}

RIG_TEST(test_kill_worker) {
  rig_open(r, 1);
  for (int i = 0; i < 2; i++) {
    node_init(r, &n[i], i);
    n[i].workers = 4;
    node_join(r, &n[i]);
  }
  nodes_started(r, n, 2);
  assert_int_equal(kill_rank(r, "job", 6, 0), 0);
  assert_string_equal(buf_text(&r->said), "SIGKILL was sent to rank 6 of job job (local rank 2 on n1, round 1)\n"
                                          "if it dies, its round ends and restart 1 of 3 is charged\n");
  const struct msg *m = rig_last(r, n[1].conn, MSG_KILL);
  assert_non_null(m);
  assert_int_equal(m->kill.local_rank, 2);
  assert_int_equal(m->kill.signal, 9);
  assert_int_equal(m->kill.round, 1);
  assert_null(rig_last(r, n[0].conn, MSG_KILL));
  assert_int_equal(kill_rank(r, "job", 0, 10), 0);
  assert_int_equal(rig_last(r, n[0].conn, MSG_KILL)->kill.signal, 10);
  assert_int_equal(kill_rank(r, "job", 8, 0), 1);
  assert_string_equal(buf_text(&r->said), "job job has no rank 8; its ranks are 0 to 7\n");
  assert_int_equal(kill_rank(r, "job", -1, 0), 1);
  assert_int_equal(kill_rank(r, "nope", 0, 0), 1);
  assert_string_equal(buf_text(&r->said), "no job has the id nope; there are: job\n");
  node_finished(r, &n[1]);
  assert_int_equal(kill_rank(r, "job", 7, 0), 1);
  assert_said(r, "the worker of rank 7 is not running, or its node is not connected");
  node_exited(r, &n[0], 3, 0);
  assert_int_equal(kill_rank(r, "job", 0, 0), 1);
  assert_string_equal(buf_text(&r->said), "job job has no workers now: it is stopping\n");
  node_stopped(r, &n[0]);
  assert_int_equal(kill_rank(r, "job", 0, 0), 1);
  assert_said(r, "job job is over: failed with exit code 3, 0 s ago");
}

/* Verdicts. -------------------------------------------------------------------------------------------------------- */

static void fail_round(struct rig *r, struct node *n, int code) {
  int64_t round = n[0].round;
  nodes_started(r, n, 2);
  node_exited(r, &n[0], code, 0);
  nodes_stopped(r, n, 2);
  for (int k = 0; k < 10 && n[0].round == round; k++) { /* the delay after short rounds */
    rig_run(r, 3500);
    nodes_heartbeat(r, n, 2);
  }
}

RIG_TEST(test_last_verdicts_are_kept) {
  rig_open(r, 1);
  r->settings.max_restarts = 100;
  rig_joined(r, n, 2);
  for (int code = 21; code <= 38; code++) fail_round(r, n, code);
  json_t *v = ask_json(r, "status", "job");
  const json_t *list = json_object_get(json_array_get(json_object_get(v, "jobs"), 0), "verdicts");
  assert_int_equal(json_array_size(list), 16);
  for (size_t i = 0; i < 16; i++) {
    const json_t *past = json_array_get(list, i), *verdict = json_object_get(past, "verdict");
    assert_int_equal(json_integer_value(json_object_get(past, "round")), 18 - i);
    assert_int_equal(json_integer_value(json_object_get(verdict, "code")), 38 - i);
    assert_true(json_is_true(json_object_get(past, "charged")));
    assert_true(json_integer_value(json_object_get(past, "wall_ms")) > 1700000000000);
  }
  json_decref(v);
  rig_control(r, "status", "job", false);
  assert_said(r, "  round 18 ended: rank 0 on n0 exited with code 38 (");
  assert_said(r, "    and round 17 ended: rank 0 on n0 exited with code 37 (");
}

RIG_TEST(test_final_verdict_outlives_the_daemon) {
  rig_open(r, 1);
  r->settings.max_restarts = 0;
  rig_running(r, n, 2);
  node_killed(r, &n[1], 9, 0);
  nodes_stopped(r, n, 2);
  rig_run(r, 3000);
  rig_restart(r, true);
  rig_control(r, "status", "job", false);
  assert_said(r, "failed with exit code 137");
  assert_said(r, "round 1 ended: rank 1 on n1 was killed by SIGKILL (signal 9) (3 s ago)\n");
}

RIG_TEST(test_policy_is_shown) {
  rig_open(r, 1);
  r->settings.after_finish = AFTER_FINISH_RESTART;
  r->settings.exclude_after = 5;
  r->settings.repeat_limit = 4;
  r->settings.hang_timeout_ms = 90000;
  rig_running(r, n, 2);
  rig_control(r, "status", "job", false);
  assert_said(
      r,
      "  policy: --max-restarts 3, refunded after a round of 10 min or with progress, but not after a "
      "repeat; --repeat-limit 4; rounds under 30 s delay the next by 0, 1, 2, 4 .. 30 s; --after-finish restart, --exclude-after 5, "
      "--hang-timeout 90 s\n");
  json_t *v = ask_json(r, "status", "job");
  const json_t *settings = json_object_get(json_array_get(json_object_get(v, "jobs"), 0), "settings");
  assert_string_equal(text_of(settings, "after_finish"), "restart");
  assert_int_equal(json_integer_value(json_object_get(settings, "exclude_after")), 5);
  json_decref(v);
}

RIG_TEST(test_policy_that_nobody_chose) {
  rig_open(r, 1);
  r->settings.max_restarts = 0; /* then nothing is given back, and nothing waits */
  rig_running(r, n, 2);
  rig_control(r, "status", "job", false);
  assert_said(r, "  policy: --max-restarts 0; --after-finish fail\n");
}

RIG_TEST(test_answers_in_json) {
  rig_open_running(r, n, 2);
  static const struct control asked[] = {{.verb = "stop", .job = "nope", .json = true},
                                         {.verb = "drain", .host = "n1", .json = true},
                                         {.verb = "drain", .host = "n1", .force = true, .json = true},
                                         {.verb = "undrain", .host = "n1", .json = true},
                                         {.verb = "explode", .json = true}};
  for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
    int code = rig_ask(r, &asked[i], 0);
    json_t *v = json_parse_object(r->said.data, r->said.len, NULL);
    assert_non_null(v);
    assert_int_equal(json_integer_value(json_object_get(v, "code")), code);
    assert_true(json_is_true(json_object_get(v, "ok")) == (code == 0));
    assert_true(strlen(text_of(v, "text")) > 10);
    if (i == 2) assert_int_equal(json_array_size(json_object_get(v, "jobs")), 1);
    json_decref(v);
  }
}
