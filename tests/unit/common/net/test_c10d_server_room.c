/* SPDX-License-Identifier: Apache-2.0 */
/* c10d_server: memory and time are shared. Requests and replies that are larger than the sockets, more of them than
 * the server will buffer, clients that read late or never, and requests that are dear: everybody is served in the
 * end, some after the others, and only who keeps the others from it is dropped. */

#include "tests/rig/c10d_server.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

/* A value of the greatest size, many times: through sockets that hold far less. */
SERVER_TEST(test_large_values) {
  start(&(struct c10d_server_config){0});
  int fd = connect_new();
  SCOPED(unit_free) char *value = xmalloc(C10D_VALUE_MAX);
  for (size_t i = 0; i < C10D_VALUE_MAX; i++) value[i] = (char)(i * 2654435761u >> 13);
  SCOPED(buf_finish) struct buf q = BUF_INIT, a = BUF_INIT, in = BUF_INIT;
  ask_set(&q, "big", (struct slice){value, C10D_VALUE_MAX});
  for (int i = 0; i < 3; i++) {
    ask_get(&q, "big");
    put_string(&a, (struct slice){value, C10D_VALUE_MAX});
  }
  push(fd, q.data, q.len);
  exchange(fd, &in, a.len);
  assert_memory_equal(in.data, a.data, a.len);
}

/* It asks for much and reads nothing: no more requests are taken; when it reads at last, everything comes, in order. */
SERVER_TEST(test_slow_reader) {
  enum { SIZE = 100000, N = 400 };
  start(&(struct c10d_server_config){0});
  int fd = connect_new(), other = connect_new();
  SCOPED(unit_free) char *value = xcalloc(1, SIZE);
  SCOPED(buf_finish) struct buf q = BUF_INIT, a = BUF_INIT, in = BUF_INIT;
  ask_set(&q, "v", (struct slice){value, SIZE});
  for (int i = 0; i < N; i++) {
    ask_get(&q, "v");
    ask_add(&q, "n", 1);
    put_string(&a, (struct slice){value, SIZE});
    put_number(&a, i + 1);
  }
  push(fd, q.data, q.len);
  spin();
  ask_add(&q, "n", 0);
  buf_clear(&q);
  ask_add(&q, "n", 0);
  put_buf(other, &q); /* others are served, and see how far it came */
  spin();
  SCOPED(buf_finish) struct buf n = BUF_INIT;
  get(other, &n);
  assert_int_equal(n.len, 8);
  assert_true(le64_get(n.data) < N / 2);
  assert_int_equal(uv_backend_timeout(&loop) < 0, 0); /* it has a deadline */
  exchange(fd, &in, a.len);
  assert_memory_equal(in.data, a.data, a.len);
  wait_ms(1);
}

SERVER_TEST(test_who_takes_nothing_is_dropped) {
  enum { SIZE = 4000000 };
  start(&(struct c10d_server_config){.stall_ms = 100});
  int fd = connect_new();
  SCOPED(unit_free) char *value = xcalloc(1, SIZE);
  SCOPED(buf_finish) struct buf q = BUF_INIT;
  ask_set(&q, "v", (struct slice){value, SIZE});
  ask_get(&q, "v");
  push(fd, q.data, q.len);
  assert_int_equal(c10d_server_connections(server), 1);
  wait_ms(250);
  assert_int_equal(c10d_server_connections(server), 0);
  expect_line("store: local socket:0: closed: it does not read");
}

SERVER_TEST(test_buffers_are_bounded_together) {
  enum { N = 20, SIZE = 60000 };
  start(&(struct c10d_server_config){.max_buffered = 1 << 20});
  int fd[N];
  SCOPED(unit_free) char *part = xcalloc(1, SIZE);
  SCOPED(buf_finish) struct buf q = BUF_INIT;
  ask_set(&q, "v", (struct slice){part, SIZE});
  for (int i = 0; i < N; i++) {
    fd[i] = connect_new();
    put(fd[i], q.data, q.len - 1);
    spin();
  }
  expect_line("exceed 1 MiB");
  assert_in_range(c10d_server_connections(server), 1, N);
  for (int i = 0; i < N; i++) drop(fd[i]);
  wait_ms(10);
  assert_int_equal(c10d_server_connections(server), 0);
}

/* Each of them has sent half of something large: they become whole, some after the others. */
SERVER_TEST(test_large_requests_wait_for_room) {
  enum { N = 12, SIZE = 4 << 20 };
  start(&(struct c10d_server_config){.max_buffered = 32 << 20});
  SCOPED(unit_free) char *value = xcalloc(1, SIZE);
  SCOPED(buf_finish) struct buf q = BUF_INIT;
  int fd[N], whole = 0;
  size_t at[N] = {0};
  ask_set(&q, "v", (struct slice){value, SIZE});
  ask(&q, (struct c10d_request){.op = C10D_PING, .number = 1});
  for (int i = 0; i < N; i++) fd[i] = connect_new();
  for (int turns = 0; turns < 100000 && whole < N; turns++)
    for (int i = 0; i < N; i++) {
      ssize_t n = at[i] < q.len ? write(fd[i], q.data + at[i], q.len - at[i]) : 0;
      if (n > 0) at[i] += (size_t)n;
      uv_run(&loop, UV_RUN_NOWAIT);
      SCOPED(buf_finish) struct buf in = BUF_INIT;
      assert_false(get(fd[i], &in));
      whole += in.len == 4;
    }
  assert_int_equal(whole, N);
  assert_string_equal(buf_text(&lines), "");
  for (int i = 0; i < N; i++) drop(fd[i]);
  wait_ms(10);
  assert_int_equal(c10d_server_connections(server), 0);
}

