/* SPDX-License-Identifier: Apache-2.0 */
/* The state file, torn at every byte, damaged at every byte, and written again. */

#include "daemon/server/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

static const char *const records[] = {"{\"job\":\"one\"}", "{\"job\":\"two\",\"round\":2}", "{}"};
enum { N_RECORDS = 3 };

struct folder {
  char path[64], file[96];
};

static int make_folder(void **state) {
  struct folder *f = xcalloc(1, sizeof(*f));
  snprintf(f->path, sizeof(f->path), "/tmp/test_state.XXXXXX");
  assert_non_null(mkdtemp(f->path));
  snprintf(f->file, sizeof(f->file), "%s/rdzvd.state", f->path);
  *state = f;
  return 0;
}

static int remove_folder(void **state) {
  struct folder *f = *state;
  char lock[96];
  snprintf(lock, sizeof(lock), "%s/rdzvd.lock", f->path);
  unlink(lock);
  unlink(f->file);
  assert_int_equal(rmdir(f->path), 0); /* nothing else is left there */
  free(f);
  return 0;
}

#define STATE_TEST(name) UNIT_TEST_WITH(name, make_folder, remove_folder)

static struct state *open_state(const struct folder *f) {
  struct err e = ERR_INIT;
  struct state *s = NULL;
  if (state_open(f->path, &s, &e) < 0) fail_msg("%s", e.text);
  return s;
}

static void append(struct state *s, const char *line) {
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  buf_printf(&b, "%s\n", line);
  if (state_append(s, &b, &e) < 0) fail_msg("%s", e.text);
  buf_finish(&b);
}

static void rewrite(struct state *s, const char *lines) {
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  buf_puts(&b, lines);
  if (state_rewrite(s, &b, &e) < 0) fail_msg("%s", e.text);
  buf_finish(&b);
}

static void write_records(const struct folder *f) {
  struct state *s = open_state(f);
  rewrite(s, "");
  for (int i = 0; i < N_RECORDS; i++) append(s, records[i]);
  state_close(s);
}

static struct buf read_file(const char *path) {
  struct buf b = BUF_INIT;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  ssize_t n = read(fd, buf_reserve(&b, 65536), 65536);
  assert_true(n >= 0);
  buf_commit(&b, (size_t)n);
  close(fd);
  return b;
}

static void write_file(const char *path, const char *data, size_t len) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(fd >= 0 && write(fd, data, len) == (ssize_t)len);
  close(fd);
}

STATE_TEST(test_round_trip) {
  write_records(*state);
  struct state *s = open_state(*state);
  assert_string_equal(state_warning(s), "");
  assert_int_equal(state_count(s), N_RECORDS);
  for (int i = 0; i < N_RECORDS; i++) assert_string_equal(state_record(s, (size_t)i), records[i]);
  assert_false(state_wants_rewrite(s));
  state_close(s);
}

STATE_TEST(test_rewrite_replaces_all) {
  write_records(*state);
  struct state *s = open_state(*state);
  rewrite(s, "{\"a\":1}\n\n{\"b\":2}\n"); /* an empty line is none */
  append(s, "{\"c\":3}");
  state_close(s);
  s = open_state(*state);
  assert_int_equal(state_count(s), 3);
  assert_string_equal(state_record(s, 0), "{\"a\":1}");
  assert_string_equal(state_record(s, 1), "{\"b\":2}");
  assert_string_equal(state_record(s, 2), "{\"c\":3}");
  state_close(s);
}

/* Cut off anywhere: whole lines in front of the cut are read, and what is appended then is read next time. */
STATE_TEST(test_torn_at_every_byte) {
  const struct folder *f = *state;
  write_records(f);
  struct buf whole = read_file(f->file);
  for (size_t len = 0; len < whole.len; len++) {
    size_t lines = 0;
    for (size_t i = 0; i < len; i++) lines += whole.data[i] == '\n';
    bool torn = len > 0 && whole.data[len - 1] != '\n' && lines > 0;
    write_file(f->file, whole.data, len);
    struct state *s = open_state(f);
    assert_int_equal(state_count(s), lines ? lines - 1 : 0);
    assert_int_equal(*state_warning(s) != '\0', torn);
    append(s, "{\"next\":1}");
    state_close(s);
    s = open_state(f);
    assert_string_equal(state_warning(s), "");
    assert_int_equal(state_count(s), lines ? lines : 1);
    assert_string_equal(state_record(s, state_count(s) - 1), "{\"next\":1}");
    state_close(s);
  }
  buf_finish(&whole);
}

