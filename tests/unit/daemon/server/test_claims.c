/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's side of claims: with the real rdzv-claim, and with scripts in its place that die, hang and babble. */

#include "daemon/server/claims.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/log.h"
#include "tests/rig/unit.h"

enum { ANSWERS_MAX = CLAIMS_MAX + 16 };

struct answer {
  uint64_t serial;
  enum claim_answer answer;
  char text[256];
};

struct rig {
  uv_loop_t loop;
  struct claims *claims;
  char folder[64], programs[64], log[8192];
  struct answer answers[ANSWERS_MAX];
  size_t n;
  uint64_t again; /* a serial to ask for inside of an answer; 0: none */
};

static void on_log(void *ctx, enum log_level level, const char *line) {
  struct rig *r = ctx;
  size_t n = strlen(r->log);
  snprintf(r->log + n, sizeof r->log - n, "%s\n", line);
}

static int set_up(void **state) {
  struct rig *r = xcalloc(1, sizeof *r);
  uv_loop_init(&r->loop);
  snprintf(r->folder, sizeof r->folder, "/tmp/test_claims.XXXXXX");
  assert_non_null(mkdtemp(r->folder));
  snprintf(r->programs, sizeof r->programs, "/tmp/test_claims_bin.XXXXXX");
  assert_non_null(mkdtemp(r->programs));
  setenv("PATH", HELPER_FOLDER ":/usr/bin:/bin", 1);
  log_set_sink(on_log, r);
  *state = r;
  return 0;
}

/* The loop has nothing left to do: no process and no handle. */
static int tear_down(void **state) {
  struct rig *r = *state;
  char command[256];
  claims_destroy(r->claims);
  uv_run(&r->loop, UV_RUN_DEFAULT);
  assert_int_equal(uv_loop_close(&r->loop), 0);
  log_set_sink(NULL, NULL);
  setenv("PATH", "/usr/bin:/bin", 1);
  snprintf(command, sizeof command, "rm -rf %s %s", r->folder, r->programs);
  assert_int_equal(system(command), 0);
  free(r);
  return 0;
}

#define CLAIMS_TEST(name) UNIT_TEST_WITH(name, set_up, tear_down)

static void add(struct rig *r, uint64_t serial, const char *name, const char *content) {
  struct bytes *b = bytes_create(content, strlen(content));
  claims_add(r->claims, serial, name, b);
  bytes_unref(b);
}

static void on_answer(void *ctx, uint64_t serial, enum claim_answer answer, const char *text) {
  struct rig *r = ctx;
  assert_true(r->n < ANSWERS_MAX);
  struct answer *a = &r->answers[r->n++];
  *a = (struct answer){.serial = serial, .answer = answer};
  snprintf(a->text, sizeof a->text, "%s", text);
  if (!r->again) return;
  serial = r->again;
  r->again = 0;
  add(r, serial, "0/again/1", "x");
}

static void start(struct rig *r) {
  struct err e = ERR_INIT;
  if (claims_create(&r->loop, r->folder, &r->claims, &e)) fail_msg("%s", e.text);
  claims_answer_to(r->claims, on_answer, r);
}

/* A script in the place of rdzv-claim. READY is its first line. */
#define READY "echo '{\"serial\":0,\"answer\":\"won\",\"text\":\"\"}'\n"
static void put_script(struct rig *r, const char *text) {
  char path[128];
  snprintf(path, sizeof path, "%s/rdzv-claim", r->programs);
  FILE *f = fopen(path, "w");
  fprintf(f, "#!/bin/sh\necho $$ >>%s/pids\n%s", r->programs, text);
  fclose(f);
  assert_int_equal(chmod(path, 0755), 0);
  snprintf(path, sizeof path, "%s:/usr/bin:/bin", r->programs);
  setenv("PATH", path, 1);
}

static void end(struct rig *r, const char *prefix) {
  struct bytes *b = bytes_create(CLAIM_ENDED, strlen(CLAIM_ENDED));
  claims_end(r->claims, prefix, b);
  bytes_unref(b);
}

static void on_tick(uv_timer_t *timer) {}

