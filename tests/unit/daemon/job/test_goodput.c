/* SPDX-License-Identifier: Apache-2.0 */
/* core: what a job's time went to, as the life of the job shows it. */

#include "tests/rig/core.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "tests/rig/unit.h"

/* The first job, as status has it. The caller's. */
static json_t *job_of(struct rig *r) {
  assert_int_equal(rig_control(r, "status", r->job, true), 0);
  json_t *all = json_parse_object(r->said.data, r->said.len, NULL);
  assert_non_null(all);
  json_t *job = json_incref(json_array_get(json_object_get(all, "jobs"), 0));
  json_decref(all);
  return job;
}

static int64_t milliseconds(const json_t *goodput, const char *key) {
  return (int64_t)(json_real_value(json_object_get(goodput, key)) * 1000 + 0.5);
}

/* Another daemon knows the steps of earlier rounds as a line from the first one to the last one. */
enum { ESTIMATE_MS = 500 };

static void check_about(struct rig *r, const struct goodput *want, int64_t more_ms) {
  json_t *job = job_of(r);
  const json_t *g = json_object_get(job, "goodput");
  for (int b = 0; b < BUCKET_COUNT; b++) {
    const char *name = bucket_name((enum bucket)b);
    if (llabs(milliseconds(g, name) - goodput_ms(want, (enum bucket)b)) > more_ms)
      fail_msg("%s is %lld ms instead of %lld", name, (long long)milliseconds(g, name),
               (long long)goodput_ms(want, (enum bucket)b));
  }
  assert_int_equal(milliseconds(g, "total"), goodput_total_ms(want));
  json_decref(job);
}

static void check(struct rig *r, const struct goodput *want) {
  check_about(r, want, 0);
}

static void say_progress(struct rig *r, struct node *n, int64_t step, int64_t resumed, int64_t saved,
                         int64_t saving_ms) {
  struct msg m;
  msg_init(&m, MSG_PROGRESS);
  m.progress = (struct progress){.incarnation = n->incarnation,
                                 .round = n->round,
                                 .step = step,
                                 .loss = 0.5,
                                 .samples_per_second = 10,
                                 .resumed = resumed,
                                 .saved = saved,
                                 .saving_ms = saving_ms};
  node_say(r, n, &m);
}

/* Both nodes step together, once a second, in `n` seconds. */
static void work(struct rig *r, struct node *n, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; i++, rig_run(r, 1000))
    for (int k = 0; k < 2; k++) node_progress(r, &n[k], first + i);
}

/* n0 comes, 3 s later n1; all have STARTED 2 s later, and the first step comes 1 s later. */
static void begin(struct rig *r, struct node *n) {
  rig_open_for(r, 2, 2);
  r->settings.lease_ms = LEASE_MAX_MS;
  nodes_init(r, n, 2);
  node_join(r, &n[0]);
  rig_run(r, 3000);
  node_join(r, &n[1]);
  rig_run(r, 2000);
  nodes_started(r, n, 2);
  rig_run(r, 1000);
}

RIG_TEST(test_the_life_of_a_job) {
  begin(r, n);
  check(r, &(struct goodput){.waiting_ms = 3000, .starting_ms = 2000, .productive_ms = 1000});
  work(r, n, 1, 10);
  check(r, &(struct goodput){.waiting_ms = 3000, .starting_ms = 3000, .productive_ms = 10000});
  node_exited(r, &n[0], 1, 0);
  rig_run(r, 500);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_settled(r, &n[0])->goodput.stopping_ms, 500);
  assert_int_equal(n[0].goodput.rounds, 2);
  rig_run(r, 1500); /* START is out: the first restart is at once */
  nodes_started(r, n, 2);
  work(r, n, 6, 20); /* 6 .. 10, and most of a step, again */
  struct goodput want = {
      .waiting_ms = 3000, .starting_ms = 4500, .stopping_ms = 500, .lost_ms = 6000, .productive_ms = 24000};
  check(r, &want);
  nodes_finished(r, n, 2);
  const struct end *end = rig_end(r, &n[1]);
  assert_int_equal(end->goodput.productive_ms, 24000);
  assert_int_equal(end->goodput.lost_ms, 6000);
  assert_int_equal(end->goodput.waited_ms, 3000);
  assert_int_equal(end->goodput.startup_ms, 3000);
  assert_int_equal(end->goodput.rounds, 2);
  rig_run(r, 5000);
  check(r, &want);
  json_t *job = job_of(r);
  const json_t *history = json_object_get(job, "history"), *last;
  assert_true(json_array_size(history) > 20);
  last = json_array_get(history, json_array_size(history) - 1);
  assert_int_equal(json_integer_value(json_array_get(last, 1)), 25);
  const json_t *past = json_array_get(json_object_get(job, "verdicts"), 0);
  assert_int_equal(json_integer_value(json_object_get(past, "nodes")), 2);
  assert_int_equal(json_integer_value(json_object_get(past, "wall_ms")) -
                       json_integer_value(json_object_get(past, "began_wall_ms")),
                   2000 + 1000 + 10000 + 500);
  json_decref(job);
}

