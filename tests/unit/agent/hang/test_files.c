/* SPDX-License-Identifier: Apache-2.0 */
/* agent/hang/files.c: whether files changed, seen from a loop that never waits for them. */

#include "agent/hang/files.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "common/mem.h"
#include "tests/rig/unit.h"

enum { PATIENCE_MS = 20000, COUNT = 2 };

static char dir[] = "/tmp/rdzv-hang-files-XXXXXX";

static struct {
  uv_loop_t loop;
  struct hang_files *h;
  int looked;
} d;

static void on_looked(void *ctx) {
  d.looked++;
}

static void setup_open(void) {
  memset(&d, 0, sizeof(d));
  assert_int_equal(uv_loop_init(&d.loop), 0);
  char *name = xasprintf("%s/${rank}.${local_rank}", dir);
  d.h = hang_files_create(&d.loop, COUNT, name, on_looked, NULL);
  free(name);
  hang_files_begin(d.h, 6);
}

static void setup_close(void) {
  hang_files_destroy(d.h);
  assert_int_equal(uv_run(&d.loop, UV_RUN_DEFAULT), 0);
  assert_int_equal(uv_loop_close(&d.loop), 0);
}

static void put(const char *name, const char *text) {
  char *file = xasprintf("%s/%s", dir, name);
  int fd = open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  close(fd);
  free(file);
}

/* The same size, another time; far from the clock's. */
static void touch(const char *name, long sec) {
  char *file = xasprintf("%s/%s", dir, name);
  const struct timespec times[2] = {{.tv_sec = sec}, {.tv_sec = sec}};
  assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
  free(file);
}

static void look(void) {
  int before = d.looked;
  hang_files_look(d.h);
  hang_files_look(d.h); /* one is out: it is not asked again */
  for (uint64_t end = boot_ms() + PATIENCE_MS; d.looked == before && boot_ms() < end; usleep(500))
    uv_run(&d.loop, UV_RUN_NOWAIT);
  uv_run(&d.loop, UV_RUN_DEFAULT);
  assert_int_equal(d.looked, before + 1);
}

static void check(bool first, bool second) {
  look();
  assert_int_equal(hang_files_changed(d.h, 0), first);
  assert_int_equal(hang_files_changed(d.h, 1), second);
}

UNIT_TEST(test_changes) {
  put("6.0", "left from before");
  setup_open();
  uv_run(&d.loop, UV_RUN_DEFAULT);
  assert_int_equal(d.looked, 0); /* nobody asked */
  check(false, false);
  check(false, false);
  put("6.0", "!");
  check(true, false);
  put("7.1", ""); /* it comes */
  check(false, true);
  touch("7.1", 86400); /* a clock that is far behind */
  check(false, true);
  check(false, false);
  char *file = xasprintf("%s/6.0", dir);
  unlink(file);
  check(true, false);
  free(file);
  put("6.0", "new");
  hang_files_begin(d.h, 6); /* another round counts from what it finds */
  check(false, false);
  hang_files_begin(d.h, 6);
  uv_run(&d.loop, UV_RUN_DEFAULT);
  put("6.0", "!"); /* once, before anybody asks */
  check(true, false);
  setup_close();
}

/* Of a round that is over, or of an owner that is gone: it frees itself. */
UNIT_TEST(test_given_up) {
  setup_open();
  hang_files_look(d.h);
  hang_files_begin(d.h, 6);
  uv_run(&d.loop, UV_RUN_DEFAULT);
  assert_int_equal(d.looked, 0);
  hang_files_look(d.h);
  setup_close();
  assert_int_equal(d.looked, 0);
}

UNIT_TEST(test_names) {
  static const struct {
    const char *name, *expected;
  } cases[] = {
      {"/tmp/beat", "/tmp/beat"},
      {"${rank}", "12"},
      {"a${local_rank}b${rank}${rank}", "a3b1212"},
      {"${ranks} $rank ${", "${ranks} $rank ${"},
      {"", ""},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    char *name = hang_file_name(cases[i].name, 12, 3);
    assert_string_equal(name, cases[i].expected);
    free(name);
  }
}

int main(void) {
  assert_non_null(mkdtemp(dir));
  int failed = unit_run(NULL, NULL);
  char *command = xasprintf("rm -r %s", dir);
  failed |= system(command);
  free(command);
  return failed;
}