/* Runs the loop, and what is due at `ahead` from now, until there are n answers. */
static void await(struct rig *r, size_t n, uint64_t ahead) {
  uv_timer_t timer;
  uint64_t end = boot_ms() + 20000;
  uv_timer_init(&r->loop, &timer);
  uv_timer_start(&timer, on_tick, 5, 5);
  while (r->n < n && boot_ms() < end) {
    uv_run(&r->loop, UV_RUN_ONCE);
    if (claims_deadline(r->claims) <= boot_ms() + ahead) claims_expire(r->claims, boot_ms() + ahead);
  }
  uv_close((uv_handle_t *)&timer, NULL);
  uv_run(&r->loop, UV_RUN_NOWAIT);
  if (r->n != n) fail_msg("%zu answers instead of %zu\n%s", r->n, n, r->log);
}

static void expect(const struct rig *r, size_t i, uint64_t serial, enum claim_answer answer, const char *text) {
  const struct answer *a = &r->answers[i];
  if (a->serial != serial || a->answer != answer || !strstr(a->text, text))
    fail_msg("answer %zu: serial %d, %d, '%s'", i, (int)a->serial, (int)a->answer, a->text);
}

static void expect_log(const struct rig *r, const char *text) {
  if (!strstr(r->log, text)) fail_msg("'%s' is not in:\n%s", text, r->log);
}