RIG_TEST(test_without_steps) {
  begin(r, n);
  rig_run(r, 10000);
  nodes_finished(r, n, 2);
  const struct goodput *g = &rig_end(r, &n[0])->goodput;
  assert_int_equal(g->productive_ms, 11000);
  assert_int_equal(g->starting_ms, 2000);
  assert_false(g->steps);
}

RIG_TEST(test_checkpoints_and_where_it_resumed) {
  begin(r, n);
  for (int64_t s = 1; s <= 10; s++, rig_run(r, 1000)) {
    say_progress(r, &n[0], s, 0, s - s % 4, s * 100); /* saves at 4 and 8 */
    say_progress(r, &n[1], s, -1, s - s % 4, s * 50);
  }
  struct goodput want = {.waiting_ms = 3000, .starting_ms = 3000, .productive_ms = 9000, .checkpoint_ms = 900};
  want.productive_ms = 10000 - want.checkpoint_ms; /* the first 100 ms were before the first step */
  check(r, &want);
  node_exited(r, &n[0], 1, 0);
  nodes_stopped(r, n, 2);
  nodes_started(r, n, 2);
  say_progress(r, &n[1], 9, -1, -1, 0);
  say_progress(r, &n[0], 9, 4, -1, 0); /* only one of its workers says it */
  json_t *job = job_of(r);
  int64_t lost = milliseconds(json_object_get(job, "goodput"), "lost");
  assert_int_equal(lost, 9100 - 3 * 900); /* step 4 was there 3 steps after the first one */
  json_decref(job);
  node_exited(r, &n[0], 1, 0);
  assert_int_equal(rig_control(r, "stop", r->job, false), 0);
  nodes_stopped(r, n, 2);
  assert_int_equal(rig_end(r, &n[0])->goodput.saved, 4);
}

/* Nobody will do the work behind the last checkpoint again. */
RIG_TEST(test_unsaved_work_of_a_job_that_fails) {
  rig_open_for(r, 2, 2);
  r->settings.max_restarts = 0;
  r->settings.lease_ms = LEASE_MAX_MS;
  rig_running(r, n, 2);
  for (int64_t s = 1; s <= 10; s++, rig_run(r, 1000))
    for (int k = 0; k < 2; k++) say_progress(r, &n[k], s, -1, s < 5 ? -1 : k ? 5 : 7, 0);
  node_exited(r, &n[0], 1, 0);
  nodes_stopped(r, n, 2);
  const struct goodput *g = &rig_end(r, &n[0])->goodput;
  assert_int_equal(g->saved, 5); /* what both have */
  assert_int_equal(g->productive_ms, 4000);
  assert_int_equal(g->lost_ms, 6000);
}

RIG_TEST(test_a_hang) {
  begin(r, n);
  work(r, n, 1, 10);
  rig_run(r, 20000);
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_WORKER_HUNG;
  v.rank = 0;
  v.idle_ms = 21000;
  node_report(r, &n[0], REPORT_FAILED, &v, 21000);
  rig_run(r, 1000);
  nodes_stopped(r, n, 2);
  const struct goodput *g = &rig_settled(r, &n[0])->goodput;
  assert_int_equal(g->lost_ms, 21000);
  assert_int_equal(g->productive_ms, 9000);
  assert_int_equal(g->stopping_ms, 1000);
}

static double number_of(const json_t *o, const char *key) {
  return json_number_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key) {
  const char *s = json_string_value(json_object_get(o, key));
  return s ? s : "";
}

/* A second for each step, with a speed. */
static void step_on(struct rig *r, struct node *n, int nodes, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; i++, rig_run(r, 1000))
    for (int k = 0; k < nodes; k++) say_progress(r, &n[k], first + i, -1, -1, 0);
}

/* All sleep after step 20, and nothing is declared: every view has the same numbers. */
RIG_TEST(test_a_job_that_stands_still) {
  begin(r, n);
  step_on(r, n, 2, 1, 20);
  json_t *job = job_of(r);
  const json_t *p = json_object_get(job, "progress");
  assert_string_equal(text_of(p, "judgement"), "up to date");
  assert_float_equal(number_of(p, "samples_per_second"), 20, 0.1);
  json_decref(job);
  rig_run(r, 79000); /* 80 s after the last step */
  struct goodput want = {.waiting_ms = 3000, .starting_ms = 3000, .productive_ms = 19000 + 1000, .lost_ms = 79000};
  check(r, &want);
  job = job_of(r);
  p = json_object_get(job, "progress");
  assert_string_equal(text_of(p, "judgement"), "stuck");
  assert_string_equal(text_of(p, "sentence"), "No node has made progress for 80 s");
  assert_int_equal(number_of(p, "samples_per_second"), 0);
  assert_null(json_object_get(p, "left_ms"));
  assert_float_equal(number_of(p, "step_ms"), 1000, 1);
  assert_float_equal(number_of(json_object_get(job, "goodput"), "stalled"), 79, 0.01);
  json_decref(job);
  assert_int_equal(rig_control(r, "status", r->job, false), 0);
  assert_said(r, "progress: stuck, step 20, last one 80 s ago, 0 samples/s\n");
  step_on(r, n, 2, 21, 10); /* it wakes up */
  want.productive_ms += 10000;
  check_about(r, &want, 2000); /* all nodes are looked at that often */
  nodes_finished(r, n, 2);
  const struct goodput *g = &rig_end(r, &n[0])->goodput;
  assert_in_range(g->lost_ms, 79000, 81000);
  assert_int_equal(g->stalled_ms, g->lost_ms);
}

