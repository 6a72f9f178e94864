/* SPDX-License-Identifier: Apache-2.0 */
/* failures: error files read while the loop goes on, given up when it takes too long, and handed up. And log_dir: where
 * they lie, and what becomes of it. */

#include "agent/failures/failures.h"

#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/output/log_dir.h"
#include "common/buf.h"
#include "common/mem.h"
#include "common/system/loop.h"
#include "tests/rig/unit.h"

enum { POOL = 4, WORKERS = 3 };

static char dir[] = "/tmp/rdzv-failures-XXXXXX";

static struct {
  uv_loop_t loop;
  struct failures f;
  struct failure v[WORKERS];
  int read;
} b;

static void on_read(void *ctx) {
  b.read++;
}

static void bench_open(void) {
  memset(&b, 0, sizeof(b));
  assert_int_equal(uv_loop_init(&b.loop), 0);
  b.f = (struct failures){.loop = &b.loop, .on_read = on_read};
}

static void clear_all(void) {
  for (int i = 0; i < WORKERS; i++) failure_clear(&b.v[i]);
}

static void bench_close(void) {
  for (int i = 0; i < WORKERS; i++) failure_finish(&b.v[i]);
  assert_int_equal(uv_run(&b.loop, UV_RUN_DEFAULT), 0);
  assert_int_equal(uv_loop_close(&b.loop), 0);
}

static char *path(const char *name) {
  return xasprintf("%s/%s", dir, name);
}

static void put(const char *name, const char *text) {
  char *file = path(name);
  FILE *f = fopen(file, "w");
  assert_non_null(f);
  assert_true(fputs(text, f) >= 0);
  assert_int_equal(fclose(f), 0);
  free(file);
}

