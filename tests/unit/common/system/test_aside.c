/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that may hang, in threads of their own. Each hangs in reading a pipe until the test writes to it. */

#include "common/system/aside.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "tests/rig/unit.h"

struct room {
  int in, got;
  int *ended; /* gets a byte when the call returns */
};

static int gate[2], after[2];
static struct { int calls, got; } seen;

static void work(void *arg) {
  struct room *r = arg;
  char c = 0;
  if (read(r->in, &c, 1) == 1) r->got = c;
  if (write(*r->ended, &c, 1) != 1) r->got = -1;
}

static void on_done(void *ctx, void *arg) {
  const struct room *r = arg;
  assert_ptr_equal(ctx, &seen);
  seen.calls++;
  seen.got = r->got;
}

static struct aside *start(uv_loop_t *loop, struct err *e) {
  struct room r = {.in = gate[0], .ended = &after[1]};
  return aside_start(loop, work, &r, sizeof r, on_done, &seen, e);
}

static void open_gate(char c) {
  assert_int_equal(write(gate[1], &c, 1), 1);
}

static void wait_for_end(void) {
  char c;
  assert_int_equal(read(after[0], &c, 1), 1);
}

static int set_up(void **state) {
  static uv_loop_t loop;
  memset(&seen, 0, sizeof seen);
  assert_int_equal(pipe(gate), 0);
  assert_int_equal(pipe(after), 0);
  assert_int_equal(uv_loop_init(&loop), 0);
  *state = &loop;
  return 0;
}

static int tear_down(void **state) {
  assert_int_equal(uv_run(*state, UV_RUN_DEFAULT), 0);
  assert_int_equal(uv_loop_close(*state), 0);
  for (int i = 0; i < 2; i++) close(gate[i]), close(after[i]);
  return 0;
}

UNIT_TEST_WITH(test_the_result_comes_to_the_loop, set_up, tear_down) {
  assert_non_null(start(*state, NULL));
  assert_int_equal(seen.calls, 0);
  open_gate('x');
  uv_run(*state, UV_RUN_DEFAULT);
  assert_true(seen.calls == 1 && seen.got == 'x');
  wait_for_end();
}

UNIT_TEST_WITH(test_one_that_hangs_is_left_behind, set_up, tear_down) {
  struct aside *a = start(*state, NULL);
  assert_non_null(a);
  aside_leave(a);
  assert_int_equal(uv_run(*state, UV_RUN_DEFAULT), 0); /* nothing keeps the loop */
  open_gate('x');
  wait_for_end();
  assert_int_equal(seen.calls, 0);
}

UNIT_TEST_WITH(test_a_result_that_waits_is_dropped_too, set_up, tear_down) {
  struct aside *a = start(*state, NULL);
  open_gate('x');
  wait_for_end();
  aside_leave(a);
  uv_run(*state, UV_RUN_DEFAULT);
  assert_int_equal(seen.calls, 0);
}

UNIT_TEST_WITH(test_threads_are_limited, set_up, tear_down) {
  struct err e = ERR_INIT;
  struct aside *a[ASIDE_MAX];
  int n = 0;
  while (n < ASIDE_MAX && (a[n] = start(*state, NULL))) n++;
  assert_in_range(n, 1, ASIDE_MAX); /* a thread of an earlier test may be about to end */
  while (start(*state, &e)) n++;
  assert_int_equal(e.code, -EAGAIN);
  for (int i = 0; i < n; i++) open_gate('x');
  for (int i = 0; i < n; i++) wait_for_end();
  uv_run(*state, UV_RUN_DEFAULT);
  assert_int_equal(seen.calls, n);
}