/* One node stands still and the other goes on: that does not make the job a slow one, for which nothing is late. */
RIG_TEST(test_one_node_stands_still) {
  begin(r, n);
  step_on(r, n, 2, 1, 20);
  step_on(r, &n[1], 1, 21, 100);
  json_t *job = job_of(r);
  const json_t *p = json_object_get(job, "progress"), *members = json_object_get(job, "members");
  assert_string_equal(text_of(p, "judgement"), "stuck");
  assert_int_equal(number_of(p, "late"), 1);
  assert_float_equal(number_of(p, "samples_per_second"), 10, 0.1);
  assert_non_null(strstr(text_of(p, "sentence"), "1 of 2 nodes has made no progress for 101 s: "));
  assert_string_equal(text_of(json_array_get(members, 0), "judgement"), "stuck");
  assert_string_equal(text_of(json_array_get(members, 1), "judgement"), "up to date");
  assert_int_equal(milliseconds(json_object_get(job, "goodput"), "lost"), 100000);
  json_decref(job);
}

/* 10 steps, of which 5 to 10 are done again in round 2; then the daemon is gone for 4 s, twice. */
static void restarts(bool with_state) {
  struct rig r = {0};
  struct node n[2];
  begin(&r, n);
  work(&r, n, 1, 10);
  node_exited(&r, &n[0], 1, 0);
  nodes_stopped(&r, n, 2);
  rig_run(&r, 2000);
  nodes_started(&r, n, 2);
  struct goodput want = {.waiting_ms = 3000, .starting_ms = 5000, .lost_ms = 6000, .productive_ms = 4000};
  for (int k = 0; k < 2; k++) {
    work(&r, n, 6 + 3 * k, 3);
    r.now_ms += 4000;
    rig_restart(&r, with_state);
    nodes_back(&r, n, 2, PHASE_RUNNING);
    want.productive_ms += 7000;
    check_about(&r, &want, ESTIMATE_MS);
  }
  work(&r, n, 12, 1);
  want.productive_ms += 1000;
  check_about(&r, &want, ESTIMATE_MS);
  r.now_ms += 1000; /* while no daemon was there, a worker died, and all was stopped */
  node_drop(&r, &n[0]);
  rig_restart(&r, with_state);
  n[0].conn = n[1].conn = 0;
  node_exited(&r, &n[0], 1, 600);
  nodes_back(&r, n, 2, PHASE_STOPPING);
  want.productive_ms += 400;
  want.stopping_ms += 600;
  check_about(&r, &want, ESTIMATE_MS);
  nodes_stopped(&r, n, 2);
  assert_int_equal(n[0].goodput.rounds, 3);
  rig_run(&r, 3000);
  r.now_ms += 1000;
  rig_restart(&r, with_state);
  nodes_back(&r, n, 2, PHASE_STARTING);
  want.starting_ms += 4000;
  check_about(&r, &want, ESTIMATE_MS);
  rig_close(&r);
}

UNIT_TEST(test_the_daemon_is_restarted) {
  restarts(true);
}

UNIT_TEST(test_another_daemon_learns_it_from_the_nodes) {
  restarts(false);
}

/* Between rounds, and before the first one. */
RIG_TEST(test_the_daemon_is_restarted_while_nodes_are_missing) {
  for (int first = 0; first < 2; first++) {
    if (first) {
      rig_open_for(r, 2, 2);
      nodes_init(r, n, 2);
      node_join(r, &n[0]);
      n[0].goodput_ms = r->now_ms;
    } else {
      begin(r, n);
      node_bye(r, &n[1]);
      node_stopped(r, &n[0]);
    }
    rig_run(r, 7000);
    r->now_ms += 1000;
    rig_restart(r, false);
    node_back(r, &n[0], PHASE_NONE);
    rig_run(r, 12000);
    json_t *job = job_of(r);
    assert_int_equal(milliseconds(json_object_get(job, "goodput"), "waiting"), first ? 20000 : 23000);
    json_decref(job);
  }
}