static char *get(const char *file) {
  char text[4096];
  int fd = open(file, O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  assert_true(n >= 0);
  return xstrndup(text, (size_t)n);
}

#define SAYS(text) "{\"message\": {\"message\": \"" text "\"}}"

static void fail_with(uint32_t local_rank, const char *name) {
  char *file = path(name);
  failure_set_file(&b.v[local_rank], file);
  failures_read(&b.f, &b.v[local_rank], local_rank);
  free(file);
}

UNIT_TEST(test_read) {
  bench_open();
  put("0", SAYS("zero"));
  put("1", "no json");
  char *pipe = path("pipe");
  assert_int_equal(mkfifo(pipe, 0600), 0);
  fail_with(0, "0");
  fail_with(1, "1");
  fail_with(2, "pipe");
  assert_non_null(b.v[0].reading);
  uv_run(&b.loop, UV_RUN_DEFAULT);
  assert_int_equal(b.read, 3);
  for (uint32_t i = 0; i < 3; i++) assert_null(b.v[i].reading);
  assert_string_equal(b.v[0].said->message, "zero");
  assert_null(b.v[1].said);
  assert_null(b.v[2].said);
  clear_all();
  assert_null(b.v[0].said);
  fail_with(0, "not there");
  failure_finish(&b.v[1]);
  failures_read(&b.f, &b.v[1], 1); /* it has no file */
  assert_null(b.v[1].reading);
  uv_run(&b.loop, UV_RUN_DEFAULT);
  assert_int_equal(b.read, 4);
  assert_null(b.v[0].said);
  unlink(pipe);
  free(pipe);
  bench_close();
}

static sem_t hold;

static void hang(uv_work_t *work) {
  sem_wait(&hold);
}

/* A disk that hangs, as far as the loop can tell: the pool has no thread left. */
UNIT_TEST(test_a_reading_is_given_up) {
  uv_work_t work[POOL];
  bench_open();
  sem_init(&hold, 0, 0);
  for (int i = 0; i < POOL; i++) uv_queue_work(&b.loop, &work[i], hang, NULL);
  put("0", SAYS("late"));
  fail_with(0, "0");
  uv_run(&b.loop, UV_RUN_NOWAIT);
  assert_non_null(b.v[0].reading);
  assert_null(b.v[0].said);
  clear_all(); /* the next round does not wait, and does not hear of it */
  assert_null(b.v[0].reading);
  for (int i = 0; i < POOL; i++) sem_post(&hold);
  uv_run(&b.loop, UV_RUN_DEFAULT);
  assert_int_equal(b.read, 0);
  for (int i = 0; i < POOL; i++) uv_queue_work(&b.loop, &work[i], hang, NULL);
  fail_with(0, "0");
  char *up = path("no folder/up");
  failures_hand_up(&b.f, up, &(struct failure_cause){.code = 1});
  free(up);
  clear_all();
  for (int i = 0; i < POOL; i++) sem_post(&hold);
  bench_close();
}

static void check_up(struct failure_cause cause, const char *expected) {
  char *file = path("up");
  failures_hand_up(&b.f, file, &cause);
  assert_int_equal(loop_writes(), 1);
  uv_run(&b.loop, UV_RUN_DEFAULT);
  assert_int_equal(loop_writes(), 0);
  char *text = get(file);
  if (!strstr(text, expected)) fail_msg("%s has no %s", text, expected);
  free(text);
  free(file);
}

/* A worker's own words; the verdict; the meaning of the code. */
UNIT_TEST(test_handed_up) {
  bench_open();
  check_up((struct failure_cause){.code = 75}, "asked this node to leave");
  check_up((struct failure_cause){.code = 3, .text = "rank 2 failed\nlast line"},
           "{\"message\":{\"message\":\"rank 2 failed\",\"extraInfo\":{\"py_callstack\":\"rank 2 "
           "failed\\nlast line\"");
  check_up((struct failure_cause){.code = 3, .text = "rank 7 failed: E\nlast line", .message = "E"},
           "{\"message\":{\"message\":\"E\",\"extraInfo\":{\"py_callstack\":\"rank 7 failed: E\\nlast line\"");
  put("0", SAYS("zero"));
  fail_with(0, "0");
  uv_run(&b.loop, UV_RUN_DEFAULT);
  check_up((struct failure_cause){.code = 3, .worker = &b.v[0], .worker_status = 1 << 8, .text = "told"},
           "{\"message\":{\"message\":\"zero\",\"errorCode\":1}}");
  check_up((struct failure_cause){.code = 3, .worker = &b.v[0], .worker_status = 9},
           "{\"message\":{\"message\":\"zero\",\"errorCode\":-9}}");
  check_up((struct failure_cause){.code = 78}, "a node was lost");
  bench_close();
}

UNIT_TEST(test_log_dir) {
  struct err e = ERR_INIT;
  struct log_dir d, other;
  char *place = path("a/b");
  assert_int_equal(log_dir_make(&d, place, false, "job/1", &e), 0);
  assert_int_equal(log_dir_make(&other, place, false, "job/1", &e), 0);
  assert_memory_equal(strrchr(d.dir, '/'), "/job_1_", 7);
  assert_int_equal(strlen(strrchr(d.dir, '/')), 7 + 8);
  assert_string_not_equal(d.dir, other.dir);
  char *name = log_dir_attempt_file(&d, 3, 5, "error.json");
  assert_string_equal(name + strlen(d.dir), "/attempt_2/5/error.json");
  free(name);
  name = log_dir_attempt_file(&d, 1, -1, "filtered_stdout.log");
  assert_string_equal(name + strlen(d.dir), "/attempt_0/filtered_stdout.log");
  free(name);
  name = log_dir_file(&d, "agent", "no/de1");
  assert_string_equal(name + strlen(d.dir), "/agent-no_de1.log");
  free(name);
  name = xstrdup(d.dir);
  log_dir_finish(&d);
  log_dir_finish(&other);
  assert_int_equal(access(name, F_OK), 0); /* the user's place: it stays */
  free(name);
  free(place);
  put("file", "");
  place = path("file");
  assert_int_not_equal(log_dir_make(&d, place, false, "x", &e), 0);
  assert_non_null(strstr(e.text, "--log-dir"));
  assert_null(d.dir);
  assert_null(log_dir_file(&d, "agent", "x"));
  assert_null(log_dir_attempt_file(&d, 1, 1, "x"));
  log_dir_finish(&d);
  free(place);
}

UNIT_TEST(test_a_temporary_one) {
  struct err e = ERR_INIT;
  struct log_dir d;
  struct stat st;
  char *elsewhere = path("elsewhere");
  put("elsewhere", "not to be followed");
  setenv("TMPDIR", dir, 1);
  assert_int_equal(log_dir_make(&d, NULL, false, "x", &e), 0);
  assert_int_equal(stat(d.temporary, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0700);
  char *top = xstrdup(d.temporary), *deep = xasprintf("%s/a", d.dir), *link = xasprintf("%s/link", d.dir);
  assert_int_equal(mkdir(deep, 0700), 0);
  assert_int_equal(symlink(dir, link), 0);
  log_dir_finish(&d);
  assert_int_equal(access(top, F_OK), -1);
  assert_int_equal(access(elsewhere, F_OK), 0);
  free(top);
  free(deep);
  free(link);
  free(elsewhere);
  assert_int_equal(log_dir_make(&d, NULL, false, "x", &e), 0);
  top = xstrdup(d.temporary);
  d.keep = true;
  log_dir_finish(&d);
  assert_int_equal(access(top, F_OK), 0);
  free(top);
  char *missing = path("missing");
  setenv("TMPDIR", missing, 1);
  assert_int_not_equal(log_dir_make(&d, NULL, false, "x", &e), 0);
  assert_non_null(strstr(e.text, missing));
  free(missing);
  unsetenv("TMPDIR");
}

static int make_place(void **state) {
  return mkdtemp(dir) ? 0 : -1;
}

static int remove_place(void **state) {
  struct log_dir d = {.temporary = xstrdup(dir)};
  log_dir_finish(&d);
  return access(dir, F_OK) == 0 ? -1 : 0;
}

int main(void) {
  alarm(60);
  return unit_run(make_place, remove_place);
}
