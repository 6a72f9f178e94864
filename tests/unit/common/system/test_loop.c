/* SPDX-License-Identifier: Apache-2.0 */
/* loop: what libuv would abort for is an error first, and the pool is there when it is wanted. */

#include "common/system/loop.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "tests/rig/unit.h"

static int count_threads(void) {
  DIR *tasks = opendir("/proc/self/task");
  int n = 0;
  assert_non_null(tasks);
  for (const struct dirent *d; (d = readdir(tasks));) n += d->d_name[0] != '.';
  closedir(tasks);
  return n;
}

/* Descriptor by descriptor: below what the loop needs it is an error, and never an abort(). */
UNIT_TEST(test_without_descriptors) {
  struct rlimit before, low;
  bool opened = false;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (rlim_t n = 3; n < 32 && !opened; n++) {
    struct err e = ERR_INIT;
    uv_loop_t loop;
    low = (struct rlimit){.rlim_cur = n, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    int rc = loop_open(&loop, &e);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    opened = rc == 0;
    if (opened)
      assert_int_equal(uv_loop_close(&loop), 0);
    else
      assert_int_equal(rc, -EMFILE);
    if (n == 3) assert_non_null(strstr(e.text, "Too many open files"));
  }
  assert_true(opened);
}

UNIT_TEST(test_closed_standard_descriptors) {
  struct err e = ERR_INIT;
  uv_loop_t loop;
  int kept = dup(STDIN_FILENO);
  close(STDIN_FILENO);
  assert_int_equal(loop_open(&loop, &e), 0);
  assert_true(loop.backend_fd > STDERR_FILENO);
  assert_int_equal(uv_loop_close(&loop), 0);
  assert_int_equal(dup2(kept, STDIN_FILENO), STDIN_FILENO);
  close(kept);
}

static void note(uv_work_t *work) {
  *(bool *)work->data = true;
}

UNIT_TEST(test_pool) {
  struct err e = ERR_INIT;
  uv_loop_t loop;
  bool worked = false;
  uv_work_t work = {.data = &worked};
  int before = count_threads();
  assert_int_equal(loop_open(&loop, &e), 0);
  assert_int_equal(loop_start_pool(&loop, LOOP_POOL_MAX + 1, &e), -EINVAL);
  assert_int_equal(count_threads(), before);
  setenv("UV_THREADPOOL_SIZE", "9", 1); /* a worker's */
  assert_int_equal(loop_start_pool(&loop, 3, &e), 0);
  assert_string_equal(getenv("UV_THREADPOOL_SIZE"), "9");
  assert_int_equal(count_threads(), before + 3); /* those that were tried are gone */
  unsetenv("UV_THREADPOOL_SIZE");
  assert_int_equal(loop_start_pool(&loop, 4, &e), 0);
  assert_null(getenv("UV_THREADPOOL_SIZE"));
  assert_int_equal(uv_queue_work(&loop, &work, note, NULL), 0);
  assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
  assert_true(worked);
  assert_int_equal(count_threads(), before + 3);
  assert_int_equal(uv_loop_close(&loop), 0);
}