/* Who was granted room and says no more loses it to who wants it, and only then. */
SERVER_TEST(test_who_keeps_room_is_dropped) {
  enum { SIZE = 4 << 20 };
  start(&(struct c10d_server_config){.max_buffered = 16 << 20, .stall_ms = 100});
  SCOPED(unit_free) char *value = xcalloc(1, SIZE);
  SCOPED(buf_finish) struct buf q = BUF_INIT, in = BUF_INIT;
  ask_set(&q, "v", (struct slice){value, SIZE});
  ask(&q, (struct c10d_request){.op = C10D_PING, .number = 1});
  int idle = connect_new(), busy = connect_new();
  put(idle, q.data, 1000);
  wait_ms(250);
  assert_string_equal(buf_text(&lines), "");
  push(busy, q.data, q.len);
  exchange(busy, &in, 4);
  expect_line("closed: its request of");
  assert_int_equal(c10d_server_connections(server), 1);
}

/* Many ask for something large and read late. They get it one after the other, nobody is dropped, and small things
 * are answered meanwhile. */
SERVER_TEST(test_large_replies_wait_for_room) {
  enum { N = 20, SIZE = 4 << 20 };
  start(&(struct c10d_server_config){.max_buffered = 24 << 20});
  SCOPED(unit_free) char *value = xcalloc(1, SIZE);
  SCOPED(buf_finish) struct buf q = BUF_INIT, a = BUF_INIT;
  int fd[N], other = connect_new();
  ask_set(&q, "v", (struct slice){value, SIZE});
  push(other, q.data, q.len);
  for (int i = 0; i < N; i++) {
    fd[i] = connect_new();
    buf_clear(&q);
    ask_get(&q, "v");
    ask_add(&q, "n", 1);
    put(fd[i], q.data, q.len);
  }
  spin();
  buf_clear(&q);
  ask_add(&q, "n", 100);
  put(other, q.data, q.len);
  spin();
  buf_clear(&a);
  get(other, &a);
  assert_int_equal(a.len, 8);
  assert_in_range(le64_get(a.data), 100, 100 + N / 2); /* most are not served yet */
  struct buf in[N] = {0};
  size_t whole = 0;
  for (int turns = 0; turns < 100000 && whole < N; turns++) {
    uv_run(&loop, UV_RUN_NOWAIT);
    whole = 0;
    for (int i = 0; i < N; i++) {
      get(fd[i], &in[i]);
      whole += in[i].len == 8 + SIZE + 8;
    }
  }
  assert_int_equal(whole, N);
  for (int i = 0; i < N; i++) {
    assert_int_equal(le64_get(in[i].data), SIZE);
    buf_finish(&in[i]);
    drop(fd[i]);
  }
  assert_string_equal(buf_text(&lines), "");
  drop(other);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
}

/* Who waits for room may go, and the server may. */
SERVER_TEST(test_end_of_who_waits_for_room) {
  enum { N = 8, SIZE = 4 << 20 };
  start(&(struct c10d_server_config){.max_buffered = 8 << 20, .stall_ms = 100});
  SCOPED(unit_free) char *value = xcalloc(1, SIZE);
  SCOPED(buf_finish) struct buf q = BUF_INIT;
  int fd[N];
  ask_set(&q, "v", (struct slice){value, SIZE});
  for (int i = 0; i < N; i++) {
    fd[i] = connect_new();
    if (i == 0) push(fd[0], q.data, q.len);
    buf_clear(&q);
    ask_get(&q, "v");
    put(fd[i], q.data, q.len);
    spin();
  }
  drop(fd[N - 1]);
  wait_ms(250); /* nobody reads: those who were answered are dropped, and make room for the next */
  expect_line("closed: it does not read");
  assert_in_range(c10d_server_connections(server), 1, N - 2);
}

/* Twenty clients ask for something expensive at once: the loop comes back after a few of them, and all have their
 * turns in the end. */
SERVER_TEST(test_no_turn_of_the_loop_is_long) {
  enum { N = 20, KEYS = C10D_KEYS_MAX };
  start(&(struct c10d_server_config){0});
  struct slice *keys = xcalloc(KEYS, sizeof(*keys));
  SCOPED(buf_finish) struct buf q = BUF_INIT;
  int fd[N], answered = 0, first = 0;
  bool done[N] = {false};
  ask(&q, (struct c10d_request){.op = C10D_WAIT, .count = KEYS, .keys = keys});
  ask(&q, (struct c10d_request){.op = C10D_PING, .number = 1});
  for (int i = 0; i < N; i++) {
    fd[i] = connect_new();
    push(fd[i], q.data, q.len - 9);
    spin();
  }
  for (int i = 0; i < N; i++) put(fd[i], q.data + q.len - 9, 9);
  for (int turns = 0; turns < 2 * N && answered < N; turns++) {
    uv_run(&loop, UV_RUN_NOWAIT);
    for (int i = 0; i < N; i++) {
      SCOPED(buf_finish) struct buf in = BUF_INIT;
      get(fd[i], &in);
      if (in.len && !done[i]) answered++;
      done[i] |= in.len > 0;
    }
    if (turns == 0) first = answered;
  }
  assert_int_equal(answered, N);
  assert_in_range(first, 1, N / 2);
  for (int i = 0; i < N; i++) drop(fd[i]);
  for (int i = 0; i < 1000 && c10d_server_connections(server); i++) uv_run(&loop, UV_RUN_NOWAIT);
  assert_int_equal(c10d_server_connections(server), 0);
  free(keys);
}