static size_t count_files(const struct rig *r) {
  DIR *d = opendir(r->folder);
  size_t n = 0;
  for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

/* With the real one. ------------------------------------------------------------------------------------------------ */

CLAIMS_TEST(test_claims) {
  struct rig *r = *state;
  start(r);
  assert_true(claims_deadline(r->claims) == UINT64_MAX);
  add(r, 70, "0/j/i/1", "mine");
  assert_true(claims_deadline(r->claims) <= boot_ms() + JOB_CLAIM_MS);
  add(r, 71, "0/j/i/1", "theirs");
  add(r, 72, "0/j/i/1", "mine");
  add(r, 73, "bad /name", "x");
  await(r, 4, 0);
  bool seen[4] = {false};
  for (size_t i = 0; i < 4; i++) { /* requests of one job keep their order */
    uint64_t s = r->answers[i].serial;
    assert_true(s >= 70 && s <= 73 && !seen[s - 70]);
    seen[s - 70] = true;
    if (s == 70 || s == 72) expect(r, i, s, CLAIM_WON, "");
    if (s == 71) expect(r, i, s, CLAIM_TAKEN, "mine");
    if (s == 73) expect(r, i, s, CLAIM_FAILED, "printable ASCII");
  }
  assert_true(claims_deadline(r->claims) == UINT64_MAX);
}

CLAIMS_TEST(test_an_end_at_the_end) {
  struct rig *r = *state;
  start(r);
  add(r, 1, "0/j/i/1", "mine");
  await(r, 1, 0);
  assert_int_equal(count_files(r), 1);
  add(r, 2, "0/j/i/2", "mine");
  end(r, "0/j/i/");
  claims_close(r->claims);
  claims_close(r->claims);
  uv_run(&r->loop, UV_RUN_DEFAULT);    /* until the helper has exited */
  assert_int_equal(count_files(r), 1); /* the end */
  assert_int_equal(r->n, 1);           /* nobody is told of the second one any more */
  if (strstr(r->log, "exited")) fail_msg("%s", r->log);
}

CLAIMS_TEST(test_an_end_that_fails_is_logged) {
  struct rig *r = *state;
  start(r);
  assert_int_equal(chmod(r->folder, 0777), 0);
  end(r, "0/j/");
  add(r, 1, "0/j/1", "x");
  await(r, 1, 0);
  expect(r, 0, 1, CLAIM_FAILED, "chmod go-w it");
  expect_log(r, "the claims of a job that ended remain: other users can write to");
}

/* A helper that dies. ----------------------------------------------------------------------------------------------- */

static pid_t last_pid(const struct rig *r, int number) {
  char path[128];
  int pid = 0;
  snprintf(path, sizeof path, "%s/pids", r->programs);
  FILE *f = fopen(path, "r");
  for (int i = 0; i < number; i++)
    if (!f || fscanf(f, "%d", &pid) != 1) pid = 0;
  if (f) fclose(f);
  return pid;
}

CLAIMS_TEST(test_a_helper_that_dies) {
  struct rig *r = *state;
  put_script(r, READY "read line; kill -9 $$\n");
  start(r);
  add(r, 1, "0/j/1", "x");
  add(r, 2, "0/j/2", "x");
  await(r, 2, 0);
  expect(r, 0, 1, CLAIM_FAILED, "was killed by signal 9");
  expect(r, 1, 2, CLAIM_FAILED, "was killed by signal 9");
  expect_log(r, "was killed by signal 9");
  uint64_t serial = 2;
  bool at_once = false;
  while (!at_once) { /* within the pause; if this machine was busy for longer, another helper starts, and dies */
    assert_true(++serial < 20);
    add(r, serial, "0/j/3", "x");
    at_once = claims_deadline(r->claims) == 0;
    await(r, serial, 0);
    expect(r, serial - 1, serial, CLAIM_FAILED, "was killed by signal 9");
  }
  setenv("PATH", HELPER_FOLDER ":/usr/bin:/bin", 1);
  for (uint64_t end = boot_ms() + CLAIMS_AGAIN_MS; boot_ms() < end;) usleep(10000);
  serial++;
  add(r, serial, "0/j/4", "x"); /* by a new one */
  await(r, serial, 0);
  expect(r, serial - 1, serial, CLAIM_WON, "");
}

CLAIMS_TEST(test_a_new_helper_that_cannot_begin) {
  struct rig *r = *state;
  start(r);
  assert_int_equal(rmdir(r->folder), 0);
  assert_int_equal(symlink("/tmp", r->folder), 0);
  put_script(r, READY "exec sleep 60\n");
  claims_destroy(r->claims);
  uv_run(&r->loop, UV_RUN_DEFAULT);
  start(r);
  kill(last_pid(r, 1), SIGKILL);
  setenv("PATH", HELPER_FOLDER ":/usr/bin:/bin", 1);
  for (uint64_t end = boot_ms() + 20000; !strstr(r->log, "was killed by signal 9") && boot_ms() < end; usleep(1000))
    uv_run(&r->loop, UV_RUN_NOWAIT);
  for (uint64_t end = boot_ms() + CLAIMS_AGAIN_MS; boot_ms() < end;) usleep(10000);
  add(r, 1, "0/j/1", "x");
  await(r, 1, 0);
  expect(r, 0, 1, CLAIM_FAILED, "is a symbolic link");
  assert_int_equal(unlink(r->folder), 0);
}

CLAIMS_TEST(test_a_helper_that_hangs) {
  struct rig *r = *state;
  put_script(r, READY "trap '' TERM; while :; do sleep 60; done\n");
  start(r);
  add(r, 1, "0/j/1", "x");
  claims_expire(r->claims, boot_ms() + JOB_CLAIM_MS / 2);
  assert_int_equal(r->n, 0);
  r->again = 5;
  await(r, 2, JOB_CLAIM_MS);
  expect(r, 0, 1, CLAIM_FAILED, "did not answer within 10 s");
  expect(r, 1, 5, CLAIM_FAILED, "did not answer within 10 s");
  expect_log(r, "did not answer within 10 s; killed rdzv-claim (pid ");
  pid_t pid = last_pid(r, 1);
  for (uint64_t end = boot_ms() + 20000; kill(pid, 0) == 0 && boot_ms() < end; usleep(10000))
    uv_run(&r->loop, UV_RUN_NOWAIT);
  assert_int_equal(kill(pid, 0), -1); /* killed and reaped */
}

CLAIMS_TEST(test_a_helper_that_babbles) {
  struct rig *r = *state;
  put_script(r, READY "read line; echo 'rm -rf /'; exec sleep 60\n");
  start(r);
  add(r, 1, "0/j/1", "x");
  await(r, 1, 0);
  expect(r, 0, 1, CLAIM_FAILED, "cannot be read: bad JSON");
  expect_log(r, "what rdzv-claim (pid ");
}

CLAIMS_TEST(test_answers_that_nobody_asked_for) {
  struct rig *r = *state;
  put_script(r, READY "read line; echo '{\"serial\":9,\"answer\":\"won\",\"text\":\"\"}'\n"
                      "echo '{\"serial\":1,\"answer\":\"taken\",\"text\":\"y\"}'\n"
                      "echo '{\"serial\":1,\"answer\":\"won\",\"text\":\"\"}'; exec sleep 60\n");
  start(r);
  add(r, 70, "0/j/1", "x");
  await(r, 1, 0);
  add(r, 71, "0/j/1", "x");
  await(r, 2, JOB_CLAIM_MS);
  expect(r, 0, 70, CLAIM_TAKEN, "y");
  expect(r, 1, 71, CLAIM_FAILED, "did not answer");
}

CLAIMS_TEST(test_a_line_without_end) {
  struct rig *r = *state;
  put_script(r, READY "read line; yes | tr -d '\\n'\n");
  start(r);
  add(r, 1, "0/j/1", "x");
  await(r, 1, 0);
  expect(r, 0, 1, CLAIM_FAILED, "a line has more than");
}

CLAIMS_TEST(test_too_many_claims) {
  struct rig *r = *state;
  put_script(r, READY "exec sleep 60\n");
  start(r);
  for (uint64_t i = 1; i <= CLAIMS_MAX + 1; i++) add(r, i, "0/j/1", "x");
  await(r, 1, 0);
  expect(r, 0, CLAIMS_MAX + 1, CLAIM_FAILED, "too many claims wait for /tmp/");
  await(r, CLAIMS_MAX + 1, JOB_CLAIM_MS);
  expect(r, CLAIMS_MAX, CLAIMS_MAX, CLAIM_FAILED, "did not answer");
}

CLAIMS_TEST(test_too_many_bytes) {
  struct rig *r = *state;
  static char large[CLAIM_CONTENT_MAX + 1];
  size_t n = CLAIMS_BYTES_MAX / CLAIM_CONTENT_MAX + 2;
  memset(large, 'x', CLAIM_CONTENT_MAX);
  put_script(r, READY "exec sleep 60\n");
  start(r);
  for (uint64_t i = 1; i <= n; i++) add(r, i, "0/j/1", large);
  await(r, 2, 0);
  expect(r, 0, n - 1, CLAIM_FAILED, "too many claims wait");
}

/* The beginning. ---------------------------------------------------------------------------------------------------- */

static void check_start(struct rig *r, const char *where, int code, const char *why) {
  struct err e = ERR_INIT;
  assert_int_equal(claims_create(&r->loop, where, &r->claims, &e), code);
  assert_null(r->claims);
  if (!strstr(e.text, why)) fail_msg("'%s' does not say '%s'", e.text, why);
}

CLAIMS_TEST(test_a_start_that_fails) {
  struct rig *r = *state;
  check_start(r, "/no/such/folder", -EIO, "cannot create /no/such/folder: No such file");
  check_start(r, "relative", -EINVAL, "absolute path");
  put_script(r, "exit 3\n");
  check_start(r, "/tmp/x", -EIO, "exited with code 3");
  put_script(r, "echo '{\"serial\":0,\"answer\":\"failed\",\"text\":\"no luck\"}'; exit 64\n");
  check_start(r, "/tmp/x", -EINVAL, "no luck");
  put_script(r, "echo hello; exec sleep 60\n");
  check_start(r, "/tmp/x", -EBADMSG, "cannot be read");
  setenv("PATH", "/nonexistent", 1);
  check_start(r, "/tmp/x", -ENOENT, "rdzv-claim is neither beside this program (in ");
}

/* Its file server is away. Jobs wait for that, as later. */
CLAIMS_TEST(test_a_start_that_hangs) {
  struct rig *r = *state;
  put_script(r, "exec sleep 60\n");
  start(r);
  assert_non_null(strstr(r->log, "did not answer within 8 s; killed rdzv-claim"));
  put_script(r, READY "read line\necho '{\"serial\":1,\"answer\":\"won\",\"text\":\"\"}'\nread line\n");
  add(r, 1, "0/j/1", "x");
  await(r, 1, 0);
  expect(r, 0, 1, CLAIM_WON, "");
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  return unit_run(NULL, NULL);
}
