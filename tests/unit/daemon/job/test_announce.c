/* SPDX-License-Identifier: Apache-2.0 */
/* announce: which events a job has, in which order, and to which agent they go. */

#include "daemon/job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/events/event.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/mem.h"
#include "tests/rig/core.h"
#include "tests/rig/unit.h"

/* The names of the events that came to the node since rig_forget, without "rdzv.", each with a blank behind it. */
static void events_of(const struct rig *r, const struct node *n, struct buf *out) {
  buf_clear(out);
  for (size_t i = 0; i < r->n_sent; i++) {
    const struct msg *m = &r->sent[i].msg;
    if (r->sent[i].conn != n->conn || m->type != MSG_EVENT) continue;
    assert_true(event_line_is_sound(m->raw, m->raw_len));
    assert_memory_equal(m->raw, "{\"name\":\"", 9);
    assert_memory_equal(m->raw + 9, m->event_msg.name, strlen(m->event_msg.name));
    buf_printf(out, "%s ", m->event_msg.name + strlen("rdzv."));
  }
}

static void expect(const struct rig *r, const struct node *n, const char *want) {
  struct buf got = BUF_INIT;
  events_of(r, n, &got);
  assert_string_equal(buf_text(&got), want);
  buf_finish(&got);
}

/* A field of the last event of that name, as JSON; "" if it has none. The caller frees it. */
static char *field_of(const struct rig *r, const char *name, const char *key) {
  struct buf out = BUF_INIT;
  for (size_t i = r->n_sent; i-- > 0 && !out.len;) {
    const struct msg *m = &r->sent[i].msg;
    struct err e = ERR_INIT;
    if (m->type != MSG_EVENT || strcmp(m->event_msg.name, name) != 0) continue;
    json_t *v = json_parse_object(m->raw, m->raw_len, &e);
    json_t *field = json_object_get(json_object_get(v, "metadata"), key);
    if (field) json_print(&out, field);
    json_decref(v);
    break;
  }
  return out.len ? buf_steal(&out) : xstrdup("");
}

static void expect_field(const struct rig *r, const char *name, const char *key, const char *want) {
  char *got = field_of(r, name, key);
  if (strcmp(got, want) != 0) fail_msg("%s of %s is %s, not %s", key, name, got, want);
  free(got);
}

static void open_watched(struct rig *r, struct node *nodes, size_t n) {
  rig_open_for(r, (int64_t)n, (int64_t)n);
  nodes_init(r, nodes, n);
  for (size_t i = 0; i < n; i++) nodes[i].wants_events = true;
}

/* Its round runs, and nothing that was sent until then is kept. */
static void open_running(struct rig *r, struct node *nodes, size_t n) {
  open_watched(r, nodes, n);
  nodes_join(r, nodes, n);
  nodes_started(r, nodes, n);
  rig_forget(r);
}

RIG_TEST(test_a_whole_job) {
  open_watched(r, n, 2);
  nodes_join(r, n, 2);
  expect(r, &n[0], "node.joined node.joined round.sealed ");
  expect_field(r, "rdzv.round.sealed", "hosts", "\"n[0-1]\"");
  expect_field(r, "rdzv.round.sealed", "group_world_size", "2");
  expect_field(r, "rdzv.node.joined", "nodes", "2");
  rig_forget(r);
  rig_run(r, 250);
  nodes_started(r, n, 2);
  expect(r, &n[0], "round.started ");
  expect_field(r, "rdzv.round.started", "duration_ms", "250");
  rig_forget(r);
  node_exited(r, &n[1], 3, 0);
  nodes_stopped(r, n, 2);
  expect(r, &n[0], "round.failed round.sealed ");
  expect_field(r, "rdzv.round.failed", "hostname", "\"n1\"");
  expect_field(r, "rdzv.round.failed", "exit_code", "3");
  expect_field(r, "rdzv.round.failed", "charged", "true");
  expect_field(r, "rdzv.round.failed", "agent_restarts", "1");
  rig_forget(r);
  rig_run(r, 2000);
  nodes_started(r, n, 2);
  expect(r, &n[0], "round.restarted ");
  expect_field(r, "rdzv.round.restarted", "duration_ms", "2000");
  rig_forget(r);
  nodes_finished(r, n, 2);
  expect(r, &n[0], "job.ended ");
  expect_field(r, "rdzv.job.ended", "state", "\"SUCCEEDED\"");
  expect_field(r, "rdzv.job.ended", "total_run_time", "2");
  expect_field(r, "rdzv.job.ended", "message", "\"job job is done: 1 restart, 2.2 s\"");
  expect_field(r, "rdzv.job.ended", "goodput_total", "2.25"); /* the same as in other places */
  expect_field(r, "rdzv.job.ended", "goodput_starting", "2.25");
  expect_field(r, "rdzv.job.ended", "goodput_useful", "0.0");
  expect(r, &n[1], ""); /* one agent writes them */
  assert_int_equal(r->events.len, 0);
}