/* One byte changed anywhere: never read as if it were right. In the last line it is a torn end, before it damage;
 * without the newline between them the last two look like one torn line. */
STATE_TEST(test_damaged_at_every_byte) {
  const struct folder *f = *state;
  write_records(f);
  struct buf whole = read_file(f->file);
  size_t last_line = whole.len - strlen(records[N_RECORDS - 1]) - 10;
  for (size_t at = 0; at < whole.len; at++) {
    whole.data[at] ^= 0x11;
    write_file(f->file, whole.data, whole.len);
    whole.data[at] ^= 0x11;
    struct err e = ERR_INIT;
    struct state *s = NULL;
    int rc = state_open(f->path, &s, &e);
    if (at + 1 < last_line) {
      assert_int_equal(rc, -EBADMSG);
      assert_non_null(strstr(e.text, f->file));
      assert_non_null(strstr(e.text, "move"));
    } else {
      assert_int_equal(rc, 0);
      assert_int_equal(state_count(s), at < last_line ? N_RECORDS - 2 : N_RECORDS - 1);
      assert_string_not_equal(state_warning(s), "");
    }
    state_close(s);
  }
  buf_finish(&whole);
}

STATE_TEST(test_one_owner) {
  const struct folder *f = *state;
  struct state *s = open_state(f), *second = NULL;
  struct err e = ERR_INIT;
  char pid[32];
  snprintf(pid, sizeof(pid), "(pid %d)", (int)getpid());
  assert_int_equal(state_open(f->path, &second, &e), -EBUSY);
  assert_non_null(strstr(e.text, pid));
  state_close(s);
  state_close(open_state(f));
}

/* A limit on file sizes stands for a disk that is full in the middle of a line. */
STATE_TEST(test_write_that_fails_leaves_nothing_behind) {
  const struct folder *f = *state;
  write_records(f);
  struct buf whole = read_file(f->file);
  struct state *s = open_state(f);
  struct rlimit old, small = {.rlim_cur = whole.len + 12, .rlim_max = RLIM_INFINITY};
  getrlimit(RLIMIT_FSIZE, &old);
  small.rlim_max = old.rlim_max;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  struct buf line = BUF_INIT;
  struct err e = ERR_INIT;
  buf_puts(&line, "{\"lost\":\"a line that does not fit\"}\n");
  assert_int_equal(state_append(s, &line, &e), -EFBIG);
  assert_non_null(strstr(e.text, f->file));
  assert_true(state_wants_rewrite(s));
  assert_int_equal(state_rewrite(s, &line, NULL), 0); /* alone it fits */
  assert_false(state_wants_rewrite(s));
  setrlimit(RLIMIT_FSIZE, &old);
  append(s, "{\"x\":1}");
  state_close(s);
  s = open_state(f);
  assert_string_equal(state_warning(s), "");
  assert_int_equal(state_count(s), 2);
  state_close(s);
  buf_finish(&line);
  buf_finish(&whole);
}

STATE_TEST(test_failed_append_is_overwritten) {
  const struct folder *f = *state;
  write_records(f);
  struct state *s = open_state(f);
  struct stat st;
  assert_int_equal(stat(f->file, &st), 0);
  struct rlimit old, small;
  getrlimit(RLIMIT_FSIZE, &old);
  small = old;
  small.rlim_cur = (rlim_t)st.st_size + 12;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  struct buf line = BUF_INIT;
  buf_puts(&line, "{\"lost\":\"a line that does not fit\"}\n");
  assert_true(state_append(s, &line, NULL) < 0);
  setrlimit(RLIMIT_FSIZE, &old);
  append(s, "{}");
  state_close(s);
  s = open_state(f);
  assert_string_equal(state_warning(s), "");
  assert_int_equal(state_count(s), N_RECORDS + 1);
  state_close(s);
  buf_finish(&line);
}

STATE_TEST(test_growth_asks_for_a_rewrite) {
  struct state *s = open_state(*state);
  rewrite(s, "");
  char line[40001];
  memset(line, 'x', sizeof(line) - 1);
  line[sizeof(line) - 1] = '\0';
  int n = 0;
  for (; n < 100 && !state_wants_rewrite(s); n++) append(s, line);
  assert_in_range(n, 26, 28); /* 1 MiB */
  rewrite(s, "{}\n");
  assert_false(state_wants_rewrite(s));
  state_close(s);
}
