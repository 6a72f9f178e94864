/* SPDX-License-Identifier: Apache-2.0 */
/* core/metrics.c: the text that Prometheus reads, and whose jobs are in it. */

#include "daemon/core/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "common/mem.h"
#include "tests/rig/core.h"
#include "tests/rig/unit.h"

enum { ROOT = 0, ADA = 1000, EVE = 1001 };

static const struct process_facts process = {
    .cpu_s = 1.25, .started_wall_s = 1.7e9, .resident_bytes = 4096, .virtual_bytes = -1, .open_fds = 7, .max_fds = 9};

static struct rig rig;
static struct buf text;

static int open_rig(void **state) {
  rig_open(&rig, 1);
  return 0;
}

static int close_rig(void **state) {
  rig_close(&rig);
  buf_finish(&text);
  return 0;
}

#define METRICS_TEST(name) UNIT_TEST_WITH(name, open_rig, close_rig)

static void scrape(int64_t uid) {
  buf_clear(&text);
  metrics_put(rig.core, uid, &process, rig.now_ms, &text);
}

static bool has(const char *part) {
  return strstr(buf_text(&text), part) != NULL;
}

static void expect(const char *part) {
  if (!has(part)) fail_msg("not in the text: %s\n%s", part, buf_text(&text));
}

static void expect_not(const char *part) {
  if (has(part)) fail_msg("in the text: %s\n%s", part, buf_text(&text));
}

/* A line that begins so, and its value. */
static double value_of(const char *series) {
  const char *at = strstr(buf_text(&text), series);
  if (!at) fail_msg("not in the text: %s\n%s", series, buf_text(&text));
  return strtod(at + strlen(series), NULL);
}

static int by_text(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* No series comes twice, and those of a metric stand together behind its HELP and TYPE. */
static void check_format(void) {
  char *copy = xstrdup(buf_text(&text)), *save = NULL, **seen = NULL, metric[128] = "", histogram[160] = "";
  size_t n = 0;
  for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    if (sscanf(line, "# HELP %127s", metric) == 1) {
      snprintf(histogram, sizeof histogram, "%s_", metric);
      assert_true(strstr(line, metric)[strlen(metric)] == ' ');
    } else if (line[0] == '#') {
      assert_true(strncmp(line + strlen("# TYPE "), metric, strlen(metric)) == 0);
    } else {
      size_t len = strlen(metric);
      bool plain = !strncmp(line, metric, len) && (line[len] == '{' || line[len] == ' ');
      if (!plain && strncmp(line, histogram, strlen(histogram)) != 0) fail_msg("%s stands behind %s", line, metric);
      char *end = strrchr(line, ' ');
      assert_non_null(end);
      *end = '\0';
      seen = xrealloc(seen, (n + 1) * sizeof *seen);
      seen[n++] = line;
    }
  }
  qsort(seen, n, sizeof *seen, by_text);
  for (size_t i = 1; i < n; i++)
    if (!strcmp(seen[i - 1], seen[i])) fail_msg("twice: %s", seen[i]);
  free(seen);
  free(copy);
}

static void node_of(struct node *n, int i, const char *job, int64_t uid) {
  node_init(&rig, n, i);
  n->job = job;
  n->key_uid = n->uid = uid;
}

/* Nodes 0 and 1 are of Ada's job, 2 and 3 of Eve's with the same id. */
static void open_two(struct node n[4]) {
  for (int i = 0; i < 4; i++) node_of(&n[i], i, "train", i < 2 ? ADA : EVE);
  nodes_join(&rig, n, 4);
  nodes_started(&rig, n, 4);
}