/* END is behind `ended`, or the agent would be gone. */
RIG_TEST(test_the_order_at_the_end) {
  open_watched(r, n, 1);
  nodes_join(r, n, 1);
  nodes_started(r, n, 1);
  rig_forget(r);
  nodes_finished(r, n, 1);
  size_t ended = SIZE_MAX, end = SIZE_MAX;
  for (size_t i = 0; i < r->n_sent; i++) {
    if (r->sent[i].msg.type == MSG_EVENT) ended = i;
    if (r->sent[i].msg.type == MSG_END) end = i;
  }
  assert_true(ended < end && end != SIZE_MAX);
}

RIG_TEST(test_nobody_asked) {
  rig_open_running(r, n, 2);
  node_exited(r, &n[1], 3, 0);
  for (size_t i = 0; i < r->n_sent; i++) assert_int_not_equal(r->sent[i].msg.type, MSG_EVENT);
  assert_int_equal(r->events.len, 0);
}

RIG_TEST(test_the_daemons_own) {
  rig_open_with(r, &(struct core_config){.seed = 1, .host = "d0", .events = true});
  nodes_init(r, n, 2);
  nodes_join(r, n, 2);
  nodes_started(r, n, 2);
  assert_non_null(strstr(buf_text(&r->events), "\"rdzv.round.started\""));
  assert_null(rig_last(r, n[0].conn, MSG_EVENT));
}

/* While the writer is away events wait for it; if it is lost another one takes them. */
RIG_TEST(test_the_writer_is_away) {
  open_running(r, n, 2);
  node_drop(r, &n[0]);
  node_progress(r, &n[1], 7);
  expect(r, &n[1], "");
  node_back(r, &n[0], PHASE_RUNNING);
  expect(r, &n[0], "round.first_step job.progress ");
  rig_forget(r);
  node_drop(r, &n[0]);
  node_exited(r, &n[1], 1, 0);
  node_death_report(r, &n[0]);
  nodes_stopped(r, &n[1], 1);
  expect(r, &n[1], "node.lost round.failed ");
}

RIG_TEST(test_too_much_for_an_absent_writer) {
  rig_open_for(r, 2, 3);
  nodes_init(r, n, 3);
  n[0].wants_events = true;
  nodes_join(r, n, 2);
  node_drop(r, &n[0]);
  n[2].settings.max_restarts = 9;
  for (int i = 0; i < 70; i++) node_join(r, &n[2]); /* 64 are kept */
  rig_forget(r);
  node_join(r, &n[0]);
  assert_int_equal(rig_count(r, n[0].conn, MSG_EVENT), 65);
  expect_field(r, "rdzv.events.dropped", "dropped", "6");
}

RIG_TEST(test_progress_is_rationed) {
  open_watched(r, n, 1);
  nodes_join(r, n, 1);
  nodes_started(r, n, 1);
  rig_forget(r);
  node_progress(r, &n[0], -1); /* a worker has said where it resumed, and none has made a step */
  expect(r, &n[0], "");
  for (int i = 0; i < 30; i++) {
    node_progress(r, &n[0], i);
    rig_run(r, 100);
  }
  expect(r, &n[0], "round.first_step job.progress job.progress job.progress ");
  expect_field(r, "rdzv.job.progress", "step", "20");
}

static void save(struct rig *r, struct node *n, int64_t step, int64_t saved) {
  struct msg m;
  msg_init(&m, MSG_PROGRESS);
  m.progress.incarnation = n->incarnation;
  m.progress.round = n->round;
  m.progress.step = step;
  m.progress.saved = saved;
  node_say(r, n, &m);
}

/* When all nodes have it; what was not told yet, at the end of the round. */
RIG_TEST(test_checkpoints) {
  open_running(r, n, 2);
  save(r, &n[1], 10, 4);
  save(r, &n[0], 10, 9);
  rig_run(r, 1000);
  save(r, &n[0], 11, 9);
  expect(r, &n[0], "round.first_step job.saved job.progress job.progress ");
  expect_field(r, "rdzv.job.saved", "step", "4");
  save(r, &n[1], 11, 9);
  rig_forget(r);
  node_exited(r, &n[1], 3, 0);
  expect(r, &n[0], "job.saved ");
  expect_field(r, "rdzv.job.saved", "step", "9");
  nodes_stopped(r, n, 2);
  nodes_started(r, n, 2);
  rig_forget(r);
  rig_run(r, 1000);
  save(r, &n[0], 7, 6); /* an earlier one, of a later round */
  expect(r, &n[0], "round.first_step job.saved job.progress ");
}

