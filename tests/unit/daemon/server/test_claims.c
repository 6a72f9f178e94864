/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's side of claims: with the real rdzv-claim, and with scripts in its place that die, hang and babble. */

#include "daemon/server/claims.h"

#include <dirent.h>
#include <errno.h>
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

/* A script in the place of rdzv-claim. READY answers the check. */
#define READY "[ $2 != check ] || { echo won; exit; }\n"
static void put_script(struct rig *r, const char *text) {
  char path[128];
  snprintf(path, sizeof path, "%s/rdzv-claim", r->programs);
  FILE *f = fopen(path, "w");
  fprintf(f, "#!/bin/sh\n%s", text);
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
  static char large[CLAIM_CONTENT_MAX + 2];
  start(r);
  assert_true(claims_deadline(r->claims) == UINT64_MAX);
  add(r, 70, "0/j/i/1", "mine");
  await(r, 1, 0);
  expect(r, 0, 70, CLAIM_WON, "");
  memset(large, 'x', CLAIM_CONTENT_MAX + 1);
  add(r, 71, "0/j/i/1", "theirs");
  add(r, 72, "0/j/i/1", "mine");
  add(r, 73, "bad /name", "x");
  add(r, 74, "0/j/i/", "run");
  add(r, 75, "0/j/i/2", large);
  await(r, 6, 0);
  bool seen[6] = {false};
  for (size_t i = 1; i < 6; i++) {
    uint64_t s = r->answers[i].serial;
    assert_true(s > 70 && s <= 75 && !seen[s - 70]);
    seen[s - 70] = true;
    if (s == 71) expect(r, i, s, CLAIM_TAKEN, "mine");
    if (s == 72 || s == 74) expect(r, i, s, CLAIM_WON, "");
    if (s == 73) expect(r, i, s, CLAIM_FAILED, "printable ASCII");
    if (s == 75) expect(r, i, s, CLAIM_FAILED, "at most 65536 bytes of content");
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
  uv_run(&r->loop, UV_RUN_DEFAULT);    /* until the helpers have exited */
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
  uv_run(&r->loop, UV_RUN_DEFAULT); /* until both helpers have exited */
  expect_log(r, "the claims of a job that ended remain: other users can write to");
}

/* A helper that dies, hangs, or babbles. ---------------------------------------------------------------------------- */

CLAIMS_TEST(test_a_helper_that_dies) {
  struct rig *r = *state;
  put_script(r, READY "kill -9 $$\n");
  start(r);
  add(r, 1, "0/j/1", "x");
  await(r, 1, 0);
  expect(r, 0, 1, CLAIM_FAILED, "was killed by signal 9");
  expect_log(r, "was killed by signal 9");
  put_script(r, "exit 3\n");
  add(r, 2, "0/j/1", "x");
  await(r, 2, 0);
  expect(r, 1, 2, CLAIM_FAILED, "exited with code 3");
  setenv("PATH", HELPER_FOLDER ":/usr/bin:/bin", 1);
  add(r, 3, "0/j/1", "x");
  await(r, 3, 0);
  expect(r, 2, 3, CLAIM_WON, "");
}

CLAIMS_TEST(test_a_helper_that_cannot_begin) {
  struct rig *r = *state;
  start(r);
  assert_int_equal(rmdir(r->folder), 0);
  add(r, 1, "0/j/1", "x"); /* it was there, so it is not made again */
  await(r, 1, 0);
  expect(r, 0, 1, CLAIM_FAILED, "cannot open /tmp/");
  assert_int_equal(symlink("/tmp", r->folder), 0);
  add(r, 2, "0/j/1", "x");
  await(r, 2, 0);
  expect(r, 1, 2, CLAIM_FAILED, "is a symbolic link");
  assert_int_equal(unlink(r->folder), 0);
  setenv("PATH", "/nonexistent", 1);
  r->again = 4;
  add(r, 3, "0/j/1", "x");
  assert_int_equal(claims_deadline(r->claims), 0);
  await(r, 4, 0);
  expect(r, 2, 3, CLAIM_FAILED, "rdzv-claim is neither beside this program");
  expect(r, 3, 4, CLAIM_FAILED, "rdzv-claim is neither beside this program");
}

/* Those that wait for its place too long are failed as well. */
CLAIMS_TEST(test_a_helper_that_hangs) {
  struct rig *r = *state;
  put_script(r, READY "trap '' TERM; while :; do sleep 60; done\n");
  start(r);
  for (uint64_t i = 1; i <= CLAIMS_AT_ONCE + 1; i++) add(r, i, "0/j/1", "x");
  claims_expire(r->claims, boot_ms() + JOB_CLAIM_MS / 2);
  assert_int_equal(r->n, 0);
  await(r, CLAIMS_AT_ONCE + 1, 0);
  for (size_t i = 0, late = 0; i <= CLAIMS_AT_ONCE; i++) {
    late += strstr(r->answers[i].text, "did not answer within 10 s") != NULL;
    if (i == CLAIMS_AT_ONCE) assert_true(late >= CLAIMS_AT_ONCE);
    assert_int_equal(r->answers[i].answer, CLAIM_FAILED);
  }
  expect_log(r, "did not answer within 10 s; killed rdzv-claim (pid ");
}

CLAIMS_TEST(test_a_helper_that_babbles) {
  static const char *const lines[] = {"echo 'rm -rf /'", "printf won", "yes | head -c 1000000", "echo",
                                      "echo wonder",     ":"};
  struct rig *r = *state;
  start(r);
  for (uint64_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    put_script(r, lines[i]);
    add(r, i, "0/j/1", "x");
    await(r, i + 1, 0);
    expect(r, i, i, CLAIM_FAILED, "gave no answer");
  }
  expect_log(r, "gave no answer");
}

CLAIMS_TEST(test_too_many_claims) {
  struct rig *r = *state;
  put_script(r, READY "exec sleep 60\n");
  start(r);
  for (uint64_t i = 1; i <= CLAIMS_MAX + 1; i++) add(r, i, "0/j/1", "x");
  await(r, 1, 0);
  expect(r, 0, CLAIMS_MAX + 1, CLAIM_FAILED, "too many claims wait for /tmp/");
  await(r, CLAIMS_MAX + 1 - CLAIMS_AT_ONCE, JOB_CLAIM_MS);
  expect(r, 1, CLAIMS_AT_ONCE + 1, CLAIM_FAILED, "too many claims wait for their turn");
}

CLAIMS_TEST(test_too_many_bytes) {
  struct rig *r = *state;
  static char large[CLAIM_CONTENT_MAX + 1];
  size_t n = CLAIMS_BYTES_MAX / CLAIM_CONTENT_MAX + 2;
  memset(large, 'x', CLAIM_CONTENT_MAX);
  put_script(r, READY "exec sleep 60\n");
  start(r);
  for (uint64_t i = 1; i <= n; i++) add(r, i, "0/j/1", large);
  await(r, 1, 0);
  expect(r, 0, n, CLAIM_FAILED, "too many claims wait");
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
  put_script(r, "echo failed; echo no luck; exit 64\n");
  check_start(r, "/tmp/x", -EINVAL, "no luck");
  put_script(r, "echo hello\n");
  check_start(r, "/tmp/x", -EBADMSG, "gave no answer");
  setenv("PATH", "/nonexistent", 1);
  check_start(r, "/tmp/x", -ENOENT, "rdzv-claim is neither beside this program (in ");
}

/* Its file server is away. Jobs wait for that, as later. */
CLAIMS_TEST(test_a_start_that_hangs) {
  struct rig *r = *state;
  put_script(r, "exec sleep 60\n");
  start(r);
  assert_non_null(strstr(r->log, "did not answer within 8 s; killed rdzv-claim"));
  put_script(r, "echo won\n");
  add(r, 1, "0/j/1", "x");
  await(r, 1, 0);
  expect(r, 0, 1, CLAIM_WON, "");
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  return unit_run(NULL, NULL);
}