METRICS_TEST(test_a_job) {
  struct node n[4];
  open_two(n);
  node_progress(&rig, &n[0], 7);
  node_progress(&rig, &n[1], 5);
  rig_live(&rig, 2000);
  scrape(ROOT);
  check_format();
  char info[256];
  snprintf(info, sizeof info,
           "rdzv_job_info{job=\"train\",uid=\"1000\",incarnation=\"%s\",min_nodes=\"2\",max_nodes=\"2\","
           "max_restarts=\"3\"} 1\n",
           n[0].incarnation);
  expect(info);
  expect("# TYPE rdzv_job_state gauge\nrdzv_job_state{job=\"train\",uid=\"1000\",state=\"running\"} 1\n"
         "rdzv_job_state{job=\"train\",uid=\"1001\",state=\"running\"} 1\n");
  expect("rdzv_round{job=\"train\",uid=\"1000\"} 1\n");
  expect("rdzv_nodes{job=\"train\",uid=\"1000\",state=\"running\"} 2\n");
  expect("rdzv_restarts_total{job=\"train\",uid=\"1000\"} 0\n");
  expect("# TYPE rdzv_step gauge\nrdzv_step{job=\"train\",uid=\"1000\"} 5\n#");
  assert_true(value_of("rdzv_progress_age_seconds{job=\"train\",uid=\"1000\"} ") >= 2);
  expect_not("rdzv_failures_total{");
  expect("process_cpu_seconds_total 1.25\n");
  expect("process_start_time_seconds 1700000000\n");
  expect("process_open_fds 7\n");
  expect_not("process_virtual_memory_bytes");
}

METRICS_TEST(test_a_failure) {
  struct node n[2];
  for (int i = 0; i < 2; i++) node_of(&n[i], i, "train", ADA);
  nodes_join(&rig, n, 2);
  nodes_started(&rig, n, 2);
  rig_live(&rig, 40000);
  node_exited(&rig, &n[0], 3, 1500); /* it happened before, and it takes 700 ms to stop */
  scrape(ADA);
  expect("state=\"stopping\"} 1\n");
  expect("rdzv_nodes{job=\"train\",uid=\"1000\",state=\"stopping\"} 2\n");
  rig_run(&rig, 700);
  nodes_stopped(&rig, n, 2);
  nodes_started(&rig, n, 2);
  scrape(ROOT);
  check_format();
  expect("rdzv_failures_total{job=\"train\",uid=\"1000\",cause=\"worker-exit\"} 1\n");
  expect("rdzv_restarts_total{job=\"train\",uid=\"1000\"} 1\n");
  expect("rdzv_round{job=\"train\",uid=\"1000\"} 2\n");
  expect("rdzv_recovery_seconds_bucket{phase=\"detect\",le=\"1\"} 0\n"
         "rdzv_recovery_seconds_bucket{phase=\"detect\",le=\"2\"} 1\n");
  expect("rdzv_recovery_seconds_bucket{phase=\"stop\",le=\"+Inf\"} 1\nrdzv_recovery_seconds_sum{phase=\"stop\"} 0.700\n"
         "rdzv_recovery_seconds_count{phase=\"stop\"} 1\n");
  assert_true(value_of("rdzv_job_seconds_total{job=\"train\",uid=\"1000\",bucket=\"stopping\"} ") > 0.6);
}

/* Each asker sees what rdzvctl status shows; how long the recoveries of all take is for those who see all. */
METRICS_TEST(test_who_sees_what) {
  struct node n[4];
  open_two(n);
  scrape(ADA);
  expect("uid=\"1000\"");
  expect_not("uid=\"1001\"");
  expect_not("rdzv_recovery_seconds");
  expect("process_open_fds 7\n");
  scrape(4711);
  expect_not("uid=");
  scrape(-1);
  expect_not("uid=");
  scrape(ROOT);
  expect("uid=\"1000\"");
  expect("uid=\"1001\"");
  expect("rdzv_recovery_seconds_count");
}