RIG_TEST(test_missing_nodes) {
  open_watched(r, n, 2);
  nodes_join(r, n, 1);
  rig_forget(r);
  rig_live(r, 9900);
  expect(r, &n[0], "");
  rig_live(r, 200);
  expect(r, &n[0], "job.waiting ");
  expect_field(r, "rdzv.job.waiting", "nodes", "1");
  expect_field(r, "rdzv.job.waiting", "min_nodes", "2");
  rig_live(r, 60000); /* at 10, 20, 40 s, and then at 80 */
  expect(r, &n[0], "job.waiting job.waiting job.waiting ");
}

RIG_TEST(test_planned_ends) {
  open_running(r, n, 2);
  assert_int_equal(rig_control(r, "stop", "job", false), EXIT_CODE_OK);
  nodes_stopped(r, n, 2);
  expect(r, &n[0], "round.stopped job.ended ");
  expect_field(r, "rdzv.round.stopped", "cause", "\"operator\"");
  expect_field(r, "rdzv.job.ended", "state", "\"STOPPED\"");
}

RIG_TEST(test_a_node_leaves) {
  struct verdict what;
  open_running(r, n, 2);
  verdict_init(&what);
  what.cause = CAUSE_NODE_LEAVING;
  what.text = "SIGTERM asked its agent to leave";
  node_report(r, &n[1], REPORT_LEAVING, &what, 0);
  expect(r, &n[0], "node.left ");
  expect_field(r, "rdzv.node.left", "message", "\"node n1 leaves job job: SIGTERM asked its agent to leave\"");
  node_stopped(r, &n[1]);
  node_bye(r, &n[1]);
  node_stopped(r, &n[0]);
  expect(r, &n[0], "node.left round.stopped "); /* and BYE says it no second time */
}

RIG_TEST(test_a_hang) {
  struct verdict what;
  open_running(r, n, 2);
  verdict_init(&what);
  what.cause = CAUSE_WORKER_HUNG;
  what.rank = what.local_rank = 0;
  what.idle_ms = 90000;
  node_report(r, &n[0], REPORT_FAILED, &what, 0);
  what.rank = 1;
  node_report(r, &n[1], REPORT_FAILED, &what, 0);
  expect(r, &n[0], "worker.hung ");
  expect_field(r, "rdzv.worker.hung", "duration_ms", "90000");
  expect_field(r, "rdzv.worker.hung", "global_rank", "0");
}

RIG_TEST(test_drains) {
  rig_open_for(r, 2, 3);
  nodes_init(r, n, 3);
  n[0].wants_events = true;
  nodes_join(r, n, 3);
  nodes_started(r, n, 3);
  rig_forget(r);
  assert_int_equal(rig_ask(r, &(struct control){.verb = "drain", .job = "", .host = "n2", .user = ""}, 0), 0);
  expect(r, &n[0], "node.drained ");
  assert_int_equal(rig_ask(r, &(struct control){.verb = "undrain", .job = "", .host = "n2", .user = ""}, 0), 0);
  expect(r, &n[0], "node.drained node.undrained ");
}

RIG_TEST(test_a_daemon_comes_back) {
  rig_open_successors(r, 2, 2);
  nodes_init(r, n, 2);
  for (int i = 0; i < 2; i++) n[i].wants_events = true;
  nodes_join(r, n, 2);
  for (size_t i = 0; i < r->n_claims; i++) rig_answer_claim(r, i, CLAIM_WON, "");
  nodes_started(r, n, 2);
  rig_restart(r, true);
  nodes_back(r, n, 2, PHASE_RUNNING);
  expect(r, &n[0], "daemon.returned ");
}

RIG_TEST(test_a_daemon_takes_over) {
  open_watched(r, n, 2);
  nodes_join(r, n, 2);
  nodes_started(r, n, 2);
  rig_restart(r, false);
  nodes_back(r, n, 2, PHASE_RUNNING);
  expect(r, &n[0], "daemon.took_over ");
}

/* On local disks the file is with the agent that owns the daemon, even if another one was quicker. */
RIG_TEST(test_the_owners_agent_writes) {
  rig_open_successors(r, 3, 3);
  nodes_init(r, n, 3);
  for (int i = 0; i < 3; i++) n[i].wants_events = true;
  snprintf(n[1].host, sizeof n[1].host, "d0");
  node_join(r, &n[0]);
  expect(r, &n[0], "");
  node_join(r, &n[1]);
  expect(r, &n[1], "node.joined node.joined ");
  node_join(r, &n[2]);
  expect(r, &n[0], "");
}

RIG_TEST(test_a_refused_node) {
  open_watched(r, n, 2);
  nodes_join(r, n, 1);
  rig_forget(r);
  n[1].settings.max_restarts = 9;
  node_join(r, &n[1]);
  expect(r, &n[0], "node.refused ");
  expect_field(r, "rdzv.node.refused", "hostname", "\"n1\"");
}