METRICS_TEST(test_states_of_nodes) {
  struct node n[3];
  rig.settings.min_nodes = 2;
  rig.settings.max_nodes = 3;
  for (int i = 0; i < 3; i++) {
    node_of(&n[i], i, "train", ADA);
    n[i].expected_nodes = 3;
  }
  node_join(&rig, &n[0]);
  scrape(ADA);
  expect("rdzv_nodes{job=\"train\",uid=\"1000\",state=\"missing\"} 2\n"
         "rdzv_nodes{job=\"train\",uid=\"1000\",state=\"waiting\"} 1\n#");
  nodes_join(&rig, &n[1], 2);
  node_started(&rig, &n[0]);
  scrape(ADA);
  expect("rdzv_nodes{job=\"train\",uid=\"1000\",state=\"starting\"} 2\n"
         "rdzv_nodes{job=\"train\",uid=\"1000\",state=\"running\"} 1\n#");
  nodes_started(&rig, n, 3);
  node_finished(&rig, &n[1]);
  node_drop(&rig, &n[2]);
  scrape(ADA);
  expect("rdzv_nodes{job=\"train\",uid=\"1000\",state=\"running\"} 1\n"
         "rdzv_nodes{job=\"train\",uid=\"1000\",state=\"finished\"} 1\n"
         "rdzv_nodes{job=\"train\",uid=\"1000\",state=\"away\"} 1\n#");
}

METRICS_TEST(test_names_are_escaped) {
  struct node n;
  rig.settings.min_nodes = rig.settings.max_nodes = 1;
  node_of(&n, 0, "a\"b\\c\nd} 1\xc3\xa4", ADA);
  node_join(&rig, &n);
  scrape(ADA);
  expect("{job=\"a\\\"b\\\\c\\nd} 1\xc3\xa4\",uid=\"1000\"} ");
}

/* A job that has ended stays, until another one has its id. */
METRICS_TEST(test_a_job_that_has_ended) {
  struct node n[2], again[2];
  for (int i = 0; i < 2; i++) node_of(&n[i], i, "train", ADA);
  nodes_join(&rig, n, 2);
  nodes_started(&rig, n, 2);
  nodes_finished(&rig, n, 2);
  scrape(ADA);
  expect("state=\"ending\"} 1\n");
  expect("rdzv_nodes{job=\"train\",uid=\"1000\",state=\"ending\"} 2\n");
  nodes_end_ack(&rig, n, 2);
  scrape(ADA);
  expect("state=\"ended\"} 1\n");
  expect_not("rdzv_nodes{");
  rig_run(&rig, 1000);
  for (int i = 0; i < 2; i++) node_of(&again[i], i + 2, "train", ADA);
  nodes_join(&rig, again, 2);
  scrape(ADA);
  check_format();
  expect("state=\"starting\"} 1\n");
  expect_not("state=\"ended\"");
}

/* Prometheus takes a counter that goes back for one that began again, and would count an hour twice. */
METRICS_TEST(test_no_counter_goes_back) {
  static const char *const series = "rdzv_job_seconds_total{job=\"train\",uid=\"1000\",bucket=\"productive\"} ";
  static const char *const lost = "rdzv_job_seconds_total{job=\"train\",uid=\"1000\",bucket=\"lost\"} ";
  struct node n[2];
  for (int i = 0; i < 2; i++) node_of(&n[i], i, "train", ADA);
  nodes_join(&rig, n, 2);
  nodes_started(&rig, n, 2);
  double before = 0;
  for (int step = 1; step <= 100; step++) {
    rig_live(&rig, 1000);
    for (int i = 0; i < 2; i++) node_progress(&rig, &n[i], step);
    scrape(ADA);
    assert_true(value_of(series) >= before);
    before = value_of(series);
  }
  assert_true(before > 90);
  assert_true(value_of(lost) == 0);
  rig_next_round(&rig, n, 2);
  nodes_started(&rig, n, 2);
  for (int step = 41; step <= 200; step++) { /* 60 steps are done again */
    rig_live(&rig, 1000);
    for (int i = 0; i < 2; i++) node_progress(&rig, &n[i], step);
    scrape(ADA);
    if (step < 95) assert_true(value_of(series) == before);
    assert_true(value_of(series) >= before);
    before = value_of(series);
  }
  assert_true(value_of(lost) > 55 && value_of(lost) < 65);
  assert_true(before > 190 && before < 205); /* made up for: 200 steps of a second each */
}
